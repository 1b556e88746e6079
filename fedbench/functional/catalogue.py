"""Functions of all installed plug-ins by name, and what editors and the docs are told of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from fedbench.core import registry
from fedbench.core.blame import error_line
from fedbench.core.errors import ConfigError, nearest
from fedbench.functional.attacks import attack
from fedbench.functional.codecs import Codec, codec
from fedbench.functional.rules import prefilter, rule
from fedbench.functional.signatures import annotated, python_name, summary

MAKERS: dict[str, Callable[[str], Any]] = {
    "defense": rule,
    "prefilter": prefilter,
    "attack": attack,
    "protocol": codec,
}
TITLES = {"defense": "Rules", "prefilter": "Prefilters", "attack": "Attacks", "protocol": "Codecs"}
WORDS = {"defense": "rule", "prefilter": "prefilter", "attack": "attack", "protocol": "codec"}


@cache
def claims() -> dict[str, list[tuple[str, str]]]:
    """Return kind and name of the plug-ins that a function's name may mean, nothing imported."""
    named: dict[str, list[tuple[str, str]]] = {}
    for kind in MAKERS:
        for name in registry.names(kind):
            named.setdefault(python_name(name), []).append((kind, name))
    return named


def function_of(label: str) -> Any:
    """Return the function or the codec of a name.

    Raises:
        AttributeError: nothing is called so, several plug-ins are, or it can be no function.
    """
    meant = claims().get(label, [])
    if not meant:
        hint = nearest(label, claims(), "dir(fedbench.functional) lists all")
        raise AttributeError(f"fedbench.functional has no {label!r}; {hint}")
    made = {}
    refused = []
    for kind, name in meant:
        try:
            made[kind] = MAKERS[kind](name)
        except ConfigError as error:
            refused.append(str(error))
    if len(made) == 1:
        return next(iter(made.values()))
    if not made:
        raise AttributeError("; ".join(refused))
    ways = " or ".join(f"{WORDS[kind]}({name!r})" for kind, name in meant if kind in made)
    raise AttributeError(f"fedbench.functional.{label} means two plug-ins; use {ways}")


def functions() -> dict[str, Any]:
    """Return all functions and codecs by name; what cannot be made is left out."""
    made = {}
    for label in claims():
        try:
            made[label] = function_of(label)
        except Exception:  # another package's broken plug-in must not hide the others
            continue
    return made


def refusals() -> dict[str, str]:
    """Return why plug-ins have no function, by name."""
    reasons = {}
    for label in claims():
        try:
            function_of(label)
        except AttributeError as error:
            reasons[label] = str(error)
        except Exception as error:
            reasons[label] = error_line(error)
    return reasons


def stub() -> str:
    """Return the stub file of `fedbench.functional`, from which editors and mypy read."""
    lines = [HEADER]
    for label, made in sorted(functions().items()):
        if isinstance(made, Codec):
            lines.append(f"class _{label}(Codec):")
            promise = str(made.promise or "")
            lines.append(_declared(made.encode, "    ", promise))
            lines += [_declared(method, "    ") for method in (made.decode, made.bits)]
            lines.append(f"{label}: _{label}\n{_quoted(made.summary, '')}")
        else:
            lines.append(_declared(made, ""))
    return "\n".join(lines) + "\n"


def table() -> str:
    """Return the tables of all functions in Markdown, for the docs."""
    lines: list[str] = []
    for kind, title in TITLES.items():
        lines += [f"### {title}", "", "| function | what it does |", "|---|---|"]
        lines += [f"| `{call}` | {does} |" for call, does in _entries(kind)]
        lines.append("")
    lines += ["### Without a function", "", "| name | why |", "|---|---|"]
    for label, why in sorted(refusals().items()):
        reason = why.removeprefix(f"{label} has no function: ").removeprefix(
            f"{label} has no codec: "
        )
        lines.append(f"| `{label}` | {reason.removesuffix('; play it in a run')} |")
    return "\n".join(lines) + "\n"


def _entries(kind: str) -> Iterator[tuple[str, str]]:
    for label, made in sorted(functions().items()):
        if kind not in {claim for claim, _ in claims()[label]}:
            continue
        words = (inspect.getdoc(made) or "").partition("\n\n")[0]
        does = " ".join(words.split()).replace("|", "\\|")
        if isinstance(made, Codec):
            promise = str(made.promise or "").replace("|", "\\|")
            yield f"{label}.encode(x)", f"{does} {promise}".strip()
            continue
        parameters = inspect.signature(made).parameters.values()
        needed = [p for p in parameters if p.default is p.empty]
        given = [f"{p.name}=" if p.kind is p.KEYWORD_ONLY else p.name for p in needed]
        yield f"{label}({', '.join(given)})", does


def _declared(function: Callable[..., Any], indent: str, more: str = "") -> str:
    signature = inspect.signature(function)
    parts = ["self"] if indent else []
    starred = False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        default = "" if p.default is p.empty else f" = {p.default!r}"
        parts.append(f"{p.name}: {annotated(p.annotation)}{default}")
    returns = annotated(signature.return_annotation)
    head = f"{indent}def {function.__name__}({', '.join(parts)}) -> {returns}:"
    words = summary(inspect.getdoc(function) or "", more)
    return f"{head}\n{_quoted(words, indent + '    ')}"


def _quoted(text: str, indent: str) -> str:
    lines = [f"{indent}{line}".rstrip() for line in text.replace('"""', "'''").splitlines()]
    raw = "r" if "\\" in text else ""
    closing = f'{indent}"""' if len(lines) > 1 else '"""'
    body = "\n".join(lines).removeprefix(indent)
    return f'{indent}{raw}"""{body}{chr(10) if len(lines) > 1 else ""}{closing}\n'


HEADER = '''"""Rules, attacks, codecs and epsilon as plain functions on tensors.

Written by ``python -m fedbench.functional``; other packages' plug-ins are here at run time.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any, Literal

from torch import Tensor

from fedbench.api import Defense
from fedbench.api import Findings as Findings
from fedbench.core.rng import Key
from fedbench.functional.attacks import attack as attack
from fedbench.functional.budgets import epsilon as epsilon
from fedbench.functional.budgets import privacy_cost as privacy_cost
from fedbench.functional.budgets import with_epsilon as with_epsilon
from fedbench.functional.codecs import Codec as Codec
from fedbench.functional.codecs import codec as codec
from fedbench.functional.forms import Rows as Rows
from fedbench.functional.forms import Vector as Vector
from fedbench.functional.rules import prefilter as prefilter
from fedbench.functional.rules import rule as rule
from fedbench.models.network import Network

def __getattr__(name: str) -> Any: ...
'''
