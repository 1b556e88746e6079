"""Error, bias, bits and time of a codec, measured on decoded messages."""

import dataclasses
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import torch
from scipy.special import stdtrit
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.core.devices import finish
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.sources import package_of
from fedbench.payload import same

LEVEL = 0.001  # probability that a codec without bias is called biased

Scale = Literal["kept", "fixed", "lost"]
_Cache = type(lru_cache(maxsize=1)(lambda: None))


@dataclass(frozen=True)
class Distortion:
    """Distortion relative to the input ``x``."""

    nmse: float  # mean of ``|x_hat - x|^2 / |x|^2`` over inputs and draws
    nmse_max: float  # largest of these
    bias: float  # ``|E x_hat - x| / |x|``, root mean square over inputs, by `bias_squared`
    biased: bool  # the bias differs significantly from 0
    bias_limit: float  # approximate smallest bias that would be significant
    gain: float  # mean of ``<x_hat, x> / |x|^2``


@dataclass(frozen=True)
class ErrorSums:
    """Sums over R messages ``x_hat_r`` of one ``x``, with errors ``e_r = x_hat_r - x``."""

    norm: float  # ``|x|^2``
    total: float  # ``|sum_r e_r|^2``
    squares: list[float]  # ``|e_r|^2``
    along: list[float]  # ``<e_r, x>``

    @classmethod
    def of(cls, x: Tensor, messages: Iterable[Tensor]) -> Self:
        """Accumulate ``x (d,)`` and batches ``x_hat (n, d)``, one at a time, in float64."""
        x = x.double()
        total = torch.zeros_like(x)
        squares = []
        along = []
        for row in (row for x_hat in messages for row in x_hat):
            error = row.double() - x
            total += error
            squares.append(float(error @ error))
            along.append(float(error @ x))
        return cls(float(x @ x), float(total @ total), squares, along)


def bias_squared(draws: ErrorSums) -> float:
    """Unbiased estimate of ``|b|^2`` with ``b = E[x_hat] - x``; it may be negative.

    The errors are independent and have mean ``b``, so ``E<e_r, e_q> = |b|^2`` for ``r != q``. The
    mean over those ``R (R - 1)`` pairs is ``(|sum_r e_r|^2 - sum_r |e_r|^2) / (R (R - 1))``: the
    square of the mean error minus the part that is noise.

    >>> bias_squared(ErrorSums(norm=1.0, total=9.0, squares=[1.0, 4.0], along=[]))  # errors 1, 2
    2.0
    """
    r = len(draws.squares)
    return (draws.total - math.fsum(draws.squares)) / (r * (r - 1))


def distortion(inputs: Sequence[ErrorSums]) -> Distortion:
    """Summarise the distortion over all inputs.

    A one-sided t-test at `LEVEL` decides whether the bias is 0: of the mean over inputs of
    `bias_squared` over the mean of ``|e_r|^2``, the share of the squared error that is bias.
    """
    nmses = [square / draws.norm for draws in inputs for square in draws.squares]
    biases = [(draws, bias_squared(draws)) for draws in inputs]
    shares = [bias / (statistics.fmean(draws.squares) or 1.0) for draws, bias in biases]
    bias = statistics.fmean(bias / draws.norm for draws, bias in biases)
    nmse = statistics.fmean(nmses)
    count = len(inputs)
    limit = stdtrit(count - 1, 1 - LEVEL) * statistics.stdev(shares) / math.sqrt(count)
    return Distortion(
        nmse=nmse,
        nmse_max=max(nmses),
        bias=math.sqrt(max(0.0, bias)),
        biased=bool(statistics.fmean(shares) > limit),
        bias_limit=math.sqrt(limit * nmse),
        gain=1 + statistics.fmean(dot / draws.norm for draws in inputs for dot in draws.along),
    )


@dataclass(frozen=True, eq=False)
class MeasuredCodec:
    """A protocol's compression of dense updates."""

    name: str  # the protocol as typed
    protocol: Protocol[Any]


@dataclass(frozen=True)
class CodecPlan:
    """Number of inputs and messages per measurement."""

    seeds: int = 10  # inputs of each kind
    draws: int = 2  # fewest messages of each input, each with its own key
    clients: int = 1  # messages that are compressed, encoded and decoded at once

    def __post_init__(self) -> None:
        require("--seeds", self.seeds, self.seeds >= 3, ">= 3 to tell bias from noise")
        require("--draws", self.draws, self.draws >= 2, ">= 2 to tell bias from noise")
        require("--clients", self.clients, self.clients >= 1, ">= 1")
        for name, value in dataclasses.asdict(self).items():
            require(f"--{name}", value, value <= 1000, "<= 1000")


@dataclass(frozen=True)
class CodecResult:
    """Measurements of one codec on one kind of input."""

    codec: str
    kind: str  # of input
    bits: float  # mean per parameter
    encode: float  # median ms per million parameters of a client, from update to bytes
    decode: float  # the same, from bytes to `values`
    error_feedback: bool  # clients have a memory; it was empty in the measurement
    scale: Scale  # what a message preserves of the length of an update, see `scale_of`
    distortion: Distortion | None  # None if the scale is lost


@dataclass(frozen=True, eq=False)
class SentMessages:
    """Decoded messages, their bits and times in seconds."""

    values: Tensor  # decoded, ``(n, d)``
    bits: list[int]  # of each message
    encode: float  # from updates to bytes
    decode: float  # from bytes to ``values``


def send(
    protocol: Protocol[Any], shared: Shared, x: Tensor, keys: Sequence[Key], strict: bool = False
) -> SentMessages:
    """Compress ``x (n, d)``, encode and decode; if ``strict``, assert that decoding inverts it.

    Caches that the encoder filled are emptied: the server has to draw a seed's noise itself.
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
    packages = {"fedbench", package_of(type(protocol))}
    modules = [m for name, m in sys.modules.items() if name.partition(".")[0] in packages]
    return [value for m in modules for value in vars(m).values() if isinstance(value, _Cache)]


def _now(device: torch.device) -> float:
    finish(device)
    return time.perf_counter()


def scale_of(protocol: Protocol[Any], shared: Shared, x: Tensor) -> Scale:
    """Compare the length that a message implies with that of ``x (d,)``.

    ``kept``: the message of ``2 x`` implies twice the length. ``lost``: ``x`` times 65536 or its
    inverse is the same message. ``fixed``: neither. Floating point is exact for these factors.
    """
    key = [Key(0).fold("bench", "scale")]

    def arrived(factor: float) -> Tensor:
        return send(protocol, shared, factor * x[None], key).values

    once = arrived(1)
    length = float(once.norm())
    if length > 0 and float((arrived(2) - 2 * once).norm()) <= 1e-3 * length:
        return "kept"
    return "lost" if all(torch.equal(arrived(f), once) for f in (2**-16, 2**16)) else "fixed"


def measure(
    codec: MeasuredCodec,
    kind: str,
    inputs: Callable[[int], Tensor],
    shared: Shared,
    plan: CodecPlan,
    scale: Scale,
) -> CodecResult:
    """Measure one codec on one kind of input, on decoded messages; the first is not timed.

    ``inputs`` is a function from a seed, from 0, to an update ``(d,)``; ``scale`` is `scale_of`.
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
        draws.append(ErrorSums.of(x, decoded(x, s)))
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
