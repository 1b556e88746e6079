"""Bits as votes: counts of the messages read, and messages with a given number of ones."""

import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView
from fedbench.core.order_statistics import largest
from fedbench.core.rng import Key
from fedbench.payload import BinaryMasks, Payload, SignBits

from .crafted import Reader


def bits_of(payload: Any) -> Tensor:
    """Return the bits ``(n, d)`` bool of masks or signs."""
    bits: Tensor = payload.positive if isinstance(payload, SignBits) else payload.mask
    return bits


def with_bits(payload: Any, bits: Tensor) -> Any:
    """Return the messages with these bits, ``(d,)`` or ``(n, d)``, and all else unchanged."""
    name = "positive" if isinstance(payload, SignBits) else "mask"
    return dataclasses.replace(payload, **{name: bits.expand(len(payload), -1).clone()})


def ones_of(view: AttackView) -> tuple[Tensor, int]:
    """Return how many messages it reads say 1, ``(d,)`` int64, and how many messages there are.

    If no client of the round is benign, its own honest messages stand in for theirs.
    """
    view.notes["benign"] = len(view.seen)
    read = bits_of(view.seen if len(view.seen) else view.own)
    return read.sum(dim=0), len(read)


class MaskVotes(Reader):
    """Colluders send bits that follow a changed share of ones.

    ``theta (d,)`` is the share of the messages read whose bit is 1, float64. Floats stay honest.

    Args:
        how: ``sample``: each colluder draws its own bits; ``threshold``: all the most probable.
        density: ``benign``: as many ones as the messages read, their mean rounded, over the whole
            message (a mask does not say where a layer ends); ``free``: what the probabilities give.
    """

    accepts = (BinaryMasks, SignBits)

    how: Literal["sample", "threshold"]
    density: Literal["benign", "free"]

    def changed(self, view: AttackView, theta: Tensor) -> Tensor:
        """Return the probabilities ``(d,)`` of a 1 that the colluders follow."""
        raise NotImplementedError

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Draw or threshold the changed probabilities.

        With ``density=benign`` exactly so many bits are 1: the most probable ones, equals in an
        order of the adversary's key, or a sample of that size, the largest of ``logit(theta) +
        logistic noise``. A Bernoulli sample is where that sum is above 0; another cut shifts all
        log-odds alike (Pareto sampling: Rosen, Journal of Statistical Planning and Inference 62,
        1997).
        """
        counts, b = ones_of(view)
        theta = self.changed(view, counts.double() / b)
        ones = round(float(counts.sum()) / b)
        rows = len(view.own)
        key = view.key.fold("mask")
        if self.density == "free" and self.how == "threshold":
            bits = theta[None] > 0.5
        elif self.density == "free":
            bits = key.bernoulli(theta.expand(rows, -1))
        elif self.how == "threshold":
            tie = key.uniform(len(theta), device=theta.device)
            bits = largest((theta + 1e-6 * tie)[None], ones)
        else:
            bits = largest(_log_odds(theta, key, rows), ones)
        return with_bits(view.own, bits), memory


def _log_odds(theta: Tensor, key: Key, rows: int) -> Tensor:
    """Return ``(rows, d)``; the clip keeps certain bits certain: 24-bit draws reach +-17.4 only."""
    u = key.uniform(rows, len(theta), device=theta.device).double() + 2.0**-25
    return torch.logit(theta, eps=1e-16) + torch.logit(u)
