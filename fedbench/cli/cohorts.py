"""Sentences about the malicious rows of a round, for those who plan runs."""

from collections.abc import Iterable

from fedbench.experiment import availability
from fedbench.experiment.cells import Cell
from fedbench.experiment.cohorts import (
    RISK,
    covering,
    declared,
    exact_cohort,
    exceeds,
    in_a_run,
    share,
    sufficient_cohort,
)
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.scenario import Scenario
from fedbench.tables.numbers import counted

SAFE = f"{100 * (1 - RISK):g} %"


def malicious_rows(cells: Iterable[Cell]) -> list[str]:
    """Return what holds of the rounds of some cells: two lines where malicious rows are random.

    Cells that differ in the rule alone share their lines; those without malicious clients have
    none.
    """
    laws: dict[tuple[object, ...], tuple[Scenario, set[int]]] = {}
    for cell in dict.fromkeys(cells):
        scenario = cell.scenario
        if scenario.owned:
            law = (scenario.clients, scenario.owned, scenario.per_round, scenario.rounds)
            key = (*law, scenario.cohorts, scenario.sampling, _drops_out(scenario))
            laws.setdefault(key, (scenario, set()))[1].add(prepared(scenario))
    return [line for scenario, f in laws.values() for line in _lines(scenario, sorted(f))]


def prepared(scenario: Scenario) -> int:
    """Return the number of malicious rows for which the rule is prepared, typed or declared."""
    f = getattr(load_plugins(scenario).defense, "f", None)
    return f if isinstance(f, int) else declared(scenario)


def _lines(scenario: Scenario, assumed: list[int]) -> list[str]:
    """Say how often each number that a rule assumes is exceeded, and what would help."""
    stratified = scenario.cohorts == "stratified"
    about = "about " if scenario.sampling == "poisson" else ""
    parts = [_stratified(scenario)] if stratified else []
    parts += [_excess(scenario, f) for f in assumed]
    if _drops_out(scenario):
        parts.append("all before clients drop out, after which their share may be higher")
    first = (
        f"malicious clients: {scenario.owned} of {scenario.clients}, "
        f"{'stratified ' * stratified}rounds of {about}{scenario.per_round}, "
        f"runs of {counted(scenario.rounds, 'round')}: {'; '.join(parts)}"
    )
    if stratified or all(exceeds(scenario, f) == 0 for f in assumed):
        return [first]
    most = f"in {SAFE} of runs no round has more than {covering(scenario)} of them"
    return [first, most + _help(scenario)]


def _excess(scenario: Scenario, f: int) -> str:
    """Say in how many rounds and runs more than ``f`` rows are malicious."""
    chance = exceeds(scenario, f)
    if chance == 0:
        return f"never more than f = {f}"
    run = in_a_run(chance, scenario.rounds)
    return f"more than f = {f} in {_odds(chance)} of rounds and in {_odds(run)} of runs"


def _help(scenario: Scenario) -> str:
    """Say which cohorts keep malicious rows below half; nothing where their size is random."""
    if scenario.sampling == "poisson" or _drops_out(scenario):
        return ""
    exact = exact_cohort(scenario)
    if exact is None:
        return " (with no --per-round is that less than half of every round)"
    return (
        f" (less than half of every round from --per-round {exact} on, exactly; from "
        f"{sufficient_cohort(scenario)} on by a bound with the relative entropy, as in Allouah et "
        f"al., ICML 2024); --cohorts stratified has {_stratified(scenario)}"
    )


def _drops_out(scenario: Scenario) -> bool:
    """Tell whether clients that were asked may send nothing."""
    return scenario.availability != availability.NONE


def _stratified(scenario: Scenario) -> str:
    """Say how many malicious rows stratified rounds have."""
    least, rest = share(scenario)
    if not rest:
        return f"{least} in every round"
    more = rest / scenario.clients
    return f"{least} in {_odds(1 - more)} of rounds, {least + 1} in {_odds(more)}"


def _odds(chance: float) -> str:
    """Format a chance in percent; 0 and 100 % stand for what is impossible and certain alone.

    >>> _odds(0.3251), _odds(0.99999), _odds(3.2e-5), _odds(0.0), _odds(1.0)
    ('33 %', '> 99.9 %', '0.003 %', '0 %', '100 %')
    """
    if 0.999 < chance < 1:
        return "> 99.9 %"
    if chance >= 0.01:
        return f"{100 * chance:.3g} %" if chance > 0.99 else f"{100 * chance:.2g} %"
    return f"{100 * chance:.1g} %"
