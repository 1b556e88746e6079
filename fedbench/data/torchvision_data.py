"""Fetch a data set with torchvision once and store it as a NumPy archive.

The only file that imports torchvision, and only when an archive is missing.
"""

import contextlib
import http.client
import importlib
import io
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

from fedbench.core.errors import ConfigError
from fedbench.data import npz

SECONDS = 10.0  # of silence after which a connection counts as dead
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
    """Write data set ``name`` to ``path``.

    torchvision compares the md5 of what it fetches, also before it unpickles CIFAR's batches.

    Raises:
        ConfigError: the data set cannot be fetched here, or ``path`` cannot be written.
    """
    source, train, test = SOURCES[name]
    try:
        with (
            tempfile.TemporaryDirectory(prefix="fedbench-") as folder,
            _socket_timeout(SECONDS),
            contextlib.redirect_stdout(io.StringIO()),  # older versions announce every mirror
        ):
            arrays = _part(source, folder, "train", train) | _part(source, folder, "test", test)
    except (OSError, http.client.HTTPException, RuntimeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise ConfigError(
            f"{name} must be at {path} or downloadable, got {reason!r}; put {path.name} into a "
            "folder and set FEDBENCH_DATA to it, or run once where downloads work"
        ) from error
    npz.write(path, arrays)


def _part(source: str, folder: str, part: str, keep: int | None) -> npz.Arrays:
    """Return the first ``keep`` samples of the training or the test part."""
    which: dict[str, Any] = {"train": part == "train"}
    if source == "SVHN":
        which = {"split": part}
    elif source == "EMNIST":
        which["split"] = "balanced"
    data = getattr(datasets(), source)(folder, download=True, **which)
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
    """Import ``torchvision.datasets``, also beside a CPU build of torch.

    torchvision from the package index is built for CUDA: beside a CPU build of torch its operators
    do not load, and its import stops at the first one that it describes. Data sets need none, so
    the schemas are declared without an implementation.
    """
    try:
        return importlib.import_module("torchvision.datasets")
    except RuntimeError as error:
        if "operator torchvision::nms does not exist" not in str(error):
            raise
    for module in [m for m in sys.modules if m.split(".")[0] == "torchvision"]:
        del sys.modules[module]  # only half of it was imported
    for name in ("nms", "qnms"):
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        torch.library.define(f"torchvision::{name}", schema)
    return importlib.import_module("torchvision.datasets")
