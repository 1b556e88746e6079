"""Rules about the records of an entry: one function per rule, which yields every breach."""

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

FILE = re.compile(r"[a-z0-9][a-z0-9-]*")  # name of a file or a folder
OURS = {"fedbench", "fedbench_attacks", "fedbench_defenses"}
DEALT = ("attack", "seed", "data_seed")  # fields in which the runs of a system differ
WRITTEN = ("dataset", "model", "partition")  # plug-ins that a track fixes
MOST = 1 << 62  # largest count


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
        if not all(0 <= count <= MOST for count in _counted(run)):
            yield f"{run.file_name}: whatever is counted must be in [0, 2**62]"
        elif not 1 <= len(run.rounds) == run.scenario.rounds or run.parameters < 1:
            got = f"{len(run.rounds)} rounds and {run.parameters} parameters"
            yield f"{run.file_name}: must have {run.scenario.rounds} rounds, got {got}"
        else:
            for what, result, expected in _told_twice(run):
                if result != expected:
                    text = f"{what} must be {expected!r} by its rounds, got {result!r}"
                    yield f"{run.file_name}: {text}"


def _written(run: Record) -> Iterator[str]:
    """Yield every text that an entry shows."""
    yield from run.flags
    for part in (run.environment, run.privacy or run.environment):
        yield from (value for _, value in part if isinstance(value, str))


def _counted(run: Record) -> Iterator[int]:
    yield run.parameters
    for r in run.rounds:
        yield from (r.step, r.malicious, len(r.clients) - r.malicious)
        yield from (r.uplink_bits or 0, r.benign_uplink_bits or 0, r.downlink_bits)


def _told_twice(run: Record) -> Iterator[tuple[str, Any, Any]]:
    """Yield what results state and what rounds give: name, result, value by the rounds."""
    steps = range(run.scenario.rounds)
    yield "steps", list(steps), [r.step for r in run.rounds]
    looks = [step for step in steps if is_evaluated(run.scenario, step)]
    yield "looks", looks, [r.step for r in run.rounds if r.accuracy is not None]
    benign = sum(len(r.clients) - r.malicious for r in run.rounds)
    everybody = sum(len(r.clients) for r in run.rounds)
    up = sum(r.benign_uplink_bits or 0 for r in run.rounds) / max(benign, 1) / run.parameters
    down = sum(r.downlink_bits for r in run.rounds) / max(everybody, 1) / run.parameters
    yield "accuracy", run.result.accuracy, run.rounds[-1].accuracy
    yield "uplink bits", run.result.uplink_bits_per_parameter, up
    yield "downlink bits", run.result.downlink_bits_per_parameter, down
    for name, value in from_rounds(run.rounds).items():
        yield name.replace("_", " "), getattr(run.result, name), value
    yield "epsilon", run.result.epsilon, None if run.privacy is None else run.privacy.epsilon


def identity(case: Case) -> Iterator[str]:
    """Require ids that follow from the scenario, if this code played it with its own plug-ins."""
    for runs in case.cells.values():
        current = [r for r in runs if r.environment.fedbench == code_version()]
        try:
            for run, expected in zip(current, _ids(current), strict=False):
                if run.id != expected:
                    yield f"{run.file_name}: must be {expected} by its scenario, got {run.id}"
        except UnknownPluginError:
            continue
        except ConfigError as error:
            yield f"{current[0].file_name}: its scenario cannot be played: {error}"
    ids = [r.id for r in case.records]
    if len(set(ids)) < len(ids):
        yield f"every run must be there once, got {some(i for i in ids if ids.count(i) > 1)} twice"


def _ids(runs: list[Record]) -> list[str]:
    """Return the ids of runs of one cell; none if a plug-in is another package's."""
    if not runs:
        return []
    cell = Cell(runs[0].scenario.model_copy(update={"data_seed": None}))
    plugins = load_plugins(cell.scenario)
    parts = (plugins.protocol, plugins.attack, plugins.mechanism, *plugins.links())
    ours = {type(part).__module__.partition(".")[0] for part in parts} <= OURS
    return [Run(cell, run.scenario.seed).id for run in runs] if ours else []


def one_system(case: Case) -> Iterator[str]:
    """Require runs that differ in attack and seed only, and a server without an oracle."""
    rules = {r.scenario.defense for r in case.records}
    if oracles := sorted(rule for rule in rules if "oracle" in split(rule)[0].split("+")):
        yield f"no server knows who is malicious, got --defense {oracles[0]}"
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
    """Require one code version and one device, since numbers of two are not paired."""
    values = sorted({getattr(r.environment, name) for r in case.records})
    if len(values) > 1:
        what = {"fedbench": "code version"}.get(name, name)
        yield f"all records must be of one {what}, got {some(values)}; play them again with one"


def data(case: Case) -> Iterator[str]:
    """Require the data that the track names, byte for byte."""
    digests = sorted({r.data_digest for r in case.records})
    wanted = digests[:1] if case.race is None else [case.race.data]
    if digests != wanted:
        yield f"all records must be of the data {some(wanted)}, got {some(digests)}"


def seeds(case: Case) -> Iterator[str]:
    """Require enough seeds; in the closed division those of the track."""
    played = sorted({r.scenario.seed for r in case.records})
    listed = ", ".join(map(str, played))
    if len(played) < case.rules.seeds:
        yield f"must be at least {case.rules.seeds} seeds, got {listed}"
    if case.race is not None and played != sorted(case.race.seeds):
        wanted = ", ".join(map(str, case.race.seeds))
        yield f"must be {wanted} in track {case.track}, got {listed}"
    fixed = [r for r in case.records if r.scenario.data_seed not in (None, r.scenario.seed)]
    if fixed:
        got = some(r.scenario.data_seed for r in fixed)
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
    """Require a malicious client in every run under attack, and an attack in every round."""
    for run in case.records:
        open_ = run.scenario.model_copy(update=ALWAYS) == run.scenario
        if not open_ and not is_clean(run.scenario.attack):
            yield f"{run.file_name}: the attack must act in every round, got a window"
    for attack, runs in case.cells.items():
        idle = [r.scenario.seed for r in runs if not any(x.malicious for x in r.rounds)]
        if idle and not is_clean(attack):
            which = case.called(attack)
            yield f"{which} must have malicious clients in every run, got none with seeds {idle}"


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
    wanted = case.rules.scenario(case.race)
    expected = _value(wanted, field)
    got = {_value(r.scenario, field) for r in case.records}
    wrong = sorted(got - {expected}, key=str)
    if wrong:
        yield f"must be {expected!r} in track {case.track}, got {some(wrong)}"


def _value(scenario: Scenario, field: str) -> Any:
    """Return the meaning of a field, whatever way it is written."""
    value = getattr(scenario, field)
    if field in WRITTEN:
        return meaning(field, value)
    return scenario.malicious if field == "declared" and value is None else value


def envelope(case: Case) -> Iterator[str]:
    """Require a clean run that is no broken baseline, and not too good to be true."""
    if case.race is None or not case.clean:
        return
    low, high = case.race.clean.low, case.race.clean.high
    got = mean(case.clean)
    if not low <= got <= high:
        why = "a broken baseline" if got < low else "a leak, or a bug"
        yield f"clean accuracy must be in [{low:g}, {high:g}], got {got:.3f}: {why}"
