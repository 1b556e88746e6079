"""Masks at the end of their range."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fedbench.api import Attack, AttackView, Choices
from fedbench.core.errors import require
from fedbench.core.order_statistics import largest
from fedbench.payload import BinaryMasks, NoiseMasks, Payload, SignBits

from .bits import bits_of, with_bits


@dataclass(frozen=True, kw_only=True)
class Saturation(Attack):
    """Every malicious client sends all ones, all zeros, or ones where its own message has none.

    ``disjoint``: ``round(density * d)`` ones, drawn first from the zeros of the own bits and, only
    if these run out, from its ones. No mask of this density overlaps less with the own mask. Floats
    and seeds stay honest.

    Args:
        kind: ``ones``, ``zeros`` or ``disjoint``.
        density: Share of ones of ``disjoint``; None: as many as the own message.

    References:
        None: proposed here. The idea is that a mask's density is the client's to choose.
    """

    accepts = (BinaryMasks, NoiseMasks, SignBits)
    choices: ClassVar[Choices] = {"kind": ("zeros", "disjoint")}

    kind: Literal["ones", "zeros", "disjoint"] = "ones"
    density: float | None = None

    def __post_init__(self) -> None:
        legal = self.density is None or 0 <= self.density <= 1
        require("Saturation.density", self.density, legal, "None or in [0, 1]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send the same bit everywhere, or bits that the own message has not."""
        own = bits_of(view.own)
        rows, d = own.shape
        if self.kind != "disjoint":
            return with_bits(view.own, torch.full_like(own, self.kind == "ones")), memory
        chosen = torch.empty_like(own)
        for row in range(rows):
            order = view.key.fold("disjoint", row).uniform(d, device=own.device)
            density = self.density
            ones = int(own[row].sum()) if density is None else round(density * d)
            chosen[row] = largest((order - own[row].float())[None], ones)[0]
        return with_bits(view.own, chosen), memory
