"""JSON Schemas of what a board is made of, from the models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from fedbench.core.files import write_atomically
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import LATER
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.rules import Rules

# Fields that schemas 3 and 4 of records have added, by model.
LATER_IN = {
    "Scenario": LATER,
    "Round": (
        "success",
        "queries",
        "trace",
        "true_positive_rate",
        "false_positive_rate",
        "findings",
    ),
    "Result": (
        "validation_accuracy",
        "success",
        "true_positive_rate",
        "false_positive_rate",
    ),
    "Timing": ("attack_seconds",),
}
DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schemas() -> dict[str, str]:
    """Name of the file, and its text: entries and records as they are written, rules as read."""
    models: dict[str, type[BaseModel]] = {"entry": Entry, "record": Record}
    found = {name: one.model_json_schema(mode="serialization") for name, one in models.items()}
    for schema in found.values():
        _later_optional(schema)
    found["rules"] = Rules.model_json_schema()
    texts = {name: {"$schema": DRAFT, **schema} for name, schema in found.items()}
    return {f"{name}.json": json.dumps(text, indent=1) + "\n" for name, text in texts.items()}


def _later_optional(schema: dict[str, Any]) -> None:
    """What records of an older schema do not have is not required."""
    for name, part in {**schema["$defs"], schema["title"]: schema}.items():
        if name in LATER_IN and "required" in part:
            part["required"] = [f for f in part["required"] if f not in LATER_IN[name]]


def write(out: Path) -> list[Path]:
    """All of them into a folder."""
    texts = schemas()
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    return [out / name for name in texts]
