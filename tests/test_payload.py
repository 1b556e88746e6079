"""What travels: laws under hypothesis, and bytes that no honest client sends."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload import (
    BinaryMasks,
    FloatVectors,
    Payload,
    Rankings,
    SignBits,
    SparseVectors,
    TopRankings,
    ranking,
    reputation,
    same,
)
from fedbench.payload.packets import (
    Packet,
    binary_entropy,
    code_bits,
    decode_bits,
    join,
    pack,
    split,
    unpack,
)
from fedbench.testing import check_payload

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple)


@given(SIZES, st.integers(1, 4), st.integers(0, 2**63), st.floats(0.01, 1.0))
def test_decode_and_nearest_are_inverses(
    sizes: tuple[int, ...], n: int, seed: int, share: float
) -> None:
    d = sum(sizes)
    x = Key(seed).normal(n, d)
    tops = tuple(max(1, int(share * size)) for size in sizes)
    k = max(1, int(share * d))
    sparse = SparseVectors(
        torch.zeros(n, k, dtype=torch.int64), torch.zeros(n, k), torch.zeros(n, 0), d
    )
    top = TopRankings(torch.zeros(n, sum(tops), dtype=torch.int32), sizes, tops)
    for payload in (
        FloatVectors(x),
        SignBits(x > 0),
        sparse.nearest(x),
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
    packet = join(packed)
    assert packet.bits == 3 * sum(map(len, parts))
    strings = split(packet, [3 * len(part) for part in parts])
    assert [unpack(s, len(p), 3).tolist() for s, p in zip(strings, parts, strict=True)] == parts


def test_a_sign_message_costs_a_bit_a_coordinate_and_its_padding_is_zero() -> None:
    payload = SignBits(torch.tensor([[True, False, True, True, False, False, True, False, True]]))
    (packet,) = payload.encode()
    assert (packet.data.hex(), packet.bits) == ("b280", 9)
    _, accepted = SignBits.decode([Packet.raw(bytes.fromhex("b281"))], payload.spec)
    assert not bool(accepted[0])


def test_a_sparse_message_is_values_and_a_bitmap() -> None:
    payload = SparseVectors(
        torch.tensor([[1, 4]]), torch.tensor([[2.0, -1.0]]), torch.zeros(1, 0), 6
    )
    (packet,) = payload.encode()
    assert packet.bits == 2 * 32 + 6
    assert packet.data[-1] == 0b01001000
    assert payload.values().tolist() == [[0.0, 2.0, 0.0, 0.0, -1.0, 0.0]]
    assert payload.nearest(torch.tensor([[3.0, -3.0, 3.0, 0, 0, 0]])).indices.tolist() == [[0, 1]]


MASK = BinaryMasks(torch.tensor([[1, 0, 0, 1, 0, 0, 0, 0, 1]]).bool(), torch.zeros(1, 0))
REJECTED: list[tuple[str, Payload, bytes]] = [
    ("an index twice", Rankings(torch.tensor([[0, 1, 2]], dtype=torch.int32), (3,)), b"\x04"),
    ("an index too large", Rankings(torch.tensor([[0, 1, 2]], dtype=torch.int32), (3,)), b"\x1c"),
    (
        "a top edge twice",
        TopRankings(torch.tensor([[2, 1]], dtype=torch.int32), (3,), (2,)),
        b"\xa0",
    ),
    (
        "three kept of two",
        SparseVectors(torch.tensor([[0, 1]]), torch.zeros(1, 2), torch.zeros(1, 0), 3),
        bytes(8) + b"\xe0",
    ),
    ("a short float", FloatVectors(torch.zeros(1, 2)), bytes(7)),
    ("no header", BinaryMasks(torch.ones(1, 9, dtype=torch.bool), torch.zeros(1, 0)), b""),
    ("more ones than bits", MASK, (10).to_bytes(4, "little")),
    ("a tail behind equal bits", MASK, (9).to_bytes(4, "little") + bytes(4)),
    ("no whole word", MASK, MASK.encode()[0].data + b"\0"),
    ("a word too many", MASK, MASK.encode()[0].data + bytes(4)),
    ("another code of the same bits", MASK, b"\3\0\0\0" + bytes(4)),
    ("nothing at all", SignBits(torch.ones(1, 3, dtype=torch.bool)), b""),
]


@pytest.mark.parametrize(("what", "like", "data"), REJECTED, ids=[row[0] for row in REJECTED])
def test_bytes_of_no_legal_message_are_rejected(what: str, like: Payload, data: bytes) -> None:
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


ILLEGAL: list[tuple[str, Payload]] = [
    ("double floats", FloatVectors(torch.zeros(1, 2, dtype=torch.float64))),
    ("float masks", BinaryMasks(torch.zeros(1, 2), torch.zeros(1, 0))),
    ("a double beside a mask", BinaryMasks(MASK.mask, torch.zeros(1, 1, dtype=torch.float64))),
    ("float signs", SignBits(torch.zeros(1, 2))),
    ("no permutation", Rankings(torch.zeros(1, 3, dtype=torch.int32), (3,))),
    (
        "a duplicate index",
        SparseVectors(torch.tensor([[1, 1]]), torch.zeros(1, 2), torch.zeros(1, 0), 3),
    ),
    (
        "an index too large",
        SparseVectors(torch.tensor([[1, 3]]), torch.zeros(1, 2), torch.zeros(1, 0), 3),
    ),
    ("a duplicate edge", TopRankings(torch.tensor([[1, 1]], dtype=torch.int32), (3,), (2,))),
    ("an edge too large", TopRankings(torch.tensor([[1, 3]], dtype=torch.int32), (3,), (2,))),
]


@pytest.mark.parametrize(("what", "payload"), ILLEGAL, ids=[row[0] for row in ILLEGAL])
def test_check_refuses(what: str, payload: Payload) -> None:
    with pytest.raises(IllegalPayloadError):
        payload.check()


def test_ties_go_to_the_lower_index_also_for_floats_of_both_signs() -> None:
    x = torch.tensor([[0.0, -1.0, -0.0, 3.0, -1.0, -2.0]])
    for kind in (torch.float32, torch.float64):
        assert ranking(x.to(kind), (6,)).tolist() == [[5, 1, 4, 0, 2, 3]]
    assert reputation(ranking(x, (2, 4)), (2, 4)).tolist() == [[1, 0, 2, 3, 1, 0]]


@given(
    count=st.integers(1, 5000), ones=st.floats(0, 1), seed=st.integers(0, 2**32), flip=st.booleans()
)
def test_coded_bits_are_as_long_as_their_entropy(
    count: int, ones: float, seed: int, flip: bool
) -> None:
    bits = (Key(seed).uniform(count) < ones**4).numpy() ^ flip  # also shares near 0 and 1
    data, length = code_bits(bits)
    assert length == 8 * len(data)
    assert np.array_equal(decode_bits(data, count), bits)
    assert length <= 1.01 * count * binary_entropy(float(bits.mean())) + 64 * 8
    assert length <= count + 64 * 8


def test_a_large_mask_costs_its_entropy_and_not_a_bit_a_weight() -> None:
    bits = (Key(0).uniform(1_000_000) < 0.1).numpy()
    length = code_bits(bits)[1]
    assert abs(length / 1e6 - 0.469) < 0.003  # H2(0.1) = 0.46900


def test_rows_are_taken_from_the_end_too_and_put_only_into_their_own_form() -> None:
    x = FloatVectors(torch.arange(6.0).view(3, 2))
    assert x.take([-1, 0]).x.tolist() == [[4, 5], [0, 1]]
    with pytest.raises(IndexError):
        x.take([3])
    with pytest.raises(IllegalPayloadError, match="SignBits"):
        FloatVectors(torch.zeros(2, 3)).put([0], SignBits(torch.ones(1, 3, dtype=torch.bool)))  # type: ignore[arg-type]
    with pytest.raises(IllegalPayloadError, match="form"):
        FloatVectors(torch.zeros(2, 3)).put([0], FloatVectors(torch.zeros(1, 4)))
