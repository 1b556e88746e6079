"""Plug-ins that were given as objects: the text that stands for each, as `Scenario` holds it."""

import dataclasses
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from fedbench.api import Chain, Prefilter
from fedbench.core import registry
from fedbench.core.blame import error_line, shown
from fedbench.core.errors import ConfigError
from fedbench.data.datasets import Data, Dataset


@dataclasses.dataclass(frozen=True, eq=False)
class Given(Dataset):
    """Samples that were given as they are, as a data set."""

    data: Data

    @property
    def name(self) -> str:
        """Name that its owner gave it, in kebab case."""
        return registry.kebab(self.data.title) or "given"

    @property
    def identity(self) -> str:
        """SHA-256 of the samples and of how they are normalised, in hex."""
        return self.data.identity

    def load(self, folder: Path | None) -> Data:
        """Return the samples as they were given."""
        return self.data


def text_of(kind: str, value: Any) -> str:
    """Return the text that `registry.load` turns into an equal plug-in in this process.

    A class that no package installed is registered under its own name in kebab case. A model or a
    data set that no text describes is held as it is, under a name that ends with the first sixteen
    digits of its ``identity``, a SHA-256: runs on other weights or samples have other ids.

    Args:
        kind: Field of the scenario, such as ``attack``.
        value: Plug-in object; of a model also a `torch.nn.Module`, or a function that makes one; of
            a data set also `Data`.

    Raises:
        ConfigError: the value is no plug-in of this kind, its name is taken, or one of its
            parameters cannot be written as text.
    """
    if isinstance(value, type) and not (kind == "model" and _makes_a_module(value)):
        raise ConfigError(
            f"Scenario.{kind} must be a plug-in or its text, got the class {value.__name__}; "
            f"write {value.__name__}()"
        )
    if kind == "dataset" and isinstance(value, Data):
        value = Given(value)
    if kind == "model" and not registry.is_plugin(kind, type(value)) and callable(value):
        from fedbench.models.modules import ModuleModel

        value = ModuleModel(module=value)
    if kind == "dataset" and not registry.is_plugin(kind, type(value)):
        raise ConfigError(
            f"Scenario.dataset must be the name of a data set or samples, got {shown(value)}; "
            "write fedbench.data.own.from_arrays(x, y)"
        )
    if kind == "defense" and isinstance(value, Prefilter):
        name = type(value).__name__
        raise ConfigError(
            f"Scenario.defense must be a rule, got the prefilter {name}; write "
            f"{name}().before(Median()), or before another rule"
        )
    contract = registry.CONTRACTS[kind]
    if kind != "model" and not isinstance(value, resolve_name(contract)):
        raise ConfigError(
            f"Scenario.{kind} must be a plug-in or its text, got {shown(value)}; inherit {contract}"
        )
    identity = _identity(kind, value)
    if kind in ("dataset", "model") and isinstance(identity, str):
        name = f"{registry.kebab(getattr(value, 'name', type(value).__name__))}-{identity[:16]}"
        registry.hold(kind, name, value)
        return name
    if kind == "defense" and isinstance(value, Chain):
        return f"{_described('prefilter', value.first)}+{text_of('defense', value.rule)}"
    return _described(kind, value)


def _identity(kind: str, value: Any) -> object:
    """Return the ``identity`` of an object; None if its class has none."""
    try:
        return value.identity
    except AttributeError as error:  # of what computes it, if the class has it
        if not hasattr(type(value), "identity"):
            return None
        raise ConfigError(
            f"Scenario.{kind} must be made without an error, got {error_line(error)}"
        ) from error


def _makes_a_module(cls: type) -> bool:
    """Tell whether a class is that of a network, which can be made again for every run."""
    from torch import nn

    return issubclass(cls, nn.Module)


def _described(kind: str, value: Any) -> str:
    """Return name and parameters of a plug-in object, registering its class if nobody has."""
    cls = type(value)
    name = registry.name_of(kind, cls)
    if name is None:
        name = registry.kebab(cls.__name__)
        registry.register(kind, name)(cls)
    fields = [field.name for field in dataclasses.fields(value) if field.init]
    values = {field: getattr(value, field) for field in fields}
    for field, x in values.items():
        if not (x is None or isinstance(x, bool | int | float | str)):
            raise ConfigError(
                f"{cls.__name__}.{field} must be a number, a word or None, which text can say, "
                f"got {shown(x)}; make it in a method"
            )
    text = registry.describe(name, value)
    again = registry.load(kind, text)
    for field, x in values.items():
        if getattr(again, field) != x:
            raise ConfigError(
                f"{cls.__name__}.{field} must be the same when it is read from {text!r}, got {x!r} "
                f"and {getattr(again, field)!r}; use small letters, or a number"
            )
    return text
