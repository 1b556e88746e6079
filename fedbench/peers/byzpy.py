"""ByzPy's aggregators as rules: ``--defense byzpy:Krum``."""

import importlib
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import ServerView
from fedbench.core.errors import ConfigError
from fedbench.core.registry import UNWRITTEN
from fedbench.peers.foreign_rule import Arguments, ForeignRule
from fedbench.peers.packages import installed_version

F = {"f": "f"}
HOMES = {  # modules of the classes, in byzpy.aggregators
    "MeanOfMedians": "coordinate_wise.mean_of_medians",
    "CoordinateWiseMedian": "coordinate_wise.median",
    "CoordinateWiseTrimmedMean": "coordinate_wise.trimmed_mean",
    "GeometricMedian": "geometric_wise.geometric_median",
    "Krum": "geometric_wise.krum",
    "MultiKrum": "geometric_wise.krum",
    "MinimumDiameterAveraging": "geometric_wise.minimum_diameter_average",
    "MoNNA": "geometric_wise.monna",
    "SMEA": "geometric_wise.smea",
    "CAF": "norm_wise.caf",
    "CenteredClipping": "norm_wise.center_clipping",
    "ComparativeGradientElimination": "norm_wise.comparative_gradient_elimination",
}


@dataclass(frozen=True, kw_only=True)
class ByzPyRule(ForeignRule):
    """Ask an aggregator of ByzPy, which gets the rows as a list of float32 tensors ``(k,)``.

    Args:
        name: Name of the aggregator's class, such as MeanOfMedians.
        f: Malicious rows it is prepared for.
        q: Rows that MultiKrum averages; by default ``n - f``.
        c_tau: Radius of CenteredClipping; by default 1.
        M: Iterations of CenteredClipping.
        max_iter: Iterations of GeometricMedian.
        reference_index: Row that MoNNA trusts.
        version: Version of byzpy. By default the installed one; a record says it, and another one
            is refused.

    References:
        ByzPy, https://github.com/Byzpy/byzpy, its aggregators.
    """

    package: ClassVar[str] = "byzpy"
    arguments: ClassVar[Arguments] = {
        "MeanOfMedians": F,
        "CoordinateWiseMedian": {},
        "CoordinateWiseTrimmedMean": F,
        "GeometricMedian": {"max_iter": "max_iter"},
        "Krum": F,
        "MultiKrum": F | {"q": "q"},
        "MinimumDiameterAveraging": F,
        "MoNNA": F | {"reference_index": "reference_index"},
        "SMEA": F,
        "CAF": F,
        "CenteredClipping": {"c_tau": "c_tau", "M": "M"},
        "ComparativeGradientElimination": F,
    }
    name: str = "CoordinateWiseTrimmedMean"
    f: int | None = None
    q: int | None = field(default=None, metadata=UNWRITTEN)
    c_tau: float | None = field(default=None, metadata=UNWRITTEN)
    M: int | None = field(default=None, metadata=UNWRITTEN)
    max_iter: int | None = field(default=None, metadata=UNWRITTEN)
    reference_index: int | None = field(default=None, metadata=UNWRITTEN)

    def rows_needed(self) -> int:
        return 2 * (self.f or 0) + 1

    def made(self, n: int) -> Any:
        arguments = self.constructor()
        if "f" in self.arguments[self.name]:
            arguments.setdefault("f", 0)
        if self.name == "MultiKrum":
            arguments.setdefault("q", n - (self.f or 0))
        if self.name == "CenteredClipping":
            arguments.setdefault("c_tau", 1.0)
        installed_version("byzpy")
        try:
            home = importlib.import_module(f"byzpy.aggregators.{HOMES[self.name]}")
        except ImportError as error:
            raise ConfigError(
                f"byzpy:{self.name} cannot be imported ({error}); install what it needs"
            ) from error
        return getattr(home, self.name)(**arguments)

    def answered(self, rule: Any, x: Tensor, view: ServerView) -> Tensor:
        return torch.as_tensor(rule.aggregate(list(x.clone())))
