"""FedAvg with updates as 16-bit floats."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Memory, Shared
from fedbench.core.rng import Key
from fedbench.payload import HalfVectors, Payload
from fedbench.payload.half_vectors import DTYPES, Half
from fedbench.protocols.fedavg import DenseWeights


@dataclass(frozen=True, kw_only=True)
class Cast(DenseWeights):
    """FedAvg whose clients cast their update to 16 bits: half the bits without a codec.

    Values are rounded to nearest even, and a finite value beyond the largest one becomes the
    largest. The server computes and broadcasts in 32 bits.

    Args:
        form: ``fp16`` (IEEE 754 binary16) or ``bf16`` (the upper half of a float32).

    References:
        McMahan et al., AISTATS 2017, https://arxiv.org/abs/1602.05629, Algorithm 1; the formats:
        IEEE 754-2019, and Kalamkar et al., https://arxiv.org/abs/1905.12322.
    """

    sends = HalfVectors

    form: Half = "fp16"

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        blank = HalfVectors(torch.zeros_like(updates, dtype=DTYPES[self.form]), self.form)
        return blank.nearest(updates), memory
