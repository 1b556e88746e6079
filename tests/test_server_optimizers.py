"""Servers that take the mean update for a gradient: worked by hand, and as FedSparse's does."""

import dataclasses
from typing import Any

import pytest
import torch
from exchanges import exchanged, flat, shared_of
from torch import Tensor

import fedbench
from fedbench import Scenario
from fedbench.adversary.rehearsal import rehearsal
from fedbench.core import registry
from fedbench.core.errors import Incompatible
from fedbench.core.rng import Key, Secret
from fedbench.executors.training import Loop, Schedule
from fedbench.experiment.compatibility import resolve
from fedbench.models.models import CNN4, DropoutNet
from fedbench.models.network import ConvNet
from fedbench.protocols.fedavg import FedAvg, Optimised, weights_in
from fedbench.protocols.feddrop import FedDrop
from fedbench.protocols.fedsparse import FedSparse
from fedbench.protocols.signsgd import SignSGD

DEEP = shared_of(ConvNet((1, 4, 4), ((4, 5),), (6,), 3))
SERVERS = ("mean", "momentum", "adam", "yogi")


def steps(protocol: Any, shared: Any, *means: Tensor) -> Tensor:
    """How far the server has moved after these means."""
    state = protocol.init(shared)
    start = weights_in(state).clone()
    for mean in means:
        state = protocol.server_step(shared, state, mean, 4, Key(0))
    return weights_in(state) - start


# Two steps along u = (2, 2), then (-1, 0.05). Both moments of Adam start at 0: after the first step
# m = 0.1 u and v = 0.001 u**2, corrected u and u**2. Then m = (0.18 - 0.1, 0.18 + 0.005), divided
# by 1 - 0.9**2 = 0.19, and v = 0.999 * 0.004 + 0.001 * (1, 0.0025), by 1 - 0.999**2 = 0.001999.
# Yogi corrects neither, and its v starts at tau**2: it goes up by 0.01 * 4; then up by 0.01 * 1,
# which is above it, and down by 0.01 * 0.0025, which is below.
M = (0.08 / 0.19, 0.185 / 0.19)
V = (0.004996 / 0.001999, 0.0039985 / 0.001999)
GOLDEN = [
    ({"server": "mean"}, [1.0, 2.05]),
    ({"server": "mean", "server_lr": 0.5}, [0.5, 1.025]),
    ({"server": "momentum", "server_lr": 0.1}, [0.2 + 0.08, 0.2 + 0.185]),  # 0.9 * 2 + u
    (
        {"server": "adam", "server_lr": 0.1},
        [0.1 + 0.1 * m / v**0.5 for m, v in zip(M, V, strict=True)],
    ),
    (
        {"server": "adam", "server_tau": 2.0},
        [0.002 / 4 + 0.001 * m / (v**0.5 + 2) for m, v in zip(M, V, strict=True)],
    ),
    (
        {"server": "yogi"},
        [
            0.0002 / (0.040001**0.5 + 0.001) + 0.00008 / (0.050001**0.5 + 0.001),
            0.0002 / (0.040001**0.5 + 0.001) + 0.000185 / (0.039976**0.5 + 0.001),
        ],
    ),
    (
        {"server": "yogi", "server_lr": 0.1, "server_tau": 0.2},
        [
            0.02 / (0.08**0.5 + 0.2) + 0.008 / (0.3 + 0.2),  # v = 0.04 + 0.04, then 0.09
            0.02 / (0.08**0.5 + 0.2) + 0.0185 / (0.079975**0.5 + 0.2),
        ],
    ),
]


@pytest.mark.parametrize(("fields", "expected"), GOLDEN, ids=str)
def test_two_steps_worked_by_hand(fields: dict[str, Any], expected: list[float]) -> None:
    moved = steps(FedAvg(**fields), flat(2), torch.tensor([2.0, 2.0]), torch.tensor([-1.0, 0.05]))
    assert moved.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("server", ["adam", "yogi"])
@pytest.mark.parametrize("tau", [1e-38, 1e-17, 1e38])
def test_no_tau_makes_weights_that_are_no_numbers(server: Any, tau: float) -> None:
    mean = torch.tensor([0.0, 1e-3])
    moved = steps(FedAvg(server=server, server_tau=tau), flat(2), mean, mean)
    assert torch.isfinite(moved).all()
    assert moved[0] == 0
    assert float(moved[1]) == pytest.approx(0.0, abs=1e-30) if tau > 1 else float(moved[1]) > 0


def test_adam_moves_fedavg_as_it_moves_fedsparse_with_all_gates_open() -> None:
    shared = shared_of(DropoutNet((1, 8, 8), (2, 3), 2, 5, 3, 0.0, 0.0))
    d, p = shared.weights.d, shared.rest.d
    sparse = FedSparse(prune=False)
    dense = FedAvg(server="adam")
    gated = sparse.init(shared)
    plain = dense.init(shared)
    assert torch.equal(gated.w, plain.w)
    for number in range(3):
        mean = Key(number).normal(d + p)
        open_ = torch.ones(len(gated.v))
        sent = torch.cat([open_, gated.w[:d] + mean[:d], mean[d:]])  # z, z w_s, updates
        gated = sparse.server_step(shared, gated, sent, 4, Key(0))
        plain = dense.server_step(shared, plain, mean, 4, Key(0))
        torch.testing.assert_close(plain.w, gated.w, rtol=0, atol=1e-6)


@pytest.mark.parametrize("server", SERVERS)
def test_without_dropout_the_server_of_feddrop_is_that_of_fedavg(server: Any) -> None:
    mean = exchanged(FedAvg(), DEEP, Schedule(2, 4))[0].mean(dim=0)
    moves = [
        steps(
            FedDrop(conv=0, dense=0, server=server), DEEP, *[torch.cat([torch.ones(15), mean])] * 2
        ),
        steps(FedAvg(server=server), DEEP, mean, mean),
    ]
    assert torch.equal(*moves)
    assert float(moves[0].abs().max()) > 1e-4


def test_the_gradient_of_feddrop_is_divided_by_the_chance_of_a_weight() -> None:
    drop = FedDrop(conv=0.4, dense=0.5, server="momentum", server_lr=0.5)
    mean = Key(1).normal(DEEP.layout.d)
    moved = steps(drop, DEEP, torch.cat([torch.ones(15), mean]))
    torch.testing.assert_close(moved, 0.5 * mean / drop.chances(DEEP), rtol=1e-4, atol=1e-6)


def test_a_majority_of_signs_can_be_a_gradient() -> None:
    votes = torch.tensor([0.5, -0.25])
    moved = steps(SignSGD(server="momentum", server_lr=0.1), flat(2), votes, votes)
    assert moved.tolist() == pytest.approx([0.29, -0.29])  # 0.1 * (1 + 1.9)


@pytest.mark.parametrize("server", SERVERS)
def test_running_statistics_are_averaged_whatever_the_optimiser(server: Any) -> None:
    shared = shared_of(CNN4().build((1, 8, 8), 10))
    t = shared.layout.d - shared.statistics.d
    mean = Key(2).normal(shared.layout.d)
    moved = steps(FedAvg(server=server, server_lr=0.5), shared, mean, mean)
    torch.testing.assert_close(moved[t:], 2 * mean[t:])
    assert not torch.allclose(moved[:t], 2 * mean[:t], atol=0.1)


@pytest.mark.parametrize("server", ["momentum", "adam", "yogi"])
def test_what_is_sent_and_deployed_are_the_weights_alone(server: Any) -> None:
    for name in ("fedavg", "feddrop:conv=0,dense=0", "rosdhb", "cast"):
        plain = registry.load("protocol", name)
        protocol = dataclasses.replace(plain, server=server)
        state = protocol.init(DEEP)
        assert isinstance(state, Optimised)
        sent = [p.broadcast(DEEP, s, [1], Key(3)) for p, s in ((protocol, state), (plain, state.w))]
        assert sent[0].encode() == sent[1].encode()
        assert protocol.model_bits(DEEP, state) == plain.model_bits(DEEP, state.w)
        models = [protocol.model(DEEP, state, Key(4)), plain.model(DEEP, state.w, Key(4))]
        assert torch.equal(*(DEEP.layout.flatten(model) for model in models))


def test_a_rehearsed_step_is_the_servers_and_changes_nothing() -> None:
    protocol = FedAvg(server="adam", server_lr=0.1)
    mean = Key(5).normal(DEEP.layout.d)
    state = protocol.server_step(DEEP, protocol.init(DEEP), mean, 4, Key(0))
    kept = {name: x.clone() for name, x in state.memory.items()}
    sent = protocol.broadcast(DEEP, state, [0], Key(0))
    images = Key(6).normal(2, *DEEP.network.image)
    executor = Loop(protocol, DEEP, Schedule(1, 4))
    trial = rehearsal(executor, state, sent, 0, 4, images, torch.tensor([0, 1]), Secret.of(0, "x"))
    ahead = DEEP.layout.flatten(trial.steps(False, [mean, mean]))
    for _ in range(2):
        assert all(torch.equal(x, state.memory[name]) for name, x in kept.items())
        state = protocol.server_step(DEEP, state, mean, 4, Key(0))
        kept = state.memory
    assert torch.equal(ahead, state.w)


def test_a_rule_that_needs_the_servers_weights_refuses_optimisers() -> None:
    few: dict[str, Any] = {"defense": "crfl", "clients": 4, "per_round": 4, "malicious": 0.0}
    resolve(Scenario(protocol="fedavg:server_lr=1", **few))
    for fields in ("server=adam", "server_lr=0.5", "server=momentum"):
        with pytest.raises(Incompatible, match=f"fedavg:{fields} does not; use --protocol fedavg"):
            resolve(Scenario(protocol=f"fedavg:{fields}", **few))


def test_a_run_with_adam_learns_beside_an_attack_and_says_what_it_played() -> None:
    text = "fedavg:lr=0.05,server=adam,server_lr=0.01"
    few: dict[str, Any] = {"clients": 4, "per_round": 4, "rounds": 2, "epochs": 1, "eval_every": 1}
    scenario = Scenario.of(protocol=text, attack="sign-flip", model="micro", **few)
    record = fedbench.play(scenario, device="cpu")
    assert record.scenario.protocol.endswith("weight_decay=0.0001,server=adam,server_lr=0.01")
    first, second = (r.loss for r in record.rounds)
    assert first is not None
    assert second is not None
    assert second < first < 2.31
