"""Modules of torch.nn as networks: names, statistics, draws, first weights, and what is refused."""

import copy
import math
import random
import warnings
from pathlib import Path
from typing import Any

import moody
import numpy as np
import pytest
import torch
from own_models import MODELS, Branching, Dropping, Normed, Plain, Words
from torch import Tensor, nn

import fedbench
from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.data.own import from_arrays
from fedbench.executors.factory import executor
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.models.lora import factored
from fedbench.models.modules import ModuleModel, ModuleNet
from fedbench.models.network import Network, Step
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.hidenseek import HideNSeek, kept_weights
from fedbench.testing import assert_rounded_alike, doubled

IMAGE = (1, 8, 8)
CPU = torch.device("cpu")


def net(module: Any, **fields: Any) -> ModuleNet:
    built = ModuleModel(module=module, **fields).build(IMAGE, 10)
    assert isinstance(built, ModuleNet)
    return built


def step(real: list[bool], key: int = 0) -> Step:
    return Step(Key(key), torch.tensor(real))


def global_states() -> tuple[Any, ...]:
    """States of the global generators, to be compared; without those that a test's module drew."""
    numbers: Any = np.random.get_state(legacy=True)  # noqa: NPY002
    return torch.get_rng_state().tolist(), random.getstate(), numbers[1].tolist()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the models of `own_models` as plug-ins."""
    site = moody.package(tmp_path / "site", "owner", {"models": MODELS})
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(registry, "_points", registry._points.__wrapped__)


def test_a_module_keeps_its_names_with_covered_weights_first_and_statistics_last() -> None:
    network = net(Normed)
    assert network.weights == ("conv.weight", "fc.weight")
    assert network.statistics == ("norm.running_mean", "norm.running_var")
    rest = ("conv.bias", "norm.weight", "norm.bias", "fc.bias")
    assert tuple(network.shapes) == (*network.weights, *rest, *network.statistics)
    shared = Shared(network, 3, CPU)
    assert shared.weights.names + shared.rest.names == shared.layout.names
    assert set(network.init(Key(0))) == set(network.shapes)
    assert (network.head, network.head_bias) == ("fc.weight", "fc.bias")
    assert (network.fan_in("conv.weight"), network.fan_out("conv.weight")) == (9, 36)


def test_a_module_that_is_one_linear_layer_is_its_own_last_layer() -> None:
    network = ModuleModel(module=nn.Linear(12, 2)).build((12,), 2)
    assert (network.head, network.head_names) == ("weight", ("weight", "bias"))
    x = Key(1).normal(3, 12)
    assert torch.equal(network.features(network.init(Key(0)), x), x)
    with pytest.raises(ConfigError, match="weights before its last layer"):
        factored(network)


def test_what_a_mask_covers_is_named_by_patterns_and_frozen_parameters_never_travel() -> None:
    module = Normed()
    module.conv.requires_grad_(False)
    assert net(module).weights == ("fc.weight",)
    assert "conv.weight" not in net(module).shapes
    assert net(Normed, weights=("conv.*",)).weights == ("conv.weight", "conv.bias")
    named = net(Normed, weights=("norm.weight", "fc.weight"))
    assert named.weights == ("norm.weight", "fc.weight")
    assert (named.fan_in("norm.weight"), named.fan_out("norm.weight")) == (1, 1)
    with pytest.raises(ConfigError, match=r"weights 'convs\.\*' must match a parameter of Normed"):
        net(Normed, weights=("convs.*",))


def test_what_is_not_trained_is_read_in_the_precision_of_what_is() -> None:
    module = Normed()
    module.conv.requires_grad_(False)
    module.register_buffer("unused", torch.ones(1))
    network = net(module)
    wide = {name: x.double() for name, x in network.init(Key(0)).items()}
    assert network.logits(wide, Key(1).normal(2, *IMAGE).double()).dtype == torch.float64
    kept = kept_weights(Shared(network, 3, CPU), 0.5)  # whose saliency is in float64
    assert int(kept.sum()) == math.prod(network.table["fc.weight"]) // 2


def test_use_and_training_are_those_of_the_module_itself() -> None:
    module = Normed(rate=0.0)
    network = net(module)
    params = {name: x.double().requires_grad_() for name, x in network.init(Key(0)).items()}
    x = Key(5).normal(6, *IMAGE).double()
    theirs = copy.deepcopy(module).double().eval()
    assert_rounded_alike(network.logits(params, x).detach(), theirs(x).detach())
    theirs.train()
    now = step([True] * 6)
    ours = network.logits(params, x, now)
    wanted = theirs(x)
    assert_rounded_alike(ours.detach(), wanted.detach())
    for name in network.statistics:
        assert_rounded_alike(now.statistics[name], theirs.get_buffer(name), name)
    torch.autograd.backward([ours.square().sum(), wanted.square().sum()])
    for name, parameter in theirs.named_parameters():
        torch.testing.assert_close(params[name].grad, parameter.grad)
    for name, x in module.named_buffers():
        assert torch.equal(x, Normed(rate=0.0).get_buffer(name)), "the user's module was changed"


def test_padding_is_in_no_statistic_of_a_batch() -> None:
    network = net(Normed(rate=0.0))
    params = {name: x.double() for name, x in network.init(Key(0)).items()}
    x = Key(5).normal(5, *IMAGE).double()
    padded = torch.cat([x, 100 + Key(6).normal(3, *IMAGE)])
    short = step([True] * 5)
    long = step([True] * 5 + [False] * 3)
    alone = network.logits(params, x, short)
    assert_rounded_alike(network.logits(params, padded, long)[:5], alone)
    for name in network.statistics:
        assert_rounded_alike(long.statistics[name], short.statistics[name], name)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)), (4,)),
        (
            lambda: nn.Sequential(
                nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3, affine=False), nn.Flatten(), nn.Linear(9, 2)
            ),
            (2, 4),
        ),
    ],
    ids=["rows", "series"],
)
def test_batch_norm_of_rows_and_of_series_is_torchs(module: Any, shape: tuple[int, ...]) -> None:
    made = module()
    network = ModuleModel(module=made).build(shape, 2)
    params = {name: x.double() for name, x in network.init(Key(0)).items()}
    x = Key(1).normal(7, *shape).double()
    now = step([True] * 7)
    made.double().train()
    ours = network.logits(params, x, now)
    assert_rounded_alike(ours.detach(), made(x).detach())
    for name in network.statistics:
        assert_rounded_alike(now.statistics[name], made.get_buffer(name), name)


def test_a_function_draws_under_the_seed_an_instance_starts_from_its_own_weights() -> None:
    module = Normed()
    states = global_states()
    drawn = net(Normed)
    first, again, other = (drawn.init(Key(seed))["fc.weight"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    given = net(module)
    for seed in (1, 2):
        assert torch.equal(given.init(Key(seed))["fc.weight"], module.fc.weight)
    fresh = net(module, init="fresh")
    anew = fresh.init(Key(1))["fc.weight"]
    assert not torch.equal(anew, module.fc.weight)
    assert torch.equal(anew, fresh.init(Key(1))["fc.weight"])
    assert not torch.equal(anew, fresh.init(Key(2))["fc.weight"])
    moved = given.init(Key(1))["fc.weight"]
    moved += 1
    assert torch.equal(given.init(Key(1))["fc.weight"], module.fc.weight)
    net(Dropping).logits(net(Dropping).init(Key(0)), torch.zeros(3, *IMAGE), step([True] * 3))
    assert global_states() == states


def test_dropout_is_drawn_from_the_key_of_the_step_by_layer_or_from_a_generator_it_seeds() -> None:
    x = Key(5).normal(6, *IMAGE)
    for module in (Normed, Dropping):
        network = net(module)
        params = network.init(Key(0))
        one, same, other = (network.logits(params, x, step([True] * 6, k)) for k in (1, 1, 2))
        assert torch.equal(one, same)
        assert not torch.equal(one, other)
        assert torch.equal(network.logits(params, x), network.logits(params, x))
    # Rate 1/4: a unit is 4/3 of itself or nothing; channels of Dropout2d go as a whole.
    layers = nn.Sequential(nn.Dropout2d(0.25), nn.Flatten(), nn.Linear(512, 512, bias=False))
    layers[2].weight.data = torch.eye(512)
    masked = ModuleModel(module=layers).build((8, 8, 8), 512)
    out = masked.logits(masked.init(Key(0)), torch.ones(50, 8, 8, 8), step([True] * 50))
    channels = out.reshape(400, 64)
    assert sorted(set(channels.flatten().tolist())) == pytest.approx([0.0, 4 / 3])
    assert bool((channels == channels[:, :1]).all())
    assert float((channels[:, 0] == 0).float().mean()) == pytest.approx(0.25, abs=0.08)


def clients(network: Network, n: int = 3) -> list[Client]:
    protocol = FedAvg()
    shared = Shared(network, 3, CPU)
    tree = protocol.receive(shared, protocol.broadcast(shared, protocol.init(shared), [0], Key(7)))
    return [
        Client(
            tree=tree,
            x=Key(8).fold(i).normal(7, *network.image),
            y=torch.arange(7) % network.classes,
            key=Key(9).fold(i),
            memory={},
        )
        for i in range(n)
    ]


def test_loop_and_lock_step_train_batch_norm_and_dropout_alike() -> None:
    network = net(Normed)
    assert network.alone == ""
    shared = Shared(network, 3, CPU)
    ours = doubled(clients(network))
    both = [way(FedAvg(lr=0.05), shared, Schedule(2, 4)).train(ours)[0] for way in (Loop, Stacked)]
    assert_rounded_alike(both[0], both[1])
    still = shared.layout.unflatten(both[0])["norm.running_mean"]
    assert float(still.abs().min()) > 0


class Standardized(nn.Linear):
    """A linear layer on images without their mean, divided by their deviation: NaN of zeros."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(1)
        x = (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True)
        return super().forward(x)


def test_padding_is_an_image_that_a_network_can_answer() -> None:
    network = net(Standardized)
    shared = Shared(network, 3, CPU)
    ours = doubled(clients(network))  # whose second batch is short
    both = [way(FedAvg(), shared, Schedule(1, 4)).train(ours)[0] for way in (Loop, Stacked)]
    assert_rounded_alike(both[0], both[1])
    assert bool(torch.isfinite(both[1]).all())


class Centred(nn.Linear):
    """A linear layer that subtracts the mean of the batch, which padding would move."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x.flatten(1))
        return h - h.mean(dim=0) if self.training else h


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Dropping, "draws from a global generator"),
        (Branching, "cannot be mapped over clients"),
        (Centred, "mixes the samples of a batch in training"),
    ],
)
def test_what_cannot_be_stacked_is_said_in_one_line_and_trains_in_the_loop(
    module: type[nn.Module], why: str
) -> None:
    network = net(module)
    shared = Shared(network, 3, CPU)
    with pytest.warns(UserWarning, match=f"clients train one after the other: the model {why}"):
        chosen = executor("auto", FedAvg(), shared, Schedule(1, 4))
    assert type(chosen) is Loop
    with pytest.raises(ConfigError, match=f"must be auto or loop for a model that {why}"):
        executor("stacked", FedAvg(), shared, Schedule(1, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        executor("loop", FedAvg(), shared, Schedule(1, 4))
    updates = [chosen.train(clients(network))[0] for _ in range(2)]
    assert torch.equal(*updates)
    client = clients(network)[0]
    each = chosen.each(client.tree, client.x[:3], client.y[:3], Key(1), frozen={})
    assert {len(slope) for slope in each.values()} == {3}


class Counting(nn.Module):
    """A layer with a buffer that training moves."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
        out: Tensor = self.fc(x.flatten(1))
        return out


class Noisy(Plain):
    """A module that answers at random in use, too."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


def frozen() -> nn.Module:
    return Plain().requires_grad_(False)


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)


class Silent(nn.Module):
    """Module whose forward forgets to return."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> None:
        self.out(x.flatten(1))


def test_images_without_a_channel_are_told_where_it_goes() -> None:
    model = ModuleModel(module=nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2)))
    with pytest.raises(ConfigError, match=r"; if they are images, give them as x\[:, None\]$"):
        model.build((8, 8), 2)


REFUSED: list[tuple[Any, str]] = [
    (lambda: Normed(classes=1000), r"Normed must return logits \(2, 10\), got \(2, 1000\)"),
    (lambda: Plain(65), r"Plain must take samples of shape \(n, 1, 8, 8\), got RuntimeError"),
    (frozen, "Plain must have parameters to train, got none"),
    (lambda: flat(nn.LazyLinear(10)), "Sequential has lazy layers without shapes"),
    (lambda: flat(nn.Linear(64, 10), nn.Softmax(dim=1)), "must return logits, got probabilities"),
    (lambda: nn.LayerNorm(10), "must have a linear or convolution layer with a weight"),
    (Counting, "no buffer that training changes but those of batch norm, got seen"),
    (Noisy, "Noisy must answer alike each time"),
    (lambda: flat(nn.Linear(64, 10), nn.LSTM(10, 10)), "Sequential must return a tensor of logits"),
    (lambda: flat(nn.Linear(64, 10), nn.BatchNorm1d(10, momentum=None)), "must have a momentum"),
    (Silent, "Silent must return a tensor of logits .*, got None; end its forward with return"),
]


@pytest.mark.parametrize(("module", "why"), REFUSED, ids=[why[:24] for _, why in REFUSED])
def test_a_module_that_cannot_be_trained_is_refused_in_one_line(module: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        net(module)
    assert "\n" not in str(error.value)


def test_a_model_of_no_module_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ModuleModel.module must be a torch.nn.Module or a"):
        ModuleModel()
    with pytest.raises(ConfigError, match=r"ModuleModel.module must make a torch.nn.Module, got"):
        net(lambda: 3)
    with pytest.raises(ConfigError, match=r"ModuleModel.weights must be a tuple of names"):
        ModuleModel(module=Plain, weights="first.*")  # type: ignore[arg-type]


def test_features_are_what_the_last_linear_layer_gets_or_refused_in_one_line() -> None:
    network = net(Plain)
    params = network.init(Key(0))
    x = Key(3).normal(4, *IMAGE)
    features = network.features(params, x)
    assert features.shape == (4, 12)
    bias = params["head.bias"]
    logits = nn.functional.linear(features, params["head.weight"], bias)
    torch.testing.assert_close(logits, network.logits(params, x))
    scaled = net(lambda: flat(nn.Linear(64, 10), nn.LayerNorm(10)))
    assert scaled.head_names == ()
    with pytest.raises(ConfigError, match="Sequential must end in a"):
        scaled.features(scaled.init(Key(0)), x)


def test_token_ids_are_found_by_trying() -> None:
    network = ModuleModel(module=Words).build((5,), 3)
    assert isinstance(network, ModuleNet)
    assert network.tokens
    assert network.examples(4, Key(0)).dtype == torch.int64
    assert network.weights == ("out.weight",)
    assert network.alone == ""


class Recurrent(Words):
    """Embeddings through a recurrent layer, which torch cannot map where its weights are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(6, 6, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.layer(self.embed(ids))[0][:, -1])
        return out


class InPlace(Plain):
    """Module that writes into its bias, which clients that send masks share."""

    def forward(self, x: Tensor) -> Tensor:
        out = self.head.bias.expand(len(x), -1).clone()
        out += super().forward(x)
        return out


class Ordered(Plain):
    """Its inputs in an order that lies in a buffer of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.arange(64).flip(0))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.order, Tensor)
        return super().forward(x.flatten(1)[:, self.order])


class Rated(Plain):
    """Its logits times a number without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * super().forward(x)


FEW: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 1, "epochs": 1, "partition": "iid"}


@pytest.mark.parametrize("protocol", ["fsl", "fedpm", "decomfl"])
def test_a_recurrent_layer_is_trained_client_by_client(protocol: str) -> None:
    x = Key(0).integers(20, 60 * 5).reshape(60, 5)
    model = ModuleModel(module=Recurrent)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        why = model.build((5,), 3).alone
    assert warned == []  # of torch's, that to map it would be slow
    assert why.startswith("cannot be mapped over clients by torch.vmap")
    scenario = fedbench.Scenario(model=model, protocol=protocol, **FEW)
    assert fedbench.play(scenario, data=from_arrays(x, torch.arange(60) % 3)).rounds[0].accepted


def test_what_cannot_write_into_shared_parameters_is_trained_client_by_client() -> None:
    assert net(InPlace).alone.startswith("cannot be mapped over clients by torch.vmap")
    assert net(Normed).alone == ""


def test_whole_numbers_of_a_buffer_stay_whole() -> None:
    network = net(Ordered)
    logits = network.logits(network.init(Key(0)), Key(1).normal(2, *IMAGE))
    assert bool(torch.isfinite(logits).all())


@pytest.mark.parametrize("protocol", ["fedavg", "fedmog"])
def test_a_parameter_may_be_a_number_without_dimensions(protocol: str) -> None:
    scenario = fedbench.Scenario(model=ModuleModel(module=Rated), protocol=protocol, **FEW)
    assert fedbench.play(scenario).rounds[0].accepted == 2


def test_hidenseek_refuses_token_ids_before_the_first_round() -> None:
    network = ModuleModel(module=Words).build((5,), 3)
    with pytest.raises(ConfigError, match="must have samples of numbers"):
        HideNSeek().init(Shared(network, 3, CPU))


MORE = ("signsgd", "fsl", "fedmrn", "fedsparse", "fedavg:server=adam", "eden", "worker-momentum")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fedpm", *MORE])
def test_protocols_play_with_a_module_and_its_batch_norm(own: None, protocol: str) -> None:
    model = "plain" if protocol in ("fsl", "signsgd") else "normed"
    scenario = fedbench.Scenario(
        protocol=protocol, model=model, clients=10, per_round=4, rounds=2, epochs=1
    )
    loop = fedbench.play(scenario, executor="loop")
    assert loop.scenario.model.startswith(model)
    lock = fedbench.play(scenario, executor="stacked")
    assert loop.id == lock.id
    assert loop.result.accuracy == pytest.approx(lock.result.accuracy, abs=0.15)


def test_a_protocol_without_statistics_refuses_batch_norm(own: None) -> None:
    scenario = fedbench.Scenario(protocol="fsl", model="normed", rounds=1)
    with pytest.raises(
        ConfigError, match=r"model without batch norm.*; use group or layer norm in a"
    ):
        fedbench.play(scenario)


@pytest.mark.parametrize(
    ("attack", "defense"),
    [
        ("chameleon", "deepsight"),
        pytest.param("neurotoxin", "own", marks=pytest.mark.slow),
        pytest.param("iba", "own", marks=pytest.mark.slow),
    ],
)
def test_attacks_and_rules_that_look_into_the_network_work_on_a_module(
    own: None, attack: str, defense: str
) -> None:
    scenario = fedbench.Scenario(
        attack=attack,
        defense=defense,
        model="plain",
        clients=8,
        per_round=4,
        malicious=0.25,
        rounds=3,
        epochs=1,
        cohorts="stratified",
    )
    record = fedbench.play(scenario, executor="loop")
    assert record.result.accuracy > 0.1
