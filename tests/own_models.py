"""Modules as a user writes them, and a package that offers them as plug-ins."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedbench.models.modules import ModuleModel
from fedbench.models.network import Image


class Normed(nn.Module):
    """Convolution, batch norm, dropout and a linear layer, with a view as in many a tutorial."""

    def __init__(self, image: Image = (1, 8, 8), classes: int = 10, rate: float = 0.2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(image[0], 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(rate)
        self.fc = nn.Linear(4 * (image[1] // 2) * (image[2] // 2), classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        out: Tensor = self.fc(self.drop(x.view(len(x), -1)))
        return out


class Plain(nn.Module):
    """Two linear layers, a norm between them."""

    def __init__(self, inputs: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, 12)
        self.norm = nn.LayerNorm(12)
        self.head = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(self.first(x.flatten(1))).relu())
        return out


class Dropping(Plain):
    """`Plain` with dropout from torch's global generator."""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.first(x.flatten(1))).relu()
        out: Tensor = self.head(F.dropout(hidden, 0.5, self.training))
        return out


class Branching(Plain):
    """`Plain` that decides by a value of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if x.sum() > 0 else -x)


class Words(nn.Module):
    """Mean of embeddings, and a linear layer."""

    def __init__(self, words: int = 20, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 6)
        self.out = nn.Linear(6, classes)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.embed(ids).mean(dim=1))
        return out


@dataclass(frozen=True, kw_only=True)
class NormedModel(ModuleModel):
    """`Normed` as a plug-in.

    Args:
        rate: Rate of its dropout.
    """

    rate: float = 0.2

    def make(self, image: Image, classes: int) -> nn.Module:
        return Normed(image, classes, self.rate)


@dataclass(frozen=True, kw_only=True)
class PlainModel(ModuleModel):
    """`Plain` as a plug-in."""

    def make(self, image: Image, classes: int) -> nn.Module:
        return Plain(torch.Size(image).numel(), classes)


@dataclass(frozen=True, kw_only=True)
class DroppingModel(ModuleModel):
    """`Dropping` as a plug-in."""

    def make(self, image: Image, classes: int) -> nn.Module:
        return Dropping(torch.Size(image).numel(), classes)


MODELS = ["normed = own_models:NormedModel", "plain = own_models:PlainModel"]
MODELS += ["dropping = own_models:DroppingModel"]
