"""How fast fedbench is beside what somebody would write: training, rounds, servers, messages.

``python benchmarks/speed/suite.py --quick`` prints Markdown (five minutes on two cores). Each
figure is a ratio of two ways that took turns in this process. faster, times, median of the turns,
``!`` below its target; ms, of ours, for one client or one call; peak, percent of the machine's
matrix products; busy, cores that other processes used meanwhile. Then exponents of the rules' time
in rows and columns, and memory beyond the input. ``--only TEXT`` measures the comparisons with that
in their name, ``--json`` writes every turn, ``--chart`` a picture.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import defense_cost
import server_pairs
import torch
import training_pairs
from paired import Machine, Pair, Ratio, compare, machine, short
from training_pairs import Size

from fedbench.executors.malloc import keep_memory
from fedbench.experiment.prepare import choose_device

RULES = ("mean", "median", "trimmed-mean", "multi-krum")  # whose growth is shown
QUICK = Size(("lenet", "conv4"), (8, 32), 4, 256, 25, 200_000, 3, 1e8)
FULL = Size(("lenet", "conv4"), (8, 32, 128), 25, 6400, 25, 1_600_000, 5, 1e9)
HEAD = ("ours / the other way", "faster", "range", "target", "ms", "peak", "busy")
GROWN = ("rule", "n^", "d^", "slowest", "s", "memory")


def pairs(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Yield every comparison; clients and rows are made when their turn comes."""
    yield from training_pairs.training(size, device, engine)
    yield from training_pairs.masks(size, device, engine)
    yield from training_pairs.fsl(size, device, engine)
    yield from training_pairs.lock_step(size, device)
    yield from server_pairs.rules(size.rows, size.width, device)
    yield from server_pairs.messages(size.rows, size.width, device)
    yield from server_pairs.framework(size.rows, device)


def play(
    size: Size, device: torch.device, engine: str = "auto", only: Sequence[str] = ()
) -> Iterator[Ratio]:
    """Measure all comparisons, or those whose group and name hold one of ``only``."""
    for pair in pairs(size, device, engine):
        name = f"{pair.group}: {pair.what}"
        if not only or any(text in name for text in only):
            print(name, file=sys.stderr)
            yield compare(pair, size.repeats)


def growths(size: Size, device: torch.device) -> Iterator[defense_cost.Cost]:
    """Measure time and memory of the rules whose growth is shown."""
    for n in (10, 100, 1000):
        for d in (100_000, 1_000_000, 10_000_000):
            if n * d <= size.largest:
                threads = torch.get_num_threads()
                yield from defense_cost.play(RULES, [n], [d], 1, device.type, threads)


def line(ratio: Ratio, peak: float) -> list[str]:
    """Return the cells of a comparison."""
    digits = len(str(int(ratio.milliseconds))) - 1
    return [
        f"{ratio.what} / {ratio.against}",
        f"{short(ratio.faster)}{'!' if ratio.met is False else ''}",
        f"{short(min(ratio.turns))}-{short(max(ratio.turns))}",
        "" if ratio.target is None else f"{ratio.target:.2g}",
        f"{ratio.milliseconds:.{max(0, 2 - digits)}f}",
        f"{100 * ratio.rate / peak:.0f}" if ratio.flops else "",
        "" if ratio.others is None else f"{ratio.others:.1f}",
    ]


def growth_line(name: str, costs: Sequence[defense_cost.Cost]) -> list[str]:
    """Return the cells of a rule."""
    mine = [cost for cost in costs if cost.defense.partition(":")[0] == name]
    last = max(mine, key=lambda cost: cost.seconds[0])
    powers = [defense_cost.growth(mine, axis) for axis in ("n", "k")]
    return [
        name,
        *("" if power is None else f"{power:.2f}" for power in powers),
        f"{last.n} x {last.k:.0e}".replace("e+0", "e"),
        f"{last.seconds[0]:.3g}",
        "" if last.memory is None else f"{last.memory:.2f}",
    ]


def markdown(
    here: Machine, ratios: Sequence[Ratio], costs: Sequence[defense_cost.Cost]
) -> Iterator[str]:
    """Yield the lines of both tables, under one on the machine."""
    where = here.device if here.device != "cpu" else f"{here.threads} threads"
    yield (
        f"{here.processor}, {here.cores} cores, {where}; torch {here.torch}, Python {here.python}; "
        f"matrix products: {here.peak / 1e9:.0f} GFLOP/s\n"
    )
    yield "| " + " | ".join(HEAD) + " |\n| :-- |" + " --: |" * (len(HEAD) - 1)
    for group in dict.fromkeys(ratio.group for ratio in ratios):
        yield f"| **{group}** |" + " |" * (len(HEAD) - 1)
        for ratio in ratios:
            if ratio.group == group:
                yield "| " + " | ".join(line(ratio, here.peak)) + " |"
    if costs:
        yield "\n| " + " | ".join(GROWN) + " |\n| :-- |" + " --: |" * (len(GROWN) - 1)
        for name in RULES:
            yield "| " + " | ".join(growth_line(name, costs)) + " |"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--only", nargs="+", default=[], help="part of a group or a name")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=2, help="of torch, on a CPU")
    parser.add_argument("--chart", type=Path, help="a picture of it, *.png or *.svg")
    parser.add_argument("--json", type=Path, help="a file for every turn")
    given = parser.parse_args(words)
    if given.chart is not None and given.chart.suffix not in (".png", ".svg"):
        parser.error(f"--chart must end in .png or .svg, got {str(given.chart)!r}")
    size = QUICK if given.quick else FULL
    device = choose_device(given.device)
    keep_memory()
    torch.set_num_threads(given.threads)
    here = machine(device)
    ratios = list(play(size, device, given.executor, given.only))
    if not ratios:
        parser.error(f"--only must be part of a group or a name, got {given.only}")
    costs = [] if given.only else list(growths(size, device))
    print("\n".join(markdown(here, ratios, costs)))
    if given.json is not None:
        content = {
            "machine": dataclasses.asdict(here),
            "ratios": [dataclasses.asdict(ratio) for ratio in ratios],
            "growth": [dataclasses.asdict(cost) for cost in costs],
        }
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    if given.chart is not None:
        from speed_chart import compose

        from fedbench.figures.style import save

        save(compose(here, ratios), given.chart)


if __name__ == "__main__":
    main()
