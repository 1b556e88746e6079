"""Faults of public code, each with the test that would have caught it: D1 to D20.

D4 to D6 and D14 are in test_backdoor_traps.py, D11 to D13, D16 and D19 in test_attack_traps.py, D10
in test_filter_rules.py, D2 and D3 in test_coordinate_rules.py.
"""

from typing import Any

import pytest
import torch

import fedbench
from fedbench.api import ServerView
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
from fedbench_defenses.distances import krum_scores, nearest_others, squared_distances
from fedbench_defenses.multi_krum import MultiKrum

SMALL = Scenario(clients=20, per_round=6, rounds=3, epochs=1, eval_every=1, malicious=0.4)


def view(x: torch.Tensor) -> ServerView:
    weights = torch.ones(len(x), dtype=torch.float64)
    return ServerView(weights, FloatVectors(x[:1]), 0, Key(0), root=FloatVectors(x[-1:]))


def test_d1_krum_is_the_papers_score() -> None:
    # n = 6, f = 1: squared distances to the 3 nearest others. Row 4 (16): 1 + 16 + 16; row 2 (12):
    # 9 + 9 + 16; row 3 (15): 1 + 9 + 25. With n - f - 1 = 4 neighbours, squared or not, row 3 wins,
    # with fourth powers row 2.
    x = torch.tensor([[1.0], [9.0], [12.0], [15.0], [16.0], [20.0]])
    scores = krum_scores(nearest_others(squared_distances(x))[0], 1)
    assert scores.tolist() == [381, 94, 34, 35, 33, 105]
    answer, _ = MultiKrum(f=1, m=1).aggregate(FloatVectors(x), None, view(x))
    assert float(answer) == 16.0


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
    answer, _ = rule.aggregate(FloatVectors(x), rule.init(FloatVectors(x).spec), view(x))
    assert float((answer - x.mean(dim=0)).norm()) > 1e3, "the mean is 1818 off in each coordinate"
    assert float(answer.norm()) < 100


def test_d8_the_server_is_told_the_declared_share_and_not_the_rounds() -> None:
    setup = prepare(SMALL.model_copy(update={"defense": "trimmed-mean", "malicious": 0.3}), "cpu")
    assert setup.plugins.defense.f == 2  # 0.3 of 6, rounded up, in every round
    counts = {int(setup.population.malicious[setup.sample(step)].sum()) for step in range(40)}
    assert len(counts) > 1, "the rounds do differ"


def test_d9_multi_krum_averages_all_but_f_rows() -> None:
    x = torch.tensor([[0.0], [0.1], [0.2], [0.3], [0.4], [9.0], [9.5]])
    answer, _ = MultiKrum(f=2).aggregate(FloatVectors(x), None, view(x))
    assert float(answer) == pytest.approx(0.2)  # of five rows; one row would be 0.2 too: so
    x[4] = 1.0
    answer, _ = MultiKrum(f=2).aggregate(FloatVectors(x), None, view(x))
    assert float(answer) == pytest.approx(0.32)


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
        participation = Participation(
            rounds=times, times=times, clients=10, per_round=10, honest=10
        )
        return price(FlippedBits(50, 0.4), participation, 1e-5).epsilon

    single, hundred = after(1), after(100)
    assert 5 < hundred / single < 100  # between the root of the rounds and their number
