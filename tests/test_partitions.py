"""Partitions: every sample goes to one client, by the key, with the skew that was asked for."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.data import partitions
from fedbench.data.partitions import IID, Dirichlet, Labels, MaxClasses, Natural, Partition, Shards

By = Literal["class", "client"]
BY: tuple[By, By] = ("class", "client")
PARTITIONS: list[Partition] = [
    IID(),
    Shards(),
    Shards(classes=3),
    Dirichlet(minimum=3),
    Dirichlet(beta=0.02, minimum=3),
    Dirichlet(minimum=3, by="client"),
    Dirichlet(beta=0.02, minimum=3, by="client"),
]


def balanced(each: int, classes: int = 10) -> Tensor:
    """``each`` samples of every class, in turn."""
    return torch.arange(each * classes) % classes


def table(y: Tensor, parts: Sequence[Tensor], classes: int = 10) -> Tensor:
    return torch.stack([y[part].bincount(minlength=classes) for part in parts])


def complete(parts: Sequence[Tensor], clients: int, samples: int) -> None:
    """Every sample has exactly one client."""
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 for part in parts)
    assert torch.equal(torch.cat(list(parts)).sort().values, torch.arange(samples))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(PARTITIONS),
    st.integers(1, 12),
    st.integers(36, 150),
    st.integers(1, 7),
    st.integers(0, 2**64 - 1),
)
def test_every_sample_goes_to_exactly_one_client(
    partition: Partition, clients: int, samples: int, classes: int, seed: int
) -> None:
    y = Key(seed).fold("labels").permutation(samples) % classes
    parts = partition.split(y, clients, classes + 1, Key(seed))  # one label has no sample
    complete(parts, clients, samples)
    assert min(len(part) for part in parts) >= (3 if isinstance(partition, Dirichlet) else 1)


def test_iid_is_even_and_shuffled_and_shards_keep_the_order_of_a_label() -> None:
    parts = IID().split(balanced(1), 4, 10, Key(0))
    assert [len(part) for part in parts] == [3, 3, 2, 2]
    assert torch.cat(list(parts)).tolist() != list(range(10))
    y = torch.tensor([2, 0, 1, 0, 2, 1])
    # Sorted by label, ties in order: rows 1 3 | 2 5 | 0 4.
    parts_of_one = Shards(classes=1).split(y, 3, 3, Key(0))
    assert sorted(part.tolist() for part in parts_of_one) == [[0, 4], [1, 3], [2, 5]]
    y = balanced(40)
    parts = Shards(classes=1).split(y, 40, 10, Key(0))
    assert {tuple(part.diff().tolist()) for part in parts} == {(10,) * 9}
    counts = table(y, Shards().split(y, 20, 10, Key(0)))  # 40 shards of 10 samples, 4 a label
    assert set(counts.sum(dim=1).tolist()) == {20}
    assert set(counts.flatten().tolist()) <= {0, 10, 20}
    pairs = [row.nonzero()[:, 0].tolist() for row in counts]
    assert any(pair[-1] - pair[0] > 1 for pair in pairs)


def test_a_huge_beta_gives_every_client_the_same_mix_of_samples_that_are_drawn() -> None:
    y = balanced(100)
    cut, drawn = (
        (table(y, Dirichlet(beta=1e9, by=by).split(y, 10, 10, Key(0))) - 10).abs().float()
        for by in BY
    )
    assert cut.max() <= 1
    assert drawn.mean() < 4.16  # over 200 seeds 2.79 +- 0.27; with beta = 1 it is 14.2 +- 0.6
    for by in BY:  # which samples of a class a client gets is drawn too
        parts = [Dirichlet(beta=1e9, by=by).split(y, 10, 10, Key(seed))[0] for seed in (1, 2)]
        assert int(torch.isin(*parts).sum()) < 30  # of 100: ten by chance, sd 3


@pytest.mark.parametrize(
    ("by", "floor"),
    [
        ("class", 0.38),  # over 200 seeds 0.611 +- 0.045; with beta = 1 it is 0.284 +- 0.017
        ("client", 0.66),  # over 200 seeds 0.901 +- 0.048; with beta = 1 it is 0.670 +- 0.043
    ],
)
def test_a_small_beta_gives_clients_few_labels(by: By, floor: float) -> None:
    y = balanced(100)
    counts = table(y, Dirichlet(beta=0.1, by=by).split(y, 20, 10, Key(0)))
    top_share = counts.max(dim=1).values / counts.sum(dim=1)  # of a client's data
    assert top_share.mean().item() > floor


def test_by_class_is_dirichlet_over_clients_so_sizes_are_ragged() -> None:
    # A share p of Dir(1, ..., 1) over n = 100 has variance 0.01 * 0.99 / 101; a size is the sum of
    # ten shares of 1,000 samples: mean 100, standard deviation 31.3.
    y = balanced(1000)
    parts = Dirichlet(minimum=1).split(y, 100, 10, Key(0))
    sizes = torch.tensor([float(len(part)) for part in parts])
    assert 19.4 < sizes.std() < 42.8  # over 100 seeds 31.1 +- 2.3


def test_by_client_is_dirichlet_of_beta_times_the_prior_at_equal_sizes() -> None:
    # q of Dir(1/10, ..., 1/10) has E[sum q^2] = (1/10 + 1) / (1 + 1) = 0.55, while it is 0.18 for
    # Dir(1, ..., 1). Over 100 seeds 0.577 +- 0.023: the last clients take what is left.
    y = balanced(1000)
    parts = Dirichlet(by="client").split(y, 99, 10, Key(0))
    assert sorted({len(part) for part in parts}) == [101, 102]
    q = table(y, parts) / torch.tensor([len(part) for part in parts])[:, None]
    assert q.square().sum(dim=1).mean().item() == pytest.approx(0.577, abs=0.115)


def test_labels_are_shuffled_apart_from_each_other() -> None:
    first, second = partitions.by_label(torch.arange(200) // 100, 2, Key(0))
    assert sorted(first.tolist()) == list(range(100))
    assert (first + 100).tolist() != second.tolist()


def test_a_mix_that_has_run_out_goes_on_with_what_is_left_in_proportion() -> None:
    # One of class 0, then 100 of the 900 and 100 that are left: 10 of class 2, deviation 2.8.
    mix = np.array([1.0, 0.0, 0.0])
    taken = partitions.draw(mix, np.array([1, 900, 100]), 101, Key(0).numpy())
    assert (taken[0], taken.sum()) == (1, 101)
    assert 0 < taken[2] < 25


def test_a_class_is_cut_at_the_rounded_down_cumulative_shares() -> None:
    shares = Key(0).fold("shares", 0).numpy().dirichlet(np.ones(5))
    ends = [0, *np.floor(np.cumsum(shares)[:-1] * 101).astype(int).tolist(), 101]
    parts = Dirichlet(minimum=1).split(torch.zeros(101).long(), 5, 1, Key(0))
    assert [len(part) for part in parts] == np.diff(ends).tolist()


def test_a_client_s_mix_has_the_classes_as_often_as_the_pool() -> None:
    # A tenth of 100 samples is of the rare class: 10 each, deviation 3 and less; half would be 50.
    y = torch.tensor([0] * 900 + [1] * 100)
    counts = table(y, Dirichlet(beta=1e9, by="client").split(y, 10, 2, Key(0)), 2)
    assert counts[:, 1].max() < 25


def test_whoever_has_the_first_turn_has_the_sample_that_is_left_over() -> None:
    y = balanced(1)
    larger = set()
    for seed in range(8):
        parts = Dirichlet(minimum=1, by="client").split(y, 3, 10, Key(seed))
        sizes = [len(part) for part in parts]
        assert sorted(sizes) == [3, 3, 4]
        larger.add(sizes.index(4))
        assert Key(seed).fold("turns").permutation(3)[0] == sizes.index(4)
    assert larger == {0, 1, 2}


def test_a_starving_client_is_fed_by_whoever_is_largest_from_any_class() -> None:
    # 6, 5, 0: one from the first, then 5 = 5 and the first gives, then the second.
    parts = [np.arange(6), np.arange(6, 11), np.arange(0)]
    filled = partitions.fill_up(parts, 3, Key(0))
    assert [len(part) for part in filled] == [4, 4, 3]
    assert sorted(np.concatenate(filled).tolist()) == list(range(11))
    assert partitions.fill_up(filled, 3, Key(1)) is filled  # all have enough
    parts = [np.arange(100), np.arange(0)]
    got = partitions.fill_up(parts, 10, Key(0))[1]
    assert got.min() < 40  # the last ten would start at 90
    assert got.max() > 20  # the first ten would end at 9
    taken = Dirichlet(beta=0.01).split(balanced(5), 5, 10, Key(0))
    assert [len(part) for part in taken] == [10] * 5


@pytest.mark.parametrize(
    ("kind", "fields", "requirement"),
    [
        *[(Dirichlet, {"beta": x}, "finite and > 0") for x in (0.0, -1.0, math.nan, math.inf)],
        (Dirichlet, {"by": "size"}, "'class' or 'client', got 'size'"),
        (Dirichlet, {"minimum": 0}, ">= 1, got 0"),
        (Shards, {"classes": 0}, ">= 1, got 0"),
        (Labels, {"k": 0}, ">= 1, got 0"),
        (MaxClasses, {"classes": 0}, ">= 1, got 0"),
    ],
)
def test_the_fields_are_checked(kind: Any, fields: dict[str, Any], requirement: str) -> None:
    (field,) = fields
    with pytest.raises(ConfigError, match=f"{kind.__name__}.{field} must be {requirement}"):
        kind(**fields)


SEEDS = st.integers(0, 2**64 - 1)


def skewed(samples: int, classes: int, seed: int) -> Tensor:
    """Label 0 is the rarest, with 60 samples, 3 for each of 20; label ``classes`` has none."""
    more = Key(seed).uniform(classes).sort().values.mul(samples).long()
    return torch.arange(classes).repeat_interleave(more - more[0] + 60)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 7), st.integers(1, 7), SEEDS)
def test_every_client_has_k_labels_or_none_more(c: int, k: int, classes: int, seed: int) -> None:
    y = skewed(100, classes, seed)
    few = c * k < classes
    for partition, impossible in ((Labels(k=k), few or k > classes), (MaxClasses(classes=k), few)):
        if impossible:
            with pytest.raises(ConfigError, match="labels"):
                partition.split(y, c, classes + 1, Key(seed))
            continue
        parts = partition.split(y, c, classes + 1, Key(seed))
        complete(parts, c, len(y))
        assert min(len(part) for part in parts) >= 3
        counts = table(y, parts, classes)
        different = set((counts > 0).sum(dim=1).tolist())
        assert max(different) <= k
        if isinstance(partition, Labels):
            assert different == {k}
            spread = [held[held > 0].aminmax() for held in counts.T]
            assert all(high - low <= 1 for low, high in spread)


@pytest.mark.parametrize("partition", [*PARTITIONS, Labels(), MaxClasses(classes=4), Natural()])
def test_the_key_and_nothing_else_decides(partition: Partition) -> None:
    y = balanced(40)
    owner = torch.arange(400) % 20
    parts: list[Sequence[Tensor]] = []
    for seed in (1, 1, 2):
        torch.manual_seed(len(parts))
        np.random.seed(len(parts))  # noqa: NPY002
        parts.append(partition.split(y, 8, 10, Key(seed), owner))
    first, again, other = parts
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_hands_of_labels_are_random_and_hold_every_label_which_is_cut_evenly() -> None:
    labels = np.array([2, 3, 5, 7, 9])
    hands = partitions.random_hands(labels, 10, 2, Key(0))
    firsts = [int(hand[0]) for hand in hands]
    assert sorted(firsts[:5]) == labels.tolist()
    assert firsts[5:] == firsts[:5]
    assert firsts[:5] != labels.tolist()
    draws = (partitions.random_hands(labels, 10, 2, Key(seed))[0] for seed in range(200))
    seconds = [hand[1] for hand in draws]
    alike = partitions.random_hands(np.arange(10), 100, 2, Key(0))[::10]  # with one first label
    assert len({int(hand[1]) for hand in alike}) > 2
    assert np.bincount(seconds)[labels].min() > 15  # 40 by chance, sd 5.7
    hands = partitions.random_hands(np.arange(10), 3, 4, Key(0))
    assert [len(set(hand.tolist())) for hand in hands] == [4, 4, 4]
    assert set(np.concatenate(hands).tolist()) == set(range(10))
    # Two clients hold both labels: 7 samples are cut 3 + 4, 4 are cut 2 + 2.
    y = torch.tensor([0] * 7 + [1] * 4)
    parts = Labels(k=2).split(y, 2, 2, Key(0))
    assert [y[part].bincount().tolist() for part in parts] == [[3, 2], [4, 2]]
    assert parts[0].tolist() != sorted(parts[0].tolist())  # which of the seven is drawn


def test_even_hands_spread_labels_as_evenly_as_they_go() -> None:
    owners = np.bincount(np.concatenate(partitions.even_hands(np.arange(5), 7, 2, Key(0))))
    assert sorted(owners.tolist()) == [2, 3, 3, 3, 3]
    hands = partitions.even_hands(np.array([2, 5, 9]), 2, 4, Key(0))  # no label is held twice
    assert [sorted(hand.tolist()) for hand in hands] == [[2, 5, 9], [2, 5, 9]]
    firsts = {int(partitions.even_hands(np.arange(5), 1, 1, Key(seed))[0][0]) for seed in range(40)}
    assert firsts == {0, 1, 2, 3, 4}
    # ties keep the shuffled order on every machine, which a sort that is not stable would not do
    first, second = partitions.even_hands(np.arange(200), 2, 120, Key(0))
    orders = [partitions.shuffled(np.arange(200), Key(0).fold("hand", i)).tolist() for i in (0, 1)]
    assert first.tolist() == orders[0][:120]
    owned = set(first.tolist())
    assert second.tolist() == sorted(orders[1], key=lambda label: label in owned)[:120]


def test_a_partition_without_its_parameters_is_that_of_its_docstring() -> None:
    assert Shards() == Shards(classes=2)
    assert Dirichlet() == Dirichlet(beta=1.0, by="class", minimum=10)
    assert Labels() == Labels(k=3)
    assert MaxClasses() == MaxClasses(classes=2)


def test_what_is_dealt_is_in_proportion_and_rich_labels_make_up_for_poor_ones() -> None:
    none = np.zeros(3, np.int64)
    assert partitions.in_proportion(20, np.array([1, 1, 2]), none).tolist() == [5, 5, 10]
    assert partitions.in_proportion(7, np.array([1, 1, 1]), none).tolist() == [2, 2, 3]
    # 3 of 30 is below 5; the rest, 25, is shared 12 : 15, and 11.1 is still enough for nobody's 12.
    assert partitions.in_proportion(30, np.array([3, 12, 15]), np.array([5, 12, 0])).tolist() == [
        5,
        12,
        13,
    ]
    assert partitions.in_proportion(9, np.array([10, 50, 100]), np.array([3, 3, 3])).tolist() == [
        3,
        3,
        3,
    ]
    # Client 0 lacks 10 after label 0, of which there is one each; label 1 gives at least 9 to it.
    stock = [np.arange(2), np.arange(2, 102)]
    hands = [np.array([0, 1]), np.array([0, 1])]
    parts = partitions.deal(stock, hands, np.array([1, 99]), minimum=10)
    assert [len(part) for part in parts] == [10, 92]
    poor_last = [np.arange(2, 102), np.arange(2)]  # is dealt first all the same
    parts = partitions.deal(poor_last, hands, np.array([1, 99]), minimum=10)
    assert [len(part) for part in parts] == [10, 92]
    sizes = [len(part) for part in partitions.deal(stock, hands, np.array([1, 99]), minimum=0)]
    assert sizes == [1, 101]


def test_sizes_of_max_classes_are_in_proportion_to_j_which_is_uniform_on_10_to_100() -> None:
    # 91 values, each of them about 55 times; with the smallest pool a size is j itself. Of one
    # label, so that nothing has to yield.
    clients = 5000
    j = 10 + (Key(3).fold("sizes").uniform(clients).double() * 91).long()
    y = torch.zeros(int(j.sum()), dtype=torch.int64)
    parts = MaxClasses().split(y, clients, 1, Key(3))
    sizes = torch.tensor([len(part) for part in parts])
    assert torch.equal(sizes, j)
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
        (IID(), 51, "iid needs at least 1 for each of 51 clients, so 51 samples, got 50"),
        (Shards(), 26, "shards:classes=2 needs .* so 52 samples, got 50"),
        (Dirichlet(minimum=4), 13, "dirichlet:minimum=4 needs .* so 52 samples, got 50"),
        *[(rule, 0, "clients must be >= 1, got 0") for rule in (IID(), Dirichlet(), Labels())],
        *[(rule, -1, "clients must be >= 1, got -1") for rule in (Shards(), MaxClasses())],
        (Labels(k=11), 5, "labels:k=11 needs 11 labels, got 10; lower k"),
        (Labels(), 3, "labels:k=3 needs an owner for each of 10 labels, got 3 clients with 3 each"),
        (Labels(k=1), 11, "labels:k=1 must give every client 3 samples .* got 2; ask for fewer"),
        (Labels(k=9), 8, r"needs a sample of label \d for each of its \d owners, got 5; ask"),
        (MaxClasses(), 4, "max-classes:classes=2 needs an owner for each of 10 labels, got 4"),
        (MaxClasses(), 20, "max-classes:classes=2 must give every client 3 samples .* got 2"),
        (Natural(), 0, "clients must be >= 1, got 0"),
        (Natural(), 5, r"natural needs a data set whose samples have users.* --dataset femnist"),
        (Natural(), 5, r"--dataset femnist, from_arrays\(x, y, clients=...\), or another --part"),
    ],
)
def test_what_cannot_be_dealt_is_refused(partition: Partition, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        partition.split(balanced(5), clients, 10, Key(0))
    assert "\n" not in str(error.value)


def test_one_client_holds_everything() -> None:
    for partition in (IID(), Dirichlet(), Labels(k=10), Shards(), MaxClasses(classes=10)):
        complete(partition.split(balanced(5), 1, 10, Key(0)), 1, 50)


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
