"""Faults of public code, each with the test that would have caught it: D1 to D20.

D1 and D9 are in test_golden.py, D2 and D3 in test_coordinate_rules.py, D8 in test_conformance.py,
D10 in test_filter_rules.py, D13, D17 and D18 in test_run.py, D20 in test_accountants.py, the others
in tests of attacks.
"""

from typing import Any

import pytest

import fedbench
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.scenario import Scenario
from fedbench.sweep.plan import Plan, preset_names

SMALL = Scenario(clients=20, per_round=6, rounds=3, epochs=1, eval_every=1, malicious=0.4)


@pytest.mark.slow
def test_d7_every_cell_of_a_preset_has_the_same_training_and_unknown_keys_are_refused() -> None:
    for name in preset_names():
        cells, _ = Plan.preset(name, {}).cells()
        taught: dict[tuple[str, str], set[str]] = {}  # of a protocol and a rule, how it is trained
        for cell in cells:
            key = registry.split(cell.protocol)[0], cell.defense
            taught.setdefault(key, set()).add(cell.resolved.protocol)
        for (protocol, rule), texts in taught.items():
            others = [t for (p, r), t in taught.items() if p == protocol and r != rule]
            assert all(texts == other for other in others), f"{name}: an lr for each defense"
    with pytest.raises(ConfigError, match=r'\'malicious"\' is no axis'):
        Plan.of({"scenario": {'malicious"': 0.2}}, "stray quote")


def test_d15_the_score_is_the_last_look_and_ids_cover_every_field() -> None:
    record = fedbench.play(SMALL.model_copy(update={"attack": "sign-flip"}), device="cpu")
    looks = [r.accuracy for r in record.rounds]
    assert record.result.accuracy == looks[-1]
    changed: dict[str, Any] = {"protocol": "fedavg:lr=0.02", "attack": "sign-flip:scale=2"}
    changed |= {"defense": "trimmed-mean:f=1", "mechanism": "dp-fedavg", "dataset": "mnist-5k"}
    changed |= {"model": "micro", "partition": "iid", "local_models": True, "sampling": "poisson"}
    changed |= {"sees": "messages", "adjacency": "zero-out", "server_checks": "none"}
    changed |= {"knowledge": "all", "data_seed": 7, "precision": "bf16"}
    ids = {resolve(SMALL).id()}
    for name in Scenario.model_fields:
        value = getattr(SMALL, name)
        halved = value / 2 if isinstance(value, float) else 0.2 if name == "declared" else None
        other = changed[name] if name in changed else halved or (value or 0) + 2
        ids.add(resolve(SMALL.model_copy(update={name: other})).id())
    assert len(ids) == 1 + len(Scenario.model_fields)
