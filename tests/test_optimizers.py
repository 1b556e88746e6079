"""Functional optimisers against torch.optim."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.protocols.optimizers import SGD, Adam, Adamax, Optimizer

PAIRS: dict[Optimizer, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    SGD(lr=0.1): partial(torch.optim.SGD, lr=0.1),
    SGD(lr=0.1, momentum=0.7): partial(torch.optim.SGD, lr=0.1, momentum=0.7),
    Adam(lr=0.1): partial(torch.optim.Adam, lr=0.1),
    Adam(lr=0.1, beta1=0.5, beta2=0.9): partial(torch.optim.Adam, lr=0.1, betas=(0.5, 0.9)),
    Adamax(lr=0.1): partial(torch.optim.Adamax, lr=0.1),
}
EACH = pytest.mark.parametrize("ours", PAIRS, ids=["sgd", "momentum", "adam", "betas", "adamax"])


def gradient(x: Tensor, step: int) -> Tensor:
    return (x - 1) ** 3 * (1 + step) + Key(step).normal(*x.shape)


@EACH
def test_five_steps_are_those_of_torch(ours: Optimizer) -> None:
    start = Key(1).normal(7).double()  # 1 - beta ** t cancels in float32
    x = start.clone().requires_grad_()
    reference = PAIRS[ours]([x])
    tree, memory = {"x": start}, ours.init({"x": start})
    for step in range(5):
        x.grad = gradient(x.detach(), step)
        reference.step()
        tree, memory = ours.step(tree, {"x": gradient(tree["x"], step)}, memory)
    torch.testing.assert_close(tree["x"], x.detach(), rtol=1e-7, atol=1e-9)


@EACH
def test_under_vmap_every_client_has_its_own_memory(ours: Optimizer) -> None:
    start, g = Key(1).normal(3, 4), Key(2).normal(3, 4)

    def two(x: Tensor, g: Tensor) -> Tensor:
        tree, memory = ours.step({"x": x}, {"x": g}, ours.init({"x": x}))
        return ours.step(tree, {"x": -2 * g}, memory)[0]["x"]

    alone = torch.stack([two(x, row) for x, row in zip(start, g, strict=True)])
    torch.testing.assert_close(torch.vmap(two)(start, g), alone)


@EACH
def test_no_gradient_no_move_and_a_statistic_goes_down_by_it_whatever_the_rate(
    ours: Optimizer,
) -> None:
    tree = {"x": torch.ones(2), "norm.mean": torch.ones(1)}
    g = {"x": torch.tensor([0.0, 1.0]), "norm.mean": torch.full((1,), 0.25)}
    moved, memory = ours.step(tree, g, ours.init(tree))
    assert moved["x"][0] == 1.0 > moved["x"][1]
    assert moved["norm.mean"].item() == 0.75
    assert not [name for name in memory if "norm" in name and "velocity" not in name]
