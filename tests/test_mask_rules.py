"""Rules and filters for bits and rankings that were not made for vectors."""

import itertools
import math
from typing import cast

import pytest
import torch
from rules import answer, kept, view_of
from torch import Tensor

from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.payload import BinaryMasks, FloatVectors, Payload, Rankings, SignBits, TopRankings
from fedbench.protocols.fsl import FailureBound
from fedbench_defenses import bit_votes
from fedbench_defenses.bit_votes import DensityFilter, EntropyFilter, LogOddsCap, VoteMargin
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median, TrimmedMean
from fedbench_defenses.ranking_votes import RankMargin, ReputationClipping, reach, settled


def masks(bits: Tensor, signed: bool = False) -> BinaryMasks:
    return BinaryMasks(bits.bool(), torch.zeros(len(bits), 0), signed)


def drawn(seed: int, n: int, d: int, p: float = 0.5) -> Tensor:
    """Bits of rows that agree in 80 % of the coordinates with one that has a share ``p``."""
    return (Key(seed).uniform(1, d) < p) ^ (Key(seed).fold("own").uniform(n, d) < 0.2)


def passed(prefilter: bit_votes.BitFilter, received: Payload) -> list[int]:
    sent, rows = prefilter.transform(received, view_of(received))
    assert rows is not None
    assert type(sent) is type(received)
    assert torch.equal(sent.values(), received.values()[rows])
    return cast(list[int], rows.tolist())


def test_what_is_made_for_bits_or_rankings_refuses_floats() -> None:
    for rule in (LogOddsCap(), VoteMargin(), DensityFilter(), EntropyFilter()):
        assert rule.refuses(FloatVectors) == "works on BinaryMasks, SignBits"
        assert rule.refuses(SignBits) is None
    assert ReputationClipping().refuses(SignBits) == "works on Rankings, TopRankings"
    for prefilter in (
        DensityFilter(),
        EntropyFilter(),
        DensityFilter(width=1.0),
    ):  # they pass at least half and tolerate what rules do
        assert [prefilter.rows(n) for n in (7, 8)] == [4, 4]
        assert [prefilter.tolerates(n, Median()) for n in (8, 9)] == [1, 2]
        assert prefilter.rows_needed(TrimmedMean(f=2)) == 9
        assert not prefilter.mixes


def test_the_pseudo_count_is_the_smallest_that_caps_every_step() -> None:
    def largest_step(n: int, a: float) -> float:
        odds = [math.log((s + a) / (n - s + a)) for s in range(n + 1)]
        return max(b - a for a, b in itertools.pairwise(odds))

    for n, c in itertools.product((1, 2, 3, 10, 25, 100), (0.02, 0.1, 0.5, 1.0, 3.0, 20.0)):
        a = bit_votes.pseudo_count(n, c)
        assert largest_step(n, a) == pytest.approx(c, rel=1e-9)
        assert largest_step(n, 0.99 * a) > c


def test_log_odds_cap_shrinks_shares_to_a_half() -> None:
    # n = 2, c = ln 3: (a + 1)(a + 2) = 3 a (a + 1), so a = 1: Laplace's rule, (s + 1) / 4.
    bits = torch.tensor([[0, 1, 1], [0, 0, 1]])
    rest = torch.tensor([[1.0], [4.0]])
    rule = LogOddsCap(c=math.log(3))
    expected = torch.tensor([0.25, 0.5, 0.75]).double()
    torch.testing.assert_close(answer(rule, masks(bits)), expected)
    torch.testing.assert_close(answer(rule, SignBits(bits.bool())), 2 * expected - 1)
    both = BinaryMasks(bits.bool(), rest, signed=True)
    out = torch.tensor([-0.5, 0, 0.5, 2.5]).double()
    torch.testing.assert_close(answer(rule, both), out)
    assert not torch.equal(answer(rule, masks(bits)), answer(Mean(), masks(bits)))


def of_density(*ones: int, d: int = 10) -> BinaryMasks:
    return masks(torch.stack([(torch.arange(d) < count) for count in ones]))


def test_the_density_filter_counts_median_deviations_of_a_bit_at_least() -> None:
    # Ones 5, 5, 6, 4, 9: the median is 5, deviations 0, 0, 1, 1, 4, of which the median is 1.
    # Mean and standard deviation, 5.8 and 1.72, would keep 9 within 2 of them.
    sent = of_density(5, 5, 6, 4, 9)
    assert passed(DensityFilter(width=4.0), sent) == [0, 1, 2, 3, 4]
    assert passed(DensityFilter(width=3.9), sent) == [0, 1, 2, 3]
    sent = of_density(5, 5, 5, 5, 6, 7, 8)
    assert passed(DensityFilter(width=1.0), sent) == [0, 1, 2, 3, 4]
    assert passed(DensityFilter(width=2.0), sent) == [0, 1, 2, 3, 4, 5]
    same = masks(torch.ones(7, 30))
    assert passed(EntropyFilter(), same) == list(range(7))
    same.mask[3, 2] = False  # one bit against all: just the smallest deviation
    assert passed(EntropyFilter(width=1.0), same) == list(range(7))
    same.mask[3, :9] = False
    assert passed(EntropyFilter(), same) == [0, 1, 2, 4, 5, 6]
    # A mask may be too sparse, but not too typical.
    assert passed(DensityFilter(width=3.9), of_density(5, 5, 4, 6, 1)) == [0, 1, 2, 3]
    bits = drawn(3, 9, 400)
    bits[0] = bits.sum(dim=0) > 4
    surprise = bit_votes.surprises(masks(bits))
    deviates = (surprise - surprise.median()).abs().median()
    assert float(surprise.median() - surprise[0]) > 10 * float(deviates)
    assert 0 in passed(EntropyFilter(), masks(bits))


def test_surprise_is_the_cross_entropy_under_the_others_in_every_tile() -> None:
    for seed in range(20):
        bits = drawn(seed, 3 + seed % 6, 17)
        expected = []
        for i, row in enumerate(bits.tolist()):
            others = [other for j, other in enumerate(bits.tolist()) if j != i]
            cost = 0.0
            for j, bit in enumerate(row):
                same = sum(other[j] == bit for other in others)
                cost -= math.log2((same + 1) / (len(others) + 2))
            expected.append(cost / len(row))
        for sent in (masks(bits), SignBits(bits)):
            assert bit_votes.surprises(sent).tolist() == pytest.approx(expected)
    bits = drawn(0, 3, 70_000)
    parts = (bits[:, :40_000], bits[:, 40_000:])
    left, right = (bit_votes.surprises(masks(part)) for part in parts)
    torch.testing.assert_close(bit_votes.surprises(masks(bits)), (4 * left + 3 * right) / 7)


def test_a_complement_passes_the_density_filter_and_not_the_entropy_filter() -> None:
    half = torch.arange(400) < 200
    bits = torch.stack([half[Key(1).permutation(400)]] * 9)
    for i in range(9):  # every client moves 20 ones elsewhere
        ones = bits[i].nonzero()[:, 0]
        zeros = (~bits[i]).nonzero()[:, 0]
        bits[i, ones[Key(2).fold(i).permutation(200)[:20]]] = False
        bits[i, zeros[Key(3).fold(i).permutation(200)[:20]]] = True
    bits[4] = ~bits[4]
    for sent in (masks(bits), masks(bits, signed=True), SignBits(bits)):
        assert 4 in passed(DensityFilter(width=1.0), sent)
        assert 4 not in passed(EntropyFilter(), sent)
        assert len(passed(EntropyFilter(), sent)) == 8


def test_a_filter_in_front_of_a_rule_says_which_rows_it_left_out() -> None:
    rule = registry.load("defense", "entropy-filter:width=3+density-filter+mean")
    bits = drawn(5, 9, 300)
    bits[2], bits[6] = ~bits[2], True
    view = view_of(masks(bits))
    out = answer(rule, masks(bits), view)
    assert kept(view) == [i not in (2, 6) for i in range(9)]
    torch.testing.assert_close(out, bits[kept(view)].float().mean(dim=0))


def positions(*rows: list[int], sizes: tuple[int, ...]) -> Rankings:
    blank = torch.zeros(len(rows), sum(sizes), dtype=torch.int32)
    return Rankings(blank, sizes).nearest(torch.tensor(rows))


def test_positions_are_clipped_around_the_median_position_or_not_at_all() -> None:
    # Medians 1, 1, 2, 3, 4 and a reach of 1: 0 1 2; 1 0 2; 2 2 2; 3 3 2; 4 4 3. VOTE's means are
    # 5/3, 4/3, 2, 7/3, 8/3. A second layer of 2 edges has a reach of 0.4: medians 0, 1.
    sent = positions([0, 1, 2, 3, 4], [1, 0, 2, 3, 4], [4, 3, 2, 1, 0], sizes=(5,))
    out = answer(ReputationClipping(width=0.2), sent)
    torch.testing.assert_close(out, torch.tensor([1, 1, 2, 8 / 3, 11 / 3]).double())
    two = positions([0, 1, 2, 0, 1], [0, 1, 2, 0, 1], [2, 1, 0, 1, 0], sizes=(3, 2))
    out = answer(ReputationClipping(width=0.5), two)
    torch.testing.assert_close(out, torch.tensor([0.5, 1, 1.5, 1 / 3, 2 / 3]).double())
    torch.testing.assert_close(answer(ReputationClipping(width=1.0), two), answer(Mean(), two))
    # Two of four edges are sent. Positions 0 0 3, 2 2 0 and 3 3 2, and a reach of 0.4.
    top = TopRankings(torch.tensor([[1, 2], [1, 2], [2, 0]], dtype=torch.int32), (4,), (2,))
    out = answer(ReputationClipping(width=0.1), top)
    torch.testing.assert_close(out, torch.tensor([0.4, 5.6, 8.6, 0]).double() / 3)


def test_the_certificate_is_exact_for_every_choice_of_rows_and_bits() -> None:
    def majority(bits: tuple[int, ...]) -> int:
        ones = sum(bits)
        n = len(bits)
        return (2 * ones > n) - (2 * ones < n)  # 0 is a tie

    for n in range(1, 7):
        votes = list(itertools.product((0, 1), repeat=n))
        for s, f in itertools.product(range(n + 1), range(n)):
            sent = tuple(int(i < s) for i in range(n))
            near = [v for v in votes if sum(a != b for a, b in zip(v, sent, strict=True)) <= f]
            holds = majority(sent) != 0 and all(majority(v) == majority(sent) for v in near)
            missing = int(bit_votes.votes_to_overturn(torch.tensor([float(s)]), n))
            assert (missing > f) == holds, (n, s, f)


def test_vote_margin_answers_the_mean_and_certifies_coordinates() -> None:
    # Ones 5, 4, 3, 1 of 5: |2 s - n| = 5, 3, 1, 3; with f = 1 more than 2 is needed. Votes to
    # overturn: 3, 2, 1, 2. Agreement (5 + 4 + 3 + 4) / 20.
    bits = torch.stack([torch.arange(5) < s for s in (5, 4, 3, 1)], dim=1)
    view = view_of(masks(bits))
    out = answer(VoteMargin(f=1), masks(bits), view)
    torch.testing.assert_close(out, torch.tensor([1, 0.8, 0.6, 0.2]).double())
    bound = pytest.approx(FailureBound(n=5, p=0.8, alpha=0.2).cantelli)
    found = {"failure_bound": bound, "failure_bound_valid": True}
    assert view.findings.notes == {"certified": 0.75, "margin": 2.0} | found
    for sent in (SignBits(bits), BinaryMasks(bits, torch.tensor([[1.0]] * 4 + [[6.0]]), True)):
        torch.testing.assert_close(answer(VoteMargin(f=1), sent), answer(Mean(), sent).double())
    view = view_of(masks(drawn(0, 5, 30)))
    answer(VoteMargin(f=4), masks(drawn(0, 5, 30)), view)
    found = {"certified": 0.0, "failure_bound": 1.0, "failure_bound_valid": False}  # F4
    assert view.findings.notes == view.findings.notes | found


def test_rank_margin_answers_the_vote_and_certifies_edges() -> None:
    # Sums 1, 5, 9, 15. With one row replaced: least 0, 3, 7, 12, greatest 4, 8, 11, 15. Two are
    # kept: edge 3 is in (at 12 none reaches it), edge 0 out (2 and 3 exceed 4); 1 and 2 may change.
    sent = positions(*[[0, 1, 2, 3]] * 3, [1, 0, 2, 3], [0, 2, 1, 3], sizes=(4,))
    view = view_of(sent)
    out = answer(RankMargin(f=1), sent, view)
    torch.testing.assert_close(out, torch.tensor([0.2, 1.0, 1.8, 3.0]).double())
    # Positions of 2 and more count as kept: 0, 1, 4, 5 of 5, so 5 + 4 + 4 + 5 agree of 20.
    bound = pytest.approx(FailureBound(n=5, p=0.9, alpha=0.2).cantelli)
    found = {"certified": 0.5, "failure_bound": bound, "failure_bound_valid": True}
    assert view.findings.notes == found
    for k, certified in ((0.25, 1.0), (0.75, 0.5), (1.0, 1.0)):
        answer(RankMargin(f=1, k=k), sent, view)
        assert view.findings.notes["certified"] == certified, k


def test_an_edge_that_may_tie_is_not_settled_and_layers_are_certified_apart() -> None:
    least, greatest = torch.tensor([4, 1, 0]), torch.tensor([9, 4, 3])
    assert settled(least, greatest, 1).tolist() == [False, False, True]
    assert settled(least, greatest - 1, 1).tolist() == [True, True, True]
    # Layers of 4 and 2, a half kept. In the first as above; in the second sums 0 and 5 of five
    # rows: least 0 and 4, greatest 1 and 5, so both are settled. With one last position for all,
    # 3, its greatest would be 3 and 7: settled as well; with f = 2 least 0, 3, greatest 2, 5:
    # settled, and with a last position of 3 greatest 6, 9: not.
    first = [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 2, 3], [0, 2, 1, 3]]
    sent = positions(*[[*row, 0, 1] for row in first], sizes=(4, 2))
    for f, certified in ((0, 1.0), (1, 4 / 6), (2, 2 / 6)):
        view = view_of(sent)
        answer(RankMargin(f=f), sent, view)
        assert view.findings.notes["certified"] == pytest.approx(certified), f
    # Two of four edges are sent, the best one last, with positions 2 and 3; the others have 0:
    # sums 0, 0, 8, 12, of which one row leaves 0, 0, 6, 9 at least, and 3, 3, 9, 12 at most.
    top = TopRankings(torch.tensor([[2, 3]] * 4, dtype=torch.int32), (4,), (2,))
    view = view_of(top)
    answer(RankMargin(f=1), top, view)
    assert view.findings.notes["certified"] == 1.0


@pytest.mark.parametrize("f", [1, 2])
def test_no_f_rankings_move_an_edge_that_is_certified(f: int) -> None:
    n = 5
    orders = list(itertools.permutations(range(4)))
    held = moved = 0
    for seed in range(6):
        common = 4.0 * torch.arange(4) + 4 * Key(seed).normal(n, 4)
        rows = common.argsort(dim=1).argsort(dim=1).tolist()
        for m, k in ((1, 0.25), (2, 0.5)):
            safe = [True] * 4
            best = sorted(range(4), key=[sum(r[e] for r in rows) for e in range(4)].__getitem__)
            for replaced in itertools.combinations(range(n), f):
                for others in itertools.product(orders, repeat=f):
                    after = [list(r) for r in rows]
                    for i, other in zip(replaced, others, strict=True):
                        after[i] = list(other)
                    sums = [sum(r[e] for r in after) for e in range(4)]
                    for e in range(4):
                        inside = sum(sums[o] >= sums[e] for o in range(4)) <= m
                        outside = sum(sums[o] > sums[e] for o in range(4)) >= m
                        safe[e] &= inside if e in best[4 - m :] else outside
            certain = settled(*reach(torch.tensor(rows), f, torch.tensor([3] * 4)), m).tolist()
            assert not any(edge and not so for edge, so in zip(certain, safe, strict=True))
            sent = positions(*rows, sizes=(4,))
            view = view_of(sent)
            answer(RankMargin(f=f, k=k), sent, view)
            assert view.findings.notes["certified"] == sum(certain) / 4
            held, moved = held + sum(certain), moved + 4 - sum(safe)
    assert held > 0
    assert moved > 0
