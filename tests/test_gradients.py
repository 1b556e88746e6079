"""The gradient of losses over which `torch.vmap` maps, beside those that torch takes."""

from functools import partial

import torch
from torch import Tensor

from fedbench.core.gradients import gradient
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.testing import assert_rounded_alike


def cubic(tree: Tree, x: Tensor, y: Tensor) -> tuple[Tensor, Tree]:
    """A loss of two of three parameters, and two other tensors."""
    error = tree["w"] @ x + tree["b"] - y
    return (error**3).sum(), {"error": error, "x": x}


def drawn(*shape: int, name: str) -> Tensor:
    return Key(0).fold(name).normal(*shape).double()


def test_each_of_several_clients_has_its_own_gradient() -> None:
    tree = {"w": drawn(4, 2, 3, name="w"), "b": drawn(4, 2, name="b"), "c": drawn(4, 5, name="c")}
    x = drawn(4, 3, name="x")
    y = drawn(4, 2, name="y")
    slopes, others = torch.vmap(partial(gradient, cubic))(tree, x, y)
    for i in range(4):
        alone = {name: leaf[i] for name, leaf in tree.items()}
        expected, rest = torch.func.grad(cubic, has_aux=True)(alone, x[i], y[i])
        assert_rounded_alike({name: slope[i] for name, slope in slopes.items()}, expected)
        assert_rounded_alike({name: other[i] for name, other in others.items()}, rest)
        assert_rounded_alike(gradient(cubic, alone, x[i], y[i]), (expected, rest))
    assert torch.equal(slopes["c"], torch.zeros(4, 5).double())


def test_clients_may_share_parameters_or_inputs_and_lie_along_any_dimension() -> None:
    tree = {"w": drawn(2, 3, name="w"), "b": drawn(2, 4, name="b")}  # one w, four b
    x = drawn(3, name="x")
    y = drawn(4, 2, name="y")
    mapped = torch.vmap(partial(gradient, cubic), ({"w": None, "b": 1}, None, 0))
    slopes, others = mapped(tree, x, y)
    for i in range(4):
        alone = {"w": tree["w"], "b": tree["b"][:, i]}
        expected, rest = torch.func.grad(cubic, has_aux=True)(alone, x, y[i])
        assert_rounded_alike({name: slope[i] for name, slope in slopes.items()}, expected)
        assert_rounded_alike({name: other[i] for name, other in others.items()}, rest)


def test_maps_may_be_nested_as_samples_of_clients_are() -> None:
    tree = {"w": drawn(2, 2, 3, name="w"), "b": drawn(2, 2, name="b")}  # two clients
    x = drawn(2, 5, 3, name="x")  # of five samples
    y = drawn(2, 5, 2, name="y")
    each = torch.vmap(partial(gradient, cubic), (None, 0, 0))
    slopes, others = torch.vmap(each)(tree, x, y)
    for i in range(2):
        for j in range(5):
            alone = {name: leaf[i] for name, leaf in tree.items()}
            expected, rest = torch.func.grad(cubic, has_aux=True)(alone, x[i, j], y[i, j])
            assert_rounded_alike({name: slope[i, j] for name, slope in slopes.items()}, expected)
            assert_rounded_alike({name: other[i, j] for name, other in others.items()}, rest)


def test_a_loss_that_needs_no_parameter_has_gradients_of_zero() -> None:
    def flat(tree: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        return x.sum(), {}

    tree = {"w": torch.ones(2, 3)}
    slopes, others = torch.vmap(partial(gradient, flat))(tree, torch.ones(2, 4))
    assert torch.equal(slopes["w"], torch.zeros(2, 3))
    assert others == {}


def test_gradients_carry_no_graph() -> None:
    tree = {"w": torch.ones(2, requires_grad=True)}
    slopes, others = gradient(lambda tree: (tree["w"].sum(), {"w": tree["w"]}), tree)
    assert not slopes["w"].requires_grad
    assert not others["w"].requires_grad
