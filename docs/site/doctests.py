"""Extension of Griffe: doctests in docstrings become code, not quotations of quotations."""

import re
from typing import Any

import griffe

_DOCTEST = re.compile(r"^( *)>>> .*\n?(?:(?!\1 *$)\1.*\S.*\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Put the doctests of every object into fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring before it is parsed."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = _DOCTEST.sub(fenced, text)


def fenced(match: re.Match[str]) -> str:
    """Return a doctest, to the next empty line, in a fence of its own indentation."""
    indent = match[1]
    return f"{indent}```pycon\n{match[0].rstrip()}\n{indent}```\n"
