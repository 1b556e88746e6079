"""Charges the time of a round to its parts, from outside: `play_round` knows nothing of it.

The functions that a round calls are wrapped for as long as it is watched, and put back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch

import fedbench.run
from fedbench.adversary import threat_model
from fedbench.experiment.setup import Setup
from fedbench.payload import Payload

Work = Callable[..., Any]
# What a part is made of; whoever calls whom, the outermost one is charged.
PARTS = {
    "train": "the clients' local training",
    "down": "broadcast, what clients make of it, their images",
    "pack": "mechanism and compression",
    "attack": "the adversary: its training, its view and its crafting",
    "wire": "encode, decode and checks",
    "rule": "the defense, with what it is shown",
    "step": "the server's step",
    "judge": "effect of the attack, bits, privacy",
    "rest": "all else",
}
JUDGES = ("effect", "verdict", "spend", "judge", "judge_locals", "looked_at", "travelled")


@dataclass(eq=False)
class Clock:
    """Charges time to the part that is being done.

    Args:
        device: Whose work is waited for when the part changes.
        seconds: Of each part so far.
    """

    device: torch.device
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    _doing: str = "rest"
    _since: float = 0.0
    _sealed: bool = False

    def turn(self, part: str) -> str:
        """From now on it is this part; what it was."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now, before = time.perf_counter(), self._doing
        if self._since:
            self.seconds[before] += now - self._since
        self._doing, self._since = part, now
        return before

    def charged(self, call: Work, part: str, seals: bool = True) -> Work:
        """``call``, whose time is the part's, and with ``seals`` that of all that it calls."""

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if self._sealed:
                return call(*args, **kwargs)
            before, self._sealed = self.turn(part), seals
            try:
                return call(*args, **kwargs)
            finally:
                self._sealed = False
                self.turn(before)

        return timed


def places(setup: Setup) -> Iterator[tuple[Any, str, str]]:
    """Owner, name and part of everything that a round calls and that is charged.

    The owner of a method is the class that defines it: what a plug-in has not overridden, it must
    not seem to override while it is watched.
    """
    for owner, name, part in _called(setup):
        defining = owner
        if isinstance(owner, type):
            defining = next(cls for cls in owner.__mro__ if name in vars(cls))
        yield defining, name, part


def _called(setup: Setup) -> Iterator[tuple[Any, str, str]]:
    plugins = setup.plugins
    yield type(setup.executor), "train", "train"
    for name in ("broadcast", "receive", "idle"):
        yield type(plugins.protocol), name, "down"
    yield type(setup), "client", "down"
    for name in ("protect_updates", "compress", "protect_payload"):
        yield fedbench.run, name, "pack"
    yield type(plugins.mechanism), "on_aggregate", "pack"
    yield threat_model, "train", "attack"
    yield type(plugins.attack), "craft", "attack"
    for alphabet in (Payload, *_below(Payload)):
        for name in {"encode", "decode", "receive"} & set(vars(alphabet)):
            yield alphabet, name, "wire"
    yield type(setup), "view", "rule"
    for name in ("init", "ready", "aggregate"):
        yield type(plugins.defense), name, "rule"
    yield type(plugins.protocol), "server_step", "step"
    for name in (*JUDGES, "entropy_bits"):
        yield fedbench.run, name, "judge"


@contextmanager
def watched(setup: Setup, clock: Clock) -> Iterator[None]:
    """In the block the functions of a round are charged to the clock; afterwards to nobody."""
    changed: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, part: str, seals: bool = True) -> None:
        own = vars(owner)[name]
        changed.append((owner, name, own))
        if isinstance(own, classmethod):
            setattr(owner, name, classmethod(clock.charged(own.__func__, part, seals)))
        else:
            setattr(owner, name, clock.charged(getattr(owner, name), part, seals))

    try:
        for owner, name, part in places(setup):
            put(owner, name, part)
        put(threat_model, "forge", "attack", seals=False)  # it encodes the honest messages, too
        yield
    finally:
        for owner, name, own in reversed(changed):
            setattr(owner, name, own)


def _below(cls: type[Any]) -> Iterator[type[Any]]:
    child: type[Any]
    for child in cls.__subclasses__():
        yield child
        yield from _below(child)
