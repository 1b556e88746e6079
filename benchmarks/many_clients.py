"""Cost of a number of clients: seconds until a run can start, and of drawing its rounds.

    python benchmarks/many_clients.py

It prepares one scenario with 10^3 to 10^7 virtual clients, draws ten cohorts of 2,000 with who of
them is malicious, and reads the samples of one cohort. Then it writes and reads memories of clients
that lie in a file, beside those that are held, and a checkpoint with such a file. Seconds are CPU
time of one thread, the least of three turns; the peak of memory is that of what Python and NumPy
hold, traced in another turn, and of a checkpoint the rise of the process's anonymous memory, which
Linux tells.
"""

import argparse
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from fedbench import Scenario
from fedbench.core.rng import Key
from fedbench.experiment import tensor_store
from fedbench.experiment.memories import Memories
from fedbench.experiment.prepare import prepare
from fedbench.experiment.setup import Setup

TURNS = 3
COHORT = 2000
DRAWS = 10
CLIENTS = (2 * 10**3, 10**5, 10**6, 10**7)
REMEMBERED = (50, 1 << 20)  # clients, and float32 numbers of each
KEPT = 512  # clients of a checkpoint, with as many numbers each


def ready(clients: int) -> Setup:
    """Prepare a run of so many virtual clients, a tenth of them malicious."""
    return prepare(
        Scenario(
            clients=clients,
            per_round=COHORT,
            partition="virtual:beta=0.3",
            protocol="fedpm",
            attack="mask-ipm",
            malicious=0.1,
            model="micro",
        ),
        "cpu",
        "loop",
    )


def draw(setup: Setup) -> None:
    """Draw cohorts, and who of them is malicious."""
    for step in range(DRAWS):
        ids = setup.sample(step)
        setup.population.malicious[ids].sum()


def read(setup: Setup) -> None:
    """Draw the training samples of a cohort that nobody has read."""
    for i in setup.sample(DRAWS + 1):
        setup.population.train[i]


def seconds(work: Callable[[], object]) -> float:
    """CPU seconds that something takes."""
    start = time.process_time()
    work()
    return time.process_time() - start


def line(clients: int) -> list[float]:
    """Return seconds to prepare, to draw a cohort and to read it, the least of the turns."""
    turns = []
    for _ in range(TURNS):
        prepared = seconds(partial(ready, clients))
        setup = ready(clients)
        drawn = seconds(partial(draw, setup)) / DRAWS
        turns.append([prepared, drawn, seconds(partial(read, setup))])
    return [min(column) for column in zip(*turns, strict=True)]


def peak(clients: int) -> float:
    """MiB that Python and NumPy hold at most while a run is prepared and two cohorts are drawn."""
    tracemalloc.start()
    setup = ready(clients)
    setup.sample(0)
    setup.population.malicious[setup.sample(1)]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / 2**20


def remembering(most: int) -> tuple[float, float]:
    """CPU seconds a client to write memories of which ``most`` bytes are held, and to read them."""
    count, size = REMEMBERED
    rows = [Key(0).fold(i).normal(size) for i in range(count)]
    store = Memories(most)

    def write() -> None:
        for i, row in enumerate(rows):
            store[i] = {"residual": row}

    writing = seconds(write) / count
    return writing, seconds(lambda: [store[i]["residual"].sum() for i in range(count)]) / count


def anonymous() -> float:
    """MiB of this process's memory that lies in no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("RssAnon:")]
    return int(line.split()[1]) / 1024


def rise(work: Callable[[], object]) -> float:
    """MiB by which anonymous memory rises at most while something is done."""
    before = anonymous()
    most = [before]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.005):
            most.append(anonymous())

    watcher = threading.Thread(target=watch)
    watcher.start()
    work()
    over.set()
    watcher.join()
    return max(most) - before


def checkpoint(folder: Path) -> list[tuple[float, float]]:
    """CPU seconds and MiB to write a checkpoint of memories that lie in a file, and to read it."""
    path = folder / "run.safetensors"
    store = Memories(0)
    for i in range(KEPT):
        store[i] = {"residual": Key(0).fold(i).normal(REMEMBERED[1])}

    def write() -> None:
        value, files = store.parts()
        tensor_store.write(path, value, {}, (), files)

    def read() -> None:
        value, files = tensor_store.read(path, torch.device("cpu"), ())
        Memories(0).restore(value, files)

    return [(min(seconds(work) for _ in range(TURNS)), rise(work)) for work in (write, read)]


def main() -> None:
    """Print the three tables."""
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    torch.set_num_threads(1)
    ready(CLIENTS[0])  # imports
    print("clients | prepare s | a cohort ms | its samples ms | peak MiB")
    for clients in CLIENTS:
        prepared, drawn, samples = line(clients)
        numbers = f"{prepared:.3f} | {1000 * drawn:.2f} | {1000 * samples:.0f}"
        print(f"{clients:>10,} | {numbers} | {peak(clients):.1f}")
    mib = REMEMBERED[1] * 4 / 2**20
    print(f"\nmemory of {mib:g} MiB | write ms | read and sum ms")
    for name, most in (("held", 1 << 40), ("in a file", 0)):
        turns = [remembering(most) for _ in range(TURNS)]
        written, got = (1000 * min(column) for column in zip(*turns, strict=True))
        print(f"{name} | {written:.2f} | {got:.2f}")
    print(f"\ncheckpoint with {KEPT} of them in a file | s | MiB more")
    with tempfile.TemporaryDirectory() as folder:
        for name, (took, more) in zip(("write", "read"), checkpoint(Path(folder)), strict=True):
            print(f"{name} | {took:.2f} | {more:.0f}")


if __name__ == "__main__":
    main()
