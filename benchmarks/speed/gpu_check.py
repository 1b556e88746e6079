"""Every protocol on another device: the same messages, byte for byte, and the same updates.

``make gpu-check`` trains four clients of a tiny network in float64, on the CPU one after the other
and on CUDA with every executor that it has. Their messages must be equal byte for byte, and what
the device decodes of them must be equal, field by field; updates and memories may be `TOLERANCE` of
the largest entry apart, and values of messages, which are in float32, `ROUNDING`: a rotation adds
up in another order there. ``--device cpu`` compares lock step with the loop.

The last two columns are for information: the same in float32, where a rounding error moves an edge
at the cut, or a coin at its probability, to the other side. Two executors of one CPU differ by as
much, so these numbers tell no bug from a rounding.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedbench.api import Memory, Shared
from fedbench.core import registry
from fedbench.core.errors import FedbenchError, Unavailable
from fedbench.core.trees import Tree
from fedbench.executors.factory import NAMES, executor, require_device
from fedbench.executors.training import Client, Executor, Schedule
from fedbench.experiment.prepare import choose_device
from fedbench.payload import Payload
from fedbench.testing import NETWORK, doubled, example_clients, in_float64

TOLERANCE = 1e-9  # of the largest entry; `fedbench.testing.assert_rounded_alike` derives 2**-30
ROUNDING = 2**-20  # of the largest entry of a message, computed in float32
SCHEDULE = Schedule(epochs=2, batch_size=4)
LAUNCHES = 3  # the last one counts: its recordings share the memory of earlier ones
FRAMES = 6  # of an exception that are told
OTHERS = ("auto", "stacked")  # one of the others, and a special case of padded
CPU = torch.device("cpu")


@dataclass(frozen=True, eq=False)
class Sent:
    """Results of the local training of ``n`` clients, on the CPU, and the messages made of them.

    Args:
        updates: Updates, ``(n, d)``.
        memories: Memory of every client.
        packets: Bytes of every client's message.
        decoded: Fields of the messages that were decoded from the packets.
        values: Values ``(n, k)`` of these.
    """

    updates: Tensor
    memories: list[Memory]
    packets: list[bytes]
    decoded: Tree
    values: Tensor


@dataclass(frozen=True)
class Comparison:
    """Differences between an executor of a device and the loop of the CPU.

    Args:
        protocol: Its name.
        executor: Name of the executor on the device.
        messages: Share of the messages that have other bytes.
        decoded: True if the device decodes the packets to the fields that the CPU decodes.
        values: Largest difference in the messages' values, as a share of the largest entry.
        updates: Largest difference in updates and memories, as a share of the largest entry.
        single_messages: As ``messages``, in float32.
        single_updates: As ``updates``, in float32.
        error: Exception that ended the comparison, if one did.
    """

    protocol: str
    executor: str
    messages: float = 1.0
    decoded: bool = False
    values: float = float("inf")
    updates: float = float("inf")
    single_messages: float = 1.0
    single_updates: float = float("inf")
    error: str = ""

    @property
    def agrees(self) -> bool:
        """True if only rounding in float64 is between the two."""
        same = self.messages == 0 and self.decoded
        return same and self.updates <= TOLERANCE and self.values <= ROUNDING and not self.error


def raised_at(error: BaseException) -> str:
    """Return the last lines that an exception went through, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)[-FRAMES:]
    return " > ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames)


def available(device: torch.device) -> list[str]:
    """Name the executors that the device has, the loop first."""
    names = []
    for name in NAMES:
        if name in OTHERS:
            continue
        with suppress(Unavailable):
            require_device(name, device)
            names.append(name)
    return names


def to(tree: Tree, device: torch.device) -> Tree:
    """Return the same tensors on a device."""
    return {name: leaf.to(device) for name, leaf in tree.items()}


def there(client: Client, device: torch.device) -> Client:
    """Return the same client on a device."""
    return dataclasses.replace(
        client,
        tree=to(client.tree, device),
        x=client.x.to(device),
        y=client.y.to(device),
        memory=to(client.memory, device),
    )


def train(protocol: Any, device: torch.device, engine: str, double: bool) -> Sent:
    """Train the example clients of a protocol, and send, count and decode what they have to say.

    Args:
        protocol: Protocol whose local training and messages are compared.
        device: Where.
        engine: Name of the executor.
        double: Train in float64 instead of float32.
    """
    start = example_clients(protocol, Shared(NETWORK, 3, CPU))
    clients = [there(client, device) for client in (doubled(start) if double else start)]
    shared = Shared(NETWORK, 3, device)
    trained = in_float64(protocol) if double else protocol
    trains: Executor = executor(engine, trained, shared, SCHEDULE)
    for _ in range(1 if device.type == "cpu" else LAUNCHES):
        updates, memories = trains.train(clients)
    keys = [client.key for client in clients]
    message = rounded(protocol.message(shared, updates, keys, memories)[0])
    packets = message.encode()
    received, accepted = type(message).decode(packets, message.spec, device)
    assert received is not None, "all honest messages were rejected"
    assert bool(accepted.all()), "an honest message was rejected"
    return Sent(
        updates=updates.cpu(),
        memories=[to(memory, CPU) for memory in memories],
        packets=[packet.data for packet in packets],
        decoded=to(received.travelling(), CPU),
        values=received.values().cpu(),
    )


def rounded(message: Payload) -> Payload:
    """Return the messages with float64 rounded to float32, in which a run trains and sends."""
    tensors = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    singles = {
        name: x.float()
        for name, x in tensors.items()
        if isinstance(x, Tensor) and x.dtype == torch.float64
    }
    return dataclasses.replace(message, **singles)


def leaves(sent: Sent) -> Iterator[Tensor]:
    """Yield updates and memories, in an order that is the same for equal protocols."""
    yield sent.updates
    for memory in sent.memories:
        yield from (memory[name] for name in sorted(memory))


def distance(mine: Sent, other: Sent) -> float:
    """Return the largest difference in updates and memories, as a share of the largest entry.

    Each tensor has its own largest entry. One that is not finite in the same places, or has another
    shape or type, is infinitely far away.
    """
    pairs = zip(leaves(mine), leaves(other), strict=True)
    return max(apart(x, y) for x, y in pairs)


def apart(x: Tensor, y: Tensor) -> float:
    """Return the largest difference of two tensors, as a share of the largest entry of ``y``.

    >>> apart(torch.tensor([1.0, 4.0]), torch.tensor([2.0, -4.0]))
    2.0
    >>> apart(torch.tensor([0.0]), torch.tensor([float("nan")]))
    inf
    """
    if x.shape != y.shape or x.dtype != y.dtype:
        return float("inf")
    if torch.equal(x, y):
        return 0.0
    gap = float((x.double() - y.double()).abs().max())
    largest = float(y.double().abs().max())
    return gap / largest if gap < float("inf") and largest > 0 else float("inf")


def unequal(mine: Sequence[bytes], other: Sequence[bytes]) -> float:
    """Return the share of messages that have other bytes.

    >>> unequal([b"a", b"b", b"c", b"d"], [b"a", b"x", b"c", b"d"])
    0.25
    """
    return sum(a != b for a, b in zip(mine, other, strict=True)) / len(mine)


def compare(name: str, device: torch.device, engines: Sequence[str]) -> Iterator[Comparison]:
    """Yield how a protocol's training by each executor differs from the loop's on the CPU.

    What one raises is in its `Comparison`: a device that lacks an operation does not hide the rest.
    """
    protocol = registry.load("protocol", name)
    double = train(protocol, CPU, "loop", double=True)
    single = train(protocol, CPU, "loop", double=False)
    for engine in engines:
        if device.type == "cpu" and engine == "loop":
            continue
        try:
            mine = train(protocol, device, engine, double=True)
            coarse = train(protocol, device, engine, double=False)
        except Exception as error:  # a driver raises anything, and the next row must still come
            text = f"{type(error).__name__}: {error} ({raised_at(error)})"
            yield Comparison(name, engine, error=text)
            continue
        yield Comparison(
            protocol=name,
            executor=engine,
            messages=unequal(mine.packets, double.packets),
            decoded=all(torch.equal(x, double.decoded[part]) for part, x in mine.decoded.items()),
            values=apart(mine.values, double.values),
            updates=distance(mine, double),
            single_messages=unequal(coarse.packets, single.packets),
            single_updates=distance(coarse, single),
        )


def row(comparison: Comparison) -> list[str]:
    """Return the cells of a comparison."""
    if comparison.error:
        return [comparison.protocol, comparison.executor, comparison.error, "", "", ""]
    same = comparison.messages == 0 and comparison.decoded
    return [
        comparison.protocol,
        comparison.executor,
        "equal" if same else f"{100 * comparison.messages:.0f} % have other bytes",
        f"{comparison.updates:.1e}",
        f"{100 * comparison.single_messages:.0f} %",
        f"{comparison.single_updates:.1e}",
    ]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="what the CPU is compared with")
    parser.add_argument("-p", "--protocol", action="append", help="default: all")
    given = parser.parse_args(words)
    console = Console()
    table = Table("protocol", "executor", "messages", "updates", "float32: messages", "updates")
    comparisons = []
    try:
        device = choose_device(given.device)
        for name in given.protocol or registry.names("protocol"):
            for comparison in compare(name, device, available(device)):
                comparisons.append(comparison)
                table.add_row(*row(comparison))
    except FedbenchError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    console.print(table)
    wrong = sorted({f"{c.protocol} ({c.executor})" for c in comparisons if not c.agrees})
    if wrong:
        console.print(f"{given.device} and the CPU DISAGREE in float64: {', '.join(wrong)}")
        return 1
    worst = max(comparison.updates for comparison in comparisons)
    console.print(
        f"{given.device} and the CPU agree in float64: {len(comparisons)} comparisons, "
        f"equal messages, updates at most {worst:.1e} of the largest entry apart, "
        f"allowed {TOLERANCE:g}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
