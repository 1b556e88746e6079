"""One run on a cluster: equal to the local one, its bytes counted, and what it refuses.

Ray is here a stand-in that does each task at once in this process, on nodes in turns; a real
cluster of two nodes is in ``test_remote_cluster.py``.
"""

import dataclasses
import importlib.util
import os
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray_cluster import numbers

from fedbench.api import ServerView
from fedbench.core.errors import ConfigError, PluginError, Unavailable
from fedbench.core.rng import Key
from fedbench.executors.cluster import imported
from fedbench.executors.factory import require_device, require_known
from fedbench.experiment import remote, remote_process, shards
from fedbench.experiment.checkpoints import Checkpoint
from fedbench.experiment.forms import form_bytes
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors, FoldedMessages, KeptMessages, Payload
from fedbench.payload.bits import SignBits
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import play
from fedbench.sweeps.local import Options
from fedbench.sweeps.on_ray import OnRay
from fedbench_defenses.median import MeanOfRanks, Median

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "links.py"
loader = importlib.util.spec_from_file_location("links", SCRIPT)
assert loader is not None
assert loader.loader is not None
links = importlib.util.module_from_spec(loader)
loader.loader.exec_module(links)

SMALL = Scenario(
    model="micro", clients=20, per_round=5, rounds=2, epochs=1, batch_size=50, malicious=0.4
)


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__("Traceback of a process")
        self.cause = cause


class OutOfMemoryError(RayError):
    pass


class HereAndNow:
    """Stand-in for Ray that does each task in this process, as far as `remote` uses it."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, OutOfMemoryError=OutOfMemoryError
    )

    def __init__(self, nodes: int, loses: Exception | None = None) -> None:
        self.alive = [{"Alive": True, "Resources": {"CPU": 1.0}} for _ in range(nodes)]
        self.loses = loses
        self.turn = count()
        self.objects: dict[int, Any] = {}
        self.tasks = 0
        self.names: Counter[str] = Counter()  # of the functions that tasks are

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return self.alive

    def put(self, value: Any) -> int:
        self.objects[len(self.objects)] = value
        return len(self.objects) - 1

    def get(self, reference: int) -> Any:
        value = self.objects[reference]
        if isinstance(value, RayError):
            raise value
        return value

    def wait(self, references: list[int]) -> tuple[list[int], list[int]]:
        return references[-1:], references[:-1]  # the last one first: order must not matter

    def get_runtime_context(self) -> Any:
        node = f"node {next(self.turn) % len(self.alive)}"
        return SimpleNamespace(get_node_id=lambda: node)

    def remote(self, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def task(function: Callable[..., Any]) -> Any:
            def answer(run: list[int], task: Any, *trees: int) -> int:
                self.tasks += 1
                self.names[function.__name__] += 1
                if self.loses is not None:
                    return self.put(self.loses)
                try:
                    return self.put(function(run, task, *map(self.get, trees)))
                except Exception as error:  # Ray carries whatever a task raises
                    # Ray pickles it: an error of ours must arrive with all that it says.
                    return self.put(RayTaskError(pickle.loads(pickle.dumps(error))))

            return SimpleNamespace(remote=answer)

        return task


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[remote.Remote]]:
    """Executors that were made on a cluster."""
    executors: list[remote.Remote] = []
    make = remote.Remote.of

    def kept(*given: Any) -> remote.Remote:
        executors.append(make(*given))
        return executors[-1]

    monkeypatch.setattr(remote.Remote, "of", kept)
    yield executors
    remote_process.worker_of.cache_clear()


def on_stand_in(
    scenario: Scenario,
    monkeypatch: pytest.MonkeyPatch,
    ray: HereAndNow | None = None,
    how: str = "ray",
    chunk: int = 32,
) -> Record:
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(2) if ray is None else ray)
    return play(scenario, device="cpu", executor=how, chunk=chunk)


RUNS: dict[str, dict[str, Any]] = {
    "floats": {"attack": "sign-flip"},
    "masks": {"protocol": "fedpm", "attack": "mask-ipm"},
    "memories": {"protocol": "topk:error_feedback=true", "attack": "residual-release"},
    "patches": {"protocol": "byz-ef21", "attack": "sign-flip"},
    "scalars": {"protocol": "decomfl"},
    "updates protected": {"mechanism": "dp-fedavg:clip=0.01", "attack": "sign-flip"},
    "gradients protected": {"mechanism": "dp-sgd", "attack": "label-flip"},
    "poisoned samples": {"attack": "label-flip", "attack_from": 1},
    "poisoned gradients": {"attack": "neurotoxin"},
    "recruits": {"protocol": "fsl", "attack": "rank-reversal"},
    "root data": {"defense": "fltrust"},
    "drop-outs": {"availability": "dropout:p=0.5"},
    "each its own": {"protocol": "feddrop"},
}


@pytest.mark.edges(
    "floats",
    "masks",
    "memories",
    "scalars",
    "updates protected",
    "poisoned samples",
    "poisoned gradients",
    "root data",
    "drop-outs",
)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_on_a_cluster_is_the_local_run_to_the_last_bit(
    name: str, made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SMALL.model_copy(update=RUNS[name])
    local = play(scenario, device="cpu", executor="loop")
    there = on_stand_in(scenario, monkeypatch)
    assert there.environment.executor == "ray:loop"
    assert numbers(there) == numbers(local)
    (executor,) = made
    assert {node for _, node, _ in executor.carried} == {"node 0", "node 1"}


def test_a_run_that_was_ended_goes_on_from_its_checkpoint(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ends(round: Round) -> None:
        raise KeyboardInterrupt

    scenario = SMALL.model_copy(update=RUNS["memories"])
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(2))
    kept = Checkpoint(tmp_path / "run.safetensors", rounds=1)
    with pytest.raises(KeyboardInterrupt):
        play(scenario, device="cpu", executor="ray", checkpoint=kept, callbacks=[ends])
    there = play(scenario, device="cpu", executor="ray", checkpoint=kept)
    assert {step for step, _, _ in made[1].carried} == {1}
    assert numbers(there) == numbers(play(scenario, device="cpu", executor="loop"))


def test_in_lock_step_a_cluster_agrees_with_the_local_run(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = on_stand_in(SMALL, monkeypatch, HereAndNow(1), how="ray:padded")
    assert there.environment.executor == "ray:padded"
    assert numbers(there) == numbers(play(SMALL, device="cpu", executor="padded"))


@pytest.mark.parametrize(
    ("protocol", "message", "form"),
    [
        ("fedavg", lambda d: 4 * d, lambda d: FloatVectors(torch.zeros(0, d))),
        ("signsgd", lambda d: -(-d // 8), lambda d: SignBits(torch.zeros(0, d, dtype=torch.bool))),
    ],
)
def test_what_crosses_is_what_the_formula_says_to_the_byte(
    protocol: str,
    message: Callable[[int], int],
    form: Callable[[int], Payload],
    made: list[remote.Remote],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = SMALL.model_copy(update={"protocol": protocol, "malicious": 0.0})
    on_stand_in(scenario, monkeypatch, chunk=1)
    (executor,) = made
    d = executor.setup.shared.layout.d
    (stored,) = executor.stored.values()
    shapes = {name: tuple(x.shape) for name, x in stored.tree.items()}
    size = len(form_bytes(form(d)))
    trained = links.chunks(executor.carried, shapes, 1, message(d), size, d)
    ends = {(0, "node 0"): 3, (0, "node 1"): 2, (1, "node 0"): 2, (1, "node 1"): 3}
    assert trained == ends
    executor.carried[1, "node 1", "results"] += 1
    with pytest.raises(ValueError, match="round 1, node 1: counted"):
        links.chunks(executor.carried, shapes, 1, message(d), size, d)


def test_updates_come_back_where_the_mechanism_needs_them_and_are_counted(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SMALL.model_copy(update={"mechanism": "dp-fedavg", "malicious": 0.0})
    on_stand_in(scenario, monkeypatch)
    (executor,) = made
    d = executor.setup.shared.layout.d
    assert executor.carried[0, "node 0", "results"] == links.updates_bytes(3, d)
    assert executor.carried[0, "node 1", "results"] == links.updates_bytes(2, d)


def test_a_table_on_paper_is_of_the_same_formulas() -> None:
    # 100 nodes get the tree once: 4 bytes a parameter; a million times 10^9 signs are 125 TB
    lines = links.on_paper(100, 8, 10**6, 10**9)
    assert lines[0].endswith("31,250 tasks, 39.1 a GPU")
    rows = dict(line.strip("| ").split(" | ", 1) for line in lines[4:])
    assert rows["broadcast"] == "4.00 GB | 400.00 GB | 32 s"
    assert rows["results: packets of 1 bit a parameter"] == "1.25 TB | 125.00 TB | 2.8 h"
    assert rows["column shards: packets of 1 bit a parameter"] == "125.00 TB | 12.50 PB | 277.8 h"
    # 134 columns of a million float32 are 512 MiB, and a task of them has 78 bytes beside 4 each
    assert rows["column shards: answers"] == "45.82 MB | 4.58 GB | 0.37 s"
    assert rows["results: updates, 32 bits a parameter"] == "40.00 TB | 4.00 PB | 88.9 h"


def test_what_a_plugin_raises_in_a_process_is_its_error_here(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("moody today")

    monkeypatch.setattr(FedAvg, "local_update", broken)
    with pytest.raises(
        PluginError, match="local_update in round 0 raised ZeroDivisionError: moody"
    ):
        on_stand_in(SMALL, monkeypatch)


def test_messages_of_two_tasks_must_have_one_form(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(self: FedAvg, shared: Any, updates: torch.Tensor, keys: Any, memory: Any) -> Any:
        return FloatVectors(updates[:, : len(updates)]), memory  # tasks have 3 and 2 clients

    monkeypatch.setattr(FedAvg, "message", short)
    with pytest.raises(PluginError, match="message in round 0 must return messages of one form"):
        on_stand_in(SMALL, monkeypatch)


@pytest.mark.parametrize(
    ("lost", "kind", "text"),
    [
        (RayError("it died"), Unavailable, "nodes that stay, got RayError for the same task 4"),
        (OutOfMemoryError("a node is full"), MemoryError, "a node is full"),
        (
            RayTaskError(ModuleNotFoundError("no fedbench")),
            ConfigError,
            "got 'no fedbench'; install",
        ),
    ],
)
def test_clients_that_no_node_can_train_end_the_run(
    lost: Exception,
    kind: type[Exception],
    text: str,
    made: list[remote.Remote],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(kind, match=text):
        on_stand_in(SMALL, monkeypatch, HereAndNow(2, lost))


def test_a_node_with_other_code_is_named(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(1))
    here = dataclasses.replace(prepare(SMALL, "cpu", "ray"), id="another")
    with remote.on_cluster(here, "ray", 1) as setup:
        monkeypatch.setattr(remote_process, "code_version", lambda: "0.1+other")
        with pytest.raises(ConfigError, match=r"the same plug-ins, got 0\.1\+other; install them"):
            setup.executor.trained(setup.clients([0], [{}], {}, 0))


def test_what_does_not_go_together_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray:auto", "ray:", "rays", "ray:ray"):
        with pytest.raises(
            ConfigError, match="--executor must be auto, loop, stacked, padded, rec"
        ):
            require_known(name)
    with pytest.raises(Unavailable, match="--executor recorded must have --device cuda, got cpu"):
        require_device("ray:recorded", torch.device("cpu"))
    with pytest.raises(ConfigError, match="--executor must be one of this machine with --isolate"):
        Options(executor="ray", isolate=True)
    with pytest.raises(ConfigError, match="--executor must be one of this machine with --isolate"):
        play(SMALL, executor="ray:loop", isolate=True)
    with pytest.raises(ConfigError, match="auto or loop with --canonical"):
        Options(executor="ray", canonical=True)
    with pytest.raises(
        ConfigError, match="--executor must be one of this machine with --engine ray"
    ):
        OnRay(Options(executor="ray:padded"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--executor ray needs Ray, got .*; run pip install"):
        play(SMALL, executor="ray")
    with pytest.raises(ConfigError, match=r"--executor ray needs Ray, got .*; run pip install"):
        Options(executor="ray").require_machine()
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(0))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(ConfigError, match="RAY_ADDRESS must be of a Ray cluster that runs"):
        Options(executor="ray").require_machine()
    with pytest.raises(ConfigError, match="must have a node with 1 CPU and 0 GPUs for a task"):
        play(SMALL, device="cpu", executor="ray")
    assert Options(executor="ray").processes(6) == 1
    assert Options(executor="ray", workers=2).processes(6) == 2


def test_a_cluster_that_starts_here_deletes_answers_soon_unless_its_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "RAY_free_objects_period_milliseconds"  # Ray reads it when its processes start
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(0))
    monkeypatch.delenv(name, raising=False)
    imported("--executor ray")
    assert 0 < int(os.environ[name]) <= 100  # by default 1000, in which 100 MiB of answers come
    monkeypatch.setenv(name, "500")
    imported("--executor ray")
    assert os.environ[name] == "500"


@pytest.mark.parametrize(
    ("changes", "tasks"),
    [
        ({"defense": "median", "attack": "sign-flip"}, 2 * 8),  # once more of the honest messages
        ({"defense": "trimmed-mean", "protocol": "qsgd", "malicious": 0.0}, 8),
        ({"defense": "median", "protocol": "fsl", "attack": "none"}, 8),  # whole numbers
        ({"defense": "nnm+median", "attack": "none"}, 0),  # mixed messages: here
        ({"defense": "krum", "attack": "none"}, 0),
    ],
)
def test_columns_of_a_streamed_round_are_aggregated_on_the_cluster(
    changes: dict[str, Any],
    tasks: int,
    made: list[remote.Remote],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scenario = SMALL.model_copy(update={"rounds": 1, "malicious": 0.2, **changes})
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 4 * 5 * 1000)  # 1,000 columns
    local = play(scenario, device="cpu", executor="loop", chunk=2, stream=True)
    ray = HereAndNow(2)
    monkeypatch.setitem(sys.modules, "ray", ray)
    there = play(scenario, device="cpu", executor="ray", chunk=2, stream=True)
    assert numbers(there) == numbers(local)
    assert ray.names["aggregate_columns"] == tasks
    (executor,) = made
    assert ("columns" in {kind for _, _, kind in executor.carried}) == bool(tasks)


def test_what_shards_carry_is_what_the_formula_says_to_the_byte(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SMALL.model_copy(update={"rounds": 1, "malicious": 0.0, "defense": "median"})
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 4 * 5 * 3000)  # of 7,376 columns
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(2))
    play(scenario, device="cpu", executor="ray", chunk=2, stream=True)
    (executor,) = made
    form = len(form_bytes(FloatVectors(torch.zeros(0, 7376))))
    shared = links.shared_bytes([4 * 7376] * 5, form, 2)
    widths = (3000, 3000, 1376)
    assert links.shards(executor.carried, 0, shared, widths) == ["node 0", "node 1"]
    executor.carried[0, "node 0", "packets"] += shared  # as if they had been sent there twice
    with pytest.raises(ValueError, match="round 0: counted"):
        links.shards(executor.carried, 0, shared, widths)


def test_each_shard_asks_a_new_rule_what_the_local_run_asks(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = []
    asked = []
    answer = MeanOfRanks.aggregate

    def noted(self: MeanOfRanks, received: Payload, state: None, view: ServerView) -> Any:
        rules.append(self)
        told = (view.weights.tolist(), view.ids.tolist(), view.step, view.key.seed, view.expected)
        asked.append((*told, received.values().tolist()))
        return answer(self, received, state, view)

    monkeypatch.setattr(MeanOfRanks, "aggregate", noted)
    changes = {"defense": "median", "attack": "sign-flip", "partition": "dirichlet:beta=0.3"}
    scenario = SMALL.model_copy(update={"rounds": 1, **changes})
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 4 * 5 * 4000)
    play(scenario, device="cpu", executor="loop", chunk=2, stream=True)
    local = asked[:]
    assert len(set(local[0][0])) > 1  # sizes differ
    rules.clear()
    asked.clear()
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(2))
    play(scenario, device="cpu", executor="ray", chunk=2, stream=True)
    assert asked == local
    assert len({id(rule) for rule in rules}) == len(rules) == 4  # two shards, twice


def test_what_a_rule_raises_in_a_shard_is_its_error_here(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("moody today")

    monkeypatch.setattr(MeanOfRanks, "aggregate", broken)
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(2))
    scenario = SMALL.model_copy(update={"defense": "median"})
    with pytest.raises(
        PluginError, match="aggregate_kept in round 0 raised ZeroDivisionError: moody"
    ):
        play(scenario, device="cpu", executor="ray", chunk=2, stream=True)


def test_only_packets_and_little_else_are_shown_to_a_shard() -> None:
    rows = FloatVectors(torch.tensor([[1.0], [2.0], [4.0]]))
    kept = KeptMessages(rows.take([]), rows.encode(), at_once=2)
    view = ServerView(torch.ones(3, dtype=torch.float64), rows.take([0]), 0, Key(0))
    assert shards.sharded(Median(), kept, None, view)
    assert not shards.sharded(Median(), kept, {}, view)
    assert not shards.sharded(Median(), FoldedMessages.of(rows, view.weights), None, view)
    for more in ({"truth": view.ids > 0}, {"root": rows.take([0])}, {"network": object()}):
        assert not shards.sharded(Median(), kept, None, dataclasses.replace(view, **more))
    _, *batches = shards.objects(kept, view)
    stored = shards.StoredPackets(3, 2, batches.__getitem__)
    assert len(stored) == 3
    assert stored[0:2] == kept.packets[0:2]
    assert stored[2:4] == kept.packets[2:]
    assert stored[:1] == kept.packets[:1]


def test_a_streamed_run_on_a_cluster_is_the_local_one(
    made: list[remote.Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = SMALL.model_copy(update={"protocol": "signsgd", "attack": "sign-flip"})
    local = play(scenario, device="cpu", executor="loop", chunk=3, stream=True)
    monkeypatch.setitem(sys.modules, "ray", HereAndNow(2))
    there = play(scenario, device="cpu", executor="ray", chunk=3, stream=True)
    assert numbers(there) == numbers(local)
    (executor,) = made
    assert executor.ray.tasks > 2 * scenario.rounds  # parts of three clients, in two tasks each
