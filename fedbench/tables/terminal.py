"""Tables for terminals: by rich, or as plain lines of text where there are thousands of them."""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from rich import box
from rich.console import ConsoleOptions
from rich.table import Table as RichTable
from rich.text import Text

from fedbench.tables.table import Table

# Characters that a column gets before the last ones are left out: the first, others that wrap.
FIRST_COLUMN = 25
WRAPPED_COLUMN = 14
MIN_WRAPPED = 8  # where all columns must stay
MAX_UNBROKEN = 24  # characters of a word without hyphens that is never broken
COLUMN_GAP = 2
_ASCII = str.maketrans({"±": "+-", "ε": "eps", "◀": "<-", "…": "...", "◆": "*"})


def legible(text: str, options: ConsoleOptions) -> str:
    """Return the text in the characters that this output can show."""
    if not options.ascii_only:
        return text
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def cell(text: str, options: ConsoleOptions, style: str = "") -> Text:
    """Return a text that is folded, or cut off where the options forbid to wrap."""
    flat = options.no_wrap
    shown = legible(text, options)
    return Text(shown, style, no_wrap=flat, overflow="ellipsis" if flat else "fold")


def listed(pairs: Iterable[tuple[str, str]], options: ConsoleOptions) -> RichTable:
    """List terms and what they mean; what wraps is indented."""
    table = RichTable.grid(padding=(0, 1, 0, 0))
    for pair in pairs:
        table.add_row(*(cell(text, options) for text in pair))
    return table


def grid(table: Table, options: ConsoleOptions) -> RichTable:
    """Return the table with horizontal rules only; numbers never wrap, names do."""
    rich = RichTable(
        title=cell(table.title, options, "bold") if table.title else None,
        title_justify="left",
        box=box.HORIZONTALS,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    rows = [row + [""] * (len(table.columns) - len(row)) for row in table.body()]
    columns = [list(texts) for texts in zip(*rows, strict=True)] or [[] for _ in table.columns]
    for i, column in enumerate(table.columns):
        below = column.align == "mean" and any("±" in text for text in columns[i])
        columns[i] = aligned(columns[i]) if below else columns[i]
        rich.add_column(
            legible(column.heading, options),
            justify="left" if below or column.align == "left" else "right",
            no_wrap=not column.wraps,
            min_width=column.width,
        )
    if table.columns[0].wraps:  # long parameter lists wrap at spaces
        columns[0] = [re.sub(r",(?! )", ", ", text) for text in columns[0]]
    for i, (row, line) in enumerate(zip(zip(*columns, strict=True), table.lines, strict=True), 1):
        ends = i < len(table.lines) and table.lines[i].title
        rich.add_row(*(cell(text, options, line.look) for text in row), end_section=ends)
    return rich


def aligned(texts: list[str]) -> list[str]:
    """Pad texts that read ``mean ± std``, so that the means stand below each other."""
    if not any("±" in text for text in texts):
        return texts
    means = [text.partition(" ±")[0] for text in texts]
    width = max(map(len, means))
    return [" " * (width - len(mean)) + text for mean, text in zip(means, texts, strict=True)]


def translated(table: Table, say: Callable[[str], str]) -> Table:
    """Apply a function to every text, so that the output can show it."""
    columns = [replace(column, heading=say(column.heading)) for column in table.columns]
    lines = [replace(line, texts=[say(text) for text in line.texts]) for line in table.lines]
    return Table(columns, lines, say(table.title))


def narrowed(table: Table, width: int) -> Table:
    """Leave out the last columns, if that makes the table as narrow as this."""
    widths = _widths(table)
    pairs = zip(widths, table.columns, strict=True)
    least = [min(w, WRAPPED_COLUMN) if column.wraps else w for w, column in pairs]
    least[0] = min(widths[0], FIRST_COLUMN, width // 2)
    keep = len(least)
    while keep > 1 and sum(least[:keep]) + COLUMN_GAP * (keep - 1) > width:
        keep -= 1
    lines = [replace(line, texts=line.texts[:keep]) for line in table.lines]
    return Table(table.columns[:keep], lines, table.title)


def plain_lines(table: Table, width: int, dash: str = "─") -> Iterator[tuple[str, str]]:
    """Yield the lines, and their styles, of a table of thousands, for which rich takes seconds.

    Names wrap to keep to the width, behind commas and hyphens at most; numbers do not. Where that
    is not enough, lines are longer.
    """
    wraps = [column.wraps for column in table.columns]
    headings = [column.heading.split("\n") for column in table.columns]
    widths = _widths(table)
    gaps = COLUMN_GAP * (len(widths) - 1)
    least = [max([MIN_WRAPPED, *map(_least, texts)]) for texts in _texts(table)]
    while sum(widths) + gaps > width:
        shrinks = zip(widths, least, wraps, strict=True)
        names = [w if wrap and w > low else 0 for w, low, wrap in shrinks]
        if not any(names):
            break
        widths[names.index(max(names))] -= 1
    across = dash * min(width, sum(widths) + gaps)
    deep = max(map(len, headings))
    for text in _rows([[""] * (deep - len(head)) + head for head in headings], widths, wraps):
        yield text, "bold"
    for number, (line, row) in enumerate(zip(table.lines, table.body(), strict=True)):
        if number == 0 or line.title:
            yield across, ""
        if line.title:
            texts = _wrapped(row[0], width)
        else:
            cells = zip(row, widths, wraps, strict=True)
            parts = [_wrapped(text, w) if wrap else [text] for text, w, wrap in cells]
            texts = list(_rows(parts, widths, wraps))
        for text in texts:
            yield text, line.look


def _widths(table: Table) -> list[int]:
    """Return the characters that the widest text of each column takes, titles aside."""
    return [max(map(len, texts)) for texts in _texts(table)]


def _texts(table: Table) -> list[list[str]]:
    """Return the texts of each column with the lines of its heading, titles aside."""
    rows = [row for line, row in zip(table.lines, table.body(), strict=True) if not line.title]
    heads = [column.heading.split("\n") for column in table.columns]
    return [[*head, *below] for head, below in zip(heads, zip(*rows, strict=True), strict=True)]


def _least(text: str) -> int:
    """Return the least width in which no word of a text is broken.

    >>> _least("geometric-median"), _least("alie:knows=all,via=codec")
    (10, 15)
    """
    indent = len(text) - len(text.lstrip())
    first, *others = map(len, re.findall(r"[^\s,-]+[,-]*", text) or [""])
    return indent + min(max([first, *(2 + n for n in others)]), MAX_UNBROKEN)


def _rows(
    parts: Sequence[Sequence[str]], widths: Sequence[int], wraps: Sequence[bool]
) -> Iterator[str]:
    """Put the lines of the cells of one row beside each other."""
    for row in zip_longest(*parts, fillvalue=""):
        cells = zip(row, widths, wraps, strict=True)
        padded = (text.ljust(w) if wrap else text.rjust(w) for text, w, wrap in cells)
        yield (" " * COLUMN_GAP).join(padded).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text, after the commas between parameters too."""
    if len(text) <= width:
        return [text]
    hanging = " " * (len(text) - len(text.lstrip()) + 2)
    spaced = re.sub(r",(?=[\w.]+=)", ", ", text)
    long = any(len(word) > width - len(hanging) for word in spaced.split())
    return textwrap.wrap(spaced, width, subsequent_indent=hanging, break_on_hyphens=long)
