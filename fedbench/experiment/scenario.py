"""A run's whole description: frozen, TOML and JSON both ways, with a content hash."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from fedbench.api import Adjacency, Knowledge, Sees
from fedbench.core.errors import ConfigError, require
from fedbench.core.files import parsed_toml
from fedbench.executors.training import Precision
from fedbench.payload import Checks
from fedbench.privacy.conversion import check_claim

ADVERSARY = ("knowledge", "attack_from", "attack_until", "attack_every")
MOST = 2**31 - 1  # of clients, rounds and whatever else is counted
LAST_SEED = 2**63 - 1  # what a record, and who reads it, can hold
LATER = (*ADVERSARY, "defense_draw", "precision")  # fields since schema 3


class Scenario(BaseModel):
    """One run. Plug-ins are written ``name:param=value,param=value``.

    Args:
        protocol: What clients and server do.
        attack: What the malicious clients do; ``none`` is the clean run, with the same clients.
        defense: The server's rule; ``own`` is the protocol's default.
        mechanism: The privacy mechanism.
        dataset: Images and labels.
        model: The network.
        partition: Who has which samples.
        clients: All of them, N.
        per_round: How many are sampled in each round, n.
        malicious: Share of all clients that the adversary owns.
        declared: Share that the server is prepared for; the default is ``malicious``.
        rounds: Federated rounds.
        epochs: Passes of a client over its data in a round.
        batch_size: Samples a step.
        eval_every: Rounds between two looks at the test data; the last round is always one.
        local_models: Also judge every sampled client's own model, as its message says it.
        sampling: Who takes part: ``fixed``, exactly ``per_round`` clients, all sets alike; or
            ``poisson``, each client by a coin of its own, ``per_round`` of them on average.
        sees: What the adversary of privacy sees: ``messages``, each with its sender; ``sum``, what
            a secure aggregation reveals, and who took part; ``hidden-sum``, the sum alone;
            ``model``, what the server deploys. None: ``messages``, or where the noise is the
            server's ``model``.
        adjacency: What may differ: ``replace-one``, all data of a client or of a sample;
            ``zero-out``, or it learned nothing; ``add-remove``, or it is not there. None: the one
            that the mechanism's accountant proves most for.
        delta: Of the (epsilon, delta) that a mechanism is charged.
        knowledge: The most that an attack may be shown: a tier, ``own``, ``colluders`` or ``all``,
            then ``+defense`` and ``+state`` where it may query the server's rule and state. An
            attack that needs more does not fit. None: whatever it declares.
        attack_from: First round in which the attack acts; its clients are honest before.
        attack_until: First round in which it no longer does; None: it never stops.
        attack_every: It acts in every so many of these rounds.
        defense_draw: Which draw of the server's randomness a rule gets that has some; all else,
            training included, is as with any other.
        precision: Of training: ``fp32``; or ``bf16``, the network's products in bfloat16, all else,
            weights and their steps included, in float32. That differs by more than rounding.
        server_checks: ``finite``: rows with NaN or infinity are rejected; ``range``: also those
            that no honest encoder sends, whatever its input; ``none``: all that decode pass.
        seed: Of everything but the data; as any seed in 0 .. 2**63 - 1.
        data_seed: Of partition and splits; the default is ``seed``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: str = "fedavg"
    attack: str = "none"
    defense: str = "own"
    mechanism: str = "none"
    dataset: str = "digits"
    model: str = "lenet"
    partition: str = "dirichlet:beta=1.0"
    clients: int = 50
    per_round: int = 10
    malicious: float = 0.2
    declared: float | None = None
    rounds: int = 40
    epochs: int = 2
    batch_size: int = 8
    eval_every: int = 5
    local_models: bool = False
    sampling: Literal["fixed", "poisson"] = "fixed"
    sees: Sees | None = None
    adjacency: Adjacency | None = None
    delta: float = 1e-5
    knowledge: str | None = None
    attack_from: int = 0
    attack_until: int | None = None
    attack_every: int = 1
    defense_draw: int = 0
    precision: Precision = "fp32"
    server_checks: Checks = "finite"
    seed: int = 0
    data_seed: int | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        """Fields that came later are written where they say something: older texts stay as is.

        Without a return type, which would be the JSON Schema of every scenario.
        """
        fields = type(self).model_fields
        said: dict[str, Any] = write(self)
        silent = [name for name in LATER if said.get(name) == fields[name].default]
        return {name: value for name, value in said.items() if name not in silent}

    @model_validator(mode="after")
    def _sensible(self) -> Scenario:
        for name in (
            "clients",
            "per_round",
            "rounds",
            "epochs",
            "batch_size",
            "eval_every",
            "attack_every",
        ):
            value = getattr(self, name)
            require(f"--{name.replace('_', '-')}", value, value >= 1, ">= 1")
            most, rule = (1 << 30, "<= 2**30") if name == "batch_size" else (MOST, "< 2**31")
            require(f"--{name.replace('_', '-')}", value, value <= most, rule)
        require("--malicious", self.malicious, 0 <= self.malicious < 1, "in [0, 1)")
        benign = self.clients - round(self.malicious * self.clients)
        require("--malicious", self.malicious, benign >= 1, "a share that leaves a benign client")
        if self.declared is not None:
            require("--declared", self.declared, 0 <= self.declared < 1, "in [0, 1)")
        rule = f"<= --clients = {self.clients}"
        require("--per-round", self.per_round, self.per_round <= self.clients, rule)
        require("--attack-from", self.attack_from, self.attack_from >= 0, ">= 0")
        for name in ("attack_from", "attack_until"):
            value = getattr(self, name)
            require(f"--{name.replace('_', '-')}", value, (value or 0) <= MOST, "< 2**31")
        until = self.attack_until is None or self.attack_until > self.attack_from
        rule = f"None or > --attack-from = {self.attack_from}"
        require("--attack-until", self.attack_until, until, rule)
        if self.knowledge is not None:
            Knowledge.parse(self.knowledge)
        check_claim(self.delta)
        for name in ("seed", "data_seed", "defense_draw"):
            value = getattr(self, name)
            legal = value is None or 0 <= value <= LAST_SEED
            require(f"--{name.replace('_', '-')}", value, legal, "in 0 .. 2**63 - 1")
        return self

    @classmethod
    def of(cls, **fields: Any) -> Scenario:
        """A scenario from plain values, with errors for people.

        Raises:
            ConfigError: an unknown field, or a value out of its range.
        """
        try:
            return cls(**fields)
        except ValidationError as error:
            first = error.errors()[0]
            name = "--" + ".".join(str(part) for part in first["loc"]).replace("_", "-")
            raise ConfigError(f"{name}: {first['msg'].lower()}, got {first['input']!r}") from error

    @classmethod
    def from_toml(cls, text: str) -> Scenario:
        """The scenario that `to_toml` wrote."""
        return cls.of(**parsed_toml(text.encode(), "a scenario"))

    def to_toml(self) -> str:
        """Flat TOML; a field that is None is left out."""
        import tomli_w

        return tomli_w.dumps(self.model_dump(exclude_none=True))
