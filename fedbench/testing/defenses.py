"""Contract tests of aggregation rules and prefilters."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits, hooks
from fedbench.api.prefilter import links_of, transform
from fedbench.core.blame import Hook, ask
from fedbench.core.rng import Key
from fedbench.experiment.compatibility import examine
from fedbench.payload import (
    FloatVectors,
    FoldedMessages,
    KeptMessages,
    Patch,
    Payload,
    has_bits_alone,
)
from fedbench.testing.classes import must_be, must_be_alphabets, why_nothing_is_tried
from fedbench.testing.contracts import example_payloads
from fedbench.testing.contracts import view_of as view_of

OUTLIER_DISTANCE = 1e10  # where outliers are, of rows whose norm is about 10
HISTORY_ROUNDS = 16  # rounds after which a rule with a history must have noticed outliers
COPY = "others read them, too: begin with received.values().clone()"
MAX_NORM = 1e5  # below this an answer has not followed them


def check_defense(defense: Defense[Any], n: int = 9, payloads: Sequence[Payload] = ()) -> None:
    """Check that a rule keeps the laws of rules and its own traits.

    On every alphabet that it does not refuse:

    - it answers ``(k,)``, finite, and leaves its input and its state alone;
    - the order of the clients is irrelevant (on average, where it draws numbers);
    - if all sent the same, that comes back (its nearest message, if the rule ``shrinks``; if it
      ``sparsifies``, where it is not brought to the middle);
    - only a ``randomized`` rule draws numbers, only one that ``detects`` says whom it left out.

    On floats, if it works on them:

    - ``shift`` and ``scale``: a vector added to all rows, a factor of all rows, come back;
    - ``mean_at_zero``: with ``f`` 0 it is the mean;
    - `Defense.tolerates`: so many rows that are far away, in one place or in many, NaN, infinite or
      1e30, leave the answer finite and bounded; if it is ``sharp``, one more does not;
    - if it overrides `Defense.aggregate_sums`, or packets are enough for it (`Defense.keeps`), that
      is the answer to the rows;
    - it does something: outliers that move the mean move it otherwise, in some round if it
      remembers, unless it needs the sum alone (of bits and rankings, if it works on these only, two
      that are turned around). One that ``reports`` is the mean instead, whatever it gets, and finds
      something.

    Args:
        defense: The rule with its parameters, ``f`` filled in.
        n: Number of rows to try it with; more if it needs more.
        payloads: Messages of other alphabets than ours, as many rows of each or more.
    """
    must_be("defense", defense, "check_defense")
    for link in links_of(defense):
        must_be_alphabets(link, "accepts", link.accepts)
        if link.lacks_f:
            name = type(link).__name__
            raise AssertionError(
                f"check_defense must be given an f, got {name}.f = None; write {name}(f=2)"
            )
    needed = ask(defense, "rows_needed", int)
    Hook(defense, "rows_needed").must(needed >= 1, "a number of rows >= 1", needed)
    n = max(n, needed)
    most = ask(defense, "most_rows", (int, type(None)))
    assert most is None or n <= most, f"cannot be tried with {n} rows"
    ask(defense, "traits", Traits)
    examine(defense, n)
    survives = defense.tolerates(n)
    requirement = f"fewer than all of {n} rows, at most {n - 1}"
    Hook(defense, "tolerates").must(survives < n, requirement, survives)
    words = (str, type(None))
    examples = [*example_payloads(n), *payloads]
    tried = [p for p in examples if ask(defense, "refuses", words, type(p)) is None]
    assert tried, why_nothing_is_tried("check_defense", "the rule works on", payloads)
    for payload in tried:
        _check_on(defense, payload)
        _check_sums(defense, payload)
        _check_kept(defense, payload)
    floats = [payload for payload in tried if isinstance(payload, FloatVectors)]
    for payload in floats:
        _check_equivariance(defense, payload.x)
        _check_breakdown(defense, payload.x)
    if defense.traits().reports:
        _check_reports(defense, tried)
    elif not defense.traits().reads_sum:
        _check_canary(defense, floats or tried)


def check_prefilter(
    prefilter: Prefilter, rule: Defense[Any], n: int = 9, payloads: Sequence[Payload] = ()
) -> None:
    """Check a prefilter in front of ``rule``; alone it loses no row without saying so.

    Args:
        prefilter: The prefilter with its parameters.
        rule: The rule that is given what comes out of it.
        n: As of `check_defense`.
        payloads: As of `check_defense`.
    """
    must_be("prefilter", prefilter, "check_prefilter")
    must_be("defense", rule, "check_prefilter")
    chain = ask(prefilter, "before", Defense, rule)
    ask(prefilter, "rows_needed", int, rule)
    ask(prefilter, "rows", int, n)
    ask(prefilter, "tolerates", int, n, rule)
    check_defense(chain, n, payloads)
    for payload in [*example_payloads(max(n, chain.rows_needed())), *payloads]:
        if chain.refuses(type(payload)) is not None:
            continue
        before = payload.encode()
        passed, rows = transform(prefilter, payload, view_of(payload))
        assert payload.encode() == before, f"the messages were written into; {COPY}"
        assert prefilter.mixes == (rows is None), "mixes, or says whose rows it passes on"
        assert len(passed) >= prefilter.rows(len(payload)), "fewer rows come out than it says"
        assert prefilter.real or type(passed) is type(payload), "messages come out, or it says so"
        if rows is not None:
            assert len(rows) == len(passed)
            assert len(set(rows.tolist())) == len(rows), "passes a row on twice"


def answer(defense: Defense[Any], payload: Payload, view: ServerView | None = None) -> Tensor:
    """Return the rule's answer to these rows in a first round."""
    view = declared(defense, view_of(payload) if view is None else view)
    return hooks.aggregate(defense, payload, defense.init(payload.spec), view)[0]


def declared(defense: Defense[Any], view: ServerView) -> ServerView:
    """Return the view as a run would fill it: without what the rule does not declare."""
    traits = defense.traits()
    return replace(
        view,
        root=view.root if traits.root else None,
        truth=view.truth if traits.oracle else None,
        network=view.network if traits.network else None,
    )


def outliers(x: Tensor, count: int) -> Iterator[tuple[str, Tensor]]:
    """Yield copies of ``x (n, k)`` whose first ``count`` rows are arbitrary, kind by kind."""
    k = x.shape[1]
    signs = torch.ones(count)
    signs[1::2] = -1
    scattered = torch.zeros(count, k)
    scattered[torch.arange(count), torch.arange(count) % k] = OUTLIER_DISTANCE
    kinds = {
        "in one place": torch.full((count, k), OUTLIER_DISTANCE),
        "in one coordinate": scattered[:1].expand(count, k),
        "scattered": scattered,
        "on both sides": OUTLIER_DISTANCE * signs[:, None].expand(count, k),
        "at many scales": scattered * (10.0 ** -torch.arange(count))[:, None].clamp_min(1e-4),
        "not a number": torch.full((count, k), torch.nan),
        "infinite": torch.full((count, k), torch.inf) * signs[:, None],
        "1e30": torch.full((count, k), 1e30),
    }
    for name, rows in kinds.items():
        out = x.clone()
        out[:count] = rows
        yield name, out


def _check_on(defense: Defense[Any], payload: Payload) -> None:
    view = declared(defense, view_of(payload, Key(1).uniform(len(payload)).double() + 0.5))
    _check_two_rounds(defense, payload, view)
    _check_order(defense, payload, view)
    _check_equal_rows(defense, payload, view)


def _check_two_rounds(defense: Defense[Any], payload: Payload, view: ServerView) -> None:
    """Require finite, repeatable answers that leave the inputs unchanged, in two rounds."""
    name = type(payload).__name__
    traits = defense.traits()
    before = payload.values().clone()
    state = ask(defense, "init", object, payload.spec)
    untouched = copy.deepcopy(state)
    out, later = hooks.aggregate(defense, payload, state, view)
    assert bool(torch.isfinite(out).all()), f"{name}: the answer is not finite"
    assert torch.equal(payload.values(), before), f"{name}: the messages were written into; {COPY}"
    says = view.findings.kept is not None
    assert says == traits.detects, (
        f"{name}: view.findings.kept is {'set' if says else 'None'}; {_claim('detects', says)}"
    )
    after = copy.deepcopy(later)
    again, _ = hooks.aggregate(defense, payload, later, view.asked())
    assert bool(torch.isfinite(again).all()), f"{name}: in the second round"
    assert traits.history or later is None, (
        f"{name}: remembers and does not say so; {_claim('history', True)}"
    )
    for mine, before_it in ((state, untouched), (later, after)):
        torch.testing.assert_close(mine, before_it, msg=f"{name}: its state was written into")
    if not traits.randomized:
        other = answer(defense, payload, view.asked(key=Key(12)))
        assert torch.equal(other, out), (
            f"{name}: draws numbers and is not randomized; {_claim('randomized', True)}"
        )


def _check_order(defense: Defense[Any], payload: Payload, view: ServerView) -> None:
    """Require one answer in any order of the rows, one of them far off if the rule tolerates it."""
    n = len(payload)
    if isinstance(payload, FloatVectors) and defense.tolerates(n) > 0:
        payload = payload.put([0], FloatVectors(torch.full_like(payload.x[:1], 1e8)))
    order = Key(3).permutation(n)
    turned = payload.take(order)
    last = payload.take([n - 1])
    draws = 16 if defense.traits().randomized else 1

    def answers(rows: Payload, order: Tensor) -> Tensor:
        seen = (view.take(order).asked(key=Key(draw), root=last) for draw in range(draws))
        return torch.stack([answer(defense, rows, each) for each in seen]).double()

    difference = answers(turned, order) - answers(payload, torch.arange(n))
    room = 5 * difference.std(dim=0, unbiased=False) / draws**0.5
    largest = 1e-4 * payload.values()[1:].double().abs().max() + room
    assert bool((difference.mean(dim=0).abs() <= largest).all()), (
        f"{type(payload).__name__}: depends on the order of the clients"
    )


def _check_equal_rows(defense: Defense[Any], payload: Payload, view: ServerView) -> None:
    """Require that what all clients sent comes back, as far as the rule does not shrink it."""
    name = type(payload).__name__
    n = len(payload)
    traits = defense.traits()
    last = payload.take([n - 1])
    equal = payload.take([n - 1] * n)
    back = answer(defense, equal, view.asked(root=last))
    same = payload.values()[n - 1].double()
    if traits.shrinks:
        back = last.nearest(back[None]).values()[0]
    if traits.sparsifies:
        origin = payload.origin().double()
        left = back.double() != origin
        assert bool(left.any()), f"{name}: leaves nothing"
        same = torch.where(left, same, origin)
    if not traits.randomized:
        why = f"{name}: all rows are equal, and another one comes back; {_claim('shrinks', True)}"
        torch.testing.assert_close(back.double(), same, rtol=1e-4, atol=1e-4, msg=why)


def _claim(name: str, value: bool) -> str:
    """Return the remedy for a trait that is not what the rule does."""
    return f"write a method traits() that returns Traits({name}={value}), or mend the rule"


def _check_sums(defense: Defense[Any], payload: Payload) -> None:
    """Require the answer to rows of their sums, where a rule says that these are enough."""
    if not defense.folds:
        return
    traits = defense.traits()
    requirement = "overridden only with Traits.reads_sum or Traits.counts"
    assert traits.reads_sum or traits.counts, f"aggregate_sums must be {requirement}"
    if not (traits.reads_sum or has_bits_alone(payload)):
        return
    uneven = torch.arange(1, len(payload) + 1, dtype=torch.float64)
    for weights in (torch.ones_like(uneven), uneven):
        view = view_of(payload, weights)
        sums = FoldedMessages.of(payload, weights)
        state = defense.init(payload.spec)
        folded = hooks.aggregate(defense, sums, state, declared(defense, view))[0]
        name = type(payload).__name__
        alike = torch.allclose(
            folded.double(), answer(defense, payload, view).double(), rtol=1e-5, atol=1e-5
        )
        assert alike, f"{name}: aggregate_sums must answer what aggregate does"


def _check_kept(defense: Defense[Any], payload: Payload) -> None:
    """Require the answer to rows of their packets, where a rule says that these are enough."""
    if not defense.keeps or isinstance(payload, Patch):
        return
    k = payload.values().shape[1]
    packets = KeptMessages(payload.take([]), payload.encode(), at_once=2, width=max(k // 3, 1))
    answers = []
    for received in (packets, payload):
        view = declared(defense, view_of(payload))
        out = hooks.aggregate(defense, received, defense.init(payload.spec), view)[0].double()
        answers.append((out, view.findings))
    (back, findings), (whole, meant) = answers
    alike = torch.allclose(back, whole, rtol=1e-5, atol=1e-5)
    alike &= findings.notes.keys() == meant.notes.keys()
    alike &= (findings.kept is None) == (meant.kept is None)
    name = type(payload).__name__
    assert alike, (
        f"{name}: aggregate_kept, or Traits.columns, must answer and find what aggregate does"
    )


def _check_equivariance(defense: Defense[Any], x: Tensor) -> None:
    traits = defense.traits()
    out = answer(defense, FloatVectors(x)).double()
    if traits.shift:
        added = 3 * Key(5).normal(x.shape[1])
        moved = answer(defense, FloatVectors(x + added)).double()
        why = f"a vector added to all rows is not added to the answer; {_claim('shift', False)}"
        torch.testing.assert_close(moved, out + added, rtol=1e-4, atol=1e-4, msg=why)
    if traits.scale:
        scaled = answer(defense, FloatVectors(7 * x)).double()
        why = f"7 times all rows is not 7 times the answer; {_claim('scale', False)}"
        torch.testing.assert_close(scaled, 7 * out, rtol=1e-4, atol=1e-4, msg=why)
    if traits.mean_at_zero:
        nobody = answer(defense.assuming(0), FloatVectors(x)).double()
        mean = x.double().mean(dim=0)
        why = f"f = 0 is not the mean; {_claim('mean_at_zero', False)}"
        torch.testing.assert_close(nobody, mean, rtol=1e-4, atol=1e-4, msg=why)


def _check_breakdown(defense: Defense[Any], x: Tensor) -> None:
    n = len(x)
    count = defense.tolerates(n)
    for name, rows in outliers(x, count):
        out = answer(defense, FloatVectors(rows), _attacked(rows, count))
        assert bool(torch.isfinite(out).all()), f"{count} of {n} rows {name}: not finite"
        assert float(out.abs().max()) < MAX_NORM, f"{count} of {n} rows {name} moved it away"
    if defense.traits().sharp:
        moved = []
        for _, rows in list(outliers(x, count + 1))[:4]:
            out = answer(defense, FloatVectors(rows), _attacked(rows, count + 1))
            moved.append(not float(out.abs().max()) < MAX_NORM)
        assert any(moved), (
            f"{count + 1} of {n} rows far away do not move it: not sharp; {_claim('sharp', False)}"
        )


def _attacked(x: Tensor, count: int) -> ServerView:
    """Return a view in which the first rows are malicious, and the last is the server's."""
    truth = torch.arange(len(x)) < count
    last = FloatVectors(x[len(x) - 1 :])
    return view_of(FloatVectors(x)).asked(broadcast=last, root=last, truth=truth)


def _check_canary(defense: Defense[Any], payloads: Sequence[Payload]) -> None:
    changed = []
    history = defense.traits().history
    for payload in payloads:
        kinds = list(_turned(payload))
        state = defense.init(payload.spec)
        for step in range(HISTORY_ROUNDS if history else len(kinds)):
            rows = kinds[step % len(kinds)]
            mean = rows.values().double().mean(dim=0)
            truth = torch.arange(len(rows)) < 2
            view = view_of(rows).asked(root=payload.take([len(payload) - 1]), truth=truth)
            view = declared(defense, view)
            out, later = hooks.aggregate(defense, rows, state, view)
            state = later if history else state
            distance = torch.linalg.vector_norm(out.double() - mean)
            changed.append(not float(distance) < 1e-3 * float(torch.linalg.vector_norm(mean)))
    assert any(changed), "outliers leave it at the mean: is it a defense?"


def _check_reports(defense: Defense[Any], payloads: Sequence[Payload]) -> None:
    for payload in payloads:
        for rows in (payload, *_turned(payload)):
            view = view_of(rows)
            mean = rows.values().double().mean(dim=0)
            out = answer(defense, rows, view).double()
            torch.testing.assert_close(out, mean, rtol=1e-4, atol=1e-4, msg="is not the mean")
            assert view.findings.notes, "finds nothing"


def _turned(payload: Payload) -> Iterator[Payload]:
    """Yield two rows far away, or, where nothing can be, the opposite of a third one."""
    count = min(2, len(payload) - 1)
    if isinstance(payload, FloatVectors):
        yield from (FloatVectors(rows) for _, rows in list(outliers(payload.x, count))[:4])
        return
    third = payload.take([count] * count)
    away = third.opposite(third.values().to(torch.float32))
    yield payload.put(list(range(count)), third.nearest(away))
