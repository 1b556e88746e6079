"""A folder of records: finished runs, failed runs, and the runs that processes have claimed."""

import errno
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fedbench.core.errors import ConfigError, PluginError
from fedbench.core.files import read_limited, writable, write_atomically
from fedbench.experiment.availability import Trace, parse
from fedbench.experiment.cells import Run
from fedbench.experiment.checkpoints import Checkpoint
from fedbench.experiment.record import MAX_RECORD_BYTES, Record, read
from fedbench.experiment.scenario import Scenario
from fedbench.results.extract import sealed


class Failure(BaseModel):
    """A run that ended without a record.

    It is of one of these kinds. ``user``: it cannot be played as described; ``machine``: not on
    this machine, which lacks a device or data: it is played again; ``crash``: an error of the code
    or of a plug-in; ``memory``: too little, even for one client at a time; ``lost``: its process
    was killed, every time; ``timeout``: it took longer than it may.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    id: str  # that the record would have
    scenario: Scenario  # resolved
    kind: Literal["user", "machine", "crash", "memory", "lost", "timeout"]
    error: str  # type of the exception
    message: str
    traceback: str  # of the last try
    tries: int
    chunk: int  # clients trained at once in the last try

    def __str__(self) -> str:
        if self.error == PluginError.__name__:  # whose message names everything
            return self.message
        first = self.message.splitlines()[0] if self.message.strip() else ""
        return f"{self.error}: {first}" if first else self.error


class _Played(BaseModel):
    """Part of a record that says what was played."""

    scenario: Scenario


class Store:
    """A folder of records that any number of sweeps may share, on any number of machines.

    A record is a file that is whole or absent, named by the run's id. A process that plays a run
    locks the byte of the file ``.claims`` that the id names, until it ends, however it ends. A
    process must not open one store twice.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._claims: BinaryIO | None = None

    def __enter__(self) -> Self:
        writable(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        claims = self.folder / ".claims"
        try:
            self._claims = open(claims, "ab")
        except OSError as error:
            raise ConfigError(
                f"{claims} must be a file that can be written, got {error.strerror}; use another "
                "folder, or make it writable"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._claims is not None:
            self._claims.close()  # and with it every lock is free
            self._claims = None

    def path(self, run: Run) -> Path:
        """Return the path of the run's record, written or not."""
        return self.folder / run.file_name

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints of runs that are not over."""
        return self.folder / "checkpoints"

    def drop_checkpoint(self, run: Run) -> None:
        """Remove the checkpoint of a run that is over, if it has one."""
        if self.checkpoints.exists():
            Checkpoint(self.checkpoints / run.checkpoint_name).remove()

    def has(self, run: Run) -> bool:
        """Tell whether there is a record of this run that was neither cut nor edited."""
        try:
            return sealed(self.path(run).read_bytes())
        except OSError:
            return False

    def by_other_code(self, missing: Iterable[Run]) -> int:
        """Count the runs without a record that another version of fedbench or a plug-in played.

        Such a record has the same scenario and another id. Only its scenario is parsed, since a
        store may have ten thousand of them.
        """
        runs = list(missing)
        begins = {run.file_name.removesuffix(f"{run.id}.json") for run in runs}
        played = set()
        for path in self.folder.glob("*.json"):
            if f"{path.name.rpartition('-')[0]}-" in begins:
                with suppress(ConfigError, ValidationError):
                    data = read_limited(path, MAX_RECORD_BYTES)
                    if sealed(data):
                        played.add(_Played.model_validate_json(data).scenario)
        return sum(run.resolved in played for run in runs)

    def record(self, run: Run) -> Record:
        """Read the record of a run; `ConfigError` if there is none, or it was changed."""
        return read(self.path(run))

    def keep(self, run: Run, record: Record) -> None:
        """Write the record of a claimed run, no other's (`ConfigError`); remove all else of it."""
        if record.id != run.id:
            planned = parse(run.resolved.availability)
            problem = "the code changed meanwhile; start the sweep again"
            if isinstance(planned, Trace) and planned != parse(record.scenario.availability):
                problem = (
                    f"{planned.file} was changed meanwhile; put the old file back and start the "
                    "sweep again, which with the new one plays every run anew"
                )
            raise ConfigError(
                f"{run} must be played as its sweep has planned it, got record {record.id} instead "
                f"of {run.id}: {problem}"
            )
        record.write(self.folder)
        self.failure_path(run).unlink(missing_ok=True)
        self.drop_checkpoint(run)
        for torn in self.folder.glob(f".{run.file_name}.*"):  # its writer was killed in the act
            torn.unlink(missing_ok=True)

    def failure(self, run: Run) -> Failure | None:
        """Return how a run failed; None if it did not, or was played since."""
        try:
            return Failure.model_validate_json(self.failure_path(run).read_bytes())
        except (OSError, ValidationError, ConfigError):  # the last one: of the scenario in it
            return None

    def failure_path(self, run: Run) -> Path:
        """Return the path of the file that says how the run failed."""
        return self.folder / "failed" / run.file_name

    def failed_at(self, run: Run) -> int | None:
        """Return the time of the last failure, in ns of the file system's clock, or None."""
        try:
            return self.failure_path(run).stat().st_mtime_ns
        except OSError:
            return None

    def fail(self, run: Run, failure: Failure) -> None:
        """Write how a run failed."""
        text = failure.model_dump_json(indent=1) + "\n"
        write_atomically(self.failure_path(run), text.encode())

    def claim(self, run: Run) -> bool:
        """Claim a run for this process, False if another has it; `ConfigError` without locks."""
        assert self._claims is not None, "a store is used in a with statement"
        try:
            import fcntl
        except ImportError:  # Windows: two sweeps of one store play some runs twice
            return True
        try:
            fcntl.lockf(self._claims, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(run))
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise ConfigError(
                f"{self.folder} must be on a file system with locks, got {error.strerror}; "
                "use another folder, or mount it with locks"
            ) from error
        return True

    def release(self, run: Run) -> None:
        """Give a claimed run back."""
        assert self._claims is not None
        try:
            import fcntl
        except ImportError:
            return
        fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, _place(run))


def _place(run: Run) -> int:
    return int(run.id, 16) >> 2  # below 2**62: what fits into a file offset, with room for a byte
