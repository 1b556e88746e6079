"""FoolsGold, small weights for clients with parallel histories."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import tiles
from fedbench.payload import Payload, Spec

from .distances import combine, cosines

History = dict[int, Tensor]


def weights_of(cosine: Tensor, kappa: float) -> Tensor:
    """Return weights ``(n,)`` in [0, 1] from cosines ``(n, n)``: pardoning, then the logit."""
    cosine = cosine.clone().fill_diagonal_(-1)
    v = cosine.max(dim=1).values
    of_row = v[:, None]
    of_column = v[None, :]
    pardoned = (of_column > of_row) & (of_row > 0)
    pardon = torch.where(pardoned, of_row / of_column, 1.0)
    alpha = 1 - (cosine * pardon).max(dim=1).values
    alpha = torch.where(alpha > 1e-9, alpha, 0.0)  # histories are parallel up to rounding
    if not bool(alpha.any()):
        return alpha
    return (kappa * (torch.logit(alpha / alpha.max()) + 0.5)).clamp_(0, 1)


@dataclass(frozen=True, kw_only=True)
class FoolsGold(Defense[History]):
    """Compute ``sum_i a_i x_i / sum_i a_i``, ``a_i`` small if another client's history is parallel.

    A history is the sum of a client's updates of all rounds. ``v_i`` is its largest cosine with
    another one, ``cs_ij`` becomes ``cs_ij v_i / v_j`` where ``v_j > v_i`` (pardoning), ``a_i = 1 -
    max_j cs_ij`` is divided by the largest and becomes ``kappa (ln(a / (1 - a)) + 1/2)``, clipped
    to [0, 1]. It is made against sybils: one attacker alone has weight 1.

    Unlike the paper it weighs all features the same, divides by ``sum_i a_i``, so that the answer
    is a mean, and pardons no client with a negative ``v_i``. If all histories are parallel, it is
    the mean of the rows, and `findings` say so. A message that is not finite has weight 0 and is
    not remembered. The server keeps one vector for each client it ever met. Ignores the clients'
    sizes.

    Args:
        kappa: Confidence: how steeply weights fall.

    References:
        Fung, Yoon and Beschastnikh, "The Limitations of Federated Learning in Sybil Settings",
        RAID 2020, https://arxiv.org/abs/1808.04866, Algorithm 1.
    """

    kappa: float = 1.0

    def __post_init__(self) -> None:
        require("FoolsGold.kappa", self.kappa, self.kappa > 0, "> 0")

    def traits(self) -> Traits:
        return Traits(identities=True, history=True, detects=True, shift=False)

    def init(self, spec: Spec) -> History:
        return {}

    def tolerates(self, n: int) -> int:
        return 0  # an outlier that no other row resembles has weight 1

    def aggregate(
        self, received: Payload, state: History | None, view: ServerView
    ) -> tuple[Tensor, History]:
        x = received.values()
        origin = received.origin()
        past = state or {}
        ids = view.ids.tolist()
        history = [row - origin for row in x]
        for row, i in zip(history, ids, strict=True):
            if i in past:
                row += past[i]
        finite = torch.stack([torch.isfinite(row).all() for row in history]).cpu()
        products = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
        for parts in tiles(*history):
            tile = torch.stack(parts).to(torch.float64)
            products += tile @ tile.T
        products = products.cpu()  # what follows is the processor's
        weights = torch.zeros(len(x), dtype=torch.float64)
        if bool(finite.any()):
            weights[finite] = weights_of(cosines(products[finite][:, finite]), self.kappa)
        if bool(finite.any()) and not bool(weights.any()):
            weights[finite] = 1.0
            view.findings.notes["fell_back"] = "all parallel"
        view.findings.kept = weights > 0
        histories = {ids[i]: history[i] for i in finite.nonzero()[:, 0].tolist()}
        share = weights / weights.sum().clamp_min(1e-300)
        return combine(share, x, origin), past | histories
