"""Was this example in the client's training data? What the server can tell."""

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
    """One attack's success against one system.

    Args:
        name: What it reads.
        auc: Area under the ROC curve; 1/2 is a guess.
        tprs: True positive rate at each false positive rate of `RATES`; None: unresolved.
        balanced: Accuracy on as many members as others.
    """

    name: str
    auc: IntervalEstimate
    tprs: dict[float, IntervalEstimate | None]
    balanced: float


@dataclass(frozen=True)
class Membership:
    """How much a system tells about its victims' examples.

    Args:
        protocol: As typed.
        mechanism: As typed.
        accuracy: Of the deployed models.
        epsilon: The largest over seeds; None without a mechanism.
        unit: Whose data epsilon covers.
        shadows: Of each victim.
        candidates: Examples of all victims together.
        rounds: In which a victim was heard, on average.
        readings: By attack.
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
        """Pairs of a shadow and an example that it does not have."""
        return self.shadows * self.candidates // 2


@dataclass(frozen=True)
class MembershipReport:
    """Measurements of membership inference, and what could not be measured.

    Args:
        results: A system each.
        skipped: Systems that cannot exist, and why.
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
    """Every protocol under every mechanism; a victim for each seed.

    Raises:
        ConfigError: an option is wrong, or no two of them fit.
    """

    def play(protocol: str, mechanism: str) -> Membership:
        seen = []
        for seed in seeds:
            say(f"{protocol} + {mechanism}: {shadows} shadows, seed {seed}")
            names = {"protocol": protocol, "mechanism": mechanism, "seed": seed}
            one = Scenario.of(**scenario.model_dump() | names)
            seen.append(play_shadows(prepare(one), shadows))
        return judged(protocol, mechanism, seen, Key(seeds[0]))

    return MembershipReport(*play_each(protocols, mechanisms, play))


def judged(protocol: str, mechanism: str, seen: Sequence[ShadowScores], key: Key) -> Membership:
    """The readings of all victims' candidates together."""
    member = torch.cat([one.member for one in seen], dim=1)
    epsilons = [one.epsilon for one in seen if one.epsilon is not None]
    scored = {
        "deployed model: LiRA": [_ratios(one.deployed, one.member) for one in seen],
        "messages: LiRA": [_ratios(one.message, one.member) for one in seen],
        "messages: cosine": [None if one.cosine is None else centred(one.cosine) for one in seen],
        "messages: cosine + LiRA": [_ratios(one.cosine, one.member) for one in seen],
    }
    readings = []
    for name, parts in scored.items():
        known = [part for part in parts if part is not None]
        if len(known) == len(parts):
            readings.append(reading(name, torch.cat(known, dim=1), member, key))
    return Membership(
        protocol=protocol,
        mechanism=mechanism,
        accuracy=sum(one.accuracy for one in seen) / len(seen),
        epsilon=max(epsilons, default=None),
        unit=seen[0].unit,
        shadows=len(member),
        candidates=member.shape[1],
        rounds=sum(one.rounds for one in seen) / len(seen),
        readings=readings,
    )


def reading(name: str, scores: Tensor, member: Tensor, key: Key) -> AttackSuccess:
    """The success of scores ``(S, N)``."""
    tprs: dict[float, IntervalEstimate | None] = {}
    for rate in RATES:
        resolved = tpr(scores, member, rate) is not None
        at = partial(_rate, fpr=rate)
        tprs[rate] = bootstrap(at, scores, member, key) if resolved else None
    return AttackSuccess(
        name, bootstrap(auc, scores, member, key), tprs, balanced_accuracy(scores, member)
    )


def _rate(scores: Tensor, member: Tensor, fpr: float) -> float:
    return tpr(scores, member, fpr) or 0.0


def _ratios(phi: Tensor | None, member: Tensor) -> Tensor | None:
    return None if phi is None else likelihood_ratios(centred(phi), member)
