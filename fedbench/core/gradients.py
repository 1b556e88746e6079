"""Gradients of scalar losses, also where `torch.vmap` maps over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedbench.core.trees import Tree


def gradient(
    loss: Callable[..., tuple[Tensor, Tree]], tree: Tree, *inputs: Tensor
) -> tuple[Tree, Tree]:
    """Return the gradient of ``loss(tree, *inputs)`` in the tree, and what else the loss returns.

    Under `torch.vmap` the losses of all clients are added up and differentiated once, which gives
    each client its own gradient, because no loss depends on another client's tree.
    `torch.func.grad` takes the same gradient. It differentiates under `vmap`, which is up to a
    tenth slower, and it imports torch's compiler (docs/performance.md).

    Args:
        loss: Returns the loss, without dimensions, and other tensors by name, which have no
            gradient. It reaches tensors over which `vmap` maps through its arguments alone.
        tree: Parameters. The gradient of a parameter that the loss does not need is 0.
        inputs: Other tensors, which have no gradient.

    >>> def loss(tree, x): return (tree["w"] * x).square().sum(), {"double": 2 * x}
    >>> gradient(loss, {"w": torch.tensor([1.0, 2.0])}, torch.tensor([3.0, 1.0]))
    ({'w': tensor([18.,  4.])}, {'double': tensor([6., 2.])})
    """
    names = list(tree)
    others: list[str] = []

    def at(*tensors: Tensor) -> tuple[Tensor, ...]:
        leaves = dict(zip(names, tensors, strict=False))
        value, rest = loss(leaves, *tensors[len(names) :])
        others[:] = rest
        return value, *rest.values()

    out = _Gradient.apply(at, len(names), *tree.values(), *inputs)  # type: ignore[no-untyped-call]
    slopes = dict(zip(names, out, strict=False))
    return slopes, dict(zip(others, out[len(names) :], strict=True))


class _Gradient(torch.autograd.Function):
    """Gradient of a loss in its first arguments, which leaves `torch.vmap` to be taken."""

    @staticmethod
    def forward(loss: Callable[..., tuple[Tensor, ...]], count: int, *tensors: Tensor) -> Any:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in tensors[:count]]
            losses, *rest = loss(*leaves, *tensors[count:])
            if losses.requires_grad:
                slopes = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
            else:
                slopes = tuple(torch.zeros_like(leaf) for leaf in leaves)
        return (*slopes, *(x.detach() for x in rest))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        loss: Callable[..., tuple[Tensor, ...]],
        count: int,
        *tensors: Tensor,
    ) -> tuple[tuple[Tensor, ...], int]:
        dims = in_dims[2:]
        leaves = [
            x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
            for x, dim in zip(tensors[:count], dims, strict=False)
        ]
        mapped = torch.vmap(loss, (*[0] * count, *dims[count:]))
        out = _Gradient.apply(mapped, count, *leaves, *tensors[count:])  # type: ignore[no-untyped-call]
        return out, 0
