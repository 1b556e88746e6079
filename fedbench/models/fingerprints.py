"""Fingerprints of modules: what tells two of them apart, as text that each process writes alike."""

import dataclasses
import hashlib
from functools import partial
from types import FunctionType

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.sources import package_of, source_of


def described(module: nn.Module) -> str:
    """Describe classes and their source, attributes, and values of a module of `torch.nn`.

    Not in it is what lies outside of the module: functions of other files that it calls, and hooks.
    """
    lines = [repr(module)]
    for name, layer in module.named_modules():
        cls = type(layer)
        foreign = package_of(cls) != "torch"
        code = source_of(cls).sha256 if foreign else ""
        shown = {key: x for key, x in vars(layer).items() if key != "training" and key[0] != "_"}
        lines.append(f"{name} {cls.__module__}.{cls.__qualname__} {code} {written(shown)}")
    lines += [f"{name} {p.requires_grad}" for name, p in module.named_parameters()]
    lines += [f"{name} {written(x)}" for name, x in sorted(module.state_dict().items())]
    return "\n".join(lines)


def written(value: object) -> str:
    """Write a value as text that has no address: of objects their class, of code its source.

    >>> written({"p": 0.5, "act": max, "sizes": [1, 2]})
    '{act: builtins.max, p: 0.5, sizes: [1, 2]}'
    """
    if value is None or isinstance(value, bool | int | float | complex | str | torch.dtype):
        return repr(value)
    if isinstance(value, Tensor):
        return "lazy" if nn.parameter.is_lazy(value) else _bytes_of(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return f"{value.dtype} {value.shape} {digest}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{key}: {written(x)}' for key, x in value.items()))}}}"
    if isinstance(value, partial):
        return written([value.func, value.args, value.keywords])
    named = value if hasattr(value, "__qualname__") else type(value)
    text = f"{named.__module__}.{named.__qualname__}"
    if isinstance(value, FunctionType):
        code = value.__code__
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        free = [x for x in cells if not isinstance(x, FunctionType)]  # which may be this one
        constants = [x for x in code.co_consts if isinstance(x, int | float | str)]
        text += written([source_of(value).sha256, code.co_firstlineno, code.co_names, constants])
        text += written([free, value.__defaults__])
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        text += written(vars(value))
    return text


def _bytes_of(x: Tensor) -> str:
    flat = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return f"{x.dtype} {tuple(x.shape)} {hashlib.sha256(flat.numpy().data).hexdigest()}"
