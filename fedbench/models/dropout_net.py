"""LeNet-5, a network with dropout and biases."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.gaussian_init import kaiming_normal
from fedbench.models.network import Image, Network, Step, convolution


def dropout(x: Tensor, rate: float, layer: str, step: Step | None) -> Tensor:
    """Set each value of ``x`` to 0 with probability ``rate`` in training, else scale it up.

    References:
        Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", JMLR
        2014, https://jmlr.org/papers/v15/srivastava14a.html, section 10 (scaled in training).
    """
    if step is None:
        return x
    mask = step.key.fold(layer).uniform(*x.shape, device=x.device) >= rate
    return x * mask / (1 - rate)


@dataclass(frozen=True)
class DropoutNet(Network):
    """Two 5x5 convolutions + ReLU + 2x2 max pool, fully connected + ReLU, last linear; all biased.

    Dropout follows the second pool and the first fully-connected layer's ReLU.
    """

    image: Image
    convs: tuple[int, int]  # output channels
    padding: int  # pixels of zeros around the input of a convolution
    hidden: int  # width of the first fully-connected layer
    classes: int
    conv_dropout: float  # rate after the convolutions
    dense_dropout: float  # rate after the first fully-connected layer

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameter name to shape: weights, then biases, in layer order.

        >>> DropoutNet((1, 28, 28), (32, 64), 0, 512, 10, 0.1, 0.3).shapes["fc1"]
        (512, 1024)
        """
        first, second = self.convs
        weights = {
            "conv1": (first, self.image[0], 5, 5),
            "conv2": (second, first, 5, 5),
            "fc1": (self.hidden, second * math.prod(map(self._pooled, self.image[1:]))),
            "fc2": (self.classes, self.hidden),
        }
        return weights | {f"{name}.bias": shape[:1] for name, shape in weights.items()}

    def _pooled(self, side: int) -> int:
        """Length of a side after two convolutions and two pools."""
        for _ in self.convs:
            side = (side + 2 * self.padding - 4) // 2
        return side

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        for name in ("conv1", "conv2"):
            x = convolution(step)(x, params[name], params[f"{name}.bias"], padding=self.padding)
            x = F.max_pool2d(F.relu(x), 2)
        x = dropout(x, self.conv_dropout, "conv2", step).flatten(1)
        x = F.relu(F.linear(x, params["fc1"], params["fc1.bias"]))
        x = dropout(x, self.dense_dropout, "fc1", step)
        return F.linear(x, params["fc2"], params["fc2.bias"])

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        return kaiming_normal(self, key, device)
