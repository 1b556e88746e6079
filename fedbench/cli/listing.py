"""``fedbench list``: the installed plug-ins, with a line on what each does."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="protocols, attacks, defenses, prefilters, mechanisms, datasets, models or "
            "partitions; by default all of them.",
            show_default=False,
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            help="Page of Markdown in which the catalogue of that kind is written anew; by default "
            "it is printed.",
        ),
    ] = None,
) -> None:
    """List every installed plug-in, with a line on what it does."""
    from fedbench.cli.catalogue_page import replace
    from fedbench.core.errors import ConfigError

    if into is None:
        list_plugins(Console(), kind)
    elif kind is None:
        raise ConfigError("--into must be of one kind, got none; use fedbench list attacks")
    else:
        print(f"{into} {'has been written' if replace(kind, into) else 'is as it should be'}")


def list_plugins(console: Console, kind: str | None = None) -> None:
    """Print every plug-in with the first line of its docstring, or why it cannot be imported."""
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    from fedbench.cli.plugin_docs import Doc, singular, styled
    from fedbench.core import registry
    from fedbench.core.errors import UnknownPluginError

    for each in registry.KINDS if kind is None else [singular(kind)]:
        console.print(Text(f"{each}s", style="bold"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        for name in registry.names(each):
            try:
                summary = styled(Doc.of(registry.plugin(each, name)).summary)
            except UnknownPluginError as error:
                summary = Text(str(error), style="red")
            table.add_row(Text(name, style="bold cyan"), summary)
        console.print(Padding(table, (0, 0, 1, 2)))
