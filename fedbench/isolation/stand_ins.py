"""Stand-ins for attacks and rules of other processes, under the contracts of those of this one.

Only this module couples isolation to the contracts: the arguments of a hook are copied into its
process, its answer comes back as plain values. Memories and states stay there (`Kept`).
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
from fedbench.core.blame import error_line
from fedbench.core.errors import FedbenchError, PluginError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.isolation.host import Child, Kept, Kinds
from fedbench.payload import Payload, Spec


def unanswered(*arguments: object) -> Any:
    """Stand in a view for a function of this process, which stays here."""
    raise AssertionError("only the child's own functions are called")


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
    """Common part of both: the plug-in's description, and the process that it is in.

    Args:
        child: Process with the plug-in.
        described: Description of the plug-in, see `fedbench.isolation.child`.
    """

    def __init__(self, child: Child, described: dict[str, Any]) -> None:
        self.child = child
        self.described = described
        self.titled = child.what
        self.text: str = described["text"]
        self.file: str = described["file"]

    def keeping(self, number: object) -> Kept | None:
        """Return the value that the plug-in keeps under a number."""
        return Kept(self.child, number) if isinstance(number, int) else None


class IsolatedAttack(StandIn, Attack):
    """An attack in a process of its own. A backdoor's trigger is made in a second one.

    The second is shown held-out images of all clients, which the first is not to know.

    Args:
        child: Process with the attack.
        described: Description of the attack.
        second: Function that starts another process with the same attack.
    """

    def __init__(
        self, child: Child, described: dict[str, Any], second: Callable[[], StandIn] | None = None
    ) -> None:
        super().__init__(child, described)
        self._second = second
        self._triggering: StandIn | None = None

    @property
    def idle(self) -> bool:
        """True if the attack overrides nothing."""
        return bool(self.described["idle"])

    @property
    def trains(self) -> bool:
        """True if it has a hook of training."""
        return bool({"poison", "wrap_grad"} & set(self.described["hooks"]))

    @property
    def wraps(self) -> bool:
        """True if it changes the gradients of its clients."""
        return "wrap_grad" in self.described["hooks"]

    def needs(self) -> Knowledge:
        """Return the knowledge that the attack declares."""
        return Knowledge.parse(self.described["needs"])

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        """Return the images and labels that the attack makes there."""
        if "poison" not in self.described["hooks"]:
            return xs, ys
        pair = self.child.call("poison", xs, ys, local)
        images, labels = self.child.checked("poison", pair, tuple, "images and labels")
        return images.to(xs.device), labels.to(ys.device)

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        """Return a gradient that goes there and back in each step.

        Only training client by client (`fedbench.executors.training.Loop`) can follow it.
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
            answer = self.child.call("gradient", *arguments, answers=answers)
            there: Tree = self.child.checked("wrap_grad", answer, dict, "a gradient")
            return {name: part.to(x.device) for name, part in there.items()}

        return gradient

    def trigger(self, xs: Tensor, ys: Tensor) -> tuple[Tensor, int] | None:
        """Return the backdoor's test images that the second process makes."""
        if "trigger" not in self.described["hooks"]:
            return None
        if self._triggering is None:
            self._triggering = self if self._second is None else self._second()
        answer = self._triggering.child.call("trigger", xs, ys)
        if answer is None:
            return None
        images, label = self.child.checked("trigger", answer, tuple, "images and a label")
        return images.to(xs.device), int(label)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload | list[bytes], Any]:
        """Return the messages that it crafts there; its questions are answered here meanwhile."""
        device = view.updates.device
        answers: dict[str, Callable[..., Any]] = {"compress": lambda x: view.compress(x.to(device))}
        rule = None
        if view.defense is not None:
            assert isinstance(view.defense.rule, StandIn)  # both are isolated, or none is
            answers["rule"] = view.defense
            rule = view.defense.rule.text
        shown = dataclasses.replace(view, compress=unanswered, defense=None, notes={}, trace=[])
        number = memory.number if isinstance(memory, Kept) else None
        answer = self.child.call("craft", shown, rule, number, form=view.own, answers=answers)
        fields = self.child.fields("craft", answer, CRAFTED)
        view.notes.update(fields["notes"])
        view.trace.extend(fields["trace"])
        if view.defense is not None:
            view.defense.queries = max(view.defense.queries, int(fields["queries"]))
        return fields["sent"], self.keeping(fields["memory"])


class IsolatedDefense(StandIn, Defense[Any]):
    """A rule, with its prefilters, in a process of its own.

    Args:
        child: Process with the rule.
        described: Description of the rule.
    """

    def __init__(self, child: Child, described: dict[str, Any]) -> None:
        super().__init__(child, described)
        self.f = described["f"]
        self.links = [_link(**link) for link in described["links"]]
        self._traits = Traits(**described["traits"])
        self._is_apart = False

    def apart(self) -> Self:
        """Return the same rule, called in forks of its process, which keep nothing."""
        other = copy.copy(self)
        other._is_apart = True
        return other

    def _ask(self, hook: str, *arguments: object) -> Any:
        return self.child.call(hook, *arguments, apart=self._is_apart)

    def traits(self) -> Traits:
        """Return the traits that the rule declares."""
        return self._traits

    def declared(self, f: int) -> Self:
        """Return it with an ``f`` that was left open filled in."""
        described = _description(self.child, "defense", self._ask("declared", f))
        return self if described["text"] == self.text else type(self)(self.child, described)

    def refuses(self, alphabet: type[Payload]) -> str | None:
        """Return why the rule has no meaning on an alphabet; None if it has one."""
        why = self._ask("refuses", alphabet)
        return None if why is None else str(why)

    def init(self, spec: Spec) -> Any:
        """Return the state, which stays in the rule's process; apart, the form it is made of."""
        return spec if self._is_apart else self.keeping(self._ask("init", spec))

    def rows_needed(self) -> int:
        """Return the smallest ``n`` for which the rule is defined."""
        return int(self.described["rows_needed"])

    def most_rows(self) -> int | None:
        """Return the largest ``n`` that it can answer for, if there is a limit."""
        most: int | None = self.described["most_rows"]
        return most

    def ready(self, view: ServerView) -> bool:
        """Return the rule's answer, or what follows from `rows_needed` and `most_rows`."""
        own = self.described["ready"]
        return bool(self._ask("ready", view)) if own else super().ready(view)

    def tolerates(self, n: int) -> int:
        """Return the rule's breakdown point."""
        return int(self._ask("tolerates", n))

    def sensitivity(self, clip: float, n: int) -> float | None:
        """Return the rule's sensitivity, if proved."""
        bound = self._ask("sensitivity", clip, n)
        return None if bound is None else float(bound)

    def order_weights(self, n: int) -> Tensor | None:
        """Return the rule's coefficients of sorted rows, if it has such."""
        answer = self._ask("order_weights", n)
        kinds = (Tensor, NOTHING)
        weights: Tensor | None
        weights = self.child.checked("order_weights", answer, kinds, "weights or None")
        return weights

    def select(self, squared: Tensor) -> Tensor | None:
        """Return the rows that the rule averages, if squared distances decide them."""
        answer = self._ask("select", squared)
        rows = self.child.checked("select", answer, (Tensor, NOTHING), "rows or None")
        return None if rows is None else rows.to(squared.device)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        """Return the aggregate that the rule computes there, and fill in its findings."""
        number = state.number if isinstance(state, Kept) else state
        answer = self._ask("aggregate", received, number, view)
        fields = self.child.fields("aggregate", answer, AGGREGATED)
        view.findings.kept = fields["kept"]
        view.findings.notes.update(fields["notes"])
        later = None if self._is_apart else self.keeping(fields["state"])  # it ended with the fork
        return fields["out"].to(_device(received)), later


class Isolation:
    """Loader of attacks and rules into processes of their own, which end with the block."""

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
        """Load a plug-in as `fedbench.core.registry.load` does, attacks and rules over there."""
        if kind not in ("attack", "defense"):
            return registry.load(kind, text)
        child = self._ready.pop() if self._ready else self._started()
        child.what = registry.owner(kind, text)
        try:
            answer = child.call("load", kind, text, torch.get_num_threads())
            described = _description(child, kind, answer)
            alphabets = {"accepts": tuple(map(_alphabet, described["accepts"]))}
            name = described["class"]  # errors show it
            if kind == "defense":
                return type(name, (IsolatedDefense,), alphabets)(child, described)
            again = partial(self.load, kind, text)
            return type(name, (IsolatedAttack,), alphabets)(child, described, again)
        except FedbenchError:
            raise
        except Exception as error:
            problem = f"raised {error_line(error)}"
            raise PluginError(child.what, "its description", problem) from error


def _description(child: Child, kind: str, answer: Any) -> dict[str, Any]:
    """Return the description of a plug-in, if all of it is there and of its kind."""
    return child.fields("its description", answer, DESCRIBED | (ATTACK, RULE)[kind == "defense"])


def _link(traits: dict[str, bool], f: int | None, file: str, accepts: list[str]) -> SimpleNamespace:
    """Return a part of a chain, as far as its fit is examined."""
    alphabets = tuple(map(_alphabet, accepts))
    return SimpleNamespace(traits=partial(Traits, **traits), f=f, file=file, accepts=alphabets)


def _device(messages: Payload) -> torch.device:
    values = (getattr(messages, field.name) for field in dataclasses.fields(messages))
    return next(value.device for value in values if isinstance(value, Tensor))


def _alphabet(name: str) -> type[Payload]:
    """Return an alphabet of fedbench by its name; another package's raises `FedbenchError`."""
    alphabet = getattr(payloads, name, None)
    if not (isinstance(alphabet, type) and issubclass(alphabet, Payload)):
        raise FedbenchError(f"--isolate knows the alphabets of fedbench, got {name}")
    return alphabet
