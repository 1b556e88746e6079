"""Residues: their bytes, what they stand for, and sums of them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload import Residues
from fedbench.payload.packets import Packet
from fedbench.payload.residues import total, wrapped
from fedbench.testing import check_payload
from fedbench_defenses.mean import exact_mean

NAN, INF = torch.nan, torch.inf


def residues(x: list[int], modulus: int, coins: int) -> Residues:
    return Residues(torch.tensor([x], dtype=torch.int32), modulus, coins)


def test_a_residue_costs_the_bits_of_a_field_element_and_there_is_no_header() -> None:
    payload = residues([10, 0, 3], 11, 0)
    (packet,) = payload.encode()
    assert (packet.data.hex(), packet.bits) == ("a030", 12)  # 1010 0000 0011, and padding
    assert residues([1, 0, 3], 8, 0).encode()[0].bits == 9
    assert residues([1, 0, 3], 9, 0).encode()[0].bits == 12
    for data in ("b030", "a031", "a0", "a03000"):  # 11 is none, padding, too short, too long
        _, accepted = Residues.decode([Packet.raw(bytes.fromhex(data))], payload.spec)
        assert not bool(accepted[0]), data
    largest = residues([2**24 - 1, 0], 2**24, 0)
    check_payload(largest)
    assert largest.encode()[0].bits == 48


def test_values_are_the_least_whole_numbers_around_the_middle_of_the_honest_ones() -> None:
    signed = residues(list(range(8)), 8, 0)
    assert signed.values().tolist() == [[0, 2, 4, 6, -8, -6, -4, -2]]
    # Five coins, two clients: 2 x - 5 up to 9, and 11 = -11 mod 22.
    counts = residues(list(range(11)), 11, 5)
    assert counts.values().tolist() == [[-5, -3, -1, 1, 3, 5, 7, 9, -11, -9, -7]]
    for payload in (signed, counts):
        assert payload.values().dtype == torch.int32
        check_payload(payload)
    assert (signed.bounded, signed.aligned) == (True, False)


def test_the_nearest_residue_is_the_end_of_the_field_and_not_beyond_it() -> None:
    far = torch.tensor([[100.0, -100.0, INF, -INF, NAN, 3.1]])
    assert residues([0] * 6, 8, 0).nearest(far).values().tolist() == [[6, -8, 6, -8, 0, 4]]
    assert residues([0] * 6, 11, 5).nearest(far).values().tolist() == [[9, -11, 9, -11, -1, 3]]


@given(
    st.integers(2, 400),
    st.integers(0, 30),
    st.integers(1, 12),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_wrapping_and_adding_commute(
    modulus: int, coins: int, n: int, seed: int, odd: bool
) -> None:
    modulus += coins
    whole = ((Key(seed).uniform(n, 9) - 0.5) * 5000).to(torch.int64)
    payload = Residues(whole.remainder(modulus).to(torch.int32), modulus, coins)
    mean = exact_mean(payload.values())
    if odd:  # a mean that was divided by another number loses its last bits
        mean = mean * (1 + 2**-50)
    found = total(mean, n, modulus, coins)
    assert torch.equal(found, wrapped(2 * whole.sum(dim=0) - n * coins, modulus).double())
    assert torch.equal((found + n * coins) % 2, torch.zeros(9, dtype=torch.float64))
    assert bool((found >= -modulus).all() & (found < modulus).all())


def test_a_count_above_the_coins_is_legal_on_the_wire_and_no_honest_one() -> None:
    counts = Residues(torch.tensor([[0, 5], [6, 0]], dtype=torch.int32), 11, 5)
    counts.check()
    assert counts.passes("range").tolist() == [True, False]
    assert counts.passes("finite").tolist() == [True, True]
    assert residues([7], 8, 0).passes("range").tolist() == [True]


@pytest.mark.parametrize(
    ("x", "modulus", "coins"),
    [
        (torch.tensor([[0, 8]], dtype=torch.int32), 8, 0),
        (torch.tensor([[0, -1]], dtype=torch.int32), 8, 0),
        (torch.tensor([[0, 1]]), 8, 0),
        (torch.tensor([0, 1], dtype=torch.int32), 8, 0),
        (torch.tensor([[0, 0]], dtype=torch.int32), 1, 0),
        (torch.tensor([[0, 0]], dtype=torch.int32), 2**24 + 1, 0),
        (torch.tensor([[0, 0]], dtype=torch.int32), 8, 8),
    ],
)
def test_check_refuses_what_is_no_residue(x: Tensor, modulus: int, coins: int) -> None:
    with pytest.raises(IllegalPayloadError, match="Residues"):
        Residues(x, modulus, coins).check()
