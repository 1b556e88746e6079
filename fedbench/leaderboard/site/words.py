"""What a page says of an entry, in words that cannot lie about what they hold."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

from fedbench.core import registry
from fedbench.core.errors import FedbenchError
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard.entry import Entry, Interval, Price
from fedbench.leaderboard.outdated import outdated
from fedbench.leaderboard.rank import Ranking
from fedbench.leaderboard.score import is_clean
from fedbench.results.gather import Played, shortened

# What turns letters around, or moves the cursor: whoever reads a name must see what is in it.
_DECEITFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ANYTHING = "Any task, network and number of rounds: what was run stands with each entry."
_SEEN = {
    "messages": "every message, with its sender",
    "sum": "the sum of a round, and who took part",
    "hidden-sum": "the sum of a round, but not who took part",
    "model": "the models that the server deploys",
}
_ADJACENCY = {
    "replace-one": "all of its data replaced",
    "zero-out": "nothing learned from it",
    "add-remove": "it is not there",
}
_KNOWN = {
    "own": "each malicious client knows its own data and message, and nothing of the others",
    "colluders": "the malicious clients read each other's messages",
    "all": "reads the messages of all clients of the round, the benign ones' included",
}


def plain(value: Any) -> Any:
    r"""The text without what would make it read as another one; anything else as it is.

    >>> plain("a\u202eb")
    'a\ufffdb'
    """
    return _DECEITFUL.sub("\ufffd", value) if type(value) is str else value


def named(entry: Entry) -> str:
    """Its name, or that of its file where the name shows nothing."""
    visible = any(unicodedata.category(letter)[0] in "LNPS" for letter in entry.name)
    return entry.name if visible else entry.file_name.removesuffix(".json")


def percent(share: float) -> str:
    """One decimal, without the sign.

    >>> percent(0.1016), percent(-0.0001)
    ('10.2', '0.0')
    """
    return f"{round(100 * share, 1) + 0.0:.1f}"


def points(share: float) -> str:
    """Percentage points, with a sign.

    >>> points(0.012), points(-0.3)
    ('+1.2', '-30.0')
    """
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def interval(x: Interval) -> str:
    """Both ends, in percent.

    >>> interval(Interval(mean=0.5, low=-0.01, high=0.615))
    '[-1.0, 61.5]'
    """
    return f"[{percent(x.low)}, {percent(x.high)}]"


def spread(x: Interval) -> str:
    """Mean and both ends."""
    return f"{percent(x.mean)} % {interval(x)}"


def bits(x: float) -> str:
    """Two decimals; three below 2, where masks differ; two digits where those would be zeros.

    >>> bits(32.0003), bits(2), bits(0.9982), bits(0.00123)
    ('32.00', '2.00', '0.998', '0.0012')
    """
    if x >= 2:
        return f"{x:.2f}"
    return f"{x:.3f}" if x >= 0.1 or x == 0 else f"{x:.2g}"


def nats(x: float) -> str:
    """An epsilon: two decimals, or three digits where it is large.

    >>> nats(2.5), nats(836501.0)
    ('2.50', '8.37e+05')
    """
    return f"{x:.2f}" if x < 1000 else f"{x:.3g}"


def rank(place: int | None, shared: bool) -> str:
    """With a sign that others have it too.

    >>> rank(3, True), rank(1, False)
    ('=3', '1')
    """
    return "\N{EN DASH}" if place is None else f"{'=' if shared else ''}{place}"


def budget(ranking: Ranking) -> str:
    """What is equal."""
    if ranking.bits is None:
        return "After the last round of each."
    return (
        f"At the last look at the test data within {bits(ranking.bits)} bits per parameter, up + "
        "down, of a client that is in every round: all that the cheapest entry needs. Bits and ε "
        "below, also for the Pareto front, are of the whole run."
    )


def epsilon(entry: Entry) -> str:
    """``n/a`` without a mechanism; ``unknown`` is a mechanism whose price is not finite."""
    if entry.score.epsilon is not None:
        return nats(entry.score.epsilon)
    return "n/a" if entry.price is None else "unknown"


@cache
def brief(scenario: Scenario) -> Scenario:
    """Without what is by default; the same for every entry of a system."""
    return shortened(scenario)


def protocol(entry: Entry) -> str:
    """What clients and server do."""
    return brief(entry.scenario).protocol


def rule(entry: Entry) -> str:
    """The server's rule, ``vote`` where that is what it comes to."""
    return Played(brief(entry.scenario), vote=entry.votes).defense


def mechanism(entry: Entry) -> str:
    """The privacy mechanism; empty where there is none."""
    found = brief(entry.scenario).mechanism
    return "" if found == "none" else found


def system(entry: Entry) -> str:
    """Protocol, mechanism if there is one, and rule."""
    return Played(brief(entry.scenario), vote=entry.votes).system


def resolved(entry: Entry) -> str:
    """The same with every parameter."""
    return f"{entry.protocol} + {entry.mechanism} + {entry.defense}"


def attack(text: str, entry: Entry) -> str:
    """An attack on it without what is by default; the clean run by its name."""
    if is_clean(text):
        return "clean"
    return brief(entry.scenario.model_copy(update={"attack": text})).attack


def family(text: str) -> str:
    """The name of a plug-in without its parameters."""
    return "+".join(link.partition(":")[0] for link in registry.links(text))


def knows(text: str) -> str:
    """What an attack is shown."""
    try:
        needs = registry.load("attack", text).needs()
    except FedbenchError:
        return "not installed where this page was made"
    if is_clean(text):
        return "nobody attacks: the same clients keep to the protocol"
    shown = [_KNOWN.get(needs.tier, needs.tier)]
    shown += ["may query a snapshot of the server's rule"] if needs.defense else []
    shown += ["reads a snapshot of the server's state"] if needs.state else []
    return "; ".join(shown)


def task(scenario: Scenario) -> str:
    """What all entries of a track have in common."""
    return (
        f"{scenario.model} on {scenario.dataset} ({scenario.partition}). {scenario.clients} "
        f"clients, {scenario.per_round} a round, {100 * scenario.malicious:g} % malicious; "
        f"{_many(scenario.rounds, 'round')} of {_many(scenario.epochs, 'local epoch')}, batches "
        f"of {scenario.batch_size}."
    )


def threat(entry: Entry) -> list[str]:
    """The game that was played, one sentence a fact."""
    scenario = entry.scenario
    owned = round(scenario.malicious * scenario.clients)
    declared = scenario.malicious if scenario.declared is None else scenario.declared
    drawn = {
        "fixed": f"exactly {scenario.per_round} of them, all sets alike",
        "poisson": f"each by a coin of its own, {scenario.per_round} of them on average",
    }
    checks = {
        "none": "The server accepts every message that decodes.",
        "finite": "The server rejects messages that do not decode, or that hold NaN or infinity.",
        "range": "The server rejects messages that do not decode, or that no honest client sends.",
    }
    return [
        task(brief(scenario)),
        f"A round draws {drawn[scenario.sampling]}.",
        f"The adversary owns {_many(owned, 'client')}, the same ones for the whole run. No round "
        "is drawn again because many of them are in it.",
        f"The server is prepared for a share of {100 * declared:g} %. It never learns who is "
        "malicious, nor how many.",
        checks[scenario.server_checks],
    ]


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def covers(price: Price) -> list[tuple[str, str]]:
    """What an epsilon is worth: terms and what they are."""
    of = {"client": "all data of one client", "example": "one example of one client"}
    found = "no finite one is known" if price.epsilon is None else nats(price.epsilon)
    said = [
        ("ε", f"{found} (natural logarithms)"),
        ("δ", f"{price.delta:g}"),
        ("whose data", of[price.unit]),
        ("what may differ", f"{price.adjacency}: {_ADJACENCY[price.adjacency]}"),
        ("before whom", f"somebody who sees {_SEEN[price.sees]}"),
        ("who takes part", price.sampler),
        ("bound", price.winner),
        ("note", price.note),
    ]
    return [(term, what) for term, what in said if what]


def doubts(entry: Entry) -> list[tuple[str, list[str]]]:
    """Why it is outdated, if it is; then every flag, once, with the attacks that raised it."""
    found: dict[str, list[str]] = {}
    if reason := outdated(cell.attack for cell in entry.cells):
        found[reason] = []
    for cell in entry.cells:
        for flag in cell.flags:
            found.setdefault(flag, []).append(attack(cell.attack, entry))
    return list(found.items())
