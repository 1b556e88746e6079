"""What the catalogue says of a rule: what it needs, what it survives, what it keeps."""

from __future__ import annotations

from typing import Any

from fedbench.api import Defense, Prefilter, Traits
from fedbench.core import registry
from fedbench.core.blame import ask

NEEDS = {
    "root": "root data",
    "history": "earlier rounds",
    "identities": "who sent what",
    "oracle": "the truth",
}
KEEPS = {"shift": "shifts", "scale": "positive factors"}
PREPARED = (1, 2, 5)  # for these f
ROWS = 25


def needs(stage: Defense[Any] | Prefilter) -> str:
    """What a server must have for it: secure aggregation hides single messages."""
    traits = ask(stage, "traits", Traits)
    single = [] if traits.reads_sum else ["single messages"]
    return ", ".join([*single, *(said for name, said in NEEDS.items() if getattr(traits, name))])


def rows(stage: Defense[Any] | Prefilter) -> str:
    """The smallest number of rows, for some ``f`` if it assumes one."""
    if not hasattr(stage, "f"):
        return f"at least {_needed(stage)}"
    needed = {f: _needed(stage.declared(f)) for f in PREPARED}
    least = "at least " + ", ".join(f"{rows} with f={f}" for f, rows in needed.items())
    if isinstance(stage, Defense) and stage.declared(1).most_rows() is not None:
        most = {f: stage.declared(f).most_rows() for f in PREPARED}
        least += "; at most " + ", ".join(f"{rows} with f={f}" for f, rows in most.items())
    return least


def _needed(stage: Defense[Any] | Prefilter) -> int:
    # A prefilter is asked in front of the mean, which needs one row.
    rule = () if isinstance(stage, Defense) else (registry.load("defense", "mean"),)
    needed: int = ask(stage, "rows_needed", int, *rule)
    return needed


def breakdown(stage: Defense[Any] | Prefilter) -> str:
    """How many of `ROWS` rows may be anything, with ``f`` 5 where it assumes one."""
    if not isinstance(stage, Defense):
        return ""
    ready = stage.declared(PREPARED[-1])
    prepared = f" with f={PREPARED[-1]}" if hasattr(stage, "f") else ""
    exactly = "" if ready.traits().sharp else ", not known to be exact"
    return f"{ask(ready, 'tolerates', int, ROWS)} of {ROWS}{prepared}{exactly}"


def sensitivity(stage: Defense[Any] | Prefilter) -> str:
    """The bound on what one row of norm 1 moves, of `ROWS`."""
    if not isinstance(stage, Defense):
        return ""
    ready = stage.declared(PREPARED[-1])
    moved = ask(ready, "sensitivity", (float, int, type(None)), 1.0, ROWS)
    return "none proved" if moved is None else f"{moved:g} for rows of norm 1, {ROWS} of them"


def facts(stage: Defense[Any] | Prefilter) -> list[tuple[str, str]]:
    """All of it, as lines."""
    traits = ask(stage, "traits", Traits)
    kept = [said for name, said in KEEPS.items() if getattr(traits, name)]
    lines = [
        ("needs", needs(stage) or "only the sum of the messages"),
        ("clients a round", rows(stage)),
        ("breakdown point", breakdown(stage)),
        ("sensitivity", sensitivity(stage)),
        ("comes back", ", ".join(kept)),
        ("with f=0", "the mean" if traits.mean_at_zero and hasattr(stage, "f") else ""),
        ("draws numbers", "yes, from the server's key" if traits.randomized else ""),
        ("answers", "the mean, and reports on it" if traits.reports else ""),
        ("leaves out", "rows, which the record counts" if traits.detects else ""),
        *((f"not on {alphabet.__name__}", why) for alphabet, why in stage.without.items()),
    ]
    if getattr(stage, "f", 0) is None:
        lines.append(("f=none", "filled in: the share --declared of a round, rounded up"))
    return [(term, said) for term, said in lines if said]
