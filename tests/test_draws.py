"""Noise from a table is the noise that was asked for."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import binom, chi2
from scipy.stats import skellam as exact

from fedbench.core.rng import Key
from fedbench.protocols.draws import Symmetric, _skellam, binomial, skellam

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
    # Magnitudes 2, 1, 0 have 2/5, 2/5, 1/5: the boundaries lie within a beginning of 16 bits.
    table = Symmetric.of(np.array([3.0, 3.0, 3.0]))
    assert (table.limits / 2.0**63).tolist() == pytest.approx([0.4, 0.8, 1.0])
    assert (table.guide < 0).nonzero()[0].tolist() == [2 * 2**16 // 5, 4 * 2**16 // 5]
    assert table.guide[[0, 2**15, 2**16 - 1]].tolist() == [2, 1, 0]
    blind = dataclasses.replace(table, guide=np.full(2**16, -1, dtype=np.int32))
    drawn = table.draw(Key(1).numpy(), COUNT)
    assert np.array_equal(drawn, blind.draw(Key(1).numpy(), COUNT))
    assert likely(np.bincount(drawn + 2, minlength=5), np.full(5, 0.2))


def test_bits_stand_for_numbers_on_both_sides_of_a_boundary_and_both_signs() -> None:
    table = Symmetric.of(np.array([0.5, 0.25]))  # |1| below 2**62 of 2**63, then 0
    edge = [0, 2**63 - 2, 2**63, 2**64 - 2]
    bits = np.array([*edge, *(bit + 1 for bit in edge)], dtype=np.uint64)
    assert table.at(bits).tolist() == [1, 1, 0, 0, -1, -1, 0, 0]


@pytest.mark.parametrize("half", [0.01, 40.0, 13_000.0, 1e6])
def test_skellam_noise_ends_where_it_is_too_rare_to_be_drawn_and_on_both_sides(half: float) -> None:
    table = _skellam(half)
    low, high = table.at(np.array([1, 0], dtype=np.uint64)).tolist()
    assert -low == high == len(table.limits) - 1
    masses = 2 * exact.pmf(np.arange(high, high + 2000), half, half)
    assert masses[1:].sum() < 2.0**-63 <= masses.sum() * (1 + 1e-9)
    middle = high // 2  # far out, where a sum from below has lost digits
    tail = 2 * exact.pmf(np.arange(middle, 2 * high), half, half).sum()
    assert table.limits[high - middle] / 2.0**63 == pytest.approx(tail, rel=1e-9, abs=2.0**-62)


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
