"""What holds for every test."""

import gc
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import moody
import pytest
import torch

from fedbench.core import registry

# A second thread gains nothing at this size and waits for ever where the core is taken.
torch.set_num_threads(1)

# The first example of a process imports libraries and builds tables; machines are shared.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Which executor is faster here is for no test to find out; those of it switch it on.
os.environ["FEDBENCH_PROBE"] = "off"

Install = Callable[[str, dict[str, str]], dict[str, str]]
Command = Callable[..., tuple[int, str, str]]
Mistake = Callable[..., str]


NO_CASES = pytest.StashKey[list[str]]()


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: a quarter of that time went into it."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Collect it again, but do not look at the tests themselves, which stay to the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as slow what is no edge of a long parametrisation."""
    edges = item.get_closest_marker("edges")
    if edges is not None and item.name.partition("[")[2].removesuffix("]") not in edges.args:
        item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Note edges that are no cases, before cases are left out: their tests would be slow unsaid."""
    cases = {item.nodeid for item in items}
    marks = {item.nodeid.partition("[")[0]: item.get_closest_marker("edges") for item in items}
    config.stash[NO_CASES] = [
        f"{test}[{edge}]"
        for test, mark in marks.items()
        for edge in (mark.args if mark is not None else ())
        if f"{test}[{edge}]" not in cases
    ]


@pytest.fixture
def edges_that_are_no_cases(pytestconfig: pytest.Config) -> list[str]:
    return pytestconfig.stash[NO_CASES]


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but ``time.sleep`` take time, so that what is timed is the same on every machine.

    It does not wait either.
    """
    slept = [1.0]  # no clock starts at zero
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "perf_counter", lambda: sum(slept))


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see what another one has registered in this process."""
    monkeypatch.setattr(registry, "_HERE", {})


@pytest.fixture
def heard() -> Iterator[None]:
    """Let Ctrl-C be heard, also where tests run in the background of a shell, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install somebody else's package ``outsider``: its source, and per attack or rule its class.

    This process finds it until the test ends, and so does a command with the environment that is
    returned. A rule's name starts with ``rule``, a protocol's with ``protocol``.
    """

    def package(source: str, plugins: dict[str, str]) -> dict[str, str]:
        points: dict[str, list[str]] = {"attacks": [], "defenses": [], "protocols": []}
        starts = {"rule": "defenses", "protocol": "protocols"}
        for name, found in plugins.items():
            kind = next(
                (kind for start, kind in starts.items() if name.startswith(start)), "attacks"
            )
            points[kind].append(f"{name} = outsider:{found}")
        site = moody.package(tmp_path / "site", "outsider", points, outsider=source)
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, "outsider", raising=False)
        monkeypatch.setattr(registry, "_points", registry._points.__wrapped__)  # as if new
        path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
        return dict(os.environ) | {"PYTHONPATH": path}

    return package


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command line in this process; return exit code, stdout and stderr."""
    from fedbench.cli import main

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        shown = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, shown.out, shown.err

    return run


@pytest.fixture
def mistake(command: Command) -> Mistake:
    """Run a command line that is wrong; return the one line on stderr."""

    def run(*arguments: object) -> str:
        code, out, err = command(*arguments)
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("fedbench: ")
        return line.removeprefix("fedbench: ")

    return run
