"""DRIVE and EDEN: by hand, against the definition, and the error that their papers promise."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from exchanges import rejected, shared_of
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard as sylvester
from torch import Tensor

from fedbench.core.blocks import spread
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.payload import Checks, RotatedLevels, same
from fedbench.payload.packets import Packet
from fedbench.payload.rotated_levels import widths
from fedbench.protocols.compressed import public_seeds
from fedbench.protocols.eden import DRIVE, EDEN, Scale, rotated
from fedbench.testing import check_payload

SHARED = shared_of()
BITS = (0.1, 0.5, 1.0, 1.7, 2.0, 3.0, 4.0)


def sent(
    x: Tensor, bits: float = 1.0, block: int = 4096, scale: Scale = "unbiased", first: int = 0
) -> RotatedLevels:
    """The messages of rows ``x``, whose clients have keys from the first one on."""
    seeds = public_seeds([Key(first + i) for i in range(len(x))], "rotation", x.device)
    return rotated(x, torch.zeros(len(x), 0), seeds, bits, block, scale)


def error(x: Tensor, message: RotatedLevels) -> float:
    """Mean over rows of ``|x_hat - x|**2 / |x|**2``."""
    difference = message.values()[:, : x.shape[1]].double() - x.double()
    return float((difference.square().sum(1) / x.double().square().sum(1)).mean())


@pytest.mark.parametrize("scale", ["unbiased", "min-mse"])
def test_drive_is_its_definition(scale: Scale) -> None:
    x = Key(5).normal(3, 24)  # blocks of 16 and 8
    protocol = DRIVE(scale=scale)
    message = protocol.compress(SHARED, x, torch.zeros(3, 0), [Key(i) for i in range(3)])
    for i, original in enumerate(x.double()):
        key = Key(i).public("rotation")
        flips = key.flips(24).double()
        offset = int(key.fold("offset").uniform(1) * 24)
        row = original.roll(-offset)
        arrived = message.values()[i].double().roll(-offset)
        for start, size in ((0, 16), (16, 8)):
            part = slice(start, start + size)
            rotation = torch.from_numpy(sylvester(size).astype(float)) / math.sqrt(size)
            rotation = rotation @ torch.diag(flips[part])
            y = rotation @ row[part]
            s = y.square().sum() / y.abs().sum() if scale == "unbiased" else y.abs().mean()
            expected = s * rotation.T @ torch.where(y >= 0, 1.0, -1.0).double()
            torch.testing.assert_close(arrived[part], expected, atol=1e-5, rtol=1e-5)


def test_the_mean_over_all_rotations_of_four_coordinates_is_not_the_vector() -> None:
    # By enumeration of the 16 diagonals (implementations.md, A6): a block this short is biased.
    x = torch.tensor([1.0, 2.0, 3.0, 4.0])
    by_diagonal: dict[tuple[float, ...], Tensor] = {}
    for i in range(1000):
        key = Key(i).public("rotation")
        if key.fold("offset").uniform(1) >= 0.25:
            continue  # shifted
        by_diagonal[tuple(key.flips(4).tolist())] = sent(x[None], first=i).values()[0]
    assert len(by_diagonal) == 16
    mean = torch.stack(list(by_diagonal.values())).mean(dim=0)
    assert mean.tolist() == pytest.approx([0.5625, 2.4375, 2.4375, 4.3125], abs=1e-5)


def test_one_coordinate_is_sent_exactly_and_a_sign_of_zero_is_positive() -> None:
    assert sent(torch.tensor([[-2.5]])).values().item() == pytest.approx(-2.5)
    # Two equal coordinates rotate to (a, 0) or (0, a): S = 2 / sqrt(2), whatever the signs.
    message = sent(torch.tensor([[1.0, 1.0]] * 8))
    assert message.values().abs().sum(dim=1).tolist() == pytest.approx([2.0] * 8, abs=1e-5)
    y_zero = message.levels.sum(dim=1)  # the zero is positive, so at least one level is 1
    assert bool((y_zero >= 1).all())


@pytest.mark.edges("0.1", "1.0", "4.0")
@pytest.mark.parametrize("bits", BITS)
@given(d=st.integers(64, 700), tail=st.floats(0, 3))
def test_the_inner_product_is_the_squared_norm_in_every_draw(
    bits: float, d: int, tail: float
) -> None:
    x = Key(d).normal(2, d)
    x = x.sign() * x.abs() ** (1 + tail)
    message = sent(x, bits, 256)
    inner = (message.values().double() * x.double()).sum(dim=1)
    torch.testing.assert_close(inner, x.double().square().sum(dim=1), rtol=2e-4, atol=0)


def test_the_least_squares_scale_is_that_and_has_the_papers_error_as_means_have() -> None:
    x = Key(1).normal(4, 333)
    x_hat = sent(x, scale="min-mse").values()
    torch.testing.assert_close((x_hat * x).sum(dim=1), x_hat.square().sum(dim=1))
    least, less, more = ((factor * x_hat - x).square().sum(1) for factor in (1, 0.99, 1.01))
    assert bool(((least < less) & (least < more)).all())
    x = Key(2).normal(8, 1 << 16)
    assert error(x, sent(x, scale="min-mse")) == pytest.approx(1 - 2 / math.pi, rel=0.015)
    # 400 clients with the same vector: the error of their mean is 1/400 of one's, 0.00143.
    x = Key(4).normal(1, 4096).expand(400, -1)
    mean = sent(x).values().double().mean(dim=0)
    left = (mean - x[0]).square().sum() / x[0].square().sum()
    assert float(left) == pytest.approx((math.pi / 2 - 1) / 400, rel=0.15)


# Errors at a uniform rotation; 8 draws of 65,536 coordinates scatter by less than 0.5 %.
@pytest.mark.parametrize(
    ("bits", "expected"),
    [(1, math.pi / 2 - 1), (2, 0.1331), (3, 0.03578), (4, 0.00959), (0.5, math.pi - 1)],
)
@pytest.mark.parametrize("kind", ["gaussian", "lognormal"])
def test_errors_are_those_of_the_papers(bits: float, expected: float, kind: str) -> None:
    x = Key(2).normal(8, 1 << 16)
    if kind == "lognormal":
        x = x.exp() * Key(3).normal(8, 1 << 16).sign()
    assert error(x, sent(x, bits)) == pytest.approx(expected, rel=0.015)


def test_blocks_cost_nothing_where_coordinates_are_many_and_mix_less_where_few_are_large() -> None:
    x = Key(6).normal(4, 1 << 14)
    blocks, whole = (error(x, sent(x, block=block)) for block in (1024, 1 << 14))
    assert blocks == pytest.approx(whole, rel=0.03)
    # Half the coordinates of a rotated pair are 0: S = 2 |x| / sqrt(2 B), an error of exactly 1.
    pair, lone = torch.zeros(2, 1, 1024)
    pair[0, :2] = 1.0
    lone[0, 7] = -3.0
    assert error(pair, sent(pair)) == pytest.approx(1.0, abs=1e-4)
    assert error(lone, sent(lone)) < 1e-10


@pytest.mark.parametrize("bits", BITS)
def test_bits_are_what_was_asked_for_plus_a_scale_for_each_block(bits: float) -> None:
    for d in (100_000, 102_399, 151_072, 581_408):
        (packet,) = sent(Key(d).normal(1, d), bits).encode()
        assert 0 <= packet.bits / d - bits < 0.02
    assert packet.bits / d < 1.0105 or bits != 1.0
    # A share of the coordinates of each block is wider.
    wide = widths((256, 64, 32), 2.25)
    assert wide[:256].tolist().count(3) == 64
    assert wide[256:320].tolist().count(3) == 16
    assert wide[320:].tolist() == [3] * 32  # short: all have the bit more
    assert set(wide[:320].tolist()) == {2, 3}
    assert widths((32,), 2.0).tolist() == [2] * 32


@pytest.mark.edges("0.1", "1.7", "4.0")
@pytest.mark.parametrize("bits", BITS)
@given(d=st.sampled_from([0, 1, 2, 3, 31, 64, 97, 128, 211]), p=st.integers(0, 3))
def test_messages_of_every_length_keep_the_laws(bits: float, d: int, p: int) -> None:
    x = Key(d).normal(3, d)
    rest = Key(p).normal(3, p)
    seeds = public_seeds([Key(i) for i in range(3)], "rotation", x.device)
    message = rotated(x, rest, seeds, bits, 64, "unbiased")
    check_payload(message)
    assert message.values().shape == (3, d + p)
    assert torch.equal(message.values()[:, d:], rest)
    assert bool(message.passes("range").all())


@pytest.mark.parametrize("bits", [0.5, 1.0, 3.0])
def test_what_is_zero_huge_or_not_a_number_has_a_defined_message(bits: float) -> None:
    x = torch.zeros(6, 100)
    x[1, 3] = 1e38
    x[2, 70] = float("nan")
    x[3, 0] = float("inf")
    x[4] = 3e38  # its norm is no float32
    x[5] = 1e-42
    message = sent(x, bits)
    message.check()
    for checks in ("finite", "range"):
        assert message.passes(checks).tolist() == [True, True, False, False, False, True]
    values = message.values()
    assert bool((values[0] == 0).all())
    speaks = spread(message.scales, message.sizes) > 0
    assert bool((message.levels[~speaks] == 0).all())
    assert speaks.any(dim=1).tolist()[:2] == [False, True]
    assert float(values[1, 3]) == pytest.approx(1e38, rel=1e-5)
    silent = message.take([0])  # scale 0 says nothing
    assert same(silent.nearest(values[:1] + 1), silent)


def test_blocks_without_content_say_nothing_and_no_coordinate_is_always_in_a_short_one() -> None:
    x = torch.zeros(1, 1024)
    x[0, 500:520] = 1.0  # in one block of 64, or in two
    message = sent(x, 2.0, 64)
    assert int((message.scales > 0).sum()) in (1, 2)
    assert 20 <= int((message.values() != 0).sum()) <= 128
    # 4098 coordinates end in a block of 2, of which one bit each says only the larger one.
    x = Key(0).normal(1, 4098)
    x[0, -2:] = torch.tensor([1.0, 0.9])
    mean = sent(x.expand(400, -1)).values()[:, -2:].mean(dim=0)
    assert mean.tolist() == pytest.approx([1.0, 0.9], abs=0.2)  # a draw scatters by 0.75


def test_a_server_that_checks_ranges_takes_any_finite_size_and_no_impossible_level() -> None:
    forged = sent(Key(0).normal(2, 5000))
    forged.scales[0, 0] = 3e38
    assert not bool(torch.isfinite(forged.values()[0]).all())
    answers: dict[Checks, bool] = {"none": True, "finite": False, "range": False}
    for checks, first in answers.items():
        assert forged.passes(checks).tolist() == [first, True]
    x = Key(3).normal(4, 256)
    for bits in (1.0, 3.0):
        message = sent(x, bits)
        for factor, fits in ((1e6, True), (-1.0, False), (0.0, False)):  # 0 has nothing to say
            scaled = dataclasses.replace(message, scales=factor * message.scales)
            assert scaled.passes("range").tolist() == [fits] * 4
            assert bool(scaled.passes("finite").all())
    # At 3 bits the cell of level 6 begins at 1.05 standard deviations, that of level 5 at 0.50.
    for level, fits in ((5, True), (6, False), (7, False)):
        equal = dataclasses.replace(message, levels=torch.full_like(message.levels, level))
        equal.check()
        assert bool(equal.passes("finite").all())
        assert equal.passes("range").tolist() == [fits] * 4


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_rejected(data: bytes) -> None:
    spec = sent(Key(0).normal(1, 97), 2.5, 64).spec
    message, accepted = RotatedLevels.decode([Packet.raw(data)], spec)
    assert bool(accepted[0]) == (message is not None)
    if message is not None:
        message.check()
        assert message.encode()[0].data == data


def test_a_wrong_length_and_padding_are_rejected() -> None:
    message = sent(Key(0).normal(1, 97), 2.5, 64)
    (packet,) = message.encode()
    assert packet.bits % 8
    padded = packet.data[:-1] + bytes([packet.data[-1] | 1])
    rejected(RotatedLevels, padded, message.spec, "padding")
    rejected(RotatedLevels, packet.data[:-1], message.spec, "bytes")
    broken = dataclasses.replace(message, levels=torch.full_like(message.levels, 8))
    with pytest.raises(IllegalPayloadError, match="centroid"):
        broken.check()


def test_one_bit_eden_is_drive_and_messages_are_seed_scale_and_packed_levels() -> None:
    x = Key(0).normal(2, 300)
    message = sent(x)
    swapped = dataclasses.replace(message, seeds=message.seeds.flip(0))
    assert error(x, swapped) > 2  # unrelated: 1 + the norm of the message
    data = message.encode()[0].data
    assert int.from_bytes(data[:8], "little") == Key(0).public("rotation").seed
    x = Key(0).normal(2, 102)
    rest = torch.zeros(2, 0)
    keys = [Key(0), Key(1)]
    ours = EDEN().compress(SHARED, x, rest, keys)
    other = DRIVE().compress(SHARED, x, rest, keys)
    assert same(ours, other)
    # Levels are packed behind seed and scale, narrow ones first.
    message = sent(Key(0).normal(1, 64), 1.5, 64)
    bits = np.unpackbits(np.frombuffer(message.encode()[0].data[8 + 4 :], dtype=np.uint8))
    wide = widths((64,), 1.5).numpy()
    levels = message.levels[0].numpy()
    assert bits[:32].tolist() == levels[wide == 1].tolist()
    assert (2 * bits[32::2] + bits[33::2]).tolist() == levels[wide == 2].tolist()
