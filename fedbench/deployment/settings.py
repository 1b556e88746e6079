"""Settings of a deployment: what server and clients agree on before the first round, all public."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from fedbench.api import Mechanism, Protocol, Release, Shared, Traits
from fedbench.core.errors import ConfigError, Incompatible, require
from fedbench.core.rng import Secret
from fedbench.deployment.draws import Draws, FromSystem, SeededDraws
from fedbench.executors.training import Schedule
from fedbench.experiment.compatibility import Plugins, resolve
from fedbench.experiment.scenario import Scenario
from fedbench.models.network import Network


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Public description of a deployment.

    Args:
        protocol: Protocol, as in a scenario.
        defense: The server's rule; own is the protocol's default.
        mechanism: Privacy mechanism.
        rounds: Number of rounds.
        clients: Clients that the server waits for before the first round.
        per_round: Clients that a round samples.
        declared: Share of malicious clients that the rule is prepared for.
        epochs: Passes of a client over its data in a round.
        batch_size: Samples of a local step.
        server_checks: Rows that the server rejects: none, finite or range.
        evaluate_every: Rounds between two evaluations on the clients' test data; 0: never.
        patience: Seconds that the server waits for clients before the first round, and for answers
            in every round, which then goes on without the others.
        public_seed: Seed of what both ends regenerate, such as frozen weights and the rotation of
            secure sums. It protects nothing: messages are decoded with it.
        rehearse: Seed of a rehearsal, in which all draws are those of `fedbench.play`; below 0:
            draws come from the operating system.
    """

    protocol: str = "fedavg"
    defense: str = "own"
    mechanism: str = "none"
    rounds: int = 40
    clients: int = 50
    per_round: int = 10
    declared: float = 0.0
    epochs: int = 2
    batch_size: int = 8
    server_checks: str = "finite"
    evaluate_every: int = 5
    patience: float = 3600.0
    public_seed: int = 0
    rehearse: int = -1

    def __post_init__(self) -> None:
        private = self.mechanism.partition(":")[0] != "none"
        hidden = self.rehearse < 0 or not private
        requirement = "-1 with a mechanism, whose noise would be known to all who know the seed"
        require("rehearse", self.rehearse, hidden, requirement)
        require("public_seed", self.public_seed, 0 <= self.public_seed < 2**32, "in 0 .. 2**32 - 1")
        require("patience", self.patience, 0 < self.patience < math.inf, "> 0 and finite")
        require("evaluate_every", self.evaluate_every, self.evaluate_every >= 0, ">= 0")

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Return the settings of a table with names such as ``batch-size``; others are ignored."""
        named = {str(name).replace("-", "_"): value for name, value in config.items()}
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in named.items() if name in names})

    def config(self) -> dict[str, Any]:
        """Return the table that `of` reads."""
        return {name.replace("_", "-"): x for name, x in dataclasses.asdict(self).items()}

    @property
    def scenario(self) -> Scenario:
        """The run of the harness that this is, without an adversary."""
        return Scenario.of(
            protocol=self.protocol,
            defense=self.defense,
            mechanism=self.mechanism,
            rounds=self.rounds,
            clients=self.clients,
            per_round=self.per_round,
            malicious=0.0,
            declared=self.declared,
            epochs=self.epochs,
            batch_size=self.batch_size,
            server_checks=self.server_checks,
            seed=max(self.rehearse, 0),
        )

    @property
    def draws(self) -> Draws:
        """Where this end takes its random numbers from."""
        return FromSystem() if self.rehearse < 0 else SeededDraws(self.rehearse)

    def plugins(self) -> Plugins:
        """Return the parts; `ConfigError` if they do not fit each other or need the harness."""
        plugins = resolve(self.scenario).plugins
        traits: Traits = plugins.defense.traits()
        for needed, why in (
            (traits.oracle, "is told which clients are malicious, which no server is"),
            (traits.root, "needs root data at the server, which an exported app does not have"),
        ):
            if needed:
                raise Incompatible(f"--defense {plugins.defense_name} {why}; use another rule")
        if plugins.protocol.validates:
            raise Incompatible(
                f"--protocol {self.protocol} chooses on clients' validation data at the server, "
                "which an exported app does not have; leave out final=scan"
            )
        if type(plugins.protocol).heard is not Protocol.heard:
            raise Incompatible(
                f"--protocol {self.protocol} sends each client what it has missed, but an exported "
                "app would send all of it as its form; use fedkseed"
            )
        if plugins.mechanism.message_bits():
            raise Incompatible(
                f"--mechanism {self.mechanism} counts clipped clients beside the messages, which "
                "an exported app does not send; use a fixed clip"
            )
        return plugins

    def shared(self, network: Network) -> Shared:
        """Return what both ends know; `ConfigError` if no message carries the network."""
        if not isinstance(network, Network):
            raise ConfigError(
                "a server and its clients must have a network of fedbench.models, got "
                f"{type(network).__name__}; write fedbench.deployment.task.network_of(make, sample,"
                " classes) for a function that makes it"
            )
        seed = self.public_seed
        if self.rehearse >= 0:
            drawn = Secret.of(self.rehearse, "run").key("public").seed
            assert isinstance(drawn, int)
            seed = drawn & 0xFFFFFFFF
        return Shared(network, seed, torch.device("cpu"), self.per_round / self.clients)

    def schedule(self, mechanism: Mechanism) -> Schedule:
        """Return how a client goes through its data."""
        return Schedule(self.epochs, self.batch_size, mechanism.batches == "poisson")


def require_fit(plugins: Plugins, shared: Shared) -> None:
    """Raise `Incompatible` unless the network fits protocol and mechanism."""
    if shared.network.statistics and not plugins.protocol.statistics:
        raise Incompatible("task.model() must have no batch norm for this protocol, got some")
    why = plugins.mechanism.misfit(plugins.protocol, plugins.defense, shared)
    if why is not None:
        raise Incompatible(f"mechanism {why}")


def draws_noise(protocol: Protocol[Any], mechanism: Mechanism) -> bool:
    """Return True if noise that protects is drawn from the client's own key.

    It is if the protocol adds noise of its own, and if its message is a sample of probabilities
    beside a mechanism with a claim, which may count the sample as noise.
    """
    release = Release(1, 1, 1, 1, 2, 1)
    if protocol.event(release) is not None:
        return True
    return protocol.message_is == "sample" and mechanism.event(release) is not None
