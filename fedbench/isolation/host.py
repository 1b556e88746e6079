"""An isolated process as its parent sees it: calls of hooks, and answers to their questions."""

import builtins
import contextlib
import io
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.core import errors
from fedbench.core.errors import FedbenchError, PluginError
from fedbench.isolation.plain import APART, NotPlainError, read
from fedbench.payload import Payload

MAX_ANSWER_BYTES = 1 << 33
# Of the environment a child gets what it needs to start, and what changes how it computes.
PASSED = re.compile(
    "PATH|HOME|TMPDIR|LANG|TZ|LD_LIBRARY_PATH|VIRTUAL_ENV|PYTHONHASHSEED"
    "|(LC|OMP|GOMP|KMP|MKL|OPENBLAS|ONEDNN|DNNL|ATEN)_.*"
)

Answers = Mapping[str, Callable[..., Any]]
Kinds = type | tuple[type, ...]
FORMS = ({"is", "value"}, {"is", "name", "arguments"}, {"is", "error", "message", "trace"})


def environment() -> dict[str, str]:
    """Return a child's environment: nothing of the run, no accelerator, the same packages."""
    passed = {name: value for name, value in os.environ.items() if PASSED.fullmatch(name)}
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return passed | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


class _Sender(ForkingPickler):
    """Pickler that sends the data of a tensor, not all memory that it is a view of."""

    def reducer_override(self, thing: Any) -> Any:
        """Send tensors as NumPy arrays."""
        if isinstance(thing, Tensor):
            return torch.from_numpy, (thing.detach().cpu().numpy(),)
        return NotImplemented


def packed(thing: object) -> bytes:
    """Pickle for a pipe to a process that trusts this one; tensors arrive on the CPU."""
    out = io.BytesIO()
    _Sender(out, 5).dump(thing)
    return out.getvalue()


class Child:
    """A process with one plug-in. It starts at once, and imports in the background."""

    def __init__(self) -> None:
        self.what = "a plug-in"
        self.released: list[int] = []
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-P", "-W", "ignore", "-m", "fedbench.isolation.child"]
        self.process = subprocess.Popen(
            [*command, str(theirs.fileno())],
            env=environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        self.end = weakref.finalize(self, _end, self.process, self.pipe, os.getpid())

    def call(
        self,
        hook: str,
        *arguments: object,
        form: Payload | None = None,
        answers: Answers | None = None,
        apart: bool = False,
    ) -> Any:
        """Return the answer of a hook to copies of these arguments, as plain values.

        Messages in its answer and its questions must have this ``form``; functions by name are the
        ``answers`` to these questions. ``apart``, a new instance in a fork of the process is
        called: the plug-in never learns of it. Its errors are raised here, `FedbenchError` also if
        its process ended or its answer is illegal.
        """
        released = list(self.released)
        self.released.clear()
        if apart:
            self._tell((APART, (), released), hook)
        self._tell((hook, arguments, [] if apart else released), hook)
        other: PluginError | None = None  # of a rule that was queried: it is to blame, as without
        while True:
            message = self._hear(hook, form)
            if message["is"] == "done":
                return message["value"]
            if message["is"] == "failed":
                if other is not None and message["message"] == str(other):
                    raise other
                raise _as_error(message)
            try:
                question = (answers or {})[message["name"]]
                answer: tuple[str, Any] = ("answer", question(*message["arguments"]))
            except PluginError as error:
                other = error
                answer = ("raise", ("FedbenchError", str(error)))
            except Exception as error:
                answer = ("raise", (type(error).__name__, str(error)))
            self._tell(answer, hook)

    def _tell(self, message: object, hook: str) -> None:
        try:
            self.pipe.send_bytes(packed(message))
        except OSError:
            raise self._gone(hook) from None

    def _hear(self, hook: str, form: Payload | None) -> dict[str, Any]:
        try:
            data = self.pipe.recv_bytes(MAX_ANSWER_BYTES)
        except (EOFError, OSError):
            raise self._gone(hook) from None
        try:
            message = read(data, form)
            if not isinstance(message, dict) or message.keys() not in FORMS:
                raise NotPlainError("it is no message")
        except NotPlainError as error:
            raise FedbenchError(
                f"{self.what} must return plain values from {hook} under --isolate: {error}"
            ) from None
        return message

    def checked(self, hook: str, value: Any, kind: Kinds, requirement: str) -> Any:
        """Return the value of an answer if it is of this kind, else raise `FedbenchError`."""
        if not isinstance(value, kind):
            got = type(value).__name__
            raise FedbenchError(f"{self.what} must return {requirement} from {hook}, got {got}")
        return value

    def fields(self, hook: str, value: Any, kinds: Mapping[str, Kinds]) -> dict[str, Any]:
        """Return the fields of an answer if all are there and of these kinds."""
        fields = self.checked(hook, value, dict, "an answer")
        if fields.keys() != kinds.keys():
            got = ", ".join(map(str, fields))
            raise FedbenchError(f"{self.what} must answer {hook} in full, got {got}")
        for name, kind in kinds.items():
            self.checked(hook, fields[name], kind, f"a legal {name!r}")
        return dict(fields)

    def _gone(self, hook: str) -> FedbenchError:
        self.process.kill()
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return FedbenchError(f"{self.what} ended its process with {how} in {hook}")


class Kept:
    """Value that stays in a child, by its number. A copy is the same: it cannot change here."""

    def __init__(self, child: Child, number: int) -> None:
        self.number = number
        weakref.finalize(self, child.released.append, number)

    def __deepcopy__(self, memo: object) -> Self:
        return self


def _end(process: subprocess.Popen[bytes], pipe: Connection, parent: int) -> None:
    if os.getpid() != parent:  # a fork of it has the child's number, but not the child
        return
    pipe.close()
    process.kill()
    process.wait()


def _as_error(failure: Mapping[str, Any]) -> Exception:
    """Return the error of a child, ours or Python's by its name, with its traceback as a note."""
    name = str(failure["error"])
    message = str(failure["message"])
    cls = getattr(errors, name, None) or getattr(builtins, name, None)
    error: Exception
    if cls is PluginError:  # from a link of a chain, or a rule that an attack queried
        error = FedbenchError(message)
    else:
        error = RuntimeError(f"{name}: {message}")
        if isinstance(cls, type) and issubclass(cls, Exception):
            with contextlib.suppress(TypeError):  # some are made of more than a message
                error = cls(message)
    error.add_note(str(failure["trace"]))
    return error
