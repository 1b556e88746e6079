"""What the attacks in real space share: whose messages they know, and how they send."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Knowledge
from fedbench.core.tiling import finite_rows, tiles
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class Crafted(Attack):
    """An attack that makes rows of real numbers out of the honest rows that it knows.

    Args:
        knows: Whose messages it reads: those of its own clients as if honest (``colluders``), or
            those of the benign clients (``all``).
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest legal
            message with the honest headers, also where a message has other values than what is
            compressed (recorded).
    """

    knows: Literal["colluders", "all"] = "all"
    via: Literal["codec", "wire"] = "codec"

    def needs(self) -> Knowledge:
        """The messages that it reads."""
        return Knowledge(self.knows)

    @abstractmethod
    def rows(self, view: AttackView, known: Tensor) -> Tensor:
        """``(k,)`` for all colluders, or ``(m, k)``, from the known rows ``(b, k)``, ``b >= 1``."""

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """What `rows` says; the honest messages if nothing finite is known."""
        known = known_rows(view)
        if known is None:
            return view.own, memory
        return sender(view, self.via)(self.rows(view, known)), memory


def known_rows(view: AttackView) -> Tensor | None:
    """``(b, k)`` float32: finite rows of what it may read; None if there are none, recorded.

    If no client of the round is benign, its own honest messages stand in for theirs.
    """
    view.notes["benign"] = len(view.seen)
    known = view.seen if len(view.seen) else view.own
    values = known.values().to(torch.float32)
    finite = finite_rows(values)
    values = values if bool(finite.all()) else values[finite]
    if len(values):
        return values
    view.notes["ended"] = "nothing finite to start from"
    return None


def sender(view: AttackView, via: Literal["codec", "wire"]) -> Callable[[Tensor], Payload]:
    """From rows ``(k,)`` or ``(m, k)`` to the messages of all ``m`` colluders, one way or another.

    Codecs compress rows of ``d`` numbers: where `values` are not these, only the wire is left.
    """
    k = view.own.values().shape[1]
    by_wire = via == "wire" or not view.own.aligned or k != view.updates.shape[1]
    view.notes["via"] = "wire" if by_wire else "codec"

    def send(rows: Tensor) -> Payload:
        rows = rows.expand(len(view.own), -1)
        return view.own.nearest(rows) if by_wire else view.compress(rows)

    return send


def mirrored(view: AttackView, row: Tensor, scale: float) -> Tensor:
    """``(k,)``: ``-scale`` times ``row (k,)``; of masks and probabilities, mirrored at 1/2.

    What cannot be mirrored, gates for instance, stays. Scale 0 is the middle of the alphabet.
    """
    return view.own.opposite(row[None], scale)[0]


def deviation(rows: Tensor, mean: Tensor) -> Tensor:
    """``(k,)``: standard deviation (ddof 1) of ``rows (b, k)``, of at least two.

    ``torch.std`` is slow: benchmarks/shortcuts.py.
    """
    squares = [(x - middle).square_().sum(dim=0) for x, middle in tiles(rows, mean)]
    return torch.cat(squares).div_(len(rows) - 1).sqrt_()


def direction(
    view: AttackView, rows: Tensor, mean: Tensor, kind: Literal["std", "sign", "unit"]
) -> Tensor:
    """``(k,)``: minus the deviation, minus the sign of the mean, or minus the mean over its norm.

    Fewer than two rows have no deviation: ``std`` then falls back to ``sign``, recorded.
    """
    if kind == "std" and len(rows) < 2:
        kind = "sign"
        view.notes["direction"] = kind
    if kind == "std":
        return -deviation(rows, mean)
    if kind == "sign":
        return -torch.sign(mean)
    unit: Tensor = mean / torch.linalg.vector_norm(mean).clamp_min(1e-30)
    return -unit
