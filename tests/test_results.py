"""What a store says: its records read from their text, its index, its cells, its conditions."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_records import made, sample_round

import fedbench
from fedbench.core import seal
from fedbench.core.errors import ConfigError
from fedbench.experiment.measurements import rejected_most, skipped
from fedbench.experiment.record import Record, read
from fedbench.experiment.scenario import Scenario
from fedbench.results import extract, index
from fedbench.results.aggregate import cells, data_seeds, grouped, lacks_seeds
from fedbench.results.fields import CELL, NAMES, RUN, SEEDS, SETTINGS, Entry
from fedbench.results.gather import cells_of
from fedbench.results.query import Condition, Query
from fedbench.results.summary import lowest_by_seed, pooled, rows
from fedbench.tables import export, report
from fedbench.tables.entries import USUAL, ResultsPage


def entry(record: Record) -> Entry:
    told = extract.run(record.sealed().to_json().encode(), record.file_name)
    assert isinstance(told, dict), told
    return told


def stored(folder: Path, *of: Record) -> Path:
    for record in of:
        record.write(folder)
    return folder


def one(entries: Sequence[Entry], **fields: Any) -> Entry:
    (found,) = [e for e in entries if all(e[name] == value for name, value in fields.items())]
    return found


def test_a_run_says_what_its_record_says() -> None:
    record = made("dyn-opt:direction=std", 3, 0.4, epsilon=2.5, flags=["odd"])
    told = {  # of the other fields, frozen files have numbers that differ
        "id": record.id,
        "uplink_bits": 4.25,
        "downlink_bits": 32.5,
        "total_bits": 100 + 30 + 100 + 31,  # also of malicious clients, both ways
        "model_bits": 16.0,
        "malicious_messages": 3,
        "rejected_honest": 1,
        "rejected_malicious": 2,
        "skipped_rounds": 3,
        "queries": 0,
        "flags": ["odd"],
        "seconds": 5.0,
        "peak_memory_mib": 103.0,
        "peak_device_memory_mib": None,
        "attack_seconds": 0.0,
        "file": record.file_name,
    }
    assert entry(record) == entry(record) | told
    assert list(entry(record)) == list(RUN)


def test_a_server_that_rejects_half_of_the_honest_messages_is_not_doubted_and_more_is() -> None:
    for rejected, doubts in ((1, []), (2, ["the server rejected 2 of 2 honest messages"])):
        one_round = sample_round(0, clients=[0, 1, 2], malicious=1, rejected_honest=rejected)
        assert rejected_most([one_round]) == doubts


def test_skipped_rounds_are_counted_among_all_rounds() -> None:
    played = [sample_round(step, skipped=step == 1) for step in range(3)]
    assert skipped(played) == ["1 of 3 rounds were skipped"]
    assert skipped(played[:1]) == []


def test_clients_that_dropped_out_were_asked_too() -> None:
    assert sample_round(0, clients=[4, 1, 2], dropped=2).asked == 5


def test_data_go_by_the_first_twelve_digits_of_their_digest() -> None:
    record = made().model_copy(update={"data_digest": "0123456789abcdef" * 4})
    assert entry(record)["data"] == "0123456789ab"


def test_runs_are_listed_in_the_order_in_which_they_were_written(tmp_path: Path) -> None:
    records = sorted((made(seed=s) for s in range(3)), key=lambda record: record.file_name)
    stored(tmp_path, *records)
    for age, record in enumerate(records):
        os.utime(tmp_path / record.file_name, ns=(0, 10**18 - age * 10**9))
    assert [e["id"] for e in index.runs(tmp_path).entries] == [r.id for r in records[::-1]]


def test_runs_of_other_declared_shares_are_of_other_cells() -> None:
    records = [made("sign-flip", 0, declared=0.1), made("sign-flip", 1, declared=0.3)]
    assert [len(runs) for runs in cells_of(records).values()] == [1, 1]


def test_every_field_of_a_scenario_can_be_asked_for() -> None:
    assert set(NAMES | SETTINGS | SEEDS) == set(Scenario.model_fields)
    record = made("sign-flip", delta=1e-6, clients=77)
    scenario = record.scenario.model_dump()
    assert {name: entry(record)[name] for name in scenario} == scenario
    voted = entry(made(vote=True, epsilon=1.0))  # a vote is a defense; a price has an adversary
    assert (voted["defense"], voted["sees"], voted["adjacency"]) == ("vote", "sum", "zero-out")
    assert (entry(made())["sees"], entry(made())["unit"]) == (None, None)


def test_a_cell_has_a_data_seed_of_its_own_if_seeds_share_it_or_it_is_none_of_them() -> None:
    runs = [("a", 0, 0), ("a", 1, 1), ("b", 0, 0), ("b", 1, 0), ("c", 5, 3), ("d", 2, None)]
    assert data_seeds(runs) == [None, None, 0, 0, 3, None]


def with_(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda data: json.dumps(json.loads(data) | changes).encode()


def swapped(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        assert data.count(old) == 1
        return data.replace(old, new)

    return change


SPOILED: list[tuple[Callable[[bytes], bytes], str | None]] = [
    (lambda data: data[: len(data) // 2], "torn"),
    (lambda data: b"", "torn"),
    (lambda data: data[:-20], "torn"),
    (lambda data: b"[" * 100_000, "torn"),
    (lambda data: b"[]", "foreign"),
    (lambda data: b"null", "foreign"),
    (lambda data: b'{"schema_version": 4}', "foreign"),
    (lambda data: b'{"schema_version": "4"}', "foreign"),
    (lambda data: b'{"schema_version": true}', "foreign"),
    (with_(schema_version=3), "schema"),
    (with_(schema_version=5), "schema"),
    (with_(surprise=1), "foreign"),
    (with_(rounds=[]), "changed"),
    (swapped(b'"loss": 1.5', b'"loss": 1.25'), "changed"),
    (swapped(b'"digest": "', b'"digest": "f'), "changed"),
    (swapped(b'\n  "seconds": 2.0', b'\n  "seconds": 7.0'), None),
    (lambda data: data.replace(b"\n", b"\r\n"), None),
    (lambda data: data.replace(b"\n ", b"\n     ").replace(b": ", b" :\t"), None),
    (swapped(b'"delta": 0.00001,', b'"delta": 1e-05,'), "changed"),  # equal as numbers
]


@pytest.mark.parametrize(("spoil", "trouble"), SPOILED)
def test_what_is_wrong_with_a_file_has_a_name_if_and_only_if_it_cannot_be_read(
    spoil: Callable[[bytes], bytes], trouble: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(spoil(made().sealed().to_json().encode()))
    told = extract.run(path.read_bytes(), path.name)
    if trouble is None:
        assert isinstance(told, dict)
        assert told["loss"] == read(path).result.loss == 1.5
    else:
        assert told == trouble
        with pytest.raises((ConfigError, RecursionError)):
            read(path)


FORGED: list[dict[str, Any]] = [
    *({"attack": attack} for attack in ("dyn\x1b[31mopt", "dyn\nopt")),
    *({"accuracy": accuracy} for accuracy in (1.5, -0.5, math.nan)),
    *({"protocol": "\u202efsl"}, {"code": "1\n2"}, {"flags": ["a\rb"]}),
    *({"epsilon": -1.0}, {"malicious": (-1, 2)}),
]


def test_what_cannot_be_shown_is_no_record_whatever_its_digest_says() -> None:
    for fields in FORGED:
        forged = made(**fields).sealed()
        assert extract.run(forged.to_json().encode(), "a.json") == "foreign", fields


def test_bits_are_whole_and_their_sum_is_unknown_where_a_round_has_not_counted() -> None:
    good = made().sealed()
    unknown = [replace(good.rounds[0], uplink_bits=None), good.rounds[1]]
    assert entry(good.model_copy(update={"rounds": unknown}))["total_bits"] is None
    text = good.to_json().replace('"uplink_bits": 100,', '"uplink_bits": 100.5,')
    sealed = text.replace(good.digest, seal.digest(text)).encode()
    assert extract.sealed(sealed)
    assert extract.run(sealed, "a.json") == "foreign"


def test_a_digest_at_the_wrong_place_seals_nothing() -> None:
    good = made().sealed().to_json().encode()
    assert extract.sealed(good)
    start = good.index(b' "digest"')
    late = good[:-2] + b',\n "result": {}\n}\n'
    spaced = good[:start] + b" " + good[start:]
    for bad in (spaced, good + good[start:], good + b"\n", good[:-1], late):
        assert not extract.sealed(bad)


@pytest.fixture(autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))


def test_a_store_without_its_index_says_the_same(tmp_path: Path) -> None:
    stored(tmp_path, made(), made("sign-flip", 1, flags=["odd"]))
    (tmp_path / "x.json").write_text("[]")
    cold = index.runs(tmp_path)
    assert index.place(tmp_path).is_file()
    assert sorted(p.suffix for p in tmp_path.iterdir()) == [".json"] * 3  # nothing but the files
    assert index.runs(tmp_path) == cold
    assert len(cold.entries) == 2
    assert cold.complaints() == [
        "1 file left out (no record), first 'x.json': move it to another folder"
    ]


def test_an_index_in_the_store_is_not_believed(tmp_path: Path) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    made().write(theirs)
    index.runs(theirs)
    text = index.place(theirs).read_text()
    assert "0.5," in text
    theirs.rename(ours)  # the records are what they were, to the nanosecond
    (ours / ".index").write_text(text.replace("0.5,", "0.9,"))
    assert [e["accuracy"] for e in index.runs(ours).entries] == [0.5]


def test_a_file_is_read_again_when_it_was_replaced_even_if_its_time_was_set_back(
    tmp_path: Path,
) -> None:
    path = made().write(tmp_path)
    before = path.stat()

    def accuracy() -> float:
        (found,) = index.runs(tmp_path).entries
        return float(found["accuracy"])

    assert accuracy() == 0.5
    same_size = made(accuracy=0.7).sealed().to_json().encode()
    assert len(same_size) == before.st_size
    path.write_bytes(same_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert accuracy() == 0.7
    path.write_bytes(made(accuracy=0.75).sealed().to_json().encode())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    assert accuracy() == 0.75
    made(seed=1).write(tmp_path)
    index.runs(tmp_path)
    path.unlink()  # what is gone is forgotten
    assert [e["seed"] for e in index.runs(tmp_path).entries] == [1]
    assert path.name not in index.place(tmp_path).read_text()


def test_an_unreadable_index_is_made_anew(tmp_path: Path) -> None:
    stored(tmp_path, made())
    good = index.runs(tmp_path)
    path = index.place(tmp_path)
    whole = path.read_text()
    told = json.loads(whole)
    name = good.entries[0]["file"]
    place = list(RUN).index("accuracy")
    forged = []
    for value in ("high", None, 7.0, [0.5]):
        said = list(told["files"][name][1])
        said[place] = value
        forged.append(told | {"files": {name: [told["files"][name][0], said]}})
    forged.append(told | {"version": "0"})
    forged.append(told | {"files": {name: [[0, 0, 0, 0], "fine"]}})
    for text in ("", "[]", whole[:-9], *map(json.dumps, forged)):
        path.write_text(text)
        assert index.runs(tmp_path) == good
        assert json.loads(path.read_text()) == told
    path.unlink()
    path.mkdir()
    assert index.runs(tmp_path) == good  # without any


def test_a_record_that_names_no_plug_in_spoils_no_question(tmp_path: Path) -> None:
    stored(tmp_path, made())
    (tmp_path / "theirs.json").write_text(made(seed=1, protocol="fsl:lr").sealed().to_json())
    asked = Query.parse("run", ["protocol=fsl"], ["seed"])
    assert [entry["seed"] for entry in asked.answer(tmp_path).entries] == [0]


def test_only_files_that_may_be_records_are_opened(tmp_path: Path) -> None:
    stored(tmp_path, made())
    (tmp_path / "folder.json").mkdir()
    (tmp_path / ".hidden.json").write_text("[]")
    (tmp_path / "nowhere.json").symlink_to("absent")
    (tmp_path / "attack.md").write_text("")
    os.mkfifo(tmp_path / "pipe.json")  # who opens it waits for ever
    with (tmp_path / "huge.json").open("wb") as huge:
        huge.truncate(index.MAX_RECORD_BYTES + 1)
    os.close(os.open(os.fsencode(tmp_path) + b"/\xff.json", os.O_CREAT))
    for _ in range(2):
        listing = index.runs(tmp_path)
        assert len(listing.entries) == 1
        assert listing.troubles == {"foreign": ["huge.json", "\udcff.json"]}
        assert "'huge.json'" in listing.complaints()[0]


def test_failed_runs_are_counted_by_their_files_and_nothing_else(tmp_path: Path) -> None:
    assert index.failed(tmp_path) == 0
    folder = tmp_path / "failed"
    folder.mkdir()
    for name in ("one.json", "other.json", "notes.txt", ".hidden.json"):
        (folder / name).write_text("{}")
    assert index.failed(tmp_path) == 2


def test_a_question_does_not_wait_for_torch(tmp_path: Path) -> None:
    stored(tmp_path, made(), made("sign-flip"))
    code = (
        "import sys; from pathlib import Path; from fedbench.results.query import Query\n"
        "query = Query.parse('cell', ['attack=sign-flip'], ['attack', 'impact'])\n"
        "(cell,) = query.answer(Path(sys.argv[1])).entries\n"
        "heavy = {'torch', 'numpy', 'scipy', 'fedbench.experiment.record'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


TABLE = [
    *(made("none", seed, accuracy) for seed, accuracy in enumerate((0.9, 0.8, 0.7))),
    *(made("dyn-opt:direction=std", seed, accuracy) for seed, accuracy in ((1, 0.5), (2, 0.3))),
    made("sign-flip", 0, 0.35),
    made("rank-reversal", 0, 0.1, malicious=(0, 0)),
]


def test_a_cell_is_the_mean_over_its_seeds_beside_the_clean_runs_of_the_same_seeds() -> None:
    found, repeated = cells([entry(record) for record in TABLE])
    assert repeated == 0
    clean, attacked = one(found, attack="none"), one(found, seeds=2)
    assert clean["accuracy"] == clean["clean"] == pytest.approx(0.8)
    assert (clean["seeds"], clean["impact"], clean["worst"]) == (3, None, False)
    assert attacked["accuracy"] == pytest.approx(0.4)
    assert attacked["clean"] == pytest.approx(0.8)
    assert attacked["impact"] == pytest.approx(0.35)  # over seeds 1 and 2, not 0.8 - 0.4
    assert attacked["accuracy_std"] == pytest.approx(math.sqrt(0.02))
    assert attacked["accuracy_low"] == pytest.approx(0.4 - 12.7062 * 0.1, abs=1e-4)
    assert attacked["accuracy_high"] == pytest.approx(0.4 + 12.7062 * 0.1, abs=1e-4)
    assert attacked["uplink_bits"] == 1.25 + 1.5
    assert (clean["entropy_bits"], attacked["entropy_bits"]) == (0.5, None)  # of who measured it
    assert (attacked["malicious_messages"], attacked["rejected_malicious"]) == (6, 4)
    assert (attacked["seconds"], attacked["peak_memory_mib"]) == (3.5, 102.0)
    alone = one(found, attack="sign-flip")
    assert (alone["accuracy_std"], alone["accuracy_low"], alone["accuracy_high"]) == (None,) * 3

    # of the attacks that took part; rank-reversal did not
    assert [cell["attack"] for cell in found if cell["worst"]] == ["sign-flip"]


def test_an_adversary_that_chooses_for_every_run_leaves_the_mean_of_the_lowest() -> None:
    accuracies = {"sign-flip": (0.2, 0.8), "rank-reversal": (0.9, 0.1), "none": (0.0, 0.0)}
    runs = [entry(made(name, s, x)) for name, xs in accuracies.items() for s, x in enumerate(xs)]
    found, _ = cells(runs)
    assert one(found, attack="none")["worst_by_seed"] is None
    for attack in ("sign-flip", "rank-reversal"):
        assert one(found, attack=attack)["worst_by_seed"] == pytest.approx(0.15)
    found, _ = cells([*runs[1:2], *runs[2:3]])  # no seed that both have
    assert {cell["worst_by_seed"] for cell in found} == {None}


@pytest.mark.parametrize("limit", [{"knowledge": "own"}, {"attack_from": 1}, {"attack_every": 2}])
def test_one_clean_run_serves_adversaries_that_see_less_or_act_later(limit: dict[str, Any]) -> None:
    records = [made(accuracy=0.9), made("sign-flip", accuracy=0.5, **limit)]
    found, _ = cells([entry(record) for record in records])
    assert one(found, attack="sign-flip")["impact"] == pytest.approx(0.4)


def test_an_attack_lacks_seeds_beside_other_attacks_and_not_beside_the_clean_run() -> None:
    def lacks(*records: Record) -> bool:
        return lacks_seeds(cells([entry(record) for record in records])[0])

    clean = [made(seed=seed) for seed in range(3)]
    whole = [made(attack, s) for attack in ("sign-flip", "rank-reversal") for s in (0, 1)]
    never = made("dyn-opt", attack_from=2, attack_until=None)  # of two rounds
    assert not lacks(*clean, *whole, never)
    assert lacks(*clean, *whole[:-1])


def test_attacks_on_data_that_was_dealt_once_are_not_ranked_with_those_on_data_dealt_anew() -> None:
    once = [made("sign-flip", seed, 0.2, data_seed=7) for seed in (0, 1)]
    anew = [made("rank-reversal", seed, 0.5) for seed in (0, 1)]
    found, _ = cells([entry(record) for record in (*once, *anew)])
    assert [(cell["worst"], cell["worst_by_seed"]) for cell in found] == [(True, 0.2), (True, 0.5)]


def test_a_report_says_the_guarantee_of_the_seed_that_gave_away_most() -> None:
    spent = {0: 2.0, 1: None, 2: 3.0}  # infinite epsilon has no number in JSON
    records = [made(seed=s, epsilon=x, mechanism="dp-fedavg") for s, x in spent.items()]
    results = cells_of(records)
    (row,) = rows(list(results), results)
    assert row.privacy == records[1].privacy
    results = cells_of([records[0], records[2]])
    (row,) = rows(list(results), results)
    assert row.privacy == records[2].privacy


def test_an_attack_with_some_of_its_seeds_is_missing_from_its_system() -> None:
    records = [made("sign-flip", seed) for seed in (0, 1)] + [made("rank-reversal", 0)]
    results = cells_of(records)
    assert [row.missing for row in rows(list(results), results)] == [1, 1]
    assert [row.missing for row in rows(list(results), results, seeds=3)] == [2, 2]
    assert [row.missing for row in rows(list(results), results, seeds=1)] == [0, 0]


def test_a_system_costs_what_all_of_its_runs_cost() -> None:
    records = [made(seed=0, epsilon=2.0), made("sign-flip", 1, epsilon=3.0)]
    results = cells_of(records)
    price = pooled(rows(list(results), results))
    assert (price["uplink_bits"], price["epsilon"]) == ((1.25 + 2.25) / 2, 3.0)


def test_a_price_is_the_highest_and_unknown_if_one_is_and_doubts_are_named_once() -> None:
    flags = {0: ["a", "b"], 1: ["b", "c"]}
    known = [entry(made(seed=s, epsilon=2.0 + s, flags=flags[s])) for s in (1, 0)]
    (cell,), _ = cells(known)
    assert (cell["epsilon"], cell["flags"]) == (3.0, ["b", "c", "a"])
    (cell,), _ = cells([known[0], known[1] | {"epsilon": None}])
    assert cell["epsilon"] is None


def test_runs_that_differ_in_more_than_the_seed_are_of_two_cells_else_the_later_counts() -> None:
    others = ({"clients": 60}, {"delta": 1e-6}, {"vote": True}, {"dataset": "mnist"})
    for other in ({"code": "2"}, *others):
        alone = made("sign-flip", 1, **other)
        records = [made(accuracy=0.9), made("sign-flip", accuracy=0.5), alone]
        found, _ = cells([entry(record) for record in records])
        assert [cell["seeds"] for cell in found] == [1, 1, 1]
        assert [cell["impact"] for cell in found] == [None, pytest.approx(0.4), None]
        assert [cell["worst"] for cell in found] == [False, True, True]
    elsewhere = entry(made(seed=1)) | {"data": "0" * 12}
    assert [cell["seeds"] for cell in cells([entry(made()), elsewhere])[0]] == [1, 1]
    runs = [entry(made(accuracy=0.9)), entry(made(accuracy=0.3)), entry(made(seed=1, accuracy=0.5))]
    (cell,), repeated = cells(runs)
    assert (cell["seeds"], repeated) == (2, 1)
    assert cell["accuracy"] == pytest.approx(0.4)


def test_data_that_is_dealt_once_is_another_cell_than_data_dealt_for_each_seed() -> None:
    anew = [made(seed=seed) for seed in (0, 1)]
    once = [made(seed=seed, data_seed=7) for seed in (0, 1, 7)]
    found, repeated = cells([entry(record) for record in (*anew, *once)])
    assert sorted((cell["seeds"], cell["data_seed"]) for cell in found) == [(2, None), (3, 7)]
    assert repeated == 0
    assert sorted(map(len, cells_of([*anew, *once]).values())) == [2, 3]


def test_the_numbers_are_those_of_the_table_of_an_attack(tmp_path: Path) -> None:
    private = [
        made(attack, seed, 0.2 + seed / 10, epsilon=1.0 + seed, mechanism="dp-fedavg")
        for attack in ("none", "sign-flip")
        for seed in (0, 1)
    ]
    voted = [made(attack, 0, 0.6, vote=True) for attack in ("none", "dyn-opt:direction=unit")]
    kept = [*TABLE, *private, *voted]
    found = Query.parse("cell").answer(stored(tmp_path, *kept)).entries
    by_cell = cells_of(sorted(kept, key=lambda record: record.file_name))
    table = rows(list(by_cell), by_cell)
    assert len(table) == len(found) == 8
    systems = grouped(table, lambda row: row.cell.system)
    for row in table:
        scenario = row.records[0].scenario
        names = {"attack": scenario.attack, "mechanism": scenario.mechanism}
        cell = one(found, **names, defense=row.cell.defense)
        clean = row.clean or (row if row.cell.clean else None)
        same = ["local_accuracy", "uplink_bits", "entropy_bits", "downlink_bits", "model_bits"]
        same += ["sparsity", "epsilon", "rejected_malicious", "flags"]
        assert {name: cell[name] for name in same} == {name: row[name] for name in same}
        assert cell == cell | {
            "accuracy": row.accuracy,
            "accuracy_std": row.accuracy_std if len(row.records) > 1 else None,
            "seeds": len(row.records),
            "clean": clean and clean.accuracy,
            "impact": row.impact,
            "worst": row.worst,
            "worst_by_seed": (row.attacked and lowest_by_seed(systems[row.cell.system])) or None,
            "worst_client": row.client("min"),
        }
        assert list(cell) == list(CELL)


DYN_OPT = "dyn-opt:direction=std,bound=1e5"
CONDITIONS: list[tuple[Any, list[str], list[str]]] = [  # a value, what holds of it, what does not
    (
        DYN_OPT,
        ["attack=dyn-opt", "attack=dyn-opt:direction=std", "attack=dyn-opt:bound=100000.0"],
        [
            *("attack=dyn-opt:direction=unit", "attack=dyn-opt:surprise=1", "attack!=dyn-opt"),
            "attack=dyn-opt:bound=100000.4",
        ],
    ),
    (DYN_OPT, ["attack!=dyn-opt:direction=unit", "attack~rection=s"], ["attack~Direction"]),
    ("dyn-opt", ["attack = dyn-opt "], ["attack=dyn"]),
    ("none", ["attack=none"], []),
    ("sign-flip", [], ["attack=none"]),
    (
        0.5,
        ["accuracy>=0.5", "accuracy<=.5", "accuracy=5e-1", "accuracy<1"],
        ["accuracy>0.5", "accuracy<0.5"],
    ),
    (0.4999, ["accuracy<0.5", "accuracy!=0.5"], []),
    (10, [], ["clients<9"]),  # as numbers, not as words
    (9007199254740992, [], ["seed=9007199254740993"]),  # not as floats
    (None, ["epsilon=none", "epsilon!=1", "sees=none"], ["epsilon<9", "epsilon>=0", "sees~um"]),
    (0.0, ["epsilon!=none", "impact>-0.01"], ["epsilon=none"]),
    ("sum", ["sees=sum", "sees~um"], []),
    (True, ["worst=true"], ["worst=False"]),
    (["odd", "accuracy is near chance"], ["flags~near chance", "flags=odd", "flags!=none"], []),
    ([], ["flags=none"], []),
]


@pytest.mark.parametrize(("value", "true", "false"), CONDITIONS)
def test_a_condition_holds_for_these_values(value: Any, true: list[str], false: list[str]) -> None:
    for text in (*true, *false):
        assert Condition.parse(text, RUN | CELL).holds(value) is (text in true), text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accuracy", "must read FIELD OP VALUE with one of = != < <= > >= ~, got 'accuracy'"),
        ("=3", "--where must read FIELD OP VALUE"),
        ("acuracy>0.5", "must name a field, got 'acuracy'; did you mean 'accuracy'?"),
        ("__class__=1", "must name a field, got '__class__'"),
        ("impact>0", "must name a field, got 'impact'; that is a field of cells: --each cell"),
        ("accuracy>high", "'accuracy>high' must compare with a number, got 'high'"),
        ("accuracy>nan", "must compare with a number, got 'nan'"),
        (f"seed<{10**400}", "must compare with a number, got '1000"),
        ("accuracy=>0.5", "must compare with a number, got '>0.5'"),
        ("accuracy>50", "must compare with a share in [0, 1], got '50'; write 0.5 for 50 %"),
        ("attack<3", "'attack<3' must compare numbers, got a field of text; use = or !="),
        ("local_models<1", "must compare numbers, got a field of true or false; use = or !="),
        ("seed~1", "'seed~1' must search in text, got a field of numbers; use = or !="),
        ("local_models~1", "must search in text, got a field of true or false; use = or !="),
        (
            "protocol.loud=2",
            "field, got 'protocol.loud'; for a parameter write protocol=NAME:loud=2",
        ),
        (
            "attack:budget>2",
            "field, got 'attack:budget'; for a parameter write attack=NAME:budget=2",
        ),
        (
            "protocol.loud!=2",
            "field, got 'protocol.loud'; for a parameter write protocol!=NAME:loud=2",
        ),
        ("scenario.rounds=2", "must name a field, got 'scenario.rounds'; known: id, protocol"),
        ("batch-size=2", "must name a field, got 'batch-size'; did you mean 'batch_size'?"),
        ("local_models=1", "must compare with true or false, got '1'"),
        ("attack=dyn-opt:std", "must read name:param=value,param=value, got 'std'"),
    ],
)
def test_a_condition_that_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Condition.parse(text, RUN)
    assert said in str(caught.value)


def test_a_condition_about_a_seed_chooses_runs_and_any_other_one_cells(tmp_path: Path) -> None:
    stored(tmp_path, *TABLE)
    asked = Query.parse("cell", ["attack=dyn-opt", "seed=2"]).answer(tmp_path)
    (cell,) = asked.entries
    assert (cell["seeds"], cell["accuracy"], cell["impact"]) == (1, 0.3, pytest.approx(0.4))
    assert cell["worst"]  # the others have no such seed
    asked = Query.parse("cell", ["accuracy<0.45", "impact>0.3", "seeds=2"]).answer(tmp_path)
    (cell,) = asked.entries
    assert (cell["accuracy"], cell["worst"]) == (pytest.approx(0.4), False)


def test_entries_stand_in_one_order_whatever_was_written_first(tmp_path: Path) -> None:
    mixed = [*TABLE, made(clients=60), made(epsilon=1.0), made(code="0")]
    one_way, another = stored(tmp_path / "a", *mixed), stored(tmp_path / "b", *reversed(mixed))
    for each in ("run", "cell"):
        listed = [Query.parse(each).answer(folder).entries for folder in (one_way, another)]
        assert listed[0] == listed[1]
    told = [(e["code"], e["sees"], e["clients"], e["attack"].partition(":")[0]) for e in listed[0]]
    assert told == [
        ("0", None, 50, "none"),
        *(("1", None, 50, name) for name in ("none", "dyn-opt", "rank-reversal", "sign-flip")),
        ("1", "sum", 50, "none"),
        ("1", None, 60, "none"),
    ]


@pytest.mark.parametrize(
    "asked",
    [
        {"columns": ["attack", "accuracy_high"]},
        {"columns": ["attack"], "sort": "-accuracy_low"},
        {"columns": ["attack"], "where": ["accuracy_low<0"]},
    ],
)
def test_an_interval_is_there_for_whoever_asks_for_it(tmp_path: Path, asked: Any) -> None:
    stored(tmp_path, *TABLE)
    first = Query.parse("cell", **asked).answer(tmp_path).entries
    found = [e["accuracy_low"] for e in first if e["seeds"] == 2]
    assert found == [pytest.approx(0.4 - 12.7062 * 0.1, abs=1e-4)]
    usual = Query.parse("cell", columns=["attack", "accuracy"]).answer(tmp_path).entries
    assert {e["accuracy_low"] for e in usual} == {None}, "it takes time, so not for others"


def test_of_conditions_that_nothing_meets_those_are_named_that_nothing_meets_alone(
    tmp_path: Path,
) -> None:
    stored(tmp_path, *[made(seed=0, attack=f"noise:scale={i}") for i in range(9)])
    asked = Query.parse("run", ["attack=noise", "accuracy>0.9", "sees=sum"]).answer(tmp_path)
    assert asked.entries == []
    assert asked.complaints == [
        "nothing has accuracy>0.9; accuracy is 0.5 here",
        "nothing has sees=sum; sees is never known here",
    ]
    stored(tmp_path, *[made(seed=seed) for seed in range(1, 9)])
    asked = Query.parse("run", ["seed>100"]).answer(tmp_path)
    assert asked.complaints == ["nothing has seed>100; seed is 0, 1, 2, 3, 4, 5, 6, 7, ... here"]


def test_what_was_not_measured_comes_last_in_both_directions(tmp_path: Path) -> None:
    stored(tmp_path, made(seed=0, epsilon=2.0), made(seed=1), made(seed=2, epsilon=3.0))
    for by, order in (("epsilon", [2.0, 3.0, None]), ("-epsilon", [3.0, 2.0, None])):
        entries = Query.parse("run", sort=by).answer(tmp_path).entries
        assert [e["epsilon"] for e in entries] == order
    with pytest.raises(ConfigError, match="--sort must name a field, got 'epsilom'"):
        Query.parse("run", sort="-epsilom")


@pytest.mark.slow
def test_a_number_that_is_declared_once_is_in_the_record_the_tables_and_the_csv(
    tmp_path: Path,
) -> None:
    # Krum with f = 2 needs seven rows; with 8 of 14 by coins, some rounds have fewer.
    scenario = Scenario(
        clients=14, per_round=8, rounds=6, epochs=1, model="micro", sampling="poisson"
    )
    asked = scenario.model_copy(update={"defense": "krum:f=2", "malicious": 0.0})
    record = fedbench.play(asked, device="cpu")
    count = sum(r.skipped for r in record.rounds)
    assert 0 < count < 6
    assert record.result.skipped_rounds == count
    record.write(tmp_path)
    by_cell = cells_of([record])
    page = report.markdown(rows(list(by_cell), by_cell))
    heads, _, line, *_ = page.splitlines()
    assert heads.split(" | ")[-1] == "skipped rounds |"
    assert line.split(" | ")[-1] == f"{count} |"
    assert "- skipped: rounds in which fewer rows were accepted than the rule needs" in page
    query = Query.parse("cell", columns=["skipped_rounds"])
    entries = query.answer(tmp_path).entries
    assert export.as_csv(entries, query.columns) == f"skipped_rounds\n{count}\n".encode()
    usual = Query.parse("cell", columns=USUAL["cell"])
    shown = ResultsPage(usual, usual.answer(tmp_path).entries, flat=False).markdown()
    assert "| skipped rounds |" in shown
    assert "- skipped: rounds in which" in shown
