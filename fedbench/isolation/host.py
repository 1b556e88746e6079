"""An isolated process as its parent sees it: calls of hooks, and answers to what they ask."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from fedbench.core import errors
from fedbench.core.errors import FedbenchError, PluginError
from fedbench.executors.process_pool import packed
from fedbench.isolation.plain import APART, NotPlainError, read
from fedbench.payload import Payload

LARGEST = 1 << 33  # bytes of an answer
# Of the environment a child gets what it needs to start, and what changes how it computes.
PASSED = (
    "PATH",
    "HOME",
    "TMPDIR",
    "LANG",
    "TZ",
    "LD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "PYTHONHASHSEED",
)
PASSED_KINDS = ("LC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_")

Answers = Mapping[str, Callable[..., Any]]


def environment() -> dict[str, str]:
    """What a child is started with: nothing of the run, no accelerator, the same packages."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED or name.startswith(PASSED_KINDS)
    }
    path = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)
    return passed | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


class Kept:
    """A value that stays in a child, by its number. Copies are the same: nobody here can change it.

    Args:
        child: Where it is.
        number: What the child calls it.
    """

    def __init__(self, child: Child, number: int) -> None:
        self.number = number
        weakref.finalize(self, child.released.append, number)

    def __deepcopy__(self, memo: object) -> Kept:
        return self


class Child:
    """A process with one plug-in. It starts at once, and imports while others do other things."""

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
        """What the hook returns, as plain values.

        Args:
            hook: Which.
            arguments: What it is shown; they are copied.
            form: What messages in its answer, and in its questions, must be like.
            answers: To what it may ask meanwhile, by name.
            apart: Of a new instance, in a fork of the process: the plug-in never learns of it.

        Raises:
            FedbenchError: what the plug-in raised; or its process ended, or said nonsense.
            Exception: another error of the plug-in, if Python itself has one of that name.
        """
        released, self.released[:] = list(self.released), []
        if apart:
            self._tell((APART, (), released), hook)
        self._tell((hook, arguments, [] if apart else released), hook)
        while True:
            said = self._hear(hook, form)
            if said["is"] == "done":
                return said["value"]
            if said["is"] == "failed":
                raise _as_error(said)
            name, asked = said["name"], said["arguments"]
            try:
                answer: tuple[str, Any] = ("answer", (answers or {})[name](*asked))
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
            data = self.pipe.recv_bytes(LARGEST)
        except (EOFError, OSError):
            raise self._gone(hook) from None
        try:
            said = read(data, form)
            if not isinstance(said, dict) or said.keys() not in SAID:
                raise NotPlainError("it is no message")
        except NotPlainError as error:
            raise FedbenchError(
                f"{self.what} must return plain values from {hook} under --isolate: {error}"
            ) from None
        return said

    def _gone(self, hook: str) -> FedbenchError:
        self.process.kill()
        code = self.process.wait()
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return FedbenchError(f"{self.what} ended its process with {how} in {hook}")


SAID = (
    {"is": 0, "value": 0}.keys(),
    {"is": 0, "name": 0, "arguments": 0}.keys(),
    {"is": 0, "error": 0, "message": 0, "trace": 0}.keys(),
)


def _end(process: subprocess.Popen[bytes], pipe: Connection, parent: int) -> None:
    if os.getpid() != parent:  # a fork of it has the child's number, but not the child
        return
    pipe.close()
    process.kill()
    process.wait()


def _as_error(said: Mapping[str, Any]) -> Exception:
    """The error of a child, ours or Python's by its name, with its traceback as a note."""
    name, message = str(said["error"]), str(said["message"])
    cls = getattr(errors, name, None) or getattr(builtins, name, None)
    error: Exception
    if cls is PluginError:  # of a link of a chain, or of a rule that an attack asked
        error = FedbenchError(message)
    elif isinstance(cls, type) and issubclass(cls, Exception) and not issubclass(cls, UnicodeError):
        error = cls(message)
    else:
        error = RuntimeError(f"{name}: {message}")
    error.add_note(str(said["trace"]))
    return error
