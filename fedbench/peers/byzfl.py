"""ByzFL's aggregators and attacks: ``--defense byzfl:SMEA``, ``--attack byzfl:Mimic``."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Knowledge, ServerView
from fedbench.core.errors import ConfigError
from fedbench.core.registry import UNWRITTEN
from fedbench.payload import Payload
from fedbench.peers.foreign_rule import Arguments, ForeignRule
from fedbench.peers.packages import given, pinned_version, spelled, submodule

F = {"f": "f"}


@dataclass(frozen=True, kw_only=True)
class ByzFLRule(ForeignRule):
    """Ask an aggregator of ByzFL, which gets the rows as one float32 tensor ``(n, k)``.

    Args:
        name: Name of the aggregator's class, such as SMEA or CAF.
        f: Malicious rows it is prepared for.
        nu: Smoothing of GeometricMedian.
        T: Iterations of GeometricMedian.
        L: Iterations of CenteredClipping.
        tau: Radius of CenteredClipping, which starts each round from its last answer.
        idx: Row that MoNNA trusts.
        version: Version of byzfl. By default the installed one; a record says it, and another one
            is refused.

    References:
        Gonzalez et al., "ByzFL: Research Framework for Robust Federated Learning", 2025,
        https://arxiv.org/abs/2505.24802.
    """

    package: ClassVar[str] = "byzfl"
    arguments: ClassVar[Arguments] = {
        "Average": {},
        "Median": {},
        "TrMean": F,
        "GeometricMedian": {"nu": "nu", "T": "T"},
        "Krum": F,
        "MultiKrum": F,
        "CenteredClipping": {"L": "L", "tau": "tau"},
        "MDA": F,
        "MoNNA": F | {"idx": "idx"},
        "Meamed": F,
        "CAF": F,
        "SMEA": F,
    }
    draws: ClassVar[tuple[str, ...]] = ("CAF", "SMEA")
    remembers: ClassVar[dict[str, str]] = {"CenteredClipping": "m"}

    name: str = "TrMean"
    f: int | None = None
    nu: float | None = field(default=None, metadata=UNWRITTEN)
    T: int | None = field(default=None, metadata=UNWRITTEN)
    L: int | None = field(default=None, metadata=UNWRITTEN)
    tau: float | None = field(default=None, metadata=UNWRITTEN)
    idx: int | None = field(default=None, metadata=UNWRITTEN)

    def rows_needed(self) -> int:
        return 2 * (self.f or 0) + 1  # of fewer it raises

    def made(self, n: int) -> Any:
        return getattr(submodule("byzfl", "aggregators.aggregators"), self.name)(
            **self.constructor()
        )

    def answered(self, rule: Any, x: Tensor, view: ServerView) -> Tensor:
        out: Tensor = rule(x.clone())
        return out


@dataclass(frozen=True, kw_only=True)
class ByzFLAttack(Attack):
    """Send the vector that an attack of ByzFL makes of the benign clients' messages, from everyone.

    Args:
        name: Name of the attack's class: SignFlipping, InnerProductManipulation, ALittleIsEnough,
            Mimic, Inf, or the two that search, Optimal_InnerProductManipulation and
            Optimal_ALittleIsEnough.
        tau: Strength of InnerProductManipulation and ALittleIsEnough.
        epsilon: Row that Mimic copies.
        agg: Aggregator of ByzFL that the two searches try, without a prefilter, prepared for as
            many rows as the adversary has; by default Average.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest legal
            message with the honest headers, also where its values are not what is compressed.
        version: Version of byzfl. By default the installed one; a record says it, and another one
            is refused.

    References:
        Gonzalez et al., "ByzFL: Research Framework for Robust Federated Learning", 2025,
        https://arxiv.org/abs/2505.24802.
    """

    arguments: ClassVar[Arguments] = {
        "SignFlipping": {},
        "InnerProductManipulation": {"tau": "tau"},
        "ALittleIsEnough": {"tau": "tau"},
        "Mimic": {"epsilon": "epsilon"},
        "Inf": {},
        "Optimal_InnerProductManipulation": {"agg": "agg"},
        "Optimal_ALittleIsEnough": {"agg": "agg"},
    }

    name: str = "ALittleIsEnough"
    tau: float | None = field(default=None, metadata=UNWRITTEN)
    epsilon: int | None = field(default=None, metadata=UNWRITTEN)
    agg: str | None = field(default=None, metadata=UNWRITTEN)
    via: Literal["codec", "wire"] = "codec"
    version: str | None = None

    def __post_init__(self) -> None:
        name = spelled("attack", "byzfl", self.name, tuple(self.arguments))
        object.__setattr__(self, "name", name)  # frozen: these are normalised, not changed
        object.__setattr__(self, "version", pinned_version("byzfl", self.version))
        if self.agg is not None:
            agg = spelled("defense", "byzfl", self.agg, tuple(ByzFLRule.arguments))
            object.__setattr__(self, "agg", agg)
        self._constructor()

    def _constructor(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in ("tau", "epsilon", "agg")}
        return given("attack", f"byzfl:{self.name}", self.arguments[self.name], fields)

    def needs(self) -> Knowledge:
        return Knowledge("all")

    def _made(self, m: int) -> Any:
        """Return the attack of ``m`` clients."""
        arguments = self._constructor()
        if self.name.startswith("Optimal"):
            rule = ByzFLRule(name=self.agg or "Average").declared(m)
            arguments |= {"agg": rule.made(m), "pre_agg_list": [], "f": m}
        return getattr(submodule("byzfl", "attacks.attacks"), self.name)(**arguments)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        read = view.seen if len(view.seen) else view.own
        middle = read.origin()
        honest = read.values().to(torch.float32) - middle
        if self.epsilon is not None and self.epsilon >= len(honest):
            raise ConfigError(
                f"byzfl:{self.name}.epsilon must be below the {len(honest)} benign rows of a "
                f"round, got {self.epsilon}"
            )
        row = torch.as_tensor(self._made(len(view.own))(honest)).to(middle) + middle
        rows = row.expand(len(view.own), -1)
        dense = view.own.aligned and rows.shape[1] == view.updates.shape[1]
        codec = self.via == "codec" and dense
        view.notes["via"] = "codec" if codec else "wire"
        return (view.compress(rows) if codec else view.own.nearest(rows)), memory
