"""Contract tests of models, data and partitions: each mistake is one line."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from own_models import Branching, Dropping, Normed, Plain, Words
from torch import Tensor, nn

from fedbench.core import registry
from fedbench.core.errors import ConfigError, PluginError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.datasets import Data, Dataset
from fedbench.data.partitions import IID, Partition
from fedbench.models.models import Model
from fedbench.models.modules import ModuleModel
from fedbench.models.network import Image, Network, Step
from fedbench.testing import check_dataset, check_model, check_partition, example_data

MODELS = [name for name in registry.names("model") if name not in ("lenet5", "conv8", "conv10")]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.mark.parametrize("name", ["lenet5", *SLOW])
def test_built_in_models_keep_the_promises(name: str) -> None:
    check_model(registry.load("model", name), (1, 16, 16))


def test_modules_of_ones_own_keep_them() -> None:
    check_model(Normed(classes=3))
    check_model(ModuleModel(module=Words), (5,))
    check_model(lambda: Normed(classes=3))
    for module in (Dropping(classes=3), Branching(classes=3)):
        check_model(module)


class Wrapped(Network):
    """The obvious wrapper of a module: its names have dots, and it says nothing of weights."""

    def __init__(self, module: nn.Module, image: Image, classes: int) -> None:
        self.module = module
        self.image = image
        self.classes = classes

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(p.shape) for name, p in self.module.named_parameters()}

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        return x.flatten(1)

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        out: Tensor = torch.func.functional_call(self.module, params, (x,))
        return out

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        return {name: p.detach().clone() for name, p in self.module.named_parameters()}


class Listed(Wrapped):
    """A wrapper that names its weights."""

    weights = ("first.weight", "head.weight")


class Empty(Listed):
    """A wrapper whose first weights are not there."""

    shapes = {"first.weight": (12, 64), "head.weight": (3, 12)}  # noqa: RUF012

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        return {}


class Random(Empty):
    """Linear layers whose first weights come from a global generator."""

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        return {name: torch.randn(shape) for name, shape in self.shapes.items()}


class Linear(Empty):
    """Linear layers, done right."""

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        return {name: key.fold(name).normal(*shape) for name, shape in self.shapes.items()}

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        return F.linear(F.linear(x.flatten(1), params["first.weight"]), params["head.weight"])


class Unused(Linear):
    """A layer that nothing depends on."""

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        return x.flatten(1) @ torch.ones(64, 12).to(x) @ params["head.weight"].T


class Centred(Linear):
    """Logits that depend on the batch, padding included."""

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        logits = super().logits(params, x, step)
        return logits if step is None else logits - logits.mean(dim=0)


class Neighbours(Linear):
    """Logits that depend on the batch in use."""

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        logits = super().logits(params, x, step)
        return logits - logits.mean(dim=0)


@dataclass(frozen=True, kw_only=True)
class Of(Model):
    """A model that builds one of these networks."""

    kind: type[Wrapped]

    def build(self, image: Image, classes: int) -> Network:
        return self.kind(Plain(classes=classes), image, classes)


def test_a_network_done_right_passes() -> None:
    check_model(Of(kind=Linear))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Wrapped, "network Wrapped must name its weights, got none of first.weight, first.bias"),
        (Listed, "in its shapes the weights first and running statistics last, got first.weight"),
        (Empty, "network Empty must draw first.weight in init, got no such parameter"),
        (Random, "init must draw from its key alone"),
        (Unused, r"the loss must depend on every parameter, got one that is unused: \['first"),
        (Centred, "padding .* must not change the loss"),
        (Neighbours, "must not depend on the samples beside it"),
    ],
)
def test_a_wrong_wrapper_of_a_module_ends_in_one_line(kind: type[Wrapped], why: str) -> None:
    with pytest.raises((ConfigError, AssertionError), match=why) as error:
        check_model(Of(kind=kind))
    assert "\n" not in str(error.value).splitlines()[0]


@pytest.mark.parametrize("kind", ["image", "numbers", "ids"])
def test_pools_of_every_kind_pass(kind: str) -> None:
    check_dataset(example_data(kind))


@dataclass(frozen=True, kw_only=True)
class Changing(Dataset):
    """A data set that is another one at each load."""

    def load(self, folder: Any) -> Data:
        data = example_data()
        return replace(data, x=torch.randn_like(data.x))


def test_what_is_no_model_or_data_set_is_told_what_to_write() -> None:
    data = example_data()
    pair: Any = (data.x, data.y)
    with pytest.raises(ConfigError, match=r"^Scenario.dataset must .*; write fedbench.*from_arr"):
        check_dataset(pair)
    wrong: Any = Changing
    with pytest.raises(ConfigError, match=r"got the class Changing; write Changing\(\)$"):
        check_dataset(wrong)
    wrong = Model
    with pytest.raises(ConfigError, match=r"^Scenario.model must be a plug-in.*; write Model"):
        check_model(wrong)


def test_a_wrong_data_set_ends_in_one_line() -> None:
    check_dataset(registry.load("dataset", "digits"))
    with pytest.raises(AssertionError, match="two loads must give the same pool"):
        check_dataset(Changing())
    data = example_data()
    with pytest.raises(AssertionError, match=r"every label must have a sample, got none of \[3\]"):
        check_dataset(replace(data, classes=4))
    with pytest.raises(AssertionError, match="samples must differ"):
        check_dataset(replace(data, x=torch.ones_like(data.x)))
    with pytest.raises(AssertionError, match=r"ordinary size, got .*; normalise"):
        check_dataset(replace(data, x=1e6 * data.x, mean=(), std=()))


class Twice(IID):
    """A partition that deals a sample twice."""

    def split(self, *args: Any) -> Any:
        parts = super().split(*args)
        return [*parts[:-1], torch.cat([parts[-1], parts[0][:1]])]


class Global(IID):
    """A partition that draws from torch's own generator."""

    def split(self, y: Tensor, clients: int, *args: Any) -> Any:
        return list(torch.split(torch.randperm(len(y)), len(y) // clients))


class Stingy(IID):
    """A partition that leaves a client too little."""

    def split(self, *args: Any) -> Any:
        return [part[:2] for part in super().split(*args)]


def test_partitions_keep_the_promises() -> None:
    for name in registry.names("partition"):
        check_partition(registry.load("partition", name))


@pytest.mark.parametrize(
    ("partition", "why"),
    [
        (Twice(), "split must return each row once, got 'one 2 times'"),
        (Global(), "it must draw from its key alone"),
        (Stingy(), "a client must get 3 samples to train, validate and test, got 2"),
    ],
)
def test_a_wrong_partition_ends_in_one_line(partition: Partition, why: str) -> None:
    with pytest.raises((AssertionError, PluginError), match=why):
        check_partition(partition)
