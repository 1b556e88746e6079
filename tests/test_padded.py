"""Clients that end at different times share a launch, and get what they would have got alone.

There is no CUDA here. A step is recorded by a tape of torch's operations, played again on the same
memory with all that Python decided on the way, as CUDA does with kernels.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.api import Batches, Grad, Gradient, LocalStep, Memory, Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.augmentation import CropFlip
from fedbench.executors.cuda_graphs import MIN_RECORDED_STEPS, GraphReplay, Work
from fedbench.executors.padded import Gathered, PaddedBatches
from fedbench.executors.training import Client, Loop, Schedule, Trained, WrapGrad, untouched
from fedbench.executors.vmap import CPU_LAUNCH_BYTES, Padded, cheapest, footprint, rows_of, stacked
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fedpm import FedPM
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

SHARED = Shared(NETWORK, 3, torch.device("cpu"))
SCHEDULE = Schedule(2, 3)
STEPS = [4, 8, 6, 16]  # of the clients below
TRAINERS = [  # one of all that train alike, and what depends on the number of a step
    "byz-dasha-page", "fedavg", "feddrop", "fedlaplace", "fedmask", "fedmog", "fedmrn", "fedmrns",
    "fedpm", "fedprox", "fedsparse", "fedsparsify", "fsl", "hidenseek", "rosdhb", "topk-mask",
    "worker-momentum", "fedavg:decay=0.5,anneal=cosine", "fedlaplace:decay=0.5,anneal=cosine",
    "fedpm:keep_moments=true", "fedpm:optimizer=sgd", "fedmrn:pm=false", "fedmrn:when=after",
    "decomfl:steps=5,p=3", "decomfl:steps=3,difference=central", "fedkseed:k=8,steps=5",
]  # fmt: skip


class Tape(TorchDispatchMode):
    """Operations in their order, and the memory that they found and wrote to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lines: list[tuple[Any, Any, Any, Any]] = []
        self.own: set[int] = set()  # memory that was made on the way
        self.found: dict[int, tuple[Tensor, Tensor]] = {}  # other memory, and what was in it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        if func._schema.is_mutable and (place := storage(args[0])) not in self.own:
            self.found.setdefault(place, (args[0], args[0].clone()))
        out = func(*args, **(kwargs or {}))
        if not shares(out, args):
            self.own |= {storage(x) for x in tensors(out)}
        self.lines.append((func, args, kwargs or {}, out))
        return out

    def undo(self) -> None:
        """Put back what was in the memory that was found: a recording does nothing."""
        for place, before in self.found.values():
            place.copy_(before)

    def again(self) -> None:
        """Do all operations again, with their results in the same memory."""
        for func, args, kwargs, out in self.lines:
            new = func(*args, **kwargs)
            if not shares(out, args):
                for place, value in zip(tensors(out), tensors(new), strict=True):
                    place.copy_(value)


def tensors(things: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(things) if isinstance(x, Tensor)]


def storage(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def shares(out: Any, args: Any) -> bool:
    """Whether a result lies in the memory of an argument, as views do."""
    given = {storage(x) for x in tensors(args)}
    return any(storage(x) in given for x in tensors(out))


def taped(work: Work) -> Work:
    tape = Tape()
    with tape:
        work()
    tape.undo()
    return tape.again


@contextmanager
def asks_nothing() -> Iterator[None]:
    """Refuse to read a number, as `waits_are_errors` does."""
    with Tape():
        yield


def recorder() -> GraphReplay:
    return GraphReplay(taped, asks_nothing)


def uneven(protocol: Any, n: int = 4) -> list[Client]:
    """Clients with 5, 12, 7 and 24 samples: `STEPS` of them, and short last batches."""
    clients = doubled(example_clients(protocol, SHARED, n))
    times = zip(clients, (1, 2, 1, 3), strict=True)
    return [
        dataclasses.replace(c, x=torch.cat([c.x] * k), y=torch.cat([c.y] * k), round=k)
        for c, k in times
    ]


@pytest.fixture(autouse=True)
def one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches as on an accelerator: starting another costs more than any wait."""
    monkeypatch.setattr("fedbench.executors.vmap.CPU_OVERHEAD", 1e9)


def padded(protocol: Any, clients: list[Client], schedule: Schedule, **options: Any) -> Trained:
    """Train in one launch, for sure."""
    engine = Padded(protocol, SHARED, schedule, **options)
    assert len(list(engine.launches(clients, True))) == 1
    return engine._train(clients, True)


@pytest.fixture
def as_accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks as an accelerator makes them: torch's operations alone, which ask nothing."""
    from fedbench.protocols.fsl import mask_without_asking

    monkeypatch.setattr("fedbench.protocols.fsl.mask_rows", mask_without_asking)


def test_clients_are_as_uneven_as_they_are_said_to_be() -> None:
    clients = uneven(FedAvg())
    assert [SCHEDULE.steps(len(client.x)) for client in clients] == STEPS
    engine = Padded(FedAvg(), SHARED, SCHEDULE)
    assert len(list(engine.launches(clients, False))) == 4
    assert list(engine.launches(clients, True)) == [[3, 1, 2, 0]]  # the longest first
    pairs = Padded(FedAvg(), SHARED, SCHEDULE, chunk=2)
    assert list(pairs.launches(clients, True)) == [[3, 1], [2, 0]]


@pytest.mark.edges("fedavg", "fsl", "fedpm", "byz-dasha-page")
@pytest.mark.parametrize("name", [*registry.names("protocol"), *TRAINERS[17:]])
def test_a_client_gets_what_it_would_have_got_alone(name: str) -> None:
    protocol = in_float64(registry.load("protocol", name))
    clients = uneven(protocol)
    trained = padded(protocol, clients, SCHEDULE)
    assert_rounded_alike(trained, Loop(protocol, SHARED, SCHEDULE).train(clients))


@pytest.mark.edges("fedavg", "fsl", "fedmrn")
@pytest.mark.parametrize("name", TRAINERS)
def test_and_so_it_does_if_a_step_is_recorded(name: str, as_accelerated: None) -> None:
    protocol = in_float64(registry.load("protocol", name))
    clients = uneven(protocol)
    play = recorder()
    trained = padded(protocol, clients, SCHEDULE, play=play)
    assert_rounded_alike(trained, Loop(protocol, SHARED, SCHEDULE).train(clients))
    assert play.works


def test_every_way_to_train_is_among_those_that_are_recorded() -> None:
    def ways(names: list[str]) -> set[tuple[object, ...]]:
        kinds = [type(registry.load("protocol", name)) for name in names]
        return {(kind.local_update, kind.weights) for kind in kinds}

    assert ways(TRAINERS) == ways(registry.names("protocol"))


class Folding(FedAvg):
    """FedAvg whose steps draw from a key that is not the client's own."""

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        return super().local_update(tree, batches, grad, key.fold("steps"), memory)


@pytest.mark.parametrize("play", [None, recorder()], ids=["padded", "recorded"])
@pytest.mark.parametrize("coins", [False, True], ids=["epochs", "coins"])
def test_wrapped_gradients_and_changed_images_are_those_of_the_loop(
    coins: bool, play: GraphReplay | None
) -> None:
    protocol = in_float64(Folding())  # images are changed by the client's key all the same
    schedule = Schedule(2, 3, coins)
    wrap = DPSGD(clip=0.1, z=0.5).wrap_grad
    clients = [dataclasses.replace(client, wrap_grad=wrap) for client in uneven(protocol)]
    augment = CropFlip((-0.75,))
    loop = Loop(protocol, SHARED, schedule, augment=augment).train(clients)
    assert_rounded_alike(padded(protocol, clients, schedule, augment=augment, play=play), loop)
    assert not torch.allclose(loop[0], padded(protocol, clients, schedule)[0], atol=1e-3)


def up(grad: Gradient) -> Grad:
    def wrapped(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: -g for name, g in grad(tree, x, y, key).items()}

    return wrapped


def test_who_trains_another_way_is_in_another_launch() -> None:
    clients = uneven(in_float64(FedAvg()))
    clients[1] = dataclasses.replace(clients[1], wrap_grad=up)
    engine = Padded(in_float64(FedAvg()), SHARED, SCHEDULE)
    assert sorted(map(sorted, engine.launches(clients, True))) == [[0, 2, 3], [1]]
    loop = Loop(engine.protocol, SHARED, SCHEDULE).train(clients)
    assert_rounded_alike(engine.train(clients), loop)


def test_one_tree_for_all_is_stacked_without_a_copy() -> None:
    tree = {"w": torch.arange(6.0).reshape(2, 3)}
    both = stacked([tree, tree])
    assert both["w"].data_ptr() == tree["w"].data_ptr()
    twins = stacked([tree, {"w": tree["w"].clone()}])
    assert torch.equal(both["w"], twins["w"])
    rows = rows_of(twins, 2)
    assert [torch.equal(row["w"], tree["w"]) for row in rows] == [True, True]


def test_without_a_private_gradient_the_adversary_s_clients_share_the_launch() -> None:
    def wraps(mechanism: str) -> list[WrapGrad]:
        scenario = Scenario(
            clients=6, per_round=6, malicious=0.5, attack="sign-flip", mechanism=mechanism
        )
        setup = prepare(scenario, "cpu", "loop")
        tree = setup.shared.layout.unflatten(torch.zeros(setup.shared.layout.d))
        clients = setup.clients(range(6), [tree], {}, 0)
        malicious = setup.population.malicious[range(6)].tolist()
        return [c.wrap_grad for c, owned in zip(clients, malicious, strict=True) if not owned]

    assert set(wraps("none")) == {untouched}
    assert untouched not in wraps("dp-sgd")


def test_methods_of_equal_mechanisms_are_one_and_closures_are_their_own() -> None:
    engine = Padded(FedAvg(), SHARED, SCHEDULE)

    def launches(*wraps: WrapGrad) -> int:
        pairs = zip(example_clients(FedAvg(), SHARED, 2), wraps, strict=True)
        clients = [dataclasses.replace(client, wrap_grad=wrap) for client, wrap in pairs]
        return len(list(engine.launches(clients, True)))

    first, equal, stronger = (DPSGD(z=z, clip=0.1).wrap_grad for z in (0.5, 0.5, 2.0))
    assert [launches(first, equal), launches(first, stronger)] == [1, 2]
    assert launches(lambda grad: grad, lambda grad: grad) == 2


def test_a_launch_takes_what_the_footprint_of_its_clients_leaves_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Padded(FedAvg(), SHARED, Schedule(2, 4))
    assert engine.width == engine.chunk == 32  # 32 of this network are nothing
    clients = example_clients(FedAvg(), SHARED)
    bytes_each = footprint(NETWORK, 4)
    longest = max(engine.schedule.steps(len(client.x)) for client in clients)
    samples = longest * 4 * 16 * 4  # of four images of 4 x 4 floats in each step
    for budget, sizes in (
        (2 * (bytes_each + samples), [2, 2]),
        (2 * (bytes_each + samples) - 1, [1, 1, 1, 1]),
    ):
        monkeypatch.setattr("fedbench.executors.vmap.CPU_LAUNCH_BYTES", budget)
        engine = dataclasses.replace(engine)
        assert engine.width == 2  # without their samples
        assert [len(group) for group in engine.launches(clients, True)] == sizes
    monkeypatch.setattr("fedbench.executors.vmap.CPU_LAUNCH_BYTES", bytes_each // 2)
    assert dataclasses.replace(engine).width == 1  # never none
    assert CPU_LAUNCH_BYTES == 1 << 29
    # A convolution of 3 channels on 4 x 4, a pool to 2 x 2, layers of 5 and 3. A sample keeps: the
    # image, 16; the 48 after the convolution's ReLU twice, for the ReLU and as input of the pool;
    # the pool's 12 places in 8 bytes; its 12 values as input of a layer; the 5 after that one's
    # ReLU twice. Four samples, values and gradients; six copies of the weights.
    floats = 16 + 48 + 48 + 12 + 5 + 5
    weights = 3 * 9 + 12 * 5 + 5 * 3
    per_sample = 4 * floats + 8 * 12
    assert footprint(NETWORK, 4) == 6 * 4 * weights + 2 * 4 * per_sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walking(FedAvg):
    """Goes through its batches by itself, as a foreign protocol may."""

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        update = {name: torch.zeros_like(x) for name, x in tree.items()}
        for step, (x, y) in enumerate(batches):
            gradient = grad(tree, x, y, key.fold("step", step))
            update = {name: u - gradient[name] for name, u in update.items()}
        return update, memory


def test_a_protocol_that_goes_through_batches_itself_pads_none() -> None:
    protocol = in_float64(Walking())
    clients = uneven(protocol)
    engine = Padded(protocol, SHARED, SCHEDULE, play=recorder())
    assert_rounded_alike(engine.train(clients), Loop(protocol, SHARED, SCHEDULE).train(clients))


def scanned(step: Any, start: Any, play: Any = None, most: int | None = None) -> Any:
    """Three clients with 1, 3 and 5 steps, of one sample each: 0, 1, 2 and so on."""
    samples = torch.arange(6)
    rows = torch.arange(5).expand(3, 5)[:, :, None]

    def of_client(rows: Tensor, of: Tensor) -> Any:
        steps = Gathered(samples.double()[rows], samples[rows])
        batches = PaddedBatches(steps, of=of, shortest=1, longest=5, key=Key(0), play=play)
        return batches.scan(step, start, Key(0), most)

    return torch.vmap(of_client)(rows, torch.tensor([1, 3, 5]))


@pytest.mark.parametrize("play", [None, recorder()], ids=["padded", "recorded"])
def test_what_comes_after_a_client_s_end_is_not_kept_whatever_it_is(play: Any) -> None:
    def step(sums: Tree, now: LocalStep) -> Tree:
        beyond = torch.as_tensor(now.number) >= now.of  # NaN, as a mean of no samples
        x = torch.where(beyond, torch.nan, now.x[0])
        return {"x": sums["x"] + x, "share": torch.as_tensor(now.done())}

    zero = torch.zeros((), dtype=torch.float64)
    start = {"x": zero, "share": zero}
    ended = scanned(step, start, play)
    assert ended["x"].tolist() == [0, 0 + 1 + 2, 0 + 1 + 2 + 3 + 4]
    assert ended["share"].tolist() == [1, 1, 1]
    for most, sums in ((1, [0, 0, 0]), (4, [0, 0 + 1 + 2, 0 + 1 + 2 + 3]), (9, [0, 3, 10])):
        ended = scanned(step, start, play, most)
        assert ended["x"].tolist() == sums
        assert ended["share"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(("play", "taken"), [(None, 5), (recorder(), 3)])
def test_python_takes_the_steps_of_the_longest_client_or_three_of_them(
    play: Any, taken: int
) -> None:
    # Recorded: the first as written, the second to see that it can be recorded, and the recording.
    calls = []

    def step(sums: Tree, now: LocalStep) -> Tree:
        calls.append(now.number)
        return {"x": sums["x"] + now.x[0]}

    scanned(step, {"x": torch.zeros((), dtype=torch.float64)}, play)
    assert len(calls) == taken


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hooked(FedAvg):
    """Python does something with a leaf in every step."""

    does: Callable[[Tensor], object]

    def landed(self, trained: Tree, start: Tree, rate: float | Tensor) -> Tree:
        self.does(start["fc1"])
        return trained


def asking(leaf: Tensor) -> None:
    torch.zeros((), device=leaf.device).item()


def test_what_cannot_be_recorded_goes_on_and_says_so_once(recwarn: Any) -> None:
    protocol = in_float64(Hooked(does=asking))
    clients = uneven(protocol)
    play = recorder()
    loop = Loop(protocol, SHARED, SCHEDULE).train(clients)
    for _ in range(2):
        assert_rounded_alike(padded(protocol, clients, SCHEDULE, play=play), loop)
    assert [str(warning.message) for warning in recwarn] == [
        "steps are no longer recorded: operation not permitted when stream is capturing"
    ]


def test_an_error_of_a_plug_in_is_its_own_whether_steps_are_recorded_or_not() -> None:
    def fails(leaf: Tensor) -> None:
        raise RuntimeError("odd today")

    protocol = in_float64(Hooked(does=fails))
    for play in (None, recorder()):
        with pytest.raises(RuntimeError, match="odd today"):
            padded(protocol, uneven(protocol), SCHEDULE, play=play)


def test_work_is_done_so_many_times_however_it_is_repeated() -> None:
    for times in range(MIN_RECORDED_STEPS + 3):
        number = torch.zeros(())
        made: list[Work] = []

        def record(work: Work, made: list[Work] = made) -> Work:
            made.append(taped(work))
            return made[-1]

        GraphReplay(record, nullcontext)(lambda number=number: number.add_(1), times)  # type: ignore[misc]
        assert number.item() == times
        assert len(made) == (times >= MIN_RECORDED_STEPS)


def test_launches_cost_least_of_all_ways_to_split_them() -> None:
    # Counts without a tie: all 2**7 ways to cut eight clients into launches are tried.
    steps = [40, 31, 30, 12, 9, 8, 3, 1]
    for most, overhead in ((8, 0.5), (8, 2.5), (8, 7.0), (3, 7.0), (8, 64.0)):
        costs = {}
        for cuts in itertools.product((False, True), repeat=7):
            bounds = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), 8]
            sizes = [end - start for start, end in itertools.pairwise(bounds)]
            firsts = zip(bounds, sizes, strict=False)
            if max(sizes) <= most:
                costs[tuple(sizes)] = sum(steps[i] * (overhead + size) for i, size in firsts)
        assert tuple(cheapest(steps, most, overhead)) == min(costs, key=lambda way: costs[way])


def test_the_share_that_is_needed_is_that_of_the_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedbench.executors.vmap.CPU_OVERHEAD", 8.0)
    engine = Padded(FedAvg(), SHARED, SCHEDULE)
    assert engine.useful([2] * 9) == 1
    # 18 * (8 + 1) + 2 * (8 + 4) = 186, all in one 18 * (8 + 5) = 234.
    assert engine.useful([2, 1, 18, 1, 2]) == 24 / (18 + 4 * 2)


def test_moments_that_a_client_keeps_are_those_of_its_last_step() -> None:
    protocol = in_float64(FedPM(keep_moments=True))
    clients = uneven(protocol)
    _, memories = padded(protocol, clients, SCHEDULE)
    assert [memory["t"].item() for memory in memories] == STEPS
