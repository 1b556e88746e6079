"""Spot checks: play a few rounds of an entry again, each from the state that it committed to.

A round needs the state before it, which the submitter kept. That state is bound by the commitment
of the round before, which is in the records and so in the entry's id. Which rounds are played
follows from a value that was not known when the entry was made, so nobody can prepare for them.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pydantic import TypeAdapter

from fedbench.api import hooks
from fedbench.core import registry
from fedbench.core.canonical import require_canonical
from fedbench.core.errors import ConfigError, require
from fedbench.core.settings import SettingsSnapshot, restored_after
from fedbench.experiment import commitments
from fedbench.experiment.cells import AXES
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Record
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.leaderboard import board as boards
from fedbench.results.gather import gather
from fedbench.run import begin, play_round

PUBLIC = re.compile("[0-9a-f]{16,256}")
ROUND = TypeAdapter(Round)
MAX_NUMBER_LENGTH = 24  # of a number that differs


@dataclass(frozen=True, eq=False)
class Evidence:
    """Records of an entry or of a store, and the id that binds them."""

    id: str
    records: Sequence[Record]


@dataclass(frozen=True)
class DrawnRound:
    """A round of a record that is to be played again."""

    record: Record
    step: int

    def state(self, folder: Path) -> Path | None:
        """Return the path of the state that it begins with; None for the first round."""
        if self.step == 0:
            return None
        return commitments.place(folder, self.record.id, self.step)


@dataclass(frozen=True)
class CheckedRound:
    """Outcome of a round that was drawn and played again."""

    drawn: DrawnRound
    wrong: str  # what differs; empty if all agrees


def evidence(path: Path) -> Evidence:
    """Read the records of an entry, or of a folder; `ConfigError` if an entry was edited.

    The id of an entry is that of its content, which lists the digests of its records. The records
    of a folder have no author who could have chosen them: their id is that of all digests.
    """
    if path.is_dir():
        records = sorted(gather([path]), key=_order)
        digests = "".join(record.digest for record in records)
        return Evidence(sha256(digests.encode()).hexdigest()[:12], records)
    entry = boards.read(path)
    records = sorted(boards.records(path), key=_order)
    listed = sorted(member.digest for cell in entry.cells for member in cell.records)
    if entry.id != entry.content_id() or listed != sorted(record.digest for record in records):
        raise ConfigError(
            f"{path} must have the id of its content and the records that it lists; "
            "see fedbench leaderboard check"
        )
    return Evidence(entry.id, records)


def _order(record: Record) -> tuple[str, int, str]:
    return record.scenario.attack, record.scenario.seed, record.digest


def draw(evidence: Evidence, public: str, rounds: int) -> list[DrawnRound]:
    """Draw distinct rounds of all records, each alike, by SHA-256 of the value, the id and a count.

    `ConfigError` if the value is no hexadecimal number of 16 digits or more, or if a record is not
    canonical: such a one binds nobody.
    """
    require(
        "--public-value", public, bool(PUBLIC.fullmatch(public)), "16 to 256 of the digits 0-9a-f"
    )
    require("--rounds", rounds, rounds >= 1, ">= 1")
    for record in evidence.records:
        if any(each.commitment is None for each in record.rounds):
            raise ConfigError(
                f"every round must have a commitment, got none in record {record.id}; "
                "play it with --canonical --keep-states FOLDER"
            )
    places = [DrawnRound(r, step) for r in evidence.records for step in range(len(r.rounds))]
    drawn: dict[int, DrawnRound] = {}
    count = 0
    while len(drawn) < min(rounds, len(places)):
        text = f"{public} {evidence.id} {count}"
        number = int.from_bytes(sha256(text.encode()).digest(), "big") % len(places)
        drawn.setdefault(number, places[number])
        count += 1
    return list(drawn.values())


def require_states(drawn: Sequence[DrawnRound], folder: Path) -> None:
    """Raise `ConfigError` with the names of the states that the submitter has to hand in."""
    paths = [path for each in drawn if (path := each.state(folder)) is not None]
    missing = [str(path.relative_to(folder)) for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(f"--states {folder} must have {', '.join(missing)}, got none of them")


def spot_check(drawn: Sequence[DrawnRound], folder: Path) -> list[CheckedRound]:
    """Play each round that was drawn, and compare it with its record.

    `ConfigError` if this process is not canonical, or cannot play the runs as they were played:
    with other code, without their data, or with plug-ins of other packages, whose code is not to
    run here.
    """
    require_canonical()
    outcomes = []
    for each in drawn:
        scenario = each.record.scenario
        for kind in AXES:
            text = getattr(scenario, kind)
            if text != "own" and registry.is_foreign(kind, text):
                raise ConfigError(
                    f"spot-check plays plug-ins of fedbench only, got {kind} {text}; "
                    "use fedbench leaderboard reproduce, which isolates it"
                )
        setup = prepare(scenario, canonical=True)
        if setup.id != each.record.id:
            raise ConfigError(
                f"record {each.record.id} must be of the code that is installed, got "
                f"{each.record.environment.fedbench}; install that version"
            )
        outcomes.append(CheckedRound(each, _wrong(setup, each, folder)))
    return outcomes


def _wrong(setup: Setup, drawn: DrawnRound, folder: Path) -> str:
    """Play a round and return what differs; empty if nothing does."""
    record = drawn.record
    step = drawn.step
    try:
        state = _before(setup, drawn, folder)
    except ConfigError as error:
        return f"state: {error}"
    try:
        with restored_after(SettingsSnapshot().restore), hooks.in_round(step):
            played = play_round(setup, state, step)
    except Exception as error:  # whatever a state of foreign numbers leads to ends here
        return f"the state cannot be played: {type(error).__name__}: {error}"
    claimed = _plain(record.rounds[step])
    again = _plain(played)
    names = [name for name in again if claimed[name] != again[name]]
    return ", ".join(_difference(name, claimed[name], again[name]) for name in names)


def _before(setup: Setup, drawn: DrawnRound, folder: Path) -> RunState:
    path = drawn.state(folder)
    if path is None:
        return begin(setup)
    commitment = drawn.record.rounds[drawn.step - 1].commitment
    assert commitment is not None  # `draw` refuses records without
    return commitments.read(path, drawn.step, commitment)


def _plain(round: Round) -> dict[str, object]:
    """Return the fields of a round as a record's file has them."""
    fields: dict[str, object] = json.loads(ROUND.dump_json(round))
    return fields


def _difference(name: str, claimed: object, again: object) -> str:
    if name == "commitment":
        return "commitment"
    return f"{name} {_short(claimed)}, here {_short(again)}"


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= MAX_NUMBER_LENGTH else f"{text[: MAX_NUMBER_LENGTH - 1]}…"
