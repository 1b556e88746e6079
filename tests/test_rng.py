"""Random numbers are the same in every order and on every device, and distributed as asked for."""

import dataclasses
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, chi2
from scipy.stats import skellam as exact
from torch.utils._python_dispatch import TorchDispatchMode
from unfolding import unfold

from fedbench.api import Shared
from fedbench.core import registry, rng
from fedbench.core.rng import (
    Key,
    Secret,
    _gaussian_table,
    _Quarters,
    _quarters,
    coins,
    seeds_of,
)
from fedbench.core.words import siphash
from fedbench.protocols.secure_sums import Symmetric, _skellam, binomial, skellam
from fedbench.testing import NETWORK


@given(st.integers(0, 2**64 - 1), st.integers(0, 3000), st.integers(-5, 5))
def test_torch_and_numpy_draw_the_same_bits(seed: int, count: int, name: int) -> None:
    key, twin = Key(seed), Key(Key(seed).tensor())  # computed by NumPy, and by torch
    assert torch.equal(key.bits(count), twin.bits(count))
    folded = twin.fold("noise", name)
    assert int(folded.seed) % 2**64 == key.fold("noise", name).seed
    assert torch.equal(key.normal(count), twin.normal(count))
    assert torch.equal(key.permutation(count), twin.permutation(count))
    assert torch.equal(key.shorts(count), twin.shorts(count))
    assert torch.equal(key.integers(162, count), twin.integers(162, count))
    p = key.fold("p").uniform(count)
    assert torch.equal(key.coins(p), twin.coins(p))
    assert torch.equal(key.coins(p), key.shorts(count) < p * 2**16)
    assert bool(key.coins(key.shorts(count).double() * 2.0**-16 + 2.0**-40).all())
    assert torch.equal(key.uniform(count), twin.uniform(count))
    for chances in (p, p.round(), p.double() - 2.0**-40):
        assert torch.equal(key.bernoulli(chances), twin.bernoulli(chances))
        assert torch.equal(key.bernoulli(chances), obvious_bernoulli(key, chances))


def draws_of_32_bits(key: Key, count: int) -> list[int]:
    """A byte of a stream, then 24 bits of another, one by one."""
    first = key.bits(-(-count // 8)).tolist()
    other = key.fold("lower").bits(count).tolist()
    return [
        ((first[i // 8] % 2**64 >> 8 * (i % 8)) % 256 << 24) + (other[i] % 2**64 >> 40)
        for i in range(count)
    ]


def obvious_bernoulli(key: Key, p: torch.Tensor) -> torch.Tensor:
    pairs = zip(draws_of_32_bits(key, len(p)), p.double().tolist(), strict=True)
    return torch.tensor([draw < chance * 2**32 for draw, chance in pairs], dtype=torch.bool)


def test_a_draw_that_equals_the_chance_is_no_success_and_one_below_it_is() -> None:
    key = Key(5)
    p = torch.tensor(draws_of_32_bits(key, 3000), dtype=torch.float64) * 2.0**-32
    exact = p.float().double() == p  # those of less than 25 bits
    assert int(exact.sum()) > 5
    for chances in (p, torch.where(exact, p, 0.0).float()):
        assert not bool(key.bernoulli(chances)[exact].any())
        assert bool(key.bernoulli(torch.nextafter(chances, torch.ones_like(chances)))[exact].all())


def test_draws_of_several_blocks_are_those_that_torch_computes_at_once() -> None:
    key = Key(2**64 - 3)
    count = 3 * rng._BLOCK + 7
    skip = rng._BLOCK + 5
    twin = Key(key.tensor())
    assert torch.equal(key.bits(count), twin.bits(count))
    uniform = twin.uniform(count)
    assert torch.equal(key.uniform(count), uniform)
    assert torch.equal(key.uniform(count - skip, skip=skip), uniform[skip:])
    p = Key(8).uniform(6, count)[:, ::2]  # not one piece of memory; a draw takes a byte
    for chances in (p, torch.where(p < 0.9, p, torch.ones(())), p * 2.0**-8, p - 0.5):
        assert torch.equal(key.bernoulli(chances), twin.bernoulli(chances))
    chances = Key(9).uniform(2, 3 * count)[:, :-1]
    assert torch.equal(key.coins(chances), twin.shorts(*chances.shape) < chances * 65536)


def test_of_chances_that_are_none_a_coin_warns_nobody() -> None:
    p = torch.tensor([3e38, torch.inf, torch.nan, -torch.inf, 1.0, 0.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Key(1).bernoulli(p).tolist() == [True, True, False, False, True, False]
        assert Key(1).coins(p).tolist() == [True, True, False, False, True, False]


def test_the_generator_is_splitmix64_whatever_is_drawn_of_it() -> None:
    # First outputs for seed 1234567, as published with Vigna's reference implementation.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(x) % 2**64 for x in Key(1234567).bits(3)] == expected
    (word,) = (int(x) % 2**64 for x in Key(1234567).bits(1))
    assert Key(1234567).shorts(2, 2).flatten().tolist() == [
        word >> s & 0xFFFF for s in (0, 16, 32, 48)
    ]
    assert Key(1234567).integers(162, 1).tolist() == [(word >> 32) * 162 >> 32]
    assert Key(1234567).integers(2**31, 1).tolist() == [word >> 33]
    shares = Key(3).shorts(1 << 18).histc(4, 0, 1 << 16) / (1 << 18)
    assert float((shares - 0.25).abs().max()) < 5 * (0.1875 / (1 << 18)) ** 0.5
    assert torch.equal(Key(3).bits(100_000)[:70_000], Key(3).bits(70_000))


@pytest.mark.parametrize("accelerator", [False, True])
def test_what_is_left_out_of_a_draw_is_its_beginning(
    accelerator: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rng, "accelerated", lambda device: accelerator)  # NumPy's way, and torch's
    assert torch.equal(Key(3).bits(5, skip=70_000), Key(3).bits(70_005)[70_000:])


def test_names_make_different_streams_and_order_counts() -> None:
    names = [(), ("a",), ("b",), ("a", "b"), ("b", "a"), (0,), ("0",), (1,), (0, 0)]
    assert len({Key(0).fold(*folded).seed for folded in names}) == len(names)
    secret = Secret.of(0, "run")
    assert secret != Secret.of(0, "data")
    assert secret.key("client", 1, 2).seed != secret.key("client", 1, 3).seed


def test_quarters_of_words_are_those_of_each_client_wherever_the_clients_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = torch.tensor([[1, -1, 1 << 32], [5 << 16 | 7, 0, -(2**63)]])
    each = torch.stack([_quarters(row) for row in words])
    assert each[1, :4].tolist() == [7.0, 5.0, 0.0, 0.0]  # the lowest bits come first
    assert each[1, 8:].tolist() == [0.0, 0.0, 0.0, 32768.0]
    asked = []
    rule = _Quarters.vmap

    def noted(*given: Any) -> Any:
        asked.append(given)
        return rule(*given)

    monkeypatch.setattr(_Quarters, "vmap", staticmethod(noted))  # torch 2.11 has no rule of its own
    assert torch.equal(torch.vmap(_quarters)(words), each)
    assert torch.equal(torch.vmap(_quarters, in_dims=1)(words.T), each)
    assert len(asked) == 2


def test_a_vmapped_key_draws_what_each_client_draws_alone() -> None:
    keys = [Key(i) for i in range(4)]
    seeds = torch.stack([key.tensor() for key in keys])
    stacked = torch.vmap(lambda seed: Key(seed).fold("x", 2).uniform(3, 2))(seeds)
    alone = torch.stack([key.fold("x", 2).uniform(3, 2) for key in keys])
    assert torch.equal(stacked, alone)


def test_branches_and_their_coins_are_those_of_each_client_alone() -> None:
    keys = [Key(i) for i in range(4)]
    names = ("conv", 7, "fc")
    sizes = ((5,), (2, 3), (8,))
    chances = [Key(9).fold(i).uniform(*size) for i, size in enumerate(sizes)]

    def drawn(key: Key) -> tuple[torch.Tensor, ...]:
        branches = key.fold("step", 2).branches(names)
        return *coins(branches, chances), branches[1].fold("x").uniform(3)

    stacked = torch.vmap(lambda seed: drawn(Key(seed)))(seeds_of(keys))
    alone = zip(*map(drawn, keys), strict=True)
    assert all(torch.equal(x, torch.stack(y)) for x, y in zip(stacked, alone, strict=True))
    each = [key.fold("step", 2, "fc").coins(chances[2]) for key in keys]
    assert torch.equal(stacked[2], torch.stack(each))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts torch's operations."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_key_that_nothing_is_drawn_from_is_not_hashed() -> None:
    root = Key(torch.tensor(5))
    with Operations() as operations:
        key = root.fold("step", 3).fold("network").branches(["a", "b"])[1]
    assert operations.count == 0
    assert int(key.seed) % 2**64 == Key(5).fold("step", 3, "network", "b").seed
    with Operations() as operations:
        assert key.seed is key.seed  # hashed once
    assert operations.count == 0


def test_uniform_normal_and_signs_have_their_moments() -> None:
    # 10^6 draws: standard errors are .0003 and .001; five of them are allowed.
    u, z = Key(1).uniform(1_000_000), Key(2).normal(1_000_000)
    assert torch.equal((u * 2**24).long(), Key(1).bits(1_000_000) >> 40 & 2**24 - 1)  # all 24
    assert 0 <= float(u.min()) < float(u.max()) < 1
    for p in (0.3, 0.0015):  # the second between bytes: the other stream decides on half of it
        ones = int(Key(3).bernoulli(torch.full((1_000_000,), p)).sum())
        assert abs(ones - 1e6 * p) < 5 * (1e6 * p * (1 - p)) ** 0.5
    assert abs(float(u.mean()) - 0.5) < 0.0015
    assert abs(float(z.mean())) < 0.005
    assert abs(float(z.var()) - 1) < 0.008
    assert float(_gaussian_table(torch.device("cpu")).abs().max()) < 4.4
    signs = Key(4).signs(10_000)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.05


def test_a_folded_seed_gives_its_key_away_and_a_public_one_does_not() -> None:
    key = Key(0).fold("client", 3, 17)
    folded = key.fold("noise").seed
    public = key.public("noise").seed
    assert isinstance(folded, int)
    assert isinstance(public, int)
    assert unfold(folded, "noise") == key.seed
    assert unfold(public, "noise") != key.seed
    stacked = Key(key.tensor()).public("noise").seed
    assert isinstance(stacked, torch.Tensor)
    assert stacked.item() % 2**64 == public  # the same under vmap


def test_siphash_gives_the_test_vectors_of_its_authors() -> None:
    # Key 00 01 .. 0f, message 00 01 .. as long as said: rows 0, 8 and 16 of vectors_sip64.
    low, high = 0x0706050403020100, 0x0F0E0D0C0B0A0908
    expected = {(): 0x726FDB47DD0E0E31, (low,): 0x93F5F5799A932462, (low, high): 0x3F2ACC7F57C29BDB}
    for words, digest in expected.items():
        assert siphash(low, high, words) == digest
        assert siphash(torch.tensor(low), high, words).item() % 2**64 == digest


def test_seeds_that_travel_are_public_ones() -> None:
    shared = Shared(NETWORK, 3, torch.device("cpu"))
    key = Key(5).fold("client", 0, 1)
    for name in ("fedmrn", "fedmrns", "eden", "drive", "randk"):
        protocol = registry.load("protocol", name)
        sent, _ = protocol.message(shared, Key(1).normal(1, 102), [key], [protocol.memory(shared)])
        (seed,) = sent.seeds[0].tolist()
        words = ("noise", "rotation", "indices")
        assert all(unfold(seed % 2**64, word) != key.seed for word in words)
        assert seed % 2**64 in [key.public(word).seed for word in words]


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
