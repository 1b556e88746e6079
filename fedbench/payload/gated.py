"""Floats behind gates: what a closed gate governs is zero, and is not sent."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload import packets as wire
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import Packet, Part

Governor = tuple[int, int, int]  # axis, first gate, coordinates a gate
Gating = tuple[tuple[tuple[int, ...], tuple[Governor, ...]], ...]  # of layers: shape, governors


def governed(gates: Tensor, layers: Gating) -> Tensor:
    """Return for each coordinate the product of the ``gates (n, G)`` that govern it, ``(n, d)``.

    Of bools that is "all open", of independent probabilities the probability of that. A governor
    ``(axis, start, repeat)`` puts coordinate ``i`` along ``axis`` behind gate
    ``start + i // repeat``; a layer without governors is always open.

    >>> two_by_three = ((2, 3), ((0, 0, 1), (1, 2, 1)))  # a gate each row, then one each column
    >>> governed(torch.tensor([[1, 0, 1, 0, 1]]).bool(), (two_by_three,)).int().tolist()
    [[1, 0, 1, 0, 0, 0]]
    """
    n = len(gates)
    parts = []
    for shape, governors in layers:
        product = gates.new_ones(n, *(1 for _ in shape))
        for axis, start, repeat in governors:
            own = gates[:, start : start + shape[axis] // repeat].repeat_interleave(repeat, dim=1)
            along = [1] * len(shape)
            along[axis] = shape[axis]
            product = product * own.reshape(n, *along)
        parts.append(product.expand(n, *shape).reshape(n, math.prod(shape)))
    return torch.cat(parts, dim=1) if parts else gates[:, :0]


@dataclass(frozen=True, eq=False)
class GatedVectors(Payload):
    """``gates (n, G)`` bool, ``x (n, d)`` float32 behind them, ``rest (n, p)`` float32 behind none.

    On the wire 32 bits for each open coordinate of ``x`` and each of ``rest``, then G of gates.
    """

    aligned = False

    gates: Tensor  # True where a gate is open
    x: Tensor  # zero where a gate is closed
    rest: Tensor  # parameters that have no gate; often ``p = 0``
    layers: Gating  # of ``x``, see `governed`

    def is_open(self) -> Tensor:
        """Return the coordinates ``(n, d)`` bool behind open gates."""
        return governed(self.gates, self.layers)

    def check(self) -> None:
        d = sum(math.prod(shape) for shape, _ in self.layers)
        rest = ("p", torch.float32)
        require_form(self, gates=("G", torch.bool), x=(d, torch.float32), rest=rest)
        if bool(((self.x != 0) & ~self.is_open()).any()):
            raise IllegalPayloadError("GatedVectors.x must be 0 behind a closed gate")

    def fixed(self) -> tuple[int, float]:
        return self.gates.shape[1], 0.5

    def values(self) -> Tensor:
        """Return gates as 0 or 1, then the floats, ``(n, G + d + p)`` float32."""
        return torch.cat([self.gates.to(torch.float32), self.x, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Open the gates above 1/2, then return what is behind open gates.

        Gates first: what is closest in L2 over both is a combinatorial problem where two gates
        govern a coordinate, and would weigh gates by the scale of the weights. NaN closes.
        """
        g, d = self.gates.shape[1], self.x.shape[1]
        gates = values[:, :g] > 0.5
        x = values[:, g : g + d].to(torch.float32)
        x = torch.where(governed(gates, self.layers), x, torch.zeros_like(x))
        return type(self)(gates, x, values[:, g + d :].to(torch.float32), self.layers)

    def parts(self) -> list[list[Part]]:
        rows = zip(self.is_open(), self.x, strict=True)
        sent = [wire.number_bytes(wire.behind(is_open, x)[None])[0] for is_open, x in rows]
        gates = [(np.packbits(row), len(row)) for row in self.gates.cpu().numpy()]
        return [sent, wire.number_bytes(self.rest), gates]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (g,), (p,), layers = spec["gates"], spec["rest"], spec["layers"]
        floats = len(packet.data) - -(-g // 8)
        if floats < 4 * p:
            raise IllegalPayloadError(f"a gated vector must have {p} floats and {g} gates")
        entries, rest, bitmap = wire.split(packet, [8 * floats - 32 * p, 32 * p, g])
        gates = wire.bits_of(bitmap, g)
        is_open = governed(gates, layers)
        if (size := 4 * int(is_open.sum())) != len(entries):
            raise IllegalPayloadError(f"open gates must have {size} bytes, got {len(entries)}")
        x = wire.placed(is_open, wire.floats_of(entries))
        return cls(gates, x, wire.floats_of(rest), layers)
