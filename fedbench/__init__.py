"""fedbench: communication-efficient federated learning on trial.

>>> import fedbench
>>> fedbench.Scenario(protocol="fsl", attack="rank-reversal").rounds
40
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedbench.analysis.results import load
    from fedbench.core.registry import plugins, register
    from fedbench.experiment.callbacks import Callback
    from fedbench.experiment.checkpoints import Checkpoint
    from fedbench.experiment.measurements import Round
    from fedbench.experiment.record import Record
    from fedbench.experiment.scenario import Scenario
    from fedbench.public.playing import play, sweep

    __version__: str

__all__ = [
    "Callback",
    "Checkpoint",
    "Record",
    "Round",
    "Scenario",
    "__version__",
    "load",
    "play",
    "plugins",
    "register",
    "sweep",
]

_HOMES = {
    "Callback": "fedbench.experiment.callbacks",
    "Checkpoint": "fedbench.experiment.checkpoints",
    "Record": "fedbench.experiment.record",
    "Round": "fedbench.experiment.measurements",
    "Scenario": "fedbench.experiment.scenario",
    "load": "fedbench.analysis.results",
    "play": "fedbench.public.playing",
    "plugins": "fedbench.core.registry",
    "register": "fedbench.core.registry",
    "sweep": "fedbench.public.playing",
}
_ROOMS = ("functional",)


def __getattr__(name: str) -> Any:
    """Import on first use: `fedbench --help` does not wait for torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("fedbench-toolkit")
    if name not in _HOMES and name not in _ROOMS:
        raise AttributeError(f"module 'fedbench' has no attribute {name!r}")
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"fedbench.{name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """Return what the package offers, imported or not."""
    return __all__
