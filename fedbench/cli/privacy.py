"""``fedbench privacy``: the cost of a mechanism, before anybody runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console

from fedbench.cli import options as opt
from fedbench.core.choices import Adjacency, Sampling, Sees

if TYPE_CHECKING:
    from fedbench.privacy.planning import PrivacyPlan

Command = opt.scenario_command(
    *("mechanism", "protocol", "clients", "per_round", "rounds", "epochs", "batch_size"),
    *("malicious", "delta", "adjacency", "sampling", "sees"),
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


def privacy(
    context: typer.Context,
    dim: Annotated[int, opt.option("Symbols of a message, d.", panel=opt.CLIENTS)] = 10_000,
    samples: Annotated[
        int,
        opt.option("Training samples of a client, for dp-sgd.", panel=opt.CLIENTS),
    ] = 600,
    participations: Annotated[
        int | None,
        opt.option(
            "Rounds of the client that takes part most often; by default the mean.",
            panel=opt.CLIENTS,
        ),
    ] = None,
    target_epsilon: Annotated[
        float | None,
        opt.option(
            "Find the least noise that keeps ε below this; by default the noise is given.",
            panel=opt.PRIVACY,
        ),
    ] = None,
    format: opt.Format = "table",
    out: Annotated[Path, opt.option("Folder for the curve.")] = Path("results"),
) -> None:
    """Price a mechanism before anybody runs it: ε by every bound that applies.

    Who sees single [bold]messages[/bold] knows their senders; a secure aggregation shows their
    [bold]sum[/bold]; a [bold]hidden-sum[/bold] also hides who took part; the noise of a trusted
    server protects before who sees the [bold]model[/bold].
    """
    fields = context.obj
    if fields["mechanism"] is None and fields["protocol"] is None:
        print(context.get_help())
        return

    from fedbench.core import registry
    from fedbench.core.errors import ConfigError
    from fedbench.privacy.planning import PrivacyPlan, calibrated

    for name, words in (("sees", Sees), ("sampling", Sampling), ("adjacency", Adjacency)):
        if fields[name] is not None:
            opt.chosen(f"--{name}", fields[name], get_args(words))
    opt.chosen("--format", format, ("table", "json"))
    mechanism, protocol, sees = (fields.pop(name) for name in ("mechanism", "protocol", "sees"))
    if mechanism is not None and protocol is not None:
        raise ConfigError("--protocol is for protocols that add noise themselves; leave it out")
    kind, text = ("protocol", protocol) if mechanism is None else ("mechanism", mechanism)
    plugin = registry.load(kind, text)
    view: Sees = sees or ("model" if getattr(plugin, "central", False) else "messages")
    plan = PrivacyPlan(**fields, dim=dim, samples=samples, participations=participations)
    if target_epsilon is not None:
        plugin = calibrated(plugin, plan, view, target_epsilon)
        text = with_parameter(text, plugin.knob[0], getattr(plugin, plugin.knob[0]))
    show(Console(), text, plugin, plan, view, format, out)


def with_parameter(text: str, name: str, value: float) -> str:
    """Return a plug-in as typed, with this value of a parameter.

    >>> with_parameter("dp-fedavg:z=1,clip=2", "z", 2.184)
    'dp-fedavg:z=2.184,clip=2'
    """
    from fedbench.core.registry import split

    plugin, given = split(text)
    return plugin + ":" + ",".join(f"{k}={v}" for k, v in (given | {name: f"{value:g}"}).items())


def show(
    console: Console, name: str, plugin: Any, plan: PrivacyPlan, sees: Sees, format: str, out: Path
) -> None:
    """Print the prices, and draw how they grow over the rounds."""
    from fedbench.cli import privacy_table
    from fedbench.core.files import writable
    from fedbench.figures.privacy_chart import draw
    from fedbench.privacy.planning import curve, prices

    costs = prices(plugin, plan)
    if format == "json":
        print(privacy_table.as_json(name, plan, costs))
        return
    console.print(privacy_table.PriceReport(name, plan, costs))
    writable(out)
    path = out / "privacy.png"
    draw(curve(plugin, plan, sees), name, plan, sees, path)
    console.print(f"the curve is in {path}", highlight=False, soft_wrap=True)
