"""Options that commands share; those that are fields of a scenario are generated from them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand

from fedbench.core import registry

PLUGINS, DATA, CLIENTS = "What is tried", "Data and model", "Clients and training"
ADVERSARY, PRIVACY, RUNNING = "What the adversary may do", "What ε means", "Running"
PANELS = {  # every field of a scenario, where `--help` shows it
    PLUGINS: ("protocol", "attack", "defense", "mechanism"),
    DATA: ("dataset", "model", "partition", "data_seed"),
    CLIENTS: (
        *("clients", "per_round", "rounds", "epochs", "batch_size", "precision"),
        *("malicious", "declared", "server_checks", "defense_draw"),
    ),
    ADVERSARY: ("knowledge", "attack_from", "attack_until", "attack_every"),
    PRIVACY: ("delta", "adjacency", "sampling", "sees"),
    RUNNING: ("eval_every", "local_models", "seed"),
}
FIELDS = tuple(name for names in PANELS.values() for name in names)
SHORT = {"protocol": "-p", "attack": "-a", "defense": "-d", "mechanism": "-m"}

Seeds = Annotated[
    str,
    typer.Option(help="Seeds of the runs, comma-separated, e.g. 0,1,2.", rich_help_panel=RUNNING),
]
Threads = Annotated[
    int, typer.Option(help="Threads of torch in a process, on a CPU.", rich_help_panel=RUNNING)
]
Device = Annotated[
    str, typer.Option(help="Device to train on: auto, cpu or cuda.", rich_help_panel=RUNNING)
]
Executor = Annotated[
    str,
    typer.Option(
        help="How clients are trained: auto, loop, stacked, recorded or forked.",
        rich_help_panel=RUNNING,
    ),
]
Chunk = Annotated[
    int,
    typer.Option(
        help="Clients that a stacked launch trains; fewer need less memory.",
        rich_help_panel=RUNNING,
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        help="Processes that play runs; 0 is one per GPU, or one per --threads cores.",
        rich_help_panel=RUNNING,
    ),
]
RunTimeout = Annotated[
    float,
    typer.Option(
        help="Seconds after which a run is ended and counts as failed.", rich_help_panel=RUNNING
    ),
]
Isolate = Annotated[
    bool,
    typer.Option(
        "--isolate",
        help="Play attack and defense in processes of their own, which hold only what they are "
        "shown.",
        rich_help_panel=RUNNING,
    ),
]
Out = Annotated[
    Path, typer.Option(help="Folder for the files that are written.", rich_help_panel=RUNNING)
]
Format = Annotated[str, typer.Option(help="Output: table or json.", rich_help_panel=RUNNING)]


def scenario_command(
    *fields: str, more: Mapping[str, str] | None = None, **defaults: Any
) -> type[TyperCommand]:
    """Return a class for a command with an option for each of these fields of a scenario.

    The options are generated when the command is parsed or explained, so that `fedbench --help`
    does not import pydantic. The command finds all values in ``context.obj``.

    Args:
        fields: Names of the fields.
        more: Sentences that follow the description of a field.
        defaults: Defaults other than the scenario's; ``...`` makes the option required, a list
            lets it be repeated.
    """

    @cache
    def options() -> list[Any]:
        return _options(fields, more or {}, defaults)

    class ScenarioCommand(TyperCommand):
        """Command whose options are its own and those of fields of a scenario."""

        def get_params(self, ctx: Any) -> list[Any]:
            return [*options(), *super().get_params(ctx)]

        def invoke(self, ctx: Any) -> Any:
            ctx.obj = {name: ctx.params.pop(name) for name in fields}
            return super().invoke(ctx)

    return ScenarioCommand


def typed(context: typer.Context) -> dict[str, Any]:
    """Return the fields of the scenario that were typed, without those left at a default."""
    sources = {name: context.get_parameter_source(name) for name in context.obj}
    return {
        name: context.obj[name]
        for name, source in sources.items()
        if source is not None and source.name == "COMMANDLINE"
    }


def _options(
    fields: tuple[str, ...], more: Mapping[str, str], defaults: Mapping[str, Any]
) -> list[Any]:
    """Return click options for fields of a scenario, made by typer of a signature."""
    from fedbench.scenario_fields import ScenarioFields

    parameters = []
    for name in fields:
        field = ScenarioFields.model_fields[name]
        default = defaults.get(name, field.default)
        accepted, choices = _accepted(field.annotation)
        option = typer.Option(
            *(f"--{name.replace('_', '-')}", *filter(None, [SHORT.get(name)])),
            help=" ".join(f"{field.description} {more.get(name, '')}".split()),
            rich_help_panel=next(panel for panel, names in PANELS.items() if name in names),
            autocompletion=_completion(name, choices),
        )
        if isinstance(default, list):
            accepted = list[accepted]  # type: ignore[valid-type]
        hint = Annotated[accepted | None if default is None else accepted, option]
        kind = inspect.Parameter.KEYWORD_ONLY
        parameter = inspect.Parameter(name, kind, annotation=hint)
        parameters.append(parameter if default is ... else parameter.replace(default=default))

    def command(**_: Any) -> None: ...

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return list(typer.main.get_command(app).params)
