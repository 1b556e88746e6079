"""Canonical mode: one instruction set, one thread, one order of sums.

torch, oneDNN and MKL choose kernels by the processor, and each kernel sums in an order of its own.
In canonical mode all of them compute as for the oldest processor that they know, so that a run has
the same numbers on another one. They read these variables once, when torch is imported or first
used.
"""

import os
import sys

from fedbench.core.errors import ConfigError

VARIABLES = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_CBWR": "COMPATIBLE",
    "OMP_NUM_THREADS": "1",
}


def enter() -> None:
    """Enter canonical mode, in this process and in those that it starts, before torch is imported.

    `ConfigError` if torch was imported without it.
    """
    if "torch" in sys.modules:
        require_canonical()
    os.environ.update(VARIABLES)


def in_force() -> bool:
    """Tell whether this process computes in canonical mode, as far as torch reports it.

    torch reports its own kernels and threads. What oneDNN and MKL chose cannot be asked: they are
    taken to have read the variables that stood beside torch's.
    """
    import torch

    variables_set = all(os.environ.get(name) == value for name, value in VARIABLES.items())
    one_thread = torch.get_num_threads() == 1
    return variables_set and one_thread and torch.backends.cpu.get_cpu_capability() == "DEFAULT"


def require_canonical() -> None:
    """Raise `ConfigError` unless this process is in canonical mode; it is too late to enter it."""
    if not in_force():
        words = " ".join(f"{name}={value}" for name, value in VARIABLES.items())
        raise ConfigError(
            "--canonical must be chosen before torch is imported, got a process that has imported "
            f"it; start it with {words}"
        )
