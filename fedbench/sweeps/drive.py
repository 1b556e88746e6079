"""Play the runs that a store lacks: claim, submit, store; go on after a failure."""

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedbench.core.errors import ConfigError, FedbenchError, PluginError
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.measurements import Round
from fedbench.experiment.record import Record
from fedbench.results.store import Failure, Store
from fedbench.sweeps.engine import Crash, Engine, model_name
from fedbench.sweeps.local import LocalEngine, Options
from fedbench.sweeps.watch import Watcher

RECHECK_SECONDS = 0.5  # seconds between two checks of runs that another sweep is playing


@dataclass
class Tally:
    """How the runs of a sweep ended."""

    recorded: list[Run] = field(default_factory=list)  # before, or by another sweep
    played: list[Run] = field(default_factory=list)  # by this sweep, with a record
    failed: dict[Run, Failure] = field(default_factory=dict)  # without a record, and why
    left: list[Run] = field(default_factory=list)  # not begun or not finished


@dataclass(eq=False)
class Sweep:
    """Runs, and the entered engine, store and watcher that play, store and show them."""

    engine: Engine
    store: Store
    watcher: Watcher
    chunk: int = 32  # clients that are trained at once; fewer where memory runs out
    retry_failed: bool = False  # also play what has failed before
    strict: bool = False  # end at the first failure
    models: Path | None = None  # folder that has the deployed model of every record
    canonical: bool = False  # take no record that is there unless its run was canonical

    def __post_init__(self) -> None:
        self.tally = Tally()
        self._waiting: deque[Run] = deque()
        self._elsewhere: list[Run] = []
        self._running: dict[Run, tuple[int, int]] = {}  # number of the try, and its chunk
        self._forgiven: dict[Run, int | None] = {}  # time of the failure before this sweep

    def play(self, runs: Iterable[Run]) -> Tally:
        """Play until every run has a record or has failed; Ctrl-C ends it earlier.

        With `strict`, `ConfigError` for a run that cannot be played as described, `FedbenchError`
        for what a plug-in did, and `RuntimeError` for another crash, with its worker's traceback.
        """
        self._waiting.extend(runs)
        # a failure from now on counts, in another sweep too
        self._forgiven = {run: self.store.failed_at(run) for run in self._waiting}
        checked = time.monotonic()
        try:
            while self._waiting or self._running or self._elsewhere:
                while self._waiting and self.engine.free():
                    self._begin(self._waiting.popleft())
                for news in self.engine.news(0.1):
                    self._hear(news.run, news.what)
                if time.monotonic() - checked > RECHECK_SECONDS:  # the other sweep may have ended
                    self._waiting.extend(self._elsewhere)
                    self._elsewhere = []
                    checked = time.monotonic()
        except KeyboardInterrupt:
            pass
        self.tally.left = [*self._running, *self._waiting, *self._elsewhere]
        return self.tally

    def _begin(self, run: Run) -> None:
        """Submit a run, unless it is over or another sweep plays it now."""
        if self._is_over(run):
            return
        if not self.store.claim(run):
            self._elsewhere.append(run)
            return
        if self._is_over(run):  # another sweep ended it just before the claim
            self.store.release(run)
            return
        self._running[run] = (1, self.chunk)
        self.engine.submit(run, self.chunk)

    def _is_over(self, run: Run) -> bool:
        if self.store.has(run):
            if self.canonical:
                self._require_canonical(run)
            if self.models is not None:
                self._require_model(run, self.models)
            self.store.drop_checkpoint(run)  # its player was killed when it had kept the record
            self.tally.recorded.append(run)
            self.watcher.recorded(run.cell, run.seed)
            return True
        failure = self.store.failure(run)
        if failure is None:
            return False
        retried = self.retry_failed or failure.kind == "machine"  # this machine may have the device
        if retried and self.store.failed_at(run) == self._forgiven[run]:
            return False
        self.tally.failed[run] = failure
        self.watcher.failed(run.cell, run.seed, f"{failure} (earlier; --retry-failed plays it)")
        return True

    def _require_canonical(self, run: Run) -> None:
        """Raise `ConfigError` if the record that is there is that of an ordinary run.

        The id says what was run, and not in which mode.
        """
        if not self.store.record(run).environment.canonical:
            raise ConfigError(
                f"--out must be a store of canonical records, got {self.store.path(run)}; "
                "choose another folder"
            )

    def _require_model(self, run: Run, folder: Path) -> None:
        """Raise `ConfigError` if the record that is there is of a run that kept no model."""
        name = model_name(self.store.record(run))
        if not (folder / name).exists():
            raise ConfigError(
                f"--out must have {name} beside the record of the same name, which was played "
                "without --save-model; choose another folder"
            )

    def _hear(self, run: Run, what: Round | Record | Crash | None) -> None:
        if what is None:
            self.watcher.started(run.cell, run.seed)
        elif isinstance(what, Round):
            self.watcher.round(run.cell, run.seed, what)
        elif isinstance(what, Record):
            self.store.keep(run, what)
            self._end(run)
            self.tally.played.append(run)
            self.watcher.finished(run.cell, what)
        else:
            self._try_again_or_fail(run, what)

    def _try_again_or_fail(self, run: Run, what: Crash) -> None:
        """Try again with fewer clients at once if memory ran out, else record the failure."""
        tries, chunk = self._running[run]
        # a process that was killed had often taken too much memory
        if what.kind in ("memory", "lost") and (chunk > 1 or tries == 1):
            self._running[run] = (tries + 1, max(1, chunk // 4))
            self.engine.submit(run, self._running[run][1])
            return
        reason = asdict(what)
        failure = Failure(id=run.id, scenario=run.resolved, tries=tries, chunk=chunk, **reason)
        self.store.fail(run, failure)
        self._end(run)
        self.tally.failed[run] = failure
        self.watcher.failed(run.cell, run.seed, str(failure))
        if self.strict:
            raise _as_error(failure)

    def _end(self, run: Run) -> None:
        del self._running[run]
        self.store.release(run)


def _as_error(failure: Failure) -> Exception:
    if failure.kind in ("user", "machine"):
        return ConfigError(failure.message)
    if failure.kind == "crash":
        by_plugin = failure.error == PluginError.__name__
        return FedbenchError(failure.message) if by_plugin else RuntimeError(failure.traceback)
    if failure.kind == "timeout":
        return ConfigError(f"{failure.message}; the records of finished runs are kept")
    why = f"perhaps for lack of memory, in each of {failure.tries} tries"
    advice = "the records of finished runs are kept; try a smaller --workers or --chunk"
    return ConfigError(f"{failure.message or failure.error}, {why}; {advice}")


def play_each(
    cells: Sequence[Cell],
    seeds: Sequence[int],
    options: Options,
    watcher: Watcher,
    out: Path | None = None,
    strict: bool = False,
    engine: Engine | None = None,
) -> tuple[dict[Cell, list[Record]], dict[Run, Failure]]:
    """Play every cell with every seed; return the records and the failures.

    They are played by ``engine``, or by processes on this machine.

    Runs with a record in ``out`` are not played again, but failed ones are. Ctrl-C ends the workers
    and returns what is finished. With ``strict`` the first run that fails stops the others and
    raises, as `Sweep.play`.
    """
    runs = [Run(cell, seed) for cell in cells for seed in seeds]
    if out is not None:
        options = replace(options, checkpoints=Store(out).checkpoints)
    chosen = engine or LocalEngine(options, options.processes(len(runs)))
    with TemporaryDirectory() as nowhere:
        with chosen as players, Store(out or Path(nowhere)) as store:
            sweep = Sweep(
                engine=players,
                store=store,
                watcher=watcher,
                chunk=options.chunk,
                retry_failed=True,
                strict=strict,
                canonical=options.canonical,
                models=options.models,
            )
            tally = sweep.play(runs)
        records: dict[Cell, list[Record]] = {}
        ended = {*tally.recorded, *tally.played}
        for run in filter(ended.__contains__, runs):
            records.setdefault(run.cell, []).append(store.record(run))
    return records, tally.failed
