"""DYN-OPT as its text and as its released code play it.

Tests that say "slowly" restate in Python's own numbers what docs/errata.md says of the code (A5).
"""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from crafting import M, crafted, round_of, rows, sent
from torch import Tensor

from fedbench.core import registry
from fedbench.isolation.stand_ins import Isolation
from fedbench.payload import SignBits
from fedbench_attacks.searched import DynOpt
from fedbench_defenses.bulyan import Bulyan
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.median import Median, TrimmedMean
from fedbench_defenses.multi_krum import Krum, MultiKrum

Rows = list[list[float]]


def squared(a: list[float], b: list[float]) -> float:
    return sum((p - q) ** 2 for p, q in zip(a, b, strict=True))


def picked_slowly(x: Rows, picks: int, f: int, itself: bool) -> list[int]:
    """Rows that Krum picks one after the other; a row may count as a neighbour of itself."""
    left = list(range(len(x)))
    picked = []
    for _ in range(picks):
        count = max(len(left) - f - 2, 0 if itself else 1)
        scores = []
        for i in left:
            distances = sorted(squared(x[i], x[j]) for j in left if itself or j != i)
            scores.append((sum(distances[:count]), sum(distances)))  # of equals the nearer to all
        picked.append(left.pop(scores.index(min(scores))))
    return picked


def picks_all(picks: int, f: int, itself: bool) -> Callable[[Rows], bool]:
    """Return the acceptance of a trial: only colluders, the first rows, or all of them."""

    def accepted(x: Rows) -> bool:
        colluders = [i for i in picked_slowly(x, picks, f, itself) if i < M]
        return len(colluders) == min(M, picks)

    return accepted


def moved(aggregate: Callable[[list[float]], float]) -> Callable[[Rows], float]:
    """Return the loss of a trial: how far the aggregate is from the mean of the benign rows."""

    def loss(x: Rows) -> float:
        total = 0.0
        for column in zip(*x, strict=True):
            benign = column[M:]
            total += (aggregate(sorted(column)) - sum(benign) / len(benign)) ** 2
        return math.sqrt(total)

    return loss


def searched_slowly(benign: Rows, judge: Callable[[Rows], float], start: float) -> float:
    """The released search: a trial is good if it is accepted, or its loss above the last one's."""
    columns = list(zip(*benign, strict=True))
    mean = [sum(column) / len(column) for column in columns]
    std = [
        math.sqrt(sum((v - mu) ** 2 for v in column) / (len(column) - 1))
        for mu, column in zip(mean, columns, strict=True)
    ]
    gamma = start
    step = start
    succeeded = 0.0
    previous = -1.0
    while abs(succeeded - gamma) > 1e-5:
        row = [mu - gamma * s for mu, s in zip(mean, std, strict=True)]
        verdict = judge([row] * M + benign)
        good = verdict if isinstance(verdict, bool) else previous < verdict
        if good:
            succeeded = gamma
            gamma = gamma + step / 2
        else:
            gamma = gamma - step / 2
        step = step / 2
        previous = verdict
    return succeeded


@pytest.mark.parametrize(
    ("rule", "judge"),
    [
        (Krum(f=2), picks_all(1, 2, False)),
        (Krum(f=2, variant="public"), picks_all(1, 2, True)),
        (MultiKrum(f=2, variant="recursive"), picks_all(3, 2, False)),
        (MultiKrum(f=2, variant="public"), picks_all(3, 2, True)),
        (Bulyan(f=1), picks_all(7, 1, False)),
        (TrimmedMean(f=2), moved(lambda column: sum(column[2:-2]) / len(column[2:-2]))),
        (Median(even="lower"), moved(lambda column: column[(len(column) - 1) // 2])),
    ],
    ids=[
        *("krum", "public-krum", "recursive-multi-krum", "public-multi-krum"),
        *("bulyan", "trimmed-mean", "median"),
    ],
)
@pytest.mark.parametrize("start", [0.2, 3.0])
def test_as_code_is_the_released_search_slowly(rule: Any, judge: Any, start: float) -> None:
    gammas = set()
    for seed in range(4):
        x = rows(seed, d=3)
        attack = registry.load("attack", f"dyn-opt:as=code,start={start}")
        view, row = sent(attack, round_of(x, rule))
        slowly = searched_slowly(x[M:].double().tolist(), judge, start)
        assert view.notes["gamma"] == slowly
        assert view.notes["search"] == "published"
        expected = x[M:].mean(dim=0) - slowly * x[M:].std(dim=0)
        torch.testing.assert_close(row, expected.expand(M, -1))
        gammas.add(slowly)
    assert 0 <= min(gammas) <= max(gammas) < 2 * start
    if start == 3.0 and rule.candidates(torch.zeros(9, 9)) is not None:
        assert len(gammas) > 1


def test_the_released_search_by_hand() -> None:
    # Benign 0 and 4: mean 2, std sqrt(8). Krum with one neighbour: the colluder at c < 2 and the
    # row 0 are nearest to each other. The colluder is taken if it is nearer to 4 than 0 is, c > 0:
    # gamma < 2 / sqrt(8).
    x = torch.tensor([[9.0], [0.0], [4.0]])
    view, _ = sent(DynOpt(search="published", start=1.0), round_of(x, Krum(f=0), 1))
    assert view.trace[:5] == [(1.0, 0), (0.5, 1), (0.75, 0), (0.625, 1), (0.6875, 1)]
    # Steps end at 2 ** -17 < 1e-5, which is not tried: 2 ** 16 / sqrt(2) is 46340.95.
    assert view.notes["gamma"] == 46340 / 2**16
    assert view.defense is not None
    assert view.defense.queries == len(view.trace)


def test_bulyan_says_which_rows_it_picks_before_it_takes_their_values_apart() -> None:
    # Worked by hand in test_d2_bulyan_by_hand_picks_no_row_twice.
    x = torch.tensor([40.0, 0, 15, 1, 10, 3, 6])[:, None]
    picked = Bulyan(f=1).candidates(squared_distances(x))
    assert sorted(x[picked, 0].tolist()) == [1, 3, 6, 10, 15]
    nothing = torch.zeros(7, 7)
    assert Bulyan(f=1).select(nothing) is None  # it does not average them
    for rule in (Krum(f=1), MultiKrum(f=1)):
        distances = squared_distances(x)
        candidates = rule.candidates(distances)
        assert candidates is not None
        assert torch.equal(candidates, rule.select(distances))
    assert Median().candidates(nothing) is None


@pytest.mark.slow
def test_as_paper_all_colluders_are_picked_and_no_farther_off() -> None:
    attack = registry.load("attack", "dyn-opt:as=paper")
    assert attack == DynOpt(selected="all", side="minus")
    for seed in range(2):
        x = rows(seed)
        benign = x[M:].double()

        def picked(gamma: float, benign: Tensor = benign) -> int:
            row = benign.mean(dim=0) - gamma * benign.std(dim=0)
            every = torch.cat([row.expand(M, -1), benign])
            return int(Bulyan(f=1).candidates(squared_distances(every))[:M].sum())

        view, _ = sent(attack, round_of(x, Bulyan(f=1)))
        gamma = float(view.notes["gamma"])
        assert (view.notes["search"], view.notes["ended"]) == ("selecting", "converged")
        assert gamma > 0
        assert picked(gamma) == M
        assert all(picked(gamma * (1.0011 + step / 20)) < M for step in range(200))
        assert sent(DynOpt(), round_of(x, Bulyan(f=1)))[0].notes["search"] == "grid"


def test_where_messages_are_not_the_rows_themselves_damage_decides() -> None:
    signs = SignBits(rows(3) >= 0)
    benign = signs.values()[M:].double()
    view, message = crafted(DynOpt(search="published"), round_of(signs, Bulyan(f=1)))
    assert view.defense is not None
    apart = float((view.defense(message).double() - benign.mean(dim=0)).norm())
    gamma, first = view.trace[0]
    assert gamma == 10.0
    assert first == pytest.approx(apart, rel=1e-6)
    assert apart > 1  # which is no flag


@pytest.mark.slow
def test_an_isolated_rule_says_what_it_picks() -> None:
    distances = squared_distances(rows())
    with Isolation() as isolation:
        for text in ("bulyan:f=1", "multi-krum:f=2", "median"):
            here = registry.load("defense", text).candidates(distances)
            apart = isolation.load("defense", text).candidates(distances)
            assert (here is None) == (apart is None) == (text == "median")
            assert here is None or torch.equal(here, apart)
