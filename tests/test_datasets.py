"""Data sets are the published ones, or one line says what is wrong; no test leaves the machine."""

import contextlib
import gzip
import hashlib
import io
import json
import math
import pickle
import socket
import struct
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.io import savemat

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.data import archives
from fedbench.data.datasets import Cifar100, Data, Emnist, Femnist, Mnist, Svhn, data_folder
from fedbench.experiment import prepare
from fedbench.experiment.scenario import Scenario

Arrays = dict[str, Any]
GREY = (1, 28, 28)
ARCHIVES = [registry.load("dataset", name) for name in archives.SOURCES]


def arrays(train: int = 3, test: int = 2) -> Arrays:
    """A small archive in MNIST's form; every pixel and label tells where it comes from."""
    x = np.arange((train + test) * 784).reshape(-1, 28, 28).astype(np.uint8)
    y = np.arange(train + test).astype(np.uint8)
    return {"x_train": x[:train], "y_train": y[:train], "x_test": x[train:], "y_test": y[train:]}


@contextlib.contextmanager
def refused(requirement: str, *parts: object) -> Iterator[None]:
    """A `ConfigError` of one line that states the requirement and has these parts."""
    with pytest.raises(ConfigError, match=requirement) as error:
        yield
    message = str(error.value)
    assert "\n" not in message
    assert [part for part in parts if str(part) not in message] == []


@pytest.mark.parametrize(
    ("name", "image", "digest"),
    [("digits", (1, 8, 8), "8cf43c50f882cb62"), ("mnist-5k", (1, 28, 28), "8ff918ceb47a6962")],
)
def test_embedded_data_do_not_change(name: str, image: tuple[int, int, int], digest: str) -> None:
    data = registry.load("dataset", name).load(None)
    assert (data.image, data.classes, data.owner) == (image, 10, None)
    assert data.digest.startswith(digest)
    pixels = data.floats(torch.arange(len(data)))
    assert pixels.mean().item() == pytest.approx(0, abs=0.005)
    assert pixels.std().item() == pytest.approx(1, abs=0.005)


@pytest.mark.edges("dataset0")
@pytest.mark.parametrize("dataset", ARCHIVES)
def test_the_archives_at_hand_are_the_published_data(dataset: Any) -> None:
    folder = data_folder() or Path(__file__).parents[2] / "shared" / "data"
    if not (folder / f"{dataset.name}.npz").exists():
        pytest.skip(f"no {dataset.name}.npz: set FEDBENCH_DATA")
    data = dataset.load(folder)
    assert data.trained == dataset.training or dataset.genuine is None
    some = data.floats(torch.arange(2000))
    assert some.mean(dim=(0, 2, 3)).abs().max() < 0.05
    assert (some.std(dim=(0, 2, 3)) - 1).abs().max() < 0.05


def test_the_folder_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    for named, folder in (("~/somewhere", Path("/home/me/somewhere")), ("", None)):
        monkeypatch.setenv("FEDBENCH_DATA", named)
        assert data_folder() == folder
    monkeypatch.delenv("FEDBENCH_DATA")
    assert data_folder() is None


def tiny(**changes: Any) -> Data:
    x = torch.tensor([[0, 200], [100, 50]], dtype=torch.uint8)[:, :, None, None]
    fields: Arrays = {"x": x, "y": torch.tensor([0, 1]), "classes": 2, "scale": 200.0}
    return Data(**(fields | {"mean": (0.5, 0.25), "std": (0.5, 0.125)} | changes))


def test_floats_scale_shift_and_divide_each_channel_by_hand() -> None:
    rows = tiny().floats(torch.tensor([1, 0, 1]))
    assert rows.shape == (3, 2, 1, 1)
    # 100/200 = 0.5 is the mean; 50/200 = 0.25 is the mean; 0 -> -1; 200/200 -> 0.75 / 0.125 = 6.
    assert rows.flatten(1).tolist() == [[0.0, 0.0], [-1.0, 6.0], [0.0, 0.0]]
    assert tiny().floats(torch.tensor([[0], [1]])).shape == (2, 1, 2, 1, 1)


def test_the_digest_sees_pixels_labels_shapes_and_owners() -> None:
    first = tiny()
    pixels, labels = first.x.clone(), first.y.clone()
    pixels[0, 0], labels[0] = 1, 1
    wide = {"x": first.x.reshape(2, 1, 2, 1), "mean": (0.5,), "std": (0.5,)}
    mine, yours, again = (tiny(owner=torch.tensor(ids)) for ids in ([0, 1], [0, 2], [0, 1]))
    pools = (first, tiny(x=pixels), tiny(y=labels), tiny(**wide), mine, yours)
    assert len({pool.digest for pool in pools}) == 6
    assert tiny().digest == first.digest == first.to("cpu").digest
    assert mine.digest == again.digest == mine.to("cpu").digest
    # The digest of a pool without owners is the one that it had before pools could have them.
    assert tiny().digest.startswith("e2e64df9ddf1f38d")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": torch.zeros(2, 2, 1, 1).double()}, r"x uint8 \(N, C, H, W\).* got torch.float64"),
        ({"x": torch.zeros(2, 2, 1, dtype=torch.uint8)}, r"got torch.uint8 \(2, 2, 1\)"),
        ({"y": torch.tensor([0, 1, 1])}, r"torch.int64 \(3,\)"),
        ({"y": torch.tensor([0, 1], dtype=torch.int32)}, "torch.int32"),
        ({"y": torch.tensor([0, 2])}, r"Data.y must be labels from 0 to 1, got \(0, 2\)"),
        ({"y": torch.tensor([-1, 1])}, r"got \(-1, 1\)"),
        ({"x": torch.zeros(0, 2, 1, 1, dtype=torch.uint8), "y": torch.zeros(0).long()}, "one"),
        ({"scale": 0.0}, r"Data.scale must be > 0"),
        ({"mean": (0.5,)}, r"Data.mean must be 2 finite numbers"),
        ({"mean": (0.5, math.nan)}, r"Data.mean must be 2 finite numbers"),
        ({"std": (0.5, 0.0)}, r"Data.std must be 2 finite numbers > 0"),
        ({"std": (0.5, math.inf)}, r"Data.std must be 2 finite numbers > 0"),
        ({"owner": torch.tensor([0])}, r"Data.owner must be None or int64 \(2,\), got .*\(1,\)"),
        ({"trained": 0}, r"Data.trained must be None or in 1 .. 1, got 0"),
        ({"trained": 2}, r"Data.trained must be None or in 1 .. 1, got 2"),
        ({"owner": torch.tensor([0.0, 1.0])}, r"Data.owner .* got \(torch.float32, \(2,\)\)"),
    ],
)
def test_a_pool_of_another_form_is_refused(changes: Arrays, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny(**changes)


def test_an_archive_is_one_pool_training_samples_first_with_channels(tmp_path: Path) -> None:
    archives.write(tmp_path / "a.npz", arrays())
    x, y, trained = archives.read(tmp_path / "a.npz", GREY, classes=10)
    assert trained == 3
    assert (x.shape, x.dtype, y.dtype) == ((5, 1, 28, 28), torch.uint8, torch.int64)
    assert x[3, 0, 0, 1] == (3 * 784 + 1) % 256
    assert y.tolist() == [0, 1, 2, 3, 4]
    images = np.zeros((2, 4, 5, 3), np.uint8)
    images[1, 2, 3] = 7, 8, 9
    archives.write(tmp_path / "a.npz", twice(images, np.zeros(2, np.uint8)))
    x, _, trained = archives.read(tmp_path / "a.npz", (3, 4, 5), classes=10)
    assert (x.shape, trained) == ((4, 3, 4, 5), 2)
    assert x[1, :, 2, 3].tolist() == [7, 8, 9]
    assert x.is_contiguous()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_test": None, "y_test": None}, "no x_test, y_test"),
        ({"x_train": np.zeros((3, 28, 28))}, r"x_train must be uint8 .* got float64"),
        ({"x_test": np.zeros((2, 28, 27), np.uint8)}, r"x_test must be .* got uint8 \(2, 28, 27\)"),
        ({"x_test": np.zeros((0, 28, 28), np.uint8), "y_test": np.zeros(0, int)}, "n >= 1"),
        ({"x_train": np.uint8(3)}, r"x_train must be"),
        ({"y_train": np.zeros(4, int)}, r"y_train must be integers \(3,\), got int64 \(4,\)"),
        ({"y_train": np.zeros(3)}, r"y_train must be integers \(3,\), got float64"),
        ({"y_test": np.array([0, 10])}, "y_test must be labels from 0 to 9, got 0 to 10"),
        ({"y_test": np.array([-1, 3])}, "got -1 to 3"),
        ({"y_train": np.array([print, 1, 2], dtype=object)}, "allow_pickle=False"),
    ],
)
def test_an_archive_of_other_arrays_is_refused(
    changes: Arrays, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "mnist.npz"
    np.savez(path, **{name: x for name, x in (arrays() | changes).items() if x is not None})
    with refused(message, path):
        Mnist().load(tmp_path)


def test_a_damaged_archive_and_data_that_only_look_like_mnist_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    archives.write(path, arrays())
    with refused(
        r"mnist.npz must hold mnist .*6ae948929b04\.\.\..* delete the file to fetch it again"
    ):
        Mnist().load(tmp_path)
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        middle = archive.getinfo("x_train.npy").header_offset + 200
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    one_array = io.BytesIO()
    np.save(one_array, np.zeros(3))
    damaged = (whole[: len(whole) // 2], flipped, b"", b"<html>404</html>\n", one_array.getvalue())
    for content in (*damaged, None):
        path.unlink()
        path.mkdir() if content is None else path.write_bytes(content)
        with refused(r"must be a \.npz archive of x_train", path):
            Mnist().load(tmp_path)


def test_published_data_that_are_split_elsewhere_are_refused(tmp_path: Path) -> None:
    archives.write(tmp_path / "mnist.npz", arrays())
    x, y, _ = archives.read(tmp_path / "mnist.npz", GREY, classes=10)

    class Small(Mnist):
        genuine = Data(x, y, 10, 255.0, Mnist.mean, Mnist.std).digest
        training = 3

    assert Small().load(tmp_path).trained == 3
    archives.write(tmp_path / "mnist.npz", arrays(train=2, test=3))  # the same pool
    with refused(r"3 for training\), got .*\.\.\., 2; delete the file"):
        Small().load(tmp_path)


def test_an_archive_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    archives.write(path, arrays())
    before = path.read_bytes()
    with pytest.raises(KeyError):
        archives.write(path, {"x_train": np.zeros(1)})
    assert [child.name for child in tmp_path.iterdir()] == ["a.npz"]
    assert path.read_bytes() == before
    (tmp_path / "file").write_text("")
    with refused(r"a.npz could not be written .*set FEDBENCH_DATA"):
        archives.write(tmp_path / "file" / "a.npz", arrays())


@pytest.fixture(scope="module")
def torchvision() -> Any:
    return archives.datasets()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    monkeypatch.setenv("no_proxy", "*")
    return folder


def twice(x: Any, y: Any) -> Arrays:
    """An archive whose test part is its training part."""
    return {"x_train": x, "y_train": y, "x_test": x, "y_test": y}


def idx(x: Any) -> bytes:
    header = struct.pack(f">HBB{x.ndim}I", 0, 8, x.ndim, *x.shape)
    return gzip.compress(header + x.tobytes())


@pytest.fixture
def site(temporary: Path, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the address under which this machine serves it."""
    folder = tmp_path / "site"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


@pytest.fixture
def mirror(torchvision: Any, site: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, here = site
    files = {"train-images-idx3": "x_train", "train-labels-idx1": "y_train"}
    files |= {"t10k-images-idx3": "x_test", "t10k-labels-idx1": "y_test"}
    resources = []
    for stem, name in files.items():
        content = idx(arrays()[name])
        (folder / f"{stem}-ubyte.gz").write_bytes(content)
        resources.append((f"{stem}-ubyte.gz", md5(content)))
    monkeypatch.setattr(torchvision.MNIST, "mirrors", [here])
    monkeypatch.setattr(torchvision.MNIST, "resources", resources)


def test_torchvision_imports_beside_any_build_of_torch(torchvision: Any) -> None:
    assert torchvision.MNIST.__name__ == "MNIST"
    assert archives.datasets() is torchvision
    parts = [name.split(".") for name in sys.modules if name.startswith("torchvision.")]
    # A part that was left over from a failed import is not bound to the package.
    assert all(hasattr(sys.modules["torchvision"], part[1]) for part in parts)


@pytest.mark.usefixtures("mirror")
def test_a_download_becomes_an_archive_and_a_part_keeps_the_first_samples(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cache" / "mnist.npz"
    archives.download("mnist", path)
    with np.load(path, allow_pickle=False) as archive:
        assert set(archive.files) == set(archives.NAMES)
        for name, x in arrays().items():
            assert archive[name].dtype == np.uint8
            assert np.array_equal(archive[name], x)
    assert [child.name for child in path.parent.iterdir()] == ["mnist.npz"]
    assert list(temporary.iterdir()) == []
    monkeypatch.setitem(archives.SOURCES, "part", ("MNIST", 2, 1))
    archives.download("part", tmp_path / "part.npz")
    _, y, _ = archives.read(tmp_path / "part.npz", GREY, classes=10)
    assert y.tolist() == [0, 1, 3]
    assert archives.SOURCES["cifar10-20k"] == ("CIFAR10", 18_000, 2_000)


def fetched(dataset: Any, tmp_path: Path, classes: int, labels: list[int], x: Any) -> None:
    """A download to an empty folder leads to this pool, the same when it is read again."""
    data: Data = dataset.load(tmp_path / "cache")
    assert [child.name for child in (tmp_path / "cache").iterdir()] == [f"{dataset.name}.npz"]
    assert dataset.load(tmp_path / "cache").digest == data.digest
    assert (data.classes, data.image, data.y.tolist()) == (classes, x.shape[1:], labels)
    assert np.array_equal(data.x.numpy(), x)


def test_cifar100_has_fine_labels_and_channels_first(
    torchvision: Any, site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(3 * 3072).reshape(3, 3, 32, 32).astype(np.uint8) // 3
    files = {}
    for name, rows, fine in (("train", slice(0, 2), [99, 0]), ("test", slice(2, 3), [57])):
        batch = {"data": x[rows].reshape(-1, 3072), "fine_labels": fine, "coarse_labels": [1, 2]}
        files[name] = pickle.dumps(batch)
    files["meta"] = pickle.dumps({"fine_label_names": [str(i) for i in range(100)]})
    with tarfile.open(site[0] / "cifar.tar.gz", "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    source = torchvision.CIFAR100
    monkeypatch.setattr(source, "url", site[1] + "cifar.tar.gz")
    monkeypatch.setattr(source, "tgz_md5", md5((site[0] / "cifar.tar.gz").read_bytes()))
    for part in ("train", "test"):
        monkeypatch.setattr(source, f"{part}_list", [[part, md5(files[part])]])
    monkeypatch.setitem(source.meta, "md5", md5(files["meta"]))

    fetched(Cifar100(), tmp_path, 100, [99, 0, 57], x)


def test_svhn_has_digit_0_as_label_0_and_no_extra_part(
    torchvision: Any, site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(5 * 3072).reshape(5, 3, 32, 32).astype(np.uint8) // 3
    labels = np.array([[1], [10], [9], [10], [3]], np.uint8)
    for name, rows in (("train", slice(0, 3)), ("test", slice(3, 5))):
        path = site[0] / f"{name}.mat"
        savemat(path, {"X": x[rows].transpose(2, 3, 1, 0), "y": labels[rows]})
        entry = [f"{site[1]}{name}.mat", f"{name}_32x32.mat", md5(path.read_bytes())]
        monkeypatch.setitem(torchvision.SVHN.split_list, name, entry)

    fetched(Svhn(), tmp_path, 10, [1, 0, 9, 0, 3], x)


def test_emnist_is_balanced_and_upright(
    torchvision: Any, site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seven = np.zeros((28, 28), np.uint8)
    seven[4, 8:20] = 200  # its bar
    seven[4:24, 19] = 100  # and its stem, to the right
    upright = np.stack([seven, np.zeros_like(seven), seven // 2])
    labels = np.array([7, 46, 1], np.uint8)
    with zipfile.ZipFile(site[0] / "gzip.zip", "w") as archive:
        for name, rows in (("train", slice(0, 2)), ("test", slice(2, 3))):
            stem = f"gzip/emnist-balanced-{name}"
            stored = np.ascontiguousarray(upright[rows].transpose(0, 2, 1))
            archive.writestr(f"{stem}-images-idx3-ubyte.gz", idx(stored))
            archive.writestr(f"{stem}-labels-idx1-ubyte.gz", idx(labels[rows]))
    monkeypatch.setattr(torchvision.EMNIST, "url", site[1] + "gzip.zip")
    monkeypatch.setattr(torchvision.EMNIST, "md5", md5((site[0] / "gzip.zip").read_bytes()))

    fetched(Emnist(), tmp_path, 47, [7, 46, 1], upright[:, None])


@pytest.mark.usefixtures("torchvision")
@pytest.mark.parametrize("dataset", ARCHIVES)
def test_without_a_network_one_line_says_how_to_get_it(
    dataset: Any, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    folder = tmp_path / "cache"
    last = "^(?!.*urlopen error.*urlopen error).*Name or service not known"  # of all mirrors
    where = f"{dataset.name} must be at {folder / dataset.name}.npz or"
    with refused(last, where, f"put {dataset.name}.npz into a folder and set FEDBENCH_DATA"):
        dataset.load(folder)
    assert not folder.exists()
    assert list(temporary.iterdir()) == []


def test_a_server_that_never_answers_is_given_up(
    torchvision: Any, tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MAX_SILENT_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        monkeypatch.setattr(torchvision.MNIST, "mirrors", [f"http://127.0.0.1:{port}/"])
        with refused("timed out"):
            Mnist().load(tmp_path / "cache")
    assert socket.getdefaulttimeout() is None
    assert list(temporary.iterdir()) == []


Users = dict[str, list[int]]


def image(label: int) -> list[float]:
    """White paper, but for a pixel of ink and one that tells the label."""
    x = [1.0] * 784
    x[0], x[28], x[783] = 0.999, 0.0, label / 255
    return x


def content(users: Users) -> dict[str, Any]:
    """Return the content of a file as LEAF's ``data_to_json.py`` writes it."""
    data = {user: {"x": [*map(image, labels)], "y": labels} for user, labels in users.items()}
    return {"users": list(users), "num_samples": [*map(len, users.values())], "user_data": data}


def write(path: Path, users: Users) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content(users)))
    return path


def test_users_pixels_and_labels_by_hand(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "all_data" / "all_data_1.json", {"f2": [0, 61]})
    write(tmp_path / "femnist" / "all_data" / "all_data_0.json", {"f9": [10, 36, 3], "f1": [7]})
    data = Femnist().load(tmp_path)
    assert (data.classes, data.image, data.scale) == (62, (1, 28, 28), 255.0)
    assert data.y.tolist() == [10, 36, 3, 7, 0, 61]
    assert data.owner is not None
    assert (data.owner.dtype, data.owner.tolist()) == (torch.int64, [0, 0, 0, 1, 2, 2])
    assert data.x[:, 0, 27, 27].tolist() == data.y.tolist()
    assert data.x[:, 0, 1, 0].tolist() == [0] * 6  # ink is dark
    assert set(data.x[:, 0, 0].flatten().tolist()) == {255}  # paper is white, also 0.999 of it


@pytest.mark.parametrize("inner", ["", "data"])
def test_a_user_of_train_and_test_is_one_user(tmp_path: Path, inner: str) -> None:
    root = tmp_path / "femnist" / inner
    write(root / "train" / "a_train_9.json", {"u": [1, 2], "v": [3]})
    write(root / "test" / "a_test_9.json", {"v": [4], "w": [5], "u": [6]})
    write(root / "all_data" / "all_data_0.json", {"z": [9]})  # an earlier step of LEAF
    data = Femnist().load(tmp_path)
    assert data.owner is not None
    assert data.y.tolist() == [1, 2, 3, 4, 5, 6]
    assert data.owner.tolist() == [0, 0, 1, 1, 2, 0]


def test_without_files_one_line_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "femnist" / "train" / "a.json", {"u": [1]})
    with refused("got neither"):  # train alone is not the data set
        Femnist().load(tmp_path)
    write(tmp_path / "femnist" / "all_data" / "a.json", {"z": [9]})
    assert Femnist().load(tmp_path).y.tolist() == [9]
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder, root in ((tmp_path / "d", tmp_path / "d"), (None, tmp_path / ".cache/fedbench")):
        form = f"{root / 'femnist'} must hold train/*.json and test/*.json, or"
        with refused(r"LEAF's data/femnist/preprocess\.sh", form):
            Femnist().load(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSON, got 'Expecting value"),
        ("<html>\n404", "JSON, got 'Expecting value"),
        ("[" * 100_000, "JSON, got"),
        ("\xff", "JSON, got"),
        ("[1]", "object user_data, got no such users, num_samples, user_data"),
        ('{"users": [], "user_data": []}', "got no such num_samples, user_data"),
        ('{"users": ["u"], "num_samples": [], "user_data": {}}', "of one length, got 1 and 0"),
        ('{"users": ["u"], "num_samples": [1], "user_data": {}}', "got KeyError: 'u'"),
        ('{"users": [[]], "num_samples": [1], "user_data": {}}', "got TypeError"),
        (json.dumps(content({"u": []})), r"0 samples of 'u', .* at least one, got \(0,\)"),
        ('{"users": [], "num_samples": [], "user_data": {}}', "at least one user, got none"),
    ],
)
def test_a_file_of_another_form_is_named(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "femnist" / "all_data" / "a.json", {"u": [1]})
    path.write_bytes(text.encode("latin1"))
    with refused(message, f"{path} must hold "):
        Femnist().load(tmp_path)


X = [image(1), image(2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": X[:1]}, r"2 samples of 'u', .* got \(1, 784\) and \(2,\)"),
        ({"x": [x[:783] for x in X]}, r"got \(2, 783\) and \(2,\)"),
        ({"x": [X[0], X[1][:783]]}, "got ValueError: .*inhomogeneous"),
        ({"x": [["a"] * 784] * 2}, "got ValueError: could not convert"),
        ({"x": None}, r"got \(\) and \(2,\)"),
        ({"x": [[255.0] * 784] * 2}, "pixels of 'u' from 0 to 1, got 255 to 255"),
        ({"x": [[-0.1] * 784] * 2}, "got -0.1 to -0.1"),
        ({"x": [[float("nan")] * 784] * 2}, "got nan to nan"),
        ({"y": [1]}, r"got \(2, 784\) and \(1,\)"),
        ({"y": [1, 62]}, "labels of 'u' that are integers from 0 to 61, got 62;"),
        ({"y": [-1, 61]}, "got -1;"),
        ({"y": [1.0, 2.0]}, "got 1.0;"),
        ({"y": ["1", "2"]}, "integers from 0 to 61, got '1';"),
        ({"y": [True, False]}, "integers from 0 to 61, got True;"),
        ({"y": [1, None]}, "integers from 0 to 61, got None;"),
        ({"x": [], "y": []}, r"2 samples of 'u'"),
    ],
)
def test_another_form_of_user_is_named(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "femnist" / "all_data" / "a.json", {"t": [4], "u": [1, 2]})
    other = content({"t": [4], "u": [1, 2]})
    other["user_data"]["u"] |= changes
    path.write_text(json.dumps(other))
    with refused(message, f"{path} must hold "):
        Femnist().load(tmp_path)


def test_a_run_with_natural_clients_gives_each_one_its_own_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {f"u{i}": [i] * (10 + i) for i in range(8)} | {"rare": [9, 9]}
    write(tmp_path / "femnist" / "all_data" / "a.json", users)
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path))
    scenario = Scenario(dataset="femnist", partition="natural", clients=5, per_round=2)
    prepared = prepare.prepare(scenario, device="cpu")
    seen = set()
    for train, test in zip(prepared.population.train, prepared.population.test, strict=True):
        (user,) = set(prepared.population.data.y[torch.cat([train, test])].tolist())
        n = 10 + user
        assert len(train) + len(test) == n - max(1, (n + 5) // 10)  # all but validation
        seen.add(user)
    assert len(seen) == 5
    assert 9 not in seen


def test_partitions_have_their_names() -> None:
    for text in ("labels:k=4", "max-classes:classes=4", "natural"):
        kind = type(registry.load("partition", text)).__name__
        assert kind.lower() == text.partition(":")[0].replace("-", "")
