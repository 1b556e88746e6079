"""Rules that average the rows which their squared distances choose."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedbench.api import ServerView
from fedbench.payload import Rows

from .distances import Geometric, squared_distances
from .mean import mean_of


@dataclass(frozen=True, kw_only=True)
class Selection(Geometric[None]):
    """Average the rows that `select` chooses, and note them. Ignores the clients' sizes."""

    @abstractmethod
    def select(self, squared: Tensor) -> Tensor:
        """Return the averaged rows ``(n,)`` bool, given squared distances ``(n, n)``."""

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        chosen = self.select(squared_distances(x))
        view.findings.kept = chosen.cpu()
        return mean_of(x, view.findings.kept.nonzero()[:, 0]), None
