"""A rule on trial: what it answers to colluders who all send ``base + gamma * push``."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import AttackView
from fedbench.order import sorted_rows
from fedbench.payload import FloatVectors, Payload

from .search import (
    Search,
    at_bound,
    best_of_grid,
    published,
    saturating,
    selecting,
    with_copies,
)
from .squares import Squares


class Trials:
    """What the searching attacks ask of a rule, whatever rule it is.

    Closed forms where the rule has them: `Defense.select` and `Defense.order_weights` say all that
    a trial needs, and no message is made. Everything else asks the oracle.

    Args:
        view: With an oracle.
        known: ``(b, k)`` rows of real numbers, what the attack knows of honest messages.
        base: ``(k,)``.
        push: ``(k,)``.
        send: From a row to the messages.
        eot: Draws of the server's randomness over which the oracle's damage is averaged.
        knows: Whose rows these are. Those of its own clients stand in for the others', in turn.
    """

    def __init__(
        self,
        view: AttackView,
        known: Tensor,
        base: Tensor,
        push: Tensor,
        send: Callable[[Tensor], Payload],
        eot: int = 1,
        knows: Literal["colluders", "all"] = "all",
    ) -> None:
        assert view.defense is not None
        self.view, self.base, self.push, self.send, self.eot = view, base, push, send, eot
        self.oracle, self.m = view.defense, len(view.own)
        self.given = known
        others = view.n - self.m
        stand_in = knows == "colluders" and others > 0
        self.known = known[torch.arange(others) % len(known)] if stand_in else known
        self.n = len(self.known) + self.m

    @cached_property
    def mean(self) -> Tensor:
        """Of the rows that were given: what damage is measured from."""
        return self.given.mean(dim=0)

    @cached_property
    def squares(self) -> Squares:
        """Of the known rows and the colluders'."""
        return Squares(self.known, self.base, self.push, self.m)

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
        """Sorted known rows and the rule's weights of ranks; None if it is no such rule.

        They say what it answers if these rows are all that it gets beside the colluders'.
        """
        weights = self.oracle.rule.order_weights(self.n)
        if weights is None or self.n != self.view.n:
            return None
        return sorted_rows(self.known), weights

    def damage(self, gamma: float) -> float:
        """``|agg - mean|``: by order statistics, or by the oracle, averaged over its draws."""
        sent, total = self.send(self.base + gamma * self.push), 0.0
        if self.ordered is not None:
            values = sent.values().to(torch.float32)
            if bool((values == values[0]).all()):
                answer = with_copies(*self.ordered, values[0], self.m)
                return float(torch.linalg.vector_norm(answer - self.mean))
        for draw in range(self.eot):
            moved = self.oracle(sent, draw).to(torch.float64) - self.mean
            total += float(torch.linalg.vector_norm(moved))
        return total / self.eot

    def chosen(self, gamma: float) -> Tensor:
        """``(n,)`` bool: what a rule that selects averages; the colluders' rows are last."""
        self.oracle.queries += 1
        chosen = self.oracle.rule.select(self.squares(gamma))
        assert chosen is not None
        return chosen

    def accepted(self, gamma: float) -> bool:
        """Whether the rule selects all colluders, or nobody else if it selects fewer."""
        chosen = self.chosen(gamma)
        return int(chosen[-self.m :].sum()) == min(self.m, int(chosen.sum())) > 0

    def exact(self, bound: float, most: bool = False) -> Search:
        """The gamma that hurts this rule most, up to ``bound``.

        But for a rule that selects, ``base`` must be the mean of the known rows.

        Args:
            bound: The largest; on discrete alphabets times ``|mean| / |push|`` where that is more
                than 1.
            most: Of a rule that selects, the gamma of most damage, and not the largest at which
                all colluders are selected.
        """
        m, rule = self.m, self.oracle.rule
        if self.view.own.bounded:
            # Positions of a million edges have a norm of 10^8: a unit step would not be felt.
            norm = torch.linalg.vector_norm
            scale = float(norm(self.mean) / norm(self.push).clamp_min(1e-12))
            return best_of_grid(self.damage, bound * max(1.0, scale))
        if m == self.view.n:  # no honest row to hide among
            return at_bound(bound)
        if self.n < rule.rows_needed():  # so few rows are finite: no rule speaks of them
            return at_bound(bound)
        ranks = rule.order_weights(self.n) is not None
        if m > rule.tolerates(self.n) and (ranks or rule.traits().reads_sum):
            return at_bound(bound)  # damage grows for ever
        if not self.dense:
            return best_of_grid(self.damage, bound)
        if self.selects:
            return self._of_most_damage(bound) if most else selecting(self.accepted, bound)
        weights = rule.order_weights(self.n)
        if weights is not None:
            return saturating(weights, self.known, self.base, self.push, m, bound)
        return best_of_grid(self.damage, bound)

    def _of_most_damage(self, bound: float) -> Search:
        def damage(gamma: float) -> float:
            return self.squares.moved(gamma, self.chosen(gamma))

        edge, grid = selecting(self.accepted, bound), best_of_grid(damage, bound)
        best = edge if damage(edge.gamma) >= damage(grid.gamma) else grid
        return Search(best.gamma, best.kind, best.ended, edge.trace + grid.trace)

    def published(self, start: float) -> Search:
        """The search of the attack's public code, on closed forms where there are any."""
        closed = self.selects and self.dense
        return published(self.damage, start, self.accepted if closed else None)
