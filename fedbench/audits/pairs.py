"""Neighbouring inputs whose releases are the easiest to tell apart, for each kind of event."""

import math
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import torch
from scipy.special import ndtr
from torch import Tensor

from fedbench.api import Adjacency, DpEvent, Mechanism
from fedbench.audits.laws import Bernoullis, Gaussians, Law
from fedbench.core.errors import ConfigError
from fedbench.privacy.amplification import marginal
from fedbench.privacy.events import (
    FlippedBits,
    GaussianGradients,
    GaussianSum,
    MaskSample,
    NoisySigns,
)

CLIPPED_LENGTH = 10.0  # times the clip, to detect a mechanism that does not clip
UNCLIPPED_LENGTH = 1 - 1e-5  # times the clip, so that rounding does not cause clipping
POSITIONS = 17  # positions of a chunk in [c, 1-c] to try


@dataclass(frozen=True, eq=False)
class NeighbourPair:
    """Two neighbouring inputs of a mechanism, which has to clip them."""

    reference: Tensor  # ``(d,)``, the public update of a client that learned nothing
    first: Tensor | None  # ``(d,)``, the client's update or the sample's gradient; None: absent
    second: Tensor | None  # the same in the neighbouring input
    direction: Tensor  # ``(d,)``; the score of a release is its product with the direction
    description: str
    law: Law | None  # laws of the scores if the mechanism is correct; None if they are not known


@singledispatch
def worst_pair(
    event: DpEvent, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """Return the neighbours whose releases are the easiest to tell apart, as far as that is known.

    Any pair gives a valid lower bound, a better one a larger bound. ``space`` is `Protocol.space`.
    `ConfigError` if no pair is known for this kind of event.
    """
    raise ConfigError(
        f"{type(event).__name__} has no audit of its own; register one with "
        "fedbench.audits.pairs.worst_pair, or use --method one-run"
    )


def on_chunk(d: int, k: int) -> Tensor:
    """Return ``(d,)`` unit vector along the diagonal of the first ``k`` coordinates."""
    x = torch.zeros(d)
    x[:k] = 1 / math.sqrt(k)
    return x


def sizes(d: int) -> list[int]:
    """Return sizes of chunks to try: all up to 16, then by factors of 1.3, and ``d``."""
    return sorted({k for k in [*range(1, 17), *(round(1.3**i) for i in range(80)), d] if k <= d})


@worst_pair.register
def _(
    event: MaskSample, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """Move a chunk of equal probabilities, of the best size and position (B3)."""
    c = event.c
    width = 1 - 2 * c
    replaced = adjacency == "replace-one"
    reach = width * math.sqrt(d) if event.radius is None else (1 + replaced) * event.radius

    def law(k: int, low: float, h: float) -> Bernoullis:
        p, q = (float(marginal(x, event.sigma, c)) for x in (low + h, low))
        return Bernoullis(k, p, q)

    steps = [(k, min(reach / math.sqrt(k), width)) for k in sizes(d)]
    chunks = [
        (k, float(low), h)
        for k, h in steps
        for low in (np.linspace(c, 1 - c - h, POSITIONS) if h < width else [c])
    ]
    k, low, h = max(chunks, key=lambda chunk: law(*chunk).epsilon(delta))
    unit = on_chunk(d, k)
    far = CLIPPED_LENGTH * (event.radius or math.sqrt(d)) * unit
    part = f"{k} of {d} probabilities" if k < d else f"all {d} probabilities"
    text = f"{part} at {low:.3g} or at {low + h:.3g}"
    reference = torch.where(unit > 0, low + h / 2 if replaced else low, 0.5)
    second = reference - far if replaced else reference.clone()
    return NeighbourPair(reference, reference + far, second, unit, text, law(k, low, h))


@worst_pair.register
def _(
    event: FlippedBits, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """Set all bits to 1 or all to 0."""
    law = Bernoullis(d, 1 - event.p, event.p)
    unit = on_chunk(d, d)
    text = f"all {d} bits 1 or all 0"
    zeros = torch.zeros(d)
    ones = torch.ones(d)
    if space == "probabilities":
        return NeighbourPair(zeros, ones, zeros, unit, text, law)
    other = zeros if adjacency == "zero-out" else ones  # the signs of 0 are +1
    return NeighbourPair(zeros, -ones, other, -unit, text, law)


@worst_pair.register
def _(
    event: NoisySigns, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """Spread the clip over some coordinates, against its opposite or against 0."""
    replaced = adjacency == "replace-one"

    def law(k: int) -> Bernoullis:
        p = float(ndtr(1 / (event.z * math.sqrt(k))))
        return Bernoullis(k, p, 1 - p if replaced else 0.5)

    k = max(sizes(d), key=lambda k: law(k).epsilon(delta))
    unit = on_chunk(d, k)
    zeros = torch.zeros(d)
    far = CLIPPED_LENGTH * _clip(mechanism) * unit
    text = f"the clip over {k} of {d} signs or {'its opposite' if replaced else 'nothing'}"
    return NeighbourPair(zeros, far, -far if replaced else zeros, unit, text, law(k))


@worst_pair.register
def _(
    event: GaussianSum, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """Send a vector as long as the clip or one too long, which an adaptive clip counts, or none."""
    zeros = torch.zeros(d)
    unit = on_chunk(d, d)
    clip = _clip(mechanism)
    far = -CLIPPED_LENGTH * clip * unit
    law = Gaussians(1 / event.z)
    if adjacency == "replace-one":
        near = UNCLIPPED_LENGTH * clip * unit
        twice = Gaussians(2 / event.z)
        return NeighbourPair(zeros, near, far, unit, "the clip or its opposite", twice)
    if adjacency == "add-remove":
        return NeighbourPair(zeros, None, far, unit, "the clip or no client", law)
    adaptive = getattr(mechanism, "adaptive", False)
    return NeighbourPair(zeros, zeros, far, unit, "the clip or nothing", None if adaptive else law)


@worst_pair.register
def _(
    event: GaussianGradients,
    mechanism: Mechanism,
    space: str,
    d: int,
    adjacency: Adjacency,
    delta: float,
) -> NeighbourPair:
    """Take a sample whose gradient is too long, or zero, or no sample."""
    unit = on_chunk(d, d)
    other = torch.zeros(d) if adjacency == "zero-out" else None
    text = f"a long gradient or {'none' if other is None else 'zero'}, in one step"
    law = Gaussians(1 / event.z)
    return NeighbourPair(
        torch.zeros(d), CLIPPED_LENGTH * _clip(mechanism) * unit, other, unit, text, law
    )


def _clip(mechanism: Mechanism) -> float:
    clip = getattr(mechanism, "clip", None)
    if not isinstance(clip, float):
        raise ConfigError(
            f"{type(mechanism).__name__} must have a clip to be audited, got {clip!r}"
        )
    return clip
