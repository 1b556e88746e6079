"""A deployment in Flower: packets travel as bytes in messages, a client's memory in its context.

Message API, flwr 1.26 to 1.42. A round of training is a message of type ``train`` each way;
before the first one clients enrol (``query``), and evaluation sends them what is deployed
(``evaluate``).
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from fedbench.core.errors import ConfigError, FedbenchError, IllegalPayloadError, one_line
from fedbench.deployment.client import Client, Request, Samples
from fedbench.deployment.server import Server
from fedbench.deployment.settings import Settings
from fedbench.deployment.task import samples_of
from fedbench.experiment.state_bytes import encode
from fedbench.models.network import Network
from fedbench.payload.packets import Packet
from fedbench.peers.packages import INSTALLED_BY

T = TypeVar("T")
Model = Callable[[], Network]
Data = Callable[[int, int, Mapping[str, Any]], Any]  # what `samples_of` takes
MEMORY = "fedbench"  # record of a client's context that holds its memory
POLL_SECONDS = 0.5  # seconds between two looks at which clients are there


def flwr(module: str) -> Any:
    """Import a module of Flower; `ConfigError` with a command if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module} must be installed, got none; run {INSTALLED_BY['flwr']}"
        ) from error


def packed(packet: Packet, **fields: Any) -> Any:
    """Return a record of Flower with the bytes of a packet and other values."""
    return flwr("flwr.app").ConfigRecord({"data": packet.data, "bits": packet.bits, **fields})


def values_of(content: Any, record: str, **kinds: type) -> list[Any]:
    """Return the values of these names in a record of a message, whose sender may send anything.

    `IllegalPayloadError` unless all of them are there and of these types.
    """
    named = content.get(record)
    values = [named.get(name) if isinstance(named, Mapping) else None for name in kinds]
    for name, value, kind in zip(kinds, values, kinds.values(), strict=True):
        if type(value) is not kind:
            requirement = f"{record}[{name!r}] must be of type {kind.__name__}"
            raise IllegalPayloadError(f"{requirement}, got {type(value).__name__}")
    return values


def packet_in(content: Any) -> Packet:
    """Return the packet in a message; of bits that its bytes cannot have, all of theirs count."""
    data, bits = values_of(content, "packet", data=bytes, bits=int)
    packet = Packet.raw(data)
    return Packet(data, bits) if packet.bits - 8 < bits <= packet.bits else packet


def client_in(content: Any) -> tuple[int, int]:
    """Return the number and the size that a client claims to have."""
    number, size = values_of(content, "client", number=int, size=int)
    if size < 1:
        raise IllegalPayloadError(f"client['size'] must be >= 1, got {size}")
    return number, size


def score_in(content: Any) -> tuple[int, int]:
    """Return how many test samples a client got right, as it says, and how many it has."""
    right, count = values_of(content, "score", right=int, count=int)
    if not 0 <= right <= count:
        raise IllegalPayloadError(f"score['right'] must be in 0 .. {count}, got {right}")
    return right, count


def client_app(model: Model, data: Data, config: Mapping[str, Any] | None = None) -> Any:
    """Return a Flower ClientApp that trains ``model()`` on ``data(number, clients, config)``.

    The number is the node's ``partition-id``, or -1 where it has none. What ``config`` says counts
    where the app's own configuration does not say it.
    """
    app = flwr("flwr.clientapp").ClientApp()
    records = flwr("flwr.app")

    def samples(context: Any) -> Samples:
        number = int(context.node_config.get("partition-id", -1))
        options = {**(config or {}), **context.run_config}
        return samples_of(data(number, Settings.of(options).clients, options))

    def client(context: Any) -> Client:
        return Client(Settings.of({**(config or {}), **context.run_config}), model())

    def answer(message: Any, **content: Any) -> Any:
        return records.Message(content=records.RecordDict(content), reply_to=message)

    @app.query()  # type: ignore[untyped-decorator]
    def enrol(message: Any, context: Any) -> Any:
        number = int(context.node_config.get("partition-id", -1))
        size = len(samples(context).y)
        return answer(message, client=records.ConfigRecord({"number": number, "size": size}))

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        sent = message.content["packet"]
        request = Request(
            packet=packet_in(message.content),
            form=bytes(sent["form"]),
            step=int(sent["step"]),
            number=int(sent["number"]),
            arrived=int(sent["arrived"]),
        )
        memory = bytes(context.state[MEMORY]["memory"]) if MEMORY in context.state else b""
        packet, after = client(context).train(request, samples(context), memory)
        context.state[MEMORY] = records.ConfigRecord({"memory": after})
        return answer(message, packet=packed(packet))

    @app.evaluate()  # type: ignore[untyped-decorator]
    def evaluate(message: Any, context: Any) -> Any:
        models = bytes(message.content["models"]["data"])
        right, count = client(context).evaluate(models, samples(context))
        return answer(message, score=records.ConfigRecord({"right": right, "count": count}))

    return app


def server_app(model: Model, config: Mapping[str, Any] | None = None) -> Any:
    """Return a Flower ServerApp that plays the rounds and writes what it counted.

    What ``config`` says counts where the app's own configuration does not say it.
    """
    app = flwr("flwr.serverapp").ServerApp()

    @app.main()  # type: ignore[untyped-decorator]
    def main(grid: Any, context: Any) -> None:
        options = {**(config or {}), **context.run_config}
        settings = Settings.of(options)
        output = str(options.get("output", ""))
        try:
            summary = serve(grid, settings, model())
        except FedbenchError as error:
            raise SystemExit(f"fedbench: {error}") from error
        if output:
            Path(output).write_text(json.dumps(summary, indent=1) + "\n")

    return app


def serve(grid: Any, settings: Settings, network: Network) -> dict[str, Any]:
    """Play every round with the nodes of a grid; return rounds and accuracies as plain values."""
    server = Server(settings, network)
    nodes = enrolled(grid, server, settings)
    rounds = []
    for step in range(settings.rounds):
        ids = server.sample(sorted(nodes), step)
        requests = {
            request.number: packed(
                request.packet,
                form=request.form,
                step=request.step,
                number=request.number,
                arrived=request.arrived,
            )
            for request in server.open(ids, step)
        }
        contents = {i: {"packet": requests[i]} for i in ids}
        came = ask_each(grid, "train", contents, nodes, settings.patience, packet_in)
        traffic = server.close(came, ids, step)
        row: dict[str, Any] = {"step": step, "clients": ids, **vars(traffic)}
        every = settings.evaluate_every
        if every and ((step + 1) % every == 0 or step + 1 == settings.rounds):
            row["accuracy"] = accuracy(grid, server, step, nodes)
        print(f"fedbench: {json.dumps(row)}", flush=True)
        rounds.append(row)
    last = rounds[-1].get("accuracy")
    return {"settings": settings.config(), "accuracy": last, "rounds": rounds}


def enrolled(grid: Any, server: Server, settings: Settings) -> dict[int, int]:
    """Wait for the clients; return the node of each number, their sizes noted by the server.

    Numbers are the nodes' ``partition-id`` if these are 0, 1, ...; else the order of their ids.
    """
    end = time.monotonic() + settings.patience
    while len(present := sorted(grid.get_node_ids())) < settings.clients:
        if time.monotonic() > end:
            raise ConfigError(
                f"clients must be {settings.clients}, got {len(present)} nodes after "
                f"{settings.patience:g} seconds; start more SuperNodes or lower clients"
            )
        time.sleep(POLL_SECONDS)
    present = present[: settings.clients]
    record = flwr("flwr.app").ConfigRecord
    numbered = dict(enumerate(present))
    contents = {i: {"client": record({})} for i in numbered}
    answers = ask_each(grid, "query", contents, numbered, settings.patience, client_in)
    if len(answers) < settings.clients:
        raise ConfigError(f"clients must be {settings.clients}, got {len(answers)} that answered")
    claimed = [answers[i][0] for i in numbered]
    if sorted(claimed) == list(range(settings.clients)):
        numbered = {number: present[i] for i, number in enumerate(claimed)}
    else:
        claimed = list(numbered)
    for i, number in enumerate(claimed):
        server.enrol(number, answers[i][1])
    return numbered


def ask_each(
    grid: Any,
    kind: str,
    contents: Mapping[int, Mapping[str, Any]],
    nodes: Mapping[int, int],
    patience: float,
    read: Callable[[Any], T],
) -> dict[int, T]:
    """Send a message of this kind to each client; return what was ``read`` in the answers.

    A client that fails, does not answer in ``patience`` seconds, or whose answer raises
    `IllegalPayloadError` there, is left out and named; the round goes on with the others.
    """
    app = flwr("flwr.app")
    waiting = {nodes[i]: i for i in contents}
    messages: Iterable[Any] = [
        app.Message(content=app.RecordDict(dict(content)), dst_node_id=nodes[i], message_type=kind)
        for i, content in contents.items()
    ]
    answers = {}
    problems = {}
    for reply in grid.send_and_receive(messages, timeout=patience):
        i = waiting.pop(reply.metadata.src_node_id, None)
        if i is None:
            continue
        if reply.has_error():
            problems[i] = str(reply.error.reason)
            continue
        try:
            answers[i] = read(reply.content)
        except IllegalPayloadError as error:
            problems[i] = str(error)
    problems |= dict.fromkeys(waiting.values(), f"no answer in {patience:g} seconds")
    for i, problem in problems.items():
        print(one_line(f"fedbench: client {i} failed in {kind}: {problem}"), flush=True)
    return answers


def accuracy(grid: Any, server: Server, step: int, nodes: Mapping[int, int]) -> float | None:
    """Share of all clients' test samples that the deployed model gets right; None without any."""
    record = flwr("flwr.app").ConfigRecord({"data": encode(server.models(step))})
    contents = {i: {"models": record} for i in nodes}
    scores = ask_each(grid, "evaluate", contents, nodes, server.settings.patience, score_in)
    right = sum(score[0] for score in scores.values())
    count = sum(score[1] for score in scores.values())
    return right / count if count else None
