"""Answers measured once on this machine, by the first process that asks: a small file for each."""

import json
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import torch

from fedbench.core.devices import accelerated, title
from fedbench.core.files import cache_folder


def machine(device: torch.device) -> str:
    """Name the library and the processor, with which an answer may change."""
    where = f"{torch.get_num_threads()} threads of {processor()}"
    if accelerated(device):
        where = title(device)
    return f"torch {torch.__version__}, {where}"


def processor() -> str:
    """Return the name of the processor, as it reports itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def may_measure() -> bool:
    """Return whether measuring is allowed: not with ``FEDBENCH_PROBE=off``."""
    return os.environ.get("FEDBENCH_PROBE") != "off"


def folder() -> Path:
    """Return the folder of the answers: ``fedbench/answers`` in the user's caches."""
    return cache_folder("answers")


def _file(question: str) -> Path:
    return folder() / f"{sha256(question.encode()).hexdigest()[:16]}.json"


def stored(question: str, fits: Callable[[str], bool]) -> str | None:
    """Return the stored answer to a question; None if there is none that fits and is readable."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):
        entry = json.loads(_file(question).read_text())
        answer = entry["answer"]
        if entry["question"] == question and isinstance(answer, str) and fits(answer):
            return answer
    return None


def store(question: str, answer: str, fits: Callable[[str], bool]) -> str:
    """Store an answer unless there is one already; return the one that holds."""
    with suppress(OSError, RuntimeError):  # RuntimeError without a home folder
        path = _file(question)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "w") as file:
                json.dump({"question": question, "answer": answer}, file, indent=1)
            os.link(temporary, path)  # fails if there is an answer already
        finally:
            os.unlink(temporary)
    return stored(question, fits) or answer
