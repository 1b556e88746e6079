"""Signs of updates under Gaussian noise."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, DpEvent, Mechanism, Protocol, Release, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.privacy.clients import clipped, require_clip
from fedbench.privacy.events import NoisySigns


@dataclass(frozen=True, kw_only=True)
class NoisySign(Mechanism):
    """The update is clipped in L2, Gaussian noise is added, and its sign is sent.

    ``sign(x min(1, clip / |x|) + N(0, (z clip)²))``. At the same noise the sign is more private
    than the noisy vector (`fedbench.privacy.amplification`).

    Args:
        clip: Largest L2 norm of an update.
        z: Standard deviation of the noise on a coordinate, in units of ``clip``.

    References:
        Jin et al., "Noisy SIGNSGD Is More Differentially Private Than You (Might) Think", ICML
        2025, PMLR 267; Lyu, "DP-SIGNSGD: When Efficiency Meets Privacy and Robustness", ICASSP
        2021, https://arxiv.org/abs/2105.04808.
    """

    knob = ("z", 0.05, 1e5)
    clip: float = 1.0
    z: float = 1.0

    def __post_init__(self) -> None:
        require_clip("NoisySign.clip", self.clip)
        require("NoisySign.z", self.z, 0 < self.z < 1e6, "in (0, 1e6)")

    def misfit(
        self, protocol: Protocol[Any], defense: Defense[Any], shared: Shared | None = None
    ) -> str | None:
        """Accept protocols whose message is the sign of the update."""
        if protocol.message_is != "sign":
            return "needs a protocol that sends the signs of the update, such as signsgd"
        if shared is not None and protocol.memory(shared):
            return "has no theorem for a protocol that remembers updates"
        return None

    def event(self, release: Release) -> DpEvent:
        return NoisySigns(release.d, self.z)

    @property
    def folds(self) -> bool:
        return True

    def on_updates(
        self, updates: Tensor, reference: Tensor, keys: Sequence[Key], state: Any
    ) -> tuple[Tensor, Any]:
        x, _ = clipped(updates, reference, self.clip)
        noise = torch.stack([key.gaussian(x.shape[1], device=x.device) for key in keys])
        return x + (self.z * self.clip) * noise.to(x), state
