"""Process-wide settings of torch, NumPy and Python, which a run restores at its end.

A plug-in can change them in passing (``torch.set_default_dtype``). Left out is what cannot be read
or set back: the number of inter-op threads, the generators of accelerators, code that a plug-in
replaces, and Python's own generator, from which libraries draw when they are imported.
"""

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
import torch.utils.deterministic

MAX_NOTE = 40  # characters of a value in a note
ENVIRONMENT = "environment variables"


@dataclass(frozen=True)
class Setting:
    """A process-wide setting of a library."""

    name: str  # in a note
    read: Callable[[], Any]  # returns its value, comparable with ``==``
    write: Callable[[Any], object]  # restores such a value
    shown: bool = True  # whether a note shows the values


def _numpy_state() -> tuple[Any, ...]:
    name, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return (name, np.asarray(words).tobytes(), *rest)


def _set_numpy_state(state: tuple[Any, ...]) -> None:
    name, words, *rest = state
    np.random.set_state((name, np.frombuffer(words, dtype=np.uint32), *rest))  # noqa: NPY002


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # the folder was removed
        return None


def _set_folder(before: str | None) -> None:
    if before is not None:
        os.chdir(before)


def _errors_of_warnings() -> list[Any]:
    """The filters that make a warning an error; libraries add others when they are imported."""
    return [entry for entry in warnings.filters if entry[0] == "error"]


def _set_errors_of_warnings(before: list[Any]) -> None:
    filters = [entry for entry in warnings.filters if entry[0] != "error" or entry in before]
    warnings.filters[:] = filters  # type: ignore[index]  # a list, whatever its stub says
    with suppress(AttributeError):
        warnings._filters_mutated()  # type: ignore[attr-defined]  # drops cached decisions


def _changed_variables(before: dict[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that changed or went, as they were; new ones of libraries stay."""
    return {name: value for name, value in before.items() if now.get(name) != value}


def _torch_modes() -> list[Setting]:
    kinds = ("cpu", "cuda")
    return [
        Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting(
            "torch's default device",
            lambda: str(torch.get_default_device()),
            lambda name: torch.set_default_device(None if name == "cpu" else name),
        ),
        Setting("torch's threads", torch.get_num_threads, torch.set_num_threads),
        Setting("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        Setting(
            "torch's anomaly mode",
            lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
            lambda modes: torch.set_anomaly_enabled(*modes),
        ),
        Setting(
            "torch's autocast",
            lambda: tuple(map(torch.is_autocast_enabled, kinds)),
            lambda modes: list(map(torch.set_autocast_enabled, kinds, modes)),
        ),
        Setting(
            "torch's deterministic algorithms",
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda modes: torch.use_deterministic_algorithms(modes[0], warn_only=modes[1]),
        ),
        Setting(
            "torch's flushing of denormals",
            lambda: sys.float_info.min / 2 == 0.0,  # torch has no getter
            torch.set_flush_denormal,
        ),
        Setting(
            "torch's float32 matmul precision",
            torch.get_float32_matmul_precision,
            torch.set_float32_matmul_precision,
        ),
    ]


def _torch_backends() -> list[Setting]:
    """Return the attributes of parts of torch, as far as this version has them."""
    reduced = [f"allow_{form}_reduced_precision_reduction" for form in ("fp16", "bf16")]
    words = {
        "utils.deterministic": ["fill_uninitialized_memory"],
        "backends.cudnn": ["enabled", "benchmark", "deterministic", "allow_tf32"],
        "backends.cuda.matmul": ["allow_tf32", *reduced],
        "backends.mkldnn": ["enabled", "deterministic"],
    }
    named = [(part, word) for part in words for word in words[part]]
    # last, because those above set several of these at once
    precise = ("backends", "backends.mkldnn", "backends.cudnn", "backends.cuda.matmul")
    named += [(part, "fp32_precision") for part in precise]
    owners = [(attrgetter(part)(torch), part, word) for part, word in named]
    return [
        Setting(
            f"torch.{part}.{word}", partial(getattr, owner, word), partial(setattr, owner, word)
        )
        for owner, part, word in owners
        if hasattr(owner, word)
    ]


def _other_settings() -> list[Setting]:
    return [
        Setting(
            "torch's generator",
            lambda: torch.get_rng_state().numpy().tobytes(),
            lambda state: torch.set_rng_state(
                torch.frombuffer(bytearray(state), dtype=torch.uint8)
            ),
            shown=False,
        ),
        Setting("NumPy's generator", _numpy_state, _set_numpy_state, shown=False),
        Setting("NumPy's floating-point errors", np.geterr, lambda v: np.seterr(**v), shown=False),
        Setting("Python's recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
        Setting(
            "Python's garbage collector",
            gc.isenabled,
            lambda value: gc.enable() if value else gc.disable(),
        ),
        Setting(
            "warnings that are errors", _errors_of_warnings, _set_errors_of_warnings, shown=False
        ),
        Setting(
            ENVIRONMENT,
            lambda: dict(os.environ),
            lambda before: os.environ.update(_changed_variables(before, os.environ)),
        ),
        Setting("the working folder", _folder, _set_folder),
    ]


class SettingsSnapshot:
    """Snapshot of the process-wide settings when it is made."""

    def __init__(self) -> None:
        self._values = [
            (setting, setting.read())
            for setting in (*_torch_modes(), *_torch_backends(), *_other_settings())
        ]

    def restore(self) -> list[str]:
        """Set back what has changed since the snapshot; return what that was, in words.

        A new environment variable counts only where fedbench reads it.
        """
        changes = []
        read = [(setting, before, setting.read()) for setting, before in self._values]
        for setting, before, now in read:
            if now == before:
                continue
            setting.write(before)
            if setting.name == ENVIRONMENT:
                names = _changed_variables(before, now)
                changes += [f"the environment variable {name}" for name in names]
            elif setting.shown:
                changes.append(f"{setting.name} ({_short(before)} to {_short(now)})")
            else:
                changes.append(setting.name)
        return changes


def _short(value: object) -> str:
    text = str(value).removeprefix("torch.")
    return text if len(text) <= MAX_NOTE else text[: MAX_NOTE - 1] + "…"


def note(changes: list[str]) -> str | None:
    """Return one line that says what a run has changed, or None."""
    if not changes:
        return None
    once = ", ".join(dict.fromkeys(changes))
    return f"a plug-in changed settings of the process: {once}; restored"


@contextmanager
def restored_after(restore: Callable[[], list[str]]) -> Iterator[None]:
    """Call ``restore`` at the end; an error gets a note of the changes."""
    try:
        yield
    except BaseException as error:
        changes = note(restore())
        if changes is not None:
            error.add_note(changes)
        raise
    else:
        restore()
