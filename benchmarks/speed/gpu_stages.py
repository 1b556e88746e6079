"""Stages of an acceptance run: each measures one thing and writes down entries as they are found.

A stage that finds something wrong raises, after it has written down what. On a CPU all of them run
too, on small sizes if the job is quick.
"""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fedbench_round
import gpu_check
import torch
import workload
from gpu_check import LAUNCHES, available, raised_at
from gpu_report import TIMES
from gpu_roofline import counted, measure_peaks
from paired import machine
from round_phases import Plan, measure, ready

import fedbench
from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.devices import memory
from fedbench.core.errors import FedbenchError
from fedbench.core.rng import Key
from fedbench.executors.factory import executor, seconds, untrained_clients
from fedbench.executors.training import Client, Executor, Schedule
from fedbench.experiment.prepare import choose_device

Note = Callable[[str, Any], None]  # writes down an entry: its name, and what JSON can hold
ROOT = Path(__file__).resolve().parents[2]
CLASSES = 10
STEPS = 4  # local steps of every client where they differ, and where a step is counted
TIMED = 16  # local steps of every client in a timing: one is recorded, the others are replayed
FEW = 5  # clients that the loop trains in it: the time of all is that of these times their share
TURNS = 3  # of all executors; ratios are medians of those of a turn
PFL_ROUNDS = 1500  # of pfl-research's CIFAR-10 benchmark
SEARCHES = (("fedavg", "dyn-opt", "trimmed-mean"), ("fedavg", "dyn-opt", "multi-krum"))


class Wrong(Exception):
    """A stage found that the device does not do what it should."""


@dataclass(frozen=True)
class Job:
    """Device that is accepted, and how much is measured on it.

    Args:
        device: As typed, cuda or cpu.
        quick: Take sizes that show whether the stages themselves work.
    """

    device: str
    quick: bool = False


@dataclass(frozen=True)
class Training:
    """Local training whose steps are timed.

    Args:
        model: Network.
        protocol: Its own local training.
        batch: Samples a step.
        clients: Clients that train, n.
    """

    model: str
    protocol: str
    batch: int
    clients: int = 25

    @property
    def name(self) -> str:
        """Name of its entry."""
        return f"{self.model} {self.protocol} batch {self.batch}"

    @property
    def image(self) -> tuple[int, int, int]:
        """Shape of the images: grey digits, or for the largest network small photographs."""
        return (3, 32, 32) if self.model == "conv8" else (1, 28, 28)


# W1 to W3 are plain training of three networks; masks cost further passes over the weights.
PLAIN = [("lenet", 8), ("lenet", 32), ("conv4", 8), ("conv4", 32), ("conv8", 32)]
MASKS = [("lenet", 8), ("lenet", 32), ("conv4", 32)]
TRAININGS = (
    *(Training(model, "fedavg", batch) for model, batch in PLAIN),
    *(Training(model, name, batch) for model, batch in MASKS for name in ("fsl", "fedpm")),
    *(Training(model, "fedavg", 128) for model in ("lenet", "conv4")),
)
QUICK = (Training("micro", "fedavg", 4, 2), Training("micro", "fsl", 4, 2))
UNEVEN = (Training("lenet", "fedavg", 32), Training("conv4", "fedavg", 32))


def device(job: Job, note: Note) -> None:
    """Describe the machine; measure how fast it copies, multiplies and launches."""
    where = choose_device(job.device)
    here = machine(where, 256 if job.quick else 2048 if where.type == "cpu" else 8192)
    facts: dict[str, Any] = {"fedbench": fedbench.__version__, "cuda": torch.version.cuda}
    if where.type == "cuda":
        facts |= {
            "memory, GiB": memory(where) / 2**30,
            "multiprocessors": torch.cuda.get_device_properties(where).multi_processor_count,
            "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
        }
    note("machine", dataclasses.asdict(here) | facts)
    note("peaks", dataclasses.asdict(measure_peaks(where, here.peak, job.quick)))


def equality(job: Job, note: Note) -> None:
    """Compare every protocol with the CPU in float64, as ``make gpu-check`` does."""
    where = choose_device(job.device)
    engines = available(where)
    wrong = []
    for name in some(registry.names("protocol"), job, 3):
        for comparison in gpu_check.compare(name, where, engines):
            entry = f"{comparison.protocol} {comparison.executor}"
            note(entry, dataclasses.asdict(comparison) | {"agrees": comparison.agrees})
            if not comparison.agrees:
                wrong.append(entry)
    if wrong:
        raise Wrong(f"{job.device} and the CPU disagree in float64: {', '.join(wrong)}")


def tests(job: Job, note: Note) -> None:
    """Run the tests of the suite that need CUDA; where there is none they are skipped."""
    files = [str(path) for path in cuda_tests(ROOT / "tests")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "cuda", *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = (done.stdout + done.stderr).strip().splitlines()
    note("summary", lines[-1] if lines else "")
    if done.returncode:
        note("tail", lines[-25:])
        raise Wrong(f"pytest ended with {done.returncode}")


def cuda_tests(folder: Path) -> list[Path]:
    """Return the test files that skip what needs CUDA where there is none."""
    return [path for path in sorted(folder.glob("test_*.py")) if '"needs CUDA"' in path.read_text()]


def steps(job: Job, note: Note) -> None:
    """Time local steps of all clients by every executor, and count their kernels and bytes."""
    where = choose_device(job.device)
    failed = 0
    for training in QUICK if job.quick else TRAININGS:
        try:
            ways = executors(training, where, Schedule(1, training.batch))
            clients = cohort(training, ways["loop"], TIMED * training.batch)
            entry = timed(ways, clients, TIMED, FEW)
            way = next((ways[name] for name in ways if name not in ("loop", "recorded")), None)
            if way is not None:
                few = cohort(training, ways["loop"], STEPS * training.batch)
                entry["work"] = dataclasses.asdict(counted(way, few, STEPS))
        except RuntimeError as error:  # of the device: out of memory, for instance
            failed += 1
            entry = {"error": f"{type(error).__name__}: {error}", "at": raised_at(error)}
        note(training.name, entry)
    if failed:
        raise Wrong(f"{failed} trainings ended with an error, which stands in their entries")


def executors(training: Training, where: torch.device, schedule: Schedule) -> dict[str, Executor]:
    """Return every executor that the device has, by name, the loop first."""
    network = registry.load("model", training.model).build(training.image, CLASSES)
    parts = (registry.load("protocol", training.protocol), Shared(network, 1, where), schedule)
    return {name: executor(name, *parts, training.clients) for name in available(where)}


def cohort(training: Training, loop: Executor, samples: int) -> list[Client]:
    """Return clients with so many random images each."""
    return untrained_clients(loop.protocol, loop.shared, training.clients, samples)


def timed(
    ways: Mapping[str, Executor], clients: Sequence[Client], steps: float, few: int | None = None
) -> dict[str, Any]:
    """Return seconds of one of ``steps`` by each executor, and the fastest beside the loop.

    All are warm, take turns, and are done when the device is. Of equal clients the loop may train
    a ``few``, and its time is that of all.
    """
    alone = clients[:few]

    def took(name: str) -> float:
        if name != "loop":
            return seconds(ways[name], clients)
        return seconds(ways[name], alone) * len(clients) / len(alone)

    for name, way in ways.items():
        for _ in range(1 if name == "loop" else LAUNCHES):
            seconds(way, clients[:2] if name == "loop" else clients)
    turns = [{name: took(name) for name in ways} for _ in range(TURNS)]
    ratios = {name: statistics.median(turn["loop"] / turn[name] for turn in turns) for name in ways}
    fastest = max(ratios, key=ratios.__getitem__)
    return {
        "seconds a step": {
            name: statistics.median(t[name] for t in turns) / steps for name in ways
        },
        "fastest": fastest,
        TIMES: ratios[fastest],
    }


def dirichlet(job: Job, note: Note) -> None:
    """Time an epoch of clients whose sizes a Dirichlet partition draws, so their steps differ."""
    where = choose_device(job.device)
    for training in QUICK[:1] if job.quick else UNEVEN:
        ways = executors(training, where, Schedule(1, training.batch))
        labels = torch.arange(training.clients * STEPS * training.batch) % CLASSES
        split = registry.load("partition", "dirichlet").split
        sizes = [len(part) for part in split(labels, training.clients, CLASSES, Key(5))]
        clients = [
            dataclasses.replace(client, x=client.x[:size], y=client.y[:size])
            for client, size in zip(cohort(training, ways["loop"], max(sizes)), sizes, strict=True)
        ]
        counts = [ways["loop"].schedule.steps(size) for size in sizes]
        entry = timed(ways, clients, max(counts))
        note(training.name, entry | {"steps": counts})


def rounds(job: Job, note: Note) -> None:
    """Time whole rounds, and where their time goes, with the executor that auto chooses."""
    plan = Plan(4, 16, rounds=1) if job.quick else Plan()
    names = ("fsl", "fedavg", "fedpm", "signsgd", "qsgd", "eden", "topk", "fedmrn")
    for name in some(names, job, 1):
        model = "micro" if job.quick else "lenet"
        setup = ready(name, model, plan, job.device)
        split = measure(setup, plan.rounds)
        note(
            f"{model} {name}",
            {
                "seconds": split.total,
                "phases, seconds": split.seconds,
                "executor": type(setup.executor).__name__.lower(),
            },
        )


def pfl(job: Job, note: Note) -> None:
    """Time rounds of the shape of pfl-research's CIFAR-10 benchmark, without evaluation."""
    small = workload.Training(4, 2, 20, channels=(4, 4), hidden=8)
    size = small if job.quick else workload.Training()
    best = float("inf")
    for name in available(choose_device(job.device)):
        setup = fedbench_round.prepared(size, name, device=job.device)
        _, measured = fedbench_round.timed(setup, 1 if job.quick else 10)
        each = statistics.median(measured["seconds"])
        note(name, {"seconds": each, "clients": measured["clients"]})
        best = min(best, each)
    fastest = "fastest, small" if job.quick else "fastest"  # which has the target
    note(fastest, {"seconds": best, "seconds of 1500 rounds": PFL_ROUNDS * best})


def determinism(job: Job, note: Note) -> None:
    """Play runs twice: the record and every bit of the deployed model must be the same."""
    wrong = []
    small: dict[str, Any] = {"model": "micro", "clients": 6, "per_round": 3, "rounds": 1}
    for protocol in some(("fedavg", "fsl", "fedpm"), job, 1):
        scenario = fedbench.Scenario(
            protocol=protocol,
            attack="sign-flip",
            partition="iid",
            **(small if job.quick else {"clients": 20, "per_round": 8, "rounds": 3}),
        )
        for engine in available(choose_device(job.device)):
            entry = f"{protocol} {engine}"
            same = twice(scenario, job.device, engine)
            note(entry, same)
            if not same:
                wrong.append(entry)
    if wrong:
        raise Wrong(f"two runs differ: {', '.join(wrong)}")


def twice(scenario: fedbench.Scenario, where: str, engine: str) -> bool:
    """Whether two runs measure the same and deploy the same model, bit for bit."""
    first, second = (
        fedbench.play(scenario, device=where, executor=engine, return_model=True) for _ in range(2)
    )
    models = [[bits(tree) for tree in model.members] for _, model in (first, second)]
    return first[0].measured() == second[0].measured() and models[0] == models[1]


def bits(tree: Mapping[str, torch.Tensor]) -> dict[str, bytes]:
    """Return the bytes of each tensor, in which -0.0 and 0.0 differ."""
    return {name: x.detach().cpu().contiguous().numpy().tobytes() for name, x in tree.items()}


def runs(job: Job, note: Note) -> None:
    """Play a round with every plug-in, and two searches, to their end.

    Both accuracies, of the device and of the CPU, are for information: they are those of float32.
    """
    failed = []
    for name, case in some([*every_case().items()], job, 1):
        scenario = fedbench.Scenario(**{key: case[key] for key in case if key != "executor"})
        try:
            there = fedbench.play(scenario, device=job.device, executor=case["executor"])
        except (RuntimeError, FedbenchError) as error:
            failed.append(name)
            note(name, {"error": f"{type(error).__name__}: {error}", "at": raised_at(error)})
            continue
        here = fedbench.play(scenario, device="cpu", executor="loop")
        note(name, {"cpu": here.result.accuracy, "device": there.result.accuracy})
    if failed:
        raise Wrong(f"runs that did not end: {'; '.join(failed)}")


def every_case() -> dict[str, dict[str, Any]]:
    """Scenarios with every plug-in, which the tests of the second device play, and the searches."""
    sys.path.append(str(ROOT / "tests"))
    from second_device_runs import SCENARIO
    from test_second_device import CASES

    names = ("protocol", "attack", "defense")
    searches = {" ".join(words): dict(zip(names, words, strict=True)) for words in SEARCHES}
    few = {"executor": "padded", "per_round": 10}
    cases = CASES | {name: few | search for name, search in searches.items()}
    return {name: SCENARIO | case for name, case in cases.items()}


def some(names: Sequence[Any], job: Job, few: int) -> Iterator[Any]:
    """Yield all names, or the first few of a quick job."""
    yield from names[:few] if job.quick else names
