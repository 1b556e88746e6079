"""Mechanisms do to the data what their events say."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from rules import answer
from scipy.special import ndtri
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import MaliciousClients
from fedbench.api import Defense, Gradient, Mechanism, Release, ServerView
from fedbench.core import registry
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key, Secret
from fedbench.core.trees import Tree
from fedbench.executors.training import Loop, Schedule, untouched
from fedbench.executors.vmap import Stacked
from fedbench.experiment.cohorts import draw
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.stages import announced
from fedbench.experiment.state import RunState
from fedbench.models.models import BatchNormNet
from fedbench.models.network import Shared
from fedbench.payload import BinaryMasks, FloatVectors, NoiseMasks, Payload, SignBits
from fedbench.privacy import events
from fedbench.privacy.amplification import marginal
from fedbench.privacy.clients import clipped, within
from fedbench.privacy.mechanisms.dp_fedavg import ClipState, DPFedAvg
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.privacy.mechanisms.mask_gaussian import MaskGaussian, MaskSampling
from fedbench.privacy.mechanisms.noisy_sign import NoisySign
from fedbench.privacy.mechanisms.randomized_response import FlipBits
from fedbench.protocols.fedpm import FedPM
from fedbench.run import play_round
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

PRIVATE = Scenario(clients=20, per_round=6, rounds=2, epochs=1, eval_every=1)
RELEASE = Release(d=7, size=40, batch_size=8, steps=10, clients=50, per_round=10)
SHARED = Shared(NETWORK, 3, torch.device("cpu"))
MASKS = [MaskGaussian(sigma=0.3, c=0.1, clip=0.5), MaskSampling(c=0.1, clip=0.5)]


def keys(n: int, seed: int = 0) -> list[Key]:
    return [Key(seed).fold(i) for i in range(n)]


def view(n: int, expected: int) -> ServerView:
    broadcast = FloatVectors(torch.zeros(1, 1))
    return ServerView(torch.ones(n, dtype=torch.float64), broadcast, 0, Key(0), expected)


def test_every_mechanism_says_what_happens_and_none_says_nothing() -> None:
    names = registry.names("mechanism")
    assert {name: registry.load("mechanism", name).event(RELEASE) for name in names} == {
        "none": None,
        "mask-gaussian": events.MaskSample(7, 0.2, 0.2, None),
        "mask-sampling": events.MaskSample(7, 0.0, 0.2, None),
        "randomized-response": events.FlippedBits(7, 0.25),
        "noisy-sign": events.NoisySigns(7, 1.0),
        "dp-fedavg": events.GaussianSum(1.0, bits=False),
        "dp-sgd": events.GaussianGradients(1.0, 0.2, 10),
    }
    assert MaskSampling(c=0.1, clip=3.0).event(RELEASE) == events.MaskSample(7, 0.0, 0.1, 3.0)


def test_clipping_is_around_the_reference_and_keeps_what_is_inside() -> None:
    reference = torch.tensor([[10.0, 0.0], [10.0, 0.0], [10.0, 0.0]])
    x = torch.tensor([[13.0, 4.0], [10.3, 0.4], [math.nan, 1.0]])
    out, inside = clipped(x, reference, 2.0)
    # 5 away, along (3, 4) / 5; 0.5 away; not finite: the reference itself
    torch.testing.assert_close(out, torch.tensor([[11.2, 1.6], [10.3, 0.4], [10.0, 0.0]]))
    assert inside.tolist() == [False, True, True]
    x = torch.full((1, 100_000), 1e36)  # the factor has no float32 of its own
    assert 0.999e-4 < float(clipped(x, torch.zeros_like(x), 1e-4)[0].double().norm()) <= 1e-4
    x = Key(1).normal(200, 4097) * torch.logspace(-3, 3, 200)[:, None]
    for radius in (0.7, 30.0):
        norms = clipped(x, torch.zeros_like(x), radius)[0].double().norm(dim=1)
        assert 0.99999 * radius < float(norms.max()) <= radius


@pytest.mark.parametrize("mechanism", MASKS, ids=lambda m: type(m).__name__)
def test_probabilities_stay_in_the_cube_and_without_noise_in_the_ball(mechanism: Any) -> None:
    theta = Key(2).uniform(6, 50)
    reference = torch.full_like(theta, 0.05)  # outside the cube: it counts as clipped to 0.1
    theta[1] = math.nan
    out, _ = mechanism.on_updates(theta, reference, keys(6), None)
    assert 0.1 - 1e-7 <= float(out.min()) <= float(out.max()) <= 0.9 + 1e-7
    still = MaskGaussian(sigma=0.0, c=0.1, clip=0.5) if mechanism is MASKS[0] else mechanism
    out, _ = still.on_updates(theta, reference, keys(6), None)
    assert float((out - 0.1).norm(dim=1).max()) <= 0.5 + 1e-6
    torch.testing.assert_close(out[1], torch.full((50,), 0.1))  # who says NaN learned nothing


def test_mask_gaussian_releases_bits_with_the_marginal_that_is_priced() -> None:
    d = 40_000
    mechanism = MaskGaussian(sigma=0.5, c=0.2)
    for theta in (0.2, 0.35, 0.8):
        row = torch.full((1, d), theta)
        out, _ = mechanism.on_updates(row, row, keys(1, seed=5), None)
        bits = FedPM().bits(SHARED, out[0], Key(6))
        share, p = float(bits.float().mean()), float(marginal(theta, 0.5, 0.2))
        assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / d)
        assert abs(p - theta) > 0.02 or theta == 0.35  # the bias is there to be seen


def test_debiasing_gives_the_probability_back_that_all_clients_have() -> None:
    mechanism = MaskGaussian(sigma=0.5, c=0.2, debias=True)
    theta = torch.tensor([0.2, 0.3, 0.5, 0.8])
    shares = torch.from_numpy(marginal(theta.numpy(), 0.5, 0.2)).float()
    received = BinaryMasks(torch.zeros(3, 4, dtype=torch.bool), torch.zeros(3, 0))
    rest = received, view(3, 3), Key(0), None
    torch.testing.assert_close(mechanism.on_aggregate(shares, *rest)[0], theta, atol=1e-4, rtol=0)
    beyond = torch.tensor([0.0, 0.0, 1.0, 1.0])  # no theta has these: the ends of the cube
    out, _ = mechanism.on_aggregate(beyond, *rest)
    torch.testing.assert_close(out, torch.tensor([0.2, 0.2, 0.8, 0.8]))
    assert dataclasses.replace(mechanism, debias=False).on_aggregate(shares, *rest)[0] is shares


BITS = Key(3).uniform(2, 60_000) > 0.3
REST = torch.zeros(2, 0)


@pytest.mark.parametrize(
    "payload",
    [
        BinaryMasks(BITS, REST),
        BinaryMasks(BITS, REST, signed=True),
        SignBits(BITS),
        NoiseMasks(BITS, torch.tensor([[1], [2]]), REST, "bernoulli", 0.1, signed=True),
    ],
    ids=lambda p: type(p).__name__,
)
def test_flipping_flips_that_share_and_debiasing_takes_it_back(payload: Payload) -> None:
    mechanism = FlipBits(p=0.2)
    flipped = mechanism.on_payload(payload, keys(2))
    name = "positive" if isinstance(payload, SignBits) else "mask"
    before, after = getattr(payload, name), getattr(flipped, name)
    shares = (before ^ after).float().mean(dim=1)
    assert float((shares - 0.2).abs().max()) < 5 * math.sqrt(0.16 / 60_000)
    assert not torch.equal((before ^ after)[0], (before ^ after)[1])

    values = flipped.values().mean(dim=0)
    raw = payload.values().mean(dim=0)
    out, _ = mechanism.on_aggregate(values, flipped, view(2, 2), Key(0), None)
    signs = payload.noises()[0].sign() if isinstance(payload, NoiseMasks) else torch.ones(())
    error, shrunk = (((x - raw) * signs).mean().abs() / raw.abs().max() for x in (out, values))
    assert error < 0.02
    assert shrunk > 0.05


def test_the_affine_form_is_unbiased_and_as_hard_to_read() -> None:
    mechanism = FlipBits(p=0.2, form="affine", c=0.05)
    theta = torch.tensor([[0.0, 0.05, 0.3, 0.95, 1.0, math.nan]])
    idle = torch.full_like(theta, 0.5)
    out, _ = mechanism.on_updates(theta, idle, keys(1), None)
    # k = .3 / .45 = 2/3: the ends of [.05, .95] become .2 and .8
    expected = torch.tensor([[0.2, 0.2, 0.5 - 0.2 * 2 / 3, 0.8, 0.8, 0.5]])
    torch.testing.assert_close(out, expected)
    received = BinaryMasks(torch.zeros(1, 6, dtype=torch.bool), torch.zeros(1, 0))
    back, _ = mechanism.on_aggregate(out[0], received, view(1, 1), Key(0), None)
    torch.testing.assert_close(back, torch.tensor([0.05, 0.05, 0.3, 0.95, 0.95, 0.5]))
    assert mechanism.on_payload(received, keys(1)) is received


def test_adaptive_noise_is_of_the_present_clip_and_not_that_of_the_bits() -> None:
    # z = (1 - 1/400)^(-1/2) with 2 * 10 on the bits; n = expected = 10, 5 below: the norm moves by
    # exp(-.2 * 10 b / 10) with b the normal number on the bits
    mechanism = DPFedAvg(z=1.0, adaptive=True, bit_noise=10.0)
    z = (1 - 1 / 400) ** -0.5
    received = FloatVectors(torch.zeros(10, 50_000))
    for seed in range(3):
        rest = (received, view(10, 10), Key(seed), ClipState(5.0, 5))
        out, state = mechanism.on_aggregate(torch.zeros(50_000), *rest)
        assert float(out.std()) == pytest.approx(z * 5 / 10, rel=0.02)
        on_bits = -math.log(state.norm / 5) / 0.2
        assert abs(float(out[0]) * 10 / (z * 5) - on_bits) > 1e-3


def test_no_rounding_of_a_bound_gives_less_privacy_than_it_says() -> None:
    # the float32 next to 0.45 is 0.449999988
    for p in (0.1, 0.2, 0.45):
        assert float(FlipBits(p=p).odds(1, torch.device("cpu")).double()) >= p
        ends = within(torch.tensor([0.0, 1.0]), p).double()
        assert float(ends[0]) >= p
        assert float(ends[1]) <= 1 - p
    barely = torch.tensor([[1.005, 0.0]])
    out, inside = clipped(barely, torch.zeros(1, 2), 1.0)
    assert float(out.norm()) <= 1.0
    assert not inside.any()


def test_noise_is_of_the_clip_and_dp_fedavg_divides_by_the_expected_number() -> None:
    x = torch.zeros(1, 50_000)
    x[0, :4] = 50.0  # norm 100: clipped to 1 each
    out, _ = NoisySign(clip=2.0, z=0.5).on_updates(x, torch.zeros_like(x), keys(1), None)
    assert abs(float(out[0, 4:].std()) - 1.0) < 0.02
    assert float(out[0].max()) < 8

    mechanism = DPFedAvg(clip=3.0, z=2.0)
    updates = torch.tensor([[6.0, 8.0], [0.3, 0.4]])
    out, state = mechanism.on_updates(updates, torch.zeros(2, 2), keys(2), mechanism.init())
    torch.testing.assert_close(out, torch.tensor([[1.8, 2.4], [0.3, 0.4]]))
    assert state == ClipState(3.0, 1)
    received = FloatVectors(torch.zeros(8, 90_000))
    aggregate = torch.full((90_000,), 5.0)
    noisy, _ = mechanism.on_aggregate(aggregate, received, view(8, 10), Key(4), state)
    # 8 rows of mean 5 over an expected 10; the noise on the sum is 6, on the mean 0.6
    assert abs(float(noisy.mean()) - 4.0) < 0.01
    assert abs(float(noisy.std()) - 0.6) < 0.01


def test_runs_of_one_seed_share_their_noise_so_an_epsilon_is_for_one_run_alone() -> None:
    aggregate = torch.tensor([1.0, -2.0])
    rest = FloatVectors(torch.zeros(10, 2)), view(10, 10), Key(5)
    mild, strong = (
        mechanism.on_aggregate(aggregate, *rest, mechanism.init())[0]
        for mechanism in (DPFedAvg(z=1.0), DPFedAvg(z=2.0))
    )
    assert float((mild - aggregate).abs().min()) > 0.001
    torch.testing.assert_close(2 * mild - strong, aggregate)


def test_adaptive_clipping_moves_towards_the_quantile_and_pays_for_the_bits() -> None:
    mechanism = DPFedAvg(clip=1.0, z=1.0, adaptive=True, bit_noise=0.6)
    # (1 - 1/1.44)^(-1/2) = 1.8091
    assert mechanism.update_z(100) == pytest.approx(1.8091, abs=1e-4)
    assert DPFedAvg(adaptive=True).update_z(100) == pytest.approx(1.00504, abs=1e-5)
    assert (mechanism.message_bits(), DPFedAvg().message_bits()) == (1, 0)
    received = FloatVectors(torch.zeros(100, 1))
    rest = torch.zeros(1), received, view(100, 100), Key(9)
    states = [mechanism.on_aggregate(*rest, ClipState(1.0, n))[1] for n in (100, 50, 0)]
    # the noise on the share is .006: exp(-.2 (1 - .5)), 1, exp(.1)
    assert [state.norm for state in states] == pytest.approx([0.9048, 1.0, 1.1052], abs=0.01)
    with pytest.raises(ConfigError, match="twice the noise on the bits"):
        DPFedAvg(z=1.5, adaptive=True).event(RELEASE)


@pytest.mark.parametrize(("malicious", "settles"), [(0, 50), (30, 71.4), (60, math.inf)])
def test_malicious_clients_push_an_adaptive_clip_up(malicious: int, settles: float) -> None:
    """It settles at the quantile .5 / (1 - share) of the honest norms, 1 to 100, or grows on."""
    mechanism = DPFedAvg(clip=30.0, z=0.1, adaptive=True, bit_noise=0.06)
    honest = torch.linspace(1, 100, 100 - malicious)[:, None]
    received = FloatVectors(torch.zeros(100, 1))
    state = mechanism.init()
    for step in range(100):
        rest = torch.zeros_like(honest), keys(len(honest))
        _, state = mechanism.on_updates(honest, *rest, state)
        seen = torch.zeros(1), received, view(100, 100), Key(step)
        _, state = mechanism.on_aggregate(*seen, state)
    grown = state.norm if state.norm < 300 else math.inf
    assert grown == pytest.approx(settles, abs=1.5)


def test_an_adaptive_clip_stays_within_what_float32_holds_whatever_the_noise_on_its_bits() -> None:
    received = FloatVectors(torch.zeros(10, 1))
    noisy = DPFedAvg(adaptive=True, bit_noise=1e6)  # exp(-.2 * 1e5) and its inverse
    rest = torch.zeros(1), received, view(10, 10)
    norms = {noisy.on_aggregate(*rest, Key(i), ClipState(1.0, 5))[1].norm for i in range(20)}
    assert norms == {1e-30, 1e38}
    back, _ = noisy.on_updates(torch.ones(1, 1), torch.zeros(1, 1), keys(1), ClipState(1e38))
    assert back.tolist() == [[1.0]]


@pytest.mark.parametrize("mechanism", [NoisySign, DPFedAvg])
def test_no_clip_is_so_short_that_float32_rounds_an_update_to_a_longer_one(mechanism: Any) -> None:
    x = Key(3).normal(4, 100_000)
    least = mechanism(clip=1e-30)
    out, _ = clipped(x, torch.zeros_like(x), least.clip)
    assert float(out.double().norm(dim=1).max()) <= least.clip
    # at 7.1e-46 one number of float32 is twice the clip, and signs refute their epsilon
    assert float(clipped(torch.ones(1, 1), torch.zeros(1, 1), 7.1e-46)[0]) > 1.9 * 7.1e-46
    with pytest.raises(ConfigError, match="clip must be >= 1e-30: float32 rounds shorter updates"):
        mechanism(clip=9e-31)


def test_dp_sgd_clips_samples_over_all_layers_and_adds_noise_to_the_sum_also_of_none() -> None:
    def private(mechanism: DPSGD, **samples: torch.Tensor) -> Tree:  # of batches of 4, on average
        grad = mechanism.wrap_grad(Gradient(lambda *_: {}, lambda *_: samples, 4))
        return grad({}, torch.zeros(3), torch.zeros(3), Key(0))

    a, b = torch.tensor([[3.0], [0.0], [math.inf]]), [[[4.0, 0.0]], [[0.3, 0.4]], [[1.0, 0.0]]]
    out = private(DPSGD(clip=1.0, z=1e-9), a=a, b=torch.tensor(b))
    torch.testing.assert_close(out["a"], torch.tensor([0.6 / 4]), atol=1e-6, rtol=0)
    torch.testing.assert_close(out["b"], torch.tensor([[1.1 / 4, 0.4 / 4]]), atol=1e-6, rtol=0)
    # A parameter without dimensions is a number for each sample.
    out = private(DPSGD(clip=1.0, z=1e-9), a=torch.tensor([3.0, 0.5]), b=torch.tensor([4.0, 0.0]))
    assert (out["a"].shape, out["b"].shape) == ((), ())
    assert float(out["a"]) == pytest.approx((0.6 + 0.5) / 4, abs=1e-6)
    assert float(out["b"]) == pytest.approx(0.8 / 4, abs=1e-6)
    # A norm in float32 may be too small by rounding, but no clipped gradient is too long.
    many = Key(1).normal(64, 30_000)
    for row in many:
        out = private(DPSGD(clip=1.0, z=1e-12), a=row[None])
        assert float((out["a"].double() * 4).norm()) <= 1.0
    wide = torch.zeros(0, 40_000)
    out = private(DPSGD(clip=2.0, z=3.0), a=wide, b=wide)
    assert abs(float(out["a"].std()) - 1.5) < 0.03
    assert abs(float((out["a"] * out["b"]).mean())) < 0.06  # a layer's noise is its own


def test_gaussian_noise_for_privacy_has_tails_the_right_variance_and_finite_ends() -> None:
    x = Key(11).gaussian(400_000)
    assert x.dtype == torch.float64
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.square().mean()) - 1) < 0.01
    assert 4.4 < float(x.abs().max()) < math.inf  # the table of `Key.normal` ends at 4.4
    same = Key(Key(11).tensor()).gaussian(400_000)
    torch.testing.assert_close(same, x, rtol=1e-12, atol=0)

    class Ends(Key):
        def bits(
            self, count: int, device: torch.device | str = "cpu", skip: int = 0
        ) -> torch.Tensor:
            return torch.tensor([0, -1, 1 << 24, (1 << 24) - 1])

        def fold(self, *names: str | int) -> Key:
            return self

    # Quantiles of 2^-117, of nearly 1 - 2^-64, and of the two sides of where uniforms get finer:
    # (2^12 + 1/2) 2^-52, and nearly 2^-40 with the second word's 2^-28.
    ends = [2.0**-117, 2.0**-64, (2.0**12 + 0.5) * 2.0**-52, (2.0**24 - 1 + 2.0**-40) * 2.0**-64]
    expected = ndtri(ends) * [1, -1, 1, 1]
    assert expected[:2] == pytest.approx([-12.462, 9.081], abs=1e-3)
    assert Ends(0).gaussian(4).numpy() == pytest.approx(expected, rel=1e-12)


def test_the_tails_of_gaussian_noise_change_no_other_draw_and_reach_as_far_in_all_forms() -> None:
    shifted = (Key(11).bits(400_000) >> 12) & (2**52 - 1)
    x = torch.special.ndtri((shifted.double() + 0.5) * 2.0**-52)
    assert torch.equal(Key(11).gaussian(400_000), x)
    # a seed whose first word is 0, by the inverse of SplitMix64's mixer: mix(0) = 0
    rare = Key(-0x9E3779B97F4A7C15 % 2**64)
    assert int(rare.bits(1)) == 0
    (draw,) = rare.gaussian(1).tolist()
    assert -12.5 < draw < -9.081
    seeds = torch.stack([rare.tensor(), Key(11).tensor()])
    stacked = torch.vmap(lambda seed: Key(seed).gaussian(3))(seeds)
    torch.testing.assert_close(stacked[0], rare.gaussian(3), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("mechanism", "protocol", "changes", "reason"),
    [
        ("mask-gaussian", "fedavg", {}, "sends a Bernoulli sample"),
        ("mask-sampling", "topk-mask", {}, "sends a Bernoulli sample"),
        ("randomized-response", "fsl", {}, "sends bits, got Rankings"),
        ("randomized-response", "ef-signsgd", {}, "sends bits, got ScaledSigns"),
        ("randomized-response:form=affine", "fedmask", {}, "samples probabilities"),
        ("noisy-sign", "stochastic-sign", {}, "signs of the update"),
        ("dp-fedavg", "qsgd", {}, "travel as floats, got Levels"),
        ("dp-fedavg", "fedpm", {}, "travel as floats"),
        ("dp-fedavg", "fedavg", {"defense": "median"}, "changes by no more than a mean"),
        ("dp-fedavg", "fedavg", {"defense": "norm-bound"}, "or clip:c=1[+]mean"),
        ("dp-fedavg:clip=2", "fedavg", {"defense": "clip+mean"}, "or clip:c=2[+]mean"),
        ("dp-fedavg", "fedavg", {"defense": "bucketing+mean"}, "changes by no more than a mean"),
        ("dp-sgd", "skellam", {}, "adds noise of its own; use it with --mechanism none"),
        ("none", "fedpm", {"defense": "median", "sees": "sum"}, "reads single messages"),
    ],
)
def test_what_is_not_proved_is_refused(
    mechanism: str, protocol: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Incompatible, match=reason):
        load_plugins(Scenario(protocol=protocol, mechanism=mechanism, **changes))


@pytest.mark.parametrize(
    ("defense", "c"),
    [("mean", 2.0), ("clip:c=1+mean", 1.0), ("norm-bound:c=1", 1.0), ("clip:c=5+mean", 2.0)],
)
def test_central_noise_covers_what_a_client_changes_behind_a_rule_that_clips(
    defense: str, c: float
) -> None:
    scenario = PRIVATE.model_copy(update={"mechanism": "dp-fedavg:clip=2", "defense": defense})
    rule = load_plugins(scenario).defense
    x = torch.tensor([[0.0, 2.0], [1.2, 1.6], [9.0, 0.0]])  # the last client does not clip
    turned = torch.tensor([[0.0, 2.0], [-1.2, -1.6], [9.0, 0.0]])
    change = 3 * float((answer(rule, x) - answer(rule, turned)).norm())
    assert change == pytest.approx(2 * c)  # no more than the noise on the sum is made for, 2 clip


class UnitRows(Defense[None]):
    """Mean of the rows, each brought to norm 1: a short row moves it as far as a long one."""

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        return torch.nn.functional.normalize(received.values(), dim=1).mean(dim=0), None

    def sensitivity(self, clip: float, n: int) -> float:
        return 2 / n


@pytest.mark.parametrize("clip", [0.01, 0.999])
def test_a_rule_that_makes_short_rows_longer_is_refused_behind_a_short_clip(clip: float) -> None:
    fedavg = registry.load("protocol", "fedavg")
    mean = registry.load("defense", "mean")
    assert "changes by no more than a mean" in str(DPFedAvg(clip=clip).misfit(fedavg, UnitRows()))
    assert DPFedAvg(clip=clip).misfit(fedavg, mean) is None
    assert DPFedAvg(clip=1.0).misfit(fedavg, UnitRows()) is None
    # an adaptive clip may become as short as it likes
    assert DPFedAvg(clip=1.0, adaptive=True).misfit(fedavg, UnitRows()) is not None
    assert DPFedAvg(clip=clip, adaptive=True).misfit(fedavg, mean) is None


def test_floats_beside_bits_and_kept_moments_are_refused() -> None:
    normed = dataclasses.replace(SHARED, network=BatchNormNet((1, 8, 8), ((4,),), 1, 10))
    mean = registry.load("defense", "mean")
    carrying = FedPM(keep_moments=True)
    for mechanism, protocol, shared, reason in (
        (MaskSampling(), FedPM(), normed, "batch norm"),
        (FlipBits(), FedPM(), normed, "floats"),
        (DPSGD(), FedPM(), normed, "batch norm"),
        (MaskSampling(clip=1.0), carrying, SHARED, "carried over rounds"),
    ):
        assert reason in (mechanism.misfit(protocol, mean, shared) or "")
    assert MaskSampling(clip=None).misfit(carrying, mean, SHARED) is None
    assert MaskSampling(clip=1.0).misfit(FedPM(), mean, SHARED) is None


def test_malicious_clients_add_no_noise_unless_they_behave() -> None:
    class Counting(Mechanism):
        def on_updates(self, updates: Any, reference: Any, keys: Any, state: Any) -> Any:
            seen.append(len(updates))
            return updates, state

    for attack, expected in (("none", 6), ("sign-flip", None)):
        seen: list[int] = []
        setup = prepare(PRIVATE.model_copy(update={"malicious": 0.5, "attack": attack}), "cpu")
        plugins = dataclasses.replace(setup.plugins, mechanism=Counting())
        setup = dataclasses.replace(setup, plugins=plugins)
        played = play_round(setup, RunState(plugins.protocol.init(setup.shared)), 0)
        assert played.malicious > 0
        assert seen == [6 - played.malicious if expected is None else expected]


def test_coins_draw_rounds_and_batches_of_different_sizes_and_nobody_twice() -> None:
    setup = prepare(PRIVATE.model_copy(update={"sampling": "poisson"}), "cpu")
    rounds = [setup.sample(step) for step in range(300)]
    sizes = torch.tensor([len(ids) for ids in rounds], dtype=torch.float64)
    assert abs(float(sizes.mean()) - 6) < 0.5  # five standard errors of a mean of 300: 0.59
    assert abs(float(sizes.var()) - 20 * 0.3 * 0.7) < 1.5
    assert all(len(set(ids)) == len(ids) for ids in rounds)
    schedule = Schedule(epochs=500, batch_size=8, coins=True)
    batches = schedule.rows(20, Key(1))
    assert len(batches) == schedule.steps(20) == 1500
    counts = torch.bincount(torch.cat(batches), minlength=20) / 1500
    assert float((counts - 0.4).abs().max()) < 5 * math.sqrt(0.24 / 1500)
    assert len({len(batch) for batch in batches}) > 5
    assert all(len(batch) == 3 for batch in Schedule(2, 8, coins=True).rows(3, Key(0)))


def test_nobody_is_drawn_with_a_larger_probability_than_is_priced() -> None:
    # A draw is a multiple of 2**-24, and 1/131000 is 128.07 of these: 129 of them are below it. In
    # round 74 a client draws 128, and all others more.
    secret = Secret.of(0, "run")
    draws = secret.key("sample", 74).uniform(131_000)
    assert float(draws.min()) * 2**24 == 128
    alone = Scenario(clients=131_000, per_round=1, sampling="poisson", malicious=0.0)
    nobody = MaliciousClients.of(torch.zeros(alone.clients, dtype=torch.bool))
    assert draw(alone, nobody, secret, 74) == []
    # 44000/131001 is 5635052.43 multiples: a sample draws 5635052 in step 0 of this key.
    (drawn, *_) = Schedule(epochs=1, batch_size=44_000, coins=True).rows(131_001, Key(259))
    assert 15197 not in drawn.tolist()
    assert int(Key(259).fold("batches", 0).uniform(131_001)[15197] * 2**24) == 5635052


def test_a_server_that_adds_noise_weighs_all_alike_and_does_not_tell_how_many_came() -> None:
    setup = prepare(PRIVATE, "cpu")
    central = dataclasses.replace(setup.plugins, mechanism=DPFedAvg())
    private = dataclasses.replace(setup, plugins=central)
    received = FloatVectors(torch.zeros(3, 2))
    view = setup.view([0, 1, 2], received, 0)
    assert announced(setup.plugins.mechanism, received, view) == 3
    assert announced(DPFedAvg(), received, view) == PRIVATE.per_round
    weights = setup.population.sizes(range(3)).tolist()
    assert len(set(weights)) > 1
    assert view.weights.tolist() == weights
    assert private.view([0, 1, 2], received, 0).weights.tolist() == [1, 1, 1]


def test_the_bit_of_an_adaptive_clip_is_counted_with_every_message() -> None:
    texts = ("dp-fedavg:z=0.5", "dp-fedavg:z=0.5,adaptive=true")
    small = {"model": "micro", "malicious": 0.0, "rounds": 1}
    plain, adaptive = (
        fedbench.play(PRIVATE.model_copy(update=small | {"mechanism": text}), device="cpu")
        for text in texts
    )
    bits = [record.rounds[0].uplink_bits or 0 for record in (plain, adaptive)]
    assert bits[1] - bits[0] == len(adaptive.rounds[0].clients) == PRIVATE.per_round


@pytest.mark.slow
def test_central_noise_is_added_also_when_nobody_came() -> None:
    few = {"sampling": "poisson", "clients": 2, "per_round": 1, "rounds": 4, "malicious": 0.0}
    scenarios = [
        PRIVATE.model_copy(update=few | {"mechanism": m}) for m in ("none", "dp-fedavg:z=5")
    ]
    plain, noisy = (fedbench.play(scenario, device="cpu") for scenario in scenarios)
    empty = [r.step for r in plain.rounds if not r.clients]
    assert empty == [1, 3]  # of four rounds of two coins, with this seed
    assert all(plain.rounds[step].skipped and noisy.rounds[step].skipped for step in empty)

    for step in empty:
        assert plain.rounds[step].loss == plain.rounds[step - 1].loss
        assert noisy.rounds[step].loss != noisy.rounds[step - 1].loss


@pytest.mark.parametrize("protocol", ["fedavg", "fedpm"])
def test_gradients_of_samples_add_up_to_that_of_the_batch(protocol: str) -> None:
    plugin = in_float64(registry.load("protocol", protocol))
    client = doubled(example_clients(plugin, SHARED, 1))[0]
    x, y = client.x[:4], client.y[:4]
    key = Key(Key(5).tensor())
    caught: list[Gradient] = []

    def watch(grad: Gradient) -> Gradient:
        caught.append(grad)
        return grad

    for engine in (Loop, Stacked):
        executor = engine(plugin, SHARED, Schedule(1, 4))
        executor.train([dataclasses.replace(client, wrap_grad=watch)])
        grad = caught[-1]
        single = grad.each(client.tree, x, y, key)
        whole = {name: g.mean(dim=0) for name, g in single.items()}
        assert_rounded_alike(whole, grad(client.tree, x, y, key))
        padded = grad.each(client.tree, x, torch.where(torch.arange(4) < 3, y, -1), key)
        assert all(float(g[3].abs().max()) == 0 for g in padded.values())
        assert grad.each(client.tree, x[:0], y[:0], key)["fc1"].shape[0] == 0


@pytest.mark.parametrize("protocol", ["fedavg", "fedpm"])
def test_dp_sgd_trains_the_same_in_the_loop_and_stacked(protocol: str) -> None:
    plugin = in_float64(registry.load("protocol", protocol))
    noisy = DPSGD(clip=0.5, z=0.1).wrap_grad
    clients = doubled(example_clients(plugin, SHARED))
    clients = [dataclasses.replace(client, wrap_grad=noisy) for client in clients]
    schedule = Schedule(2, 4, coins=True)
    loop, _ = Loop(plugin, SHARED, schedule).train(clients)
    stacked, _ = Stacked(plugin, SHARED, schedule, 3).train(clients)
    assert_rounded_alike(stacked, loop)


@pytest.mark.parametrize(("mechanism", "coins"), [("none", False), ("dp-sgd", True)])
def test_batches_are_drawn_by_coins_where_the_price_counts_on_them(
    mechanism: str, coins: bool
) -> None:
    scenario = Scenario(model="micro", clients=8, per_round=4, mechanism=mechanism)
    assert prepare(scenario, "cpu").executor.schedule.coins == coins


@pytest.mark.parametrize("attack", ["none", "sign-flip"])
def test_exactly_the_clients_of_an_adversary_that_acts_train_without_dp_sgd(attack: str) -> None:
    fields: dict[str, Any] = {
        "clients": 8,
        "per_round": 8,
        "malicious": 0.25,
        "mechanism": "dp-sgd",
    }
    setup = prepare(Scenario(model="micro", attack=attack, **fields), "cpu", "loop")
    bare = [client.wrap_grad is untouched for client in setup.clients(range(8), [{}], {}, 0)]
    malicious = setup.population.malicious[list(range(8))].tolist()
    assert bare == (malicious if attack == "sign-flip" else [False] * 8)
    assert sum(malicious) == 2
