"""Choose the attack of each family that an ensemble needs most, by what past runs measured.

    python benchmarks/thinned.py leaderboards docs/results/nine-systems.csv

An attack counts in a system if its mean accuracy is the lowest there, or within one point of it.
Of each family and alphabet the attack that counts most often is kept; of several the one that is
nearest to the lowest accuracy on average. An alphabet that nobody measured takes the choice over
the systems that send numbers (``FloatVectors`` and ``RotatedLevels``) and met the whole family; of
attacks that nobody measured it takes the first one that its list in version 2 names. Families are
those of the newest rules.
"""

import csv
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fedbench.leaderboard.board import files, is_entry, read
from fedbench.leaderboard.build import alphabet, is_clean, meaning
from fedbench.leaderboard.rules import newest, versions
from fedbench.tables.export import literal, markdown
from fedbench.tables.table import Column, Line, Table

NEAR = 1.0  # points above the lowest accuracy that still count
NUMBERS = ("FloatVectors", "RotatedLevels")
System = tuple[str, dict[str, float]]  # alphabet, and accuracy in percent by attack


def entries(board: Path) -> Iterator[System]:
    """Yield the accuracies of every entry of the closed division under its attacks."""
    for path in filter(is_entry, files(board)):
        entry = read(path)
        if entry.division == "closed":
            attacked = [cell for cell in entry.cells if not is_clean(cell.attack)]
            yield (
                entry.alphabet,
                {meaning("attack", c.attack): 100 * c.accuracy.mean for c in attacked},
            )


def rows(path: Path) -> Iterator[System]:
    """Yield the accuracies of every system of a table of a sweep, at each malicious share."""
    systems: dict[tuple[str, str], dict[str, float]] = {}
    for row in csv.DictReader(path.open()):
        if row["measured"] == "accuracy_percent" and not is_clean(row["attack"]):
            cells = systems.setdefault((row["system"], row["malicious_percent"]), {})
            cells[meaning("attack", row["attack"])] = float(row["mean"])
    for (system, _), cells in systems.items():
        yield alphabet(system.partition(" ")[0]), cells


def main() -> None:
    board, *tables = map(Path, sys.argv[1:])
    systems = [*entries(board), *(system for table in tables for system in rows(table))]
    pooled = [cells for sends, cells in systems if sends in NUMBERS]
    families = newest(board).families
    lines = []
    kept: dict[str, list[str]] = {}
    for name, attacks in versions(board)[2].ensemble.items():
        own = [cells for sends, cells in systems if sends == name]
        choices = []
        for family in families.values():
            members = {meaning("attack", a): a for a in attacks if a in family}
            measured = own or [cells for cells in pooled if cells.keys() >= members.keys()]
            choices.append(choice(members, measured) if members else "")
        kept[name] = [text.partition(", ")[0] for text in choices]
        lines.append(Line([name, str(len(own)), *choices]))
    columns = [Column("alphabet", "left"), Column("systems")]
    columns += [Column(family, "left") for family in families]
    print(markdown(Table(columns, lines), literal))
    missed = {}
    for i, (sends, cells) in enumerate(systems):
        left = [cells[full] for a in kept[sends] if (full := meaning("attack", a)) in cells]
        missed[i] = min(left) - min(cells.values())
    near = sum(points <= NEAR for points in missed.values())
    print(
        f"The worst of the kept attacks is within {NEAR:g} point of the worst of all in {near} of "
        f"{len(systems)} systems, and at most {max(missed.values()):.1f} points above it."
    )


def choice(members: Mapping[str, str], measured: Sequence[Mapping[str, float]]) -> str:
    """Return the member of a family that is kept, and in how many systems it counts."""
    ranked: list[tuple[int, float, int, str]] = []
    for full, attack in members.items():
        above = [cells[full] - min(cells.values()) for cells in measured if full in cells]
        near = sum(points <= NEAR for points in above)
        ranked.append((-near, statistics.fmean(above or [100.0]), len(ranked), attack))
    near, _, _, attack = min(ranked)
    return f"{attack}, {-near} of {len(measured)}"


if __name__ == "__main__":
    main()
