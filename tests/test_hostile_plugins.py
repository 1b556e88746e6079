"""Plug-ins that raise, exit or return nonsense: one line that names them, and other runs go on."""

import dataclasses
import pickle
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import moody
import pytest
import torch
from torch import Tensor

import fedbench
from fedbench.api import (
    Attack,
    AttackView,
    Defense,
    Knowledge,
    Mechanism,
    Prefilter,
    Traits,
    hooks,
    undeclared,
)
from fedbench.api.defense import ServerView
from fedbench.cli import main
from fedbench.core import blame, errors, registry
from fedbench.core.blame import ask
from fedbench.core.errors import ConfigError, PluginError, UnknownPluginError
from fedbench.core.rng import Key
from fedbench.data.partitions import Partition
from fedbench.experiment.compatibility import examine
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record_builder import build_record
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import FloatVectors, Payload, SignBits
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.signsgd import SignSGD
from fedbench.run import play_round
from fedbench.sweeps.engine import crash
from fedbench.sweeps.grid import Grid
from fedbench.testing import (
    check_attack,
    check_defense,
    check_mechanism,
    check_prefilter,
    check_protocol,
)
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import TrimmedMean

# With seed 1 two of the four clients of the round are malicious.
CLIENTS: dict[str, Any] = {"clients": 8, "per_round": 4, "malicious": 0.5, "seed": 1}
BRIEF: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch_size": 512, "eval_every": 1}
SMALL = Scenario(model="micro", **CLIENTS, **BRIEF)
HERE = __name__


@cache
def prepared() -> Setup:
    return prepare(SMALL, "cpu", "loop")


def changed(**plugins: Any) -> Setup:
    """The setup with these plug-ins in place of attack, defense, protocol or mechanism."""
    setup = prepared()
    return dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, **plugins))


def played(**plugins: Any) -> RunState:
    """The state after a round with these plug-ins."""
    setup = changed(**plugins)
    if "protocol" in plugins:
        executor = dataclasses.replace(setup.executor, protocol=plugins["protocol"])
        setup = dataclasses.replace(setup, executor=executor)
    state = RunState(ask(setup.plugins.protocol, "init", object, setup.shared))
    state.mechanism = ask(setup.plugins.mechanism, "init", object)
    with hooks.in_round(0):
        play_round(setup, state, 0)
    return state


def error_of(call: Callable[..., object] = played, **plugins: Any) -> str:
    """The one line that names the plug-in that goes wrong."""
    with pytest.raises(PluginError) as caught:
        call(**plugins)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert len(text) < 600
    return text


def raising(error: BaseException) -> Callable[..., Any]:
    def hook(*_: Any) -> Any:
        raise error

    return hook


def endless(*arguments: Any) -> Any:
    return endless(*arguments)


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError


def made(name: str, contract: type, methods: dict[str, Any]) -> Any:
    cls: Any = type(name, (contract,), methods | {"__module__": HERE})
    return dataclass(frozen=True)(cls)()


def bound(**hooks: Any) -> dict[str, Any]:
    """Methods of functions that are not handed the instance."""
    return {name: lambda self, *given, hook=hook: hook(*given) for name, hook in hooks.items()}


def attack(**hooks: Any) -> Any:
    return made("Hostile", Attack, bound(**hooks))


def writing(write: Callable[[AttackView], object]) -> Callable[..., Any]:
    """Honest messages of an attack that writes something into its view."""

    def craft(view: AttackView, memory: Any) -> Any:
        write(view)
        return view.own, memory

    return craft


def noting(notes: Any) -> Callable[..., Any]:
    return writing(lambda view: view.notes.update(notes))


def tracing(*trials: Any) -> Callable[..., Any]:
    return writing(lambda view: view.trace.extend(trials))


def own(view: AttackView, memory: Any) -> Any:
    return view.own, memory


def diverging(grad: Any, local: Any) -> Any:
    return lambda *given: {name: x * torch.inf for name, x in grad(*given).items()}


def shortened(tree: Any, *_: Any) -> Any:
    return {name: x[:1] for name, x in tree.items()}


WRONG_ATTACKS: list[tuple[str, Any, str]] = [
    # hook, what it does, what the line says after round and clients
    ("craft", lambda v, m: None, "must return a tuple of two, got None"),
    ("craft", lambda v, m: v.own, "a tuple of two, got a FloatVectors"),
    ("craft", lambda v, m: (v.own, m, 1), "a tuple of two, got (a FloatVectors, None"),
    ("craft", lambda v, m: (x for x in (v.own, m)), "got a generator"),
    ("craft", lambda v, m: (v.updates, m), "list of bytes, memory), got a tensor (1, "),
    ("craft", lambda v, m: ("yes", m), "list of bytes, memory), got 'yes'"),
    ("craft", lambda v, m: ([bytearray(3)], m), "of bytes, memory), got a list of 1"),
    ("craft", lambda v, m: ((b"y",), m), "of bytes, memory), got (b'y')"),
    ("craft", lambda v, m: (None, m), "list of bytes, memory), got None"),
    ("craft", lambda v, m: ([], m), "must return 1 messages, got 0"),
    ("craft", lambda v, m: ([b"", b""], m), "must return 1 messages, got 2"),
    ("craft", lambda v, m: (v.own.take([0, 0]), m), "must return 1 messages, got 2"),
    ("craft", lambda v, m: (SignBits(v.updates > 0), m), "legal messages: messages "),
    ("craft", lambda v, m: (FloatVectors(v.updates[:, 1:]), m), "must return legal "),
    ("craft", lambda v, m: (FloatVectors(v.updates.double()), m), "float64"),
    ("craft", lambda v, m: (FloatVectors(v.updates.int()), m), "int32"),
    ("craft", lambda v, m: (FloatVectors(v.updates[0]), m), "legal messages"),
    ("craft", lambda v, m: (FloatVectors(None), m), "of form {'x': None}"),  # type: ignore[arg-type]
    ("craft", lambda v, m: (FloatVectors((1 * v.updates).requires_grad_()), m), "without a graph"),
    ("craft", raising(KeyError("x")), "raised KeyError: 'x'"),
    ("craft", raising(SystemExit(0)), "raised SystemExit: 0"),
    ("craft", raising(StopIteration()), "raised StopIteration"),
    ("craft", raising(MemoryError()), "raised MemoryError"),
    ("craft", raising(Unreadable()), "raised Unreadable: (its message cannot be read)"),
    ("craft", raising(ValueError("x\n" * 10**6)), "raised ValueError: x x x"),
    ("craft", raising(ValueError("\x1b[2Jgone")), "raised ValueError: [2Jgone"),
    ("craft", endless, "raised RecursionError: maximum recursion depth exceeded"),
    ("craft", noting({"x": torch.ones(())}), "texts of at most 1000 characters, got "),
    ("craft", noting({"x": None}), "got ('x', None)"),
    ("craft", noting({3: 1}), "got (3, 1)"),
    ("craft", noting({"x": "y" * 10**7}), "must note at most 100 numbers"),
    ("craft", noting({str(i): i for i in range(101)}), "got a dict of 101"),
    ("craft", noting({"x": 10**400}), "must note at most 100 numbers"),
    ("craft", tracing("strong"), "pairs of numbers, got 'strong'"),
    ("craft", tracing(("a", 1.0)), "pairs of numbers, got ('a', 1.0)"),
    ("craft", tracing((1.0,)), "pairs of numbers, got (1.0)"),
    ("craft", tracing(*[(1.0, 1.0)] * 10_001), "got a list of 10001"),
    ("needs", lambda: None, "must return Knowledge, got None"),
    ("needs", lambda: Knowledge("root"), "colluders, all, got 'root'"),  # type: ignore[arg-type]
    ("needs", raising(SystemExit(3)), "raised SystemExit: 3"),
    ("poison", lambda x, y, local: None, "must return a tuple of two, got None"),
    ("poison", lambda x, y, local: (x, y.float()), "of torch.int64, got a tensor"),
    ("poison", lambda x, y, local: (x, y[1:]), "must return labels ("),
    ("poison", lambda x, y, local: (x, y.tolist()), "must return labels ("),
    ("poison", lambda x, y, local: (x, y.to("meta")), "must return labels ("),
    ("poison", lambda x, y, local: (x, y * 0 + 10), "must return labels from 0 to 9, got (10, 10)"),
    ("poison", lambda x, y, local: (x, y - 20), "must return labels from 0 to 9"),
    ("poison", lambda x, y, local: (x * torch.nan, y), "finite images, got "),
    ("poison", lambda x, y, local: (x / 0, y), "finite images, got "),
    ("poison", lambda x, y, local: (x.double(), y), "(N, 1, 8, 8) of torch.float32"),
    ("poison", lambda x, y, local: (x[..., 1:], y), "(N, 1, 8, 8) of torch.float32"),
    ("poison", lambda x, y, local: (x[:0], y[:0]), "at least one image"),
    ("poison", lambda x, y, local: (x.numpy(), y), "got a ndarray"),
    ("poison", raising(SystemExit(0)), "raised SystemExit: 0"),
    ("wrap_grad", lambda grad, local: None, "must return a function (tree, x, y, key)"),
    ("wrap_grad", lambda grad, local: lambda *_: None, "a dict of tensors, got None"),
    ("wrap_grad", lambda grad, local: lambda *_: {}, "the shapes of the tree, got ('conv"),
    ("wrap_grad", lambda grad, local: shortened, "a gradient with the shapes of the tree"),
    ("wrap_grad", lambda grad, local: raising(KeyError(1)), "raised KeyError: 1"),
    ("wrap_grad", raising(SystemExit(0)), "raised SystemExit: 0"),
    ("trigger", lambda x, y: x, "None or (images, label), got a tensor"),
    ("trigger", lambda x, y: (x[..., 1:], 3), "must return images (N, 1, 8, 8)"),
    ("trigger", lambda x, y: (x[:1] * torch.nan, 3), "must return finite images"),
    ("trigger", lambda x, y: (x[:1], 10), "a label from 0 to 9, got 10"),
    ("trigger", lambda x, y: (x[:1], -1), "a label from 0 to 9, got -1"),
    ("trigger", lambda x, y: (x[:1], True), "a label from 0 to 9, got True"),
    ("trigger", lambda x, y: (x[:1], y[0]), "from 0 to 9, got a tensor () of torch.int64"),
    ("trigger", lambda x, y: (x, 3), "images that are not of the target class 3"),
    ("trigger", raising(SystemExit(0)), "raised SystemExit: 0"),
]


def require_named(wrong: list[tuple[str, Any, str]]) -> None:
    """The error of each of these attacks names its hook, round and client."""
    malicious = set(prepared().population.malicious.ids())
    for hook, method, problem in wrong:
        text = error_of(attack=attack(**{"craft": own, hook: method}))
        start = f"plug-in Hostile of {HERE}: {hook}"
        assert text.startswith(start), text
        assert problem in text, (problem, text)
        if hook == "trigger":
            assert text.startswith(f"{start} in round 0 "), text
        elif hook != "needs":
            where, _, client = text.removeprefix(start).partition(" for client ")
            assert where == " in round 0", text
            assert int(client.split()[0]) in malicious, text


def test_each_hook_of_an_attack_that_goes_wrong_is_named_with_round_and_client() -> None:
    first = {hook: (hook, method, problem) for hook, method, problem in reversed(WRONG_ATTACKS)}
    require_named(list(first.values()))


@pytest.mark.slow
def test_an_attack_that_goes_wrong_is_named_with_hook_round_and_client() -> None:
    require_named(WRONG_ATTACKS)
    text = error_of(attack=attack(needs=lambda: Knowledge("all"), craft=raising(KeyError("x"))))
    assert " for clients " in text
    many = PluginError("attack a", "craft", "raised KeyError", 2, tuple(range(9)))
    assert str(many).endswith("in round 2 for clients 0, 1, 2, 3, 4 and 4 more raised KeyError")


def test_an_attack_may_write_each_clients_message_into_the_same_memory() -> None:
    memory = torch.empty(0)
    calls: list[None] = []

    def craft(view: AttackView, state: Any) -> Any:
        memory.resize_(view.updates.shape)
        memory.fill_(1 + len(calls))
        calls.append(None)
        return FloatVectors(memory), state

    def aggregate(messages: FloatVectors, state: Any, view: ServerView) -> Any:
        seen.append(messages.x[:, 0].tolist())
        return messages.x.mean(dim=0), state

    seen: list[list[float]] = []
    played(attack=attack(craft=craft), defense=rule(aggregate=aggregate))
    assert {1.0, 2.0} <= set(seen[0])


def rule(**hooks: Any) -> Any:
    """A rule with these methods, else the plain mean."""
    plain = {"tolerates": lambda n: 0, "aggregate": lambda r, s, v: (r.values().mean(dim=0), s)}
    return made("Crooked", Defense, bound(**(plain | hooks)))


def finding(**findings: Any) -> Callable[..., Any]:
    def aggregate(received: FloatVectors, state: Any, view: ServerView) -> Any:
        for name, value in findings.items():
            setattr(view.findings, name, value)
        return received.x.mean(dim=0), state

    return aggregate


WRONG_RULES: list[tuple[str, Any, str]] = [
    ("aggregate", lambda r, s, v: None, "must return a tuple of two, got None"),
    ("aggregate", lambda r, s, v: r.x.mean(dim=0), "must return a tuple of two, got a tensor"),
    ("aggregate", lambda r, s, v: (r.x.mean(dim=0),), "a tuple of two, got (a tensor"),
    ("aggregate", lambda r, s, v: (r.x, s), "real numbers and its state, got a tensor (4, "),
    ("aggregate", lambda r, s, v: (r.x[0, 1:], s), "real numbers and its state, got a tensor ("),
    ("aggregate", lambda r, s, v: (r.x[0].int(), s), "real numbers and its state, got a tensor ("),
    ("aggregate", lambda r, s, v: (r.x[0].numpy(), s), "its state, got a ndarray"),
    ("aggregate", lambda r, s, v: (r, s), "its state, got a FloatVectors"),
    ("aggregate", lambda r, s, v: (r.x[0].clone().requires_grad_(), s), "without a graph"),
    ("aggregate", raising(SystemExit(0)), "raised SystemExit: 0"),
    ("aggregate", raising(IndexError("row 99")), "raised IndexError: row 99"),
    ("aggregate", endless, "raised RecursionError"),
    ("aggregate", finding(kept=torch.ones(4)), "must find 4 bools of rows, got a tensor (4,)"),
    ("aggregate", finding(kept=[True] * 4), "must find 4 bools of rows, got a list of 4"),
    ("aggregate", finding(kept=torch.ones(3) > 0), "4 bools of rows, got a tensor (3,) of torch.b"),
    ("aggregate", finding(notes={"x": None}), "got ('x', None)"),
    ("aggregate", finding(notes=None), "must note at most 100 numbers"),
    ("init", raising(ValueError("no")), "raised ValueError: no"),
    ("ready", lambda view: None, "must return bool, got None"),
    ("ready", raising(ZeroDivisionError()), "raised ZeroDivisionError"),
    ("rows_needed", lambda: "4", "ready in round 0 raised TypeError"),
    ("traits", lambda: None, "must return Traits, got None"),
    ("select", lambda squared: 3, "must return Tensor or None, got 3"),
]


def test_a_rule_that_goes_wrong_is_named_with_hook_and_round() -> None:
    for hook, method, problem in WRONG_RULES:
        text = error_of(doubts, defense=rule(**{hook: method}))
        assert text.startswith(f"plug-in Crooked of {HERE}: "), text
        assert (hook in text.partition(": ")[2]) or hook == "rows_needed"
        assert problem in text, text


WRONG_WORDS: list[tuple[str, Any, str]] = [
    ("tolerates", lambda n: None, "must return int, got None"),
    ("tolerates", lambda n: -1, "must return a number of rows from 0 to 4, got -1"),
    ("tolerates", lambda n: 99, "must return a number of rows from 0 to 4, got 99"),
    ("sensitivity", lambda clip, n: "small", "must return float or int or None, got 'small'"),
    ("order_weights", lambda n: torch.ones(3), "must return None or (4,) of torch.float64"),
    ("order_weights", lambda n: [1.0] * 4, "got a list of 4"),
    ("select", lambda squared: torch.tensor([7, 8]), "must return None or (3,) of torch.bool"),
    ("select", raising(KeyError(2)), "raised KeyError: 2"),
    ("candidates", lambda squared: torch.ones(2), "must return None or (3,) of torch.bool"),
]


def test_what_a_rule_says_of_itself_is_looked_at_before_the_run() -> None:
    for hook, method, problem in WRONG_WORDS:
        text = error_of(partial(examine, rule(**{hook: method}), 4))
        assert text.startswith(f"plug-in Crooked of {HERE}: {hook} "), text
        assert problem in text


def test_a_state_that_cannot_be_copied_and_alphabets_that_are_none_are_named() -> None:
    text = error_of(defense=rule(init=lambda spec: threading.Lock()), attack=SignFlip())
    assert "aggregate in round 0 must remember what copy.deepcopy copies" in text
    assert text.endswith("got a lock")
    odd = made("Odd", Attack, {"accepts": [FloatVectors]})
    with pytest.raises(PluginError, match=f"Odd of {HERE}: accepts must be types of messages"):
        dataclasses.replace(prepared().plugins, attack=odd).check(SMALL)
    for sends, got in (("FloatVectors", "'FloatVectors'"), (None, "None")):
        silent = made("Silent", FedAvg, {"sends": sends})
        with pytest.raises(PluginError, match=f"sends must be a type of messages, got {got}"):
            dataclasses.replace(prepared().plugins, protocol=silent).check(SMALL)


def test_a_link_of_a_chain_is_named_and_not_the_chain() -> None:
    @dataclass(frozen=True)
    class Crooked(Prefilter):
        answer: Any = None

        def tolerates(self, n: int, rule: Defense[Any]) -> int:
            return 0

        def transform(self, received: Any, view: ServerView) -> Any:
            return self.answer(received)

    for answer, problem in (
        (lambda r: None, "must return a tuple of two, got None"),
        (lambda r: (r.x, None), "must return messages and their rows, got a tensor (4, "),
        (lambda r: (r, torch.tensor([0, 1, 2, 4])), "int64 from 0 to 3, or None"),
        (lambda r: (r, torch.tensor([0, 1, 2, -1])), "int64 from 0 to 3, or None"),
        (lambda r: (r, [0, 1, 2, 3]), "or None, got a list of 4"),
    ):
        text = error_of(defense=Crooked(answer).before(Mean()))
        assert text.startswith(f"plug-in Crooked of {HERE}: transform "), text
        assert problem in text, text
    text = error_of(defense=registry.load("prefilter", "clip").before(rule(aggregate=lambda *_: 1)))
    assert text.startswith(f"plug-in Crooked of {HERE}: aggregate in round 0 must return a tuple")


def test_a_rule_that_fails_when_an_attack_asks_it_is_named_too() -> None:
    def craft(view: AttackView, memory: Any) -> Any:
        assert view.defense is not None
        view.defense.rule.order_weights("two")  # type: ignore[arg-type]
        return view.own, memory

    asking = attack(needs=lambda: Knowledge("all", defense=True), craft=craft)
    text = error_of(attack=asking, defense=registry.load("defense", "trimmed-mean:f=1"))
    assert text.startswith(f"plug-in Hostile of {HERE}: craft in round 0 for clients "), text
    assert " raised TypeError: " in text
    assert " in order_weights of defense trimmed-mean (package fedbench-toolkit " in text
    knowing = {"needs": lambda: Knowledge("all", defense=True)}
    asking = attack(craft=lambda v, m: (v.defense(v.own), m), **knowing)
    text = error_of(attack=asking, defense=rule(aggregate=lambda r, s, v: (None, s)))
    assert text.startswith(f"plug-in Crooked of {HERE}: aggregate in round 0 must return ")


@dataclass(frozen=True, kw_only=True)
class Odd(FedAvg):
    """FedAvg with one hook that answers something else."""

    hook: str = ""
    answer: Any = None

    def __getattribute__(self, name: str) -> Any:
        if name[0] != "_" and name == object.__getattribute__(self, "hook"):
            return object.__getattribute__(self, "answer")
        return object.__getattribute__(self, name)


def test_a_protocol_that_goes_wrong_is_named_with_hook_and_round() -> None:
    nothing = raising(ValueError("no"))
    for hook, answer, problem in (
        ("broadcast", nothing, "raised ValueError: no"),
        ("broadcast", lambda *_: None, "must return Payload, got None"),
        ("broadcast", lambda *_: FloatVectors(torch.zeros(3, 9)), "1 message, or 4, got 3"),
        ("receive", nothing, "raised ValueError: no"),
        ("receive", lambda *_: None, "must return dict, got None"),
        ("local_update", nothing, "raised ValueError: no"),
        ("local_update", lambda *_: None, "raised TypeError"),
        ("idle", lambda *_: None, "must return Tensor, got None"),
        ("memory", lambda *_: None, "must return dict, got None"),
        ("message", nothing, "raised ValueError: no"),
        ("message", lambda *_: None, "must return a tuple of two, got None"),
        ("message", lambda s, u, k, m: (SignBits(u > 0), m), "a SignBits; write sends = SignBits "),
        (
            "message",
            lambda s, u, k, m: (FloatVectors(u[:1]), m),
            "4 FloatVectors, one for each client, got 1",
        ),
        ("message", lambda s, u, k, m: (FloatVectors(u.double()), m), "legal messages: FloatVec"),
        ("message", lambda s, u, k, m: (FloatVectors(u[:, 0]), m), "must be (n, d) torch.float32"),
        ("message", lambda s, u, k, m: (FloatVectors(m), m), "raised StopIteration"),
        ("message", lambda s, u, k, m: (FloatVectors(u), m[1:]), "must return 4 memories"),
        ("server_step", nothing, "raised ValueError: no"),
        ("server_step", raising(SystemExit(0)), "raised SystemExit: 0"),
        ("model", lambda *_: [], "a dict of tensors, or a list of some, got a list of 0"),
        ("model", lambda *_: {"conv1": torch.ones(1)}, "the network's parameters, got ('conv1', "),
        ("event", lambda *_: 3, "must return DpEvent or None, got 3"),
    ):
        text = error_of(protocol=Odd(hook=hook, answer=answer))
        assert text.startswith(f"plug-in Odd of {HERE}: {hook} in round 0 ")
        assert problem in text, text


def test_a_server_step_that_fails_on_messages_of_another_width_says_what_message_made() -> None:
    narrow = Odd(hook="message", answer=lambda s, u, k, m: (FloatVectors(u[:, :3]), m))
    text = error_of(protocol=narrow)
    assert "server_step in round 0 raised RuntimeError" in text
    assert text.endswith("; its messages have 3 values, its updates 7376")
    raised = error_of(protocol=Odd(hook="server_step", answer=raising(ValueError("no"))))
    assert "values, its updates" not in raised  # the width is right


def test_a_mechanism_that_goes_wrong_is_named_with_hook_and_round() -> None:
    for hook, answer, problem in (
        ("on_updates", lambda u, r, k, s: u, "must return a tuple of two, got a tensor"),
        ("on_updates", lambda u, r, k, s: (u[:1], s), "must return updates ("),
        ("on_payload", lambda p, k: None, "must return FloatVectors, got None"),
        ("on_payload", lambda p, k: p.take([0]), "messages of the same form"),
        ("on_payload", lambda p, k: FloatVectors(p.x[:, 1:]), "messages of the same form"),
        ("on_aggregate", lambda a, r, v, k, s: (a[1:], s), "numbers and its state, got a tensor"),
        ("on_aggregate", raising(KeyError("x")), "raised KeyError: 'x'"),
        ("message_bits", lambda: "9", "must return int, got '9'"),
        ("event", lambda release: 3, "must return DpEvent or None, got 3"),
        ("init", raising(SystemExit(0)), "raised SystemExit: 0"),
        ("wrap_grad", lambda grad: None, "in round 0 must return a function "),
    ):
        text = error_of(mechanism=made("Leaky", Mechanism, bound(**{hook: answer})))
        assert text.startswith(f"plug-in Leaky of {HERE}: {hook}"), text
        assert problem in text, text


def test_an_error_keeps_the_round_that_it_knows_and_else_gets_that_of_the_run() -> None:
    for step, expected in ((2, 2), (0, 0), (None, 7)):
        with pytest.raises(PluginError) as caught, hooks.in_round(7):
            raise PluginError("attack a", "craft", "raised KeyError", step)
        assert caught.value.step == expected


class Dealt(Partition):
    """Gives the last of three clients other rows of ten samples than it should, at once or late."""

    def __init__(self, last: Any, late: bool) -> None:
        rows = [torch.tensor([3, 1]), torch.tensor([9, 0]), last]
        self.parts = tuple(rows) if late else rows

    def split(self, *args: Any) -> Any:
        return self.parts


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (torch.tensor([4, -1]), "rows from 0 to 9"),
        (torch.tensor([4, 10]), "rows from 0 to 9"),
        (torch.tensor([4.0]), "parts (N,) of int64"),
        (torch.tensor([4], dtype=torch.int32), "parts (N,) of int64"),
        (torch.tensor([[4]]), "parts (N,) of int64"),
        ([4], "parts (N,) of int64"),
    ],
)
def test_a_part_that_is_no_rows_of_the_pool_is_refused(last: Any, problem: str, late: bool) -> None:
    y = torch.zeros(10, dtype=torch.int64)

    def read(last: Any) -> list[Tensor]:
        return list(hooks.split(Dealt(last, late), y, 3, 10, None, None))

    with pytest.raises(PluginError, match=re.escape(f"split must return {problem}, got")):
        read(last)
    if late:
        with pytest.raises(PluginError, match="split must return rows from 0 to 9, got"):
            read(torch.tensor([], dtype=torch.int64))
    assert [part.tolist() for part in read(torch.tensor([8, 2]))] == [[3, 1], [9, 0], [8, 2]]


def test_a_trigger_is_handed_copies_and_a_gradient_of_more_than_the_tree_is_refused() -> None:
    x = torch.zeros(2, 1, 8, 8)
    y = torch.tensor([1, 2])
    writes = attack(craft=own, trigger=lambda x, y: (x.add_(1)[:1], int(y.add_(1)[0])))
    assert hooks.trigger(writes, x, y, 10, None) is not None
    assert (float(x.sum()), y.tolist()) == (0.0, [1, 2])
    more = attack(craft=own, wrap_grad=lambda grad, local: lambda tree, *_: tree | {"more": x})
    text = error_of(attack=more)
    assert "a gradient with the shapes of the tree, got ('more', a tuple of 4, None)" in text


def nothing(*_: Any) -> None:
    """Return none of what a hook must return."""


@pytest.mark.parametrize(
    ("check", "hook"),
    [
        *((lambda a: check_attack(attack(craft=own, **a), Mean()), h) for h in ("poison", "needs")),
        (lambda a: check_attack(attack(**a), Mean()), "craft"),
        (lambda a: check_attack(attack(craft=own, **a), Mean()), "wrap_grad"),
        *((lambda a: check_defense(rule(**a)), h) for h in ("aggregate", "traits", "tolerates")),
        (lambda a: check_mechanism(made("Leaky", Mechanism, a), FedAvg()), "wrap_grad"),
        (lambda a: check_mechanism(made("Leaky", Mechanism, a), FedAvg()), "on_payload"),
        (lambda a: check_protocol(Odd(hook="message", answer=nothing)), "message"),
    ],
)
def test_contract_tests_say_in_one_line_what_a_hook_must_return(check: Any, hook: str) -> None:
    text = error_of(partial(check, {hook: nothing}))
    assert f" of {HERE}: {hook} " in text
    assert "must return " in text


def float_rows(rows: Any) -> FloatVectors:
    return FloatVectors(rows)


def told(check: Callable[[], object]) -> str:
    """The one line of a contract test that fails, whoever it blames."""
    with pytest.raises((PluginError, AssertionError)) as caught:
        check()
    text = str(caught.value)
    assert len(text.splitlines()) == 1, text
    assert "Traceback" not in text
    return text


class OtherSigns(SignBits):
    """An alphabet of another package, of which `example_payloads` has no message."""


@dataclass(frozen=True, kw_only=True)
class OtherRule(TrimmedMean):
    """The trimmed mean of that alphabet alone, wrong by ``error``."""

    accepts = (OtherSigns,)

    f: int | None = 2
    error: float = 0.0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        return super().aggregate(received, state, view)[0] + self.error, None


@dataclass(frozen=True, kw_only=True)
class PassAll(Prefilter):
    """Pass all rows on, and promise one more than there are."""

    accepts = (OtherSigns,)
    mixes = False
    real = False

    def rows(self, n: int) -> int:
        return n + 1

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        return 0

    def traits(self) -> Traits:
        return Traits(detects=True, sharp=False)

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        return received, torch.arange(len(received))


def test_contract_tests_try_messages_of_another_package_and_pass_nothing_that_they_did_not() -> (
    None
):
    messages = [OtherSigns(Key(0).normal(9, 102) > 0)]
    raises = made("Hostile", Attack, bound(craft=lambda v, m: 1 / 0) | {"accepts": (OtherSigns,)})
    checks: list[tuple[Callable[..., object], str]] = [
        (partial(check_attack, raises, Mean()), "raised ZeroDivisionError"),
        (partial(check_defense, OtherRule(error=1.0)), "all rows are equal, and another one"),
        (partial(check_prefilter, PassAll(), OtherRule()), "fewer rows come out than it says"),
    ]
    for check, problem in checks:
        text = told(check)
        assert "got those of fedbench; write payloads=[...] with messages of your own" in text
        assert problem in told(partial(check, payloads=messages))
    check_defense(OtherRule(), payloads=messages)
    text = told(partial(check_defense, OtherRule(), payloads=[SignBits(torch.ones(9, 3) > 0)]))
    assert "got those of fedbench and SignBits" in text


KNOWING = {"needs": lambda: Knowledge("all", defense=True)}
MISTAKES: list[tuple[dict[str, Any], str, str]] = [
    # what craft does, what it did wrong in words, and what to do
    ({"craft": lambda v, m: v.own}, "got a FloatVectors", "write: return messages, memory"),
    ({"craft": lambda v, m: v.own.values()}, "got a tensor", "write: return messages, memory"),
    ({"craft": lambda v, m: (v.own.values(), m)}, "got a tensor", "view.own.nearest(rows) makes"),
    ({"craft": lambda v, m: (list(v.own.values()), m)}, "a list of 1", "view.own.nearest(rows)"),
    ({"craft": lambda v, m: v.defense(v.own)}, "read view.defense", "defense=True) from needs"),
    ({"craft": lambda v, m: v.state + 1}, "read view.state", "state=True) from needs"),
    ({"craft": lambda v, m: v.rehearsal.x}, "read view.rehearsal", "data=True) from needs"),
    ({"craft": lambda v, m: v.recruits.values()}, "read view.recruits", "let recruits be"),
    ({"craft": lambda v, m: (v.own, m + 1)}, "'NoneType' and 'int'", "None before its first round"),
    (KNOWING | {"craft": lambda v, m: v.defense(v.updates)}, "asked with messages", "got 'Tensor'"),
    ({"poison": lambda x, y, local: x}, "got a tensor", "write: return images, labels"),
    ({"trigger": lambda x, y: x}, "got a tensor", "None or (images, label)"),
]


def test_contract_tests_of_attacks_name_the_hook_what_was_got_and_what_to_do() -> None:
    for methods, got, remedy in MISTAKES:
        text = told(partial(check_attack, attack(**methods), Mean()))
        hook = next(name for name in methods if name != "needs")
        assert text.startswith(f"plug-in Hostile of {HERE}: {hook} "), text
        assert got in text, text
        assert remedy in text, text


def test_an_error_that_has_nothing_to_do_with_what_is_undeclared_is_left_as_it_is() -> None:
    def stumbles(view: AttackView, memory: Any) -> Any:
        assert view.defense is None
        return len(view.own) + "x"  # type: ignore[operator]

    text = told(partial(check_attack, attack(craft=stumbles), Mean()))
    said = "raised TypeError: unsupported operand type(s) for +: 'int' and 'str'"
    assert text.endswith(f"{said} ({Path(__file__).name}, line {line_number(stumbles, 2)})"), text


def calls_defense(view: Any) -> None:
    view.defense(1)


def adds_none_to_defense(view: Any) -> None:
    view.defense + None


def without_source() -> Any:
    """A function of which Python has no line."""
    names: dict[str, Any] = {}
    exec(compile("def reads(view):\n    view.rehearsal + 1", "gone.py", "exec"), names)
    return names["reads"]


def asserts_state(view: Any) -> None:
    assert view.state


def adds_to_stateful(view: Any) -> None:
    view.stateful + 1


def adds_to_its_own_state(view: Any) -> None:
    state: Any = view.stateful
    state + 1


def asserts_nothing_of_its_view(view: Any) -> None:
    assert view is None


@pytest.mark.parametrize(
    ("stumbles", "fields", "memory", "advice"),
    [
        (calls_defense, {}, None, undeclared.ATTACK["defense"]),
        (asserts_state, {}, None, undeclared.ATTACK["state"]),
        (without_source(), {}, None, undeclared.ATTACK["rehearsal"]),
        (adds_none_to_defense, {"defense": 3}, 1, ""),  # it was declared
        (adds_to_stateful, {}, 1, ""),
        (adds_to_stateful, {}, None, undeclared.FIRST),
        (adds_to_its_own_state, {}, 1, ""),
        (asserts_nothing_of_its_view, {}, None, ""),
    ],
)
def test_advice_is_of_the_undeclared_field_that_was_read_else_of_the_first_round_else_none(
    stumbles: Any, fields: dict[str, Any], memory: Any, advice: str
) -> None:
    hook = blame.Hook(attack(), "craft")
    view = SimpleNamespace(**(dict.fromkeys(undeclared.ATTACK) | {"stateful": None} | fields))
    with (
        pytest.raises(PluginError) as caught,
        undeclared.advised(hook, view, undeclared.ATTACK, memory),
        hook,
    ):
        stumbles(view)
    text = str(caught.value)
    every = (*undeclared.ATTACK.values(), undeclared.FIRST)
    assert [each for each in every if each in text] == [advice] * bool(advice)


def test_notes_and_trials_that_are_not_finite_are_texts_and_none() -> None:
    hook = blame.Hook(attack(), "craft")
    with pytest.raises(PluginError, match="must note at most 100 numbers"):
        hooks.legible_notes(hook, {"x" * 1001: 1})
    notes = {"a": float("nan"), "b": float("-inf"), "c": 0.5}
    assert hooks.legible_notes(hook, notes) == {"a": "nan", "b": "-inf", "c": 0.5}
    trials = [(1, float("inf")), (float("nan"), 2.0)]
    assert hooks.legible_trace(hook, trials) == [(1.0, None), (None, 2.0)]


def line_number(function: Any, after: int) -> int:
    """Return the number of the line that stands so many lines after a function's first."""
    return int(function.__code__.co_firstlineno) + after


def test_an_error_says_in_which_line_of_the_plug_in_it_happened() -> None:
    def craft(view: AttackView, memory: Any) -> Any:
        rows = view.own.values().numpy()
        return view.own.nearest(rows), memory  # type: ignore[arg-type]

    text = error_of(attack=attack(craft=craft))
    assert text.endswith(f" ({Path(__file__).name}, line {line_number(craft, 2)})"), text


def test_a_hook_with_other_arguments_is_shown_the_line_to_write() -> None:
    text = error_of(defense=Shorter())
    assert text.endswith("; write def aggregate(self, received, state, view)"), text
    rows = error_of(attack=attack(craft=lambda v, m: (v.own.nearest(torch.zeros(1, 3)), m)))
    assert "; view.own.nearest takes rows (1, " in rows, rows


@dataclass(frozen=True, kw_only=True)
class Shorter(Defense[None]):
    """Rule whose method lacks an argument."""

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Any, state: None) -> Any:  # type: ignore[override]
        return received, state


def test_contract_tests_of_rules_show_no_more_than_a_run_would() -> None:
    for field, trait in (("root", "root"), ("truth", "oracle"), ("network", "network")):
        reads = reader_of(field)
        text = told(partial(check_defense, rule(aggregate=reads)))
        assert f"read view.{field}, which it did not declare" in text
        assert text.endswith(f"; return Traits({trait}=True) from traits")
    text = told(partial(check_defense, rule(aggregate=lambda r, s, v: r.values().mean(dim=0))))
    assert text.endswith("; write: return answer, state")


def reader_of(field: str) -> Callable[..., Any]:
    """A rule's answer that needs this field of its view."""
    readers: dict[str, Callable[..., Any]] = {
        "root": lambda r, s, v: (v.root.values()[0], s),
        "truth": lambda r, s, v: (r.values()[v.truth.nonzero()[0]], s),
        "network": lambda r, s, v: (v.network.classes, s),
    }
    return readers[field]


class Melting(Attack):
    """Attack that is no dataclass."""

    def craft(self, view: AttackView, memory: Any) -> Any:
        return view.own, memory


@dataclass
class Molten(Melting):
    """Attack whose parameters can be written into."""


@dataclass(frozen=True)
class Bare(Melting):
    """Attack with a parameter that has no default."""

    z: float


class Undecorated(Mean):
    """Rule whose parameter is no field, because its class has no decorator."""

    c: float = 1.0


def test_contract_tests_say_what_a_plug_in_must_be() -> None:
    frozen = "write @dataclass(frozen=True, kw_only=True) above the class"
    scattered = made("Vague", Attack, bound(craft=own) | {"accepts": FloatVectors})
    odd = made("Vague", Attack, bound(craft=own) | {"choices": {"nope": (1,)}})
    voiceless = made("Silent", FedAvg, {"sends": (FloatVectors,)})
    of_attack: Any = check_attack
    of_defense: Any = check_defense
    of_prefilter: Any = check_prefilter
    for check, rule_of_form, remedy in (
        (partial(of_attack, Melting(), Mean()), "must be a frozen dataclass, got no", frozen),
        (partial(of_attack, Molten(), Mean()), "must be a frozen dataclass, got one", frozen),
        (partial(of_attack, Bare(1.0), Mean()), "a default for every field, got none", "z = "),
        (partial(of_attack, Melting, Mean()), "an instance, got a class", "write Melting()"),
        (partial(of_attack, Mean(), Mean()), "given an attack, got a Mean", "inherit Attack"),
        (partial(of_attack, SignFlip(), None), "given a defense, got None", "inherit Defense"),
        (partial(of_attack, scattered, Mean()), "accepts must be a tuple", "(FloatVectors,)"),
        (partial(of_attack, odd, Mean()), "choices must name fields, got 'nope'", "fields: "),
        (partial(of_defense, TrimmedMean()), "given an f, got TrimmedMean.f = None", "(f=2)"),
        (partial(of_defense, Undecorated()), "parameters as fields, got 'c'", frozen),
        (partial(of_defense, Mean), "an instance, got a class", "write Mean()"),
        (partial(check_protocol, voiceless), "sends must be a type of messages", "sends = "),
        (partial(of_prefilter, Mean(), Mean()), "a prefilter, got a Mean", "inherit Prefilter"),
    ):
        text = told(check)
        assert rule_of_form in text, text
        assert remedy in text, text


def test_contract_tests_of_protocols_and_mechanisms_blame_the_hook_that_was_wrong() -> None:
    def protocol(**hooks: Any) -> Any:
        return made("Odd", FedAvg, bound(**hooks))

    def mechanism(**hooks: Any) -> Any:
        return made("Leaky", Mechanism, bound(**hooks))

    double = lambda s, u, k, m: (float_rows(u.double()), m)  # noqa: E731
    for check, problem in (
        (partial(check_protocol, protocol(message=double)), "message must return legal messages"),
        (partial(check_protocol, protocol(init=nothing)), "init must return the server's state"),
        (
            partial(check_protocol, protocol(steps_taken=lambda batches: 9)),
            "steps_taken must return 1 to 5 of 5 batches",
        ),
        (
            partial(check_protocol, protocol(steps_taken=lambda batches: 2)),
            "steps_taken must return >= 5, the gradients that 5 batches give",
        ),
        (
            partial(check_protocol, made("Odd", SignSGD, bound(symbols_sent=lambda shared: 1))),
            "symbols_sent must return >= 102, the bits of a message",
        ),
        (
            partial(check_protocol, protocol(server_step=nothing)),
            "server_step must return the",
        ),
        (
            partial(check_protocol, protocol(local_update=lambda t, *_: t)),
            "write: return tree, mem",
        ),
        (partial(check_protocol, protocol(local_update=lambda t, *_: ({}, {}))), "return conv1 of"),
        (
            partial(check_protocol, protocol(local_update=lambda t, *_: (t, None))),
            "a memory of tensors",
        ),
        (partial(check_protocol, protocol(memory=lambda s: [])), "memory must return a dict of"),
        (partial(check_protocol, protocol(receive=nothing)), "receive must return a dict of"),
        (partial(check_protocol, protocol(broadcast=nothing)), "broadcast must return Payload"),
        (partial(check_protocol, protocol(idle=nothing)), "idle must return Tensor, got None"),
        (
            partial(check_mechanism, mechanism(wrap_grad=lambda g: nothing), FedAvg()),
            "wrap_grad must return a function whose answer is a dict of tensors, got None",
        ),
        (
            partial(check_mechanism, mechanism(on_updates=lambda u, *_: u), FedAvg()),
            "write: return updates, state",
        ),
        (
            partial(check_mechanism, mechanism(misfit=lambda *_: False), FedAvg()),
            "misfit must return str or None, got False",
        ),
        (
            partial(check_mechanism, made("Leaky", Mechanism, {"unit": "row"}), FedAvg()),
            "unit must be client or example, got 'row'",
        ),
        (
            partial(check_mechanism, made("Leaky", Mechanism, {"knob": ("z", 1, 2)}), FedAvg()),
            "knob must name fields, got 'z'",
        ),
    ):
        text = told(check)
        assert text.startswith(("plug-in Odd of ", "plug-in Leaky of ")), text
        assert problem in text, text


def test_contract_tests_see_what_is_no_function_of_one_client_and_what_was_written_into() -> None:
    fedavg = FedAvg()

    def counting(tree: Any, batches: Any, grad: Any, key: Any, memory: Any) -> Any:
        memory["rounds"].add_(1)
        return fedavg.local_update(tree, batches, grad, key, memory)

    def coupled(shared: Any, updates: Any, keys: Any, memory: Any) -> Any:
        return float_rows(updates - 0.1 * updates.mean(dim=0)), memory

    def doubled(shared: Any, updates: Any, keys: Any, memory: Any) -> Any:
        return float_rows(updates.mul_(2)), memory

    def moved(shared: Any, state: Any, aggregate: Any, n: int, key: Any) -> Any:
        return state.copy_(aggregate)

    def scaled(shared: Any, state: Any, aggregate: Any, n: int, key: Any) -> Any:
        return fedavg.server_step(shared, state, aggregate.mul_(2), n, key)

    def drawn(shared: Any) -> Any:
        return fedavg.init(shared) + torch.rand(())

    def blurred(shared: Any, state: Any, clients: Any, key: Any) -> Any:
        return float_rows(state[None] + torch.rand(()))

    def drifting(shared: Any, state: Any, aggregate: Any, n: int, key: Any) -> Any:
        return fedavg.server_step(shared, state, aggregate + torch.rand(()), n, key)

    def median(updates: Any, reference: Any, keys: Any, state: Any) -> Any:
        y = (updates - reference).nan_to_num(0)
        norms = y.norm(dim=1, keepdim=True)
        return reference + y * (norms.median() / norms.clamp_min(1e-9)).clamp_max(1), state

    remembers = {"memory": lambda shared: {"rounds": torch.zeros(1)}}
    for methods, problem in (
        (remembers | {"local_update": counting}, "local_update wrote into its tree or its memory"),
        ({"message": coupled}, "a client's message depends on others"),
        ({"message": doubled}, "message wrote into its updates or its memories"),
        ({"server_step": moved}, "server_step wrote into the state that it was handed"),
        ({"server_step": scaled}, "server_step wrote into the aggregate"),
        ({"server_step": drifting}, "server_step is not a function of what it is handed"),
        ({"broadcast": blurred}, "broadcast is not a function of its key"),
        ({"init": drawn}, "init is not a function of what it is handed"),
    ):
        assert problem in told(partial(check_protocol, made("Odd", FedAvg, bound(**methods))))
    clipping = made("Leaky", Mechanism, bound(on_updates=median))
    assert "depends on others" in told(partial(check_mechanism, clipping, fedavg))


def test_a_contract_test_names_the_trait_that_is_wrong() -> None:
    def weighing(received: Any, state: Any, view: Any) -> Any:
        x = received.values().double()
        weights = 1 / (1 + x.norm(dim=1))
        return weights @ x / weights.sum(), state

    def sorting(received: Any, state: Any, view: Any) -> Any:
        view.findings.kept = torch.ones(len(received), dtype=torch.bool)
        return received.values().double().mean(dim=0), state

    def counting(received: Any, state: Any, view: Any) -> Any:
        return received.values().double().mean(dim=0), torch.ones(1)

    def drawing(received: Any, state: Any, view: Any) -> Any:
        mean = received.values().double().mean(dim=0)
        return mean + 1e-3 * view.key.normal(len(mean)), state

    for aggregate, trait in (
        (weighing, "shift=False"),
        (sorting, "detects=True"),
        (counting, "history=True"),
        (drawing, "randomized=True"),
    ):
        hooks = bound(aggregate=aggregate, tolerates=lambda n: 0)
        text = told(partial(check_defense, made("Odd", Defense, hooks)))
        assert text.endswith(f"a method traits() that returns Traits({trait}), or mend the rule")


@contextmanager
def interrupts(handler: Any) -> Iterator[None]:
    """Ctrl-C is handled so, whatever CI does with it."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_only_a_ctrl_c_that_nobody_can_have_pressed_is_the_plug_in_s() -> None:
    interrupted = attack(craft=raising(KeyboardInterrupt()))
    with interrupts(signal.default_int_handler), pytest.raises(KeyboardInterrupt):
        played(attack=interrupted)
    with interrupts(signal.SIG_IGN):  # as in the workers of a sweep
        text = error_of(attack=interrupted)
    assert " raised KeyboardInterrupt (" in text


def test_advice_to_the_user_from_a_round_names_its_plug_in_and_misfits_nobody() -> None:
    advice = ConfigError("Pixel.size must be less")
    with pytest.raises(ConfigError, match=r"^Pixel\.size must be less$"):
        ask(attack(needs=raising(advice)), "needs", Knowledge)
    text = error_of(attack=attack(craft=raising(advice)))
    assert text.startswith(f"plug-in Hostile of {HERE}: craft in round 0 for client ")
    assert " raised ConfigError: Pixel.size must be less (" in text
    for hook in ("init", "aggregate"):
        misfit = rule(**{hook: raising(errors.Incompatible("misfit"))})
        with pytest.raises(PluginError) as caught:
            played(defense=misfit)
        text = str(caught.value)
        start = f"plug-in Crooked of {HERE}: {hook} in round 0 raised Incompatible: misfit ("
        assert text.startswith(start)
        failure = crash(caught.value)
        assert (failure.kind, failure.message) == ("user", text)


def test_a_rule_that_writes_into_what_ready_is_shown_spoils_nothing() -> None:
    shown: list[ServerView] = []

    def ready(view: ServerView) -> bool:
        view.broadcast.values().fill_(torch.nan)
        view.weights.zero_()
        return True

    def aggregate(received: FloatVectors, state: Any, view: ServerView) -> Any:
        shown.append(view)
        return received.x.mean(dim=0), state

    played(defense=rule(ready=ready, aggregate=aggregate))
    assert shown
    assert all(bool(view.broadcast.values().isfinite().all()) for view in shown)
    assert all(float(view.weights.sum()) > 0 for view in shown)


def test_what_is_legal_stays_legal() -> None:
    for craft in (
        lambda v, m: ([b""], m),
        lambda v, m: (FloatVectors(v.updates * torch.nan), "anything, it is handed back"),
        lambda v, m: (v.compress(v.trained), threading.Lock()),
        noting({"a": float("nan"), "b": True, "c": "word", "d": -(2**62)}),
        tracing((1, 2.0), (float("inf"), 0.0)),
    ):
        played(attack=attack(craft=craft))
    played(attack=attack(poison=lambda x, y, local: (x[:2], y[:2])))
    played(attack=attack(wrap_grad=diverging))
    played(defense=rule(aggregate=lambda r, s, v: (r.x.double()[0] * torch.nan, threading.Lock())))


def attacked(setup: Setup, **changes: Any) -> tuple[Setup, RunState]:
    """The setup called by the name of an attack, and the state before its first round."""
    scenario = setup.scenario.model_copy(update={"attack": "sign-flip"} | changes)
    setup = dataclasses.replace(setup, scenario=scenario)
    return setup, RunState(setup.plugins.protocol.init(setup.shared))


def doubts(**plugins: Any) -> list[str]:
    setup, state = attacked(changed(**plugins))
    with hooks.in_round(0):
        played_round = play_round(setup, state, 0)
    return build_record(setup, state, [played_round], 1.0).flags


def test_an_attack_whose_messages_do_not_arrive_is_flagged_over_the_rounds_of_the_attack() -> None:
    # The rounds in which it acts have 4 malicious messages: 4, 3 and 2 of them are rejected.
    every, most = (f"{share} malicious messages were rejected" for share in ("all", "most"))
    for hooks_ in (
        {"craft": lambda v, m: (FloatVectors(v.updates * torch.nan), m)},
        {"craft": lambda v, m: ([b"x"], m)},
        {"wrap_grad": diverging},
    ):
        assert every in doubts(attack=attack(**hooks_))
    assert not {every, most} & set(doubts(attack=SignFlip()))
    setup, state = attacked(prepared(), attack_from=1)
    first = play_round(setup, state, 0)
    for rejected, flags in ((2, [every]), (1, [most]), (0, [])):
        rounds = [
            dataclasses.replace(first, step=step, malicious=malicious, rejected_malicious=count)
            for step, (malicious, count) in enumerate([(4, 4), (2, 2), (2, rejected)])
        ]
        record = build_record(setup, state, rounds, 1.0)
        assert [text for text in record.flags if "were" in text] == flags


def test_a_rule_that_answers_nan_is_scored_and_flagged() -> None:
    def ruined(received: FloatVectors, state: Any, view: ServerView) -> Any:
        answer = received.x.mean(dim=0)
        answer[0], answer[1] = torch.nan, torch.inf
        return answer, state

    flag = "the rule answered NaN or infinity in some rounds"
    assert flag in doubts(defense=rule(aggregate=ruined))
    assert flag not in doubts(defense=Mean())
    setup = changed(defense=rule(aggregate=ruined))
    played_round = play_round(*attacked(setup), 0)
    assert played_round.findings == {"not_finite": 2}
    assert played_round.accuracy == 0.0


PACKAGE = """
import sys
from dataclasses import dataclass
from fedbench.api import Attack, Defense
from fedbench.models.models import Model


@dataclass(frozen=True)
class Liar(Attack):
    'Raise, or say nothing.'

    how: str = "exit"

    def needs(self):
        return None if self.how == "needs" else super().needs()

    def craft(self, view, memory):
        if self.how == "exit":
            sys.exit(0)
        raise RuntimeError("lied")

    def __post_init__(self):
        if self.how == "init":
            raise LookupError("not today")


@dataclass(frozen=True)
class Shy(Defense):
    'Know nothing of itself.'

    def tolerates(self, n):
        return 0

    def traits(self):
        sys.exit(0)

    def aggregate(self, received, state, view):
        return received.values()[0], state


@dataclass
class Loose(Attack):
    'Not frozen.'


@dataclass(frozen=True, kw_only=True)
class Bare(Attack):
    'A field without a default.'

    z: float


@dataclass(frozen=True)
class Hollow(Model):
    'No network.'

    def build(self, image, classes):
        return None

INSTANCE = Liar()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    attacks = {"liar": "Liar", "loose": "Loose", "no-attack": "Defense", "made": "INSTANCE"}
    attacks["bare"] = "Bare"
    points = {
        "attacks": [f"{name} = liars:{found}" for name, found in attacks.items()],
        "defenses": ["shy = liars:Shy"],
        "models": ["hollow = liars:Hollow"],
        "datasets": ["pool = liars:INSTANCE"],
    }
    points["attacks"].append("leaver = leaving:Attack")
    moody.package(tmp_path, "liars", points, liars=PACKAGE, leaving="import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._points.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    registry._points.cache_clear()


@pytest.mark.usefixtures("package")
def test_of_all_that_is_installed_what_is_broken_is_skipped_and_what_is_named_is_an_error() -> None:
    fields = {name: (getattr(SMALL, name),) for name in ("model", "clients", "per_round")}
    cells, skipped = Grid(fields | {"attack": ("installed",)}).cells()
    assert "sign-flip" in [cell.attack for cell in cells]
    reasons = {cell.attack: cell.reason for cell in skipped}
    assert "(SystemExit: 0)" in reasons["leaver"]
    with pytest.raises(UnknownPluginError, match="leaver"):
        Grid(fields | {"attack": ("sign-flip", "leaver")}).cells()
    with pytest.raises(PluginError, match="needs must return Knowledge"):
        Grid(fields | {"attack": ("sign-flip", "liar:how=needs")}).cells()


def line_of(error: type[Exception], **changes: Any) -> str:
    with pytest.raises(error) as caught:
        fedbench.play(SMALL.model_copy(update=changes), device="cpu", executor="loop")
    (text,) = str(caught.value).splitlines()
    return text


@pytest.mark.usefixtures("package")
def test_a_plug_in_is_called_by_its_kind_name_and_package() -> None:
    name = "attack liar (package liars 1.0): "
    exits = line_of(PluginError, attack="liar")
    assert exits.startswith(name + "craft in round 0 for client ")
    assert exits.endswith(" raised SystemExit: 0 (liars.py, line 19)")
    at = " (liars.py, line"
    hollow = "model hollow (package liars 1.0): build must return Network, got None"
    for kind, plugin, line in (
        ("attack", "liar:how=needs", name + "needs must return Knowledge, got None"),
        ("attack", "liar:how=init", f"{name}__init__ raised LookupError: not today{at} 24)"),
        ("defense", "shy", f"defense shy (package liars 1.0): traits raised SystemExit: 0{at} 35)"),
        ("model", "hollow", hollow),
    ):
        assert line_of(PluginError, **{kind: plugin}) == line


@pytest.mark.usefixtures("package")
def test_what_exits_at_its_import_or_is_of_another_kind_is_no_plug_in() -> None:
    left = "Scenario.attack 'leaver' cannot be imported from leaving:Attack (SystemExit: 0)"
    assert line_of(UnknownPluginError, attack="leaver").startswith(left)
    for name in ("loose", "no-attack", "made"):
        requirement = "must be a frozen dataclass that inherits fedbench.api:Attack"
        assert requirement in line_of(UnknownPluginError, attack=name)
    for kind, name, remedy in (
        ("attack", "loose", "got liars:Loose; write @dataclass(frozen=True)"),
        ("attack", "made", "got liars:INSTANCE; repair that package"),
        ("attack", "bare", "for every field, got none for 'z'; write z = ..., so that the command"),
        ("dataset", "pool", "that package, or give it to fedbench.Scenario(dataset=...) in Python"),
    ):
        assert remedy in line_of(UnknownPluginError, **{kind: name})
    assert registry.load("attack", "bare:z=2").z == 2


@pytest.mark.usefixtures("package")
def test_all_plug_ins_of_a_kind_are_those_that_can_be_imported() -> None:
    with pytest.warns(UserWarning, match="^--attack ") as warned:
        attacks = fedbench.plugins("attack")
    lines = [str(warning.message) for warning in warned]
    assert [line.split()[1] for line in lines] == ["'leaver'", "'loose'", "'made'", "'no-attack'"]
    assert "cannot be imported" in lines[0]
    assert "(SystemExit: 0)" in lines[0]
    assert "liar" in attacks
    assert not {"leaver", "loose"} & attacks.keys()


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "arguments",
    [["attack", "-a", "leaver"], ["show", "leaver"], ["show", "shy"], ["list", "attacks"]],
)
def test_a_plug_in_s_exit_is_not_ours(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    out, err = capsys.readouterr()
    if arguments[0] == "list":
        assert ended.value.code == 0
        assert "(SystemExit: 0)" in out.replace("\n", " ")
        return
    assert ended.value.code == 2
    assert "SystemExit: 0" in err
    assert len(err.splitlines()) == 1


def test_an_error_of_a_plug_in_travels_between_processes_and_keeps_its_traceback() -> None:
    with pytest.raises(PluginError) as caught:
        played(attack=attack(craft=raising(KeyError("x"))))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    failure = crash(caught.value)
    assert (failure.kind, failure.error) == ("crash", "PluginError")
    assert failure.message == str(caught.value)
    assert "KeyError: 'x'" in failure.traceback
    assert "in hook" in failure.traceback


def test_lack_of_memory_is_named_and_texts_and_tensors_are_shown_briefly() -> None:
    for error, kind in ((MemoryError("10 TiB"), "memory"), (errors.Unavailable("no"), "machine")):
        with pytest.raises(PluginError) as caught:
            played(defense=rule(aggregate=raising(error)))
        assert crash(caught.value).kind == kind
    failure = crash(ValueError("x" * 10**6))
    assert len(failure.message) <= blame.MAX_MESSAGE
    assert len(failure.traceback) < 110_000
    assert crash(Unreadable()).message == "(its message cannot be read)"
    grown: Tensor = torch.zeros(2)
    assert blame.shown(grown) == "a tensor (2,) of torch.float32"
    assert blame.shown(Unreadable()) == "a Unreadable"
