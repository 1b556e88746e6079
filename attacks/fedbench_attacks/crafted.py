"""Attacks in real space: which messages they read, and how they send what they craft."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Knowledge
from fedbench.core.tiling import finite_rows, tiles
from fedbench.payload import Payload


class Reader(Attack):
    """Attack that reads the messages which its field ``knows`` names.

    Args:
        knows: Messages it reads: those of the benign clients (``all``), or those of its own clients
            as if honest (``colluders``).
    """

    knows: Literal["colluders", "all"]  # each subclass has the field where its ids have it

    def needs(self) -> Knowledge:
        return Knowledge(self.knows)


@dataclass(frozen=True, kw_only=True)
class Crafted(Reader):
    """Attack that makes rows of real numbers out of the honest rows it reads.

    Args:
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest legal
            message with the honest headers, also where a message has other values than what is
            compressed (recorded).
    """

    knows: Literal["colluders", "all"] = "all"
    via: Literal["codec", "wire"] = "codec"

    @abstractmethod
    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        """Return ``(k,)`` for all colluders, or ``(m, k)``, from ``honest (b, k)``, ``b >= 1``."""

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send what `rows` returns; the honest messages if none is finite."""
        honest = honest_rows(view)
        if honest is None:
            return view.own, memory
        return sender(view, self.via)(self.rows(view, honest)), memory


def honest_rows(view: AttackView) -> Tensor | None:
    """Return the finite rows ``(b, k)`` float32 of the messages read; None, recorded, without any.

    If no client of the round is benign, its own honest messages stand in for theirs.
    """
    view.notes["benign"] = len(view.seen)
    values = (view.seen if len(view.seen) else view.own).values().to(torch.float32)
    finite = finite_rows(values)
    if not bool(finite.any()):
        view.notes["ended"] = "nothing finite to start from"
        return None
    return values if bool(finite.all()) else values[finite]


def sender(view: AttackView, via: Literal["codec", "wire"]) -> Callable[[Tensor], Payload]:
    """Return the function from rows ``(k,)`` or ``(m, k)`` to the messages of all ``m`` colluders.

    A codec compresses rows of ``d`` numbers: where `values` are not these, only the wire is left.
    """
    k = view.own.values().shape[1]
    by_wire = via == "wire" or not view.own.aligned or k != view.updates.shape[1]
    view.notes["via"] = "wire" if by_wire else "codec"

    def send(rows: Tensor) -> Payload:
        rows = rows.expand(len(view.own), -1)
        return view.own.nearest(rows) if by_wire else view.compress(rows)

    return send


def mirrored(view: AttackView, row: Tensor, scale: float) -> Tensor:
    """Return ``-scale`` times ``row (k,)``; masks and probabilities are mirrored at 1/2.

    What cannot be mirrored, gates for instance, stays. Scale 0 gives the middle of the alphabet.
    """
    return view.own.opposite(row[None], scale)[0]


def deviation(rows: Tensor, mean: Tensor) -> Tensor:
    """Return the standard deviation ``(k,)``, ddof 1, of at least two ``rows (b, k)``.

    ``torch.std`` is slow: benchmarks/shortcuts.py.
    """
    squares = [(x - middle).square_().sum(dim=0) for x, middle in tiles(rows, mean)]
    return torch.cat(squares).div_(len(rows) - 1).sqrt_()


def direction(
    view: AttackView, rows: Tensor, mean: Tensor, kind: Literal["std", "sign", "unit"]
) -> Tensor:
    """Return minus the deviation, minus the sign of the mean, or minus the mean over its norm.

    A single row has no deviation: ``std`` then falls back to ``sign``, recorded.
    """
    if kind == "std" and len(rows) < 2:
        kind = "sign"
        view.notes["direction"] = kind
    if kind == "std":
        return -deviation(rows, mean)
    if kind == "sign":
        return -mean.sign()
    unit: Tensor = mean / torch.linalg.vector_norm(mean).clamp_min(1e-30)
    return -unit
