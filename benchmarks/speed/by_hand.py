"""Code as a researcher writes it for one experiment: the other side of the comparisons.

Plain PyTorch, one model that stays where it is and is trained in place, no wire and no checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.executors.training import Client, Schedule
from fedbench.models.network import ConvNet


def model_of(network: ConvNet, device: torch.device) -> nn.Sequential:
    """Build the same architecture as a module."""
    layers: list[nn.Module] = []
    channels = network.image[0]
    for block in network.blocks:
        for width in block:
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    layers.append(nn.Flatten())
    dense = [shape for name, shape in network.shapes.items() if name.startswith("fc")]
    for i, (outs, ins) in enumerate(dense):
        layers.append(nn.Linear(ins, outs, bias=False))
        layers += [nn.ReLU()] if i < len(dense) - 1 else []
    return nn.Sequential(*layers).to(device)


def train(
    model: nn.Sequential, start: Tensor, clients: Sequence[Client], schedule: Schedule, lr: float
) -> Tensor:
    """Return the updates ``(n, d)`` of these clients from ``start (d,)``, one after the other."""
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=lr, foreach=True)
    updates = []
    for client in clients:
        nn.utils.vector_to_parameters(start.clone(), parameters)  # it makes views
        for rows in schedule.rows(len(client.x), client.key):
            loss = F.cross_entropy(model(client.x[rows]), client.y[rows])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        updates.append(nn.utils.parameters_to_vector(parameters).detach() - start)
    return torch.stack(updates)


class _Drawn(torch.autograd.Function):
    """A mask drawn from its probabilities; straight through backwards."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, coins: Callable[[Tensor], Tensor]) -> Tensor:
        return coins(p)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None]:
        return grads[0], None


def mask_train(
    weights: Sequence[Tensor],
    start: Sequence[Tensor],
    clients: Sequence[Client],
    schedule: Schedule,
    network: ConvNet,
    lr: float,
    coins: Callable[[Tensor], Tensor],
) -> Tensor:
    """Train a score per weight by plain SGD; return the final probabilities ``(n, d)``.

    ``weights`` of the random network are fixed, ``start`` holds the logits of the server's
    probabilities, and ``coins`` draws a mask of 0 and 1 from its probabilities.
    """
    rows = []
    for client in clients:
        scores = [s.clone().requires_grad_() for s in start]
        optimizer = torch.optim.SGD(scores, lr=lr, foreach=True)
        for batch in schedule.rows(len(client.x), client.key):
            masked = [
                w * _Drawn.apply(torch.sigmoid(s), coins)  # type: ignore[no-untyped-call]
                for w, s in zip(weights, scores, strict=True)
            ]
            tree = dict(zip(network.shapes, masked, strict=True))
            loss = F.cross_entropy(network.logits(tree, client.x[batch]), client.y[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        rows.append(torch.cat([s.detach().sigmoid().flatten() for s in scores]))
    return torch.stack(rows)


class _TopMask(torch.autograd.Function):
    """The best half of the scores, found by sorting all of them; straight through backwards."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        order = scores.flatten().argsort()
        mask = torch.zeros_like(scores)
        mask.view(-1)[order[len(order) // 2 :]] = 1
        return mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


def popup_step(
    weights: Sequence[Tensor], scores: Sequence[Tensor], network: ConvNet, x: Tensor, y: Tensor
) -> list[Tensor]:
    """Return the gradients of the scores of edge-popup."""
    masked = [w * _TopMask.apply(s) for w, s in zip(weights, scores, strict=True)]  # type: ignore[no-untyped-call]
    tree = dict(zip(network.shapes, masked, strict=True))
    return list(torch.autograd.grad(F.cross_entropy(network.logits(tree, x), y), list(scores)))


def fsl_round(
    weights: Sequence[Tensor],
    ranking: Sequence[Tensor],
    start: Sequence[Tensor],
    clients: Sequence[Client],
    schedule: Schedule,
    network: ConvNet,
    lr: float,
) -> list[Tensor]:
    """Play a round of FSL as its algorithm is printed: sorts wherever it says sort.

    ``ranking`` is the server's, edges from the least to the most important, by layer; ``start``
    holds the initial scores. Returns the next ranking.
    """
    votes = [torch.zeros(len(r), dtype=torch.int64, device=r.device) for r in ranking]
    for client in clients:
        scores = []
        for s, order in zip(start, ranking, strict=True):
            mine = torch.empty_like(s).view(-1)
            mine[order] = s.flatten().sort().values
            scores.append(mine.view(s.shape).requires_grad_())
        for rows in schedule.rows(len(client.x), client.key):
            gradients = popup_step(weights, scores, network, client.x[rows], client.y[rows])
            with torch.no_grad():
                for s, g in zip(scores, gradients, strict=True):
                    s -= lr * g
        for total, s in zip(votes, scores, strict=True):
            total += s.detach().flatten().argsort().argsort()
    return [total.argsort(stable=True) for total in votes]


def trimmed_mean(x: Tensor, f: int) -> Tensor:
    """Sort the clients with torch, leave out ``f`` on each side."""
    return x.sort(dim=0).values[f : len(x) - f].mean(dim=0)


def tiled_trimmed_mean(x: Tensor, f: int, tile: int = 1 << 13) -> Tensor:
    """Do the same with NumPy's sort of column tiles that stay in cache; on a CPU."""
    rows = x.numpy()
    out = np.empty(x.shape[1], np.float32)
    for start in range(0, x.shape[1], tile):
        columns = np.ascontiguousarray(rows[:, start : start + tile].T)
        columns.sort(axis=1)
        out[start : start + tile] = columns.T[f : len(x) - f].mean(axis=0)
    return torch.from_numpy(out)


def multi_krum(x: Tensor, f: int) -> Tensor:
    """Sum the distances of all pairs over the nearest, average the best rows."""
    n = len(x)
    squared = torch.cdist(x, x).square()
    scores = squared.sort(dim=1).values[:, 1 : n - f - 1].sum(dim=1)
    return x[scores.argsort()[: n - f]].mean(dim=0)


def macs(network: ConvNet) -> int:
    """Count the multiply-adds of one image's way through the network, each two operations."""
    _, height, width = network.image
    total, i = 0, 0
    for block in network.blocks:
        for _ in block:
            i += 1
            total += math.prod(network.shapes[f"conv{i}"]) * height * width
        height, width = height // 2, width // 2
    dense = (s for name, s in network.shapes.items() if name.startswith("fc"))
    return total + sum(math.prod(shape) for shape in dense)
