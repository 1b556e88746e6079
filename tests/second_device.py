"""A second device without a GPU and without a compiler: its tensors compute on the CPU.

Importing this registers the backend ``second`` with torch, for the whole process, so tests do it in
a process of their own (`second_device_runs.py`). A tensor on ``second:0`` holds one of the CPU and
does with it what it is told, by the CPU's kernels; but it refuses, with torch's messages, what CUDA
refuses, and counts what the processor would wait for, what would be launched and the bytes copied.

It has one stream and no memory of its own: it finds no race and no use of a freed tensor.
"""

import functools
import sys
import types
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._mode_utils import no_dispatch

NAME = "second"
DEVICE = torch.device("privateuseone", 0)  # renamed by `register`
HOST = torch.device("cpu")

waits: Counter[str] = Counter()  # by operation and the lines of fedbench that asked for it
launches: Counter[str] = Counter()  # operations that compute on the device, by name
copied: Counter[str] = Counter()  # bytes to the device and to the host


def forget() -> None:
    """Start to count again, from nothing."""
    waits.clear()
    launches.clear()
    copied.clear()


class Held(Tensor):
    """A tensor on the second device, with the one of the CPU that it holds."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> "Held":
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return perform(operation, args, kwargs or {})

    def numpy(self, *args: object, **kwargs: object) -> NoReturn:
        raise TypeError(
            f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() to copy the "
            "tensor to host memory first."
        )

    __array__ = numpy

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        memo[id(self)] = copied
        return copied

    def __repr__(self, *, tensor_contents: object = None) -> str:  # type: ignore[override]
        return f"{self.held!r} on {DEVICE}"


aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
# Allocations, and views that the schema does not call so.
IDLE = {
    *(aten.empty.memory_format, aten.empty_strided.default, aten.empty_like.default),
    *(aten.new_empty.default, aten.new_empty_strided.default, aten._unsafe_view.default),
    *(aten.lift_fresh.default, aten.detach.default, aten.alias.default),
}
INDEXED = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# Tensors without dimensions may be those of the CPU here, as in operations that are pointwise.
SCALARS = {"aten::fill_", "aten::masked_fill", "aten::masked_fill_", "aten::where"}
# Operations of CUDA that wait for the device: their result is a number of Python, or its size
# depends on the numbers, or a solver says whether it converged.
WAITING = {
    *("aten::_local_scalar_dense", "aten::equal", "aten::nonzero", "aten::masked_select"),
    *("aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"),
    *("aten::bincount", "aten::repeat_interleave", "aten::_linalg_eigh", "aten::_linalg_svd"),
    *("aten::linalg_eig", "aten::_linalg_check_errors", "aten::linalg_qr", "aten::multinomial"),
}


def perform(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do an operation with the tensors of the CPU, refuse it, and count it."""
    if operation in COPIES:
        return copy(operation, args, kwargs)
    given: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        given.append(x)
        return x.held if isinstance(x, Held) else x

    on_cpu, options = replaced((args, kwargs), Tensor, noted)
    refuse(operation, args, given)
    name = operation._schema.name
    indices = list(args[1]) if name in INDEXED else []
    masks = [i for i in indices if isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8)]
    carried = [i for i in indices if isinstance(i, Tensor) and not isinstance(i, Held)]
    # a mask's size depends on its numbers, but for a single value, which is filled in
    sized = masks and (name == "aten::index" or args[2].numel() > 1)
    if name in WAITING or sized or carried:
        wait(operation)
    if operation not in IDLE and not is_view(operation):
        launches[name_of(operation)] += 1
    if options.get("device") is not None:
        options["device"] = HOST
    if options.get("pin_memory"):
        options["pin_memory"] = False
    out = operation(*on_cpu, **options)
    if changes_shape(operation):  # the argument gets another shape, too
        with no_dispatch():
            operation(*args, **kwargs)
    return held_on_device(out, given)


def copy(operation: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Copy within a device or from one to the other, for which the processor waits."""
    source = args[1 if operation is aten.copy_.default else 0]
    here = isinstance(source, Held)
    if operation is aten.copy_.default:
        there = isinstance(args[0], Held)
        blocking = len(args) < 3 or not args[2]
    else:
        device = kwargs.get("device")
        there = here if device is None else torch.device(device).type == NAME
        blocking = not kwargs.get("non_blocking")
        kwargs = kwargs | {"device": HOST}
    if here and there:
        launches[name_of(operation)] += 1
    elif blocking:
        wait(operation)
    if here != there:
        copied["to device" if there else "to host"] += source.nbytes
    out = operation(*replaced(args, Held, lambda x: x.held), **kwargs)
    if operation is aten.copy_.default:
        return args[0]
    return Held(out) if there else out


def refuse(operation: Any, args: Any, given: list[Tensor]) -> None:
    """Raise torch's error if tensors of the CPU take part where CUDA admits none."""
    guests = [x for x in given if not isinstance(x, Held)]
    if not guests:
        return
    name = operation._schema.name
    if name in INDEXED:
        if not isinstance(args[0], Held):
            raise RuntimeError(
                f"indices should be either on cpu or on the same device as the indexed tensor (cpu)"
                f": {where()}"
            )
        guests = [x for x in args[2:3] if isinstance(x, Tensor) and not isinstance(x, Held)]
    if torch.Tag.pointwise in operation.tags or name in SCALARS or name in INDEXED:
        guests = [x for x in guests if x.dim()]
    if guests:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, "
            f"{DEVICE} and cpu! ({name}: {where()})"
        )


name_of = functools.cache(str)  # of an operation, which makes its name anew each time


@functools.cache
def is_view(operation: Any) -> bool:
    """Whether the result is a part of the memory of an argument, which costs nothing."""
    infos = [argument.alias_info for argument in operation._schema.arguments]
    returned = [result.alias_info for result in operation._schema.returns]
    views = any(info is not None and not info.is_write for info in infos)
    return views and all(info is not None for info in returned)


@functools.cache
def changes_shape(operation: Any) -> bool:
    """Whether the argument itself gets another shape."""
    return torch.Tag.inplace_view in operation.tags


def replaced(tree: Any, kind: type[Tensor], new: Callable[[Any], Any]) -> Any:
    """Return an operation's arguments or results with other tensors for those of a kind."""
    if isinstance(tree, kind):
        return new(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)([replaced(part, kind, new) for part in tree])
    if isinstance(tree, dict):
        return {name: replaced(part, kind, new) for name, part in tree.items()}
    return tree


def held_on_device(out: Any, given: list[Tensor]) -> Any:
    """Put results on the device; one that was written into is the argument itself."""
    outer = {id(x.held): x for x in given if isinstance(x, Held)}

    def outside(x: Tensor) -> Tensor:
        known = outer.get(id(x))
        if known is None:
            return Held(x)
        assert known.shape == x.shape, f"{tuple(known.shape)} became {tuple(x.shape)}"
        return known

    return replaced(out, Tensor, outside)


def wait(operation: object) -> None:
    """Count that the processor waits for the device."""
    waits[f"{operation} {where()}"] += 1


def where(depth: int = 3) -> str:
    """Return the innermost lines of fedbench that led here."""
    lines: list[str] = []
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and len(lines) < depth:
        name = frame.f_code.co_filename
        if "/fedbench" in name and name != __file__:
            lines.append(f"{name.rpartition('/fedbench')[2].lstrip('/')}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)


class Module:
    """Interface of a backend, which torch calls as ``torch.second``."""

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """It draws by the generator of the CPU, which has its seed."""

    def synchronize(self, device: object = None) -> None:
        wait("synchronize")

    def get_device_name(self, device: object = None) -> str:
        return "counterfeit accelerator"

    def get_device_properties(self, device: object = None) -> types.SimpleNamespace:
        return types.SimpleNamespace(total_memory=1 << 32)

    @property
    def default_generators(self) -> tuple[torch.Generator, ...]:
        return (torch.default_generator,)


# Operations that make a tensor by filling an empty one, whose size would grow behind our back.
MADE = (
    "arange",
    "arange.start",
    "arange.start_step",
    "linspace",
    "logspace",
    "eye",
    "eye.m",
    "_local_scalar_dense",
)
libraries: list[Any] = []  # what a library registers goes with it


def register() -> None:
    """Register the backend, once in a process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, Module())
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor copies where the copy is seen
    library: Any = torch.library.Library
    everything = library("_", "IMPL")
    everything.fallback(lambda operation, *a, **k: perform(operation, a, k), "PrivateUse1")
    made = library("aten", "IMPL")
    for name in MADE:
        packet, _, overload = name.partition(".")
        operation = getattr(getattr(aten, packet), overload or "default")
        made.impl(name, lambda *a, _o=operation, **k: perform(_o, a, k), "PrivateUse1")
    libraries.extend([everything, made])
