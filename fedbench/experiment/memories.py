"""Memories of clients between rounds, in bounded memory: those that are too many lie in a file."""

import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from io import FileIO
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.api import Memory
from fedbench.core.errors import ConfigError
from fedbench.core.scratch import scratch, write_at

MAX_HELD_BYTES = 1 << 30  # of memories that are tensors; the others lie in a file
Form = tuple[tuple[str, torch.dtype, tuple[int, ...], torch.device], ...]  # of a memory


def form_of(memory: Memory) -> Form:
    """Return names, types, shapes and devices of a memory."""
    return tuple((name, x.dtype, tuple(x.shape), x.device) for name, x in memory.items())


def bytes_of(memory: Memory) -> int:
    """Return the bytes of the numbers of a memory."""
    return sum(x.nbytes for x in memory.values())


def size_of(form: Form) -> int:
    """Return the bytes of the numbers of a memory of this form."""
    return sum(math.prod(shape) * dtype.itemsize for _, dtype, shape, _ in form)


@dataclass(eq=False)
class Shelf:
    """Memories of one form in a file without a name, each at a place of the same size.

    It is read and written, not mapped: mapped pages would count as memory of the process.
    """

    form: Form
    file: FileIO = field(default_factory=lambda: scratch("memories of clients"))
    places: dict[int, int] = field(default_factory=dict)  # by client
    free: list[int] = field(default_factory=list)

    def put(self, i: int, memory: Memory) -> None:
        """Write the memory of client ``i``; `ConfigError` if there is no room."""
        place = self.free.pop() if self.free else len(self.places)
        self.places[i] = place
        self._write(place, memory.values())

    def get(self, i: int) -> Memory:
        """Read the memory of client ``i``."""
        memory = {name: torch.empty(shape, dtype=dtype) for name, dtype, shape, _ in self.form}
        self.file.seek(self.places[i] * bytes_of(memory))
        for x in memory.values():
            view = _view(x)
            while len(view):
                count = self.file.readinto(view)
                assert count, "the file ends before the memory does"  # it would be read for ever
                view = view[count:]
        return {name: memory[name].to(device) for name, _, _, device in self.form}

    def drop(self, i: int) -> None:
        """Forget the memory of client ``i``; its place is used again."""
        self.free.append(self.places.pop(i))

    def mapped(self) -> Tensor:
        """Return the bytes of the file, ``(size,)`` uint8, which are read only when they are used.

        They are those of the file until something is written to it.
        """
        if os.fstat(self.file.fileno()).st_size == 0:
            return torch.empty(0, dtype=torch.uint8)
        pages = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_COPY)  # torch wants no others
        return torch.frombuffer(pages, dtype=torch.uint8)

    @classmethod
    def copied(cls, form: Form, places: dict[int, int], data: Tensor) -> Self:
        """Return a shelf whose file has these bytes; `ConfigError` if there is no room for them."""
        shelf = cls(form, places=places)
        taken = set(places.values())
        shelf.free = [place for place in range(max(taken)) if place not in taken]
        shelf._write(0, [data])
        return shelf

    def _write(self, place: int, parts: Iterable[Tensor]) -> None:
        size = size_of(self.form)
        subject = f"memories of {len(self.places)} clients, {size} bytes each,"
        views = (_view(x.detach().cpu().contiguous()) for x in parts)
        write_at(self.file, place * size, views, subject)


def _view(x: Tensor) -> memoryview:
    """Return the bytes of a contiguous tensor, which may be written to."""
    return (
        memoryview(x.reshape(-1).view(torch.uint8).numpy().data) if x.numel() else memoryview(b"")
    )


@dataclass(eq=False)
class Memories(MutableMapping[int, Memory]):
    """Memory of each client that took part, in the order in which they came.

    The latest ones are held as tensors, the others lie in a file. What is read is what was written,
    bit for bit and on the same device. The file is in the folder for temporary files (``TMPDIR``)
    and goes with the process. It grows to the memories of all clients that took part but for
    `MAX_HELD_BYTES`: ``4 d`` bytes a client for a residual of ``d`` float32.
    """

    most: int = MAX_HELD_BYTES
    where: dict[int, Shelf | None] = field(default_factory=dict)  # None of those that are held
    held: dict[int, Memory] = field(default_factory=dict)  # the latest ones last
    shelves: dict[Form, Shelf] = field(default_factory=dict)
    filled: int = 0  # bytes of those held

    def __len__(self) -> int:
        return len(self.where)

    def __iter__(self) -> Iterator[int]:
        return iter(self.where)

    def __getitem__(self, i: int) -> Memory:
        shelf = self.where[i]
        return self.held[i] if shelf is None else shelf.get(i)

    def __setitem__(self, i: int, memory: Memory) -> None:
        if i in self.where:
            self._forget(i)
        self.where[i] = None
        self.held[i] = {name: _alone(x) for name, x in memory.items()}
        self.filled += bytes_of(memory)
        while self.filled > self.most:
            self._shelve(next(iter(self.held)))

    def __delitem__(self, i: int) -> None:
        self._forget(i)
        del self.where[i]

    def parts(self) -> tuple[dict[str, Any], list[Tensor]]:
        """Return what `restore` takes: plain values, and the bytes of each file, `Shelf.mapped`."""
        shelves = [shelf for shelf in self.shelves.values() if shelf.places]
        indices = [
            {"example": shelf.get(next(iter(shelf.places))), "places": shelf.places}
            for shelf in shelves
        ]
        value = {"order": list(self.where), "held": self.held, "shelves": indices}
        return value, [shelf.mapped() for shelf in shelves]

    def restore(self, value: Mapping[str, Any], files: Sequence[Tensor]) -> None:
        """Take the memories of which these are the `parts`, and copy the bytes of the files.

        `ConfigError` if the parts do not fit together, or if there is no room for the files.
        """
        if not fit_together(value, files):
            raise ConfigError("memories of its clients do not fit together")
        where: dict[int, Shelf | None] = dict.fromkeys(value["held"])
        shelves = {}
        for index, data in zip(value["shelves"], files, strict=True):
            form = form_of(index["example"])
            shelves[form] = Shelf.copied(form, index["places"], data)
            where |= dict.fromkeys(index["places"], shelves[form])
        self.where = {i: where[i] for i in value["order"]}
        self.held = value["held"]
        self.shelves = shelves
        self.filled = sum(map(bytes_of, self.held.values()))

    def _forget(self, i: int) -> None:
        shelf = self.where[i]
        if shelf is None:
            self.filled -= bytes_of(self.held.pop(i))
        else:
            shelf.drop(i)

    def _shelve(self, i: int) -> None:
        memory = self.held.pop(i)
        self.filled -= bytes_of(memory)
        form = form_of(memory)
        if form not in self.shelves:
            self.shelves[form] = Shelf(form)
        shelf = self.shelves[form]
        shelf.put(i, memory)
        self.where[i] = shelf


def fit_together(value: Any, files: Sequence[Tensor]) -> bool:
    """Tell whether what was read from a file is what `Memories.parts` returns."""
    try:
        clients = list(value["held"])
        for index, data in zip(value["shelves"], files, strict=True):
            places = index["places"].values()
            clients += index["places"]
            end = (max(places) + 1) * bytes_of(index["example"])
            if min(places) < 0 or len(set(places)) < len(places) or end > len(data):
                return False
        return set(clients) == set(value["order"]) and len(clients) == len(value["order"])
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _alone(x: Tensor) -> Tensor:
    """Return the tensor, or a copy where it keeps the rows of other clients in memory."""
    return x.clone() if x.untyped_storage().nbytes() > x.nbytes else x
