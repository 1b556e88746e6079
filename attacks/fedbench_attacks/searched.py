"""What the attacks share that search for their strength."""

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
        knows: Whose messages it reads: those of the benign clients (``all``), or those of its own
            clients as if honest (``colluders``), which then stand in for the others' in what it
            asks the rule.
        bound: Longest ``gamma * push``, in root mean square lengths of the messages that it knows.
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
        """The messages that it reads, and the rule."""
        return Knowledge(self.knows, defense=True)

    @abstractmethod
    def push(self, view: AttackView, known: Tensor, mean: Tensor) -> Tensor:
        """``(k,)``: where to."""

    def found(self, trials: Trials) -> Search:
        """Find how far: the gamma of most damage."""
        return trials.exact(self.bound, "any", self.sides)

    def rows(self, view: AttackView, known: Tensor) -> Tensor:
        """``mean + gamma * push``."""
        mean = known.mean(dim=0)
        push = self.push(view, known, mean)
        trials = Trials(view, known, mean, push, sender(view, self.via), self.eot, self.knows)
        found = self.found(trials)
        view.notes.update({"gamma": found.gamma} | found.notes)
        view.trace.extend(found.trace)
        return mean + found.gamma * push
