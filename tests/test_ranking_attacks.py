"""Attacks on rankings: which edges can be moved over the cut, and how many of them are."""

import itertools

import pytest
import torch
from torch import Tensor

from fedbench.adversary.threat_model import attack_view
from fedbench.core.rng import Key
from fedbench.payload import Rankings, TopRankings, ranking
from fedbench.protocols.fsl import kept_edges
from fedbench.testing import example_context
from fedbench_attacks.rankings import RankReversal, Shuffle, Swap
from fedbench_attacks.vem import VEM, Cut, largest_true
from fedbench_defenses.mean import Mean


def rows_of(size: int, n: int, noise: float, seed: int = 0) -> Tensor:
    """``(n, size)`` scores that agree up to ``noise``."""
    key = Key(seed).fold("rows", size, n)
    return key.normal(size) + noise * key.fold("noise").normal(n, size)


def sums(size: int, n: int, seed: int) -> Tensor:
    positions = Rankings(ranking(rows_of(size, n, 0.5, seed), (size,)), (size,)).values()
    return positions.sum(dim=0, dtype=torch.int64)


def every_sum(cut: Cut) -> Tensor:
    """``(choices, n)``: all that m rankings can add up to."""
    orders = torch.tensor(list(itertools.permutations(range(cut.n))))
    added = orders
    for _ in range(cut.m - 1):
        added = (added[:, None] + orders[None]).reshape(-1, cut.n)
        added = torch.unique(added, dim=0)
    return added


def outcomes(cut: Cut, added: Tensor) -> Tensor:
    after = (cut.key + cut.n * added).argsort(dim=1)[:, cut.n - cut.k :]
    return torch.zeros(len(after), cut.n, dtype=torch.bool).scatter_(1, after, True)


def kept(cut: Cut) -> Tensor:
    return torch.zeros(cut.n, dtype=torch.bool).index_fill_(0, cut.order[cut.n - cut.k :], True)


def moved(cut: Cut, added: Tensor) -> int:
    """The most edges that one of these choices brings over the cut."""
    return int((outcomes(cut, added) & ~kept(cut)).sum(dim=1).max())


def best(cut: Cut) -> tuple[Tensor, int, int]:
    most = min(cut.vulnerable())
    count = largest_true(cut.common, 0, most)
    return cut.position(count), count, largest_true(cut.conceivable, count, most)


@pytest.mark.parametrize(("n", "m", "b"), [(4, 1, 2), (5, 1, 3), (5, 1, 7), (4, 2, 4), (4, 3, 6)])
def test_vem_is_the_best_common_ranking_within_its_limit(n: int, m: int, b: int) -> None:
    for seed in range(10):
        for k in range(1, n):
            cut = Cut(sums(n, b, seed), k, m)
            position, count, limit = best(cut)
            assert torch.equal(position.sort().values, torch.arange(n))
            same = torch.tensor(list(itertools.permutations(range(n))))
            assert moved(cut, m * position[None]) == count == moved(cut, m * same)
            assert count <= moved(cut, every_sum(cut)) <= limit


@pytest.mark.parametrize(("n", "m", "b"), [(5, 1, 3), (5, 1, 12), (4, 2, 9)])
def test_an_edge_that_any_choice_moves_lies_between_the_bounds(n: int, m: int, b: int) -> None:
    bounded = 0
    for seed in range(10):
        for k in range(1, n):
            cut = Cut(sums(n, b, seed), k, m)
            moves = (outcomes(cut, every_sum(cut)) != kept(cut)).any(dim=0)
            leaves, enters = cut.vulnerable()
            order, at = cut.order, n - k
            assert not bool(moves[order[at + leaves :]].any())
            assert not bool(moves[order[: at - enters]].any())
            bounded += n - leaves - enters
    assert bounded > 0


def test_bounds_count_a_tie_as_the_server_does_and_the_new_top_is_lifted_by_its_smallest() -> None:
    # Two edges, one colluder, which adds 0 and 1. Sums 0 and 1: the first can tie, and the higher
    # index wins. Sums 1 and 0: the second can tie, and does win. Sums 2 and 0: nothing.
    for s, counts in (([0, 1], (0, 0)), ([1, 0], (1, 1)), ([2, 0], (0, 0))):
        cut = Cut(torch.tensor(s), 1, 1)
        assert cut.vulnerable() == counts
        assert best(cut)[1] == counts[0]
    # Sums 0, 4, 5, 9 of four edges, two are kept, one colluder: it can lift edge 1 to 4 + 3 = 7 and
    # leave edge 2 at 5 + 0; edge 3, secure, takes position 2, edge 0 position 1.
    position, count, _ = best(Cut(torch.tensor([0, 4, 5, 9]), 2, 1))
    assert position.tolist() == [1, 3, 0, 2]
    assert count == 1


@pytest.mark.parametrize("noise", [0.5, 5.0])
def test_what_is_moved_is_at_most_one_edge_from_the_limit_of_all_rankings(noise: float) -> None:
    for seed in range(5):
        positions = Rankings(ranking(rows_of(100, 20, noise, seed), (100,)), (100,)).values()
        cut = Cut(positions.sum(dim=0, dtype=torch.int64), 50, 5)
        position, count, limit = best(cut)
        assert moved(cut, 5 * position[None]) == count >= limit - 1
        assert 0 < limit <= 50


def moved_by(attack: object, rankings: Rankings, m: int) -> int:
    """Edges that the server keeps with the attack, and would not without."""
    view = attack_view(attack, example_context(rankings, Mean(), range(m)))  # type: ignore[arg-type]
    sent, _ = attack.craft(view, None)  # type: ignore[attr-defined]
    total = 0
    benign = rankings.values()[m:].sum(dim=0, dtype=torch.int64)
    both = benign + sent.values().sum(dim=0, dtype=torch.int64)
    for s, t in zip(
        torch.split(benign, list(rankings.sizes)),
        torch.split(both, list(rankings.sizes)),
        strict=True,
    ):
        k, n = kept_edges(len(s), 0.5), len(s)
        top = [set(ranking(x[None], (n,))[0, n - k :].tolist()) for x in (s, t)]
        total += len(top[1] - top[0])
    return total


def test_vem_moves_more_than_reversal_swap_and_shuffle_and_counts_what_it_moves() -> None:
    sizes = (300, 41)
    rankings = Rankings(ranking(rows_of(341, 20, 0.7), sizes), sizes)
    counts = {type(a).__name__: moved_by(a, rankings, 4) for a in (VEM(), RankReversal(), Swap())}
    counts["Shuffle"] = moved_by(Shuffle(), rankings, 4)
    assert counts["VEM"] > 1.5 * max(counts[name] for name in ("RankReversal", "Swap", "Shuffle"))
    view = attack_view(VEM(), example_context(rankings, Mean(), range(4)))
    VEM().craft(view, None)
    assert view.notes["moved"] == counts["VEM"]
    blind = moved_by(VEM(knows="colluders"), rankings, 4)
    assert counts["Shuffle"] < blind <= counts["VEM"]


def test_swapped_parts_keep_their_order_and_a_top_ranking_gets_absent_edges() -> None:
    # Five edges, k = 0.5 keeps three: positions 0, 1 become 3, 4 and 2, 3, 4 become 0, 1, 2.
    own = Rankings(torch.tensor([[4, 1, 0, 3, 2]], dtype=torch.int32), (5,))
    view = attack_view(Swap(), example_context(own, Mean(), [0]))
    sent, _ = Swap().craft(view, None)
    assert isinstance(sent, Rankings)
    assert sent.symbols.tolist() == [[0, 3, 2, 4, 1]]
    top = TopRankings(torch.tensor([[1, 3]], dtype=torch.int32), (4,), (2,))
    view = attack_view(Swap(), example_context(top, Mean(), [0]))
    sent, _ = Swap().craft(view, None)
    assert isinstance(sent, TopRankings)
    assert sent.symbols.tolist() == [[0, 2]]


def test_shuffled_rankings_are_uniform_and_each_client_has_its_own() -> None:
    own = Rankings(torch.arange(3, dtype=torch.int32).expand(1200, -1).clone(), (3,))
    view = attack_view(Shuffle(), example_context(own, Mean(), range(1200)))
    sent, _ = Shuffle().craft(view, None)
    assert isinstance(sent, Rankings)
    counts = torch.unique(sent.symbols, dim=0, return_counts=True)[1]
    assert len(counts) == 6
    assert int(counts.min()) > 140  # 200 each, minus five deviations of 13
