"""Presets, the sweeps that come with fedbench, by name; importing this does not import torch."""

import tomllib
from importlib.resources import files
from typing import Any

from fedbench.core.errors import ConfigError, few

FOLDER = files("fedbench") / "presets"


def preset_names() -> list[str]:
    """Return the names of the presets that come with fedbench."""
    names = [path.name for path in FOLDER.iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def require_preset(name: str) -> None:
    """Raise `ConfigError` for a name of no preset."""
    presets = preset_names()
    if name not in presets:
        raise ConfigError(f"--preset must be one of {few(presets, 20)}, got {name!r}")


def read_preset(name: str) -> dict[str, Any]:
    """Return the table of a preset; `ConfigError` for a name of none."""
    require_preset(name)
    return tomllib.loads((FOLDER / f"{name}.toml").read_text("utf-8"))
