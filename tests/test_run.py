"""A run from end to end on real data: the threat model, rejections, learning."""

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from alphabets import one_of_each_alphabet
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import malicious_clients
from fedbench.api import Attack, AttackView, Knowledge, Local, Mechanism, Shared
from fedbench.core import registry
from fedbench.core.errors import Incompatible, PluginError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.datasets import Data
from fedbench.data.own import from_arrays
from fedbench.executors.factory import executor
from fedbench.executors.training import Client, Executor, Schedule, Trained
from fedbench.experiment.compatibility import load_plugins, resolve
from fedbench.experiment.evaluation import (
    Models,
    evaluate,
    final_model,
    fixed,
    is_evaluated,
    local_accuracies,
    models,
    score_models,
    share_taken_for,
    sparsity,
    taken_for,
)
from fedbench.experiment.prepare import load_pool, prepare
from fedbench.experiment.record import Record, read
from fedbench.experiment.record_builder import build_record, entropy_bits, spread, traffic
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.models.network import ConvNet
from fedbench.payload import BinaryMasks, FloatVectors, Payload
from fedbench.payload.packets import Packet
from fedbench.protocols.compressed import TopK
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import begin, play_round
from fedbench.testing import doubled
from fedbench_attacks.none import NoAttack
from fedbench_attacks.searched import DynOpt
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import TrimmedMean

SMALL = Scenario(clients=20, per_round=6, rounds=2, epochs=1, eval_every=1)


def play(**changes: Any) -> Record:
    return fedbench.play(SMALL.model_copy(update=changes), device="cpu")


def with_parts(changes: dict[str, Any], **parts: Any) -> Setup:
    setup = prepare(SMALL.model_copy(update=changes), "cpu")
    return dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, **parts))


def with_attack(attack: Attack, **changes: Any) -> Setup:
    return with_parts(changes, attack=attack)


@dataclass(frozen=True)
class Crafting(Attack):
    """Crafts with a function of what it sees and what it remembers."""

    function: Callable[[AttackView, Any], tuple[Any, Any]]
    tier: Any = "own"

    def needs(self) -> Knowledge:
        return Knowledge(self.tier)

    def craft(self, view: AttackView, memory: Any) -> tuple[Any, Any]:
        return self.function(view, memory)


def filled(value: float) -> Attack:
    """An attack whose messages are full of one number."""
    return Crafting(lambda v, m: (FloatVectors(torch.full_like(v.own.values(), value)), m))


GARBAGE = Crafting(lambda view, memory: ([b"\xff" * 3] * len(view.own), memory))


def rounds(setup: Setup, count: int = 2) -> tuple[RunState, list[Any]]:
    run_state = RunState(setup.plugins.protocol.init(setup.shared))
    return run_state, [play_round(setup, run_state, step) for step in range(count)]


@pytest.mark.slow
@pytest.mark.edges("fedavg")
@pytest.mark.parametrize("protocol", ["fedavg", "fsl"])
def test_a_record_alone_is_enough_to_play_it_again_apart_from_times(protocol: str) -> None:
    first = play(protocol=protocol, attack="dyn-opt")
    assert fedbench.play(first.scenario, device="cpu").measured() == first.measured()
    assert first.measured() != play(protocol=protocol, attack="dyn-opt", seed=1).measured()


@dataclass(frozen=True, eq=False)
class Precise(Executor):
    """Another executor, in float64; its updates are rounded to what is sent."""

    other: Executor

    def train(self, clients: Sequence[Client]) -> Trained:
        updates, memories = self.other.train(doubled(clients))
        return updates.float(), memories


def test_another_executor_draws_the_same_and_agrees_to_rounding() -> None:
    states = []
    for engine in ("loop", "stacked"):
        setup = prepare(SMALL, "cpu", engine, chunk=2)
        protocol = setup.plugins.protocol
        shared = setup.shared
        schedule = setup.executor.schedule
        precise = Precise(protocol, shared, schedule, setup.executor)
        run_state, (only,) = rounds(dataclasses.replace(setup, executor=precise), 1)
        states.append((run_state.server, only.clients))
    (loop, ids), (stacked, same_ids) = states
    assert ids == same_ids
    # Both are rounded to 24 bits, and so is what is added to them, which is less than the half.
    assert float((stacked - loop).abs().max()) <= 4 * 2**-24 * float(loop.abs().max())
    assert float((loop - protocol.init(shared)).abs().max()) > 2**-12 * float(loop.abs().max())


@pytest.mark.edges("fedavg-dyn-opt", "signsgd-sign-flip")
@pytest.mark.parametrize("attack", ["sign-flip", "dyn-opt"])
@pytest.mark.parametrize("protocol", ["fedavg", "signsgd", "fsl"])
def test_an_attack_by_nobody_changes_nothing(protocol: str, attack: str) -> None:
    quiet = play(protocol=protocol, attack=attack, malicious=0.0)
    clean = play(protocol=protocol, attack="none", malicious=0.0)
    assert quiet.rounds == clean.rounds
    assert quiet.result == clean.result


@pytest.mark.slow
def test_the_clean_run_has_the_same_clients_as_the_attacked_one_also_where_all_attack() -> None:
    clean, attacked = play(attack="none"), play(attack="dyn-opt")
    for a, b in zip(clean.rounds, attacked.rounds, strict=True):
        assert (a.clients, a.malicious) == (b.clients, b.malicious)
    assert all(r.gain == r.gain_mean == 0 for r in clean.rounds if r.malicious)
    whole = [r for r in play(malicious=0.95, attack="dyn-opt").rounds if r.malicious == 6]
    assert [r.notes["benign"] for r in whole] == [0] * len(whole) != []
    assert all(r.gain is None or r.gain > 1 for r in (*attacked.rounds, *whole) if r.malicious)
    assert all(r.gain is not None for r in attacked.rounds)


def test_malicious_clients_are_a_fixed_set_and_rounds_are_not_drawn_again() -> None:
    # D17, D18: with half of the clients malicious, 6 of 20 must sometimes have a majority of them,
    # and counts must vary; who is malicious must not.
    setup = prepare(SMALL.model_copy(update={"malicious": 0.5}), "cpu")
    owned = set(setup.population.malicious.ids())
    assert len(owned) == 10
    counts: Counter[int] = Counter()
    for step in range(300):
        ids = setup.sample(step)
        counts[sum(i in owned for i in ids)] += 1
    # Hypergeometric: P[m >= 4] = .242, so 72.5 +- 7.4 of 300; five sigma below is 35.
    assert counts[4] + counts[5] + counts[6] > 35
    _, played = rounds(setup, 2)
    for r in played:
        assert r.malicious == sum(i in owned for i in r.clients)
    assert owned != set(malicious_clients(20, 0.5, Key(99)).ids())
    keys = [setup.client(3, {}, None, step).key for step in (0, 1)]
    orders = [torch.cat(setup.executor.schedule.rows(30, key)).tolist() for key in keys]
    assert orders[0] != orders[1], "a client sees its data in another order in every round"


def test_attacks_see_updates_and_not_weights() -> None:
    # D13: the sign flip of an update; of weights it would be far from anything honest.
    def look(view: AttackView, memory: Any) -> tuple[Payload, Any]:
        ratios.append(float(view.own.values()[0].norm() / view.broadcast.values()[0].norm()))
        assert torch.equal(view.own.values(), view.updates)
        return view.own, memory

    ratios: list[float] = []
    rounds(with_attack(Crafting(look)))
    assert 0 < max(ratios) < 0.5  # measured .02 to .05: one epoch moves a little


@pytest.mark.edges("own")
@pytest.mark.parametrize("tier", ["own", "colluders", "all"])
def test_an_attack_sees_what_it_declares_and_only_copies(tier: Any) -> None:
    def greedy(view: AttackView, memory: Any) -> tuple[Payload, Any]:
        views.append(view)
        own = view.own.take(range(len(view.own)))
        for x in (view.own.values(), view.updates, view.seen.values(), view.broadcast.values()):
            x.fill_(1e9)
        return own, memory

    views: list[AttackView] = []
    setup = with_attack(Crafting(greedy, tier), malicious=0.6)
    run_state, played = rounds(setup)
    clean, _ = rounds(with_attack(Attack(), malicious=0.6))
    assert torch.equal(run_state.server, clean.server)
    assert all(r.malicious >= 2 for r in played)
    if tier == "own":  # every malicious client is asked alone
        assert [len(view.own) for view in views] == [1] * sum(r.malicious for r in played)
        assert all(torch.equal(view.seen.values(), view.own.values()) for view in views)
        assert len({view.key.seed for view in views}) == len(views)
    else:
        assert [len(view.own) for view in views] == [r.malicious for r in played]
        others = [view.n - len(view.own) if tier == "all" else len(view.own) for view in views]
        assert [len(view.seen) for view in views] == others
    assert all(view.defense is None and view.state is None for view in views)


@pytest.mark.parametrize("tier", ["own", "colluders"])
def test_an_attack_remembers_from_round_to_round(tier: Any) -> None:
    def counting(view: AttackView, memory: Any) -> tuple[Payload, Any]:
        remembered.append(memory or 0)
        return view.own, (memory or 0) + 1

    remembered: list[int] = []
    setup = with_attack(Crafting(counting, tier), malicious=0.4)
    _, played = rounds(setup, 3)
    asked = [i for r in played for i in r.clients if setup.population.malicious[i]]
    own = [asked[:k].count(i) for k, i in enumerate(asked)]  # how often it was asked, each client
    assert remembered == ([0, 1, 2] if tier == "colluders" else own)
    assert max(remembered) > 0


def test_a_rule_remembers_from_round_to_round_and_starts_from_its_init() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Slow(Mean):
        def init(self, spec: Any) -> Any:
            return torch.ones(spec["x"][0])

        def aggregate(self, received: Any, state: Any, view: Any) -> Any:
            state = 0.5 * state + 0.5 * received.values().mean(dim=0)
            return state, state

    setup = with_parts({}, defense=Slow())
    run_state, _ = rounds(setup, 1)
    start = setup.plugins.protocol.init(setup.shared)
    assert float((run_state.server - start).mean()) == pytest.approx(0.5, abs=0.01)
    torch.testing.assert_close(run_state.defense, run_state.server - start)


def test_a_rule_that_writes_into_its_state_is_compared_with_what_it_was_before() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Doubling(Mean):
        def init(self, spec: Any) -> Any:
            return [1.0]

        def aggregate(self, received: Any, state: Any, view: Any) -> Any:
            state[0] *= 2
            return state[0] * super().aggregate(received, None, view)[0], state

    setup = with_parts({"malicious": 0.5}, attack=SignFlip(), defense=Doubling())
    _, (played,) = rounds(setup, 1)
    # Both means are doubled once; with the state of the round itself the honest one would be twice.
    assert played.malicious
    assert played.gain == pytest.approx(played.gain_mean, rel=1e-4)


def test_an_attack_that_trains_does_so_beside_the_honest_training_of_its_own_clients_only() -> None:
    poisoned: list[Local] = []
    seen: list[AttackView] = []

    def watch(view: AttackView, memory: Any) -> tuple[Any, Any]:
        seen.append(view)
        return view.own, memory

    @dataclass(frozen=True)
    class Ascent(Attack):
        def poison(self, xs: Any, ys: Any, local: Local) -> Any:
            poisoned.append(local)
            return xs, (ys + 1) % 10

        def wrap_grad(self, grad: Any, local: Local) -> Any:
            return lambda tree, x, y, key: {k: -g for k, g in grad(tree, x, y, key).items()}

        def craft(self, view: AttackView, memory: Any) -> tuple[Any, Any]:
            seen.append(view)
            return super().craft(view, memory)

    _, (first, second) = rounds(with_attack(Ascent(), malicious=0.4), 2)
    assert len(poisoned) == first.malicious + second.malicious
    assert {local.parts for local in poisoned} == {8}
    assert {local.part for local in poisoned} <= set(range(8))
    first_round = [local.before is None for local in poisoned]
    assert first_round == [True] * first.malicious + [False] * second.malicious
    assert first.gain_mean > 0.01, "measured from honest messages, not from poisoned ones"
    turned = seen[: first.malicious]
    seen.clear()
    rounds(with_attack(Crafting(watch), malicious=0.4), 1)
    for bad, good in zip(turned, seen, strict=True):
        assert torch.equal(bad.updates, good.updates), "trained as if honest"
        assert torch.equal(good.trained, good.updates), "who does not train otherwise trained once"
        cosine = torch.nn.functional.cosine_similarity(bad.trained, bad.updates)
        assert float(cosine.max()) < 0.9


def test_every_hook_of_a_mechanism_is_called_in_its_place() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Marked(Mechanism):
        def wrap_grad(self, grad: Any) -> Any:
            calls.append("grad")
            return grad

        def on_updates(self, updates: Any, reference: Any, keys: Any, state: Any) -> Any:
            calls.append("updates")
            assert len(reference) == len(keys) == len(updates) == 6
            assert state is None
            return torch.zeros_like(updates), "mine"

        def on_payload(self, payload: Any, keys: Any) -> Any:
            calls.append("payload")
            assert float(payload.values().abs().max()) == 0
            return payload

        def on_aggregate(self, aggregate: Any, received: Any, view: Any, *rest: Any) -> Any:
            calls.append("aggregate")
            _, state = rest
            assert state == "mine"
            assert (len(received), len(view.weights), view.expected) == (6, 6, 6)
            return aggregate + 3.0, "yours"

    calls: list[str] = []
    setup = with_parts({}, mechanism=Marked())
    run_state, (r,) = rounds(setup, 1)
    start = setup.plugins.protocol.init(setup.shared)
    torch.testing.assert_close(run_state.server, start + 3.0)
    assert [c for c in calls if c != "grad"] == ["updates", "payload", "aggregate"]
    assert calls.count("grad") == 6  # nobody attacks: the malicious clients keep to it
    assert r.malicious > 0
    assert run_state.mechanism == "yours"


@pytest.mark.slow
@pytest.mark.edges("fedavg:lr=1e20-none", "topk:lr=1e20-finite")
@pytest.mark.parametrize("checks", ["finite", "none"])
@pytest.mark.parametrize("protocol", ["fedavg:lr=1e20", "topk:lr=1e20"])
def test_an_exploded_model_has_a_record(protocol: str, checks: str, tmp_path: Path) -> None:
    for defense in ("mean", "trimmed-mean:f=1", "multi-krum:f=1"):
        record = play(protocol=protocol, defense=defense, attack="dyn-opt", server_checks=checks)
        assert read(record.write(tmp_path)) == record
        assert record.result.accuracy < 0.3


def test_an_attack_rewrites_its_own_rows_and_no_others() -> None:
    setup = with_attack(filled(7.0), malicious=0.4)
    run_state, (r,) = rounds(setup, 1)
    honest, _ = rounds(with_attack(Attack(), malicious=0.4), 1)
    sizes = setup.population.sizes(r.clients)
    share = sizes[setup.population.malicious[r.clients]].sum() / sizes.sum()
    # The attacked step is the honest one, with the malicious rows' share replaced by 7.
    moved = run_state.server - honest.server
    assert float(moved.mean()) == pytest.approx(7.0 * float(share), rel=0.01)


@pytest.mark.parametrize("protocol", ["fedavg", "signsgd", "topk", "fsl", "sfsl"])
def test_bytes_that_do_not_decode_are_rejected_and_counted(protocol: str) -> None:
    setup = with_attack(GARBAGE, protocol=protocol, malicious=0.4)
    run_state, (r,) = rounds(setup, 1)
    assert r.rejected_malicious == r.malicious > 0
    assert r.rejected_honest == 0
    assert r.accepted == 6 - r.malicious
    assert not r.skipped
    start = setup.plugins.protocol.init(setup.shared)
    assert not torch.equal(run_state.server, start)
    assert r.uplink_bits - r.benign_uplink_bits == 8 * 3 * r.malicious


def test_too_few_accepted_rows_leave_the_state_and_the_record_says_so() -> None:
    # An answer of zeros would leave FedAvg's state as it is, but not a ranking.
    setup = with_attack(GARBAGE, protocol="fsl", defense="trimmed-mean:f=2", malicious=0.9)
    run_state, played = rounds(setup)
    assert all(r.skipped and r.accepted < 5 for r in played)
    assert torch.equal(run_state.server, setup.plugins.protocol.init(setup.shared))


def test_nan_is_rejected_by_default_and_accepted_on_request() -> None:
    for checks, accepted in (("finite", False), ("none", True)):
        setup = with_attack(filled(torch.nan), malicious=0.4, server_checks=checks)
        run_state, (r,) = rounds(setup, 1)
        assert (r.malicious > 0, r.rejected_malicious) == (True, 0 if accepted else r.malicious)
        assert bool(torch.isnan(run_state.server).all()) == accepted
        assert bool(torch.isfinite(run_state.server).all()) != accepted
        assert (r.accuracy == 0.0) == accepted  # not the share of class 0


def test_the_server_prepares_for_the_declared_share_and_not_for_the_truth_of_a_round() -> None:
    # D13, D17: f is ceil(.2 * 7) = 2 in every round, whatever was sampled.
    for fields, f in (
        ({"per_round": 7}, 2),
        ({"per_round": 7, "defense": "multi-krum"}, 2),
        ({"declared": 0.0}, 0),
        ({"clients": 25, "per_round": 25, "declared": 0.28}, 7),  # .28 * 25 > 7 in floats
    ):
        scenario = SMALL.model_copy(update={"defense": "trimmed-mean", **fields})
        assert load_plugins(scenario).defense.f == f
    resolved = resolve(SMALL.model_copy(update={"defense": "trimmed-mean"})).scenario
    assert resolved.defense == "trimmed-mean:f=2"


def test_rows_and_bits_are_counted_apart_for_benign_and_malicious_clients() -> None:
    setup = prepare(SMALL, "cpu")
    accepted = torch.tensor([True, False, False, True, False])
    malicious = torch.tensor([False, False, True, True, False])
    up = [8, 16, 24, 40, 80]
    assert traffic(setup, up, [Packet.raw(b"ab")], 5, accepted, malicious) == {
        **{"malicious": 2, "accepted": 2, "rejected_honest": 2, "rejected_malicious": 1},
        **{"uplink_bits": 168, "benign_uplink_bits": 104, "downlink_bits": 80},
    }
    each = [Packet.raw(b"a"), Packet.raw(b"abc"), *[Packet.raw(b"")] * 3]  # one for each client
    assert traffic(setup, up, each, 5, accepted, malicious)["downlink_bits"] == 32


def test_the_spread_of_clients_divides_by_their_number() -> None:
    # mean 0.5; squares of 0.3, 0.1 and 0.4 are 0.26, of three clients
    summary = spread(torch.tensor([0.2, 0.4, 0.9], dtype=torch.float64))
    assert (summary.mean, summary.min, summary.max) == pytest.approx((0.5, 0.2, 0.9))
    assert summary.std == pytest.approx(math.sqrt(0.26 / 3))


def test_the_entropy_is_that_of_benign_messages() -> None:
    mask = torch.tensor([[True, True, False, False], [True, True, True, False]])
    bits = BinaryMasks(mask, torch.zeros(2, 0))
    # two of four symbols are one: 1 bit each; three of four: 0.8113
    assert entropy_bits(bits, torch.tensor([True, False])) == pytest.approx(4)
    assert entropy_bits(bits, torch.tensor([False, True])) == pytest.approx(4 * 0.8113, abs=1e-3)
    assert entropy_bits(bits, torch.tensor([True, True])) == pytest.approx(4 + 3.2451, abs=1e-3)
    assert entropy_bits(bits, torch.tensor([False, False])) is None
    assert entropy_bits(FloatVectors(torch.ones(1, 2)), torch.tensor([True])) is None


def test_traffic_is_counted_in_both_directions_and_statistics_are_over_benign_clients() -> None:
    ranked = play(protocol="fsl", rounds=1)
    d = ranked.parameters
    per_message = 288 * 9 + 18432 * 15 + 131072 * 17 + 1280 * 11
    assert d == 288 + 18432 + 131072 + 1280
    assert ranked.rounds[0].uplink_bits == ranked.rounds[0].downlink_bits == 6 * per_message
    assert ranked.result.uplink_bits_per_parameter == pytest.approx(per_message / d)
    signs = play(protocol="signsgd", rounds=1).result
    assert (signs.uplink_bits_per_parameter, signs.downlink_bits_per_parameter) == (1.0, 32.0)
    record = play()
    assert (record.schema_version, record.mechanism, record.result.epsilon) == (4, "none", None)
    assert record.result.uplink_bits_per_parameter == 32
    population = prepare(SMALL, "cpu").population
    per_client = record.result.per_client
    assert per_client is not None
    assert 0 <= per_client.min <= per_client.mean <= per_client.max <= 1
    benign = population.of_benign(population.test)
    assert len(benign) == 16
    right = record.result.accuracy * sum(map(len, benign))
    assert math.isclose(right, round(right), abs_tol=1e-6)


def doubts(setup: Setup, attack: str, count: int = 2) -> list[str]:
    """What a run of this setup says against itself when it is called by the name of an attack."""
    scenario = setup.scenario.model_copy(update={"attack": attack, "rounds": count})
    setup = dataclasses.replace(setup, scenario=scenario)
    run_state, played = rounds(setup, count)
    assert run_state.score is not None
    return build_record(setup, run_state, played, 1.0).flags


@pytest.mark.slow
def test_a_run_doubts_itself_when_it_should_and_only_then() -> None:
    idle = "the attack would not move the plain mean: is it one?"
    majority = "the adversary had at least half of the rows in some rounds"
    nobody = "no malicious client was ever sampled, or every round was skipped"
    for attack, malicious, expected in (
        (SignFlip(), 0.1, []),
        (Attack(), 0.1, [idle]),
        (SignFlip(), 0.6, [majority]),
        (SignFlip(), 0.0, [nobody]),
    ):
        assert doubts(with_attack(attack, malicious=malicious), "sign-flip") == expected
    dormant = with_attack(SignFlip(), malicious=0.6, attack_from=2)
    assert doubts(dormant, "sign-flip") == [], "its clients are honest in both rounds"
    skipped = with_attack(GARBAGE, malicious=0.9, defense="trimmed-mean:f=2")
    assert "2 of 2 rounds were skipped" in doubts(skipped, "sign-flip")
    # Of steps that are lost in rounding no update is left, and so nothing to push.
    still = with_parts({"protocol": "fedavg:lr=1e-30", "attack": "dyn-opt", "malicious": 0.1})
    weak = "the attack's search found no strength above 0 in some rounds"
    assert weak in doubts(still, "dyn-opt")
    for lr, said in (("1e-9", "clean accuracy 0."), ("1e20", "honest messages")):
        assert said in "".join(doubts(with_parts({"protocol": f"fedavg:lr={lr}"}), "none"))


def rules_to_meet(protocol: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the attacks that a protocol meets, and under which rules each of them.

    An attack that does not ask the rule sends the same to any. One that only writes messages sees
    of a protocol its alphabet: it meets the first protocol that has it. `auto` has met every
    protocol under its own rule in the tests of rehearsals.
    """
    plugins = {name: registry.plugin("protocol", name) for name in registry.names("protocol")}
    sends = plugins[protocol].sends
    is_first = protocol == next(name for name in plugins if plugins[name].sends is sends)
    for name in registry.names("attack"):
        attack = registry.load("attack", name)
        if name == "auto":
            yield "auto:budget=0.3", ("trimmed-mean",)
        elif is_first or attack.trains or name == "dyn-opt":
            yield name, ("own", "trimmed-mean") if attack.needs().defense else ("own",)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", registry.names("protocol"))
def test_every_protocol_runs_under_every_attack_that_fits(protocol: str) -> None:
    played = 0
    for attack, defenses in rules_to_meet(protocol):
        for defense in defenses:
            scenario = Scenario(protocol=protocol, attack=attack, defense=defense, rounds=1)
            small = {"model": "micro", "clients": 10, "per_round": 6, "epochs": 1}
            try:
                record = fedbench.play(scenario.model_copy(update=small))
            except Incompatible:
                continue
            assert all(r.rejected_honest == 0 and not r.skipped for r in record.rounds)
            broken = sum(r.rejected_malicious for r in record.rounds)
            assert (broken > 0) == (attack == "malformed"), attack
            assert sum(r.malicious for r in record.rounds) > 0
            played += 1
    assert played >= 6


@pytest.mark.slow
@pytest.mark.parametrize(("protocol", "share"), [("fedpm", 0.5), ("fedavg", 0.0), ("fsl", 0.5)])
def test_records_tell_sparsity_and_the_clients_own_models(protocol: str, share: float) -> None:
    scenario = Scenario(protocol=protocol, rounds=6, eval_every=3, local_models=True, malicious=0.0)
    record = fedbench.play(scenario)
    looked = [r for r in record.rounds if r.accuracy is not None]
    assert [r.step for r in looked] == [2, 5]
    for r in looked:
        assert r.sparsity == pytest.approx(share, abs=0.02)
    own = record.result.local_accuracy
    assert own == record.rounds[-1].local_accuracy
    assert own is not None
    assert own > 0.15  # measured 0.26 and 0.27 after six rounds; chance is 0.1
    plain = fedbench.play(scenario.model_copy(update={"local_models": False, "rounds": 1}))
    assert plain.result.local_accuracy is None


def test_a_run_on_other_data_has_another_id() -> None:
    scenario = SMALL.model_copy(update={"model": "micro", "rounds": 1})
    pool = load_pool(scenario.dataset)
    other_labels = dataclasses.replace(pool, y=pool.y.flip(0))
    other_scale = dataclasses.replace(pool, scale=2 * pool.scale)
    pools = (pool.to("cpu"), other_labels, other_scale)
    ids = [fedbench.play(scenario, device="cpu", data=data).id for data in pools]
    assert ids[0] == resolve(scenario).id()
    assert len(set(ids)) == 3


LONELY = SMALL.model_copy(  # a client a round, which does little
    update={
        **{"model": "micro", "clients": 30, "per_round": 1, "rounds": 100, "eval_every": 5},
        **{"batch_size": 64, "partition": "iid", "malicious": 0.5},
    }
)


@pytest.mark.edges(*one_of_each_alphabet())
@pytest.mark.parametrize("protocol", registry.names("protocol"))
def test_rounds_of_nobody_of_one_and_of_the_malicious_alone_are_played(protocol: str) -> None:
    fields = {"protocol": protocol, "sampling": "poisson", "attack": "sign-flip"}
    setup = prepare(LONELY.model_copy(update=fields), "cpu", "loop")
    state = begin(setup)
    cohorts = [setup.population.malicious[setup.sample(step)].tolist() for step in range(100)]
    for cohort in ([], [True], [True, True], [False]):
        played = play_round(setup, state, cohorts.index(cohort))
        assert (len(played.clients), played.malicious) == (len(cohort), sum(cohort))
        assert played.skipped == (not cohort)
        assert bool(played.uplink_bits) == bool(cohort)
    assert 0 <= evaluate(setup, state.server, 0).accuracy <= 1


DIVERGED = "the deployed model's scores are not finite: such images count as wrong"


@pytest.mark.edges(*one_of_each_alphabet())
@pytest.mark.parametrize("protocol", registry.names("protocol"))
def test_a_run_that_diverges_is_scored_and_says_so(protocol: str) -> None:
    fields = {"per_round": 6, "rounds": 2, "local_models": True, "protocol": protocol}
    fields |= {"attack": "sign-flip:scale=1e38", "defense": "mean"}
    for checks in ("none", "finite"):  # what is finite in a message may not be so in the model
        scenario = LONELY.model_copy(update=fields | {"server_checks": checks})
        record = fedbench.play(scenario, device="cpu", executor="loop")
        assert (DIVERGED in record.flags) == (record.result.loss is None)
        if protocol in ("fedavg", "fedmog") and checks == "none":
            assert (DIVERGED in record.flags, record.result.accuracy) == (True, 0)


FEEDBACK = TopK(k=0.05, error_feedback=True)


def game(**plugins: Any) -> tuple[Setup, RunState]:
    setup = prepare(Scenario(clients=12, per_round=7, epochs=1, malicious=0.3), "cpu")
    parts = dataclasses.replace(setup.plugins, protocol=FEEDBACK, **plugins)
    engine = executor("loop", FEEDBACK, setup.shared, Schedule(1, 8))
    setup = dataclasses.replace(setup, plugins=parts, executor=engine)
    return setup, RunState(FEEDBACK.init(setup.shared))


@pytest.mark.parametrize(
    "attack",
    [
        NoAttack(),
        SignFlip(via="wire"),
        pytest.param(DynOpt(via="wire"), marks=pytest.mark.slow),
    ],
)
def test_error_feedback_passes_an_attacked_round(attack: Any) -> None:
    setup, state = game(attack=attack, defense=TrimmedMean(f=2))
    start = state.server.clone()
    r = play_round(setup, state, 0)
    assert r.malicious > 0
    assert r.accepted == 7
    assert not r.skipped
    assert not torch.equal(state.server, start)


def test_memory_goes_from_round_to_round_of_the_same_client_only() -> None:
    setup, state = game()
    first = play_round(setup, state, 0)
    residual = {i: memory["residual"].clone() for i, memory in state.memories.items()}
    assert set(residual) == set(first.clients)
    assert all(float(r.abs().sum()) > 0 for r in residual.values())
    second = play_round(setup, state, 1)
    again = set(first.clients) & set(second.clients)
    away = set(first.clients) - set(second.clients)
    assert again
    assert away
    assert all(not torch.equal(state.memories[i]["residual"], residual[i]) for i in again)
    assert all(torch.equal(state.memories[i]["residual"], residual[i]) for i in away)


def test_every_few_rounds_are_evaluated_counted_from_one_and_always_the_last() -> None:
    def evaluated(rounds: int, every: int) -> list[int]:
        scenario = Scenario(rounds=rounds, eval_every=every)
        return [step for step in range(rounds) if is_evaluated(scenario, step)]

    assert evaluated(7, 3) == [2, 5, 6]
    assert evaluated(6, 3) == [2, 5]
    assert evaluated(3, 1) == [0, 1, 2]
    assert evaluated(2, 9) == [1]


PIXEL = ConvNet((1, 1, 1), (), (), 2)  # its two logits are two weights times the pixel


def pixel(*weights: float) -> Tree:
    """Return the weights of `PIXEL`, one for each of its classes."""
    ((name, shape),) = PIXEL.shapes.items()
    return {name: torch.tensor(weights, dtype=torch.float32).reshape(shape)}


def pixels(values: Sequence[float], labels: Sequence[int]) -> Data:
    x = np.array(values, np.float32).reshape(-1, 1, 1, 1)
    return from_arrays(x, list(labels), 2, normalise=False)


def test_the_loss_of_a_confident_mistake_is_as_large_as_it_is() -> None:
    data = pixels([1, 1, 1, 1], [1, 1, 0, 1])
    score = score_models(PIXEL, fixed(pixel(20, 0)), data, [torch.arange(4)])
    assert score.accuracy == 0.25
    assert score.loss == pytest.approx(15.0, rel=1e-5)
    # of probabilities that float32 calls 0 it is that of 1e-30
    score = score_models(PIXEL, fixed(pixel(200, 0)), data, [torch.arange(4)])
    assert score.loss == pytest.approx(0.75 * 30 * math.log(10))


def test_a_model_that_is_not_finite_has_no_loss_and_no_right_answer() -> None:
    data = pixels([1, 1], [0, 1])
    for broken in (math.nan, math.inf):
        score = score_models(PIXEL, fixed(pixel(broken, 0)), data, [torch.arange(2)])
        assert (score.accuracy, score.loss) == (0, None)


def test_each_batch_is_answered_by_its_own_draw_and_counted_for_its_parts() -> None:
    draws = [pixel(5, 0), pixel(-5, 5), pixel(5, -5)]  # sure of class 0, 1 and 0
    answering = Models(draws.__getitem__, size=2)
    data = pixels([1] * 6, [1, 1, 1, 0, 0, 0])
    parts = [torch.tensor([4, 0]), torch.tensor([1, 3, 2])]
    # Of 4, 0 by the first draw 4 is right, of 1, 3 by the second 1, and 2 by the third is wrong.
    score = score_models(PIXEL, answering, data, parts)
    assert score.accuracy == 2 / 5
    assert score.parts.tolist() == pytest.approx([1 / 2, 1 / 3])
    assert score.sparsity == 0.5  # of the first draw
    margins = [-5, 5, -10, 10, 10]
    assert score.loss == pytest.approx(sum(math.log1p(math.exp(x)) for x in margins) / 5, rel=1e-4)
    own = [torch.tensor([1]), torch.tensor([2, 3]), torch.tensor([4, 0, 1])]
    judged = score_models(PIXEL, answering, data, parts, own)
    assert judged.parts.tolist() == pytest.approx([1, 0, 2 / 3])
    assert (judged.accuracy, judged.loss) == (score.accuracy, score.loss)


def test_the_share_that_is_taken_for_a_label_is_of_all_images_each_by_its_draw() -> None:
    draws = [pixel(5, 0), pixel(0, 5)]
    answering = Models(draws.__getitem__, size=2)
    x = torch.tensor([1.0, 1.0, -1.0]).reshape(3, 1, 1, 1)
    assert share_taken_for(PIXEL, answering, x, 0) == 1
    assert share_taken_for(PIXEL, answering, x, 1) == 0
    assert share_taken_for(PIXEL, Models(lambda _: draws[0], size=2), x, 1) == pytest.approx(1 / 3)
    assert share_taken_for(PIXEL, answering, x[:0], 0) is None


def test_the_sparsity_of_an_ensemble_is_the_share_of_zeros_in_all_layers_of_all_members() -> None:
    assert sparsity(PIXEL, [pixel(0, -1), pixel(0, 0)]) == 3 / 4
    normed = registry.load("model", "resnet20").build((3, 8, 8), 2)
    ones = {name: torch.ones(shape) for name, shape in normed.shapes.items()}
    zeros = {name: torch.zeros(shape) for name, shape in normed.shapes.items()}
    assert len(normed.weights) < len(ones)
    assert sparsity(normed, [zeros | {name: ones[name] for name in normed.weights}]) == 0
    assert sparsity(normed, [ones | {name: zeros[name] for name in normed.weights}]) == 1


@pytest.mark.parametrize("size", [0, -1])
def test_a_protocol_that_deploys_a_model_for_no_image_is_blamed(size: int) -> None:
    class Redrawing(FedAvg):
        def redraws(self) -> int:
            return size

    setup = with_parts({"model": "micro"}, protocol=Redrawing())
    requirement = f"redraws in round 3 must return None or a number of images, got {size}"
    with pytest.raises(PluginError, match=requirement):
        models(setup, begin(setup).server, 3)


def test_the_final_model_of_an_ensemble_has_all_of_its_members() -> None:
    class Pair(FedAvg):
        def model(self, shared: Shared, state: Any, key: Key) -> list[Tree]:  # type: ignore[override]
            single = super().model(shared, state, key)
            return [single, {name: 2 * x for name, x in single.items()}]

    setup = with_parts({"model": "micro"}, protocol=Pair())
    first, second = final_model(setup, begin(setup).server).members
    assert all(torch.equal(second[name], 2 * x) for name, x in first.items())


def test_clients_own_models_are_measured_on_their_own_test_parts_when_they_send() -> None:
    setup = prepare(SMALL.model_copy(update={"model": "micro", "local_models": True}), "cpu")
    population = setup.population
    labels = population.data.y

    def sure_of(label: int) -> Tensor:
        """Return weights that answer every image with a label: only the last layer differs."""
        tree = {name: torch.full(s, 0.05) for name, s in setup.shared.network.shapes.items()}
        tree[setup.shared.network.head].zero_()[label] = 1.0
        return setup.shared.layout.flatten(tree)

    ids = [17, 4, 11, 9, 2]
    hostile = [i for i in ids if population.malicious[i]]
    assert 0 < len(hostile) < 4
    answers = FloatVectors(torch.stack([sure_of(label) for label in range(5)]))
    nothing = FloatVectors(torch.zeros_like(answers.values()))
    expected = {
        i: float((labels[population.test[i]] == label).double().mean())
        for label, i in enumerate(ids)
        if i not in hostile
    }
    assert len(set(expected.values())) == len(expected)
    earlier = {ids[0]: 0.125, 19: 0.25} if ids[0] not in hostile else {19: 0.25}
    for broadcast, sent in ((nothing.take([0]), answers), (answers, nothing)):
        measured = local_accuracies(setup, earlier, ids, broadcast, sent)
        assert measured == pytest.approx({19: 0.25} | expected)
    assert 19 in earlier
    off = dataclasses.replace(setup, scenario=SMALL)
    assert local_accuracies(off, earlier, ids, nothing, answers) == earlier

    class Private(FedAvg):
        def local_model(self, *_: Any) -> None:
            return None

    private = dataclasses.replace(
        setup, plugins=dataclasses.replace(setup.plugins, protocol=Private())
    )
    assert local_accuracies(private, earlier, ids, nothing, answers) == earlier


def test_an_ensemble_answers_by_its_mean_probability() -> None:
    ensemble = [pixel(0.0, 0.0), pixel(math.log(99.0), 0.0)]  # chances 0.5 and 0.99 of class 0
    taken, chances = taken_for(PIXEL, ensemble, torch.ones(1, 1, 1, 1), 0)
    assert taken.tolist() == [True]
    assert chances[0].tolist() == pytest.approx([0.745, 0.255], abs=1e-6)
