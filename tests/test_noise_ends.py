"""Chance that computed noise ends where its neighbour's does not: one half, where the ends meet."""

import pytest

from fedbench.api import Adjacency, DpEvent
from fedbench.privacy.events import (
    BinomialCounts,
    GaussianGradients,
    GaussianSum,
    NoisySigns,
    SkellamShare,
)
from fedbench.privacy.noise_ends import beyond

# Gaussian noise ends at 12.4 standard deviations: a neighbour at 1/z = 12.4 of them (or at 2/z)
# shows what the other never does with the chance Phi(0) = 1/2. Shares of Skellam noise end at 9
# of them each; the sum of h = 4 of variance 1 has a standard deviation of 2, and ends at
# 4 * 9 = 36 = 18 * 2.
FAR = 1 / 12.4


@pytest.mark.parametrize(
    ("event", "adjacency", "chance"),
    [
        (GaussianSum(FAR), "zero-out", 7 / 2),  # 7 rounds, also those without the client
        (GaussianSum(2 * FAR), "replace-one", 7 / 2),
        (GaussianGradients(FAR, 0.1, 5), "zero-out", 15 / 2),  # 3 rounds of 5 steps
        (SkellamShare(10, 36.0, 1.0), "zero-out", 3 / 2),  # 3 rounds
        (SkellamShare(10, 18.0, 1.0), "replace-one", 3 / 2),
        (SkellamShare(10, 18.0, 0.0), "replace-one", 0.0),  # no noise: epsilon is infinite anyway
        (NoisySigns(10, 1 / 10.9), "replace-one", 0.0),
        (NoisySigns(10, 1 / 11.1), "replace-one", 1.0),
        (BinomialCounts(10, 3, 0.1, 0.1), "replace-one", 0.0),  # coins are tossed exactly
    ],
)
def test_every_draw_adds_its_chance_to_show_what_its_neighbour_never_shows(
    event: DpEvent, adjacency: Adjacency, chance: float
) -> None:
    assert beyond(event, adjacency, rounds=7, times=3, honest=4) == pytest.approx(chance, abs=1e-9)
