"""Observer of what the server's rule receives and returns in a run."""

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedbench.api import Defense, ServerView
from fedbench.experiment.setup import Setup
from fedbench.payload import Payload, Spec

Observe = Callable[[Payload, Tensor, ServerView], None]


@dataclasses.dataclass(frozen=True, eq=False)
class Watched(Defense[Any]):
    """The server's rule, with an observer of its input, output and view."""

    rule: Defense[Any]
    observe: Observe

    def init(self, spec: Spec) -> Any:
        return self.rule.init(spec)

    def rows_needed(self) -> int:
        return self.rule.rows_needed()

    def tolerates(self, n: int) -> int:
        return self.rule.tolerates(n)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        aggregate, state = self.rule.aggregate(received, state, view)
        self.observe(received, aggregate, view)
        return aggregate, state


def watched(setup: Setup, observe: Observe) -> Setup:
    """Return the run with an observer at the server, which skips rounds with too few rows."""
    plugins = dataclasses.replace(setup.plugins, defense=Watched(setup.plugins.defense, observe))
    return dataclasses.replace(setup, plugins=plugins)
