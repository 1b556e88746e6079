"""Memory settings: keep freed memory instead of returning it to the kernel every step."""

import ctypes
import os
import platform

# Parameters of glibc's mallopt, from malloc.h.
_TRIM_THRESHOLD = -1
_TOP_PAD = -2
_MMAP_MAX = -4


def keep_memory() -> bool:
    """Tell glibc to reuse big blocks, so that training steps stop page-faulting; True if it took.

    For the main thread, and processes of our own; not with ``FEDBENCH_ALLOCATOR=system``.
    """
    if platform.libc_ver()[0] != "glibc" or os.environ.get("FEDBENCH_ALLOCATOR") == "system":
        return False
    libc = ctypes.CDLL(None)
    settings = ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 << 20))
    return all([libc.mallopt(name, value) == 1 for name, value in settings])
