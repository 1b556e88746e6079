"""Choice of executors and forms of a convolution by times that are measured once and kept."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors import conv_kernels as kernels
from fedbench.executors.cached_answers import folder, store, stored
from fedbench.executors.conv_kernels import (
    ConvLoad,
    Forms,
    Geometry,
    geometries,
    matrices,
    measured,
)
from fedbench.executors.factory import choose, executor, question_of
from fedbench.executors.training import Loop, Schedule, in_bfloat16
from fedbench.executors.vmap import Padded, Stacked, footprint
from fedbench.models.network import ConvNet, Convolve
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.zeroth_order import FedKSeed
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

CPU = torch.device("cpu")
SHARED = Shared(ConvNet((1, 4, 4), ((3,),), (5,), 3), 1, CPU)
PLAN = Schedule(2, 4)


@dataclass(frozen=True, kw_only=True)
class Sleepy(FedAvg):
    def local_update(self, tree: Tree, *rest: Any) -> Any:
        time.sleep(0.05)
        return super().local_update(tree, *rest)


@dataclass(frozen=True, kw_only=True)
class Crowded(FedAvg):
    """Lock step is the slower way: a step costs a wait for each of its clients."""

    def local_update(self, tree: Tree, *rest: Any) -> Any:
        if torch._C._functorch.maybe_current_level():
            time.sleep(0.3)
        return super().local_update(tree, *rest)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, still_clock: None) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "fedbench" / "answers"


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, answers: Path) -> Path:
    monkeypatch.delenv("FEDBENCH_PROBE")
    monkeypatch.setattr("fedbench.executors.factory.HEAVY_SECONDS", 10)  # no sleep is heavy
    return answers


FITS = {"loop", "padded"}.__contains__


def fastest(protocol: FedAvg, together: int = 8) -> str:
    return choose(Padded(protocol, SHARED, PLAN), [8] * together)


def test_what_is_faster_is_chosen_and_heavy_steps_are_the_loop_s_unmeasured(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fastest(Sleepy()) == "padded"
    assert fastest(Crowded(), 2) == "loop"
    entries = [json.loads(path.read_text()) for path in measuring.iterdir()]
    assert sorted(entry["answer"] for entry in entries) == ["loop", "padded"]
    assert isinstance(executor("auto", Sleepy(), SHARED, PLAN, sizes=[8] * 8), Padded)
    assert isinstance(executor("auto", Crowded(), SHARED, PLAN, sizes=[8] * 2), Loop)
    monkeypatch.setattr("fedbench.executors.factory.HEAVY_SECONDS", 0.03)  # each of two steps
    assert fastest(Sleepy(), 5) == "padded"
    monkeypatch.setattr("fedbench.executors.factory.HEAVY_SECONDS", 0.02)  # less than `Sleepy`
    assert fastest(Sleepy(), 4) == "loop"


def test_lock_step_whose_steps_are_mostly_in_vain_is_the_slower_way(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedbench.executors.factory.MIN_SPEEDUP", 1.5)
    pairs = Padded(Sleepy(), SHARED, PLAN, chunk=2)
    assert choose(pairs, [80, 80]) == "padded"  # twice as fast
    # 40 steps and 6 share a launch, of whose 80 steps 0.6 are needed: 1.2 times as fast.
    assert choose(pairs, [80, 12]) == "loop"


def test_the_answer_is_kept_and_the_first_one_holds(measuring: Path) -> None:
    question = question_of(Padded(Sleepy(), SHARED, PLAN), 8, "loop", "padded")
    assert stored(question, FITS) is None
    assert store(question, "loop", FITS) == "loop"
    assert stored(question, {"padded"}.__contains__) is None
    assert store(question, "padded", FITS) == "loop"
    assert fastest(Sleepy()) == "loop"  # no measurement would say so
    assert [path.suffix for path in measuring.iterdir()] == [".json"]  # nothing else is left


def test_what_says_nothing_or_cannot_be_written_is_no_hindrance(
    measuring: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    question = question_of(Padded(Crowded(), SHARED, PLAN), 2, "loop", "padded")
    store(question, "padded", FITS)
    (path,) = measuring.iterdir()
    for text in ("", "{", '{"question": "another", "answer": "padded"}', "[]"):
        path.write_text(text)
        assert stored(question, FITS) is None
        assert fastest(Crowded(), 2) == "loop"
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert fastest(Sleepy()) == "padded"


def test_other_questions_have_other_answers() -> None:
    plain = Stacked(FedAvg(), SHARED, Schedule(1, 4))
    wider = Shared(ConvNet((1, 4, 4), ((3,),), (6,), 3), 1, CPU)
    schedules = Stacked(FedAvg(), SHARED, Schedule(1, 5)), Stacked(FedAvg(), wider, Schedule(1, 4))
    half = Stacked(FedAvg(), SHARED, Schedule(1, 4), precision="bf16")
    asks = {question_of(engine, 8) for engine in (plain, *schedules, half)}
    assert len(asks | {question_of(plain, 2), question_of(plain, 8, "loop", "padded")}) == 6
    assert question_of(plain, 8) == question_of(Padded(FedAvg(lr=0.3), SHARED, Schedule(9, 4)), 8)


def test_who_trains_alone_or_switched_measuring_off_is_not_measured(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fastest(Sleepy(), 1) == "loop"
    monkeypatch.setenv("FEDBENCH_PROBE", "off")
    assert fastest(Sleepy()) == "loop"
    assert not measuring.exists()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert folder() == Path("/home/someone/.cache/fedbench/answers")


@pytest.mark.slow
def test_a_command_measures_once_and_says_what_it_used(tmp_path: Path) -> None:
    home = {key: value for key, value in os.environ.items() if key != "FEDBENCH_PROBE"}
    home["XDG_CACHE_HOME"] = str(tmp_path)
    command = [sys.executable, "-m", "fedbench", "attack", "-a", "none", "--seeds", "0"]
    command += ["--model", "micro", "--partition", "iid", "--clients", "16", "--per-round", "8"]
    command += ["--rounds", "1", "--workers", "1", "--malicious", "0"]
    used = []
    for out in (tmp_path / "a", tmp_path / "b"):
        played = [*command, "--out", str(out)]
        subprocess.run(played, env=home, check=True, capture_output=True, timeout=300)
        (record,) = out.glob("*.json")
        used.append(json.loads(record.read_text())["environment"]["executor"])
    (path,) = (tmp_path / "fedbench" / "answers").iterdir()
    assert used == [json.loads(path.read_text())["answer"]] * 2


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


def test_every_network_convolves_as_it_is_told() -> None:
    for model in registry.names("model"):
        network = registry.load("model", model).build((3, 32, 32), 10)
        shapes = {shape for shape in network.shapes.values() if len(shape) == 4}
        assert {layer.kernels for layer in geometries(network)} == shapes, model
    choice = geometries(registry.load("model", "resnet20").build((3, 32, 32), 10))
    assert choice[0] == Geometry((3, 32, 32), (16, 3, 3, 3), 1, 1)
    assert Geometry((16, 32, 32), (32, 16, 3, 3), 2, 1) in choice
    assert len(choice) == len(set(choice)) == 6  # of 19: layers of a stage are alike


def slowly(*args: object, **kwargs: object) -> Tensor:
    time.sleep(0.05)
    return GROUPS(*args, **kwargs)


def never(*args: object, **kwargs: object) -> Tensor:
    raise AssertionError("is not to be timed again")


def form(batch: int, groups: Convolve, matrices: Convolve, network: Any = NETWORK) -> Forms:
    return measured(network, ConvLoad(CPU, 2, batch), {"groups": groups, "matrices": matrices})


@pytest.mark.parametrize("groups", [slowly, GROUPS], ids=["matrices", "groups"])
def test_faster_forms_are_found_once_and_a_cpu_groups_without_asking(
    answers: Path, groups: Convolve
) -> None:
    assert kernels.chosen(NETWORK, ConvLoad(CPU, 2, 3)) == Forms()
    assert not answers.exists()
    choice = form(3, groups, GROUPS if groups is slowly else slowly)
    assert choice.multiplied == (set(geometries(NETWORK)) if groups is slowly else set())
    assert form(3, never, never) == choice
    assert len(list(answers.iterdir())) == 1
    with pytest.raises(AssertionError, match="timed again"):  # of another batch nothing is known
        form(4, never, never)


def test_a_form_whose_patches_do_not_fit_is_not_taken(answers: Path) -> None:
    def too_large(*args: object, **kwargs: object) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert form(3, slowly, too_large) == Forms()
    assert not answers.exists()  # another time it may fit
    assert form(3, slowly, GROUPS).multiplied


def test_each_layer_has_its_own_answer(answers: Path) -> None:
    network = registry.load("model", "micro").build((1, 28, 28), 10)
    first = geometries(network)[0]

    def slow_in_the_first(x: Tensor, weight: Tensor, **options: int) -> Tensor:
        return (slowly if tuple(weight.shape) == first.kernels else GROUPS)(x, weight, **options)

    assert form(3, slow_in_the_first, slowly, network).multiplied == set()
    assert first in form(5, slow_in_the_first, GROUPS, network).multiplied


def test_only_the_first_layer_is_timed_without_a_gradient_of_its_images(answers: Path) -> None:
    network = registry.load("model", "micro").build((1, 28, 28), 10)
    differentiated: dict[tuple[int, ...], set[bool]] = {}

    def noted(x: Tensor, weight: Tensor, **options: int) -> Tensor:
        differentiated.setdefault(tuple(weight.shape), set()).add(x.requires_grad)
        return GROUPS(x, weight, **options)

    form(3, noted, noted, network)
    first, *others = [layer.kernels for layer in geometries(network)]
    assert differentiated == {first: {False}} | {kernels: {True} for kernels in others}


def test_lock_step_convolves_with_what_was_chosen() -> None:
    shared = Shared(NETWORK, 3, CPU)
    protocol = in_float64(FedAvg())
    schedule = Schedule(1, 4)
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
    x = Key(0).normal(2, *layer.image)
    weight = Key(1).normal(*layer.kernels)

    def multiplies(forms: Forms, padding: int) -> bool:
        with torch.profiler.profile() as seen:
            forms(x, weight, padding=padding)
        return "aten::unfold" in {event.name for event in seen.events() or []}

    assert multiplies(Forms(frozenset({layer})), 1)
    assert not multiplies(Forms(frozenset({layer})), 0)  # another geometry
    assert not multiplies(Forms(), 1)
    # NETWORK's convolution: patches of 9 numbers at each of 16 places, beside what is saved anyway.
    (layer,) = geometries(NETWORK)
    patches = layer.image[0] * 9 * 16 * 4
    more = footprint(NETWORK, 2, matrices) - footprint(NETWORK, 2)
    assert more >= 2 * 2 * (patches - 16 * 4)  # the image itself need not be saved


def test_products_in_bfloat16_stay_so_and_are_timed_as_such(answers: Path) -> None:
    x = Key(0).normal(2, 1, 4, 4)
    weight = Key(1).normal(3, 1, 3, 3)
    bias = Key(2).normal(3)
    with torch.autocast("cpu", torch.bfloat16):
        assert matrices(x, weight, bias).dtype == GROUPS(x, weight, bias).dtype == torch.bfloat16
    seen = set()

    def noted(x: Tensor, weight: Tensor, bias: Tensor | None = None, **options: int) -> Tensor:
        y = GROUPS(x, weight, bias, **options)
        seen.add(y.dtype)
        return y

    measured(NETWORK, ConvLoad(CPU, 2, 3, half=True), {"groups": noted, "matrices": noted})
    assert seen == {torch.bfloat16}
    assert in_bfloat16(noted)(x, weight, bias).dtype == torch.bfloat16
    for engine in (
        Stacked(FedAvg(), SHARED, PLAN, precision="bf16"),
        Stacked(FedKSeed(), SHARED, PLAN, precision="bf16"),  # its losses have no gradient
        Loop(FedKSeed(), SHARED, PLAN, precision="bf16"),
    ):
        engine.__dict__["convolve"] = noted  # what `chosen` would have returned
        clients = example_clients(engine.protocol, SHARED)
        engine.train(clients)
        seen.clear()  # the first time a step is weighed, in float32
        engine.train(clients)
        assert seen == {torch.bfloat16}
