"""A catalogue as a page of Markdown: every installed plug-in of a kind, from its own words."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbench.cli.catalogue import Doc, paragraphs, parameters, prose, singular
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.files import read_limited, write_atomically

START, END = "<!-- catalogue: {command} -->", "<!-- end of the catalogue -->"
GROUPS = (  # of attacks
    "On any alphabet",
    "On one alphabet",
    "In training",
    "Backdoors",
)


def replace(kind: str, path: Path) -> bool:
    """Put the catalogue between its two marks in a file; True if that changed the file.

    Raises:
        ConfigError: unreadable, or without the marks.
    """
    one = singular(kind)
    start = START.format(command=f"fedbench list {one}s --into {path.name}")
    try:
        text = read_limited(path, 1 << 24).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be a page of Markdown in UTF-8: {error}") from error
    head, found, rest = text.partition(start)
    _, ended, tail = rest.partition(END)
    if not found or not ended:
        raise ConfigError(f"{path} must have the lines {start!r} and {END!r}, got neither or one")
    new = f"{head}{start}\n\n{page(one)}\n{END}{tail}"
    if new != text:
        write_atomically(path, new.encode())
    return new != text


def page(kind: str) -> str:
    """Of each group a table of names, and then what each plug-in says of itself."""
    plugins = {name: registry.plugin(kind, name) for name in registry.names(kind)}
    grouped: dict[str, list[str]] = {title: [] for title in (*GROUPS, "")}
    for name, plugin in plugins.items():
        grouped[_group(kind, plugin)].append(name)
    parts = []
    for title, names in grouped.items():
        if names:
            parts += [f"## {title}\n"] if title else []
            parts += [_table(kind, {name: plugins[name] for name in names})]
            parts += [_entry(kind, name, plugins[name]) for name in names]
    return "\n".join(parts)


def _group(kind: str, plugin: type[Any]) -> str:
    from fedbench.api import Attack
    from fedbench.payload import Payload

    if kind != "attack":
        return ""
    if plugin.trigger is not Attack.trigger:
        return GROUPS[3]
    if plugin().trains:
        return GROUPS[2]
    return GROUPS[0] if plugin.accepts == (Payload,) else GROUPS[1]


def _table(kind: str, plugins: dict[str, type[Any]]) -> str:
    knows = {"attack": "must know", "defense": "needs", "prefilter": "needs"}.get(kind, "")
    rows = [("name", "what it does", knows, "survives", "works on", "source")]
    for name, plugin in plugins.items():
        doc, instance = Doc.of(plugin), plugin()
        what, works = f"[`{name}`](#{name})", _works_on(plugin)
        needs, survives = _needs(kind, instance)
        rows.append((what, prose(doc.summary), needs, survives, works, source(doc)))
    used = [i for i, column in enumerate(zip(*rows[1:], strict=True)) if any(column)]
    lines = ["| " + " | ".join(_cell(row[i]) for i in used) + " |" for row in rows]
    return "\n".join([lines[0], "|" + " --- |" * len(used), *lines[1:], ""])


def _works_on(plugin: type[Any]) -> str:
    """The alphabets."""
    alphabets = [alphabet.__name__ for alphabet in getattr(plugin, "accepts", ())]
    works = "any" if alphabets == ["Payload"] else ", ".join(alphabets)
    out = [alphabet.__name__ for alphabet in getattr(plugin, "without", {})]
    return f"{works}, not {', '.join(out)}" if out else works


def _needs(kind: str, instance: Any) -> tuple[str, str]:
    """What must be known or had, and how many malicious rows it survives."""
    from fedbench.cli.catalogue_rules import breakdown, needs

    if kind == "attack":
        return str(instance.needs()), ""
    if kind in ("defense", "prefilter"):
        return needs(instance) or "the sum", breakdown(instance)
    return "", ""


def source(doc: Doc) -> str:
    """The first paper, short; ``proposed here`` where there is none.

    >>> source(Doc("", references='Li et al., "RSA: Robust", AAAI 2019, https://a.org/1, 2.'))
    'Li et al., AAAI 2019'
    >>> source(Doc("", references="None: proposed here. An idea."))
    'proposed here'
    """
    text = doc.references
    if not text:
        return ""
    if text.startswith("None"):
        return "proposed here"
    if text.startswith('"'):
        return text[1:].partition('"')[0].rstrip(",")
    authors, _, rest = text.partition(', "')
    venue = rest.partition('",')[2].partition(",")[0].strip()
    return ", ".join(part for part in (authors, venue) if part)


def _entry(kind: str, name: str, plugin: type[Any]) -> str:
    from fedbench.cli.catalogue_rules import facts

    doc, instance = Doc.of(plugin), plugin()
    fields = [field for field in dataclasses.fields(instance) if field.init]
    lines = [f"### {name}", "", prose(doc.summary), ""]
    for part in paragraphs(doc.body):
        if lines[-1].startswith("- ") and not part.startswith("- "):
            lines.append("")
        lines += [part, *([] if part.startswith("- ") else [""])]
    if lines[-1]:
        lines.append("")
    if fields:
        given = parameters(plugin, instance, fields, doc.args)
        lines += list(_list([(f"`{term}`", said) for term, said in given]))
    if kind in ("defense", "prefilter"):
        if fields:
            lines.pop()
        lines += list(_list([(f"*{term}*", said) for term, said in facts(instance)]))
    if doc.references:
        lines += [f"Source: {prose(doc.references)}", ""]
    return "\n".join(lines)


def _list(pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    for term, said in pairs:
        yield f"- {term}: {prose(said)}"
    yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
