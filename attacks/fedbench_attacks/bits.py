"""Messages of bits as votes: what the known ones say, and masks with a given number of ones."""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView
from fedbench.core.order_statistics import largest
from fedbench.core.rng import Key
from fedbench.payload import SignBits


def bits_of(payload: Any) -> Tensor:
    """``(n, d)`` bool of masks or signs."""
    bits: Tensor = payload.positive if isinstance(payload, SignBits) else payload.mask
    return bits


def with_bits(payload: Any, bits: Tensor) -> Any:
    """The messages with ``bits (d,)`` or ``(n, d)`` in place of theirs, all else as it was."""
    name = "positive" if isinstance(payload, SignBits) else "mask"
    return dataclasses.replace(payload, **{name: bits.expand(len(payload), -1).clone()})


def ones_of(view: AttackView) -> tuple[Tensor, int]:
    """``(d,)`` int64: how many of the known messages say 1, and how many messages are known.

    If no client of the round is benign, its own honest messages stand in for theirs.
    """
    view.notes["benign"] = len(view.seen)
    known = bits_of(view.seen if len(view.seen) else view.own)
    return known.sum(dim=0), len(known)


def masks_like(
    view: AttackView,
    theta: Tensor,
    how: Literal["sample", "threshold"],
    density: Literal["benign", "free"],
    ones: int,
) -> Any:
    """The colluders' messages with bits for the probabilities ``theta (d,)`` float64.

    ``free``: every colluder's own Bernoulli sample, or for all ``theta > 1/2``. ``benign``: exactly
    ``ones`` of them are 1: the most probable ones, equals in an order of the adversary's key, or a
    sample of that size, the largest of ``logit(theta) + logistic noise``. A Bernoulli sample is
    where that sum is above 0; another cut shifts all log-odds alike.

    References:
        Rosen, "On sampling with probability proportional to size", Journal of Statistical
        Planning and Inference 62, 1997 (Pareto sampling: the same order).
    """
    rows, d, key = len(view.own), len(theta), view.key.fold("mask")
    if density == "free":
        bits = theta[None] > 0.5 if how == "threshold" else key.bernoulli(theta.expand(rows, -1))
    elif how == "threshold":
        tie = key.uniform(d, device=theta.device)
        bits = largest((theta + 1e-6 * tie)[None], ones)
    else:
        bits = largest(_log_odds(theta, key, rows), ones)
    return with_bits(view.own, bits)


def _log_odds(theta: Tensor, key: Key, rows: int) -> Tensor:
    """``(rows, d)``; what is certain stays so: draws of 24 bits reach +-17.4 only."""
    u = key.uniform(rows, len(theta), device=theta.device).double() + 2.0**-25
    return torch.logit(theta, eps=1e-16) + torch.logit(u)
