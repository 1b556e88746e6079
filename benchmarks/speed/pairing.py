"""Two programs in turns: what each says of its rounds, whether they agree, and the ratio."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paired import Ratio, busy

from fedbench.core.errors import FedbenchError, require

CHANCE = math.log(10)  # loss of who knows nothing of ten classes
# Loss at the end: of chance at most, and between the two sides in nats. Cohorts differ, and pfl
# does not shuffle a client's images; 0.2 is about what one more round gives after five.
LEARNED, APART = 0.8, 0.2


@dataclass(frozen=True)
class Turn:
    """Rounds of one side, as its script reports them.

    Args:
        versions: Of the packages that matter.
        threads: Of torch in each process.
        processes: That train.
        precision: Of training.
        parameters: Of the network.
        clients: Of a round.
        samples: That a round trained on.
        seconds: Of each round.
        cpu: Seconds of CPU of each round; None where nobody knows.
        loss: On training images at the end, in nats; None where nobody learns.
        accuracy: On the same images.
    """

    versions: dict[str, str]
    threads: int
    processes: int
    precision: str
    parameters: int
    clients: int
    samples: int
    seconds: list[float]
    cpu: list[float] | None
    loss: float | None
    accuracy: float | None

    @classmethod
    def read(cls, text: str) -> Turn:
        """Read a turn from the last line that a script printed."""
        return cls(**json.loads(text.strip().splitlines()[-1]))


@dataclass(frozen=True)
class Case:
    """Two ways of playing a workload.

    Args:
        peer: Beside whom.
        what: Ours.
        against: Theirs.
        ours: The command.
        theirs: The command.
        pins: Versions that theirs must have.
        target: How many times as fast ours should be at least; None: no promise.
    """

    peer: str
    what: str
    against: str
    ours: list[str]
    theirs: list[str]
    pins: dict[str, str] = dataclasses.field(default_factory=dict)
    target: float | None = None


def play(command: Sequence[str]) -> Turn:
    """A turn of one side, in a process of its own, which takes what it started along.

    Raises:
        FedbenchError: it fails.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as ended:
        try:
            output, errors = ended.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(ended.pid, signal.SIGKILL)
    if ended.returncode:
        last = (errors.strip() or f"exit code {ended.returncode}").splitlines()[-1]
        raise FedbenchError(f"a turn of {Path(command[1]).name} failed: {last}")
    return Turn.read(output)


def agree(case: Case, ours: Turn, theirs: Turn) -> None:
    """Both did the same work, with what they should have done it.

    Raises:
        ConfigError: they did not, so that a ratio would say nothing.
    """
    for name, pin in case.pins.items():
        version = theirs.versions[name].partition("+")[0]
        remedy = "; run python benchmarks/speed/side_by_side.py --setup"
        require(f"{name} of --peer {case.peer}", version, version == pin, f"{pin}{remedy}")
    for name in ("parameters", "clients", "samples", "precision"):
        a, b = getattr(ours, name), getattr(theirs, name)
        require(f"{name} of {case.what!r}", a, a == b, f"those of {case.against!r}, {b!r}")
    if "torch" in theirs.versions:  # where nobody trains, each takes the cores that it takes
        a, b = (turn.versions["torch"].partition("+")[0] for turn in (ours, theirs))
        require("torch of fedbench", a, a == b, f"that of --peer {case.peer}, {b!r}")
        cores, others = (turn.threads * turn.processes for turn in (ours, theirs))
        require(f"cores of {case.what!r}", cores, cores == others, f"those of theirs, {others}")
    if ours.loss is not None and theirs.loss is not None:
        worst = max(ours.loss, theirs.loss)
        requirement = f"<= {LEARNED} of chance; raise --rounds"
        require("loss after training", worst, worst <= LEARNED * CHANCE, requirement)
        requirement = f"within {APART} of that of {case.against!r}, {theirs.loss:.3f}"
        near = abs(ours.loss - theirs.loss) <= APART
        require(f"loss of {case.what!r}", round(ours.loss, 3), near, requirement)


@dataclass(frozen=True)
class Compared:
    """Turns of a case that both sides played.

    Args:
        case: Which.
        turns: Ours and theirs, in the order they were played.
        others: Cores that other processes used during ours, on average; None where nobody can say.
    """

    case: Case
    turns: list[tuple[Turn, Turn]]
    others: float | None

    @property
    def ratio(self) -> Ratio:
        """Ratio of the clock times of both sides."""
        ours, theirs = zip(*self.turns, strict=True)
        return Ratio(
            group=self.case.peer,
            what=self.case.what,
            against=self.case.against,
            mine=tuple(statistics.median(turn.seconds) for turn in ours),
            theirs=tuple(statistics.median(turn.seconds) for turn in theirs),
            target=self.case.target,
            flops=0.0,
            units=ours[0].clients,
            others=self.others,
        )

    @property
    def cpu(self) -> float | None:
        """How many times as much CPU theirs took, median over the turns; None if unknown."""
        ratios = [
            statistics.median(theirs.cpu) / statistics.median(ours.cpu)
            for ours, theirs in self.turns
            if ours.cpu and theirs.cpu
        ]
        return statistics.median(ratios) if ratios else None

    def described(self) -> dict[str, Any]:
        """Return the ratio and all turns, for programs."""
        ratio = self.ratio
        fields = dataclasses.asdict(ratio) | {"faster": ratio.faster, "met": ratio.met}
        turns = [{"ours": vars(ours), "theirs": vars(theirs)} for ours, theirs in self.turns]
        return fields | {"cpu": self.cpu, "pins": self.case.pins, "turns": turns}


def compare(case: Case, turns: int) -> Compared:
    """Ours, theirs, ours, theirs, ..."""
    played = []
    wall = 0.0
    used = list[float]()
    for _ in range(turns):
        start = time.perf_counter()
        before = busy()
        ours = play(case.ours)
        after = busy()
        wall += time.perf_counter() - start
        used += [after - before] if before is not None and after is not None else []
        theirs = play(case.theirs)
        agree(case, ours, theirs)
        played.append((ours, theirs))
    return Compared(case, played, max(0.0, sum(used) / wall) if used else None)
