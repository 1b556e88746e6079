"""Other priors of the hierarchical model: Gaussian, Laplace, mixture of Gaussians."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from exchanges import flat, rejected, shared_of
from torch import Tensor

from fedbench.api import Batches
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.training import Loop, Schedule
from fedbench.experiment.compatibility import load_plugins, resolve
from fedbench.experiment.scenario import Scenario
from fedbench.payload import MixtureVectors
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.priors import FedLaplace, FedMoG, FedProx, soft_threshold
from fedbench.testing import (
    assert_rounded_alike,
    check_payload,
    doubled,
    example_clients,
    in_float64,
)

SHARED = shared_of()
LINE = flat(2)
NOTHING = torch.zeros(1)


def updates(protocol: Any) -> Tensor:
    clients = doubled(example_clients(protocol, SHARED))
    return Loop(in_float64(protocol), SHARED, Schedule(2, 4)).train(clients)[0]


def constant(*g: float) -> Any:
    """A loss whose gradient is the same everywhere; statistics go down by 1."""

    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {
            name: torch.ones_like(w) if "." in name else torch.tensor([g]).expand_as(w)
            for name, w in tree.items()
        }

    return grad


def test_without_a_prior_fedprox_is_fedavg_bit_by_bit() -> None:
    assert torch.equal(updates(FedProx(lam=0.0)), updates(FedAvg()))
    assert not torch.equal(updates(FedProx(lam=0.1)), updates(FedAvg()))


def moved(protocol: Any, tree: Tree, steps: int, *g: float) -> Tree:
    """The tree after so many steps along a constant gradient."""
    still = tuple(name for name in tree if name == "norm1.mean")
    batches = Batches([(NOTHING, NOTHING)] * steps, statistics=still)
    return protocol.local_update(tree, batches, constant(*g), Key(0), {})[0]  # type: ignore[no-any-return]


def test_fedprox_pulls_to_what_was_received_and_not_to_zero() -> None:
    # From w = 5 with gradient 1, lr .1, lam 2: moves -.1, then -.1 (1 + 2 * -.1) = -.08.
    protocol = FedProx(lr=0.1, momentum=0.0, weight_decay=0.0, lam=2.0)
    tree = {"fc1": torch.tensor([[5.0, 5.0]]), "norm1.mean": torch.tensor([5.0])}
    after = moved(protocol, tree, 2, 1.0, 0.0)
    assert after["fc1"].tolist() == [pytest.approx([-0.18, 0.0], abs=1e-6)]
    assert after["norm1.mean"].item() == pytest.approx(-2.0)  # no prior on a statistic


def test_fedlaplace_leaves_parameters_with_small_gradients_exactly_where_they_were() -> None:
    # lam = 1: a gradient of .9 never leaves w, bit by bit; one of 3 moves as if it were 2.
    tree = {"fc1": torch.tensor([[0.1, 0.7]]), "norm1.mean": torch.tensor([5.0])}
    protocol = FedLaplace(lr=0.1, momentum=0.0, weight_decay=0.0, lam=1.0)
    after = moved(protocol, tree, 4, 0.9, 3.0)
    assert after["fc1"].tolist() == [[0.0, pytest.approx(-0.8, abs=1e-6)]]
    assert after["norm1.mean"].item() == pytest.approx(-4.0)
    for momentum in (0.0, 0.9):  # which it holds does not depend on it
        protocol = FedLaplace(lr=0.1, momentum=momentum, weight_decay=0.0, lam=1.0)
        held, free = moved(protocol, {"fc1": torch.tensor([[0.1, 0.1]])}, 60, 0.99, 1.1)["fc1"][0]
        assert held == 0.0 > free


def test_a_soft_threshold_shrinks_and_the_server_of_fedlaplace_takes_the_median() -> None:
    # Equation 36: of -1, 0 and 8 it moves by 0, where the mean would move by 7/3.
    plugins = load_plugins(resolve(Scenario(protocol="fedlaplace")).scenario)
    assert type(plugins.defense).__name__ == "Median"
    assert not plugins.protocol.weighted
    x = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])
    assert soft_threshold(x, 0.5).tolist() == [-1.5, 0.0, 0.0, 0.0, 1.5]


def test_responsibilities_by_hand_and_of_far_means() -> None:
    # Squared distances 1 and 4, lam = 2: r_1 = 1 / (1 + e^-3). Without the square it is e^-1 (S5).
    w = {"fc1": torch.tensor([[1.0, 0.0]]), "norm1.var": torch.tensor([9.0])}
    means = {
        "fc1": torch.tensor([[[0.0, 0.0]], [[1.0, 2.0]]]),
        "norm1.var": torch.tensor([[0.0], [5.0]]),
    }
    r = FedMoG(lam=2.0).responsibilities(w, means, ("norm1.var",))
    assert r.tolist() == pytest.approx([1 / (1 + math.exp(-3)), 1 / (1 + math.exp(3))])
    w = {"fc1": torch.zeros(1, 2)}
    means = {"fc1": torch.full((2, 1, 2), 1e6)}
    assert FedMoG(lam=10.0).responsibilities(w, means).tolist() == [0.5, 0.5]


def test_a_client_descends_minus_the_log_of_the_mixture() -> None:
    protocol = FedMoG(k=3, lr=1.0, momentum=0.0, weight_decay=0.0, lam=0.5)
    means = Key(0).normal(3, 1, 4).double()
    tree = {"fc1": means}
    seen: list[Tensor] = []

    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        seen.append(tree["fc1"].clone())
        return {name: torch.zeros_like(w) for name, w in tree.items()}

    protocol.local_update(tree, Batches([(NOTHING, NOTHING)] * 3), grad, Key(1), {})
    assert any(torch.equal(seen[0], mean) for mean in means)
    for before, after in pairwise(seen):
        w = before.clone().requires_grad_()
        exponents = -0.25 * (w - means).square().sum(dim=(1, 2))
        (g,) = torch.autograd.grad(-(exponents.exp() / 3).sum().log(), w)
        torch.testing.assert_close(before - after, g)


def test_clients_start_evenly_at_all_means() -> None:
    # 3000 clients, 3 means: five sigma of a share are 0.043.
    protocol = FedMoG(k=3)
    tree = {"fc1": torch.tensor([[[0.0]], [[1.0]], [[2.0]]])}
    keys = [Key(0).fold(i) for i in range(3000)]
    starts = [
        protocol.local_update(tree, Batches([]), constant(0.0), k, {})[1]["start"] for k in keys
    ]
    shares = torch.bincount(torch.stack(starts).long().flatten(), minlength=3) / 3000
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.043)


def test_the_server_takes_the_m_step_and_leaves_a_mean_without_clients() -> None:
    # Equation 42 on w = 1, 4 with r = (.75, .25, 0) and (.25, .75, 0): 1.75 and 3.25.
    payload = MixtureVectors(
        torch.tensor([[0.75, 0.25, 0.0], [0.25, 0.75, 0.0]]),
        0.75 * torch.tensor([[1.0, 1.0], [4.0, 4.0]]),
    )
    state = torch.full((3, 2), 7.0)
    after = FedMoG(k=3).server_step(LINE, state, payload.values().mean(dim=0), 2, Key(0))
    assert after.tolist() == [[1.75, 1.75], [3.25, 3.25], [7.0, 7.0]]


def test_components_start_apart_are_all_deployed_and_one_is_fedprox() -> None:
    mog = FedMoG(k=1, lam=0.1)
    prox = FedProx(lam=0.1)
    assert_rounded_alike(updates(mog), updates(prox))
    assert torch.equal(mog.init(SHARED)[0], prox.init(SHARED))
    protocol = FedMoG(k=3)
    state = protocol.init(SHARED)
    assert float(torch.pdist(state).min()) > 1
    assert len(protocol.model(SHARED, state, Key(0))) == 3
    assert protocol.model_bits(SHARED, state) == 3 * 32 * 102
    down = protocol.broadcast(SHARED, state, [0], Key(0))
    assert down.encode()[0].bits == 3 * 32 * 102


def test_a_clients_own_model_is_what_it_sent() -> None:
    protocol = FedMoG(lam=1e-4)
    state = protocol.init(SHARED)
    down = protocol.broadcast(SHARED, state, [0], Key(0))
    memory = {"means": state, "start": state[1]}
    sent, after = protocol.message(SHARED, torch.ones(1, 102), [Key(0)], [memory])
    own = SHARED.layout.flatten(protocol.local_model(SHARED, down, sent))
    torch.testing.assert_close(own, state[1] + 1)
    assert after == [{}]


def test_mixture_vectors_are_projected_to_distributions() -> None:
    like = MixtureVectors(torch.full((6, 2), 0.5), torch.ones(6, 2))
    r = [[0.6, 0.4], [3.0, 1.0], [0.2, 0.2], [-1.0, 0.0], [torch.nan, 0.5], [3e-45, 4e-45]]
    blocks = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).expand(6, -1)
    near = like.nearest(torch.cat([torch.tensor(r), blocks], dim=1))
    expected = [[0.6, 0.4], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0, 1], [0.4, 0.6]]
    assert near.r.tolist() == [pytest.approx(row) for row in expected]
    assert near.x.tolist() == [[1, 2], [1, 2], [1, 2], [1, 2], [3, 4], [3, 4]]
    check_payload(near)
    softmax = torch.softmax(8 * Key(0).normal(40, 3), dim=1)
    for scale in (1e-30, 1.0, 1e30):  # they survive their values bit by bit
        check_payload(MixtureVectors(softmax, Key(1).normal(40, 7) * scale))


@pytest.mark.parametrize("r", [[0.5, 0.6], [1.5, -0.5], [torch.nan, 1.0], [torch.inf, 0.0]])
def test_responsibilities_that_are_no_distribution_are_rejected(r: list[float]) -> None:
    bad = MixtureVectors(torch.tensor([r]), torch.ones(1, 2))
    with pytest.raises(IllegalPayloadError, match="sum to 1"):
        bad.check()
    rejected(MixtureVectors, bad.encode()[0].data, bad.spec)
