"""What a record says about its run, read from its text without building the record.

Ten thousand records are read in a second; building them, and importing what they are made of, would
take a minute. A record that is not written as ours are is left to `fedbench.experiment.record`.
"""

from __future__ import annotations

from typing import Any

from pydantic_core import SchemaValidator, ValidationError, from_json
from pydantic_core.core_schema import (
    CoreSchema,
    bool_schema,
    float_schema,
    int_schema,
    list_schema,
    literal_schema,
    nullable_schema,
    str_schema,
    typed_dict_field,
    typed_dict_schema,
    with_default_schema,
)

from fedbench.core import seal
from fedbench.core.errors import ConfigError
from fedbench.results.fields import FAILED, NAMES, OPTIONAL, RUN, SEEDS, SETTINGS, Entry, Fields

SCHEMA = 4  # of records; to ask `fedbench.experiment.record` would import torch
UNWRITTEN: dict[str, Any] = {  # fields that a scenario leaves out where they say nothing
    "knowledge": None,
    "attack_from": 0,
    "attack_until": None,
    "attack_every": 1,
    "defense_draw": 0,
    "precision": "fp32",
}

# A digest only says that nobody changed a file by mistake: what is shown must be fit to be shown.
WHOLE = int_schema(strict=True, ge=0, lt=1 << 63)
NUMBER = float_schema(strict=True, ge=0, allow_inf_nan=False)
SHARE = float_schema(strict=True, ge=0, le=1)
TEXT = str_schema(strict=True, pattern=r"^(?:[^\p{C}\p{Z}]| )*$")  # as str.isprintable
KINDS: dict[str, CoreSchema] = {
    "plug-in": TEXT,
    "name": TEXT,
    "whole": WHOLE,
    "number": NUMBER,
    "share": SHARE,
    "yes": bool_schema(strict=True),
    "texts": list_schema(TEXT),
}


def schema(field: str, kind: str) -> CoreSchema:
    """What a field of a run may hold."""
    return nullable_schema(KINDS[kind]) if field in OPTIONAL else KINDS[kind]


def _table(**fields: CoreSchema) -> CoreSchema:
    """These fields; others are passed over."""
    kinds = {
        name: with_default_schema(kind, default=UNWRITTEN[name]) if name in UNWRITTEN else kind
        for name, kind in fields.items()
    }
    return typed_dict_schema({name: typed_dict_field(kind) for name, kind in kinds.items()})


def _fields(fields: Fields) -> dict[str, CoreSchema]:
    return {name: schema(name, kind) for name, kind in fields.items()}


SCENARIO = _table(**_fields(NAMES | SETTINGS | SEEDS))
_RECORD = SchemaValidator(
    _table(
        schema_version=literal_schema([SCHEMA]),
        id=TEXT,
        scenario=SCENARIO,
        parameters=int_schema(strict=True, ge=1, lt=1 << 63),
        vote=bool_schema(strict=True),
        environment=_table(fedbench=TEXT, device=TEXT),
        privacy=nullable_schema(_table(unit=TEXT, sees=TEXT, adjacency=TEXT)),
        rounds=list_schema(
            _table(
                malicious=WHOLE,
                rejected_honest=WHOLE,
                rejected_malicious=WHOLE,
                uplink_bits=nullable_schema(WHOLE),
                downlink_bits=WHOLE,
                queries=WHOLE,
            )
        ),
        result=_table(
            accuracy=SHARE,
            loss=nullable_schema(NUMBER),
            per_client=_table(min=SHARE),
            local_accuracy=nullable_schema(SHARE),
            uplink_bits_per_parameter=nullable_schema(NUMBER),
            entropy_bits_per_parameter=nullable_schema(NUMBER),
            downlink_bits_per_parameter=NUMBER,
            model_bits=WHOLE,
            sparsity=nullable_schema(SHARE),
            epsilon=nullable_schema(NUMBER),
            skipped_rounds=WHOLE,
            validation_accuracy=nullable_schema(SHARE),
            success=nullable_schema(SHARE),
            true_positive_rate=nullable_schema(SHARE),
            false_positive_rate=nullable_schema(SHARE),
        ),
        flags=list_schema(TEXT),
        timing=_table(seconds=NUMBER, peak_memory_mib=NUMBER, attack_seconds=NUMBER),
    )
)
_OWN = ("id", "kind", "error", "tries", "chunk")  # what a failure says beside its scenario
_FAILURE = SchemaValidator(
    _table(
        scenario=SCENARIO,
        message=str_schema(strict=True),
        **_fields({name: FAILED[name] for name in _OWN}),
    )
)


def run(data: bytes, name: str) -> Entry | str:
    """The fields of the run with this record, or what is wrong with it: see `index.TROUBLES`."""
    try:
        read = _RECORD.validate_json(data)
    except ValidationError:
        return _trouble(data)
    return _entry(read, name) if sealed(data) else _asked(data, name)


def sealed(data: bytes) -> bool:
    """Is this a record as it was written? If not, it may still be one, in another layout."""
    try:
        return seal.holds(data.decode())
    except UnicodeDecodeError:
        return False


def failure(data: bytes, name: str) -> Entry | str:
    """The same for the file of a run that failed."""
    try:
        read = _FAILURE.validate_json(data)
    except ValidationError:
        return "torn" if _version(data) is None else "foreign"
    message = "".join(c if c.isprintable() else " " for c in read["message"]).strip()
    own = {field: read[field] for field in _OWN}
    return _ordered(read["scenario"] | own | {"message": message, "file": name}, FAILED)


def _trouble(data: bytes) -> str:
    """What is wrong with what is no record of this schema."""
    version = _version(data)
    if version is None:
        return "torn"
    return "foreign" if version in (0, SCHEMA) else "schema"


def _version(data: bytes) -> int | None:
    """Of the schema; 0 if there is none, None if this is no JSON."""
    try:
        read = from_json(data)
    except ValueError:
        return None
    version = read.get("schema_version") if isinstance(read, dict) else None
    return version if type(version) is int and version > 0 else 0


def _asked(data: bytes, name: str) -> Entry | str:
    """What the schema says to a record that is not as it was written."""
    from fedbench.experiment.record import Record

    try:
        Record.model_validate_json(data)
        if not seal.holds(seal.laid_out(data.decode())):
            return "changed"
        return _entry(_RECORD.validate_json(data), name)
    except (ValidationError, ConfigError):
        return "foreign"


def _entry(read: dict[str, Any], name: str) -> Entry:
    scenario, result, rounds = read["scenario"], read["result"], read["rounds"]
    privacy = read["privacy"]
    up, down = ([one[f"{way}link_bits"] for one in rounds] for way in ("up", "down"))
    entry = {
        **scenario,
        "id": read["id"],
        "accuracy": result["accuracy"],
        "loss": result["loss"],
        "worst_client": result["per_client"]["min"],
        "local_accuracy": result["local_accuracy"],
        "uplink_bits": result["uplink_bits_per_parameter"],
        "entropy_bits": result["entropy_bits_per_parameter"],
        "downlink_bits": result["downlink_bits_per_parameter"],
        "total_bits": None if None in up else float(sum(up) + sum(down)),
        "model_bits": result["model_bits"] / read["parameters"],
        "sparsity": result["sparsity"],
        "epsilon": result["epsilon"],
        "unit": privacy and privacy["unit"],
        "malicious_messages": sum(one["malicious"] for one in rounds),
        "rejected_honest": sum(one["rejected_honest"] for one in rounds),
        "rejected_malicious": sum(one["rejected_malicious"] for one in rounds),
        "skipped_rounds": result["skipped_rounds"],
        "validation_accuracy": result["validation_accuracy"],
        "success": result["success"],
        "true_positive_rate": result["true_positive_rate"],
        "false_positive_rate": result["false_positive_rate"],
        "queries": sum(one["queries"] for one in rounds),
        "flags": read["flags"],
        "seconds": read["timing"]["seconds"],
        "peak_memory_mib": read["timing"]["peak_memory_mib"],
        "attack_seconds": read["timing"]["attack_seconds"],
        "parameters": read["parameters"],
        "code": read["environment"]["fedbench"],
        "device": read["environment"]["device"],
        "file": name,
    }
    if read["vote"]:
        entry["defense"] = "vote"
    if privacy:
        entry |= {"sees": privacy["sees"], "adjacency": privacy["adjacency"]}
    return _ordered(entry, RUN)


def _ordered(entry: Entry, fields: Fields) -> Entry:
    return {name: entry[name] for name in fields}
