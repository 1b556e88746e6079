"""Attacks and rules in processes of their own: the same numbers, and nothing but what they see."""

import copy
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.api import ServerView
from fedbench.core import registry
from fedbench.core.errors import ConfigError, FedbenchError, Incompatible, PluginError
from fedbench.core.rng import Key
from fedbench.experiment.record import Record, parse
from fedbench.experiment.scenario import Scenario
from fedbench.isolation.host import Child, Kept, environment
from fedbench.isolation.plain import NotPlainError, read, write
from fedbench.isolation.stand_ins import Isolation
from fedbench.leaderboard.replays import guarded
from fedbench.payload import FloatVectors, SignBits, identical
from fedbench.run import play
from fedbench.sweeps.local import Options

Install = Callable[[str, dict[str, str]], dict[str, str]]
SMALL = Scenario(model="micro", clients=12, per_round=9, malicious=0.3, rounds=3, epochs=1)


def run(executor: Any = "auto", isolate: bool = True, **changes: Any) -> Record:
    scenario = SMALL.model_copy(update=changes)
    return play(scenario, device="cpu", executor=executor, isolate=isolate)


# Plug-ins that look for what they were not shown, and tell it in their notes.
SPIES = '''
import gc
import os
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from fedbench.api import Attack, Defense, Traits
from fedbench.isolation.plain import write
from fedbench.experiment.scenario import Scenario


def heap():
    """What can be walked to from here: tensors, scenarios and texts that name a seed."""
    things = gc.get_objects()
    seen = {id(thing) for thing in things}
    for thing in things:  # which grows
        for other in gc.get_referents(thing):
            if id(other) not in seen:
                seen.add(id(other))
                things.append(other)
    return things


@dataclass(frozen=True, kw_only=True)
class Spy(Attack):
    """Look for messages of others and for the scenario."""

    def craft(self, view, memory):
        width = view.updates.shape[1]
        things = heap()
        tensors = [thing for thing in things if isinstance(thing, torch.Tensor)]
        matrices = [x for x in tensors if x.ndim == 2 and x.shape[1] == width]
        rows = {tuple(row[:5].tolist()) for x in matrices for row in x}
        shown = torch.cat([view.own.x, view.updates, view.idle, view.broadcast.x])
        mine = {tuple(row[:5].tolist()) for row in shown}
        view.notes["rows"] = len(rows - mine - {(0.0,) * 5})
        view.notes["scenarios"] = sum(isinstance(thing, Scenario) for thing in things)
        words = " ".join([*sys.argv, *os.environ, *os.environ.values()])
        view.notes["told"] = any(word in words for word in ("987654321", "spy"))
        return view.own, memory


@dataclass(frozen=True, kw_only=True)
class Odd(Attack):
    """Do what its parameter says."""

    how: str = "raise"

    def craft(self, view, memory):
        match self.how:
            case "raise": raise ZeroDivisionError("odd today")
            case "exit": sys.exit(0)
            case "gone": os._exit(3)
        if self.how in ("half", "junk"):  # answer in the place of the program that called us
            (pipe,) = [thing for thing in gc.get_objects() if isinstance(thing, Connection)]
            half = write({"is": "done", "value": {"sent": [], "notes": {}}})
            pipe.send_bytes(half if self.how == "half" else b"junk, and more of it")
        if self.how == "object":
            return object(), memory
        if self.how.startswith("/"):
            Path(self.how).write_text(str(os.getpid()))
            while True:
                pass
        return view.own, object()  # a memory of any kind stays where it is


@dataclass(frozen=True, kw_only=True)
class Turned(Attack):
    """Train the other way round."""

    def wrap_grad(self, grad, local):
        return lambda *given: {name: -g for name, g in grad(*given).items()}


@dataclass(frozen=True, kw_only=True)
class Rule(Defense):
    """The mean, and how many scenarios it can walk to."""

    def traits(self):
        return Traits(mean_at_zero=True)

    def tolerates(self, n):
        return 0

    def aggregate(self, received, state, view):
        view.findings.notes["scenarios"] = sum(isinstance(t, Scenario) for t in heap())
        return received.values().mean(dim=0), {"rounds": object()}
'''
PLUGINS = {"spy": "Spy", "odd": "Odd", "turned": "Turned", "rule-spy": "Rule"}


def test_what_another_distribution_brings_is_replayed_in_a_process_without_words_of_the_run(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(SPIES, PLUGINS)
    names = {"attack": ("spy", "alie:z=1"), "defense": ("nnm:f=1+rule-spy", "nnm+multi-krum:f=2")}
    for kind, (theirs, ours) in names.items():
        assert (registry.is_foreign(kind, theirs), registry.is_foreign(kind, ours)) == (True, False)
    scenario = Scenario(attack="alie", defense="nnm+multi-krum", per_round=20)
    assert not guarded(Options(), [scenario]).isolate
    assert guarded(Options(isolate=True), [scenario]).isolate
    for other in ({"attack": "spy"}, {"defense": "nnm+rule-spy"}):
        assert guarded(Options(), [scenario, scenario.model_copy(update=other)]).isolate
    monkeypatch.setenv("SECRET_SEED", "987654321")
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    passed = environment()
    assert "SECRET_SEED" not in passed
    assert passed["MKL_CBWR"] == "COMPATIBLE"  # it changes how products are rounded
    assert passed["CUDA_VISIBLE_DEVICES"] == ""


def test_plain_values_and_messages_of_the_expected_form_come_back_as_they_were() -> None:
    tensors = [
        torch.tensor([[1.5, float("nan")], [float("inf"), -0.0]]),
        torch.tensor([1, -2], dtype=torch.int16),
        torch.tensor([True, False]),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.empty(0, 3, dtype=torch.float64),
    ]
    value = {"a": [1, (None, 0.1, "ä", b"\x00")], 2: tensors, "n": -(1 << 80)}
    result = read(write(value))
    assert (result["a"], result["n"]) == (value["a"], value["n"])
    for x, y in zip(result[2], tensors, strict=True):
        assert (x.dtype, x.shape) == (y.dtype, y.shape)
        assert torch.equal(x.isnan(), y.isnan())
        assert torch.equal(x.nan_to_num(7), y.nan_to_num(7))
    assert read(write(tensors[0])).data_ptr() != tensors[0].data_ptr()
    form, sent = FloatVectors(torch.zeros(1, 4)), FloatVectors(torch.ones(2, 4))
    result = read(write({"sent": sent}), form)["sent"]
    assert identical(result, sent)
    for other, wanted in ((None, "none"), (SignBits(torch.zeros(1, 4, dtype=torch.bool)), "Sign")):
        with pytest.raises(NotPlainError, match=f"must be {wanted}.*, got FloatVectors"):
            read(write(sent), other)
    bits = write(torch.tensor([True, False]))
    foreign = read(bits[:-2] + b"\x02\x00")  # no byte that torch writes for True
    assert foreign.view(torch.uint8).tolist() == [1, 0]


def test_what_is_not_plain_does_not_travel_and_bytes_that_are_nothing_are_refused() -> None:
    for value in (object(), lambda: 0, {1, 2}, [Path("a")], torch.zeros(1, dtype=torch.complex64)):
        with pytest.raises(NotPlainError):
            write(value)
    whole = write({"x": torch.arange(6).reshape(2, 3), "b": b"abc"})
    for cut in range(len(whole)):
        with pytest.raises(NotPlainError):
            read(whole[:cut])
    with pytest.raises(NotPlainError, match="left"):
        read(whole + b"0")
    heads = (
        b'{"tree": {"tensor": ["int64", [9], 0]}, "sizes": [0]}',
        b'{"tree": {"tensor": ["int64", [-1, -1], 0]}, "sizes": [0]}',
        b'{"tree": {"tensor": ["object", [1], 0]}, "sizes": [0]}',
        b'{"tree": {"tensor": ["int64", [0, 1e300, 1180591620717411303424], 0]}, "sizes": [0]}',
        b'{"tree": {"bytes": 7}, "sizes": []}',
        b'{"tree": {"class": "os.system"}, "sizes": []}',
        b'{"tree": [1], "sizes": []}',
        b'{"tree": {"list": 3}, "sizes": []}',
        b'{"tree": {"dict": [[{"list": []}, 1]]}, "sizes": []}',
        b'{"sizes": [-1], "tree": 1}',
        b"[" * 100_000,
    )
    for head in heads:
        with pytest.raises(NotPlainError):
            read(len(head).to_bytes(8, "little") + head)


SAME = [
    {"attack": "alie", "defense": "nnm+multi-krum"},
    {"attack": "dyn-opt", "defense": "multi-krum"},
    {"attack": "label-flip", "defense": "centered-clipping"},
    {"attack": "mimic", "defense": "foolsgold"},
    {"attack": "pga", "defense": "fltrust"},
    {"attack": "pixel", "defense": "oracle+trimmed-mean"},
    {"attack": "pixel", "defense": "deepsight:samples=8,seeds=1"},
    {"attack": "a3fl:steps=2"},
    {"attack": "iba:epochs=1,ready=0"},
    {"attack": "chameleon"},
    {"attack": "malformed", "defense": "dnc"},
    {"attack": "rank-reversal:voters=all", "protocol": "fsl"},
    {"attack": "mask-alie", "protocol": "fedpm", "defense": "bucketing+median"},
    {"attack": "stat-opt", "protocol": "eden", "defense": "trimmed-mean"},
    {"attack": "opt-ipm", "protocol": "pbm", "server_checks": "range"},
    {"attack": "none", "protocol": "signsgd"},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", SAME, ids=lambda c: "-".join(c.values()))
def test_an_isolated_run_has_the_same_record(changes: dict[str, str]) -> None:
    wraps = ("pga", "neurotoxin", "chameleon", "iba:epochs=1,ready=0")
    executor = "loop" if changes["attack"] in wraps else "auto"
    plain, apart = (run(executor, isolate, **changes) for isolate in (False, True))
    assert apart.measured() == plain.measured()
    assert any(r.malicious for r in plain.rounds)


@pytest.mark.slow
def test_an_isolated_attack_says_whose_code_it_may_run_so_the_id_is_the_same(
    install: Install,
) -> None:
    """`auto` tries the attacks of other packages, too: their files are in the id of its runs."""
    install(SPIES, {"turned": "Turned"})
    changes: dict[str, Any] = {"attack": "auto:budget=4", "rounds": 1}
    plain, apart = (run("loop", isolate, **changes) for isolate in (False, True))
    assert [source.module for source in plain.sources] == ["outsider"]
    assert apart.id == plain.id
    assert apart.sources == plain.sources


@pytest.mark.slow
def test_an_isolated_plugin_finds_nothing_that_it_was_not_shown(install: Install) -> None:
    install(SPIES, PLUGINS)
    changes: dict[str, Any] = {"attack": "spy", "defense": "rule-spy", "rounds": 1}
    changes["seed"] = 987654321
    (apart,) = run(**changes).rounds
    assert "outsider" not in sys.modules  # this process has not run a line of it
    assert apart.notes == {"rows": 0, "scenarios": 0, "told": False}
    assert apart.findings["scenarios"] == 0
    (here,) = run(isolate=False, **changes).rounds
    assert "outsider" in sys.modules
    assert here.malicious, "or this says nothing"
    assert int(here.notes["rows"]) >= 9 - 1  # every other message, at least
    assert int(here.notes["scenarios"]) > 0 < int(here.findings["scenarios"])


HIDING = """
import io
import os
import sys
import tempfile
from fedbench.isolation.files import open_no_data

path = sys.argv[1]

class Changing(os.PathLike):
    asked = 0
    def __fspath__(self):
        self.asked += 1
        return path if self.asked == 1 else os.devnull

class Text(str):
    def __getitem__(self, places):
        return Text(os.devnull)

def elsewhere():
    os.chdir(os.path.dirname(os.__file__))  # where the same path leads to a file beside code
    return os.open("../" + path[1:], os.O_RDONLY, dir_fd=os.open("/dev", os.O_RDONLY))

open_no_data()
for way in (
    lambda: os.open(path, os.O_RDONLY | os.O_EXCL),  # one without the other opens what is there
    lambda: os.open(path, os.O_RDONLY | os.O_CREAT),
    lambda: io.FileIO(Changing()),
    lambda: open(Text(path)),
    elsewhere,
):
    try:
        way()
        print("opened")
    except PermissionError:
        print("refused")
tempfile.mkstemp(dir=os.path.dirname(path))
open(path + ".new", "x")
"""


def test_a_file_has_one_name_for_the_hook_and_for_the_system(tmp_path: Path) -> None:
    data = tmp_path / "labels.txt"
    data.write_text("7")
    line = [sys.executable, "-c", HIDING, str(data)]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused"] * 5
    assert len(list(tmp_path.iterdir())) == 3  # files that are made now


READER = """
from dataclasses import dataclass
from pathlib import Path
import os
import socket
import sqlite3
import subprocess
import numpy as np
from sklearn.datasets import load_digits
from fedbench.api import Attack

@dataclass(frozen=True, kw_only=True)
class Reader(Attack):
    how: str = "digits"

    def craft(self, view, memory):
        if self.how == "digits":
            load_digits()
        elif self.how == "file":
            np.load(Path(__file__).with_name("answers.npy"))
        elif self.how == "dataset":
            from fedbench.experiment.prepare import load_pool
            load_pool("mnist-5k")
        elif self.how == "renamed":
            os.link(Path(__file__), Path(__file__).with_name("other.py"))
        elif self.how == "memory":
            open(f"/proc/{os.getppid()}/mem", "rb")
        elif self.how == "database":
            sqlite3.connect(":memory:")
        elif self.how == "network":
            socket.create_connection(("127.0.0.1", 9))
        elif self.how == "program":
            subprocess.run(["cat", "/etc/hostname"])
        return view.own, memory
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    ["digits", "file", "dataset", "network", "program", "renamed", "memory", "database", "nothing"],
)
def test_an_isolated_plugin_cannot_read_the_test_data(how: str, install: Install) -> None:
    install(READER, {"reader": "Reader"})
    if how == "nothing":
        assert run(attack="reader:how=nothing", rounds=1).result.accuracy > 0
        return
    with pytest.raises(PluginError, match=r"an isolated plug-in must (open no data|compute only)"):
        run(attack=f"reader:how={how}", rounds=1)


@pytest.mark.slow
def test_the_command_isolates_in_its_workers(install: Install, tmp_path: Path) -> None:
    given = install(SPIES, PLUGINS)
    command = [sys.executable, "-m", "fedbench", "attack", "--isolate", "--attack", "spy"]
    command += ["--model", "micro", "--clients", "8", "--per-round", "6", "--rounds", "1"]
    command += ["--malicious", "0.5", "--seeds", "987654321", "--device", "cpu", "--workers", "1"]
    done = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "results").glob("*-spy-*.json")
    (result,) = parse(path.read_bytes(), path.name).rounds
    assert result.malicious
    assert result.notes == {"rows": 0, "scenarios": 0, "told": False}


@pytest.mark.slow
def test_what_goes_wrong_in_a_child_or_its_fork_is_an_error_here(install: Install) -> None:
    rules = {"rule-peeking": "Peeking", "rule-mute": "Mute"}
    install(SPIES + COMPARING, PLUGINS | rules)
    with pytest.raises(PluginError, match="ended its process with exit code 5 in aggregate"):
        run(defense="rule-peeking:where=nowhere", attack="sign-flip")
    described = "(package outsider 1.0) must answer its description in full, got text"
    with Isolation() as isolation, pytest.raises(FedbenchError, match=re.escape(described)):
        isolation.load("defense", "rule-mute")
    cases = [
        ("raise", "raised ZeroDivisionError: odd today"),
        ("exit", "SystemExit"),
        ("gone", "ended its process with exit code 3 in craft"),
        ("half", "must answer craft in full, got sent, notes"),
        ("junk", "must return plain values from craft"),
        ("object", "a object cannot leave its process"),
    ]
    named = re.escape("attack odd (package outsider 1.0): craft in round 0 for client")
    for how, words in cases:
        with pytest.raises(PluginError, match=f"{named} .*{words}"):
            run(attack=f"odd:how={how}")
    assert run(attack="odd:how=keeps")


PICKY = """
from dataclasses import dataclass
from fedbench.api import Attack, Defense, Knowledge

@dataclass(frozen=True, kw_only=True)
class Picky(Defense):
    def tolerates(self, n):
        return 0

    def aggregate(self, received, state, view):
        raise ZeroDivisionError("picky today")

@dataclass(frozen=True, kw_only=True)
class Grouped(Attack):
    def craft(self, view, memory):
        raise ExceptionGroup("several", [ValueError("one")])

@dataclass(frozen=True, kw_only=True)
class Catching(Attack):
    def needs(self):
        return Knowledge("all", defense=True)

    def craft(self, view, memory):
        try:
            view.defense(view.own)
        except Exception:
            raise ValueError("my own") from None
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_a_rule_that_fails_when_an_attack_asks_it_is_blamed_itself(
    isolate: bool, install: Install
) -> None:
    install(PICKY, {"rule-picky": "Picky", "grouped": "Grouped", "catching": "Catching"})
    blamed = r"^defense rule-picky \(.*\): aggregate in round 0 raised ZeroDivisionError: picky"
    with pytest.raises(PluginError, match=blamed):
        run(attack="dyn-opt", defense="rule-picky", isolate=isolate)
    with pytest.raises(PluginError, match=r"^attack catching .*raised ValueError: my own"):
        run(attack="catching", defense="rule-picky", isolate=isolate)
    with pytest.raises(PluginError, match=r"raised .*ExceptionGroup: several"):
        run(attack="grouped", isolate=isolate)


TABULAR = """
from dataclasses import dataclass
from fedbench.api import Attack

@dataclass(frozen=True, kw_only=True)
class Tabular(Attack):
    works_on = ("numbers", "ids")

    def poison(self, xs, ys, local):
        return 2 * xs, ys
"""


@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
def test_an_attack_on_other_samples_is_refused_in_both_kinds_of_process(
    isolate: bool, install: Install
) -> None:
    install(TABULAR, {"tabular": "Tabular"})
    refusal = "attack tabular must have samples of kind numbers or ids, got image (1, 8, 8); use "
    with pytest.raises(Incompatible, match=re.escape(refusal)):
        run(attack="tabular", isolate=isolate)


@pytest.mark.slow
def test_gradients_are_changed_client_by_client_or_it_is_refused(install: Install) -> None:
    install(SPIES, PLUGINS)
    with pytest.raises(ConfigError, match="--executor must be auto or loop for Turned"):
        run("stacked", attack="turned")
    plain = run("loop", isolate=False, attack="turned")
    apart = run(attack="turned")
    assert apart.environment.executor == "loop"
    assert apart.measured() == plain.measured()


@pytest.mark.slow
def test_a_state_that_nobody_needs_is_let_go_and_children_end() -> None:
    rows = FloatVectors(torch.arange(20.0).reshape(5, 4))
    view = ServerView(torch.ones(5, dtype=torch.float64), rows.take([0]), 0, Key(0))
    with Isolation() as isolation:
        rule = isolation.load("defense", "centered-clipping")
        first, state = rule.aggregate(rows, None, view)
        assert isinstance(state, Kept)
        assert copy.deepcopy(state) is state
        again = [rule.aggregate(rows, state, view)[0] for _ in range(2)]
        assert torch.equal(*again)  # who asks with a state leaves it as it was
        assert not torch.equal(first, again[0])
        rule.tolerates(5)  # tells the child which states nobody needs
        assert rule.child.released == []
        number = state.number
        del state
        assert rule.child.released == [number]
        children: list[Child] = isolation.children
        assert all(child.process.poll() is None for child in children)
    assert all(child.process.poll() is not None for child in children)


@pytest.mark.slow
def test_a_child_ends_with_its_parent_whatever_it_does(install: Install, tmp_path: Path) -> None:
    """A worker that is killed while a hook never returns leaves nobody behind."""
    number = tmp_path / "number.py"  # data it may not open
    given = install(SPIES, PLUGINS)
    program = (
        "from fedbench.run import play\nfrom fedbench.experiment.scenario import Scenario\n"
        "play(Scenario(model='micro', clients=4, per_round=4, malicious=0.5, "
        f"attack='odd:how={number}'), device='cpu', isolate=True)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], env=given)
    while not (number.exists() and number.read_text()):
        assert parent.poll() is None
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    child = int(number.read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child went on")


COMPARING = '''
import __main__
import os
from dataclasses import dataclass, field

from fedbench.api import Defense

SEEN = {}


@dataclass(frozen=True)
class Peeking(Defense[None]):
    """The mean. It names the clients whose row is another one in two calls of one round."""

    where: str = "module"  # or in the instance; elsewhere a second call ends it
    beside: dict = field(default_factory=dict, init=False)

    def tolerates(self, n):
        return 0

    def aggregate(self, received, state, view):
        rows, seen = received.values(), self.beside if self.where == "instance" else SEEN
        if self.where == "nowhere" and view.step in SEEN:
            os._exit(5)
        before = seen.setdefault(view.step, rows.clone())
        found = seen.setdefault("found", set())
        if before.shape == rows.shape:
            found |= set(view.ids[(before != rows).any(dim=1)].tolist())
        view.findings.notes["found"] = len(found)
        return rows.mean(dim=0), None


@dataclass(frozen=True)
class Mute(Peeking):
    """Tell nothing of itself."""


if hasattr(__main__, "Guest"):
    described = __main__.Guest.described
    __main__.Guest.described = lambda guest: (
        {"text": "rule-mute"} if guest.name == "rule-mute" else described(guest)
    )
'''


def peeked(where: str, attack: str, isolate: bool) -> list[object]:
    rule = f"rule-peeking:where={where}"
    rounds = run("loop", isolate, defense=rule, attack=attack, per_round=12).rounds
    assert all(r.malicious for r in rounds)
    assert all(r.queries or r.gain for r in rounds), "or it was asked once"
    return [r.findings["found"] for r in rounds]


@pytest.mark.slow
def test_an_isolated_rule_keeps_nothing_of_the_honest_comparison(install: Install) -> None:
    install(COMPARING, {"rule-peeking": "Peeking"})
    for where in ("module", "instance"):
        for attack in ("sign-flip", "dyn-opt"):  # the second one asks the rule itself
            assert peeked(where, attack, isolate=True) == [0, 0, 0]
    assert peeked("instance", "sign-flip", isolate=False) == [0, 0, 0]
    last = peeked("module", "sign-flip", isolate=False)[-1]
    assert isinstance(last, int)
    assert last > 0, "or this says nothing"


@pytest.mark.slow
def test_a_fork_computes_on_as_many_threads_as_its_process() -> None:
    """A sum is over other parts on one thread, and threads of before a fork are waited for."""
    rows = FloatVectors(torch.randn(5, 200_000, generator=torch.Generator().manual_seed(0)))
    view = ServerView(torch.ones(5, dtype=torch.float64), rows.take([0]), 0, Key(0))
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Isolation() as isolation:
            rule = isolation.load("defense", "centered-clipping")
            first, state = rule.aggregate(rows, rule.init(rows.spec), view)
            apart = rule.apart()
            again, none = apart.aggregate(rows, apart.init(rows.spec), view)
            assert torch.equal(first, again)
            assert none is None
            later = [each.aggregate(rows, state, view)[0] for each in (apart, rule)]
            assert torch.equal(*later)
    finally:
        torch.set_num_threads(threads)
