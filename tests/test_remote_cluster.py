"""One run on a Ray cluster of two nodes: equal to the local one, whoever is lost meanwhile."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moody import records
from ray_cluster import Cluster, Node, joined, numbers, running, wait

from fedbench.experiment.record import Record, parse
from fedbench.experiment.scenario import Scenario
from fedbench.run import play

LINKS = Path(__file__).resolve().parent.parent / "benchmarks" / "links.py"
PLAYED = Scenario(
    model="micro",
    protocol="topk",  # whose clients remember what they did not send
    attack="label-flip",
    clients=8,
    per_round=6,
    rounds=20,
    epochs=4,  # so long that a task can be met in the middle
    malicious=0.25,
)
PROGRAM = """
import sys
import torch
from fedbench import Scenario
from fedbench.core.errors import FedbenchError
from fedbench.run import play

torch.set_num_threads(1)
scenario = Scenario.model_validate_json(sys.argv[1])
told = [lambda round: print("round", round.step, flush=True)]
how = {"chunk": int(sys.argv[2]), "stream": sys.argv[3] == "streamed"}
try:
    record = play(scenario, device="cpu", executor="ray", callbacks=told, **how)
    print(record.to_json(), end="")
except FedbenchError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("site") / "packages") as started:
        started.env["RAY_ADDRESS"] = started.address
        yield started


@pytest.fixture
def second(cluster: Cluster) -> Iterator[Node]:
    with joined(cluster) as node:
        yield node


def begin(
    cluster: Cluster, scenario: Scenario, chunk: int = 1, stream: bool = False
) -> "subprocess.Popen[str]":
    how = [str(chunk), "streamed" if stream else "whole"]
    words = [sys.executable, "-c", PROGRAM, scenario.model_dump_json(), *how]
    pipes: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(words, text=True, env=cluster.env, cwd=cluster.folder, **pipes)


def await_round(driver: "subprocess.Popen[str]", number: int) -> None:
    """Read the output of a run until it has played this round."""
    assert driver.stdout is not None
    for line in driver.stdout:
        if line == f"round {number}\n":
            return
    assert driver.stderr is not None
    raise AssertionError(driver.stderr.read())


def ended(driver: "subprocess.Popen[str]") -> Record:
    """Return the record that a run prints at its end."""
    output, complaints = driver.communicate(timeout=400)
    assert driver.returncode == 0, complaints
    return parse(output[output.index("{") :].encode(), "its output")


def training(node: Node) -> list[int]:
    """Return the processes of a node in the middle of a task; Ray gives others another name."""
    return node.processes(b"ray::train_chunk")


@pytest.mark.cluster
def test_a_run_that_loses_a_process_and_a_node_is_the_local_run(
    cluster: Cluster, second: Node
) -> None:
    driver = begin(cluster, PLAYED)
    await_round(driver, 4)
    wait(lambda: training(cluster.head))
    os.kill(training(cluster.head)[0], signal.SIGKILL)
    await_round(driver, 8)
    wait(lambda: training(second))
    second.end()
    record = ended(driver)
    assert record.environment.executor == "ray:loop"
    assert numbers(record) == numbers(play(PLAYED, device="cpu", executor="loop"))


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("changes", "loses"),
    [
        ({"protocol": "fedavg", "defense": "median", "attack": "none"}, False),
        ({"protocol": "qsgd", "defense": "trimmed-mean", "rounds": 8}, True),
        ({"protocol": "fedpm", "defense": "median", "model": "cnn4"}, False),  # floats beside bits
    ],
)
def test_columns_that_two_nodes_aggregate_are_those_of_the_local_run(
    cluster: Cluster, second: Node, changes: dict[str, Any], loses: bool
) -> None:
    sizes = {"clients": 6, "per_round": 5, "rounds": 2, "epochs": 1, "malicious": 0.2}
    scenario = Scenario(**{"model": "lenet", "attack": "sign-flip", **sizes, **changes})
    driver = begin(cluster, scenario, chunk=2, stream=True)
    if loses:
        await_round(driver, 1)
        wait(lambda: second.processes(b"ray::aggregate_columns"))
        second.end()
    local = play(scenario, device="cpu", executor="loop", chunk=2, stream=True)
    assert numbers(ended(driver)) == numbers(local)


@pytest.mark.cluster
def test_clients_whose_process_always_dies_end_the_run_in_one_line(cluster: Cluster) -> None:
    alone = {"per_round": 1, "attack": "none", "malicious": 0.0}
    driver = begin(cluster, PLAYED.model_copy(update=alone))
    end = time.monotonic() + 300
    killed = 0
    while driver.poll() is None:
        assert time.monotonic() < end
        for pid in training(cluster.head):
            os.kill(pid, signal.SIGKILL)
            killed += 1
        time.sleep(0.01)
    _, complaints = driver.communicate()
    assert driver.returncode == 1
    assert "Unavailable: --executor ray must have nodes that stay, got WorkerCrashedError" in (
        complaints
    )
    assert killed >= 4


@pytest.mark.cluster
def test_what_crosses_between_two_nodes_is_what_the_formula_says(
    cluster: Cluster, second: Node
) -> None:
    done = cluster.finished([sys.executable, str(LINKS), "--play"], cluster.folder)
    assert done.returncode == 0, done.stderr  # it compares every counter, to the byte
    chunks_of, columns_of = done.stdout.split("\n\n")
    shares = {line.split()[1] for line in columns_of.splitlines()[2:]}
    assert shares == {"0", "1"}  # rounds; short tasks may all be of one node
    rows = [line.strip("| ").split(" | ") for line in chunks_of.splitlines()[2:]]
    assert len({node for _, _, node, *_ in rows}) == 2
    for protocol in ("fedavg", "signsgd"):
        for step in ("0", "1"):
            chunks = [int(row[3]) for row in rows if row[:2] == [protocol, step]]
            assert sum(chunks) == 6


@pytest.mark.cluster
def test_the_command_line_plays_on_a_cluster(
    cluster: Cluster, second: Node, tmp_path: Path
) -> None:
    words = ["attack", "--attack", "sign-flip", "--protocol", "signsgd", "--model", "micro"]
    sizes = ["--clients", "8", "--per-round", "6", "--rounds", "2", "--seeds", "0"]
    store = ["--out", str(tmp_path / "store"), "--executor", "ray"]
    command = [sys.executable, "-m", "fedbench", *words, *sizes, *store]
    done = cluster.finished(command, tmp_path)
    assert done.returncode == 0, done.stderr
    played = records(tmp_path).values()
    assert [record.environment.executor for record in played] == ["ray:loop"] * 2
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").write_text("raise ImportError('no module ray')\n")
    absent = cluster.finished([*command, "--seeds", "1"], tmp_path, {"PYTHONPATH": str(tmp_path)})
    assert absent.returncode == 2
    assert "fedbench: --executor ray needs Ray, got no module ray; run pip install '.[ray]'" in (
        absent.stderr
    )
    assert absent.stderr.count("\n") == 1
