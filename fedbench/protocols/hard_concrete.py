"""Hard-concrete gates: relaxed binary gates, exactly 0 or 1 with positive probability."""

import math

import torch
from torch import Tensor

GAMMA, ZETA = -0.1, 1.1
BETA = 2 / 3
_MARGIN = 1e-6  # distance of uniform draws from 0 and 1, whose logits are infinite


def sample(log_alpha: Tensor, u: Tensor) -> Tensor:
    """Gates in [0, 1] from ``u`` uniform in [0, 1), differentiable in ``log_alpha``.

    ``z = clip(s (zeta - gamma) + gamma, 0, 1)``, ``s = sigmoid((logit(u) + log_alpha) / beta)``.

    References:
        Louizos, Welling and Kingma, "Learning Sparse Neural Networks through L0 Regularization",
        ICLR 2018, https://arxiv.org/abs/1712.01312, equations 10 and 11; constants as there.
    """
    s = torch.sigmoid((torch.logit(u, _MARGIN) + log_alpha) / BETA)
    return (s * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_chance(log_alpha: Tensor) -> Tensor:
    """``R(z > 0) = sigmoid(log_alpha - beta log(-gamma / zeta))``: a shift of 1.5986.

    References:
        Louizos, Welling and Kingma, https://arxiv.org/abs/1712.01312, equation 12.

    >>> round(open_chance(torch.tensor(0.0)).item(), 4)
    0.8318
    """
    return torch.sigmoid(log_alpha - BETA * math.log(-GAMMA / ZETA))
