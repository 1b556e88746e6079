"""Campaign of audits: what is asked for, and the audits that answer it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedbench.audits.finding import AuditFinding
from fedbench.audits.likelihood import audit
from fedbench.audits.releases import ReleaseBench
from fedbench.audits.runs import one_run_bound, one_shot_estimates
from fedbench.core import registry
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Secret
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.scenario import Scenario

METHODS = ("mechanism", "one-run", "one-shot")
PROTOCOLS = ("fedavg", "fedpm", "signsgd")  # one of which fits any mechanism of ours


@dataclass(frozen=True)
class AuditPlan:
    """Options of a campaign of audits.

    Args:
        scenario: The run; of ``mechanism``, only its mechanism, protocol and claim.
        methods: Of `METHODS`.
        confidence: Of every lower bound.
        releases: Of each of two neighbours, for ``mechanism``.
        dim: Coordinates of a release there.
        canaries: Clients of the run that are canaries.
    """

    scenario: Scenario
    methods: tuple[str, ...] = ("mechanism",)
    confidence: float = 0.95
    releases: int = 200_000
    dim: int = 5
    canaries: int = 300

    def __post_init__(self) -> None:
        for method in self.methods:
            require("--method", method, method in METHODS, f"{', '.join(METHODS)} or all")
        require("--confidence", self.confidence, 0 < self.confidence < 1, "in (0, 1)")
        require("--releases", self.releases, self.releases >= 100, ">= 100")
        require("--dim", self.dim, 1 <= self.dim <= 1 << 16, "in [1, 65536]")
        if set(self.methods) - {"mechanism"}:
            most = self.scenario.clients
            rule = f"in [4, {most}], some of the --clients {most}"
            require("--canaries", self.canaries, 4 <= self.canaries <= most, rule)

    def findings(self, method: str) -> list[AuditFinding]:
        """Run a method; a refutation counts if it is found again, with another seed.

        One audit in twenty is allowed to be wrong at 95 % confidence, two in a row are one in 400.

        Raises:
            ConfigError: it does not apply.
        """
        found = self.once(method, self.scenario)
        if not any(one.broken for one in found):
            return found
        fresh = self.scenario.model_copy(update={"seed": self.scenario.seed + 1})
        both = zip(found, self.once(method, fresh), strict=True)
        return [min(pair, key=lambda one: one.epsilon) for pair in both]

    def once(self, method: str, scenario: Scenario) -> list[AuditFinding]:
        """Run a method with the scenario's seed."""
        if method == "one-run":
            return [one_run_bound(scenario, self.canaries, self.confidence)]
        if method == "one-shot":
            return one_shot_estimates(scenario, self.canaries)
        plugins = load_plugins(scenario)
        bench = ReleaseBench(
            plugins.mechanism, plugins.protocol, plugins.defense, self.dim, scenario.per_round
        )
        return [
            audit(
                bench,
                scenario.delta,
                self.confidence,
                self.releases,
                Secret.of(scenario.seed, "audit").key("mechanism"),
                scenario.sampling,
                scenario.adjacency,
            )
        ]

    def play(
        self, say: Callable[[str], None], lenient: bool = False
    ) -> Iterator[AuditFinding | str]:
        """All findings, one after the other; ``lenient``: why a method did not apply, instead."""
        for method in self.methods:
            say(method)
            try:
                yield from self.findings(method)
            except ConfigError as error:
                if not lenient:
                    raise
                yield f"{method}: {error}"


def fitting(mechanism: str, names: Sequence[str] = PROTOCOLS) -> str:
    """The first protocol for which the mechanism was proved.

    >>> fitting("noisy-sign")
    'signsgd'
    """
    loaded = registry.load("mechanism", mechanism)
    for name in names:
        protocol = registry.load("protocol", name)
        if loaded.misfit(protocol, registry.load("defense", protocol.default_defense)) is None:
            return name
    raise ConfigError(f"--protocol must be given: {mechanism} fits none of {', '.join(names)}")
