"""Architectures against the papers' tables, and the pure network against torch.nn."""

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.models import Conv4, Conv6, Conv8, Conv10, LeNet, Model
from fedbench.models.network import ConvNet
from fedbench.testing import assert_rounded_alike

TINY = ConvNet(image=(2, 7, 6), blocks=((3, 4), (5,)), hidden=(6,), classes=3)


def counts(model: Model, image: tuple[int, int, int], classes: int) -> list[int]:
    return [math.prod(shape) for shape in model.build(image, classes).shapes.values()]


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


def images(network: ConvNet, count: int) -> Tensor:
    return Key(7).normal(count, *network.image)


def test_lenet_and_conv8_have_the_weights_of_table_3() -> None:
    mnist = [288, 18_432, 1_605_632, 1_280]
    assert counts(LeNet(), (1, 28, 28), 10) == mnist
    assert counts(LeNet(), (1, 28, 28), 62) == [*mnist[:3], 7_936]
    convolutions = [1_728, 36_864, 73_728, 147_456, 294_912, 589_824, 1_179_648, 2_359_296]
    assert counts(Conv8(), (3, 32, 32), 10) == [*convolutions, 524_288, 65_536, 2_560]
    assert Conv6().build((1, 28, 28), 10).shapes["fc1"] == (256, 256 * 3 * 3)


@pytest.mark.parametrize(
    ("model", "image", "classes", "channels", "features"),
    [
        (Conv4(), (1, 28, 28), 10, [64, 64, 128, 128], 128 * 7 * 7),
        (Conv6(), (3, 32, 32), 10, [64, 64, 128, 128, 256, 256], 256 * 4 * 4),
        (Conv10(), (3, 32, 32), 100, [64, 64, 128, 128, 256, 256, 512, 512, 1024, 1024], 1024),
    ],
)
def test_the_other_networks_are_those_of_fedpm_table_2(
    model: Model, image: tuple[int, int, int], classes: int, channels: list[int], features: int
) -> None:
    shapes = model.build(image, classes).shapes
    assert [shape[0] for shape in shapes.values()] == [*channels, 256, 256, classes]
    assert shapes["fc1"] == (256, features)


@pytest.mark.parametrize("network", [TINY, LeNet().build((1, 8, 8), 10)])
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


def test_a_pixel_is_enough_after_the_last_pool_and_fewer_are_refused() -> None:
    assert Conv8().build((1, 16, 16), 10).shapes["fc1"] == (256, 512)
    with pytest.raises(ConfigError, match=r"conv8 .* at least 16 x 16 .* got \(1, 16, 15\)"):
        Conv8().build((1, 16, 15), 10)
    with pytest.raises(ConfigError, match=r"conv10 .* 5 pools.*use lenet or conv4 or conv6$"):
        Conv10().build((1, 8, 8), 10)
    with pytest.raises(ConfigError, match=r"lenet .*use larger images$"):
        LeNet().build((1, 1, 8), 10)


@pytest.mark.parametrize(("image", "classes"), [((1, 8, 8), 0), ((0, 8, 8), 10)])
def test_no_class_and_no_channel_are_refused(image: tuple[int, int, int], classes: int) -> None:
    with pytest.raises(ConfigError, match="must be"):
        LeNet().build(image, classes)


def test_a_network_is_a_value() -> None:
    assert len({LeNet().build((1, 28, 28), 10), LeNet().build((1, 28, 28), 10)}) == 1
