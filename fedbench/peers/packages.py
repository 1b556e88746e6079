"""Packages of other projects: their versions, and one line where one is absent."""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from fedbench.core.errors import ConfigError, few, nearest, require

FLWR = "flwr[simulation]>=1.26,<1.43"  # what was run, see docs/how-to/flower.md
INSTALLED_BY = {  # what pip is asked for
    "flwr": f"pip install '{FLWR}'",
    "byzfl": "pip install byzfl==0.0.11",
    "byzpy": "pip install --no-deps byzpy==0.1.4, which asks for an older torch",
}


def installed_version(package: str) -> str:
    """Return the version of a package; `ConfigError` with a command if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise ConfigError(
            f"{package} must be installed, got none; run {INSTALLED_BY[package]}"
        ) from error


def pinned_version(package: str, asked: str | None) -> str:
    """Return the installed version; `ConfigError` unless it is the one that is asked for, if any.

    It is a parameter of a plug-in, so that records say it and runs of two versions have two ids.
    """
    here = installed_version(package)
    requirement = f"the installed one, {here}; install {package}=={asked} or leave it out"
    require(f"{package}:version", asked, asked in (None, here), requirement)
    return here


def submodule(package: str, name: str) -> ModuleType:
    """Import a module of an installed package without running the package's own ``__init__``.

    That of byzfl imports its benchmark, and with it torchvision, which a rule does not need and
    whose compiled part may not fit this torch. `ConfigError` if it cannot be imported.
    """
    installed_version(package)
    stands_in = package not in sys.modules
    try:
        if stands_in:
            spec = find_spec(package)
            shell = ModuleType(package)
            places = spec.submodule_search_locations if spec is not None else None
            shell.__path__ = list(places or [])
            sys.modules[package] = shell
        return importlib.import_module(f"{package}.{name}")
    except ImportError as error:
        raise ConfigError(
            f"{package} {version(package)} must have a module {name}, got {error}; "
            "install the version that docs/peers.md names"
        ) from error
    finally:
        if stands_in:
            sys.modules.pop(package, None)


def spelled(kind: str, package: str, name: str, names: tuple[str, ...]) -> str:
    """Return the class name as its project spells it; `ConfigError` if it is none of these.

    Capitals do not matter: a record writes parameters in small letters.
    """
    by_letters = {each.lower(): each for each in names}
    if name.lower() not in by_letters:
        hint = nearest(name, names, f"known: {few(names, most=20)}")
        raise ConfigError(f"--{kind} {package} has no {name!r}; {hint}")
    return by_letters[name.lower()]


def given(kind: str, text: str, takes: dict[str, str], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor: those fields that are not None, by its own names.

    ``takes`` maps fields to arguments; `ConfigError` for a field that it does not take.
    """
    typed = {name: value for name, value in fields.items() if value is not None}
    for name in typed:
        if name not in takes:
            hint = f"parameters: {', '.join(takes) or 'none'}"
            raise ConfigError(f"--{kind} {text} has no parameter {name!r}; {hint}")
    return {takes[name]: value for name, value in typed.items()}
