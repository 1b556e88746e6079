"""Names, signatures and docstrings of functions that are made of plug-ins.

A function's parameters are the plug-in's fields, then what only a run knows otherwise. Editors,
`help` and the stub file read them from here, so that a plug-in is described in one place.
"""

from __future__ import annotations

import dataclasses
import inspect
import keyword
import math
import re
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter, Signature
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedbench.core.errors import ConfigError, nearest, refusal

_ENTRY = re.compile(r"^    (\w+): ", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Returns|Raises|References):$", re.MULTILINE)
_FLAG = re.compile(r"--([a-z][a-z-]*)")


@dataclass(frozen=True)
class Argument:
    """One keyword of a function: how it is annotated, documented, and missed."""

    name: str
    annotation: Any
    meaning: str
    default: Any = None
    required: bool = False
    positional: bool = False
    why: str = ""  # the plug-in cannot do without it, for the error where it is not given

    @property
    def parameter(self) -> Parameter:
        """The argument as a parameter of a signature."""
        default = Parameter.empty if self.required else self.default
        by_place = Parameter.POSITIONAL_OR_KEYWORD
        kind = by_place if self.positional else Parameter.KEYWORD_ONLY
        return Parameter(self.name, kind, default=default, annotation=self.annotation)


def python_name(name: str) -> str:
    """Return the function's name of a plug-in's name.

    >>> python_name("multi-krum"), python_name("lambda")
    ('multi_krum', 'lambda_')
    """
    words = re.sub(r"\W", "_", name)
    return f"{words}_" if keyword.iskeyword(words) else words


def fields_of(cls: type[Any], without: Collection[str] = ()) -> list[Argument]:
    """Return the arguments that are a plug-in's fields; an ``f`` without a default is required."""
    hints = get_type_hints(cls)
    meanings = _meanings(cls)
    made = []
    for field in dataclasses.fields(cls):
        if not field.init or field.name in without:
            continue
        hint = hints[field.name]
        meaning = meanings.get(field.name, "Parameter of the plug-in.")
        missing = dataclasses.MISSING
        default = field.default if field.default_factory is missing else field.default_factory()
        if field.name == "f" and default is None:
            open_f = Argument("f", int, meaning, required=True, why=_NO_SHARE)
            made.append(open_f)
        else:
            made.append(Argument(field.name, hint, meaning, default, default is missing))
    return made


_NO_SHARE = "the malicious rows to be prepared for: outside of a run no share is declared"


def checked_fields(label: str, cls: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values of fields, of the fields' types; `ConfigError` for a value of another."""
    from pydantic import TypeAdapter, ValidationError

    hints = get_type_hints(cls)
    checked: dict[str, Any] = {}
    for name, value in given.items():
        plain = value.item() if hasattr(value, "item") and math.prod(value.shape) == 1 else value
        hint = int if name == "f" else hints[name]
        if plain is None and name != "f" and type(None) in get_args(hint):
            checked[name] = None
            continue
        try:
            made = TypeAdapter(hint).validate_python(plain)
        except ValidationError as error:
            raise ConfigError(refusal(f"{label}({name}=)", error)) from error
        if isinstance(plain, bool) and not isinstance(made, bool):
            raise ConfigError(f"{label}({name}=) must be a number, got {value!r}")
        checked[name] = made
    return checked


def bound(label: str, arguments: Sequence[Argument], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all arguments with their values; `ConfigError` for unknown and for missing ones."""
    by_name = {argument.name: argument for argument in arguments}
    for name in given:
        if name not in by_name:
            hint = nearest(name, by_name, f"arguments: {', '.join(by_name) or 'none'}")
            raise ConfigError(f"{label} has no argument {name!r}; {hint}")
    values = {name: given.get(name, argument.default) for name, argument in by_name.items()}
    for argument in arguments:
        if argument.required and values[argument.name] is None:
            needs = argument.why or argument.meaning.rstrip(".").lower()
            raise ConfigError(f"{label} must be given {argument.name}=..., {needs}")
        if argument.required and argument.name not in given:
            raise ConfigError(f"{label} must be given {argument.name}=...")
    return values


def described(
    function: Callable[..., Any],
    name: str,
    cls: type[Any],
    first: Argument,
    arguments: Sequence[Argument],
    returns: tuple[Any, str],
    more: str = "",
    text: str | None = None,
) -> Callable[..., Any]:
    """Give a function the name, the signature and the docstring that its plug-in determines."""
    annotation, meaning = returns
    at = Parameter(first.name, Parameter.POSITIONAL_OR_KEYWORD, annotation=first.annotation)
    optional = sorted(arguments, key=lambda argument: not argument.required)
    parameters = [at, *(argument.parameter for argument in optional)]
    made: Any = function
    made.__name__ = name.rpartition(".")[2]
    made.__qualname__ = name
    made.__module__ = "fedbench.functional"
    made.__signature__ = Signature(parameters, return_annotation=annotation)
    made.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": annotation}
    made.__doc__ = docstring(cls, [first, *optional], meaning, more, text)
    return function


def docstring(
    cls: type[Any],
    arguments: Sequence[Argument],
    returns: str,
    more: str = "",
    text: str | None = None,
) -> str:
    """Return the docstring of a function: the plug-in's own or ``text``, with all arguments."""
    text = text or inspect.getdoc(cls) or f"Call the plug-in {cls.__name__}."
    parts = _SECTION.split(text)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    paragraphs = [parts[0].strip(), *([_wrapped(more)] if more else [])]
    entries = [_wrapped(f"{a.name}: {a.meaning}", "    ", "        ") for a in arguments]
    paragraphs.append("Args:\n" + "\n".join(entries))
    paragraphs.append("Returns:\n" + _wrapped(returns, "    ", "    "))
    if "References" in sections:
        paragraphs.append("References:" + sections["References"].rstrip())
    return "\n\n".join(paragraphs)


def summary(text: str, more: str = "") -> str:
    """Return a docstring's first paragraph and arguments, with ``more`` between them."""
    first = text.partition("\n\n")[0] + (f"\n\n{_wrapped(more)}" if more else "")
    _, args, rest = text.partition("\n\nArgs:\n")
    return first + args + rest.partition("\n\nReferences:")[0]


def _wrapped(text: str, first: str = "", other: str = "") -> str:
    return textwrap.fill(text, 88, initial_indent=first, subsequent_indent=other)


def _meanings(cls: type[Any]) -> dict[str, str]:
    """Return what the docstrings of a class and of its bases say of each field."""
    meanings: dict[str, str] = {}
    for base in cls.__mro__:
        parts = _SECTION.split(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
        for title, body in zip(parts[1::2], parts[2::2], strict=True):
            if title == "Args":
                words = _ENTRY.split(body)
                for name, text in zip(words[1::2], words[2::2], strict=True):
                    meanings.setdefault(name, " ".join(text.split()))
    return meanings


def annotated(annotation: Any) -> str:
    """Return an annotation as it is written in Python.

    >>> from typing import Literal
    >>> annotated(Literal["a", "b"] | None), annotated(dict[str, int])
    ("Literal['a', 'b'] | None", 'dict[str, int]')
    """
    if isinstance(annotation, str):
        return annotation
    if annotation is None or annotation is type(None):
        return "None"
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(annotated(part) for part in get_args(annotation))
    if get_origin(annotation) is None and isinstance(annotation, type):
        return annotation.__name__
    return str(annotation).replace("typing.", "").replace("NoneType", "None")


def in_python(text: str) -> str:
    """Return an error's text with parameters of Python in place of options of the command line.

    >>> in_python("--per-round must be <= --clients = 3, got 5")
    'per_round must be <= clients = 3, got 5'
    """
    return _FLAG.sub(lambda match: match[1].replace("-", "_"), text)
