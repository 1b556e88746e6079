"""Levels: worked by hand, on the wire, and messages that no honest client sends."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload import Levels, same
from fedbench.payload.levels import Code, Norm, bucket_lengths, scales_of
from fedbench.payload.packets import Packet
from fedbench.testing import check_payload

CODES: list[Code] = ["elias", "entropy"]
BOTH = pytest.mark.parametrize("code", CODES)


def levels(
    rows: list[list[int]],
    scales: list[list[float]],
    top: int = 7,
    bucket: int = 0,
    norm: Norm = "max",
    code: Code = "entropy",
    sizes: tuple[int, ...] | None = None,
    rest: Any = None,
) -> Levels:
    x = torch.tensor(rows, dtype=torch.int16)
    floats = torch.zeros(len(rows), 0) if rest is None else torch.tensor(rest)
    parts = sizes or (x.shape[1],)
    return Levels(x, torch.tensor(scales), floats, top, parts, bucket, norm, code)


@BOTH
@settings(max_examples=60, deadline=None)
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
    x, key = Key(seed).normal(2, sum(sizes)), Key(seed)
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
    payload = levels(
        [[4, -2, 1, 0, 3, -4, 2]],
        [[1.0, 2.0, 4.0, -8.0]],
        top=4,
        bucket=2,
        sizes=(5, 2),
        rest=[[9.0]],
    )
    assert payload.values().tolist() == [[1.0, -0.5, 0.5, 0.0, 3.0, 8.0, -4.0, 9.0]]
    assert payload.headers()["scales"].tolist() == [[1.0, 2.0, 4.0, -8.0]]
    assert not payload.bounded


def test_nearest_keeps_the_scales_and_says_nothing_where_there_is_none() -> None:
    zeros, inf, nan = [0] * 6, torch.inf, torch.nan
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
ILLEGAL: list[tuple[str, Levels]] = [
    ("a level above the top", levels([[8]], [[1.0]])),
    ("a level below minus the top", levels([[-8]], [[1.0]])),
    ("the int16 that has no opposite", levels([[-(2**15)]], [[1.0]], top=32767)),
    ("a scale too few", levels([[1, 1, 1]], [[1.0]], bucket=2)),
    ("a scale too many", levels([[1, 1, 1]], [[1.0, 1.0]])),
    ("a coordinate too many", levels([[1, 1, 1]], [[1.0]], sizes=(2,))),
    ("long levels", dataclasses.replace(ONE, levels=ONE.levels.long())),
    ("double scales", dataclasses.replace(ONE, scales=ONE.scales.double())),
    ("double floats", dataclasses.replace(ONE, rest=ONE.rest.double())),
]


@pytest.mark.parametrize(("what", "payload"), ILLEGAL, ids=[row[0] for row in ILLEGAL])
def test_check_refuses(what: str, payload: Levels) -> None:
    with pytest.raises(IllegalPayloadError):
        payload.check()


@BOTH
def test_bytes_that_no_levels_have_are_rejected_and_the_others_are_not(code: Code) -> None:
    like = levels([[0, 7, -7, 1]], [[1.0, 2.0]], bucket=2, rest=[[3.0]], code=code)
    high = levels([[0, 8, -7, 1]], [[1.0, 2.0]], top=8, bucket=2, rest=[[3.0]], code=code)
    data, more = like.encode()[0].data, high.encode()[0].data
    bad = [b"", data[:11], data[:-1], data + b"\0", data[4:], more]
    packets = [Packet.raw(raw) for raw in (data, *bad, data)]
    received, accepted = Levels.decode(packets, like.spec)
    assert accepted.tolist() == [True] + [False] * len(bad) + [True]
    assert received is not None
    assert same(received, like.take([0, 0]))


@BOTH
@settings(deadline=None)
@given(data=st.binary(max_size=40), front=st.booleans())
def test_random_bytes_are_read_or_rejected(code: Code, data: bytes, front: bool) -> None:
    like = levels([[0, 7, -7, 1]], [[1.0, 2.0]], bucket=2, rest=[[3.0]], code=code)
    own = like.encode()[0].data
    data = own[: 12 + len(data) % 9] + data if front else data
    received, accepted = Levels.decode([Packet.raw(data)], like.spec)
    if received is not None:
        received.check()
        assert received.encode()[0].data == data
    assert (received is not None) == bool(accepted[0])


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
    nan, inf = torch.nan, torch.inf
    x = torch.tensor([[1.0, nan, inf, 0.0, 0.0, 0.0, 3e38, 3e38, -1e38, 0.0]])
    assert scales_of(x, (2, 2, 2, 2, 2), "l2")[0, 2:].tolist() == [0.0, inf, x[0, 8].abs().item()]
    assert scales_of(x, (2,) * 5, "max")[0, 2:].tolist() == [0.0, x[0, 6].item(), -x[0, 8].item()]
    for norm in ("l2", "max"):
        assert bool(torch.isnan(scales_of(x, (2,) * 5, norm)[0, :2]).all())
