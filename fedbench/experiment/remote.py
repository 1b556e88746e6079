"""Training of one run's clients by the processes of a Ray cluster, which hold data and model.

A task of Ray trains a chunk of a round's clients. Ray decides where, and repeats what was lost with
a process or a node. A chunk is the same work wherever and however often it is done, so the numbers
are those of the local executor, to the last bit if all processors are alike. What clients remember
stays in the server process and travels with them.

What crosses is bytes of `fedbench.experiment.state_bytes`. `Remote.carried` counts them for each
round, node and kind, a chunk that was repeated once:

- ``broadcast``: what the clients received, once for a node and round, to its object store;
- ``tasks``: numbers and memories of the clients; samples of those whose samples are not the pool's;
- ``results``: packets, or updates where the server needs them, and memories;
- ``packets``: all messages of a round in a stream, once for a node and question to a rule of single
  columns (`fedbench.experiment.shards`), to its object store;
- ``columns``: what such a question names and its answers.

Ray's own frames are not in it, nor are scenario and data set, once for a node and run.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fedbench.api import Defense, Mechanism, Memory, ServerView, hooks
from fedbench.core.blame import Hook
from fedbench.core.copies import on_device
from fedbench.core.devices import accelerated
from fedbench.core.errors import ConfigError, FedbenchError, Unavailable
from fedbench.core.sources import package_of
from fedbench.core.trees import Tree
from fedbench.executors.cluster import (
    TASK_RETRIES,
    address_of,
    arrays_of,
    connect,
    first_line,
    imported,
    places_of,
)
from fedbench.executors.factory import REMOTE_OPTION, remote_way
from fedbench.executors.training import Client, Executor, Made, Trained, untouched
from fedbench.experiment import shards
from fedbench.experiment.forms import form_of
from fedbench.experiment.remote_process import aggregate_columns, buffer, train_chunk
from fedbench.experiment.scenario import code_version
from fedbench.experiment.setup import Cohort, Setup
from fedbench.experiment.state_bytes import decode, encode
from fedbench.payload import FoldedMessages, KeptMessages, Payload
from fedbench.payload.packets import Packet

T = TypeVar("T")


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
class StoredTree:
    """A tree in the cluster's object store."""

    tree: Tree
    number: int  # of all trees of the run
    reference: Any  # of Ray
    size: int  # bytes
    nodes: set[str] = field(default_factory=set)  # that have it


Ordered = dict[Any, tuple[int, int, list[StoredTree]]]  # by answer: first row, bytes of task, trees


@dataclass(frozen=True, eq=False)
class TravellingClients:
    """Clients of a round as they travel: by number, or ``given`` with samples of their own."""

    step: int
    trees: Sequence[Tree]
    memories: Sequence[Memory | None]
    ids: Sequence[int] = ()
    given: Sequence[Any] = ()


@dataclass(frozen=True, eq=False)
class Remote(Executor):
    """Executor whose clients processes of a cluster train, each as the ``local`` one would."""

    elsewhere: ClassVar[bool] = True

    local: Executor = field(kw_only=True)
    setup: Setup = field(kw_only=True)
    ray: Any = field(kw_only=True)
    chunk: int = field(kw_only=True)  # most clients of a task
    places: int = field(kw_only=True)  # tasks that ran at once when the run began
    task: Any = field(kw_only=True)  # the remote function that trains
    shard: Any = field(kw_only=True)  # the one that aggregates columns
    run: tuple[Any, Any] = field(kw_only=True)  # Ray's references to what a process needs
    carried: Counter[tuple[int, str, str]] = field(default_factory=Counter, kw_only=True)
    stored: dict[int, StoredTree] = field(default_factory=dict, kw_only=True)  # by id of the tree

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
        # a process keeps what it holds
        share = {"num_cpus": 1, "num_gpus": gpus, "max_calls": 0, "max_retries": TASK_RETRIES}
        remote = ray.remote(**share, retry_exceptions=False)
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
            task=remote(train_chunk),
            shard=remote(aggregate_columns),
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
        """Return what `train` does; the process where the protocol runs names its errors."""
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
        self, clients: Cohort, load: TravellingClients, ordered: Ordered
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
        nobody = torch.full((self.protocol.trained(self.shared).d,), torch.nan)
        if rows:
            updates = torch.stack([rows.get(i, nobody) for i in range(len(clients))]).to(device)
        else:  # one row in memory
            updates = nobody.to(device).expand(len(clients), -1)
        made = Made(messages, on_device(after, device), rows_in_order)
        return (updates, on_device(before, device)), made

    def aggregate(
        self,
        rule: Defense[Any],
        received: Payload | FoldedMessages | KeptMessages,
        state: Any,
        view: ServerView,
    ) -> tuple[Tensor, Any]:
        """Have columns of the answer computed on the cluster if each is one of its own."""
        if not shards.sharded(rule, received, state, view):
            return super().aggregate(rule, received, state, view)
        assert isinstance(received, KeptMessages)
        references = []
        size = 0
        for data in shards.objects(received, view):
            references.append(self.ray.put(buffer(data)))
            size += len(data)
        given: dict[Any, tuple[int, int]] = {}
        for part in received.shards(self.places):
            task = encode(torch.tensor([part.span.start, part.span.stop]))
            answer = self.shard.remote([*self.run, *references], buffer(task))
            given[answer] = (part.span.start, len(task))
        nodes = set()
        parts = {}
        for (start, task_bytes), node, result in self._finished(given):
            self.carried[view.step, node, "columns"] += task_bytes + len(result)
            if node not in nodes:
                nodes.add(node)
                self.carried[view.step, node, "packets"] += size
            parts[start] = decode(memoryview(result))
        whole = torch.cat([parts[start] for start in sorted(parts)])
        return whole.to(self.shared.device), state

    def _load(self, clients: Sequence[Client]) -> TravellingClients | None:
        """Return the clients in the form that travels, or None if a gradient of theirs cannot."""
        if isinstance(clients, Cohort):
            trees = [clients.tree(row) for row in range(len(clients))]
            memories = [clients.memories.get(i) or None for i in clients.ids]
            return TravellingClients(clients.step, trees, memories, ids=clients.ids)
        ways = [self._way(client) for client in clients]
        if None in ways or not clients:
            return None
        given = [
            {"x": client.x, "y": client.y, "key": client.key.seed, "way": way}
            for client, way in zip(clients, ways, strict=True)
        ]
        own = [client.memory for client in clients]
        return TravellingClients(
            clients[0].round, [client.tree for client in clients], own, given=given
        )

    def _way(self, client: Client) -> Any:
        """Return the values from which a process makes a client's `wrap_grad`, or None.

        That is nothing, or an attack's `Local`: a client that attacks complies with no mechanism.
        """
        wrap = client.wrap_grad
        if wrap is untouched:
            return {}
        if isinstance(wrap, partial) and wrap.func is hooks.wrap_grad:
            named = wrap.args == (self.setup.plugins.attack,)
            return dict(wrap.keywords) if named else None
        return None

    def _ordered(self, load: TravellingClients, packets: bool) -> Ordered:
        """Submit the chunks of clients; return Ray's references to their answers."""
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
            answer = self.task.remote(list(self.run), buffer(task), *references)
            ordered[answer] = (start, len(task), list(used.values()))
        return ordered

    def _answers(self, load: TravellingClients, ordered: Ordered) -> Iterator[tuple[int, Any]]:
        """Yield the first row of each chunk and its answer, as they are ready."""
        for (start, task_bytes, trees), node, result in self._finished(ordered):
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
                data = buffer(encode(tree))
                before[name] = StoredTree(tree, number, self.ray.put(data), len(data))
                number += 1
            self.stored[name] = before[name]

    def _finished(self, given: dict[Any, T]) -> Iterator[tuple[T, str, Any]]:
        """Yield each task's note in ``given``, its node and its bytes, as tasks finish."""
        waiting = list(given)
        while waiting:
            (answer,), waiting = self.ray.wait(waiting)
            yield given.pop(answer), *self._result(answer)

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
                f"same task {1 + TASK_RETRIES} times; start the run again"
            ) from error
        return node, result
