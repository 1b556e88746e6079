"""Records as runs write them, for tests of whatever reads records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedbench.experiment.measurements import Result, Round, Spread, Timing
from fedbench.experiment.record import Environment, Record
from fedbench.experiment.scenario import Scenario


def sample_round(step: int, accuracy: float | None = None, **changes: Any) -> Round:
    """A round of two clients, one of them malicious; 32 bits each way per client."""
    fields: dict[str, Any] = {
        "step": step,
        "clients": [0, 1],
        "malicious": 1,
        "accepted": 2,
        "rejected_honest": 0,
        "rejected_malicious": 0,
        "skipped": False,
        "uplink_bits": 64,
        "benign_uplink_bits": 32,
        "downlink_bits": 64,
        "accuracy": accuracy,
    }
    return Round(**fields | changes)


def sample_record(
    scenario: Scenario, rounds: Sequence[Round], result: dict[str, Any], **changes: Any
) -> Record:
    """A record of those rounds; ``result`` changes its result, ``changes`` the record itself."""
    results: dict[str, Any] = {
        "accuracy": rounds[-1].accuracy,
        "loss": 1.0,
        "per_client": Spread(mean=0.51, std=0.08, min=0.21, max=0.91),
        "uplink_bits_per_parameter": 32.0,
        "downlink_bits_per_parameter": 32.0,
        "model_bits": 3200,
        "skipped_rounds": 0,
    }
    environment = {
        "fedbench": changes.pop("code", "0.1.0"),
        "python": "3.11",
        "torch": "2.6",
        "numpy": "1.26",
        "platform": "linux",
        "device": "cpu",
        "executor": "loop",
        "threads": 1,
    }
    fields: dict[str, Any] = {
        "id": "0" * 16,
        "scenario": scenario,
        "data_digest": "digest",
        "parameters": 100,
        "vote": False,
        "mechanism": scenario.mechanism,
        "environment": Environment(**environment),
        "rounds": list(rounds),
        "result": Result(**results | result),
        "flags": [],
        "timing": Timing(seconds=5.31, peak_memory_mib=100.0),
    }
    return Record(**fields | changes)
