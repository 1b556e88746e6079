"""Everything that a run measures: the numbers of its record, and what their readers know of them.

A number is declared here and nowhere else: its place in a record (`Round`, `Result`, `Timing`), and
in `MEASURED` what tables, CSV, Parquet and the fast reader make of it. This module imports neither
torch nor pydantic, because a question to a store is answered before either is loaded.
"""

import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Final, Literal

SCHEMA: Final = 4  # version of the record's schema
Number = float | None  # None: not measured in this round, or not a finite number
Note = float | int | str | bool

# Pydantic checks these classes as parts of a record, whoever built them.
STRICT = {"extra": "forbid", "revalidate_instances": "always"}


@dataclass(frozen=True, kw_only=True)
class Round:
    """Numbers that one round measured.

    Args:
        step: Number of the round, from 0.
        clients: Sampled clients that did not drop out, in the order of the rows.
        malicious: Number of sampled clients that the adversary owns.
        dropped: Number of sampled clients that dropped out (`Scenario.availability`); left out
            where there were none.
        accepted: Number of rows that decoded and passed the server's checks.
        rejected_honest: Number of benign rows that did not.
        rejected_malicious: Number of malicious rows that did not.
        skipped: Whether too few rows were left for the rule, so that the state stayed as it was.
        uplink_bits: Bits of all packets that clients sent, in a secure sum (``--sees sum``) of
            masked residues; None in records of earlier code, which let floats into such sums.
        benign_uplink_bits: Bits of the packets of benign clients.
        downlink_bits: Bits that the server sent, over all clients of the round.
        entropy_bits: Empirical entropy of the benign messages' symbols, an estimate beside the
            measured bits; None where the alphabet has none.
        accuracy: Accuracy on the pooled test parts of the benign clients, in [0, 1]; with the split
            ``published`` on the published test images.
        loss: Mean cross-entropy there, in nats.
        sparsity: Share of the deployed weights that are exactly 0.
        local_accuracy: Mean accuracy over the benign clients that were ever sampled, each with
            the model that its last message says, on its own test part.
        gain: L2 distance of the aggregate from the aggregate of honest messages, relative to the
            latter.
        gain_mean: The same distance for the plain mean instead of the rule.
        headers: For the scales of accepted malicious messages, the largest ratio to the honest
            scale; for seeds and indices, the share that is not the client's own. Empty if skipped.
        epsilon: Privacy spent so far, by the accountants that take no time, in the last round by
            all accountants; None without a mechanism.
        success: Share of the images with a backdoor's trigger that are classified as its target.
        queries: Number of queries of the attack to a snapshot of the server's rule.
        trace: Trials of the attack's search: strength, and objective there.
        notes: Remarks that the attack reported.
        true_positive_rate: Share of the accepted malicious rows that a rule which detects left
            out; None without such rows or with another rule.
        false_positive_rate: The same share of the accepted benign rows.
        findings: Remarks that the rule reported; ``not_finite`` counts the numbers of its answer
            that are NaN or infinite.
        commitment: SHA-256 of the received packets and of the state after the round, in hex
            digits; left out where the run was not canonical (`fedbench.experiment.commitments`).
    """

    step: int
    clients: list[int]
    malicious: int
    accepted: int
    rejected_honest: int
    rejected_malicious: int
    skipped: bool
    uplink_bits: int | None
    benign_uplink_bits: int | None
    downlink_bits: int
    entropy_bits: Number = None
    accuracy: Number = None
    loss: Number = None
    sparsity: Number = None
    local_accuracy: Number = None
    gain: Number = None
    gain_mean: Number = None
    headers: dict[str, Number] = field(default_factory=dict)
    epsilon: Number = None
    success: Number = None
    queries: int = 0
    trace: list[tuple[Number, Number]] = field(default_factory=list)
    notes: dict[str, Note] = field(default_factory=dict)
    true_positive_rate: Number = None
    false_positive_rate: Number = None
    findings: dict[str, Note] = field(default_factory=dict)
    commitment: str | None = None
    dropped: int = 0

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT

    @property
    def asked(self) -> int:
        """Number of clients that the server sent to, also of those that then dropped out."""
        return len(self.clients) + self.dropped


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Accuracies of the benign clients on their own test parts; ``std`` divides by their number."""

    mean: float
    std: float
    min: float
    max: float

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT


@dataclass(frozen=True, kw_only=True)
class Result:
    """Numbers that are read after the last round; those of `Round` mean the same there.

    Args:
        per_client: Accuracies of the benign clients on their own test parts; None with the split
            ``published``, under which they have none.
        uplink_bits_per_parameter: Bits of a benign message, headers included; None as in `Round`,
            and where no benign client sent anything.
        entropy_bits_per_parameter: Estimate for a benign message; None where there is none.
        downlink_bits_per_parameter: Bits that the server sent per client and round.
        model_bits: Bits to store the deployed model.
        skipped_rounds: Rounds in which fewer rows were accepted than the rule needs.
        validation_accuracy: Accuracy on the pooled validation parts of the benign clients, for
            choosing between runs; None with a split without validation.
    """

    accuracy: float
    loss: Number
    per_client: Spread | None
    uplink_bits_per_parameter: Number
    entropy_bits_per_parameter: Number = None
    downlink_bits_per_parameter: float
    model_bits: int
    sparsity: Number = None
    local_accuracy: Number = None
    skipped_rounds: int
    epsilon: Number = None
    validation_accuracy: Number = None
    success: Number = None
    true_positive_rate: Number = None
    false_positive_rate: Number = None

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Part of a record in which two runs of one scenario differ, and the only such part.

    Args:
        seconds: Duration of the whole run.
        peak_memory_mib: Largest memory of the process until the run's end.
        peak_device_memory_mib: Largest memory of the accelerator that the process had until then;
            None on a CPU, and with a backend that does not count.
        attack_seconds: Share of ``seconds`` that the adversary's training and crafting took.
    """

    seconds: float
    peak_memory_mib: float
    peak_device_memory_mib: Number = None
    attack_seconds: float = 0.0

    __pydantic_config__: ClassVar[dict[str, str]] = STRICT


# ``share`` is in [0, 1], ``points`` a difference of two; ``plug-in`` reads name:param=value.
Kind = Literal["plug-in", "name", "whole", "number", "share", "points", "yes", "texts"]
How = Literal["mean", "sum", "max", "union", "first"]


def aggregated(how: How, values: Iterable[Any]) -> Any:
    """Aggregate the values of several rounds or seeds into one value.

    ``mean`` and ``sum`` are over the values that were measured, None if none was. ``max`` is None
    if any value is: a bound that holds for all runs needs a bound of each.
    """
    values = list(values)
    measured = [x for x in values if x is not None]
    if how == "union":
        return list(dict.fromkeys(chain.from_iterable(measured)))
    if how == "first" or not measured:
        return values[0] if how == "first" else None
    if how == "max":
        return max(measured) if len(measured) == len(values) else None
    return statistics.fmean(measured) if how == "mean" else sum(measured)


# Explanations of terms, below a table that shows them; ``tested`` is the data that was tested on.
CAPTIONS = {
    "accuracy": "percent of the {tested}, at the last round",
    "own model": "what each sampled client last sent, as a model of its own, on its own test data",
    "bits": "per parameter and message, counted on what was sent",
    "entropy": "an estimate, the empirical entropy of the symbols, beside the measured bits",
    "model": "bits per parameter to store what is deployed",
    "zeros": "share of the deployed weights that are exactly 0",
    "ε": "n/a without a privacy mechanism",
    "skipped": "rounds in which fewer rows were accepted than the rule needs",
    "backdoor": "percent of the test images with the trigger, none of them of the target class, "
    "that are taken for it",
}


@dataclass(frozen=True)
class Measurement:
    """Declaration of a measured number, from which tables and exports follow."""

    name: str  # field in `fedbench results`, in CSV and in Parquet
    kind: Kind
    # Place in a record, in dots; by default the field of that name of the result. Numbers of
    # ``rounds`` are summed over the rounds, those of several places, with `` + `` between, added.
    source: str = ""
    seeds: How = "mean"  # how the values of several seeds are aggregated
    unit: Literal["", "bits", "nats"] = ""  # ``bits`` are per parameter; shares are in percent
    rounds: tuple[How, str] | None = None  # how the result follows from which number of each round
    per_parameter: bool = False  # whether the record's number is divided by that of parameters
    heading: str = ""  # lines above its column; by default made of its name
    term: str = ""  # below a table, if it is explained there

    @property
    def caption(self) -> str:
        """Explanation of its term."""
        return CAPTIONS.get(self.term, "")

    @cached_property
    def paths(self) -> list[list[str]]:
        """Places in a record, each as the names that lead there."""
        places = self.source or f"result.{self.name}"
        return [place.split(".") for place in places.split(" + ")]

    def read(self, record: Any) -> Any:
        """Return the number from a record, as an object or as the mapping that its JSON holds."""
        at: Callable[[Any, str], Any] = operator.getitem if isinstance(record, dict) else getattr
        parts = []
        for first, *names in self.paths:
            value = at(record, first)
            for name in names:
                if first == "rounds":
                    numbers = [at(element, name) for element in value]
                    value = None if None in numbers else sum(numbers)
                elif value is not None:
                    value = at(value, name)
            parts.append(value)
        if None in parts:
            return None
        number = parts[0] if len(parts) == 1 else float(sum(parts))
        return number / at(record, "parameters") if self.per_parameter else number


def _bits(name: str, source: str, heading: str = "", term: str = "") -> Measurement:
    return Measurement(name, "number", source, unit="bits", heading=heading, term=term)


def _rate(name: str, heading: str) -> Measurement:
    return Measurement(name, "share", rounds=("mean", name), heading=heading)


MEASURED = (
    Measurement("accuracy", "share", term="accuracy"),
    Measurement("loss", "number"),
    Measurement("worst_client", "share", "result.per_client.min", heading="worst\nclient %"),
    Measurement("local_accuracy", "share", heading="own\nmodel %", term="own model"),
    _bits("uplink_bits", "result.uplink_bits_per_parameter", "up\nbits", "bits"),
    _bits("entropy_bits", "result.entropy_bits_per_parameter", "entropy\nbits", "entropy"),
    _bits("downlink_bits", "result.downlink_bits_per_parameter", "down\nbits"),
    Measurement("total_bits", "number", "rounds.uplink_bits + rounds.downlink_bits"),
    Measurement(
        "model_bits", "number", unit="bits", per_parameter=True, heading="model\nbits", term="model"
    ),
    Measurement("sparsity", "share", heading="zeros\n%", term="zeros"),
    Measurement("epsilon", "number", seeds="max", unit="nats", heading="ε", term="ε"),
    Measurement("unit", "name", "privacy.unit", "first"),
    Measurement("malicious_messages", "whole", "rounds.malicious", "sum"),
    Measurement("rejected_honest", "whole", "rounds.rejected_honest", "sum"),
    Measurement("rejected_malicious", "whole", "rounds.rejected_malicious", "sum"),
    Measurement("skipped_rounds", "whole", "", "sum", rounds=("sum", "skipped"), term="skipped"),
    Measurement("validation_accuracy", "share"),
    Measurement("success", "share", heading="backdoor\n%", term="backdoor"),
    _rate("true_positive_rate", "TPR\n%"),
    _rate("false_positive_rate", "FPR\n%"),
    Measurement("queries", "whole", "rounds.queries", "sum"),
    Measurement("flags", "texts", "flags", "union"),
    Measurement("seconds", "number", "timing.seconds"),
    Measurement("peak_memory_mib", "number", "timing.peak_memory_mib", "max"),
    Measurement("peak_device_memory_mib", "number", "timing.peak_device_memory_mib", "max"),
    Measurement("attack_seconds", "number", "timing.attack_seconds"),
    Measurement("parameters", "whole", "parameters", "first"),
)
BY_NAME = {measurement.name: measurement for measurement in MEASURED}


def rejected_most(rounds: Sequence[Round]) -> list[str]:
    """Return the doubt about a server that rejected most honest messages, if it did."""
    honest = sum(len(r.clients) - r.malicious for r in rounds)
    rejected = sum(r.rejected_honest for r in rounds)
    if rejected <= honest / 2:
        return []
    return [f"the server rejected {rejected} of {honest} honest messages"]


def skipped(rounds: Sequence[Round]) -> list[str]:
    """Return the doubt about a run of which rounds were skipped, if any was."""
    count = sum(r.skipped for r in rounds)
    return [f"{count} of {len(rounds)} rounds were skipped"] if count else []


def from_rounds(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return the fields of `Result` that follow from a number of each round, by name."""
    return {
        measurement.name: aggregated(how, [getattr(r, name) for r in rounds])
        for measurement in MEASURED
        if measurement.rounds is not None
        for how, name in [measurement.rounds]
    }
