"""FedPM, its regularised form, and the deterministic masks: numbers by hand, and bad input."""

import dataclasses
import math
from typing import Literal

import pytest
import torch
from exchanges import flat, sent, shared_of
from torch import Tensor

from fedbench.adversary.threat_model import forge
from fedbench.api import Batches, ServerView
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.models import CNN4, CNN8, Conv6, Model, ResNet20
from fedbench.models.network import ConvNet
from fedbench.payload import BinaryMasks, FloatVectors
from fedbench.payload.packets import code_bits
from fedbench.protocols.fedpm import Belief, FedMask, FedPM, ScoreTraining, TopKMask
from fedbench.protocols.fsl import random_network
from fedbench.protocols.hidenseek import HideNSeek, kept_weights
from fedbench.testing import NETWORK, example_context
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.mean import Mean

SHARED = shared_of()
FLAT = flat(4, seed=0)
BIG = flat(40_000, seed=0)


def belief(protocol: ScoreTraining, *theta: float) -> Belief:
    return dataclasses.replace(protocol.init(FLAT), theta=torch.tensor(theta))


def step(protocol: ScoreTraining, state: Belief, *aggregate: float, n: int) -> Belief:
    return protocol.server_step(FLAT, state, torch.tensor(aggregate), n, Key(0))


def masked_ones(protocol: ScoreTraining, score: Tensor, key: Key) -> Tensor:
    """The mask of a layer: what it leaves of weights of 1."""
    return protocol.masked({"fc1": torch.ones_like(score)}, {"fc1": score}, key)["fc1"]


def slope(protocol: ScoreTraining, s: float) -> float:
    """d mask / d score."""
    score = torch.tensor([s], requires_grad=True)
    (gradient,) = torch.autograd.grad(masked_ones(protocol, score, Key(1)).sum(), score)
    return gradient.item()


def test_the_gradient_of_a_sample_is_theta_s_or_theta_times_it() -> None:
    # theta = 3/4 at s = ln 3. E1: the printed rule multiplies by theta once more.
    assert slope(FedPM(ste="identity"), math.log(3)) == pytest.approx(3 / 16)
    assert slope(FedPM(ste="theta"), math.log(3)) == pytest.approx(9 / 64)
    # The penalty, s = ln 3: theta (1 - theta) = 3/16; four weights.
    scores = {"fc1": torch.full((1, 4), math.log(3))}
    zero: Tree = {"fc1": torch.zeros(1, 4)}
    mean = FedPM(reg=2.0).penalised(zero, scores)["fc1"]
    total = FedPM(reg=2.0, penalty="sum").penalised(zero, scores)["fc1"]
    assert mean.tolist() == [pytest.approx([2 / 4 * 3 / 16] * 4)]
    assert total.tolist() == [pytest.approx([2 * 3 / 16] * 4)]
    assert FedPM().penalised(zero, scores) is zero


def test_a_mask_that_is_not_drawn_has_the_gradient_of_its_score_or_of_the_sigmoid() -> None:
    # On both sides of the threshold: on one of them the mask of HideNSeek is -1.
    for s in (-math.log(3), math.log(3)):
        assert slope(HideNSeek(), s) == 1
        assert slope(TopKMask(), s) == 1
        assert slope(FedMask(), s) == pytest.approx(3 / 16)


def test_a_step_draws_each_bit_with_its_probability_and_a_new_key_draws_anew() -> None:
    score = torch.full((20_000,), math.log(0.3 / 0.7))
    first, second = (masked_ones(FedPM(), score, Key(k)) for k in (1, 2))
    assert set(first.tolist()) == {0.0, 1.0}
    assert float(first.mean()) == pytest.approx(0.3, abs=5 * math.sqrt(0.21 / 20_000))
    assert float((first * second).mean()) == pytest.approx(0.09, abs=0.012)  # independent


def test_what_is_sent_is_unbiased_and_certain_bits_are_certain() -> None:
    theta = torch.tensor([0.0, 1.0, 0.2, 0.9])
    keys = [Key(0).fold(i) for i in range(4000)]
    mean = sent(FedPM(), FLAT, theta.expand(4000, 4), keys=keys).values().mean(dim=0)
    assert mean[:2].tolist() == [0.0, 1.0]
    assert mean[2].item() == pytest.approx(0.2, abs=5 * math.sqrt(0.16 / 4000))
    assert mean[3].item() == pytest.approx(0.9, abs=5 * math.sqrt(0.09 / 4000))


def test_the_error_of_the_mean_stays_below_the_bound_of_equation_2() -> None:
    k, d = 10, SHARED.weights.d
    theta = Key(1).uniform(k, d)
    payload = sent(FedPM(), SHARED, theta, keys=[Key(2).fold(i) for i in range(k)])
    error = float((payload.values().mean(dim=0) - theta.mean(dim=0)).square().sum())
    exact = float((theta * (1 - theta)).sum()) / k**2
    assert error <= d / (4 * k)
    assert error == pytest.approx(exact, rel=0.5)


def test_every_layer_and_every_step_draws_a_mask_of_its_own() -> None:
    shared = shared_of(ConvNet((1, 1, 8), (), (8,), 8), 0)  # two layers of 64
    frozen = {name: torch.ones(8, 8) for name in shared.layout.names}
    masked = FedPM().weights({name: torch.zeros(8, 8) for name in frozen}, frozen, Key(1))
    assert not torch.equal(masked["fc1"], masked["fc2"])
    seen: list[object] = []

    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        seen.append(key.seed)
        return tree

    batches = Batches([(torch.zeros(1), torch.zeros(1))] * 3)
    down = FedPM().broadcast(shared, FedPM().init(shared), [0], Key(0))
    FedPM().local_update(FedPM().receive(shared, down), batches, grad, Key(0), {})
    assert len(set(seen)) == 3


def test_statistics_of_batch_norm_move_by_the_mean_of_their_moves_and_are_stored() -> None:
    shared = shared_of(CNN4().build((1, 8, 8), 10))
    start = FedPM().init(shared)
    assert len(start.statistics) == 2 * (32 + 64 + 128 + 256)
    move = torch.arange(960) / 1000
    state = FedPM().server_step(shared, start, torch.cat([start.theta, move]), 3, Key(0))
    torch.testing.assert_close(state.statistics, start.statistics + move)
    mean = FedPM().model(shared, state, Key(0))["norm1.mean"]
    torch.testing.assert_close(mean, state.statistics[:32])
    coded = code_bits((state.theta > 0.5).numpy())[1]
    assert FedPM(final="threshold").model_bits(shared, state) == 32 + coded + 32 * 960


def test_bayes_agg_is_the_mode_of_the_posterior_and_by_default_the_plain_average() -> None:
    for prior in (1.0, 2.0):  # the mode of Beta(1, 1) is 0 / 0: of nobody the server learns nothing
        start = belief(FedPM(prior=prior), 0.1, 0.5, 0.9, 1.0)
        after = step(FedPM(prior=prior), start, 0.0, 0.0, 0.0, 0.0, n=0)
        assert torch.equal(after.theta, start.theta)
        assert after.steps == 0
    # K = 4, three ones, lambda_0 = 2: alpha = 5, beta = 3, mode 4/6; the mean of the masks is 3/4,
    # the mean of the posterior 5/8.
    state = step(FedPM(prior=2.0), FedPM(prior=2.0).init(FLAT), 0.75, 0.0, 1.0, 0.5, n=4)
    assert state.theta.tolist() == pytest.approx([4 / 6, 1 / 6, 5 / 6, 1 / 2])
    protocol = FedPM()
    state = protocol.init(FLAT)
    for mean in ([0.75, 0.0, 1.0, 0.5], [0.25, 0.25, 0.0, 1.0]):
        state = step(protocol, state, *mean, n=4)
        assert state.theta.tolist() == mean
    state = step(FedPM(), FedPM().init(FLAT), -3.0, 7.0, 0.5, 1.0, n=4)
    assert state.theta.tolist() == [0.0, 1.0, 0.5, 1.0]
    # Without a reset rounds add up by their clients.
    # Round 1: 1 of 2; round 2: 3 of 6: together 4 of 8; round 3 starts afresh with 2 of 2.
    protocol = FedPM(resets="every:2")
    state = step(protocol, protocol.init(FLAT), 0.0, 0.5, 1.0, 0.5, n=2)
    state = step(protocol, state, 1.0, 0.5, 1.0, 0.0, n=6)
    assert state.theta.tolist() == pytest.approx([6 / 8, 4 / 8, 1.0, 1 / 8])
    state = step(protocol, state, 1.0, 0.0, 0.5, 0.5, n=2)
    assert state.theta.tolist() == [1.0, 0.0, 0.5, 0.5]


def test_certain_weights_get_finite_scores_and_others_their_logit() -> None:
    state = belief(FedPM(clip=0.01), 0.0, 1.0, 0.75, 0.5)
    down = FedPM().broadcast(FLAT, state, [0], Key(0))
    scores = FedPM().receive(FLAT, down)["fc1"].flatten().tolist()
    edge = math.log(0.01 / 0.99)
    assert scores == pytest.approx([edge, -edge, math.log(3), 0.0], abs=1e-5)


def test_sizes_count_in_the_regularised_form_only() -> None:
    # Sizes 1 and 3: equation 8 gives 3/4, FedPM's equation gives 1/2 (R5).
    masks = BinaryMasks(torch.tensor([[False], [True]]), torch.zeros(2, 0))
    for protocol, expected in ((FedPM(), 0.5), (FedPM(reg=1.0), 0.75)):
        sizes = torch.tensor([1.0, 3.0]) if protocol.weighted else torch.ones(2)
        view = ServerView(sizes.double(), masks.take([0]), 0, Key(0))
        assert Mean().aggregate(masks, None, view)[0].item() == expected


def test_the_first_theta_is_sigmoid_normal_or_uniform() -> None:
    for protocol, std in (
        (FedPM(), 0.2083),  # of sigmoid(N(0, 1))
        (FedPM(reg=1.0), 12**-0.5),  # R4
        (FedPM(start="uniform"), 12**-0.5),
        (FedPM(start="normal", reg=1.0), 0.2083),
    ):
        theta = protocol.init(BIG).theta
        assert float(theta.std()) == pytest.approx(std, abs=0.005)
        assert float(theta.mean()) == pytest.approx(0.5, abs=0.01)


def moved(protocol: FedPM) -> float:
    """How far ten local steps move the score of a weight whose loss has no gradient."""
    tree = {"fc1": torch.zeros(10, 100)}
    batches = Batches([(torch.zeros(1), torch.zeros(1))] * 10)
    update, _ = protocol.local_update(tree, batches, lambda *_: tree, Key(0), {})
    return float(update["fc1"].logit().abs().max())


def test_the_printed_penalty_is_felt_under_adam_and_not_under_sgd() -> None:
    # R1: |d penalty / ds| <= lambda / (4 d), here 2.5e-4 a step times lr 0.1. Adam divides it out.
    assert moved(FedPM(reg=1.0, optimizer="sgd")) <= 10 * 0.1 * 1 / (4 * 1000) * 1.01
    assert moved(FedPM(reg=1.0, optimizer="adam")) > 0.9
    assert moved(FedPM(optimizer="adam")) == 0.0


def test_moments_survive_in_the_client_only_if_they_are_kept() -> None:
    tree = FedPM().receive(SHARED, FedPM().broadcast(SHARED, FedPM().init(SHARED), [0], Key(0)))

    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: float(y) * s for name, s in tree.items()}

    def local(protocol: FedPM) -> tuple[Tree, Tree]:
        memory = protocol.memory(SHARED)
        for sign in torch.tensor([1.0, -1.0]):
            update, memory = protocol.local_update(
                tree, Batches([(sign, sign)]), grad, Key(0), memory
            )
        return update, memory

    carried, memory = local(FedPM(keep_moments=True))
    fresh, nothing = local(FedPM())
    assert memory["t"].item() == 2
    assert nothing == {}
    assert not torch.allclose(carried["fc1"], fresh["fc1"])


def test_moments_that_are_not_finite_are_forgotten() -> None:
    protocol = FedPM(keep_moments=True)
    tree = {"fc1": torch.zeros(1, 4)}

    def lost(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {"fc1": torch.tensor([[torch.nan, 1.0, 1.0, 1.0]])}

    batches = Batches([(torch.zeros(1), torch.zeros(1))])
    _, memory = protocol.local_update(tree, batches, lost, Key(0), protocol.memory(FLAT))
    assert all(bool((x == 0).all()) for x in memory.values())


def test_the_final_mask_is_a_sample_or_strictly_above_the_threshold_and_a_message_one() -> None:
    alone = BinaryMasks(torch.tensor([[True, False, True, False]]), torch.zeros(1, 0))
    model = FedPM().local_model(FLAT, FloatVectors(Key(0).uniform(1, 4)), alone)
    assert model is not None
    assert (model["fc1"] != 0).tolist() == [[True, False, True, False]]
    state = belief(FedPM(), 0.5, 0.51, 0.0, 1.0)
    hard = FedPM(final="threshold").model(FLAT, state, Key(0))["fc1"].abs() > 0
    assert hard.tolist() == [[False, True, False, True]]
    higher = FedPM(final="threshold", threshold=0.6).model(FLAT, state, Key(0))["fc1"].abs() > 0
    assert higher.tolist() == [[False, False, False, True]]
    after = [dataclasses.replace(state, steps=k) for k in range(50)]
    draws = [FedPM().model(FLAT, later, Key(0))["fc1"][0, 0].abs() > 0 for later in after]
    assert 10 < sum(map(int, draws)) < 40
    again = FedPM().model(FLAT, state, Key(7))["fc1"]
    assert torch.equal(again, FedPM().model(FLAT, state, Key(8))["fc1"])  # one mask is deployed


def test_weights_are_plus_minus_the_kaiming_deviation_of_their_layer() -> None:
    ones = dataclasses.replace(FedPM().init(SHARED), theta=torch.ones(SHARED.weights.d))
    model = FedPM().model(SHARED, ones, Key(0))
    for name, fan_in in {"conv1": 9, "fc1": 12, "fc2": 5}.items():
        values = sorted(set(model[name].flatten().tolist()))
        assert values == pytest.approx([-math.sqrt(2 / fan_in), math.sqrt(2 / fan_in)])


def test_a_settled_model_costs_less_than_a_bit_per_parameter() -> None:
    settled, uncertain = (
        FedPM().model_bits(BIG, Belief(torch.full((40_000,), theta), torch.empty(0)))
        for theta in (0.1, 0.5)
    )
    assert 0.46 * 40_000 < settled < 0.49 * 40_000  # H2(0.1) = 0.469
    assert uncertain <= 40_000 + 64 * 8


def test_fedmask_and_hidenseek_do_not_keep_a_score_of_zero() -> None:
    # A score of 0 is a probability of exactly 1/2 and is not kept.
    score = torch.tensor([0.0, 0.1, -0.1])
    assert masked_ones(FedMask(), score, Key(0)).tolist() == [0.0, 1.0, 0.0]
    assert FedMask().bits(FLAT, score.sigmoid(), Key(0)).tolist() == [False, True, False]
    assert masked_ones(HideNSeek(), score, Key(0)).tolist() == [-1.0, 1.0, -1.0]


def test_topk_mask_keeps_the_best_of_each_layer_and_breaks_ties_by_position() -> None:
    theta = SHARED.weights.unflatten(Key(5).uniform(SHARED.weights.d))
    theta["fc2"] += 10  # all of this layer beats all of the others
    bits = TopKMask(k=0.4).bits(SHARED, SHARED.weights.flatten(theta), Key(0))
    left = [int(layer.sum()) for layer in SHARED.weights.layers(bits)]
    assert left == [11, 24, 6]  # 27, 60 and 15 weights, int(0.6 n) dropped
    bits = TopKMask(k=0.5).bits(FLAT, torch.tensor([0.2, 0.2, 0.2, 0.1]), Key(0))
    assert bits.tolist() == [False, True, True, False]


def test_hidenseek_prunes_each_layer_by_synaptic_saliency() -> None:
    # 4 inputs, 4 hidden, 1 output: |w1_ji| |w2_j|, and |w2_j| sum_i |w1_ji|. A seed for which
    # neither magnitudes nor gradients alone choose the same weights.
    shared = shared_of(ConvNet((1, 1, 4), (), (4,), 1), 7)
    w1, w2 = (random_network(shared, "kaiming-normal")[name].abs() for name in ("fc1", "fc2"))

    def best(x: Tensor, count: int) -> list[int]:
        return sorted(x.flatten().argsort()[-count:].tolist())

    first, second = w1 * w2.T, w2 * w1.sum(dim=1)
    assert best(first, 8) not in (best(w1, 8), best(w2.T.expand(4, 4).contiguous(), 8))
    assert best(second, 2) != best(w2, 2) or best(second, 1) != best(w2, 1)
    left = shared.weights.unflatten(kept_weights(shared, 0.5))
    assert left["fc1"].flatten().nonzero()[:, 0].tolist() == best(first, 8)
    assert left["fc2"].flatten().nonzero()[:, 0].tolist() == best(second, 2)


@pytest.mark.edges("model0-image0")
@pytest.mark.parametrize(("model", "image"), [(CNN8(), (3, 32, 32)), (Conv6(), (3, 32, 32))])
def test_hidenseek_leaves_every_layer_its_share(model: Model, image: tuple[int, int, int]) -> None:
    masks = []
    for seed in (1, 2):
        shared = shared_of(model.build(image, 10), seed)
        left = kept_weights(shared, 0.1)
        for layer in shared.weights.layers(left):
            assert int(layer.sum()) == pytest.approx(0.1 * len(layer), abs=1)
        masks.append(left)
    assert not torch.equal(masks[0], masks[1])


def test_hidenseek_sends_signs_of_kept_weights_only_and_the_rest_is_zero() -> None:
    with pytest.raises(ConfigError, match="without group norm"):  # no flow is conserved through it
        HideNSeek().frozen(shared_of(ResNet20().build((3, 16, 16), 10)))
    protocol = HideNSeek(keep=0.3)
    left = kept_weights(SHARED, 0.3)
    theta = Key(0).uniform(3, SHARED.weights.d) * 2 - 1
    payload = sent(protocol, SHARED, theta)
    assert payload.mask.shape == (3, int(left.sum()))
    assert set(payload.values().flatten().tolist()) == {-1.0, 1.0}
    assert torch.equal(payload.mask, theta[:, left] > 0)
    start = protocol.init(SHARED)
    state = protocol.server_step(SHARED, start, payload.values().mean(dim=0), 3, Key(0))
    share = (theta > 0).float().mean(dim=0)
    torch.testing.assert_close(state.theta[left], share[left])
    assert torch.equal(state.theta[~left], start.theta[~left])
    model = SHARED.weights.flatten(protocol.model(SHARED, state, Key(0)))
    assert torch.equal(model != 0, left)
    local = protocol.local_model(SHARED, FloatVectors(start.theta[None]), payload.take([1]))
    assert local is not None
    frozen = SHARED.weights.flatten(protocol.frozen(SHARED))
    signs = torch.where(theta[1] > 0, 1.0, -1.0)
    assert torch.equal(SHARED.weights.flatten(local), frozen * signs)


def test_masks_of_all_zeros_and_all_ones_keep_everything_finite() -> None:
    for value in (False, True):
        masks = BinaryMasks(torch.full((3, SHARED.weights.d), value), torch.zeros(3, 0))
        assert [packet.bits for packet in masks.encode()] == [32] * 3
        mean = masks.values().mean(dim=0)
        state = FedPM().server_step(SHARED, FedPM().init(SHARED), mean, 3, Key(0))
        tree = FedPM().receive(SHARED, FedPM().broadcast(SHARED, state, [0], Key(0)))
        assert all(bool(torch.isfinite(x).all()) for x in tree.values())
        logits = NETWORK.logits(FedPM().model(SHARED, state, Key(0)), torch.ones(1, 1, 4, 4))
        assert bool(torch.isfinite(logits).all())


def test_masks_are_mirrored_at_the_middle_which_is_no_one() -> None:
    # A sign flip of probabilities mirrors at 1/2: -theta would send all zeros.
    rows = BinaryMasks(torch.tensor([[True, False]]), torch.tensor([[2.0]]))
    assert rows.opposite(torch.tensor([[1.0, 0.25, 2.0]])).tolist() == [[0.0, 0.75, -2.0]]
    assert rows.opposite(torch.tensor([[1.0, 0.5, 2.0]]), 4.0).tolist() == [[-1.5, 0.5, -8.0]]
    signs = dataclasses.replace(rows, signed=True)
    assert signs.opposite(torch.tensor([[1.0, -1.0, 2.0]])).tolist() == [[-1.0, 1.0, -2.0]]
    middle = torch.tensor([[0.5, 0.0, 0.51, -0.1]])
    binary = BinaryMasks(torch.zeros(1, 4, dtype=torch.bool), torch.zeros(1, 0))
    assert binary.nearest(middle).mask.tolist() == [[False, False, True, False]]
    signed = dataclasses.replace(binary, signed=True)
    assert signed.nearest(middle).mask.tolist() == [[True, False, True, False]]


@pytest.mark.parametrize("via", ["codec", "wire"])
def test_a_sign_flip_of_a_mask_sends_its_complement(via: Literal["codec", "wire"]) -> None:
    masks = BinaryMasks(Key(0).uniform(5, 12) > 0.3, torch.zeros(5, 0))
    context = example_context(masks, Mean(), rows=(1,))
    packets = forge(SignFlip(via=via), context, {}).among(masks)
    received, _ = BinaryMasks.decode(packets, masks.spec)
    assert received is not None
    assert torch.equal(received.mask[1], ~masks.mask[1])
    assert torch.equal(received.mask[[0, 2, 3, 4]], masks.mask[[0, 2, 3, 4]])
