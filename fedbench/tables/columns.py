"""Columns of a report on attacked systems: what they say of a row, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fedbench.core.choices import SUMS
from fedbench.experiment.measurements import BY_NAME, Measurement
from fedbench.results.aggregate import grouped
from fedbench.tables.numbers import NA, bits, counted, nats, or_none, percent

if TYPE_CHECKING:
    from fedbench.results.summary import Row

WORST = "◀ worst"
LOWEST = "the lowest accuracy of an attack"  # what the mark means: clean runs do not count
SO_FAR = "◀ lowest so far"  # mark in a system whose attacks have not all finished
BY_SEED = (
    "mean over seeds of the lowest accuracy of each seed: what an adversary leaves that chooses "
    "its attack for every run"
)
POOLED = "of a whole system the mean over its runs, clean and attacked"
SAME = "sent the messages of that attack: the server measured the same numbers in every round"
MASKED = "of a secure sum of n, masked residues: log2(n + 1) for each bit of a mask or sign"
SEEN = {
    "messages": "messages",
    "sum": "sum of a round, and who took part",
    "hidden-sum": "sum of a round",
    "model": "models",
}


def tested(splits: Collection[str]) -> str:
    """Name the data on which accuracy was measured under these splits.

    >>> tested({"per-client"}), tested({"published"})
    ("benign clients' pooled test data", 'published test images')
    """
    published = "published test images"
    if set(splits) <= {"published"}:
        return published
    own = "benign clients' pooled test data"
    return f"{own} (split published: {published})" if "published" in splits else own


def heading(measurement: Measurement) -> str:
    r"""Return the lines above the column of a measured number.

    >>> heading(BY_NAME["validation_accuracy"])
    'validation\naccuracy\n%'
    """
    unit = "\n%" if measurement.kind == "share" else ""
    return measurement.heading or measurement.name.replace("_", "\n") + unit


def text_of(measurement: Measurement) -> Callable[[Any], str]:
    """Return the function that formats values of a measured number."""
    by_unit = {"bits": bits, "nats": nats, "": percent if measurement.kind == "share" else str}
    return by_unit[measurement.unit]


@dataclass(frozen=True)
class ReportColumn:
    """A column of a report, explained below the table if it has a term."""

    heading: str
    text: Callable[[Row], str]
    when: Callable[[Row], bool] = lambda row: True  # whether a row makes it worth showing
    term: str = ""
    caption: str = ""


def measured(name: str, **changes: Any) -> ReportColumn:
    """Make the column of a measured number, shown by default if any row has measured it."""
    declared = BY_NAME[name]
    column = ReportColumn(
        heading(declared),
        lambda row: or_none(row[name], text_of(declared)),
        lambda row: row[name] is not None,
        declared.term,
        declared.caption,
    )
    return replace(column, **changes)


def accuracy(row: Row) -> str:
    """Format the mean and, from two seeds on, the standard deviation, in percent."""
    mean = percent(row.accuracy)
    return f"{mean} ± {percent(row.accuracy_std)}" if len(row.records) > 1 else mean


def mark(row: Row) -> str:
    """Return the mark of a system's lowest accuracy: `WORST` only if no attack is missing."""
    if not row.worst:
        return ""
    return SO_FAR if row.missing else WORST


def worst_case(rows: Sequence[Row]) -> str:
    """Name the lowest accuracies: ``worst case``, or what they are while attacks are missing."""
    return "lowest so far" if any(row.missing for row in rows) else "worst case"


def in_worst_case(rows: Sequence[Row]) -> str:
    """Return the words after "accuracy" in a title; none if nobody attacks."""
    if not any(row.worst for row in rows):
        return ""
    return ", lowest so far," if any(row.missing for row in rows) else " in the worst case"


def seeded(rows: Sequence[Row]) -> bool:
    """Tell whether a system was attacked with several seeds, of which each has a worst attack."""
    return any(row.worst and len(row.records) > 1 for row in rows)


def unfinished(rows: Sequence[Row]) -> str:
    """Return a sentence that says how many attacks are missing; none if all are there."""
    counts = {row.cell.system: (row.missing, row.attacks) for row in rows if row.missing}
    if not counts:
        return ""
    (name, (missing, attacks)), *others = counts.items()
    more = f" and some of {counted(len(others), 'other system')}" if others else ""
    return (
        f"{missing} of {counted(attacks, 'attack')} of {name}{more} are missing: "
        "the lowest accuracy is no worst case yet."
    )


def unless_clean(text: Callable[[Row], str]) -> Callable[[Row], str]:
    """Leave the clean row empty, in which there is no attack to measure."""
    return lambda row: "" if row.cell.clean else text(row)


def half_life(row: Row) -> str:
    """Format the half-life in rounds; ``never`` if the success did not halve in this run."""
    return or_none(row.half_life, lambda x: f"{x:g}" if math.isfinite(x) else "never")


def epsilon(row: Row) -> str:
    """Format epsilon: ``n/a`` if nothing adds noise, ``unknown`` if its price is not finite."""
    if row["epsilon"] is not None:
        return nats(row["epsilon"])
    silent = row.privacy is None and row.records[0].mechanism.partition(":")[0] == "none"
    return NA if silent else "unknown"


def _client(what: str) -> ReportColumn:
    unit = "" if what == "std" else " %"
    return ReportColumn(
        f"client\n{what}{unit}",
        lambda row: or_none(row.client(what), percent),
        lambda row: row.client(what) is not None,
    )


def _always(row: Row) -> bool:
    return True


def _has_zeros(row: Row) -> bool:
    return bool(row["sparsity"])


ACCURACY = (
    measured("accuracy", text=accuracy),
    ReportColumn("impact\npoints", unless_clean(lambda row: or_none(row.impact, percent))),
)
BACKDOOR = (
    measured("success", text=unless_clean(measured("success").text)),
    ReportColumn(
        "over\nclean",
        unless_clean(lambda row: or_none(row.over_clean, percent)),
        lambda row: row.over_clean is not None,
        "over clean",
        "in points above the same run whose attack never begins",
    ),
    ReportColumn(
        "half-life\nrounds",
        unless_clean(half_life),
        lambda row: row["success"] is not None and row.cell.scenario.attack_until is not None,
        "half-life",
        "rounds after the attack stopped until half of that is left; median over seeds",
    ),
)
CLIENT_MEAN, CLIENT_STD, CLIENT_MAX = (_client(what) for what in ("mean", "std", "max"))
CLIENT_MIN = measured(
    "worst_client",
    heading="client\nmin %",
    term="client",
    caption="single benign clients, each on its own test data; mean over seeds",
)
OWN_MODEL = measured("local_accuracy")
CLIENTS = (CLIENT_MEAN, CLIENT_STD, CLIENT_MIN, CLIENT_MAX, OWN_MODEL)
UP = measured("uplink_bits", when=_always)
ENTROPY = measured("entropy_bits")
DOWN = measured("downlink_bits")
MODEL = measured("model_bits", when=_has_zeros)
ZEROS = measured("sparsity", when=_has_zeros)
EPSILON = measured("epsilon", heading="\nε", text=epsilon, when=_always)
PAPER = ReportColumn(
    "paper's\nε",
    lambda row: NA if row.privacy is None else or_none(row.privacy.paper, nats),
    lambda row: row.privacy is not None and row.privacy.paper is not None,
    "paper's ε",
    "what the mechanism's own paper would claim for the same run",
)
PRICE = (UP, ENTROPY, DOWN, MODEL, ZEROS, EPSILON, PAPER)
RATES = (measured("true_positive_rate"), measured("false_positive_rate"))
REJECTED = measured(
    "rejected_malicious",
    heading="rejected\nmessages",
    when=lambda row: row["rejected_malicious"] > 0,
)
SKIPPED = measured("skipped_rounds", when=lambda row: row["skipped_rounds"] > 0)
ALL = (*ACCURACY, *BACKDOOR, *CLIENTS, *PRICE, *RATES, REJECTED, SKIPPED)
# What a narrow table does without, the first group first; Markdown and records have all of it.
SPARE = (
    (CLIENT_MEAN, CLIENT_STD, CLIENT_MAX),
    (ENTROPY, MODEL),
    (OWN_MODEL, ZEROS),
    (*RATES, SKIPPED),
    (CLIENT_MIN,),
)


def saying(rows: Sequence[Row], columns: Iterable[ReportColumn]) -> list[ReportColumn]:
    """Return those of the columns that are worth showing beside these rows."""
    return [column for column in columns if any(map(column.when, rows))]


def captions(rows: Sequence[Row], shown: Collection[ReportColumn] | None = None) -> dict[str, str]:
    """Explain the shown columns, by default all that are worth showing, by term."""
    seeds = max((len(row.records) for row in rows), default=0)
    shown = saying(rows, ALL) if shown is None else shown
    splits = {row.cell.scenario.split for row in rows}
    explained: dict[str, str] = {}
    for column in ALL:
        if column in shown and column.term:
            explained[column.term] = column.caption.format(tested=tested(splits))
        if column is ACCURACY[0]:
            spread = f"sample standard deviation over {seeds} seeds"
            explained["±"] = spread if seeds > 1 else "n/a: one seed"
            lowest = f"{WORST}: {LOWEST}"
            if any(row.missing for row in rows):
                so_far = (
                    f"{SO_FAR}: the lowest accuracy, of a system whose attacks are not all played"
                )
                whole = any(mark(row) == WORST for row in rows)
                lowest = f"{lowest}; {so_far}" if whole else so_far
            explained["impact"] = f"clean minus attacked, in percentage points; {lowest}"
            if seeded(rows):
                explained["by seed"] = BY_SEED
    if any(row.same for row in rows):
        explained["same as"] = SAME
    if any(row.worst for row in rows):
        explained["bits"] += f"; {POOLED}"
    if any(r.scenario.sees in SUMS for row in rows for r in row.records):
        explained["bits"] += f"; up, {MASKED}"
    if any(row.privacy for row in rows):
        explained["ε"] += "; natural logarithms, and what it covers stands below"
    return explained


def guarantees(rows: Sequence[Row]) -> list[str]:
    """Say what the epsilon of each system covers, in its row that gave away most.

    Of rows that gave away as much it is the one with the most provisos.
    """
    systems = grouped((row for row in rows if row.privacy), lambda row: row.cell.system)

    def spent(row: Row) -> tuple[float, int]:
        assert row.privacy is not None
        epsilon = math.inf if row["epsilon"] is None else row["epsilon"]
        return epsilon, len(row.privacy.note)

    most = {name: max(group, key=spent) for name, group in systems.items()}
    return [f"{name}: {_claim(row)}" for name, row in most.items()]


def _claim(row: Row) -> str:
    privacy = row.privacy
    assert privacy is not None
    bounds = ", ".join(f"{name} {or_none(x, nats)}" for name, x in privacy.bounds.items())
    parts = (
        f"ε = {epsilon(row)} at δ = {privacy.delta:g}, per {privacy.unit}, {privacy.adjacency}",
        f"before who sees the {SEEN[privacy.sees]}",
        privacy.sampler,
        f"the least of {bounds}",
        privacy.note,
    )
    return "; ".join(filter(None, parts))
