"""Reconstruction of the images that caused an update, by gradient descent."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Protocol
from fedbench.core.errors import Incompatible
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.datasets import Data
from fedbench.executors.training import Client, Executor
from fedbench.models.network import is_statistic
from fedbench.probes.images import total_variation

RATE = 0.1  # first learning rate, for pixels in [0, 1]
DECAY = 0.3
DECAYS = (3 / 8, 5 / 8, 7 / 8)
_FLOOR = 1e-3  # smallest cosine that the objective is relative to


@dataclass(frozen=True, eq=False)
class Simulator:
    """Function from images to the update that they cause, differentiable in the images.

    It is one local step of the client with the client's own draws (of a mask, say), which the
    adversary is given as the worst case. The first step of Adam, or the sign of an update, is ``g /
    |g|``, which has no useful derivative; if ``soft``, ``tanh(g / mean |g|)`` of each layer
    replaces it.

    Args:
        protocol: Protocol of the client.
        executor: Executor, for the loss.
        tree: Parameters at which the step starts.
        key: Key of the step's draws.
        slope: Derivative of what is sent by what is trained, by name.
        soft: True if the step is like a sign.
    """

    protocol: Protocol[Any]
    executor: Executor
    tree: Tree
    key: Key
    slope: Tree
    soft: bool

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the update ``(d,)``, up to a positive factor."""
        shared = self.executor.shared
        layout, frozen = self.protocol.trained(shared), self.protocol.frozen(shared)
        leaves = {name: self.tree[name].detach().requires_grad_() for name in layout.names}
        loss, _ = self.executor.loss(self.tree | leaves, frozen, x, y, self.key)
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        gradient = dict(zip(leaves, gradients, strict=True))
        if self.soft:
            gradient = {
                name: torch.tanh(g / g.detach().abs().mean().clamp_min(1e-30))
                for name, g in gradient.items()
            }
        moves = {name: -g * self.slope[name] for name, g in gradient.items()}
        return layout.flatten(moves)


def simulator(protocol: Protocol[Any], executor: Executor, client: Client, soft: bool) -> Simulator:
    """Return the simulator of one client's step, from the first step of its own training.

    Raises:
        Incompatible: the protocol trains something else than it sends.
    """
    steps: list[tuple[Tree, Key]] = []

    def record(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        steps.append((tree, key))
        return {name: torch.zeros_like(leaf) for name, leaf in tree.items()}

    protocol.local_update(client.tree, [(client.x, client.y)], record, client.key, client.memory)
    tree, key = steps[0]
    names = protocol.trained(executor.shared).names
    if not set(names) <= set(tree) or any(map(is_statistic, names)):
        raise Incompatible(
            "inversion simulates one gradient of what is sent, which is not what "
            f"{type(protocol).__name__} trains; use fedavg, signsgd, fsl or fedpm"
        )
    adam = getattr(protocol, "optimizer", None) == "adam"
    return Simulator(protocol, executor, tree, key, _slopes(protocol, tree), soft or adam)


def _slopes(protocol: Protocol[Any], tree: Tree) -> Tree:
    """``d theta / d s`` by name if scores are trained and probabilities are sent, else 1."""
    if protocol.space != "probabilities":
        return {name: torch.ones_like(x) for name, x in tree.items()}
    expected: Any = getattr(protocol, "expected", None)
    if expected is None:
        raise Incompatible(
            f"inversion does not know how {type(protocol).__name__} turns scores to bits"
        )
    slopes: Tree = {}
    for name, x in tree.items():
        score = x.detach().requires_grad_()
        (slopes[name],) = torch.autograd.grad(expected(score).sum(), score)
    return slopes


def normalised(pixels: Tensor, data: Data) -> Tensor:
    """Normalise pixels in [0, 1] as the network expects them."""
    mean, std = (torch.tensor(m, device=pixels.device) for m in (data.mean, data.std))
    return (pixels - mean[:, None, None]) / std[:, None, None]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two vectors ``(d,)``; 0 if one of them is 0."""
    norms = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    similarity: Tensor = torch.dot(a, b) / norms.clamp_min(1e-30)
    return similarity


def reconstruct(
    simulate: Simulator, seen: Tensor, y: Tensor, data: Data, prior: float, steps: int, key: Key
) -> tuple[Tensor, float]:
    """Return images ``(B, C, H, W)`` in [0, 1] whose update is parallel to ``seen (d,)``.

    Minimises ``1 - cos + prior TV`` by signed Adam from uniform noise, with known labels ``y (B,)``
    and pixels clamped to [0, 1]. The gradient of the cosine is divided by the cosine, since no
    image has a large cosine with one noisy bit per coordinate, and the prior would dominate. The
    second result is the cosine that the images reach.

    References:
        Geiping, Bauermeister, Droege and Moeller, "Inverting Gradients - How easy is it to break
        privacy in federated learning?", NeurIPS 2020, https://arxiv.org/abs/2003.14053, its cosine
        objective with total variation and signed gradients; Zhu, Liu and Han, "Deep Leakage from
        Gradients", NeurIPS 2019, https://arxiv.org/abs/1906.08935, which takes squared distances.
    """
    z = key.fold("start").uniform(len(y), *data.image, device=seen.device).requires_grad_()
    adam = torch.optim.Adam([z], lr=RATE)
    milestones = [int(steps * share) for share in DECAYS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, milestones, DECAY)
    for _ in range(steps):
        similarity = cosine(simulate(normalised(z, data), y), seen)
        relative = similarity / similarity.detach().abs().clamp_min(_FLOOR)
        (gradient,) = torch.autograd.grad(prior * total_variation(z) - relative, z)
        z.grad = torch.nan_to_num(gradient).sign()
        adam.step()
        schedule.step()
        with torch.no_grad():
            z.clamp_(0, 1)
    z = z.detach()
    return z, float(cosine(simulate(normalised(z, data), y), seen).detach())
