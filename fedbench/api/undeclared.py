"""Advice to plug-ins that read what they did not declare, which is None in their view."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedbench.core.blame import Hook, error_line
from fedbench.core.errors import PluginError

ATTACK = {  # field of the view, and how an attack declares that it reads it
    "defense": 'return Knowledge("colluders", defense=True) from needs',
    "state": 'return Knowledge("colluders", state=True) from needs',
    "rehearsal": 'return Knowledge("colluders", data=True) from needs',
    "recruits": "let recruits be their number",
}
DEFENSE = {
    "root": "return Traits(root=True) from traits",
    "truth": "return Traits(oracle=True) from traits",
    "network": "return Traits(network=True) from traits",
}
FIRST = "what it remembers is None before its first round"


@contextmanager
def advised(hook: Hook, view: object, ways: Mapping[str, str], memory: object) -> Iterator[None]:
    """Name the field of a view that a hook failed on because it was not declared, and the remedy.

    An error about None that no such field explains is told of the ``memory``, if that is None.
    """
    try:
        yield
    except PluginError as error:
        cause = error.__cause__
        if cause is None or not _is_about_none(cause):
            raise
        missing = [name for name in ways if getattr(view, name) is None and _reads(cause, name)]
        if missing:
            name = missing[0]
            problem = f"read view.{name}, which it did not declare ({error_line(cause)})"
            raise hook.wrong(f"{problem}; {ways[name]}") from cause
        if memory is None and not isinstance(cause, AssertionError):
            raise hook.wrong(f"{error.problem}; {FIRST}") from cause
        raise


def _is_about_none(error: BaseException) -> bool:
    about = isinstance(error, TypeError | AttributeError) and "NoneType" in str(error)
    return about or isinstance(error, AssertionError)


def _reads(error: BaseException, name: str) -> bool:
    """Return whether the traceback of an error has a line that reads the field ``name``.

    A function without source counts if it has the name anywhere.
    """
    for frame, number in traceback.walk_tb(error.__traceback__):
        lines = traceback.StackSummary.extract([(frame, number)])
        text = lines[0].line if lines else ""
        if text:
            if re.search(rf"\.{name}\b", text):
                return True
        elif name in frame.f_code.co_names:
            return True
    return False
