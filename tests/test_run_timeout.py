"""A run that never ends is ended, with a line that says where it was; the others go on."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedbench.cli.attack import attack
from fedbench.cli.leaderboard import reproduce
from fedbench.cli.sweep import sweep
from fedbench.core.errors import ConfigError
from fedbench.results.store import Failure
from fedbench.sweeps.local import RUN_TIMEOUT, Options, overtime

Install = Callable[[str, dict[str, str]], dict[str, str]]

SLEEPER = '''
from dataclasses import dataclass
from fedbench.api import Attack

@dataclass(frozen=True, kw_only=True)
class Sleeper(Attack):
    """Never return."""

    def craft(self, view, memory):
        while True:
            pass
'''
TEXT = """
seeds = [0]
scenario = {model = "micro", clients = 8, per_round = 4, malicious = 0.5, rounds = 2, epochs = 1}
grid = [{protocol = "fedavg", attack = ["sleeper", "sign-flip"]}]
"""


def test_every_command_that_plays_has_a_generous_limit_that_is_positive() -> None:
    assert Options().run_timeout == RUN_TIMEOUT == 6 * 60 * 60
    with pytest.raises(ConfigError, match="--run-timeout must be > 0 seconds, got -1"):
        Options(run_timeout=-1.0)
    for command in (attack, sweep, reproduce):
        assert inspect.signature(command).parameters["run_timeout"].default == RUN_TIMEOUT


def test_a_line_says_the_limit_and_where_the_run_was() -> None:
    stack = (
        'Thread 0x1 (most recent call first):\n  File "/lib/threading.py", line 1 in wait\n\n'
        'Current thread 0x2 (most recent call first):\n  File "/site/outsider.py", line 9 in craft'
        '\n  File "/fedbench/adversary/threat_model.py", line 3 in forge\n'
    )
    (line,) = overtime(90.0, stack).message.splitlines()
    assert line.startswith("the run was ended after 90 s in craft of outsider.py: a hook")
    assert overtime(90.0).message.startswith("the run was ended after 90 s: a hook")


@pytest.mark.slow
def test_an_endless_hook_fails_its_run_only(tmp_path: Path, install: Install) -> None:
    environment = install(SLEEPER, {"sleeper": "Sleeper"})
    (tmp_path / "s.toml").write_text(TEXT)
    command = [sys.executable, "-m", "fedbench", "sweep", "s.toml", "--workers", "1"]
    command += ["--run-timeout", "15", "--device", "cpu"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr  # nothing from the process that ended
    store = tmp_path / "results" / "s"
    assert len(list(store.glob("*.json"))) == 2  # sign-flip, and the clean run
    (failed,) = (store / "failed").glob("*.json")
    failure = Failure.model_validate_json(failed.read_bytes())
    assert (failure.kind, failure.tries) == ("timeout", 1)
    assert "ended after 15 s" in failure.message
    assert "in craft" in failure.traceback
    assert "in craft of outsider.py" in failure.message
