"""Protocols whose rule acts on what both ends remember of a client: numbers by hand, and runs."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from exchanges import flat
from torch import Tensor

import fedbench
from fedbench.api import Attack, AttackView, Batches, Knowledge, Protocol, ServerView
from fedbench.core.errors import ConfigError, IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import CoordinatedPatches, Patch, Payload, SeededPatches, SparsePatches
from fedbench.payload.sparse import chosen
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.protocols.estimates import ByzDashaPage, ByzEF21
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.momentum import RoSDHB, WorkerMomentum
from fedbench.run import begin, play_round
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median

FOUR = flat(4)
NAMES = ("rosdhb", "byz-ef21", "byz-dasha-page")


def mask_seed(wanted: list[int], d: int) -> int:
    """The first seed that chooses these coordinates."""
    return next(seed for seed in range(1000) if chosen(seed, d, len(wanted)).tolist() == wanted)


def test_rosdhb_moves_momentum_at_the_coordinates_that_the_server_asks_for() -> None:
    # d / K = 2 and beta = 1/2, so m grows by u where it is asked for and halves everywhere.
    protocol = RoSDHB(k=0.5, beta=0.5)
    memory = protocol.memory(FOUR)
    held = []
    for u, mask in (([8.0, -4.0, 2.0, 6.0], [0, 1]), ([2.0, 6.0, -10.0, 4.0], [1, 2])):
        seen = [memory | {"seed": torch.tensor(float(mask_seed(mask, 4)))}]
        sent, (memory,) = protocol.message(FOUR, torch.tensor([u]), [Key(0)], seen)
        held.append(sent.values()[0].tolist())
        memory = memory | {"m": sent.values()[0]}
        assert sent.encode()[0].bits == 2 * 32
    assert held == [[8.0, -4.0, 0.0, 0.0], [4.0, 4.0, -10.0, 0.0]]
    assert protocol.server_step(FOUR, torch.ones(4), sent.values()[0], 1, Key(0))[2] == -9.0


def test_the_seed_of_the_mask_travels_with_the_model_and_is_another_in_every_round() -> None:
    protocol = RoSDHB()
    state = torch.arange(4.0)
    down = [protocol.broadcast(FOUR, state, [0, 1], Key(step)) for step in range(20)]
    assert {sent.encode()[0].bits for sent in down} == {5 * 32}
    trees = [protocol.receive(FOUR, sent) for sent in down]
    assert FOUR.layout.flatten(trees[0]).tolist() == state.tolist()
    seeds = {float(tree["mask.seed"]) for tree in trees}
    assert len(seeds) == 20
    assert all(seed == int(seed) and 0 <= seed < 2**24 for seed in seeds)
    assert len({tuple(chosen(int(seed), 100, 10).tolist()) for seed in seeds}) == 20


def test_ef21_sends_the_coordinate_of_which_the_server_knows_least() -> None:
    # Error feedback would send 6 at the first coordinate in the second round.
    protocol = ByzEF21(k=0.25)
    memory = protocol.memory(FOUR)
    held = []
    for u in ([3.0, -5.0, 1.0, 0.0], [3.0, -4.0, 2.0, 0.0], [3.0, -4.0, 2.0, 0.0]):
        sent, _ = protocol.message(FOUR, torch.tensor([u]), [Key(0)], [memory])
        held.append(sent.values()[0].tolist())
        memory = {"g": sent.values()[0]}
        assert sent.encode()[0].bits == 32 + 4
    assert held == [[0.0, -5.0, 0.0, 0.0], [3.0, -5.0, 0.0, 0.0], [3.0, -5.0, 2.0, 0.0]]


def curved(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
    """Gradient of ``c / 2 |w|^2``, with the mean image of the batch as ``c``."""
    return {name: x.mean() * leaf for name, leaf in tree.items()}


BATCHES = Batches(  # c = 1 of two samples, c = 4 of one, beside padding: 2 on average
    [
        (torch.ones(2, 1, 1, 2), torch.zeros(2, dtype=torch.int64)),
        (torch.full((2, 1, 1, 2), 4.0), torch.tensor([0, -1])),
    ]
)


def followed(coin: float, model: list[float], memory: Tree, a: float = 0.25) -> tuple[Tensor, Tree]:
    protocol = ByzDashaPage(lr=0.5, weight_decay=0.0, k=0.5, a=a)
    two = flat(2)
    tree = two.layout.unflatten(torch.tensor(model)) | {"page.coin": torch.tensor(coin)}
    target, after = protocol.local_update(tree, BATCHES, curved, Key(0), memory)
    return two.layout.flatten(target), after


def test_dasha_page_follows_the_gradient_and_takes_back_a_part_of_the_error() -> None:
    # lr = 1/2. A client without h takes all samples: h = -1/2 * 2 * (4, 8). Batches that count the
    # same would give 2.5 instead of 2.
    protocol = ByzDashaPage(lr=0.5, k=0.5, a=0.25)
    two = flat(2)
    target, memory = followed(0.0, [4.0, 8.0], protocol.memory(two))
    assert target.tolist() == memory["h"].tolist() == [-4.0, -8.0]
    # The server has (0, -4). The first batch, c = 1, changes h by -1/2 ((2, 0) - (4, 8)).
    memory = memory | {"g": torch.tensor([0.0, -4.0])}
    target, after = followed(0.0, [2.0, 0.0], memory)
    assert after["h"].tolist() == [-3.0, -4.0]
    assert target.tolist() == [0.0, -1.0]  # h' - 3/4 (h - g)
    # Q(h' - h - a (g - h)) = Q(0, 3) with d / K = 2: 6 is added to -4, or nothing to 0.
    reached = {}
    for number in range(20):
        sent, _ = protocol.message(two, target[None], [Key(number)], [after])
        assert isinstance(sent, Patch)
        reached[int(sent.indices()[0, 0])] = sent.values()[0].tolist()  # type: ignore[attr-defined]
        assert sent.encode()[0].bits == 64 + 32
    assert reached == {0: [0.0, -4.0], 1: [0.0, 2.0]}
    # With the coin h is -1/2 * 2 * (2, 0), and the error before counts as much.
    target, after = followed(1.0, [2.0, 0.0], memory)
    assert after["h"].tolist() == [-2.0, 0.0]
    assert target.tolist() == [1.0, 3.0]


def test_a_client_of_dasha_page_starts_afresh_after_a_gradient_that_was_not_finite() -> None:
    lost = {"g": torch.tensor([1.0, 2.0]), "h": torch.tensor([torch.nan, 0.0])}
    lost |= {"model": torch.tensor([4.0, 8.0]), "started": torch.ones(())}
    target, after = followed(0.0, [2.0, 0.0], lost)
    assert target.tolist() == after["h"].tolist() == [-2.0, 0.0]  # all samples; h was g


def test_the_default_share_of_the_error_is_that_of_random_coordinates() -> None:
    assert ByzDashaPage(k=0.1).momentum_of(100) == pytest.approx(1 / 19)
    assert ByzDashaPage(k=1.0).momentum_of(100) == 1


def test_the_coin_travels_and_falls_with_its_chance() -> None:
    protocol = ByzDashaPage(p=0.25)
    coins = [protocol.broadcast(FOUR, torch.ones(4), [0], Key(i)) for i in range(400)]
    assert coins[0].encode()[0].bits == 5 * 32
    mean = float(torch.stack([sent.values()[0, -1] for sent in coins]).mean())
    assert abs(mean - 0.25) < 5 * (0.25 * 0.75 / 400) ** 0.5


def test_a_round_of_dasha_page_is_one_step() -> None:
    with pytest.raises(ConfigError, match=r"ByzDashaPage\.momentum must be 0"):
        ByzDashaPage(momentum=0.9)
    why = DPSGD().misfit(ByzDashaPage(), Mean(), FOUR)
    assert why == "needs a protocol that takes one gradient a step, such as fedavg"
    assert DPSGD().misfit(ByzEF21(), Mean(), FOUR) is None


@dataclasses.dataclass(frozen=True)
class Crafting(Attack):
    """Sends what a function makes of its view."""

    function: Callable[[AttackView], Any]

    def needs(self) -> Knowledge:
        return Knowledge("all", defense=True)

    def craft(self, view: AttackView, memory: Any) -> tuple[Any, Any]:
        return self.function(view), memory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listening(Median):
    """The median, which notes the rows that it was given."""

    heard: list[Tensor] = dataclasses.field(default_factory=list)

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        self.heard.append(received.values().clone())
        return super().aggregate(received, state, view)


def game(name: str, function: Callable[[AttackView], Any], **fields: Any) -> tuple[Setup, RunState]:
    scenario = Scenario(
        protocol=name,
        model="micro",
        clients=7,
        per_round=5,
        epochs=1,
        malicious=0.5,
        batch_size=999,
    )
    setup = prepare(scenario.model_copy(update=fields), "cpu", "loop")
    parts = dataclasses.replace(setup.plugins, attack=Crafting(function), defense=Listening())
    setup = dataclasses.replace(setup, plugins=parts)
    return setup, begin(setup)


def remembered_of(setup: Setup, state: RunState, ids: Sequence[int]) -> Tensor:
    name = setup.plugins.protocol.agreed
    return torch.stack([state.memories[i][name] for i in ids])


def louder(view: AttackView) -> Payload:
    return view.own.nearest(view.own.opposite(view.own.values(), 3.0))


@pytest.mark.parametrize("name", NAMES)
def test_both_ends_remember_what_arrived_and_the_rule_acts_on_it(name: str) -> None:
    setup, state = game(name, louder)
    before: dict[int, Tensor] = {}
    for step in range(3):
        server = state.server.clone()
        r = play_round(setup, state, step)
        heard = setup.plugins.defense.heard[-1]
        assert r.malicious > 0
        assert torch.equal(remembered_of(setup, state, r.clients), heard)
        assert torch.equal(state.server, server + heard.median(dim=0).values)
        away = set(before) - set(r.clients)
        now = {i: remembered_of(setup, state, [i])[0] for i in {*before, *r.clients}}
        assert all(torch.equal(now[i], before[i]) for i in away)
        before = now


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_asks_the_rule_that_will_answer(name: str) -> None:
    answers = []

    def asking(view: AttackView) -> Payload:
        sent = louder(view)
        assert view.defense is not None
        answers.append(view.defense.ask(sent, 0))
        return sent

    setup, state = game(name, asking)
    for step in range(2):
        server = state.server.clone()
        play_round(setup, state, step)
        assert torch.equal(state.server, server + answers[-1])


def test_what_an_attack_compresses_becomes_the_estimate() -> None:
    # A codec that forgot the estimate would send the same half of the coordinates again.
    def sevens(view: AttackView) -> Payload:
        return view.compress(torch.full_like(view.updates, 7.0))

    for name, steps in (("byz-ef21:k=0.5", 3), ("byz-dasha-page:k=1", 2)):
        setup, state = game(name, sevens, per_round=7)
        for step in range(steps):
            r = play_round(setup, state, step)
        bad = [i for i in r.clients if bool(setup.population.malicious[i])]
        assert set(remembered_of(setup, state, bad).flatten().tolist()) == {7.0}


def test_a_message_that_is_rejected_changes_nothing_at_either_end() -> None:
    setup, state = game("byz-ef21", lambda view: [b"no message"] * len(view.own))
    r = play_round(setup, state, 0)
    assert r.accepted == 5 - r.malicious
    for i, row in zip(r.clients, remembered_of(setup, state, r.clients), strict=True):
        assert bool(row.any()) != bool(setup.population.malicious[i])


def test_what_a_message_claims_to_be_remembered_counts_nowhere() -> None:
    def claiming(view: AttackView) -> Payload:
        assert isinstance(view.own, Patch)
        claimed = torch.full_like(view.own.remembered, 1e6)
        sent = dataclasses.replace(view.own, remembered=claimed)
        assert view.defense is not None
        assert torch.equal(view.defense.ask(sent, 0), view.defense.ask(view.own, 0))
        return sent

    honest, forged = (game("byz-ef21", craft) for craft in (lambda view: view.own, claiming))
    for setup, state in (honest, forged):
        play_round(setup, state, 0)
    assert torch.equal(honest[1].server, forged[1].server)


def test_an_estimate_that_is_not_finite_is_not_remembered() -> None:
    def broken(view: AttackView) -> Payload:
        assert isinstance(view.own, SparsePatches)
        return dataclasses.replace(view.own, entries=torch.full_like(view.own.entries, torch.nan))

    setup, state = game("byz-ef21", broken, server_checks="none")
    r = play_round(setup, state, 0)
    assert bool(torch.isfinite(remembered_of(setup, state, r.clients)).all())


def test_one_full_batch_is_the_papers_gradient_step() -> None:
    # k = 1: the estimate is the update, so the median of all clients is FedAvg's.
    fields: Any = {"clients": 4, "per_round": 4, "malicious": 0.0, "epochs": 1, "rounds": 2}
    fields |= {"batch_size": 1000, "eval_every": 2, "model": "micro", "defense": "median"}
    losses = {
        fedbench.play(Scenario(protocol=text, **fields), device="cpu").result.loss
        for text in ("byz-ef21:k=1", "fedavg:lr=0.1,momentum=0")
    }
    assert len(losses) == 1


def test_patches_of_the_coordinates_that_were_asked_for_cannot_be_others() -> None:
    seed = mask_seed([1, 2], 4)
    remembered = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    sent = CoordinatedPatches(
        torch.tensor([[5.0, 6.0]]), torch.zeros(1, 0), 4, seed, remembered=remembered
    )
    assert sent.values().tolist() == [[1.0, 5.0, 6.0, 4.0]]
    assert sent.nearest(torch.tensor([[9.0, 8.0, 7.0, 6.0]])).values().tolist() == [[1, 8, 7, 4]]
    assert "seeds" not in sent.headers()


def test_patches_are_of_what_is_remembered_of_their_own_client_and_keep_the_rest() -> None:
    remembered = torch.tensor([[1.0] * 4, [2.0] * 4, [3.0] * 4])
    index = torch.tensor([[1], [2], [3]])
    entries = torch.tensor([[5.0], [torch.inf], [7.0]])
    rest = torch.tensor([[8.0], [8.0], [9.0]])
    sent = SparsePatches(index, entries, rest, 4, remembered=remembered)
    assert "remembered" not in sent.travelling()
    received, accepted = sent.receive(sent.encode(), "finite")
    assert accepted.tolist() == [True, False, True]
    assert received.values().tolist() == [[1, 5, 1, 1, 8], [3, 3, 3, 7, 9]]
    seeded = SeededPatches(entries[:1], index[:1], rest[:1], 4, remembered=remembered[:1])
    assert seeded.values()[0].tolist() == [
        *(5 if i in seeded.indices() else 1 for i in range(4)),
        8,
    ]
    asked = CoordinatedPatches(entries[:1], rest[:1], 4, 7, remembered=remembered[:1])
    moved = [6 if i in asked.indices() else 1 for i in range(4)]
    assert asked.nearest(torch.tensor([[6.0, 6, 6, 6, 4]])).values()[0].tolist() == [*moved, 4]
    for patch in (sent, seeded, asked):
        patch.check()
        with pytest.raises(IllegalPayloadError, match="remembered"):
            dataclasses.replace(patch, remembered=torch.zeros(len(patch), 5)).check()
    with pytest.raises(IllegalPayloadError, match="at most d = 4, got 5"):
        dataclasses.replace(asked, entries=torch.zeros(1, 5)).check()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_isolated_plugins_give_the_same_record(name: str) -> None:
    scenario = Scenario(protocol=name, attack="alie", defense="trimmed-mean", rounds=2, epochs=1)
    plain, apart = (fedbench.play(scenario, device="cpu", isolate=i) for i in (False, True))
    assert plain.measured() == apart.measured()


def test_all_clients_count_the_same_and_other_protocols_agree_on_nothing() -> None:
    protocols: list[Protocol[Any]] = [WorkerMomentum(), RoSDHB(), ByzEF21(), ByzDashaPage()]
    assert not any(protocol.weighted for protocol in protocols)
    assert [protocol.agreed for protocol in protocols] == [None, "m", "g", "g"]
    assert FedAvg.agreed is None
