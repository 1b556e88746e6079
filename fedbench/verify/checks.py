"""Properties that a rule of another project should have, each tried with a small counterexample.

A rule is tried as a function of rows ``(n, k)``. What it is compared with is our rule of the same
name, whose definition `Subject.paper` names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors
from fedbench.testing.defenses import answer

N = 11  # rows
F = 2  # malicious ones; n >= 4 f + 3, so that Bulyan is defined
FAR = 1e6
TRIALS = 10
RATIO = 1e-3  # of an update's norm to that of the weights it is added to


@dataclass(frozen=True)
class Subject:
    """A rule of another project, and our rule of the same definition.

    Args:
        text: The foreign rule as ``--defense`` takes it.
        ours: Our rule, with the same parameters.
        paper: Where it is defined.
        tolerates: Far rows, of `N`, that the definition survives.
        shifts: Whether a vector added to all rows should come back added to the answer.
        exact: Whether its paper defines one answer, and not a few steps towards one.
    """

    text: str
    ours: str
    paper: str
    tolerates: int = F
    shifts: bool = True
    exact: bool = True


@dataclass(frozen=True)
class Finding:
    """Outcome of one property: it holds, or the counterexample in a line."""

    check: str
    holds: bool
    detail: str = ""


KRUM = "Blanchard et al., NeurIPS 2017, section 4: n - f - 2 neighbours"
TRIMMED = "Yin et al., ICML 2018, Definition 2"
MEDIAN = "Yin et al., ICML 2018, Definition 1"
BULYAN = "El Mhamdi et al., ICML 2018, section 4: Krum again after each pick"
MEAN_AROUND = "Xie et al., 2018, arXiv:1802.10116, mean around median"
GEOMETRIC = "Pillutla et al., 2022, arXiv:1912.13445"
NORMS = "Gupta and Vaidya, 2020: the n - f rows of least norm"

SUBJECTS = {
    "flwr": (
        Subject("flwr:FedAvg", "mean", "McMahan et al., AISTATS 2017, Algorithm 1", 0),
        Subject("flwr:FedMedian", "median", MEDIAN),
        Subject(f"flwr:FedTrimmedAvg,f={F}", f"trimmed-mean:f={F}", TRIMMED),
        Subject(f"flwr:Krum,f={F}", f"krum:f={F}", KRUM),
        Subject(f"flwr:MultiKrum,f={F},m=5", f"multi-krum:f={F},m=5", KRUM),
        Subject(f"flwr:Bulyan,f={F}", f"bulyan:f={F}", BULYAN),
    ),
    "byzfl": (
        Subject("byzfl:Median", "median", MEDIAN),
        Subject(f"byzfl:TrMean,f={F}", f"trimmed-mean:f={F}", TRIMMED),
        Subject(f"byzfl:Meamed,f={F}", f"meamed:f={F}", MEAN_AROUND),
        Subject(f"byzfl:Krum,f={F}", f"krum:f={F}", KRUM),
        Subject(f"byzfl:MultiKrum,f={F}", f"multi-krum:f={F}", KRUM),
        Subject("byzfl:GeometricMedian", "geometric-median", GEOMETRIC, exact=False),
    ),
    "byzpy": (
        Subject("byzpy:CoordinateWiseMedian", "median", MEDIAN),
        Subject(f"byzpy:CoordinateWiseTrimmedMean,f={F}", f"trimmed-mean:f={F}", TRIMMED),
        Subject(f"byzpy:MeanOfMedians,f={F}", f"meamed:f={F}", MEAN_AROUND),
        Subject(f"byzpy:Krum,f={F}", f"krum:f={F}", KRUM),
        Subject(f"byzpy:MultiKrum,f={F}", f"multi-krum:f={F}", KRUM),
        Subject("byzpy:GeometricMedian", "geometric-median", GEOMETRIC),
        Subject(
            f"byzpy:ComparativeGradientElimination,f={F}",
            f"cge:f={F}",
            NORMS,
            tolerates=F,
            shifts=False,
        ),
    ),
}

Rule = Callable[[Tensor], Tensor]


def asked(text: str) -> Rule:
    """Return a rule as a function from ``(n, k)`` float32 to ``(k,)``."""
    rule = registry.load("defense", text)
    return lambda x: answer(rule, FloatVectors(x))


def verify(subject: Subject) -> list[Finding]:
    """Try every property on a rule; one that raises has that as its counterexample."""
    rule = asked(subject.text)
    ours = asked(subject.ours)
    checks: list[tuple[str, Callable[[], str | None]]] = [
        ("order", lambda: order(rule)),
        ("far rows", lambda: breakdown(rule, subject.tolerates)),
    ]
    if subject.shifts:
        checks += [("shift", lambda: shift(rule)), ("float32", lambda: precision(rule))]
    if subject.exact:
        checks.append(("agrees", lambda: agreement(rule, ours)))
    findings = []
    for name, check in checks:
        try:
            why = check()
        except Exception as error:  # foreign code: whatever it raises is a finding
            why = f"raises {type(error).__name__}: {error}"[:200]
        findings.append(Finding(name, why is None, why or ""))
    return findings


def rows(trial: int, k: int = 6) -> Tensor:
    """Return ``(N, k)`` rows of a trial, standard Gaussian."""
    return Key(17).fold("verify", trial).normal(N, k)


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
            x[:count] = FAR * torch.tensor(signs[:count])[:, None]
            far = float(rule(x).abs().max())
            if not far < 100:
                return f"{count} of {N} rows at {FAR:g} on {name} (rows({trial})) give {far:.3g}"
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


def agreement(rule: Rule, ours: Rule) -> str | None:
    """Compare with our rule of the same definition; the smallest example in one dimension first."""
    for trial in range(4 * TRIALS):
        x = (10 * rows(trial, 1)).round() if trial < 2 * TRIALS else rows(trial)
        if trial < 2 * TRIALS and len(set(x[:, 0].tolist())) < N:
            continue  # ties, on which rules of one definition may differ
        theirs = rule(x)
        mine = ours(x)
        error = float((theirs - mine).abs().max())
        if not error < 1e-2:
            shown = x[:, 0].tolist() if x.shape[1] == 1 else f"rows({trial})"
            return f"{shown} give {theirs[0].item():.5g}, by the paper {mine[0].item():.5g}"
    return None
