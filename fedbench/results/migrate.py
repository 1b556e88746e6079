"""Records of an older schema, brought to this one."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically
from fedbench.experiment.record import Record


def migrate(path: Path) -> bool:
    """Bring a record of schema 1 to schema 2, in its place; False if it is no such record.

    Schema 2 knows the chunk of the executor, which is unknown here, and seals records: the digest
    says that nothing changes from now on, not that nothing has.

    Raises:
        ConfigError: it cannot be read, or its folder cannot be written.
    """
    try:
        read = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError):
        return False
    if not isinstance(read, dict) or read.get("schema_version") != 1:
        return False
    try:
        environment = {**read["environment"], "chunk": None}
        second = read | {"schema_version": 2, "environment": environment, "digest": ""}
        record = Record.model_validate_json(json.dumps(second))
    except (ValidationError, ConfigError, KeyError, TypeError):
        return False
    write_atomically(path, record.sealed().to_json().encode())
    return True


def migrate_all(store: Path) -> int:
    """How many records of a store had an older schema; now they have this one.

    Raises:
        ConfigError: as `migrate`, or there is no such folder.
    """
    if not store.is_dir():
        raise ConfigError(f"STORE must be a folder of records, got {str(store)!r}")
    return sum(migrate(path) for path in sorted(store.glob("[!.]*.json")) if path.is_file())
