"""Memories of clients between rounds, in bounded memory: those that are too many lie in a file."""

import tempfile
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from io import FileIO

import torch
from torch import Tensor

from fedbench.api import Memory
from fedbench.core.errors import ConfigError

HELD = 1 << 30  # bytes of memories that are held as tensors
Form = tuple[tuple[str, torch.dtype, tuple[int, ...], torch.device], ...]  # of a memory


def form_of(memory: Memory) -> Form:
    """Return names, types, shapes and devices of a memory."""
    return tuple((name, x.dtype, tuple(x.shape), x.device) for name, x in memory.items())


def bytes_of(memory: Memory) -> int:
    """Return the bytes of the numbers of a memory."""
    return sum(x.nbytes for x in memory.values())


def _file() -> FileIO:
    return tempfile.TemporaryFile(prefix="fedbench-", buffering=0)


@dataclass(eq=False)
class Shelf:
    """Memories of one form in a file without a name, each at a place of the same size.

    It is read and written, not mapped: mapped pages would count as memory of the process.
    """

    form: Form
    file: FileIO = field(default_factory=_file)
    places: dict[int, int] = field(default_factory=dict)  # by client
    free: list[int] = field(default_factory=list)

    def put(self, i: int, memory: Memory) -> None:
        """Write the memory of client ``i``; `ConfigError` if there is no room."""
        place = self.free.pop() if self.free else len(self.places)
        self.places[i] = place
        try:
            self.file.seek(place * bytes_of(memory))
            for x in memory.values():
                view = _view(x.detach().cpu().contiguous())
                while len(view):
                    view = view[self.file.write(view) :]
        except OSError as error:
            raise ConfigError(
                f"memories of {len(self.places)} clients, {bytes_of(memory)} bytes each, must find "
                f"room in {tempfile.gettempdir()}, got {error.strerror!r}; set TMPDIR to another "
                "folder, or sample fewer clients"
            ) from error

    def get(self, i: int) -> Memory:
        """Read the memory of client ``i``."""
        memory = {name: torch.empty(shape, dtype=dtype) for name, dtype, shape, _ in self.form}
        self.file.seek(self.places[i] * bytes_of(memory))
        for x in memory.values():
            view = _view(x)
            while len(view):
                view = view[self.file.readinto(view) :]
        return {name: memory[name].to(device) for name, _, _, device in self.form}

    def drop(self, i: int) -> None:
        """Forget the memory of client ``i``; its place is used again."""
        self.free.append(self.places.pop(i))


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
    `HELD` bytes: ``4 d`` bytes a client for a residual of ``d`` float32.
    """

    most: int = HELD  # bytes that are held as tensors
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
        shelf = self.shelves.setdefault(form, Shelf(form))
        shelf.put(i, memory)
        self.where[i] = shelf


def _alone(x: Tensor) -> Tensor:
    """Return the tensor, or a copy where it keeps the rows of other clients in memory."""
    return x.clone() if x.untyped_storage().nbytes() > x.nbytes else x
