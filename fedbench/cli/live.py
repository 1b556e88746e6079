"""What a user sees while runs are played."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedbench.sweep.watch import Watcher
from fedbench.tables import columns, table

if TYPE_CHECKING:
    from fedbench.experiment.cells import Cell
    from fedbench.experiment.measurements import Round
    from fedbench.experiment.record import Record
    from fedbench.results.summary import Row


def watcher(
    console: Console, cells: list[Cell], seeds: Sequence[int], table: bool = True
) -> Watcher:
    """A live display on a terminal, with the results so far or without; a line a run elsewhere."""
    if console.is_terminal:
        return TerminalWatcher(console, cells, seeds, table)
    return PlainWatcher(console, len(cells) * len(seeds))


def duration(seconds: float) -> str:
    """The two largest units.

    >>> duration(5.31), duration(125), duration(3725)
    ('5.3 s', '2 min 5 s', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


class PlainWatcher(Watcher):
    """One line for each run that has ended, without control codes.

    Args:
        console: Where to.
        runs: How many there will be.
    """

    def __init__(self, console: Console, runs: int) -> None:
        self.console, self.runs, self.ended = console, runs, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def found(self, cell: Cell, seed: int) -> None:
        """Counts it."""
        self.ended += 1

    def started(self, cell: Cell, seed: int) -> None:
        """Says nothing."""

    def round(self, cell: Cell, seed: int, round: Round) -> None:
        """Says nothing."""

    def finished(self, cell: Cell, record: Record) -> None:
        """Number, name, accuracy, time."""
        accuracy = columns.percent(record.result.accuracy)
        took = duration(record.timing.seconds)
        self._say(cell, record.scenario.seed, f"accuracy {accuracy} %, {took}")

    def failed(self, cell: Cell, seed: int, message: str) -> None:
        """Number, name, reason."""
        self._say(cell, seed, f"failed: {message}")

    def _say(self, cell: Cell, seed: int, what: str) -> None:
        self.ended += 1
        number = f"[{self.ended:>{len(str(self.runs))}}/{self.runs}]"
        line = Text(table.legible(f"{number} {cell}, seed {seed}: {what}", self.console.options))
        self.console.print(line, soft_wrap=True)


@dataclass
class Playing:
    """A run that is being played.

    Args:
        name: For people.
        start: When it began, in seconds of the monotonic clock.
        total: Rounds of it.
        rounds: How many are over.
        accuracy: As of the last look.
    """

    name: str
    start: float
    total: int
    rounds: int = 0
    accuracy: float | None = None

    @property
    def share(self) -> float:
        """Of its rounds, that are over."""
        return self.rounds / self.total


class TerminalWatcher(Watcher):
    """A line for every run being played, one for all of them, and the results so far.

    The display disappears at the end: what stays is the table that the command prints.

    Args:
        console: A terminal.
        cells: All that will be played.
        seeds: Of each cell.
        table: Show the results so far; for thousands of runs they are too many.
    """

    def __init__(
        self, console: Console, cells: list[Cell], seeds: Sequence[int], table: bool = True
    ) -> None:
        self.console, self.cells, self.table = console, cells, table
        self.seeds = len(seeds)
        self.runs = len(cells) * len(seeds)
        self.start = time.monotonic()
        self.running: dict[tuple[Cell, int], Playing] = {}
        self.ended: set[tuple[Cell, int]] = set()
        self.known = self.lost = 0  # runs found, and failed, among those that ended
        self.records: dict[Cell, list[Record]] = {}
        self.rows: list[Row] = []
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

    def found(self, cell: Cell, seed: int) -> None:
        """Counts it."""
        with self._lock:
            self.ended.add((cell, seed))
            self.known += 1

    def started(self, cell: Cell, seed: int) -> None:
        """A new line."""
        with self._lock:
            self._run(cell, seed)

    def round(self, cell: Cell, seed: int, round: Round) -> None:
        """The bar grows."""
        with self._lock:
            run = self._run(cell, seed)
            run.rounds = round.step + 1
            run.accuracy = run.accuracy if round.accuracy is None else round.accuracy

    def finished(self, cell: Cell, record: Record) -> None:
        """From the lines to the table."""
        from fedbench.results import summary

        with self._lock:
            self._end(cell, record.scenario.seed)
            if not self.table:
                return
            self.records.setdefault(cell, []).append(record)
            self.rows = summary.rows(self.cells, self.records, self.seeds)

    def failed(self, cell: Cell, seed: int, message: str) -> None:
        """Said above the display, where it stays."""
        with self._lock:
            self._end(cell, seed)
            self.lost += 1
        text = table.legible(f"{cell}, seed {seed}: failed: {message}", self.console.options)
        self.console.print(Text(text, style="bold red"), soft_wrap=True)

    def _run(self, cell: Cell, seed: int) -> Playing:
        if (cell, seed) in self.ended:  # its record came before its last rounds: another queue
            return Playing("", 0.0, 1)
        if (cell, seed) not in self.running:
            name, rounds = f"{cell}, seed {seed}", cell.scenario.rounds
            self.running[cell, seed] = Playing(name, time.monotonic(), rounds)
        return self.running[cell, seed]

    def _end(self, cell: Cell, seed: int) -> None:
        self.running.pop((cell, seed), None)
        self.ended.add((cell, seed))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self._lock:
            parts = list(self._parts(options, console.height - 1, time.monotonic()))
        for part in parts:
            yield from console.render(part, options)

    def _parts(self, options: ConsoleOptions, height: int, now: float) -> Iterator[RenderableType]:
        flat = options.update(no_wrap=True)  # a wrapped name would push the last rows out
        shown = list(self.running.values())[: max(1, height // 3)]
        bars = Table.grid(padding=(0, 2, 0, 0))
        bars.add_column()
        for _ in range(4):
            bars.add_column(no_wrap=True, justify="right")
        for run in shown:
            said = "" if run.accuracy is None else f"{columns.percent(run.accuracy)} %"
            bars.add_row(
                table.cell(run.name, flat),
                ProgressBar(total=1.0, completed=run.share, width=12),
                f"round {run.rounds}/{run.total}",
                said,
                _left(now - run.start, run.share),
            )
        if shown:
            yield bars
        if hidden := len(self.running) - len(shown):
            yield Text(f"and {hidden} more")
        yield self._overall(now)
        rest = height - len(shown) - 3  # what is hidden, the line for all runs, a blank one
        if rows := last_rows(self.rows, rest):
            yield ""
            yield table.results("", rows, columns.ACCURACY, flat)

    def _overall(self, now: float) -> RenderableType:
        under_way = sum(run.share for run in self.running.values())
        played, to_play = len(self.ended) - self.known, self.runs - self.known
        share = (played + under_way) / max(to_play, 1)
        elapsed = now - self.start
        counts = f"{len(self.ended)} of {self.runs} runs done, {len(self.running)} running"
        line = Table.grid(padding=(0, 2, 0, 0))
        line.add_row(
            Text(counts + (f", {self.lost} failed" if self.lost else ""), style="bold"),
            ProgressBar(total=1.0, completed=share, width=12),
            f"{clock(elapsed)} elapsed",
            _left(elapsed, share),
        )
        return line


def clock(seconds: float) -> str:
    """What fits into a live line.

    >>> clock(59.6), clock(3725)
    ('1:00', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _left(elapsed: float, share: float) -> str:
    """What remains if it goes on like this."""
    return f"{clock(elapsed * (1 - share) / share)} left" if share else ""


def last_rows(rows: Sequence[Row], height: int) -> list[Row]:
    """As many of the last rows as a table of ``height`` lines holds: heads, systems, rules."""
    for first in range(len(rows)):
        kept = list(rows[first:])
        if 3 + 2 * len(table.systems(kept)) - 1 + len(kept) <= height:
            return kept
    return []
