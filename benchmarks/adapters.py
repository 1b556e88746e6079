"""Accuracy of fine-tuning by LoRA factors against the bits of a message, beside whole weights.

``python benchmarks/adapters.py`` prints a Markdown table. A perceptron is trained on the digits and
then fine-tuned on mirrored digits: ten clients, all of them in each of 20 rounds of one epoch,
batch 16, seeds 0 to 2.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedbench
from fedbench.data.own import from_arrays

LORA = "lora:rank=4"
SYSTEMS = (
    ("fedavg:lr=0.05", "none"),
    ("fedavg:lr=0.05", LORA),
    ("fedavg:lr=0.05", "lora:rank=4,freeze_a=true"),
    ("fedavg:lr=0.05", "lora:rank=1"),
    ("qsgd:lr=0.05", LORA),
    ("signsgd:server_lr=0.01", "none"),
    ("signsgd:server_lr=0.01", LORA),
    ("fedpm", LORA),
    ("decomfl:steps=8,p=5,lr=0.02", "none"),
    ("decomfl:steps=8,p=5,lr=0.02", LORA),
)


def perceptron() -> nn.Module:
    """Return a perceptron of the digits' 64 pixels with two hidden layers, 3,466 parameters."""
    hidden = (nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
    return nn.Sequential(*hidden, nn.Linear(32, 10))


def digits(mirrored: bool) -> Any:
    """Return the digits as rows of 64 numbers, upright or mirrored left to right."""
    x, y = load_digits(return_X_y=True)
    images = x.astype("float32").reshape(-1, 8, 8)
    rows = (images[:, :, ::-1] if mirrored else images).reshape(-1, 64).copy()
    return from_arrays(rows, y, name="mirrored-digits" if mirrored else "digit-rows")


def main() -> None:
    """Print a row for each system: what is trained, bits of a message, mean and deviation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)  # the network is small
    fields: dict[str, Any] = {
        **{"partition": "iid", "clients": 10, "per_round": 10, "malicious": 0.0},
        **{"rounds": options.rounds, "epochs": 1, "batch_size": 16, "eval_every": options.rounds},
    }
    upright = fedbench.Scenario(
        model=perceptron, dataset=digits(False), protocol="fedavg:lr=0.05", **fields
    )
    pretrained = fedbench.play(upright, device="cpu", executor="loop", return_model=True)[1]
    net = perceptron()
    net.load_state_dict(pretrained.state_dict())
    data = digits(True)
    answers = net(data.floats(torch.arange(len(data)))).argmax(dim=1)
    print(f"before fine-tuning: {100 * float((answers == data.y).float().mean()):.1f} %\n")
    print("| | adapter | trained | up bits a message | accuracy % |")
    print("| :-- | :-- | --: | --: | --: |")
    for protocol, adapter in SYSTEMS:
        tuned = fedbench.Scenario(
            model=net, dataset=data, protocol=protocol, adapter=adapter, **fields
        )
        records = [
            fedbench.play(tuned.model_copy(update={"seed": seed}), device="cpu", executor="loop")
            for seed in range(3)
        ]
        trained = records[0].trained or records[0].parameters
        bits = statistics.fmean(
            (r.result.uplink_bits_per_parameter or 0) * r.parameters for r in records
        )
        ends = [100 * r.result.accuracy for r in records]
        accuracy = f"{statistics.fmean(ends):.1f} ± {statistics.stdev(ends):.1f}"
        print(f"| {protocol} | {adapter} | {trained} | {bits:.0f} | {accuracy} |", flush=True)


if __name__ == "__main__":
    main()
