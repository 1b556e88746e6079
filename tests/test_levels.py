"""Levels and their codes: worked by hand, against slow ones, and bytes that nobody writes."""

import dataclasses
import functools
from typing import Any

import constriction
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload import Levels, same
from fedbench.payload import entropy_coding as coding
from fedbench.payload.entropy_coding import MAX_VALUE, code_elias, decode_elias, decode_entropy
from fedbench.payload.levels import Code, bucket_lengths, scales_of
from fedbench.payload.packets import Bytes, Packet
from fedbench.testing import check_payload

CODES: list[Code] = ["elias", "entropy"]
BOTH = pytest.mark.parametrize("code", CODES)
LENGTHS = st.one_of(st.sampled_from([0, 1, 2, 3, 7, 64, 97, 256, 257]), st.integers(0, 400))


def numbers(d: int, top: int, share: float, seed: int) -> npt.NDArray[np.int16]:
    """``d`` integers of magnitude ``top`` or less, of which about ``share`` are not 0."""
    drawn = Key(seed).fold("size").uniform(d) * top
    sizes = (drawn.floor() + 1) * Key(seed).fold("sign").signs(d)
    return torch.where(Key(seed).uniform(d) < share, sizes, 0.0).numpy().astype(np.int16)


VECTORS = st.builds(
    lambda d, top, share, seed: (numbers(d, top, share, seed), top),
    LENGTHS,
    st.sampled_from([1, 2, 3, 7, 10, 127, 32767]),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    st.integers(0, 2**32),
)


def slow_omega(x: int) -> str:
    code = "0"
    while x > 1:
        code = f"{x:b}" + code
        x = x.bit_length() - 1
    return code


def slow_elias(x: npt.NDArray[np.integer]) -> str:
    bits = ""
    last = -1
    for i, level in enumerate(x.tolist()):
        if level:
            bits += slow_omega(i - last) + ("1" if level < 0 else "0") + slow_omega(abs(level))
            last = i
    return bits


def read_omega(bits: str, at: int) -> tuple[int, int]:
    x = 1
    while bits[at] == "1":
        x, at = int(bits[at : at + x + 1], 2), at + x + 1
    return x, at + 1


def slow_decode(data: Bytes, d: int) -> list[int]:
    bits = "".join(f"{byte:08b}" for byte in data[4:].tolist())
    x, at, i = [0] * d, 0, -1
    for _ in range(int.from_bytes(data[:4].tobytes(), "little")):
        gap, at = read_omega(bits, at)
        minus, (size, at) = bits[at] == "1", read_omega(bits, at + 1)
        i += gap
        x[i] = -size if minus else size
    return x


def stream(count: int, bits: str) -> Bytes:
    """Pack a code as the wire does: the count, then the bits, zeros to the end of the byte."""
    flat = np.array([int(bit) for bit in bits], dtype=np.uint8)
    head = np.frombuffer(count.to_bytes(4, "little"), dtype=np.uint8)
    return np.concatenate([head, np.packbits(flat)])


@given(st.integers(1, MAX_VALUE))
@example(1)
def test_omega_codes_are_those_of_the_slow_encoder(x: int) -> None:
    (code,), (length,) = coding.omega(np.array([x]))
    assert f"{code:0{length}b}" == slow_omega(x)


def test_codes_worked_by_hand_are_gap_sign_and_magnitude_of_each_that_is_not_zero() -> None:
    expected = {1: "0", 2: "100", 3: "110", 4: "101000", 8: "1110000", 16: "10100100000"}
    assert {x: slow_omega(x) for x in expected} == expected
    x = np.array([0, 0, 3, 0, -1, 0, 0, 0, 16, 0])
    bits = "1100110" + "10010" + "101000010100100000"
    assert slow_elias(x) == bits
    data, length = code_elias(x)
    assert (length, data.tolist()) == (32 + 30, stream(3, bits).tolist())
    assert slow_decode(data, 10) == x.tolist()


@given(VECTORS)
def test_the_fast_code_of_elias_is_the_slow_one(vector: tuple[npt.NDArray[np.int16], int]) -> None:
    x, top = vector
    data, length = code_elias(x)
    bits = slow_elias(x)
    expected = stream(int(np.count_nonzero(x)), bits)
    assert (length, data.tolist()) == (32 + len(bits), expected.tolist())
    assert decode_elias(data, len(x), top).tolist() == x.tolist()


@pytest.mark.parametrize(
    ("d", "top", "share"),
    [(20_000, 7, 1.0), (9_000, 32767, 1.0), (300_000, 300, 0.01), (400_000, 1, 0.0003)],
)
def test_streams_of_many_windows_decode_as_slowly(d: int, top: int, share: float) -> None:
    x = numbers(d, top, share, seed=d)
    data, length = code_elias(x)
    if share > 0.001:
        assert length > 2 * 2**15  # bits of a window
    assert slow_decode(data, d) == decode_elias(data, d, top).tolist() == x.tolist()


def test_gaps_and_magnitudes_up_to_31_bits_decode() -> None:
    # 85 bits, the longest that one coordinate can have, at every offset in a byte.
    for shift in range(8):
        bits = "000" * shift + "01" + slow_omega(MAX_VALUE)
        decoded = decode_elias(stream(shift + 1, bits), 9, MAX_VALUE)
        assert decoded.tolist() == [1] * shift + [-MAX_VALUE] + [0] * (8 - shift)
    assert len(slow_omega(MAX_VALUE)) == 42
    with pytest.raises(IllegalPayloadError, match="<= 1"):  # a gap beyond the vector
        decode_elias(stream(1, slow_omega(MAX_VALUE) + "00"), 9, 1)


ILLEGAL_ELIAS = {
    "nothing": stream(0, "")[:0],
    "half a count": stream(0, "")[:3],
    "more than coordinates": stream(5, "000" * 5),
    "a count without codewords": stream(1, ""),
    "a count of one too many": stream(3, "000000"),
    "a codeword cut off": stream(2, "000101"),
    "a codeword that ends in the padding": stream(1, "0011100"),
    "a byte too many": stream(1, "000" + "0" * 8),
    "padding that is not zero": stream(1, "0001"),
    "no coordinates, and a byte": stream(0, "0"),
    "a fifth coordinate": stream(1, "10101000"),
    "a fifth coordinate in steps": stream(2, "10000" + "11000"),
    "a level above the top": stream(1, "00" + slow_omega(8)),
    "a gap of 32 bits": stream(1, slow_omega(2**31) + "00"),
    "a magnitude of 32 bits": stream(1, "00" + slow_omega(2**31)),
    "ones without end": stream(1, "1" * 400),
}


@pytest.mark.parametrize("what", ILLEGAL_ELIAS)
def test_streams_of_no_vector_are_rejected(what: str) -> None:
    with pytest.raises(IllegalPayloadError):
        decode_elias(ILLEGAL_ELIAS[what], 4, 7)


def test_counts_and_numbers_that_cannot_be_are_rejected_before_they_are_read_as_others() -> None:
    with pytest.raises(IllegalPayloadError, match="4 integers cannot have 5"):
        decode_elias(stream(5, "000" * 5), 4, 7)
    # Read from its second bit on it is omega(32769); from the first a number of 49153 bits begins.
    data = stream(1, "1" + slow_omega(2**15 + 1))
    with pytest.raises(IllegalPayloadError, match="at most"):
        decode_elias(data, 10**5, 10**5)


def entropy_of(x: npt.NDArray[np.integer]) -> float:
    counts = np.unique(x, return_counts=True)[1]
    return float(-(counts * np.log2(counts / len(x))).sum()) if len(x) else 0.0


def code_entropy(x: npt.NDArray[np.integer], top: int) -> tuple[Bytes, int]:
    """The code and its bits without those of the histogram; it decodes."""
    data, length = coding.code_entropy(x, top)
    assert length == 8 * len(data)
    assert decode_entropy(data, len(x), top).tolist() == x.tolist()
    histogram = code_elias(np.bincount(x.astype(np.int64) + top, minlength=2 * top + 1))[0]
    return data, length - 8 * len(histogram)


@given(VECTORS)
def test_the_range_coder_is_as_short_as_entropy(vector: tuple[npt.NDArray[np.int16], int]) -> None:
    assert code_entropy(*vector)[1] <= 1.01 * entropy_of(vector[0]) + 64 * 8


@pytest.mark.parametrize("top", [1, 2, 7, 8, 127, 128, 1000])
def test_a_long_vector_costs_its_entropy(top: int) -> None:
    x = (Key(top).normal(200_000) * top / 3).round().clamp(-top, top).numpy().astype(np.int16)
    assert abs(code_entropy(x, top)[1] - entropy_of(x)) < 0.001 * entropy_of(x) + 32


def test_rare_levels_cost_little_and_equal_ones_a_histogram_and_nothing_else() -> None:
    x = np.zeros(1_000_000, dtype=np.int16)
    x[[3, 70_000, 999_999]] = [1, -1, 1]
    assert coding.code_entropy(x, 1)[1] < entropy_of(x) + 32 * 8
    assert code_entropy(x, 1)[1] > 0
    for level in (-3, 0, 3):
        # One of the seven numbers occurs 5 times: its position, a sign, omega(5) = 101010.
        data, words = code_entropy(np.full(5, level), 3)
        assert words == 0
        assert data.tolist() == stream(1, slow_omega(level + 4) + "0" + "101010").tolist()


FOUR = code_entropy(np.array([1, 0, 0, -1]), 1)[0]  # a histogram of one byte and a half, a word


def coded(*digits: int) -> Bytes:
    """The histogram of `FOUR` and five digits below 3, as one symbol of its model."""
    share = np.array([1, 2, 1]) / 4
    model = constriction.stream.model.Categorical(
        functools.reduce(np.multiply.outer, [share] * 5).reshape(-1), perfect=False
    )
    coder = constriction.stream.queue.RangeEncoder()
    coder.encode(np.array([int("".join(map(str, digits)), 3)], dtype=np.int32), model)
    return np.append(FOUR[:-4], coder.get_compressed().astype("<u4").view(np.uint8))


ILLEGAL_ENTROPY = {
    "nothing": FOUR[:0],
    "no words": FOUR[:-4],
    "a word too many": np.append(FOUR, np.zeros(4, np.uint8)),
    "a byte too many": np.append(FOUR, np.uint8(0)),
    "a byte too few": FOUR[:-1],
    "another word": np.append(FOUR[:-4], FOUR[-4:] ^ 1),
    "numbers of another histogram": coded(2, 2, 1, 0, 0),
    "a fifth digit, and with it the histogram": coded(2, 1, 0, 0, 1),
    "a histogram of five": stream(3, "000" + "00110" + "000"),
    "a histogram of three": stream(3, "000" * 3),
    "a negative count": stream(2, "010" + "00" + slow_omega(5)),
    "four numbers of three": stream(4, "000" * 4),
    "one number four times, and a word": np.append(stream(1, "00101000"), FOUR[-4:]),
    "the histogram of another vector": np.append(stream(2, "0001000100"), FOUR[-4:]),
}


@pytest.mark.parametrize("what", ILLEGAL_ENTROPY)
def test_coded_bytes_of_no_vector_are_rejected(what: str) -> None:
    assert decode_entropy(FOUR, 4, 1).tolist() == [1, 0, 0, -1]
    assert coded(2, 1, 1, 0, 0).tolist() == FOUR.tolist()
    with pytest.raises(IllegalPayloadError):
        decode_entropy(ILLEGAL_ENTROPY[what], 4, 1)


EDITS = st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=3)


@BOTH
@given(VECTORS, EDITS, st.integers(0, 5), st.binary(max_size=9))
def test_whatever_decodes_is_the_code_of_what_it_decodes_to(
    code: Code, vector: Any, edits: list[tuple[int, int]], cut: int, tail: bytes
) -> None:
    x, top = vector
    data = (code_elias(x) if code == "elias" else code_entropy(x, top))[0].copy()
    for at, flip in edits:
        data[at % len(data)] ^= flip
    read(code, np.append(data[: len(data) - cut], np.frombuffer(tail, np.uint8)), len(x), top)


@BOTH
@given(
    st.binary(max_size=60),
    st.integers(0, 9),
    st.integers(0, 300),
    st.sampled_from([1, 7, 32767]),
)
def test_any_bytes_are_refused_or_canonical(
    code: Code, data: bytes, left: int, d: int, top: int
) -> None:
    read(code, np.frombuffer(data, np.uint8), d, top)
    read(code, np.frombuffer(left.to_bytes(4, "little") + data, np.uint8), d, top)


def read(code: Code, data: Bytes, d: int, top: int) -> None:
    """Decodes or raises `IllegalPayloadError`, and nothing else."""
    try:
        x = (decode_elias if code == "elias" else decode_entropy)(data, d, top)
    except IllegalPayloadError:
        return
    assert x.shape == (d,)
    assert d == 0 or np.abs(x).max() <= top
    again, _ = code_elias(x) if code == "elias" else coding.code_entropy(x, top)
    assert again.tolist() == data.tolist()


def levels(rows: list[list[int]], scales: list[list[float]], **form: Any) -> Levels:
    x = torch.tensor(rows, dtype=torch.int16)
    rest = torch.tensor(form.pop("rest", [[]] * len(rows)))
    plain: dict[str, Any] = {"top": 7, "bucket": 0, "norm": "max", "code": "entropy"}
    return Levels(x, torch.tensor(scales), rest, **plain | {"sizes": (x.shape[1],)} | form)


@BOTH
@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 40), max_size=4).map(tuple),
    bucket=st.sampled_from([0, 1, 2, 16, 64]),
    top=st.sampled_from([1, 2, 7, 127, 32767]),
    p=st.integers(0, 3),
    scale=st.sampled_from([0.0, 1e-30, 1.0, 3e38]),
    seed=st.integers(0, 2**32),
)
def test_levels_keep_the_laws_of_payloads(
    code: Code, sizes: tuple[int, ...], bucket: int, top: int, p: int, scale: float, seed: int
) -> None:
    x = Key(seed).normal(2, sum(sizes))
    key = Key(seed)
    scales = scale * key.fold("scales").uniform(2, len(bucket_lengths(sizes, bucket)))
    whole = torch.zeros(x.shape, dtype=torch.int16)
    blank = Levels(whole, scales, key.normal(2, p), top, sizes, bucket, "l2", code)
    wanted = torch.cat([x * min(scale, 1e38), key.normal(2, p)], dim=1)
    payload = blank.nearest(wanted)
    check_payload(payload)
    assert torch.equal(payload.scales, scales)
    assert torch.equal(payload.values()[:, sum(sizes) :], wanted[:, sum(sizes) :])


def test_values_are_levels_over_the_top_times_the_scale_of_their_bucket() -> None:
    # Parts of 5 and 2 in buckets of 2: 2, 2, 1 and 2. None holds coordinates of two parts.
    assert bucket_lengths((5, 2), 2) == (2, 2, 1, 2)
    assert bucket_lengths((5, 2), 0) == (5, 2)
    assert bucket_lengths((0, 3), 0) == (3,)
    parts: dict[str, Any] = {"top": 4, "bucket": 2, "sizes": (5, 2), "rest": [[9.0]]}
    payload = levels([[4, -2, 1, 0, 3, -4, 2]], [[1.0, 2.0, 4.0, -8.0]], **parts)
    assert payload.values().tolist() == [[1.0, -0.5, 0.5, 0.0, 3.0, 8.0, -4.0, 9.0]]
    assert payload.headers()["scales"].tolist() == [[1.0, 2.0, 4.0, -8.0]]
    assert not payload.bounded


def test_no_device_is_asked_to_divide_levels_by_a_number() -> None:
    class Quotients(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Notes what is divided by: CUDA rounds the inverse of a number before it multiplies."""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.overloadpacket in (torch.ops.aten.div, torch.ops.aten.div_):
                divisors.append(args[1])
            return func(*args, **(kwargs or {}))

    divisors: list[object] = []
    parts: dict[str, Any] = {"top": 7, "bucket": 0, "sizes": (3,), "rest": [[]]}
    payload = levels([[4, -2, 1]], [[3.0]], **parts)
    with Quotients():  # type: ignore[no-untyped-call]
        payload.values()
    assert divisors
    assert all(isinstance(x, torch.Tensor) for x in divisors)


def test_nearest_keeps_the_scales_and_says_nothing_where_there_is_none() -> None:
    zeros = [0] * 6
    inf = torch.inf
    nan = torch.nan
    blank = levels([zeros] * 4, [[2.0], [0.0], [inf], [nan]], top=4)
    wanted = torch.tensor([[0.3, -0.74, 0.25, 0.75, 99.0, -inf]]).repeat(4, 1)
    result = blank.nearest(wanted)  # steps of .5, halfway to the even level
    assert result.levels.tolist() == [[1, -1, 0, 2, 4, -4], zeros, zeros, zeros]
    assert blank.nearest(wanted.double()).levels.tolist() == result.levels.tolist()
    assert blank.nearest(torch.full((4, 6), nan)).levels.tolist() == [zeros] * 4
    assert same(blank.put([1], blank.take([1])), blank)


def test_a_message_is_scales_floats_and_coded_levels_of_their_entropy() -> None:
    # 1/2, 1/4, 1/4: 1.5 bits a coordinate.
    payload = levels([[1, 1, 0, -1], [5, 5, 5, 5]], [[1.0, 2.0]] * 2, bucket=2, rest=[[0.0]] * 2)
    assert payload.entropy().tolist() == [6 + 3 * 32, 3 * 32]
    payload = levels([[0, -2, 1]], [[1.0, -2.0]], bucket=2, rest=[[0.5]], code="elias")
    (packet,) = payload.encode()
    assert packet.data.hex() == "0000803f000000c00000003f" + "020000009800"
    assert packet.bits == 3 * 32 + 32 + 10
    (packet,) = dataclasses.replace(payload, code="entropy").encode()
    assert packet.data.hex().startswith("0000803f000000c00000003f03000000")


ONE = levels([[1, 0]], [[1.0]], rest=[[0.0]])
ILLEGAL = {
    "a level above the top": levels([[8]], [[1.0]]),
    "a level below minus the top": levels([[-8]], [[1.0]]),
    "the int16 that has no opposite": levels([[-(2**15)]], [[1.0]], top=32767),
    "a scale too few": levels([[1, 1, 1]], [[1.0]], bucket=2),
    "a scale too many": levels([[1, 1, 1]], [[1.0, 1.0]]),
    "a coordinate too many": levels([[1, 1, 1]], [[1.0]], sizes=(2,)),
    "long levels": dataclasses.replace(ONE, levels=ONE.levels.long()),
    "double scales": dataclasses.replace(ONE, scales=ONE.scales.double()),
    "double floats": dataclasses.replace(ONE, rest=ONE.rest.double()),
}


@pytest.mark.parametrize("what", ILLEGAL)
def test_check_refuses_what_is_no_message(what: str) -> None:
    with pytest.raises(IllegalPayloadError):
        ILLEGAL[what].check()


@BOTH
def test_bytes_that_no_levels_have_are_rejected_and_the_others_are_not(code: Code) -> None:
    like = levels([[0, 7, -7, 1]], [[1.0, 2.0]], bucket=2, rest=[[3.0]], code=code)
    high = levels([[0, 8, -7, 1]], [[1.0, 2.0]], top=8, bucket=2, rest=[[3.0]], code=code)
    data = like.encode()[0].data
    more = high.encode()[0].data
    bad = [b"", data[:11], data[:-1], data + b"\0", data[4:], more]
    packets = [Packet.raw(raw) for raw in (data, *bad, data)]
    received, accepted = Levels.decode(packets, like.spec)
    assert accepted.tolist() == [True] + [False] * len(bad) + [True]
    assert received is not None
    assert same(received, like.take([0, 0]))


def passes(check: Any, rows: list[list[int]], scales: list[list[float]], **form: Any) -> Any:
    return levels(rows, scales, **form).passes(check).tolist()


def test_floats_that_are_not_finite_are_legal_on_the_wire_and_fail_the_server() -> None:
    scales = [[1.0], [torch.nan], [torch.inf], [-torch.inf], [-1.0], [1e6]]
    payload = levels([[7, 0]] * 6, scales)
    received, accepted = Levels.decode(payload.encode(), payload.spec)
    assert bool(accepted.all())
    assert received is not None
    assert received.passes("none").tolist() == [True] * 6
    assert received.passes("finite").tolist() == [True, False, False, False, True, True]
    assert received.passes("range").tolist() == [True, False, False, False, False, True]
    assert passes("finite", [[7], [7]], [[1.0], [1.0]], rest=[[0.0], [torch.nan]]) == [True, False]


def test_in_range_every_bucket_is_full_and_no_longer_than_a_vector_of_its_norm() -> None:
    rows = [[7, 0, -7, 1], [6, 6, -7, 1], [7, 7, 0, 0], [7, 7, 0, 0], [7, 7, 1, 0]]
    scales = [[1.0, 1.0]] * 3 + [[1.0, 0.0]] * 2
    assert passes("range", rows, scales, bucket=2) == [True, False, False, True, False]
    # 16 levels in s = 7: at most 7 + sqrt(16) = 11 if none is 0; 2 * sqrt(16) and 3 * 4 - 1 fit.
    rows = [[7] * 16, [2] * 16, [3] * 16, [3] * 12 + [2] + [0] * 3, [7] + [0] * 15, [0] * 16]
    result = passes("range", rows, [[1.0]] * 6, norm="l2")
    # 12 * 9 + 4 = 112 of 13: 10.58 <= 10.61; with 3 for the 2 it is 10.82.
    assert result == [False, True, False, True, True, True]
    rows = [[3] * 13 + [0] * 3, [0] * 16, [1] + [0] * 15]
    assert passes("range", rows, [[1.0], [0.0], [0.0]], norm="l2") == [False, True, False]
    rows = [[1, 1, 7, 7, 7, 7], [5, 5, 4, 4, 1, 1]]
    assert passes("range", rows, [[1.0, 1.0]] * 2, norm="l2", sizes=(2, 4)) == [False, True]


def test_scales_are_norms_rounded_up_or_say_what_no_float_can_say() -> None:
    x = torch.tensor([[3.0, -4.0, 0.0, 0.0, -1.0]])
    assert scales_of(x, (3, 2), "l2").tolist() == [[5.0, 1.0]]
    assert scales_of(x, (3, 2), "max").tolist() == [[4.0, 1.0]]
    many = Key(0).normal(500, 7)
    norms = torch.linalg.vector_norm(many.double(), dim=1)
    scales = scales_of(many, (7,), "l2")[:, 0]
    assert bool((norms.float() < norms).any())  # rounding to the nearest would go down
    assert bool((scales >= norms).all())
    below = torch.nextafter(scales, torch.zeros_like(scales))
    assert bool((below < norms).all())
    nan = torch.nan
    inf = torch.inf
    x = torch.tensor([[1.0, nan, inf, 0.0, 0.0, 0.0, 3e38, 3e38, -1e38, 0.0]])
    assert scales_of(x, (2, 2, 2, 2, 2), "l2")[0, 2:].tolist() == [0.0, inf, x[0, 8].abs().item()]
    assert scales_of(x, (2,) * 5, "max")[0, 2:].tolist() == [0.0, x[0, 6].item(), -x[0, 8].item()]
    for norm in ("l2", "max"):
        assert bool(torch.isnan(scales_of(x, (2,) * 5, norm)[0, :2]).all())
