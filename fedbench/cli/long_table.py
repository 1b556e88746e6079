"""A table of thousands of lines: those of rich would take seconds."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

NAMES = 25  # characters that the first column gets before the last ones are left out
WORDS = 14  # the same, of any other column that wraps
LEAST = 8  # characters of a column that wraps, where all columns must stay
GAP = 2


@dataclass(frozen=True)
class Line:
    """A line of a table.

    Args:
        texts: One a column; of a title the first one only.
        style: Of rich.
        title: It names what follows.
    """

    texts: list[str]
    style: str = ""
    title: bool = False


@dataclass(frozen=True)
class Table:
    """Texts in columns.

    Args:
        heads: Of each column, in lines.
        wraps: Of each column, whether its texts are names, which wrap, or numbers, which do not.
        lines: In order.
    """

    heads: list[str]
    wraps: list[bool]
    lines: list[Line]

    def translated(self, say: Callable[[str], str]) -> Table:
        """With every text as this output can show it."""
        lines = [Line([*map(say, line.texts)], line.style, line.title) for line in self.lines]
        return Table([*map(say, self.heads)], self.wraps, lines)

    def within(self, width: int) -> Table:
        """Without the last columns, if that makes it as narrow as this."""
        widths = self._widths()
        least = [min(w, WORDS) if wrap else w for w, wrap in zip(widths, self.wraps, strict=True)]
        least[0] = min(widths[0], NAMES, width // 2)
        keep = len(least)
        while keep > 1 and sum(least[:keep]) + GAP * (keep - 1) > width:
            keep -= 1
        lines = [Line(line.texts[:keep], line.style, line.title) for line in self.lines]
        return Table(self.heads[:keep], self.wraps[:keep], lines)

    def shown(self, width: int, rule: str = "─") -> Iterator[tuple[str, str]]:
        """Lines of text and their styles; names are wrapped."""
        widths = self._widths()
        gaps = GAP * (len(widths) - 1)
        while sum(widths) + gaps > width:
            names = [w if wrap else 0 for w, wrap in zip(widths, self.wraps, strict=True)]
            if max(names) <= LEAST:
                break
            widths[names.index(max(names))] -= 1
        across = rule * min(width, sum(widths) + gaps)
        heads = [head.split("\n") for head in self.heads]
        deep = max(map(len, heads))
        for text in self._rows([[""] * (deep - len(head)) + head for head in heads], widths):
            yield text, "bold"
        for number, line in enumerate(self.lines):
            if number == 0 or line.title:
                yield across, ""
            if line.title:
                texts = _wrapped(line.texts[0], width)
            else:
                cells = zip(line.texts, widths, self.wraps, strict=True)
                parts = [_wrapped(text, w) if wrap else [text] for text, w, wrap in cells]
                texts = list(self._rows(parts, widths))
            for text in texts:
                yield text, line.style

    def markdown(self) -> str:
        """With pipes; titles are a column of their own."""
        titled = any(line.title for line in self.lines)
        rows = [[head.replace("\n", " ") for head in self.heads]]
        rows.append([":--" if wrap else "--:" for wrap in self.wraps])
        title = ""
        for line in self.lines:
            if line.title:
                title = line.texts[0]
            else:
                rows.append([*([title] if titled else []), *line.texts])
                title = ""
        if titled:
            rows[0][0], rows[1] = "attack", [":--", *rows[1]]
            rows[0].insert(0, "system")
        return "".join(f"| {' | '.join(map(escaped, row))} |\n" for row in rows)

    def _widths(self) -> list[int]:
        heads = [max(map(len, head.split("\n"))) for head in self.heads]
        columns = zip(*(line.texts for line in self.lines if not line.title), strict=True)
        return [max(own, *map(len, texts)) for own, texts in zip(heads, columns, strict=True)]

    def _rows(self, parts: Sequence[Sequence[str]], widths: Sequence[int]) -> Iterator[str]:
        for row in zip_longest(*parts, fillvalue=""):
            cells = zip(row, widths, self.wraps, strict=True)
            padded = (text.ljust(w) if wrap else text.rjust(w) for text, w, wrap in cells)
            yield (" " * GAP).join(padded).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    """Parameters wrap after their commas."""
    if len(text) <= width:
        return [text]
    hanging = " " * (len(text) - len(text.lstrip()) + 2)
    return textwrap.wrap(
        text.replace(",", ", "), width, subsequent_indent=hanging, break_on_hyphens=False
    )


def escaped(text: str) -> str:
    """A record may be foreign, and a name a tag."""
    return html.escape(text.strip(), quote=False).replace("|", r"\|")
