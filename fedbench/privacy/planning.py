"""Privacy cost of a mechanism before a run, and calibration of its noise to a budget."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedbench.api import Adjacency, Release, Sees
from fedbench.core.errors import ConfigError, NoTheorem, require, require_share
from fedbench.privacy.accountants import Participation, PrivacyCost, cost_of
from fedbench.privacy.conversion import check_claim

# Larger ones take gigabytes: tables over the summed clients, and over all released bits.
MOST = {"rounds": 10**6, "per_round": 10**4}
MOST_SYMBOLS = 10**11
RISK = 0.01  # share of runs that may have a round with fewer honest clients than planned


@dataclass(frozen=True)
class PrivacyPlan:
    """Run whose privacy cost is computed before it is played."""

    rounds: int
    clients: int
    per_round: int
    participations: int | None = None  # rounds of the client that is priced; None: the mean
    delta: float = 1e-5
    dim: int = 10_000  # symbols of a message
    samples: int = 600  # training samples of a client
    batch_size: int = 32
    epochs: int = 1
    malicious: float = 0.0  # share of the clients that add no noise
    sampling: Literal["fixed", "poisson", "stratified"] = "fixed"
    adjacency: Adjacency | None = None  # None: the mechanism's default

    def __post_init__(self) -> None:
        check_claim(self.delta)
        for name in ("rounds", "clients", "per_round", "dim", "samples", "batch_size", "epochs"):
            value = getattr(self, name)
            most = MOST.get(name, 2**31 - 1)
            option = f"--{name.replace('_', '-')}"
            require(option, value, value >= 1, ">= 1")
            require(option, value, value <= most, f"<= {most}")
        requirement = f"<= --clients = {self.clients}: a sampling rate above 1 means nothing"
        require("--per-round", self.per_round, self.per_round <= self.clients, requirement)
        require_share("--malicious", self.malicious, self.clients)
        asked = self.participations
        legal = asked is None or 1 <= asked <= self.rounds
        require("--participations", asked, legal, f"in 1 .. --rounds = {self.rounds}")
        requirement = f"<= {MOST_SYMBOLS:.0e} over the {self.times} rounds of a client"
        require("--dim", self.dim, self.dim * self.times <= MOST_SYMBOLS, requirement)

    @property
    def times(self) -> int:
        """Rounds of the client that is priced."""
        mean = math.ceil(self.rounds * self.per_round / self.clients - 1e-9)
        return mean if self.participations is None else self.participations

    @property
    def noncompliant(self) -> int:
        """Clients that add no noise."""
        return math.ceil(self.malicious * self.clients - 1e-9)

    @property
    def fewest(self) -> int:
        """Fewest honest clients of any round, in all but a share `RISK` of runs; at least one.

        Of a sum the round with the fewest is the worst, since they alone hide each other.
        """
        if self.sampling == "stratified" or (self.sampling == "fixed" and not self.noncompliant):
            most = -(-self.per_round * self.noncompliant // self.clients)  # rounded up
            return max(1, self.per_round - most)
        from scipy.stats import binom, hypergeom

        honest = self.clients - self.noncompliant
        # A round may have fewer with the chance c if 1 - (1 - c)^rounds is RISK.
        chance = -math.expm1(math.log1p(-RISK) / self.rounds)
        if self.sampling == "poisson":
            least = binom.ppf(chance, honest, self.per_round / self.clients)
        else:
            least = hypergeom.ppf(chance, self.clients, honest, self.per_round)
        return max(1, int(least))

    @property
    def release(self) -> Release:
        """Release of a client in one round."""
        steps = self.epochs * -(-self.samples // self.batch_size)
        batch = self.batch_size
        return Release(self.dim, self.samples, batch, steps, self.clients, self.per_round)

    def participation(self, sees: Sees) -> Participation:
        """Return the participation of the client that is priced."""
        return Participation(
            rounds=self.rounds,
            times=self.times,
            clients=self.clients,
            per_round=self.per_round,
            honest=self.fewest,
            sees=sees,
            sampling=self.sampling,
            adjacency=self.adjacency,
            noncompliant=self.noncompliant,
        )

    def price(self, plugin: Any, sees: Sees) -> PrivacyCost:
        """Return the cost of a mechanism, or of a protocol with noise; `ConfigError` if none."""
        event = plugin.event(self.release)
        if event is None:
            raise ConfigError(
                f"{type(plugin).__name__} makes no claim that could be priced; "
                "see fedbench list mechanisms"
            )
        return cost_of(event, self.participation(sees), self.delta)

    def after(self, rounds: int) -> PrivacyPlan:
        """Return the plan stopped after ``rounds``, at the same rate of participation."""
        times = max(1, math.ceil(self.times * rounds / self.rounds - 1e-9))
        return dataclasses.replace(self, rounds=rounds, participations=min(times, rounds))


def prices(plugin: Any, plan: PrivacyPlan) -> dict[Sees, PrivacyCost | NoTheorem]:
    """Return the cost by observation, or why it has none; only the first if all are the same."""
    costs: dict[Sees, PrivacyCost | NoTheorem] = {}
    central = getattr(plugin, "central", False)
    views: tuple[Sees, ...] = ("model",) if central else ("messages", "sum", "hidden-sum")
    for sees in views:
        try:
            costs[sees] = plan.price(plugin, sees)
        except NoTheorem as reason:
            costs[sees] = reason
    same = len({str(cost) for cost in costs.values()}) == 1
    return {views[0]: costs[views[0]]} if same else costs


def curve(
    plugin: Any, plan: PrivacyPlan, sees: Sees, points: int = 24
) -> list[tuple[int, PrivacyCost]]:
    """Return numbers of rounds up to the plan's, on a logarithmic scale, and the cost of each."""
    steps = np.unique(np.geomspace(1, plan.rounds, points).round().astype(int)).tolist()
    return [(rounds, plan.after(rounds).price(plugin, sees)) for rounds in steps]


def calibrated(plugin: Any, plan: PrivacyPlan, sees: Sees, target: float) -> Any:
    """Return the plug-in with the least noise (its `knob`) that costs at most ``target``.

    Found by bisection on a logarithmic scale to 0.1 %, and rounded to four digits if that suffices;
    `ConfigError` if no value does.
    """
    require("--target-epsilon", target, target > 0, "> 0")
    if not getattr(plugin, "knob", None):
        raise ConfigError(
            f"--target-epsilon needs a mechanism with a noise parameter, got {plugin!r}"
        )
    name, weak, strong = plugin.knob
    low, high = math.log(weak), math.log(strong)

    def at(value: float) -> Any:
        return dataclasses.replace(plugin, **{name: value})

    def suffices(x: float) -> bool:
        return plan.price(at(math.exp(x)), sees).epsilon <= target

    if not suffices(high):
        raise ConfigError(
            f"--target-epsilon {target:g} cannot be had with {name} up to {strong:g}; "
            "ask for fewer rounds, or for an observer that sees less (--sees)"
        )
    if suffices(low):
        return at(math.exp(low))
    while abs(high - low) > 1e-3:
        middle = (low + high) / 2
        low, high = (low, middle) if suffices(middle) else (middle, high)
    short = float(f"{math.exp(high + math.copysign(2e-4, high - low)):.4g}")
    return at(short if suffices(math.log(short)) else math.exp(high))
