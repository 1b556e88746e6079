"""``fedbench privacy``: the cost of a mechanism, before anybody runs it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import typer
from rich.console import Console, ConsoleOptions, Group

from fedbench.cli import options as opt
from fedbench.core import registry
from fedbench.core.choices import Adjacency, Cohorts, Sampling, Sees
from fedbench.core.errors import ConfigError, NoTheorem, require
from fedbench.core.files import writable
from fedbench.tables.export import document
from fedbench.tables.numbers import counted, nats
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import cell, grid, listed

if TYPE_CHECKING:
    from fedbench.privacy.accountants import PrivacyCost
    from fedbench.privacy.planning import PrivacyPlan

Prices = Mapping[Sees, "PrivacyCost | NoTheorem"]
WINNER_MARK = "◀"
COLUMN_HEADINGS = {
    "messages": "messages\nof each",
    "sum": "their\nsum",
    "hidden-sum": "sum, not\nwho sent",
    "model": "the\nmodels",
}
OBSERVERS = {
    "messages": "who sees the message of each client",
    "sum": "who sees the sum of the messages, and who took part",
    "hidden-sum": "who sees the sum of the messages alone",
    "model": "who sees the models that the server deploys",
}
WEAK_EPSILON = 10.0  # epsilon above which a claim says little
CHOICES = {"sees": Sees, "sampling": Sampling, "adjacency": Adjacency, "cohorts": Cohorts}
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


Command = opt.scenario_command(
    *("mechanism", "protocol", "clients", "per_round", "rounds", "epochs", "batch_size"),
    *("malicious", "cohorts", "delta", "adjacency", "sampling", "sees"),
    more={
        "mechanism": "By default, --protocol is priced.",
        "protocol": "One that adds noise itself; by default, --mechanism is priced.",
        "malicious": "They add no noise.",
        "sees": "The curve and --target-epsilon are about this one.",
    },
    mechanism=None,
    protocol=None,
    clients=100,
    rounds=100,
    epochs=1,
    batch_size=32,
    malicious=0.0,
)


@opt.explained
def privacy(
    context: typer.Context,
    dim: int = 10_000,
    samples: int = 600,
    participations: int | None = None,
    target_epsilon: float | None = None,
    format: opt.Format = "table",
    out: Path = Path("results"),
) -> None:
    """Price a mechanism before anybody runs it: ε by every bound that applies.

    There is a column for each observer: [bold]messages[/bold], each with its sender;
    [bold]sum[/bold], what a secure aggregation reveals; [bold]hidden-sum[/bold], the same without
    who took part; [bold]model[/bold], where a trusted server adds the noise.

    Clients and training:
        dim: Symbols of a message, d.
        samples: Training samples of a client, for dp-sgd.
        participations: Rounds of the client that takes part most often; by default the mean.

    What ε means:
        target_epsilon: Find the least noise that keeps ε below this; by default the noise is given.

    Running:
        out: Folder for the curve.
    """
    fields = context.obj
    if fields["mechanism"] is None and fields["protocol"] is None:
        sources = map(context.get_parameter_source, [*context.params, *fields])
        if any(source and source.name == "COMMANDLINE" for source in sources):
            raise ConfigError(
                "--mechanism or --protocol must say what is priced, got neither; see fedbench list "
                "mechanisms"
            )
        print(context.get_help())
        return

    opt.require_installed(opt.typed(context))
    from fedbench.figures.privacy_chart import compose
    from fedbench.figures.style import save
    from fedbench.privacy.planning import PrivacyPlan, calibrated, curve, prices

    for name, words in CHOICES.items():
        if fields[name] is not None:
            opt.chosen(f"--{name}", fields[name], get_args(words))
    stratified = fields.pop("cohorts") == "stratified"
    if stratified:
        require("--cohorts", "stratified", fields["sampling"] == "fixed", "random with poisson")
        fields["sampling"] = "stratified"
    opt.chosen("--format", format, ("table", "json"))
    mechanism, protocol, sees = (fields.pop(name) for name in ("mechanism", "protocol", "sees"))
    if mechanism is not None and protocol is not None:
        raise ConfigError(
            f"--mechanism and --protocol must be one of the two, got {mechanism!r} and "
            f"{protocol!r}; leave one out"
        )
    kind, text = ("protocol", protocol) if mechanism is None else ("mechanism", mechanism)
    plugin = registry.load(kind, text)
    view: Sees = sees or ("model" if getattr(plugin, "central", False) else "messages")
    unit = plugin.unit if kind == "mechanism" else "client"
    plan = PrivacyPlan(**fields, dim=dim, samples=samples, participations=participations)
    if target_epsilon is not None:
        plugin = calibrated(plugin, plan, view, target_epsilon)
        text = with_parameter(text, plugin.knob[0], getattr(plugin, plugin.knob[0]))
    costs = prices(plugin, plan)
    if sees is not None or all(isinstance(cost, NoTheorem) for cost in costs.values()):
        plan.price(plugin, view)  # refuses what nobody proved before anything is printed
    if format == "json":
        print(as_json(text, plan, costs, unit))
        return
    console = Console()
    console.print(report(text, plan, costs, unit, console.options))
    writable(out)
    path = out / "privacy.png"
    save(compose(curve(plugin, plan, view), text, plan, view), path)
    print(f"the curve is in {path}")


def with_parameter(text: str, name: str, value: float) -> str:
    """Return a plug-in as typed, with this value of a parameter.

    >>> with_parameter("dp-fedavg:z=1,clip=2", "z", 2.184)
    'dp-fedavg:z=2.184,clip=2'
    """
    plugin, given = registry.split(text)
    return registry.joined(plugin, given | {name: f"{value:g}"})


def report(
    name: str, plan: PrivacyPlan, prices: Prices, unit: str, options: ConsoleOptions
) -> Group:
    """Lay out the price before every adversary, or why nobody can tell it, for a terminal.

    ``unit`` is what the mechanism protects: all data of a ``client``, or one ``example`` of one.
    """
    mean = "" if plan.participations else " (the mean)"
    protects = "all data of a client"
    if unit == "example":
        steps = f"batches of {plan.batch_size}, {counted(plan.epochs, 'epoch')} a round"
        protects = f"one example of the {plan.samples} of a client ({steps})"
    head = (
        f"ε at δ = {plan.delta:g} after {counted(plan.rounds, 'round')}; "
        f"{plan.per_round} of {plan.clients} clients a round ({plan.sampling}), "
        f"one takes part in {plan.times}{mean}; d = {plan.dim}; protects {protects}"
    )
    costs = {see: cost for see, cost in prices.items() if not isinstance(cost, NoTheorem)}
    return Group(
        cell(name.replace(",", ", "), options, "bold"),
        cell(head, options),
        *("", grid(table(prices, costs), options)),
        *("", listed(terms(prices, costs), options)),
    )


def table(prices: Prices, priced: Mapping[Sees, PrivacyCost]) -> Table:
    """Make the table, with a line for each bound and one for the paper's claim."""
    costs = [priced.get(see) for see in prices]
    names = dict.fromkeys(name for cost in priced.values() for name in cost.bounds)
    lines = [Line([name, *(_bound(cost, name) for cost in costs)]) for name in names]
    claims = [cost.paper if cost else None for cost in costs]
    if any(claim is not None for claim in claims):
        texts = ["-" if claim is None else f"{nats(claim)}  " for claim in claims]
        lines.append(Line(["paper", *texts]))
    headings = [COLUMN_HEADINGS[see] for see in prices] if len(prices) > 1 else ["ε"]
    return Table([Column(heading) for heading in ("bound", *headings)], lines)


def terms(prices: Prices, costs: Mapping[Sees, PrivacyCost]) -> list[tuple[str, str]]:
    """Explain the bounds that are shown, and say what each price covers or why there is none."""
    names = {name for cost in costs.values() for name in cost.bounds}
    if any(cost.paper is not None for cost in costs.values()):
        names.add("paper")
    terms = [(name, text) for name, text in MEANINGS.items() if name in names]
    for see, refusal in prices.items():
        if see in costs:
            alone = len(prices) == 1
            less = ", or less" if alone and see == "messages" else ""
            cost = costs[see]
            covers = (f"{OBSERVERS[see]}{less}", cost.adjacency, cost.sampler, cost.note)
            terms.append(("ε" if alone else see, "; ".join(filter(None, covers))))
        else:
            terms.append((see, f"refused: {refusal}"))
    terms.append((WINNER_MARK, "the least bound, which is the ε that holds; natural logarithms"))
    if any(cost.epsilon > WEAK_EPSILON for cost in costs.values()):
        odds = f"e^{WEAK_EPSILON:g}, {math.exp(WEAK_EPSILON):,.0f} times"
        weak = f"every ε above {WEAK_EPSILON:g}: odds may change by more than {odds}"
        terms.append(("weak", f"{weak}, so little is promised"))
    return terms


def _bound(cost: PrivacyCost | None, name: str) -> str:
    if cost is None or name not in cost.bounds:
        return "-"
    return nats(cost.bounds[name]) + (f" {WINNER_MARK}" if cost.winner == name else "  ")


def as_json(name: str, plan: PrivacyPlan, prices: Prices, unit: str) -> str:
    """Write the same as JSON; what is not finite is null, and an empty note is left out."""
    costs = {
        see: {"refused": str(cost)}
        if isinstance(cost, NoTheorem)
        else {name: value for name, value in asdict(cost).items() if name != "note" or value}
        for see, cost in prices.items()
    }
    return document({"mechanism": name, "unit": unit, "plan": asdict(plan), "prices": costs})
