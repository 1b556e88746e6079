"""Report of an acceptance run: targets beside what was measured, one JSON, and tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpu_roofline import Peaks, Step
from rich.console import Console
from rich.table import Table

Status = Literal["done", "failed", "out of time"]
SECONDS = 1e-3  # of a millisecond


@dataclass
class Outcome:
    """Results of a stage, as far as it came.

    Args:
        status: How it ended.
        seconds: Wall clock, with the start of its process where it has one of its own.
        share: Seconds of the time that were its own.
        error: Reason for an end that was not the last line.
        measured: Entries that it wrote down, by name.
    """

    status: Status
    seconds: float
    share: float
    error: str = ""
    measured: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """A number that a run on an accelerator should reach.

    Args:
        stage: Stage that measures it.
        entry: Name of the entry.
        number: Name of the number in the entry.
        bound: The least or the largest that is good.
        at_least: More is better.
    """

    stage: str
    entry: str
    number: str
    bound: float
    at_least: bool = False

    def measured(self, outcomes: Mapping[str, Outcome]) -> float | None:
        """Return the number; None where the stage did not come to it."""
        outcome = outcomes.get(self.stage)
        entry = {} if outcome is None else outcome.measured.get(self.entry, {})
        number = entry.get(self.number) if isinstance(entry, dict) else None
        return None if number is None else float(number)

    def met(self, outcomes: Mapping[str, Outcome]) -> bool | None:
        """Whether it is reached; None where it was not measured."""
        measured = self.measured(outcomes)
        if measured is None:
            return None
        return measured >= self.bound if self.at_least else measured <= self.bound


TIMES = "times the loop"  # as fast as clients one by one on the same device
FLOOR = "times the roofline"
TARGETS = (
    *(
        Target("steps", f"{model} fedavg batch {batch}", TIMES, 10.0, at_least=True)
        for model in ("lenet", "conv4")
        for batch in (8, 32)
    ),
    Target("steps", "conv4 fedavg batch 128", TIMES, 3.0, at_least=True),
    *(
        Target("dirichlet", f"{model} fedavg batch 32", TIMES, 10.0, at_least=True)
        for model in ("lenet", "conv4")
    ),
    *(
        Target("steps", f"{model} fedavg batch {batch}", FLOOR, 4.0)
        for model, batch in (
            ("lenet", 8),
            ("lenet", 32),
            ("conv4", 8),
            ("conv4", 32),
            ("conv8", 32),
        )
    ),
    Target("rounds", "lenet fsl", "seconds", 0.15),
    Target("pfl", "fastest", "seconds of 1500 rounds", 30.0),
)


def with_roofline(outcomes: Mapping[str, Outcome]) -> None:
    """Write the predictions beside each measured step, if the device's speeds were measured."""
    speeds = outcomes["device"].measured.get("peaks") if "device" in outcomes else None
    if speeds is None or "steps" not in outcomes:
        return
    peaks = Peaks(**speeds)
    for entry in outcomes["steps"].measured.values():
        if "work" not in entry:
            continue
        step = Step(**entry["work"])
        measured = entry["seconds a step"]
        roofline = step.roofline(peaks)
        entry["roofline, seconds"] = roofline
        entry["as written, seconds"] = {
            name: step.as_written(peaks, name == "recorded") for name in measured if name != "loop"
        }
        entry[FLOOR] = measured[entry["fastest"]] / roofline


def content(about: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    """Return all that is kept of a run, ready for JSON: what is not finite is None."""
    targets = [
        dataclasses.asdict(target)
        | {"measured": target.measured(outcomes), "met": target.met(outcomes)}
        for target in TARGETS
    ]
    stages = {name: dataclasses.asdict(outcome) for name, outcome in outcomes.items()}
    whole: dict[str, Any] = finite({**about, "targets": targets, "stages": stages})
    return whole


def finite(value: Any) -> Any:
    """Return the same with None for numbers that JSON lacks.

    >>> finite({"a": [1.5, float("inf")]})
    {'a': [1.5, None]}
    """
    if isinstance(value, Mapping):
        return {name: finite(x) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def show(console: Console, outcomes: Mapping[str, Outcome]) -> None:
    """Print the stages, the steps and the targets."""
    stages = Table("stage", "ended", "s", "of", "why")
    for name, outcome in outcomes.items():
        times = (f"{outcome.seconds:.0f}", f"{outcome.share:.0f}")
        stages.add_row(name, outcome.status, *times, outcome.error)
    console.print(stages)
    if "steps" in outcomes:
        console.print(steps_table(outcomes["steps"]))
    targets = Table("target", "bound", "measured", "met")
    for target in TARGETS:
        measured = target.measured(outcomes)
        targets.add_row(
            f"{target.stage}: {target.entry}, {target.number}",
            f"{'>=' if target.at_least else '<='} {target.bound:g}",
            "not measured" if measured is None else f"{measured:.3g}",
            {None: "", True: "yes", False: "NO"}[target.met(outcomes)],
        )
    console.print(targets)


def steps_table(outcome: Outcome) -> Table:
    """Return milliseconds of a step of all clients, and the two predictions."""
    head = ("loop, ms", "fastest", "ms", TIMES, "roofline, ms", "as written, ms", "kernels")
    table = Table("a step of all clients", *head)
    for name, entry in outcome.measured.items():
        if "error" in entry:
            table.add_row(name, entry["error"])
            continue
        fastest = entry["fastest"]
        measured = entry["seconds a step"]
        written = entry.get("as written, seconds", {}).get(fastest)
        table.add_row(
            name,
            milliseconds(measured["loop"]),
            fastest,
            milliseconds(measured[fastest]),
            f"{entry[TIMES]:.2g}",
            milliseconds(entry.get("roofline, seconds")),
            milliseconds(written),
            f"{entry['work']['kernels']:.0f}" if "work" in entry else "",
        )
    return table


def milliseconds(seconds: float | None) -> str:
    """Return three digits of a time, or nothing.

    >>> milliseconds(0.0012345), milliseconds(None)
    ('1.23', '')
    """
    return "" if seconds is None else f"{seconds / SECONDS:.3g}"
