"""Audits by numbers alone: closed forms, coverage, what the papers' formulas say by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import beta, binom, norm

from fedbench.audits import laws as exact
from fedbench.audits.bounds import (
    AuditFinding,
    Guesses,
    _tail,
    best_guesses,
    clopper_pearson,
    lower_bound,
)
from fedbench.audits.laws import Bernoullis, Gaussians, from_all, from_final
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.privacy.conversion import gdp_delta, gdp_epsilon
from fedbench.privacy.randomized_response import RandomizedResponse


def quantiles(count: int, mean: float = 0.0, std: float = 1.0) -> np.ndarray:
    """A sample that is as normal as one can be."""
    found: np.ndarray = norm.ppf((np.arange(count) + 0.5) / count, mean, std)
    return found


def test_clopper_and_pearson_are_beta_quantiles_that_are_as_rarely_wrong_as_they_say() -> None:
    for successes, trials in ((1, 10), (3, 10), (9, 10), (5000, 100_000)):
        bounds = clopper_pearson(successes, trials, 0.025)
        rest = trials - successes
        expected = beta.ppf(0.025, successes, rest + 1), beta.ppf(0.975, successes + 1, rest)
        np.testing.assert_allclose(bounds, expected, rtol=1e-10)
    n = 30
    level = 0.05
    k = np.arange(31)
    low, high = clopper_pearson(k, n, level)
    worst = [0.0, 0.0]
    for p in np.linspace(0.001, 0.999, 999):
        mass = binom.pmf(k, n, p)
        worst[0] = max(worst[0], mass[low > p].sum())
        worst[1] = max(worst[1], mass[high < p].sum())
    assert all(0.04 < error <= level for error in worst)
    assert float(clopper_pearson(0, n, level)[0]) == 0.0
    assert float(clopper_pearson(n, n, level)[1]) == 1.0


def test_two_inputs_that_are_never_confused_prove_what_the_counts_can_less_a_delta() -> None:
    ones = np.ones(1000)
    zeros = np.zeros(1000)
    assert lower_bound(zeros, ones, 1e-5, 0.95).epsilon == 0.0  # large ones speak for the first
    rare = 1 - 0.025 ** (1 / 750)  # none of the 750 that were not used to choose
    expected = math.log((1 - rare - 1e-5) / rare)
    for first, second in ((ones, zeros), (-zeros, -ones)):
        bound = lower_bound(first, second, 1e-5, 0.95)
        assert bound.epsilon == pytest.approx(expected, rel=1e-9) == bound.most
        assert (bound.true, bound.false) == (1.0, 0.0)
    half = lower_bound(ones, zeros, 0.5, 0.95).epsilon
    assert bound.epsilon - half == pytest.approx(math.log(2), abs=0.01)
    # 300 of 400 test the true alarms, 750 of 1000 the false ones
    often = 0.025 ** (1 / 300)
    bound = lower_bound(np.ones(400), zeros, 1e-5, 0.95)
    assert bound.epsilon == pytest.approx(math.log((often - 1e-5) / rare), rel=1e-9)


def test_the_rarer_of_two_outputs_is_found_on_either_side() -> None:
    # 1 in 100 of the second is far below all of the first: only a small score proves anything
    first = np.concatenate([np.zeros(9900), np.ones(100)])
    second = np.concatenate([-np.ones(1000), np.zeros(8900), np.ones(100)])
    turn = Key(5).permutation(10_000).numpy()
    low = lower_bound(first[turn], second[turn], 1e-5, 0.95)
    high = lower_bound(-second[turn], -first[turn], 1e-5, 0.95)
    assert low.below
    assert not high.below
    assert low.epsilon == pytest.approx(high.epsilon, rel=1e-12)
    assert low.epsilon == pytest.approx(math.log(0.1 / (3.7 / 7500)), rel=0.03)


def test_equal_inputs_are_hardly_ever_told_apart() -> None:
    # Choosing among 500 thresholds on the scores that are tested would fail here in most draws.
    wrong = 0
    draws = 60
    for i in range(draws):
        x = Key(i).gaussian(2, 800).numpy()
        wrong += lower_bound(x[0], x[1], 1e-5, 0.95).epsilon > 0
    assert wrong <= 9  # 5 % are 3 +- 1.7


def test_opposite_bits_are_randomized_response_and_others_have_two_directions() -> None:
    for n, p in ((1, 0.2), (5, 0.37), (300, 0.45)):
        exact = pytest.approx(float(RandomizedResponse(p, n).epsilon(1e-5)), rel=1e-9)
        assert Bernoullis(n, p, 1 - p).epsilon(1e-5) == exact
        assert Bernoullis(n, 1 - p, p).epsilon(1e-5) == exact
    law = Bernoullis(1, 0.5, 0.1)  # 0 says: the second, by .9/.5; 1 says: the first, by .5/.1
    assert law.epsilon(1e-9) == pytest.approx(math.log(5), abs=1e-6)
    assert Bernoullis(1, 0.1, 0.5).epsilon(1e-9) == pytest.approx(math.log(5), abs=1e-6)
    assert law.delta(math.log(2)) == pytest.approx(0.5 - 2 * 0.1)
    for never in (Bernoullis(1, 0.0, 0.5), Bernoullis(1, 1.0, 0.5)):  # a bit of one law alone
        assert never.delta(0.0) == never.delta(5.0) == pytest.approx(0.5)


def test_two_coordinates_are_the_fewest_in_which_a_canary_has_a_cosine() -> None:
    law = from_final(np.array([0.5, 0.7, 0.9]), 2)
    assert law.mean == pytest.approx(0.7)
    assert law.other_std == pytest.approx(math.sqrt(0.5))


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_gaussians_of_one_width_are_gaussian_privacy_and_of_two_integrals(epsilon: float) -> None:
    assert Gaussians(3.0, 2.0, 1.0, 2.0).delta(epsilon) == gdp_delta(1.0, epsilon)
    nearly = Gaussians(3.0, 2.0 + 1e-7, 1.0, 2.0).delta(epsilon)
    assert nearly == pytest.approx(gdp_delta(1.0, epsilon), rel=1e-5)
    x, step = np.linspace(-15, 15, 200_001, retstep=True)
    for mean, std in ((1.0, 2.0), (1.0, 0.5), (0.0, 1.3), (0.0, 0.6)):
        p, q = norm.pdf(x, mean, std), norm.pdf(x)
        sums = [np.maximum(a - math.exp(epsilon) * b, 0).sum() * step for a, b in ((p, q), (q, p))]
        assert Gaussians(mean, std).delta(epsilon) == pytest.approx(max(sums), abs=1e-7)


def test_gaussians_that_are_far_apart_have_a_large_epsilon_and_no_overflow() -> None:
    assert Gaussians(3.0, 2.0, 1.0, 2.0).epsilon(1e-5) == gdp_epsilon(1.0, 1e-5)
    assert Gaussians(300.0, 1.0, 0.0, 1.0001).epsilon(1e-5) == pytest.approx(46_280, rel=1e-3)
    assert Gaussians(1.0, 1.0, 1.0, 1.0).epsilon(1e-5) == 0.0
    assert exact.epsilon_of(lambda epsilon: 0.5, 1e-5) == math.inf  # no epsilon has that delta

    # the mass of a far interval is not lost
    x, step = np.linspace(55, 65, 100_001, retstep=True)  # where the second law has 1e-783
    gap = norm.pdf(x, 60, 0.5) - np.exp(1800 + norm.logpdf(x))
    expected = np.maximum(gap, 0).sum() * step
    assert 0.1 < expected < 0.9
    assert exact.one_way((60.0, 0.5), (0.0, 1.0), 1800.0) == pytest.approx(expected, abs=1e-6)


def test_a_p_value_is_the_formula_by_hand() -> None:
    # q = 1/2, r = v = 2 of m = 4: beta = 1/4, alpha = max(3/4 - 1/4, (1 - 1/4)/2) = 1/2
    assert Guesses(4, 2, 2).chance(0.0, 0.1) == pytest.approx(0.25 + 2 * 4 * 0.1 * 0.5)
    assert Guesses(4, 2, 2).chance(math.log(3), 0.0) == pytest.approx(0.75**2)
    assert Guesses(4, 2, 0).chance(0.0, 0.0) == 1.0


def test_guesses_reach_the_cap_if_all_are_right_and_otherwise_what_their_share_proves() -> None:
    for r in (10, 1000):
        cap = math.log((q := 0.05 ** (1 / r)) / (1 - q))
        assert Guesses(1000, r, r).epsilon(0.0, 0.95) == pytest.approx(cap, rel=1e-9)
        assert Guesses(1000, r, r).best(0.95) == pytest.approx(cap, rel=1e-9)
        assert Guesses(1000, r, r).epsilon(1e-5, 0.95) < cap
        assert Guesses(1000, r, r // 2).epsilon(0.0, 0.95) == 0.0
    # RR(.2), eps = ln 4 = 1.386, 8000 of 10000 right: logit(.8 - 1.645 * .004) = 1.346
    assert Guesses(10_000, 10_000, 8000).epsilon(1e-5, 0.95) == pytest.approx(1.346, abs=2e-3)


@pytest.mark.parametrize(("z", "reached", "exact"), [(0.5, 3.2, 9.997), (1.0, 1.5, 4.377)])
def test_a_gaussian_is_audited_in_one_run_as_far_as_a_thousand_canaries_go(
    z: float, reached: float, exact: float
) -> None:
    # The best number of guesses would give 3.37 and 1.65; four tries share the error.
    there = np.arange(1000) % 2 == 0
    scores = np.where(there, np.repeat(quantiles(500), 2) + 1 / z, np.repeat(quantiles(500), 2))
    epsilon, guesses = best_guesses(scores, there, 1e-5, 0.95)
    assert reached - 0.25 < epsilon < reached + 0.25
    assert epsilon < exact
    assert guesses.made in (100, 250)


def test_guesses_are_whole_pairs_of_canaries_and_no_canary_is_guessed_twice() -> None:
    # Of 7 canaries the shares are 1, 1, 1 and 3 on each side: two ways, each with half the error.
    there = np.array([False, False, False, True, True, True, True])
    epsilon, guesses = best_guesses(np.arange(7.0), there, 1e-9, 0.9)
    assert (guesses.made, guesses.right) == (6, 6)
    assert epsilon == pytest.approx(Guesses(7, 6, 6).epsilon(1e-9, 0.95))


def test_thresholds_are_tried_where_alarms_are_rare() -> None:
    tail = _tail(np.arange(10_000.0))
    assert len(tail) <= 256
    assert tail.min() == 0
    assert set(range(9980, 10_000)) <= set(tail.astype(int).tolist())


def test_a_few_canaries_have_a_sample_standard_deviation() -> None:
    fit = from_final(np.array([0.0, 2.0]), 4)
    assert (fit.mean, fit.std, fit.other, fit.other_std) == (1.0, math.sqrt(2), 0.0, 0.5)


def test_an_estimate_above_the_claim_refutes_nothing() -> None:
    fields: dict[str, Any] = {"method": "one-shot", "epsilon": 3.0, "claimed": 2.0, "delta": 1e-5}
    fields |= {"unit": "client", "adjacency": "zero-out", "audited": "", "evidence": ""}
    assert AuditFinding(**fields, confidence=0.95).broken
    assert not AuditFinding(**fields, confidence=None).broken
    assert not AuditFinding(**fields | {"claimed": 3.0}, confidence=0.95).broken


def test_one_run_bounds_are_hardly_ever_above_the_truth() -> None:
    # RR at eps = 1 is the worst case of the theorem. Without a share of the error for each of the
    # four ways to guess, three times as many would be wrong.
    wrong = 0
    truth = math.e / (1 + math.e)
    runs = 120
    for i in range(runs):
        there = (Key(i).fold("there").uniform(60) < 0.5).numpy()
        kept = (Key(i).fold("kept").uniform(60) < truth).numpy()
        scores = np.where(there == kept, 1.0, 0.0) + 1e-3 * Key(i).uniform(60).numpy()
        wrong += best_guesses(scores, there, 1e-9, 0.95)[0] > 1.0
    assert wrong <= 12  # 5 % are 6 +- 2.4


def test_canaries_that_stand_out_by_mu_are_estimated_to_cost_mu() -> None:
    d = 2500
    for mu in (0.5, 2.0):
        laws = from_final(quantiles(4000, mu, 1.0) / math.sqrt(d), d)
        assert laws.epsilon(1e-5) == pytest.approx(gdp_epsilon(mu, 1e-5), rel=0.01)
    nobody = quantiles(4000, 3.0, 2.0)
    assert from_all(nobody, nobody).epsilon(1e-5) == 0.0
    moved = from_all(nobody + 2, nobody)
    assert moved.epsilon(1e-5) == pytest.approx(gdp_epsilon(1, 1e-5), rel=0.01)


def test_the_error_of_an_estimate_is_how_much_other_canaries_change_it() -> None:
    d = 1000

    def fitted(x: np.ndarray) -> Callable[[np.ndarray], Gaussians]:
        return lambda rows: from_final(x[rows], d)

    cosines = [(2 + Key(i).gaussian(100).numpy()) / math.sqrt(d) for i in range(30)]
    found = [exact.estimate(fitted(x), 100, 1e-5) for x in cosines]
    epsilons, errors = np.array(found).T
    assert np.median(errors) == pytest.approx(np.std(epsilons), rel=0.5)
    # the larger direction of a fit: with so few canaries it errs upwards, 11.3 for 10.0
    assert 1.0 < np.median(epsilons) / gdp_epsilon(2.0, 1e-5) < 1.25


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        (lambda: clopper_pearson(3, 2, 0.1), "successes must"),
        (lambda: lower_bound(np.ones(9), np.ones(9), 0.0, 0.9), "delta must"),
        (lambda: lower_bound(np.ones(9), np.ones(9), 0.1, 1.0), "confidence must"),
        (lambda: lower_bound(np.ones(3), np.ones(9), 0.1, 0.9), "releases must"),
        (lambda: Bernoullis(0, 0.1, 0.2), "k must"),
        (lambda: Bernoullis(1, 1.1, 0.2), "p must"),
        (lambda: Gaussians(0.0, 0.0), "std must"),
        (lambda: Guesses(0, 0, 0), "canaries must"),
        (lambda: Guesses(4, 5, 1), "right must"),
        (lambda: Guesses(4, 3, 4), "right must"),
        (lambda: Guesses(4, 3, 2).epsilon(1.0, 0.9), "delta must"),
        (lambda: best_guesses(np.ones(1), np.ones(1, dtype=bool), 0.1, 0.9), "canaries must"),
        (lambda: from_final(np.ones(1), 9), "canaries must"),
        (lambda: from_final(np.ones(5), 1), "d must"),
        (lambda: exact.estimate(lambda rows: Gaussians(1.0), 3, 0.1), "canaries must"),
    ],
)
def test_numbers_that_make_no_audit_are_refused_by_name(
    wrong: Callable[[], object], subject: str
) -> None:
    with pytest.raises(ConfigError, match=subject):
        wrong()
