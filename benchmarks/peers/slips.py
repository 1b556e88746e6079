"""Counts of how often public code errs, which docs/errata.md and docs/results/attacks.md state.

``make .venv-peers/installed && .venv-peers/bin/python benchmarks/peers/slips.py`` prints a line for
each, over rows that are drawn from the seed: D2, Bulyan with indices into the remaining rows taken
for indices into all; D21, ByzFL's SMEA beside its definition; D23, HDBSCAN on rows in another
order; and the damage of ByzFL's optimised attacks beside that of ours, which takes three minutes.
``--only D2 D23`` prints these alone.
"""

from __future__ import annotations

import importlib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench import functional
from fedbench.core.rng import Key
from fedbench.data.archives import vision
from fedbench_defenses.deepsight import clusters

# Our rules, and ByzFL's. Both are prepared for as many rows as the adversary has.
RULES = {
    "mean": "Average",
    "median": "Median",
    "trimmed-mean": "TrMean",
    "geometric-median": "GeometricMedian",
    "krum": "Krum",
    "multi-krum": "MultiKrum",
    "centered-clipping": "CenteredClipping",
    "mda": "MDA",
    "meamed": "Meamed",
}
WITHOUT_F = ("mean", "median", "geometric-median", "centered-clipping")
ATTACKS = {
    "opt-alie": (functional.opt_alie, "Optimal_ALittleIsEnough"),
    "opt-ipm": (functional.opt_ipm, "Optimal_InnerProductManipulation"),
}


def byzfl() -> Any:
    """Return the package, after torchvision, which may not fit a CPU build of torch."""
    vision("datasets")
    return importlib.import_module("byzfl")


def picks_twice(x: Tensor, f: int) -> bool:
    """Tell whether the slip picks a row twice: the lowest Krum score among the rest, ``n - 2f``."""
    left = list(range(len(x)))
    picked = []
    for _ in range(len(x) - 2 * f):
        apart = torch.cdist(x[left], x[left]).square().sort(dim=1).values
        scores = apart[:, 1 : max(len(left) - f - 2, 1) + 1].sum(dim=1)
        place = int(scores.argmin())
        picked.append(place)  # not left[place]
        left.pop(place)
    return len(set(picked)) < len(picked)


def bulyan(key: Key, rounds: int = 1000) -> str:
    """Return the line of D2."""
    shares = []
    for n, f in ((7, 1), (15, 3), (23, 5)):
        rows = (key.fold("bulyan", n, i).normal(n, 20).double() for i in range(rounds))
        twice = sum(picks_twice(x, f) for x in rows)
        shares.append(f"{twice / rounds:.1%} of {rounds} with n = {n}, f = {f}")
    return f"D2: the slip picks a row twice in {', '.join(shares)}"


def smallest(x: Tensor, f: int) -> set[int]:
    """Return the rows of the subset whose covariance has the smallest largest eigenvalue."""

    def largest(rows: Iterable[int]) -> float:
        subset = x[list(rows)]
        centred = subset - subset.mean(dim=0)
        return float(torch.linalg.matrix_norm(centred, ord=2))

    return set(min(combinations(range(len(x)), len(x) - f), key=largest))


def smea(key: Key, inputs: int = 200) -> str:
    """Return the line of D21."""
    right = alike = ours = 0
    for i in range(inputs):
        draw = key.fold("smea", i)
        n, f, d = 5 + i % 4, 1 + i % 2, 2 + i % 9
        x = draw.normal(n, d).double()
        wanted = x[sorted(smallest(x, f))].mean(dim=0)
        np.random.seed(i)  # noqa: NPY002  what ByzFL draws from
        torch.manual_seed(i)
        rule = byzfl().SMEA(f=f)
        first = torch.as_tensor(rule(x)).double()
        right += torch.allclose(first, wanted, atol=1e-5)
        alike += torch.allclose(first, torch.as_tensor(rule(x)).double(), atol=1e-5)
        ours += torch.allclose(functional.smea(x, f=f).double(), wanted, atol=1e-5)
    return (
        f"D21: of {inputs} inputs ByzFL's SMEA takes the subset of its definition {right} times, "
        f"ours {ours} times; two calls of ByzFL's agree {alike} times"
    )


def deepsight(key: Key, rounds: int = 60) -> str:
    """Return the line of D23: distances are means over three partitions, so many are equal."""
    other = 0
    for i in range(rounds):
        draw = key.fold("deepsight", i)
        parts = torch.stack([draw.fold("part", j).integers(4, 10) for j in range(3)])
        apart = (parts[:, :, None] != parts[:, None, :]).double().mean(dim=0)
        order = draw.fold("order").permutation(10)
        before = clusters(apart, 2)
        after = torch.empty_like(before)
        after[order] = clusters(apart[order][:, order], 2)
        together = before[:, None] == before
        other += not torch.equal(together, after[:, None] == after)
    return f"D23: of {rounds} rounds of 10 rows, {other} have other clusters in another order"


def damages(key: Key, matrices: int) -> Iterator[str]:
    """Yield a line for each rule and attack: our damage over ByzFL's, which may do none."""
    for name, theirs in RULES.items():
        for attack, (ours, peer) in ATTACKS.items():
            ratios = []
            for i in range(matrices):
                draw = key.fold("damage", i)
                size = [int(draw.fold("size", j).integers(k, 1)) for j, k in enumerate((8, 55, 3))]
                n, d, m = 8 + size[0], 5 + size[1], 1 + size[2]
                m = min(m, (n - 3) // 2)
                honest = draw.fold("rows").normal(n - m, d) + draw.fold("mean").normal(d)
                rule = name if name in WITHOUT_F else f"{name}:f={m}"
                with_f = {} if name in WITHOUT_F else {"f": m}
                agg = getattr(byzfl(), theirs)(**with_f)
                made = getattr(byzfl(), peer)(agg=agg, pre_agg_list=[], f=m, evals=20)(honest)
                sent = torch.as_tensor(made).float().expand(m, -1)
                done = damage(rule, honest, sent)
                more = damage(rule, honest, ours(honest, m=m, defense=rule))
                ratios.append(more / done if done else torch.inf)
            near = sum(ratio >= 0.999 for ratio in ratios) / matrices
            yield (
                f"{attack} against {name}: {min(ratios):.4g} to {max(ratios):.4g} times ByzFL's "
                f"damage, at least 0.999 times in {near:.1%} of {matrices}"
            )


def damage(rule: str, honest: Tensor, sent: Tensor) -> float:
    """Return how far the rule's answer is from the honest mean."""
    name, _, f = rule.partition(":f=")
    aggregate = getattr(functional, name.replace("-", "_"))
    rows = torch.cat([sent, honest])
    answer = aggregate(rows, **({"f": int(f)} if f else {}))
    answer = answer[0] if isinstance(answer, tuple) else answer  # of a rule with a memory
    return float((answer - honest.mean(dim=0)).norm())


def main() -> None:
    """Print the lines that were asked for."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    names = ("D2", "D21", "D23", "damage")
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--matrices", type=int, default=50, help="of each attack and rule")
    args = parser.parse_args()
    torch.set_num_threads(1)
    key = Key(args.seed)
    for name, line in (("D2", bulyan), ("D21", smea), ("D23", deepsight)):
        if name in args.only:
            print(line(key), flush=True)
    if "damage" in args.only:
        for result in damages(key, args.matrices):
            print(result, flush=True)


if __name__ == "__main__":
    main()
