"""Facts that the class of a plug-in states, and the catalogue of a kind as a page of Markdown."""

import re
from pathlib import Path
from typing import Any

from fedbench.adversary import threat_model
from fedbench.api import Attack, Defense, Mechanism, Prefilter, Traits
from fedbench.cli.docstrings import Doc, paragraphs, parameters, prose, singular
from fedbench.cli.marks import renewed
from fedbench.core import registry
from fedbench.core.blame import ask
from fedbench.core.files import write_atomically
from fedbench.payload import Payload
from fedbench.tables.export import pipes

END = "<!-- end of the catalogue -->"
ATTACKS = ("On any alphabet", "On one alphabet", "In training", "Backdoors")  # groups of them
TIERS = {
    "own": "of its own clients, each its own message and no other",
    "colluders": "the honest messages of all its own clients",
    "all": "the messages of all clients, the benign ones included",
}
NEEDS = {
    "model": "a server that adds to the weights",
    "network": "the network",
    "root": "root data",
    "history": "earlier rounds",
    "identities": "who sent what",
    "oracle": "the truth",
}
KEEPS = {"shift": "shifts", "scale": "positive factors"}
ASSUMED = (1, 2, 5)  # values of f for which a defense says how many rows it needs
ROWS = 25  # rows for which a defense says how many of them may be anything


def replace(kind: str, path: Path) -> bool:
    """Put the catalogue between its two marks in a file; return True if that changed the file."""
    kind = singular(kind)
    start = f"<!-- catalogue: fedbench list {kind}s --into {path.name} -->"
    old, new = renewed(path, start, END, page(kind))
    if new != old:
        write_atomically(path, new.encode())
    return new != old


def page(kind: str) -> str:
    """Return for each group a table of names, and then what each plug-in says of itself."""
    groups: dict[str, dict[str, type[Any]]] = {title: {} for title in (*ATTACKS, "")}
    for name in registry.names(kind):
        plugin = registry.plugin(kind, name)
        groups[_group(kind, plugin)][name] = plugin
    parts = []
    for title, plugins in groups.items():
        if plugins:
            parts += [f"## {title}\n"] if title else []
            parts.append(_table(kind, plugins))
            parts += [_entry(kind, name, plugin) for name, plugin in plugins.items()]
    return "\n".join(parts)


def _group(kind: str, plugin: type[Any]) -> str:
    if kind != "attack":
        return ""
    if plugin.trigger is not Attack.trigger:
        return ATTACKS[3]
    if plugin().trains:
        return ATTACKS[2]
    return ATTACKS[0] if plugin.accepts == (Payload,) else ATTACKS[1]


def _table(kind: str, plugins: dict[str, type[Any]]) -> str:
    """Return a table of plug-ins, without the columns that are empty for all of them."""
    condition = {"attack": "must know", "defense": "needs", "prefilter": "needs"}.get(kind, "")
    rows = [("name", "what it does", condition, "survives", "works on", "source")]
    for name, plugin in plugins.items():
        doc = Doc.of(plugin)
        instance = plugin()
        stage = kind in ("defense", "prefilter")
        needed = str(instance.needs()) if kind == "attack" else ""
        needed = needs(instance) or "the sum" if stage else needed
        survives = breakdown(instance) if stage else ""
        link = f"[`{name}`](#{name})"
        rows.append((link, prose(doc.summary), needed, survives, _works_on(plugin), source(doc)))
    used = [i for i, column in enumerate(zip(*rows[1:], strict=True)) if any(column)]
    heads, *body = [[row[i].replace("|", r"\|") for i in used] for row in rows]
    return pipes(heads, ["---"] * len(used), body)


def _works_on(plugin: type[Any]) -> str:
    alphabets = [alphabet.__name__ for alphabet in getattr(plugin, "accepts", ())]
    works = "any" if alphabets == ["Payload"] else ", ".join(alphabets)
    out = [alphabet.__name__ for alphabet in getattr(plugin, "without", {})]
    return f"{works}, not {', '.join(out)}" if out else works


def source(doc: Doc) -> str:
    """Return the first paper in short, or ``proposed here`` where there is none.

    >>> source(Doc("", references='Li et al., "RSA: Robust", AAAI 2019, https://a.org/1, 2.'))
    'Li et al., AAAI 2019'
    >>> source(Doc("", references="None: proposed here. An idea."))
    'proposed here'
    """
    text = doc.references
    if text.startswith("None"):
        return "proposed here"
    if text.startswith('"'):
        return text[1:].partition('"')[0].rstrip(",")
    authors, _, rest = text.partition(', "')
    venue = rest.partition('",')[2].partition(",")[0].strip()
    return ", ".join(part for part in (authors, venue) if part)


def _entry(kind: str, name: str, plugin: type[Any]) -> str:
    doc = Doc.of(plugin)
    instance = plugin()
    blocks = [f"### {name}", prose(doc.summary), *paragraphs(doc.body)]
    blocks += [f"- `{term}`: {prose(text)}" for term, text in parameters(plugin, instance)]
    if kind in ("defense", "prefilter"):
        blocks += [f"- *{term}*: {prose(text)}" for term, text in defense_facts(instance)]
    blocks += [f"Source: {prose(doc.references)}"] if doc.references else []
    # a blank line between blocks, but not between the items of a list
    return re.sub(r"(?m)^(- .*)\n(?=\n- )", r"\1", "\n\n".join(blocks)) + "\n"


def facts(kind: str, plugin: Any) -> list[tuple[str, str]]:
    """Return terms and texts about an instance of a plug-in."""
    lines = []
    if kind == "attack":
        needed = threat_model.needs(plugin)
        shown = [TIERS[needed.tier]]
        shown += ["the server's rule, to query"] if needed.defense else []
        shown += ["the server's state"] if needed.state else []
        shown += ["samples of its own clients, with loss and gradient"] if needed.data else []
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
        ("sparsifies", "small coordinates, to the alphabet's middle" if traits.sparsifies else ""),
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
    behind = () if isinstance(stage, Defense) else (registry.load("defense", "mean"),)
    if not hasattr(stage, "f"):
        return f"at least {ask(stage, 'rows_needed', int, *behind)}"
    needed = {f: ask(stage.declared(f), "rows_needed", int, *behind) for f in ASSUMED}
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
