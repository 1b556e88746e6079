"""Two commits side by side."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "commits.py"
compared = runpy.run_path(str(SCRIPT))["compared"]


def test_ratios_are_of_neighbouring_turns_and_numbers_are_compared() -> None:
    """Medians of each side by themselves would say 4/2 = 2; the turns say 1, 2 and 4."""
    same, other = [0.9, 1.0, 32.0], [0.8, 1.0, 32.0]
    ours = [{"a": (4.0, same), "b": (1.0, same)}, {"a": (2.0, same), "b": (1.0, same)}]
    ours += [{"a": (1.0, same), "b": (1.0, same)}]
    theirs = [{"a": (4.0, same)}, {"a": (8.0, same)}, {"a": (2.0, same)}]
    (line,) = compared(ours, theirs)  # b is unknown to the other commit
    assert line == "| a | 2.00 | 1.00-4.00 | 2000 | the same |"
    theirs[1]["a"] = (8.0, other)
    assert compared(ours, theirs)[0].endswith("| others |")


@pytest.mark.parametrize(
    ("words", "said"),
    [(["no-such-commit"], "git describe must work here"), (["HEAD", "--turns", "0"], "--turns")],
)
def test_what_cannot_be_compared_is_refused_in_a_line(words: list[str], said: str) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_each_turn_plays_the_code_of_its_commit() -> None:
    """From the repository, where Python would find the code that lies there first."""
    command = [sys.executable, str(SCRIPT), "HEAD", "--turns", "1", "--rounds", "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=SCRIPT.parent.parent, timeout=500
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| the same |") == 6
    checkouts = subprocess.run(
        ["git", "worktree", "list"], capture_output=True, text=True, cwd=SCRIPT.parent
    )
    assert "/base " not in checkouts.stdout
