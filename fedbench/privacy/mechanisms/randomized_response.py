"""Randomized response: bits that are flipped with a known probability."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import Defense, DpEvent, Mechanism, Protocol, Release, ServerView, Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.payload import BinaryMasks, FoldedMessages, NoiseMasks, Payload, SignBits, bits_of
from fedbench.privacy.clients import within
from fedbench.privacy.events import FlippedBits


@dataclass(frozen=True, kw_only=True)
class FlipBits(Mechanism):
    """Flip every bit of a message with probability ``p``: local privacy, whatever the bits mean.

    ``flip`` works on the bits of any protocol: masks, signs or masked noise. With ``debias`` the
    server makes the mean unbiased by ``(mean - p) / (1 - 2p)``, for signs by ``mean / (1 - 2p)``.
    (Masks over unsigned noise are treated as signs: the noise that ``p`` multiplies has mean 0 over
    seeds.)

    ``affine`` is for a protocol that samples its bits from probabilities ``theta`` in ``[c, 1-c]``:
    ``m ~ Bern(1/2 + k (theta - 1/2))`` with ``k = (1/2 - p) / (1/2 - c)``. As private as flipping
    and with less noise, since the sampling already randomizes; the server inverts it exactly, also
    when clients have different ``theta``.

    Args:
        p: Probability of a flip; for ``affine`` the least probability of either value.
        form: ``flip`` or ``affine``.
        c: Clip of ``affine``: probabilities are clipped to ``[c, 1-c]``.
        debias: True if the server undoes the shrinking.

    References:
        Warner, "Randomized Response", JASA 1965, https://doi.org/10.1080/01621459.1965.10480775;
        Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015,
        https://arxiv.org/abs/1311.0776.
    """

    knob = ("p", 1e-6, 0.499999)
    p: float = 0.25
    form: Literal["flip", "affine"] = "flip"
    c: float = 0.01
    debias: bool = True

    def __post_init__(self) -> None:
        require("FlipBits.p", self.p, 0 < self.p < 0.5, "in (0, 1/2)")
        require("FlipBits.c", self.c, 0 < self.c < 0.5, "in (0, 1/2)")
        require("FlipBits.p", self.p, self.p >= 1e-6, ">= 1e-6: less flips hardly a bit")
        good = self.form == "flip" or self.c <= self.p
        require("FlipBits.c", self.c, good, f"<= p = {self.p}: a larger one needs no mechanism")

    @property
    def slope(self) -> float:
        return (0.5 - self.p) / (0.5 - self.c)

    def misfit(
        self, protocol: Protocol[Any], defense: Defense[Any], shared: Shared | None = None
    ) -> str | None:
        """Accept protocols whose messages are bits and nothing else."""
        sends = protocol.sends
        if self.form == "affine" and protocol.message_is != "sample":
            return "form=affine needs a protocol that samples probabilities, such as fedpm"
        if not issubclass(sends, BinaryMasks | SignBits | NoiseMasks):
            return f"needs a protocol that sends bits, got {sends.__name__}; use fedpm or signsgd"
        if shared is None:
            return None
        floats = shared.rest.d if issubclass(sends, NoiseMasks) else shared.statistics.d
        if floats:
            rest = f"got {floats} that travel as floats"
            return f"needs a model whose parameters all have a bit, {rest}; use lenet or conv4"
        return None

    def event(self, release: Release) -> DpEvent:
        return FlippedBits(release.d, self.p)  # also of the affine form

    def on_updates(
        self, updates: Tensor, reference: Tensor, keys: Sequence[Key], state: Any
    ) -> tuple[Tensor, Any]:
        if self.form == "flip":
            return updates, state
        theta = torch.where(torch.isfinite(updates), updates, reference).clamp(self.c, 1 - self.c)
        return within(0.5 + self.slope * (theta - 0.5), self.p), state

    def odds(self, d: int, device: torch.device) -> Tensor:
        """Return the chance ``(d,)`` of a flip in float32: ``p``, or the next larger number."""
        return within(torch.full((d,), self.p, device=device), self.p)

    def on_payload(self, payload: Payload, keys: Sequence[Key]) -> Payload:
        if self.form == "affine":
            return payload
        assert isinstance(payload, BinaryMasks | SignBits | NoiseMasks)
        floats = 0 if isinstance(payload, SignBits) else payload.rest.shape[1]
        require("randomized-response", floats, not floats, "used without floats beside the bits")
        bits = bits_of(payload)
        odds = self.odds(bits.shape[1], bits.device)
        flips = torch.stack([key.bernoulli(odds) for key in keys])
        flipped: dict[str, Any] = {payload.packed_field: bits ^ flips}
        return replace(payload, **flipped)

    @property
    def folds(self) -> bool:
        return True

    def on_aggregate(
        self,
        aggregate: Tensor,
        received: Payload | FoldedMessages,
        view: ServerView,
        key: Key,
        state: Any,
    ) -> tuple[Tensor, Any]:
        if not self.debias:
            return aggregate, state
        form = received.form if isinstance(received, FoldedMessages) else received
        middle = 0.5 if isinstance(form, BinaryMasks) and not form.signed else 0.0
        shrunk = self.slope if self.form == "affine" else 1 - 2 * self.p
        return middle + (aggregate - middle) / shrunk, state
