"""What an adversary does, and what it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedbench.api.defense import Defense
from fedbench.api.protocol import Alphabets, Grad, Gradient, Memory
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload

Tier = Literal["own", "colluders", "all"]
Choices = dict[str, tuple[Any, ...]]  # of a parameter, values
TIERS: tuple[Tier, ...] = ("own", "colluders", "all")


@dataclass(frozen=True)
class Knowledge:
    """What an attack must be shown, or may be.

    Args:
        tier: ``own``: each malicious client its own message; ``colluders``: those of all malicious
            clients; ``all``: those of all benign clients as well.
        defense: A snapshot of the server's rule to query.
        state: A snapshot of the server's state.
    """

    tier: Tier = "own"
    defense: bool = False
    state: bool = False

    def __str__(self) -> str:
        extras = (" + defense" if self.defense else "") + (" + state" if self.state else "")
        return self.tier + extras

    @classmethod
    def parse(cls, text: str) -> Knowledge:
        """What ``tier[+defense][+state]`` says.

        Raises:
            ConfigError: anything else.

        >>> str(Knowledge.parse("colluders+state"))
        'colluders + state'
        """
        tier, *extras = text.replace(" ", "").split("+")
        known = tier in TIERS and set(extras) <= {"defense", "state"}
        known = known and len(set(extras)) == len(extras)
        rule = "own, colluders or all, each with or without +defense and +state"
        require("--knowledge", text, known, rule)
        return cls(tier, "defense" in extras, "state" in extras)  # type: ignore[arg-type]

    def covers(self, other: Knowledge) -> bool:
        """Whoever may see this may see what ``other`` says.

        >>> Knowledge("all", defense=True).covers(Knowledge("own", state=True))
        False
        """
        return (
            TIERS.index(self.tier) >= TIERS.index(other.tier)
            and self.defense >= other.defense
            and self.state >= other.state
        )


@dataclass(frozen=True, eq=False)
class Local:
    """What a malicious client has at hand while it trains.

    Args:
        tree: What it received, to be trained.
        before: What the server sent to all clients of the last round, which anybody can hear; None
            in the first, and where each client is sent its own, however many came.
        part: Its number among the adversary's clients, from 0; the same in every round.
        parts: How many clients the adversary has.
        step: Round, from 0.
        key: Its randomness.
        classes: How many labels the task has, whichever of them this client has samples of.
    """

    tree: Tree
    before: Tree | None
    part: int
    parts: int
    step: int
    key: Key
    classes: int

    def require_label(self, subject: str, label: int) -> None:
        """Raise `ConfigError` unless the task has this label."""
        require(subject, label, label < self.classes, f"a label from 0 to {self.classes - 1}")


@dataclass(eq=False)
class Oracle:
    """The server's rule as an attack may query it.

    Args:
        rule: The defense, with its parameters.
        ask: The aggregate of a snapshot of the rule if the adversary sends these ``m`` messages and
            the benign clients theirs, with the given draw of the server's randomness. It is never
            the draw of the server, and the rule's state is left as it was, here and at the server.
            For an attack that may not read the benign messages its own honest ones, and its sizes,
            stand in for them, in turn. What the rule remembers is part of the snapshot.
        queries: How often it was asked.
    """

    rule: Defense[Any]
    ask: Callable[[Payload, int], Tensor]
    queries: int = 0

    def __call__(self, sent: Payload, draw: int = 0) -> Tensor:
        """``(k,)``, the answer of ``ask``; equal draws give equal answers."""
        self.queries += 1
        return self.ask(sent, draw)


@dataclass(frozen=True, eq=False)
class AttackView:
    """All that an attack is shown: copies, filled to the knowledge that it declares.

    Args:
        own: The messages that its ``m`` clients would have sent, trained as if honest.
        updates: ``(m, d)``, the same before compression.
        trained: ``(m, d)``, what `Attack.poison` and `Attack.wrap_grad` made of their training;
            equal to ``updates`` for an attack that has neither.
        idle: ``(m, d)``, the updates of clients that learned nothing: zeros where updates are
            differences, what was received where they are scores or probabilities.
        seen: The messages it may read: `own` for the tiers ``own`` and ``colluders``, those of the
            ``n - m`` benign clients for ``all``.
        n: Rows that the server will receive.
        broadcast: What the server sent; where each client is sent its own, those it may read.
        step: Round, from 0.
        key: The adversary's randomness.
        compress: The protocol's own message of dense ``(m, d)`` rows, nothing fed back into them.
        memories: What its clients remember, the residual of error feedback for instance.
        defense: The server's rule, if declared.
        state: The server's state, if declared.
        notes: What the attack wants recorded for this round: search results, for instance.
        trace: Trials of its search, for the record: strength, and what was sought there.
    """

    own: Payload
    updates: Tensor
    trained: Tensor
    idle: Tensor
    seen: Payload
    n: int
    broadcast: Payload
    step: int
    key: Key
    compress: Callable[[Tensor], Payload]
    memories: Sequence[Memory]
    defense: Oracle | None = None
    state: Any = None
    notes: dict[str, float | int | str | bool] = field(default_factory=dict)
    trace: list[tuple[float, float]] = field(default_factory=list)


class Attack:
    """What an adversary does with its clients. Override what it does; the rest is identity."""

    accepts: ClassVar[Alphabets] = (Payload,)
    # Values of its parameters that are worth trying, for ``--attack strongest``.
    choices: ClassVar[Choices] = {}

    @property
    def idle(self) -> bool:
        """True if it overrides nothing: the clean run, whose malicious clients behave."""
        hooks = ("poison", "wrap_grad", "craft")
        return all(getattr(type(self), hook) is getattr(Attack, hook) for hook in hooks)

    def needs(self) -> Knowledge:
        """What it must be shown."""
        return Knowledge()

    @property
    def trains(self) -> bool:
        """True if its clients train otherwise than honest ones: they then do both."""
        hooks = ("poison", "wrap_grad")
        return any(getattr(type(self), hook) is not getattr(Attack, hook) for hook in hooks)

    @property
    def wraps(self) -> bool:
        """True if it changes the gradients of its clients."""
        return type(self).wrap_grad is not Attack.wrap_grad

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        """The training data of a malicious client: ``(N, C, H, W)`` normalised, and labels.

        Of the type of ``xs`` and ``ys``, at least one image, finite: who wants to send NaN crafts
        it.
        """
        return xs, ys

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        """The local training of a malicious client; its gradient may diverge, and is then NaN."""
        return grad

    def trigger(self, xs: Tensor, ys: Tensor) -> tuple[Tensor, int] | None:
        """Of a backdoor: test images ``(N', C, H, W)`` that should be taken for a label, and it.

        Made of held-out images ``xs (N, C, H, W)``, normalised, of which those that truly have
        that label must be left out. Finite, too. None for attacks that only do damage.
        """
        return None

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload | list[bytes], Any]:
        """The ``m`` messages that are sent instead, or raw bytes for each of them.

        By default what its own training says, compressed as the protocol does. A message may hold
        NaN where its alphabet can; ``--server-checks finite`` rejects it, and the record's flags
        say if that is what became of most.
        """
        return view.compress(view.trained) if self.trains else view.own, memory
