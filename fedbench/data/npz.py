"""Data sets as one NumPy archive: ``x_train, y_train, x_test, y_test``, uint8 images.

Images are ``(n, H, W)``, or ``(n, H, W, 3)`` in colour.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError

NAMES = ("x_train", "y_train", "x_test", "y_test")
Arrays = dict[str, npt.NDArray[Any]]


def read(path: Path, image: tuple[int, int, int], classes: int) -> tuple[Tensor, Tensor]:
    """Read ``(N, C, H, W)`` uint8 and ``(N,)`` int64: the training samples, then the test samples.

    ``image`` is the channels, height and width that the archive must hold, labels must be in
    ``0 .. classes - 1``.

    Raises:
        ConfigError: the file cannot be read, or holds something else.
    """
    arrays = _arrays(path)
    for part in ("train", "test"):
        _check(path, part, arrays[f"x_{part}"], arrays[f"y_{part}"], image, classes)
    x = np.concatenate([arrays["x_train"], arrays["x_test"]])
    y = np.concatenate([arrays["y_train"], arrays["y_test"]]).astype(np.int64)
    x = x[:, None] if image[0] == 1 else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    return torch.from_numpy(x), torch.from_numpy(y)


def write(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write the four `NAMES` so that ``path`` is absent, or whole, in every moment.

    Raises:
        ConfigError: the folder cannot be written.
    """
    partial: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # In the same folder, because os.replace is atomic only within one file system.
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".npz")
        with os.fdopen(handle, "wb") as file:
            x_train, y_train, x_test, y_test = (arrays[name] for name in NAMES)
            np.savez_compressed(
                file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test
            )
        os.chmod(partial, 0o644)  # mkstemp's 0600 would keep a shared folder from being shared
        os.replace(partial, path)
    except OSError as error:
        raise ConfigError(
            f"{path} could not be written ({error.strerror}): "
            "set FEDBENCH_DATA to a folder that can be"
        ) from error
    finally:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)


def _arrays(path: Path) -> Arrays:
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


def _check(
    path: Path,
    part: str,
    x: npt.NDArray[Any],
    y: npt.NDArray[Any],
    image: tuple[int, int, int],
    classes: int,
) -> None:
    """Check shape, type and range of one part."""
    channels, height, width = image
    shape = (height, width) if channels == 1 else (height, width, channels)
    problem = ""
    if x.dtype != np.uint8 or x.shape[1:] != shape or len(x) == 0:
        wanted = ", ".join(map(str, shape))
        problem = f"x_{part} must be uint8 (n, {wanted}) with n >= 1, got {x.dtype} {x.shape}"
    elif not np.issubdtype(y.dtype, np.integer) or y.shape != (len(x),):
        problem = f"y_{part} must be integers ({len(x)},), got {y.dtype} {y.shape}"
    elif y.min() < 0 or y.max() >= classes:
        problem = f"y_{part} must be labels from 0 to {classes - 1}, got {y.min()} to {y.max()}"
    if problem:
        raise ConfigError(f"{path}: {problem}; replace the file")
