"""Networks against torch.nn, and their sizes against the papers' tables."""

import dataclasses
import math
from collections.abc import Iterator
from itertools import combinations

import pytest
import torch
from exchanges import exchanged, shared_of
from torch import Tensor, nn

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.executors.vmap import Padded
from fedbench.models import models
from fedbench.models.models import CNN4, CNN8, Conv8, LeNet, LeNet5, Model, ResNet20
from fedbench.models.network import ConvNet, Image, Network, Step
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import assert_rounded_alike

TINY = ConvNet(image=(2, 7, 6), blocks=((3, 4), (5,)), hidden=(6,), classes=3)


def module(network: ConvNet) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels, height, width = network.image
    for block in network.blocks:
        for out in block:
            layers += [nn.Conv2d(channels, out, 3, padding="same", bias=False), nn.ReLU()]
            channels = out
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    layers.append(nn.Flatten())
    features = channels * height * width
    for out in network.hidden:
        layers += [nn.Linear(features, out, bias=False), nn.ReLU()]
        features = out
    return nn.Sequential(*layers, nn.Linear(features, network.classes, bias=False))


def images(network: Network, count: int) -> Tensor:
    return Key(7).normal(count, *network.image)


def sizes(model: Model, image: Image, classes: int) -> list[int]:
    network = model.build(image, classes)
    return [math.prod(network.shapes[name]) for name in network.weights]


def test_lenet_and_conv8_have_the_weights_of_table_3() -> None:
    mnist = [288, 18_432, 1_605_632, 1_280]
    assert sizes(LeNet(), (1, 28, 28), 10) == mnist
    assert sizes(LeNet(), (1, 28, 28), 62) == [*mnist[:3], 7_936]
    convolutions = [1_728, 36_864, 73_728, 147_456, 294_912, 589_824, 1_179_648, 2_359_296]
    assert sizes(Conv8(), (3, 32, 32), 10) == [*convolutions, 524_288, 65_536, 2_560]
    assert models.Conv6().build((1, 28, 28), 10).shapes["fc1"] == (256, 256 * 3 * 3)
    assert sizes(models.Logistic(), (1, 28, 28), 10) == [7_840]


def test_the_other_networks_are_those_of_fedpm_table_2() -> None:
    channels = [64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024]
    table = ((models.Conv4(), 4, 8), (models.Conv6(), 6, 4), (models.Conv10(), 10, 1))
    for model, count, side in table:
        shapes = model.build((3, 32, 32), 100).shapes
        assert [shape[0] for shape in shapes.values()] == [*channels[:count], 256, 256, 100]
        assert shapes["fc1"] == (256, channels[count - 1] * side**2)
    assert models.Conv4().build((1, 28, 28), 10).shapes["fc1"] == (256, 128 * 7 * 7)


SMALL = models.Logistic().build((1, 8, 8), 10)


@pytest.mark.parametrize("network", [TINY, LeNet().build((1, 8, 8), 10), SMALL])
def test_the_network_computes_what_torch_nn_computes(network: ConvNet) -> None:
    net = module(network).double()
    weights = [weight.detach() for weight in net.parameters()]
    params: Tree = dict(zip(network.shapes, weights, strict=True))
    x = images(network, 4).double()
    assert_rounded_alike(network.logits(params, x), net(x).detach())


def test_a_stack_of_networks_under_vmap_equals_the_loop_in_value_and_gradient() -> None:
    trees = [{k: w.double() for k, w in TINY.init(Key(seed)).items()} for seed in range(3)]
    x = torch.stack([images(TINY, 5).double() * scale for scale in (1.0, 2.0, 3.0)])

    def loss(params: Tree, x: Tensor) -> Tensor:
        return TINY.logits(params, x).square().sum()

    stacked = {name: torch.stack([tree[name] for tree in trees]) for name in TINY.shapes}
    together = torch.vmap(torch.func.grad(loss))(stacked, x)
    for i, tree in enumerate(trees):
        leaves = {name: weight.clone().requires_grad_() for name, weight in tree.items()}
        alone = torch.autograd.grad(loss(leaves, x[i]), list(leaves.values()))
        for name, gradient in zip(leaves, alone, strict=True):
            assert_rounded_alike(together[name][i], gradient)
        row = torch.vmap(TINY.logits)(stacked, x)[i]
        assert_rounded_alike(row, TINY.logits(tree, x[i]))


def test_init_fills_plus_minus_one_over_the_root_of_fan_in() -> None:
    lenet = LeNet().build((1, 28, 28), 10)
    assert [lenet.fan_in(name) for name in lenet.shapes] == [9, 288, 12_544, 128]
    network = LeNet().build((1, 8, 8), 10)
    tree = network.init(Key(1))
    assert {name: tuple(weight.shape) for name, weight in tree.items()} == network.shapes
    for name in ("conv2", "fc1"):  # > 18,000 draws: the extremes come within 1 % of the bound
        bound = 1 / math.sqrt(network.fan_in(name))
        assert 0.99 * bound < tree[name].max() <= bound
        assert -bound <= tree[name].min() < -0.99 * bound


def test_init_draws_each_layer_from_its_own_stream() -> None:
    tree, again, other = TINY.init(Key(1)), TINY.init(Key(1)), TINY.init(Key(2))
    deeper = ConvNet(TINY.image, ((3, 4, 4), (5,)), TINY.hidden, TINY.classes).init(Key(1))
    draws = [tree[name].flatten()[:15] * math.sqrt(TINY.fan_in(name)) for name in TINY.shapes]
    assert not any(torch.allclose(a, b) for a, b in combinations(draws, 2))
    assert all(torch.equal(tree[name], again[name]) for name in tree)
    assert not any(torch.equal(tree[name], other[name]) for name in tree)
    assert torch.equal(tree["conv2"], deeper["conv2"])
    assert torch.equal(tree["fc2"], deeper["fc2"])


NORMED = models.BatchNormNet(image=(2, 9, 6), blocks=((3, 4), (5,)), pools=1, classes=3)
DROPPED = models.DropoutNet((2, 9, 6), (3, 4), 2, 7, 3, conv_dropout=0.25, dense_dropout=0.5)
RESIDUAL = models.ResidualNet((2, 9, 6), (4, 6), blocks=2, groups=2, classes=3)
NETWORKS = [NORMED, DROPPED, RESIDUAL]
LAYER = [("conv", ""), ("norm", ".scale"), ("norm", ".shift")]
IDS = ["batch-norm", "dropout", "residual"]


def count(model: Model, image: Image, classes: int) -> int:
    return Layout.of(model.build(image, classes).shapes).d


def random_tree(network: Network, seed: int = 1) -> Tree:
    """No parameter at its neutral value, variances positive."""
    key = Key(seed)
    return {
        name: key.fold(name).uniform(*shape) + 0.5
        if name.endswith((".scale", ".var"))
        else key.fold(name).normal(*shape) * 0.5
        for name, shape in network.shapes.items()
    }


def doubled(tree: Tree) -> Tree:
    return {name: value.double() for name, value in tree.items()}


def all_real(count: int) -> Step:
    return Step(Key(5), torch.ones(count, dtype=torch.bool))


def loaded(layers: dict[str, nn.Module], params: Tree) -> None:
    torch_names = {"scale": "weight", "shift": "bias", "mean": "running_mean", "": "weight"}
    torch_names |= {"var": "running_var", "bias": "bias"}
    for name, value in params.items():
        layer, _, part = name.partition(".")
        getattr(layers[layer], torch_names[part]).data.copy_(value)


def batch_norm_module(network: models.BatchNormNet, params: Tree) -> nn.Sequential:
    layers: dict[str, nn.Module] = {}
    order: list[nn.Module] = []
    channels = network.image[0]
    i = 0
    for number, block in enumerate(network.blocks):
        for out in block:
            i += 1
            layers[f"conv{i}"] = nn.Conv2d(channels, out, 3, padding="same", bias=False)
            layers[f"norm{i}"] = nn.BatchNorm2d(out)
            order += [layers[f"conv{i}"], layers[f"norm{i}"], nn.ReLU()]
            channels = out
        order += [nn.MaxPool2d(2)] if number < network.pools else []
    features = network.shapes["fc1"][1]
    layers["fc1"] = nn.Linear(features, network.classes, bias=False)
    loaded(layers, params)
    return nn.Sequential(*order, nn.Flatten(), layers["fc1"])


def test_cnn4_and_cnn8_are_those_of_the_public_code() -> None:
    convolutions = [288, 18_432, 73_728, 294_912]  # 9 * (1*32, 32*64, 64*128, 128*256)
    assert sizes(CNN4(), (1, 28, 28), 10) == [*convolutions, 256 * 10]
    assert sizes(CNN4(), (3, 32, 32), 10) == [864, *convolutions[1:], 256 * 4 * 10]
    assert count(CNN4(), (1, 28, 28), 10) == 389_920 + 4 * (32 + 64 + 128 + 256)
    convolutions = [864, 9_216, 18_432, 36_864, 73_728, 147_456, 294_912, 589_824]
    assert sizes(CNN8(), (3, 32, 32), 100) == [*convolutions, 256 * 4 * 100]
    assert count(CNN8(), (3, 32, 32), 10) == 1_181_536 + 4 * 2 * (32 + 64 + 128 + 256)


def test_lenet5_counts_its_biases_and_resnet20_has_a_parameter_free_shortcut() -> None:
    # 28 - 4 = 24, 12, 8, 4 pixels; 32 - 4 = 28, 14, 10, 5.
    assert sizes(LeNet5(), (1, 28, 28), 10) == [800, 51_200, 64 * 16 * 512, 5_120]
    assert sizes(LeNet5(), (3, 32, 32), 10) == [2_400, 51_200, 64 * 25 * 512, 5_120]
    assert count(LeNet5(), (1, 28, 28), 10) == 581_408 + 32 + 64 + 512 + 10
    assert LeNet5().build((1, 16, 16), 10).shapes["fc1"] == (512, 64)  # 12, 6, 2, 1
    assert LeNet5().build((1, 8, 8), 10).shapes["fc1"] == (512, 64 * 2 * 2)  # 8, 4, 4, 2
    stem = 432
    first = 6 * 2_304
    second, third = 4_608 + 5 * 9_216, 18_432 + 5 * 36_864
    norms = 2 * (7 * 16 + 6 * 32 + 6 * 64)
    assert sum(sizes(ResNet20(), (3, 32, 32), 100)) == stem + first + second + third + 6_400
    assert count(ResNet20(), (3, 32, 32), 100) == 275_572 == 269_072 - norms + norms + 6_500
    assert len(sizes(ResNet20(), (3, 32, 32), 100)) == 20
    out = models.shortcut(torch.arange(6.0).reshape(1, 1, 2, 3), channels=2, stride=2)
    assert out.tolist() == [[[[0.0, 2.0]], [[0.0, 0.0]]]]


def test_fedavg_sends_the_gigabytes_of_fedsparse_table_1() -> None:
    cifar10, femnist = (count(LeNet5(), *data) for data in (((3, 32, 32), 10), ((1, 28, 28), 62)))
    cifar100 = count(ResNet20(), (3, 32, 32), 100)
    table = ((cifar10, 1_000, 65), (femnist, 6_000, 272), (cifar100, 6_000, 123))
    for parameters, rounds, gigabytes in table:
        sent = 4 * parameters * 10 * rounds * 2  # 10 clients, up and down
        assert round(sent / 2**30) == gigabytes


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
def test_weights_come_first_and_init_fills_every_shape(network: Network) -> None:
    rest = ["." in name for name in network.shapes]
    assert rest == sorted(rest)
    tree = network.init(Key(1))
    assert {name: tuple(value.shape) for name, value in tree.items()} == network.shapes
    for name, value in tree.items():
        if "." in name:
            assert set(value.tolist()) == {float(name.endswith((".scale", ".var")))}, name


def test_cnn_weights_start_with_a_hundredth_and_the_others_as_kaiming_says() -> None:
    cnn = CNN4().build((1, 28, 28), 10).init(Key(1))
    assert [round(cnn[name].std().item(), 4) for name in ("conv3", "conv4", "fc1")] == [0.01] * 3
    assert not torch.allclose(cnn["conv3"].flatten()[:999], cnn["conv4"].flatten()[:999])
    for model in (LeNet5(), ResNet20()):
        network = model.build((1, 28, 28), 10)
        std = network.init(Key(1))["conv2"].std().item()
        assert std == pytest.approx(math.sqrt(2 / network.fan_in("conv2")), rel=0.05)


def test_batch_norm_and_its_gradient_are_those_of_torch_nn_in_use_and_in_training() -> None:
    params = doubled(random_tree(NORMED))
    x = images(NORMED, 4).double()
    net = batch_norm_module(NORMED, params).eval().double()
    assert_rounded_alike(NORMED.logits(params, x), net(x).detach())
    # In float64: in float32 processors round a gradient through three normalisations differently.
    net = batch_norm_module(NORMED, params).train().double()
    step = all_real(4)
    leaves = {name: w.requires_grad_(name not in NORMED.statistics) for name, w in params.items()}
    ours, theirs = NORMED.logits(leaves, x, step), net(x)
    assert_rounded_alike(ours.detach(), theirs.detach())
    torch.autograd.backward([ours.square().sum(), theirs.square().sum()])
    assert not any(value.requires_grad for value in step.statistics.values())
    order = [f"{n}{i}{p}" for i in (1, 2, 3) for n, p in LAYER] + ["fc1"]
    for name, parameter in zip(order, net.parameters(), strict=True):
        assert_rounded_alike(leaves[name].grad, parameter.grad, name)
    norms = [layer for layer in net if isinstance(layer, nn.BatchNorm2d)]
    assert set(step.statistics) == set(NORMED.statistics)
    for i, norm in enumerate(norms, start=1):
        assert_rounded_alike(step.statistics[f"norm{i}.mean"], norm.running_mean)
        assert_rounded_alike(step.statistics[f"norm{i}.var"], norm.running_var)


def test_a_single_value_and_a_forged_negative_variance_count_as_none() -> None:
    params = {"n.scale": torch.ones(2), "n.shift": torch.tensor([3.0, 4.0])}
    params |= {"n.mean": torch.zeros(2), "n.var": torch.full((2,), 5.0)}
    step = all_real(1)
    out = models.batch_norm(torch.tensor([[[[1.0]], [[2.0]]]]), params, "n", step)
    assert out.flatten().tolist() == [3.0, 4.0]
    assert step.statistics["n.var"].tolist() == [5.0, 5.0]
    torch.testing.assert_close(step.statistics["n.mean"], torch.tensor([0.1, 0.2]))
    params = {f"n.{part}": torch.tensor([v]) for part, v in {"mean": 0.0, "scale": 2.0}.items()}
    params |= {"n.var": torch.tensor([-1.0]), "n.shift": torch.tensor([0.5])}
    out = models.batch_norm(torch.full((1, 1, 1, 1), 1e-3), params, "n", None)
    assert out.item() == pytest.approx(2e-3 / math.sqrt(1e-5) + 0.5)


def residual_by_hand(params: Tree, x: Tensor) -> Tensor:
    """`RESIDUAL` from torch.nn's layers, block by block."""
    layers: dict[str, nn.Module] = {}
    plan = [(2, 4, 1), *[(4, 4, 1)] * 4, (4, 6, 2), *[(6, 6, 1)] * 3]
    for i, (ins, out, stride) in enumerate(plan, start=1):
        layers[f"conv{i}"] = nn.Conv2d(ins, out, 3, stride, padding=1, bias=False)
        layers[f"norm{i}"] = nn.GroupNorm(2, out)
    layers["fc1"] = nn.Linear(6, 3)
    loaded(layers, params)
    for layer in layers.values():
        layer.double()

    def conv(x: Tensor, i: int) -> Tensor:
        out: Tensor = layers[f"norm{i}"](layers[f"conv{i}"](x))
        return out

    x = conv(x, 1).relu()
    x = (x + conv(conv(x, 2).relu(), 3)).relu()
    x = (x + conv(conv(x, 4).relu(), 5)).relu()
    smaller = torch.cat([x[:, :, ::2, ::2], torch.zeros(len(x), 2, 5, 3)], dim=1)
    x = (smaller + conv(conv(x, 6).relu(), 7)).relu()
    x = (x + conv(conv(x, 8).relu(), 9)).relu()
    logits: Tensor = layers["fc1"](x.flatten(2).mean(dim=2))
    return logits


def test_the_residual_network_computes_what_torch_nn_computes() -> None:
    params = doubled(random_tree(RESIDUAL))
    x = images(RESIDUAL, 4).double()
    expected = residual_by_hand(params, x).detach()
    assert_rounded_alike(RESIDUAL.logits(params, x), expected)
    assert_rounded_alike(RESIDUAL.logits(params, x, all_real(4)), expected)


@pytest.mark.parametrize("padding", [0, 2])
def test_lenet5_computes_what_torch_nn_computes_in_use(padding: int) -> None:
    network = dataclasses.replace(DROPPED, image=(2, 17, 16), padding=padding)
    params = doubled(random_tree(network))
    x = images(network, 4).double()
    layers: dict[str, nn.Module] = {
        "conv1": nn.Conv2d(2, 3, 5, padding=padding),
        "conv2": nn.Conv2d(3, 4, 5, padding=padding),
        "fc1": nn.Linear(network.shapes["fc1"][1], 7),
        "fc2": nn.Linear(7, 3),
    }
    loaded(layers, params)
    conv1, conv2, fc1, fc2 = layers.values()
    pool = nn.MaxPool2d(2)
    relu = nn.ReLU()
    net = nn.Sequential(conv1, relu, pool, conv2, relu, pool, nn.Flatten(), fc1, relu, fc2).double()
    assert_rounded_alike(network.logits(params, x), net(x).detach())


def test_dropout_keeps_its_share_and_drops_other_units_in_each_layer_and_step() -> None:
    step = all_real(1)
    x = torch.full((1, 40_000), 2.0)
    out = models.dropout(x, 0.3, "fc1", step)
    torch.testing.assert_close(out, torch.where(out > 0, 2 / 0.7, 0.0))
    sigma = math.sqrt(0.3 * 0.7 / 40_000)
    assert (out > 0).float().mean().item() == pytest.approx(0.7, abs=5 * sigma)
    assert torch.equal(models.dropout(x, 0.0, "fc1", step), x)
    assert torch.equal(models.dropout(x, 0.3, "fc1", None), x)
    cases = (("conv2", 1), ("fc1", 1), ("fc1", 2))
    real = torch.ones(1).bool()
    draws = [models.dropout(x, 0.5, layer, Step(Key(k), real)) for layer, k in cases]
    assert not any(torch.equal(a, b) for a, b in combinations(draws, 2))


def test_lenet5_drops_after_the_second_convolution_and_the_first_dense_layer() -> None:
    params = doubled(random_tree(DROPPED))
    x = images(DROPPED, 4).double()
    step = all_real(4)
    nothing = dataclasses.replace(DROPPED, conv_dropout=0.0, dense_dropout=0.0)
    assert torch.equal(nothing.logits(params, x, step), nothing.logits(params, x))

    # Without hidden weights on the way, a rate can only act where it is said to.
    ones = torch.ones(7, dtype=torch.float64)
    silent = params | {"fc1": torch.zeros_like(params["fc1"]), "fc1.bias": ones}
    conv = dataclasses.replace(DROPPED, dense_dropout=0.0)
    dense = dataclasses.replace(DROPPED, conv_dropout=0.0)
    assert torch.equal(conv.logits(silent, x, step), conv.logits(silent, x))
    assert not torch.allclose(dense.logits(silent, x, step), dense.logits(silent, x))
    assert not torch.allclose(conv.logits(params, x, step), conv.logits(params, x))

    share_kept = (step.key.fold("fc1").uniform(4, 7) >= 0.5) * 2.0
    expected = share_kept.double() @ params["fc2"].T + params["fc2.bias"]
    assert_rounded_alike(dense.logits(silent, x, step), expected)


def clients(network: Network, sizes: list[int]) -> Iterator[Client]:
    tree = network.init(Key(3))
    for i, size in enumerate(sizes):
        key = Key(8).fold(i)
        x, y = key.fold("x").normal(size, *network.image), key.fold("y").uniform(size) * 3
        yield Client(tree, x * (1 + i), y.long(), key, {})


@pytest.mark.parametrize("network", NETWORKS, ids=IDS)
def test_padding_changes_nothing(network: Network) -> None:
    params = doubled(random_tree(network))
    x = images(network, 3).double()
    y = torch.tensor([0, 2, 1])
    rubbish = Key(9).normal(2, *network.image).double() * 10
    loss = Loop(FedAvg(), shared_of(network), Schedule(1, 3)).loss

    def result(x: Tensor, y: Tensor) -> tuple[Tree, tuple[Tensor, Tree]]:
        def aux(params: Tree) -> tuple[Tensor, tuple[Tensor, Tree]]:
            value, statistics = loss(params, {}, x, y, Key(4))
            return value, (value, statistics)

        gradient, rest = torch.func.grad(aux, has_aux=True)(params)
        return gradient, rest

    plain = result(x, y)
    padded = result(torch.cat([x, rubbish]), torch.cat([y, torch.tensor([-1, -1])]))
    assert_rounded_alike(padded, plain)


@pytest.mark.parametrize("network", [*NETWORKS, CNN4().build((1, 16, 16), 3)], ids=[*IDS, "cnn4"])
def test_stacked_training_is_the_loop_also_in_its_statistics_and_draws(network: Network) -> None:
    # Batches of 4 end in one of 3, 4, 1 and 2; clients of 4 and of 6 steps share a launch.
    protocol = FedAvg(lr=0.03, momentum=0.0)
    schedule = Schedule(2, 4)
    group = [
        dataclasses.replace(client, tree=doubled(client.tree), x=client.x.double())
        for client in clients(network, [7, 8, 9, 10])
    ]
    layout = shared_of(network).layout
    engine = Padded(protocol, shared_of(network), schedule)
    assert len(list(engine.launches(group, True))) == 1
    loop, stacked = (
        layout.layers(kind.train(group)[0])
        for kind in (Loop(protocol, shared_of(network), schedule), engine)
    )
    parts = zip(layout.names, stacked, loop, strict=True)
    for name, ours, theirs in parts:
        assert_rounded_alike(ours, theirs, name)
        assert theirs.norm() > 0, name  # every parameter is trained, every statistic moves


def test_fedavg_sends_scale_shift_and_statistics_like_weights() -> None:
    protocol = FedAvg(lr=0.05)
    both = shared_of(NORMED)
    (client,) = clients(NORMED, [6])
    _, payload = exchanged(protocol, both, Schedule(1, 6), clients=[client])
    assert payload.values().shape == (1, both.layout.d)
    sent = both.layout.unflatten(payload.values()[0])
    step = all_real(6)
    (rows,) = Schedule(1, 6).rows(6, client.key)
    NORMED.logits(client.tree, client.x[rows], step)
    for name, value in step.statistics.items():
        torch.testing.assert_close(sent[name], value - client.tree[name])
    assert all(sent[f"norm1.{part}"].norm() > 0 for part in ("scale", "shift"))

    state = protocol.server_step(both, protocol.init(both), payload.values()[0].double(), 1, Key(0))
    model = protocol.model(both, state, Key(1))
    assert isinstance(model, dict)
    assert not torch.equal(model["norm1.var"], torch.ones(3))


@pytest.mark.parametrize("model", [CNN4(), CNN8()])
def test_the_last_pool_is_left_out_where_it_would_leave_nothing(model: Model) -> None:
    assert Conv8().build((1, 16, 16), 10).shapes["fc1"] == (256, 512)  # a pixel is enough there
    assert model.build((1, 8, 8), 10).shapes["fc1"] == (10, 256)
    assert model.build((1, 15, 16), 10).shapes["fc1"] == (10, 256 * 1 * 2)
    assert model.build((1, 16, 16), 10).shapes["fc1"] == (10, 256)


@pytest.mark.parametrize(
    ("model", "image", "message"),
    [
        (CNN4(), (1, 7, 8), "^cnn4 needs images of at least .*use resnet20$"),
        (CNN8(), (1, 8, 7), "^cnn8 needs images of at least .*use resnet20$"),
        (LeNet5(), (1, 3, 4), "^lenet5 needs images of at least .*use resnet20$"),
        (Conv8(), (1, 16, 15), r"conv8 .* at least 16 x 16 .* got \(1, 16, 15\)"),
        (models.Conv10(), (1, 8, 8), "conv10 .* 5 pools.*use lenet or conv4 or conv6$"),
        (LeNet(), (1, 1, 8), "lenet .*use larger images$"),
        (LeNet(), (0, 8, 8), "must be"),
        (CNN4(), (0, 8, 8), "must be"),
        (LeNet5(), (0, 8, 8), "must be"),
        (ResNet20(), (0, 8, 8), "must be"),
    ],
)
def test_too_small_an_image_is_refused_in_one_line(
    model: Model, image: Image, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        model.build(image, 10)
    with pytest.raises(ConfigError, match="must be"):  # no class
        model.build((3, 32, 32), 0)


@pytest.mark.parametrize("model", [CNN4(), LeNet5(), ResNet20()])
@pytest.mark.parametrize("image", [(1, 8, 8), (1, 28, 28), (3, 32, 32)])
def test_every_image_of_the_data_sets_fits(model: Model, image: Image) -> None:
    network = model.build(image, 10)
    assert network.logits(network.init(Key(1)), images(network, 1)).shape == (1, 10)


def test_rates_and_groups_are_those_of_the_papers_unless_said_otherwise() -> None:
    image = (1, 8, 8)
    net = models.DropoutNet(image, (32, 64), 2, 512, 10, conv_dropout=0.1, dense_dropout=0.3)
    assert LeNet5().build(image, 10) == net
    other = dataclasses.replace(net, conv_dropout=0.2, dense_dropout=0.4)
    assert LeNet5(conv_dropout=0.2, dense_dropout=0.4).build(image, 10) == other
    assert ResNet20().build(image, 10) == models.ResidualNet(image, (16, 32, 64), 3, 2, 10)
