"""Broken messages that a server should reject."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from fedbench.api import Attack, AttackView, Choices
from fedbench.core.rng import Key
from fedbench.payload import GatedVectors, Payload, Residues, SignBits, SparseVectors
from fedbench.payload.floats import HalfVectors
from fedbench.payload.packets import is_power_of_two
from fedbench.payload.rankings import Rankings, TopRankings

Broken = Literal["truncate", "trailing", "empty", "length", "random"]
Kind = Literal[Broken, "nan", "infinity", "duplicate", "permutation"]


@dataclass(frozen=True, kw_only=True)
class Malformed(Attack):
    """Every malicious client sends its honest message, broken in one way, as raw bytes.

    - ``truncate``: without its last byte; ``trailing``: with a zero byte more; ``empty``: none.
    - ``nan``, ``infinity``: all its floats are that; an alphabet without floats has ``length``.
    - ``duplicate``: the first two indices, or the first two edges of a layer, are the same; an
      alphabet without indices sends the whole message twice in one.
    - ``permutation``: every symbol of a ranking is edge 0; other alphabets have ``duplicate``.
    - ``length``: without the last four bytes, a float or a word of a code (of half floats two, of
      signs, edges and packed residues one; of gated vectors the first four, since the last are
      gates).
    - ``random``: as many uniform bytes. Some alphabets have a legal message for most of them.

    NaN and infinity are legal on most wires: a server without checks takes them.

    Args:
        kind: Way in which the message is broken; the record names the way that was possible.

    References:
        None: proposed here. The idea is to test what a server does before it aggregates.
    """

    choices: ClassVar[Choices] = {"kind": ("random", "nan")}

    kind: Kind = "truncate"

    def craft(self, view: AttackView, memory: Any) -> tuple[list[bytes], Any]:
        messages = []
        for row in range(len(view.own)):
            own = view.own.take([row])
            view.notes["kind"] = kind = meant(self.kind, own)
            messages.append(broken(own, kind, view.key.fold("malformed", row)))
        return messages, memory


def meant(kind: Kind, own: Payload) -> Kind:
    """Return the nearest kind that this alphabet has."""
    if kind in ("nan", "infinity") and not floats_of(own):
        return "length"
    if kind == "permutation" and not isinstance(own, Rankings | TopRankings):
        return "duplicate"
    return kind


def floats_of(own: Payload) -> dict[str, Any]:
    """Return the float fields that are not empty and do travel."""
    floats = {
        f.name: x
        for f in dataclasses.fields(own)
        if isinstance(x := getattr(own, f.name), torch.Tensor) and x.is_floating_point()
    }
    if isinstance(own, GatedVectors) and not bool(own.is_open().any()):
        del floats["x"]
    return {name: x for name, x in floats.items() if x.numel()}


def broken(own: Payload, kind: Kind, key: Key) -> bytes:
    """Return the bytes of one message ``own``, broken."""
    if kind in ("nan", "infinity"):
        number = torch.nan if kind == "nan" else torch.inf
        filled = {name: torch.full_like(x, number) for name, x in floats_of(own).items()}
        return encoded(dataclasses.replace(own, **filled))
    if kind == "permutation" and isinstance(own, Rankings | TopRankings):
        return encoded(dataclasses.replace(own, symbols=torch.zeros_like(own.symbols)))
    data = encoded(own)
    if kind == "duplicate":
        return duplicate(own) or data + data
    if kind == "length":
        if isinstance(own, GatedVectors):
            return data[4:]
        short = isinstance(own, Rankings | TopRankings | SignBits)
        short |= isinstance(own, Residues) and is_power_of_two(own.modulus)
        return data[: -(1 if short else 2 if isinstance(own, HalfVectors) else 4)]
    if kind == "random":
        words = key.bits(-(-len(data) // 8)).numpy().astype("<i8", copy=False)
        return words.tobytes()[: len(data)]
    return {"truncate": data[:-1], "trailing": data + b"\0", "empty": b""}[kind]


def duplicate(own: Payload) -> bytes | None:
    """Return the message with an index or an edge named twice; None where there are no two."""
    if isinstance(own, SparseVectors) and own.indices.shape[1] > 1:
        indices = own.indices.clone()
        indices[:, 1] = indices[:, 0]
        return encoded(dataclasses.replace(own, indices=indices))
    if isinstance(own, Rankings | TopRankings):
        start = 0
        for count in own.kept if isinstance(own, TopRankings) else own.sizes:
            if count > 1:
                symbols = own.symbols.clone()
                symbols[:, start + 1] = symbols[:, start]
                return encoded(dataclasses.replace(own, symbols=symbols))
            start += count
    return None


def encoded(own: Payload) -> bytes:
    """Return the bytes of one message."""
    return own.encode()[0].data
