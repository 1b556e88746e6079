"""FedSparsify: schedules, masks and merges worked by hand, and models that shrink."""

import dataclasses
import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from crafting import round_of
from exchanges import exchanged, flat, rejected, sent, shared_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fedbench
from fedbench.adversary.metrics import ForgedHeader, compared_headers
from fedbench.adversary.metrics import merged as merged_headers
from fedbench.api import ServerView, Shared
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.order_statistics import largest
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.state import RunState
from fedbench.models.models import BatchNormNet
from fedbench.models.network import ConvNet
from fedbench.payload import FloatVectors, PrunedVectors, same
from fedbench.payload.packets import code_bits
from fedbench.payload.sparse import Alive, largest_alive
from fedbench.protocols.fedsparsify import FedSparsify, Pruned
from fedbench.run import play_round
from fedbench.testing import check_payload, example_clients
from fedbench_defenses.mean import Mean

SHARED = shared_of()


def once(sparsity: float, **fields: Any) -> FedSparsify:
    """Prunes to this sparsity in every round."""
    return FedSparsify(initial=sparsity, final=sparsity, **fields)


ALL = Alive()  # all weights are alive


def state_of(w: list[float], alive: list[int] | None = None) -> Pruned:
    x = torch.tensor(w)
    return Pruned(x, torch.ones(len(w)).bool() if alive is None else bools(alive), 0)


def bools(bits: Any) -> Tensor:
    return torch.tensor(bits).bool()


def pruned(masks: list[list[int]], x: list[list[float]], alive: Alive = ALL) -> PrunedVectors:
    mask = torch.tensor(masks).bool()
    return PrunedVectors(mask, torch.tensor(x), torch.zeros(len(x), 0), int(mask[0].sum()), alive)


def first_message(
    protocol: FedSparsify, w: list[float] | Tensor, updates: Tensor, **held: Any
) -> Any:
    """The messages of clients that received ``w`` in round 1."""
    x = torch.as_tensor(w)
    memory = {"w": x, "alive": torch.ones(len(x)), "round": torch.tensor(1.0)} | held
    return sent(protocol, flat(len(x)), updates, [memory] * len(updates))


def test_sparsity_grows_fast_and_then_slowly_between_its_ends() -> None:
    # 0.9 (1 - 0.9**3), 0.9 (1 - 1/8); rounds count from 1.
    protocol = FedSparsify(start=1, until=11)
    path = [protocol.sparsity(t) for t in (0, 1, 2, 6, 10, 11, 12, 1000)]
    assert list(map(float, path)) == pytest.approx([0, 0, 0.2439, 0.7875, 0.8991, 0.9, 0.9, 0.9])
    assert path[-1] == Fraction(9, 10)
    # Rounds that 3 divides: 3, 6, 9, 12. In round 2 the public code looks at round 0, where s is
    # 0.9 - 0.8 (10/8)**3 = -0.66 (A9). Left of the way: 1, 7/8, 1/2, 1/8, 0.
    protocol = FedSparsify(initial=0.1, start=2, until=10, frequency=3)
    steps = {1: 0.0, 2: 0.1, 3: 0.9 - 0.8 * (7 / 8) ** 3, 6: 0.8, 9: 0.9 - 0.8 / 512, 12: 0.9}
    for t in range(1, 20):
        expected = steps[max(at for at in steps if at <= t)]
        assert float(protocol.sparsity(t)) == pytest.approx(expected), t


@pytest.mark.parametrize(
    ("d", "sparsity", "kept"),
    [(100, 0.29, 71), (10, 0.9, 1), (7, 0.5, 4), (3, 0.99, 1), (5, 0.0, 5), (1000, 0.999, 1)],
)
@pytest.mark.parametrize("where", ["client", "server"])
def test_the_share_is_kept_rounded_up(d: int, sparsity: float, kept: int, where: Any) -> None:
    # 0.29 * 100 is 28.999... in floating point, and 1 - 0.9 of 10 a little less than 1.
    protocol = once(sparsity, where=where)
    w = Key(0).normal(d)
    assert int(protocol.survivors(flat(d), w[None], torch.ones(d).bool(), 1).sum()) == kept
    up = first_message(protocol, w, torch.zeros(2, d))
    assert up.kept == (kept if where == "client" else d)


TWO = shared_of(ConvNet((1, 1, 2), (), (2,), 2))  # fc1 (2, 2), fc2 (2, 2)
RISING = torch.tensor([[0.1, -0.2, 0.3, -0.4, 1.0, 2.0, -3.0, 4.0]])


def test_thresholds_are_global_or_by_layer_and_count_all_weights_of_the_layer() -> None:
    every = torch.ones(8).bool()
    over_all = once(0.5).survivors(TWO, RISING, every, 1)
    by_layer = once(0.5, per="layer").survivors(TWO, RISING, every, 1)
    assert over_all.int().tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    assert by_layer.int().tolist() == [[0, 0, 1, 1, 0, 0, 1, 1]]
    # s = 0.25 keeps 3 of 4; of the first layer only one is alive, of the second all.
    alive = bools([0, 1, 0, 0, 1, 1, 1, 1])
    by_layer = once(0.25, per="layer").survivors(TWO, RISING, alive, 1)
    assert by_layer.int().tolist() == [[0, 1, 0, 0, 0, 1, 1, 1]]
    over_all = once(0.25).survivors(TWO, RISING, alive, 1)  # 6 of 8, but 5 are alive
    assert over_all.int().tolist() == [[0, 1, 0, 0, 1, 1, 1, 1]]
    # Ties go to the lowest index, zeros are no exception. The public code keeps all ties, and
    # everything where more than s are 0 (A9).
    w = torch.tensor([[1.0, -1.0, 1.0, 2.0, -1.0], [0.0, 0.0, 3.0, 0.0, -0.0]])
    every = torch.ones(5).bool()
    mask = once(0.4).survivors(flat(5), w, every, 1)
    assert mask.int().tolist() == [[1, 1, 0, 1, 0], [1, 1, 1, 0, 0]]


def test_a_pruned_weight_never_returns_however_large_its_update() -> None:
    alive = bools([1, 0, 1, 1])
    updates = torch.tensor([[0.0, 9.0, 0.0, 0.5]])
    up = first_message(once(0.5), [1.0, 0.0, 2.0, 3.0], updates, alive=alive.float())
    assert up.mask.int().tolist() == [[0, 0, 1, 1]]
    for where in ("client", "server"):
        protocol = once(0.0, where=where, merge="average")
        state = state_of([1.0, 0.0, 2.0, 3.0], [1, 0, 1, 1])
        aggregate = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0, 9.0, 0.0, 0.0])
        after = protocol.server_step(flat(4), state, aggregate, 2, Key(0))
        assert after.w.tolist() == [1, 0, 2, 3]
        assert after.mask.tolist() == alive.tolist()


def test_a_message_prunes_the_rows_it_is_given_and_not_those_that_were_trained() -> None:
    # w = 1, 2, 3: an update of +4, 0, 0 makes the first the largest, its opposite leaves 3, 3, 2.
    row = torch.tensor([[4.0, 0.0, 0.0]])
    for x, mask in ((row, [1, 0, 1]), (-row, [1, 0, 1]), (-0.25 * row, [0, 1, 1])):
        up = first_message(once(0.5), [1.0, 2.0, 3.0], x)
        assert up.mask.int().tolist() == [mask]
        assert torch.equal(up.x, x * up.mask)  # updates, not weights


def test_rows_that_are_not_finite_become_messages_that_the_server_can_reject() -> None:
    rows = torch.tensor([[math.nan, 0.0, 1.0, 2.0], [math.inf, 0.0, -math.inf, 2.0]])
    up = first_message(once(0.5), [1.0] * 4, rows)
    check_payload(up)
    assert up.passes("finite").tolist() == [False, False]


def merged(masks: list[list[int]], x: list[list[float]], w: list[float], **fields: Any) -> Tensor:
    mean = pruned(masks, x).values().mean(dim=0)
    after = once(0.5, **fields).server_step(flat(len(w)), state_of(w), mean, len(x), Key(0))
    assert bool((after.w[~after.mask] == 0).all())
    return after.w


def test_clients_merge_by_hand_and_few_need_more_than_half_or_half_of_them() -> None:
    # Models 13 23 . .; 10 . 36 .; 13 17 . .: kept by 3, 2, 1 and 0. Two of three are a majority;
    # floor(3/2) = 1 suffices in the public code (A9); 0/0 is 0.
    masks = [[1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 0]]
    x = [[3.0, 3.0, 0.0, 0.0], [0.0, 0.0, 6.0, 0.0], [3.0, -3.0, 0.0, 0.0]]
    results = {"majority": [12, 40 / 3, 0, 0], "half": [12, 40 / 3, 12, 0]}
    for merge, expected in (results | {"average": [12, 20, 36, 0]}).items():
        result = merged(masks, x, [10.0, 20.0, 30.0, 40.0], merge=merge)
        assert result.tolist() == pytest.approx(expected), merge
    masks = [[1, 0], [1, 0], [0, 1], [0, 1]]
    x = [[0.0, 0.0]] * 4
    for merge, each in {"majority": 0, "half": 4, "average": 8}.items():
        assert merged(masks, x, [8.0, 8.0], merge=merge).tolist() == [each, each]
        # floor(1/2) = 0 votes would suffice
        assert merged([[1, 0]], [[1.0, 0.0]], [8.0, 4.0], merge=merge).tolist() == [9, 0]


@pytest.mark.parametrize("n", [2, 3, 6, 7, 10, 41, 100, 999])
def test_the_rounding_of_a_mean_is_no_vote(n: int) -> None:
    # Means as a product of float32 weights gives them: 3 times 1/6 is not always a half.
    votes = torch.arange(n + 1)
    weights = torch.full((n,), 1 / n)
    for order in (weights, weights * (1 + 2e-7), weights * (1 - 2e-7)):
        share = torch.tensor([float(order[:count].sum()) for count in votes])
        state = Pruned(torch.ones(n + 1), torch.ones(n + 1).bool(), 0)
        _, strict = FedSparsify().merged(state, share, torch.zeros(n + 1), n)
        _, half = FedSparsify(merge="half").merged(state, share, torch.zeros(n + 1), n)
        assert torch.equal(strict, votes > n / 2)
        assert torch.equal(half, votes >= n // 2)


def test_votes_and_means_weigh_by_samples() -> None:
    # Sizes 3, 1, 1: the first alone is more than half.
    payload = pruned([[1, 0], [0, 1], [0, 1]], [[1.0, 0.0], [0.0, 2.0], [0.0, 3.0]])
    weights = torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64)
    view = ServerView(weights, FloatVectors(torch.zeros(1, 2)), 0, Key(0))
    mean, _ = Mean().aggregate(payload, None, view)
    assert FedSparsify().weighted
    for protocol, expected in ((once(0.5), [6, 0]), (once(0.5, merge="average"), [10, 11.5])):
        after = protocol.server_step(flat(2), state_of([9.0, 9.0]), mean, 3, Key(0))
        assert after.w.tolist() == pytest.approx(expected)


def test_the_server_prunes_the_merged_model_and_nothing_where_it_is_told_so() -> None:
    # 4 -3 2 1, and updates whose mean is -3 0 0 3.5: 1 -3 2 4.5, of which two are left.
    x = [[-4.0, 0.0, 1.0, 3.0], [-2.0, 0.0, -1.0, 4.0]]
    result = merged([[1, 1, 1, 1]] * 2, x, [4.0, -3.0, 2.0, 1.0], where="server")
    assert result.tolist() == [0, -3, 0, 4.5]
    aggregate = torch.tensor([0.3, 1.7, 0.0, 1.0])
    for where, w in (("server", [2, 4]), ("client", [0, 4])):  # no client kept more than all of it
        protocol = once(0.0, where=where)
        after = protocol.server_step(flat(2), state_of([2.0, 3.0]), aggregate, 5, Key(0))
        assert after.w.tolist() == w


def test_everything_may_be_pruned_and_the_next_round_goes_on() -> None:
    protocol = once(0.5)
    shared = flat(2)
    half = torch.tensor([0.5, 0.5, 0.0, 0.0])
    state = protocol.server_step(shared, state_of([8.0, 8.0]), half, 4, Key(0))
    assert not bool(state.mask.any())
    check_payload(protocol.broadcast(shared, state, [0], Key(0)))
    up = first_message(protocol, state.w, torch.zeros(1, 2), alive=state.mask.float())
    check_payload(up)
    assert up.encode()[0].bits == 32
    after = protocol.server_step(shared, state, up.values()[0], 1, Key(0))
    assert after.w.tolist() == [0, 0]


def own_model(protocol: FedSparsify, shared: Shared, up: PrunedVectors) -> Tensor:
    down = protocol.broadcast(shared, protocol.init(shared), [0], Key(0))
    return shared.layout.flatten(protocol.local_model(shared, down, up))


def pruned_clients(protocol: FedSparsify, shared: Shared, alive: Tensor) -> list[Client]:
    state = protocol.init(shared)
    w = torch.cat([state.w[: len(alive)] * alive, state.w[len(alive) :]])
    down = protocol.broadcast(shared, Pruned(w, alive, 4), range(4), Key(7))
    tree = protocol.receive(shared, down)
    return [dataclasses.replace(c, tree=tree) for c in example_clients(protocol, shared)]


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_what_is_pruned_does_not_train_and_what_is_alive_does(engine: Any) -> None:
    alive = Key(5).normal(102) > 0
    clients = pruned_clients(FedSparsify(), SHARED, alive)
    updates, memory = engine(FedSparsify(), SHARED, Schedule(3, 4)).train(clients)
    assert float(updates[:, ~alive].abs().max()) == 0
    assert float((updates[:, alive] != 0).double().mean()) > 0.5
    assert [int(held["round"]) for held in memory] == [5] * 4
    up, after = FedSparsify(until=5).message(SHARED, updates, [c.key for c in clients], memory)
    assert after == [{}] * 4
    assert isinstance(up, PrunedVectors)
    assert up.kept == 11  # ceil(0.1 * 102), and round 5 is the last of the schedule
    assert not bool((up.mask & ~alive).any())


def test_the_clients_own_model_is_what_it_has_trained_and_pruned() -> None:
    protocol = once(0.5)
    w = protocol.init(SHARED).w
    updates, up = exchanged(protocol, SHARED, Schedule(1, 4))
    own = own_model(protocol, SHARED, up.take([1]))
    assert torch.equal(own, torch.where(up.mask[1], w + updates[1], 0.0))
    assert int((own != 0).sum()) == 51
    assert float(own[own != 0].abs().min()) >= float((w + updates[1])[own == 0].abs().max())


def test_biases_and_statistics_travel_whole_and_are_never_pruned() -> None:
    shared = shared_of(BatchNormNet((1, 4, 4), ((3,), (4,)), 1, 3))
    protocol = once(0.9, until=3)
    d = shared.weights.d
    assert shared.rest.d > shared.statistics.d > 0
    updates, up = exchanged(protocol, shared, Schedule(1, 4), Stacked)
    assert torch.equal(up.rest, updates[:, d:])
    assert float(up.rest[:, -shared.statistics.d :].abs().min(dim=1).values.max()) > 0
    state = protocol.init(shared)
    after = protocol.server_step(shared, state, up.values().mean(dim=0), 4, Key(0))
    torch.testing.assert_close(after.w[d:], state.w[d:] + updates[:, d:].mean(dim=0))
    own = own_model(protocol, shared, up.take([0]))
    torch.testing.assert_close(own[d:], state.w[d:] + updates[0, d:])


LENGTHS = st.sampled_from([0, 1, 2, 3, 7, 8, 9, 16, 31, 64, 97, 128, 257, 1024])


def example(
    d: int, kept: int, alive: Tensor, n: int = 3, p: int = 2, seed: int = 0
) -> PrunedVectors:
    x = Key(seed).normal(n, 2 * d + p)
    blank = PrunedVectors(x[:, :d] > 0, x[:, :d], x[:, 2 * d :], kept, Alive.of(alive))
    return blank.nearest(x)


@settings(deadline=None)  # the first example imports the coder
@given(LENGTHS, st.floats(0, 1), st.floats(0, 1), st.integers(0, 3), st.integers(0, 2**63))
def test_pruned_vectors_keep_laws(d: int, living: float, share: float, p: int, seed: int) -> None:
    alive = Key(seed).fold("alive").uniform(d) < living
    alive_kept = round(share * int(alive.sum()))
    payload = example(d, alive_kept, alive, p=p, seed=seed)
    check_payload(payload)
    assert payload.values().shape == (3, 2 * d + p)
    for packet, mask in zip(payload.encode(), payload.mask, strict=True):
        assert packet.bits == 32 * (alive_kept + p) + code_bits(mask[alive].numpy())[1]


def test_a_mask_costs_its_entropy_among_what_is_alive_and_nothing_where_all_of_it_is_kept() -> None:
    d = 100_000
    alive = torch.arange(d) < 20_000
    half = example(d, 10_000, alive, n=1)
    assert half.encode()[0].bits - 32 * 10_002 == pytest.approx(20_000, rel=0.02)
    whole = example(d, 20_000, alive, n=1)
    assert whole.encode()[0].bits == 32 * 20_002 + 32


def test_nearest_is_the_closest_of_all_legal_messages() -> None:
    alive = bools([1, 1, 0, 1, 1, 1])
    values = Key(1).normal(20, 2 * 6 + 1)
    values[3, 4], values[4, 8] = -7.0, 7.0
    none = torch.zeros(20, 6).bool()
    blank = PrunedVectors(none, values[:, :6], values[:, :1], 3, Alive.of(alive))
    for row, got in zip(values, blank.nearest(values).values(), strict=True):
        distances = []
        for chosen in itertools.combinations(alive.nonzero()[:, 0].tolist(), 3):
            mask = torch.zeros(6).index_fill_(0, torch.tensor(chosen), 1.0)
            behind = row[6:12] * (1 - mask)
            distances.append(float((row[:6] - mask).square().sum() + behind.square().sum()))
        assert float((row - got).norm() ** 2) == pytest.approx(min(distances), rel=1e-4)


def test_nearest_takes_whatever_floats_there_are_and_ranks_infinity_and_none() -> None:
    payload = example(8, 3, bools([1, 1, 1, 1, 1, 1, 0, 0]))
    values = payload.values()
    values[0, :16], values[1, 3], values[2, 8:] = math.nan, -math.inf, 1e38
    payload.nearest(values).check()
    assert payload.nearest(torch.zeros(3, 18)).mask.int().tolist() == [[1, 1, 1, 0, 0, 0, 0, 0]] * 3
    assert same(payload.nearest(payload.nearest(values).values()), payload.nearest(values))
    every = torch.ones(4).bool()
    scores = torch.tensor([[math.inf, -math.inf, math.nan, 1.0]])
    counts = [largest_alive(scores, alive_kept, every).int().tolist()[0] for alive_kept in range(5)]
    assert counts == [[0] * 4, [1, 0, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1], [1] * 4]


def test_forged_bytes_are_rejected() -> None:
    message = example(40, 5, torch.arange(40) < 30, n=1)
    good = message.encode()[0].data
    floats = good[:28]
    for data in (b"", floats, good[:-4], good[:-2], good + bytes(4), good[4:], bytes(4) + good):
        rejected(PrunedVectors, data, message.spec)
    for count in (5, 6, 31):  # alone, another one, more than are alive
        rejected(PrunedVectors, floats + count.to_bytes(4, "little"), message.spec)
    rejected(PrunedVectors, floats + (6).to_bytes(4, "little") + good[32:], message.spec)
    rejected(PrunedVectors, good[:32] + bytes(len(good) - 32), message.spec)  # another code
    for kept in ([0, 2, 4, 6, 8, 10], [0, 2, 4, 6], list(range(30)), [], [0, 2, 4, 6, 39]):
        bits = torch.zeros(40 if 39 in kept else 30, dtype=torch.bool)  # 39 is not alive
        bits[kept] = True
        rejected(PrunedVectors, floats + code_bits(bits.numpy())[0].tobytes(), message.spec)


GOOD = pruned([[1, 1, 0, 0], [0, 1, 0, 1]], [[1.0, 0.0, 0, 0], [0, 2.0, 0, 3.0]], Alive(b"\xd0"))


@pytest.mark.parametrize(
    ("field", "value", "requirement"),
    [
        ("mask", torch.ones(2, 4), r"mask must be \(n, 4\) torch.bool"),
        ("x", torch.zeros(2, 3), r"x must be \(n, 4\) torch.float32"),
        ("x", torch.zeros(2, 4).double(), r"x must be \(n, 4\) torch.float32"),
        ("rest", torch.zeros(2, 1).double(), r"rest must be \(n, p\) torch.float32"),
        ("x", torch.tensor([[1.0, 0, 0, 0], [1e-9, 0, 0, 0]]), "x must be 0 where the mask is 0"),
        ("x", torch.tensor([[1.0, 0, 0, math.nan], [0, 0, 0, 0]]), "x must be 0 where the mask"),
        ("mask", bools([[1, 1, 0, 1]] * 2), r"mask must keep 2 of 4, got \[3, 3\]"),
        ("mask", bools([[1, 1, 0, 0], [0, 1, 1, 0]]), "mask must be 0 where nothing is alive"),
        ("kept", 3, r"mask must keep 3 of 4, got \[2, 2\]"),
    ],
)
def test_messages_that_are_not_legal_are_named(field: str, value: Any, requirement: str) -> None:
    GOOD.check()
    with pytest.raises(IllegalPayloadError, match=rf"^PrunedVectors\.{requirement}[^\n]*$"):
        dataclasses.replace(GOOD, **{field: value}).check()


def test_a_forged_mask_is_compared_by_what_it_says() -> None:
    # Of the places 0, 1 and 3 of the forged mask, its client would not have said 3.
    everyone = torch.ones(2, dtype=torch.bool)
    forged = dataclasses.replace(GOOD, mask=torch.tensor([[1, 1, 0, 1], [0, 1, 0, 1]]).bool())
    context = round_of(GOOD, m=1)
    parts = [compared_headers(context, message, everyone) for message in (GOOD, forged)]
    shares = [merged_headers([part])["indices"] for part in parts]
    assert [*shares, merged_headers(parts)["indices"]] == pytest.approx([0, 1 / 3, 1 / 5])
    alone = ForgedHeader(False, new=1, count=1)
    assert merged_headers([{"indices": alone}]) == {"indices": 1.0}


def test_the_opposite_keeps_the_mask_and_two_forms_differ_in_one_short_line() -> None:
    values = torch.tensor([[1.0, 1, 0, 0, 1, 2, 0, 0], [0, 1, 0, 1, 0, 3, 0, 4]])
    assert GOOD.opposite(values, 2.0)[0].tolist() == [1, 1, 0, 0, -2, -4, 0, 0]
    assert torch.equal(GOOD.headers()["indices"], GOOD.mask)
    assert not GOOD.aligned
    masks = [Key(i).uniform(10_000) < 0.5 for i in range(2)]
    a, b = (example(10_000, 4_000, mask, n=1) for mask in masks)
    with pytest.raises(IllegalPayloadError, match="alive") as caught:
        a.put([0], b)
    assert len(str(caught.value)) < 400


def test_the_deployed_model_follows_the_schedule_and_bits_follow_it() -> None:
    protocol = FedSparsify(where="server", until=3)
    few = {"clients": 30, "per_round": 2, "epochs": 1, "rounds": 4, "eval_every": 1, "malicious": 0}
    scenario = Scenario.of(protocol="fedsparsify:where=server,until=3", **few)
    record = fedbench.play(scenario, device="cpu")
    d = 151_072
    alive_kept = [151_072]
    for r in record.rounds:
        alive_kept.append(math.ceil((1 - protocol.sparsity(r.step + 1)) * d))
        assert r.sparsity == pytest.approx(1 - alive_kept[-1] / d, abs=1e-12)
        assert r.uplink_bits == 2 * (32 * alive_kept[-2] + 32)  # as many as came down
        mask = 2 * d * (1.01 * entropy(alive_kept[-2] / d) + 0.001)
        floats = 2 * 32 * (alive_kept[-2] + 1)
        assert floats < r.downlink_bits <= floats + mask
    assert alive_kept[:2] == [d, d]
    assert alive_kept[-2] == alive_kept[-1] == 15_108
    assert 32 * 15_108 < record.result.model_bits < 32 * 15_108 + d / 2


def entropy(p: float) -> float:
    return sum(-q * math.log2(q) for q in (p, 1 - p) if q > 0)


def test_a_client_sends_as_many_weights_as_the_schedule_says() -> None:
    text = "fedsparsify:until=3,initial=0.4"
    setup = prepare(Scenario(protocol=text, clients=8, per_round=3, epochs=1, malicious=0), "cpu")
    run_state = RunState(setup.plugins.protocol.init(setup.shared))
    for step, left in enumerate((Fraction(6, 10), Fraction(1625, 10_000), Fraction(1, 10))):
        count = math.ceil(left * 151_072)
        alive = int(run_state.server.mask.sum())
        r = play_round(setup, run_state, step)
        assert r.uplink_bits is not None
        assert 3 * 32 * count < r.uplink_bits < 3 * (32 * count + alive)
        state = run_state.server
        assert int(state.mask.sum()) == pytest.approx(count, rel=0.05)  # a vote
        assert state.rounds == step + 1
        assert bool((state.w[~state.mask] == 0).all())


@pytest.mark.edges("server-sign-flip-codec")
@pytest.mark.parametrize("via", ["codec", "wire"])
@pytest.mark.parametrize("attack", ["sign-flip", "dyn-opt"])
@pytest.mark.parametrize("where", ["client", "server"])
def test_rounds_under_attack_against_the_trimmed_mean(where: str, attack: str, via: str) -> None:
    few = {"clients": 8, "per_round": 4, "epochs": 1, "malicious": 0.25, "rounds": 2}
    parts = {"attack": f"{attack}:via={via}", "defense": "trimmed-mean", "server_checks": "range"}
    text = f"fedsparsify:where={where},initial=0.8,until=3"
    record = fedbench.play(Scenario.of(protocol=text, **few, **parts), device="cpu")
    assert sum(r.malicious for r in record.rounds) > 0
    for r in record.rounds:
        assert r.accepted == 4
        assert not r.skipped
        assert r.malicious == 0 or (r.gain is not None and r.gain > 0)
        assert r.uplink_bits is not None
        assert r.uplink_bits % 32 == 0
    first, second = record.rounds
    assert second.downlink_bits < first.downlink_bits / 3
    assert {r.notes["via"] for r in record.rounds if "via" in r.notes} <= {"wire"}


def test_the_largest_are_those_of_a_stable_sort_with_ties_and_without() -> None:
    for x in (Key(0).normal(3, 500), (Key(1).normal(3, 500) * 2).round(), torch.ones(2, 9)):
        for alive_kept in (1, x.shape[1] // 2, x.shape[1]):
            best = x.sort(dim=1, descending=True, stable=True).indices[:, :alive_kept]
            expected = torch.zeros(x.shape, dtype=torch.bool).scatter_(1, best, True)
            assert torch.equal(largest(x, alive_kept), expected)
            halves = x.half()
            assert torch.equal(largest(halves, alive_kept), largest(halves.float(), alive_kept))
