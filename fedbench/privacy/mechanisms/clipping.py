"""Clipping in L2, which bounds the sensitivity of a client's update."""

import torch
from torch import Tensor

ROUNDING = 1e-6  # relative error of norms in float32, at most


def clipped(x: Tensor, reference: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """``reference + y min(1, radius / |y|)`` with ``y = x - reference``, rows ``(n, d)``.

    The second result tells which rows needed no clipping, ``(n,)`` bool. A row that is not finite
    becomes its reference, so that the guarantee holds for it too.

    >>> x, zeros = torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.zeros(2, 2)
    >>> clipped(x, zeros, 1.0)[0].norm(dim=1)
    tensor([1.0000, 0.5000])
    """
    y = x - reference
    y = torch.where(torch.isfinite(y).all(dim=1, keepdim=True), y, 0.0)
    norms = torch.linalg.vector_norm(y, dim=1, keepdim=True, dtype=torch.float64)
    inside = norms <= radius
    factors = torch.where(inside, 1.0, radius * (1 - ROUNDING) / norms.clamp_min(1e-300))
    return reference + (y.double() * factors).to(y), inside[:, 0]
