"""What events cost: which bound wins, who is counted, and what is refused."""

import dataclasses
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr, ndtri

import fedbench
from fedbench.api import DpEvent, Mechanism, Release
from fedbench.core.errors import ConfigError, Incompatible, NoTheorem, PluginError
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.guarantee import NONCOMPLIANT_NOTE, guarantee, priced_as, spend
from fedbench.experiment.guarantee import event as event_of
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Privacy, Record
from fedbench.experiment.scenario import Scenario
from fedbench.privacy import amplification, sampling
from fedbench.privacy.accountants import Ledger, Participation, PrivacyCost, cost_of, price
from fedbench.privacy.conversion import ORDERS, gdp_epsilon, rdp_to_dp
from fedbench.privacy.events import (
    FlippedBits,
    GaussianGradients,
    GaussianSum,
    MaskSample,
    NoisySigns,
    SkellamShare,
)
from fedbench.privacy.mechanisms.dp_fedavg import DPFedAvg
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.privacy.mechanisms.mask_gaussian import MaskGaussian, MaskSampling
from fedbench.privacy.mechanisms.noisy_sign import NoisySign
from fedbench.privacy.mechanisms.randomized_response import FlipBits
from fedbench.privacy.noise_ends import GAUSSIAN_END, IDEAL_NOISE, SKELLAM_END, SURE_SIGN
from fedbench.privacy.planning import PrivacyPlan, calibrated, curve, prices
from fedbench.protocols.secure_sums import _skellam

ONCE = Participation(rounds=1, times=1, clients=1, per_round=1, honest=1)
TWENTY = Participation(rounds=200, times=20, clients=100, per_round=10, honest=10)
COINS = {"sampling": "poisson", "sees": "model"}
MASK = MaskSample(1000, 0.0, 0.2, 0.15)
EVENTS: list[DpEvent] = [
    MASK,
    MaskSample(1000, 0.3, 0.2, None),
    FlippedBits(200, 0.3),
    NoisySigns(1000, 2.0),
    GaussianSum(1.5),
    GaussianGradients(1.0, 0.1, 5),
]


def exposed(**changes: Any) -> Participation:
    return dataclasses.replace(TWENTY, **changes)


@dataclasses.dataclass(frozen=True)
class Overflowing(DpEvent):
    """Event of a plug-in, whose accountant overflows where there is little noise."""

    z: float


@price.register
def _(event: Overflowing, participation: Participation, delta: float) -> Any:
    return math.exp(1 / event.z)


@dataclasses.dataclass(frozen=True)
class Boundless(DpEvent):
    """Event of a plug-in that protects nobody."""


@price.register
def _(event: Boundless, participation: Participation, delta: float) -> PrivacyCost:
    bounds = {"none": math.inf}
    return PrivacyCost(math.inf, "none", bounds, "replace-one", participation.visible, math.inf)


def test_an_accountant_of_a_plug_in_that_errs_is_named() -> None:
    def spent(event: DpEvent) -> PrivacyCost | None:
        ledger = Ledger()
        ledger.add([(0, event)], None)
        return ledger.price(TWENTY, 1e-5)

    who = rf"^accountant of Overflowing \({__name__}\): price "
    with pytest.raises(PluginError, match=who + "raised OverflowError: math range error$"):
        spent(Overflowing(0.001))
    with pytest.raises(PluginError, match=who + r"must return a PrivacyCost, got 2.718"):
        spent(Overflowing(1.0))


def test_the_whole_cube_is_randomized_response_whatever_else_is_known() -> None:
    cost = price(MaskSample(5, 0.5, 0.2, None), ONCE, 1e-4)
    assert cost.winner == "randomized-response"
    assert cost.epsilon == pytest.approx(2.630, abs=5e-4)  # privacy by sampling, d = 5
    # FedPM's own bound: min{Gaussian of (1-2c) sqrt(5), 5 r_a(.2)}, converted, is 6.93
    assert cost.paper == pytest.approx(6.93, abs=0.01)
    assert price(FlippedBits(5, 0.2), ONCE, 1e-4) == price(
        MaskSample(5, 0.0, 0.2, None), ONCE, 1e-4
    )
    ball = price(MaskSample(5, 0.5, 0.2, 0.1), ONCE, 1e-4)
    assert ball.epsilon < cost.epsilon
    assert ball.bounds["randomized-response"] == cost.bounds["randomized-response"]


def test_a_clip_is_priced_at_its_diameter_or_its_radius() -> None:
    replaced = price(MASK, TWENTY, 1e-5)
    zeroed = price(MASK, exposed(adjacency="zero-out"), 1e-5)
    assert (replaced.adjacency, zeroed.adjacency) == ("replace-one", "zero-out")
    double = price(dataclasses.replace(MASK, radius=0.3), exposed(adjacency="zero-out"), 1e-5)
    assert zeroed.epsilon < 0.6 * replaced.epsilon
    assert double.epsilon == pytest.approx(replaced.epsilon, rel=1e-6)
    mu = math.sqrt(20 * amplification.probit_constant(0.0, 0.2)) * 0.3
    # float32 adds sqrt(1000) 2^-23 to the distance: 1e-5 of it
    exact = gdp_epsilon(mu, 1e-5)
    assert exact < replaced.bounds["probit"] < exact * 1.0001


@pytest.mark.edges("0.2-1000000-1000")
@pytest.mark.parametrize("times", [1, 20, 1000])
@pytest.mark.parametrize("d", [5, 1000, 10**6])
@pytest.mark.parametrize("radius", [0.05, 0.2])
def test_the_rdp_of_a_few_orders_is_that_of_all(d: int, radius: float, times: int) -> None:
    masks = amplification.mask_rdp(ORDERS, d, 0.0, 0.2, 2 * radius)
    signs = amplification.sign_rdp(ORDERS, d, 1.0)
    mask = MaskSample(d, 0.0, 0.2, radius)
    sign = NoisySigns(d, 1.0)
    for event, rdp, loss in ((mask, masks, 1.002), (sign, signs, 1.0005)):
        best, _ = rdp_to_dp(ORDERS, times * rdp.epsilon, 1e-5)
        assert best <= price(event, exposed(times=times), 1e-5).bounds["rdp"] <= loss * best


@pytest.mark.edges("GaussianSum", "MaskSample1", "NoisySigns", "FlippedBits")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_the_least_bound_wins_and_more_costs_more(event: DpEvent) -> None:
    views = [TWENTY, exposed(sampling="poisson"), exposed(sees="sum")]
    if isinstance(event, GaussianSum):
        views = [exposed(sees="model"), exposed(sees="model", sampling="poisson")]
    for participation in views:
        cost = price(event, participation, 1e-5)
        assert cost.epsilon == min(cost.bounds.values()) == cost.bounds[cost.winner]
        assert cost.epsilon > 0
        more = price(event, dataclasses.replace(participation, rounds=400, times=40), 1e-5)
        assert more.epsilon > cost.epsilon
        assert price(event, participation, 1e-7).epsilon > cost.epsilon


@pytest.mark.parametrize(
    ("event", "changes", "ideal"),
    [
        (GaussianSum(0.3), {"sees": "model"}, True),  # 2 / 0.3 = 6.7 of 12.4: 5e-9 in a round
        (GaussianSum(0.5), {"sees": "model"}, False),
        (GaussianSum(0.3), COINS, False),  # half as far apart
        (GaussianSum(0.1), COINS, True),
        (GaussianGradients(0.1, 0.1, 5), {}, True),
        (GaussianGradients(0.3, 0.1, 5), {}, False),
        (NoisySigns(5, 0.09), {}, True),  # 11.1 standard deviations from a flip
        (NoisySigns(5, 0.1), {}, False),
        (SkellamShare(10, 10.0, 100.0), {}, False),  # 2 of 9 apart
        (SkellamShare(10, 30.0, 100.0), {}, True),  # 6 of 9
        (SkellamShare(10, 30.0, 100.0), {"sees": "sum"}, False),  # 1.9 of 28
        (MASK, {}, False),
    ],
)
def test_an_epsilon_says_where_noise_of_finitely_many_bits_does_not_reach(
    event: DpEvent, changes: dict[str, Any], ideal: bool
) -> None:
    assert cost_of(event, exposed(**changes), 1e-5).note == (IDEAL_NOISE if ideal else "")


def test_noise_reaches_as_far_as_its_ends_say() -> None:
    assert float(ndtri(2.0**-117)) < -GAUSSIAN_END  # see the tails of `Key.gaussian`
    for variance in (0.5, 3.0, 100.0, 1e4, 2e6):
        table = _skellam(variance / 2)
        assert len(table.limits) - 1 >= SKELLAM_END * math.sqrt(variance)
    # nearly as many flips as are priced, where the last sign is still flipped at times
    assert 2.0**-116 / float(ndtr(-SURE_SIGN)) < 1e-6


@pytest.mark.parametrize("event", EVENTS[:3], ids=["ball", "cube", "bits"])
def test_who_sees_less_learns_no_more(event: DpEvent) -> None:
    seen, summed, hidden = (
        price(event, exposed(sees=sees), 1e-5).epsilon for sees in ("messages", "sum", "hidden-sum")
    )
    assert hidden <= summed < seen
    alone = price(event, exposed(sees="sum", honest=1), 1e-5)
    assert alone.epsilon == pytest.approx(seen, rel=0.05)  # nobody else to hide behind
    assert "sampled-sum" not in price(event, exposed(sees="sum"), 1e-5).bounds
    for sampler in ("poisson", "stratified"):
        unlike = exposed(sees="hidden-sum", sampling=sampler)
        assert "sampled-sum" not in price(event, unlike, 1e-5).bounds


def test_more_steps_under_more_noise_do_not_hide_the_client_with_less_noise() -> None:
    ledger = Ledger()
    ledger.add([(0, GaussianGradients(4.0, 0.1, 10)), (1, GaussianGradients(1.0, 0.1, 5))], None)
    asked = Participation(0, 0, 2, 2, 0)
    dearest = price(GaussianGradients(1.0, 0.1, 5), Participation(1, 1, 2, 2, 2), 1e-5)
    assert ledger.price(asked, 1e-5) == dearest


def test_a_hidden_client_that_is_alone_and_always_drawn_gains_nothing() -> None:
    # nobody to hide among: no bound may be below the exact one. A bit loses at most
    # ln(0.55 / 0.45) = 0.2 nats, 200 bits 40, far more than their epsilon.
    bounds = price(
        FlippedBits(200, 0.45), dataclasses.replace(ONCE, sees="hidden-sum"), 1e-5
    ).bounds
    assert bounds["sampled-sum"] >= bounds["randomized-response"] > 1


def test_central_noise_is_priced_by_sampler_and_adjacency() -> None:
    def cost(**changes: Any) -> PrivacyCost:
        return price(GaussianSum(1.1), exposed(sees="model", **changes), 1e-5)

    coins, fixed = cost(sampling="poisson"), cost()
    assert (coins.adjacency, fixed.adjacency) == ("add-remove", "replace-one")
    assert coins.bounds == sampling.poisson_epsilons(1.1, 0.1, 200, 1e-5)
    assert cost(sampling="poisson", noncompliant=10).bounds == coins.bounds
    orders, rdp = sampling.fixed_size_rdp(0.55, 0.1)  # two vectors of norm C are 2 C apart
    assert fixed.bounds["rdp"] == rdp_to_dp(orders, 200 * rdp, 1e-5)[0]
    assert fixed.epsilon > 2 * coins.epsilon
    assert cost(adjacency="zero-out").epsilon == fixed.epsilon
    # ten malicious clients know when they are drawn: the others are 10 of 90
    orders, rdp = sampling.fixed_size_rdp(0.55, 1 / 9)
    watched = cost(noncompliant=10).bounds["rdp"]
    assert watched == rdp_to_dp(orders, 200 * rdp, 1e-5)[0] > fixed.bounds["rdp"]
    # where not all sets of clients are alike, every round counts
    strata = cost(sampling="stratified")
    assert strata.bounds == {"gaussian": fixed.bounds["gaussian"]}
    assert strata.epsilon > fixed.epsilon
    assert "stratified 10 of 100" in strata.sampler
    # noisy steps are counted over rounds and steps
    local = price(GaussianGradients(1.0, 0.1, 5), TWENTY, 1e-5)
    assert local.bounds == sampling.poisson_epsilons(1.0, 0.1, 100, 1e-5)
    assert "100 steps" in local.sampler


@pytest.mark.parametrize(
    ("event", "changes", "reason"),
    [
        (DpEvent(), {}, "DpEvent has no accountant.*price"),
        (MASK, {"adjacency": "add-remove"}, "number of messages shows who is there"),
        (FlippedBits(5, 0.2), {"adjacency": "add-remove"}, "use replace-one or zero-out"),
        (NoisySigns(5, 1.0), {"adjacency": "add-remove"}, "shows who is there"),
        (GaussianSum(1.0), {}, "noise comes after what is seen there; use --sees model"),
        (GaussianSum(1.0), {"sees": "sum"}, "use --sees model"),
        (GaussianSum(1.0), {"adjacency": "add-remove", "sees": "model"}, "--sampling poisson"),
        (GaussianSum(1.0), COINS | {"adjacency": "replace-one"}, "use add-remove or zero-out"),
        (GaussianSum(1.0, bits=True), COINS | {"adjacency": "zero-out"}, "still sends its bit"),
        (GaussianGradients(1.0, 0.1, 1), {"adjacency": "replace-one"}, "use zero-out"),
        (GaussianGradients(1.0, 0.1, 1), {"adjacency": "add-remove"}, "size, which is public"),
    ],
)
def test_what_has_no_theorem_is_refused(
    event: DpEvent, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(NoTheorem, match=reason):
        price(event, exposed(**changes), 1e-5)


@pytest.mark.slow
def test_the_ledger_charges_the_client_that_took_part_most_often_or_is_dearest() -> None:
    ledger = Ledger()
    asked = Participation(0, 0, 10, 3, 0)
    assert ledger.price(asked, 1e-5) is None
    for ids in ([0, 1, 2], [1, 3, 4], [1, 2]):
        ledger.add([(i, MASK) for i in ids], None)
    assert ledger.local == {MASK: Counter({1: 3, 2: 2, 0: 1, 3: 1, 4: 1})}
    assert (ledger.rounds, ledger.honest) == (3, 2)
    cost = price(MASK, Participation(3, 3, 10, 3, 2), 1e-5)
    assert ledger.price(asked, 1e-5) == cost
    assert "3 of 3 rounds" in cost.sampler
    small, large = GaussianGradients(1.0, 0.4, 3), GaussianGradients(1.0, 0.1, 12)
    often = GaussianGradients(1.0, 0.1, 3)
    ledger = Ledger()
    ledger.add([(0, small), (1, large), (2, often)], None)
    ledger.add([(1, large), (2, often)], None)
    each = [
        price(event, Participation(2, times, 3, 3, 2), 1e-5)
        for event, times in ((small, 1), (large, 2), (often, 2))
    ]
    dearest = max(each, key=lambda cost: cost.epsilon)
    assert ledger.price(Participation(0, 0, 3, 3, 0), 1e-5) == dearest
    assert each[2].epsilon < min(each[0].epsilon, each[1].epsilon)
    for flips in ((0.3, 0.2), (0.2, 0.3)):  # fewer cost more, in whatever order clients came
        ledger = Ledger()
        ledger.add([(i, FlippedBits(5, p)) for i, p in enumerate(flips)], None)
        assert ledger.price(ONCE, 1e-5) == price(FlippedBits(5, 0.2), ONCE, 1e-5)


@pytest.mark.edges("0.5-0.3", "1.0-0.01", "2.0-1.0")
@pytest.mark.parametrize(("z", "rate"), [(0.5, 0.3), (1.0, 0.01), (2.0, 1.0), (30.0, 0.5)])
def test_a_rough_price_is_never_too_small_and_that_of_whole_orders(z: float, rate: float) -> None:
    orders, rdp = sampling.poisson_rdp(z, rate, 7)
    whole = (orders == orders.round()) & (orders <= 64)
    expected, _ = rdp_to_dp(orders[whole], rdp[whole], 1e-5)
    rough = sampling.rough_epsilon(z, rate, 7, 1e-5)
    assert rough == pytest.approx(expected, rel=1e-6)
    assert rough >= sampling.poisson_epsilons(z, rate, 7, 1e-5)["rdp"] * (1 - 1e-9)


SMALL = Scenario(clients=20, per_round=6, rounds=4, epochs=1, eval_every=1, malicious=0.25)


def play(**changes: Any) -> Record:
    return fedbench.play(SMALL.model_copy(update=changes), device="cpu")


def of_rounds(*rounds: list[bool], **changes: Any) -> Privacy:
    """The guarantee after rounds of clients 0, 1, ..., of which these comply."""
    setup = prepare(SMALL.model_copy(update=changes), "cpu")
    ledger = Ledger()
    for complies in rounds or ([True] * 3,):
        spend(setup, ledger, list(range(len(complies))), torch.tensor(complies))
    privacy = guarantee(setup, ledger)
    assert privacy is not None
    return privacy


@pytest.mark.slow
def test_a_record_says_what_its_epsilon_covers_and_that_malicious_clients_protect_nobody() -> None:
    record = play(protocol="fedpm", mechanism="mask-sampling:clip=0.5", delta=1e-4)
    spent = [r.epsilon for r in record.rounds]
    assert all(x is not None for x in spent)
    assert spent == sorted(spent)  # type: ignore[type-var]
    privacy = record.privacy
    assert privacy is not None
    most = max(Counter(i for r in record.rounds for i in r.clients).values())
    event = MaskSample(record.parameters, 0.0, 0.2, 0.5)
    cost = price(event, Participation(4, most, 20, 6, 6), 1e-4)
    assert privacy.epsilon == record.result.epsilon == spent[-1] == cost.epsilon
    assert privacy.bounds[privacy.winner] == privacy.epsilon < (cost.paper or 0)
    assert (privacy.delta, privacy.unit, privacy.adjacency) == (1e-4, "client", "replace-one")
    assert privacy.sampler == f"visible, {most} of 4 rounds"
    assert (privacy.sees, privacy.paper, privacy.note) == ("messages", cost.paper, "")

    # malicious clients protect nobody
    masks = {"protocol": "fedpm", "mechanism": "mask-sampling:clip=0.5"}
    record = play(**masks, sees="sum", attack="sign-flip")
    privacy = record.privacy
    assert privacy is not None
    fewest = min(len(r.clients) - r.malicious for r in record.rounds)
    assert fewest < 6
    assert privacy.sampler.startswith(f"sum of {fewest} honest")
    assert "no guarantee" in privacy.note


@pytest.mark.slow
def test_a_run_with_stratified_cohorts_claims_no_amplification() -> None:
    central = {"mechanism": "dp-fedavg:clip=1.0,z=1.0"}
    random, stratified = (
        play(**central, cohorts=cohorts).privacy for cohorts in ("random", "stratified")
    )
    assert random is not None
    assert stratified is not None
    assert set(random.bounds) == {"rdp", "gaussian"}
    assert stratified.bounds == {"gaussian": random.bounds["gaussian"]}
    assert "stratified" in stratified.sampler


def test_a_run_claims_nothing_without_a_mechanism_nor_without_a_theorem() -> None:
    record = play(rounds=1)
    assert record.privacy is None
    assert record.result.epsilon is None
    assert record.rounds[0].epsilon is None
    masks = {"protocol": "fedpm", "mechanism": "mask-sampling"}
    with pytest.raises(NoTheorem, match="shows who is there"):
        prepare(SMALL.model_copy(update=masks | {"adjacency": "add-remove"}), "cpu")
    with pytest.raises(Incompatible, match="batch norm"):
        prepare(SMALL.model_copy(update=masks | {"model": "cnn4"}), "cpu")
    with pytest.raises(Incompatible, match="reads the messages of all, but --sees sum hides them"):
        load_plugins(Scenario(protocol="fedpm", attack="dyn-opt", sees="sum"))


PLAN = PrivacyPlan(rounds=200, clients=100, per_round=10, dim=1000)


def test_a_plan_takes_the_mean_number_of_rounds_unless_told() -> None:
    assert PLAN.times == 20
    assert dataclasses.replace(PLAN, rounds=201).times == 21
    assert dataclasses.replace(PLAN, participations=7).times == 7
    half = PLAN.after(100)
    assert (half.rounds, half.times) == (100, 10)
    assert PLAN.after(1).times == 1
    assert dataclasses.replace(PLAN, samples=100, batch_size=32, epochs=2).release.steps == 8


def test_a_plan_of_a_sum_takes_the_fewest_honest_clients_of_99_runs_in_a_hundred() -> None:
    def fewest(**fields: Any) -> int:
        plan = PrivacyPlan(**{"rounds": 1, "clients": 1000, "per_round": 2, **fields})
        assert plan.participation("sum").honest == plan.fewest
        return plan.fewest

    assert fewest() == 2
    # Of four malicious clients one or both of a round's two is drawn with chance 0.0080.
    assert fewest(malicious=0.004) == 2
    assert fewest(malicious=0.004, rounds=2) == 1  # 0.0159 in two rounds
    assert fewest(malicious=0.5, rounds=1000) == 1  # and never none
    assert fewest(malicious=0.25, per_round=10, sampling="stratified") == 7
    # 15 % of ten clients are two, 1.2 of a round's six on average: at times both are in it.
    assert fewest(malicious=0.15, clients=10, per_round=6, sampling="stratified") == 4
    # Heads among 1000 coins of 1/10 are fewer than 79 with chance 0.0098, than 80 with 0.0131.
    assert fewest(per_round=100, sampling="poisson") == 79


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["fixed", "poisson"])
def test_a_plan_of_a_sum_costs_no_less_than_nearly_all_runs(sampling: Any) -> None:
    plan = PrivacyPlan(rounds=50, clients=60, per_round=12, malicious=0.25, sampling=sampling)
    rng = np.random.default_rng(0)
    if sampling == "fixed":
        rows = rng.hypergeometric(45, 15, 12, (4000, 50))
    else:
        rows = rng.binomial(45, 0.2, (4000, 50))
    least = np.maximum(rows.min(axis=1), 1)
    assert (least < plan.fewest).mean() < 0.01 + 4 * (0.01 / 4000) ** 0.5
    assert (least < plan.fewest + 1).mean() > 0.01  # one more would be too many


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": 0.0}, r"--delta must be in \[1e-100, 1\), got 0.0"),
        ({"delta": 1.0}, r"--delta must be in \[1e-100, 1\)"),
        ({"rounds": 0}, "--rounds must be >= 1, got 0"),
        ({"per_round": 101}, "a sampling rate above 1"),
        ({"participations": 201}, "in 1 .. --rounds = 200"),
        ({"dim": 0}, "--dim must be >= 1"),
        ({"malicious": 1.0}, "--malicious"),
    ],
)
def test_plans_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(PLAN, **changes)


def test_a_target_out_of_reach_is_refused() -> None:
    for target, message in ((0.0, "> 0"), (1e-9, "cannot be had with p up to")):
        with pytest.raises(ConfigError, match=message):
            calibrated(FlipBits(), PLAN, "messages", target)


@pytest.mark.slow
def test_prices_of_a_plan_are_those_of_its_views_along_a_curve() -> None:
    cost = prices(MaskSampling(clip=0.15), PLAN)
    assert list(cost) == ["messages", "sum", "hidden-sum"]
    assert cost["messages"] == price(MASK, TWENTY, 1e-5)
    assert list(prices(DPSGD(), PLAN)) == ["messages"]  # nobody's eyes matter
    assert list(prices(DPFedAvg(), PLAN)) == ["model"]
    refused = prices(MaskSampling(), dataclasses.replace(PLAN, adjacency="add-remove"))
    assert isinstance(refused["messages"], NoTheorem)
    points = curve(NoisySign(), PLAN, "messages", points=6)
    assert points[0][0] == 1
    assert points[-1] == (200, prices(NoisySign(), PLAN)["messages"])
    epsilons = [cost.epsilon for _, cost in points]
    assert epsilons == sorted(epsilons)


@pytest.mark.edges("FlipBits-messages-50.0", "NoisySign-messages-2.0", "DPFedAvg-model-8.0")
@pytest.mark.parametrize(
    ("plugin", "sees", "target"),
    [
        (MaskSampling(), "sum", 4.0),
        (MaskGaussian(clip=1.0), "messages", 5.0),
        (FlipBits(), "messages", 50.0),
        (NoisySign(), "messages", 2.0),
        (DPFedAvg(), "model", 8.0),
    ],
    ids=lambda x: type(x).__name__ if dataclasses.is_dataclass(x) else str(x),
)
def test_calibrated_noise_hardly_exceeds_its_promise(plugin: Any, sees: Any, target: float) -> None:
    plan = dataclasses.replace(PLAN, dim=300)
    chosen = calibrated(plugin, plan, sees, target)
    assert 0.99 * target < plan.price(chosen, sees).epsilon <= target


@pytest.mark.parametrize(
    ("protocol", "mechanism", "bounds"),
    [
        ("fedpm", "mask-sampling:clip=0.5", {"secure-sum", "sampled-sum"}),
        ("signsgd", "randomized-response", {"secure-sum", "sampled-sum"}),
        ("stochastic-sign", "randomized-response", {"secure-sum", "sampled-sum"}),
        ("stochastic-sign:beta=0.9", "randomized-response", {"secure-sum"}),
    ],
)
def test_only_a_sum_of_symbols_hides_clients_and_only_of_those_that_forget_their_rounds(
    protocol: str, mechanism: str, bounds: set[str]
) -> None:
    privacy = of_rounds(protocol=protocol, mechanism=mechanism, sees="hidden-sum")
    assert {name for name in privacy.bounds if name.endswith("-sum")} == bounds


def test_malicious_clients_may_all_be_drawn_at_once() -> None:
    participation = exposed(sees="hidden-sum", honest=8, noncompliant=7)
    assert participation.surely == 3
    assert exposed(noncompliant=40).surely == 1
    safe = price(MASK, exposed(sees="hidden-sum", honest=8), 1e-5).bounds["sampled-sum"]
    assert price(MASK, participation, 1e-5).bounds["sampled-sum"] > 1.5 * safe


@pytest.mark.parametrize("protocol", ["skellam", "pbm"])
def test_shares_of_noise_are_worth_more_in_a_sum(protocol: str) -> None:
    rounds = [True] * 4, [True, True, True, False]
    alone = of_rounds(*rounds, protocol=protocol, attack="sign-flip")
    together = of_rounds(*rounds, protocol=protocol, attack="sign-flip", sees="sum")
    assert (together.epsilon or math.inf) < (alone.epsilon or math.inf)
    assert alone.sampler == "single messages, visible, 2 of 2 rounds"
    assert together.sampler == "sum of 3 honest, visible, 2 of 2 rounds"


def test_epsilon_of_extreme_parameters_is_a_number() -> None:
    masks = MaskSample(10, 0.0, 0.4999, 0.01), MaskSample(10, 0.0, 0.49999, None)
    bits = FlippedBits(10, 0.49999), MaskSample(5, 1e5, 1e-6, 0.1)
    for event in (NoisySigns(10, 0.02), *bits, *masks):
        assert 0 <= price(event, exposed(sees="sum"), 1e-5).epsilon < math.inf


def test_every_step_of_a_client_in_a_round_is_priced() -> None:
    scenario = Scenario(
        model="micro", clients=8, per_round=4, mechanism="dp-sgd", epochs=3, batch_size=8
    )
    released = event_of(prepare(scenario, "cpu"), 33)
    assert isinstance(released, GaussianGradients)
    assert (released.steps, released.rate) == (3 * 5, 8 / 33)


BRIEF: dict[str, Any] = {"model": "micro", "clients": 8, "per_round": 4, "malicious": 0.0}


def test_a_client_is_charged_for_the_samples_steps_and_symbols_that_it_has() -> None:
    setup = prepare(Scenario(**BRIEF, mechanism="dp-sgd", epochs=3, batch_size=8), "cpu")
    sizes = setup.population.sizes([2, 0, 1]).int().tolist()
    assert len(set(sizes)) == 3
    ledger = Ledger()
    spend(setup, ledger, [2, 0, 1], torch.tensor([True, True, False]))
    charged = {
        i: GaussianGradients(1.0, 8 / n, 3 * math.ceil(n / 8))
        for i, n in zip([2, 0], sizes, strict=False)
    }
    assert ledger.local == {event: {i: 1} for i, event in charged.items()}
    assert (ledger.rounds, ledger.honest, ledger.central) == (1, 2, {})
    # decomfl takes one step, whatever the batches; hidenseek sends half of the weights
    one_step = prepare(Scenario(**BRIEF, protocol="decomfl", mechanism="dp-sgd", epochs=3), "cpu")
    released = event_of(one_step, 300)
    assert isinstance(released, GaussianGradients)
    assert released.steps == 1
    flips = Scenario(**BRIEF, protocol="hidenseek", mechanism="randomized-response")
    half = prepare(flips, "cpu")
    assert event_of(half, 300) == FlippedBits(half.shared.weights.d // 2, 0.25)


def test_a_mechanism_is_told_the_sizes_of_the_release_that_it_prices() -> None:
    releases = []

    class Telling(Mechanism):
        def event(self, release: Release) -> DpEvent | None:
            releases.append(release)
            return None

    setup = prepare(Scenario(**BRIEF, epochs=3, batch_size=8), "cpu")
    plugins = dataclasses.replace(setup.plugins, mechanism=Telling())
    assert event_of(dataclasses.replace(setup, plugins=plugins), 33) is None
    d = setup.shared.layout.d
    assert releases == [Release(d=d, size=33, batch_size=8, steps=3 * 5, clients=8, per_round=4)]


def test_noise_of_the_server_is_charged_to_the_round_and_to_no_client() -> None:
    setup = prepare(Scenario(**BRIEF, mechanism="dp-fedavg:z=2"), "cpu")
    ledger = Ledger()
    spend(setup, ledger, [0, 1], torch.ones(2, dtype=torch.bool))
    assert (ledger.local, ledger.central, ledger.rounds) == ({}, {GaussianSum(2.0): 1}, 1)
    # A round has 4 clients on average, so that the noise on its bits is 4 / 20 of one.
    adaptive = "dp-fedavg:z=0.39,adaptive=true"
    assert event_of(prepare(Scenario(**BRIEF, mechanism=adaptive), "cpu"), 9) == GaussianSum(
        0.39, bits=True
    )
    with pytest.raises(ConfigError, match=r"DPFedAvg.z must be < 0.4, twice the noise on the bits"):
        prepare(Scenario(**BRIEF, mechanism="dp-fedavg:z=0.41,adaptive=true"), "cpu")


def test_a_guarantee_says_what_was_asked_what_was_priced_and_both_notes() -> None:
    fields = BRIEF | {"malicious": 1 / 8, "attack": "sign-flip", "delta": 1e-4}
    setup = prepare(Scenario(**fields, mechanism="dp-fedavg:z=0.001"), "cpu")
    assert setup.noncompliant_clients == 1
    ledger = Ledger()
    spend(setup, ledger, [0, 1], torch.ones(2, dtype=torch.bool))
    privacy = guarantee(setup, ledger)
    assert privacy is not None
    assert list(privacy.bounds) == ["rdp", "gaussian"]
    assert privacy.winner == "gaussian"
    assert privacy.epsilon == privacy.bounds["gaussian"] == gdp_epsilon(2 / 0.001, 1e-4)
    assert privacy.note == f"{IDEAL_NOISE}; {NONCOMPLIANT_NOTE}"
    assert (privacy.delta, privacy.unit, privacy.sees) == (1e-4, "client", "model")
    signs = {"protocol": "signsgd", "mechanism": "noisy-sign", "sees": "model"}
    asked = of_rounds(**signs, model="micro", malicious=0.0, adjacency="zero-out")
    assert (asked.sees, asked.adjacency, asked.note) == ("model", "zero-out", "")
    assert asked.paper == asked.bounds["gaussian"]


def test_only_the_price_of_a_whole_run_waits_for_the_slow_accountants() -> None:
    setup = prepare(Scenario(**BRIEF, mechanism="dp-sgd:z=4", epochs=1), "cpu")
    ledger = Ledger()
    spend(setup, ledger, [0], torch.ones(1, dtype=torch.bool))
    brief = guarantee(setup, ledger, slow=False)
    whole = guarantee(setup, ledger)
    assert brief is not None
    assert whole is not None
    assert (set(brief.bounds), set(whole.bounds)) == ({"rdp"}, {"rdp", "prv"})
    assert (whole.unit, whole.adjacency) == ("example", "zero-out")


def test_stratified_cohorts_are_priced_without_amplification() -> None:
    central = {"model": "micro", "mechanism": "dp-fedavg:z=2", "malicious": 0.0}
    random, stratified = (
        of_rounds(**central, cohorts=cohorts) for cohorts in ("random", "stratified")
    )
    assert stratified.bounds == {"gaussian": random.bounds["gaussian"]}


def test_an_epsilon_that_is_infinite_is_none_in_a_record() -> None:
    setup = prepare(Scenario(**BRIEF), "cpu")
    ledger = Ledger()
    ledger.add([(0, Boundless())], None)
    privacy = guarantee(setup, ledger)
    assert privacy is not None
    assert (privacy.epsilon, privacy.bounds, privacy.paper) == (None, {"none": None}, None)


@pytest.mark.parametrize("sees", ["messages", "model", "sum"])
def test_a_model_without_central_noise_is_priced_as_the_messages(sees: Any) -> None:
    scenario = Scenario(
        model="micro", clients=8, per_round=4, protocol="signsgd", mechanism="noisy-sign", sees=sees
    )
    setup = prepare(scenario, "cpu")
    assert priced_as(setup) == ("messages" if sees == "model" else sees)


def test_clients_of_the_adversary_hide_nobody() -> None:
    # It knows when its own are drawn: the others are drawn from 8 - 4, not from 8.
    spent = []
    for attack in ("none", "sign-flip"):
        scenario = Scenario(
            model="micro",
            clients=8,
            per_round=2,
            malicious=0.5,
            attack=attack,
            mechanism="dp-fedavg:z=2,adaptive=false",
        )
        setup = prepare(scenario, "cpu")
        ledger = Ledger()
        spend(setup, ledger, [0, 1], torch.ones(2, dtype=torch.bool))
        privacy = guarantee(setup, ledger, slow=False)
        assert privacy is not None
        spent.append(privacy.epsilon or math.inf)
    assert spent[0] < spent[1] < math.inf
