"""Entries of a store for other programs: numbers are numbers, and what is not there is empty."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.results.fields import Entry, Fields

FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(entries: Sequence[Entry], columns: Sequence[str]) -> bytes:
    """A head, then a line an entry; texts are quoted where needed, flags joined by ``; ``."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_plain(entry[name]) for name in columns] for entry in entries)
    return file.getvalue().encode()


def _plain(value: Any) -> Any:
    """As a spreadsheet should read it: a record may be foreign, and its names formulas.

    >>> _plain("=1+1"), _plain(-0.5), _plain(True), _plain(None)
    ("'=1+1", -0.5, 'true', None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "; ".join(value) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text


def as_json(entries: Sequence[Entry], columns: Sequence[str]) -> bytes:
    """A list of objects."""
    from pydantic_core import to_json

    chosen = [{name: entry[name] for name in columns} for entry in entries]
    return to_json(chosen, indent=1) + b"\n"


def as_parquet(entries: Sequence[Entry], columns: Sequence[str], fields: Fields) -> bytes:
    """A table whose columns have types, also where they are empty.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    from fedbench.core.errors import ConfigError

    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError(
            "--format parquet needs pyarrow, which is not installed; pip install '.[parquet]'"
        ) from error
    types = {
        "whole": arrow.int64(),
        "number": arrow.float64(),
        "share": arrow.float64(),
        "points": arrow.float64(),
        "yes": arrow.bool_(),
        "texts": arrow.list_(arrow.string()),
    }
    schema = arrow.schema([(name, types.get(fields[name], arrow.string())) for name in columns])
    table = arrow.Table.from_pylist(list(entries), schema)
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data
