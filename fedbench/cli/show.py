"""``fedbench show``: what a plug-in does, read from its docstring, its fields and its class."""

import difflib
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedbench.cli.plugin_docs import Doc, paragraphs, parameters, prose, singular, styled
from fedbench.core import registry
from fedbench.core.errors import ConfigError, UnknownPluginError


def show(
    name: Annotated[str, typer.Argument(help="Name of a plug-in, for instance dyn-opt.")],
    kind: Annotated[
        str | None, typer.Option(help="Kind of the plug-in; by default all that have the name.")
    ] = None,
) -> None:
    """Show a plug-in: formula, parameters with defaults, what it must know, its paper."""
    show_plugin(Console(), name, kind)


def show_plugin(console: Console, name: str, kind: str | None = None) -> None:
    """Print everything about a plug-in; about each of them where several kinds share the name.

    Raises:
        UnknownPluginError: nothing answers to the name, or its import fails.
        ConfigError: the name comes with parameters.
    """
    bare, params = registry.split(name)
    if params:
        raise ConfigError(f"NAME must be a plug-in without parameters, got {name!r}; use {bare}")
    kinds = registry.KINDS if kind is None else [singular(kind)]
    having = [kind for kind in kinds if bare in registry.names(kind)]
    if not having:
        raise UnknownPluginError(f"{name!r} is not an installed {kind or 'plug-in'}; {_hint(bare)}")
    for each in having:
        _show(console, each, bare, registry.plugin(each, bare))


def _hint(name: str) -> str:
    kinds = {other: kind for kind in registry.KINDS for other in registry.names(kind)}
    close = difflib.get_close_matches(name, kinds, n=1)
    if not close:
        return "`fedbench list` shows what is"
    return f"did you mean the {kinds[close[0]]} {close[0]!r}?"


def _show(console: Console, kind: str, name: str, plugin: type[Any]) -> None:
    from fedbench.cli.plugin_facts import facts
    from fedbench.core.blame import Hook

    doc = Doc.of(plugin)
    with Hook(plugin, "__init__"):
        instance = plugin()
    console.print(Text.assemble((f"{kind} ", "dim"), (name, "bold cyan")))
    console.print(Text(prose(doc.summary) or "(no docstring)", style="bold"))
    console.print()
    _body(console, paragraphs(doc.body))
    if pairs := parameters(plugin, instance):
        _section(console, "parameters", pairs)
        text = registry.describe(name, instance)
        typed = f"--defense {text}+RULE" if kind == "prefilter" else f"--{kind} {text}"
        console.print(Text("as typed, with every default", style="bold"))
        console.print(f"  {typed}\n", highlight=False, markup=False, soft_wrap=True)
    _section(console, "what it needs and does", facts(kind, instance))
    _section(console, "paper", [(doc.references, "")] if doc.references else [])
    _section(console, "code", [(f"{plugin.__module__}.{plugin.__qualname__}", "")])


def _body(console: Console, parts: list[str]) -> None:
    """Print paragraphs, a blank line after each but those inside a list."""
    for part, following in zip(parts, [*parts[1:], ""], strict=False):
        item = part.startswith("- ")
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(*(["-", styled(part[2:])] if item else [styled(part)]))
        console.print(Padding(row, (0, 0, 0 if item and following.startswith("- ") else 1, 0)))


def _section(console: Console, title: str, pairs: list[tuple[str, str]]) -> None:
    """Print a title and a table of terms with their texts, unless there are none."""
    if not pairs:
        return
    console.print(Text(title, style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for pair in pairs:
        table.add_row(*(styled(text) for text in pair if text))
    console.print(Padding(table, (0, 0, 1, 2)))
