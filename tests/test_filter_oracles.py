"""Rules that leave rows out or remember, CRFL and mimic, against naive NumPy in float64.

Each oracle is the definition of the paper, loops and all, as in ``test_rule_oracles.py``. Rows come
in all sizes and kinds that are hard for a filter: equal rows, zero rows, ties and an outlier.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from crafting import M, round_of
from numpy.linalg import norm
from rules import kept, view_of
from sklearn.cluster import HDBSCAN

from fedbench.adversary.threat_model import attack_view
from fedbench.api import Defense, ServerView
from fedbench.core.rng import Key
from fedbench.core.trees import Layout
from fedbench.models.network import ConvNet
from fedbench.payload import FloatVectors
from fedbench_attacks.mimic import Mimic
from fedbench_defenses.alignins import AlignIns
from fedbench_defenses.clipped_clustering import ClippedClustering
from fedbench_defenses.crfl import CRFL
from fedbench_defenses.deepsight import DeepSight, in_order
from fedbench_defenses.fldetector import DRAWS, FLDetector
from fedbench_defenses.lasa import LASA
from fedbench_defenses.safesparse import SafeSparse

Array = npt.NDArray[np.float64]
NETWORK = ConvNet((1, 2, 2), (), (2,), 3)  # fc1 (2, 4), fc2 (3, 2)
K = 14
KINDS = ("plain", "outlier", "equal", "zero", "ties", "sparse", "opposite", "short")


@dataclass
class Round:
    """Rows of one round and what the server sends and knows."""

    name: str
    x: Array  # ``(n, K)``
    model: Array  # ``(K,)``
    sizes: Array  # ``(n,)`` of the clients
    step: int
    key: Key

    def view(self) -> ServerView:
        view = replace(view_of(torch.from_numpy(self.x)), network=NETWORK, key=self.key)
        sent = FloatVectors(torch.from_numpy(self.model)[None])
        weights = torch.from_numpy(self.sizes)
        layout = Layout.of(NETWORK.shapes)
        return replace(view, broadcast=sent, weights=weights, layout=layout, step=self.step)


def drawn(kind: str, n: int, step: int) -> Round:
    key = Key(n).fold(kind, step)
    x = key.normal(n, K).double().numpy() + key.fold("mean").normal(K).double().numpy()
    x = x * (1 + key.fold("lengths").uniform(n, 1).double().numpy())
    if kind == "outlier":
        x[-1] *= 1000
    if kind == "equal":
        x[: (n + 1) // 2] = x[0]
    if kind == "zero":
        x[: (n + 2) // 3] = 0
    if kind == "ties":
        x = np.sign(x) * np.ceil(np.abs(x)) / 2
    if kind == "sparse":
        x[key.fold("mask").uniform(n, K).numpy() < 0.5] = 0
    if kind == "opposite":
        x[: n // 3] *= -1
    if kind == "short":
        x *= 1e-3
    model = key.fold("model").normal(K).double().numpy()
    sizes = 1 + 9 * key.fold("sizes").uniform(n).double().numpy()
    return Round(f"{kind} {n} {step}", x, model, sizes, step, key)


RUNS = [  # of two rounds
    [drawn(kind, n, step) for step in (0, 1)] for kind in KINDS for n in (1, 2, 3, 4, 5, 8, 11, 16)
]

Judged = tuple[list[bool], Array]  # rows that count, and the answer


def shortened(row: Array, bound: float) -> Array:
    return row * min(1, bound / length) if (length := float(norm(row))) else row


def mean_of(rows: Sequence[Array]) -> Array:
    return np.asarray(np.mean(rows, axis=0)) if len(rows) else np.zeros(K)


def mz_scores(values: Sequence[float]) -> list[float]:
    """Return how many standard deviations each value is off the median."""
    deviation = np.std(values)
    if deviation <= 1e-6 * np.median(values):
        return [0.0] * len(values)
    return [abs(value - np.median(values)) / deviation for value in values]


def lasa(past: list[Round], now: Round) -> Judged:
    """Clip, sparsify over all layers, and filter each layer by norm and by purity."""
    bound = float(np.median([norm(row) for row in now.x]))
    rows = [shortened(row, bound) for row in now.x]
    for row in rows:
        least = sorted(abs(row), reverse=True)[7 * K // 10 - 1]  # 3 of 10 are dropped
        row[np.abs(row) < least * (1 - 1e-12)] = 0
    passed_once = [False] * len(rows)
    out: list[float] = []
    for start, stop in ((0, 8), (8, 14)):
        parts = [row[start:stop] for row in rows]
        purities = []
        for part in parts:
            signs = [np.sign(value) for value in part if value]
            purities.append(signs.count(1) / len(signs) if signs else 0.5)
        scores = zip(mz_scores([float(norm(p)) for p in parts]), mz_scores(purities), strict=True)
        passed = [max(pair) < 1 - 1e-9 for pair in scores]
        passed = passed if any(passed) else [True] * len(rows)
        out += list(np.mean([p for p, good in zip(parts, passed, strict=True) if good], axis=0))
        passed_once = [a or b for a, b in zip(passed_once, passed, strict=True)]
    return passed_once, np.array(out)


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / norm(a) / norm(b)) if a.any() and b.any() else 0.0


def alignins(past: list[Round], now: Round) -> Judged:
    """Filter by the cosine with the model and by the principal signs of the largest 30 %."""
    majority = [np.sign(sum(np.sign(column))) for column in now.x.T]
    tda = [cosine(row, now.model) for row in now.x]
    mpsa = []
    for row in now.x:
        least = sorted(abs(row))[-4]  # int(0.3 * 14)
        above = [i for i in range(K) if abs(row[i]) > least]
        tied = [i for i in range(K) if abs(row[i]) == least]
        agreeing = [float(np.sign(row[i]) == majority[i]) for i in range(K)]
        places = 4 - len(above)
        mpsa.append(sum(agreeing[i] for i in above) + places * np.mean([agreeing[i] for i in tied]))
    good = [True] * len(now.x)
    for scores in (np.array(tda), np.array(mpsa) / 4):
        off = np.abs(scores - np.median(scores))
        good = [g and o <= np.std(scores) + 1e-9 for g, o in zip(good, off, strict=True)]
    rows = [row for row, g in zip(now.x, good, strict=True) if g]
    bound = float(np.median([norm(row) for row in rows])) if rows else 0.0
    return good, mean_of([shortened(row, bound) for row in rows])


def clipped_clustering(past: list[Round], now: Round) -> Judged:
    """Join the nearest clusters, in the mean of 1 - cosine, until two are left."""
    bound = float(np.median([norm(row) for r in [*past, now] for row in r.x]))
    groups = [[i] for i in range(len(now.x))]

    def apart(a: list[int], b: list[int]) -> float:
        return float(np.mean([1 - cosine(now.x[i], now.x[j]) for i in a for j in b]))

    while len(groups) > 2:
        gaps = {(i, j): apart(groups[i], groups[j]) for i, j in combinations(range(len(groups)), 2)}
        label = list(range(len(groups)))
        for (i, j), gap in gaps.items():
            if gap <= min(gaps.values()) + 1e-9:
                label = [label[i] if other == label[j] else other for other in label]
        merged = [[k for k, other in enumerate(label) if other == each] for each in set(label)]
        groups = [[row for k in ks for row in groups[k]] for ks in merged]
    largest = max(map(len, groups))
    chosen = sorted(row for group in groups if len(group) == largest for row in group)
    answer = mean_of([shortened(now.x[i], bound) for i in chosen])
    return [i in chosen for i in range(len(now.x))], answer


def mad_room(values: Sequence[float], mads: float) -> tuple[float, float]:
    median = float(np.median(values))
    deviations = [abs(value - median) for value in values]
    return median, max(mads * float(np.median(deviations)), 0.1 * median)


def safesparse(past: list[Round], now: Round) -> Judged:
    """Compare supports as sets, then walk from core row to core row by the signs."""
    n = len(now.x)
    supports = [{i for i in range(K) if row[i] != 0} for row in now.x]

    def similarity(a: set[int], b: set[int]) -> float:
        return len(a & b) / len(a | b) if a | b else 1.0

    usual = [
        float(np.median([similarity(supports[i], supports[j]) for j in range(n) if j != i]))
        if n > 1
        else 0.0
        for i in range(n)
    ]
    median, room = mad_room(usual, 4.5)
    left = [i for i in range(n) if usual[i] >= median - room]
    signs = np.sign(now.x)
    gap = {(i, j): 0 if i == j else 1 - cosine(signs[i], signs[j]) for i in left for j in left}
    reach = {i: sorted(gap[i, j] for j in left)[len(left) // 2] for i in left}
    median, room = mad_room(list(reach.values()), 3.0)
    radius = median + room + 1e-12
    core = [i for i in left if reach[i] <= radius]
    clusters = set()
    for first in core:
        cluster = {first}
        while (
            more := {j for i in cluster if i in core for j in left if gap[i, j] <= radius} - cluster
        ):
            cluster |= more
        clusters.add(frozenset(cluster))
    largest = max(map(len, clusters))
    chosen = set.union(*(set(cluster) for cluster in clusters if len(cluster) == largest))
    return [i in chosen for i in range(n)], mean_of([now.x[i] for i in sorted(chosen)])


FILTERS: list[tuple[Defense[Any], Callable[[list[Round], Round], Judged]]] = [
    (LASA(), lasa),
    (AlignIns(), alignins),
    (ClippedClustering(), clipped_clustering),
    (SafeSparse(), safesparse),
]


@pytest.mark.parametrize(("rule", "oracle"), FILTERS, ids=[f.__name__ for _, f in FILTERS])
def test_a_filter_takes_the_rows_of_its_paper_and_averages_them_so(
    rule: Defense[Any], oracle: Callable[[list[Round], Round], Judged]
) -> None:
    left_out = 0
    for run in RUNS:
        state = None
        for i, now in enumerate(run):
            view = now.view()
            out, state = rule.aggregate(FloatVectors(torch.from_numpy(now.x)), state, view)
            good, expected = oracle(run[:i], now)
            assert kept(view) == good, now.name
            np.testing.assert_allclose(out.numpy(), expected, rtol=1e-9, atol=1e-12)
            left_out += good.count(False)
    assert left_out > 70  # of 800 rows


def test_crfl_moves_the_model_to_what_its_paper_computes() -> None:
    clipped = 0
    rule = CRFL(c=4.0, growth=1.5, noise=0.3)
    for now in (now for run in RUNS for now in run):
        view = now.view()
        out, _ = rule.aggregate(FloatVectors(torch.from_numpy(now.x)), None, view)
        model = now.model + sum(s * row for s, row in zip(now.sizes, now.x, strict=True)) / sum(
            now.sizes
        )
        rho = 4.0 + 1.5 * (now.step + 1)
        noise = now.key.fold("crfl").gaussian(K).numpy()
        expected = model / max(1, float(norm(model)) / rho) + 0.3 * noise
        np.testing.assert_allclose(now.model + out.numpy(), expected, rtol=1e-9, atol=1e-12)
        clipped += bool(norm(model) > rho)
    assert 0 < clipped < 2 * len(RUNS)


def probabilities(weights: Array, image: Array) -> Array:
    """Return the softmax of the network's logits."""
    hidden = np.maximum(weights[:8].reshape(2, 4) @ image, 0)
    logits = weights[8:].reshape(3, 2) @ hidden
    return np.asarray(np.exp(logits) / np.exp(logits).sum())


def together(distances: Array) -> Array:
    """Return the clustering distances, 0 in one cluster and 1 between two."""
    if len(distances) == 1:
        return np.zeros((1, 1))
    labels = HDBSCAN(
        2, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
    ).fit_predict(distances)
    n = len(labels)
    alike = [[i == j or labels[i] == labels[j] >= 0 for j in range(n)] for i in range(n)]
    return 1.0 - np.array(alike)


def apart(points: Array) -> Array:
    return np.array([[norm(a - b) for b in points] for a in points])


def deepsight(now: Round, order: list[int]) -> list[bool]:
    """Return the rows that are averaged where HDBSCAN sees them in this order."""
    x = now.x[order]
    n = len(x)
    last = x[:, 8:].reshape(n, 3, 2)
    energies = np.array([[sum(abs(w) for w in neuron) for neuron in row] for row in last])
    neups = np.array([e**2 / (sum(e**2) or 1) for e in energies])
    exceedings = [sum(p > max(0.01, 1 / 3) * max(row) for p in row) for row in neups]
    suspicious = [count <= np.median(exceedings) / 2 for count in exceedings]
    flat = last.reshape(n, 6)
    angles = [[0 if i == j else 1 - cosine(flat[i], flat[j]) for j in range(n)] for i in range(n)]
    by_noise = []
    for seed in range(2):
        images = now.key.fold("deepsight", seed).fold(0).normal(20, 4).double().numpy()
        ddifs = [
            np.mean(
                [
                    probabilities(now.model + row, z) / probabilities(now.model, z)
                    for z in images.reshape(20, 4)
                ],
                axis=0,
            )
            for row in x
        ]
        by_noise.append(together(apart(np.array(ddifs))))
    parts = [together(apart(neups)), together(np.array(angles)), np.mean(by_noise, axis=0)]
    clusters = together(np.mean(parts, axis=0))
    good: list[bool] = []
    for i in range(n):
        mates = [j for j in range(n) if clusters[i, j] == 0]
        good.append(bool(sum(suspicious[j] for j in mates) / len(mates) < 1 / 3))
    return [good[order.index(i)] for i in range(n)]


def test_deepsight_averages_the_clusters_of_its_paper() -> None:
    left_out = 0
    for now in (run[0] for run in RUNS if "outlier" not in run[0].name):
        view = now.view()
        view = replace(view, broadcast=FloatVectors(view.broadcast.values().float()))
        rows = FloatVectors(torch.from_numpy(now.x).float())
        out, _ = DeepSight(samples=20, seeds=2).aggregate(rows, None, view)
        good = deepsight(now, in_order(rows.x, now.key.fold("ties")))  # HDBSCAN's ties depend on it
        assert kept(view) == good, now.name
        bound = float(np.median([norm(row) for row in now.x]))
        averaged = [shortened(row, bound) for row, g in zip(now.x, good, strict=True) if g]
        np.testing.assert_allclose(out.numpy(), mean_of(averaged), rtol=1e-5, atol=1e-7)
        left_out += good.count(False)
    assert left_out > 30


def sum_of_squares(values: Sequence[float], groups: int) -> tuple[float, float]:
    """Return the least sum of squares in one or two groups, and the last value of the lower."""
    x = sorted(values)
    splits = [(x[:i], x[i:]) for i in range(1, len(x))] if groups == 2 else [(x, [])]
    sums = [sum(len(p) * float(np.var(p)) for p in pair if p) for pair in splits]
    best = int(np.argmin(sums))
    return float(sums[best]), splits[best][0][-1]


class Detector:
    """FLDetector with one matrix for the Hessian, updated pair by pair."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.sent: list[Array] = []
        self.answers: list[Array] = []
        self.last: dict[int, tuple[Array, Array]] = {}  # of each client its row and the model
        self.distances: dict[int, list[float]] = {}
        self.removed: set[int] = set()

    def hessian(self) -> Array | None:
        pairs = [
            (b - a, d - c)
            for a, b, c, d in zip(
                self.sent, self.sent[1:], self.answers, self.answers[1:], strict=False
            )
            if (a != b).any()
        ][-self.window :]
        if not pairs:
            return None
        s, y = pairs[-1]
        b: Array = np.eye(len(s)) * (s @ y) / (s @ s)
        for s, y in pairs:
            b = b - np.outer(b @ s, b @ s) / (s @ b @ s) + np.outer(y, y) / (y @ s)
        return b

    def judge(self, scores: dict[int, float], key: Key) -> set[int]:
        values = list(scores.values())
        low, high = min(values), max(values)
        if len(values) < 3 or high == low:
            return set()
        gaps = []
        for groups in (1, 2):
            uniform = key.uniform(DRAWS, len(values)).tolist()
            logs = [np.log(sum_of_squares(row, groups)[0]) for row in uniform]
            scaled = [(v - low) / (high - low) for v in values]
            gaps.append(np.mean(logs) - np.log(sum_of_squares(scaled, groups)[0]))
        if gaps[0] >= gaps[1] - np.std(logs) * np.sqrt(1 + 1 / DRAWS):
            return set()
        return {i for i in scores if scores[i] > sum_of_squares(values, 2)[1]}

    def play(self, model: Array, rows: dict[int, Array], sizes: Array, key: Key) -> Judged:
        b = self.hessian()
        far = {}
        for i, row in rows.items():
            if b is not None and i in self.last and i not in self.removed:
                before, at = self.last[i]
                far[i] = float(norm(row - before - b @ (model - at)))
        for i, distance in far.items():
            mean = sum(far.values()) / len(far)
            distances = [*self.distances.get(i, []), distance / mean]
            self.distances[i] = distances[-self.window :]
        full = {i: float(np.mean(d)) for i, d in self.distances.items() if len(d) == self.window}
        caught = set()
        if 2 * len(full) > len(self.distances):
            caught = self.judge(full, key.fold("fldetector"))
        self.removed |= caught
        if caught:
            self.distances = {}
        good = [i not in self.removed for i in rows]
        weights = sizes * good
        answer = weights @ np.array(list(rows.values())) / (weights.sum() or 1)
        self.last |= {i: (row, model) for i, row in rows.items() if i not in self.removed}
        self.sent.append(model)
        self.answers.append(answer)
        return good, answer


@pytest.mark.parametrize("window", [1, 2, 3])
def test_fldetector_removes_whom_its_paper_would_and_averages_the_others(window: int) -> None:
    removed = 0
    d = 6
    for seed in range(12):
        key = Key(seed)
        n = 7 + seed % 4
        root = key.fold("root").normal(d, d).double().numpy()
        curvature = root @ root.T / d + np.eye(d)
        best = key.fold("best").normal(n, d).double().numpy()
        sizes = 1 + 9 * key.fold("sizes").uniform(n).double().numpy()
        oracle = Detector(window)
        rule = FLDetector(window=window)
        state = None
        model = np.zeros(d)
        for step in range(9):
            noise = key.fold("noise", step).normal(n, d).double().numpy()
            noise[: 2 if seed % 3 else 0] *= 30  # of two clients, or of nobody
            here = [i for i in range(n) if key.fold("here", step).uniform(n)[i] < 0.8] or [0]
            rows = {i: (best[i] - model) @ curvature + 0.05 * noise[i] for i in here}
            received = FloatVectors(torch.from_numpy(np.array(list(rows.values()))))
            view = replace(
                view_of(received, key=step),
                broadcast=FloatVectors(torch.from_numpy(model)[None]),
                ids=torch.tensor(here),
                weights=torch.from_numpy(sizes[here]),
            )
            out, state = rule.aggregate(received, state, view)
            good, answer = oracle.play(model, rows, sizes[here], Key(step))
            assert kept(view) == good, (seed, step)
            np.testing.assert_allclose(out.numpy(), answer, rtol=1e-9, atol=1e-12)
            assert view.findings.notes["removed"] == len(oracle.removed)
            model = model + 0.3 * answer
        removed += len(oracle.removed)
    assert removed > 5


def mimicked(rounds: Iterator[Array], z: Array, warmup: int) -> Iterator[Array]:
    """Yield the row to copy in each round: Oja's rule, step by step."""
    mu = np.zeros(len(z))
    for t, x in enumerate(rounds):
        if t < warmup:
            mu = t / (1 + t) * mu + x.mean(axis=0) / (1 + t)
            v = sum((row - mu) * ((row - mu) @ z) for row in x)
            z = t / (1 + t) * z + v / norm(v) / (1 + t)
            z = z / norm(z)
        yield x[max(range(len(x)), key=lambda i: x[i] @ z)]


@pytest.mark.parametrize("warmup", [1, 3, 50])
def test_mimic_copies_whom_its_paper_would_in_each_round(warmup: int) -> None:
    for seed in range(6):
        rounds = [drawn(KINDS[seed], 6 + seed, step).x for step in range(6)]
        attack = Mimic(warmup=warmup)
        views = [attack_view(attack, round_of(torch.from_numpy(x).float())) for x in rounds]
        start = views[0].key.fold("mimic").normal(K).double().numpy()
        memory = None
        for view, row in zip(
            views, mimicked(iter([x[M:] for x in rounds]), start, warmup), strict=True
        ):
            message, memory = attack.craft(view, memory)
            expected = np.broadcast_to(row, (M, K))
            np.testing.assert_allclose(message.values(), expected, rtol=1e-6, atol=1e-6)
