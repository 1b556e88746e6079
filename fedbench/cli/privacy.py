"""``fedbench privacy``: what a mechanism costs, before anybody runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from fedbench.cli import figure5

if TYPE_CHECKING:
    from rich.console import Console

    from fedbench.api import Adjacency, Sees
    from fedbench.privacy.planning import Plan

app = typer.Typer()
app.command("figure5")(figure5.figure5)
_WHAT, _ROUNDS, _CLAIM, _HOW = "What is priced", "Rounds and clients", "The claim", "Output"
VIEWS: tuple[Sees, ...] = ("messages", "sum", "hidden-sum", "model")
SAMPLINGS: tuple[Literal["fixed", "poisson"], ...] = ("fixed", "poisson")
ADJACENCIES: tuple[Adjacency, ...] = ("replace-one", "zero-out", "add-remove")
Name = TypeVar("Name", bound=str)


@app.callback(invoke_without_command=True)
def privacy(
    context: typer.Context,
    mechanism: Annotated[
        str | None,
        typer.Option(
            "--mechanism", "-m", help="e.g. mask-gaussian:sigma=0.2", rich_help_panel=_WHAT
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option("--protocol", "-p", help="one that adds noise itself", rich_help_panel=_WHAT),
    ] = None,
    dim: Annotated[
        int, typer.Option(help="symbols of a message, d", rich_help_panel=_WHAT)
    ] = 10_000,
    samples: Annotated[
        int, typer.Option(help="of a client, for dp-sgd", rich_help_panel=_WHAT)
    ] = 600,
    batch_size: Annotated[
        int, typer.Option(help="of a local step, for dp-sgd", rich_help_panel=_WHAT)
    ] = 32,
    epochs: Annotated[
        int, typer.Option(help="of a client in a round, for dp-sgd", rich_help_panel=_WHAT)
    ] = 1,
    rounds: Annotated[int, typer.Option(rich_help_panel=_ROUNDS)] = 100,
    clients: Annotated[int, typer.Option(help="all of them, N", rich_help_panel=_ROUNDS)] = 100,
    per_round: Annotated[
        int, typer.Option(help="sampled in a round, n", rich_help_panel=_ROUNDS)
    ] = 10,
    participations: Annotated[
        int | None,
        typer.Option(
            help="rounds of the client that takes part most often; default: the mean",
            rich_help_panel=_ROUNDS,
        ),
    ] = None,
    malicious: Annotated[
        float, typer.Option(help="share that adds no noise", rich_help_panel=_ROUNDS)
    ] = 0.0,
    sampling: Annotated[
        str, typer.Option(help="fixed, or poisson (by coins)", rich_help_panel=_ROUNDS)
    ] = "fixed",
    delta: Annotated[float, typer.Option(help="of (ε, δ)", rich_help_panel=_CLAIM)] = 1e-5,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="replace-one, zero-out or add-remove; default: the mechanism's own",
            rich_help_panel=_CLAIM,
        ),
    ] = None,
    sees: Annotated[
        str | None,
        typer.Option(
            help="whose ε is drawn and calibrated: messages, sum, hidden-sum or model; default: "
            "messages, or model where the noise is the server's",
            rich_help_panel=_CLAIM,
        ),
    ] = None,
    target_epsilon: Annotated[
        float | None, typer.Option(help="find the noise that it takes", rich_help_panel=_CLAIM)
    ] = None,
    format: Annotated[str, typer.Option(help="table or json", rich_help_panel=_HOW)] = "table",
    out: Annotated[Path, typer.Option(help="folder for the curve", rich_help_panel=_HOW)] = Path(
        "results"
    ),
) -> None:
    """What a mechanism costs before anybody runs it: ε by every bound that applies.

    Who sees single [bold]messages[/bold] knows their senders; a secure aggregation shows their
    [bold]sum[/bold]; a [bold]hidden-sum[/bold] also hides who took part; the noise of a trusted
    server protects before who sees the [bold]model[/bold].
    """
    if context.invoked_subcommand is not None:
        return
    if mechanism is None and protocol is None:
        print(context.get_help())
        return
    from rich.console import Console

    from fedbench.core import registry
    from fedbench.core.errors import ConfigError
    from fedbench.privacy.planning import Plan, calibrated

    seen = None if sees is None else chosen("--sees", sees, VIEWS)
    sampled = chosen("--sampling", sampling, SAMPLINGS)
    neighbours = None if adjacency is None else chosen("--adjacency", adjacency, ADJACENCIES)
    chosen("--format", format, ("table", "json"))
    if mechanism is not None and protocol is not None:
        raise ConfigError("--protocol is for protocols that add noise themselves; leave it out")
    kind, text = ("protocol", protocol) if mechanism is None else ("mechanism", mechanism)
    assert text is not None
    plugin = registry.load(kind, text)
    seen = seen or ("model" if getattr(plugin, "central", False) else "messages")
    plan = Plan(
        rounds=rounds,
        clients=clients,
        per_round=per_round,
        participations=participations,
        delta=delta,
        dim=dim,
        samples=samples,
        batch_size=batch_size,
        epochs=epochs,
        malicious=malicious,
        sampling=sampled,
        adjacency=neighbours,
    )
    if target_epsilon is not None:
        plugin = calibrated(plugin, plan, seen, target_epsilon)
        text = with_parameter(text, plugin.knob[0], getattr(plugin, plugin.knob[0]))
    show(Console(), text, plugin, plan, seen, format, out)


def chosen(option: str, typed: str, names: tuple[Name, ...]) -> Name:
    """The one of these names that was typed."""
    from fedbench.core.errors import require

    require(option, typed, typed in names, f"{', '.join(names[:-1])} or {names[-1]}")
    return names[names.index(typed)]


def with_parameter(text: str, name: str, value: float) -> str:
    """A plug-in as typed, with this parameter.

    >>> with_parameter("dp-fedavg:z=1,clip=2", "z", 2.184)
    'dp-fedavg:z=2.184,clip=2'
    """
    from fedbench.core.registry import split

    plugin, given = split(text)
    return plugin + ":" + ",".join(f"{k}={v}" for k, v in (given | {name: f"{value:g}"}).items())


def show(
    console: Console, name: str, plugin: Any, plan: Plan, sees: Sees, format: str, out: Path
) -> None:
    """The prices on stdout, the curve as a picture."""
    from fedbench.cli import privacy_table
    from fedbench.core.files import writable
    from fedbench.figures.privacy_chart import draw
    from fedbench.privacy.planning import curve, prices

    found = prices(plugin, plan)
    if format == "json":
        print(privacy_table.as_json(name, plan, found))
        return
    console.print(privacy_table.Report(name, plan, found))
    writable(out)
    path = out / "privacy.png"
    draw(curve(plugin, plan, sees), name, plan, sees, path)
    console.print(f"the curve is in {path}", highlight=False, soft_wrap=True)
