"""Commitments of rounds: SHA-256 of what the server received and of the state that it led to.

A canonical run has one for each round. Together with the state before a round, which has the
commitment of the round before, it lets anybody play that round alone and compare.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from torch import Tensor

from fedbench.adversary.training import trained_by
from fedbench.core.errors import ConfigError
from fedbench.core.files import read_limited, write_atomically
from fedbench.experiment.setup import SERVERS_CLIENT, Setup
from fedbench.experiment.state import RunState
from fedbench.experiment.state_bytes import NoBytesError, decode, digest, encode
from fedbench.payload.packets import Packet

MAGIC = b"fedbench state 1\n"
MAX_STATE_BYTES = 1 << 32
ZLIB_LEVEL = 1  # weights hardly shrink, and more effort takes longer than the round
REPLACED = ("memories", "digests", "arrived", "attack_seconds")  # fields, by `surface`


def commit(
    setup: Setup,
    state: RunState,
    step: int,
    ids: Sequence[int],
    packets: Sequence[Packet],
    accepted: Tensor,
) -> str | None:
    """Return the commitment of a round of a canonical run, in hex digits, after the round.

    The run goes on with the state that its bytes give back, so nothing outside them, like the
    strides of a tensor, can matter to the next round. None for other runs, and where a plug-in's
    state has no bytes.
    """
    if not setup.canonical:
        return None
    state.arrived = None
    try:
        others = [SERVERS_CLIENT, *map(trained_by, ids)]
        for i in [*ids, *(i for i in others if i in state.memories)]:
            data = encode(state.memories[i])
            state.digests[i] = sha256(data).digest()
            state.memories[i] = decode(data)
        data = encode(surface(state))
    except NoBytesError:
        return None
    fields: dict[str, Any] = decode(data)
    for name in fields.keys() - {"memories"}:
        setattr(state, name, fields[name])
    state.arrived = received(packets, accepted)
    return combined(step, state.arrived, sha256(data).digest())


def surface(state: RunState) -> dict[str, Any]:
    """Return the part of a state that a commitment covers: fields, and a digest of each memory.

    Only the memories of a round's clients change, so those of a million others are not read again.
    Seconds are left out, which differ from machine to machine.
    """
    names = [field.name for field in dataclasses.fields(state) if field.name not in REPLACED]
    memories = {i: state.digests[i] for i in state.memories}
    return {name: getattr(state, name) for name in names} | {"memories": memories}


def received(packets: Sequence[Packet], accepted: Tensor) -> bytes:
    """Return the SHA-256 of what arrived: of each row its bytes, its bits and whether it counts."""
    flags = accepted.tolist()
    rows = zip(packets, flags, strict=True)
    return digest([(packet.data, packet.bits, flag) for packet, flag in rows])


def combined(step: int, arrived: bytes, state: bytes) -> str:
    """Return the commitment that follows from the two digests of a round."""
    return digest(("fedbench round", step, arrived, state)).hex()


def place(folder: Path, run: str, step: int) -> Path:
    """Return the path of the state before a round of the run with this id."""
    return folder / run / f"{step}.state"


def keep(folder: Path, setup: Setup, state: RunState, step: int) -> None:
    """Write the state before a round, if the round before it has a commitment."""
    if state.arrived is None:
        return
    whole = surface(state) | {"memories": dict(state.memories)}
    data = encode({"arrived": state.arrived, "state": whole})
    write_atomically(place(folder, setup.id, step), MAGIC + zlib.compress(data, ZLIB_LEVEL))


def read(path: Path, step: int, commitment: str) -> RunState:
    """Read the state before a round, of which the round before has this commitment.

    `ConfigError` if the file holds no state, or another one.
    """
    data = read_limited(path, MAX_STATE_BYTES)
    if not data.startswith(MAGIC):
        raise ConfigError(f"{path} must be a state that --keep-states wrote, got another file")
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(data[len(MAGIC) :], MAX_STATE_BYTES)
    except zlib.error as error:
        raise ConfigError(f"{path} must be a state that --keep-states wrote: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise ConfigError(f"{path} must be a whole state and nothing else")
    decoded = decode(unpacked)
    expected = {field.name for field in dataclasses.fields(RunState)} - {*REPLACED} | {"memories"}
    parts = decoded if isinstance(decoded, dict) and decoded.keys() == {"arrived", "state"} else {}
    fields = parts.get("state")
    arrived = parts.get("arrived")
    if not isinstance(fields, dict) or fields.keys() != expected or type(arrived) is not bytes:
        raise ConfigError(f"{path} must have the fields of a state: {', '.join(sorted(expected))}")
    state = RunState(**fields)
    if not isinstance(state.memories, dict):
        raise ConfigError(f"{path} must have the memory of each client")
    state.arrived = arrived
    state.digests = {i: digest(memory) for i, memory in state.memories.items()}
    if combined(step - 1, arrived, digest(surface(state))) != commitment:
        raise ConfigError(
            f"{path} must be the state that round {step - 1} committed to, got another one"
        )
    return state
