"""Weights before training, and those that are never trained, beside torch.nn's own."""

import math
from typing import Any

import pytest
import torch
from exchanges import shared_of
from torch import Tensor, nn

from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.models.models import LeNet5
from fedbench.models.network import ConvNet, Network
from fedbench.protocols.fsl import random_network
from fedbench.protocols.hidenseek import kept_weights

WIDE = ConvNet((3, 16, 16), ((40, 60),), (20,), 10)  # fans apart; 1,080 weights in the first layer
FROZEN = ("fsl", "sfsl", "fedpm", "fedmask", "topk-mask", "hidenseek")
TORCH: dict[str, Any] = {
    "kaiming-normal": lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"),
    "glorot-normal": nn.init.xavier_normal_,
}


def many(shape: tuple[int, ...], draw: Any) -> Tensor:
    """Tensors of that shape side by side, 30,000 numbers at least."""
    count = math.ceil(30_000 / math.prod(shape))
    return torch.cat([draw(torch.empty(shape)).flatten() for _ in range(count)])


@pytest.mark.parametrize("weight_init", TORCH)
def test_gaussian_weights_are_distributed_as_those_of_torch_nn_init(weight_init: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for seed in (1, 2):
            for name, w in random_network(shared_of(WIDE, seed), weight_init).items():
                x = w.flatten()
                theirs = many(tuple(w.shape), TORCH[weight_init])
                sigma = float(theirs.std())
                error = 1 / math.sqrt(2 * len(x)) + 1 / math.sqrt(2 * len(theirs))
                assert float(x.std()) / sigma == pytest.approx(1, abs=4 * error), name
                assert abs(float(x.mean())) < 4 * sigma / math.sqrt(len(x))
                # A normal variable's fourth moment is 3 sigma**4, with a deviation of sqrt(96).
                fourth = float((x / x.std()).pow(4).mean())
                assert fourth == pytest.approx(3, abs=4 * math.sqrt(96 / len(x)))


@pytest.mark.parametrize(
    ("weight_init", "magnitudes"),
    [
        # fan_in is 3 * 9 = 27, 40 * 9 = 360, 60 * 8 * 8 = 3,840 and 20.
        ("signed-constant", [0.2721655, 0.0745356, 0.0228218, 0.3162278]),
        ("signed-e", [0.5231336, 0.1432660, 0.0438661, 0.6078263]),
    ],
)
def test_signed_weights_have_two_values_in_each_layer(
    weight_init: Any, magnitudes: list[float]
) -> None:
    network = random_network(shared_of(WIDE), weight_init)
    for w, magnitude in zip(network.values(), magnitudes, strict=True):
        values, counts = torch.unique(w, return_counts=True)
        assert values.tolist() == pytest.approx([-magnitude, magnitude], rel=3e-6)
        assert abs(int(counts[0] - counts[1])) < 4 * math.sqrt(w.numel())
    assert list(network) == ["conv1", "conv2", "fc1", "fc2"]


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("weight_init", ["signed-constant", "signed-e", *TORCH])
def test_every_protocol_of_frozen_weights_deploys_a_part_of_those_it_was_told(
    name: str, weight_init: Any
) -> None:
    protocol = registry.load("protocol", f"{name}:weight_init={weight_init}")
    shared = shared_of()
    drawn = random_network(shared, weight_init)
    frozen = protocol.frozen(shared)
    model = protocol.model(shared, protocol.init(shared), Key(0))
    for layer in shared.weights.names:
        for w in (frozen[layer], model[layer]):
            left = w != 0
            assert torch.equal(w[left].abs(), drawn[layer][left].abs())
            assert left.any()
        assert name == "hidenseek" or torch.equal(frozen[layer], drawn[layer])


def test_a_default_is_left_out_of_records_and_another_start_is_not() -> None:
    for name in FROZEN:
        default = "kaiming-normal" if name == "hidenseek" else "signed-constant"
        for weight_init in ("signed-constant", "kaiming-normal"):
            protocol = registry.load("protocol", f"{name}:weight_init={weight_init}")
            said = f"weight_init={weight_init}" in registry.describe(name, protocol)
            assert said is (weight_init != default)
    assert "init" not in registry.describe("lenet5", LeNet5())
    assert registry.describe("lenet5", LeNet5(init="torch")).endswith(",init=torch")


def test_hidenseek_prunes_the_weights_that_it_was_told_to_draw() -> None:
    shared = shared_of(WIDE)
    kinds = ("kaiming-normal", "signed-constant")
    kept = [kept_weights(shared, 0.5, kind) for kind in kinds]
    assert not torch.equal(*kept)
    for kind, mask in zip(kinds, kept, strict=True):
        protocol = registry.load("protocol", f"hidenseek:weight_init={kind}")
        assert torch.equal(shared.weights.flatten(protocol.frozen(shared)) != 0, mask)


def modules(network: Network) -> dict[str, nn.Module]:
    """Layers of `LeNet5` by name, as torch.nn makes them."""
    made: dict[str, nn.Module] = {}
    for name in ("conv1", "conv2"):
        outs, ins, side, _ = network.shapes[name]
        made[name] = nn.Conv2d(ins, outs, side)
    for name in ("fc1", "fc2"):
        outs, ins = network.shapes[name]
        made[name] = nn.Linear(ins, outs)
    return made


def test_lenet5_starts_as_torch_nn_makes_its_layers() -> None:
    network = LeNet5(init="torch").build((1, 28, 28), 10)
    drawn = [network.init(Key(seed)) for seed in range(8)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = [modules(network) for _ in range(8)]
    for name in network.shapes:
        layer, _, part = name.partition(".")
        ours = torch.cat([tree[name].flatten() for tree in drawn])
        theirs = torch.cat(
            [getattr(layers[layer], part or "weight").detach().flatten() for layers in made]
        )
        bound = 1 / math.sqrt(network.fan_in(layer))
        near = 1 - 10 / len(ours)  # misses all of the draws with a chance of exp(-10)
        for x in (ours, theirs):
            assert near * bound < float(x.abs().max()) <= bound * (1 + 1e-6), name
            # U(-b, b) has the variance b**2 / 3, whose estimate deviates by sqrt(4 / 45) b**2.
            variance = float(x.square().mean()) / bound**2
            assert variance == pytest.approx(1 / 3, abs=4 * math.sqrt(4 / 45 / len(x))), name
            assert abs(float(x.mean())) < 4 * bound / math.sqrt(3 * len(x)), name


def test_lenet5_starts_as_before_unless_it_is_told() -> None:
    tree = LeNet5().build((1, 28, 28), 10).init(Key(1))
    assert not tree["fc1.bias"].any()
    assert float(tree["fc1"].std()) == pytest.approx(math.sqrt(2 / 1024), rel=0.02)
