"""Record of a run: the JSON that everything downstream reads."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    WrapSerializer,
    model_serializer,
)

from fedbench.api import Adjacency, Sees
from fedbench.core import seal
from fedbench.core.errors import ConfigError
from fedbench.core.files import read_limited, write_atomically
from fedbench.core.registry import split
from fedbench.experiment.measurements import SCHEMA, Number, Result, Round, Timing
from fedbench.experiment.scenario import Scenario, fingerprint

MAX_RECORD_BYTES = 256 << 20


class Part(BaseModel):
    """Immutable part of a record without unknown fields."""

    # Older pydantic warns of a field whose name starts with "model_".
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


def _leaving_out(**silent: Any) -> Any:
    """Return a serializer that leaves out fields with these values.

    They came later, so records from before them stay as they are.
    """

    # Pydantic asks for the name self. A return type would be the JSON Schema of every part.
    def serialize(self, write: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        fields: dict[str, Any] = write(self)
        return {name: x for name, x in fields.items() if name not in silent or x != silent[name]}

    return serialize


class Environment(Part):
    """Machine and versions of a run: between two of these, numbers may differ by rounding.

    Args:
        fedbench: Version, and a hash of the code that can change a number.
        python: Version of Python.
        torch: Version of torch.
        numpy: Version of NumPy.
        platform: Operating system and architecture.
        processor: Architecture and name of the processor; empty in older records.
        device: ``cpu``, or the name of the accelerator.
        executor: ``loop``, ``stacked``, ``padded`` or ``recorded``; ``ray:loop`` where the
            processes of a cluster trained so, and the rest is of the server process.
        threads: Threads of the process.
        chunk: Clients that were trained at once; None in a loop. The most of a cluster's task.
        canonical: Whether it ran in canonical mode, whose numbers are those of every processor
            (`fedbench.core.canonical`). Left out where it did not.
    """

    fedbench: str
    python: str
    torch: str
    numpy: str
    platform: str
    processor: str = ""
    device: str
    executor: str
    threads: int
    chunk: int | None = None
    canonical: bool = False

    _serialize = model_serializer(mode="wrap")(_leaving_out(canonical=False))


class Source(Part):
    """Source file of a plug-in of another package, as it was when it was played.

    Args:
        module: Name of the module.
        package: Name of the package that installed it; empty if none did.
        version: Version of that package.
        url: Address that the package gives; empty if it gives none.
        sha256: SHA-256 of the file.
    """

    module: str
    package: str
    version: str
    url: str
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Privacy(Part):
    """Privacy that the clients have spent, and the adversary against whom that was proved.

    Args:
        epsilon: Bound in nats, for the client that took part most often.
        delta: Delta of the same guarantee.
        unit: Data that it covers: a whole ``client``, or one ``example`` of one.
        sees: Observations of the adversary: messages, their sum, the sum without the list of
            participants, or models.
        adjacency: Difference between two data sets that cannot be told apart.
        sampler: How clients were sampled, how often one took part, and who can see it.
        winner: Name of the least bound.
        bounds: Every bound that applies, by name.
        paper: Claim of the mechanism's own paper, where that is another number.
        note: Effect on the guarantee of malicious clients, and of noise that ends too early.
    """

    epsilon: Number
    delta: float
    unit: Literal["client", "example"]
    sees: Sees
    adjacency: Adjacency
    sampler: str
    winner: str
    bounds: dict[str, Number] = {}
    paper: Number = None
    note: str = ""


class Record(Part):
    """One run of one scenario with one seed.

    ``id`` says what was run, ``digest`` that nobody has changed what was measured: SHA-256 of the
    lines of its file before its own, so ``sed '/^ "digest":/,$d' FILE | sha256sum`` checks it, too.
    A record that was read is written with the numbers as they stood in its file, for its digest.
    ``parameters`` are those of the network, for each of which bits are given, and ``trained`` those
    that clients train and send with an adapter. It is left out without one.
    """

    schema_version: Literal[4] = SCHEMA
    id: str
    scenario: Scenario
    data_digest: str
    parameters: int
    trained: int | None = None
    vote: bool
    mechanism: str
    environment: Environment
    sources: list[Source] = []
    privacy: Privacy | None = None
    rounds: list[Annotated[Round, WrapSerializer(_leaving_out(commitment=None, dropped=0))]]
    result: Result
    flags: list[str]
    digest: str = ""
    timing: Annotated[Timing, WrapSerializer(_leaving_out(peak_device_memory_mib=None))]

    _serialize = model_serializer(mode="wrap")(_leaving_out(trained=None))

    _text: str | None = PrivateAttr(default=None)  # laid out, as read; None: as pydantic writes it

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy it; a copy with other content has no text yet."""
        copy = super().model_copy(update=update, deep=deep)
        if update:
            copy._text = None
        return copy

    def to_json(self, indent: int | None = 1) -> str:
        """Write JSON in the schema's order, with a final newline; one line without ``indent``."""
        text = self._text or self._written()
        return text if indent else seal.one_line(text) + "\n"

    def _written(self) -> str:
        return self.model_dump_json(indent=1) + "\n"

    def summary(self) -> dict[str, str]:
        """Return what a reader asks first, as texts by term: what was run, and what came out."""
        scenario = self.scenario
        result = self.result
        bits = (result.uplink_bits_per_parameter, result.downlink_bits_per_parameter)
        up, down = ("n/a" if x is None else f"{x:.4g}" for x in bits)
        model = scenario.model
        if self.trained is not None:
            model += f" with {scenario.adapter} ({self.trained:,} of {self.parameters:,} trained)"
        spent = "n/a" if self.privacy is None else "unknown"
        if result.epsilon is not None:
            spent = f"{result.epsilon:.4g}"
        mechanism = "" if scenario.mechanism == "none" else f" + {scenario.mechanism}"
        clients = f"{scenario.clients} client{'s' * (scenario.clients != 1)}"
        rounds = f"{len(self.rounds)} round{'s' * (len(self.rounds) != 1)}"
        return {
            "protocol": f"{scenario.protocol}{mechanism}",
            "attack": f"{scenario.attack}, {100 * scenario.malicious:g} % malicious",
            "defense": "vote" if self.vote else scenario.defense,
            "data": f"{scenario.dataset}, {model}, {scenario.partition}",
            "run": f"{clients}, {rounds}, seed {scenario.seed}",
            "accuracy": f"{100 * result.accuracy:.1f} %",
            "bits": f"{up} up, {down} down per parameter",
            "ε": spent,
            "flags": "; ".join(self.flags) or "none",
        }

    def __repr__(self) -> str:
        """Say in a few lines what was run and what came out; `model_dump` has all of it."""
        lines = [f"  {term:<8}  {text}" for term, text in self.summary().items()]
        return "\n".join([f"Record {self.id}", *lines])

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """Show the `summary` as a table in a notebook."""
        style = 'style="text-align: left"'
        rows = [
            f"<tr><th {style}>{escape(term)}</th><td {style}>{escape(text)}</td></tr>"
            for term, text in self.summary().items()
        ]
        return "\n".join([f"<p>Record {escape(self.id)}</p>", "<table>", *rows, "</table>"])

    def identified(self) -> str:
        """Return the id that follows from scenario, code and sources, on data of its own name."""
        sources = [source.sha256 for source in self.sources]
        return fingerprint(self.scenario.model_dump_json(), self.environment.fedbench, sources)

    def measured(self) -> dict[str, Any]:
        """Return all but the times, which is equal for equal scenario, device and executor."""
        return self.model_dump(exclude={"timing"})

    def sealed(self) -> Record:
        """Return the record with its digest."""
        unsealed = self.model_copy(update={"digest": ""})
        return self.model_copy(update={"digest": seal.digest(unsealed.to_json())})

    @property
    def file_name(self) -> str:
        """Name of the record's file, see `file_name`."""
        return file_name(self.scenario, self.id)

    def write(self, folder: Path) -> Path:
        """Write atomically, sealed: the file is whole or absent."""
        path = folder / self.file_name
        write_atomically(path, self.sealed().to_json().encode())
        return path


def file_name(resolved: Scenario, id: str) -> str:
    """Return a name with protocol, defense, attack and seed for people, the id for machines."""
    parts = (resolved.protocol, resolved.defense, resolved.attack)
    words = [split(part)[0] for part in parts]
    return f"{'-'.join(words)}-seed{resolved.seed}-{id}.json"


def read(path: Path) -> Record:
    """Read a record; `ConfigError` if it is truncated, of another schema, or was changed since."""
    return parse(read_limited(path, MAX_RECORD_BYTES), str(path))


def parse(data: bytes, name: str) -> Record:
    """Return a record from its JSON; `ConfigError` as in `read`, which calls it ``name``."""
    try:
        record = Record.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise ConfigError(
            f"{name} is no record of schema {SCHEMA}: {where}: {first['msg'].lower()}; "
            "run the scenario again"
        ) from error
    except ConfigError as error:  # of the scenario in it
        raise ConfigError(f"{name} is no record of schema {SCHEMA}: {error}") from error
    given = data.decode()
    written = record._written()
    # Text of this library, in either form, has the layout that the library gives it: far quicker.
    ours = given == written or given.removesuffix("\n") == record.model_dump_json()
    text = written if ours else seal.laid_out(given)
    if not seal.holds(text):
        raise ConfigError(
            f"{name} must hold what its run wrote, got other content than its digest says; "
            "run the scenario again"
        )
    if text != written:
        record._text = text
    return record
