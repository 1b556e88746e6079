"""Cells of a sweep: combinations of plug-ins, their runs, and those that cannot exist."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbench.api import Attack
from fedbench.core import registry
from fedbench.experiment.compatibility import Resolution, counts_votes, resolve
from fedbench.experiment.record import file_name
from fedbench.experiment.scenario import ADVERSARY, Scenario, code_version, fingerprint

AXES = ("protocol", "mechanism", "defense", "attack")  # kinds of plug-ins that are tried


@dataclass(frozen=True)
class Cell:
    """One combination; a run of it is `scenario` with another seed."""

    scenario: Scenario  # as typed
    varied: tuple[str, ...] = ()  # fields beside `AXES` that tell it from the sweep's other cells
    sought: int = 0  # of how many candidates of ``strongest`` it is one; 0 if it is none
    listed: bool = True  # whether it is a row of its own, too

    @property
    def protocol(self) -> str:
        """The protocol as it was typed."""
        return str(self.scenario.protocol)

    @property
    def attack(self) -> str:
        """The attack as it was typed."""
        return str(self.scenario.attack)

    @property
    def defense(self) -> str:
        """The defense as it was typed, but ``vote`` where the protocol's own one counts votes."""
        if counts_votes(self.scenario):
            return "vote"
        if self.scenario.defense == "own":
            default: str = registry.load("protocol", self.scenario.protocol).default_defense
            return default
        return str(self.scenario.defense)

    @property
    def system(self) -> str:
        """The system under attack: protocol, mechanism if any, defense, and the varied fields."""
        mechanism = self.scenario.mechanism
        private = "" if mechanism == "none" else f" + {mechanism}"
        fields = {name: getattr(self.scenario, name) for name in self.varied}
        shown = {n: f"{x:g}" if isinstance(x, float) else str(x) for n, x in fields.items()}
        where = "".join(f"; {name} {text}" for name, text in shown.items())
        return f"{self.protocol}{private} + {self.defense}{where}"

    @property
    def defended(self) -> str:
        """`system` without what the adversary sees and when it acts, which a clean run has not."""
        varied = tuple(name for name in self.varied if name not in ADVERSARY)
        return dataclasses.replace(self, varied=varied).system

    @cached_property
    def resolution(self) -> Resolution:
        """The scenario with every default written out, and the source files of its plug-ins."""
        return resolve(self.scenario)

    @property
    def resolved(self) -> Scenario:
        """The scenario with every default written out."""
        return self.resolution.scenario

    @property
    def clean(self) -> bool:
        """True if the adversary does nothing."""
        return self.attack == "none"

    @property
    def backdoor(self) -> bool:
        """True if the attack has a trigger, whose success is measured."""
        plugin = registry.plugin("attack", registry.split(self.attack)[0])
        return getattr(plugin, "trigger", None) is not Attack.trigger

    @property
    def twin(self) -> Cell:
        """Cell whose attack never begins: how often a clean model falls for its trigger."""
        never = {"attack_from": self.scenario.rounds, "attack_until": None, "attack_every": 1}
        return dataclasses.replace(self, scenario=self.scenario.model_copy(update=never))

    @property
    def dormant(self) -> bool:
        """True if there is an attack and it never begins."""
        return not self.clean and self.scenario.attack_from >= self.scenario.rounds

    def __str__(self) -> str:
        return f"{self.system} / {self.attack}{' (never begins)' if self.dormant else ''}"


@dataclass(frozen=True)
class Run:
    """A cell with one of its seeds: what a worker plays, and what a record is of."""

    cell: Cell
    seed: int

    @cached_property
    def scenario(self) -> Scenario:
        """The cell's scenario with this seed."""
        return self.cell.scenario.model_copy(update={"seed": self.seed})

    @cached_property
    def resolved(self) -> Scenario:
        """The resolved scenario, made from the cell's, since a sweep has thousands of runs."""
        given = self.cell.scenario.data_seed
        data_seed = self.seed if given is None else given
        return self.cell.resolved.model_copy(update={"seed": self.seed, "data_seed": data_seed})

    @cached_property
    def id(self) -> str:
        """Id of the record that the run makes."""
        digests = [source.sha256 for source in self.cell.resolution.sources]
        return fingerprint(self.resolved.model_dump_json(), code_version(), digests)

    @cached_property
    def file_name(self) -> str:
        """Name of the file of its record."""
        return file_name(self.resolved, self.id)

    @property
    def checkpoint_name(self) -> str:
        """Name of the file of its checkpoint."""
        return Path(self.file_name).with_suffix(".safetensors").name

    def __str__(self) -> str:
        return f"{self.cell}, seed {self.seed}"


@dataclass(frozen=True)
class Skipped:
    """A combination that cannot exist, and why."""

    protocol: str
    defense: str
    attack: str
    reason: str


def differing(scenarios: Iterable[Scenario]) -> list[str]:
    """Return in which fields the scenarios differ, beside the plug-ins tried and the seed."""
    first, *others = scenarios
    names = [name for name in Scenario.model_fields if name not in (*AXES, "seed")]
    return [n for n in names if any(getattr(first, n) != getattr(other, n) for other in others)]
