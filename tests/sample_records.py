"""Records as runs write them, for tests of whatever reads records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from fedbench.experiment.cells import Cell
from fedbench.experiment.measurements import Result, Round, Spread, Timing
from fedbench.experiment.record import Environment, Privacy, Record
from fedbench.experiment.scenario import Scenario
from fedbench.results import summary

Results = dict[Cell, list[Record]]
LONG = "fedavg:lr=0.1,momentum=0.9,weight_decay=0.0005"


def cell(protocol: str, defense: str, attack: str, mechanism: str = "none") -> Cell:
    fields = {"protocol": protocol, "defense": defense, "attack": attack}
    return Cell(Scenario(**fields, mechanism=mechanism))  # type: ignore[arg-type]


def rows(results: Results) -> list[summary.Row]:
    return summary.rows(list(results), results)


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
    versions = {"fedbench": changes.pop("code", "0.1.0"), "python": "3.11", "torch": "2.6"}
    where: dict[str, Any] = {"platform": "linux", "device": "cpu", "executor": "loop", "threads": 1}
    fields: dict[str, Any] = {
        "id": "0" * 16,
        "scenario": scenario,
        "data_digest": "digest",
        "parameters": 100,
        "vote": False,
        "mechanism": scenario.mechanism,
        "environment": Environment(**versions, numpy="1.26", **where),
        "rounds": list(rounds),
        "result": Result(**results | result),
        "flags": [],
        "timing": Timing(seconds=5.31, peak_memory_mib=100.0),
    }
    return Record(**fields | changes)


def made(
    attack: str = "none",
    seed: int = 0,
    accuracy: float = 0.5,
    *,
    malicious: Sequence[int] = (1, 2),
    epsilon: float | None = None,
    flags: Sequence[str] = (),
    code: str = "1",
    vote: bool = False,
    **scenario: Any,
) -> Record:
    """A record of fsl as it is stored, of a round for each number of ``malicious`` clients.

    Its numbers are all different.
    """
    described: dict[str, Any] = {"protocol": "fsl:k=0.5,lr=0.1", "defense": "mean"}
    described |= {"data_seed": seed} | scenario
    name = f"{attack} {seed} {code} {vote} {epsilon} {described}"
    rounds = [
        sample_round(
            step,
            accuracy,
            **{"clients": [0, 1, 2], "malicious": taken, "accepted": 3},
            **{"rejected_honest": step, "rejected_malicious": 2 * step},
            **{"uplink_bits": 100, "benign_uplink_bits": 70, "downlink_bits": 30 + step},
        )
        for step, taken in enumerate(malicious)
    ]
    result = {
        "loss": 1.5,
        "per_client": Spread(mean=accuracy, std=0.1, min=accuracy / 2, max=1.0),
        "uplink_bits_per_parameter": 1.25 + seed,
        "entropy_bits_per_parameter": None if seed else 0.5,
        "downlink_bits_per_parameter": 32.5,
        "sparsity": 0.25,
        "skipped_rounds": 3,
        "epsilon": epsilon,
    }
    seen: dict[str, Any] = {"sees": "sum", "adjacency": "zero-out", "sampler": "", "winner": ""}
    private = epsilon is not None or "mechanism" in scenario
    return sample_record(
        Scenario(attack=attack, seed=seed, rounds=len(rounds), **described),
        rounds,
        result,
        id=hashlib.sha256(name.encode()).hexdigest()[:16],
        parameters=200,
        vote=vote,
        code=code,
        privacy=Privacy(epsilon=epsilon, delta=1e-5, unit="client", **seen) if private else None,
        flags=list(flags),
        timing=Timing(seconds=2.0 + seed, peak_memory_mib=100.0 + seed),
    )
