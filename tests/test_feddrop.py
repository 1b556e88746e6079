"""Federated dropout: sub-networks that are drawn, sent, trained and mapped back."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from exchanges import exchanged, shared_of

from fedbench.api import Shared
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Layout
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.models.models import CNN4, Conv4, LeNet, LeNet5, ResNet20
from fedbench.models.network import ConvNet
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.feddrop import FedDrop, chain, is_chain
from fedbench.protocols.fedsparsify import FedSparsify
from fedbench.testing import example_clients

# conv1 (4, 1, 3, 3), conv2 (5, 4, 3, 3), pool, fc1 (6, 5 * 4), fc2 (3, 6): 15 units.
DEEP = shared_of(ConvNet((1, 4, 4), ((4, 5),), (6,), 3))
DROP = FedDrop(conv=0.4, dense=0.5)  # of 4, 5 and 6 units it keeps 3, 3 and 3


def down(protocol: FedDrop, shared: Shared, ids: Sequence[int] = range(4), key: int = 7) -> Any:
    return protocol.broadcast(shared, protocol.init(shared), ids, Key(key))


def test_units_are_exactly_so_many_and_others_for_every_client_and_round() -> None:
    payload = down(DROP, DEEP, range(40))
    parts = [gates.sum(dim=1).tolist() for gates in torch.split(payload.gates, [4, 5, 6], dim=1)]
    assert parts == [[3] * 40, [3] * 40, [3] * 40]
    assert len({tuple(row) for row in payload.gates.int().tolist()}) > 30
    assert bool(payload.gates.any(dim=0).all())
    assert not bool(payload.gates.all(dim=0).any())
    first = down(DROP, DEEP, [3, 9])
    assert torch.equal(first.gates[1], down(DROP, DEEP, [9, 5]).gates[0])
    assert not torch.equal(first.gates, down(DROP, DEEP, [3, 9], key=8).gates)
    # 0.3 * 10 is 3, but 0.29 * 100 is 28.999... in floating point.
    layers = Layout.of({"conv1": (10, 1, 3, 3), "fc1": (100, 10), "fc2": (2, 100)})
    assert FedDrop(conv=0.3, dense=0.29).kept(layers) == [7, 71]
    assert FedDrop(conv=0.99, dense=0.01).kept(layers) == [1, 99]


def test_a_weight_travels_iff_both_of_its_units_do() -> None:
    payload = down(DROP, DEEP)
    for row in range(4):
        first, second, third = torch.split(payload.gates[row], [4, 5, 6])
        weights = DEEP.layout.unflatten(payload.is_open()[row])
        pixels = second.repeat_interleave(4)  # 2 x 2 pixels a channel after the pool
        assert torch.equal(weights["conv1"][:, 0, 0, 0], first)
        assert torch.equal(weights["conv2"][:, :, 1, 1], second[:, None] & first)
        assert torch.equal(weights["fc1"], third[:, None] & pixels)
        assert torch.equal(weights["fc2"], third.expand(3, -1))


def test_both_directions_shrink_on_the_wire_and_a_client_trains_what_it_has_alone() -> None:
    # 3 * 9 + 3 * 3 * 9 + 3 * 3 * 4 + 3 * 3 weights and 15 gates; all of it would be 354 weights.
    payload = down(DROP, DEEP)
    assert [packet.bits for packet in payload.encode()] == [32 * 153 + 15] * 4
    clients = [
        dataclasses.replace(client, tree=DROP.receive(DEEP, payload.take([row])))
        for row, client in enumerate(example_clients(DROP, DEEP, len(payload)))
    ]
    updates, memory = Loop(DROP, DEEP, Schedule(3, 4)).train(clients)
    up: Any
    up, after = DROP.message(DEEP, updates, [c.key for c in clients], memory)
    assert [packet.bits for packet in up.encode()] == [32 * 153 + 15] * 4
    assert after == [{}] * 4
    assert float(updates[~payload.is_open()].abs().max()) == 0
    assert float((updates[payload.is_open()] != 0).double().mean()) > 0.5
    assert torch.equal(up.gates, payload.gates)
    assert torch.equal(up.x, updates)


def test_not_even_where_a_bias_keeps_a_dropped_unit_awake() -> None:
    shared = shared_of(LeNet5().build((1, 16, 16), 3))
    state = DROP.init(shared)
    state[shared.weights.d :] = 0.5
    payload: Any = DROP.broadcast(shared, state, [0], Key(7))
    x, y = Key(8).normal(8, 1, 16, 16), torch.arange(8) % 3
    client = Client(DROP.receive(shared, payload), x, y, Key(9), {}, lambda grad: grad)
    updates, _ = Loop(DROP, shared, Schedule(2, 4)).train([client])
    assert float(updates[:, : shared.weights.d][~payload.is_open()].abs().max()) == 0


def test_the_mean_of_what_comes_back_is_unbiased() -> None:
    # Every client would move every weight by its own index. Over 4000 clients the estimate of a
    # weight with P = .3 has a relative sigma of sqrt(.7 / .3 / 4000) = .024; 354 of them: 5 sigma.
    move = torch.arange(1.0, DEEP.layout.d + 1)
    gates = down(DROP, DEEP, range(4000))
    aggregate = torch.cat([gates.gates.float(), move * gates.is_open()], dim=1).mean(dim=0)
    moved = DROP.server_step(DEEP, torch.full_like(move, 2.0), aggregate, 4000, Key(0)) - 2
    assert float((moved / move - 1).abs().max()) < 0.12
    chances = sorted(set(DROP.chances(DEEP).tolist()))
    assert chances == pytest.approx([0.3, 0.45, 0.5, 0.75])


@pytest.mark.parametrize(
    ("none", "parts"), [(FedDrop(conv=0.0, dense=0.0), 15), (FedSparsify(final=0.0), 354)]
)
def test_without_dropout_or_pruning_it_is_fedavg(none: Any, parts: int) -> None:
    rows = [exchanged(protocol, DEEP, Schedule(2, 4))[0] for protocol in (none, FedAvg())]
    assert torch.equal(*rows)
    state = none.init(DEEP)
    start = FedAvg().init(DEEP)
    mean = rows[0].mean(dim=0)
    after = none.server_step(DEEP, state, torch.cat([torch.ones(parts), mean]), 4, Key(0))
    for ours, theirs in (
        (state, start),
        (after, FedAvg().server_step(DEEP, start, mean, 4, Key(0))),
    ):
        assert torch.equal(getattr(ours, "w", ours), theirs)


def test_a_sub_network_has_sums_as_large_as_the_whole_and_is_the_clients_own_model() -> None:
    # Inputs kept: all, 3 of 4, 3 of 5, 3 of 6.
    tree = {name: torch.ones(shape) for name, shape in DEEP.network.shapes.items()}
    scaled = DROP.weights(tree, DROP.frozen(DEEP), Key(0))
    largest = [float(x.max()) for x in scaled.values()]
    assert largest == pytest.approx([1, 4 / 3, 5 / 3, 2])
    assert dataclasses.replace(DROP, rescale=False).frozen(DEEP) == {}
    payload = down(DROP, DEEP)
    sent = dataclasses.replace(payload, x=payload.x * 0.5)
    own = DROP.local_model(DEEP, payload.take([1]), sent.take([1]))
    conv2 = DEEP.layout.unflatten(payload.x[1])["conv2"]
    torch.testing.assert_close(own["conv2"], conv2 * 1.5 * 4 / 3)


def test_it_knows_which_unit_feeds_which_layer_and_that_others_are_no_chain() -> None:
    for model in (LeNet(), Conv4(), LeNet5()):
        shared = shared_of(model.build((1, 28, 28), 10))
        assert is_chain(shared.network, chain(shared.weights) or (), shared.weights)
    # Shapes alone cannot tell: fc1 behind conv2 with every channel's pixels apart.
    layers = chain(DEEP.weights)
    assert layers is not None
    (shape, ((_, start, _), out)) = layers[2]
    halves: Any = (*layers[:2], (shape, ((1, start - 4, 4), out)), layers[3])
    assert is_chain(DEEP.network, layers, DEEP.weights)
    assert not is_chain(DEEP.network, halves, DEEP.weights)
    assert chain(Layout.of({"fc1": (4, 9), "fc2": (3, 8)})) is None
    assert chain(Layout.of({"conv1": (4, 1, 3, 3), "conv2": (5, 8, 3, 3)})) is None
    assert chain(Layout.of({"conv1": (4, 1, 3, 3), "fc1": (5, 9)})) is None
    assert chain(Layout.of({"fc1": (3, 4), "scale": (3,)})) is None


@pytest.mark.parametrize("model", [ResNet20(), CNN4()])
def test_it_refuses_networks_whose_units_it_cannot_drop(model: Any) -> None:
    with pytest.raises(ConfigError, match=r"^--protocol feddrop needs [^\n]*use lenet or conv4$"):
        FedDrop().init(shared_of(model.build((3, 32, 32), 10)))


@pytest.mark.slow
def test_every_client_sends_all_biases() -> None:
    shared = shared_of(LeNet5().build((1, 28, 28), 10))
    d, p = shared.weights.d, shared.rest.d
    payload = down(FedDrop(), shared)
    assert payload.rest.shape == (4, p)
    aggregate = torch.cat([torch.zeros(payload.values().shape[1] - p), torch.ones(p)])
    state = FedDrop().init(shared)
    moved = FedDrop().server_step(shared, state, aggregate, 2, Key(0)) - state
    assert moved.tolist() == pytest.approx([0.0] * d + [1.0] * p)
