"""Secure aggregation: residues and their bits, Skellam and PBM by hand, and sums that go around."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fedbench
from fedbench.api import Release, Shared
from fedbench.core.errors import IllegalPayloadError, Incompatible
from fedbench.core.rng import Key
from fedbench.experiment.cells import Cell
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.models.network import ConvNet
from fedbench.payload import (
    SUMMED,
    BinaryMasks,
    Residues,
    SignBits,
    masked_packets,
    same,
    sum_of_packets,
    summands,
)
from fedbench.payload.packets import Packet, code_residues, decode_residues
from fedbench.payload.residues import total, wrapped
from fedbench.privacy.events import BinomialCounts, SkellamShare
from fedbench.protocols.secure_sums import (
    PBM,
    Skellam,
    SummedResidues,
    clipped,
    flattened,
    rounded,
    rounded_norm,
    unflattened,
)
from fedbench.results.summary import Row
from fedbench.tables.columns import captions
from fedbench.testing import check_payload, example_payloads
from fedbench_defenses.mean import exact_mean

NAN = torch.nan
INF = torch.inf
SMALL = Scenario(
    model="micro", clients=40, per_round=40, rounds=1, epochs=1, batch_size=512, malicious=0.0
)


def flat(d: int) -> Shared:
    return Shared(ConvNet((1, 1, d), (), (), 1), 3, torch.device("cpu"))


def keys(n: int) -> list[Key]:
    return [Key(0).fold(i) for i in range(n)]


def sent(protocol: SummedResidues, updates: Tensor) -> Residues:
    n, d = updates.shape
    payload, _ = protocol.message(flat(d), updates, keys(n), [{}] * n)
    assert isinstance(payload, Residues)
    check_payload(payload)
    return payload


def test_the_rotation_is_orthogonal_and_spreads_and_clipping_keeps_the_direction() -> None:
    for d in (1, 2, 3, 64, 100, 1000):
        x = Key(d).normal(5, d).double()
        y = flattened(x, Key(1))
        torch.testing.assert_close(y @ y.T, x @ x.T)
        torch.testing.assert_close(unflattened(y, Key(1)), x)
        torch.testing.assert_close(flattened(x.sum(dim=0)[None], Key(1)), y.sum(dim=0)[None])
        assert d <= 3 or not torch.allclose(flattened(x, Key(2)), y)
    # 100 = 64 + 36: in blocks of powers of two the last four would be a block of themselves.
    y = flattened(torch.eye(100).double(), Key(1))
    assert float(y.abs().max()) < 0.5
    assert float((y != 0).double().sum(dim=1).min()) >= 64
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0], [NAN, 1.0], [-INF, 1.0]]).double()
    clipped_rows = torch.tensor([[0.6, 0.8], [0.3, 0.4], [0, 0], [0, 0], [0, 0]]).double()
    torch.testing.assert_close(clipped(x, 1.0), clipped_rows, rtol=1e-7, atol=0)


@pytest.mark.parametrize("protocol", [Skellam(clip=2.0, z=0.0, bits=20), PBM(m=500, theta=0.4)])
def test_a_broken_update_is_sent_as_no_update(protocol: SummedResidues) -> None:
    x = torch.zeros(2, 700)
    x[0, 3] = NAN
    payload = sent(protocol, x)
    spread = payload.values().double().square().mean(dim=1)  # of fair coins m, of none 0
    assert spread.tolist() == pytest.approx([payload.coins] * 2, rel=0.3)


@pytest.mark.parametrize(
    "protocol",
    [Skellam(clients=4, z=z, bits=20) for z in (0, 1e-4)] + [PBM(clients=4, m=10**5, theta=0.4)],
    ids=["rounded", "noisy", "coins"],
)
def test_the_server_adds_the_mean_of_the_clipped_updates(protocol: SummedResidues) -> None:
    x = Key(0).normal(4, 500) * torch.tensor([[0.01], [0.02], [0.1], [1.0]])
    received = exact_mean(sent(protocol, x).values())
    moved = protocol.server_step(flat(500), torch.zeros(500), received, 4, Key(1)).double()
    mean = clipped(x.double(), protocol.clip).mean(dim=0)
    off = torch.linalg.vector_norm(moved - mean) / torch.linalg.vector_norm(mean)
    assert float(off) < 0.03
    assert not protocol.weighted
    assert not protocol.statistics


def test_a_message_says_the_network_of_its_client() -> None:
    shared = flat(500)
    protocol = Skellam(clients=1, z=0.0, bits=20, clip=9.0)
    state = Key(0).normal(500)
    x = Key(1).normal(1, 500) * 0.1
    broadcast = protocol.broadcast(shared, state, [0], Key(0))
    tree = protocol.local_model(shared, broadcast, sent(protocol, x))
    assert tree is not None
    torch.testing.assert_close(shared.layout.flatten(tree), state + x[0], rtol=0, atol=1e-3)


@pytest.mark.parametrize("protocol", [Skellam(), PBM()])
def test_draws_are_named_by_the_key_of_the_client_alone(protocol: SummedResidues) -> None:
    x = Key(0).normal(1, 300).expand(3, -1)
    payload = sent(protocol, x)
    assert same(sent(protocol, x), payload)
    assert same(sent(protocol, x[:1]), payload.take([0]))
    assert not torch.equal(payload.x[0], payload.x[1])


def test_the_scale_fills_the_modulus_with_the_sum() -> None:
    # 2**8 = 2 * 4 sqrt(s**2 / 4 + 1/4): s**2 = 4 (1024 - 1/4), and of clip 2 a quarter of it.
    assert Skellam(clients=1, z=0.0, bits=8, clip=1.0).scale(4) == pytest.approx(4095**0.5)
    assert Skellam(clients=1, z=0.0, bits=8, clip=2.0).scale(4) == pytest.approx(4095**0.5 / 2)
    p = Skellam(clients=7, z=0.7, bits=10, clip=3.0, sigmas=2.5)
    s = p.scale(60)
    room = s**2 * 7**2 * 3**2 / 60 + 7 / 4 + (s * 0.7 * 3) ** 2
    assert 2 * 2.5 * room**0.5 == pytest.approx(2**10)
    assert 7 * p.variance(60) == pytest.approx((s * 0.7 * 3) ** 2)
    assert p.unit(60) == pytest.approx(1 / (2 * s))


def test_the_noise_of_all_clients_has_the_stated_variance_and_is_skellam_and_no_gaussian() -> None:
    d = 40_000
    protocol = Skellam(z=0.3, bits=12)
    shares = protocol.residues(torch.zeros(10, d).double(), keys(10)).values().double() / 2
    variance = (protocol.scale(d) * 0.3 * 0.5) ** 2
    tolerance = 5 * math.sqrt(2 / d)  # of a variance, relative; it is nearly Gaussian
    assert float(shares.sum(dim=0).var()) == pytest.approx(variance, rel=tolerance)
    assert float(shares[0].var()) == pytest.approx(variance / 10, rel=tolerance)
    assert abs(float(shares.mean())) < 5 * math.sqrt(variance / 10 / d / 10)

    # Of variance v = 1/2: 0 has the chance e**-v I_0(v), where a rounded Gaussian has 0.52.
    d = 100_000
    protocol = Skellam(clients=1, bits=6, sigmas=(4**6 / 3) ** 0.5, z=100.0)
    v = protocol.variance(d)
    assert v == pytest.approx(0.5)
    noise = protocol.residues(torch.zeros(1, d).double(), keys(1)).values().double() / 2
    share = float((noise == 0).double().mean())
    assert share == pytest.approx(0.64503, abs=5 * math.sqrt(0.23 / d))


def test_skellam_is_unbiased_where_no_rounding_is_refused() -> None:
    n = 1500
    protocol = Skellam(clients=1, beta=0.0, bits=10, z=0.05, clip=1.0)
    x = torch.tensor([0.5, -0.3, 0.001, 0.0, -0.0003, 0.2, 0.7, -0.1]).double()
    values = protocol.residues(x.expand(n, -1), keys(n)).values().double() / 2
    f = (protocol.scale(8) * x).frac().abs()
    deviation = (protocol.variance(8) + f * (1 - f)).sqrt()
    off = (values.mean(dim=0) - protocol.scale(8) * x).abs()
    assert bool((off <= 5 * deviation / n**0.5).all())
    variance = pytest.approx(deviation.square().tolist(), rel=5 * math.sqrt(2 / n) + 0.02)
    assert values.var(dim=0).tolist() == variance


def test_rounding_is_redone_while_it_is_longer_than_the_bound_of_the_paper() -> None:
    assert rounded_norm(4, 3.0, math.exp(-0.5)) == pytest.approx(14**0.5)  # 9 + 1 + (3 + 1)
    assert rounded_norm(4, 3.0, 1e-300) == 5.0  # 3 + sqrt 4
    assert rounded_norm(4, 3.0, 0.0) == 5.0
    # 400 coins of norm 1: of 200 on average 209.2 may fall, so 18 % of the rows are redone.
    x = torch.full((300, 400), 0.5).double()
    most = rounded_norm(400, 10.0, 0.9)
    once, again = (rounded(x, m, keys(300)).double() for m in (INF, most))
    first = (once.square().sum(dim=1) <= most**2).double().mean()
    assert 0.7 < float(first) < 0.92
    assert bool((again.square().sum(dim=1) <= most**2).all())
    assert float((again == once).all(dim=1).double().mean()) == float(first)
    assert set(again.flatten().tolist()) == {0.0, 1.0}


def test_a_sum_beyond_the_modulus_goes_around() -> None:
    # Room for 0.1 root mean squares only: a sum of 4 equal updates is what the wrapped one says.
    protocol = Skellam(clients=4, z=0.0, bits=10, sigmas=0.1, clip=1.0)
    x = Key(0).normal(1, 64).expand(4, -1)
    sure = clipped(flattened(x, flat(64).key).double(), 1.0)[0] * protocol.scale(64)
    total_moved = total(exact_mean(sent(protocol, x).values()), 4, 2**10, 0) / 2
    around = (total_moved - 4 * sure).div(2**10).round()
    assert bool((around != 0).any())
    assert float((total_moved - 4 * sure - 2**10 * around).abs().max()) <= 4


def test_events_are_a_share_of_the_noise_and_the_counts_of_a_client() -> None:
    protocol = Skellam(z=0.5, clients=7)
    release = Release(d=900, size=1, batch_size=1, steps=1, clients=50, per_round=10)
    s = protocol.scale(900)
    norm = rounded_norm(900, 0.5 * s, math.exp(-0.5))
    assert protocol.event(release) == SkellamShare(900, norm, (s * 0.25) ** 2 / 7)
    assert Skellam(z=0.0).event(release) is None
    event = PBM(theta=0.1, sigmas=3.0, clip=7.0).event(release)
    assert isinstance(event, BinomialCounts)
    assert (event.d, event.coins, event.reach) == (900, 6, 0.1)
    assert event.norm == pytest.approx(0.1 * 30 / 3)  # theta clip / C, and C = 3 clip / 30


def test_counts_are_unbiased_and_have_the_variance_of_coins() -> None:
    d = 40_000
    protocol = PBM(m=5, theta=0.25, sigmas=2.0, clip=1.0)
    x = torch.full((10, d), 1 / math.sqrt(d)).double()  # half of C: chances 1/2 + 1/8
    values = protocol.residues(x, keys(10)).values().double()
    assert set(values.flatten().tolist()) <= {-5.0, -3.0, -1.0, 1.0, 3.0, 5.0}
    assert protocol.unit(d) == pytest.approx(2 / math.sqrt(d) / (2 * 5 * 0.25))
    deviation = math.sqrt(4 * 5 * 0.625 * 0.375)
    assert float(values.mean()) == pytest.approx(5 * 0.25, abs=5 * deviation / math.sqrt(10 * d))
    assert float(values.var()) == pytest.approx(deviation**2, rel=5 * math.sqrt(2 / 10 / d))
    assert float(values.mean()) * protocol.unit(d) == pytest.approx(float(x[0, 0]), rel=0.03)
    assert float(values.sum(dim=0).var()) == pytest.approx(10 * deviation**2, rel=0.04)


def test_counts_are_clipped_and_cost_the_bits_of_the_largest_sum() -> None:
    protocol = PBM(m=10_000, theta=0.4, sigmas=2.0, clip=1.0, clients=1)
    x = torch.zeros(1, 100).double()
    x[0, 0], x[0, 1], x[0, 2] = 0.9, -0.9, 0.2  # C = 0.2
    shares = protocol.residues(x, keys(1)).x[0, :4] / 10_000
    assert shares.tolist() == pytest.approx([0.9, 0.1, 0.9, 0.5], abs=0.03)
    payload = sent(PBM(), torch.zeros(1, 100))
    assert (payload.modulus, payload.coins) == (61, 6)
    wide = sent(PBM(), torch.zeros(1, 10_000)).encode()[0].bits
    assert 5.9307 * 10_000 < wide < 5.9307 * 10_000 + 64  # log2(61), where whole bits are 6
    few = sent(PBM(m=1), torch.zeros(1, 10_000)).encode()[0].bits
    assert 3.4594 * 10_000 < few < 3.4595 * 10_000 + 64  # log2(11)


# residues


def residues(x: list[int], modulus: int, coins: int) -> Residues:
    return Residues(torch.tensor([x], dtype=torch.int32), modulus, coins)


def test_a_residue_costs_the_bits_of_its_modulus_and_there_is_no_header() -> None:
    payload = residues([3, 1, 2], 4, 0)
    (packet,) = payload.encode()
    assert (packet.data.hex(), packet.bits) == ("d8", 6)  # 11 01 10, and padding
    assert residues([1, 0, 3], 8, 0).encode()[0].bits == 9
    wrong = ("d9", "", "d800")  # padding, too short, too long
    packets = [Packet.raw(bytes.fromhex(data)) for data in wrong]
    assert not Residues.decode(packets, payload.spec)[1].any()
    largest = residues([2**24 - 1, 0], 2**24, 0)
    check_payload(largest)
    assert largest.encode()[0].bits == 48


def test_only_the_code_of_residues_is_their_packet() -> None:
    payload = residues([10, 0, 3] * 20, 11, 0)
    (packet,) = payload.encode()
    assert packet.bits == 8 * len(packet.data) == 224  # 60 log2(11) = 207.6, in words of 32
    changed = bytes([packet.data[0] ^ 1]) + packet.data[1:]
    wrong = (packet.data[:-4], packet.data[:-1], packet.data + b"\0" * 4, b"")
    assert not Residues.decode([Packet.raw(data) for data in wrong], payload.spec)[1].any()
    other, accepted = Residues.decode([Packet.raw(changed)], payload.spec)
    assert other is None or (bool(accepted.all()) and not same(other, payload))


def test_values_are_the_least_whole_numbers_around_the_middle_and_end_with_the_field() -> None:
    signed = residues(list(range(8)), 8, 0)
    assert signed.values().tolist() == [[0, 2, 4, 6, -8, -6, -4, -2]]
    # Five coins, two clients: 2 x - 5 up to 9, and 11 = -11 mod 22.
    counts = residues(list(range(11)), 11, 5)
    assert counts.values().tolist() == [[-5, -3, -1, 1, 3, 5, 7, 9, -11, -9, -7]]
    for payload in (signed, counts):
        assert payload.values().dtype == torch.int32
        check_payload(payload)
    assert (signed.bounded, signed.aligned) == (True, False)

    far = torch.tensor([[100.0, -100.0, INF, -INF, NAN, 3.1]])
    assert residues([0] * 6, 8, 0).nearest(far).values().tolist() == [[6, -8, 6, -8, 0, 4]]
    assert residues([0] * 6, 11, 5).nearest(far).values().tolist() == [[9, -11, 9, -11, -1, 3]]
    assert residues([0] * 6, 8, 5).nearest(far).values().tolist() == [[7, -7, 7, -7, -1, 3]]
    halfway = torch.tensor([[1.0, 3.0, -1.0, -3.0]])
    assert residues([0] * 4, 8, 0).nearest(halfway).values().tolist() == [[0, 4, 0, -4]]


SEEDS = st.integers(0, 2**32)


@given(st.integers(2, 400), st.integers(0, 30), st.integers(1, 12), SEEDS, st.booleans())
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


def test_a_count_above_the_coins_is_legal_but_not_honest_and_no_residue_is_refused() -> None:
    counts = Residues(torch.tensor([[0, 5], [6, 0]], dtype=torch.int32), 11, 5)
    counts.check()
    assert counts.passes("range").tolist() == [True, False]
    assert counts.passes("finite").tolist() == [True, True]
    assert residues([7], 8, 0).passes("range").tolist() == [True]
    illegal = [residues([0, x], 8, 0) for x in (8, -1)]
    illegal += [Residues(torch.tensor([[0, 1]]), 8, 0), Residues(counts.x[0], 8, 0)]
    illegal += [residues([0, 0], *field) for field in ((1, 0), (2**24 + 1, 0), (8, 8), (8, -1))]
    for wrong in illegal:
        with pytest.raises(IllegalPayloadError, match="Residues"):
            wrong.check()


# what travels in a secure sum: masked residues modulo n + 1


@given(st.lists(st.integers(0, 2**24 - 2), max_size=60), st.integers(1, 2**24 - 1))
def test_residues_come_back_from_their_code(numbers: list[int], modulus: int) -> None:
    residues = np.array([number % modulus for number in numbers], dtype=np.int32)
    data, bits = code_residues(residues, modulus)
    packet = Packet(data.tobytes(), bits)
    assert np.array_equal(decode_residues(packet, len(residues), modulus), residues)
    assert bits <= len(numbers) * math.log2(modulus) + 96  # the coder's last words


def test_three_masked_bits_by_hand() -> None:
    # Modulo 4, two bits each: whatever the masks are, two clients say nothing and three say 3.
    numbers = summands(SignBits(torch.tensor([[True], [True], [True]])), 3)
    assert (numbers.modulus, numbers.coins, numbers.x.tolist()) == (4, 1, [[1], [1], [1]])
    first, second = (int(Key(5).fold(i).integers(4, 1)) for i in range(2))
    packets = masked_packets(numbers, Key(5))
    assert [packet.bits for packet in packets] == [2, 2, 2]
    sent = [(1 + mask) % 4 for mask in (first, second, -first - second)]
    assert [packet.data[0] >> 6 for packet in packets] == sent
    assert sum_of_packets(packets, numbers.spec).tolist() == [3]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 40])
def test_a_masked_sum_of_bits_is_the_sum_and_costs_log2_of_n_plus_one(n: int) -> None:
    d = 6000
    bits = (torch.arange(d) % 4 < 1 + torch.arange(n)[:, None] % 4) | (torch.arange(d) < 9)
    for payload in (BinaryMasks(bits, torch.zeros(n, 0)), SignBits(bits)):
        numbers = summands(payload, n)
        packets = masked_packets(numbers, Key(3))
        total = sum_of_packets(packets, numbers.spec)
        assert torch.equal(total, bits.sum(dim=0))  # all n ones of nine coordinates among them
        for packet in packets:
            assert 0 <= packet.bits - d * math.log2(n + 1) < 64  # 40 clients: log2(41) = 5.3576
    silent = masked_packets(summands(SignBits(torch.zeros(n, d, dtype=torch.bool)), n), Key(3))
    for packet in silent if n > 1 else []:  # no bit is set, and every number is as likely
        counts = np.bincount(decode_residues(packet, d, n + 1), minlength=n + 1)
        assert np.abs(counts - d / (n + 1)).max() < 5 * math.sqrt(d / (n + 1))


def test_a_round_without_all_of_its_messages_has_the_modulus_of_all() -> None:
    arrived = SignBits(torch.tensor([[True, True]] * 3))
    assert summands(arrived, 7).modulus == 8
    nobody = summands(arrived.take([]), 0)
    assert masked_packets(nobody, Key(0)) == []
    assert sum_of_packets([], nobody.spec).tolist() == [0, 0]


def test_residues_are_summed_modulo_their_own_modulus() -> None:
    pair = Residues(torch.tensor([[9, 10], [9, 10]], dtype=torch.int32), 11, 5)
    assert summands(pair, 2) is pair
    assert sum_of_packets(masked_packets(pair, Key(0)), pair.spec).tolist() == [7, 9]  # 18, 20


def test_what_is_no_bit_has_no_secure_sum() -> None:
    for payload in example_payloads(9):
        fits = isinstance(payload, SUMMED)
        if fits and not (isinstance(payload, BinaryMasks) and payload.rest.shape[1]):
            assert len(masked_packets(summands(payload, 9), Key(0))) == 9
            continue
        with pytest.raises(IllegalPayloadError, match="must be masks, signs or residues alone"):
            summands(payload, 9)


def played(**fields: object) -> Record:
    return fedbench.play(SMALL.model_copy(update=fields), device="cpu", executor="loop")


@pytest.mark.parametrize("sees", ["sum", "hidden-sum"])
def test_a_mask_bit_among_40_clients_costs_log2_41(sees: str) -> None:
    summed, plain = (played(protocol="fedpm", sees=view) for view in (sees, "messages"))
    bits, plain_bits = (record.rounds[0].uplink_bits or 0 for record in (summed, plain))
    assert summed.rounds[0].benign_uplink_bits == bits
    each = bits / 40 / summed.parameters
    assert each == pytest.approx(5.3576, abs=0.007)  # log2(41), and a word or two of the coder
    assert plain_bits == 40 * (32 + plain.parameters)  # a count, and the bits as they are
    assert summed.result.uplink_bits_per_parameter == each
    assert summed.result.accuracy == plain.result.accuracy  # what the server adds up is the same
    for record, known in ((summed, True), (plain, False)):
        caption = captions([Row(Cell(record.scenario), (record,))])["bits"]
        assert ("log2(n + 1)" in caption) == known


def test_signs_and_residues_are_counted_behind_masks_and_skellam_costs_the_same() -> None:
    few = {"clients": 6, "per_round": 6, "sees": "sum"}
    for protocol, exact in (("signsgd", math.log2(7)), ("skellam", 12.0), ("pbm", math.log2(61))):
        record = played(protocol=protocol, **few)
        bits = record.result.uplink_bits_per_parameter
        assert bits == pytest.approx(exact, abs=0.007), protocol


def test_bits_behind_masks_have_room_for_all_that_were_asked() -> None:
    fields = {"clients": 20, "per_round": 10, "rounds": 3, "availability": "dropout:p=0.5"}
    record = played(protocol="signsgd", sees="sum", **fields)
    assert all(played_round.dropped > 2 for played_round in record.rounds)
    for played_round in record.rounds:
        each = (played_round.uplink_bits or 0) / len(played_round.clients) / record.parameters
        assert each == pytest.approx(math.log2(11), abs=0.007)  # who stays cannot know how many do


def test_a_message_that_is_rejected_is_in_no_sum() -> None:
    fields = {"clients": 4, "per_round": 4, "malicious": 0.25, "attack": "malformed"}
    record = played(protocol="signsgd", sees="sum", **fields)
    (played_round,) = record.rounds
    d = record.parameters
    assert (played_round.accepted, played_round.rejected_malicious) == (3, 1)
    assert played_round.benign_uplink_bits == pytest.approx(3 * d * math.log2(5), abs=3 * 64)
    forged = (played_round.uplink_bits or 0) - (played_round.benign_uplink_bits or 0)
    assert forged == 8 * (-(-d // 8) - 1)  # its own bytes, of which the last is missing


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"protocol": "fedavg"}, "fedavg must send .* under --sees sum, got FloatVectors; use"),
        ({"protocol": "drive"}, "drive must send .*, got RotatedLevels; use fedpm"),
        ({"protocol": "fedmrn"}, "fedmrn must send .*, got NoiseMasks; use fedpm"),
        ({"protocol": "fedpm:reg=1.0"}, "reg=1.0 weights clients by size, but --sees sum hides"),
        ({"protocol": "fedpm", "defense": "median"}, "median reads single messages"),
        ({"protocol": "signsgd", "defense": "multi-krum"}, "multi-krum reads single messages"),
        ({"protocol": "signsgd", "defense": "nnm+mean"}, "reads single messages"),
        ({"protocol": "pbm", "defense": "trimmed-mean"}, "trimmed-mean reads single messages"),
        ({"protocol": "pbm", "server_checks": "range"}, "range reads single messages"),
    ],
)
@pytest.mark.parametrize("sees", ["sum", "hidden-sum"])
def test_what_needs_more_than_a_sum_of_whole_numbers_is_refused(
    fields: dict[str, object], why: str, sees: str
) -> None:
    scenario = SMALL.model_copy(update={**fields, "sees": sees})
    with pytest.raises(Incompatible, match=why.replace("--sees sum", f"--sees {sees}")) as caught:
        load_plugins(scenario)
    assert "--sees messages" in str(caught.value)
    load_plugins(scenario.model_copy(update={"sees": "messages"}))


def test_statistics_that_travel_as_floats_are_refused_in_a_sum() -> None:
    fields = {"protocol": "fedpm", "sees": "sum", "model": "cnn4"}
    with pytest.raises(Incompatible, match=r"without batch norm, .* got --model cnn4"):
        prepare(SMALL.model_copy(update=fields), "cpu")


def test_a_table_of_sums_says_what_their_bits_are(tmp_path: Path, command: Command) -> None:
    record = played(protocol="fedpm", sees="hidden-sum", clients=4, per_round=4)
    (tmp_path / f"{record.id}.json").write_text(record.model_dump_json())
    _, shown, _ = command("results", tmp_path)
    assert "bits up: of a secure sum of n, masked residues: log2(n + 1) for each bit" in shown
