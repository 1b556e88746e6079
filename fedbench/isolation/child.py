"""Program of an isolated process: it loads one plug-in and answers calls of its hooks.

Its answers are plain values; memories and states stay here, under numbers. A call of which the
plug-in is to keep nothing is answered by a fork of the process, which alone reads the arguments,
and ends with its answer.
"""

import copy
import ctypes
import dataclasses
import inspect
import os
import signal
import sys
import threading
import traceback
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Defense, Gradient, Local, Oracle, ServerView
from fedbench.api.prefilter import links_of
from fedbench.core import errors, registry
from fedbench.core.rng import Key
from fedbench.isolation.files import open_no_data
from fedbench.isolation.plain import APART, DIFFERENTIATED, REHEARSED, Asked, write
from fedbench.payload import Payload, Spec, require_same_form

DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux
ANSWERED = 77  # exit code of a fork that has answered


class Guest:
    """One plug-in, with its memories and states under numbers."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe  # to the parent
        self.plugin: Any = None
        self.kept: dict[int, Any] = {}
        self._last = 0

    def serve(self) -> None:
        """Answer calls until the parent is gone."""
        while True:
            try:
                hook, arguments, released = ForkingPickler.loads(self.pipe.recv_bytes())
            except (EOFError, OSError):
                return
            for number in released:
                self.kept.pop(number, None)
            if hook == APART:
                self.fork()
                continue
            data = self.answer(hook, arguments)
            try:
                self.pipe.send_bytes(data)
            except OSError:
                return
            del arguments, data  # or the next call would find what this one was shown

    def fork(self) -> None:
        """Answer the next call in a fork, and end like the fork if it dies without an answer.

        It answers in a new thread: the old one would wait for OpenMP's, which a fork does not have.
        """
        process = os.fork()
        if process:
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            if code < 0:
                os.kill(os.getpid(), -code)
            if code != ANSWERED:
                os._exit(code)
            return
        try:
            end_with_parent()
            thread = threading.Thread(target=self.answer_and_end)
            thread.start()
            thread.join()
        finally:
            os._exit(1)

    def answer_and_end(self) -> None:
        """Answer one call as a new instance of the plug-in with the same parameters."""
        torch.set_num_threads(torch.get_num_threads())  # set it for this thread
        hook, arguments, _ = ForkingPickler.loads(self.pipe.recv_bytes())
        self.pipe.send_bytes(self.answer("anew", (hook, arguments)))
        os._exit(ANSWERED)

    def answer(self, hook: str, arguments: tuple[Any, ...]) -> bytes:
        """Return the answer of a hook, ours or the plug-in's own, or how it failed."""
        try:
            return write({"is": "done", "value": self.called(hook, arguments)})
        except BaseException as error:  # foreign code, which may raise anything
            text = "".join(traceback.format_exception(error))
            named = {"error": type(error).__name__, "message": str(error)}
            return write({"is": "failed", "trace": text} | named)

    def called(self, hook: str, arguments: tuple[Any, ...]) -> Any:
        """Call our handler of a hook, or the plug-in's method where there is none."""
        handler = getattr(self, f"on_{hook}", None) or getattr(self.plugin, hook)
        return handler(*arguments)

    def ask(self, name: str, *arguments: object) -> Any:
        """Return the parent's answer to a question of the plug-in, while its call waits."""
        self.pipe.send_bytes(write({"is": "ask", "name": name, "arguments": arguments}))
        kind, answer = ForkingPickler.loads(self.pipe.recv_bytes())
        if kind == "raise":
            name, message = answer
            raise getattr(errors, name, RuntimeError)(message)
        return answer

    def keep(self, value: object) -> int | None:
        """Return the number under which a value stays here; None for None."""
        if value is None:
            return None
        self._last += 1
        self.kept[self._last] = value
        return self._last

    def value(self, number: int | Spec | None) -> Any:
        """Return the value of a number; for a form of messages, the state a rule starts with."""
        if isinstance(number, dict):
            return self.plugin.init(number)
        return None if number is None else self.kept[number]

    def on_load(self, kind: str, text: str, threads: int) -> dict[str, Any]:
        torch.set_num_threads(threads)
        open_no_data()
        self.plugin = registry.load(kind, text)
        self.name = registry.split(text)[0]
        return self.described()

    def on_anew(self, hook: str, arguments: tuple[Any, ...]) -> Any:
        """Call a hook of a new instance of the rule, which has kept nothing beside its state."""
        self.plugin = registry.load("defense", registry.describe(self.name, self.plugin))
        return self.called(hook, arguments)

    def described(self) -> dict[str, Any]:
        """Describe the plug-in in plain values, which do not change with the rounds."""
        plugin = self.plugin
        text = registry.describe(self.name, plugin)
        common = {"text": text, "class": type(plugin).__name__} | origin(plugin)
        if isinstance(plugin, Attack):
            hooks = ("require_samples", "learn", "poison", "wrap_grad", "trigger", "craft")
            own = [h for h in hooks if getattr(type(plugin), h) is not getattr(Attack, h)]
            declared: dict[str, Any] = {"needs": str(plugin.needs()), "recruits": plugin.recruits}
            declared["works_on"] = list(plugin.works_on)
            copied = [inspect.getfile(cls) for cls in plugin.copies()]
            return common | declared | {"hooks": own, "idle": bool(plugin.idle), "copies": copied}
        common |= traits_of(plugin)
        return common | {
            "rows_needed": plugin.rows_needed(),
            "most_rows": plugin.most_rows(),
            "ready": type(plugin).ready is not Defense.ready,
            "links": [origin(link) | traits_of(link) for link in links_of(plugin)],
        }

    def on_wrap_grad(self, batch_size: int, local: Local) -> int | None:
        """Call `Attack.wrap_grad` with a gradient that the parent computes, and keep the result."""

        def ask(name: str, tree: Any, x: Tensor, y: Tensor, key: Key, *slope: Tensor) -> Any:
            return self.ask(name, tree, x, y, key.seed, *slope)

        batch, each, features, pull = (partial(ask, name) for name in DIFFERENTIATED)
        asking = Gradient(batch, each, batch_size, features, pull)
        return self.keep(self.plugin.wrap_grad(asking, local))

    def on_gradient(self, number: int, tree: Any, x: Tensor, y: Tensor, key: Key) -> Any:
        return self.value(number)(tree, x, y, key)

    def on_craft(self, view: AttackView, asked: Asked | None, memory: int | None) -> dict[str, Any]:
        """Call `Attack.craft`; ``asked`` is the text of the rule that it may query."""
        form = view.own
        view = self.answered(view, asked)
        oracle = view.defense
        sent, later = self.plugin.craft(view, self.value(memory))
        if isinstance(sent, Payload):
            require_same_form(form, sent)
        return {
            "sent": sent,
            "memory": self.keep(later),
            "notes": dict(view.notes),
            "trace": [tuple(trial) for trial in view.trace],
            "queries": oracle.queries if oracle else 0,  # closed forms are counted, too
        }

    def on_learn(self, view: AttackView, asked: Asked | None, learned: Tensor | None) -> Any:
        return self.plugin.learn(self.answered(view, asked), learned)

    def answered(self, view: AttackView, asked: Asked | None) -> AttackView:
        """Return the view with functions that the parent answers."""
        form = view.own

        def ask_rule(sent: Payload, draw: int) -> Any:
            require_same_form(form, sent)
            return self.ask("rule", sent, draw)

        oracle = None
        if asked is not None:
            text, checks = asked
            oracle = Oracle(registry.load("defense", text), ask_rule, checks=checks)
        compress = partial(self.ask, "compress")
        lab = view.rehearsal
        if lab is not None:
            for name in REHEARSED:
                setattr(lab, name, partial(self.ask, name))
        return dataclasses.replace(
            view, compress=compress, defense=oracle, rehearsal=lab, notes={}, trace=[]
        )

    def on_declared(self, f: int) -> dict[str, Any]:
        self.plugin = self.plugin.declared(f)
        return self.described()

    def on_init(self, spec: Spec) -> int | None:
        return self.keep(self.plugin.init(spec))

    def on_aggregate(
        self, received: Payload, state: int | Spec | None, view: ServerView
    ) -> dict[str, Any]:
        out, later = self.plugin.aggregate(received, copy.deepcopy(self.value(state)), view)
        notes = dict(view.findings.notes)
        return {"out": out, "state": self.keep(later), "kept": view.findings.kept, "notes": notes}


def origin(plugin: Any) -> dict[str, Any]:
    """Describe where a plug-in is from, and what it works on."""
    accepts = [cls.__name__ for cls in plugin.accepts]
    return {"file": inspect.getfile(type(plugin)), "accepts": accepts}


def traits_of(rule: Any) -> dict[str, Any]:
    """Describe what a rule, or a link of a chain, is and assumes."""
    return {"traits": dataclasses.asdict(rule.traits()), "f": getattr(rule, "f", None)}


def end_with_parent() -> None:
    """Have the system end this process with its parent, whatever it is doing then (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    end_with_parent()
    Guest(Connection(int(sys.argv[1]))).serve()
    os._exit(0)  # nothing of a plug-in's is to run now
