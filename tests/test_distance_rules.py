"""Rules that measure distances of rows: numbers by hand, breakdown points, what is not finite."""

from math import comb, inf, sqrt
from typing import Any

import pytest
import torch
from rules import answer, column, draw, view_of
from torch import Tensor

from fedbench.api import Chain, Defense
from fedbench.core.rng import Key
from fedbench.payload import (
    FloatVectors,
    KeptMessages,
    Rankings,
    SignBits,
    mixed_rows,
    ranking,
)
from fedbench_defenses.caf import CAF
from fedbench_defenses.centered_clipping import CenteredClipping
from fedbench_defenses.cge import CGE
from fedbench_defenses.distances import (
    combine,
    cosines,
    gram,
    krum_order,
    krum_picks,
    nearest_others,
    norms,
    squared_distances,
)
from fedbench_defenses.mda import MDA
from fedbench_defenses.mean import Mean
from fedbench_defenses.mixing import NNM
from fedbench_defenses.multi_krum import Krum, MultiKrum
from fedbench_defenses.nna import NNA
from fedbench_defenses.norm_bound import ARC, NormBound

# n = 8, f = 1: five neighbours. 8: 4 + 36 + 49 + 81 + 121 = 291, 15: 319, 19: 322, 17: 331.
EIGHT = column(29, 2, 17, 6, 28, 8, 15, 19)


def chosen_by(rule: Any, x: Tensor) -> list[float]:
    chosen = rule.select(squared_distances(x))
    torch.testing.assert_close(answer(rule, x), x[chosen].mean(dim=0))
    return sorted(x[chosen][:, 0].tolist())


def test_three_variants_of_multi_krum_keep_three_sets_of_rows() -> None:
    assert chosen_by(MultiKrum(f=1, m=3), EIGHT) == [8, 15, 19]
    # Without 8 four neighbours: 19: 4 + 16 + 81 + 100 = 201 before 17: 4 + 4 + 121 + 121 = 250;
    # then three: 6: 16 + 81 + 121 = 218 before 17: 246.
    assert chosen_by(MultiKrum(f=1, m=3, variant="recursive"), EIGHT) == [6, 8, 19]
    # A neighbour fewer: 15: 4 + 16 + 49 + 81 = 150 before 8: 170; then 8: 4 + 36 + 81 = 121 before
    # 6: 141; then of 2 6 17 19 28 29 with two: 28: 1 + 81 = 82 before 19: 4 + 81 = 85.
    assert chosen_by(MultiKrum(f=1, m=3, variant="public"), EIGHT) == [8, 15, 28]
    assert chosen_by(Krum(f=1), EIGHT) == [8]
    assert chosen_by(Krum(f=1, variant="public"), EIGHT) == [15]


def test_multi_krum_with_one_pick_is_krum_and_by_default_leaves_f_rows_out() -> None:
    # Scores of EIGHT in order: 8 291, 15 319, 19 322, 17 331, 6 391, 2 735, 28 772 and 29 882, as 1
    # + 100 + 144 + 196 + 441. All but 29 add up to 95; without 28, too, 67 would be left.
    assert answer(MultiKrum(f=1), EIGHT).item() == pytest.approx(95 / 7)
    assert answer(MultiKrum(f=1, m=6), EIGHT).item() == pytest.approx(67 / 6)
    assert answer(MultiKrum(f=1, m=4), EIGHT).item() == pytest.approx((8 + 15 + 19 + 17) / 4)
    for seed in range(10):
        x = draw(seed, 11, 3)
        assert torch.equal(answer(MultiKrum(f=3, m=1), x), answer(Krum(f=3), x))
        assert torch.equal(answer(MultiKrum(f=3, m=8), x), answer(MultiKrum(f=3), x))
        assert torch.equal(
            answer(Krum(f=3), x), x[int((x == answer(Krum(f=3), x)).all(1).nonzero())]
        )


def test_rows_that_tie_are_picked_by_their_distances_to_all_however_small() -> None:
    # With one neighbour 3 and 4 tie; 4 is nearer to the rest (1 + 16 + 36 + 9216 against 1 + 9 +
    # 49 + 9409), in any unit and any order.
    x = torch.tensor([0.0, 3, 4, 10, 100])[:, None]
    for scale in (1.0, 1e-11):
        for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3], [1, 0, 2, 4, 3]):
            squared = squared_distances(x.double()[order] * scale)
            (best,) = krum_picks(squared, 1, 2).nonzero()[:, 0].tolist()
            assert order[best] == 2, (scale, order)


def test_multi_krum_picks_n_minus_f_rows_or_stops_where_2f_plus_2_are_left_and_none_twice() -> None:
    x = squared_distances(draw(0, 13, 3))
    assert int(MultiKrum(f=3).select(x).sum()) == 10
    assert int(MultiKrum(f=3, variant="recursive").select(x).sum()) == 5
    assert int(MultiKrum(f=3, variant="public").select(x).sum()) == 5
    assert MultiKrum(f=3, variant="public", m=4).rows_needed() == 12
    assert MultiKrum(f=3, m=4).rows_needed() == 9
    chosen = krum_picks(torch.zeros(6, 6, dtype=torch.float64), 4, 1)
    assert chosen.tolist() == [True, True, True, True, False, False]


def crowds(x: Tensor, b: int) -> list[Tensor]:
    """The rows with ``b`` of them moved away: together, and one by one behind each other."""
    moved = []
    for near in range(b + 1):
        bad = x.clone()
        bad[:b] = 1e9
        bad[:near] = 1e4
        moved.append(bad)
    ray = x.clone()
    ray[:b] = (1e3 * 50.0 ** torch.arange(b, dtype=torch.float32))[:, None]
    spread = x.clone()
    spread[:b] *= 1e6
    return [*moved, ray, spread]


SHAPES = [(n, f) for f in (0, 1, 2) for n in range(2 * f + 3, 2 * f + 9)]


@pytest.mark.edges(
    *("3-0-canonical", "5-1-canonical", "5-1-recursive", "5-1-public", "7-2-canonical"),
    *("7-2-recursive", "7-2-public", "8-2-canonical", "12-2-canonical"),
)
@pytest.mark.parametrize("variant", ["canonical", "recursive", "public"])
@pytest.mark.parametrize(("n", "f"), SHAPES)
def test_the_breakdown_point_of_krum_is_exact_for_every_m(variant: Any, n: int, f: int) -> None:
    for m in range(1, n + 1 if variant != "public" else n - 2 * f - 1):
        rule = MultiKrum(f=f, m=m, variant=variant)
        b = rule.tolerates(n)
        for seed in range(3):
            x = draw(seed, n, 2)
            for bad in crowds(x, b):
                assert float(answer(rule, bad).abs().max()) < 100, (m, b)
        for far in (torch.nan, inf, -inf, 1e30):
            x[:b] = far
            assert float(answer(rule, x).abs().max()) < 100, (m, b, far)
        worst = max(
            float(answer(rule, bad).abs().max())
            for seed in range(3)
            for bad in crowds(draw(seed, n, 2), min(b + 1, n))
        )
        assert worst > 100, (m, b)


def test_a_row_that_is_not_finite_is_infinitely_far_and_spoils_no_other() -> None:
    x = draw(1, 6, 70_000)  # two tiles
    x[2, 5], x[4] = torch.nan, 1e30
    squared = squared_distances(x)
    clean = squared_distances(x[[0, 1, 3, 4, 5]])
    assert squared[2].tolist() == [inf, inf, 0, inf, inf, inf]
    torch.testing.assert_close(squared[[0, 1, 3, 4, 5]][:, [0, 1, 3, 4, 5]], clean)
    assert clean[3, 0].item() == pytest.approx(70_000 * 1e60, rel=1e-6)
    products, finite = gram(x, torch.ones(70_000))
    assert finite.tolist() == [True, True, False, True, True, True]
    expected = (x[0].double() - 1) @ (x[3].double() - 1)
    assert products[0, 3].item() == pytest.approx(float(expected))
    assert cosines(products)[2].tolist() == [0, 0, 1, 0, 0, 0]
    share = torch.tensor([2.0, 0, 0, 1, 0, 0]).double()
    torch.testing.assert_close(combine(share, x, torch.ones(70_000)), 2 * x[0] + x[3] - 2)
    assert norms(x, x[0])[[0, 2]].tolist() == [0, inf]
    assert norms(x, x[0])[4].item() == pytest.approx(sqrt(70_000) * 1e30, rel=1e-6)
    # A combination reads no row of share 0.
    x = torch.tensor([[1.0, 2.0], [torch.nan, inf], [5.0, 0.0]])
    share = torch.tensor([0.5, 0.0, 0.25], dtype=torch.float64)
    assert combine(share, x, torch.tensor([4.0, 8.0])).tolist() == [2.75, 3.0]
    assert combine(share, x).tolist() == [1.75, 1.0]
    assert combine(share[[0, 2]], torch.tensor([[2], [4]], dtype=torch.int32)).item() == 2.0


@pytest.mark.parametrize("n", [6, 10, 38])
def test_as_many_votes_each_way_are_a_tie_where_all_rows_count_the_same(n: int) -> None:
    # A sixth six times, half of them negative, is not 0 in floats, and a sign turns it into a vote.
    order = torch.stack([Key(3).fold(column).permutation(n) for column in range(200)], dim=1)
    signs = SignBits(order < n // 2)
    equal = torch.full((n,), 1 / n, dtype=torch.float64)
    assert bool((combine(equal, signs.values()) == 0).all())
    shares = equal.expand(n, n)
    finite = torch.ones(n, dtype=torch.bool)
    assert bool((mixed_rows(shares, signs.values(), finite) == 0).all())
    packets = KeptMessages(signs.take([]), signs.encode(), at_once=4).mixed(shares)
    assert bool((packets.mean() == 0).all())
    assert bool((answer(CAF(f=0), signs) == 0).all())
    assert bool((answer(Chain(NNM(f=0), Mean()), signs) == 0).all())


def test_mda_takes_the_smallest_diameter_and_says_of_how_many_rows_at_most() -> None:
    # n = 5, f = 2. 0 0 4 has diameter 4 and squares 16 + 16; 4 6.2 8.4 has 4.4 and 29.04.
    assert chosen_by(MDA(f=2), column(6.2, 0, 8.4, 4, 0)) == [0, 0, 4]
    # 4 6 8 has diameter 4 as well: 4 + 4 + 16 is less.
    assert chosen_by(MDA(f=2), column(6, 0, 8, 4, 0)) == [4, 6, 8]
    # 0 2 4, 2 4 6, 4 6 8 are equal in both; the one in the middle is nearer to all.
    assert chosen_by(MDA(f=2), column(0, 2, 4, 6, 8)) == [2, 4, 6]
    same = MDA(f=2).select(torch.zeros(5, 5, dtype=torch.float64))
    assert same.tolist() == [True, True, True, False, False]
    assert MDA(f=0).most_rows() is None
    for f in range(1, 12):
        most = MDA(f=f).most_rows() or 0
        assert comb(most, f) <= 200_000 < comb(most + 1, f)


def test_centred_clipping_by_hand() -> None:
    # 1, 2, 9 from 0 by at most 2: (1 + 2 + 2) / 3 = 5/3; then -2/3 + 1/3 + 2: 5/3 + 5/9.
    x = column(1, 2, 9)
    assert answer(CenteredClipping(tau=2.0), x).item() == pytest.approx(5 / 3)
    assert answer(CenteredClipping(tau=2.0, steps=2), x).item() == pytest.approx(20 / 9)
    # The median distance is 2, then 2/3: -2/3 + 1/3 + 2/3.
    assert answer(CenteredClipping(steps=2), x).item() == pytest.approx(16 / 9)
    state = answer(CenteredClipping(tau=2.0), x)
    before = state.clone()
    assert answer(CenteredClipping(tau=2.0), x, state=state).item() == pytest.approx(20 / 9)
    assert torch.equal(state, before)


@pytest.mark.parametrize("rule", [CGE(f=2), NNA(f=2)], ids=repr)
def test_the_order_of_rows_does_not_matter_to_filters_by_length_also_if_some_are_alike(
    rule: Defense[Any],
) -> None:
    root = FloatVectors(draw(40, 1, 3).double().round())
    for seed in range(20):
        x = draw(seed, 9, 3).double().round().clamp(-2, 2)
        out = answer(rule, x, view_of(x, root=root))
        turned = x[Key(seed).permutation(9)]
        torch.testing.assert_close(answer(rule, turned, view_of(turned, root=root)), out)


def test_rows_that_were_clipped_to_one_norm_tie_for_cge_though_they_are_rounded() -> None:
    for seed in range(20):
        x = draw(seed, 7, 50)
        clipped, _ = ARC(f=2).transform(FloatVectors(x), view_of(x))  # k = floor(4 * 5 / 7) = 2
        rows = clipped.values()[x.norm(dim=1).argsort()]
        assert len(set(norms(rows, torch.zeros(50))[4:].tolist())) == 3  # by rounding alone
        expected = (rows[:4].sum(dim=0) + rows[4:].mean(dim=0)) / 5  # three share the last place
        torch.testing.assert_close(answer(ARC(f=2).before(CGE(f=2)), x, view_of(x)), expected)
        expected = (rows[:4].sum(dim=0) + 2 * rows[4:].mean(dim=0)) / 6  # and the last two here
        torch.testing.assert_close(answer(ARC(f=2).before(CGE(f=1)), x, view_of(x)), expected)


def test_nna_counts_the_server_among_the_nodes_and_follows_f_plus_1_rows_at_most() -> None:
    # f of 2 f rows may be anything: half of them, since the server is on the others' side.
    assert [NNA(f=f).rows_needed() for f in (0, 1, 3)] == [1, 2, 6]
    x = column(1, 2, 3, inf, 1e30, -1e30)
    out = answer(NNA(f=3), x, view_of(x, root=FloatVectors(column(6))))
    assert out.item() == 3.0  # (6 + 1 + 2 + 3) / 4


def test_norm_bound_by_hand_and_its_noise_follows_the_servers_key() -> None:
    # Norms 5, 1, 10. Bounded by 2: (1.2, 1.6), (0, 1), (0, -2); by their median, 5: (3, 4), (0, 1),
    # (0, -5). Sizes 1, 2, 3 do not count.
    x = torch.tensor([[3.0, 4.0], [0.0, 1.0], [0.0, -10.0]])
    assert answer(NormBound(c=2.0), x).tolist() == pytest.approx([0.4, 0.2])
    assert answer(NormBound(), x).tolist() == pytest.approx([1.0, 0.0])
    assert NormBound(c=2.0).sensitivity(5.0, 8) == 0.5
    assert NormBound(c=2.0).sensitivity(1.0, 8) == 0.25
    assert NormBound().sensitivity(5.0, 8) is None
    other = x.clone()
    other[2] = torch.tensor([0.0, 10.0])  # the other end of the ball: the bound is attained
    moved = answer(NormBound(c=2.0), other) - answer(NormBound(c=2.0), x)
    assert float(moved.norm()) == pytest.approx(NormBound(c=2.0).sensitivity(5.0, 3) or 0)
    x = torch.zeros(2, 20_000)
    rule = NormBound(c=1.0, noise=0.5)
    draws = [answer(rule, x, view_of(x, seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert float(draws[0].std()) == pytest.approx(0.5, rel=0.03)
    assert rule.traits().randomized
    assert not NormBound(c=1.0).traits().randomized
    # Rows twice as long have an answer twice as long only if nothing has a size of its own.
    bounds = [NormBound(), NormBound(c=1.0), NormBound(noise=0.5), NormBound(c=1.0, noise=0.5)]
    assert [bound.traits().scale for bound in bounds] == [True, False, False, False]
    # All rankings have one norm about the middle.
    assert "would be the plain mean" in str(NormBound().refuses(Rankings))
    symbols = Rankings(ranking(draw(0, 5, 6), (6,)), (6,))
    sizes = norms(symbols.values(), symbols.origin())
    torch.testing.assert_close(sizes, sizes[:1].expand(5))


@pytest.mark.parametrize(
    "rule",
    [CenteredClipping(tau=3.0, steps=2), NormBound(c=4.0), CGE(f=2), CGE(f=0)],
    ids=repr,
)
def test_as_many_rows_as_a_bound_tolerates_may_be_anything(rule: Defense[Any]) -> None:
    for far in (torch.nan, inf, -inf, 1e30, -3e38):
        x = draw(11, 11, 4)
        x[: rule.tolerates(11)] = far
        assert float(answer(rule, x).abs().max()) < 100, far


def test_rows_are_picked_as_by_striking_out_every_pick_and_scoring_anew() -> None:
    for seed in range(20):
        n = 4 + seed
        x = (2 * draw(seed, n, 2)).round()  # many distances are equal
        squared = squared_distances(x)
        left = list(range(n))
        for picks in range(1, n + 1):
            distances = nearest_others(squared[left][:, left])[0]
            left.pop(int(krum_order(distances, 1)[0]))
            expected = [row not in left for row in range(n)]
            assert krum_picks(squared, picks, 1).tolist() == expected, (seed, picks)
