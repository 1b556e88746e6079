"""Checks of what a plug-in is, before any of its hooks is called.

Each raises an AssertionError of one line: plug-in, requirement, what was got, and what to do.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from typing import Any

from fedbench.api import Attack, Chain, Defense, Mechanism, Prefilter, Protocol
from fedbench.core.blame import shown, title
from fedbench.core.registry import without_default
from fedbench.experiment.compatibility import is_alphabet
from fedbench.payload import Payload

CONTRACTS: dict[str, type[Any]] = {
    "attack": Attack,
    "defense": Defense,
    "prefilter": Prefilter,
    "protocol": Protocol,
    "mechanism": Mechanism,
}
WORDS = {"unit": ("client", "example"), "batches": ("shuffled", "poisson")}


def must_be(kind: str, plugin: object, caller: str) -> None:
    """Require an instance of a frozen dataclass of this kind, all of whose fields have defaults."""
    contract = CONTRACTS[kind]
    name = contract.__name__
    if isinstance(plugin, type):
        made = f"write {plugin.__name__}()"
        raise AssertionError(f"{caller} must be given an instance, got a class; {made}")
    good = isinstance(plugin, contract)
    article = "an" if kind == "attack" else "a"
    got = shown(plugin)
    assert good, f"{caller} must be given {article} {kind}, got {got}; let it inherit {name}"
    if isinstance(plugin, Chain):
        return  # made of such by the harness
    cls = type(plugin)
    params = getattr(cls, "__dataclass_params__", None)
    remedy = "write @dataclass(frozen=True, kw_only=True) above the class"
    frozen = params is not None and params.frozen
    got = "no dataclass" if params is None else "one that can be written into"
    assert frozen, f"{title(plugin)} must be a frozen dataclass, got {got}; {remedy}"
    own = {n for n, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)}
    undecorated = own - {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    assert not undecorated, (
        f"{title(plugin)} must have its parameters as fields, got {min(undecorated)!r} outside of "
        f"the dataclass; {remedy}"
    )
    for name in without_default(cls):
        raise AssertionError(
            f"{title(plugin)} must have a default for every field, got none for {name!r}; "
            f"write {name} = ..., so that the command line can make it"
        )


def must_be_alphabets(plugin: object, name: str, alphabets: object) -> None:
    """Require a tuple of types of messages, one at least."""
    good = isinstance(alphabets, tuple) and len(alphabets) > 0
    good = good and all(map(is_alphabet, alphabets))  # type: ignore[call-overload]
    assert good, (
        f"{title(plugin)}: {name} must be a tuple of types of messages, got {shown(alphabets)}; "
        f"write {name} = (FloatVectors,)"
    )


def why_nothing_is_tried(caller: str, requirement: str, payloads: Sequence[Payload]) -> str:
    """Return why nothing was checked: of all examples no message is of an alphabet that fits."""
    ours = sorted({type(payload).__name__ for payload in payloads})
    got = f"those of fedbench and {', '.join(ours)}" if ours else "those of fedbench"
    remedy = "write payloads=[...] with messages of your own alphabet"
    return f"{caller} must have messages of an alphabet that {requirement}, got {got}; {remedy}"


def must_name_fields(plugin: object, name: str, named: object) -> None:
    """Require a dict whose keys are fields of the plug-in, of `choices` or of each variant."""
    fields = {field.name for field in dataclasses.fields(plugin)}  # type: ignore[arg-type]
    if not isinstance(named, dict):
        got = shown(named)
        raise AssertionError(f"{title(plugin)}: {name} must be a dict of fields, got {got}")
    for key in named:
        assert key in fields, (
            f"{title(plugin)}: {name} must name fields, got {key!r}; fields: {', '.join(fields)}"
        )


def must_send_one_alphabet(protocol: Protocol[Any]) -> None:
    """Require that a protocol says which type of messages it sends."""
    sends = getattr(protocol, "sends", None)
    assert is_alphabet(sends), (
        f"{title(protocol)}: sends must be a type of messages, got {shown(sends)}; "
        "write that of its own, such as sends = FloatVectors"
    )


def must_be_worded(mechanism: Mechanism) -> None:
    """Require the words of a mechanism that the accountants read, and a knob that is a field."""
    for name, words in WORDS.items():
        word = getattr(mechanism, name)
        legal = " or ".join(words)
        assert word in words, f"{title(mechanism)}: {name} must be {legal}, got {shown(word)}"
    if mechanism.knob is not None:
        good = isinstance(mechanism.knob, tuple) and len(mechanism.knob) == 3
        requirement = "a field, its weak and its strong end"
        got = shown(mechanism.knob)
        assert good, f"{title(mechanism)}: knob must be {requirement}, got {got}"
        must_name_fields(mechanism, "knob", {mechanism.knob[0]: mechanism.knob[1:]})
