"""``fedbench bench rounds``: every part of a round is charged, and to the right account."""

import dataclasses
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import fedbench.run
from fedbench.adversary import threat_model
from fedbench.api import Attack, Mechanism
from fedbench.bench import rounds
from fedbench.bench.rounds import Plan, Split
from fedbench.bench.stopwatch import PARTS, Clock, places, watched
from fedbench.cli import main
from fedbench.core.errors import ConfigError
from fedbench.executors.training import Loop
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import FloatVectors
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import play_round
from fedbench_defenses.mean import Mean

LITTLE = Plan(clients=5, samples=4, rounds=1)
NAP = 0.2


class Dozing(FloatVectors):
    """Takes its time on the wire."""

    def encode(self) -> Any:
        time.sleep(NAP)
        return super().encode()


class SlowStep(FedAvg):
    def server_step(self, *args: Any) -> Any:
        time.sleep(NAP)
        return super().server_step(*args)


class SlowStart(FedAvg):
    def broadcast(self, *args: Any) -> Any:
        time.sleep(NAP)
        return super().broadcast(*args)


class SlowMessage(FedAvg):
    def message(self, *args: Any) -> Any:
        time.sleep(NAP)
        return super().message(*args)


class SlowWire(FedAvg):
    def message(self, *args: Any) -> Any:
        sent, memory = super().message(*args)
        return Dozing(sent.values()), memory


class SlowTraining(Loop):
    def train(self, clients: Any) -> Any:
        time.sleep(NAP)
        return super().train(clients)


class SlowRule(Mean):
    def aggregate(self, *args: Any) -> Any:
        time.sleep(NAP)
        return super().aggregate(*args)


class SlowAttack(Attack):
    """Sends what it would have sent, after a nap and some training of the rule's."""

    accepts = (FloatVectors,)

    def craft(self, view: Any, memory: Any) -> Any:
        time.sleep(NAP)
        return view.own, memory


PROTOCOLS = {"step": SlowStep, "down": SlowStart, "pack": SlowMessage, "wire": SlowWire}


def dozing(call: Callable[..., Any]) -> Callable[..., Any]:
    def slow(*args: Any) -> Any:
        time.sleep(NAP)
        return call(*args)

    return slow


def little(where: str, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """A small round that takes a nap in this part."""
    setup = rounds.ready("fedavg", "micro", LITTLE, "cpu")
    plugins = setup.plugins
    protocol = PROTOCOLS.get(where, FedAvg)()
    plugins = dataclasses.replace(plugins, protocol=protocol)
    kind = SlowTraining if where == "train" else Loop
    malicious = torch.zeros(5, dtype=torch.bool)
    if where == "rule":
        plugins = dataclasses.replace(plugins, defense=SlowRule())
    if where == "attack":
        plugins, malicious = dataclasses.replace(plugins, attack=SlowAttack()), malicious.clone()
        malicious[2] = True
    if where == "judge":
        monkeypatch.setattr(fedbench.run, "spend", dozing(vars(fedbench.run)["spend"]))
    if where == "rest":
        monkeypatch.setattr(Setup, "sample", dozing(Setup.sample))
    executor = kind(protocol, setup.shared, setup.executor.schedule)
    setup = setup.with_population(malicious=malicious)
    return dataclasses.replace(setup, plugins=plugins, executor=executor)


@pytest.mark.parametrize("where", list(PARTS))
def test_a_nap_is_charged_to_the_part_that_takes_it(
    where: str, monkeypatch: pytest.MonkeyPatch, still_clock: None
) -> None:
    seconds = rounds.measure(little(where, monkeypatch), 1).seconds
    assert seconds == pytest.approx(dict.fromkeys(PARTS, 0.0) | {where: NAP})


def test_parts_sum_to_the_time_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", itertools.count().__next__)  # a tick for each look
    setup = rounds.ready("fedpm", "micro", LITTLE, "cpu")
    state = RunState(setup.plugins.protocol.init(setup.shared), mechanism=None)
    clock = Clock(setup.shared.device)
    with watched(setup, clock):
        start = time.perf_counter()
        clock.turn("rest")
        play_round(setup, state, 0)
        clock.turn("rest")
        wall = time.perf_counter() - start
    assert (
        sum(clock.seconds.values()) == wall - 2
    )  # a tick before its first look, one after its last
    used = {part for part, seconds in clock.seconds.items() if seconds}
    assert used == set(PARTS)


def test_who_is_called_by_a_part_is_charged_to_it(still_clock: None) -> None:
    # The search of DYN-OPT asks the rule, and a rule with root data trains: neither is double.
    calls: list[str] = []
    clock = Clock(torch.device("cpu"))

    def inner() -> None:
        calls.append("inner")
        time.sleep(NAP)

    rule = clock.charged(inner, "rule")
    clock.charged(rule, "attack")()
    assert clock.seconds["attack"] == pytest.approx(NAP)
    assert clock.seconds["rule"] == 0
    clock.charged(rule, "attack", seals=False)()
    assert clock.seconds["rule"] == pytest.approx(NAP)
    assert clock.seconds["attack"] == pytest.approx(NAP)
    assert calls == ["inner"] * 2


def test_everything_is_as_before_after_a_round_and_after_an_error() -> None:
    setup = rounds.ready("fsl", "micro", LITTLE, "cpu")

    def found() -> list[Any]:
        return [vars(owner).get(name) for owner, name, _ in places(setup)] + [threat_model.forge]

    before = found()
    with watched(setup, Clock(setup.shared.device)):
        assert all(now is not then for now, then in zip(found(), before, strict=True))
    assert found() == before

    def fail() -> None:
        with watched(setup, Clock(setup.shared.device)):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert found() == before


def test_a_watched_round_is_the_round() -> None:
    def played(watch: bool) -> tuple[Any, Any]:
        setup = rounds.ready("drive", "micro", dataclasses.replace(LITTLE, attack="alie"), "cpu")
        state = RunState(setup.plugins.protocol.init(setup.shared), mechanism=None)
        clock = Clock(setup.shared.device)
        if watch:
            with watched(setup, clock):
                return play_round(setup, state, 0), state.server
        return play_round(setup, state, 0), state.server

    (a, mine), (b, theirs) = played(True), played(False)
    assert a == b
    assert torch.equal(mine, theirs)


@pytest.mark.parametrize("protocol", ["fedavg", "fsl", "pbm"])
def test_whoever_overrides_nothing_seems_to_override_nothing(protocol: str) -> None:
    # An idle attack that looks busy would copy, craft and check: another round than the one played.
    setup = rounds.ready(protocol, "micro", LITTLE, "cpu")
    mechanism = type(setup.plugins.mechanism)
    with watched(setup, Clock(setup.shared.device)):
        assert setup.plugins.attack.idle
        assert not setup.plugins.attack.trains
        assert mechanism.on_updates is Mechanism.on_updates
    clock = Clock(setup.shared.device)
    state = RunState(setup.plugins.protocol.init(setup.shared), mechanism=None)
    called: list[str] = []
    with pytest.MonkeyPatch.context() as patch, watched(setup, clock):
        patch.setattr(threat_model, "attack_view", lambda *a: called.append("view"))
        play_round(setup, state, 0)
    assert not called


def split_of(played: Sequence[dict[str, float]], **other: Any) -> Split:
    blank = dict.fromkeys(PARTS, 0.0)
    said: dict[str, Any] = {
        "protocol": "p",
        "defense": "mean",
        "model": "m",
        "parameters": 1,
        "clients": 4,
    }
    return Split(played=tuple(blank | one for one in played), others=None, **(said | other))


def test_shares_are_of_medians_and_sum_to_one() -> None:
    found = split_of([{"train": 1.0, "rule": 9.0}, {"train": 8.0, "rule": 2.0}, {"train": 9.0}])
    assert found.seconds["train"] == 8
    assert found.seconds["rule"] == statistics.median([9, 2, 0]) == 2
    assert found.total == 10
    assert found.shares["train"] == 0.8
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.met is True
    assert found.overhead == 0.5
    assert split_of([{"train": 7.9, "rule": 2.1}]).met is False


def test_clients_hold_as_many_samples_as_the_plan_says() -> None:
    setup = rounds.ready("fedavg", "micro", Plan(clients=3, samples=7), "cpu")
    assert [len(part) for part in setup.population.train] == [7, 7, 7]
    assert setup.population.sizes.tolist() == [7, 7, 7]
    assert setup.population.data.image == (1, 28, 28)
    assert rounds.pool("conv8", 4).image == (3, 32, 32)


def test_what_does_not_fit_is_left_out_or_refused() -> None:
    plan = dataclasses.replace(LITTLE, attack="rank-reversal")
    done, left = rounds.play(["micro"], [], plan, "cpu")
    assert {split.protocol for split in done} == {"fsl", "sfsl"}
    assert "fedavg on micro" in left
    with pytest.raises(ConfigError, match="rank-reversal"):
        rounds.play(["micro"], ["fedavg"], plan, "cpu")


@pytest.mark.slow
@pytest.mark.parametrize("format", ["table", "json", "md"])
def test_rounds_are_shown(format: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = ["--clients", "3", "--samples", "4", "--rounds", "1", "--threads", "1"]
    with pytest.raises(SystemExit) as ended:
        main(["bench", "rounds", "-m", "micro", "-p", "fedavg", *told, "--format", format])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    if format == "json":
        found = json.loads(said)
        assert found["plan"]["samples"] == 4
        (row,) = found["rows"]
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert row["parameters"] == 9936
    else:
        assert "fedavg" in said
        assert "! under 80 % training:" in said
        assert max(map(len, said.splitlines())) <= 80 or format == "md"


def test_who_misses_the_target_is_marked_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    from fedbench.cli.bench_rounds import show

    slow = split_of([{"train": 6.0, "rule": 4.0}], protocol="slow")
    show([slow, split_of([{"train": 9.0, "rest": 1.0}], protocol="good")], "md")
    said = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| slow |") and "60!" in line for line in said)
    assert any(line.startswith("| good |") and "90 |" in line for line in said)
    assert said[-1] == "! under 80 % training: slow on m (60)"
