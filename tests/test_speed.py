"""``benchmarks``: both ways do the same work, ratios are ratios, phases are what they say."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import attack_cost
import by_hand
import defense_cost
import paired
import pytest
import round_phases
import server_pairs
import suite
import torch
import training_pairs
from paired import Pair, Ratio, busy, compare
from round_phases import PHASES, Plan, Split, own_seconds, spans
from torch.profiler import record_function
from training_pairs import BERNOULLI, PLAIN, Cohort, cohort

from fedbench.adversary.threat_model import MaliciousClients
from fedbench.api import Attack
from fedbench.core import registry
from fedbench.core.blocks import hadamard
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.tiling import all_finite, column_sums, finite_rows, row_sums
from fedbench.executors.training import Loop, Trained
from fedbench.experiment.scenario import Scenario
from fedbench.models.network import ConvNet
from fedbench.payload import FloatVectors
from fedbench.payload.packets import pack
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import begin, play_round
from fedbench.testing import assert_rounded_alike, doubled, in_float64
from fedbench.testing.defenses import view_of
from fedbench_defenses.mean import Mean

CPU = torch.device("cpu")
SMALL = training_pairs.Size(("micro",), (4,), 2, 24, 5, 3000, 1, 1)
RULES = [
    name
    for name in registry.names("defense")
    if not registry.load("defense", name).refuses(FloatVectors)
    and not registry.load("defense", name).traits().network
]


def ratio(mine: tuple[float, ...], theirs: tuple[float, ...], **other: Any) -> Ratio:
    return Ratio("g", "w", "a", mine, theirs, **other)


def test_a_ratio_is_the_median_over_turns_not_that_of_the_medians() -> None:
    # Turns 6, 0.5 and 2; medians of the seconds would give 4 / 2.
    ours = ratio((1.0, 8.0, 2.0), (6.0, 4.0, 4.0))
    assert ours.turns == [6, 0.5, 2]
    assert ours.faster == 2
    assert ours.met is None
    assert ratio((1.0, 8.0, 2.0), (6.0, 4.0, 5.0)).faster == 2.5
    assert [ratio((1.0,), (x,), target=0.95).met for x in (0.9, 0.95)] == [False, True]
    assert ratio((1.0, 3.0, 2.0), (1.0,) * 3, units=4, flops=10.0).milliseconds == 500
    assert ratio((1.0, 3.0, 2.0), (1.0,) * 3, flops=10.0).rate == 5


def test_both_ways_take_turns_and_what_is_short_is_called_until_a_clock_can_tell() -> None:
    calls: list[str] = []
    pair = Pair("g", "w", "a", lambda: calls.append("a"), lambda: calls.append("b"), units=3)
    timed = compare(pair, 3)
    assert "".join(name for name, _ in groupby(calls)) == "ab" * 3
    assert calls.count("a") > 100
    assert len(timed.mine) == len(timed.theirs) == timed.units == 3


def test_others_are_who_used_the_machine_beside_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # user 1, nice 2, system 3, idle 50, waiting 60, irq 4, softirq 5, stolen 6: 21 are somebody's.
    ticks = [100 * n for n in (1, 2, 3, 50, 60, 4, 5, 6, 7, 8)]
    (tmp_path / "stat").write_text("cpu  " + " ".join(map(str, ticks)) + "\ncpu0 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(paired, "STAT", tmp_path / "stat")
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    monkeypatch.setattr(os, "times", lambda: os.times_result((0.5, 0.25, 2.0, 1.0, 99.0)))
    assert busy() == pytest.approx(21 - 3.75)
    monkeypatch.setattr(paired, "STAT", tmp_path / "absent")
    assert busy() is None


def precise(ours: Cohort) -> Cohort:
    """The same in float64, where both sides round alike on every processor."""
    engine = dataclasses.replace(ours.executor, protocol=in_float64(ours.protocol))
    return dataclasses.replace(ours, executor=engine, clients=doubled(ours.clients))


def test_the_loop_by_hand_trains_as_ours_does() -> None:
    ours = precise(cohort(f"fedavg:lr=0.1,{PLAIN}", "micro", 4, SMALL, CPU, "loop"))
    updates, _ = ours.train()
    assert updates.shape == (2, ours.shared.layout.d)
    assert ours.samples == 24
    model = by_hand.model_of(ours.network, CPU).double()
    start = ours.shared.layout.flatten(ours.clients[0].tree)
    theirs = by_hand.train(model, start, ours.clients, ours.executor.schedule, 0.1)
    assert_rounded_alike(updates, theirs)


def test_masks_by_hand_are_trained_as_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # Our coins are written down and fed to the other side: then both must end at the same scores.
    ours = precise(cohort(BERNOULLI, "micro", 4, SMALL, CPU, "loop"))
    drawn: list[torch.Tensor] = []

    def written(key: Key, p: torch.Tensor) -> torch.Tensor:
        drawn.append(key.bernoulli(p))
        return drawn[-1]

    monkeypatch.setattr(Key, "coins", written)
    updates, _ = ours.train()
    layers = len(ours.shared.weights.names)
    steps = 2 * 3
    assert len(drawn) == layers * steps
    fed = iter(drawn)
    start = list(ours.clients[0].tree.values())
    weights = [ours.executor.frozen[name] for name in ours.shared.weights.names]
    step = (ours.executor.schedule, ours.network, ours.protocol.lr)
    theirs = by_hand.mask_train(
        weights, start, ours.clients, *step, lambda p: next(fed).to(p.dtype)
    )
    assert next(fed, None) is None
    assert_rounded_alike(theirs, updates)
    before = torch.cat([s.flatten() for s in start]).sigmoid()
    assert float((updates[0] - before).abs().max()) > 1e-3


def test_masks_are_measured_beside_weights_where_there_is_a_target() -> None:
    size = dataclasses.replace(SMALL, models=("micro", "lenet"), batches=(4, 8), samples=16)
    listed = [(pair.what, pair.target) for pair in training_pairs.masks(size, CPU, "loop")]
    assert ("lenet, drawn masks, batch 8", 0.45) in listed
    assert ("lenet, the best half, batch 8", 0.45) in listed
    assert len(listed) == 4 + 2


def test_the_round_of_fsl_by_hand_ranks_as_ours_does() -> None:
    ours = precise(cohort(f"fsl:lr=0.4,{PLAIN}", "micro", 4, SMALL, CPU, "loop"))
    pair = training_pairs.ranked("micro", ours)
    mine, theirs = cast(torch.Tensor, pair.mine()), cast(list[torch.Tensor], pair.theirs())
    # Two of the initial scores are equal, and a sort may order them either way: with two clients
    # they move by two votes at most, past some of the 9,936 edges.
    assert float((mine[0] == torch.cat(theirs)).float().mean()) > 0.99
    before = ours.protocol.init(ours.shared)[0]
    assert float((before == mine[0]).float().mean()) < 0.5


def test_lock_step_trains_the_same_clients_both_ways_and_counts_launches() -> None:
    # Even steps are one launch; uneven ones two, of six clients each.
    for steps, launched in ((training_pairs.EVEN, 1), (training_pairs.UNEVEN, 2)):
        clients = training_pairs.uneven("micro", steps, suite.QUICK, CPU)
        pair = training_pairs.stacked("micro", precise(clients))
        assert pair.what == f"micro, 12 clients in {launched}"
        many, single = (cast(Trained, work())[0] for work in (pair.mine, pair.theirs))
        assert_rounded_alike(many, single)


def test_rules_transforms_and_macs_by_hand_are_the_real_ones() -> None:
    x = Key(0).normal(9, 50).double()
    payload = FloatVectors(x)
    rules = {"trimmed-mean": by_hand.trimmed_mean, "multi-krum": by_hand.multi_krum}
    for name, theirs in rules.items():
        rule = registry.load("defense", name).declared(2)
        out, _ = rule.aggregate(payload, None, view_of(payload))
        assert_rounded_alike(out, theirs(x, 2))
    tiled = by_hand.tiled_trimmed_mean(x.float(), 2, tile=16)
    torch.testing.assert_close(tiled, by_hand.trimmed_mean(x.float(), 2))
    vector = Key(1).normal(256).double()
    assert_rounded_alike(server_pairs.butterflies(vector), hadamard(vector))
    flags = Key(2).uniform(80) < 0.5
    assert server_pairs.shifted(flags).tolist() == pack(flags.numpy(), 1)[0].tolist()
    # 2 filters of 1 x 3 x 3 at 16 places, then 8 to 3 and 3 to 5.
    assert by_hand.macs(ConvNet((1, 4, 4), ((2,),), (3,), 5)) == 288 + 24 + 15


def test_sums_over_tiles_are_sums_and_rows_that_are_not_finite_are_found() -> None:
    coins = Key(3).uniform(3, 70_000) < 0.5
    agreed = Key(4).uniform(600, 50) < 0.99  # more ones in a column than a byte can hold
    for bits in (coins, coins.T, agreed, agreed[:0], agreed[:, :0]):
        for x in (bits, bits.to(torch.int8)):  # NumPy's way and torch's tiles
            assert torch.equal(column_sums(x, torch.int64), bits.sum(dim=0))
            assert torch.equal(row_sums(x, torch.int64), bits.sum(dim=1))
    large = torch.tensor([[2.0**24, 1.0, 1.0]])  # float32 has no number between 2**24 and that + 2
    assert row_sums(large, torch.float64).tolist() == [2**24 + 2]
    assert column_sums(torch.tensor([[2.0**24], [1.0]]), torch.float64).tolist() == [2**24 + 1]
    assert finite_rows(torch.tensor([[1, 2]])).tolist() == [True]
    x = torch.zeros(6, 4)
    x[0, 1], x[1, 2], x[2, 3], x[3, 0], x[4] = torch.nan, torch.inf, -torch.inf, 3e38, 3e38
    for rows in (x, x.view(6, 2, 2)):
        assert finite_rows(rows).tolist() == [False] * 3 + [True] * 3
    assert finite_rows(x[:0]).tolist() == []
    assert [all_finite([row]) for row in x] == [False] * 3 + [True] * 3
    assert all_finite([])
    assert all_finite([x[5], x[3], x[:0]])
    assert not all_finite([x[5], x[0]])


def test_who_multiplies_in_bfloat16(tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    assert training_pairs.multiplies_bf16(CPU, path)  # nobody says
    for info, expected in {
        "flags\t\t: fpu avx512f avx512_bf16\n": True,
        "flags\t\t: fpu amx_bf16 avx512f\n": True,
        "Features\t: fp asimd bf16\n": True,
        "flags\t\t: fpu avx512f avx512_bf16_less\n": False,
        "Features\t: fp asimd\n": False,
        "processor\t: 0\n": True,  # does not say
    }.items():
        path.write_text(info)
        assert training_pairs.multiplies_bf16(CPU, path) == expected, info
        assert training_pairs.multiplies_bf16(torch.device("cuda"), path)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_that_takes_floats_can_be_measured(name: str) -> None:
    """130 columns: more than the small call has that loads what a rule imports."""
    rule = registry.load("defense", name).declared(2)
    cost = defense_cost.measure(registry.describe(name, rule), 11, 130, 1, "cpu", 1)
    assert (cost.n, cost.k, len(cost.seconds)) == (11, 130, 1)
    assert min(*cost.seconds, *cost.mean, *cost.sort, *cost.tiled) > 0


def test_a_rule_is_compared_with_its_neighbours_in_time_and_its_growth_is_an_exponent() -> None:
    times = (2.0, 30.0, 4.0), (1.0, 10.0, 4.0), (4.0, 90.0, 4.0)
    cost = defense_cost.Cost("mean", 10, 100, *times, (), 0.5)
    assert 1 / cost.over(cost.mean) == 2  # ratios 2, 3 and 1
    assert cost.over(cost.sort) == 2  # ratios 2, 3 and 1
    sizes = [(n, k) for n in (10, 20, 40) for k in (100, 1000)]
    costs = [defense_cost.Cost("a", n, k, (n**2 * k * 1e-6,), (), (), (), None) for n, k in sizes]
    assert defense_cost.growth(costs, "n") == pytest.approx(2)
    assert defense_cost.growth(costs, "k") == pytest.approx(1)
    assert defense_cost.growth(costs[:1], "n") is None


def test_an_attack_is_over_its_budget_by_the_median_of_its_shares() -> None:
    assert attack_cost.Cost(1.0, (0.1, 0.9, 0.15), 0.15).within
    assert not attack_cost.Cost(1.0, (0.1, 0.2, 0.3), 0.15).within
    assert attack_cost.Cost(1.0, (9.0,), None).within
    scenario = Scenario(attack="dyn-opt", clients=10, per_round=5, epochs=1, malicious=0.4)
    cost = attack_cost.measure(scenario, 1, "cpu")
    assert (cost.budget, cost.share > 0) == (attack_cost.SEARCH, True)
    assert list(attack_cost.play(scenario, ["fedavg"], ["rank-reversal"], ["own"], 1)) == []


# --- phases of a round --------------------------------------------------------------------------

LITTLE = Plan(clients=5, samples=4, rounds=1)


def marked(cls: type[Any], *names: str) -> Any:
    """A subclass whose methods leave a span called ``mark`` in the profile."""

    def method(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with record_function("mark"):
                return getattr(super(made, self), name)(*args, **kwargs)

        return call

    made = type(f"Marked{cls.__name__}", (cls,), {name: method(name) for name in names})
    return made


class Idle(Attack):
    accepts = (FloatVectors,)

    def craft(self, view: Any, memory: Any) -> Any:
        return view.own, memory


class Dozing(FedAvg):
    def message(self, *args: Any) -> Any:
        sent, memory = super().message(*args)
        return marked(FloatVectors, "encode")(sent.values()), memory


PLUGINS: dict[str, dict[str, Any]] = {
    "broadcast": {"protocol": marked(FedAvg, "broadcast", "receive")()},
    "compress": {"protocol": marked(FedAvg, "message")()},
    "server step": {"protocol": marked(FedAvg, "server_step")()},
    "wire": {"protocol": Dozing()},
    "defend": {"defense": marked(Mean, "aggregate")()},
    "attack": {"attack": marked(Idle, "craft")()},
    "train": {},
}


@pytest.mark.parametrize("phase", PLUGINS)
def test_what_a_phase_does_is_charged_to_it(phase: str) -> None:
    setup = round_phases.ready("fedavg", "micro", LITTLE, "cpu")
    plugins = dataclasses.replace(setup.plugins, **PLUGINS[phase])
    kind = marked(Loop, "train") if phase == "train" else Loop
    malicious = MaliciousClients.of(torch.arange(5) == (2 if phase == "attack" else 9))
    engine = kind(plugins.protocol, setup.shared, setup.executor.schedule)
    setup = dataclasses.replace(setup, plugins=plugins, executor=engine)
    setup = setup.with_population(malicious=malicious)
    state = begin(setup)
    found = spans(lambda: play_round(setup, state, 0))
    marks = [span for span in found if span[0] == "mark"]
    assert marks
    phases = sorted((s for s in found if s[0] != "mark"), key=lambda s: s[2] - s[1])  # inner first
    inner = {next(s[0] for s in phases if s[1] <= start and end <= s[2]) for _, start, end in marks}
    assert {phase} <= inner <= {phase, "rest"}  # `heard_by_all` asks for a broadcast once more


def test_every_moment_is_charged_once_and_a_watched_round_is_the_round() -> None:
    plan = dataclasses.replace(LITTLE, attack="alie")
    setup = round_phases.ready("drive", "micro", plan, "cpu")
    watched, plain = begin(setup), begin(setup)
    rounds: list[Any] = []
    found = spans(lambda: rounds.append(play_round(setup, watched, 0)))
    seconds = own_seconds(found)
    whole = sum((end - start) / 1e9 for name, start, end in found if name == "rest")
    assert sum(seconds.values()) == pytest.approx(whole)
    assert set(seconds) == set(PHASES)
    assert rounds == [play_round(setup, plain, 0)]
    assert torch.equal(watched.server, plain.server)


def test_who_trains_for_less_than_the_target_is_marked() -> None:
    blank = dict.fromkeys(PHASES, 0.0)
    slow = Split(4, blank | {"train": 7.9, "defend": 2.1})
    assert not slow.met
    assert Split(4, blank | {"train": 8.0, "defend": 2.0}).met
    cells = dict(zip(round_phases.HEAD, round_phases.row("p", slow), strict=True))
    assert (cells["ms"], cells["train"], cells["defend"]) == ("10000", "79!", "21.0")
    assert cells["each"] == "525.00"


def test_clients_hold_as_many_samples_as_the_plan_says() -> None:
    setup = round_phases.ready("fedavg", "micro", Plan(clients=3, samples=7), "cpu")
    population = setup.population
    assert (
        [len(part) for part in population.train] == population.sizes(range(3)).tolist() == [7, 7, 7]
    )
    assert population.data.image == (1, 28, 28)
    assert round_phases.pool("conv8", 4).image == (3, 32, 32)
    with pytest.raises(ConfigError, match="rank-reversal"):
        round_phases.ready("fedavg", "micro", dataclasses.replace(LITTLE, attack="rank-reversal"))


# --- the commands -------------------------------------------------------------------------------


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave this process's allocator alone, and its threads as they were."""
    monkeypatch.setenv("FEDBENCH_ALLOCATOR", "system")
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_the_suite_and_parts_of_it_are_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(suite, "QUICK", SMALL)
    picture = tmp_path / "speed.png"
    turns = tmp_path / "speed.json"
    suite.main(["--quick", "--device", "cpu", "--chart", str(picture), "--json", str(turns)])
    page = capsys.readouterr().out
    content = json.loads(turns.read_text())
    assert content["machine"]["threads"] == 2
    groups = {"local training", "a round of FSL", "lock step", "server", "messages", "framework"}
    assert {group["group"] for group in content["ratios"]} == groups
    assert all(len(ratio["mine"]) == 1 for ratio in content["ratios"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    for text in ("trimmed mean / torch.sort", "micro, batch 4 / a loop by hand"):
        assert f"| {text} |" in page
    suite.main(["--quick", "--only", "a mask", "--device", "cpu"])
    page = capsys.readouterr().out
    assert "packing a mask" in page
    assert "summed" not in page
    for words in (["--only", "chess"], ["--chart", "a.gif"]):
        with pytest.raises(SystemExit):
            suite.main(["--quick", *words])
        assert f"{words[0]} must" in capsys.readouterr().err
    shared = ["--clients", "5", "--threads", "1"]
    round_phases.main(["-m", "micro", "-p", "fedavg", "--samples", "4", "--rounds", "1", *shared])
    assert "| fedavg |" in capsys.readouterr().out
    defense_cost.main(["-d", "median", "-d", "bulyan", "--parameters", "10", *shared])
    page = capsys.readouterr().out
    assert "| median | 5 | 10 |" in page
    assert "bulyan" not in page  # with f = 5 // 5 it needs 7 rows


SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "commits.py"
loader = importlib.util.spec_from_file_location("commits", SCRIPT)
assert loader is not None
assert loader.loader is not None
commits = importlib.util.module_from_spec(loader)
loader.loader.exec_module(commits)
compared = commits.compared


def test_ratios_are_of_neighbouring_turns_and_numbers_are_compared() -> None:
    """Medians of each side by themselves would say 4/2 = 2; the turns say 1, 2 and 4."""
    same = [0.9, 1.0, 32.0]
    other = [0.8, 1.0, 32.0]
    ours = [{"a": (4.0, same), "b": (1.0, same)}, {"a": (2.0, same), "b": (1.0, same)}]
    ours += [{"a": (1.0, same), "b": (1.0, same)}]
    theirs = [{"a": (4.0, same)}, {"a": (8.0, same)}, {"a": (2.0, same)}]
    (line,) = compared(ours, theirs)  # b is unknown to the other commit
    assert line == "| a | 2.00 | 1.00-4.00 | 2000 | the same |"
    theirs[1]["a"] = (8.0, other)
    assert compared(ours, theirs)[0].endswith("| others |")


def test_what_cannot_be_compared_is_refused_in_a_line() -> None:
    for words, said in {"no-such-commit": "git describe", "HEAD --turns 0": "--turns"}.items():
        command = [sys.executable, str(SCRIPT), *words.split()]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode != 0
        assert done.stderr.startswith(said)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_each_turn_plays_the_code_of_its_commit(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the repository, where Python would find the code that lies there first."""
    few = {"model": "micro", "clients": 10, "per_round": 5, "malicious": 0.2}
    monkeypatch.setattr(commits, "COMMON", few)
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "HEAD", "--turns", "1", "--rounds", "1"])
    monkeypatch.chdir(SCRIPT.parents[1])
    stop = signal.getsignal(signal.SIGTERM)
    try:
        commits.main()
    finally:
        signal.signal(signal.SIGTERM, stop)
    assert capsys.readouterr().out.count("| the same |") == len(commits.SCENARIOS) == 10
    checkouts = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True)
    assert "/base " not in checkouts.stdout
