"""Forged ranking stages and replays: `check` refuses each, and names the rule that it breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from test_leaderboard import SAID, changed, edit, put
from test_leaderboard import played as run
from test_red_team import ACCURACIES, VALUE, drawn, entered, ranked, stage, timed, with_rules
from test_red_team import replay as honest_replay

from fedbench.experiment.record import Record
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import Case, DrawnStage, completed, worst
from fedbench.leaderboard.check import check, claim
from fedbench.leaderboard.entry import RankingStage
from fedbench.leaderboard.replays import ReplayedCell, keep, parts, required
from fedbench.leaderboard.rules import versions
from fedbench.leaderboard.submission import submit

FIRST = "replays__0__"


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return with_rules(tmp_path / "board")


def broken(board: Path) -> dict[str, str]:
    """The rules that are broken, each with all of its texts."""
    texts: dict[str, str] = {}
    for file in check(board, own_rules=True):
        for each in file.findings:
            if each.severity == "error":
                texts[each.rule] = f"{texts.get(each.rule, '')}{each.text}; "
    return texts


def require_broken(board: Path, rule: str, text: str) -> None:
    texts = broken(board)
    assert set(texts) == {rule}, texts
    assert text in texts[rule]


# Whatever comes after the development stage is not in the id, so anybody can edit it.
EDITED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "another season": ("season", "of the season 2026, got 2025", {"ranking__season": "2025"}),
    "a record that is not there": (
        "digest",
        "1 listed records are not in the archive, 1 there are not listed",
        {"ranking__cells__1__records__0__digest": "0" * 64},
    ),
    "a number of a cell": (
        "numbers",
        "ranking.cells.0.area must be 0.6",
        {"ranking__cells__0__area": 0.7},
    ),
    "a score": ("numbers", "score must follow from its cells", {"score__area": 0.99}),
    "a status": ("status", "must be replayed by its replays", {"status": "replicated"}),
    "a digest of a replay": (
        "replays",
        "replay 1 by CI: 1 listed records are not in the archive",
        {f"{FIRST}digests__0": "0" * 64},
    ),
    **{
        f"the {name} of a replay": (
            "replays",
            "not played where the replay says",
            {FIRST + name: "x"},
        )
        for name in ("code", "platform", "processor", "device", "torch")
    },
}


@pytest.mark.parametrize("what", EDITED)
def test_whatever_was_edited_after_the_freeze_is_refused(what: str, board: Path) -> None:
    rule, text, fields = EDITED[what]
    path = ranked(board)
    honest_replay(path)
    assert broken(board) == {}
    edit(path, lambda content: put(content, fields))
    require_broken(board, rule, text)


def test_a_record_of_a_replay_is_listed_once(board: Path) -> None:
    path = ranked(board)
    honest_replay(path)
    edit(path, lambda content: content["replays"][0]["digests"].append(first_digest(content)))
    require_broken(board, "replays", "listed records are not in the archive")


def first_digest(content: dict[str, Any]) -> str:
    """The digest of the first record of the first replay."""
    return str(content["replays"][0]["digests"][0])


def test_a_stage_needs_a_season_with_a_value(board: Path) -> None:
    path = ranked(board)
    file = board / "seasons" / "2026.toml"
    value = f'value = "{VALUE}"'
    assert value in file.read_text()
    file.write_text(file.read_text().replace(value, ""))
    require_broken(board, "season", "season 2026 has no value yet, so nothing was drawn")
    file.unlink()
    require_broken(board, "season", "must be frozen in a season before its ranking stage")
    assert boards.read(path).ranking is not None


def in_the_open(board: Path) -> Path:
    """An entry of the open division."""
    done = submit(stage([0, 1, 2]), SAID.model_dump(), board, "open")
    assert done.entry is not None, done.findings
    return done.write()


def test_an_open_entry_has_no_ranking_stage(board: Path) -> None:
    path = in_the_open(board)
    drawn(board, path)
    assert broken(board) == {}
    entry = boards.read(path)
    again = RankingStage(season="2026", seeds=entry.seeds, cells=entry.cells)
    path.write_text(entry.model_copy(update={"ranking": again}).to_json())
    boards.ranking(path).write_bytes(boards.archive(path).read_bytes())
    require_broken(board, "season", "an entry of the open division has no ranking stage")


@dataclass(frozen=True)
class Frozen:
    """An entry that was frozen, and what its ranking stage was drawn to be."""

    board: Path
    path: Path
    drawn: DrawnStage

    def records(
        self, attacks: Iterable[str] = ("none", "sign-flip"), **fields: Any
    ) -> list[Record]:
        """Return the honest runs of the stage, or those of other attacks or another system."""
        return [run(a, s, ACCURACIES[a], **fields) for a in attacks for s in self.drawn.seeds]

    def complete(self, records: list[Record]) -> None:
        """Write a stage that no rule has judged, as only a forger can."""
        rules = versions(self.board)[1]
        case = Case(records, rules, "closed", "tiny", "SignBits", self.drawn)
        boards.write(self.board, completed(boards.read(self.path), case), records)


def frozen(board: Path) -> Frozen:
    path = entered(board)
    seeds = drawn(board, path)
    return Frozen(board, path, DrawnStage("2026", tuple(seeds), worst(boards.read(path), 1)))


def every(**fields: Any) -> Callable[[Frozen], list[Record]]:
    """Change all records of the stage."""
    return lambda made: [changed(record, **fields) for record in made.records()]


FILE = {"module": "mine", "package": "p", "version": "1", "url": "", "sha256": "a" * 64}
STAGES: dict[str, tuple[str, str, Callable[[Frozen], list[Record]]]] = {
    "seeds of one's own choice": (
        "seeds",
        "in track tiny, got",
        lambda made: replace(
            made, drawn=replace(made.drawn, seeds=(17, *made.drawn.seeds[1:]))
        ).records(),
    ),
    "an attack that is not the worst": (
        "ensemble",
        "sign-flip",
        lambda made: made.records(("none", "mimic")),
    ),
    "another system": (
        "one system",
        "of the entry's system, got another scenario",
        lambda made: made.records(server_checks="none"),
    ),
    "other code": ("one system", "version of the code", every(environment__fedbench="0.0.2+beef")),
    "another file": ("one system", "got another source of a plug-in", every(sources=[FILE])),
    "another rule of the protocol": ("one system", "got another network", every(vote=False)),
    "another device": ("device", "must be 'cpu' in both stages", every(environment__device="GPU")),
    "results that no round gave": ("record", "accuracy must be", every(result__accuracy=0.9)),
    "ids of something else": (
        "id",
        "by its content, got",
        lambda made: [changed(record, id=f"{i:016x}") for i, record in enumerate(made.records())],
    ),
}


@pytest.mark.parametrize("what", STAGES)
def test_a_stage_that_no_rule_has_judged_is_refused(what: str, board: Path) -> None:
    rule, text, forged = STAGES[what]
    made = frozen(board)
    made.complete(forged(made))
    require_broken(board, rule, text)


def test_records_of_a_stage_that_the_entry_does_not_have_are_refused(board: Path) -> None:
    made = frozen(board)
    boards.ranking(made.path).write_bytes(boards.archive(made.path).read_bytes())
    require_broken(board, "path", ".ranking.jsonl.gz lies beside it, of which it says nothing")


def test_an_honest_stage_is_not_refused(board: Path) -> None:
    made = frozen(board)
    made.complete(made.records())
    assert broken(board) == {}


def replayed(path: Path, change: Callable[[Record], Record] = lambda record: record) -> None:
    """Keep a replay whose records were changed."""
    mine = claim(path)
    needed = required(mine.entry, mine.season)
    comparisons = []
    for part in needed:
        name = part.attack.partition(":")[0]
        before = mine.of(part)
        again = [run(name, r.scenario.seed, ACCURACIES[name]) for r in before]
        again = [change(record.model_copy(update={"timing": timed()}).sealed()) for record in again]
        comparisons.append(ReplayedCell(part, before, again))
    keep(mine, comparisons, "CI")


def moved(record: Record) -> list[dict[str, Any]]:
    """Its rounds, with another client in the first one."""
    rounds: list[dict[str, Any]] = record.model_dump()["rounds"]
    rounds[0]["clients"] = rounds[0]["clients"][::-1]
    return rounds


REPLAYS: dict[str, tuple[str, Callable[[Record], Record]]] = {
    "another network": ("got another network", lambda r: changed(r, vote=False)),
    "other data": ("data: all records must be", lambda r: changed(r, data_digest="e" * 64)),
    "an id of something else": ("id: ", lambda r: changed(r, id=r.digest[:16])),
    "other clients": ("cohort: ", lambda r: changed(r, rounds=moved)),
    "results that no round gave": ("record: ", lambda r: changed(r, result__accuracy=0.99)),
    "another machine in one run": (
        "was not played where the replay says",
        lambda r: changed(r, environment__torch="9.9") if r.scenario.seed == 1 else r,
    ),
}


@pytest.mark.parametrize("what", REPLAYS)
def test_a_replay_of_something_else_is_refused(what: str, board: Path) -> None:
    text, change = REPLAYS[what]
    path = ranked(board)
    replayed(path, change)
    require_broken(board, "replays", text)


@pytest.mark.parametrize("copied", ["development", "ranking"])
def test_a_replay_with_the_entrys_own_runs_of_a_single_stage_is_refused(
    copied: str, board: Path
) -> None:
    path = ranked(board)
    mine = claim(path)
    comparisons = []
    for part in required(mine.entry, mine.season):
        before = mine.of(part)
        again = [r.model_copy(update={"timing": timed()}).sealed() for r in before]
        comparisons.append(ReplayedCell(part, before, before if part.stage == copied else again))
    keep(mine, comparisons, "CI")
    require_broken(board, "replays", "must be runs of its own")


def test_a_replay_that_another_party_copied_replicates_nothing(board: Path) -> None:
    path = ranked(board)
    honest_replay(path)
    mine = claim(path)
    runs = {(r.scenario.attack, r.scenario.seed): r for r in mine.replayed[0]}
    elsewhere = {k: changed(r, environment__processor="arm64 Apple M1") for k, r in runs.items()}
    copies = [
        ReplayedCell(part, before, [elsewhere[part.attack, r.scenario.seed] for r in before])
        for part in required(mine.entry, mine.season)
        for before in (mine.of(part),)
    ]
    keep(mine, copies, "Another lab")
    require_broken(board, "replays", "replay 2 by Another lab: must be runs of its own")


def test_an_open_entry_is_replayed_on_its_own_data(board: Path) -> None:
    # No track fixes the data of the open division, so only the entry can say which they were.
    path = in_the_open(board)
    mine = claim(path)
    for digest, wrong in ((None, False), ("e" * 64, True)):
        comparisons = []
        for part in parts(mine.entry):
            before = mine.of(part)
            again = [r.model_copy(update={"timing": timed()}).sealed() for r in before]
            again = [changed(r, data_digest=digest) if digest else r for r in again]
            comparisons.append(ReplayedCell(part, before, again))
        keep(mine, comparisons, "CI")
        if wrong:
            require_broken(board, "replays", "of the entry's system, got another data set")
        else:
            assert broken(board) == {}
