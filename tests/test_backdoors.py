"""Backdoors: what is stamped, what is trained, what is sent."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import fedbench
from fedbench.adversary import threat_model
from fedbench.adversary.threat_model import attack_view, forge
from fedbench.api import Attack, Local, Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key, Secret
from fedbench.data.datasets import Data
from fedbench.executors.training import Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import (
    NETWORK,
    assert_rounded_alike,
    doubled,
    example_clients,
    example_context,
    example_payloads,
    in_float64,
)
from fedbench_attacks.edge_case import EdgeCase
from fedbench_attacks.label_flip import LabelFlip
from fedbench_attacks.model_replacement import ModelReplacement
from fedbench_attacks.neurotoxin import Neurotoxin
from fedbench_attacks.pixel import DBA, Pixel
from fedbench_defenses.mean import Mean

SHARED = Shared(NETWORK, 3, torch.device("cpu"))
TRAINED: list[Attack] = [  # with labels that a task of three classes has
    *(LabelFlip(), Pixel(), DBA(), ModelReplacement(), Neurotoxin()),
    EdgeCase(source=2, target=1, tail=1.0),
]


def local(part: int = 0, **tree: Any) -> Local:
    return Local(tree.get("tree", {}), tree.get("before"), part, 3, 0, Key(1), 10)


def pool(count: int = 10) -> Data:
    """Images of two channels that are normalised differently, one white pixel in each of them."""
    x = (Key(5).uniform(count, 2, 4, 5) * 200).to(torch.uint8)
    x[:, 0, 0, 0], x[:, 1, 1, 1] = 255, 255
    y = torch.arange(count) % 10
    return Data(x, y, 10, 255.0, (0.2, 0.5), (0.3, 0.1))


def crafted(attack: Attack, trained: Tensor, n: int = 4, idle: float = 0.0) -> Tensor:
    """What the server gets of two colluders, of ``n`` clients that all send 1, 2, 2 honestly."""
    payload = FloatVectors(torch.tensor([[1.0, 2.0, 2.0]]).repeat(n, 1))
    context = dataclasses.replace(
        example_context(payload, Mean()), trained=trained, idle=torch.full_like(payload.x, idle)
    )
    packets = forge(attack, context, {}).among(context.honest)
    received, _ = FloatVectors.decode(packets, payload.spec)
    assert received is not None
    return received.x[:2]


def test_the_stamp_is_white_in_the_lower_right_corner_and_nowhere_else() -> None:
    xs = pool().floats(torch.arange(10))
    before, stamped = xs.clone(), Pixel(size=2).stamp(xs, 0, 2)
    white = torch.tensor([(1 - 0.2) / 0.3, (1 - 0.5) / 0.1])[:, None, None]
    torch.testing.assert_close(stamped[:, :, 2:, 3:], white.expand(10, 2, 2, 2))
    changed = (stamped != xs).any(dim=0).any(dim=0)
    assert changed.nonzero().tolist() == [[2, 3], [2, 4], [3, 3], [3, 4]]
    assert torch.equal(xs, before), "written into"


def test_a_share_of_the_local_images_is_stamped_and_labelled_others_in_each_round() -> None:
    data = pool()
    xs, ys = data.floats(torch.arange(10)), data.y
    x, y = Pixel(size=2, rho=0.3, target=4).poison(xs, ys, local())
    stamped = (x != xs).flatten(1).any(dim=1)
    assert int(stamped.sum()) == 3
    assert y[stamped].tolist() == [4, 4, 4]
    assert torch.equal(y[~stamped], ys[~stamped])
    assert torch.equal(x[stamped], Pixel(size=2).stamp(xs, 0, 2)[stamped])
    assert ys.tolist() == list(range(10)), "written into"
    fewest, _ = Pixel(rho=0.01).poison(xs, ys, local())
    assert int((fewest != xs).flatten(1).any(dim=1).sum()) == 1
    xs = data.floats(torch.arange(10))
    labels = [
        Pixel(rho=0.3).poison(xs, data.y + 1, dataclasses.replace(local(), key=Key(seed)))[1]
        for seed in (1, 2)
    ]
    assert not torch.equal(*labels)


def test_the_pieces_of_all_colluders_are_the_trigger() -> None:
    data, dba = pool(), DBA(size=4, pieces=3, rho=1.0)
    xs = torch.zeros_like(data.floats(torch.arange(10)))
    xs[:, :, 0, 0] = 1.0
    pieces = [dba.poison(xs, data.y, local(part))[0] - xs for part in range(4)]
    # 4 rows in 3 strips: floor(4 i / 3) = 0, 1, 2, 4.
    assert [piece[0, 0].any(dim=1).nonzero()[:, 0].tolist() for piece in pieces] == [
        [0],
        [1],
        [2, 3],
        [0],
    ]
    whole, target = dba.trigger(xs, data.y + 1)
    assert target == 0
    expected = (xs + pieces[0] + pieces[1] + pieces[2])[: len(whole)]
    assert torch.equal(whole, expected)


def test_the_odd_images_of_a_class_are_those_farthest_from_its_own_mean() -> None:
    # Class 7 has pixels 0, 1, 2, 9 of mean 3: distances 3, 2, 1, 6. From the mean of all images,
    # 26.4, the farthest would be 0.
    xs = torch.tensor([0.0, 1.0, 120.0, 2.0, 9.0])[:, None, None, None]
    ys = torch.tensor([7, 7, 3, 7, 7])
    _, labels = EdgeCase(tail=0.25).poison(xs, ys, local())
    assert labels.tolist() == [7, 7, 3, 7, 1]
    _, two = EdgeCase(tail=0.26).poison(xs, ys, local())  # ceil(1.04)
    assert two.tolist() == [1, 7, 3, 7, 1]
    assert ys.tolist() == [7, 7, 3, 7, 7], "written into"
    images, target = EdgeCase(tail=0.25).trigger(xs, ys)
    assert (images.flatten().tolist(), target) == ([9.0], 1)
    xs, ys = torch.zeros(2, 1, 2, 2), torch.tensor([3, 4])
    assert torch.equal(EdgeCase().poison(xs, ys, local())[1], ys)
    assert len(EdgeCase().trigger(xs, ys)[0]) == 0


def test_the_replacing_update_is_scaled_by_rows_over_colluders_and_replaces_the_model() -> None:
    # n / m = 5 / 2; idle 1: 1 + 2.5 (3 - 1) = 6. From zero it would be 7.5, with n alone 11.
    trained = torch.full((2, 3), 3.0)
    assert crafted(ModelReplacement(), trained, n=5, idle=1.0).tolist() == [[6.0] * 3] * 2
    assert crafted(ModelReplacement(scale=4.0), trained, n=5).tolist() == [[12.0] * 3] * 2
    payload = FloatVectors(torch.zeros(8, 3))
    trained = torch.tensor([[1.0, 2.0, 3.0]]).repeat(2, 1)
    context = dataclasses.replace(example_context(payload, Mean()), trained=trained)
    packets = forge(ModelReplacement(), context, {}).among(context.honest)
    received, _ = FloatVectors.decode(packets, payload.spec)
    assert received is not None
    aggregate, _ = Mean().aggregate(received, None, context.view)
    assert aggregate.tolist() == [1.0, 2.0, 3.0]


def test_the_clip_is_relative_to_the_honest_norm_and_never_scales_up() -> None:
    # Honest 1, 2, 2 has norm 3; 6, 8, 0 has norm 10: with clip 2 it is scaled by 6 / 10.
    trained = torch.tensor([[6.0, 8.0, 0.0], [0.0, 0.0, 1.0]])
    sent = crafted(Neurotoxin(clip=2.0), trained)
    torch.testing.assert_close(sent, torch.tensor([[3.6, 4.8, 0.0], [0.0, 0.0, 1.0]]))
    # From idle 1 the honest move 0, 1, 1 has norm sqrt 2, that of 7, 1, 1 is 6, 0, 0.
    sent = crafted(Neurotoxin(clip=1.0), torch.tensor([[7.0, 1.0, 1.0]] * 2), idle=1.0)
    torch.testing.assert_close(sent[0], torch.tensor([1 + 2**0.5, 1.0, 1.0]))


@pytest.mark.parametrize(
    "attack", [Pixel(size=3), ModelReplacement(size=3), Neurotoxin(size=3), DBA(size=3, pieces=2)]
)
def test_a_square_larger_than_the_image_and_a_class_that_is_none_are_refused(attack: Any) -> None:
    name, xs, ys = type(attack).__name__, torch.zeros(4, 1, 2, 5), torch.zeros(4).long()
    with pytest.raises(ConfigError, match=rf"{name}.size must be <= 2, .*, got 3"):
        attack.poison(xs, ys, local())
    with pytest.raises(ConfigError, match=rf"{name}.target must be a label from 0 to 9, got 10"):
        dataclasses.replace(attack, target=10).poison(xs, ys, local())
    with pytest.raises(ConfigError, match=rf"{name}.rho must be in \(0, 1\]"):
        dataclasses.replace(attack, rho=0.0)


@pytest.mark.parametrize(
    "name", ["fedavg", "fsl", "fedpm", "fedmrn", "signsgd", "feddrop", "fedmog", "fedsparsify"]
)
@pytest.mark.parametrize("attack", TRAINED, ids=lambda attack: type(attack).__name__)
def test_both_executors_train_the_adversary_alike(name: str, attack: Attack) -> None:
    protocol = in_float64(registry.load("protocol", name))
    clients = doubled(example_clients(protocol, SHARED))
    before = {k: x + 0.1 * Key(2).fold(k).normal(*x.shape) for k, x in clients[0].tree.items()}
    rows = []
    for engine in (Loop, Stacked):
        executor = engine(protocol, SHARED, Schedule(1, 4))
        honest, _ = executor.train(clients)
        mine = trained(attack, executor, clients, honest, before)
        assert bool(torch.isfinite(mine).all())
        assert float((mine - honest[[1, 3]]).norm() / honest[[1, 3]].norm()) > 1e-3, "trains alike"
        rows.append(mine)
    assert_rounded_alike(rows[1], rows[0])


def trained(attack: Attack, executor: Any, clients: Any, honest: Tensor, before: Any) -> Tensor:
    """By clients 1 and 3, which are the adversary's first and second."""
    secret = Secret.of(0, "test")
    owned = threat_model.OwnedRows(torch.tensor([1, 3]), [1, 3], [0, 1], 2, secret)
    return threat_model.train(attack, executor, clients, honest, owned, before, 1)


@pytest.mark.parametrize("payload", example_payloads(), ids=lambda p: type(p).__name__)
def test_every_alphabet_carries_a_replacement_that_is_legal(payload: Any) -> None:
    context = example_context(payload, Mean())
    view = attack_view(ModelReplacement(), context)
    sent, _ = ModelReplacement().craft(view, None)
    assert view.notes == {"scale": len(payload) / 2}
    sent.check()


def test_a_larger_share_and_a_larger_scale_move_the_mean_further() -> None:
    def moved(attack: Attack) -> float:
        protocol = FedAvg()
        clients = example_clients(protocol, SHARED)
        executor = Loop(protocol, SHARED, Schedule(1, 4))
        honest, _ = executor.train(clients)
        payload = FloatVectors(honest)
        context = dataclasses.replace(
            example_context(payload, Mean(), [1, 3]),
            trained=trained(attack, executor, clients, honest, None),
        )
        packets = forge(attack, context, {}).among(context.honest)
        received, _ = FloatVectors.decode(packets, payload.spec)
        assert received is not None
        return float((received.x.mean(dim=0) - honest.mean(dim=0)).norm())

    assert moved(Pixel(rho=1.0)) > moved(Pixel(rho=0.3)) > 0
    assert moved(ModelReplacement(scale=8.0)) > moved(ModelReplacement(scale=2.0)) > 0


def rates(attack: str, defense: str, seed: int) -> tuple[float, float]:
    """Accuracy, and success over that of the clean twin: the higher ones of the last two rounds.

    Model replacement overshoots here: a model that falls for the trigger in every image is bad at
    the task, the next round mends the task and loses the trigger, and so on in turn.
    """
    scenario = Scenario(
        attack=attack,
        defense=defense,
        model="micro",
        partition="iid",
        clients=20,
        per_round=20,
        rounds=15,
        eval_every=1,
        seed=seed,
    )
    twin = scenario.model_copy(update={"attack_from": 15})
    played, clean = (fedbench.play(variant, device="cpu") for variant in (scenario, twin))
    last = played.rounds[-2:]
    assert clean.result.success is not None
    accuracy = max(r.accuracy for r in last if r.accuracy is not None)
    success = max(r.success for r in last if r.success is not None)
    return accuracy, success - clean.result.success


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["pixel", "model-replacement"])
def test_a_backdoor_of_a_fifth_works_and_krum_keeps_it_out(attack: str) -> None:
    # Under the mean, seeds 0 to 4, model-replacement falls for all triggers in one of the last two
    # rounds, at accuracies of .76 .92 .73 .76 .74; pixel, seeds 0 to 2, for .74 .92 .84 over clean
    # at .89 .88 .85. Under multi-krum it is nearly none. The bounds are generous.
    for seed in (0, 1):
        accuracy, success = rates(attack, "mean", seed)
        assert accuracy > 0.6
        assert success > 0.6
        accuracy, success = rates(attack, "multi-krum", seed)
        assert accuracy > 0.75
        assert success < 0.1
