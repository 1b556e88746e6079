"""Process of a Ray cluster that trains the clients of one run, and aggregates columns of it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Local, Memory, hooks
from fedbench.core.copies import on_device
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.cluster import data_of, other_code
from fedbench.executors.malloc import keep_memory
from fedbench.executors.training import Client, untouched
from fedbench.experiment import shards
from fedbench.experiment.forms import form_bytes
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario, code_version
from fedbench.experiment.setup import Setup
from fedbench.experiment.state_bytes import decode, encode


def buffer(data: bytes) -> "np.ndarray[Any, Any]":
    """Return bytes as an array, which Ray carries as they are and processes map."""
    return np.frombuffer(data, dtype=np.uint8)


def train_chunk(run: Sequence[Any], task: Any, *trees: Any) -> tuple[str, Any]:
    """Train the clients of a task in a process of Ray; return its node and the answer's bytes."""
    import ray

    worker = worker_of(*run)
    answer = worker.answer(decode(memoryview(task)), trees)
    return ray.get_runtime_context().get_node_id(), buffer(answer)


def aggregate_columns(references: Sequence[Any], task: Any) -> tuple[str, Any]:
    """Aggregate the columns of a task in a process of Ray; return its node and the answer's bytes.

    Objects are read by their references one after the other, so that not all must be there at once.
    """
    import ray

    order, arrays, *objects = references
    setup = worker_of(order, arrays).setup
    columns = range(*decode(memoryview(task)).tolist())
    answer = shards.answer_of(setup, columns, lambda number: ray.get(objects[number]))
    return ray.get_runtime_context().get_node_id(), buffer(encode(answer))


@lru_cache(maxsize=1)
def worker_of(order: Any, arrays: Any) -> "Worker":
    """Return what this process holds of a run, or raise `ConfigError` if it has other code."""
    import ray

    keep_memory()
    torch.set_num_threads(1)
    given = decode(ray.get(order))
    scenario = Scenario.model_validate_json(given["scenario"])
    here = code_version()
    got = "other code of a plug-in" if here == given["code"] else here
    same = False
    try:
        data = data_of(ray.get(arrays))
        setup = prepare(scenario, given["device"], given["executor"], given["chunk"], data)
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
        own = self.setup.attacking(task["ids"].tolist(), task["step"]).nonzero()[:, 0]
        before = [dict(memories[row]) for row in own.tolist()]
        rows = updates if len(own) == len(updates) else updates[own.to(updates.device)]
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
