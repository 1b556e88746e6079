"""Devices that tensors are on: the CPU, CUDA, or a backend that a package registers with torch.

Everything that depends on the device asks here. CUDA has a name of its own only where something is
CUDA's alone: its graphs, its cuDNN, and which GPU a worker of a sweep sees.
"""

import sys
import time

import torch

from fedbench.core.choices import DEVICES
from fedbench.core.errors import require


def accelerated(device: torch.device) -> bool:
    """Return whether work on a device runs beside the CPU, which waits where it reads a result."""
    return device.type != "cpu"


def replays_graphs(device: torch.device) -> bool:
    """Return whether launches on a device can be recorded as a graph; torch can do that on CUDA."""
    return device.type == "cuda"


def reads_pinned_memory(device: torch.device) -> bool:
    """Return whether a device copies to and from pinned memory of the CPU by itself; CUDA does."""
    return device.type == "cuda"


def multiplies_in_tf32(device: torch.device) -> bool:
    """Return whether torch can have a device multiply float32 in TF32; a CUDA device it can."""
    return device.type == "cuda"


def registered() -> str | None:
    """Return the name of the backend, such as ``npu``, that is registered with torch and works."""
    name = torch._C._get_privateuse1_backend_name()
    module = getattr(torch, name, None)
    return name if module is not None and module.is_available() else None


def require_device_name(name: str) -> None:
    """Raise `ConfigError` unless ``--device`` is a word of ours or a registered backend."""
    other = registered()
    names = (*DEVICES, other) if other else DEVICES
    require("--device", name, name in names, f"{', '.join(names[:-1])} or {names[-1]}")


def current(kind: str) -> torch.device:
    """Return the current device of that kind by its number, as the tensors on it give it."""
    device = torch.device(kind)
    if not accelerated(device):
        return device
    return torch.device(kind, torch.get_device_module(device).current_device())


def finish(device: torch.device) -> None:
    """Wait until a device is idle, so that a clock can be read."""
    if accelerated(device):
        torch.get_device_module(device).synchronize(device)


def now(device: torch.device | None = None) -> float:
    """Return the seconds of the clock, after the device, if any, has finished its work.

    Whatever comes next is then not charged for what was launched before.
    """
    if device is not None:
        finish(device)
    return time.perf_counter()


def title(device: torch.device) -> str:
    """Return the name of the accelerator as its driver gives it, or ``cpu``."""
    if not accelerated(device):
        return device.type
    return str(torch.get_device_module(device).get_device_name(device))


def memory(device: torch.device) -> int:
    """Return an accelerator's bytes of memory; no limit on ``meta``, whose tensors need none."""
    if device.type == "meta":
        return sys.maxsize
    return int(torch.get_device_module(device).get_device_properties(device).total_memory)


def usable_memory(device: torch.device) -> int:
    """Return the bytes of an accelerator that this process can still allocate.

    All of its memory with a backend that does not count. On CUDA at most the share of the process,
    see `share_with`.
    """
    total = memory(device)
    if device.type != "cuda":
        return total
    free, _ = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    reusable = torch.cuda.memory_reserved(device) - allocated  # torch keeps it for what comes
    share = torch.cuda.get_per_process_memory_fraction(device)
    return min(free + reusable, int(share * total) - allocated)


def share_with(processes: int) -> None:
    """Limit this process to an equal share of the current GPU among ``processes``."""
    torch.cuda.set_per_process_memory_fraction(1 / processes)


def peak_memory(device: torch.device) -> int | None:
    """Return this process's peak memory of an accelerator in bytes; None if it is not counted."""
    if not accelerated(device):
        return None
    counter = getattr(torch.get_device_module(device), "max_memory_allocated", None)
    return None if counter is None else int(counter(device))
