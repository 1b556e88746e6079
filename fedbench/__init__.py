"""fedbench: communication-efficient federated learning on trial.

>>> import fedbench
>>> fedbench.Scenario(protocol="fsl", attack="rank-reversal").rounds
40
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.analysis.results import load
    from fedbench.experiment.callbacks import Callback
    from fedbench.experiment.measurements import Round
    from fedbench.experiment.record import Record
    from fedbench.experiment.scenario import Scenario
    from fedbench.run import play

__all__ = ["Callback", "Record", "Round", "Scenario", "load", "play"]

_HOMES = {
    "Callback": "fedbench.experiment.callbacks",
    "Record": "fedbench.experiment.record",
    "Round": "fedbench.experiment.measurements",
    "Scenario": "fedbench.experiment.scenario",
    "load": "fedbench.analysis.results",
    "play": "fedbench.run",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `fedbench --help` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedbench' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
