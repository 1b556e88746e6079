"""Modules that a run would get wrong without a word, or end in a traceback: mended or refused."""

import warnings
from typing import Any

import pytest
import torch
from own_models import Plain
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import fedbench
from fedbench.api import Shared
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.executors.vmap import Padded, Stacked
from fedbench.models.modules import ModuleModel, ModuleNet
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import assert_rounded_alike, doubled

IMAGE = (1, 8, 8)
FEW: dict[str, Any] = {"clients": 4, "per_round": 2, "rounds": 1, "epochs": 1, "partition": "iid"}


def net(module: Any) -> ModuleNet:
    built = ModuleModel(module=module).build(IMAGE, 10)
    assert isinstance(built, ModuleNet)
    return built


class Tied(Plain):
    """Two layers that have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(12, 12)
        self.third = nn.Linear(12, 12)
        self.third.weight = self.second.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.third(self.second(self.norm(self.first(x.flatten(1)))).relu())
        out: Tensor = self.head(hidden)
        return out


def test_tied_weights_come_back_under_each_of_their_names() -> None:
    scenario = fedbench.Scenario(model=Tied(), protocol="fedavg:lr=0.1", **FEW)
    _, deployed = fedbench.play(scenario, executor="loop", return_model=True)
    assert "third.weight" not in deployed.network.shapes  # it travels and is counted once
    fresh = Tied()
    fresh.load_state_dict(deployed.state_dict())  # whose last name of a weight wins
    assert torch.equal(fresh.second.weight, deployed.members[0]["second.weight"])
    x = Key(1).normal(3, *IMAGE)
    torch.testing.assert_close(fresh.eval()(x).softmax(dim=1), deployed.predict(x))


def test_logits_in_use_that_depend_on_other_samples_are_warned_of() -> None:
    normed = [nn.BatchNorm1d(12, track_running_stats=still) for still in (False, True)]
    modules = [nn.Sequential(nn.Flatten(), nn.Linear(64, 12), n, nn.Linear(12, 10)) for n in normed]
    with pytest.warns(UserWarning, match="depends on which samples are evaluated together"):
        net(modules[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(modules[1])


class Settled(Plain):
    """Batch norm that stays as it was pretrained, as is common in fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.settled = nn.BatchNorm1d(12)
        self.settled.running_mean = torch.arange(12.0)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.settled(self.norm(self.first(x.flatten(1)))).relu())
        return out

    def train(self, mode: bool = True) -> "Settled":
        super().train(mode)
        self.settled.eval()
        return self


@pytest.mark.parametrize("protocol", ["fedavg", "signsgd"])
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_statistics_of_a_batch_norm_that_is_never_in_training_stay(
    protocol: str, executor: str
) -> None:
    scenario = fedbench.Scenario(model=Settled(), protocol=protocol, **FEW)
    record, deployed = fedbench.play(scenario, executor=executor, return_model=True)
    assert record.parameters == sum(p.numel() for p in Settled().parameters())
    assert torch.equal(deployed.state_dict()["settled.running_mean"], torch.arange(12.0))


class Experts(Plain):
    """Two experts, of which an image uses one, and a layer that none uses."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(12, 10), nn.Linear(12, 10)])

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x.flatten(1))).relu()
        out: Tensor = self.experts[0](hidden)
        return out


def clients(network: ModuleNet) -> list[Client]:
    tree = network.init(Key(1))
    made = (Key(i).normal(9, *IMAGE) for i in range(2))
    return [Client(tree, x, torch.arange(9) % 10, Key(5).fold(i), {}) for i, x in enumerate(made)]


def test_what_a_step_does_not_use_has_gradient_zero_and_a_warning() -> None:
    with pytest.warns(UserWarning, match=r"Experts: a trial trains 6 of 10 .* not head.weight"):
        network = net(Experts)
    shared = Shared(network, 3, torch.device("cpu"))
    ours = doubled(clients(network))
    updates = [
        way(FedAvg(weight_decay=0.0), shared, Schedule(1, 4)).train(ours)[0]
        for way in (Loop, Stacked, Padded)
    ]
    assert_rounded_alike(updates[0], updates[1])
    assert_rounded_alike(updates[0], updates[2])
    change = shared.layout.unflatten(updates[0][0])
    assert not change["experts.1.weight"].any()
    assert change["experts.0.weight"].any()


@pytest.mark.filterwarnings("ignore:Experts. a trial .* trains is decayed, sent and counted")
def test_weight_decay_shrinks_what_no_step_uses_with_every_executor() -> None:
    network = net(Experts)
    shared = Shared(network, 3, torch.device("cpu"))
    ours = doubled(clients(network))
    decaying = FedAvg(lr=0.1, momentum=0.0, weight_decay=0.5)
    idle = ours[0].tree["experts.1.weight"]
    for way in (Loop, Stacked, Padded):
        updates, _ = way(decaying, shared, Schedule(1, 4)).train(ours)
        change = shared.layout.unflatten(updates[0])["experts.1.weight"]
        torch.testing.assert_close(change, (0.95**3 - 1) * idle)  # 9 samples in batches of 4


class Skipping(Plain):
    """Module with a batch norm that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = nn.BatchNorm1d(12)


@pytest.mark.filterwarnings("ignore:Skipping. a trial trains")
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_statistics_of_a_batch_norm_that_is_not_called_do_not_move(executor: str) -> None:
    scenario = fedbench.Scenario(model=Skipping(), protocol="fedavg", **FEW)
    _, deployed = fedbench.play(scenario, executor=executor, return_model=True)
    assert torch.equal(deployed.state_dict()["skipped.running_var"], torch.ones(12))
    assert torch.equal(deployed.state_dict()["skipped.running_mean"], torch.zeros(12))


def test_what_uses_all_of_its_parameters_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net(Plain)


class Saving(Plain):
    """Module that saves memory: its backward pass computes a layer again."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = checkpoint(lambda x: self.first(x).relu(), x.flatten(1), use_reentrant=False)
        out: Tensor = self.head(self.norm(hidden))
        return out


class Listing(Plain):
    """Module that keeps its weights in a list, too, and computes with those."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = [self.first.weight]

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x.flatten(1) @ self.listed[0].T + self.first.bias)
        return out


class Assigning(Plain):
    """Module that gives its buffer a new tensor, which a function call loses."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen = self.seen * 0.9 + x.mean().detach()
        return super().forward(x)


class Remembering(Plain):
    """Module that carries a mean from pass to pass in an attribute."""

    mean: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = x.mean().detach()
        return super().forward(x - self.mean)


class Overwriting(Plain):
    """Module that changes what its backward pass needs."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x.flatten(1)).relu()
        hidden *= 2
        out: Tensor = self.head(hidden)
        return out


class Casting(Plain):
    """Module in float64 that casts its samples to it."""

    def __init__(self) -> None:
        super().__init__()
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.double())


class Normal(Plain):
    """Module with torch's old weight norm, which it cannot copy."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nn.utils.weight_norm(self.first)


class Spectral(Plain):
    """Module with spectral norm, whose buffers follow the weight."""

    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.spectral_norm(self.first)


class Part(Plain):
    """Module one of whose layers is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.compile(self.first, backend="eager")  # type: ignore[assignment]


class Clamping(Plain):
    """Module that keeps its weights small by writing into them."""

    def forward(self, x: Tensor) -> Tensor:
        self.first.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


UNNOTICED: list[tuple[Any, str]] = [
    (Saving, "Saving must read the parameters that it is called with, got others .*checkpoint"),
    (Listing, "Listing must read the parameters that it is called with, got others .*lists"),
    (Assigning, "Assigning must have no buffer that training changes .*, got seen, .* leave out"),
    (Spectral, "got first.parametrizations.weight.0._u, .* writes it, such as spectral_norm, or"),
    (Remembering, "Remembering must answer by its parameters and buffers alone, got other"),
    (Clamping, "Clamping must not write into its parameters, got other values of first.weight"),
    (lambda: nn.Sequential(nn.ReLU(inplace=True), Plain()), "must not write into its samples"),
    (Overwriting, "Overwriting cannot be trained: RuntimeError: one of the variables needed"),
    (Casting, "Casting must take samples .*float32 here, so cast none to torch.float64"),
    (Normal, "Normal must be a module that copy.deepcopy can copy, got RuntimeError.*parametriz"),
    (Part, "Part must have modules that are called as they were written, got Opt.*pass its _orig"),
    (lambda: torch.jit.script(nn.Linear(64, 10)), "got ScriptModule; pass the module"),
    (lambda: nn.DataParallel(Plain()), "got DataParallel; pass its module"),
]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by torch.jit
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize(("module", "why"), UNNOTICED, ids=[why[:24] for _, why in UNNOTICED])
def test_what_a_run_would_get_wrong_is_refused_in_one_line(module: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        net(module)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"max_norm": 1.0}, r"embedding '0' must have max_norm=None, got 1.0, which writes into"),
        ({"sparse": True}, r"parameter 0.weight must have a dense gradient, got a sparse one; use"),
    ],
    ids=["max_norm", "sparse"],
)
def test_embeddings_that_no_client_can_train_are_refused(choice: dict[str, Any], why: str) -> None:
    module = nn.Sequential(nn.Embedding(9, 4, **choice), nn.Flatten(), nn.Linear(20, 3))
    with pytest.raises(ConfigError, match=why):
        ModuleModel(module=module).build((5,), 3)


def test_token_ids_below_zero_are_told_to_begin_at_zero() -> None:
    module = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(20, 3))
    network = ModuleModel(module=module).build((5,), 3)
    assert isinstance(network, ModuleNet)
    with pytest.raises(ConfigError, match=r"token ids from -2 to 2, .*; number them from 0$"):
        network.require(torch.arange(-2, 3)[None])
    bag = nn.Sequential(nn.EmbeddingBag(9, 20), nn.Linear(20, 3))
    for embeds in (network, ModuleModel(module=bag).build((5,), 3)):
        assert isinstance(embeds, ModuleNet)
        with pytest.raises(ConfigError, match=r"ids from 5 to 9, .*; give its embedding 10 rows"):
            embeds.require(torch.arange(5, 10)[None])


class Attentive(nn.Module):
    """Attention over embeddings and a recurrent layer, whose embedding is tied to the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.layer = nn.GRU(4, 4, batch_first=True)
        self.out = nn.Linear(4, 3)
        self.out.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        x = x + self.attention(x, x, x)[0]
        out: Tensor = self.out(self.layer(x)[0][:, -1])
        return out


def test_a_mask_covers_the_matrices_of_attention_and_recurrent_layers_too() -> None:
    network = ModuleModel(module=Attentive).build((5,), 3)
    attention = ("attention.in_proj_weight", "attention.out_proj.weight")
    recurrent = ("layer.weight_ih_l0", "layer.weight_hh_l0")
    assert network.weights == ("embed.weight", *attention, *recurrent)
    assert [network.fan_in(name) for name in network.weights] == [4] * 5


def test_an_instance_that_cannot_be_copied_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"Normal must be a module that copy.deepcopy can copy"):
        fedbench.Scenario(model=Normal(), **FEW)


def test_a_trial_leaves_the_values_of_the_module() -> None:
    module = Plain()
    network = net(module)
    for name, x in network.init(Key(0)).items():
        assert torch.equal(x, module.get_parameter(name).detach())
