"""Gaussian noise on mask probabilities, and the Bernoulli sample that is sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, DpEvent, Mechanism, Protocol, Release, ServerView, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.models.network import OTHER_NORMS
from fedbench.payload import Payload
from fedbench.privacy.amplification import inverse_marginal
from fedbench.privacy.clients import clipped, within
from fedbench.privacy.events import MaskSample


@dataclass(frozen=True, kw_only=True)
class SampledMasks(Mechanism):
    """Base of mechanisms on mask probabilities of which one Bernoulli sample is sent.

    A client's probabilities are clipped to an L2 ball around those that the server sent, and to
    ``[c, 1-c]``. `fedbench.privacy.amplification` prices the sample.

    Args:
        c: Smallest distance of a probability to 0 and to 1.
        clip: L2 radius of the ball; none: the whole cube, where no sensitivity is needed.
    """

    c: float = 0.2
    clip: float | None = None

    @property
    def folds(self) -> bool:
        return True

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(f"{name}.c", self.c, 0 < self.c < 0.5, "in (0, 1/2)")
        require(f"{name}.c", self.c, self.c >= 1e-6, ">= 1e-6: floats see no less")
        require(f"{name}.clip", self.clip, self.clip is None or self.clip > 0, "None or > 0")

    def misfit(
        self, protocol: Protocol[Any], defense: Defense[Any], shared: Shared | None = None
    ) -> str | None:
        """Accept protocols whose whole message is one Bernoulli sample of probabilities."""
        if protocol.message_is != "sample":
            return "needs a protocol that sends a Bernoulli sample of probabilities, such as fedpm"
        if shared is None:
            return None
        if shared.statistics.d:
            why = "whose statistics travel beside the masks as they are"
            return f"needs a model without batch norm, {why}; {OTHER_NORMS}"
        if self.clip is not None and protocol.memory(shared):
            return (
                "has no theorem for an optimizer's state that is carried over rounds under L2 "
                "accounting; use keep_moments=false, or clip=none, which needs no sensitivity"
            )
        return None

    def box(self, updates: Tensor, reference: Tensor) -> Tensor:
        """Project the ``updates (n, d)`` to the ball and the cube, which increases no distance."""
        x = updates if self.clip is None else clipped(updates, reference, self.clip)[0]
        return within(torch.where(torch.isfinite(x), x, reference), self.c)


@dataclass(frozen=True, kw_only=True)
class MaskGaussian(SampledMasks):
    """Gaussian noise on the mask probabilities, which are clipped again and then sampled.

    ``m ~ Bern(clip(theta + N(0, sigma²), c, 1-c))`` with ``theta`` in ``[c, 1-c]``. Clipping after
    the noise pulls the mean of the masks towards 1/2; ``debias`` inverts that on the server, with
    the corrected formula (E2): exactly if all clients have the same ``theta``, else nearly, since
    the inverse of a mean is not the mean of inverses.

    Args:
        sigma: Standard deviation of the noise on a probability.
        debias: True if the server inverts the bias of the clipping.

    References:
        Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning", ICLR
        2023, https://arxiv.org/abs/2209.15328, Appendix C, Figure 4 and equation 13.
    """

    knob = ("sigma", 1e-3, 1e5)

    sigma: float = 0.2
    debias: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(f"{type(self).__name__}.sigma", self.sigma, 0 <= self.sigma < 1e6, "in [0, 1e6)")

    def event(self, release: Release) -> DpEvent:
        return MaskSample(release.d, self.sigma, self.c, self.clip)

    def on_updates(
        self, updates: Tensor, reference: Tensor, keys: Sequence[Key], state: Any
    ) -> tuple[Tensor, Any]:
        theta = self.box(updates, reference)
        if not self.sigma:
            return theta, state
        noise = torch.stack([key.gaussian(theta.shape[1], device=theta.device) for key in keys])
        return within(theta + self.sigma * noise.to(theta), self.c), state

    def on_aggregate(
        self, aggregate: Tensor, received: Payload, view: ServerView, key: Key, state: Any
    ) -> tuple[Tensor, Any]:
        if not self.debias:
            return aggregate, state
        theta = inverse_marginal(aggregate.double().cpu().numpy(), self.sigma, self.c)
        return torch.from_numpy(theta).to(aggregate), state


@dataclass(frozen=True, kw_only=True)
class MaskSampling(SampledMasks):
    """Sampling of the mask as the only noise.

    ``m ~ Bern(theta)`` with ``theta`` clipped to ``[c, 1-c]`` and to an L2 ball. Each bit is then
    randomized response whose odds depend on the data; for small changes it protects like Gaussian
    noise of standard deviation ``sqrt(c (1-c))`` on each probability.

    References:
        Imola, Chaudhuri, "Privacy Amplification Via Bernoulli Sampling", 2021,
        https://arxiv.org/abs/2105.10594.
    """

    knob = ("clip", 1e3, 1e-6)

    def event(self, release: Release) -> DpEvent:
        return MaskSample(release.d, 0.0, self.c, self.clip)

    def on_updates(
        self, updates: Tensor, reference: Tensor, keys: Sequence[Key], state: Any
    ) -> tuple[Tensor, Any]:
        return self.box(updates, reference), state
