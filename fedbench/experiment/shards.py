"""Columns of a rule's answer, computed where packets can be read from a cluster's object store.

The packets of a round are put there once, a batch of them an object, and a process decodes all of
them for its columns. It has the rule already; what else the rule is shown travels with the packets.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedbench.adversary.threat_model import new_instance
from fedbench.api import Defense, ServerView, hooks
from fedbench.core.sources import package_of
from fedbench.experiment.forms import form_bytes, form_of
from fedbench.experiment.setup import Setup
from fedbench.experiment.state_bytes import decode, encode
from fedbench.payload import FoldedMessages, KeptMessages, Payload
from fedbench.payload.packets import Packet


def sharded(
    rule: Defense[Any],
    received: Payload | FoldedMessages | KeptMessages,
    state: Any,
    view: ServerView,
) -> bool:
    """Return whether other processes can answer: column by column, from packets and little else."""
    alone = type(rule).aggregate_kept is Defense.aggregate_kept
    more = (state, view.network, view.root, view.truth)
    return isinstance(received, KeptMessages) and alone and all(part is None for part in more)


def objects(received: KeptMessages, view: ServerView) -> Iterator[bytes]:
    """Yield what all shards read: first what is public of the messages, then their packets."""
    assert received.shares is None  # a rule behind `nnm` is no rule of its own
    yield encode(
        {
            "form": form_bytes(received.form),
            "step": view.step,
            "batch": received.at_once,
            "weights": view.weights,
            "ids": view.ids,
        }
    )
    for batch in received.batches():
        bits = torch.tensor([packet.bits for packet in batch])
        yield encode({"packets": [packet.data for packet in batch], "bits": bits})


@dataclass(frozen=True, eq=False)
class StoredPackets(Sequence[Packet]):
    """Packets that lie in batches elsewhere; nothing of them is held here."""

    n: int
    batch: int  # packets of one
    read: Callable[[int], Any]  # bytes of a batch

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, rows: Any) -> Any:
        """Return the packets of a slice that begins with a batch and does not leave it."""
        start, stop, _ = rows.indices(self.n)
        read = decode(memoryview(self.read(start // self.batch)))
        pairs = zip(read["packets"], read["bits"].tolist(), strict=True)
        return [Packet(*pair) for pair in pairs][: stop - start]


def answer_of(setup: Setup, columns: range, read: Callable[[int], Any]) -> Tensor:
    """Return the answer ``(t,)`` of the run's rule on these columns of the messages.

    ``read`` gives the bytes of the `objects`, by number. The rule is shown no broadcast: no column
    of an answer depends on other columns.
    """
    head = decode(memoryview(read(0)))
    packets = StoredPackets(len(head["weights"]), head["batch"], lambda number: read(1 + number))
    form = form_of(head["form"], package_of(setup.plugins.protocol.sends))
    first, _ = type(form).decode(packets[:1], form.spec, setup.shared.device)
    assert first is not None  # it was accepted
    messages = KeptMessages(first.take([]), packets, head["batch"], only=columns)
    view = replace(setup.view([], form, head["step"]), weights=head["weights"], ids=head["ids"])
    rule = new_instance(setup.plugins.defense)  # another would have seen honest messages, too
    return hooks.aggregate(rule, messages, None, view)[0]
