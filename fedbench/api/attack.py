"""The contract of an attack, and the view that it is shown."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from torch import Tensor

from fedbench.api.defense import Defense
from fedbench.api.protocol import Alphabets, Grad, Gradient, Memory, Variants
from fedbench.core.choices import Checks
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import FoldedMessages, KeptMessages, Payload

Tier = Literal["own", "colluders", "all"]
Choices = dict[str, tuple[Any, ...]]  # values of each parameter
TIERS: tuple[Tier, ...] = ("own", "colluders", "all")
EXTRAS = ("defense", "state", "data")
Deployed = Tree | list[Tree]  # a model, or an ensemble whose probabilities are averaged


@dataclass(frozen=True)
class Knowledge:
    """Knowledge that an attack needs, or may have.

    Args:
        tier: ``own``: each malicious client its own message; ``colluders``: those of all malicious
            clients; ``all``: those of all benign clients as well.
        defense: A snapshot of the server's rule to query.
        state: A snapshot of the server's state.
        data: The samples of its own clients, and what they let it rehearse (`AttackView.loss`).
            Every adversary has them, so no cap on knowledge forbids them.
    """

    tier: Tier = "own"
    defense: bool = False
    state: bool = False
    data: bool = False

    def __str__(self) -> str:
        return " + ".join([self.tier, *(name for name in EXTRAS if getattr(self, name))])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return what ``tier[+defense][+state][+data]`` names, or raise `ConfigError`.

        >>> str(Knowledge.parse("colluders+state"))
        'colluders + state'
        """
        tier, *extras = text.replace(" ", "").split("+")
        legal = set(EXTRAS).issuperset(extras) and len(set(extras)) == len(extras)
        requirement = "own, colluders or all, each with or without +defense, +state and +data"
        require("--knowledge", text, legal and tier in TIERS, requirement)
        return cls(tier, **dict.fromkeys(extras, True))  # type: ignore[arg-type]

    def covers(self, other: Self) -> bool:
        """Return whether this knowledge includes ``other``; ``data`` is not compared.

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
        learned: What `Attack.learn` returned in this round; None for attacks that do not learn.
        steps: Number of its local steps, for `Attack.wrap_grad`; in `Attack.poison` 0.
        head: Names of the network's last layer: its weights, and its bias if it has one.
        statistics: Names of the leaves that are running statistics, which no gradient trains.
    """

    tree: Tree
    before: Tree | None
    part: int
    parts: int
    step: int
    key: Key
    classes: int
    learned: Tensor | None = None
    steps: int = 0
    head: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()


@dataclass(eq=False)
class Oracle:
    """Server's rule as an attack may query it.

    Args:
        rule: The defense, with its parameters.
        ask: Function of ``m`` messages of the adversary and a draw of randomness, never the
            server's: the aggregate of a snapshot of the rule, its memory included, of these and the
            benign messages, but for those that the server's checks reject. For an attack that may
            not read the benign ones its own honest ones stand in.
        queries: Number of queries so far.
        checks: What the server checks of a message (`Payload.passes`).
    """

    rule: Defense[Any]
    ask: Callable[[Payload, int], Tensor]
    queries: int = 0
    checks: Checks = "none"

    def __call__(self, sent: Payload, draw: int = 0) -> Tensor:
        """Return the aggregate ``(k,)``; equal draws give equal answers."""
        got = type(sent).__name__
        require("AttackView.defense", got, isinstance(sent, Payload), "asked with messages")
        self.queries += 1
        return self.ask(sent, draw)


@dataclass(eq=False)
class Rehearsal:
    """Trials of an adversary with the samples of its own clients, and their number.

    Args:
        x: ``(N, C, H, W)`` normalised training images of all clients that the adversary owns, in
            this round or not; for the tier ``own`` of the one client that is asked.
        y: ``(N,)`` their labels.
        classes: Number of labels of the task, of which its clients may not hold all.
        names: Leaves of a tree that clients train, in the order of a gradient.
        losses: Function behind `AttackView.loss`.
        gradients: Function behind `AttackView.gradient`.
        pixels: Function behind `AttackView.image_gradient`.
        steps: Function behind `AttackView.deployed` (True) and `AttackView.ahead` (False).
        statistics: Names of the leaves that are running statistics.
        evaluated: Samples whose loss was computed so far.
        differentiated: Samples whose gradient was computed so far.
    """

    x: Tensor
    y: Tensor
    classes: int
    names: tuple[str, ...]
    losses: Callable[[Deployed, Tensor, Tensor], Tensor]
    gradients: Callable[[Tree, Tensor, Tensor, int], Tensor]
    pixels: Callable[[Tree, Tensor, Tensor, int], Tensor]
    steps: Callable[[bool, Sequence[Tensor]], Any]
    statistics: tuple[str, ...] = ()
    evaluated: int = 0
    differentiated: int = 0

    def counts(self) -> dict[str, int]:
        """Return the samples evaluated and differentiated so far, by name."""
        return {"evaluated": self.evaluated, "differentiated": self.differentiated}


@dataclass(frozen=True, eq=False)
class AttackView:
    """View of an attack: copies, filled to the knowledge that it declares.

    Args:
        own: The messages that its ``m`` clients would have sent, trained as if honest.
        updates: ``(m, d)``, the same before compression.
        trained: ``(m, d)``, the updates of training with `Attack.poison` and `Attack.wrap_grad`;
            `updates` itself of an attack that trains nothing.
        poisoned: The messages of that training, made as honest ones are, with the residuals that
            its own earlier ones left (error feedback); `own` of an attack that trains nothing.
        idle: ``(m, d)``, the updates of clients that learned nothing: zeros where updates are
            differences, what was received where they are scores or probabilities. Rows may share
            their memory, so it is to be read only.
        seen: The messages it may read: `own` for the tiers ``own`` and ``colluders``, those of the
            ``n - m`` benign clients for ``all``.
        n: Rows that the server will receive.
        m: Messages that it is asked for in this round. They are more than `own` where a cohort does
            not fit in memory and it is asked for a few at a time (`Attack.folds`, `Attack.keeps`).
        first: Number of the first of `own` among those ``m``.
        sums: Sums of the finite messages that it may read, where it is asked for a few at a time;
            `seen` is then empty. If no client of the round is benign, they are those of all ``m``
            of its own.
        kept: Packets of the messages behind `sums`, in `Attack.look` of an attack that `keeps`.
        looked: What `Attack.look` returned in this round, where it is asked for a few at a time.
        broadcast: The server's message; where each client is sent its own, those it may read.
        step: Round, from 0.
        key: Randomness of the adversary.
        compress: The protocol's own message of dense ``(m, d)`` rows, nothing fed back into them.
        memories: Memories of its clients, the residual of error feedback for instance.
        defense: The server's rule, if declared.
        state: The server's state, if declared.
        protocol: Parameters of the protocol, which are public, by name: numbers, texts and None.
        rehearsal: Samples of its own clients, and what is behind `loss`, `gradient`, `deployed` and
            `ahead`, if declared (`Knowledge.data`).
        recruits: Honest messages of the clients that it asked for (`Attack.recruits`), if any.
        notes: Fields for this round's record, which the attack fills.
        trace: Trials of its search, for the record: strength, and the value sought there.
    """

    own: Payload
    updates: Tensor
    trained: Tensor
    poisoned: Payload
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
    protocol: Mapping[str, Any] = field(default_factory=dict)
    rehearsal: Rehearsal | None = None
    recruits: Payload | None = None
    m: int = 0
    first: int = 0
    sums: FoldedMessages | None = None
    kept: KeptMessages | None = None
    looked: Tensor | None = None
    notes: dict[str, float | int | str | bool] = field(default_factory=dict)
    trace: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.m:
            object.__setattr__(self, "m", len(self.own))

    def loss(self, model: Deployed, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy ``(N,)`` float64 in nats of each sample.

        It is 1e60 where scores are not finite, more than anywhere else.

        Args:
            model: Parameters of the network, or an ensemble, as `deployed` returns them.
            x: Images ``(N, C, H, W)``.
            y: Labels ``(N,)``.
        """
        lab = self._lab()
        lab.evaluated += len(x)
        return lab.losses(model, x, y)

    def gradient(self, tree: Tree, x: Tensor, y: Tensor, draw: int = 0) -> Tensor:
        """Return the gradient ``(d,)`` of the mean loss in what clients train.

        An honest client goes down it: weights, or scores by the straight-through estimator.

        Args:
            tree: What clients train, as `ahead` returns it.
            x: Images ``(N, C, H, W)``.
            y: Labels ``(N,)``.
            draw: Number of the draw, where a mask or a dropped unit is drawn.
        """
        lab = self._lab()
        lab.differentiated += len(x)
        return lab.gradients(tree, x, y, draw)

    def image_gradient(self, tree: Tree, x: Tensor, y: Tensor, draw: int = 0) -> Tensor:
        """Return the gradient ``(N, C, H, W)`` of the mean loss in the images.

        Args:
            tree: What clients train, as `ahead` returns it.
            x: Images ``(N, C, H, W)``.
            y: Labels ``(N,)``.
            draw: Number of the draw, where a mask or a dropped unit is drawn.
        """
        lab = self._lab()
        lab.differentiated += len(x)
        return lab.pixels(tree, x, y, draw)

    def deployed(self, *aggregates: Tensor) -> Deployed:
        """Return the model that is deployed after the rule has given these answers ``(k,)``.

        The first is that of this round, each later one of the round after it.
        """
        model: Deployed = self._lab().steps(True, aggregates)
        return model

    def ahead(self, *aggregates: Tensor) -> Tree:
        """Return the tree that a client gets after these answers; without any, in this round."""
        tree: Tree = self._lab().steps(False, aggregates)
        return tree

    def _lab(self) -> Rehearsal:
        declared = self.rehearsal is not None
        require("Knowledge.data", declared, declared, "declared by an attack that rehearses")
        assert self.rehearsal is not None
        return self.rehearsal


class Attack:
    """An adversary's use of its clients. Override what it does; the rest is identity."""

    accepts: ClassVar[Alphabets] = (Payload,)
    # Kinds of samples that it works on: it may change only labels, or numbers, or pixels.
    works_on: ClassVar[tuple[str, ...]] = ("image", "numbers", "ids")
    # What ``as=`` stands for, where the paper's text and its released code are two systems.
    variants: ClassVar[Variants] = {}
    # Values of its parameters that are worth trying, for ``--attack strongest``.
    choices: ClassVar[Choices] = {}

    @property
    def idle(self) -> bool:
        """True if its clients train and send as honest ones do: the clean run."""
        return not self.trains and type(self).craft is Attack.craft

    def require_samples(self, image: tuple[int, ...], classes: int) -> None:
        """Raise `ConfigError` if samples of this shape, or with that many labels, do not fit it.

        It is asked before the first round, for labels and sizes that its parameters name.
        """

    def needs(self) -> Knowledge:
        """Return the knowledge that it needs."""
        return Knowledge()

    @property
    def folds(self) -> bool:
        """True if the sums of the messages that it may see are enough for it.

        Where a cohort does not fit in memory, it is asked for a few messages at a time, each time
        with `AttackView.sums`. So it makes each message of these and of that client's own, draws
        the rows of ``own`` as those behind the ``first`` of ``m``, and remembers nothing but what
        `look` does. The tier ``own`` is not asked: each of its clients is alone in any case.
        """
        return False

    @property
    def keeps(self) -> bool:
        """True if packets of the messages that it may see are enough for its `look`.

        They are decoded a few at a time, so that no round is in memory. It may compare all pairs of
        them: where distances of all pairs do not fit in memory it is not played.
        """
        return False

    @property
    def reads_squares(self) -> bool:
        """True if one that `folds` or `keeps` needs the sum of the squared values, too."""
        return False

    @property
    def reads_updates(self) -> bool:
        """True if its `look` needs what its clients learned, who then train twice."""
        return False

    @property
    def looks(self) -> bool:
        """True if it looks at a round once, before it is asked for messages a few at a time."""
        return type(self).look is not Attack.look

    @property
    def recruits(self) -> int | None:
        """Number of its own clients, in the round or not, that train for it; None: all of them.

        They are drawn anew in every round and train as if honest, those that are not in the round
        from what one that is has received; `AttackView.recruits` has their messages. Only for the
        tiers ``colluders`` and ``all``.
        """
        return 0

    @property
    def trains(self) -> bool:
        """True if its clients train otherwise than honest ones: they then do both."""
        return type(self).poison is not Attack.poison or self.wraps

    @property
    def wraps(self) -> bool:
        """True if it changes the gradients of its clients."""
        return type(self).wrap_grad is not Attack.wrap_grad

    @property
    def learns(self) -> bool:
        """True if its clients learn something before they train."""
        return type(self).learn is not Attack.learn

    def learn(self, view: AttackView, learned: Tensor | None) -> Tensor | None:
        """Return what its clients have learned from what they received, such as a trigger.

        It is called once in each round in which the adversary has a client, before these train, and
        for the tiers ``colluders`` and ``all`` only. `poison` and `trigger` are given the answer,
        one finite tensor. In the view ``trained`` is ``updates`` and there is no rule to ask. Notes
        are not kept.

        Args:
            view: View of the round, as `craft` will have it but for that.
            learned: Its own last answer; None at first.
        """
        return None

    def look(self, view: AttackView, memory: Any) -> tuple[Tensor | None, Any]:
        """Return what its clients will send, for `AttackView.looked`; None: their honest messages.

        It is called once in each round that does not fit in memory, of an attack that `folds` or
        `keeps`, whose `craft` then makes messages of the answer and of each client's own.

        Args:
            view: View of the round with `AttackView.sums`, and `AttackView.kept` if it keeps.
                Messages and rows of its own clients are left out; if it `reads_updates`, the one
                row of ``updates`` is their mean less ``idle``, which is zero.
            memory: Its own, as of `craft`.
        """
        return None, memory

    def copies(self) -> Sequence[type["Attack"]]:
        """Return attacks whose code it may run: their sources are part of a run's id."""
        return ()

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        """Return a malicious client's data, ``(N, C, H, W)`` normalised and finite, and labels."""
        return xs, ys

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        """Return the gradient of a malicious client; it may diverge, and is then NaN."""
        return grad

    def trigger(
        self, xs: Tensor, ys: Tensor, learned: Tensor | None = None
    ) -> tuple[Tensor, int] | None:
        """Return test images ``(N', C, H, W)`` of a backdoor, and the label it wants for them.

        They are made of held-out images ``xs (N, C, H, W)``, normalised, that do not truly have
        that label. None for attacks that only do damage. Only attacks that `learn` are called with
        ``learned``, which is None as long as none of their clients took part.
        """
        return None

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload | list[bytes], Any]:
        """Return a message in place of each of ``own``, or raw bytes for each, and the memory.

        The default is what its own training sends. A message may hold NaN where its alphabet can;
        ``--server-checks finite`` rejects it.
        """
        return view.poisoned, memory
