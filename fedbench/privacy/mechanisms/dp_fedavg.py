"""Central noise of the server on the mean of clipped updates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedbench.api import Defense, DpEvent, Mechanism, Protocol, Release, ServerView, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors, FoldedMessages, Payload
from fedbench.privacy.clients import LEAST_CLIP, clipped, require_clip
from fedbench.privacy.events import GaussianSum

MOST_CLIP = 1e38  # of a norm that float32 holds
FASTEST = 200.0  # logarithm of more than MOST_CLIP over LEAST_CLIP


@dataclass(frozen=True)
class ClipState:
    """State of the clip in a round."""

    norm: float  # largest L2 norm of an update
    below: int = 0  # clients of the round whose update needed no clipping


@dataclass(frozen=True, kw_only=True)
class DPFedAvg(Mechanism):
    """Clients clip their update in L2; the server adds Gaussian noise to the mean.

    ``(sum_i clip(x_i) + N(0, (z clip)²)) / (q N)`` with the fixed denominator ``q N``, the expected
    size of a round, and equal weights. It protects against an adversary that sees the models which
    the server deploys, not against the server, and hides who took part. A malicious client need not
    clip; the others are protected all the same, unless it sends so much (``2**23`` clips) that
    float32 rounds what they send. A rule that clips every row to a fixed norm, such as
    ``clip:c=1+mean`` or ``norm-bound:c=1``, has the server clip, too: ε stays, and no client moves
    the mean further than an honest one may.

    With ``adaptive`` the norm follows a quantile of the updates' norms: each client also sends one
    bit, whether its update was not longer than ``clip``; the server adds noise to their sum, and
    ``clip <- clip exp(-eta (b - quantile))``. The noise on the updates is raised so that the two
    releases together have noise multiplier ``z``. The server counts the bit of every message that
    it accepts, as the paper's does; that of a malicious client, which does not clip, always says
    that it was longer, so it pushes the norm, and with it the noise, up: where a share ``a`` of the
    messages is theirs, the norm settles at the quantile ``quantile / (1 - a)`` of the others'
    norms, and from ``a > 1 - quantile`` on it grows in every round.

    Args:
        clip: Largest L2 norm of an update; with ``adaptive``, its first value.
        z: Noise multiplier: standard deviation of the noise on the sum, in units of ``clip``.
        adaptive: True if the norm follows a quantile.
        quantile: Quantile of the norms to follow, ``gamma``.
        eta: Learning rate of the norm.
        bit_noise: Standard deviation of the noise on the sum of bits; none: a twentieth of the
            clients of a round.

    References:
        McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018,
        https://arxiv.org/abs/1710.06963, Algorithm 1; Andrew et al., "Differentially Private
        Learning with Adaptive Clipping", NeurIPS 2021, https://arxiv.org/abs/1905.03871,
        Algorithm 1 and Theorem 1.
    """

    central = True
    clip: float = 1.0
    z: float = 1.0
    adaptive: bool = False
    quantile: float = 0.5
    eta: float = 0.2
    bit_noise: float | None = None

    def __post_init__(self) -> None:
        require_clip("DPFedAvg.clip", self.clip)
        require("DPFedAvg.z", self.z, 0 < self.z < 1e6, "in (0, 1e6)")
        require("DPFedAvg.quantile", self.quantile, 0 < self.quantile < 1, "in (0, 1)")
        require("DPFedAvg.eta", self.eta, self.eta > 0, "> 0")
        enough = self.bit_noise is None or 2 * self.bit_noise > self.z
        require("DPFedAvg.bit_noise", self.bit_noise, enough, f"None or > z/2 = {self.z / 2:g}")

    @property
    def knob(self) -> tuple[str, float, float] | None:  # type: ignore[override]
        """``z``; none if adaptive, where the noise on the bits limits it."""
        return None if self.adaptive else ("z", 0.05, 1e5)

    def misfit(
        self, protocol: Protocol[Any], defense: Defense[Any], shared: Shared | None = None
    ) -> str | None:
        """Accept updates that are sent as floats, and rules of known sensitivity."""
        if protocol.space != "weights" or not issubclass(protocol.sends, FloatVectors):
            return (
                f"needs updates that travel as floats, got {protocol.sends.__name__}: a codec may "
                "enlarge what was clipped; use fedavg"
            )
        clips = (LEAST_CLIP, self.clip, MOST_CLIP) if self.adaptive else (self.clip,)
        changes = [(clip, defense.sensitivity(clip, 10)) for clip in clips]
        if any(change is None or change > (1 + 1e-9) * 2 * clip / 10 for clip, change in changes):
            return (
                "needs a rule whose answer changes by no more than a mean with one row, for noise "
                f"behind another one has no theorem; use mean, or clip:c={self.clip:g}+mean, by "
                "which the server clips, too"
            )
        if shared is not None and protocol.memory(shared):
            return "has no theorem for a protocol that remembers updates"
        return None

    def event(self, release: Release) -> DpEvent:
        self.update_z(release.per_round)
        return GaussianSum(self.z, self.adaptive)

    def bit_z(self, expected: int) -> float:
        """Return the standard deviation of the noise on the sum of bits."""
        return expected / 20 if self.bit_noise is None else self.bit_noise

    def update_z(self, expected: int) -> float:
        """``(z^-2 - (2 sigma_b)^-2)^(-1/2)``: Theorem 1 of Andrew et al., for bits +-1/2."""
        if not self.adaptive:
            return self.z
        twice = 2 * self.bit_z(expected)
        requirement = f"< {twice:g}, twice the noise on the bits, to leave noise for the updates"
        require("DPFedAvg.z", self.z, self.z < twice, requirement)
        return math.sqrt(1 / (self.z**-2 - twice**-2))

    def init(self) -> ClipState:
        return ClipState(self.clip)

    def message_bits(self) -> int:
        return int(self.adaptive)

    def on_updates(
        self, updates: Tensor, reference: Tensor, keys: Sequence[Key], state: ClipState
    ) -> tuple[Tensor, ClipState]:
        x, below = clipped(updates, reference, state.norm)
        return x, ClipState(state.norm, int(below.sum()))

    @property
    def folds(self) -> bool:
        return not self.adaptive  # the clip follows how many updates of all are below it

    def on_aggregate(
        self,
        aggregate: Tensor,
        received: Payload | FoldedMessages,
        view: ServerView,
        key: Key,
        state: ClipState,
    ) -> tuple[Tensor, ClipState]:
        expected = view.expected
        noise = key.gaussian(len(aggregate), device=aggregate.device).to(aggregate)
        total = aggregate * len(received) + self.update_z(expected) * state.norm * noise
        if not self.adaptive:
            return total / expected, state
        bit_noise = self.bit_z(expected) * key.fold("bits").gaussian(1).item()
        share = (state.below - len(received) / 2 + bit_noise) / expected + 0.5
        norm = state.norm * math.exp(min(-self.eta * (share - self.quantile), FASTEST))
        return total / expected, ClipState(min(max(norm, LEAST_CLIP), MOST_CLIP))
