"""Launches can be recorded: nothing in them waits for numbers, and a replay is the launch.

There is no CUDA here. Tensors on ``meta`` have a device and no numbers, so that whatever asks for
one fails, as it would in a CUDA graph; and `make_fx` records operations and plays them again, with
all that Python decided on the way, as CUDA does with kernels.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.api import Grad, Gradient, Memory, Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.augmentation import CropFlip
from fedbench.executors.conv_kernels import Forms, geometries, matrices
from fedbench.executors.cuda_graphs import AFTER, Inputs, Recorder, Recording, Work, agree, fixed
from fedbench.executors.factory import measured, strangers
from fedbench.executors.training import Client, Loop, Schedule, WrapGrad, untouched
from fedbench.executors.vmap import Recorded, Stacked, lasting
from fedbench.experiment.prepare import choose_device
from fedbench.models.network import Convolve, Network
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fsl import FSL, mask_without_asking
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
AUGMENT = CropFlip((-0.75,))


def traced(work: Work, inputs: Inputs) -> Recording:
    """A recording on a CPU: operations on the memory of ``inputs``, and on no other."""
    leaves, form = pytree.tree_flatten(inputs)
    graph = make_fx(lambda *given: work(*pytree.tree_unflatten(list(given), form)))(*leaves)
    results = graph(*leaves)

    def again() -> None:
        new, old = pytree.tree_leaves(graph(*leaves)), pytree.tree_leaves(results)
        for place, value in zip(old, new, strict=True):
            place.copy_(value)

    return again, results


@dataclasses.dataclass
class Moves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every operation that goes from one device to another."""

    found: list[str]

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in pytree.tree_leaves((args, kwargs, out)) if isinstance(x, Tensor)]
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
class Watched(Recorder):
    """Records nothing; notes what launches move, then what they make."""

    moves: list[str] = dataclasses.field(default_factory=list)
    makes: list[str] = dataclasses.field(default_factory=list)

    def play(self, key: Any, work: Work, inputs: Inputs) -> Any:
        with Moves(self.moves), Makes(self.makes):
            return work(*inputs)


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
    """What a launch of its clients moves from one device to another, or makes of numbers.

    It is the second one: the first makes constants, and only later ones are recorded.
    """
    watched, shared = Watched(), dataclasses.replace(META, network=network)
    engine = Stacked(protocol, shared, SCHEDULE, augment=augment, recorder=watched)
    engine.__dict__["convolve"] = convolve
    clients = strangers(protocol, dataclasses.replace(CPU, network=network), 2, 6)
    there = [moved(client, wrap) for client in clients]
    dataclasses.replace(engine, recorder=None).train(there)
    updates, _ = engine.train(there)
    assert updates.device.type == "meta"
    return watched.moves + watched.makes


def test_a_launch_reads_no_number_and_moves_none() -> None:
    for name in (*PROTOCOLS, *TRAINERS):
        assert found(registry.load("protocol", name)) == [], name
    assert found(FedAvg(), DPSGD().wrap_grad) == []
    assert found(FedAvg(), convolve=matrices) == []
    assert found(FedAvg(), augment=AUGMENT) == []


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what computes something on the `meta` device, as another would launch it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        aliases = [a.alias_info for a in func._schema.arguments]
        view = any(alias is not None and not alias.is_write for alias in aliases)
        view = view or func is torch.ops.aten._unsafe_view.default
        out = func(*args, **(kwargs or {}))
        there = any(isinstance(x, Tensor) and x.is_meta for x in pytree.tree_leaves((args, out)))
        self.count += there and not view
        return out


@pytest.mark.parametrize(("name", "most"), [("fedavg", 50), ("fsl", 102), ("fedpm", 150)])
def test_a_local_step_has_no_more_kernels_than_it_had(name: str, most: int) -> None:
    protocol = registry.load("protocol", name)
    network = registry.load("model", "lenet").build((1, 28, 28), 10)
    here, there = (dataclasses.replace(shared, network=network) for shared in (CPU, META))
    counts = []
    for samples in (8, 16):  # two steps, and four
        clients = [moved(c, untouched) for c in strangers(protocol, here, 2, samples)]
        engine = Stacked(protocol, there, Schedule(1, 4))
        engine.__dict__["convolve"] = torch.nn.functional.conv2d
        engine.train(clients)
        with Kernels() as kernels:
            engine.train(clients)
        counts.append(kernels.count)
    assert (counts[1] - counts[0]) / 2 <= most


@pytest.mark.edges("lenet5")
@pytest.mark.parametrize("model", ["lenet5", "cnn4", "resnet20"])
def test_nor_does_one_of_another_network(model: str) -> None:
    network = registry.load("model", model).build((1, 28, 28), 10)
    assert found(registry.load("protocol", "fedmrn"), network=network) == []


def other(clients: Sequence[Client], number: int) -> list[Client]:
    """Clients of the same shapes, with other data, draws, models and memories."""
    return [
        dataclasses.replace(
            client,
            key=client.key.fold(number),
            x=client.x * (1 + number),
            tree={name: x * (1 + number / 8) for name, x in client.tree.items()},
            memory={name: x + number for name, x in client.memory.items()},
            round=number,
        )
        for client in clients
    ]


def recording(engine: Stacked, record: Any = traced) -> Stacked:
    return dataclasses.replace(engine, recorder=Recorder(record))


def recordings(engine: Stacked) -> int:
    assert engine.recorder is not None
    return len(engine.recorder)


@pytest.fixture
def as_accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks as an accelerator makes them: torch's operations alone, which ask nothing."""
    monkeypatch.setattr("fedbench.protocols.fsl.mask_rows", mask_without_asking)


def replays_are_launches(recorded: Stacked, plain: Stacked) -> None:
    for number in range(AFTER + 2):
        clients = other(doubled(example_clients(plain.protocol, plain.shared)), number)
        assert_rounded_alike(recorded.train(clients), plain.train(clients))
    assert recordings(recorded) == 1


@pytest.mark.edges("fedavg", "fsl")
@pytest.mark.parametrize("name", TRAINERS)
def test_a_replay_is_the_launch(name: str, as_accelerated: None) -> None:
    plain = Stacked(in_float64(registry.load("protocol", name)), CPU, SCHEDULE)
    replays_are_launches(recording(plain), plain)


def test_a_replay_changes_images_by_the_keys_of_its_own_clients() -> None:
    plain = Stacked(in_float64(FedAvg()), CPU, SCHEDULE, augment=AUGMENT)
    recorded = recording(plain)
    replays_are_launches(recorded, plain)
    unchanged = dataclasses.replace(recorded, augment=None)
    clients = doubled(example_clients(FedAvg(), CPU))
    updates, _ = unchanged.train(clients)
    assert_rounded_alike(updates, dataclasses.replace(plain, augment=None).train(clients)[0])
    assert not torch.allclose(updates, plain.train(clients)[0], atol=1e-3)


def test_every_way_to_train_is_among_those_that_are_replayed() -> None:
    def ways(names: list[str]) -> set[tuple[object, ...]]:
        kinds = [type(registry.load("protocol", name)) for name in names]
        return {(kind.local_update, kind.weights) for kind in kinds}

    assert ways(TRAINERS) == ways(PROTOCOLS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooked(FedAvg):
    """Before it trains, Python does something with a leaf; what comes of it scales the updates."""

    does: Callable[[Tensor], Tensor | None]

    def local_update(self, tree: Tree, *rest: Any) -> Any:
        scale = self.does(next(iter(tree.values())))
        trained, memory = super().local_update(tree, *rest)
        return {name: x if scale is None else x * scale for name, x in trained.items()}, memory


def asking(leaf: Tensor) -> None:
    torch.zeros((), device=leaf.device).item()


def test_python_trains_until_a_launch_is_recorded_and_not_after() -> None:
    calls: list[Tensor] = []
    counted = Hooked(does=calls.append)
    engine = recording(Stacked(counted, CPU, SCHEDULE))
    clients = example_clients(counted, CPU)
    counts = []
    for _ in range(AFTER + 2):
        calls.clear()
        engine.train(clients)
        counts.append(len(calls))
    assert counts == [1] * (AFTER - 1) + [2, 0, 0]


def test_results_are_not_overwritten_by_the_next_replay() -> None:
    def work(x: Tensor) -> tuple[Tensor, Memory]:
        return 2 * x, {"kept": 3 * x}

    recorder = Recorder(traced)
    answers = [recorder.play("key", work, (torch.full((2,), 1.0 * i),)) for i in range(AFTER + 3)]
    assert len(recorder) == 1
    for i, (update, memory) in enumerate(answers):
        assert update.tolist() == [2.0 * i] * 2
        assert memory["kept"].tolist() == [3.0 * i] * 2


def test_a_replay_that_gives_other_numbers_is_never_used() -> None:
    def wrong(work: Work, inputs: Inputs) -> Recording:
        again, results = traced(work, inputs)

        def doubled() -> None:
            again()
            results[0].mul_(2)

        return doubled, results

    plain = Stacked(FedAvg(), CPU, SCHEDULE)
    engine = recording(plain, wrong)
    clients = example_clients(FedAvg(), CPU)
    for _ in range(AFTER - 1):
        engine.train(clients)
    with pytest.warns(RuntimeWarning, match="its replay gave other numbers"):
        engine.train(clients)
    assert recordings(engine) == 0
    assert torch.equal(engine.train(clients)[0], plain.train(clients)[0])


def test_what_cannot_be_recorded_goes_on_and_says_so_once(recwarn: Any) -> None:
    tried = []

    def refused(work: Work, inputs: Inputs) -> Recording:
        tried.append(work)
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    plain = Stacked(FedAvg(), CPU, SCHEDULE)
    engine = recording(plain, refused)
    clients = example_clients(FedAvg(), CPU)
    for _ in range(AFTER + 2):
        assert torch.equal(engine.train(clients)[0], plain.train(clients)[0])
    assert [str(warning.message) for warning in recwarn] == [
        "launches are no longer recorded: operation not permitted when stream is capturing"
    ]
    assert len(tried) == 1


def test_the_meta_device_finds_what_reads_a_number_or_moves_one() -> None:
    with pytest.raises(RuntimeError, match="item"):
        found(Hooked(does=asking))
    moving = Hooked(does=lambda leaf: torch.tensor([1.0, 1.0]).to(leaf.device)[0])
    assert found(moving) == ["aten._to_copy.default", "tensor"]
    making = Hooked(does=lambda leaf: torch.tensor([1.0, 1.0], device=leaf.device)[[1, 0]][0])
    assert found(making) == ["tensor", "list"]


@pytest.mark.slow
def test_launches_that_decide_or_convolve_otherwise_are_recorded_apart() -> None:
    """One recorder for all, as in a process: by parameters, shapes, and who wraps the gradient."""
    recorder = Recorder(traced, most=8)
    clients = doubled(example_clients(FedAvg(), CPU))
    private = DPSGD(clip=0.01, z=0.5)
    wrapped = [dataclasses.replace(client, wrap_grad=private.wrap_grad) for client in clients]
    cases: list[tuple[FedAvg, Schedule, list[Client]]] = [  # FedAvg has nothing frozen
        (FedAvg(), SCHEDULE, clients),
        (FedAvg(lr=0.3), SCHEDULE, clients),
        (FedAvg(), SCHEDULE, clients[:2]),
        (FedAvg(), Schedule(2, 4), clients),
        (FedAvg(), SCHEDULE, wrapped),
    ]
    for _ in range(AFTER + 1):
        for protocol, schedule, some in cases:
            plain = Stacked(protocol, CPU, schedule)
            expected, _ = plain.train(some)
            updates, _ = dataclasses.replace(plain, recorder=recorder).train(some)
            assert_rounded_alike(updates, expected)
    assert len(recorder) == len(cases)
    recorder = Recorder(traced)
    for form in (Forms(), Forms(frozenset(geometries(NETWORK)))):
        engine = Stacked(FedAvg(), CPU, SCHEDULE, recorder=recorder)
        engine.__dict__["convolve"] = form
        for _ in range(AFTER):
            engine.train(clients)
    assert len(recorder) == 2


def test_a_recording_makes_room_for_who_comes_more_often_than_it() -> None:
    how: list[str] = []

    def record(work: Work, inputs: Inputs) -> Recording:
        return lambda: how.append("replayed"), work(*inputs)

    def work(x: Tensor) -> tuple[Tensor, Memory]:
        how.append("launched")
        return x, {}

    def replayed(kind: str) -> bool:
        how.clear()
        recorder.play(kind, work, (torch.zeros(1),))
        return how == ["replayed"]

    recorder = Recorder(record, most=1)
    for kind in "aba":  # b comes when a does not come between, and a comes back
        assert [replayed(kind) for _ in range(3)] == [False, False, True]
    # In turn neither comes twice while the other stays away: the one that is there stays.
    assert [replayed(kind) for kind in "bababa"] == [False, True] * 3


def test_seeds_share_a_recording_and_keep_their_networks(as_accelerated: None) -> None:
    recorder, protocol = Recorder(traced), in_float64(FSL())
    for seed in range(AFTER + 2):
        shared = Shared(NETWORK, seed, torch.device("cpu"))
        clients = doubled(example_clients(protocol, shared))
        plain = Stacked(protocol, shared, SCHEDULE)
        expected, _ = plain.train(clients)
        updates, _ = dataclasses.replace(plain, recorder=recorder).train(clients)
        assert_rounded_alike(updates, expected)
    assert len(recorder) == 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int = 0


class Open(Frozen):
    """No dataclass of its own: what is set on it is in no comparison."""


def test_what_stays_as_it_is() -> None:
    assert fixed(Frozen(), Frozen(1))
    equal_to_itself = dataclasses.make_dataclass("Alone", [], frozen=True, eq=False)
    thawed = dataclasses.make_dataclass("Thawed", [])
    for thing in (Open(), equal_to_itself(), thawed(), None, [1], lambda: None):
        assert not fixed(thing)
        assert not fixed(Frozen(), thing)
    assert not fixed(Frozen([1]))  # type: ignore[arg-type]


class Changing:
    """A mechanism that is not frozen: what was recorded of it may not hold."""

    factor = 1.0

    def wrap_grad(self, grad: Gradient) -> Grad:
        def scaled(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            return {name: self.factor * g for name, g in grad(tree, x, y, key).items()}

        return scaled


def test_what_may_change_is_not_recorded() -> None:
    plain = Stacked(FedAvg(), CPU, SCHEDULE)
    engine, changing = recording(plain), Changing()
    honest = example_clients(FedAvg(), CPU)
    clients = [dataclasses.replace(client, wrap_grad=changing.wrap_grad) for client in honest]
    for number in range(AFTER + 2):
        changing.factor = 1.0 + number
        assert torch.equal(engine.train(clients)[0], plain.train(clients)[0])
    assert not lasting(plain, lambda grad: grad)
    assert lasting(plain, untouched)
    assert recordings(engine) == 0


def test_recordings_are_chosen_if_faster(
    monkeypatch: pytest.MonkeyPatch, still_clock: None
) -> None:
    sleepy = Hooked(does=lambda leaf: time.sleep(0.2))  # Python's part of a step is a wait
    loop, stacked = Loop(sleepy, CPU, SCHEDULE), Stacked(sleepy, CPU, SCHEDULE)
    ways = {"loop": loop, "stacked": stacked, "recorded": recording(stacked)}
    monkeypatch.setattr("fedbench.executors.factory.HEAVY", 10)  # a sleep is no heavy step
    assert measured(ways, 4) == "recorded"
    assert measured(ways | {"recorded": stacked}, 4) == "stacked"  # a tie


def test_replays_agree_to_rounding_and_in_what_is_not_a_number() -> None:
    x = torch.tensor([1.0, torch.nan, 2.0])
    assert agree((x, {"a": torch.tensor([3])}), (x.clone(), {"a": torch.tensor([3])}))
    others = ([1.0, torch.nan, 2.01], [1.0, torch.nan, 2.001], [1.0, 2.0, 2.0])
    assert [agree((x, {}), (torch.tensor(y), {})) for y in others] == [False, True, False]
    assert not agree({"a": torch.tensor([3])}, {"a": torch.tensor([4])})


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")


@CUDA
@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("name", TRAINERS)
def test_a_cuda_graph_is_the_launch(name: str) -> None:
    protocol = in_float64(registry.load("protocol", name))
    shared = Shared(NETWORK, 3, choose_device("cuda"))
    plain, recorded = Stacked(protocol, shared, SCHEDULE), Recorded(protocol, shared, SCHEDULE)
    replays_are_launches(recorded, plain)


@CUDA
@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_cuda_graph_changes_images_as_the_launch_and_the_processor_do() -> None:
    protocol = in_float64(FedAvg())
    shared = Shared(NETWORK, 3, choose_device("cuda"))
    plain = Stacked(protocol, shared, SCHEDULE, augment=AUGMENT)
    replays_are_launches(Recorded(protocol, shared, SCHEDULE, augment=AUGMENT), plain)
    updates, _ = plain.train(doubled(example_clients(protocol, shared)))
    here, _ = Loop(protocol, CPU, SCHEDULE, augment=AUGMENT).train(
        doubled(example_clients(protocol, CPU))
    )
    assert_rounded_alike(updates.cpu(), here)


@CUDA
def test_a_capture_that_fails_leaves_cuda_as_it_was() -> None:
    shared = Shared(NETWORK, 3, choose_device("cuda"))
    stream = torch.cuda.current_stream()
    clients = example_clients(FedAvg(), shared)
    failing = Recorded(Hooked(does=asking), shared, SCHEDULE)
    failing.train(clients)
    with pytest.warns(RuntimeWarning, match="no longer recorded"):
        failing.train(clients)
    assert torch.cuda.current_stream() == stream
    good, clients = Recorded(FedAvg(), shared, SCHEDULE), doubled(clients)
    for _ in range(AFTER + 1):
        updates, _ = good.train(clients)
    assert_rounded_alike(updates, Stacked(FedAvg(), shared, SCHEDULE).train(clients)[0])
    assert recordings(good) == 1
