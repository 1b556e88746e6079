"""The two neighbouring inputs that a mechanism finds hardest to hide, by what it says happens."""

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

FAR = 10.0  # times the clip: a mechanism that forgets it is caught
INSIDE = 1 - 1e-5  # times the clip: not clipped, whatever is rounded
POSITIONS = 17  # of a chunk in [c, 1-c] that are tried


@dataclass(frozen=True, eq=False)
class NeighbourPair:
    """Two inputs that differ as the adjacency allows; before the mechanism, which has to clip them.

    Args:
        reference: ``(d,)``, what a client that learned nothing would return: public.
        first: ``(d,)``, the client's update or the sample's gradient; None: it is not there.
        second: ``(d,)`` or None, the same of the neighbour.
        direction: ``(d,)``: the score of a release is its product with it.
        says: In words.
        law: Of the scores, if the mechanism does what it says; None where that is not worked out.
    """

    reference: Tensor
    first: Tensor | None
    second: Tensor | None
    direction: Tensor
    says: str
    law: Law | None


@singledispatch
def worst_pair(
    event: DpEvent, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """The neighbours whose releases are the easiest to tell apart, as far as that is known.

    ``space`` is `Protocol.space`. Any pair gives a true lower bound; a better one a larger.

    Raises:
        ConfigError: nobody has worked that out.
    """
    raise ConfigError(
        f"{type(event).__name__} has no audit of its own; register one with "
        "fedbench.audits.pairs.worst_pair, or use --method one-run"
    )


def on_chunk(d: int, k: int) -> Tensor:
    """``(d,)`` unit vector along the diagonal of the first ``k`` coordinates."""
    x = torch.zeros(d)
    x[:k] = 1 / math.sqrt(k)
    return x


def sizes(d: int) -> list[int]:
    """Return sizes of chunks to try: all up to 16, and then by factors, up to d."""
    return sorted({k for k in [*range(1, 17), *(round(1.3**i) for i in range(80)), d] if k <= d})


@worst_pair.register
def _(
    event: MaskSample, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """Chunks of every size at several places (B3), the whole cube among them."""
    c = event.c
    width = 1 - 2 * event.c
    cube = width * math.sqrt(d)
    reach = cube if event.radius is None else (1 + (adjacency == "replace-one")) * event.radius
    best = -1.0
    chosen = (d, c, width)
    for k in sizes(d):
        h = min(reach / math.sqrt(k), width)
        for low in np.linspace(c, 1 - c - h, POSITIONS) if h < width else (c,):
            epsilon = _sampled(event, k, low, h).epsilon(delta)
            if epsilon > best:
                best = epsilon
                chosen = (k, float(low), h)
    k, low, h = chosen
    unit = on_chunk(d, k)
    far = FAR * (event.radius or math.sqrt(d))
    part = f"{k} of {d} probabilities" if k < d else f"all {d} probabilities"
    says = f"{part} at {low:.3g} or at {low + h:.3g}"
    law = _sampled(event, k, low, h)
    if adjacency == "replace-one":
        reference = torch.where(unit > 0, low + h / 2, 0.5)
        first = reference + far * unit
        return NeighbourPair(reference, first, reference - far * unit, unit, says, law)
    reference = torch.where(unit > 0, low, 0.5)
    return NeighbourPair(reference, reference + far * unit, reference.clone(), unit, says, law)


def _sampled(event: MaskSample, k: int, low: float, h: float) -> Bernoullis:
    p, q = (float(marginal(x, event.sigma, event.c)) for x in (low + h, low))
    return Bernoullis(k, p, q)


@worst_pair.register
def _(
    event: FlippedBits, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """All bits one way or the other."""
    law = Bernoullis(d, 1 - event.p, event.p)
    unit = on_chunk(d, d)
    says = f"all {d} bits 1 or all 0"
    if space == "probabilities":
        zeros = torch.zeros(d)
        return NeighbourPair(zeros, torch.ones(d), zeros, unit, says, law)
    idle = torch.zeros(d)  # whose signs are +1
    other = idle if adjacency == "zero-out" else torch.ones(d)
    return NeighbourPair(idle, torch.full((d,), -1.0), other, -unit, says, law)


@worst_pair.register
def _(
    event: NoisySigns, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """The clip spread over some coordinates, against its opposite or against nothing."""
    replaced = adjacency == "replace-one"

    def law(k: int) -> Bernoullis:
        p = float(ndtr(1 / (event.z * math.sqrt(k))))
        return Bernoullis(k, p, 1 - p if replaced else 0.5)

    k = max(sizes(d), key=lambda k: law(k).epsilon(delta))
    unit = on_chunk(d, k)
    zeros = torch.zeros(d)
    far = FAR * _clip(mechanism) * unit
    says = f"the clip over {k} of {d} signs or {'its opposite' if replaced else 'nothing'}"
    return NeighbourPair(zeros, far, -far if replaced else zeros, unit, says, law(k))


@worst_pair.register
def _(
    event: GaussianSum, mechanism: Mechanism, space: str, d: int, adjacency: Adjacency, delta: float
) -> NeighbourPair:
    """A vector as long as the clip, and one too long in the other direction, or zero, or none.

    The two differ also in whether they are too long, which an adaptive clip adds up.
    """
    unit = on_chunk(d, d)
    clip = _clip(mechanism)
    far = -FAR * clip * unit
    if adjacency == "replace-one":
        near = INSIDE * clip * unit
        return _sum_pair(near, far, unit, "the clip or its opposite", Gaussians(2 / event.z))
    adaptive = bool(getattr(mechanism, "adaptive", False))
    if adjacency == "zero-out":
        law = None if adaptive else Gaussians(1 / event.z)
        return _sum_pair(torch.zeros(d), far, unit, "the clip or nothing", law)
    return _sum_pair(None, far, unit, "the clip or no client", Gaussians(1 / event.z))


def _sum_pair(
    first: Tensor | None, second: Tensor, unit: Tensor, says: str, law: Law | None
) -> NeighbourPair:
    return NeighbourPair(torch.zeros_like(second), first, second, unit, says, law)


@worst_pair.register
def _(
    event: GaussianGradients,
    mechanism: Mechanism,
    space: str,
    d: int,
    adjacency: Adjacency,
    delta: float,
) -> NeighbourPair:
    """A sample whose gradient is too long, or zero, or none."""
    unit = on_chunk(d, d)
    other = torch.zeros(d) if adjacency == "zero-out" else None
    says = f"a long gradient or {'none' if other is None else 'zero'}, in one step"
    law = Gaussians(1 / event.z)
    return NeighbourPair(torch.zeros(d), FAR * _clip(mechanism) * unit, other, unit, says, law)


def _clip(mechanism: Mechanism) -> float:
    clip = getattr(mechanism, "clip", None)
    if not isinstance(clip, float):
        raise ConfigError(
            f"{type(mechanism).__name__} must have a clip to be audited, got {clip!r}"
        )
    return clip
