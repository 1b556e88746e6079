"""Memory and time of a round against its cohort, kept whole and streamed.

    python benchmarks/cohort_memory.py [--clients N ...] [--whole N ...] [--only PROTOCOL ...]
                                       [--defense RULE] [--attack ATTACK]
                                       [--model NAME] [--chunk N]

Each line is a process of its own that plays one round of a network, by default of 986,938 weights,
on digits, with virtual clients of which a tenth are malicious, and prints the peak of its resident
memory and CPU seconds a client: of training, and of all else, which is the framework's. The last
lines say how much a client of the cohort adds to the peak, by least squares over the cohorts,
beside its packet.
"""

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedbench import Scenario
from fedbench.executors.training import Client, Loop, Trained
from fedbench.experiment.prepare import prepare
from fedbench.run import begin, play_round

HIDDEN = 13337
PAIRS = {  # protocol: attack
    "fedpm": "mask-ipm",
    "signsgd": "margin",
    "fsl": "rank-reversal",
    "qsgd": "ipm",
    "fedavg": "ipm",
}
SCENARIO: dict[str, Any] = {
    "dataset": "digits",
    "partition": "virtual:beta=0.3",
    "clients": 1_000_000,
    "malicious": 0.1,
    "rounds": 1,
    "epochs": 1,
    "batch_size": 32,
}


class Wide(torch.nn.Module):
    """One wide layer: many weights that are quickly trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, HIDDEN, bias=False)
        self.last = torch.nn.Linear(HIDDEN, 10, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores ``(B, 10)`` of digits ``(B, 1, 8, 8)``."""
        scores: torch.Tensor = self.last(torch.relu(self.first(x.flatten(1))))
        return scores


@dataclass(frozen=True, eq=False)
class Timed(Loop):
    """Loop that writes down the CPU seconds of each call."""

    seconds: list[float] = field(default_factory=list, kw_only=True)

    def train(self, clients: Sequence[Client]) -> Trained:
        """Train as the loop does."""
        start = time.process_time()
        trained = super().train(clients)
        self.seconds.append(time.process_time() - start)
        return trained


def one(changes: dict[str, Any], chunk: int | None) -> dict[str, Any]:
    """Play one round, and return its peak of memory, its seconds and the bits of a message."""
    torch.set_num_threads(1)
    start = time.process_time()
    model = Wide() if changes["model"] == "wide" else changes["model"]
    setup = prepare(Scenario(**(SCENARIO | changes | {"model": model})), "cpu", "loop")
    loop = Timed(setup.plugins.protocol, setup.shared, setup.executor.schedule)
    setup = dataclasses.replace(setup, executor=loop, at_once=chunk)
    played = play_round(setup, begin(setup), 0)
    seconds = time.process_time() - start
    training = sum(loop.seconds)
    return {
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "training": training,
        "framework": seconds - training,
        "bits": (played.uplink_bits or 0) / changes["per_round"],
    }


def measured(changes: dict[str, Any], chunk: int | None) -> dict[str, Any]:
    """Measure in a process of its own, and print the line."""
    command = [sys.executable, __file__, "--one", json.dumps([changes, chunk])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    cohort = changes["per_round"]
    how = "whole" if chunk is None else "streamed"
    training, framework = (1000 * record[name] / cohort for name in ("training", "framework"))
    numbers = f"{record['mib']:.0f} | {training:.2f} | {framework:.2f}"
    print(f"{changes['protocol']} | {cohort} | {how} | {numbers}", flush=True)
    return record


def main() -> None:
    """Print the lines, and what a client adds."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--whole", type=int, nargs="*", default=[20, 40])
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--defense", default="mean")
    parser.add_argument("--attack", help="by default one that suits the protocol")
    parser.add_argument("--model", default="wide", help="wide: the layer of a million weights")
    parser.add_argument("--chunk", type=int, default=8, help="clients of a streamed round at once")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(one(*json.loads(options.one))))
        return
    print("protocol | cohort | messages | peak MiB | training ms a client | framework ms a client")
    ends = []
    for protocol in options.only:
        changes = {"protocol": protocol, "model": options.model, "defense": options.defense}
        changes["attack"] = options.attack or PAIRS[protocol]
        for chunk, cohorts in ((None, options.whole), (options.chunk, options.clients)):
            lines = [measured(changes | {"per_round": cohort}, chunk) for cohort in cohorts]
            if len(lines) < 2:
                continue
            slope = np.polyfit(cohorts, [x["mib"] for x in lines], 1)[0]
            packet = lines[-1]["bits"] / 8 / 2**20
            how = "whole" if chunk is None else "streamed"
            ends.append(
                f"{protocol}, {how}: {slope:.3f} MiB a client, whose packet has {packet:.3f}"
            )
    print("\n" + "\n".join(ends))


if __name__ == "__main__":
    main()
