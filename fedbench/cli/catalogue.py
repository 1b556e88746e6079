"""What is installed, and what each plug-in does: read from its docstring and its fields."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
import types
import typing
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fedbench.core import registry
from fedbench.core.errors import ConfigError, UnknownPluginError

TIERS = {
    "own": "of its own clients, each its own message and no other",
    "colluders": "the honest messages of all its own clients",
    "all": "the messages of all clients, the benign ones included",
}
_SECTION = re.compile(
    r"^(Args|Attributes|Examples?|Raises|References|Returns|Yields):\n", flags=re.MULTILINE
)


def list_plugins(console: Console, kind: str | None = None) -> None:
    """Every plug-in with the first line of its docstring, or why it cannot be imported."""
    for one in registry.KINDS if kind is None else [singular(kind)]:
        console.print(Text(f"{one}s", style="bold"))
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True)
        for name in registry.names(one):
            try:
                said = _styled(Doc.of(registry.plugin(one, name)).summary)
            except UnknownPluginError as error:
                said = Text(str(error), style="red")
            table.add_row(Text(name, style="bold cyan"), said)
        console.print(Padding(table, (0, 0, 1, 2)))


def show_plugin(console: Console, name: str, kind: str | None = None) -> None:
    """Everything about a plug-in; about each of them where several kinds share the name.

    Raises:
        UnknownPluginError: nothing answers to the name, or its import fails.
        ConfigError: the name comes with parameters.
    """
    bare, params = registry.split(name)
    if params:
        raise ConfigError(f"NAME must be a plug-in without parameters, got {name!r}; use {bare}")
    kinds = registry.KINDS if kind is None else [singular(kind)]
    found = [one for one in kinds if bare in registry.names(one)]
    if not found:
        raise UnknownPluginError(f"{name!r} is not an installed {kind or 'plug-in'}; {_hint(bare)}")
    for one in found:
        _show(console, one, bare, registry.plugin(one, bare))


def singular(kind: str) -> str:
    """The kind, typed in singular or plural.

    >>> singular("attacks"), singular("attack")
    ('attack', 'attack')
    """
    one = kind.lower().removesuffix("s")
    if one not in registry.KINDS:
        known = ", ".join(f"{known}s" for known in registry.KINDS)
        raise UnknownPluginError(f"kind must be one of {known}, got {kind!r}")
    return one


def _hint(name: str) -> str:
    known = {other: kind for kind in registry.KINDS for other in registry.names(kind)}
    close = difflib.get_close_matches(name, known, n=1)
    if not close:
        return "`fedbench list` shows what is"
    return f"did you mean the {known[close[0]]} {close[0]!r}?"


@dataclasses.dataclass(frozen=True)
class Doc:
    """A docstring, taken apart.

    Args:
        summary: Its first paragraph.
        body: What follows, up to the first section.
        args: Descriptions of parameters.
        references: As written.
    """

    summary: str
    body: str = ""
    args: dict[str, str] = dataclasses.field(default_factory=dict)
    references: str = ""

    @classmethod
    def of(cls, plugin: type[Any]) -> Doc:
        """The docstring of a plug-in, with the parameters that it inherits.

        A class without one does not borrow its base's summary: that would describe something else.
        """
        own = parse(_docstring(plugin))
        args: dict[str, str] = {}
        for base in plugin.__mro__:
            args = parse(_docstring(base)).args | args
        return dataclasses.replace(own, args=args)


def _docstring(cls: type[Any]) -> str:
    text = cls.__dict__.get("__doc__") or ""
    written = not text.startswith(f"{cls.__name__}(")  # else dataclass made it: the signature
    return inspect.cleandoc(text) if written else ""


def parse(text: str) -> Doc:
    r"""A Google-style docstring without indentation.

    >>> doc = parse("Add.\n\nMore.\n\nArgs:\n    f: How\n        many.\n    g: Which: a.")
    >>> doc.summary, doc.body, doc.args
    ('Add.', 'More.', {'f': 'How many.', 'g': 'Which: a.'})
    """
    head, *rest = _SECTION.split(text)
    sections = {
        name: inspect.cleandoc("\n" + said)
        for name, said in zip(rest[::2], rest[1::2], strict=True)
    }
    summary, _, body = head.strip().partition("\n\n")
    entries = re.split(r"^(\w+):\s", sections.get("Args", ""), flags=re.MULTILINE)[1:]
    args = {name: _joined(said) for name, said in zip(entries[::2], entries[1::2], strict=True)}
    return Doc(_joined(summary), body.strip(), args, _joined(sections.get("References", "")))


def _joined(text: str) -> str:
    return " ".join(text.split())


def prose(text: str) -> str:
    """Code in single backquotes.

    >>> prose("drop the ``f`` largest `values`")
    'drop the `f` largest `values`'
    """
    return text.replace("``", "`")


def paragraphs(text: str) -> list[str]:
    r"""Filled paragraphs and single list items, ready to be wrapped anew.

    >>> paragraphs("one\ntwo:\n\n- a\n  b\n- c")
    ['one two:', '- a b', '- c']
    """
    parts = re.split(r"\n\s*\n|\n(?=- )", text)
    return [prose(_joined(part)) for part in parts if part.strip()]


def _show(console: Console, kind: str, name: str, plugin: type[Any]) -> None:
    from fedbench.core.blame import Hook

    doc = Doc.of(plugin)
    with Hook(plugin, "__init__"):
        instance = plugin()
    console.print(Text.assemble((f"{kind} ", "dim"), (name, "bold cyan")))
    console.print(Text(prose(doc.summary) or "(no docstring)", style="bold"))
    console.print()
    _body(console, paragraphs(doc.body))
    if fields := [field for field in dataclasses.fields(instance) if field.init]:
        _section(console, "parameters", parameters(plugin, instance, fields, doc.args))
        text = f"--{kind} {registry.describe(name, instance)}"
        if kind == "prefilter":
            text = f"--defense {registry.describe(name, instance)}+RULE"
        console.print(Text("as typed, with every default", style="bold"))
        console.print(f"  {text}\n", highlight=False, markup=False, soft_wrap=True)
    if facts := _facts(kind, instance):
        _section(console, "what it needs and does", facts)
    if doc.references:
        _section(console, "paper", [(doc.references, "")])
    module = f"{plugin.__module__}.{plugin.__qualname__}"
    _section(console, "code", [(module, "")])


def _body(console: Console, parts: list[str]) -> None:
    """Paragraphs, a blank line after each but those inside a list."""
    for i, part in enumerate(parts):
        item = part.startswith("- ")
        inside = item and i + 1 < len(parts) and parts[i + 1].startswith("- ")
        row = Table.grid(padding=(0, 1, 0, 0))
        row.add_row(*(["-", _styled(part[2:])] if item else [_styled(part)]))
        console.print(Padding(row, (0, 0, 0 if inside else 1, 0)))


def _styled(text: str) -> Text:
    """Code in colour where there are colours."""
    styled = Text(prose(text), overflow="fold")
    styled.highlight_regex(r"`[^`]+`", "cyan")
    return styled


def _section(console: Console, title: str, pairs: list[tuple[str, str]]) -> None:
    console.print(Text(title, style="bold"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for term, said in pairs:
        table.add_row(*(_styled(text) for text in (term, said) if text))
    console.print(Padding(table, (0, 0, 1, 2)))


def parameters(
    plugin: type[Any], instance: Any, fields: list[dataclasses.Field[Any]], args: dict[str, str]
) -> list[tuple[str, str]]:
    """Name, type and default; then the description."""
    hints = typing.get_type_hints(plugin)
    return [
        (
            f"{field.name}={str(getattr(instance, field.name)).lower()}",
            f"{spelled(hints[field.name])}. {args.get(field.name, '')}".strip(),
        )
        for field in fields
    ]


def spelled(hint: Any) -> str:
    """A type as a user thinks of it.

    >>> spelled(list[int]), spelled(int | None), spelled(typing.Literal["std", "sign"])
    ('list[int]', 'int or none', 'std or sign')
    """
    if hint is type(None):
        return "none"
    if typing.get_origin(hint) in (typing.Literal, typing.Union, types.UnionType):
        return " or ".join(spelled(option) for option in typing.get_args(hint))
    return str(hint) if typing.get_args(hint) else getattr(hint, "__name__", str(hint))


def _facts(kind: str, plugin: Any) -> list[tuple[str, str]]:
    """What the classes say beside their docstrings."""
    from fedbench.adversary.threat_model import needs as knowledge
    from fedbench.api import Mechanism
    from fedbench.cli.catalogue_rules import facts as rule_facts

    facts = []
    if kind == "attack":
        needs = knowledge(plugin)
        extras = {"the server's rule, to query": needs.defense, "the server's state": needs.state}
        known = [TIERS[needs.tier], *(what for what, shown in extras.items() if shown)]
        facts.append(("must know", "; ".join(known)))
    if kind in ("attack", "defense", "prefilter"):
        names = [alphabet.__name__ for alphabet in plugin.accepts]
        every = "messages of any protocol"
        facts.append(("works on", every if names == ["Payload"] else ", ".join(names)))
    if kind in ("defense", "prefilter"):
        facts += rule_facts(plugin)
    if kind == "protocol":
        sizes = "clients weighted by size where it is the mean"
        count = sizes if plugin.weighted else "every client counts the same"
        count += ", and tables call it vote" if plugin.votes else ""
        facts.append(("clients send", plugin.sends.__name__))
        facts.append(("clients train", plugin.space))
        facts.append(("default defense", f"{plugin.default_defense}; {count}"))
    if kind == "mechanism" and type(plugin) is not Mechanism:
        unit = "all data of a client" if plugin.unit == "client" else "one sample of a client"
        facts.append(("protects", unit + (", by a trusted server" if plugin.central else "")))
        if plugin.knob is not None:
            facts.append(("--target-epsilon", f"finds {plugin.knob[0]}"))
    return facts
