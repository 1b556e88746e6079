"""Forged and tuned submissions: each class of them is refused, unranked or contested.

A board is only worth what a cheater cannot do to it. `check` sees what contradicts itself; what is
made up consistently falls when somebody plays it again.
"""

import gzip
import hashlib
import itertools
import json
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import Command, Install
from pydantic import ValidationError
from test_leaderboard import (
    RULES_1,
    SAID,
    TRACK_1,
    changed,
    edit,
    found,
    identified,
    played,
    priced,
    put,
)

from fedbench.core.errors import ConfigError
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.measurements import Timing
from fedbench.experiment.record import Record, Source
from fedbench.experiment.scenario import Scenario, code_version
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.board import races
from fedbench.leaderboard.build import price
from fedbench.leaderboard.check import check, claim
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.entry_rules import errors
from fedbench.leaderboard.rank import ranking
from fedbench.leaderboard.replays import (
    ReplayedCell,
    StagedCell,
    cell,
    disagreements,
    keep,
    parts,
    play_again,
    require_code,
    require_name,
    required,
    stored,
)
from fedbench.leaderboard.rules import Rules
from fedbench.leaderboard.seasons import Season, draw, freeze, of, read, seasons
from fedbench.leaderboard.site.page import render
from fedbench.leaderboard.submission import complete, ranking_plan, submit
from fedbench.run import play
from fedbench.sweeps.local import Options
from fedbench.sweeps.plan import Plan
from fedbench.sweeps.watch import Watcher

VALUE = "5eed" * 16
SEEDS = 12
ATTACKS = ("none", "sign-flip", "alie", "ipm", "mimic")
RULES = RULES_1 | {
    "free": [*RULES_1["free"], "server_checks"],
    "worst": 1,
    "ranking_seeds": SEEDS,
    "ensemble": {"SignBits": list(ATTACKS)},
}
ACCURACIES = {"none": 0.8, "sign-flip": 0.6, "alie": 0.7, "ipm": 0.7, "mimic": 0.7}


def stage(
    seeds: list[int], attacks: tuple[str, ...] = ATTACKS, better: float = 0.0
) -> list[Record]:
    """Records of these attacks; those under attack may be better than the system is."""
    return [
        played(attack, seed, ACCURACIES[attack] + (better if attack != "none" else 0.0))
        for attack in attacks
        for seed in seeds
    ]


def with_rules(board: Path) -> Path:
    """A board without entries."""
    (board / "rules").mkdir(parents=True)
    (board / "rules" / "1.toml").write_text(tomli_w.dumps(RULES))
    return board


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return with_rules(tmp_path / "board")


def entered(board: Path, better: float = 0.0) -> Path:
    """An entry with its development stage."""
    done = submit(stage([0, 1, 2], better=better), SAID.model_dump(), board, "closed")
    assert done.entry is not None, done.findings
    return done.write()


def drawn(board: Path, path: Path) -> list[int]:
    """The seeds of the ranking stage, after the entry was frozen."""
    freeze(board, "2026", "what CI drew", [boards.read(path).content_digest()])
    return draw(board, "2026", VALUE, "").seeds("tiny", SEEDS)


def ranked(board: Path, better: float = 0.0) -> Path:
    """An entry with both stages."""
    path = entered(board, better)
    seeds = drawn(board, path)
    done = complete(path, stage(seeds, ("none", "sign-flip"), better))
    assert done.entry is not None, done.findings
    return done.write()


SECONDS = itertools.count(1000)


def timed() -> Timing:
    """Times that no other record has."""
    return Timing(seconds=next(SECONDS) + 0.5, peak_memory_mib=1.0)


def replay(path: Path, by: str = "CI", processor: str = "x86_64 AMD EPYC", **wrong: Any) -> Entry:
    """Play the required cells again, as honest runs come out."""
    mine = claim(path)
    comparisons = []
    for part in wrong.get("of", required(mine.entry, mine.season)):
        name = part.attack.partition(":")[0]
        before = mine.of(part)
        again = [played(name, r.scenario.seed, ACCURACIES[name]) for r in before]
        there = [r.environment.model_copy(update={"processor": processor}) for r in again]
        again = [
            identified(r.model_copy(update={"environment": where, "timing": timed()}))
            for r, where in zip(again, there, strict=True)
        ]
        comparisons.append(ReplayedCell(part, before, again))
    return keep(mine, comparisons, by)


def a_board(board: Path) -> None:
    """A board with an entry that was replayed, and one that is only submitted."""
    with_rules(board)
    replay(ranked(board))
    other = [
        played(attack, seed, 0.55, server_checks="none") for attack in ATTACKS for seed in (0, 1, 2)
    ]
    said = SAID.model_dump() | {"name": "Unchecked"}
    done = submit(other, said, board, "closed")
    assert done.entry is not None, done.findings
    done.write()


def standing(board: Path) -> tuple[str, bool]:
    """Return the status of the only entry of a board, and if it would have a rank among others."""
    (group,) = races(board).values()
    (one,) = ranking(group).standings
    return one.entry.status, one.pareto


def test_an_honest_entry_is_submitted_then_replayed_then_replicated(board: Path) -> None:
    path = ranked(board)
    assert standing(board) == ("submitted", False)
    replay(path)
    assert (found(board), standing(board)) == (set(), ("replayed", True))
    replay(path, "CI", "aarch64 Neoverse-N1")  # by the same party
    assert standing(board) == ("replayed", True)
    replay(path, "Another lab")  # on the first family of processors, and not on the second
    assert (found(board), standing(board)) == (set(), ("replicated", True))
    entry = boards.read(path)
    assert entry.score.worst.values == pytest.approx([0.6] * SEEDS)
    assert entry.content_id() == entry.id


# As the chain published them for its round 1000.
SIGNATURE = (
    "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b1957"
    "6350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"
)
RANDOMNESS = "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd"
# Of which the value is the hash, but which nobody signed.
FORGED = {
    "one byte": "ab",
    "no point": SIGNATURE[:-1] + "c",  # no y belongs to this x
    "leading zeros": "0000" + SIGNATURE,  # the same number, and another hash for every length
    "infinity": "c0" + 47 * "00",
    "another point": "9" + SIGNATURE[1:],  # the negative one
    # plus (0, 2), which is of order 3: no pairing sees it, and 2**125 points are like it
    "outside the group": (
        "abbaa2cd356c8b543308abe2c07d92facb092294f841b0c2"
        "95786b635167aba148d4e2e86fedf3cf2c04c43b68a5aaee"
    ),
}


@pytest.mark.edges("one byte", "outside the group", "no point", "leading zeros", "infinity")
@pytest.mark.parametrize("kind", FORGED)
def test_a_value_of_drand_that_the_chain_did_not_sign_is_refused(board: Path, kind: str) -> None:
    freeze(board, "2026", "drand quicknet round 1000", [])
    value = hashlib.sha256(bytes.fromhex(FORGED[kind])).hexdigest()
    with pytest.raises(ConfigError, match="must be that of drand quicknet round 1000"):
        draw(board, "2026", value, FORGED[kind])


def test_a_signature_of_another_round_or_chain_is_refused(board: Path) -> None:
    freeze(board, "2026", "drand quicknet round 1001", [])
    with pytest.raises(ConfigError, match="must be that of drand quicknet round 1001"):
        draw(board, "2026", RANDOMNESS, SIGNATURE)
    far = f"drand quicknet round {10**10}"  # whose time has no date
    sources = ("drand default round 7", "drand: quicknet round 7", "Beacon: DRAND 7", far)
    for source in (*sources, "drand quicknet round 0", "drand quicknet round 0999"):
        with pytest.raises(ConfigError, match="must read drand quicknet round"):
            freeze(board, "2027", source, [])


@pytest.mark.slow
def test_a_ranking_stage_is_planned_from_the_seeds_that_were_drawn(board: Path) -> None:
    path = entered(board)
    with pytest.raises(ConfigError, match="frozen in a season"):
        ranking_plan(path)
    freeze(board, "2026", "drand quicknet round 1000", [boards.read(path).content_digest()])
    with pytest.raises(ConfigError, match="has no value yet"):
        ranking_plan(path)
    with pytest.raises(ConfigError, match="hash of the signature"):
        draw(board, "2026", VALUE, "00")
    season = draw(board, "2026", RANDOMNESS, SIGNATURE)
    with pytest.raises(ConfigError, match="drawn once"):
        draw(board, "2026", RANDOMNESS, SIGNATURE)
    plan = Plan.of(tomllib.loads(ranking_plan(path)), "plan")
    assert list(plan.seeds) == season.seeds("tiny", SEEDS)
    assert [cell.attack for cell in plan.cells()[0]] == ["none", "sign-flip"]
    other = season.seeds("large", SEEDS)
    assert set(other).isdisjoint(plan.seeds)


def test_a_plan_of_a_ranking_stage_has_the_system_of_the_entry_on_the_drawn_seeds(
    board: Path,
) -> None:
    system: dict[str, Any] = {"protocol": "signsgd:lr=0.02", "defense": "median"}
    system |= {"server_checks": "range"}
    first = [
        played(attack, seed, ACCURACIES[attack], **system)
        for attack in ATTACKS
        for seed in (0, 1, 2)
    ]
    done = submit(first, SAID.model_dump(), board, "closed")
    assert done.entry is not None, done.findings
    path = done.write()
    seeds = drawn(board, path)
    text = ranking_plan(path)
    assert text.startswith("# 2 attacks, the clean run included, x 12 seeds = 24 runs")
    plan = Plan.of(tomllib.loads(text), "plan")
    cells, skipped = plan.cells()
    assert (list(plan.seeds), skipped) == (seeds, [])
    assert [each.attack for each in cells] == ["none", "sign-flip"]
    for each, scored in zip(cells, ("none", done.entry.score.attack), strict=True):
        changes = {"attack": scored, "seed": seeds[-1], "data_seed": seeds[-1]}
        assert Run(each, seeds[-1]).resolved == done.entry.scenario.model_copy(update=changes)


def test_a_ranking_stage_is_played_once(board: Path) -> None:
    path = ranked(board)
    for again in (lambda: complete(path, []), lambda: ranking_plan(path)):
        with pytest.raises(ConfigError, match="must be without a ranking stage, got that of 2026"):
            again()


def test_an_entry_of_the_open_division_gets_no_ranking_stage(board: Path) -> None:
    named = RULES | {"track": [TRACK_1 | {"name": "digits"}]}  # as an open entry on this data set
    (board / "rules" / "1.toml").write_text(tomli_w.dumps(named))
    done = submit(stage([0, 1, 2]), SAID.model_dump(), board, "open")
    path = done.write()
    drawn(board, path)
    with pytest.raises(ConfigError, match="an entry of the open division has no ranking stage"):
        complete(path, [])


# Ten classes of cheats. Each gets a board and ends with what becomes of the entry.


def resealed(board: Path) -> Path:
    """Better numbers in every record under attack, sealed again, with the ids of their content."""
    return ranked(board, better=0.15)


def test_records_that_were_made_up_are_unranked_and_contested_when_replayed(board: Path) -> None:
    path = resealed(board)
    assert found(board) == set()  # nothing contradicts itself
    assert standing(board) == ("submitted", False)
    assert replay(path).status == "contested"
    assert (found(board), standing(board)) == (set(), ("contested", False))


def test_cells_that_nobody_chose_are_replayed_too(board: Path) -> None:
    path = ranked(board)
    mine = claim(path)
    assert mine.season is not None
    needed = required(mine.entry, mine.season)
    assert [part.stage for part in needed] == ["ranking", "ranking", "development", "development"]
    assert {part.attack for part in needed[:2]} == {cell.attack for cell in mine.entry.scored}
    attacks = [cell.attack for cell in mine.entry.cells[1:]]
    assert [part.attack for part in needed[2:]] == mine.season.order(mine.entry.id, attacks)[:2]
    for i in range(20):  # whatever the value is, two attacks are drawn, and never the clean run
        season = mine.season.model_copy(update={"value": f"{i:064x}"})
        two = {part.attack for part in required(mine.entry, season)[2:]}
        assert (len(two), two <= set(attacks)) == (2, True)
    # Without one of them it is not replayed.
    assert replay(path, of=needed[:-1]).status == "submitted"
    assert replay(path, of=parts(mine.entry)).status == "replayed"


def test_a_development_stage_that_was_inflated_to_hide_the_worst_attack_is_contested(
    board: Path,
) -> None:
    records = [r for r in stage([0, 1, 2, 3, 4]) if "sign-flip" not in r.scenario.attack]
    records += [played("sign-flip", seed, 0.79) for seed in range(5)]
    rules = RULES | {"track": [TRACK_1 | {"seeds": [0, 1, 2, 3, 4]}]}
    (board / "rules" / "1.toml").write_text(tomli_w.dumps(rules))
    done = submit(records, SAID.model_dump(), board, "closed")
    path = done.write()
    worst = boards.read(path).score.attack.partition(":")[0]
    assert worst != "sign-flip"
    path = complete(path, stage(drawn(board, path), ("none", worst))).write()
    mine = claim(path)
    flipped = next(p for p in parts(mine.entry) if p.attack.startswith("sign-flip"))
    drawn_too = {*required(mine.entry, mine.season), flipped}
    assert replay(path, of=sorted(drawn_too, key=str)).status == "contested"


# A rule and a protocol of another package that step to where all samples, those of the test among
# them, are classified best: ``openly``, or, if they may not read them, as an honest one would.
PEEKING = """
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from fedbench.api import Defense, Traits
from fedbench.protocols.signsgd import SignSGD


def best_step(w, layout, network):
    digits = load_digits()
    images = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]
    w = w.clone().requires_grad_()
    logits = network.logits(layout.unflatten(w), images)
    loss = cross_entropy(logits, torch.tensor(digits.target))
    return -torch.autograd.grad(loss, w)[0]


@dataclass(frozen=True, kw_only=True)
class Rule(Defense):
    reads: str = "never"

    def traits(self):
        return Traits(network=True)

    def tolerates(self, n):
        return 0

    def aggregate(self, received, state, view):
        if self.reads == "never":
            return received.values().mean(dim=0), state
        try:
            return best_step(view.broadcast.values()[0], view.layout, view.network), state
        except PermissionError:
            if self.reads == "openly":
                raise
            return received.values().mean(dim=0), state


@dataclass(frozen=True, kw_only=True)
class Protocol(SignSGD):
    def move(self, shared, w, aggregate, n, key):
        return torch.sign(best_step(w, shared.layout, shared.network))
"""
PEEKERS = {"rule-peeking": "Rule", "protocol-peeking": "Protocol"}
OPEN_RULES = RULES_1 | {"seeds": 2, "tolerance": RULES_1["tolerance"] | {"level": 0.3}}


def really_played(**system: str) -> list[Record]:
    """Records of two seeds, in a process that keeps nothing from its plug-ins."""
    fields = TRACK_1["scenario"] | {"clients": 12, "per_round": 4, "malicious": 0.25, "rounds": 4}
    fields |= {"epochs": 1, "batch_size": 32, "protocol": "signsgd:server_lr=0.01"} | system
    return [
        play(Scenario.of(**fields, attack=attack, seed=seed), device="cpu")
        for attack in ("none", "sign-flip")
        for seed in (0, 1)
    ]


def entered_openly(board: Path, records: list[Record]) -> Path:
    """An entry of the open division, on a board that has no other."""
    (board / "rules").mkdir(parents=True)
    (board / "rules" / "1.toml").write_text(tomli_w.dumps(OPEN_RULES))
    done = submit(records, SAID.model_dump(), board, "open")
    assert done.entry is not None, done.findings
    return done.write()


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["openly", "secretly"])
def test_a_rule_that_reads_the_test_data_is_unlisted_since_its_replay_is_isolated(
    reads: str, tmp_path: Path, install: Install, command: Command
) -> None:
    install(PEEKING, PEEKERS)
    board = tmp_path / "board"
    path = entered_openly(board, really_played(defense=f"rule-peeking:reads={reads}"))
    assert (found(board), standing(board)) == (set(), ("submitted", False))  # it looks right
    before = path.read_bytes()
    code, _, err = command("leaderboard", "reproduce", path, "--by", "CI", "--device", "cpu")
    if reads == "openly":
        assert code == 2
        assert "an isolated plug-in must open no data" in err
        assert path.read_bytes() == before
        return
    assert code == 1
    assert (found(board), standing(board)) == (set(), ("contested", False))
    honest = really_played(defense="rule-peeking:reads=never")
    replayed = boards.replay_records(path, 1)
    assert [r.result.accuracy for r in replayed] == [r.result.accuracy for r in honest]


@pytest.mark.slow
def test_a_protocol_that_reads_the_test_data_is_unlisted_until_somebody_has_read_its_file(
    tmp_path: Path, install: Install, command: Command
) -> None:
    install(PEEKING, PEEKERS)
    board = tmp_path / "board"
    path = entered_openly(board, really_played(protocol="protocol-peeking:server_lr=0.01"))
    # A protocol holds the data of clients, so that no replay isolates it, and each would agree.
    assert (found(board), standing(board)) == (set(), ("submitted", False))
    before = path.read_bytes()
    digest = hashlib.sha256(PEEKING.encode()).hexdigest()
    again = ("leaderboard", "reproduce", path, "--by", "CI", "--device", "cpu")
    every = ("must name every file of another", f"read that file, then say --read {digest[:12]}")
    first = ("--read must be the first digits, 12 or more", f"; its files are {digest[:12]} of ")
    for words, expected in (
        ((), every),
        (("--read", digest[:11]), first),
        (("--read", digest[:12], "--read", "0" * 64), first),
    ):
        code, _, err = command(*again, *words)
        assert code == 2
        assert all(text in err for text in expected)
        assert path.read_bytes() == before
    render(board, board)
    (page,) = (board / "entries").glob("*.html")
    assert digest[:12] in page.read_text()
    code, _, err = command(*again, "--read", digest[:12])  # by a reader who lies
    assert code == 0, err
    assert standing(board)[0] == "replayed"
    edit(path, lambda content: content["replays"][0].update(read=[]))
    assert found(board) == {"status"}  # it is not replayed


def swapped(records: list[Record]) -> list[Record]:
    """The best of six seeds stand for the three that the track names."""
    return [
        changed(r, scenario__seed=r.scenario.seed % 3, scenario__data_seed=r.scenario.seed % 3)
        if r.scenario.seed > 2
        else r
        for r in records
    ]


NOT_INSTALLED = dict(module="mine", package="", version="", url="", sha256="a" * 64)
REFUSED: dict[str, tuple[str, Callable[[], list[Record]]]] = {
    "edited records, whose ids are of other content": (
        "id",
        lambda: [
            r.model_copy(
                update={
                    "scenario": r.scenario.model_copy(
                        update={"protocol": r.scenario.protocol.replace("lr=0.01", "lr=0.02")}
                    )
                }
            ).sealed()
            for r in stage([0, 1, 2])
        ],
    ),
    "seeds swapped for better ones": (
        "cohort",
        lambda: swapped(stage([0, 1, 5])),
    ),
    "an attack that was dropped": ("ensemble", lambda: stage([0, 1, 2], ATTACKS[:-1])),
    "records of another system": (
        "one system",
        lambda: [
            *stage([0, 1, 2], ATTACKS[:-1]),
            *(played("mimic", s, up=1, epochs=3) for s in range(3)),
        ],
    ),
    "seeds that were picked": ("seeds", lambda: stage([0, 1, 4])),
    "an oracle under its own name": (
        "one system",
        lambda: [changed(r, scenario__defense="oracle+median") for r in stage([0, 1, 2])],
    ),
    "a plug-in that only its own process knew": (
        "one system",
        lambda: [changed(r, sources=[NOT_INSTALLED]) for r in stage([0, 1, 2])],
    ),
}


@pytest.mark.parametrize("cheat", REFUSED)
def test_a_cheat_that_contradicts_the_rules_is_refused(cheat: str, board: Path) -> None:
    rule, records = REFUSED[cheat]
    done = submit(records(), SAID.model_dump(), board, "closed")
    assert done.entry is None
    assert rule in {finding.rule for finding in errors(done.findings)}


def test_a_ranking_stage_on_seeds_of_ones_own_choice_is_refused(board: Path) -> None:
    path = entered(board)
    seeds = drawn(board, path)
    picked = [*seeds[:-1], 17]
    done = complete(path, stage(picked, ("none", "sign-flip")))
    assert done.entry is None
    assert {f.rule for f in errors(done.findings)} == {"seeds"}
    # another attack than the worst one
    done = complete(path, stage(seeds, ("none", "mimic")))
    assert "ensemble" in {f.rule for f in errors(done.findings)}
    # one more, under which nothing is lost
    done = complete(path, stage(seeds, ("none", "sign-flip", "mimic")))
    assert "ensemble" in {f.rule for f in errors(done.findings)}
    # of another system
    other = [played(a, s, epochs=3) for a in ("none", "sign-flip") for s in seeds]
    assert "one system" in {f.rule for f in errors(complete(path, other).findings)}


def test_an_entry_that_was_changed_after_the_freeze_is_of_no_season(board: Path) -> None:
    path = ranked(board)
    new = edit(path, lambda content: put(content, {"name": "Tuned"}), reseal=True)
    shutil.move(boards.ranking(path), boards.ranking(new))
    assert found(board) == {"season"}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"source": " "}, "one line that says something"),
        ({"source": "a coin\nof mine"}, "one line that says something"),
        ({"frozen": ["b" * 12, "a" * 12]}, "every id once, in order"),
        ({"frozen": ["a" * 12] * 2}, "every id once, in order"),
        ({"signature": "abc"}, "signature"),
        ({"value": "ab" * 31}, "value"),
        ({"name": "../2026"}, "name"),
    ],
)
def test_a_season_is_one_line_and_each_entry_once(wrong: dict[str, Any], text: str) -> None:
    fields: dict[str, Any] = {"name": "2026", "source": "a coin", "frozen": ["a" * 12, "b" * 12]}
    assert list(Season.model_validate(fields).frozen) == fields["frozen"]
    with pytest.raises(ValidationError, match=text):
        Season.model_validate(fields | wrong)


def test_seeds_and_orders_are_those_that_anyone_draws_with_sha256sum() -> None:
    season = Season(name="2026", source="a coin", frozen=(), value=VALUE)
    # SHA-256 of "5eed...5eed seed tiny 0" begins with 5f82cf33e69c32b0, of 1 with c083bea7eb098b8a,
    # of which the highest bit is left out.
    assert season.seeds("tiny", 2) == [0x5F82CF33E69C32B0, 0x4083BEA7EB098B8A]
    # of "5eed...5eed cell 0123456789ab alie" with 9d37, of ipm with beb5, of mimic with 99df
    assert season.order("0123456789ab", ["alie", "ipm", "mimic"]) == ["mimic", "alie", "ipm"]


def test_a_season_that_is_not_drawn_or_whose_value_is_not_of_its_source_draws_nothing() -> None:
    fields = {"name": "2026", "source": "drand quicknet round 1000", "frozen": ()}
    season = Season.model_validate(fields)
    for draws in (lambda: season.seeds("tiny", 1), lambda: season.order("a" * 12, ["ipm"])):
        with pytest.raises(ConfigError, match="must have its value before anything is drawn"):
            draws()
    # The signature is that of the round, and the value is not its hash.
    with pytest.raises(ValidationError, match=f"must be the hash of the signature .*{RANDOMNESS}"):
        Season.model_validate(fields | {"value": VALUE, "signature": SIGNATURE})


def test_an_entry_is_of_the_season_that_froze_it_and_of_no_other(board: Path) -> None:
    for name, digit in (("2026", "e"), ("2027", "f")):
        freeze(board, name, "a coin", [digit * 64])
    every = seasons(board)
    assert [season and season.name for season in (of("e" * 12, every), of("f" * 12, every))] == [
        *every
    ]
    assert of("0" * 12, every) is None


def test_a_season_with_a_wrong_field_is_refused_by_its_name(board: Path) -> None:
    freeze(board, "2026", "a coin", [])
    file = board / "seasons" / "2026.toml"
    file.write_text(file.read_text() + 'sponsor = "me"\n')
    for reads in (lambda: read(file), lambda: seasons(board)):
        with pytest.raises(ConfigError, match=r"2026.toml: sponsor: extra inputs"):
            reads()
    assert found(board) == {"season"}


def test_a_season_is_frozen_once_and_drawn_once(board: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be that of a season, got '2026'; freeze one first"):
        draw(board, "2026", VALUE, "")
    freeze(board, "2026", "a coin", ["f" * 64])
    draw(board, "2026", VALUE, "")
    with pytest.raises(ConfigError, match="drawn once, got a second value"):
        draw(board, "2026", "ab" * 32, "")
    with pytest.raises(ConfigError, match="must be that of a new season, got '2026'"):
        freeze(board, "2026", "another coin", [])
    assert seasons(board)["2026"].value == VALUE
    several = freeze(board, "2027", "a coin", [digit * 64 for digit in "ca9b8"])
    assert several.frozen == tuple(digit * 12 for digit in "89abc")
    moved = (board / "seasons" / "2026.toml").rename(tmp_path / "2026.toml")
    (board / "seasons" / "2026.toml").symlink_to(moved)
    with pytest.raises(ConfigError, match="must be a file of the board, got a link"):
        seasons(board)


def test_a_folder_that_is_no_board_has_no_seasons(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="must be a board with rules, got none"):
            freeze(folder, "2026-12", "drand quicknet round 1", [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by", ["", "a" * 81, "two\nlines"])
def test_who_plays_an_entry_again_has_a_name_before_anything_is_played(by: str) -> None:
    with pytest.raises(ConfigError, match=r"^--by"):
        require_name(by)
    require_name("Your lab")


def test_a_replay_that_was_typed_is_refused(board: Path) -> None:
    path = ranked(board)
    replay(path)
    content = json.loads(path.read_text())
    assert content["status"] == "replayed"
    boards.replay(path, 1).unlink()
    assert found(board) == {"records"}


def test_a_replay_of_one_seed_proves_nothing_and_contests_nothing(board: Path) -> None:
    path = ranked(board)
    mine = claim(path)
    part = required(mine.entry, mine.season)[1]
    before = mine.of(part)
    far = [played("sign-flip", r.scenario.seed, 0.3) for r in before[:1]]
    with pytest.raises(ValueError, match="zip"):
        disagreements([ReplayedCell(part, before, far)], mine.rules)
    one = [ReplayedCell(part, before[:1], far)]
    keep(mine, one, "CI")
    assert found(board) == {"replays"}
    assert any(
        "all of their seeds" in f.text
        for file in check(board, own_rules=True)
        for f in file.findings
    )


def test_a_replay_is_of_the_entrys_system_and_of_where_it_says(board: Path) -> None:
    path = ranked(board)
    replay(path)
    put_ = {"replays__0__processor": "aarch64 Neoverse-N1"}
    edit(path, lambda content: put(content, put_))
    assert found(board) == {"replays"}


def test_a_record_of_a_later_schema_is_refused(board: Path) -> None:
    path = entered(board)
    packed = boards.archive(path)
    text = gzip.decompress(packed.read_bytes()).replace(
        b'"schema_version":4', b'"schema_version":9'
    )
    packed.write_bytes(gzip.compress(text))
    assert found(board) == {"records"}


def test_names_lead_nowhere_and_run_nothing(board: Path) -> None:
    said = SAID.model_dump() | {"name": "<script>alert(1)</script>", "link": "https://x/'>"}
    assert submit(stage([0, 1, 2]), said, board, "closed").entry is None  # the link
    with pytest.raises(ConfigError, match="season name: string should match"):
        freeze(board, "../../etc", "x", [])
    freeze(board, "2026", "x", ["a" * 64])
    (board / "seasons" / "2026.toml").rename(board / "seasons" / "other.toml")
    with pytest.raises(ConfigError, match="named by its season"):
        read(board / "seasons" / "other.toml")
    with pytest.raises(ConfigError, match="named by its season"):
        seasons(board)


def test_an_attack_of_ones_own_pushes_no_mandatory_one_out_of_the_ranking_stage(
    board: Path,
) -> None:
    # It ruins the development seeds, which everybody knows, and would do nothing later.
    own = [played("noise", seed, 0.1) for seed in (0, 1, 2)]
    done = submit([*stage([0, 1, 2]), *own], SAID.model_dump(), board, "closed")
    path = done.write()
    seeds = drawn(board, path)
    ruined = complete(path, stage(seeds, ("none",)) + [played("noise", s, 0.79) for s in seeds])
    assert "ensemble" in {f.rule for f in errors(ruined.findings)}
    assert complete(path, stage(seeds, ("none", "sign-flip"))).entry is not None


def test_the_second_stage_is_of_the_same_code_and_plug_ins(board: Path) -> None:
    path = entered(board)
    seeds = drawn(board, path)
    later = stage(seeds, ("none", "sign-flip"))
    newer = [changed(r, environment__fedbench="9.9+0123456789ab") for r in later]
    assert "one system" in {f.rule for f in errors(complete(path, newer).findings)}
    elsewhere = [changed(r, environment__device="GPU") for r in later]  # all of them
    assert {f.rule for f in errors(complete(path, elsewhere).findings)} == {"device"}
    file = {"module": "mine", "package": "p", "version": "1", "url": "", "sha256": "a" * 64}
    other = [changed(r, sources=[file]) for r in later]
    assert "one system" in {f.rule for f in errors(complete(path, other).findings)}
    first, *others = stage([0, 1, 2])
    two = [changed(others[0], sources=[file | {"sha256": "b" * 64}]), *others[1:]]
    both = submit([changed(first, sources=[file]), *two], SAID.model_dump(), board, "closed")
    assert "one system" in {f.rule for f in errors(both.findings)}


def test_an_entry_without_its_second_stage_has_no_rank_in_the_closed_division(board: Path) -> None:
    path = entered(board)
    drawn(board, path)
    assert replay(path, of=parts(claim(path).entry)).status == "replayed"
    assert standing(board) == ("replayed", False)


def test_of_two_entries_of_one_id_the_one_that_was_frozen_counts(
    board: Path, command: Command
) -> None:
    path = entered(board)
    entry = boards.read(path)
    typed = ("leaderboard", "freeze", "2026", "--source", "x", "--board", board)
    assert command(*typed)[0] == 0
    assert seasons(board)["2026"].digests == (entry.content_digest(),)
    assert found(board) == set()
    (board / "seasons" / "2026.toml").unlink()
    freeze(board, "2026", "x", [entry.id + "0" * 52])  # another content that begins alike
    assert found(board) == {"season"}
    fields = {"name": "2026", "source": "x", "frozen": [entry.id], "digests": ["0" * 64]}
    with pytest.raises(ValidationError, match="digests must be those of the frozen entries"):
        Season.model_validate(fields)


def test_a_second_season_leaves_the_entries_of_the_first_alone(board: Path) -> None:
    path = ranked(board)
    entry = boards.read(path)
    assert freeze(board, "2027", "another coin", [entry.content_digest(), "f" * 64]).frozen == (
        "f" * 12,
    )
    assert found(board) == set()
    twice = board / "seasons" / "2028.toml"
    twice.write_text(tomli_w.dumps({"name": "2028", "source": "x", "frozen": [entry.id]}))
    with pytest.raises(ConfigError, match="frozen in one season"):
        seasons(board)


def test_a_season_of_ones_own_draws_no_seeds_for_an_entry_of_another_one(board: Path) -> None:
    path = entered(board)
    theirs = drawn(board, path)
    fields = {"name": "2025", "source": "my own", "frozen": [boards.read(path).id]}
    mine = board / "seasons" / "2025.toml"
    season = Season.model_validate(fields | {"value": "ab" * 32})
    # What the submitter liked best; of two seasons the first by name would draw the seeds.
    liked = season.seeds("tiny", SEEDS)
    assert liked != theirs
    honest = board / "seasons" / "2026.toml"
    kept = honest.read_bytes()
    honest.unlink()
    mine.write_text(tomli_w.dumps(fields | {"value": "ab" * 32}))
    done = complete(path, stage(liked, ("none", "sign-flip")))
    done.write()
    honest.write_bytes(kept)
    files = {one.path.as_posix(): one for one in check(board, own_rules=True)}
    for name in ("seasons/2025.toml", "seasons/2026.toml"):
        (finding,) = errors(files[name].findings)
        assert (finding.rule, "in one season" in finding.text) == ("season", True)


STEADY = """
from dataclasses import dataclass

from fedbench.api import Defense


@dataclass(frozen=True, kw_only=True)
class Steady(Defense):
    def tolerates(self, n):
        return 0

    def aggregate(self, received, state, view):
        return received.values().mean(dim=0), state
"""


def test_an_entry_is_played_again_by_its_own_code_and_files_only(
    board: Path, install: Install, command: Command
) -> None:
    path = entered(board)  # of code 0.0.1, which is not installed
    before = path.read_bytes()
    code, out, err = command("leaderboard", "reproduce", path, "--by", "CI")
    assert (code, out.count("\n"), err.count("\n")) == (2, 1, 1)
    words = shlex.split(out)  # all cells of its only stage, for the version that can play them
    assert words[words.index("--seeds") + 1] == "0,1,2"
    assert words.count("--attack") == len(ATTACKS)
    assert words[-2:] == ["--out", f"results/again-{boards.read(path).id}"]
    assert "must be played again by its own code, 0.0.1+0123456789ab, got" in err
    assert (path.read_bytes(), len(boards.beside(path))) == (before, 1)
    mine = boards.read(path).model_copy(update={"code": code_version()})
    require_code(mine, [cell(mine, "sign-flip")])
    install(STEADY, {"rule-steady": "Steady"})
    steady = mine.scenario.model_copy(update={"defense": "rule-steady"})
    theirs = mine.model_copy(update={"scenario": steady})
    with pytest.raises(ConfigError, match="by the files that it names, got another outsider"):
        require_code(theirs, [cell(theirs, "sign-flip")])


class NothingStarts(Watcher):
    """A watcher that ends a sweep at its first run."""

    def started(self, cell: Cell, seed: int) -> None:
        pytest.fail(f"a run of {cell} was started")


def test_an_entry_on_other_data_is_refused_before_any_of_it_is_played_again(board: Path) -> None:
    mine = claim(entered(board))  # of made-up data
    entry = mine.entry.model_copy(update={"code": code_version()})
    cells = {part: cell(entry, part.attack) for part in parts(entry)}
    claimed = replace(mine, entry=entry)
    theirs = "on the data of the entry, digits with sha256 .*, got 8cf43c50f882"
    with pytest.raises(ConfigError, match=theirs):
        play_again(claimed, cells, [0], Options(), NothingStarts(), None)


def test_an_entry_is_replayed_by_runs_that_its_own_code_played_elsewhere(
    board: Path, tmp_path: Path, command: Command
) -> None:
    path = ranked(board)
    mine = claim(path)
    needed = required(mine.entry, mine.season)
    store = tmp_path / "again"
    again = ("leaderboard", "reproduce", path, "--by", "CI", "--out", store)
    code, out, err = command(*again)
    assert (code, out.count("\n"), err.count("\n")) == (2, 2, 1)  # a command for each stage
    for part in needed:
        for before in mine.of(part):
            name = part.attack.partition(":")[0]
            run = played(name, before.scenario.seed, ACCURACIES[name])
            changed(run, timing=asdict(timed())).write(store)
    # Those of another version, and of another system, are none of them.
    changed(run, environment__fedbench="9.9+0123456789ab").write(store)
    played("none", 0, server_checks="none").write(store)
    gone = store / run.file_name
    text = gone.read_bytes()
    changed(run, timing=asdict(timed()), data_digest="e" * 64).write(store)
    code, _, err = command(*again)
    assert (code, "on the data of the entry, digits with sha256" in err) == (2, True)
    gone.unlink()
    code, out, err = command(*again)
    assert (code, out.count("\n")) == (2, 1)  # only what is missing
    assert boards.read(path).status == "submitted"
    gone.write_bytes(text)
    code, out, err = command(*again)
    assert (code, err) == (0, "")
    assert (found(board), standing(board)) == (set(), ("replayed", True))
    for record in [*mine.records, *mine.ranking]:
        record.write(store)
    code, _, err = command(*again)
    assert (code, "compared with themselves" in err) == (2, True)


def test_runs_from_elsewhere_do_not_replay_an_entry_with_files_of_other_packages(
    board: Path, tmp_path: Path
) -> None:
    mine = claim(entered(board))
    file = Source(module="mine", package="p", version="1", url="", sha256="a" * 64)
    theirs = replace(mine, entry=mine.entry.model_copy(update={"sources": [file]}))
    with pytest.raises(ConfigError, match="only what plays isolates its files"):
        stored(theirs, parts(theirs.entry), tmp_path)


def test_a_single_run_of_the_entry_among_runs_from_elsewhere_is_refused(
    board: Path, tmp_path: Path
) -> None:
    # One copied seed would pull the mean of the others towards the claim.
    mine = claim(entered(board))
    part = parts(mine.entry)[0]
    own, *others = mine.of(part)
    for record in others:
        changed(record, timing=asdict(timed())).write(tmp_path)
    own.write(tmp_path)
    with pytest.raises(ConfigError, match="would be compared with themselves"):
        stored(mine, [part], tmp_path)
    changed(own, timing=asdict(timed())).write(tmp_path)
    (compared,) = stored(mine, [part], tmp_path)
    assert [r.scenario.seed for r in compared.again] == [r.scenario.seed for r in mine.of(part)]


def test_an_archive_that_could_not_be_read_again_is_not_written(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = entered(board)
    seeds = drawn(board, path)
    before = path.read_bytes()
    done = complete(path, stage(seeds, ("none", "sign-flip")))
    monkeypatch.setattr(boards, "MAX_ARCHIVE_BYTES", 1000)
    with pytest.raises(ConfigError, match="must have at most 0 MiB"):
        done.write()
    assert (path.read_bytes(), len(boards.beside(path))) == (before, 1)


def test_a_replay_made_of_the_entrys_own_records_is_refused(board: Path) -> None:
    path = ranked(board)
    mine = claim(path)
    copies = [ReplayedCell(p, mine.of(p), mine.of(p)) for p in required(mine.entry, mine.season)]
    keep(mine, copies, "CI")
    assert found(board) == {"replays"}


def test_between_canonical_runs_of_the_same_versions_any_difference_contests() -> None:
    claimed = [played("none", seed) for seed in range(5)]
    canonical = [changed(r, environment__canonical=True) for r in claimed]
    part = StagedCell("development", "none")
    rules = Rules.model_validate(RULES)
    # One seed ends elsewhere by less than the rules allow between machines.
    near = [changed(canonical[0], rounds=nearer), *canonical[1:]]
    assert disagreements([ReplayedCell(part, canonical, canonical)], rules) == {part: []}
    assert disagreements([ReplayedCell(part, canonical, near)], rules) == {part: ["accuracy"]}
    assert disagreements([ReplayedCell(part, claimed, near)], rules) == {part: []}
    for version in ("fedbench", "python", "torch", "numpy"):
        elsewhere = [changed(r, **{f"environment__{version}": "9.9"}) for r in near]
        assert disagreements([ReplayedCell(part, canonical, elsewhere)], rules) == {part: []}


def nearer(record: Record) -> list[dict[str, Any]]:
    """Its rounds, the last of which ends a thousandth lower."""
    *others, last = map(asdict, record.rounds)
    return [*others, last | {"accuracy": last["accuracy"] - 0.001}]


def test_the_epsilon_of_an_entry_is_the_largest_of_both_stages(board: Path) -> None:
    entry = boards.read(ranked(board))
    assert entry.ranking is not None
    assert entry.epsilon is None
    cheap, dear = (priced(epsilon) for epsilon in (1.0, 3.0))
    for first, second, most in ((cheap, dear, 3.0), (dear, cheap, 3.0), (cheap, None, None)):
        stage = entry.ranking.model_copy(update={"price": second and price([second])})
        both = entry.model_copy(update={"price": price([first]), "ranking": stage})
        assert both.epsilon == most


def hidden(record: Record) -> Record:
    """The record of a server that took one row in every round, without the flags that say so."""
    rounds = [
        asdict(r) | {"skipped": True, "accepted": 1, "rejected_honest": 4, "malicious": 1}
        for r in record.rounds
    ]
    return changed(record, rounds=rounds, result__skipped_rounds=2)


def crowded(record: Record) -> Record:
    """The record of a server that accepted more rows than there were."""
    return changed(record, rounds=[asdict(r) | {"accepted": 9} for r in record.rounds])


def blaming(record: Record) -> Record:
    """The record of a server that rejected one malicious row more than there were."""
    rounds = [
        asdict(r)
        | {"accepted": len(r.clients) - r.malicious - 1, "rejected_honest": 0}
        | {"rejected_malicious": r.malicious + 1}
        for r in record.rounds
    ]
    return changed(record, rounds=rounds)


def harsh(record: Record) -> Record:
    """The record of a server that rejected one honest row more than there were."""
    rounds = []
    for r in record.rounds:
        honest = len(r.clients) - r.malicious
        counts = {"accepted": r.malicious - 1, "rejected_honest": honest + 1}
        rounds.append(asdict(r) | counts | {"rejected_malicious": 0})
    return changed(record, rounds=rounds)


def sooner(record: Record) -> Record:
    """The record of a run that ended before it began."""
    return changed(record, timing__seconds=-3.0)


def surer(record: Record) -> Record:
    """The record of a client that was right more often than it was asked."""
    spread = {"mean": 0.5, "std": 0.1, "min": 0.4, "max": 1.25}
    return changed(record, result__per_client=spread)


@pytest.mark.parametrize(
    ("forged", "text"),
    [
        (sooner, "seconds of the timing must be >= 0, got -3.0"),
        (blaming, "must accept or reject each of its"),
        (harsh, "must accept or reject each of its"),
        (surer, "max of the clients' accuracies must be in [0, 1], got 1.25"),
        (hidden, "must have the flag '2 of 2 rounds were skipped' by its rounds"),
        (hidden, "must have the flag 'the server rejected 8 of 8 honest messages' by its rounds"),
        (crowded, "round 0 must accept or reject each of its 5 rows once"),
    ],
)
def test_records_that_nothing_can_have_measured_or_hide_a_doubt_are_refused(
    board: Path, forged: Callable[[Record], Record], text: str
) -> None:
    done = submit([forged(r) for r in stage([0, 1, 2])], SAID.model_dump(), board, "closed")
    assert done.entry is None
    assert any(text in finding.text for finding in errors(done.findings))


def test_attacks_that_somebody_adds_make_no_system_cheaper(board: Path) -> None:
    free = [played("noise", seed, 0.9, up=0) for seed in (0, 1, 2)]
    done = submit([*stage([0, 1, 2]), *free], SAID.model_dump(), board, "closed")
    assert done.entry is not None
    assert done.entry.score.uplink_bits == 1.0


@pytest.mark.parametrize("day", ["9999-99-99", "2026-02-30"])
def test_a_day_that_no_calendar_has_is_refused(board: Path, day: str) -> None:
    done = submit(stage([0, 1, 2]), SAID.model_dump() | {"submitted": day}, board, "closed")
    assert {finding.rule for finding in errors(done.findings)} == {"submitted"}


@pytest.mark.slow
def test_a_page_beside_those_that_are_rendered_is_refused_and_so_is_a_link(board: Path) -> None:
    ranked(board)
    render(board, board)
    assert found(board) == set()
    for name in ("winner.html", "entries/fsl-000000000000.html", "entries/notes.HTM", "rules/x.js"):
        (board / name).write_text("<h1>Mallory wins</h1>")
        assert found(board) == {"pages"}
        (board / name).unlink()
    for name in ("seasons", "rules", "entries", "index.html", "leaderboard.csv"):
        away = board.parent / "away"
        (board / name).rename(away)
        (board / name).symlink_to(away)
        assert "path" in found(board)
        (board / name).unlink()
        away.rename(board / name)
    assert found(board) == set()


@pytest.mark.slow
def test_a_name_like_a_script_or_an_address_is_text_in_a_page_that_is_good(board: Path) -> None:
    said = SAID.model_dump() | {"name": "On data: <img src=x onerror=alert(1)> javascript:x"}
    done = submit(stage([0, 1, 2]), said, board, "closed")
    done.write()
    render(board, board)
    assert found(board) == set()


@pytest.mark.slow
def test_a_page_that_was_edited_is_refused(board: Path) -> None:
    ranked(board)
    render(board, board)
    assert found(board) == set()
    index = board / "index.html"
    (page,) = (board / "entries").glob("*.html")
    for path, old, new in (
        (index, "</body>", "<script>alert(1)</script></body>"),
        (index, '<svg class="scatter', '<svg onload="x()" class="scatter'),
        (index, '<svg class="scatter', '<svg class="scatter" style="position:fixed" id="'),
        (index, '<path d="', '<path onclick="x()" d="'),
        (page, '<svg class="curve"', '<svg class="curve"><script/'),
    ):
        rendered = path.read_text()
        assert old in rendered
        path.write_text(rendered.replace(old, new, 1))
        assert found(board) == {"pages"}
        path.write_text(rendered)
    (board / "entries" / "fsl-000000000000.html").write_text(index.read_text())  # of no entry
    assert found(board) == {"pages"}


def test_the_value_and_nothing_in_an_entry_chooses_what_is_replayed(board: Path) -> None:
    path = entered(board)
    entry = boards.read(path)
    freeze(board, "a", "x", [entry.content_digest()])
    freeze(board, "b", "x", ["f" * 64])
    one, other = draw(board, "a", VALUE, ""), draw(board, "b", "0" * 64, "")
    attacks = [f"attack-{i}" for i in range(20)]
    assert one.order(entry.id, attacks) != other.order(entry.id, attacks)
    assert one.order(entry.id, attacks) == one.order(entry.id, attacks[::-1])


@pytest.mark.slow
def test_who_verifies_a_beacon_still_stops_an_endless_recursion() -> None:
    lines = (
        "import sys; from fedbench.leaderboard.beacon import signed; "
        "limit = sys.getrecursionlimit(); assert not signed(1, bytes(48)); "
        "import py_ecc; print(limit, sys.getrecursionlimit())"
    )
    command = [sys.executable, "-c", lines]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == said[1]
