"""DYN-OPT, the attack that is tailored to the server's rule."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require

from .crafted import direction
from .search import Search
from .trials import Searched, Trials


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
    ``2 * start``, and on a rule that saturates it returns ``start`` (A5, D19). The record says when
    our search ended on its bound.

    A single message has no deviation: ``std`` then falls back to ``sign``, recorded. If no client
    of the round is benign, its own honest messages stand in for theirs.

    Args:
        direction: ``std``, ``sign`` or ``unit``.
        search: ``exact`` (above) or ``published``.
        selected: Against a rule that selects rows: ``most`` or ``all`` (above).
        bound: Longest ``gamma * direction``, in root mean square lengths of the messages it reads.
            (Positions are positive: the direction ``sign`` leaves rankings alone.)
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
        """Return the gamma that is right for this rule, or where the published search ends."""
        if self.search == "published":
            return trials.published(self.start)
        return trials.exact(self.bound, self.selected, self.sides)
