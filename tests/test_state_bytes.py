"""Bytes of a state: worked by hand, there and back, and nothing but what was written is read."""

from __future__ import annotations

import struct
from collections import Counter
from enum import Enum
from hashlib import sha256
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from fedbench.core.errors import ConfigError
from fedbench.core.sources import package_of
from fedbench.core.trees import Layout
from fedbench.experiment.evaluation import Evaluation
from fedbench.experiment.state_bytes import (
    NoBytesError,
    StateReader,
    StateWriter,
    decode,
    digest,
    encode,
)
from fedbench.payload.packets import Packet

# Lengths of eight bytes, little endian; -2 is 0xfe; 1.0 is 0x3f800000 in four bytes.
BY_HAND: list[tuple[object, str]] = [
    (None, "4e"),
    (True, "54"),
    (False, "46"),
    (-2, "69 0100000000000000 fe"),
    (128, "69 0200000000000000 8000"),
    (1.5, "66 000000000000f83f"),
    ("é", "73 0200000000000000 c3a9"),
    (b"\x07", "62 0100000000000000 07"),
    ([None, 0], "6c 0200000000000000 4e 69 0100000000000000 00"),
    ((), "74 0000000000000000"),
    ({"b": True, "a": None}, "64 0200000000000000 73 0100000000000000 62 54"
     "73 0100000000000000 61 4e"),
    (Counter({1: 2}), "63 0100000000000000 69 0100000000000000 01 69 0100000000000000 02"),
    (torch.tensor([[1.0, -2.0]]), "78 0700000000000000 666c6f61743332"
     "0200000000000000 0100000000000000 0200000000000000 0000803f 000000c0"),
    (np.array([258], dtype=">i2"), "61 0500000000000000 696e743136"
     "0100000000000000 0100000000000000 0201"),
    (np.float64(1.5), "67 0700000000000000 666c6f61743634 000000000000f83f"),
    (Packet(b"\x80", 1), "6f 1f00000000000000"
     + b"fedbench.payload.packets:Packet".hex()
     + "0200000000000000 73 0400000000000000 64617461 62 0100000000000000 80"
     "73 0400000000000000 62697473 69 0100000000000000 01"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), BY_HAND)
def test_bytes_are_those_worked_by_hand(value: object, expected: str) -> None:
    data = bytes.fromhex(expected)
    assert encode(value) == data
    assert digest(value) == sha256(data).digest()
    assert encode(decode(data)) == data
    assert type(decode(data)) is type(value)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(PLAIN)
def test_plain_values_come_back_as_they_were(value: object) -> None:
    again = decode(encode(value))
    assert again == value
    assert encode(again) == encode(value)


@given(st.binary(max_size=60))
def test_any_bytes_are_refused_or_are_those_of_their_value(data: bytes) -> None:
    try:
        value = decode(data)
    except ConfigError:
        return
    assert encode(value) == data


@pytest.mark.parametrize("name", ["bool", "uint8", "int64", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_tensors_come_back_with_their_type_and_shape(name: str, shape: tuple[int, ...]) -> None:
    x = (torch.arange(6)[: max(1, int(np.prod(shape)))] % 2).to(getattr(torch, name))
    x = x.new_zeros(shape) if 0 in shape else x.reshape(shape)
    again = decode(encode(x))
    assert again.dtype == x.dtype
    assert again.shape == x.shape
    assert torch.equal(again, x)
    again.zero_()  # in memory of its own
    assert torch.equal(decode(encode(x)), x)


def test_what_differs_has_other_bytes_and_strides_have_none() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    alike = [x, x.t().contiguous().t(), x.clone().requires_grad_()]
    assert len({encode(value) for value in alike}) == 1
    others: list[Any] = [x, x.t(), x.double(), x.reshape(3, 2), x + 1, x.numpy(), x.tolist()]
    others += [0, 0.0, -0.0, False, None, "", b"", [], (), {}, Counter()]
    others += [{1: 0, 2: 0}, {2: 0, 1: 0}]  # a loop over them adds in another order
    assert len({encode(value) for value in others}) == len(others)


def test_an_object_has_its_fields_and_no_more() -> None:
    score = Evaluation(0.5, None, torch.tensor([0.5]), 0.0)
    again = decode(encode(score))
    assert type(again) is Evaluation
    assert (again.accuracy, again.loss, again.success) == (0.5, None, None)
    assert torch.equal(again.parts, score.parts)


class Phase(Enum):
    """An enumeration of a plug-in of one's own."""

    WAITING = 1
    DONE = 2


def test_a_member_of_an_enumeration_of_the_run_s_packages_comes_back() -> None:
    package = package_of(Phase)
    data = b"".join(StateWriter([package]).pieces(Phase.DONE))
    assert StateReader(memoryview(data), [package]).whole() is Phase.DONE
    with pytest.raises(ConfigError, match="is no enumeration with 'LATE'"):
        StateReader(memoryview(data.replace(b"DONE", b"LATE")), [package]).whole()
    with pytest.raises(ConfigError, match="is no class of fedbench"):
        decode(data)


@pytest.mark.parametrize(
    "value",
    [
        lambda: 0,
        object(),
        {1, 2},
        st,
        1j,
        torch.nn.Parameter(torch.zeros(1)),
        torch.zeros(1, dtype=torch.complex64),
        np.array([None]),
        "\ud800",
    ],
)
def test_other_values_have_no_bytes(value: object) -> None:
    with pytest.raises(NoBytesError):
        encode([value])


def _text(tag: bytes, text: str) -> bytes:
    return tag + struct.pack("<Q", len(text)) + text.encode()


def test_only_classes_of_a_state_are_read() -> None:
    fields = struct.pack("<Q", 0)
    foreign = ("subprocess:Popen", "os:system", "fedbench_attacks_of_mine:Attack")
    starting = ("fedbench.sweeps.local:Options", "fedbench.core.trees:Layout.__init__")
    for name in foreign + starting:  # options are a dataclass of a room that starts processes
        with pytest.raises(ConfigError, match="is no class of fedbench"):
            decode(_text(b"o", name) + fields)
    imported = ("fedbench.core.files:Path", "fedbench.core.files:tempfile")
    for name in (*imported, "fedbench.core.nowhere:Thing", "fedbench.core.errors:ConfigError"):
        with pytest.raises(ConfigError, match=r"is no (data)?class$|there is no module"):
            decode(_text(b"o", name) + fields)
    with pytest.raises(ConfigError, match="is no enumeration"):
        decode(_text(b"e", f"{Layout.__module__}:Layout") + _text(b"s", "x"))
    with pytest.raises(ConfigError, match="Packet has 2 fields"):
        decode(_text(b"o", "fedbench.payload.packets:Packet") + fields)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"NN",
        b"z",
        b"i" + struct.pack("<Q", 2) + b"\1\0",  # one byte would do
        b"l" + struct.pack("<Q", 1 << 60),
        b"l" + (struct.pack("<Q", 1) + b"l") * 2000,
        b"d" + struct.pack("<Q", 2) + b"NTNT",  # a key twice
        b"d" + struct.pack("<Q", 1) + b"l" + struct.pack("<Q", 0) + b"N",  # a list is no key
        _text(b"x", "float32") + struct.pack("<QQ", 1, 1 << 40),
        _text(b"x", "float32") + struct.pack("<QQQQ", 3, 0, (1 << 63) - 1, (1 << 63) - 1),
        _text(b"x", "bool") + struct.pack("<QQ", 1, 1) + b"\2",
        _text(b"x", "object") + struct.pack("<Q", 0),
        _text(b"e", "fedbench.core.trees:Layout"),
    ],
)
def test_bytes_that_nobody_wrote_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="a state must be bytes that fedbench wrote"):
        decode(data)
