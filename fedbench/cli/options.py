"""Options of commands: those that several share, those of a scenario, and their texts."""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from fedbench.cli.docstrings import entries, sections
from fedbench.core import registry
from fedbench.core.choices import ALL, INSTALLED, STRONGEST
from fedbench.core.errors import ONE_OF_THEM, ConfigError, UnknownPluginError, require
from fedbench.core.presets import preset_names
from fedbench.models import adapters

TRIED = "What is tried"
CLIENTS = "Clients and training"
PRIVACY = "What ε means"
RUNNING = "Running"
PANELS = {  # where `--help` shows a field of a scenario
    TRIED: ("protocol", "attack", "defense", "mechanism"),
    "Data and model": ("dataset", "model", "adapter", "partition", "split", "data_seed"),
    CLIENTS: (
        *("clients", "per_round", "rounds", "epochs", "batch_size", "augment", "precision"),
        *("malicious", "cohorts", "availability", "declared", "server_checks", "defense_draw"),
    ),
    "What the adversary may do": ("knowledge", "attack_from", "attack_until", "attack_every"),
    PRIVACY: ("delta", "adjacency", "sampling", "sees"),
    RUNNING: ("eval_every", "local_models", "seed"),
}
REPEAT = "for several repeat the option, each with one name"
FIELDS = tuple(name for names in PANELS.values() for name in names)
SHORT = {"protocol": "-p", "attack": "-a", "defense": "-d", "mechanism": "-m", "input": "-i"}
Name = TypeVar("Name", bound=str)
Command = TypeVar("Command", bound=Callable[..., Any])


def option(help: str, *names: str, panel: str = RUNNING) -> Any:
    """Return an option that `--help` shows on this panel; without names it has the parameter's."""
    return typer.Option(*names, help=help, rich_help_panel=panel)


def _plugins() -> list[str]:
    return sorted({name for kind in registry.KINDS for name in registry.names(kind)})


def _kinds() -> list[str]:
    return [f"{kind}s" for kind in registry.KINDS]


COMPLETED = {  # words that the shell completes a parameter of a command with
    "attack.preset": preset_names,
    "list_.kind": _kinds,
    "show.name": _plugins,
    "show.kind": lambda: list(registry.KINDS),
}


def completion(words: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Return a function of what was typed: the words that begin with it."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


def _out(text: str) -> Path:
    """Read the value of --out; an empty text, of an unset variable, is not the current folder."""
    if not text:
        raise ConfigError("--out must be a path, got ''; use . for the current folder")
    return Path(text)


def spelled(name: str) -> list[str]:
    """Return what is typed for a parameter.

    >>> spelled("protocol"), spelled("dry_run")
    (['--protocol', '-p'], ['--dry-run'])
    """
    return [f"--{name.replace('_', '-')}", *([SHORT[name]] if name in SHORT else [])]


def explained(command: Command) -> Command:
    """Give each parameter of a command its text in the docstring, whose sections are panels.

    What stands in the section ``Positional`` is an argument, not an option.
    """
    help, panels = sections(inspect.getdoc(command) or "", titles=r"\S.*")
    hints = get_type_hints(command, include_extras=True)
    for panel, section in panels.items():
        for name, text in entries(section).items():
            shown = option(text, *spelled(name), panel=panel)
            if panel == "Positional":
                shown = typer.Argument(help=text)
            words = COMPLETED.get(f"{command.__name__}.{name}")
            shown.autocompletion = words and completion(words)
            if name == "out":
                shown.parser = _out
                shown.metavar = "<path>"  # what typer itself shows for a path
            hints[name] = Annotated[hints[name], shown]
    command.__annotations__ = hints
    # the terminal wraps each paragraph at its own width
    command.__doc__ = re.sub(r"(?<!\n)\n(?!\n)", " ", help)
    return command


Device = Annotated[str, option("Device to train on: auto, cpu, cuda, or a backend of torch.")]
Executor = Annotated[
    str,
    option(
        "How clients are trained: auto, loop, stacked, padded or recorded; ray, or ray:padded: by "
        "the processes of the Ray cluster of RAY_ADDRESS, else of one that starts here."
    ),
]
Chunk = Annotated[
    int, option("Clients of a stacked launch or a cluster's task; fewer need less memory.")
]
Workers = Annotated[
    int, option("Runs at the same time; 0 is up to 4 per GPU, or one per --threads cores.")
]
Threads = Annotated[int, option("Threads of torch in each process, on a CPU.")]
RunTimeout = Annotated[float, option("Seconds after which a run is ended and counts as failed.")]
Isolate = Annotated[
    bool,
    option(
        "Play attack and defense in processes of their own, which hold only what they are shown.",
        "--isolate",
    ),
]
Canonical = Annotated[
    bool,
    option(
        "Compute as every processor can, on one thread, so that records are equal on all of them.",
        "--canonical",
    ),
]
KeepStates = Annotated[
    Path | None,
    option("Folder that keeps the states of canonical runs, for spot checks; by default none."),
]
SAVE_MODEL_HELP = "Keep the deployed model of every run beside its record, as safetensors."
SaveModel = Annotated[bool, option(SAVE_MODEL_HELP, "--save-model")]
CHECKPOINT_HELP = (
    "Interval at which a run keeps what it needs to go on after it was killed: every=N rounds, "
    "every=Nmin or none; by default every=10min."
)
Checkpoint = Annotated[str | None, option(CHECKPOINT_HELP, "--checkpoint")]
TRACK_HELP = "Tracker that follows the runs: mlflow, tensorboard or wandb. Repeat; by default none."
Track = Annotated[list[str] | None, option(TRACK_HELP, "--track")]
Format = Annotated[str, option("Form of the output: table or json.")]


def scenario_command(
    *fields: str, more: Mapping[str, str] | None = None, **defaults: Any
) -> type[TyperCommand]:
    """Return a class for commands that have an option for each of these fields of a scenario.

    The options are generated when the command is parsed or explained, so that `fedbench --help`
    does not import pydantic. The command finds the values of all of them in ``context.obj``. The
    help adds ``more`` to the description of a field. A default of ``...`` makes an option required;
    one whose default is a list can be repeated.
    """

    @cache
    def options() -> list[Any]:
        return _generated(fields, more or {}, defaults)

    class ScenarioCommand(TyperCommand):
        """Command with generated options before its own."""

        def get_params(self, ctx: Any) -> list[Any]:
            """Return the parameters of the command."""
            return [*options(), *super().get_params(ctx)]

        def invoke(self, ctx: Any) -> Any:
            """Call the command, with the values of the generated options in the context."""
            values = {name: ctx.params.pop(name) for name in fields}
            # Older versions of typer make a list of repeated options only for parameters.
            ctx.obj = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
            return super().invoke(ctx)

    return ScenarioCommand


def typed(context: typer.Context) -> dict[str, Any]:
    """Return the generated options that were typed, without those left at their default."""
    sources = {name: context.get_parameter_source(name) for name in context.obj}
    given = [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name: context.obj[name] for name in given}


def require_installed(given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a name of no plug-in or adapter, before anything imports torch."""
    for kind in (kind for kind in registry.KINDS if kind in given):
        repeatable = isinstance(given[kind], list)
        for text in given[kind] if repeatable else [given[kind]]:
            try:
                _require_named(kind, text)
            except UnknownPluginError as error:
                if not repeatable:
                    raise
                raise UnknownPluginError(str(error).replace(ONE_OF_THEM, REPEAT)) from error
    adapters.parse(given.get("adapter", adapters.NONE))


def require_scenario(given: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for values of no scenario, beside defaults, before torch is imported."""
    from fedbench.experiment.scenario import Scenario

    Scenario.of(**{name: x for name, x in given.items() if not isinstance(x, list)})


def _require_named(kind: str, text: str) -> None:
    """Raise `ConfigError` for a text whose plug-in, or a link of whose chain, is not installed."""
    several = (registry.OWN, ALL, INSTALLED, STRONGEST)
    *before, last = registry.links(text) if kind == "defense" else [text]
    if text.isprintable():  # other errors are told where the plug-in is loaded
        name, _ = registry.split(last, f"--{kind}")
        if name not in (*several, *registry.names(kind)):
            registry.plugin(kind, name)  # refuses it
        for link in before:
            name = link.partition(":")[0].strip()
            if not any(registry.points_of(either, name) for either in (kind, "prefilter")):
                registry.plugin("prefilter", name)  # refuses it, or this process has it


def _generated(
    fields: tuple[str, ...], more: Mapping[str, str], defaults: Mapping[str, Any]
) -> list[Any]:
    """Return an option for each field of a scenario, made by typer from a signature."""
    from fedbench.experiment.scenario import Scenario

    def command(**_: Any) -> None: ...

    parameters = []
    for name in fields:
        field = Scenario.model_fields[name]
        default = defaults.get(name, field.default)
        accepted = _accepted(field.annotation)
        choices = [word for word in accepted if isinstance(word, str)]
        option = typer.Option(
            *spelled(name),
            help=" ".join(f"{field.description} {more.get(name, '')}".split()),
            rich_help_panel=next(panel for panel, names in PANELS.items() if name in names),
            autocompletion=_completion(name, choices),
        )
        kind = str if choices else accepted[0]
        hint = list[kind] if isinstance(default, list) else kind | None  # type: ignore[valid-type]
        default = inspect.Parameter.empty if default is ... else default
        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        parameters.append(parameter.replace(annotation=Annotated[hint, option]))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(command)
    return list(typer.main.get_command(app).params)


def _accepted(annotation: Any) -> tuple[Any, ...]:
    """Return the type of a field, or the words that it chooses from; None is left out."""
    parts = tuple(part for part in get_args(annotation) if part is not NoneType)
    return _accepted(parts[0]) if len(parts) == 1 else parts or (annotation,)


def _completion(name: str, choices: list[str]) -> Callable[[str], list[str]] | None:
    """Return what the shell completes a field with: words, or names of plug-ins."""
    if not choices and name not in registry.KINDS:
        return None

    return completion(lambda: choices or registry.names(name))


def chosen(option: str, value: str, words: tuple[Name, ...]) -> Name:
    """Return the word that was typed; `ConfigError` if it is none of these."""
    require(option, value, value in words, f"{', '.join(words[:-1])} or {words[-1]}")
    return words[words.index(value)]


def parse_seeds(text: str) -> tuple[int, ...]:
    """Return distinct integers in 0 .. 2**63 - 1, comma-separated.

    >>> parse_seeds("0,1,2")
    (0, 1, 2)
    """
    words = [word.strip() for word in text.split(",")]
    digits = all(word.isascii() and word.isdigit() for word in words)
    require("--seeds", text, digits, "distinct integers like 0,1,2")
    short = all(len(word) < 20 for word in words)  # int() of many digits takes long, or fails
    seeds = tuple(int(word) for word in words) if short else ()
    require("--seeds", text, short and max(seeds) < 2**63, "integers in 0 .. 2**63 - 1")
    require("--seeds", text, len(set(seeds)) == len(seeds), "distinct integers like 0,1,2")
    return seeds


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Give torch so many threads inside the block, and keep freed memory as workers do."""
    import torch

    from fedbench.executors.malloc import keep_memory

    require("--threads", threads, threads >= 1, ">= 1")
    require("--threads", threads, threads <= 1024, "<= 1024")
    keep_memory()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
