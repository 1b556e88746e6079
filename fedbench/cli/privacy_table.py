"""Prices of a mechanism against several adversaries, for a terminal and for a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fedbench.tables.export import document
from fedbench.tables.numbers import nats
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid, listed

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
class PriceReport:
    """Price of a mechanism against every adversary, for a terminal.

    Args:
        name: Name of the mechanism, with its parameters.
        plan: Rounds and clients that are priced.
        prices: Price by what the adversary sees, or the reason why nobody can tell.
    """

    name: str
    plan: PrivacyPlan
    prices: Prices

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
        yield grid(self._table(), options)
        yield ""
        yield listed(self._terms(), options)

    def _costs(self) -> dict[str, PrivacyCost]:
        """Return the prices that a theorem gives."""
        from fedbench.core.errors import NoTheorem

        return {s: cost for s, cost in self.prices.items() if not isinstance(cost, NoTheorem)}

    def _table(self) -> Table:
        costs = [self._costs().get(see) for see in self.prices]
        names = dict.fromkeys(name for cost in costs if cost for name in cost.bounds)
        lines = [Line([name, *(_bound(cost, name) for cost in costs)]) for name in names]
        claims = [cost.paper if cost else None for cost in costs]
        if any(claim is not None for claim in claims):
            texts = ["-" if claim is None else f"{nats(claim)}  " for claim in claims]
            lines.append(Line(["paper", *texts]))
        headings = [HEADS[see] for see in self.prices] if len(self.prices) > 1 else ["ε"]
        return Table([Column(heading) for heading in ("bound", *headings)], lines)

    def _terms(self) -> list[tuple[str, str]]:
        costs = self._costs()
        names = {name for cost in costs.values() for name in cost.bounds}
        if any(cost.paper is not None for cost in costs.values()):
            names.add("paper")
        terms = [(name, text) for name, text in MEANINGS.items() if name in names]
        for see, refusal in self.prices.items():
            if see in costs:
                covers = f"{costs[see].adjacency}; {costs[see].sampler}"
                terms.append((see if len(self.prices) > 1 else "ε", covers))
            else:
                terms.append((see, f"refused: {refusal}"))
        return [*terms, (LEAST, "the least bound, which is the ε that holds; natural logarithms")]


def _bound(cost: PrivacyCost | None, name: str) -> str:
    if cost is None or name not in cost.bounds:
        return "-"
    return nats(cost.bounds[name]) + (f" {LEAST}" if cost.winner == name else "  ")


def as_json(name: str, plan: PrivacyPlan, prices: Prices) -> str:
    """Write the same as JSON; what is not finite is null."""
    from fedbench.core.errors import NoTheorem

    costs = {
        see: {"refused": str(cost)} if isinstance(cost, NoTheorem) else asdict(cost)
        for see, cost in prices.items()
    }
    return document({"mechanism": name, "plan": asdict(plan), "prices": costs})
