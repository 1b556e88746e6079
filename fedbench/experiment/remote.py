"""Training of one run's clients by the processes of a Ray cluster, which hold data and model.

A task of Ray trains a chunk of a round's clients. Ray decides where, and repeats what was lost with
a process or a node. A chunk is the same work wherever and however often it is done, so the numbers
are those of the local executor, to the last bit if all processors are alike. What clients remember
stays in the server process and travels with them.

What crosses is bytes of `fedbench.experiment.state_bytes`. `Remote.carried` counts them for each
round, node and kind, a chunk that was repeated once:

- ``broadcast``: what the clients received, once for a node and round, to its object store;
- ``tasks``: numbers and memories of the clients; samples of those whose samples are not the pool's;
- ``results``: packets, or updates where the server needs them, and memories.

Ray's own frames are not in it, nor are scenario and data set, once for a node and run.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Local, Mechanism, Memory, hooks
from fedbench.core.blame import Hook
from fedbench.core.copies import on_device
from fedbench.core.devices import accelerated
from fedbench.core.errors import ConfigError, FedbenchError, Unavailable
from fedbench.core.rng import Key
from fedbench.core.sources import package_of
from fedbench.core.trees import Tree
from fedbench.executors.cluster import (
    RETRIES,
    address_of,
    arrays_of,
    connect,
    data_of,
    first_line,
    imported,
    other_code,
    places_of,
)
from fedbench.executors.factory import REMOTE_OPTION, remote_way
from fedbench.executors.malloc import keep_memory
from fedbench.executors.training import Client, Executor, Made, Trained, untouched
from fedbench.experiment.forms import form_bytes, form_of
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario, code_version
from fedbench.experiment.setup import Cohort, Setup
from fedbench.experiment.state_bytes import decode, encode
from fedbench.payload.packets import Packet


@contextmanager
def on_cluster(setup: Setup, name: str, chunk: int) -> Iterator[Setup]:
    """Yield the setup, whose clients a cluster trains inside the block if ``name`` says so.

    It is the cluster that this process has joined, that of ``RAY_ADDRESS``, or a new one on this
    machine, which ends with the block. ``chunk`` is the most clients of a task.
    """
    if remote_way(name) is None:
        yield setup
        return
    ray = imported(REMOTE_OPTION)
    joined = ray.is_initialized()
    if not joined:
        connect(ray, address_of(), "RAY_ADDRESS")
    try:
        yield replace(setup, executor=Remote.of(setup, ray, chunk))
    finally:
        if not joined:
            ray.shutdown()


@dataclass(frozen=True, eq=False)
class Stored:
    """A tree in the cluster's object store."""

    tree: Tree
    number: int  # of all trees of the run
    reference: Any  # of Ray
    size: int  # bytes
    nodes: set[str] = field(default_factory=set)  # that have it


Ordered = dict[Any, tuple[int, int, list[Stored]]]  # by answer: first row, bytes of task, trees


@dataclass(frozen=True, eq=False)
class Load:
    """Clients of a round as they travel: by number, or ``given`` with samples of their own."""

    step: int
    trees: Sequence[Tree]
    memories: Sequence[Memory | None]
    ids: Sequence[int] = ()
    given: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Remote(Executor):
    """Trains clients in processes of a cluster, each one as the ``local`` executor would."""

    elsewhere: ClassVar[bool] = True

    local: Executor = field(kw_only=True)
    setup: Setup = field(kw_only=True)
    ray: Any = field(kw_only=True)
    chunk: int = field(kw_only=True)  # most clients of a task
    places: int = field(kw_only=True)  # tasks that ran at once when the run began
    task: Any = field(kw_only=True)  # the remote function
    run: tuple[Any, Any] = field(kw_only=True)  # Ray's references to what a process needs
    carried: Counter[tuple[int, str, str]] = field(default_factory=Counter, kw_only=True)
    stored: dict[int, Stored] = field(default_factory=dict, kw_only=True)  # by id of the tree

    @classmethod
    def of(cls, setup: Setup, ray: Any, chunk: int) -> "Remote":
        """Return the executor of a setup; `ConfigError` if no node has a place for a task."""
        local = setup.executor
        device = setup.shared.device
        gpus = float(accelerated(device))
        places = places_of(ray, 1, gpus)
        if not places:
            raise ConfigError(
                f"{REMOTE_OPTION} must have a node with 1 CPU and {gpus:g} GPUs for a task, got "
                "none; start one: ray start --address=HOST:PORT"
            )
        order = {
            "scenario": setup.scenario.model_dump_json(),
            "device": device.type,
            "executor": local.title,
            "chunk": chunk,
            "id": setup.id,
            "code": code_version(),
        }
        share = {"num_cpus": 1, "num_gpus": gpus, "max_calls": 0}  # a process keeps what it holds
        return cls(
            local.protocol,
            local.shared,
            local.schedule,
            precision=local.precision,
            augment=local.augment,
            local=local,
            setup=setup,
            ray=ray,
            chunk=chunk,
            places=places,
            task=ray.remote(**share, max_retries=RETRIES, retry_exceptions=False)(_train),
            run=(ray.put(encode(order)), ray.put(arrays_of(setup.population.data))),
        )

    @property
    def title(self) -> str:
        """Name in a record: ``ray`` and the executor of its processes."""
        return f"ray:{self.local.title}"

    @property
    def at_once(self) -> int | None:
        """Most clients of a task."""
        return self.chunk

    def train(self, clients: Sequence[Client]) -> Trained:
        """See `Executor.train`; clients whose gradient cannot travel are trained here."""
        load = self._load(clients) if len(clients) else None
        if load is None:
            return self.local.trained(clients)
        parts = dict(self._answers(load, self._ordered(load, packets=False)))
        answers = [parts[start] for start in sorted(parts)]
        updates = torch.cat([answer["updates"] for answer in answers])
        memories = [memory for answer in answers for memory in answer["memories"]]
        return updates.to(self.shared.device), on_device(memories, self.shared.device)

    def trained(self, clients: Sequence[Client], step: int | None = None) -> Trained:
        """Return what `train` does: a process names the protocol, whose fault no lost node is."""
        return self.train(clients)

    def exchange(self, clients: Sequence[Client]) -> tuple[Trained, Made | None]:
        """Train and have packets back, unless the mechanism or the server's memory needs updates.

        A mechanism changes the updates of all clients together. A patch (`Protocol.agreed`) is one
        of a vector that the server has, and does not travel.
        """
        return self.begin(clients)()

    def begin(self, clients: Sequence[Client]) -> Callable[[], tuple[Trained, Made | None]]:
        """Have the clients of a round begin to train; return what waits for their packets."""
        mechanism = self.setup.plugins.mechanism
        protects = type(mechanism).on_updates is not Mechanism.on_updates
        needed = protects or self.protocol.agreed is not None
        if needed or not isinstance(clients, Cohort) or not len(clients):
            return lambda: (self.trained(clients), None)
        load = self._load(clients)
        assert load is not None
        return partial(self._packets, clients, load, self._ordered(load, packets=True))

    def _packets(
        self, clients: Cohort, load: Load, ordered: Ordered
    ) -> tuple[Trained, Made | None]:
        """Return the messages of clients that train, and updates of those that attack."""
        device = self.shared.device
        packets: dict[int, Packet] = {}
        rows: dict[int, Tensor] = {}
        before: list[Memory] = [{} for _ in load.trees]
        after: list[Memory] = [{} for _ in load.trees]
        forms = set()
        for start, answer in self._answers(load, ordered):
            forms.add(answer["form"])
            for row, data in enumerate(answer["packets"], start):
                packets[row] = Packet(data, int(answer["bits"][row - start]))
                after[row] = answer["after"][row - start]
            for place, row in enumerate((answer["own"] + start).tolist()):
                rows[row] = answer["updates"][place]
                before[row] = answer["before"][place]
        hook = Hook(self.protocol, "message", clients.step)
        hook.must(len(forms) == 1, "messages of one form", f"{len(forms)} forms")
        form = form_of(forms.pop(), package_of(self.protocol.sends))
        rows_in_order = [packets[row] for row in range(len(clients))]
        messages, _ = type(form).decode(rows_in_order, form.spec, device)
        assert messages is not None  # honest ones are legal
        assert len(messages) == len(clients)
        updates = torch.full((1, self.protocol.trained(self.shared).d), torch.nan, device=device)
        updates = updates.expand(len(clients), -1)  # one row in memory where nobody attacks
        updates = updates.clone() if rows else updates
        for row, update in rows.items():
            updates[row] = update.to(device)
        return (updates, on_device(before, device)), (messages, on_device(after, device))

    def _load(self, clients: Sequence[Client]) -> Load | None:
        """Return what travels of the clients, or None if a gradient is one that cannot."""
        if isinstance(clients, Cohort):
            trees = [clients.tree(row) for row in range(len(clients))]
            memories = [clients.memories.get(i) or None for i in clients.ids]
            return Load(clients.step, trees, memories, ids=clients.ids)
        ways = [self._way(client) for client in clients]
        if None in ways or not clients:
            return None
        given = [
            {"x": client.x, "y": client.y, "key": client.key.seed, "way": way}
            for client, way in zip(clients, ways, strict=True)
        ]
        own = [client.memory for client in clients]
        return Load(clients[0].round, [client.tree for client in clients], own, given=given)

    def _way(self, client: Client) -> Any:
        """Return what a process can make a client's `wrap_grad` of, or None.

        That is nothing, or an attack's `Local`: a client that attacks complies with no mechanism.
        """
        wrap = client.wrap_grad
        if wrap is untouched:
            return {}
        if isinstance(wrap, partial) and wrap.func is hooks.wrap_grad:
            named = wrap.args == (self.setup.plugins.attack,)
            return dict(wrap.keywords) if named else None
        return None

    def _ordered(self, load: Load, packets: bool) -> Ordered:
        """Have chunks trained, and return what Ray calls their answers."""
        n = len(load.trees)
        self._store(load.trees)
        size = min(self.chunk, -(-n // self.places))
        ordered: Ordered = {}
        for start in range(0, n, size):
            part = slice(start, start + size)
            stored = [self.stored[id(tree)] for tree in load.trees[part]]
            used = {each.number: each for each in stored}
            task = encode(
                {
                    "step": load.step,
                    "packets": packets,
                    "trees": torch.tensor(list(used)),
                    "of": torch.tensor([each.number for each in stored]),
                    "ids": torch.tensor(load.ids[part], dtype=torch.int64),
                    "memories": load.memories[part],
                    "given": load.given[part],
                }
            )
            references = [each.reference for each in used.values()]
            answer = self.task.remote(list(self.run), _buffer(task), *references)
            ordered[answer] = (start, len(task), list(used.values()))
        return ordered

    def _answers(self, load: Load, ordered: Ordered) -> Iterator[tuple[int, Any]]:
        """Yield the first row of each chunk and its answer, as they are ready."""
        waiting = list(ordered)
        while waiting:
            (answer,), waiting = self.ray.wait(waiting)
            node, result = self._result(answer)
            start, task_bytes, trees = ordered.pop(answer)
            self.carried[load.step, node, "tasks"] += task_bytes
            self.carried[load.step, node, "results"] += len(result)
            for tree in trees:
                if node not in tree.nodes:
                    tree.nodes.add(node)
                    self.carried[load.step, node, "broadcast"] += tree.size
            yield start, decode(memoryview(result))

    def _store(self, trees: Sequence[Tree]) -> None:
        """Put trees into the object store that are not there, and forget those of other rounds."""
        before = dict(self.stored)
        number = 1 + max((each.number for each in before.values()), default=-1)
        self.stored.clear()
        for name, tree in {id(tree): tree for tree in trees}.items():
            if name not in before:
                data = _buffer(encode(tree))
                before[name] = Stored(tree, number, self.ray.put(data), len(data))
                number += 1
            self.stored[name] = before[name]

    def _result(self, answer: Any) -> tuple[str, Any]:
        """Return node and bytes of an answer, or raise what the process did."""
        errors = self.ray.exceptions
        try:
            node, result = self.ray.get(answer)
        except errors.OutOfMemoryError as error:
            raise MemoryError(first_line(error)) from error
        except errors.RayTaskError as error:
            if isinstance(error.cause, FedbenchError | MemoryError | torch.OutOfMemoryError):
                raise error.cause from None
            if isinstance(error.cause, ImportError | AttributeError):
                raise ConfigError(
                    f"every node of the cluster must have this fedbench, got "
                    f"{first_line(error.cause)!r}; install it and start again"
                ) from error
            raise
        except errors.RayError as error:
            raise Unavailable(
                f"{REMOTE_OPTION} must have nodes that stay, got {type(error).__name__} for the "
                f"same clients {1 + RETRIES} times; start the run again"
            ) from error
        return node, result


def _buffer(data: bytes) -> "np.ndarray[Any, Any]":
    """Return bytes as an array, which Ray carries as they are and processes map."""
    return np.frombuffer(data, dtype=np.uint8)


def _train(run: Sequence[Any], task: Any, *trees: Any) -> tuple[str, Any]:
    """Train the clients of a task in a process of Ray; return its node and the answer's bytes."""
    import ray

    worker = _worker(*run)
    answer = worker.answer(decode(memoryview(task)), trees)
    return ray.get_runtime_context().get_node_id(), _buffer(answer)


@lru_cache(maxsize=1)
def _worker(order: Any, arrays: Any) -> "Worker":
    """Return what this process holds of a run, or raise `ConfigError` if it has other code."""
    import ray

    keep_memory()
    torch.set_num_threads(1)
    given = decode(ray.get(order))
    scenario = Scenario.model_validate_json(given["scenario"])
    options = (given["device"], given["executor"], given["chunk"])
    here = code_version()
    got = "other code of a plug-in" if here == given["code"] else here
    same = False
    try:
        setup = prepare(scenario, *options, data=data_of(ray.get(arrays)))
        same = setup.id == given["id"]
    except ConfigError as error:
        got = str(error)
    if not same:
        raise other_code(given["code"], got, "start again")
    return Worker(setup)


class Worker:
    """A process of a cluster with what it holds of a run."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._trees: dict[int, Tree] = {}  # of the last task, by number

    def answer(self, task: Any, arrays: Sequence[Any]) -> bytes:
        """Return the bytes of what a task asks for."""
        device = self.setup.shared.device
        step = task["step"]
        held = self._trees
        self._trees = {
            number: held[number] if number in held else on_device(decode(memoryview(array)), device)
            for number, array in zip(task["trees"].tolist(), arrays, strict=True)
        }
        trees = [self._trees[number] for number in task["of"].tolist()]
        memories = on_device(task["memories"], device)
        if task["given"]:
            triples = zip(task["given"], trees, memories, strict=True)
            clients = [self._given(given, tree, memory, step) for given, tree, memory in triples]
        else:
            rows = zip(task["ids"].tolist(), trees, memories, strict=True)
            clients = [self.setup.client(i, tree, memory, step) for i, tree, memory in rows]
        updates, after = self.setup.executor.trained(clients, step)
        if not task["packets"]:
            return encode({"updates": updates, "memories": list(after)})
        return encode(self._packed(clients, task, updates, after))

    def _packed(
        self, clients: Sequence[Client], task: Any, updates: Tensor, memories: Sequence[Memory]
    ) -> dict[str, Any]:
        """Return the packets, and what the adversary has of its clients that attack."""
        own = self.setup.hostile(task["ids"].tolist(), task["step"]).nonzero()[:, 0]
        before = [dict(memories[row]) for row in own.tolist()]
        rows = updates[own.to(updates.device)]
        keys = [client.key for client in clients]
        with hooks.in_round(task["step"]):
            messages, after = hooks.message(
                self.setup.plugins.protocol, self.setup.shared, updates, keys, memories
            )
        packets = messages.encode()
        return {
            "form": form_bytes(messages),
            "packets": [packet.data for packet in packets],
            "bits": torch.tensor([packet.bits for packet in packets]),
            "after": list(after),
            "own": own,
            "updates": rows,
            "before": before,
        }

    def _given(self, given: Any, tree: Tree, memory: Memory, step: int) -> Client:
        device = self.setup.shared.device
        way = given["way"]
        wrap: Any = untouched
        if way:
            local: Local = way["local"]
            local = replace(
                local,
                tree=on_device(local.tree, device),
                before=on_device(local.before, device),
                learned=on_device(local.learned, device),
            )
            attack = self.setup.plugins.attack
            wrap = partial(hooks.wrap_grad, attack, local=local, client=way["client"])
        x = given["x"].to(device)
        return Client(tree, x, given["y"].to(device), Key(given["key"]), memory, wrap, step)
