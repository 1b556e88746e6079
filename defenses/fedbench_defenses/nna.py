"""Nearest-neighbour averaging (NNA), the rule of MoNNA."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.payload import Rows

from .distances import Geometric, combine, norms, smallest


@dataclass(frozen=True, kw_only=True)
class NNA(Geometric[None]):
    """Average the server's own message and the ``n - f`` rows nearest to it.

    In the paper there is no server: each of ``N`` nodes averages the ``N - f`` models nearest to
    its own, that one included. Here the server is one more node, ``N = n + 1``, whose message comes
    from its root data, as FLTrust's does; all start a round from one model, so that distances of
    models are those of messages. MoNNA is NNA of nodes whose steps have momentum, which is the
    protocol's part (`worker-momentum`). ByzFL's MoNNA measures from the row whose index it is
    given: ours where that row is the server's. Rows that tie for the last places share them.
    Ignores the clients' sizes.

    The paper's text was not at hand beyond its abstract; the rule is as its authors' code has it.

    Args:
        f: Malicious rows the server is prepared for; ``n + 1 >= 2 f + 1``.

    References:
        Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan, "Robust Collaborative Learning with
        Linear Gradient Overhead", ICML 2023, https://arxiv.org/abs/2209.10931, nearest-neighbor
        averaging (NNA).
    """

    pairs: ClassVar[bool] = False
    f: int | None = None

    def traits(self) -> Traits:
        """Declare no symmetry: the server's message is not moved with the rows."""
        return Traits(root=True, detects=True, shift=False, scale=False)

    def rows_needed(self) -> int:
        return max(2 * (self.f or 0), 1)

    def tolerates(self, n: int) -> int:
        return min(self.f or 0, n - 1)

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        assert view.root is not None
        own = view.root.values()[0]
        count = len(x) - (self.f or 0)
        share = smallest(norms(x, own), count).cpu()
        view.findings.kept = share > 0
        return combine(share / (count + 1), x, own), None
