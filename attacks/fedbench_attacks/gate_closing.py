"""Closing the gates that the others want open."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.order_statistics import largest
from fedbench.payload import GatedVectors, Payload
from fedbench.payload.sparse import Gating, governed

from .crafted import Reader


def weight_behind(x: Tensor, layers: Gating, gates: int) -> Tensor:
    """Return the sum of squares ``(G,)`` of the coordinates of ``x (d,)`` that each gate governs.

    >>> two_by_three = ((2, 3), ((0, 0, 1), (1, 2, 1)))
    >>> weight_behind(torch.tensor([1.0, 2, 3, 0, 0, 1]), (two_by_three,), 5).tolist()
    [14.0, 1.0, 1.0, 4.0, 10.0]
    """
    out = x.new_zeros(gates)
    first = 0
    for shape, governors in layers:
        part = x[first : first + math.prod(shape)].reshape(shape).square()
        first += math.prod(shape)
        for axis, start, repeat in governors:
            own = part.transpose(0, axis).reshape(shape[axis] // repeat, -1).sum(dim=1)
            out[start : start + len(own)] += own
    return out


@dataclass(frozen=True, kw_only=True)
class GateClosing(Reader):
    """Colluders close the gates that more than half of the messages they read keep open.

    With ``stealth`` a message has as many closed gates as the messages read, their mean rounded: of
    those that the majority keeps open the ones with the most behind them (sum of squares of the
    mean weights), then of the rest. Behind an open gate are the own weights, 0 where it was closed.

    Args:
        stealth: Close no more gates than the others do.

    References:
        None: proposed here. The idea is that FedSparse's gates are votes on what is pruned.
    """

    accepts = (GatedVectors,)
    choices: ClassVar[Choices] = {"stealth": (True,)}

    stealth: bool = False
    knows: Literal["colluders", "all"] = "all"

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own: Any = view.own
        others: Any = view.seen if len(view.seen) else own
        b, count = others.gates.shape
        wanted = 2 * others.gates.sum(dim=0) > b
        gates = own.gates & ~wanted
        if self.stealth and count:  # a network of one layer may have no gates
            mean = others.x.nan_to_num(0.0, 0.0, 0.0).mean(dim=0)
            behind = weight_behind(mean.double(), own.layers, count)
            closed = round(float((~others.gates).sum()) / b)
            score = torch.where(wanted, behind, behind - behind.max() - 1)
            gates = ~largest(score[None], closed).expand(len(own), -1)
        view.notes["closed"] = int((wanted & ~gates).sum(dim=1).max())
        x = torch.where(governed(gates, own.layers), own.x, 0.0)
        return dataclasses.replace(own, gates=gates.clone(), x=x), memory
