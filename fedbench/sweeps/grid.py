"""Grids of scenarios: the runs that a grid means, and combinations that cannot exist."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from fedbench.core import registry
from fedbench.core.choices import ALL, INSTALLED, STRONGEST, SUMS
from fedbench.core.errors import ConfigError, Incompatible, PluginError, UnknownPluginError
from fedbench.experiment.cells import AXES, Cell, Skipped, differing
from fedbench.experiment.compatibility import Plugins, load_plugins
from fedbench.experiment.scenario import ADVERSARY, Scenario
from fedbench.sweeps.ensemble import budget, expand

MOST_CELLS = 100_000  # combinations of a grid, each of which is held in memory
# fields that matter only with a mechanism, or a protocol with noise of its own
PRIVACY = ("delta", "adjacency", "sees")


@dataclass(frozen=True, eq=False)
class Grid:
    """Every combination of some values of some fields of a scenario.

    ``axes`` are the values of each field, in the order in which they vary, the first one slowest;
    protocol, mechanism, defense and attack always vary last. The clean run, attack ``none``, is
    always part of it and comes first. Names of several attacks (`fedbench.sweeps.ensemble`) stand
    for those that fit the protocol. A combination that would repeat a run under another description
    is skipped: an attack by nobody, a delta without a mechanism, a share that no rule reads.
    """

    axes: Mapping[str, tuple[Any, ...]]

    @property
    def varied(self) -> tuple[str, ...]:
        """Fields with several values, beside the plug-ins that are tried."""
        return tuple(name for name, values in self._others().items() if len(values) > 1)

    def cells(self) -> tuple[list[Cell], list[Skipped]]:
        """Return the cells in order, and what was left out; an unknown name is a `ConfigError`."""
        cells: list[Cell] = []
        skipped: list[Skipped] = []
        for fields, sought in self._combinations():
            scenario = Scenario.of(**fields)
            try:
                self._distinct(scenario, load_plugins(scenario))
            except (Incompatible, PluginError, UnknownPluginError) as error:
                named = scenario.attack in ("none", *self.axes.get("attack", ()))
                if named and not isinstance(error, Incompatible):  # not one of several by one name
                    raise
                skipped.append(
                    Skipped(scenario.protocol, scenario.defense, scenario.attack, str(error))
                )
            else:
                cells.append(Cell(scenario, self.varied, sought, listed=not sought))
        return cells, skipped

    def _combinations(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Yield fields of a scenario, and the budget of the search that it belongs to."""
        parts = {name: dict.fromkeys(self.axes.get(name, (_DEFAULTS[name],))) for name in AXES}
        parts["attack"] = dict.fromkeys(["none", *parts["attack"]])
        for kind, texts in parts.items():
            for text in texts:
                if text != "own" and not (kind == "attack" and _is_several(text)):
                    with suppress(Incompatible):  # of a chain, whose cells are left out
                        registry.load(kind, text)
        values = {**{k: dict.fromkeys(v) for k, v in self._others().items()}, **parts}
        if (count := math.prod(map(len, values.values()))) > MOST_CELLS:
            raise ConfigError(f"a grid must mean at most {MOST_CELLS} combinations, got {count}")
        seen: set[tuple[Any, ...]] = set()
        for combination in product(*values.values()):
            fields = dict(zip(values, combination, strict=True))
            typed = fields["attack"]
            sought = budget(typed) if registry.split(typed)[0] == STRONGEST else 0
            split = fields.get("split", "per-client")
            if sought and split != "per-client":
                raise ConfigError(
                    f"--attack {STRONGEST} must have validation data to choose on, got --split "
                    f"{split}, which leaves none; use --split per-client, or name the attacks"
                )
            for attack in expand(typed, fields["protocol"], _cap(fields)):
                expanded = fields | {"attack": attack}
                if (key := (*expanded.values(), sought)) not in seen:
                    seen.add(key)
                    yield expanded, sought

    def _others(self) -> dict[str, tuple[Any, ...]]:
        return {name: values for name, values in self.axes.items() if name not in AXES}

    def _distinct(self, scenario: Scenario, plugins: Plugins) -> None:
        """Raise `Incompatible` for a combination that describes the same run as another one."""
        if scenario.malicious == 0 and scenario.attack != "none":
            raise Incompatible("nobody is malicious")
        defense = plugins.defense_name
        draws = plugins.defense.traits().randomized
        for idle, names, where in (
            (plugins.noises(scenario) == 0, PRIVACY, "without a mechanism"),
            (scenario.attack == "none", ADVERSARY, "without an attack"),
            (not draws, ("defense_draw",), f"to {defense}, which draws nothing,"),
            (not plugins.declares, ("declared",), f"to {defense}"),
        ):
            for name in names if idle else ():
                values = self.axes.get(name, ())
                if len(values) > 1 and getattr(scenario, name) != values[0]:
                    raise Incompatible(f"{where} another {name} changes nothing")


_DEFAULTS = {"protocol": "fedavg", "mechanism": "none", "defense": "own", "attack": "none"}


def _cap(fields: Mapping[str, Any]) -> str | None:
    """Return the most that an attack may be shown: secure aggregation hides the benign messages."""
    cap: str | None = fields.get("knowledge")
    if fields.get("sees") in SUMS and (cap is None or cap.startswith("all")):
        return "colluders" + (cap or "all+defense+state").removeprefix("all")
    return cap


def _is_several(attack: str) -> bool:
    name, params = registry.split(attack, "--attack")
    if name in (ALL, INSTALLED) and params:
        raise ConfigError(f"--attack {name} must stand alone, got {attack!r}; leave the rest out")
    return name in (ALL, INSTALLED, STRONGEST)


def unite(grids: Iterable[Grid]) -> tuple[list[Cell], list[Skipped]]:
    """Return the cells of all grids, each once, and what was left out; `ConfigError` without cells.

    Last come the clean twins of backdoors, see `Cell.twin`: the success of a backdoor says nothing
    without how often a model that it never touched falls for it.
    """
    cells: dict[Scenario, Cell] = {}  # by resolved scenario: ``own`` may be ``mean``
    skipped: dict[Skipped, None] = {}
    varied: dict[str, None] = {}
    for grid in grids:
        good, bad = grid.cells()
        varied |= dict.fromkeys(grid.varied)
        for cell in good:
            first = cells.get(cell.resolved, cell)
            sought = max(first.sought, cell.sought)
            cells[cell.resolved] = replace(first, sought=sought, listed=first.listed or cell.listed)
        skipped |= dict.fromkeys(bad)
    if not cells:
        raise ConfigError(f"no combination can run: {next(iter(skipped)).reason}")
    varied |= dict.fromkeys(differing([cell.scenario for cell in cells.values()]))
    united = [replace(cell, varied=tuple(varied)) for cell in cells.values()]
    twins = [cell.twin for cell in united if cell.backdoor]
    return list(dict.fromkeys([*united, *twins])), list(skipped)
