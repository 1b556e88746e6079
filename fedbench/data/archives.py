"""Archives of data sets: ``x_train, y_train, x_test, y_test``, fetched with torchvision.

Images are uint8 ``(n, H, W)``, or ``(n, H, W, 3)`` in colour.
"""

import contextlib
import http.client
import importlib
import io
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically

Array = npt.NDArray[Any]

NAMES = ("x_train", "y_train", "x_test", "y_test")


def read(path: Path, image: tuple[int, int, int], classes: int) -> tuple[Tensor, Tensor, int]:
    """Read ``(N, C, H, W)`` uint8 and ``(N,)`` int64: the training samples, then the test samples.

    The third result is the number of training samples. ``image`` is the channels, height and width
    that the archive must hold; `ConfigError` if it cannot be read or holds something else.
    """
    channels, height, width = image
    shape = (height, width) if channels == 1 else (height, width, channels)
    arrays = _arrays(path)
    for part in ("train", "test"):
        problem = _problem(part, arrays[f"x_{part}"], arrays[f"y_{part}"], shape, classes)
        if problem:
            raise ConfigError(f"{path}: {problem}; replace the file")
    x = np.concatenate([arrays["x_train"], arrays["x_test"]])
    y = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    x = x[:, None] if channels == 1 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return torch.from_numpy(x), torch.from_numpy(y), len(arrays["x_train"])


def write(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write the four `NAMES`, whole or not at all; `ConfigError` if that is denied."""
    archive = io.BytesIO()
    x_train, y_train, x_test, y_test = (arrays[name] for name in NAMES)
    np.savez_compressed(archive, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    try:
        write_atomically(path, archive.getvalue())
    except ConfigError as error:
        reason = getattr(error.__cause__, "strerror", error.__cause__)
        raise ConfigError(
            f"{path} could not be written ({reason}): set FEDBENCH_DATA to a folder that can be"
        ) from error


def _arrays(path: Path) -> dict[str, Array]:
    """Read the four arrays of an archive."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            missing = [name for name in NAMES if name not in archive.files]
            if missing:
                raise ValueError(f"no {', '.join(missing)}")
            return {name: archive[name] for name in NAMES}
    except Exception as error:  # zip, zlib, pickle, header, I/O: a broken file raises anything
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ConfigError(
            f"{path} must be a .npz archive of {', '.join(NAMES)}, got {reason!r}; replace the file"
        ) from error


def _problem(part: str, x: Array, y: Array, shape: tuple[int, ...], classes: int) -> str:
    """Say what is wrong with shape, type or range of one part; empty if nothing is."""
    if x.dtype != np.uint8 or x.shape[1:] != shape or len(x) == 0:
        wanted = ", ".join(map(str, shape))
        return f"x_{part} must be uint8 (n, {wanted}) with n >= 1, got {x.dtype} {x.shape}"
    if not np.issubdtype(y.dtype, np.integer) or y.shape != (len(x),):
        return f"y_{part} must be integers ({len(x)},), got {y.dtype} {y.shape}"
    if y.min() < 0 or y.max() >= classes:
        return f"y_{part} must be labels from 0 to {classes - 1}, got {y.min()} to {y.max()}"
    return ""


MAX_SILENT_SECONDS = 10.0  # of silence after which a connection counts as dead
SOURCES: dict[str, tuple[str, int | None, int | None]] = {  # torchvision's name, samples to keep
    "mnist": ("MNIST", None, None),
    "fashion-mnist": ("FashionMNIST", None, None),
    "cifar10": ("CIFAR10", None, None),
    "cifar10-20k": ("CIFAR10", 18_000, 2_000),
    "cifar100": ("CIFAR100", None, None),
    "emnist": ("EMNIST", None, None),
    "svhn": ("SVHN", None, None),
}


def download(name: str, path: Path) -> None:
    """Write data set ``name`` to ``path``; `ConfigError` if it cannot be fetched or written.

    torchvision compares the md5 of what it fetches, also before it unpickles CIFAR's batches.
    """
    source, train, test = SOURCES[name]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fedbench-") as folder,
            _socket_timeout(MAX_SILENT_SECONDS),
            contextlib.redirect_stdout(io.StringIO()),  # older versions announce every mirror
        ):
            arrays = _part(source, folder, "train", train) | _part(source, folder, "test", test)
    except (OSError, http.client.HTTPException, RuntimeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise ConfigError(
            f"{name} must be at {path} or downloadable, got {reason!r}; put {path.name} into a "
            "folder and set FEDBENCH_DATA to it, or run once where downloads work"
        ) from error
    write(path, arrays)


def _part(source: str, folder: str, part: str, keep: int | None) -> dict[str, Array]:
    """Return the first ``keep`` samples of the training or the test part."""
    options: dict[str, Any] = {"train": part == "train"}
    if source == "SVHN":
        options = {"split": part}
    elif source == "EMNIST":
        options["split"] = "balanced"
    data = getattr(datasets(), source)(folder, download=True, **options)
    x = np.asarray(data.data)
    y = data.labels if source == "SVHN" else data.targets
    if source == "SVHN":
        x = x.transpose(0, 2, 3, 1)  # (n, 3, 32, 32) there, channels last in all others
    elif source == "EMNIST":
        x = x.transpose(0, 2, 1)  # lies on its side, mirrored, in the published files
    return {f"x_{part}": x[:keep], f"y_{part}": np.asarray(y, dtype=np.uint8)[:keep]}


@contextlib.contextmanager
def _socket_timeout(seconds: float) -> Iterator[None]:
    """Let new sockets give up: torchvision takes no timeout of its own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def datasets() -> ModuleType:
    """Import ``torchvision.datasets`` (see `vision`)."""
    return vision("datasets")


def vision(part: str) -> ModuleType:
    """Import ``torchvision.<part>``, also where its CUDA build is beside a CPU build of torch.

    There its operators do not load, and its import stops at the first one that it describes. Data
    sets and models for classification need none, so the schemas are declared without an
    implementation. After this call ``import torchvision`` works, too.
    """
    try:
        return importlib.import_module(f"torchvision.{part}")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[module]  # only half of it was imported
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)
    return importlib.import_module(f"torchvision.{part}")
