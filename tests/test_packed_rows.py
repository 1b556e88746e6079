"""Rows that an accelerator packs and unpacks: the bytes and the bits are those of the CPU."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from second_device_runs import PACKED, Process, packed_messages

from fedbench.core.devices import accelerated
from fedbench.core.rng import Key
from fedbench.payload import Payload, SignBits, packed_rows, rankings
from fedbench.payload.base import identical
from fedbench.payload.packed_rows import pack_rows, unpack_bits, unpack_rows
from fedbench.payload.packets import Packet, pack


@given(st.integers(0, 31), st.integers(0, 70), st.integers(0, 3), st.integers(0, 2**32))
def test_rows_are_packed_as_one_by_one(width: int, count: int, n: int, seed: int) -> None:
    symbols = (Key(seed).bits(n * count) & ((1 << width) - 1)).reshape(n, count).to(torch.int32)
    packed = pack_rows(symbols, width)
    assert packed.shape == (n, -(-count * width // 8))
    for row, data in zip(symbols, packed, strict=True):
        assert np.array_equal(pack(row.numpy(), width)[0], data.numpy())


@given(st.integers(0, 31), st.integers(0, 70), st.integers(0, 3), st.integers(0, 2**32))
def test_rows_are_unpacked_as_one_by_one(width: int, count: int, n: int, seed: int) -> None:
    symbols = (Key(seed).bits(n * count) & ((1 << width) - 1)).reshape(n, count).to(torch.int32)
    unpacked = unpack_rows(pack_rows(symbols, width), count, width)
    assert unpacked.dtype == torch.int32
    assert torch.equal(unpacked, symbols)


@given(st.integers(0, 70), st.integers(0, 3), st.integers(0, 2**32))
def test_bits_come_back_by_the_way_of_an_accelerator_and_by_that_of_the_cpu(
    count: int, n: int, seed: int
) -> None:
    bits = Key(seed).uniform(n, count) < 0.5
    packed = pack_rows(bits, 1)
    assert torch.equal(unpack_bits(packed, count), bits)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(packed_rows, "accelerated", lambda device: not accelerated(device))
        assert torch.equal(unpack_bits(packed, count), bits)


# Bytes to the device and back for five messages of 203 symbols, in layers of 61 and 142 edges.
COPIED = {
    "signs": (5 * 26, 5 * 26),
    "scaled signs": (5 * (26 + 2 * 4 + 3 * 4), 5 * (26 + 2 * 4 + 3 * 4)),
    "masks": (5 * (26 + 3 * 4), 5 * (26 + 3 * 4)),
    "noise masks": (5 * (26 + 8 + 3 * 4), 5 * (26 + 8 + 3 * 4)),
    # 61 edges of six bits, 142 of eight; then for each row whether it is legal.
    "rankings": (5 * (46 + 142), 5 * (46 + 142 + 1)),
    "best edges": (5 * (8 + 20), 5 * (8 + 20 + 1)),
}
JUDGED = ("rankings", "best edges")  # on the device


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, object]]:
    process = Process()
    answers: dict[str, dict[str, object]] = process.ask(kind="packed")
    process.end()
    return answers


@pytest.mark.slow
@pytest.mark.parametrize("name", PACKED)
def test_an_accelerator_sends_the_packets_of_the_cpu_and_copies_bytes_alone(
    name: str, answers: dict[str, dict[str, object]]
) -> None:
    down, up = COPIED[name]
    waits = len(packed_messages()[name].travelling()) + (name in JUDGED)  # each copied at once
    copied = {"to device": down, "to host": up, "waits": waits}
    assert answers[name] == {"alike": True, "waits to compare": 1} | copied


def by_way_of_an_accelerator(
    form: Payload, packets: list[Packet]
) -> tuple[Payload | None, torch.Tensor]:
    """Decode by the lines that an accelerator takes, on the CPU."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(rankings, "accelerated", lambda device: True)
        return type(form).decode(packets, form.spec)


@pytest.mark.parametrize("name", JUDGED)
def test_an_accelerator_refuses_the_rankings_that_the_cpu_refuses(name: str) -> None:
    message = packed_messages()[name]
    packets = message.encode()
    bits = np.unpackbits(np.frombuffer(packets[1].data, np.uint8))
    twice = np.concatenate([bits[6:12], bits[6:]])  # the second edge of the first layer, again
    beyond = np.concatenate([np.ones(6, np.uint8), bits[6:]])  # edge 63 of 61
    forged = [Packet(np.packbits(x).tobytes(), packets[1].bits) for x in (twice, beyond)]
    short = Packet.raw(packets[2].data[:-1])
    sent = [packets[0], forged[0], packets[1], forged[1], short, packets[2]]
    here, accepted = type(message).decode(sent, message.spec)
    there, also = by_way_of_an_accelerator(message, sent)
    assert accepted.tolist() == also.tolist() == [True, False, True, False, False, True]
    assert here is not None
    assert there is not None
    assert identical(here, there)
    assert identical(here, message.take([0, 1, 2]))
    for refused in ([forged[0]], [short], []):
        nothing, none = by_way_of_an_accelerator(message, refused)
        assert nothing is None
        assert none.tolist() == [False] * len(refused)


def test_a_message_that_is_refused_is_not_among_those_that_are_unpacked() -> None:
    signs = SignBits(Key(0).uniform(3, 203) < 0.5)
    good = signs.encode()
    forged = Packet.raw(good[1].data[:-1] + bytes([good[1].data[-1] | 1]))  # padding of a one
    received, accepted = SignBits.decode([good[0], forged, good[2]], signs.spec)
    assert received is not None
    assert accepted.tolist() == [True, False, True]
    assert torch.equal(received.positive, signs.positive[[0, 2]])
    nothing, _ = SignBits.decode([forged], signs.spec)
    assert nothing is None
    assert dataclasses.replace(signs, positive=signs.positive[:0]).encode() == []
