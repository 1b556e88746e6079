"""Rules that look at the largest eigenvalue of a covariance: SMEA and CAF."""

from math import comb, pi
from typing import Any

import pytest
import torch
from rules import answer, draw

from fedbench.api import Defense
from fedbench.core.rng import Key
from fedbench.testing import assert_rounded_alike
from fedbench_defenses.caf import CAF
from fedbench_defenses.multi_krum import MultiKrum
from fedbench_defenses.smea import SMEA


def test_subsets_of_one_spread_are_chosen_by_the_places_of_their_rows_and_not_by_rounding() -> None:
    # On a line 0 to 4, 1 to 5 and 2 to 6 have one variance; 1 to 5 are nearest to all. Tenths and
    # thirds are rounded, each subset's variance in its own way.
    line = torch.arange(7.0).double()[:, None] * torch.tensor([0.1, 1 / 3, 0.7]).double()
    for seed in range(20):
        order = Key(seed).permutation(7)
        for scale in (1.0, 1e-6, 1e6):
            out = answer(SMEA(f=2), scale * line[order])
            torch.testing.assert_close(out, scale * line[3], rtol=1e-6, atol=0)


def test_smea_looks_at_sixty_thousand_subsets_at_most() -> None:
    assert SMEA(f=0).most_rows() is None
    for f in range(1, 10):
        most = SMEA(f=f).most_rows() or 0
        assert comb(most, f) <= 60_000 < comb(most + 1, f)
    assert SMEA(f=5).most_rows() == 25


@pytest.mark.parametrize("far", [1e1, 1e4, 1e10, 1e30])
def test_d22_a_row_without_weight_does_not_hold_up_the_filter(far: float) -> None:
    # The largest tau of all rows stays that of the far one, and 1 - (0.2 / 1e10)^2 is 1 in float64:
    # weights would never change again. Of 0, 0.1, 0.2 and 0.3 alone the mean is 0.15.
    x = torch.tensor([[0.0], [0.1], [0.2], [0.3], [far]])
    assert answer(CAF(f=1), x).item() == pytest.approx(0.15, abs=2e-3)


def test_directions_of_one_eigenvalue_count_alike_in_caf() -> None:
    # The corners of an equilateral triangle are 5 away from five rows in its middle: every
    # direction in the plane has the same variance. All corners lose their weight, 5 <= 8 - 2 is
    # left, and the middle is the answer; along a single direction some corner would keep some, the
    # filter would go on and end nearer to that corner.
    middle = torch.tensor([1.0, 2.0], dtype=torch.float64)
    for turn in (0.0, 0.3, 1.1):
        angles = turn + torch.arange(3, dtype=torch.float64) * 2 * pi / 3
        corners = 5 * torch.stack([angles.cos(), angles.sin()], dim=1)
        x = torch.cat([corners, torch.zeros(5, 2, dtype=torch.float64)]) + middle
        assert_rounded_alike(answer(CAF(f=1), x), middle)


def test_rows_that_are_all_alike_or_not_finite_end_the_filter() -> None:
    x = torch.full((7, 3), 2.5)
    assert answer(CAF(f=3), x).tolist() == [2.5, 2.5, 2.5]
    x[:2], x[2] = torch.nan, 1e30
    assert answer(CAF(f=3), x).tolist() == [2.5, 2.5, 2.5]
    x[:] = torch.nan
    assert answer(CAF(f=3), x).tolist() == [0, 0, 0]


@pytest.mark.parametrize("rule", [SMEA(f=2), CAF(f=2)], ids=repr)
def test_the_order_of_the_rows_changes_nothing(rule: Defense[Any]) -> None:
    for seed in range(20):
        x = draw(seed, 9, 1 + seed % 6).double()
        if seed % 2:  # rows that lie alike
            x = x.round().clamp(-2, 2)
        out = answer(rule, x)
        for again in range(3):
            turned = x[Key(again).fold("order", seed).permutation(9)]
            torch.testing.assert_close(answer(rule, turned), out, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", [SMEA(f=3), CAF(f=3)], ids=repr)
def test_rows_no_farther_than_others_but_in_one_direction_do_not_pull_the_mean(rule: Any) -> None:
    # Three of fifteen rows are 10 from the mean of the others, which are about sqrt(100) from it in
    # all directions. All three move the mean by 2. Distances do not tell them: Multi-Krum keeps
    # them. Seeds 0 to 9: SMEA 0.65 to 0.99 (of honest rows left out), CAF 0.05 to 0.30, Multi-Krum
    # 2.47 to 2.77.
    for seed in range(10):
        x = Key(seed).normal(15, 100)
        honest = x[3:].mean(dim=0)
        direction = Key(seed).fold("direction").normal(100)
        direction /= direction.norm()
        x[:3] = honest + 10 * direction + 0.1 * x[:3]
        distances = (x - honest).norm(dim=1)
        assert float(distances[:3].max()) < float(distances[3:].max())
        assert float((answer(rule, x) - honest) @ direction) < 1.2
        assert float((answer(MultiKrum(f=3), x) - honest) @ direction) > 2
