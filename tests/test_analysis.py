"""Reading results from Python: records, data frames, figures and tables for papers."""

from __future__ import annotations

import gzip
import importlib
import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
from sample_records import made

import fedbench
from fedbench.analysis.results import MAX_SHOWN_CELLS, Results, load
from fedbench.core.errors import ConfigError
from fedbench.experiment.record import Record
from fedbench.results.query import Query
from fedbench.tables.latex import as_latex
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.web import as_html


def is_empty(value: object) -> bool:
    return value is None or value is pandas.NA or value != value


def store(folder: Path, *records: Record) -> Results:
    for record in records:
        record.write(folder)
    results = load(folder)
    assert isinstance(results, Results)
    return results


def small() -> list[Record]:
    return [
        made(attack, seed, x) for attack, x in (("none", 0.9), ("alie", 0.4)) for seed in (0, 1)
    ]


def test_a_folder_is_results_a_file_is_its_record_and_an_archive_is_results(tmp_path: Path) -> None:
    results = store(tmp_path, *small())
    assert [r.scenario.attack for r in results] == ["alie", "alie", "none", "none"]
    path = tmp_path / results[0].file_name
    assert fedbench.load(str(path)) == results[0]
    assert isinstance(results[1:], Results)
    assert len(results[1:]) == 3
    text = "".join(record.to_json(None) for record in results)
    packed = tmp_path / "all.jsonl.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    unpacked = load(packed)
    assert isinstance(unpacked, Results)
    assert list(unpacked) == list(results)
    with pytest.raises(ConfigError, match="nowhere cannot be read"):
        load(tmp_path / "nowhere")


def test_what_is_no_record_is_left_out_with_a_warning_that_points_here(tmp_path: Path) -> None:
    (tmp_path / "notes.json").write_text("{}")
    with pytest.warns(UserWarning, match=r"skipped: .*notes\.json is no record") as warned:
        store(tmp_path, made())
    assert warned[0].filename == __file__


def test_a_run_that_was_played_again_with_another_plug_in_is_loaded_once(tmp_path: Path) -> None:
    records = [made(seed=seed) for seed in (0, 1)]
    again = records[0].model_copy(update={"id": "0" * 16})  # whose file stands before the others
    for number, record in enumerate([records[1], again, records[0]]):
        record.write(tmp_path)
        os.utime(tmp_path / record.file_name, (number, number))
    with pytest.warns(UserWarning, match="1 of the runs in .* repeat cell and seed") as warned:
        results = load(tmp_path)
    assert warned[0].filename == __file__
    assert isinstance(results, Results)
    assert [r.id for r in results] == [r.id for r in records]
    os.utime(tmp_path / again.file_name, (9, 9))
    with pytest.warns(UserWarning, match="and are left out"):
        results = load(tmp_path)
    assert isinstance(results, Results)
    assert {r.id for r in results} == {again.id, records[1].id}


def test_runs_on_other_data_or_another_device_are_others(tmp_path: Path) -> None:
    record = made()
    elsewhere = record.environment.model_copy(update={"device": "H100"})
    changes: list[dict[str, Any]] = [{"data_digest": "0" * 64}, {"environment": elsewhere}]
    others = [record.model_copy(update={"id": f"{i:016}"} | x) for i, x in enumerate(changes)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(store(tmp_path, record, *others)) == 3


def test_both_versions_of_a_run_are_loaded_but_not_drawn(tmp_path: Path) -> None:
    results = store(tmp_path, made(code="1"), made(code="2"), made("alie"))
    assert sorted(results.to_pandas()["code"]) == ["1", "1", "2"]
    with pytest.raises(ConfigError, match="must hold a run once"):
        results.plot("impact")


def test_a_frame_has_a_row_for_each_run_the_fields_of_the_command_and_their_types(
    tmp_path: Path,
) -> None:
    results = store(tmp_path, *small(), made("alie", 2, 0.5, declared=0.1, attack_until=2))
    frame = results.to_pandas()
    answer = Query.parse("run").answer(tmp_path)
    by_id = {entry["id"]: entry for entry in answer.entries}
    assert list(frame.columns) == list(answer.entries[0])
    assert len(frame) == 5
    for row in frame.to_dict("records"):
        entry = by_id[row["id"]]
        assert {k for k, v in entry.items() if v is None} == {k for k in row if is_empty(row[k])}
        assert all(row[name] == value for name, value in entry.items() if value is not None)
    kinds = {name: str(frame[name].dtype) for name in frame}
    assert kinds["seed"] == kinds["rounds"] == kinds["clients"] == "int64"
    assert kinds["attack_until"] == "Int64"  # some never stop
    assert kinds["accuracy"] == kinds["declared"] == kinds["epsilon"] == "float64"
    assert kinds["local_models"] == "bool"
    assert kinds["protocol"].startswith("str")
    assert sorted(frame["attack_until"].dropna()) == [2]
    assert frame.groupby("attack")["accuracy"].mean()["none"] == 0.9


def test_rounds_give_a_row_for_each_round_beside_its_scenario() -> None:
    record = made("alie", 3, 0.4, malicious=(1, 2, 0))
    rounds = [replace(r, accepted=2) for r in record.rounds]  # of the three that sent
    record = record.model_copy(update={"rounds": rounds})
    frame = Results([record, made()]).to_pandas(rounds=True)
    own = frame[frame["id"] == record.id]
    assert list(own["step"]) == [0, 1, 2]
    assert list(own["sampled_malicious"]) == [1, 2, 0]
    assert list(own["malicious"]) == [0.2] * 3
    assert list(own["sampled"]) == [3, 3, 3]
    assert list(own["accepted"]) == [2, 2, 2]
    assert list(own["rejected_malicious"]) == [0, 2, 4]
    assert set(own["attack"]) == {"alie"}
    assert own["epsilon"].isna().all()
    kinds = {name: str(frame[name].dtype) for name in frame}
    assert kinds["step"] == "int64"
    assert kinds["accuracy"] == kinds["loss"] == "float64"
    assert kinds["uplink_bits"] == "Int64"
    assert kinds["skipped"] == "bool"
    assert not {"trace", "notes", "headers", "commitment"} & set(frame)


def test_arrow_has_the_same_rows_with_types_where_all_is_empty() -> None:
    results = Results(small())
    table = results.to_arrow()
    assert table.num_rows == 4
    assert {str(table.schema.field(name).type) for name in ("epsilon", "accuracy")} == {"double"}
    assert str(table.schema.field("attack_until").type) == "int64"
    assert table.column("accuracy").to_pylist() == [0.9, 0.9, 0.4, 0.4]
    assert results.to_arrow(rounds=True).num_rows == 8


@pytest.mark.parametrize("package", ["pandas", "polars", "pyarrow"])
def test_an_absent_package_is_named_in_one_line(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    method = {"pyarrow": "to_arrow"}.get(package, f"to_{package}")
    with pytest.raises(ConfigError, match=rf"{method}\(\) needs {package}.*pip install {package}$"):
        getattr(Results(small()), method)()


@pytest.mark.peers
def test_polars_has_the_rows_and_types_of_arrow() -> None:
    polars = importlib.import_module("polars")
    for rounds in (False, True):
        frame = Results(small()).to_polars(rounds=rounds)
        table = Results(small()).to_arrow(rounds=rounds)
        assert frame.to_dicts() == table.to_pylist()
        assert frame.schema["seed"] == polars.Int64
        assert frame.schema["epsilon"] == polars.Float64


def test_conditions_choose_runs_as_the_command_does() -> None:
    results = Results(small())
    assert [r.result.accuracy for r in results.where("attack=alie", "seed=1")] == [0.4]
    assert len(results.where("accuracy>0.5")) == 2
    with pytest.raises(ConfigError, match="must name a field"):
        results.where("acuracy>0.5")


def test_results_show_themselves_as_the_table_of_their_cells() -> None:
    text = repr(Results(small()))
    first, *lines = text.splitlines()
    assert first == "Results of 4 runs, 2 cells over their seeds"
    (line,) = [line for line in lines if "alie" in line]
    assert line.split()[:5] == ["alie", "◀", "worst", "40.0", "±"]
    assert max(map(len, lines)) <= 100
    assert lines[-1].startswith("skipped: rounds in which")  # every note, but not the count
    page = Results(small())._repr_html_()
    assert "<b>40.0 ± 0.0</b>" in page
    assert page.count("<tr>") == 1 + 1 + 2  # heads, the system, two attacks
    many = Results([made("alie", clients=10 + i) for i in range(MAX_SHOWN_CELLS + 3)])
    assert repr(many).splitlines()[-1] == "... and 3 more; to_pandas() has all of them"
    assert repr(many).count("alie") == MAX_SHOWN_CELLS


def test_a_table_of_a_notebook_is_bold_where_the_lowest_stands_and_aligned_as_text() -> None:
    columns = [Column("system\n  attack", "left", wraps=True), Column("a\n%")]
    lines = [
        Line(["fsl"], title=True),
        Line(["none", "90.0"]),
        Line(["alie", "40.0"], marked=True),
    ]
    left, right = ('style="text-align: left"', 'style="text-align: right"')
    assert as_html(Table(columns, lines)).splitlines() == [
        "<table>",
        f"<thead><tr><th {left}>system attack</th><th {right}>a %</th></tr></thead>",
        "<tbody>",
        f'<tr><th colspan="2" {left}>fsl</th></tr>',
        f"<tr><td {left}>none</td><td {right}>90.0</td></tr>",
        f"<tr><td {left}><b>alie</b></td><td {right}><b>40.0</b></td></tr>",
        "</tbody>",
        "</table>",
    ]


def test_a_foreign_name_makes_no_tag_in_a_notebook() -> None:
    record = made(attack="<script>")
    for text in (Results([record])._repr_html_(), record._repr_html_()):
        assert "<script>" not in text
        assert "&lt;script&gt;" in text


def test_a_record_says_in_a_few_lines_what_was_run_and_what_came_out() -> None:
    record = made("alie", 3, 0.4, epsilon=2.5, flags=["odd"])
    lines = repr(record).splitlines()
    assert lines[0] == f"Record {record.id}"
    assert len(lines) == 10
    said = [" ".join(line.split()) for line in lines]
    assert "attack alie, 20 % malicious" in said
    assert "accuracy 40.0 %" in said
    assert "run 50 clients, 2 rounds, seed 3" in said
    assert "bits 4.25 up, 32.5 down per parameter" in said
    assert "ε 2.5" in said
    assert "flags odd" in said
    assert str(record) == repr(record)
    assert "<td" in record._repr_html_()
    assert "ε n/a" in [" ".join(line.split()) for line in repr(made()).splitlines()]
    assert record.summary()["run"] == f"50 clients, {len(record.rounds)} rounds, seed 3"
    first = record.model_copy(update={"rounds": record.rounds[:1]})
    assert first.summary()["run"] == "50 clients, 1 round, seed 3"
    alone = first.scenario.model_copy(update={"clients": 1})
    assert first.model_copy(update={"scenario": alone}).summary()["run"].startswith("1 client, ")
    assert made().summary()["defense"] == "mean"
    assert made(vote=True).summary()["defense"] == "vote"


def test_a_table_for_latex_has_the_rules_of_booktabs_and_escapes_names() -> None:
    columns = [Column("system\n  attack", "left", wraps=True), Column("a\n%"), Column("ε")]
    lines = [
        Line(["fsl:k=0.5 & x_y"], title=True),
        Line(["none (clean)", "93.1 ± 0.2", "n/a"]),
        Line(["alie ◀ worst", "40.0", ""], marked=True),
    ]
    assert as_latex(Table(columns, lines)) == (
        "\\begin{tabular}{@{}lrr@{}}\n"
        "\\toprule\n"
        "attack & a \\% & $\\varepsilon$ \\\\\n"
        "\\midrule\n"
        "\\multicolumn{3}{@{}l}{\\textit{fsl:k=0.5 \\& x\\_y}} \\\\\n"
        "\\quad none (clean) & 93.1 $\\pm$ 0.2 & n/a \\\\\n"
        "\\quad \\textbf{alie $\\triangleleft$ worst} & \\textbf{40.0} &  \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
    )


def test_columns_of_a_latex_table_can_be_chosen_and_sorted() -> None:
    text = Results(small()).to_latex(each="run", columns=["attack", "accuracy"], sort="-accuracy")
    body = text.split("\\midrule\n")[1].splitlines()
    assert body[0] == "none & 90.0 \\\\"
    assert body[3] == "alie & 40.0 \\\\"
    assert "\\quad \\textbf{alie" in Results(small()).to_latex()


@pytest.mark.slow
def test_a_figure_shows_itself_in_a_notebook_and_has_the_width_that_was_asked_for(
    tmp_path: Path,
) -> None:
    results = Results(small())
    figure = results.plot("impact", width=5.0)
    assert figure.get_figwidth() == 5.0
    picture = vars(figure)["_repr_png_"]()
    assert picture.startswith(b"\x89PNG")
    assert int.from_bytes(picture[16:20], "big") == 5 * 160
    results.plot("impact", width=3.4, out=tmp_path / "impact.pdf")
    assert (tmp_path / "impact.pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(ConfigError, match=r"out must be a file ending in png.*got 'impact\.gif'"):
        results.plot("impact", out="impact.gif")
    with pytest.raises(ConfigError, match="kind must be one of rounds, bits"):
        results.plot("impacts")
    with pytest.raises(ConfigError, match="kind 'epsilon' needs a finite epsilon"):
        results.plot("epsilon")
    with pytest.raises(ConfigError, match=r"width must be 3 to 60 inches, got 1\.0"):
        results.plot(width=1.0)


@pytest.mark.skipif(shutil.which("xelatex") is not None, reason="there is LaTeX here")
def test_without_latex_a_pgf_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"format pgf needs LaTeX with xelatex.*; use pdf"):
        Results(small()).plot("impact", out=tmp_path / "impact.pgf")
