"""Attacks that search for their strength, and their trials of the server's rule."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Knowledge
from fedbench.core.errors import require
from fedbench.core.order_statistics import sorted_rows
from fedbench.core.tiling import tiles
from fedbench.payload import FloatVectors, Payload

from .crafted import Crafted, sender
from .order_line import saturating, with_copies
from .search import Scale, Search, best_of_grid, most_damaging, published, selecting
from .squares import Squares


class Trials:
    """Trials of gamma against any rule, for the attacks that search.

    Closed forms where the rule has them: `Defense.select` and `Defense.order_weights` say all that
    a trial needs, and no message is made. Everything else asks the oracle.

    Args:
        view: View with an oracle.
        honest: ``(b, k)`` real rows of the honest messages that the attack reads.
        base: ``(k,)``.
        push: ``(k,)``.
        send: Function from a row to the messages.
        eot: Draws of the server's randomness over which the oracle's damage is averaged.
        knows: Whose rows these are. Those of its own clients stand in for the others', in turn.
    """

    def __init__(
        self,
        view: AttackView,
        honest: Tensor,
        base: Tensor,
        push: Tensor,
        send: Callable[[Tensor], Payload],
        eot: int = 1,
        knows: Literal["colluders", "all"] = "all",
    ) -> None:
        assert view.defense is not None
        self.view = view
        self.oracle = view.defense
        self.m = len(view.own)
        self.base = base
        self.push = push
        self.send = send
        self.eot = eot
        self.given = honest
        others = view.n - self.m
        stand_in = knows == "colluders" and others > 0
        self.honest = honest[torch.arange(others) % len(honest)] if stand_in else honest
        self.n = len(self.honest) + self.m

    @cached_property
    def mean(self) -> Tensor:
        """Mean of the given rows, from which damage is measured."""
        return self.given.mean(dim=0)

    @cached_property
    def squares(self) -> Squares:
        """Squared distances of the honest rows and the colluders'."""
        return Squares(self.honest, self.base, self.push, self.m)

    @cached_property
    def selects(self) -> bool:
        """True if squared distances say which rows the rule averages."""
        nothing = torch.zeros(self.n, self.n, dtype=torch.float64)
        return self.oracle.rule.select(nothing) is not None

    @cached_property
    def dense(self) -> bool:
        """True if a message is the row itself: only then do the closed forms hold."""
        return isinstance(self.view.own, FloatVectors)

    @cached_property
    def ordered(self) -> tuple[Tensor, Tensor] | None:
        """Sorted honest rows and the rule's weights of ranks; None if it is no such rule.

        They say what it answers if these rows are all that it gets beside the colluders'.
        """
        weights = self.oracle.rule.order_weights(self.n)
        if weights is None or self.n != self.view.n:
            return None
        return sorted_rows(self.honest), weights

    def damage(self, gamma: float) -> float:
        """Return ``|agg - mean|``, by order statistics or by the oracle's mean over its draws."""
        sent = self.send(self.base + gamma * self.push)
        if self.ordered is not None:
            values = sent.values().to(torch.float32)
            if bool((values == values[0]).all()):
                answer = with_copies(*self.ordered, values[0], self.m)
                return float(torch.linalg.vector_norm(answer - self.mean))
        total = 0.0
        for draw in range(self.eot):
            moved = self.oracle(sent, draw).to(torch.float64) - self.mean
            total += float(torch.linalg.vector_norm(moved))
        return total / self.eot

    def chosen(self, gamma: float) -> Tensor:
        """Return the rows ``(n,)`` bool that a selecting rule averages; the colluders' are last."""
        self.oracle.queries += 1
        chosen = self.oracle.rule.select(self.squares(gamma))
        assert chosen is not None
        return chosen

    def accepted(self, gamma: float) -> bool:
        """Return whether the rule selects all colluders, or nobody else if it selects fewer."""
        chosen = self.chosen(gamma)
        return int(chosen[-self.m :].sum()) == min(self.m, int(chosen.sum())) > 0

    @cached_property
    def length(self) -> float:
        """Euclidean norm of ``push``."""
        return float(torch.linalg.vector_norm(self.push, dtype=torch.float64))

    @cached_property
    def size(self) -> float:
        """Root mean square length of the honest rows."""
        length = float(torch.linalg.vector_norm(self.given))
        if not 0 < length < math.inf:  # the squares may be beyond float32, the rows are not
            length = float(torch.linalg.vector_norm(self.given, dtype=torch.float64))
        return length / math.sqrt(len(self.given))

    def scale(self, bound: float) -> Scale:
        """Return the gammas that matter; ``bound`` is in lengths of the honest rows."""
        squares = diameter = 0.0
        if self.dense and self.selects:
            squares = float(self.squares.norms.mean())
            diameter = math.sqrt(float(self.squares.among.max()))
        else:
            for tile, middle in tiles(self.given, self.base):
                squares += float(torch.linalg.vector_norm(tile - middle, dtype=torch.float64)) ** 2
            squares /= len(self.given)
        spread = math.sqrt(squares)
        near = spread if spread > 1e-9 * self.size else self.size
        far = self.size if diameter == 0 else math.sqrt(self.n) * (spread + diameter)
        return Scale(near / self.length, far / self.length, bound * self.size / self.length)

    def exact(
        self,
        bound: float,
        aim: Literal["all", "most", "any"] = "all",
        sides: tuple[int, ...] = (1,),
    ) -> Search:
        """Return the gamma that hurts this rule most.

        But for a rule that selects, ``base`` must be the mean of the honest rows.

        Args:
            bound: Longest push, in lengths of the honest rows.
            aim: Of a rule that selects rows: the largest gamma at which ``all`` colluders are
                selected, or the gamma of ``most`` damage of those at which one is, or of ``any``.
            sides: 1 for positive gammas, -1 for negative ones, where damage is sought.
        """
        if self.length == 0:
            return Search(0.0, "still", "never")
        m = self.m
        rule = self.oracle.rule
        scale = self.scale(bound)
        if self.view.own.bounded:
            return best_of_grid(self.damage, scale, sides=sides, per_doubling=1, close=0.25)
        # Damage grows for ever without an honest row to hide among, with too few finite rows for
        # the rule, or beyond its breakdown point.
        endless = m == self.view.n or self.n < rule.rows_needed()
        weights = None if endless else rule.order_weights(self.n)
        linear = weights is not None or rule.traits().reads_sum
        if endless or (linear and m > rule.tolerates(self.n)):
            return Search(scale.bound, "unbounded", "bound")
        if self.dense and self.selects:
            return (
                self._most(scale, aim, sides) if aim != "all" else selecting(self.accepted, scale)
            )
        if self.dense and weights is not None:
            base, push = self.base, self.push
            return saturating(weights, self.honest, base, push, m, scale.bound, sides)
        return best_of_grid(self.damage, scale, sides=sides)

    def _most(self, scale: Scale, aim: str, sides: tuple[int, ...]) -> Search:
        def on(side: int) -> Search:
            def damage(gamma: float, chosen: Tensor) -> float:
                counts = aim == "any" or bool(chosen[-self.m :].any())
                return self.squares.moved(side * gamma, chosen) if counts else -1.0

            search = most_damaging(lambda gamma: self.chosen(side * gamma), damage, scale)
            trace = tuple((side * gamma, sought) for gamma, sought in search.trace)
            return replace(search, gamma=side * search.gamma, trace=trace)

        searches = [on(side) for side in sides]
        best = max(searches, key=lambda search: dict(search.trace)[search.gamma])
        return replace(best, trace=tuple(trial for search in searches for trial in search.trace))

    def published(self, start: float) -> Search:
        """Return the search of the attack's public code, on closed forms where there are any."""
        closed = self.selects and self.dense
        return published(self.damage, start, self.accepted if closed else None)


@dataclass(frozen=True, kw_only=True)
class Searched(Crafted):
    """All colluders send ``mean + gamma * push``, with a gamma that is sought over the rule.

    Args:
        knows: Messages it reads: those of the benign clients (``all``), or those of its own clients
            as if honest (``colluders``), which then stand in for the others' when it queries the
            rule.
        bound: Longest ``gamma * push``, in root mean square lengths of the messages it reads.
        eot: Draws of the server's randomness over which damage is averaged, for rules that have
            some (expectation over transformation).
    """

    sides: ClassVar[tuple[int, ...]] = (1,)  # -1: a negative gamma is tried, too

    bound: float = 1e5
    eot: int = 1

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(f"{name}.bound", self.bound, self.bound > 0, "> 0")
        require(f"{name}.eot", self.eot, self.eot >= 1, ">= 1")

    def needs(self) -> Knowledge:
        return Knowledge(self.knows, defense=True)

    @abstractmethod
    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        """Return the direction ``(k,)`` in which the mean is left."""

    def strength(self, trials: Trials) -> Search:
        return trials.exact(self.bound, "any", self.sides)

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        mean = honest.mean(dim=0)
        push = self.push(view, honest, mean)
        trials = Trials(view, honest, mean, push, sender(view, self.via), self.eot, self.knows)
        search = self.strength(trials)
        view.notes.update({"gamma": search.gamma} | search.notes)
        view.trace.extend(search.trace)
        return mean + search.gamma * push
