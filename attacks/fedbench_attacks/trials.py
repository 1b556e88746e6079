"""Trials of the server's rule, for attacks that search for their strength."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import AttackView
from fedbench.core.order_statistics import sorted_rows
from fedbench.core.tiling import tiles
from fedbench.payload import FloatVectors, Payload

from .crafted import Squares
from .order_line import saturating, with_copies
from .search import Scale, Search, best_of_grid, most_damaging, published, selecting


@dataclass(eq=False)
class Trials:
    """Trials of ``base + gamma * push`` against any rule, for the attacks that search.

    Closed forms where the rule has them: `Defense.select` and `Defense.order_weights` say all that
    a trial needs, and no message is made. Everything else asks the oracle, over whose ``eot`` draws
    damage is averaged. Rows ``given (b, k)`` of its own clients stand in for the others', in turn.
    """

    view: AttackView
    given: Tensor
    base: Tensor
    push: Tensor
    send: Callable[[Tensor], Payload]
    eot: int = 1
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        assert self.view.defense is not None
        self.oracle = self.view.defense
        self.m = len(self.view.own)
        others = self.view.n - self.m
        stand_in = self.knows == "colluders" and others > 0
        self.honest = self.given[torch.arange(others) % len(self.given)] if stand_in else self.given
        self.n = len(self.honest) + self.m
        self.length = float(torch.linalg.vector_norm(self.push, dtype=torch.float64))
        # Only where a message is the row itself do the closed forms hold.
        self.dense = isinstance(self.view.own, FloatVectors)

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
        moved = (self.oracle(sent, draw).to(torch.float64) - self.mean for draw in range(self.eot))
        return sum(float(torch.linalg.vector_norm(row)) for row in moved) / self.eot

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
        """Return the gamma that hurts this rule most, with a push of at most ``bound`` honest rows.

        Against a rule that selects rows that is, with the ``aim`` ``all``, the largest gamma at
        which all colluders are selected; with ``most`` the one of most damage at which one is, with
        ``any`` of any. For every other rule ``base`` must be the mean of the honest rows. Damage is
        sought on these ``sides``, 1 for positive gammas and -1 for negative ones.
        """
        if self.length == 0:
            return Search(0.0, "still", "never")
        rule = self.oracle.rule
        scale = self.scale(bound)
        if self.view.own.bounded:
            return best_of_grid(self.damage, scale, sides=sides, per_doubling=1, close=0.25)
        # Damage grows for ever without an honest row to hide among, with too few finite rows for
        # the rule, or beyond its breakdown point.
        endless = self.m == self.view.n or self.n < rule.rows_needed()
        weights = None if endless else rule.order_weights(self.n)
        linear = weights is not None or rule.traits().reads_sum
        if endless or (linear and self.m > rule.tolerates(self.n)):
            return Search(scale.bound, "unbounded", "bound")
        if self.dense and self.selects and aim == "all":
            return selecting(self.accepted, scale)
        if self.dense and self.selects:
            return self._most(scale, aim, sides)
        if self.dense and weights is not None:
            line = (self.honest, self.base, self.push, self.m)
            return saturating(weights, *line, scale.bound, sides)
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
