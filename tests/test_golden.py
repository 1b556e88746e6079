"""The papers' numbers, worked by hand, chosen so that the plausible mistake gives another one."""

import math

import numpy as np
import pytest
import torch
from rules import answer, column
from scipy.stats import binom

from fedbench.adversary.threat_model import attack_view, forge
from fedbench.api import ServerView, Shared
from fedbench.core.rng import Key
from fedbench.models.models import Conv8, LeNet
from fedbench.models.network import ConvNet
from fedbench.payload import (
    FloatVectors,
    Rankings,
    SignBits,
    SparseVectors,
    TopRankings,
    ranking,
    reputation,
)
from fedbench.protocols.compressed import TopK
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fsl import FSL, FailureBound, SparseFSL, initial_scores
from fedbench.protocols.signsgd import SignSGD
from fedbench.testing import example_context
from fedbench_attacks.rankings import RankReversal
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.distances import krum_scores, nearest_others, squared_distances
from fedbench_defenses.mean import Mean, exact_mean
from fedbench_defenses.median import Median, TrimmedMean
from fedbench_defenses.multi_krum import MultiKrum

# Figure 1 of the FSL paper. R_1 and A are printed; R_2 and R_3 are not, this is a completion that
# fits both (F8): reputations of e_0 are 1, 1, 0 as section 4.3 says, and the sums are A.
R1, R2, R3 = [4, 0, 2, 3, 5, 1], [2, 0, 1, 5, 4, 3], [0, 2, 5, 3, 4, 1]


def rankings(*rows: list[int]) -> Rankings:
    return Rankings(torch.tensor(rows, dtype=torch.int32), (len(rows[0]),))


def flat(d: int) -> Shared:
    return Shared(ConvNet((1, 1, d), (), (), 1), 0, torch.device("cpu"))


def test_figure_1_of_the_fsl_paper_votes_add_up_to_a_and_sort_it() -> None:
    votes = rankings(R1, R2, R3)
    assert votes.values()[0].tolist() == [1, 5, 2, 3, 0, 4]
    assert votes.values().sum(dim=0).tolist() == [2, 12, 3, 11, 8, 9]
    total = torch.tensor([2, 12, 3, 11, 8, 9])
    state = FSL().server_step(flat(6), torch.zeros(1, 6), total.double() / 3, 3, Key(0))
    assert state.tolist() == [[0, 2, 4, 5, 3, 1]]


def test_figure_1_of_the_fsl_paper_the_client_reorders_its_scores() -> None:
    # R_g = [2, 3, 0, 5, 1, 4]: e_4 gets the highest score and e_2 the lowest. Scattering by the
    # inverse ranking would give the highest score to e_3.
    shared = flat(6)
    broadcast = rankings([2, 3, 0, 5, 1, 4])
    (scores,) = FSL().receive(shared, broadcast).values()
    start = initial_scores(shared).sort().values
    assert scores[0, 4] == start[-1]
    assert scores[0, 2] == start[0]
    assert ranking(scores, (6,)).tolist() == [[2, 3, 0, 5, 1, 4]]


def test_the_subnetwork_keeps_the_end_of_the_ranking_and_not_the_high_indices() -> None:
    # F1: m[R_g[t:]] = 1 keeps {3, 5, 1} of R_1; the printed m[R_g >= t] = 1 would keep {0, 4, 3}.
    (weights,) = FSL(k=0.5).model(flat(6), torch.tensor([R1]), Key(0)).values()
    assert weights[0].nonzero()[:, 0].tolist() == [1, 3, 5]


def test_the_mask_of_training_is_the_mask_of_the_ranking() -> None:
    # A3: the released code masks by magnitude and ranks by sign, so a score of -0.9 is in the
    # subnetwork and ranked last.
    scores = {"fc1": torch.tensor([[-0.9, 0.5, 0.1, 0.3, -0.2, 0.4]])}
    ones = {"fc1": torch.ones(1, 6)}
    masked = FSL(k=0.5).weights(scores, ones, Key(0))["fc1"]
    order = ranking(scores["fc1"], (6,))[0]
    assert masked[0].tolist() == [0, 1, 0, 1, 0, 1]
    assert sorted(order[3:].tolist()) == masked[0].nonzero()[:, 0].tolist()


def test_initial_scores_are_positive_and_weights_are_the_signed_kaiming_constant() -> None:
    network = LeNet().build((1, 8, 8), 10)
    shared = Shared(network, 5, torch.device("cpu"))
    scores = initial_scores(shared)
    weights = FSL().frozen(shared)
    assert float(scores.min()) >= 0
    assert float(scores[:288].max()) <= 1 / 3  # fan_in of the first layer is 9
    for name, fan_in in {"conv1": 9, "conv2": 288, "fc1": 1024, "fc2": 128}.items():
        assert sorted(set(weights[name].flatten().tolist())) == pytest.approx(
            [-math.sqrt(2 / fan_in), math.sqrt(2 / fan_in)]
        )


def test_the_defaults_of_fsl_are_those_of_the_paper() -> None:
    # Appendix B.1, MNIST and CIFAR10; section 6.3 for k.
    assert FSL() == FSL(lr=0.4, momentum=0.9, weight_decay=1e-4, k=0.5, scores="positive")


def test_sparse_fsl_gives_the_position_in_the_full_ranking() -> None:
    # F7, and section 5.2: of R_1 only [3, 5, 1] travels and e_4, e_0, e_2 have reputation 0. With
    # positions in the truncated list e_3 would have 0 too.
    shared = flat(6)
    scores = torch.zeros(1, 6).scatter_(1, torch.tensor([R1]), torch.arange(6.0)[None])
    payload, _ = SparseFSL(top=0.5).message(shared, scores, [Key(0)], [{}])
    assert isinstance(payload, TopRankings)
    assert payload.symbols.tolist() == [[3, 5, 1]]
    assert payload.values().tolist() == [[0, 5, 0, 3, 0, 4]]


def test_rank_reversal_reverses_the_vote_of_its_own_clients_only() -> None:
    # Rows 0 and 1 collude: A = [2, 7, 2, 8, 4, 7], VOTE = [0, 2, 4, 1, 5, 3] with ties by index, so
    # they send [3, 5, 1, 4, 2, 0]. Sorting -A instead would order both ties the other way round.
    full = rankings(R1, R2, R3, R3)
    assert full.values()[:2].sum(dim=0).tolist() == [2, 7, 2, 8, 4, 7]
    # Votes of edges: [0, 10, 0, 6, 0, 8]; ascending [0, 2, 4, 3, 5, 1]; the reverse ends 4, 2, 0.
    top = TopRankings(rankings(R1, R1, R2).symbols[:, 3:], (6,), (3,))
    for payload, reverse in ((full, [3, 5, 1, 4, 2, 0]), (top, [4, 2, 0])):
        view = attack_view(RankReversal(), example_context(payload, Mean()))
        sent, _ = RankReversal().craft(view, None)
        assert isinstance(sent, Rankings | TopRankings)
        assert sent.symbols.tolist() == [reverse] * 2


# Of LeNet on MNIST, Conv8 on CIFAR-10 and LeNet on FEMNIST, in MiB.
TABLE_1 = [
    (FedAvg(), "6.20", "20.1", "6.23"),
    (FSL(), "4.05", "13.1", "4.06"),
    (SparseFSL(top=0.5), "2.03", "6.5", "2.03"),
    (SparseFSL(top=0.1), "0.40", "1.3", "0.40"),
    (SignSGD(), "0.19", "0.63", "0.19"),
    (TopK(k=0.5), "3.29", "10.69", "3.31"),
    (TopK(k=0.1), "0.81", "2.64", "0.81"),
]
NETWORKS = [(LeNet(), (1, 28, 28), 10), (Conv8(), (3, 32, 32), 10), (LeNet(), (1, 28, 28), 62)]


@pytest.mark.parametrize(("protocol", "printed"), [(row[0], row[1:]) for row in TABLE_1])
def test_table_1_of_the_fsl_paper_is_what_the_packets_weigh(
    protocol: FedAvg, printed: tuple[str, ...]
) -> None:
    # The paper truncates some figures and rounds others (F6), so either is accepted.
    for (model, image, classes), text in zip(NETWORKS, printed, strict=True):
        shared = Shared(model.build(image, classes), 0, torch.device("cpu"))
        updates = Key(0).uniform(1, shared.layout.d)
        payload, _ = protocol.message(shared, updates, [Key(0)], [{}])
        mib = payload.encode()[0].bits / (8 * 2**20)
        digits = len(text.partition(".")[2])
        assert float(text) in (round(mib, digits), math.floor(mib * 10**digits) / 10**digits)


def test_krum_sums_over_neighbours_and_the_default_multi_krum_averages_n_minus_f_rows() -> None:
    # n = 5, f = 1: two neighbours. The pair 0, 0.1 is tightest, but 6 has the closest two.
    assert answer(MultiKrum(f=1, m=1), column(0.0, 0.1, 5.0, 6.0, 7.0)).item() == 6.0
    # D9: a default of m = 1 reports Krum as Multi-Krum.
    assert answer(MultiKrum(f=1), column(0.0, 0.1, 5.0, 6.0, 107.0)).item() == pytest.approx(2.775)
    x = column(1.0, 2.0, 3.0, 4.0, torch.nan)
    assert answer(MultiKrum(f=1), x).item() == 2.5
    assert answer(MultiKrum(f=1), x[[4, 0, 1, 2, 3]]).item() == 2.5


# D1: one input on which Krum and the five scores that public code calls Krum pick five other rows.
D1 = torch.tensor([[7.0, 1], [1, 1], [11, 7], [3, 0], [0, 5], [8, 11], [4, 9]])


def test_krum_scores_are_squared_distances_to_n_minus_f_minus_2_others_and_no_other_score() -> None:
    # n = 7, f = 1: four neighbours. Row 1 by hand: the others are at 36, 136, 5, 17, 149 and 73,
    # and 5 + 17 + 36 + 73 = 131. Row 3: 17, 5, 34, 82 = 138.
    scores = krum_scores(nearest_others(squared_distances(D1))[0], f=1)
    assert scores.tolist() == pytest.approx([170, 131, 243, 138, 148, 246, 178])
    squared = squared_distances(D1)
    near = squared.sort(dim=1).values
    variants = [
        near[:, 1:6].mean(dim=1),  # squares to n - f - 1
        near[:, 1:6].sqrt().sum(dim=1),  # distances, not squared, to n - f - 1
        near[:, 1:5].square().sum(dim=1),  # fourth powers to n - f - 2
        near[:, 1:7].sqrt().sum(dim=1),  # distances to n - f
        near[:, 0:4].sum(dim=1),  # squares, itself counted as a neighbour
    ]
    assert [int(score.argmin()) for score in variants] == [0, 3, 4, 6, 3]
    assert MultiKrum(f=1, m=1).select(squared).nonzero().tolist() == [[1]]


def test_squared_distances_survive_a_common_offset() -> None:
    # Uncentred in float32, 1000 hides a difference of 0.01.
    x = torch.tensor([[1000.0, 1000.0], [1000.01, 1000.0], [1000.0, 1000.02]])
    expected = (x.double()[:, None] - x.double()[None]).square().sum(dim=2)
    torch.testing.assert_close(squared_distances(x), expected, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("place", [0, 9])
@pytest.mark.parametrize("huge", [1e6, 1e12, 3e30])
def test_a_huge_row_does_not_blur_the_distances_of_the_others(huge: float, place: int) -> None:
    # Centred on that row, benign distances cancel and the poisoned row 1 is Krum's pick.
    x = 0.1 * Key(0).normal(10, 50)
    x[place], x[1] = huge, x[1] + 3.0
    clean = x.double()[[i for i in range(10) if i != place]]
    exact = (clean[:, None] - clean[None]).square().sum(dim=2)
    rest = [i for i in range(10) if i != place]
    torch.testing.assert_close(squared_distances(x)[rest][:, rest], exact, rtol=1e-6, atol=1e-9)
    picked = MultiKrum(f=2, m=1).select(squared_distances(x))
    assert not bool(picked[1])
    assert not bool(picked[place])


def test_sign_flip_sends_the_negative_of_its_own_update() -> None:
    x = FloatVectors(torch.tensor([[1.0, -2.0], [3.0, 4.0], [5.0, 6.0]]))
    for via in ("codec", "wire"):
        attack = SignFlip(scale=2.0, via=via)
        context = example_context(x, Mean())
        packets = forge(attack, context, {}).among(context.honest)
        sent, _ = FloatVectors.decode(packets, x.spec)
        assert sent is not None
        assert sent.x.tolist() == [[-2.0, 4.0], [-6.0, -8.0], [5.0, 6.0]]


def test_trimmed_mean_drops_f_on_each_side_and_both_medians_are_named() -> None:
    # f = 1 of 5 keeps 1, 2, 6; dropping on one side only would give 4 or 1.25.
    assert answer(TrimmedMean(f=1), column(6.0, -3.0, 2.0, 100.0, 1.0)).item() == 3.0
    assert answer(TrimmedMean(f=0), column(1.0, 2.0, 6.0)).item() == 3.0
    x = column(4.0, 1.0, 2.0, 100.0)
    assert answer(Median(), x).item() == 3.0
    assert answer(Median(even="lower"), x).item() == 2.0


def test_the_mean_weights_by_size_and_adds_integers_exactly() -> None:
    votes = rankings([1, 0], [0, 1])
    weights = torch.tensor([1.0, 3.0]).double()
    view = ServerView(weights, votes, 0, Key(0))
    assert answer(Mean(), column(0.0, 4.0), view).item() == 3.0
    # 2^24 + 1 is no float32: sums of positions of a million edges would tie.
    sums = torch.tensor([[2**24, 2**24], [1, 0]], dtype=torch.int32)
    assert (exact_mean(sums) * 2).tolist() == [2**24 + 1, 2**24]
    # Edge 0 has position 1 in the first ranking only.
    assert answer(Mean(), votes, view).tolist() == [0.25, 0.75]


def test_the_majority_decides_and_a_tie_stays_or_moves_up() -> None:
    shared = flat(3)
    state = torch.zeros(3)
    votes = SignBits(torch.tensor([[True, True, False], [True, False, False]]))
    mean = answer(Mean(), votes)
    moved = SignSGD(server_lr=0.5).server_step(shared, state, mean, 2, Key(0))
    assert moved.tolist() == [0.5, 0.0, -0.5]
    moved = SignSGD(server_lr=0.5, tie="plus").server_step(shared, state, mean, 2, Key(0))
    assert moved.tolist() == [0.5, 0.5, -0.5]


def test_topk_counts_what_is_not_sent_as_zero() -> None:
    shared = flat(4)
    updates = torch.tensor([[4.0, -1.0, 0.5, -2.0], [1.0, 3.0, 0.0, 2.0]])
    payload, _ = TopK(k=0.5).message(shared, updates, [Key(0)] * 2, [{}] * 2)
    assert isinstance(payload, SparseVectors)
    assert payload.values().tolist() == [[4.0, 0.0, 0.0, -2.0], [0.0, 3.0, 0.0, 2.0]]
    assert answer(Mean(), payload).tolist() == [2.0, 1.5, 0.0, 0.0]


def test_the_failure_bound_holds_in_its_range_and_says_nothing_outside() -> None:
    # F4. n = 25, p = .9, alpha = .2: E = 18.5, margin 6, variance 2.25.
    bound = FailureBound(n=25, p=0.9, alpha=0.2)
    assert bound.margin == pytest.approx(6.0)
    assert bound.printed == pytest.approx(0.125)
    assert bound.cantelli == pytest.approx(2.25 / 38.25)
    exact = _probability_of_failure(25, 0.9, 5)
    assert exact < bound.cantelli < bound.printed
    # p = .6, alpha = .4: the margin is half a vote, and the printed bound exceeds 1.
    assert FailureBound(n=25, p=0.6, alpha=0.4).printed == pytest.approx(2.449, abs=5e-4)
    outside = FailureBound(n=25, p=0.4, alpha=0.2)
    assert not outside.valid
    assert outside.printed == outside.cantelli == 1.0
    assert _probability_of_failure(25, 0.4, 5) > 0.5


def _probability_of_failure(n: int, p: float, m: int) -> float:
    """P[Z <= n/2] for Z = Bin(n - m, p) + Bin(m, 1 - p), summed."""
    benign, bad = binom.pmf(np.arange(n - m + 1), n - m, p), binom.pmf(np.arange(m + 1), m, 1 - p)
    return float(np.convolve(benign, bad)[: n // 2 + 1].sum())


def test_reputation_inverts_ranking_layer_by_layer() -> None:
    scores = torch.tensor([[0.2, 0.1, 0.9, 0.7, 0.8]])
    order = ranking(scores, (2, 3))
    assert order.tolist() == [[1, 0, 1, 2, 0]]
    assert reputation(order, (2, 3)).tolist() == [[1, 0, 2, 0, 1]]
