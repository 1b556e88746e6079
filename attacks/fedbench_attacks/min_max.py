"""Min-Max and Min-Sum, the attacks that keep within the distances of benign rows."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.payload import FloatVectors

from .crafted import Crafted, Squares, direction


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

    @abstractmethod
    def largest(self, squares: Squares) -> Tensor:
        """Return the largest gamma within the bound, for a push that is not zero."""

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        """Return the row ``mean + gamma * p``; the mean where ``p`` is zero."""
        mean = honest.mean(dim=0)
        push = direction(view, honest, mean, self.direction)
        squares = Squares(honest, mean, push, len(view.own))
        gamma = float(self.largest(squares)) if float(squares.length) > 0 else 0.0
        view.notes["gamma"] = gamma
        view.notes["bound"] = "met" if isinstance(view.own, FloatVectors) else "before the alphabet"
        return (mean.to(torch.float64) + gamma * push.to(torch.float64)).to(torch.float32)


@dataclass(frozen=True, kw_only=True)
class MinMax(Bounded):
    """All colluders send ``mean + gamma * p``, within the largest distance of two honest rows.

    The largest gamma with ``max_i |mean + gamma p - x_i| <= max_ij |x_i - x_j|``: the smallest,
    over the honest rows, of the larger roots of quadratics in gamma. No search, and so no start, no
    tolerance and no cap (D12); the published one halves its step from gamma 10.

    References:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
        and Defenses for Federated Learning", NDSS 2021, the AGR-agnostic attacks ("Min-Max").
    """

    choices: ClassVar[Choices] = Bounded.choices | {"via": ("wire",)}

    def largest(self, squares: Squares) -> Tensor:
        room = (squares.among.max() - squares.norms).clamp_min(0)
        roots = (squares.cross + (squares.cross**2 + squares.length * room).sqrt()) / squares.length
        return roots.min()


@dataclass(frozen=True, kw_only=True)
class MinSum(Bounded):
    """All colluders send ``mean + gamma * p``, within an honest row's sum of squared distances.

    The largest gamma with ``sum_i |mean + gamma p - x_i|^2 <= max_i sum_j |x_i - x_j|^2``: the
    larger root of one quadratic in gamma. The sums are over the honest rows.

    Args:
        bound: Over ``i``: ``max``, as the paper defines it, or ``min``, as its public code does
            (A5), which is stricter.

    References:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
        and Defenses for Federated Learning", NDSS 2021, the AGR-agnostic attacks ("Min-Sum").
    """

    choices: ClassVar[Choices] = Bounded.choices | {"bound": ("min",)}

    bound: Literal["max", "min"] = "max"

    def largest(self, squares: Squares) -> Tensor:
        sums = squares.among.sum(dim=1)
        bound = sums.max() if self.bound == "max" else sums.min()
        total = len(sums) * squares.length
        cross = squares.cross.sum()
        room = (bound - squares.norms.sum()).clamp_min(0)
        root: Tensor = (cross + (cross**2 + total * room).sqrt()) / total
        return root
