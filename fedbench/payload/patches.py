"""Patches: new values at some coordinates of a vector that both ends remember."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedbench.core.choices import Checks
from fedbench.core.copies import copied_to
from fedbench.core.errors import IllegalPayloadError
from fedbench.payload import packets as wire
from fedbench.payload.base import Payload, Spec, require_form
from fedbench.payload.packets import BitString, Packet
from fedbench.payload.sparse import SeededSparse, SparseVectors, chosen


@dataclass(frozen=True, eq=False)
class Patch(Payload):
    """Common part of patches: what is ``remembered (n, d)`` float32, and does not travel.

    `values` are the patched vectors, so rules, attacks and the oracle of a rule all work on what
    the server holds of a client, and `nearest` is what an adversary can make of it. The server
    patches its own memory: what a forged message claims to be remembered counts nowhere.
    """

    remembered: Tensor = dataclasses.field(kw_only=True)

    def put(self, rows: Tensor | Sequence[int], other: Self) -> Self:
        """Return a copy in which these rows are ``other``'s messages, about what is known here."""
        return dataclasses.replace(super().put(rows, other), remembered=self.remembered)

    def receive(
        self, packets: Sequence[Packet], checks: Checks, device: torch.device | str = "cpu"
    ) -> tuple[Self, Tensor]:
        """Return the messages that pass, as patches of what is remembered here."""
        received, accepted = super().receive(packets, checks, device)
        remembered = self.remembered[copied_to(accepted.nonzero()[:, 0], self.remembered.device)]
        return dataclasses.replace(received, remembered=remembered), accepted

    def travelling(self) -> dict[str, Tensor]:
        tensors = super().travelling()
        return {name: x for name, x in tensors.items() if name != "remembered"}

    def require_memory(self, d: int) -> None:
        """Raise `IllegalPayloadError` unless ``remembered`` is ``(n, d)`` float32."""
        require_form(self, remembered=(d, torch.float32))

    @classmethod
    def of(cls, sent: Payload, d: int) -> Self:
        """Return a decoded message as a patch of zeros, in place of what the server remembers."""
        fields = {field.name: getattr(sent, field.name) for field in dataclasses.fields(sent)}
        fields["remembered"] = torch.zeros(1, d)
        return cls(**fields)


@dataclass(frozen=True, eq=False)
class SparsePatches(Patch, SparseVectors):
    """`SparseVectors` whose entries replace coordinates of what is remembered.

    On the wire exactly as those: 32 bits a value, then the positions.
    """

    def check(self) -> None:
        super().check()
        self.require_memory(self.d)

    def values(self) -> Tensor:
        """Return the patched vectors ``(n, d + p)``."""
        patched = self.remembered.scatter(1, self.indices, self.entries)
        return torch.cat([patched, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Replace the ``K`` coordinates that are furthest from what is remembered."""
        x = values[:, : self.d]
        difference = torch.cat([x - self.remembered, values[:, self.d :]], dim=1)
        moved = super().nearest(difference)
        entries = x.gather(1, moved.indices).to(torch.float32)
        return dataclasses.replace(moved, entries=entries)

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        return cls.of(SparseVectors.decode_row(packet, spec), spec["d"])


@dataclass(frozen=True, eq=False)
class SeededPatches(Patch, SeededSparse):
    """`SeededSparse` whose entries replace coordinates of what is remembered.

    On the wire exactly as those: 64 bits of seed, then 32 bits a value.
    """

    def check(self) -> None:
        super().check()
        self.require_memory(self.d)

    def values(self) -> Tensor:
        """Return the patched vectors ``(n, d + p)``."""
        patched = self.remembered.scatter(1, self.indices(), self.entries)
        return torch.cat([patched, self.rest], dim=1)

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        return cls.of(SeededSparse.decode_row(packet, spec), spec["d"])


@dataclass(frozen=True, eq=False)
class CoordinatedPatches(Patch):
    """``entries (n, K)`` float32 at the coordinates that one public ``seed`` chooses for all.

    On the wire ``32 (K + p)`` bits: the server has said which coordinates it asks for.
    """

    entries: Tensor  # of the `chosen` coordinates, in their order
    rest: Tensor  # floats that are always sent; often ``p = 0``
    d: int  # coordinates of the dense vector
    seed: int

    def check(self) -> None:
        require_form(self, entries=("K", torch.float32), rest=("p", torch.float32))
        self.require_memory(self.d)
        if self.entries.shape[1] > self.d:
            raise IllegalPayloadError(
                "CoordinatedPatches.entries must be at most "
                f"d = {self.d}, got {self.entries.shape[1]}"
            )

    def indices(self) -> Tensor:
        """Return the coordinates ``(K,)`` int64 that are asked for."""
        return chosen(self.seed, self.d, self.entries.shape[1], str(self.entries.device))

    def values(self) -> Tensor:
        """Return the patched vectors ``(n, d + p)``."""
        patched = self.remembered.index_copy(1, self.indices(), self.entries)
        return torch.cat([patched, self.rest], dim=1)

    def nearest(self, values: Tensor) -> Self:
        """Return the values at the coordinates that are asked for."""
        entries = values[:, : self.d][:, self.indices()].to(torch.float32)
        return dataclasses.replace(
            self, entries=entries, rest=values[:, self.d :].to(torch.float32)
        )

    def parts(self) -> list[BitString]:
        return [wire.number_bytes(self.entries), wire.number_bytes(self.rest)]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (width,) = spec["entries"]
        (p,) = spec["rest"]
        d = spec["d"]
        entries, rest = wire.split(packet, [32 * width, 32 * p])
        blank = torch.zeros(1, d)
        floats = wire.floats_of
        return cls(floats(entries), floats(rest), d, spec["seed"], remembered=blank)
