"""Where the time of whole rounds goes, for every protocol with its own rule.

``python benchmarks/speed/round_phases.py -m lenet -p fsl`` prints Markdown: milliseconds a round,
percent of its phases, and ``each``, milliseconds of all but training for one client; ``!`` marks
what trains for less than 80 %. Clients hold random images and train one epoch at batch 8 by
default, less than papers do: with more local work all else weighs less. Phases are the spans that
`fedbench.run.play_round` names for profilers. On CUDA set ``CUDA_LAUNCH_BLOCKING=1``, or work
is charged to the phase that waits for it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import RecordScope
from torch.autograd.profiler import profile
from torch.profiler import ProfilerActivity, record_function

from fedbench.core import registry
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.data.datasets import Data
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.run import begin, play_round

TARGET = 0.8  # share of training
SMALL = ("lenet", "micro")  # models of 28 x 28 grey pixels; the others have 32 x 32 colours
BEFORE = ("broadcast", "compress", "attack", "wire")
PHASES = ("train", *BEFORE, "defend", "server step", "evaluate", "commit", "rest")
HEAD = ("protocol", "ms", *PHASES, "each")
Span = tuple[str, int, int]  # name, start and end in nanoseconds


@dataclass(frozen=True)
class Plan:
    """Size of the rounds that are played.

    Args:
        clients: Clients of a round, n; all there are.
        samples: Samples of each client.
        epochs: Passes over them.
        batch: Samples a step.
        rounds: Rounds that count, after one to warm up.
        attack: What a fifth of the clients do.
    """

    clients: int = 25
    samples: int = 50
    epochs: int = 1
    batch: int = 8
    rounds: int = 3
    attack: str = "none"


@dataclass(frozen=True)
class Split:
    """Seconds of each phase, median of the rounds, of one protocol with ``clients`` a round."""

    clients: int
    seconds: dict[str, float]

    @property
    def total(self) -> float:
        """Seconds of a round: the sum of its phases."""
        return sum(self.seconds.values())

    @property
    def met(self) -> bool:
        """True if training takes the share that it should at least."""
        return self.seconds["train"] >= TARGET * self.total


@lru_cache(maxsize=2)
def pool(model: str, samples: int) -> Data:
    """Random images, as many of each label."""
    image = (1, 28, 28) if registry.split(model)[0] in SMALL else (3, 32, 32)
    x = Key(0).fold("pool").uniform(samples, *image).mul(256).to(torch.uint8)
    middle = (0.5,) * image[0]
    return Data(x, torch.arange(samples) % 10, 10, 255.0, middle, middle)


def ready(
    protocol: str, model: str, plan: Plan, device: str = "auto", engine: str = "auto"
) -> Setup:
    """Prepare a run of the protocol with its own rule, whose clients all hold ``plan.samples``.

    Raises:
        ConfigError: the parts do not fit each other.
    """
    scenario = Scenario.of(
        protocol=protocol,
        attack=plan.attack,
        dataset="digits" if registry.split(model)[0] in SMALL else "cifar10",
        model=model,
        partition="iid",
        clients=plan.clients,
        per_round=plan.clients,
        epochs=plan.epochs,
        batch_size=plan.batch,
        rounds=10**6,
        eval_every=10**6,
    )
    data = pool(model, plan.clients * (2 * plan.samples + 4))  # 7 of 10 are for training
    setup = prepare(scenario, device, engine, data=data)
    train = [part[: plan.samples] for part in setup.population.train]
    return setup.with_population(train=train)


def spans(work: Callable[[], object]) -> list[Span]:
    """Return the named spans of ``work``, without torch's own operations, which would slow it."""
    activities = {ProfilerActivity.CPU}
    config = profile().config()  # type: ignore[no-untyped-call]
    _prepare_profiler(config, activities)
    _enable_profiler(config, activities, {RecordScope.USER_SCOPE})  # type: ignore[call-arg]
    try:
        with record_function("rest"):
            work()
    finally:
        events = _disable_profiler().events()
    return [(e.name(), e.start_ns(), e.start_ns() + e.duration_ns()) for e in events]


def own_seconds(found: Iterable[Span]) -> dict[str, float]:
    """Charge every moment to the innermost span; return the seconds of each name.

    >>> own_seconds([("rest", 0, 9 * 10**9), ("attack", 10**9, 5 * 10**9), ("wire", 0, 0)])
    {'rest': 5.0, 'attack': 4.0, 'wire': 0.0}
    """
    seconds: dict[str, float] = {}
    around: list[Span] = []
    for name, start, end in sorted(found, key=lambda span: (span[1], -span[2])):
        while around and around[-1][2] <= start:
            around.pop()
        seconds[name] = seconds.get(name, 0.0) + (end - start) / 1e9
        if around:
            seconds[around[-1][0]] -= (end - start) / 1e9
        around.append((name, start, end))
    return seconds


def measure(setup: Setup, rounds: int) -> Split:
    """Play one round to warm up, then so many that count; nobody looks at test data."""
    state = begin(setup)
    play_round(setup, state, 0)
    played = [
        own_seconds(spans(partial(play_round, setup, state, step))) for step in range(1, rounds + 1)
    ]
    medians = {name: statistics.median(s.get(name, 0.0) for s in played) for name in PHASES}
    return Split(setup.scenario.per_round, medians)


def row(protocol: str, split: Split) -> list[str]:
    """Return the cells of a line."""
    shares = {name: 100 * seconds / split.total for name, seconds in split.seconds.items()}
    training = shares.pop("train")
    return [
        protocol,
        f"{1e3 * split.total:.0f}",
        f"{training:.0f}{'' if split.met else '!'}",
        *(f"{share:.1f}" for share in shares.values()),
        f"{1e3 * (split.total - split.seconds['train']) / split.clients:.2f}",
    ]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", action="append", help="default: lenet, conv8")
    parser.add_argument("-p", "--protocol", action="append", help="default: all")
    parser.add_argument("-a", "--attack", default="none", help="of a fifth of the clients")
    parser.add_argument("--clients", type=int, default=25, help="of a round; all there are")
    parser.add_argument("--samples", type=int, default=50, help="of each client")
    parser.add_argument("--epochs", type=int, default=1, help="passes over them")
    parser.add_argument("--batch-size", type=int, default=8, help="samples a step")
    parser.add_argument("--rounds", type=int, default=3, help="that count, after one to warm up")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--threads", type=int, default=2, help="of torch, on a CPU")
    given = parser.parse_args(words)
    sizes = (given.clients, given.samples, given.epochs, given.batch_size, given.rounds)
    plan = Plan(*sizes, given.attack)
    keep_memory()
    torch.set_num_threads(given.threads)
    print("| " + " | ".join(HEAD) + " |\n| --- |" + " ---: |" * (len(HEAD) - 1))
    for model in given.model or ("lenet", "conv8"):
        print(f"| **{model}** |" + " |" * (len(HEAD) - 1))
        for protocol in given.protocol or registry.names("protocol"):
            try:
                setup = ready(protocol, model, plan, given.device, given.executor)
            except ConfigError as error:
                if given.protocol or not isinstance(error, Incompatible):
                    parser.error(str(error))
                print(f"left out: {protocol} on {model}: {error}", file=sys.stderr)
                continue
            cells = row(protocol, measure(setup, plan.rounds))
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
