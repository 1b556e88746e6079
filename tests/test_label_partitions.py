"""Partitions by label and by user: the limits hold, and nobody's samples are anybody else's."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.data.partitions import (
    Labels,
    MaxClasses,
    Natural,
    Partition,
    deal,
    even_hands,
    in_proportion,
    random_hands,
)

SEEDS = st.integers(0, 2**64 - 1)


def labels_of(y: Tensor, parts: list[Tensor]) -> list[set[int]]:
    return [set(y[part].tolist()) for part in parts]


def complete(y: Tensor, parts: list[Tensor]) -> bool:
    return torch.equal(torch.cat(parts).sort().values, torch.arange(len(y)))


def skewed(samples: int, classes: int, seed: int) -> Tensor:
    """Label 0 is the rarest, with 60 samples, 3 for each of 20; label ``classes`` has none."""
    more = Key(seed).uniform(classes).sort().values.mul(samples).long()
    return torch.arange(classes).repeat_interleave(more - more[0] + 60)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 7), SEEDS)
def test_labels_gives_every_client_k(clients: int, k: int, classes: int, seed: int) -> None:
    y = skewed(100, classes, seed)
    if k > classes or clients * k < classes:
        with pytest.raises(ConfigError, match="labels"):
            Labels(k=k).split(y, clients, classes + 1, Key(seed))
        return
    parts = Labels(k=k).split(y, clients, classes + 1, Key(seed))
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 for part in parts)
    assert complete(y, parts)
    assert {len(labels) for labels in labels_of(y, parts)} == {k}
    counts = torch.stack([y[part].bincount(minlength=classes) for part in parts])
    for label in range(classes):
        held = counts[:, label][counts[:, label] > 0]
        assert held.max() - held.min() <= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 7), SEEDS)
def test_max_classes_gives_none_more(clients: int, limit: int, classes: int, seed: int) -> None:
    y = skewed(100, classes, seed)
    if clients * limit < classes:
        with pytest.raises(ConfigError, match="needs an owner for each of"):
            MaxClasses(classes=limit).split(y, clients, classes + 1, Key(seed))
        return
    parts = MaxClasses(classes=limit).split(y, clients, classes + 1, Key(seed))
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 for part in parts)
    assert complete(y, parts)
    assert max(len(labels) for labels in labels_of(y, parts)) <= limit
    assert min(len(part) for part in parts) >= 3


@pytest.mark.parametrize("partition", [Labels(), MaxClasses(), MaxClasses(classes=4), Natural()])
def test_the_key_and_nothing_else_decides(partition: Partition) -> None:
    y = torch.arange(400) % 10
    owner = torch.arange(400) % 20
    parts: list[list[Tensor]] = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(parts))
        np.random.seed(len(parts))  # noqa: NPY002
        parts.append(partition.split(y, 8, 10, Key(seed), owner))
    first, again, other = parts
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_hands_of_labels_are_random_and_hold_every_label() -> None:
    labels = np.array([2, 3, 5, 7, 9])
    hands = random_hands(labels, 10, 2, Key(0))
    firsts = [int(hand[0]) for hand in hands]
    assert sorted(firsts[:5]) == labels.tolist()
    assert firsts[5:] == firsts[:5]
    assert firsts[:5] != labels.tolist()
    seconds = np.array([random_hands(labels, 10, 2, Key(seed))[0][1] for seed in range(200)])
    assert np.bincount(seconds)[labels].min() > 15  # 40 by chance, sd 5.7
    hands = random_hands(np.arange(10), 3, 4, Key(0))
    assert [len(set(hand.tolist())) for hand in hands] == [4, 4, 4]
    assert set(np.concatenate(hands).tolist()) == set(range(10))


def test_labels_are_cut_evenly_by_hand() -> None:
    # Two clients hold both labels: 7 samples are cut 3 + 4, 4 are cut 2 + 2.
    y = torch.tensor([0] * 7 + [1] * 4)
    parts = Labels(k=2).split(y, 2, 2, Key(0))
    assert [y[part].bincount().tolist() for part in parts] == [[3, 2], [4, 2]]
    assert parts[0].tolist() != sorted(parts[0].tolist())  # which of the seven is drawn


def test_even_hands_spread_labels_as_evenly_as_they_go() -> None:
    owners = np.bincount(np.concatenate(even_hands(np.arange(5), 7, 2, Key(0))))
    assert sorted(owners.tolist()) == [2, 3, 3, 3, 3]
    hands = even_hands(np.array([2, 5, 9]), 2, 4, Key(0))  # no label is held twice
    assert [sorted(hand.tolist()) for hand in hands] == [[2, 5, 9], [2, 5, 9]]
    firsts = {int(even_hands(np.arange(5), 1, 1, Key(seed))[0][0]) for seed in range(40)}
    assert firsts == {0, 1, 2, 3, 4}


def test_what_is_dealt_is_in_proportion_and_rich_labels_make_up_for_poor_ones() -> None:
    none = np.zeros(3, np.int64)
    assert in_proportion(20, np.array([1, 1, 2]), none).tolist() == [5, 5, 10]
    assert in_proportion(7, np.array([1, 1, 1]), none).tolist() == [2, 2, 3]
    # 3 of 30 is below 5; the rest, 25, is shared 12 : 15, and 11.1 is still enough for nobody's 12.
    assert in_proportion(30, np.array([3, 12, 15]), np.array([5, 12, 0])).tolist() == [5, 12, 13]
    assert in_proportion(9, np.array([10, 50, 100]), np.array([3, 3, 3])).tolist() == [3, 3, 3]
    # Client 0 lacks 10 after label 0, of which there is one each; label 1 gives at least 9 to it.
    stock = [np.arange(2), np.arange(2, 102)]
    hands = [np.array([0, 1]), np.array([0, 1])]
    parts = deal(stock, hands, np.array([1, 99]), minimum=10)
    assert [len(part) for part in parts] == [10, 92]
    sizes = [len(part) for part in deal(stock, hands, np.array([1, 99]), minimum=0)]
    assert sizes == [1, 101]


def test_sizes_of_max_classes_are_in_proportion_to_j() -> None:
    # One label, so that nothing has to yield: D_n = p_n N but for rounding.
    y = torch.zeros(10_000, dtype=torch.int64)
    parts = MaxClasses(classes=1).split(y, 60, 1, Key(0))
    sizes = torch.tensor([len(part) for part in parts]).double()
    j = 10 + (Key(0).fold("sizes").uniform(60).double() * 91).long()
    assert (sizes - 10_000 * j / j.sum()).abs().max() < 1


def test_j_is_uniform_on_10_to_100() -> None:
    # 91 values, each of them about 55 times; with the smallest pool a size is j itself.
    clients = 5000
    j = 10 + (Key(3).fold("sizes").uniform(clients).double() * 91).long()
    y = torch.zeros(int(j.sum()), dtype=torch.int64)
    parts = MaxClasses().split(y, clients, 1, Key(3))
    sizes = torch.tensor([len(part) for part in parts])
    assert (int(sizes.min()), int(sizes.max())) == (10, 100)
    assert sizes.double().mean().item() == pytest.approx(55, abs=5 * 26.3 / clients**0.5)


def test_sizes_stay_near_the_paper_s_and_nobody_has_fewer_than_ten() -> None:
    y = torch.arange(10_000) % 10
    ratios = []
    for seed in range(5):
        key = Key(seed)
        parts = MaxClasses().split(y, 50, 10, key)
        sizes = torch.tensor([len(part) for part in parts])
        assert sizes.min() >= 10
        j = 10 + (key.fold("sizes").uniform(50).double() * 91).long()
        ratios.append(sizes * j.sum() / j / 10_000)
    low, high = torch.cat(ratios).float().quantile(torch.tensor([0.05, 0.95])).tolist()
    assert 0.82 < low < 0.92  # 0.87 over 20 seeds
    assert 1.1 < high < 1.3  # 1.20
    tight = [len(part) for part in MaxClasses().split(y[:1000], 90, 10, Key(0))]
    assert min(tight) >= 10
    assert max(tight) > 12  # and not just equal


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (Labels(k=11), 5, "labels:k=11 needs 11 labels, got 10; lower k"),
        (Labels(), 3, "labels:k=3 needs an owner for each of 10 labels, got 3 clients with 3 each"),
        (Labels(), 0, "clients must be >= 1, got 0"),
        (Labels(k=1), 11, "labels:k=1 must give every client 3 samples .* got 2; ask for fewer"),
        (Labels(k=9), 8, r"needs a sample of label \d for each of its \d owners, got 5; ask"),
        (MaxClasses(), 4, "max-classes:classes=2 needs an owner for each of 10 labels, got 4"),
        (MaxClasses(), 0, "clients must be >= 1, got 0"),
        (MaxClasses(), 20, "max-classes:classes=2 must give every client 3 samples .* got 2"),
        (Natural(), 0, "clients must be >= 1, got 0"),
        (Natural(), 5, "natural needs a data set whose samples have users.* --dataset femnist"),
    ],
)
def test_what_cannot_be_dealt_is_refused(partition: Partition, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        partition.split(torch.arange(50) % 10, clients, 10, Key(0))
    assert "\n" not in str(error.value)


def test_the_fields_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"Labels.k must be >= 1, got 0"):
        Labels(k=0)
    with pytest.raises(ConfigError, match=r"MaxClasses.classes must be >= 1, got 0"):
        MaxClasses(classes=0)


OWNER = torch.tensor([7, 3, 7, 3, 7, 3, 5, 5, 9, 9, 9, 9])  # 5 has two samples only


def test_natural_by_hand_needs_a_user_for_each_client() -> None:
    parts = Natural().split(torch.zeros(12).long(), 3, 1, Key(0), OWNER)
    assert sorted(part.tolist() for part in parts) == [[0, 2, 4], [1, 3, 5], [8, 9, 10, 11]]
    assert all(part.dtype == torch.int64 for part in parts)
    with pytest.raises(ConfigError, match=r"4 users with 3 samples or more.* got 3; ask for fewer"):
        Natural().split(torch.zeros(12).long(), 4, 1, Key(0), OWNER)


def test_the_key_chooses_the_users_who_play() -> None:
    owner = torch.arange(300) % 100
    first, other = (Natural().split(owner, 10, 100, Key(s), owner) for s in (1, 2))
    users = [{int(owner[part[0]]) for part in parts} for parts in (first, other)]
    assert all(len(set(owner[part].tolist())) == 1 and len(part) == 3 for part in first)
    assert len(users[0]) == len(users[1]) == 10
    assert len(users[0] & users[1]) < 6  # one by chance
    assert len(set(range(10)) & users[0]) < 6
