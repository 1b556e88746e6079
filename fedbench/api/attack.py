"""The contract of an attack, and the view that it is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from fedbench.api.defense import Defense
from fedbench.api.protocol import Alphabets, Grad, Gradient, Memory
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload

Tier = Literal["own", "colluders", "all"]
Choices = dict[str, tuple[Any, ...]]  # values of each parameter
TIERS: tuple[Tier, ...] = ("own", "colluders", "all")


@dataclass(frozen=True)
class Knowledge:
    """Knowledge that an attack needs, or may have.

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
        return self.tier + " + defense" * self.defense + " + state" * self.state

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the knowledge that ``tier[+defense][+state]`` names, or raise `ConfigError`.

        >>> str(Knowledge.parse("colluders+state"))
        'colluders + state'
        """
        tier, *extras = text.replace(" ", "").split("+")
        legal = {"defense", "state"}.issuperset(extras) and len(set(extras)) == len(extras)
        rule = "own, colluders or all, each with or without +defense and +state"
        require("--knowledge", text, legal and tier in TIERS, rule)
        return cls(tier, "defense" in extras, "state" in extras)  # type: ignore[arg-type]

    def covers(self, other: Self) -> bool:
        """Return whether an attack that may see this may see ``other``.

        >>> Knowledge("all", defense=True).covers(Knowledge("own", state=True))
        False
        """
        reads = TIERS.index(self.tier) >= TIERS.index(other.tier)
        return reads and self.defense >= other.defense and self.state >= other.state


@dataclass(frozen=True, eq=False)
class Local:
    """A malicious client in its local training.

    Args:
        tree: The tree that it received, to be trained.
        before: The tree that the server sent to all clients of the last round; None in the first,
            and where each client is sent its own.
        part: Its number among the adversary's clients, from 0; the same in every round.
        parts: Number of clients that the adversary has.
        step: Round, from 0.
        key: Randomness of this client.
        classes: Number of labels of the task.
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
    """Server's rule as an attack may query it.

    Args:
        rule: The defense, with its parameters.
        ask: Function of ``m`` messages of the adversary and a draw of randomness, never the
            server's: the aggregate of a snapshot of the rule, its memory included, of these and the
            benign messages. For an attack that may not read those its own honest ones stand in.
        queries: Number of queries so far.
    """

    rule: Defense[Any]
    ask: Callable[[Payload, int], Tensor]
    queries: int = 0

    def __call__(self, sent: Payload, draw: int = 0) -> Tensor:
        """Return the aggregate ``(k,)``; equal draws give equal answers."""
        self.queries += 1
        return self.ask(sent, draw)


@dataclass(frozen=True, eq=False)
class AttackView:
    """View of an attack: copies, filled to the knowledge that it declares.

    Args:
        own: The messages that its ``m`` clients would have sent, trained as if honest.
        updates: ``(m, d)``, the same before compression.
        trained: ``(m, d)``, the updates of training with `Attack.poison` and `Attack.wrap_grad`.
        idle: ``(m, d)``, the updates of clients that learned nothing: zeros where updates are
            differences, what was received where they are scores or probabilities.
        seen: The messages it may read: `own` for the tiers ``own`` and ``colluders``, those of the
            ``n - m`` benign clients for ``all``.
        n: Rows that the server will receive.
        broadcast: The server's message; where each client is sent its own, those it may read.
        step: Round, from 0.
        key: Randomness of the adversary.
        compress: The protocol's own message of dense ``(m, d)`` rows, nothing fed back into them.
        memories: Memories of its clients, the residual of error feedback for instance.
        defense: The server's rule, if declared.
        state: The server's state, if declared.
        notes: Fields for this round's record, which the attack fills.
        trace: Trials of its search, for the record: strength, and the value sought there.
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
    """An adversary's use of its clients. Override what it does; the rest is identity."""

    accepts: ClassVar[Alphabets] = (Payload,)
    # Values of its parameters that are worth trying, for ``--attack strongest``.
    choices: ClassVar[Choices] = {}

    @property
    def idle(self) -> bool:
        """True if it overrides nothing: the clean run, whose malicious clients behave."""
        return not self.trains and type(self).craft is Attack.craft

    def needs(self) -> Knowledge:
        """Return the knowledge that it needs."""
        return Knowledge()

    @property
    def trains(self) -> bool:
        """True if its clients train otherwise than honest ones: they then do both."""
        return type(self).poison is not Attack.poison or self.wraps

    @property
    def wraps(self) -> bool:
        """True if it changes the gradients of its clients."""
        return type(self).wrap_grad is not Attack.wrap_grad

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        """Return a malicious client's data, ``(N, C, H, W)`` normalised and finite, and labels."""
        return xs, ys

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        """Return the gradient of a malicious client; it may diverge, and is then NaN."""
        return grad

    def trigger(self, xs: Tensor, ys: Tensor) -> tuple[Tensor, int] | None:
        """Return test images ``(N', C, H, W)`` of a backdoor, and the label it wants for them.

        They are made of held-out images ``xs (N, C, H, W)``, normalised, that do not truly have
        that label. None for attacks that only do damage.
        """
        return None

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload | list[bytes], Any]:
        """Return the ``m`` messages that are sent instead, or raw bytes for each of them.

        The default is its own training, compressed as the protocol does. A message may hold NaN
        where its alphabet can; ``--server-checks finite`` rejects it.
        """
        return view.compress(view.trained) if self.trains else view.own, memory
