"""FedMRN: masked random noise, worked by hand, on the wire, and in a round."""

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from exchanges import exchanged, flat, rejected, sent, shared_of
from torch import Tensor

from fedbench.api import Batches, ServerView
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.training import Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.models.models import BatchNormNet
from fedbench.payload import FloatVectors, NoiseMasks, same
from fedbench.payload.bits import MIN_NOISE, Noise, noise_of
from fedbench.payload.packets import Packet
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fedmrn import FedMRN, FedMRNS
from fedbench.testing import assert_rounded_alike, check_payload, doubled, example_clients
from fedbench_defenses.mean import Mean

NOISES: list[Noise] = ["uniform", "gaussian", "bernoulli"]
BOTH = pytest.mark.parametrize("protocol", [FedMRN(), FedMRNS()], ids=["binary", "signed"])
VARIANTS: list[dict[str, Any]] = [{}, {"sm": False}, {"pm": False}, {"sm": False, "pm": False}]
VARIANTS += [{"when": "after"}, {"when": "after", "sm": False}]
KEY = Key(6)
NORMALISED = BatchNormNet((1, 4, 4), ((3,), (4,)), 1, 3)


def masks(*rows: list[bool], seeds: list[int], signed: bool = False, p: int = 0) -> NoiseMasks:
    rest = torch.arange(float(len(rows) * p)).reshape(len(rows), p)
    numbers = torch.tensor(seeds)[:, None]
    return NoiseMasks(torch.tensor(rows), numbers, rest, "bernoulli", 0.5, signed)


def by_hand(protocol: FedMRN, u: float, n: float) -> float:
    """``p`` of a 1."""
    return protocol.chance(protocol.reach(torch.tensor(u), torch.tensor(n))).item()


def test_equations_6_and_7_are_how_far_the_update_is_along_the_noise() -> None:
    pairs = [(0.003, 0.004), (-0.003, -0.004), (-0.003, 0.004), (0.005, 0.004), (0.0, -0.004)]
    assert [by_hand(FedMRN(), *pair) for pair in pairs] == pytest.approx([0.75, 0.75, 0, 1, 0])
    # M1: (u + n) / 2n = 5/8; printed u + n/2n = .501, or u + (n/2) n = .001.
    pairs = [(0.001, 0.004), (0.001, -0.004), (-0.005, 0.004), (0.005, 0.004), (0.0, -0.004)]
    chances = [by_hand(FedMRNS(), *pair) for pair in pairs]
    assert chances == pytest.approx([0.625, 0.375, 0, 1, 0.5])
    # Deterministic masks compare signs, and zero has none.
    pairs = [(0.001, 0.004), (-0.001, 0.004), (-0.001, -0.004), (0.009, -0.004), (0.0, 0.004)]
    pairs.append((0.0, -0.004))
    assert [by_hand(FedMRN(sm=False), *pair) for pair in pairs] == [1, 0, 1, 0, 0, 0]
    assert [by_hand(FedMRNS(sm=False), *pair) for pair in pairs] == [1, 0, 1, 0, 1, 1]


def test_equation_10_clips_where_nothing_is_masked_and_is_noise_where_everything_is() -> None:
    u = torch.tensor([0.003, -0.003, 0.009, -0.009, -0.001])
    n = torch.tensor([0.004, 0.004, 0.004, 0.004, -0.004])
    none, all_of_it = (FedMRN().masked(u, n, share, Key(0)) for share in (0.0, 1.0))
    torch.testing.assert_close(none, torch.tensor([0.003, 0, 0.004, 0, -0.001]))
    assert bool(((all_of_it == 0) | (all_of_it == n)).all())
    assert all_of_it[1:4].tolist() == [0, n[2].item(), 0]
    none, all_of_it = (FedMRNS().masked(u, n, share, Key(0)) for share in (0.0, 1.0))
    torch.testing.assert_close(none, torch.tensor([0.003, -0.003, 0.004, -0.004, -0.001]))
    assert torch.equal(all_of_it.abs(), n.abs())
    torch.testing.assert_close(all_of_it[2:4], torch.tensor([0.004, -0.004]))


@BOTH
@pytest.mark.parametrize("progress", [0.001, 0.3, 1.0])
def test_equation_10_masks_its_share_of_equation_6_or_7(protocol: FedMRN, progress: float) -> None:
    d, p = 400_000, 0.3
    n = noise_of(Key(1), d, "bernoulli", 0.5)
    reach = 2 * p - 1 if protocol.signed else p
    out = protocol.masked(n * reach, n, progress, Key(2)) / n
    low = -1.0 if protocol.signed else 0.0
    assert set(out[(out - reach).abs() > 1e-6].tolist()) == {low, 1.0}
    for value, share in ((1.0, progress * p), (low, progress * (1 - p))):
        measured = float((out == value).float().mean())
        assert measured == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / d) + 2**-16)
    # P is 1 with a multiple of 2**-16, rounded up: of the first step too, 400 000 / 65 536 are 6.
    assert float(protocol.masked(n * reach, n, 2**-17, Key(2)).div(n).max()) == 1


@BOTH
def test_masked_noise_is_unbiased_where_the_update_is_within_the_noise(protocol: FedMRN) -> None:
    # 200 000 draws of each; a value has variance up to n**2 (M5).
    draws = 200_000
    n = 0.01
    low = -1.0 if protocol.signed else 0.0
    for reach in (low, 0.1, 0.5, 0.8, 1.0, -0.5, -1.5, 1.5):
        u = torch.full((draws,), reach * n)
        mean = protocol.masked(u, torch.full_like(u, n), 1.0, Key(3)).double().mean().item()
        clipped = n * min(max(reach, low), 1.0)
        assert mean == pytest.approx(clipped, abs=5 * n / math.sqrt(draws) + n * 2**-15)
    assert clipped != u[0].item()  # the last one is outside


def test_binary_masks_lose_half_the_signal_and_signs_do_not() -> None:
    # M4, over n ~ U[-a, a] with a = .01 and u = .003: .001275 and .00255.
    u = torch.full((400_000,), 0.003)
    noise = noise_of(Key(4), len(u), "uniform", 0.01)
    for protocol, expected in ((FedMRN(), 0.001275), (FedMRNS(), 0.00255)):
        out = protocol.masked(u, noise, 1.0, Key(5))
        assert out.double().mean().item() == pytest.approx(expected, abs=5 * 0.01 / 632)
        if not protocol.signed:
            assert float(out[noise < 0].abs().max()) == 0


@BOTH
@pytest.mark.parametrize("sm", [True, False])
def test_an_update_that_is_masked_noise_is_sent_as_it_is(protocol: FedMRN, sm: bool) -> None:
    # u is n or the other value of the bit: no mask is a matter of chance.
    noise = noise_of(Key(7).public("noise"), 200, "uniform", protocol.magnitude)
    bits = Key(8).bernoulli(torch.full((200,), 0.5)).float()
    u = noise * (bits * 2 - 1 if protocol.signed else bits)
    variant = dataclasses.replace(protocol, sm=sm)
    assert torch.equal(sent(variant, flat(200), u[None], keys=[Key(7)]).values()[0], u)


def test_what_is_sent_is_unbiased() -> None:
    for protocol in (FedMRN(noise="bernoulli"), FedMRNS(noise="bernoulli")):
        noise = noise_of(Key(7).public("noise"), 100_000, "bernoulli", protocol.magnitude)
        values = sent(protocol, flat(100_000), noise[None] * 0.3, keys=[Key(7)]).values()
        mean = float((values[0] / noise).mean())
        assert mean == pytest.approx(0.3, abs=5 / math.sqrt(100_000))


def test_the_defaults_are_those_of_the_paper() -> None:
    # Section 5.1.4, and A2 for what it does not say.
    said: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0, "noise": "uniform"}
    said |= {"sm": True, "pm": True, "when": "training"}
    assert FedMRN() == FedMRN(magnitude=0.01, **said)
    assert FedMRNS() == FedMRNS(magnitude=0.005, **said)


def test_equation_5_adds_the_mean_of_masked_noise_weighted_by_size() -> None:
    # Noise of seed 0 is + - - and of seed 1 - + -, times 1/2. Sizes 1 and 3.
    payload = masks([True, True, False], [True, False, True], seeds=[0, 1])
    first, second = payload.noises()
    weights = torch.tensor([1.0, 3.0], dtype=torch.float64)
    view = ServerView(weights, FloatVectors(torch.zeros(1, 3)), 0, Key(0))
    mean, _ = Mean().aggregate(payload, None, view)
    state = FedMRN().server_step(flat(3), torch.ones(3), mean, 2, Key(0))
    expected = 1 + first / 4 * torch.tensor([1, 1, 0]) + second * 3 / 4 * torch.tensor([1, 0, 1])
    assert state.tolist() == pytest.approx(expected.tolist())
    assert FedMRN().weighted


def played(
    protocol: FedMRN, steps: int, tree: Tree, pull: float, key: Key = KEY
) -> tuple[Tree, list[Tree]]:
    """The update where every gradient is ``pull``, and where it was taken."""
    seen: list[Tree] = []

    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        seen.append({name: x.clone() for name, x in tree.items()})
        return {name: torch.full_like(x, pull) for name, x in tree.items()}

    weights = tuple(name for name in tree if "." not in name)
    batches = Batches([(torch.zeros(1), torch.zeros(1))] * steps, weights=weights)
    update, _ = protocol.local_update(tree, batches, grad, key, {})
    return update, seen


@BOTH
def test_u_starts_at_zero_and_is_never_clipped(protocol: FedMRN) -> None:
    # M6: five steps of lr .1 along 1 are .5, far beyond the noise.
    update, seen = played(protocol, 5, {"fc1": torch.zeros(1, 4), "fc1.bias": torch.ones(3)}, 1.0)
    torch.testing.assert_close(update["fc1"], torch.full((1, 4), -0.5))
    torch.testing.assert_close(update["fc1.bias"], torch.full((3,), -0.5))
    biases = torch.stack([tree["fc1.bias"][0] for tree in seen])
    torch.testing.assert_close(biases, torch.tensor([1.0, 0.9, 0.8, 0.7, 0.6]))
    assert max(float(tree["fc1"].abs().max()) for tree in seen) <= protocol.magnitude


def test_the_share_that_is_masked_grows_from_one_step_in_s_to_all() -> None:
    # Bernoulli noise +-1, and u / n is 0, 1/8, 2/8, 3/8 in the four steps where signs agree. What
    # is masked is 0 or 1, what is not is u itself.
    protocol = FedMRN(noise="bernoulli", magnitude=1.0)
    start = {"fc1": torch.zeros(1, 100_000)}
    _, seen = played(protocol, 4, start, -1.25)
    noise = noise_of(KEY.public("noise"), 100_000, "bernoulli", 1.0)
    for tau, tree in enumerate(seen, start=1):
        x = tree["fc1"][0][noise > 0]
        assert float(tree["fc1"][0][noise < 0].abs().max()) == 0
        if tau > 1:
            untouched = (x - 0.125 * (tau - 1)).abs() < 1e-6
            assert float(untouched.float().mean()) == pytest.approx(1 - tau / 4, abs=0.012)
            assert set(x[~untouched].tolist()) == {0.0, 1.0}
    _, seen = played(dataclasses.replace(protocol, pm=False), 4, start, -1.25)
    assert all(set(tree["fc1"].abs().flatten().tolist()) <= {0.0, 1.0} for tree in seen)


def test_each_step_and_layer_draws_anew_and_the_final_mask_too() -> None:
    protocol = FedMRNS(pm=False, noise="bernoulli", magnitude=1.0)
    shape = (1, 1000)
    start = {"a": torch.zeros(shape), "b": torch.zeros(shape)}
    update, seen = played(protocol, 3, start, 0.0)  # u stays 0: every mask is a fair coin
    known = noise_of(KEY.public("noise"), 2000, "bernoulli", 1.0)
    noise = {"a": known[None, :1000], "b": known[None, 1000:]}
    drawn = [tree[name] * noise[name] for tree in seen for name in start]
    final = sent(protocol, flat(1000), update["a"], keys=[KEY])
    drawn += [final.mask.float() * 2 - 1, noise["a"]]
    for a, b in itertools.combinations(drawn, 2):
        assert float((a == b).float().mean()) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(1000))


@BOTH
@pytest.mark.parametrize("noise", NOISES)
def test_the_server_regenerates_the_noise_of_training(protocol: FedMRN, noise: Noise) -> None:
    # In the last step everything is masked, so w + u_hat is 0 or the noise, or the noise negated.
    protocol = dataclasses.replace(protocol, noise=noise)
    shared = shared_of()
    key = Key(11)
    tree = shared.layout.unflatten(torch.zeros(shared.layout.d))
    update, seen = played(protocol, 2, tree, 0.05, key)
    payload = sent(protocol, shared, shared.layout.flatten(update)[None], keys=[key])
    received = NoiseMasks.decode_row(payload.encode()[0], payload.spec)
    last = shared.layout.flatten(seen[-1])
    known = received.noises()[0]
    assert torch.equal(received.values(), payload.values())
    assert bool(((last == known) | (last == (-known if protocol.signed else 0))).all())
    assert bool((last == known).any())


@pytest.mark.parametrize("noise", NOISES)
def test_a_client_under_vmap_draws_the_noise_of_the_server(noise: Noise) -> None:
    keys = [Key(i).fold("noise") for i in range(8)]
    seeds = torch.stack([key.tensor() for key in keys])
    assert bool((seeds < 0).any())
    stacked = torch.vmap(lambda seed: noise_of(Key(seed), 500, noise, 0.01))(seeds)
    payload = NoiseMasks(stacked > 0, seeds[:, None], torch.zeros(8, 0), noise, 0.01)
    assert torch.equal(stacked, payload.noises())
    assert not torch.equal(stacked[0], stacked[1])


def test_the_noise_has_its_distribution_and_keeps_away_from_zero() -> None:
    for noise, deviation in zip(NOISES, (0.02 / math.sqrt(3), 0.02, 0.02), strict=True):
        x = noise_of(Key(0), 1_000_000, noise, 0.02)
        assert float(x.std()) == pytest.approx(deviation, rel=0.005), noise
        assert abs(float(x.mean())) < 5 * deviation / 1000, noise
        assert float(x.abs().max()) <= (0.02 * 4.4 if noise == "gaussian" else 0.02), noise
        assert (len(set(x[:1000].tolist())) == 2) == (noise == "bernoulli")
    tiny = noise_of(Key(0), 1000, "uniform", 3e-8)
    assert float(tiny.abs().min()) == pytest.approx(MIN_NOISE)
    assert 200 < int((tiny.abs() == tiny.abs().min()).sum()) < 500  # a third
    assert 400 < int((tiny < 0).sum()) < 600


@BOTH
def test_the_variants_differ_from_each_other(protocol: FedMRN) -> None:
    results = []
    for changes in VARIANTS:
        variant = dataclasses.replace(protocol, **changes)
        updates, payload = exchanged(variant, shared_of(), Schedule(3, 2))
        results.append(torch.cat([updates, payload.values()]))
    for a, b in itertools.combinations(results, 2):
        assert not torch.equal(a, b), "equal draws, so a variant that does nothing is equal"


@BOTH
def test_masking_after_training_or_in_its_first_step_is_fedavg(protocol: FedMRN) -> None:
    after = dataclasses.replace(protocol, when="after")
    fedavg = FedAvg(lr=0.1, momentum=0.0, weight_decay=0.0)
    rows = [exchanged(p, shared_of(), Schedule(2, 3))[0] for p in (after, fedavg, protocol)]
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    # Statistics are no gradient. In the first step u is still 0.
    steps = [exchanged(p, shared_of(NORMALISED), Schedule(1, 8))[0] for p in (FedMRN(), fedavg)]
    torch.testing.assert_close(*steps)


@BOTH
def test_the_rest_travels_as_floats_and_is_counted(protocol: FedMRN) -> None:
    shared = shared_of(NORMALISED)
    schedule = Schedule(2, 4)
    d, p = shared.weights.d, shared.rest.d
    clients = example_clients(protocol, shared)
    exact, _ = Loop(protocol, shared, schedule).train(doubled(clients))
    stacked, _ = Stacked(protocol, shared, schedule).train(doubled(clients))
    assert_rounded_alike(stacked, exact)
    updates, payload = exchanged(protocol, shared, schedule)
    assert torch.equal(payload.rest, updates[:, d:])
    assert float((updates[:, d:] != 0).float().mean()) > 0.9  # statistics move too
    check_payload(payload)
    bare = dataclasses.replace(payload, rest=payload.rest[:, :0])
    packets = zip(payload.encode(), bare.encode(), strict=True)
    assert [x.bits - y.bits for x, y in packets] == 4 * [32 * p]
    assert (bare.bounded, payload.bounded) == (True, False)
    start = protocol.init(shared)
    state = protocol.server_step(shared, start, payload.values().mean(dim=0), 4, Key(0))
    torch.testing.assert_close(state[d:], start[d:] + updates[:, d:].mean(dim=0))
    local = protocol.local_model(shared, FloatVectors(start[None]), payload.take([1]))
    assert local is not None
    torch.testing.assert_close(shared.layout.flatten(local), start + payload.values()[1])


def test_masked_noise_costs_a_bit_a_weight_and_a_header() -> None:
    # The worst case, fair coins, on the 1,625,632 weights of lenet: never above d + 512 bits.
    for d in (100, 151_072, 1_625_632):
        bits = Key(0).bernoulli(torch.full((2, d), 0.5))
        seeds = torch.tensor([[1], [-1]])
        payload = NoiseMasks(bits, seeds, torch.zeros(2, 5), "uniform", 0.01, True)
        for packet in payload.encode():
            assert d + 32 * 5 <= packet.bits + 64  # a fair coin can be a little uneven
            assert packet.bits <= d + 32 * 5 + 512
    assert payload.entropy()[0].item() == pytest.approx(d + 160 + 64, rel=1e-5)


def test_nearest_is_the_closer_of_the_two_values_of_each_bit() -> None:
    values = torch.tensor([0.0, 0.2, 0.25, 0.3, 0.6, 1e6, math.inf])
    values = torch.cat([values, -values[1:]])
    rows = torch.stack([values, -values])
    for signed in (False, True):
        blank = masks(*[[False] * len(values)] * 2, seeds=[3, 4], signed=signed)
        near = blank.nearest(rows)
        noise = blank.noises().double()
        zero = -noise if signed else torch.zeros_like(noise)
        clipped = rows.double().clamp(-1, 1)
        expected = (clipped - noise).abs() < (clipped - zero).abs()
        tie = (clipped - noise).abs() == (clipped - zero).abs()
        assert torch.equal(near.mask[~tie], expected[~tie])
        assert bool(tie.any())
        assert bool((near.mask[tie] == signed).all())
        assert torch.equal(near.seeds, blank.seeds)


def test_a_packet_is_seed_floats_and_coded_mask() -> None:
    payload = masks([True, False, True], [False, True, True], seeds=[5, -2], p=2)
    check_payload(payload)
    first, second = (packet.data for packet in payload.encode())
    assert first[:8] == (5).to_bytes(8, "little")
    assert second[:8] == b"\xfe" + 7 * b"\xff"
    assert first[8:16] == b"\0\0\0\0" + b"\0\0\x80\x3f"  # 0.0 and 1.0
    assert first[16:20] == (2).to_bytes(4, "little")  # two ones


def example(signed: bool = False) -> NoiseMasks:
    bits = Key(1).bernoulli(torch.full((3, 200), 0.3))
    return NoiseMasks(bits, torch.arange(3)[:, None], torch.ones(3, 2), "uniform", 0.01, signed)


def test_forged_bytes_are_rejected() -> None:
    data = example().encode()[0].data
    seed = data[:8]
    head = data[:16]
    words = data[16:]  # 8 bytes, and two floats
    counts = (bytes([words[0] ^ 1]) + words[1:4], b"\xff\xff\xff\xff")  # another, above all bits
    no_code = head + words[:4] + bytes(255 - b for b in words[4:])
    shorter = (b"", data[:4], head, seed + words, data[:-4])
    for forged in (*shorter, data + bytes(4), no_code, *(head + c + words[4:] for c in counts)):
        rejected(NoiseMasks, forged, example().spec)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_any_seed_is_legal_and_its_noise_is_within_the_magnitude(seed: int) -> None:
    # A client chooses its seed: what it gains is other noise, never larger noise.
    payload = example()
    data = seed.to_bytes(8, "little", signed=True) + payload.encode()[0].data[8:]
    received = NoiseMasks.decode_row(Packet.raw(data), payload.spec)
    assert received.seeds.tolist() == [[seed]]
    assert same(received, NoiseMasks.decode_row(received.encode()[0], payload.spec))
    values = received.values()[:, :200]
    assert float(values.abs().max()) <= 0.01
    assert not torch.equal(values, payload.take([1]).values()[:, :200])


@pytest.mark.parametrize(
    ("field", "value", "requirement"),
    [
        ("mask", torch.ones(3, 200), r"NoiseMasks.mask must be \(n, d\) torch.bool"),
        ("seeds", torch.zeros(3, 2, dtype=torch.int64), r"NoiseMasks.seeds must be \(n, 1\)"),
        ("seeds", torch.zeros(3, 1), r"NoiseMasks.seeds must be \(n, 1\) torch.int64"),
        ("rest", torch.zeros(3, 2).double(), r"NoiseMasks.rest must be \(n, p\) torch.float32"),
    ],
)
def test_messages_of_another_shape_are_named(field: str, value: Tensor, requirement: str) -> None:
    with pytest.raises(IllegalPayloadError, match=requirement):
        dataclasses.replace(example(), **{field: value}).check()  # type: ignore[arg-type]


@BOTH
def test_updates_that_are_not_finite_become_legal_masks(protocol: FedMRN) -> None:
    rows = torch.tensor([[math.nan, math.inf, -math.inf, 1e38]])
    payload = sent(protocol, flat(4), rows)
    check_payload(payload)
    assert bool(torch.isfinite(payload.values()).all())
