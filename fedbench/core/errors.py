"""Errors of users and plug-ins: the command line prints them in one line and exits 2."""

import difflib
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

MAX_NAMED_CLIENTS = 5  # clients that an error names before it counts the others
MAX_LINE = 300  # characters of a line
ONE_OF_THEM = "name one of them"  # of several names; borders that take several say how
_LONG = re.compile(r"\S{121,}")


class FedbenchError(Exception):
    """Subject, requirement, what we got, what to do: one line, lower case, no full stop."""


class ConfigError(FedbenchError):
    """A parameter, a file or a combination that cannot be run as asked."""


class Unavailable(ConfigError):
    """Something that this machine lacks and another may have, on which a sweep plays again."""


class Incompatible(ConfigError):
    """Parts that exist, but not together: a sweep lists them as skipped."""


class NoTheorem(Incompatible):
    """A guarantee without a proof: it is refused with the reason, never priced."""


class UnknownPluginError(ConfigError):
    """A name that no plug-in has, or several have, or one whose import fails."""


class IllegalPayloadError(FedbenchError):
    """A message that its wire format does not allow."""


@dataclass(eq=False, repr=False)
class PluginError(FedbenchError):
    """A plug-in that raised or returned something illegal; the cause has the traceback."""

    plugin: str  # kind, name and package
    hook: str  # its method
    problem: str  # "raised ..." or "must return ..."
    step: int | None = None  # round, from 0; None outside of one
    clients: tuple[int, ...] = ()  # that the call was for

    def __str__(self) -> str:
        """Format the error as one line.

        >>> str(PluginError("attack moody (package m 1.0)", "craft", "raised KeyError", 3, (7,)))
        'attack moody (package m 1.0): craft in round 3 for client 7 raised KeyError'
        """
        where = "" if self.step is None else f" in round {self.step}"
        named = ", ".join(map(str, self.clients[:MAX_NAMED_CLIENTS]))
        more = len(self.clients) - MAX_NAMED_CLIENTS
        named += f" and {more} more" if more > 0 else ""
        whom = f" for client{'s' * (len(self.clients) > 1)} {named}" if named else ""
        return f"{self.plugin}: {self.hook}{where}{whom} {self.problem}"


def require(subject: str, value: object, holds: bool, requirement: str) -> None:
    """Raise `ConfigError`, which names subject, requirement and value, unless it ``holds``.

    >>> require("ALIE.z", -1.0, False, "None or >= 0")
    Traceback (most recent call last):
    fedbench.core.errors.ConfigError: ALIE.z must be None or >= 0, got -1.0
    """
    if not holds:
        raise ConfigError(f"{subject} must be {requirement}, got {value!r}")


def require_label(subject: str, label: int, classes: int) -> None:
    """Raise `ConfigError` unless a task of so many ``classes`` has this label."""
    require(subject, label, label < classes, f"a label from 0 to {classes - 1}")


def require_share(subject: str, value: float, clients: int) -> None:
    """Raise `ConfigError` for a share that is not in [0, 1), with what was probably meant."""
    ways = []
    if 1 <= value < clients and value % 1 == 0:
        ways.append(f"{value:g} of {clients} clients are {value / clients:g}")
    if 1 <= value < 100:
        ways.append(f"{value:g} % are {value / 100:g}")
    hint = f"; {', '.join(ways)}" if ways else ""
    if not 0 <= value < 1:
        raise ConfigError(f"{subject} must be in [0, 1), got {value!r}{hint}")


def refusal(subject: str, error: Any) -> str:
    """Return the line about a value that pydantic refuses with this `ValidationError`.

    >>> import pydantic
    >>> try:
    ...     pydantic.TypeAdapter(int).validate_python("ten")
    ... except pydantic.ValidationError as error:
    ...     refusal("--clients", error)
    "--clients must be a whole number, got 'ten'"
    """
    first = error.errors()[0]
    message = re.sub(r", (unable to|got a) .*", "", first["msg"])
    message = (
        message.replace("a valid integer", "a whole number")
        .replace("a valid boolean", "true or false")
        .replace("a valid ", "a ")
    )
    requirement = message.removeprefix("Input should be ")
    words = f": {message.lower()}" if requirement == message else f" must be {requirement}"
    return f"{subject}{words}, got {first['input']!r}"


def few(names: Iterable[object], most: int = 8) -> str:
    """Return up to ``most`` names for a sentence, and their number where that is not all.

    >>> few(["a", "b"]), few("abcdef", most=3)
    ('a, b', 'a, b, c, ... (6 in all)')
    """
    texts = [str(name) for name in names]
    if len(texts) <= most:
        return ", ".join(texts)
    return f"{', '.join(texts[:most])}, ... ({len(texts)} in all)"


def nearest(name: str, names: Iterable[str], otherwise: str, prefilters: Iterable[str] = ()) -> str:
    """Return a suggestion for a misspelt name, or the text for names without one.

    A name that begins with ``prefilters`` is read as a chain that is written wrong.

    >>> nearest("ALIE", ["alie", "ipm"], "known: alie, ipm")
    "did you mean 'alie'?"
    >>> nearest("alie,ipm", ["alie", "ipm"], "known: alie, ipm")
    'name one of them'
    >>> nearest("nnm + krum", ["krum"], "known: krum", ["arc", "nnm"])
    'a chain is written nnm+krum'
    >>> nearest("nnm,arc", ["krum", "nna"], "known: krum, nna", ["arc", "nnm"])
    'a chain ends with a rule: nnm+arc+RULE'
    """
    listed = list(names)
    *before, last = re.split(r"[\s,+]+", name)
    if before and {*before} <= {*prefilters} and last in listed:
        return f"a chain is written {'+'.join([*before, last])}"
    if before and {*before, last} <= {*prefilters}:
        return f"a chain ends with a rule: {'+'.join([*before, last, 'RULE'])}"
    if set(name.split(",")) <= set(listed) - {name}:
        return ONE_OF_THEM
    matches = difflib.get_close_matches
    close = matches(name, listed, n=1) or matches(name.lower(), listed, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise


def one_line(text: str, most: int = MAX_LINE) -> str:
    r"""Return a text as one line that is safe to print on a terminal, of at most ``most`` letters.

    Control characters become escapes. Long words and lines lose their middle: the subject stands
    first and the remedy last.

    >>> one_line("a\x1b[31m\n b")
    'a\\x1b[31m b'
    """
    words = " ".join(text.split())
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words)
    shown = _LONG.sub(lambda word: _without_middle(word[0], 120), shown)
    return _without_middle(shown, most)


def show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """Print a warning in one line on stderr, in the place of `warnings.showwarning`."""
    print(one_line(f"fedbench: {message}"), file=sys.stderr)


def _without_middle(text: str, most: int) -> str:
    tail = most // 3
    return text if len(text) <= most else f"{text[: most - tail - 3]}...{text[-tail:]}"
