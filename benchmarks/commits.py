"""How fast two commits play the same scenarios, and whether they measure the same numbers.

``make compare BASE=main~5`` plays every scenario with both, in turns of a process each; what is
shown is the median of the ratios of neighbouring turns' CPU times, and their range. It prints, and
judges nothing: a shared machine is no place to test times. What both commits know is compared: the
scenarios are played through `fedbench.run.play`, and one that a commit cannot play is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parent.parent
SCENARIOS = {
    "fedavg": {"protocol": "fedavg"},
    "fsl": {"protocol": "fsl"},
    "fedpm": {"protocol": "fedpm"},
    "drive": {"protocol": "drive"},
    "trimmed mean, dyn-opt": {"defense": "trimmed-mean", "attack": "dyn-opt"},
    "multi-krum, min-max": {"defense": "multi-krum", "attack": "min-max"},
    "fedkseed": {"protocol": "fedkseed", "model": "logistic"},
    "fedkseed, auto": {"protocol": "fedkseed", "model": "logistic", "attack": "auto"},
    "decomfl": {"protocol": "decomfl:steps=8,p=20", "model": "logistic"},
    "decomfl, auto": {"protocol": "decomfl:steps=8,p=20", "model": "logistic", "attack": "auto"},
}
COMMON = {"model": "lenet", "clients": 50, "per_round": 25, "malicious": 0.2}
PLAY = """
import json, sys, time
import torch
torch.set_num_threads(1)
try:
    from fedbench.executors.malloc import keep_memory
except ImportError:  # commits before the modules moved into rooms
    from fedbench.allocator import keep_memory
keep_memory()
import fedbench
if not fedbench.__file__.startswith(sys.argv[2]):
    sys.exit(f"fedbench must be that of {sys.argv[2]}, got {fedbench.__file__}")
from fedbench import Scenario, play
played = {}
for name, settings in json.loads(sys.argv[1]).items():
    try:
        scenario = Scenario.of(**settings)
        play(scenario, device="cpu", executor=sys.argv[3])
        start = time.process_time()
        record = play(scenario, device="cpu", executor=sys.argv[3])
        seconds = time.process_time() - start
        result = record.result
        measured = [result.accuracy, result.uplink_bits_per_parameter, result.model_bits]
        played[name] = [seconds, measured]
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
print(json.dumps(played))
"""
Turn = dict[str, tuple[float, list[float]]]


def git(*words: str) -> str:
    """Return the output of a git command.

    Raises:
        SystemExit: it refuses; with its own words.
    """
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {words[0]} must work here, got {done.stderr.strip()!r}; name a known commit")
    return done.stdout.strip()


@contextmanager
def checkout(commit: str, where: Path) -> Iterator[Path]:
    """The files of a commit, for a while."""
    git("worktree", "add", "--quiet", "--detach", str(where), commit)
    try:
        yield where
    finally:
        git("worktree", "remove", "--force", str(where))


def turn(folder: Path, scenarios: dict[str, dict[str, object]], executor: str) -> Turn:
    """Every scenario once, in a fresh process with the code of this folder."""
    parts = [folder, folder / "attacks", folder / "defenses"]
    path = os.pathsep.join(map(str, parts))
    command = [sys.executable, "-P", "-c", PLAY, json.dumps(scenarios), str(folder), executor]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, check=True, env=os.environ | {"PYTHONPATH": path}
    )
    played: Turn = json.loads(done.stdout)
    return played


def compared(ours: list[Turn], theirs: list[Turn]) -> list[str]:
    """A line for every scenario that both could play in every turn."""
    lines = []
    for name in ours[0]:
        if not all(name in results for results in (*ours, *theirs)):
            continue
        ratios = [b[name][0] / a[name][0] for a, b in zip(ours, theirs, strict=True)]
        equal = {str(results[name][1]) for results in (*ours, *theirs)}
        lines.append(
            f"| {name} | {statistics.median(ratios):.2f} | {min(ratios):.2f}-{max(ratios):.2f} | "
            f"{1e3 * statistics.median(a[name][0] for a in ours):.0f} | "
            f"{'the same' if len(equal) == 1 else 'others'} |"
        )
    return lines


def main() -> None:
    """Two commits, as typed."""
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("head", nargs="?", help="default: the files as they are here")
    parser.add_argument("--turns", type=int, default=3, help="of each; default 3")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, default=SCENARIOS, metavar="NAME")
    parser.add_argument("--executor", default="loop", help="loop or stacked; default loop")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or checkouts would stay
    if given.turns < 1:
        sys.exit(f"--turns must be >= 1, got {given.turns}; use 3")
    scenarios = {
        name: {**COMMON, "dataset": given.dataset, "rounds": given.rounds, **settings}
        for name, settings in SCENARIOS.items()
        if name in given.only
    }
    base_name = git("describe", "--always", "--exclude", "*", given.base)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        base = stack.enter_context(checkout(given.base, Path(folder).resolve() / "base"))
        head = ROOT
        if given.head is not None:
            head = stack.enter_context(checkout(given.head, Path(folder).resolve() / "head"))
        rows = []
        for _ in range(given.turns):
            mine = turn(head, scenarios, given.executor)
            rows.append((mine, turn(base, scenarios, given.executor)))
    ours = given.head or "the files here"
    print(f"{ours} against {base_name}: how many times as fast, {given.turns} turns, one thread")
    print(f"\n| {given.dataset}, {given.rounds} rounds | faster | range | ms | numbers |")
    print("| :-- | --: | --: | --: | :-- |")
    print("\n".join(compared([a for a, _ in rows], [b for _, b in rows])))


if __name__ == "__main__":
    main()
