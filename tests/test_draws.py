"""Noise from a table is the noise that was asked for."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom, chi2
from scipy.stats import skellam as exact

from fedbench.protocols.draws import Table, binomial, skellam
from fedbench.rng import Key

COUNT = 100_000  # three blocks and a bit


def likely(found: np.ndarray, chances: np.ndarray) -> bool:
    """Pearson's chi square at 1 in 10,000, of the values that are expected ten times or more."""
    often = chances * found.sum() >= 10
    seen = np.append(found[often], found[~often].sum())
    hoped = np.append(chances[often], 1 - chances[often].sum()) * found.sum()
    known = hoped > 1
    statistic = float(((seen - hoped)[known] ** 2 / hoped[known]).sum())
    return statistic < float(chi2.isf(1e-4, known.sum() - 1))


def test_a_table_draws_its_distribution_also_where_the_guide_does_not_decide() -> None:
    # The boundaries 1/3 and 2/3 lie within a beginning of 16 bits; a guide that decides there errs.
    table = Table.of(-1, np.array([2.0, 2.0, 2.0]))
    assert table.cumulative.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert (table.guide < 0).nonzero()[0].tolist() == [2**16 // 3, 2 * 2**16 // 3]
    assert table.guide[[0, 2**15, 2**16 - 1]].tolist() == [0, 1, 2]
    blind = dataclasses.replace(table, guide=np.full(2**16, -1, dtype=np.int32))
    drawn = table.draw(Key(1).numpy(), COUNT)
    assert np.array_equal(drawn, blind.draw(Key(1).numpy(), COUNT))
    assert likely(np.bincount(drawn + 1, minlength=3), np.full(3, 1 / 3))


@pytest.mark.parametrize("half", [0.01, 0.7, 40.0, 13_000.0])
def test_skellam_noise_is_the_difference_of_two_poissons(half: float) -> None:
    drawn = skellam(Key(2).numpy(), half, COUNT)
    values = np.arange(drawn.min() - 1, drawn.max() + 2)
    found = np.bincount(drawn - values[0], minlength=len(values))
    assert likely(found, exact.pmf(values, half, half))
    assert not likely(found, exact.pmf(values, 1.2 * half, 1.2 * half))


def test_of_no_noise_and_of_very_much_there_is_no_table() -> None:
    assert not skellam(Key(3).numpy(), 0.0, 5).any()
    many = skellam(Key(3).numpy(), 1e9, COUNT)
    assert many.std() == pytest.approx(2e9**0.5, rel=5 / (2 * COUNT) ** 0.5)
    assert abs(many.mean()) < 5 * (2e9 / COUNT) ** 0.5


@pytest.mark.parametrize("m", [1, 6, 7, 24, 25])
def test_heads_are_binomial_with_the_chance_of_each_coordinate(m: int) -> None:
    chances = np.where(np.arange(COUNT) % 2, 0.2, 0.7)
    heads = binomial(Key(4).numpy(), m, chances)
    for start, chance in ((0, 0.7), (1, 0.2)):
        found = np.bincount(heads[start::2], minlength=m + 1)
        assert likely(found, binom.pmf(np.arange(m + 1), m, chance))
    near = float(np.corrcoef(heads[:-1:2], heads[1::2])[0, 1])
    assert abs(near) < 5 / (COUNT / 2) ** 0.5  # neighbours share no coins


def test_coins_of_chance_nought_and_one_fall_as_they_must() -> None:
    assert binomial(Key(5).numpy(), 3, np.array([0.0, 1.0, 0.0])).tolist() == [0, 3, 0]
