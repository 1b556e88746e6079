"""fedbench: communication-efficient federated learning on trial.

>>> import fedbench
>>> fedbench.Scenario(protocol="fsl", attack="rank-reversal").rounds
40
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.experiment.record import Record
    from fedbench.experiment.scenario import Scenario
    from fedbench.run import play

__all__ = ["Record", "Scenario", "play"]

_HOMES = {
    "Record": "fedbench.experiment.record",
    "Scenario": "fedbench.experiment.scenario",
    "play": "fedbench.run",
}
_ROOMS = ("functional",)


def __getattr__(name: str) -> Any:
    """Import on first use: `fedbench --help` does not wait for torch."""
    if name not in _HOMES and name not in _ROOMS:
        raise AttributeError(f"module 'fedbench' has no attribute {name!r}")
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"fedbench.{name}")
    return getattr(import_module(_HOMES[name]), name)
