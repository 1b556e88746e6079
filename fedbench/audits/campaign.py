"""Campaign of audits: one mechanism, audited by several methods."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedbench.audits.bounds import AuditFinding
from fedbench.audits.canaries import one_run_bound, one_shot_estimates
from fedbench.audits.releases import ReleaseBench, audit
from fedbench.core import registry
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Secret
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.scenario import Scenario

METHODS = ("mechanism", "one-run", "one-shot")
PROTOCOLS = ("fedavg", "fedpm", "signsgd")  # each mechanism of ours fits one of these


@dataclass(frozen=True)
class AuditPlan:
    """Options of a campaign of audits."""

    scenario: Scenario  # the method ``mechanism`` uses only its mechanism, protocol and claim
    methods: tuple[str, ...] = ("mechanism",)
    confidence: float = 0.95  # of a lower bound
    releases: int = 200_000  # of each neighbour, for the method ``mechanism``
    dim: int = 5  # coordinates of such a release
    canaries: int = 300  # among the clients of the run

    def __post_init__(self) -> None:
        for method in self.methods:
            require("--method", method, method in METHODS, f"{', '.join(METHODS)} or all")
        require("--confidence", self.confidence, 0 < self.confidence < 1, "in (0, 1)")
        require("--releases", self.releases, self.releases >= 100, ">= 100")
        require("--dim", self.dim, 1 <= self.dim <= 1 << 16, "in [1, 65536]")
        if set(self.methods) - {"mechanism"}:
            most = self.scenario.clients
            requirement = f"in [4, {most}], some of the --clients {most}"
            require("--canaries", self.canaries, 4 <= self.canaries <= most, requirement)

    def findings(self, method: str) -> list[AuditFinding]:
        """Run a method; if it refutes the claim, with another seed too, and return the weaker."""
        findings = self.once(method, self.scenario)
        if not any(finding.broken for finding in findings):
            return findings
        fresh = self.scenario.model_copy(update={"seed": self.scenario.seed + 1})
        pairs = zip(findings, self.once(method, fresh), strict=True)
        return [min(pair, key=lambda finding: finding.epsilon) for pair in pairs]

    def once(self, method: str, scenario: Scenario) -> list[AuditFinding]:
        """Run a method with the scenario's seed."""
        if method == "one-run":
            return [one_run_bound(scenario, self.canaries, self.confidence)]
        if method == "one-shot":
            return one_shot_estimates(scenario, self.canaries)
        plugins = load_plugins(scenario)
        rule = plugins.defense
        clients = scenario.per_round
        bench = ReleaseBench(plugins.mechanism, plugins.protocol, rule, self.dim, clients)
        key = Secret.of(scenario.seed, "audit").key("mechanism")
        finding = audit(
            bench,
            scenario.delta,
            self.confidence,
            self.releases,
            key,
            scenario.sampling,
            scenario.adjacency,
        )
        return [finding]

    def play(
        self, say: Callable[[str], None], lenient: bool = False
    ) -> Iterator[AuditFinding | str]:
        """Yield all findings; if ``lenient``, a reason in place of a method that does not apply."""
        for method in self.methods:
            say(method)
            try:
                yield from self.findings(method)
            except ConfigError as error:
                if not lenient:
                    raise
                yield f"{method}: {error}"


def fitting(mechanism: str, names: Sequence[str] = PROTOCOLS) -> str:
    """Return the first protocol that the mechanism fits.

    >>> fitting("noisy-sign")
    'signsgd'
    """
    loaded = registry.load("mechanism", mechanism)
    for name in names:
        protocol = registry.load("protocol", name)
        if loaded.misfit(protocol, registry.load("defense", protocol.default_defense)) is None:
            return name
    raise ConfigError(f"--protocol must be given: {mechanism} fits none of {', '.join(names)}")
