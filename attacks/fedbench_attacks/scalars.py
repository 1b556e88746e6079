"""Attacks on scalars along public directions: lies, the choice of directions, and replay."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedbench.api import Attack, AttackView, Choices, Knowledge
from fedbench.core.errors import require
from fedbench.core.trees import Tree
from fedbench.payload import Payload, Scalars


@dataclass(frozen=True, kw_only=True)
class SpanAscent(Attack):
    """Colluders send the scalars of steepest ascent, along the directions that raise the loss most.

    ``tau a / |a|`` with ``a = dL/ds`` at the model that was received: the exact slopes of the loss
    of all their samples in the ``k`` scalars, by one backward pass, where an honest client knows
    only noisy ones along the directions that it drew. ``tau`` is ``scale`` times the mean norm of
    their honest messages. With ``directions=best`` all of them spend a message's scalars on the
    largest ``|a|``; with ``own`` each keeps the directions of its honest message, so that only
    the scalars lie. Where a message holds all scalars both are the same.

    Args:
        scale: Length, relative to honest messages.
        directions: ``best`` or ``own``.

    References:
        None: proposed here. Lies along the sign of honest scalars are `SignFlip`.
    """

    accepts = (Scalars,)
    choices: ClassVar[Choices] = {"scale": (3.0, 10.0), "directions": ("own",)}

    scale: float = 1.0
    directions: Literal["best", "own"] = "best"

    def __post_init__(self) -> None:
        require("SpanAscent.scale", self.scale, self.scale > 0, "> 0")

    def needs(self) -> Knowledge:
        return Knowledge("colluders", data=True)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        assert view.rehearsal is not None
        honest = view.own.values().to(torch.float64)
        slopes = view.gradient(view.ahead(), view.rehearsal.x, view.rehearsal.y)
        rows = slopes.to(honest).nan_to_num(0.0, 0.0, 0.0).expand_as(honest)
        if self.directions == "own":
            rows = torch.where(honest != 0, rows, 0.0)
        rows = view.own.nearest(rows).values().to(torch.float64)
        tau = self.scale * vector_norm(honest, dim=1).nan_to_num(0.0, 0.0, 0.0).mean()
        view.notes["tau"] = float(tau)
        length = vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-30)
        return view.own.nearest(tau * rows / length), memory


@dataclass(frozen=True, kw_only=True)
class ReplayedScalars(Attack):
    """Every malicious client sends what it would have sent ``lag`` of its rounds ago.

    The scalars were honest and have an honest size, but stand for slopes of another model, and
    where directions are new in each round for slopes along none of these. Until there is such a
    message it sends the honest one. Only rounds in which the client is sampled count.

    Args:
        lag: Rounds of the client between the message and its replay.

    References:
        None: proposed here. The replay of the server's last step is `FreeRider`.
    """

    accepts = (Scalars,)
    choices: ClassVar[Choices] = {"lag": (5, 20)}

    lag: int = 1

    def __post_init__(self) -> None:
        require("ReplayedScalars.lag", self.lag, self.lag >= 1, ">= 1")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        assert isinstance(view.own, Scalars)
        past = [*(memory or ()), view.own.x.clone()]
        replayed = len(past) > self.lag
        view.notes["replayed"] = replayed
        sent = dataclasses.replace(view.own, x=past[0]) if replayed else view.own
        return sent, past[-self.lag :]


def tree_after(view: AttackView, answer: Tensor) -> Tree:
    """Return the tree in which to take the gradient after the rule's ``answer (k,)``.

    It is what a client then gets. Where scalars are also what clients train, it is what a client
    got in this round, moved by the answer: the same model, but along the directions of the messages
    that are being crafted. Where directions are new in every round (DeComFL), what a client gets
    next says nothing of these.
    """
    assert view.rehearsal is not None
    if isinstance(view.own, Scalars):
        tree = view.ahead()
        names = view.rehearsal.names
        if [tree[name].shape for name in names] == [answer.shape]:
            return tree | {name: answer.to(tree[name]) for name in names}
    return view.ahead(answer)
