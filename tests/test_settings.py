"""Settings of the process are those of no run: what a plug-in changes is restored, and said."""

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedbench.core.settings import SettingsSnapshot
from fedbench.experiment.scenario import Scenario
from fedbench.run import play
from fedbench.sweeps.engine import crash

SMALL = Scenario(model="micro", clients=8, per_round=4, malicious=0.5, rounds=2, epochs=1)


def with_attack(attack: str) -> Scenario:
    return SMALL.model_copy(update={"attack": attack})


# It changes what its parameter names, in every round, and stays honest.
SPOILER = '''
from dataclasses import dataclass

import numpy
import torch

from fedbench.api import Attack


@dataclass(frozen=True, kw_only=True)
class Spoiler(Attack):
    """Change a setting of the process.

    Args:
        what: Which.
    """

    what: str = "dtype"

    def craft(self, view, memory):
        if self.what == "dtype":
            torch.set_default_dtype(torch.float64)
        if self.what == "generators":
            torch.rand(1), numpy.random.rand()
        if self.what == "fails":
            torch.set_num_threads(torch.get_num_threads() + 1)
            raise ZeroDivisionError("spoilt")
        if self.what == "mkldnn":
            torch.backends.mkldnn.enabled = False
        return view.own, memory
'''


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """No failure of a test here fails another one."""
    settings = SettingsSnapshot()
    yield
    settings.restore()


CHANGES: dict[str, Callable[[], object]] = {
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "torch's grad mode": lambda: torch.set_grad_enabled(False),
    "torch's anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
    "torch's autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "torch's deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "torch.utils.deterministic": lambda: setattr(
        torch.utils.deterministic, "fill_uninitialized_memory", False
    ),
    "torch's flushing": lambda: torch.set_flush_denormal(True),
    "torch's float32": lambda: torch.set_float32_matmul_precision("high"),
    "torch.backends.cudnn.benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "torch.backends.cuda.matmul.allow_tf32": lambda: setattr(
        torch.backends.cuda.matmul, "allow_tf32", True
    ),
    "torch.backends.mkldnn.enabled": lambda: setattr(torch.backends.mkldnn, "enabled", False),
    "torch's generator": lambda: torch.rand(1),
    "NumPy's generator": lambda: np.random.rand(),  # noqa: NPY002
    "NumPy's floating-point errors": lambda: np.seterr(all="raise"),
    "Python's recursion limit": lambda: sys.setrecursionlimit(12345),
    "Python's garbage collector": gc.disable,
    "warnings that are errors": lambda: warnings.simplefilter("error"),
    "the environment variable HOME": lambda: os.environ.update(HOME="/nowhere"),
    "the working folder": lambda: os.chdir("/"),
}


def test_every_setting_is_restored_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    for name, change in CHANGES.items():
        with warnings.catch_warnings():
            before = SettingsSnapshot()
            change()
            changed = before.restore()
            assert any(line.startswith(name) for line in changed), (name, changed)
            assert before.restore() == [], name


def test_a_folder_that_is_gone_and_a_variable_of_a_library_are_no_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = SettingsSnapshot()
    monkeypatch.setenv("SET_BY_A_LIBRARY", "1")
    assert before.restore() == []
    assert os.environ["SET_BY_A_LIBRARY"] == "1"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert SettingsSnapshot().restore() == []


@pytest.mark.slow
def test_a_run_leaves_the_process_as_it_was_and_says_what_its_plugin_did(install: Any) -> None:
    install(SPOILER, {"spoiler": "Spoiler"})
    clean = play(SMALL, device="cpu")
    spoilt = play(with_attack("spoiler:what=mkldnn"), device="cpu")
    assert torch.backends.mkldnn.enabled
    flag = (
        "a plug-in changed settings of the process: torch.backends.mkldnn.enabled (True to False); "
        "restored"
    )
    assert flag in spoilt.flags
    assert play(SMALL, device="cpu").measured() == clean.measured()  # and without the flag
    drawn = play(with_attack("spoiler:what=generators"), device="cpu")
    assert any("torch's generator, NumPy's generator;" in flag for flag in drawn.flags)


def test_a_run_that_fails_is_restored_too_and_its_failure_says_so(install: Any) -> None:
    install(SPOILER, {"spoiler": "Spoiler"})
    threads = torch.get_num_threads()
    with pytest.raises(Exception, match="spoilt") as caught:
        play(with_attack("spoiler:what=fails"), device="cpu")
    assert torch.get_num_threads() == threads
    assert "torch's threads" in crash(caught.value).message.splitlines()[-1]
