"""Codecs of dense vectors: bytes of a vector, and the vector that a server reads in them."""

from __future__ import annotations

import dataclasses
import inspect
import secrets
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Protocol, Shared, hooks
from fedbench.core import registry
from fedbench.core.blame import shown
from fedbench.core.errors import ConfigError, IllegalPayloadError, require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.functional import forms
from fedbench.functional.absent import mended
from fedbench.functional.forms import Vector
from fedbench.functional.promises import PROMISES
from fedbench.functional.rules import key_of
from fedbench.functional.signatures import (
    Argument,
    bound,
    checked_fields,
    described,
    fields_of,
    python_name,
)
from fedbench.models.network import Network, Step
from fedbench.payload import Spec
from fedbench.payload.packets import Packet
from fedbench.probes.codec_bench import misfit
from fedbench.protocols.fedavg import DenseWeights, FedAvg
from fedbench.protocols.signsgd import SignVotes

SEED = 0  # of the public numbers that both ends share, which no codec here reads
X = Argument("x", "Vector", "A tensor or an array of any shape, or a state dict of floats.")
DATA = Argument("data", "bytes", "What `encode` returned.")
LIKE = Argument(
    *("like", "Vector", "A vector of the shape, dtype and device that is to come back."),
    required=True,
    why="a vector of the shape, dtype and device that is to come back",
    positional=True,
)
KEY = Argument(
    *("key", "int | Key | None", "Randomness of this message; None: the operating system's."),
)
MEMORY = Argument(
    "memory",
    "MutableMapping[str, Tensor] | None",
    "Dict of this sender, the same one in every round, for what it has not sent.",
)
METHODS: tuple[tuple[str, Argument, tuple[Any, str], str], ...] = (
    ("encode", X, (bytes, "The message, whole bytes; `bits` counts what is information."), ""),
    (
        "decode",
        DATA,
        (Any, "The vector, in the form of ``like``."),
        "Return the vector that a server reads in the bytes of `encode`.",
    ),
    (
        "bits",
        X,
        (int, "Bits, without the zeros that fill the last byte."),
        "Count the bits of the message, encoded as by `encode`; a memory stays as it is.",
    ),
)


@dataclass(frozen=True)
class Coordinates(Network):
    """Stand-in for a network: layers that are compressed, and nothing that computes."""

    layers: tuple[tuple[int, ...], ...]
    classes: int = 1
    image: tuple[int, int, int] = (1, 1, 1)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each layer, all of them weights."""
        return {f"layer{i}": shape for i, shape in enumerate(self.layers)}

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Refuse: nothing here computes what a network answers."""
        raise NotImplementedError

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Return zeros, for a memory that has the shape of the weights."""
        return {name: torch.zeros(shape, device=device) for name, shape in self.shapes.items()}


class Codec:
    """Encoder and decoder of dense vectors, of one protocol.

    Parameters of the protocol are keywords of all three methods, and must be equal at both ends.
    """

    def __init__(self, name: str, cls: type[Protocol[Any]]) -> None:
        self.name = python_name(name)
        self.cls = cls
        self.promise = PROMISES.get(name)
        self.fields = codec_fields(cls)
        text = inspect.getdoc(cls) or f"Codec of {cls.__name__}."
        self.summary = text.partition("\n\n")[0]
        promise = "" if self.promise is None else f"\n\n{self.promise}"
        self.__doc__ = self.summary + promise + text.removeprefix(self.summary)
        for name, first, returns, words in METHODS:
            function = _method(getattr(self, f"_{name}"), name == "decode")
            more = promise.strip() if name == "encode" else ""
            label = f"{self.name}.{name}"
            described(function, label, cls, first, self.arguments(name), returns, more, words)
            setattr(self, name, function)

    encode: Callable[..., bytes]
    decode: Callable[..., Any]
    bits: Callable[..., int]

    def __repr__(self) -> str:
        return f"<codec {self.name}: encode, decode, bits>"

    def arguments(self, method: str) -> list[Argument]:
        """Return the keywords of a method."""
        if method == "decode":
            return [LIKE, *self.fields]
        return [*self.fields, KEY, *([MEMORY] if self.remembers else [])]

    @property
    def remembers(self) -> bool:
        """True if the codec can have a memory, at its defaults or with error feedback."""
        names = {field.name for field in self.fields}
        shared = shared_of(((1,),), torch.device("cpu"))
        return "error_feedback" in names or bool(self.cls().memory(shared))

    def _encode(self, x: Vector, keywords: dict[str, Any]) -> bytes:
        return self._packet("encode", x, keywords).data

    def _bits(self, x: Vector, keywords: dict[str, Any]) -> int:
        memory = keywords.get("memory")
        options = keywords if memory is None else keywords | {"memory": dict(memory)}
        return self._packet("bits", x, options).bits

    def _packet(self, method: str, x: Vector, keywords: dict[str, Any]) -> Packet:
        label = f"{self.name}.{method}"
        values = bound(label, self.arguments(method), keywords)
        protocol = self._protocol(label, values)
        vector, form = forms.read_vector(f"{label}(x)", x)
        row = vector.to(torch.float32)[None]
        require(f"{label}(x)", shown(vector), vector.is_floating_point(), "floats")
        shared = shared_of(form.sizes, row.device)
        memory = self._memory(label, protocol, shared, values.get("memory"))
        key = secrets.randbits(64) if values["key"] is None else values["key"]
        keys = [key_of(label, key)]
        with mended(label):
            payload, after = hooks.message(protocol, shared, row, keys, [memory])
            payload.check()
        if values.get("memory") is not None:
            values["memory"].update(after[0])
        return payload.encode()[0]

    def _decode(self, data: bytes, keywords: dict[str, Any]) -> Any:
        label = f"{self.name}.decode"
        values = bound(label, self.arguments("decode"), keywords)
        protocol = self._protocol(label, values)
        good = isinstance(data, bytes | bytearray | memoryview)
        require(f"{label}(data)", shown(data), good, "bytes")
        like, form = forms.read_vector(f"{label}(like=)", values["like"])
        spec = spec_of(protocol, form.sizes)
        try:
            payload = protocol.sends.decode_row(Packet.raw(bytes(data)), spec)
        except IllegalPayloadError as error:
            requirement = f"a message of {len(like)} floats"
            raise ConfigError(f"{label}(data) must be {requirement}: {error}") from error
        return form.row(payload.values()[0].to(like))

    def _protocol(self, label: str, values: dict[str, Any]) -> Protocol[Any]:
        names = {field.name for field in self.fields}
        params = checked_fields(label, self.cls, {k: v for k, v in values.items() if k in names})
        return self.cls(**params)

    def _memory(
        self,
        label: str,
        protocol: Protocol[Any],
        shared: Shared,
        memory: MutableMapping[str, Tensor] | None,
    ) -> dict[str, Tensor]:
        """Return the memory of a sender; `ConfigError` if one is needed and none was given."""
        start = protocol.memory(shared)
        if not start:
            requirement = "left out of a codec that does not remember"
            require(f"{label}(memory=)", memory, memory is None, requirement)
            return {}
        if memory is None:
            raise ConfigError(
                f"{label} remembers what it has not sent: give memory={{}}, the same dict in every "
                "round, or switch it off, such as by error_feedback=False"
            )
        if not isinstance(memory, MutableMapping):
            raise ConfigError(f"{label}(memory=) must be a dict, got {shown(memory)}")
        filled = {name: memory.get(name, blank) for name, blank in start.items()}
        for name, blank in start.items():
            value = filled[name]
            fits = isinstance(value, Tensor) and value.shape == blank.shape
            require(f"{label}(memory=)", name, fits, "of this vector")
        return filled


def codec(plugin: str | type[Protocol[Any]]) -> Codec:
    """Return the codec of a protocol, by the name of an installed one or by its class.

    >>> import torch
    >>> x = torch.tensor([3.0, -1.0, 0.5, 2.0])
    >>> topk = codec("topk")
    >>> topk.decode(topk.encode(x, k=0.5), x, k=0.5)
    tensor([3., 0., 0., 2.])

    Raises:
        UnknownPluginError: no installed protocol has the name.
        ConfigError: the protocol's messages are not compressed vectors.
    """
    cls: Any = registry.plugin("protocol", plugin) if isinstance(plugin, str) else plugin
    good = isinstance(cls, type) and issubclass(cls, Protocol) and dataclasses.is_dataclass(cls)
    require("codec", plugin, good, "an installed name, or a dataclass that inherits Protocol")
    return _codec(plugin if isinstance(plugin, str) else plugin.__name__, cls)


def refusal(cls: type[Protocol[Any]]) -> str | None:
    """Return why a protocol has no codec of plain vectors, or None."""
    protocol = cls()
    if cls.agreed is not None:
        return "a message says how one differs from the last, which the server remembers"
    why = misfit(protocol, shared_of(((3,), (5,)), torch.device("cpu")))
    if why is None and cls.message is DenseWeights.message and cls is not FedAvg:
        return "messages are those of fedavg"
    return why


def codec_fields(cls: type[Protocol[Any]]) -> list[Argument]:
    """Return the fields that a message depends on: those of training and of the server do not."""
    trained = {
        field.name for kind in (DenseWeights, SignVotes) for field in dataclasses.fields(kind)
    }
    return fields_of(cls, without=trained)


def shared_of(sizes: tuple[Any, ...], device: torch.device) -> Shared:
    """Return what both ends know of a vector: its layers."""
    layers = tuple(size if isinstance(size, tuple) else (size,) for size in sizes)
    return Shared(Coordinates(layers), SEED, device)


@lru_cache(maxsize=256)
def spec_of(protocol: Protocol[Any], sizes: tuple[int, ...]) -> Spec:
    """Return the public form of messages of vectors with these layers, the same for all data."""
    shared = shared_of(sizes, torch.device("cpu"))
    zeros = torch.zeros(1, sum(sizes))
    payload, _ = hooks.message(protocol, shared, zeros, [Key(0)], [protocol.memory(shared)])
    return payload.spec


@cache
def _codec(name: str, cls: Any) -> Codec:
    if (why := refusal(cls)) is not None:
        raise ConfigError(f"{python_name(name)} has no codec: {why}; play it in a run")
    return Codec(name, cls)


def _method(call: Callable[[Any, dict[str, Any]], Any], decodes: bool) -> Callable[..., Any]:
    if decodes:

        def decode(data: bytes, like: Any = None, **keywords: Any) -> Any:
            return call(data, keywords | {"like": like})

        return decode

    def encode(x: Any, **keywords: Any) -> Any:
        return call(x, keywords)

    return encode
