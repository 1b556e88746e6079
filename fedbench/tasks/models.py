"""The architectures that the papers train."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fedbench.errors import ConfigError, require
from fedbench.network import Blocks, ConvNet, Image, Network


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """An architecture, before it knows the size of the images."""

    @abstractmethod
    def build(self, image: Image, classes: int) -> Network:
        """The network for images of (channels, height, width).

        Raises:
            ConfigError: The image is too small.
        """


@dataclass(frozen=True, kw_only=True)
class _Pooled(Model):
    """An architecture that is a table: `blocks` of convolutions, then `hidden` layers."""

    blocks: ClassVar[Blocks]
    hidden: ClassVar[tuple[int, ...]] = (256, 256)

    def build(self, image: Image, classes: int) -> Network:
        """Every pool halves the image, so it must be at least ``2 ** pools`` wide and high."""
        require("classes", classes, classes >= 1, ">= 1")
        require("image", image, len(image) == 3 and min(image) >= 1, "(channels, height, width)")
        side = min(image[1:])
        if side < self._side():
            fits = [type(m).__name__.lower() for m in _TABLE if m._side() <= side]
            raise ConfigError(
                f"{type(self).__name__.lower()} needs images of at least {self._side()} x "
                f"{self._side()} for its {len(self.blocks)} pools, got {image}; "
                + (f"use {' or '.join(fits)}" if fits else "use larger images")
            )
        return ConvNet(image, self.blocks, self.hidden, classes)

    def _side(self) -> int:
        """The smallest image that leaves a pixel."""
        return 1 << len(self.blocks)


@dataclass(frozen=True, kw_only=True)
class LeNet(_Pooled):
    """Two convolutions, one pool, one hidden layer: 1,625,632 weights on 28x28x1, 10 classes.

    References:
        Mozaffari, Shejwalkar and Houmansadr, "FSL: Federated Supermask Learning",
        https://arxiv.org/abs/2110.04350, Table 3, rows "LeNet".
    """

    blocks = ((32, 64),)
    hidden = (128,)


@dataclass(frozen=True, kw_only=True)
class Conv4(_Pooled):
    """Four convolutions, two pools.

    References:
        Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning",
        ICLR 2023, https://arxiv.org/abs/2209.15328, Table 2.
    """

    blocks = ((64, 64), (128, 128))


@dataclass(frozen=True, kw_only=True)
class Conv6(_Pooled):
    """Six convolutions, three pools.

    References:
        Isik et al., ICLR 2023, https://arxiv.org/abs/2209.15328, Table 2.
    """

    blocks = ((64, 64), (128, 128), (256, 256))


@dataclass(frozen=True, kw_only=True)
class Conv8(_Pooled):
    """Eight convolutions, four pools: 5,275,840 weights on 32x32x3, 10 classes.

    References:
        Mozaffari, Shejwalkar and Houmansadr, https://arxiv.org/abs/2110.04350, Table 3.
    """

    blocks = ((64, 64), (128, 128), (256, 256), (512, 512))


@dataclass(frozen=True, kw_only=True)
class Conv10(_Pooled):
    """Ten convolutions, five pools.

    The paper trains it on CIFAR-100 only; here the last layer follows the data, as in the others.

    References:
        Isik et al., ICLR 2023, https://arxiv.org/abs/2209.15328, Table 2.
    """

    blocks = ((64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024))


_TABLE = (LeNet(), Conv4(), Conv6(), Conv8(), Conv10())
