"""Cohorts: the clients that a round samples, and the number of malicious ones among them.

The number of malicious rows ``K`` of a round of ``n`` clients, of which ``m`` of ``N`` are
malicious, is hypergeometric under random cohorts. A rule that is prepared for ``f`` rows promises
nothing in a round with ``K > f``, and one such round in a run may be enough to lose it.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache

import torch

from fedbench.adversary.threat_model import MaliciousClients, malicious_clients
from fedbench.core.permutations import MAX_LISTED, distinct
from fedbench.core.rng import Key, Secret
from fedbench.experiment import availability
from fedbench.experiment.scenario import Scenario

PURPOSE = "run"  # of the secret that a run draws from; how data are dealt has one of its own
RISK = 0.01  # share of runs in which what holds in every round of the others may fail


def draw(scenario: Scenario, malicious: MaliciousClients, secret: Secret, step: int) -> list[int]:
    """Return the clients of a round, in an order that says nothing about them.

    A stratified cohort has as many malicious clients as the whole part of `share`, one more by a
    coin of its remainder, and is filled with benign ones; both kinds are drawn without replacement.
    Of more than `MAX_LISTED` clients no list is made.
    """
    key = secret.key("sample", step)
    clients = scenario.clients
    if scenario.sampling == "poisson":
        return _by_coins(key, clients, scenario.per_round / clients)
    if scenario.cohorts == "random":
        return distinct(key, clients, scenario.per_round).tolist()
    least, rest = share(scenario)
    coin = secret.key("cohort", step).integers(clients, 1)
    count = least + int(coin < rest)
    if clients <= MAX_LISTED:
        order = key.permutation(clients)
        mask = malicious[order]
        benign = order[~mask][: scenario.per_round - count]
        chosen = torch.cat([order[mask][:count], benign])
    else:
        owned = malicious.count
        benign = distinct(key.fold("benign"), clients - owned, scenario.per_round - count)
        places = [distinct(key.fold("malicious"), owned, count), owned + benign]
        chosen = malicious.order[torch.cat(places)]
    return chosen[secret.key("rows", step).permutation(len(chosen))].tolist()


def _by_coins(key: Key, clients: int, rate: float) -> list[int]:
    """Draw each client with probability ``rate``: many by their number, which is binomial."""
    if clients <= MAX_LISTED:
        return key.sampled(clients, rate).nonzero()[:, 0].tolist()
    count = int(key.fold("count").numpy().binomial(clients, rate))
    return distinct(key.fold("clients"), clients, count).tolist()


def rounds(scenario: Scenario) -> Iterator[tuple[list[int], int, int]]:
    """Yield each round's senders in a resolved run, and how many are malicious or dropped out.

    All follow from the seed (and a trace), so a record can be checked without playing it. The
    malicious ones are counted among those that send.
    """
    secret = Secret.of(scenario.seed, PURPOSE)
    malicious = malicious_clients(scenario.clients, scenario.malicious, secret.key("malicious"))
    for step in range(scenario.rounds):
        asked = draw(scenario, malicious, secret, step)
        ids = [asked[place] for place in present(scenario, secret, step, asked)]
        yield ids, int(malicious[ids].sum()), len(asked) - len(ids)


def present(scenario: Scenario, secret: Secret, step: int, ids: Sequence[int]) -> list[int]:
    """Return the places, in a round of the clients ``ids``, of those that do not drop out."""
    return _availability(scenario.availability).places(ids, step, secret.key("availability", step))


_availability = lru_cache(maxsize=8)(availability.parse)


def share(scenario: Scenario) -> tuple[int, int]:
    """Return the whole part of ``n m / N``, and the remainder in units of ``1 / N``.

    It is the mean number of malicious rows in a round.

    >>> share(Scenario(clients=50, per_round=10, malicious=0.1))
    (1, 0)
    >>> share(Scenario(clients=50, per_round=10, malicious=0.14))
    (1, 20)
    """
    return divmod(scenario.per_round * scenario.owned, scenario.clients)


def declared(scenario: Scenario) -> int:
    """Return the number ``f`` of malicious rows in a round that the declared share means.

    >>> declared(Scenario(per_round=10, malicious=0.1, declared=0.25))
    3
    """
    share = scenario.malicious if scenario.declared is None else scenario.declared
    return math.ceil(share * scenario.per_round - 1e-9)


def exceeds(scenario: Scenario, f: int) -> float:
    """Return the chance that a round samples more than ``f`` malicious clients, exactly.

    Their number is hypergeometric, under Poisson sampling binomial; stratified it is `share`,
    rounded down or up.
    """
    from scipy.stats import binom, hypergeom

    if scenario.cohorts == "stratified":
        least, rest = share(scenario)
        return rest / scenario.clients if least == f else float(least > f)
    if scenario.sampling == "poisson":
        return float(binom.sf(f, scenario.owned, scenario.per_round / scenario.clients))
    return float(hypergeom.sf(f, scenario.clients, scenario.owned, scenario.per_round))


def in_a_run(chance: float, rounds: int) -> float:
    """Return the chance of at least one round of a kind in a run: ``1 - (1 - chance)^rounds``.

    >>> in_a_run(0.5, 2)
    0.75
    """
    return -math.expm1(rounds * math.log1p(-chance)) if chance < 1 else 1.0


def covering(scenario: Scenario, risk: float = RISK) -> int:
    """Return the least ``f`` that no round of a run exceeds, but in a share ``risk`` of runs."""

    def covers(f: int) -> bool:
        return in_a_run(exceeds(scenario, f), scenario.rounds) <= risk

    return bisect_left(range(scenario.owned), True, key=covers)


def divergence(a: float, b: float) -> float:
    """Return ``D(a, b) = a ln(a/b) + (1-a) ln((1-a)/(1-b))`` of two coins in (0, 1), in nats."""
    return a * math.log(a / b) + (1 - a) * math.log((1 - a) / (1 - b))


def sufficient_cohort(scenario: Scenario) -> int | None:
    """Return the cohort from which on a bound keeps malicious rows below half; None without one.

    Below half in every round of all but a share `RISK` of runs of ``T`` rounds: it is the least
    ``n >= ln(T / RISK) / D(1/2, m/N)``, and at most ``N``. *Proof.* Chernoff's bound of a binomial
    tail holds of the hypergeometric one, ``P(K >= n/2) <= exp(-n D(1/2, m/N))`` (Hoeffding), and
    rounds add up. ∎

    Condition (5) of Allouah et al. asks likewise, for a bound ``b`` on the malicious ones of ``n``
    rows with ``m/N <= b/n < 1/2``, that in every round fewer than ``b`` are malicious with a given
    probability, by the relative entropy of two coins; ``b = n/2`` is the weakest bound that it can
    ask for. Its constants could not be read, so this is not called theirs. For a cohort that is
    fixed `covering` says the least bound exactly, and `exact_cohort` is never above this one.

    References:
        Hoeffding, "Probability inequalities for sums of bounded random variables", JASA 1963,
        https://doi.org/10.1080/01621459.1963.10500830, Theorem 1 and section 6;
        Allouah et al., "Byzantine-Robust Federated Learning: Impact of Client Subsampling and Local
        Updates", ICML 2024, https://arxiv.org/abs/2402.12780.
    """
    clients = scenario.clients
    if 2 * scenario.owned >= clients:
        return None
    if scenario.owned == 0:
        return 1
    least = math.log(scenario.rounds / RISK) / divergence(0.5, scenario.owned / clients)
    return min(clients, math.ceil(least))


def exact_cohort(scenario: Scenario) -> int | None:
    """Return the cohort from which on malicious rows are below half by their exact law, or None.

    Below half in every round of all but a share `RISK` of runs, for this cohort and all larger
    ones. Only even cohorts ``2 h`` are tried: with ``2 h - 1`` clients ``h`` malicious rows are
    half or more, too, and are less likely.
    """
    clients = scenario.clients
    if 2 * scenario.owned >= clients:
        return None

    def below(half: int) -> bool:
        cohort = {"per_round": 2 * half, "cohorts": "random", "sampling": "fixed"}
        chance = exceeds(scenario.model_copy(update=cohort), half - 1)
        return in_a_run(chance, scenario.rounds) <= RISK

    halves = range(1, clients // 2 + 1)
    first = bisect_left(halves, True, key=below)
    return 2 * halves[first] - 1 if first < len(halves) else clients
