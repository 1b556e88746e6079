"""Comparison of a measured number with the paper's: agrees, differs, or was not played."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from fedbench.reproduce.exhibits import SCALES, Exhibit, PaperNumber, Reason
from fedbench.reproduce.formulas import computed
from fedbench.reproduce.outcomes import Number, Outcome

MAX_INTERVAL_MARGINS = 5.0  # half the width of an interval that may decide that numbers agree


class Verdict(Enum):
    """Result of comparing a number of ours with the paper's."""

    AGREES = "agrees"
    KNOWN = "differs (reason known)"
    UNEXPLAINED = "differs (unexplained)"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Comparison:
    """One cell: the paper's number, ours, and what that means."""

    claim: PaperNumber
    ours: Number | None
    verdict: Verdict
    reason: Reason | None = None  # of a difference that is explained
    why: str = ""  # it was not played
    scale: str = ""  # at which it was played


def agrees(claim: PaperNumber, ours: Number, margin: float) -> bool:
    """Tell if a measured number agrees with the paper's.

    It does if the means are at most ``margin`` apart, or if the paper's number lies in the 95 %
    interval of ours and that interval is narrow enough to say something: at most
    `MAX_INTERVAL_MARGINS` times the margin to each side.
    """
    if abs(ours.mean - claim.says) <= margin:
        return True
    bounds = ours.interval
    if bounds is None:
        return False
    low, high = bounds
    return low <= claim.says <= high and high - low <= 2 * MAX_INTERVAL_MARGINS * margin


def compare(
    exhibit: Exhibit, claim: PaperNumber, outcome: Outcome | None, scale: str
) -> Comparison:
    """Compare one cell with what was measured for it at a scale, or with what its formula gives."""
    if claim.formula:
        ours = Number(at=claim.at, values={0: computed(claim.formula, claim.given)})
        scale = "formula"
    else:
        measured = None if outcome is None else outcome.number(claim)
        if measured is None:
            return Comparison(claim, None, Verdict.NOT_RUN, why=claim.needs or exhibit.needs)
        ours = measured
    if agrees(claim, ours, exhibit.margin_of(claim)):
        return Comparison(claim, ours, Verdict.AGREES, scale=scale)
    reason = exhibit.explanation(claim, scale)
    verdict = Verdict.UNEXPLAINED if reason is None else Verdict.KNOWN
    return Comparison(claim, ours, verdict, reason, scale=scale)


def compared(exhibit: Exhibit, outcomes: Mapping[tuple[str, str], Outcome]) -> list[Comparison]:
    """Compare every cell with what was measured for it at the largest scale that was played."""
    cells = []
    for claim in exhibit.cell:
        best = compare(exhibit, claim, None, "")
        for scale in SCALES:
            tried = compare(exhibit, claim, outcomes.get((exhibit.name, scale)), scale)
            best = best if tried.verdict is Verdict.NOT_RUN else tried
        cells.append(best)
    return cells


def counts(cells: Iterable[Comparison]) -> dict[Verdict, int]:
    """Count the cells of each verdict."""
    counter = Counter(cell.verdict for cell in cells)
    return {verdict: counter[verdict] for verdict in Verdict}
