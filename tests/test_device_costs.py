"""Costs on an accelerator, as far as a CPU can tell: clock, memory, TF32 and workers of a sweep.

Functions that answer as on a machine with a GPU stand in for torch's own, and for the one of ours
that waits for a device, which has nothing to wait for on a CPU.
"""

import types
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from fedbench.api import Batches, Grad, Memory, Shared
from fedbench.core import devices
from fedbench.core.choices import Precision
from fedbench.core.copies import fetched, stacked_on, staging
from fedbench.core.devices import now
from fedbench.core.errors import Unavailable
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.conv_kernels import ConvLoad, Forms, Geometry, faster
from fedbench.executors.factory import executor
from fedbench.executors.training import Loop, Schedule, products
from fedbench.executors.vmap import Padded, Recorded, Stacked, footprint
from fedbench.experiment.scenario import Scenario
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fedpm import FedPM
from fedbench.run import play
from fedbench.sweeps.local import Options
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)
SHARED = Shared(NETWORK, 3, CPU)
GIB = 1 << 30


def test_the_clock_is_read_when_the_device_has_done_what_was_launched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [10.0]

    def synchronize(device: torch.device) -> None:
        clock[0] += 5  # seconds of kernels that were launched before

    module = types.SimpleNamespace(synchronize=synchronize)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert now() == 10
    assert now(CPU) == 10
    assert now(GPU) == 15


@pytest.mark.slow
def test_an_attack_is_not_charged_for_what_was_launched_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Training returns at once and leaves an hour of kernels behind, as on an accelerator.
    clock = [0.0]
    queued = [0.0]
    train = Loop.train

    def launch(self: Loop, clients: Any) -> Any:
        queued[0] += 3600
        return train(self, clients)

    def wait(device: torch.device) -> None:
        clock[0] += queued[0]
        queued[0] = 0.0

    monkeypatch.setattr(Loop, "train", launch)
    monkeypatch.setattr("fedbench.core.devices.finish", wait)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    fields: dict[str, Any] = {"model": "micro", "rounds": 2, "clients": 4, "per_round": 4}
    record = play(Scenario.of(dataset="digits", attack="sign-flip", **fields), executor="loop")
    assert record.timing.seconds == 7200
    assert record.timing.attack_seconds == 0


def test_a_form_of_a_convolution_takes_what_the_device_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Groups return at once and keep the device busy; matrices take the host longer.
    clock = [0.0]
    busy = [0.0]

    def form(host: float, device: float) -> Callable[..., Tensor]:
        def convolve(*args: Any, **kwargs: Any) -> Tensor:
            clock[0] += host
            busy[0] = max(busy[0], clock[0]) + device
            return conv2d(*args, **kwargs)

        return convolve

    def wait(device: torch.device) -> None:
        clock[0] = max(clock[0], busy[0])

    monkeypatch.setattr("fedbench.executors.conv_kernels.finish", wait)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    layer = Geometry((1, 6, 6), (2, 1, 3, 3))
    forms = {"groups": form(host=1, device=9), "matrices": form(host=3, device=1)}
    assert faster(layer, ConvLoad(CPU, 2, 2), forms) == "matrices"
    forms = {"groups": form(host=1, device=2), "matrices": form(host=0, device=9)}
    assert faster(layer, ConvLoad(CPU, 2, 2), forms) == "groups"


def gpu(monkeypatch: pytest.MonkeyPatch, free: int, reserved: int, held: int, share: float) -> None:
    """Have torch answer as with a GPU of 80 GiB."""
    properties = types.SimpleNamespace(total_memory=80 * GIB)
    for name, answer in {
        "get_device_properties": properties,
        "mem_get_info": (free, 80 * GIB),
        "memory_reserved": reserved,
        "memory_allocated": held,
        "get_per_process_memory_fraction": share,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, answer=answer: answer)


def test_messages_for_cuda_lie_in_pinned_memory_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pinned = []

    def empty(shape: torch.Size, dtype: torch.dtype, pin_memory: bool) -> Tensor:
        pinned.append(pin_memory)
        return torch.zeros(shape, dtype=dtype)

    monkeypatch.setattr("fedbench.core.copies.torch.empty", empty)
    for device in (GPU, CPU):
        assert staging(torch.Size((2, 3)), torch.uint8, device).shape == (2, 3)
    assert pinned == [True, False]
    monkeypatch.undo()
    rows = [torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [5.0, 6.0]])]
    assert stacked_on(rows, CPU).tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
    assert stacked_on(rows[:1], CPU) is rows[0]
    assert fetched(rows[0]) is rows[0]


def test_recorded_launches_have_their_convolutions_timed_by_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu(monkeypatch, free=80 * GIB, reserved=0, held=0, share=1.0)
    loads: list[ConvLoad] = []

    def noted(network: object, load: ConvLoad) -> Forms:
        loads.append(load)
        return Forms()

    monkeypatch.setattr("fedbench.executors.vmap.chosen", noted)
    there = Shared(NETWORK, 3, GPU)
    for kind in (Padded, Recorded):
        assert kind(FedAvg(), there, Schedule(1, 3), 25).width == 25
    assert [(load.clients, load.batch, load.replayed) for load in loads] == [
        (25, 3, False),
        (25, 3, True),
    ]


def test_a_launch_takes_its_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, free=10 * GIB, reserved=6 * GIB, held=2 * GIB, share=1.0)
    assert devices.usable_memory(GPU) == 14 * GIB  # torch holds 4 GiB back for what comes
    gpu(monkeypatch, free=70 * GIB, reserved=6 * GIB, held=2 * GIB, share=0.25)
    assert devices.usable_memory(GPU) == 18 * GIB  # of 20, which are its quarter
    client = footprint(NETWORK, 3)
    gpu(monkeypatch, free=10 * client, reserved=0, held=0, share=1.0)
    there = Shared(NETWORK, 3, GPU)
    monkeypatch.setenv("FEDBENCH_PROBE", "off")
    assert Stacked(FedAvg(), there, Schedule(1, 3)).width == 4  # 40 % of ten


def test_the_peak_of_a_device_is_what_its_backend_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.peak_memory(CPU) is None
    modules = [
        types.SimpleNamespace(max_memory_allocated=lambda device: 7),
        types.SimpleNamespace(),
    ]
    monkeypatch.setattr(torch, "get_device_module", lambda device: modules.pop(0))
    assert devices.peak_memory(GPU) == 7
    assert devices.peak_memory(GPU) is None


def test_a_few_workers_share_a_gpu_as_far_as_there_are_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for cores, gpus, options, workers in (
        *((16, 1, {}, 4), (6, 1, {}, 3), (2, 1, {}, 1), (1, 1, {}, 1)),
        *((64, 8, {}, 32), (16, 8, {}, 8), (4, 8, {}, 8), (16, 1, {"threads": 4}, 2)),
        *((16, 1, {"workers": 9}, 9), (16, 0, {}, 16)),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        monkeypatch.setattr("fedbench.sweeps.local.available_cores", lambda cores=cores: cores)
        assert Options("auto", **options).processes(1000) == workers  # type: ignore[arg-type]


def limited(most: int) -> Callable[..., Any]:
    """Return `torch.vmap`, but memory runs out with more than ``most`` clients."""
    vmap = torch.vmap

    def limited_vmap(work: Callable[..., Any], *dims: Any) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            if len(inputs[2]) > most:  # the numbers of steps of the clients
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
            return vmap(work, *dims)(*inputs)

        return call

    return limited_vmap


def test_launches_are_halved_once_where_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = in_float64(FedPM(keep_moments=True))
    first, *_ = doubled(example_clients(protocol, SHARED))
    clients = [replace(first, key=Key(i)) for i in range(5)]
    expected, memories = Loop(protocol, SHARED, Schedule(1, 3)).train(clients)
    engine = Stacked(protocol, SHARED, Schedule(1, 3), chunk=5)
    assert engine.at_once == 5
    monkeypatch.setattr(torch, "vmap", limited(3))
    with pytest.warns(UserWarning, match="memory ran out with 5 .* at most 3, as --chunk 3 would"):
        updates, remembered = engine.train(clients)
    assert_rounded_alike(updates, expected)
    assert len(memories[0]) > 0
    for mine, theirs in zip(remembered, memories, strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            torch.testing.assert_close(value, theirs[name])
    assert engine.at_once == engine.width == 3
    updates, _ = engine.train(clients)  # no warning, which would be an error
    assert_rounded_alike(updates, expected)
    monkeypatch.setattr(torch, "vmap", limited(2))
    with pytest.raises(torch.OutOfMemoryError):
        engine.train(clients)


def test_launches_that_were_planned_before_memory_ran_out_are_smaller_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    protocol = in_float64(FedAvg())
    first, *_ = doubled(example_clients(protocol, SHARED))
    clients = [replace(first, key=Key(i)) for i in range(14)]
    engine = Stacked(protocol, SHARED, Schedule(1, 3), chunk=5)
    assert [len(group) for group in engine.launches(clients, False)] == [5, 5, 4]
    expected = Loop(protocol, SHARED, Schedule(1, 3)).train(clients)
    monkeypatch.setattr(torch, "vmap", limited(3))
    with pytest.warns(UserWarning, match="memory ran out with 5"):
        assert_rounded_alike(engine.train(clients), expected)


class Watching(FedAvg):
    """FedAvg that notes whether products may be in TF32 while it trains."""

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return super().local_update(tree, batches, grad, key, memory)


seen: list[tuple[bool, bool]] = []


@pytest.mark.parametrize("engine", [Loop, Stacked])
def test_products_are_in_tf32_while_clients_train_and_only_if_asked(engine: type[Loop]) -> None:
    protocol = Watching()
    clients = example_clients(protocol, SHARED)[:1]
    parts: list[Any] = [torch.backends.cuda.matmul, torch.backends.cudnn]
    before = [part.allow_tf32 for part in parts]
    try:
        for part in parts:
            part.allow_tf32 = False  # as `choose_device` sets it
        cases: list[tuple[Precision, bool]] = [("fp32", False), ("tf32", True), ("bf16", False)]
        for precision, allowed in cases:
            seen.clear()
            engine(protocol, SHARED, Schedule(1, 3), precision=precision).train(clients)
            assert seen == [(allowed, allowed)]
            assert [part.allow_tf32 for part in parts] == [False, False]
        with pytest.raises(KeyError), products("tf32"):
            raise KeyError
        assert [part.allow_tf32 for part in parts] == [False, False]
    finally:
        for part, value in zip(parts, before, strict=True):
            part.allow_tf32 = value


def test_a_cpu_has_no_tf32() -> None:
    why = "--precision tf32 must have --device cuda, got cpu; use fp32 or bf16"
    with pytest.raises(Unavailable, match=why):
        executor("loop", FedAvg(), SHARED, Schedule(1, 3), precision="tf32")
