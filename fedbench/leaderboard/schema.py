"""JSON Schemas of what a board is made of, from the models."""

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedbench.core.files import write_atomically
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import UNWRITTEN
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.rules import Rules

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """Return file names and texts: entries and records as they are written, rules as read."""
    models: dict[str, type[BaseModel]] = {"entry": Entry, "record": Record}
    by_name = {
        name: model.model_json_schema(mode="serialization") for name, model in models.items()
    }
    for schema in by_name.values():
        _unwritten_optional(schema)
    by_name["rules"] = Rules.model_json_schema()
    return {
        f"{name}.json": json.dumps({"$schema": DRAFT, **schema}, indent=1) + "\n"
        for name, schema in by_name.items()
    }


def _unwritten_optional(schema: dict[str, Any]) -> None:
    """Require no field that a scenario leaves out where it says nothing."""
    scenario = schema["$defs"]["Scenario"]
    if "required" in scenario:
        scenario["required"] = [name for name in scenario["required"] if name not in UNWRITTEN]


def write(out: Path) -> list[Path]:
    """Write all schemas into a folder, and return their paths."""
    texts = schemas()
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return [out / name for name in texts]
