"""Records from files, the cells that they are of, and how sure their means are."""

from __future__ import annotations

import pytest

from fedbench.sweep.statistics import interval


def test_the_interval_is_students_over_the_sample_deviation() -> None:
    # mean 0.85; squares 25 + 25 + 225 + 225 + 0 = 500e-4, over 4: s² = 0.0125; s/√5 = 0.05;
    # t of 4 degrees at 0.975 is 2.776445
    low, high = interval([0.8, 0.9, 1.0, 0.7, 0.85]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((0.85 - 0.13882225, 0.85 + 0.13882225), abs=1e-7)


def test_one_seed_has_no_interval_and_two_equal_ones_have_none_to_speak_of() -> None:
    assert interval([0.5]) is None
    assert interval([]) is None
    assert interval([0.5, 0.5]) == (0.5, 0.5)
