"""Held-out attacks, revealed: played on the entries that did not know them, and written beside."""

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically
from fedbench.core.registry import split
from fedbench.experiment.cells import Cell
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.check import claim
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.held_out import FOLDER, HeldOutAttack
from fedbench.leaderboard.replays import cell


@dataclass(frozen=True, eq=False)
class Target:
    """An entry and a held-out attack that is to be played on it."""

    path: Path  # of the entry
    entry: Entry
    attack: HeldOutAttack
    cell: Cell


def targets(board: Path, attacks: Sequence[HeldOutAttack]) -> tuple[list[Target], list[str]]:
    """Return what is to be played on the entries of a board, and what is left out with the reason.

    An attack is held out for entries of the version that committed to it and of older ones. The
    attacks must be `installed`. `ConfigError` if an entry breaks a rule.
    """
    fitting: list[Target] = []
    left_out: list[str] = []
    for path in filter(boards.is_entry, boards.files(board)):
        entry = claim(path).entry
        for attack in attacks:
            if entry.rules > attack.version:
                left_out.append(f"{path.name}: version {entry.rules} came after {attack.name}")
                continue
            planned = cell(entry, attack.name)
            try:
                resolve(planned.scenario)
            except ConfigError as error:
                left_out.append(f"{path.name}: {error}")
                continue
            fitting.append(Target(path, entry, attack, planned))
    return fitting, left_out


def keep(target: Target, played: Sequence[Record]) -> None:
    """Write the records of a target beside its entry, and the attack's source onto the board."""
    path = boards.held_out(target.path)
    older = boards.held_out_records(target.path)
    others = [r for r in older if split(r.scenario.attack)[0] != target.attack.name]
    ordered = sorted([*others, *played], key=lambda r: (r.scenario.attack, r.scenario.seed))
    text = "".join(record.to_json(None) for record in ordered)
    folder = boards.find(target.path) / FOLDER
    folder.mkdir(exist_ok=True)
    write_atomically(folder / target.attack.file_name, target.attack.source)
    write_atomically(path, gzip.compress(text.encode(), mtime=0))
