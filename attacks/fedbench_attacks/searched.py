"""Attacks that search for their strength."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedbench.api import AttackView, Knowledge
from fedbench.core.errors import require

from .crafted import Crafted, sender
from .search import Search
from .trials import Trials


@dataclass(frozen=True, kw_only=True)
class Searched(Crafted):
    """All colluders send ``mean + gamma * push``, with a gamma that is sought over the rule.

    Args:
        knows: Messages it reads: those of the benign clients (``all``), or those of its own clients
            as if honest (``colluders``), which then stand in for the others' when it queries the
            rule.
        bound: Longest ``gamma * push``, in root mean square lengths of the messages it reads.
        eot: Draws of the server's randomness over which damage is averaged, for rules that have
            some (expectation over transformation).
    """

    sides: ClassVar[tuple[int, ...]] = (1,)  # -1: a negative gamma is tried, too

    bound: float = 1e5
    eot: int = 1

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(f"{name}.bound", self.bound, self.bound > 0, "> 0")
        require(f"{name}.eot", self.eot, self.eot >= 1, ">= 1")

    def needs(self) -> Knowledge:
        """Return the tier of the messages it reads, and the rule."""
        return Knowledge(self.knows, defense=True)

    @abstractmethod
    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        """Return the direction ``(k,)`` in which the mean is left."""

    def strength(self, trials: Trials) -> Search:
        """Return the gamma of most damage."""
        return trials.exact(self.bound, "any", self.sides)

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        """Return the row ``mean + gamma * push``."""
        mean = honest.mean(dim=0)
        push = self.push(view, honest, mean)
        trials = Trials(view, honest, mean, push, sender(view, self.via), self.eot, self.knows)
        search = self.strength(trials)
        view.notes.update({"gamma": search.gamma} | search.notes)
        view.trace.extend(search.trace)
        return mean + search.gamma * push
