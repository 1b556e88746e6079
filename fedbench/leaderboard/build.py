"""Build an entry from its records."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pydantic import ValidationError

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard.entry import Entry, Statement
from fedbench.leaderboard.rules import Division, Rules, Track
from fedbench.leaderboard.score import attacked, is_clean, price, score

UNHASHED = "0" * 12  # id of an entry whose content is not hashed yet


def alphabet(protocol: str) -> str:
    """Return the name of the payload that clients of a protocol send.

    Raises:
        ConfigError: it is not installed.
    """
    sends: type = registry.load("protocol", protocol).sends
    return sends.__name__


@dataclass(frozen=True, eq=False)
class Case:
    """Records of one system, and the rules that they are judged by.

    Args:
        records: Records of one system.
        rules: Version of the rules.
        division: ``closed`` or ``open``.
        track: Name of the track.
        alphabet: Name of the payload that clients of the protocol send.
    """

    records: Sequence[Record]
    rules: Rules
    division: Division
    track: str
    alphabet: str

    @property
    def race(self) -> Track | None:
        """Track of the closed division; None in the open one."""
        return self.rules.named(self.track) if self.division == "closed" else None

    @cached_property
    def ensemble(self) -> dict[str, str]:
        """Mandatory attacks as typed, by what they mean."""
        typed = self.rules.ensemble.get(self.alphabet, ())
        return {meaning("attack", attack): attack for attack in typed}

    @cached_property
    def cells(self) -> dict[str, list[Record]]:
        """Records by attack, ordered by seed: the clean run, the ensemble, others by name."""
        runs: dict[str, list[Record]] = {}
        for record in sorted(self.records, key=lambda r: r.scenario.seed):
            runs.setdefault(record.scenario.attack, []).append(record)
        order = list(self.ensemble)

        def place(attack: str) -> tuple[bool, int, str]:
            full = meaning("attack", attack)
            at = order.index(full) if full in order else len(order)
            return not is_clean(attack), at, attack

        return {attack: runs[attack] for attack in sorted(runs, key=place)}

    def called(self, attack: str) -> str:
        """Return the name of an attack in the rules, which is short, or else in the records."""
        return self.ensemble.get(meaning("attack", attack), attack)

    @property
    def clean(self) -> list[Record]:
        """Runs without attack; empty if they are missing."""
        return next((runs for attack, runs in self.cells.items() if is_clean(attack)), [])


def meaning(kind: str, text: str) -> str:
    """Return a plug-in with every parameter written out; the text itself if not installed."""
    try:
        return registry.describe(registry.split(text)[0], registry.load(kind, text))
    except ConfigError:
        return text


def build(case: Case, statement: Statement) -> Entry:
    """Return the entry of records that keep the rules of `fedbench.leaderboard.verdict`.

    Raises:
        ConfigError: a number or a text of a record that no entry can have.
    """
    try:
        return _build(case, statement)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"records must be such that an entry can hold them, got {where}: {first['msg'].lower()}"
        ) from error


def _build(case: Case, statement: Statement) -> Entry:
    clean = case.clean
    confidence = case.rules.confidence
    cells = [
        attacked(runs, clean, meaning("attack", attack) in case.ensemble, confidence)
        for attack, runs in case.cells.items()
    ]
    ordered = [record for runs in case.cells.values() for record in runs]
    spent = price(ordered)
    ranked = score(cells, None if spent is None else spent.epsilon)
    assert ranked is not None
    first = clean[0]
    entry = Entry(
        id=UNHASHED,
        division=case.division,
        track=case.track,
        rules=case.rules.version,
        **dict(statement),
        protocol=first.scenario.protocol,
        defense=first.scenario.defense,
        mechanism=first.scenario.mechanism,
        votes=first.vote,
        alphabet=case.alphabet,
        parameters=first.parameters,
        scenario=first.scenario,
        seeds=[record.scenario.seed for record in clean],
        data_digest=first.data_digest,
        code=first.environment.fedbench,
        device=first.environment.device,
        cells=cells,
        price=spent,
        score=ranked,
        command=command(first.scenario, list(case.cells), [r.scenario.seed for r in clean]),
    )
    return entry.model_copy(update={"id": entry.content_id()})


TYPED = ("protocol", "mechanism", "defense")
SKIPPED = (*TYPED, "attack", "seed", "data_seed", "declared", "local_models")


def command(scenario: Scenario, attacks: Sequence[str], seeds: Sequence[int]) -> str:
    """Return the command that plays all cells, with every parameter, since defaults may change."""
    words = ["fedbench", "attack"]
    for kind in TYPED:
        words += [f"--{kind}", getattr(scenario, kind)]
    for attack in attacks:
        words += ["--attack", attack]
    written = scenario.model_dump()
    for name, value in scenario:
        if name in written and name not in SKIPPED and value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if scenario.declared not in (None, scenario.malicious):
        words += ["--declared", str(scenario.declared)]
    if scenario.local_models:
        words.append("--local-models")
    words += ["--seeds", ",".join(map(str, seeds))]
    return shlex.join(words)
