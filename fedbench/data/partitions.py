"""Partitions: how the samples of one pool are distributed over the clients."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key

Rows = npt.NDArray[np.int64]
Owner = Tensor | None  # ``(N,)`` user of each sample, where the data set has users
Parts = Sequence[Tensor]  # rows of the pool of every client, int64


def shuffled(rows: Rows, key: Key) -> Rows:
    """Return the rows in an order that the key chooses."""
    mixed: Rows = rows[key.permutation(len(rows)).numpy()]
    return mixed


def by_label(y: Tensor, classes: int, key: Key) -> list[Rows]:
    """Return the rows of each label, shuffled."""
    labels = y.cpu().numpy()
    rows = [np.flatnonzero(labels == label) for label in range(classes)]
    return [shuffled(own, key.fold("class", label)) for label, own in enumerate(rows)]


def draw(
    mix: npt.NDArray[np.float64], left: Rows, size: int, generator: np.random.Generator
) -> Rows:
    """Draw how many of each class, ``size`` in all, from ``mix``; at most ``left`` of each."""
    taken = np.zeros_like(left)
    while short := size - int(taken.sum()):
        weights = np.where(taken < left, mix, 0.0)
        if weights.sum() == 0:  # every class of a very sparse mix has run out
            weights = (left - taken).astype(np.float64)
        drawn = generator.multinomial(short, weights / weights.sum())
        taken = np.minimum(taken + drawn, left)
    return taken


def fill_up(parts: list[Rows], minimum: int, key: Key) -> list[Rows]:
    """Move samples from the largest clients, one by one, until all have ``minimum`` samples."""
    sizes = np.array([len(part) for part in parts])
    if sizes.min() >= minimum:
        return parts
    hands = [shuffled(part, key.fold(i)).tolist() for i, part in enumerate(parts)]
    for hand in hands:
        while len(hand) < minimum:
            largest = max(hands, key=len)
            hand.append(largest.pop())
    return [np.array(hand, dtype=np.int64) for hand in hands]


def random_hands(labels: Rows, clients: int, k: int, key: Key) -> list[Rows]:
    """Choose ``k`` random labels for each client, so that every label has an owner.

    A shuffled deck is dealt first, over and over or to its end; the rest of a hand is uniform.
    """
    deck = shuffled(labels, key.fold("deck"))
    hands = []
    for client in range(clients):
        dealt = deck[client % len(deck) :: clients]
        others = np.setdiff1d(labels, dealt)
        rest = shuffled(others, key.fold("hand", client))[: k - len(dealt)]
        hands.append(np.concatenate([dealt, rest]))
    return hands


def even_hands(labels: Rows, clients: int, k: int, key: Key) -> list[Rows]:
    """Choose ``k`` labels for each client: those with the fewest owners so far, ties at random."""
    owners = np.zeros(len(labels), np.int64)
    hands = []
    for client in range(clients):
        order = shuffled(np.arange(len(labels)), key.fold("hand", client))
        hand = order[np.argsort(owners[order], kind="stable")][:k]
        owners[hand] += 1
        hands.append(labels[hand])
    return hands


def deal(stock: list[Rows], hands: list[Rows], weights: Rows, minimum: int) -> list[Rows]:
    """Split each label's rows over the clients that hold it, in proportion to their ``weights``.

    A client gets at least an equal part of what it still lacks to the ``minimum``, or of the label
    if that is less; labels with the fewest rows an owner come first.
    """
    holders = [np.flatnonzero([label in hand for hand in hands]) for label in range(len(stock))]
    labels = [label for label, clients in enumerate(holders) if len(clients)]
    parts: list[list[Rows]] = [[] for _ in hands]
    lacking = np.full(len(hands), minimum)
    left = np.array([len(hand) for hand in hands])
    for label in sorted(labels, key=lambda label: len(stock[label]) / len(holders[label])):
        rows = stock[label]
        clients = holders[label]
        least = np.minimum(lacking[clients] // left[clients], len(rows) // len(clients))
        sizes = in_proportion(len(rows), weights[clients], least)
        for client, part in zip(clients, np.split(rows, sizes.cumsum()[:-1]), strict=True):
            parts[client].append(part)
        lacking[clients] -= sizes
        left[clients] -= 1
    return [np.concatenate(part) for part in parts]


def in_proportion(total: int, weights: Rows, least: Rows) -> Rows:
    """Split ``total`` in proportion to ``weights``, each at least its ``least``, in integers."""
    low = np.zeros(len(weights), bool)
    while True:
        rest = total - int(least[low].sum())
        weight = int(weights[~low].sum())
        below = ~low & (rest * weights < least * weight)
        if not below.any():
            break
        low |= below
    sizes = least.copy()
    sizes[~low] = np.diff(rest * weights[~low].cumsum() // weight, prepend=0)
    return sizes


def require_samples(subject: str, samples: int, clients: int, each: int) -> None:
    """Raise `ConfigError` unless there is a client, and enough samples for all."""
    require("clients", clients, clients >= 1, ">= 1")
    if samples < clients * each:
        raise ConfigError(
            f"{subject} needs at least {each} for each of {clients} clients, so {clients * each} "
            f"samples, got {samples}; ask for fewer clients"
        )


def require_owners(subject: str, labels: int, clients: int, each: int) -> None:
    """Raise `ConfigError` unless there are enough clients to hold every label."""
    require("clients", clients, clients >= 1, ">= 1")
    if clients * each < labels:
        raise ConfigError(
            f"{subject} needs an owner for each of {labels} labels, got {clients} clients with "
            f"{each} each; ask for more clients or more labels"
        )


def splittable(subject: str, parts: list[Rows]) -> Parts:
    """Return the parts; raise `ConfigError` if one has too few samples to be split in three."""
    fewest = min(len(part) for part in parts)
    if fewest < 3:
        raise ConfigError(
            f"{subject} must give every client 3 samples to train, validate and test, got "
            f"{fewest}; ask for fewer clients"
        )
    return [torch.from_numpy(part) for part in parts]


@dataclass(frozen=True, kw_only=True)
class Partition(ABC):
    """Distribution of a pool over the clients: every sample is dealt to exactly one of them.

    But `Natural` may leave samples out, and clients that draw ``with_replacement`` share some.
    """

    # True if clients draw samples with replacement: parts overlap, and the pool is cut into samples
    # that train, validate and test before it is split.
    with_replacement: ClassVar[bool] = False

    @abstractmethod
    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        """Return the parts, disjoint unless they are drawn with replacement.

        They are a list, or another sequence that makes a client's rows when they are read.
        ``y (N,)`` are labels in ``0 .. classes - 1``. Too few samples raise `ConfigError`.
        """


class IID(Partition):
    """Shuffle the pool and cut it into parts whose sizes differ by at most one."""

    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        require_samples("iid", len(y), clients, each=1)
        return list(key.permutation(len(y)).tensor_split(clients))


@dataclass(frozen=True, kw_only=True)
class Shards(Partition):
    """Sort by label, cut into ``clients * classes`` shards, deal ``classes`` of them to a client.

    Shards are as equal as possible. One that straddles the border of two labels holds both.

    Args:
        classes: Shards per client.

    References:
        McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        AISTATS 2017, https://arxiv.org/abs/1602.05629, section 3; FSL, appendix B.3.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        require("Shards.classes", self.classes, self.classes >= 1, ">= 1")

    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        """Deal the shards; inside a label, samples keep their order."""
        count = clients * self.classes
        require_samples(f"shards:classes={self.classes}", len(y), clients, self.classes)
        shards = y.cpu().argsort(stable=True).tensor_split(count)
        hands = key.permutation(count).reshape(clients, self.classes)
        return [torch.cat([shards[shard] for shard in hand]) for hand in hands.tolist()]


@dataclass(frozen=True, kw_only=True)
class Dirichlet(Partition):
    """Label skew drawn from a Dirichlet distribution: the smaller ``beta``, the more skewed.

    Two conventions carry this name. ``by="class"`` is that of public federated learning code: every
    *class* draws shares of its samples over the clients, ``p ~ Dir(beta, ..., beta)``.
    ``by="client"`` is Hsu et al.: every *client* draws a mix of classes, ``q ~ Dir(beta * prior)``
    with the class frequencies as prior, and then ``N / clients`` samples from it without
    replacement; a class that runs out leaves the mix, and clients take turns in random order. The
    same ``beta`` is more skewed there. FedMRN's Non-IID-1 is ``by="class"`` with ``beta=0.3``, 0.2
    on CIFAR-100, but its code draws again until all have ten samples.

    Clients with fewer than ``minimum`` samples are then filled up, in order, each time with a
    random sample of the client that is the largest at the moment; where ``beta`` starves many
    clients, this dilutes the skew. Ten are the fewest that split 70/10/20 exactly.

    Args:
        beta: Concentration.
        by: Whether each ``class`` or each ``client`` draws.
        minimum: Samples that every client ends with at least.

    References:
        Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution for Federated
        Visual Classification", 2019, https://arxiv.org/abs/1909.06335, section 3; FSL, appendix
        B.3; FedMRN, https://arxiv.org/abs/2408.03220, section 5.1.2.
    """

    beta: float = 1.0
    by: Literal["class", "client"] = "class"
    minimum: int = 10

    def __post_init__(self) -> None:
        finite = math.isfinite(self.beta) and self.beta > 0
        require("Dirichlet.beta", self.beta, finite, "finite and > 0")
        require("Dirichlet.by", self.by, self.by in ("class", "client"), "'class' or 'client'")
        require("Dirichlet.minimum", self.minimum, self.minimum >= 1, ">= 1")

    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        require_samples(f"dirichlet:minimum={self.minimum}", len(y), clients, self.minimum)
        hand_out = self._by_class if self.by == "class" else self._by_client
        dealt = hand_out(by_label(y, classes, key), clients, key)
        parts = fill_up(dealt, self.minimum, key.fold("fill"))
        return [torch.from_numpy(part) for part in parts]

    def _by_class(self, stock: list[Rows], clients: int, key: Key) -> list[Rows]:
        """Cut each class at the rounded-down cumulative shares."""
        hands: list[list[Rows]] = [[] for _ in range(clients)]
        for label, rows in enumerate(stock):
            shares = key.fold("shares", label).numpy().dirichlet(np.full(clients, self.beta))
            cuts = (np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
            for hand, part in zip(hands, np.split(rows, cuts), strict=True):
                hand.append(part)
        return [np.concatenate(hand) for hand in hands]

    def _by_client(self, stock: list[Rows], clients: int, key: Key) -> list[Rows]:
        """Let clients take the next samples of every class that their mix asks for."""
        stock = [rows for rows in stock if len(rows)]
        left = np.array([len(rows) for rows in stock])
        alpha = self.beta * left / left.sum()
        size, larger = divmod(int(left.sum()), clients)
        parts = [np.empty(0, np.int64)] * clients
        for turn, client in enumerate(key.fold("turns").permutation(clients).tolist()):
            generator = key.fold("mix", client).numpy()
            mix = generator.dirichlet(alpha)
            taken = draw(mix, left, size + (turn < larger), generator)
            start = [len(rows) for rows in stock] - left
            parts[client] = np.concatenate(
                [rows[a : a + t] for rows, a, t in zip(stock, start, taken, strict=True)]
            )
            left = left - taken
        return parts


@dataclass(frozen=True, kw_only=True)
class Labels(Partition):
    """Each client holds exactly ``k`` random labels; a label's samples are cut evenly.

    Every label has an owner: the first label of client ``i`` is ``deck[i % classes]`` of a shuffled
    deck (Li et al.: ``i % classes`` itself), and with fewer clients than labels the others of the
    deck are dealt too. FedMRN's code instead gives the labels with the fewest owners.

    Args:
        k: Labels of a client; FedMRN's Non-IID-2 has 3, but 20 of CIFAR-100's.

    References:
        Li et al., "Federated Learning on Non-IID Data Silos: An Experimental Study", ICDE 2022,
        https://arxiv.org/abs/2102.02079, section IV-A, quantity-based label imbalance ``#C = k``;
        FedMRN, https://arxiv.org/abs/2408.03220, section 5.1.2.
    """

    k: int = 3

    def __post_init__(self) -> None:
        require("Labels.k", self.k, self.k >= 1, ">= 1")

    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        """Deal the labels; those without samples belong to no client."""
        name = f"labels:k={self.k}"
        stock = by_label(y, classes, key)
        labels = np.flatnonzero([len(rows) for rows in stock])
        if self.k > len(labels):
            raise ConfigError(f"{name} needs {self.k} labels, got {len(labels)}; lower k")
        require_owners(name, len(labels), clients, self.k)
        hands = random_hands(labels, clients, self.k, key)
        for label, owners in enumerate(np.bincount(np.concatenate(hands))):
            if len(stock[label]) < owners:
                raise ConfigError(
                    f"{name} needs a sample of label {label} for each of its {owners} owners, got "
                    f"{len(stock[label])}; ask for fewer clients"
                )
        return splittable(name, deal(stock, hands, np.ones(clients, np.int64), minimum=0))


@dataclass(frozen=True, kw_only=True)
class MaxClasses(Partition):
    """Unequal sizes and at most ``classes`` different labels: ``D_n`` grows with ``j_n``.

    ``j_n`` is uniform on 10, 11, ..., 100 (the released code draws up to 99). ``D_n = p_n N`` with
    ``p_n = j_n / sum_j j_j``, at most ``classes`` labels and every sample dealt once exclude each
    other in general; in the paper's code the limit yields, here the sizes do. Every client holds
    ``classes`` labels, each label has as many owners as any other, give or take one, and its
    samples go to them in proportion to ``j_n``. Clients get at least ten samples where there are
    enough, and never fewer than three.

    Args:
        classes: Largest number of labels that a client holds, ``c_max``.

    References:
        Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning"
        (FedPM), ICLR 2023, https://arxiv.org/abs/2209.15328, section 3.2.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        require("MaxClasses.classes", self.classes, self.classes >= 1, ">= 1")

    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        """Deal by ``j_n``; labels without samples belong to no client."""
        name = f"max-classes:classes={self.classes}"
        stock = by_label(y, classes, key)
        labels = np.flatnonzero([len(rows) for rows in stock])
        require_owners(name, len(labels), clients, self.classes)
        j = 10 + (key.fold("sizes").uniform(clients).double() * 91).long()
        hands = even_hands(labels, clients, self.classes, key)
        return splittable(name, deal(stock, hands, j.numpy(), minimum=10))


@dataclass(frozen=True, eq=False)
class Slices(Sequence[Tensor]):
    """Parts that are slices of one index of the pool: nothing is copied for a client."""

    rows: Tensor  # ``(N,)``, those of each user together
    first: Tensor  # ``(users,)`` place of each user's first row
    sizes: Tensor  # ``(users,)`` number of rows
    user: Tensor  # ``(clients,)`` of each client

    def __len__(self) -> int:
        return len(self.user)

    def __getitem__(self, i: Any) -> Any:
        """Return the rows of client ``i``, a view."""
        user = self.user[i]
        return self.rows.narrow(0, int(self.first[user]), int(self.sizes[user]))


class Natural(Partition):
    """Each client is a user of the data set, with all of that user's samples and no others.

    With more users than clients the key chooses; users with fewer than 3 samples are left out. A
    client's rows are read from one index of the data set.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018,
        https://arxiv.org/abs/1812.01097, section 3.
    """

    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        require("clients", clients, clients >= 1, ">= 1")
        if owner is None:
            raise ConfigError(
                "natural needs a data set whose samples have users, got one without; "
                "use --dataset femnist, from_arrays(x, y, clients=...), or another --partition"
            )
        _, user, samples = torch.unique(owner.cpu(), return_inverse=True, return_counts=True)
        users = (samples >= 3).nonzero()[:, 0]
        if clients > len(users):
            raise ConfigError(
                f"natural needs {clients} users with 3 samples or more, one for each client, got "
                f"{len(users)}; ask for fewer clients"
            )
        chosen = users[key.permutation(len(users))[:clients]]
        first = samples.cumsum(0) - samples
        return Slices(user.argsort(stable=True), first, samples, chosen)
