"""Error, bias, bits and time of a codec, all of them measured on messages that were decoded."""

import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import same
from fedbench.probes.codec_choice import Codec
from fedbench.probes.distortion import Distortion, Draws, distortion

Scale = Literal["kept", "fixed", "lost"]
_Cache = type(lru_cache(maxsize=1)(lambda: None))


@dataclass(frozen=True)
class CodecPlan:
    """How often a codec is asked.

    Args:
        seeds: Inputs of each kind, which draws of its randomness go with.
        draws: Messages of each input, with other keys; at least so many.
        clients: Messages that are compressed, encoded and decoded at once.
    """

    seeds: int = 10
    draws: int = 2
    clients: int = 1

    def __post_init__(self) -> None:
        require("--seeds", self.seeds, self.seeds >= 3, ">= 3 to tell bias from noise")
        require("--draws", self.draws, self.draws >= 2, ">= 2 to tell bias from noise")
        require("--clients", self.clients, self.clients >= 1, ">= 1")
        for name in ("seeds", "draws", "clients"):
            require(f"--{name}", getattr(self, name), getattr(self, name) <= 1000, "<= 1000")


@dataclass(frozen=True)
class CodecResult:
    """One codec on one kind of input.

    Args:
        codec: Its name.
        kind: Of input.
        bits: Per parameter, mean.
        encode: Median milliseconds per million parameters of a client, from update to bytes.
        decode: The same, from bytes to `values`.
        error_feedback: Does a client remember? It was measured with an empty memory.
        scale: What a message says of the length of an update, see `scale_of`.
        distortion: None where the scale is lost: there is nothing to compare.
    """

    codec: str
    kind: str
    bits: float
    encode: float
    decode: float
    error_feedback: bool
    scale: Scale
    distortion: Distortion | None


@dataclass(frozen=True, eq=False)
class SentMessages:
    """Messages on the other end of the wire.

    Args:
        values: ``(n, d)``, decoded.
        bits: Of each.
        encode: Seconds, from updates to bytes.
        decode: Seconds, from bytes to ``values``.
    """

    values: Tensor
    bits: list[int]
    encode: float
    decode: float


def send(
    protocol: Protocol[Any], shared: Shared, x: Tensor, keys: Sequence[Key], strict: bool = False
) -> SentMessages:
    """Compress ``x (n, d)``, encode, decode; if ``strict``, hold what arrived to what was sent.

    A cache that the encoder filled with numbers of this message (the noise of its seed, say) is
    emptied before the server's clock starts: the server would have to draw them.
    """
    memory = [protocol.memory(shared) for _ in keys]
    missed = {cache: cache.cache_info().misses for cache in _caches(protocol)}
    start = _now(shared.device)
    payload, _ = protocol.message(shared, x, keys, memory)
    packets = payload.encode()
    encoded = _now(shared.device)
    for cache, misses in missed.items():
        if cache.cache_info().misses > misses:
            cache.cache_clear()
    arrived = _now(shared.device)
    decoded, accepted = type(payload).decode(packets, payload.spec, shared.device)
    assert decoded is not None, "own bytes must decode"
    values = decoded.values()
    end = _now(shared.device)
    assert bool(accepted.all()), "own bytes must decode"
    assert not strict or same(decoded, payload), "decode must invert encode"
    return SentMessages(values, [packet.bits for packet in packets], encoded - start, end - arrived)


def _caches(protocol: Protocol[Any]) -> list[Any]:
    """Every ``lru_cache`` of ours and of the protocol's package."""
    packages = {"fedbench", type(protocol).__module__.partition(".")[0]}
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] in packages]
    return [value for m in modules for value in vars(m).values() if isinstance(value, _Cache)]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def scale_of(protocol: Protocol[Any], shared: Shared, x: Tensor) -> Scale:
    """Compare the length that a message implies with that of ``x (d,)``.

    ``kept``: that of ``2 x`` stands for twice as much. ``lost``: 65536 times more or less are the
    same message. ``fixed``: neither; what is lost then depends on how long an update is. Powers of
    two, since floating point is exact for them.
    """
    key = [Key(0).fold("bench", "scale")]

    def arrived(factor: float) -> Tensor:
        return send(protocol, shared, factor * x[None], key).values

    once = arrived(1)
    length = float(once.norm())
    if length > 0 and float((arrived(2) - 2 * once).norm()) <= 1e-3 * length:
        return "kept"
    others = (arrived(factor) for factor in (2**-16, 2**16))
    return "lost" if all(torch.equal(other, once) for other in others) else "fixed"


def measure(
    codec: Codec,
    kind: str,
    inputs: Callable[[int], Tensor],
    shared: Shared,
    plan: CodecPlan,
    scale: Scale,
) -> CodecResult:
    """One codec on one kind of input. Every draw goes over the wire; the first is not timed.

    Args:
        codec: What is measured.
        kind: A name for the inputs.
        inputs: ``(d,)`` of each seed, from 0.
        shared: The network.
        plan: How often.
        scale: Of the codec, see `scale_of`.
    """
    protocol = codec.protocol
    sent: list[SentMessages] = []

    def messages(x: Tensor, s: int) -> Iterator[Tensor]:
        rows = x.repeat(plan.clients, 1)
        for batch in range(-(-plan.draws // plan.clients)):
            keys = [Key(0).fold("bench", s, batch, i) for i in range(plan.clients)]
            one = send(protocol, shared, rows, keys, strict=not sent)
            sent.append(dataclasses.replace(one, values=x[:0]))
            yield one.values

    draws = []
    for s in range(plan.seeds):
        x = inputs(s).to(shared.device)
        draws.append(Draws.of(x, messages(x, s)))
    d = shared.layout.d
    per_million = 1e3 / (plan.clients * d / 1e6)
    return CodecResult(
        codec=codec.name,
        kind=kind,
        bits=statistics.fmean(bits for one in sent for bits in one.bits) / d,
        encode=statistics.median(one.encode for one in sent[1:]) * per_million,
        decode=statistics.median(one.decode for one in sent[1:]) * per_million,
        error_feedback=bool(protocol.memory(shared)),
        scale=scale,
        distortion=None if scale == "lost" else distortion(draws),
    )
