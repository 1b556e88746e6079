"""Accuracy against uplink bits: at equal rounds and at equal total bits.

``python benchmarks/accuracy_against_bits.py`` plays ``--preset codecs-mini`` on an IID and a
non-IID split, writes records, a table (``bits.md``) and a chart (``bits.png``) into ``--out``. Runs
whose record is already there are not played again, so it resumes. ``--preset codecs`` is the size
of the papers.

Bits are cumulative: what one client slot has sent up so far, per parameter, headers included. For
a budget, a protocol is played again for as many rounds as it pays for: the same seed plays the same
rounds. Protocols that send a few scalars have rows in the table and no line in the chart, where it
would end decades to the left of the others.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedbench.cli.terminal import watcher
from fedbench.core import registry
from fedbench.core.files import write_atomically
from fedbench.experiment.cells import Cell
from fedbench.experiment.record import Record
from fedbench.figures.style import COLOURS, FAINT, WORST, save, styled
from fedbench.sweeps.drive import play_each
from fedbench.sweeps.local import Options
from fedbench.sweeps.plan import Plan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SCALARS = 0.01  # bits a parameter and message, below which a protocol has no line in the chart


@dataclass(frozen=True)
class Curve:
    """One protocol on one split.

    Args:
        name: As it was asked for, without the training's parameters.
        records: One a seed.
    """

    name: str
    records: Sequence[Record]

    def points(self, record: Record) -> list[tuple[float, float]]:
        """Cumulative bits, and accuracy, where one was measured."""
        rounds = zip(cumulative(record), record.rounds, strict=True)
        return [(bits, r.accuracy) for bits, r in rounds if r.accuracy is not None]

    def rounds_within(self, budget: float) -> int:
        """Rounds that the budget pays for, in the seed where these are fewest."""
        return min(sum(b <= budget for b in cumulative(record)) for record in self.records)

    @property
    def final(self) -> list[float]:
        """Accuracy at the last round, per seed."""
        return [record.result.accuracy for record in self.records]

    @property
    def bits(self) -> float:
        """Bits per parameter and message, mean over rounds and seeds."""
        return statistics.fmean(r.result.uplink_bits_per_parameter or 0.0 for r in self.records)

    def mean(self) -> list[tuple[float, float]]:
        """The mean curve over seeds."""
        columns = zip(*(self.points(record) for record in self.records), strict=True)
        return [
            (statistics.fmean(b for b, _ in column), statistics.fmean(a for _, a in column))
            for column in columns
        ]


def cumulative(record: Record) -> list[float]:
    """Bits per parameter and client slot after each round."""
    total = 0.0
    out = []
    for r in record.rounds:
        total += (r.uplink_bits or 0) / len(r.clients) / record.parameters
        out.append(total)
    return out


def play(preset: Plan, options: Options, out: Path) -> dict[Cell, list[Record]]:
    """The records of a preset, those that are already there among them."""
    cells, _ = preset.cells()
    with watcher(Console(), cells, preset.seeds) as watch:
        return play_each(cells, preset.seeds, options, watch, out, strict=True)[0]


def within(
    curves: dict[Cell, Curve], budget: float, seeds: Sequence[int], options: Options, out: Path
) -> dict[str, list[float]]:
    """Accuracy per protocol and seed where the budget is spent; none if it pays no round."""
    short_runs: dict[Cell, str] = {}
    accuracies: dict[str, list[float]] = {curve.name: [] for curve in curves.values()}
    for cell, curve in curves.items():
        rounds = curve.rounds_within(budget)
        if rounds == cell.scenario.rounds:
            accuracies[curve.name] = curve.final
        elif rounds:
            update = {"rounds": rounds, "eval_every": rounds}
            short_runs[Cell(cell.scenario.model_copy(update=update))] = curve.name
    with watcher(Console(), list(short_runs), seeds) as watch:
        played, _ = play_each(list(short_runs), seeds, options, watch, out, strict=True)
    for cell, name in short_runs.items():
        accuracies[name] = [record.result.accuracy for record in played[cell]]
    return accuracies


def short(protocol: str) -> str:
    """Name with the parameter that sets the bits, without how clients train.

    >>> short("eden:bits=2,lr=0.03,momentum=0")
    'eden:bits=2'
    """
    name, params = registry.split(protocol)
    kept = [f"{k}={v}" for k, v in params.items() if k in ("bits", "k", "levels", "final")]
    return f"{name}:{','.join(kept)}" if kept else name


def spread(values: Sequence[float]) -> str:
    """Mean and sample standard deviation, in percent."""
    if not values:
        return "n/a"
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean


def digits(bits: float) -> str:
    """Bits per parameter, with as many digits as tell protocols apart.

    >>> digits(32.0), digits(1.0076), digits(0.00192)
    ('32.00', '1.008', '0.0019')
    """
    if bits < SCALARS:
        return f"{bits:.2g}"
    return f"{bits:.3f}" if bits < 2 else f"{bits:.2f}"


@dataclass(frozen=True)
class Split:
    """Curves of all protocols on one partition.

    Args:
        name: As on the command line.
        curves: Of each protocol.
        within: See the function of that name.
    """

    name: str
    curves: list[Curve]
    within: dict[str, list[float]]


def table(splits: Sequence[Split], budget: float) -> str:
    """Markdown: a row a protocol, for each split what it reaches."""
    heads = ["up bits"]
    for split in splits:
        heads += [f"{split.name}, all rounds %", f"{budget:g} bits in all %", "rounds"]
    lines = [f"| | {' | '.join(heads)} |", f"| :-- |{' --: |' * len(heads)}"]
    for i, curve in enumerate(splits[0].curves):
        cells = [digits(curve.bits)]
        for split in splits:
            same = split.curves[i]
            cells += [spread(same.final), spread(split.within[same.name])]
            cells.append(str(same.rounds_within(budget)))
        lines.append(f"| {curve.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@styled
def compose(splits: Sequence[Split], budget: float, title: str) -> Figure:
    """Accuracy against cumulative bits, a panel a split, labels at the ends of the lines."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5.2 * len(splits)))
    panels = figure.subplots(len(splits), 1, squeeze=False)
    colours = (*COLOURS, WORST)
    for panel, split in zip(panels[:, 0], splits, strict=True):
        ends = []
        curves = [curve for curve in split.curves if curve.bits >= SCALARS] or split.curves
        for i, curve in enumerate(curves):
            line = curve.mean()
            colour = colours[i % len(colours)]
            style = ("-", "--")[i // len(colours) % 2]
            panel.plot(*zip(*line, strict=True), style, color=colour)
            panel.plot(*line[-1], "o", color=colour, ms=5)
            ends.append((line[-1][0], line[-1][1], curve.name, colour))
        low = min(y for curve in curves for _, y in curve.mean()[len(curve.mean()) // 4 :])
        high = max(y for _, y, _, _ in ends)
        panel.set_ylim(max(0.0, low - 0.03), high + 0.02)
        for x, y, name, colour, at in apart(ends, (high - low + 0.05) / 22):
            panel.annotate(
                name,
                (x, y),
                (x * 1.12, at),
                color=colour,
                va="center",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
                zorder=5,
                arrowprops={"arrowstyle": "-", "color": colour, "lw": 0.6},
            )
        panel.axvline(budget, color=FAINT, lw=0.8, ls=":")
        panel.set_xscale("log")
        right = max(x for x, *_ in ends)
        panel.set_xlim(panel.get_xlim()[0], right * 2.2)
        panel.set_title(split.name)
        panel.set_ylabel("test accuracy")
        panel.yaxis.set_major_locator(ticker.MultipleLocator(0.05))
        panel.yaxis.set_major_formatter(lambda y, _: f"{100 * y:.0f} %")
        panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    panels[-1, 0].set_xlabel(
        "uplink bits per parameter that one client slot has sent so far (logarithmic); "
        f"dotted: the budget of {budget:g}"
    )
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
    figure.tight_layout()
    return figure


def apart(
    ends: Sequence[tuple[float, float, str, str]], gap: float
) -> list[tuple[float, float, str, str, float]]:
    """Where each label stands so that those of lines that end near each other do not touch."""
    placed: list[tuple[float, float, str, str, float]] = []
    for x, y, name, colour in sorted(ends, key=lambda end: -end[1]):
        near = [at for other, _, _, _, at in placed if 0.2 < other / x < 5]
        at = min([y, *(a - gap for a in near)]) if near else y
        placed.append((x, y, name, colour, at))
    return placed


def main() -> None:
    """Play what is missing, then write the table and the chart."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="codecs-mini")
    parser.add_argument("--partition", action="append")
    parser.add_argument("--protocol", action="append", help="instead of those of the preset")
    parser.add_argument("--budget", type=float, help="bits a parameter; default: 1.05 a round")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/codecs-mini"))
    options = parser.parse_args()
    processes = Options(workers=options.workers)
    splits = []
    only = {"protocol": options.protocol} if options.protocol else {}
    for partition in options.partition or ["iid", "dirichlet:beta=0.3"]:
        preset = Plan.preset(options.preset, {"partition": partition} | only)
        folder = options.out / partition.replace(":", "-").replace("=", "-")
        records = play(preset, processes, folder)
        curves = {cell: Curve(short(cell.protocol), played) for cell, played in records.items()}
        budget = options.budget or 1.05 * max(cell.scenario.rounds for cell in curves)
        spent = within(curves, budget, preset.seeds, processes, folder / "budget")
        splits.append(Split(partition, list(curves.values()), spent))
    text = table(splits, budget)
    print(text)
    write_atomically(options.out / "bits.md", text.encode())
    save(compose(splits, budget, preset.title), options.out / "bits.png")


if __name__ == "__main__":
    main()
