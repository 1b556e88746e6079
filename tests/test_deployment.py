"""Server and clients outside the harness: equal to a run of it, whatever carries their bytes."""

import dataclasses
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fedbench
from fedbench.api import ServerView
from fedbench.cli import main
from fedbench.core import registry
from fedbench.core.errors import ConfigError, IllegalPayloadError, Incompatible
from fedbench.core.rng import Key
from fedbench.data.own import from_arrays
from fedbench.deployment import example, flower, flower_app
from fedbench.deployment.client import Client, Samples
from fedbench.deployment.server import Server
from fedbench.deployment.settings import Settings
from fedbench.deployment.task import network_of, samples_of
from fedbench.executors.training import Schedule
from fedbench.experiment.prepare import prepare
from fedbench.experiment.state_bytes import encode
from fedbench.models.models import LeNet, Model
from fedbench.models.modules import ModuleModel
from fedbench.models.network import ConvNet, Image, Network
from fedbench.payload import Payload, identical
from fedbench.payload.packets import Packet
from fedbench.peers.packages import FLWR
from fedbench.protocols.fedavg import FedAvg
from fedbench_defenses.mean import Mean

SEED = 3
SMALL = Settings(rounds=3, clients=6, per_round=4, epochs=1, declared=0.2, rehearse=SEED)
RULES = ("own", "median", "trimmed-mean", "multi-krum", "geometric-median", "nnm+mean")


LENET = LeNet()


@dataclasses.dataclass(frozen=True)
class TwoLayers(Model):
    """A hidden layer of 32: soon trained."""

    def build(self, image: Image, classes: int) -> Network:
        return ConvNet(image, (), (32,), classes)


def counted(settings: Settings, model: Model = LENET) -> tuple[float | None, int, int]:
    """Play the two halves without a framework; accuracy and bits up and down."""
    network = model.build((1, 8, 8), 10)
    server = Server(settings, network)
    client = Client(settings, network)
    samples = [example.digits(i, settings.clients, SEED) for i in range(settings.clients)]
    for i, own in enumerate(samples):
        server.enrol(i, len(own.y))
    kept: dict[int, bytes] = {}
    up: int = 0
    down: int = 0
    for step in range(settings.rounds):
        ids = server.sample(range(settings.clients), step)
        packets = {}
        for request in server.open(ids, step):
            i = request.number
            packets[i], kept[i] = client.train(request, samples[i], kept.get(i, b""))
        traffic = server.close(packets, ids, step)
        up += traffic.uplink_bits
        down += traffic.downlink_bits
    models = encode(server.models(settings.rounds - 1))
    scores = [client.evaluate(models, own) for own in samples]
    right = sum(score[0] for score in scores)
    return right / sum(score[1] for score in scores), up, down


def played(settings: Settings, model: Model = LENET) -> tuple[float, int, int]:
    fields = settings.scenario.model_dump(exclude_unset=True)
    scenario = fedbench.Scenario.of(**fields | {"model": model})
    record = fedbench.play(scenario, executor="loop", device="cpu")
    up = sum(played.uplink_bits or 0 for played in record.rounds)
    return record.result.accuracy, up, sum(played.downlink_bits for played in record.rounds)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("protocol", registry.names("protocol"))
@pytest.mark.edges("rosdhb-own")
def test_two_halves_get_the_accuracy_and_the_bits_of_a_run(protocol: str, rule: str) -> None:
    settings = dataclasses.replace(SMALL, protocol=protocol, defense=rule, per_round=5)
    try:
        settings.plugins()
    except Incompatible as error:
        pytest.skip(str(error))
    model = LENET if rule == "own" else TwoLayers()
    accuracy, *traffic = counted(settings, model)
    expected, *expected_traffic = played(settings, model)
    assert traffic == expected_traffic
    # Clients are evaluated in batches of their own, whose sums round differently: one of the 360
    # answers may tip over.
    assert accuracy == pytest.approx(expected, abs=1.01 / 360)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"defense": "fltrust"}, "needs root data at the server"),
        ({"defense": "oracle+mean"}, "is told which clients are malicious"),
        ({"protocol": "fedpm:final=scan"}, "validation data at the server"),
        ({"mechanism": "dp-fedavg:adaptive=true,z=0.1"}, "counts clipped clients beside"),
        ({"defense": "krum:f=9"}, "needs at least 21 clients a round"),
    ],
)
def test_what_needs_the_harness_is_refused_in_one_line(fields: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        dataclasses.replace(SMALL, rehearse=-1, **fields).plugins()


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        *(({"public_seed": seed}, "public_seed must be in 0") for seed in (-1, 2**32)),
        *(({"patience": x}, "patience must be > 0 and finite") for x in (0.0, float("inf"))),
        ({"evaluate_every": -1}, "evaluate_every must be >= 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(fields: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        Settings(**fields)


def test_a_client_draws_batches_by_coins_where_its_guarantee_counts_on_them() -> None:
    for mechanism, coins in (("none", False), ("dp-sgd", True)):
        settings = Settings(mechanism=mechanism, batch_size=5)
        client = Client(settings, example.lenet())
        assert client.executor.schedule == Schedule(settings.epochs, 5, coins)


def test_both_ends_know_the_share_of_the_clients_that_a_round_samples() -> None:
    shared = Settings(clients=50, per_round=10).shared(example.lenet())
    assert shared.participation == 0.2


def test_noise_is_never_rehearsed() -> None:
    with pytest.raises(ConfigError, match="rehearse must be -1 with a mechanism"):
        dataclasses.replace(SMALL, mechanism="dp-sgd")


def small_module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))


OWN = {  # what task.model() may return
    "module": small_module,
    "function": lambda: small_module,
    "instance": lambda: ModuleModel(module=small_module()),
}


@pytest.mark.edges("module-fedpm", "instance-fedmrn", "function-fedavg")
@pytest.mark.parametrize("protocol", ["fedavg", "fedpm", "fedmrn"])  # the last two freeze weights
@pytest.mark.parametrize("kind", OWN)
def test_a_module_and_arrays_of_ones_own_train_in_both_halves(kind: str, protocol: str) -> None:
    settings = dataclasses.replace(SMALL, protocol=protocol, clients=2, per_round=2, rounds=2)
    server = Server(settings, network_of(OWN[kind], (1, 8, 8), 10))
    torch.manual_seed(5)  # another process: another state of torch's generator
    client = Client(settings, network_of(OWN[kind], (1, 8, 8), 10))
    ends = (server.shared.network, client.shared.network)
    drawn = [network.init(Key(1)) for network in ends]
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])
    digits = [example.digits(i, 2, SEED) for i in range(2)]
    images = [torch.cat([own.x, own.test_x]) * 2 + 3 for own in digits]
    pools = [
        from_arrays(x, torch.cat([own.y, own.test_y]), 10, mean=[3], std=[2], trained=len(own.y))
        for x, own in zip(images, digits, strict=True)
    ]
    samples = [samples_of(pool) for pool in pools]
    for given, own in zip(samples, digits, strict=True):
        assert torch.allclose(given.x, own.x, atol=1e-5)
        assert torch.equal(given.test_y, own.test_y)
    for i, own in enumerate(samples):
        server.enrol(i, len(own.y))
    before = server.models(0)[0]
    for step in range(2):
        ids = server.sample(range(2), step)
        sent = {
            r.number: client.train(r, samples[r.number], b"")[0] for r in server.open(ids, step)
        }
        assert server.close(sent, ids, step).accepted == 2
    after = server.models(1)[0]
    assert any(not torch.equal(before[name], after[name]) for name in before)
    right, count = client.evaluate(encode([after]), samples[0])
    assert count == len(samples[0].test_y)
    assert 0 <= right <= count


def test_what_is_no_model_or_no_data_of_it_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"task\.model\(\) must return a torch\.nn\.Module"):
        network_of(lambda: 3, (1, 8, 8), 10)
    with pytest.raises(ConfigError, match=r"task\.data\(\) must be Samples or"):
        samples_of([1, 2])
    x = torch.zeros(2, 1, 8, 8)
    with pytest.raises(ConfigError, match="float32 samples and as many int64 labels"):
        Samples(x, torch.tensor([0]), x[:0], torch.tensor([], dtype=torch.int64))
    client = Client(SMALL, example.lenet())
    server = Server(SMALL, example.lenet())
    server.enrol(0, 1)
    (request,) = server.open([0], 0)
    for x, y, line in (
        (torch.zeros(1, 1, 9, 9), 0, r"samples \(1, 8, 8\), got \(1, 9, 9\)"),
        (torch.zeros(1, 1, 8, 8), 10, r"labels from 0 to 9, got \(10, 10\)"),
        (torch.zeros(1, 1, 8, 8), -1, r"labels from 0 to 9, got \(-1, -1\)"),
    ):
        label = torch.tensor([y])
        with pytest.raises(ConfigError, match=line):
            client.train(request, Samples(x, label, x, label), b"")


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["dp-sgd:z=0.5", "dp-fedavg:z=0.1,adaptive=false"])
def test_a_mechanism_runs_in_both_halves(mechanism: str) -> None:
    settings = dataclasses.replace(SMALL, mechanism=mechanism, rehearse=-1, rounds=1, per_round=2)
    accuracy, up, _ = counted(settings)
    assert accuracy is not None
    assert up == 2 * 32 * example.lenet().parameters


def halves(protocol: str) -> tuple[Server, Client]:
    """Return a server that has enrolled six clients, and one of these."""
    settings = dataclasses.replace(SMALL, protocol=protocol)
    server = Server(settings, example.lenet())
    for i in range(settings.clients):
        server.enrol(i, 10)
    return server, Client(settings, example.lenet())


def test_who_is_sampled_does_not_depend_on_the_order_in_which_clients_are_listed() -> None:
    server, _ = halves("fedavg")
    assert server.sample([4, 2, 0, 5, 3, 1], 1) == server.sample(range(6), 1)


def test_a_client_trains_at_the_rate_of_the_round() -> None:
    messages = []
    for protocol in ("fedavg:lr=0.4,decay=0.5", "fedavg:lr=0.1"):
        server, client = halves(protocol)
        (request,) = server.open([0], 2)  # the third round: half of a half
        messages.append(client.train(request, example.digits(0, 6, SEED), b"")[0].data)
    assert messages[0] == messages[1]


def test_a_client_that_does_not_answer_is_left_out_of_the_round() -> None:
    server, client = halves("byz-ef21")
    ids = server.sample(range(6), 0)
    samples = example.digits(0, 6, SEED)
    sent = {r.number: client.train(r, samples, b"")[0] for r in server.open(ids, 0)[1:]}
    traffic = server.close(sent, ids, 0)
    assert (traffic.sent, traffic.accepted) == (3, 3)
    assert traffic.downlink_bits == 4 * server.down[0].bits  # it was sent to all four
    told = {request.number: request.arrived for request in server.open(ids, 1)}
    assert [told[i] for i in ids] == [-1, 0, 0, 0]  # both ends know what arrived
    request = next(request for request in server.open(ids, 1) if request.arrived == 0)
    with pytest.raises(ConfigError, match="must remember its message of round 0"):
        client.train(request, samples, b"")  # or the server would add a change to another row


def test_what_arrived_is_remembered_of_those_whose_messages_were_legal() -> None:
    server, client = halves("byz-ef21")
    ids = server.sample(range(6), 0)
    samples = example.digits(0, 6, SEED)
    sent = {r.number: client.train(r, samples, b"")[0] for r in server.open(ids, 0)}
    sent[ids[0]] = Packet.raw(b"rubbish")
    assert server.close(sent, ids, 0).accepted == 3
    assert [request.arrived for request in server.open(ids, 1)] == [-1, 0, 0, 0]


def test_clients_count_alike_where_central_noise_hides_one_of_them() -> None:
    for mechanism, weights in (("none", [30, 10]), ("dp-fedavg:adaptive=false", [1, 1])):
        settings = dataclasses.replace(SMALL, mechanism=mechanism, rehearse=-1)
        server = Server(settings, example.lenet())
        server.enrol(0, 30)
        server.enrol(1, 10)
        server.open([0, 1], 0)
        assert server._view([0, 1], 0).weights.tolist() == weights


@dataclasses.dataclass(frozen=True, kw_only=True)
class Watching(Mean):
    """Mean that notes of whom it is shown messages."""

    shown: list[list[int]] = dataclasses.field(default_factory=list)

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Any, None]:
        assert len(received) == len(view.weights) == len(view.ids)
        self.shown.append(view.ids.tolist())
        return super().aggregate(received, state, view)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counting(FedAvg):
    """FedAvg that notes how many messages its server step is told of."""

    counts: list[int] = dataclasses.field(default_factory=list)

    def server_step(self, shared: Any, state: Any, aggregate: Any, n: int, key: Key) -> Any:
        self.counts.append(n)
        return super().server_step(shared, state, aggregate, n, key)


def test_a_rule_is_shown_the_pseudonyms_of_those_whose_messages_were_legal() -> None:
    server, client = halves("fedavg")
    people = prepare(SMALL.scenario, "cpu", "loop").population
    assert server.pseudonyms.tolist() == people.pseudonyms[:].tolist() != list(range(6))
    rule = Watching()
    server.defense = rule
    ids = server.sample(range(6), 0)
    samples = example.digits(0, 6, SEED)
    sent = {r.number: client.train(r, samples, b"")[0] for r in server.open(ids, 0)}
    sent[ids[1]] = Packet.raw(b"rubbish")
    server.close(sent, ids, 0)
    assert rule.shown == [people.pseudonyms[[ids[0], ids[2], ids[3]]].tolist()]


def test_a_step_is_told_how_many_came_unless_central_noise_hides_it() -> None:
    for mechanism, n in (("none", 3), ("dp-fedavg:adaptive=false", 4)):
        settings = dataclasses.replace(SMALL, mechanism=mechanism, rehearse=-1)
        server = Server(settings, example.lenet())
        protocol = Counting()
        server.protocol = protocol
        ids = [0, 1, 2, 3]
        for i in ids:
            server.enrol(i, 10)
        client = Client(settings, example.lenet())
        samples = example.digits(0, 6, SEED)
        server.close(
            {r.number: client.train(r, samples, b"")[0] for r in server.open(ids, 0)[1:]}, ids, 0
        )
        assert protocol.counts == [n]


def test_a_rule_is_shown_the_broadcasts_of_those_whose_messages_came() -> None:
    server, client = halves("feddrop")  # a sub-network for each client
    ids = server.sample(range(6), 0)
    samples = example.digits(0, 6, SEED)
    requests = server.open(ids, 0)
    theirs = server.broadcast
    sent = {r.number: client.train(r, samples, b"")[0] for r in requests[1:]}
    assert server.close(sent, ids, 0).accepted == 3
    assert identical(server.broadcast, theirs.take([1, 2, 3]))
    server.open(ids, 1)
    assert server.close({}, ids, 1).sent == 0  # nobody answers


ALPHABET = """
from dataclasses import dataclass

from fedbench.payload import FloatVectors
from fedbench.protocols.fedavg import FedAvg


@dataclass(frozen=True, eq=False)
class Weights(FloatVectors):
    pass


@dataclass(frozen=True, kw_only=True)
class Own(FedAvg):
    def broadcast(self, shared, state, clients, key):
        return Weights(super().broadcast(shared, state, clients, key).x)
"""


def test_a_protocol_of_another_package_broadcasts_an_alphabet_of_its_own(
    install: Callable[[str, dict[str, str]], Any],
) -> None:
    install(ALPHABET, {"protocol-own": "Own"})
    server, client = halves("protocol-own")
    (request,) = server.open([2], 0)
    packet, _ = client.train(request, example.digits(2, 6, SEED), b"")
    assert server.close({2: packet}, [2], 0).accepted == 1


HOSTILE: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nothing": (flower.packet_in, {}, "packet['data'] must be of type bytes, got NoneType"),
    "text": (flower.packet_in, {"packet": "data"}, "packet['data'] must be of type bytes"),
    "memory": (flower.packet_in, {"packet": {"data": 10**12, "bits": 8}}, "bytes, got int"),
    "list": (flower.packet_in, {"packet": {"data": [999], "bits": 8}}, "bytes, got list"),
    "bits": (flower.packet_in, {"packet": {"data": b"", "bits": float("nan")}}, "int, got float"),
    "size": (flower.client_in, {"client": {"number": 0, "size": 0}}, "must be >= 1, got 0"),
    "number": (flower.client_in, {"client": {"number": "x", "size": 1}}, "int, got str"),
    "flag": (flower.client_in, {"client": {"number": True, "size": 1}}, "int, got bool"),
    "score": (flower.score_in, {"score": {"right": 3, "count": 2}}, "must be in 0 .. 2, got 3"),
    "negative": (flower.score_in, {"score": {"right": -9, "count": -8}}, "got -9"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_an_answer_that_is_no_message_is_an_illegal_one(case: str) -> None:
    read, content, line = HOSTILE[case]
    with pytest.raises(IllegalPayloadError, match=re.escape(line)):
        read(content)


@pytest.mark.parametrize(
    ("bits", "counted"), [(9, 9), (16, 16), (8, 16), (17, 16), (-(10**15), 16), (2**60, 16)]
)
def test_bits_that_its_bytes_cannot_have_are_not_believed(bits: int, counted: int) -> None:
    assert flower.packet_in({"packet": {"data": b"ab", "bits": bits}}) == Packet(b"ab", counted)


def test_an_app_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "new" / "app"
    paths = flower_app.export(SMALL, out)
    assert {p.relative_to(out).as_posix() for p in paths} == {
        *("pyproject.toml", "README.md", "fedbench_fedavg/__init__.py", "fedbench_fedavg/task.py"),
        *("fedbench_fedavg/server_app.py", "fedbench_fedavg/client_app.py"),
    }
    assert all(path.is_file() for path in paths)
    with pytest.raises(ConfigError, match="--out must be a new or an empty folder"):
        flower_app.export(SMALL, out)
    with pytest.raises(ConfigError):
        flower_app.export(dataclasses.replace(SMALL, defense="fltrust"), tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert [path.name for path in out.parent.iterdir()] == ["app"]


def test_an_app_says_its_settings_and_reads_them_back(tmp_path: Path) -> None:
    import tomllib

    flower_app.export(dataclasses.replace(SMALL, protocol="eden:bits=2"), tmp_path / "app")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["project"]["dependencies"] == [FLWR]
    table = project["tool"]["flwr"]["app"]
    settings = Settings.of(table["config"])
    assert dataclasses.replace(settings, public_seed=0) == dataclasses.replace(
        SMALL, protocol="eden:bits=2"
    )
    assert table["components"]["serverapp"] == "fedbench_eden.server_app:app"


def test_another_framework_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["export", "pysyft", "-p", "fedavg", "--out", str(tmp_path / "app")])
    assert capsys.readouterr().err == "fedbench: framework must be flower, got 'pysyft'\n"


def test_a_part_that_flower_lacks_is_one_line_with_the_versions() -> None:
    with pytest.raises(ConfigError) as error:
        flower.flwr("flwr.absent")
    assert str(error.value) == (
        f"flwr.absent must be installed, got none; run pip install '{FLWR}'"
    )


def own_digits(number: int, clients: int, config: Any) -> Samples:
    return example.digits(number, clients, SEED)


class MemoryGrid:
    """A grid of Flower in this process: it calls the app of each node with its own context."""

    def __init__(self, app: Any, nodes: int) -> None:
        from flwr.app import RecordDict

        self.app = app
        self.contexts = {
            100 + i: SimpleNamespace(
                node_config={"partition-id": i}, run_config={}, state=RecordDict()
            )
            for i in reversed(range(nodes))
        }

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Any, timeout: float) -> list[Any]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            replies.append(self.app(message, self.contexts[node]))
        return replies


@pytest.fixture
def in_a_task() -> None:
    """Give this process the identity without which Flower from 1.38 on makes no message."""
    if importlib.util.find_spec("flwr.supercore.task_identity"):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
        TaskIdentity.task_id = 1


@pytest.mark.peers
@pytest.mark.parametrize("protocol", registry.names("protocol"))
def test_messages_of_flower_carry_accuracy_and_bits(protocol: str, in_a_task: None) -> None:
    settings = dataclasses.replace(SMALL, protocol=protocol, rounds=2)
    try:
        settings.plugins()
    except Incompatible as error:
        pytest.skip(str(error))
    app = flower.client_app(example.lenet, own_digits, settings.config())
    summary = flower.serve(MemoryGrid(app, settings.clients), settings, example.lenet())
    up = sum(row["uplink_bits"] for row in summary["rounds"])
    down = sum(row["downlink_bits"] for row in summary["rounds"])
    assert (summary["accuracy"], up, down) == played(settings)


class Hostile(MemoryGrid):
    """A grid in which three nodes answer training wrong: empty, with a wild error, and never."""

    def send_and_receive(self, messages: Any, timeout: float) -> list[Any]:
        from flwr.app import Error, Message, RecordDict

        told = list(messages)
        replies = super().send_and_receive(told, timeout)
        for place, message in enumerate(told):
            if message.metadata.message_type == "train":
                if message.metadata.dst_node_id == 101:
                    replies[place] = Message(content=RecordDict(), reply_to=message)
                if message.metadata.dst_node_id == 102:
                    error = Error(code=0, reason="\x1b[2J two" + chr(10) + "lines")
                    replies[place] = Message(error=error, reply_to=message)
                if message.metadata.dst_node_id == 103:
                    assert timeout == 7
                    replies[place] = None
        return [reply for reply in replies if reply is not None]


@pytest.mark.peers
def test_answers_without_a_packet_are_left_out_and_named_in_a_line(
    in_a_task: None, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = dataclasses.replace(SMALL, rounds=1, per_round=6, declared=0.0, patience=7.0)
    app = flower.client_app(example.lenet, own_digits, settings.config())
    (row,) = flower.serve(Hostile(app, 6), settings, example.lenet())["rounds"]
    assert (row["sent"], row["accepted"]) == (3, 3)
    out = capsys.readouterr().out
    assert "client 1 failed in train: packet['data'] must be of type bytes" in out
    assert r"client 2 failed in train: \x1b[2J two lines" in out
    assert "client 3 failed in train: no answer in 7 seconds" in out


@pytest.mark.peers
def test_flower_simulates_the_app_with_equal_numbers(tmp_path: Path) -> None:
    settings = dataclasses.replace(SMALL, protocol="eden:bits=2", defense="trimmed-mean")
    out = tmp_path / "out.json"
    script = tmp_path / "simulate.py"
    script.write_text(
        "from flwr.simulation import run_simulation\n"
        "from fedbench.deployment import example\n"
        "from fedbench.deployment.flower import client_app, server_app\n"
        f"config = {settings.config() | {'output': str(out)}!r}\n"
        "def data(number, clients, config):\n"
        f"    return example.digits(number, clients, {SEED})\n"
        "backend = {'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},\n"
        "           'init_args': {'num_cpus': 2}}\n"
        "client = client_app(example.lenet, data, config)\n"
        "run_simulation(server_app(example.lenet, config), client, 6, backend_config=backend)\n"
    )
    line = [sys.executable, str(script)]
    done = subprocess.run(line, timeout=300, capture_output=True, text=True)
    assert out.exists(), done.stdout + done.stderr
    summary = json.loads(out.read_text())
    up = sum(row["uplink_bits"] for row in summary["rounds"])
    down = sum(row["downlink_bits"] for row in summary["rounds"])
    assert (summary["accuracy"], up, down) == played(settings)


@pytest.fixture
def ports() -> list[int]:
    """Return three ports of the loopback interface that are free now."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    free = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return free


@pytest.mark.peers
def test_processes_of_flower_over_loopback_have_equal_numbers(
    tmp_path: Path, ports: list[int]
) -> None:
    if int(version("flwr").split(".")[1]) < 40:
        pytest.skip("the options of a SuperLink were others, see docs/how-to/flower.md")
    settings = dataclasses.replace(
        SMALL, protocol="eden:bits=2", rounds=2, clients=2, per_round=2, declared=0.0
    )
    app = tmp_path / "app"
    flower_app.export(settings, app)
    out = tmp_path / "out.json"
    home = tmp_path / "flwr"
    home.mkdir()
    link, *node_ports = ports
    told = f'[superlink.here]\naddress = "127.0.0.1:{link}"\ninsecure = true\n'
    (home / "config.toml").write_text(told)
    folder = Path(sys.executable).parent
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"  # Flower starts its own programs by name
    environment = {**os.environ, "FLWR_HOME": str(home), "PATH": path}
    here = ["--host", "127.0.0.1", "--port"]
    apart = "--disable-runtime-dependency-installation"
    lines = [[str(folder / "flower-superlink"), "--insecure", apart, *here, str(link)]]
    for i, port in enumerate(node_ports):
        at = ["--superlink", f"127.0.0.1:{link}", *here, str(port)]
        node = [str(folder / "flower-supernode"), "--insecure", *at]
        lines.append([*node, "--node-config", f"partition-id={i}"])
    with (tmp_path / "log").open("wb") as log, ExitStack() as stack:
        for line in lines:
            process = subprocess.Popen(
                line, env=environment, stdout=log, stderr=log, start_new_session=True
            )
            stack.callback(process.wait, 30)
            stack.callback(os.killpg, process.pid, signal.SIGTERM)
        run = [str(folder / "flwr"), "run", str(app), "here"]
        run += ["--stream", "--run-config", f'output="{out}"']
        end = time.monotonic() + 60
        while not _listens(link):
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)
        done = subprocess.run(run, env=environment, capture_output=True, text=True, timeout=240)
        assert out.exists(), done.stdout + done.stderr + (tmp_path / "log").read_text()
    summary = json.loads(out.read_text())
    up = sum(row["uplink_bits"] for row in summary["rounds"])
    down = sum(row["downlink_bits"] for row in summary["rounds"])
    assert (summary["accuracy"], up, down) == played(settings)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
