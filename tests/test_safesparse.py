"""SafeSparse: sparse messages filtered by their supports, then by their signs."""

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from rules import answer, floats, kept, view_of
from torch import Tensor

import fedbench
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.experiment.scenario import Scenario
from fedbench.payload import BinaryMasks, FloatVectors, Rankings, SignBits, SparseVectors
from fedbench_defenses.safesparse import (
    SafeSparse,
    clusters,
    dense_rows,
    jaccard,
    sign_products,
    typical_supports,
)


def at_equal_similarity(*typical: float) -> Tensor:
    """Each row has the same similarity with all others, so that it is their median."""
    return torch.tensor(typical, dtype=torch.float64)[:, None].expand(-1, len(typical))


def test_a_support_is_typical_down_to_some_deviations_below_the_median_and_never_above() -> None:
    # Median .5; deviations 0, .125, .25, .125, .5: their median is .125, and .5 - 4 * .125 is 0.
    similarity = at_equal_similarity(0.5, 0.375, 0.75, 0.625, 0.0)
    assert typical_supports(similarity, 4.0).tolist() == [True] * 5
    assert typical_supports(similarity, 3.9).tolist() == [True] * 4 + [False]
    assert typical_supports(similarity, 0.5).tolist() == [True, False, True, True, False]
    # Median .8, deviation .1: .6 is at two of them, though in floats .8 - 2 * .1 is more than .6.
    assert bool(typical_supports(at_equal_similarity(0.8, 0.7, 0.9, 0.9, 0.6), 2.0).all())
    # Three are the same, so that the deviation is 0: a tenth of the median is close enough.
    similarity = at_equal_similarity(0.8, 0.8, 0.8, 0.73, 0.71)
    assert typical_supports(similarity, 4.5).tolist() == [True] * 4 + [False]


def test_colluders_who_share_a_support_are_not_typical_of_most() -> None:
    # Benign rows share one coordinate of three: medians (0 + 1/3) / 2. The colluders' others are
    # at 1, 0, 0, 0: median 0. Their mean similarity, 1/4, is larger than 1/6.
    rows = torch.zeros(5, 8)
    for row, support in zip(rows, [(0, 1), (0, 2), (0, 3), (6, 7), (6, 7)], strict=True):
        row[list(support)] = 1.0
    view = view_of(rows)
    torch.testing.assert_close(answer(SafeSparse(), rows, view), rows[:3].mean(dim=0))
    assert kept(view) == [True] * 3 + [False] * 2
    assert view.findings.notes == {"other_supports": 2, "other_signs": 0}


def test_magnitudes_do_not_count_and_a_prefilter_bounds_them() -> None:
    x = torch.where(Key(1).uniform(9, 60) < 0.8, 1.0, -1.0) * (0.1 + Key(2).uniform(9, 60))
    x[0] *= -1
    for scale in (1.0, 1e-6, 1e6):
        x[1] = scale * x[1].sign()
        view = view_of(x)
        torch.testing.assert_close(answer(SafeSparse(), x, view), x[1:].mean(dim=0))
        assert kept(view) == [False] + [True] * 8
    assert SafeSparse().tolerates(99) == 0


def test_signs_and_supports_are_counted_exactly_over_tiles() -> None:
    d = 200_001  # more than a tile
    x = Key(3).normal(3, d) * (Key(4).uniform(3, d) < 0.1)
    both, products = sign_products(x, torch.zeros(d))
    similarity = jaccard(both)
    for i, j in combinations(range(3), 2):
        a = set(x[i].nonzero()[:, 0].tolist())
        b = set(x[j].nonzero()[:, 0].tolist())
        assert both[i, j] == len(a & b)
        assert similarity[i, j] == len(a & b) / len(a | b)
        agree = int((x[i] * x[j] > 0).sum())
        assert products[i, j] == 2 * agree - len(a & b)


def slowly(distances: Tensor, mads: float) -> set[int]:
    """The rows near a core row of the largest clusters, by the definition of DBSCAN."""
    n = len(distances)
    d = distances.tolist()
    enough = n // 2 + 1
    reaches = torch.tensor([sorted(row)[enough - 1] for row in d], dtype=torch.float64)
    median = reaches.quantile(0.5)
    deviation = (reaches - median).abs().quantile(0.5)
    radius = float(median + max(mads * deviation, 0.1 * median)) + 1e-12
    near = [{j for j in range(n) if row[j] <= radius} for row in d]
    core = {i for i in range(n) if len(near[i]) >= enough}
    assert len(core) >= n / 2
    groups = [{i} for i in core]
    for i, j in combinations(sorted(core), 2):
        a, b = (next(group for group in groups if k in group) for k in (i, j))
        if a is not b and j in near[i]:
            groups = [group for group in groups if group is not a and group is not b] + [a | b]
    found = [set().union(*(near[i] for i in group)) for group in groups]
    most = max(map(len, found))
    return set().union(*(rows for rows in found if len(rows) == most))


def test_the_largest_cluster_is_that_of_the_definition() -> None:
    shares = set()
    for seed in range(60):
        n = 1 + seed % 12
        points = Key(seed).normal(n, 2).double()
        points[n // 2 :] *= 4
        distances = torch.cdist(points, points).fill_diagonal_(0)
        for mads in (0.0, 0.7, 3.0):
            expected = slowly(distances, mads)
            assert set(dense_rows(distances, mads).nonzero()[:, 0].tolist()) == expected
            shares.add((len(expected) == n, mads))
    assert len(shares) == 6  # with each radius some stay and some do not


def test_core_rows_are_clustered_as_scikit_learn_does() -> None:
    from sklearn.cluster import DBSCAN

    several = 0
    for seed in range(40):
        x = Key(seed).normal(20, 2).double()
        distances = torch.cdist(x, x).fill_diagonal_(0)
        near = distances <= 0.8
        core = near.sum(dim=1) >= 4
        fitted = DBSCAN(eps=0.8, min_samples=4, metric="precomputed").fit(distances.numpy())
        assert core.nonzero()[:, 0].tolist() == list(fitted.core_sample_indices_)
        labels = torch.from_numpy(fitted.labels_)
        found = list(clusters(near, core))
        expected = [core & (labels == i) for i in set(labels[core].tolist())]
        assert {tuple((c & core).tolist()) for c in found} == {tuple(c.tolist()) for c in expected}
        assert all(torch.equal(c, near[c & core].any(dim=0)) for c in found)
        assert torch.equal(torch.stack(found).any(dim=0), labels >= 0)
        several += len(found) > 1
    assert several > 10


def apart_but(n: int, near: dict[int, list[int]]) -> Tensor:
    """Distances of 1 between each row and those near it, of 3 between all others."""
    distances = torch.full((n, n), 3.0, dtype=torch.float64)
    for row, others in near.items():
        distances[row, others] = distances[others, row] = 1.0
    return distances.fill_diagonal_(0)


def test_of_two_clusters_the_larger_is_averaged_and_both_if_they_are_as_large() -> None:
    # Five of nine rows are within 1 of each of the first five, four of the others: these five are
    # the core rows, three and two of them near each other, and both reach the other four.
    near = {0: [1, 2, 5, 6], 1: [0, 2, 7, 8], 2: [0, 1, 5, 8], 3: [4, 5, 6, 7], 4: [3, 6, 7, 8]}
    assert dense_rows(apart_but(9, near), 0).tolist() == [True] * 3 + [False] * 2 + [True] * 4
    # Here it is five of eight rows for the first four, in pairs, and four for the others.
    near = {0: [1, 4, 5, 6], 1: [0, 5, 6, 7], 2: [3, 4, 5, 7], 3: [2, 4, 6, 7]}
    assert dense_rows(apart_but(8, near), 0).tolist() == [True] * 8


def test_few_rows_equal_rows_and_rows_of_zeros_all_stay() -> None:
    rule = SafeSparse()
    for rows in (
        floats([3, 0, -1]),
        floats([3, 0, -1], [0, 2, 0]),
        floats([1, 0], [-1, 0]),
        floats(*[[3.0, 0, -1]] * 4),
        floats(*[[0.0, 0, 0]] * 4),
    ):
        view = view_of(rows)
        torch.testing.assert_close(answer(rule, rows, view), rows.x.mean(dim=0))
        assert kept(view) == [True] * len(rows)


def test_rows_that_are_not_finite_do_not_count_and_without_others_the_model_stays() -> None:
    x = torch.where(Key(5).uniform(7, 40) < 0.85, 1.0, -1.0)
    x[0, 3], x[1] = torch.inf, torch.nan
    view = view_of(x)
    torch.testing.assert_close(answer(SafeSparse(), x, view), x[2:].mean(dim=0))
    assert kept(view) == [False] * 2 + [True] * 5
    view = view_of(x[:2])
    assert answer(SafeSparse(), x[:2], view).tolist() == [0.0] * 40
    assert kept(view) == [False] * 2


def test_of_messages_with_all_coordinates_signs_alone_decide() -> None:
    honest = (Key(1).uniform(1, 400) < 0.5) ^ (Key(2).uniform(7, 400) < 0.1)
    bits = torch.cat([~honest[:2], honest])
    ranks = torch.arange(400, dtype=torch.int32) - (Key(3).uniform(9, 400) < 0.5).int()
    order = ranks.argsort(dim=1, stable=True).int()
    order[:2] = order[:2].flip(1)
    dense = (2 * bits.float() - 1) * (0.5 + Key(4).uniform(9, 400))
    dense[2:, :10] *= Key(5).uniform(7, 10) < 0.5  # as of units that are dead for some clients
    for sent in (
        *(FloatVectors(dense), SignBits(bits), BinaryMasks(bits, torch.zeros(9, 0))),
        Rankings(order, (400,)),
    ):
        view = view_of(sent)
        answer(SafeSparse(), sent, view)
        assert kept(view) == [False] * 2 + [True] * 7, type(sent)
        assert view.findings.notes == {"other_supports": 0, "other_signs": 2}


def test_parameters_are_checked() -> None:
    for wrong in ({"support": -0.1}, {"sign": -0.1}, {"support": math.inf}, {"sign": math.nan}):
        with pytest.raises(ConfigError, match="SafeSparse"):
            SafeSparse(**wrong)


def topk_like(seed: int, flipped: bool) -> SparseVectors:
    """Nine clients who hold 200 of 300 coordinates; the first two others, or these negated."""
    key = Key(seed)
    x = torch.zeros(9, 2000)
    for i in range(9):
        columns = key.fold("support", i).permutation(300)[:200]
        x[i, columns] = 1 + key.fold("size", i).uniform(200)
    x[:2] = -x[:2] if flipped else x[:2].roll(1000, dims=1)
    index = torch.zeros(9, 200, dtype=torch.int64)
    return SparseVectors(index, torch.zeros(9, 200), torch.zeros(9, 0), 2000).nearest(x)


@pytest.mark.parametrize("flipped", [False, True])
def test_of_sparse_messages_each_stage_leaves_out_its_own_attack(flipped: bool) -> None:
    stage = "other_signs" if flipped else "other_supports"
    for seed in range(10):
        sent = topk_like(seed, flipped)
        view = view_of(sent)
        torch.testing.assert_close(answer(SafeSparse(), sent, view), sent.values()[2:].mean(dim=0))
        assert view.findings.notes[stage] == 2


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["index-concentration", "support-margin"])
def test_safesparse_learns_where_chosen_indices_hold_the_mean_back(attack: str) -> None:
    small: dict[str, Any] = {"dataset": "digits", "model": "micro", "protocol": "topk:k=0.05"}
    small |= {"clients": 20, "per_round": 20, "rounds": 20, "partition": "iid", "malicious": 0.2}

    def results(defense: str) -> Any:
        scenario = Scenario.of(**small, attack=attack, defense=defense, eval_every=20)
        return fedbench.play(scenario, device="cpu")

    # Seeds 0 to 2: the mean .724 +- .036 and .466 +- .135, the rule .839 +- .020 with both.
    assert results("mean").result.accuracy < 0.78
    played = results("safesparse")
    assert played.result.accuracy > 0.78
    stage = "other_signs" if attack == "support-margin" else "other_supports"
    assert all(r.findings[stage] >= 4 for r in played.rounds)
    assert all(sum(r.findings.values()) <= 7 for r in played.rounds)
