"""Seconds of a streamed round whose clients the processes of a Ray cluster on this machine train.

    python benchmarks/cohort_on_cores.py [--clients N ...] [--chunk N] [--at-once N]
        [--protocol P] [--attack A] [--model M]

Plays rounds of `cohort_memory.py`, by default FedPM's under mask-ipm with its layer of a million
weights: as many clients of a million as named, a tenth of them malicious, with ``--executor ray``,
once its processes have started and imported. The processes write down the CPU seconds for which
they trained; the framework's are those of the round less these, divided by the number of cores.
Memory is the most that this process and all that it started had together, Ray's own included, by
looking once a second; a page that several share counts once.
"""

import argparse
import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

import torch
from cohort_memory import HIDDEN, SCENARIO

from fedbench import Scenario
from fedbench.core.threads import available_cores
from fedbench.executors.cluster import connect, imported
from fedbench.executors.malloc import keep_memory
from fedbench.executors.training import Client, Loop, Trained
from fedbench.experiment.prepare import prepare
from fedbench.experiment.remote import on_cluster
from fedbench.experiment.setup import Setup
from fedbench.models.models import Model
from fedbench.models.network import ConvNet, Network
from fedbench.run import begin, play_round

HERE = Path(__file__).resolve().parent
TRAINED = "COHORT_TRAINED"  # variable with the folder to which processes write their CPU seconds


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


def watch_training(folder: Path) -> None:
    """Have this process write for how many CPU seconds it has trained, after each task."""
    train = Loop.train
    spent = 0.0

    def watched(self: Loop, clients: Sequence[Client]) -> Trained:
        nonlocal spent
        start = time.process_time()
        trained = train(self, clients)
        spent += time.process_time() - start
        (folder / str(os.getpid())).write_text(str(spent))
        return trained

    Loop.train = watched  # type: ignore[method-assign]


def prepared(cohort: int, options: argparse.Namespace) -> Setup:
    """Return what is fixed during a run with this cohort."""
    asked = {name: getattr(options, name) for name in ("protocol", "attack", "model")}
    setup = prepare(Scenario(**(SCENARIO | asked | {"per_round": cohort})), "cpu", "ray")
    return dataclasses.replace(setup, at_once=options.at_once)


def resident(process: Path) -> float:
    """Return a process's resident memory in MiB, of a page that n processes share an n-th."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0.0
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))


class Memory(Thread):
    """Looks once a second at the memory of this process and of all that it started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0.0  # MiB
        self.done = Event()

    def run(self) -> None:
        """Look until it is done."""
        ended = False
        while not ended:
            own = [Path("/proc/self"), *map(Path, children(os.getpid()))]
            self.peak = max(self.peak, sum(map(resident, own)))
            ended = self.done.wait(1.0)


def children(number: int) -> list[str]:
    """Return the folders in ``/proc`` of the processes that a process started, and theirs."""
    folders = []
    for file in glob(f"/proc/{number}/task/*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, Path(file).read_text().split()):
                folders += [f"/proc/{child}", *children(child)]
    return folders


def main() -> None:
    """Print a line for each cohort."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000])
    parser.add_argument("--chunk", type=int, default=8, help="most clients of a task")
    parser.add_argument("--at-once", type=int, default=24, help="clients that train at once")
    parser.add_argument("--protocol", default="fedpm")
    parser.add_argument("--attack", default="mask-ipm")
    parser.add_argument("--model", default="wide", help="wide: the layer of a million weights")
    options = parser.parse_args()
    with TemporaryDirectory() as site, TemporaryDirectory() as times:
        installed(Path(site))
        os.environ["PYTHONPATH"] = os.pathsep.join([site, str(HERE)])
        os.environ["OMP_NUM_THREADS"] = "1"
        os.environ[TRAINED] = times
        play(options, Path(times))


def measured(cohort: int, options: argparse.Namespace, times: Path) -> tuple[float, float, float]:
    """Play a round on the cluster; return its seconds, those of training, and its peak in MiB."""
    with on_cluster(prepared(cohort, options), "ray", options.chunk) as setup:
        state = begin(setup)
        before = trained(times)
        memory = Memory()
        memory.start()
        start = time.perf_counter()
        play_round(setup, state, 0)
        seconds = time.perf_counter() - start
        memory.done.set()
        memory.join()
        return seconds, trained(times) - before, memory.peak


def trained(times: Path) -> float:
    """Return the CPU seconds for which all processes have trained so far."""
    return sum(float(file.read_text()) for file in times.iterdir())


def play(options: argparse.Namespace, times: Path) -> None:
    """Play the rounds, and print what they took."""
    keep_memory()  # as commands do
    torch.set_num_threads(1)
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    ray = imported("--executor")
    connect(ray, "local", "--executor")  # one cluster, whose processes all rounds share
    measured(16, options, times)  # they start
    print(
        "clients | s a round | s of training on all cores | difference, s "
        "| ms of training a client | ms of the framework | MiB"
    )
    for cohort in options.clients:
        seconds, training, memory = measured(cohort, options, times)
        on_all = training / available_cores()
        numbers = f"{seconds:.1f} | {on_all:.1f} | {seconds - on_all:.1f}"
        each = f"{1000 * training / cohort:.1f} | {1000 * (seconds - on_all) / cohort:.1f}"
        print(f"{cohort} | {numbers} | {each} | {memory:.0f}", flush=True)
    ray.shutdown()


if __name__ == "__main__":
    main()
elif TRAINED in os.environ:  # a process that is about to build the network, as the cluster's are
    watch_training(Path(os.environ[TRAINED]))
