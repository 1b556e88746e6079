"""``fedbench plot``, on records as runs leave them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sample_records import sample_record, sample_round

from fedbench.cli import main
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.scenario import Scenario


def write(folder: Path, looks: int = 2, attacks: tuple[str, ...] = ("none", "sign-flip")) -> None:
    """Two seeds of fedavg."""
    for attack in attacks:
        for seed in (0, 1):
            scenario = Scenario(attack=attack, seed=seed, rounds=3)
            rounds = [sample_round(step, 0.2 + 0.3 * step) for step in range(looks)]
            accuracy = 0.5 if attack == "none" else 0.3 + 0.1 * seed
            record = sample_record(
                resolve(scenario).scenario,
                rounds,
                {"accuracy": accuracy},
                id=resolve(scenario).id(),
            )
            record.write(folder)


def ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(["plot", *arguments])
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def test_every_kind_that_the_records_can_show_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path / "records")
    (tmp_path / "records" / "other.json").write_text("{}")
    out = tmp_path / "out"
    code, said, errors = ended(
        capsys, str(tmp_path / "records"), "--out", str(out), "--format", "svg"
    )
    assert code == 0
    names = ["rounds.svg", "bits.svg", "heatmap.svg", "impact.svg"]
    assert said.split() == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    assert errors.startswith(f"fedbench: skipped: {tmp_path}/records/other.json is no record")
    assert len(errors.splitlines()) == 1


def test_a_kind_is_written_in_both_formats(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path)
    out = tmp_path / "out"
    code, said, errors = ended(capsys, str(tmp_path), "--kind", "heatmap", "--out", str(out))
    assert (code, errors) == (0, "")
    assert said == f"{out}/heatmap.png and {out}/heatmap.svg\n"
    assert (out / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (out / "heatmap.svg").read_bytes()[:500]


def test_what_the_records_cannot_show_is_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    write(tmp_path, looks=1, attacks=("none",))
    code, said, _ = ended(capsys, str(tmp_path), "--terminal")
    assert code == 0
    assert said.startswith("Accuracy against bits\n")
    assert "rounds\n" not in said.splitlines()


def test_a_sketch_writes_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "records")
    code, said, errors = ended(capsys, "records", "--terminal", "--out", "pictures")
    assert (code, errors) == (0, "")
    titles = ["Accuracy over the rounds", "Accuracy against bits", "Attack impact"]
    assert [line for line in said.splitlines() if line in titles] == titles
    assert max(map(len, said.splitlines())) <= 70
    assert [path.name for path in tmp_path.iterdir()] == ["records"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--kind", "pie"], "--kind must be rounds, bits, heatmap, impact or epsilon, got 'pie'"),
        (["--format", "pdf"], "--format must be png or svg, got 'pdf'"),
        (["--kind", "epsilon"], "--kind epsilon needs a finite epsilon in the records, got none"),
        (["--out", "records/a-file"], "--out must be a folder that can be written"),
        (["torn.json"], "torn.json is no record of schema 4"),
        (["nothing-here"], "nothing-here cannot be read: No such file or directory"),
        (["empty"], "RECORDS must hold a record, got none in"),
    ],
)
def test_what_the_user_got_wrong_is_one_line(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("records").mkdir()
    Path("empty").mkdir()
    Path("torn.json").write_text('{"schema_version": 2')
    if said.startswith("--"):
        write(Path("records"))
        Path("records/a-file").write_text("")
    records = [] if "empty" in arguments else ["records"]
    code, out, errors = ended(capsys, *records, *arguments)
    assert (code, out) == (2, "")
    assert errors.startswith("fedbench: ")
    assert said in errors
    assert len(errors.splitlines()) == 1


def test_the_help_names_every_kind_of_picture_and_every_format(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from fedbench.figures.kinds import KINDS
    from fedbench.figures.style import FORMATS

    said = " ".join(ended(capsys, "--help")[1].replace("│", "").split())
    assert f"{', '.join([*KINDS][:-1])} or {[*KINDS][-1]}" in said
    assert " or ".join(FORMATS) in said


def test_no_records_named_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = ended(capsys)
    assert code == 2
    assert errors.startswith("fedbench: Missing argument 'RECORDS")
