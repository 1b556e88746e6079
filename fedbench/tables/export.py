"""Tables as Markdown, and rows for other programs, in which numbers stay numbers."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedbench.core.errors import ConfigError
from fedbench.tables.table import Table

if TYPE_CHECKING:
    from fedbench.results.fields import Fields

Rows = Sequence[Mapping[str, Any]]
_MARKUP = re.compile(r"([\\`*_\[\]|<>!#~&])")
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
    """Write a table whose columns have types, also where empty; `ConfigError` without pyarrow."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ConfigError(
            "--format parquet needs pyarrow, which is not installed; pip install '.[parquet]'"
        ) from error
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow_table(rows, columns, fields), sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def arrow_table(rows: Rows, columns: Sequence[str], fields: Fields) -> Any:
    """Return a ``pyarrow.Table`` whose columns have the types of their fields."""
    import pyarrow as arrow

    types = dict.fromkeys(("number", "share", "points"), arrow.float64())
    types |= {"whole": arrow.int64(), "yes": arrow.bool_(), "texts": arrow.list_(arrow.string())}
    schema = arrow.schema([(name, types.get(fields[name], arrow.string())) for name in columns])
    return arrow.Table.from_pylist(list(rows), schema)


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


def escaped(text: str) -> str:
    """Escape what would end a cell or make a tag: a record may be foreign."""
    return html.escape(text.strip(), quote=False).replace("|", r"\|").replace("\n", " ")


def literal(text: str) -> str:
    """Escape all markup, whatever a name holds."""
    return _MARKUP.sub(r"\\\1", text)


def markdown(table: Table, escape: Callable[[str], str] = escaped, emphasized: int = 0) -> str:
    """Write a table with pipes and without its title; titles of groups become a column.

    ``escape`` makes a text fit for a cell. The first ``emphasized`` cells of marked lines are bold.
    """
    headings = [" ".join(column.heading.split()) for column in table.columns]
    marks = [":--" if column.align == "left" else "--:" for column in table.columns]
    if table.grouped:
        headings[:1] = table.columns[0].heading.split("\n")
        marks.insert(0, ":--")
    body: list[list[str]] = []
    title = ""
    for line in table.lines:
        if line.title:
            title = line.texts[0]
            continue
        texts = [escape(text) for text in line.texts]
        if line.marked:
            texts[:emphasized] = [f"**{text}**" for text in texts[:emphasized]]
        body.append([*([escape(title)] if table.grouped else []), *texts])
        title = ""
    return pipes([escape(heading.strip()) for heading in headings], marks, body)


def pipes(headings: Sequence[str], marks: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Write cells, already escaped, with pipes between them.

    >>> print(pipes(["a", "b"], [":--", "--:"], [["x", "1"]]), end="")
    | a | b |
    | :-- | --: |
    | x | 1 |
    """
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (headings, marks, *body))


def bullets(texts: Iterable[str]) -> str:
    """Write a list, an item a line."""
    return "".join(f"- {text}\n" for text in texts)
