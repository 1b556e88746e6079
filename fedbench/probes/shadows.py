"""Shadow runs: the same scenario with and without each example of one client."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.data.splits import replaced
from fedbench.executors.training import Client, Schedule
from fedbench.experiment.guarantee import guarantee
from fedbench.experiment.setup import Setup
from fedbench.probes.lira import FEWEST_SHADOWS, confidences, halves
from fedbench.probes.systems import ProbeRound, listening, signal
from fedbench.run import begin, play_round

_AT_ONCE = 16  # examples whose updates are in memory together


@dataclass(frozen=True, eq=False)
class Shadow(Setup):
    """Run whose victim trains on half of the candidates.

    It shares with the imitated run what the server knows, but nothing that clients draw: a
    mechanism's noise would cancel out if shared.
    """

    base: Setup  # the imitated run

    def sample(self, step: int) -> list[int]:
        """Return the clients of the imitated run."""
        return self.base.sample(step)

    def arriving(self, ids: Sequence[int], step: int) -> list[int]:
        """Return the places of those that do not drop out of the imitated run."""
        return self.base.arriving(ids, step)


@dataclass(frozen=True, eq=False)
class ShadowScores:
    """Scores of each candidate in the shadows of one victim, ``(S, N)`` float64."""

    member: Tensor  # bool: the candidate is in the victim's training data
    deployed: Tensor  # `confidences` of the model that is deployed in the end
    # mean `confidences` of the victim's messages; None if it sent none that can be read as models
    message: Tensor | None
    # mean cosine of the victim's messages with the update that the candidate alone would have
    # caused; None if messages cannot be read as updates
    cosine: Tensor | None
    accuracy: float  # mean of the deployed models
    epsilon: float | None  # of the clients at the end; None without a mechanism
    unit: str  # whose data epsilon covers
    rounds: int  # in which the victim was heard


def choose_victim(setup: Setup) -> int:
    """Choose at random among the clients that take part most often."""
    counts = Counter(i for step in range(setup.scenario.rounds) for i in setup.taking_part(step))
    if not counts:
        raise ConfigError("no client was ever sampled, so there is no victim: raise --rounds")
    most = sorted(i for i, count in counts.items() if count == max(counts.values()))
    return most[int(setup.secret.key("victim").uniform(1) * len(most))]


def candidates(setup: Setup, victim: int) -> Tensor:
    """Return the rows ``(N,)`` of the victim's training data, an even number of them."""
    rows = setup.population.train[victim]
    size = len(rows)
    if size < 4:
        raise ConfigError(
            f"a victim needs at least 4 training samples, got {size}; use fewer --clients"
        )
    return rows[: size // 2 * 2]


def shadow(setup: Setup, victim: int, chosen: Tensor, number: int) -> Shadow:
    """Return shadow ``number``, in which the victim trains on the ``chosen`` rows only."""
    changed = setup.with_population(train=replaced(setup.population.train, victim, chosen))
    fields = {f.name: getattr(changed, f.name) for f in dataclasses.fields(Setup)}
    fields["secret"] = setup.secret.derive("shadow", number)
    return Shadow(**fields, base=setup)


def play_shadows(setup: Setup, shadows: int) -> ShadowScores:
    """Play all shadows of a prepared scenario and score every candidate in each."""
    even = shadows % 2 == 0 and shadows >= FEWEST_SHADOWS
    require("--shadows", shadows, even, f"even and >= {FEWEST_SHADOWS}")
    victim = choose_victim(setup)
    pool = candidates(setup, victim)
    member = halves(len(pool), shadows // 2, setup.secret.key("members"))
    played = [
        play_shadow(shadow(setup, victim, pool[row.to(pool.device)], s), victim, pool)
        for s, row in enumerate(member)
    ]
    return dataclasses.replace(
        played[0],
        member=member,
        deployed=torch.stack([run.deployed for run in played]),
        message=_stacked([run.message for run in played]),
        cosine=_stacked([run.cosine for run in played]),
        accuracy=sum(run.accuracy for run in played) / shadows,
    )


def play_shadow(run: Shadow, victim: int, pool: Tensor) -> ShadowScores:
    """Play one shadow and score every candidate in it, without the first dimension and `member`."""
    hearing, heard_of = listening(run, [victim])
    protocol = hearing.plugins.protocol
    shared = hearing.shared
    state = begin(hearing)
    rounds = hearing.scenario.rounds
    for step in range(rounds):
        play_round(hearing, state, step)
    assert state.score is not None  # the last round is always evaluated
    x = hearing.population.data.floats(pool)
    y = hearing.population.data.y[pool]
    deployed = protocol.model(shared, state.server, hearing.secret.key("model", rounds - 1))
    heard = heard_of[victim]
    models = [protocol.local_model(shared, e.broadcast, e.sent) for e in heard.values()]
    messages = [confidences(shared.network, model, x, y) for model in models if model is not None]
    keys = [Key(0).fold("adversary", step) for step in heard]
    cosines = [cosine(hearing, e, x, y, key) for e, key in zip(heard.values(), keys, strict=True)]
    privacy = guarantee(hearing, state.ledger)
    return ShadowScores(
        member=torch.empty(0),
        deployed=confidences(shared.network, deployed, x, y),
        message=_mean(messages),
        cosine=_mean([similarity for similarity in cosines if similarity is not None]),
        accuracy=state.score.accuracy,
        epsilon=None if privacy is None else privacy.epsilon,
        unit=hearing.plugins.mechanism.unit,
        rounds=len(heard),
    )


def cosine(setup: Setup, heard: ProbeRound, x: Tensor, y: Tensor, key: Key) -> Tensor | None:
    """Cosine, ``(N,)`` float64, of a message with the update that each example alone would cause.

    That update is one local step of the protocol on the example, with the same draws of the
    adversary for all examples. None if the message cannot be read as an update (`signal`).
    """
    protocol = setup.plugins.protocol
    shared = setup.shared
    sent = signal(protocol, shared, heard)
    if sent is None:
        return None
    idle = protocol.idle(shared, heard.broadcast)[0]
    tree = protocol.receive(shared, heard.broadcast)
    memory = protocol.memory(shared)
    # The adversary knows the example, not how the client changed it.
    executor = dataclasses.replace(setup.executor, schedule=Schedule(1, 1), augment=None)
    cosines = []
    for rows in torch.split(torch.arange(len(y)), _AT_ONCE):
        alone = [Client(tree, x[[i]], y[[i]], key, memory) for i in rows.tolist()]
        updates = torch.nan_to_num(executor.train(alone)[0] - idle)
        products = updates @ sent
        norms = torch.linalg.vector_norm(updates, dim=1) * torch.linalg.vector_norm(sent)
        cosines.append((products / norms.clamp_min(1e-30)).double().cpu())
    return torch.cat(cosines)


def _mean(rows: Sequence[Tensor]) -> Tensor | None:
    return torch.stack(list(rows)).mean(dim=0) if rows else None


def _stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
    scores = [row for row in rows if row is not None]
    return torch.stack(scores) if len(scores) == len(rows) else None
