"""Membership inference: whether an example was in a client's training data, by what is sent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.experiment.scenario import Scenario
from fedbench.probes import lira
from fedbench.probes.lira import IntervalEstimate
from fedbench.probes.shadows import ShadowScores, play_shadows
from fedbench.probes.systems import Progress, play_each, prepared

RATES = (1e-2, 1e-3)


@dataclass(frozen=True)
class AttackSuccess:
    """Success of one attack against one system."""

    name: str  # what the attack reads
    auc: IntervalEstimate  # area under the ROC curve; 1/2 is a guess
    tprs: dict[float, IntervalEstimate | None]  # at each FPR of `RATES`; None if not resolved
    balanced: float  # accuracy on equally many members and non-members


@dataclass(frozen=True)
class Membership:
    """Success of membership inference against one system."""

    protocol: str  # as typed
    mechanism: str
    accuracy: float  # mean of the deployed models
    epsilon: float | None  # largest over seeds; None without a mechanism
    unit: str  # whose data epsilon covers
    shadows: int  # of each victim
    candidates: int  # examples of all victims together
    rounds: float  # in which a victim was heard, on average
    readings: list[AttackSuccess] = field(default_factory=list)

    @property
    def others(self) -> int:
        """Number of pairs of a shadow and an example that it does not have."""
        return self.shadows * self.candidates // 2


@dataclass(frozen=True)
class MembershipReport:
    """Report of membership inference."""

    results: list[Membership]
    skipped: list[str]  # combinations that do not fit, and why


def probe(
    scenario: Scenario,
    protocols: Sequence[str],
    mechanisms: Sequence[str],
    seeds: Sequence[int],
    shadows: int,
    say: Progress = lambda text: None,
) -> MembershipReport:
    """Attack every protocol under every mechanism that fits, with one victim for each seed."""

    def play(protocol: str, mechanism: str) -> Membership:
        victims = []
        for seed in seeds:
            say(f"{protocol} + {mechanism}: {shadows} shadows, seed {seed}")
            victims.append(play_shadows(prepared(scenario, protocol, mechanism, seed), shadows))
        return evaluated(protocol, mechanism, victims, Key(seeds[0]))

    return MembershipReport(*play_each(protocols, mechanisms, play))


def evaluated(
    protocol: str, mechanism: str, victims: Sequence[ShadowScores], key: Key
) -> Membership:
    """Evaluate the attacks on the candidates of all victims together."""
    member = torch.cat([victim.member for victim in victims], dim=1)
    epsilons = [victim.epsilon for victim in victims if victim.epsilon is not None]
    attacks = {
        "deployed model: LiRA": [_ratios(v.deployed, v.member) for v in victims],
        "messages: LiRA": [_ratios(v.message, v.member) for v in victims],
        "messages: cosine": [None if v.cosine is None else lira.centred(v.cosine) for v in victims],
        "messages: cosine + LiRA": [_ratios(v.cosine, v.member) for v in victims],
    }
    readings = []
    for name, parts in attacks.items():
        scores = [part for part in parts if part is not None]
        if len(scores) == len(parts):
            readings.append(reading(name, torch.cat(scores, dim=1), member, key))
    return Membership(
        protocol=protocol,
        mechanism=mechanism,
        accuracy=sum(victim.accuracy for victim in victims) / len(victims),
        epsilon=max(epsilons, default=None),
        unit=victims[0].unit,
        shadows=len(member),
        candidates=member.shape[1],
        rounds=sum(victim.rounds for victim in victims) / len(victims),
        readings=readings,
    )


def reading(name: str, scores: Tensor, member: Tensor, key: Key) -> AttackSuccess:
    """Return the success of an attack with these scores, ``(S, N)`` as ``member`` is."""
    tprs: dict[float, IntervalEstimate | None] = dict.fromkeys(RATES)
    for rate in RATES:
        if lira.tpr(scores, member, rate) is not None:
            tprs[rate] = lira.bootstrap(partial(_tpr, fpr=rate), scores, member, key)
    area = lira.bootstrap(lira.auc, scores, member, key)
    return AttackSuccess(name, area, tprs, lira.balanced_accuracy(scores, member))


def _tpr(scores: Tensor, member: Tensor, fpr: float) -> float:
    return lira.tpr(scores, member, fpr) or 0.0


def _ratios(phi: Tensor | None, member: Tensor) -> Tensor | None:
    return None if phi is None else lira.likelihood_ratios(lira.centred(phi), member)
