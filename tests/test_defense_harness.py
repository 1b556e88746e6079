"""Defenses in the harness: chains, root data, the truth, what rules find, other draws."""

import dataclasses
import json
from typing import Any

import pytest
import torch
from rules import answer, column, kept, view_of
from torch import Tensor

import fedbench
from fedbench.adversary.metrics import Arrivals, _relative, detection, effect
from fedbench.adversary.threat_model import attack_view
from fedbench.api import Chain, Findings
from fedbench.core import registry
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.data.splits import ROOT_IMAGES
from fedbench.experiment.compatibility import load_plugins, resolve
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import file_name
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import SERVERS_CLIENT
from fedbench.payload import BinaryMasks, FloatVectors, same
from fedbench.results.gather import shortened
from fedbench.sweeps.grid import Grid
from fedbench.testing import example_context, example_payloads
from fedbench_attacks.searched import DynOpt
from fedbench_defenses.foolsgold import FoolsGold
from fedbench_defenses.mean import Mean
from fedbench_defenses.mixing import NNM
from fedbench_defenses.multi_krum import MultiKrum

FINITE = torch.zeros(1)  # an aggregate
SMALL: dict[str, Any] = {"dataset": "digits", "model": "micro", "clients": 20, "per_round": 8}
SMALL |= {"rounds": 2, "epochs": 1, "eval_every": 2}


def played(defense: str, **fields: Any) -> fedbench.Record:
    return fedbench.play(Scenario(defense=defense, **SMALL | fields))


def test_a_chain_is_described_as_it_was_typed() -> None:
    chain = registry.load("defense", "clip:c=1e+2+nnm:f=1+multi-krum:f=2")
    assert isinstance(chain, Chain)
    assert isinstance(chain.rule, Chain)
    assert chain.rule.first == NNM(f=1)
    assert chain.rule.rule == MultiKrum(f=2)
    text = registry.describe("clip+nnm+multi-krum", chain)
    assert text == "clip:c=100.0+nnm:f=1+multi-krum:f=2,m=none,variant=canonical"
    assert registry.load("defense", text) == chain
    scenario = resolve(Scenario(defense=text, malicious=0.1, **SMALL)).scenario
    assert file_name(scenario, "0") == "fedavg-clip+nnm+multi-krum-none-seed0-0.json"


def test_the_declared_share_fills_every_link_of_a_chain_which_is_shown_without_defaults() -> None:
    scenario = Scenario(defense="nnm+multi-krum", declared=0.2, **SMALL)
    plugins = load_plugins(scenario)
    assert plugins.declares
    assert plugins.defense == Chain(NNM(f=2), MultiKrum(f=2))  # 8 clients: 1.6, rounded up
    assert not load_plugins(Scenario(defense="nnm:f=1+multi-krum:f=1", **SMALL)).declares
    typed = Scenario(defense="nnm+multi-krum:m=3", declared=0.2, malicious=0.1, **SMALL)
    assert "nnm:f=2+multi-krum:f=2,m=3" in resolve(typed).scenario.defense
    assert shortened(resolve(typed).scenario).defense == "nnm+multi-krum:m=3"
    other = Scenario(defense="nnm:f=1+multi-krum", declared=0.2, **SMALL)
    assert shortened(resolve(other).scenario).defense == "nnm:f=1+multi-krum:f=2"
    shown_too = [("defense", "nnm+multi-krum", "variant")]
    shown = shortened(resolve(typed).scenario, shown_too).defense
    assert shown == "nnm+multi-krum:m=3,variant=canonical"
    # Files of ours are part of the version of the code.
    assert resolve(Scenario(defense="nnm:f=1+multi-krum:f=1", **SMALL)).sources == []


def test_what_a_chain_or_a_rule_cannot_be_is_refused_before_the_run() -> None:
    for protocol, defense, kind, message in (
        ("fsl", "clip+mean", Incompatible, "messages of one length have one norm, but fsl sends"),
        ("fedpm", "nnm:f=1+vote-margin", Incompatible, "works on BinaryMasks, SignBits, but fedpm"),
        ("signsgd", "log-odds-cap", Incompatible, "would be the plain vote for signsgd"),
        ("signsgd", "oracle+log-odds-cap", Incompatible, "would be the plain vote for signsgd"),
        ("feddrop", "clip+fldetector", Incompatible, "broadcast weights, which its columns are"),
        ("fedpm", "bucketing+fldetector", Incompatible, "rows of one client each, got Bucketing"),
        ("fedavg", "nnm+clip+foolsgold", Incompatible, "rows of one client each, got NNM"),
        ("skellam", "clip+lasa", Incompatible, "columns that are no coordinates of an update"),
        ("fedavg", "clip+oracle+median", ConfigError, "oracle.median must have oracle first"),
        ("fedavg", "oracle+krum:f=1", ConfigError, "must leave every f to the oracle"),
        ("fedavg", "median+mean", ConfigError, "must have one rule, at its end, got 'median'"),
        ("fedavg", "clip:c=9+clip:c=1+mean", ConfigError, "must name each link once"),
    ):
        with pytest.raises(kind, match=message):
            resolve(Scenario(protocol=protocol, defense=defense, **SMALL))
    with pytest.raises(ConfigError, match=r"must have at most 48, got --per-round 60"):
        resolve(Scenario(defense="mda:f=4", clients=100, per_round=60))
    with pytest.raises(ConfigError, match=r"must have at most 36, got --per-round 37"):
        resolve(Scenario(defense="smea:f=4", clients=100, per_round=37))
    resolve(Scenario(protocol="fsl", defense="nnm:f=1+clip+mean", **SMALL))  # mixtures differ
    resolve(Scenario(protocol="fedpm", defense="entropy-filter+vote-margin", **SMALL))
    resolve(Scenario(protocol="fedpm", defense="log-odds-cap", **SMALL))
    resolve(Scenario(protocol="fedmrn", defense="clip+fldetector", **SMALL))
    resolve(Scenario(protocol="fedavg", defense="oracle+clip+foolsgold", **SMALL))


def test_rates_hold_what_a_rule_left_out_against_the_truth() -> None:
    # Of three malicious rows two are left out, of five others one.
    selected = torch.tensor([False, False, True, True, True, False, True, True])
    malicious = torch.tensor([True, True, True, False, False, False, False, False])
    fields = detection(Findings(selected, {"c": 2.0}), FINITE, malicious)
    assert fields["true_positive_rate"] == pytest.approx(2 / 3)
    assert fields["false_positive_rate"] == pytest.approx(1 / 5)
    assert fields["findings"] == {"c": 2.0}
    nobody = detection(Findings(selected), FINITE, torch.zeros(8, dtype=torch.bool))
    assert nobody["true_positive_rate"] is None
    assert "true_positive_rate" not in detection(Findings(), FINITE, malicious)
    fields = detection(Findings(None, {"c": float("inf")}), FINITE, malicious)
    assert fields["findings"] == {"c": "inf"}, "JSON has no infinity"


def test_a_filter_and_a_rule_say_together_whom_they_left_out() -> None:
    x = torch.zeros(7, 8, dtype=torch.bool)
    x[:, :2] = True
    x[3, 2] = True
    x[6] = True  # the filter leaves it out
    payload = BinaryMasks(x, torch.zeros(7, 0))
    view = view_of(payload)
    answer(registry.load("defense", "density-filter+krum:f=1"), payload, view)
    assert kept(view) == [True, *[False] * 6]
    mixed = view_of(payload)
    answer(registry.load("defense", "nnm:f=1+krum:f=1"), payload, mixed)
    assert mixed.findings.kept is None, "a mixture is nobody's row"


@pytest.mark.slow
def test_a_run_records_rates_and_findings_of_its_rule() -> None:
    record = played("multi-krum:f=2", attack="sign-flip:scale=50", malicious=0.2)
    assert any(r.malicious for r in record.rounds)
    assert record.result.false_positive_rate is not None
    for first in record.rounds:
        assert first.false_positive_rate is not None
        out = 2 - round((first.true_positive_rate or 0) * first.malicious)
        assert first.false_positive_rate * (8 - first.malicious) == pytest.approx(out)
    assert played("mean", malicious=0.2).result.false_positive_rate is None
    result = played("norm-bound", malicious=0.2)
    assert all(r.findings["clipped"] == 4 for r in result.rounds)  # half are above the median


def test_root_truth_and_network_are_shown_only_to_who_needs_them() -> None:
    shown = {}
    for text in ("multi-krum:f=1", "fltrust", "oracle+multi-krum", "nnm:f=1+deepsight"):
        scenario = Scenario(defense=text, malicious=0.2, attack="sign-flip", **SMALL)
        setup = prepare(scenario)
        protocol = setup.plugins.protocol
        shared = setup.shared
        broadcast = protocol.broadcast(shared, protocol.init(shared), range(4), Key(0))
        view = setup.view([0, 5, 7, 9], broadcast, 0)
        assert view.ids.tolist() == setup.population.pseudonyms[[0, 5, 7, 9]].tolist()
        shown[text] = (view.root is not None, view.truth is not None, view.network is not None)
        if view.root is not None:
            assert len(view.root) == 1
            again = setup.view([1, 2], broadcast, 0).root
            assert again is not None
            assert same(view.root, again)
        if view.truth is not None:
            assert view.truth.tolist() == setup.population.malicious[[0, 5, 7, 9]].tolist()
        if view.network is not None:
            given = view.copied().network
            assert given == shared.network
            assert given is not shared.network
    nothing = (False, False, False)
    only = [(True, False, False), (False, True, False), (False, False, True)]
    assert list(shown.values()) == [nothing, *only]
    assert ROOT_IMAGES == 100


@pytest.mark.parametrize("rule", ["fltrust", "nna"])
def test_the_servers_own_client_remembers_what_clients_do(rule: str) -> None:
    setup = prepare(Scenario(**SMALL | {"protocol": "worker-momentum:beta=0.75", "defense": rule}))
    protocol = setup.plugins.protocol
    shared = setup.shared
    broadcast = protocol.broadcast(shared, protocol.init(shared), range(4), Key(0))

    def root(step: int, memories: Any) -> Tensor:
        view = setup.view([0, 5], broadcast, step, memories)
        assert view.root is not None
        return view.root.values()[0]

    kept: dict[int, Any] = {}
    first, second, third = (root(step, kept) for step in range(3))
    alone = [root(step, {}) for step in range(3)]  # a quarter of what each round's training gives
    torch.testing.assert_close(first, alone[0])
    torch.testing.assert_close(second, 0.75 * first + alone[1])
    torch.testing.assert_close(third, 0.75 * second + alone[2])
    # What both ends remember of a patched vector goes on from what was sent.
    setup = prepare(Scenario(**SMALL | {"protocol": "byz-ef21:k=0.1", "defense": rule}))
    protocol = setup.plugins.protocol
    shared = setup.shared
    patches: dict[int, Any] = {}
    sent = [root(step, patches) for step in range(3)]
    assert list(patches) == [SERVERS_CLIENT]
    assert torch.equal(patches[SERVERS_CLIENT]["g"], sent[-1])
    assert (sent[0] != 0).sum() < (sent[1] != 0).sum() < (sent[2] != 0).sum()
    setup = prepare(Scenario(**SMALL | {"protocol": "fedavg", "defense": rule}))
    protocol = setup.plugins.protocol
    shared = setup.shared
    nothing: dict[int, Any] = {}
    root(0, nothing)
    assert nothing == {}


def test_an_attackers_questions_leave_no_findings_and_move_nothing_where_undefined() -> None:
    x = torch.arange(9.0)[:, None].repeat(1, 3) ** 2
    context = example_context(FloatVectors(x), MultiKrum(f=2))
    view = attack_view(DynOpt(), context)
    assert view.defense is not None
    view.defense(view.own)
    assert context.view.findings.kept is None
    assert context.view.findings.notes == {}
    x = torch.arange(12.0)[:, None].repeat(1, 3) ** 2
    context = example_context(FloatVectors(x), MultiKrum(f=5))  # 13 rows are needed
    view = attack_view(DynOpt(), context)
    assert view.defense is not None
    assert view.defense(view.own).tolist() == x.mean(dim=0).tolist()


def test_who_may_not_read_the_others_does_not_ask_about_what_they_sent_earlier() -> None:
    rule = FoolsGold()
    x = torch.arange(12.0).reshape(6, 2).sin()
    answers = []
    for earlier in (x[2:].cos(), x[2:].flip(0)):  # what the benign clients once sent
        context = example_context(FloatVectors(x), rule)
        past = dict(zip(range(2, 6), earlier, strict=True))
        asked = dataclasses.replace(context, defense_state=past)
        view = attack_view(DynOpt(knows="colluders"), asked)
        assert view.defense is not None
        answers.append(view.defense(view.own).tolist())
    assert answers[0] == answers[1]


def test_views_of_fewer_rows_have_the_rows_ids_and_truth() -> None:
    view = view_of(column(1, 2, 3), truth=torch.tensor([True, False, True]))
    view = dataclasses.replace(view, ids=torch.tensor([4, 8, 6]))
    view.findings.notes["old"] = 1
    fewer = view.take(torch.tensor([False, True, True]))
    assert (fewer.ids.tolist(), fewer.findings.notes) == ([8, 6], {})
    assert fewer.truth is not None
    assert fewer.truth.tolist() == [False, True]


def test_another_draw_is_another_draw_of_the_rule_and_of_nothing_else() -> None:
    records = [played("bucketing+median", malicious=0.1, defense_draw=draw) for draw in (0, 1)]
    first = records[0].rounds[0]
    other = records[1].rounds[0]
    assert first.clients == other.clients
    assert first.uplink_bits == other.uplink_bits
    assert records[0].result.loss != records[1].result.loss
    written = json.loads(records[0].to_json())["scenario"]
    assert "defense_draw" not in written, "what says nothing is not written"
    assert json.loads(records[1].to_json())["scenario"]["defense_draw"] == 1


def test_draws_are_an_axis_of_rules_that_draw_only() -> None:
    axes = {name: (value,) for name, value in SMALL.items()}
    rules = ("bucketing+median", "median")
    grid = Grid(axes | {"defense": rules, "defense_draw": (0, 1, 2), "malicious": (0.1,)})
    cells, skipped = grid.cells()
    drawn = {(cell.scenario.defense, cell.scenario.defense_draw) for cell in cells}
    assert drawn == {("bucketing+median", draw) for draw in (0, 1, 2)} | {("median", 0)}
    reason = "to median, which draws nothing, another defense_draw changes nothing"
    assert [s.reason for s in skipped] == [reason] * 2


def test_a_rule_that_leaves_out_most_of_the_honest_is_doubted_unless_it_always_does() -> None:
    krum = played("krum:f=1", malicious=0.1)
    assert krum.result.false_positive_rate is not None
    assert krum.result.false_positive_rate > 0.8
    assert not any("left out" in flag for flag in krum.flags), "it keeps one row by definition"
    dnc = played("dnc:f=5", malicious=0.1)
    assert any(flag.startswith("the rule left out 6") for flag in dnc.flags), dnc.flags


@pytest.mark.slow
def test_a_rule_that_fell_back_or_stopped_early_is_doubted() -> None:
    turned = {"attack": "sign-flip", "malicious": 0.97, "clients": 50, "per_round": 3}
    assert "the rule fell back in some rounds: no trust" in played("fltrust", **turned).flags
    honest = played("fltrust", malicious=0.2).flags
    assert not any("fell back" in flag for flag in honest)
    for steps, doubted in ((1, True), (100, False)):
        flags = played(f"geometric-median:iterations={steps}", malicious=0.2).flags
        assert any("stopped early in some rounds: 1 steps did" in flag for flag in flags) == doubted


def test_in_rounds_without_attack_nobody_is_malicious_to_a_rule_s_rates() -> None:
    first, second = played("krum:f=1", attack="sign-flip", malicious=0.4, attack_from=1).rounds
    assert (first.malicious > 0, first.true_positive_rate) == (True, None)
    assert second.true_positive_rate is not None
    clean = played("krum:f=1", malicious=0.4)
    assert clean.result.true_positive_rate is None


def test_the_truth_leaves_no_trace_in_what_is_described() -> None:
    several = {
        resolve(Scenario(defense="oracle+krum", declared=share, **SMALL)).scenario.defense
        for share in (0.1, 0.2)
    }
    assert several == {"oracle+krum:f=none,variant=canonical"}


def test_root_data_are_nobody_s_validation_data_and_no_mechanism_covers_them() -> None:
    setup = prepare(Scenario(defense="fltrust", malicious=0.2, **SMALL))
    rows = torch.cat(list(setup.population.validation))
    root = setup.population.root
    assert len(root) == min(ROOT_IMAGES, (len(root) + len(rows)) // 2) > 0
    assert not bool(torch.isin(root, rows).any())
    with pytest.raises(Incompatible, match="trains on images of clients as they are"):
        resolve(Scenario(defense="fltrust", mechanism="dp-sgd", **SMALL))
    refusal = r"trains on images of clients as they are, which the noise of (skellam|pbm)"
    for protocol in ("skellam", "pbm"):  # whose noise is no mechanism's
        with pytest.raises(Incompatible, match=refusal):
            resolve(Scenario(protocol=protocol, defense="fltrust", **SMALL))
    resolve(Scenario(protocol="skellam:z=0", defense="fltrust", **SMALL))  # which claims nothing


@pytest.mark.parametrize("rule", ["rlr:f=2", "centered-clipping:tau=0.1", "fltrust", "median"])
def test_real_rows_are_handed_on_as_measured_from_the_middle(rule: str) -> None:
    for payload in example_payloads():
        alone = registry.load("defense", rule)
        chained = registry.load("defense", f"bucketing:s=1+{rule}")
        if alone.refuses(type(payload)) is None:
            first = answer(alone, payload).double()
            room = 1e-4 * float(first.abs().max())
            again = answer(chained, payload).double()
            torch.testing.assert_close(again, first, rtol=1e-4, atol=room)


def test_a_gain_is_relative_and_leaves_both_as_they_are() -> None:
    moved = torch.tensor([4.0, 4.0, 9.0]).double()
    honest = torch.tensor([4.0, 4.0, 7.0]).double()
    for _ in range(2):  # |(0, 0, 2)| / |(4, 4, 7)|
        assert _relative(moved, honest) == pytest.approx(2 / 9)
    assert honest.tolist() == [4, 4, 7]
    assert _relative(moved.float(), torch.full((3,), torch.inf)) is None


def test_nothing_is_asked_again_where_the_server_got_the_honest_messages() -> None:
    # The gain of an idle adversary is 0, and a second call of the rule would find nothing else.
    calls: list[int] = []

    class Counted(Mean):
        def aggregate(self, *args: Any) -> Any:
            calls.append(1)
            return super().aggregate(*args)

    honest = FloatVectors(Key(0).normal(4, 6))
    context = example_context(honest, Counted(), rows=(1,))

    def measured(received: FloatVectors, aggregate: Tensor) -> dict[str, Any]:
        arrivals = Arrivals.of(context, received, torch.ones(4, dtype=torch.bool))
        return effect(arrivals, context.defense, None, context.view, aggregate)

    same = FloatVectors(honest.x.clone())
    result = measured(same, honest.x.mean(dim=0))
    assert result == {"gain": 0.0, "gain_mean": 0.0, "headers": {}}
    assert not calls
    moved = FloatVectors(honest.x + torch.tensor([[0.0], [1.0], [0.0], [0.0]]))
    result = measured(moved, moved.x.mean(dim=0))
    # A row of four moves each of six coordinates of the mean by a quarter.
    expected = 6**0.5 / 4 / float(honest.x.mean(dim=0).norm())
    assert result["gain"] == pytest.approx(expected, rel=1e-5)
    assert result["gain_mean"] == pytest.approx(expected, rel=1e-5)
    assert calls == [1]
    result = measured(same, torch.full((6,), torch.nan))
    assert (result["gain"], result["gain_mean"]) == (None, 0.0), "the rule broke by itself"
