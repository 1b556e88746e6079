"""Rehearsals with an adversary's own samples, and the attack that plays what hurts them most."""

import dataclasses
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedbench
from fedbench.adversary.threat_model import attack_view
from fedbench.api import Attack, AttackView, Knowledge, Oracle, ServerView
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.evaluation import deployed
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.payload import FloatVectors, GatedVectors, Payload, Rankings
from fedbench.run import begin, play_round
from fedbench.testing import example_context
from fedbench.testing.contracts import example_rehearsal
from fedbench_attacks.auto import PASSES, QUERIES, Auto, Past, Rehearsed
from fedbench_attacks.crafted import Origin, honest_rows, mean_answer
from fedbench_attacks.metered import Metered
from fedbench_attacks.rankings import cheap_crossings, crossing
from fedbench_attacks.samples import SAMPLES, balanced
from fedbench_attacks.typical import typical
from fedbench_defenses.alignins import AlignIns
from fedbench_defenses.mean import Mean

SMALL = Scenario(clients=20, per_round=6, rounds=3, epochs=1, malicious=0.3, model="micro")


@dataclass(frozen=True)
class Watching(Attack):
    """Behaves, and keeps the views that it is shown."""

    tier: Any = "colluders"
    views: list[AttackView] = dataclasses.field(default_factory=list)

    def needs(self) -> Knowledge:
        return Knowledge(self.tier, defense=True, data=True)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        self.views.append(view)
        return view.own, memory


def attacked(attack: Attack) -> tuple[Setup, Any]:
    """The first round with a malicious client: its setup, and the server after it."""
    setup = prepare(SMALL, "cpu")
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))
    state = begin(setup)
    for step in range(9):
        if bool(setup.population.malicious[play_round(setup, state, step).clients].any()):
            return setup, state.server
    raise AssertionError("no malicious client was sampled")


def watched(tier: str = "colluders") -> tuple[Setup, list[AttackView], Any]:
    """The setup of a round, the views of its attack, and the server after it."""
    attack = Watching(tier)
    setup, server = attacked(attack)
    return setup, attack.views, server


def test_the_server_s_step_is_rehearsed_as_it_is_taken() -> None:
    setup, (view,), server = watched("all")
    assert view.defense is not None
    real = deployed(setup, server, view.step)
    rehearsed = view.deployed(view.defense(view.own))
    assert isinstance(real, dict)
    assert isinstance(rehearsed, dict)
    assert all(torch.allclose(leaf, rehearsed[name], atol=1e-6) for name, leaf in real.items())
    answer = torch.full_like(view.updates[0], 0.01)
    before = view.ahead()
    model = view.deployed(answer)
    assert isinstance(model, dict)
    for name, leaf in before.items():  # FedAvg adds the answer
        assert torch.allclose(model[name], leaf + 0.01)
    twice = view.deployed(answer, answer)
    assert isinstance(twice, dict)
    assert all(torch.allclose(twice[name], leaf + 0.02) for name, leaf in before.items())
    for name, leaf in view.ahead().items():
        assert torch.equal(leaf, before[name]), "a trial changes nothing"


def test_the_gradient_is_that_of_the_loss() -> None:
    _, (view,), _ = watched()
    lab = view.rehearsal
    assert lab is not None
    x, y = lab.x[:20], lab.y[:20]
    tree = {name: leaf.double() for name, leaf in view.ahead().items()}
    g = view.gradient(tree, x.double(), y)
    at = torch.cat([leaf.reshape(-1) for leaf in tree.values()])
    direction = g / g.norm()
    sizes = [leaf.numel() for leaf in tree.values()]

    def loss(row: Tensor) -> float:
        parts = zip(tree.items(), torch.split(row, sizes), strict=True)
        model = {name: part.reshape(leaf.shape) for (name, leaf), part in parts}
        return float(view.loss(model, x.double(), y).mean())

    slope = (loss(at + 1e-4 * direction) - loss(at - 1e-4 * direction)) / 2e-4
    assert slope == pytest.approx(float(g.norm()), rel=1e-4)
    assert (lab.evaluated, lab.differentiated) == (40, 20)


def test_a_mean_that_follows_any_message_is_left_without_finite_scores() -> None:
    setup, server = attacked(Auto())
    model = deployed(setup, server, 0)
    assert isinstance(model, dict)
    scores = setup.shared.network.logits(model, setup.population.data.floats(torch.arange(4)))
    assert not bool(torch.isfinite(scores).any())


def test_the_loss_of_a_rehearsal_is_the_cross_entropy_without_a_cap() -> None:
    setup, (view,), _ = watched()
    assert view.rehearsal is not None
    x = view.rehearsal.x[:20]
    y = view.rehearsal.y[:20]
    tree = {name: 30 * leaf.double() for name, leaf in view.ahead().items()}
    scores = setup.shared.network.logits(tree, x.double())
    expected = torch.nn.functional.cross_entropy(scores, y, reduction="none")
    assert float(expected.max()) > 100
    assert torch.allclose(view.loss(tree, x.double(), y), expected, rtol=1e-9)
    # An ensemble answers with the mean probability: of a model and one that gives each class 1/10.
    flat = {name: torch.zeros_like(leaf) for name, leaf in tree.items()}
    mean = (scores.softmax(dim=1) + 0.1) / 2
    both = view.loss([tree, flat], x.double(), y)
    assert torch.allclose(both, -mean[torch.arange(20), y].log(), rtol=1e-9)
    broken = {name: leaf * torch.inf for name, leaf in tree.items()}
    assert view.loss(broken, x.double(), y).tolist() == [1e60] * 20


def test_an_adversary_rehearses_with_the_samples_of_its_own_clients_only() -> None:
    setup, (view,), _ = watched()
    people = setup.population
    owned = people.malicious.ids()
    assert view.rehearsal is not None
    assert view.rehearsal.classes == people.data.classes
    rows = torch.cat([people.train[i] for i in owned])
    assert torch.equal(view.rehearsal.x, people.data.floats(rows))
    assert torch.equal(view.rehearsal.y, people.data.y[rows])
    setup, views, _ = watched("own")
    sizes = {len(people.train[i]) for i in owned}
    for view in views:  # one client is asked at a time
        assert view.rehearsal is not None
        assert len(view.rehearsal.x) in sizes


def test_an_attack_that_did_not_declare_it_has_nothing_to_rehearse_with() -> None:
    view = attack_view(Attack(), example_context(FloatVectors(torch.ones(4, 3)), Mean()))
    assert view.rehearsal is None
    with pytest.raises(ConfigError, match=r"Knowledge.data must be declared by an attack"):
        view.ahead()


def test_every_adversary_has_data_so_no_cap_forbids_them() -> None:
    assert Knowledge.parse("own").covers(Knowledge("own", data=True))
    assert str(Knowledge("all", defense=True, data=True)) == "all + defense + data"


def test_edges_are_carried_over_the_cut_where_that_raises_the_loss() -> None:
    # Kept are 3, 4, 5. In reach of the cut at 12 (one colluder, six positions): 1 to 4. Edge 2 has
    # the steeper slope of the two that could enter, edge 3 alone wants to leave.
    s = torch.tensor([0.0, 10.0, 11.0, 12.0, 13.0, 30.0])
    g = torch.tensor([9.0, 1.0, 2.0, -1.0, 3.0, -9.0])
    positions = crossing(s, g, 3, 1, 1.0)
    assert positions.tolist() == [2, 1, 5, 0, 4, 3]
    after = (s + positions).topk(3).indices.sort().values
    assert after.tolist() == [2, 4, 5]
    assert crossing(s, -g, 3, 1, 1.0).topk(3).indices.sort().values.tolist() == [3, 4, 5]
    # That edge 3 leaves would lower the loss: one exchange, edge 0 for edge 2.
    s = torch.tensor([10.0, 11.0, 12.0, 13.0])
    g = torch.tensor([0.5, 0.25, -1.0, 0.5])
    assert crossing(s, g, 2, 1, 1.0).tolist() == [3.0, 1.0, 0.0, 2.0]


def test_edges_that_do_most_for_their_way_cross_first_and_none_beyond_the_room() -> None:
    # The cut is at 2.5, ways are 1.2 times as long as to it: 3, 1.8, 0.6 and back. Edges 1 and 3
    # would lower the loss. Gradients per squared way are 8 / 9, 1 / 0.36, 2 / 3.24 and 1 / 9.
    own = Rankings(torch.arange(6, dtype=torch.int32).expand(2, -1), (6,))
    s = torch.arange(6.0)
    g = torch.tensor([8.0, -1.0, 1.0, 1.0, -2.0, -1.0])
    model = {"layer": torch.tensor([0.0, 0.0, 0.0, -1.0, 1.0, -1.0])}
    rows = [cheap_crossings(s, s, g, model, own, 2, room).tolist() for room in (9.3, 9.4, 12.7)]
    expected = [[0, 1, 2.6, 3, 4, 5], [3, 1, 2.6, 3, 4, 5], [3, 1, 2.6, 3, 2.2, 5]]
    assert rows == [pytest.approx(row) for row in expected]
    # Where colluders send half of the rows ways are twice as long: edges 0 and 5 are out of reach.
    row = cheap_crossings(s, s, g, model, own, 4, 99.0).tolist()
    assert row == pytest.approx([0, 1, 3.2, 3, 0.4, 5])
    # The way of an edge is that of the answer, wherever the mean has it.
    row = cheap_crossings(s.flip(0), s, g, model, own, 2, 9.4).tolist()
    assert row == pytest.approx([5, 4, 3.6, 2, 1, 0])


@pytest.mark.parametrize(
    ("defense", "tried"),
    [("multi-krum:f=3", True), ("centered-clipping", True), ("mean", False), ("median", False)],
)
def test_cheap_crossings_are_tried_where_a_rule_looks_at_whole_rows(
    defense: str, tried: bool
) -> None:
    _, rehearsed = rehearsed_round(protocol="fsl", defense=defense)
    assert any(name.startswith("cheap crossing") for name in rehearsed.candidates()) == tried


def test_rankings_near_the_mean_go_on_where_a_rule_leaves_out_what_is_far() -> None:
    # They add 2.0 in the end; what else is tried adds 0.55. Of three rooms the best one climbs.
    _, rehearsed = rehearsed_round(protocol="fsl", defense="multi-krum:f=3", seed=1)
    best = rehearsed.best()
    tried = {t.name: t.loss for t in rehearsed.tried}
    strongest = max((f"cheap crossing {room}" for room in ("1", "0.5", "2")), key=tried.__getitem__)
    assert best.name == strongest.replace("crossing", "crossing climbed")
    assert best.loss - rehearsed.neutral.loss > 1.0
    assert len(rehearsed.tried) <= QUERIES


def test_crossings_go_on_along_the_sum_of_the_gradients_that_they_lead_to() -> None:
    attack = Watching("all")
    setup = prepare(SMALL.model_copy(update={"protocol": "fsl"}), "cpu")
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))
    state = begin(setup)
    step = 0
    while not attack.views:
        play_round(setup, state, step)
        step += 1
    (view,) = attack.views
    honest = honest_rows(view)
    assert honest is not None
    rehearsed = Rehearsed(Auto(), view, honest, Past())
    rehearsed.best()
    on = [tried for tried in rehearsed.tried if tried.name == "crossing 1 climbed"]
    assert on
    pushes = [tried for tried in rehearsed.tried if tried.row is not None and tried not in on]
    best = max(pushes, key=lambda tried: tried.loss)
    slope = view.gradient(view.ahead(best.answer), rehearsed.x, rehearsed.y)
    total = rehearsed.gradient / rehearsed.gradient.norm() + slope / slope.norm()
    rehearsed.queries = 1
    row = rehearsed.cross("crossing", total, 1.0).row
    assert row is not None
    assert on[0].row is not None
    assert torch.equal(row, on[0].row)


def test_a_typical_row_has_missing_agreements_in_small_places_and_the_median_cosine() -> None:
    # One of three rows has the sign of the gradient in each of the first three coordinates, none
    # in the last one, where the majority stays negative. In 2 of the 4 places rows agree with the
    # majority, the last two; this row does in three coordinates, so the second place is one too.
    honest = torch.tensor([[4.0, -3, -2, -1], [-4.0, 3, -2, -1], [-4.0, -3, 2, -1]])
    gradient = torch.tensor([9.0, 8.0, 7.0, 6.0])
    assert typical(gradient, honest, 2).tolist() == [3, 2, 1, 4]
    # Means of sorted magnitudes are 13/3 and 2, of cosines with the model 0.8, 0.6 and 0 the
    # median is 0.6: beside 13/3 across it stand 3/4 of that along it.
    honest = torch.tensor([[3.0, 4.0], [4.0, 3.0], [5.0, 0.0]])
    assert typical(torch.ones(2), honest, 1).tolist() == pytest.approx([13 / 3, 2])
    turned = typical(torch.ones(2), honest, 1, torch.tensor([0.0, 2.0]))
    assert turned.tolist() == pytest.approx([13 / 3, 13 / 4])


def test_it_rehearses_with_as_many_samples_of_each_class() -> None:
    labels = torch.tensor([0, 0, 0, 0, 0, 7, 7, 0])
    drawn = balanced(labels, Key(0))
    assert labels[drawn].eq(7).sum() == SAMPLES / 2
    assert set(drawn.tolist()) == set(range(8)), "nothing is left out"


def test_without_the_rule_it_rehearses_with_the_mean_and_its_own_rows_stand_in() -> None:
    honest = torch.tensor([[1.0], [3.0]])
    # Four rows: 9, and for the three others 1, 3, 1.
    assert float(mean_answer(honest, FloatVectors(torch.tensor([[9.0]])), 4)) == 3.5


def gain(r: Round) -> float:
    """Loss that the messages of a round have added."""
    return float(r.notes["loss"]) - float(r.notes["honest loss"])


@pytest.mark.slow
@pytest.mark.edges("fedavg")
@pytest.mark.parametrize("protocol", ["fedavg", "fsl", "fedpm", "signsgd", "drive"])
def test_what_is_played_is_the_worst_of_what_was_tried(protocol: str) -> None:
    scenario = SMALL.model_copy(update={"protocol": protocol, "attack": "auto:budget=0.5"})
    record = fedbench.play(scenario, device="cpu")
    again = fedbench.play(scenario, device="cpu")
    assert [r.notes for r in record.rounds] == [r.notes for r in again.rounds]
    # A model that is broken sends nothing finite to start from.
    rounds = [r for r in record.rounds if r.malicious and "loss" in r.notes]
    assert any(gain(r) > 0 for r in rounds)
    assert all(r.notes["loss"] == max(loss or 0 for _, loss in r.trace) for r in rounds)
    assert all(0 < r.queries <= QUERIES / 2 for r in rounds)
    for r in rounds:  # a budget that ends while the last quarter still gains a twentieth
        gains = [float(loss or 0) - float(r.notes["honest loss"]) for _, loss in r.trace]
        early = gains[: -(len(gains) // 4) or None]
        assert r.notes.get("ended") in (None, "budget")
        if r.notes.get("ended"):
            assert max(gains) > 1.05 * max(early)


@pytest.mark.edges("fedavg-False", "signsgd-True")
@pytest.mark.parametrize(
    ("protocol", "climbs"), [("fedavg", False), ("drive", False), ("signsgd", True), ("fsl", True)]
)
def test_it_climbs_only_where_the_alphabet_sets_a_limit(protocol: str, climbs: bool) -> None:
    fields = {"protocol": protocol, "attack": "auto", "malicious": 0.5, "defense": "median"}
    (r,) = fedbench.play(SMALL.model_copy(update=fields | {"rounds": 1}), device="cpu").rounds
    gradients = float(r.notes["differentiated"]) / SAMPLES
    # One gradient of the loss and one towards wrong labels; the rest are steps of a climb.
    assert (gradients > 2) == climbs
    assert gradients <= PASSES


@pytest.mark.slow
@pytest.mark.parametrize("defense", ["foolsgold", "dnc:f=3"])
def test_clients_share_a_push_where_a_rule_looks_for_rows_that_are_alike(defense: str) -> None:
    # Equal rows have weight 0 behind FoolsGold, and lie where DnC looks for outliers: the most that
    # they add is 0.02. Shares of a push are not alike, and one that is far away hides the others.
    fields = {"attack": "auto", "defense": defense, "clients": 12, "per_round": 12, "rounds": 1}
    (r,) = fedbench.play(SMALL.model_copy(update=fields | {"malicious": 0.25}), device="cpu").rounds
    assert r.malicious == 3
    assert str(r.notes["played"]).startswith("split gradient")
    assert gain(r) > 100


def test_a_row_along_the_gradient_passes_a_filter_that_finds_it_typical() -> None:
    key = Key(7)
    common = key.fold("common").normal(400)
    honest = common + 2 * key.fold("own").normal(10, 400)
    model = key.fold("model").normal(400)
    gradient = key.fold("gradient").normal(400) - 0.2 * common
    mean = honest.mean(dim=0)
    push = mean + 1.5 * gradient * mean.norm() / gradient.norm()
    view = ServerView(torch.ones(12).double(), FloatVectors(model[None]), 0, key)

    def kept(row: Tensor) -> list[bool]:
        AlignIns().aggregate(FloatVectors(torch.cat([honest, row.expand(2, -1)])), None, view)
        assert view.findings.kept is not None
        return view.findings.kept[10:].tolist()

    row = typical(gradient, honest, 2, model)
    assert kept(row) == [True, True]
    assert kept(push) == [False, False]
    cosine = torch.nn.functional.cosine_similarity
    assert float(cosine(row, gradient, dim=0)) > 0.6
    assert float(cosine(row, model, dim=0)) == pytest.approx(
        float(cosine(honest, model[None]).median()), abs=1e-4
    )


@pytest.mark.parametrize(
    ("defense", "tried"),
    [("alignins", True), ("multi-krum:f=0", True), ("multi-krum:f=2", False), ("mean", False)],
)
def test_rows_made_for_filters_go_only_to_filters_that_tolerate_nobody(
    defense: str, tried: bool
) -> None:
    view, rehearsed = rehearsed_round(defense=defense)
    assert len(view.own) > 1
    assert [rehearsed.split is not None, rehearsed.plain is not None] == [tried, tried]


def rehearsed_round(**fields: Any) -> tuple[AttackView, Rehearsed]:
    """The view of a round of twelve clients, and what the attack may try."""
    attack = Watching("all")
    fields = {"defense": "trimmed-mean:f=2", "per_round": 12, "clients": 12} | fields
    setup = prepare(SMALL.model_copy(update=fields), "cpu")
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))
    play_round(setup, begin(setup), 0)
    (view,) = attack.views
    honest = honest_rows(view)
    assert honest is not None
    return view, Rehearsed(Auto(), view, honest, Past())


@pytest.mark.parametrize("protocol", ["decomfl:steps=2,p=3", "fedkseed:k=6,steps=2"])
def test_the_gradient_of_scalars_is_along_the_directions_that_the_server_is_about_to_go(
    protocol: str,
) -> None:
    _, rehearsed = rehearsed_round(protocol=protocol, model="logistic")
    answer = rehearsed.neutral.answer
    push = 0.1 * rehearsed.gradient / torch.linalg.vector_norm(rehearsed.gradient)
    rise = rehearsed.loss(answer + push) - rehearsed.loss(answer - push)
    steepness = float(torch.linalg.vector_norm(rehearsed.gradient))
    assert rise / 0.2 == pytest.approx(steepness, rel=0.1)


def test_where_clients_train_thresholds_too_no_gradient_is_pushed_behind_gates() -> None:
    view, rehearsed = rehearsed_round(protocol="fedsparse")
    assert isinstance(view.own, GatedVectors)
    assert rehearsed.origins[1].gates == 0
    assert "wire std" in rehearsed.candidates()
    assert "wire gradient" not in rehearsed.candidates()


def test_of_messages_with_gates_all_are_opened_and_gradients_pushed_behind_them() -> None:
    view, rehearsed = rehearsed_round(protocol="feddrop")
    assert isinstance(view.own, GatedVectors)
    assert not bool(view.own.gates.all())
    honest = honest_rows(view)
    assert honest is not None
    assert "wire gradient" in rehearsed.candidates()
    wired = rehearsed.origins[1]
    gates = view.own.gates.shape[1]
    gradient = rehearsed.gradient
    directions = wired.opened(
        {"gradient": gradient, "gradient sign": gradient.sign(), "past gradients": None}
    )
    assert list(directions) == ["gradient", "gradient sign"]
    for push in [*directions.values(), *wired.own().values()]:
        sent = wired.send(wired.base + 1e3 * push)
        assert isinstance(sent, GatedVectors)
        assert bool(sent.gates.all())
        behind = torch.cat([sent.x, sent.rest], dim=1)[0]
        torch.testing.assert_close(behind, (wired.base + 1e3 * push)[gates:])
    torch.testing.assert_close(wired.base[gates:], honest.mean(dim=0)[gates:])
    torch.testing.assert_close(directions["gradient"][gates:], gradient)


def test_no_direction_of_a_single_message_moves_its_gates() -> None:
    origin = Origin.of("", torch.tensor([[0.0, 1.0, 2.0, -3.0]]), unsent, gates=2)
    assert {name: x.tolist() for name, x in origin.own().items()} == {
        "minus mean": [0, 0, -2, 3],
        "std": [0, 0, 1, -1],
        "minus std": [0, 0, -1, 1],
    }


def unsent(rows: Tensor) -> Payload:
    """Fail, since a test of directions sends no rows."""
    raise AssertionError(f"rows of shape {tuple(rows.shape)} were sent")


@pytest.mark.slow
def test_what_is_typical_is_tried_behind_a_rule_that_looks_for_it() -> None:
    fields = {"attack": "auto", "clients": 12, "per_round": 12, "malicious": 0.25, "rounds": 4}
    scenario = SMALL.model_copy(update={**fields, "protocol": "fedavg:lr=0.3"})
    played = {}
    for rule in ("alignins", "median"):
        rounds = fedbench.play(scenario.model_copy(update={"defense": rule}), device="cpu").rounds
        played[rule] = [str(r.notes.get("played")).startswith("typical") for r in rounds]
    assert any(played["alignins"])
    assert not any(played["median"])


@pytest.mark.edges("auto:knows=own", "auto:knows=colluders")
@pytest.mark.parametrize("attack", ["auto:knows=own", "auto:knows=colluders", "auto:asks=false"])
def test_each_tier_has_its_version(attack: str) -> None:
    record = fedbench.play(SMALL.model_copy(update={"attack": attack}), device="cpu")
    rounds = [
        r for r in record.rounds if "played" in r.notes
    ]  # not after a model that is not finite
    assert rounds
    assert all((r.queries == 0) == (attack == "auto:asks=false") for r in rounds)
    assert any(gain(r) > 0 for r in rounds)


QUICK = ("fedavg", "fsl", "fedpm", "fedmrn", "signsgd", "topk", "qsgd", "decomfl")


def one_of_each_step() -> list[str]:
    """Return a protocol of every alphabet and server's step, which rehearsals take ahead."""
    chosen: dict[object, str] = {}
    for name in registry.names("protocol"):
        plugin = registry.plugin("protocol", name)
        chosen.setdefault((plugin.sends, plugin.server_step), name)
    return list(chosen.values())


@pytest.mark.parametrize(
    ("protocol", "budget"),
    [
        *((name, 0.3) for name in QUICK),
        *(
            pytest.param(name, 0.3, marks=pytest.mark.slow)
            for name in sorted({*registry.names("protocol")} - {*QUICK})
        ),
        *(pytest.param(name, 7, marks=pytest.mark.slow) for name in one_of_each_step()),
    ],
)
def test_every_protocol_can_be_rehearsed(protocol: str, budget: float) -> None:
    tiny = {"clients": 8, "per_round": 4, "rounds": 1, "malicious": 0.5, "protocol": protocol}
    scenario = SMALL.model_copy(update=tiny | {"attack": f"auto:budget={budget}"})
    (r,) = fedbench.play(scenario, device="cpu").rounds
    assert gain(r) > 0
    assert r.notes["differentiated"]


class Linear(nn.Module):
    """Network of a user, without parameters but those of its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x.flatten(1))
        return scores


@pytest.mark.parametrize("protocol", ["byz-dasha-page", "feddrop", "fedsparse", "fedsparsify"])
def test_a_module_is_rehearsed_where_clients_are_sent_more_than_its_weights(protocol: str) -> None:
    tiny = {"clients": 8, "per_round": 4, "rounds": 1, "malicious": 0.5, "protocol": protocol}
    fields = SMALL.model_dump() | tiny | {"attack": "auto:budget=0.3"}
    (r,) = fedbench.play(Scenario(**fields | {"model": Linear}), device="cpu").rounds
    assert r.notes["differentiated"]


@pytest.mark.slow
def test_where_a_codec_clips_updates_the_message_s_own_numbers_are_pushed_too() -> None:
    # A client of Skellam clips its update to 0.5; its residues may be anything below the modulus.
    scenario = SMALL.model_copy(update={"protocol": "skellam:clients=6", "attack": "auto"})
    rounds = fedbench.play(scenario, device="cpu").rounds
    played = [str(r.notes["played"]) for r in rounds if r.malicious]
    assert any(name.startswith("wire") for name in played)


def test_an_installed_attack_that_searches_is_charged_for_its_queries() -> None:
    spent: list[int] = []
    oracle = Metered(Oracle(Mean(), lambda sent, draw: sent.values()[0]), spent.append)
    assert float(oracle(FloatVectors(torch.tensor([[3.0]])))) == 3.0
    oracle.queries += 2  # a closed form counts without a call
    assert spent == [0, 1, 2]
    assert oracle.queries == 3


def test_a_search_that_is_too_long_takes_no_query_from_what_follows_the_candidates() -> None:
    _, rehearsed = rehearsed_round(defense="multi-krum:f=2")
    (honest,) = rehearsed.tried
    rehearsed.queries = 60
    rehearsed.kept = 20
    rehearsed.copy("opt-ipm")  # which asks about a hundred times behind this rule
    assert rehearsed.tried == [honest]
    assert rehearsed.queries == 20
    rehearsed.queries = 200
    rehearsed.copy("opt-ipm")
    assert [tried.name for tried in rehearsed.tried[1:]] == ["opt-ipm"]
    assert 20 < rehearsed.queries < 200 - 60
    assert "failed" not in rehearsed.view.notes


def test_the_best_push_is_refined_after_a_search_that_is_too_long() -> None:
    view, _ = rehearsed_round(defense="multi-krum:f=2")
    honest = honest_rows(view)
    assert honest is not None
    rehearsed = Rehearsed(Auto(budget=4), view, honest, Past())
    rehearsed.best()
    assert rehearsed.kept == 79 // 4  # the honest round has cost one of 80
    refined = [tried.name for tried in rehearsed.tried if tried.name.endswith("refined")]
    assert len(refined) > 3


@pytest.mark.parametrize("budget", [0, 101])
def test_a_budget_is_a_hundred_at_most(budget: int) -> None:
    with pytest.raises(ConfigError, match=r"Auto.budget must be in \(0, 100\], got " + str(budget)):
        Auto(budget=budget)


@pytest.mark.parametrize(
    ("held", "classes", "wrong"),
    [([0], 2, {1}), ([0, 1], 2, {0, 1}), ([0, 1], 3, {1, 2}), ([0, 2], 3, {0, 1})],
)
def test_wrong_labels_are_those_of_the_task_and_not_only_those_that_its_clients_hold(
    held: list[int], classes: int, wrong: set[int]
) -> None:
    payload = FloatVectors(Key(3).normal(9, 6))
    lab = example_rehearsal(payload)
    labels: list[set[int]] = []

    def gradients(tree: Tree, x: Tensor, y: Tensor, draw: int) -> Tensor:
        labels.append(set(y.tolist()))
        return lab.gradients(tree, x, y, draw)

    y = torch.tensor(held).repeat(len(lab.y))[: len(lab.y)]
    lonely = dataclasses.replace(lab, y=y, classes=classes, gradients=gradients)
    context = example_context(payload, Mean(), range(2))
    context = dataclasses.replace(context, rehearse=lambda *_: lonely)
    attack = Auto()
    attack.craft(attack_view(attack, context), None)
    assert labels[:2] == [set(held), wrong]


def differentiated(defense: str) -> float:
    """About how often the samples were differentiated in a round at a budget of 10."""
    attack = {"attack": "auto:budget=10", "rounds": 1, "malicious": 0.5, "defense": defense}
    (r,) = fedbench.play(SMALL.model_copy(update=attack), device="cpu").rounds
    samples = (float(r.notes["evaluated"]) - 3 * 100) / r.queries
    return float(r.notes["differentiated"]) / samples


def test_five_rounds_ahead_are_compared_if_the_budget_reaches() -> None:
    # Three finalists, four rounds, three steps, beside at most 24.
    assert 36 < differentiated("geometric-median") < 75


def test_honest_rounds_ahead_send_how_far_running_statistics_moved() -> None:
    # Beside masks an idle client sends no move of the statistics, and probabilities of its scores.
    attack = Watching("all")
    fields = {"protocol": "fedpm", "model": "cnn4", "malicious": 0.5, "per_round": 4, "clients": 8}
    setup = prepare(SMALL.model_copy(update=fields), "cpu")
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))
    play_round(setup, begin(setup), 0)
    (view,) = attack.views
    honest = honest_rows(view)
    assert honest is not None
    rehearsed = Rehearsed(Auto(), view, honest, Past())
    answer = rehearsed.honest_answer([rehearsed.neutral.answer])
    moved = answer[setup.shared.weights.d :]
    received = torch.cat([view.ahead()[name].flatten() for name in setup.shared.network.statistics])
    assert float(received.norm()) > 10  # variances start at 1
    assert float(moved.norm()) < 0.01 * float(received.norm())


def test_an_honest_round_ahead_goes_down_the_slope_where_it_has_come_to() -> None:
    attack = Watching("all")
    fields = {"malicious": 0.5, "per_round": 4, "clients": 8}
    setup = prepare(SMALL.model_copy(update=fields), "cpu")
    setup = dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, attack=attack))
    play_round(setup, begin(setup), 0)
    (view,) = attack.views
    honest = honest_rows(view)
    assert honest is not None
    rehearsed = Rehearsed(Auto(), view, honest, Past())
    tree = start = view.ahead(rehearsed.neutral.answer)
    length = float(view.updates.norm(dim=1).mean()) / 3
    for _ in range(3):
        g = view.gradient(tree, rehearsed.x, rehearsed.y)
        moved = {}
        for name, leaf in tree.items():
            own = g[: leaf.numel()].reshape(leaf.shape)
            moved[name] = leaf - length / float(g.norm()) * own
            g = torch.cat([g[leaf.numel() :], g[: leaf.numel()]])  # the next leaf's part first
        tree = moved
    by_hand = torch.cat([(tree[name] - start[name]).flatten() for name in tree])
    answer = rehearsed.honest_answer([rehearsed.neutral.answer])
    torch.testing.assert_close(answer, by_hand, rtol=1e-4, atol=1e-5)


def test_what_does_far_less_than_the_best_is_not_looked_at_ahead() -> None:
    # A mean that overflows is far worse than all else: one finalist, twelve steps.
    assert differentiated("mean") < 36


def test_the_guide_s_example_climbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
    source = guide.partition("### An attack that adapts")[2].partition("```python\n")[2]
    source = source.partition("```")[0]
    assert len(source.splitlines()) <= 40
    (tmp_path / "guide_climb.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    attack = importlib.import_module("guide_climb").Climb()
    setup, server = attacked(attack)
    _, behaved = attacked(Watching("all"))
    assert not torch.equal(server, behaved)
    assert isinstance(deployed(setup, server, 0), dict)


BREAKING = """
from collections.abc import Callable
from dataclasses import dataclass

from fedbench.api import Attack


@dataclass(frozen=True)
class Breaking(Attack):
    def craft(self, view, memory):
        raise ValueError("not today")
"""


@pytest.mark.slow
def test_an_error_of_another_installed_attack_is_noted_and_costs_one_candidate(
    install: Callable[[str, dict[str, str]], object],
) -> None:
    install(BREAKING, {"breaking": "Breaking"})
    record = fedbench.play(SMALL.model_copy(update={"attack": "auto:budget=10"}), device="cpu")
    failed = {r.notes.get("failed") for r in record.rounds if r.malicious}
    assert "breaking: not today" in failed


def test_the_id_of_a_run_covers_what_auto_may_copy_from_other_packages(
    install: Callable[[str, dict[str, str]], object],
) -> None:
    scenario = SMALL.model_copy(update={"attack": "auto"})
    before = resolve(scenario).id()
    fixed = resolve(SMALL).id()
    install(BREAKING, {"breaking": "Breaking"})
    assert resolve(scenario).id() != before
    assert resolve(SMALL).id() == fixed, "a fixed attack copies nothing"
