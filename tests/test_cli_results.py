"""`fedbench results` as a user types it, on stores that nobody has played."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sample_records import sample_record, sample_round

from fedbench.cli import main
from fedbench.experiment.measurements import Spread, Timing
from fedbench.experiment.record import Privacy, Record
from fedbench.experiment.scenario import Scenario
from fedbench.results.fields import CELL, FAILED, RUN
from fedbench.results.store import Failure
from fedbench.tables.entries import shortened

FEDAVG, FSL = "fedavg:lr=0.01,momentum=0.9", "fsl:k=0.5,lr=0.1"
PARAMS = "direction=std,search=exact,bound=100000.0,start=10.0,via=codec"


def made(
    protocol: str = FEDAVG,
    attack: str = "none",
    seed: int = 0,
    accuracy: float = 0.9,
    *,
    epsilon: float | None = None,
    flags: tuple[str, ...] = (),
    code: str = "1",
    mechanism: str = "none",
    **scenario: Any,
) -> Record:
    number = sum(ord(c) * 7**i for i, c in enumerate(f"{protocol}{attack}{seed}{code}{mechanism}"))
    plugins: dict[str, Any] = {"protocol": protocol, "attack": attack, "mechanism": mechanism}
    seeds: dict[str, Any] = {"seed": seed, "data_seed": seed, "defense": "mean", "rounds": 1}
    privacy = None
    if mechanism != "none":
        seen: dict[str, Any] = {"sees": "sum", "adjacency": "zero-out", "sampler": "", "winner": ""}
        privacy = Privacy(epsilon=epsilon, delta=1e-5, unit="client", **seen)
    counts = {"uplink_bits": 100, "benign_uplink_bits": 70, "downlink_bits": 30}
    result = {
        "loss": 1.5,
        "per_client": Spread(mean=accuracy, std=0.1, min=accuracy / 2, max=1.0),
        "uplink_bits_per_parameter": 1.004,
        "epsilon": epsilon,
    }
    return sample_record(
        Scenario(**plugins, **seeds, **scenario),
        [sample_round(0, accuracy, clients=[0], accepted=1, **counts)],
        result,
        id=f"{number % 2**64:016x}",
        vote=protocol == FSL,
        code=code,
        privacy=privacy,
        flags=list(flags),
        timing=Timing(seconds=2.0, peak_memory_mib=100.0),
    )


@pytest.fixture
def store(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for record in (
        *(made(seed=seed, accuracy=0.9 + seed / 50) for seed in (0, 1)),
        *(made(attack=f"dyn-opt:{PARAMS}", seed=s, accuracy=0.5 + s / 10) for s in (0, 1)),
        made(attack="sign-flip:scale=1.0", accuracy=0.8125),
        made(FSL),
        made(FSL, "rank-reversal", accuracy=0.75, flags=("accuracy is near chance",)),
        made(mechanism="dp-fedavg:z=1.0", epsilon=None, accuracy=0.25),
        made(mechanism="dp-fedavg:z=2.0", epsilon=2.5, accuracy=0.125),
    ):
        record.write(folder)
    return folder


def ended(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of the command in this process."""
    with pytest.raises(SystemExit) as end:
        main(["results", *map(str, arguments)])
    shown = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, shown.out, shown.err


def good(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The stdout of a command that has nothing to complain about."""
    code, out, err = ended(capsys, *arguments)
    assert (code, err) == (0, "")
    return out


def mistake(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    code, out, err = ended(capsys, *arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    return line.removeprefix("fedbench: ")


TABLE = """\
system                      accuracy  impact     up   down
  attack                           %  points   bits   bits        ε  seeds
──────────────────────────────────────────────────────────────────────────
fedavg + mean
  none (clean)           91.0 ± 1.4           1.004  32.00      n/a      2
  dyn-opt ◀ worst        55.0 ± 7.1     36.0  1.004  32.00      n/a      2
  sign-flip              81.2            8.8  1.004  32.00      n/a      1
──────────────────────────────────────────────────────────────────────────
fedavg + dp-fedavg:z=1.0 + mean; sees sum; adjacency zero-out
  none (clean)           25.0                 1.004  32.00  unknown      1
──────────────────────────────────────────────────────────────────────────
fedavg + dp-fedavg:z=2.0 + mean; sees sum; adjacency zero-out
  none (clean)           12.5                 1.004  32.00     2.50      1
──────────────────────────────────────────────────────────────────────────
fsl + vote
  none (clean)           90.0                 1.004  32.00      n/a      1
  rank-reversal ◀ worst  75.0           15.0  1.004  32.00      n/a      1
"""


def test_the_table_stands_system_by_system(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = good(capsys, store)
    assert out.startswith(TABLE)
    assert out.endswith("doubts about 1 of 7: --columns attack,flags\n7 cells\n")


@pytest.mark.parametrize("width", [40, 60, 80, 200])
@pytest.mark.parametrize("each", ["cell", "run"])
def test_no_line_of_the_usual_table_is_longer_than_the_terminal(
    each: str,
    width: int,
    store: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made(attack=f"dyn-opt:{PARAMS.replace('exact', 'fast')}").write(store)
    made("a-protocol-with-a-very-long-name-that-nobody-would-type:x=1").write(store)
    monkeypatch.setenv("COLUMNS", str(width))
    lines = good(capsys, store, "--each", each).splitlines()
    assert max(map(len, lines)) <= width
    assert any("accuracy" in line for line in lines[:3])


def test_csv_has_every_field_shares_below_one_and_nothing_where_nothing_was_measured(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = good(capsys, store, "--format", "csv")
    assert "\r" not in out
    listed = list(csv.DictReader(io.StringIO(out)))
    assert list(listed[0]) == list(CELL)
    (cell,) = [row for row in listed if row["attack"].startswith("dyn-opt")]
    assert cell["attack"] == f"dyn-opt:{PARAMS}"  # nothing is shortened
    assert float(cell["accuracy"]) == pytest.approx(0.55)
    assert float(cell["impact"]) == pytest.approx(0.36)
    assert float(cell["accuracy_low"]) == pytest.approx(0.55 - 12.7062 * 0.05, abs=1e-4)
    assert (cell["worst"], cell["epsilon"], cell["flags"], cell["seeds"]) == ("true", "", "", "2")
    assert [row["flags"] for row in listed if row["flags"]] == ["accuracy is near chance"]
    runs = list(csv.DictReader(io.StringIO(good(capsys, store, "--format=csv", "--each=run"))))
    assert list(runs[0]) == list(RUN)
    assert len(runs) == 9


def test_json_has_numbers_lists_and_nulls(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = json.loads(
        good(capsys, store, "--format", "json", "--where", "worst=true", "--where", "protocol=fsl")
    )
    assert cell["flags"] == ["accuracy is near chance"]
    assert (cell["accuracy"], cell["accuracy_low"], cell["worst"], cell["clients"]) == (
        0.75,
        None,
        True,
        50,
    )


def test_parquet_has_types_also_where_a_column_is_empty(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "a" / "cells.parquet"
    said = good(capsys, store, "--format", "parquet", "--where", "protocol=fsl", "--out", out)
    assert said == f"2 cells with protocol=fsl in {out}\n"
    table = parquet.read_table(out)
    assert table.column_names == list(CELL)
    assert [str(table.schema.field(name).type) for name in ("accuracy_low", "seeds", "worst")] == [
        "double",
        "int64",
        "bool",
    ]
    assert str(table.schema.field("flags").type).startswith("list<")
    assert table.column("impact").to_pylist() == [None, pytest.approx(0.15)]
    text = "must be a file for --format parquet, got None"
    assert mistake(capsys, store, "--format", "parquet") == f"--out {text}"


def test_without_pyarrow_parquet_says_what_to_install(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "x.parquet"
    said = mistake(capsys, store, "--format", "parquet", "--out", out)
    assert said == (
        "--format parquet needs pyarrow, which is not installed; pip install '.[parquet]'"
    )
    assert not out.exists()


def test_markdown_is_a_table_with_the_systems_beside(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = good(capsys, store, "--format", "md", "--where", "mechanism=none").splitlines()
    assert lines[0] == (  # no entropy, which nobody measured, and no zeros of what was rejected
        "| system | attack | accuracy % | impact points | up bits | down bits | seeds "
        "| worst client % | model bits |"
    )
    assert lines[1].startswith("| :-- | :-- | --: |")
    assert lines[2].startswith("| fedavg + mean | none (clean) | 91.0 ± 1.4 |  | 1.004 |")
    assert lines[3].startswith("|  | dyn-opt ◀ worst | 55.0 ± 7.1 | 36.0 |")
    assert lines[-1] == "5 cells with mechanism=none"


def test_a_foreign_name_is_neither_a_formula_nor_a_tag_nor_a_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for record in (made(attack="=1+1"), made(attack="<b>x|y</b>")):
        (tmp_path / f"{record.id}.json").write_text(record.sealed().to_json())
    out = good(capsys, tmp_path, "--format", "csv", "--columns", "attack,impact")
    assert out.splitlines() == ["attack,impact", "<b>x|y</b>,", "'=1+1,"]
    out = good(capsys, tmp_path, "--format", "md", "--columns", "attack")
    assert out.splitlines()[2] == r"| &lt;b&gt;x\|y&lt;/b&gt; |"


def test_columns_are_chosen_and_stand_as_typed(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        "--columns",
        "attack, accuracy,accuracy_std,malicious,attack",
        "--where",
        "protocol=fsl",
    ]
    assert good(capsys, store, *chosen).splitlines() == [
        "                         accuracy",
        "               accuracy       std  malicious",
        "attack                %         %          %",
        "────────────────────────────────────────────",
        "none               90.0       n/a       20.0",
        "rank-reversal      75.0       n/a       20.0",
        "",
        "2 cells with protocol=fsl",
    ]
    said = mistake(capsys, store, "--columns", "attack,seed")
    assert said == "--columns must name a field, got 'seed'; that is a field of runs: --each run"


def test_names_wrap_where_the_columns_are_chosen(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    out = good(capsys, store, "--columns", "flags,accuracy", "--where", "protocol=fsl")
    assert "accuracy is near          75.0\n" in out
    assert "\n  chance\n" in out


def test_the_largest_come_first(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--format", "csv", "--columns", "accuracy", "--sort"]
    values = [float(x) for x in good(capsys, store, *chosen, "-accuracy").split()[1:]]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 7
    values = [float(x) for x in good(capsys, store, *chosen, "accuracy").split()[1:]]
    assert values == sorted(values)


def test_nothing_found_is_said_and_no_error(
    store: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = ended(capsys, store, "--where", "attack=dynopt")
    assert (code, out) == (0, "no cells with attack=dynopt\n")
    assert err == (
        "fedbench: nothing has attack=dynopt; attack is dyn-opt, none, rank-reversal, sign-flip "
        "here\n"
    )
    where = ("--where", "attack=dynopt")
    assert ended(capsys, store, *where, "--format", "json")[1] == "[]\n"
    assert ended(capsys, store, *where, "--format", "csv")[1].strip() == ",".join(CELL)
    assert ended(capsys, store, *where, "--format", "md")[1] == "no cells with attack=dynopt\n"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert good(capsys, empty) == "no cells\n"
    said = mistake(capsys, tmp_path / "absent")
    assert said.startswith("STORE must be a folder of records, got ")


def test_what_is_no_record_is_named_and_the_rest_is_shown(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = sorted(store.glob("*.json"))
    for path in whole[:2]:
        path.write_bytes(path.read_bytes()[:500])
    changed = whole[2].read_text()
    whole[2].write_text(changed.replace('"loss": 1.5', '"loss": 0.5'))
    (store / "entry.json").write_text('{"title": "not ours"}')
    for _ in ("cold", "warm"):
        code, out, err = ended(capsys, store, "--each", "run", "--format", "csv")
        assert code == 0
        assert len(out.splitlines()) == 1 + 9 - 3
        assert err.splitlines() == [
            f"fedbench: 1 file left out (not what its digest says), first '{whole[2].name}': run "
            "the scenario again",
            "fedbench: 1 file left out (no record), first 'entry.json': move it to another folder",
            f"fedbench: 2 files left out (no whole JSON), first '{whole[0].name}': run the "
            "scenario again",
        ]


def test_a_record_of_another_schema_is_left_out_with_its_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = made(accuracy=0.625).write(tmp_path)
    path.write_text(path.read_text().replace('"schema_version": 4', '"schema_version": 3'))
    assert ended(capsys, tmp_path) == (
        0,
        "no cells\n",
        f"fedbench: 1 file left out (of another schema), first '{path.name}': run the scenario "
        "again\n",
    )


def failures(store: Path) -> None:
    (store / "failed").mkdir()
    for seed in (0, 1):
        scenario = made(attack="sign-flip", seed=seed).scenario
        failure = Failure(
            id=f"{seed:016x}",
            scenario=scenario,
            kind="memory",
            error="OutOfMemoryError",
            message="CUDA is\nout of memory\x1b[31m",
            traceback="",
            tries=3,
            chunk=8,
        )
        (store / "failed" / f"{seed}.json").write_text(failure.model_dump_json())


def test_failed_runs_are_mentioned_and_listed(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "75")
    failures(store)
    (store / "failed" / "torn.json").write_text("{")
    code, _, err = ended(capsys, store)
    assert (code, err) == (0, f"fedbench: 3 runs failed: fedbench results {store} --failed\n")
    code, out, err = ended(capsys, store, "--failed")
    assert "1 file left out (no whole JSON), first 'torn.json'" in err
    assert out.splitlines()[3:] == [
        "fedavg + mean",
        "  sign-flip     0  memory      3  OutOfMemoryError  CUDA is out of memory",
        "                                                      [31m",
        "  sign-flip     1  memory      3  OutOfMemoryError  CUDA is out of memory",
        "                                                      [31m",
        "",
        "2 failures",
    ]
    code, out, err = ended(capsys, store, "--failed", "--format", "json", "--where", "seed=1")
    (run,) = json.loads(out)
    assert list(run) == list(FAILED)
    assert (run["kind"], run["tries"], run["message"]) == (
        "memory",
        3,
        "CUDA is out of memory [31m",
    )


def test_a_run_that_repeats_a_seed_is_mentioned(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = made(accuracy=0.5)
    again.model_copy(update={"id": "0" * 16}).write(store)
    code, _, err = ended(capsys, store, "--where", "attack=none", "--format", "csv")
    assert code == 0
    assert err.startswith("fedbench: 1 of the runs repeat cell and seed of a later one")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--format", "xml"], "--format must be one of table, csv, json, parquet, md, got 'xml'"),
        (["--each", "seed"], "--each must be cell or run, got 'seed'"),
        (
            ["--where", "acuracy>1"],
            "--where 'acuracy>1' must name a field, got 'acuracy'; did you mean 'accuracy'?",
        ),
        (
            ["--sort", "-id"],
            "--sort must name a field, got 'id'; that is a field of runs: --each run",
        ),
        (
            ["--failed", "--where", "accuracy>0"],
            "--where 'accuracy>0' must name a field, got 'accuracy'; known: ",
        ),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], said: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistake(capsys, store, *arguments).startswith(said)


def test_who_closes_the_pipe_early_sees_no_traceback(store: Path) -> None:
    command = [sys.executable, "-m", "fedbench", "results", str(store), "--format", "json"]
    for seed in range(10, 40):  # more than a pipe holds
        made(seed=seed).write(store)
    with subprocess.Popen(
        [*command, "--each", "run"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
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
    assert b"\n  dyn-opt <- worst        55.0 +- 7.1     36.0" in done.stdout
    assert b"\n-----" in done.stdout


def test_only_parameters_in_which_plug_ins_differ_are_shown() -> None:
    texts = ["a:x=1,y=1", "a:x=1,y=2", "b:x=1", "a:x=1", "c:z=1", "c"]
    listed = [{"attack": text} for text in texts]
    short = [entry["attack"] for entry in shortened(listed, {"attack": "plug-in"})]
    assert short == ["a:y=1", "a:y=2", "b", "a", "c:z=1", "c"]
