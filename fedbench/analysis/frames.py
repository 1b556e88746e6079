"""Tidy data frames of records: a row for each run, or for each round of a run."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence
from types import ModuleType, UnionType
from typing import TYPE_CHECKING, Any

from fedbench.core.errors import ConfigError
from fedbench.experiment.measurements import Kind, Round
from fedbench.experiment.record import Record
from fedbench.results import extract
from fedbench.results.fields import NAMES, RUN, SEEDS, SETTINGS, Entry, Fields
from fedbench.tables.export import arrow_table

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

_KIND: dict[Any, Kind] = {int: "whole", bool: "yes", float: "number"}
_RUN: Fields = {"id": "name", **NAMES, **SETTINGS, **SEEDS}


def _round_fields() -> dict[str, tuple[Kind, bool]]:
    """Return the kind of every number of a round, and whether it may be missing."""
    fields: dict[str, tuple[Kind, bool]] = {}
    for name, hint in typing.get_type_hints(Round).items():
        several = typing.get_origin(hint) is UnionType
        types = typing.get_args(hint) if several else (hint,)
        if types[0] in _KIND:
            fields[name] = _KIND[types[0]], type(None) in types
    return fields


def of_runs(records: Iterable[Record]) -> tuple[list[Entry], Fields, set[str]]:
    """Return a row for each record, the kind of each column, and the columns that may be empty.

    The columns are those of ``fedbench results --each run``; shares are in [0, 1].
    """
    rows = [extract.entry(record) for record in records]
    return rows, dict(RUN), {name for name in RUN if extract.optional(name)}


def of_rounds(records: Iterable[Record]) -> tuple[list[Entry], Fields, set[str]]:
    """Return a row for each round: the run's id and scenario, and the round's numbers.

    ``sampled`` clients, of which ``sampled_malicious`` are the adversary's, took part. What a round
    holds besides numbers, as the notes of an attack, is left to `Record.rounds`.
    """
    numbers = _round_fields()
    rows = []
    for record in records:
        entry = extract.entry(record)
        run = {name: entry[name] for name in _RUN}
        rows += [
            run | {"sampled": len(r.clients)} | {_column(n): getattr(r, n) for n in numbers}
            for r in record.rounds
        ]
    fields: Fields = {**_RUN, "sampled": "whole"}
    fields |= {_column(name): kind for name, (kind, _) in numbers.items()}
    empty = {name for name in _RUN if extract.optional(name)}
    return rows, fields, empty | {_column(n) for n, (_, optional) in numbers.items() if optional}


def _column(name: str) -> str:
    """Return the column of a round's number: ``malicious`` of a scenario is a share."""
    return f"sampled_{name}" if name in _RUN else name


def to_arrow(rows: Sequence[Entry], fields: Fields) -> pyarrow.Table:
    """Return an Arrow table; `ConfigError` without pyarrow."""
    imported("pyarrow", "to_arrow()")
    return arrow_table(rows, list(fields), fields)


def to_pandas(rows: Sequence[Entry], fields: Fields, empty: set[str]) -> pandas.DataFrame:
    """Return a DataFrame; whole numbers and truths that may be missing are pandas' nullable ones.

    Lists, as that of the flags, are objects. `ConfigError` without pandas.
    """
    pandas = imported("pandas", "to_pandas()")
    whole = {True: "Int64", False: "int64"}
    truth = {True: "boolean", False: "bool"}
    columns = {}
    for name, kind in fields.items():
        dtype = {
            "whole": whole[name in empty],
            "yes": truth[name in empty],
            "texts": "object",
            **dict.fromkeys(("number", "share", "points"), "float64"),
        }.get(kind, "string")
        columns[name] = pandas.Series([row[name] for row in rows], dtype=dtype)
    return pandas.DataFrame(columns)


def to_polars(rows: Sequence[Entry], fields: Fields) -> polars.DataFrame:
    """Return a polars DataFrame; `ConfigError` without polars."""
    polars = imported("polars", "to_polars()")
    types = dict.fromkeys(("number", "share", "points"), polars.Float64)
    types |= {"whole": polars.Int64, "yes": polars.Boolean, "texts": polars.List(polars.String)}
    schema = {name: types.get(kind, polars.String) for name, kind in fields.items()}
    return polars.DataFrame({name: [row[name] for row in rows] for name in fields}, schema)


def imported(name: str, what: str) -> ModuleType:
    """Import an optional package; `ConfigError` says what needs it and how to install it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{what} needs {name}, which is not installed; pip install {name}"
        ) from error
