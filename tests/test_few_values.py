"""Floats of which few differ: exact, short, canonical, and what a server of masks sends of them."""

import dataclasses
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from exchanges import flat, rejected, shared_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedbench.api import ServerView
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.models.models import CNN4
from fedbench.payload import BinaryMasks, FewValues
from fedbench.payload.entropy_coding import code_entropy
from fedbench.payload.few_values import MAX_TABLE, PROBED_COORDINATES
from fedbench.payload.packets import Packet
from fedbench.protocols.fedpm import FedMask, FedPM, ScoreTraining
from fedbench.testing import check_payload

ROWS = Key(0).uniform(3, 200)
ELEVEN = (ROWS * 11).floor() / 10


def table_of(packet: Packet) -> tuple[float, ...]:
    (count,) = struct.unpack_from("<H", packet.data)
    return struct.unpack_from(f"<{count}f", packet.data, 2)


def decoded(payload: FewValues) -> FewValues:
    received, accepted = FewValues.decode(payload.encode(), payload.spec)
    assert received is not None
    assert bool(accepted.all())
    return received


@settings(max_examples=40)
@given(st.integers(0, 60), st.integers(0, 5), st.integers(1, 1200), st.integers(0, 2**63))
def test_every_bit_pattern_comes_back_whatever_is_coded(
    coded: int, rest: int, different: int, seed: int
) -> None:
    # All patterns of 32 bits are possible: NaN with any payload, infinities, both zeros.
    patterns = Key(seed).bits(different).to(torch.int32).view(torch.float32)
    drawn = (Key(seed).fold("which").uniform(2, coded + rest) * different).long()
    payload = FewValues(patterns[drawn], coded)
    assert torch.equal(decoded(payload).x.view(torch.int32), payload.x.view(torch.int32))


@pytest.mark.parametrize(
    "payload",
    [
        *(FewValues(ELEVEN, coded) for coded in (0, 1, 100, 200)),
        *(FewValues(ROWS, coded) for coded in (0, 1, 100, 200)),
        FewValues(torch.zeros(3, 200), 200),
        FewValues(torch.zeros(3, 0), 0),
    ],
)
def test_it_keeps_the_laws_of_payloads(payload: FewValues) -> None:
    check_payload(payload)


def test_its_bits_by_hand() -> None:
    # 2000 zeros: 16 bits say 1 value, 32 are it, and the histogram is 32 bits (one entry is not 0),
    # a gap (1 bit), a sign (1) and omega(2000) = 11 10 1010 11111010000 0 less its first two: 18.
    assert [p.bits for p in FewValues(torch.zeros(1, 2000), 2000).encode()] == [16 + 32 + 56]
    # 11 values, each as likely: log2 11 = 3.459 bits a coordinate instead of 32.
    x = (Key(0).uniform(1, 100_000) * 11).floor() / 10
    (packet,) = FewValues(x, 100_000).encode()
    assert math.log2(11) - 0.01 < packet.bits / 100_000 < math.log2(11) + 0.02
    assert table_of(packet) == tuple(sorted(set(x.flatten().tolist())))
    # Two values that are one number are told apart: 0.0 and -0.0.
    zeros = torch.tensor([[0.0, -0.0] * 50])
    assert struct.unpack_from("<2i", FewValues(zeros, 100).encode()[0].data, 2) == (-(2**31), 0)


def test_where_a_table_is_not_shorter_all_are_floats() -> None:
    everything = FewValues(ROWS[:1], 200).encode()[0]
    assert (everything.bits, everything.data[:2]) == (16 + 32 * 200, b"\0\0")
    repeated = torch.arange(MAX_TABLE + 1, dtype=torch.float32).repeat(1, 40)
    (packet,) = FewValues(repeated, repeated.shape[1]).encode()
    assert packet.data[:2] == b"\0\0"
    (packet,) = FewValues(repeated % MAX_TABLE, repeated.shape[1]).encode()
    assert len(table_of(packet)) == MAX_TABLE


def test_a_value_that_comes_late_is_in_the_table_too() -> None:
    x = torch.zeros(1, PROBED_COORDINATES + 9)
    x[0, PROBED_COORDINATES:] = -1.0
    payload = FewValues(x, PROBED_COORDINATES + 9)
    assert table_of(payload.encode()[0]) == (-1.0, 0.0)
    assert torch.equal(decoded(payload).x, x)


def test_bytes_that_are_no_code_of_what_they_decode_to_are_refused() -> None:
    payload = FewValues(ELEVEN[:1], 200)
    (packet,) = payload.encode()
    swapped = bytearray(packet.data)
    swapped[2:6], swapped[6:10] = swapped[6:10], swapped[2:6]
    rejected(FewValues, bytes(swapped), payload.spec, "ascending")
    # A value that no coordinate has, and floats where a table is shorter.
    table = table_of(packet)
    places = np.array([table.index(value) for value in payload.x[0].tolist()])
    head = struct.pack("<H11f", 11, *table) + code_entropy(places, 10)[0].tobytes()
    assert head == packet.data
    longer = struct.pack("<H12f", 12, *table, 2.0) + code_entropy(places, 11)[0].tobytes()
    rejected(FewValues, longer, payload.spec, "all of them used")
    # A value that stands twice in the table: what it decodes to would have several codes.
    others = places + (places > 0)
    others[np.flatnonzero(places == 0)[0]] = 1
    twice = struct.pack("<H12f", 12, table[0], *table) + code_entropy(others, 11)[0].tobytes()
    rejected(FewValues, twice, payload.spec, "ascending")
    below = struct.pack("<H11f", 11, *table) + code_entropy(places - 1, 10)[0].tobytes()
    rejected(FewValues, below, payload.spec, "at least 0")
    many = torch.arange(MAX_TABLE + 1, dtype=torch.float32).repeat(1, 40)  # shorter, but too many
    words = code_entropy(many[0].long().numpy(), MAX_TABLE)[0].tobytes()
    crowded = struct.pack(f"<H{MAX_TABLE + 1}f", MAX_TABLE + 1, *range(MAX_TABLE + 1)) + words
    rejected(FewValues, crowded, FewValues(many, many.shape[1]).spec, f"at most {MAX_TABLE}")
    floats = b"\0\0" + struct.pack("<200f", *ELEVEN[0].tolist())
    rejected(FewValues, floats, payload.spec, "shorter")
    rejected(FewValues, floats[:-4], payload.spec, "800 bytes")
    rejected(FewValues, b"\1", payload.spec, "2 bytes")


def stepped(protocol: ScoreTraining, d: int, aggregate: Tensor, n: int, steps: int = 1) -> Any:
    shared = flat(d)
    state = protocol.init(shared)
    for _ in range(steps):
        state = protocol.server_step(shared, state, aggregate, n, Key(0))
    return shared, state


RULES = ["mean", "median", "trimmed-mean:f=1", "krum:f=1", "geometric-median"]


@settings(max_examples=20)
@given(
    st.integers(5, 40),
    st.integers(0, 2**63),
    st.sampled_from(RULES),
    st.sampled_from([1.0, 2.0]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_what_clients_decode_is_the_theta_of_floats_bit_for_bit(
    n: int, seed: int, rule: str, prior: float, resets: int, weighted: bool
) -> None:
    d = 50
    masks = BinaryMasks(Key(seed).uniform(n, d) > 0.4, torch.zeros(n, 0))
    sizes = torch.arange(1, n + 1) if weighted else torch.ones(n)
    view = ServerView(sizes.double(), masks.take([0]), 0, Key(1))
    server = registry.load("defense", rule)
    answer, _ = server.aggregate(masks, server.init(masks.spec), view)
    protocol = FedPM(down="values", prior=prior, resets=f"every:{resets}")
    shared, state = stepped(protocol, d, answer, n, steps=2)
    trees = []
    for form in (protocol, dataclasses.replace(protocol, down="floats")):
        sent = form.broadcast(shared, state, [0], Key(0))
        received, _ = type(sent).decode(sent.encode(), sent.spec)
        assert received is not None
        assert torch.equal(received.values().view(torch.int32), sent.values().view(torch.int32))
        trees.append(form.receive(shared, received)["fc1"])
    assert torch.equal(trees[0].view(torch.int32), trees[1].view(torch.int32))


def test_ten_clients_cost_log2_11_bits_a_weight_down_and_the_first_theta_32() -> None:
    d = 30_000
    ones = (Key(0).uniform(d) * 11).floor()  # of ten bits, each number as likely
    for protocol in (FedPM(down="values"), FedMask(down="values")):
        shared, state = stepped(protocol, d, ones / 10, 10)
        (packet,) = protocol.broadcast(shared, state, [0], Key(0)).encode()
        assert packet.bits / d == pytest.approx(math.log2(11), abs=0.05)
        (first,) = protocol.broadcast(shared, protocol.init(shared), [0], Key(0)).encode()
        assert first.bits == 16 + 32 * d
        (plain,) = type(protocol)().broadcast(shared, state, [0], Key(0)).encode()
        assert plain.bits == 32 * d


def test_statistics_of_batch_norm_travel_as_floats_beside_the_table() -> None:
    shared = shared_of(CNN4().build((1, 8, 8), 10))
    protocol = FedPM(down="values")
    start = protocol.init(shared)
    d, p = len(start.theta), len(start.statistics)
    mean = torch.cat([torch.full((d,), 0.5), torch.arange(p) / 7])
    state = protocol.server_step(shared, start, mean, 4, Key(0))
    sent = protocol.broadcast(shared, state, [0], Key(0))
    assert isinstance(sent, FewValues)
    assert sent.encode()[0].bits < 32 * p + 200
    assert torch.equal(decoded(sent).x[0, d:], state.statistics)
