"""Copies to a device: of a tensor without a wait, and of values that hold tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.core.devices import accelerated, reads_pinned_memory


def copied_to(x: Tensor, device: torch.device | str) -> Tensor:
    """Return ``x`` on the device; a copy from the CPU to an accelerator goes on by itself.

    torch has read ``x`` when it returns, or keeps its memory until it has. In the other direction
    it would not know when the copy can be read, so there it waits.
    """
    return x.to(device, non_blocking=accelerated(torch.device(device)))


def staging(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return empty memory of the CPU through which a device copies fastest.

    For CUDA it is pinned. To and from memory that is not pinned the driver copies in two steps, by
    way of a small piece that is.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=reads_pinned_memory(device))


def fetched(x: Tensor) -> Tensor:
    """Return a copy of ``x`` on the CPU, once the transfer has finished."""
    if not accelerated(x.device):
        return x
    return staging(x.shape, x.dtype, x.device).copy_(x)


def stacked_on(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return rows ``(k, ...)`` of the CPU, one after the other, on the device."""
    if not accelerated(device):
        return torch.cat(list(rows)) if len(rows) > 1 else rows[0]
    shape = torch.Size((sum(map(len, rows)), *rows[0].shape[1:]))
    return copied_to(torch.cat(list(rows), out=staging(shape, rows[0].dtype, device)), device)


def on_device(value: Any, device: torch.device) -> Any:
    """Return a value of lists, tuples and dicts with the tensors in it on the device.

    >>> on_device({"a": [torch.ones(2), (torch.ones(1), 3)]}, torch.device("meta"))
    {'a': [tensor(..., device='meta', size=(2,)), (tensor(..., device='meta', size=(1,)), 3)]}
    """
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {name: on_device(part, device) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_device(part, device) for part in value)
    return value
