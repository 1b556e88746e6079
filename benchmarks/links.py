"""Bytes that cross the network in a round of one run on a cluster (`fedbench.experiment.remote`).

``python benchmarks/links.py`` prints them on paper, for a cluster that nobody here has; with
``--play`` it plays two rounds on the cluster of ``RAY_ADDRESS``, or on one of this machine, and
fails unless the run's counters are those of the same formulas, to the byte.

The formulas follow from `fedbench.experiment.state_bytes`: a length has 8 bytes, a tag one. They
are for clients of the population without memories; a memory adds its own bytes to tasks and
results, and so do updates of clients that attack.
"""

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

LENGTH = 8  # bytes of a length, or of a side of a shape
VALUE = 1 + LENGTH  # of a text, bytes, list or dict, before what it holds
CHUNK = 32  # clients of a task
DECODED = 1 << 29  # bytes of values that a process decodes at once
BANDWIDTH = 100e9 / 8  # bytes a second of a link


def text(name: str) -> int:
    """Bytes of a text."""
    return VALUE + len(name)


def tensor(kind: str, *shape: int) -> int:
    """Bytes of a tensor of numbers of a ``kind`` such as ``float32``."""
    size = {"float32": 4, "float64": 8, "int64": 8}[kind]
    return text(kind) + LENGTH * (1 + len(shape)) + size * math.prod(shape)


def fields(**sizes: int) -> int:
    """Bytes of a dict with these keys, whose values have these bytes."""
    return VALUE + sum(text(name) + size for name, size in sizes.items())


def broadcast_bytes(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Bytes of a tree of float32, once for a node and round."""
    return VALUE + sum(text(name) + tensor("float32", *shape) for name, shape in shapes.items())


def task_bytes(n: int) -> int:
    """Bytes of the task of ``n`` clients that received the same, in the first 128 rounds."""
    return fields(
        step=VALUE + 1,
        packets=1,
        trees=tensor("int64", 1),
        of=tensor("int64", n),
        ids=tensor("int64", n),
        memories=VALUE + n,  # None of each
        given=VALUE,
    )


def packets_bytes(packets: Sequence[int], form: int, d: int) -> int:
    """Bytes of an answer of ``packets`` of so many bytes, whose public form has ``form`` bytes."""
    n = len(packets)
    return fields(
        form=VALUE + form,
        packets=VALUE + sum(VALUE + size for size in packets),
        bits=tensor("int64", n),
        after=VALUE + n * VALUE,  # an empty memory of each
        own=tensor("int64", 0),
        updates=tensor("float32", 0, d),
        before=VALUE,
    )


def updates_bytes(n: int, d: int) -> int:
    """Bytes of an answer of ``n`` updates of ``d`` float32."""
    return fields(updates=tensor("float32", n, d), memories=VALUE + n * VALUE)


def shared_bytes(packets: Sequence[int], form: int, batch: int) -> int:
    """Bytes of all messages of a round in a stream, for a node that aggregates columns of them.

    ``batch`` of them are an object.
    """
    n = len(packets)
    public = fields(
        form=VALUE + form,
        step=VALUE + 1,
        batch=VALUE + 1,
        weights=tensor("float64", n),
        ids=tensor("int64", n),
    )
    parts = [packets[start : start + batch] for start in range(0, n, batch)]
    return public + sum(
        fields(packets=VALUE + sum(VALUE + size for size in part), bits=tensor("int64", len(part)))
        for part in parts
    )


def columns_bytes(width: int) -> int:
    """Bytes of the task of ``width`` columns and of its answer in float32."""
    return tensor("int64", 2) + tensor("float32", width)


def human(size: float) -> str:
    """Return bytes in the largest unit of which there is one.

    >>> human(4e9), human(776)
    ('4.00 GB', '776 B')
    """
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.2f} {unit}"
    return f"{size:.0f} B"


def duration(seconds: float) -> str:
    """Return seconds, or hours if there are many."""
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.2g} s"


def on_paper(nodes: int, gpus: int, clients: int, d: int) -> list[str]:
    """Return the table's lines: each kind of bytes on a node's link and on the server's, a round.

    Clients are spread evenly; the tree is one tensor, the form has 200 bytes.
    """
    tree = broadcast_bytes({"w": (d,)})
    tasks = -(-clients // CHUNK)
    of_tasks = task_bytes(CHUNK) * tasks
    rows = [("broadcast", tree, nodes * tree), ("tasks", of_tasks / nodes, of_tasks)]
    kinds = {
        "updates, 32 bits a parameter": updates_bytes(CHUNK, d),
        "packets of 32 bits a parameter": packets_bytes([4 * d] * CHUNK, 200, d),
        "packets of 1 bit a parameter": packets_bytes([-(-d // 8)] * CHUNK, 200, d),
        "packets of 40 bytes": packets_bytes([40] * CHUNK, 200, d),
    }
    for name, size in kinds.items():
        rows.append((f"results: {name}", size * tasks / nodes, size * tasks))
    for name, packet in {"32 bits": 4 * d, "1 bit": -(-d // 8)}.items():
        shared = shared_bytes([packet] * clients, 200, CHUNK)
        rows.append((f"column shards: packets of {name} a parameter", shared, nodes * shared))
    width = min(-(-d // (nodes * gpus)), DECODED // (4 * clients))
    answers = columns_bytes(width) * -(-d // width)
    rows.append(("column shards: answers", answers / nodes, answers))
    lines = [
        f"{nodes} nodes x {gpus} GPUs, {clients:,} clients in a round, {d:,} parameters, "
        f"{CHUNK} clients a task: {tasks:,} tasks, {tasks / nodes / gpus:.1f} a GPU",
        "",
        f"| a round | a node's link | the server's link | there at {BANDWIDTH * 8e-9:g} Gbit/s |",
        "|---|---:|---:|---:|",
    ]
    for name, link, server in rows:
        time = duration(server / BANDWIDTH)
        lines.append(f"| {name} | {human(link)} | {human(server)} | {time} |")
    return lines


def chunks(
    carried: Mapping[tuple[int, str, str], int],
    shapes: Mapping[str, tuple[int, ...]],
    clients: int,
    packet: int,
    form: int,
    d: int,
) -> dict[tuple[int, str], int]:
    """Return how many chunks of so many ``clients`` each node trained in each round.

    `ValueError` unless every counter is what the formulas say, to the byte.
    """
    trained = {}
    for step, node in {(step, node) for step, node, _ in carried}:
        number, left = divmod(carried[step, node, "tasks"], task_bytes(clients))
        answer = packets_bytes([packet] * clients, form, d)
        foretold = (0, broadcast_bytes(shapes), number * answer)
        counted = (left, carried[step, node, "broadcast"], carried[step, node, "results"])
        if counted != foretold:
            raise ValueError(f"round {step}, {node}: counted {counted}, foretold {foretold}")
        trained[step, node] = number
    return trained


def shards(
    carried: Mapping[tuple[int, str, str], int], step: int, shared: int, widths: Sequence[int]
) -> list[str]:
    """Return the nodes that aggregated columns in a round, in shards of these ``widths``.

    `ValueError` unless every counter is what the formulas say, to the byte.
    """
    nodes = sorted({node for s, node, kind in carried if (s, kind) == (step, "columns")})
    counted = (
        [carried[step, node, "packets"] for node in nodes],
        sum(carried[step, node, "columns"] for node in nodes),
    )
    foretold = ([shared] * len(nodes), sum(map(columns_bytes, widths)))
    if counted != foretold:
        raise ValueError(f"round {step}: counted {counted}, foretold {foretold}")
    return nodes


def played_columns() -> list[str]:
    """Play two rounds in a stream under the median, compare counters, and return lines."""
    from fedbench.experiment.forms import form_bytes
    from fedbench.experiment.prepare import prepare
    from fedbench.experiment.remote import Remote, on_cluster
    from fedbench.experiment.scenario import Scenario
    from fedbench.payload import FloatVectors, KeptMessages
    from fedbench.payload.packets import Packet
    from fedbench.run import begin, play_round

    scenario = Scenario(
        model="lenet", clients=20, per_round=12, rounds=2, epochs=1, malicious=0, defense="median"
    )
    here = replace(prepare(scenario, "cpu", "ray"), at_once=8)
    with on_cluster(here, "ray", 4) as setup:
        executor = setup.executor
        assert isinstance(executor, Remote)
        state = begin(setup)
        for step in range(scenario.rounds):
            play_round(setup, state, step)
    d = setup.shared.layout.d
    form = FloatVectors(torch.zeros(0, d))
    kept = KeptMessages(form, [Packet(b"", 0)] * 12)
    widths = [len(part.span) for part in kept.shards(executor.places)]
    shared = shared_bytes([4 * d] * 12, len(form_bytes(form)), 8)
    lines = []
    for step in range(scenario.rounds):
        for node in shards(executor.carried, step, shared, widths):
            counted = [executor.carried[step, node, kind] for kind in ("packets", "columns")]
            lines.append(f"| {step} | {node[:8]} | {' | '.join(map(str, counted))} |")
    return lines


def played(protocol: str) -> list[str]:
    """Play two rounds on the cluster, compare each counter, and return lines of a table."""
    from fedbench.api import hooks
    from fedbench.experiment.forms import form_bytes
    from fedbench.experiment.prepare import prepare
    from fedbench.experiment.remote import Remote, on_cluster
    from fedbench.experiment.scenario import Scenario
    from fedbench.run import begin, play_round

    scenario = Scenario(
        model="micro", clients=20, per_round=12, rounds=2, epochs=1, malicious=0, protocol=protocol
    )
    with on_cluster(prepare(scenario, "cpu", "ray"), "ray", 2) as setup:
        executor = setup.executor
        assert isinstance(executor, Remote)
        state = begin(setup)
        for step in range(scenario.rounds):
            play_round(setup, state, step)
        (stored,) = executor.stored.values()
        row = executor.local.train(setup.clients([0], [stored.tree], {}, 0))
        made, _ = hooks.message(
            setup.plugins.protocol, setup.shared, row[0], setup.keys([0], 0), row[1]
        )
        (packet,) = made.encode()
        shapes = {name: tuple(x.shape) for name, x in stored.tree.items()}
        form = len(form_bytes(made))
        sizes = (2, len(packet.data), form, row[0].shape[1])
        trained = chunks(executor.carried, shapes, *sizes)
    lines = []
    for step, node in sorted(trained):
        counted = [executor.carried[step, node, kind] for kind in ("broadcast", "tasks", "results")]
        sizes_text = " | ".join(map(str, counted))
        lines.append(f"| {protocol} | {step} | {node[:8]} | {trained[step, node]} | {sizes_text} |")
    return lines


def main() -> None:
    """Print the table on paper, or that of a run, whose counters are compared."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--play", action="store_true", help="play, and compare the counters")
    if not parser.parse_args().play:
        print("\n".join(on_paper(100, 8, 10**6, 10**9)))
        return
    print("| protocol | round | node | chunks | broadcast | tasks | results |")
    print("|---|---:|---|---:|---:|---:|---:|")
    for protocol in ("fedavg", "signsgd"):
        print("\n".join(played(protocol)))
    print("\n| fedavg, median: round | node | packets | columns |\n|---|---|---:|---:|")
    print("\n".join(played_columns()))


if __name__ == "__main__":
    main()
