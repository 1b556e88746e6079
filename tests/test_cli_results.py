"""`fedbench results` and `fedbench plot` as a user types them, on stores that nobody has played."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Command, Mistake
from sample_records import made

from fedbench.experiment.record import Record
from fedbench.figures.kinds import KINDS
from fedbench.figures.style import FORMATS
from fedbench.results.fields import CELL, FAILED
from fedbench.results.store import Failure
from fedbench.tables.entries import flat, shortened, text

Good = Callable[..., str]
FEDAVG = "fedavg:lr=0.01,momentum=0.9"
PARAMS = "direction=std,search=exact,bound=100000.0,start=10.0,via=codec"


def of_fedavg(attack: str = "none", seed: int = 0, accuracy: float = 0.9, **changes: Any) -> Record:
    return made(attack, seed, accuracy, **{"protocol": FEDAVG} | changes)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for record in (
        *(of_fedavg(seed=seed, accuracy=0.9 + seed / 50) for seed in (0, 1)),
        *(of_fedavg(f"dyn-opt:{PARAMS}", seed, accuracy=0.5 + seed / 10) for seed in (0, 1)),
        of_fedavg("sign-flip:scale=1.0", accuracy=0.8125),
        made(accuracy=0.9, vote=True),
        made("rank-reversal", accuracy=0.75, vote=True, flags=["accuracy is near chance"]),
        of_fedavg(mechanism="dp-fedavg:z=1.0", epsilon=None, accuracy=0.25),
        of_fedavg(mechanism="dp-fedavg:z=2.0", epsilon=2.5, accuracy=0.125),
    ):
        record.write(folder)
    return folder


@pytest.fixture
def good(command: Command) -> Callable[..., str]:
    """Run ``fedbench results`` that has nothing to complain about; return its stdout."""

    def run(*arguments: object) -> str:
        code, out, err = command("results", *arguments)
        assert (code, err) == (0, "")
        return out

    return run


def test_systems_are_titles_with_the_fields_in_which_they_differ(
    tmp_path: Path, good: Good
) -> None:
    for clients in (10, 20):
        of_fedavg(clients=clients).write(tmp_path)
    lines = good(tmp_path).splitlines()
    titles = [line.strip() for line in lines if line.startswith("fedavg")]
    assert titles == ["fedavg + mean; clients 10", "fedavg + mean; clients 20"]
    of_fedavg(clients=20, local_models=True).write(tmp_path)
    lines = good(tmp_path).splitlines()
    assert "fedavg + mean; clients 20; local_models False" in lines


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("each", ["cell", "run"])
def test_no_line_of_the_usual_table_is_longer_than_the_terminal(
    each: str, width: int, store: Path, good: Good, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_fedavg(attack=f"dyn-opt:{PARAMS.replace('exact', 'fast')}").write(store)
    made(protocol="a-protocol-with-a-very-long-name-that-nobody-would-type:x=1").write(store)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = good(store, "--each", each).splitlines()
    assert max(map(len, lines)) <= width
    assert any("accuracy" in line for line in lines[:3])


def test_parquet_has_types_also_where_a_column_is_empty_and_says_what_to_install(
    store: Path, good: Good, mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "a" / "cells.parquet"
    said = good(store, "--format", "parquet", "--where", "protocol=fsl", "--out", out)
    assert said == f"2 cells with protocol=fsl in {out}\n"
    table = parquet.read_table(out)
    assert table.column_names == list(CELL)
    types = [str(table.schema.field(name).type) for name in ("accuracy_low", "seeds", "worst")]
    assert types == ["double", "int64", "bool"]
    assert str(table.schema.field("flags").type).startswith("list<")
    assert table.column("impact").to_pylist() == [None, pytest.approx(0.15)]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    wanted = ("--format", "parquet", "--columns", "attack", "--out", tmp_path / "x.parquet")
    said = mistake("results", store, *wanted)
    assert (
        said == "--format parquet needs pyarrow, which is not installed; pip install '.[parquet]'"
    )
    assert not (tmp_path / "x.parquet").exists()


def test_a_foreign_name_is_neither_a_formula_nor_a_tag_nor_a_column(
    tmp_path: Path, good: Good
) -> None:
    for record in (of_fedavg(attack="=1+1"), of_fedavg(attack="<b>x|y</b>")):
        (tmp_path / f"{record.id}.json").write_text(record.sealed().to_json())
    out = good(tmp_path, "--format", "csv", "--columns", "attack,impact")
    assert out.splitlines() == ["attack,impact", "<b>x|y</b>,", "'=1+1,"]
    out = good(tmp_path, "--format", "md", "--columns", "attack")
    assert out.splitlines()[2] == r"| &lt;b&gt;x\|y&lt;/b&gt; |"


def test_columns_are_chosen_once_and_names_wrap_there(
    store: Path, good: Good, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = good(store, "--columns", "flags, accuracy,flags", "--where", "protocol=fsl")
    assert out.startswith("                      accuracy\nflags                        %\n")
    assert "accuracy is near          75.0\n" in out
    assert "\n  chance\n" in out
    asked = ("--columns", "mechanism,epsilon", "--where", "mechanism=dp-fedavg:z=1.0")
    assert good(store, *asked).splitlines()[2] == "dp-fedavg  unknown"  # not finite


def test_the_ending_of_a_file_names_its_form_unless_a_form_is_given(
    store: Path, good: Good, tmp_path: Path
) -> None:
    out = tmp_path / "cells.csv"
    asked = ("--columns", "attack", "--where", "attack==sign-flip", "--out", out)
    good(store, *asked)
    assert out.read_text().splitlines() == ["attack", "sign-flip:scale=1.0"]
    good(store, *asked, "--format", "json")
    assert json.loads(out.read_text()) == [{"attack": "sign-flip:scale=1.0"}]


def test_nothing_found_is_said_and_no_error(
    store: Path, good: Good, command: Command, mistake: Mistake, tmp_path: Path
) -> None:
    query = ("results", store, "--where", "attack=dynopt", "--format")
    code, out, err = command(*query, "table")
    assert (code, out) == (0, "no cells with attack=dynopt\n")
    assert err == (
        "fedbench: nothing has attack=dynopt; attack is dyn-opt, none, rank-reversal, sign-flip "
        "here\n"
    )
    assert command(*query, "json")[1] == "[]\n"
    assert command(*query, "csv")[1].strip() == ",".join(CELL)
    assert command(*query, "md")[1] == "no cells with attack=dynopt\n"
    (tmp_path / "empty").mkdir()
    assert good(tmp_path / "empty") == "no cells\n"
    assert mistake("results", tmp_path / "absent").startswith("STORE must be a folder of records")


def test_a_board_and_a_folder_of_records_are_told_apart_and_each_is_sent_to_its_command(
    store: Path, tmp_path: Path, command: Command, mistake: Mistake
) -> None:
    board = tmp_path / "a board"
    (board / "rules").mkdir(parents=True)
    (board / "rules" / "1.toml").write_text("")
    entries = board / "closed" / "tiny"
    entries.mkdir(parents=True)
    (entries / "fedavg-0123456789ab.json").write_text("{}")  # which is no record
    for folder in (board, entries):
        asked = (
            f"{folder} must be a folder of records, got that of a leaderboard; give the board to "
            "fedbench leaderboard rank"
        )
        assert mistake("results", folder) == asked
        assert command("plot", folder)[2].endswith(f"{asked}\n")
    inside = board / "results"  # where a store may lie
    inside.mkdir()
    assert command("results", inside)[:2] == (0, "no cells\n")
    asked = "rules, got a folder of records; give it to fedbench results or fedbench leaderboard"
    for verb in ("rank", "render", "check"):
        assert mistake("leaderboard", verb, store).endswith(f"{asked} submit")
    absent = store / "absent"  # of which its folder says nothing
    assert "rules, got none; run it in" in mistake("leaderboard", "check", absent)


def test_several_stores_are_as_one_in_which_a_run_counts_once(
    store: Path, tmp_path: Path, command: Command
) -> None:
    other = tmp_path / "other"
    of_fedavg(seed=1, accuracy=0.92).write(other)  # as in the first
    of_fedavg(seed=2, accuracy=0.94).write(other)
    (other / "notes.json").write_text("{")
    wanted = ("--where", "attack=none", "--where", "mechanism=none", "--where", "protocol=fedavg")
    form = ("--format", "csv", "--columns", "attack,seeds")
    code, out, err = command("results", store, other, other, *wanted, *form)
    assert (code, out.splitlines()) == (0, ["attack,seeds", "none,3"])
    (complaint,) = err.splitlines()
    assert complaint.startswith(f"fedbench: {other}: 1 file left out (no whole JSON), first 'notes")


def test_what_is_no_record_is_named_and_the_rest_is_shown(store: Path, command: Command) -> None:
    whole = sorted(store.glob("*.json"))
    for path in whole[:2]:
        path.write_bytes(path.read_bytes()[:500])
    changed = whole[2].read_text()
    whole[2].write_text(changed.replace('"loss": 1.5', '"loss": 0.5'))
    (store / "entry.json").write_text('{"title": "not ours"}')
    older = whole[3].read_text().replace('"schema_version": 4', '"schema_version": 3')
    whole[3].write_text(older)
    for _ in ("cold", "warm"):
        code, out, err = command("results", store, "--each", "run", "--format", "csv")
        assert code == 0
        assert len(out.splitlines()) == 1 + 9 - 4
        assert err.splitlines() == [
            f"fedbench: 1 file left out (not what its digest says), first '{whole[2].name}': run "
            "the scenario again",
            "fedbench: 1 file left out (no record), first 'entry.json': move it to another folder",
            f"fedbench: 1 file left out (of another schema), first '{whole[3].name}': run the "
            "scenario again",
            f"fedbench: 2 files left out (no whole JSON), first '{whole[0].name}': run the "
            "scenario again",
        ]


def test_what_failed_runs_say_is_printable(store: Path, command: Command) -> None:
    names: dict[str, Any] = {"kind": "memory", "error": "OutOfMemoryError", "traceback": ""}
    names["message"] = "CUDA is\nout of memory\x1b[31m"
    scenario = of_fedavg(attack="sign-flip").scenario
    failure = Failure(id="0" * 16, scenario=scenario, tries=3, chunk=8, **names)
    (store / "failed").mkdir()
    (store / "failed" / "0.json").write_text(failure.model_dump_json())
    (store / "failed" / "torn.json").write_text("{")
    code, _, err = command("results", store)
    assert (code, err) == (0, f"fedbench: 2 runs failed: fedbench results {store} --failed\n")
    code, out, err = command("results", store, "--failed", "--format", "json", "--where", "seed=0")
    assert "1 file left out (no whole JSON), first 'torn.json'" in err
    (run,) = json.loads(out)
    assert list(run) == list(FAILED)
    assert (run["kind"], run["message"]) == ("memory", "CUDA is out of memory [31m")
    # a run that repeats a seed is mentioned
    of_fedavg(accuracy=0.5).model_copy(update={"id": "0" * 16}).write(store)
    code, _, err = command("results", store, "--where", "attack=none", "--format", "csv")
    assert code == 0
    assert "fedbench: 1 of the runs repeat cell and seed of a later one" in err
    code, out, err = command("results", store, "--each", "run", "--format", "csv")
    assert "1 of the runs repeat cell and seed of a later one" in err
    assert "; in no cell do they count" in err
    _, _, err = command("results", store, "--each", "run", "--where", "attack!=none")
    assert "repeat" not in err


def test_the_message_of_a_failed_run_stands_as_it_was_said(
    store: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    message = "for clients 3, 1 must return rows (151072,) real, got (2,) of lr=1,k=2 here"
    scenario = of_fedavg(attack="sign-flip").scenario
    names: dict[str, Any] = {"kind": "crash", "error": "PluginError", "traceback": ""}
    failure = Failure(id="0" * 16, scenario=scenario, tries=1, chunk=8, message=message, **names)
    (store / "failed").mkdir()
    (store / "failed" / "0.json").write_text(failure.model_dump_json())
    _, out, _ = command("results", store, "--failed", "--columns", "message")
    said = " ".join(out.split())
    assert "for clients 3, 1 must return rows (151072,) real, got (2,) of lr=1, k=2 here" in said


def test_the_traceback_of_a_failed_run_can_be_asked_for(store: Path, command: Command) -> None:
    names: dict[str, Any] = {"kind": "crash", "error": "PluginError", "message": "m", "chunk": 8}
    trace = 'File "mine.py", line 7\n    x = 1 | 0\x1b[2J\nTypeError: no'
    scenario = of_fedavg(attack="sign-flip").scenario
    failure = Failure(id="0" * 16, scenario=scenario, traceback=trace, tries=1, **names)
    (store / "failed").mkdir()
    (store / "failed" / "0.json").write_text(failure.model_dump_json())
    asked = ("results", store, "--failed", "--columns", "traceback")
    _, out, _ = command(*asked, "--format", "csv")
    assert "line 7\n    x = 1 | 0[2J\nTypeError: no" in out
    _, out, _ = command(*asked, "--format", "md")
    assert len(out.strip().split("\n\n")[0].splitlines()) == 3  # a row is one line


def test_notes_explain_only_what_the_table_shows(store: Path, good: Good) -> None:
    private = good(store, "--where", "mechanism=dp-fedavg:z=2.0")
    assert "ε: " in private
    assert "±: " not in private  # of one seed
    assert "±: " in good(store, "--where", "attack=none")
    runs = good(store, "--each", "run", "--where", "protocol=fsl")
    assert "bits: " in runs
    assert not any(note in runs for note in ("ε: ", "±: ", "impact: "))
    assert "seed" in runs.split("─")[0]  # seed 0 is a seed and no count of nothing
    assert "bits up: " not in runs
    made("mimic", sees="sum", protocol="skellam").write(store)
    made("mimic", protocol="topk", split="published").write(store)
    own = "percent of the benign clients' pooled test data"
    page = " ".join(good(store).split())
    assert f"accuracy: {own} (split published: published test images)" in page
    assert f"accuracy: {own}, at" in runs
    assert "bits up: of a secure sum of n, masked residues" in " ".join(good(store).split())


def test_while_attacks_of_a_system_lack_seeds_its_lowest_accuracy_is_no_worst_case(
    store: Path, good: Good, command: Command
) -> None:
    page = good(store)  # dyn-opt has two seeds and sign-flip one, against fedavg alone
    assert [line.split("  ")[1] for line in page.splitlines() if line.startswith("  dyn-opt")] == [
        "dyn-opt ◀ lowest so far"
    ]
    assert "rank-reversal ◀ worst" in page
    note = "◀ lowest so far: an attack on the system has fewer seeds than another"
    assert note in " ".join(page.split())
    marks = ("results", store, "--format", "csv", "--columns", "attack,worst")
    hint = "fedbench: worst is only the lowest so far of 1 system, of which an attack has fewer"
    assert hint in command(*marks)[2]
    assert command(*marks, "--where", "protocol=fsl")[2] == ""  # it has one attack
    assert command(*marks[:-1], "attack,seeds")[2] == ""
    of_fedavg("sign-flip:scale=1.0", 1, accuracy=0.75).write(store)
    page = good(store)
    assert "dyn-opt ◀ worst" in page
    assert "so far" not in page
    assert command(*marks)[2] == ""


def test_a_mistake_is_one_line(store: Path, mistake: Mistake) -> None:
    for arguments, said in {  # others: tests/frozen/mistakes.txt
        "--each seed": "--each must be cell or run, got 'seed'",
        "--where acuracy>1": "--where 'acuracy>1' must name a field, got 'acuracy'; did you",
        "--sort -id": "--sort must name a field, got 'id'; that is a field of runs: --each",
        "--columns attack,seed": "--columns must name a field, got 'seed'; that is a field",
        "--failed --where accuracy>0": "--where 'accuracy>0' must name a field, got 'acc",
    }.items():
        assert mistake("results", store, *arguments.split()).startswith(said)


def test_who_closes_the_pipe_early_sees_no_traceback(store: Path) -> None:
    command = [sys.executable, "-m", "fedbench", "results", str(store), "--format", "json"]
    for seed in range(10, 40):  # more than a pipe holds
        of_fedavg(seed=seed).write(store)
    command += ["--each", "run"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_an_output_without_unicode_gets_a_table_in_ascii(store: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedbench", "results", str(store)],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "COLUMNS": "80"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\n  dyn-opt <- lowest so far  55.0 +- 7.1     36.0" in done.stdout
    assert b"\n<- lowest so far: an attack on" in done.stdout
    assert b"\n+-: sample standard deviation" in done.stdout
    assert b"\n-----" in done.stdout
    wide = {"PYTHONIOENCODING": "ascii", "COLUMNS": "160"}
    private = ("--where", "mechanism=dp-fedavg:z=2.0")
    command = [sys.executable, "-m", "fedbench", "results", str(store), *private]
    done = subprocess.run(command, capture_output=True, env=wide)
    assert b"; natural logarithms" in done.stdout


FIELDS: list[tuple[str, Any, str]] = [
    *(("accuracy", 0.4567, "45.7"), ("accuracy_low", 0.4, "40.0"), ("accuracy_std", 0.012, "1.2")),
    *(("impact", -0.05, "-5.0"), ("worst_by_seed", 0.25, "25.0"), ("malicious", 0.2, "20.0")),
    *(("worst", True, "yes"), ("local_models", False, "no"), ("flags", ["a", "b"], "a; b")),
    *(
        ("epsilon", 2.5, "2.50"),
        ("uplink_bits", 1.25, "1.250"),
        ("total_bits", 123456.0, "1.235e+05"),
    ),
    *(("delta", 1e-5, "1e-05"), ("seeds", 3, "3"), ("loss", 1.23456, "1.235")),
    *(("accuracy_high", None, "n/a"), ("epsilon", None, "n/a")),
]


@pytest.mark.parametrize(("name", "value", "shown"), FIELDS)
def test_a_field_is_written_as_people_read_it(name: str, value: Any, shown: str) -> None:
    entry = {"attack": "sign-flip", "unit": None, name: value}
    assert text(entry, name, CELL[name]) == shown


def test_what_a_table_leaves_open_is_not_what_is_unknown() -> None:
    assert text({"unit": "client", "epsilon": None}, "epsilon", "number") == "unknown"
    assert text({"attack": "none", "impact": None}, "impact", "points") == ""
    entry = {"accuracy_low": 0.4, "worst_client": 0.3, "worst": True, "seeds": 2}
    table = flat([entry], {name: CELL[name] for name in entry}, list(entry))
    heads = [" ".join(column.heading.split()) for column in table.columns]
    assert heads == ["accuracy low %", "worst client %", "worst", "seeds"]
    assert [list(line.texts) for line in table.lines] == [["40.0", "30.0", "yes", "2"]]


def test_only_parameters_in_which_plug_ins_differ_are_shown() -> None:
    texts = ["a:x=1,y=1", "a:x=1,y=2", "b:x=1", "a:x=1", "c:z=1", "c"]
    listed = [{"attack": text} for text in texts]
    short = [entry["attack"] for entry in shortened(listed, {"attack": "plug-in"})]
    assert short == ["a:y=1", "a:y=2", "b", "a", "c:z=1", "c"]


# --- pictures -----------------------------------------------------------------------------------


def write(folder: Path, looks: int = 2, attacks: tuple[str, ...] = ("none", "sign-flip")) -> None:
    """Two seeds of fedavg."""
    for attack in attacks:
        for seed in (0, 1):
            of_fedavg(attack, seed, 0.5 - 0.1 * seed, malicious=[1] * looks).write(folder)


@pytest.mark.slow
def test_every_kind_that_the_records_can_show_is_written_or_one_in_both_formats(
    command: Command, tmp_path: Path
) -> None:
    write(tmp_path / "records")
    (tmp_path / "records" / "other.json").write_text("{}")
    out = tmp_path / "out"
    code, said, errors = command("plot", tmp_path / "records", "--out", out, "--format", "svg")
    assert code == 0
    names = ["rounds.svg", "bits.svg", "heatmap.svg", "impact.svg"]
    assert said.split() == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert errors.startswith(f"fedbench: skipped: {tmp_path}/records/other.json is no record")
    assert len(errors.splitlines()) == 1
    code, said, _ = command("plot", tmp_path / "records", "--kind", "heatmap", "--out", out)
    assert (code, said) == (0, f"{out}/heatmap.png and {out}/heatmap.svg\n")
    assert (out / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (out / "heatmap.svg").read_bytes()[:500]


def test_a_sketch_writes_no_file_and_leaves_out_what_the_records_cannot_show(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "records", looks=1, attacks=("none",))
    code, said, errors = command("plot", "records", "--terminal", "--out", "pictures")
    assert (code, errors) == (0, "")
    assert said.startswith("Accuracy against bits\n")
    assert "rounds\n" not in said.splitlines()
    assert max(map(len, said.splitlines())) <= 70
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


def test_what_the_user_got_wrong_is_one_line(
    mistake: Mistake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("torn.json").write_text('{"schema_version": 2')
    write(Path("records"))
    Path("records/a-file").write_text("")
    for arguments, said in {  # others: tests/frozen/mistakes.txt
        "--format gif": "--format must be png, svg, pdf or pgf, got 'gif'",
        "--kind epsilon": "--kind epsilon needs a finite epsilon in the records, got none",
        "--out records/a-file": "--out must be a folder that can be written",
        "torn.json": "torn.json is no record of schema 4",
        "nothing-here": "nothing-here cannot be read: No such file or directory",
    }.items():
        assert said in mistake("plot", "records", *arguments.split())
    of_fedavg(malicious=[1]).write(Path("one-look"))
    looks = "--kind rounds needs evaluations after two rounds (--eval-every) in the records"
    assert looks in mistake("plot", "one-look", "--kind", "rounds")
    assert mistake("plot").startswith("Missing argument 'RECORDS")


def test_the_help_names_every_kind_of_picture_and_every_format(command: Command) -> None:
    said = " ".join(command("plot", "--help")[1].replace("│", "").split())
    assert f"{', '.join([*KINDS][:-1])} or {[*KINDS][-1]}" in said
    assert f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}" in said
