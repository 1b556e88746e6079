"""EF-SignSGD: signs times the mean magnitude, with error feedback."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.blocks import block_sums, spread
from fedbench.core.rng import Key
from fedbench.payload import Payload, ScaledSigns
from fedbench.protocols.compressed import CompressedUpdates, compressed_layers
from fedbench.protocols.signsgd import Zero, is_positive


@dataclass(frozen=True, kw_only=True)
class EFSignSGD(CompressedUpdates):
    """Clients send ``(|x|_1 / d) sign(x)`` of ``x = u + e``, their update plus the residual.

    The residual becomes ``e <- x - x_hat``, so what the sign of a 0 adds is fed back. The server
    adds the mean of the messages, hence no ties. The paper has one worker, whose vector is the
    gradient times the rate; here it is the update after local epochs.

    Args:
        error_feedback: On by default; without it this is scaled SignSGD.
        zero: The sign of 0: +1 (``plus``) or a coin (``random``).
        per: One scale for each ``layer``, as in the paper's experiments, or for the ``vector``.

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
        ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 1.
    """

    sends = ScaledSigns

    error_feedback: bool = True
    zero: Zero = "plus"
    per: Literal["layer", "vector"] = "layer"

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Sequence[Key]) -> Payload:
        """Encode signs and the mean magnitude of each part, NaN for a part with a NaN."""
        d = x.shape[1]
        sizes = compressed_layers(shared) if self.per == "layer" else (d,)
        counts = torch.tensor(sizes, device=x.device)
        scales = (block_sums(x.abs(), sizes) / counts).to(torch.float32)
        positive = is_positive(x, self.zero, keys) | (spread(scales, sizes) == 0)
        return ScaledSigns(positive, scales, rest, sizes)
