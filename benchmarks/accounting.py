"""Time that accounting takes: by itself for large models, and beside the run it accounts for.

    python benchmarks/accounting.py

First the seconds of every bound for 5.2 million bits and 1000 rounds; then, for short runs on
``digits``, the share of the wall time that went into pricing, measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from fedbench.api import DpEvent, Sees
from fedbench.experiment.guarantee import guarantee, spend
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.privacy import accountants, amplification, sampling
from fedbench.privacy.accountants import Ledger, Participation, price
from fedbench.privacy.events import (
    FlippedBits,
    GaussianGradients,
    GaussianSum,
    MaskSample,
    NoisySigns,
)
from fedbench.run import play

D, ROUNDS = 5_200_000, 1000
EVENTS: dict[str, DpEvent] = {
    "mask-gaussian, cube": MaskSample(D, 0.2, 0.2, None),
    "mask-gaussian, clip 1": MaskSample(D, 0.2, 0.2, 1.0),
    "mask-sampling, clip 1": MaskSample(D, 0.0, 0.05, 1.0),
    "randomized-response": FlippedBits(D, 0.25),
    "noisy-sign": NoisySigns(D, 2.0),
    "dp-fedavg": GaussianSum(1.1),
    "dp-sgd": GaussianGradients(1.1, 0.05, 20),
}
RUNS = {
    "fedpm": ("mask-gaussian", "mask-gaussian:clip=1", "randomized-response"),
    "signsgd": ("noisy-sign",),
    "fedavg": ("dp-fedavg", "dp-sgd:clip=0.5"),
}


def forget() -> None:
    """Prices are kept for later rounds; a new process starts without them."""
    amplification.probit_constant.cache_clear()
    sampling._poisson_step.cache_clear()
    sampling._prv.cache_clear()
    accountants._summed.cache_clear()
    accountants._sampled_sum.cache_clear()


def seconds(work: Callable[..., object], *given: object, **named: object) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    work(*given, **named)
    return time.perf_counter() - start


def large() -> None:
    """Every bound of one event, before everybody's eyes."""
    print(f"epsilon for d = {D:,}, T = {ROUNDS}: seconds of all bounds")
    price(
        GaussianSum(1.0), Participation(1, 1, 2, 1, 1, "model", "poisson"), 1e-5
    )  # imports Opacus
    for name, event in EVENTS.items():
        sees: Sees = "model" if isinstance(event, GaussianSum) else "messages"
        participation = Participation(ROUNDS, ROUNDS, 100, 10, 10, sees)
        took = seconds(price, event, participation, 1e-5)
        line = f"  {name:24} {took:6.2f}"
        if isinstance(event, MaskSample | FlippedBits):
            forget()
            hidden = Participation(ROUNDS, ROUNDS, 100, 10, 10, "hidden-sum")
            line += f"   with the sum of 10: {seconds(price, event, hidden, 1e-5):.2f}"
        print(line, flush=True)


def beside_runs() -> None:
    """The share of accounting in a run: a price for each look at test data, the last by all."""
    print("share of the wall time of a run of 30 rounds on digits (lenet, 50 clients, 10 a round)")
    for protocol, mechanisms in RUNS.items():
        for mechanism in mechanisms:
            scenario = Scenario(protocol=protocol, mechanism=mechanism, rounds=30)
            took = seconds(play, scenario, device="cpu")
            setup = prepare(scenario, "cpu")
            ledger = Ledger()
            for step in range(scenario.rounds):
                ids = setup.sample(step)
                spend(setup, ledger, ids, torch.ones(len(ids), dtype=torch.bool))
            forget()
            look = seconds(guarantee, setup, ledger, slow=False)
            looks = look + sum(
                seconds(guarantee, setup, ledger, slow=False)
                for _ in range(scenario.rounds // scenario.eval_every)
            )
            spent = looks + seconds(guarantee, setup, ledger)
            print(
                f"  {protocol} + {mechanism:24} run {took:6.1f} s, accounting {spent:.2f} s = "
                f"{100 * spent / took:.2f} %",
                flush=True,
            )


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=raw).parse_args()
    torch.set_num_threads(2)
    large()
    beside_runs()
