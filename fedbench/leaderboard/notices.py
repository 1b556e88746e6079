"""Reasons to doubt an entry that keeps the rules: they stand beside it."""

from collections.abc import Iterable, Iterator

from fedbench.leaderboard.build import Case
from fedbench.leaderboard.score import is_clean, mean

EASY = 0.95  # clean accuracy above which a data set hardly tells systems apart
WEAKER = (
    "played before the searches of dyn-opt, stat-opt and opt-ipm were mended: at the size of real "
    "updates they stopped early, so the worst case may be lower"
)


def doubts(case: Case) -> Iterator[str]:
    """Yield every flag that the runs raised, with the attacks under which they did."""
    attacks_by_flag: dict[str, dict[str, None]] = {}
    for record in case.records:
        for flag in record.flags:
            attacks_by_flag.setdefault(flag, {})[case.called(record.scenario.attack)] = None
    for flag, attacks in attacks_by_flag.items():
        yield f"{flag}: {'; '.join(attacks)}"


def outdated(attacks: Iterable[str]) -> str:
    """Return why entries that met these attacks are no worst case; empty if nothing is known.

    With the mended searches `dyn-opt` got its parameter ``selected``, and resolved texts write out
    every parameter, so its text tells old searches from new ones, whatever version played them.
    Every ensemble has a `dyn-opt`.

    Args:
        attacks: Texts as records resolve them.

    >>> outdated(["none", "dyn-opt:search=exact,selected=most,start=10.0"])
    ''
    >>> outdated(["none", "dyn-opt:search=exact,start=10.0"])[:35]
    'played before the searches of dyn-o'
    """
    return WEAKER if any(map(_searched_early, attacks)) else ""


def _searched_early(attack: str) -> bool:
    name, _, parameters = attack.partition(":")
    return name == "dyn-opt" and "start=" in parameters and "selected=" not in parameters


def weaker_attacks(case: Case) -> Iterator[str]:
    """Warn of runs whose attacks were searched by code that is known to find weaker ones."""
    if reason := outdated(record.scenario.attack for record in case.records):
        yield f"{reason}; play it again"


def harmless(case: Case) -> Iterator[str]:
    """Warn if no attack lowers the clean accuracy, since the ensemble then says little."""
    attacks = [mean(runs) for attack, runs in case.cells.items() if not is_clean(attack)]
    if case.clean and attacks and min(attacks) >= mean(case.clean):
        yield f"no attack lowers the clean accuracy of {mean(case.clean):.3f}"


def easy(case: Case) -> Iterator[str]:
    """Warn of a task that everybody solves (many papers have only MNIST)."""
    if case.clean and mean(case.clean) > EASY:
        yield f"clean accuracy above {EASY:g}: an easy task hides differences; add a harder one"


def participation(case: Case) -> Iterator[str]:
    """Warn if every client takes part in every round, which is a special case."""
    if any(r.scenario.per_round == r.scenario.clients for r in case.records):
        yield "every client takes part in every round"


def unpriced(case: Case) -> Iterator[str]:
    """Warn of a mechanism without a finite epsilon, which counts as none."""
    unknown = [r for r in case.records if r.privacy is not None and r.privacy.epsilon is None]
    if unknown:
        yield "no finite epsilon is known: it is ranked as if it promised nothing"
