"""Seconds of a streamed round whose clients the processes of a Ray cluster on this machine train.

    python benchmarks/cohort_on_cores.py [--clients N ...] [--chunk N] [--at-once N] [--places N]

Plays rounds of `cohort_memory.py`'s FedPM under mask-ipm: as many clients of a million as named, a
tenth of them malicious, with ``--executor ray``, once its processes have started, in 3 to 5 s.
Before and after them it measures the CPU seconds that training a client takes in one process, the
mean of three times 64 clients. The framework's seconds are those of the round less
those of training on all places at once, which assumes that they train as fast beside each other.
Memory is the most that this process and all that it started had together, Ray's own included, by
looking twice a second; a page that several share counts once.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import torch
from cohort_memory import HIDDEN, SCENARIO, Timed

from fedbench import Scenario
from fedbench.executors.cluster import connect, imported
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.prepare import prepare
from fedbench.experiment.remote import on_cluster
from fedbench.experiment.setup import Setup
from fedbench.models.models import Model
from fedbench.models.network import ConvNet, Network
from fedbench.run import begin, play_round

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Wide(Model):
    """The layer of `cohort_memory.Wide`, as a network that a cluster's processes know by name."""

    def build(self, image: tuple[int, ...], classes: int) -> Network:
        """Build one hidden layer and no convolution."""
        return ConvNet(image, (), (HIDDEN,), classes)


def installed(site: Path) -> None:
    """Install the network `Wide` for this process and those that it starts."""
    info = site / "wide-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wide\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[fedbench.models]\nwide = cohort_on_cores:Wide\n")


def training_seconds(clients: int) -> float:
    """Return the CPU seconds that training a client takes in this process."""
    setup = prepared(clients)
    loop = Timed(setup.plugins.protocol, setup.shared, setup.executor.schedule)
    setup = dataclasses.replace(setup, executor=loop)
    play_round(setup, begin(setup), 0)
    return sum(loop.seconds) / clients


def prepared(cohort: int, at_once: int = 8, executor: str = "loop") -> Setup:
    """Return what is fixed during a run with this cohort."""
    changes = {"model": "wide", "protocol": "fedpm", "attack": "mask-ipm", "per_round": cohort}
    setup = prepare(Scenario(**(SCENARIO | changes)), "cpu", executor)
    return dataclasses.replace(setup, at_once=at_once)


def resident(process: Path) -> float:
    """Return a process's resident memory in MiB, of a page that n processes share an n-th."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


class Memory(Thread):
    """Looks twice a second at the memory of this process and of all that it started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0  # MiB
        self.done = Event()

    def run(self) -> None:
        """Look until it is done."""
        while not self.done.wait(0.5):
            own = [Path("/proc/self"), *map(Path, children(os.getpid()))]
            self.peak = max(self.peak, sum(map(resident, own)))


def children(number: int) -> list[str]:
    """Return the folders in ``/proc`` of the processes that a process started, and theirs."""
    found = []
    for file in glob(f"/proc/{number}/task/*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, Path(file).read_text().split()):
                found += [f"/proc/{child}", *children(child)]
    return found


def main() -> None:
    """Print a line for each cohort."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000])
    parser.add_argument("--chunk", type=int, default=16, help="most clients of a task")
    parser.add_argument("--at-once", type=int, default=32, help="clients that train at once")
    parser.add_argument("--places", type=int, default=2, help="cores of this machine")
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        installed(Path(folder))
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, str(HERE)])
        os.environ["OMP_NUM_THREADS"] = "1"
        play(options)


def played(cohort: int, options: argparse.Namespace) -> tuple[float, float]:
    """Play a round on the cluster that was joined; return its seconds and its peak in MiB."""
    with on_cluster(prepared(cohort, options.at_once, "ray"), "ray", options.chunk) as setup:
        state = begin(setup)
        memory = Memory()
        memory.start()
        start = time.perf_counter()
        play_round(setup, state, 0)
        seconds = time.perf_counter() - start
        memory.done.set()
        memory.join()
        return seconds, memory.peak


def play(options: argparse.Namespace) -> None:
    """Play the rounds, and print what they took."""
    keep_memory()  # as commands do
    torch.set_num_threads(1)
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    alone = [training_seconds(64) for _ in range(3)]
    print("clients | s a round | s of training on all places | difference, s | ms a client | MiB")
    ray = imported("--executor")
    connect(ray, "local", "--executor")  # one cluster, whose processes all rounds share
    played(16, options)  # they start
    lines = [(cohort, *played(cohort, options)) for cohort in options.clients]
    ray.shutdown()
    alone += [training_seconds(64) for _ in range(3)]
    for cohort, seconds, memory in lines:
        training = statistics.fmean(alone) * cohort / options.places
        numbers = f"{seconds:.1f} | {training:.1f} | {seconds - training:.1f}"
        each = 1000 * (seconds - training) / cohort
        print(f"{cohort} | {numbers} | {each:.1f} | {memory:.0f}")
    print("training a client, ms:", [round(1000 * x, 1) for x in alone])


if __name__ == "__main__":
    main()
