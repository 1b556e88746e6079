"""A catalogue as a page of Markdown: every installed plug-in of a kind, from its own words."""

import re
from pathlib import Path
from typing import Any

from fedbench.api import Attack
from fedbench.cli.docstrings import Doc, paragraphs, parameters, prose, singular
from fedbench.cli.plugin_facts import breakdown, defense_facts, needs
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.files import read_limited, write_atomically
from fedbench.payload import Payload
from fedbench.tables.markdown import pipes

END = "<!-- end of the catalogue -->"
ATTACKS = ("On any alphabet", "On one alphabet", "In training", "Backdoors")  # groups of them


def replace(kind: str, path: Path) -> bool:
    """Put the catalogue between its two marks in a file; return True if that changed the file.

    Raises:
        ConfigError: the file is unreadable, or without the marks.
    """
    kind = singular(kind)
    start = f"<!-- catalogue: fedbench list {kind}s --into {path.name} -->"
    try:
        text = read_limited(path, 1 << 24).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be a page of Markdown in UTF-8: {error}") from error
    head, started, rest = text.partition(start)
    _, ended, tail = rest.partition(END)
    if not started or not ended:
        raise ConfigError(f"{path} must have the lines {start!r} and {END!r}, got neither or one")
    new = f"{head}{start}\n\n{page(kind)}\n{END}{tail}"
    if new != text:
        write_atomically(path, new.encode())
    return new != text


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
