"""A run's whole description: frozen, TOML and JSON both ways, with a content hash."""

from __future__ import annotations

from typing import Any

from pydantic import (
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)

from fedbench.api import Knowledge
from fedbench.core.errors import ConfigError, require
from fedbench.core.files import parsed_toml
from fedbench.experiment.scenario_fields import ScenarioFields
from fedbench.privacy.conversion import check_claim

ADVERSARY = ("knowledge", "attack_from", "attack_until", "attack_every")
MOST = 2**31 - 1  # of clients, rounds and whatever else is counted
LAST_SEED = 2**63 - 1  # what a record, and who reads it, can hold
UNWRITTEN = (*ADVERSARY, "defense_draw", "precision")  # left out of JSON at their defaults


class Scenario(ScenarioFields):
    """Description of one run, whose fields make sense together."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        """Leave out fields that came later where they say nothing: older texts stay as they are.

        Without a return type, which would be the JSON Schema of every scenario.
        """
        fields = type(self).model_fields
        said: dict[str, Any] = write(self)
        silent = [name for name in UNWRITTEN if said.get(name) == fields[name].default]
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
