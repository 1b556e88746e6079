"""Noise on the gradients of the clients' training."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, DpEvent, Grad, Gradient, Mechanism, Protocol, Release, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import OTHER_NORMS
from fedbench.privacy.clients import ROUNDING
from fedbench.privacy.events import GaussianGradients


@dataclass(frozen=True, kw_only=True)
class DPSGD(Mechanism):
    """Each local step clips the gradients of samples in L2 and adds Gaussian noise to their sum.

    ``(sum_j clip(g_j) + N(0, (z clip)²)) / B`` in place of the batch's gradient: protects each
    sample of a client against an adversary that sees anything derived from it. Samples are drawn by
    Poisson sampling, as the accountant assumes; ``B`` is the batch size, the mean number drawn. Any
    protocol may use the gradient, of mask scores too; in one step all samples see the same sampled
    mask. A client's size counts as public.

    Args:
        clip: Largest L2 norm of a sample's gradient.
        z: Standard deviation of the noise on a coordinate of the sum, in units of ``clip``.

    References:
        Abadi et al., "Deep Learning with Differential Privacy", CCS 2016,
        https://arxiv.org/abs/1607.00133, Algorithm 1.
    """

    unit = "example"
    batches = "poisson"
    knob = ("z", 0.05, 1e5)
    clip: float = 1.0
    z: float = 1.0

    def __post_init__(self) -> None:
        requirement = ">= 1e-10: the squares of much shorter gradients are 0 in float32"
        require("DPSGD.clip", self.clip, self.clip >= 1e-10, requirement)
        require("DPSGD.z", self.z, 0 < self.z < 1e6, "in (0, 1e6)")

    def misfit(
        self, protocol: Protocol[Any], defense: Defense[Any], shared: Shared | None = None
    ) -> str | None:
        """Accept models in which no parameter mixes samples, and one gradient a step."""
        if shared is not None and shared.statistics.d:
            why = "whose statistics mix the samples of a batch"
            return f"needs a model without batch norm, {why}; {OTHER_NORMS}"
        if protocol.extra_gradients:
            return "needs a protocol that takes one gradient a step, such as fedavg"
        return None

    def event(self, release: Release) -> DpEvent:
        rate = min(1.0, release.batch_size / release.size)
        return GaussianGradients(self.z, rate, release.steps)

    def wrap_grad(self, grad: Gradient) -> Grad:
        """Return a gradient that clips each sample's and adds noise to their sum."""

        def private(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            gradients = grad.each(tree, x, y, key)
            rows = [g.unsqueeze(-1).flatten(1) for g in gradients.values()]  # also of a number
            squares = [row.square().sum(dim=1) for row in rows]
            norms = torch.stack(squares).sum(dim=0).sqrt()
            finite = torch.isfinite(norms)
            within = self.clip * (1 - ROUNDING) / norms.clamp_min(1e-30)
            factors = torch.where(finite, within.clamp(max=1.0), 0.0)
            scale = self.z * self.clip

            def private_sum(name: str, g: Tensor) -> Tensor:
                g = torch.where(finite[(...,) + (None,) * (g.ndim - 1)], g, 0.0)
                total = torch.tensordot(factors, g, dims=1)
                noise = key.fold("privacy", name).gaussian(*total.shape, device=total.device)
                noisy: Tensor = total + scale * noise.to(total)
                return noisy / grad.batch_size

            return {name: private_sum(name, g) for name, g in gradients.items()}

        return private
