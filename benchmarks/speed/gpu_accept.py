"""Acceptance run on a machine with a GPU, ten minutes at most: right there, and how fast.

``make gpu-accept`` runs the stages of `gpu_stages.py` and `gpu_costs.py`, the most important first.
Each has its own share of the time and what earlier ones left over, and up to twice its share where
it is slow: then the last ones have less. One that raises, or whose time is up, keeps what it wrote
down until then, and the others go on in a new process: after an error a device is not to be
trusted. All of it goes to one JSON after every stage, in ``benchmarks/results`` for an accelerator,
and to tables at the end. It ends with 1 if a stage did not come to its end or found something
wrong; a target of `gpu_report.py` that is missed is only shown.

``--device cpu --quick`` tries the stages themselves on small sizes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import gpu_costs
import gpu_stages
import torch
from gpu_report import Outcome, content, show, with_roofline
from gpu_stages import ROOT, Job, Note
from rich.console import Console

from fedbench.core.devices import accelerated, title
from fedbench.core.errors import FedbenchError, require
from fedbench.core.files import write_atomically
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.prepare import choose_device

RESULTS = ROOT / "benchmarks" / "results"
PATIENCE = 2  # times its share that a slow stage may take
STARTING = 120  # seconds that a process may take before it is ready
Outcomes = dict[str, Outcome]


@dataclass(frozen=True)
class Stage:
    """A measurement with its own time.

    Args:
        measure: Does it; its name is the stage's.
        share: Its share of the time, in seconds of a run of ten minutes.
    """

    measure: Callable[[Job, Note], None]
    share: float

    @property
    def name(self) -> str:
        """Name of the stage."""
        return self.measure.__name__


STAGES = (
    Stage(gpu_stages.device, 6),
    Stage(gpu_stages.equality, 66),
    Stage(gpu_stages.tests, 52),
    Stage(gpu_stages.steps, 115),
    Stage(gpu_stages.rounds, 62),
    Stage(gpu_stages.dirichlet, 16),
    Stage(gpu_stages.determinism, 40),
    Stage(gpu_stages.pfl, 44),
    Stage(gpu_costs.kernels, 18),
    Stage(gpu_costs.waits, 12),
    Stage(gpu_costs.wire, 34),
    Stage(gpu_costs.precision, 10),
    Stage(gpu_costs.out_of_memory, 8),
    Stage(gpu_costs.sweep, 56),
    Stage(gpu_stages.runs, 61),
)


def work(stages: Sequence[Stage], job: Job, parent: Connection) -> None:
    """Run stages one after the other, in a process of its own, and report until one fails."""
    os.setsid()  # with what a stage starts it is one group, which can be ended as one
    parent.send(("ready", "", None))
    keep_memory()
    if job.device == "cpu":
        torch.set_num_threads(1)
    for stage in stages:
        try:
            stage.measure(job, lambda entry, found: parent.send(("entry", entry, found)))
        except Exception as error:  # whatever ends a stage, the report of the others must come
            parent.send(("failed", f"{type(error).__name__}: {error}", None))
            return
        parent.send(("done", "", None))


def play(
    stages: Sequence[Stage], job: Job, seconds: float, save: Callable[[Outcomes], None]
) -> Outcomes:
    """Run all stages within ``seconds``; call ``save`` after each.

    A stage must end at its `last_second`. The clock starts once the first process has imported what
    it needs; the start of another one is charged to its first stage.
    """
    start: float | None = None
    whole = sum(stage.share for stage in stages)
    shares = [stage.share / whole * seconds for stage in stages]
    ends = list(accumulate(shares))
    outcomes: Outcomes = {}
    while len(outcomes) < len(stages):
        first = len(outcomes)
        process, child = started(stages[first:], job)
        start = time.monotonic() if start is None else start
        try:
            for stage, share, end in list(zip(stages, shares, ends, strict=True))[first:]:
                print(f"{time.monotonic() - start:5.0f} s  {stage.name}", file=sys.stderr)
                begun = time.monotonic() - start
                last = start + last_second(begun, share, end, seconds)
                outcomes[stage.name] = followed(child, share, last)
                save(outcomes)
                if outcomes[stage.name].status != "done":
                    break
        finally:
            end_group(process)
            child.close()
    return outcomes


def last_second(begun: float, share: float, end: float, whole: float) -> float:
    """Return when a stage that has ``begun`` must end, in seconds of a run of ``whole`` seconds.

    That is at the ``end`` of its share and those before it, or after `PATIENCE` times its own share
    if that is later: one that is cut off costs the next one the start of a process.
    """
    return min(max(end, begun + PATIENCE * share), whole)


def started(stages: Sequence[Stage], job: Job) -> tuple[BaseProcess, Connection]:
    """Start a process that runs stages; return it when it is ready, and what it reports through."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(stages, job, theirs))
    process.start()
    theirs.close()
    with suppress(EOFError):  # it ended at once, and its first stage will say so
        if ours.poll(STARTING):
            ours.recv()
    return process, ours


def followed(child: Connection, share: float, end: float) -> Outcome:
    """Return what a stage reports until it ends or its time does."""
    start = time.monotonic()
    outcome = Outcome("out of time", 0.0, share)
    while child.poll(max(0.0, end - time.monotonic())):
        try:
            kind, text, value = child.recv()
        except EOFError:
            kind = "failed"
            text = "its process ended"
            value = None
        if kind == "entry":
            outcome.measured[text] = value
            continue
        outcome.status = kind
        outcome.error = text
        break
    outcome.seconds = time.monotonic() - start
    return outcome


def end_group(process: BaseProcess) -> None:
    """End a process and all that it has started."""
    assert process.pid is not None
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # it ended, or did not come to found its group
        process.kill()
    process.join()


def about(job: Job, minutes: float) -> dict[str, Any]:
    """Return what was run when, on which commit if this is a clone."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:  # no git
        commit = ""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": now, "commit": commit, "minutes": minutes, "device": job.device} | {
        "quick": job.quick
    }


def named(device: torch.device, date: str) -> Path:
    """Return the file of a run on an accelerator: its name, and the day."""
    slug = re.sub(r"[^a-z0-9]+", "-", title(device).lower()).strip("-")
    return RESULTS / f"accept-{slug}-{date[:10]}.json"


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="what is accepted")
    parser.add_argument("--minutes", type=float, default=9.5, help="of all stages together")
    parser.add_argument("--quick", action="store_true", help="small sizes: do the stages work?")
    parser.add_argument("--only", help="stages, separated by commas")
    parser.add_argument("--json", type=Path, help="the file; for a CPU there is none by default")
    given = parser.parse_args(words)
    names = [stage.name for stage in STAGES]
    wanted = names if given.only is None else given.only.split(",")
    job = Job(given.device, given.quick)
    try:
        device = choose_device(given.device)
        require("--only", given.only, set(wanted) <= set(names), f"some of {','.join(names)}")
        require("--minutes", given.minutes, 0 < given.minutes <= 10, "> 0 and <= 10")
        when = about(job, given.minutes)
        file = given.json
        if file is None and accelerated(device):
            file = named(device, when["date"])

        def save(outcomes: Outcomes) -> None:
            with_roofline(outcomes)
            if file is not None:
                text = json.dumps(content(when, outcomes), indent=1, allow_nan=False)
                write_atomically(file, text.encode() + b"\n")

        stages = [stage for stage in STAGES if stage.name in wanted]
        outcomes = play(stages, job, 60 * given.minutes, save)
    except FedbenchError as error:
        print(f"gpu-accept: {error}", file=sys.stderr)
        return 2
    show(Console(), outcomes)
    return 0 if all(outcome.status == "done" for outcome in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
