"""Readiness for a release: one version, a name of our own, files that agree with pyproject.toml."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

import fedbench
from fedbench.cli import main

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_version_has_one_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert fedbench.__version__ == version("fedbench-toolkit") == PROJECT["version"]
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"fedbench {PROJECT['version']}\n"
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited == PROJECT["version"]


def test_ci_tests_the_versions_of_python_that_are_promised() -> None:
    classifiers = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (played,) = re.findall(r"matrix: {python: \[(.*)\]}", workflow)
    assert re.findall(r"3\.\d+", played) == classifiers
    assert PROJECT["requires-python"] == f">={classifiers[0]}"
    parts = set(re.findall(r"run: make (\w+)", workflow))
    makefile = (ROOT / "Makefile").read_text()
    assert parts == {"test", "docs"}
    assert all(f"\n{part}: " in makefile for part in parts)


def test_the_package_of_another_project_is_told_apart(tmp_path: Path) -> None:
    # Its wheel brings an empty fedbench/__init__.py, which lies over ours.
    (tmp_path / "fedbench").mkdir()
    theirs = tmp_path / "fedbench" / "__init__.py"
    theirs.write_text(f"__path__.append({str(ROOT / 'fedbench')!r})\n")
    code = "from fedbench.cli import main; main(['--version'])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "pip uninstall fedbench, then install fedbench-toolkit again" in done.stderr
    assert done.stderr.count("\n") == 1
