"""Fit the decay of a mask's entropy over local steps, and say what it would be after more steps.

``python benchmarks/entropy_decay.py STORE --batches 47 --at 28200``: for every record of the store,
a power law ``1 - H = a s^b`` by least squares of logarithms, on all rounds and on the last half.
``--batches`` is the number of batches of one epoch of a client.
"""

import argparse
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fedbench

Series = npt.NDArray[np.float64]


def entropies(record: fedbench.Record) -> Series:
    """Return the entropy of a message, in bits a parameter, of every round."""
    assert all(r.entropy_bits is not None for r in record.rounds), "no messages of masks"
    benign = [len(r.clients) - r.malicious for r in record.rounds]
    bits = [r.entropy_bits or 0.0 for r in record.rounds]
    shares: Series = np.array(bits) / np.array(benign) / record.parameters
    return shares


def extrapolated(steps: Series, entropy: Series, at: float) -> tuple[float, float]:
    """Return the exponent ``b`` of the power law, and the entropy that it gives at a step."""
    slope, start = np.polyfit(np.log(steps), np.log(1 - entropy), 1)
    return float(slope), float(1 - np.exp(start + slope * np.log(at)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--at", type=float, required=True)
    options = parser.parse_args()
    for record in fedbench.load(options.store):
        assert isinstance(record, fedbench.Record)
        entropy = entropies(record)
        steps = np.arange(1, len(entropy) + 1) * record.scenario.epochs * options.batches * 1.0
        print(f"{record.scenario.protocol}, {record.scenario.model}, seed {record.scenario.seed}")
        print(f"  entropy after {steps[-1]:,.0f} steps: {entropy[-1]:.3f} bits a parameter")
        for name, since in (("all rounds", 0), ("the last half", len(entropy) // 2)):
            exponent, then = extrapolated(steps[since:], entropy[since:], options.at)
            print(f"  {name}: 1 - H ~ s^{exponent:.2f}, {then:.2f} after {options.at:,.0f} steps")


if __name__ == "__main__":
    main()
