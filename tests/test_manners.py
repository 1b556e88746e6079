"""Manners of the command line: data for programs, words left whole, something on screen at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from conftest import Command, Install

from fedbench.cli import main
from fedbench.core import registry
from fedbench.core.presets import preset_names
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import plain_lines


def test_list_says_as_data_what_it_prints(command: Command) -> None:
    code, out, _ = command("list", "attacks", "--format", "json")
    entries = json.loads(out)
    assert code == 0
    assert [entry["name"] for entry in entries] == registry.names("attack")
    assert {entry["kind"] for entry in entries} == {"attack"}
    (alie,) = [entry for entry in entries if entry["name"] == "alie"]
    assert alie["summary"].startswith("All colluders send `mean - z * std`")
    assert alie["error"] is None
    everything = json.loads(command("list", "--format", "json")[1])
    assert {entry["kind"] for entry in everything} == set(registry.KINDS)


@pytest.mark.slow
def test_presets_are_listed_with_their_titles_and_runs(command: Command) -> None:
    entries = json.loads(command("list", "presets", "--format", "json")[1])
    assert [entry["name"] for entry in entries] == preset_names()
    (demo,) = [entry for entry in entries if entry["name"] == "demo"]
    assert demo["summary"] == "Who survives two malicious clients of ten"
    assert demo["runs"] == 63  # 21 cells, three seeds


def test_show_says_as_data_what_it_prints(command: Command) -> None:
    (entry,) = json.loads(command("show", "trimmed-mean", "--format", "json")[1])
    assert (entry["kind"], entry["name"]) == ("defense", "trimmed-mean")
    assert [(p["name"], p["default"]) for p in entry["parameters"]] == [("f", "none")]
    assert "Yin" in entry["paper"]
    assert entry["code"] == "fedbench_defenses.median.TrimmedMean"
    assert entry["facts"]["breakdown point"]
    assert json.loads(command("show", "none", "--format", "json")[1])[1]["kind"] == "mechanism"


def test_another_format_is_refused_in_one_line(command: Command) -> None:
    for words in (("list",), ("show", "alie")):
        code, _, err = command(*words, "--format", "xml")
        assert code == 2
        assert err == "fedbench: --format must be table or json, got 'xml'\n"


@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_name_is_wrapped_behind_commas_and_hyphens_only(width: int) -> None:
    names = ["geometric-median", "index-concentration", "alie:knows=colluders,via=codec"]
    columns = [Column("system", "left", wraps=True), Column("attack", "left", wraps=True)]
    columns += [Column(f"number {i}") for i in range(4)]
    table = Table(columns, [Line([name, name, *"1234"]) for name in names])
    shown = {word for line, _ in plain_lines(table, width) for word in line.split()}
    whole = set()
    for name in names:
        pieces = re.findall(r"[^-,]+[-,]?", name)
        whole |= {"".join(pieces[i:j]) for j in range(len(pieces) + 1) for i in range(j)}
    assert {word for word in shown if word[0].isalpha()} - {"system", "attack", "number"} <= whole
    assert ("via=codec" in shown) == (width < 110)


def reads(terminal: int) -> Iterator[bytes]:
    """Return what a terminal shows until its other side is closed, in any number of parts."""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:  # so Linux says that the other side is closed
            return
        if not part:  # and others
            return
        yield part


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_something_is_on_screen_before_torch_is_imported() -> None:
    said = (
        "import os, sys, rich.live as live\n"
        "from fedbench.cli import main\n"
        "update = live.Live.update\n"
        "def first(*a, **k):\n"
        "    update(*a, **k)\n"
        "    sys.stdout = sys.__stdout__\n"  # the display has its own
        "    print('torch' in sys.modules, flush=True)\n"
        "    os._exit(0)\n"
        "live.Live.update = first\n"
        "main(['attack', '--rounds', '1'])\n"
    )
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", said], stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    shown = b"".join(reads(ours)).decode()
    os.close(ours)
    printed, _ = process.communicate()
    assert "reading plug-ins" in shown, shown
    assert printed == "False\n"


def typed(
    *words: str,
    encoding: str = "utf-8",
    redirected: str = "",
    env: Mapping[str, str] = os.environ,
) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell, its stdout somewhere else if that is said."""
    line = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "fedbench", *words]
    env = dict(env) | {"PYTHONIOENCODING": encoding}
    return subprocess.run(line, capture_output=True, text=True, env=env)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_output_without_unicode_gets_a_help_with_other_letters(encoding: str) -> None:
    done = typed("sweep", "--help", encoding=encoding)
    assert (done.returncode, done.stderr) == (0, "")
    assert "ray://?" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the device is Linux's")
@pytest.mark.parametrize("words", [("list",), ("--version",), ("results", "{store}")])
def test_a_full_or_closed_stdout_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    words = tuple(word.format(store=tmp_path) for word in words)
    full = typed(*words, redirected="> /dev/full")
    assert full.returncode == 2
    assert full.stderr == (
        "fedbench: stdout must take what is printed, got No space left on device; free space or "
        "redirect it\n"
    )
    closed = typed(*words, redirected=">&-")
    assert closed.returncode == 2
    assert closed.stderr == (
        "fedbench: stdout must be open, got a closed one; use > /dev/null to see nothing\n"
    )


@pytest.mark.slow
def test_nobody_who_reads_on_is_no_mistake() -> None:
    done = typed("--version", redirected="| true")
    assert done.stderr == ""


class Interrupting(str):
    """A word that says Ctrl-C as soon as it is looked at."""

    def __getitem__(self, _: object) -> str:
        signal.raise_signal(signal.SIGINT)
        return ""


@pytest.mark.usefixtures("heard")
def test_ctrl_c_while_arguments_are_read_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as end:
        main([Interrupting("--version")])
    assert end.value.code == 130
    assert capsys.readouterr() == ("", "fedbench: stopped\n")


@pytest.mark.usefixtures("heard")
def test_ctrl_c_before_the_runs_is_one_line(install: Install, command: Command) -> None:
    install("import signal\nsignal.raise_signal(signal.SIGINT)", {"slow": "Slow"})
    assert command("show", "slow") == (130, "", "fedbench: stopped\n")


WARNS = """
import warnings
from dataclasses import dataclass
from fedbench.api import Attack

warnings.warn("an old\\x1b package")

@dataclass(frozen=True, kw_only=True)
class Old(Attack):
    \"\"\"Send the own rows.\"\"\"

    def craft(self, view, memory):
        warnings.warn("an old way")
        return view.own, memory
"""


def test_a_warning_is_one_line_of_the_command_and_python_keeps_its_form(
    install: Install, command: Command
) -> None:
    install(WARNS, {"old": "Old"})
    before = warnings.showwarning
    code, _, err = command("show", "old")
    assert (code, err) == (0, "fedbench: an old\\x1b package\n")
    assert warnings.showwarning is before


@pytest.mark.slow
def test_a_warning_in_a_worker_is_one_line(install: Install, tmp_path: Path) -> None:
    words = ["attack", "-p", "fedavg", "-a", "old", "--seeds", "0", "--rounds", "1", "--workers",
             "1", "--model", "micro", "--clients", "8", "--per-round", "4", "--epochs", "1",
             "--malicious", "0.25", "--out", str(tmp_path / "out")]  # fmt: skip
    done = typed(*words, env=install(WARNS, {"old": "Old"}))
    assert done.returncode == 0, done.stdout
    assert "fedbench: an old way" in done.stderr.splitlines()
    assert {line[:16] for line in done.stderr.splitlines()} == {"fedbench: an old"}
