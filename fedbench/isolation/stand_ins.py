"""Attacks and rules of other processes, under the contracts of those of this one.

All that couples isolation to the contracts is here: what a hook is shown is copied into its
process, what it returns comes back as plain values. Memories and states stay there (`Kept`).
"""

import copy
import dataclasses
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace, TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from fedbench import payload as payloads
from fedbench.api import (
    Attack,
    AttackView,
    Defense,
    Grad,
    Gradient,
    Knowledge,
    Local,
    ServerView,
    Traits,
)
from fedbench.core import registry
from fedbench.core.blame import said
from fedbench.core.errors import FedbenchError, PluginError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.isolation.host import Child, Kept
from fedbench.payload import Payload, Spec


def unanswered(*arguments: object) -> Any:
    """Stand where a view has a function of this process, which stays here."""
    raise AssertionError("only the child's own functions are called")


Kinds = type | tuple[type, ...]
NOTHING = type(None)
DESCRIBED: dict[str, Kinds] = {"text": str, "class": str, "file": str, "accepts": list}
ATTACK: dict[str, Kinds] = {"hooks": list, "needs": str, "idle": bool}
RULE: dict[str, Kinds] = {
    "traits": dict,
    "f": (int, float, NOTHING),
    "has_f": bool,
    "rows_needed": int,
    "most_rows": (int, NOTHING),
    "ready": bool,
    "links": list,
}
CRAFTED: dict[str, Kinds] = {
    "sent": (list, Payload),
    "memory": (int, NOTHING),
    "notes": dict,
    "trace": list,
    "queries": int,
}
AGGREGATED: dict[str, Kinds] = {
    "out": Tensor,
    "state": (int, NOTHING),
    "kept": (Tensor, NOTHING),
    "notes": dict,
}


class StandIn:
    """What both have: the plug-in's description, and the process that it is in.

    Args:
        child: With the plug-in.
        told: Its description, see `fedbench.isolation.child`.
    """

    def __init__(self, child: Child, told: dict[str, Any]) -> None:
        self.child, self.told = child, told
        self.titled = child.what
        self.text: str = told["text"]
        self.file: str = told["file"]

    def keeping(self, number: object) -> Kept | None:
        """What the plug-in keeps under a number."""
        return Kept(self.child, number) if isinstance(number, int) else None

    def checked(self, hook: str, value: Any, kind: Kinds, rule: str) -> Any:
        """The value, if it is of this kind; see `_checked`."""
        return _checked(self.child, hook, value, kind, rule)

    def fields(self, hook: str, value: Any, kinds: dict[str, Kinds]) -> dict[str, Any]:
        """The parts of an answer, if they are there and of these kinds; see `_fields`."""
        return _fields(self.child, hook, value, kinds)


class IsolatedAttack(StandIn, Attack):
    """An attack in a process of its own. A backdoor's trigger is made in a second one.

    That one is shown held-out images of all clients, which the first is not to know.

    Args:
        child: With the attack.
        told: Its description.
        second: Starts another process with the same attack.
    """

    def __init__(
        self, child: Child, told: dict[str, Any], second: Callable[[], StandIn] | None = None
    ) -> None:
        super().__init__(child, told)
        self._second = second
        self._judged: StandIn | None = None

    @property
    def idle(self) -> bool:
        """What the attack says."""
        return bool(self.told["idle"])

    @property
    def trains(self) -> bool:
        """True if it has a hook of training."""
        return bool({"poison", "wrap_grad"} & set(self.told["hooks"]))

    @property
    def wraps(self) -> bool:
        """True if it changes gradients."""
        return "wrap_grad" in self.told["hooks"]

    def needs(self) -> Knowledge:
        """What the attack declares."""
        return Knowledge.parse(self.told["needs"])

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        """See `Attack.poison`."""
        if "poison" not in self.told["hooks"]:
            return xs, ys
        pair = self.child.call("poison", xs, ys, local)
        images, labels = self.checked("poison", pair, tuple, "images and labels")
        return images.to(xs.device), labels.to(ys.device)

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        """See `Attack.wrap_grad`: each step's gradient goes there and back.

        It follows training client by client (`fedbench.executors.training.Loop`), and no other way.
        """
        device = next(iter(local.tree.values())).device

        def computed(call: Grad, tree: Tree, x: Tensor, y: Tensor, seed: int) -> Tree:
            there = {name: leaf.to(device) for name, leaf in tree.items()}
            return call(there, x.to(device), y.to(device), Key(seed))

        answers = {"batch": partial(computed, grad.batch), "each": partial(computed, grad.each)}
        number = self.child.call("wrap_grad", grad.batch_size, local, answers=answers)
        wrapped = self.keeping(number)
        assert wrapped is not None

        def gradient(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            arguments = (wrapped.number, tree, x, y, key)
            found = self.child.call("gradient", *arguments, answers=answers)
            there: Tree = self.checked("wrap_grad", found, dict, "a gradient")
            return {name: part.to(x.device) for name, part in there.items()}

        return gradient

    def trigger(self, xs: Tensor, ys: Tensor) -> tuple[Tensor, int] | None:
        """See `Attack.trigger`."""
        if "trigger" not in self.told["hooks"]:
            return None
        if self._judged is None:
            self._judged = self if self._second is None else self._second()
        found = self._judged.child.call("trigger", xs, ys)
        if found is None:
            return None
        images, label = self.checked("trigger", found, tuple, "images and a label")
        return images.to(xs.device), int(label)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload | list[bytes], Any]:
        """See `Attack.craft`; what the view lets it ask is answered here, while it waits."""
        device = view.updates.device
        answers: dict[str, Callable[..., Any]] = {"compress": lambda x: view.compress(x.to(device))}
        rule = None
        if view.defense is not None:
            assert isinstance(view.defense.rule, StandIn)  # both are isolated, or none is
            answers["rule"], rule = view.defense, view.defense.rule.text
        shown = dataclasses.replace(view, compress=unanswered, defense=None, notes={}, trace=[])
        number = memory.number if isinstance(memory, Kept) else None
        found = self.child.call("craft", shown, rule, number, form=view.own, answers=answers)
        told = self.fields("craft", found, CRAFTED)
        view.notes.update(told["notes"])
        view.trace.extend(told["trace"])
        if view.defense is not None:
            view.defense.queries = max(view.defense.queries, int(told["queries"]))
        return told["sent"], self.keeping(told["memory"])


class IsolatedDefense(StandIn, Defense[Any]):
    """A rule, with what comes before it, in a process of its own.

    Args:
        child: With the rule.
        told: Its description.
    """

    def __init__(self, child: Child, told: dict[str, Any]) -> None:
        super().__init__(child, told)
        self.f = told["f"]
        self.links = [_link(**link) for link in told["links"]]
        self._traits = Traits(**told["traits"])
        self._is_apart = False

    def apart(self) -> Self:
        """The same rule, asked in forks of its process, which keep nothing of what they see."""
        other = copy.copy(self)
        other._is_apart = True
        return other

    def _ask(self, hook: str, *arguments: object) -> Any:
        return self.child.call(hook, *arguments, apart=self._is_apart)

    def traits(self) -> Traits:
        """What the rule says."""
        return self._traits

    def declared(self, f: int) -> Self:
        """The same with an ``f`` that was left open filled in."""
        told = _described(self.child, "defense", self._ask("declared", f))
        return self if told["text"] == self.text else type(self)(self.child, told)

    def refuses(self, alphabet: type[Payload]) -> str | None:
        """What the rule says."""
        why = self._ask("refuses", alphabet)
        return None if why is None else str(why)

    def init(self, spec: Spec) -> Any:
        """The state, which stays in the rule's process; apart, what it will be made of."""
        return spec if self._is_apart else self.keeping(self._ask("init", spec))

    def rows_needed(self) -> int:
        """What the rule says."""
        return int(self.told["rows_needed"])

    def most_rows(self) -> int | None:
        """What the rule says."""
        most = self.told["most_rows"]
        return None if most is None else int(most)

    def ready(self, view: ServerView) -> bool:
        """What the rule says, or what follows from `rows_needed` and `most_rows`."""
        own = self.told["ready"]
        return bool(self._ask("ready", view)) if own else super().ready(view)

    def tolerates(self, n: int) -> int:
        """What the rule says."""
        return int(self._ask("constant", "tolerates", n))

    def sensitivity(self, clip: float, n: int) -> float | None:
        """What the rule says."""
        bound = self._ask("constant", "sensitivity", clip, n)
        return None if bound is None else float(bound)

    def order_weights(self, n: int) -> Tensor | None:
        """What the rule says."""
        weights = self._ask("constant", "order_weights", n)
        kinds = (Tensor, NOTHING)
        found: Tensor | None = self.checked("order_weights", weights, kinds, "weights or None")
        return found

    def select(self, squared: Tensor) -> Tensor | None:
        """What the rule says."""
        found = self._ask("constant", "select", squared)
        rows: Tensor | None = self.checked("select", found, (Tensor, NOTHING), "rows or None")
        return None if rows is None else rows.to(squared.device)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        """See `Defense.aggregate`."""
        known = state.number if isinstance(state, Kept) else state
        found = self._ask("aggregate", received, known, view)
        told = self.fields("aggregate", found, AGGREGATED)
        out: Tensor = told["out"]
        view.findings.kept = told["kept"]
        view.findings.notes.update(told["notes"])
        later = None if self._is_apart else self.keeping(told["state"])  # it ended with the fork
        return out.to(_device(received)), later


class Isolation:
    """Loads attacks and rules into processes of their own; the end of the block ends them."""

    def __enter__(self) -> Self:
        self.children: list[Child] = []
        self._ready = [self._started(), self._started()]  # they import while the data are loaded
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for child in self.children:
            child.end()

    def _started(self) -> Child:
        self.children.append(Child())
        return self.children[-1]

    def load(self, kind: str, text: str) -> Any:
        """As `fedbench.core.registry.load`; what is no attack and no rule is loaded here."""
        if kind not in ("attack", "defense"):
            return registry.load(kind, text)
        child = self._ready.pop() if self._ready else self._started()
        child.what = registry.owner(kind, text)
        try:
            told = child.call("load", kind, text, torch.get_num_threads())
            told = _described(child, kind, told)
            alphabets = {"accepts": tuple(_alphabet(name) for name in told["accepts"])}
            named = told["class"]  # what errors call it
            if kind == "defense":
                return type(named, (IsolatedDefense,), alphabets)(child, told)
            again = partial(self.load, kind, text)
            return type(named, (IsolatedAttack,), alphabets)(child, told, again)
        except FedbenchError:
            raise
        except Exception as error:
            problem = f"raised {said(error)}"
            raise PluginError(child.what, "its description", problem) from error


def _described(child: Child, kind: str, told: Any) -> dict[str, Any]:
    """What a process says of its plug-in, if all of it is there and of its kind."""
    return _fields(child, "its description", told, DESCRIBED | (ATTACK, RULE)[kind == "defense"])


def _checked(child: Child, hook: str, value: Any, kind: Kinds, rule: str) -> Any:
    """The value, if it is of this kind.

    Raises:
        FedbenchError: it is not.
    """
    if not isinstance(value, kind):
        got = type(value).__name__
        raise FedbenchError(f"{child.what} must return {rule} from {hook}, got {got}")
    return value


def _fields(child: Child, hook: str, value: Any, kinds: dict[str, Kinds]) -> dict[str, Any]:
    """The parts of an answer, if they are there and of these kinds."""
    parts = _checked(child, hook, value, dict, "an answer")
    if parts.keys() != kinds.keys():
        got = ", ".join(map(str, parts))
        raise FedbenchError(f"{child.what} must answer {hook} in full, got {got}")
    for name, kind in kinds.items():
        _checked(child, hook, parts[name], kind, f"a legal {name!r}")
    return dict(parts)


def _link(traits: dict[str, bool], f: int | None, file: str, accepts: list[str]) -> SimpleNamespace:
    """A part of a chain, as far as it is asked whether it fits."""
    alphabets = tuple(map(_alphabet, accepts))
    return SimpleNamespace(traits=partial(Traits, **traits), f=f, file=file, accepts=alphabets)


def _device(messages: Payload) -> torch.device:
    values = (getattr(messages, field.name) for field in dataclasses.fields(messages))
    return next(value.device for value in values if isinstance(value, Tensor))


def _alphabet(name: str) -> type[Payload]:
    """An alphabet of fedbench by its name.

    Raises:
        FedbenchError: it has none of that name; another package's cannot be told by name.
    """
    found = getattr(payloads, name, None)
    if not (isinstance(found, type) and issubclass(found, Payload)):
        raise FedbenchError(f"--isolate knows the alphabets of fedbench, got {name}")
    return found
