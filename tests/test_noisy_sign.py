"""Signs of clipped vectors under noise: closed forms, random vectors and limits."""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import norm

from fedbench.api import Adjacency
from fedbench.privacy.amplification import (
    SIGN_SLACK,
    r_alpha,
    renyi_bernoulli,
    sign_constant,
    sign_rdp,
)
from fedbench.privacy.conversion import ORDERS, Floats

BOTH: list[Adjacency] = ["replace-one", "zero-out"]


def spent(alpha: float, t: Floats, other: Floats) -> float:
    p, q = ((log_ndtr(x), log_ndtr(-x)) for x in (t, other))
    return float(renyi_bernoulli(alpha, p, q).sum())


def test_the_constant_is_the_largest_slope_of_the_log_odds_and_that_of_the_table() -> None:
    for b, printed in ((0.01, 0.637), (0.5, 0.681), (1.0, 0.822), (2.0, 1.474)):
        assert sign_constant(1 / b) == pytest.approx(printed, abs=6e-4)
        t = np.linspace(-b, b, 2001)
        slopes = (norm.pdf(t) / norm.cdf(t) / norm.sf(t) / 2) ** 2
        assert sign_constant(1 / b) == pytest.approx(slopes.max(), rel=1e-12)
        assert slopes.argmax() in (0, 2000)
    assert sign_constant(1e9) == pytest.approx(2 / math.pi)
    assert sign_constant(1e-3) == pytest.approx(1e6 / 4, rel=1e-5)  # half of the square of b


@pytest.mark.parametrize("adjacency", BOTH)
@pytest.mark.parametrize("z", [0.2, 1.0, 5.0, 300.0])
def test_no_two_vectors_exceed_any_bound(z: float, adjacency: Adjacency) -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    alphas = [1.01, 2.0, 8.0, 300.0]
    for d in (1, 2, 7, 40):
        bounds = sign_rdp(alphas, d, z, adjacency)
        for trial in range(20):
            pair = draw.standard_normal((2, d)) * draw.random((2, d)) ** 4
            pair *= (1 / z) / np.linalg.norm(pair, axis=1, keepdims=True)
            if trial % 2:
                pair[1] = -pair[0]
            if adjacency == "zero-out":
                pair[trial % 4 // 2] = 0
            for i, a in enumerate(alphas):
                cost = spent(a, pair[0], pair[1])
                for name, term in bounds.terms.items():
                    assert cost <= term[i] * (1 + 1e-7), name


@pytest.mark.parametrize("apart", [40, pytest.param(1, marks=pytest.mark.slow)])
def test_one_sign_is_randomized_response_and_many_are_two_over_pi_of_a_gaussian(apart: int) -> None:
    orders = ORDERS[::apart]
    for z in (0.05, 0.5, 1.0, 30.0):
        bit = sign_rdp(orders, 1, z)
        exact = r_alpha(orders, float(norm.sf(1 / z)))
        np.testing.assert_allclose(bit.epsilon, exact, rtol=1e-6)
        np.testing.assert_allclose(bit.terms["envelope"], exact * (1 + SIGN_SLACK), rtol=1e-6)
    alpha = np.array([1.5, 2.0, 4.0])
    for adjacency, noise in product(BOTH, (30.0, 3000.0)):
        distance = (2 if adjacency == "replace-one" else 1) / noise
        limit = 2 / math.pi * alpha * distance**2 / 2
        many = sign_rdp(alpha, 10**9, noise, adjacency).terms["envelope"]
        assert (many >= limit).all()
        np.testing.assert_allclose(many, limit, rtol=2 * SIGN_SLACK)


def test_terms_without_digits_are_left_out_and_every_other_wins_somewhere() -> None:
    for z, known in ((1e-7, False), (2e-6, True), (9999.0, True), (10001.0, False)):
        assert ("envelope" in sign_rdp([2.0], 3, z).terms) == known
    settings = {
        "randomized-response": (1, 1.0),
        "envelope": (100, 1.0),
        "logit": (100, 1e5),
        "gaussian": (10**30, 1e-7),
    }
    for name, (d, z) in settings.items():
        terms = sign_rdp([2.0], d, z).terms
        assert min(terms, key=lambda bound: terms[bound][0]) == name

    # the ends of zero-out are a fair coin and the edge
    ours = sign_rdp([2.0, 16.0], 3, 0.5, "zero-out").terms["randomized-response"]
    b, fair = np.array([2.0]), np.array([0.0])
    most = [3 * max(spent(a, b, fair), spent(a, fair, b)) for a in (2.0, 16.0)]
    assert ours.tolist() == pytest.approx(most)


@pytest.mark.edges("0.1-1", "20.0-1000000")
@pytest.mark.parametrize("d", [1, 10, 10**6])
@pytest.mark.parametrize("z", [0.1, 1.0, 20.0])
def test_the_bounds_are_ordered_as_the_mechanisms_are(d: int, z: float) -> None:
    whole, half = (sign_rdp(ORDERS, d, z, adjacency) for adjacency in BOTH)
    np.testing.assert_allclose(whole.terms["gaussian"], ORDERS * 2 / z**2)
    np.testing.assert_allclose(half.terms["gaussian"], ORDERS / 2 / z**2)
    np.testing.assert_allclose(half.terms["logit"], ORDERS * sign_constant(z) / 2 / z**2)
    assert (half.epsilon <= whole.epsilon * (1 + SIGN_SLACK)).all()
    assert (np.diff(whole.epsilon) >= -1e-12 * whole.epsilon[1:]).all()
    for noisy, exact in pairwise([sign_rdp(ORDERS, d, z * k).epsilon for k in (1.5, 1.0)]):
        assert (noisy < exact).all()
    for i in (0, 100, 319):
        assert min(term[i] for term in whole.terms.values()) == whole.epsilon[i]


def test_nothing_overflows_or_vanishes_at_the_extremes() -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        for z in (1e-59, 1e-6, 0.003, 1e3, 9999.0, 10001.0, 1e50):
            for adjacency in BOTH:
                eps = sign_rdp([1 + 1e-6, 2.0, 1024.0], 10**6, z, adjacency).epsilon
                assert np.isfinite(eps).all(), z
                small = (1 if adjacency == "zero-out" else 4) / math.pi / z**2 * np.array([1, 2])
                assert (eps[:2] >= small * (1 - 1e-4)).all() or z < 1, z
