"""The command as a user types it: what it prints, what it leaves behind, how it ends."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import Command, Mistake

from fedbench.experiment.record import read

COMMAND = [sys.executable, "-m", "fedbench"]
SMALL = ["--clients", "12", "--per-round", "4", "--rounds", "2", "--epochs", "1", "--seeds", "0,1"]
SMALL += ["--model", "micro"]
Grid = tuple[subprocess.CompletedProcess[str], Path]
GRID = ["attack", "-p", "fedavg", "-p", "signsgd", "-a", "sign-flip", "-a", "rank-reversal", *SMALL]


def fedbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=os.environ | {"COLUMNS": "100"}
    )


def test_data_that_cannot_be_had_says_how_to_get_it(
    tmp_path: Path, mistake: Mistake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDBENCH_DATA", str(tmp_path))
    (tmp_path / "mnist.npz").write_bytes(b"PK not an archive")
    line = mistake("attack", "--dataset", "mnist", "--out", tmp_path / "out")
    assert "mnist.npz" in line
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    """What the command of a small grid said with two workers, and the folder that it filled."""
    folder = tmp_path_factory.mktemp("grid")
    return fedbench(*GRID, "--workers", "2", "--out", str(folder)), folder


@pytest.mark.slow
def test_a_small_grid_writes_records_table_and_chart_and_prints_plain_text(grid: Grid) -> None:
    done, folder = grid
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    text = " ".join(done.stdout.split())
    assert "skipped" in text.lower()
    assert "rank-reversal works on Rankings, TopRankings, but fedavg sends FloatVectors" in text
    for word in ("signsgd + vote", "fedavg + mean", "none (clean)", "sign-flip ◀ worst", "n/a"):
        assert word in text
    assert "8 runs" in text
    records = [read(path) for path in folder.glob("*.json")]
    assert sorted(r.scenario.seed for r in records) == [0] * 4 + [1] * 4
    assert f"8 records in {folder}/*.json, the table" in done.stdout
    others = {p.name for p in folder.iterdir()} - {r.file_name for r in records}
    assert others == {".claims", "attack.md", "attack.png"}
    assert (folder / "attack.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_command_says_how_many_records_of_a_folder_its_table_shows(
    grid: Grid, tmp_path: Path, command: Command
) -> None:
    shutil.copytree(grid[1], tmp_path / "out")
    part = ["attack", "-p", "fedavg", "-a", "none", *SMALL, "--out", tmp_path / "out"]
    code, out, _ = command(*part)
    assert code == 0
    assert f"2 of the 8 records in {tmp_path}/out/*.json are shown, the table in" in out


@pytest.mark.slow
def test_a_record_does_not_depend_on_the_number_of_workers(grid: Grid, tmp_path: Path) -> None:
    done = fedbench(*GRID, "--workers", "1", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    by_one, by_two = (
        {path.name: read(path).measured() for path in folder.glob("*.json")}
        for folder in (tmp_path, grid[1])
    )
    assert len(by_one) == 8
    assert by_one == by_two


@pytest.mark.slow
def test_ctrl_c_keeps_and_prints_what_is_finished(tmp_path: Path) -> None:
    arguments = ["attack", "-p", "fedavg", "-a", "none", "--rounds", "4", "--model", "micro",
                 "--seeds", ",".join(map(str, range(200))), "--out", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A background job of a shell ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[  2/200]"):
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "none (clean)" in out
    done = re.search(r"stopped after (\d+) of 200 runs", err)
    assert done
    assert "Traceback" not in err
    assert len([read(path) for path in tmp_path.glob("*.json")]) == int(done[1]) >= 2


@pytest.mark.slow
def test_the_run_of_a_killed_worker_is_played_again(tmp_path: Path) -> None:
    grid = ["attack", "-p", "fedavg", "-a", "none", "--rounds", "4", "--seeds", "0,1,2,3,4,5"]
    arguments = [*grid, "--workers", "1", "--out", str(tmp_path)]
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("[2/6]"):
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    killed = [c for c in children if b"spawn_main" in Path(f"/proc/{c}/cmdline").read_bytes()]
    assert len(killed) == 1
    os.kill(int(killed[0]), signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert "6 records in" in out
    assert sorted(read(path).scenario.seed for path in tmp_path.glob("*.json")) == list(range(6))


@pytest.mark.slow
def test_on_a_terminal_there_is_a_live_display_and_the_cursor_comes_back(tmp_path: Path) -> None:
    shown = bytearray()

    def reader(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        shown.extend(data)
        return data

    stdout = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # pty.spawn copies the terminal to our stdout
    try:
        status = pty.spawn(
            [*COMMAND, "attack", "-p", "fedavg", "-a", "none", *SMALL, "--out", str(tmp_path)],
            reader,
            lambda descriptor: b"",
        )
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
        os.close(null)
    assert os.waitstatus_to_exitcode(status) == 0
    text = shown.decode()
    assert text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l") > 0
    assert "left" in text
    display, _, after = text.rpartition("\x1b[?25h")
    assert ["none (clean)" in part for part in (display, after)] == [True, True]


def test_list_and_show_answer(command: Command, mistake: Mistake) -> None:
    code, listed, _ = command("list", "attacks")
    assert code == 0
    assert "rank-reversal" in listed
    assert "trimmed-mean" not in listed
    _, shown, _ = command("show", "trimmed-mean")
    for word in ("Drop the", "f=", "Yin et al.", "Definition 2"):
        assert word in shown
    assert "did you mean the attack 'dyn-opt'" in mistake("show", "dynopt")


def test_help_names_the_three_numbers_and_version_that_of_the_installed_package(
    command: Command,
) -> None:
    code, said, _ = command("--help")
    assert code == 0
    for word in ("worst", "bits", "epsilon", "attack", "list", "show"):
        assert word in said
    assert command("--version") == (0, f"fedbench {version('fedbench-toolkit')}\n", "")
