"""Seconds of a streamed round whose clients the processes of a Ray cluster on this machine train.

    python benchmarks/cohort_on_cores.py [--clients N ...] [--chunk N] [--at-once N] [--places N]

Plays rounds of `cohort_memory.py`'s FedPM under mask-ipm: as many clients of a million as named, a
tenth of them malicious, with ``--executor ray``. Before and after them it measures the CPU seconds
that training a client takes in one process. The framework's seconds are those of the round less
those of training on all places at once, which assumes that they train as fast beside each other.
Memory is the sum of the peaks of the server process and of those that train; pages that they share
count for each of them.
"""

import argparse
import dataclasses
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from cohort_memory import HIDDEN, SCENARIO, Timed

from fedbench import Scenario
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


def peak(process: Path) -> float:
    """Return the peak of a process's memory in MiB, as Linux counts it."""
    lines = (process / "status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def peaks() -> list[float]:
    """Return the peaks of this process and of those of Ray that train."""
    processes = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
    trains = [each for each in processes if b"ray::" in (each / "cmdline").read_bytes()]
    return [peak(Path("/proc/self")), *map(peak, trains)]


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


def play(options: argparse.Namespace) -> None:
    """Play the rounds, and print what they took."""
    torch.set_num_threads(1)
    sys.path[:0] = os.environ["PYTHONPATH"].split(os.pathsep)
    alone = [training_seconds(64)]
    print("clients | s a round | s of training on all places | difference, s | ms a client | MiB")
    with on_cluster(prepared(16, options.at_once, "ray"), "ray", options.chunk) as small:
        play_round(small, begin(small), 0)  # the processes start
        lines = []
        for cohort in options.clients:
            large = prepared(cohort, options.at_once, "ray")
            with on_cluster(large, "ray", options.chunk) as setup:
                state = begin(setup)
                start = time.perf_counter()
                play_round(setup, state, 0)
                lines.append((cohort, time.perf_counter() - start, peaks()))
    alone.append(training_seconds(64))
    for cohort, seconds, memory in lines:
        training = statistics.fmean(alone) * cohort / options.places
        numbers = f"{seconds:.1f} | {training:.1f} | {seconds - training:.1f}"
        each = 1000 * (seconds - training) / cohort
        print(f"{cohort} | {numbers} | {each:.1f} | {' + '.join(f'{x:.0f}' for x in memory)}")
    print("training a client, ms:", [round(1000 * x, 1) for x in alone])


if __name__ == "__main__":
    main()
