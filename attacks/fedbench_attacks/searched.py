"""Attacks that leave the mean as far as hurts the server's rule most."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedbench.api import AttackView, Choices, Knowledge
from fedbench.core.errors import require

from .crafted import Crafted, direction, mirrored, sender
from .search import Search
from .trials import Trials


@dataclass(frozen=True, kw_only=True)
class Searched(Crafted):
    """All colluders send ``mean + gamma * push``, with a gamma that is sought over the rule.

    Messages of its own clients (``knows=colluders``) stand in for the others' when it queries the
    rule. With a single message a deviation falls back to the sign of the mean, recorded.

    Args:
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
        return Knowledge(self.knows, defense=True)

    @abstractmethod
    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        """Return the direction ``(k,)`` in which the mean is left."""

    def strength(self, trials: Trials) -> Search:
        return trials.exact(self.bound, "any", self.sides)

    def rows(self, view: AttackView, honest: Tensor) -> Tensor:
        mean = honest.mean(dim=0)
        push = self.push(view, honest, mean)
        trials = Trials(view, honest, mean, push, sender(view, self.via), self.eot, self.knows)
        search = self.strength(trials)
        view.notes.update({"gamma": search.gamma} | search.notes)
        view.trace.extend(search.trace)
        return mean + search.gamma * push


@dataclass(frozen=True, kw_only=True)
class DynOpt(Searched):
    """All colluders send ``mean + gamma * direction`` with the gamma that hurts this rule most.

    The direction is minus the standard deviation (ddof 1) of the messages it reads, minus the sign
    of their mean, or minus their mean over its norm. The search for gamma depends on the traits
    that the rule declares, never on its name:

    - it selects rows (Krum family): the gamma of most damage at which it selects a colluder, be it
      one or all of them (``selected=most``); or, as in the paper, the supremum of the gammas that
      get all colluders selected, or nobody else where it selects fewer (``all``);
    - it saturates (trimmed mean, median): the smallest gamma whose damage ``|agg - mean|`` is
      within a relative 1e-6 of its limit;
    - it has no breakdown point against so many colluders (mean), or no row of the round is honest:
      ``bound``, without a search;
    - the alphabet is discrete, or the rule has none of these traits: the most damage on a grid of
      gammas about the spread of the rows, refined around the best.

    ``search=published`` starts at ``start``, halves its step, and accepts when all colluders are
    selected or when the damage is larger than *in the previous trial*. It can reach no gamma above
    ``2 * start``, and on a rule that saturates it returns ``start`` (A5, D19).

    Args:
        direction: ``std``, ``sign`` (leaves rankings alone: positions are positive) or ``unit``.
        search: ``exact`` (above) or ``published``.
        selected: Against a rule that selects rows: ``most`` or ``all`` (above).
        start: First gamma of the published search; its notebooks use 3, 5, 10, 20 and 50.

    References:
        Shejwalkar and Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks
        and Defenses for Federated Learning", NDSS 2021, section IV-B, equation 2 and Algorithm 1;
        called DYN-OPT in Shejwalkar et al., "Back to the Drawing Board", IEEE S&P 2022,
        https://arxiv.org/abs/2108.10241.
    """

    choices: ClassVar[Choices] = {"direction": ("sign", "unit"), "via": ("wire",)}

    direction: Literal["std", "sign", "unit"] = "std"
    search: Literal["exact", "published"] = "exact"
    selected: Literal["most", "all"] = "most"
    start: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("DynOpt.start", self.start, self.start > 0, "> 0")

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return direction(view, honest, mean, self.direction)

    def strength(self, trials: Trials) -> Search:
        if self.search == "published":
            return trials.published(self.start)
        return trials.exact(self.bound, self.selected, self.sides)


@dataclass(frozen=True, kw_only=True)
class OptALIE(Searched):
    """All colluders send ``mean - gamma * std`` (ddof 1), with the gamma of most damage.

    Damage is ``|agg - mean|``, and a negative gamma, on the other side of the mean, is played where
    it does more. Unlike `DynOpt` it does not insist that a rule that selects rows takes a
    colluder's. Where damage has no limit, ``bound`` is played.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, section on experiments, where the strength
        of this attack is optimized by a line search.
    """

    sides: ClassVar[tuple[int, ...]] = (1, -1)

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return direction(view, honest, mean, "std")


@dataclass(frozen=True, kw_only=True)
class OptIPM(Searched):
    """All colluders send ``(1 - gamma) * mean``, with the gamma of most damage ``|agg - mean|``.

    So ``eps = gamma - 1`` in the letters of `IPM`: a gamma below 1 only shrinks the mean, of masks
    towards 1/2. Where damage has no limit, ``bound`` is played.

    References:
        Allouah et al., "Fixing by Mixing: A Recipe for Optimal Byzantine ML under Heterogeneity",
        AISTATS 2023, https://arxiv.org/abs/2302.01772, section on experiments, where the strength
        of this attack ("fall of empires") is optimized by a line search.
    """

    def push(self, view: AttackView, honest: Tensor, mean: Tensor) -> Tensor:
        return mirrored(view, mean, 0.0) - mean
