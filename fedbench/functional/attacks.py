"""Attacks as functions of honest rows.

The threat model is that of a run: an attack is shown what it declares, copies of it, and what it
sends is encoded and checked. Attacks compute in float32, as they do there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, MutableMapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedbench.adversary import threat_model
from fedbench.api import Attack, Defense, ServerView
from fedbench.core import registry
from fedbench.core.blame import shown
from fedbench.core.errors import ConfigError, IllegalPayloadError, require
from fedbench.core.rng import Key, Secret
from fedbench.functional import forms
from fedbench.functional.absent import Absent, mended
from fedbench.functional.forms import Form, Rows
from fedbench.functional.rules import key_of, step_of
from fedbench.functional.signatures import (
    Argument,
    bound,
    checked_fields,
    described,
    fields_of,
    python_name,
)
from fedbench.payload import BinaryMasks, FloatVectors, Payload, Rankings, joined
from fedbench.payload.packets import Packet

PLAIN = (FloatVectors, BinaryMasks, Rankings)  # alphabets that are plain rows
HONEST = Argument("honest", "Rows", "Rows of the benign clients, in any of the forms.")
M = Argument("m", int, "Number of malicious clients.", required=True)
OWN = Argument(
    "own",
    "Rows | None",
    "The ``m`` rows that its clients would have sent; by default the first honest ones stand in.",
)
TRAINED = Argument(
    *("trained", "Rows", "The ``m`` rows after the attack's own training, such as on its labels."),
    required=True,
    why="the m rows after the attack's own training, which only your loop can do",
)
DEFENSE = Argument(
    *("defense", "Defense[Any] | str", "The server's rule that it queries, such as median."),
    required=True,
    why="the server's rule, which it queries: an instance, or a text such as trimmed-mean:f=2",
)
MODEL = Argument(
    "model", "Vector | None", "Weights that the server sent, for attacks that read it."
)
STEP = Argument("step", int, "Round, from 0.", 0)
KEY = Argument("key", "int | Key", "Randomness of the adversary in the whole run.", 0)
MEMORY = Argument(
    "memory",
    "MutableMapping[int, Any] | None",
    "Dict that the attack remembers in, the same one in every round; None: it is the first.",
)
NOTES = Argument(
    *("notes", "MutableMapping[str, Any] | None", "Dict that what the attack notes is written to."),
)
ROWS = "The ``m`` rows that are sent instead, in the form of ``honest``."
NOTE = (
    "The rule will receive ``n`` rows, ``m`` more than there are in ``honest``. An attack of the "
    "tier ``all`` reads these; one of the tier ``own`` or ``colluders`` reads only ``own``."
)


BYTES = "it sends bytes that are no message, which only a server can reject"


def attack(plugin: str | type[Attack]) -> Callable[..., Any]:
    """Return the function of an attack, by the name of an installed one or by its class.

    >>> import torch
    >>> attack("ipm")(torch.tensor([[1.0], [3.0]]), m=1, eps=1.0)
    tensor([[-2.]])

    Raises:
        UnknownPluginError: no installed attack has the name.
        ConfigError: the attack needs what only a run has.
    """
    cls: Any = registry.plugin("attack", plugin) if isinstance(plugin, str) else plugin
    good = isinstance(cls, type) and issubclass(cls, Attack) and dataclasses.is_dataclass(cls)
    require("attack", plugin, good, "an installed name, or a dataclass that inherits Attack")
    return _attack(plugin if isinstance(plugin, str) else plugin.__name__, cls)


def refusal(cls: type[Attack]) -> str | None:
    """Return why an attack has no function of rows, or None."""
    instance = cls()
    needed = threat_model.needs(instance)
    if not any(issubclass(kind, cls.accepts) for kind in PLAIN):
        names = ", ".join(kind.__name__ for kind in cls.accepts)
        return f"it works on {names}, which are no plain rows; play it in a run"
    if instance.learns or needed.data:
        return "it rehearses with the model and the data of its clients; play it in a run"
    if needed.state:
        return "it reads the server's state; play it in a run"
    return f"{BYTES}; play it in a run" if _sends_bytes(instance) else None


def arguments_of(cls: type[Attack]) -> list[Argument]:
    """Return all keywords of an attack's function."""
    instance = cls()
    arguments = [M, *(field for field in fields_of(cls) if field.name != "m"), OWN]
    if instance.trains:
        arguments.append(TRAINED)
    if threat_model.needs(instance).defense:
        arguments.append(DEFENSE)
    return [*arguments, MODEL, STEP, KEY, MEMORY, NOTES]


def craft(label: str, instance: Attack, honest: Rows, given: dict[str, Any]) -> Any:
    """Return the rows that an attack sends, in the form of the honest ones.

    Args:
        label: Name that errors begin with.
        instance: The attack with its parameters.
        honest: Rows of the benign clients.
        given: Values of the arguments beside the attack's parameters.
    """
    m = given["m"]
    good = isinstance(m, int) and not isinstance(m, bool) and m >= 1
    require(f"{label}(m=)", m, good, "an integer >= 1")
    for name in ("memory", "notes"):
        value = given.get(name)
        if value is not None and not isinstance(value, MutableMapping):
            raise ConfigError(f"{label}({name}=) must be a dict, got {shown(value)}")
    x, form = forms.read(f"{label}(honest)", honest)
    b = len(x)
    own = x[[i % b for i in range(m)]]
    if given.get("own") is not None:
        own = _rows(label, "own", given["own"], form, m)
        alike = own.dtype == x.dtype or (own.is_floating_point() and x.is_floating_point())
        require(f"{label}(own=).dtype", str(own.dtype), alike, f"{x.dtype} as {label}(honest)")
    trained = own
    if given.get("trained") is not None:
        trained = _rows(label, "trained", given["trained"], form, m)
    payload = forms.message(torch.cat([x, own]), form.sizes)
    if not isinstance(payload, instance.accepts):
        names = ", ".join(kind.__name__ for kind in instance.accepts)
        raise ConfigError(f"{label} works on {names}, got rows of {x.dtype}")
    if isinstance(payload, FloatVectors):
        payload = FloatVectors(payload.x.to(torch.float32))
    with mended(label):
        payload.check()
        trained_values = forms.message(trained, form.sizes).values().to(torch.float32)
        context = _context(label, instance, payload, form, trained_values, b, given)
        memory = given.get("memory")
        forged = threat_model.forge(instance, context, {} if memory is None else memory)
    notes = given.get("notes")
    if notes is not None:
        notes.update(forged.fields["notes"])
    sent = payload.take(list(range(b, b + m)))
    if forged.replaced:  # it does not leave the messages as they are
        sent = _decoded(label, [forged.replaced[row] for row in range(b, b + m)], sent)
    return form.rows(forms.symbols(sent), [i % b for i in range(m)])


def _decoded(label: str, packets: Sequence[Packet], form: Payload) -> Payload:
    """Return the messages of packets, of this form; `ConfigError` where bytes are no message."""
    try:
        rows = [type(form).decode_row(packet, form.spec) for packet in packets]
    except IllegalPayloadError as error:
        raise ConfigError(f"{label} has no rows: {BYTES}; play it in a run") from error
    return joined(rows)


@cache
def _attack(name: str, cls: Any) -> Callable[..., Any]:
    label = python_name(name)
    if (why := refusal(cls)) is not None:
        raise ConfigError(f"{label} has no function: {why}")
    arguments = arguments_of(cls)
    fields = {argument.name for argument in fields_of(cls)} - {"m"}

    def function(honest: Rows, **keywords: Any) -> Any:
        values = bound(label, arguments, keywords)
        params = checked_fields(label, cls, {k: v for k, v in values.items() if k in fields})
        others = {k: v for k, v in values.items() if k not in fields}
        return craft(label, cls(**params), honest, others)

    return described(function, label, cls, HONEST, arguments, (Any, ROWS), NOTE)


def _sends_bytes(instance: Attack) -> bool:
    """Return whether an attack sends what does not decode, tried on four rows of three numbers."""
    kind = next(kind for kind in PLAIN if issubclass(kind, type(instance).accepts))
    rows = {FloatVectors: torch.eye(4, 3), BinaryMasks: torch.eye(4, 3) > 0}
    x = rows.get(kind, torch.arange(3).expand(4, 3))
    given = {"m": 1, "trained": x[:1], "defense": "median", "model": x[0], "step": 0, "key": 0}
    try:
        craft("", instance, x, given)
    except ConfigError as error:
        return BYTES in str(error)
    except Exception:  # what goes wrong is told to who calls it
        return False
    return False


def _rows(label: str, name: str, rows: Rows, form: Form, m: int) -> Tensor:
    x, theirs = forms.read(f"{label}({name}=)", rows)
    require(f"{label}({name}=)", len(x), len(x) == m, f"m = {m} rows")
    require(f"{label}({name}=)", theirs.sizes, theirs.sizes == form.sizes, f"{form.sizes} wide")
    return x


def _context(
    label: str,
    instance: Attack,
    payload: Payload,
    form: Form,
    trained: Tensor,
    b: int,
    given: dict[str, Any],
) -> threat_model.AttackContext:
    """Return the round that the adversary moves in: its rows come after the ``b`` benign ones."""
    n = len(payload)
    m = n - b
    step = step_of(label, given.get("step"))
    key = key_of(label, given.get("key", 0))
    assert isinstance(key.seed, int)
    secret = Secret.of(key.seed, "adversary").derive(step)
    broadcast: Payload = Absent(torch.zeros(1, form.d))
    if given.get("model") is not None:
        like = f"{label}(honest)"
        model = forms.read_row(f"{label}(model=)", given["model"], form, like, real=True)
        broadcast = FloatVectors(model.to(torch.float32)[None])
    rule = rule_of(label, given.get("defense"), payload)
    updates = payload.values().to(torch.float32)
    view = ServerView(
        torch.ones(n, dtype=torch.float64), broadcast, step, Key(0), n, layout=form.layout
    )
    owned = threat_model.OwnedRows(torch.arange(b, n), range(b, n), range(m), m, secret)

    def codec(rows: Sequence[int]) -> threat_model.Compress:
        return lambda x: payload.take([0] * len(x)).nearest(x)

    return threat_model.AttackContext(
        honest=payload,
        updates=updates,
        trained=trained,
        poisoned=payload.take([0] * m).nearest(trained) if instance.trains else None,
        idle=torch.zeros_like(updates[:1]),
        owned=owned,
        codec=codec,
        memories=[{}] * n,
        server=None,
        defense=rule,
        defense_state=rule.init(payload.spec),
        view=view,
        recruits=None if instance.recruits == 0 else payload.take(list(range(b, n))),
    )


def rule_of(label: str, defense: Any, payload: Payload) -> Defense[Any]:
    """Return the rule that is queried; `ConfigError` for one that is unfinished or does not fit."""
    rule = registry.load("defense", defense) if isinstance(defense, str) else defense
    rule = registry.load("defense", "mean") if rule is None else rule
    require(f"{label}(defense=)", defense, isinstance(rule, Defense), "a rule or the text of one")
    assert isinstance(rule, Defense)
    if rule.declared(0) != rule:
        raise ConfigError(f"{label}(defense=) must have its f, got {defense!r}; write f=2")
    if (why := rule.refuses(type(payload))) is not None:
        raise ConfigError(f"{label}(defense=) {why}, got {type(payload).__name__}")
    n = len(payload)
    needed = rule.rows_needed()
    most = rule.most_rows()
    if n < needed or (most is not None and n > most):
        bounds = f"n >= {needed}" if n < needed else f"n <= {most}"
        raise ConfigError(f"{label}(defense=) must have {bounds} rows, got {n} with the attack's")
    return rule
