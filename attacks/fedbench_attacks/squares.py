"""Distances and means along a line of messages, from one Gram matrix."""

import torch
from torch import Tensor

from fedbench.core.tiling import tiles


class Squares:
    """Squared distances ``(n, n)`` of honest rows and ``m`` copies of ``base + gamma push``.

    ``|base + gamma p - x_i|^2`` is a quadratic in gamma: the rows are read once, whatever the
    number of trials. All of it is float64.
    """

    def __init__(self, honest: Tensor, base: Tensor, push: Tensor, m: int) -> None:
        b = len(honest)
        self.gram = torch.zeros(b + 1, b + 1, dtype=torch.float64, device=honest.device)
        for tile, middle, line in tiles(honest, base, push):
            rows = self.gram.new_empty(b + 1, tile.shape[1])
            rows[:b].copy_(tile).sub_(middle)
            rows[b] = line
            self.gram += rows @ rows.T
        self.m = m
        self.norms = self.gram.diagonal()[:b]
        self.cross = self.gram[:b, b]
        self.length = self.gram[b, b]
        among = self.norms[:, None] + self.norms[None, :] - 2 * self.gram[:b, :b]
        self.among = among.clamp_min_(0).fill_diagonal_(0)

    def __call__(self, gamma: float) -> Tensor:
        """Return honest rows first, then the copies, which are at distance 0 from each other."""
        b = len(self.norms)
        out = torch.zeros(b + self.m, b + self.m, dtype=torch.float64, device=self.gram.device)
        out[:b, :b] = self.among
        to_copy = (self.norms - 2 * gamma * self.cross + gamma**2 * self.length).clamp_min_(0)
        out[:b, b:] = to_copy[:, None]
        out[b:, :b] = to_copy[None, :]
        return out

    def moved(self, gamma: float, chosen: Tensor) -> float:
        """Return ``|agg - base|`` of a rule that averages the ``chosen (n,)`` rows."""
        b = len(self.norms)
        share = chosen.to(self.gram) / chosen.sum().clamp_min(1)
        weights = torch.cat([share[:b], gamma * share[b:].sum()[None]])
        return float((weights @ self.gram @ weights).clamp_min(0).sqrt())
