"""Loop and lock step train alike; both are SGD."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.adversary import threat_model
from fedbench.adversary.training import train
from fedbench.api import Attack, Grad, Local, Shared
from fedbench.core.errors import PluginError
from fedbench.core.rng import Key, Secret
from fedbench.core.trees import Tree
from fedbench.executors import training
from fedbench.executors.factory import executor, untrained_clients
from fedbench.executors.training import Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.models.network import ConvNet, Step, saved_bytes
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fsl import FSL, mask_rows, mask_without_asking, top_masked
from fedbench.protocols.optimizers import SGD, Adam, Adamax, Optimizer
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

SHARED = Shared(NETWORK, 3, torch.device("cpu"))


def ascend(grad: Grad) -> Grad:
    """Another gradient, up the loss instead of down."""

    def wrapped(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: -g for name, g in grad(tree, x, y, key).items()}

    return wrapped


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@pytest.mark.parametrize("protocol", [FedAvg(), FSL()], ids=["weights", "scores"])
@pytest.mark.parametrize("chunk", [1, 2, 32])
def test_stacked_training_is_the_loop_whatever_the_chunk(protocol: FedAvg, chunk: int) -> None:
    # Clients have 5 to 8 samples and batches of 3: different numbers of steps, short last batches.
    clients = doubled(example_clients(protocol, SHARED))
    schedule = Schedule(2, 3)
    precise = in_float64(protocol)
    before = SHARED.layout.flatten(clients[0].tree).clone()
    loop, _ = Loop(precise, SHARED, schedule).train(clients)
    assert torch.equal(SHARED.layout.flatten(clients[0].tree), before), "the broadcast is as it was"
    stacked, _ = Stacked(precise, SHARED, schedule, chunk).train(clients)
    assert_rounded_alike(stacked, loop)
    assert difference(loop[[1, 0, 3, 2]], loop) > 0.1  # the order of the clients matters


def test_training_is_sgd_with_momentum_and_weight_decay_step_by_step() -> None:
    protocol = in_float64(FedAvg(lr=0.1, momentum=0.5, weight_decay=0.01))
    (client,) = doubled(example_clients(protocol, SHARED, n=1))
    schedule = Schedule(1, 2)
    updates, _ = Loop(protocol, SHARED, schedule).train([client])

    w = {name: x.clone().requires_grad_() for name, x in client.tree.items()}
    optimizer = torch.optim.SGD(w.values(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for rows in schedule.rows(len(client.x), client.key):
        optimizer.zero_grad()
        logits = NETWORK.logits(w, client.x[rows])
        torch.nn.functional.cross_entropy(logits, client.y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    moved = {name: x.detach() - client.tree[name] for name, x in w.items()}
    assert_rounded_alike(updates[0], SHARED.layout.flatten(moved))


def test_every_epoch_sees_every_sample_once_in_a_new_order() -> None:
    steps = Schedule(epochs=2, batch_size=4).rows(10, Key(0))
    assert [len(step) for step in steps] == [4, 4, 2, 4, 4, 2]
    first, second = torch.cat(steps[:3]), torch.cat(steps[3:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(10))
    assert first.tolist() != second.tolist()


def test_coins_draw_every_sample_with_the_batch_s_share_of_them_in_every_step() -> None:
    everyone = Schedule(epochs=3, batch_size=4, coins=True).rows(4, Key(0))
    assert [step.tolist() for step in everyone] == [[0, 1, 2, 3]] * 3  # a share of 1
    steps = Schedule(epochs=500, batch_size=2, coins=True).rows(8, Key(0))
    assert len(steps) == 2000
    drawn = torch.cat(steps).bincount()
    # 2,000 coins of 1/4 are 500 heads, deviation 19.4
    assert (drawn - 500).abs().max() < 5 * 19.4
    assert len({tuple(step.tolist()) for step in steps}) > 100


def test_the_gradient_of_each_sample_is_its_own_and_padding_has_none() -> None:
    loop = Loop(FedAvg(), SHARED, Schedule(1, 5))
    (client,) = example_clients(FedAvg(), SHARED, n=1)
    y = client.y.clone()
    y[1] = -1
    each = loop.each(client.tree, client.x, y, client.key, frozen={})
    whole = loop._grad(client.tree, client.x, y, client.key)  # the mean of those that count
    for name, gradients in each.items():
        assert not gradients[1].any()
        torch.testing.assert_close(gradients.sum(dim=0) / 4, whole[name])
    assert any(gradients[[0, 2, 3, 4]].any() for gradients in each.values())


def test_the_gradient_can_be_wrapped_and_only_for_who_wraps_it() -> None:
    protocol = in_float64(FedAvg(weight_decay=0.0, momentum=0.0))
    clients = doubled(example_clients(protocol, SHARED))
    turned = [dataclasses.replace(clients[0], wrap_grad=ascend), *clients[1:]]
    for kind in (Loop, Stacked):
        engine = kind(protocol, SHARED, Schedule(1, 8))
        plain, _ = engine.train(clients)
        poisoned, _ = engine.train(turned)
        assert_rounded_alike(poisoned[0], -plain[0])
        assert_rounded_alike(poisoned[1:], plain[1:])


def test_the_loss_ignores_padding_and_is_summed_in_float32() -> None:
    logits = Key(0).normal(4, 3)
    y = torch.tensor([2, 0, -1, -1])
    expected = torch.nn.functional.cross_entropy(logits[:2], y[:2])
    torch.testing.assert_close(training.cross_entropy(logits, y), expected)
    logits = torch.tensor([[8.0, 0.015625]]).bfloat16()
    y = torch.tensor([0])
    exact = training.cross_entropy(logits.float(), y)
    assert training.cross_entropy(logits, y).item() == exact.item()
    assert exact.dtype == torch.float32


def test_labels_of_an_attack_are_looked_at_before_it_trains() -> None:
    @dataclasses.dataclass(frozen=True)
    class Shifted(Attack):
        def poison(self, x: Tensor, y: Tensor, local: Local) -> tuple[Tensor, Tensor]:
            return x, y + 3

    clients = example_clients(FedAvg(), SHARED)
    engine = Loop(FedAvg(), SHARED, Schedule(1, 4))
    requirement = r"poison in round 0 for client 9 must return labels from 0 to 2, got \(3, 4\)"
    owned = threat_model.OwnedRows(torch.tensor([1]), [9], [0], 1, Secret.of(0, "test"))
    with pytest.raises(PluginError, match=requirement):
        train(Shifted(), engine, clients, owned, None, 0)


def test_the_mask_is_the_end_of_a_stable_sort_and_its_gradient_goes_straight_through() -> None:
    scores = torch.tensor([0.4, -0.1, 0.2, 0.3], requires_grad=True)
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    top_masked(weights, scores, 2).sum().backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None
    assert scores.grad.tolist() == weights.tolist()  # also for edges outside of the subnetwork
    rows = (Key(1).uniform(20, 15) * 4).floor()  # many ties
    for best in (1, 7, 15):
        order = torch.sort(rows, dim=1, stable=True).indices[:, 15 - best :]
        expected = torch.zeros_like(rows).scatter_(1, order, 1.0) > 0
        assert torch.equal(mask_rows(rows, best), expected)
        assert torch.equal(mask_without_asking(rows, best), expected)


def test_edge_popup_follows_the_paper_on_one_neuron() -> None:
    # s_uv <- s_uv - lr * dL/dI_v * Z_u * W_uv (appendix D), with dL/dI_v = softmax - onehot.
    network = ConvNet((1, 1, 2), (), (), 2)
    shared = Shared(network, 0, torch.device("cpu"))
    protocol = FSL(lr=0.1, momentum=0.0, weight_decay=0.0, k=0.5)
    (client,) = example_clients(protocol, shared, n=1)
    z = torch.tensor([[[[0.5, 2.0]]]])
    client = dataclasses.replace(client, x=z, y=torch.tensor([1]))
    updates, _ = Loop(protocol, shared, Schedule(1, 1)).train([client])
    w, s = protocol.frozen(shared)["fc1"], client.tree["fc1"]
    order = s.reshape(-1).argsort()
    mask = torch.zeros(4).index_fill_(0, order[2:], 1.0).reshape(2, 2)
    logits = (w * mask) @ torch.tensor([0.5, 2.0])
    error = logits.softmax(dim=0) - torch.tensor([0.0, 1.0])
    expected = s - 0.1 * error[:, None] * torch.tensor([0.5, 2.0]) * w
    torch.testing.assert_close(updates[0], expected.reshape(-1))


def test_a_plugin_that_returns_another_shape_is_not_written_into_its_neighbours() -> None:
    class Wrong(FedAvg):
        def local_update(self, tree: Tree, *rest: Any) -> Any:
            return {name: x[:1] for name, x in tree.items()}, rest[-1]

    for name, kind in (("auto", Loop), ("stacked", Stacked)):  # on a CPU
        assert type(executor(name, Wrong(), SHARED, Schedule(1, 8))) is kind
    with pytest.raises(RuntimeError, match="size"):
        Loop(Wrong(), SHARED, Schedule(1, 4)).train(example_clients(Wrong(), SHARED))


def test_a_batch_lies_channels_last_unless_kernels_outweigh_it() -> None:
    strides: list[tuple[int, ...]] = []

    class Strides(ConvNet):
        def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
            strides.append(x.stride())
            return super().logits(params, x, step)

    # Bytes of kernels and, for each sample, of what a step saves: 108 and 632; 9828 and 16328.
    few, many = (Strides((1, 4, 4), (block,), (5,), 3) for block in ((3,), (3, 90)))
    for network, batch, last in ((few, 1, True), (many, 2, False), (many, 3, True)):
        shared = Shared(network, 1, torch.device("cpu"))
        assert saved_bytes(network) == (632 if network == few else 16328)
        loop = Loop(FedAvg(), shared, Schedule(1, batch))
        loop.train(untrained_clients(FedAvg(), shared, 1, batch))
        assert strides[-1][1:] == ((1, 4, 1) if last else (16, 4, 1)), (
            "one channel, too, has an order"
        )


@pytest.mark.parametrize("protocol", [FedAvg(), FSL()], ids=["weights", "scores"])
def test_products_in_bfloat16_are_near_in_both_executors(protocol: FedAvg) -> None:
    # A product in bfloat16 is wrong by up to 2**-9 of itself, one in float32 by 2**-24. Here three
    # layers there and back in six steps follow one another: up to 36 errors, which is 0.07, and
    # twice as much where a ReLU turns. Sums are taken in another order by every processor.
    clients = example_clients(protocol, SHARED)
    schedule = Schedule(2, 3)
    exact, _ = Loop(protocol, SHARED, schedule).train(clients)
    for engine in (Loop, Stacked):
        updates, _ = engine(protocol, SHARED, schedule, precision="bf16").train(clients)
        assert 2**-16 < difference(updates, exact) < 0.14
        assert updates.dtype == torch.float32


PAIRS: dict[Optimizer, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    SGD(lr=0.1): partial(torch.optim.SGD, lr=0.1),
    SGD(lr=0.1, momentum=0.7): partial(torch.optim.SGD, lr=0.1, momentum=0.7),
    Adam(lr=0.1): partial(torch.optim.Adam, lr=0.1),
    Adam(lr=0.1, beta1=0.5, beta2=0.9): partial(torch.optim.Adam, lr=0.1, betas=(0.5, 0.9)),
    Adamax(lr=0.1): partial(torch.optim.Adamax, lr=0.1),
}
EACH = pytest.mark.parametrize("ours", PAIRS, ids=["sgd", "momentum", "adam", "betas", "adamax"])


def gradient(x: Tensor, step: int) -> Tensor:
    return (x - 1) ** 3 * (1 + step) + Key(step).normal(*x.shape)


@EACH
def test_five_steps_are_those_of_torch(ours: Optimizer) -> None:
    start = Key(1).normal(7).double()  # 1 - beta ** t cancels in float32
    x = start.clone().requires_grad_()
    reference = PAIRS[ours]([x])
    tree = {"x": start}
    memory = ours.init({"x": start})
    for step in range(5):
        x.grad = gradient(x.detach(), step)
        reference.step()
        tree, memory = ours.step(tree, {"x": gradient(tree["x"], step)}, memory)
    torch.testing.assert_close(tree["x"], x.detach(), rtol=1e-7, atol=1e-9)


@EACH
def test_under_vmap_every_client_has_its_own_memory(ours: Optimizer) -> None:
    start = Key(1).normal(3, 4)
    g = Key(2).normal(3, 4)

    def two(x: Tensor, g: Tensor) -> Tensor:
        tree, memory = ours.step({"x": x}, {"x": g}, ours.init({"x": x}))
        return ours.step(tree, {"x": -2 * g}, memory)[0]["x"]

    alone = torch.stack([two(x, row) for x, row in zip(start, g, strict=True)])
    torch.testing.assert_close(torch.vmap(two)(start, g), alone)


@EACH
def test_no_gradient_no_move_and_a_statistic_goes_down_by_it_whatever_the_rate(
    ours: Optimizer,
) -> None:
    tree = {"x": torch.ones(2), "norm.mean": torch.ones(1)}
    g = {"x": torch.tensor([0.0, 1.0]), "norm.mean": torch.full((1,), 0.25)}
    ours = dataclasses.replace(ours, statistics=("norm.mean",))
    moved, memory = ours.step(tree, g, ours.init(tree))
    assert moved["x"][0] == 1.0 > moved["x"][1]
    assert moved["norm.mean"].item() == 0.75
    assert not [name for name in memory if "norm" in name and "velocity" not in name]
