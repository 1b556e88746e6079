"""Somebody else's package brings an attack: installed, it is listed, shown and run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.experiment.record import read

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "shouting"
version = "1.0"
[project.entry-points."fedbench.attacks"]
shouting = "shouting:Shouting"
broken-one = "shouting.absent:Nothing"
[tool.hatch.build.targets.wheel]
packages = ["shouting"]
"""

ATTACK = '''
from dataclasses import dataclass

from fedbench.api import Attack


@dataclass(frozen=True, kw_only=True)
class Shouting(Attack):
    """Send the honest update, louder.

    Args:
        volume: How much louder.
    """

    volume: float = 100.0

    def craft(self, view, memory):
        return view.own.nearest(self.volume * view.own.values()), memory
'''


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(site), "COLUMNS": "100"}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the package was installed by pip."""
    source, target = map(tmp_path_factory.mktemp, ("source", "site"))
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "shouting").mkdir()
    (source / "shouting" / "__init__.py").write_text(ATTACK)
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = run(target, "pip", "install", *options, "--target", str(target), str(source))
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_an_installed_package_is_listed_and_shown(site: Path) -> None:
    listed = run(site, "fedbench", "list", "attacks").stdout
    assert "shouting" in listed
    assert "rank-reversal" in listed
    assert "volume=100" in run(site, "fedbench", "show", "shouting").stdout


@pytest.mark.slow
def test_an_installed_package_runs(site: Path, tmp_path: Path) -> None:
    done = run(
        site, "fedbench", "attack", "-p", "fedavg", "-a", "shouting:volume=50", "--clients", "12",
        "--per-round", "4", "--rounds", "2", "--seeds", "0", "--out", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    records = {r.scenario.attack: r for r in map(read, tmp_path.glob("*.json"))}
    assert set(records) == {"none", "shouting:volume=50.0"}
    gains = [r.gain for r in records["shouting:volume=50.0"].rounds if r.malicious]
    assert gains
    assert all(gain is not None and gain > 1 for gain in gains)


@pytest.mark.slow
def test_a_plugin_whose_import_fails_is_one_line_and_spoils_nothing_else(site: Path) -> None:
    done = run(site, "fedbench", "attack", "-p", "fedavg", "-a", "broken-one")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "--attack 'broken-one' cannot be imported from shouting.absent:Nothing" in line
    listed = run(site, "fedbench", "list", "attacks")
    assert listed.returncode == 0
    assert "sign-flip" in listed.stdout


@pytest.mark.slow
def test_an_installed_package_s_plug_in_has_a_function(site: Path) -> None:
    code = (
        "import torch; from fedbench import functional as F\n"
        "print(F.shouting(torch.ones(3, 2), m=1, volume=2.0).tolist())\n"
        "print('shouting' in dir(F), 'broken_one' in dir(F), 'volume' in F.shouting.__doc__)"
    )
    environment = os.environ | {"PYTHONPATH": str(site)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.splitlines() == ["[[2.0, 2.0]]", "True False True"], done.stderr
