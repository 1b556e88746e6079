"""Robustness of your own network on your own table: scikit-learn's breast cancer data, an MLP."""

from functools import partial

from sklearn.datasets import load_breast_cancer
from torch import nn

import fedbench
from fedbench.data.own import from_arrays

x, y = load_breast_cancer(return_X_y=True)
data = from_arrays(x, y, name="breast-cancer")


def mlp() -> nn.Module:
    """Make the network; fedbench draws its weights anew for every seed."""
    return nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 2))


crowd = partial(fedbench.Scenario, model=mlp, dataset=data, clients=20, rounds=30)
for protocol in ("fedavg:lr=0.1", "fedpm"):
    for attack in ("none", "label-flip", "sign-flip"):
        record = fedbench.play(crowd(protocol=protocol, attack=attack), executor="loop")
        print(f"{protocol:14} {attack:12} {100 * record.result.accuracy:5.1f} %")
