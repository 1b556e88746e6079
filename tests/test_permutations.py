"""Keyed permutations and draws without replacement: listed, and of more than fit in a list."""

import math
from collections import Counter
from itertools import permutations

import pytest
import torch

from fedbench.core import permutations as subject
from fedbench.core.permutations import MAX_LISTED, Feistel, Listed, distinct, permutation
from fedbench.core.rng import Key


@pytest.mark.parametrize("count", [1, 2, 3, 5, 64, 65, 1000, 4097])
def test_a_computed_permutation_reaches_every_number_once_and_leads_back(count: int) -> None:
    order = Feistel(Key(7), count)
    everywhere = torch.arange(count)
    assert torch.equal(order[everywhere].sort().values, everywhere)
    assert torch.equal(order.places(order[everywhere]), everywhere)
    assert len(order) == count
    assert 4**order.half < 4 * max(count, 2)  # so a result is mapped again at most four times
    if count > 64:
        assert not torch.equal(order[everywhere], Feistel(Key(8), count)[everywhere])


def test_a_listed_permutation_is_the_key_s_and_leads_back() -> None:
    order = permutation(Key(3), 9)
    assert isinstance(order, Listed)
    assert torch.equal(order[:], Key(3).permutation(9))
    assert order.places(order[[4, 0]]).tolist() == [4, 0]
    assert isinstance(permutation(Key(3), MAX_LISTED + 1), Feistel)


@pytest.mark.slow
@pytest.mark.parametrize("count", [11, 16])  # where numbers are mapped again, and where none is
def test_every_place_and_every_pair_of_places_goes_anywhere(count: int) -> None:
    # Of 2,000 keys each number is at each place 2000 / count times, and each pair of numbers at
    # each pair of places 2000 / (count (count - 1)) times; no count is 5.5 deviations from that.
    orders = torch.stack([Feistel(Key(0).fold(i), count)[torch.arange(count)] for i in range(2000)])
    there = torch.nn.functional.one_hot(orders, count).double()  # (key, place, number)
    together = torch.einsum("kpa,kqb->pqab", there, there)
    apart = ~torch.eye(count, dtype=torch.bool)
    for counts, share in (
        (there.sum(0), 1 / count),
        (together[apart][:, apart], 1 / (count * (count - 1))),
    ):
        deviation = math.sqrt(2000 * share * (1 - share))
        assert float((counts - 2000 * share).abs().max()) < 5.5 * deviation


def test_few_of_very_many_are_drawn_without_a_list_and_of_few_as_ever() -> None:
    assert torch.equal(distinct(Key(1), 10, 4), Key(1).permutation(10)[:4])
    drawn = distinct(Key(1), 10**9, 5000)
    assert len(set(drawn.tolist())) == 5000
    assert 0 <= int(drawn.min()) < int(drawn.max()) < 10**9
    # the mean of 5000 uniform numbers: 0.5 +- 0.0041
    assert abs(float(drawn.double().mean()) / 1e9 - 0.5) < 5 * 0.0041
    many = MAX_LISTED + 2
    assert torch.equal(distinct(Key(1), many, many), Key(1).permutation(many))  # half or more
    assert distinct(Key(1), many, 0).tolist() == []


def test_repeated_draws_leave_all_orders_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if five numbers were too many for a list: 2 of 5 in order, 20 pairs, 3,000 draws.
    monkeypatch.setattr(subject, "MAX_LISTED", 4)
    pairs = Counter(tuple(distinct(Key(5).fold(i), 5, 2).tolist()) for i in range(3000))
    assert set(pairs) == set(permutations(range(5), 2))
    assert all(abs(count - 150) < 5 * 12 for count in pairs.values())
