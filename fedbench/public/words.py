"""Errors in the words of Python, where the engine speaks of options of the command line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from fedbench.core.errors import ONE_OF_THEM, FedbenchError, PluginError
from fedbench.experiment.scenario import Scenario

_REMEDY = re.compile(r"\b(use|with|leave out|or) --([a-z][a-z-]*) ([\w+:=.,-]*\w)")
_OPTION = re.compile(r"--([a-z][a-z-]*)")


@contextmanager
def in_python() -> Iterator[None]:
    """Raise what fedbench refuses in the words of Python: ``Scenario.rounds``, not ``--rounds``."""
    try:
        yield
    except PluginError:
        raise  # its words are the plug-in's
    except FedbenchError as error:
        text = pythonic(str(error))
        if text == str(error):
            raise
        raise type(error)(text) from error


def pythonic(text: str) -> str:
    """Replace the options of the command line in an error by fields and arguments.

    >>> pythonic("--per-round must be <= 3, got --defense krum; use --mechanism none")
    "Scenario.per_round must be <= 3, got Scenario.defense krum; use mechanism='none'"
    >>> pythonic("--device must be auto, cpu or cuda, got 'tpu'")
    "device must be auto, cpu or cuda, got 'tpu'"
    """
    text = text.replace(ONE_OF_THEM, "for several write a Scenario for each")
    remedied = _REMEDY.sub(lambda m: f"{m[1]} {m[2].replace('-', '_')}={m[3]!r}", text)
    return _OPTION.sub(lambda m: _named(m[1].replace("-", "_")), remedied)


def _named(name: str) -> str:
    return f"Scenario.{name}" if name in Scenario.model_fields else name
