"""How long `fedbench results` takes on a store of many records, before and after it has an index.

The records are one played run under many names: how much text it is matters here, not what it
measured. Times are of the whole command, in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count, islice, product
from pathlib import Path
from tempfile import TemporaryDirectory

import fedbench
from fedbench.experiment.record import Record
from fedbench.results.index import place

PROTOCOLS = ("fedavg:lr=0.01", "signsgd:lr=0.1", "topk:k=0.05", "qsgd:levels=4", "eden:bits=1")
DEFENSES = ("mean", "median", "trimmed-mean:f=2", "multi-krum:f=2")
ATTACKS = ("none", "sign-flip:scale=1.0", "dyn-opt:direction=std", "rank-reversal")
SEEDS = range(5)
COMMANDS: tuple[list[str], ...] = (
    [],
    ["--where", "attack=dyn-opt", "--where", "accuracy>0.1"],
    ["--each", "run"],
    ["--format", "csv"],
    ["--format", "json", "--each", "run"],
)


def records(rounds: int) -> Iterator[Record]:
    """One run, with every name and every seed, again and again with another delta."""
    small = fedbench.Scenario(model="micro", rounds=rounds, epochs=1, eval_every=1)
    played = fedbench.play(small, device="cpu")
    full = played.scenario.model_dump()
    cells = list(product(PROTOCOLS, DEFENSES, ATTACKS, SEEDS))
    for number in count():
        again, which = divmod(number, len(cells))
        protocol, defense, attack, seed = cells[which]
        named = {"protocol": protocol, "defense": defense, "attack": attack}
        seeds = {"seed": seed, "data_seed": seed, "delta": 1e-5 / (1 + again)}
        scenario = fedbench.Scenario(**full | named | seeds)
        yield played.model_copy(update={"id": f"{number:016x}", "scenario": scenario})


def fill(folder: Path, number: int, rounds: int) -> int:
    """Write so many records; their mean size in bytes."""
    size = 0
    for record in islice(records(rounds), number):
        data = record.sealed().to_json().encode()
        (folder / record.file_name).write_bytes(data)  # no fsync: nobody's results are at stake
        size += len(data)
    return size // number


def timed(folder: Path, options: list[str]) -> tuple[float, float]:
    """Seconds of the clock and of the processor for one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    command = [sys.executable, "-m", "fedbench", "results", str(folder), *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    clock = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return clock, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size = fill(folder, given.records, given.rounds)
        print(f"{given.records} records of {given.rounds} rounds, {size} bytes each")
        print(f"seconds of the clock (of the processor), the best of {given.repeat}", flush=True)
        for options in COMMANDS:
            best = []
            for cold in (True, False):
                times = []
                for _ in range(given.repeat):
                    if cold:
                        place(folder).unlink(missing_ok=True)
                    times.append(timed(folder, options))
                best.append(min(times))
            measured = "; ".join(
                f"{name} {clock:.2f} ({cpu:.2f})"
                for name, (clock, cpu) in zip(("no index", "index"), best, strict=True)
            )
            print(f"results {' '.join(options)}: {measured}", flush=True)


if __name__ == "__main__":
    main()
