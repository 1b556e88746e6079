"""Fingerprints of modules: what tells two of them apart, as text that each process writes alike."""

import dataclasses
import hashlib
from enum import Enum
from functools import partial
from types import FunctionType

import numpy as np
import torch
from torch import Tensor, nn

from fedbench.core.sources import package_of, source_of

# Types whose repr says all of their values.
PLAIN = (bool, int, float, complex, str, bytes, bytearray, range, slice, torch.dtype, torch.device)


Within = tuple[FunctionType | nn.Module, ...]


def described(module: nn.Module, within: Within = ()) -> str:
    """Describe classes and their source, attributes, and values of a module of `torch.nn`.

    Of torch's own layers the public attributes say all. Not in it is what lies outside of the
    module: functions of other files that it calls, and hooks.
    """
    lines = [repr(module)]
    within = (*within, *module.modules())
    every_module = vars(nn.Module())
    for name, layer in module.named_modules():
        cls = type(layer)
        foreign = package_of(cls) != "torch"
        code = source_of(cls).sha256 if foreign else ""
        own = {key: x for key, x in vars(layer).items() if key not in every_module}
        shown = own if foreign else {key: x for key, x in own.items() if key[0] != "_"}
        lines.append(f"{name} {cls.__module__}.{cls.__qualname__} {code} {written(shown, within)}")
    lines += [f"{name} {p.requires_grad}" for name, p in module.named_parameters()]
    values = module.state_dict()  # without buffers that are not to be saved
    values = dict(module.named_buffers()) | values
    lines += [f"{name} {written(x)}" for name, x in sorted(values.items())]
    return "\n".join(lines)


def written(value: object, within: Within = ()) -> str:
    """Write a value as text that has no address: of objects their class, of code its source.

    A function or a module that the value lies ``within`` may be in it again, and is then a name.

    >>> written({"p": 0.5, "act": max, "sizes": [1, 2]})
    "{'act': builtins.max, 'p': 0.5, 'sizes': [1, 2]}"
    """
    if value is None or isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, Enum):
        return f"{type(value).__module__}.{type(value).__qualname__}.{value.name}"
    if isinstance(value, Tensor):
        return "lazy" if nn.parameter.is_lazy(value) else _bytes_of(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        return f"{value.dtype} {value.shape} {digest}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(written(x, within) for x in value)}]"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__} {sorted(written(x, within) for x in value)}"
    if isinstance(value, dict):
        items = [f"{written(key, within)}: {written(x, within)}" for key, x in value.items()]
        return f"{{{', '.join(sorted(items))}}}"
    if isinstance(value, partial):
        return written([value.func, value.args, value.keywords], within)
    if isinstance(value, nn.Module) and value not in within:  # in a list, for instance
        return described(value, within)
    named = value if hasattr(value, "__qualname__") else type(value)
    text = f"{named.__module__}.{named.__qualname__}"
    if isinstance(value, FunctionType) and value not in within:
        within = (*within, value)
        code = value.__code__
        end = max((line or 0, column or 0) for _, line, _, column in code.co_positions())
        constants = [x for x in code.co_consts if isinstance(x, int | float | str)]
        place = [source_of(value).sha256, code.co_firstlineno, end]
        text += written([*place, code.co_names, constants])
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        text += written([cells, value.__defaults__, value.__kwdefaults__], within)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        text += written(vars(value), within)
    return text


def _bytes_of(x: Tensor) -> str:
    flat = x.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return f"{x.dtype} {tuple(x.shape)} {hashlib.sha256(flat.numpy().data).hexdigest()}"
