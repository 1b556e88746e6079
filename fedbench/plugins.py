"""What a scenario names, as objects, and whether they fit each other."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any

from fedbench import registry
from fedbench.api import Chain, Knowledge, Release
from fedbench.errors import ConfigError, Misfit

if TYPE_CHECKING:
    from fedbench.scenario import Scenario


@dataclasses.dataclass(frozen=True)
class Plugins:
    """What a scenario names, as objects.

    Args:
        protocol: What clients and server do.
        attack: What the malicious clients do.
        defense: The server's rule.
        mechanism: The privacy mechanism.
        rule: The name of the defense.
        declares: Does the rule take its ``f`` from the declared share?
    """

    protocol: Any
    attack: Any
    defense: Any
    mechanism: Any
    rule: str
    declares: bool

    def modules(self) -> list[str]:
        """Source files of the plug-ins, other people's among them."""
        parts = (self.protocol, self.attack, self.mechanism, *self.links())
        return [inspect.getfile(type(part)) for part in parts]

    def links(self) -> list[Any]:
        """The prefilters and the rule, in the order in which rows go through them."""
        found = [self.defense]
        while isinstance(found[-1], Chain):
            found[-1:] = [found[-1].first, found[-1].rule]
        return found

    def noises(self, scenario: Scenario) -> int:
        """How many of protocol and mechanism release something that an accountant prices."""
        release = Release(1, 1, 1, 1, scenario.clients, scenario.per_round)
        return sum(part.event(release) is not None for part in (self.protocol, self.mechanism))

    def check(self, scenario: Scenario) -> None:
        """Raise `ConfigError` unless the parts fit each other and the number of rows."""
        rule = self.rule
        sends = self.protocol.sends
        if not issubclass(sends, self.attack.accepts):
            legal = ", ".join(alphabet.__name__ for alphabet in self.attack.accepts)
            raise Misfit(
                f"attack {scenario.attack} works on {legal}, but {scenario.protocol} sends "
                f"{sends.__name__}"
            )
        if (why := self.defense.refuses(sends)) is not None:
            raise Misfit(f"defense {rule} {why}, but {scenario.protocol} sends {sends.__name__}")
        self._check_links(scenario)
        needs = self.attack.needs()
        if scenario.knowledge is not None and not Knowledge.parse(scenario.knowledge).covers(needs):
            raise Misfit(
                f"attack {scenario.attack} must be shown {needs}, but --knowledge "
                f"{scenario.knowledge} is less"
            )
        summed = scenario.sees in ("sum", "hidden-sum")
        if summed and needs.tier == "all":
            raise Misfit(
                f"attack {scenario.attack} reads the messages of all, but --sees {scenario.sees} "
                "hides them in their sum; use --sees messages"
            )
        if summed and not self.defense.traits().reads_sum:
            raise Misfit(
                f"defense {rule} reads single messages, but --sees {scenario.sees} hides them in "
                "their sum; use --defense mean, or --sees messages"
            )
        needed = self.defense.rows_needed()
        if needed > scenario.per_round:
            f = getattr(self.defense, "f", None)
            prepared = f" with f = {f}" if f is not None else ""
            raise ConfigError(
                f"--defense {rule}{prepared} needs at least {needed} clients a round, got "
                f"--per-round {scenario.per_round}; lower f or sample more clients"
            )
        most = self.defense.most_rows()
        if most is not None and scenario.per_round > most:
            raise ConfigError(
                f"--defense {rule} looks at every subset of the rows and must have at most {most}, "
                f"got --per-round {scenario.per_round}; sample fewer clients or lower f"
            )
        if self.noises(scenario) > 1:
            raise Misfit(
                f"protocol {registry.split(scenario.protocol)[0]} adds noise of its own; use it "
                "with --mechanism none"
            )
        unproved = self.mechanism.misfit(self.protocol, self.defense)
        if unproved is not None:
            raise Misfit(f"mechanism {registry.split(scenario.mechanism)[0]} {unproved}")

    def _check_links(self, scenario: Scenario) -> None:
        """Raise unless what the rule needs is there, and means something here."""
        first, *others = self.links()
        traits = self.defense.traits()
        if any(link.traits().oracle for link in others):
            raise ConfigError(
                f"--defense {self.rule} must have oracle first, where nobody else sees the truth; "
                "use oracle+..."
            )
        if first.traits().oracle and any(getattr(link, "f", None) is not None for link in others):
            raise ConfigError(
                f"--defense {scenario.defense} must leave every f to the oracle; leave f out"
            )
        if traits.root and scenario.mechanism.partition(":")[0] != "none":
            raise Misfit(
                f"defense {self.rule} trains on clients' validation images as they are, which no "
                "mechanism protects; use --mechanism none"
            )
        if traits.shrinks and self.protocol.votes:
            raise Misfit(
                f"defense {self.rule} moves shares towards the middle and would be the plain vote "
                f"for {registry.split(scenario.protocol)[0]}, which takes the majority"
            )
