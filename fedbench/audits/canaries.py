"""Audits of a run with canary clients: the one-run bound and the one-shot estimates."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.api import Memory
from fedbench.audits import laws
from fedbench.audits.bounds import AuditFinding, Method, best_guesses
from fedbench.audits.watched import watched
from fedbench.core.errors import ConfigError, NoTheorem, require
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Executor
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.guarantee import guarantee
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Privacy
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import Payload
from fedbench.run import begin, play_round

Form = Literal["signs", "sphere"]
Rows = npt.NDArray[np.int64]
CLIPPED_LENGTH = 10.0  # times the clip, so that the mechanism has to clip it
ADJACENCIES = ("zero-out", "replace-one")  # an absent canary is one that was replaced
HIDDEN = "sums, not who took part,"
OBSERVED = {"messages": "messages", "sum": "sums", "hidden-sum": HIDDEN, "model": "models"}


@dataclass(frozen=True, eq=False)
class Canaries:
    """The last ``m`` clients of a run, which do not train.

    A present canary sends ``idle + radius u`` in each of its rounds, with a random unit vector
    ``u`` of its own; an absent one sends ``idle``, as a client that learned nothing. Both comply
    with the mechanism, so the two are neighbours in the sense of zero-out.
    """

    present: Tensor  # ``(m,)`` bool, true for canaries that send their direction
    first: int  # client that is canary 0
    radius: float  # L2 norm of the update before the mechanism clips it
    key: Key  # of the directions
    form: Form = "signs"  # ``u`` is in ``{-1, 1}^d / sqrt(d)``, or uniform on the sphere

    def __len__(self) -> int:
        return len(self.present)

    def direction(self, j: int, d: int) -> Tensor:
        """Return the unit vector ``(d,)`` of canary ``j``, the same at every call."""
        key = self.key.fold("direction", j)
        x = key.flips(d) if self.form == "signs" else key.normal(d)
        return torch.nn.functional.normalize(x, dim=0)

    def update(self, j: int, idle: Tensor) -> Tensor:
        """Return the update ``(d,)`` of canary ``j``."""
        if not bool(self.present[j]):
            return idle
        return idle + self.radius * self.direction(j, len(idle)).to(idle)

    def rows(self, ids: Sequence[int]) -> dict[int, int]:
        """Map the rows of a round, of clients ``ids``, to their canaries."""
        return {row: i - self.first for row, i in enumerate(ids) if i >= self.first}


@dataclass(frozen=True, eq=False)
class Planted(Executor):
    """Executor in which some rows are given, and the others train as usual."""

    inner: Executor  # of the other rows
    given: dict[int, Tensor]  # updates ``(d,)`` by row of this round

    def train(self, clients: Sequence[Client]) -> tuple[Tensor, list[Memory]]:
        """See `Executor.train`; the memory of a canary does not change."""
        honest = [row for row in range(len(clients)) if row not in self.given]
        trained, memories = self.inner.train([clients[row] for row in honest])
        updates = trained.new_zeros(len(clients), trained.shape[1])
        updates[honest] = trained
        for row, update in self.given.items():
            updates[row] = update.to(updates)
        after = dict(zip(honest, memories, strict=True))
        return updates, [after.get(row, client.memory) for row, client in enumerate(clients)]


def play(setup: Setup, run_state: RunState, canaries: Canaries) -> Iterator[dict[int, Tensor]]:
    """Play rounds with canaries; yield for each what is seen, ``(d,)`` by canary.

    That is its message, the sum of its rounds, of every round (``hidden-sum``), or the change of
    the model in each; all but the last minus what clients that learned nothing would have sent.
    `ConfigError` if messages do not have a value for each parameter.
    """
    protocol = setup.plugins.protocol
    shared = setup.shared
    seen: list[tuple[Payload, Tensor]] = []
    observed = watched(setup, lambda received, aggregate, view: seen.append((received, aggregate)))
    before = model(setup, run_state)
    for step in range(setup.scenario.rounds):
        ids = setup.sample(step)
        key = setup.secret.key("broadcast", step)
        idle = protocol.idle(shared, protocol.broadcast(shared, run_state.server, ids or [0], key))
        idle = idle.expand(max(len(ids), 1), -1)
        rows = canaries.rows(ids)
        given = {row: canaries.update(j, idle[row]) for row, j in rows.items()}
        executor = Planted(protocol, shared, setup.executor.schedule, setup.executor, given)
        seen.clear()
        play_round(dataclasses.replace(observed, executor=executor), run_state, step)
        after = model(setup, run_state)
        if setup.sees == "model":
            yield dict.fromkeys(range(len(canaries)), after - before)
        elif seen:
            yield _seen(setup, canaries, rows, idle, *seen[0])
        before = after


def _seen(
    setup: Setup,
    canaries: Canaries,
    rows: dict[int, int],
    idle: Tensor,
    received: Payload,
    aggregate: Tensor,
) -> dict[int, Tensor]:
    if aggregate.shape[-1] != idle.shape[1] or len(received) != len(idle):
        raise ConfigError(
            "canaries need messages with a value for each parameter, and none that is refused; "
            "use --method mechanism, or --protocol fedavg, signsgd or fedpm"
        )
    if setup.sees == "messages":
        values = received.values()
        return {j: values[row] - idle[row].to(values) for row, j in rows.items()}
    change = len(received) * aggregate - idle.sum(dim=0).to(aggregate)
    hidden = setup.sees == "hidden-sum"
    return dict.fromkeys(range(len(canaries)) if hidden else rows.values(), change)


def model(setup: Setup, run_state: RunState) -> Tensor:
    """Return the values ``(d,)`` that the server would send now."""
    key = setup.secret.key("looked at")
    sent = setup.plugins.protocol.broadcast(setup.shared, run_state.server, [0], key)
    values: Tensor = sent.values()[0]
    return values.clone()


def one_run_bound(scenario: Scenario, canaries: int, confidence: float) -> AuditFinding:
    """Return a lower bound from guesses of the coins that decide which canaries are present.

    A canary's score is the sum over rounds of ``<x, u>``, with ``x`` what is seen of it and ``u``
    its direction (`Guesses` names the paper). The claim is the same run's epsilon at zero-out, or
    at replace-one, which includes zero-out.
    """
    setup = ready(scenario)
    coins = setup.secret.key("audit", "one-run").fold("there").uniform(canaries) < 0.5
    planted = plant(setup, coins, "signs")
    state = begin(setup)
    scores = torch.zeros(canaries, dtype=torch.float64)
    for j, x in (item for seen in play(setup, state, planted) for item in seen.items()):
        scores[j] += float(x.double() @ planted.direction(j, len(x)).to(x).double())
    claim = claimed(setup, state)
    epsilon, guesses = best_guesses(scores.numpy(), coins.numpy(), claim.delta, confidence)
    evidence = (
        f"{guesses.right} of {guesses.made} guesses right, no word on {canaries - guesses.made} "
        f"canaries; all right would prove {guesses.best(confidence):.3g}"
    )
    return _finding(setup, claim, canaries, "one-run", epsilon, evidence, confidence=confidence)


def one_shot_estimates(scenario: Scenario, canaries: int) -> list[AuditFinding]:
    """Return two estimates from canaries that are all present: `from_final` and `from_all`."""
    setup = ready(scenario)
    planted = plant(setup, torch.ones(canaries, dtype=torch.bool), "sphere")
    unused = Canaries(planted.present, 0, 0.0, planted.key.fold("unobserved"), "sphere")
    state = begin(setup)
    total = dict[int, Tensor]()
    largest = np.full((2, canaries), -math.inf)
    for seen in play(setup, state, planted):
        for j, x in seen.items():
            total[j] = x.double() if j not in total else total[j] + x.double()
            for k, directions in enumerate((planted, unused)):
                largest[k, j] = max(largest[k, j], cosine(x, directions.direction(j, len(x))))
    claim = claimed(setup, state)
    took = np.array(sorted(total))
    require("canaries that took part", len(took), len(took) >= 4, ">= 4; more rounds have more")
    d = len(total[int(took[0])])
    final = np.array([cosine(total[j], planted.direction(j, d)) for j in took.tolist()])

    def estimate(
        method: Method, cosines: str, fitted: Callable[[Rows], laws.Gaussians]
    ) -> AuditFinding:
        epsilon, error = laws.estimate(fitted, len(took), claim.delta)
        fit = fitted(np.arange(len(took)))
        evidence = (
            f"{cosines} {fit.mean:.3g} (std {fit.std:.2g}), without canaries "
            f"{fit.other:.3g} (std {fit.other_std:.2g})"
        )
        return _finding(setup, claim, len(took), method, epsilon, evidence, error=error)

    return [
        estimate("one-shot", "cosines", lambda rows: laws.from_final(final[rows], d)),
        estimate(
            "one-shot, max",
            "largest cosines of a round",
            lambda rows: laws.from_all(*largest[:, took[rows]]),
        ),
    ]


def _finding(
    setup: Setup,
    claim: Privacy,
    canaries: int,
    method: Method,
    epsilon: float,
    evidence: str,
    confidence: float | None = None,
    error: float | None = None,
) -> AuditFinding:
    scenario = setup.scenario
    rounds = f"{scenario.rounds} round{'s' * (scenario.rounds > 1)}"
    clients = f"{canaries} canaries among {scenario.clients} clients"
    return AuditFinding(
        method=method,
        epsilon=epsilon,
        claimed=math.inf if claim.epsilon is None else claim.epsilon,
        delta=claim.delta,
        unit=claim.unit,
        adjacency=claim.adjacency,
        confidence=confidence,
        audited=f"{clients}, {rounds}, {OBSERVED[setup.sees]} seen",
        evidence=evidence,
        error=error,
        paper=claim.paper,
    )


def cosine(x: Tensor, u: Tensor) -> float:
    """Return the cosine of ``x`` and a unit vector; 0 if ``x`` is 0."""
    norm = float(torch.linalg.vector_norm(x.double()))
    return float(x.double() @ u.to(x).double()) / norm if norm else 0.0


def ready(scenario: Scenario) -> Setup:
    """Prepare the run at an adjacency that covers its canaries; `ConfigError` if there is none."""
    mechanism = load_plugins(scenario).mechanism
    if mechanism.unit != "client":
        raise ConfigError(
            f"--mechanism {scenario.mechanism.partition(':')[0]} covers an {mechanism.unit}, of "
            "which a canary client says nothing; use --method mechanism"
        )
    comes = scenario.availability
    require("--availability", comes, comes == "none", "none, for canaries are there in every round")
    asked = scenario.adjacency
    require("--adjacency", asked, asked is None or asked in ADJACENCIES, " or ".join(ADJACENCIES))
    refused: NoTheorem | None = None
    for adjacency in ADJACENCIES if asked is None else (asked,):
        try:
            return prepare(scenario.model_copy(update={"adjacency": adjacency}), "cpu")
        except NoTheorem as error:
            refused = refused or error
    assert refused is not None
    raise refused


def plant(setup: Setup, present: Tensor, form: Form) -> Canaries:
    """Return canaries in place of the last clients, far beyond the clip; ``present (m,)`` bool."""
    plugins = setup.plugins
    if plugins.protocol.space == "probabilities":
        radius = CLIPPED_LENGTH * math.sqrt(int(plugins.protocol.trained(setup.shared).d))
    else:
        owner = plugins.mechanism if hasattr(plugins.mechanism, "clip") else plugins.protocol
        radius = CLIPPED_LENGTH * float(getattr(owner, "clip", None) or 1.0)
    first = setup.scenario.clients - len(present)
    return Canaries(present, first, radius, setup.secret.key("audit", form), form)


def claimed(setup: Setup, state: RunState) -> Privacy:
    """Return the accountant's guarantee for the run that was played; `ConfigError` if none."""
    claim = guarantee(setup, state.ledger)
    if claim is None:
        raise ConfigError(
            f"--mechanism {setup.scenario.mechanism.partition(':')[0]} claims nothing that could "
            "be audited; fedbench list mechanisms"
        )
    return claim
