"""The adaptive attack: it sends what raises the loss on its own clients' samples most."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Knowledge, Local, Tier
from fedbench.core import registry
from fedbench.core.errors import require
from fedbench.core.trees import Layout
from fedbench.payload import Payload, Rankings, TopRankings

from .copied import importable, installed
from .crafted import Origin, honest_rows, mean_answer, sender, split, unit
from .metered import Exhausted, Metered
from .rankings import cheap_crossings, crossings
from .samples import balanced
from .scalars import tree_after
from .typical import typical

QUERIES = 20  # of the server's rule, in a round at budget 1
PASSES = 6  # gradients over its samples, in a round at budget 1
LARGEST = 1e6  # strength of a push, in distances of an honest row from the mean
OVERFLOW = 1e15  # strength after which sums and products of weights are no finite floats
SEARCH = 50  # queries from which on attacks that search with the rule are candidates
AHEAD = 5  # rounds that the last choice looks ahead
STEPS = 3  # gradients that stand for the honest training of one of these rounds
FINALISTS = 3  # candidates that are compared so far ahead
NEAR = 0.8  # share of the best candidate's added loss that they add at least


@dataclass(frozen=True, kw_only=True)
class Auto(Attack):
    """Send the messages after which the deployed model does worst on its own clients' samples.

    In each round it tries candidates: it asks the rule what it would answer, rehearses the server's
    step, and measures the mean cross-entropy of 256 of its clients' samples, as many of each class,
    on the model that would be deployed. Candidates are

    - pushes ``mean + strength * direction`` of the messages it reads, through the client's codec,
      whose strength is searched. Directions are the gradient of that loss where the honest round
      leads, its sign, its sign times the standard deviation, the average of past gradients, the
      sign of the gradient towards wrong labels, the training of its clients on wrong labels, minus
      the mean, and the standard deviation on both sides. Where a codec makes other numbers of an
      update, which it may clip, the last three are also tried of the message's numbers, as sent;
      where these are an update behind gates, all of them open, so are both gradients and the sign;
    - against a rule that leaves rows out and is sure to stand none, one push along that gradient of
      which each client sends its own share of the coordinates, the first much farther (`split`);
    - against such a rule, two rows with the signs of the gradient, or of past ones, but with what
      honest rows have in common: lengths, agreement of signs, angle to the model (`typical`);
    - one push along that gradient so far that a model which follows it has no finite scores;
    - of rankings, those that carry edges over the cut whose change raises the loss (`crossing`);
      where a rule looks at whole rows, also near the mean only the cheapest (`cheap_crossings`);
    - what each installed attack would send that trains as honest clients do, sends no raw bytes and
      needs no more knowledge: from 50 queries on if it asks the rule, never if it rehearses too.

    What did most in past rounds is tried first; a third of the queries is kept for what was never
    tried. A quarter goes into the strength of the best push; of signs, bits and rankings as many as
    gradients are left, at most, go into climbing before that: from the best push along the gradient
    of the model that it leads to, of rankings by crossings along the sum of such gradients. With a
    budget of 10, up to three near-best candidates are compared again: each is simulated for five
    rounds, with the same shift of the aggregate in every round and honest training in between.
    Messages that are not finite, or that the server's checks reject, are no candidates.

    Args:
        budget: Multiple of 20 queries of the rule, and of 6 gradients over its samples, in a round.
        knows: Messages it reads: those of ``all`` benign clients, those of its own clients as if
            honest (``colluders``), or each client its ``own`` alone.
        asks: Whether it queries the server's rule. If not, it rehearses with the mean, and stays as
            near to the mean as honest rows are where the alphabet sets no limit.

    References:
        None: proposed here. The idea, one attack with a budget instead of parameters, is that of
        Croce and Hein, "Reliable Evaluation of Adversarial Robustness with an Ensemble of Diverse
        Parameter-free Attacks", ICML 2020, https://arxiv.org/abs/2003.01690.
    """

    budget: float = 1.0
    knows: Tier = "all"
    asks: bool = True

    def __post_init__(self) -> None:
        require("Auto.budget", self.budget, 0 < self.budget <= 100, "in (0, 100]")

    def needs(self) -> Knowledge:
        return Knowledge(self.knows, defense=self.asks, data=True)

    def copies(self) -> list[type[Attack]]:
        """Return the attacks of other packages; the sources of ours are in every id."""
        foreign = [name for name in registry.names("attack") if registry.is_foreign("attack", name)]
        return list(importable(foreign).values())

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        """Train its clients a second time, with every label one class further."""
        return xs, (ys + 1) % local.classes

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send the best of what the budget allows to try."""
        honest = honest_rows(view)
        if honest is None:
            return view.own, memory
        rehearsed = Rehearsed(self, view, honest, memory or Past())
        best = rehearsed.best()
        view.notes["played"] = best.name
        view.notes["loss"] = best.loss
        view.notes["honest loss"] = rehearsed.neutral.loss
        return best.sent, rehearsed.past


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


class Rehearsed:
    """One round of the attack: what it may still spend, and what it has tried.

    Args:
        attack: The attack with its budget.
        view: What it is shown.
        honest: ``(b, k)`` finite rows of the messages it reads.
        past: Memory, which is changed.
    """

    def __init__(self, attack: Auto, view: AttackView, honest: Tensor, past: Past) -> None:
        assert view.rehearsal is not None
        self.view = view
        self.honest = honest
        self.past = past
        self.allowed = attack.needs()
        self.queries = math.ceil(QUERIES * attack.budget)
        self.passes = math.ceil(PASSES * attack.budget)
        final = FINALISTS * (AHEAD - 1) * STEPS
        self.reserved = final if self.passes > final else 0  # for the look ahead
        self.kept = 0  # queries for what follows the candidates
        self.tried: list[Tried] = []
        # Who does not ask the rule must not be far from honest rows, or any filter finds it.
        self.free = attack.asks or view.own.bounded
        x, y = view.rehearsal.x, view.rehearsal.y
        drawn = balanced(y, view.key.fold("samples"))
        self.x = x[drawn]
        self.y = y[drawn]
        # Pushes are of values, or of updates where a codec makes other values of them.
        aligned = view.own.aligned and honest.shape[1] == view.updates.shape[1]
        rows = honest if aligned else view.updates
        wire = isinstance(view.own, Rankings | TopRankings)
        send = sender(view, "wire" if wire else "codec") if aligned else self._compressed
        self.origins = [Origin.of("", rows, send)]
        if self.free and not aligned:  # a codec may clip what it encodes, the wire does not
            self.origins.append(Origin.wired(view, honest))
        self.split: Origin | None = None
        self.plain: Origin | None = None
        rule = view.defense and view.defense.rule
        filters = bool(rule and rule.traits().detects and not rule.tolerates(view.n))
        # A sum, or a rule by column, does not ask how far a whole row is.
        self.whole = bool(rule and not (rule.traits().reads_sum or rule.traits().columns))
        if filters and len(view.own) > 1:
            own = view.own.values().to(rows) if wire else view.updates
            sends = split(send, self.origins[0].base, own)
            self.split = dataclasses.replace(self.origins[0], name="split ", send=sends)
        if filters and aligned and not wire:
            size = float(torch.linalg.vector_norm(honest, dim=1).mean())
            zero = torch.zeros_like(self.origins[0].base)
            self.plain = dataclasses.replace(self.origins[0], base=zero, size=size)
        self.neutral = self.rate("honest", view.own)
        self.gradient = self.slope(self.y, self.neutral.answer)
        pull = unit(self.gradient)
        past.pull = pull if past.pull is None else 0.8 * past.pull + pull

    def _compressed(self, row: Tensor) -> Payload:
        return self.view.compress(row.expand(len(self.view.own), -1))

    def rate(
        self, name: str, sent: Payload, row: Tensor | None = None, again: "Again | None" = None
    ) -> Tried:
        """Try messages: ask the rule, and return the loss of the model after the server's step."""
        self.charge(1)
        oracle = self.view.defense
        strict = oracle is not None and oracle.checks == "range"
        if self.tried and not bool(sent.passes("range" if strict else "finite").all()):
            return Tried(name, sent, self.neutral.answer, -math.inf, row, again)
        answer = oracle.ask(sent, 0) if oracle else mean_answer(self.honest, sent, self.view.n)
        self.tried.append(Tried(name, sent, answer, self.loss(answer), row, again))
        self.view.trace.append((float(len(self.tried)), self.tried[-1].loss))
        return self.tried[-1]

    def charge(self, count: int, kept: int = 0) -> None:
        """Spend queries, or raise `Exhausted` if fewer than those ``kept`` would be left."""
        if self.queries - kept < count:
            raise Exhausted
        self.queries -= count
        if self.view.defense is not None:
            self.view.defense.queries += count

    def loss(self, *answers: Tensor) -> float:
        """Return the mean loss of its samples on the model deployed after these answers."""
        return float(self.view.loss(self.view.deployed(*answers), self.x, self.y).mean())

    def slope(self, labels: Tensor, answer: Tensor) -> Tensor:
        """Return the gradient ``(d,)`` of the loss after an answer, in what clients train."""
        self.passes -= 1
        return self.view.gradient(tree_after(self.view, answer), self.x, labels, self.passes)

    def best(self) -> Tried:
        """Try candidates until the budget is spent, and return the one to be played."""
        gain = self.past.gain
        candidates = self.candidates()
        rated = sorted((name for name in candidates if name in gain), key=lambda name: -gain[name])
        new = [name for name in candidates if name not in gain]
        last = self.queries // 4 if self.free else 0
        if self.view.own.bounded:
            last = min(self.passes - self.reserved, last)
        self.kept = last
        spared = last + (self.queries - last) // 3 if new else last
        try:
            while rated and self.queries > spared:
                self.attempt(rated[0], candidates[rated.pop(0)])
            for name in [*new, *rated]:
                if self.queries > last:
                    self.attempt(name, candidates[name])
            self.climb()
            self.refine()
        except Exhausted:
            self.note_exhaustion()
        return self.final()

    def note_exhaustion(self) -> None:
        """Note that the budget ended too early: the last quarter of the queries still gained."""
        losses = [tried.loss for tried in self.tried]
        early = max(losses[: math.ceil(0.75 * len(losses))])
        if max(losses) - self.neutral.loss > 1.05 * (early - self.neutral.loss):
            self.view.notes["ended"] = "budget"

    def attempt(self, name: str, candidate: Callable[[], object]) -> None:
        """Try a candidate, and remember the loss that it adds."""
        before = len(self.tried)
        try:
            candidate()
        finally:
            gains = [tried.loss - self.neutral.loss for tried in self.tried[before:]]
            past = self.past.gain.setdefault(name, max([0.0, *gains]))
            if gains:
                self.past.gain[name] = (max(0.0, *gains) + past) / 2

    def candidates(self) -> dict[str, Callable[[], object]]:
        """Return everything that could be tried, in the order of a first round."""
        g = self.gradient
        origin = self.origins[0]
        assert self.view.rehearsal is not None
        wrong = (self.y + 1) % self.view.rehearsal.classes
        directions = {
            "gradient": g,
            "gradient sign": torch.sign(g),
            "gradient sign times std": torch.sign(g) * origin.std.abs(),
            "past gradients": self.past.pull,
            "wrong labels sign": -torch.sign(self.slope(wrong, self.neutral.answer)),
            "wrong labels trained": (self.view.trained - self.view.updates).mean(dim=0),
        }
        tries: dict[str, Callable[[], object]] = {}
        if isinstance(self.view.own, Rankings | TopRankings):
            for share in (1.0, 0.3):
                tries[f"crossing {share:g}"] = partial(self.cross, f"crossing {share:g}", g, share)
            for room in (1.0, 0.5, 2.0) if self.whole else ():
                tries[f"cheap crossing {room:g}"] = partial(self.cross_cheaply, room, g)
        elif self.free:
            tries["overflow"] = self.overflow
        pushes: list[tuple[Origin, str, Tensor | None]] = [
            (other, other.name + name, direction)
            for other in self.origins[1:]
            for name, direction in (other.opened(directions) | other.own()).items()
        ]
        pushes += [(origin, name, x) for name, x in (directions | origin.own()).items()]
        if self.plain:
            model = self.view.broadcast.values()[0, : len(g)]
            axis = model if len(model) == len(g) else None
            for name in ("gradient", "past gradients"):
                x = directions[name]
                assert x is not None
                row = typical(x, self.honest, len(self.view.own), axis)
                pushes.insert(0, (self.plain, f"typical {name}", row))
        if self.split:  # first, since equal rows would give its clients away for good
            pushes.insert(0, (self.split, "split gradient", g))
        for origin, name, direction in pushes:
            assert direction is not None
            length = float(torch.linalg.vector_norm(direction))
            if 0 < length < math.inf:
                tries[name] = partial(self.push, name, direction * (origin.size / length), origin)
        names = installed(type(self.view.own), self.allowed) if self.free else []
        if self.queries < SEARCH:
            names = [name for name in names if not registry.load("attack", name).needs().defense]
        return tries | {name: partial(self.copy, name) for name in names}

    def overflow(self) -> None:
        """Try the push along the gradient after which a mean has no finite scores."""
        origin = self.origins[0]
        length = float(torch.linalg.vector_norm(self.gradient)) or 1.0
        self.pushed("overflow", self.gradient * (origin.size / length), origin, OVERFLOW)

    def push(self, name: str, push: Tensor, origin: Origin) -> None:
        """Search the strength of a push: up while the loss grows, else down.

        It starts at the strength that was best in past rounds, which is 1 in the first, and goes on
        in steps that grow.
        """
        best = self.past.strength.get(name, 1.0)
        highest = self.pushed(name, push, origin, best)
        self.past.strength[name] = best
        for factor in (4.0, 0.5) if self.free else (0.5,):
            first = best
            step = factor
            while 1 / 64 <= best * step <= LARGEST:
                loss = self.pushed(name, push, origin, best * step)
                if loss <= highest:
                    break
                highest = loss
                best *= step
                self.past.strength[name] = best
                step *= step
            if best != first:
                return

    def pushed(self, name: str, push: Tensor, origin: Origin, strength: float) -> float:
        """Try one strength of a push, and return the loss."""
        row = origin.base + strength * push
        climbs = origin is self.origins[0]  # the gradient is not one of the other origin's rows
        tried = self.rate(f"{name} x {strength:.3g}", origin.send(row), row if climbs else None)
        return tried.loss

    def cross(self, name: str, gradient: Tensor, share: float) -> Tried:
        """Try the ranking that carries edges over the cut whose change raises the loss."""
        own = self.view.own
        assert isinstance(own, Rankings | TopRankings)
        sums = self.honest.double().mean(dim=0) * (self.view.n - len(own))
        row = crossings(sums, gradient, self.view.deployed(self.neutral.answer), own, share)
        return self.rate(name, own.nearest(row.expand(len(own), -1)), row, self.cross_again)

    def cross_again(self, gradient: Tensor) -> Tried:
        """Try a crossing while it climbs."""
        return self.cross("crossing 1 climbed", gradient, 1.0)

    @cached_property
    def middle(self) -> Tried:
        """Messages that all are the ranking of the mean."""
        return self.rate("mean", self.origins[0].send(self.origins[0].base))

    def cross_cheaply(self, room: float, gradient: Tensor, which: str = "") -> Tried:
        """Try the ranking of `cheap_crossings`, in a room in squares of an honest distance."""
        own: Any = self.view.own
        model = self.view.deployed(self.middle.answer)
        base = self.middle.sent.values()[0]
        most = room * self.origins[0].size ** 2
        row = cheap_crossings(base, self.middle.answer, gradient, model, own, self.view.n, most)
        again = partial(self.cross_cheaply, room, which="climbed ")
        name = f"cheap crossing {which}{room:g}"
        return self.rate(name, self.origins[0].send(row), row, again)

    def copy(self, name: str) -> None:
        """Try what an installed attack would send."""
        view = self.view
        attack = registry.load("attack", name)
        oracle = view.defense and Metered(view.defense, partial(self.charge, kept=self.kept))
        shown = dataclasses.replace(view, defense=oracle, notes={}, trace=[])
        alone = attack.needs().tier == "own"  # it remembers by client, and clients come and go
        memory = None if alone else self.past.memories.get(name)
        try:
            sent, self.past.memories[name] = attack.craft(shown, memory)
        except Exhausted:
            return  # a search that is too long takes nothing from what follows
        except Exception as error:  # of another attack, which is only one candidate
            view.notes["failed"] = f"{name}: {error}"
            return
        if isinstance(sent, Payload) and len(sent) == len(view.own):
            self.rate(name, sent)

    def climb(self) -> None:
        """Go on from the best push along gradients of the model that it leads to.

        Only where the alphabet sets a limit: behind medians of floats it made the attack weaker
        (docs/results/adaptive.md).
        """
        if self.pushes() and isinstance(self.view.own, Rankings | TopRankings):
            self.recross()
        origin = self.origins[0]
        step = 0.5 if self.view.own.bounded else 0.0
        while self.pushes() and self.passes > self.reserved and step > 0.1:
            best = max(self.pushes(), key=lambda tried: tried.loss)
            assert best.row is not None
            g = self.slope(self.y, best.answer)
            away = float(torch.linalg.vector_norm(best.row - origin.base)) or origin.size
            row = best.row + g * (step * away / max(float(torch.linalg.vector_norm(g)), 1e-30))
            name = f"{best.name.removesuffix(' climbed')} climbed"
            if self.rate(name, origin.send(row), row).loss <= best.loss:
                step /= 2

    def recross(self) -> None:
        """Cross along a sum of gradients, and add that of the model to which each crossing leads.

        They are of the kind that did most, cheap or not. The sum begins with the gradients after
        the honest round and the best push: one holds for few exchanges, a crossing has thousands.
        """
        tried = max(self.pushes(), key=lambda tried: tried.loss)
        crossed = [t for t in self.pushes() if t.again]
        again = max(crossed, key=lambda t: t.loss).again if crossed else None
        again = again or self.cross_again
        total = unit(self.gradient)
        while self.passes > self.reserved:
            total = total + unit(self.slope(self.y, tried.answer))
            tried = again(total)

    def pushes(self) -> list[Tried]:
        """Return all pushes that were tried."""
        width = len(self.origins[0].base)
        return [t for t in self.tried if t.row is not None and len(t.row) == width]

    def refine(self) -> None:
        """Search the strength of the best push, in steps that shrink to 5 percent."""
        origin = self.origins[0]
        factor = 2.0 if self.free and self.pushes() else 1.0
        while factor > 1.05:
            best = max(self.pushes(), key=lambda tried: tried.loss)
            assert best.row is not None
            name = f"{best.name.removesuffix(' refined')} refined"
            for scale in (factor, 1 / factor):
                row = origin.base + scale * (best.row - origin.base)
                if self.rate(name, origin.send(row), row).loss > best.loss:
                    break
            else:
                factor = math.sqrt(factor)

    def final(self) -> Tried:
        """Return what has the highest loss: now, or after five rounds if the budget reaches."""
        # Of equals nothing honest: own messages that stand in for all outvote any single one.
        ranked = sorted(self.tried, key=lambda t: (-t.loss, t is self.neutral))
        kinds: dict[str, Tried] = {}
        for tried in ranked:
            kinds.setdefault(tried.name.partition(" x ")[0], tried)
        if not self.reserved:
            return ranked[0]
        gain = ranked[0].loss - self.neutral.loss
        near = [t for t in kinds.values() if t.loss - self.neutral.loss >= NEAR * gain]
        return max(near[:FINALISTS], key=self.later)

    def later(self, tried: Tried) -> float:
        """Return the loss after rounds that all move the answer as far as this one."""
        moved = tried.answer - self.neutral.answer
        answers = [tried.answer]
        for _ in range(AHEAD - 1):
            answers.append(self.honest_answer(answers) + moved)
        return self.loss(*answers)

    def honest_answer(self, answers: list[Tensor]) -> Tensor:
        """Return the message ``(k,)`` of training on its samples, after these answers.

        It trains as far as its clients did in this round, in few steps along the gradient.
        """
        view = self.view
        tree = view.ahead(*answers)
        assert view.rehearsal is not None
        layout = Layout.of({name: tuple(tree[name].shape) for name in view.rehearsal.names})
        start = layout.flatten(tree)
        length = float(torch.linalg.vector_norm(view.updates - view.idle, dim=1).mean()) / STEPS
        at = start
        for _ in range(STEPS):
            self.passes -= 1
            g = view.gradient(tree | layout.unflatten(at), self.x, self.y, self.passes)
            at = at - g * (length / max(float(torch.linalg.vector_norm(g)), 1e-30))
        # Idle clients send what they got, but of differences and running statistics nothing.
        update = torch.where(view.idle[0] != 0, at, at - start)
        values = self._compressed(update).values().to(torch.float64)
        return values.mean(dim=0).to(answers[0])
