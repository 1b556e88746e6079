"""Results of the probes, as tables for a terminal and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.tables.numbers import NONE, counted, nats, or_none, percent
from fedbench.tables.table import Line, Table
from fedbench.tables.terminal import cell, grid, listed

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.probes.inversion import InversionReport
    from fedbench.probes.membership import Membership, MembershipReport

HEURISTIC = (
    "a heuristic attack: what it finds is lost, what it does not find may still be there; it "
    "proves no epsilon, and one that is proved bounds better attacks too"
)


def show_membership(
    console: Console, report: MembershipReport, scenario: dict[str, Any], seeds: int
) -> None:
    """Print the setting, the table, the meaning of its columns, and what was skipped."""
    first = report.results[0] if report.results else None
    if first is not None:
        setting = [
            f"{scenario['dataset']}, {scenario['model']}, iid; {scenario['clients']} clients, "
            f"{scenario['per_round']} a round; {scenario['rounds']} rounds, "
            f"{counted(scenario['epochs'], 'epoch')}, batch {scenario['batch_size']}",
            f"{counted(seeds, 'victim')}, {first.candidates} candidates, heard in "
            f"{first.rounds:.2g} of {scenario['rounds']} rounds; {first.shadows} shadows"
            f"{' each' if seeds > 1 else ''}: in and out {first.others} times",
        ]
        terms = member_captions(report.results, scenario["delta"])
        _show(console, "Membership", setting, member_table(report.results), terms)
    _skipped(console, report.skipped)


def _show(
    console: Console,
    title: str,
    setting: Sequence[str],
    table: Table | None,
    terms: Iterable[tuple[str, str]],
) -> None:
    console.print(f"[bold]{title}[/bold]", highlight=False)
    for line in setting:
        console.print(line, highlight=False, markup=False)
    if table is not None:
        options = console.options
        for part in (grid(table, options), listed(terms, options), cell(HEURISTIC, options)):
            console.print()
            console.print(part)


def _skipped(console: Console, reasons: Iterable[str]) -> None:
    for reason in reasons:
        console.print(f"skipped: {reason}", highlight=False, markup=False)


def member_table(results: Sequence[Membership]) -> Table:
    """Make the table: every system's name, accuracy and epsilon, then its readings.

    A rate that was resolved for nobody has no column.
    """
    from fedbench.probes.membership import RATES

    readings = [reading for result in results for reading in result.readings]
    rates = [rate for rate in RATES if any(r.tprs[rate] is not None for r in readings)]
    tprs = [f"TPR at\nFPR {100 * rate:g} %" for rate in rates]
    headings = ["system\n  what is read", "\nAUC", "95 %\ninterval", *tprs]
    headings += ["bal.\nacc. %", "model\nacc. %", "\nε"]
    lines = []
    for result in results:
        name = f"{result.protocol} + {result.mechanism}"
        numbers = [percent(result.accuracy), or_none(result.epsilon, nats)]
        lines.append(Line([name, *[""] * (len(headings) - 3), *numbers], title=True))
        for reading in result.readings:
            area = reading.auc
            interval = f"{area.low:.3f}-{area.high:.3f}"
            estimates = [reading.tprs[rate] for rate in rates]
            shares = [NONE if x is None else percent(x.value) for x in estimates]
            texts = [reading.name, f"{area.value:.3f}", interval, *shares]
            lines.append(Line([*texts, percent(reading.balanced), "", ""]))
    return Table.of(headings, lines)


def member_captions(results: Sequence[Membership], delta: float) -> list[tuple[str, str]]:
    """Explain the columns and the readings."""
    from fedbench.probes.membership import RATES

    terms = [
        ("deployed model", "confidence of the final model in the true class"),
        ("messages", "what the victim sent, mean over rounds: the same, of its message as a model"),
        ("cosine", "of the message with the update of one step on the example alone"),
        ("LiRA", "that number's Gaussian likelihood ratio between shadows with and without it"),
        ("AUC", "0.5 is a guess; interval over examples, not over victims or seeds"),
        ("TPR, acc.", "in percent; balanced accuracy at ratio 1, or above a run's median"),
    ]
    coarse = [rate for rate in RATES if results[0].others * rate < 1]
    if coarse:
        rates = " and ".join(f"{100 * rate:g} %" for rate in coarse)
        needed = f"not resolved by {results[0].others} times out: {round(1 / min(coarse))}"
        terms.append((f"FPR {rates}", f"{needed} are needed; add shadows or seeds"))
    if any(result.epsilon is not None for result in results):
        units = sorted({f"{r.unit} level" for r in results if r.epsilon is not None})
        terms.append(("ε", f"proved, at delta {delta:g}, {' or '.join(units)}, of the same runs"))
    return terms


def show_inversion(console: Console, report: InversionReport, caption: str) -> None:
    """Print the setting, the table, the meaning of its columns, and what was skipped."""
    setting = f"{caption}; {counted(len(report.truth), 'image')}"
    table = inversion_table(report) if report.results else None
    _show(console, "Inversion", [setting], table, INVERSION_CAPTIONS)
    _skipped(console, report.skipped)


INVERSION_CAPTIONS = (
    ("PSNR, SSIM", "to the truth, mean ± std over images; pixels in [0, 1]"),
    ("message", "signs, masks minus theta_g, scores of a ranking minus those sent down, or floats"),
    ("raw update", "the same attack without mechanism and codec, which nobody sends"),
    (
        "cosine",
        "of the image's simulated update with what is inverted; if the truth's is not above "
        "the found one's, no search would do better without a better prior",
    ),
    (
        "best other",
        "nearest to the truth, chosen with the truth in hand: what knowing the class may give",
    ),
    ("draws", "of masks in training: the client's own, as if the adversary knew them"),
)


def inversion_table(report: InversionReport) -> Table:
    """Make the table: every system's name, its reconstructions, and what a guess is worth."""
    from fedbench.probes.inversion import MESSAGE, RAW

    lines = []
    for system in report.results:
        lines.append(Line([f"{system.protocol} + {system.mechanism}"], title=True))
        lines += [Line([name, *summary(system.reconstructions[name])]) for name in (MESSAGE, RAW)]
    lines.append(Line(["no message"], title=True))
    lines += [Line([name, *summary(images)]) for name, images in report.guesses.items()]
    headings = ("system\n  what is inverted", "PSNR\ndB", "\nSSIM", "cosine\nfound", "\nof truth")
    return Table.of(headings, lines)


def summary(images: Sequence[Any]) -> list[str]:
    """Format PSNR, SSIM and the two cosines over images."""
    texts = [spread([image.psnr for image in images], 1), spread([x.ssim for x in images], 2)]
    for name in ("cosine", "ceiling"):
        cosines = [getattr(image, name) for image in images]
        texts.append("" if cosines[0] is None else f"{sum(cosines) / len(cosines):.3f}")
    return texts


def spread(x: Sequence[float], digits: int) -> str:
    """Format mean and sample standard deviation.

    >>> spread([1.0, 2.0, 3.0], 1), spread([1.0], 1)
    ('2.0 ± 1.0', '1.0')
    """
    import statistics

    mean = f"{statistics.fmean(x):.{digits}f}"
    return f"{mean} ± {statistics.stdev(x):.{digits}f}" if len(x) > 1 else mean


def to_json(report: MembershipReport) -> str:
    """Write everything about memberships, in full precision."""
    return json.dumps(dataclasses.asdict(report), indent=1) + "\n"


def inversion_json(report: InversionReport) -> str:
    """Write the numbers of every image, in full precision."""
    names = ("psnr", "ssim", "cosine", "ceiling")

    def numbers(images: dict[str, Any]) -> dict[str, Any]:
        return {
            what: [{name: getattr(image, name) for name in names} for image in each]
            for what, each in images.items()
        }

    systems = [
        {"protocol": s.protocol, "mechanism": s.mechanism, **numbers(s.reconstructions)}
        for s in report.results
    ]
    whole = {"results": systems, "guesses": numbers(report.guesses), "skipped": report.skipped}
    return json.dumps(whole, indent=1) + "\n"
