"""When an attack acts, what it may be shown, and what the record says of it."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import attack_view, malicious_clients
from fedbench.api import Attack, AttackView, Defense, Knowledge, ServerView
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import ADVERSARY, Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import FloatVectors, Payload
from fedbench.results import fields
from fedbench.run import play_round
from fedbench.sweep.grid import Grid
from fedbench.testing import example_context
from fedbench_defenses.mean import Mean

SMALL = Scenario(clients=20, per_round=6, rounds=6, epochs=1, eval_every=1, malicious=0.4)


def with_attack(attack: Attack, **changes: Any) -> Setup:
    setup = prepare(SMALL.model_copy(update=changes), "cpu")
    return dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))


@dataclass(frozen=True)
class Searching(Attack):
    def needs(self) -> Knowledge:
        return Knowledge("colluders", defense=True)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        assert view.defense is not None
        for strength, draw in ((1.0, 0), (2.0, 0), (float("inf"), 1)):
            view.trace.append((strength, float(view.defense(view.own, draw).norm())))
        return view.own, memory


def test_an_attack_acts_in_its_window_only() -> None:
    scenario = {"attack_from": 1, "attack_until": 5, "attack_every": 3, "attack": "sign-flip"}
    record = fedbench.play(SMALL.model_copy(update=scenario), device="cpu")
    assert all(r.malicious for r in record.rounds), "or this says nothing"
    acted = [r.gain_mean is not None and r.gain_mean > 0.01 for r in record.rounds]
    assert acted == [False, True, False, False, True, False]  # rounds 1 and 4, not 5


def test_the_malicious_share_is_rounded_to_the_nearest_whole_number_of_clients() -> None:
    # 0.29 * 100 = 28.999999999999996 and 0.35 * 10 = 3.5, of which `int` would make 28 and 3; 2.5
    # is as near to 2 as to 3, and Python rounds it to the even one.
    for clients, fraction, expected in ((100, 0.29, 29), (10, 0.35, 4), (10, 0.25, 2), (3, 0.1, 0)):
        assert int(malicious_clients(clients, fraction, Key(0)).sum()) == expected


@pytest.mark.slow
def test_a_window_that_never_opens_is_a_clean_run() -> None:
    shut = fedbench.play(
        SMALL.model_copy(update={"attack": "sign-flip", "attack_from": 6}), device="cpu"
    )
    clean = fedbench.play(SMALL, device="cpu")
    assert [r.accuracy for r in shut.rounds] == [r.accuracy for r in clean.rounds]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("attack_from", -1, "--attack-from must be >= 0, got -1"),
        ("attack_every", 0, "--attack-every must be >= 1, got 0"),
        ("attack_until", 2, "--attack-until must be None or > --attack-from = 2, got 2"),
        ("knowledge", "everything", "--knowledge must be own, colluders or all, each with or"),
        ("knowledge", "all+all", "--knowledge must be own, colluders or all, each with or"),
    ],
)
def test_a_window_or_a_cap_that_means_nothing_is_refused(field: str, value: Any, said: str) -> None:
    given = {"attack_from": 2} if field == "attack_until" else {}
    with pytest.raises(ConfigError) as error:
        Scenario.of(**given, **{field: value})
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(
    ("cap", "fits"),
    [
        (None, {"sign-flip", "rank-reversal", "dyn-opt"}),
        ("own+defense+state", {"sign-flip"}),
        ("colluders", {"sign-flip", "rank-reversal"}),
        ("all+state", {"sign-flip", "rank-reversal"}),
        ("all+defense", {"sign-flip", "rank-reversal", "dyn-opt"}),
    ],
)
def test_an_attack_that_must_see_too_much_is_left_out(cap: str | None, fits: set[str]) -> None:
    names = ("sign-flip", "rank-reversal", "dyn-opt")
    axes = {"protocol": ("fsl",), "attack": names, "knowledge": (cap,)}
    cells, skipped = Grid(axes).cells()
    assert {cell.attack for cell in cells} - {"none"} == fits
    assert {skip.attack for skip in skipped} == set(names) - fits
    for skip in skipped:
        assert f"must be shown {'all + defense' if skip.attack == 'dyn-opt' else ''}" in skip.reason
    if cap == "colluders":
        with pytest.raises(
            Incompatible, match=r"dyn-opt must be shown all \+ defense, but --knowledge c"
        ):
            load_plugins(Scenario(attack="dyn-opt", knowledge=cap))


def test_what_a_search_tried_and_how_often_it_asked_is_recorded(tmp_path: Path) -> None:
    setup = with_attack(Searching())
    run_state = RunState(setup.plugins.protocol.init(setup.shared))
    r = play_round(setup, run_state, 0)
    assert r.queries == 3
    assert [strength for strength, _ in r.trace] == [1.0, 2.0, None]  # JSON has no infinity
    assert r.trace[0][1] == r.trace[1][1]
    assert run_state.attack_seconds > 0


@dataclass(frozen=True, kw_only=True)
class Dice(Defense[None]):
    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        return x.mean(dim=0) + view.key.normal(x.shape[1]), None


def test_an_oracle_has_its_own_randomness_and_gives_equal_answers_to_equal_draws() -> None:
    rows = FloatVectors(torch.arange(12.0).reshape(4, 3))
    context = example_context(rows, Dice())
    oracle = attack_view(Searching(), context).defense
    assert oracle is not None
    own = rows.take([0, 1])
    assert torch.equal(oracle(own, 1), oracle(own, 1))
    assert not torch.equal(oracle(own), oracle(own, 1))
    server = Dice().aggregate(rows, None, context.view)[0]
    for draw in range(4):
        assert not torch.equal(oracle(own, draw), server)


def test_an_oracle_tells_no_more_than_the_tier() -> None:
    rows = FloatVectors(torch.tensor([[1.0], [0.0], [0.0]]))
    context = example_context(rows, Mean(), (0,))
    for weights in ([1.0, 1.0, 1.0], [1.0, 50.0, 50.0]):
        sizes = torch.tensor(weights, dtype=torch.float64)
        here = dataclasses.replace(context, view=dataclasses.replace(context.view, weights=sizes))
        oracle = attack_view(Searching(), here).defense
        assert oracle is not None
        # Its own message stands in for the others': 7 and twice 1, whoever has how much data.
        assert float(oracle(FloatVectors(torch.tensor([[7.0]])))) == pytest.approx(3.0)


def test_where_each_client_is_sent_its_own_the_adversary_hears_and_returns_its_own() -> None:
    rows = FloatVectors(torch.arange(8.0).reshape(4, 2))
    context = example_context(rows, Mean(), (1, 3))
    each = dataclasses.replace(context, view=dataclasses.replace(context.view, broadcast=rows))
    heard = attack_view(Searching(), each).broadcast.values()
    assert heard.tolist() == [[2.0, 3.0], [6.0, 7.0]]
    shared = attack_view(Searching(), context).broadcast.values()
    assert shared.tolist() == [[0.0, 1.0]]
    context = example_context(FloatVectors(torch.zeros(4, 2)), Mean(), (1, 3))
    for idle, expected in (
        (torch.arange(8.0).reshape(4, 2), [[2.0, 3.0], [6.0, 7.0]]),
        (torch.tensor([[5.0, 6.0]]), [[5.0, 6.0], [5.0, 6.0]]),
    ):
        view = attack_view(Searching(), dataclasses.replace(context, idle=idle))
        assert view.idle.tolist() == expected


@pytest.fixture(scope="module")
def record() -> Record:
    return fedbench.play(SMALL.model_copy(update={"rounds": 1}), device="cpu")


def test_the_validation_accuracy_is_of_other_samples_than_the_test_accuracy(record: Record) -> None:
    setup = prepare(SMALL, "cpu")
    for validation, test, train in zip(
        setup.population.validation, setup.population.test, setup.population.train, strict=True
    ):
        assert not set(validation.tolist()) & (set(test.tolist()) | set(train.tolist()))
    benign = [
        len(v)
        for v, bad in zip(setup.population.validation, setup.population.malicious, strict=True)
        if not bad
    ]
    assert record.result.validation_accuracy is not None
    right = record.result.validation_accuracy * sum(benign)
    assert right == pytest.approx(round(right)), "a share of exactly these samples"


def test_the_light_path_names_the_adversary_s_fields_as_the_scenario_does() -> None:
    assert fields.ADVERSARY == ADVERSARY, "sweep/fields.py says it again: it must not import torch"
