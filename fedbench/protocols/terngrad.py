"""TernGrad: 0, or the layer's largest magnitude with the coordinate's sign."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import Levels, Payload
from fedbench.protocols.compressed import CompressedUpdates, compressed_layers
from fedbench.protocols.qsgd import quantized


@dataclass(frozen=True, kw_only=True)
class TernGrad(CompressedUpdates):
    """Clients send ``s sign(g) b``, where ``b`` is 1 with probability ``|g| / s`` and else 0.

    ``s`` is the largest magnitude of the layer, so the message is unbiased. With ``clip=c`` each
    layer is first clipped to ``c`` times its population standard deviation (the paper has 2.5),
    which is biased; ``s`` is then the largest magnitude of the clipped layer, as in the paper, not
    ``c sigma`` as in its code (A7). A layer of equal coordinates has deviation 0 and is clipped to
    nothing. With error feedback the scales are fitted to the levels, as in `QSGD`.

    Unlike in the paper every client has its own scales, where workers share the largest, and the
    last layer is ternary as well.

    Args:
        clip: ``c``; 0 to clip nothing.

    References:
        Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
        Learning", NIPS 2017, https://arxiv.org/abs/1705.07878, equations 1 to 3; layers and
        clipping: section 3.3.
    """

    sends = Levels

    clip: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("TernGrad.clip", self.clip, self.clip >= 0, ">= 0")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Sequence[Key]) -> Payload:
        sizes = compressed_layers(shared)
        if self.clip:
            parts = torch.split(x, list(sizes), dim=1)
            x = torch.cat([clipped(part, self.clip) for part in parts], dim=1)
        return quantized(x, rest, keys, 1, sizes, 0, "max", "entropy", self.error_feedback)


def clipped(x: Tensor, c: float) -> Tensor:
    """Clip each row of ``x (n, t)`` to ``c`` times its standard deviation; NaN if not finite.

    >>> clipped(torch.tensor([[0.0, 0.0, 0.0, 4.0]]), 2.0).tolist()  # the deviation is 3 ** 0.5
    [[0.0, 0.0, 0.0, 3.464101552963257]]
    """
    # in float64, because the squares of large floats overflow
    bound = c * x.double().std(dim=1, correction=0, keepdim=True).to(x)
    return torch.maximum(torch.minimum(x, bound), -bound)
