"""Results of runs, as `fedbench.load` returns them: a sequence of records that shows itself."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from fedbench.analysis import frames
from fedbench.core.errors import require
from fedbench.experiment.record import Record
from fedbench.results import extract
from fedbench.results.fields import Entry
from fedbench.results.gather import ARCHIVE, cells_of, collect, last_of_each, require_once
from fedbench.results.query import REPEATED, Each, Query
from fedbench.tables.entries import USUAL, ResultsPage

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    from matplotlib.figure import Figure

MAX_SHOWN_CELLS = 20  # in a notebook, a line each
SHELL_WIDTH = 100  # of a line


def load(path: str | Path) -> Results | Record:
    """Load what runs have written: the record in a file, or all records of a folder.

    A folder is the ``--out`` of a sweep; what is no record in it is left out with a warning, and so
    are runs that were played again later with another version of somebody's plug-in. An archive
    (``.jsonl.gz``) is as a folder.

    Raises:
        ConfigError: there is no record, or the file was changed since its run wrote it.
    """
    path = Path(path)
    if path.is_dir() or path.name.endswith(ARCHIVE):
        records = collect([path], lambda why: warnings.warn(f"skipped: {why}", stacklevel=5))
        last = last_of_each(records, path)
        if repeated := len(records) - len(last):
            warnings.warn(
                f"{repeated} of the runs in {path} {REPEATED}, and are left out; "
                "fedbench.load(FILE) reads one",
                stacklevel=2,
            )
        return Results(last)
    (record,) = collect([path])
    return record


class Results(Sequence[Record]):
    """Records in the order of their files, which a notebook shows as a table of their cells.

    >>> Results([])
    Results of no runs

    Args:
        records: The records, for instance of `fedbench.play`.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self._records = tuple(records)

    def __len__(self) -> int:
        return len(self._records)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> Record | Results:
        chosen = self._records[index]
        return chosen if isinstance(chosen, Record) else Results(chosen)

    def __repr__(self) -> str:
        if not self:
            return "Results of no runs"
        page = self._page("cell", most=MAX_SHOWN_CELLS)
        lines = [text for text, _ in page.lines(SHELL_WIDTH, str, "─")]
        return "\n".join([self._heading, *lines[:-1], *self._unshown])

    def _repr_html_(self) -> str:
        from fedbench.tables.web import as_html, paragraph

        if not self:
            return paragraph(repr(self))
        page = self._page("cell", most=MAX_SHOWN_CELLS)
        parts = [paragraph(self._heading), as_html(page.table())]
        return "\n".join([*parts, *map(paragraph, self._unshown)])

    @property
    def _heading(self) -> str:
        runs = f"{len(self)} run{'s' * (len(self) != 1)}"
        cells = len(self._answer("cell").entries)
        return f"Results of {runs}, {cells} cell{'s' * (cells != 1)} over their seeds"

    @property
    def _unshown(self) -> list[str]:
        more = len(self._answer("cell").entries) - MAX_SHOWN_CELLS
        return [f"... and {more} more; to_pandas() has all of them"] if more > 0 else []

    @cached_property
    def _entries(self) -> list[Entry]:
        return [extract.entry(record) for record in self]

    def _answer(
        self, each: Each, columns: Iterable[str] | None = None, sort: str | None = None
    ) -> ResultsPage:
        query = Query.parse(each, (), USUAL[each] if columns is None else columns, sort)
        entries = query.among(self._entries).entries
        return ResultsPage(query, entries, flat=columns is not None)

    def _page(self, each: Each, most: int) -> ResultsPage:
        page = self._answer(each)
        return ResultsPage(page.query, page.entries[:most], page.flat)

    def where(self, *conditions: str) -> Results:
        """Return the records of runs for which all conditions hold.

        A condition reads ``FIELD OP VALUE``, as ``--where`` of ``fedbench results``:
        ``results.where("attack=alie", "accuracy<0.5")``. `ConfigError` for an unknown field.
        """
        asked = Query.parse("run", conditions).conditions
        pairs = zip(self, self._entries, strict=True)
        return Results(
            record for record, entry in pairs if all(c.holds(entry[c.field]) for c in asked)
        )

    def to_pandas(self, *, rounds: bool = False) -> pandas.DataFrame:
        """Return a data frame with a row for each run, or with ``rounds`` for each round.

        Fields of the scenario are columns, shares are in [0, 1], bits of a run are per parameter.
        `ConfigError` without pandas.
        """
        return frames.to_pandas(*(frames.of_rounds if rounds else frames.of_runs)(self))

    def to_polars(self, *, rounds: bool = False) -> polars.DataFrame:
        """Return the frame of `to_pandas` for polars; `ConfigError` without polars."""
        return frames.to_polars(*(frames.of_rounds if rounds else frames.of_runs)(self)[:2])

    def to_arrow(self, *, rounds: bool = False) -> pyarrow.Table:
        """Return the frame of `to_pandas` as an Arrow table; `ConfigError` without pyarrow."""
        return frames.to_arrow(*(frames.of_rounds if rounds else frames.of_runs)(self)[:2])

    def to_latex(
        self, *, each: Each = "cell", columns: Iterable[str] | None = None, sort: str | None = None
    ) -> str:
        r"""Return a table for LaTeX with the rules of booktabs, by default that of the cells.

        The document needs ``\usepackage{booktabs}``. ``columns`` are fields of
        ``fedbench results``, by default the usual ones by system; ``sort`` is a field, or
        ``-field`` for the largest first.
        """
        from fedbench.tables.latex import as_latex

        require("each", each, each in ("cell", "run"), "cell or run")
        return as_latex(self._answer(each, columns, sort).table())

    def plot(
        self,
        kind: str = "impact",
        *,
        width: float | None = None,
        attacks: Sequence[str] = (),
        bits: Literal["total", "uplink"] = "total",
        out: str | Path | None = None,
    ) -> Figure:
        """Draw a figure of these runs, which a notebook shows.

        Args:
            kind: Kind of the figure: rounds, bits, heatmap, impact, share, cohort or epsilon.
            width: Width in inches; by default 10, of a heat map what its columns take.
            attacks: Attacks of a heat map or an impact chart; by default all that have room.
            bits: Bits of a figure against bits: total, up and down, or uplink.
            out: File to write it to, whose ending is png, svg, pdf or, with LaTeX, pgf.

        Raises:
            ConfigError: there is no such kind, or these runs lack what it shows.
        """
        from functools import partial

        from fedbench.figures.kinds import draw
        from fedbench.figures.layout import View
        from fedbench.figures.style import FORMATS, rendered, save
        from fedbench.results.summary import rows

        if out is not None:
            ending = Path(out).suffix.removeprefix(".")
            require("out", str(out), ending in FORMATS, f"a file ending in {', '.join(FORMATS)}")
        require_once(self)
        cells = cells_of(self)
        figure = draw(
            kind, rows(list(cells), cells), View(width=width, attacks=tuple(attacks), bits=bits)
        )
        figure._repr_png_ = partial(rendered, figure, "png")  # type: ignore[attr-defined]
        if out is not None:
            save(figure, Path(out))
        return figure
