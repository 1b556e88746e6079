"""Sweeps on a Ray cluster of two nodes: what a lost worker, a lost node or a lost driver cost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moody import HUNDRED, MOODY, failures, first, installed, records
from ray_cluster import Cluster, Node, gone, joined, running, wait
from test_checkpoints import mark

from fedbench.core.errors import ConfigError
from fedbench.data import archives
from fedbench.executors.cluster import places
from fedbench.experiment.checkpoints import Checkpoint
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import code_version
from fedbench.sweeps.local import Options
from fedbench.sweeps.on_ray import OnRay, reached

ROOT = Path(__file__).parents[1]

TWENTY = HUNDRED.replace('["fedavg", "signsgd", "topk", "qsgd", "fedpm"]', '"fedavg"')
LONG = TWENTY.replace("[1, 2]", "[20, 21]")  # a node joins while it is played
TWO = HUNDRED.replace("[0, 1]", "[0]").replace("[1, 2]", "1")
TWO = TWO[: TWO.index("protocol")] + 'protocol = "fedavg"\n'


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("site") / "packages") as started:
        yield started


@pytest.fixture
def second(cluster: Cluster) -> Iterator[Node]:
    with joined(cluster) as node:
        yield node


@pytest.fixture(scope="module")
def calm(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """`HUNDRED` and `LONG`, undisturbed and without Ray."""
    folder = tmp_path_factory.mktemp("calm")
    for text in (HUNDRED, LONG):
        ended = cluster.sweep(folder, text, "--engine", "local")
        assert ended.returncode == 0, ended.stderr
    assert len(records(folder)) == 120
    return records(folder)


def assert_same(found: dict[str, Record], calm: dict[str, Record], runs: int) -> None:
    assert len(found) == runs
    for name, record in found.items():
        assert record.measured() == calm[name].measured()


@pytest.mark.cluster
def test_a_sweep_that_loses_workers_ends_like_an_undisturbed_one(
    cluster: Cluster, second: Node, calm: dict[str, Record], tmp_path: Path
) -> None:
    sweep = cluster.begin(tmp_path, HUNDRED)
    for node, runs in ((cluster.head, 10), (second, 40)):
        wait(lambda runs=runs: len(records(tmp_path)) >= runs)  # type: ignore[misc]
        wait(node.playing)
        os.kill(node.playing()[0], signal.SIGKILL)
    output, _ = sweep.communicate(timeout=540)
    assert sweep.returncode == 0, output
    assert_same(records(tmp_path), calm, 100)
    assert output.count(": accuracy") == 100  # none twice
    assert "raylet" not in output  # Ray tells dozens of lines of a lost worker
    assert failures(tmp_path) == []


@pytest.mark.cluster
def test_an_exhibit_of_a_paper_is_played_by_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    played = {}
    for where, how in (("ray", ["--engine", "ray", "--address", cluster.address]), ("here", [])):
        kept = tmp_path / where
        words = ["reproduce", "fedpm-figure3-bits", "--seeds", "0", "--out", str(kept / "store")]
        command = [sys.executable, "-m", "fedbench", *words, "--keep", str(kept), *how]
        done = cluster.finished(command, tmp_path)
        assert done.returncode == 0, done.stderr
        outcome = json.loads((kept / "fedpm-figure3-bits.mini.json").read_text())
        played[where] = [cell["values"] for cell in outcome["cell"]]
    assert len(played["ray"]) == 2
    assert played["ray"] == played["here"]


@pytest.mark.cluster
def test_a_node_that_joins_plays_and_one_that_is_lost_takes_nothing_with_it(
    cluster: Cluster, calm: dict[str, Record], tmp_path: Path
) -> None:
    sweep = cluster.begin(tmp_path, LONG)
    wait(lambda: records(tmp_path))
    node = cluster.join()
    try:
        wait(node.playing)
    finally:
        node.end()
    assert len(records(tmp_path)) < 20
    output, _ = sweep.communicate(timeout=540)
    assert sweep.returncode == 0, output
    assert_same(records(tmp_path), calm, 20)
    assert output.count(": accuracy") == 20
    gone(cluster)


@pytest.mark.cluster
def test_a_killed_driver_leaves_nothing(
    cluster: Cluster, calm: dict[str, Record], tmp_path: Path
) -> None:
    sweep = cluster.begin(tmp_path, TWENTY)
    wait(lambda: len(records(tmp_path)) >= 3)
    wait(cluster.head.playing)
    sweep.kill()
    sweep.communicate()
    wait(lambda: not cluster.head.playing(), 30)
    before = len(records(tmp_path))
    assert 3 <= before < 20
    again = cluster.sweep(tmp_path, TWENTY)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count(": accuracy") == 20 - before
    assert_same(records(tmp_path), calm, 20)


LASTING = """
seeds = [0]
[scenario]
protocol = "topk:error_feedback=true"
attack = "none"
model = "micro"
clients = 8
per_round = 5
rounds = 30
"""


@pytest.mark.cluster
def test_a_run_goes_on_from_its_checkpoint_where_nodes_see_the_store(
    cluster: Cluster, tmp_path: Path
) -> None:
    every_round = ["--checkpoint", "every=1", "--engine", "ray", "--address", cluster.address]
    folder = tmp_path / "store" / "checkpoints"
    sweep = cluster.begin(tmp_path, LASTING, *every_round)
    wait(lambda: list(folder.glob("*.safetensors")) or sweep.poll() is not None)
    sweep.kill()
    sweep.communicate()
    wait(lambda: not cluster.head.playing())
    (path,) = folder.glob("*.safetensors")
    mark(path)
    assert records(tmp_path) == {}
    ended = cluster.sweep(tmp_path, LASTING, *every_round)
    assert ended.returncode == 0, ended.stderr
    (record,) = records(tmp_path).values()
    assert record.rounds[0].notes == {"marked": True}  # it was not played again
    assert list(folder.glob("*.safetensors")) == []


def test_a_node_that_does_not_see_the_store_keeps_no_checkpoint(tmp_path: Path) -> None:
    mark = tmp_path / "checkpoints" / ".driver-1"
    asked = Checkpoint.of("every=5", Path("store/checkpoints/x.safetensors"))
    unasked = Checkpoint.of(None, Path("store/checkpoints/x.safetensors"))
    assert reached(unasked, mark) is None
    with pytest.raises(ConfigError, match=r"a store that every node sees, got .* without .*share"):
        reached(asked, mark)
    mark.parent.mkdir()
    mark.touch()
    for checkpoint in (asked, unasked):
        there = reached(checkpoint, mark)
        assert there is not None
        assert there.path == tmp_path / "checkpoints" / "x.safetensors"
    assert reached(None, mark) is None
    assert reached(unasked, None) is None


@pytest.mark.cluster
def test_what_fails_is_a_failure_and_the_sweep_goes_on(cluster: Cluster, tmp_path: Path) -> None:
    grids = """
    [[grid]]
    attack = ["moody", "moody:how=kill"]
    [[grid]]
    dataset = "emnist"
    [[grid]]
    protocol = "signsgd"
    model = "cnn4"
    """
    text = TWO[: TWO.index("[[grid]]")] + textwrap.dedent(grids)
    (tmp_path / "emnist.npz").write_bytes(b"PK no archive")
    ended = cluster.sweep(tmp_path, text, "--chunk", "1", env={"FEDBENCH_DATA": str(tmp_path)})
    assert ended.returncode == 1
    assert len(records(tmp_path)) == 1  # the clean run
    scenarios = [(failure, failure.scenario) for failure in failures(tmp_path)]
    results = {s.model + s.dataset + s.attack: failure for failure, s in scenarios}
    raised = results["microdigitsmoody:times=99,how=raise"]
    killed = results["microdigitsmoody:times=99,how=kill"]
    data = results["microemnistnone"]
    misfit = results["cnn4digitsnone"]
    assert (raised.kind, raised.error, raised.tries) == ("crash", "PluginError", 1)
    assert "raised ZeroDivisionError" in raised.message
    assert "in craft" in raised.traceback
    assert (killed.kind, killed.error, killed.tries) == ("lost", "WorkerCrashedError", 2)
    # Ray tries it four times, and so it does once more with fewer clients at once.
    assert Path(cluster.env["DIARY"]).read_text().split().count("kill") == 8
    assert (data.kind, misfit.kind) == ("machine", "user")
    assert "emnist.npz must be a .npz archive" in data.message
    assert "cnn4" in misfit.message


@pytest.mark.cluster
def test_an_endless_run_is_cancelled_and_not_tried_again(cluster: Cluster, tmp_path: Path) -> None:
    diary = Path(cluster.env["DIARY"])
    before = diary.read_text() if diary.exists() else ""
    text = TWO[: TWO.index("[[grid]]")] + '[[grid]]\nattack = "moody:how=wait"\n'
    ended = cluster.sweep(tmp_path, text, "--run-timeout", "60")
    assert ended.returncode == 1, ended.stderr
    assert len(records(tmp_path)) == 1  # the clean run
    (failure,) = failures(tmp_path)
    assert (failure.kind, failure.tries) == ("timeout", 1)
    assert "ended after 60 s" in failure.message
    assert diary.read_text().removeprefix(before) == "wait "


@pytest.mark.cluster
def test_nodes_need_no_data_files(cluster: Cluster, second: Node, tmp_path: Path) -> None:
    draw = np.random.Generator(np.random.PCG64(7))
    arrays = {
        f"{what}_{part}": draw.integers(0, top, shape, np.uint8)
        for part, n in (("train", 300), ("test", 50))
        for what, top, shape in (("x", 256, (n, 28, 28)), ("y", 47, (n,)))
    }
    archives.write(tmp_path / "emnist.npz", arrays)
    text = TWO.replace("[scenario]", '[scenario]\ndataset = "emnist"').replace("[0]", "[0, 1, 2]")
    data = {"FEDBENCH_DATA": str(tmp_path)}
    ended = cluster.sweep(tmp_path / "ray", text, env=data)
    assert ended.returncode == 0, ended.stdout
    assert cluster.sweep(tmp_path / "local", text, "--engine", "local", env=data).returncode == 0
    assert_same(records(tmp_path / "ray"), records(tmp_path / "local"), 3)


@pytest.mark.cluster
def test_workers_map_the_data_set_instead_of_copying_it(cluster: Cluster) -> None:
    output = cluster.script(
        """
        import ray
        from fedbench.experiment.prepare import load_pool
        from fedbench.executors import cluster

        def where(arrays):
            import warnings
            warnings.simplefilter("error")
            data = cluster.data_of(arrays)
            for line in open("/proc/self/maps"):
                first, last = (int(x, 16) for x in line.split()[0].split("-"))
                if first <= data.x.data_ptr() < last:
                    return line, data.digest, data.scale, data.mean, data.owner

        ray.init(address, log_to_driver=False, logging_level="ERROR")
        data = load_pool("digits")
        line, *others = ray.get(ray.remote(where).remote(ray.put(cluster.arrays_of(data))))
        assert others == [data.digest, 16.0, data.mean, None], others
        print(line)
        """
    )
    assert "rw-s" in output  # shared memory
    assert "plasma" in output


@pytest.mark.cluster
def test_places_are_counted_node_by_node_and_given_back(cluster: Cluster) -> None:
    node = cluster.join("--num-gpus", "2", cores="5")
    output = cluster.script(
        """
        import time
        import ray
        from fedbench.core.errors import ConfigError
        from fedbench.experiment.scenario import Scenario
        from fedbench.experiment.cells import Cell, Run
        from fedbench.sweeps.local import Options
        from fedbench.sweeps.on_ray import OnRay

        for threads, workers, gpus in ((1, 0, 0.0), (2, 0, 0.0), (1, 4, 0.0), (1, 0, 0.4)):
            with OnRay(Options(threads=threads, workers=workers), address, gpus) as engine:
                print(engine.free(), end=" ")
                for seed in range(9):
                    engine.submit(Run(Cell(Scenario(rounds=1000)), seed), 1)
                begun = [news.run.seed for news in engine.news(0) if news.what is None]
                print(engine.free(), len(begun), end="; ")
        print()
        for threads in (6, 1):  # the second one is refused, because somebody has not left
            try:
                OnRay(Options(threads=threads), address).__enter__()
                OnRay(Options(threads=threads), address).__enter__()
            except ConfigError as error:
                print(error)
        end = time.monotonic() + 30
        while ray.available_resources().get("CPU") != 6:
            assert time.monotonic() < end
            time.sleep(0.1)
        """
    )
    node.end()
    gone(cluster)
    free, refused, twice = output.splitlines()
    # 1 + 5 cores and one that waits; pairs of cores; no more than asked; 2 GPUs of 2 shares.
    assert free == "7 0 9; 3 0 9; 4 0 9; 5 0 9; "
    assert "must have a node with 6 CPUs and 0 GPUs for a run, got none; start one" in refused
    assert "ray.init twice" in twice


@pytest.mark.cluster
@pytest.mark.parametrize("what", ["code", "plug-in", "no plug-in", "nothing"])
def test_a_node_with_other_code_ends_the_sweep_before_it_fails_every_run(
    what: str, cluster: Cluster, tmp_path: Path
) -> None:
    other = installed(tmp_path / "other", MOODY + ("# changed\n" if what == "plug-in" else ""))
    expected = f"must run fedbench {code_version()} and the same plug-ins, got "
    if what == "code":
        for package in ("fedbench", "attacks/fedbench_attacks", "defenses/fedbench_defenses"):
            shutil.copytree(ROOT / package, other / Path(package).name)
        with (other / "fedbench" / "core" / "rng.py").open("a") as file:
            file.write("# changed\n")
        expected += code_version().partition("+")[0]
    elif what == "plug-in":
        expected += "other code of a plug-in"
    elif what == "no plug-in":
        other = tmp_path
        expected += "--attack 'moody' is not installed"
    else:
        (other / "fedbench").mkdir()
        (other / "fedbench" / "__init__.py").write_text("raise ImportError('not here')\n")
        expected = "must have this fedbench, got"
    text = TWENTY.replace('["sign-flip", ', '["moody:how=never", ')
    node = cluster.join(env={"PYTHONPATH": first(other)})
    ended = cluster.sweep(tmp_path / "sweep", text)
    node.end()
    gone(cluster)
    assert ended.returncode == 2, ended.stdout
    assert ended.stderr.startswith("fedbench: ")
    assert expected in ended.stderr
    assert ended.stderr.endswith("start the sweep again\n")
    assert ended.stderr.count("start the sweep again") == 1
    assert len(records(tmp_path / "sweep")) < 20


@pytest.mark.cluster
def test_a_cluster_of_its_own_ends_with_the_sweep_however_that_ends(
    cluster: Cluster, calm: dict[str, Record], tmp_path: Path
) -> None:
    with tempfile.TemporaryDirectory(prefix="fedbench-", ignore_cleanup_errors=True) as folder:
        command = cluster.command(tmp_path, TWENTY, "--engine", "ray")
        env = cluster.env | {"RAY_TMPDIR": folder, "HOME": str(tmp_path)}
        pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        process = subprocess.Popen(
            command, text=True, env=env, cwd=tmp_path, start_new_session=True, **pipes
        )
        node = Node.__new__(Node)
        node.session = process.pid
        try:
            wait(lambda: len(records(tmp_path)) >= 2)
            os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
            _, complaints = process.communicate(timeout=60)
            assert process.returncode == 130
            assert "fedbench: stopped with" in complaints
            wait(lambda: not node.processes(), 30)
        finally:
            node.end()
    results = records(tmp_path)
    assert_same(results, calm, len(results))


@pytest.mark.cluster
def test_what_ray_cannot_do_is_said_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    start = time.monotonic()
    ended = cluster.sweep(tmp_path, TWO, "--engine", "ray", "--address", "127.0.0.1:9")
    assert ended.returncode == 2
    assert "runs and has this machine, got '127.0.0.1:9' ([Errno 111]" in ended.stderr
    assert time.monotonic() - start < 60
    address = ["--engine", "ray", "--address", cluster.address]
    ended = cluster.sweep(tmp_path, TWO, *address, env={"RAY_AUTH_TOKEN": "1" * 32})
    assert ended.returncode == 2
    assert "oken" in ended.stderr
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('no module ray')\n")
    ended = cluster.sweep(tmp_path, TWO, env={"PYTHONPATH": first(tmp_path)})
    assert ended.returncode == 2
    assert "pip install '.[ray]' in a clone" in ended.stderr


def test_shares_of_a_gpu_are_whole_runs_and_options_that_do_not_fit_are_errors() -> None:
    node = {"CPU": 16.0, "GPU": 2.0}
    assert places(node, 1, 0.1) == 16  # 20 shares, of which 1 // 0.1 would see 18
    assert places(node, 1, 0.3) == 6  # three on each, not six and two thirds
    assert places(node, 1, 1.0) == 2
    assert places(node, 9, 1.0) == 1
    assert places({"CPU": 128.0, "GPU": 1.0}, 1, 1 / 93) == 93  # whose inverse is below 93
    assert places({"CPU": 16.0}, 1, 0.5) == 0
    for gpus in (-0.1, 0.00001, 1.5, 2.0):
        with pytest.raises(ConfigError, match=r"--gpus-per-run must be 0, or from 0\.0001"):
            OnRay(Options(), None, gpus)
    with pytest.raises(ConfigError, match="--device cuda needs --gpus-per-run, got 0"):
        OnRay(Options(device="cuda"), None, 0.0)
