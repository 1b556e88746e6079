"""Honest training in rounds to come, as an attack simulates it."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedbench.api import AttackView
from fedbench.core.trees import Layout, Tree


def trained_ahead(
    view: AttackView,
    answers: list[Tensor],
    steps: int,
    length: float,
    gradient: Callable[[Tree], Tensor],
) -> Tensor:
    """Return the update ``(d,)`` of training on the attack's samples, after these answers.

    It goes down the ``gradient`` of a model, in steps that are as long as ``length`` together.
    """
    tree = view.ahead(*answers)
    assert view.rehearsal is not None
    layout = Layout.of({name: tuple(tree[name].shape) for name in view.rehearsal.names})
    start = layout.flatten(tree)
    at = start
    for _ in range(steps):
        g = gradient(tree | layout.unflatten(at))
        at = at - g * (length / steps / max(float(torch.linalg.vector_norm(g)), 1e-30))
    # Idle clients send what they got, but of differences and running statistics nothing.
    return torch.where(view.idle[0] != 0, at, at - start)
