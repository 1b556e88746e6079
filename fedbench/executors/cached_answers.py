"""What was measured on this machine once: one small file for each question, in a folder of caches.

The first process that answers a question answers it for all, so that runs of one machine are alike.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import torch

from fedbench.core.files import cache_folder


def machine(device: torch.device) -> str:
    """What an answer holds for, beside its question: library and processor."""
    where = f"{torch.get_num_threads()} threads of {processor()}"
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    return f"torch {torch.__version__}, {where}"


def processor() -> str:
    """As it calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def asks() -> bool:
    """False if nothing is to be measured: ``FEDBENCH_PROBE=off``."""
    return os.environ.get("FEDBENCH_PROBE") != "off"


def folder() -> Path:
    """Where answers lie: ``fedbench/answers`` in the user's folder of caches."""
    return cache_folder("answers")


def _file(question: str) -> Path:
    return folder() / f"{sha256(question.encode()).hexdigest()[:16]}.json"


def answer(question: str, fits: Callable[[str], bool]) -> str | None:
    """What was measured here before; None if nothing was that fits, or nobody can read it."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        said = json.loads(_file(question).read_text())
        found = said["answer"]
        if said["question"] == question and isinstance(found, str) and fits(found):
            return found
    return None


def kept(question: str, found: str, fits: Callable[[str], bool]) -> str:
    """Keep an answer, unless somebody was first; the one that holds."""
    with suppress(OSError, RuntimeError):  # of no home, too
        path = _file(question)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"question": question, "answer": found}, file, indent=1)
            os.link(temporary, path)  # fails if it is there
        finally:
            os.unlink(temporary)
    return answer(question, fits) or found
