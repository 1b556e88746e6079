"""Mimic, which makes one kind of honest client count more."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import AttackView, Choices
from fedbench.core.errors import require
from fedbench.payload import Rows

from .crafted import Crafted, honest_messages, mean_of


@dataclass(frozen=True, kw_only=True)
class Mimic(Crafted):
    """All colluders copy the row with the largest ``<z, x_i>``, where ``z`` is how clients differ.

    ``z`` is learned in the first ``warmup`` rounds that the adversary takes part in, by Oja's rule:
    ``mu <- (t mu + mean) / (t + 1)``, and with ``v = sum_i (x_i - mu) <x_i - mu, z>`` of the known
    rows ``z <- (t z + v / |v|) / (t + 1)``, made a unit vector again. It starts at random.

    The paper copies one client for the whole run, chosen after the warm-up; here the row is chosen
    in each round. The paper adds ``v`` itself, so that short updates turn ``z`` slowly.

    Args:
        warmup: Rounds in which ``z`` and ``mu`` are learned.

    References:
        Karimireddy, He and Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via
        Bucketing", ICLR 2022, https://arxiv.org/abs/2006.09365, the section on mimic, and appendix.
    """

    choices: ClassVar[Choices] = {"warmup": (1, 50)}

    warmup: int = 10

    def __post_init__(self) -> None:
        require("Mimic.warmup", self.warmup, self.warmup >= 1, ">= 1")

    @property
    def keeps(self) -> bool:
        return True

    def rows(self, view: AttackView, honest: Rows) -> Tensor:
        return copied(view, honest, self.learned(view, honest, None))

    def learned(self, view: AttackView, honest: Rows, memory: Any) -> tuple[int, Tensor, Tensor]:
        """Return ``(t, mu, z)`` one round later, or unchanged after the warm-up."""
        mean = mean_of(view, honest)
        if memory is None:
            z = view.key.fold("mimic").normal(len(mean), device=mean.device)
            memory = (0, torch.zeros_like(mean), z / torch.linalg.vector_norm(z))
        t, mu, z = memory
        if t >= self.warmup:
            return t, mu, z
        mu = (t * mu + mean) / (t + 1)
        v = torch.zeros_like(mu)
        for some in a_few(honest):
            apart = some - mu
            v += (apart @ z) @ apart
        z = t * z + v / torch.linalg.vector_norm(v) if bool(v.any()) else z
        return t + 1, mu, z / torch.linalg.vector_norm(z).clamp_min(1e-12)

    def look(self, view: AttackView, memory: Any) -> tuple[Tensor | None, Any]:
        honest = honest_messages(view, self.knows)
        if honest is None:
            return None, memory
        memory = self.learned(view, honest, memory)
        return copied(view, honest, memory), memory


def a_few(honest: Rows) -> Iterator[Tensor]:
    """Return some of the honest rows ``(r, k)`` at a time: all of them where they are rows."""
    if isinstance(honest, Tensor):
        yield honest
    else:
        yield from (part.values().to(torch.float32) for part in honest.parts())


def copied(view: AttackView, honest: Rows, learned: tuple[int, Tensor, Tensor]) -> Tensor:
    """Return the honest row ``(k,)`` that is farthest along ``z``."""
    t, mu, z = learned
    along = torch.cat([some @ z for some in a_few(honest)])
    view.notes["warmup"] = t
    view.notes["along"] = float(along.max() - mu @ z)
    row = int(along.argmax())
    if isinstance(honest, Tensor):
        return honest[row]
    return next(a_few(honest.take(torch.tensor([row]))))[0]
