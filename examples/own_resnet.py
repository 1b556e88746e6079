"""Robustness of torchvision's ResNet-18, with group norm, on a part of CIFAR-10.

Usage: python examples/own_resnet.py [rounds [protocol ...]]
"""

import sys
from functools import partial

from torch import nn

import fedbench
from fedbench.data.archives import vision

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
protocols = sys.argv[2:] or ["fedavg:lr=0.05", "eden:lr=0.05"]
resnet18 = vision("models").resnet18  # torchvision, also beside a CPU build of torch
norm = partial(nn.GroupNorm, 8)
model = partial(resnet18, num_classes=10, norm_layer=norm)
crowd = partial(fedbench.Scenario, dataset="cifar10-20k", clients=200, rounds=rounds, epochs=1)
for protocol in protocols:
    for attack in ("none", "label-flip", "ipm"):
        scenario = crowd(model=model, protocol=protocol, attack=attack, batch_size=32)
        record = fedbench.play(scenario, executor="loop")
        print(f"{protocol:15} {attack:11} {100 * record.result.accuracy:5.1f} %", flush=True)
