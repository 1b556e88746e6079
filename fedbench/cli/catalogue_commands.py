"""``fedbench list`` and ``fedbench show``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def list_(
    kind: Annotated[
        str | None,
        typer.Argument(
            help="protocols, attacks, defenses, prefilters, mechanisms, datasets, models or "
            "partitions; all of them by default"
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(help="a page of Markdown whose catalogue of that kind is written anew"),
    ] = None,
) -> None:
    """Every installed plug-in, with a line on what it does."""
    from fedbench.cli.catalogue import list_plugins
    from fedbench.core.errors import ConfigError

    if into is not None:
        from fedbench.cli.catalogue_page import replace

        if kind is None:
            raise ConfigError("--into must be of one kind, got none; use fedbench list attacks")
        changed = replace(kind, into)
        print(f"{into} {'has been written' if changed else 'is as it should be'}")
        return
    list_plugins(Console(), kind)


def show(
    name: Annotated[str, typer.Argument(help="a plug-in, for instance dyn-opt")],
    kind: Annotated[str | None, typer.Option(help="if several kinds have that name")] = None,
) -> None:
    """What a plug-in does: formula, parameters with defaults, what it must know, its paper."""
    from fedbench.cli.catalogue import show_plugin

    show_plugin(Console(), name, kind)
