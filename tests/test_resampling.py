"""Statistics of the board, by resampled seeds and flipped signs, against SciPy and by hand."""

import math
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import bootstrap, chi2, norm, permutation_test, t, ttest_1samp

from fedbench.leaderboard.rank import surely_better
from fedbench.leaderboard.resampling import (
    MAX_EXACT,
    RESAMPLES,
    bca,
    chances,
    detectable,
    holm,
    probability,
    resamples,
    student,
    surest,
)

SKEWED = [0.93, 0.95, 0.91, 0.94, 0.35, 0.92, 0.96, 0.9, 0.94, 0.88, 0.93, 0.61]


def test_resamples_are_uniform_and_the_same_everywhere() -> None:
    drawn = resamples(7)
    assert drawn.shape == (RESAMPLES, 7)
    # each of 7 indices in a seventh of 69,993 draws: 5 sigma are 463
    assert np.abs(np.bincount(drawn.ravel(), minlength=7) - RESAMPLES).max() < 463
    assert drawn[0].tolist() == [0, 4, 0, 6, 2, 2, 5]


def test_an_interval_of_two_values_by_hand() -> None:
    # Means of resamples are 0, 1/2, 1 in 1, 2, 1 of 4; nothing is biased or skewed.
    assert bca([0.0, 1.0], 0.95) == (0.0, 1.0)
    assert bca([0.0, 1.0], 0.4) == (0.5, 0.5)  # from the 30 % to the 70 % quantile


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_the_interval_is_scipys(confidence: float) -> None:
    rng = np.random.default_rng(0)
    theirs = bootstrap(
        (SKEWED,), np.mean, n_resamples=99_999, confidence_level=confidence, rng=rng
    ).confidence_interval
    # The ends are quantiles of a mean that spreads by 0.05; of 9,999 draws they are good to 0.003.
    ends = (float(theirs.low), float(theirs.high))
    assert bca(SKEWED, confidence) == pytest.approx(ends, abs=0.004)
    # Student's interval is symmetric, this one is not: the tail is below.
    low, high = bca(SKEWED, 0.95)
    mean = sum(SKEWED) / len(SKEWED)
    assert mean - low > 1.3 * (high - mean)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20))
def test_an_interval_lies_within_the_values_and_holds_their_mean(values: list[float]) -> None:
    low, high = bca(values, 0.95)
    assert min(values) - 1e-9 <= low <= high <= max(values) + 1e-9
    assert low <= sum(values) / len(values) + 1e-9
    assert high >= sum(values) / len(values) - 1e-9


def by_the_book(counts: list[int], confidence: float) -> tuple[float, float]:
    """Efron's equation 3.9 in plain loops: the ends of the interval of the mean of whole numbers.

    A quantile of 9,999 sorted sums is the sum whose place, from 1 on, is its level times 10,000,
    rounded up.
    """
    n = len(counts)
    total = sum(counts)
    sums = sorted(sum(counts[i] for i in row) for row in resamples(n).tolist())
    assert len(sums) == 9_999
    below = sum(each < total for each in sums) + sum(each == total for each in sums) / 2
    bias = norm.ppf((below + 0.5) / 10_000)
    without = [(total - each) / (n - 1) for each in counts]
    lost = [sum(without) / n - each for each in without]
    cubes = sum(x**3 for x in lost)
    acceleration = cubes / (6 * sum(x**2 for x in lost) ** 1.5) if cubes else 0.0
    ends = []
    for share in ((1 - confidence) / 2, (1 + confidence) / 2):
        z = bias + norm.ppf(share)
        place = math.ceil(norm.cdf(bias + z / (1 - acceleration * z)) * 10_000)
        ends.append(sums[min(place, 9_999) - 1] / n)
    return ends[0], ends[1]


@pytest.mark.parametrize("confidence", [0.2, 0.9, 0.95, 0.9999])
@pytest.mark.parametrize(
    "counts",
    [
        [0, 0, 0, 0, 64],  # many ties, skewed
        [3, 5, 5, 6, 21, 8],  # the mean is one of the values
        [-40, -3, -3, -2, -2],  # an attack can also help: differences are below 0
        [-7, 0, 7],
        [0, 0, 2, 6, 6, 8, 9],  # as tenths, one sum in several orders is several numbers
        [1, 2],
        [1, 8, 3060, 3161, 3262, 3363, 3164, 3465, 3366, 2959, 3058, 3460, 2861, 3063],  # no ties
    ],
    ids=str,
)
def test_an_interval_is_that_of_plain_loops_to_the_last_digit(
    counts: list[int], confidence: float
) -> None:
    # Sixty-fourths are added without rounding, so means tie where the sums of whole numbers do.
    low, high = by_the_book(counts, confidence)
    assert bca([count / 64 for count in counts], confidence) == (low / 64, high / 64)
    assert bca([count / 10 for count in counts], confidence) == pytest.approx((low / 10, high / 10))


def test_tiny_differences_are_differences() -> None:
    tiny = [value * 1e-120 for value in SKEWED]
    low, high = bca(tiny, 0.95)
    assert (1e120 * low, 1e120 * high) == pytest.approx(bca(SKEWED, 0.95))
    assert bca([0.0, 4.2e-127], 0.95) == (0.0, 4.2e-127)


def test_equal_values_have_no_width_and_no_difference_is_sure() -> None:
    assert bca([0.5] * 5, 0.95) == (0.5, 0.5)
    assert probability([0.0] * 5) == probability([0.0] * (MAX_EXACT + 1)) == 1.0


def test_a_difference_is_as_sure_as_its_signs_by_hand() -> None:
    # 3 + 2 - 1 = 4: of the sums 6, 4, 2, 0, 0, -2, -4, -6 four are as far from 0.
    assert probability([3.0, 2.0, -1.0]) == 4 / 8
    assert probability([3.0, 2.0, 1.0]) == 2 / 8
    assert probability([-3.0, -2.0, 1.0]) == 4 / 8, "the other way round"
    for scale in (1e-120, 1e120):  # what ties is relative, so a unit changes nothing
        assert probability([3.0 * scale, 2.0 * scale, -1.0 * scale]) == 4 / 8
        assert probability([0.1 * scale] * 10) == 2**-9
    # Sums in another order differ by rounding: ten times 0.1 one after the other is below 1. (`sum`
    # makes up for it from Python 3.12 on.)
    assert reduce(add, [0.1] * 10) < np.sum([0.1] * 10)
    assert probability([0.1] * 10) == 2**-9


@pytest.mark.parametrize("n", [2, 5, 14])
def test_the_probability_is_scipys_over_all_signs(n: int) -> None:
    values = np.random.default_rng(n).normal(0.4, 1.0, n).tolist()
    theirs = permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=2**n, vectorized=True
    )
    assert probability(values) == theirs.pvalue


def test_signs_of_more_differences_are_drawn_and_the_same_everywhere() -> None:
    values = np.random.default_rng(3).normal(0.2, 1.0, MAX_EXACT + 1).tolist()
    close = probability(values[:MAX_EXACT])
    doubled = probability([*values[:MAX_EXACT], 0.0])  # the sign of a 0 decides nothing
    assert 0.05 < close < 0.95
    assert doubled == pytest.approx(close, abs=5 * math.sqrt(close * (1 - close) / RESAMPLES))
    assert probability([1.0] * (MAX_EXACT + 1)) == 1 / (RESAMPLES + 1)  # the observed choice


def test_no_difference_is_surer_than_its_signs() -> None:
    assert probability([1.0] * 5) == surest(5) == 2**-4
    assert probability([1.0] * MAX_EXACT) == surest(MAX_EXACT) == 2.0 ** (1 - MAX_EXACT)
    assert (surest(20), surest(21)) == (2**-19, 1e-4)
    # Of more differences one of the choices that are drawn is the least share.
    many = MAX_EXACT + 1
    assert probability([1.0] * many) == surest(many) == 1 / (RESAMPLES + 1)
    assert detectable(1.0, many, 0.05 / 500) == math.inf
    assert math.isfinite(detectable(1.0, many, 0.05 / 499))


@pytest.mark.parametrize("n", [5, 14])
def test_the_t_test_is_scipys(n: int) -> None:
    values = np.random.default_rng(n).normal(0.4, 1.0, n).tolist()
    close = [1 + 1e-3 * value for value in values]  # nearly equal, but noise all the same
    for each in (values, close):
        expected = pytest.approx(ttest_1samp(each, 0).pvalue, rel=1e-9)
        assert student(each) == expected
        assert student([-value for value in each]) == expected, "the other way round"
    assert student([0.0] * n) == 1.0
    assert student([0.3] * n) == student([-0.3] * n) == 0.0


def test_systems_that_are_equally_good_are_told_apart_in_few_tables() -> None:
    # 5 % is what is promised of a table of ten. If it were so, at most 13 of 100 tables are wrong
    # but for one time in a thousand; with the level of a BCa interval as the p-value 30 are.
    draws = np.random.default_rng(0).normal(0, 0.1, (100, 10, 14))
    tables = [{i: dict(enumerate(row)) for i, row in enumerate(table)} for table in draws.tolist()]
    assert sum(bool(surely_better(table, 0.05)) for table in tables) <= 13


def test_holm_steps_down_and_never_back() -> None:
    assert holm({1: 0.04, 2: 0.01, 3: 0.02}) == {2: 0.03, 3: 0.04, 1: 0.04}
    assert holm({1: 0.9, 2: 0.8}) == {2: 1.0, 1: 1.0}


def test_who_is_best_is_decided_by_the_attack_that_is_worst_in_each_resample() -> None:
    # The first is at 0.5 under one attack and at 1 under another; the second always at 0.6.
    steady = [[0.6, 0.6]]
    assert chances([[[0.5, 0.5], [1.0, 1.0]], steady]) == [0.0, 1.0]
    # Seeds 0 and 1 at 0 and 1: means 0, 1/2, 1 in 1, 2, 1 of 4 resamples, against 0.6.
    share, other = chances([[[0.0, 1.0]], steady])
    assert share == pytest.approx(0.25, abs=0.02)
    assert share + other == pytest.approx(1.0)
    assert chances([steady, steady]) == [0.5, 0.5]
    assert chances([[[0.3, 0.3]], [[0.1 + 0.2] * 2]]) == [0.5, 0.5], "rounding is no lead"


def test_a_detectable_difference_is_seen_in_four_of_five_trials() -> None:
    least = detectable(0.1, 20, 0.05)
    drawn = np.random.default_rng(0).normal(least, 0.1, (20_000, 20))
    seen = np.mean(np.asarray(ttest_1samp(drawn, 0, axis=1).pvalue) < 0.05)
    assert seen == pytest.approx(0.8, abs=5 * math.sqrt(0.16 / 20_000))
    # A t statistic is (normal + shift) / sqrt(chi^2 / 19): the power by an integral over chi^2.
    shift = least / 0.1 * math.sqrt(20)
    critical = float(t.ppf(0.975, 19))
    power, _ = quad(
        lambda x: norm.sf(critical * math.sqrt(x / 19) - shift) * chi2.pdf(x, 19), 0, 200
    )
    assert power == pytest.approx(0.8, abs=1e-6)
    assert detectable(0.1, 5, 0.07) > 2 * least
    assert detectable(0.1, 5, 0.05) == math.inf  # five of one sign are not so sure


def test_signs_see_a_detectable_difference_about_as_often_as_the_t_test() -> None:
    level = 0.05 / 45  # the first step of Holm's correction for ten systems
    drawn = np.random.default_rng(1).normal(detectable(0.1, 14, level), 0.1, (1000, 14))
    seen = np.mean([probability(row) < level for row in drawn.tolist()])
    assert 0.7 < seen < 0.8
