"""Records from files, and the cells that they are of."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sample_records import sample_record, sample_round

from fedbench.core import seal
from fedbench.core.errors import ConfigError
from fedbench.experiment.compatibility import counts_votes, resolve
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.results import gather as module
from fedbench.results.gather import cells_of, gather, shortened
from fedbench.results.summary import rows


def record(seed: int = 0, code: str = "0.1.0", **fields: Any) -> Record:
    """As a run leaves it: with its resolved scenario and its id."""
    scenario = Scenario(seed=seed, **fields)
    return sample_record(
        resolve(scenario).scenario,
        [sample_round(0, 0.5, clients=[0], malicious=0, accepted=1)],
        {"loss": None},
        id=f"{hash((scenario, code)) % 2**64:016x}",
        vote=counts_votes(scenario),
        code=code,
    ).sealed()


def archive(path: Path, records: Sequence[Record], tail: bytes = b"") -> Path:
    lines = [record.model_dump_json().encode() + b"\n" for record in records]
    path.write_bytes(gzip.compress(b"".join(lines) + tail))
    return path


def test_files_folders_and_archives_are_read_once_and_ordered_by_name(tmp_path: Path) -> None:
    first, second, third = record(0), record(1), record(2)
    here = first.write(tmp_path / "a")
    second.write(tmp_path / "a")
    packed = archive(tmp_path / "b.jsonl.gz", [third, first], b"\n")
    for paths in ([tmp_path / "a", packed], [packed, here, tmp_path / "a"]):
        assert gather(paths) == [first, second, third]


def test_a_folder_skips_what_is_no_record_and_says_so(tmp_path: Path) -> None:
    record().write(tmp_path)
    (tmp_path / "membership.json").write_text("{}")
    (tmp_path / "torn.json").write_text('{"schema_version": 2, "id": "0')
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "old.json").write_text('{"schema_version": 1}')
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "notes.txt").write_text("not looked at")
    record(1).write(tmp_path / "deeper")
    said: list[str] = []
    assert gather([tmp_path], said.append) == [record()]
    names = [Path(line.split()[0]).name for line in said]
    assert names == ["list.json", "membership.json", "old.json", "torn.json"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", b"{}", "is no record of schema 4"),
        ("a.json", None, "cannot be read: No such file"),
        ("a.json", b'{"schema_version": 1}', "run the scenario again"),
        ("a.jsonl.gz", b"no gzip", "cannot be unpacked"),
        ("a.jsonl.gz", gzip.compress(b"{}\n" * 99, mtime=0)[:20], "cannot be unpacked"),
        ("a.jsonl.gz", gzip.compress(b"\n{}\n", mtime=0), r"a.jsonl.gz:2 is no record"),
        ("a.jsonl.gz", gzip.compress(b"\n", mtime=0), "RECORDS must hold a record, got none in"),
    ],
)
def test_a_file_that_was_named_must_hold_records(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        gather([path])


def test_an_archive_that_unpacks_to_too_much_is_refused_and_a_run_of_two_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = archive(tmp_path / "a.jsonl.gz", [record()], b" " * (3 << 20))
    assert packed.stat().st_size < 1 << 14
    with pytest.raises(ConfigError, match="and 64 times its size, got more than 1048576 bytes"):
        gather([packed])
    monkeypatch.setattr(module, "MAX_COMPRESSION_RATIO", 1000)
    assert len(gather([packed])) == 1
    monkeypatch.setattr(module, "MAX_UNPACKED_BYTES", 2 << 20)
    with pytest.raises(ConfigError, match="at most 2 MiB and"):
        gather([packed])
    monkeypatch.setattr(module, "MAX_RECORD_BYTES", 2 << 20)
    big = tmp_path / "b.json"
    big.write_bytes(b" " * (3 << 20))
    with pytest.raises(ConfigError, match="at most 2 MiB to be a record"):
        gather([big])
    # a run of two versions of the code
    for code in ("0.1.0", "0.2.0"):
        record(code=code).write(tmp_path / "both")
    with pytest.raises(ConfigError, match=r"a run once.*of code 0.[12].0 and 0.[12].0; move"):
        gather([tmp_path / "both"])
    # a data set of two contents
    for seed, digest in enumerate(("ab" * 32, "cd" * 32)):
        played = record(seed=seed).model_copy(update={"data_digest": digest})
        played.sealed().write(tmp_path / "data")
    with pytest.raises(ConfigError, match=r"must be of one .*, which were played on different"):
        gather([tmp_path / "data"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"result": {"accuracy": float("nan")}}, r"accuracy must be in \[0, 1\], got nan"),
        ({"result": {"accuracy": 1.5}}, r"accuracy must be in \[0, 1\], got 1.5"),
        ({"result": {"uplink_bits_per_parameter": float("inf")}}, "finite and >= 0, got inf"),
        ({"result": {"downlink_bits_per_parameter": -1.0}}, "finite and >= 0, got -1.0"),
        ({"result": {"epsilon": float("nan")}}, "finite and >= 0, got nan"),
        ({"scenario": {"attack": "\x1b[2J"}}, r"scenario.attack must be printable, got '\\x1b"),
        ({"rounds": {"accuracy": 7.0}}, r"accuracy must be in \[0, 1\], got 7.0"),
        ({"rounds": {"uplink_bits": 10**400}}, "numbers must be finite, got a larger one"),
        ({"record": {"parameters": 0}}, "parameters must be >= 1, got 0"),
    ],
)
def test_what_cannot_be_shown_is_refused_even_with_a_good_digest(
    tmp_path: Path, change: dict[str, dict[str, Any]], said: str
) -> None:
    good = record()
    ((part, fields),) = change.items()
    content = json.loads(good.to_json())
    parts = {"record": content, "rounds": content["rounds"][0]}
    changed = parts.get(part) or content[part]
    changed |= fields  # pydantic would write null for what is not finite
    text = seal.laid_out(json.dumps(content))
    path = tmp_path / "bad.json"
    path.write_text(text.replace(good.digest, seal.digest(text)))
    with pytest.raises(ConfigError, match=said):
        gather([path])


def test_names_are_short_and_mean_the_same_run() -> None:
    typed = Scenario(
        protocol="fsl:k=0.3,lr=0.4",
        attack="dyn-opt",
        defense="trimmed-mean",
        partition="dirichlet:beta=0.3",
        per_round=20,
    )
    short = shortened(resolve(typed).scenario)
    assert resolve(short).scenario == resolve(typed).scenario.model_copy(update={"data_seed": 0})
    assert short.attack == "dyn-opt"
    assert short.defense == "trimmed-mean"  # f = 4 is what the share of malicious clients means
    assert short.partition == "dirichlet:beta=0.3"
    assert short.dataset == "digits"
    assert short.declared is None
    other = shortened(resolve(typed.model_copy(update={"defense": "trimmed-mean:f=3"})).scenario)
    assert other.defense == "trimmed-mean:f=3"
    chain = resolve(typed.model_copy(update={"defense": "nnm+trimmed-mean"})).scenario
    assert chain.defense == "nnm:f=4+trimmed-mean:f=4"
    assert shortened(chain).defense == "nnm+trimmed-mean"
    # a parameter that has several values is said everywhere
    found = cells_of(record(attack=attack) for attack in ("sign-flip", "sign-flip:scale=2.0"))
    assert [cell.attack for cell in found] == ["sign-flip:scale=1.0", "sign-flip:scale=2.0"]


def test_a_cell_has_its_seeds_and_names_the_fields_that_vary() -> None:
    records = [
        record(seed, malicious=malicious, attack=attack, protocol="fsl")
        for malicious in (0.1, 0.2)
        for attack in ("none", "sign-flip")
        for seed in (0, 1)
    ]
    found = cells_of(records)
    names = [f"malicious {x} / {attack}" for x in (0.1, 0.2) for attack in ("none", "sign-flip")]
    assert [str(cell) for cell in found] == [f"fsl + vote; {name}" for name in names]
    assert [[r.scenario.seed for r in runs] for runs in found.values()] == [[0, 1]] * 4
    table = rows(list(found), found)
    assert [row.clean is not None for row in table] == [True] * 4


def test_an_attack_that_never_begins_makes_no_field_vary() -> None:
    awake = record(attack="sign-flip", rounds=4)
    dormant = record(attack="sign-flip", rounds=4, attack_from=4)
    assert [cell.varied for cell in cells_of([awake, dormant])] == [(), ()]


def test_data_that_follows_the_seed_is_no_field_that_varies() -> None:
    follows = [record(seed) for seed in (0, 1, 2)]
    assert [cell.scenario.data_seed for cell in cells_of(follows)] == [None]
    fixed = [record(seed, data_seed=1) for seed in (0, 1, 2)]
    assert [cell.scenario.data_seed for cell in cells_of(fixed)] == [1]
    # the run with seed 1 is in both; it counts where its data is shared
    both = cells_of([*follows, *fixed])
    assert {c.scenario.data_seed: len(runs) for c, runs in both.items()} == {None: 2, 1: 4}
    assert all(cell.varied == ("data_seed",) for cell in both)


def test_plug_ins_that_are_not_installed_keep_their_names() -> None:
    good = record(protocol="fsl")
    odd = {"protocol": "theirs:k=1", "defense": "their-rule:f=2", "attack": "their attack:,x"}
    foreign = good.model_copy(update={"scenario": good.scenario.model_copy(update=odd)})
    (cell,) = cells_of([foreign])
    assert str(cell) == "theirs:k=1 + vote / their attack:,x"
    (cell,) = cells_of([foreign.model_copy(update={"vote": False})])
    assert cell.system == "theirs:k=1 + their-rule:f=2"
    assert cells_of([]) == {}
