"""Min-Max and Min-Sum, the attacks that keep within the distances of benign rows."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.payload import FloatVectors, Rows

from .crafted import Crafted, Squares, TwoSided, direction, margin, mean_of


@dataclass(frozen=True, kw_only=True)
class Bounded(Crafted):
    """All colluders send ``mean + gamma * p``, with the largest gamma that a bound allows.

    What is sent sits on the bound for floats; on other alphabets it is the nearest message to it,
    or what the codec makes of it, and the record says so.

    Args:
        direction: ``p``: ``std`` (minus the deviation, ddof 1), ``sign`` (minus the sign of the
            mean) or ``unit`` (minus the mean over its norm).
    """

    choices: ClassVar[Choices] = {"direction": ("sign", "unit")}

    direction: Literal["std", "sign", "unit"] = "std"

    @property
    def keeps(self) -> bool:
        return True

    @property
    def reads_squares(self) -> bool:
        return True

    @abstractmethod
    def largest(self, squares: Squares, side: int) -> Tensor:
        """Return the largest gamma within the bound, for ``side`` times a push that is not zero."""

    def rows(self, view: AttackView, honest: Rows) -> Tensor:
        return self.bounded(view, honest, (1,))[0]

    def bounded(self, view: AttackView, honest: Rows, sides: tuple[int, ...]) -> tuple[Tensor, int]:
        """Return the row ``mean + gamma * p`` of the side with the larger gamma, and the side.

        Where ``p`` is zero that is the mean, and the side is 0.
        """
        mean = mean_of(view, honest)
        push = direction(view, honest, mean, self.direction)
        squares = Squares(honest, mean, push, view.m)
        moves = float(squares.length) > 0
        gammas = {side: float(self.largest(squares, side)) if moves else 0.0 for side in sides}
        # What a discrete alphabet makes of a row is not as far as gamma says.
        compares = len(sides) > 1 and not view.own.bounded
        plus = compares and gammas[-1] > (1 + margin(view)) * gammas[1]
        side = -1 if plus else sides[0]
        gamma = side * gammas[side]
        view.notes["gamma"] = gamma
        view.notes["bound"] = "met" if isinstance(view.own, FloatVectors) else "before the alphabet"
        row = (mean.to(torch.float64) + gamma * push.to(torch.float64)).to(torch.float32)
        return row, side if gamma else 0


@dataclass(frozen=True, kw_only=True)
class MinMax(Bounded, TwoSided):
    """All colluders send ``mean + gamma * p``, within the largest distance of two honest rows.

    The largest gamma with ``max_i |mean + gamma p - x_i| <= max_ij |x_i - x_j|``: the smallest,
    over the honest rows, of the larger roots of quadratics in gamma. No search, and so no start, no
    tolerance and no cap (D12); the published one halves its step from gamma 10. The paper pushes
    along ``p``; with ``direction=std`` the larger of this gamma and that along ``-p`` is played,
    negative in the record for the latter, but on discrete alphabets, where gamma is not how far the
    messages are.

    References:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
        and Defenses for Federated Learning", NDSS 2021, the AGR-agnostic attacks ("Min-Max").
    """

    choices: ClassVar[Choices] = Bounded.choices | {"via": ("wire",)}

    @property
    def sides(self) -> tuple[int, ...]:
        return super().sides if self.direction == "std" else (1,)

    def rows(self, view: AttackView, honest: Rows) -> Tensor:
        return TwoSided.rows(self, view, honest)

    def sided(self, view: AttackView, honest: Rows, sides: tuple[int, ...]) -> tuple[Tensor, int]:
        return self.bounded(view, honest, sides)

    def largest(self, squares: Squares, side: int) -> Tensor:
        room = (squares.among.max() - squares.norms).clamp_min(0)
        cross = side * squares.cross
        roots = (cross + (cross**2 + squares.length * room).sqrt()) / squares.length
        return roots.min()


@dataclass(frozen=True, kw_only=True)
class MinSum(Bounded):
    """All colluders send ``mean + gamma * p``, within an honest row's sum of squared distances.

    The largest gamma with ``sum_i |mean + gamma p - x_i|^2 <= max_i sum_j |x_i - x_j|^2``: the
    larger root of one quadratic in gamma. The sums are over the honest rows. Along ``-p`` gamma is
    the same, since ``sum_i (x_i - mean)`` is zero: there is no worse side.

    Args:
        bound: Over ``i``: ``max``, as the paper defines it, or ``min``, as its public code does
            (A5), which is stricter.

    References:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
        and Defenses for Federated Learning", NDSS 2021, the AGR-agnostic attacks ("Min-Sum").
    """

    choices: ClassVar[Choices] = Bounded.choices | {"bound": ("min",)}

    bound: Literal["max", "min"] = "max"

    def largest(self, squares: Squares, side: int) -> Tensor:
        sums = squares.among.sum(dim=1)
        bound = sums.max() if self.bound == "max" else sums.min()
        total = len(sums) * squares.length
        cross = side * squares.cross.sum()
        room = (bound - squares.norms.sum()).clamp_min(0)
        root: Tensor = (cross + (cross**2 + total * room).sqrt()) / total
        return root
