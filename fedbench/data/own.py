"""Data of your own as a pool: arrays, a torch data set, a folder of images, Hugging Face data.

Only classification is possible: labels are whole numbers from 0. The pool is in memory, as any.
"""

import warnings
from collections.abc import Sequence
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.blame import shown
from fedbench.core.errors import ConfigError, Unavailable, require
from fedbench.data.datasets import Data

Array = npt.NDArray[Any]
Numbers = Sequence[float]
NUMPYS = (torch.float16, torch.float32, torch.float64)  # floats that NumPy has, too
IMAGE_CHANNELS = (1, 3, 4)  # channels by which an image with its channels last is known
MISSING = ("None", "nan", "<NA>", "NaT")  # texts of what stands for a missing value
PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")


def from_arrays(
    x: Any,
    y: Any,
    classes: int | None = None,
    clients: Any = None,
    *,
    mean: Numbers | None = None,
    std: Numbers | None = None,
    normalise: bool = True,
    trained: int | None = None,
    name: str = "own",
) -> Data:
    """Return a pool of samples ``x (N, ...)`` and labels ``y (N,)``, both arrays or tensors.

    Type and shape say what samples are: uint8 ``(N, H, W)``, ``(N, C, H, W)`` or ``(N, H, W, C)``
    are images; other whole numbers are token ids, which nothing changes; floats are numbers, and
    images if they are ``(N, C, H, W)``.

    Args:
        x: The samples.
        y: Their labels: whole numbers from 0, or texts, which are numbered in sorted order.
        classes: Number of labels; by default one more than the largest, with a warning if no sample
            has one of them.
        clients: Client of each sample, ``(N,)`` numbers or texts, for the partition ``natural``.
        mean: Mean of each channel or column, of pixels in [0, 1] where they are uint8.
        std: Standard deviation of each; a column that is constant has 1.
        normalise: Subtract the mean and divide by the deviation; by default those of the samples,
            or of the published training samples if there are any. Then each client's training
            depends on the data of all, so a run with an ε must be given both, or this as False.
        trained: Number of published training samples, which come first, for ``split="published"``.
        name: Name for tables and records.

    Raises:
        ConfigError: Shapes, types or labels that cannot be classified.
    """
    samples = _samples(x)
    labels = _labels(y, len(samples))
    scale = 255.0 if samples.dtype == torch.uint8 else 1.0
    given = mean is not None or std is not None
    require("mean", mean, (mean is None) == (std is None), "given together with std")
    means: tuple[float, ...] = ()
    stds: tuple[float, ...] = ()
    measured = False
    if samples.dtype == torch.int64:
        require("mean", mean, not given, "left out for token ids")
    elif mean is not None and std is not None:
        means = _floats("mean", mean)
        stds = _floats("std", std)
    elif normalise:
        means, stds = _moments(samples[:trained], scale)
        measured = True
    elif samples.dtype == torch.uint8:
        means = (0.0,) * samples.shape[1]
        stds = (1.0,) * samples.shape[1]
    return Data(
        x=samples,
        y=labels,
        classes=_classes(labels) if classes is None else classes,
        scale=scale,
        mean=means,
        std=stds,
        owner=None if clients is None else _owner(clients, len(samples)),
        trained=trained,
        title=name,
        measured=measured,
    )


def from_dataset(
    dataset: Any, classes: int | None = None, clients: Any = None, *, test: Any = None, **rest: Any
) -> Data:
    """Return the pool of a `torch.utils.data.Dataset` of pairs ``(sample, label)``, read once.

    Samples are tensors, arrays or PIL images of one shape, after the data set's own transforms,
    which must not be random: what is read now is what all rounds see.

    Args:
        dataset: The data set, with a length.
        classes: As in `from_arrays`.
        clients: As in `from_arrays`, of the samples of both data sets.
        test: Published test samples, another data set.
        rest: Other arguments of `from_arrays`.

    Raises:
        ConfigError: No pairs, no length, or samples of different shapes.
    """
    x, y = _read(dataset)
    if test is not None:
        more_x, more_y = _read(test)
        rest = {"trained": len(x), **rest}
        x += more_x
        y += more_y
    return from_arrays(_stacked(x), np.asarray(y), classes, clients, **rest)


def from_folder(
    path: str | Path, *, size: tuple[int, int] | None = None, grey: bool = False, **rest: Any
) -> Data:
    """Return the pool of a folder of images that has one folder for each class.

    Classes are numbered in the sorted order of their folders' names.

    Args:
        path: The folder.
        size: Height and width to which every image is resized; by default they must be alike.
        grey: Whether images become grey; else they have three colours.
        rest: Other arguments of `from_arrays`.

    Raises:
        ConfigError: No folders of classes, no images, or images of different sizes.
    """
    from PIL import Image

    root = Path(path)
    require("from_folder", str(path), root.is_dir(), "a folder")
    kinds = sorted(folder for folder in root.iterdir() if folder.is_dir())
    require("from_folder", str(path), bool(kinds), "a folder with one folder for each class")
    x: list[Array] = []
    y: list[int] = []
    for label, folder in enumerate(kinds):
        files = sorted(f for f in folder.iterdir() if f.suffix.lower() in PICTURES)
        require("from_folder", str(folder), bool(files), f"a folder with {', '.join(PICTURES[:3])}")
        for file in files:
            try:
                with Image.open(file) as opened:
                    _require_bytes(opened, str(file))
                    picture = opened.convert("L" if grey else "RGB")
            except OSError as error:
                raise ConfigError(f"{file} must be an image, got {error}; remove it") from error
            if size is not None:
                picture = picture.resize((size[1], size[0]))
            pixels = _array(picture)
            if x and pixels.shape != x[0].shape:
                raise ConfigError(
                    f"{file} must have the size {x[0].shape[1:]} of the first image, got "
                    f"{pixels.shape[1:]}; give size=(height, width)"
                )
            x.append(pixels)
            y.append(label)
    return from_arrays(np.stack(x), np.asarray(y), len(kinds), **{"name": root.name} | rest)


def from_hugging_face(
    source: Any, *, x: str | Sequence[str] | None = None, y: str = "label", **rest: Any
) -> Data:
    """Return the pool of a `datasets.Dataset`, or of the folder that ``save_to_disk`` wrote.

    Of several parts ``train`` and ``test`` are used; the second is the published test data.

    Args:
        source: A data set, a dictionary of its parts, or the path of one on disk.
        x: Column of the samples, or several columns of numbers; by default the only one beside the
            label, or ``image``.
        y: Column of the labels.
        rest: Other arguments of `from_arrays`; ``clients`` may be the name of a column.

    Raises:
        Unavailable: The package ``datasets`` is not installed.
        ConfigError: No such column, or what `from_arrays` refuses.
    """
    try:
        import datasets
    except ImportError as error:
        raise Unavailable(
            "from_hugging_face must have the package datasets, got none; pip install "
            "'fedbench-toolkit[hf]'"
        ) from error
    if isinstance(source, str | Path):
        require("from_hugging_face", str(source), Path(source).is_dir(), "a folder on disk")
        source = datasets.load_from_disk(str(source))
    parts = [source]
    if isinstance(source, dict):
        names = list(source)
        require("from_hugging_face", names, "train" in names, "a data set with a train part")
        parts = [source[name] for name in ("train", "test") if name in source]
    owner = rest.get("clients")
    owner = owner if isinstance(owner, str) else None
    columns = _columns(parts[0].column_names, x, y, owner)
    samples: list[Any] = []
    labels: list[Any] = []
    owners: list[Any] = []
    for part in parts:
        for row in part:
            values = [row[name] for name in columns]
            samples.append(values[0] if len(columns) == 1 else values)
            labels.append(row[y])
            if owner is not None:
                owners.append(row[owner])
    if owners:
        rest["clients"] = owners
    if len(parts) > 1:
        rest = {"trained": len(parts[0]), **rest}
    return from_arrays(_stacked([_array(s) for s in samples]), np.asarray(labels), **rest)


def _columns(
    names: Sequence[str], x: str | Sequence[str] | None, y: str, owner: str | None
) -> list[str]:
    left = [name for name in names if name not in (y, owner)]
    if x is None:
        x = "image" if "image" in left else left
        single = isinstance(x, str) or len(x) == 1
        require("x", list(left), single, "named where there are several columns")
    chosen = [x] if isinstance(x, str) else list(x)
    for name in (*chosen, y):
        require("column", name, name in names, f"one of {', '.join(names)}")
    return chosen


def _read(dataset: Any) -> tuple[list[Array], list[Any]]:
    kind = type(dataset).__name__
    if kind == "DataLoader":
        raise ConfigError(
            "from_dataset must be given samples one by one, got a DataLoader; give its .dataset"
        )
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized:
        raise ConfigError(
            f"from_dataset must be given a data set with a length, got {kind}; list it first"
        )
    samples, labels = [], []
    for i in range(len(dataset)):
        pair = dataset[i]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ConfigError(
                f"{kind}[{i}] must be a pair (sample, label), got {type(pair).__name__}; wrap the "
                "data set in one that returns pairs"
            )
        label = _array(pair[1])
        whole = "one label: a whole number from 0, or a text"
        require(f"label of {kind}[{i}]", shown(pair[1]), label.size == 1, whole)
        samples.append(_array(pair[0]))
        labels.append(pair[1] if isinstance(pair[1], str) else label.item())
    require("from_dataset", kind, bool(samples), "a data set with a sample")
    return samples, labels


def _array(value: Any) -> Array:
    if isinstance(value, Tensor):
        unknown = value.is_floating_point() and value.dtype not in NUMPYS  # bfloat16, for instance
        return (value.float() if unknown else value).detach().cpu().numpy()
    if hasattr(value, "getbands"):  # a PIL image, grey or to be in three colours
        _require_bytes(value, "a picture")
        picture = np.asarray(value if value.mode == "L" else value.convert("RGB"))
        return picture[None] if picture.ndim == 2 else picture.transpose(2, 0, 1)
    try:
        return np.asarray(value)
    except ValueError as error:  # lists of different lengths
        raise ConfigError(
            "samples and labels must be arrays, or lists of one length, got a "
            f"{type(value).__name__} of several; crop or pad them to one length"
        ) from error


def _require_bytes(picture: Any, subject: str) -> None:
    """Raise `ConfigError` for pixels of more than 8 bits, which PIL would cut off at 255."""
    if picture.mode[0] in "IF":
        raise ConfigError(
            f"{subject} must have 8 bits a channel, got the mode {picture.mode!r}; scale its "
            "pixels to 0 .. 255, or give its numbers to from_arrays"
        )


def _stacked(samples: Sequence[Array]) -> Array:
    for i, sample in enumerate(samples):
        if sample.shape != samples[0].shape:
            raise ConfigError(
                f"sample {i} must have the shape {samples[0].shape} of the first, got "
                f"{sample.shape}; crop, resize or pad them to one shape"
            )
    return np.stack(list(samples))


def _samples(x: Any) -> Tensor:
    """Return samples as uint8 images, int64 ids or float32 numbers."""
    if isinstance(x, str | Path | np.lib.npyio.NpzFile):
        raise ConfigError(
            f"x must be an array, got {shown(x)}; write np.load(FILE)[NAME], or "
            "pandas.read_csv(FILE)[NAMES]"
        )
    array = _array(x)
    shape = array.shape
    require("x", shape, array.ndim >= 1 and len(array) > 0, "samples along dimension 0")
    if array.dtype.kind not in "biuf":
        raise ConfigError(f"x must be numbers, got {array.dtype}; encode texts and dates first")
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        if array.ndim == 3:
            array = array[:, None]
        elif shape[3] in IMAGE_CHANNELS and shape[1] not in IMAGE_CHANNELS:
            array = array.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.array(array, order="C"))
    array = array[:, None] if array.ndim == 1 else array
    if array.dtype.kind in "iu":
        return torch.from_numpy(array.astype(np.int64, order="C"))
    with np.errstate(over="ignore"):
        numbers = torch.from_numpy(array.astype(np.float32, order="C"))
    if not bool(torch.isfinite(numbers).all()):
        raise ConfigError(
            "x must be finite float32 numbers, got NaN or infinity; impute what is missing"
        )
    if array.ndim == 4 and shape[3] in IMAGE_CHANNELS and shape[1] not in IMAGE_CHANNELS:
        warnings.warn(
            f"x {shape} is taken as images of {shape[1]} channels and {shape[2]} x {shape[3]} "
            "pixels; if their channels come last, give them as (N, C, H, W)",
            stacklevel=3,
        )
    return numbers


def _require_there(name: str, given: Any, array: Array) -> None:
    """Raise `ConfigError` for a missing value, of which NumPy makes a text beside texts."""
    if array.dtype.kind == "f":
        missing = np.flatnonzero(np.isnan(array)).tolist()
    elif array.dtype.kind in "biu":
        missing = []
    else:
        values = given if isinstance(given, (list, tuple)) else array
        missing = [i for i, v in enumerate(values) if not isinstance(v, str) and str(v) in MISSING]
    if missing:
        got = array[missing[0]]
        raise ConfigError(
            f"{name} must be there for every sample, got {got} for sample {missing[0]}; leave the "
            "sample out"
        )


def _labels(y: Any, count: int) -> Tensor:
    array = _array(y)
    if array.shape != (count,):
        remedy = {(count, 1): "; write y[:, 0]"}.get(array.shape, "")
        if array.ndim == 2 and array.shape[0] == count and array.shape[1] > 1:
            one_hot = array.dtype.kind in "biuf" and ((array != 0).sum(axis=1) == 1).all()
            remedy = "; write y.argmax(axis=1)" if one_hot else "; a sample has one class here"
        raise ConfigError(
            f"y must be one label of each sample, ({count},), got {array.shape}{remedy}"
        )
    _require_there("y", y, array)
    if array.dtype.kind == "O" and all(isinstance(label, Real) for label in array):
        array = np.array(array.tolist())  # numbers of a table that allows for missing ones
    if array.dtype.kind in "OUS":
        array = np.unique(array.astype(str), return_inverse=True)[1]
    whole = array.dtype.kind in "biu"
    if array.dtype.kind == "f":
        whole = bool(((array == np.round(array)) & (np.abs(array) < 2.0**63)).all())
    require("y", str(array.dtype), whole, "whole numbers: only classification is possible")
    low = array.min(initial=0)
    if low < 0:
        raise ConfigError(
            f"y must be whole numbers from 0, got {low:g}; "
            "write np.unique(y, return_inverse=True)[1]"
        )
    return torch.from_numpy(array.astype(np.int64))


def _floats(name: str, values: Numbers) -> tuple[float, ...]:
    """Return the mean or the deviation of each channel or column; `ConfigError` if it is none."""
    try:
        return tuple(map(float, values))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name} must be a list of numbers, one for each channel or column, got "
            f"{shown(values)}; write [0.5] for grey images"
        ) from error


def _classes(labels: Tensor) -> int:
    """Return one more than the largest label; warn of labels up to it that no sample has."""
    used: set[int] = set(labels.tolist())
    classes = max(used) + 1
    if len(used) < classes:
        first = next(label for label in range(classes) if label not in used)
        count = classes - len(used)
        warnings.warn(
            f"y has {classes} classes, of which {count} without a sample, the first is {first}; "
            f"write np.unique(y, return_inverse=True)[1], or classes={classes} if it is meant so",
            stacklevel=3,
        )
    return classes


def _owner(clients: Any, count: int) -> Tensor:
    array = _array(clients)
    require("clients", array.shape, array.shape == (count,), f"one of each sample, ({count},)")
    _require_there("clients", clients, array)
    try:
        numbers = np.unique(array, return_inverse=True)[1]
    except TypeError as error:  # of values that have no order
        kinds = ", ".join(sorted({type(client).__name__ for client in array}))
        raise ConfigError(
            f"clients must all be numbers or all texts, got {kinds}; "
            "write [str(c) for c in clients]"
        ) from error
    return torch.from_numpy(numbers.astype(np.int64))


def _moments(x: Tensor, scale: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel or column of the scaled samples."""
    columns = x.transpose(0, 1).flatten(1)
    mean = [float(column.double().mean() / scale) for column in columns]
    std = [float(column.double().std(correction=0) / scale) for column in columns]
    return tuple(mean), tuple(value if value > 1e-12 else 1.0 for value in std)
