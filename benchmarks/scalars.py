"""Accuracy of protocols that send scalars against their bits, beside FedAvg.

``python benchmarks/scalars.py`` prints a Markdown table for logistic regression on the digits: ten
clients, all of them in each of 30 rounds of one epoch, batch 16, seeds 0 to 2.
"""

from __future__ import annotations

import argparse
import statistics

import fedbench

PROTOCOLS = (
    "fedavg:lr=0.03",
    "decomfl:steps=8,p=5,lr=0.03",
    "decomfl:steps=8,p=1,lr=0.01",
    "fedkseed:k=1024,lr=0.01",
    "fedkseed:k=256,lr=0.02",
)


def main() -> None:
    """Print a row for each protocol: mean and deviation over seeds, bits of a client's round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients", type=int, default=10)
    options = parser.parse_args()
    print("| | up bits a round | down bits a round | accuracy % |\n| :-- | --: | --: | --: |")
    for protocol in PROTOCOLS:
        scenario = fedbench.Scenario.of(
            protocol=protocol,
            model="logistic",
            dataset="digits",
            partition="iid",
            clients=options.clients,
            per_round=options.clients,
            malicious=0.0,
            rounds=options.rounds,
            epochs=1,
            batch_size=16,
            eval_every=options.rounds,
        )
        records = [
            fedbench.play(scenario.model_copy(update={"seed": seed}), device="cpu")
            for seed in range(3)
        ]
        rounds = [r for record in records for r in record.rounds]
        messages = options.clients * len(rounds)
        up = sum(r.uplink_bits or 0 for r in rounds) / messages
        down = sum(r.downlink_bits for r in rounds) / messages
        ends = [100 * record.result.accuracy for record in records]
        mean = statistics.mean(ends)
        spread = statistics.stdev(ends)
        print(f"| {protocol} | {up:.0f} | {down:.0f} | {mean:.1f} ± {spread:.1f} |", flush=True)


if __name__ == "__main__":
    main()
