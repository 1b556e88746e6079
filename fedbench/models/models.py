"""The architectures that the papers train."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from fedbench.core.errors import ConfigError, require
from fedbench.models.batch_norm_net import BatchNormNet
from fedbench.models.dropout_net import DropoutNet
from fedbench.models.network import Blocks, ConvNet, Image, Network
from fedbench.models.residual_net import ResidualNet


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """An architecture, before it knows the size of the images."""

    @abstractmethod
    def build(self, image: Image, classes: int) -> Network:
        """Build the network for images of (channels, height, width).

        Raises:
            ConfigError: the image is too small.
        """


def _require_data(image: Image, classes: int) -> None:
    require("classes", classes, classes >= 1, ">= 1")
    require("image", image, len(image) == 3 and min(image) >= 1, "(channels, height, width)")


def _require_side(model: Model, image: Image, side: int, why: str) -> None:
    if min(image[1:]) < side:
        raise ConfigError(
            f"{type(model).__name__.lower()} needs images of at least {side} x {side} {why}, "
            f"got {image}; use resnet20"
        )


@dataclass(frozen=True, kw_only=True)
class _Pooled(Model):
    """An architecture given by a table: `blocks` of convolutions, then `hidden` layers."""

    blocks: ClassVar[Blocks]
    hidden: ClassVar[tuple[int, ...]] = (256, 256)

    def build(self, image: Image, classes: int) -> Network:
        """Build the network; every pool halves the image, which must leave a pixel."""
        _require_data(image, classes)
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
        """Side of the smallest image that leaves a pixel."""
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
class Micro(_Pooled):
    """Three convolutions, three pools, no hidden layer: 9,936 weights on 28x28x1, 10 classes.

    Ours, for local differential privacy, whose noise grows with the number of weights.
    """

    blocks = ((16,), (16,), (32,))
    hidden = ()


@dataclass(frozen=True, kw_only=True)
class Conv4(_Pooled):
    """Network of four convolutions and two pools.

    References:
        Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning", ICLR
        2023, https://arxiv.org/abs/2209.15328, Table 2.
    """

    blocks = ((64, 64), (128, 128))


@dataclass(frozen=True, kw_only=True)
class Conv6(_Pooled):
    """Network of six convolutions and three pools.

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
    """Network of ten convolutions and five pools.

    The paper trains it on CIFAR-100 only; here the last layer follows the data, as in the others.

    References:
        Isik et al., ICLR 2023, https://arxiv.org/abs/2209.15328, Table 2.
    """

    blocks = ((64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024))


@dataclass(frozen=True, kw_only=True)
class _BatchNormed(Model):
    """Blocks of normalised convolutions, a pool after each, then one linear layer."""

    blocks: ClassVar[Blocks]

    def build(self, image: Image, classes: int) -> Network:
        """Build the network, without the last pool for images under 16 x 16, such as the digits."""
        _require_data(image, classes)
        least = len(self.blocks) - 1
        _require_side(self, image, 1 << least, f"for its first {least} pools")
        pools = min(len(self.blocks), min(image[1:]).bit_length() - 1)
        return BatchNormNet(image, self.blocks, pools, classes)


@dataclass(frozen=True, kw_only=True)
class CNN4(_BatchNormed):
    """Four convolutions with batch norm: 389,920 weights on 28x28x1, 10 classes.

    The paper says neither widths nor pools; these are those of its public code.

    References:
        Li et al., "Masked Random Noise for Communication-Efficient Federated Learning", ACM MM
        2024, https://arxiv.org/abs/2408.03220, section 5.1.1;
        https://github.com/Leopold1423/fedmrn-mm24, model/cnn.py.
    """

    blocks = ((32,), (64,), (128,), (256,))


@dataclass(frozen=True, kw_only=True)
class CNN8(_BatchNormed):
    """Eight convolutions with batch norm: 1,181,536 weights on 32x32x3, 10 classes.

    The paper says neither widths nor pools; these are those of its public code.

    References:
        Li et al., ACM MM 2024, https://arxiv.org/abs/2408.03220, section 5.1.1;
        https://github.com/Leopold1423/fedmrn-mm24, model/cnn.py.
    """

    blocks = ((32, 32), (64, 64), (128, 128), (256, 256))


@dataclass(frozen=True, kw_only=True)
class LeNet5(Model):
    """LeNet-5 with dropout: 582,026 parameters on 28x28x1, 10 classes.

    The paper gives no widths. 32 and 64 channels and 512 hidden units, without padding, send what
    its Table 1 has for FedAvg: 65 GB (of 2**30 bytes) on CIFAR-10, 272 on Femnist.

    Args:
        conv_dropout: Rate after the second convolution and its pool.
        dense_dropout: Rate after the first fully-connected layer.

    References:
        Louizos, Reisser, Soriaga and Welling, "A Graphical Model Perspective on Federated
        Learning", ICLR 2021 workshop on Distributed and Private Machine Learning, appendix C;
        LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE 1998,
        https://doi.org/10.1109/5.726791, Figure 2.
    """

    conv_dropout: float = 0.1
    dense_dropout: float = 0.3

    def __post_init__(self) -> None:
        for name in ("conv_dropout", "dense_dropout"):
            rate = getattr(self, name)
            require(f"LeNet5.{name}", rate, 0 <= rate < 1, "in [0, 1)")

    def build(self, image: Image, classes: int) -> Network:
        """Build the network; images under 16 x 16, too small for it, are padded."""
        _require_data(image, classes)
        _require_side(self, image, 4, "for its 2 pools")
        padding = 0 if min(image[1:]) >= 16 else 2
        rates = (self.conv_dropout, self.dense_dropout)
        return DropoutNet(image, (32, 64), padding, 512, classes, *rates)


@dataclass(frozen=True, kw_only=True)
class ResNet20(Model):
    """Residual network of 20 layers with group norm: 275,572 parameters on 32x32x3, 100 classes.

    Shortcuts have no parameters (option A): so it sends the 123 GB that the paper's Table 1 has for
    FedAvg on CIFAR-100; with 1x1 convolutions it would be 124.

    Args:
        groups: Groups of a normalisation; 2 as in the public code of Reddi et al., whom the paper
            follows.

    References:
        Louizos et al., ICLR 2021 workshop (see `LeNet5`), appendix C; He et al., "Deep Residual
        Learning for Image Recognition", CVPR 2016, https://arxiv.org/abs/1512.03385, section 4.2;
        Wu and He, "Group Normalization", ECCV 2018, https://arxiv.org/abs/1803.08494, eq. 7.
    """

    groups: int = 2

    def __post_init__(self) -> None:
        divides = self.groups >= 1 and 16 % self.groups == 0
        require("ResNet20.groups", self.groups, divides, "a divisor of its 16 channels")

    def build(self, image: Image, classes: int) -> Network:
        _require_data(image, classes)
        return ResidualNet(image, (16, 32, 64), 3, self.groups, classes)


_TABLE = (LeNet(), Conv4(), Conv6(), Conv8(), Conv10())
