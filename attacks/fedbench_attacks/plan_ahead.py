"""Attack that plans over rounds: it climbs on the loss that several of them leave."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedbench.api import Attack, AttackView, Choices, Knowledge, Tier
from fedbench.core.errors import require
from fedbench.core.trees import Layout, Tree
from fedbench.payload import (
    FloatVectors,
    HalfVectors,
    Levels,
    MixtureVectors,
    Payload,
    RotatedLevels,
    ScaledSigns,
    SeededSparse,
    SparseVectors,
)

from .crafted import Origin, honest_rows, unit
from .samples import balanced

STEPS = 3  # of gradient descent that stand for the honest training of a round
CLIMBS = 5  # steps along gradients through all rounds, in each round
PROBE = 1e-3  # length of a difference of weights, relative to theirs
STRENGTHS = tuple(2.0**i for i in range(-3, 13))  # in distances of an honest row from the mean
FARTHER = 1.01  # a strength must take the model by a factor farther than a smaller one


@dataclass(frozen=True, eq=False)
class Planned:
    """Memory of the adversary between two rounds that it takes part in."""

    push: Tensor  # (d,) direction of the last push, of length 1
    reach: float  # how far that push moved the model


@dataclass(frozen=True, kw_only=True)
class PlanAhead(Attack):
    """All colluders send the push of the mean that leaves the highest loss after several rounds.

    It simulates them on 256 of its clients' samples: the model moves by the same push in each, and
    honest clients train in between, by three steps of gradient descent that go as far as the model
    went in this round. It climbs five times along the gradient of the loss at the end, from the
    push of its last round. That gradient goes back through the training by differences of gradients
    (`gradient_of_push`); with ``ahead=4`` a round takes about 125 gradients, where `Auto` takes 6.
    Of this push it sends the one of 16 strengths, from 1/8 to 4096 honest rows' distances from the
    mean, at which the server's step takes the model farthest along it. Where none does, it sends
    honest messages, or strength 1 if it does not know those of benign clients.

    Behind most rules that bound what a row does it goes beyond `Auto` in the last round of a run
    whose end it knows; early in training, and where a single round can destroy the model, `Auto`
    does more (docs/results/adaptive.md). So it is played beside that, not instead of it.

    Args:
        ahead: Rounds that it simulates, this one included.
        rounds: Number of rounds of the run, beyond which it does not plan; 0 if it does not know.
        knows: Messages it reads: those of ``all`` benign clients, those of its own clients as if
            honest (``colluders``), or each client its ``own`` alone.

    References:
        None: proposed here. Backdoors that anticipate how honest clients train on are in Wen,
        Geiping, Fowl, Souri, Chellappa, Goldblum and Goldstein, "Thinking Two Moves Ahead:
        Anticipating Other Users Improves Backdoor Attacks in Federated Learning", 2022,
        https://arxiv.org/abs/2210.09305.
    """

    accepts = (
        *(FloatVectors, HalfVectors, Levels, MixtureVectors, RotatedLevels, ScaledSigns),
        *(SeededSparse, SparseVectors),
    )
    choices: ClassVar[Choices] = {"ahead": (2, 8)}

    ahead: int = 4
    rounds: int = 0
    knows: Tier = "all"

    def __post_init__(self) -> None:
        require("PlanAhead.ahead", self.ahead, 1 <= self.ahead <= 20, "in [1, 20]")
        require("PlanAhead.rounds", self.rounds, self.rounds >= 0, ">= 0")

    def needs(self) -> Knowledge:
        return Knowledge(self.knows, defense=True, data=True)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Plan anew, and send the push as far as the rule lets it go."""
        honest = honest_rows(view)
        if honest is None:
            return view.own, memory
        assert view.defense is not None
        training = Training(view)
        aligned = view.own.aligned and honest.shape[1] == view.updates.shape[1]
        rows = honest if aligned else view.updates
        origin = Origin.of("", rows, lambda row: view.compress(row.expand(len(view.own), -1)))
        start = training.after(view.defense(view.own))
        training.match(start)
        # How far a push can move the model: at first its clients' share of a row's distance.
        reach = memory.reach if memory else len(view.own) / view.n * origin.size
        push = memory.push if memory else unit(training.slope(start))
        push = planned(training, start, push, reach, self.horizon(view.step))
        sent, moved = farthest(view, training, origin, start, push, self.knows != "all")
        return sent, Planned(push, moved or reach)

    def horizon(self, step: int) -> int:
        """Return how many rounds to simulate from a round on.

        >>> [PlanAhead(rounds=6).horizon(step) for step in (0, 2, 3, 5)]
        [4, 4, 3, 1]

        After that many rounds it does not know the end any more.

        >>> PlanAhead(rounds=6).horizon(6)
        4
        """
        left = self.rounds - step
        return min(self.ahead, left) if left > 0 else self.ahead


class Training:
    """Simulation of honest training, on samples of the adversary's clients.

    Args:
        view: What the attack is shown.
    """

    def __init__(self, view: AttackView) -> None:
        assert view.rehearsal is not None
        self.view = view
        drawn = balanced(view.rehearsal.y, view.key.fold("samples"))
        self.x = view.rehearsal.x[drawn]
        self.y = view.rehearsal.y[drawn]
        self.received = view.ahead()
        names = view.rehearsal.names
        self.layout = Layout.of({name: tuple(self.received[name].shape) for name in names})
        self.before = self.layout.flatten(self.received)
        still = view.rehearsal.statistics
        weights = {n: torch.full_like(x, n not in still) for n, x in self.received.items()}
        self.weights = self.layout.flatten(weights).to(torch.bool)
        self.rate = 1.0

    def tree(self, w: Tensor) -> Tree:
        """Return what clients were sent, with ``w (d,)`` in the place of what they train."""
        return self.received | self.layout.unflatten(w)

    def length(self, w: Tensor) -> float:
        """Return the length of ``w (d,)`` without running statistics, which no gradient moves."""
        return float(vector_norm(w[self.weights]))

    def after(self, answer: Tensor) -> Tensor:
        """Return what clients get after the rule has given this answer, ``(d,)``."""
        return self.layout.flatten(self.view.ahead(answer))

    def slope(self, w: Tensor) -> Tensor:
        """Return the gradient ``(d,)`` of the loss at ``w (d,)``."""
        return self.view.gradient(self.tree(w), self.x, self.y).nan_to_num(0.0, 0.0, 0.0)

    def loss(self, w: Tensor) -> float:
        """Return the mean loss at ``w (d,)`` in nats."""
        return float(self.view.loss(self.tree(w), self.x, self.y).mean())

    def match(self, start: Tensor) -> None:
        """Choose the rate in [0.001, 1] at which a round of it goes as far as the model has."""
        length = self.length(start - self.before)
        low = 1e-3
        high = 1.0
        for _ in range(7):
            self.rate = math.sqrt(low * high)
            w, _ = self.trained(self.before)
            if self.length(w - self.before) < length:
                low = self.rate
            else:
                high = self.rate
        self.rate = low

    def trained(self, w: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Train from ``w (d,)``; return the result, and the weights and slope of each step."""
        path = []
        for _ in range(STEPS):
            g = self.slope(w)
            path.append((w, g))
            w = w - self.rate * g
        return w, path


def planned(training: Training, start: Tensor, push: Tensor, reach: float, rounds: int) -> Tensor:
    """Return the direction ``(d,)`` that leaves the highest loss after so many rounds.

    Args:
        training: Honest training.
        start: Weights ``(d,)`` after an honest round.
        push: Direction ``(d,)`` to climb from.
        reach: How far each push moves the model.
        rounds: Rounds that are simulated.
    """
    best = push
    highest = -math.inf
    for climb in range(CLIMBS + 1):
        w = start + reach * push
        path = []
        for _ in range(rounds - 1):
            w, steps = training.trained(w)
            path += steps
            w = w + reach * push
        loss = training.loss(w)
        if loss > highest and bool(push.any()):  # 0, after a network without gradient, is no push
            highest = loss
            best = push
        if climb == CLIMBS:
            break
        last = training.slope(w)
        up = unit(gradient_of_push(training.slope, last, path, training.rate, training.length))
        push = unit(push + 2 * up) if climb else up
    return best


def gradient_of_push(
    slope: Callable[[Tensor], Tensor],
    last: Tensor,
    path: list[tuple[Tensor, Tensor]],
    rate: float,
    length: Callable[[Tensor], float],
) -> Tensor:
    """Return the gradient ``(d,)`` of the last loss in the push that is added in every round.

    It goes back through a step ``w - rate g(w)`` by ``a - rate H a``, and ``H a`` is about
    ``(g(w + e a) - g(w)) / e``; the difference in Liu, Simonyan and Yang, "DARTS", ICLR 2019,
    https://arxiv.org/abs/1806.09055, equation 8, is central and costs one gradient more.

    Args:
        slope: Gradient ``(d,)`` of the loss at weights ``(d,)``.
        last: Gradient ``(d,)`` at the last weights.
        path: Weights before each honest step, and the gradient there; `STEPS` in each round.
        rate: Learning rate of these steps.
        length: Length of weights ``(d,)``; of their size a share `PROBE` is the step ``e a``.
    """
    back = last
    total = last
    for i, (w, g) in enumerate(reversed(path), start=1):
        size = float(vector_norm(back))
        if not 0 < size < math.inf:
            break
        probe = PROBE * length(w) / size
        back = back - rate * (slope(w + probe * back) - g) / probe
        if i % STEPS == 0:
            total = total + back
    return total.nan_to_num(0.0, 0.0, 0.0)


def farthest(
    view: AttackView,
    training: Training,
    origin: Origin,
    start: Tensor,
    push: Tensor,
    guessed: bool,
) -> tuple[Payload, float]:
    """Return the messages of the best strength, and how far they take the model from ``start``.

    Where no strength takes it along the push, they are the honest ones, and the distance is 0. If
    the others' messages are ``guessed``, they are those of strength 1 instead: its own messages,
    which stand in for all, outvote a single one, whatever it does to the real ones.
    """
    assert view.defense is not None
    best = view.own
    along = 0.0
    moved = 0.0
    view.notes["strength"] = 0.0
    for strength in STRENGTHS:
        sent = origin.send(origin.base + strength * origin.size * push)
        if not bool(sent.passes("finite").all()):
            continue
        move = (training.after(view.defense(sent)) - start).to(torch.float64)
        reached = float(move @ push.to(torch.float64))
        view.trace.append((strength, reached))
        if math.isfinite(reached) and reached > FARTHER * along:
            best = sent
            along = reached
            moved = training.length(move)
            view.notes["strength"] = strength
        elif guessed and strength == 1 and not along:
            best = sent
            view.notes["strength"] = strength
    return best, moved
