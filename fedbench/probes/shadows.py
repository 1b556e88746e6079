"""Shadow runs: the same scenario with and without each of one client's examples."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Grad, Gradient
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Schedule
from fedbench.experiment.guarantee import guarantee
from fedbench.experiment.setup import Setup
from fedbench.probes.lira import FEWEST_SHADOWS, confidences, halves
from fedbench.probes.listener import Exchange, listening, signal
from fedbench.run import begin, play_round

_AT_ONCE = 16  # examples whose directions are in memory together


@dataclass(frozen=True, eq=False)
class Shadow(Setup):
    """A run whose victim trains on half of the candidates.

    What the server knows is that of the run that it imitates: public seed, first model, who takes
    part in a round, the data of all other clients. What clients draw is their own in every shadow:
    order of the data, samples of masks, and a mechanism's noise above all, which would cancel out
    if two shadows shared it.

    Args:
        base: The run that it imitates.
    """

    base: Setup

    def sample(self, step: int) -> list[int]:
        """The clients of the imitated run."""
        return self.base.sample(step)


@dataclass(frozen=True, eq=False)
class ShadowScores:
    """Scores of each candidate in the shadows of one victim, rows ``(S, N)`` float64.

    Args:
        member: Was it in the victim's training data?
        deployed: `confidences` of the model that is deployed in the end.
        message: Mean `confidences` of the victim's messages, read as models; None where they say
            no model, or where it sent none.
        cosine: Mean cosine of the victim's messages with what the candidate alone would have sent;
            None where messages are no such vectors.
        accuracy: Of the deployed models, mean over shadows.
        epsilon: Of the clients, at the end; None without a mechanism.
        unit: Whose data that covers.
        rounds: In which the victim was heard.
    """

    member: Tensor
    deployed: Tensor
    message: Tensor | None
    cosine: Tensor | None
    accuracy: float
    epsilon: float | None
    unit: str
    rounds: int


def choose_victim(setup: Setup) -> int:
    """Choose a client that takes part most often, which the server hears best."""
    counts = Counter(i for step in range(setup.scenario.rounds) for i in setup.sample(step))
    if not counts:
        raise ConfigError("no client was ever sampled, so there is no victim: raise --rounds")
    most = sorted(i for i, count in counts.items() if count == max(counts.values()))
    return most[int(setup.secret.key("victim").uniform(1) * len(most))]


def candidates(setup: Setup, victim: int) -> Tensor:
    """``(N,)`` rows of the pool: the victim's training data, one less if that is odd."""
    rows = setup.population.train[victim]
    if len(rows) < 4:
        raise ConfigError(
            f"a victim needs at least 4 training samples, got {len(rows)}; use fewer --clients"
        )
    return rows[: len(rows) // 2 * 2]


def shadow(setup: Setup, victim: int, chosen: Tensor, number: int) -> Shadow:
    """The run in which the victim trains on the ``chosen`` rows of the pool, and on nothing else.

    Nobody else has any of the victim's rows, for clients share none.
    """
    train = list(setup.population.train)
    sizes = setup.population.sizes.clone()
    train[victim] = chosen
    sizes[victim] = len(chosen)
    changed = setup.with_population(train=train, sizes=sizes)
    fields = {f.name: getattr(changed, f.name) for f in dataclasses.fields(Setup)}
    fields["secret"] = setup.secret.derive("shadow", number)
    return Shadow(**fields, base=setup)


def play_shadows(setup: Setup, shadows: int) -> ShadowScores:
    """Play all shadows of a prepared scenario and look at every candidate in each.

    Raises:
        ConfigError: too few shadows, or a victim with too little data.
    """
    even = shadows % 2 == 0 and shadows >= FEWEST_SHADOWS
    require("--shadows", shadows, even, f"even and >= {FEWEST_SHADOWS}")
    victim = choose_victim(setup)
    pool = candidates(setup, victim)
    member = halves(len(pool), shadows // 2, setup.secret.key("members"))
    looks = [
        look(shadow(setup, victim, pool[row.to(pool.device)], s), victim, pool)
        for s, row in enumerate(member)
    ]
    return ShadowScores(
        member=member,
        deployed=torch.stack([one.deployed for one in looks]),
        message=_stacked([one.message for one in looks]),
        cosine=_stacked([one.cosine for one in looks]),
        accuracy=sum(one.accuracy for one in looks) / shadows,
        epsilon=looks[0].epsilon,
        unit=setup.plugins.mechanism.unit,
        rounds=looks[0].rounds,
    )


def look(run: Shadow, victim: int, pool: Tensor) -> ShadowScores:
    """Play one shadow and score every candidate in it, without the first dimension and `member`."""
    hearing, listener = listening(run, frozenset([victim]))
    protocol = hearing.plugins.protocol
    shared = hearing.shared
    state = begin(hearing)
    rounds = hearing.scenario.rounds
    for step in range(rounds):
        play_round(hearing, state, step)
    assert state.score is not None  # the last round is always looked at
    x = hearing.population.data.floats(pool)
    y = hearing.population.data.y[pool]
    deployed = protocol.model(shared, state.server, hearing.secret.key("model", rounds - 1))
    heard = listener.heard.get(victim, {})
    models = [protocol.local_model(shared, one.broadcast, one.sent) for one in heard.values()]
    said = [confidences(shared.network, model, x, y) for model in models if model is not None]
    cosines = [
        found
        for step, one in heard.items()
        if (found := cosine(hearing, one, x, y, Key(0).fold("adversary", step))) is not None
    ]
    privacy = guarantee(hearing, state.ledger)
    return ShadowScores(
        member=torch.empty(0),
        deployed=confidences(shared.network, deployed, x, y),
        message=torch.stack(said).mean(dim=0) if said else None,
        cosine=torch.stack(cosines).mean(dim=0) if cosines else None,
        accuracy=state.score.accuracy,
        epsilon=None if privacy is None else privacy.epsilon,
        unit=hearing.plugins.mechanism.unit,
        rounds=len(heard),
    )


def cosine(setup: Setup, heard: Exchange, x: Tensor, y: Tensor, key: Key) -> Tensor | None:
    """``(N,)`` float64: of a message with the update that each example alone would have caused.

    That update is one local step of the protocol on the example, with the adversary's own draws,
    the same for all examples. None where the message is no such vector (`signal`).
    """
    protocol = setup.plugins.protocol
    shared = setup.shared
    sent = signal(protocol, shared, heard)
    if sent is None:
        return None
    idle = protocol.idle(shared, heard.broadcast)[0]
    tree = protocol.receive(shared, heard.broadcast)
    memory = protocol.memory(shared)
    executor = dataclasses.replace(setup.executor, schedule=Schedule(1, 1))
    found = []
    for rows in torch.split(torch.arange(len(y)), _AT_ONCE):
        alone = [Client(tree, x[[i]], y[[i]], key, memory, as_it_is) for i in rows.tolist()]
        updates = torch.nan_to_num(executor.train(alone)[0] - idle)
        products = updates @ sent
        norms = torch.linalg.vector_norm(updates, dim=1) * torch.linalg.vector_norm(sent)
        found.append((products / norms.clamp_min(1e-30)).double().cpu())
    return torch.cat(found)


def as_it_is(gradient: Gradient) -> Grad:
    """The gradient of who has no mechanism."""
    return gradient


def _stacked(rows: Sequence[Tensor | None]) -> Tensor | None:
    known = [row for row in rows if row is not None]
    return torch.stack(known) if len(known) == len(rows) else None
