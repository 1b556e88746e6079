"""Conditions of ``--where``: a field, a comparison, a value."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.measurements import Kind
from fedbench.results.fields import Fields, known, plugin_parts

_READS = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TEXTUAL = ("plug-in", "name", "texts")
Test = Callable[[Any], bool]


@dataclass(frozen=True)
class Condition:
    """Comparison of a field with a value; of several all must hold.

    Args:
        field: Name of the field.
        text: Condition as typed.
        holds: Tells whether a value of the field meets it.
    """

    field: str
    text: str
    holds: Test

    @classmethod
    def parse(cls, text: str, fields: Fields) -> Condition:
        """Parse a condition that reads ``FIELD OP VALUE``.

        Raises:
            ConfigError: it does not read so, there is no such field, or it has no such values.
        """
        read = _READS.fullmatch(text)
        if read is None:
            raise ConfigError(
                f"--where must read FIELD OP VALUE with one of = != < <= > >= ~, got {text!r}; "
                "for example 'accuracy>=0.5'"
            )
        field, comparison, value = read.groups()
        kind = fields[known(field, fields, f"--where {text!r}")]
        return cls(field, text.strip(), _test(text, kind, comparison, value))


def _test(text: str, kind: Kind, comparison: str, wanted: str) -> Test:
    if comparison in _ORDERS:
        if kind in (*_TEXTUAL, "yes"):
            raise ConfigError(f"--where {text!r} must compare numbers; use = or !=")
        order = _ORDERS[comparison]
        limit = _number(text, kind, wanted)
        return lambda value: isinstance(value, int | float) and order(value, limit)
    if comparison == "~":
        if kind not in _TEXTUAL:
            raise ConfigError(f"--where {text!r} must search in text; use = or !=")
        return lambda value: any(wanted in text for text in _texts(value))
    equals = _equals(text, kind, wanted)
    return equals if comparison == "=" else lambda value: not equals(value)


def _equals(text: str, kind: Kind, wanted: str) -> Test:
    if kind == "plug-in":
        return _plug_in(wanted)
    if wanted.lower() == "none":  # not measured; no flags
        return lambda value: value is None or value == []
    if kind == "yes":
        if wanted.lower() not in ("true", "false"):
            raise ConfigError(f"--where {text!r} must compare with true or false, got {wanted!r}")
        return lambda value: value is (wanted.lower() == "true")
    if kind in _TEXTUAL:
        return lambda value: wanted in _texts(value)
    number = _number(text, kind, wanted)
    return lambda value: value == number


def _plug_in(wanted: str) -> Test:
    """Test for a plug-in of this name with these parameters; it may have others."""
    name, params = registry.split(wanted)

    def test(value: Any) -> bool:
        its_name, its_params = plugin_parts(value) if isinstance(value, str) else (None, {})
        return its_name == name and all(
            key in its_params and _same(param, its_params[key]) for key, param in params.items()
        )

    return test


def _same(text: str, other: str) -> bool:
    try:
        return float(text) == float(other)
    except ValueError:
        return text.lower() == other.lower()


def _texts(value: Any) -> list[str]:
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, str) else []


def _number(text: str, kind: Kind, wanted: str) -> float:
    try:
        number = int(wanted) if wanted.lstrip("+-").isdigit() else float(wanted)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(f"--where {text!r} must compare with a number, got {wanted!r}")
    if kind in ("share", "points") and abs(number) > 1:
        raise ConfigError(
            f"--where {text!r} must compare with a share in [0, 1], got {wanted!r}; "
            f"write {number / 100:g} for {wanted} %"
        )
    return number
