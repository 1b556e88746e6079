"""The notebooks in examples/ run from top to bottom, and are committed without outputs.

Cells are run as a kernel runs them, each with a file name of its own under which `inspect` finds
its source. A kernel itself would add twenty packages to what a test needs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))
KERNEL = """
import linecache, sys
from json import load

with open(sys.argv[1]) as file:
    cells = [cell for cell in load(file)["cells"] if cell["cell_type"] == "code"]
for number, cell in enumerate(cells):
    text = "".join(cell["source"])
    name = f"<cell {number}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), globals())
"""


def cells(notebook: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return found


def test_there_are_three_notebooks_without_outputs() -> None:
    assert len(NOTEBOOKS) == 3
    for notebook in NOTEBOOKS:
        code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
        assert notebook.stat().st_size < 16_384
        assert "".join(cells(notebook)[0]["source"]).startswith("# ")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KERNEL, str(notebook)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
