"""What the probes found, as tables for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.probes.inversion import InversionReport
    from fedbench.probes.membership import Membership, MembershipReport
    from fedbench.probes.roc import IntervalEstimate
    from fedbench.tables.table import Line

HEURISTIC = (
    "a heuristic attack: what it finds is lost, what it does not find may still be there; it "
    "proves no epsilon, and one that is proved bounds better attacks too"
)


def show_membership(
    console: Console, report: MembershipReport, scenario: dict[str, Any], seeds: int
) -> None:
    """What was measured, the table, what its columns are, what could not be said."""
    from fedbench.tables.table import cell, grid, listed

    first = report.results[0] if report.results else None
    if first is not None:
        pieces = [
            f"{scenario['dataset']}, {scenario['model']}, iid; {scenario['clients']} clients, "
            f"{scenario['per_round']} a round; {scenario['rounds']} rounds, "
            f"{counted(scenario['epochs'], 'epoch')}, batch {scenario['batch_size']}",
            f"{counted(seeds, 'victim')}, {first.candidates} candidates, heard in "
            f"{first.rounds:.2g} of {scenario['rounds']} rounds; {first.shadows} shadows"
            f"{' each' if seeds > 1 else ''}: in and out {first.others} times",
        ]
        console.print("[bold]Membership[/bold]", highlight=False)
        for piece in pieces:
            console.print(piece, highlight=False, markup=False)
        console.print()
        options = console.options
        console.print(grid("", *member_table(report.results), options))
        console.print()
        console.print(listed(member_captions(report.results, scenario["delta"]), options))
        console.print()
        console.print(cell(HEURISTIC, options))
    for line in report.skipped:
        console.print(f"skipped: {line}", highlight=False, markup=False)


def member_table(results: Sequence[Membership]) -> tuple[list[str], list[Line]]:
    """Heads and body: every system's name, accuracy and epsilon, then its readings.

    A rate that was resolved for nobody has no column.
    """
    from fedbench.probes.membership import RATES
    from fedbench.tables.columns import known, nats, percent
    from fedbench.tables.table import Line

    readings = [one for result in results for one in result.readings]
    rates = [rate for rate in RATES if any(one.tprs[rate] is not None for one in readings)]
    tprs = [f"TPR at\nFPR {100 * rate:g} %" for rate in rates]
    heads = ["system\n  what is read", "\nAUC", "95 %\ninterval", *tprs]
    heads += ["bal.\nacc. %", "model\nacc. %", "\nε"]
    body = []
    for result in results:
        name = f"{result.protocol} + {result.mechanism}"
        blank, price = [""] * (len(heads) - 3), known(result.epsilon, nats)
        body.append(Line([name, *blank, percent(result.accuracy), price], title=True))
        for one in result.readings:
            area = f"{one.auc.value:.3f}", f"{one.auc.low:.3f}-{one.auc.high:.3f}"
            shares = [share(one.tprs[rate]) for rate in rates]
            body.append(Line([one.name, *area, *shares, percent(one.balanced), "", ""]))
    return heads, body


def share(found: IntervalEstimate | None) -> str:
    """In percent."""
    from fedbench.tables.columns import NONE, percent

    return NONE if found is None else percent(found.value)


def member_captions(results: Sequence[Membership], delta: float) -> list[tuple[str, str]]:
    """What the columns are."""
    from fedbench.probes.membership import RATES

    out = [
        ("deployed model", "confidence of the final model in the true class"),
        ("messages", "what the victim sent, mean over rounds: the same, of its message as a model"),
        ("cosine", "of the message with the update of one step on the example alone"),
        ("LiRA", "that number's Gaussian likelihood ratio between shadows with and without it"),
        ("AUC", "0.5 is a guess; interval over examples, not over victims or seeds"),
        ("TPR, acc.", "in percent; balanced accuracy at ratio 1, or above a run's median"),
    ]
    few = [rate for rate in RATES if results[0].others * rate < 1]
    if few:
        rates = " and ".join(f"{100 * rate:g} %" for rate in few)
        said = f"not resolved by {results[0].others} times out: {round(1 / min(few))} are needed"
        out.append((f"FPR {rates}", f"{said}; add shadows or seeds"))
    if any(result.epsilon is not None for result in results):
        units = sorted({f"{r.unit} level" for r in results if r.epsilon is not None})
        out.append(("ε", f"proved, at delta {delta:g}, {' or '.join(units)}, of the same runs"))
    return out


def show_inversion(console: Console, report: InversionReport, caption: str) -> None:
    """What was measured, the table, what its columns are."""
    from fedbench.tables.table import cell, grid, listed

    options = console.options
    console.print("[bold]Inversion[/bold]", highlight=False)
    count = counted(len(report.truth), "image")
    console.print(f"{caption}; {count}", highlight=False, markup=False)
    if report.results:
        console.print()
        heads = ("system\n  what is inverted", "PSNR\ndB", "\nSSIM", "cosine\nfound", "\nof truth")
        console.print(grid("", heads, inversion_lines(report), options))
        console.print()
        console.print(listed(INVERSION_CAPTIONS, options))
        console.print()
        console.print(cell(HEURISTIC, options))
    for line in report.skipped:
        console.print(f"skipped: {line}", highlight=False, markup=False)


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


def inversion_lines(report: InversionReport) -> list[Line]:
    """Every system's name, what came back, and what a guess is worth."""
    from fedbench.probes.inversion import MESSAGE, RAW
    from fedbench.tables.table import Line

    out = []
    for system in report.results:
        name = f"{system.protocol} + {system.mechanism}"
        out.append(Line([name, "", "", "", ""], title=True))
        for what in (MESSAGE, RAW):
            out.append(Line([what, *summary(system.found[what])]))
    out.append(Line(["no message", "", "", "", ""], title=True))
    return [*out, *(Line([name, *summary(found)]) for name, found in report.guesses.items())]


def summary(found: Sequence[Any]) -> list[str]:
    """PSNR, SSIM and the two cosines."""
    both = [[getattr(one, name) for one in found] for name in ("psnr", "ssim")]
    cosines = [[getattr(one, name) for one in found] for name in ("cosine", "ceiling")]
    known = ["" if c[0] is None else f"{sum(c) / len(c):.3f}" for c in cosines]
    return [spread(both[0], 1), spread(both[1], 2), *known]


def spread(x: Sequence[float], digits: int) -> str:
    """Mean and sample standard deviation.

    >>> spread([1.0, 2.0, 3.0], 1), spread([1.0], 1)
    ('2.0 ± 1.0', '1.0')
    """
    import statistics

    mean = f"{statistics.fmean(x):.{digits}f}"
    return f"{mean} ± {statistics.stdev(x):.{digits}f}" if len(x) > 1 else mean


def counted(n: int, what: str) -> str:
    """``1 image``, ``2 images``.

    >>> counted(1, "image"), counted(2, "image")
    ('1 image', '2 images')
    """
    return f"{n} {what}{'s' * (n != 1)}"


def to_json(report: MembershipReport) -> str:
    """Everything, in full precision."""
    import dataclasses
    import json

    return json.dumps(dataclasses.asdict(report), indent=1) + "\n"


def inversion_json(report: InversionReport) -> str:
    """The numbers of every image."""
    import json

    names = ("psnr", "ssim", "cosine", "ceiling")

    def numbers(found: dict[str, Any]) -> dict[str, Any]:
        return {
            what: [{name: getattr(one, name) for name in names} for one in each]
            for what, each in found.items()
        }

    systems = [
        {"protocol": s.protocol, "mechanism": s.mechanism, **numbers(s.found)}
        for s in report.results
    ]
    whole = {"results": systems, "guesses": numbers(report.guesses), "skipped": report.skipped}
    return json.dumps(whole, indent=1) + "\n"
