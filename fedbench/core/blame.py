"""Calls of plug-ins, and the names of plug-ins, exceptions and values in errors, one line each.

Nothing here imports torch: a question to a store does not wait for it.
"""

import inspect
import re
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fedbench.core.errors import ConfigError, PluginError

MAX_MESSAGE = 300  # of an exception that an error repeats

# Hooks in which a plug-in may tell the user what to change: they are asked before the first round.
CONFIGURATION = {
    *("__init__", "build", "declared", "event", "init", "load", "memory", "misfit", "most_rows"),
    *("needs", "refuses", "require_samples", "rows_needed", "split", "tolerates", "traits"),
}


def title(plugin: object) -> str:
    """Return kind, name and package of a plug-in; module and class if it is not installed."""
    cls = plugin if isinstance(plugin, type) else type(plugin)
    apart = getattr(plugin, "titled", None)  # set by a stand-in for another process
    if isinstance(apart, str):
        return line(apart)
    return _installed(cls) or f"plug-in {cls.__name__} of {cls.__module__}"


def _installed(cls: type) -> str | None:
    """Return kind, name and package of the entry point that leads to a class, if one does."""
    from importlib.metadata import distributions  # `fedbench --help` does not wait for it

    for package in distributions():
        for point in package.entry_points:
            module, _, path = point.value.partition("[")[0].partition(":")
            if point.group.startswith("fedbench.") and module.strip() in sys.modules:
                target: Any = sys.modules[module.strip()]
                for name in path.strip().split("."):
                    target = getattr(target, name, None)
                if target is cls:
                    kind = point.group.removeprefix("fedbench.").removesuffix("s")
                    return f"{kind} {point.name} (package {package.name} {package.version})"
    return None


def inner_plugin(plugin: object, trace: TracebackType | None) -> str:
    """Return the innermost other plug-in at work, such as a rule that an attack queries."""
    entered: list[tuple[object, str]] = []
    for frame, _ in traceback.walk_tb(trace):
        owner = frame.f_locals.get("self")
        if owner is not None and (not entered or entered[-1][0] is not owner):
            entered.append((owner, frame.f_code.co_name))
    for owner, name in reversed(entered):
        if owner is plugin or type(owner) is plugin:  # it is being made
            return ""
        other = _installed(type(owner))
        if other is not None:
            return f" in {name} of {other}"
    return ""


def source_line(plugin: object, trace: TracebackType | None) -> str:
    """Return the last line at work in the file of a plug-in; nothing for one in another process."""
    cls = plugin if isinstance(plugin, type) else type(plugin)
    if hasattr(plugin, "titled"):  # set by a stand-in for another process
        return ""
    for frame, number in reversed(list(traceback.walk_tb(trace))):
        file = Path(frame.f_code.co_filename)
        if frame.f_globals.get("__name__") == cls.__module__ and file.is_file():
            return f" ({file.name}, line {number})"
    return ""


def signature(plugin: object, name: str) -> str:
    """Return the first line of a method as the contract of a plug-in has it."""
    bases = [cls for cls in type(plugin).__mro__ if cls is not object and name in vars(cls)]
    return f"def {name}({', '.join(inspect.signature(vars(bases[-1])[name]).parameters)})"


def error_line(error: BaseException) -> str:
    """Return type and message of an exception, in one line of `MAX_MESSAGE` or fewer.

    >>> error_line(ValueError("one line" + chr(10) + "and another"))
    'ValueError: one line and another'
    """
    return line(f"{type(error).__name__}: {message_of(error)}".removesuffix(": "))


def message_of(error: BaseException) -> str:
    """Return the message of an exception, in one line of `MAX_MESSAGE` or fewer."""
    try:
        return line(str(error))
    except Exception:  # even this is foreign code
        return "(its message cannot be read)"


def line(text: str) -> str:
    """Return a text printable, in one line, and cut."""
    cut = text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"
    return " ".join("".join(c if c.isprintable() else " " for c in cut).split())


def shown(x: object) -> str:
    """Describe a value by its type, and plain values by themselves.

    >>> import torch
    >>> shown(torch.zeros(2, 3)), shown(None), shown(("a", 1)), shown([b"x"] * 9)
    ('a tensor (2, 3) of torch.float32', 'None', "('a', 1)", 'a list of 9')
    """
    torch = sys.modules.get("torch")  # where nobody has imported it, nothing is a tensor
    if torch is not None and isinstance(x, torch.Tensor):
        return f"a tensor {tuple(x.shape)} of {x.dtype}"
    if x is None or type(x) in (int, float, bool, str, bytes):
        return line(repr(x)[:60])
    if type(x) is tuple and 0 < len(x) <= 3:
        return f"({', '.join(map(shown, x))})"
    size = f" of {len(x)}" if type(x) in (tuple, list, dict) else ""  # type: ignore[arg-type]
    return line(f"a {type(x).__name__}{size}")


@dataclass(frozen=True, eq=False)
class Hook:
    """One method of a plug-in: called, it calls that; ``with`` it, errors name the plug-in."""

    plugin: object  # or its class where it is being made
    name: str
    step: int | None = None  # round, from 0; None outside of one
    clients: Sequence[int] = ()  # that the call is for

    def __call__(self, *args: Any) -> Any:
        """Return the answer of the method, unchecked."""
        with self:
            return getattr(self.plugin, self.name)(*args)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, PluginError):
            error.step = self.step if error.step is None else error.step
        elif error is not None and not self.passes(error):
            where = inner_plugin(self.plugin, trace) + source_line(self.plugin, trace)
            raise self.wrong(f"raised {error_line(error)}{where}{self.remedy(error)}") from error

    def remedy(self, error: BaseException) -> str:
        """Return advice for a method whose parameters differ from its contract, or no text."""
        call = f"{type(self.plugin).__qualname__}.{self.name}() "
        wrong = isinstance(error, TypeError) and re.match(
            rf"{re.escape(call)}.*argument", str(error)
        )
        return f"; write {signature(self.plugin, self.name)}" if wrong else ""

    def passes(self, error: BaseException) -> bool:
        """Return whether an error is not wrapped: a mistake of the user, or Ctrl-C.

        Where Ctrl-C is ignored, as in the workers of a sweep, only a plug-in interrupts.
        """
        if isinstance(error, KeyboardInterrupt):
            return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
        configures = self.name in CONFIGURATION and self.step is None
        return isinstance(error, ConfigError) and configures

    def returned(self, kinds: Any, *args: Any) -> Any:
        """Return the answer, which must be of one of these types; a bool is no number."""
        answer = self(*args)
        named = kinds if isinstance(kinds, tuple) else (kinds,)
        good = isinstance(answer, named) and not (isinstance(answer, bool) and bool not in named)
        names = ("None" if kind is type(None) else kind.__name__ for kind in named)
        self.must(good, " or ".join(names), answer)
        return answer

    def pair(self, *args: Any, remedy: str = "") -> tuple[Any, Any]:
        """Return the answer, which must be a tuple of two."""
        answer = self(*args)
        self.must(type(answer) is tuple and len(answer) == 2, "a tuple of two", answer, remedy)
        return answer[0], answer[1]

    def must(self, holds: bool, requirement: str, got: object, remedy: str = "") -> None:
        """Raise `PluginError`, with what to do, unless the answer meets the ``requirement``."""
        if not holds:
            advice = f"; {remedy}" if remedy else ""
            raise self.wrong(f"must return {requirement}, got {shown(got)}{advice}")

    def wrong(self, problem: str) -> PluginError:
        """Return a `PluginError` with this problem of the call."""
        return PluginError(title(self.plugin), self.name, problem, self.step, tuple(self.clients))


def ask(plugin: object, hook: str, kinds: Any, *args: Any) -> Any:
    """Return the answer of a hook, which must be of one of these types."""
    return Hook(plugin, hook).returned(kinds, *args)
