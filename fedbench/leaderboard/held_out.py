"""Held-out attacks: committed to by a version of the rules, and revealed with the next one.

A commitment is the SHA-256 of the attack's source file with 32 random bytes in its first line. It
hides the attack, whose file alone could be guessed, and it binds its author to every byte of it.
"""

import hashlib
import importlib
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fedbench.core import registry
from fedbench.core.errors import ConfigError, require
from fedbench.core.files import read_limited, write_atomically
from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard import entry_rules
from fedbench.leaderboard.build import Case, final_accuracy, is_clean, with_interval
from fedbench.leaderboard.entry import Entry, Interval
from fedbench.leaderboard.rules import MAX_RULES_BYTES, Rules, versions

SALT = "# salt: "  # of the first line of a committed file
CLASS = "HeldOut"  # name of the attack's class in its file
FOLDER = "held-out"  # of the sources on a board
METADATA = "Metadata-Version: 2.1\nName: fedbench-held-out\nVersion: 0\n"


@dataclass(frozen=True)
class HeldOutAttack:
    """A committed attack: its file, and the version of the rules with its digest."""

    source: bytes
    version: int

    @property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.source).hexdigest()

    @property
    def name(self) -> str:
        """Name of the plug-in, by which records call it."""
        return named(self.digest)

    @property
    def file_name(self) -> str:
        """Name of its file in the folder ``held-out`` of a board."""
        return f"{self.digest[:12]}.py"


def named(digest: str) -> str:
    """Return the name of the attack with this digest."""
    return f"held-out-{digest[:12]}"


def commit(file: Path, out: Path) -> str:
    """Write the file with a random first line, and return the digest that goes into the rules.

    `ConfigError` if `reveal` could not play it, or if ``out`` exists: a salt cannot be made twice.
    """
    require("--out", str(out), not out.exists(), "a new file")
    source = f"{SALT}{secrets.token_hex(32)}\n".encode() + read_limited(file, MAX_RULES_BYTES)
    attack = HeldOutAttack(source, 0)
    try:
        with installed([attack]):
            registry.load("attack", attack.name)
    except ConfigError as error:
        raise ConfigError(
            f"{file} must have a class {CLASS}, an attack that needs no file but itself: {error}"
        ) from error
    write_atomically(out, source)
    return attack.digest


def committed(rules: Mapping[int, Rules]) -> dict[str, int]:
    """Return every digest that a version of the rules commits to, and that version."""
    return {digest: n for n, each in rules.items() for digest in each.held_out.digests}


def opened(file: Path, rules: Mapping[int, Rules]) -> HeldOutAttack:
    """Read a file that a version committed to and that is due; `ConfigError` for any other."""
    source = read_limited(file, MAX_RULES_BYTES)
    digest = hashlib.sha256(source).hexdigest()
    version = committed(rules).get(digest)
    if version is None:
        raise ConfigError(
            f"{file} must be an attack that a version of the rules commits to, byte for byte, got "
            f"SHA-256 {digest}; look for it under [held_out] in rules/"
        )
    if version == max(rules, default=0):
        raise ConfigError(
            f"{file} must stay secret while version {version} takes entries; reveal it when "
            f"rules/{version + 1}.toml is there"
        )
    return HeldOutAttack(source, version)


@contextmanager
def installed(attacks: Sequence[HeldOutAttack]) -> Iterator[None]:
    """Let plug-ins be found under their names in this process and those it starts, for a while."""
    modules = {attack.name.replace("-", "_"): attack for attack in attacks}
    points = [f"{attack.name} = {module}:{CLASS}" for module, attack in modules.items()]
    with TemporaryDirectory() as folder:
        for module, attack in modules.items():
            Path(folder, f"{module}.py").write_bytes(attack.source)
        about = Path(folder, "fedbench_held_out-0.dist-info")
        about.mkdir()
        (about / "METADATA").write_text(METADATA)
        (about / "entry_points.txt").write_text("\n".join(["[fedbench.attacks]", *points, ""]))
        sys.path.append(folder)
        importlib.invalidate_caches()
        registry.refresh()
        try:
            yield
        finally:
            sys.path.remove(folder)
            for module in modules:
                sys.modules.pop(module, None)
            registry.refresh()


@dataclass(frozen=True)
class HeldOutResult:
    """Accuracy of an entry under a held-out attack, and its generalisation gap.

    The ``gap`` is the accuracy under the worst mandatory attack of the development stage minus the
    accuracy under this one, over paired seeds: above 0, the ensemble has flattered the entry.
    """

    attack: str
    accuracy: Interval
    gap: Interval
    code: str  # version that played it


def results(entry: Entry, records: Sequence[Record], rules: Rules) -> list[HeldOutResult]:
    """Return what held-out attacks did to an entry, the worst one first.

    They are compared with the development stage, whose seeds they share. `ConfigError` if they were
    not played with just these seeds.
    """
    mandatory = (cell for cell in entry.cells if cell.mandatory and not is_clean(cell.attack))
    worst = min(mandatory, key=lambda cell: cell.accuracy.mean)
    claimed = {member.seed: member.accuracy for member in worst.records}
    by_attack: dict[str, dict[int, Record]] = {}
    for record in records:
        by_attack.setdefault(record.scenario.attack, {})[record.scenario.seed] = record
    measured = []
    for attack, runs in by_attack.items():
        name = registry.split(attack)[0]
        if runs.keys() != claimed.keys():
            raise ConfigError(
                f"{entry.file_name}: its runs under {name} must have the seeds of the entry, "
                f"{sorted(claimed)}, got {sorted(runs)}; play them anew with fedbench leaderboard "
                "reveal"
            )
        accuracies = {seed: final_accuracy(runs[seed], rules.looks) for seed in claimed}
        lost = [claimed[seed] - accuracy for seed, accuracy in accuracies.items()]
        measured.append(
            HeldOutResult(
                attack=name,
                accuracy=with_interval([*accuracies.values()], rules.confidence),
                gap=with_interval(lost, rules.confidence),
                code=runs[entry.seeds[0]].environment.fedbench,
            )
        )
    return sorted(measured, key=lambda result: (result.accuracy.mean, result.attack))


def gaps(board: Path, entries: Sequence[Entry]) -> dict[str, list[HeldOutResult]]:
    """Return what held-out attacks did to the entries that met any, by the entry's id."""
    results_by_id = {}
    every = versions(board, {})
    for entry in entries:
        records = boards.held_out_records(boards.place(board, entry))
        if records and entry.rules in every:
            results_by_id[entry.id] = results(entry, records, every[entry.rules])
    return results_by_id


def revealed(board: Path, rules: Mapping[int, Rules]) -> tuple[list[HeldOutAttack], list[str]]:
    """Return the attacks whose source is on the board, and what is wrong with the folder."""
    attacks: list[HeldOutAttack] = []
    wrong: list[str] = []
    by_digest = committed(rules)
    for path in sorted((board / FOLDER).glob("*")):
        if path.is_symlink() or not path.is_file():
            wrong.append(f"{path.name} must be a file, got a link or a folder; copy the file")
            continue
        source = read_limited(path, MAX_RULES_BYTES)
        digest = hashlib.sha256(source).hexdigest()
        attack = HeldOutAttack(source, by_digest.get(digest, 0))
        if not attack.version:
            wrong.append(
                f"{path.name} must have a digest under [held_out] in rules/, got {digest}; remove "
                "the file"
            )
        elif path.name != attack.file_name:
            wrong.append(f"{path.name} must be named {attack.file_name} by its content; rename it")
        elif attack.version == max(rules, default=0):
            wrong.append(
                f"{path.name} must stay secret while version {attack.version} is used; remove it "
                f"until rules/{attack.version + 1}.toml is there"
            )
        else:
            attacks.append(attack)
    return attacks, wrong


def overdue(version: int, rules: Rules, attacks: Sequence[HeldOutAttack]) -> Iterator[str]:
    """Yield the commitments of an older version whose attacks are not on the board."""
    on_the_board = {attack.digest for attack in attacks}
    for digest in rules.held_out.digests:
        if digest not in on_the_board:
            yield f"the attack {digest[:12]}... is due since version {version + 1}: reveal it"


def judge(case: Case, records: Sequence[Record], attacks: Mapping[str, int]) -> Iterator[str]:
    """Yield every breach of the rules by an entry's records of held-out attacks.

    ``attacks`` are those that are revealed: their name, and the version that committed to them.
    """
    both = Case([*case.clean, *records], case.rules, case.division, case.track, case.alphabet)
    for rule in (
        entry_rules.record,
        entry_rules.one_system,
        entry_rules.data,
        entry_rules.paired,
        entry_rules.attacked,
    ):
        yield from rule(both)
    texts = {record.scenario.attack for record in records}
    names = [registry.split(text)[0] for text in texts]
    for name in sorted(set(names)):
        if attacks.get(name, 0) < case.rules.version:
            later = f"version {case.rules.version} or later"
            yield f"{name} must be revealed, and committed to by {later}"
        if names.count(name) > 1:
            yield f"{name} must be played with one set of parameters, got {entry_rules.some(texts)}"
