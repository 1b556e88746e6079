"""A folder of records: what has been run, what failed, and who is at which run now."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from fedbench.core.errors import ConfigError, PluginError
from fedbench.core.files import writable, write_atomically
from fedbench.experiment.cells import Run
from fedbench.experiment.record import Record, read
from fedbench.experiment.scenario import Scenario
from fedbench.results.extract import sealed


class Failure(BaseModel):
    """A run that ended without a record.

    Args:
        schema_version: Of this file.
        id: The record would have it.
        scenario: Resolved.
        kind: ``user``: it cannot be played as described; ``machine``: not on this machine, which
            lacks a device or data: it is played again; ``crash``: an error of the code or of a
            plug-in; ``memory``: too little, even for one client at a time; ``lost``: its process
            was killed, every time; ``timeout``: it took longer than it may.
        error: Type of the exception.
        message: Of the exception.
        traceback: Of the last try.
        tries: How often it was begun.
        chunk: Clients trained at once in the last try.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    id: str
    scenario: Scenario
    kind: Literal["user", "machine", "crash", "memory", "lost", "timeout"]
    error: str
    message: str
    traceback: str
    tries: int
    chunk: int

    def __str__(self) -> str:
        if self.error == PluginError.__name__:  # whose message names everything
            return self.message
        said = self.message.splitlines()[0] if self.message.strip() else ""
        return f"{self.error}: {said}" if said else self.error


class Store:
    """A folder of records that any number of sweeps may share, on any number of machines.

    A record is a file that is whole or absent, named by the run's id. Who plays a run holds a lock
    on one byte of the file ``.claims``, at the place that the id names. The system frees a lock
    when its process ends, however it ends, so nothing is left to clean up. Locks are the process's:
    it must not open one store twice.

    Args:
        folder: Made if absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._claims: BinaryIO | None = None

    def __enter__(self) -> Self:
        writable(self.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._claims = open(self.folder / ".claims", "ab")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._claims is not None:
            self._claims.close()  # and with it every lock is free
            self._claims = None

    def path(self, run: Run) -> Path:
        """Where its record is, or will be."""
        return self.folder / run.file_name

    def has(self, run: Run) -> bool:
        """Is there a record of this run, as it was written? One that was cut or edited is none."""
        try:
            return sealed(self.path(run).read_bytes())
        except OSError:
            return False

    def record(self, run: Run) -> Record:
        """Its record.

        Raises:
            ConfigError: there is none, or it was changed.
        """
        return read(self.path(run))

    def keep(self, run: Run, record: Record) -> None:
        """Write the record of a run that this process claimed; forget that it ever failed.

        Raises:
            ConfigError: it is of another run: a worker read code that this process does not know.
        """
        if record.id != run.id:
            raise ConfigError(
                f"{run} must be played by the code of its sweep, got record {record.id} instead of "
                f"{run.id}: the code changed meanwhile; start the sweep again"
            )
        record.write(self.folder)
        self.failure_path(run).unlink(missing_ok=True)
        for torn in self.folder.glob(f".{run.file_name}.*"):  # its writer was killed in the act
            torn.unlink(missing_ok=True)

    def failure(self, run: Run) -> Failure | None:
        """How it failed, if that is the last that was heard of it."""
        try:
            return Failure.model_validate_json(self.failure_path(run).read_bytes())
        except (OSError, ValidationError, ConfigError):  # the last one: of the scenario in it
            return None

    def failure_path(self, run: Run) -> Path:
        """Where it is written how the run failed."""
        return self.folder / "failed" / run.file_name

    def failed_at(self, run: Run) -> int | None:
        """When it failed last, in nanoseconds of the file system's clock."""
        try:
            return self.failure_path(run).stat().st_mtime_ns
        except OSError:
            return None

    def fail(self, run: Run, failure: Failure) -> None:
        """Write how it failed."""
        text = failure.model_dump_json(indent=1) + "\n"
        write_atomically(self.failure_path(run), text.encode())

    def claim(self, run: Run) -> bool:
        """Take the run for this process; False if another one has it.

        Raises:
            ConfigError: the file system has no locks.
        """
        assert self._claims is not None, "a store is used in a with statement"
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
        """Give the run back."""
        assert self._claims is not None
        fcntl.lockf(self._claims, fcntl.LOCK_UN, 1, _place(run))


def _place(run: Run) -> int:
    return int(run.id, 16) >> 2  # below 2**62: what fits into a file offset, with room for a byte
