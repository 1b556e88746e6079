"""What a row of results says: the numbers for people, the columns, and what they mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedbench.results.summary import Row

WORST = "◀ worst"
SO_FAR = "◀ lowest so far"  # of a system whose attacks have not all finished
NONE = "n/a"
SUMS = ("sum", "hidden-sum")
MASKED = f"of a secure sum of n, log2(n + 1) for each bit, and {NONE} for what is no bit"


def percent(share: float) -> str:
    """One decimal, without the sign.

    >>> percent(0.1016), percent(-0.0001)
    ('10.2', '0.0')
    """
    return f"{round(100 * share, 1) + 0.0:.1f}"


def bits(x: float) -> str:
    """Two decimals; three below 2, where masks differ; two digits where those would be zeros.

    >>> bits(32.0003), bits(2), bits(0.9982), bits(0.00123)
    ('32.00', '2.00', '0.998', '0.0012')
    """
    if x >= 2:
        return f"{x:.2f}"
    return f"{x:.3f}" if x >= 0.1 or x == 0 else f"{x:.2g}"


def counted(n: int, thing: str) -> str:
    """With the plural where it is due.

    >>> counted(1, "run"), counted(3, "run")
    ('1 run', '3 runs')
    """
    return f"{n} {thing}{'' if n == 1 else 's'}"


def known(x: float | None, text: Callable[[float], str]) -> str:
    """The number, or ``n/a`` where it was not measured."""
    return NONE if x is None else text(x)


def accuracy(row: Row) -> str:
    """Mean and, from two seeds on, standard deviation, in percent."""
    mean = percent(row.accuracy)
    return f"{mean} ± {percent(row.accuracy_std)}" if len(row.records) > 1 else mean


def mark(row: Row) -> str:
    """Mark of the lowest accuracy of a system: `WORST` only if none of its attacks is missing."""
    if not row.worst:
        return ""
    return SO_FAR if row.missing else WORST


def worst_case(rows: Sequence[Row]) -> str:
    """Name of the lowest accuracies: ``worst case``, or what they are while attacks are missing."""
    return "lowest so far" if any(row.missing for row in rows) else "worst case"


def in_worst_case(rows: Sequence[Row]) -> str:
    """Words after "accuracy" in a title; empty if nobody attacks."""
    if not any(row.worst for row in rows):
        return ""
    return ", lowest so far," if any(row.missing for row in rows) else " in the worst case"


def unfinished(rows: Sequence[Row]) -> str:
    """Sentence that says how many attacks are missing; empty if none is."""
    counts = {row.cell.system: (row.missing, row.attacks) for row in rows if row.missing}
    if not counts:
        return ""
    (name, (missing, attacks)), *others = counts.items()
    more = f" and some of {counted(len(others), 'other system')}" if others else ""
    return (
        f"{missing} of {counted(attacks, 'attack')} of {name}{more} are missing: "
        "the lowest accuracy is no worst case yet."
    )


def impact(row: Row) -> str:
    """In percentage points; empty in the clean row."""
    return "" if row.cell.clean else known(row.impact, percent)


def backdoor(row: Row, share: float | None) -> str:
    """In percent; empty in the clean row, which has no trigger."""
    return "" if row.cell.clean else known(share, percent)


def half_life(row: Row) -> str:
    """In rounds; ``never`` if it did not halve in this run."""
    if row.cell.clean:
        return ""
    return known(row.half_life, lambda x: f"{x:g}" if math.isfinite(x) else "never")


def epsilon(row: Row) -> str:
    """``n/a`` without a mechanism; ``unknown`` is a mechanism whose price is not finite."""
    if row.epsilon is not None:
        return nats(row.epsilon)
    return NONE if row.records[0].mechanism.partition(":")[0] == "none" else "unknown"


def nats(x: float) -> str:
    """An epsilon: two decimals, or three digits where it is large.

    >>> nats(2.5), nats(836501.0)
    ('2.50', '8.37e+05')
    """
    return f"{x:.2f}" if x < 1000 else f"{x:.3g}"


def paper(row: Row) -> str:
    """What the mechanism's own paper would claim."""
    return NONE if row.privacy is None else known(row.privacy.paper, nats)


def has_zeros(row: Row) -> bool:
    """Whether a deployed weight is exactly 0."""
    return bool(row.sparsity)


@dataclass(frozen=True)
class Column:
    """A column: its head, what it says of a row, and when that is worth a column.

    Args:
        head: In lines.
        text: Of a row.
        when: The column is shown if this holds for any row.
    """

    head: str
    text: Callable[[Row], str]
    when: Callable[[Row], bool] = lambda row: True

    def says(self, rows: Iterable[Row]) -> bool:
        """Whether it is worth a column beside these rows."""
        return any(self.when(row) for row in rows)


ACCURACY = (Column("accuracy\n%", accuracy), Column("impact\npoints", impact))
SUCCESS = Column(
    "backdoor\n%",
    lambda row: backdoor(row, row.success),
    lambda row: row.success is not None,
)
OVER = Column(
    "over\nclean",
    lambda row: backdoor(row, row.over_clean),
    lambda row: row.over_clean is not None,
)
HALF_LIFE = Column(
    "half-life\nrounds",
    half_life,
    lambda row: row.success is not None and row.cell.scenario.attack_until is not None,
)
BACKDOOR = (SUCCESS, OVER, HALF_LIFE)
TRUE_POSITIVES = Column(
    "TPR\n%",
    lambda row: known(row.true_positive_rate, percent),
    lambda row: row.true_positive_rate is not None,
)
FALSE_POSITIVES = Column(
    "FPR\n%",
    lambda row: known(row.false_positive_rate, percent),
    lambda row: row.false_positive_rate is not None,
)
OWN_MODEL = Column(
    "own\nmodel %",
    lambda row: known(row.local_accuracy, percent),
    lambda row: row.local_accuracy is not None,
)
CLIENT_MEAN = Column("client\nmean %", lambda row: percent(row.client("mean")))
CLIENT_STD = Column("client\nstd", lambda row: percent(row.client("std")))
CLIENT_MIN = Column("client\nmin %", lambda row: percent(row.client("min")))
CLIENT_MAX = Column("client\nmax %", lambda row: percent(row.client("max")))
CLIENTS = (CLIENT_MEAN, CLIENT_STD, CLIENT_MIN, CLIENT_MAX, OWN_MODEL)
UP = Column("up\nbits", lambda row: known(row.uplink, bits))
ENTROPY = Column(
    "entropy\nbits", lambda row: known(row.entropy, bits), lambda row: row.entropy is not None
)
DOWN = Column("down\nbits", lambda row: bits(row.downlink))
MODEL = Column("model\nbits", lambda row: bits(row.model_bits), has_zeros)
ZEROS = Column("zeros\n%", lambda row: known(row.sparsity, percent), has_zeros)
EPSILON = Column("\nε", epsilon)
PAPER = Column(
    "paper's\nε", paper, lambda row: row.privacy is not None and row.privacy.paper is not None
)
PRICE = (UP, ENTROPY, DOWN, MODEL, ZEROS, EPSILON, PAPER)
REJECTED = Column("rejected\nmessages", lambda row: str(row.rejected), lambda row: row.rejected > 0)
DETECTION = (TRUE_POSITIVES, FALSE_POSITIVES, REJECTED)
ALL = (*ACCURACY, *BACKDOOR, *CLIENTS, *PRICE, *DETECTION)
# What a narrow table does without, the first group first; Markdown and records have all of it.
SPARE = (
    (CLIENT_MEAN, CLIENT_STD, CLIENT_MAX),
    (ENTROPY, MODEL),
    (OWN_MODEL, ZEROS),
    (TRUE_POSITIVES, FALSE_POSITIVES),
    (CLIENT_MIN,),
)


def saying(rows: Sequence[Row], columns: Iterable[Column]) -> list[Column]:
    """Those of the columns that say something of these rows."""
    return [column for column in columns if column.says(rows)]


def _marked(rows: Sequence[Row]) -> str:
    """Explain the mark of the lowest accuracy."""
    if any(row.missing for row in rows):
        return f"{SO_FAR}: the lowest accuracy, of a system whose attacks are not all played"
    return f"{WORST}: the lowest accuracy of the attacks that stand here"


def captions(rows: Sequence[Row], shown: Collection[Column] = ALL) -> dict[str, str]:
    """Explain the columns that are shown."""
    seeds = max((len(row.records) for row in rows), default=0)
    said = {
        "accuracy": "percent of the benign clients' pooled test data, at the last round",
        "±": f"sample standard deviation over {seeds} seeds" if seeds > 1 else "n/a: one seed",
        "impact": f"clean minus attacked, in percentage points; {_marked(rows)}",
    }
    if SUCCESS.says(rows):
        said["backdoor"] = (
            "percent of the benign clients' test images with the trigger, none of them of the "
            "target class, that are taken for it"
        )
    if OVER.says(rows):
        said["over clean"] = "in points above the same run whose attack never begins"
    if HALF_LIFE.says(rows):
        said["half-life"] = (
            "rounds after the attack stopped until half of that is left; median over seeds"
        )
    if any(column in shown for column in CLIENTS):
        said["client"] = "single benign clients, each on its own test data; mean over seeds"
    if OWN_MODEL in shown and OWN_MODEL.says(rows):
        said["own model"] = (
            "what each sampled client last sent, as a model of its own, on its own test data"
        )
    said["bits"] = "per parameter and message, counted on what was sent"
    if any(r.scenario.sees in SUMS for row in rows for r in row.records):
        said["bits"] += f"; up, {MASKED}"
    if ENTROPY in shown and ENTROPY.says(rows):
        said["entropy"] = (
            "an estimate, the empirical entropy of the symbols, beside the measured bits"
        )
    if MODEL in shown and MODEL.says(rows):
        said["model"] = "bits per parameter to store what is deployed"
    if ZEROS in shown and ZEROS.says(rows):
        said["zeros"] = "share of the deployed weights that are exactly 0"
    said["ε"] = f"{NONE} without a privacy mechanism"
    if any(row.privacy for row in rows):
        said["ε"] += "; natural logarithms, and what it covers stands below"
    if PAPER.says(rows):
        said["paper's ε"] = "what the mechanism's own paper would claim for the same run"
    return said


def guarantees(rows: Sequence[Row]) -> list[str]:
    """What the epsilon of each system covers; of its row that gave away most."""
    found: dict[str, Row] = {}
    for row in rows:
        best = found.get(row.cell.system)
        if row.privacy and (best is None or (row.epsilon or 0) > (best.epsilon or 0)):
            found[row.cell.system] = row
    return [f"{name}: {_claim(row)}" for name, row in found.items()]


SEEN = {
    "messages": "messages",
    "sum": "sum of a round, and who took part",
    "hidden-sum": "sum of a round",
    "model": "models",
}


def _claim(row: Row) -> str:
    said = row.privacy
    assert said is not None
    bounds = ", ".join(f"{name} {known(x, nats)}" for name, x in said.bounds.items())
    parts = (
        f"ε = {known(said.epsilon, nats)} at δ = {said.delta:g}, per {said.unit}, {said.adjacency}",
        f"before who sees the {SEEN[said.sees]}",
        said.sampler,
        f"the least of {bounds}",
        said.note,
    )
    return "; ".join(filter(None, parts))
