"""Attacks on masks, signs, gates, masked noise and rankings: what they are, and what they hurt."""

import dataclasses
import itertools
from typing import Any

import pytest
import torch
from crafting import crafted, round_of
from torch import Tensor

from fedbench import Scenario, play
from fedbench.adversary.threat_model import attack_view
from fedbench.api import Attack
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors, GatedVectors, Payload, SignBits, SparseVectors
from fedbench.payload.bits import BinaryMasks, NoiseMasks
from fedbench.payload.rankings import Rankings, TopRankings, ranking
from fedbench.protocols.fsl import kept_edges
from fedbench_attacks import bits
from fedbench_attacks.bits import Complement, Margin, MaskALIE, MaskIPM, Pinning, Saturation
from fedbench_attacks.gate_closing import GateClosing
from fedbench_attacks.rankings import RankReversal, Shuffle, Swap
from fedbench_attacks.residual_release import ResidualRelease
from fedbench_attacks.side_information import NoiseMask
from fedbench_attacks.vem import VEM, Cut, largest_true


def masks(*rows: list[int], signed: bool = False) -> BinaryMasks:
    bits = torch.tensor(rows).bool()
    return BinaryMasks(bits, torch.zeros(len(rows), 0), signed)


def probable(theta: Tensor, n: int, seed: int = 0) -> BinaryMasks:
    bits = Key(seed).uniform(n, len(theta)) < theta
    return BinaryMasks(bits, torch.zeros(n, 0))


def message(attack: Attack, payload: Payload, m: int) -> Any:
    return crafted(attack, round_of(payload, m=m))[1]


def ones(attack: Any, payload: Payload, m: int) -> list[list[int]]:
    return message(attack, payload, m).mask.int().tolist()  # type: ignore[no-any-return]


def test_the_complement_is_that_of_the_majority_or_over_noise_its_own() -> None:
    # Two of three colluders have a 1 first, one second; the benign rows say the contrary.
    three = masks([1, 0, 1], [1, 0, 0], [0, 1, 0], [0, 1, 1], [0, 1, 1])
    assert ones(Complement(), three, 3) == [[0, 1, 1]] * 3
    two = masks([1, 0], [0, 0], [1, 1])
    assert ones(Complement(), two, 2) == [[1, 1]] * 2
    assert ones(Complement(of="own"), two, 2) == [[0, 1], [1, 1]]
    seeds = torch.tensor([[1], [2], [3]])
    rest = torch.ones(3, 2)
    noise = NoiseMasks(torch.tensor([[1, 1], [1, 0], [1, 1]]).bool(), seeds, rest, "uniform", 0.1)
    view, out = crafted(Complement(), round_of(noise))
    assert out.mask.int().tolist() == [[0, 0], [0, 1]]
    assert out.seeds.tolist() == [[1], [2]]
    assert view.notes["of"] == "own"


def test_mask_ipm_mirrors_at_one_half_and_keeps_the_number_of_ones() -> None:
    # theta = 1, 3/4, 1/2, 0 of four benign rows with 9 ones: 9/4 rounds to 2 ones. Mirrored they
    # are 0, 1/4, 1/2, 1: the last two. -theta would have kept the last and whatever else.
    rows = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]
    payload = masks([0, 0, 0, 0], *rows)
    assert ones(MaskIPM(how="threshold"), payload, 1) == [[0, 0, 1, 1]]
    # Free, strictly above 1/2: the third, at exactly 1/2, is 0. At eps = 4 all but it are clipped.
    assert ones(MaskIPM(how="threshold", density="free"), payload, 1) == [[0, 0, 0, 1]]
    # At eps = 1/2 all ones become 1/4.
    full = BinaryMasks(torch.ones(3, 4000).bool(), torch.zeros(3, 0))
    quarter = message(MaskIPM(eps=0.5, density="free"), full, 1).mask.float().mean()
    assert float(quarter) == pytest.approx(0.25, abs=0.03)
    # What is certain is certain in a sample, too.
    sample = ones(MaskIPM(how="sample", density="free", eps=4.0), payload, 1)[0]
    assert sample[:2] == [0, 0]
    assert sample[3] == 1


def test_mask_alie_lowers_probabilities_by_deviations_with_ddof_0() -> None:
    # theta = 3/4 of four rows: sigma = sqrt(3/16) = 0.4330 (ddof 1: 0.5), so at z = 0.55 it falls
    # to 0.5118 (ddof 1: 0.475): a 1 by threshold, and at z = 0.6 (0.4902) a 0.
    payload = masks([0], [1], [1], [1], [0])
    assert ones(MaskALIE(z=0.55, how="threshold", density="free"), payload, 1) == [[1]]
    assert ones(MaskALIE(z=0.6, how="threshold", density="free"), payload, 1) == [[0]]


def test_mask_alie_takes_the_side_against_what_its_clients_learned_and_keeps_it() -> None:
    # theta = 1/4 of four rows in each of 100 bits, sigma = 0.4330: at z = 0.6 below is 0, above
    # 0.5098, a 1 by threshold. The floats, which are sent as they are, decide nothing.
    d = 100
    bits = torch.zeros(5, d).bool()
    bits[1] = True
    payload = BinaryMasks(bits, torch.full((5, 300), 9.0))
    attack = MaskALIE(z=0.6, how="threshold", density="free")
    zeros = torch.zeros(1, d + 300)
    for cosine, plus in ((-1.0, True), (-0.4, True), (-0.1, False), (0.0, False), (1.0, False)):
        learned = zeros.clone()
        if cosine:
            learned[:, :d] = -1.0  # all bits down, or but for some
            learned[:, : round(d * (1 + cosine) / 2)] = 1.0
        here = dataclasses.replace(round_of(payload, m=1), updates=learned.expand(5, -1))
        view, out = crafted(attack, here)
        assert out.mask.int().unique().tolist() == [int(plus)]
        assert view.notes["side"] == ("plus" if plus else "minus")
        for side in (1, -1):
            view, out = crafted(attack, here, side)
            assert bool(out.mask.all()) == (side == -1)
        below = dataclasses.replace(attack, side="minus")
        view, out = crafted(below, here, -1)
        assert not bool(out.mask.any())
        assert "side" not in view.notes
    # Where all send the same there is no deviation, and no side yet; the memory is the first one.
    same = masks(*[[1, 0]] * 3)
    view = attack_view(attack, round_of(same, m=1))
    assert attack.craft(view, None)[1] is None
    assert "side" not in view.notes
    view = attack_view(attack, here)
    assert attack.craft(view, None)[1] == 1


@pytest.mark.parametrize(
    ("n", "m", "worse", "minus"), [(50, 12, 0.3360, 0.3360), (10, 1, 0.1397, 0.0)]
)
def test_its_z_is_the_formula_s_without_its_sign(
    n: int, m: int, worse: float, minus: float
) -> None:
    # 50 and 12: s = 26 - 12 = 14, 24 / 38 of the benign clients, whose quantile is 0.3360.
    # 10 and 1: s = 5, 4 / 9: below 0, where the push would go to the other side.
    here = round_of(probable(Key(1).uniform(20), n), m=m)
    assert crafted(MaskALIE(), here)[0].notes["z"] == 1.5
    assert crafted(MaskALIE(z=None), here)[0].notes["z"] == pytest.approx(worse, abs=1e-4)
    assert crafted(MaskALIE(z=None, side="minus"), here)[0].notes["z"] == pytest.approx(
        minus, abs=1e-4
    )


@pytest.mark.parametrize("attack", [MaskIPM(), MaskALIE(z=1.0)], ids=["ipm", "alie"])
@pytest.mark.parametrize("how", ["sample", "threshold"])
def test_the_benign_density_is_kept_to_the_bit(attack: Any, how: Any) -> None:
    payload = probable(Key(1).uniform(500), 12)
    out = message(type(attack)(how=how), payload, 3)
    ones = round(float(payload.mask[3:].sum()) / 9)
    assert out.mask.sum(dim=1).tolist() == [ones] * 3
    alike = bool((out.mask[0] == out.mask[1]).all())
    assert alike == (how == "threshold")


def test_a_sample_of_a_given_size_has_the_probabilities_it_was_drawn_for() -> None:
    # theta sums to the number of ones, so Pareto sampling's shares are theta, nearly.
    theta = torch.tensor([0.1, 0.3, 0.5, 0.9]).repeat(500)
    mask = torch.arange(10)[:, None] >= 10 * (1 - theta)  # row i of ten
    payload = BinaryMasks(mask, torch.zeros(10, 0))
    out = message(MaskALIE(z=0.0), payload.put([0], payload.take([5])), 1)
    shares = payload.mask[1:].double().mean(dim=0).reshape(500, 4)[0]
    got = out.mask.double().reshape(500, 4).mean(dim=0)
    assert float((got - shares).abs().max()) < 0.07  # three standard deviations of 500 coins


def test_of_more_certain_bits_than_are_sent_each_colluder_draws_its_own() -> None:
    # All benign masks have the last 20 of 100 bits; mirrored, the first 80 are certain.
    own = [0] * 80 + [1] * 20
    first, second = message(MaskIPM(), masks(*[own] * 5), 2).mask
    assert first.sum() == second.sum() == 20
    assert not first[80:].any()
    assert not torch.equal(first, second)


def changes(rows: Tensor, benign: Tensor, tie: int) -> int:
    """How many decisions on the columns are other ones with ``rows`` among them."""
    before = bits.decided(benign.sum(dim=0), len(benign), tie)
    both = torch.cat([rows, benign])
    return int((bits.decided(both.sum(dim=0), len(both), tie) != before).sum())


@pytest.mark.edges("1-2-stays", "1-2-up", "1-2-down", "2-3-stays", "3-4-up", "3-4-down")
@pytest.mark.parametrize("tie", list(bits.TIES))
@pytest.mark.parametrize(("m", "b"), [(1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (3, 4)])
def test_margin_overturns_as_much_as_the_best_of_all_choices(tie: Any, m: int, b: int) -> None:
    d = 4 if m < 3 else 3
    for seed in range(8):
        payload = probable(Key(seed).fold("theta").uniform(d), m + b, seed)
        benign = payload.mask[m:].int()
        view, out = crafted(Margin(tie=tie), round_of(payload, m=m))
        choices = itertools.product((0, 1), repeat=m * d)
        most = max(changes(torch.tensor(c).reshape(m, d), benign, bits.TIES[tie]) for c in choices)
        assert changes(out.mask.int(), benign, bits.TIES[tie]) == most == view.notes["overturned"]


def test_margin_overturns_what_it_can_ties_are_the_servers_and_its_own_rows_count_once() -> None:
    # b = 4, m = 2. Ones 4, 3, 2, 1, 0. With none of the colluders' 4 and 3 of 6 remain: masks keep
    # what is strictly above 1/2, so 3 of 6 is 0 and the second falls. 2 of 4 was 0 and rises with
    # two more; 1 and two more are 3 of 6, still 0. Signs: 3 of 6 is a tie that stays, which neither
    # a majority of 3 nor one of 1 was: both change.
    rows = [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]]
    payload = masks([0] * 5, [0] * 5, *rows)
    assert ones(Margin(), payload, 2) == [[1, 0, 1, 0, 0]] * 2
    signs = message(Margin(), SignBits(payload.mask), 2)
    assert signs.positive.int().tolist() == [[1, 0, 1, 1, 0]] * 2
    assert ones(Margin(rest="against"), payload, 2) == [[0, 0, 1, 1, 1]] * 2
    # One colluder of seven: its own row, six times over, cannot be overturned by one vote.
    payload = masks([1, 0], *[[0, 1]] * 6)
    assert ones(Margin(knows="colluders"), payload, 1) == [[1, 0]]


def test_saturated_masks_are_full_or_empty_or_disjoint_from_the_own_one() -> None:
    payload = masks([1, 0, 0, 1], [0, 0, 0, 0])
    assert ones(Saturation(), payload, 1) == [[1, 1, 1, 1]]
    assert ones(Saturation(kind="zeros"), payload, 1) == [[0, 0, 0, 0]]
    assert ones(Saturation(kind="disjoint"), payload, 1) == [[0, 1, 1, 0]]
    (three,) = ones(Saturation(kind="disjoint", density=0.75), payload, 1)
    assert three[1:3] == [1, 1]
    assert sum(three) == 3


def test_a_pinned_mask_stays_until_the_period_ends() -> None:
    first, later = masks([0, 0], [1, 0], [1, 1], [0, 1]), masks([0, 0], [0, 0], [0, 0], [0, 0])
    attack = Pinning(period=3)
    memory = None
    sent_values = []
    for step, payload in enumerate([first, later, later, later]):
        view = attack_view(attack, round_of(payload, m=1))
        out, memory = attack.craft(dataclasses.replace(view, step=step), memory)
        assert isinstance(out, BinaryMasks)
        sent_values.append(out.mask[0].int().tolist())
    # 2 of 3 benign ones both: the complement is 0, 0 in rounds 0 to 2, then that of no ones.
    assert sent_values == [[0, 0], [0, 0], [0, 0], [1, 1]]


def noise_masks(n: int = 6, d: int = 300) -> NoiseMasks:
    seeds = Key(5).bits(n)[:, None]
    blank = NoiseMasks(torch.zeros(n, d).bool(), seeds, torch.zeros(n, 2), "uniform", 0.1, True)
    return blank.nearest(torch.cat([0.05 * Key(6).normal(n, d), torch.ones(n, 2)], dim=1))


def test_a_noise_mask_is_the_closest_one_to_the_opposite_of_the_mean() -> None:
    payload = noise_masks()
    out = message(NoiseMask(seed="own", scale=2.0), payload, 2)
    target = -2 * payload.values()[2:].mean(dim=0)
    noises = payload.noises()[:2]
    expected = torch.where((noises - target[:-2]).abs() <= (-noises - target[:-2]).abs(), 1, 0)
    assert torch.equal(out.mask, expected.bool())
    assert torch.equal(out.seeds, payload.seeds[:2])
    assert out.rest.tolist() == [[-2.0, -2.0]] * 2


def test_more_seeds_never_take_a_noise_mask_further_from_its_target() -> None:
    payload = noise_masks()
    target = -payload.values()[2:].mean(dim=0)
    distances = []
    for attack in (NoiseMask(seed="own"), NoiseMask(tries=4), NoiseMask(tries=16)):
        view, out = crafted(attack, round_of(payload))
        distances.append((out.values() - target).norm(dim=1))
        assert view.trace[-1][1] == pytest.approx(float(distances[-1].mean()), rel=1e-4)
    assert bool((distances[1] <= distances[0] + 1e-6).all())
    assert bool((distances[2] < distances[0]).all())


def gated(*gates: list[int], third: float = 2.0) -> GatedVectors:
    # Three gates, each of a column of a (2, 3) layer; the mean weights behind them are 1, 3 and 2.
    layers = (((2, 3), ((1, 0, 1),)),)
    n = len(gates)
    blank = GatedVectors(torch.ones(n, 3).bool(), torch.zeros(n, 6), torch.ones(n, 1), layers)
    x = torch.tensor([1.0, 3, third, 1, 3, third]).expand(n, -1)
    return blank.nearest(torch.cat([torch.tensor(gates).float(), x, torch.ones(n, 1)], dim=1))


def test_gates_that_the_majority_wants_open_are_closed_or_if_stealthy_as_many_as_usual() -> None:
    payload = gated([1, 1, 1], [1, 1, 0], [1, 1, 0], [1, 0, 1])
    out = message(GateClosing(), payload, 1)
    assert out.gates.int().tolist() == [[0, 0, 1]]  # 3, 2 and 1 of 3 are open
    assert out.x.tolist() == [[0, 0, 2, 0, 0, 2]]
    out.check()
    # Closed are 1, 1 and 1 gates, so one: of the first two, wanted open, the second has 3 behind it
    # in two of three rows, mean 2; the first 1 in all.
    payload = gated([1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 1])
    out = message(GateClosing(stealth=True), payload, 1)
    assert out.gates.int().tolist() == [[1, 0, 1]]
    # Whatever is behind the third gate, which one of three keeps open: it is no gate to close.
    heavy = gated([1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 0, 1], third=20.0)
    assert message(GateClosing(stealth=True), heavy, 1).gates.int().tolist() == [[1, 0, 1]]
    assert out.x.tolist() == [[1, 0, 0, 1, 0, 0]]  # the own third gate was closed
    out.check()
    blank = GatedVectors(torch.ones(3, 0).bool(), torch.ones(3, 2), torch.ones(3, 1), (((2,), ()),))
    for attack in (GateClosing(), GateClosing(stealth=True)):  # nothing has a gate
        assert message(attack, blank, 1).x.tolist() == [[1, 1]]


def test_what_was_saved_up_is_released_at_once_through_the_codec() -> None:
    # wait = 2, scale = 3: honest, honest, -3 (1 + 2 + 4) = -21, and honest again.
    attack = ResidualRelease(wait=2, scale=3.0)
    memory = None
    sent_values = []
    for update in (1.0, 2.0, 4.0, 8.0, 16.0, float("nan"), 1.0):
        payload = FloatVectors(torch.tensor([[update], [0.0]]))
        out, memory = attack.craft(attack_view(attack, round_of(payload, m=1)), memory)
        sent_values.append(float(out.values()[0, 0]))
    assert sent_values[:5] == [1.0, 2.0, -21.0, 8.0, 16.0]
    assert sent_values[5:] == [-72.0, 1.0]  # NaN is not added: -3 (8 + 16)
    x = torch.tensor([[5.0, -1.0, 2.0], [1.0, 1.0, 1.0]])
    indices = torch.zeros(2, 1, dtype=torch.int64)
    blank = SparseVectors(indices, torch.zeros(2, 1), torch.zeros(2, 0), 3)
    out = message(ResidualRelease(wait=0), blank.nearest(x), 1)
    assert out.values().tolist() == [[-5.0, 0.0, 0.0]]


def rows_of(size: int, n: int, noise: float, seed: int = 0) -> Tensor:
    """``(n, size)`` scores that agree up to ``noise``."""
    key = Key(seed).fold("rows", size, n)
    return key.normal(size) + noise * key.fold("noise").normal(n, size)


def sums(size: int, n: int, seed: int, noise: float = 0.5) -> Tensor:
    positions = Rankings(ranking(rows_of(size, n, noise, seed), (size,)), (size,)).values()
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


@pytest.mark.parametrize(("n", "m", "b"), [(4, 1, 2), (5, 1, 3), (5, 1, 12), (4, 2, 9), (4, 3, 6)])
def test_vem_is_the_best_common_ranking_and_no_choice_moves_an_edge_beyond_its_bounds(
    n: int, m: int, b: int
) -> None:
    bounded = 0
    for seed in range(10):
        for k in range(1, n):
            cut = Cut(sums(n, b, seed), k, m)
            position, count, limit = best(cut)
            assert torch.equal(position.sort().values, torch.arange(n))
            same = torch.tensor(list(itertools.permutations(range(n))))
            assert moved(cut, m * position[None]) == count == moved(cut, m * same)
            choices = every_sum(cut)
            assert count <= moved(cut, choices) <= limit
            moves = (outcomes(cut, choices) != kept(cut)).any(dim=0)
            leaves, enters = cut.vulnerable()
            assert not bool(moves[cut.order[n - k + leaves :]].any())
            assert not bool(moves[cut.order[: n - k - enters]].any())
            bounded += n - leaves - enters
    assert bounded > 0 or m == 3


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
        cut = Cut(sums(100, 20, seed, noise), 50, 5)
        position, count, limit = best(cut)
        assert moved(cut, 5 * position[None]) == count >= limit - 1
        assert 0 < limit <= 50


def moved_by(attack: Attack, rankings: Rankings, m: int) -> int:
    """Edges that the server keeps with the attack, and would not without."""
    total = 0
    benign = rankings.values()[m:].sum(dim=0, dtype=torch.int64)
    both = benign + message(attack, rankings, m).values().sum(dim=0, dtype=torch.int64)
    layers = (torch.split(sums, list(rankings.sizes)) for sums in (benign, both))
    for pair in zip(*layers, strict=True):
        n = len(pair[0])
        pruned = n - kept_edges(n, 0.5)
        before, after = (set(ranking(s[None], (n,))[0, pruned:].tolist()) for s in pair)
        total += len(after - before)
    return total


def test_vem_moves_more_than_reversal_swap_and_shuffle_and_counts_what_it_moves() -> None:
    sizes = (300, 41)
    rankings = Rankings(ranking(rows_of(341, 20, 0.7), sizes), sizes)
    attacks = (VEM(), VEM(knows="colluders"), RankReversal(), Swap(), Shuffle())
    best, blind, *others = (moved_by(attack, rankings, 4) for attack in attacks)
    assert best > 1.5 * max(others)
    assert others[-1] < blind <= best
    view, _ = crafted(VEM(), round_of(rankings, m=4))
    assert view.notes["moved"] == best


def test_swapped_parts_keep_their_order_and_a_top_ranking_gets_absent_edges() -> None:
    # Five edges, k = 0.5 keeps three: positions 0, 1 become 3, 4 and 2, 3, 4 become 0, 1, 2.
    own = Rankings(torch.tensor([[4, 1, 0, 3, 2]], dtype=torch.int32), (5,))
    assert message(Swap(), own, 1).symbols.tolist() == [[0, 3, 2, 4, 1]]
    top = TopRankings(torch.tensor([[1, 3]], dtype=torch.int32), (4,), (2,))
    assert message(Swap(), top, 1).symbols.tolist() == [[0, 2]]


def test_a_swap_is_at_the_cut_of_the_protocol_and_without_one_in_the_middle() -> None:
    # Of four edges the server keeps three: the least valued one comes last, the others before it.
    own = Rankings(torch.tensor([[3, 1, 0, 2]], dtype=torch.int32), (4,))
    view = attack_view(Swap(), round_of(own, m=1))
    for protocol, sent in (({"k": 0.75}, [1, 0, 2, 3]), ({}, [0, 2, 3, 1])):
        swapped, _ = Swap().craft(dataclasses.replace(view, protocol=protocol), None)
        assert (
            swapped.values().tolist()
            == Rankings(torch.tensor([sent]).int(), (4,)).values().tolist()
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vem", "swap"])
def test_attacks_on_rankings_know_what_share_the_protocol_keeps_since_it_is_public(
    name: str,
) -> None:
    def gains(attack: str) -> list[float | None]:
        scenario = Scenario(
            protocol="fsl:k=0.2",
            attack=attack,
            model="micro",
            clients=5,
            per_round=5,
            malicious=0.2,
            rounds=2,
            epochs=1,
        )
        return [r.gain for r in play(scenario).rounds]

    assert gains(name) == gains(f"{name}:kept=0.2") != gains(f"{name}:kept=0.5")


def test_shuffled_rankings_are_uniform_and_each_client_has_its_own() -> None:
    own = Rankings(torch.arange(3, dtype=torch.int32).expand(1200, -1).clone(), (3,))
    symbols = message(Shuffle(), own, 1200).symbols
    counts = torch.unique(symbols, dim=0, return_counts=True)[1]
    assert len(counts) == 6
    assert int(counts.min()) > 140  # 200 each, minus five deviations of 13
