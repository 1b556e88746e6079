"""Training of the adversary's clients its own way, and what they remember of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor

from fedbench.adversary.threat_model import OwnedRows, detached_copy
from fedbench.api import Attack, Memory, hooks
from fedbench.api.attack import Local
from fedbench.core.blame import ask
from fedbench.core.trees import Tree
from fedbench.executors.training import Client, Executor


def train(
    attack: Attack,
    executor: Executor,
    clients: Sequence[Client],
    owned: OwnedRows,
    before: Tree | None,
    step: int,
    learned: Tensor | None = None,
    memories: Mapping[int, Memory] | None = None,
) -> tuple[Tensor, Sequence[Memory]]:
    """Train the adversary's clients its own way; return updates ``(m, d)`` and their memories.

    Training starts where these clients' honest one starts, but with what the ``memories`` have
    under `trained_by`: with those of honest training most of a momentum would be honest. ``before``
    is what came a round ago, ``learned`` the answer of `learn`.
    `PluginError` if it raised, or returned no images, labels or gradients of that form.
    """
    memories = {} if memories is None else memories
    poisoned = []
    network = executor.shared.network
    protocol = executor.protocol
    start = ask(protocol, "memory", dict, executor.shared)
    agreed = [name for name in start if name == protocol.agreed]
    for i, number, row in zip(owned.ids, owned.numbers, owned.rows.tolist(), strict=True):
        client = clients[row]
        local = Local(
            tree=detached_copy(client.tree),
            before=None if before is None else detached_copy(before),
            part=number,
            parts=owned.total,
            step=step,
            key=owned.secret.key("poison", owned.place(row)),
            classes=network.classes,
            learned=detached_copy(learned),
            head=network.head_names,
            statistics=network.statistics,
        )
        x, y = hooks.poison(attack, client.x, client.y, local, i)
        local = dataclasses.replace(local, steps=executor.schedule.steps(len(x)))
        own_way = partial(hooks.wrap_grad, attack, local=local, client=i)
        wrap = own_way if attack.wraps else client.wrap_grad
        memory = memories.get(trained_by(i)) or start
        memory = memory | {name: client.memory[name] for name in agreed}
        poisoned.append(dataclasses.replace(client, x=x, y=y, wrap_grad=wrap, memory=memory))
    return executor.trained(poisoned, step)


def trained_by(i: int) -> int:
    """Return the number under which a client's memory of its training for the adversary is kept.

    >>> [trained_by(i) for i in (0, 1)]  # -1 is the server's own client
    [-2, -3]
    """
    return -2 - i
