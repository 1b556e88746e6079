"""Values in a file of safetensors: their tensors as they lie in memory, the rest as its bytes.

`fedbench.experiment.state_bytes` walks through the value. Where it meets a tensor it writes type,
shape, strides, and where the numbers begin in which memory; the memory itself is a tensor of bytes
in the file, however many tensors share it. A value that was read has the strides, the shared memory
and the alignment of the one that was written, so what is computed from it is equal to the last bit.
Bytes that need not be in memory, as those of mapped files, can lie beside the value.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedbench.core.devices import accelerated
from fedbench.core.errors import ConfigError
from fedbench.core.files import replaced
from fedbench.experiment.state_bytes import (
    DTYPES,
    NoBytesError,
    Piece,
    StateReader,
    StateWriter,
    length,
    shaped,
    type_of_numbers,
    wrong,
)

MIN_OWN_TENSOR_BYTES = 1 << 16  # smaller memories share a tensor of the file
TREE, TABLE, PACKED = "tree", "table", "packed"  # names of tensors in the file
BESIDE = "beside"  # first word of the names of those beside the value; all others are memories


class Tensors(StateWriter):
    """Writer that notes the memory of each tensor instead of writing it.

    Args:
        packages: Packages whose dataclasses may be written, as those of a `StateWriter`.
    """

    def __init__(self, packages: Collection[str] = ()) -> None:
        super().__init__(packages)
        self.memories: list[Tensor] = []  # bytes of each memory, ``(size,)`` uint8, where it is
        self._numbers: dict[tuple[str, int], int] = {}

    def tensor(self, value: Tensor) -> Iterator[Piece]:
        """Yield type, shape and strides of a tensor, and its place in the memory of its number."""
        name = type_of_numbers(value)
        value = value.detach().resolve_neg()
        storage = value.untyped_storage()
        place = (str(value.device), storage.data_ptr())
        number = self._numbers.setdefault(place, len(self.memories))
        if number == len(self.memories):
            empty = torch.empty(0, dtype=torch.uint8, device=value.device)
            self.memories.append(empty.set_(storage))
        yield shaped(b"x", name, value.shape)
        yield b"".join(length(int(x)) for x in (*value.stride(), value.storage_offset(), number))


class TensorReader(StateReader):
    """Reader of what `Tensors` wrote, with the memories that it noted."""

    def __init__(
        self, data: memoryview, memories: list[Tensor], packages: Collection[str] = ()
    ) -> None:
        super().__init__(data, packages)
        self.memories = memories

    def tensor(self) -> Tensor:
        """Return a tensor that lies in its memory as the one that was written."""
        dtype = self.known_type(DTYPES)
        shape = self.shape()
        strides = [self.number() for _ in shape]
        start = self.number()
        number = self.number()
        if number >= len(self.memories):
            raise wrong(f"memory {number} is not there")
        memory = self.memories[number]
        last = start + sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
        if 0 not in shape and (last + 1) * dtype.itemsize > len(memory):
            raise wrong(f"a tensor of shape {shape} ends beyond its memory")
        empty = torch.empty(0, dtype=dtype, device=memory.device)
        made = empty.set_(memory.untyped_storage(), start, shape, strides)
        if dtype == torch.bool and bool((made.view(torch.uint8) > 1).any()):
            raise wrong("a truth value is neither 0 nor 1")
        return made


def can_be_written(value: object, packages: Collection[str]) -> str | None:
    """Return why a value cannot be written, or None; no number of a tensor is read for it."""
    try:
        for _ in Tensors(packages).pieces(value):
            pass
    except NoBytesError as error:
        return str(error)
    return None


def write(
    path: Path,
    value: object,
    about: Mapping[str, str],
    packages: Collection[str],
    beside: Sequence[Tensor] = (),
) -> None:
    """Write a value, texts ``about`` it and bytes ``beside`` it, whole or not at all.

    The value is one that `can_be_written`; `ConfigError` if the file cannot be. The bytes are
    tensors ``(size,)`` of uint8, which are not copied in memory (safetensors before 0.8 does).
    """
    writer = Tensors(packages)
    tree = torch.frombuffer(bytearray(b"".join(writer.pieces(value))), dtype=torch.uint8)
    sizes = [[len(memory), int(accelerated(memory.device))] for memory in writer.memories]
    small = [memory.cpu() for memory in writer.memories if len(memory) < MIN_OWN_TENSOR_BYTES]
    tensors = {
        TREE: tree,
        TABLE: torch.tensor(sizes, dtype=torch.int64).reshape(-1, 2),
        PACKED: torch.cat([torch.empty(0, dtype=torch.uint8), *small]),
    }
    for number, memory in enumerate(writer.memories):
        if len(memory) >= MIN_OWN_TENSOR_BYTES:
            tensors[str(number)] = memory.cpu()
    tensors |= {f"{BESIDE} {number}": data for number, data in enumerate(beside)}
    digest = _digest(tensors)
    with replaced(path) as temporary:
        try:
            save_file(tensors, temporary, {**about, "sha256": digest})
        except SafetensorError as error:  # the disk is full, say
            raise OSError(str(error)) from error


def read_about(path: Path) -> dict[str, str]:
    """Return the texts about the value of a file; `ConfigError` if it is no safetensors."""
    try:
        with safe_open(path, "pt") as file:
            about: dict[str, str] = file.metadata() or {}
            return about
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"{path} must be a file of safetensors, got another one ({error}); remove it"
        ) from error


def read(path: Path, device: torch.device, packages: Collection[str]) -> tuple[Any, list[Tensor]]:
    """Return the value of a file, and the bytes beside it, which are read when they are used.

    What was on an accelerator is on ``device``. `ConfigError` if the file is not as it was written.
    """
    about = read_about(path)
    tensors = load_file(path)
    alike = all(x.dtype == torch.uint8 and x.ndim == 1 for n, x in tensors.items() if n != TABLE)
    if not tensors.keys() >= {TREE, TABLE, PACKED} or not alike:
        raise wrong("the tensors of the file have other names or types")
    table = tensors[TABLE]
    if (
        table.dtype != torch.int64
        or table.ndim != 2
        or table.shape[1] != 2
        or bool((table < 0).any())
    ):
        raise wrong("the table is no list of memories")
    if _digest(tensors) != about.get("sha256"):
        raise wrong("the file is damaged")
    names = sorted((x for x in tensors if x.startswith(BESIDE)), key=lambda x: (len(x), x))
    beside = [tensors.pop(name) for name in names]
    memories = list(_memories(tensors, table.tolist(), device))
    return TensorReader(tensors[TREE].numpy().data, memories, packages).whole(), beside


def _memories(
    tensors: Mapping[str, Tensor], table: list[list[int]], device: torch.device
) -> Iterator[Tensor]:
    """Yield the memories of the table, each aligned as torch does it."""
    packed = tensors[PACKED]
    names = {str(number) for number, (size, _) in enumerate(table) if size >= MIN_OWN_TENSOR_BYTES}
    if tensors.keys() != names | {TREE, TABLE, PACKED}:
        raise wrong("the tensors of the file are not those of its table")
    start = 0
    for number, (size, moved) in enumerate(table):
        part = tensors.get(str(number), packed[start : start + size])
        start += 0 if size >= MIN_OWN_TENSOR_BYTES else size
        if len(part) != size:
            raise wrong(f"memory {number} has another size than the table says")
        yield part.clone().to(device if moved else "cpu")
    if start != len(packed):
        raise wrong("the table does not cover the file")


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, sizes and bytes of the tensors, in hex digits."""
    hashed = sha256()
    for name in sorted(tensors):
        data = tensors[name].contiguous().reshape(-1).view(torch.uint8)
        hashed.update(f"{name} {len(data)} ".encode())
        hashed.update(data.numpy().data if len(data) else b"")
    return hashed.hexdigest()
