"""Texts of the pages: names, numbers and sentences about an entry."""

import math
import re
import unicodedata
from functools import cache
from typing import Any

from fedbench.api import Knowledge
from fedbench.core import registry
from fedbench.core.errors import FedbenchError
from fedbench.experiment.scenario import Scenario
from fedbench.leaderboard.build import is_clean
from fedbench.leaderboard.entry import Entry, Interval, Price
from fedbench.leaderboard.entry_rules import outdated
from fedbench.leaderboard.rank import Ranking
from fedbench.leaderboard.rules import Rules
from fedbench.results.gather import Played, shortened
from fedbench.tables.numbers import NA, bits, counted, nats, percent

# Control characters and marks that turn letters around, with which a name could pass for another.
_DECEITFUL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
DASH = "\N{EN DASH}"
brief = cache(shortened)
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
    r"""Return a text without characters that disguise it; return any other value as it is.

    >>> plain("a\u202eb")
    'a\ufffdb'
    """
    return _DECEITFUL.sub("\ufffd", value) if type(value) is str else value


def named(entry: Entry) -> str:
    """Return the name of an entry, or that of its file if the name has no visible letter."""
    visible = any(unicodedata.category(letter)[0] in "LNPS" for letter in entry.name)
    return entry.name if visible else entry.file_name.removesuffix(".json")


def interval(x: Interval) -> str:
    """Format both ends of an interval, in percent.

    >>> interval(Interval(mean=0.5, low=0.01, high=0.615, values=[]))
    '[1.0, 61.5]'
    """
    return f"[{percent(x.low)}, {percent(x.high)}]"


def bar(x: Interval) -> Interval:
    """Return the ends and the mean of an interval in percent, as numbers of a drawing."""
    ends = {name: round(100 * getattr(x, name), 2) for name in ("mean", "low", "high")}
    return Interval(**ends, values=[])


def spread(x: Interval) -> str:
    """Format the mean and both ends of an interval, in percent."""
    return f"{percent(x.mean)} % {interval(x)}"


def budget(ranking: Ranking) -> str:
    """Say what is equal in a view: the rounds, or the bits."""
    if ranking.bits is None:
        return "After the last round of each."
    return (
        f"At the last evaluation within {bits(ranking.bits)} bits per parameter, up + "
        "down, of a client that is in every round: all that the cheapest entry needs. Bits and ε "
        "below, also for the Pareto front, are of the whole run."
    )


def resolution(ranking: Ranking) -> str:
    """Say which differences the seeds of a ranking show; empty for a single entry."""
    if ranking.least_difference is None:
        return ""
    if math.isinf(ranking.least_difference):
        why = "There are too many systems for so few seeds: no difference is sure"
        return f"{why}, so none has a rank."
    return (
        f"A true difference of {100 * ranking.least_difference:.1f} points is sure in four of five "
        "cases, between systems that vary over the seeds as the middle pair does; others need more "
        "or less."
    )


def epsilon(entry: Entry) -> str:
    """Format the epsilon: ``n/a`` without a mechanism, ``unknown`` if it is not finite."""
    if entry.score.epsilon is not None:
        return nats(entry.score.epsilon)
    return NA if entry.price is None else "unknown"


def rule(entry: Entry) -> str:
    """Return the defense of an entry; ``vote`` if its protocol counts votes by itself."""
    return Played(brief(entry.scenario), vote=entry.votes).defense


def mechanism(entry: Entry) -> str:
    """Return the privacy mechanism of an entry; empty if there is none."""
    text = brief(entry.scenario).mechanism
    return "" if text == "none" else text


def system(entry: Entry) -> str:
    """Return protocol, mechanism if there is one, and defense of an entry."""
    return Played(brief(entry.scenario), vote=entry.votes).system


def attack(text: str, entry: Entry) -> str:
    """Return an attack without the parameters that have their defaults; ``clean`` for none."""
    if is_clean(text):
        return "clean"
    return str(brief(entry.scenario.model_copy(update={"attack": text})).attack)


def family(text: str) -> str:
    """Return the name of a plug-in without its parameters."""
    return "+".join(link.partition(":")[0] for link in registry.links(text))


def committed(rules: Rules) -> str:
    """Say to how many held-out attacks the newest rules commit, and when they are published."""
    version = rules.version
    count = len(rules.held_out.digests)
    if not count:
        return (
            f"Version {version} commits to none: how far a worst case generalises to attacks that "
            "nobody here has seen is not measured for its entries."
        )
    published = "it is published" if count == 1 else "they are published"
    return (
        f"Version {version} commits to {counted(count, 'attack')} by SHA-256; {published} with "
        f"version {version + 1}, and played on the entries of version {version} and before."
    )


def knows(text: str) -> str:
    """Say what an attack observes."""
    try:
        needs = registry.load("attack", text).needs()
    except FedbenchError:
        return "not installed where this page was made"
    if is_clean(text):
        return "nobody attacks: the same clients keep to the protocol"
    return _in_words(needs)


def _in_words(shown: Knowledge) -> str:
    parts = [_KNOWN.get(shown.tier, shown.tier)]
    parts += ["may query a snapshot of the server's rule"] if shown.defense else []
    parts += ["reads a snapshot of the server's state"] if shown.state else []
    return "; ".join(parts)


def task(scenario: Scenario) -> str:
    """Say in a sentence or two what all entries of a track have in common."""
    return (
        f"{scenario.model} on {scenario.dataset} "
        f"({', '.join([scenario.partition, *scenario.remarks])}). {scenario.clients} "
        f"clients, {scenario.per_round} a round, {100 * scenario.malicious:g} % malicious; "
        f"{counted(scenario.rounds, 'round')} of {counted(scenario.epochs, 'local epoch')}, "
        f"batches of {scenario.batch_size}."
    )


def threat(entry: Entry) -> list[str]:
    """Return the threat model of an entry, one sentence per fact."""
    scenario = entry.scenario
    declared = scenario.malicious if scenario.declared is None else scenario.declared
    drawn = {
        "random": f"exactly {scenario.per_round} of them, all sets alike",
        "stratified": f"exactly {scenario.per_round} of them, with the malicious clients' share of "
        "all clients, rounded down or up by a coin",
        "poisson": f"each by a coin of its own, {scenario.per_round} of them on average",
    }
    law = scenario.cohorts if scenario.sampling == "fixed" else scenario.sampling
    most = []
    if scenario.knowledge is not None:
        shown = _in_words(Knowledge.parse(scenario.knowledge))
        most.append(f"What an attack is shown at most: {shown}.")
    checks = {
        "none": "The server accepts every message that decodes.",
        "finite": "The server rejects messages that do not decode, or that hold NaN or infinity.",
        "range": "The server rejects messages that do not decode, or that no honest client sends.",
    }
    return [
        task(brief(scenario)),
        f"A round draws {drawn[law]}.",
        f"The adversary owns {counted(scenario.owned, 'client')}, the same ones for the whole run. "
        "No round is drawn again because many of them are in it.",
        *most,
        f"The server is prepared for a share of {100 * declared:g} %. It never learns who is "
        "malicious, nor how many.",
        checks[scenario.server_checks],
    ]


def covers(price: Price) -> list[tuple[str, str]]:
    """Return the terms of a guarantee and what they mean."""
    data = {"client": "all data of one client", "example": "one example of one client"}
    epsilon = "no finite one is known" if price.epsilon is None else nats(price.epsilon)
    terms = [
        ("ε", f"{epsilon} (natural logarithms)"),
        ("δ", f"{price.delta:g}"),
        ("whose data", data[price.unit]),
        ("what may differ", f"{price.adjacency}: {_ADJACENCY[price.adjacency]}"),
        ("before whom", f"somebody who sees {_SEEN[price.sees]}"),
        ("who takes part", price.sampler),
        ("bound", price.winner),
        ("note", price.note),
    ]
    return [(term, meaning) for term, meaning in terms if meaning]


def doubts(entry: Entry) -> list[tuple[str, list[str]]]:
    """Return why an entry is outdated, if it is, and every flag with the attacks that raised it."""
    attacks: dict[str, list[str]] = {}
    if reason := outdated(cell.attack for cell in entry.cells):
        attacks[reason] = []
    for cell in entry.cells:
        for flag in cell.flags:
            attacks.setdefault(flag, []).append(attack(cell.attack, entry))
    return list(attacks.items())


def is_web(address: str) -> bool:
    """Tell whether an address may be a link: that of a package is whatever its author wrote.

    >>> is_web("https://example.org/code"), is_web("javascript:alert(1)"), is_web("https://a b")
    (True, False, False)
    """
    return re.fullmatch(r"https?://[^\s\"'<>]+", address) is not None
