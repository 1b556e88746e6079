"""The rule that trusts everyone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.tiling import column_sums, tiles
from fedbench.payload import FoldedMessages, KeptMessages, Payload


def exact_mean(x: Tensor) -> Tensor:
    """Return the mean ``(k,)`` of rows; integers are summed exactly: equal sums stay equal."""
    if x.is_floating_point():
        return x.mean(dim=0)
    return column_sums(x, torch.int64).to(torch.float64) / len(x)


def mean_of(x: Tensor | KeptMessages, rows: Tensor) -> Tensor:
    """Return `exact_mean` of these rows, by their indices; of packets it is summed in float64."""
    if isinstance(x, KeptMessages):
        return x.take(rows).mean()
    rows = copied_to(rows, x.device)
    dtype = x.dtype if x.is_floating_point() else torch.float64
    out = torch.empty(x.shape[1], dtype=dtype, device=x.device)
    for tile, part in tiles(x, out):
        part.copy_(exact_mean(tile[rows]))
    return out


@dataclass(frozen=True, kw_only=True)
class Mean(Defense[None]):
    """Average the rows, weighted by the clients' sizes where the protocol weights them.

    ``sum_i w_i x_i / sum_i w_i``. With signs it is a majority vote and with rankings FSL's VOTE,
    once the protocol's server step has taken the sign or sorted; the table calls it ``vote`` there.

    References:
        McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1;
        FSL paper, https://arxiv.org/abs/2110.04350, Algorithm 2 lines 17 to 21.
    """

    def traits(self) -> Traits:
        return Traits(reads_sum=True, mean_at_zero=True)

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        weights = view.weights
        if bool((weights == weights[0]).all()):
            return exact_mean(x), None
        share = copied_to(weights / weights.sum(), x.device)
        if x.is_floating_point():
            return share.to(x) @ x, None
        return share @ x.to(torch.float64), None

    def aggregate_sums(
        self, received: FoldedMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        alike = bool((view.weights == view.weights[0]).all())
        return received.mean(weighted=not alike), None

    def sensitivity(self, clip: float, n: int) -> float:
        return 2 * clip / n
