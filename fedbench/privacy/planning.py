"""Planning: the price of a mechanism before a run, and the noise that a budget buys."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedbench.api import Adjacency, DpEvent, Release, Sees
from fedbench.core.errors import ConfigError, NoTheorem, require
from fedbench.privacy.accountants import price
from fedbench.privacy.conversion import check_claim
from fedbench.privacy.participation import Participation, PrivacyCost

# More takes accountants gigabytes: tables over the summed clients, and over all released bits.
MOST = {"rounds": 10**6, "per_round": 10**4}
MOST_SYMBOLS = 10**11


@dataclass(frozen=True)
class PrivacyPlan:
    """Rounds that have not been played yet.

    Args:
        rounds: All of them, T.
        clients: All of them, N.
        per_round: How many a round samples.
        participations: Rounds of the client that takes part most often; None: the mean, rounded up.
        delta: Of (epsilon, delta).
        dim: Symbols of a message.
        samples: Training samples of a client.
        batch_size: Of a local step.
        epochs: Of a client in a round.
        malicious: Share of the clients that add no noise.
        sampling: ``fixed`` or ``poisson``.
        adjacency: None: the mechanism's own.
    """

    rounds: int
    clients: int
    per_round: int
    participations: int | None = None
    delta: float = 1e-5
    dim: int = 10_000
    samples: int = 600
    batch_size: int = 32
    epochs: int = 1
    malicious: float = 0.0
    sampling: Literal["fixed", "poisson"] = "fixed"
    adjacency: Adjacency | None = None

    def __post_init__(self) -> None:
        """Refuse values that cannot be planned."""
        check_claim(self.delta)
        counts = ("rounds", "clients", "per_round", "dim", "samples", "batch_size", "epochs")
        for name in counts:
            value = getattr(self, name)
            most = MOST.get(name, 2**31 - 1)
            require(f"--{name.replace('_', '-')}", value, value >= 1, ">= 1")
            require(f"--{name.replace('_', '-')}", value, value <= most, f"<= {most}")
        rule = f"<= --clients = {self.clients}: a sampling rate above 1 means nothing"
        require("--per-round", self.per_round, self.per_round <= self.clients, rule)
        require("--malicious", self.malicious, 0 <= self.malicious < 1, "in [0, 1)")
        asked = self.participations
        legal = asked is None or 1 <= asked <= self.rounds
        require("--participations", asked, legal, f"in 1 .. --rounds = {self.rounds}")
        rule = f"<= {MOST_SYMBOLS:.0e} over the {self.times} rounds of a client"
        require("--dim", self.dim, self.dim * self.times <= MOST_SYMBOLS, rule)

    @property
    def times(self) -> int:
        """Rounds of one client."""
        mean = math.ceil(self.rounds * self.per_round / self.clients - 1e-9)
        return mean if self.participations is None else self.participations

    @property
    def release(self) -> Release:
        """A client's part in a round."""
        steps = self.epochs * -(-self.samples // self.batch_size)
        return Release(
            d=self.dim,
            size=self.samples,
            batch_size=self.batch_size,
            steps=steps,
            clients=self.clients,
            per_round=self.per_round,
        )

    def exposure(self, sees: Sees) -> Participation:
        """Participation of the client that is priced."""
        honest = max(1, self.per_round - math.ceil(self.malicious * self.per_round - 1e-9))
        return Participation(
            rounds=self.rounds,
            times=self.times,
            clients=self.clients,
            per_round=self.per_round,
            honest=honest,
            sees=sees,
            sampling=self.sampling,
            adjacency=self.adjacency,
            noncompliant=math.ceil(self.malicious * self.clients - 1e-9),
        )

    def after(self, rounds: int) -> PrivacyPlan:
        """The same, stopped earlier; the client's rounds are as dense."""
        share = max(1, math.ceil(self.times * rounds / self.rounds - 1e-9))
        return dataclasses.replace(self, rounds=rounds, participations=min(share, rounds))


def event_of(plugin: Any, release: Release) -> DpEvent:
    """Return the event of a mechanism, or of a protocol with noise of its own.

    Raises:
        ConfigError: nothing that it would answer for.
    """
    event: DpEvent | None = plugin.event(release)
    if event is None:
        raise ConfigError(
            f"{type(plugin).__name__} makes no claim that could be priced; "
            "see fedbench list mechanisms"
        )
    return event


def prices(plugin: Any, plan: PrivacyPlan) -> dict[Sees, PrivacyCost | NoTheorem]:
    """The price before everybody's eyes; where there is no theorem, the reason.

    One of them where it makes no difference who sees what.
    """
    event = event_of(plugin, plan.release)
    found: dict[Sees, PrivacyCost | NoTheorem] = {}
    views: tuple[Sees, ...] = ("messages", "sum", "hidden-sum")
    if getattr(plugin, "central", False):
        views = ("model",)
    for sees in views:
        try:
            found[sees] = price(event, plan.exposure(sees), plan.delta)
        except NoTheorem as reason:
            found[sees] = reason
    first = found[views[0]]
    same = all(str(one) == str(first) for one in found.values())
    return {views[0]: first} if same else found


def curve(
    plugin: Any, plan: PrivacyPlan, sees: Sees, points: int = 24
) -> list[tuple[int, PrivacyCost]]:
    """The price after fewer rounds, on a logarithmic scale."""
    steps = np.unique(np.geomspace(1, plan.rounds, points).round().astype(int)).tolist()
    event = event_of(plugin, plan.release)
    out = []
    for rounds in steps:
        out.append((rounds, price(event, plan.after(rounds).exposure(sees), plan.delta)))
    return out


def calibrated(plugin: Any, plan: PrivacyPlan, sees: Sees, target: float) -> Any:
    """The plug-in with the least noise (its `knob`) that costs at most ``target``.

    By bisection on a logarithmic scale, to 0.1 %, from the side that keeps the promise, which four
    digits do not leave.

    Raises:
        ConfigError: it has no such field, or no value of it suffices.
    """
    require("--target-epsilon", target, target > 0, "> 0")
    if not getattr(plugin, "knob", None):
        raise ConfigError(
            f"--target-epsilon needs a mechanism with a noise parameter, got {plugin!r}"
        )
    name, weak, strong = plugin.knob
    low, high = math.log(weak), math.log(strong)

    def at(x: float) -> Any:
        return dataclasses.replace(plugin, **{name: math.exp(x)})

    def suffices(x: float) -> bool:
        event = event_of(at(x), plan.release)
        return price(event, plan.exposure(sees), plan.delta).epsilon <= target

    if not suffices(high):
        raise ConfigError(
            f"--target-epsilon {target:g} cannot be had with {name} up to {strong:g}; "
            "ask for fewer rounds, or let fewer eyes see (--sees)"
        )
    if suffices(low):
        return at(low)
    while abs(high - low) > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    short = float(f"{math.exp(high + math.copysign(2e-4, high - low)):.4g}")
    chosen = short if suffices(math.log(short)) else math.exp(high)
    return dataclasses.replace(plugin, **{name: chosen})
