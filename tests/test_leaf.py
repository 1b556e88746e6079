"""FEMNIST from LEAF's files: pixels, labels and writers survive, and bad files are named."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.data.datasets import Mnist5k
from fedbench.data.leaf import Femnist
from fedbench.experiment import prepare
from fedbench.experiment.scenario import Scenario

Users = dict[str, list[int]]


def image(label: int) -> list[float]:
    """White paper, but for a pixel of ink and one that tells the label."""
    x = [1.0] * 784
    x[0], x[28], x[783] = 0.999, 0.0, label / 255
    return x


def content(users: Users) -> dict[str, Any]:
    """As LEAF's ``data_to_json.py`` writes it."""
    return {
        "users": list(users),
        "num_samples": [len(labels) for labels in users.values()],
        "user_data": {
            user: {"x": [image(label) for label in labels], "y": labels}
            for user, labels in users.items()
        },
    }


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
    assert data.owner.dtype == torch.int64
    assert data.owner.tolist() == [0, 0, 0, 1, 2, 2]
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


def test_train_without_test_is_not_the_data_set(tmp_path: Path) -> None:
    write(tmp_path / "femnist" / "train" / "a.json", {"u": [1]})
    with pytest.raises(ConfigError, match="got neither"):
        Femnist().load(tmp_path)
    write(tmp_path / "femnist" / "all_data" / "a.json", {"z": [9]})
    assert Femnist().load(tmp_path).y.tolist() == [9]


def test_without_files_one_line_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder, root in ((tmp_path / "d", tmp_path / "d"), (None, tmp_path / ".cache/fedbench")):
        with pytest.raises(ConfigError, match=r"LEAF's data/femnist/preprocess\.sh") as error:
            Femnist().load(folder)
        message = str(error.value)
        assert message.startswith(f"{root / 'femnist'} must hold train/*.json and test/*.json, or")
        assert "\n" not in message


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
    with pytest.raises(ConfigError, match=message) as error:
        Femnist().load(tmp_path)
    assert str(error.value).startswith(f"{path} must hold ")
    assert "\n" not in str(error.value)


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
    with pytest.raises(ConfigError, match=message) as error:
        Femnist().load(tmp_path)
    assert str(error.value).startswith(f"{path} must hold ")
    assert "\n" not in str(error.value)


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


def test_natural_clients_need_users() -> None:
    assert Mnist5k().load(None).owner is None
    scenario = Scenario(dataset="digits", partition="natural", clients=5, per_round=2)
    with pytest.raises(ConfigError, match="--dataset femnist or another --partition"):
        prepare.prepare(scenario, device="cpu")


@pytest.mark.parametrize("text", ["labels:k=4", "max-classes:classes=4", "natural"])
def test_partitions_have_their_names(text: str) -> None:
    kind = type(registry.load("partition", text)).__name__
    assert kind.lower() == text.partition(":")[0].replace("-", "")
