"""QSGD, TernGrad, FedPAQ: worked by hand, their statistics, and updates that are no numbers."""

import math

import exchanges
import pytest
import torch
from exchanges import flat, shared_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.rng import Key
from fedbench.models.models import BatchNormNet
from fedbench.models.network import ConvNet
from fedbench.payload import Levels, same
from fedbench.payload.levels import Code, Norm
from fedbench.protocols.compressed import CompressedUpdates
from fedbench.protocols.qsgd import QSGD, FedPAQ, TernGrad
from fedbench.testing import NETWORK, SIZES, check_payload

DRAWS = 20_000
NORMS: list[Norm] = ["l2", "max"]
CODES: list[Code] = ["elias", "entropy"]
NAN = torch.nan
INF = torch.inf


def sent(protocol: CompressedUpdates, x: Tensor, shared: Shared | None = None) -> Levels:
    """The messages of ``x (n, d)``, each row with a key of its own."""
    keys = [Key(0).fold(i) for i in range(len(x))]
    payload = exchanges.sent(protocol, shared or flat(x.shape[1]), x, keys=keys)
    assert isinstance(payload, Levels)
    payload.check()
    return payload


def close_to_share(up: Tensor, share: float) -> None:
    """Assert that the share of true values is this ``share``, to 5 sigma."""
    sigma = math.sqrt(share * (1 - share) / len(up))
    assert float(up.double().mean()) == pytest.approx(share, abs=5 * sigma)


def repeated(protocol: CompressedUpdates, v: Tensor) -> Levels:
    """The message of ``v (d,)`` many times over: in buckets of ``d``, or with one scale for all."""
    return sent(protocol, v.repeat(DRAWS)[None])


def close_to_binomial(values: Tensor, low: Tensor, high: Tensor, mean: Tensor) -> None:
    """Columns of ``values (draws, d)`` are ``low`` or ``high`` with this mean, to 5 sigma.

    Of a share ``f`` that is high the variance is ``f (1 - f)`` times the squared gap, and that of
    the squared deviation ``f (1 - f) (1 - 2 f)**2`` times its square.
    """
    values, low, high, mean = values.double(), low.double(), high.double(), mean.double()
    assert bool((torch.isclose(values, low) | torch.isclose(values, high)).all())
    gap = (high - low).abs()
    f = (mean - low) / (high - low)
    variance = gap**2 * f * (1 - f)
    off = (values.mean(dim=0) - mean).abs()
    assert bool((off <= 5 * (variance / len(values)).sqrt() + 1e-6 * gap).all())
    off = ((values - mean).square().mean(dim=0) - variance).abs()
    sigma = variance.sqrt() * gap * (1 - 2 * f).abs() / len(values) ** 0.5
    assert bool((off <= 5 * sigma + 1e-6 * gap**2).all())


def test_three_four_five_is_rounded_up_as_often_as_its_fractions_say() -> None:
    # |v| s / ||v|| are whole numbers for s = 5 and the norm 5, and for s = 4 and the largest, 4.
    v = torch.tensor([[3.0, -4.0, 0.0]])
    for protocol in (QSGD(levels=5, norm="l2", bucket=0), QSGD(levels=4, bucket=0)):
        payload = sent(protocol, v)
        assert payload.levels.tolist() == [[3, -4, 0]]
        assert payload.scales.item() == protocol.levels
        torch.testing.assert_close(payload.values(), v)
    # s = 2 and norm 5: 1.2 and 1.6, so levels 1 or 2, 0.2 and 0.6 of them 2.
    payload = repeated(QSGD(levels=2, norm="l2", bucket=3), v[0])
    levels = payload.levels.reshape(DRAWS, 3)
    assert [set(column.tolist()) for column in levels.T] == [{1, 2}, {-1, -2}, {0}]
    for column, share in ((0, 0.2), (1, 0.6)):
        close_to_share(levels[:, column].abs() == 2, share)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("s", [1, 2, 7])
def test_levels_are_unbiased_and_their_variance_is_that_of_a_coin(norm: Norm, s: int) -> None:
    v = torch.tensor([0.3, -1.0, 0.01, 0.77, -0.2, 2.5, 0.0, -2.5])
    payload = repeated(QSGD(levels=s, norm=norm, bucket=8), v)
    scale = float(payload.scales[0, 0])
    low = (v.abs() * s / scale).floor() * scale / s
    sign = torch.where(v < 0, -1.0, 1.0)
    values = payload.values().reshape(DRAWS, 8)
    close_to_binomial(values, sign * low, sign * (low + scale / s), v)


@pytest.mark.parametrize(("s", "d"), [(1, 3), (1, 100), (4, 100), (50, 100)])
def test_the_error_and_the_coordinates_sent_keep_the_bounds_of_lemma_3_1(s: int, d: int) -> None:
    v = Key(s).normal(d)
    square = float(v.square().sum())
    payload = repeated(QSGD(levels=s, norm="l2", bucket=d), v)
    error = (payload.values().reshape(DRAWS, d).double() - v).square().sum(dim=1)
    few = (payload.levels.reshape(DRAWS, d) != 0).double().sum(dim=1)
    slack = [5 * float(x.std()) / math.sqrt(DRAWS) for x in (error, few)]
    assert float(error.mean()) <= min(d / s**2, math.sqrt(d) / s) * square + slack[0]
    assert float(few.mean()) <= s * (s + math.sqrt(d)) + slack[1]
    # Exactly: scale^2 / s^2 times the sum of f (1 - f).
    f = (v.abs().double() * s / math.sqrt(square)).frac()
    exact = square / s**2 * float((f * (1 - f)).sum())
    assert float(error.mean()) == pytest.approx(exact, abs=slack[0] + 1e-6 * square)


def test_scales_are_of_buckets_and_no_smaller_than_what_they_scale() -> None:
    v = torch.tensor([[1e-6, -2e-6, 3.0, 4.0, 1e6]])
    payload = sent(QSGD(levels=1, bucket=2), v)
    assert payload.scales.tolist() == [[v[0, 1].abs().item(), 4.0, 1e6]]
    assert payload.levels[0, [1, 3, 4]].tolist() == [-1, 1, 1]
    assert sent(QSGD(levels=1, bucket=0), v).scales.tolist() == [[1e6]]
    assert sent(QSGD(levels=1, bucket=512), v).scales.tolist() == [[1e6]]
    # The norm of (1, 2**-12) is 1 + 2**-25, which float32 would round down to 1.
    v = torch.tensor([[1.0, 2.0**-12]])
    payload = sent(QSGD(levels=32767, norm="l2", bucket=0), v)
    assert payload.scales.item() == 1 + 2.0**-23
    assert payload.levels[0, 0].item() in (32766, 32767)
    one_hot = torch.tensor([[0.0, -0.1, 0.0]])
    payload = sent(QSGD(levels=3, norm="l2", bucket=0), one_hot)
    assert torch.equal(payload.scales, -one_hot[:, 1:2])
    assert payload.levels.tolist() == [[0, -3, 0]]
    payload = sent(QSGD(bucket=2), torch.tensor([[0.0, -0.0, 1.0, 0.0]]))
    assert (payload.levels.tolist(), payload.scales.tolist()) == ([[0, 0, 7, 0]], [[0.0, 1.0]])
    assert bool(payload.passes("range").all())
    check_payload(payload)


def test_draws_are_named_by_the_key_of_the_client_alone_and_below_the_fraction_round_up() -> None:
    x = Key(0).normal(1, 500).expand(3, -1)
    payload = sent(QSGD(), x)
    assert same(sent(QSGD(), x), payload)
    assert not torch.equal(payload.levels[0], payload.levels[1])
    assert same(sent(QSGD(), x[:1]), payload.take([0]))
    draws = Key(0).fold(2).fold("quantize").uniform(500)
    exact = (x[2].abs() / x[2].abs().max() * 7).double()
    up = draws < exact.frac()
    assert torch.equal(payload.levels[2].abs().double(), exact.floor() + up)
    # Draws are in [0, 1): so a whole number stays, and a fraction f is above a share f of them.
    draw = Key(0).fold(0).fold("quantize").uniform(2)[0]
    whole = torch.tensor(1.0)
    for first, level in ((draw, 0), (torch.nextafter(draw, whole), 1)):
        payload = sent(QSGD(levels=1), torch.stack([first, whole])[None])
        assert payload.levels.tolist() == [[level, 1]]


@pytest.mark.edges("max")
@pytest.mark.parametrize("norm", NORMS)
@settings(deadline=None)
@given(st.integers(1, 40), st.sampled_from([1, 7, 32767]), st.integers(0, 2**32))
def test_no_honest_message_fails_the_strict_server(norm: Norm, d: int, s: int, seed: int) -> None:
    key = Key(seed)
    x = key.normal(6, d) * (10 ** (20 * key.fold("spread").normal(6, d)).clamp(-15, 15))
    x[0] *= key.fold("zero").uniform(d) < 0.3
    x[1] = torch.where(torch.arange(d) == d // 2, x[1], x[1] * 1e-4)  # all but one-hot
    x[2] = x[2].abs().max()
    for protocol in (QSGD(levels=s, norm=norm, bucket=0), QSGD(levels=s, norm=norm, bucket=3)):
        payload = sent(protocol, x)
        assert bool(payload.passes("range").all())
        assert int(payload.levels.int().abs().max()) <= s


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_not_finite_has_no_levels_and_fails_the_default_checks(norm: Norm) -> None:
    x = torch.tensor([[NAN, 1.0, 2.0, 0.0], [INF, 1.0, 2.0, 0.0], [-INF, NAN, 2.0, 0.0]])
    payload = sent(QSGD(bucket=2, norm=norm), x)
    assert payload.levels.tolist() == [[0, 0, 7, 0]] * 3
    assert bool(torch.isnan(payload.scales[:, 0]).all())
    assert payload.scales[:, 1].tolist() == [2.0] * 3
    assert payload.passes("finite").tolist() == [False] * 3
    check_payload(payload)


def test_huge_coordinates_do_not_overflow_and_a_norm_beyond_float32_is_rejected() -> None:
    x = torch.tensor([[1e38, 1.0, 0.0, 0.0], [3e38, 3e38, 3e38, -3e38]])
    largest, length = sent(QSGD(bucket=0), x), sent(QSGD(bucket=0, norm="l2"), x)
    assert largest.passes("range").tolist() == [True, True]
    assert largest.levels[1].tolist() == [7, 7, 7, -7]
    assert length.passes("range").tolist() == [True, False]
    assert length.scales.tolist() == [[x[0, 0].item()], [INF]]
    assert length.levels.tolist() == [[7, 0, 0, 0], [0, 0, 0, 0]]
    beyond = sent(QSGD(bucket=0), torch.tensor([[1e300, 1.0]]).double())
    assert beyond.passes("finite").tolist() == [False]
    # Doubles are compressed as floats. Of the double 0.1 the float is larger, and not all of its
    # 32767 levels would be sent for sure.
    tenths = torch.full((1, 20_000), 0.1, dtype=torch.float64)
    assert bool((sent(QSGD(levels=32767, bucket=1), tenths).levels == 32767).all())


LAYERS = shared_of(ConvNet((1, 1, 2), (), (2,), 1))  # 4 weights, then 2


def test_ternary_values_are_none_or_all_of_the_largest() -> None:
    g = torch.tensor([0.5, -2.0, 0.0, 1.0, -1.5])
    payload = repeated(TernGrad(), g)
    levels = payload.levels.reshape(DRAWS, 5)
    assert [set(column.tolist()) for column in levels.T] == [{0, 1}, {-1}, {0}, {0, 1}, {0, -1}]
    assert payload.scales.tolist() == [[2.0]]
    two = torch.tensor([2.0, -2.0, 2.0, 2.0, -2.0])  # the variance is |g| (2 - |g|)
    close_to_binomial(payload.values().reshape(DRAWS, 5), torch.zeros(5), two, g)
    for column, share in ((0, 0.25), (3, 0.5), (4, 0.75)):
        close_to_share(levels[:, column] != 0, share)


def test_every_layer_has_a_scale_and_is_clipped_at_c_population_deviations() -> None:
    g = torch.tensor([[0.5, -2.0, 0.0, 1.0, 0.03, -0.04]])
    payload = sent(TernGrad(), g, LAYERS)
    assert payload.sizes == (4, 2)
    assert payload.scales.tolist() == [[2.0, g[0, 5].abs().item()]]
    assert payload.levels[0, [1, 5]].tolist() == [-1, -1]
    # Deviations of (0, 0, 0, -4) and (3, 1): 3 ** 0.5 (2 if that of a sample) and 1.
    g = torch.tensor([[0.0, 0.0, 0.0, -4.0, 3.0, 1.0]])
    payload = sent(TernGrad(clip=1.5), g, LAYERS)
    torch.testing.assert_close(payload.scales, torch.tensor([[1.5 * 3**0.5, 1.5]]))
    assert payload.levels[0, [3, 4]].tolist() == [-1, 1]
    assert bool(payload.passes("range").all())
    # A7: public code sends c sigma = 4.33 and 2.5 here.
    g = torch.tensor([[0.0, 0.0, 0.0, -4.0, 2.0, 0.0]])
    assert sent(TernGrad(clip=2.5), g, LAYERS).scales.tolist() == [[4.0, 2.0]]
    assert sent(TernGrad(), g, LAYERS).scales.tolist() == [[4.0, 2.0]]


def test_clipping_is_biased_and_what_is_not_finite_or_huge_does_as_without() -> None:
    g = torch.tensor([1.0, 0.5, 0.5, -4.0])  # its mean is -1/2
    bound = math.sqrt((1.5**2 + 1 + 1 + 3.5**2) / 4)
    payload = repeated(TernGrad(clip=1.0), g)
    mean, sign = torch.tensor([1.0, 0.5, 0.5, -bound]), torch.tensor([1.0, 1.0, 1.0, -1.0])
    close_to_binomial(payload.values().reshape(DRAWS, 4), torch.zeros(4), sign * bound, mean)
    g = torch.tensor([[NAN, 1.0, 1.0, 1.0, 1.0, 0.0], [INF, 1.0, 1.0, 1.0, 1.0, 0.0]])
    g = torch.cat([g, torch.tensor([[3e38, -3e38, 0.0, 0.0, 0.0, 0.0]])])
    for clip, huge in ((1.0, 3e38 / 2**0.5), (2.5, 3e38)):  # the second bound is no float32
        payload = sent(TernGrad(clip=clip), g, LAYERS)
        assert payload.passes("range").tolist() == [False, False, True]
        assert payload.levels.tolist() == [[0, 0, 0, 0, 1, 0]] * 2 + [[1, -1, 0, 0, 0, 0]]
        assert payload.scales[2].tolist() == pytest.approx([huge, 0.0])


def test_running_statistics_travel_as_floats_and_layers_do_not_share_a_scale() -> None:
    shared = shared_of(BatchNormNet((1, 4, 4), ((3,), (4,)), 1, 3))
    x = Key(0).normal(2, shared.layout.d)
    p = shared.statistics.d
    assert p > 0
    for protocol in (TernGrad(), QSGD(code="elias"), QSGD(), FedPAQ()):
        payload = sent(protocol, x, shared)
        assert payload.code == getattr(protocol, "code", "entropy")
        assert torch.equal(payload.rest, x[:, -p:])
        assert torch.equal(payload.values()[:, -p:], x[:, -p:])
        assert sum(payload.sizes) == shared.layout.d - p
        check_payload(payload)
    assert sent(TernGrad(), x, shared).sizes == shared.layout.sizes[: -len(shared.statistics.sizes)]
    assert sent(TernGrad(), x[:, : sum(SIZES)], shared_of(NETWORK)).sizes == SIZES


def test_fedpaq_is_qsgd_with_one_norm_and_clients_that_count_the_same() -> None:
    assert (FedPAQ().weighted, QSGD().weighted) == (False, True)
    x = Key(2).normal(3, 600)
    assert same(sent(FedPAQ(), x), sent(QSGD(levels=10, bucket=0, norm="l2"), x))
    few = (sent(FedPAQ(), Key(3).normal(3, 100_000)).levels != 0).sum(dim=1)
    assert int(few.max()) < 10 * (10 + math.sqrt(100_000))  # 3 % of them
    aggregate = torch.tensor([1.0, -2.0], dtype=torch.float64)
    state = FedPAQ().server_step(flat(2), torch.ones(2), aggregate, 3, Key(0))
    assert state.tolist() == [2.0, -1.0]
