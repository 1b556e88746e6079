"""Keyed random streams: the same numbers in every order, device and torch version.

A `Key` names a stream by folding words and integers into 64 bits; draw ``i`` of a stream is a
function of ``(key, i)`` alone, computed in exact integer arithmetic: by NumPy on a CPU, by torch on
an accelerator and under ``vmap``, where a key holds one seed per client.

Such a key is hashed only when something is drawn, and several at once where they are `branches`.

Folding can be undone, so it is for names inside one plug-in. Every key that a plug-in gets comes
from a `Secret`, one way: it leads neither back to the run nor to another plug-in's draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.core.copies import copied_to
from fedbench.core.devices import accelerated
from fedbench.core.words import MASK, shift_right, signed, siphash

Words = np.ndarray[tuple[int], np.dtype[np.uint64]]
Floats = np.ndarray[tuple[int], np.dtype[np.float32]]

_GAMMA = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio, made odd
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_BLOCK = 1 << 15  # draws computed at once in NumPy, so that temporaries stay in cache


def _mix_int(z: int) -> int:
    for shift, factor in _MIX:
        z = (z ^ (z >> shift)) * factor & MASK
    return z ^ (z >> 31)


def _blocks(seed: int, count: int, skip: int, shift: int = 0) -> Iterator[tuple[slice, Words]]:
    """Yield the draws of a stream ``>> shift``, a block at a time, and the places of each block.

    All blocks lie in one buffer: a block is to be read before the next one.
    """
    draws = np.empty(min(count, _BLOCK), dtype=np.uint64)
    shifted = np.empty_like(draws)
    for start in range(0, count, _BLOCK):
        z = draws[: count - start]
        moved = shifted[: count - start]
        np.add(_steps()[: len(z)], np.uint64(seed + (skip + start) * _GAMMA & MASK), out=z)
        for distance, factor in _MIX:
            z ^= np.right_shift(z, np.uint64(distance), out=moved)
            z *= np.uint64(factor)
        if shift < 33:  # a number of 33 bits changes none of the others
            z ^= np.right_shift(z, np.uint64(31), out=moved)
        if shift:
            z >>= np.uint64(shift)
        yield slice(start, start + len(z)), z


def _uniform_blocks(seed: int, count: int, skip: int = 0) -> Iterator[tuple[slice, Floats]]:
    """Yield the numbers of `Key.uniform`, a block at a time, and the places of each block."""
    for places, draws in _blocks(seed, count, skip, 40):
        numbers = draws.view(np.int64).astype(np.float32)  # a signed number is quicker to convert
        numbers *= np.float32(2.0**-24)
        yield places, numbers


@cache
def _steps() -> Words:
    """Return the multiples of gamma that the draws of a block add to the seed."""
    return np.arange(1, _BLOCK + 1, dtype=np.uint64) * np.uint64(_GAMMA)


def _mix_torch(z: Tensor) -> Tensor:
    (first, factor), (second, other) = _MIX
    z = (z ^ shift_right(z, first)).mul_(signed(factor))  # from here on a tensor of its own
    z = z.bitwise_xor_(shift_right(z, second)).mul_(signed(other))
    return z.bitwise_xor_(shift_right(z, 31))


@lru_cache(maxsize=1 << 16)
def _word(name: str | int) -> int:
    """Hash a name to 64 bits; ``1`` and ``"1"`` differ."""
    return int.from_bytes(blake2b(repr(name).encode(), digest_size=8).digest(), "little")


@lru_cache(maxsize=64)
def _words(names: tuple[str | int, ...], device: torch.device) -> Tensor:
    """Return ``(len(names),)`` int64 on the device: the hash of each name."""
    words = np.array([_word(name) for name in names], dtype=np.uint64).view(np.int64)
    return copied_to(torch.from_numpy(words), device)


@lru_cache(maxsize=64)  # more than a network has layers, or a recorded step would copy them
def _counters(counts: tuple[int, ...], device: torch.device) -> Tensor:
    """Return the counters of several streams of these lengths, concatenated."""
    counters = np.concatenate([np.arange(1, count + 1, dtype=np.uint64) for count in counts])
    counters *= np.uint64(_GAMMA)
    return copied_to(torch.from_numpy(counters.view(np.int64)), device)


@cache
def _gaussian_table(device: torch.device) -> Tensor:
    from scipy.special import ndtri

    table = ndtri((np.arange(1 << 16) + 0.5) / (1 << 16)).astype(np.float32)
    return copied_to(torch.from_numpy(table), device)


def _folded(seed: Tensor, word: int | Tensor) -> Tensor:
    """Fold one word into a seed, or each of several words."""
    return _mix_torch(_mix_torch(seed + signed(_GAMMA)) ^ word)


class _Quarters(torch.autograd.Function):
    """Each 64-bit word as four numbers of 16 bits, in float32.

    Before torch 2.13 ``vmap`` has no rule for a view in another type, so it is given here.
    """

    @staticmethod
    def forward(words: Tensor) -> Tensor:
        return words.view(torch.uint16).to(torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], words: Tensor) -> tuple[Tensor, int]:
        return _quarters(words.movedim(in_dims[0], 0).contiguous()), 0


def _quarters(words: Tensor) -> Tensor:
    """Return ``(..., 4 k)`` float32 of the 16-bit parts of ``(..., k)`` int64, the lowest first."""
    quarters: Tensor = _Quarters.apply(words)  # type: ignore[no-untyped-call]
    return quarters


@dataclass(frozen=True)
class Secret:
    """Root of a run's keys, which are derived from it one way, by name; no plug-in gets one.

    It is a function of the run's seed: whoever guesses that can do what the harness does.
    """

    root: bytes = field(repr=False)  # 32 bytes

    @classmethod
    def of(cls, seed: int, purpose: str) -> Secret:
        """Return the secret of a run's ``seed`` for a purpose."""
        name = repr((purpose, seed)).encode()
        return cls(blake2b(name, digest_size=32, person=b"fedbench").digest())

    def key(self, *names: str | int) -> Key:
        """Return the key of a purpose: BLAKE2b of the names under this secret."""
        return Key(int.from_bytes(self._hash(names, 8), "little"))

    def derive(self, *names: str | int) -> Secret:
        """Return the secret of a part of the run, which leads to that part's keys only."""
        return Secret(self._hash(names, 32))

    def _hash(self, names: tuple[str | int, ...], size: int) -> bytes:
        """Hash to ``size`` bytes; hashes of different sizes are independent."""
        return blake2b(repr(names).encode(), key=self.root, digest_size=size).digest()


@dataclass(frozen=True, eq=False)
class Key:
    """Name of a random stream: SplitMix64, whose output ``i`` mixes ``seed + (i + 1) * gamma``.

    References:
        Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014,
        https://doi.org/10.1145/2660193.2660195, Figure 17 (``mix64variant13`` in its constants).
    """

    seed: int | Tensor  # 64 bits; an int64 tensor with no dimensions under ``vmap``

    @property
    def stacked(self) -> bool:
        """True if it holds a tensor, as under ``vmap``: one seed per client."""
        return isinstance(self.seed, Tensor)

    def fold(self, *names: str | int) -> Key:
        """Return the stream named by this one and ``names``, in order; it leads back to this one.

        >>> Key(0).fold("noise", 3).seed == Key(0).fold("noise").fold(3).seed
        True
        """
        if self.stacked:
            return _FoldedKey(partial(self._hashed, names))
        seed = self.seed
        assert isinstance(seed, int)
        for name in names:
            seed = _mix_int(_mix_int((seed + _GAMMA) & MASK) ^ _word(name))
        return Key(seed)

    def _hashed(self, names: Sequence[str | int]) -> Tensor:
        """Return the seed of `fold`, of a key that holds a tensor."""
        seed = self.seed
        assert isinstance(seed, Tensor)
        for name in names:
            seed = _folded(seed, signed(_word(name)))
        return seed

    def branches(self, names: Sequence[str | int]) -> list[Key]:
        """Return the streams ``fold(name)``; under ``vmap`` they are hashed in one pass.

        >>> [key.seed == Key(0).fold(i).seed for i, key in enumerate(Key(0).branches(range(2)))]
        [True, True]
        """
        if not self.stacked:
            return [self.fold(name) for name in names]

        @cache
        def seeds() -> tuple[Tensor, ...]:
            seed = self.seed
            assert isinstance(seed, Tensor)
            return _folded(seed, _words(tuple(names), seed.device)).unbind()

        return [_FoldedKey(partial(_entry, seeds, i)) for i in range(len(names))]

    def public(self, *names: str | int) -> Key:
        """Return a stream whose seed may travel: it does not lead back to this key as `fold` does.

        It is SipHash-2-4 of the names under this key, the same with and without ``vmap``.
        """
        return Key(siphash(self.seed, 0, [_word(name) for name in names]))

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the seed as an int64 tensor without dimensions, to be stacked over clients."""
        if isinstance(self.seed, Tensor):
            return self.seed.to(device)
        return torch.full((), signed(self.seed), dtype=torch.int64, device=device)

    def _of_numpy(self, device: torch.device | str) -> int | None:
        """Return the seed where NumPy draws, which is on a CPU and outside of ``vmap``."""
        single = isinstance(self.seed, int) and not accelerated(torch.device(device))
        return self.seed if single else None  # type: ignore[return-value]

    def bits(self, count: int, device: torch.device | str = "cpu", skip: int = 0) -> Tensor:
        """Draw ``(count,)`` int64 whose 64 bits are uniform, the first ``skip`` left out.

        A stacked key leaves none out.
        """
        seed = self._of_numpy(device)
        if seed is not None:
            out = np.empty(count, dtype=np.uint64)
            for places, draws in _blocks(seed, count, skip):
                out[places] = draws
            return torch.from_numpy(out.view(np.int64))
        if isinstance(self.seed, Tensor):
            assert not skip
            stacked = self.seed.to(device)
            return _mix_torch(_counters((count,), stacked.device) + stacked)
        return self._drawn(torch.arange(skip + 1, skip + count + 1, device=device))

    def _drawn(self, numbers: Tensor) -> Tensor:
        """Return the draws of these numbers, from 1, which are written over; in torch."""
        assert isinstance(self.seed, int)
        return _mix_torch(numbers.mul_(signed(_GAMMA)).add_(signed(self.seed)))

    def uniform(self, *shape: int, device: torch.device | str = "cpu", skip: int = 0) -> Tensor:
        """Draw float32 in [0, 1), multiples of 2**-24: exact, so equal on every device.

        Rows of a matrix are the same when they are drawn a few at a time, with those before them
        left out:

        >>> torch.equal(Key(0).uniform(1, 3, skip=3), Key(0).uniform(2, 3)[1:])
        True
        """
        count = math.prod(shape)
        seed = self._of_numpy(device)
        if seed is not None:
            out = np.empty(count, dtype=np.float32)
            for places, numbers in _uniform_blocks(seed, count, skip):
                out[places] = numbers
            return torch.from_numpy(out).reshape(shape)
        draws = shift_right(self.bits(count, device, skip), 40)
        return draws.to(torch.float32).mul_(2.0**-24).reshape(shape)

    def integers(self, below: int, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw ``(count,)`` int64 in ``0 .. below - 1``, equally likely to ``below * 2**-32``.

        Exact, so equal on every device; ``below`` is at most 2**31.
        """
        return (shift_right(self.bits(count, device), 32) * below) >> 32

    def shorts(self, *shape: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw integers in [0, 2**16) as float32, four from each 64-bit draw."""
        count = math.prod(shape)
        words = self.bits(-(-count // 4), device)
        if self._of_numpy(words.device) is not None:
            parts = words.numpy().view(np.uint16)[:count].astype(np.float32)
            return torch.from_numpy(parts).reshape(shape)
        return _quarters(words)[:count].reshape(shape)

    def sampled(self, count: int, rate: float) -> Tensor:
        """Draw ``(count,)`` bool: True with probability ``rate``, rounded down to 2**-24.

        Down, since an accountant of sampling promises nothing of a larger rate than it is told.

        >>> rate = float(Key(0).uniform(1)) + 0.75 * 2**-24
        >>> Key(0).uniform(1) < rate, Key(0).sampled(1, rate)
        (tensor([True]), tensor([False]))
        """
        return self.uniform(count) < math.floor(min(rate, 1.0) * 2**24) / 2**24

    def coins(self, p: Tensor) -> Tensor:
        """Draw a bool of the shape of ``p``: True with probability ``p``, rounded up to 2**-16.

        The cheapest Bernoulli sample, for masks that are drawn in every training step.
        """
        seed = self._of_numpy(p.device)
        if seed is None or p.dtype != torch.float32:
            return self.shorts(*p.shape, device=p.device) < p * 65536
        chances = p.detach().reshape(-1).numpy()
        out = np.empty(len(chances), dtype=bool)
        scaled = np.empty(min(len(chances), 4 * _BLOCK), dtype=np.float32)
        for places, draws in _blocks(seed, -(-len(chances) // 4), 0):
            block = slice(4 * places.start, min(4 * places.stop, len(chances)))
            size = block.stop - block.start
            with np.errstate(over="ignore"):  # any large number is above all draws
                least = np.multiply(chances[block], np.float32(65536), out=scaled[:size])
            np.less(draws.view(np.uint16)[:size], least, out=out[block])
        return torch.from_numpy(out).reshape(p.shape)

    def bernoulli(self, p: Tensor) -> Tensor:
        """Draw a bool of the shape of ``p``: True with probability ``p``, rounded up to 2**-32.

        A draw of 32 bits is compared with ``2**32 p``: its highest byte, eight of which are in a
        64-bit draw, and only where that decides nothing the 24 bits of another stream.
        """
        seed = self._of_numpy(p.device)
        if seed is None or p.dtype != torch.float32:
            return self._bernoulli(p)
        chances = p.detach().reshape(-1).numpy()
        low = chances.min(initial=0)
        high = chances.max(initial=0)
        if not 0 <= low <= high <= 1:  # also where one is NaN
            return self._bernoulli(p)
        out = np.empty(len(chances), dtype=bool)
        scaled = np.empty(min(len(chances), 8 * _BLOCK), dtype=np.float32)
        whole = np.empty(len(scaled), dtype=np.uint8)
        ties = []
        for places, draws in _blocks(seed, -(-len(chances) // 8), 0):
            block = slice(8 * places.start, min(8 * places.stop, len(chances)))
            size = block.stop - block.start
            least = whole[:size]
            np.multiply(chances[block], np.float32(256), out=scaled[:size])
            if high == 1:
                np.minimum(scaled[:size], np.float32(255), out=scaled[:size])
            np.copyto(least, scaled[:size], casting="unsafe")
            first = draws.view(np.uint8)[:size]
            np.less(first, least, out=out[block])
            ties.append(np.flatnonzero(first == least) + block.start)
        tied = np.concatenate(ties) if ties else np.empty(0, dtype=np.intp)
        rest = chances[tied] * np.float32(256)
        rest -= np.minimum(np.floor(rest), np.float32(255))
        lower = self.fold("lower")._drawn(torch.from_numpy(tied + 1))
        out[tied] = shift_right(lower, 40).numpy() < rest * np.float32(2.0**24)
        return torch.from_numpy(out).reshape(p.shape)

    def _bernoulli(self, p: Tensor) -> Tensor:
        """Draw what `bernoulli` does, all bits of all draws: in torch, without a wait."""
        scaled = (p if p.dtype == torch.float64 else p.float()).reshape(-1) * 256
        whole = scaled.floor().clamp(0, 255)
        shifts = torch.arange(0, 64, 8, device=p.device)
        words = self.bits(-(-len(scaled) // 8), p.device)
        first = ((words[:, None] >> shifts) & 255).reshape(-1)[: len(scaled)]
        lower = shift_right(self.fold("lower").bits(len(scaled), p.device), 40)
        decides = lower < (scaled - whole) * 2.0**24
        return ((first < whole) | ((first == whole) & decides)).reshape(p.shape)

    def signs(self, *shape: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw float32 in {-1, +1}, each with probability 1/2."""
        draws = shift_right(self.bits(math.prod(shape), device), 63)
        return (draws * 2 - 1).float().reshape(shape)

    def flips(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw ``(count,)`` float32 in {-1, +1} like `signs`, 64 from each 64-bit draw."""
        words = self.bits(-(-count // 64), device)
        if self._of_numpy(words.device) is not None:
            data = words.numpy().astype("<i8", copy=False).view(np.uint8)
            drawn = np.unpackbits(data, count=count, bitorder="little")
            return torch.from_numpy(drawn.astype(np.float32)).mul_(2).sub_(1)
        shifts = torch.arange(64, device=device)
        bits = ((words[:, None] >> shifts) & 1).reshape(-1)[:count]
        return bits.to(torch.float32).mul_(2).sub_(1)

    def normal(self, *shape: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw standard Gaussian float32 from a table of the 2**16 mid-quantiles, so ``|x| < 4.4``.

        Without a table log and cos would differ by device in the last bit.
        """
        index = shift_right(self.bits(math.prod(shape), device), 48)
        return _gaussian_table(index.device)[index].reshape(shape)

    def gaussian(self, *shape: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw standard Gaussian float64 with its tails, to 12.4: for privacy, where tails count.

        Quantiles of uniforms, which may differ by device in the last bit. Uniforms have 52 bits;
        those within 2**-40 of 0 or 1, one draw of 5e11, have all 64 and 52 of another stream.
        """
        words = self.bits(math.prod(shape), device)
        p = shift_right(words, 12).to(torch.float64).add_(0.5).mul_(2.0**-52)
        if self._of_numpy(words.device) is not None and len(words):  # elsewhere this would wait
            low, high = torch.aminmax(p)
            if low > 2.0**-40 and high < 1 - 2.0**-40:
                usual: Tensor = torch.special.ndtri(p)
                return usual.reshape(shape)
        ends = words ^ (words >> 63)  # how far the 64 bits are from all 0 or all 1
        finer = shift_right(self.fold("tail").bits(len(words), words.device), 12)
        finer = finer.to(torch.float64).add_(0.5).mul_(2.0**-52).add_(ends).mul_(2.0**-64)
        x = torch.special.ndtri(torch.where(ends < 1 << 24, finer, torch.minimum(p, 1 - p)))
        return torch.where(words < 0, -x, x).reshape(shape)

    def permutation(self, count: int, device: torch.device | str = "cpu") -> Tensor:
        """Draw a uniform permutation ``(count,)`` int64 of ``0 .. count - 1``."""
        return torch.argsort(self.bits(count, device), stable=True)

    def numpy(self) -> np.random.Generator:
        """Make a NumPy generator for draws that need one (gamma, Dirichlet): CPU only."""
        if isinstance(self.seed, Tensor):
            raise TypeError("a key that holds one seed per client has no NumPy generator")
        return np.random.Generator(np.random.Philox(self.seed))


class _FoldedKey(Key):
    """Key folded from one that holds a tensor; it is hashed when something is drawn from it.

    Under ``vmap`` a hash is two dozen kernels, and most keys are handed on without a draw.
    """

    stacked = True

    def __init__(self, hashed: Callable[[], Tensor]) -> None:
        self._hash = hashed

    @cached_property
    def seed(self) -> Tensor:
        return self._hash()


def _entry(seeds: Callable[[], Sequence[Tensor]], i: int) -> Tensor:
    """Return the seed of one of several branches, which are hashed together."""
    return seeds()[i]


def seeds_of(keys: Sequence[Key], device: torch.device | str = "cpu") -> Tensor:
    """Return ``(n,)`` int64: the seeds of several keys, sent to the device in one copy."""
    numbers = [key.seed for key in keys if isinstance(key.seed, int)]
    if len(numbers) < len(keys):
        return torch.stack([key.tensor(device) for key in keys])
    seeds = torch.tensor([signed(number) for number in numbers], dtype=torch.int64)
    return copied_to(seeds, device)


def coins(keys: Sequence[Key], chances: Sequence[Tensor]) -> list[Tensor]:
    """Return ``[key.coins(p), ...]`` for each key and its ``p``; under ``vmap`` from one draw."""
    pairs = list(zip(keys, chances, strict=True))
    if not all(key.stacked for key in keys) or len(keys) < 2:
        return [key.coins(p) for key, p in pairs]
    device = chances[0].device
    counts = tuple(-(-p.numel() // 4) for p in chances)
    seeds = [key.tensor(device).expand(count) for key, count in zip(keys, counts, strict=True)]
    words = _mix_torch(_counters(counts, device) + torch.cat(seeds))
    uniform = _quarters(words).mul_(2.0**-16)
    draws = torch.split(uniform, [4 * count for count in counts])
    return [draw[: p.numel()].reshape(p.shape) < p for draw, p in zip(draws, chances, strict=True)]
