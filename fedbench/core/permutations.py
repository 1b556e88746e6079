"""Keyed permutations, and draws without replacement, also of more numbers than fit in a list."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.core.rng import Key

MAX_LISTED = 1 << 17  # numbers of a permutation that is a list
FEISTEL_ROUNDS = 8


class Permutation(ABC):
    """A bijection of ``0 .. count - 1``: ``permutation[place]`` is the number at a place."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many numbers it permutes."""

    @abstractmethod
    def __getitem__(self, places: Any) -> Tensor:
        """Return the numbers at some places, int64 of the same shape."""

    @abstractmethod
    def places(self, numbers: Tensor | Sequence[int]) -> Tensor:
        """Return the places of some numbers ``(n,)``, int64."""


@dataclass(frozen=True, eq=False)
class Listed(Permutation):
    """A permutation that is written out, ``order (count,)`` int64."""

    order: Tensor

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, places: Any) -> Tensor:
        return self.order[places]

    def places(self, numbers: Tensor | Sequence[int]) -> Tensor:
        """Return the places of some numbers ``(n,)``: the inverse is listed, too."""
        return self._inverse[torch.as_tensor(numbers, dtype=torch.int64)]

    @cached_property
    def _inverse(self) -> Tensor:
        return self.order.argsort()


@dataclass(frozen=True, eq=False)
class Feistel(Permutation):
    """A permutation that is computed: eight passes over the two halves of a number's bits.

    A pass maps halves ``(a, b)`` to ``(b, a xor F(b))``, which can be undone for every ``F``. Here
    ``F`` is a table of random numbers, so memory grows with the square root of ``count``: 128 KiB
    for ten million. A result of ``count`` or more is mapped again until it is less, at most four
    times on average. Such permutations are not all possible ones, but the few places that a round
    reads look as if they were.

    References:
        Luby and Rackoff, "How to Construct Pseudorandom Permutations from Pseudorandom Functions",
        SIAM J. Comput. 1988, https://doi.org/10.1137/0217022, Theorem 1 (three passes; here eight);
        Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002,
        https://doi.org/10.1007/3-540-45760-7_9, section 3 (mapping again).
    """

    key: Key
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, places: Any) -> Tensor:
        return self._walked(places, backwards=False)

    def places(self, numbers: Tensor | Sequence[int]) -> Tensor:
        """Return the places of some numbers ``(n,)``: the passes are undone."""
        return self._walked(numbers, backwards=True)

    @cached_property
    def half(self) -> int:
        """Bits of a half: as few as let two of them hold every number."""
        return max(1, math.ceil((self.count - 1).bit_length() / 2))

    @cached_property
    def _tables(self) -> list[Tensor]:
        """The function ``F`` of each pass: ``(2**half,)`` int32, random."""
        size = 1 << self.half
        words = [self.key.fold("pass", i).bits(size) & (size - 1) for i in range(FEISTEL_ROUNDS)]
        return [table.to(torch.int32) for table in words]

    def _walked(self, numbers: Any, backwards: bool) -> Tensor:
        start = torch.as_tensor(numbers, dtype=torch.int64)
        x = self._mapped(start.flatten(), backwards)
        while bool((outside := x >= self.count).any()):
            x[outside] = self._mapped(x[outside], backwards)
        return x.reshape(start.shape)

    def _mapped(self, x: Tensor, backwards: bool) -> Tensor:
        mask = (1 << self.half) - 1
        a = x >> self.half
        b = x & mask
        if backwards:
            for table in reversed(self._tables):
                before = b ^ table[a]
                b = a
                a = before
        else:
            for table in self._tables:
                after = a ^ table[b]
                a = b
                b = after
        return (a << self.half) | b


def permutation(key: Key, count: int) -> Permutation:
    """Return a permutation of ``0 .. count - 1``, without a list of more than `MAX_LISTED`."""
    return Listed(key.permutation(count)) if count <= MAX_LISTED else Feistel(key, count)


def distinct(key: Key, below: int, count: int) -> Tensor:
    """Draw ``(count,)`` different int64 in ``0 .. below - 1``, in random order: all alike likely.

    Of more than `MAX_LISTED` numbers it repeats uniform draws and leaves out those that were there,
    which is exact but for ``below * 2**-63``, in time and memory that do not grow with ``below``.
    """
    if below <= MAX_LISTED or 2 * count > below:
        return key.permutation(below)[:count]
    drawn = np.empty(0, np.int64)
    turn = 0
    while len(drawn) < count:
        more = key.fold("turn", turn).bits(2 * count) & (2**63 - 1)
        together = np.concatenate([drawn, (more % below).numpy()])
        _, first = np.unique(together, return_index=True)
        drawn = together[np.sort(first)]
        turn += 1
    return torch.from_numpy(drawn[:count])
