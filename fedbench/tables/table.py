"""A table of texts, whatever it is written as: columns, lines, and titles between the lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Column:
    """A column of a table, whose numbers never wrap, as names do.

    Those aligned by ``mean`` are right, but texts that read ``mean ± std`` stand with their means
    below each other.
    """

    heading: str
    align: Literal["left", "right", "mean"] = "right"
    wraps: bool = False
    width: int | None = None  # least number of characters on a terminal


@dataclass(frozen=True)
class Line:
    """A line of a table, with a text for each column; of a title the first one is enough."""

    texts: Sequence[str]
    marked: bool = False
    title: bool = False  # it names the group of lines below it
    style: str = ""  # of rich; by default that of a title or of a marked line

    @property
    def look(self) -> str:
        """Style of rich in which the line is shown."""
        return self.style or ("bold" if self.title else "bold red" if self.marked else "")


@dataclass(frozen=True)
class Table:
    """Texts in columns, with an optional title above all of them."""

    columns: Sequence[Column]
    lines: Sequence[Line]
    title: str = ""

    @classmethod
    def of(cls, headings: Sequence[str], lines: Sequence[Line], title: str = "") -> Table:
        """Make a table of names, whose headings say ``system`` or ``attack``, and of numbers."""
        columns = [
            Column(heading, "left", wraps=True)
            if "attack" in heading or "system" in heading
            else Column(heading, "mean")
            for heading in headings
        ]
        return cls(columns, lines, title)

    @property
    def grouped(self) -> bool:
        """Whether titles stand between the lines."""
        return any(line.title for line in self.lines)

    def body(self) -> list[list[str]]:
        """Return the texts of each line, the names below a title indented."""
        indent = "  " if self.grouped else ""
        return [
            [line.texts[0] if line.title else indent + line.texts[0], *line.texts[1:]]
            for line in self.lines
        ]
