"""Audit of one mechanism by itself: many releases of two neighbours."""

from typing import Literal

import numpy as np
import torch

from fedbench.api import Adjacency, Release
from fedbench.audits.finding import AuditFinding
from fedbench.audits.pairs import worst_pair
from fedbench.audits.rates import CHOOSING, lower_bound
from fedbench.audits.releases import ReleaseBench
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.privacy.accountants import price
from fedbench.privacy.conversion import Floats
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
    """Return a lower bound on epsilon of one release, beside the accountant's epsilon.

    The score is the statistic of the likelihood ratio test: the number of ones of bits that differ
    alike, the projection on the difference under Gaussian noise. Other values that the server shows
    (an adaptive clip) are weighted by signal over noise among the scores that choose the test.
    ``releases`` counts those of each neighbour.

    Raises:
        ConfigError: a number is out of range, or the mechanism claims nothing.
        NoTheorem: the accountant has none for that adjacency.
    """
    require("--releases", releases, releases >= 100, ">= 100")
    clients = bench.expected
    event = bench.mechanism.event(Release(bench.d, 1, 1, 1, clients, clients))
    if event is None:
        raise ConfigError(f"{type(bench.mechanism).__name__} claims nothing that could be audited")
    participation = Participation(
        rounds=1,
        times=1,
        clients=clients,
        per_round=clients,
        honest=clients,
        sees="model" if bench.mechanism.central else "messages",
        sampling=sampling,
        adjacency=adjacency,
    )
    cost = price(event, participation, delta)
    pair = worst_pair(event, bench.mechanism, bench.protocol.space, bench.d, cost.adjacency, delta)
    first = bench.releases(pair, pair.first, releases, key.fold("first"))
    second = bench.releases(pair, pair.second, releases, key.fold("second"))
    bound = lower_bound(*scores(first, second), delta, confidence)
    return AuditFinding(
        method="mechanism",
        epsilon=bound.epsilon,
        claimed=cost.epsilon,
        delta=delta,
        unit=bench.mechanism.unit,
        adjacency=cost.adjacency,
        confidence=confidence,
        audited=f"one release: {pair.description}",
        evidence=f"{len(first):,} releases of each; true alarms {bound.true:.4g}, "
        f"false {bound.false:.3g}; so many can prove {bound.most:.3g} at most",
        exact=None if pair.law is None else pair.law.epsilon(delta),
        paper=cost.paper,
    )


def scores(first: torch.Tensor, second: torch.Tensor) -> tuple[Floats, Floats]:
    """Weighted sums ``(N,)`` of the channels of releases ``(N, channels)``, large for the first.

    The weights are differences of means over variances, of the part that also chooses the test.
    """
    a, b = first.numpy(), second.numpy()
    if a.shape[1] == 1:
        return a[:, 0], b[:, 0]
    x, y = a[: int(CHOOSING * len(a))], b[: int(CHOOSING * len(b))]
    noise = np.maximum((x.var(axis=0) + y.var(axis=0)) / 2, 1e-30)
    weights = (x.mean(axis=0) - y.mean(axis=0)) / noise
    return a @ weights, b @ weights
