"""Reconstruction of the images that caused an update."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Protocol
from fedbench.core.errors import Incompatible
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.dataset import Data
from fedbench.executors.training import Client, Executor
from fedbench.models.network import is_statistic
from fedbench.probes.images import total_variation

RATE = 0.1  # of a pixel in [0, 1], at first
DECAY = 0.3
DECAYS = (3 / 8, 5 / 8, 7 / 8)
_FLOOR = 1e-3  # of the cosine that the objective is relative to


@dataclass(frozen=True, eq=False)
class Simulator:
    """Function from images to the update that they cause, differentiable in the images.

    One local step of the client, from what the server sent, with the draws that the client made (of
    a mask, say): the adversary is given them, the worst case. Where the step is one of Adam, or
    only the sign of an update is sent, its first step is ``g / |g|``, which has no derivative in
    the images; `soft` puts ``tanh(g / mean |g|)`` of each layer in its place.

    Args:
        protocol: The client's.
        executor: Knows the loss.
        tree: Where the step starts.
        key: The draws of the step.
        slope: Of the space of updates by that of gradients, by name.
        soft: Is it sign-like?
    """

    protocol: Protocol[Any]
    executor: Executor
    tree: Tree
    key: Key
    slope: Tree
    soft: bool

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """``(d,)``, up to a positive factor."""
        shared = self.executor.shared
        layout, frozen = self.protocol.trained(shared), self.protocol.frozen(shared)
        leaves = {name: self.tree[name].detach().requires_grad_() for name in layout.names}
        loss, _ = self.executor.loss(self.tree | leaves, frozen, x, y, self.key)
        found = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        gradient = dict(zip(leaves, found, strict=True))
        if self.soft:
            gradient = {
                name: torch.tanh(g / g.detach().abs().mean().clamp_min(1e-30))
                for name, g in gradient.items()
            }
        moves = {name: -g * self.slope[name] for name, g in gradient.items()}
        return layout.flatten(moves)


def simulator(protocol: Protocol[Any], executor: Executor, client: Client, soft: bool) -> Simulator:
    """Return the simulator of one client's step, read off its own training.

    Raises:
        Incompatible: the protocol trains something else than it sends.
    """
    seen: list[tuple[Tree, Key]] = []

    def spy(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        seen.append((tree, key))
        return {name: torch.zeros_like(leaf) for name, leaf in tree.items()}

    protocol.local_update(client.tree, [(client.x, client.y)], spy, client.key, client.memory)
    (tree, key) = seen[0]
    names = protocol.trained(executor.shared).names
    fits = set(names) <= set(tree) and not any(map(is_statistic, names))
    if not fits:
        raise Incompatible(
            "inversion simulates one gradient of what is sent, which is not what "
            f"{type(protocol).__name__} trains; use fedavg, signsgd, fsl or fedpm"
        )
    adam = getattr(protocol, "optimizer", None) == "adam"
    return Simulator(protocol, executor, tree, key, _slopes(protocol, tree), soft or adam)


def _slopes(protocol: Protocol[Any], tree: Tree) -> Tree:
    """``d theta / d s`` where scores are trained and probabilities are sent, else 1."""
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
    """Pixels in [0, 1] as the network gets them."""
    mean, std = (torch.tensor(m, device=pixels.device) for m in (data.mean, data.std))
    centred: Tensor = pixels - mean[:, None, None]
    scaled: Tensor = centred / std[:, None, None]
    return scaled


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Cosine of two vectors; 0 where one of them is."""
    norms = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    like: Tensor = torch.dot(a, b) / norms.clamp_min(1e-30)
    return like


def reconstruct(
    simulate: Simulator, seen: Tensor, y: Tensor, data: Data, prior: float, steps: int, key: Key
) -> tuple[Tensor, float]:
    """Images ``(B, C, H, W)`` in [0, 1] whose update points where the one ``seen (d,)`` does.

    Minimises ``1 - cos + prior TV`` by signed Adam from uniform noise, with known labels ``y (B,)``
    and pixels kept in [0, 1]. The gradient of the cosine is taken relative to its size: where a
    message is one noisy bit a coordinate no image has a large cosine, and the prior would win.
    Beside the images, the cosine that they reach.

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
        like = cosine(simulate(normalised(z, data), y), seen)
        relative = like / like.detach().abs().clamp_min(_FLOOR)
        (gradient,) = torch.autograd.grad(prior * total_variation(z) - relative, z)
        z.grad = torch.nan_to_num(gradient).sign()
        adam.step()
        schedule.step()
        with torch.no_grad():
            z.clamp_(0, 1)
    z = z.detach()
    return z, float(cosine(simulate(normalised(z, data), y), seen).detach())
