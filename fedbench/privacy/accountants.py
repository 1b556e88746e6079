"""Accountants: every bound on epsilon that applies to an event, the least, and a run's ledger."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial, singledispatch
from typing import Literal

import numpy as np
from scipy.special import ndtr

from fedbench.api import Adjacency, DpEvent, Sees
from fedbench.core.blame import error_line, shown
from fedbench.core.choices import SUMS
from fedbench.core.errors import FedbenchError, NoTheorem, PluginError
from fedbench.privacy import amplification as masks
from fedbench.privacy import events, sampling
from fedbench.privacy.conversion import ORDERS, Floats, gdp_epsilon, gdp_rounds, rdp_to_dp
from fedbench.privacy.noise_ends import IDEAL_NOISE, beyond
from fedbench.privacy.randomized_response import RandomizedResponse
from fedbench.privacy.sums import SUM_ORDERS, poisson_binomial_rdp, skellam_rdp, sum_rdp

COARSE = 16  # expensive bounds are computed at every 16th order first
PRESENCE = "the number of messages shows who is there"
FIXED: dict[Adjacency, str | None] = {"replace-one": None, "zero-out": None, "add-remove": PRESENCE}


@dataclass(frozen=True)
class Participation:
    """How often an event happened, and what the adversary observes of it."""

    rounds: int  # of the run so far
    times: int  # rounds of the client that took part most often
    clients: int  # of the run, N
    per_round: int  # clients sampled in a round, on average under Poisson sampling
    honest: int  # fewest clients of any round so far that complied with the mechanism
    sees: Sees = "messages"
    # stratified: a fixed size, but not all sets alike; nothing is amplified
    sampling: Literal["fixed", "poisson", "stratified"] = "fixed"
    adjacency: Adjacency | None = None  # None: the first of the event that has a theorem
    noncompliant: int = 0  # clients that never comply; the adversary knows when they are drawn
    slow: bool = True  # use also the accountants that take a second

    @property
    def rate(self) -> float:
        """Largest probability that an honest client takes part in a round.

        Given ``k`` noncompliant clients in a round of fixed size ``n``, the others are ``n - k`` of
        the ``N - m`` honest clients: the rate is at most ``n / (N - m)``.
        """
        if self.sampling == "stratified":
            return 1.0
        if self.sampling == "poisson":
            return self.per_round / self.clients
        return min(1.0, self.per_round / max(1, self.clients - self.noncompliant))

    @property
    def surely(self) -> int:
        """Fewest honest clients in any round that might have been drawn."""
        return max(1, min(self.honest, self.per_round - self.noncompliant))

    @property
    def visible(self) -> str:
        """Sampler in words where the adversary sees who takes part."""
        return f"visible, {self.times} of {self.rounds} rounds"

    def among(self, event: str, reasons: dict[Adjacency, str | None]) -> Adjacency:
        """Return the adjacency that was asked for, by default the first with a theorem.

        ``reasons`` says for each why there is no theorem, in a `NoTheorem`; None where there is.
        """
        proved = [name for name, reason in reasons.items() if reason is None]
        asked = self.adjacency or proved[0]
        if asked not in proved:
            reason = reasons.get(asked, "no theorem is known")
            legal = " or ".join(proved)
            raise NoTheorem(f"--adjacency {asked} of {event}: {reason}; use {legal}")
        return asked


@dataclass(frozen=True)
class PrivacyCost:
    """Epsilon of the run so far, the least of all ``bounds``."""

    epsilon: float
    winner: str  # name of the least bound
    bounds: dict[str, float]
    adjacency: Adjacency
    sampler: str  # the participation that the bounds assume, in words
    paper: float | None = None  # epsilon that the mechanism's own paper would claim, if it differs
    note: str = ""  # assumption of all bounds that does not hold here


def least(
    bounds: dict[str, float], adjacency: Adjacency, sampler: str, paper: float | None = None
) -> PrivacyCost:
    """Return the cost whose epsilon is the least of these bounds."""
    winner = min(bounds, key=lambda name: bounds[name])
    return PrivacyCost(bounds[winner], winner, bounds, adjacency, sampler, paper)


@singledispatch
def price(event: DpEvent, participation: Participation, delta: float) -> PrivacyCost:
    """Return epsilon at ``delta`` of an event, by every bound; `NoTheorem` if nobody proved one."""
    raise NoTheorem(
        f"{type(event).__name__} has no accountant; register one with "
        "fedbench.privacy.accountants.price"
    )


def cost_of(event: DpEvent, participation: Participation, delta: float) -> PrivacyCost:
    """Return what `price` does, with a note where the noise that is drawn ends too early.

    `PluginError` if another package's accountant raises or errs.
    """
    accountant = price.dispatch(type(event))
    module = accountant.__module__
    named = f"accountant of {type(event).__qualname__} ({module})"
    try:
        answer: object = accountant(event, participation, delta)
    except FedbenchError:
        raise
    except Exception as error:
        if module.partition(".")[0] == "fedbench":  # our own logic keeps its traceback
            raise
        raise PluginError(named, "price", f"raised {error_line(error)}") from error
    if not isinstance(answer, PrivacyCost):
        raise PluginError(named, "price", f"must return a PrivacyCost, got {shown(answer)}")
    summed = participation.sees in SUMS
    honest = participation.honest if summed else 1
    seen = beyond(event, answer.adjacency, participation.rounds, participation.times, honest)
    return replace(answer, note=IDEAL_NOISE) if seen > delta / 1000 else answer


def best_of(rdp: Callable[[Floats], Floats], times: int, delta: float) -> float:
    """Epsilon of ``times`` rounds of ``rdp`` from every 16th order, then those around the best."""
    coarse = ORDERS[::COARSE]
    epsilon, order = rdp_to_dp(coarse, times * rdp(coarse), delta)
    at = int(np.searchsorted(ORDERS, order))
    near = ORDERS[max(0, at - COARSE // 2) : at + COARSE // 2 + 1]
    return min(epsilon, rdp_to_dp(near, times * rdp(near), delta)[0])


@price.register
def _(
    event: events.MaskSample | events.FlippedBits, participation: Participation, delta: float
) -> PrivacyCost:
    kind = "sampled masks"
    if isinstance(event, events.FlippedBits):
        kind = "flipped bits"
        event = events.MaskSample(event.d, 0.0, event.p, None)  # corners of [p, 1-p]^d
    adjacency = participation.among(kind, FIXED)
    d = event.d
    sigma = event.sigma
    c = event.c
    times = participation.times
    reach = replaced = None  # L2 sensitivity, with room for the rounding of float32
    if event.radius is not None:
        rounding = math.sqrt(d) * 2.0**-23
        replaced = 2 * event.radius + rounding
        reach = replaced if adjacency == "replace-one" else event.radius + rounding
    response = RandomizedResponse(float(masks.marginal(c, sigma, c)), d * times)
    bounds = {"randomized-response": float(response.epsilon(delta))}
    if reach is not None and reach < masks.cube(d, c):
        rdp = partial(masks.mask_rdp, d=d, sigma=sigma, c=c, sensitivity=reach)
        bounds["rdp"] = best_of(lambda orders: rdp(orders).epsilon, times, delta)
        mu = gdp_rounds(math.sqrt(masks.probit_constant(sigma, c)) * reach, times)
        bounds["probit"] = gdp_epsilon(mu, delta)
    sampler = participation.visible
    if participation.sees in ("sum", "hidden-sum"):
        summed = _summed(d, participation.honest, sigma, c, reach)
        bounds["secure-sum"] = rdp_to_dp(SUM_ORDERS, times * summed, delta)[0]
        sampler = f"sum of {participation.honest} honest, {sampler}"
    if participation.sees == "hidden-sum" and participation.sampling == "fixed":
        # zero-out is a replacement: the client that comes may be any
        rate = participation.rate
        orders, sampled = _sampled_sum(d, participation.surely, sigma, c, replaced, rate)
        bounds["sampled-sum"] = rdp_to_dp(orders, participation.rounds * sampled, delta)[0]
        sampler += f", or hidden, {participation.per_round} of {participation.clients} in each"
    claimed = masks.paper_rdp(ORDERS, d, sigma, c, reach)
    return least(bounds, adjacency, sampler, rdp_to_dp(ORDERS, times * claimed, delta)[0])


_summed = lru_cache(maxsize=32)(partial(sum_rdp, SUM_ORDERS))


@lru_cache(maxsize=32)
def _sampled_sum(
    d: int, honest: int, sigma: float, c: float, reach: float | None, rate: float
) -> tuple[Floats, Floats]:
    pure = d * RandomizedResponse(float(masks.marginal(c, sigma, c)), 1).pure
    rdp = partial(sum_rdp, d=d, n=honest, sigma=sigma, c=c, sensitivity=reach)
    return sampling.fixed_size(rate, rdp, pure)


@price.register
def _(event: events.NoisySigns, participation: Participation, delta: float) -> PrivacyCost:
    adjacency = participation.among("noisy signs", FIXED)
    mu = (2 if adjacency == "replace-one" else 1) / event.z
    times = participation.times
    gauss = gdp_epsilon(gdp_rounds(mu, times), delta)
    rdp = best_of(lambda a: masks.sign_rdp(a, event.d, event.z, adjacency).epsilon, times, delta)
    bounds = {"rdp": rdp, "gaussian": gauss}
    flipped = float(ndtr(-1 / event.z))
    if flipped > 1e-300:  # below it a sign is almost certain, and the Gaussian bound is the least
        response = RandomizedResponse(flipped, event.d * times)
        bounds["randomized-response"] = float(response.epsilon(delta))
    return least(bounds, adjacency, participation.visible, paper=gauss)


@price.register
def _(
    event: events.SkellamShare | events.BinomialCounts, participation: Participation, delta: float
) -> PrivacyCost:
    """Price a sum with the honest clients' shares of noise, or single messages with one share."""
    adjacency = participation.among("shares of noise", FIXED)
    together = participation.sees in ("sum", "hidden-sum")
    honest = participation.honest if together else 1
    spent = participation.times * _share_rdp(event, honest, adjacency)
    who = f"sum of {honest} honest" if together else "single messages"
    bounds = {"rdp": rdp_to_dp(SUM_ORDERS, spent, delta)[0]}
    return least(bounds, adjacency, f"{who}, {participation.visible}")


@lru_cache(maxsize=32)
def _share_rdp(
    event: events.SkellamShare | events.BinomialCounts, honest: int, adjacency: Adjacency
) -> Floats:
    if isinstance(event, events.SkellamShare):
        return skellam_rdp(SUM_ORDERS, event, honest, adjacency)
    return poisson_binomial_rdp(SUM_ORDERS, event, honest, adjacency)


@price.register
def _(event: events.GaussianSum, participation: Participation, delta: float) -> PrivacyCost:
    if participation.sees != "model":
        raise NoTheorem(
            f"--sees {participation.sees}: the server's noise comes after what is seen there; "
            "use --sees model"
        )
    fixed = participation.sampling != "poisson"
    size = "a fixed number of clients comes from those that are there; use --sampling poisson"
    bit = "a client that learned nothing still sends its bit, which add-remove does not count"
    adjacency = participation.among(
        f"{participation.sampling} sampling under central noise",
        {
            "replace-one": None if fixed else "no theorem here for coins",
            "add-remove": size if fixed else None,
            "zero-out": bit if event.bits and not fixed else None,
        },
    )
    rate = participation.rate
    rounds = participation.rounds
    sampler = f"by a trusted server; hidden, {participation.sampling} {participation.per_round} of "
    sampler += f"{participation.clients}, {rounds} rounds"
    if fixed:  # zero-out is a replacement: by a client that learned nothing
        bounds = {"gaussian": gdp_epsilon(gdp_rounds(2 / event.z, rounds), delta)}
        if participation.sampling == "fixed":
            orders, rdp = sampling.fixed_size_rdp(event.z / 2, rate)
            bounds = {"rdp": rdp_to_dp(orders, rounds * rdp, delta)[0]} | bounds
    else:
        bounds = sampling.poisson_epsilons(event.z, rate, rounds, delta, participation.slow)
    return least(bounds, adjacency, sampler)


@price.register
def _(event: events.GaussianGradients, participation: Participation, delta: float) -> PrivacyCost:
    adjacency = participation.among(
        "gradients of samples drawn by coins",
        {
            "zero-out": None,
            "add-remove": "steps and rate follow from the client's size, which is public",
            "replace-one": "no theorem here for coins",
        },
    )
    steps = event.steps * participation.times
    bounds = sampling.poisson_epsilons(event.z, event.rate, steps, delta, participation.slow)
    sampler = f"{participation.visible}, {steps} steps, each sample by a coin of {event.rate:.3g}"
    return least(bounds, adjacency, sampler)


@dataclass(eq=False)
class Ledger:
    """Events of a run, and the clients that caused them."""

    # by event: in how many rounds each client caused it
    local: dict[DpEvent, Counter[int]] = field(default_factory=dict)
    central: Counter[DpEvent] = field(default_factory=Counter)  # rounds by event of the whole round
    rounds: int = 0  # skipped ones too, since drawing a client is part of the sampling
    honest: int | None = None  # fewest clients of a round that added noise, which hides others too

    def add(self, events: Sequence[tuple[int, DpEvent]], central: DpEvent | None) -> None:
        """Add a round: the event of each client that complied, and that of the whole round."""
        self.rounds += 1
        for i, event in events:
            others = (counts for other, counts in self.local.items() if other != event)
            assert not any(i in counts for counts in others), "one kind of event for a client"
            self.local.setdefault(event, Counter())[i] += 1
        if central is not None:
            self.central[central] += 1
        elif events:
            self.honest = min(len(events), self.honest or len(events))

    def price(self, participation: Participation, delta: float) -> PrivacyCost | None:
        """Price the client with the largest epsilon; None if there were no events.

        Of ``participation``, ``rounds``, ``times`` and ``honest`` are replaced by the ledger's.
        """
        asked = replace(participation, rounds=self.rounds, honest=self.honest or 1)
        spent = [(event, max(counts.values())) for event, counts in self.local.items()]
        undominated = [s for s in spent if not any(_outdoes(other, s) for other in spent)]
        limits = [(_limit(s, delta), *s) for s in [*undominated, *self.central.items()]]
        worst: PrivacyCost | None = None
        for limit, event, times in sorted(limits, key=lambda limited: -limited[0]):
            if worst is not None and limit <= worst.epsilon:
                break
            cost = cost_of(event, replace(asked, times=times), delta)
            if worst is None or cost.epsilon > worst.epsilon:
                worst = cost
        return worst


Spent = tuple[DpEvent, int]


def _outdoes(other: Spent, spent: Spent) -> bool:
    """True if the other takes no fewer steps at no smaller sampling rate, and is not the same."""
    more, more_times = other
    less, less_times = spent
    kind = events.GaussianGradients
    if not (isinstance(more, kind) and isinstance(less, kind) and more.z == less.z):
        return False
    more_steps = more.steps * more_times
    less_steps = less.steps * less_times
    same = more.rate == less.rate and more_steps == less_steps
    return more.rate >= less.rate and more_steps >= less_steps and not same


def _limit(spent: Spent, delta: float) -> float:
    """Return a quick upper bound on epsilon; below another event's epsilon it is not priced."""
    event, times = spent
    if isinstance(event, events.GaussianGradients):
        return sampling.rough_epsilon(event.z, event.rate, event.steps * times, delta)
    return math.inf
