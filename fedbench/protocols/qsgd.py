"""Updates rounded at random to a few levels: QSGD, FedPAQ and TernGrad."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Keys, Shared
from fedbench.core.blocks import block_sums, spread
from fedbench.core.errors import require
from fedbench.payload import Levels, Payload
from fedbench.payload.levels import Code, Norm, bucket_lengths, scales_of
from fedbench.protocols.compressed import CompressedUpdates, compressed_layers

Form = tuple[int, tuple[int, ...], int, Norm, Code]  # top level, sizes, bucket, norm, code


@dataclass(frozen=True, kw_only=True)
class QSGD(CompressedUpdates):
    """Clients round each ``|v_i| s / ||v||`` to an integer, up or down so that the mean is right.

    ``Q(v_i) = ||v|| sgn(v_i) xi_i``, where ``xi_i`` is ``l / s`` with probability ``1 - f`` and
    ``(l + 1) / s`` with probability ``f``; ``l`` and ``f`` are the integer and fractional part of
    ``|v_i| s / ||v||``. ``norm=l2,bucket=0`` is the scheme of the paper's analysis; the defaults
    are those of its experiments. A bucket that is not finite has scale NaN or infinity, so the
    server's default checks reject it. With error feedback the scale is fitted to the drawn levels:
    an unbiased message with more error than signal would let the residual grow for ever.

    Args:
        levels: ``s``, up to 32767, counts those above 0: there are ``2 s + 1`` (A7).
        bucket: Coordinates that share a scale; 0 for all of them.
        norm: Their scale: the ``l2`` norm, or ``max``, the largest magnitude.
        code: ``elias``, that of the paper, or ``entropy``, a range coder with shorter messages.

    References:
        Alistarh et al., "QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding",
        NIPS 2017, https://arxiv.org/abs/1610.02132, section 3.1 and Lemma 3.1.
    """

    sends = Levels

    levels: int = 7
    bucket: int = 512
    norm: Norm = "max"
    code: Code = "entropy"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        require(f"{name}.levels", self.levels, 1 <= self.levels < 2**15, "in [1, 32767]")
        require(f"{name}.bucket", self.bucket, self.bucket >= 0, ">= 0")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        form = self.levels, (x.shape[1],), self.bucket, self.norm, self.code
        return quantized(x, rest, keys, form, self.error_feedback)


def quantized(x: Tensor, rest: Tensor, keys: Keys, form: Form, fitted: bool) -> Levels:
    """Round ``x (n, t)`` at random; each row draws from its own key.

    If ``fitted``, the scale of a bucket is multiplied by ``<x, q> / |q|**2``, ``q`` being the
    decoded levels: the scale of the least error, with which the message is never longer than ``x``.
    """
    top, sizes, bucket, norm, _ = form
    x = x.to(torch.float32)
    lengths = bucket_lengths(sizes, bucket)
    scales = scales_of(x, lengths, norm)
    levels = torch.empty_like(x, dtype=torch.int16)
    # row by row, so that temporaries stay in cache
    for row, scale, out, key in zip(x, scales, levels, keys, strict=True):
        wide = spread(scale[None], lengths)[0]
        exact = (row.abs() / wide).mul_(top)  # NaN where a bucket is 0 or not finite
        low = exact.floor()
        up = key.fold("quantize").uniform(len(row), device=x.device) < exact.sub_(low)
        out.copy_(low.add_(up).mul_(row.sign()).nan_to_num_(0.0))
    if fitted:
        decoded = levels.to(torch.float32).div_(top).mul_(spread(scales, lengths))
        squares = block_sums(decoded.square(), lengths)
        ratio = torch.where(squares > 0, block_sums(x * decoded, lengths) / squares, 1.0)
        scales = (scales * ratio).to(torch.float32)
    return Levels(levels, scales, rest, *form)


@dataclass(frozen=True, kw_only=True)
class FedPAQ(QSGD):
    """Clients train locally and send their update in QSGD's levels; the server adds the mean.

    There is one L2 norm for the whole network, so few levels send almost nothing: at most
    ``s (s + sqrt(d))`` coordinates are expected to differ from 0.

    References:
        Reisizadeh et al., "FedPAQ: A Communication-Efficient Federated Learning Method with
        Periodic Averaging and Quantization", AISTATS 2020, https://arxiv.org/abs/1909.13014,
        Algorithm 1; its quantizer is `QSGD`.
    """

    weighted = False

    levels: int = 10
    bucket: int = 0
    norm: Norm = "l2"


@dataclass(frozen=True, kw_only=True)
class TernGrad(CompressedUpdates):
    """Clients send ``s sign(g) b``, where ``b`` is 1 with probability ``|g| / s`` and else 0.

    ``s`` is the largest magnitude of the layer, so the message is unbiased; after clipping, that of
    the clipped layer, as in the paper, not ``c sigma`` as in its code (A7). With error feedback the
    scales are fitted, as in `QSGD`. Unlike in the paper workers do not share the largest scale, and
    the last layer is ternary as well.

    Args:
        clip: A layer is first clipped to so many of its standard deviations, 2.5 in the paper,
            which is biased; 0 to clip nothing.

    References:
        Wen et al., "TernGrad: Ternary Gradients to Reduce Communication in Distributed Deep
        Learning", NIPS 2017, https://arxiv.org/abs/1705.07878, equations 1 to 3, section 3.3.
    """

    sends = Levels

    clip: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("TernGrad.clip", self.clip, self.clip >= 0, ">= 0")

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        sizes = compressed_layers(shared)
        if self.clip:
            parts = torch.split(x, list(sizes), dim=1)
            x = torch.cat([clipped(part, self.clip) for part in parts], dim=1)
        return quantized(x, rest, keys, (1, sizes, 0, "max", "entropy"), self.error_feedback)


def clipped(x: Tensor, c: float) -> Tensor:
    """Clip rows ``x (n, t)`` to ``c`` times their standard deviation; NaN if not finite."""
    # in float64, because the squares of large floats overflow
    bound = c * x.double().std(dim=1, correction=0, keepdim=True).to(x)
    return torch.maximum(torch.minimum(x, bound), -bound)
