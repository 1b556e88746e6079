"""Fields that many alphabets share, as bytes: floats, seeds, and the rest of a packet."""

import numpy as np
import torch
from torch import Tensor

from fedbench.core.errors import IllegalPayloadError
from fedbench.payload.packets import Bytes, Packet, Part


def number_bytes(x: Tensor) -> list[Part]:
    """Return each row ``(n, p)`` of float32 or int64 as little-endian bytes, and its bits."""
    rows = x.cpu().contiguous().numpy()
    rows = rows.astype(rows.dtype.newbyteorder("<"), copy=False)
    return [(np.frombuffer(row.tobytes(), dtype=np.uint8), 8 * row.nbytes) for row in rows]


def floats_of(data: Bytes) -> Tensor:
    """Return the row ``(1, p)`` float32 that these ``4 p`` bytes are."""
    return torch.from_numpy(np.frombuffer(data.tobytes(), dtype="<f4").astype(np.float32))[None]


def behind(mask: Tensor, x: Tensor) -> Tensor:
    """Return ``x (d,)`` where ``mask (d,)`` is 1, on the CPU: torch's own way is slow there."""
    return torch.from_numpy(np.compress(mask.cpu().numpy(), x.cpu().numpy()))


def placed(mask: Tensor, entries: Tensor) -> Tensor:
    """Return ``(1, d)`` float32: these entries where ``mask (1, d)`` is 1, 0 elsewhere."""
    x = np.zeros(mask.shape, dtype=np.float32)
    x[:, np.flatnonzero(mask.numpy())] = entries.numpy()
    return torch.from_numpy(x)


def seeds_of(data: Bytes) -> Tensor:
    """Return the seed ``(1, 1)`` int64 that these eight bytes are."""
    return torch.from_numpy(np.frombuffer(data.tobytes(), dtype="<i8").astype(np.int64))[None]


def bits_of(data: Bytes, count: int) -> Tensor:
    """Return the row ``(1, count)`` bool that these bytes pack, the highest bit first."""
    return torch.from_numpy(np.unpackbits(data, count=count).astype(np.bool_))[None]


def cut(packet: Packet, *lengths: int) -> list[Bytes]:
    """Return the first parts of a packet, of these lengths in bytes, and what is left of it.

    Raises:
        IllegalPayloadError: the packet is shorter than its parts.
    """
    data = np.frombuffer(packet.data, dtype=np.uint8)
    if len(data) < sum(lengths):
        raise IllegalPayloadError(f"a message must have {sum(lengths)} bytes, got {len(data)}")
    return np.split(data, np.cumsum(lengths))
