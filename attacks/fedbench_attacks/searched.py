"""Attacks that leave the mean as far as hurts the server's rule most."""

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices, Knowledge, Variants
from fedbench.core.errors import require
from fedbench.core.order_statistics import sorted_rows
from fedbench.core.tiling import tiles
from fedbench.payload import FloatVectors, Payload

from . import search as searches
from .crafted import Crafted, Squares, TwoSided, direction, margin, mirrored, sender
from .search import Scale, Search, best_of_grid, worst


@dataclass(eq=False)
class Trials:
    """Trials of ``base + gamma * push`` against any rule, for the attacks that search.

    Where `Defense.select` or `Defense.order_weights` say all of a trial, no message is made,
    else damage is averaged over ``eot`` draws of the oracle. Rows ``given (b, k)`` of its own
    clients stand in for the others', in turn.
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
        if not bool(sent.passes(self.oracle.checks).all()):
            return 0.0  # the server rejects it
        if self.ordered is not None:
            values = sent.values().to(torch.float32)
            if bool((values == values[0]).all()):
                answer = searches.with_copies(*self.ordered, values[0], self.m)
                return float(torch.linalg.vector_norm(answer - self.mean))
        moved = (self.oracle(sent, draw).to(torch.float64) - self.mean for draw in range(self.eot))
        return sum(float(torch.linalg.vector_norm(row)) for row in moved) / self.eot

    @cached_property
    def picks(self) -> bool:
        """True if squared distances say which rows the rule picks, whatever it makes of them."""
        nothing = torch.zeros(self.n, self.n, dtype=torch.float64)
        return self.dense and self.oracle.rule.candidates(nothing) is not None

    def chosen(self, gamma: float) -> Tensor:
        """Return the rows ``(n,)`` bool that a selecting rule averages; the colluders' are last."""
        self.oracle.queries += 1
        chosen = self.oracle.rule.select(self.squares(gamma))
        assert chosen is not None
        return chosen

    def accepted(self, gamma: float) -> bool:
        """Return whether the rule picks all colluders, or nobody else if it picks fewer."""
        self.oracle.queries += 1
        picked = self.oracle.rule.candidates(self.squares(gamma))
        assert picked is not None
        return int(picked[-self.m :].sum()) == min(self.m, int(picked.sum())) > 0

    @cached_property
    def size(self) -> float:
        """Root mean square length of the honest rows."""
        length = float(torch.linalg.vector_norm(self.given))
        if not 0 < length < math.inf:  # the squares may be beyond float32, the rows are not
            length = float(torch.linalg.vector_norm(self.given, dtype=torch.float64))
        return length / math.sqrt(len(self.given))

    def scale(self, bound: float, by_distances: bool) -> Scale:
        """Return the gammas that matter; ``bound`` is in lengths of the honest rows."""
        squares = diameter = 0.0
        if by_distances:
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

        Against a rule that picks rows that is, with the ``aim`` ``all``, the largest gamma at which
        all colluders are picked; if it averages them, with ``most`` the gamma of most damage at
        which one is, with ``any`` of any. For every other rule ``base`` must be the mean of the
        honest rows. Damage is sought on these ``sides``, 1 for positive gammas and -1 for negative
        ones.
        """
        if self.length == 0:
            return Search(0.0, "still", "never")
        rule = self.oracle.rule
        by_distances = self.picks if aim == "all" else self.dense and self.selects
        scale = self.scale(bound, by_distances)
        if self.view.own.bounded:
            grids = [
                best_of_grid(self.damage, scale, sides=(side,), per_doubling=1, close=0.25)
                for side in sides
            ]
            return worst(grids, margin(self.view))
        # Damage grows for ever without an honest row to hide among, with too few finite rows for
        # the rule, or beyond its breakdown point.
        endless = self.m == self.view.n or self.n < rule.rows_needed()
        weights = None if endless else rule.order_weights(self.n)
        linear = weights is not None or rule.traits().reads_sum
        if endless or (linear and self.m > rule.tolerates(self.n)):
            return Search(sides[0] * scale.bound, "unbounded", "bound")
        if by_distances:
            return self._all(scale, sides) if aim == "all" else self._most(scale, aim, sides)
        if self.dense and weights is not None:
            return searches.saturating(
                weights, self.honest, self.base, self.push, self.m, scale.bound, sides
            )
        return best_of_grid(self.damage, scale, sides=sides)

    def _all(self, scale: Scale, sides: tuple[int, ...]) -> Search:
        def on(side: int) -> Search:
            return searches.selecting(lambda gamma: self.accepted(side * gamma), scale).on(side)

        by_side = [on(side) for side in sides]
        best = max(by_side, key=lambda search: abs(search.gamma))
        return replace(best, trace=tuple(trial for search in by_side for trial in search.trace))

    def _most(self, scale: Scale, aim: str, sides: tuple[int, ...]) -> Search:
        def on(side: int) -> Search:
            def damage(gamma: float, chosen: Tensor) -> float:
                counts = aim == "any" or bool(chosen[-self.m :].any())
                return self.squares.moved(side * gamma, chosen) if counts else -1.0

            searched = searches.most_damaging(
                lambda gamma: self.chosen(side * gamma), damage, scale
            )
            return searched.on(side)

        return worst([on(side) for side in sides], margin(self.view))

    def published(self, start: float) -> Search:
        """Return the search of the attack's public code, on closed forms where there are any."""
        return searches.published(self.damage, start, self.accepted if self.picks else None)


@dataclass(frozen=True, kw_only=True)
class Searched(Crafted):
    """All colluders send ``mean + gamma * push``, with a gamma that is sought over the rule.

    Messages of its own clients (``knows=colluders``) stand in for the others' when it queries the
    rule. With a single message a deviation falls back to the sign of the mean, recorded.

    Args:
        bound: Longest ``gamma * push``, in root mean square lengths of the messages it reads.
        eot: Draws of the server's randomness over which damage is averaged, for rules that have
            some (expectation over transformation).
    """

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

    def strength(self, trials: Trials, sides: tuple[int, ...]) -> Search:
        """Return the gamma that is played, on one of these sides."""
        return trials.exact(self.bound, "any", sides)

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        return self.sought(view, honest, (1,))[0]

    def sought(
        self, view: AttackView, honest: Tensor, sides: tuple[int, ...]
    ) -> tuple[Tensor, int]:
        """Return the row, and the side on which gamma is; 0 for none."""
        mean = honest.mean(dim=0)
        push = self.push(view, honest, mean)
        trials = Trials(view, honest, mean, push, sender(view, self.via), self.eot, self.knows)
        search = self.strength(trials, sides)
        view.notes.update({"gamma": search.gamma} | search.notes)
        view.trace.extend(search.trace)
        return mean + search.gamma * push, (search.gamma > 0) - (search.gamma < 0)


@dataclass(frozen=True, kw_only=True)
class SearchedSides(Searched, TwoSided):
    """Searched attack along the deviation, on the side of more damage (`TwoSided`)."""

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        return TwoSided.rows(self, view, honest)

    def sided(self, view: AttackView, honest: Tensor, sides: tuple[int, ...]) -> tuple[Tensor, int]:
        return self.sought(view, honest, sides)


@dataclass(frozen=True, kw_only=True)
class DynOpt(SearchedSides):
    """All colluders send ``mean + gamma * direction`` with the gamma that hurts this rule most.

    The direction is minus the standard deviation (ddof 1) of the messages it reads, minus the sign
    of their mean, or minus their mean over its norm. The search for gamma depends on the traits
    that the rule declares, never on its name:

    - it selects rows (Krum family): the gamma of most damage at which it selects a colluder, be it
      one or all of them (``selected=most``); or, as in the paper, the supremum of the gammas that
      get all colluders selected, or nobody else where it selects fewer (``all``, which also asks
      this of the rows that Bulyan picks before it takes their values apart);
    - it saturates (trimmed mean, median): the smallest gamma whose damage ``|agg - mean|`` is
      within a relative 1e-6 of its limit;
    - it has no breakdown point against so many colluders (mean), or no row of the round is honest:
      ``bound``, without a search;
    - the alphabet is discrete, or the rule has none of these traits: the most damage on a grid of
      gammas about the spread of the rows, refined around the best.

    Along the deviation gamma may be negative, which the paper does not try: the side of more damage
    is played, with ``selected=all`` that of the larger gamma.

    ``search=published`` starts at ``start``, halves its step, and accepts when all colluders are
    among the rows that the rule picks, or, if it picks none, when the damage is larger than *in the
    previous trial*. It reaches no gamma from ``2 * start`` on, and on a rule that saturates it
    returns ``start`` (A5, D19). That is the released code, ``as=code``, which the literature plays
    under this name; ``as=paper`` is the text, the supremum on the minus side.

    Args:
        direction: ``std``, ``sign`` (leaves rankings alone: positions are positive) or ``unit``.
        search: ``exact`` (above) or ``published``.
        selected: Against a rule that picks rows: ``most`` or ``all`` (above).
        start: First gamma of the published search. Its notebooks use 3 for Multi-Krum and Bulyan
            and 10 for trimmed mean and median on CIFAR-10, 20 and 5 on FEMNIST; FSL's code has 5.

    References:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
        and Defenses for Federated Learning", NDSS 2021, section IV-B, equation 2 and Algorithm 1;
        called DYN-OPT in Shejwalkar et al., "Back to the Drawing Board", IEEE S&P 2022,
        https://arxiv.org/abs/2108.10241.
    """

    variants: ClassVar[Variants] = {
        "paper": {"direction": "std", "search": "exact", "selected": "all", "side": "minus"},
        "code": {"direction": "std", "search": "published", "start": 10.0},
    }
    choices: ClassVar[Choices] = {"direction": ("sign", "unit"), "via": ("wire",)}

    direction: Literal["std", "sign", "unit"] = "std"
    search: Literal["exact", "published"] = "exact"
    selected: Literal["most", "all"] = "most"
    start: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("DynOpt.start", self.start, self.start > 0, "> 0")

    @property
    def sides(self) -> tuple[int, ...]:
        both = self.direction == "std" and self.search == "exact"
        return super().sides if both else (1,)

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return direction(view, honest, mean, self.direction)

    def strength(self, trials: Trials, sides: tuple[int, ...]) -> Search:
        if self.search == "published":
            return trials.published(self.start)
        return trials.exact(self.bound, self.selected, sides)


@dataclass(frozen=True, kw_only=True)
class OptALIE(SearchedSides):
    """All colluders send ``mean - gamma * std`` (ddof 1), with the gamma of most damage.

    Damage is ``|agg - mean|``, and gamma is negative, on the other side of the mean, if that did
    more in the first round. Unlike `DynOpt` it does not insist that a rule that selects rows takes
    a colluder's. Where damage has no limit, ``bound`` is played.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, section on experiments, where the strength
        of this attack is optimized by a line search.
    """

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return direction(view, honest, mean, "std")


@dataclass(frozen=True, kw_only=True)
class OptIPM(Searched):
    """All colluders send ``(1 - gamma) * mean``, with the gamma of most damage ``|agg - mean|``.

    So ``eps = gamma - 1`` in the letters of `IPM`: a gamma below 1 only shrinks the mean, of masks
    towards 1/2. Where damage has no limit, ``bound`` is played.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, section on experiments, where the strength
        of this attack ("fall of empires") is optimized by a line search.
    """

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return mirrored(view, mean, 0.0) - mean
