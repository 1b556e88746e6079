"""Mechanisms do to the data what their events say."""

import dataclasses
import math
from typing import Any

import pytest
import torch

import fedbench
from fedbench.api import Defense, Gradient, Mechanism, Release, ServerView
from fedbench.core import registry
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.models.models import BatchNormNet
from fedbench.models.network import Shared
from fedbench.payload import BinaryMasks, FloatVectors, NoiseMasks, Payload, SignBits
from fedbench.privacy.events import (
    FlippedBits,
    GaussianGradients,
    GaussianSum,
    MaskSample,
    NoisySigns,
)
from fedbench.privacy.mechanisms.clipping import clipped
from fedbench.privacy.mechanisms.dp_fedavg import ClipState, DPFedAvg
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.privacy.mechanisms.mask_gaussian import MaskGaussian, MaskSampling
from fedbench.privacy.mechanisms.noisy_sign import NoisySign
from fedbench.privacy.mechanisms.randomized_response import FlipBits
from fedbench.protocols.fedpm import FedPM
from fedbench.testing import NETWORK

RELEASE = Release(d=7, size=40, batch_size=8, steps=10, clients=50, per_round=10)
SHARED = Shared(NETWORK, 3, torch.device("cpu"))
MASKS = [MaskGaussian(sigma=0.3, c=0.1, clip=0.5), MaskSampling(c=0.1, clip=0.5)]


def keys(n: int, seed: int = 0) -> list[Key]:
    return [Key(seed).fold(i) for i in range(n)]


def mean() -> Defense[Any]:
    rule: Defense[Any] = registry.load("defense", "mean")
    return rule


def view(n: int, expected: int) -> ServerView:
    broadcast = FloatVectors(torch.zeros(1, 1))
    return ServerView(torch.ones(n, dtype=torch.float64), broadcast, 0, Key(0), expected)


def test_every_mechanism_says_what_happens_and_none_says_nothing() -> None:
    events = {
        name: registry.load("mechanism", name).event(RELEASE)
        for name in registry.names("mechanism")
    }
    assert events == {
        "none": None,
        "mask-gaussian": MaskSample(7, 0.2, 0.2, None),
        "mask-sampling": MaskSample(7, 0.0, 0.2, None),
        "randomized-response": FlippedBits(7, 0.25),
        "noisy-sign": NoisySigns(7, 1.0),
        "dp-fedavg": GaussianSum(1.0, bits=False),
        "dp-sgd": GaussianGradients(1.0, 0.2, 10),
    }
    clipped = registry.load("mechanism", "mask-sampling:c=0.1,clip=3").event(RELEASE)
    assert clipped == MaskSample(7, 0.0, 0.1, 3.0)


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
        assert float(norms.max()) <= radius
        assert float(norms.max()) > 0.99999 * radius


@pytest.mark.parametrize("mechanism", MASKS, ids=lambda m: type(m).__name__)
def test_probabilities_stay_in_the_cube_and_without_noise_in_the_ball(mechanism: Any) -> None:
    theta = Key(2).uniform(6, 50)
    reference = torch.full_like(theta, 0.05)  # outside the cube: it counts as clipped to 0.1
    theta[1] = math.nan
    out, _ = mechanism.on_updates(theta, reference, keys(6), None)
    assert float(out.min()) >= 0.1 - 1e-7
    assert float(out.max()) <= 0.9 + 1e-7
    still = MaskGaussian(sigma=0.0, c=0.1, clip=0.5) if mechanism is MASKS[0] else mechanism
    out, _ = still.on_updates(theta, reference, keys(6), None)
    assert float((out - 0.1).norm(dim=1).max()) <= 0.5 + 1e-6
    torch.testing.assert_close(out[1], torch.full((50,), 0.1))  # who says NaN learned nothing


def test_mask_gaussian_releases_bits_with_the_marginal_that_is_priced() -> None:
    from fedbench.privacy.amplification import marginal

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
    from fedbench.privacy.amplification import marginal

    mechanism = MaskGaussian(sigma=0.5, c=0.2, debias=True)
    theta = torch.tensor([0.2, 0.3, 0.5, 0.8])
    shares = torch.from_numpy(marginal(theta.numpy(), 0.5, 0.2)).float()
    received = BinaryMasks(torch.zeros(3, 4, dtype=torch.bool), torch.zeros(3, 0))
    out, _ = mechanism.on_aggregate(shares, received, view(3, 3), Key(0), None)
    torch.testing.assert_close(out, theta, atol=1e-4, rtol=0)
    beyond = torch.tensor([0.0, 0.0, 1.0, 1.0])  # no theta has these: the ends of the cube
    out, _ = mechanism.on_aggregate(beyond, received, view(3, 3), Key(0), None)
    torch.testing.assert_close(out, torch.tensor([0.2, 0.2, 0.8, 0.8]))
    assert mechanism.on_aggregate(shares, received, view(3, 3), Key(0), None)[0] is not shares
    raw = dataclasses.replace(mechanism, debias=False)
    assert raw.on_aggregate(shares, received, view(3, 3), Key(0), None)[0] is shares


def bit_payloads() -> list[Payload]:
    bits, rest = Key(3).uniform(2, 60_000) > 0.3, torch.zeros(2, 0)
    return [
        BinaryMasks(bits, rest),
        BinaryMasks(bits, rest, signed=True),
        SignBits(bits),
        NoiseMasks(bits, torch.tensor([[1], [2]]), rest, "bernoulli", 0.1, signed=True),
    ]


@pytest.mark.parametrize("payload", bit_payloads(), ids=lambda p: type(p).__name__)
def test_flipping_flips_that_share_and_debiasing_takes_it_back(payload: Payload) -> None:
    mechanism = FlipBits(p=0.2)
    flipped = mechanism.on_payload(payload, keys(2))
    name = "positive" if isinstance(payload, SignBits) else "mask"
    before, after = getattr(payload, name), getattr(flipped, name)
    shares = (before ^ after).float().mean(dim=1)
    assert float((shares - 0.2).abs().max()) < 5 * math.sqrt(0.16 / 60_000)
    assert not torch.equal((before ^ after)[0], (before ^ after)[1])

    values, raw = flipped.values().mean(dim=0), payload.values().mean(dim=0)
    out, _ = mechanism.on_aggregate(values, flipped, view(2, 2), Key(0), None)
    signs = payload.noises()[0].sign() if isinstance(payload, NoiseMasks) else torch.ones(())
    error = float(((out - raw) * signs).mean()) / float(raw.abs().max())
    assert abs(error) < 0.02
    shrunk = float(((values - raw) * signs).mean()) / float(raw.abs().max())
    assert abs(shrunk) > 0.05


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


def test_noisy_sign_adds_noise_of_the_clip_and_not_of_the_update() -> None:
    mechanism = NoisySign(clip=2.0, z=0.5)
    x = torch.zeros(1, 50_000)
    x[0, :4] = 50.0  # norm 100: clipped to 1 each
    out, _ = mechanism.on_updates(x, torch.zeros_like(x), keys(1), None)
    assert abs(float(out[0, 4:].std()) - 1.0) < 0.02
    assert float(out[0].max()) < 8


def test_dp_fedavg_divides_by_the_expected_number_and_adds_z_times_clip() -> None:
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


def test_adaptive_clipping_moves_towards_the_quantile_and_pays_for_the_bits() -> None:
    mechanism = DPFedAvg(clip=1.0, z=1.0, adaptive=True, bit_noise=0.6)
    # (1 - 1/1.44)^(-1/2) = 1.8091
    assert mechanism.update_z(100) == pytest.approx(1.8091, abs=1e-4)
    usual = dataclasses.replace(mechanism, bit_noise=None)
    assert usual.update_z(100) == pytest.approx(1.00504, abs=1e-5)
    assert mechanism.message_bits() == 1
    assert DPFedAvg().message_bits() == 0
    received = FloatVectors(torch.zeros(100, 1))
    norms = []
    for below in (100, 50, 0):
        _, state = mechanism.on_aggregate(
            torch.zeros(1), received, view(100, 100), Key(9), ClipState(1.0, below)
        )
        norms.append(state.norm)
    # the noise on the share is .006: exp(-.2 (1 - .5)), 1, exp(.1)
    assert norms == pytest.approx([0.9048, 1.0, 1.1052], abs=0.01)
    with pytest.raises(ConfigError, match="twice the noise on the bits"):
        DPFedAvg(z=1.5, adaptive=True).event(RELEASE)


def gradients(rows: list[list[float]]) -> Gradient:
    table = torch.tensor(rows)

    def each(tree: Any, x: Any, y: Any, key: Any) -> Any:
        return {"a": table[:, :1], "b": table[:, 1:].reshape(len(table), 1, -1)}

    def batch(tree: Any, x: Any, y: Any, key: Any) -> Any:
        raise AssertionError("a batch's gradient mixes its samples")

    return Gradient(batch, each, 4)


def test_dp_sgd_clips_every_sample_over_all_layers_and_divides_by_the_batch() -> None:
    grad = DPSGD(clip=1.0, z=1e-9).wrap_grad(
        gradients([[3.0, 4.0, 0.0], [0.0, 0.3, 0.4], [math.inf, 1.0, 0.0]])
    )
    out = grad({}, torch.zeros(3), torch.zeros(3), Key(0))
    torch.testing.assert_close(out["a"], torch.tensor([0.6 / 4]), atol=1e-6, rtol=0)
    torch.testing.assert_close(out["b"], torch.tensor([[1.1 / 4, 0.4 / 4]]), atol=1e-6, rtol=0)


def test_dp_sgd_adds_noise_to_the_sum_also_of_no_sample() -> None:
    wide = torch.zeros(0, 40_000)
    grad = DPSGD(clip=2.0, z=3.0).wrap_grad(
        Gradient(lambda *_: {}, lambda *_: {"a": wide, "b": wide}, 4)
    )
    out = grad({}, torch.zeros(0), torch.zeros(0), Key(0))
    assert abs(float(out["a"].std()) - 1.5) < 0.03
    assert abs(float((out["a"] * out["b"]).mean())) < 0.06  # a layer's noise is its own


def test_gaussian_noise_for_privacy_has_tails_the_right_variance_and_finite_ends() -> None:
    x = Key(11).gaussian(400_000)
    assert x.dtype == torch.float64
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.square().mean()) - 1) < 0.01
    assert float(x.abs().max()) > 4.4  # where the table of `Key.normal` ends
    assert bool(torch.isfinite(x).all())
    tensor_key = Key(Key(11).tensor())
    torch.testing.assert_close(tensor_key.gaussian(400_000), x, rtol=1e-12, atol=0)

    class Ends(Key):
        def bits(self, count: int, device: torch.device | str = "cpu") -> torch.Tensor:
            return torch.tensor([0, -1])

    # with 53 bits the largest would round to 1, whose quantile is infinite
    assert Ends(0).gaussian(2).tolist() == pytest.approx([-8.2095, 8.2095], abs=1e-3)


@pytest.mark.parametrize(
    ("mechanism", "protocol", "reason"),
    [
        ("mask-gaussian", "fedavg", "sends a Bernoulli sample"),
        ("mask-sampling", "topk-mask", "sends a Bernoulli sample"),
        ("randomized-response", "fsl", "sends bits, got Rankings"),
        ("randomized-response", "ef-signsgd", "sends bits, got ScaledSigns"),
        ("randomized-response:form=affine", "fedmask", "samples probabilities"),
        ("noisy-sign", "stochastic-sign", "signs of the update"),
        ("dp-fedavg", "qsgd", "travel as floats, got Levels"),
        ("dp-fedavg", "fedpm", "travel as floats"),
        ("dp-sgd", "skellam", "adds noise of its own; use it with --mechanism none"),
    ],
)
def test_a_mechanism_refuses_what_is_not_proved(mechanism: str, protocol: str, reason: str) -> None:
    with pytest.raises(Incompatible, match=reason):
        load_plugins(Scenario(protocol=protocol, mechanism=mechanism))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"protocol": "fedavg", "mechanism": "dp-fedavg", "defense": "median"}, "sensitivity"),
        ({"protocol": "fedpm", "defense": "median", "sees": "sum"}, "reads single messages"),
    ],
)
def test_noise_or_sums_with_a_robust_rule_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(Incompatible, match=reason):
        load_plugins(Scenario(**changes))


def test_floats_beside_bits_and_kept_moments_are_refused() -> None:
    normed = dataclasses.replace(SHARED, network=BatchNormNet((1, 8, 8), ((4,),), 1, 10))
    assert "batch norm" in (MaskSampling().misfit(FedPM(), mean(), normed) or "")
    assert "floats" in (FlipBits().misfit(FedPM(), mean(), normed) or "")
    assert "batch norm" in (DPSGD().misfit(FedPM(), mean(), normed) or "")
    carrying = FedPM(keep_moments=True)
    assert "carried over rounds" in (MaskSampling(clip=1.0).misfit(carrying, mean(), SHARED) or "")
    assert MaskSampling(clip=None).misfit(carrying, mean(), SHARED) is None
    assert MaskSampling(clip=1.0).misfit(FedPM(), mean(), SHARED) is None


def test_malicious_clients_add_no_noise_unless_they_behave() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Zeros(Mechanism):
        def on_updates(self, updates: Any, reference: Any, keys: Any, state: Any) -> Any:
            seen.append(len(updates))
            return torch.zeros_like(updates), state

    from fedbench.experiment.state import RunState
    from fedbench.run import play_round

    for attack, expected in (("none", 6), ("sign-flip", None)):
        seen: list[int] = []
        small = Scenario(clients=20, per_round=6, rounds=1, epochs=1, malicious=0.5, attack=attack)
        setup = prepare(small, "cpu")
        plugins = dataclasses.replace(setup.plugins, mechanism=Zeros())
        setup = dataclasses.replace(setup, plugins=plugins)
        played = play_round(setup, RunState(plugins.protocol.init(setup.shared)), 0)
        assert played.malicious > 0
        assert seen == [6 - played.malicious if expected is None else expected]


PRIVATE = Scenario(clients=20, per_round=6, rounds=2, epochs=1, eval_every=1)


def test_coins_draw_rounds_of_different_sizes_and_nobody_is_drawn_twice() -> None:
    setup = prepare(PRIVATE.model_copy(update={"sampling": "poisson"}), "cpu")
    rounds = [setup.sample(step) for step in range(300)]
    sizes = torch.tensor([len(ids) for ids in rounds], dtype=torch.float64)
    assert abs(float(sizes.mean()) - 6) < 0.5  # five standard errors of a mean of 300: 0.59
    assert abs(float(sizes.var()) - 20 * 0.3 * 0.7) < 1.5
    assert all(len(set(ids)) == len(ids) for ids in rounds)


def test_a_server_that_adds_noise_weighs_all_alike_and_does_not_tell_how_many_came() -> None:
    setup = prepare(PRIVATE, "cpu")
    central = dataclasses.replace(setup.plugins, mechanism=DPFedAvg())
    private = dataclasses.replace(setup, plugins=central)
    received = FloatVectors(torch.zeros(3, 2))
    assert setup.announced(received) == 3
    assert private.announced(received) == PRIVATE.per_round
    weights = setup.population.sizes[:3].tolist()
    assert len(set(weights)) > 1
    assert setup.view([0, 1, 2], received, 0).weights.tolist() == weights
    assert private.view([0, 1, 2], received, 0).weights.tolist() == [1, 1, 1]


@pytest.mark.slow
def test_central_noise_is_added_also_when_nobody_came() -> None:
    scenario = PRIVATE.model_copy(
        update={
            "sampling": "poisson",
            "clients": 2,
            "per_round": 1,
            "rounds": 4,
            "malicious": 0.0,
            "seed": 0,
        }
    )
    private = scenario.model_copy(update={"mechanism": "dp-fedavg:z=5"})
    plain, noisy = (fedbench.play(variant, device="cpu") for variant in (scenario, private))
    empty = [r.step for r in plain.rounds if not r.clients]
    assert empty == [1, 3]  # of four rounds of two coins, with this seed
    assert all(plain.rounds[step].skipped and noisy.rounds[step].skipped for step in empty)

    def moved(record: Any, step: int) -> bool:
        before = record.rounds[step - 1].loss if step else None
        return bool(record.rounds[step].loss != before)

    assert not any(moved(plain, step) for step in empty if step)
    assert all(moved(noisy, step) for step in empty if step)


@pytest.mark.parametrize("protocol", ["fedavg", "fedpm"])
def test_gradients_of_samples_add_up_to_that_of_the_batch(protocol: str) -> None:
    from fedbench.executors.training import Loop, Schedule
    from fedbench.executors.vmap import Stacked
    from fedbench.testing import assert_rounded_alike, doubled, example_clients, in_float64

    plugin = in_float64(registry.load("protocol", protocol))
    client = doubled(example_clients(plugin, SHARED, 1))[0]
    x, y = client.x[:4], client.y[:4]
    caught: list[Any] = []

    def watch(grad: Gradient) -> Any:
        caught[:] = [grad]
        return grad

    for engine in (Loop, Stacked):
        executor = engine(plugin, SHARED, Schedule(1, 4))
        executor.train([dataclasses.replace(client, wrap_grad=watch)])
        key = Key(Key(5).tensor())
        whole = caught[0](client.tree, x, y, key)
        single = caught[0].each(client.tree, x, y, key)
        assert_rounded_alike({name: g.mean(dim=0) for name, g in single.items()}, whole)
        padded = torch.where(torch.arange(4) < 3, y, -1)
        single = caught[0].each(client.tree, x, padded, key)
        assert all(float(g[3].abs().max()) == 0 for g in single.values())
        assert caught[0].each(client.tree, x[:0], y[:0], key)["fc1"].shape[0] == 0


@pytest.mark.parametrize("protocol", ["fedavg", "fedpm"])
def test_dp_sgd_trains_the_same_in_the_loop_and_stacked(protocol: str) -> None:
    from fedbench.executors.training import Loop, Schedule
    from fedbench.executors.vmap import Stacked
    from fedbench.testing import assert_rounded_alike, doubled, example_clients, in_float64

    plugin = in_float64(registry.load("protocol", protocol))
    private = DPSGD(clip=0.5, z=0.1).wrap_grad
    clients = [
        dataclasses.replace(c, wrap_grad=private) for c in doubled(example_clients(plugin, SHARED))
    ]
    schedule = Schedule(2, 4, coins=True)
    loop, _ = Loop(plugin, SHARED, schedule).train(clients)
    stacked, _ = Stacked(plugin, SHARED, schedule, 3).train(clients)
    assert_rounded_alike(stacked, loop)


def test_batches_of_coins_hold_every_sample_as_often_as_the_rate_says() -> None:
    from fedbench.executors.training import Schedule

    schedule = Schedule(epochs=500, batch_size=8, coins=True)
    batches = schedule.rows(20, Key(1))
    assert len(batches) == schedule.steps(20) == 1500
    counts = torch.bincount(torch.cat(batches), minlength=20) / 1500
    assert float((counts - 0.4).abs().max()) < 5 * math.sqrt(0.24 / 1500)
    assert len({len(batch) for batch in batches}) > 5
    assert all(len(batch) == 3 for batch in Schedule(2, 8, coins=True).rows(3, Key(0)))
