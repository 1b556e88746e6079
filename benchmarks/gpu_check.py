"""One round of every protocol on two devices, side by side.

``make gpu-check`` compares the CPU with CUDA, from files that are on the machine: the data set is
scikit-learn's ``digits``. Each device plays the same two rounds with its own executor; the table
shows how far the deployed models are apart, relative to how far the last round moved them, and
how long that round took. Where scores are trained, a rounding error moves an edge at the cut, or a
probability at its draw, to the other side: there the share of weights that differ is shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from fedbench.core import registry
from fedbench.core.errors import FedbenchError
from fedbench.core.rng import Key
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.state import RunState
from fedbench.run import play_round

SEARCHES = [("fedavg", "dyn-opt", defense) for defense in ("trimmed-mean", "multi-krum")]
TOLERANCE = 1e-2  # of the distance that a round moves the model, or of the edges


@dataclass(frozen=True)
class Played:
    """The model before and after a round, ``(d,)`` on the CPU, and the round's seconds."""

    before: Tensor
    after: Tensor
    seconds: float


def play(protocol: str, device: str, executor: str, attack: str, defense: str) -> Played:
    scenario = Scenario.of(
        protocol=protocol, clients=40, per_round=10, epochs=1, attack=attack, defense=defense
    )
    setup = prepare(scenario, device, executor)
    state = RunState(setup.plugins.protocol.init(setup.shared))

    def model() -> Tensor:
        deployed = setup.plugins.protocol.model(setup.shared, state.server, Key(0))
        ensemble = [deployed] if isinstance(deployed, dict) else deployed
        return torch.cat([setup.shared.layout.flatten(tree) for tree in ensemble]).cpu()

    play_round(setup, state, 0)  # the first launches of a device are slow
    before, start = model(), time.perf_counter()
    play_round(setup, state, 1)
    after = model()
    return Played(before, after, time.perf_counter() - start)


def difference(protocol: str, a: Played, b: Played) -> float:
    if registry.plugin("protocol", protocol).space != "weights":
        return float((a.after != b.after).float().mean())
    return float((a.after - b.after).norm() / (a.after - a.before).norm().clamp_min(1e-12))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="what the CPU is compared with")
    parser.add_argument("--executor", default="padded", help="padded, recorded, loop: there")
    args = parser.parse_args()
    console = Console()
    table = Table("protocol", "difference", "cpu, loop (s)", f"{args.device}, {args.executor} (s)")
    worst = 0.0
    try:
        cases = [(protocol, "sign-flip", "own") for protocol in registry.names("protocol")]
        for protocol, attack, defense in [*cases, *SEARCHES]:
            cpu = play(protocol, "cpu", "loop", attack, defense)
            other = play(protocol, args.device, args.executor, attack, defense)
            gap = difference(protocol, cpu, other)
            worst = max(worst, gap)
            name = protocol if defense == "own" else f"{protocol}, {attack} on {defense}"
            table.add_row(name, f"{gap:.1e}", f"{cpu.seconds:.3f}", f"{other.seconds:.3f}")
    except FedbenchError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return 2
    console.print(table)
    verdict = "agree" if worst <= TOLERANCE else "DISAGREE"
    console.print(f"the devices {verdict}: at most {worst:.1e}, allowed {TOLERANCE:g}")
    return 0 if worst <= TOLERANCE else 1


if __name__ == "__main__":
    sys.exit(main())
