"""Records from files, and the cells that they belong to."""

import contextlib
import dataclasses
import gzip
import math
import stat
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.cells import Cell, differing
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.measurements import MEASURED
from fedbench.experiment.record import Record, parse, read
from fedbench.experiment.scenario import Scenario
from fedbench.results.aggregate import data_seeds
from fedbench.results.fields import NAMES, plugin_parts
from fedbench.results.index import MAX_RECORD_BYTES

MAX_UNPACKED_BYTES = 64 << 20  # of an archive
MAX_COMPRESSION_RATIO = 64  # records shrink to a fourteenth; a bomb shrinks to far less
ARCHIVE = ".jsonl.gz"  # a record a line
Param = tuple[str, str, str]  # kind, name of the plug-in, name of the parameter


def gather(
    paths: Iterable[Path], skipped: Callable[[str], None] = lambda reason: None
) -> list[Record]:
    """Read the records in files, archives and folders (``*.json``), each once, ordered by name.

    As `collect`, but all must be of one version of the code, where they are of one run, and on the
    same data, where these have one name: else `ConfigError`.
    """
    records = collect(paths, skipped)
    require_once(records)
    return records


def collect(
    paths: Iterable[Path], skipped: Callable[[str], None] = lambda reason: None
) -> list[Record]:
    """Read records, each once, of whatever versions of the code, ordered by name.

    ``skipped`` is called with the reason why a file of a folder is no record. A file that was named
    must be one, and there must be any: else `ConfigError`.
    """
    listed = list(paths)
    records: dict[str, Record] = {}
    for path in listed:
        for record in _folder(path, skipped) if path.is_dir() else _file(path):
            records.setdefault(record.id, record)
    if not records:
        where = ", ".join(map(str, listed)) or "no path"
        raise ConfigError(f"RECORDS must hold a record, got none in {where}; play some first")
    return sorted(records.values(), key=lambda record: record.file_name)


def require_once(records: Iterable[Record]) -> None:
    """Raise `ConfigError` if records are of one run in two versions of the code, or of other data.

    Runs on other data have the scenario of the data set that these stood in for.
    """
    played: dict[Scenario, Record] = {}
    first: dict[str, Record] = {}  # by data set
    for record in records:
        other = first.setdefault(record.scenario.dataset, record)
        if other.data_digest != record.data_digest:
            raise ConfigError(
                f"RECORDS must be of one {record.scenario.dataset}, got {other.file_name} and "
                f"{record.file_name}, which were played on different data; move those on one of "
                "them to another folder"
            )
        other = played.setdefault(record.scenario, record)
        if other is not record:
            raise ConfigError(
                f"RECORDS must hold a run once, got {other.file_name} and {record.file_name}, "
                f"of code {other.environment.fedbench} and {record.environment.fedbench}; "
                "move those of one version to another folder"
            )


def last_of_each(records: Sequence[Record], folder: Path) -> list[Record]:
    """Return the records without those whose run the same code has played again later.

    The id of a run also depends on plug-ins of other packages, which its scenario does not tell
    apart. Later is whose file in the folder was written later. Runs on other data are others.
    """

    def written(record: Record) -> int:
        try:
            return (folder / record.file_name).stat().st_mtime_ns
        except OSError:  # a line of an archive
            return 0

    def run(record: Record) -> tuple[Scenario, str, str, str]:
        played = record.environment
        return record.scenario, record.data_digest, played.fedbench, played.device

    last = {run(record): record for record in sorted(records, key=written)}
    return [record for record in records if last[run(record)] is record]


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
        if about.st_size > MAX_RECORD_BYTES:
            raise ConfigError(
                f"{path} must have at most {MAX_RECORD_BYTES >> 20} MiB to be a record"
            )
    if not path.name.endswith(ARCHIVE):
        yield _checked(read(path), str(path))
        return
    for number, line in enumerate(unpacked(path).splitlines(), 1):
        if line.strip():
            name = f"{path}:{number}"
            yield _checked(parse(line, name), name)


def unpacked(path: Path) -> bytes:
    """Return the text of an archive; `ConfigError` if it is none, or larger than is allowed."""
    try:
        most = min(MAX_UNPACKED_BYTES, max(1 << 20, MAX_COMPRESSION_RATIO * path.stat().st_size))
        with gzip.open(path) as file:
            data = file.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be unpacked: {error}; pack it again") from error
    if len(data) > most:
        raise ConfigError(
            f"{path} must unpack to at most {MAX_UNPACKED_BYTES >> 20} MiB and "
            f"{MAX_COMPRESSION_RATIO} times its size, got more than {most} bytes; split it"
        )
    return data


def _checked(record: Record, name: str) -> Record:
    """Refuse what cannot be shown: unprintable text, shares not in [0, 1], numbers not finite."""
    for field, value in record.scenario:
        if isinstance(value, str) and not value.isprintable():
            raise ConfigError(f"{name}: scenario.{field} must be printable, got {value!r}")
        if field in NAMES:
            try:
                registry.split(value)
            except ConfigError as error:
                raise ConfigError(f"{name}: scenario.{field}: {error}") from error
    if record.parameters < 1:
        raise ConfigError(f"{name}: parameters must be >= 1, got {record.parameters!r}")
    try:
        numbers = [(m.name, m.kind, m.read(record)) for m in MEASURED]
    except OverflowError as error:  # of whole numbers, which JSON does not limit
        raise ConfigError(f"{name}: numbers must be finite, got a larger one") from error
    numbers += [("accuracy", "share", r.accuracy) for r in record.rounds]
    for measured, kind, number in numbers:
        if kind == "share" and number is not None and not 0 <= number <= 1:
            raise ConfigError(f"{name}: {measured} must be in [0, 1], got {number!r}")
        if kind == "number" and number is not None and not 0 <= number < math.inf:
            raise ConfigError(f"{name}: {measured} must be finite and >= 0, got {number!r}")
    return record


@dataclass(frozen=True)
class Played(Cell):
    """A cell known from its records: its plug-ins need not be installed."""

    vote: bool = False  # does the protocol's own rule count votes?

    @property
    def defense(self) -> str:
        """Name of the rule with parameters that are not at their default, or ``vote``."""
        return "vote" if self.vote else self.scenario.defense


def cells_of(records: Iterable[Record]) -> dict[Cell, list[Record]]:
    """Group records by cell, each with its seeds, in the records' order.

    Data is dealt anew for every seed, unless two seeds share one `data_seed`.
    """
    records = list(records)
    unseeded = {"seed": 0, "data_seed": None}
    scenarios = [record.scenario.model_copy(update=unseeded) for record in records]
    varying = _varying(scenarios)
    short = {scenario: shortened(scenario, varying) for scenario in dict.fromkeys(scenarios)}
    keys = [
        (short[scenario], record.scenario.seed, record.scenario.data_seed)
        for scenario, record in zip(scenarios, records, strict=True)
    ]
    groups: dict[Played, list[Record]] = {}
    for (scenario, _, _), data_seed, record in zip(keys, data_seeds(keys), records, strict=True):
        seeded = scenario.model_copy(update={"data_seed": data_seed})
        groups.setdefault(Played(seeded, vote=record.vote), []).append(record)
    awake = [cell.scenario for cell in groups if not cell.dormant]
    shown = awake or [cell.scenario for cell in groups]
    varied = tuple(differing(shown)) if shown else ()
    return {dataclasses.replace(cell, varied=varied): runs for cell, runs in groups.items()}


def shortened(scenario: Scenario, keep: Collection[Param] = ()) -> Scenario:
    """Return the same resolved run without parameters at their default, but for those to keep."""
    texts = {kind: _without_defaults(kind, getattr(scenario, kind), keep) for kind in NAMES}
    declared = None if scenario.declared == scenario.malicious else scenario.declared
    short = scenario.model_copy(update={**texts, "declared": declared})
    name, params = plugin_parts(short.defense)
    bare = {key: value for key, value in params.items() if key.rpartition(".")[2] != "f"}
    if bare != params:
        undeclared = short.model_copy(update={"defense": registry.joined(name, bare)})
        with contextlib.suppress(ConfigError):  # not installed here, or it does not fit any more
            if load_plugins(undeclared).defense == registry.load("defense", short.defense):
                return undeclared  # the declared share means this f
    return short


def _varying(scenarios: Iterable[Scenario]) -> set[Param]:
    """Return the parameters of a plug-in that have several values among the scenarios."""
    values: dict[Param, set[str]] = {}
    for scenario in scenarios:
        for kind in NAMES:
            name, params, _ = _spelled(kind, getattr(scenario, kind))
            for param, value in params.items():
                values.setdefault((kind, name, param), set()).add(value)
    return {param for param, several in values.items() if len(several) > 1}


def _without_defaults(kind: str, text: str, keep: Collection[Param]) -> str:
    """Leave out parameters that have their default; none if no such plug-in is installed."""
    name, params, defaults = _spelled(kind, text)
    shown = {k: v for k, v in params.items() if defaults.get(k) != v or (kind, name, k) in keep}
    return registry.joined(name, shown)


def _spelled(kind: str, text: str) -> tuple[str, dict[str, str], dict[str, str]]:
    """Return a plug-in's name, its parameters, and the defaults of those; none if not installed.

    What one of its `registry.variants` stands for is spelled ``as=`` where fewer words are left.
    """
    name, params = plugin_parts(text)
    *before, last = name.split("+") if kind == "defense" else [name]
    links = [*(("prefilter", link, f"{link}.") for link in before), (kind, last, "")]
    try:
        defaults = {
            prefix + field.name: str(field.default).lower()
            for kind, link, prefix in links
            for field in dataclasses.fields(registry.plugin(kind, link))
        }
        variants = {} if before else registry.variants(registry.plugin(kind, last))
    except ConfigError:
        return name, params, {}
    written = {param: params.get(param, default) for param, default in defaults.items()}

    def words(variant: str) -> int:
        base = defaults | variants[variant]
        changed = sum(base[param] != value for param, value in written.items())
        return changed + (variant != registry.OWN)

    best = min(variants, key=words, default=registry.OWN)
    if best == registry.OWN:
        return name, params, defaults
    meant = variants[best]
    beside = {k: v for k, v in params.items() if meant.get(k) != v}
    return name, {registry.AS: best} | beside, defaults | meant
