"""Rules that filter, weight or turn around rows: DnC, FLTrust, FoolsGold, SignGuard, FLAME, RLR."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from rules import answer, floats, kept, view_of
from torch import Tensor

from fedbench.api import Defense
from fedbench.core.rng import Key
from fedbench.payload import BinaryMasks, FloatVectors, Rankings, SignBits
from fedbench.testing import assert_rounded_alike
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.dnc import DnC
from fedbench_defenses.flame import FLAME
from fedbench_defenses.fltrust import FLTrust
from fedbench_defenses.foolsgold import FoolsGold, weights_of
from fedbench_defenses.rlr import RLR
from fedbench_defenses.signguard import SignGuard, Similarity, largest_cluster, middle_of_others


def alike(seed: int, n: int = 9, d: int = 40) -> Tensor:
    """Rows of one direction, different norms and some noise."""
    key = Key(seed)
    scale = 0.5 + key.fold("scale").uniform(n, 1)
    return scale * (key.fold("mean").normal(1, d) + 0.3 * key.fold("rows").normal(n, d))


@pytest.mark.parametrize("rule", [FLTrust(), SignGuard(), FLAME()], ids=repr)
def test_rows_in_the_direction_of_the_others_move_it_no_farther_than_these(rule: Any) -> None:
    x = alike(2)
    m = rule.tolerates(9)
    for bad in (1e30, -1e30, 1e4):
        sent = FloatVectors(torch.cat([bad * x[m:].mean(dim=0).expand(m, -1), x[m:]]))
        out = answer(rule, sent, view_of(sent, root=FloatVectors(x[-1:])))
        assert float(out.norm()) < 1.01 * float(x.norm(dim=1).max()), bad


def test_dnc_scores_projections_on_the_top_direction_of_the_centred_rows() -> None:
    # Centred: x = -4, 3.5, -3, 3.5, 0 (sum of squares 49.5); y = -1.2 four times and 4.8 (28.8);
    # their product sums to 0, so v = e_1 and the scores are 16, 12.25, 9, 12.25, 0: row 0 goes.
    # Farthest from the mean is row 4 (23.04 > 17.44); uncentred, row 1 or 3 (103.5) goes.
    rows = floats([96, 0], [103.5, 0], [97, 0], [103.5, 0], [100, 6])
    view = view_of(rows)
    assert answer(DnC(f=1), rows, view).tolist() == [101, 1.5]
    assert kept(view) == [False, True, True, True, True]


def dnc_slowly(x: Tensor, rule: DnC, key: Key) -> Tensor:
    good = set(range(len(x)))
    for i in range(rule.iterations):
        drawn = key.fold("dnc", i).permutation(x.shape[1])[: rule.sketch]
        part = x[:, drawn].double()
        centred = part - part.mean(dim=0)
        v = torch.linalg.svd(centred).Vh[0]
        scores = [(float(row @ v) ** 2, j) for j, row in enumerate(centred)]
        good &= {j for _, j in sorted(scores)[: len(x) - (rule.f or 0)]}
    return x[sorted(good)].mean(dim=0)


@pytest.mark.parametrize("rule", [DnC(f=2), DnC(f=1, iterations=3, sketch=15)], ids=repr)
def test_dnc_equals_the_singular_vectors_of_the_sketch(rule: DnC) -> None:
    for seed in range(20):
        x = Key(seed).normal(9, 40).double()
        out = answer(rule, x, view_of(x, seed))
        assert_rounded_alike(out, dnc_slowly(x, rule, Key(seed)))


def test_dnc_without_malicious_rows_is_the_mean_and_averages_no_row_that_is_not_finite() -> None:
    rows = FloatVectors(alike(5))
    torch.testing.assert_close(answer(DnC(f=0), rows), rows.x.mean(dim=0))
    view = view_of(rows)
    answer(DnC(f=2, c=1.2), rows, view)  # 2.4
    assert sum(kept(view)) == 6
    x = alike(6)
    x[1], x[4, 3] = torch.nan, torch.inf
    view = view_of(x)
    torch.testing.assert_close(answer(DnC(f=1), x, view), x[[0, 2, 3, 5, 6, 7, 8]].mean(dim=0))


def test_dnc_survives_rows_far_away_in_one_direction_and_rows_that_are_not_finite() -> None:
    for bad in (1e4, 1e30, torch.inf, torch.nan):
        x = alike(6)
        x[[1, 4]] = bad
        view = view_of(x)
        out = answer(DnC(f=2), x, view)
        torch.testing.assert_close(out, x[[0, 2, 3, 5, 6, 7, 8]].mean(dim=0))
        assert kept(view) == [i not in (1, 4) for i in range(9)]


def test_dnc_sees_only_the_sketch_and_of_two_rows_at_different_scales_the_farther_one() -> None:
    x = alike(7)
    missed = int(Key(0).fold("dnc", 0).permutation(40)[-1])
    x[3, missed] = 1e8
    assert float(answer(DnC(f=2, sketch=10), x).norm()) > 1e6
    assert float(answer(DnC(f=2), x).norm()) < 100
    x = alike(8)
    x[0, 0], x[1, 1] = 1e10, 1e5
    assert float(answer(DnC(f=2), x).norm()) > 1e4
    assert not DnC(f=2).traits().sharp


def test_dnc_with_an_empty_intersection_takes_the_least_suspicious_row() -> None:
    x = FloatVectors(Key(9).normal(4, 30))
    rule = DnC(f=2, iterations=20, sketch=3)
    view = view_of(x)
    out = answer(rule, x, view)
    finite = torch.ones(4, dtype=torch.bool)
    total = sum(rule.scores(x.x, finite, Key(0).fold("dnc", i)) for i in range(20))
    assert view.findings.notes == {"fell_back": "empty intersection"}
    assert isinstance(total, Tensor)
    assert torch.equal(out, x.x[int(total.argmin())])


@pytest.mark.parametrize("rule", [DnC(f=1), FoolsGold(), FLAME()])
def test_rows_of_which_none_is_finite_move_nothing(rule: Defense[Any]) -> None:
    masks = BinaryMasks(torch.ones(4, 2, dtype=torch.bool), torch.full((4, 1), torch.nan))
    view = view_of(masks)
    assert answer(rule, masks, view).tolist() == [0.5, 0.5, 0.0]  # the middle of the alphabet
    assert kept(view) == [False] * 4


def test_flame_averages_what_is_finite_of_half_of_the_rows() -> None:
    x = floats([3, 4], [3, 4], [torch.nan, 0], [0, torch.inf])
    view = view_of(x)
    out = answer(FLAME(), x, view)  # noise of 0.001 median norms, which are 5
    torch.testing.assert_close(out, torch.tensor([3.0, 4.0]), rtol=0, atol=0.05)
    assert kept(view) == [True, True, False, False]
    assert view.findings.notes == {"fell_back": "no cluster"}


def test_fltrust_rescales_to_the_servers_norm_and_weights_by_the_cosine() -> None:
    # g_0 = (3, 4), norm 5. (6, 8): trust 1, becomes (3, 4). (0, 2): trust .8, becomes (0, 5).
    # (-1, -1): trust 0. Sum of trusts 1.8: (3, 4 + 4) / 1.8. Not rescaled: (6, 9.6) / 1.8.
    rows = floats([6, 8], [0, 2], [-1, -1])
    view = view_of(rows, root=floats([3, 4]))
    out = answer(FLTrust(), rows, view)
    torch.testing.assert_close(out, torch.tensor([3 / 1.8, 8 / 1.8]))
    assert kept(view) == [True, True, False]
    # It is bounded even if all rows are malicious.
    assert not FLTrust().traits().sharp
    root = FloatVectors(alike(4)[:1])
    x = 1e6 * alike(4)
    out = answer(FLTrust(), x, view_of(x, root=root))
    assert 0 < float(out.norm()) <= 1.0001 * float(root.x.norm())


def test_fltrust_does_not_trust_a_complement_nor_what_agrees_by_half() -> None:
    # Uncentred all three masks have a positive cosine with the root, or 0 for the complement.
    bits = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1], [1, 0, 1, 0]]).bool()
    masks = BinaryMasks(bits, torch.zeros(3, 0))
    view = view_of(masks, root=masks.take([0]))
    assert answer(FLTrust(), masks, view).tolist() == [1, 1, 0, 0]
    assert kept(view) == [True, False, False]


def test_fltrust_answers_its_own_message_if_it_trusts_nobody() -> None:
    rows = floats([-1, 0], [0, 0], [torch.nan, 1])
    view = view_of(rows, root=floats([2, 0]))
    assert answer(FLTrust(), rows, view).tolist() == [2, 0]
    assert view.findings.notes == {"fell_back": "no trust"}
    rankings = Rankings(torch.tensor([[0, 1, 2]], dtype=torch.int32), (3,))
    own = Rankings(torch.tensor([[2, 1, 0]], dtype=torch.int32), (3,))
    ranked = answer(FLTrust(), rankings, view_of(rankings, root=own))
    assert ranked.tolist() == [2, 1, 0]
    assert ranked.dtype == torch.float64  # as other rules answer to whole numbers


def test_foolsgold_pardons_and_takes_the_logit() -> None:
    # v = .6, .6, .3. Row 2 is pardoned: .3 * .3 / .6 = .15. 1 - max: .4, .4, .85; divided by .85:
    # 8/17, 8/17, 1; ln(8/9) + 1/2 = .382217. Without the pardon .787682.
    cosine = torch.tensor([[1, 0.6, 0.3], [0.6, 1, 0], [0.3, 0, 1]], dtype=torch.float64)
    weights = weights_of(cosine, 1.0)
    torch.testing.assert_close(weights, torch.tensor([0.382217, 0.382217, 1.0]).double())


def foolsgold_slowly(histories: list[Tensor]) -> list[float]:
    n = len(histories)
    cs = [[float(torch.cosine_similarity(a, b, dim=0)) for b in histories] for a in histories]
    v = [max(cs[i][j] for j in range(n) if j != i) for i in range(n)]
    for i, j in itertools.permutations(range(n), 2):
        if v[j] > v[i] > 0:
            cs[i][j] *= v[i] / v[j]
    alpha = [1 - max(cs[i][j] for j in range(n) if j != i) for i in range(n)]
    share = torch.tensor([a / max(alpha) for a in alpha], dtype=torch.float64)
    weights: list[float] = (torch.log(share / (1 - share)) + 0.5).clamp(0, 1).tolist()
    return weights


def test_foolsgold_remembers_the_sum_of_a_clients_updates_over_rounds_and_absences() -> None:
    rule = FoolsGold()
    past = dict[int, Tensor]()
    for seed in range(20):
        state = rule.init({})
        past = {}
        for step, ids in enumerate(([3, 5, 7, 9], [9, 3, 4], [4, 5, 9, 7])):
            x = Key(seed).fold(step).normal(len(ids), 6).double() + 0.5
            view = replace(view_of(x), ids=torch.tensor(ids))
            before = {i: h.tolist() for i, h in state.items()}
            out, after = rule.aggregate(FloatVectors(x), state, view)
            assert {i: h.tolist() for i, h in state.items()} == before, "written into"
            for row, i in zip(x, ids, strict=True):
                past[i] = past[i] + row if i in past else row
            weights = torch.tensor(foolsgold_slowly([past[i] for i in ids]), dtype=torch.float64)
            assert_rounded_alike(out, weights @ x / weights.sum())
            state = after
        assert set(state) == {3, 4, 5, 7, 9}


def test_foolsgold_leaves_out_sybils_and_cannot_leave_out_a_single_attacker() -> None:
    x = Key(1).normal(6, 30)
    x[:3] = 5 + 0.01 * x[:3]
    view = view_of(x)
    answer(FoolsGold(), x, view)
    assert kept(view) == [False] * 3 + [True] * 3
    x[:2] = Key(2).normal(2, 30)
    answer(FoolsGold(), x, view)
    assert kept(view)[2]


def test_foolsgold_averages_parallel_histories_and_remembers_nothing_that_is_not_finite() -> None:
    rows = floats([1, 1], [2, 2], [6, 6])
    view = view_of(rows)
    assert answer(FoolsGold(), rows, view).tolist() == [3, 3]
    assert view.findings.notes == {"fell_back": "all parallel"}
    x = alike(3, 5)
    x[2, 1] = torch.nan
    out, state = FoolsGold().aggregate(FloatVectors(x), {}, view_of(x))
    assert bool(torch.isfinite(out).all())
    assert sorted(state) == [0, 1, 3, 4]


def test_d10_signguard_filters_norms_before_it_clips_them() -> None:
    # Norms 5, 5, 10, 500, 0.1; their median is 5. Ratios 1, 1, 2, 100, 0.02: the last two go, and
    # (6, 8) becomes (3, 4). Clipped first, (300, 400) would be (3, 4) and stay: (3.25, 3.75).
    rows = floats([3, 4], [4, 3], [6, 8], [300, 400], [0.06, 0.08])
    view = view_of(rows)
    out = answer(SignGuard(share=1), rows, view)
    torch.testing.assert_close(out, torch.tensor([10 / 3, 11 / 3]))
    assert kept(view) == [True, True, True, False, False]


def test_signguard_leaves_out_rows_whose_share_of_signs_is_not_that_of_most() -> None:
    # Shares of (+, 0, -) of 4: 3/4, 0, 1/4 five times, in any place; two rows have 0, 0, 1.
    alike = [[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1], [-1, 1, 1, 1]]
    rows = FloatVectors(torch.cat([-torch.ones(2, 4), torch.tensor(alike)]))
    view = view_of(rows)
    out = answer(SignGuard(share=1), rows, view)
    torch.testing.assert_close(out, torch.tensor([1, 3, 3, 3]) / 5)
    assert kept(view) == [False] * 2 + [True] * 5


def test_signguard_counts_the_signs_of_drawn_coordinates_only() -> None:
    x = FloatVectors(torch.ones(7, 40))
    drawn = Key(0).fold("signguard").permutation(40)[:4]  # 10 %
    hidden = torch.ones(40, dtype=torch.bool).index_fill(0, drawn, False)
    for seen in (False, True):
        x.x[0] = torch.where(hidden, -1.0, -1.0 if seen else 1.0)
        view = view_of(x)
        answer(SignGuard(), x, view)
        assert kept(view)[0] != seen


def test_signguard_joins_rows_near_a_share_and_takes_the_middle_of_the_others() -> None:
    # To the second of five rows, itself counted, it is 3 on average; to the fourth 12.2.
    points = torch.tensor([[0.0], [1], [2], [12], [18]]).double()
    assert largest_cluster(points, 0.4).tolist() == [True, True, True, False, False]
    assert largest_cluster(points, 0.8).tolist() == [True] * 5
    # Distances in a line at 0, 1, 3, 7: of the second 1, 2, 6. Cosines likewise, without its own.
    far = squared_distances(torch.tensor([[0.0], [1], [3], [7]])).sqrt()
    assert middle_of_others(far).tolist() == [3, 2, 3, 6]
    assert middle_of_others(far[:3][:, :3]).tolist() == [2, 1.5, 2.5]
    assert middle_of_others(far[:1][:, :1]).tolist() == [0]


def test_signguards_variants_see_a_reversal_that_leaves_the_shares_as_they_are() -> None:
    v = torch.tensor([1.0, -1.0]).repeat(20)
    x = v * torch.tensor([1.0] * 6 + [-1.0] * 3)[:, None] + 0.1 * Key(0).normal(9, 40)
    catches: dict[Similarity, int] = {"off": 0, "cosine": 3, "distance": 3}
    for similarity, caught in catches.items():
        rule = SignGuard(share=1, similarity=similarity)
        view = view_of(x)
        answer(rule, x, view)
        assert sum(kept(view)[6:]) == 3 - caught, similarity
        assert all(kept(view)[:6]) or similarity == "off"


def test_signguard_falls_back_on_the_norm_if_no_row_passes_both_and_says_so() -> None:
    # The median norm is 7.1, so the first three are too short; but of the clusters (+ +), (+ -)
    # and (- -) theirs is the largest.
    short = [0.01, 0.01]
    mixed = [5.0, -5.0]
    down = [-5.0, -5.0]
    rows = floats(short, short, short, mixed, mixed, down, down)
    view = view_of(rows)
    torch.testing.assert_close(answer(SignGuard(share=1), rows, view), torch.tensor([0.0, -5]))
    assert view.findings.notes == {"fell_back": "empty intersection"}
    assert kept(view) == [False] * 3 + [True] * 4


def test_flame_clips_its_majority_to_the_median_norm_of_all_rows() -> None:
    # Cosine distances of the first three: 0, .2, .2; to (0, 5) .4 or 1, to (-3, 0) more. Norms 2,
    # 4, 1, 5, 3: the median is 3, of the admitted 2. (4, 0) becomes (3, 0): (5.8, .6) / 3.
    rows = floats([2, 0], [4, 0], [0.8, 0.6], [0, 5], [-3, 0])
    view = view_of(rows)
    out = answer(FLAME(noise=0), rows, view)
    torch.testing.assert_close(out, torch.tensor([5.8 / 3, 0.2]), atol=1e-6, rtol=0)
    assert kept(view) == [True, True, True, False, False]


def test_flame_adds_noise_of_its_share_of_the_median_norm_and_says_if_it_found_no_cluster() -> None:
    x = FloatVectors(alike(1, 9, 4000))
    noise = answer(FLAME(noise=0.01), x) - answer(FLAME(noise=0), x)
    # Of 4000 draws the standard deviation is within 5 / sqrt(8000) = 5.6 % of the true one.
    assert float(noise.std() / x.x.norm(dim=1).median()) == pytest.approx(0.01, rel=0.056)
    other = answer(FLAME(noise=0.01), x, view_of(x, key=1))
    assert not torch.equal(other, answer(FLAME(noise=0.01), x))
    assert not FLAME(noise=0).traits().randomized
    rows = floats([1, 0], [0, 1], [torch.nan, 0], [torch.inf, 0])
    view = view_of(rows)
    FLAME(noise=0).aggregate(rows, None, view)
    assert view.findings.notes == {"fell_back": "no cluster"}


@pytest.mark.parametrize("rule", [FLAME(noise=0), SignGuard(share=1)], ids=repr)
def test_a_row_that_is_not_finite_counts_as_an_infinite_norm(rule: Defense[Any]) -> None:
    # The median of 2, 4, 8 and two infinite norms is 8, so that nothing is clipped; without them 4.
    rows = floats([2, 0], [torch.nan, 0], [4, 0], [8, 0], [0, torch.inf])
    torch.testing.assert_close(answer(rule, rows), torch.tensor([14 / 3, 0]))


def test_flame_and_signguard_find_masks_with_other_angles_or_densities() -> None:
    # Uncentred, masks that share no more than chance have a cosine of 1/2.
    honest = (Key(1).uniform(1, 400) < 0.5) ^ (Key(2).uniform(7, 400) < 0.1)
    bad = Key(3).uniform(2, 400) < 0.9
    bits = torch.cat([bad, honest])
    assert str(SignGuard().refuses(Rankings)).startswith("would cluster noise")
    for rule in (FLAME(noise=0), SignGuard(share=1)):
        for sent in (BinaryMasks(bits, torch.zeros(9, 0)), SignBits(bits)):
            view = view_of(sent)
            answer(rule, sent, view)
            assert not any(kept(view)[:2])
            assert sum(kept(view)) >= 5


def test_rlr_turns_the_weighted_mean_around_where_too_few_agree() -> None:
    # theta = 2. Sums of signs 1, 3, 2, and sizes 1, 1, 1, 1, 4: means -3/8, 4/8, 2/8; only the
    # first is turned. Weighted votes would be -2, 0 and 2 and turn the second.
    rows = floats([1, 2, 1], [2, 2, 1], [3, 2, 0], [-1, 2, 0], [-2, -1, 0])
    sizes = torch.tensor([1.0, 1, 1, 1, 4]).double()
    view = replace(view_of(rows), weights=sizes)
    torch.testing.assert_close(answer(RLR(theta=2), rows, view), torch.tensor([0.375, 0.5, 0.25]))
    assert view.findings.notes["turned"] == pytest.approx(1 / 3)
    assert torch.equal(answer(RLR(theta=2), rows, view), answer(RLR(f=4, theta=2), rows, view))
    torch.testing.assert_close(answer(RLR(f=2, theta=3), rows, view)[2], torch.tensor(-0.25))
    bits = torch.tensor([[1, 1], [1, 1], [1, 1], [0, 1], [0, 1]]).bool()
    masks = BinaryMasks(bits, torch.zeros(5, 0))
    torch.testing.assert_close(answer(RLR(theta=2), masks), torch.tensor([0.4, 1]))
    # Edges 0 and 2 of three are once above and once below the middle, 1; edge 1 is always there.
    rankings = Rankings(torch.tensor([[0, 1, 2], [2, 1, 0], [0, 1, 2]], dtype=torch.int32), (3,))
    out = answer(RLR(theta=2), rankings)  # means 2/3, 1, 4/3
    torch.testing.assert_close(out, torch.tensor([4 / 3, 1, 2 / 3]).double())


def test_rlr_is_decided_by_no_f_rows_with_as_many_more_as_coins_differ_by() -> None:
    # f + ceil(sqrt(n - f)): the first is also the authors' for one of ten.
    assert [RLR(f=f)._theta(n) for n, f in ((10, 1), (20, 4), (21, 4), (40, 4), (1, 0))] == [
        *(4, 8, 9, 10, 1),
    ]
    # Of f rows even unanimous ones are turned, of one more none that is unanimous.
    assert [RLR(f=f).rows_needed() for f in (0, 1, 4)] == [1, 2, 5]
    assert [RLR(f=f)._theta(f + more) > f + more for f in (1, 4) for more in (0, 1, 2)] == [
        *(True, False, False) * 2,
    ]
    # Of ten rows, one malicious: 7 against 3 stay, 6 against 4 are turned, though not by f + 1.
    rows = torch.ones(10, 2)
    rows[:3] = -1
    rows[3, 1] = -1
    view = view_of(rows)
    torch.testing.assert_close(answer(RLR(f=1), rows, view), torch.tensor([0.4, -0.2]))
    assert view.findings.notes["theta"] == 4
    torch.testing.assert_close(answer(RLR(theta=2), rows), torch.tensor([0.4, 0.2]))
    # Three of ten turn what the seven others agree on, 4 < 3 + 3; two of nine do not, 5 >= 2 + 3.
    torch.testing.assert_close(answer(RLR(f=3), rows)[0], torch.tensor(-0.4))
    torch.testing.assert_close(answer(RLR(f=2), rows[1:])[0], torch.tensor(5 / 9))
