"""FedPM's Figure 5 again, epsilon against the error of a distributed mean: claimed, true, exact.

``N`` clients hold ``theta (d,)`` in ``[c, 1-c]^d`` each; one sends ``m ~ Bern(clip(theta + sigma
Z, c, 1-c))``, and the server estimates the mean of the ``theta`` from the mean of the ``m``. The
error is the paper's ``|estimate - mean|²``, summed over the ``d`` coordinates. Neighbours differ by
a whole client (``Delta = (1-2c) sqrt(d)``): local privacy of one release. The paper has ``N = 100``
and gives the range of its ``theta``, "independent", but not their distribution: here by `DATA`.

References:
    Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning" (FedPM),
    ICLR 2023, https://arxiv.org/abs/2209.15328, Appendix C, Figures 4 and 5.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import chart
import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr

from fedbench.core.errors import ConfigError, require
from fedbench.core.files import writable, write_atomically
from fedbench.core.rng import Key
from fedbench.privacy.amplification import cube, inverse_marginal, marginal, r_alpha
from fedbench.privacy.conversion import (
    ORDERS,
    Floats,
    bisect,
    check_claim,
    check_delta,
    check_orders,
    gdp_delta,
    gdp_epsilon,
    rdp_to_dp,
)
from fedbench.privacy.randomized_response import RandomizedResponse

D = 5
C = 0.2
CLIENTS = 100  # the paper's N
MOST_CLIENTS = 10_000
SENSITIVITY = cube(D, C)
ORDER = 5  # at which the paper's 8.96 comes out; the paper names none
DATA = ("uniform", "skewed", "shared")  # laws of theta, see `draw_theta`
SHOWN = ("uniform", "skewed")  # by default
CLAIMED = (0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 9.0, 12.0, 16.0, 32.0, 64.0)
EXACT = (0.5, 1.0, 2.0, 4.0, 6.0)
CURVE = tuple(float(epsilon) for epsilon in np.geomspace(0.1, 256, 65))
BLOCK = 50_000  # clients at once, in all repetitions together: their numbers stay in cache
GRID = np.linspace(C, 1 - C, 2401)
EPSILONS = ("claimed", "gaussian", "claimed-min", "honest-min", "exact")
ESTIMATES = ("raw", "printed", "inverted", "affine", "affine-clipped", "no-bits")

Errors = dict[str, tuple[float, float]]  # by estimate: mean of the error and its standard error


def rdp_to_dp_mironov(
    orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: float
) -> tuple[float, float]:
    """Return the least ``eps(a) + ln(1/delta)/(a-1)``, and its order: the papers' conversion.

    References:
        Mironov, "Rényi Differential Privacy", CSF 2017, https://arxiv.org/abs/1702.07476,
        Proposition 3; the FedPM paper, Remark C.1.
    """
    alpha = check_orders(orders)
    epsilons = np.asarray(rdp, dtype=np.float64) - math.log(delta) / (alpha - 1)
    at = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[at])), float(alpha[at])


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest ``mu`` whose `gdp_delta` at ``epsilon`` is at most ``delta``."""
    check_delta(delta)
    require("epsilon", epsilon, 0 <= epsilon < math.inf, ">= 0 and finite")
    high = 1.0
    while gdp_delta(high, epsilon) <= delta:
        high *= 2
    return bisect(lambda mu: gdp_delta(mu, epsilon) > delta, 0.0, high)[0]


@dataclass(frozen=True)
class Point:
    """Privacy and errors at one ``sigma``.

    Args:
        sigma: Standard deviation of the noise on every coordinate of ``theta``.
        invertible: Whether `printed_mean` rises on [c, 1-c], so that it has an inverse.
        epsilons: By name in `EPSILONS`, see `epsilons`.
        errors: By law in `DATA`, then by name in `ESTIMATES`. ``no-bits`` has the same exact
            epsilon by Gaussian noise of another ``sigma`` on real numbers.
    """

    sigma: float
    invertible: bool
    epsilons: dict[str, float]
    errors: dict[str, Errors]


@dataclass(frozen=True)
class Figure5:
    """All points of the figure; each is measured on the same draws.

    Args:
        clients: Their number, ``N``.
        delta: Of every epsilon.
        seed: Of the draws.
        repetitions: Of the experiment.
        caps: What ``claimed-min`` and ``honest-min`` never exceed.
        claims: Points at `CLAIMED`.
        equal: Points at `EXACT`, those that clipped bits can have.
        curve: Points at `CURVE`, for smooth lines.
        controls: By law in `DATA`: ``no-dp``, bits of ``theta`` itself, and ``constant``, the
            estimate 1/2 that needs no data.
    """

    clients: int
    delta: float
    seed: int
    repetitions: int
    caps: dict[str, float]
    claims: list[Point]
    equal: list[Point]
    curve: list[Point]
    controls: dict[str, Errors]


def classical_sigma(epsilon: float, delta: float) -> float:
    """Return ``Delta sqrt(2 ln(1.25/delta)) / epsilon``, a theorem for epsilon < 1 only (E4).

    References:
        Dwork, Roth, "The Algorithmic Foundations of Differential Privacy", 2014,
        https://doi.org/10.1561/0400000042, Theorem A.1; FedPM, Appendix C.
    """
    return SENSITIVITY * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def printed_cap(delta: float) -> float:
    """Return what the paper calls ``d r_alpha(c) = 8.96``: ``d r_5(c) + ln(1/delta)/4`` (E3)."""
    return rdp_to_dp_mironov([ORDER], D * r_alpha([ORDER], C), delta)[0]


def honest_cap(delta: float) -> float:
    """Return the same bound at its best order; never above the pure ``d ln((1-c)/c) = 6.931``."""
    pure = D * math.log((1 - C) / C)
    return min(pure, rdp_to_dp(ORDERS, D * r_alpha(ORDERS, C), delta)[0])


def exact_epsilon(sigma: float, delta: float) -> float:
    """Return the epsilon of the bits themselves (Theorem A of `fedbench.privacy.amplification`)."""
    return float(RandomizedResponse(float(marginal(C, sigma, C)), D).epsilon(delta))


def exact_sigma(epsilon: float, delta: float) -> float | None:
    """Return the ``sigma`` with this `exact_epsilon`; None if clipped bits alone give less away."""
    if epsilon >= exact_epsilon(0.0, delta):
        return None
    return float(
        np.exp(brentq(lambda x: exact_epsilon(math.exp(x), delta) - epsilon, -20, 10, xtol=1e-13))
    )


def epsilons(sigma: float, delta: float) -> dict[str, float]:
    """Return the epsilon of one release, counted in the five ways of `EPSILONS`.

    ``claimed`` inverts `classical_sigma`, ``claimed-min`` is the paper's ``min{eps, 8.96}``,
    ``gaussian`` is the exact price of the noise alone, ``honest-min`` the least of that and of
    `honest_cap`, ``exact`` is `exact_epsilon`.
    """
    claimed = classical_sigma(1.0, delta) / sigma
    gaussian = gdp_epsilon(SENSITIVITY / sigma, delta)
    return {
        "claimed": claimed,
        "gaussian": gaussian,
        "claimed-min": min(claimed, printed_cap(delta)),
        "honest-min": min(gaussian, honest_cap(delta)),
        "exact": exact_epsilon(sigma, delta),
    }


def printed_mean(theta: npt.ArrayLike, sigma: float, c: float) -> Floats:
    """Return ``E[theta^]`` as FedPM's last line prints it, any shape: not the `marginal` (E2).

    It has ``e^(-2(c-theta)-1) - 1`` where the line before it gives
    ``e^(-(1-2c)(1-2theta)/(2 sigma²)) - 1``, and can leave ``[c, 1-c]``.

    References:
        FedPM, Appendix C, last line of the expectation after Equation 13; ``Phi`` is there the
        distribution function of the noise, of scale ``sigma``.
    """
    t = np.asarray(theta, dtype=np.float64)
    scale = max(sigma, 1e-300)
    low = c - t
    high = 1 - c - t
    with np.errstate(over="ignore"):
        bell = sigma / math.sqrt(2 * math.pi) * np.exp(-((low / scale) ** 2) / 2)
        mean = 1 - c - high * ndtr(high / scale) + low * ndtr(low / scale)
    return np.asarray(mean - bell * np.expm1(-2 * low - 1))


def affine_slope(sigma: float) -> float:
    """Return ``k`` such that ``m ~ Bern(1/2 + k (theta - 1/2))`` costs what the masks cost."""
    return (0.5 - float(marginal(C, sigma, C))) / (0.5 - C)


def estimates(sigma: float, clients: int) -> dict[str, Floats]:
    """Return estimates of the mean of ``theta`` by the number of ones, ``(clients + 1,)`` each.

    ``printed`` is the least ``theta`` in [c, 1-c] at which `printed_mean` is nearest to the share
    of ones; ``inverted`` the inverse of the `marginal`, which is biased for a mean over clients, by
    Jensen, unless they share their ``theta`` (E2).
    """
    ones = np.arange(clients + 1) / clients
    distance = np.abs(printed_mean(GRID, sigma, C) - ones[:, None])
    affine = 0.5 + (ones - 0.5) / affine_slope(sigma)
    return {
        "raw": ones,
        "printed": GRID[distance.argmin(axis=1)],
        "inverted": inverse_marginal(ones, sigma, C),
        "affine": affine,
        "affine-clipped": np.clip(affine, C, 1 - C),
    }


def draw_theta(data: str, generator: np.random.Generator, count: int, clients: int) -> Floats:
    """Return ``theta (count, d, clients)`` of ``count`` repetitions by one law of `DATA`.

    - ``uniform``: every number is independent and uniform on [c, 1-c].
    - ``skewed``: every number is independent, 1-c with probability 0.15, else c.
    - ``shared``: each repetition draws one vector, uniform on [c, 1-c]^d, which is the ``theta`` of
      every client: nothing scatters around it. The last dimension is 1.
    """
    place = generator.random((count, 1 if data == "shared" else clients, D))
    place = np.ascontiguousarray(place.transpose(0, 2, 1))
    return np.asarray(C + (1 - 2 * C) * (place < 0.15 if data == "skewed" else place))


def simulate(
    data: str,
    clients: int,
    tables: Mapping[float, dict[str, Floats]],
    repetitions: int,
    key: Key,
) -> tuple[dict[float, Errors], Errors]:
    """Return the errors of all `estimates`, by ``sigma``, and those of the controls."""
    samples = {sigma: {name: list[Floats]() for name in table} for sigma, table in tables.items()}
    controls = {"no-dp": list[Floats](), "constant": list[Floats]()}
    block = BLOCK // clients  # always drawn whole, so that more repetitions begin like fewer
    for start in range(0, repetitions, block):
        generator = key.fold(data, start).numpy()
        count = min(block, repetitions - start)
        theta = draw_theta(data, generator, block, clients)[:count]
        noise = generator.standard_normal((block, clients, D))[:count]
        coin = generator.random((block, clients, D))[:count]
        # clients last, which counts fastest
        noise = np.ascontiguousarray(noise.transpose(0, 2, 1))
        coin = np.ascontiguousarray(coin.transpose(0, 2, 1))
        truth = theta.mean(axis=2)
        controls["no-dp"].append(squared((coin < theta).mean(axis=2) - truth))
        controls["constant"].append(squared(0.5 - truth))
        for sigma, table in tables.items():
            bits = coin < np.clip(theta + sigma * noise, C, 1 - C)
            masks = np.count_nonzero(bits, axis=2)
            bits = coin < 0.5 + affine_slope(sigma) * (theta - 0.5)
            responses = np.count_nonzero(bits, axis=2)
            for name, estimate in table.items():
                ones = responses if name.startswith("affine") else masks
                samples[sigma][name].append(squared(estimate[ones] - truth))
    return {sigma: summary(errors) for sigma, errors in samples.items()}, summary(controls)


def squared(x: Floats) -> Floats:
    """Return ``|x|²`` of each row of ``x (n, d)``."""
    return np.asarray((x * x).sum(axis=1))


def summary(samples: Mapping[str, Sequence[Floats]]) -> Errors:
    """Return the mean and the standard error of each list of samples."""
    joined = {name: np.concatenate(blocks) for name, blocks in samples.items()}
    return {
        name: (float(error.mean()), float(error.std(ddof=1) / math.sqrt(len(error))))
        for name, error in joined.items()
    }


def play(clients: int, laws: Sequence[str], delta: float, seed: int, repetitions: int) -> Figure5:
    """Return the whole experiment, on each of the ``laws`` of the data."""
    claims = [classical_sigma(epsilon, delta) for epsilon in CLAIMED]
    equal = [s for s in (exact_sigma(epsilon, delta) for epsilon in EXACT) if s is not None]
    sigmas = [*claims, *equal, *(classical_sigma(epsilon, delta) for epsilon in CURVE)]
    tables = {sigma: estimates(sigma, clients) for sigma in sigmas}
    key = Key(seed).fold("figure5")
    simulated = {data: simulate(data, clients, tables, repetitions, key) for data in laws}
    points = []
    for sigma in sigmas:
        prices = epsilons(sigma, delta)
        no_bits = D * (SENSITIVITY / gdp_mu(prices["exact"], delta)) ** 2 / clients
        errors = {data: simulated[data][0][sigma] | {"no-bits": (no_bits, 0.0)} for data in laws}
        rises = bool((np.diff(printed_mean(GRID, sigma, C)) > 0).all())
        points.append(Point(sigma, rises, prices, errors))
    caps = {"claimed-min": printed_cap(delta), "honest-min": honest_cap(delta)}
    first = len(claims)
    second = first + len(equal)
    parts = points[:first], points[first:second], points[second:]
    controls = {data: simulated[data][1] for data in laws}
    return Figure5(clients, delta, seed, repetitions, caps, *parts, controls)


def table(points: Sequence[Point], data: str) -> Iterator[str]:
    """Yield the lines of a Markdown table; ``*`` marks a formula that has no inverse."""
    yield "| " + " | ".join(("sigma", *EPSILONS, *ESTIMATES)) + " |"
    yield "|" + " --: |" * (1 + len(EPSILONS) + len(ESTIMATES))
    for point in points:
        errors = {name: f"{mean:.3g}" for name, (mean, _) in point.errors[data].items()}
        errors["printed"] += "" if point.invertible else "*"
        prices = [f"{point.epsilons[name]:.4g}" for name in EPSILONS]
        cells = [f"{point.sigma:.3g}", *prices, *(errors[name] for name in ESTIMATES)]
        yield "| " + " | ".join(cells) + " |"


def report(figure: Figure5) -> Iterator[str]:
    """Yield what the command prints: two tables for each law of the data, and the controls."""
    for data, controls in figure.controls.items():
        yield f"from strong noise to weak, {data} theta\n"
        yield from (*table(figure.claims, data), "")
        yield f"at one exact epsilon, {data} theta\n"
        yield from (*table(figure.equal, data), "")
        means = ", ".join(f"{name} {mean:.3g}" for name, (mean, _) in controls.items())
        yield f"{data} theta without noise: {means}"
        points = (*figure.claims, *figure.equal)
        errors = [error for point in points for error in point.errors[data].values()]
        widest = max(se / mean for mean, se in [*errors, *controls.values()])
        yield f"{data} theta: standard errors are at most {100 * widest:.2g} %\n"


def laws(text: str) -> list[str]:
    """Return the names in ``text``, laws of `DATA` with commas between them."""
    names = text.split(",")
    for name in names:
        require("--data", name, name in DATA, f"one of {', '.join(DATA)}")
    return names


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=CLIENTS, help="number of clients, N")
    parser.add_argument(
        "--data",
        action="append",
        help=f"laws of theta, with commas between them: {', '.join(DATA)}; by default "
        f"{','.join(SHOWN)}",
    )
    parser.add_argument("--delta", type=float, help="delta of every epsilon; by default 1/N²")
    parser.add_argument("--repetitions", type=int, default=2000, help="times it is repeated")
    parser.add_argument("--seed", type=int, default=0, help="seed of theta, noise and bits")
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder to write")
    given = parser.parse_args(words)
    try:
        in_range = 2 <= given.clients <= MOST_CLIENTS
        require("--clients", given.clients, in_range, f"in [2, {MOST_CLIENTS}]")
        shown = list(dict.fromkeys(laws(",".join(given.data or SHOWN))))
        delta = given.clients**-2 if given.delta is None else given.delta
        check_claim(delta)
        require("--repetitions", given.repetitions, given.repetitions >= 2, ">= 2")
        writable(given.out)
    except ConfigError as error:
        parser.error(str(error))
    figure = play(given.clients, shown, delta, given.seed, given.repetitions)
    numbers = given.out / "figure5.json"
    picture = given.out / "figure5.png"
    write_atomically(numbers, (json.dumps(asdict(figure), indent=1) + "\n").encode())
    chart.draw(figure, picture)
    print("\n".join(report(figure)))
    print(f"wrote {picture} and {numbers}", file=sys.stderr)


if __name__ == "__main__":
    main()
