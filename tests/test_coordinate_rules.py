"""Rules that sort coordinates, and prefilters: numbers by hand, breakdown points, spoilt rows."""

import pytest
import torch
from rules import answer, column, draw, kept, view_of
from torch import Tensor

from fedbench.api import Chain, Prefilter, ServerView
from fedbench.core import registry
from fedbench.core.errors import PluginError
from fedbench.core.order_statistics import batcher, by_tiles, selector, sorted_rows, sorted_tile
from fedbench.core.rng import Key
from fedbench.payload import BinaryMasks, FloatVectors, Payload, Rankings, SignBits, ranking
from fedbench_defenses.bulyan import Bulyan
from fedbench_defenses.distances import krum_picks, squared_distances
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import MeaMed, Median
from fedbench_defenses.mixing import Bucketing
from fedbench_defenses.multi_krum import MultiKrum
from fedbench_defenses.norm_bound import ARC, Clip
from fedbench_defenses.oracle import Informed, Oracle


@pytest.mark.parametrize("n", [1, 2, 7, 31, 32, 33, 50, 64, 65, 101])
def test_sorted_rows_are_torchs_with_nan_last(n: int) -> None:
    x = Key(n).normal(n, 300)
    x[n // 2, ::3], x[0, ::5] = torch.nan, -torch.inf
    for values in (x, x.nan_to_num(0.5), (100 * x.nan_to_num(0.0, 1, 1)).int(), x.T.clone().T):
        ours, theirs = sorted_rows(values), values.sort(dim=0).values
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.nan_to_num(9.0), theirs.nan_to_num(9.0))


@pytest.mark.parametrize("n", [5, 40])
def test_tiles_are_sorted_alike_and_cover_every_column(n: int) -> None:
    x = Key(n).normal(n, (1 << 14) + 5)
    before = x.clone()
    assert torch.equal(by_tiles(x, lambda rows: rows[1]), x.sort(dim=0).values[1])
    rows = torch.arange(0, n, 2)
    assert torch.equal(by_tiles(x, lambda t: t[-1], rows), x[rows].amax(dim=0))
    two = by_tiles(x, lambda t: t.T, ranks=range(1, 3))
    assert torch.equal(two.T, x.sort(dim=0).values[1:3])
    assert torch.equal(x, before)


@pytest.mark.parametrize("n", [1, 2, 5, 16, 25, 32])
def test_a_network_for_some_ranks_finds_these_and_leaves_comparisons_out(n: int) -> None:
    # Zeros and ones show every mistake of a sorting network (Knuth, section 5.3.4, theorem Z).
    x = (Key(n).uniform(n, 4096) < 0.5).float()
    for ranks in (range(n // 2, n // 2 + 1), range(n // 5, n - n // 5), range(n)):
        assert torch.equal(sorted_tile(x, ranks), x.sort(dim=0).values[list(ranks)])
    assert selector(n, range(n)) == batcher(n)
    median = selector(n, range(n // 2, n // 2 + 1))
    assert len(median) < len(batcher(n)) or n < 3


def test_meamed_averages_what_is_nearest_to_the_median_and_not_what_is_in_the_middle() -> None:
    # Sorted -9, 0, 4, 5, 6, f = 2: nearest to 4 are 5, 6, 4; the middle three would give 3.
    assert answer(MeaMed(f=2), column(6, -9, 4, 0, 5)).item() == 5.0
    # f = 1 drops -9 alone: (0 + 4 + 5 + 6) / 4.
    assert answer(MeaMed(f=1), column(6, -9, 4, 0, 5)).item() == 3.75
    # 1 and 5 are as near to 3: the lower one stays.
    assert answer(MeaMed(f=1), column(5, 3, 1)).item() == 2.0
    # Even: the median of 0, 1, 2, 5, 6, 20 is 3.5; next to it are 2, 5, 1 and 6. The lower median,
    # 2, has 0 and not 6 beside it: 2.
    assert answer(MeaMed(f=2), column(6, 20, 0, 5, 2, 1)).item() == 3.5
    # Bits 0 0 0 1 1 1 1, median 1: the five nearest are all four 1 and one 0, never three 0.
    assert answer(MeaMed(f=2), column(0, 1, 0, 1, 1, 0, 1)).item() == pytest.approx(0.8)


def test_d2_bulyan_by_hand_picks_no_row_twice() -> None:
    # n = 7, f = 1, five picks by 4, 3, 2, 1 and 1 neighbours of 0 1 3 6 10 15 40: the row 3 with
    # 4 + 9 + 9 + 49 = 71 (1 has 111, 6 has 86); then of 0 1 6 10 15 40 the row 6 with 16 + 25 +
    # 36; of 0 1 10 15 40 the row 0 ties with no one: 1 + 100, row 1: 1 + 81, row 10: 25 + 81, so 1;
    # of 0 10 15 40 the pair 10, 15, of which 10 is nearer to all; then 15 and 0 at 225, 15 first
    # by 225 + 625 against 225 + 1600. Of 1 3 6 10 15 the 3 nearest to 6 are 3 6 and, 4 away, 10.
    x = column(40, 0, 15, 1, 10, 3, 6)
    view = view_of(x)
    out = answer(Bulyan(f=1), x, view)
    assert sorted(x[kept(view)][:, 0].tolist()) == [1, 3, 6, 10, 15]
    assert out.item() == pytest.approx(19 / 3)
    for seed in range(20):
        assert int(krum_picks(squared_distances(draw(seed, 15, 4)), 9, 3).sum()) == 9


SPOILERS = [torch.nan, torch.inf, -torch.inf, 1e30]


def passed(first: Prefilter, x: Tensor, seed: int = 0) -> Tensor:
    before = x.clone()
    out, _ = first.transform(FloatVectors(x), view_of(x, seed))
    assert torch.equal(x.nan_to_num(7.0), before.nan_to_num(7.0)), "written into"
    return out.values()


def test_d3_every_row_is_in_exactly_one_bucket_of_its_size() -> None:
    # Powers of two: the sum of a bucket tells its rows. Eleven rows by three: 3, 3, 3 and 2.
    x = 2.0 ** torch.arange(11)[:, None]
    drawn = set()
    for seed in range(30):
        means = passed(Bucketing(s=3), x, seed)[:, 0]
        counts = torch.tensor([3.0, 3.0, 3.0, 2.0])
        sums = (means * counts).round().int().tolist()
        assert [bin(bucket).count("1") for bucket in sums] == [3, 3, 3, 2]
        assert sum(sums) == 2**11 - 1
        drawn.add(tuple(sums))
    assert len(drawn) > 20
    assert Bucketing(s=3).rows(11) == 4
    x = draw(1, 5, 3)
    assert torch.equal(passed(Bucketing(s=1), x), x)
    torch.testing.assert_close(passed(Bucketing(s=9), x), x.mean(dim=0, keepdim=True))


def test_a_bad_row_spoils_one_bucket() -> None:
    pair = registry.load("defense", "bucketing:s=2+trimmed-mean:f=2")
    x = draw(2, 11, 4)
    assert (pair.tolerates(11), pair.rows_needed()) == (2, 9)
    for far in SPOILERS:
        bad = x.clone()
        bad[[3, 8]] = far
        for seed in range(10):
            assert int(passed(Bucketing(), bad, seed).abs().amax(dim=1).ge(1e8).sum()) <= 2
            assert float(answer(pair, bad, view_of(bad, seed)).abs().max()) <= float(x.abs().max())
    mixed = passed(Bucketing(s=2), x.int().float())
    assert mixed.shape == (6, 4)
    rankings = Rankings(ranking(draw(4, 5, 6), (6,)), (6,))
    out, _ = Bucketing(s=5).transform(rankings, view_of(rankings))
    torch.testing.assert_close(out.values()[0], rankings.values().float().mean(dim=0))


def test_clip_goes_to_the_median_norm_about_the_middle_of_the_alphabet() -> None:
    # Norms 5, 1, 10, 2: the median is 3.5, and 5 -> 3.5 keeps the direction 3 : 4.
    x = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, -10.0], [0.0, 2.0]])
    expected = [[2.1, 2.8], [1.0, 0.0], [0.0, -3.5], [0.0, 2.0]]
    torch.testing.assert_close(passed(Clip(), x), torch.tensor(expected))
    assert passed(Clip(c=5.0), x)[2].tolist() == [0.0, -5.0]
    masks = BinaryMasks(torch.tensor([[True, False]]), torch.zeros(1, 0))
    for why in (Clip().refuses(BinaryMasks), ARC().refuses(SignBits)):
        assert why == "would be the plain mean, since all messages of one length have one norm"
    out, _ = Clip(c=0.5**1.5).transform(masks, view_of(masks))
    torch.testing.assert_close(out.values(), torch.tensor([[0.75, 0.25]]))


def test_arc_clips_its_k_largest_norms_to_the_next_one_and_chains_tolerate_as_links_do() -> None:
    # n = 5, f = 1: k = floor(2 * 4 / 5) = 1; f = 2: floor(4 * 3 / 5) = 2. Norms 10, 7, 4, 2, 1.
    x = column(4, -10, 1, 7, 2)
    assert passed(ARC(f=0), x).tolist() == x.tolist()
    assert passed(ARC(f=1), x)[:, 0].tolist() == [4, -7, 1, 7, 2]
    assert passed(ARC(f=2), x)[:, 0].tolist() == [4, -4, 1, 4, 2]
    assert [ARC(f=3)._k(n) for n in (7, 10, 12)] == [3, 4, 4]
    firsts: list[Prefilter] = [Clip(), Clip(c=3.0), ARC(f=4), Bucketing(s=4)]
    chains = [Chain(first, Mean()) for first in firsts]
    assert [chain.tolerates(12) for chain in chains] == [5, 11, 5, 0]
    assert [chain.traits().scale for chain in chains] == [True, False, True, True]
    assert [chain.traits().shift for chain in chains] == [False, False, False, True]


class Nosy(Median):
    """It must not be shown who is malicious."""

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        assert view.truth is None
        return super().aggregate(received, state, view)


def test_an_oracle_gives_every_f_of_a_chain_the_truth_and_nothing_else() -> None:
    text = "oracle+nnm:f=1+arc+multi-krum:f=3,m=3"
    rule = registry.load("defense", text)
    assert isinstance(rule, Informed)
    assert rule.traits().oracle
    x = draw(7, 9, 4)
    shown = view_of(x, truth=torch.arange(9) < 2)
    known = registry.load("defense", "nnm:f=2+arc:f=2+multi-krum:f=2,m=3")
    informed = answer(rule.declared(3), x, shown)
    assert torch.equal(informed, answer(known, x))
    uninformed = registry.load("defense", text.split("+", 1)[1]).declared(3)
    assert not torch.equal(informed, answer(uninformed, x))
    answer(Oracle().before(Nosy()), x, shown)
    with pytest.raises(PluginError, match=r"oracle.* must be told the truth"):
        answer(registry.load("defense", "bucketing+oracle+krum"), x)


def test_an_oracle_is_ready_if_the_rule_that_was_told_is_and_passes_on_what_it_left_out() -> None:
    x = draw(9, 9, 4)
    rule = Oracle().before(MultiKrum(f=9))
    assert rule.rows_needed() == 3
    assert rule.ready(view_of(x, truth=torch.arange(9) < 3))
    four = view_of(x, truth=torch.arange(9) < 4)
    assert not rule.ready(four)
    assert Oracle().before(registry.load("defense", "mda:f=9")).ready(four)
    assert rule.tolerates(9) == 3
    assert Oracle().before(Median()).tolerates(9) == 4
    changes = [Oracle().before(rule).sensitivity(2.0, 8) for rule in (Mean(), MultiKrum())]
    assert changes == [0.5, None]  # another row may be another f
    x[5] = 1e6
    shown = view_of(x, truth=torch.arange(9) == 5)
    answer(Oracle().before(MultiKrum()), x, shown)
    assert kept(shown) == [i != 5 for i in range(9)]
