"""Records from files, and the cells that they are of."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import math
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.cells import Cell, differing
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.record import Record, parse, read
from fedbench.experiment.scenario import Scenario

MOST = 256 << 20  # bytes of a file
UNPACKED = 32 << 20  # bytes of an archive when it is unpacked
DENSER = 64  # times: records shrink to a fourteenth, and one of kilobytes to gigabytes is a bomb
ARCHIVE = ".jsonl.gz"  # a record a line
TEXTS = ("protocol", "attack", "defense", "mechanism", "dataset", "model", "partition")


def gather(
    paths: Iterable[Path], skipped: Callable[[str], None] = lambda reason: None
) -> list[Record]:
    """The records in files, in archives and in folders (``*.json``), each once, ordered by name.

    Args:
        paths: Of any of these.
        skipped: Is told why a file of a folder is no record.

    Raises:
        ConfigError: a file that was named is no record; there is none at all; or a run is there as
            two versions of the code played it.
    """
    listed = list(paths)
    found: dict[str, Record] = {}
    for path in listed:
        for record in _folder(path, skipped) if path.is_dir() else _file(path):
            found.setdefault(record.id, record)
    if not found:
        where = ", ".join(map(str, listed)) or "no path"
        raise ConfigError(f"RECORDS must hold a record, got none in {where}; play some first")
    played: dict[Scenario, Record] = {}
    for record in found.values():
        other = played.setdefault(record.scenario, record)
        if other is not record:
            raise ConfigError(
                f"RECORDS must hold a run once, got {other.file_name} and {record.file_name}, "
                f"of code {other.environment.fedbench} and {record.environment.fedbench}; "
                "move those of one version to another folder"
            )
    return sorted(found.values(), key=lambda record: record.file_name)


def _folder(folder: Path, skipped: Callable[[str], None]) -> Iterator[Record]:
    for path in sorted(folder.glob("*.json")):
        if path.is_file():
            try:
                yield from _file(path)
            except ConfigError as error:
                skipped(str(error))


def _file(path: Path) -> Iterator[Record]:
    with contextlib.suppress(OSError):  # `read` says why
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) and not path.is_dir():  # who opens a pipe may wait
            raise ConfigError(f"{path} must be a file, a folder or an archive of records")
        if about.st_size > MOST:
            raise ConfigError(f"{path} must have at most {MOST >> 20} MiB to be a record")
    if not path.name.endswith(ARCHIVE):
        yield _sane(read(path), str(path))
        return
    for number, line in enumerate(unpacked(path).splitlines(), 1):
        if line.strip():
            name = f"{path}:{number}"
            yield _sane(parse(line, name), name)


def unpacked(path: Path) -> bytes:
    """Return the text of an archive of records, of which no more is unpacked than is allowed.

    Raises:
        ConfigError: it cannot be unpacked, or is too large when it is.
    """
    try:
        most = min(UNPACKED, max(1 << 20, DENSER * path.stat().st_size))
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be unpacked: {error}; pack it again") from error
    if len(data) > most:
        raise ConfigError(
            f"{path} must unpack to at most {UNPACKED >> 20} MiB and {DENSER} times its size, got "
            f"more than {most} bytes; split it"
        )
    return data


def _sane(record: Record, name: str) -> Record:
    """A record that can be shown: text that prints, shares in [0, 1], finite numbers.

    Raises:
        ConfigError: a digest only says that nobody has changed the file by mistake.
    """
    for field, value in record.scenario:
        if isinstance(value, str) and not value.isprintable():
            raise ConfigError(f"{name}: scenario.{field} must be printable, got {value!r}")
        if field in TEXTS:
            try:
                registry.split(value)
            except ConfigError as error:
                raise ConfigError(f"{name}: scenario.{field}: {error}") from error
    measured = [record.result.accuracy, *(r.accuracy for r in record.rounds)]
    for accuracy in measured:
        if accuracy is not None and not 0 <= accuracy <= 1:
            raise ConfigError(f"{name}: accuracy must be in [0, 1], got {accuracy!r}")
    result = record.result
    for number in (
        result.uplink_bits_per_parameter,
        result.downlink_bits_per_parameter,
        result.epsilon,
    ):
        if number is not None and not 0 <= number < math.inf:
            raise ConfigError(f"{name}: bits and epsilon must be finite, got {number!r}")
    return record


@dataclass(frozen=True)
class Played(Cell):
    """A cell known from its records: its plug-ins need not be installed.

    Args:
        vote: Does the protocol's own rule count votes?
    """

    vote: bool = False

    @property
    def defense(self) -> str:
        """Its name and what is not by default, or ``vote``."""
        return "vote" if self.vote else self.scenario.defense


def cells_of(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """The cells that the records are of, each with its seeds, in the records' order.

    Data is dealt anew for every seed, unless two seeds share one `data_seed`.
    """
    unseeded = {"seed": 0, "data_seed": None}
    pairs = [(record.scenario.model_copy(update=unseeded), record) for record in records]
    scenarios = dict.fromkeys(full for full, _ in pairs)
    kept = _several(scenarios)
    short_of = {full: shortened(full, kept) for full in scenarios}
    listed = [(short_of[full], record) for full, record in pairs]
    seeds: dict[tuple[Scenario, int | None], set[int]] = {}
    for short, record in listed:
        seeds.setdefault((short, record.scenario.data_seed), set()).add(record.scenario.seed)
    found: dict[tuple[Scenario, bool], list[Record]] = {}
    for short, record in listed:
        data = record.scenario.data_seed
        follows = data is None or seeds[short, data] == {data}
        scenario = short if follows else short.model_copy(update={"data_seed": data})
        found.setdefault((scenario, record.vote), []).append(record)
    played = {Played(scenario, vote=vote): runs for (scenario, vote), runs in found.items()}
    told = [cell.scenario for cell in played if not cell.dormant] or [s for s, _ in found]
    varied = tuple(differing(told)) if told else ()
    return {dataclasses.replace(cell, varied=varied): runs for cell, runs in played.items()}


Param = tuple[str, str, str]  # of a kind, of a plug-in, its name


def shortened(scenario: Scenario, kept: Collection[Param] = ()) -> Scenario:
    """The same run without the parameters that have their default, for people to read.

    Args:
        scenario: Resolved.
        kept: Parameters that are said all the same.
    """
    texts = {kind: _without_defaults(kind, getattr(scenario, kind), kept) for kind in TEXTS}
    declared = None if scenario.declared == scenario.malicious else scenario.declared
    short = scenario.model_copy(update={**texts, "declared": declared})
    name, params = _split(short.defense)
    bare = {key: value for key, value in params.items() if key.rpartition(".")[2] != "f"}
    if bare != params:
        open_ = short.model_copy(update={"defense": registry.joined(name, bare)})
        with contextlib.suppress(ConfigError):  # not installed here, or it does not fit any more
            if load_plugins(open_).defense == registry.load("defense", short.defense):
                return open_  # what the declared share means
    return short


def _several(scenarios: Iterable[Scenario]) -> set[Param]:
    """Parameters of a plug-in that have several values among the scenarios."""
    values: dict[Param, set[str]] = {}
    for scenario in scenarios:
        for kind in TEXTS:
            name, params = _split(getattr(scenario, kind))
            for param, value in params.items():
                values.setdefault((kind, name, param), set()).add(value)
    return {param for param, found in values.items() if len(found) > 1}


def _without_defaults(kind: str, text: str, kept: Collection[Param]) -> str:
    """As typed if no such plug-in is installed."""
    name, params = _split(text)
    try:
        defaults = _defaults(kind, name)
    except ConfigError:
        return text
    said = {k: v for k, v in params.items() if defaults.get(k) != v or (kind, name, k) in kept}
    return registry.joined(name, said)


def _defaults(kind: str, name: str) -> dict[str, str]:
    """Of every parameter, as `registry.split` calls them, the text of its default."""
    *before, last = name.split("+") if kind == "defense" else [name]
    links = [("prefilter", link, f"{link}.") for link in before]
    return {
        prefix + field.name: str(field.default).lower()
        for kind, link, prefix in [*links, (kind, last, "")]
        for field in dataclasses.fields(registry.plugin(kind, link))
    }


def _split(text: str) -> tuple[str, dict[str, str]]:
    try:
        return registry.split(text)
    except ConfigError:
        return text, {}
