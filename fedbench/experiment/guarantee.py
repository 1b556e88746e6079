"""What a run may claim about its clients' privacy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.api import DpEvent, Release, Sees, hooks
from fedbench.experiment.measurements import Privacy
from fedbench.payload import BinaryMasks, Residues, SignBits
from fedbench.privacy.ledger import Ledger
from fedbench.privacy.participation import Participation

if TYPE_CHECKING:
    from fedbench.experiment.prepare import Setup

SUMMED = (BinaryMasks, SignBits, Residues)
SKIPPED = "malicious clients add no noise: their own data has no guarantee, that of others has"


def event(setup: Setup, i: int) -> DpEvent | None:
    """What client ``i`` gives away by taking part in a round."""
    scenario, plugins = setup.scenario, setup.plugins
    size = len(setup.train[i])
    release = Release(
        d=plugins.protocol.trained(setup.shared).d,
        size=size,
        batch_size=scenario.batch_size,
        steps=setup.executor.schedule.steps(size),
        clients=scenario.clients,
        per_round=scenario.per_round,
    )
    kinds = (DpEvent, type(None))
    parts = (plugins.mechanism, plugins.protocol)
    events = (hooks.ask(part, "event", kinds, release) for part in parts)
    return next((event for event in events if event is not None), None)


def spend(setup: Setup, ledger: Ledger, ids: Sequence[int], keeps: Tensor) -> None:
    """A round goes into the ledger: the clients ``ids`` took part, those that kept to it count."""
    if setup.plugins.mechanism.central:
        ledger.add([], event(setup, 0))
        return
    kept = [i for i, keep in zip(ids, keeps.tolist(), strict=True) if keep]
    events = [(i, event(setup, i)) for i in kept]
    ledger.add([(i, found) for i, found in events if found is not None], None)


def guarantee(setup: Setup, ledger: Ledger, slow: bool = True) -> Privacy | None:
    """What the ledger comes to; None without a mechanism. If ``slow`` by every accountant.

    Raises:
        NoTheorem: nobody has proved what that costs.
    """
    scenario, mechanism = setup.scenario, setup.plugins.mechanism
    exposure = Participation(
        rounds=0,
        times=0,
        clients=scenario.clients,
        per_round=scenario.per_round,
        honest=0,
        sees=priced_as(setup),
        sampling=scenario.sampling,
        adjacency=scenario.adjacency,
        noncompliant=int(setup.noncompliant.sum()),
        slow=slow,
    )
    found = ledger.price(exposure, scenario.delta)
    if found is None:
        return None
    return Privacy(
        epsilon=_finite(found.epsilon),
        delta=scenario.delta,
        unit=mechanism.unit,
        sees=setup.sees,
        adjacency=found.adjacency,
        sampler=found.sampler,
        winner=found.winner,
        bounds={name: _finite(x) for name, x in found.bounds.items()},
        paper=_finite(found.paper),
        note=SKIPPED if bool(setup.noncompliant.any()) else "",
    )


def _finite(x: float | None) -> float | None:
    """JSON has no infinity."""
    return x if x is not None and math.isfinite(x) else None


def priced_as(setup: Setup) -> Sees:
    """What the adversary sees, as far as a theorem knows what to make of that.

    Accountants of sums assume a sum of symbols: not weighted, nor of masks over each client's own
    noise. Those of hidden rounds assume that a round depends on the data and on earlier models
    alone, not on what clients remember. What is seen is then priced as the more of which it is a
    post-processing.
    """
    protocol, sees = setup.plugins.protocol, setup.sees
    if setup.plugins.mechanism.central:
        return sees
    if sees == "model" or not issubclass(protocol.sends, SUMMED) or protocol.weighted:
        return "messages"
    return "sum" if sees == "hidden-sum" and protocol.memory(setup.shared) else sees


def claimable(setup: Setup) -> None:
    """Find out before hours of work that a guarantee cannot be given.

    Raises:
        NoTheorem: what was asked for has none.
    """
    ledger = Ledger()
    spend(setup, ledger, [0], torch.ones(1, dtype=torch.bool))
    guarantee(setup, ledger, slow=False)
