"""Attacks have no unit of their own: rows ``c`` times as long get messages ``c`` times as long.

Factors are powers of two, about 1e-6 to 1e6, so that no operation rounds otherwise than before:
what is crafted is compared bit by bit, on any processor.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.adversary.threat_model import attack_view
from fedbench.api import Attack, AttackView
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors, Payload
from fedbench.testing import example_context
from fedbench_attacks.searched import DynOpt
from fedbench_attacks.stat_opt import StatOpt
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.multi_krum import Krum, MultiKrum

M = 2
FACTORS = [2.0**power for power in (-20, -10, 10, 20)]
QUICK = ["mean", "median", "trimmed-mean", "multi-krum"]  # a kind of search each
SEARCHING = ["dyn-opt", "dyn-opt:direction=sign", "opt-alie", "opt-ipm", "stat-opt"]
OTHERS = ["min-max:direction=sign", "min-sum:direction=unit"]

# `search=published` is left out: its start and tolerance are those of the public code, in gammas.


def rows(n: int = 9, d: int = 6, seed: int = 3) -> Tensor:
    key = Key(seed)
    spread = key.fold("scale").uniform(n)[:, None] * 2 + 0.3
    return key.normal(n, d) * spread + key.fold("mean").normal(d)


def crafted(attack: Attack, rule: Any, x: Tensor, m: int = M) -> tuple[AttackView, Tensor | None]:
    """What the first ``m`` of these clients send, or None if it is raw bytes."""
    here = dataclasses.replace(example_context(FloatVectors(x), rule, range(m)), updates=x)
    view = attack_view(attack, dataclasses.replace(here, trained=x[:m]))
    message, _ = attack.craft(view, None)
    return view, message.values() if isinstance(message, Payload) else None


def defense(name: str) -> Any:
    """The rule, prepared for two malicious rows of nine if it can be, otherwise for one."""
    rule = registry.load("defense", name)
    two = rule.declared(M)
    return two if two.rows_needed() <= 9 else rule.declared(1)


def meetings() -> Iterator[tuple[str, str]]:
    """Every attack that sends floats, before every rule if it asks the rule."""
    for name in [*registry.names("attack"), *OTHERS]:
        attack = registry.load("attack", name)
        if issubclass(FloatVectors, attack.accepts) and name not in SEARCHING:
            yield name, "mean"
    chains = [f"{prefilter}+median" for prefilter in registry.names("prefilter")]
    for name in SEARCHING:
        for rule in [*registry.names("defense"), *(chains if name == "opt-ipm" else [])]:
            if defense(rule).refuses(FloatVectors) is None:
                yield name, rule


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(name, rule, marks=[] if rule in QUICK else pytest.mark.slow)
        for name, rule in meetings()
    ],
)
def test_longer_messages_are_met_by_messages_as_many_times_as_long(name: str, rule: str) -> None:
    attack, server = registry.load("attack", name), defense(rule)
    _, plain = crafted(attack, server, rows())
    for factor in FACTORS if rule in QUICK else FACTORS[:1]:
        _, scaled = crafted(attack, server, factor * rows())
        if plain is None:  # raw bytes
            assert scaled is None
        else:
            assert scaled is not None
            assert torch.equal(scaled, factor * plain)


@pytest.mark.parametrize("direction", ["std", "sign", "unit"])
@pytest.mark.parametrize("selected", ["most", "all"])
def test_gamma_scales_where_the_direction_does_not(direction: Any, selected: Any) -> None:
    # Decimal factors round, and one rounding may move a bisection by its last step: 1e-3.
    attack = DynOpt(direction=direction, selected=selected)
    before = crafted(attack, MultiKrum(f=2), rows())[0].notes["gamma"]
    assert isinstance(before, float)
    assert before > 0
    for factor in (1e-6, 1e-3, 1e3, 1e6):
        after = crafted(attack, MultiKrum(f=2), factor * rows())[0].notes["gamma"]
        expected = before if direction == "std" else factor * before
        assert after == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("attack", [DynOpt(direction="sign", selected="all"), StatOpt()], ids=repr)
@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0])
def test_small_updates_are_searched_as_closely_as_large_ones(attack: Any, size: float) -> None:
    x = size * rows(9, 40, 1)
    view, _ = crafted(attack, MultiKrum(f=2), x)
    strength = view.notes.get("gamma", view.notes.get("lambda"))
    assert isinstance(strength, float)
    assert strength > 0
    assert 0 < float(view.notes["gap"]) <= 1e-3
    benign = x[M:].double()
    mean = benign.mean(dim=0)
    start = torch.zeros(40) if isinstance(attack, StatOpt) else mean

    def taken(gamma: float) -> int:
        forged = (start - gamma * mean.sign()).expand(M, -1)
        return int(MultiKrum(f=2).select(squared_distances(torch.cat([forged, benign])))[:M].sum())

    assert taken(strength) == M
    assert taken(1.0011 * strength) < M


def test_where_more_are_malicious_than_the_rule_expects_some_selected_do_more_than_all() -> None:
    # Multi-Krum for one of ten averages nine: of three far colluders two are averaged, wherever
    # they are. All three are selected up to some gamma only.
    rule, x = MultiKrum(f=1), rows(10, 40)
    every, _ = crafted(DynOpt(selected="all"), rule, x, 3)
    most, sent = crafted(DynOpt(), rule, x, 3)
    assert every.notes["ended"] == "converged"
    assert most.notes["ended"] == "bound"
    assert sent is not None
    answer = rule.select(squared_distances(torch.cat([sent, x[3:]])))
    assert int(answer[:3].sum()) == 2


@pytest.mark.parametrize("rule", [MultiKrum(f=2), MultiKrum(f=3, m=4), Krum(f=2)], ids=repr)
@pytest.mark.parametrize("seed", range(2))
def test_dyn_opt_is_the_better_of_all_and_of_as_many_as_do_most(rule: Any, seed: int) -> None:
    x = rows(9, 40, seed)
    benign = x[M:].double()
    mean, push = benign.mean(dim=0), -benign.std(dim=0)

    def damage(gamma: float) -> float:
        every = torch.cat([(mean + gamma * push).expand(M, -1), benign])
        chosen = rule.select(squared_distances(every))
        return float((every[chosen].mean(dim=0) - mean).norm()) if chosen[:M].any() else 0.0

    view, _ = crafted(DynOpt(), rule, x)
    reached = damage(float(view.notes["gamma"]))
    assert reached >= 0.998 * max(damage(0.02 * step) for step in range(200))
    every, _ = crafted(DynOpt(selected="all"), rule, x)
    assert reached >= 0.998 * damage(float(every.notes["gamma"]))
