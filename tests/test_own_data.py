"""Data of one's own: what samples are, their normalisation, owners, identity, and what they fit."""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import moody
import numpy as np
import pytest
import torch
from own_models import MODELS
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import fedbench
from fedbench.core import registry
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.data.datasets import Data
from fedbench.data.own import from_arrays, from_dataset, from_folder, from_hugging_face
from fedbench.data.partitions import Natural

EVERY = torch.arange(4)
WORDS = '''

@dataclass(frozen=True, kw_only=True)
class WordsModel(ModuleModel):
    """`Words` as a plug-in."""

    def make(self, image: Image, classes: int) -> nn.Module:
        return Words(20, classes)
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the models of `own_models` as plug-ins, and one of words."""
    code = "from own_models import *\nfrom own_models import dataclass, nn" + WORDS
    points = {"models": [*MODELS, "words = own_words:WordsModel"]}
    site = moody.package(tmp_path / "site", "owner", points, own_words=code)
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(registry, "_points", registry._points.__wrapped__)


def rows(n: int = 240, p: int = 6) -> tuple[Tensor, Tensor]:
    """Rows whose label is the larger of their first two numbers, far from 0 and 1."""
    x = 50 + 10 * Key(0).normal(n, p)
    return x, (x[:, 0] > x[:, 1]).long()


@pytest.mark.parametrize(
    ("shape", "dtype", "kind", "image"),
    [
        ((4, 5, 6), np.uint8, "image", (1, 5, 6)),
        ((4, 5, 6, 3), np.uint8, "image", (3, 5, 6)),
        ((4, 3, 5, 6), np.uint8, "image", (3, 5, 6)),
        ((4, 3, 5, 6), np.float64, "image", (3, 5, 6)),
        ((4, 7), np.float16, "numbers", (7,)),
        ((4,), np.float32, "numbers", (1,)),
        ((4, 7, 2), np.float32, "numbers", (7, 2)),
        ((4, 7), bool, "ids", (7,)),
        ((4, 7), np.int16, "ids", (7,)),
        ((4, 7), np.uint8, "ids", (7,)),
    ],
)
def test_type_and_shape_say_what_samples_are(
    shape: tuple[int, ...], dtype: Any, kind: str, image: tuple[int, ...]
) -> None:
    if dtype is bool:
        kind = "numbers"
    data = from_arrays(np.ones(shape, dtype), [0, 1, 0, 1])
    assert (data.kind, data.image) == (kind, image)
    wanted = torch.int64 if kind == "ids" else torch.float32
    assert data.floats(EVERY).dtype == wanted


def test_columns_and_channels_are_normalised_by_their_own_or_by_given_moments() -> None:
    x, y = rows()
    mine = from_arrays(x, y).floats(torch.arange(240))
    torch.testing.assert_close(mine.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)
    torch.testing.assert_close(mine.std(dim=0, correction=0), torch.ones(6))
    half = from_arrays(x, y, trained=100).floats(torch.arange(100))
    torch.testing.assert_close(half.mean(dim=0), torch.zeros(6), atol=1e-5, rtol=0)
    assert torch.equal(from_arrays(x, y, normalise=False).floats(EVERY), x[:4])
    given = from_arrays(x, y, mean=[50.0] * 6, std=[2.0] * 6).floats(EVERY)
    torch.testing.assert_close(given, (x[:4] - 50) / 2)
    assert from_arrays(np.full((4, 1), 3.0), [0, 1, 0, 1]).floats(EVERY).tolist() == [[0.0]] * 4
    pixels = np.array([0, 255, 0, 255], np.uint8).reshape(4, 1, 1, 1)
    assert from_arrays(pixels, [0, 1, 0, 1]).floats(EVERY).flatten().tolist() == [-1, 1, -1, 1]
    plain = from_arrays(pixels, [0, 1, 0, 1], normalise=False)
    assert plain.floats(EVERY).flatten().tolist() == [0, 1, 0, 1]
    series = from_arrays(Key(1).normal(4, 3, 5), [0, 1, 0, 1]).floats(EVERY)
    torch.testing.assert_close(series.mean(dim=(0, 2)), torch.zeros(3), atol=1e-6, rtol=0)


def test_channels_that_come_last_come_first() -> None:
    x = np.arange(4 * 5 * 6 * 3, dtype=np.uint8).reshape(4, 5, 6, 3)
    data = from_arrays(x, [0, 1, 0, 1])
    assert np.array_equal(data.x.numpy(), x.transpose(0, 3, 1, 2))
    with pytest.warns(UserWarning, match=r"taken as images of 5 channels and 6 x 3 pixels; if"):
        floats = from_arrays(x / 255, [0, 1, 0, 1])
    assert floats.x.shape == x.shape


def test_floats_without_a_channel_are_numbers_and_the_error_says_what_images_are() -> None:
    data = from_arrays(Key(1).normal(4, 8, 8), [0, 1, 0, 1])
    with pytest.raises(ConfigError, match=r"got samples \(8, 8\); write x\[:, None\] if they are"):
        registry.load("model", "lenet").build(data.image, 2)


def test_the_identity_covers_type_bytes_shape_labels_owners_and_normalisation() -> None:
    x, y = rows(8)
    one = from_arrays(x, y, normalise=False)
    changed = x.clone()
    changed[3, 2] += 1e-3
    others = [
        from_arrays(changed, y, normalise=False),
        from_arrays(x.reshape(8, 3, 2), y, normalise=False),
        from_arrays(x, 1 - y, normalise=False),
        from_arrays(x, y, classes=3, normalise=False),
        from_arrays(x, y, clients=[0, 1] * 4, normalise=False),
        from_arrays(x, y),
        from_arrays(x, y, trained=5, normalise=False),
        from_arrays(x.view(torch.int32), y),
        from_arrays(x.view(torch.int32).long(), y + 1, classes=3),
    ]
    assert len({one.identity, *(data.identity for data in others)}) == 10
    assert from_arrays(x.clone(), y, normalise=False, name="else").identity == one.identity


def test_labels_and_clients_may_be_texts() -> None:
    data = from_arrays(np.zeros((4, 2)), ["cat", "dog", "ant", "dog"], clients=list("bbab"))
    assert (data.y.tolist(), data.classes) == ([1, 2, 0, 2], 3)
    assert data.owner is not None
    assert data.owner.tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("lacks", [None, float("nan"), np.datetime64("NaT")])
@pytest.mark.parametrize("beside", ["ant", 0])
@pytest.mark.parametrize("kind", [list, lambda values: np.array(values, dtype=object)])
def test_a_label_or_client_that_is_missing_is_no_class_and_no_client(
    lacks: Any, beside: Any, kind: Callable[[list[Any]], Any]
) -> None:
    x = np.zeros((3, 2))
    values = kind([beside, beside, lacks])
    with pytest.raises(ConfigError, match=f"y must be there .*, got {lacks} for sample 2"):
        from_arrays(x, values)
    with pytest.raises(ConfigError, match=f"clients must be there .*, got {lacks} for sample 2"):
        from_arrays(x, [0, 1, 0], clients=values)


def test_words_for_nothing_are_labels_like_others() -> None:
    assert from_arrays(np.zeros((3, 2)), ["None", "nan", "NaT"]).classes == 3


def test_each_client_gets_the_samples_that_were_assigned_to_it() -> None:
    clients = np.repeat(["x", "y", "z"], 5)
    data = from_arrays(np.zeros((15, 2)), np.arange(15) % 2, clients=clients)
    parts = Natural().split(data.y, 3, 2, Key(0), data.owner)
    assert sorted(sorted(part.tolist()) for part in parts) == [
        list(range(start, start + 5)) for start in (0, 5, 10)
    ]


def test_a_torch_data_set_is_read_once_with_its_published_test_part() -> None:
    x, y = rows(10)
    data = from_dataset(TensorDataset(x, y), test=TensorDataset(x[:4] + 1, y[:4]), normalise=False)
    assert (len(data), data.trained, data.kind) == (14, 10, "numbers")
    torch.testing.assert_close(data.x[10:], x[:4] + 1)
    pictures = [(Image.fromarray(np.full((4, 5, 3), i, np.uint8)), i % 2) for i in range(6)]
    seen = from_dataset(pictures)
    assert (seen.image, seen.y.tolist()) == ((3, 4, 5), [0, 1] * 3)


def picture(path: Path, value: int, size: tuple[int, int] = (4, 6)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(path)


def test_a_folder_has_one_folder_for_each_class(tmp_path: Path) -> None:
    for label, value in (("zebra", 255), ("ape", 0)):
        for i in range(2):
            picture(tmp_path / label / f"{i}.png", value)
    (tmp_path / "ape" / "notes.txt").write_text("not a picture")
    data = from_folder(tmp_path)
    assert (data.image, data.y.tolist(), data.classes) == ((3, 4, 6), [0, 0, 1, 1], 2)
    assert data.x[:, 0, 0, 0].tolist() == [0, 0, 255, 255]
    assert data.title == tmp_path.name
    assert from_folder(tmp_path, grey=True, size=(2, 3)).image == (1, 2, 3)
    picture(tmp_path / "zebra" / "wide.png", 1, (4, 7))
    with pytest.raises(ConfigError, match=r"wide.png must have the size \(4, 6\) of the first"):
        from_folder(tmp_path)
    (tmp_path / "zebra" / "broken.png").write_text("nothing")
    with pytest.raises(ConfigError, match=r"broken.png must be an image"):
        from_folder(tmp_path)


@pytest.mark.parametrize("pixels", [np.uint16, np.int32, np.float32])
def test_pixels_of_more_than_eight_bits_are_refused_before_they_become_white(
    tmp_path: Path, pixels: type[np.number[Any]]
) -> None:
    made = Image.fromarray(np.full((4, 4), 1000, pixels))
    why = rf"must have 8 bits a channel, got the mode '{made.mode}'; scale its pixels to 0"
    with pytest.raises(ConfigError, match=f"a picture {why}"):
        from_dataset([(made, 0)])
    (tmp_path / "a").mkdir()
    made.save(tmp_path / "a" / "0.tiff")
    with pytest.raises(ConfigError, match=f"0.tiff {why}"):
        from_folder(tmp_path, grey=True)


@pytest.mark.filterwarnings("ignore:y has 11 classes")
def test_whole_numbers_are_kept_whatever_the_type_of_their_array() -> None:
    # As texts 10 would come before 2, and be 1.
    for labels in ([0, 10, 2], [0.0, 10.0, 2.0], [np.int8(0), 10, 2.0], [False, 10, 2]):
        data = from_arrays(np.zeros((3, 1)), np.array(labels, dtype=object))
        assert (data.y.tolist(), data.classes) == ([0, 10, 2], 11)
    assert from_arrays(np.zeros((3, 1)), ["0", "10", "2"]).y.tolist() == [0, 1, 2]


def test_labels_that_no_sample_has_are_warned_of_unless_the_classes_are_given() -> None:
    x = np.zeros((3, 1))
    with pytest.warns(UserWarning, match=r"^y has 6 classes, of which 3 without a sample"):
        assert from_arrays(x, [0, 1, 5]).classes == 6
    with pytest.warns(UserWarning, match=r"the first is 0; write np.unique"):
        assert from_dataset(TensorDataset(torch.zeros(2, 1), torch.tensor([1, 2]))).classes == 3
    with warnings.catch_warnings(action="error"):
        assert from_arrays(x, [0, 1, 5], classes=6).classes == 6
        assert from_arrays(x, [2, 0, 1]).classes == 3
        assert from_arrays(x, ["0", "1", "5"]).classes == 3


def test_floats_that_numpy_does_not_have_are_read_as_float32() -> None:
    x = torch.tensor([[1.5], [2.5]])
    assert torch.equal(from_arrays(x.bfloat16(), [0, 1]).x, x)


class Endless(IterableDataset[Tensor]):
    """A stream."""

    def __iter__(self) -> Any:
        yield torch.zeros(1)


REFUSED: list[tuple[Callable[[], Data], str]] = [
    (lambda: from_arrays(np.zeros((3, 2)), [0, 1]), r"y must be one label of each sample, \(3,\)"),
    (lambda: from_arrays(np.zeros((3, 2)), np.eye(3)), r"got \(3, 3\); write y.argmax\(axis=1\)$"),
    (
        lambda: from_arrays(np.zeros((3, 2)), [[1, 1], [0, 1], [1, 0]]),
        r"got \(3, 2\); a sample has one class here$",
    ),
    (lambda: from_arrays(np.zeros((3, 2)), np.ones((3, 1))), r"got \(3, 1\); write y\[:, 0\]$"),
    (
        lambda: from_dataset(DataLoader(TensorDataset(EVERY, EVERY))),
        "got a DataLoader; give its .dataset$",
    ),
    (lambda: from_arrays(np.zeros((2, 2)), [0.5, 1.25]), "only classification is possible"),
    (
        lambda: from_arrays("data.npz", [0, 1]),
        r"x must be an array, got 'data.npz'; write np.load\(FILE\)\[NAME\]",
    ),
    (
        lambda: from_dataset([(np.zeros(2), np.eye(3)[0])]),
        r"label of list\[0\] must be one label: a whole number from 0, or a text, got",
    ),
    (
        lambda: from_arrays(np.zeros((2, 2)), np.array([0, 1.5], dtype=object)),
        "only classification is possible",
    ),
    (lambda: from_arrays(np.zeros((2, 2)), [0, np.inf]), "only classification is possible"),
    (lambda: from_arrays(np.zeros((2, 2)), [0, 1e300]), "only classification is possible"),
    (lambda: from_arrays(np.zeros((2, 2)), [0, 1 + 0j]), "only classification is possible"),
    (
        lambda: from_arrays(np.zeros((2, 2)), np.array(["2020", "2021"], "datetime64")),
        "only classification is possible",
    ),
    (lambda: from_arrays(np.zeros((2, 2)), [-1, 1]), r"y must be .* from 0, got -1; write np.uniq"),
    (
        lambda: from_arrays([[1, 2], [3]], [0, 1]),
        "lists of one length, got a list of several; crop",
    ),
    (lambda: from_arrays([[np.nan, 1.0]], [0]), r"numbers, got NaN or infinity; impute"),
    (lambda: from_arrays([["a"], ["b"]], [0, 1]), "x must be numbers, got <U1; encode texts"),
    (lambda: from_arrays(np.zeros((2, 2)), [0, 3], classes=2), "labels from 0 to 1"),
    (lambda: from_arrays(np.zeros((2, 2)), [0, 1], clients=[1]), r"clients must be one of each"),
    (
        lambda: from_arrays(np.zeros((2, 2)), [0, 1], clients=np.array(["a", 1], object)),
        r"clients must all be numbers or all texts, got int, str; write \[str\(c\)",
    ),
    (lambda: from_arrays(np.zeros((2, 2)), [0, 1], mean=[1.0]), "mean must be given together"),
    (
        lambda: from_arrays(np.zeros((2, 2)), [0, 1], mean=[1.0], std=[1.0]),
        "mean must be 2 fin",
    ),
    (
        lambda: from_arrays(np.zeros((2, 2)), [0, 1], mean=0.5, std=[1.0]),  # type: ignore[arg-type]
        r"mean must be a list of numbers, .*, got 0.5; write \[0.5\] for grey images",
    ),
    (
        lambda: from_arrays(np.zeros((2, 2)), [0, 1], mean=[0, 0], std=["a", 1]),  # type: ignore[list-item]
        r"std must be a list of numbers, .*, got a list of 2",
    ),
    (lambda: from_arrays(np.zeros((2, 2), int), [0, 1], mean=[1.0], std=[1.0]), "token ids"),
    (lambda: from_arrays(np.zeros((0, 2)), []), "x must be samples along dimension 0"),
    (lambda: from_dataset(Endless()), "a data set with a length, got Endless; list it first$"),
    (lambda: from_dataset([{"x": 1}]), r"list\[0\] must be a pair \(sample, label\), got dict"),
    (lambda: from_dataset([(np.zeros(2), 0), (np.zeros(3), 1)]), r"sample 1 must have the shape"),
    (lambda: from_folder("/nowhere"), "from_folder must be a folder"),
]


@pytest.mark.parametrize(("made", "why"), REFUSED, ids=[why[:30] for _, why in REFUSED])
def test_what_is_no_data_is_refused_in_one_line(made: Callable[[], Data], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        made()
    assert "\n" not in str(error.value)


def test_data_are_shown_in_one_line() -> None:
    assert repr(from_arrays(np.zeros((9, 2)), [0, 1, 2] * 3, name="mine")) == (
        "<Data mine: 9 numbers (2,), 3 classes>"
    )


SMALL: dict[str, Any] = {"clients": 6, "per_round": 4, "rounds": 3, "malicious": 0.34}


def test_rows_of_numbers_are_learned_and_their_id_is_not_that_of_the_named_set(own: None) -> None:
    data = from_arrays(*rows(), clients=torch.arange(240) % 6)
    scenario = fedbench.Scenario(
        model="plain", partition="natural", attack="label-flip", protocol="fedavg:lr=0.1", **SMALL
    )
    record = fedbench.play(scenario, data=data)
    assert record.result.accuracy > 0.7
    assert record.data_digest == data.digest
    other = fedbench.play(scenario, data=from_arrays(*rows(), clients=torch.arange(240) % 7))
    assert other.id != record.id


def test_token_ids_are_learned(own: None) -> None:
    x = Key(0).integers(10, 240 * 5).reshape(240, 5)
    y = torch.arange(240) % 2
    x = x + 10 * y[:, None]
    scenario = fedbench.Scenario(model="words", protocol="fedavg:lr=0.5", attack="ipm", **SMALL)
    for executor in ("loop", "stacked"):
        record = fedbench.play(scenario, data=from_arrays(x, y), executor=executor)
        assert record.result.accuracy > 0.8


TABLE = from_arrays(*rows())
IDS = from_arrays(torch.zeros(240, 5, dtype=torch.int64), torch.arange(240) % 2)


@pytest.mark.parametrize(
    ("data", "field", "value", "why"),
    [
        (TABLE, "attack", "pixel", r"attack pixel must have samples of kind image, got numbers"),
        (TABLE, "attack", "a3fl", r"attack a3fl must have samples of kind image"),
        (IDS, "attack", "edge-case", r"must have samples of kind image or numbers, got ids"),
        (
            TABLE,
            "augment",
            "crop-flip",
            r"Scenario.augment crop-flip must have images, got numbers \(6\)",
        ),
        (
            TABLE,
            "model",
            "lenet",
            r"lenet needs images .*, got samples \(6,\); use a torch.nn.Module",
        ),
        (IDS, "defense", "deepsight", "tries the network on noise"),
        (IDS, "model", "plain", r"samples of the data, token ids from 0 to 0, .*x.astype\(float\)"),
        (TABLE, "model", "words", r"samples of the data, numbers, got .*x.astype\(int\)"),
        (
            from_arrays(np.full((40, 5), 99), np.arange(40) % 2),
            "model",
            "words",
            "token ids from 99 to 99, got IndexError.*; give its embedding 100 rows$",
        ),
    ],
)
def test_what_assumes_images_refuses_other_samples_in_one_line(
    own: None, data: Data, field: str, value: str, why: str
) -> None:
    model = "words" if data is IDS else "plain"
    scenario = fedbench.Scenario(**{"model": model} | SMALL | {field: value})
    with pytest.raises((ConfigError, Incompatible), match=why) as error:
        fedbench.play(scenario, data=data)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="Data must be images, which have black pixels"):
        TABLE.black  # noqa: B018


def test_without_the_package_hugging_face_data_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedbench-toolkit\[hf\]'"):
        from_hugging_face("somewhere")


class Table(list[dict[str, float]]):
    """Rows of a Hugging Face data set, as far as they are read."""

    column_names = ("a", "label")


def test_clients_of_hugging_face_data_may_be_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", ModuleType("datasets"))
    held = Table([{"a": 1.0, "label": 0}, {"a": 2.0, "label": 1}, {"a": 3.0, "label": 0}])
    for clients in (np.array([7, 5, 7]), torch.tensor([7, 5, 7]), [7, 5, 7]):
        owner = from_hugging_face(held, clients=clients).owner
        assert owner is not None
        assert owner.tolist() == [1, 0, 1]


@pytest.mark.peers
def test_hugging_face_data_are_read_from_memory_and_from_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    table = {"a": [1.0, 2.0, 3.0], "b": [4.0, 5.0, 6.0], "who": ["x", "y", "x"], "label": [0, 1, 0]}
    held = datasets.Dataset.from_dict(table)
    data = from_hugging_face(held, x=["a", "b"], clients="who", normalise=False)
    assert data.x.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert data.owner is not None
    assert data.owner.tolist() == [0, 1, 0]
    parts = datasets.DatasetDict(train=held, test=held.select([1]))
    parts.save_to_disk(str(tmp_path / "saved"))
    again = from_hugging_face(tmp_path / "saved", x=["a", "b"], normalise=False)
    assert (len(again), again.trained) == (4, 3)
    with pytest.raises(ConfigError, match="x must be named where there are several columns"):
        from_hugging_face(held)
    pictures = {"image": [Image.new("RGB", (5, 4), (9, 9, 9))] * 2, "label": [0, 1]}
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    seen = from_hugging_face(datasets.Dataset.from_dict(pictures, features=kinds))
    assert seen.image == (3, 4, 5)
