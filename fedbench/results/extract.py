"""Entries of a store, read from the text of records without building the records.

Ten thousand records are read in a second; building them, and importing what they are made of, would
take a minute. A record in another layout than ours is left to `fedbench.experiment.record`.
"""

from __future__ import annotations

import typing
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic_core import SchemaValidator, ValidationError, from_json
from pydantic_core import core_schema as cs

from fedbench.core import seal
from fedbench.core.errors import ConfigError
from fedbench.experiment.measurements import BY_NAME, MEASURED, SCHEMA, Kind, Result, Round, Timing
from fedbench.results.fields import FAILED, NAMES, OPEN, RUN, SEEDS, SETTINGS, Entry, Fields

if TYPE_CHECKING:
    from fedbench.experiment.record import Record

# Fields of a record's scenario and timing that are written only if they differ from these values.
UNWRITTEN: dict[str, Any] = {
    **{"knowledge": None, "attack_from": 0, "attack_until": None, "attack_every": 1},
    **{"defense_draw": 0, "precision": "fp32", "split": "per-client", "augment": "none"},
    **{"cohorts": "random", "availability": "none", "adapter": "none"},
    "peak_device_memory_mib": None,
}

# A digest only says that nobody changed a file by mistake: what is shown must be fit to be shown.
WHOLE = cs.int_schema(strict=True, ge=0, lt=1 << 63)
NUMBER = cs.float_schema(strict=True, ge=0, allow_inf_nan=False)
SHARE = cs.float_schema(strict=True, ge=0, le=1)
TEXT = cs.str_schema(strict=True, pattern=r"^(?:[^\p{C}\p{Z}]| )*$")  # as str.isprintable
YES = cs.bool_schema(strict=True)
SCHEMAS: dict[str, cs.CoreSchema] = {
    **{"plug-in": TEXT, "name": TEXT, "texts": cs.list_schema(TEXT), "yes": YES},
    **{"whole": WHOLE, "number": NUMBER, "share": SHARE},
}
_types = cache(typing.get_type_hints)
PARTS = {"rounds": Round, "result": Result, "timing": Timing}


def _hints(path: list[str]) -> tuple[Any, ...]:
    """Types that a value at a place of a record may have; none where `PARTS` do not say."""
    first, *names = path
    if first not in PARTS:
        return (type(None),) if first == "privacy" else ()
    hint: Any = PARTS[first]
    types = (hint,)
    for name in names:
        hint = _types(types[0])[name]
        types = typing.get_args(hint) or (hint,)  # a part that may be missing is None
    return types


def _optional(path: list[str]) -> bool:
    """Whether the value at a place of a record, or a part that it belongs to, may be None."""
    return any(type(None) in _hints(path[:end]) for end in range(1, len(path) + 1))


def schema(name: str, kind: Kind) -> cs.CoreSchema:
    """Return the schema of a field of a run, as the index keeps it; some may be None."""
    return cs.nullable_schema(SCHEMAS[kind]) if optional(name) else SCHEMAS[kind]


def optional(name: str) -> bool:
    """Tell whether a field of a run may be None."""
    paths = BY_NAME[name].paths if name in BY_NAME else []
    return name in OPEN or any(map(_optional, paths))


def table(fields: dict[str, cs.CoreSchema]) -> cs.CoreSchema:
    """Return the schema of a mapping with these fields; others are passed over."""
    kinds = {
        name: cs.with_default_schema(kind, default=UNWRITTEN[name]) if name in UNWRITTEN else kind
        for name, kind in fields.items()
    }
    return cs.typed_dict_schema({name: cs.typed_dict_field(kind) for name, kind in kinds.items()})


def _fields(fields: Fields) -> dict[str, cs.CoreSchema]:
    return {name: schema(name, kind) for name, kind in fields.items()}


def _leaves(*part: str) -> dict[str, cs.CoreSchema]:
    """Return the schemas of the measured numbers that stand directly in a part of a record."""
    leaves: dict[str, cs.CoreSchema] = {}
    for measurement in MEASURED:
        for path in measurement.paths:
            *parents, name = path
            if parents == list(part):
                hints = _hints(path)
                kind = WHOLE if int in hints else SCHEMAS[measurement.kind]
                leaves[name] = cs.nullable_schema(kind) if type(None) in hints else kind
    return leaves


SCENARIO = table(_fields(NAMES | SETTINGS | SEEDS))
_RECORD = SchemaValidator(
    table(
        {
            "schema_version": cs.literal_schema([SCHEMA]),
            "id": TEXT,
            "scenario": SCENARIO,
            "data_digest": TEXT,
            "vote": YES,
            "environment": table({"fedbench": TEXT, "device": TEXT}),
            "privacy": cs.nullable_schema(
                table(dict.fromkeys(("unit", "sees", "adjacency"), TEXT))
            ),
            "rounds": cs.list_schema(table(_leaves("rounds"))),
            "result": table(
                _leaves("result")
                | {"per_client": cs.nullable_schema(table(_leaves("result", "per_client")))}
            ),
            "timing": table(_leaves("timing")),
            **_leaves(),  # flags and parameters
            "parameters": cs.int_schema(strict=True, ge=1, lt=1 << 63),
        }
    )
)
_OWN = ("id", "kind", "error", "tries", "chunk")  # what a failure says beside its scenario
_FAILURE = SchemaValidator(
    table(
        {
            "scenario": SCENARIO,
            "message": cs.str_schema(strict=True),
            "traceback": cs.str_schema(strict=True),
            **_fields({name: FAILED[name] for name in _OWN}),
        }
    )
)


def run(data: bytes, name: str) -> Entry | str:
    """Return the fields of a record's run, or the trouble with the record, see `index.TROUBLES`."""
    try:
        read = _RECORD.validate_json(data)
    except ValidationError:
        version = _version(data)
        return {None: "torn", 0: "foreign", SCHEMA: "foreign"}.get(version, "schema")
    return _entry(read, name) if sealed(data) else _read_slowly(data, name)


def entry(record: Record) -> Entry:
    """Return the fields of a run from its record, as `run` does from the record's text."""
    return _entry(_RECORD.validate_json(record.to_json()), record.file_name)


def sealed(data: bytes) -> bool:
    """Tell whether this is a record as it was written; if not, its layout may be another one."""
    try:
        return seal.holds(data.decode())
    except UnicodeDecodeError:
        return False


def failure(data: bytes, name: str) -> Entry | str:
    """Return the fields of a run that failed, or the trouble with its file."""
    try:
        read = _FAILURE.validate_json(data)
    except ValidationError:
        return "torn" if _version(data) is None else "foreign"
    message = "".join(c if c.isprintable() else " " for c in read["message"]).strip()
    lines = ("".join(c for c in line if c.isprintable()) for line in read["traceback"].splitlines())
    own = {field: read[field] for field in _OWN}
    own |= {"message": message, "traceback": "\n".join(lines), "file": name}
    return _ordered(read["scenario"] | own, FAILED)


def _version(data: bytes) -> int | None:
    """Return the version of the schema; 0 if there is none, None if this is no JSON."""
    try:
        read = from_json(data)
    except ValueError:
        return None
    version = read.get("schema_version") if isinstance(read, dict) else None
    return version if type(version) is int and version > 0 else 0


def _read_slowly(data: bytes, name: str) -> Entry | str:
    """Read a record in another layout, as `Record` does, or return the trouble with it."""
    from fedbench.experiment.record import Record

    try:
        Record.model_validate_json(data)
        if not seal.holds(seal.laid_out(data.decode())):
            return "changed"
        return _entry(_RECORD.validate_json(data), name)
    except (ValidationError, ConfigError):
        return "foreign"


def _entry(read: dict[str, Any], name: str) -> Entry:
    where = read["environment"]
    entry = {**read["scenario"], "id": read["id"], "file": name}
    entry["data"] = read["data_digest"][:12]
    entry |= {"code": where["fedbench"], "device": where["device"]}
    entry |= {measurement.name: measurement.read(read) for measurement in MEASURED}
    if read["vote"]:
        entry["defense"] = "vote"
    if privacy := read["privacy"]:
        entry |= {"sees": privacy["sees"], "adjacency": privacy["adjacency"]}
    return _ordered(entry, RUN)


def _ordered(entry: Entry, fields: Fields) -> Entry:
    return {name: entry[name] for name in fields}
