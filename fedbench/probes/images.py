"""Similarity of images, PSNR and SSIM, for pixels in [0, 1]."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

WINDOW, SIGMA = 11, 1.5
C1, C2 = 0.01**2, 0.03**2
_PERFECT = 100.0  # dB, in place of the infinite PSNR of equal images, which has no mean


def psnr(image: Tensor, truth: Tensor) -> float:
    """``10 log10(1 / MSE)`` in dB; 100 for equal images.

    >>> round(psnr(torch.full((1, 4, 4), 0.6), torch.full((1, 4, 4), 0.5)), 3)
    20.0
    """
    mse = float((image.double() - truth.double()).square().mean())
    return min(_PERFECT, -10 * math.log10(mse)) if mse > 0 else _PERFECT


def ssim(image: Tensor, truth: Tensor) -> float:
    """Structural similarity of ``(C, H, W)``: 1 for equal images, about 0 for unrelated ones.

    The mean over channels and over all positions of the Gaussian window, of side 11 or the largest
    odd side that fits.

    References:
        Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to
        Structural Similarity", IEEE Transactions on Image Processing 2004,
        https://doi.org/10.1109/TIP.2003.819861, equation 13.
    """
    weights = window(min(image.shape[1:]))[None, None].to(image.device)

    def mean(x: Tensor) -> Tensor:
        return F.conv2d(x[:, None], weights)

    x, y = image.double(), truth.double()
    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    luminance = (2 * mx * my + C1) / (mx * mx + my * my + C1)
    return float((luminance * (2 * cov + C2) / (vx + vy + C2)).mean())


def window(side: int) -> Tensor:
    """Return Gaussian weights ``(k, k)`` float64 of sum 1 for images of that side."""
    k = min(WINDOW, side - 1 + side % 2)
    x = torch.arange(k, dtype=torch.float64) - (k - 1) / 2
    bell = torch.exp(-x.square() / (2 * SIGMA**2))
    weights = torch.outer(bell, bell)
    return weights / weights.sum()


def total_variation(image: Tensor) -> Tensor:
    """Mean absolute difference of vertical and of horizontal neighbours in ``(B, C, H, W)``.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).item()
    1.0
    """
    down = (image[..., 1:, :] - image[..., :-1, :]).abs().mean()
    return down + (image[..., :, 1:] - image[..., :, :-1]).abs().mean()


def best_order(images: Tensor, truth: Tensor) -> Tensor:
    """Return ``images (B, C, H, W)`` in the order of the least total squared error to ``truth``."""
    from scipy.optimize import linear_sum_assignment

    errors = torch.cdist(images.flatten(1).double(), truth.flatten(1).double()).square()
    rows, columns = linear_sum_assignment(errors.cpu().numpy())
    order = torch.empty(len(rows), dtype=torch.long)
    order[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return images[order]
