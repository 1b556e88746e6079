"""Systems without POSIX: a run needs none of it, and what needs it says so in one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.cli import main
from fedbench.core.errors import Unavailable
from fedbench.experiment.prepare import choose_device

# What Windows lacks, and macOS a part of it. Workers are processes of their own, so Python loads
# this in each of them.
LACKS = """
import faulthandler, os, signal, sys

for module in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[module] = None
for owner, names in {
    os: "fork O_DIRECTORY sched_getaffinity",
    signal: "SIGUSR1 pthread_sigmask",  # SIGKILL stays: Python itself needs it on Linux
    faulthandler: "register",
}.items():
    for name in names.split():
        delattr(owner, name)
"""
PLAYED = """
import sys
from fedbench.cli import main

if __name__ == "__main__":
    main(sys.argv[1:])
"""
TINY = ["--clients=4", "--per-round=4", "--rounds=1", "--epochs=1", "--seeds=0,1", "--workers=1"]


def fedbench(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python without POSIX."""
    (folder / "sitecustomize.py").write_text(LACKS)
    (folder / "played.py").write_text(PLAYED)
    environment = os.environ | {"PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "played.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_run_needs_nothing_that_only_posix_has(tmp_path: Path) -> None:
    arguments = ["attack", "-p", "fedavg", "-a", "ipm", *TINY, "--out", "out"]
    done = fedbench(tmp_path, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "out").glob("*.json"))) == 4
    assert '"peak_memory_mib": 0.0' in next((tmp_path / "out").glob("*.json")).read_text()


@pytest.mark.slow
def test_what_needs_a_fork_says_so(tmp_path: Path) -> None:
    done = fedbench(tmp_path, "attack", "-p", "fedavg", "-a", "ipm", *TINY, "--isolate")
    words = done.stdout + done.stderr
    assert done.returncode != 0
    assert "--isolate needs a system with fork" in words
    assert "Traceback" not in words


def test_the_device_of_apple_is_refused_with_the_reason() -> None:
    with pytest.raises(Unavailable, match=r"--device mps has no float64, .*; use --device cpu"):
        choose_device("mps")


def test_an_unknown_device_is_refused_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["attack", "--device", "tpu", "--dry-run", "-p", "fedavg", "-a", "ipm"])
    assert "--device must be auto, cpu, cuda or mps, got 'tpu'" in capsys.readouterr().err
