"""Accountants: every bound that applies to an event, and the least of them."""

import math
from collections.abc import Callable
from functools import lru_cache, singledispatch

import numpy as np
from scipy.special import ndtr

from fedbench.api import Adjacency, DpEvent
from fedbench.core.errors import NoTheorem
from fedbench.privacy import amplification as masks
from fedbench.privacy import gaussian, sampling
from fedbench.privacy.conversion import ORDERS, Floats, gdp_epsilon, gdp_rounds, rdp_to_dp
from fedbench.privacy.events import (
    FlippedBits,
    GaussianGradients,
    GaussianSum,
    MaskSample,
    NoisySigns,
)
from fedbench.privacy.noisy_sign import sign_rdp
from fedbench.privacy.participation import Participation as Participation
from fedbench.privacy.participation import PrivacyCost as PrivacyCost
from fedbench.privacy.participation import least
from fedbench.privacy.poisson_binomial import poisson_binomial_rdp
from fedbench.privacy.randomized_response import RandomizedResponse
from fedbench.privacy.secure_sum import SUM_ORDERS, sum_rdp
from fedbench.privacy.skellam import skellam_rdp
from fedbench.privacy.sum_events import BinomialCounts, SkellamShare

COARSE = 16  # between the orders at which dear bounds are first computed
PRESENCE = "the number of messages shows who is there"
FIXED: dict[Adjacency, str | None] = {"replace-one": None, "zero-out": None, "add-remove": PRESENCE}


@singledispatch
def price(event: DpEvent, exposure: Participation, delta: float) -> PrivacyCost:
    """Price an ``event`` that happened so often, at ``delta``; natural logarithms.

    Raises:
        NoTheorem: nobody has proved what that costs.
    """
    raise NoTheorem(
        f"{type(event).__name__} has no accountant; register one with "
        "fedbench.privacy.accountants.price"
    )


def best_of(rdp: Callable[[Floats], Floats], times: int, delta: float) -> float:
    """Epsilon of ``times`` rounds of ``rdp``, asked at every 16th order, then around the best."""
    coarse = ORDERS[::COARSE]
    found, order = rdp_to_dp(coarse, times * rdp(coarse), delta)
    at = int(np.searchsorted(ORDERS, order))
    near = ORDERS[max(0, at - COARSE // 2) : at + COARSE // 2 + 1]
    return min(found, rdp_to_dp(near, times * rdp(near), delta)[0])


@price.register
def _(event: MaskSample, exposure: Participation, delta: float) -> PrivacyCost:
    adjacency = exposure.among("sampled masks", FIXED)
    factor = 2 if adjacency == "replace-one" else 1
    rounding = math.sqrt(event.d) * 2.0**-23  # of sums and probabilities in float32
    reach = None if event.radius is None else factor * event.radius + rounding
    return _bits(event, reach, exposure, adjacency, delta)


@price.register
def _(event: FlippedBits, exposure: Participation, delta: float) -> PrivacyCost:
    adjacency = exposure.among("flipped bits", FIXED)
    as_sample = MaskSample(event.d, 0.0, event.p, None)  # hard bits are corners of [p, 1-p]^d
    return _bits(as_sample, None, exposure, adjacency, delta)


def _bits(
    event: MaskSample,
    reach: float | None,
    exposure: Participation,
    adjacency: Adjacency,
    delta: float,
) -> PrivacyCost:
    d, sigma, c, times = event.d, event.sigma, event.c, exposure.times
    response = RandomizedResponse(float(masks.marginal(c, sigma, c)), d * times)
    bounds = {"randomized-response": float(response.epsilon(delta))}
    if reach is not None and reach < masks.cube(d, c):
        probit = _probit(sigma, c)
        bounds["rdp"] = best_of(
            lambda orders: masks.mask_rdp(orders, d, sigma, c, reach).epsilon, times, delta
        )
        bounds["probit"] = gdp_epsilon(gdp_rounds(math.sqrt(probit) * reach, times), delta)
    sampler = exposure.visible()
    if exposure.sees in ("sum", "hidden-sum"):
        summed = _summed(d, exposure.honest, sigma, c, reach)
        bounds["secure-sum"] = rdp_to_dp(SUM_ORDERS, times * summed, delta)[0]
        sampler = f"sum of {exposure.honest} honest, {sampler}"
    if exposure.sees == "hidden-sum" and exposure.sampling == "fixed":
        full = None if event.radius is None else 2 * event.radius + math.sqrt(d) * 2.0**-23
        orders, sampled = _sampled_sum(d, exposure.surely, sigma, c, full, exposure.rate)
        bounds["sampled-sum"] = rdp_to_dp(orders, exposure.rounds * sampled, delta)[0]
        sampler += f", or hidden, {exposure.per_round} of {exposure.clients} in each"
    claimed = masks.paper_rdp(ORDERS, d, sigma, c, reach)
    paper = rdp_to_dp(ORDERS, times * claimed, delta)[0]
    return least(bounds, adjacency, sampler, paper)


@lru_cache(maxsize=32)
def _probit(sigma: float, c: float) -> float:
    return masks.probit_constant(sigma, c)


@lru_cache(maxsize=32)
def _summed(d: int, honest: int, sigma: float, c: float, reach: float | None) -> Floats:
    return sum_rdp(SUM_ORDERS, d, honest, sigma, c, reach)


@lru_cache(maxsize=32)
def _sampled_sum(
    d: int, honest: int, sigma: float, c: float, reach: float | None, rate: float
) -> tuple[Floats, Floats]:
    """Replace-one, also for zero-out: the client that comes instead may be any other."""
    pure = d * RandomizedResponse(float(masks.marginal(c, sigma, c)), 1).pure
    return sampling.fixed_size(
        rate, lambda orders: sum_rdp(orders, d, honest, sigma, c, reach), pure
    )


@price.register
def _(event: NoisySigns, exposure: Participation, delta: float) -> PrivacyCost:
    adjacency = exposure.among("noisy signs", FIXED)
    assert adjacency != "add-remove"
    mu = (2 if adjacency == "replace-one" else 1) / event.z
    times = exposure.times
    gauss = gdp_epsilon(gdp_rounds(mu, times), delta)
    bounds = {
        "rdp": best_of(
            lambda orders: sign_rdp(orders, event.d, event.z, adjacency).epsilon, times, delta
        ),
        "gaussian": gauss,
    }
    lie = float(ndtr(-1 / event.z))
    if lie > 1e-300:  # below it a sign is as good as sure, and the Gaussian bound is the least
        flips = RandomizedResponse(lie, event.d * times)
        bounds["randomized-response"] = float(flips.epsilon(delta))
    return least(bounds, adjacency, exposure.visible(), paper=gauss)


Shares = SkellamShare | BinomialCounts


@price.register
def _(event: SkellamShare, exposure: Participation, delta: float) -> PrivacyCost:
    return _shares(event, exposure, delta, skellam_rdp)


@price.register
def _(event: BinomialCounts, exposure: Participation, delta: float) -> PrivacyCost:
    return _shares(event, exposure, delta, poisson_binomial_rdp)


def _shares(
    event: Shares, exposure: Participation, delta: float, rdp: Callable[..., Floats]
) -> PrivacyCost:
    """Price a sum with so many honest shares of noise, or single messages with one share."""
    adjacency = exposure.among("shares of noise", FIXED)
    together = exposure.sees in ("sum", "hidden-sum")
    honest = exposure.honest if together else 1
    spent = exposure.times * _share_rdp(rdp, event, honest, adjacency)
    who = f"sum of {honest} honest" if together else "single messages"
    bounds = {"rdp": rdp_to_dp(SUM_ORDERS, spent, delta)[0]}
    return least(bounds, adjacency, f"{who}, {exposure.visible()}")


@lru_cache(maxsize=32)
def _share_rdp(
    rdp: Callable[..., Floats], event: Shares, honest: int, adjacency: Adjacency
) -> Floats:
    return rdp(SUM_ORDERS, event, honest, adjacency)


@price.register
def _(event: GaussianSum, exposure: Participation, delta: float) -> PrivacyCost:
    if exposure.sees != "model":
        raise NoTheorem(
            f"--sees {exposure.sees}: the server's noise comes after what is seen there; "
            "use --sees model"
        )
    fixed = exposure.sampling == "fixed"
    size = "a fixed number of clients comes from those that are there; use --sampling poisson"
    bit = "a client that learned nothing still sends its bit, which add-remove does not count"
    adjacency = exposure.among(
        f"{exposure.sampling} sampling under central noise",
        {
            "replace-one": None if fixed else "no theorem here for coins",
            "add-remove": size if fixed else None,
            "zero-out": bit if event.bits and not fixed else None,
        },
    )
    sampler = f"by a trusted server; hidden, {exposure.sampling} {exposure.per_round} of "
    sampler += f"{exposure.clients}, {exposure.rounds} rounds"
    if not fixed:
        bounds = gaussian.poisson_epsilons(
            event.z, exposure.rate, exposure.rounds, delta, exposure.slow
        )
        return least(bounds, adjacency, sampler)
    # a client that learned nothing is one that could have come instead: zero-out is a replacement
    orders, rdp = gaussian.fixed_size_rdp(event.z / 2, exposure.rate)
    bounds = {"rdp": rdp_to_dp(orders, exposure.rounds * rdp, delta)[0]}
    bounds["gaussian"] = gdp_epsilon(gdp_rounds(2 / event.z, exposure.rounds), delta)
    return least(bounds, adjacency, sampler)


@price.register
def _(event: GaussianGradients, exposure: Participation, delta: float) -> PrivacyCost:
    adjacency = exposure.among(
        "gradients of samples drawn by coins",
        {
            "zero-out": None,
            "add-remove": "steps and rate follow from the client's size, which is public",
            "replace-one": "no theorem here for coins",
        },
    )
    steps = event.steps * exposure.times
    bounds = gaussian.poisson_epsilons(event.z, event.rate, steps, delta, exposure.slow)
    sampler = f"{exposure.visible()}, {steps} steps, each sample by a coin of {event.rate:.3g}"
    return least(bounds, adjacency, sampler)
