"""Local steps of clients in lock step that end at different times: padded, masked, replayed.

All clients of a launch take as many steps as the longest of them. What a client's step makes after
its end is thrown away by `torch.where`, so that its result is that of its own steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from fedbench.api import Batches, LocalStep
from fedbench.api.protocol import Carried, OneStep
from fedbench.core.rng import Key
from fedbench.data.augmentation import CropFlip

# Does a piece of work, which changes tensors in place, so many times.
Play = Callable[[Callable[[], None], int], None]


class WalkedAlone(Exception):
    """Raised where a protocol goes through padded batches by itself: it would train on padding."""


@dataclass(frozen=True, eq=False)
class Gathered(Sequence[tuple[Tensor, Tensor]]):
    """Samples of a client's steps, one after the other."""

    x: Tensor  # ``(steps, B, C, H, W)``
    y: Tensor  # ``(steps, B)`` labels, -1 of padding

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, step: Any) -> Any:
        """Return the samples of a step, ``(B, C, H, W)``, and their labels.

        Its number may be a tensor without dimensions, which is not read.
        """
        if isinstance(step, Tensor):
            return row_of(self.x, step), row_of(self.y, step)
        return self.x[step], self.y[step]


@dataclass(frozen=True, eq=False)
class PaddedBatches(Batches):
    """Batches of one of several clients under ``vmap``, of which some end before others.

    With ``play`` all steps but the first are one piece of work on the same memory, which can be
    recorded and replayed (`fedbench.executors.cuda_graphs`).
    """

    steps: Gathered  # as many as the longest client has
    of: Tensor = field(kw_only=True)  # number of steps of this client, without dimensions
    shortest: int = field(kw_only=True)  # the least number of steps of a client, at least 1
    longest: int = field(kw_only=True)  # the greatest
    key: Key = field(kw_only=True)  # the client's
    augment: CropFlip | None = field(default=None, kw_only=True)
    play: Play | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        raise WalkedAlone

    def __getitem__(self, step: Any) -> Any:
        raise WalkedAlone

    def scan(
        self, step: OneStep[Carried], start: Carried, key: Key, most: int | None = None
    ) -> Carried:
        """Take the steps of the longest client; see `Batches.scan`."""
        if most is not None and most < self.longest:
            return self._first(most).scan(step, start, key)
        carried = start
        keys = key.fold("step").branches(range(self.longest))
        for number in range(self.longest):
            if number == 1 and self.play is not None:
                return self._played(self.play, step, carried, key)
            x, y = self.steps[number]
            x = x if self.augment is None else self.augment(x, self.key.fold("augment", number))
            after = step(carried, LocalStep(x, y, keys[number], number, self.of))
            if number >= self.shortest:
                after = where_active(number < self.of, after, carried)
            carried = after
        return carried

    def _first(self, most: int) -> PaddedBatches:
        """Return these batches without those after the first ``most`` of each client."""
        shortest = min(most, self.shortest)
        return dataclasses.replace(
            self, of=self.of.clamp_max(most), shortest=shortest, longest=most
        )

    def _played(self, play: Play, step: OneStep[Carried], carried: Carried, key: Key) -> Carried:
        """Take the steps after the first, which all write to the same places."""
        device = self.of.device
        draws, changes = (
            torch.stack([key.tensor(device) for key in named.branches(range(self.longest))])
            for named in (key.fold("step"), self.key.fold("augment"))
        )
        number = torch.ones((), dtype=torch.int64, device=device)
        places = where_active(number < self.of, carried, carried)  # a copy for every client

        def once() -> None:
            draw, change = (Key(row_of(table, number)) for table in (draws, changes))
            x, y = self.steps[number]
            x = x if self.augment is None else self.augment(x, change)
            after = step(places, LocalStep(x, y, draw, number, self.of))
            after = where_active(number < self.of, after, places)
            for place, leaf in zip(leaves(places), leaves(after), strict=True):
                place.copy_(leaf)
            number.add_(1)

        play(once, self.longest - 1)
        return places


def row_of(table: Tensor, number: Tensor) -> Tensor:
    """Return a row of a table, by its number without dimensions, which is not read in Python."""
    return table.index_select(0, number[None])[0]


def leaves(tree: object) -> list[Tensor]:
    """Return the tensors of nested tuples and dictionaries, in order."""
    return pytree.tree_leaves(tree)


def where_active(active: Tensor, after: Carried, before: Carried) -> Carried:
    """Return each client's values ``after`` a step if it was ``active``, else those ``before``."""
    form = pytree.tree_structure(after)
    pairs = zip(leaves(after), leaves(before), strict=True)
    chosen: Carried = pytree.tree_unflatten([torch.where(active, *pair) for pair in pairs], form)
    return chosen
