"""FedPM's Figure 5 again, epsilon against the error of a distributed mean: claimed, true, exact.

``N`` clients hold ``theta (d,)`` in ``[c, 1-c]^d`` each; one sends ``m ~ Bern(clip(theta + sigma
Z, c, 1-c))``, and the server estimates the mean of the ``theta`` from the mean of the ``m``. The
error is the paper's ``|estimate - mean|²``, summed over the ``d`` coordinates, not divided by them;
its mean is over ``theta``, noise and bits. Neighbours differ by a whole client, anything to
anything (``Delta = (1-2c) sqrt(d)``): local privacy of one release. The paper does not say how its
``theta`` are distributed on ``[c, 1-c]``; here independently, by `DATA`.

References:
    Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning" (FedPM),
    ICLR 2023, https://arxiv.org/abs/2209.15328, Appendix C, Figures 4 and 5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.privacy.amplification import cube, marginal, r_alpha
from fedbench.privacy.conversion import (
    ORDERS,
    Floats,
    check_delta,
    gdp_epsilon,
    gdp_mu,
    rdp_to_dp,
    rdp_to_dp_mironov,
)
from fedbench.privacy.inverse import inverse_marginal, printed_mean
from fedbench.privacy.randomized_response import RandomizedResponse

N, D, C = 100, 5, 0.2
SENSITIVITY = cube(D, C)
ORDER = 5  # at which the paper's 8.96 comes out; the paper names none
DATA = {
    "uniform": "theta uniform on [0.2, 0.8]: the paper's range, its mean is 1/2",
    "skewed": "theta = 0.8 with probability 0.15, else 0.2",
}
CLAIMED = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 9.0, 12.0, 16.0, 32.0, 64.0)
EXACT = (0.5, 1.0, 2.0, 4.0, 6.0)
CURVE = tuple(float(epsilon) for epsilon in np.geomspace(0.1, 256, 65))
BLOCK = 500  # repetitions at once: half a million numbers stay in cache
GRID = np.linspace(C, 1 - C, 2401)


@dataclass(frozen=True)
class Error:
    """A squared error, over repetitions.

    Args:
        mean: Summed over the ``d`` coordinates.
        se: Standard error of ``mean``.
    """

    mean: float
    se: float


@dataclass(frozen=True)
class Point:
    """What one ``sigma`` costs, by who counts, and what it gives, by who estimates.

    Args:
        sigma: Standard deviation of the noise on every coordinate of ``theta``.
        epsilons: See `epsilons`.
        errors: By name in `DATA`, then as in `estimates`, and ``no-bits``: the same exact epsilon
            by real numbers, Gaussian noise of another ``sigma`` and nothing else.
    """

    sigma: float
    epsilons: dict[str, float]
    errors: dict[str, dict[str, Error]]


@dataclass(frozen=True)
class Figure5:
    """All points; the draws of ``theta``, noise and bits are the same in each of them.

    Args:
        delta: Of every epsilon.
        seed: Of the draws.
        repetitions: Of the experiment.
        claims: At `CLAIMED`.
        equal: At `EXACT`, those that can be had.
        curve: At `CURVE`, for smooth lines.
        controls: By name in `DATA`: ``no-dp``, bits of ``theta`` itself, and ``constant``, the
            estimate 1/2 that needs no data.
    """

    delta: float
    seed: int
    repetitions: int
    claims: list[Point]
    equal: list[Point]
    curve: list[Point]
    controls: dict[str, dict[str, Error]]


def classical_sigma(epsilon: float, delta: float) -> float:
    """``Delta sqrt(2 ln(1.25/delta)) / eps``, the paper's: a theorem for ``eps < 1`` only (E4).

    >>> round(classical_sigma(9.0, 1e-4), 3)
    0.648

    References:
        Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014,
        https://doi.org/10.1561/0400000042, Theorem A.1; FedPM, Appendix C.
    """
    check_delta(delta)
    require("epsilon", epsilon, 0 < epsilon < math.inf, "> 0 and finite")
    return SENSITIVITY * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def printed_cap(delta: float) -> float:
    """What the paper calls ``d r_alpha(c) = 8.96``: ``d r_5(c) + ln(1/delta)/4`` (E3).

    Inferred: of all whole orders only 5 gives 8.96, by Remark C.1 at ``delta = 1/N²``.

    >>> round(printed_cap(1e-4), 3)
    8.955
    """
    return rdp_to_dp_mironov([ORDER], D * r_alpha([ORDER], C), delta)[0]


def honest_cap(delta: float) -> float:
    """The same bound at its best order; never above the pure ``d ln((1-c)/c) = 6.931``."""
    pure = D * math.log((1 - C) / C)
    return min(pure, rdp_to_dp(ORDERS, D * r_alpha(ORDERS, C), delta)[0])


def exact_epsilon(sigma: float, delta: float) -> float:
    """What the bits give away, no more and no less (`amplification`, Theorem A)."""
    return float(RandomizedResponse(float(marginal(C, sigma, C)), D).epsilon(delta))


def exact_sigma(epsilon: float, delta: float) -> float | None:
    """The ``sigma`` whose `exact_epsilon` is ``epsilon``; None if clipped bits alone give less."""
    if epsilon >= exact_epsilon(0.0, delta):
        return None
    return float(
        np.exp(brentq(lambda x: exact_epsilon(math.exp(x), delta) - epsilon, -20, 10, xtol=1e-13))
    )


def epsilons(sigma: float, delta: float) -> dict[str, float]:
    """Epsilon of one release at ``delta``, counted in five ways.

    ``claimed`` inverts `classical_sigma`; ``claimed-min`` is the paper's ``min{eps, 8.96}``;
    ``gaussian`` is what the noise alone really costs; ``honest-min`` is the least of that and of
    `honest_cap`, never more than the paper's ``min{eps, d r_alpha(c)}`` of one release, converted
    at its best order; ``exact`` is `exact_epsilon`.
    """
    claimed = classical_sigma(1.0, delta) / sigma
    gaussian = gdp_epsilon(SENSITIVITY / sigma, delta)
    return {
        "claimed": claimed,
        "claimed-min": min(claimed, printed_cap(delta)),
        "gaussian": gaussian,
        "honest-min": min(gaussian, honest_cap(delta)),
        "exact": exact_epsilon(sigma, delta),
    }


def invertible(sigma: float) -> bool:
    """Whether the formula that the paper prints for ``E clip(theta + sigma Z)`` rises on [c, 1-c].

    >>> invertible(0.7), invertible(1.0)
    (True, False)
    """
    return bool((np.diff(printed_mean(GRID, sigma, C)) > 0).all())


def affine_slope(sigma: float) -> float:
    """``k = (1/2 - p(c)) / (1/2 - c)``: ``m ~ Bern(1/2 + k (theta - 1/2))`` costs the same."""
    return (0.5 - float(marginal(C, sigma, C))) / (0.5 - C)


def estimates(sigma: float) -> dict[str, Floats]:
    """Of the mean of ``theta``, from ``0 .. N`` ones among ``N`` bits, ``(N + 1,)`` each.

    ``raw`` is the share of ones. ``printed`` is the ``theta`` in [c, 1-c] at which the formula that
    the paper prints is nearest to that share, the least such one: its inverse, where it has one
    (`invertible`). ``inverted`` is the inverse of the right formula, `marginal`, clipped to
    [c, 1-c]; of a mean over clients it is biased, by Jensen (E2). ``affine`` is of the bits of
    `affine_slope`, unbiased; ``affine-clipped`` is the same in [c, 1-c].

    References:
        FedPM, Appendix C: "we use this relation to correct the bias", and no more on how.
    """
    ones = np.arange(N + 1) / N
    miss = np.abs(printed_mean(GRID, sigma, C) - ones[:, None])
    affine = 0.5 + (ones - 0.5) / affine_slope(sigma)
    return {
        "raw": ones,
        "printed": GRID[miss.argmin(axis=1)],
        "inverted": inverse_marginal(ones, sigma, C),
        "affine": affine,
        "affine-clipped": np.clip(affine, C, 1 - C),
    }


def draw(data: str, count: int, generator: np.random.Generator) -> Floats:
    """``(count, N, d)`` of ``theta``, by name in `DATA`."""
    uniform = generator.random((count, N, D))
    return C + (1 - 2 * C) * (uniform if data == "uniform" else (uniform < 0.15).astype(np.float64))


def simulate(
    data: str, tables: Mapping[float, dict[str, Floats]], repetitions: int, key: Key
) -> tuple[dict[float, dict[str, Error]], dict[str, Error]]:
    """Errors of all `estimates`, by ``sigma`` as they are given, and of the controls."""
    kept = {sigma: {name: list[Floats]() for name in table} for sigma, table in tables.items()}
    free = {"no-dp": list[Floats](), "constant": list[Floats]()}
    for start in range(0, repetitions, BLOCK):
        generator = key.fold(data, start).numpy()
        theta = draw(data, BLOCK, generator)[: repetitions - start]
        noise = generator.standard_normal((BLOCK, N, D))[: repetitions - start]
        coin = generator.random((BLOCK, N, D))[: repetitions - start]
        truth = theta.mean(axis=1)
        free["no-dp"].append(squared((coin < theta).mean(axis=1) - truth))
        free["constant"].append(squared(0.5 - truth))
        for sigma, table in tables.items():
            for name, estimate in estimate_from(theta, noise, coin, sigma, table).items():
                kept[sigma][name].append(squared(estimate - truth))
    return {sigma: _errors(errors) for sigma, errors in kept.items()}, _errors(free)


def estimate_from(
    theta: Floats, noise: Floats, coin: Floats, sigma: float, table: Mapping[str, Floats]
) -> dict[str, Floats]:
    """``(count, d)`` by every estimate in ``table``, of one release of ``theta (count, N, d)``."""
    masks = (coin < np.clip(theta + sigma * noise, C, 1 - C)).sum(axis=1)
    responses = (coin < 0.5 + affine_slope(sigma) * (theta - 0.5)).sum(axis=1)
    return {
        name: estimate[responses if name.startswith("affine") else masks]
        for name, estimate in table.items()
    }


def squared(x: Floats) -> Floats:
    """``|x|²`` of each row of ``x (n, d)``."""
    return np.asarray((x * x).sum(axis=1))


def _errors(kept: dict[str, list[Floats]]) -> dict[str, Error]:
    found = {}
    for name, blocks in kept.items():
        error = np.concatenate(blocks)
        found[name] = Error(float(error.mean()), float(error.std(ddof=1) / math.sqrt(len(error))))
    return found


def play(delta: float, seed: int, repetitions: int) -> Figure5:
    """The experiment, on both kinds of data."""
    require("repetitions", repetitions, repetitions >= 2, ">= 2")
    claims = [classical_sigma(epsilon, delta) for epsilon in CLAIMED]
    equal = [s for s in (exact_sigma(epsilon, delta) for epsilon in EXACT) if s is not None]
    sigmas = [*claims, *equal, *(classical_sigma(epsilon, delta) for epsilon in CURVE)]
    key = Key(seed).fold("figure5")
    tables = {sigma: estimates(sigma) for sigma in sigmas}
    played = {data: simulate(data, tables, repetitions, key) for data in DATA}
    points = []
    for sigma in sigmas:
        paid = epsilons(sigma, delta)
        wide = D * (SENSITIVITY / gdp_mu(paid["exact"], delta)) ** 2 / N
        errors = {data: played[data][0][sigma] | {"no-bits": Error(wide, 0.0)} for data in DATA}
        points.append(Point(sigma, paid, errors))
    return Figure5(
        delta,
        seed,
        repetitions,
        points[: len(claims)],
        points[len(claims) : len(claims) + len(equal)],
        points[len(claims) + len(equal) :],
        {data: controls for data, (_, controls) in played.items()},
    )
