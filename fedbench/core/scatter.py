"""Writes to places that all differ, which need no order."""

import torch
from torch import Tensor


def scatter_distinct(out: Tensor, dim: int, places: Tensor, values: Tensor) -> Tensor:
    """Call `torch.Tensor.scatter_` with ``places`` of which no two are equal; return ``out``.

    In torch's deterministic mode CUDA sorts the places first, so that of equal ones the last write
    stays: of a ranking of millions of edges that takes longer than all the rest. Here the result
    does not depend on the order, so the mode is left for this one call.
    """
    if not torch.are_deterministic_algorithms_enabled():  # to set it imports half of torch
        return out.scatter_(dim, places, values)
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        return out.scatter_(dim, places, values)
    finally:
        torch.use_deterministic_algorithms(True, warn_only=warns)
