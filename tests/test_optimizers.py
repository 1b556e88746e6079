"""Functional optimisers against torch.optim."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.protocols.optimizers import SGD, Adam, Adamax, Optimizer

PAIRS: list[tuple[Optimizer, type[torch.optim.Optimizer], dict[str, Any]]] = [
    (SGD(lr=0.1), torch.optim.SGD, {}),
    (SGD(lr=0.1, momentum=0.7), torch.optim.SGD, {"momentum": 0.7}),
    (Adam(lr=0.1), torch.optim.Adam, {}),
    (Adam(lr=0.1, beta1=0.5, beta2=0.9), torch.optim.Adam, {"betas": (0.5, 0.9)}),
    (Adamax(lr=0.1), torch.optim.Adamax, {}),
]
IDS = ["sgd", "momentum", "adam", "betas", "adamax"]


def gradient(x: Tensor, step: int) -> Tensor:
    return (x - 1) ** 3 * (1 + step) + Key(step).normal(*x.shape)


@pytest.mark.parametrize(("ours", "theirs", "options"), PAIRS, ids=IDS)
def test_five_steps_are_those_of_torch(ours: Optimizer, theirs: Any, options: Any) -> None:
    start = Key(1).normal(7).double()  # 1 - beta ** t cancels in float32
    x = start.clone().requires_grad_()
    reference = theirs([x], lr=0.1, **options)
    tree, memory = {"x": start}, ours.init({"x": start})
    for step in range(5):
        x.grad = gradient(x.detach(), step)
        reference.step()
        tree, memory = ours.step(tree, {"x": gradient(tree["x"], step)}, memory)
    torch.testing.assert_close(tree["x"], x.detach(), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("ours", [pair[0] for pair in PAIRS], ids=IDS)
def test_under_vmap_every_client_has_its_own_memory(ours: Optimizer) -> None:
    start, g = Key(1).normal(3, 4), Key(2).normal(3, 4)

    def two(x: Tensor, g: Tensor) -> Tensor:
        tree, memory = ours.step({"x": x}, {"x": g}, ours.init({"x": x}))
        return ours.step(tree, {"x": -2 * g}, memory)[0]["x"]

    alone = torch.stack([two(x, row) for x, row in zip(start, g, strict=True)])
    torch.testing.assert_close(torch.vmap(two)(start, g), alone)


@pytest.mark.parametrize("ours", [pair[0] for pair in PAIRS], ids=IDS)
def test_a_coordinate_without_gradient_stays(ours: Optimizer) -> None:
    tree = {"x": torch.ones(2)}
    moved, _ = ours.step(tree, {"x": torch.tensor([0.0, 1.0])}, ours.init(tree))
    assert moved["x"][0] == 1.0
    assert moved["x"][1] < 1.0


@pytest.mark.parametrize("ours", [pair[0] for pair in PAIRS], ids=IDS)
def test_a_running_statistic_goes_down_by_its_gradient_whatever_the_rate(ours: Optimizer) -> None:
    tree = {"x": torch.ones(1), "norm.mean": torch.ones(1)}
    g = {"x": torch.ones(1), "norm.mean": torch.full((1,), 0.25)}
    moved, memory = ours.step(tree, g, ours.init(tree))
    assert moved["norm.mean"].item() == 0.75
    assert not [name for name in memory if "norm" in name and "velocity" not in name]
