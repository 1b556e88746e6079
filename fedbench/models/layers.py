"""Layers of torch.nn whose training depends on more than its inputs, as functions of a step.

Batch norm leaves padding out and hands its running statistics to the step; dropout draws from the
key of the step. Both then work under ``vmap``, which torch.nn's own do not.
"""

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase

from fedbench.core.errors import ConfigError
from fedbench.models.network import Step

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


@dataclass(eq=False)
class Pass:
    """The pass through a network that is under way, for its layers to look up."""

    step: Step | None = None
    features: Tensor | None = None  # what the last layer got
    calls: Counter[str] = field(default_factory=Counter)  # of each dropout layer
    assigned: list[str] = field(default_factory=list)  # buffers that the pass gave another tensor


def take_over(module: nn.Module, now: Pass) -> list[str]:
    """Have batch norm and dropout of a module look up ``now``; name the running statistics.

    The module must be in training mode: a batch norm that its own ``train`` leaves out of it moves
    no statistics, which then are buffers like others.

    `ConfigError` for batch norm that is not torch's own, or that moves by no constant share.
    """
    statistics = []
    for name, layer in module.named_modules():
        if isinstance(layer, _BatchNorm):
            if type(layer) not in NORMS or isinstance(layer, _LazyNormBase):
                raise ConfigError(
                    f"batch norm {name!r} must be one of torch.nn's own, whose running statistics "
                    f"can be averaged, got {type(layer).__name__}; use torch.nn.BatchNorm2d"
                )
            if layer.momentum is None and layer.track_running_stats:
                raise ConfigError(
                    f"batch norm {name!r} must have a momentum, got None, which averages over all "
                    "batches of one process; use momentum=0.1"
                )
            object.__setattr__(layer, "forward", partial(_normalised, layer, name, now))
            if layer.running_mean is not None and layer.training:
                statistics += [f"{name}.running_mean", f"{name}.running_var"]
        elif type(layer) in DROPOUTS:
            object.__setattr__(layer, "forward", partial(_dropped, layer, name, now))
    return statistics


def _normalised(layer: _BatchNorm, name: str, now: Pass, x: Tensor) -> Tensor:
    """Normalise ``x (B, C, ...)``; in training by the batch without its padding.

    References:
        Ioffe and Szegedy, "Batch Normalization", ICML 2015, https://arxiv.org/abs/1502.03167,
        Algorithms 1 and 2.
    """
    step = now.step
    mean, var = layer.running_mean, layer.running_var
    if step is None or not layer.training:
        mean = None if mean is None else mean.detach()
        var = None if var is None else var.detach().clamp_min(0)  # a client may forge it
        return F.batch_norm(x, mean, var, layer.weight, layer.bias, var is None, 0.0, layer.eps)
    if len(x) != len(step.real):
        raise ConfigError(
            f"batch norm {name!r} must be given a value of each sample along dimension 0, so that "
            f"padding can be left out, got {tuple(x.shape)} for {len(step.real)} samples; use "
            "group norm or layer norm"
        )
    others = [i for i in range(x.dim()) if i > 1]
    column = (-1, *[1] * len(others))
    each = x.mean(dim=others) if others else x
    share = step.real.to(x.dtype) / step.real.sum()
    batch_mean = share @ each
    centred = (x - batch_mean.reshape(column)).square()
    batch_var = share @ (centred.mean(dim=others) if others else centred)
    if mean is not None and var is not None and layer.momentum is not None:
        mean = step.statistics.get(f"{name}.running_mean", mean)  # of a layer that is used twice
        var = step.statistics.get(f"{name}.running_var", var)
        count = step.real.sum() * math.prod(x.shape[2:])
        unbiased = torch.where(count > 1, batch_var * count / (count - 1).clamp_min(1), var)
        for part, old, new in (
            ("running_mean", mean, batch_mean),
            ("running_var", var.clamp_min(0), unbiased),
        ):
            moved = old + layer.momentum * (new - old)
            step.statistics[f"{name}.{part}"] = moved.detach()
    slope = (batch_var + layer.eps).rsqrt()
    slope = slope if layer.weight is None else slope * layer.weight
    shift = -batch_mean * slope
    shift = shift if layer.bias is None else shift + layer.bias
    return x * slope.reshape(column) + shift.reshape(column)


def _dropped(layer: nn.Dropout, name: str, now: Pass, x: Tensor) -> Tensor:
    """Set values, or whole channels, to 0 with the layer's probability, and scale the others up."""
    step = now.step
    if step is None or not layer.training or not layer.p:
        return x
    now.calls[name] += 1
    shape = list(x.shape)
    if type(layer) is not nn.Dropout:
        shape[2:] = [1] * (x.dim() - 2)
    key = step.key.fold("dropout", name, now.calls[name])
    survives = key.uniform(*shape, device=x.device) >= layer.p
    return x * survives / max(1 - layer.p, 1e-12)
