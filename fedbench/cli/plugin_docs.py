"""Documentation of a plug-in, read from its docstring and its fields."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from typing import Any

from rich.text import Text

from fedbench.core import registry
from fedbench.core.errors import UnknownPluginError

_SECTION = re.compile(
    r"^(Args|Attributes|Examples?|Raises|References|Returns|Yields):\n", flags=re.MULTILINE
)


@dataclasses.dataclass(frozen=True)
class Doc:
    """Parts of a docstring: first paragraph, rest, descriptions of parameters, references."""

    summary: str
    body: str = ""
    args: dict[str, str] = dataclasses.field(default_factory=dict)
    references: str = ""

    @classmethod
    def of(cls, plugin: type[Any]) -> Doc:
        """Return the docstring of a plug-in, with the parameters that it inherits.

        A class without one does not borrow its base's summary: that would describe something else.
        """
        args: dict[str, str] = {}
        for base in plugin.__mro__:
            args = parse(_docstring(base)).args | args
        return dataclasses.replace(parse(_docstring(plugin)), args=args)


def _docstring(cls: type[Any]) -> str:
    text = cls.__dict__.get("__doc__") or ""
    written = not text.startswith(f"{cls.__name__}(")  # else dataclass made it: the signature
    return inspect.cleandoc(text) if written else ""


def parse(text: str) -> Doc:
    r"""Take a Google-style docstring without indentation apart.

    >>> doc = parse("Add.\n\nMore.\n\nArgs:\n    f: How\n        many.\n    g: Which: a.")
    >>> doc.summary, doc.body, doc.args
    ('Add.', 'More.', {'f': 'How many.', 'g': 'Which: a.'})
    """
    head, *rest = _SECTION.split(text)
    texts = (inspect.cleandoc("\n" + section) for section in rest[1::2])
    sections = dict(zip(rest[::2], texts, strict=True))
    summary, _, body = head.strip().partition("\n\n")
    entries = re.split(r"^(\w+):\s", sections.get("Args", ""), flags=re.MULTILINE)[1:]
    args = dict(zip(entries[::2], map(_joined, entries[1::2]), strict=True))
    return Doc(_joined(summary), body.strip(), args, _joined(sections.get("References", "")))


def _joined(text: str) -> str:
    return " ".join(text.split())


def prose(text: str) -> str:
    """Return a text with code in single backquotes.

    >>> prose("drop the ``f`` largest `values`")
    'drop the `f` largest `values`'
    """
    return text.replace("``", "`")


def styled(text: str) -> Text:
    """Return a text for a terminal, with code in colour where there are colours."""
    shown = Text(prose(text), overflow="fold")
    shown.highlight_regex(r"`[^`]+`", "cyan")
    return shown


def paragraphs(text: str) -> list[str]:
    r"""Return paragraphs and single list items, each in one line.

    >>> paragraphs("one\ntwo:\n\n- a\n  b\n- c")
    ['one two:', '- a b', '- c']
    """
    parts = re.split(r"\n\s*\n|\n(?=- )", text)
    return [prose(_joined(part)) for part in parts if part.strip()]


def singular(kind: str) -> str:
    """Return the kind of plug-in that was typed in singular or plural.

    >>> singular("attacks"), singular("attack")
    ('attack', 'attack')
    """
    name = kind.lower().removesuffix("s")
    if name not in registry.KINDS:
        kinds = ", ".join(f"{kind}s" for kind in registry.KINDS)
        raise UnknownPluginError(f"kind must be one of {kinds}, got {kind!r}")
    return name


def parameters(plugin: type[Any], instance: Any) -> list[tuple[str, str]]:
    """Return name and default of each parameter, with its type and description."""
    hints = typing.get_type_hints(plugin)
    args = Doc.of(plugin).args
    return [
        (
            f"{field.name}={str(getattr(instance, field.name)).lower()}",
            f"{spelled(hints[field.name])}. {args.get(field.name, '')}".strip(),
        )
        for field in dataclasses.fields(instance)
        if field.init
    ]


def spelled(hint: Any) -> str:
    """Return a type as a user thinks of it.

    >>> spelled(list[int]), spelled(int | None), spelled(typing.Literal["std", "sign"])
    ('list[int]', 'int or none', 'std or sign')
    """
    if hint is type(None):
        return "none"
    if typing.get_origin(hint) in (typing.Literal, typing.Union, types.UnionType):
        return " or ".join(spelled(option) for option in typing.get_args(hint))
    return str(hint) if typing.get_args(hint) else getattr(hint, "__name__", str(hint))
