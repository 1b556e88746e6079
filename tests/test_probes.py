"""The probes' arithmetic, worked by hand, and what they find where the answer is known."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.executors.training import Client
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.models.models import LeNet
from fedbench.payload import BinaryMasks, FloatVectors, Payload, Rankings, SignBits, same
from fedbench.payload.rankings import ranking
from fedbench.probes import shadows
from fedbench.probes.images import best_order, psnr, ssim, total_variation, window
from fedbench.probes.lira import (
    auc,
    balanced_accuracy,
    bootstrap,
    centred,
    confidences,
    halves,
    likelihood_ratios,
    shrunk,
    tpr,
)
from fedbench.probes.membership import reading
from fedbench.probes.systems import Exchange, listening, signal
from fedbench.run import play_round

TINY = Scenario(
    clients=40, per_round=4, rounds=2, epochs=1, batch_size=8, malicious=0.0, partition="iid"
)


def setup(scenario: Scenario = TINY, **changes: Any) -> Setup:
    return prepare(scenario.model_copy(update=changes), "cpu")


def bools(*bits: int) -> Tensor:
    return torch.tensor(bits, dtype=torch.bool)


# scores


def test_auc_counts_pairs_in_order_and_ties_by_half() -> None:
    scores = torch.tensor([0.9, 0.4, 0.4, 0.1, 0.4])
    # members 0.9, 0.4; others 0.4, 0.1, 0.4: pairs 1+1+1, 0.5+1+0.5
    assert auc(scores, bools(1, 1, 0, 0, 0)) == pytest.approx(5 / 6)


def test_the_true_positive_rate_lets_exactly_so_many_others_pass() -> None:
    others = torch.arange(100.0)
    members = torch.tensor([98.5, 99.5, 97.0, 10.0])
    scores, inside = torch.cat([others, members]), torch.arange(104) >= 100
    assert tpr(scores, inside, 0.01) == 0.5  # above 98, which 99 is as well: one in a hundred
    assert tpr(scores, inside, 0.02) == 0.5  # above 97, so not 97 itself
    assert tpr(scores, inside, 0.03) == 0.75
    assert tpr(scores, inside, 0.001) is None  # not one of a hundred
    assert tpr(scores, inside, 1.0) == 1.0


def test_balanced_accuracy_weighs_members_and_others_alike() -> None:
    scores = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0, -1.0, -1.0, -1.0])
    inside = bools(1, 1, 0, 0, 0, 0, 0, 0)
    assert balanced_accuracy(scores, inside) == pytest.approx((1 + 5 / 6) / 2)


def test_the_bootstrap_covers_the_measure_and_draws_whole_examples() -> None:
    member = halves(60, 4, Key(1))
    scores = Key(2).normal(8, 60) + member.float()
    found = bootstrap(auc, scores, member, Key(3))
    assert found.low < found.value < found.high
    assert found.value == auc(scores, member)
    assert found == bootstrap(auc, scores, member, Key(3))
    same = scores[:, :1].expand(-1, 60)  # every example drawn has the same column
    alike = bootstrap(auc, same, member[:, :1].expand(-1, 60), Key(3))
    assert alike.low == alike.value == alike.high


# LiRA


@pytest.mark.parametrize("count", [10, 126])
def test_each_example_is_in_one_shadow_of_each_pair_and_all_are_as_large(count: int) -> None:
    member = halves(count, 4, Key(0))
    assert member.shape == (8, count)
    assert bool((member[0::2] ^ member[1::2]).all())
    assert set(member.sum(dim=1).tolist()) == {count // 2}
    assert not torch.equal(member[0], member[2])


def test_confidence_is_the_log_odds_of_the_true_class() -> None:
    network = LeNet().build((1, 8, 8), 10)
    model = network.init(Key(0))
    x, y = Key(1).normal(5, 1, 8, 8), torch.tensor([0, 3, 9, 1, 1])
    p = network.logits(model, x).double().softmax(dim=1).gather(1, y[:, None])[:, 0]
    assert torch.allclose(confidences(network, model, x, y), (p / (1 - p)).log(), atol=1e-6)
    other = network.init(Key(5))
    q = network.logits(other, x).double().softmax(dim=1).gather(1, y[:, None])[:, 0]
    mean = (p + q) / 2
    both = confidences(network, [model, other], x, y)
    assert torch.allclose(both, (mean / (1 - mean)).log(), atol=1e-6)


def test_confidence_is_finite_where_the_model_is_sure_or_broken() -> None:
    network = LeNet().build((1, 8, 8), 10)
    model = network.init(Key(0))
    x, y = Key(1).normal(3, 1, 8, 8), torch.tensor([0, 3, 9])
    sure = model | {"fc2": model["fc2"] * 1e6}
    assert bool(torch.isfinite(confidences(network, sure, x, y)).all())
    assert confidences(network, sure, x, y).abs().max() == 100
    broken = model | {"fc2": model["fc2"] * math.nan}
    assert confidences(network, broken, x, y).tolist() == [0, 0, 0]


def gaussians(shift: float, pairs: int, count: int = 400) -> tuple[Tensor, Tensor]:
    """What examples of very different levels show in shadows: ``N(level + shift [in], 1)``."""
    member = halves(count, pairs, Key(11))
    level = 5 * Key(12).gaussian(count)
    return level + shift * member + Key(13).gaussian(2 * pairs, count), member


@pytest.mark.parametrize("shift", [0.5, 1.0, 2.0])
def test_likelihood_ratios_of_gaussians_reach_the_analytic_auc(shift: float) -> None:
    phi, member = gaussians(shift, pairs=16)
    analytic = 0.5 * (1 + math.erf(shift / 2))  # Phi(shift / sqrt 2)
    assert auc(likelihood_ratios(phi, member), member) == pytest.approx(analytic, abs=0.015)
    assert auc(phi, member) < analytic - 0.08  # levels hide it from who has no shadows


def test_eight_shadows_lose_little_to_many() -> None:
    phi, member = gaussians(1.0, pairs=4)
    assert auc(likelihood_ratios(phi, member), member) > 0.73  # of 0.760; without pooling 0.70


def test_nothing_is_learned_where_there_is_nothing() -> None:
    # S N / 2 = 3200 members: the deviation of the AUC is about 0.007. A shadow that also teaches
    # what it is judged by leaks its own noise.
    phi, member = gaussians(0.0, pairs=8)
    assert abs(auc(likelihood_ratios(phi, member), member) - 0.5) < 0.03


def test_differences_of_means_keep_what_is_not_noise() -> None:
    x = torch.tensor([0.0, 2.0, 4.0])  # variance 4
    assert shrunk(x, torch.tensor(0.0)).tolist() == [0, 2, 4]
    assert shrunk(x, torch.tensor(3.0)).tolist() == [1.5, 2, 2.5]
    assert shrunk(x, torch.tensor(9.0)).tolist() == [2, 2, 2]


def test_a_run_in_which_all_examples_look_alike_says_nothing_more_than_another() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]])
    assert centred(x).tolist() == [[-1, 0, 1], [-1, 0, 1]]


def test_a_rate_that_is_not_resolved_is_not_given() -> None:
    phi, member = gaussians(3.0, pairs=4, count=20)  # 80 others
    found = reading("", likelihood_ratios(phi, member), member, Key(0))
    assert found.tprs == {1e-2: None, 1e-3: None}
    phi, member = gaussians(3.0, pairs=4)  # 1600 others
    found = reading("", likelihood_ratios(phi, member), member, Key(0))
    small, smaller = found.tprs[1e-2], found.tprs[1e-3]
    assert small is not None
    assert smaller is not None
    assert smaller.low <= smaller.value < small.value <= small.high


# shadows


def test_candidates_that_are_out_never_enter_the_training_of_a_shadow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = setup()
    victim = shadows.choose_victim(base)
    pool = shadows.candidates(base, victim)
    member = halves(len(pool), 3, Key(0))
    trained: list[Tensor] = []
    original = type(base.executor).train

    def train(self: Any, clients: list[Client]) -> Any:
        trained.extend(client.x for client in clients)
        return original(self, clients)

    monkeypatch.setattr(type(base.executor), "train", train)
    for s, row in enumerate(member):
        run = shadows.shadow(base, victim, pool[row], s)
        trained.clear()
        state = RunState(run.plugins.protocol.init(run.shared))
        for step in range(2):
            play_round(run, state, step)
        used = {x.numpy().tobytes() for x in torch.cat(trained)}
        out, inside = (
            base.population.data.floats(pool[~row]),
            base.population.data.floats(pool[row]),
        )
        assert not {x.numpy().tobytes() for x in out} & used
        assert {x.numpy().tobytes() for x in inside} <= used
        assert run.population.sizes[victim] == len(pool) // 2


def test_shadows_share_what_the_server_knows_and_nothing_that_clients_draw() -> None:
    base = setup(mechanism="none")
    victim = shadows.choose_victim(base)
    pool = shadows.candidates(base, victim)
    first, second = (shadows.shadow(base, victim, pool[::2], s) for s in range(2))
    assert first.shared is second.shared is base.shared
    assert [first.sample(t) for t in range(5)] == [base.sample(t) for t in range(5)]
    assert len({first.secret, second.secret, base.secret}) == 3
    assert all(
        torch.equal(a, b)
        for i, (a, b) in enumerate(zip(base.population.train, first.population.train, strict=True))
        if i != victim
    )


def test_the_victim_is_who_takes_part_most_often() -> None:
    for seed in range(5):
        base = setup(rounds=20, seed=seed, data_seed=0)
        counts = [sum(i in base.sample(t) for t in range(20)) for i in range(40)]
        assert counts[shadows.choose_victim(base)] == max(counts)


@pytest.mark.parametrize("count", [2, 4, 7])
def test_too_few_or_odd_shadows_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"--shadows must be even and >= 6, got {count}"):
        shadows.play_shadows(setup(), count)


# what the server hears


@pytest.mark.parametrize("name", ["fedavg", "fedpm", "signsgd", "fsl"])
def test_an_ear_at_the_server_changes_nothing_and_hears_what_was_sent(name: str) -> None:
    base = setup(protocol=name)
    ids = base.sample(0)
    hearing, heard_of = listening(base, ids[1:])
    rounds = []
    for run in (base, hearing):
        state = RunState(run.plugins.protocol.init(run.shared))
        rounds.append((play_round(run, state, 0), state.server))
    assert rounds[0][0] == rounds[1][0]
    assert sorted(heard_of) == sorted(ids[1:])
    protocol, shared = base.plugins.protocol, base.shared
    state = RunState(protocol.init(shared))
    for i in ids[1:]:
        heard = heard_of[i][0]
        client = base.client(i, protocol.receive(shared, heard.broadcast), state.memories.get(i), 0)
        updates, _ = base.executor.train([client])
        message, _ = protocol.message(shared, updates, [client.key], [client.memory])
        assert same(heard.sent, message)


def test_a_signal_is_how_far_a_message_is_from_that_of_who_learned_nothing() -> None:
    def of(name: str, row: Tensor) -> tuple[Tensor | None, Tensor]:
        run = setup(protocol=name)
        protocol, shared = run.plugins.protocol, run.shared
        down = protocol.broadcast(shared, protocol.init(shared), [0], Key(0))
        d = protocol.trained(shared).d
        sizes, ones = shared.weights.sizes, torch.ones(1, d, dtype=torch.bool)
        messages: dict[str, Payload] = {
            "fedavg": FloatVectors(row.expand(1, d)),
            "signsgd": SignBits(ones),
            "fedpm": BinaryMasks(ones, torch.zeros(1, 0)),
        }
        sent = messages.get(name) or Rankings(ranking(protocol.idle(shared, down), sizes), sizes)
        return signal(protocol, shared, Exchange(down, sent)), protocol.idle(shared, down)[0]

    floats, _ = of("fedavg", torch.tensor([[0.25]]))
    assert floats is not None
    assert set(floats.tolist()) == {0.25}
    signs, _ = of("signsgd", torch.zeros(1))
    assert signs is not None
    assert set(signs.tolist()) == {1.0}
    masks, theta = of("fedpm", torch.zeros(1))
    assert masks is not None
    assert torch.allclose(masks, 1 - theta)
    ranks, _ = of("fsl", torch.zeros(1))  # the ranking that was sent down comes back
    assert ranks is not None
    assert ranks.abs().max() == 0
    assert ranks.shape == theta.shape


# images


def test_psnr_is_that_of_the_mean_squared_error() -> None:
    truth = torch.zeros(1, 4, 4)
    one = truth.clone()
    one[0, 0, 0] = 0.4  # MSE 0.16 / 16 = 0.01
    assert psnr(one, truth) == pytest.approx(20.0, abs=1e-5)
    assert psnr(truth + 0.1, truth) == pytest.approx(20.0, abs=1e-5)
    assert psnr(truth, truth) == 100


def test_ssim_of_flat_images_is_the_luminance_term() -> None:
    # No variance: (2 a b + C1) / (a^2 + b^2 + C1) with C1 = 1e-4: 0.2401 / 0.2501.
    a, b = torch.full((1, 16, 16), 0.3), torch.full((1, 16, 16), 0.4)
    assert ssim(a, b) == pytest.approx(0.2401 / 0.2501, abs=1e-6)
    assert ssim(a, a) == pytest.approx(1.0)


def test_ssim_of_an_inverted_board_is_negative_by_hand() -> None:
    # A chessboard and its negative: means 1/2 nearly everywhere, cov = -var. On 11 x 11 pixels
    # there is one window, whose weights of one colour sum to s: mean s and 1 - s, var s (1 - s).
    board = torch.tensor([[(i + j) % 2 for j in range(11)] for i in range(11)]).float()[None]
    weights = [
        [math.exp(-((i - 5) ** 2 + (j - 5) ** 2) / 4.5) for j in range(11)] for i in range(11)
    ]
    total = sum(map(sum, weights))
    s = sum(weights[i][j] for i in range(11) for j in range(11) if (i + j) % 2) / total
    c1, c2 = 1e-4, 9e-4
    luminance = (2 * s * (1 - s) + c1) / (s**2 + (1 - s) ** 2 + c1)
    structure = (-2 * s * (1 - s) + c2) / (2 * s * (1 - s) + c2)
    assert ssim(board, 1 - board) == pytest.approx(luminance * structure, abs=1e-6)
    assert ssim(board, 1 - board) < -0.99


def test_the_window_is_a_gaussian_and_shrinks_to_what_fits() -> None:
    full = window(28)
    assert full.shape == (11, 11)
    assert float(full.sum()) == pytest.approx(1.0)
    assert float(full[5, 6] / full[5, 5]) == pytest.approx(math.exp(-1 / 4.5))
    assert window(8).shape == (7, 7)
    assert window(11).shape == (11, 11)


def test_total_variation_looks_both_ways() -> None:
    step = torch.tensor([[[[0.0, 0.0, 1.0]] * 2]])
    assert float(total_variation(step)) == pytest.approx(0.5)  # across: 0, 1; down: nothing
    assert float(total_variation(step.transpose(2, 3))) == pytest.approx(0.5)


def test_images_of_one_message_are_matched_to_the_truth_in_the_best_order() -> None:
    truth = torch.stack([torch.full((1, 2, 2), v) for v in (0.0, 0.5, 1.0)])
    found = torch.stack([torch.full((1, 2, 2), v) for v in (0.9, 0.1, 0.4)])
    assert best_order(found, truth)[:, 0, 0, 0].tolist() == pytest.approx([0.1, 0.4, 0.9])
