"""Aggregation rules and prefilters as functions of rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor

from fedbench.api import Defense, Findings, Prefilter, ServerView, Traits, hooks
from fedbench.api.defense import Link
from fedbench.api.prefilter import transform
from fedbench.core import registry
from fedbench.core.blame import ask, shown
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.core.trees import Layout
from fedbench.functional import forms
from fedbench.functional.absent import Absent, mended
from fedbench.functional.forms import Form, Rows
from fedbench.functional.signatures import (
    Argument,
    bound,
    checked_fields,
    described,
    fields_of,
    python_name,
)
from fedbench.models.network import Network
from fedbench.payload import FloatVectors, Payload

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNWEIGHTED = "gnores the clients' sizes"  # rules say so, and a conformance test makes sure
X = Argument("x", "Rows", "Rows, one for each client; a tensor, an array, vectors or state dicts.")
WEIGHTS = Argument(
    "weights", "Sequence[float] | Tensor | None", "Sizes of the clients, by default 1."
)
KEY = Argument(
    *("key", "int | Key | None", "Randomness of the rule: an integer, another one in every round."),
    why="an integer for its random draws, another one in every round",
)
IDS = Argument(
    *("ids", "Sequence[int] | Tensor", "Number of each row's client, the same in every round."),
    required=True,
    why="the number of each row's client, the same in every round",
)
ROOT = Argument(
    *("root", "Vector", "The server's own vector, from its clean root data."),
    required=True,
    why="the server's own vector, from clean root data",
)
MODEL = Argument(
    *("model", "Vector | None", "Weights that the server sent, in the form of a row."),
    required=True,
    why="the weights that the server sent, in the form of a row",
)
STEP = Argument("step", int, "Round, from 0.", 0)
NETWORK = Argument(
    *("network", "Network", "Function from a row's layers to logits."),
    required=True,
    why="a fedbench.models.network.Network whose parameters are the rows, as "
    "ModuleModel(module=net).build((1, 28, 28), 10) returns",
)
STATE = Argument("state", Any, "State that the last round returned; None before the first.")
FINDINGS = Argument(
    "findings", "Findings | None", "Object that the rule's findings are written to."
)
ANSWER = "The answer, in the form of one row."
ANSWER_AND_STATE = "The answer, in the form of one row, and the state for the next round."


def rule(plugin: str | type[Defense[Any]]) -> Callable[..., Any]:
    """Return the function of a rule, by the name of an installed one or by its class.

    >>> import torch
    >>> rule("trimmed-mean")(torch.tensor([[1.0], [2.0], [9.0]]), f=1)
    tensor([2.])

    Raises:
        UnknownPluginError: no installed rule has the name.
    """
    return _rule(*_named("defense", plugin))


def prefilter(plugin: str | type[Prefilter]) -> Callable[..., Any]:
    """Return the function of a prefilter, by the name of an installed one or by its class.

    Raises:
        UnknownPluginError: no installed prefilter has the name.
    """
    return _prefilter(*_named("prefilter", plugin))


def refusal(cls: type[Link]) -> str | None:
    """Return why a prefilter or a rule has no function, or None."""
    if ask(cls(), "traits", Traits).oracle:
        return "it tells a rule how many rows are malicious; give that rule its f"
    return None


def possible_traits(cls: type[Link]) -> list[Traits]:
    """Return the traits of a rule at its defaults and with any one parameter changed."""
    return [ask(instance, "traits", Traits) for instance in _variations(cls)]


def arguments_of(cls: type[Link]) -> list[Argument]:
    """Return all keywords of a rule's function: its fields, then what only a run knows."""
    traits = possible_traits(cls)
    arguments = fields_of(cls)
    if UNWEIGHTED not in " ".join((cls.__doc__ or "").split()) and issubclass(cls, Defense):
        arguments.append(WEIGHTS)
    if any(t.randomized for t in traits):
        always = all(t.randomized for t in traits)
        arguments.append(dataclasses.replace(KEY, required=always))
    needs = {"identities": [IDS], "root": [ROOT], "model": [MODEL, STEP], "network": [NETWORK]}
    for trait, needed in needs.items():
        if getattr(traits[0], trait):
            arguments += needed
    if traits[0].broadcast and not traits[0].history:
        arguments.append(MODEL)
    if traits[0].history:
        remembers = [dataclasses.replace(MODEL, required=False), STEP]
        arguments += [STATE, *(remembers if MODEL not in arguments else [])]
    return [*arguments, FINDINGS]


def aggregate(label: str, instance: Defense[Any], rows: Rows, given: dict[str, Any]) -> Any:
    """Return a rule's answer to rows, and its next state if it remembers.

    Args:
        label: Name that errors begin with.
        instance: The rule with its parameters.
        rows: Rows in any of the forms.
        given: Values of the arguments beside the rule's parameters.
    """
    payload, form = _messages(label, instance, rows)
    view = _view(label, instance, payload, form, given)
    needed = ask(instance, "rows_needed", int)
    f = getattr(instance, "f", None)
    requirement = f"n >= {needed} rows" + (f" for f = {f}, or a lower f" if f else "")
    _require_rows(label, len(payload) >= needed, requirement, payload)
    most = ask(instance, "most_rows", (int, type(None)))
    _require_rows(label, most is None or len(payload) <= most, f"n <= {most} rows", payload)
    state = given.get("state")
    if state is None:
        state = ask(instance, "init", object, payload.spec)
    with mended(label):
        answer, after = hooks.aggregate(instance, payload.copied(), state, view)
    out = form.row(answer)
    return (out, after) if ask(instance, "traits", Traits).history else out


def filtered(label: str, instance: Prefilter, rows: Rows, given: dict[str, Any]) -> Any:
    """Return the rows that a prefilter hands on, in the form in which they came."""
    payload, form = _messages(label, instance, rows)
    view = _view(label, instance, payload, form, given)
    needed = _rows_needed(instance)
    _require_rows(label, len(payload) >= needed, f"n >= {needed} rows", payload)
    with mended(label):
        passed, kept_rows = transform(instance, payload.copied(), view)
    numbers = None if kept_rows is None else kept_rows.tolist()
    if numbers is not None:
        view.findings.kept = torch.zeros(len(payload), dtype=torch.bool)
        view.findings.kept[numbers] = True
    alike = len(passed) == len(payload)
    sources = numbers or [row if alike else None for row in range(len(passed))]
    return form.rows(forms.symbols(passed), sources)


def _calling(
    label: str, cls: Any, arguments: Sequence[Argument], answer: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function of rows that makes the plug-in of its keywords, and asks it the rest."""
    fields = {argument.name for argument in fields_of(cls)}

    def function(x: Rows, **keywords: Any) -> Any:
        values = bound(label, arguments, keywords)
        params = checked_fields(label, cls, {k: v for k, v in values.items() if k in fields})
        instance = _made(label, cls, params)
        return answer(label, instance, x, {k: v for k, v in values.items() if k not in fields})

    return function


@cache
def _rule(name: str, cls: Any) -> Callable[..., Any]:
    label = python_name(name)
    arguments = arguments_of(cls)
    remembers = STATE in arguments
    returns = (tuple[Any, Any], ANSWER_AND_STATE) if remembers else (Any, ANSWER)
    function = _calling(label, cls, arguments, aggregate)
    return described(function, label, cls, X, arguments, returns)


@cache
def _prefilter(name: str, cls: Any) -> Callable[..., Any]:
    label = python_name(name)
    if (why := refusal(cls)) is not None:
        raise ConfigError(f"{label} has no function: {why}")
    arguments = arguments_of(cls)
    function = _calling(label, cls, arguments, filtered)
    returns = (Any, "The rows that are handed on, in the form in which they came.")
    return described(function, label, cls, X, arguments, returns)


def _named(kind: str, plugin: str | type[Any]) -> tuple[str, Any]:
    """Return a name and a class; `ConfigError` for what is no plug-in of that kind."""
    if isinstance(plugin, str):
        return plugin, registry.plugin(kind, plugin)
    contract = Defense if kind == "defense" else Prefilter
    good = isinstance(plugin, type) and issubclass(plugin, contract)
    good = good and dataclasses.is_dataclass(plugin)
    requirement = f"an installed name, or a dataclass that inherits {contract.__name__}"
    require(kind, plugin, good, requirement)
    return plugin.__name__, plugin


def _made(label: str, cls: type[Any], params: dict[str, Any]) -> Any:
    if "f" in params:
        require(f"{label}(f=)", params["f"], params["f"] >= 0, ">= 0")
    return cls(**params)


def _messages(label: str, instance: Link, rows: Rows) -> tuple[Payload, Form]:
    """Return the rows as messages; `ConfigError` if the rule has no meaning on such ones."""
    x, form = forms.read(f"{label}(x)", rows)
    payload = forms.message(x, form.sizes)
    kinds = {torch.bool: "masks of bools", torch.int32: "rankings of integers"}
    if (why := instance.refuses(type(payload))) is not None:
        raise ConfigError(f"{label} {why}, got {kinds.get(x.dtype, 'real numbers')}")
    if not isinstance(payload, FloatVectors):
        with mended(label):
            payload.check()
    return payload, form


def _require_rows(label: str, holds: bool, requirement: str, payload: Payload) -> None:
    if not holds:
        raise ConfigError(f"{label} must have {requirement}, got {len(payload)}")


def _rows_needed(instance: Prefilter) -> int:
    """Return the rows that a prefilter needs itself, in front of a rule that needs one."""
    return int(ask(instance, "rows_needed", int, _Anything()))


@dataclasses.dataclass(frozen=True)
class _Anything(Defense[None]):
    """Rule that takes any number of rows, behind a prefilter that is asked how many it needs."""

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        return received.values()[0], None


def _view(
    label: str, instance: Link, payload: Payload, form: Form, given: dict[str, Any]
) -> ServerView:
    """Return what a rule is shown beside messages; `ConfigError` if it needs what is missing."""
    n = len(payload)
    traits = ask(instance, "traits", Traits)
    key = given.get("key")
    if traits.randomized and key is None:
        raise ConfigError(f"{label} must be given key=..., {KEY.why}")
    like = f"{label}(x)"
    model = given.get("model")
    network = given.get("network")
    broadcast: Payload = Absent(torch.zeros(1, form.d))
    if model is not None:
        row = forms.read_row(f"{label}(model=)", model, form, like, real=True)
        broadcast = FloatVectors(row[None])
    root = given.get("root")
    if root is not None:
        own = forms.read_row(f"{label}(root=)", root, form, like)
        root = forms.message(own[None], form.sizes)
    findings = given.get("findings")
    good = findings is None or isinstance(findings, Findings)
    require(f"{label}(findings=)", findings, good, "a fedbench.functional.Findings")
    layout = form.layout
    if network is not None:
        made = "a Network, for instance ModuleModel(module=net).build((1, 28, 28), 10)"
        require(f"{label}(network=)", type(network).__name__, isinstance(network, Network), made)
        layout = Layout.of(network.shapes)
        require(f"{label}(network=)", layout.d, layout.d == form.d, f"one of {form.d} parameters")
    return ServerView(
        weights=_numbers(f"{label}(weights=)", given.get("weights"), n),
        broadcast=broadcast,
        step=step_of(label, given.get("step")),
        key=key_of(label, 0 if key is None else key),
        expected=n,
        ids=_ids(f"{label}(ids=)", given.get("ids"), n),
        layout=layout,
        network=network,
        root=root,
        findings=Findings() if findings is None else findings,
    )


def key_of(label: str, key: int | Key) -> Key:
    """Return the stream of an integer of 64 bits, or a key as it is."""
    if isinstance(key, Key):
        require(f"{label}(key=)", key, not key.stacked, "a key of one stream")
        return key
    good = isinstance(key, int) and not isinstance(key, bool) and 0 <= key < 2**64
    require(f"{label}(key=)", key, good, "an integer from 0 to 2**64 - 1")
    return Key(key)


def step_of(label: str, step: Any) -> int:
    """Return the number of a round; None is the first."""
    good = isinstance(step, int) and not isinstance(step, bool) and step >= 0
    require(f"{label}(step=)", step, step is None or good, "an integer >= 0")
    return int(step or 0)


def _numbers(subject: str, weights: Any, n: int) -> Tensor:
    if weights is None:
        return torch.ones(n, dtype=torch.float64)
    given = _tensor(weights)
    if given is not None and given.shape == (n,) and not given.is_complex():
        sizes = given.to(torch.float64)
        if bool((sizes >= 0).all()) and 0 < float(sizes.sum()) < torch.inf:
            return sizes
    raise ConfigError(f"{subject} must be {n} numbers >= 0 with a sum > 0, got {_listed(weights)}")


def _ids(subject: str, ids: Any, n: int) -> Tensor:
    if ids is None:
        return torch.arange(n)
    numbers = _tensor(ids)
    whole = numbers is not None and numbers.shape == (n,) and numbers.dtype in INTEGERS
    if numbers is not None and whole and len(set(numbers.tolist())) == n:
        return numbers.to(torch.int64)
    raise ConfigError(f"{subject} must be {n} different integers, got {_listed(ids)}")


def _tensor(values: Any) -> Tensor | None:
    """Return numbers as a tensor on the CPU; None for what torch makes none of."""
    if isinstance(values, np.ma.MaskedArray):  # what lies under a mask is no number
        return None
    try:
        return torch.as_tensor(values).detach().cpu().to_dense()
    except (TypeError, ValueError, RuntimeError):
        return None


def _listed(values: Any) -> str:
    """Describe numbers in one line, those of a list by themselves."""
    return repr(values) if isinstance(values, list | tuple | range) else shown(values)


def _variations(cls: type[Link]) -> Iterator[Link]:
    """Yield the rule at its defaults, then with one parameter changed, as far as that is legal."""
    default = cls()
    yield default
    hints = get_type_hints(cls)
    for field in (field for field in dataclasses.fields(cls) if field.init):  # type: ignore[arg-type]
        for value in _others(hints[field.name]):
            try:
                yield dataclasses.replace(default, **{field.name: value})  # type: ignore[type-var]
            except ConfigError:
                continue


def _others(hint: Any) -> list[Any]:
    """Return some values of a type that may change what a rule needs."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    parts = [part for part in get_args(hint) if part is not type(None)] or [hint]
    values: list[Any] = []
    for part in parts:
        if get_origin(part) is Literal:
            values += get_args(part)
        elif part is bool:
            values += [False, True]
        elif part in (int, float):
            values += [part(0), part(1)]
    return values
