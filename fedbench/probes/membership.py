"""Membership inference: whether an example was in a client's training data, by what is sent."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.probes.lira import centred, likelihood_ratios
from fedbench.probes.roc import IntervalEstimate, auc, balanced_accuracy, bootstrap, tpr
from fedbench.probes.shadows import ShadowScores, play_shadows
from fedbench.probes.systems import Progress, play_each

RATES = (1e-2, 1e-3)


@dataclass(frozen=True)
class AttackSuccess:
    """Success of one attack against one system.

    Args:
        name: Name of what the attack reads.
        auc: Area under the ROC curve; 1/2 is a guess.
        tprs: True positive rate at each false positive rate of `RATES`; None if not resolved.
        balanced: Accuracy on equally many members and non-members.
    """

    name: str
    auc: IntervalEstimate
    tprs: dict[float, IntervalEstimate | None]
    balanced: float


@dataclass(frozen=True)
class Membership:
    """Success of membership inference against one system.

    Args:
        protocol: Protocol as typed.
        mechanism: Mechanism as typed.
        accuracy: Mean accuracy of the deployed models.
        epsilon: Largest epsilon over seeds; None without a mechanism.
        unit: Data that epsilon covers.
        shadows: Shadow runs of each victim.
        candidates: Examples of all victims together.
        rounds: Rounds in which a victim was heard, on average.
        readings: Success of each attack.
    """

    protocol: str
    mechanism: str
    accuracy: float
    epsilon: float | None
    unit: str
    shadows: int
    candidates: int
    rounds: float
    readings: list[AttackSuccess] = field(default_factory=list)

    @property
    def others(self) -> int:
        """Number of pairs of a shadow and an example that it does not have."""
        return self.shadows * self.candidates // 2


@dataclass(frozen=True)
class MembershipReport:
    """Report of membership inference.

    Args:
        results: Success against each system.
        skipped: Reason for each combination that does not fit.
    """

    results: list[Membership]
    skipped: list[str]


def probe(
    scenario: Scenario,
    protocols: Sequence[str],
    mechanisms: Sequence[str],
    seeds: Sequence[int],
    shadows: int,
    say: Progress = lambda text: None,
) -> MembershipReport:
    """Attack every protocol under every mechanism, with one victim for each seed.

    Raises:
        ConfigError: an option is wrong, or no combination fits.
    """

    def play(protocol: str, mechanism: str) -> Membership:
        victims = []
        for seed in seeds:
            say(f"{protocol} + {mechanism}: {shadows} shadows, seed {seed}")
            names = {"protocol": protocol, "mechanism": mechanism, "seed": seed}
            setup = prepare(Scenario.of(**scenario.model_dump() | names))
            victims.append(play_shadows(setup, shadows))
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
        "messages: cosine": [None if v.cosine is None else centred(v.cosine) for v in victims],
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
    tprs: dict[float, IntervalEstimate | None] = {}
    for rate in RATES:
        resolved = tpr(scores, member, rate) is not None
        at = partial(_rate, fpr=rate)
        tprs[rate] = bootstrap(at, scores, member, key) if resolved else None
    area = bootstrap(auc, scores, member, key)
    return AttackSuccess(name, area, tprs, balanced_accuracy(scores, member))


def _rate(scores: Tensor, member: Tensor, fpr: float) -> float:
    return tpr(scores, member, fpr) or 0.0


def _ratios(phi: Tensor | None, member: Tensor) -> Tensor | None:
    return None if phi is None else likelihood_ratios(centred(phi), member)
