"""fedbench beside pfl-research and Flower, each in an environment of its own, in turns.

``python benchmarks/speed/side_by_side.py --setup`` makes the environments from `pfl.txt` and
`flower.txt`; without ``--setup`` it plays. In every turn one of ours and one of theirs, each in a
fresh process, play the same workload (`workload.py`): a round to warm up, then those that are
timed. A turn's ratio is that of the medians of its rounds; shown are the median of the ratios and
their range, which means little where other processes come and go between two turns (``others``):
the ratio of CPU time, where both sides know it, is then the better one. Both must have trained the
same number of parameters on the same number of samples with the same torch on as many cores, and
both must have learned the same. Where ours forks, theirs has workers; Flower, whose clients do
nothing here, has every core and ours has one. Ours keeps its memory (`fedbench.executors.malloc`),
as it does for everybody; ``others`` was looked at during our turns only, which always come first.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import subprocess
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from pathlib import Path

import torch
from paired import Machine, machine
from pairing import Case, Compared, compare
from rich.console import Console
from rich.table import Table

from fedbench.core.errors import ConfigError, FedbenchError, require

HERE = Path(__file__).resolve().parent
PEERS = ("pfl", "flower")
HEAD = ("fedbench", "beside", "cores", "s a round", "ms a client", "times as fast", "CPU", "others")


def pins(peer: str) -> dict[str, str]:
    """Package to version, as the requirement file has it."""
    lines = [line for line in (HERE / f"{peer}.txt").read_text().splitlines() if "==" in line]
    return {name.partition("[")[0]: pin for name, _, pin in (ln.partition("==") for ln in lines)}


def python(folder: Path, peer: str) -> str:
    """The interpreter of a peer's environment.

    Raises:
        ConfigError: there is none.
    """
    interpreter = folder / f".venv-{peer}" / "bin" / "python"
    if not interpreter.exists():
        raise ConfigError(
            f"--peer {peer} needs an environment with {peer}.txt installed, got none in "
            f"{str(folder)!r}; run python benchmarks/speed/side_by_side.py --setup"
        )
    return str(interpreter)


def make(folder: Path, peer: str) -> None:
    """The environment of a peer, or what it still lacks."""
    if not (folder / f".venv-{peer}" / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", folder / f".venv-{peer}"], check=True)
    install = [python(folder, peer), "-m", "pip", "install", "-q", "-r", str(HERE / f"{peer}.txt")]
    subprocess.run(install, check=True)


def cases(folder: Path, peer: str, threads: int, rounds: int) -> Iterator[Case]:
    """Yield the cases that are compared with a peer on so many cores."""
    interpreter = python(folder, peer)
    wanted = pins(peer)

    def case(what: str, mine: str, against: str, yours: str, target: float | None = None) -> Case:
        ours = [sys.executable, str(HERE / "fedbench_round.py"), *mine.split()]
        theirs = [interpreter, str(HERE / f"{peer}_round.py"), *yours.split()]
        options = ["--rounds", str(rounds)]
        return Case(peer, what, against, ours + options, theirs + options, wanted, target)

    if peer == "flower":
        for api in ("message", "numpy"):
            yield case("idle clients", "--idle", f"{api} API", f"--api {api}")
        return
    for precision in ("fp32", "bf16"):
        many = f"--threads {threads} --precision {precision}"
        target = 1.05 if precision == "fp32" else None
        yield case(f"loop, {precision}", many, f"a process, {precision}", many, target)


def row(compared: Compared) -> tuple[str, ...]:
    """Cells of a comparison's line in the table."""
    case = compared.case
    ratio = compared.ratio
    (ours, theirs) = compared.turns[0]
    a, b = statistics.median(ratio.mine), statistics.median(ratio.theirs)
    cores = (turn.threads * turn.processes for turn in (ours, theirs))
    return (
        case.what,
        f"{case.peer} {next(iter(case.pins.values()))}, {case.against}",
        " / ".join(map(str, cores)),
        f"{a:.2f} / {b:.2f}",
        f"{1e3 * a / ours.clients:.1f} / {1e3 * b / ours.clients:.1f}",
        f"{ratio.faster:.2f} ({min(ratio.turns):.2f} to {max(ratio.turns):.2f})",
        "" if compared.cpu is None else f"{compared.cpu:.2f}",
        "" if compared.others is None else f"{compared.others:.2f}",
    )


def shown(comparisons: list[Compared], where: Machine, form: str) -> None:
    """The comparisons, as a table, as Markdown or as JSON."""
    if form == "json":
        ratios = [compared.described() for compared in comparisons]
        print(json.dumps({"machine": dataclasses.asdict(where), "ratios": ratios}, indent=2))
        return
    rows = [row(compared) for compared in comparisons]
    if form == "md":
        print("| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD), sep="\n")
        print(*("| " + " | ".join(cells) + " |" for cells in rows), sep="\n")
        return
    table = Table(*HEAD)
    for cells in rows:
        table.add_row(*cells)
    console = Console()
    console.print(table)
    console.print(
        "Ours / theirs. CPU: how many times as much theirs took. others: cores that other "
        f"processes used during ours. {where.processor}, {where.cores} cores, torch {where.torch}."
    )


def run(arguments: list[str] | None = None) -> None:
    """Play the comparisons that the command line asks for.

    Raises:
        FedbenchError: an environment is missing, a turn fails, or the two sides do not agree.
    """
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--setup", action="store_true", help="make the environments, play nothing")
    parser.add_argument("--peer", choices=PEERS, nargs="+", default=list(PEERS))
    parser.add_argument("--threads", type=int, nargs="+", default=[1], help="cores, for pfl")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5, help="timed in each turn")
    parser.add_argument("--format", choices=("table", "md", "json"), default="table")
    parser.add_argument("--environments", type=Path, default=HERE, help="where they are kept")
    given = parser.parse_args(arguments)
    for name in ("turns", "rounds"):
        require(f"--{name}", getattr(given, name), getattr(given, name) >= 1, ">= 1")
    require("--threads", given.threads, min(given.threads) >= 1, "numbers >= 1")
    if given.setup:
        for peer in given.peer:
            make(given.environments, peer)
        return
    planned = [
        case
        for peer in given.peer
        for threads in (given.threads if peer == "pfl" else [1])
        for case in cases(given.environments, peer, threads, given.rounds)
    ]
    comparisons = []
    for case in planned:
        print(f"{case.what} beside {case.peer}, {case.against}", file=sys.stderr)
        comparisons.append(compare(case, given.turns))
    device = torch.device("cpu")
    shown(comparisons, machine(device), given.format)


def main() -> None:
    try:
        run()
    except FedbenchError as error:
        print(f"side_by_side: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
