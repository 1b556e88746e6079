"""A second opinion, if it is installed: ``pip install dp-accounting``, apart from this project."""

import math

import numpy as np
import pytest

from fedbench.privacy.amplification import probit_constant, r_alpha
from fedbench.privacy.conversion import gdp_epsilon, rdp_to_dp
from fedbench.privacy.randomized_response import RandomizedResponse
from fedbench.privacy.sampling import fixed_size_rdp, poisson_epsilons, poisson_rdp

dp = pytest.importorskip("dp_accounting")
rdp = pytest.importorskip("dp_accounting.rdp")
pld = pytest.importorskip("dp_accounting.pld")


def test_pld_ignores_how_often_randomized_response_happened_so_it_never_prices_masks() -> None:
    """Version 0.6.0: 50 bits cost it what one bit costs, but its RDP counts them, and is ours."""
    relation = dp.NeighboringRelation.REPLACE_ONE
    orders = [1.5, 2.0, 8.0, 64.0]
    losses = pld.PLDAccountant(relation)
    accountant = rdp.RdpAccountant(orders, relation)
    for accounted in (losses, accountant):
        # flipped with 0.2: another of two buckets, drawn with probability 0.4
        accounted.compose(dp.RandomizedResponseDpEvent(0.4, 2), 50)
    assert losses.get_epsilon(1e-4) == pytest.approx(math.log(4), abs=2e-3)
    np.testing.assert_allclose(accountant._rdp, 50 * r_alpha(orders, 0.2), rtol=1e-9)


def test_its_discrete_losses_composed_by_hand_are_randomized_response() -> None:
    p, n = 0.2, 20
    low, high = math.log(p), math.log(1 - p)
    bit = pld.privacy_loss_distribution.from_two_probability_mass_functions(
        {0: high, 1: low}, {0: low, 1: high}, value_discretization_interval=1e-4
    )
    theirs = bit.self_compose(n).get_epsilon_for_delta(1e-5)
    ours = float(RandomizedResponse(p, n).epsilon(1e-5))
    assert ours * (1 - 1e-9) <= theirs <= ours + n * 1e-4


@pytest.mark.parametrize(("z", "rate"), [(1.1, 0.01), (1.0, 0.2), (5.0, 0.5)])
def test_sampled_gaussians_have_its_rdp(z: float, rate: float) -> None:
    orders, ours = poisson_rdp(z, rate)
    whole = np.array([a.is_integer() for a in orders.tolist()])
    accountant = rdp.RdpAccountant([int(a) for a in orders[whole]])
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)))
    np.testing.assert_allclose(accountant._rdp, ours[whole], rtol=1e-8)


@pytest.mark.parametrize(("z", "rate"), [(1.1, 0.01), (0.5, 0.1), (5.0, 0.3), (0.1, 0.9)])
def test_samples_of_fixed_size_have_its_rdp_but_for_the_odd_terms(z: float, rate: float) -> None:
    orders, ours = fixed_size_rdp(z, rate)
    relation = dp.NeighboringRelation.REPLACE_ONE
    accountant = rdp.RdpAccountant([int(a) for a in orders], relation)
    total = 10_000
    event = dp.SampledWithoutReplacementDpEvent(total, int(rate * total), dp.GaussianDpEvent(z))
    accountant.compose(event)
    theirs = np.minimum(accountant._rdp, orders / (2 * z * z))
    assert (ours <= theirs * (1 + 1e-5)).all()
    assert (ours[orders <= 256] >= 0.8 * theirs[orders <= 256]).all()


# z, rate, steps: reference notes 1 and 3.6, the last one B2 of a mask
@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "rate", "steps"),
    [(50.0, 0.01, 10), (1.0, 0.2, 50), (1 / 0.3 / math.sqrt(probit_constant(0.0, 0.2)), 0.1, 200)],
)
def test_prv_is_its_pld(z: float, rate: float, steps: int) -> None:
    for relation in (
        dp.NeighboringRelation.ADD_OR_REMOVE_ONE,
        dp.NeighboringRelation.REPLACE_SPECIAL,
    ):
        accountant = pld.PLDAccountant(relation)  # rounds every loss up to 1e-4
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(z)), steps)
        theirs = accountant.get_epsilon(1e-5)
        ours = poisson_epsilons(z, rate, steps, 1e-5)
        assert theirs - 1e-4 * steps <= ours["prv"]
        assert ours["prv"] <= theirs + max(1e-4, min(0.02, 0.011 * ours["rdp"]))
        assert theirs <= ours["rdp"]


def test_conversions_agree_with_those_of_dp_accounting() -> None:
    orders, ours = poisson_rdp(1.1, 0.01, 10_000)
    theirs, _ = rdp.compute_epsilon(orders, ours, 1e-5)
    assert rdp_to_dp(orders, ours, 1e-5)[0] == pytest.approx(theirs, rel=1e-9)
    assert gdp_epsilon(1 / 1.3, 1e-5) == pytest.approx(dp.get_epsilon_gaussian(1.3, 1e-5), rel=1e-7)
    orders, once = fixed_size_rdp(1.1, 0.01)
    assert rdp_to_dp(orders, 10_000 * once, 1e-5)[0] == pytest.approx(11.77, abs=5e-3)
