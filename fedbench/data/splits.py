"""Splits: which samples train, which validate, which test, and which the server holds itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from fedbench.core.choices import Split
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.data.datasets import Data

CACHED_PARTS = 1 << 13  # parts, so that a round draws those of its clients once
ROOT_IMAGES = 100  # images of the root data, for rules that need some
# Tenths of a client's samples that validate and that test; the others train.
TENTHS: dict[Split, tuple[int, int]] = {
    "per-client": (1, 2),
    "per-client-80-20": (0, 2),
    "published": (0, 0),
}
USES = {"per-client": "train, validate and test", "per-client-80-20": "train and test"}


def dealt_samples(data: Data, split: Split, name: str) -> int:
    """Return how many samples of the pool, from the first on, are dealt to the clients.

    With the split ``published`` these are the published training samples; `ConfigError` if the data
    set, whose ``name`` errors give, does not tell them from the test samples.
    """
    if split != "published":
        return len(data)
    if data.trained is None:
        whose = name if data.is_named(name) else "samples of one's own without Data.trained"
        raise ConfigError(
            f"--split published must have a data set with published test images, got {whose}; "
            "use --dataset mnist, or --split per-client"
        )
    return data.trained


def cuts(n: int, split: Split) -> tuple[int, int]:
    """Return where the ``n`` samples of a client are cut: the ends of train and validation.

    Validation has a tenth and test a fifth, rounded half up and at least one; train has the rest.
    With ``per-client-80-20`` there is no validation, with ``published`` all rows train. Too few
    samples raise `ConfigError`.
    """
    validation, test = (max(1, (t * n + 5) // 10) if t else 0 for t in TENTHS[split])
    train = n - validation - test
    if train < 1:
        least = 1 + sum(tenths > 0 for tenths in TENTHS[split])
        raise ConfigError(
            f"a client needs at least {least} sample{'s' * (least > 1)} to "
            f"{USES.get(split, 'train')}, got {n}; ask for fewer clients"
        )
    return train, train + validation


def split_client(
    indices: Tensor, key: Key, split: Split = "per-client"
) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffle a client's rows and cut them into train, validation and test (`cuts`)."""
    parts = indices[key.permutation(len(indices))].tensor_split(cuts(len(indices), split))
    return parts[0], parts[1], parts[2]


@dataclass(frozen=True, eq=False)
class OnDemand(Sequence[Tensor]):
    """One part of every client, made when it is read; the last `CACHED_PARTS` are remembered."""

    clients: int
    make: Callable[[int], Tensor]  # of the number of a client

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, i: Any) -> Any:
        """Return the part of client ``i``."""
        if not 0 <= i < self.clients:
            raise IndexError(i)
        return self._remembering(int(i))

    @cached_property
    def _remembering(self) -> Callable[[int], Tensor]:
        return lru_cache(maxsize=CACHED_PARTS)(self.make)


def replaced(parts: Sequence[Tensor], i: int, part: Tensor) -> Sequence[Tensor]:
    """Return the parts with the part of client ``i`` replaced."""
    if isinstance(parts, list):
        return [*parts[:i], part, *parts[i + 1 :]]
    return OnDemand(len(parts), lambda j: part if j == i else parts[j])


def take_root(parts: Sequence[Tensor], key: Key, left: int = 0) -> tuple[Tensor, list[Tensor]]:
    """Draw `ROOT_IMAGES` of the rows in these parts, at most half; return them and what remains.

    Every part keeps its first ``left`` rows. `ConfigError` if nothing can be drawn.
    """
    pool = torch.cat([part[left:] for part in parts])
    count = min(ROOT_IMAGES, len(pool) // 2)
    if not count:
        raise ConfigError(
            f"root data must be drawn from 2 or more samples that clients can spare, got "
            f"{len(pool)}; ask for fewer clients, or a rule without root data"
        )
    root = pool[key.permutation(len(pool))[:count].to(pool.device)]
    return root, [part[~torch.isin(part, root)] for part in parts]
