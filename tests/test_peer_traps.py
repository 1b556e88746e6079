"""Faults of public code, each with the test that would have caught it: D1 to D20.

D1 and D9 are in test_golden.py, D2 and D3 in test_coordinate_rules.py, D10 in test_filter_rules.py,
D4 to D6 and D14 in test_backdoor_traps.py, D11 to D13, D16 and D19 in test_attack_traps.py.
"""

from typing import Any

import pytest
from rules import answer

import fedbench
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors
from fedbench.privacy.accountants import price
from fedbench.privacy.events import FlippedBits
from fedbench.privacy.participation import Participation
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


def bounded(name: str) -> bool:
    rule = registry.load("defense", name).declared(2)
    return rule.refuses(FloatVectors) is None and rule.tolerates(11) >= 2


@pytest.mark.parametrize("name", [n for n in registry.names("defense") if bounded(n)])
def test_d8_no_defense_is_silently_the_mean(name: str) -> None:
    rule = registry.load("defense", name).declared(2)
    x = Key(1).normal(11, 40)  # 4 f + 3, which Bulyan asks for
    x[:2] = 1e4
    out = answer(rule, x)
    assert float((out - x.mean(dim=0)).norm()) > 1e3, "the mean is 1818 off in each coordinate"
    assert float(out.norm()) < 100


def test_d8_the_server_is_told_the_declared_share_and_not_the_rounds() -> None:
    setup = prepare(SMALL.model_copy(update={"defense": "trimmed-mean", "malicious": 0.3}), "cpu")
    assert setup.plugins.defense.f == 2  # 0.3 of 6, rounded up, in every round
    counts = {int(setup.population.malicious[setup.sample(step)].sum()) for step in range(40)}
    assert len(counts) > 1, "the rounds do differ"


def test_d15_the_score_is_the_last_look_and_ids_cover_every_field() -> None:
    record = fedbench.play(SMALL.model_copy(update={"attack": "sign-flip"}), device="cpu")
    looks = [r.accuracy for r in record.rounds]
    assert record.result.accuracy == looks[-1]
    changed: dict[str, Any] = {
        "protocol": "fedavg:lr=0.02",
        "attack": "sign-flip:scale=2",
        "defense": "trimmed-mean:f=1",
        "mechanism": "dp-fedavg",
        "dataset": "mnist-5k",
        "model": "micro",
        "partition": "iid",
        "local_models": True,
        "sampling": "poisson",
        "sees": "messages",
        "adjacency": "zero-out",
        "server_checks": "none",
        "knowledge": "all",
        "data_seed": 7,
        "precision": "bf16",
    }
    ids = {resolve(SMALL).id()}
    for name in Scenario.model_fields:
        value = getattr(SMALL, name)
        halved = value / 2 if isinstance(value, float) else 0.2 if name == "declared" else None
        other = changed[name] if name in changed else halved or (value or 0) + 2
        ids.add(resolve(SMALL.model_copy(update={name: other})).id())
    assert len(ids) == 1 + len(Scenario.model_fields)


def test_d17_d18_no_round_is_drawn_again_and_the_adversary_is_who_it_is() -> None:
    setup = prepare(SMALL, "cpu")
    counts = [int(setup.population.malicious[setup.sample(step)].sum()) for step in range(300)]
    # 8 of 20 are malicious, 6 are drawn: at least half of them with probability 0.4551.
    lost = sum(2 * m >= 6 for m in counts)
    assert 0.4551 * 300 - 5 * 8.63 < lost < 0.4551 * 300 + 5 * 8.63
    assert [setup.sample(step) for step in range(9)] == [
        prepare(SMALL, "cpu").sample(step) for step in range(9)
    ], "and sampling is seeded"
    owned = set(setup.population.malicious.nonzero()[:, 0].tolist())
    assert len(owned) == 8
    met = {i for step in range(200) for i in setup.sample(step) if setup.population.malicious[i]}
    assert met == owned
    shares = {int(setup.population.malicious[setup.sample(step)].sum()) for step in range(50)}
    assert len(shares) > 2, "no exact ratio in each round"


def test_d20_epsilon_composes_over_rounds() -> None:
    def after(times: int) -> float:
        part = Participation(rounds=times, times=times, clients=10, per_round=10, honest=10)
        return price(FlippedBits(50, 0.4), part, 1e-5).epsilon

    single, hundred = after(1), after(100)
    assert 5 < hundred / single < 100  # between the root of the rounds and their number
