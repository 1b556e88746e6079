"""Rows for other programs: numbers stay numbers, and what is not there is empty."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.results.fields import Fields

Rows = Sequence[Mapping[str, Any]]
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Rows, columns: Iterable[str] | None = None) -> bytes:
    """Write a heading, by default the names in the first row, and a line for each row.

    Values of a list are joined by ``; ``, and texts are quoted where needed.
    """
    names = list(columns if columns is not None else rows[0] if rows else ())
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_plain(row[name]) for name in names] for row in rows)
    return file.getvalue().encode()


def _plain(value: Any) -> Any:
    """Return a value as a spreadsheet should read it: a foreign name may be a formula.

    >>> _plain("=1+1"), _plain("@x"), _plain(-0.5), _plain(True), _plain(None)
    ("'=1+1", "'@x", -0.5, 'true', None)
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    text = "; ".join(value) if isinstance(value, list) else value
    return f"'{text}" if isinstance(text, str) and text.startswith(FORMULA) else text


def as_json(rows: Rows, columns: Sequence[str]) -> bytes:
    """Write a list of objects."""
    from pydantic_core import to_json

    chosen = [{name: row[name] for name in columns} for row in rows]
    return to_json(chosen, indent=1) + b"\n"


def as_parquet(rows: Rows, columns: Sequence[str], fields: Fields) -> bytes:
    """Write a table whose columns have types, also where they are empty.

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
    types = dict.fromkeys(("number", "share", "points"), arrow.float64())
    types |= {"whole": arrow.int64(), "yes": arrow.bool_(), "texts": arrow.list_(arrow.string())}
    schema = arrow.schema([(name, types.get(fields[name], arrow.string())) for name in columns])
    table = arrow.Table.from_pylist(list(rows), schema)
    sink = arrow.BufferOutputStream()
    parquet.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def document(value: Any, indent: int = 1) -> str:
    """Write JSON in full precision; what is not finite is null.

    >>> document({"epsilon": float("inf"), "bounds": (1.5, float("nan"))}, indent=0).split()
    ['{', '"epsilon":', 'null,', '"bounds":', '[', '1.5,', 'null', ']', '}']
    """
    return json.dumps(_finite(value), indent=indent)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
