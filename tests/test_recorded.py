"""Steps can be recorded: nothing in them waits for numbers.

There is no CUDA here. Tensors on ``meta`` have a device and no numbers, so that whatever asks for
one fails, as it would in a CUDA graph. That a replay is the step: `test_padded`.
"""

import dataclasses
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu_roofline import counted
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.trees import Tree
from fedbench.data.augmentation import CropFlip
from fedbench.executors import factory
from fedbench.executors.conv_kernels import matrices
from fedbench.executors.cuda_graphs import CudaGraphs, Work
from fedbench.executors.factory import choose, measured, untrained_clients
from fedbench.executors.training import Client, Loop, Schedule, WrapGrad, untouched
from fedbench.executors.vmap import Padded, Recorded
from fedbench.experiment.prepare import choose_device
from fedbench.models.network import Convolve, Network
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

CPU = Shared(NETWORK, 3, torch.device("cpu"))
META = Shared(NETWORK, 3, torch.device("meta"))
PROTOCOLS = registry.names("protocol")
TRAINERS = [  # one of all that train alike
    "byz-dasha-page", "fedavg", "feddrop", "fedlaplace", "fedmask", "fedmog", "fedmrn", "fedmrns",
    "fedpm", "fedprox", "fedsparse", "fedsparsify", "fsl", "hidenseek", "rosdhb", "topk-mask",
    "worker-momentum", "fedavg:decay=0.5,anneal=cosine", "fedlaplace:decay=0.5", "decomfl:steps=2",
    "fedkseed:k=8",
]  # fmt: skip
SCHEDULE = Schedule(1, 4)  # two steps for every client, the last one short
MANY = Schedule(3, 2)  # 9 to 12 steps
AUGMENT = CropFlip((-0.75,))


@dataclasses.dataclass
class Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that goes from one device to another.

    A number of the processor beside tensors of the device is none: kernels take it as an argument.
    """

    found: list[str]

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in pytree.tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
        if func not in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default):
            tensors = [x for x in tensors if x.dim() or x.device.type != "cpu"]
        if len({x.device for x in tensors}) > 1:
            self.found.append(str(func))
        return out


@dataclasses.dataclass
class Makes(TorchFunctionMode):
    """Notes every tensor that is made of Python's numbers, which a device has to be sent."""

    found: list[str]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.tensor, torch.as_tensor):
            self.found.append(func.__name__)
        index = args[1] if func is Tensor.__getitem__ else None
        if any(isinstance(x, list) for x in (index if isinstance(index, tuple) else (index,))):
            self.found.append("list")
        return func(*args, **(kwargs or {}))


@dataclasses.dataclass
class Watched:
    """Takes a step once; notes what it moves, then what it makes."""

    moves: list[str] = dataclasses.field(default_factory=list)
    makes: list[str] = dataclasses.field(default_factory=list)

    def __call__(self, work: Work, times: int) -> None:
        with Moves(self.moves), Makes(self.makes):
            work()


def moved(client: Client, wrap: WrapGrad) -> Client:
    parts = (client.tree, client.x, client.y, client.memory)
    tree, x, y, memory = pytree.tree_map(lambda part: part.to("meta"), parts)
    return Client(tree, x, y, client.key, memory, wrap, client.round)


def found(
    protocol: FedAvg,
    wrap: WrapGrad = untouched,
    network: Network = NETWORK,
    convolve: Convolve = torch.nn.functional.conv2d,
    augment: CropFlip | None = None,
) -> list[str]:
    """Operations of a step that move something between devices or make a tensor of numbers."""
    watched = Watched()
    shared = dataclasses.replace(META, network=network)
    engine = Padded(protocol, shared, SCHEDULE, augment=augment, play=watched)
    engine.__dict__["convolve"] = convolve
    clients = untrained_clients(protocol, dataclasses.replace(CPU, network=network), 2, 6)
    there = [moved(client, wrap) for client in clients]
    dataclasses.replace(engine, play=None).train(there)
    updates, _ = engine.train(there)
    assert updates.device.type == "meta"
    return watched.moves + watched.makes


@pytest.mark.slow
def test_a_launch_reads_no_number_and_moves_none() -> None:
    for name in (*PROTOCOLS, *TRAINERS):
        assert found(registry.load("protocol", name)) == [], name
    assert found(FedAvg(), DPSGD().wrap_grad) == []
    assert found(FedAvg(), convolve=matrices) == []
    assert found(FedAvg(), augment=AUGMENT) == []


@pytest.mark.parametrize(("name", "most"), [("fedavg", 50), ("fsl", 102), ("fedpm", 150)])
def test_a_local_step_has_no_more_kernels_than_it_had(name: str, most: int) -> None:
    protocol = registry.load("protocol", name)
    network = registry.load("model", "lenet").build((1, 28, 28), 10)
    here, there = (dataclasses.replace(shared, network=network) for shared in (CPU, META))
    clients = [moved(client, untouched) for client in untrained_clients(protocol, here, 2, 8)]
    engine = Padded(protocol, there, Schedule(1, 4))
    engine.__dict__["convolve"] = torch.nn.functional.conv2d
    assert counted(engine, clients, 2).kernels <= most


@pytest.mark.edges("lenet5")
@pytest.mark.parametrize("model", ["lenet5", "cnn4", "resnet20", "conv10"])
def test_nor_does_one_of_another_network(model: str) -> None:
    network = registry.load("model", model).build((1, 32, 32), 10)
    assert found(registry.load("protocol", "fedmrn"), network=network) == []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooked(FedAvg):
    """In every step Python does something with a leaf; what comes of it scales the step."""

    does: Callable[[Tensor], Tensor | None]

    def landed(self, trained: Tree, start: Tree, rate: float | Tensor) -> Tree:
        moved = self.does(start["fc1"])
        return {name: x if moved is None else x * moved for name, x in trained.items()}


def asking(leaf: Tensor) -> None:
    torch.zeros((), device=leaf.device).item()


def test_the_meta_device_finds_what_reads_a_number_or_moves_one() -> None:
    with pytest.raises(RuntimeError, match="item"):
        found(Hooked(does=asking))
    moving = Hooked(does=lambda leaf: torch.tensor([1.0, 1.0]).to(leaf.device)[0])
    assert found(moving) == ["aten._to_copy.default", "tensor"]
    making = Hooked(does=lambda leaf: torch.tensor([1.0, 1.0], device=leaf.device)[[1, 0]][0])
    assert found(making) == ["tensor", "list"]


def test_recordings_are_chosen_if_faster(
    monkeypatch: pytest.MonkeyPatch, still_clock: None
) -> None:
    sleepy = Hooked(does=lambda leaf: time.sleep(0.2))  # Python's part of a step is a wait
    loop = Loop(sleepy, CPU, SCHEDULE)
    padded = Padded(sleepy, CPU, SCHEDULE)

    def skipped(work: Work, times: int) -> None:
        """Take no step but the first, as if a replay took no time."""

    recorded = dataclasses.replace(padded, play=skipped)
    ways = {"loop": loop, "padded": padded, "recorded": recorded}
    monkeypatch.setattr("fedbench.executors.factory.HEAVY_SECONDS", 10)  # no sleep is heavy
    assert measured(ways, 4) == "recorded"
    assert measured(ways | {"recorded": padded}, 4) == "padded"  # a tie


def test_recordings_are_measured_over_as_many_steps_as_a_launch_has(
    monkeypatch: pytest.MonkeyPatch, still_clock: None, tmp_path: Path
) -> None:
    def slow_to_record(work: Work, times: int) -> None:
        """Record for a second, then take the steps in no time."""
        time.sleep(1.0)

    monkeypatch.delenv("FEDBENCH_PROBE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(factory, "HEAVY_SECONDS", 10)  # a sleep is no heavy step
    monkeypatch.setattr(factory, "replays_graphs", lambda device: True)
    monkeypatch.setattr(factory, "Recorded", partial(Recorded, play=slow_to_record))
    sleepy = Hooked(does=lambda leaf: time.sleep(0.2))
    padded = Padded(sleepy, CPU, Schedule(1, 4))
    assert choose(padded, [12] * 4) == "padded"  # 3 steps: 0.6 s, or 0.2 and the recording
    assert choose(padded, [200] * 4) == "recorded"  # 16 steps: 3.2 s, or 1.2


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@CUDA
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", PROTOCOLS)
def test_steps_of_a_cuda_graph_are_those_of_the_loop(name: str) -> None:
    protocol = in_float64(registry.load("protocol", name))
    shared = Shared(NETWORK, 3, choose_device("cuda"))
    clients = doubled(example_clients(protocol, shared))
    recorded = Recorded(protocol, shared, MANY, augment=AUGMENT)
    loop = Loop(protocol, shared, MANY, augment=AUGMENT)
    for number in range(3):  # later launches find the memory of earlier graphs
        group = [dataclasses.replace(c, key=c.key.fold(number), round=number) for c in clients]
        assert_rounded_alike(recorded.train(group), loop.train(group))


@CUDA
def test_a_step_that_waits_leaves_cuda_as_it_was() -> None:
    shared = Shared(NETWORK, 3, choose_device("cuda"))
    clients = doubled(example_clients(FedAvg(), shared))
    stream = torch.cuda.current_stream()
    with pytest.warns(RuntimeWarning, match="no longer recorded"):
        Recorded(Hooked(does=asking), shared, MANY).train(clients)
    assert torch.cuda.current_stream() == stream
    protocol = in_float64(FedAvg())
    expected = Padded(protocol, shared, MANY).train(clients)
    assert_rounded_alike(Recorded(protocol, shared, MANY).train(clients), expected)


@CUDA
def test_cuda_recordings_of_many_launches_take_the_memory_of_one() -> None:
    shared = Shared(NETWORK, 3, choose_device("cuda"))
    clients = example_clients(FedAvg(), shared)
    recorded = Recorded(FedAvg(), shared, MANY)
    reserved = []
    for launches in (3, 40):  # more than torch has streams
        for _ in range(launches):
            recorded.train(clients)
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[0] == reserved[1]


@CUDA
def test_a_cuda_recording_that_fails_leaves_stream_and_memory_to_the_next_one() -> None:
    record = CudaGraphs()
    x = torch.zeros(4, device=choose_device("cuda"))

    def counts() -> None:
        x.add_(1)

    def fails() -> None:
        counts()
        raise torch.OutOfMemoryError("nothing is left")

    with pytest.raises(torch.OutOfMemoryError):
        record(fails)
    again = record(counts)
    again()
    again()
    assert x.tolist() == [2.0] * 4  # a recording does nothing
