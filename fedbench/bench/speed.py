"""The suite of ``fedbench bench``: ours against what somebody would write, side by side."""

from __future__ import annotations

import dataclasses
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedbench.bench import by_hand, defenses, groups, masks, servers
from fedbench.bench.clients import PLAIN, TRAINING, Bench, Size, bench
from fedbench.bench.defenses import Cost, described
from fedbench.bench.paired import Pair, Ratio, compare
from fedbench.core.errors import require
from fedbench.executors.cached_answers import processor
from fedbench.executors.factory import executor

RULES = ("mean", "median", "trimmed-mean", "multi-krum")  # whose growth is shown
QUICK = Size(("lenet", "conv4"), (8, 32), 4, 256, 25, 200_000, 3, 1e8)
FULL = Size(("lenet", "conv4"), (8, 32, 128), 25, 6400, 25, 1_600_000, 5, 1e9)


@dataclass(frozen=True)
class Machine:
    """Where it was measured.

    Args:
        processor: As it calls itself.
        cores: That this process may use.
        threads: Of torch.
        device: ``cpu``, or the name of the accelerator.
        torch: Version.
        python: Version.
        peak: Operations a second of a float32 matrix product.
    """

    processor: str
    cores: int
    threads: int
    device: str
    torch: str
    python: str
    peak: float


def machine(device: torch.device, peak: float) -> Machine:
    """The one that runs this."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return Machine(
        processor=processor(),
        cores=cores or 1,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        torch=torch.__version__,
        python=platform.python_version(),
        peak=peak,
    )


# Words of the names of all comparisons: without them a question is answered after minutes.
WORDS = """
local training lenet conv4 micro bf16 forked batch drawn masks the best half a round of FSL
lock step clients in convolutions groups replayed server trimmed mean median multi-krum dyn-opt on
messages rankings summed a rotation packing a mask framework idle
"""


def require_known(only: Sequence[str]) -> None:
    """Raise `ConfigError` for a text that no comparison can have in its name."""
    for text in only:
        words = re.findall(r"[^\W\d]+", text)
        rule = "part of a group or a name, like 'server' or 'bf16'; without it all are measured"
        require("--only", text, bool(text) and all(word in WORDS for word in words), rule)


def play(
    size: Size,
    device: torch.device,
    engine: str = "auto",
    say: Callable[[str], None] = lambda text: None,
    only: Sequence[str] = (),
) -> Iterator[Ratio]:
    """Every comparison, one after the other, or those whose group and name hold one of ``only``."""

    def pairs() -> Iterator[Pair]:
        yield from training(size, device, engine)
        yield from masks.pairs(size, device, engine)
        yield from masks.fsl(size, device, engine)
        yield from groups.pairs(size, device)
        yield from servers.rules(size.rows, size.width, device)
        yield from servers.messages(size.rows, size.width, device)
        yield from servers.framework(size.rows, device)

    for pair in pairs():
        name = f"{pair.group}: {pair.what}"
        if only and not any(text in name for text in only):
            continue
        say(name)
        yield compare(pair, size.repeats, device)


def growths(
    size: Size, device: torch.device, say: Callable[[str], None] = lambda text: None
) -> Iterator[Cost]:
    """Time and memory of the rules whose growth is shown."""
    for n in (10, 100, 1000):
        for d in (100_000, 1_000_000, 10_000_000):
            if n * d <= size.largest:
                threads = torch.get_num_threads()
                yield from defenses.play(RULES, [n], [d], 1, device.type, threads, say)


def training(size: Size, device: torch.device, engine: str) -> Iterator[Pair]:
    """Our executor against a loop that trains one model in place.

    In bfloat16 the first network only, if the processor has no instructions for it: that is slow.
    """
    halves = size.models if multiplies_bf16(device) else size.models[:1]
    for model in size.models:
        for batch in size.batches:
            ours = bench(f"fedavg:lr=0.01,{PLAIN}", model, batch, size, device, engine)
            yield weights(model, ours)
            if model not in halves:
                continue
            half = dataclasses.replace(ours.executor, precision="bf16")
            yield weights(f"{model}, bf16", dataclasses.replace(ours, executor=half), None)
            if device.type == "cpu" and torch.get_num_threads() > 1:
                many = executor("forked", ours.protocol, ours.shared, half.schedule, 1, "bf16")
                yield weights(
                    f"{model}, bf16, forked", dataclasses.replace(ours, executor=many), 1.8
                )


def multiplies_bf16(device: torch.device, info: Path = Path("/proc/cpuinfo")) -> bool:
    """False for a processor that lists what it can do, without bfloat16 among it."""
    if device.type != "cpu" or not info.exists():
        return True
    words = set(info.read_text().split())
    return not words & {"flags", "Features"} or bool(words & {"avx512_bf16", "amx_bf16", "bf16"})


def weights(what: str, ours: Bench, target: float | None = 0.95) -> Pair:
    """Plain SGD of all clients, against one model in float32."""
    module = by_hand.model_of(ours.network, ours.shared.device)
    start = ours.shared.layout.flatten(ours.clients[0].tree)
    schedule = ours.executor.schedule
    return Pair(
        TRAINING,
        f"{what}, batch {schedule.batch_size}",
        "a loop by hand",
        lambda: ours.executor.train(ours.clients),
        lambda: by_hand.train(module, start, ours.clients, schedule, 0.01),
        target=target,
        flops=6.0 * by_hand.macs(ours.network) * ours.samples,
        units=len(ours.clients),
    )


@dataclass(frozen=True)
class Report:
    """What was measured, and on what.

    Args:
        machine: Where.
        ratios: Every comparison.
        growth: Of rules, with the number of rows and columns.
    """

    machine: Machine
    ratios: list[Ratio]
    growth: list[Cost]

    def described(self) -> dict[str, Any]:
        """For programs."""
        return {
            "machine": dataclasses.asdict(self.machine),
            "ratios": [
                dataclasses.asdict(ratio) | {"faster": ratio.faster, "met": ratio.met}
                for ratio in self.ratios
            ],
            "growth": [described(cost) for cost in self.growth],
        }
