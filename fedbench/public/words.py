"""Errors in the words of Python, where the engine speaks of options of the command line."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedbench.core.errors import FedbenchError, PluginError
from fedbench.experiment.scenario import pythonic


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
