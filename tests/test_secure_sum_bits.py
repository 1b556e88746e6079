"""Bits under secure aggregation: those of masked residues modulo n + 1, or none that are known."""

import math
from pathlib import Path

import constriction
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fedbench
from fedbench.cli import app
from fedbench.core.rng import Key
from fedbench.experiment.cells import Cell
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.payload import BinaryMasks, FloatVectors, Residues, SignBits, summed_bits
from fedbench.payload.packets import code_residues
from fedbench.results.summary import Row
from fedbench.tables.columns import UP, captions
from fedbench.testing import example_payloads

SMALL = Scenario(
    model="micro", clients=40, per_round=40, rounds=1, epochs=1, batch_size=512, malicious=0.0
)


def decode_residues(data: np.ndarray, count: int, modulus: int) -> np.ndarray:
    """Return the ``count`` residues that `code_residues` wrote."""
    if modulus == 1:
        return np.zeros(count, dtype=np.int32)
    decoder = constriction.stream.queue.RangeDecoder(data.view("<u4").astype(np.uint32))
    symbols: np.ndarray = decoder.decode(constriction.stream.model.Uniform(modulus), count)
    return symbols


@given(st.lists(st.integers(0, 2**24 - 2), max_size=60), st.integers(1, 2**24 - 1))
def test_residues_come_back_from_their_code(numbers: list[int], modulus: int) -> None:
    residues = np.array([number % modulus for number in numbers], dtype=np.int32)
    data, bits = code_residues(residues, modulus)
    assert bits == 8 * len(data)
    assert np.array_equal(decode_residues(data, len(residues), modulus), residues)
    assert bits <= len(numbers) * math.log2(modulus) + 96  # the coder's last words


def test_a_masked_sum_of_bits_is_the_sum_and_costs_log2_of_n_plus_one() -> None:
    # Five clients, mod 6: each adds a mask, the masks cancel, every message crosses the wire.
    n, d = 5, 6000
    bits = (torch.arange(d) % 4 == 0).expand(n, d)
    masks = [Key(i).bits(d).numpy() % (n + 1) for i in range(n - 1)]
    masks.append(-np.sum(masks, axis=0) % (n + 1))
    sent, costs = [], set()
    for row, mask in zip(bits.numpy(), masks, strict=True):
        data, cost = code_residues(((row + mask) % (n + 1)).astype(np.int32), n + 1)
        sent.append(decode_residues(data, d, n + 1))
        costs.add(cost)
    assert np.array_equal(np.sum(sent, axis=0) % (n + 1), bits.sum(dim=0).numpy())
    counted = summed_bits(BinaryMasks(bits, torch.zeros(n, 0)))
    assert counted is not None
    assert max(abs(cost - counted) for cost in costs) <= 64  # a word or two of the coder
    assert counted / d == pytest.approx(math.log2(6), abs=64 / d)
    # A quarter of ones costs .81 plain bits each; masked it costs as much as any other mask.
    assert counted == summed_bits(SignBits(bits)) == summed_bits(SignBits(~bits))


def test_what_is_no_bit_has_no_known_cost_in_a_sum_and_residues_have_their_own() -> None:
    for payload in example_payloads(9):
        bits = summed_bits(payload)
        whole = isinstance(payload, SignBits | Residues) or (
            isinstance(payload, BinaryMasks) and payload.rest.shape[1] == 0
        )
        assert (bits is not None) == whole, type(payload)
        if isinstance(payload, Residues):
            assert bits == payload.encode()[0].bits
    assert summed_bits(FloatVectors(torch.zeros(3, 4))) is None
    assert summed_bits(SignBits(torch.ones(0, 8).bool())) == 0


def played(**fields: object) -> Record:
    return fedbench.play(SMALL.model_copy(update=fields), device="cpu", executor="loop")


def test_a_mask_bit_among_40_clients_costs_log2_41() -> None:
    record = played(protocol="fedpm", sees="sum")
    d = record.parameters
    mask_bits = record.rounds[0].uplink_bits
    assert mask_bits is not None
    assert record.rounds[0].benign_uplink_bits == mask_bits
    assert mask_bits % 40 == 0  # all messages are equally long
    plain = played(protocol="fedpm")
    plain_bits = plain.rounds[0].uplink_bits
    assert plain_bits is not None
    assert mask_bits / plain_bits == pytest.approx(math.log2(41), rel=0.02)  # 5.36, not 1.0065
    assert record.result.uplink_bits_per_parameter == mask_bits / 40 / d
    row = Row(Cell(record.scenario), (record,))
    assert "log2(n + 1)" in captions([row])["bits"]
    assert "log2(n + 1)" not in captions([Row(Cell(plain.scenario), (plain,))])["bits"]


def test_floats_and_weighted_masks_in_a_sum_are_not_counted_and_say_so(tmp_path: Path) -> None:
    for protocol in ("fedavg", "fedpm:reg=1.0"):
        record = played(protocol=protocol, sees="hidden-sum", clients=4, per_round=4)
        assert record.rounds[0].uplink_bits is None
        assert record.result.uplink_bits_per_parameter is None
        assert UP.text(Row(Cell(record.scenario), (record,))) == "n/a"
        (tmp_path / f"{record.id}.json").write_text(record.model_dump_json())
        assert Record.model_validate_json(record.model_dump_json()) == record
    shown = CliRunner().invoke(app, ["results", str(tmp_path)])
    assert "bits up: of a secure sum of n, log2(n + 1) for each bit" in shown.output
