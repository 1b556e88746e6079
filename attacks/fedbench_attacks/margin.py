"""Votes on the coordinates whose decision can still be overturned."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.payload import BinaryMasks, Payload, SignBits

from .bits import ones_of, with_bits
from .crafted import Reader

TIES = {"stays": 0, "up": 1, "down": -1}


def decided(ones: Tensor, rows: int, tie: int) -> Tensor:
    """Return the decision ``(d,)`` in -1, 0, 1 of ``ones`` among ``rows`` votes, or the tie."""
    sign = torch.sign(2 * ones - rows)
    return torch.where(sign == 0, tie, sign)


@dataclass(frozen=True, kw_only=True)
class Margin(Reader):
    """All colluders vote against the benign majority wherever that changes its decision.

    With S ones among b benign votes, a count decides ``sign(2 S - b)``, and with c ones among m
    colluders ``sign(2 (S + c) - (b + m))``. That grows with c, so if any c changes the decision,
    c = 0 or c = m does, and coordinates do not constrain each other: no choice of the m d bits
    changes more decisions than all against the benign decision where that is enough. Elsewhere
    colluders send what the benign clients decided, and cannot be told from them.

    Where the server decides nothing (FedPM, the mean of signs), ``rest=against`` moves it furthest
    in every norm, since the mean is linear in c. A cut at a rank, as in `TopKMask`, is not a count.
    All clients count the same. Floats stay honest.

    Args:
        tie: Decision of as many ones as zeros: the coordinate ``stays`` (signs by default), is 1
            (``up``) or 0 (``down``, masks by default, which keep what is strictly above 1/2). A
            server that throws a coin is best met by ``stays``.
        rest: Where no choice changes anything: ``honest``, or ``against`` all the same.
        knows: Whose messages stand for the benign ones: those of ``all`` benign clients, which the
            optimum needs, or those of the ``colluders`` as if honest, taken for a sample of them.

    References:
        None: proposed here. The idea is DYN-OPT for votes: spend them where they decide.
    """

    accepts = (BinaryMasks, SignBits)
    choices: ClassVar[Choices] = {"rest": ("against",)}

    tie: Literal["alphabet", "stays", "up", "down"] = "alphabet"
    rest: Literal["honest", "against"] = "honest"
    knows: Literal["colluders", "all"] = "all"

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Vote against the benign decision where that is enough."""
        m = len(view.own)
        counts, b = ones_of(view)
        if self.knows == "colluders" and view.n > m:
            counts = (counts * (view.n - m) / b).round().long()
            b = view.n - m
        usual = "stays" if isinstance(view.own, SignBits) else "down"
        tie = TIES[usual if self.tie == "alphabet" else self.tie]
        honest = decided(counts, b, tie)
        against = honest <= 0  # also where a tie stays: there any unanimous vote decides
        changes = decided(counts + m * against, b + m, tie) != honest
        view.notes["overturned"] = int(changes.sum())
        bits = against if self.rest == "against" else torch.where(changes, against, ~against)
        return with_bits(view.own, bits), memory
