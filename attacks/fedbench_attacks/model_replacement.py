"""Model replacement by constrain-and-scale."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbench.api import AttackView, Grad, Gradient, Knowledge, Local
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload

from .pixel import Pixel, received


@dataclass(frozen=True, kw_only=True)
class ModelReplacement(Pixel):
    """Train as `Pixel` on ``alpha CE + (1 - alpha) |w - w0|^2``, send ``scale`` times the update.

    ``w0`` is what the client received, ``|.|^2`` the sum of squares over all that it trains, as
    gradient ``2 (1 - alpha) (w - w0)`` in every step (D6). What is sent is
    ``idle + scale (trained - idle)``, where ``idle`` is 0 or, if updates are no differences, what
    was received. The paper has one attacker, of factor ``n / eta``; ``m`` colluders share that, and
    our servers take the mean, so the default is ``n / m`` of the round.

    Args:
        alpha: Weight of the cross-entropy; 1 is without the anomaly term.
        scale: Factor; None: rows of the round over colluders in it.

    References:
        Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020,
        https://arxiv.org/abs/1807.00459, equations 3 and 4, Algorithm 1.
    """

    alpha: float = 0.5
    scale: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require("ModelReplacement.alpha", self.alpha, 0 < self.alpha <= 1, "in (0, 1]")
        legal = self.scale is None or self.scale > 0
        require("ModelReplacement.scale", self.scale, legal, "None or > 0")

    def needs(self) -> Knowledge:
        return Knowledge("colluders")

    @property
    def folds(self) -> bool:
        return True

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        """Add the pull back to what was received; statistics have no gradient."""

        def pulled(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            gradient = grad(tree, x, y, key)
            start = received(local.tree, gradient)
            return {
                name: g
                if name in local.statistics
                else self.alpha * g + 2 * (1 - self.alpha) * (tree[name] - start[name])
                for name, g in gradient.items()
            }

        return pulled

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        scale = view.n / view.m if self.scale is None else self.scale
        view.notes["scale"] = scale
        return view.compress(view.idle + scale * (view.trained - view.idle)), memory
