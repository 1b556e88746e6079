"""One pool of labelled images, and their owners."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fedbench.core.errors import ConfigError, require


@dataclass(frozen=True, eq=False)
class Data:
    """``N`` labelled images and how to normalise them.

    Args:
        x: ``(N, C, H, W)`` uint8 images.
        y: ``(N,)`` int64 labels in ``0 .. classes - 1``.
        classes: Number of labels.
        scale: The value of a white pixel: dividing by it maps ``x`` to [0, 1].
        mean: Mean of the scaled pixels, per channel.
        std: Standard deviation of the scaled pixels, per channel.
        owner: ``(N,)`` int64 user of each sample, where the data set has users.
        origin: Name of the data set that these samples were loaded as, and their `identity` then;
            see `is_named`. Empty for a pool that did not come from a data set with a name.
    """

    x: Tensor
    y: Tensor
    classes: int
    scale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    owner: Tensor | None = None
    origin: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        """Check types, shapes and ranges."""
        form = (self.x.dtype, self.x.ndim, self.y.dtype)
        if form != (torch.uint8, 4, torch.int64) or self.y.shape != self.x.shape[:1]:
            raise ConfigError(
                "Data must be x uint8 (N, C, H, W) and y int64 (N,), got "
                f"{self.x.dtype} {tuple(self.x.shape)} and {self.y.dtype} {tuple(self.y.shape)}"
            )
        require("Data.y", tuple(self.y.shape), len(self.y) > 0, "at least one sample")
        low, high = (int(label) for label in self.y.aminmax())
        within = low >= 0 and high < self.classes
        require("Data.y", (low, high), within, f"labels from 0 to {self.classes - 1}")
        require("Data.scale", self.scale, self.scale > 0, "> 0")
        channels = self.image[0]
        require("Data.mean", self.mean, len(self.mean) == channels, f"{channels} numbers")
        positive = len(self.std) == channels and min(self.std) > 0
        require("Data.std", self.std, positive, f"{channels} numbers > 0")
        whose = None if self.owner is None else (self.owner.dtype, tuple(self.owner.shape))
        fits = whose in (None, (torch.int64, tuple(self.y.shape)))
        require("Data.owner", whose, fits, f"None or int64 ({len(self.y)},)")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        _, channels, height, width = self.x.shape
        return channels, height, width

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the shapes and the bytes of ``x``, ``y`` and, if any, ``owner``, in hex."""
        state = hashlib.sha256(f"uint8 {tuple(self.x.shape)} int64 {tuple(self.y.shape)}".encode())
        state.update(self.x.cpu().contiguous().numpy().data)
        for numbers in (self.y,) if self.owner is None else (self.y, self.owner):
            state.update(numbers.cpu().contiguous().numpy().astype("<i8").data)
        return state.hexdigest()

    @property
    def identity(self) -> str:
        """SHA-256 of the samples and of how they are normalised, in hex."""
        form = repr((self.classes, self.scale, self.mean, self.std))
        return hashlib.sha256(f"{self.digest} {form}".encode()).hexdigest()

    def named(self, name: str) -> Data:
        """Return the same pool, marked as the data set of that name."""
        return replace(self, origin=(name, self.identity))

    def is_named(self, name: str) -> bool:
        """Whether this is the data set of that name, unchanged since it was loaded."""
        return self.origin == (name, self.identity)

    def to(self, device: torch.device | str) -> Data:
        """Move the pool to a device; ``owner``, which only a partition reads, stays."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def floats(self, rows: Tensor) -> Tensor:
        """``rows (...)`` of the pool as normalised float32 ``(..., C, H, W)``, where ``x`` is."""
        mean, std = self._moments
        return (self.x[rows.to(self.x.device)].float() / self.scale - mean) / std

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        device = self.x.device  # cached: a copy to an accelerator for each batch would wait for it
        mean, std = (torch.tensor(m, device=device)[:, None, None] for m in (self.mean, self.std))
        return mean, std
