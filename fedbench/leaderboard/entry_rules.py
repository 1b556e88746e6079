"""What the records of an entry must keep to: one function a rule, each says how it is broken."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.core.registry import split
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.evaluation import is_evaluated
from fedbench.experiment.fingerprint import code_version
from fedbench.experiment.measurements import from_rounds
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard.build import Case, meaning
from fedbench.leaderboard.score import is_clean, mean

FILE = re.compile(r"[a-z0-9][a-z0-9-]*")  # what a name of a file or a folder is made of
OURS = {"fedbench", "fedbench_attacks", "fedbench_defenses"}
DEALT = ("attack", "seed", "data_seed")  # fields in which the runs of a system differ
WRITTEN = ("dataset", "model", "partition")  # plug-ins that a track fixes
MOST = 1 << 62  # of any number that is counted


def some(values: Iterable[Any], most: int = 4) -> str:
    """Up to so many different values, for a sentence.

    >>> some([3, 1, 1, 2], most=2)
    '3, 1 and 1 more'
    """
    known = list(dict.fromkeys(map(repr, values)))
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more


def record(case: Case) -> Iterator[str]:
    """Whole, legible, and its results follow from its rounds."""
    for one in case.records:
        for said in _written(one):
            if not said.isprintable():
                yield f"{one.file_name}: every text must be one printable line, got {said!r}"
        if not all(0 <= count <= MOST for count in _counted(one)):
            yield f"{one.file_name}: whatever is counted must be in [0, 2**62]"
        elif not 1 <= len(one.rounds) == one.scenario.rounds or one.parameters < 1:
            got = f"{len(one.rounds)} rounds and {one.parameters} parameters"
            yield f"{one.file_name}: must have {one.scenario.rounds} rounds, got {got}"
        else:
            for what, result, found in _told_twice(one):
                if result != found:
                    yield f"{one.file_name}: {what} must be {found!r} by its rounds, got {result!r}"


def _written(one: Record) -> Iterator[str]:
    """Every text that an entry shows."""
    yield from one.flags
    for part in (one.environment, one.privacy or one.environment):
        yield from (value for _, value in part if isinstance(value, str))


def _counted(one: Record) -> Iterator[int]:
    yield one.parameters
    for r in one.rounds:
        yield from (r.step, r.malicious, len(r.clients) - r.malicious)
        yield from (r.uplink_bits or 0, r.benign_uplink_bits or 0, r.downlink_bits)


def _told_twice(one: Record) -> Iterator[tuple[str, Any, Any]]:
    """What is said of the run as a whole, and again by its rounds."""
    steps = range(one.scenario.rounds)
    yield "steps", list(steps), [r.step for r in one.rounds]
    looks = [step for step in steps if is_evaluated(one.scenario, step)]
    yield "looks", looks, [r.step for r in one.rounds if r.accuracy is not None]
    benign = sum(len(r.clients) - r.malicious for r in one.rounds)
    everybody = sum(len(r.clients) for r in one.rounds)
    up = sum(r.benign_uplink_bits or 0 for r in one.rounds) / max(benign, 1) / one.parameters
    down = sum(r.downlink_bits for r in one.rounds) / max(everybody, 1) / one.parameters
    yield "accuracy", one.result.accuracy, one.rounds[-1].accuracy
    yield "uplink bits", one.result.uplink_bits_per_parameter, up
    yield "downlink bits", one.result.downlink_bits_per_parameter, down
    for name, value in from_rounds(one.rounds).items():
        yield name.replace("_", " "), getattr(one.result, name), value
    yield "epsilon", one.result.epsilon, None if one.privacy is None else one.privacy.epsilon


def identity(case: Case) -> Iterator[str]:
    """Where the code that played is installed and all plug-ins are its own, ids must follow."""
    for runs in case.cells.values():
        known = [r for r in runs if r.environment.fedbench == code_version()]
        try:
            for one, expected in zip(known, _ids(known), strict=False):
                if one.id != expected:
                    yield f"{one.file_name}: must be {expected} by its scenario, got {one.id}"
        except UnknownPluginError:
            continue
        except ConfigError as error:
            yield f"{known[0].file_name}: its scenario cannot be played: {error}"
    ids = [r.id for r in case.records]
    if len(set(ids)) < len(ids):
        yield f"every run must be there once, got {some(i for i in ids if ids.count(i) > 1)} twice"


def _ids(runs: list[Record]) -> list[str]:
    """Of runs of one cell; none if a plug-in is somebody else's, whose code we may not have."""
    if not runs:
        return []
    cell = Cell(runs[0].scenario.model_copy(update={"data_seed": None}))
    plugins = load_plugins(cell.scenario)
    parts = (plugins.protocol, plugins.attack, plugins.mechanism, *plugins.links())
    ours = {type(part).__module__.partition(".")[0] for part in parts} <= OURS
    return [Run(cell, one.scenario.seed).id for one in runs] if ours else []


def one_system(case: Case) -> Iterator[str]:
    """Only attack and seed differ between the runs, and no server is told the truth."""
    rules = {r.scenario.defense for r in case.records}
    if told := sorted(rule for rule in rules if "oracle" in split(rule)[0].split("+")):
        yield f"no server knows who is malicious, got --defense {told[0]}"
    for name in Scenario.model_fields:
        values = {getattr(r.scenario, name) for r in case.records}
        if name not in DEALT and len(values) > 1:
            yield f"all records must be of one {name}, got {some(sorted(values, key=str))}"
    for name in ("vote", "parameters"):
        values = {getattr(r, name) for r in case.records}
        if len(values) > 1:
            yield f"all records must be of one {name}, got {some(sorted(values, key=str))}"
    if len({r.privacy is None for r in case.records}) > 1:
        yield "all records must have a price, or none of them"


def one_environment(name: str, case: Case) -> Iterator[str]:
    """One code version, one device: numbers of two are not paired."""
    values = sorted({getattr(r.environment, name) for r in case.records})
    if len(values) > 1:
        what = {"fedbench": "code version"}.get(name, name)
        yield f"all records must be of one {what}, got {some(values)}; play them again with one"


def data(case: Case) -> Iterator[str]:
    """The data that the track names, byte for byte."""
    digests = sorted({r.data_digest for r in case.records})
    wanted = digests[:1] if case.race is None else [case.race.data]
    if digests != wanted:
        yield f"all records must be of the data {some(wanted)}, got {some(digests)}"


def seeds(case: Case) -> Iterator[str]:
    """Enough of them; in the closed division those of the track."""
    found = sorted({r.scenario.seed for r in case.records})
    said = ", ".join(map(str, found))
    if len(found) < case.rules.seeds:
        yield f"must be at least {case.rules.seeds} seeds, got {said}"
    if case.race is not None and found != sorted(case.race.seeds):
        wanted = ", ".join(map(str, case.race.seeds))
        yield f"must be {wanted} in track {case.track}, got {said}"
    fixed = [r for r in case.records if r.scenario.data_seed not in (None, r.scenario.seed)]
    if fixed:
        got = some(r.scenario.data_seed for r in fixed)
        yield f"every seed must deal the data anew (data_seed as seed), got data_seed {got}"


def paired(case: Case) -> Iterator[str]:
    """Every cell has every seed, once."""
    every = sorted({r.scenario.seed for r in case.records})
    for attack, runs in case.cells.items():
        found = [r.scenario.seed for r in runs]
        if found != every:
            yield f"{case.called(attack)} must have the seeds {every}, got {found}"


def ensemble(case: Case) -> Iterator[str]:
    """Every mandatory attack of the alphabet, and the clean run."""
    if not case.ensemble:
        yield f"version {case.rules.version} must name attacks on {case.alphabet}, got none"
        return
    played = {meaning("attack", attack) for attack in case.cells}
    missing = [typed for full, typed in case.ensemble.items() if full not in played]
    if missing:
        yield (
            f"version {case.rules.version} asks for {', '.join(case.ensemble.values())} on "
            f"{case.alphabet}, got no record of {', '.join(missing)}"
        )
    if sum(is_clean(attack) for attack in case.cells) != 1:
        yield f"must have one clean cell, got the attacks {some(case.cells)}"


ALWAYS = {"attack_from": 0, "attack_until": None, "attack_every": 1}


def attacked(case: Case) -> Iterator[str]:
    """In every run under attack a malicious client took part, and it had no window."""
    for one in case.records:
        open_ = one.scenario.model_copy(update=ALWAYS) == one.scenario
        if not open_ and not is_clean(one.scenario.attack):
            yield f"{one.file_name}: the attack must act in every round, got a window"
    for attack, runs in case.cells.items():
        idle = [r.scenario.seed for r in runs if not any(x.malicious for x in r.rounds)]
        if idle and not is_clean(attack):
            which = case.called(attack)
            yield f"{which} must have malicious clients in every run, got none with seeds {idle}"


def name(case: Case) -> Iterator[str]:
    """The protocol's name makes the name of the file."""
    for protocol in {r.scenario.protocol.partition(":")[0] for r in case.records}:
        if not FILE.fullmatch(protocol):
            yield f"the protocol must be named by a-z, 0-9 and hyphens, got {protocol!r}"


def track(case: Case) -> Iterator[str]:
    """The closed division has named tracks; in the open one it is the data set."""
    if case.division == "closed" and case.race is None:
        known = ", ".join(one.name for one in case.rules.track)
        yield f"must be one of {known} in version {case.rules.version}, got {case.track!r}"
    for dataset in {r.scenario.dataset.partition(":")[0] for r in case.records}:
        if case.division == "open" and case.track != dataset:
            yield f"must be the data set {dataset!r} in the open division, got {case.track!r}"


def fixed(field: str, case: Case) -> Iterator[str]:
    """In the closed division: as the track says, or the default."""
    if case.race is None or field in case.rules.free or field in DEALT:
        return
    wanted = case.rules.scenario(case.race)
    expected, got = _value(wanted, field), {_value(r.scenario, field) for r in case.records}
    wrong = sorted(got - {expected}, key=str)
    if wrong:
        yield f"must be {expected!r} in track {case.track}, got {some(wrong)}"


def _value(scenario: Scenario, field: str) -> Any:
    """What the field means."""
    value = getattr(scenario, field)
    if field in WRITTEN:
        return meaning(field, value)
    return scenario.malicious if field == "declared" and value is None else value


def envelope(case: Case) -> Iterator[str]:
    """The clean run is no broken baseline, and not too good to be true."""
    if case.race is None or not case.clean:
        return
    low, high = case.race.clean.low, case.race.clean.high
    got = mean(case.clean)
    if not low <= got <= high:
        why = "a broken baseline" if got < low else "a leak, or a bug"
        yield f"clean accuracy must be in [{low:g}, {high:g}], got {got:.3f}: {why}"
