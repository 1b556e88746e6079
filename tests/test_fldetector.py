"""FLDetector: predicted updates, clusters of scores, and clients that come and go."""

import math
from dataclasses import replace
from statistics import fmean, pstdev, pvariance
from typing import Any

import pytest
import torch
from rules import view_of
from torch import Tensor

import fedbench
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors, Rankings
from fedbench_defenses.crfl import CRFL
from fedbench_defenses.deepsight import DeepSight
from fedbench_defenses.fldetector import (
    DRAWS,
    FLDetector,
    hessian_product,
    is_divided,
    spread,
)


def bfgs(steps: Tensor, changes: Tensor, v: Tensor) -> Tensor:
    """Update ``sigma I`` pair by pair."""
    sigma = (steps[-1] @ changes[-1]) / (steps[-1] @ steps[-1])
    b = sigma * torch.eye(len(v), dtype=torch.float64)
    for s, y in zip(steps, changes, strict=True):
        b = b - torch.outer(b @ s, b @ s) / (s @ b @ s) + torch.outer(y, y) / (y @ s)
    return b @ v


@pytest.mark.parametrize("sign", [1.0, -1.0])  # updates are minus a gradient
def test_the_product_is_that_of_bfgs_updates_pair_by_pair(sign: float) -> None:
    for seed in range(20):
        key = Key(seed)
        root = key.fold("root").normal(8, 8).double()
        hessian = sign * (root @ root.T + torch.eye(8))
        steps = key.fold("steps").normal(4, 8).double()
        changes = steps @ hessian + sign * 0.1 * key.fold("changes").normal(4, 8)  # as it bends
        v = key.fold("v").normal(8).double()
        torch.testing.assert_close(hessian_product(steps, changes, v), bfgs(steps, changes, v))
        last = hessian_product(steps, changes, steps[-1])
        torch.testing.assert_close(last, changes[-1])  # the secant equation
        again = torch.tensor([0, 1, 2, 3, 3])  # a singular system
        assert bool(torch.isfinite(hessian_product(steps[again], changes[again], v)).all())


def test_two_means_on_a_line_are_the_best_split_of_all() -> None:
    # 0 1 | 5 9: 0.5 + 8 = 8.5; 0 1 5 | 9: 14; split at the widest gap it is the same as at 5.
    around_one, around_two, above = spread(torch.tensor([5.0, 0.0, 9.0, 1.0]))
    assert (around_one.item(), around_two.item()) == (50.75, 8.5)
    assert above.tolist() == [True, False, True, False]


def test_scores_in_two_heaps_are_divided_and_others_seldom() -> None:
    two = torch.tensor([0.9, 1.0, 1.1, 1.05, 0.95, 0.98, 1.02, 3.0, 3.1, 2.9])
    assert all(is_divided(two, Key(seed)) for seed in range(20))
    normal = [is_divided(Key(seed).fold("scores").normal(20), Key(seed)) for seed in range(200)]
    assert sum(normal) < 20  # 2 % of them
    assert not is_divided(torch.ones(5), Key(0))


def squares(x: list[float]) -> tuple[float, float]:
    """Return the least sums of squares in one cluster and in two."""
    parts = [(sorted(x)[:i], sorted(x)[i:]) for i in range(len(x))]
    sums = [sum(len(part) * pvariance(part) for part in pair if part) for pair in parts]
    return sums[0], min(sums)


def test_scores_are_divided_exactly_where_the_gap_of_two_clusters_is_larger_by_its_error() -> None:
    key = Key(1)  # of which four sets lie between 0.95 and 1.05 of the error
    base = key.fold("scores").uniform(12).double()
    uniform = [[math.log(w) for w in squares(draw)] for draw in key.uniform(DRAWS, 12).tolist()]
    one, two = zip(*uniform, strict=True)
    answers = []
    for moved in range(100):  # half of them, farther and farther from the others
        scores = base + torch.where(torch.arange(12) < 6, 0.0, moved / 50)
        low, high = scores.min().item(), scores.max().item()
        logs = [math.log(w) for w in squares([(x - low) / (high - low) for x in scores.tolist()])]
        gaps = [fmean(drawn) - log for drawn, log in zip((one, two), logs, strict=True)]
        answers.append(gaps[0] < gaps[1] - pstdev(two) * math.sqrt(1 + 1 / DRAWS))
        assert is_divided(scores, key) == answers[-1], moved
    assert sum(answers) == 29


def play(rounds: list[tuple[float, dict[int, float]]], rule: FLDetector) -> list[list[int]]:
    """Return the clients that each round averaged, of models and of one number a client."""
    state: Any = rule.init({})
    averaged = []
    for step, (model, rows) in enumerate(rounds):
        received = FloatVectors(torch.tensor(list(rows.values()))[:, None])
        sent = FloatVectors(torch.tensor([[model]]))
        ids = torch.tensor(list(rows))
        view = replace(view_of(received, key=step), broadcast=sent, ids=ids)
        _, state = rule.aggregate(received, state, view)
        assert view.findings.kept is not None
        averaged.append(ids[view.findings.kept].tolist())
    return averaged


def test_who_was_away_is_predicted_from_the_last_round_and_who_was_found_stays_out() -> None:
    # Answers 4 and 0 at models 0 and 1: the curvature is -4. Client 4 is predicted -14 and 4 away.
    # Client 7 was away: from 4 at model 0 it is predicted -8 at model 3, 0.5 away; from model 1 it
    # would be -4, 3.5 away, and out with client 4.
    first = {0: 1.0, 1: 2.0, 2: 3.0, 3: 4.0, 4: 10.0, 7: 4.0}  # mean 4
    second = {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: -6.0}  # mean 0
    third = {0: -8.0, 1: -7.0, 2: -6.0, 3: -5.0, 4: -10.0, 7: -7.5}
    fourth = {4: 1.0, 0: 1.0}
    averaged = play([(0, first), (1, second), (3, third), (3, fourth)], FLDetector(window=1))
    assert averaged == [[0, 1, 2, 3, 4, 7], [0, 1, 2, 3, 4], [0, 1, 2, 3, 7], [0]]
    # A window of 2 needs a second distance: nobody is judged in the third round.
    averaged = play([(0, first), (1, second), (3, third)], FLDetector(window=2))
    assert averaged[2] == [0, 1, 2, 3, 4, 7]


def test_who_sends_what_is_not_finite_is_out_of_the_round_and_not_remembered() -> None:
    rows = {0: 1.0, 1: 2.0, 2: float("nan")}
    assert play([(0, rows), (1, rows), (2, rows | {2: 1.0})], FLDetector(window=1)) == [
        [0, 1],
        [0, 1],
        [0, 1, 2],
    ]
    assert str(FLDetector().refuses(Rankings)).startswith("predicts updates of the broadcast")


def test_a_broadcast_without_the_model_is_refused_and_who_sends_it_is_named() -> None:
    rows = FloatVectors(torch.ones(3, 4))
    view = replace(view_of(rows), broadcast=FloatVectors(torch.zeros(1, 2)))
    rules: dict[str, Any] = {"crfl": CRFL(), "fldetector": FLDetector(), "deepsight": DeepSight()}
    for name, rule in rules.items():
        told = f"--defense {name} must .* as wide as the messages, 4, got 2; use .* fedavg"
        with pytest.raises(ConfigError, match=told):
            rule.aggregate(rows, None, view)


def test_a_model_that_has_diverged_ends_the_judging_and_not_the_run() -> None:
    rows = {0: 1.0, 1: 2.0, 2: 4.0}
    diverging = [(model, rows) for model in (0.0, 1.0, float("inf"), float("inf"), float("nan"))]
    assert play(diverging, FLDetector(window=1)) == [[0, 1, 2]] * 5


@pytest.mark.slow
def test_fldetector_removes_who_flips_signs_and_nobody_else_and_the_model_recovers() -> None:
    # Seeds 0 and 1 of the mean: .672 +- .050; of FLDetector: .905 +- .016, false positives .031
    # over all rounds; without an attack none.
    small: dict[str, Any] = {"dataset": "digits", "model": "micro", "clients": 20, "per_round": 20}
    small |= {"rounds": 20, "partition": "iid", "malicious": 0.2, "eval_every": 20}
    small |= {"defense": "fldetector:window=5"}
    flipped = fedbench.play(Scenario.of(**small, attack="sign-flip:scale=2"), device="cpu")
    assert flipped.result.accuracy > 0.82
    assert flipped.rounds[-1].true_positive_rate == 1.0
    clean = fedbench.play(Scenario.of(**small), device="cpu").result
    assert clean.false_positive_rate == 0.0
