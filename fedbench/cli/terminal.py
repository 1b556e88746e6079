"""Progress of runs on a terminal, or line by line where there is none."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import typer
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from fedbench.core.errors import show_warning
from fedbench.sweeps.watch import Watcher
from fedbench.tables.columns import ACCURACY
from fedbench.tables.numbers import percent
from fedbench.tables.report import results, systems
from fedbench.tables.terminal import cell as folded
from fedbench.tables.terminal import grid, legible

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell
    from fedbench.experiment.measurements import Round
    from fedbench.experiment.record import Record
    from fedbench.results.store import Store
    from fedbench.results.summary import Row


def watcher(
    console: Console, cells: list[Cell], seeds: Sequence[int], store: Store | None = None
) -> Watcher:
    """Return a live display for a terminal, and otherwise one that prints a line for each run.

    With a ``store`` the display has a table of the results so far, with those of runs that had a
    record there. Leave it out for thousands of runs, whose table is too long.
    """
    if console.is_terminal:
        return TerminalWatcher(console, cells, seeds, store)
    return PlainWatcher(console, len(cells) * len(seeds))


@contextmanager
def status() -> Iterator[Callable[[str], None]]:
    """Show what is being done now in one line on stderr, if that is a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    # At once, and not when its thread has time: the next import may take seconds.
    with Live(console=console, transient=True, refresh_per_second=8) as live:
        yield lambda text: live.update(Spinner("line", escape(text)), refresh=True)  # in ASCII


def warn(text: str) -> None:
    """Print one line on stderr, safe on a terminal."""
    show_warning(text)


def abandon_stdout() -> None:
    """Drop what stdout could not take: Python would try again at its end, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def end(failed: str, stopped: str) -> None:
    """Print what is not empty on stderr; exit with 130 if runs were stopped, 1 if any failed."""
    for line in filter(None, (failed, stopped)):
        print(f"fedbench: {line}", file=sys.stderr)
    if failed or stopped:
        raise typer.Exit(130 if stopped else 1)


def duration(seconds: float) -> str:
    """Return a time in its two largest units.

    >>> duration(5.31), duration(125), duration(3725)
    ('5.3 s', '2 min 5 s', '1 h 2 min')
    >>> duration(59.94), duration(59.97), duration(3599.9)
    ('59.9 s', '1 min 0 s', '1 h 0 min')
    """
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def clock(seconds: float) -> str:
    """Return a time as short as a live line needs it.

    >>> clock(59.6), clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class PlainWatcher(Watcher):
    """Watcher that prints one line for each run that has ended, without control codes."""

    def __init__(self, console: Console, runs: int) -> None:
        self.console = console
        self.runs = runs
        self.ended = 0

    def recorded(self, cell: Cell, seed: int) -> None:
        """Count a run whose record exists."""
        self.ended += 1

    def finished(self, cell: Cell, record: Record) -> None:
        """Print number, name, accuracy and time of a run."""
        accuracy = percent(record.result.accuracy)
        took = duration(record.timing.seconds)
        self._print(cell, record.scenario.seed, f"accuracy {accuracy} %, {took}")

    def failed(self, cell: Cell, seed: int, message: str) -> None:
        """Print number and name of a run, and why it failed."""
        self._print(cell, seed, f"failed: {message}")

    def _print(self, cell: Cell, seed: int, outcome: str) -> None:
        self.ended += 1
        number = f"[{self.ended:>{len(str(self.runs))}}/{self.runs}]"
        text = f"{number} {cell}, seed {seed}: {outcome}"
        self.console.print(Text(legible(text, self.console.options)), soft_wrap=True)


@dataclass
class Progress:
    """Progress of a run, from its start in seconds of the monotonic clock."""

    name: str
    start: float
    total: int
    rounds: int = 0
    accuracy: float | None = None

    @property
    def share(self) -> float:
        """Share of the rounds that are over."""
        return self.rounds / self.total


class TerminalWatcher(Watcher):
    """Watcher with a line for each run being played, one for all of them, and the results so far.

    The display disappears at the end: what stays is the table that the command prints.
    """

    def __init__(
        self, console: Console, cells: list[Cell], seeds: Sequence[int], store: Store | None = None
    ) -> None:
        self.console = console
        self.cells = cells
        self.store = store
        self.seeds = len(seeds)
        self.start = time.monotonic()
        self.running: dict[tuple[Cell, int], Progress] = {}
        self.ended: dict[tuple[Cell, int], str] = {}  # found, finished or failed
        self.records: dict[Cell, list[Record]] = {}
        self.rows: list[Row] | None = []  # None where a record came since they were drawn
        self._lock = threading.Lock()  # Live draws in a thread of its own
        self._live = Live(self, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> Self:
        self.start = time.monotonic()
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._live.stop()
        finally:
            self.console.show_cursor(True)

    def _end(self, cell: Cell, seed: int, how: str) -> None:
        self.running.pop((cell, seed), None)
        self.ended[cell, seed] = how

    def recorded(self, cell: Cell, seed: int) -> None:
        """Count a run whose record exists, and show it in the table."""
        from fedbench.experiment.cells import Run

        record = None if self.store is None else self.store.record(Run(cell, seed))
        with self._lock:
            self._end(cell, seed, "found")
            self._show(cell, record)

    def started(self, cell: Cell, seed: int) -> None:
        """Add a line for a run, unless its record was faster, which came by another queue."""
        with self._lock:
            if (cell, seed) not in self.ended and (cell, seed) not in self.running:
                run = Progress(f"{cell}, seed {seed}", time.monotonic(), cell.scenario.rounds)
                self.running[cell, seed] = run

    def round(self, cell: Cell, seed: int, round: Round) -> None:
        """Move the bar of a run."""
        self.started(cell, seed)
        with self._lock:
            if run := self.running.get((cell, seed)):
                run.rounds = round.step + 1
                run.accuracy = run.accuracy if round.accuracy is None else round.accuracy

    def finished(self, cell: Cell, record: Record) -> None:
        """Move a run from the lines to the table."""
        with self._lock:
            self._end(cell, record.scenario.seed, "finished")
            self._show(cell, record)

    def _show(self, cell: Cell, record: Record | None) -> None:
        if self.store is not None and record is not None:
            self.records.setdefault(cell, []).append(record)
            self.rows = None

    def failed(self, cell: Cell, seed: int, message: str) -> None:
        """Print the failure above the display, where it stays."""
        with self._lock:
            self._end(cell, seed, "failed")
        text = legible(f"{cell}, seed {seed}: failed: {message}", self.console.options)
        self.console.print(Text(text, style="bold red"), soft_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            parts = list(self._parts(options, console.height - 1, time.monotonic()))
        for part in parts:
            yield from console.render(part, options)

    def _parts(self, options: ConsoleOptions, height: int, now: float) -> Iterator[RenderableType]:
        flat = options.update(no_wrap=True)  # a wrapped name would push the last rows out
        shown = list(self.running.values())[: max(1, height // 3)]
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column()
        for _ in range(4):
            lines.add_column(no_wrap=True, justify="right")
        for run in shown:
            lines.add_row(
                folded(run.name, flat),
                ProgressBar(total=1.0, completed=run.share, width=12),
                f"round {run.rounds}/{run.total}",
                "" if run.accuracy is None else f"{percent(run.accuracy)} %",
                _left(now - run.start, run.share),
            )
        if shown:
            yield lines
        if hidden := len(self.running) - len(shown):
            yield Text(f"and {hidden} more")
        yield self._overall(now - self.start)
        rest = height - len(shown) - 3  # what is hidden, the line for all runs, a blank one
        if self.rows is None:
            from fedbench.results import summary  # heavy, and not for a display without a table

            self.rows = summary.rows(self.cells, self.records, self.seeds)
        if rows := last_rows(self.rows, rest):
            yield ""
            yield grid(results("", rows, ACCURACY), flat)

    def _overall(self, elapsed: float) -> RenderableType:
        runs = len(self.cells) * self.seeds
        ends = Counter(self.ended.values())
        played = ends["finished"] + ends["failed"] + sum(r.share for r in self.running.values())
        share = played / max(runs - ends["found"], 1)
        counts = f"{len(self.ended)} of {runs} runs done, {len(self.running)} running"
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            Text(counts + (f", {ends['failed']} failed" if ends["failed"] else ""), style="bold"),
            ProgressBar(total=1.0, completed=share, width=12),
            f"{clock(elapsed)} elapsed",
            _left(elapsed, share),
        )
        return line


def _left(elapsed: float, share: float) -> str:
    """Return the time that remains if it goes on like this; nothing at the start."""
    return f"{clock(elapsed * (1 - share) / share)} left" if share else ""


def last_rows(rows: Sequence[Row], height: int) -> list[Row]:
    """Return as many of the last rows as fit a table of ``height`` lines: heads, systems, rows."""
    for first in range(len(rows)):
        rest = list(rows[first:])
        if 3 + 2 * len(systems(rest)) - 1 + len(rest) <= height:
            return rest
    return []
