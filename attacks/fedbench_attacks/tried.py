"""Messages that the adaptive attack has tried, in this round and before."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedbench.payload import Payload


@dataclass(eq=False)
class Past:
    """Memory of the attack from round to round."""

    gain: dict[str, float] = field(default_factory=dict)  # loss that a candidate has added
    strength: dict[str, float] = field(default_factory=dict)  # best push in a direction
    pull: Tensor | None = None  # (d,) average of past gradients, each of length 1
    memories: dict[str, Any] = field(default_factory=dict)  # of installed attacks


@dataclass(frozen=True, eq=False)
class Tried:
    """Messages that were tried."""

    name: str
    sent: Payload
    answer: Tensor  # (k,) of the rule
    loss: float  # of the model that is then deployed
    row: Tensor | None = None  # (k,) that was sent, of a push
    again: "Again | None" = None  # of a crossing: try the same along another gradient


Again = Callable[[Tensor], Tried]
