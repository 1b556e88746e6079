"""Rules about the records of an entry: one function per rule, which yields every breach.

Last come the rules that keep no entry out: reasons to doubt one, which stand beside it.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from fedbench.api import Traits
from fedbench.core import registry
from fedbench.core.blame import ask
from fedbench.core.errors import ConfigError, FedbenchError, UnknownPluginError
from fedbench.core.registry import split
from fedbench.experiment import availability, cohorts
from fedbench.experiment.availability import Trace
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.evaluation import is_evaluated
from fedbench.experiment.measurements import MEASURED, from_rounds, rejected_most, skipped
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario, code_version
from fedbench.leaderboard.build import Case, evaluated_accuracies, is_clean, mean, meaning

Severity = Literal["error", "warning"]

FILE = re.compile(r"[a-z0-9][a-z0-9-]*")  # name of a file or a folder
DEALT = ("attack", "seed", "data_seed")  # fields in which the runs of a system differ
WRITTEN = ("dataset", "model", "partition")  # plug-ins that a track fixes
SHARES = {measurement.name for measurement in MEASURED if measurement.kind == "share"}
ALWAYS = {"attack_from": 0, "attack_until": None, "attack_every": 1}
MAX_COUNT = 1 << 62
EASY_ACCURACY = 0.95  # clean accuracy above which a data set hardly tells systems apart
MAX_CLIMB = 0.01  # clean accuracy that a learned system may still gain in a third of a run
WEAKER = (
    "played before the searches of dyn-opt, stat-opt and opt-ipm were mended: at the size of real "
    "updates they stopped early, so the worst case may be lower"
)


def some(values: Iterable[Any], most: int = 4) -> str:
    """List up to ``most`` different values in a sentence.

    >>> some([3, 1, 1, 2], most=2)
    '3, 1 and 1 more'
    """
    texts = list(dict.fromkeys(map(repr, values)))
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def record(case: Case) -> Iterator[str]:
    """Require records that are whole and legible, with results that follow from their rounds."""
    for run in case.records:
        for text in _written(run):
            if not text.isprintable():
                yield f"{run.file_name}: every text must be one printable line, got {text!r}"
        if isinstance(availability.parse(run.scenario.availability), Trace):
            yield f"{run.file_name}: must need no file of its author's, got --availability trace"
        if not all(0 <= count <= MAX_COUNT for count in _counted(run)):
            yield f"{run.file_name}: whatever is counted must be in [0, 2**62]"
        elif not 1 <= len(run.rounds) == run.scenario.rounds or run.parameters < 1:
            got = f"{len(run.rounds)} rounds and {run.parameters} parameters"
            yield f"{run.file_name}: must have {run.scenario.rounds} rounds, got {got}"
        else:
            for text in (*_impossible(run), *_contradicted(run)):
                yield f"{run.file_name}: {text}"
            for number, result, expected in _told_twice(run):
                if result != expected:
                    text = f"{number} must be {expected!r} by its rounds, got {result!r}"
                    yield f"{run.file_name}: {text}"


def _written(run: Record) -> Iterator[str]:
    """Yield every text that an entry shows."""
    yield from run.flags
    for part in (run.environment, run.privacy or run.environment, *run.sources):
        yield from (value for _, value in part if isinstance(value, str))


def _counted(run: Record) -> Iterator[int]:
    yield run.parameters
    for r in run.rounds:
        yield from (r.step, r.malicious, len(r.clients) - r.malicious, r.dropped)
        yield from (r.accepted, r.rejected_honest, r.rejected_malicious)
        yield from (r.uplink_bits or 0, r.benign_uplink_bits or 0, r.downlink_bits)


def _impossible(run: Record) -> Iterator[str]:
    """Yield the numbers that nothing can measure: shares outside [0, 1], and others below 0."""
    parts = {f"round {r.step}": vars(r) for r in run.rounds}
    parts |= {"result": vars(run.result), "timing": vars(run.timing)}
    if run.result.per_client is not None:
        parts["clients' accuracies"] = vars(run.result.per_client)
    for part, numbers in parts.items():
        for name, value in numbers.items():
            if not isinstance(value, int | float):
                continue
            share = name in SHARES or part == "clients' accuracies"
            if not 0 <= value <= (1 if share else math.inf):
                limits = "in [0, 1]" if share else ">= 0"
                yield f"{name.replace('_', ' ')} of the {part} must be {limits}, got {value!r}"


def _contradicted(run: Record) -> Iterator[str]:
    """Yield rounds whose rows do not add up, and doubts that rounds raise without a flag."""
    for r in run.rounds:
        honest = len(r.clients) - r.malicious
        rows = r.accepted + r.rejected_honest + r.rejected_malicious
        rejected = r.rejected_honest <= honest and r.rejected_malicious <= r.malicious
        if rows != len(r.clients) or not rejected:
            yield f"round {r.step} must accept or reject each of its {len(r.clients)} rows once"
            break
    for flag in (*rejected_most(run.rounds), *skipped(run.rounds)):
        if flag not in run.flags:
            yield f"must have the flag {flag!r} by its rounds, got none"


def _told_twice(run: Record) -> Iterator[tuple[str, Any, Any]]:
    """Yield what results state and what rounds give: name, result, value by the rounds."""
    steps = range(run.scenario.rounds)
    yield "steps", list(steps), [r.step for r in run.rounds]
    looks = [step for step in steps if is_evaluated(run.scenario, step)]
    yield "looks", looks, [r.step for r in run.rounds if r.accuracy is not None]
    benign = sum(len(r.clients) - r.malicious for r in run.rounds)
    asked = sum(r.asked for r in run.rounds)
    up = sum(r.benign_uplink_bits or 0 for r in run.rounds)
    down = sum(r.downlink_bits for r in run.rounds) / max(asked, 1) / run.parameters
    yield "accuracy", run.result.accuracy, run.rounds[-1].accuracy
    sent = up / benign / run.parameters if benign else None
    yield "uplink bits", run.result.uplink_bits_per_parameter, sent
    yield "downlink bits", run.result.downlink_bits_per_parameter, down
    for name, value in from_rounds(run.rounds).items():
        yield name.replace("_", " "), getattr(run.result, name), value
    yield "epsilon", run.result.epsilon, None if run.privacy is None else run.privacy.epsilon


def identity(case: Case) -> Iterator[str]:
    """Require ids that follow from scenario, code and the plug-ins' sources, whoever played it."""
    for run in case.records:
        if run.id != run.identified():
            yield f"{run.file_name}: must be {run.identified()} by its content, got {run.id}"
    ids = [r.id for r in case.records]
    if len(set(ids)) < len(ids):
        yield f"every run must be there once, got {some(i for i in ids if ids.count(i) > 1)} twice"
    for attack in case.cells:
        yield from _playable(case, attack)


def cohort(case: Case) -> Iterator[str]:
    """Require the clients of every round that follow from the seed, malicious or dropped out."""
    rounds_of: dict[Scenario, list[tuple[list[int], int, int]]] = {}  # the same under every attack
    for run in case.records:
        played = run.scenario.model_copy(update={"attack": "none"})
        if played not in rounds_of:
            rounds_of[played] = list(cohorts.rounds(played))
        for r, drawn in zip(run.rounds, rounds_of[played], strict=False):
            if (r.clients, r.malicious, r.dropped) != drawn:
                _, malicious, dropped = drawn
                yield (
                    f"{run.file_name}: round {r.step} must have the clients that seed "
                    f"{run.scenario.seed} draws, {malicious} of them malicious and {dropped} more "
                    "dropped out; was it played with another seed, or by code with other draws?"
                )
                break


def _playable(case: Case, attack: str) -> Iterator[str]:
    """Require a scenario that can be played and is written out, if its plug-ins are installed."""
    scenario = case.cells[attack][0].scenario
    try:
        written = resolve(scenario).scenario
    except UnknownPluginError:
        return
    except ConfigError as error:
        yield f"{case.called(attack)}: its scenario cannot be played: {error}"
        return
    current = case.cells[attack][0].environment.fedbench == code_version()
    if current and written != scenario:
        yield f"{case.called(attack)}: its scenario must have every default written out"


def one_system(case: Case) -> Iterator[str]:
    """Require runs that differ in attack and seed only, and a server without an oracle."""
    for defense in sorted({r.scenario.defense for r in case.records}):
        if knows_the_truth(defense):
            yield f"no server knows who is malicious, got --defense {defense}"
    hashes: dict[str, set[str]] = {}
    played = [source for r in case.records for source in r.sources]
    for module in sorted({source.module for source in played if not source.package}):
        yield f"every plug-in must be one that a package installs, got one of {module or 'nobody'}"
    for source in played:
        hashes.setdefault(source.module, set()).add(source.sha256)
    for module, several in hashes.items():
        if len(several) > 1:
            yield f"all records must be of one file {module}, got {len(several)} versions of it"
    by_field = {n: [getattr(r.scenario, n) for r in case.records] for n in Scenario.model_fields}
    by_field |= {n: [getattr(r, n) for r in case.records] for n in ("vote", "parameters")}
    for name, values in by_field.items():
        if name not in DEALT and len(set(values)) > 1:
            yield f"all records must be of one {name}, got {some(sorted(values, key=str))}"
    if len({r.privacy is None for r in case.records}) > 1:
        yield "all records must have a price, or none of them"


def knows_the_truth(defense: str) -> bool:
    """Tell if a rule is an oracle: by its name, or by what it declares where it is installed."""
    if "oracle" in split(defense)[0].split("+"):
        return True
    with suppress(FedbenchError):
        return bool(ask(registry.load("defense", defense), "traits", Traits).oracle)
    return False


def one_environment(name: str, case: Case) -> Iterator[str]:
    """Require one code version and one device, since numbers of two are not paired."""
    values = sorted({getattr(r.environment, name) for r in case.records})
    if len(values) > 1:
        kind = "code version" if name == "fedbench" else name
        yield f"all records must be of one {kind}, got {some(values)}; play them again with one"


def data(case: Case) -> Iterator[str]:
    """Require the data that the track names, byte for byte, and test data of the clients' own."""
    digests = sorted({r.data_digest for r in case.records})
    wanted = digests[:1] if case.race is None else [case.race.data]
    if digests != wanted:
        yield f"all records must be of the data {some(wanted)}, got {some(digests)}"
    if any(r.scenario.split == "published" for r in case.records):
        yield "accuracy must be that of the clients' own test data, got --split published"


def seeds(case: Case) -> Iterator[str]:
    """Require enough seeds: in the closed division those of the track, in the open one the first.

    Who could choose them would choose the best, or ones that no other entry can be compared on.
    """
    scenarios = [r.scenario for r in case.records]
    played = sorted({scenario.seed for scenario in scenarios})
    listed = ", ".join(map(str, played))
    if len(played) < case.rules.seeds:
        yield f"must be at least {case.rules.seeds} seeds, got {listed}"
    if case.demanded is not None and played != sorted(case.demanded):
        wanted = ", ".join(map(str, case.demanded))
        yield f"must be {wanted} in track {case.track}, got {listed}"
    if case.demanded is None and played != list(range(len(played))):
        yield f"must be 0 to {len(played) - 1} in the open division, got {listed}"
    if dealt := [s.data_seed for s in scenarios if s.data_seed not in (None, s.seed)]:
        got = some(dealt)
        yield f"every seed must deal the data anew (data_seed as seed), got data_seed {got}"


def paired(case: Case) -> Iterator[str]:
    """Require every seed once in every cell."""
    every = sorted({r.scenario.seed for r in case.records})
    for attack, runs in case.cells.items():
        played = [r.scenario.seed for r in runs]
        if played != every:
            yield f"{case.called(attack)} must have the seeds {every}, got {played}"


def ensemble(case: Case) -> Iterator[str]:
    """Require every mandatory attack of the alphabet, and the clean run."""
    if not case.ensemble:
        yield f"version {case.rules.version} must name attacks on {case.alphabet}, got none"
        return
    played = {meaning("attack", attack) for attack in case.cells}
    if missing := [typed for full, typed in case.ensemble.items() if full not in played]:
        yield (
            f"version {case.rules.version} asks for {', '.join(case.ensemble.values())} on "
            f"{case.alphabet}, got no record of {', '.join(missing)}"
        )
    if case.drawn is not None and (more := sorted(played - set(case.ensemble))):
        yield f"the ranking stage has the attacks that were worst, got {some(more)} as well"
    if sum(is_clean(attack) for attack in case.cells) != 1:
        yield f"must have one clean cell, got the attacks {some(case.cells)}"


def attacked(case: Case) -> Iterator[str]:
    """Require a malicious client in every run under attack, and an attack in every round."""
    for run in case.records:
        open_ = run.scenario.model_copy(update=ALWAYS) == run.scenario
        if not open_ and not is_clean(run.scenario.attack):
            yield f"{run.file_name}: the attack must act in every round, got a window"
    for attack, runs in case.cells.items():
        idle = [r.scenario.seed for r in runs if not any(x.malicious for x in r.rounds)]
        if idle and not is_clean(attack):
            called = case.called(attack)
            yield f"{called} must have malicious clients in every run, got none with seeds {idle}"


def name(case: Case) -> Iterator[str]:
    """Require a protocol whose name can be part of the name of a file."""
    for protocol in {r.scenario.protocol.partition(":")[0] for r in case.records}:
        if not FILE.fullmatch(protocol):
            yield f"the protocol must be named by a-z, 0-9 and hyphens, got {protocol!r}"


def track(case: Case) -> Iterator[str]:
    """Require a named track in the closed division, and the data set in the open one."""
    if case.division == "closed" and case.race is None:
        names = ", ".join(track.name for track in case.rules.track)
        yield f"must be one of {names} in version {case.rules.version}, got {case.track!r}"
    for dataset in {r.scenario.dataset.partition(":")[0] for r in case.records}:
        if case.division == "open" and case.track != dataset:
            yield f"must be the data set {dataset!r} in the open division, got {case.track!r}"


def fixed(field: str, case: Case) -> Iterator[str]:
    """Require of a field in the closed division what the track says, or the default."""
    if case.race is None or field in case.rules.free or field in DEALT:
        return
    expected = _value(case.rules.scenario(case.race), field)
    got = {_value(r.scenario, field) for r in case.records}
    if wrong := sorted(got - {expected}, key=str):
        yield f"must be {expected!r} in track {case.track}, got {some(wrong)}"


def _value(scenario: Scenario, field: str) -> Any:
    """Return a field's value in its resolved spelling."""
    value = getattr(scenario, field)
    if field in WRITTEN:
        return meaning(field, value)
    return scenario.malicious if field == "declared" and value is None else value


def envelope(case: Case) -> Iterator[str]:
    """Require a clean run that is no broken baseline, and not too good to be true."""
    if case.race is None or not case.clean:
        return
    low, high = case.race.clean.low, case.race.clean.high
    got = mean(case.clean, case.rules.looks)
    if not low <= got <= high:
        why = "a broken baseline" if got < low else "a leak, or a bug"
        yield f"clean accuracy must be in [{low:g}, {high:g}], got {got:.3f}: {why}"


def doubts(case: Case) -> Iterator[str]:
    """Yield every flag that the runs raised, with the attacks under which they did."""
    attacks_by_flag: dict[str, dict[str, None]] = {}
    for record in case.records:
        for flag in record.flags:
            attacks_by_flag.setdefault(flag, {})[case.called(record.scenario.attack)] = None
    for flag, attacks in attacks_by_flag.items():
        yield f"{flag}: {'; '.join(attacks)}"


def outdated(attacks: Iterable[str]) -> str:
    """Return why entries that met these attacks are no worst case, or an empty text.

    With the mended searches `dyn-opt`, of which every ensemble of then has one, got its parameter
    ``selected``, so its text tells old searches from new ones, whatever version played them.

    >>> outdated(["none", "dyn-opt:search=exact,selected=most,start=10.0"])
    ''
    >>> outdated(["none", "dyn-opt:search=exact,start=10.0"])[:35]
    'played before the searches of dyn-o'
    """
    searches = [text for text in attacks if text.startswith("dyn-opt:") and "start=" in text]
    return WEAKER if any("selected=" not in text for text in searches) else ""


def weaker_attacks(case: Case) -> Iterator[str]:
    """Warn of runs whose attacks were searched by code that is known to find weaker ones."""
    if reason := outdated(case.cells):
        yield f"{reason}; play it again"


def harmless(case: Case) -> Iterator[str]:
    """Warn if no attack lowers the clean accuracy, since the ensemble then says little."""
    looks = case.rules.looks
    attacks = [mean(runs, looks) for attack, runs in case.cells.items() if not is_clean(attack)]
    if case.clean and attacks and min(attacks) >= mean(case.clean, looks):
        yield f"no attack lowers the clean accuracy of {mean(case.clean, looks):.3f}"


def easy(case: Case) -> Iterator[str]:
    """Warn of a task that everybody solves (many papers have only MNIST)."""
    if case.clean and mean(case.clean, case.rules.looks) > EASY_ACCURACY:
        yield (
            f"clean accuracy above {EASY_ACCURACY:g}: an easy task hides differences; "
            "add a harder one"
        )


def climbing(case: Case) -> Iterator[str]:
    """Warn if the clean accuracy still rises: the entry then says how fast it learns.

    Compared are means of as many evaluations as the score is the mean of, a third of all apart:
    single ones may swing by more than they rise.
    """
    gains = []
    for record in case.clean:
        looks = evaluated_accuracies(record)
        if third := len(looks) // 3:
            before = looks[:-third][-case.rules.looks :]
            gains.append(statistics.fmean(looks[-case.rules.looks :]) - statistics.fmean(before))
    if gains and statistics.fmean(gains) > MAX_CLIMB:
        gain = 100 * statistics.fmean(gains)
        yield f"clean accuracy gained {gain:.1f} points over the last third of the evaluations"


def participation(case: Case) -> Iterator[str]:
    """Warn if every client takes part in every round, which is a special case."""
    if any(r.scenario.per_round == r.scenario.clients for r in case.records):
        yield "every client takes part in every round"


def unpriced(case: Case) -> Iterator[str]:
    """Warn of a mechanism without a finite epsilon, which counts as none."""
    if any(r.privacy is not None and r.privacy.epsilon is None for r in case.records):
        yield "no finite epsilon is known: it is ranked as if it promised nothing"


@dataclass(frozen=True)
class RuleFinding:
    """A rule that is broken, or a reason to doubt: what it asks, and what we got."""

    rule: str
    severity: Severity  # an ``error`` keeps an entry out
    text: str


Rule = Callable[[Case], Iterable[str]]  # yields a text for every breach
# Preconditions of the other rules.
SOUND: dict[str, Rule] = {"record": record, "one system": one_system}
RULES: dict[str, Rule] = {
    "code": partial(one_environment, "fedbench"),
    "device": partial(one_environment, "device"),
    "id": identity,
    "cohort": cohort,
    "name": name,
    "track": track,
    "data": data,
    "seeds": seeds,
    "paired": paired,
    "ensemble": ensemble,
    "attacked": attacked,
    **{f"fixed: {field}": partial(fixed, field) for field in Scenario.model_fields},
    "envelope": envelope,
}
NOTICES: dict[str, Rule] = {
    "doubts": doubts,
    "outdated": weaker_attacks,
    "harmless": harmless,
    "easy": easy,
    "climbing": climbing,
    "participation": participation,
    "unpriced": unpriced,
}


def judge(case: Case) -> list[RuleFinding]:
    """Return the findings of all rules in their order; if records are not sound, only those."""
    if unsound := findings(SOUND, "error", case):
        return unsound
    return findings(RULES, "error", case) + findings(NOTICES, "warning", case)


def findings(rules: dict[str, Rule], severity: Severity, case: Case) -> list[RuleFinding]:
    """Return what some rules find."""
    return [RuleFinding(name, severity, text) for name in rules for text in rules[name](case)]


def errors(findings: Iterable[RuleFinding]) -> list[RuleFinding]:
    """Return the findings that keep an entry out."""
    return [finding for finding in findings if finding.severity == "error"]
