"""Manners of the command line: data for programs, words left whole, something on screen at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import Command

from fedbench.core import registry
from fedbench.sweeps.plan import preset_names
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
    done = subprocess.run(
        [sys.executable, "-c", said], stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert "reading plug-ins" in shown, shown
    assert done.stdout == "False\n"
