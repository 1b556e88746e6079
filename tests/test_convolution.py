"""Two forms of a convolution: they agree, the faster one is taken, and the answer is kept."""

import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.executors.conv_kernels import (
    Forms,
    Geometry,
    Load,
    chosen,
    geometries,
    matrices,
    measured,
)
from fedbench.executors.training import Loop, Schedule
from fedbench.executors.vmap import Stacked, footprint
from fedbench.models.network import Convolve
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

CPU = torch.device("cpu")
GROUPS: Convolve = F.conv2d
LAYERS = [
    Geometry((1, 8, 8), (4, 1, 3, 3), padding=1),
    Geometry((3, 7, 9), (4, 3, 3, 3), stride=2, padding=1),  # neither even nor square
    Geometry((2, 6, 6), (3, 2, 5, 5)),
    Geometry((2, 5, 4), (3, 2, 3, 1), padding=2),
]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_both_forms_are_one_convolution_there_and_back(layer: Geometry, bias: bool) -> None:
    x = Key(0).normal(3, 2, *layer.image).double()  # three clients with two samples
    weight = Key(1).normal(3, *layer.kernels).double()
    offset = Key(2).normal(3, layer.kernels[0]).double()

    def of(form: Convolve) -> tuple[Tensor, ...]:
        def energy(x: Tensor, weight: Tensor, offset: Tensor) -> tuple[Tensor, Tensor]:
            given = offset if bias else None
            y = form(x, weight, given, stride=layer.stride, padding=layer.padding)
            return y.pow(3).sum(), y

        gradient = torch.func.grad(energy, argnums=(0, 1, 2), has_aux=True)
        gradients, y = torch.vmap(gradient)(x, weight, offset)
        return y, *gradients

    assert_rounded_alike(of(matrices), of(GROUPS))


@pytest.mark.parametrize("model", registry.names("model"))
def test_every_network_convolves_as_it_is_told(model: str) -> None:
    network = registry.load("model", model).build((3, 32, 32), 10)
    kernels = {shape for shape in network.shapes.values() if len(shape) == 4}
    assert {layer.kernels for layer in geometries(network)} == kernels


def test_geometries_of_a_residual_network_by_hand() -> None:
    network = registry.load("model", "resnet20").build((3, 32, 32), 10)
    choice = geometries(network)
    assert choice[0] == Geometry((3, 32, 32), (16, 3, 3, 3), 1, 1)
    assert Geometry((16, 32, 32), (32, 16, 3, 3), 2, 1) in choice
    assert len(choice) == len(set(choice)) == 6  # of 19: layers of a stage are alike


def slowly(*args: object, **kwargs: object) -> Tensor:
    time.sleep(0.05)
    return GROUPS(*args, **kwargs)


def never(*args: object, **kwargs: object) -> Tensor:
    raise AssertionError("is not to be timed again")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, still_clock: None) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedbench" / "answers"


@pytest.mark.parametrize(
    ("forms", "expected"),
    [
        ({"groups": slowly, "matrices": GROUPS}, set(geometries(NETWORK))),
        ({"groups": GROUPS, "matrices": slowly}, set()),
    ],
    ids=["matrices", "groups"],
)
def test_faster_forms_are_found_once(
    answers: Path, forms: dict[str, Convolve], expected: set[Geometry]
) -> None:
    choice = measured(NETWORK, Load(CPU, 2, 3), forms)
    assert choice.multiplied == expected
    again = measured(NETWORK, Load(CPU, 2, 3), {"groups": never, "matrices": never})
    assert again == choice
    assert len(list(answers.iterdir())) == 1
    with pytest.raises(AssertionError, match="timed again"):  # of another batch nothing is known
        measured(NETWORK, Load(CPU, 2, 4), {"groups": never, "matrices": never})


def test_each_layer_has_its_own_answer(answers: Path) -> None:
    network = registry.load("model", "micro").build((1, 28, 28), 10)
    first = geometries(network)[0]

    def slow_in_the_first(x: Tensor, weight: Tensor, **options: int) -> Tensor:
        if tuple(weight.shape) == first.kernels:
            time.sleep(0.05)
        return GROUPS(x, weight, **options)

    choice = measured(network, Load(CPU, 2, 3), {"groups": slow_in_the_first, "matrices": slowly})
    assert choice.multiplied == set()
    choice = measured(network, Load(CPU, 2, 5), {"groups": slow_in_the_first, "matrices": GROUPS})
    assert first in choice.multiplied


def test_a_cpu_groups_without_asking(answers: Path) -> None:
    assert chosen(NETWORK, Load(CPU, 2, 3)) == Forms()
    assert not answers.exists()


def test_lock_step_convolves_with_what_was_chosen() -> None:
    shared, protocol, schedule = Shared(NETWORK, 3, CPU), in_float64(FedAvg()), Schedule(1, 4)
    clients = doubled(example_clients(protocol, shared))
    engine = Stacked(protocol, shared, schedule)
    convolve: Convolve = Forms(frozenset(geometries(NETWORK)))
    seen = []

    def noted(*args: object, **options: object) -> Tensor:
        seen.append(args)
        return convolve(*args, **options)

    engine.__dict__["convolve"] = noted  # what `chosen` would have returned
    updates, _ = engine.train(clients)
    expected, _ = Loop(protocol, shared, schedule).train(clients)
    assert_rounded_alike(updates, expected)
    assert seen


def test_a_form_is_that_of_its_layer_and_its_patches_count_in_the_footprint() -> None:
    layer = LAYERS[0]
    x, weight = Key(0).normal(2, *layer.image), Key(1).normal(*layer.kernels)

    def multiplies(forms: Forms, padding: int) -> bool:
        with torch.profiler.profile() as seen:
            forms(x, weight, padding=padding)
        return "aten::im2col" in {event.name for event in seen.events() or []}

    assert multiplies(Forms(frozenset({layer})), 1)
    assert not multiplies(Forms(frozenset({layer})), 0)  # another geometry
    assert not multiplies(Forms(), 1)
    # NETWORK's convolution: patches of 9 numbers at each of 16 places, beside what is saved anyway.
    (layer,) = geometries(NETWORK)
    patches = layer.image[0] * 9 * 16 * 4
    more = footprint(NETWORK, 2, matrices) - footprint(NETWORK, 2)
    assert more >= 2 * 2 * (patches - 16 * 4)  # the image itself need not be saved


def test_products_in_bfloat16_stay_so_and_are_timed_as_such(answers: Path) -> None:
    x, weight, bias = Key(0).normal(2, 1, 4, 4), Key(1).normal(3, 1, 3, 3), Key(2).normal(3)
    with torch.autocast("cpu", torch.bfloat16):
        assert matrices(x, weight, bias).dtype == GROUPS(x, weight, bias).dtype == torch.bfloat16
    seen = set()

    def noted(x: Tensor, weight: Tensor, **options: int) -> Tensor:
        y = GROUPS(x, weight, **options)
        seen.add(y.dtype)
        return y

    measured(NETWORK, Load(CPU, 2, 3, half=True), {"groups": noted, "matrices": noted})
    assert seen == {torch.bfloat16}
