"""The same numbers in every order, on every device."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench.core.rng import Key, _gaussian_table, _siphash, _word


def as_tensor(key: Key) -> Key:
    """The same stream, computed by torch instead of NumPy."""
    return Key(key.tensor())


@given(st.integers(0, 2**64 - 1), st.integers(0, 3000), st.integers(-5, 5))
def test_torch_and_numpy_draw_the_same_bits(seed: int, count: int, name: int) -> None:
    key, twin = Key(seed), as_tensor(Key(seed))
    assert torch.equal(key.bits(count), twin.bits(count))
    folded = twin.fold("noise", name)
    assert int(folded.seed) % 2**64 == key.fold("noise", name).seed
    assert torch.equal(key.normal(count), twin.normal(count))
    assert torch.equal(key.permutation(count), twin.permutation(count))
    assert torch.equal(key.shorts(count), twin.shorts(count))
    p = key.fold("p").uniform(count)
    assert torch.equal(key.coins(p), twin.coins(p))
    assert torch.equal(key.coins(p), key.shorts(count) < p * 2**16)


def test_the_generator_is_splitmix64_whatever_is_drawn_of_it() -> None:
    # First outputs for seed 1234567, as published with Vigna's reference implementation.
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [int(x) % 2**64 for x in Key(1234567).bits(3)] == expected
    (word,) = (int(x) % 2**64 for x in Key(1234567).bits(1))
    assert Key(1234567).shorts(2, 2).flatten().tolist() == [
        word >> s & 0xFFFF for s in (0, 16, 32, 48)
    ]
    shares = Key(3).shorts(1 << 18).histc(4, 0, 1 << 16) / (1 << 18)
    assert float((shares - 0.25).abs().max()) < 5 * (0.1875 / (1 << 18)) ** 0.5
    assert torch.equal(Key(3).bits(100_000)[:70_000], Key(3).bits(70_000))


def test_names_make_different_streams_and_order_counts() -> None:
    key = Key(0)
    seeds = [
        key.seed,
        key.fold("a").seed,
        key.fold("b").seed,
        key.fold("a", "b").seed,
        key.fold("b", "a").seed,
        key.fold(0).seed,
        key.fold("0").seed,
        key.fold(1).seed,
        key.fold(0, 0).seed,
    ]
    assert len(set(seeds)) == len(seeds)


def test_a_vmapped_key_draws_what_each_client_draws_alone() -> None:
    keys = [Key(i) for i in range(4)]
    seeds = torch.stack([key.tensor() for key in keys])
    stacked = torch.vmap(lambda seed: Key(seed).fold("x", 2).uniform(3, 2))(seeds)
    alone = torch.stack([key.fold("x", 2).uniform(3, 2) for key in keys])
    assert torch.equal(stacked, alone)


def test_uniform_normal_and_signs_have_their_moments() -> None:
    # 10^6 draws: standard errors are .0003 and .001; five of them are allowed.
    u, z = Key(1).uniform(1_000_000), Key(2).normal(1_000_000)
    assert torch.equal((u * 2**24).long(), Key(1).bits(1_000_000) >> 40 & 2**24 - 1)  # all 24
    assert 0 <= float(u.min()) < float(u.max()) < 1
    assert abs(float(u.mean()) - 0.5) < 0.0015
    assert abs(float(z.mean())) < 0.005
    assert abs(float(z.var()) - 1) < 0.008
    assert float(_gaussian_table().abs().max()) < 4.4
    signs = Key(4).signs(10_000)
    assert set(signs.tolist()) == {-1.0, 1.0}
    assert abs(float(signs.mean())) < 0.05


def undone(seed: int, *names: str | int) -> int:
    """The key that ``fold`` made this seed of: every step of it can be taken back."""

    def unmixed(z: int) -> int:
        for shift, factor in ((31, None), (27, 0x94D049BB133111EB), (30, 0xBF58476D1CE4E5B9)):
            if factor is not None:
                z = z * pow(factor, -1, 2**64) % 2**64
            x = z
            for _ in range(64 // shift + 1):
                x = z ^ (x >> shift)
            z = x
        return z

    for name in reversed(names):
        seed = (unmixed(unmixed(seed) ^ _word(name)) - 0x9E3779B97F4A7C15) % 2**64
    return seed


def test_a_folded_seed_gives_its_key_away_and_a_public_one_does_not() -> None:
    key = Key(0).fold("client", 3, 17)
    folded, public = key.fold("noise").seed, key.public("noise").seed
    assert isinstance(folded, int)
    assert isinstance(public, int)
    assert undone(folded, "noise") == key.seed
    assert undone(public, "noise") != key.seed
    stacked = Key(key.tensor()).public("noise").seed
    assert isinstance(stacked, torch.Tensor)
    assert stacked.item() % 2**64 == public  # the same under vmap


def test_siphash_gives_the_test_vectors_of_its_authors() -> None:
    # Key 00 01 .. 0f, message 00 01 .. as long as said: rows 0, 8 and 16 of vectors_sip64.
    low, high = 0x0706050403020100, 0x0F0E0D0C0B0A0908
    expected = {(): 0x726FDB47DD0E0E31, (low,): 0x93F5F5799A932462, (low, high): 0x3F2ACC7F57C29BDB}
    for words, digest in expected.items():
        assert _siphash(low, high, words) == digest
        assert _siphash(torch.tensor(low), high, words).item() % 2**64 == digest


def test_seeds_that_travel_are_public_ones() -> None:
    from fedbench.core import registry
    from fedbench.models.network import Shared
    from fedbench.testing import NETWORK

    shared, key = Shared(NETWORK, 3, torch.device("cpu")), Key(5).fold("client", 0, 1)
    for name in ("fedmrn", "fedmrns", "eden", "drive", "randk"):
        protocol = registry.load("protocol", name)
        sent, _ = protocol.message(shared, Key(1).normal(1, 102), [key], [protocol.memory(shared)])
        (seed,) = sent.seeds[0].tolist()
        words = ("noise", "rotation", "indices")
        assert all(undone(seed % 2**64, word) != key.seed for word in words)
        assert seed % 2**64 in [key.public(word).seed for word in words]
