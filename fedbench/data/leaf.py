"""FEMNIST as LEAF writes it: JSON files, one entry for each user."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedbench.core.errors import ConfigError
from fedbench.data.datasets import CACHE, Data, Dataset

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
            rule = f"user_data of {user!r} with x (n, 784) and y (n,)"
            raise _wrong(path, rule, reason) from error
        if x.shape != (count, 784) or y.shape != (count,):
            rule = f"{count} samples of {user!r}, x ({count}, 784) and y ({count},), at least one"
            raise _wrong(path, rule, f"{x.shape} and {y.shape}")
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
        rule = "lists users and num_samples, object user_data"
        raise _wrong(path, rule, f"no such {', '.join(bad)}")
    if len(table["users"]) != len(table["num_samples"]):
        lengths = f"{len(table['users'])} and {len(table['num_samples'])}"
        raise _wrong(path, "users and num_samples of one length", lengths)
    if not table["users"]:
        raise _wrong(path, "at least one user", "none")
    return table


def _wrong(path: Path, rule: str, got: str) -> ConfigError:
    remedy = "write the files again with LEAF's data/femnist/preprocess.sh"
    return ConfigError(f"{path} must hold {rule}, got {got}; {remedy}")
