"""Rules and attacks against the naive NumPy of their papers, over random rows in float64.

Each oracle is the paper's text, loops and all, and shares no code with what it checks. Where a
paper leaves something open it does what the docstring of the rule says.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from crafting import M, round_of, sent
from numpy.linalg import norm
from rules import draw, kept, view_of

from fedbench.api import Defense, ServerView
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors

Array = npt.NDArray[np.float64]

F = 2  # in each name below, too


@dataclass
class Round:
    """Rows of two rounds, sizes of the clients and the server's own message."""

    x: Array  # ``(n, d)``
    first: Array  # ``(n, d)`` rows of the first round
    sizes: Array  # ``(n,)`` of the clients
    root: Array  # ``(d,)`` its own message

    @property
    def n(self) -> int:
        return len(self.x)


def drawn(seed: int) -> Round:
    """Draw rows of unequal norms about a mean that is not zero; Bulyan needs 4 F + 3."""
    n = 4 * F + 3 + seed % 3
    x, first, (root, mean) = (
        draw(3 * seed + i, rows, 20).double() for i, rows in enumerate((n, n, 2))
    )
    sizes = 1 + 9 * Key(seed).uniform(n).double()
    return Round((x + mean).numpy(), (first + mean).numpy(), sizes.numpy(), (root + mean).numpy())


ROUNDS = [drawn(seed) for seed in range(9)]


def distance(a: Array, b: Array) -> float:
    return float(norm(a - b))


def lowest(scores: Sequence[Any] | Array, count: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda i: scores[i])[:count]


def shortened(x: Array, bound: float) -> Array:
    return np.array([row * min(1, bound / float(norm(row))) for row in x])


def alike(rows: Sequence[int], n: int) -> Array:
    """Return the shares ``(n,)`` of rows that are averaged."""
    share = np.zeros(n)
    share[list(rows)] = 1 / len(rows)
    return share


def krum_scores(x: Array) -> list[tuple[float, float]]:
    """Return each row's score, and what settles a tie of two that are each other's nearest."""
    neighbours = max(len(x) - F - 2, 1)
    away = [sorted(distance(a, b) ** 2 for b in x)[1:] for a in x]
    return [(sum(row[:neighbours]), sum(row)) for row in away]


def multi_krum(now: Round, m: int) -> Array:
    return alike(lowest(krum_scores(now.x), m), now.n)


def mda(now: Round) -> Array:
    def key(rows: Sequence[int]) -> tuple[float, float]:
        pairs = [distance(now.x[i], now.x[j]) for i, j in combinations(rows, 2)]
        return max(pairs), sum(pair**2 for pair in pairs)

    return alike(min(combinations(range(now.n), now.n - F), key=key), now.n)


def smea(now: Round) -> Array:
    def spread(rows: Sequence[int]) -> float:
        return float(np.linalg.eigvalsh(np.cov(now.x[list(rows)].T))[-1])

    return alike(min(combinations(range(now.n), now.n - F), key=spread), now.n)


def caf(now: Round) -> Array:
    c = np.ones(now.n)
    tried: list[tuple[float, Array]] = []
    while c.sum() > now.n - 2 * F:
        values, vectors = np.linalg.eigh(np.cov(now.x.T, aweights=c, ddof=0))
        tried.append((float(values[-1]), c / c.sum()))
        tau = ((now.x - np.average(now.x, axis=0, weights=c)) @ vectors[:, -1]) ** 2
        c = np.where(c > 0, c * (1 - tau / tau[c > 0].max()), 0)
    return min(tried, key=lambda pair: pair[0])[1]


def fltrust(now: Round) -> Array:
    lengths = norm(now.x, axis=1)
    trust = np.maximum(0, now.x @ now.root / lengths / norm(now.root))
    return np.asarray(trust / trust.sum() * norm(now.root) / lengths)


def foolsgold(now: Round) -> Array:
    past = now.first + now.x
    cs = np.array([[a @ b / norm(a) / norm(b) for b in past] for a in past])
    np.fill_diagonal(cs, -1)
    v = cs.max(axis=1)
    for i in range(now.n):
        for j in range(now.n):
            if v[j] > v[i] > 0:
                cs[i, j] *= v[i] / v[j]
    alpha = 1 - cs.max(axis=1)
    alpha = alpha / alpha.max()
    trust = np.clip([np.log(a / (1 - a)) + 0.5 if a < 1 else 1 for a in alpha], 0, 1)
    return np.asarray(trust / trust.sum())


def flame(now: Round) -> Array:
    """Join rows in order of their cosine until more than half are together."""
    unit = now.x / norm(now.x, axis=1)[:, None]
    groups = [{i} for i in range(now.n)]
    for i, j in sorted(combinations(range(now.n), 2), key=lambda p: -unit[p[0]] @ unit[p[1]]):
        joined = set.union(*(group for group in groups if group & {i, j}))
        groups = [group for group in groups if not group & joined] + [joined]
        if len(joined) > now.n / 2:
            break
    lengths = norm(now.x, axis=1)
    clip = np.minimum(1, np.median(lengths) / lengths)
    return np.asarray(alike(sorted(groups[-1]), now.n) * clip)


def near_median(x: Array, count: int) -> Array:
    columns = [sorted(column, key=lambda v: abs(v - np.median(column))) for column in x.T]
    return np.array([np.mean(column[:count]) for column in columns])


def bulyan(now: Round) -> Array:
    left = list(range(now.n))
    picked: list[int] = []
    while len(picked) < now.n - 2 * F:
        picked.append(left.pop(lowest(krum_scores(now.x[left]), 1)[0]))
    return near_median(now.x[picked], len(picked) - 2 * F)


def geometric_median(now: Round) -> Array:
    z: Array = now.x.mean(axis=0)
    for _ in range(500):
        z = np.average(now.x, axis=0, weights=1 / norm(now.x - z, axis=1))
    return z


def centred_clipping(now: Round, tau: float | None) -> Array:
    v = np.zeros_like(now.root)
    for x in (now.first, now.x):
        for _ in range(2):
            bound = float(np.median(norm(x - v, axis=1))) if tau is None else tau
            v = v + shortened(x - v, bound).mean(axis=0)
    return v


def rlr(now: Round) -> Array:
    mean: Array = now.sizes @ now.x / now.sizes.sum()
    return np.asarray(np.where(np.abs(np.sign(now.x).sum(axis=0)) >= 3, mean, -mean))


def nna(now: Round) -> Array:
    nearest = lowest([distance(row, now.root) for row in now.x], now.n - F)
    return np.asarray(np.vstack([now.x[nearest], now.root]).mean(axis=0))


def nnm(now: Round) -> Array:
    near = [lowest([distance(a, b) for b in now.x], now.n - F) for a in now.x]
    return np.array([now.x[rows].mean(axis=0) for rows in near])


def arc(now: Round) -> Array:
    k = int(2 * (F / now.n) * (now.n - F))
    return shortened(now.x, sorted(norm(now.x, axis=1), reverse=True)[k])


def buckets(now: Round) -> Array:
    order = view_of(torch.from_numpy(now.x)).key.fold("bucketing").permutation(now.n).tolist()
    return np.array([now.x[order[i : i + 3]].mean(axis=0) for i in range(0, now.n, 3)])


SHARE: dict[str, Callable[[Round], Array]] = {  # of each row in the answer
    "mean": lambda now: now.sizes / now.sizes.sum(),
    "norm-bound:c=3": lambda now: np.minimum(1, 3 / norm(now.x, axis=1)) / now.n,
    "cge:f=2": lambda now: alike(lowest(norm(now.x, axis=1), now.n - F), now.n),
    "krum:f=2": lambda now: multi_krum(now, 1),
    "multi-krum:f=2": lambda now: multi_krum(now, now.n - F),
    "multi-krum:f=2,m=3": lambda now: multi_krum(now, 3),
    "mda:f=2": mda,
    "smea:f=2": smea,
    "caf:f=2": caf,
    "fltrust": fltrust,
    "foolsgold": foolsgold,
    "flame:noise=0": flame,
}
COMPUTE: dict[str, Callable[[Round], Array]] = {
    "median": lambda now: np.asarray(np.median(now.x, axis=0)),
    "trimmed-mean:f=2": lambda now: np.asarray(np.sort(now.x, axis=0)[F:-F].mean(axis=0)),
    "meamed:f=2": lambda now: near_median(now.x, now.n - F),
    "bulyan:f=2": bulyan,
    "geometric-median:tolerance=1e-12": geometric_median,
    "centered-clipping:tau=3,steps=2": lambda now: centred_clipping(now, 3.0),
    "centered-clipping:steps=2": lambda now: centred_clipping(now, None),
    "rlr:theta=3": rlr,
    "nna:f=2": nna,
}
MIX: dict[str, Callable[[Round], Array]] = {
    "nnm:f=2": nnm,
    "arc:f=2": arc,
    "bucketing:s=3": buckets,
}


def answered(rule: Defense[Any], now: Round) -> tuple[Array, ServerView]:
    """Play two rounds, and return the answer of the second with what the server saw of it."""
    state = None
    for x in (now.first, now.x):
        received = FloatVectors(torch.from_numpy(x))
        root = FloatVectors(torch.from_numpy(now.root)[None])
        view = replace(view_of(received, root=root), weights=torch.from_numpy(now.sizes))
        out, state = rule.aggregate(received, state, view)
    return out.numpy(), view


@pytest.mark.parametrize("name", SHARE)
def test_rows_have_the_shares_of_the_paper(name: str) -> None:
    rule = registry.load("defense", name)
    for now in ROUNDS:
        share = SHARE[name](now)
        out, view = answered(rule, now)
        np.testing.assert_allclose(out, share @ now.x, rtol=1e-9, atol=1e-9)
        assert not rule.traits().detects or kept(view) == (share > 0).tolist()


@pytest.mark.parametrize("name", COMPUTE)
def test_a_rule_answers_what_its_paper_computes(name: str) -> None:
    for now in ROUNDS:
        out, _ = answered(registry.load("defense", name), now)
        np.testing.assert_allclose(out, COMPUTE[name](now), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MIX)
def test_a_prefilter_hands_on_the_rows_of_its_paper(name: str) -> None:
    for now in ROUNDS:
        received = FloatVectors(torch.from_numpy(now.x))
        out, _ = registry.load("prefilter", name).transform(received, view_of(received))
        np.testing.assert_allclose(out.values().numpy(), MIX[name](now), rtol=1e-9, atol=1e-9)


def towards(benign: Array, direction: str) -> Array:
    mean = benign.mean(axis=0)
    ways = {"std": -benign.std(axis=0, ddof=1), "unit": -mean / norm(mean), "sign": -np.sign(mean)}
    return np.asarray(ways[direction])


def farthest(start: Array, push: Array, allowed: Callable[[Array], bool]) -> Array:
    """Bisect for the last point along ``push`` that is allowed."""
    low, high = 0.0, 1.0
    while allowed(start + high * push):
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if allowed(start + middle * push) else (low, middle)
    return start + low * push


def bounded(benign: Array, direction: str, over: Callable[[list[float]], float]) -> Array:
    """Min-Max with the ``max`` over squared distances to benign rows, Min-Sum with ``sum``."""

    def size(row: Array) -> float:
        return over([distance(row, b) ** 2 for b in benign])

    bound = max(map(size, benign))
    push = towards(benign, direction)
    return farthest(benign.mean(axis=0), push, lambda row: size(row) <= bound)


def alie(benign: Array) -> Array:
    n = len(benign) + M
    supporters = n // 2 + 1 - M
    z = NormalDist().inv_cdf((n - M - supporters) / (n - M))
    return np.asarray(benign.mean(axis=0) + z * towards(benign, "std"))


def against_krum(benign: Array) -> Array:
    def taken(row: Array) -> bool:
        return lowest(krum_scores(np.vstack([*[row] * M, benign])), 1)[0] < M

    return farthest(0 * benign[0], towards(benign, "sign"), taken)


CRAFT: dict[str, Callable[[Array], Array]] = {
    "alie:z=none,side=minus": alie,
    "ipm:eps=0.7": lambda benign: -0.7 * benign.mean(axis=0),
    "min-max:direction=std,side=minus": lambda benign: bounded(benign, "std", max),
    "min-max:direction=unit": lambda benign: bounded(benign, "unit", max),
    "min-max:direction=sign": lambda benign: bounded(benign, "sign", max),
    "min-sum:direction=std": lambda benign: bounded(benign, "std", sum),
    "min-sum:direction=unit": lambda benign: bounded(benign, "unit", sum),
    "min-sum:direction=sign": lambda benign: bounded(benign, "sign", sum),
    "stat-opt": against_krum,  # within a thousandth
}


@pytest.mark.parametrize("name", CRAFT)
def test_an_attack_sends_what_its_paper_computes(name: str) -> None:
    rule = registry.load("defense", "krum:f=2")
    for now in ROUNDS:
        here = round_of(torch.from_numpy(now.x).float(), rule)
        _, rows = sent(registry.load("attack", name), here)
        expected = np.broadcast_to(CRAFT[name](now.x[M:]), rows.shape)
        rough = 2e-3 if name == "stat-opt" else 1e-4
        np.testing.assert_allclose(rows, expected, rtol=rough, atol=1e-4)
