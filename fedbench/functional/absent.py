"""Stand-in for a model that nobody gave, and errors of plug-ins that ask for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from fedbench.core.errors import ConfigError, IllegalPayloadError, PluginError
from fedbench.payload import FloatVectors


class MissingModel(ConfigError):
    """The weights that a server sent, which a plug-in reads and nobody gave."""


@dataclass(frozen=True, eq=False)
class Absent(FloatVectors):
    """A broadcast that was not given: whoever reads its values is told so."""

    def values(self) -> Tensor:
        """Raise `MissingModel`, which `mended` names after the function."""
        raise MissingModel("model")


@contextmanager
def mended(label: str) -> Iterator[None]:
    """Say what is missing or illegal in one line that begins with the function's name."""
    try:
        yield
    except PluginError as error:
        if isinstance(error.__cause__, MissingModel):
            raise ConfigError(
                f"{label} must be given model=..., the weights that the server sent"
            ) from error
        raise
    except IllegalPayloadError as error:
        raise ConfigError(f"{label}(x): {error}") from error
