"""DBA, a backdoor whose trigger is distributed over the colluders."""

from dataclasses import dataclass

from fedbench.api import Local
from fedbench.core.errors import require

from .pixel import Pixel


@dataclass(frozen=True, kw_only=True)
class DBA(Pixel):
    """Each colluder stamps one of ``pieces`` strips of `Pixel`'s square, which is the trigger.

    Strips are rows of the square from its top, ``size / pieces`` of them each, rounded. Number
    ``part`` of the adversary's clients stamps strip ``part mod pieces`` in every round. The paper's
    pieces are bars with gaps between them, and its colluders scale what they send; here the pieces
    touch, and nothing is scaled.

    Args:
        pieces: Number of strips; no more than the square has rows.
        size: Height and width of the whole square, in pixels.

    References:
        Xie et al., "DBA: Distributed Backdoor Attacks against Federated Learning", ICLR 2020,
        https://openreview.net/forum?id=rkgyS0VFvr, section 3.
    """

    pieces: int = 4
    size: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 1 <= self.pieces <= self.size
        require("DBA.pieces", self.pieces, fits, f"in [1, size = {self.size}]")

    def rows(self, local: Local) -> tuple[int, int]:
        piece = local.part % self.pieces
        return self.size * piece // self.pieces, self.size * (piece + 1) // self.pieces
