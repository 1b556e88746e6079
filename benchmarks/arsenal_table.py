"""Attacks against systems, as Markdown: the tables of the arsenal in docs/results.md.

``fedbench sweep fedbench/presets/arsenal-mini.toml --out STORE``, then
``python benchmarks/arsenal_table.py STORE``: one table for each share of malicious clients; mean
and sample standard deviation over the seeds in percent, the worst attack of each system bold;
bits of the clean run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from fedbench.core.registry import split
from fedbench.results.gather import cells_of, gather
from fedbench.results.summary import Row, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path)
    cells = cells_of(gather([parser.parse_args().store]))
    table = rows(list(cells), cells)
    for share in sorted({row.cell.scenario.malicious for row in table}):
        print(f"\n### {100 * share:g} % malicious\n")
        print(markdown([row for row in table if row.cell.scenario.malicious == share]))


def markdown(table: list[Row]) -> str:
    systems: dict[str, dict[str, Row]] = {}
    for row in table:
        system = row.cell.system.partition(";")[0]
        system = ", ".join(split(part)[0] for part in system.split(" + "))
        systems.setdefault(system, {})[row.cell.attack] = row
    names = list(systems)
    attacks = dict.fromkeys(attack for entries in systems.values() for attack in entries)
    first = ["none", *sorted(attack for attack in attacks if attack != "none")]
    lines = ["| attack | " + " | ".join(names) + " |", "|:--" + "|--:" * len(names) + "|"]
    for attack in first:
        cells = [said(systems[name].get(attack)) for name in names]
        lines.append(f"| {attack} | " + " | ".join(cells) + " |")
    bits = [systems[name]["none"] for name in names]
    lines.append("| bits up | " + " | ".join(f"{r['uplink_bits']:.2f}" for r in bits) + " |")
    return "\n".join(lines)


def said(row: Row | None) -> str:
    if row is None:
        return ""
    text = f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_std:.1f}"
    return f"**{text}**" if row.worst else text


if __name__ == "__main__":
    main()
