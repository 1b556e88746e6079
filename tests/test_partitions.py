"""Every sample goes to one client, by the key; the skew is the one that was asked for."""

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.data.partitions import IID, Dirichlet, Partition, Shards, fill_up, split_client

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


def table(y: Tensor, parts: list[Tensor], classes: int = 10) -> Tensor:
    return torch.stack([y[part].bincount(minlength=classes) for part in parts])


def top_share(counts: Tensor) -> float:
    """Mean over clients: how much of its data has its most frequent label."""
    return (counts.max(dim=1).values / counts.sum(dim=1)).mean().item()


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
    assert len(parts) == clients
    assert all(part.dtype == torch.int64 for part in parts)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(samples))
    assert min(len(part) for part in parts) >= (3 if isinstance(partition, Dirichlet) else 1)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_key_and_nothing_else_decides(partition: Partition) -> None:
    y = balanced(20)
    first, again, other = (partition.split(y, 8, 10, Key(seed)) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_iid_sizes_differ_by_at_most_one_and_samples_are_shuffled() -> None:
    parts = IID().split(balanced(1), 4, 10, Key(0))
    assert [len(part) for part in parts] == [3, 3, 2, 2]
    assert torch.cat(parts).tolist() != list(range(10))


def test_shards_by_hand_keep_the_order_of_a_label_and_are_rarely_neighbours() -> None:
    y = torch.tensor([2, 0, 1, 0, 2, 1])
    # Sorted by label, ties in order: rows 1 3 | 2 5 | 0 4.
    parts_of_one = Shards(classes=1).split(y, 3, 3, Key(0))
    assert sorted(part.tolist() for part in parts_of_one) == [[0, 4], [1, 3], [2, 5]]
    parts = Shards(classes=1).split(balanced(40), 40, 10, Key(0))
    assert {tuple(part.diff().tolist()) for part in parts} == {(10,) * 9}
    y = balanced(40)
    counts = table(y, Shards().split(y, 20, 10, Key(0)))  # 40 shards of 10 samples, 4 a label
    assert set(counts.sum(dim=1).tolist()) == {20}
    assert set(counts.flatten().tolist()) <= {0, 10, 20}
    pairs = [row.nonzero()[:, 0].tolist() for row in counts]
    assert any(pair[-1] - pair[0] > 1 for pair in pairs)


def test_a_huge_beta_gives_every_client_the_same_mix() -> None:
    y = balanced(100)
    cut, drawn = (
        (table(y, Dirichlet(beta=1e9, by=by).split(y, 10, 10, Key(0))) - 10).abs().float()
        for by in BY
    )
    assert cut.max() <= 1
    assert drawn.mean() < 4.16  # over 200 seeds 2.79 +- 0.27; with beta = 1 it is 14.2 +- 0.6


@pytest.mark.parametrize("by", BY)
def test_which_samples_of_a_class_a_client_gets_is_drawn_too(by: By) -> None:
    first, other = (
        set(Dirichlet(beta=1e9, by=by).split(balanced(100), 10, 10, Key(seed))[0].tolist())
        for seed in (1, 2)
    )
    assert len(first & other) < 30  # of 100: ten by chance, sd 3


@pytest.mark.parametrize(
    ("by", "floor"),
    [
        ("class", 0.38),  # over 200 seeds 0.611 +- 0.045; with beta = 1 it is 0.284 +- 0.017
        ("client", 0.66),  # over 200 seeds 0.901 +- 0.048; with beta = 1 it is 0.670 +- 0.043
    ],
)
def test_a_small_beta_gives_clients_few_labels(by: By, floor: float) -> None:
    y = balanced(100)
    assert top_share(table(y, Dirichlet(beta=0.1, by=by).split(y, 20, 10, Key(0)))) > floor


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


def test_a_starving_client_is_fed_by_whoever_is_largest_from_any_class() -> None:
    # 6, 5, 0: one from the first, then 5 = 5 and the first gives, then the second.
    parts = [np.arange(6), np.arange(6, 11), np.arange(0)]
    filled = fill_up(parts, 3, Key(0))
    assert [len(part) for part in filled] == [4, 4, 3]
    assert sorted(np.concatenate(filled).tolist()) == list(range(11))
    parts = [np.arange(100), np.arange(0)]
    got = fill_up(parts, 10, Key(0))[1]
    assert got.min() < 40  # the last ten would start at 90
    assert got.max() > 20  # the first ten would end at 9
    taken = Dirichlet(beta=0.01).split(balanced(5), 5, 10, Key(0))
    assert [len(part) for part in taken] == [10] * 5


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (IID(), 11, "iid needs at least 1 for each of 11 clients, so 11 samples, got 10"),
        (Shards(), 6, "shards:classes=2 needs .* so 12 samples, got 10"),
        (Dirichlet(minimum=4), 3, "dirichlet:minimum=4 needs .* so 12 samples, got 10"),
        (IID(), 0, "clients must be >= 1, got 0"),
        (Dirichlet(), 0, "clients must be >= 1, got 0"),
        (Shards(), -1, "clients must be >= 1, got -1"),
    ],
)
def test_too_many_clients_are_refused(partition: Partition, clients: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        partition.split(balanced(1), clients, 10, Key(0))


@pytest.mark.parametrize("beta", [0.0, -1.0, float("nan"), float("inf")])
def test_beta_must_be_positive(beta: float) -> None:
    with pytest.raises(ConfigError, match=r"Dirichlet.beta must be finite and > 0, got"):
        Dirichlet(beta=beta)


def test_the_other_fields_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"Dirichlet.by must be 'class' or 'client', got 'size'"):
        Dirichlet(by="size")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Dirichlet.minimum must be >= 1, got 0"):
        Dirichlet(minimum=0)
    with pytest.raises(ConfigError, match=r"Shards.classes must be >= 1, got 0"):
        Shards(classes=0)


@pytest.mark.parametrize(
    ("n", "sizes"),
    [
        (3, (1, 1, 1)),
        (4, (2, 1, 1)),
        (10, (7, 1, 2)),
        (15, (10, 2, 3)),
        (17, (12, 2, 3)),
        (18, (12, 2, 4)),
        (36, (25, 4, 7)),
        (70, (49, 7, 14)),
    ],
)
def test_a_client_splits_70_10_20(n: int, sizes: tuple[int, int, int]) -> None:
    rows = torch.arange(100, 100 + n)
    parts = split_client(rows, Key(3))
    assert tuple(len(part) for part in parts) == sizes
    assert torch.equal(torch.cat(parts).sort().values, rows)


def test_a_split_is_shuffled_by_its_key_and_needs_three_samples() -> None:
    rows = torch.arange(40)
    first, again, other = (torch.cat(split_client(rows, Key(seed))) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, rows)
    with pytest.raises(ConfigError, match=r"at least 3 samples .* got 2"):
        split_client(torch.arange(2), Key(0))
