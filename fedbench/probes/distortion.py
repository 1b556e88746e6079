"""Distortion of a codec: squared error, bias and gain, from repeated draws."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

LEVEL = 0.001  # probability that a codec without bias is called biased


@dataclass(frozen=True)
class Distortion:
    """Distortion relative to the input ``x``.

    Args:
        nmse: Mean of ``|x_hat - x|^2 / |x|^2`` over inputs and draws.
        nmse_max: Largest of these.
        bias: ``|E x_hat - x| / |x|``, root mean square over inputs, by `bias_squared`.
        biased: True if the bias differs significantly from 0.
        bias_limit: Approximate smallest bias that would be significant.
        gain: Mean of ``<x_hat, x> / |x|^2``.
    """

    nmse: float
    nmse_max: float
    bias: float
    biased: bool
    bias_limit: float
    gain: float


@dataclass(frozen=True)
class Draws:
    """Sums over R messages ``x_hat_r`` of one ``x``, with errors ``e_r = x_hat_r - x``.

    Args:
        norm: ``|x|^2``.
        total: ``|sum_r e_r|^2``.
        squares: ``|e_r|^2``.
        along: ``<e_r, x>``.
    """

    norm: float
    total: float
    squares: list[float]
    along: list[float]

    @classmethod
    def of(cls, x: Tensor, messages: Iterable[Tensor]) -> Draws:
        """Accumulate ``x (d,)`` and batches ``x_hat (n, d)``, one at a time, in float64."""
        x = x.double()
        total = torch.zeros_like(x)
        squares = []
        along = []
        for x_hat in messages:
            for row in x_hat:
                error = row.double() - x
                total += error
                squares.append(float(error @ error))
                along.append(float(error @ x))
        return cls(float(x @ x), float(total @ total), squares, along)


def bias_squared(draws: Draws) -> float:
    """Unbiased estimate of ``|b|^2`` with ``b = E[x_hat] - x``.

    The errors are independent and have mean ``b``, so ``E<e_r, e_q> = |b|^2`` for ``r != q``. The
    mean over those ``R (R - 1)`` pairs is

        ``(|sum_r e_r|^2 - sum_r |e_r|^2) / (R (R - 1))``.

    With ``sum_r |x_hat_r - mean|^2 = sum_r |e_r|^2 - |sum_r e_r|^2 / R`` this is

        ``|mean - x|^2 - 1 / (R - 1) * mean_r |x_hat_r - mean|^2``,

    the square of the mean error minus the part that is noise. It may be negative.

    >>> bias_squared(Draws(norm=1.0, total=9.0, squares=[1.0, 4.0], along=[]))  # errors 1 and 2
    2.0
    """
    r = len(draws.squares)
    return (draws.total - math.fsum(draws.squares)) / (r * (r - 1))


def distortion(inputs: Sequence[Draws]) -> Distortion:
    """Summarise the distortion over all inputs.

    A one-sided t-test at `LEVEL` decides whether the bias is 0. It tests the mean over inputs of
    the share of the squared error that is bias: `bias_squared` over the mean of ``|e_r|^2``, which
    is 1 for a deterministic codec, and 0 on average for one without bias.
    """
    nmses = [square / draws.norm for draws in inputs for square in draws.squares]
    biases = [bias_squared(draws) for draws in inputs]
    shares = [
        bias / (statistics.fmean(draws.squares) or 1.0)
        for bias, draws in zip(biases, inputs, strict=True)
    ]
    relative = [bias / draws.norm for bias, draws in zip(biases, inputs, strict=True)]
    count = len(inputs)
    nmse = statistics.fmean(nmses)
    limit = stdtrit(count - 1, 1 - LEVEL) * statistics.stdev(shares) / math.sqrt(count)
    return Distortion(
        nmse=nmse,
        nmse_max=max(nmses),
        bias=math.sqrt(max(0.0, statistics.fmean(relative))),
        biased=bool(statistics.fmean(shares) > limit),
        bias_limit=math.sqrt(limit * nmse),
        gain=1 + statistics.fmean(dot / draws.norm for draws in inputs for dot in draws.along),
    )
