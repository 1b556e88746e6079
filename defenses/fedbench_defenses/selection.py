"""Rules that average the rows which their squared distances choose."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Defense, ServerView
from fedbench.payload import KeptMessages, Payload

from .distances import squared_distances
from .mean import mean_of


@dataclass(frozen=True, kw_only=True)
class Selection(Defense[None]):
    """Average the rows that `select` chooses, and note them. Ignores the clients' sizes."""

    @abstractmethod
    def select(self, squared: Tensor) -> Tensor:
        """Return the averaged rows ``(n,)`` bool, given squared distances ``(n, n)``."""

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        chosen = self.select(squared_distances(x))
        view.findings.kept = chosen.cpu()
        return mean_of(x, view.findings.kept.nonzero()[:, 0]), None

    def aggregate_kept(
        self, received: KeptMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        chosen = self.select(squared_distances(received))
        view.findings.kept = chosen.cpu()
        return received.take(view.findings.kept.nonzero()[:, 0]).mean(), None
