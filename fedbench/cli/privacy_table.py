"""What a mechanism costs before whose eyes, for a terminal and for a program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fedbench.cli.plain import finite
from fedbench.tables.columns import nats
from fedbench.tables.table import Line, cell, grid, listed

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fedbench.api import Sees
    from fedbench.core.errors import NoTheorem
    from fedbench.privacy.participation import PrivacyCost
    from fedbench.privacy.planning import PrivacyPlan

Prices = Mapping["Sees", "PrivacyCost | NoTheorem"]
LEAST = "◀"
HEADS = {
    "messages": "messages\nof each",
    "sum": "their\nsum",
    "hidden-sum": "sum, not\nwho sent",
    "model": "the\nmodels",
}
MEANINGS = {
    "randomized-response": "exact for bits, whatever they say: the Binomial tail",
    "rdp": "Rényi, the least of its terms per order, converted",
    "probit": "as one Gaussian mechanism on probits (B2)",
    "gaussian": "the Gaussian noise alone, exact",
    "prv": "the loss distribution of the sampled Gaussian, numerically (Opacus)",
    "secure-sum": "the sum of the honest clients' bits: the others' sampling hides one; "
    "robust rules that read single messages cannot run then",
    "sampled-sum": "the same, and nobody knows who takes part",
    "paper": "what the mechanism's own paper would claim",
}


@dataclass(frozen=True)
class Report:
    """For a terminal.

    Args:
        name: Of the mechanism, with its parameters.
        plan: What is priced.
        found: The price before everybody's eyes.
    """

    name: str
    plan: PrivacyPlan
    found: Prices

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plan = self.plan
        yield cell(self.name.replace(",", ", "), options, "bold")
        head = (
            f"ε at δ = {plan.delta:g} after {plan.rounds} rounds; "
            f"{plan.per_round} of {plan.clients} clients a round ({plan.sampling}), "
            f"one takes part in {plan.times}"
            f"{'' if plan.participations else ' (the mean)'}; d = {plan.dim}"
        )
        yield cell(head, options)
        yield ""
        heads = [HEADS[see] for see in self.found] if len(self.found) > 1 else ["ε"]
        yield grid("", ["bound", *heads], self._lines(), options)
        yield ""
        yield listed(self._said(), options)

    def _prices(self) -> dict[str, PrivacyCost]:
        from fedbench.core.errors import NoTheorem

        return {see: one for see, one in self.found.items() if not isinstance(one, NoTheorem)}

    def _lines(self) -> list[Line]:
        prices = self._prices()
        names = dict.fromkeys(name for one in prices.values() for name in one.bounds)

        def of(see: str, name: str) -> str:
            one = prices.get(see)
            if one is None or name not in one.bounds:
                return "-"
            return nats(one.bounds[name]) + (f" {LEAST}" if one.winner == name else "  ")

        body = [Line([name, *(of(see, name) for see in self.found)]) for name in names]
        claimed = [prices[see].paper if see in prices else None for see in self.found]
        if any(x is not None for x in claimed):
            body.append(Line(["paper", *("-" if x is None else f"{nats(x)}  " for x in claimed)]))
        return body

    def _said(self) -> list[tuple[str, str]]:
        from fedbench.core.errors import NoTheorem

        prices = self._prices()
        names = {name for one in prices.values() for name in one.bounds}
        if any(one.paper is not None for one in prices.values()):
            names.add("paper")
        said = [(name, text) for name, text in MEANINGS.items() if name in names]
        for see, one in self.found.items():
            if isinstance(one, NoTheorem):
                said.append((see, f"refused: {one}"))
            else:
                said.append(
                    (see if len(self.found) > 1 else "ε", f"{one.adjacency}; {one.sampler}")
                )
        said.append((LEAST, "the least bound, which is the ε that holds; natural logarithms"))
        return said


def as_json(name: str, plan: PrivacyPlan, found: Prices) -> str:
    """The same as JSON; what is not finite is null."""
    from fedbench.core.errors import NoTheorem

    prices = {
        see: {"refused": str(one)} if isinstance(one, NoTheorem) else asdict(one)
        for see, one in found.items()
    }
    return json.dumps(finite({"mechanism": name, "plan": asdict(plan), "prices": prices}), indent=1)
