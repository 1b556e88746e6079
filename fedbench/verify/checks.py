"""Properties that a rule of another project should have, each tried with a small counterexample.

A rule is tried as a function of rows ``(n, k)``. What it is compared with is our rule of the same
name, whose definition `Subject.paper` names. A check returns its counterexample in a line; None if
it found none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors
from fedbench.testing.contracts import view_of
from fedbench.testing.defenses import answer
from fedbench.verify.subjects import Subject
from fedbench.verify.time_limit import time_limit

N = 11  # rows
OUTLIER_DISTANCE = 1e6
TRIALS = 10
MAX_SECONDS = 10  # that a property may take; most take less than one
RATIO = 1e-3  # of an update's norm to that of the weights it is added to


CHECKS = ("repeats", "order", "shift", "far rows", "float32", "agrees")  # in a table's order


@dataclass(frozen=True)
class Finding:
    """Outcome of one property: it holds, or the counterexample in a line."""

    check: str
    holds: bool
    detail: str = ""


Rule = Callable[[Tensor], Tensor]


def as_function(text: str, seed: int = 2) -> Rule:
    """Return a rule as a function from ``(n, k)`` float32 to ``(k,)``; it draws by ``seed``."""
    rule = registry.load("defense", text)

    def ask(x: Tensor) -> Tensor:
        payload = FloatVectors(x)
        return answer(rule, payload, view_of(payload, key=Key(seed)))

    return ask


def verify(subject: Subject) -> list[Finding]:
    """Try every property on a rule; one that raises has that as its counterexample."""
    rule = as_function(subject.text)
    ours = as_function(subject.ours)
    checks: list[tuple[str, Callable[[], str | None]]] = [
        ("repeats", lambda: repeats(rule, as_function(subject.text, seed=3))),
        ("order", lambda: order(rule)),
        ("far rows", lambda: breakdown(rule, subject.tolerates)),
    ]
    if subject.shifts:
        checks += [("shift", lambda: shift(rule)), ("float32", lambda: precision(rule))]
    if subject.exact:
        checks.append(("agrees", lambda: agreement(rule, ours, subject.untied)))
    findings = []
    for name, check in checks:
        try:
            with time_limit(MAX_SECONDS):
                why = check()
        except Exception as error:  # foreign code: whatever it raises is a finding
            late = isinstance(error.__cause__ or error, TimeoutError)
            raised = f"raises {type(error).__name__}: {error}"[:200]
            why = f"does not end in {MAX_SECONDS} seconds" if late else raised
        findings.append(Finding(name, why is None, why or ""))
    return findings


def rows(trial: int, k: int = 6) -> Tensor:
    """Return ``(N, k)`` rows of a trial, standard Gaussian."""
    return Key(17).fold("verify", trial).normal(N, k)


def repeats(rule: Rule, redrawn: Rule) -> str | None:
    """Compare with the rule under another seed, where its paper defines an answer without any."""
    for trial in range(TRIALS):
        x = rows(trial)
        error = float((rule(x) - redrawn(x)).abs().max())
        if not error < 1e-4:
            return f"rows({trial}) under another seed move the answer by {error:.3g}"
    return None


def order(rule: Rule) -> str | None:
    """Compare answers to the same rows in another order."""
    for trial in range(TRIALS):
        x = rows(trial)
        turned = Key(3).fold(trial).permutation(N)
        error = float((rule(x[turned]) - rule(x)).abs().max())
        if not error < 1e-4:
            return f"rows({trial}) in the order {turned.tolist()} move the answer by {error:.3g}"
    return None


def shift(rule: Rule) -> str | None:
    """Add a vector to all rows; the answer should have it added, to rounding."""
    for trial in range(TRIALS):
        x = rows(trial)
        error = float((rule(x + 3) - 3 - rule(x)).abs().max())
        if not error < 1e-4:
            return f"rows({trial}) + 3 give the answer + 3 + {error:.3g}"
    return None


def breakdown(rule: Rule, count: int) -> str | None:
    """Move ``count`` rows far away, in one place and on both sides; the answer should stay."""
    for trial in range(TRIALS):
        for name, signs in (("one side", [1.0] * count), ("both sides", [1.0, -1.0] * count)):
            x = rows(trial)
            x[:count] = OUTLIER_DISTANCE * torch.tensor(signs[:count])[:, None]
            far = float(rule(x).abs().max())
            if not far < 100:
                place = f"{OUTLIER_DISTANCE:g} on {name} (rows({trial}))"
                return f"{count} of {N} rows at {place} give {far:.3g}"
    return None


def precision(rule: Rule) -> str | None:
    """Hand over whole models whose updates are small; compare with the updates alone.

    Updates have `RATIO` times the norm of the weights. Squared distances of whole models by
    ``|x|^2 + |y|^2 - 2 x y`` in float32 lose what tells the rows apart.
    """
    wrong = []
    for trial in range(TRIALS):
        weights = Key(5).fold(trial).normal(1, 20_000)
        updates = RATIO * rows(trial, 20_000)
        truth = rule(updates)
        error = float((rule(weights + updates) - weights[0] - truth).norm() / truth.norm())
        if not error < 0.05:
            wrong.append(trial)
    if not wrong:
        return None
    ratio = f"{RATIO:g}"
    return (
        f"in {len(wrong)} of {TRIALS} trials whole models (update/weight {ratio}, float32) differ"
    )


def agreement(rule: Rule, ours: Rule, untied: tuple[float, ...] = ()) -> str | None:
    """Compare with our rule of the same definition; the smallest example in one dimension first.

    Given ``untied`` rows of one dimension, on those alone.
    """
    for trial in range(1 if untied else 4 * TRIALS):
        x = (10 * rows(trial, 1)).round() if trial < 2 * TRIALS else rows(trial)
        if untied:
            x = torch.tensor(untied)[:, None]
        if trial < 2 * TRIALS and len(set(x[:, 0].tolist())) < N:
            continue  # ties, on which rules of one definition may differ
        mine = ours(x)
        if not float((ours(x.flip(0)) - mine).abs().max()) < 1e-4:
            continue  # a tie decides, here for the lower row
        theirs = rule(x)
        error = float((theirs - mine).abs().max())
        if not error < 1e-2:
            shown = x[:, 0].tolist() if x.shape[1] == 1 else f"rows({trial})"
            return f"{shown} give {theirs[0].item():.5g}, by the paper {mine[0].item():.5g}"
    return None
