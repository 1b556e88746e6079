"""Tables and lists in Markdown."""

import html
import re
from collections.abc import Callable, Iterable, Sequence

from fedbench.tables.table import Table

_MARKUP = re.compile(r"([\\`*_\[\]|<>!#~&])")


def escaped(text: str) -> str:
    """Escape what would end a cell or make a tag: a record may be foreign."""
    return html.escape(text.strip(), quote=False).replace("|", r"\|")


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
