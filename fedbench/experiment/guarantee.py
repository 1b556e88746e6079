"""Privacy guarantee of a run: what its clients gave away, and what that comes to."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedbench.adversary.threat_model import needs
from fedbench.api import DpEvent, Release, Sees
from fedbench.core.blame import ask
from fedbench.experiment.record import Privacy
from fedbench.experiment.setup import Setup
from fedbench.privacy.accountants import Ledger, Participation

NONCOMPLIANT_NOTE = (
    "malicious clients add no noise: their own data has no guarantee, that of others has"
)
COPIED_NOTE = (
    "this attack reads the messages of others and may put copies of them into the models, which "
    "one clip does not bound: the ε is for malicious clients that cannot read them"
)
REPEATED_NOTE = (
    "for one copy of a sample: clients draw theirs with replacement, so one may hold several copies"
)


def event(setup: Setup, size: int) -> DpEvent | None:
    """Return the release of a client with ``size`` samples in one round; None if unclaimed."""
    scenario = setup.scenario
    plugins = setup.plugins
    release = Release(
        d=plugins.protocol.symbols_sent(setup.shared),
        size=size,
        batch_size=scenario.batch_size,
        steps=plugins.protocol.steps_taken(setup.executor.schedule.steps(size)),
        clients=scenario.clients,
        per_round=scenario.per_round,
    )
    for part in (plugins.mechanism, plugins.protocol):
        released: DpEvent | None = ask(part, "event", (DpEvent, type(None)), release)
        if released is not None:
            return released
    return None


def spend(setup: Setup, ledger: Ledger, ids: Sequence[int], complies: Tensor) -> None:
    """Enter a round into the ledger, for the clients that ran the mechanism."""
    if setup.plugins.mechanism.central:
        ledger.add([], event(setup, len(setup.population.train[0])))
        return
    complying_ids = [i for i, complying in zip(ids, complies.tolist(), strict=True) if complying]
    sizes = {i: len(setup.population.train[i]) for i in complying_ids}
    events = {size: event(setup, size) for size in set(sizes.values())}
    released = ((i, events[sizes[i]]) for i in complying_ids)
    ledger.add([(i, part) for i, part in released if part is not None], None)


def guarantee(setup: Setup, ledger: Ledger, slow: bool = True) -> Privacy | None:
    """Price the ledger, by all accountants if ``slow``; None without events, or `NoTheorem`."""
    scenario = setup.scenario
    participation = Participation(
        rounds=0,
        times=0,
        clients=scenario.clients,
        per_round=scenario.per_round,
        honest=0,
        sees=priced_as(setup),
        sampling="stratified" if scenario.cohorts == "stratified" else scenario.sampling,
        adjacency=scenario.adjacency,
        noncompliant=setup.noncompliant_clients,
        slow=slow,
    )
    cost = ledger.price(participation, scenario.delta)
    if cost is None:
        return None
    return Privacy(
        epsilon=_finite(cost.epsilon),
        delta=scenario.delta,
        unit=setup.plugins.mechanism.unit,
        sees=setup.sees,
        adjacency=cost.adjacency,
        sampler=cost.sampler,
        winner=cost.winner,
        bounds={name: _finite(x) for name, x in cost.bounds.items()},
        paper=_finite(cost.paper),
        note="; ".join(filter(None, (cost.note, provisos(setup)))),
    )


def provisos(setup: Setup) -> str:
    """Return what malicious clients and repeated samples take away from the guarantee of a run.

    Central noise is for what one client adds to a sum. An attack that reads all messages before
    the noise may add them once more, for each of its clients and at any length.
    """
    mechanism = setup.plugins.mechanism
    hostile = setup.noncompliant_clients > 0
    reads = needs(setup.plugins.attack).tier == "all"
    notes = {
        NONCOMPLIANT_NOTE: hostile,
        COPIED_NOTE: hostile and reads and mechanism.central,
        REPEATED_NOTE: mechanism.unit == "example" and setup.population.held_out is not None,
    }
    return "; ".join(note for note, holds in notes.items() if holds)


def _finite(x: float | None) -> float | None:
    """Replace infinity, which JSON does not have, by None."""
    return x if x is not None and math.isfinite(x) else None


def priced_as(setup: Setup) -> Sees:
    """Return what the adversary observes, as far as a theorem covers it.

    Accountants of hidden rounds assume that a round depends on the data and on earlier models
    alone, not on what clients remember. Otherwise, and for models without central noise, the
    observation is priced as the larger one of which it is a post-processing.
    """
    if setup.plugins.mechanism.central:
        return setup.sees
    if setup.sees == "model":
        return "messages"
    hidden = setup.sees == "hidden-sum"
    return "sum" if hidden and setup.plugins.protocol.memory(setup.shared) else setup.sees


def require_theorem(setup: Setup) -> None:
    """Price one round: raise `NoTheorem` before hours of work, not after them."""
    ledger = Ledger()
    spend(setup, ledger, [0], torch.ones(1, dtype=torch.bool))
    guarantee(setup, ledger, slow=False)
