"""The threat model: when an attack acts, what a plug-in may be shown, and what leads where.

What a plug-in is handed leads to nothing that it may not read, however it looks.
"""

import dataclasses
import gc
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import pytest
import torch
from crafting import round_of
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import (
    AttackContext,
    attack_view,
    forge,
    malicious_clients,
    own_codec,
)
from fedbench.api import Defense, Grad, Gradient, ServerView, Shared, Traits
from fedbench.api.attack import Attack, AttackView, Knowledge, Local
from fedbench.core.errors import ConfigError, Incompatible, PluginError
from fedbench.core.rng import Key, Secret
from fedbench.data.datasets import Data
from fedbench.executors.training import Client
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import ADVERSARY, Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import FloatVectors, Payload, Rankings, Residues
from fedbench.protocols.compressed import TopK
from fedbench.protocols.fedavg import FedAvg
from fedbench.results import fields
from fedbench.run import play_round
from fedbench.sweeps.grid import Grid
from fedbench.testing import NETWORK, example_context
from fedbench_defenses.mean import Mean

SMALL = Scenario(clients=20, per_round=6, rounds=6, epochs=1, eval_every=1, malicious=0.4)


@dataclass(frozen=True)
class Searching(Attack):
    def needs(self) -> Knowledge:
        return Knowledge("colluders", defense=True)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        assert view.defense is not None
        for strength, draw in ((1.0, 0), (2.0, 0), (float("inf"), 1)):
            view.trace.append((strength, float(view.defense(view.own, draw).norm())))
        return view.own, memory


@pytest.mark.slow
def test_an_attack_acts_in_its_window_only() -> None:
    scenario = {"attack_from": 1, "attack_until": 4, "attack_every": 3, "attack": "sign-flip"}
    record = fedbench.play(SMALL.model_copy(update=scenario), device="cpu")
    assert all(r.malicious for r in record.rounds), "or this says nothing"
    acted = [r.gain_mean is not None and r.gain_mean > 0.01 for r in record.rounds]
    assert acted == [False, True, False, False, False, False]  # 4 would be the next


def test_a_window_has_its_first_round_and_not_the_one_that_it_ends_before() -> None:
    window: dict[str, Any] = {"attack_from": 1, "attack_until": 7, "attack_every": 3}
    window["attack"] = "sign-flip"
    setup = prepare(Scenario(model="micro", clients=8, per_round=4, rounds=9, **window), "cpu")
    assert [step for step in range(9) if setup.acts(step)] == [1, 4]


def test_the_malicious_share_is_rounded_to_the_nearest_whole_number_of_clients() -> None:
    # 0.29 * 100 = 28.999999999999996 and 0.35 * 10 = 3.5, of which `int` would make 28 and 3; 2.5
    # is as near to 2 as to 3, and Python rounds it to the even one.
    for clients, fraction, expected in ((100, 0.29, 29), (10, 0.35, 4), (10, 0.25, 2), (3, 0.1, 0)):
        assert len(malicious_clients(clients, fraction, Key(0)).ids()) == expected


def test_a_window_or_a_cap_that_means_nothing_is_refused() -> None:
    cap = "--knowledge must be own, colluders or all, each with or"
    for fields_, said in (
        ({"attack_from": -1}, "--attack-from must be >= 0, got -1"),
        ({"attack_every": 0}, "--attack-every must be >= 1, got 0"),
        (
            {"attack_until": 2, "attack_from": 2},
            "--attack-until must be None or > --attack-from = 2, got 2",
        ),
        ({"knowledge": "everything"}, cap),
        ({"knowledge": "all+all"}, cap),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            Scenario.of(**fields_)
    assert fields.ADVERSARY == ADVERSARY, "sweep/fields.py says it again: it must not import torch"


@pytest.mark.parametrize(
    ("cap", "fits"),
    [
        (None, {"sign-flip", "rank-reversal", "dyn-opt"}),
        ("own+defense+state", {"sign-flip"}),
        ("colluders", {"sign-flip", "rank-reversal"}),
        ("all+state", {"sign-flip", "rank-reversal"}),
        ("all+defense", {"sign-flip", "rank-reversal", "dyn-opt"}),
    ],
)
def test_an_attack_that_must_see_too_much_is_left_out(cap: str | None, fits: set[str]) -> None:
    names = ("sign-flip", "rank-reversal", "dyn-opt")
    axes = {"protocol": ("fsl",), "attack": names, "knowledge": (cap,)}
    cells, skipped = Grid(axes).cells()
    assert {cell.attack for cell in cells} - {"none"} == fits
    assert {skip.attack for skip in skipped} == set(names) - fits
    for skip in skipped:
        assert f"must be shown {'all + defense' if skip.attack == 'dyn-opt' else ''}" in skip.reason
    if cap == "colluders":
        shown = r"dyn-opt must be shown all \+ defense, but --knowledge c"
        with pytest.raises(Incompatible, match=shown):
            load_plugins(Scenario(attack="dyn-opt", knowledge=cap))


def test_what_a_search_tried_and_how_often_it_asked_is_recorded() -> None:
    scenario = SMALL.model_copy(update={"rounds": 1})
    _, run_state, (r,) = played(scenario, "loop", attack=Searching())
    assert r.queries == 3
    assert [strength for strength, _ in r.trace] == [1.0, 2.0, None]  # JSON has no infinity
    assert r.trace[0][1] == r.trace[1][1]
    assert run_state.attack_seconds > 0


@dataclass(frozen=True, kw_only=True)
class Dice(Mean):
    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        return x.mean(dim=0) + view.key.normal(x.shape[1]), None


def test_an_oracle_has_its_own_randomness_and_gives_equal_answers_to_equal_draws() -> None:
    rows = FloatVectors(torch.arange(12.0).reshape(4, 3))
    context = round_of(rows, Dice())
    oracle = attack_view(Searching(), context).defense
    assert oracle is not None
    own = rows.take([0, 1])
    assert torch.equal(oracle(own, 1), oracle(own, 1))
    assert not torch.equal(oracle(own), oracle(own, 1))
    server = Dice().aggregate(rows, None, context.view)[0]
    for draw in range(4):
        assert not torch.equal(oracle(own, draw), server)


@pytest.mark.parametrize("checks", ["none", "finite", "range"])
def test_an_oracle_answers_by_the_rows_that_the_server_checks_let_through(checks: Any) -> None:
    rows = torch.tensor([[1.0], [2.0], [4.0], [torch.nan], [9.0]])
    here = dataclasses.replace(example_context(FloatVectors(rows), Mean()), checks=checks)
    oracle = attack_view(Knowing(Knowledge("all", defense=True)), here).defense
    assert oracle is not None
    assert oracle.checks == checks
    answers = [oracle(FloatVectors(torch.tensor([[8.0], [last]]))) for last in (2.0, torch.nan)]
    expected = [(8 + 2 + 4 + 9) / 4, 7.0] if checks != "none" else [torch.nan, torch.nan]
    assert torch.cat(answers).tolist() == pytest.approx(expected, nan_ok=True)
    sizes = torch.tensor([1.0, 1.0, 1.0, 1.0, 3.0], dtype=torch.float64)
    uneven = dataclasses.replace(here, view=dataclasses.replace(here.view, weights=sizes))
    oracle = attack_view(Knowing(Knowledge("all", defense=True)), uneven).defense
    assert oracle is not None
    answer = float(oracle(FloatVectors(torch.tensor([[8.0], [2.0]]))))
    among_four = (8 + 2 + 4 + 3 * 9) / 6  # each with its own client's weight
    assert answer == pytest.approx(among_four if checks != "none" else torch.nan, nan_ok=True)
    coins = Residues(torch.tensor([[0], [1], [3], [3], [2]]).int(), modulus=16, coins=3)
    here = dataclasses.replace(example_context(coins, Mean()), checks=checks)
    oracle = attack_view(Knowing(Knowledge("all", defense=True)), here).defense
    assert oracle is not None
    sent = Residues(torch.tensor([[3], [15]]).int(), modulus=16, coins=3)  # 3 heads, 15 of 3
    assert float(oracle(sent)) == ((3 + 3 + 3 + 1) / 4 if checks == "range" else (10 - 5) / 5)


def test_an_oracle_tells_no_more_than_the_tier() -> None:
    rows = FloatVectors(torch.tensor([[1.0], [0.0], [0.0]]))
    context = round_of(rows, m=1)
    for weights in ([1.0, 1.0, 1.0], [1.0, 50.0, 50.0]):
        sizes = torch.tensor(weights, dtype=torch.float64)
        here = dataclasses.replace(context, view=dataclasses.replace(context.view, weights=sizes))
        oracle = attack_view(Searching(), here).defense
        assert oracle is not None
        # Its own message stands in for the others': 7 and twice 1, whoever has how much data.
        assert float(oracle(FloatVectors(torch.tensor([[7.0]])))) == pytest.approx(3.0)


def test_where_each_client_is_sent_its_own_the_adversary_hears_and_returns_its_own() -> None:
    rows = FloatVectors(torch.arange(8.0).reshape(4, 2))
    context = example_context(rows, Mean(), (1, 3))
    each = dataclasses.replace(context, view=dataclasses.replace(context.view, broadcast=rows))
    heard = attack_view(Searching(), each).broadcast.values()
    assert heard.tolist() == [[2.0, 3.0], [6.0, 7.0]]
    shared = attack_view(Searching(), context).broadcast.values()
    assert shared.tolist() == [[0.0, 1.0]]
    for idle, expected in ((rows.x, [[2.0, 3.0], [6.0, 7.0]]), (rows.x[:1], [[0.0, 1.0]] * 2)):
        view = attack_view(Searching(), dataclasses.replace(context, idle=idle))
        assert view.idle.tolist() == expected


SHARED = Shared(NETWORK, 3, torch.device("cpu"))
N = 6
D = SHARED.layout.d
ROWS = (1, 4)
BRIEF = SMALL.model_copy(update={"per_round": 4, "rounds": 2, "batch_size": 64, "eval_every": 2})


def reached(*starts: object) -> Iterator[object]:
    """Everything that can be reached: through instances, containers, closures, bound methods."""
    todo = list(starts)
    known = {}
    while todo:
        thing = todo.pop()
        if id(thing) in known or isinstance(thing, type | ModuleType | BuiltinFunctionType):
            continue
        known[id(thing)] = thing  # kept, so that no id comes twice
        yield thing
        if isinstance(thing, FunctionType):  # its globals are those of a module
            todo += [*(thing.__closure__ or ()), *(thing.__defaults__ or ()), thing.__kwdefaults__]
        else:
            todo += gc.get_referents(thing)


def numbers(*starts: object) -> set[float]:
    """All numbers in tensors and keys that can be reached."""
    leaks: set[float] = set()
    for thing in reached(*starts):
        if isinstance(thing, Tensor):
            whole = torch.empty(0, dtype=thing.dtype).set_(thing.untyped_storage())
            leaks |= set(whole.double().tolist())  # a view leads to all that its storage holds
        if isinstance(thing, Key):
            leaks.add(float(thing.seed))
    return leaks


@dataclass(frozen=True)
class Remembering(Defense[dict[int, Tensor]]):
    """The mean. It keeps rows by client, and in the instance what no pure rule would."""

    beside: dict[str, Any] = field(default_factory=dict, init=False)

    def traits(self) -> Traits:
        return Traits(identities=True, history=True)

    def init(self, spec: Any) -> dict[int, Tensor]:
        return {}

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        self.beside["last"] = received
        return received.values().mean(dim=0), state


def filled(hundred: int, width: int = D, rows: int = N) -> Tensor:
    """``(rows, width)`` whose row ``i`` holds ``hundred + i`` everywhere."""
    return (hundred + torch.arange(float(rows)))[:, None].expand(-1, width).clone()


def marked(defense: Defense[Any]) -> AttackContext:
    """A round of which every number says what it is, in hundreds, and whose, in units."""
    keys = [Key(900 + i) for i in range(N)]
    memories = [{"residual": row} for row in filled(300)]
    plain = example_context(FloatVectors(filled(100)), defense, ROWS)
    view = dataclasses.replace(
        plain.view,
        weights=filled(500, 1)[:, 0].double(),
        broadcast=FloatVectors(filled(400)),
        ids=filled(600, 1)[:, 0].long(),
        root=None,
        key=Key(999),
    )
    return dataclasses.replace(
        plain,
        updates=filled(200),
        trained=filled(250)[list(ROWS)],
        idle=torch.zeros(1, D),
        codec=own_codec(TopK(error_feedback=True), SHARED, keys, memories),
        memories=memories,
        server=torch.tensor([700.0]),
        defense_state={i: row for i, row in enumerate(filled(800))},
        view=view,
    )


@dataclass(frozen=True)
class Knowing(Attack):
    knows: Knowledge

    def needs(self) -> Knowledge:
        return self.knows

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        return xs, ys


def test_what_an_attack_trained_is_apart_and_of_one_that_trains_nothing_its_updates() -> None:
    context = marked(Remembering())
    apart = attack_view(Knowing(Knowledge("own")), context, [ROWS[1]])
    assert bool((apart.updates == 200 + ROWS[1]).all())
    assert bool((apart.trained == 250 + ROWS[1]).all())
    assert apart.idle.shape == apart.updates.shape
    untrained = attack_view(Attack(), dataclasses.replace(context, trained=None), [ROWS[1]])
    assert untrained.trained is untrained.updates
    each = dataclasses.replace(context, idle=filled(150))
    assert attack_view(Attack(), each, list(ROWS)).idle[:, 0].tolist() == [150.0 + i for i in ROWS]


@dataclass(frozen=True, eq=False)
class Marker:
    x: Tensor

    def method(self) -> None: ...


@pytest.mark.parametrize("tier", ["own", "colluders", "all"])
@pytest.mark.parametrize("more", ["", "+defense", "+state", "+defense+state"])
def test_a_view_leads_to_what_its_tier_and_extras_allow(tier: str, more: str) -> None:
    hidden = torch.tensor([123.0])
    assert 123.0 in numbers(lambda: hidden) & numbers(Marker(hidden).method), "the walk sees these"
    rule = Remembering()
    rule.beside["a round ago"] = FloatVectors(filled(100))
    knows = Knowledge.parse(tier + more)
    context = marked(rule)
    rows = [1] if tier == "own" else list(ROWS)
    view = attack_view(Knowing(knows), context, rows)
    if view.defense is not None:
        view.defense(view.own, 3)
    read = {hundred + i for hundred in (100, 200, 250, 300, 400, 900) for i in rows}
    if tier == "all":
        read |= {100 + i for i in range(N)} | {400 + i for i in range(N)}
    if knows.defense:
        read |= {500 + i for i in rows}
        if tier == "all":
            read |= {hundred + i for hundred in (500, 600, 800) for i in range(N)}
    if knows.state:
        read |= {700}
    leaks = {number for number in numbers(view) if 100 <= number < 1000}
    assert leaks == read
    secrets = [thing for thing in reached(view) if isinstance(thing, Secret)]
    assert all(secret == context.owned.secret.derive("oracle") for secret in secrets)


@dataclass(frozen=True)
class Looking(Attack):
    """Behaves, and keeps all that it is handed."""

    handed: list[object] = field(default_factory=list)
    tier: Any = "own"

    def needs(self) -> Knowledge:
        return Knowledge(self.tier, defense=True, data=True)

    def poison(self, xs: Tensor, ys: Tensor, local: Local) -> tuple[Tensor, Tensor]:
        self.handed.extend((xs, ys, local))
        for leaf in (*local.tree.values(), *(local.before or {}).values()):
            assert bool(torch.isfinite(leaf).all()), "written into by another client"
            leaf.fill_(torch.nan)  # copies: nothing comes of it
        return xs, ys

    def wrap_grad(self, grad: Gradient, local: Local) -> Grad:
        self.handed.extend((grad, local))
        return grad

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        self.handed.append(view)
        assert bool(torch.isfinite(view.trained).all())
        return view.own, memory


def played(scenario: Scenario, engine: str, **plugins: Any) -> tuple[Setup, RunState, list[Any]]:
    """The setup with these plug-ins, and its rounds."""
    setup = prepare(scenario, "cpu", engine)
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, **plugins))
    run_state = RunState(setup.plugins.protocol.init(setup.shared))
    return setup, run_state, [play_round(setup, run_state, step) for step in range(scenario.rounds)]


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_in_a_run_nothing_leads_an_attack_to_the_harness(engine: str) -> None:
    attack = Looking()
    _, run_state, _ = played(BRIEF, engine, attack=attack)
    harness = (Setup, RunState, AttackContext, Client, Data)
    leaks = [thing for thing in reached(*attack.handed) if isinstance(thing, harness)]
    assert not leaks
    assert bool(torch.isfinite(run_state.server).all()), "it wrote into copies"


@dataclass(frozen=True)
class Writing(Defense[dict[str, Tensor]]):
    """Answers with all that it is handed, and then overwrites it."""

    views: list[ServerView] = field(default_factory=list)

    def traits(self) -> Traits:
        return Traits(root=True)

    def init(self, spec: Any) -> dict[str, Tensor]:
        return {"rounds": torch.zeros(1)}

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        assert view.root is not None
        before = state["rounds"].clone()
        answer = self.answer(received, state, view)
        unwritten = dataclasses.replace(view, root=view.root.copied(), ids=view.ids.clone())
        self.views.append(unwritten)
        for x in (received.values(), view.broadcast.values(), view.root.values(), state["rounds"]):
            x.numpy().fill(7.0)  # not even counted by `Tensor._version`
        view.weights.fill_(0)
        return answer, {"rounds": before}

    def answer(self, received: Payload, state: Any, view: ServerView) -> Tensor:
        """Weighted mean, and a bit of everything else that it is handed."""
        assert view.root is not None
        mean = (view.weights / view.weights.sum()).float() @ received.values()
        heard = view.broadcast.values()[0] + view.root.values()[0]
        answer: Tensor = mean + 0.25 * heard + state["rounds"]
        return answer


@dataclass(frozen=True)
class Flip(Attack):
    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return FloatVectors(-view.own.values()), memory


@dataclass(frozen=True)
class Reading(Writing):
    """Only answers. It keeps in which rounds it was asked."""

    asked: list[int] = field(default_factory=list)

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        self.asked.append(view.step)
        return self.answer(received, state, view), state


def test_a_rule_that_writes_changes_nothing_and_never_sees_a_round_without_the_attack() -> None:
    scenario = BRIEF.model_copy(update={"attack": "neurotoxin", "eval_every": 1})
    _, run_state, written = played(scenario, "loop", defense=Writing(), attack=Flip())
    reading = Reading()
    _, clean, read = played(scenario, "loop", defense=reading, attack=Flip())
    assert reading.asked == [0, 1]
    assert any(r.gain for r in read), "the harness has compared"
    assert any(r.malicious for r in read)
    assert all(r.gain_mean is not None and r.gain_mean > 0 for r in read if r.malicious)
    assert written == read
    assert torch.equal(run_state.server, clean.server)


def test_a_rule_that_writes_does_not_spoil_its_own_answers_to_an_attack() -> None:
    context = example_context(FloatVectors(filled(100)), Writing(), ROWS)
    context = dataclasses.replace(context, defense_state={"rounds": torch.zeros(1)})
    oracle = attack_view(Knowing(Knowledge("all", defense=True)), context).defense
    assert oracle is not None
    own = FloatVectors(filled(100)[list(ROWS)])
    for _ in range(2):  # 102.5 is the mean of 100 .. 105, and the server has sent 100
        assert oracle(own).tolist() == pytest.approx([102.5 + 0.25 * (100 + 100)] * D)
    assert torch.equal(context.honest.values(), filled(100))


def test_a_server_s_view_leads_to_nobody_s_number_and_to_no_truth() -> None:
    rule = Writing()
    setup, _, rounds = played(BRIEF, "loop", defense=rule)
    for view, played_round in zip(rule.views, rounds, strict=True):
        ids = torch.tensor(played_round.clients)
        things = list(reached(view))
        tensors = [thing for thing in things if isinstance(thing, Tensor)]
        assert tensors
        everyone = setup.population.malicious[torch.arange(BRIEF.clients)]
        for truth in (ids, setup.population.malicious[ids], everyone):
            assert not any(x.shape == truth.shape and bool((x == truth).all()) for x in tensors)
        harness = (Secret, Setup, RunState, Client)
        assert not [thing for thing in things if isinstance(thing, harness)]


@dataclass(frozen=True, kw_only=True)
class Personal(FedAvg):
    """FedAvg whose server sends each client a model of its own: one more than that of the last."""

    def broadcast(self, shared: Shared, state: Tensor, clients: Sequence[int], key: Key) -> Payload:
        return FloatVectors(state + torch.tensor(clients)[:, None])


@pytest.mark.parametrize("per_round", [1, 2])
@pytest.mark.parametrize("personal", [False, True])
def test_a_client_remembers_no_other_s_broadcast(personal: bool, per_round: int) -> None:
    attack = Looking()
    scenario = BRIEF.model_copy(update={"per_round": per_round, "malicious": 0.95})
    protocol = Personal() if personal else FedAvg()
    played(scenario, "loop", attack=attack, protocol=protocol)
    heard = [local.before for local in attack.handed if isinstance(local, Local)]
    assert heard[0] is None, "nothing was sent before the first round"
    assert (heard[-1] is None) == personal


@pytest.mark.parametrize("wrong", [0, 1])
def test_of_messages_that_are_looked_at_together_the_illegal_one_is_named(wrong: int) -> None:
    calls: list[None] = []

    @dataclass(frozen=True)
    class Careless(Attack):
        """One of its two clients names an edge twice."""

        def needs(self) -> Knowledge:
            return Knowledge()

        def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
            calls.append(None)
            assert isinstance(view.own, Rankings)
            symbols = view.own.symbols.clone()
            if len(calls) == 1 + wrong:
                symbols[:, 0] = symbols[:, 1]
            return Rankings(symbols, view.own.sizes), memory

    honest = Rankings(torch.arange(4, dtype=torch.int32).repeat(3, 1), (4,))
    error = rf"client {wrong}.*must return legal messages: .* a permutation of 0\.\.3"
    with pytest.raises(PluginError, match=error):
        forge(Careless(), example_context(honest, Mean()), {})
    assert len(calls) == 2
