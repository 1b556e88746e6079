"""Chameleon: its contrastive loss, its two stages, and gradients of a loss of the features."""

import dataclasses
import math
from functools import partial
from typing import Any

import pytest
import torch
from crafting import round_of, sent

import fedbench
from fedbench.adversary.threat_model import OwnedRows
from fedbench.adversary.training import train
from fedbench.api import Gradient, Local, Shared
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key, Secret
from fedbench.executors.training import Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.experiment.scenario import Scenario
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients
from fedbench_attacks.chameleon import Chameleon, contrast, last_layer

ATTACKS = (Chameleon(share=0.0), Chameleon(share=1.0))
SHARED = Shared(NETWORK, 3, torch.device("cpu"))
FEATURES = torch.tensor([[2.0, 0.0], [0.0, 3.0], [5.0, 0.0], [7.0, 7.0]], dtype=torch.float64)


def loss(labels: list[int], temperature: float, target: int) -> float:
    return float(contrast(FEATURES, torch.tensor(labels), temperature, target, 6.0))


def test_the_contrast_is_that_of_three_vectors_worked_by_hand() -> None:
    # Directions 0 and 2 are equal, 1 is orthogonal; the fourth is padding. Labels 0, 0, 1: the
    # first finds its like with chance 1 / (1 + e), the second with 1/2, the third has none.
    first = math.log(1 + math.e)
    second = math.log(2)
    assert loss([0, 0, 1, -1], 1.0, 5) == pytest.approx((first + second) / 3)
    assert loss([0, 0, 1, -1], 1.0, 0) == pytest.approx(6 * (first + second) / 3)
    assert loss([0, 0, 1, -1], 1.0, 1) == pytest.approx((first + second) / 3)
    colder = math.log(1 + math.exp(2))
    assert loss([0, 0, 1, -1], 0.5, 5) == pytest.approx((colder + second) / 3)
    # All alike: the first and the third have the chances 1 / (1 + e) and e / (1 + e), on average.
    assert loss([2, 2, 2, -1], 1.0, 5) == pytest.approx((2 * (first - 0.5) + second) / 3)
    assert loss([-1, -1, -1, -1], 1.0, 5) == 0.0


@pytest.mark.parametrize(("by_contrast", "played"), [(0.5, [0.5, 0.5, 0.5]), (7.0, [1, 1, 1])])
def test_the_features_learn_first_and_then_the_last_layer_alone(
    by_contrast: float, played: list[float]
) -> None:
    # Of five steps the share 0.4 are two; the gradients are ``by_contrast`` and 1 by cross-entropy,
    # and a longer one by contrast is shortened to that. Statistics are no part of it.
    tree = {"fc1": torch.zeros(2), "fc2": torch.zeros(1), "fc2.bias": torch.zeros(1)}
    tree["norm1.mean"] = torch.zeros(1)

    def filled(value: float) -> Any:
        return lambda *_: {name: torch.full_like(x, value) for name, x in tree.items()}

    gradient = Gradient(filled(1.0), filled(1.0), 4, lambda *_: FEATURES, filled(by_contrast))
    local = Local(tree, None, 0, 1, 0, Key(0), 3, steps=5, head=("fc2", "fc2.bias"))
    local = dataclasses.replace(local, statistics=("norm1.mean",))
    grad = Chameleon(share=0.4).wrap_grad(gradient, local)
    y = torch.tensor([0, 1, 0, 2])
    steps = [grad(tree, torch.zeros(4), y, Key(0)) for _ in range(5)]
    assert [[float(x[0]) for x in step.values()] for step in steps] == [
        *[[*played, by_contrast]] * 2,
        *[[0, 1, 1, 1]] * 3,
    ]
    assert list(last_layer(tree, ("fc2",))) == list(tree)
    assert Chameleon(share=1.0).adapting(4) == 3, "the last step is the last layer's"
    assert Chameleon(share=1.0).adapting(1) == 0
    assert Chameleon().adapting(13) == 10
    with pytest.raises(ConfigError, match=r"Chameleon.share must be in \[0, 1\], got 1.5"):
        Chameleon(share=1.5)


def test_the_gradient_of_a_loss_of_the_features_is_that_of_autograd() -> None:
    protocol = FedAvg()
    client = doubled(example_clients(protocol, SHARED))[0]
    bent = partial(contrast, temperature=0.5, target=1, weight=2.0)
    loop = Loop(protocol, SHARED, Schedule(1, len(client.x)))
    gradient = loop.gradient(loop._grad, loop._grad, {})
    got = gradient.of(bent)(client.tree, client.x, client.y, Key(5))
    leaves = {name: x.clone().requires_grad_() for name, x in client.tree.items()}
    value = bent(NETWORK.features(leaves, client.x), client.y)
    names = [name for name in leaves if name != NETWORK.head]
    wanted = torch.autograd.grad(value, [leaves[name] for name in names])
    for name, slope in zip(names, wanted, strict=True):
        torch.testing.assert_close(got[name], slope)
    assert not got[NETWORK.head].any(), "the features do not depend on it"


def test_both_executors_train_chameleon_alike() -> None:
    protocol = FedAvg(lr=0.05)
    clients = doubled(example_clients(protocol, SHARED))
    local = Local({}, None, 0, 1, 0, Key(0), 3, steps=4, head=NETWORK.head_names)
    updates = []
    for executor in (Loop, Stacked):
        wrap = partial(Chameleon(share=0.5).wrap_grad, local=local)
        ours = [dataclasses.replace(client, wrap_grad=wrap) for client in clients]
        updates.append(executor(protocol, SHARED, Schedule(2, 4)).train(ours)[0])
    honest = Loop(protocol, SHARED, Schedule(2, 4)).train(clients)[0]
    assert float((updates[0] - honest).norm()) > 0.1 * float(honest.norm())
    assert_rounded_alike(updates[0], updates[1])


def test_a_client_is_told_its_steps_and_its_last_layer() -> None:
    # Without momentum and decay all but the last 15 weights rest where no step adapts them.
    protocol = FedAvg(momentum=0.0, weight_decay=0.0)
    clients = example_clients(protocol, SHARED)
    executor = Loop(protocol, SHARED, Schedule(2, 4))
    owned = OwnedRows(torch.tensor([1]), [1], [0], 1, Secret.of(0, "test"))
    updates = [train(a, executor, clients, owned, None, 0)[0][0] for a in ATTACKS]
    assert [bool(update[:-15].any()) for update in updates] == [False, True]
    assert [bool(update[-15:].any()) for update in updates] == [True, True]


def test_what_was_learned_is_scaled_down_to_clip_times_the_honest_norm() -> None:
    # Honest updates of norm 1 and 5; what was trained has norm 4 and 6: 3 and 6 are sent.
    honest = torch.tensor([[1.0, 0.0], [3.0, 4.0]])
    trained = torch.tensor([[0.0, 4.0], [0.0, 6.0]])
    here = round_of(torch.cat([honest, torch.ones(1, 2)]))
    here = dataclasses.replace(here, trained=trained)
    assert sent(Chameleon(), here)[1].tolist() == [[0.0, 3.0], [0.0, 6.0]]


@pytest.mark.slow
def test_chameleon_keeps_the_model_alive_at_a_high_rate() -> None:
    # Rate 0.05, six rounds of attack after six without, seed 0: success 0.81. In 18 rounds, of
    # which the attack has the middle six, seeds 1 and 2 reach 0.11 and 0.00.
    scenario = Scenario(
        protocol="fedavg:lr=0.05",
        attack="chameleon",
        model="micro",
        partition="iid",
        clients=10,
        rounds=12,
        epochs=1,
        eval_every=12,
        attack_from=6,
    )
    played = fedbench.play(scenario, device="cpu")
    assert played.result.accuracy > 0.8
    assert (played.result.success or 0.0) > 0.4


@pytest.mark.slow
def test_chameleon_plants_a_backdoor_by_its_features() -> None:
    # From round 8 on four of twenty clients, after 14 rounds, seed 0: success 1.00, with the last
    # layer alone (`share` 0) .00; both at an accuracy of .87.
    size: dict[str, Any] = {"clients": 20, "per_round": 20, "rounds": 14, "malicious": 0.2}
    scenario = Scenario(model="micro", partition="iid", eval_every=14, attack_from=8, **size)
    success = []
    for attack in ("chameleon:size=5", "chameleon:size=5,share=0"):
        played = fedbench.play(scenario.model_copy(update={"attack": attack}), device="cpu")
        assert played.result.accuracy > 0.8
        success.append(played.result.success or 0.0)
    assert success[0] > 0.8
    assert success[1] < 0.2
