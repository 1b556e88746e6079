"""Steps that partitions share: assign rows of the pool to clients."""

import numpy as np
import numpy.typing as npt
from torch import Tensor

from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key

Rows = npt.NDArray[np.int64]


def shuffled(rows: Rows, key: Key) -> Rows:
    """Return the rows in an order that the key chooses."""
    mixed: Rows = rows[key.permutation(len(rows)).numpy()]
    return mixed


def by_label(y: Tensor, classes: int, key: Key) -> list[Rows]:
    """Return the rows of each label, shuffled."""
    labels = y.cpu().numpy()
    return [
        shuffled(np.flatnonzero(labels == label), key.fold("class", label))
        for label in range(classes)
    ]


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

    A shuffled deck is dealt first, one label a client, again and again where there are more clients
    than labels, to the end of the deck where there are fewer; the rest of a hand is uniform.
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

    A client gets at least an equal part of what it still lacks to the ``minimum``, if that does not
    exceed an equal part of the label; labels with the fewest rows an owner come first, so that
    others make up for them.
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
        lacking[clients] = np.maximum(lacking[clients] - sizes, 0)
        left[clients] -= 1
    return [np.concatenate(part) for part in parts]


def in_proportion(total: int, weights: Rows, least: Rows) -> Rows:
    """Split ``total`` into integers in proportion to ``weights``, each at least its ``least``.

    In integers throughout, so that no rounding can starve a part.

    >>> in_proportion(20, np.array([1, 10, 9]), np.array([4, 4, 4])).tolist()
    [4, 8, 8]
    """
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


def require_three(subject: str, parts: list[Rows]) -> None:
    """Raise `ConfigError` if a client has too few samples for `split_client`."""
    fewest = min(len(part) for part in parts)
    if fewest < 3:
        raise ConfigError(
            f"{subject} must give every client 3 samples to train, validate and test, got "
            f"{fewest}; ask for fewer clients"
        )
