"""Play cells of an entry again, and write the comparison into its file."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.check import check
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.reproduction import Comparison, appended, cell, reproduction
from fedbench.leaderboard.rules import Rules, numbered, read_rules
from fedbench.leaderboard.verdict import errors
from fedbench.sweep.drive import play_each
from fedbench.sweep.local import Options
from fedbench.sweep.watch import Watcher


@dataclass(frozen=True, eq=False)
class Claim:
    """An entry that keeps the rules.

    Args:
        path: File of the entry.
        entry: Content of the file.
        records: Records beside it.
        rules: Rules that it was scored under.
    """

    path: Path
    entry: Entry
    records: Sequence[Record]
    rules: Rules

    def of(self, attack: str, seeds: Sequence[int]) -> list[Record]:
        """Return the records of a cell, in the order of the seeds."""
        by_seed = {r.scenario.seed: r for r in self.records if r.scenario.attack == attack}
        return [by_seed[seed] for seed in seeds]


def claim(path: Path) -> Claim:
    """Read the entry in a file of a board.

    Raises:
        ConfigError: it breaks a rule.
    """
    checked = [file for file in check(path, own_rules=True) if file.entry is not None]
    if len(checked) != 1 or not path.is_file():
        raise ConfigError(f"{path} must be one entry of a board, got {len(checked)}")
    broken = errors(checked[0].findings)
    entry = checked[0].entry
    if broken or entry is None:
        raise ConfigError(
            f"{path} breaks the rule {broken[0].rule!r}: {broken[0].text}; "
            "see fedbench leaderboard check"
        )
    rules = read_rules(numbered(boards.find(path))[entry.rules])
    return Claim(path, entry, boards.records(path), rules)


def again(
    claim: Claim,
    attacks: Sequence[str],
    seeds: Sequence[int],
    options: Options,
    watcher: Watcher,
    out: Path | None,
) -> list[Comparison]:
    """Play cells again with the code that is installed; less than all of them on Ctrl-C.

    Where an attack or the rule is another package's, they are isolated: they come from whoever
    submitted the entry.

    Raises:
        ConfigError: a run cannot be played here, or ``out`` has the very records of the claim.
    """
    cells = {attack: cell(claim.entry, attack) for attack in attacks}
    options = guarded(options, [entry.scenario for entry in cells.values()])
    played, _ = play_each(list(cells.values()), seeds, options, watcher, out, strict=True)
    comparisons = [
        Comparison(attack, claim.of(attack, seeds), played.get(planned, []))
        for attack, planned in cells.items()
    ]
    for comparison in comparisons:
        for before, now in zip(comparison.claimed, comparison.again, strict=False):
            if before.timing == now.timing:
                raise ConfigError(
                    f"--out must be a store without the records of the entry, got {out}; "
                    "they would be compared with themselves"
                )
    return comparisons


def guarded(options: Options, scenarios: Sequence[Scenario]) -> Options:
    """Return options that isolate attacks and defenses of other packages."""
    texts = [(kind, getattr(s, kind)) for s in scenarios for kind in ("attack", "defense")]
    foreign = any(registry.is_foreign(kind, text) for kind, text in texts if text != "own")
    return dataclasses.replace(options, isolate=options.isolate or foreign)


def keep(claim: Claim, comparisons: Sequence[Comparison]) -> Entry:
    """Append the comparisons to the file of the entry."""
    entry = appended(claim.entry, reproduction(comparisons, claim.rules))
    write_atomically(claim.path, entry.to_json().encode())
    return entry
