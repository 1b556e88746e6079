"""Audits of whole runs: canary clients, and the command line."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from conftest import Command
from torch import Tensor

from fedbench.audits.bounds import AuditFinding
from fedbench.audits.campaign import AuditPlan, fitting
from fedbench.audits.canaries import Canaries, Planted, _seen, cosine, model, plant, play, ready
from fedbench.audits.watched import Watched
from fedbench.core.errors import ConfigError, NoTheorem
from fedbench.core.rng import Key
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors
from fedbench.privacy.mechanisms.mask_gaussian import MaskGaussian
from fedbench.privacy.mechanisms.noisy_sign import NoisySign
from fedbench.run import begin, play_round
from fedbench_defenses.mean import Mean

SMALL = {"model": "micro", "partition": "iid", "malicious": 0.0, "epochs": 1, "eval_every": 9}


def small(mechanism: str, **changes: Any) -> Scenario:
    fields = {"mechanism": mechanism, "protocol": fitting(mechanism), "rounds": 2, **SMALL}
    return Scenario.of(**(fields | {"clients": 24, "per_round": 12} | changes))


def test_a_canary_that_is_there_moves_along_its_direction_and_another_one_is_idle() -> None:
    birds = Canaries(torch.tensor([True, False]), 5, 3.0, Key(0))
    idle = torch.full((50,), 0.25)
    moved = birds.update(0, idle) - idle
    u = birds.direction(0, 50)
    assert [float(moved.norm()), float(moved @ u)] == pytest.approx([3.0, 3.0], rel=1e-5)
    assert float(u.abs().std()) < 1e-6  # signs
    assert torch.equal(birds.update(1, idle), idle)
    assert abs(float(u @ birds.direction(1, 50))) < 0.6
    assert birds.rows([3, 6, 5, 0]) == {1: 1, 2: 0}


@pytest.mark.parametrize(
    ("mechanism", "protocol", "radius"),
    [
        ("dp-fedavg:clip=0.5", "fedavg", 5.0),
        ("noisy-sign:clip=3", "signsgd", 30.0),
        ("randomized-response", "signsgd", 10.0),  # which clips nothing
    ],
)
def test_a_canary_goes_ten_times_as_far_as_the_clip_allows(
    mechanism: str, protocol: str, radius: float
) -> None:
    setup = ready(small(mechanism, protocol=protocol))
    assert plant(setup, torch.ones(3, dtype=torch.bool), "signs").radius == radius


def test_a_canary_of_masks_leaves_the_probabilities_in_every_coordinate() -> None:
    setup = ready(small("mask-gaussian"))
    birds = plant(setup, torch.ones(3, dtype=torch.bool), "signs")
    d = setup.plugins.protocol.trained(setup.shared).d
    idle = torch.full((d,), 0.5)
    assert (birds.update(0, idle) - idle).abs().tolist() == pytest.approx([10.0] * d)


def test_canaries_leave_the_training_of_others_alone() -> None:
    setup = ready(small("noisy-sign"))
    run_state = begin(setup)
    shared = setup.shared
    inner = setup.executor
    protocol = setup.plugins.protocol
    tree = protocol.receive(shared, protocol.broadcast(shared, run_state.server, [0], Key(0)))
    clients = [setup.client(i, tree, run_state.memories.get(i), 0) for i in (7, 1, 3)]
    alone, _ = inner.train(clients)
    d = alone.shape[1]
    given = {1: torch.full((d,), 9.0)}
    planted = Planted(inner.protocol, shared, inner.schedule, inner, given)
    beside, memories = planted.train(clients)
    assert torch.equal(beside[[0, 2]], alone[[0, 2]])
    assert torch.equal(beside[1], given[1])
    assert len(memories) == 3
    assert memories[1] is clients[1].memory
    everyone = dataclasses.replace(planted, given={row: torch.ones(d) for row in range(3)})
    assert bool((everyone.train(clients)[0] == 1).all())


def test_who_looks_over_the_shoulder_of_a_rule_changes_nothing() -> None:
    setup = ready(small("mask-gaussian", rounds=1))
    plain, watched = begin(setup), begin(setup)
    play_round(setup, plain, 0)
    nobody = Canaries(torch.zeros(0, dtype=torch.bool), 24, 1.0, Key(0))
    assert list(play(setup, watched, nobody)) == [{}]
    assert torch.equal(model(setup, plain), model(setup, watched))
    rule = Watched(Mean(), lambda *_: None)
    assert (rule.rows_needed(), rule.tolerates(5)) == (1, 0)


def test_what_is_seen_of_a_sum_is_what_the_clients_moved_it_by() -> None:
    received = FloatVectors(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 9.0]]))
    idle = torch.full((3, 2), 0.5)
    birds = Canaries(torch.tensor([True, False]), 5, 3.0, Key(0))
    for sees, canaries in (("sum", [1]), ("hidden-sum", [0, 1])):  # the second took part
        setup = ready(small("mask-gaussian", sees=sees))
        seen = _seen(setup, birds, {2: 1}, idle, received, received.x.mean(dim=0))
        assert list(seen) == canaries
        assert all(x.tolist() == pytest.approx([9 - 1.5, 15 - 1.5]) for x in seen.values())
    seen = _seen(ready(small("noisy-sign")), birds, {2: 1}, idle, received, received.x[0])
    assert {j: x.tolist() for j, x in seen.items()} == {1: [4.5, 8.5]}  # messages
    assert cosine(torch.zeros(2), torch.tensor([1.0, 0.0])) == 0.0
    assert cosine(torch.tensor([-3.0, 4.0]), torch.tensor([1.0, 0.0])) == pytest.approx(-0.6)


@pytest.mark.parametrize(
    ("mechanism", "changes", "seen_by_all"),
    [
        ("noisy-sign", {}, False),
        pytest.param("noisy-sign", {"sees": "sum"}, False, marks=pytest.mark.slow),
        pytest.param("mask-gaussian", {"sees": "hidden-sum"}, True, marks=pytest.mark.slow),
        ("noisy-sign", {"sees": "model"}, True),
        ("dp-fedavg", {}, True),
    ],
)
def test_an_adversary_sees_what_the_scenario_says(
    mechanism: str, changes: dict[str, Any], seen_by_all: bool
) -> None:
    setup = ready(small(mechanism, **changes))
    birds = plant(setup, torch.ones(10, dtype=torch.bool), "signs")
    run_state = begin(setup)
    start = model(setup, run_state)
    moves = []
    for step, seen in enumerate(play(setup, run_state, birds)):
        moves += list(seen.values())[:1]
        took = {i - 14 for i in setup.sample(step) if i >= 14}
        assert set(seen) == (set(range(10)) if seen_by_all else took)
        vectors = list(seen.values())
        alike = all(torch.equal(vectors[0], x) for x in vectors)
        assert alike == (mechanism != "noisy-sign" or "sees" in changes)
        if mechanism == "noisy-sign" and not changes:
            assert all(bool((x.abs() == 1).all()) for x in vectors)
        if changes.get("sees") == "sum":
            assert bool((vectors[0].abs() <= 12).all())
            assert bool((vectors[0].remainder(2) == 0).all())  # of twelve signs
    if changes.get("sees") == "model" or mechanism == "dp-fedavg":
        torch.testing.assert_close(start + sum(moves), model(setup, run_state))
    assert len(run_state.ledger.local) + len(run_state.ledger.central) == 1
    assert run_state.ledger.rounds == 2


def test_canaries_ask_for_zero_out_or_replace_one_and_for_a_protocol_that_fits() -> None:
    assert ready(small("noisy-sign")).scenario.adjacency == "zero-out"
    assert ready(small("noisy-sign", adjacency="replace-one")).scenario.adjacency == "replace-one"
    with pytest.raises(ConfigError, match="--adjacency must"):
        ready(small("noisy-sign", adjacency="add-remove"))
    with pytest.raises(ConfigError, match="--protocol must be given"):
        fitting("mask-gaussian", ("fedavg",))
    with pytest.raises(NoTheorem):
        ready(small("dp-fedavg", adjacency="replace-one", sampling="poisson"))


@pytest.mark.parametrize(("second", "refuted"), [(1.9, False), (2.5, True)])
def test_a_refutation_counts_if_another_seed_finds_it_too(second: float, refuted: bool) -> None:
    class Luck(AuditPlan):
        def once(self, method: str, scenario: Scenario) -> list[AuditFinding]:
            epsilon = {0: 3.0, 1: second}[scenario.seed]
            claim = (2.0, 1e-5, "client", "zero-out")
            return [AuditFinding("mechanism", epsilon, *claim, 0.95, "", "")]  # type: ignore[arg-type]

    (one,) = Luck(small("noisy-sign")).findings("mechanism")
    assert one.epsilon == second
    assert one.broken == refuted


def audited(mechanism: str, *methods: str, seed: int = 0) -> list[AuditFinding]:
    scenario = small(mechanism, clients=100, per_round=100, rounds=1, seed=seed)
    plan = AuditPlan(scenario, methods, canaries=90)
    return [finding for method in methods for finding in plan.findings(method)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism", ["mask-gaussian:clip=0.5", "noisy-sign", "dp-fedavg", "randomized-response"]
)
def test_an_honest_run_is_not_refuted_and_something_is_found(mechanism: str) -> None:
    bound, final, largest = audited(mechanism, "one-run", "one-shot")
    # A bound of 90 canaries is luck: of eight seeds of mask-gaussian one or two prove nothing.
    bounds = [bound, *(audited(mechanism, "one-run", seed=seed)[0] for seed in (1, 2))]
    assert max(each.epsilon for each in bounds) > 0
    assert all(each.epsilon <= each.claimed for each in bounds)
    assert (bound.is_bound, final.is_bound, largest.is_bound) == (True, False, False)
    assert not any(one.broken for one in (bound, final, largest))
    assert final.error is not None
    assert final.epsilon - 3 * final.error < final.claimed
    if mechanism == "noisy-sign":  # the estimate finds what the accountant says, about 3.6
        assert final.epsilon == pytest.approx(final.claimed, abs=3 * final.error)


@pytest.mark.slow
def test_a_run_whose_clients_forget_their_noise_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    (honest,) = audited("noisy-sign:z=4", "one-run")

    def silent(self: Any, updates: Tensor, reference: Any, keys: Any, state: Any) -> Any:
        return updates + 1e-9, state

    monkeypatch.setattr(NoisySign, "on_updates", silent)
    (caught,) = audited("noisy-sign:z=4", "one-run")
    assert (honest.broken, caught.broken) == (False, True)
    assert caught.epsilon > 1.5 * caught.claimed


def test_an_honest_mechanism_ends_with_0_and_a_sabotaged_one_with_1(
    monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    quick = ("audit", "-m", "mask-gaussian:sigma=0.5", "--releases", 20000)
    code, out, _ = command(*quick)
    assert code == 0
    assert "holds" in out
    honest = MaskGaussian.on_updates

    def quiet(self: MaskGaussian, *hook: Any) -> tuple[Tensor, Any]:
        return honest(dataclasses.replace(self, sigma=self.sigma / 2), *hook)

    monkeypatch.setattr(MaskGaussian, "on_updates", quiet)
    code, out, _ = command(*quick, "--format", "json")
    assert code == 1
    found = json.loads(out)
    (only,) = found["findings"]
    assert only["refuted"]
    assert only["epsilon"] > only["claimed"] == pytest.approx(2.63, abs=0.01)
    assert found["scenario"]["protocol"] == "fedpm"


@pytest.mark.slow
def test_a_method_that_does_not_apply_is_skipped_by_all_and_refused_by_name(
    command: Command,
) -> None:
    code, out, err = command("audit", "-m", "dp-sgd", "--method", "all", "--releases", 2000)
    assert code == 0
    assert "lower bound" in out
    assert err.count("skipped one-") == 2
    code, _, err = command("audit", "-m", "dp-sgd", "--method", "one-run")
    assert code == 2
    assert "covers an example" in err
