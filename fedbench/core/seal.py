"""Digest of a record: SHA-256 of its text before the digest, whatever library writes it.

A record is sealed in one layout, a member a line and indented by one space; an archive holds it in
one line. Only white space changes: another library may write ``1e-05`` for ``0.00001``.
"""

import hashlib
import re

_STRING = r'"(?:[^"\\]|\\.)*"'
_SPACE = re.compile(rf"({_STRING})|\s+")
_TOKEN = re.compile(rf"{_STRING}|\[\]|\{{\}}|[\[\]{{}},:]|[^\"\[\]{{}},:]+")
# The digest and the times are the last members: nothing else can follow the digest.
_END = re.compile(r'\n "digest": "([0-9a-f]{64})",\n "timing": \{[^{}]*\n \}\n\}\n')


def one_line(text: str) -> str:
    """Return the JSON without white space between its tokens."""
    return _SPACE.sub(r"\1", text)


def laid_out(text: str) -> str:
    r"""Return the JSON in the layout of a record's file, with a final newline.

    >>> print(laid_out('{"a":[1e-05,{}],"b":"{,"}'), end="")
    {
     "a": [
      1e-05,
      {}
     ],
     "b": "{,"
    }
    """
    pieces = []
    depth = 0
    for token in _TOKEN.findall(one_line(text)):
        if token in ("]", "}"):
            depth -= 1
            pieces.append("\n" + " " * depth)
        pieces.append(": " if token == ":" else token)
        if token in ("[", "{"):
            depth += 1
        if token in ("[", "{", ","):
            pieces.append("\n" + " " * depth)
    return "".join(pieces) + "\n"


def digest(lines: str) -> str:
    """Return the digest of a record in that layout, with any digest in it, in hex digits."""
    return hashlib.sha256(lines[: lines.rindex('\n "digest":') + 1].encode()).hexdigest()


def holds(lines: str) -> bool:
    """Return whether a record in that layout has the digest of the text before it."""
    end = _END.fullmatch(lines, lines.rfind('\n "digest":'))
    return end is not None and end[1] == digest(lines)
