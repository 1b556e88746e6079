"""``fedbench list`` and ``fedbench show``: the installed plug-ins, in their own words."""

import difflib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedbench.cli.docstrings import Doc, paragraphs, parameters, prose, singular
from fedbench.cli.options import chosen, explained
from fedbench.core import registry
from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.tables.export import document


@explained
def list_(kind: str | None = None, format: str = "table", into: Path | None = None) -> None:
    """List every installed plug-in, with a line on what it does, or the presets.

    Positional:
        kind: protocols, attacks, defenses, prefilters, mechanisms, datasets, models or partitions;
            by default all of them. Or presets: the tables of fedbench attack --preset.

    Options:
        format: Form of the output: table or json.
        into: Page of Markdown in which the catalogue of that kind is written anew; by default it
            is printed.
    """
    chosen("--format", format, ("table", "json"))
    if kind in ("preset", "presets"):
        list_presets(Console(), format)
    elif into is None and format == "json":
        from fedbench.cli.catalogue_data import listed

        print(document(listed([*registry.KINDS] if kind is None else [singular(kind)])))
    elif into is None:
        list_plugins(Console(), kind)
    elif kind is None:
        raise ConfigError("--into must be of one kind, got none; use fedbench list attacks")
    else:
        from fedbench.cli.catalogue_page import replace

        print(f"{into} {'has been written' if replace(kind, into) else 'is as it should be'}")


def list_plugins(console: Console, kind: str | None = None) -> None:
    """Print every plug-in with the first line of its docstring, or why it cannot be imported."""
    for each in registry.KINDS if kind is None else [singular(kind)]:
        pairs = []
        for name in registry.names(each):
            try:
                summary = styled(Doc.of(registry.plugin(each, name)).summary)
            except UnknownPluginError as error:
                summary = Text(str(error), style="red")
            pairs.append((Text(name, style="bold cyan"), summary))
        _section(console, f"{each}s", pairs, no_wrap=True)


def list_presets(console: Console, format: str = "table") -> None:
    """Print the name, the title and the number of runs of every preset."""
    from fedbench.cli.catalogue_data import presets

    entries = presets()
    if format == "json":
        print(document(entries))
        return
    rows = [
        (Text(entry["name"], style="bold cyan"), f"{entry['summary']} ({entry['runs']} runs)")
        for entry in entries
    ]
    _section(console, "presets", rows, no_wrap=True)


@explained
def show(name: str, kind: str | None = None, format: str = "table") -> None:
    """Show a plug-in: formula, parameters with defaults, what it must know, its paper.

    Positional:
        name: Name of a plug-in, for instance dyn-opt.

    Options:
        kind: Kind of the plug-in; by default all that have the name.
        format: Form of the output: table or json, a list with an object for each kind.
    """
    chosen("--format", format, ("table", "json"))
    if format == "json":
        from fedbench.cli.catalogue_data import shown

        bare, having = find_named(name, kind)
        print(document([shown(each, bare) for each in having]))
        return
    show_plugin(Console(), name, kind)


def show_plugin(console: Console, name: str, kind: str | None = None) -> None:
    """Print everything about a plug-in; about each of them where several kinds share the name."""
    bare, having = find_named(name, kind)
    for each in having:
        _show(console, each, bare, registry.plugin(each, bare))


def find_named(name: str, kind: str | None = None) -> tuple[str, list[str]]:
    """Return a plug-in's name and the kinds that have it; `ConfigError` if no kind has it."""
    bare, params = registry.split(name)
    if params:
        raise ConfigError(f"NAME must be a plug-in without parameters, got {name!r}; use {bare}")
    kinds = registry.KINDS if kind is None else [singular(kind)]
    having = [kind for kind in kinds if bare in registry.names(kind)]
    if not having:
        raise UnknownPluginError(f"{name!r} is not an installed {kind or 'plug-in'}; {_hint(bare)}")
    return bare, having


def _hint(name: str) -> str:
    kinds = {other: kind for kind in registry.KINDS for other in registry.names(kind)}
    for close in difflib.get_close_matches(name, kinds, n=1):
        return f"did you mean the {kinds[close]} {close!r}?"
    return "`fedbench list` shows what is"


def _show(console: Console, kind: str, name: str, plugin: type[Any]) -> None:
    from fedbench.cli.catalogue_page import facts

    doc = Doc.of(plugin)
    instance = registry.load(kind, name)
    console.print(Text.assemble((f"{kind} ", "dim"), (name, "bold cyan")))
    console.print(Text(prose(doc.summary) or "(no docstring)", style="bold"))
    console.print()
    for part, following in pairwise([*paragraphs(doc.body), ""]):
        item = part.startswith("- ")
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(*(["-", styled(part[2:])] if item else [styled(part)]))
        console.print(Padding(row, (0, 0, 0 if item and following.startswith("- ") else 1, 0)))
    if pairs := parameters(plugin, instance):
        _section(console, "parameters", pairs)
        text = registry.describe(name, instance, every=True)
        typed = f"--defense {text}+RULE" if kind == "prefilter" else f"--{kind} {text}"
        console.print(Text("as typed, with every default", style="bold"))
        console.print(f"  {typed}\n", highlight=False, markup=False, soft_wrap=True)
    _section(console, "what it needs and does", facts(kind, instance))
    _section(console, "paper", [(doc.references,)] if doc.references else [])
    _section(console, "code", [(f"{plugin.__module__}.{plugin.__qualname__}",)])


def _section(
    console: Console, title: str, rows: Sequence[tuple[str | Text, ...]], no_wrap: bool = False
) -> None:
    """Print a title and a table of terms with their texts, unless there are none."""
    if not rows:
        return
    console.print(Text(title, style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=no_wrap)
    for row in rows:
        table.add_row(*(styled(cell) if isinstance(cell, str) else cell for cell in row))
    console.print(Padding(table, (0, 0, 1, 2)))


def styled(text: str) -> Text:
    """Return a text for a terminal, with code in colour where there are colours."""
    shown = Text(prose(text), overflow="fold")
    shown.highlight_regex(r"`[^`]+`", "cyan")
    return shown
