"""Spending indices on coordinates that no honest client sends."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from fedbench.api import Attack, AttackView, Knowledge
from fedbench.payload import Payload, SparseVectors


@dataclass(frozen=True, kw_only=True)
class IndexConcentration(Attack):
    """Spend all indices where the fewest benign clients spend theirs, so that nobody contradicts.

    All colluders send the same: of the coordinates that the fewest benign messages hold, those
    where their own mean update is largest, and there its opposite, as long as their mean message.

    References:
        None: proposed here. The idea is that a sparse message's indices are the client's to choose.
    """

    accepts = (SparseVectors,)

    def needs(self) -> Knowledge:
        return Knowledge("all")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own = view.own
        seen = view.seen
        assert isinstance(own, SparseVectors)
        assert isinstance(seen, SparseVectors)
        rows, width = own.indices.shape
        used = torch.bincount(seen.indices.flatten(), minlength=own.d)
        mean = view.updates[:, : own.d].mean(dim=0)
        by_size = mean.abs().argsort(descending=True, stable=True)
        order = by_size[used[by_size].argsort(stable=True)]
        indices = order[:width].sort().values
        entries = -mean[indices]
        length = torch.linalg.vector_norm(own.entries, dim=1).mean()
        entries = entries * (length / torch.linalg.vector_norm(entries).clamp_min(1e-30))
        view.notes["unused"] = int((used[indices] == 0).sum())
        columns = entries.to(torch.float32).expand(rows, -1).clone()
        return replace(own, indices=indices.expand(rows, -1).clone(), entries=columns), memory
