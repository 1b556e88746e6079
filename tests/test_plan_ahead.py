"""The attack that plans over rounds, and the gradient that goes back through simulated training."""

import dataclasses
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from test_auto import Watching
from torch import Tensor, nn
from torch.linalg import vector_norm

import fedbench
from fedbench.api import AttackView, Knowledge, Rehearsal
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors
from fedbench.run import begin, play_round
from fedbench_attacks.copied import installed
from fedbench_attacks.plan_ahead import (
    STEPS,
    PlanAhead,
    Planned,
    Training,
    gradient_of_push,
    planned,
)

TINY: dict[str, Any] = {
    "dataset": "digits",
    "model": "micro",
    "clients": 8,
    "per_round": 8,
    "malicious": 0.25,
    "rounds": 1,
    "epochs": 1,
}


def watched(rounds: int, attack: Watching | None = None, **fields: Any) -> AttackView:
    """View of the last round of a small run."""
    attack = attack or Watching("all")
    setup = prepare(Scenario(**TINY | {"rounds": 5, "clients": 4, "per_round": 4} | fields), "cpu")
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))
    state = begin(setup)
    for step in range(rounds):
        play_round(setup, state, step)
    return attack.views[-1]


@pytest.fixture(scope="module")
def view() -> AttackView:
    """View of the fifth round of a small run."""
    return watched(5)


def test_the_gradient_goes_back_through_honest_training() -> None:
    # The loss w^2 / 2 with rate 1/2 halves w in a step: 1, 1/2, 1/4, 1/8, and 9/8 after the push.
    # An eighth of the first push and all of the second are left at the end: (1/8 + 1) 9/8 = 81/64.
    assert STEPS == 3
    weights = [torch.tensor([w], dtype=torch.float64) for w in (1.0, 0.5, 0.25)]
    last = torch.tensor([9 / 8], dtype=torch.float64)
    got = gradient_of_push(lambda w: w, last, [(w, w) for w in weights], 0.5, length)
    assert float(got) == pytest.approx(81 / 64, rel=1e-9)


def length(w: Tensor) -> float:
    """Return the length of weights without running statistics."""
    return float(vector_norm(w))


def test_a_difference_of_gradients_is_a_thousandth_of_the_weights_long() -> None:
    # Of weights of length 5 it is 0.005, along the gradient (0, 2); of statistics it is no share.
    seen: list[Tensor] = []

    def slope(w: Tensor) -> Tensor:
        seen.append(w)
        return w

    w = torch.tensor([3.0, 4.0], dtype=torch.float64)
    last = torch.tensor([0.0, 2.0], dtype=torch.float64)
    gradient_of_push(slope, last, [(w, w)], 0.5, length)
    assert seen[0].tolist() == pytest.approx([3.0, 4.005], rel=1e-12)


class Saddle(Training):
    """Training whose loss is the product of two weights, beside a running statistic."""

    def __init__(self) -> None:
        self.rate = 0.5
        self.weights = torch.tensor([True, True, False])
        self.seen: list[Tensor] = []

    def loss(self, w: Tensor) -> float:
        return float(w[:2].prod())

    def slope(self, w: Tensor) -> Tensor:
        self.seen.append(w)
        x, y, _ = w
        return torch.stack([y, x, torch.zeros_like(x)])


def test_a_plan_adds_twice_the_gradient_to_its_push_five_times() -> None:
    # The gradient of x y is (y, x). From (1, 0) the climbs lead to (0, 1), which the first one
    # replaces, (2, 1), (4, 5), (14, 13) and (40, 41), but for their lengths: each is twice the
    # last one mirrored, and the last one.
    push = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    got = planned(Saddle(), torch.zeros(3, dtype=torch.float64), push, 3.0, 1)
    assert (got * 3281**0.5).tolist() == pytest.approx([40, 41, 0], rel=1e-9)


def test_a_running_statistic_makes_no_difference_of_gradients_longer() -> None:
    training = Saddle()
    start = torch.tensor([0.0, 0.0, 1e9], dtype=torch.float64)
    planned(training, start, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64), 1.0, 2)
    assert len(training.seen) == 6 * 3 + 5 * 4  # of three steps, and back through them
    assert max(float(w[:2].abs().max()) for w in training.seen) < 10


def test_differences_give_the_gradient_of_three_unrolled_rounds() -> None:
    x = Key(1).normal(40, 6).to(torch.float64)
    y = Key(2).permutation(40) % 3
    start = Key(3).normal(18).to(torch.float64)
    push = (0.3 * Key(4).normal(18).to(torch.float64)).requires_grad_()

    def loss(w: Tensor) -> Tensor:
        return nn.functional.cross_entropy(x @ w.reshape(6, 3), y)

    def slope(w: Tensor) -> Tensor:
        at = w.detach().requires_grad_()
        return torch.autograd.grad(loss(at), at)[0]

    path = []
    w = start + push
    for _ in range(2):
        for _ in range(STEPS):
            path.append((w.detach(), slope(w)))
            (g,) = torch.autograd.grad(loss(w), w, create_graph=True)
            w = w - 0.4 * g
        w = w + push
    (exact,) = torch.autograd.grad(loss(w), push)
    got = gradient_of_push(slope, slope(w), path, 0.4, length)
    assert float(vector_norm(got - exact)) < 1e-3 * float(vector_norm(exact))


def test_a_simulated_round_goes_as_far_as_the_model_went(view: AttackView) -> None:
    training = Training(view)
    start = training.before + 0.002 * Key(1).normal(len(training.before))
    training.match(start)
    went, path = training.trained(training.before)
    length = float(vector_norm(start - training.before))
    assert 0.9 * length < float(vector_norm(went - training.before)) <= length
    assert len(path) == STEPS
    assert 1e-3 < training.rate < 1


def test_samples_of_all_classes_are_as_many(view: AttackView) -> None:
    training = Training(view)
    assert view.rehearsal is not None
    counts = training.y.bincount(minlength=10)
    assert len(training.x) == int(counts.sum()) == 256
    assert int(counts.max() - counts.min()) <= 1
    rows = {tuple(x.tolist()): int(y) for x, y in zip(*flat(view.rehearsal), strict=True)}
    assert all(rows[tuple(x.tolist())] == int(y) for x, y in zip(*flat(training), strict=True))


def flat(samples: Rehearsal | Training) -> tuple[Tensor, Tensor]:
    """Samples as rows of numbers, and their labels."""
    return samples.x.flatten(1), samples.y


def test_a_round_goes_on_from_the_plan_of_the_last_one(view: AttackView) -> None:
    training = Training(view)
    assert view.defense is not None
    assert view.step == 4
    start = training.after(view.defense(view.own))
    training.match(start)
    push = Key(3).normal(len(start))
    memory = Planned(push / vector_norm(push), 0.3)
    _, later = PlanAhead(ahead=3, rounds=6).craft(view, memory)
    assert torch.equal(later.push, planned(training, start, memory.push, memory.reach, 2))
    assert later.reach != memory.reach
    # At first it starts at the steepest push, and moves the mean by a quarter of an honest row's
    # distance: one of the four clients is malicious.
    _, first = PlanAhead(ahead=2).craft(view, None)
    honest = view.seen.values()
    size = float(vector_norm(honest - honest.mean(dim=0), dim=1).mean())
    slope = training.slope(start)
    assert torch.equal(
        first.push, planned(training, start, slope / vector_norm(slope), size / 4, 2)
    )


def test_a_message_is_the_mean_and_a_push_of_it() -> None:
    view = watched(1, clients=8, per_round=8, defense="median")
    sent, after = PlanAhead(ahead=1).craft(view, None)
    honest = view.seen.values()
    mean = honest.mean(dim=0)
    strength = float(view.notes["strength"])
    assert strength < 100
    size = float(vector_norm(honest - mean, dim=1).mean())
    torch.testing.assert_close(sent.values()[1], mean + strength * size * after.push)


def test_a_push_that_moves_nothing_leaves_the_reach_as_it_was() -> None:
    view = watched(1, Watching("own"), defense="median")
    push = Key(3).normal(view.updates.shape[1])
    attack = PlanAhead(ahead=1, knows="own")
    _, after = attack.craft(view, Planned(push / vector_norm(push), 0.3))
    assert after.reach == 0.3


def test_gradients_that_are_not_finite_are_none(view: AttackView) -> None:
    training = Training(view)
    assert not training.slope(torch.full_like(training.before, math.nan)).any()
    last = torch.tensor([math.nan, math.inf, 2.0])
    got = gradient_of_push(lambda w: w, last, [(last, last)], 0.5, length)
    assert got.tolist() == [0.0, 0.0, 2.0]
    nothing = torch.zeros(2)  # which has no direction to go back in
    assert not gradient_of_push(lambda w: w, nothing, [(nothing, nothing)], 0.5, length).any()


class Normalised(nn.Module):
    """Network of a user, whose batch norm has 64 running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.relu(self.norm(self.hidden(x.flatten(1)))))
        return scores


def distance(before: Tree, after: Tree) -> float:
    """Length of a difference of weights, leaf by leaf."""
    names = [name for name in before if "running" not in name]
    return math.hypot(*(float(vector_norm(after[name] - before[name])) for name in names))


def test_running_statistics_are_no_distance() -> None:
    view = watched(1, model=Normalised, defense="geometric-median")  # they move most at first
    assert view.defense is not None
    training = Training(view)
    honest = view.defense(view.own)
    start = training.after(honest)
    training.match(start)
    length = distance(view.ahead(), view.ahead(honest))
    assert float(vector_norm(start - training.before)) > 2 * length
    went = training.trained(training.before)[0] - training.before
    assert 0.9 * length < float(vector_norm(went)) <= length
    sent, memory = PlanAhead().craft(view, None)
    poisoned = view.defense(sent)
    moved = distance(view.ahead(honest), view.ahead(poisoned))
    assert float(vector_norm(training.after(poisoned) - start)) > 1.05 * moved
    assert memory.reach == pytest.approx(moved, rel=1e-5)


def test_the_plan_leaves_a_higher_loss_later_than_the_steepest_push() -> None:
    view = watched(5, model="logistic")  # of more layers a rounding turns the push
    training = Training(view)
    assert view.defense is not None
    start = training.after(view.defense(view.own))
    training.match(start)
    steepest = training.slope(start)
    steepest = steepest / vector_norm(steepest)
    push = planned(training, start, steepest, 2.0, 4)

    def later(push: Tensor) -> float:
        w = start + 2 * push
        for _ in range(3):
            w = training.trained(w)[0] + 2 * push
        return training.loss(w)

    assert float(vector_norm(push)) == pytest.approx(1, abs=1e-5)
    assert later(push) > 1.4 * later(steepest)


@pytest.mark.parametrize(
    ("defense", "strength"),
    [
        ("mean", {4096.0}),  # nothing bounds it
        ("norm-bound:c=0.5", {0.125, 0.25, 0.5, 1.0, 2.0, 4.0}),  # more is cut to the same length
    ],
)
def test_what_is_sent_goes_as_far_as_the_rule_lets_it(defense: str, strength: set[float]) -> None:
    scenario = Scenario(**TINY, defense=defense, attack="plan-ahead")
    (r,) = fedbench.play(scenario, device="cpu").rounds
    assert r.notes["strength"] in strength
    assert r.queries == 17
    assert r.notes["evaluated"] == 6 * 256
    # 7 rates are tried in 3 steps each, one gives the first push; 9 gradients lead through four
    # rounds, six times, and 10 go back, five times.
    assert r.notes["differentiated"] == (7 * 3 + 1 + 6 * 9 + 5 * 10) * 256
    reached = {tried: float(along or 0.0) for tried, along in r.trace}
    assert len(reached) == 16
    assert max(reached.values()) <= 1.01 * reached[float(r.notes["strength"])]


@pytest.mark.parametrize(
    ("knows", "defense", "strength"),
    [
        ("own", "median", 1.0),  # of copies of one message, but for one row
        ("all", "foolsgold", 0.0),  # which leaves out rows that are equal
    ],
)
def test_where_no_strength_moves_the_model_guesses_are_not_trusted(
    knows: str, defense: str, strength: float
) -> None:
    scenario = Scenario(**TINY, defense=defense, attack=f"plan-ahead:knows={knows},ahead=1")
    record, model = fedbench.play(scenario, device="cpu", return_model=True)
    (r,) = record.rounds
    assert r.notes["strength"] == strength
    assert max(float(along or 0.0) for _, along in r.trace) <= 0
    clean = scenario.model_copy(update={"attack": "none"})
    _, honest = fedbench.play(clean, device="cpu", return_model=True)
    ours = model.state_dict()
    theirs = honest.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs) == (strength == 0)


@pytest.mark.slow
def test_a_network_without_gradient_is_no_reason_to_send_honest_messages() -> None:
    # In the first round both malicious clients are in one bucket, which the median then follows
    # 500 times as far as an honest round goes. Planned with that, the second push kills all units.
    scenario = Scenario(**TINY | {"rounds": 2}, defense="bucketing:s=2+median", attack="plan-ahead")
    first, second = fedbench.play(scenario, device="cpu").rounds
    assert first.notes["strength"] == 4096
    assert float(second.notes["strength"]) > 1


def test_a_budget_of_auto_does_not_pay_for_its_gradients() -> None:
    knowledge = Knowledge("all", defense=True, data=True)
    names = installed(FloatVectors, knowledge)
    assert "stat-opt" in names
    assert "plan-ahead" not in names


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"ahead": 0}, r"PlanAhead.ahead must be in \[1, 20\], got 0"),
        ({"rounds": -1}, "PlanAhead.rounds must be >= 0, got -1"),
    ],
)
def test_plans_have_a_length(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        PlanAhead(**fields)


@pytest.mark.slow
def test_who_knows_the_end_does_more_in_the_last_round_than_auto() -> None:
    # 12 points less behind centered clipping, mean of six seeds (docs/results/adaptive.md).
    script = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "planned.py"))
    scenario = {"defense": "centered-clipping", "rounds": 20, "model": script["Perceptron"]}
    left = {
        attack: [
            script["played"](scenario | {"attack": attack, "seed": seed})[1] for seed in (0, 1)
        ]
        for attack in ("auto", "plan-ahead:rounds=20")
    }
    assert sum(left["plan-ahead:rounds=20"]) < sum(left["auto"]) - 10
