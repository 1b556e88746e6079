"""FedMRN: updates that are random noise behind a mask."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Keys, LocalStep, Memories, Memory, Messages, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import NoiseMasks
from fedbench.payload.bits import MIN_NOISE, Noise, noise_of
from fedbench.protocols.compressed import public_seeds
from fedbench.protocols.fedavg import DenseWeights


@dataclass(frozen=True, kw_only=True)
class FedMRN(DenseWeights):
    """Clients look for their update within random noise, and send one bit a weight and a seed.

    A client trains ``u``, which starts at 0, by SGD on the gradient at ``w + u_hat``: ``u_hat`` is
    ``u`` clipped to the noise and, for a share ``tau / S`` of the coordinates that grows with every
    step, the noise behind a mask. Its update is the noise behind a final mask, drawn afresh. Masks
    of 0 and 1 lose half the signal (M4): where noise and ``u`` differ in sign ``u_hat`` is 0.

    Where the paper is silent or wrong (docs/errata.md): clipping and masking have the gradient of
    the identity (M6); other parameters than weights have no mask and travel as floats (A2); the
    mean weights by samples, as equation 5, not by batches.

    Args:
        noise: Distribution of the noise: ``uniform``, ``gaussian`` or ``bernoulli``.
        magnitude: End of its interval, its standard deviation (``N(0, alpha)`` in the paper, whose
            code takes alpha for it), or its absolute value.
        sm: Stochastic masking; else deterministic, for the final mask too: 1 iff ``u`` and the
            noise have the same sign.
        pm: Progressive masking; else all coordinates are masked in every step.
        when: ``training``, or ``after`` it: FedAvg's update, masked (section 5.4).

    References:
        Li et al., "Masked Random Noise for Communication-Efficient Federated Learning", ACM MM
        2024, https://arxiv.org/abs/2408.03220, Algorithm 1 and equations 4 to 10.
    """

    sends = NoiseMasks
    signed = False

    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    noise: Noise = "uniform"
    magnitude: float = 0.01
    sm: bool = True
    pm: bool = True
    when: Literal["training", "after"] = "training"

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = MIN_NOISE < self.magnitude < 1e30
        require(f"{type(self).__name__}.magnitude", self.magnitude, fits, "in (1e-8, 1e30)")

    def _noise(self, key: Key, d: int, device: torch.device) -> Tensor:
        """Return the noise ``n (d,)`` of a client, which the seed in its message regenerates."""
        return noise_of(key.public("noise"), d, self.noise, self.magnitude, device)

    def reach(self, u: Tensor, noise: Tensor) -> Tensor:
        """Return ``clip(u / n)``, how far along the noise ``u`` is: in [0, 1], or in [-1, 1]."""
        return (u / noise).clamp(-1 if self.signed else 0, 1)

    def chance(self, reach: Tensor) -> Tensor:
        """Return the probability of a 1: ``clip(u / n, 0, 1)``; signed: ``clip((u+n) / 2n, 0, 1)``.

        Equations 6 and 7 (M1: printed is ``u + n / 2n``); deterministic masking has 0 or 1.
        """
        if self.sm:
            return (reach + 1) / 2 if self.signed else reach
        return (reach >= 0 if self.signed else reach > 0).to(reach.dtype)

    def masked(self, u: Tensor, noise: Tensor, progress: float | Tensor, key: Key) -> Tensor:
        """Return ``u_hat`` of equation 10 with ``p = progress``: lines 15 to 18 of Algorithm 1.

        One draw decides whether a coordinate is masked and by what: of the draws below ``p`` a
        share ``chance`` is below ``p * chance``. Arithmetic, since random branches mispredict.
        """
        reach = self.reach(u, noise)
        draws = key.shorts(*u.shape, device=u.device).to(u.dtype)
        share = progress * 2**16  # P is 1 with a multiple of 2**-16, as coins are
        limit = share.ceil().to(u.dtype) if isinstance(share, Tensor) else math.ceil(share)
        ones = (self.chance(reach) * limit).ceil_().sub_(draws).clamp(0, 1)
        symbols = ones.mul_(2).sub_(1) if self.signed else ones
        chosen = draws.neg_().add_(limit).clamp(0, 1)
        return reach.lerp(symbols, chosen).mul_(noise)

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train ``u`` to ``u^{S+1}``, and move the parameters without a mask."""
        if self.when == "after":
            return super().local_update(tree, batches, grad, key, memory)
        weights = batches.weights_of(tree)
        noise = weights.unflatten(self._noise(key, weights.d, tree[weights.names[0]].device))

        def straight_through(u: Tree, step: LocalStep) -> Tree:
            progress = step.done() if self.pm else 1.0
            return u | {
                name: tree[name] + self.masked(u[name], n, progress, step.key.fold("mask", name))
                for name, n in noise.items()
            }

        start = {name: torch.zeros_like(x) if name in noise else x for name, x in tree.items()}
        u = self.train(start, batches, grad, key, straight_through)
        return {name: x if name in noise else x - tree[name] for name, x in u.items()}, memory

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Send ``M(u, G(s))`` and ``s``, line 20 of Algorithm 1."""
        d = shared.weights.d
        masks = []
        for u, key in zip(updates[:, :d], keys, strict=True):
            noise = self._noise(key, d, updates.device)
            masks.append(key.fold("mask").bernoulli(self.chance(self.reach(u, noise))))
        seeds = public_seeds(keys, "noise", updates.device)
        rest = updates[:, d:].to(torch.float32)
        mask = torch.stack(masks)
        return NoiseMasks(mask, seeds, rest, self.noise, self.magnitude, self.signed), memory


@dataclass(frozen=True, kw_only=True)
class FedMRNS(FedMRN):
    """FedMRN whose masks are signs: the update is noise, kept or negated.

    ``E[u_hat] = u`` wherever ``|u| <= |n|``; in exchange a coordinate without an update still moves
    by ``+-n`` (M5). Not FedMRN at half the magnitude, which differs by an offset ``-n`` (M3).

    References:
        Li et al., ACM MM 2024, https://arxiv.org/abs/2408.03220, equations 7 and 10.
    """

    signed = True

    magnitude: float = 0.005
