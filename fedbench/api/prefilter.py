"""The contract of a prefilter: pre-aggregation in front of any rule."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedbench.api import hooks, undeclared
from fedbench.api.defense import Defense, Link, ServerView, Traits, belongs, require_f
from fedbench.api.undeclared import advised
from fedbench.core.blame import Hook
from fedbench.core.copies import fetched
from fedbench.core.errors import Incompatible
from fedbench.payload import FloatVectors, KeptMessages, Payload, Spec


class Prefilter(Link, ABC):
    """Transformation of rows in front of a rule, as in ``nnm:f=2+multi-krum:f=2``.

    A field ``f`` left at None is filled as that of a rule. `Traits.mean_at_zero` says here that
    with ``f`` 0 it changes no mean.
    """

    mixes: ClassVar[bool] = True  # is a row that comes out made of several?
    real: ClassVar[bool] = True  # do real rows come out, whatever went in?

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make the prefilter refuse an ``f`` that is open."""
        super().__init_subclass__(**kwargs)
        if "transform" in cls.__dict__:
            cls.transform = _guarded(cls.transform)  # type: ignore[method-assign]

    def before(self, rule: Defense[Any]) -> Defense[Any]:
        """Return the rule that applies the prefilter and then ``rule``."""
        return Chain(self, rule)

    def rows_needed(self, rule: Defense[Any]) -> int:
        """Return the smallest ``n`` for which both are defined."""
        return rule.rows_needed()

    def rows(self, n: int) -> int:
        """Return the least number of rows that come out of ``n``."""
        return n

    @abstractmethod
    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        """Return the breakdown point of the two together."""

    def sensitivity(self, clip: float, n: int, rule: Defense[Any]) -> float | None:
        """Return the sensitivity of the two together, see `Defense.sensitivity`."""
        return None

    @abstractmethod
    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor | None]:
        """Return the rows for the rule, and their row numbers, or None if each mixes several."""

    def mixture(self, received: KeptMessages, view: ServerView) -> Tensor:
        """Return the shares ``(m, n)`` float64 of the ``n`` messages in each row for the rule.

        They add up to one in each row. A prefilter that mixes may override this; then it also
        stands before rules that read packets, see `Defense.aggregate_kept`.
        """
        raise NotImplementedError


def _guarded(transform: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``transform`` with a `ConfigError` for an ``f`` that is open."""

    @wraps(transform)
    def guarded(self: Prefilter, *args: Any, **kwargs: Any) -> Any:
        require_f(self)
        return transform(self, *args, **kwargs)

    return guarded


@dataclass(frozen=True)
class Chain(Defense[Any], chain=True):
    """A prefilter in front of a rule, which may be a chain itself.

    The clients' sizes go with their rows; rows that are of several clients each all count the same.
    Real rows are handed on as measured from the middle of the alphabet, which is added back.
    """

    first: Prefilter
    rule: Defense[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first.mixes and self.rule.traits().identities:
            raise Incompatible(
                "--defense must give a rule that remembers clients rows of one client each, got "
                f"{type(self.first).__name__} before it, which mixes them; leave that out, or use "
                "clip"
            )

    def traits(self) -> Traits:
        of_first = vars(self.first.traits())
        of_rule = vars(self.rule.traits())
        needs = (
            *("model", "network", "root", "history", "identities", "randomized", "oracle"),
            *("broadcast", "sparsifies", "shrinks"),
        )
        keeps = ("shift", "scale", "mean_at_zero", "sharp")
        traits = {name: of_first[name] or of_rule[name] for name in needs}
        traits |= {name: of_first[name] and of_rule[name] for name in keeps}
        detects = of_first["detects"] or (of_rule["detects"] and not self.first.mixes)
        return Traits(detects=detects, **traits)

    def refuses(self, alphabet: type[Payload]) -> str | None:
        """Return why one of the two has no meaning there.

        Real rows may have other lengths and shares of ones than messages of the alphabet, but their
        columns mean what they did, and are no more coordinates of an update than before.
        """
        other = self.first.real and alphabet.aligned and not self.rule.traits().broadcast
        why = self.first.refuses(alphabet)
        return why or self.rule.refuses(FloatVectors if other else alphabet)

    def declared(self, f: int) -> Self:
        return dataclasses.replace(self, first=self.first.declared(f), rule=self.rule.declared(f))

    def assuming(self, f: int) -> Self:
        return dataclasses.replace(self, first=self.first.assuming(f), rule=self.rule.assuming(f))

    def init(self, spec: Spec) -> Any:
        return self.rule.init(spec)

    def rows_needed(self) -> int:
        return self.first.rows_needed(self.rule)

    def most_rows(self) -> int | None:
        return self.rule.most_rows()  # though fewer rows may reach it

    def tolerates(self, n: int) -> int:
        return self.first.tolerates(n, self.rule)

    def sensitivity(self, clip: float, n: int) -> float | None:
        return self.first.sensitivity(clip, n, self.rule)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        passed, rows = transform(self.first, received, view)
        origin = received.origin()
        moves = self.first.real and bool(origin.any())  # reals have their middle at 0
        if moves:
            passed = FloatVectors(passed.values() - origin)
            view = view.about(origin)
        inner = _of_mixed(view, len(passed)) if rows is None else view.take(rows)
        out, state = hooks.aggregate(self.rule, passed, state, inner)
        if moves:
            out = out + origin
        view.findings.notes |= inner.findings.notes
        if rows is not None and self.traits().detects:
            counted = torch.zeros(len(received), dtype=torch.bool)
            counted[rows] = True if inner.findings.kept is None else inner.findings.kept.cpu()
            view.findings.kept = counted
        return out, state

    @property
    def keeps(self) -> bool:
        """True if both can do with packets; mixed bits are not measured from their middle."""
        mixes = belongs(type(self.first), "mixture", "transform", Prefilter)
        return mixes and self.rule.keeps and self.rule.traits().shift

    def aggregate_kept(
        self, received: KeptMessages, state: Any, view: ServerView
    ) -> tuple[Tensor, Any]:
        n = len(received)
        hook = Hook(self.first, "mixture", view.step)
        shares = hook.returned(Tensor, received, view)
        hook.must(shares.ndim == 2 and shares.shape[1] == n, f"shares (m, {n})", shares)
        inner = _of_mixed(view, len(shares))
        out, state = hooks.aggregate(self.rule, received.mixed(shares), state, inner)
        view.findings.notes |= inner.findings.notes
        return out, state


def links_of(plugin: Any) -> list[Any]:
    """Return a chain's prefilters, in the order in which rows meet them, and its rule."""
    return [plugin.first, *links_of(plugin.rule)] if isinstance(plugin, Chain) else [plugin]


def _of_mixed(view: ServerView, rows: int) -> ServerView:
    """Return the view of a rule behind a prefilter that mixes: ``rows`` of equal weight."""
    alike = torch.ones(rows, dtype=torch.float64)
    return dataclasses.replace(view.asked(), weights=alike, ids=alike[:0], truth=None)


def transform(
    prefilter: Prefilter, received: Payload, view: ServerView
) -> tuple[Payload, Tensor | None]:
    """Call `Prefilter.transform`; return messages, and None or the row of each, on the CPU."""
    hook = Hook(prefilter, "transform", view.step)
    remedy = "write: return messages, None, or messages and which rows they were"
    with advised(hook, view, undeclared.DEFENSE, view):
        passed, rows = hook.pair(received, view, remedy=remedy)
    hook.must(isinstance(passed, Payload), "messages and their rows", passed)
    if rows is not None:
        n = len(received)
        rows = fetched(rows) if isinstance(rows, Tensor) else rows
        good = isinstance(rows, Tensor) and rows.dtype == torch.int64
        good = good and rows.shape == (len(passed),)
        good = good and (len(rows) == 0 or (int(rows.min()) >= 0 and int(rows.max()) < n))
        hook.must(good, f"rows ({len(passed)},) int64 from 0 to {n - 1}, or None", rows)
    return passed, rows
