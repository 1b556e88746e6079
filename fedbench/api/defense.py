"""The contract of an aggregation rule, and the view that it is shown."""

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, ClassVar, Generic, Self

import torch
from torch import Tensor

from fedbench.api.protocol import Alphabets, State
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.core.trees import Layout
from fedbench.models.network import Network
from fedbench.payload import FloatVectors, FoldedMessages, KeptMessages, Payload, Spec


@dataclass(eq=False)
class Findings:
    """Findings of a rule about the rows that it was given, for the record.

    Args:
        kept: ``(n,)`` bool, the rows that count at all, of a rule that `Traits.detects`.
        notes: Other numbers and texts for the record.
    """

    kept: Tensor | None = None
    notes: dict[str, float | int | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ServerView:
    """View of a defense beside the messages; it never says which rows are malicious.

    Args:
        weights: ``(n,)`` float64, sizes known at enrolment; all one if the protocol counts votes.
        broadcast: The server's message of this round.
        step: Round, from 0.
        key: Randomness of the server.
        expected: Rows that a round has on average, which central noise is for; 0: not known.
        ids: ``(n,)`` int64, pseudonyms of the rows' clients for the run. By default row numbers.
        layout: Layers of the updates, and of `values` where these are `Payload.aligned` and as
            wide; None: unknown.
        network: Function from all of the layout's layers to logits; only for a rule with
            `Traits.network`.
        root: One row, a message from the server's root data; only for a rule with `Traits.root`.
        truth: ``(n,)`` bool, the malicious rows; only for a rule with `Traits.oracle`.
        findings: Object that the rule writes its findings into.
    """

    weights: Tensor
    broadcast: Payload
    step: int
    key: Key
    expected: int = 0
    ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    layout: Layout | None = None
    network: Network | None = None
    root: Payload | None = None
    truth: Tensor | None = None
    findings: Findings = field(default_factory=Findings)

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.weights):
            object.__setattr__(self, "ids", torch.arange(len(self.weights)))

    def take(self, rows: Tensor) -> Self:
        """Return the view of a server that got only these rows (indices or bool), no findings."""
        truth = None if self.truth is None else self.truth[rows]
        return self.asked(weights=self.weights[rows], ids=self.ids[rows], truth=truth)

    def copied(self) -> Self:
        """Return a copy that a rule may write into, with the same findings."""
        return dataclasses.replace(
            self,
            weights=self.weights.clone(),
            broadcast=self.broadcast.copied(),
            ids=self.ids.clone(),
            network=copy.deepcopy(self.network),
            root=self.root and self.root.copied(),
            truth=None if self.truth is None else self.truth.clone(),
        )

    def about(self, origin: Tensor) -> Self:
        """Return the view, with its findings, whose root message is measured from ``origin``."""
        root = self.root and FloatVectors(self.root.values() - origin)
        return dataclasses.replace(self, root=root)

    def asked(self, **changes: Any) -> Self:
        """Return a changed copy of the view, with empty findings."""
        return dataclasses.replace(self, findings=Findings(), **changes)


@dataclass(frozen=True)
class Traits:
    """Traits of a rule: its needs, and the symmetries that it keeps.

    Args:
        reads_sum: Does it need no more than secure aggregation reveals, the sum of the rows?
        counts: Is its answer to rows of bits made of how many say 1 in each column?
        columns: Is every number of its answer that of the rule on this column of the rows alone?
        model: Must the server add the answer to the weights that it sent, see `Protocol.adds`?
        broadcast: Must a broadcast begin with the model, in every coordinate that clients send?
        network: Must it compute what the network answers to images?
        root: Does it need a message of the server's own, from clean root data?
        history: Does it remember earlier rounds?
        identities: Must it know which client a row is of?
        randomized: Does its answer depend on `ServerView.key`?
        detects: Does it say which rows it left out?
        oracle: Is it told which rows are malicious? No server is: it is an upper bound.
        shift: Does a vector that is added to all rows come back added to the answer?
        scale: Does a positive factor of all rows come back as a factor of the answer?
        mean_at_zero: Is it the plain mean of equal weights if ``f`` is 0?
        sharp: Can one row more than it `Defense.tolerates` move the answer arbitrarily far?
        shrinks: If all send the same, is the answer nearer to the middle of the alphabet?
        sparsifies: Does it bring small coordinates of all rows to the middle of the alphabet?
        reports: Is the answer always the mean of equal weights, of which it has more to say?
    """

    reads_sum: bool = False
    counts: bool = False
    columns: bool = False
    model: bool = False
    broadcast: bool = False
    network: bool = False
    root: bool = False
    history: bool = False
    identities: bool = False
    randomized: bool = False
    detects: bool = False
    oracle: bool = False
    shift: bool = True
    scale: bool = True
    mean_at_zero: bool = False
    sharp: bool = True
    shrinks: bool = False
    sparsifies: bool = False
    reports: bool = False


class Link:
    """Link of a chain: the common part of rules and prefilters."""

    accepts: ClassVar[Alphabets] = (Payload,)
    without: ClassVar[dict[type[Payload], str]] = {}  # exceptions from `accepts`, and why

    def __post_init__(self) -> None:
        f = getattr(self, "f", None)
        require(f"{type(self).__name__}.f", f, not isinstance(f, int | float) or f >= 0, ">= 0")

    def traits(self) -> Traits:
        """Return what the stage needs, and the symmetries that it keeps."""
        return Traits()

    def refuses(self, alphabet: type[Payload]) -> str | None:
        """Return why the stage has no meaning on an alphabet, or None. Never a fall-back (D8)."""
        for other, why in self.without.items():
            if issubclass(alphabet, other):
                return why
        names = ", ".join(kind.__name__ for kind in self.accepts)
        return None if issubclass(alphabet, self.accepts) else f"works on {names}"

    @property
    def lacks_f(self) -> bool:
        """Whether an ``f`` that it needs was left open, which a run fills in."""
        fields = getattr(type(self), "__dataclass_fields__", {})
        return "f" in fields and getattr(self, "f", 0) is None

    def declared(self, f: int) -> Self:
        """Return the stage with ``f`` filled in if it was left open."""
        return self if getattr(self, "f", 0) is not None else self.assuming(f)

    def assuming(self, f: int) -> Self:
        """Return the stage with this ``f`` in place of its own; itself if it has none."""
        return dataclasses.replace(self, f=f) if hasattr(self, "f") else self  # type: ignore[type-var]


class Defense(Link, ABC, Generic[State]):
    """Aggregation rule: an estimate of the mean of the honest clients' `values`.

    A field ``f`` left at None is filled by the harness with the declared malicious share of a
    round, rounded up: what the server is prepared for, never the truth of a round.
    """

    pairs: ClassVar[bool] = True  # does `aggregate_kept` compare all rows with each other?

    def __init_subclass__(cls, chain: bool = False, **kwargs: Any) -> None:
        """Make the rule refuse too few rows; in a chain the last rule does."""
        super().__init_subclass__(**kwargs)
        if "aggregate" in cls.__dict__ and not chain:
            cls.aggregate = _guarded(cls.aggregate)  # type: ignore[method-assign]

    def init(self, spec: Spec) -> State | None:
        """Return the rule's state before the first round."""
        return None

    def rows_needed(self) -> int:
        """Return the smallest ``n`` for which the rule is defined."""
        return 1

    def most_rows(self) -> int | None:
        """Return the largest ``n`` that the rule can answer for in a reasonable time; None: any."""
        return None

    def ready(self, view: ServerView) -> bool:
        """Return whether the rule is defined for these rows; if not, the server skips the round."""
        n = len(view.weights)
        return self.rows_needed() <= n <= (self.most_rows() or n)

    @abstractmethod
    def tolerates(self, n: int) -> int:
        """Return how many of ``n`` rows may be anything while the output stays bounded."""

    @abstractmethod
    def aggregate(
        self, received: Payload, state: State | None, view: ServerView
    ) -> tuple[Tensor, State | None]:
        """Return ``(k,)`` from the accepted rows; float64 where the values are exact integers.

        An answer that is not finite is played, scored and flagged.
        """

    def aggregate_sums(
        self, received: FoldedMessages, state: State | None, view: ServerView
    ) -> tuple[Tensor, State | None]:
        """Return what `aggregate` returns, from the sums of the accepted rows.

        Sums are all that is left of a cohort that does not fit in memory. Rules with
        `Traits.reads_sum`, or on bits with `Traits.counts`, override this, or are not played there.
        It is equal to `aggregate` up to rounding.
        """
        raise NotImplementedError

    @property
    def folds(self) -> bool:
        """True if `aggregate_sums` belongs to its `aggregate`, not to a replaced one."""
        return _belongs(type(self), "aggregate_sums")

    def aggregate_kept(
        self, received: KeptMessages, state: State | None, view: ServerView
    ) -> tuple[Tensor, State | None]:
        """Return what `aggregate` returns, from the packets of the accepted rows.

        A cohort whose rows do not fit in memory may fit as packets, which are decoded as often as
        they are read. By default a few columns at a time are aggregated, which is right for rules
        with `Traits.columns`, unless they remember rounds or have findings. Others override this,
        or are not played there. It is equal to `aggregate` up to rounding.
        """
        if not self.traits().columns:
            raise NotImplementedError
        answers = []
        for x in received.columns():
            rows = FloatVectors(x if x.is_floating_point() else x.to(torch.float64))
            answers.append(self.aggregate(rows, state, view)[0].clone())
        return torch.cat(answers), state

    @property
    def keeps(self) -> bool:
        """True if packets are enough: if `aggregate_kept` belongs to its `aggregate`."""
        traits = self.traits()
        alone = traits.columns and not traits.history and _belongs(type(self), "traits")
        return alone or _belongs(type(self), "aggregate_kept")

    def sensitivity(self, clip: float, n: int) -> float | None:
        """Return the L2 change when one row of norm ``clip`` is replaced, if proved."""
        return None

    def order_weights(self, n: int) -> Tensor | None:
        """Return coefficients ``(n,)`` if the rule combines every coordinate's sorted rows."""
        return None

    def select(self, squared: Tensor) -> Tensor | None:
        """Return the averaged rows ``(n,)`` bool, if squared distances ``(n, n)`` decide them."""
        return None

    def candidates(self, squared: Tensor) -> Tensor | None:
        """Return the rows ``(n,)`` bool that are picked by squared distances ``(n, n)``, or None.

        By default the rows that it averages. Bulyan averages only some values of its picks.
        """
        return self.select(squared)


def belongs(kind: type, name: str, beside: str, base: type) -> bool:
    """Return whether a class overrides the method ``name`` of ``base`` for its own ``beside``.

    It does not where a class nearer to ``kind`` in the order of inheritance overrides ``beside``
    alone: then the method is that of another ``beside``.
    """
    for each in kind.__mro__:
        if name in vars(each):
            return each is not base
        if beside in vars(each):
            return False
    return False


def _belongs(kind: type[Defense[Any]], name: str) -> bool:
    """Return whether a rule's method of this name belongs to the ``aggregate`` that it has."""
    return belongs(kind, name, "aggregate", Defense)


def require_f(stage: Link) -> None:
    """Raise `ConfigError` if ``f`` is None: outside of a run no declared share fills it."""
    name = type(stage).__name__
    if stage.lacks_f:
        raise ConfigError(
            f"{name}.f must be given outside of a run, which declares a share, got None; "
            f"write {name}(f=2)"
        )


def _guarded(aggregate: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``aggregate`` with a `ConfigError` for an open ``f``, and for too few rows."""

    @wraps(aggregate)
    def guarded(self: Defense[Any], received: Payload, *args: Any, **kwargs: Any) -> Any:
        require_f(self)
        needed = self.rows_needed()
        if len(received) < needed:
            f = getattr(self, "f", None)
            got = f"got {len(received)}" + (f" for f = {f}; lower f" if f else "; send some")
            raise ConfigError(f"{type(self).__name__} must have n >= {needed} rows, {got}")
        return aggregate(self, received, *args, **kwargs)

    return guarded
