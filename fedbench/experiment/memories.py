"""What clients remember between rounds, in bounded memory: what is too much lies in a file."""

import math
import mmap
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import IO

import torch
from torch import Tensor

from fedbench.api import Memory

HELD = 1 << 30  # bytes of memories that are held as tensors
Form = tuple[tuple[str, torch.dtype, tuple[int, ...], torch.device], ...]  # of a memory


@dataclass(eq=False)
class Shelf:
    """Memories of one form in a mapped file of places of one size; the file has no name."""

    form: Form
    file: IO[bytes] = field(default_factory=lambda: tempfile.TemporaryFile(prefix="fedbench-"))
    mapped: mmap.mmap | None = None
    places: dict[int, int] = field(default_factory=dict)  # by client
    free: list[int] = field(default_factory=list)
    size: int = 0  # bytes of a place

    def __post_init__(self) -> None:
        self.size = sum(math.prod(shape) * dtype.itemsize for _, dtype, shape, _ in self.form)

    def put(self, i: int, memory: Memory) -> None:
        """Write the memory of client ``i``."""
        if not self.size:
            self.places[i] = 0
            return
        place = self.free.pop() if self.free else len(self.places)
        self._reach(place + 1)
        self.places[i] = place
        assert self.mapped is not None
        start = place * self.size
        for name, *_ in self.form:
            data = memory[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            self.mapped[start : start + data.nbytes] = data.data
            start += data.nbytes

    def take(self, i: int) -> Memory:
        """Read the memory of client ``i`` and forget it."""
        place = self.places.pop(i)
        memory = {}
        start = place * self.size
        for name, dtype, shape, device in self.form:
            size = math.prod(shape) * dtype.itemsize
            data = b"" if self.mapped is None else self.mapped[start : start + size]
            empty = torch.empty(shape, dtype=dtype)
            flat = torch.frombuffer(bytearray(data), dtype=dtype) if size else empty
            memory[name] = flat.reshape(shape).to(device)
            start += size
        if self.size:
            self.free.append(place)
        return memory

    def drop_pages(self) -> None:
        """Tell the system that this process needs none of the pages for now; they are not lost."""
        if self.mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)

    def _reach(self, count: int) -> None:
        """Make the file long enough for so many places; it grows by halves."""
        if self.mapped is None or len(self.mapped) < count * self.size:
            self.file.truncate(max(count, 16, len(self.places) * 3 // 2) * self.size)
            if self.mapped is not None:
                self.mapped.close()
            self.mapped = mmap.mmap(self.file.fileno(), 0)


@dataclass(eq=False)
class Memories(MutableMapping[int, Memory]):
    """Memory of each client that took part: the latest ones as tensors, the others in a file.

    What is read is what was written, bit for bit, on the same device. The file is in the folder for
    temporary files (``TMPDIR``) and goes with the process. It grows to the memories of all clients
    that took part but for `HELD` bytes: a residual of ``d`` float32 is ``4 d`` bytes a client.
    """

    most: int = HELD  # bytes that are held as tensors
    held: OrderedDict[int, Memory] = field(default_factory=OrderedDict)  # the latest ones last
    shelves: dict[Form, Shelf] = field(default_factory=dict)
    shelf_of: dict[int, Shelf] = field(default_factory=dict)  # of each client that is in a file
    bytes: int = 0  # of those held

    def __len__(self) -> int:
        return len(self.held) + len(self.shelf_of)

    def __iter__(self) -> Iterator[int]:
        return iter([*self.shelf_of, *self.held])

    def __getitem__(self, i: int) -> Memory:
        if i not in self.held:
            self[i] = self.shelf_of[i].take(i)
        return self.held[i]
