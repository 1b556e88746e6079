"""Where the marks of a picture stand: heights, ends of intervals, and the names beside them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from sample_records import Results, cell, rows
from test_figures import NOISY, ended, in_cohorts, over_shares, record, small

from fedbench.figures import bars, bits, cohort, epsilon, heatmap, rounds, share, systems

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from fedbench.results import summary

Spots = list[tuple[float, float]]


def near(numbers: Any) -> Any:
    return pytest.approx(np.array(numbers), abs=1e-6)


def boxes(axes: Axes) -> list[Rectangle]:
    """Return the bars, tiles and frames of a panel."""
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def corners(collection: Any) -> Spots:
    """Return the points of an interval or of a band, each once."""
    (path,) = collection.get_paths()
    return sorted({(round(float(x), 6), round(float(y), 6)) for x, y in path.vertices})


def marks(axes: Axes, marker: str) -> list[Spots]:
    """Return the points of every line with this marker."""
    return [
        [(round(float(x), 6), round(float(y), 6)) for x, y in np.asarray(line.get_xydata())]
        for line in axes.lines
        if line.get_marker() == marker
    ]


def lanes(axes: Axes) -> list[tuple[str, float]]:
    """Return the names on the left of bars, with their heights."""
    ticks = zip(axes.get_yticklabels(), axes.get_yticks(), strict=True)
    return [(label.get_text(), float(y)) for label, y in ticks]


def test_a_system_has_a_clean_row_and_a_worst_one_as_far_as_they_were_played() -> None:
    def names(found: list[summary.Row]) -> list[str]:
        return [row.cell.attack for row in found]

    _, floats = systems.systems(small())
    clean, *attacked = floats.rows
    assert (floats.clean, floats.attacked) == (clean, attacked)
    assert names(floats.ends) == ["none", "dyn-opt"]
    assert names([floats.shown]) == ["dyn-opt"]
    unopposed = systems.SystemRows("fedavg", [clean])
    assert (unopposed.clean, unopposed.worst, unopposed.attacked) == (clean, None, [])
    assert unopposed.ends == [unopposed.shown] == [clean]
    without = systems.SystemRows("fedavg", attacked)
    assert without.clean is None
    assert names(without.ends) == names([without.shown]) == ["dyn-opt"]
    (worst,) = (row for row in attacked if row.worst)
    others = [row for row in attacked if row is not worst]  # as if the worst had not been played
    assert systems.SystemRows("fedavg", others).ends == others[:1]


def test_a_line_over_the_rounds_has_a_band_from_the_lowest_to_the_highest_seed() -> None:
    signs, floats = rounds.compose(small()).axes
    for axes in (signs, floats):
        assert all(list(np.asarray(line.get_xdata())) == [1, 2] for line in axes.lines)
    assert [corners(band) for band in signs.collections] == [
        [(1, 10), (2, 80)],  # the clean run, whose seeds are equal
        [(1, 10), (2, 70), (2, 74)],
    ]
    assert [corners(band) for band in floats.collections] == [
        [(1, 10), (2, 95), (2, 97)],
        [(1, 10), (2, 10), (2, 30)],
    ]


def test_a_system_stands_at_its_bits_with_its_worst_case_its_interval_and_its_clean_run() -> None:
    (axes,) = bits.compose(small()).axes
    spots = sorted(spot for line in marks(axes, "o") for spot in line)
    assert spots == near([(33, 72), (33, 80), (64, 20), (64, 96)])
    assert sorted(map(corners, axes.collections)) == [
        [(33, 70), (33, 74)],
        [(64, 10), (64, 30)],
    ]
    joined = [line for line in marks(axes, "None") if len(line) == 2 and line[0][0] == line[1][0]]
    assert joined == [near([(33, 72), (33, 80)]), near([(64, 20), (64, 96)])]


def test_a_bar_of_impact_has_the_interval_of_its_pairs_and_its_name_on_its_left() -> None:
    (axes,) = bars.compose(small()).axes
    heights = [y for _, y in lanes(axes)]
    assert [name for name, _ in lanes(axes)] == ["sign-flip", "dyn-opt", "sign-flip"]
    widths = {
        round(bar.get_y() + bar.get_height() / 2, 6): bar.get_width()
        for bar in boxes(axes)
        if round(bar.get_height(), 6) == 0.62
    }
    assert [widths[y] for y in heights] == pytest.approx([8, 76, 5])
    # Seeds lose 10, 8 and 6 points; 85, 76 and 67; and 5 each.
    ends = [corners(line) for line in axes.collections]
    expected: list[Spots] = [[(6, 0), (10, 0)], [(67, 0), (85, 0)], [(5, 0)]]
    for line, wanted, y in zip(ends, expected, heights, strict=True):
        assert line == near([(x, y) for x, _ in wanted])
    behind = [text.xy for text in axes.texts if hasattr(text, "xy")]  # where the longest ends
    assert behind == near(list(zip((10, 85, 5), heights, strict=True)))


def test_a_bar_of_impact_is_the_mean_of_its_pairs_which_need_not_lie_in_their_middle() -> None:
    found: Results = {}
    for attack, lasts in (("none", (0.9, 0.8, 0.7)), ("sign-flip", (0.8, 0.7, 0.3))):
        of = cell("fedavg", "mean", attack)
        found[of] = [record(of, seed, (0.1, last)) for seed, last in enumerate(lasts)]
    (system,) = systems.systems(rows(found))
    (lane,) = bars.impacts(system)
    assert lane.value == pytest.approx(20)
    assert lane.ends == pytest.approx((10, 40))


def test_a_bar_of_survival_is_the_mean_with_the_deviation_of_its_seeds() -> None:
    accuracy, _ = bars.survival(small(), "Title", "subtitle").axes
    named = lanes(accuracy)
    clean = "none (clean)"
    assert [name for name, _ in named] == [clean, "sign-flip", clean, "dyn-opt", "sign-flip"]
    widths = {
        round(bar.get_y() + bar.get_height() / 2, 6): bar.get_width()
        for bar in boxes(accuracy)
        if round(bar.get_height(), 6) == 0.62
    }
    assert [widths[y] for _, y in named] == pytest.approx([80, 72, 96, 20, 91])
    # The first has no deviation; 0.70, 0.72, 0.74 have 0.02, and so on.
    ends = [[x for x, _ in corners(line)] for line in accuracy.collections]
    assert ends == [near(x) for x in ([70, 74], [95, 97], [10, 30], [90, 92])]
    heights = [corners(line)[0][1] for line in accuracy.collections]
    assert heights == pytest.approx([y for _, y in named[1:]])


def test_a_number_of_a_heat_map_stands_below_its_attack_and_beside_its_defense() -> None:
    lasts = {"none": 0.9, "dyn-opt": 0.3, "sign-flip": 0.4}
    found = {cell("fedavg", "mean", attack): last for attack, last in lasts.items()}
    found |= {cell("fedavg", "median", a): x for a, x in (("sign-flip", 0.8), ("dyn-opt", 0.85))}
    (axes,) = heatmap.compose(ended(found)).axes
    across = {
        x: t.get_text() for x, t in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    }
    down = {y: name for name, y in lanes(axes)}
    numbers = {
        (down[text.get_position()[1]], across[text.get_position()[0]]): text.get_text()
        for text in axes.texts
    }
    assert numbers == {
        ("median", "none (clean)"): "n/a",
        ("median", "dyn-opt"): "85.0",
        ("median", "sign-flip"): "80.0",
        ("median", "worst case"): "80.0",
        ("mean", "none (clean)"): "90.0",
        ("mean", "dyn-opt"): "30.0",
        ("mean", "sign-flip"): "40.0",
        ("mean", "worst case"): "30.0",
    }
    tiles = [box for box in boxes(axes) if box.get_fill()]
    faces = {}
    for tile in tiles:
        middle = (tile.get_x() + tile.get_width() / 2, tile.get_y() + 0.5)
        faces[down[middle[1]], across[middle[0]]] = tile.get_facecolor()
    framed = {
        (down[p.get_y() + 0.44], across[p.get_x() + 0.46]) for p in boxes(axes) if not p.get_fill()
    }
    assert framed == {("median", "sign-flip"), ("mean", "dyn-opt")}
    assert faces["mean", "dyn-opt"] == faces["mean", "worst case"] != faces["mean", "sign-flip"]


def test_a_mark_over_epsilon_has_the_interval_of_its_seeds_at_its_power_of_ten() -> None:
    found: Results = {}
    for price, z in ((1.0, "2.0"), (100.0, "0.2")):
        for attack, lasts in (("none", (0.8, 0.9)), ("sign-flip", (0.4, 0.6))):
            of = cell("fedavg", "mean", attack, NOISY + z)
            found[of] = [record(of, s, (0.1, x), epsilon=price) for s, x in enumerate(lasts)]
    (axes,) = epsilon.compose(rows(found)).axes
    assert sorted(map(corners, axes.collections)) == [
        [(0, 40), (0, 60)],
        [(0, 80), (0, 90)],
        [(2, 40), (2, 60)],
        [(2, 80), (2, 90)],
    ]
    styles = {str(line.get_linestyle()): np.asarray(line.get_xydata()) for line in axes.lines}
    assert styles["-"] == near([(0, 50), (math.log10(100), 50)])
    assert styles["--"] == near([(0, 85), (2, 85)])


def test_a_dot_over_shares_is_a_seed_beside_the_line_of_its_attack() -> None:
    (axes,) = (axes for axes in share.compose(over_shares()).axes if axes.get_visible())
    dots = [spot for line in marks(axes, ".") for spot in line]
    # Lines stand 0.42 points apart: 1.2 % of the 35 between the ends.
    clean = [(x - 0.21, y) for x in (0, 15, 35) for y in (90, 80)]
    attacked = [(15.21, 80), (15.21, 70), (35.21, 40), (35.21, 30)]
    assert sorted(dots) == near(sorted([*clean, *attacked]))
    (line,) = (line for line in axes.lines if line.get_linestyle() == "-" and line.get_marker())
    assert np.asarray(line.get_xydata()) == near([(0.21, 85), (15.21, 75), (35.21, 35)])


def test_a_dot_over_cohorts_is_a_round_at_its_own_share() -> None:
    (axes,) = (axes for axes in cohort.compose(in_cohorts()).axes if axes.get_visible())
    clean, attacked = marks(axes, ".")
    assert attacked == near([(10.24, 10), (50.24, -50), (10.24, 40), (50.24, -20)])
    assert clean == near([(9.76, 10), (49.76, 10), (9.76, 10), (9.76, 10)])
