"""The fields that many alphabets share, as bytes: floats, seeds, and what is left of a packet."""

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.packets import Bytes, Packet


def float_bytes(x: Tensor) -> list[tuple[Bytes, int]]:
    """Each row ``(n, p)`` as little-endian IEEE 754, and its number of bits."""
    rows = x.cpu().contiguous().numpy().astype("<f4", copy=False)
    return [(np.frombuffer(row.tobytes(), dtype=np.uint8), 32 * len(row)) for row in rows]


def floats_of(data: Bytes) -> Tensor:
    """``(p,)`` float32 from ``4 p`` bytes."""
    return torch.from_numpy(np.frombuffer(data.tobytes(), dtype="<f4").astype(np.float32))


def behind(mask: Tensor, x: Tensor) -> Tensor:
    """Those of ``x (d,)`` where ``mask (d,)`` is 1, on the CPU: torch's own way is slow there."""
    return torch.from_numpy(np.compress(mask.cpu().numpy(), x.cpu().numpy()))


def placed(mask: Tensor, entries: Tensor) -> Tensor:
    """``(1, d)`` float32: these entries where ``mask (d,)`` is 1, 0 elsewhere."""
    x = np.zeros(len(mask), dtype=np.float32)
    x[np.flatnonzero(mask.numpy())] = entries.numpy()
    return torch.from_numpy(x)[None]


def seed_bytes(seeds: Tensor) -> list[tuple[Bytes, int]]:
    """Each of ``(n, 1)`` as eight little-endian bytes, and their number of bits."""
    rows = seeds.cpu().numpy().astype("<i8", copy=False)
    return [(np.frombuffer(row.tobytes(), dtype=np.uint8), 64) for row in rows]


def seeds_of(data: Bytes) -> Tensor:
    """``(1,)`` int64 from eight bytes."""
    return torch.from_numpy(np.frombuffer(data.tobytes(), dtype="<i8").astype(np.int64))


def cut(packet: Packet, *lengths: int) -> list[Bytes]:
    """The first parts of a packet, in bytes, and what is left of it.

    Raises:
        IllegalPayloadError: the packet is shorter than its parts.
    """
    data = np.frombuffer(packet.data, dtype=np.uint8)
    if len(data) < sum(lengths):
        raise IllegalPayloadError(f"a message must have {sum(lengths)} bytes, got {len(data)}")
    return np.split(data, np.cumsum(lengths))
