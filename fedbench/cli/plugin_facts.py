"""Facts about a plug-in that its class states: what it needs, survives and sends."""

from typing import Any

from fedbench.adversary import threat_model
from fedbench.api import Defense, Mechanism, Prefilter, Traits
from fedbench.core import registry
from fedbench.core.blame import ask

TIERS = {
    "own": "of its own clients, each its own message and no other",
    "colluders": "the honest messages of all its own clients",
    "all": "the messages of all clients, the benign ones included",
}
NEEDS = {
    "root": "root data",
    "history": "earlier rounds",
    "identities": "who sent what",
    "oracle": "the truth",
}
KEEPS = {"shift": "shifts", "scale": "positive factors"}
ASSUMED = (1, 2, 5)  # values of f for which a defense says how many rows it needs
ROWS = 25  # rows for which a defense says how many of them may be anything


def facts(kind: str, plugin: Any) -> list[tuple[str, str]]:
    """Return terms and texts about an instance of a plug-in."""
    lines = []
    if kind == "attack":
        needed = threat_model.needs(plugin)
        shown = [TIERS[needed.tier]]
        shown += ["the server's rule, to query"] if needed.defense else []
        shown += ["the server's state"] if needed.state else []
        lines.append(("must know", "; ".join(shown)))
    if kind in ("attack", "defense", "prefilter"):
        names = [alphabet.__name__ for alphabet in plugin.accepts]
        every = "messages of any protocol"
        lines.append(("works on", every if names == ["Payload"] else ", ".join(names)))
    if kind in ("defense", "prefilter"):
        lines += defense_facts(plugin)
    if kind == "protocol":
        sizes = "clients weighted by size where it is the mean"
        count = sizes if plugin.weighted else "every client counts the same"
        count += ", and tables call it vote" if plugin.votes else ""
        lines.append(("clients send", plugin.sends.__name__))
        lines.append(("clients train", plugin.space))
        lines.append(("default defense", f"{plugin.default_defense}; {count}"))
    if kind == "mechanism" and type(plugin) is not Mechanism:
        unit = "all data of a client" if plugin.unit == "client" else "one sample of a client"
        lines.append(("protects", unit + (", by a trusted server" if plugin.central else "")))
        if plugin.knob is not None:
            lines.append(("--target-epsilon", f"finds {plugin.knob[0]}"))
    return lines


def defense_facts(stage: Defense[Any] | Prefilter) -> list[tuple[str, str]]:
    """Return terms and texts about what a defense or prefilter needs and does."""
    traits = ask(stage, "traits", Traits)
    lines = [
        ("needs", needs(stage) or "only the sum of the messages"),
        ("clients a round", rows(stage)),
        ("breakdown point", breakdown(stage)),
        ("sensitivity", sensitivity(stage)),
        ("comes back", ", ".join(text for name, text in KEEPS.items() if getattr(traits, name))),
        ("with f=0", "the mean" if traits.mean_at_zero and hasattr(stage, "f") else ""),
        ("draws numbers", "yes, from the server's key" if traits.randomized else ""),
        ("answers", "the mean, and reports on it" if traits.reports else ""),
        ("leaves out", "rows, which the record counts" if traits.detects else ""),
        *((f"not on {alphabet.__name__}", why) for alphabet, why in stage.without.items()),
    ]
    if getattr(stage, "f", 0) is None:
        lines.append(("f=none", "filled in: the share --declared of a round, rounded up"))
    return [(term, text) for term, text in lines if text]


def needs(stage: Defense[Any] | Prefilter) -> str:
    """Return what the server must have; secure aggregation would hide single messages."""
    traits = ask(stage, "traits", Traits)
    single = [] if traits.reads_sum else ["single messages"]
    return ", ".join(single + [text for name, text in NEEDS.items() if getattr(traits, name)])


def rows(stage: Defense[Any] | Prefilter) -> str:
    """Return the smallest number of rows, for some ``f`` if the stage assumes one."""
    # A prefilter is asked in front of the mean, which needs one row.
    rule = () if isinstance(stage, Defense) else (registry.load("defense", "mean"),)
    if not hasattr(stage, "f"):
        return f"at least {ask(stage, 'rows_needed', int, *rule)}"
    needed = {f: ask(stage.declared(f), "rows_needed", int, *rule) for f in ASSUMED}
    text = "at least " + ", ".join(f"{rows} with f={f}" for f, rows in needed.items())
    if isinstance(stage, Defense) and stage.declared(1).most_rows() is not None:
        most = {f: stage.declared(f).most_rows() for f in ASSUMED}
        text += "; at most " + ", ".join(f"{rows} with f={f}" for f, rows in most.items())
    return text


def breakdown(stage: Defense[Any] | Prefilter) -> str:
    """Return how many of `ROWS` rows may be anything, with the largest assumed ``f``."""
    if not isinstance(stage, Defense):
        return ""
    ready = stage.declared(ASSUMED[-1])
    assumed = f" with f={ASSUMED[-1]}" if hasattr(stage, "f") else ""
    exactly = "" if ready.traits().sharp else ", not known to be exact"
    return f"{ask(ready, 'tolerates', int, ROWS)} of {ROWS}{assumed}{exactly}"


def sensitivity(stage: Defense[Any] | Prefilter) -> str:
    """Return the bound on what one row of norm 1 moves, of `ROWS` rows."""
    if not isinstance(stage, Defense):
        return ""
    ready = stage.declared(ASSUMED[-1])
    moved = ask(ready, "sensitivity", (float, int, type(None)), 1.0, ROWS)
    return "none proved" if moved is None else f"{moved:g} for rows of norm 1, {ROWS} of them"
