"""Error, bias, bits and time of a codec, measured on decoded messages."""

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
    """Number of inputs and messages per measurement.

    Args:
        seeds: Inputs of each kind.
        draws: Fewest messages of each input, each with its own key.
        clients: Messages that are compressed, encoded and decoded at once.
    """

    seeds: int = 10
    draws: int = 2
    clients: int = 1

    def __post_init__(self) -> None:
        require("--seeds", self.seeds, self.seeds >= 3, ">= 3 to tell bias from noise")
        require("--draws", self.draws, self.draws >= 2, ">= 2 to tell bias from noise")
        require("--clients", self.clients, self.clients >= 1, ">= 1")
        for name, value in dataclasses.asdict(self).items():
            require(f"--{name}", value, value <= 1000, "<= 1000")


@dataclass(frozen=True)
class CodecResult:
    """Measurements of one codec on one kind of input.

    Args:
        codec: Name of the codec.
        kind: Kind of input.
        bits: Mean bits per parameter.
        encode: Median milliseconds per million parameters of a client, from update to bytes.
        decode: The same, from bytes to `values`.
        error_feedback: True if clients have a memory; it was empty in the measurement.
        scale: What a message preserves of the length of an update, see `scale_of`.
        distortion: Distortion; None if the scale is lost.
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
    """Decoded messages, their bits and times.

    Args:
        values: Decoded values ``(n, d)``.
        bits: Bits of each message.
        encode: Seconds from updates to bytes.
        decode: Seconds from bytes to ``values``.
    """

    values: Tensor
    bits: list[int]
    encode: float
    decode: float


def send(
    protocol: Protocol[Any], shared: Shared, x: Tensor, keys: Sequence[Key], strict: bool = False
) -> SentMessages:
    """Compress ``x (n, d)``, encode and decode; if ``strict``, assert that decoding inverts it.

    A cache that the encoder filled (with the noise of a seed, say) is emptied before decoding is
    timed, since the server would have to draw the noise itself.
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
    """Return every ``lru_cache`` of fedbench and of the protocol's package."""
    packages = {"fedbench", type(protocol).__module__.partition(".")[0]}
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] in packages]
    return [value for m in modules for value in vars(m).values() if isinstance(value, _Cache)]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def scale_of(protocol: Protocol[Any], shared: Shared, x: Tensor) -> Scale:
    """Compare the length that a message implies with that of ``x (d,)``.

    ``kept``: the message of ``2 x`` implies twice the length. ``lost``: ``x`` times 65536 or its
    inverse is the same message. ``fixed``: neither; the distortion then depends on the length of
    an update. All factors are powers of two, for which floating point is exact.
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
    """Measure one codec on one kind of input, on decoded messages; the first is not timed.

    Args:
        codec: The codec.
        kind: Name of the inputs.
        inputs: Function from a seed, from 0, to an update ``(d,)``.
        shared: The network.
        plan: Number of inputs and messages.
        scale: Scale of the codec, see `scale_of`.
    """
    protocol = codec.protocol
    sent: list[SentMessages] = []

    def decoded(x: Tensor, s: int) -> Iterator[Tensor]:
        rows = x.repeat(plan.clients, 1)
        for batch in range(-(-plan.draws // plan.clients)):
            keys = [Key(0).fold("bench", s, batch, i) for i in range(plan.clients)]
            messages = send(protocol, shared, rows, keys, strict=not sent)
            sent.append(dataclasses.replace(messages, values=x[:0]))
            yield messages.values

    draws = []
    for s in range(plan.seeds):
        x = inputs(s).to(shared.device)
        draws.append(Draws.of(x, decoded(x, s)))
    d = shared.layout.d
    per_million = 1e3 / (plan.clients * d / 1e6)
    return CodecResult(
        codec=codec.name,
        kind=kind,
        bits=statistics.fmean(bits for messages in sent for bits in messages.bits) / d,
        encode=statistics.median(messages.encode for messages in sent[1:]) * per_million,
        decode=statistics.median(messages.decode for messages in sent[1:]) * per_million,
        error_feedback=bool(protocol.memory(shared)),
        scale=scale,
        distortion=None if scale == "lost" else distortion(draws),
    )
