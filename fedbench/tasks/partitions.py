"""Who holds which samples: partitions of one pool over the clients."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.errors import ConfigError, require
from fedbench.rng import Key

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Deals every sample of a pool to exactly one client."""

    @abstractmethod
    def split(self, y: Tensor, clients: int, classes: int, key: Key) -> list[Tensor]:
        """Rows of the pool, int64, for every client: disjoint, none left over.

        Args:
            y: ``(N,)`` labels in ``0 .. classes - 1``.
            clients: How many clients there are.
            classes: How many labels there are.
            key: Every draw comes from here.

        Raises:
            ConfigError: There are too few samples.
        """


@dataclass(frozen=True, kw_only=True)
class IID(Partition):
    """Shuffle the pool and cut it into parts whose sizes differ by at most one."""

    def split(self, y: Tensor, clients: int, classes: int, key: Key) -> list[Tensor]:
        """Ignores the labels."""
        _require_samples("iid", len(y), clients, each=1)
        return list(key.permutation(len(y)).tensor_split(clients))


@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Sort by label, cut into ``clients * classes`` shards, deal ``classes`` of them to a client.

    Shards are as equal as possible. One that straddles the border of two labels holds both, so a
    client sees about ``classes`` labels, exactly so where shards divide labels.

    Args:
        classes: Shards per client.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        AISTATS 2017, https://arxiv.org/abs/1602.05629, section 3; FSL, appendix B.3.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        """Check the field."""
        require("Shards.classes", self.classes, self.classes >= 1, ">= 1")

    def split(self, y: Tensor, clients: int, classes: int, key: Key) -> list[Tensor]:
        """Inside a label, samples keep their order."""
        count = clients * self.classes
        _require_samples(f"shards:classes={self.classes}", len(y), clients, self.classes)
        shards = y.cpu().argsort(stable=True).tensor_split(count)
        hands = key.permutation(count).reshape(clients, self.classes)
        return [torch.cat([shards[shard] for shard in hand]) for hand in hands.tolist()]


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label skew drawn from a Dirichlet distribution: the smaller ``beta``, the more skewed.

    Two conventions carry this name. ``by="class"``, the default, is that of public federated
    learning code and fits the ragged client sizes in FSL's tables: every *class* draws shares of
    its samples over the clients, ``p ~ Dir(beta, ..., beta)``. ``by="client"`` is Hsu et al.: every
    *client* draws a mix of classes, ``q ~ Dir(beta * prior)`` with the class frequencies as prior,
    and then ``N / clients`` samples from it without replacement; a class that runs out leaves the
    mix, and clients take turns in random order. The same ``beta`` is more skewed there: with ten
    balanced classes the parameters are ``beta / 10``.

    Clients with fewer than ``minimum`` samples are then filled up, in order, each time with a
    random sample of the client that is the largest at the moment. Ten are the fewest that split
    70/10/20 exactly. Where ``beta`` starves many clients, this dilutes the skew.

    Args:
        beta: Concentration.
        by: Who draws.
        minimum: Samples that every client ends with at least.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification", 2019, https://arxiv.org/abs/1909.06335, section 3; FSL, appendix
        B.3, https://arxiv.org/abs/2110.04350.
    """

    beta: float = 1.0
    by: Literal["class", "client"] = "class"
    minimum: int = 10

    def __post_init__(self) -> None:
        """Check the fields."""
        finite = math.isfinite(self.beta) and self.beta > 0
        require("Dirichlet.beta", self.beta, finite, "finite and > 0")
        require("Dirichlet.by", self.by, self.by in ("class", "client"), "'class' or 'client'")
        require("Dirichlet.minimum", self.minimum, self.minimum >= 1, ">= 1")

    def split(self, y: Tensor, clients: int, classes: int, key: Key) -> list[Tensor]:
        """Needs ``minimum`` samples for every client."""
        _require_samples(f"dirichlet:minimum={self.minimum}", len(y), clients, self.minimum)
        labels = y.cpu().numpy()
        stock = [
            _shuffled(np.flatnonzero(labels == label), key.fold("class", label))
            for label in range(classes)
        ]
        deal = self._by_class if self.by == "class" else self._by_client
        parts = _fill_up(deal(stock, clients, key), self.minimum, key.fold("fill"))
        return [torch.from_numpy(part) for part in parts]

    def _by_class(self, stock: list[Rows], clients: int, key: Key) -> list[Rows]:
        """Each class is cut at the rounded-down cumulative shares."""
        hands: list[list[Rows]] = [[] for _ in range(clients)]
        for label, rows in enumerate(stock):
            shares = key.fold("shares", label).numpy().dirichlet(np.full(clients, self.beta))
            cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
            for hand, part in zip(hands, np.split(rows, cuts), strict=True):
                hand.append(part)
        return [np.concatenate(hand) for hand in hands]

    def _by_client(self, stock: list[Rows], clients: int, key: Key) -> list[Rows]:
        """Clients take the next samples of every class that their mix asks for."""
        stock = [rows for rows in stock if len(rows)]
        left = np.array([len(rows) for rows in stock])
        alpha = self.beta * left / left.sum()
        size, larger = divmod(int(left.sum()), clients)
        parts = [np.empty(0, np.int64)] * clients
        for turn, client in enumerate(key.fold("turns").permutation(clients).tolist()):
            generator = key.fold("mix", client).numpy()
            mix = generator.dirichlet(alpha)
            taken = _draw(mix, left, size + (turn < larger), generator)
            start = [len(rows) for rows in stock] - left
            parts[client] = np.concatenate(
                [rows[a : a + t] for rows, a, t in zip(stock, start, taken, strict=True)]
            )
            left = left - taken
        return parts


def _draw(
    mix: npt.NDArray[np.float64], left: Rows, size: int, generator: np.random.Generator
) -> Rows:
    """How many of each class, ``size`` in all, in a draw from ``mix`` of which ``left`` remain."""
    taken = np.zeros_like(left)
    while short := size - int(taken.sum()):
        weights = np.where(taken < left, mix, 0.0)
        if weights.sum() == 0:  # every class of a very sparse mix has run out
            weights = (left - taken).astype(np.float64)
        drawn = generator.multinomial(short, weights / weights.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def _fill_up(parts: list[Rows], minimum: int, key: Key) -> list[Rows]:
    """Move samples from the largest clients, one by one, until none has fewer than ``minimum``."""
    sizes = np.array([len(part) for part in parts])
    if sizes.min() >= minimum:
        return parts
    hands = [_shuffled(part, key.fold(i)).tolist() for i, part in enumerate(parts)]
    for hand in hands:
        while len(hand) < minimum:
            largest = max(hands, key=len)
            hand.append(largest.pop())
    return [np.array(hand, dtype=np.int64) for hand in hands]


def _shuffled(rows: Rows, key: Key) -> Rows:
    """In an order of the key's choice."""
    shuffled: Rows = rows[key.permutation(len(rows)).numpy()]
    return shuffled


def _require_samples(subject: str, samples: int, clients: int, each: int) -> None:
    """At least one client, and enough for all of them."""
    require("clients", clients, clients >= 1, ">= 1")
    if samples < clients * each:
        raise ConfigError(
            f"{subject} needs at least {each} for each of {clients} clients, so {clients * each} "
            f"samples, got {samples}; ask for fewer clients"
        )
