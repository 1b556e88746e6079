"""Plain values as bytes, which a process with foreign code may send, read without running code.

A message is the length of its head (8 bytes), the head (JSON), and the bytes of its tensors.
Reading it makes numbers, texts, containers, tensors, payloads of an expected form, and no others.
"""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.core.choices import Checks
from fedbench.payload import Payload

# Functions of a rehearsal, which the process that plays answers.
REHEARSED = ("losses", "gradients", "pixels", "steps")
# Functions of a gradient that an attack wraps; the same.
DIFFERENTIATED = ("batch", "each", "features", "pull")
Asked = tuple[str, Checks]  # text of the rule that an attack queries, and the server's checks
APART = "apart"  # instead of a hook: a fork is to answer the call that follows
NAMES = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64"
DTYPES = {name: getattr(torch, name) for name in NAMES.split()}


class NotPlainError(ValueError):
    """A value that cannot travel, or bytes that hold none."""


def write(value: object) -> bytes:
    """Return the bytes of a plain value; `NotPlainError` if it is, or holds, something else."""
    blobs: list[bytes] = []
    tree = _tree(value, blobs)
    head = json.dumps({"tree": tree, "sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join([len(head).to_bytes(8, "little"), head, *blobs])


def _tree(value: object, blobs: list[bytes]) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        blobs.append(bytes(value))
        return {"bytes": len(blobs) - 1}
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_tree(part, blobs) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[_tree(part, blobs) for part in pair] for pair in value.items()]}
    if isinstance(value, Tensor):
        name = str(value.dtype).removeprefix("torch.")
        if name not in DTYPES:
            raise NotPlainError(f"a tensor must be of numbers, got {name}")
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        blobs.append(flat.numpy().tobytes())
        return {"tensor": [name, list(value.shape), len(blobs) - 1]}
    if isinstance(value, Payload):
        return {"payload": [type(value).__name__, _tree(tensors_of(value), blobs)]}
    raise NotPlainError(f"a {type(value).__name__} cannot leave its process")


def tensors_of(messages: Payload) -> dict[str, Tensor]:
    """Return the fields of messages that are tensors, by name."""
    fields = [field.name for field in dataclasses.fields(messages)]
    return {name: x for name in fields if isinstance(x := getattr(messages, name), Tensor)}


def read(data: bytes, form: Payload | None = None) -> Any:
    """Return the value of these bytes; `NotPlainError` for none, or payloads unlike ``form``."""
    try:
        return _Reader(data, form).value
    except NotPlainError:
        raise
    except Exception as error:  # bytes of foreign code: whatever they lead to ends here
        raise NotPlainError(f"{type(error).__name__}: {error}") from error


class _Reader:
    def __init__(self, data: bytes, form: Payload | None) -> None:
        length = int.from_bytes(data[:8], "little")
        head = json.loads(data[8 : 8 + length])
        self.form = form
        self.blobs: list[memoryview] = []
        start = 8 + length
        for size in head["sizes"]:
            blob = memoryview(data)[start : start + size]
            if size < 0 or len(blob) != size:
                raise NotPlainError(f"{size} bytes are not there")
            self.blobs.append(blob)
            start += size
        if start != len(data):
            raise NotPlainError(f"{len(data) - start} bytes are left")
        self.value = self.made(head["tree"])

    def made(self, tree: Any) -> Any:
        """Return the value of a node of the head."""
        if isinstance(tree, list):
            raise NotPlainError("a list must be named as one")
        if not isinstance(tree, dict):
            return tree
        ((kind, inside),) = tree.items()
        if kind == "bytes":
            return bytes(self.blobs[inside])
        if kind == "list":
            return [self.made(part) for part in inside]
        if kind == "tuple":
            return tuple(self.made(part) for part in inside)
        if kind == "dict":
            return {self.made(key): self.made(part) for key, part in inside}
        if kind == "tensor":
            return self.tensor(*inside)
        if kind == "payload":
            return self.payload(*inside)
        raise NotPlainError(f"a {kind} is none of the kinds")

    def tensor(self, name: str, shape: list[int], number: int) -> Tensor:
        """Return numbers of a type, in a shape that has as many."""
        dtype = DTYPES[name]
        blob = self.blobs[number]
        if any(side < 0 for side in shape) or math.prod(shape) * dtype.itemsize != len(blob):
            raise NotPlainError(f"{len(blob)} bytes are no {name} of shape {tuple(shape)}")
        if not len(blob):
            return torch.empty(shape, dtype=dtype)
        raw = torch.frombuffer(bytearray(blob), dtype=torch.uint8)
        numbers = raw != 0 if dtype == torch.bool else raw.view(dtype)
        return numbers.reshape(shape)

    def payload(self, name: str, tree: Any) -> Payload:
        """Return messages of the expected form, with these tensors."""
        form = self.form
        tensors = self.made(tree)
        if form is None or name != type(form).__name__:
            wanted = "none" if form is None else type(form).__name__
            raise NotPlainError(f"messages must be {wanted}, got {name}")
        own = tensors_of(form)
        alike = isinstance(tensors, dict) and tensors.keys() == own.keys()
        if not alike or not all(isinstance(part, Tensor) for part in tensors.values()):
            raise NotPlainError(f"{name} must have {', '.join(own)}")
        moved = {field: part.to(own[field].device) for field, part in tensors.items()}
        return dataclasses.replace(form, **moved)
