"""The demo's worst cases and pictures in the documentation, and on other processors.

``python benchmarks/demo.py`` plays `fedbench attack` here, puts its worst cases between the two
marks of docs/results/demo.md and its chart into docs/demo.png. With ``--processors`` it plays the
demo again with the kernels of other processors and prints every cell's mean beside the one here, so
that it can be held against the standard deviation over the seeds. Records stay in ``--out``: what
is there is not played again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from fedbench.results.gather import cells_of, gather
from fedbench.results.summary import Row, rows

ROOT = Path(__file__).parents[1]
BEGIN = "<!-- demo -->\n"
END = "<!-- end of the demo -->\n"
HERE = "here"
PROCESSORS = {
    HERE: {},
    "any processor": {"ATEN_CPU_CAPABILITY": "default"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "of 2008": {"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/demo"))
    parser.add_argument("--processors", action="store_true")
    arguments = parser.parse_args()
    names = list(PROCESSORS) if arguments.processors else [HERE]
    folders = {name: arguments.out / name.replace(" ", "-") for name in names}
    for name, folder in folders.items():
        command = [sys.executable, "-m", "fedbench", "attack", "--out", str(folder)]
        subprocess.run(command, env=os.environ | PROCESSORS[name], check=True)
    show(folders[HERE])
    if arguments.processors:
        print(moved({name: cells(folder) for name, folder in folders.items()}))


def show(folder: Path) -> None:
    """Put the worst cases and the chart of a played demo into its page."""
    page = ROOT / "docs" / "results" / "demo.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    _, heading, worst = (folder / "attack.md").read_text().partition("Worst case:\n")
    page.write_text(f"{before}{BEGIN}\n{heading}{worst}\n{END}{after}")
    shutil.copyfile(folder / "attack.png", ROOT / "docs" / "demo.png")


def cells(folder: Path) -> dict[tuple[str, str], Row]:
    """Rows of a played demo by system and attack."""
    played = cells_of(gather([folder]))
    return {(row.cell.system, row.cell.attack): row for row in rows(list(played), played)}


def moved(processors: dict[str, dict[tuple[str, str], Row]]) -> str:
    """Table of the means, with the largest difference from those here in standard deviations."""
    lines = [
        "| system | attack | " + " | ".join(processors) + " | largest difference / std |",
        "|:--|:--" + "|--:" * (len(processors) + 1) + "|",
    ]
    for (system, attack), row in processors[HERE].items():
        others = [played[system, attack] for played in processors.values()]
        means = " | ".join(f"{100 * r.accuracy:.1f} ± {100 * r.accuracy_std:.1f}" for r in others)
        furthest = max(abs(other.accuracy - row.accuracy) for other in others)
        share = f"{furthest / row.accuracy_std:.1f}" if row.accuracy_std else f"{furthest:.3f} / 0"
        lines.append(f"| {system} | {attack} | {means} | {share} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
