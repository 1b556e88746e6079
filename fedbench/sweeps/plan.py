"""Plans of sweeps as people write them: TOML files of grids in which any list is an axis."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from fedbench.core import registry
from fedbench.core.errors import ConfigError, few, nearest
from fedbench.core.presets import read_preset
from fedbench.experiment.cells import AXES, Cell, Run, Skipped
from fedbench.experiment.scenario import LAST_SEED, Scenario
from fedbench.sweeps.grid import MOST_CELLS, Grid, unite

FIELDS = tuple(name for name in Scenario.model_fields if name != "seed")
PLUGINS = tuple(kind for kind in registry.KINDS if kind in FIELDS)  # fields that name a plug-in
TABLES = ("title", "seeds", "scenario", "grid")


@dataclass(frozen=True, eq=False)
class Plan:
    """A title, the seeds that every cell is played with, and grids."""

    title: str
    seeds: tuple[int, ...]
    grids: tuple[Grid, ...]

    @classmethod
    def preset(cls, name: str, overrides: Mapping[str, Any]) -> Plan:
        """Return the preset of that name, or a `ConfigError`, with some of its fields replaced."""
        return cls.of(read_preset(name), name, overrides)

    @classmethod
    def of(cls, table: Mapping[str, Any], name: str, overrides: Mapping[str, Any] = {}) -> Plan:
        """Make the sweep that parsed TOML describes; a `ConfigError` about it names ``name``."""
        _only(table, TABLES, name, "is no part of a sweep")
        scenario = table.get("scenario", {})
        grids = table.get("grid", [{}])
        requirement = f"{name}: must have one [scenario] and [[grid]] tables"
        if not isinstance(scenario, dict):
            raise ConfigError(f"{requirement}, got scenario = {scenario!r}")
        if not grids or not isinstance(grids, list) or not all(isinstance(x, dict) for x in grids):
            got = "a table [grid]" if isinstance(grids, dict) else f"grid = {grids!r}"
            raise ConfigError(f"{requirement}, got {got}")
        if not table:
            raise ConfigError(
                f"{name}: must have a table [scenario] or [[grid]], got an empty file"
            )
        title = table.get("title", name)
        if not isinstance(title, str) or not title.isprintable():
            raise ConfigError(f"{name}: title must be one printable line, got {title!r}")
        shared = _axes(scenario, f"{name}: [scenario]")
        axes = [_axes(grid | overrides, f"{name}: grid {i + 1}") for i, grid in enumerate(grids)]
        return cls(
            title=title,
            seeds=_seeds(table.get("seeds", [0, 1, 2]), name),
            grids=tuple(Grid(_plugins_last(shared | own)) for own in axes),
        )

    def cells(self) -> tuple[list[Cell], list[Skipped]]:
        """Return the cells of all grids, each once, and what was left out, see `unite`."""
        return unite(self.grids)

    def with_lr(self, lr: float) -> Plan:
        """Set the learning rate of every protocol that does not name its own."""
        grids = []
        for grid in self.grids:
            parts = map(registry.split, grid.axes.get("protocol", ("fedavg",)))
            taught = [registry.joined(name, {"lr": str(lr)} | params) for name, params in parts]
            grids.append(Grid({**grid.axes, "protocol": tuple(taught)}))
        return dataclasses.replace(self, grids=tuple(grids))


def runs(cells: Iterable[Cell], seeds: Sequence[int]) -> list[Run]:
    """Return every cell with every seed, cell by cell."""
    return [Run(cell, seed) for cell in cells for seed in seeds]


def _axes(table: Mapping[str, Any], where: str) -> dict[str, tuple[Any, ...]]:
    """Return the values of every field of a table."""
    for name in ("seed", "seeds"):
        if name in table:
            raise ConfigError(
                f"{where}: {name} is no axis; write seeds = [0, 1, 2] above [scenario]"
            )
    _only(table, FIELDS, where, "is no axis")
    return {name: _values(name, value, where) for name, value in table.items()}


def _plugins_last(axes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """Return the axes in the order in which they vary: plug-ins come last, so they vary fastest."""
    others = {name: values for name, values in axes.items() if name not in AXES}
    return others | {name: axes[name] for name in AXES if name in axes}


def _values(name: str, value: Any, where: str) -> tuple[Any, ...]:
    """Return the values of one field: a list is an axis, a table a plug-in with axes of its own."""
    listed = _listed(value)
    if not listed:
        raise ConfigError(f"{where}: {name} must have a value, got []")
    out: list[Any] = []
    for entry in listed:
        if isinstance(entry, dict):
            out += _texts(name, entry, where)
        elif isinstance(entry, list) or (name in PLUGINS and not isinstance(entry, str)):
            kind = "a name or a table" if name in PLUGINS else "a value"
            raise ConfigError(f"{where}: {name} must be {kind} or a list of them, got {entry!r}")
        else:
            out.append(entry)
    if len({isinstance(entry, bool) for entry in out}) > 1:  # true equals 1, so one would be lost
        raise ConfigError(f"{where}: {name} must have values of one kind, got {value!r}")
    return tuple(dict.fromkeys(out))


def _texts(kind: str, table: Mapping[str, Any], where: str) -> list[str]:
    """Expand ``{name = "dyn-opt", via = ["codec", "wire"]}`` to ``name:param=value`` texts."""
    if kind not in PLUGINS or not isinstance(table.get("name"), str):
        raise ConfigError(
            f"{where}: {kind} must be a value, or for a plug-in a table with its name and "
            f"parameters, got {dict(table)!r}"
        )
    plugin = f"{where}: {table['name']}"
    params = {key: _listed(value) for key, value in table.items() if key != "name"}
    for key, axis in params.items():
        if not axis:
            raise ConfigError(f"{plugin}.{key} must have a value, got []")
    if (count := math.prod(map(len, params.values()))) > MOST_CELLS:
        raise ConfigError(f"{plugin} must mean at most {MOST_CELLS} variants, got {count}")
    texts = []
    for values in product(*params.values()):
        plain = (str(x).lower() if isinstance(x, bool) else str(x) for x in values)
        texts.append(registry.joined(table["name"], dict(zip(params, plain, strict=True))))
        try:
            registry.load(kind, texts[-1])
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
    return texts


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _seeds(value: Any, name: str) -> tuple[int, ...]:
    listed = value if isinstance(value, list) else [value]
    whole = all(type(seed) is int and 0 <= seed <= LAST_SEED for seed in listed)
    if not listed or not whole or len(set(listed)) < len(listed):
        requirement = "distinct integers in 0 .. 2**63 - 1"
        raise ConfigError(f"{name}: seeds must be {requirement}, got {value!r}")
    return tuple(listed)


def _only(table: Mapping[str, Any], names: Sequence[str], where: str, requirement: str) -> None:
    for key in table:
        if key not in names:
            hint = nearest(key, names, f"known: {few(names)}")
            raise ConfigError(f"{where}: {key!r} {requirement}; {hint}")
