"""Copies to a device that do not make the CPU wait."""

import torch
from torch import Tensor

from fedbench.core.devices import accelerated


def sent(x: Tensor, device: torch.device | str) -> Tensor:
    """Return ``x`` on the device; a copy from the CPU to an accelerator goes on by itself.

    torch has read ``x`` when it returns, or keeps its memory until it has. In the other direction
    it would not know when the copy can be read, so there it waits.
    """
    return x.to(device, non_blocking=accelerated(torch.device(device)))
