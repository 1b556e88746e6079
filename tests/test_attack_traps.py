"""Traps that other code bases fell into, for the attacks in real space: numbers D of the errata."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.adversary.threat_model import AttackContext, attack_view, forge
from fedbench.api import Attack, ServerView, Shared
from fedbench.core import registry
from fedbench.core.rng import Key, Secret
from fedbench.executors.training import Loop, Schedule
from fedbench.models.network import ConvNet
from fedbench.payload import FloatVectors, Payload
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import example_clients, example_context
from fedbench_attacks.min_max import MinMax
from fedbench_attacks.search import Scale, best_of_grid, selecting
from fedbench_attacks.searched import DynOpt, OptIPM
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median, TrimmedMean

M = 2
DRAWING = ["noise", "stat-opt"]
OTHERS = ["alie", "dyn-opt", "ipm", "min-max", "min-sum", "opt-alie", "opt-ipm", "pga", "sign-flip"]


def honest(n: int = 9, d: int = 40, rule: Any = None) -> AttackContext:
    x = Key(0).normal(n, d) + 0.3
    return example_context(FloatVectors(x), rule or Median(), range(M))


def crafted(attack: Attack, here: AttackContext) -> Tensor:
    message, _ = attack.craft(attack_view(attack, here), None)
    assert isinstance(message, Payload)
    return message.values()


@pytest.mark.parametrize("name", OTHERS)
def test_d11_no_attack_prefers_the_first_coordinates(name: str) -> None:
    # Coordinates in another order are attacked in that order.
    attack, here = registry.load("attack", name), honest()
    order = Key(9).permutation(40)
    x = here.updates[:, order]
    turned = replace(here, honest=FloatVectors(x), updates=x, trained=x[:M])
    expected = crafted(attack, here)[:, order]
    torch.testing.assert_close(crafted(attack, turned), expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", DRAWING)
def test_d11_an_attack_that_draws_does_so_in_every_part_of_the_vector(name: str) -> None:
    attack = registry.load("attack", name)
    here = honest(d=4000)
    moved = (crafted(attack, here) - here.updates[M:].mean(dim=0)).abs()
    again = crafted(
        attack, replace(here, owned=replace(here.owned, secret=Secret.of(7, "adversary")))
    )
    drawn = again != crafted(attack, here)
    for part in (slice(0, 2000), slice(2000, 4000)):
        assert float(drawn[:, part].float().mean()) > 0.99
    halves = moved[:, :2000].mean(), moved[:, 2000:].mean()
    assert float(halves[0] / halves[1]) == pytest.approx(1.0, abs=0.1)


def test_d12_the_gamma_of_min_max_has_no_cap_and_never_violates_its_bound() -> None:
    # Two clients far from 200 that hardly differ: deviations are small, the longest distance not.
    x = 0.001 * Key(1).normal(204, 40)
    x[-2:, 0] = torch.tensor([10.0, -10.0])
    here = example_context(FloatVectors(x), Median(), range(M))
    benign = x[M:].double()
    bound = torch.cdist(benign, benign).max()
    for direction in ("std", "sign", "unit"):
        attack = MinMax(direction=direction)
        view = attack_view(attack, here)
        message, _ = attack.craft(view, None)
        assert isinstance(view.notes["gamma"], float)
        assert view.notes["gamma"] > (2 if direction == "sign" else 5)
        distance = (message.values()[0].double() - benign).norm(dim=1).max()
        assert float(distance) <= float(bound) * (1 + 1e-6)
        assert float(distance) >= float(bound) * (1 - 1e-5)


def test_d13_what_is_flipped_is_the_update_and_not_the_weights() -> None:
    shared = Shared(ConvNet((1, 4, 4), ((3,),), (5,), 3), 3, torch.device("cpu"))
    protocol = FedAvg()
    clients = example_clients(protocol, shared)
    updates, memory = Loop(protocol, shared, Schedule(epochs=1, batch_size=4)).train(clients)
    honest, _ = protocol.message(shared, updates, [c.key for c in clients], memory)
    weights = shared.layout.flatten(clients[0].tree)
    here = replace(example_context(honest, Mean()), updates=updates)
    packets = forge(SignFlip(), here, {}).among(here.honest)
    sent, _ = FloatVectors.decode(packets, honest.spec)
    assert sent is not None
    torch.testing.assert_close(sent.x[:M], -updates[:M])
    assert float(updates.norm(dim=1).max()) < 0.5 * float(weights.norm())
    # The server adds what it gets: a model that was flipped would end near minus the weights.
    stepped = protocol.server_step(shared, weights, sent.x[0], 1, Key(0))
    assert float((stepped - weights).norm()) < 0.5 * float(weights.norm())


class Drifting(Mean):
    """A mean that is pulled to its last answers, and counts how often it was asked."""

    def init(self, spec: Any) -> Any:
        return {"last": torch.zeros(40), "asked": 0}

    def tolerates(self, n: int) -> int:
        return n - 1

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> Any:
        state["asked"] += 1
        state["last"].mul_(0.5).add_(0.5 * received.values().mean(dim=0).clamp(-1, 1))
        return state["last"].clone(), state


@pytest.mark.parametrize("name", ["dyn-opt", "opt-alie", "opt-ipm"])
def test_d16_the_oracle_of_a_rule_with_a_state_does_not_drift(name: str) -> None:
    rule, attack = Drifting(), registry.load("attack", name)
    state = rule.init(None)
    here = replace(honest(rule=rule), defense_state=state)
    view = attack_view(attack, here)
    assert view.defense is not None
    before = view.defense(view.own)
    attack.craft(view, None)
    assert view.defense.queries >= 10
    for _ in range(20):
        assert torch.equal(view.defense(view.own), before)
    assert state["asked"] == 0
    assert float(state["last"].abs().max()) == 0.0


def test_d19_a_search_keeps_the_best_that_it_has_seen() -> None:
    # Damage with a peak between two valleys, which a search that compares with the trial before
    # leaves again.
    def damage(gamma: float) -> float:
        return 5.0 if 0.9 < gamma < 1.1 else min(gamma, 3.0)

    scale = Scale(near=1.0, far=16.0, bound=1e5)
    found = best_of_grid(damage, scale)
    assert damage(found.gamma) == 5.0
    assert max(value for _, value in found.trace) == 5.0
    # What is accepted need not be an interval: the upper one is found.
    island = selecting(lambda gamma: gamma < 0.5 or 6.0 < gamma < 9.0, scale)
    assert 8.99 < island.gamma < 9.0
    # Nor need it hold a doubling: this one lies between 4 and 8, and is a ninth as wide as 4.
    island = selecting(lambda gamma: gamma < 0.5 or 5.0 < gamma < 5.5, scale)
    assert 5.494 < island.gamma < 5.5


@pytest.mark.parametrize("attack", [DynOpt, OptIPM])
@pytest.mark.parametrize("rule", [Mean(), Median(), TrimmedMean(f=2), Drifting()], ids=repr)
def test_d19_a_larger_budget_never_does_less(attack: Any, rule: Any) -> None:
    reached = []
    for bound in (0.5, 2.0, 8.0, 100.0, 1e4):
        here = replace(honest(rule=rule), defense_state=rule.init(None))
        message = crafted(attack(bound=bound), here)
        view = attack_view(attack(), here)
        assert view.defense is not None
        answer = view.defense(FloatVectors(message))
        reached.append(float((answer - here.updates[M:].mean(dim=0)).norm()))
    for less, more in pairwise(reached):
        assert more >= (1 - 2e-3) * less
