"""A run's whole description: fields with their defaults and meaning, declared once.

Plug-ins are written ``name:param=value,param=value``. The options of the command line and the JSON
Schemas are generated from the fields. Importing this module does not import torch.
"""

import hashlib
import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from fedbench.core.blame import shown
from fedbench.core.choices import (
    Adjacency,
    Augment,
    Checks,
    Cohorts,
    Precision,
    Sampling,
    Sees,
    Split,
)
from fedbench.core.errors import ONE_OF_THEM, ConfigError, refusal, require, require_share
from fedbench.core.sources import SourceFile, each_once

if TYPE_CHECKING:  # a plug-in may be given as an object; the field holds its text
    PluginText = Any
else:
    PluginText = str

TYPED = "typed"  # in the context of validation: the values are options of the command
PLUGINS = ("protocol", "attack", "defense", "mechanism", "dataset", "model", "partition")
# Fields that a line names only where they are unusual.
REMARKED = ("adapter", "split", "augment", "cohorts", "availability")
ADVERSARY = ("knowledge", "attack_from", "attack_until", "attack_every")
MAX_COUNT = 2**31 - 1  # of clients, rounds and whatever else is counted
COUNTED = ("clients", "per_round", "rounds", "epochs", "batch_size", "eval_every", "attack_every")
NUMBERS = (
    *(*COUNTED, "malicious", "declared", "delta", "attack_from", "attack_until", "defense_draw"),
    *("seed", "data_seed"),
)
_REMEDY = re.compile(r"\b(use|with|leave out|or) --([a-z][a-z-]*) ([\w+:=.,-]*\w)")
_OPTION = re.compile(r"--([a-z][a-z-]*)")
LAST_SEED = 2**63 - 1  # what a record, and who reads it, can hold
# Left out of JSON at their defaults.
UNWRITTEN = (
    *(*ADVERSARY, "defense_draw", "precision", "split", "augment", "cohorts"),
    *("availability", "adapter"),
)


# Names that are no fields, and where what they stand for is given.
ELSEWHERE = {
    name: f"write fedbench.{call}, {name}=...)"
    for call, names in {
        "play(scenario": ("device", "executor", "chunk", "isolate", "canonical", "stream"),
        "sweep(scenarios": ("seeds", "workers", "out"),
    }.items()
    for name in names
} | {"lr": "write it behind the protocol: protocol='fedavg:lr=0.1'"}


if TYPE_CHECKING:  # the fields of the class are what it takes
    from pydantic._internal._model_construction import ModelMetaclass as _Spoken
else:

    class _Spoken(type(BaseModel)):
        """Metaclass whose classes say in one line what is wrong where they are called in Python."""

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            try:
                return super().__call__(*args, **fields)
            except ConfigError as error:
                raise type(error)(pythonic(str(error))) from error
            except ValidationError as error:
                first = error.errors()[0]
                name = ".".join([cls.__name__, *map(str, first["loc"])])
                if first["type"] == "extra_forbidden":
                    names = ", ".join(cls.model_fields)
                    close = get_close_matches(str(first["loc"][-1]), cls.model_fields, 1)
                    hint = f"did you mean {close[0]}?" if close else f"known: {names}"
                    hint = ELSEWHERE.get(str(first["loc"][-1]), hint)
                    raise ConfigError(f"{name} is no field; {hint}") from error
                raise ConfigError(refusal(name, error)) from error


class Scenario(BaseModel, metaclass=_Spoken):
    """Description of one run, whose fields make sense together.

    `ConfigError` for an unknown field, or for values that are wrong or do not go together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    protocol: PluginText = "fedavg"
    """Federated protocol: what clients and server do in a round."""
    attack: PluginText = "none"
    """Attack of the malicious clients; none is the clean run, with the same clients."""
    defense: PluginText = "own"
    """Rule by which the server aggregates messages; own is the default of the protocol."""
    mechanism: PluginText = "none"
    """Privacy mechanism, for example mask-gaussian:sigma=0.2."""
    dataset: PluginText = "digits"
    """Data set: images and their labels."""
    model: PluginText = "lenet"
    """Network that the clients train."""
    adapter: str = "none"
    """Part of the network that is trained: none, all of it; lora:rank=4,alpha=4, low-rank factors A
    and B of each weight and the last layer, over frozen weights; with freeze_a=true not A."""
    partition: PluginText = "dirichlet:beta=1.0"
    """Split of the samples among the clients."""
    split: Split = "per-client"
    """Samples that train and samples that test: per-client, each client trains on 70 % of its own,
    validates on 10 % and tests on 20 %; per-client-80-20, it trains on 80 % and tests on 20 %;
    published, clients train on the published training images, and accuracy is measured on the
    published test images."""
    clients: int = 50
    """Number of all clients, N."""
    per_round: int = 10
    """Number of clients that a round samples, n."""
    malicious: float = 0.2
    """Share of all clients that the adversary owns."""
    declared: float | None = None
    """Share of malicious clients that the server is prepared for; by default the true share."""
    cohorts: Cohorts = "random"
    """Number of malicious clients in a round: random, as sampling has it; stratified, in every
    round their share of n, rounded down or up by a coin such that its mean is that share. No
    amplification by sampling is claimed then."""
    availability: str = "none"
    """Clients of a round that drop out, so that no message of theirs arrives: none; dropout:p=0.1,
    each with that probability; trace:file=PATH, those that are not there by a file with the columns
    device,first,last, client i being device i modulo the number of devices."""
    rounds: int = 40
    """Number of federated rounds."""
    epochs: int = 2
    """Passes of a client over its data in a round."""
    batch_size: int = 8
    """Samples of a local step."""
    eval_every: int = 5
    """Rounds between two evaluations on test data; the last round always ends with one."""
    local_models: bool = False
    """Evaluate also the model of every sampled benign client, as its last message says it."""
    sampling: Sampling = "fixed"
    """How a round samples clients: fixed, exactly n, all sets alike; poisson, each client with the
    same probability, n on average."""
    sees: Sees | None = None
    """Observation of privacy's adversary: messages, each with its sender; sum, what a secure
    aggregation reveals, and who took part; hidden-sum, the sum alone; model, what the server
    deploys. By default messages, or model where the noise is the server's."""
    adjacency: Adjacency | None = None
    """Difference between neighbouring data sets: replace-one, all data of a client or of a sample;
    zero-out, it learned nothing; add-remove, it is not there. By default the one for which the
    mechanism's accountant proves most."""
    delta: float = 1e-5
    """The δ at which the ε of a mechanism is computed."""
    knowledge: str | None = None
    """Most that an attack may be shown: own, colluders or all, the messages of which clients; with
    +defense the server's rule, to query, and with +state the server's state. An attack that needs
    more does not fit. By default what the attack declares."""
    attack_from: int = 0
    """First round, counted from 0, in which the attack acts; its clients are honest before."""
    attack_until: int | None = None
    """First round in which the attack no longer acts; by default it never stops."""
    attack_every: int = 1
    """Rounds from one in which the attack acts to the next."""
    defense_draw: int = 0
    """Index of the server's random draw, for rules that have one; training does not depend on
    it."""
    augment: Augment = "none"
    """Random changes of the images of every training step: none, or crop-flip, which crops an image
    after 4 black pixels were added on every side, and flips half of all images left to right.
    Images that validate and test stay as they are."""
    precision: Precision = "fp32"
    """Precision of training: fp32, or tf32 (CUDA only) or bf16 for the products of the network,
    with weights and steps in float32; these differ by more than rounding."""
    server_checks: Checks = "finite"
    """Rows that the server rejects: finite, those with NaN or infinity; range, also those that no
    honest encoder sends, whatever its input; none, only those that do not decode."""
    seed: int = 0
    """Seed of everything but the data, in 0 .. 2**63 - 1."""
    data_seed: int | None = None
    """Seed of partition and splits; by default the same as seed."""

    @model_serializer(mode="wrap")
    def _written(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        """Leave out fields that came later where they say nothing: older texts stay as they are."""
        # Without a return type, which would be the JSON Schema of every scenario.
        fields = type(self).model_fields
        values: dict[str, Any] = write(self)
        silent = [name for name in UNWRITTEN if values.get(name) == fields[name].default]
        return {name: value for name, value in values.items() if name not in silent}

    @field_validator(*PLUGINS, mode="before")
    @classmethod
    def _as_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Replace a plug-in that was given as an object by its text; JSON has none."""
        assert info.field_name is not None
        if isinstance(value, list | dict) and info.mode == "python":
            called = _called(info.field_name, info)
            hint = f"; {ONE_OF_THEM}" if isinstance(value, list) else ""
            raise ConfigError(f"{called} must be a plug-in or its text, got {shown(value)}{hint}")
        if value is None or isinstance(value, str | int | float | list | dict):
            return value
        from fedbench.experiment.instances import text_of

        return text_of(info.field_name, value)

    @field_validator(*NUMBERS, mode="before")
    @classmethod
    def _no_boolean_or_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse booleans and texts, in which pydantic reads numbers."""
        assert info.field_name is not None
        called = _called(info.field_name, info)
        require(called, value, not isinstance(value, bool), "a number")
        if isinstance(value, str):
            raise ConfigError(f"{called} must be a number, got the text {value!r}")
        return value

    @field_validator("local_models", mode="before")
    @classmethod
    def _no_text(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse texts and numbers that pydantic takes for a boolean; NumPy's booleans are fine."""
        taken = isinstance(value, str | int | float) and not isinstance(value, bool)
        require(_called("local_models", info), value, not taken, "true or false")
        return value

    @field_validator("malicious", "declared")
    @classmethod
    def _without_sign(cls, value: float | None) -> float | None:
        """Replace -0.0, which equals 0.0, so that equal scenarios have one id."""
        return None if value is None else value + 0.0

    @model_validator(mode="after")
    def _sensible(self, info: ValidationInfo) -> Self:
        from fedbench.experiment import availability
        from fedbench.models import adapters

        def called(name: str) -> str:
            return _called(name, info)

        def must(name: str, holds: bool, requirement: str) -> None:
            require(called(name), getattr(self, name), holds, requirement)

        for name in COUNTED:
            must(name, getattr(self, name) >= 1, ">= 1")
            other = name != "batch_size"
            most, requirement = (MAX_COUNT, "< 2**31") if other else (1 << 30, "<= 2**30")
            must(name, getattr(self, name) <= most, requirement)
        require_share(called("malicious"), self.malicious, self.clients)
        must("malicious", self.owned < self.clients, "a share that leaves a benign client")
        require_share(called("declared"), self.declared or 0.0, self.clients)
        if self.per_round > self.clients:  # often nobody typed it
            raise ConfigError(
                f"{called('per_round')} must be <= {called('clients')} = {self.clients}, got "
                f"{self.per_round}; give a smaller {called('per_round')}"
            )
        must("attack_from", self.attack_from >= 0, ">= 0")
        for name in ("attack_from", "attack_until"):
            must(name, (getattr(self, name) or 0) <= MAX_COUNT, "< 2**31")
        until = self.attack_until is None or self.attack_until > self.attack_from
        must("attack_until", until, f"None or > {called('attack_from')} = {self.attack_from}")
        if self.cohorts == "stratified" and self.sampling == "poisson":
            raise ConfigError(
                f"{called('cohorts')} stratified must have rounds of exactly "
                f"{called('per_round')} clients, got {called('sampling')} poisson; use fixed"
            )
        if self.split == "published" and self.local_models:
            raise ConfigError(
                f"{called('local_models')} must be off with {called('split')} published, where "
                "clients have no test data of their own, got on; use per-client or per-client-80-20"
            )
        if self.knowledge is not None:
            from fedbench.api import Knowledge

            Knowledge.parse(self.knowledge)
        if self.availability != availability.NONE:
            availability.parse(self.availability)
        adapters.parse(self.adapter)
        from fedbench.privacy.conversion import check_claim

        check_claim(self.delta)
        for name in ("seed", "data_seed", "defense_draw"):
            value = getattr(self, name)
            must(name, value is None or 0 <= value <= LAST_SEED, "in 0 .. 2**63 - 1")
        return self

    @property
    def owned(self) -> int:
        """Number of all clients that the adversary owns."""
        return round(self.malicious * self.clients)

    @property
    def remarks(self) -> list[str]:
        """Fields of `REMARKED` that are not at their default, as in "split published"."""
        values = {name: getattr(self, name) for name in REMARKED}
        defaults = type(self).model_fields
        return [f"{name} {x}" for name, x in values.items() if x != defaults[name].default]

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Make a scenario of plain values, as the command line does, whose options errors name.

        `ConfigError` for unknown fields or wrong values.
        """
        try:
            return cls.model_validate(fields, context={TYPED: True})
        except ValidationError as error:
            first = error.errors()[0]
            name = "--" + ".".join(str(part) for part in first["loc"]).replace("_", "-")
            raise ConfigError(refusal(name, error)) from error


def pythonic(text: str) -> str:
    """Replace the options of the command line in an error by fields and arguments.

    >>> pythonic("--per-round must be <= 3, got --defense krum; use --mechanism none")
    "Scenario.per_round must be <= 3, got Scenario.defense krum; use mechanism='none'"
    >>> pythonic("--device must be auto, cpu or cuda, got 'tpu'")
    "device must be auto, cpu or cuda, got 'tpu'"
    """
    text = text.replace(ONE_OF_THEM, "for several write a Scenario for each")
    remedied = _REMEDY.sub(lambda m: f"{m[1]} {m[2].replace('-', '_')}={m[3]!r}", text)
    return _OPTION.sub(lambda m: _field(m[1].replace("-", "_")), remedied)


def _field(name: str) -> str:
    return f"Scenario.{name}" if name in Scenario.model_fields else name


def _called(name: str, info: ValidationInfo) -> str:
    """Return the name of a field as it was typed: an option of the command, or a field."""
    typed = bool(info.context and info.context.get(TYPED))
    return f"--{name.replace('_', '-')}" if typed else f"Scenario.{name}"


def fingerprint(resolved: str, code: str, sources: Iterable[str], own_data: str = "") -> str:
    """Return the sixteen hex digits that identify a run.

    ``resolved`` is the JSON of the scenario with every default written out, ``code`` is
    `code_version`, ``sources`` are the SHA-256 of the files of plug-ins that it does not cover, and
    ``own_data`` is `Data.identity` of other samples than its own.
    """
    parts = [resolved, own_data, code, *sources]
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def foreign(sources: Iterable[SourceFile]) -> list[SourceFile]:
    """Return the sources that `code_version` does not cover, in their order, each once."""
    return [
        source
        for source in each_once(sources)
        if not any(map(Path(source.path).is_relative_to, _folders()))
    ]


# Packages that start runs or read records.
READERS = (
    *("testing", "audits", "probes", "functional", "results", "sweeps", "tables", "figures"),
    *("analysis", "tracking", "leaderboard", "reproduce", "deployment", "verify"),
    *("public", "cli"),
)


@cache
def _folders() -> tuple[Path, ...]:
    """Return the folders of the packages that make up fedbench."""
    from importlib.util import find_spec

    specs = map(find_spec, ("fedbench", "fedbench_attacks", "fedbench_defenses"))
    return tuple(
        Path(folder) for spec in specs if spec for folder in spec.submodule_search_locations or []
    )


@cache
def code_version() -> str:
    """Return the version, and a hash of the source of fedbench and of its attacks and defenses.

    The hash covers what a round is made of. No run imports `READERS`, which a test of the house
    checks, so a new command leaves the ids of a sweep's records as they are.
    """
    from importlib.metadata import version

    digest = hashlib.sha256()
    for folder in _folders():
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder)
            if name.parts[0] not in READERS:
                digest.update(name.as_posix().encode() + path.read_bytes())
    return f"{version('fedbench-toolkit')}+{digest.hexdigest()[:12]}"
