"""Payloads: laws under hypothesis, codecs by hand, and bytes that no honest client sends."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedbench.core import registry
from fedbench.core.errors import IllegalPayloadError, PluginError
from fedbench.core.rng import Key
from fedbench.models.models import CNN4
from fedbench.models.network import ConvNet, Shared
from fedbench.payload import (
    BinaryMasks,
    FloatVectors,
    HalfVectors,
    Payload,
    Rankings,
    ScaledSigns,
    SeededSparse,
    SignBits,
    SparseVectors,
    TopRankings,
    identical,
    ranking,
    reputation,
    same,
)
from fedbench.payload import packets as wire
from fedbench.payload.floats import Half
from fedbench.payload.packets import Packet, pack, unpack
from fedbench.payload.rankings import argsort
from fedbench.payload.sparse import chosen
from fedbench.protocols.compressed import RandK
from fedbench.protocols.fedavg import Cast
from fedbench.protocols.signsgd import EFSignSGD, SignSGD, StochasticSign
from fedbench.testing import check_payload


def sparse(indices: list[list[int]], d: int) -> SparseVectors:
    index = torch.tensor(indices)
    return SparseVectors(index, torch.zeros(index.shape), torch.zeros(len(index), 0), d)


def ranked(*edges: int) -> Rankings:
    return Rankings(torch.tensor([edges], dtype=torch.int32), (len(edges),))


def top_ranked(*edges: int) -> TopRankings:
    """The best edges of three."""
    return TopRankings(torch.tensor([edges], dtype=torch.int32), (3,), (len(edges),))


@dataclasses.dataclass(frozen=True, eq=False)
class Careless(Payload):
    """Messages of bytes ``q (n, d)`` whose decoder takes whatever it is given, but for one byte."""

    q: Tensor

    def check(self) -> None:
        assert self.q.dtype == torch.uint8

    def values(self) -> Tensor:
        return self.q.float()

    def nearest(self, values: Tensor) -> "Careless":
        return Careless(values.clamp(0, 255).to(torch.uint8))

    def encode(self) -> list[Packet]:
        return [Packet.raw(bytes(row.tolist())) for row in self.q]

    @classmethod
    def decode_row(cls, packet: Packet, spec: dict[str, object]) -> "Careless":
        if len(packet.data) == 1:
            raise ValueError("one byte")
        return cls(torch.tensor([list(packet.data)], dtype=torch.uint8))


@pytest.mark.parametrize(
    ("packets", "what"),
    [
        ([b"abc", b"abcd"], r"must raise IllegalPayloadError for bytes .*, got one of .*\(4,\)"),
        ([b"abcd"], r"must raise IllegalPayloadError for bytes .*, got one of .*\(4,\)"),
        ([b"abc", b"a"], r"raised ValueError: one byte \(test_payload.py, line \d+\)"),
    ],
)
def test_a_decoder_that_takes_bytes_of_another_length_is_named(
    packets: list[bytes], what: str
) -> None:
    payload = Careless(torch.zeros(2, 3, dtype=torch.uint8))
    with pytest.raises(PluginError, match=rf"^plug-in Careless of .*: decode_row {what}"):
        payload.receive([Packet.raw(data) for data in packets], "finite")
    with pytest.raises(PluginError, match=r": decode_row must raise IllegalPayloadError"):
        check_payload(payload)


SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple)


@given(SIZES, st.integers(1, 4), st.integers(0, 2**63), st.floats(0.01, 1.0))
def test_decode_and_nearest_are_inverses(
    sizes: tuple[int, ...], n: int, seed: int, share: float
) -> None:
    d = sum(sizes)
    x = Key(seed).normal(n, d)
    tops = tuple(max(1, int(share * size)) for size in sizes)
    k = max(1, int(share * d))
    top = TopRankings(torch.zeros(n, sum(tops), dtype=torch.int32), sizes, tops)
    for payload in (
        FloatVectors(x),
        SignBits(x > 0),
        sparse([[0] * k] * n, d).nearest(x),
        Rankings(ranking(x, sizes), sizes),
        top.nearest(x),
    ):
        check_payload(payload)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=70), st.integers(0, 31))
def test_unpack_inverts_pack_for_every_width(symbols: list[int], width: int) -> None:
    values = np.array([s & ((1 << width) - 1) for s in symbols], dtype=np.int64)
    data, bits = pack(values, width)
    assert bits == width * len(symbols)
    assert unpack(data, len(symbols), width).tolist() == values.tolist()


@given(st.lists(st.lists(st.integers(0, 7), max_size=9), min_size=1, max_size=4))
def test_split_inverts_join_where_strings_do_not_end_on_bytes(parts: list[list[int]]) -> None:
    packed = [pack(np.array(part, dtype=np.int64), 3) for part in parts]
    packet = wire.join(packed)
    assert packet.bits == 3 * sum(map(len, parts))
    strings = wire.split(packet, [3 * len(part) for part in parts])
    assert [unpack(s, len(p), 3).tolist() for s, p in zip(strings, parts, strict=True)] == parts


def test_signs_cost_a_bit_a_coordinate_and_sparse_messages_are_values_and_a_bitmap() -> None:
    signed = SignBits(torch.tensor([[1, 0, 1, 1, 0, 0, 1, 0, 1]]).bool())
    (packet,) = signed.encode()
    assert (packet.data.hex(), packet.bits) == ("b280", 9)
    _, accepted = SignBits.decode([Packet.raw(bytes.fromhex("b281"))], signed.spec)
    assert not bool(accepted[0]), "padding is zero"
    payload = dataclasses.replace(sparse([[1, 4]], 6), entries=torch.tensor([[2.0, -1.0]]))
    (packet,) = payload.encode()
    assert packet.bits == 2 * 32 + 6
    assert packet.data[-1] == 0b01001000
    assert payload.values().tolist() == [[0.0, 2.0, 0.0, 0.0, -1.0, 0.0]]
    assert payload.nearest(torch.tensor([[3.0, -3.0, 3.0, 0, 0, 0]])).indices.tolist() == [[0, 1]]


MASK = BinaryMasks(torch.tensor([[1, 0, 0, 1, 0, 0, 0, 0, 1]]).bool(), torch.zeros(1, 0))
REJECTED: dict[str, tuple[Payload, bytes]] = {
    "an index twice": (ranked(0, 1, 2), b"\x04"),
    "an index too large": (ranked(0, 1, 2), b"\x1c"),
    "a top edge twice": (top_ranked(2, 1), b"\xa0"),
    "three kept of two": (sparse([[0, 1]], 3), bytes(8) + b"\xe0"),
    "a short float": (FloatVectors(torch.zeros(1, 2)), bytes(7)),
    "no header": (BinaryMasks(torch.ones(1, 9, dtype=torch.bool), torch.zeros(1, 0)), b""),
    "more ones than bits": (MASK, (10).to_bytes(4, "little")),
    "a tail behind equal bits": (MASK, (9).to_bytes(4, "little") + bytes(4)),
    "no whole word": (MASK, MASK.encode()[0].data + b"\0"),
    "a word too many": (MASK, MASK.encode()[0].data + bytes(4)),
    "another code of the same bits": (MASK, b"\3\0\0\0" + bytes(4)),
    "nothing at all": (SignBits(torch.ones(1, 3, dtype=torch.bool)), b""),
}


@pytest.mark.parametrize("what", REJECTED)
def test_bytes_of_no_legal_message_are_rejected(what: str) -> None:
    like, data = REJECTED[what]
    good = like.encode()[0]
    received, accepted = type(like).decode([good, Packet.raw(data), good], like.spec)
    assert accepted.tolist() == [True, False, True]
    assert received is not None
    assert same(received, like.take([0, 0]))


def test_nothing_legal_is_no_payload_and_finite_checks_look_at_every_float() -> None:
    like = FloatVectors(torch.zeros(1, 2))
    received, accepted = FloatVectors.decode([Packet.raw(b"x")], like.spec)
    assert received is None
    assert accepted.tolist() == [False]
    rows = torch.zeros(3, 2)
    rows[1, 1], rows[2, 0] = torch.nan, torch.inf
    assert FloatVectors(rows).passes("finite").tolist() == [True, False, False]
    assert FloatVectors(rows).passes("none").tolist() == [True, True, True]


ILLEGAL: dict[str, Payload] = {
    "double floats": FloatVectors(torch.zeros(1, 2, dtype=torch.float64)),
    "float masks": BinaryMasks(torch.zeros(1, 2), torch.zeros(1, 0)),
    "a double beside a mask": BinaryMasks(MASK.mask, torch.zeros(1, 1, dtype=torch.float64)),
    "float signs": SignBits(torch.zeros(1, 2)),
    "no permutation": ranked(0, 0, 0),
    "a duplicate index": sparse([[1, 1]], 3),
    "an index too large": sparse([[1, 3]], 3),
    "a duplicate edge": top_ranked(1, 1),
    "an edge too large": top_ranked(1, 3),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_check_refuses_what_is_no_message(what: str) -> None:
    with pytest.raises(IllegalPayloadError):
        ILLEGAL[what].check()


def test_the_form_is_legal_whatever_the_symbols_are_and_illegal_whatever_the_rows_are() -> None:
    twice = ranked(0, 0, 2)
    twice.check_form()
    with pytest.raises(IllegalPayloadError, match="permutation"):
        twice.check()
    with pytest.raises(IllegalPayloadError, match=r"positive must be \(n, d\) torch.bool"):
        SignBits(torch.zeros(4, 3)).check_form()
    with pytest.raises(IllegalPayloadError, match=r"symbols must be \(n, 4\) torch.int32"):
        dataclasses.replace(twice, sizes=(4,)).check_form()


def test_ties_go_to_the_lower_index_also_for_floats_of_both_signs() -> None:
    x = torch.tensor([[0.0, -1.0, -0.0, 3.0, -1.0, -2.0]])
    for kind in (torch.float32, torch.float64):
        assert ranking(x.to(kind), (6,)).tolist() == [[5, 1, 4, 0, 2, 3]]
    assert reputation(ranking(x, (2, 4)), (2, 4)).tolist() == [[1, 0, 2, 3, 1, 0]]


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-(2**31), 2**31 - 1),
        (-3, 3),  # many ties
        (2**40, 2**40 + 2**32 - 1),
        (2**40, 2**40 + 2**32),  # too far apart for integers of 32 bits
        (-(2**63), 2**63 - 1),
        (2**63 - 9, 2**63 - 1),
        (-(2**63), -(2**63) + 9),
    ],
)
def test_rows_of_integers_are_sorted_stably_however_far_apart(low: int, high: int) -> None:
    spread = [low, high, low, (low + high) // 2, low + 1, high, high - 1, low]
    x = torch.tensor([spread, spread[::-1]])
    expected = [sorted(range(8), key=row.__getitem__) for row in x.tolist()]
    assert argsort(x).tolist() == expected
    if low >= -(2**31) and high < 2**31:
        assert argsort(x.int()).tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_rows_of_floats_are_sorted_stably_with_infinities_and_zeros(
    dtype: torch.dtype,
) -> None:
    x = Key(3).normal(3, 2001).mul(20).round().to(dtype)
    x[0, :4] = torch.tensor([math.inf, -0.0, 0.0, -math.inf])
    expected = [sorted(range(2001), key=row.__getitem__) for row in x.tolist()]
    assert argsort(x).tolist() == expected
    assert argsort(x[:, ::2]).tolist()[0] == sorted(range(1001), key=x[0, ::2].tolist().__getitem__)


def test_rows_are_taken_from_the_end_too_and_put_only_into_their_own_form() -> None:
    x = FloatVectors(torch.arange(6.0).view(3, 2))
    assert x.take([-1, 0]).x.tolist() == [[4, 5], [0, 1]]
    with pytest.raises(IndexError):
        x.take([3])
    with pytest.raises(IllegalPayloadError, match="SignBits"):
        FloatVectors(torch.zeros(2, 3)).put([0], SignBits(torch.ones(1, 3, dtype=torch.bool)))  # type: ignore[arg-type]
    with pytest.raises(IllegalPayloadError, match="form"):
        FloatVectors(torch.zeros(2, 3)).put([0], FloatVectors(torch.zeros(1, 4)))


def test_rows_may_be_a_mask_of_all_rows() -> None:
    x = FloatVectors(torch.arange(6.0).view(3, 2))
    mask = torch.tensor([True, False, True])
    assert x.take(mask).x.tolist() == [[0, 1], [4, 5]]
    assert x.take(x.x[:, 0] > 9).x.shape == (0, 2)
    zeros = FloatVectors(torch.zeros(2, 2))
    assert x.put(mask, zeros).x.tolist() == [[0, 0], [2, 3], [0, 0]]
    with pytest.raises(IndexError):
        x.take(mask[:2])


def test_messages_are_identical_if_every_bit_and_float_is() -> None:
    bits = torch.tensor([[True, False, True]] * 2)
    rest = torch.tensor([[0.5], [torch.inf]])
    x = BinaryMasks(bits, rest)
    assert identical(x, BinaryMasks(bits.clone(), rest.clone()))
    assert not identical(x, BinaryMasks(bits ^ torch.eye(2, 3).bool(), rest))
    assert not identical(x, BinaryMasks(bits, rest - 0.25))
    assert not identical(x, x.take([0]))
    nan = BinaryMasks(bits, rest * torch.nan)
    assert not identical(nan, nan)
    assert identical(x, x)


def test_of_one_tensor_nan_is_looked_for_where_torch_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CUDA calls a tensor equal to itself without a look at its numbers."""
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda x, y: x is y or equal(x, y))
    rows = FloatVectors(torch.tensor([[1.0, torch.nan]]))
    assert not identical(rows, rows)


def test_bits_are_compared_eight_at_a_time_and_the_last_ones_too() -> None:
    none = torch.zeros(1, 0)
    for n, d in ((1, 13), (3, 8), (1, 3)):
        bits = torch.arange(n * d).view(n, d) % 3 == 0
        columns = torch.stack([bits, ~bits], dim=2)[:, :, 0]  # not one piece of memory
        x = BinaryMasks(bits, none.expand(n, 0))
        assert identical(x, BinaryMasks(columns, none.expand(n, 0)))
        for place in range(n * d):
            other = bits.clone()
            other.view(-1)[place] ^= True
            assert not identical(x, BinaryMasks(other, none.expand(n, 0)))


SHARED = Shared(ConvNet((1, 4, 4), ((3,),), (5,), 3), 3, torch.device("cpu"))  # 27, 60, 15 weights
KEYS = [Key(i) for i in range(4)]


def test_half_floats_round_to_nearest_even_stay_finite_and_are_16_bits_little_endian() -> None:
    # 2049 lies between the binary16 numbers 2048 and 2050; 1 + 2**-8 between two bfloat16.
    x = torch.tensor([[2049.0, 2051.0, 7e4, -1e30, 1 + 2**-8, float("inf")]])
    sixteen = HalfVectors(torch.zeros(1, 6, dtype=torch.float16), "fp16").nearest(x)
    assert sixteen.values()[0, :4].tolist() == [2048, 2052, 65504, -65504]
    brain = HalfVectors(torch.zeros(1, 6, dtype=torch.bfloat16), "bf16").nearest(x)
    assert brain.values()[0, 3].item() == pytest.approx(-1e30, rel=2**-8)
    assert brain.values()[0, 4].item() == 1.0
    assert sixteen.passes("finite").tolist() == brain.passes("finite").tolist() == [False]
    (packet,) = HalfVectors(torch.tensor([[1.0, -2.0]], dtype=torch.float16), "fp16").encode()
    assert (packet.data.hex(), packet.bits) == ("003c00c0", 32)
    (packet,) = HalfVectors(torch.tensor([[1.0]], dtype=torch.bfloat16), "bf16").encode()
    assert packet.data.hex() == "803f"


@given(st.binary(min_size=6, max_size=6), st.sampled_from(["fp16", "bf16"]))
def test_every_bit_pattern_is_a_half_float(data: bytes, form: Half) -> None:
    blank = Cast(form=form).message(SHARED, torch.zeros(1, 3), KEYS[:1], [{}])[0]
    assert isinstance(blank, HalfVectors)
    read = HalfVectors.decode_row(Packet.raw(data), blank.spec)
    assert read.encode()[0].data == data


@given(d=st.integers(1, 400), share=st.floats(0, 1), seed=st.integers(0, 2**64 - 1))
def test_a_seed_chooses_that_many_different_coordinates(d: int, share: float, seed: int) -> None:
    indices = chosen(seed, d, round(share * d)).tolist()
    assert indices == sorted(set(indices) & set(range(d)))
    assert len(indices) == round(share * d)


def test_a_seed_chooses_every_coordinate_equally_often_and_replaces_indices_on_the_wire() -> None:
    counts = torch.zeros(13)
    for seed in range(2600):
        counts[chosen(seed, 13, 4)] += 1
    expected = 2600 * 4 / 13
    deviation = (2600 * 4 / 13 * 9 / 13) ** 0.5
    assert float((counts - expected).abs().max()) < 5 * deviation
    seeds = Key(0).bits(3)[:, None]
    message = SeededSparse(torch.ones(3, 49), seeds, torch.ones(3, 1), 97)
    assert message.encode()[0].bits == 64 + 32 * (49 + 1)


def test_randk_is_unbiased_has_the_papers_variance_and_fed_back_sends_what_is_there() -> None:
    # E|x_hat - x|^2 = (d / K - 1) |x|^2 with K = 25 of 102; 4000 draws scatter by 1 %.
    x = Key(1).normal(1, 102).expand(4000, -1)
    sent = RandK(k=0.25).compress(SHARED, x, x[:, :0], [Key(i) for i in range(4000)])
    error = (sent.values() - x).square().sum(dim=1).mean() / x[0].square().sum()
    assert float(error) == pytest.approx(102 / 25 - 1, rel=0.05)
    mean = sent.values().mean(dim=0)
    assert float((mean - x[0]).square().sum() / x[0].square().sum()) < 5 * (102 / 25 - 1) / 4000
    fed_back = RandK(k=0.25, error_feedback=True).compress(SHARED, x[:1], x[:1, :0], KEYS[:1])
    assert isinstance(sent, SeededSparse)
    assert isinstance(fed_back, SeededSparse)
    torch.testing.assert_close(sent.entries[:1], fed_back.entries * (102 / 25))
    assert torch.equal(fed_back.entries, x[:1].gather(1, fed_back.indices()))


@given(
    d=st.sampled_from([0, 1, 2, 3, 31, 64, 97, 128]), p=st.integers(0, 2), part=st.integers(0, 128)
)
def test_messages_of_every_length_keep_the_laws(d: int, p: int, part: int) -> None:
    n = 2
    count = (d + 1) // 2
    cut = min(part, d)
    x = Key(d).normal(n, d)
    rest = Key(p).normal(n, p)
    wide = torch.cat([x, rest], dim=1)
    seeds = Key(1).bits(n)[:, None]
    scales = torch.tensor([[0.5, 2.0]] * n)
    index = torch.zeros(n, count, dtype=torch.int64)
    blanks = [
        HalfVectors(torch.zeros(n, d + p, dtype=torch.bfloat16), "bf16"),
        HalfVectors(torch.zeros(n, d + p, dtype=torch.float16), "fp16"),
        ScaledSigns(x > 0, scales, rest, (cut, d - cut)),
        SeededSparse(torch.zeros(n, count), seeds, rest, d),
        SparseVectors(index, torch.zeros(n, count), rest, d, coded=False),
        SparseVectors(index, torch.zeros(n, count), rest, d, coded=True),
    ]
    for blank in blanks:
        message = blank.nearest(wide)
        check_payload(message)
        assert message.values().shape == wide.shape


def test_coded_masks_and_indices_cost_their_entropy() -> None:
    mask = (Key(0).uniform(1_000_000) < 0.1).numpy()
    assert abs(wire.code_bits(mask)[1] / 1e6 - 0.469) < 0.003  # H2(0.1) = 0.46900
    x = Key(0).normal(1, 100_000)
    for index, bits in (("bitmap", 0.96 + 1.0), ("entropy", 0.96 + 0.1944)):  # H2(.03) = .1944
        protocol = registry.load("protocol", f"topk:k=0.03,index={index}")
        sent = protocol.compress(SHARED, x, x[:, :0], KEYS[:1])
        assert sent.encode()[0].bits / 100_000 == pytest.approx(bits, abs=0.01)


def test_running_statistics_travel_as_floats_beside_any_code() -> None:
    shared = Shared(CNN4().build((1, 28, 28), 10), 3, torch.device("cpu"))
    names = list(shared.layout.names)
    statistics = [name for name in names if name.endswith((".mean", ".var"))]
    assert names[-len(statistics) :] == statistics
    updates = Key(0).normal(1, shared.layout.d)
    for name in ("topk:k=0.03", "randk", "drive", "eden:bits=2", "ef-signsgd", "qsgd", "terngrad"):
        protocol = registry.load("protocol", name)
        memory = [protocol.memory(shared)]
        sent, memory_after = protocol.message(shared, updates, KEYS[:1], memory)
        values = sent.values()
        tail = shared.statistics.d
        assert values.shape == updates.shape
        assert torch.equal(values[:, -tail:], updates[:, -tail:]), name
        assert not torch.equal(values[:, :-tail], updates[:, :-tail])
        residuals = [m["residual"] for m in memory_after if m]
        assert all(len(residual) == shared.layout.d - tail for residual in residuals)


def step(protocol: SignSGD | StochasticSign, rows: list[list[float]]) -> list[float]:
    """Where the server moves from 0."""
    votes = SignBits(torch.tensor(rows) > 0).values()
    d = votes.shape[1]
    moved = protocol.server_step(SHARED, torch.zeros(d), votes.mean(dim=0), len(rows), Key(5))
    return [round(x, 6) for x in moved.tolist()]


VOTES: list[list[float]] = [[1, 1, -1, 1], [1, -1, -1, 1], [1, 1, -1, -1], [1, -1, -1, -1]]


def test_the_server_counts_or_averages_and_ties_follow_the_rule() -> None:
    assert step(SignSGD(server_lr=0.5), VOTES) == [0.5, 0, -0.5, 0]
    assert step(SignSGD(server_lr=0.5, tie="plus"), VOTES) == [0.5, 0.5, -0.5, 0.5]
    tossed = step(SignSGD(server_lr=0.5, tie="random"), [[1.0] * 40, [-1.0] * 40])
    assert set(tossed) == {0.5, -0.5}
    three_to_one: list[list[float]] = [[1, 1], [1, 1], [1, 1], [-1, 1]]
    assert step(SignSGD(server_lr=0.5, vote="mean"), three_to_one) == [0.25, 0.5]
    assert step(StochasticSign(server_lr=0.5), three_to_one) == [0.25, 0.5]
    assert step(StochasticSign(server_lr=0.5, vote="majority"), three_to_one) == [0.5, 0.5]
    rules = (SignSGD(), SignSGD(vote="mean"), StochasticSign())
    assert [rule.votes for rule in rules] == [True, False, False]


def signs(protocol: SignSGD | StochasticSign, x: Tensor, n: int = 1) -> Tensor:
    keys = [Key(i) for i in range(n)]
    memory = [protocol.memory(SHARED) for _ in range(n)]
    return protocol.message(SHARED, x.expand(n, -1), keys, memory)[0].values()


def test_the_sign_of_zero_is_plus_or_a_coin() -> None:
    x = torch.tensor([-1.0, 1.0] + [0.0] * 100)
    assert signs(SignSGD(), x)[0].tolist() == [-1, 1] + [1] * 100
    tossed = signs(SignSGD(zero="random"), x, 20)
    assert bool((tossed[:, 0] == -1).all() and (tossed[:, 1] == 1).all())
    assert abs(float(tossed[:, 2:].mean())) < 5 / 2000**0.5


def test_a_mean_stochastic_sign_is_a_unit_vector() -> None:
    # x = (3, -4, 0): over its L2 norm 5, over its largest 4. 5,000 draws: 5 sigma is .07.
    x = torch.zeros(SHARED.layout.d)
    x[0], x[1] = 3.0, -4.0
    l2 = signs(StochasticSign(norm="l2"), x, 5000).mean(dim=0)[:3]
    most = signs(StochasticSign(norm="max"), x, 5000).mean(dim=0)[:3]
    assert l2.tolist() == pytest.approx([0.6, -0.8, 0.0], abs=0.07)
    assert most.tolist() == pytest.approx([0.75, -1.0, 0.0], abs=0.07)
    assert most[1] == -1.0


def test_a_vector_with_an_infinity_is_sent_as_coins() -> None:
    x = torch.ones(SHARED.layout.d)
    x[0], x[1] = torch.inf, -torch.inf
    for protocol in (StochasticSign(norm="l2"), StochasticSign(norm="max")):
        assert float(signs(protocol, x, 2000).mean(dim=0)[:3].abs().max()) < 5 / 2000**0.5


def test_the_average_over_rounds_is_kept_by_the_client_and_starts_at_zero() -> None:
    protocol = StochasticSign(beta=0.75)
    x = Key(0).normal(1, SHARED.layout.d)
    _, first = protocol.message(SHARED, x, KEYS[:1], [protocol.memory(SHARED)])
    torch.testing.assert_close(first[0]["average"], 0.25 * x[0])
    _, second = protocol.message(SHARED, x, KEYS[:1], first)
    torch.testing.assert_close(second[0]["average"], (0.75 * 0.25 + 0.25) * x[0])
    assert StochasticSign().memory(SHARED) == {}
    _, lost = protocol.message(SHARED, x * torch.nan, KEYS[:1], second)
    assert float(lost[0]["average"].abs().sum()) == 0  # a diverged client starts afresh


def test_scaled_signs_have_the_mean_magnitude_of_their_layer() -> None:
    x = torch.cat([torch.full((1, 27), 2.0), torch.full((1, 60), -4.0), torch.zeros(1, 15)], dim=1)
    x[0, 0] = -29.0  # (29 + 26 * 2) / 27 = 3
    sent = EFSignSGD().compress(SHARED, x, x[:, :0], KEYS[:1])
    assert isinstance(sent, ScaledSigns)
    assert sent.scales.tolist() == [[3.0, 4.0, 0.0]]
    values = sent.values()[0]
    assert values[:2].tolist() == [-3.0, 3.0]
    assert set(values[27:87].tolist()) == {-4.0}
    assert set(values[87:].tolist()) == {0.0}
    whole = EFSignSGD(per="vector").compress(SHARED, x, x[:, :0], KEYS[:1])
    assert whole.values()[0, 1].item() == pytest.approx((29 + 52 + 240) / 102)
    assert sent.encode()[0].bits == 3 * 32 + 102
    x[0, 1:27] = 0.0
    random = EFSignSGD(zero="random").compress(SHARED, x, x[:, :0], KEYS[:1])
    assert bool(random.in_range().all())  # the layer of scale 0 has no coins
    tossed = random.values()[0, 1:27]
    assert len(set(tossed.tolist())) == 2
    assert float(tossed.abs().min()) == pytest.approx(29 / 27)


def test_error_feedback_keeps_what_the_message_does_not_say_unless_it_is_not_finite() -> None:
    protocol = EFSignSGD()
    x = Key(0).normal(2, SHARED.layout.d)
    memory = [protocol.memory(SHARED)] * 2
    sent, memory_after = protocol.message(SHARED, x, KEYS[:2], memory)
    again, later = protocol.message(SHARED, x, KEYS[:2], memory_after)
    total = sent.values() + again.values() + torch.stack([m["residual"] for m in later])
    torch.testing.assert_close(total, 2 * x)
    assert EFSignSGD(error_feedback=False).memory(SHARED) == {}
    x[1, 5] = float("nan")
    sent, memory_after = protocol.message(SHARED, x, KEYS[:2], [protocol.memory(SHARED)] * 2)
    assert sent.passes("finite").tolist() == [True, False]
    assert float(memory_after[0]["residual"].abs().sum()) > 0
    assert float(memory_after[1]["residual"].abs().sum()) == 0


COMPRESSORS = (
    "topk:k=0.05 randk:k=0.1 qsgd: qsgd:levels=1 fedpaq:levels=1 terngrad: terngrad:clip=2.5 "
    "drive: drive:scale=min-mse eden:bits=0.25 eden:bits=2 ef-signsgd:"
)


@pytest.mark.edges(
    "topk:k=0.05", "randk:k=0.1", "qsgd:", "fedpaq:levels=1", "terngrad:", "drive:", "ef-signsgd:"
)
@pytest.mark.parametrize("name", COMPRESSORS.split())
def test_what_is_fed_back_does_not_grow_without_end(name: str) -> None:
    # A compressor that leaves a share q < 1 of the norm keeps less than q / (1 - q) updates.
    protocol = registry.load("protocol", f"{name},error_feedback=true".replace(":,", ":"))
    shared = Shared(ConvNet((1, 8, 8), ((8,),), (16,), 4), 3, torch.device("cpu"))
    memory = [protocol.memory(shared)]
    ratios = []
    for step in range(120):
        u = Key(step).normal(1, shared.layout.d)
        _, memory = protocol.message(shared, u, [Key(step).fold("codec")], memory)
        ratios.append(float(memory[0]["residual"].norm() / u.norm()))
    assert max(ratios[60:]) < 1.5 * max(ratios[:60])
    assert max(ratios) < 8


def test_a_negative_scale_and_signs_of_nothing_are_out_of_range() -> None:
    x = Key(0).normal(2, SHARED.layout.d)
    sent = EFSignSGD().compress(SHARED, x, x[:, :0], KEYS[:2])
    assert isinstance(sent, ScaledSigns)
    forged = dataclasses.replace(sent, scales=sent.scales * torch.tensor([[1e6], [-1.0]]))
    assert forged.passes("finite").tolist() == [True, True]
    assert forged.passes("range").tolist() == [True, False]
    silent = dataclasses.replace(sent, scales=torch.zeros_like(sent.scales))
    assert silent.passes("range").tolist() == [False, False]  # nothing, with a minus sign
    assert silent.nearest(x).passes("range").tolist() == [True, True]
