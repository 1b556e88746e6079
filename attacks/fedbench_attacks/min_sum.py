"""Min-Sum, the attack that keeps within the sum of a benign row's squared distances."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedbench.api import Choices

from .min_max import Bounded
from .squares import Squares


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
