"""The audit of one mechanism by itself: two neighbours, many releases, one count."""

from typing import Literal

import numpy as np
import torch

from fedbench.api import Adjacency, Release
from fedbench.audits.finding import AuditFinding
from fedbench.audits.pairs import worst_pair
from fedbench.audits.rates import CHOOSING, check_confidence, lower_bound
from fedbench.audits.releases import ReleaseBench
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.privacy.accountants import price
from fedbench.privacy.conversion import Floats, check_delta
from fedbench.privacy.participation import Participation


def audit(
    bench: ReleaseBench,
    delta: float,
    confidence: float,
    releases: int,
    key: Key,
    sampling: Literal["fixed", "poisson"] = "fixed",
    adjacency: Adjacency | None = None,
) -> AuditFinding:
    """A lower bound on epsilon of one release, beside what the accountant charges for one.

    The statistic is the likelihood ratio's: the number of ones where a chunk of bits is alike, the
    projection on the difference where the noise is Gaussian. What the server also shows (an
    adaptive clip) is weighted by its own signal and noise in the scores that choose the test.

    Raises:
        ConfigError: a parameter is out of range, or the mechanism claims nothing.
        NoTheorem: the accountant has none for that adjacency.
    """
    check_delta(delta)
    check_confidence(confidence)
    require("--releases", releases, releases >= 100, ">= 100")
    require("--dim", bench.d, bench.d >= 1, ">= 1")
    clients = bench.expected
    event = bench.mechanism.event(Release(bench.d, 1, 1, 1, clients, clients))
    if event is None:
        raise ConfigError(f"{type(bench.mechanism).__name__} claims nothing that could be audited")
    exposure = Participation(
        rounds=1,
        times=1,
        clients=clients,
        per_round=clients,
        honest=clients,
        sees="model" if bench.mechanism.central else "messages",
        sampling=sampling,
        adjacency=adjacency,
    )
    found = price(event, exposure, delta)
    pair = worst_pair(event, bench.mechanism, bench.protocol.space, bench.d, found.adjacency, delta)
    first, second = (
        bench.releases(pair, given, releases, key.fold(name))
        for name, given in (("first", pair.first), ("second", pair.second))
    )
    bound = lower_bound(*scores(first, second), delta, confidence)
    return AuditFinding(
        method="mechanism",
        epsilon=bound.epsilon,
        claimed=found.epsilon,
        delta=delta,
        unit=bench.mechanism.unit,
        adjacency=found.adjacency,
        confidence=confidence,
        audited=f"one release: {pair.says}",
        evidence=f"{len(first):,} releases of each; true alarms {bound.true:.4g}, "
        f"false {bound.false:.3g}; so many can prove {bound.most:.3g} at most",
        exact=None if pair.law is None else pair.law.epsilon(delta),
        paper=found.paper,
    )


def scores(first: torch.Tensor, second: torch.Tensor) -> tuple[Floats, Floats]:
    """``(N,)`` each, large for the first: of one channel as it is, of several a weighted sum.

    The weights are differences of means over variances, of the part that also chooses the test.
    """
    a, b = first.numpy(), second.numpy()
    if a.shape[1] == 1:
        return a[:, 0], b[:, 0]
    known = [x[: int(CHOOSING * len(x))] for x in (a, b)]
    gap = known[0].mean(axis=0) - known[1].mean(axis=0)
    noise = np.maximum((known[0].var(axis=0) + known[1].var(axis=0)) / 2, 1e-30)
    weights = gap / noise
    return a @ weights, b @ weights
