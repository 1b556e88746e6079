"""Plug-ins by name: built-in ones take the same road, entry points, as anyone's."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from fedbench.core.blame import Hook, error_line
from fedbench.core.errors import ConfigError, UnknownPluginError, few, nearest, refusal, require

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CONTRACTS = {  # what a plug-in of a kind must inherit
    "protocol": "fedbench.api:Protocol",
    "attack": "fedbench.api:Attack",
    "defense": "fedbench.api:Defense",
    "prefilter": "fedbench.api:Prefilter",
    "mechanism": "fedbench.api:Mechanism",
    "dataset": "fedbench.data.datasets:Dataset",
    "model": "fedbench.models.models:Model",
    "partition": "fedbench.data.partitions:Partition",
}
KINDS = tuple(CONTRACTS)
OURS = "fedbench-toolkit"
# Metadata of a parameter that came later: `describe` leaves it out at its default, so that texts of
# runs that were played before it stay as they are.
UNWRITTEN: Mapping[str, bool] = {"unwritten": True}
_HERE: dict[tuple[str, str], Any] = {}  # by kind and name: `register` of this process alone
AS = "as"  # what names one of a plug-in's `variants` where a parameter may stand
OWN = "own"  # the variant of a plug-in's defaults; of defenses, the protocol's own rule
VOTE = "vote"  # how tables write that rule where it counts votes
T = TypeVar("T")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
# A word that may stand first among parameters, for ``name=``: a class of another project.
_CLASS = re.compile(r"[A-Z]\w*")
_LINK = re.compile(r"\+(?=[a-z])")  # not that of 1e+5


@cache
def _points(kind: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points by name; more than one where several packages claim a name."""
    if kind not in KINDS:
        raise UnknownPluginError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    from importlib.metadata import entry_points  # `fedbench --help` does not wait for it

    points: dict[str, list[EntryPoint]] = {}
    for point in sorted(entry_points(group=f"fedbench.{kind}s"), key=lambda point: point.name):
        points.setdefault(point.name, []).append(point)
    return points


@cache
def _peers(kind: str) -> dict[str, list[EntryPoint]]:
    """Return the entry points that lead to parts of other projects, which no list has."""
    from importlib.metadata import entry_points

    points = entry_points(group=f"fedbench.peer-{kind}s")
    return {point.name: [point] for point in points if point.dist and point.dist.name == OURS}


def points_of(kind: str, name: str) -> list[EntryPoint]:
    """Return the entry points of a name: of plug-ins first, then of other projects."""
    return _points(kind).get(name) or _peers(kind).get(name, [])


def _package(point: EntryPoint) -> str:
    """Name and version of the package that has the entry point."""
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def refresh() -> None:
    """Look for entry points again, since ``sys.path`` has changed."""
    _points.cache_clear()


def names(kind: str) -> list[str]:
    """Return the names of a kind's plug-ins: installed, or registered in this process."""
    return sorted([*_points(kind), *(name for held, name in _HERE if held == kind)])


def plugins(kind: str) -> dict[str, type[Any]]:
    """Return the classes of all plug-ins of a kind by name, importing each.

    One that cannot be imported is left out, with a warning.

    >>> "trimmed-mean" in plugins("defense")
    True

    Raises:
        UnknownPluginError: there is no such kind.
    """
    classes = {}
    for name in names(kind):
        try:
            classes[name] = plugin(kind, name)
        except UnknownPluginError as error:
            warnings.warn(str(error), stacklevel=2)
    return classes


def is_plugin(kind: str, cls: Any) -> bool:
    """Return whether a class can be a plug-in of this kind, installed or not."""
    contract: type[Any] = resolve_name(CONTRACTS[kind])
    return isinstance(cls, type) and issubclass(cls, contract) and _is_frozen(cls)


def require_plugin(kind: str, cls: Any, subject: str, got: str) -> None:
    """Raise `UnknownPluginError` unless a class is a plug-in of this kind."""
    if not is_plugin(kind, cls):
        raise UnknownPluginError(
            f"{subject} must be a frozen dataclass that inherits {CONTRACTS[kind]}, got {got}"
        )


def register(kind: str, name: str) -> Callable[[type[T]], type[T]]:
    """Return a decorator that makes a class a plug-in by this name, in this process alone.

    It is for notebooks and scripts: nothing is installed, and no other process knows the name. A
    class of the same module and name replaces the earlier one, as when a cell runs again.

    >>> from dataclasses import dataclass
    >>> from fedbench.api import Attack
    >>> @register("attack", "idler")
    ... @dataclass(frozen=True, kw_only=True)
    ... class Idler(Attack):
    ...     pass
    >>> load("attack", "idler")
    Idler()

    Raises:
        UnknownPluginError: there is no such kind, or the class is no plug-in of it.
        ConfigError: the name is taken, or is not of small letters, digits and hyphens; or a method
            reads a number or a word of the function around the class, which no record would say.
    """
    from fedbench.core.sources import captured

    def decorated(cls: type[T]) -> type[T]:
        installed = _points(kind)
        require_plugin(kind, cls, f"{kind} {name!r}", f"{cls!r}; write @dataclass(frozen=True)")
        require("name", name, _NAME.fullmatch(name) is not None, "small letters, digits, hyphens")
        earlier = _HERE.get((kind, name), cls)
        same = (earlier.__module__, earlier.__qualname__) == (cls.__module__, cls.__qualname__)
        if name in installed or not same:
            raise ConfigError(
                f"{kind} {cls.__name__} must have a name of its own, got {name!r}, which is taken; "
                f'use @fedbench.register("{kind}", "my-{name}")'
            )
        for method, variable, value in captured(cls):
            raise ConfigError(
                f"{cls.__name__}.{method} must read numbers and words from fields of its class, "
                f"got {variable} = {value!r} of the function around it; write self.{variable}, and "
                "make it a field"
            )
        _HERE[kind, name] = cls
        return cls

    return decorated


def kebab(name: str) -> str:
    """Return the name of a class as the command line writes it.

    >>> kebab("TrimmedMean"), kebab("ALIE"), kebab("My2Tables")
    ('trimmed-mean', 'alie', 'my2-tables')
    """
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name)
    return re.sub(r"[^A-Za-z0-9]+", "-", words).strip("-").lower()


def hold(kind: str, name: str, instance: Any) -> None:
    """Make one object, which no text describes, the plug-in of this name, in this process alone."""
    _HERE[kind, name] = instance


def is_here(kind: str, text: str) -> bool:
    """Return whether this process alone knows a plug-in, or a link of a chain of defenses."""
    named = [part.partition(":")[0] for part in (links(text) if kind == "defense" else [text])]
    kinds = (kind, "prefilter") if kind == "defense" else (kind,)
    return any((each, name) in _HERE for each in kinds for name in named)


def name_of(kind: str, cls: type[Any]) -> str | None:
    """Return the name under which a class is installed or registered, if it is."""
    for name, points in _points(kind).items():
        if any(point.value == f"{cls.__module__}:{cls.__qualname__}" for point in points):
            return name
    return next((name for (held, name), x in _HERE.items() if held == kind and x is cls), None)


def plugin(kind: str, name: str) -> type[Any]:
    """Return the class of a name; `UnknownPluginError` unless one package has one that imports."""
    if (kind, name) in _HERE:
        here = _HERE[kind, name]
        return here if isinstance(here, type) else type(here)
    if not points_of(kind, name):
        if kind == "defense" and points_of("prefilter", name):
            raise UnknownPluginError(
                f"--defense {name!r} must be a rule, got a prefilter; write {name}+mean, say"
            )
        listed = f"known: {few(names(kind))}; see fedbench list {kind}s"
        hint = nearest(name, names(kind), listed, names("prefilter") if kind == "defense" else ())
        if (kind, name) == ("defense", VOTE):
            hint = f"tables write {VOTE} for {OWN}"
        raise UnknownPluginError(f"--{kind} {name!r} is not installed; {hint}")
    point, *others = points_of(kind, name)
    if others:  # none of them wins: a look-alike would be taken for what it imitates
        claims = " and ".join(sorted(_package(claim) for claim in (point, *others)))
        raise UnknownPluginError(
            f"--{kind} {name!r} must be the name of one package's plug-in, got it from {claims}; "
            "uninstall one of them or rename its entry point"
        )
    try:
        loaded: type[Any] = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code: whatever its import raises ends here, exits too
        raise UnknownPluginError(
            f"--{kind} {name!r} cannot be imported from {point.value} ({error_line(error)}); "
            "repair or uninstall that package"
        ) from error
    require_plugin(kind, loaded, f"--{kind} {name!r}", f"{point.value}; {_remedy(kind, loaded)}")
    return loaded


def _remedy(kind: str, loaded: Any) -> str:
    """Return what to do about something installed that is no plug-in of this kind."""
    if isinstance(loaded, type) and issubclass(loaded, resolve_name(CONTRACTS[kind])):
        return "write @dataclass(frozen=True)"
    if kind in ("dataset", "model"):
        return f"repair that package, or give it to fedbench.Scenario({kind}=...) in Python"
    return "repair that package"


def without_default(cls: type[Any]) -> list[str]:
    """Return the names of the fields of a dataclass that must be given to make an object."""
    missing = dataclasses.MISSING
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.default is missing and field.default_factory is missing
    ]


def _is_frozen(cls: type[Any]) -> bool:
    return dataclasses.is_dataclass(cls) and bool(cls.__dataclass_params__.frozen)  # type: ignore[attr-defined]


def owner(kind: str, text: str) -> str:
    """Return kind, name and package of a plug-in, without importing it; of a chain its rule's."""
    *_, last = links(text) if kind == "defense" else [text]
    name = last.partition(":")[0]
    packages = [_package(point) for point in points_of(kind, name)]
    return f"{kind} {name} (package {' or '.join(packages) or 'of nobody'})"


def is_foreign(kind: str, text: str) -> bool:
    """Return whether a plug-in, or a link of a chain, is of another distribution than fedbench."""
    *before, last = links(text) if kind == "defense" else [text]
    named = [*(("prefilter", part) for part in before), (kind, last)]
    claims = [_points(kind).get(part.partition(":")[0], []) for kind, part in named]
    owners = [{point.dist.name if point.dist else "" for point in points} for points in claims]
    return any(owner != {OURS} for owner in owners)


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where a source file comes from; a file of no installed plug-in has only a module."""

    module: str
    package: str = ""
    version: str = ""
    url: str = ""


def origin(path: str) -> Origin:
    """Return the module and the package of a source file of a plug-in, without importing it."""
    stem = path.replace("\\", "/").removesuffix(".py").removesuffix("/__init__")
    for kind in KINDS:
        for point in (point for points in _points(kind).values() for point in points):
            if point.dist is not None and f"/{stem}".endswith("/" + point.module.replace(".", "/")):
                about = point.dist.metadata
                named = about.get_all("Project-URL") or []  # "label, address"
                urls = [*(about.get_all("Home-page") or []), *(x.partition(", ")[2] for x in named)]
                url = urls[0] if urls else ""
                return Origin(point.module, point.dist.name, point.dist.version, url)
    return Origin(stem.rpartition("/")[2])


def links(text: str) -> list[str]:
    """Split a chain into its prefilters and its rule, in the order in which rows go through them.

    >>> links("clip:c=1e+2+nnm:f=2+multi-krum")
    ['clip:c=1e+2', 'nnm:f=2', 'multi-krum']
    """
    return _LINK.split(text)


def split(text: str, subject: str = "") -> tuple[str, dict[str, str]]:
    """Split ``name:param=value,param=value``; the parameters of a chain's prefilters carry names.

    Errors begin with the ``subject``, such as ``--attack``.

    >>> split("nnm:f=1+multi-krum:f=2")
    ('nnm+multi-krum', {'nnm.f': '1', 'f': '2'})

    A word with a capital that stands first is a class of another project, its parameter ``name``.

    >>> split("flwr:Krum,f=2")
    ('flwr', {'name': 'Krum', 'f': '2'})
    """
    *before, last = links(text)
    if before:
        parts = [split(part) for part in before]
        name, params = split(last)
        earlier = {f"{link}.{key}": value for link, own in parts for key, value in own.items()}
        return "+".join([*(link for link, _ in parts), name]), earlier | params
    name, colon, rest = text.partition(":")
    named = f"{subject} {text!r}".strip()
    params = {}
    for place, part in enumerate(rest.split(",") if colon else ()):
        if not place and _CLASS.fullmatch(part.strip()):
            part = f"name={part}"
        param, equals, value = (word.strip() for word in part.partition("="))
        if not (param and equals):
            raise ConfigError(f"{named} must read name:param=value,param=value, got {part!r}")
        if param in params:
            raise ConfigError(f"{named} must give every parameter once, got {param!r} twice")
        params[param] = value
    return name.strip(), params


def joined(name: str, params: Mapping[str, str]) -> str:
    """Join what `split` takes apart.

    >>> joined("nnm+multi-krum", {"nnm.f": "1", "f": "2"})
    'nnm:f=1+multi-krum:f=2'
    """
    *before, last = name.split("+")
    texts = []
    for link in before:
        prefix = f"{link}."
        given = {k.removeprefix(prefix): v for k, v in params.items() if k.startswith(prefix)}
        texts.append(joined(link, given))
    own = [f"{key}={value}" for key, value in params.items() if "." not in key]
    return "+".join([*texts, f"{last}:{','.join(own)}" if own else last])


def variants(cls: type[Any]) -> dict[str, dict[str, str]]:
    """Return the parameters, as typed, that each value of ``as=`` stands for; none if it has none.

    A plug-in names its systems in a class variable ``variants``: where a paper's text and its
    released code differ, ``paper`` and ``code``. ``own`` stands for its defaults.
    """
    named = getattr(cls, "variants", {})
    texts = {
        name: {param: str(value).lower() for param, value in params.items()}
        for name, params in named.items()
    }
    return {OWN: {}} | texts if texts else {}


def expanded(kind: str, name: str, params: Mapping[str, str]) -> dict[str, str]:
    """Replace ``as=...`` by what it stands for; a parameter that is typed beside it wins."""
    if AS not in params:
        return dict(params)
    by_variant = variants(plugin(kind, name))
    beside = {param: value for param, value in params.items() if param != AS}
    if by_variant and params[AS] not in by_variant:
        hint = nearest(params[AS], by_variant, f"known: {', '.join(by_variant)}")
        raise ConfigError(f"--{kind} {name} has no variant as={params[AS]}; {hint}")
    return by_variant[params[AS]] | beside if by_variant else dict(params)


def load(kind: str, text: str) -> Any:
    """Make the plug-in, or chain of defenses, that ``name:param=value`` describes.

    ``as=...`` names one of its `variants`. `ConfigError` for no such plug-in
    (`UnknownPluginError`), parameter or value.
    """
    if kind == "defense" and len(parts := links(text)) > 1:
        named = [part.partition(":")[0] for part in parts]
        if len(set(named)) < len(named):
            raise ConfigError(f"--defense {text!r} must name each link once, got one twice")
        for early in named[:-1]:
            if points_of(kind, early) and not points_of("prefilter", early):
                raise ConfigError(
                    f"--defense {text!r} must have one rule, at its end, got {early!r} before it"
                )
        rule = load(kind, parts[-1])
        for part in reversed(parts[:-1]):
            rule = load("prefilter", part).before(rule)
        return rule
    if not text.isprintable():
        raise ConfigError(f"--{kind} must be one printable line, got {text!r}")
    name, params = split(text, f"--{kind}")
    cls = plugin(kind, name)
    registered = _HERE.get((kind, name), cls)
    if not isinstance(registered, type):
        require(f"--{kind} {name}", params, not params, "without parameters, as one object is")
        return registered
    return made(kind, name, cls, expanded(kind, name, params))


def made(kind: str, name: str, cls: type[Any], params: Mapping[str, str]) -> Any:
    """Make an object of a class from its parameters as they were typed, for ``--kind name``.

    `ConfigError` for a parameter or a value that does not exist.
    """
    from pydantic import ValidationError

    making = Hook(cls, "__init__")
    with making:
        hints = get_type_hints(cls)
        fields = {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}
    for param in without_default(cls):
        if param not in params:
            raise UnknownPluginError(
                f"--{kind} {name} must have a default for every field, got none for {param!r}; "
                f"write {param} = ..., so that the command line can make it"
            )
    values = {}
    for param, value in params.items():
        if param not in fields:
            hint = nearest(param, fields, f"parameters: {', '.join(fields) or 'none'}")
            raise ConfigError(f"--{kind} {name} has no parameter {param!r}; {hint}")
        try:
            nothing = value.lower() == "none" and type(None) in get_args(fields[param])
            given = None if nothing else value  # "none" may be a word that a field takes
            with making:
                adapter = _adapter(cls, param, fields[param])
            values[param] = adapter.validate_python(given)
        except ValidationError as error:
            raise ConfigError(refusal(f"--{kind} {name}:{param}", error)) from error
        if "_" in value and isinstance(values[param], int | float):  # 1_000 is Python, not a number
            raise ConfigError(f"--{kind} {name}:{param} must be a number, got {value!r}")
        made = values[param]
        if isinstance(made, float) and made != 0 and not 1e-38 <= abs(made) <= 1e38:
            requirement = "a finite number, 0 or from 1e-38 to 1e38 in magnitude, for float32"
            raise ConfigError(f"--{kind} {name}:{param} must be {requirement}, got {value!r}")
    with making:
        return cls(**values)


def _adapter(cls: type[Any], param: str, hint: Any) -> Any:
    """Return what reads a field of this type from text; `ConfigError` for one that no text says."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticSchemaGenerationError

    try:
        return TypeAdapter(hint)
    except PydanticSchemaGenerationError as error:
        raise ConfigError(
            f"{cls.__name__}.{param} must be a number, a word or None, which text can say, got the "
            f"type {getattr(hint, '__name__', hint)}; make it in a method"
        ) from error


def describe(name: str, instance: Any, *, every: bool = False) -> str:
    """Return the text that `load` turns into an equal instance: parameters are written out.

    Those marked as `UNWRITTEN` are left out at their default, unless ``every`` one is asked for.

    >>> describe("trimmed-mean", load("defense", "trimmed-mean:f=2"))
    'trimmed-mean:f=2'
    """
    if any(instance is here for here in _HERE.values()):
        return name
    first, _, rest = name.partition("+")
    if rest:
        before = describe(first, instance.first, every=every)
        return f"{before}+{describe(rest, instance.rule, every=every)}"
    fields = [field for field in dataclasses.fields(instance) if field.init]
    written = [field.name for field in fields if every or not _is_silent(field, instance)]
    params = [f"{field}={str(getattr(instance, field)).lower()}" for field in written]
    return f"{name}:{','.join(params)}" if params else name


def parameters(instance: Any) -> dict[str, bool | int | float | str | None]:
    """Return the parameters of a plug-in that are numbers, texts or None, by name.

    >>> parameters(load("defense", "trimmed-mean:f=2"))
    {'f': 2}
    """
    if not dataclasses.is_dataclass(instance):
        return {}
    fields = [field.name for field in dataclasses.fields(instance) if field.init]
    values = {name: getattr(instance, name) for name in fields}
    plain = (bool, int, float, str, type(None))
    return {name: value for name, value in values.items() if isinstance(value, plain)}


def _is_silent(field: dataclasses.Field[Any], instance: Any) -> bool:
    unwritten: bool = field.metadata.get("unwritten", False)
    return unwritten and bool(getattr(instance, field.name) == field.default)
