"""Stand-ins for attacks and rules of other processes, under the contracts of those of this one.

Only this module couples isolation to the contracts: the arguments of a hook are copied into its
process, its answer comes back as plain values. Memories and states stay there (`Kept`).
"""

import copy
import dataclasses
import os
from collections.abc import Callable
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, Self

import torch
from torch import Tensor

from fedbench import payload as payloads
from fedbench.api import Attack, AttackView, Grad, Gradient, Knowledge, Local
from fedbench.api.defense import Defense, ServerView, Traits
from fedbench.core import registry
from fedbench.core.blame import error_line
from fedbench.core.copies import on_device
from fedbench.core.errors import FedbenchError, PluginError, Unavailable
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.isolation.host import Child, Kept, Kinds
from fedbench.isolation.plain import DIFFERENTIATED, REHEARSED, Asked, tensors_of
from fedbench.payload import Payload, Spec


def unanswered(*arguments: object) -> Any:
    """Stand in a view for a function of this process, which stays here."""
    raise AssertionError("only the child's own functions are called")


NOTHING = type(None)
NUMBER = (int, NOTHING)
Form = dict[str, Kinds]
DESCRIBED: Form = {"text": str, "class": str, "file": str, "accepts": list}
ATTACK: Form = {
    "hooks": list,
    "needs": str,
    "works_on": list,
    "idle": bool,
    "recruits": NUMBER,
    "copies": list,
}
RULE: Form = {
    "traits": dict,
    "f": (int, float, NOTHING),
    "rows_needed": int,
    "most_rows": NUMBER,
    "ready": bool,
    "links": list,
}
CRAFTED: Form = {
    "sent": (list, Payload),
    "memory": NUMBER,
    "notes": dict,
    "trace": list,
    "queries": int,
}
AGGREGATED: Form = {"out": Tensor, "state": NUMBER, "kept": (Tensor, NOTHING), "notes": dict}


class StandIn:
    """Common part of both: the process of the plug-in, and `Guest.described` of it."""

    def __init__(self, child: Child, described: dict[str, Any]) -> None:
        self.child = child
        self.described = described
        self.titled = child.what
        self.text: str = described["text"]
        self.file: str = described["file"]

    def keeping(self, number: object) -> Kept | None:
        """Return the value that the plug-in keeps under a number; None for anything else."""
        return Kept(self.child, number) if isinstance(number, int) else None


class IsolatedAttack(StandIn, Attack):
    """An attack in a process of its own. A backdoor's trigger is made in a second one.

    The second is shown held-out images of all clients, which the first is not to know.
    """

    def __init__(
        self, child: Child, described: dict[str, Any], second: Callable[[], StandIn]
    ) -> None:
        super().__init__(child, described)
        self._second = second

    @cached_property
    def _triggering(self) -> StandIn:
        return self._second()

    @property
    def idle(self) -> bool:
        return bool(self.described["idle"])

    @property
    def trains(self) -> bool:
        return not {"poison", "wrap_grad"}.isdisjoint(self.described["hooks"])

    @property
    def wraps(self) -> bool:
        return "wrap_grad" in self.described["hooks"]

    def needs(self) -> Knowledge:
        return Knowledge.parse(self.described["needs"])

    @property
    def recruits(self) -> int | None:
        number: int | None = self.described["recruits"]
        return number

    def require_samples(self, image: tuple[int, ...], classes: int) -> None:
        if "require_samples" in self.described["hooks"]:
            self.child.call("require_samples", image, classes)

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        if "poison" not in self.described["hooks"]:
            return xs, ys
        pair = self.child.call("poison", xs, ys, local)
        images, labels = self.child.checked("poison", pair, tuple, "images and labels")
        return images.to(xs.device), labels.to(ys.device)

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        """Return a gradient that the other process changes in each step; only for `Loop`."""
        device = next(iter(local.tree.values())).device

        def computed(part: str, tree: Tree, x: Tensor, y: Tensor, seed: int, *slope: Tensor) -> Any:
            ours = {name: leaf.to(device) for name, leaf in tree.items()}
            slopes = [values.to(device) for values in slope]
            return getattr(grad, part)(ours, x.to(device), y.to(device), Key(seed), *slopes)

        answers = {part: partial(computed, part) for part in DIFFERENTIATED}
        wrapped = self.keeping(
            self.child.call("wrap_grad", grad.batch_size, local, answers=answers)
        )
        assert wrapped is not None

        def gradient(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            answer = self.child.call("gradient", wrapped.number, tree, x, y, key, answers=answers)
            changed: Tree = self.child.checked("wrap_grad", answer, dict, "a gradient")
            return {name: part.to(x.device) for name, part in changed.items()}

        return gradient

    @property
    def learns(self) -> bool:
        return "learn" in self.described["hooks"]

    def learn(self, view: AttackView, learned: Tensor | None) -> Tensor | None:
        shown, asked, answers = self._shown(view)
        answer = self.child.call("learn", shown, asked, learned, form=view.own, answers=answers)
        result: Tensor = self.child.checked("learn", answer, Tensor, "a tensor")
        return result.to(view.updates.device)

    def trigger(
        self, xs: Tensor, ys: Tensor, learned: Tensor | None = None
    ) -> tuple[Tensor, int] | None:
        if "trigger" not in self.described["hooks"]:
            return None
        arguments = [xs, ys, learned] if self.learns else [xs, ys]
        answer = self._triggering.child.call("trigger", *arguments)
        if answer is None:
            return None
        images, label = self.child.checked("trigger", answer, tuple, "images and a label")
        return images.to(xs.device), int(label)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload | list[bytes], Any]:
        shown, asked, answers = self._shown(view)
        number = memory.number if isinstance(memory, Kept) else None
        answer = self.child.call("craft", shown, asked, number, form=view.own, answers=answers)
        fields = self.child.fields("craft", answer, CRAFTED)
        view.notes.update(fields["notes"])
        view.trace.extend(fields["trace"])
        if view.defense is not None:
            view.defense.queries = max(view.defense.queries, int(fields["queries"]))
        return fields["sent"], self.keeping(fields["memory"])

    def _shown(self, view: AttackView) -> tuple[AttackView, Asked | None, dict[str, Any]]:
        """Return the view without its functions, what is asked, and the functions by name."""
        device = view.updates.device
        answers: dict[str, Callable[..., Any]] = {"compress": lambda x: view.compress(x.to(device))}
        asked = None
        if view.defense is not None:
            assert isinstance(view.defense.rule, StandIn)  # both are isolated, or none is
            answers["rule"] = view.defense
            asked = (view.defense.rule.text, view.defense.checks)
        lab = view.rehearsal
        if lab is not None:
            here = partial(on_device, device=device)
            answers["losses"] = lambda *given: view.loss(*map(here, given))
            answers["gradients"] = lambda *given: view.gradient(*map(here, given))
            answers["pixels"] = lambda *given: view.image_gradient(*map(here, given))
            answers["steps"] = lambda *given, steps=lab.steps: steps(*map(here, given))
            stay: dict[str, Any] = dict.fromkeys(REHEARSED, unanswered)
            lab = dataclasses.replace(lab, **stay)
        shown = dataclasses.replace(
            view, compress=unanswered, defense=None, rehearsal=lab, notes={}, trace=[]
        )
        return shown, asked, answers


class IsolatedDefense(StandIn, Defense[Any]):
    """A rule, with its prefilters, in a process of its own."""

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

    def _tensor(self, hook: str, argument: object, requirement: str) -> Tensor | None:
        answer = self._ask(hook, argument)
        tensor: Tensor | None = self.child.checked(hook, answer, (Tensor, NOTHING), requirement)
        return tensor

    def traits(self) -> Traits:
        return self._traits

    def declared(self, f: int) -> Self:
        described = _description(self.child, "defense", self._ask("declared", f))
        return self if described["text"] == self.text else type(self)(self.child, described)

    def refuses(self, alphabet: type[Payload]) -> str | None:
        why = self._ask("refuses", alphabet)
        return None if why is None else str(why)

    def init(self, spec: Spec) -> Any:
        """Return the state, which stays in the rule's process; apart, the form it is made of."""
        return spec if self._is_apart else self.keeping(self._ask("init", spec))

    def rows_needed(self) -> int:
        return int(self.described["rows_needed"])

    def most_rows(self) -> int | None:
        most: int | None = self.described["most_rows"]
        return most

    def ready(self, view: ServerView) -> bool:
        """Return the rule's answer, or what follows from `rows_needed` and `most_rows`."""
        own = self.described["ready"]
        return bool(self._ask("ready", view)) if own else super().ready(view)

    def tolerates(self, n: int) -> int:
        return int(self._ask("tolerates", n))

    def sensitivity(self, clip: float, n: int) -> float | None:
        bound = self._ask("sensitivity", clip, n)
        return None if bound is None else float(bound)

    def order_weights(self, n: int) -> Tensor | None:
        return self._tensor("order_weights", n, "weights or None")

    def select(self, squared: Tensor) -> Tensor | None:
        rows = self._tensor("select", squared, "rows or None")
        return None if rows is None else rows.to(squared.device)

    def candidates(self, squared: Tensor) -> Tensor | None:
        rows = self._tensor("candidates", squared, "rows or None")
        return None if rows is None else rows.to(squared.device)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        number = state.number if isinstance(state, Kept) else state
        answer = self._ask("aggregate", received, number, view)
        fields = self.child.fields("aggregate", answer, AGGREGATED)
        view.findings.kept = fields["kept"]
        view.findings.notes.update(fields["notes"])
        later = None if self._is_apart else self.keeping(fields["state"])  # it ended with the fork
        device = next(iter(tensors_of(received).values())).device
        return fields["out"].to(device), later


class Isolation:
    """Loader of attacks and rules into processes of their own, which end with the block."""

    def __enter__(self) -> Self:
        if not hasattr(os, "fork"):
            raise Unavailable("--isolate needs a system with fork, as Linux; play without it")
        self.children: list[Child] = []
        self._ready = [self._started(), self._started()]  # they import while the data are loaded
        return self

    def __exit__(self, *error: object) -> None:
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
            attributes: dict[str, Any] = {"accepts": tuple(map(_alphabet, described["accepts"]))}
            name = described["class"]  # errors show it
            if kind == "defense":
                return type(name, (IsolatedDefense,), attributes)(child, described)
            attributes["works_on"] = tuple(map(str, described["works_on"]))
            again = partial(self.load, kind, text)
            return type(name, (IsolatedAttack,), attributes)(child, described, again)
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


def _alphabet(name: str) -> type[Payload]:
    """Return an alphabet of fedbench by its name; another package's raises `FedbenchError`."""
    alphabet = getattr(payloads, name, None)
    if not (isinstance(alphabet, type) and issubclass(alphabet, Payload)):
        raise FedbenchError(
            "--isolate must have plug-ins that work on alphabets of fedbench, got one with "
            f"accepts = ({name},); play without --isolate"
        )
    return alphabet
