"""A rule whose server knows how many rows are malicious, as an upper bound."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.api import Chain, Defense, Prefilter, ServerView, Traits
from fedbench.core.errors import ConfigError
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class Oracle(Prefilter):
    """Give the rule the true number of malicious rows of each round as its ``f``.

    An upper bound that no server has: many papers' numbers are of such servers. It stands in front
    of prefilters that mix rows: ``oracle+bucketing+krum``.

    References:
        Proposed here; servers that are told so are in the code of Shejwalkar and Houmansadr, NDSS
        2021, https://github.com/vrt1shjwlkr/NDSS21-Model-Poisoning.
    """

    mixes = False
    real = False

    def traits(self) -> Traits:
        return Traits(oracle=True, mean_at_zero=True, sharp=False)

    def before(self, rule: Defense[Any]) -> Chain:
        return Informed(self, rule)

    def rows_needed(self, rule: Defense[Any]) -> int:
        return rule.assuming(0).rows_needed()

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        """Return the most ``f`` that the rule may be told and tolerates, as all fewer ones."""
        for f in range(1, n):
            assuming = rule.assuming(f)
            if assuming.rows_needed() > n or assuming.tolerates(n) < f:
                return f - 1
        return max(n - 1, 0)

    def sensitivity(self, clip: float, n: int, rule: Defense[Any]) -> float | None:
        """Return the rule's, if it has no ``f``: another row may be another ``f``."""
        return rule.sensitivity(clip, n) if rule.assuming(0) == rule.assuming(1) else None

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        return received, torch.arange(len(received))


@dataclass(frozen=True)
class Informed(Chain, chain=True):
    """Chain behind an `Oracle`, with every ``f`` replaced by the truth of the round."""

    def declared(self, f: int) -> Self:
        return self  # what the server is prepared for is not what it is told

    def most_rows(self) -> int | None:
        return self.rule.assuming(0).most_rows()

    def ready(self, view: ServerView) -> bool:
        return self._told(view).ready(view)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        """Aggregate with the number of malicious rows, and without saying which they are."""
        rule = self._told(view)
        blind = dataclasses.replace(view, truth=None)  # and the same findings
        return rule.aggregate(received, state, blind)

    def _told(self, view: ServerView) -> Defense[Any]:
        if view.truth is None:
            raise ConfigError(
                "--defense oracle must be told the truth and come before prefilters that mix rows, "
                "got no truth; use oracle+bucketing+... and not bucketing+oracle+..."
            )
        return self.rule.assuming(int(view.truth.sum()))
