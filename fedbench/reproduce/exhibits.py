"""Papers as data: every table and figure with its setting, its numbers, and how it is played here.

A file in ``papers/`` holds one paper. An exhibit is a table, a figure or a claim of the text; a
cell is one number of it, with the fields of the scenario that fedbench plays for it, or the formula
that gives it without training.
"""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fedbench.core.errors import ConfigError, few, nearest
from fedbench.experiment.scenario import Scenario

Measure = Literal[
    "accuracy",
    "client-mean",
    "lowest-client",
    "highest-client",
    "local-accuracy",
    "sparsity",
    "bits",
    "downlink",
    "entropy",
    "model-bits",
    "megabytes",
    "gigabytes",
    "probability",
    "share",
    "epsilon",
    "formula",
]
# How two runs of the same seed make one number: the first less the second (``against`` less
# ``play``), the share of the first that the second saves, or how many powers of ten lie between.
Compares = Literal["", "difference", "saved", "magnitudes"]
Labels = dict[str, str | int | float | bool]  # what tells a cell from the others of its exhibit
Only = dict[str, list[str | int | float | bool]]  # for some labels, the values of the cells meant
Fields = dict[str, Any]  # fields of a scenario
SCALES = ("mini", "paper-data", "full")
# How far a number may be from the paper's and still agree, in the unit of the measure.
MARGINS: dict[str, float] = {
    "accuracy": 2.0,
    "client-mean": 2.0,
    "lowest-client": 5.0,
    "highest-client": 5.0,
    "local-accuracy": 2.0,
    "model-bits": 0.02,
    "sparsity": 5.0,
    "bits": 0.02,
    "downlink": 0.02,
    "entropy": 0.02,
    "share": 0.02,
    "probability": 0.005,
    "epsilon": 0.05,
    "formula": 0.01,
    "megabytes": 0.02,
    "gigabytes": 1.0,
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PaperNumber(_Model):
    """One number of a paper.

    Args:
        at: Labels of the cell, as in the paper's table.
        says: The paper's number, in the unit of the measure.
        spread: Standard deviation that the paper prints beside it; what it is over, the exhibit
            says.
        play: Fields of the scenario that differ from the exhibit's setting.
        against: The same of the run that `play` is compared with, where the exhibit compares two.
        until: Accuracy, in percent, at whose first look both runs are read instead of at their end.
        formula: Name of the function in `fedbench.reproduce.formulas` that gives the number.
        given: Arguments of the formula.
        measure: Measure, if it is not the exhibit's.
        needs: What fedbench lacks to play it; empty if nothing.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    at: Labels
    says: float
    spread: float | None = None
    play: Fields | None = None
    against: Fields | None = None
    until: float | None = None
    formula: str = ""
    given: dict[str, Any] = Field(default={}, alias="with")
    measure: Measure | None = None
    needs: str = ""

    def within(self, only: Mapping[str, list[Any]]) -> bool:
        """Tell if the labels have one of the values that ``only`` lists for them."""
        return all(self.at.get(label) in values for label, values in only.items())

    @property
    def name(self) -> str:
        """Labels as one line of text."""
        return ", ".join(str(value) for value in self.at.values())

    @property
    def digits(self) -> int:
        """Number of digits that the paper prints after the point, but for zeros at the end."""
        return len(repr(self.says).partition(".")[2].rstrip("0"))


class Scale(_Model):
    """How an exhibit is played at one scale.

    Args:
        seeds: Seeds of every cell.
        only: Cells that are played; all by default.
        scenario: Fields of the scenario that differ from the paper's.
        replace: Parts of plug-ins' texts, and what stands for them.
        differs: What differs from the paper, in words.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    only: Only = {}
    scenario: Fields = {}
    replace: dict[str, str] = {}
    differs: str = ""

    def changed(self, fields: Fields) -> Fields:
        """Return the fields of a cell as they are at this scale."""
        changed = dict(fields)
        for part, other in self.replace.items():
            for name, value in changed.items():
                changed[name] = value.replace(part, other) if isinstance(value, str) else value
        return changed | self.scenario


class Reason(_Model):
    """Known reason why cells differ from the paper, with the experiment that shows it.

    Args:
        only: Cells that it explains; all by default.
        scales: Scales at which it holds.
        text: The reason.
        control: Command of the control experiment.
        shows: What the control experiment measured.
    """

    only: Only = {}
    scales: tuple[str, ...] = SCALES
    text: str
    control: str
    shows: str


class Exhibit(_Model):
    """A table, a figure or a claim of a paper.

    Args:
        name: Name on the command line, which begins with the paper's.
        label: Name in the paper.
        shows: What it shows, in a sentence.
        measure: What its numbers are.
        unit: Unit of its numbers.
        compares: How two runs make one of its numbers; empty if a number is of one run.
        margin: Distance at which a number still agrees; by default that of the measure.
        needs: What fedbench lacks to play it; empty if nothing.
        setting: Fields of the scenario at the paper's size.
        cell: Its numbers.
        scale: How it is played at smaller scales; ``full`` is the setting itself.
        reason: Known reasons for differences.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    label: str
    shows: str
    measure: Measure
    unit: str = ""
    compares: Compares = ""
    margin: float | None = Field(default=None, gt=0)
    needs: str = ""
    setting: Fields = {}
    cell: tuple[PaperNumber, ...] = ()
    scale: dict[Literal["mini", "paper-data", "full"], Scale] = {}
    reason: tuple[Reason, ...] = ()

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        names = [tuple(claim.at.items()) for claim in self.cell]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{self.name} must have every cell once, got {dict(twice)} twice")
        for claim in self.cell:
            ways = bool(claim.play is not None) + bool(claim.formula)
            if ways > 1 or (not ways and not self.needs and not claim.needs):
                raise ValueError(
                    f"{self.name}, {claim.name}: must have play, formula or needs, and one of them"
                )
            if claim.play is not None and (claim.against is not None) != bool(self.compares):
                raise ValueError(
                    f"{self.name}, {claim.name}: must have against where two runs are compared"
                )
        tables = [self.setting, *(scale.scenario for scale in self.scale.values())]
        tables += [claim.play or {} for claim in self.cell]
        tables += [claim.against or {} for claim in self.cell]
        for field in (name for table in tables for name in table):
            if field not in Scenario.model_fields or field == "seed":
                raise ValueError(f"{self.name}: {field!r} is no field of a scenario")
        return self

    def at(self, scale: str) -> Scale | None:
        """Return how it is played at a scale; None if it is not."""
        if scale == "full":
            return self.scale.get("full", Scale())
        return self.scale.get(scale)  # type: ignore[call-overload, no-any-return]

    def measure_of(self, claim: PaperNumber) -> Measure:
        """Return what the number of a cell is."""
        return claim.measure or self.measure

    def margin_of(self, claim: PaperNumber) -> float:
        """Return the distance from the paper's number at which ours still agrees.

        What a formula gives must be the paper's number to the last digit that is printed, which may
        be cut off instead of rounded.
        """
        if claim.formula and self.margin is None:
            return 10.0**-claim.digits if claim.digits else 0.5
        return self.margin or MARGINS[self.measure_of(claim)]

    def computed(self) -> list[PaperNumber]:
        """Return the cells that a formula gives."""
        return [claim for claim in self.cell if claim.formula and not self._lacks(claim)]

    def trained(self, scale: str) -> list[PaperNumber]:
        """Return the cells that are played at a scale."""
        played = self.at(scale)
        if played is None:
            return []
        return [
            claim
            for claim in self.cell
            if claim.play is not None and not self._lacks(claim) and claim.within(played.only)
        ]

    def scenario(self, claim: PaperNumber, scale: str, fields: Fields | None = None) -> Scenario:
        """Return the scenario of a cell at a scale, with seed 0; `ConfigError` if it is none.

        ``fields`` are those of the cell that differ from the setting, by default ``play``.
        """
        played = self.at(scale)
        own = claim.play if fields is None else fields
        assert played is not None, f"{self.name} is not played at {scale}"
        assert own is not None, f"{claim.name} is not played"
        return Scenario.of(**played.changed(self.setting | own))

    def scenarios(self, claim: PaperNumber, scale: str) -> list[Scenario]:
        """Return the scenario of a cell, and the one that it is compared with, if any."""
        own = [claim.play] if claim.against is None else [claim.play, claim.against]
        return [self.scenario(claim, scale, fields) for fields in own]

    def explanation(self, claim: PaperNumber, scale: str) -> Reason | None:
        """Return the known reason why a cell differs at a scale; None without one.

        What a formula gives is the same at every scale.
        """
        for reason in self.reason:
            if claim.within(reason.only) and (claim.formula or scale in reason.scales):
                return reason
        return None

    def _lacks(self, claim: PaperNumber) -> bool:
        return bool(self.needs or claim.needs)


class Paper(_Model):
    """A paper, and all that it shows in numbers."""

    name: str
    title: str
    source: str
    text: str = ""
    exhibit: tuple[Exhibit, ...]


@cache
def papers() -> tuple[Paper, ...]:
    """Return the papers, in the order of their files' names."""
    folder = files("fedbench").joinpath("reproduce", "papers")
    texts = {path.name: path.read_text("utf-8") for path in folder.iterdir()}
    named = sorted(name for name in texts if name.endswith(".toml"))
    return tuple(Paper.model_validate(tomllib.loads(texts[name])) for name in named)


def exhibits() -> dict[str, Exhibit]:
    """Return all exhibits by name."""
    return {exhibit.name: exhibit for paper in papers() for exhibit in paper.exhibit}


def exhibit(name: str) -> Exhibit:
    """Return the exhibit of a name; `ConfigError` if there is none."""
    by_name = exhibits()
    if name not in by_name:
        hint = nearest(name, list(by_name), f"known: {few(list(by_name))}")
        raise ConfigError(f"EXHIBIT must be a table or figure of a paper, got {name!r}; {hint}")
    return by_name[name]
