"""What a run measured: the JSON that everything downstream reads."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from fedbench.errors import ConfigError
from fedbench.files import write_atomically
from fedbench.measured import Environment, Part, Privacy, Result, Round, Timing
from fedbench.registry import split
from fedbench.scenario import Scenario

SCHEMA: Final = 4


class Record(Part):
    """One run of one scenario with one seed.

    ``id`` says what was run, ``digest`` that nobody has changed what was measured: SHA-256 of the
    lines of its file before its own, so ``sed '/^ "digest":/,$d' FILE | sha256sum`` checks it, too.
    Schemas 3 and 4 only added fields: records of schema 2 and 3 are read, and written, as they
    were.
    """

    schema_version: Literal[2, 3, 4] = SCHEMA
    id: str
    scenario: Scenario
    data_digest: str
    parameters: int
    vote: bool
    mechanism: str
    environment: Environment
    privacy: Privacy | None = None
    rounds: list[Round]
    result: Result
    flags: list[str]
    digest: str = ""
    timing: Timing

    def to_json(self, indent: int | None = 1) -> str:
        """In the order of the schema, with a final newline; one line without ``indent``."""
        older = self.schema_version < SCHEMA
        return self.model_dump_json(indent=indent, exclude_unset=older) + "\n"

    def measured(self) -> dict[str, Any]:
        """Everything but the times: equal for equal scenario, device and executor."""
        return self.model_dump(exclude={"timing"})

    def sealed(self) -> Record:
        """The same with its digest."""
        after, older = {"timing", "digest"}, self.schema_version < SCHEMA
        text = self.model_dump_json(indent=1, exclude=after, exclude_unset=older)
        lines = text.removesuffix("\n}") + ",\n"
        return self.model_copy(update={"digest": hashlib.sha256(lines.encode()).hexdigest()})

    @property
    def file_name(self) -> str:
        """See `file_name`."""
        return file_name(self.scenario, self.id)

    def write(self, folder: Path) -> Path:
        """Write atomically, sealed: the file is whole or absent."""
        path = folder / self.file_name
        write_atomically(path, self.sealed().to_json().encode())
        return path


def file_name(resolved: Scenario, id: str) -> str:
    """Protocol, defense, attack and seed for people, the id for machines."""
    parts = (resolved.protocol, resolved.defense, resolved.attack)
    words = [split(part)[0] for part in parts]
    return f"{'-'.join(words)}-seed{resolved.seed}-{id}.json"


def read(path: Path) -> Record:
    """A record from its file.

    Raises:
        ConfigError: unreadable, truncated, of another schema, or changed since it was written.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    return parse(data, str(path))


def parse(data: bytes, name: str) -> Record:
    """A record from its JSON; ``name`` is what errors call it.

    Raises:
        ConfigError: as `read`.
    """
    try:
        record = Record.model_validate_json(data)
    except ValidationError as error:
        _refuse_older(data, name)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigError(
            f"{name} is no record of schema {SCHEMA}: {where}: {first['msg'].lower()}; "
            "run the scenario again"
        ) from error
    except ConfigError as error:  # of the scenario in it
        raise ConfigError(f"{name} is no record of schema {SCHEMA}: {error}") from error
    if record.digest != record.sealed().digest:
        raise ConfigError(
            f"{name} must hold what its run wrote, got other content than its digest says; "
            "run the scenario again"
        )
    return record


def _refuse_older(data: bytes, name: str) -> None:
    """Say how to migrate a record of an older schema."""
    with contextlib.suppress(ValueError, AttributeError, TypeError, RecursionError):
        if json.loads(data).get("schema_version") == 1:
            raise ConfigError(
                f"{name} is a record of an older schema, but this is schema {SCHEMA}; "
                "migrate its folder: fedbench results FOLDER --migrate"
            )
