"""Blocks, rotations and the quantizer of a Gaussian, against what is slow and obvious."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hadamard as sylvester

from fedbench.core import blocks
from fedbench.core.blocks import hadamard, offsets, rotate, signs, unrotate
from fedbench.core.rng import Key

SEEDS = torch.tensor([[3], [-7]])


@given(st.integers(0, 20_000), st.sampled_from([1, 2, 64, 4096]))
def test_blocks_are_powers_of_two_that_fall_and_add_up_to_d(d: int, largest: int) -> None:
    sizes = blocks.block_sizes(d, largest)
    assert sum(sizes) == d
    assert all(size & (size - 1) == 0 and size <= largest for size in sizes)
    assert list(sizes) == sorted(sizes, reverse=True)
    assert len(sizes) <= d // largest + largest.bit_length()


def test_what_is_said_of_a_block_reaches_its_coordinates_and_no_others() -> None:
    sizes = (3, 3, 1, 3)  # the last is not beside its equals
    spread_values = blocks.spread(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), sizes)
    assert spread_values.tolist() == [[1, 1, 1, 2, 2, 2, 3, 4, 4, 4]]
    x = torch.arange(1.0, 11.0)[None]
    assert blocks.block_sums(x, sizes).tolist() == [[6, 15, 7, 27]]
    large = torch.tensor([[2.0**24, 1.0, 1.0]])  # whose sum float32 does not have
    assert blocks.block_sums(large, (2, 1)).tolist() == [[2**24 + 1, 1]]
    assert blocks.block_norms(x, sizes)[0, 0].item() == math.sqrt(14)
    assert blocks.block_sums(x[:, :0], ()).shape == blocks.spread(x[:, :0], ()).shape == (1, 0)


@pytest.mark.edges("1", "2", "8", "64", "128")
@pytest.mark.parametrize("size", [1, 2, 8, 64, 128, 4096, 8192])
def test_the_fast_transform_is_the_product_with_sylvesters_matrix(size: int) -> None:
    x = Key(size).normal(2, 3, size).double()
    matrix = torch.from_numpy(sylvester(size).astype("float64")) / math.sqrt(size)
    torch.testing.assert_close(hadamard(x), x @ matrix)


@given(st.integers(0, 300), st.sampled_from([4, 64]))
def test_a_rotation_keeps_norms_and_is_undone(d: int, largest: int) -> None:
    x = Key(d).normal(2, d).double()
    sizes = blocks.block_sizes(d, largest)
    y = rotate(x, SEEDS, sizes)
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1))
    torch.testing.assert_close(unrotate(y, SEEDS, sizes), x)


@pytest.mark.parametrize("d", [1, 45, 300, 5000])
def test_a_row_is_rotated_to_the_same_bits_whoever_lies_beside_it(d: int) -> None:
    # Else a sum that is 0 alone is 1e-9 beside others, and a rule of signs counts another vote.
    sizes = blocks.block_sizes(d, 4096)
    seeds = torch.arange(9)[:, None]
    for y in (Key(0).flips(9 * d).reshape(9, d), Key(1).normal(9, d)):
        for turned in (rotate, unrotate):
            together = turned(y, seeds, sizes)
            for count in (1, 2, 4):
                several = [
                    turned(y[i : i + count], seeds[i : i + count], sizes)
                    for i in range(0, 9, count)
                ]
                assert torch.equal(torch.cat(several), together)


def test_the_diagonal_is_that_of_the_clients_own_seed() -> None:
    drawn = signs(SEEDS, 100)
    assert torch.equal(drawn[1], Key(2**64 - 7).flips(100))
    assert not torch.equal(drawn[0], drawn[1])
    # shift, signs, transform: the other order would leave the first row of H as it is
    x = torch.zeros(1, 4)
    x[0, 2] = 1.0
    columns = torch.from_numpy(sylvester(4) / 2).float()
    for seeds in torch.arange(9)[:, None, None]:
        at = (2 - offsets(seeds, 4)[0]) % 4
        expected = signs(seeds, 4)[0, at] * columns[:, at]
        assert torch.equal(rotate(x, seeds, (4,))[0], expected)


def test_every_offset_is_drawn() -> None:
    drawn = offsets(torch.arange(400)[:, None], 5)
    assert set(drawn) == {0, 1, 2, 3, 4}


def test_centroids_are_those_of_maxs_table() -> None:
    # Max 1960, Table I: output levels for N = 2, 4, 8, 16.
    half = {
        1: [0.7980],
        2: [0.4528, 1.510],
        3: [0.2451, 0.7560, 1.344, 2.152],
        4: [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733],
    }
    for bits, levels in half.items():
        table = blocks.centroids(bits)
        assert len(table) == 2**bits
        assert table[len(levels) :].tolist() == pytest.approx(levels, abs=6e-4)
        assert torch.equal(table, -table.flip(0))
    assert blocks.edges(2).tolist() == pytest.approx([-0.9816, 0.0, 0.9816], abs=1e-4)
    assert blocks.centroids(0).tolist() == [0.0]


@pytest.mark.parametrize("bits", [1, 2, 5])
def test_every_centroid_is_the_mean_of_its_cell(bits: int) -> None:
    from scipy.stats import norm

    ends = [-math.inf, *blocks.edges(bits).double().tolist(), math.inf]
    for i, c in enumerate(blocks.centroids(bits).tolist()):
        low, high = ends[i], ends[i + 1]
        assert norm.expect(lambda x: x, lb=low, ub=high, conditional=True) == pytest.approx(
            c, abs=1e-5
        )
