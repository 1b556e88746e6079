"""Where the marks of a picture stand: heights, ends of intervals, and the names beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from sample_records import Results, cell, rows, sample_record, sample_round
from test_figures import NOISY, ended, in_cohorts, legible, over_shares, record, small, words

from fedbench.experiment.cells import Cell
from fedbench.experiment.scenario import Scenario
from fedbench.figures import (
    bars,
    bits,
    cohort,
    epsilon,
    heatmap,
    layout,
    rounds,
    share,
    style,
    systems,
)
from fedbench.results import summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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


def test_an_attack_without_any_rows_is_nobodys_worst_case() -> None:
    of = cell("fedavg", "mean", "ipm")
    idle = sample_record(of.scenario, [sample_round(0, 0.5, malicious=0)], {})
    (system,) = systems.systems(rows({of: [idle]}))
    assert system.worst is None
    assert [row.cell.attack for row in system.attacked] == ["ipm"]
    lasts = {cell("fedavg", "mean", name): 0.5 for name in ("pga", "none", "ipm", "alie")}
    assert systems.attacks(ended(lasts)) == ["none", "pga", "ipm", "alie"]  # as they were played


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
    (axes,) = bars.compose(rows(found)).axes
    (line,) = axes.collections
    assert [x for x, _ in corners(line)] == near([10, 40])


def test_an_interval_of_impact_goes_below_zero_and_not_above_a_hundred_points() -> None:
    found: Results = {}
    for attack, lasts in (("none", (1.0,) * 5), ("sign-flip", (0.0, 1.0, 0.0, 1.0, 0.0))):
        of = cell("fedavg", "mean", attack)
        found[of] = [record(of, seed, (0.1, last)) for seed, last in enumerate(lasts)]
    (system,) = systems.systems(rows(found))
    (lane,) = bars.impacts(system)
    # Of 100, 0, 100, 0 and 100 the mean is 60, s = 54.7723, and t of 4 degrees is 2.776445.
    assert lane.value == pytest.approx(60)
    assert lane.ends == pytest.approx((60 - 2.776445 * 54.7723 / 5**0.5, 100), abs=1e-3)
    assert bars.reach([lane]) == pytest.approx((-8.009, 100), abs=1e-3)
    assert bars.reach([bars.Lane("ipm", 0.0, "0.0")]) == (0, 1)


def lost(attacks: int, worst: float = 0.1) -> dict[Cell, float]:
    """Two systems with as many attacks, the last of which leaves the least."""
    lasts = {f"attack-{i}": worst + (attacks - 1 - i) / 20 for i in range(attacks)}
    return {
        cell("fedavg", rule, attack): last
        for rule in ("mean", "median")
        for attack, last in {"none": 0.9, **lasts}.items()
    }


def test_bars_of_many_systems_are_the_strongest_and_at_least_a_few_of_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def names(most: int, attacks: int) -> tuple[list[str], bool]:
        monkeypatch.setattr(bars, "MAX_BARS", most)
        figure = bars.compose(ended(lost(attacks)))
        cut = "strongest attacks of a system" in " ".join(words(figure))
        return [name for name, _ in lanes(figure.axes[0])], cut

    assert names(8, 5) == ([f"attack-{i}" for i in (1, 2, 3, 4)] * 2, True)
    assert names(8, 4) == ([f"attack-{i}" for i in range(4)] * 2, False)
    assert names(4, 5) == ([f"attack-{i}" for i in (2, 3, 4)] * 2, True)


def test_attacks_that_differ_in_a_parameter_are_told_apart_on_a_narrow_page() -> None:
    names = [f"index-concentration:share=0.{i},via=codec" for i in range(3)]
    lasts = {cell("topk", "mean", name, f"{NOISY}1.0"): 0.5 for name in ("none", *names)}
    figure = bars.compose(ended(lasts), layout.View(width=4.0))
    legible(figure)  # the name of the system has the room that these names leave
    (axes,) = figure.axes
    labels = [name for name, _ in lanes(axes)]
    assert all("…" in label for label in labels)
    assert [label.partition("…")[2] for label in labels] == [f"=0.{i}, via=codec" for i in range(3)]
    whole = bars.compose(ended({cell("topk", "mean", a): 0.5 for a in ("none", names[0][:29])}))
    assert [name for name, _ in lanes(whole.axes[0])] == ["index-concentration:share=0.0"]


def test_the_best_system_is_on_top_and_its_worst_attack_has_the_colour_of_the_worst() -> None:
    figure = bars.compose(small())
    (axes,) = figure.axes
    bottom, top = axes.get_ylim()
    assert bottom > top == 0
    first, last = (text.get_position()[1] for text in axes.texts[:2])
    assert first < last
    colours = [(label.get_text(), label.get_color()) for label in axes.get_yticklabels()]
    assert colours == [
        ("sign-flip", style.WORST),
        ("dyn-opt", style.WORST),
        ("sign-flip", style.INK),
    ]
    weights = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert [weights[number] for number in ("8.0", "76.0", "5.0")] == ["bold", "bold", "normal"]
    said = words(figure)
    caption = "Clean minus attacked accuracy on the benign clients' pooled test data, last round."
    assert caption in " ".join(said)
    assert axes.get_xlabel() == "accuracy lost, percentage points"
    (key,) = figure.legends[0].get_texts()
    assert key.get_text() == "bold: the worst of its system"
    assert (key.get_color(), key.get_fontweight()) == (style.WORST, "bold")
    floats = [row for row in small() if row.cell.protocol == "fedavg"]
    other = bars.compose(floats, layout.View(attacks=("sign-flip",)))
    assert "bold: the worst of its system" not in words(other)


def priced() -> list[summary.Row]:
    """A system whose run under attack was cheaper than its clean one, both with noise."""
    clean, attacked = (cell("fedavg", "mean", name, f"{NOISY}1.0") for name in ("none", "ipm"))
    return rows(
        {
            clean: [record(clean, 0, (0.1, 0.9), (30.0, 8.0), epsilon=39.0)],
            attacked: [record(attacked, 0, (0.1, 0.5), (20.0, 4.0), epsilon=3.0)],
        }
    )


def test_a_system_costs_in_every_figure_what_all_of_its_runs_cost() -> None:
    (point,) = bits.points(priced())
    assert point.bits == 25 + 6
    assert point.epsilon == 39
    assert point.key.marker == "s"
    _, sent, spent = bars.survival(priced(), "Title", "subtitle").axes
    assert [text.get_text() for text in sent.texts] == ["25.00"]
    assert [text.get_text() for text in spent.texts] == ["39.00"]
    (line,) = epsilon.lines(priced())
    assert [(place, row.cell.attack) for place, row in line.marks] == [(39, "none"), (39, "ipm")]
    note = "of a whole system the mean over its runs, clean and attacked"
    assert note in " ".join(words(bits.compose(priced())))
    clean = [row for row in priced() if row.cell.clean]
    assert note not in " ".join(words(bits.compose(clean)))


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
    faces = [to_hex(bar.get_facecolor()) for bar in boxes(accuracy) if bar.get_height() < 0.9]
    opt, flip = (style.attack_signs([name])[name][0] for name in ("dyn-opt", "sign-flip"))
    assert faces == [style.BAR, flip, style.BAR, opt, flip]


def test_the_chart_of_survival_says_what_its_bars_and_lines_are() -> None:
    fewer = [row for row in small() if row.cell.protocol == "fedavg"]
    fewer += ended({cell("signsgd", "median", "none"): 0.8})  # with one seed
    figure = bars.survival(fewer, "Title", "subtitle")
    accuracy, sent = figure.axes
    said = " ".join(words(figure))
    assert "mean and sample standard deviation over 3 seeds" in said
    assert "◀ worst: the lowest accuracy of an attack." in said
    assert accuracy.get_title(loc="left") == "accuracy, %"
    assert sent.get_title(loc="left") == "uplink bits\nper parameter"
    alone = bars.survival(ended({cell("fedavg", "mean", "none"): 0.5}), "Title", "")
    assert "last round; one seed." in " ".join(words(alone))
    played = {row.cell: list(row.records) for row in small()}
    partial = summary.rows([*played, cell("fedavg", "mean", "alie")], played)
    said = " ".join(words(bars.survival(partial, "Title", "")))
    assert "1 of 3 attacks of fedavg + mean are missing" in said
    assert "◀ worst: " not in said


def test_the_text_behind_an_interval_of_survival_stays_in_its_panel() -> None:
    found: Results = {}
    for attack, lasts in (("none", (1.0, 1.0)), ("ipm", (1.0, 0.6))):
        of = cell("fedavg", "mean", attack)
        found[of] = [record(of, seed, (0.1, last)) for seed, last in enumerate(lasts)]
    figure = bars.survival(rows(found), "Title", "subtitle")
    figure.draw_without_rendering()
    accuracy, _ = figure.axes
    (text,) = (text for text in accuracy.texts if "worst" in text.get_text())
    assert text.xy[0] == pytest.approx(80 + 100 * 0.08**0.5)  # type: ignore[attr-defined]
    assert text.get_window_extent().x1 <= accuracy.get_window_extent().x1


def uncounted() -> Results:
    """A clean run whose uplink bits a secure sum of earlier code hid."""
    of = cell("fedavg", "mean", "none")
    result = {"uplink_bits_per_parameter": None}
    return {of: [sample_record(of.scenario, [sample_round(0, 0.5)], result)]}


def test_bits_that_nobody_counted_are_no_zero_and_make_no_figure_against_bits() -> None:
    hidden = rows(uncounted())
    assert not bits.shows(hidden)
    assert not bits.shows([*hidden, *small()])
    assert bits.shows(small())
    assert not bits.shows([])
    _, sent = bars.survival(hidden, "Title", "").axes
    assert [text.get_text() for text in sent.texts] == ["n/a"]


def test_a_system_that_sends_nothing_has_a_place_on_the_logarithmic_axis() -> None:
    of = cell("fedavg", "mean", "none")
    table = rows({of: [record(of, 0, (0.1, 0.5), (0.0, 0.0))]})
    (point,) = bits.points(table)
    assert point.bits > 0
    assert point.clean is None  # the point itself is the clean run
    (axes,) = bits.compose(table).axes
    assert axes.get_xscale() == "log"
    assert "no attack" in words(bits.compose(table))
    assert point.key.hollow


def test_a_name_stands_beside_its_own_point_and_is_bold_on_the_front() -> None:
    figure = bits.compose(small())
    (axes,) = figure.axes
    beside = {text.get_text(): text for text in axes.texts if hasattr(text, "xy")}
    assert {name: text.xy for name, text in beside.items()} == {
        "signsgd + median": near((33, 72)),
        "fedavg + mean": near((64, 20)),
    }
    weights = {name: text.get_fontweight() for name, text in beside.items()}
    assert weights == {"signsgd + median": "bold", "fedavg + mean": "normal"}
    texts = figure.legends[0].get_texts()
    handles = figure.legends[0].legend_handles
    looks = {
        text.get_text(): (handle.get_color(), handle.get_markerfacecolor())  # type: ignore[union-attr]
        for text, handle in zip(texts, handles, strict=True)
    }
    assert looks["worst case over the attacks"] == (style.WORST, style.WORST)
    assert looks["no attack"] == (style.INK, "white")
    faces = {
        (round(float(x)), round(float(y))): line.get_markerfacecolor()
        for line in axes.lines
        if line.get_marker() == "o"
        for x, y in np.asarray(line.get_xydata())
    }
    assert faces[33, 72] == style.WORST
    assert faces[33, 80] == "white"


def test_the_legend_of_shapes_says_which_epsilons_they_mean() -> None:
    found: Results = {}
    for rule, price in (("mean", None), ("median", 2.5), ("krum", 39.0)):
        of = cell("fedavg", rule, "none", "none" if price is None else f"{NOISY}0.2")
        found[of] = [record(of, 0, (0.1, 0.5), epsilon=price)]
    figure = bits.compose(rows(found))
    texts = figure.legends[0].get_texts()
    handles = figure.legends[0].legend_handles
    shapes = {
        text.get_text(): handle.get_marker()  # type: ignore[union-attr]
        for text, handle in zip(texts, handles, strict=True)
    }
    assert (shapes["no guarantee"], shapes["ε ≤ 10"], shapes["ε > 10"]) == ("o", "D", "s")


def test_a_number_in_the_figure_against_bits_is_that_of_its_line_below() -> None:
    table = ended(
        {
            cell("fedavg", f"multi-krum:f={i}", attack): last - i / 50
            for i in range(13)
            for attack, last in (("none", 0.9), ("ipm", 0.5))
        }
    )
    figure = bits.compose(table)
    listed = figure.texts[2].get_text().splitlines()[-13:]
    both = "% under ipm, {} % without attack, 64.00 bits"
    assert listed[0] == f"1 fedavg + multi-krum:f=0, 50.0 {both.format('90.0')}"
    assert listed[12] == f"13 fedavg + multi-krum:f=12, 26.0 {both.format('66.0')}"
    (axes,) = figure.axes
    places = {text.get_text(): text.xy[1] for text in axes.texts if hasattr(text, "xy")}
    assert [places[str(i)] for i in (1, 2, 13)] == pytest.approx([50, 48, 26])


def test_where_a_name_has_no_room_all_are_numbers() -> None:
    # Twelve systems would have names; these lie on each other.
    table = ended({cell("fedavg", f"multi-krum:f={i}", "none"): 0.5 for i in range(12)})
    figure = bits.compose(table, layout.View(width=4.0))
    (axes,) = figure.axes
    beside = [text.get_text() for text in axes.texts if hasattr(text, "xy")]
    assert "multi-krum" not in " ".join(beside)
    assert " ".join(beside).replace("\n", " ") == ", ".join(str(i + 1) for i in range(12))


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
    frames = [box for box in boxes(axes) if not box.get_fill()]
    middles = [(box.get_x() + box.get_width() / 2, box.get_y() + 0.44) for box in frames]
    framed = {(down[round(y, 6)], across[round(x, 6)]) for x, y in middles}
    assert framed == {("median", "sign-flip"), ("mean", "dyn-opt")}
    assert faces["mean", "dyn-opt"] == faces["mean", "worst case"] != faces["mean", "sign-flip"]


def test_a_small_heat_map_has_one_row_of_keys_and_frames_that_leave_no_gap() -> None:
    figure = heatmap.compose(small())
    figure.draw_without_rendering()
    keys = figure.legends[0].get_texts()
    assert len(keys) == 6
    assert len({round(key.get_window_extent().y0) for key in keys}) == 1
    axes = figure.axes[0]
    frame = next(box for box in boxes(axes) if not box.get_fill())
    tile = next(box for box in boxes(axes) if box.get_fill()).get_window_extent()
    # as far from the tile's ends as from its upper and lower edge
    assert tile.width - frame.get_window_extent().width == pytest.approx(
        tile.height - frame.get_window_extent().height, abs=2.5
    )


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


def table_of(lasts: dict[str, dict[str, float]], protocol: str = "fedavg") -> list[summary.Row]:
    """Rows of one protocol, with the accuracy that each attack leaves of each rule."""
    cells = {(r, a): x for r, found in lasts.items() for a, x in found.items()}
    return ended({cell(protocol, rule, attack): x for (rule, attack), x in cells.items()})


def test_a_map_keeps_the_attacks_that_are_the_worst_of_a_rule_before_those_that_leave_less() -> (
    None
):
    # On average alie leaves 55, ipm 45 and pga 37.5; but pga is the worst against no rule.
    lasts = {
        "mean": {"none": 0.9, "alie": 0.2, "ipm": 0.5, "pga": 0.3},
        "median": {"none": 0.9, "alie": 0.9, "ipm": 0.4, "pga": 0.45},
    }
    (drawn,) = heatmap.maps(table_of(lasts))
    order = ["none", "alie", "ipm", "pga"]
    assert heatmap.chosen(drawn, order, layout.PLAIN, 3) == ["none", "alie", "ipm"]
    assert heatmap.chosen(drawn, order, layout.PLAIN, 2) == ["none", "ipm"]
    assert heatmap.chosen(drawn, order[1:], layout.PLAIN, 2) == ["alie", "ipm"]


def test_a_number_of_a_map_is_the_mean_over_the_seeds() -> None:
    numbers = [text.get_text() for text in heatmap.compose(small()).axes[1].texts]
    assert numbers == ["96.0", "20.0", "91.0", "20.0"]  # of the first seed 95, 10 and 90


def test_the_caption_of_a_map_says_what_is_missing_and_what_was_left_out() -> None:
    few = {"mean": {"none": 0.9, "alie": 0.5}, "median": {"none": 0.9, "alie": 0.6}}
    many = {"mean": {"none": 0.9} | {f"attack-{i}": 0.8 - i / 20 for i in range(9)}}
    whole = " ".join(words(heatmap.compose(table_of(few))))
    assert "no record" not in whole
    assert "Of up to" not in whole
    gap = " ".join(words(heatmap.compose(table_of(few | {"krum": {"alie": 0.3}}))))
    assert "mean over the seeds. n/a: no record." in gap
    both = [*table_of(few), *table_of(many, "fedprox")]
    narrow = " ".join(words(heatmap.compose(both, layout.View(width=4.0))))
    assert "Of up to 10 columns those that leave the least accuracy." in narrow
    chosen = layout.View(attacks=("alie", "attack-1"))
    said = " ".join(words(heatmap.compose(both, chosen)))
    assert "Of up to 10 columns those that were chosen." in said


def test_the_key_of_a_map_has_the_colours_of_its_tiles_and_the_best_rule_is_on_top() -> None:
    lasts = {"mean": {"none": 1.0, "alie": 0.0}, "median": {"none": 0.75, "alie": 0.25}}
    figure = heatmap.compose(table_of(lasts))
    (axes,) = figure.axes
    texts = figure.legends[0].get_texts()
    handles = figure.legends[0].legend_handles
    keys = {
        text.get_text(): to_hex(handle.get_color())  # type: ignore[union-attr]
        for text, handle in zip(texts, handles, strict=True)
    }
    tiles = [to_hex(box.get_facecolor()) for box in boxes(axes) if box.get_fill()]
    shares = ("75 %", "25 %", "25 %", "100 %", "0 %", "0 %")  # with the worst case of each rule
    assert tiles == [keys[share] for share in shares]
    assert len(set(keys.values())) == 6
    bottom, top = axes.get_ylim()
    assert bottom > top == 0
    assert [name for name, _ in lanes(axes)] == ["median", "mean"]


def marks_of(line: epsilon.NoiseLine) -> list[tuple[float | str, str]]:
    """Where the marks of a line stand, and the attack of each."""
    return [(place, row.cell.attack) for place, row in line.marks]


def privately(
    rule: str = "mean", protocol: str = "fedavg", delta: float = 1e-5, attacks: str = "none ipm"
) -> Results:
    """A system with one noise of epsilon 2, under attacks of which each leaves less."""
    found: Results = {}
    for i, attack in enumerate(attacks.split()):
        of = cell(protocol, rule, attack, f"{NOISY}1.0")
        played = record(of, 0, (0.1, 0.9 - i / 5), epsilon=2.0)
        assert played.privacy is not None
        claim = played.privacy.model_copy(update={"delta": delta})
        found[of] = [played.model_copy(update={"privacy": claim})]
    return found


def test_over_epsilon_stand_the_clean_run_and_the_worst_attack_and_no_others() -> None:
    (line,) = epsilon.lines(rows(privately(attacks="none alie ipm")))
    assert marks_of(line) == [(2, "none"), (2, "ipm")]
    # A mechanism that nobody can price stands in no line without a mechanism.
    bare = ended({cell("fedavg", "mean", "none"): 0.8, cell("fedavg", "median", "none"): 0.7})
    free = cell("fedavg", "mean", "none", "central:noise=1.0")
    unclaimed = sample_record(free.scenario, [sample_round(0, 0.3)], {})
    (line,) = epsilon.lines([*bare, *rows(privately()), *rows({free: [unclaimed]})])
    assert marks_of(line)[2:] == [(epsilon.STRIPS[1], "none")]
    assert [row.accuracy for _, row in line.marks][2:] == [0.8]  # of the same rule


def test_the_caption_says_what_all_epsilons_cover_or_that_they_differ() -> None:
    alike = {**privately("mean", delta=2.5e-6), **privately("median", delta=2.5e-6)}
    said = " ".join(words(epsilon.compose(rows(alike))))
    claim = "ε at δ = 2.5e-06, per client, replace-one, before who sees the messages."
    assert claim in said
    unlike = {**privately("mean"), **privately("median", delta=2.5e-6)}
    said = " ".join(words(epsilon.compose(rows(unlike))))
    assert "ε of guarantees that differ in what they cover." in said
    assert "at δ" not in said
    clean = epsilon.compose(rows(privately(attacks="none")))
    assert clean.texts[0].get_text() == "Accuracy against ε"


def test_a_panel_over_epsilon_has_the_lines_of_its_protocol() -> None:
    both = {**privately(), **privately(protocol="fedprox", attacks="none alie ipm sign-flip")}
    first, second = epsilon.compose(rows(both)).axes
    heights = [
        sorted(round(float(y)) for line in axes.lines for y in np.asarray(line.get_ydata()))
        for axes in (first, second)
    ]
    assert heights == [[70, 90], [30, 90]]
    assert first.get_title(loc="left") == "fedavg"


def test_a_strip_holds_its_own_marks_hollow_where_nobody_attacked() -> None:
    unpriced: Results = {}
    for attack, last in (("none", 0.7), ("ipm", 0.2)):
        of = cell("fedavg", "mean", attack, f"{NOISY}0.01")
        unpriced[of] = [record(of, 0, (0.1, last))]
    bare = ended({cell("fedavg", "mean", "none"): 0.8, cell("fedavg", "mean", "ipm"): 0.3})
    (axes,) = epsilon.compose([*rows({**privately(), **unpriced}), *bare]).axes
    strips = {text.get_text(): text.get_position()[0] for text in axes.texts[-2:]}
    assert list(strips) == ["no finite ε", "no mechanism"]
    spans = [box for box in boxes(axes) if box.get_width() > 0]
    ends = [(box.get_x(), box.get_x() + box.get_width()) for box in spans]
    (left, right), (further, end) = ends
    assert 0.301 < left < strips["no finite ε"] < right < further < strips["no mechanism"] < end
    alone = [line for line in axes.lines if line.get_linestyle() == "None"]
    found = {}
    for line in alone:
        ((x, y),) = np.asarray(line.get_xydata())
        place = next(i for i, (low, high) in enumerate(ends) if low < x < high)
        found[round(float(y))] = (place, line.get_markerfacecolor() == "white")
    assert found == {70: (0, True), 20: (0, False), 80: (1, True), 30: (1, False)}


def test_the_height_over_epsilon_holds_all_intervals() -> None:
    found: Results = {}
    for attack, lasts in (("none", (0.71, 0.95)), ("ipm", (0.13, 0.45))):
        of = cell("fedavg", "mean", attack, f"{NOISY}1.0")
        found[of] = [record(of, s, (0.1, x), epsilon=2.0) for s, x in enumerate(lasts)]
    (axes,) = epsilon.compose(rows(found)).axes
    assert axes.get_ylim() == (10, 100)


def test_a_dot_over_shares_is_a_seed_beside_the_line_of_its_attack() -> None:
    (axes,) = (axes for axes in share.compose(over_shares()).axes if axes.get_visible())
    dots = [spot for line in marks(axes, ".") for spot in line]
    # Lines stand 0.42 points apart: 1.2 % of the 35 between the ends.
    clean = [(x - 0.21, y) for x in (0, 15, 35) for y in (90, 80)]
    attacked = [(15.21, 80), (15.21, 70), (35.21, 40), (35.21, 30)]
    assert sorted(dots) == near(sorted([*clean, *attacked]))
    (line,) = (line for line in axes.lines if line.get_linestyle() == "-" and line.get_marker())
    assert np.asarray(line.get_xydata()) == near([(0.21, 85), (15.21, 75), (35.21, 35)])


def owning(
    shares: Mapping[float, tuple[int, ...]], declared: dict[float, float] | None = None
) -> list[summary.Row]:
    """An attack by several shares of clients, each with the malicious rows of ten of every seed."""
    found: Results = {}
    for malicious, counts in shares.items():
        assumed = (declared or {}).get(malicious)
        scenario = Scenario(attack="ipm", malicious=malicious, declared=assumed)
        of = Cell(scenario, ("malicious", *(["declared"] if declared else [])))
        found[of] = [
            sample_record(
                scenario.model_copy(update={"seed": seed}),
                [sample_round(0, 0.5, clients=list(range(10)), malicious=count)],
                {},
            )
            for seed, count in enumerate(counts)
        ]
    return rows(found)


def test_a_dot_over_shares_stands_at_the_share_of_its_own_seed() -> None:
    table = owning({0.1: (1, 3), 0.3: (3, 5)})
    (line,) = share.lines(table)
    assert [x for x, _ in line.points] == near([0.2, 0.4])
    (axes,) = share.compose(table).axes
    dots = sorted(x for spots in marks(axes, ".") for x, _ in spots)
    assert dots == near([10, 30, 30, 50])
    left, right = axes.get_xlim()
    assert left < 10 < 50 < right


def test_a_panel_over_shares_has_the_lines_of_its_system_and_room_for_every_seed() -> None:
    found: Results = {}
    for rule, shift in (("mean", 0.0), ("median", 0.05)):
        for malicious in (0.1, 0.3):
            scenario = Scenario(attack="ipm", defense=rule, malicious=malicious)
            clients = list(range(10))
            found[Cell(scenario, ("malicious",))] = [
                sample_record(
                    scenario.model_copy(update={"seed": seed}),
                    [sample_round(0, last, clients=clients, malicious=round(10 * malicious))],
                    {},
                )
                for seed, last in enumerate((0.31 + shift, 0.71 + shift))
            ]
    figure = share.compose(rows(found))
    marker = style.attack_signs(["ipm"])["ipm"][1]
    heights = {
        axes.get_title(loc="left"): [round(y) for line in marks(axes, marker) for _, y in line]
        for axes in figure.axes
    }
    assert heights == {"fedavg + median": [56, 56], "fedavg + mean": [51, 51]}
    assert [axes.get_ylim() for axes in figure.axes] == [(30, 80)] * 2


def test_two_cells_of_one_realised_share_are_no_line_over_shares() -> None:
    assert not share.shows(owning({0.1: (2,), 0.2: (2,)}))
    assert share.shows(owning({0.1: (1,), 0.2: (2,)}))


def test_a_rule_that_assumes_another_share_is_another_system_over_shares() -> None:
    shares = {0.1: (1,), 0.3: (3,)}
    same = share.lines(owning(shares, {0.3: 0.1}))  # the other one assumes 0.1, its own share
    assert [len(line.points) for line in same] == [2]
    assert same[0].system == "fedavg + mean"
    other = share.lines(owning(shares, {0.1: 0.3, 0.3: 0.1}))
    assert [line.system for line in other] == [
        "fedavg + mean; declared 0.3",
        "fedavg + mean; declared 0.1",
    ]


def test_a_curve_goes_from_the_first_round_to_the_last_and_its_panel_holds_its_band() -> None:
    of = cell("fedavg", "mean", "none")
    looks = ((None, 0.55, *[None] * 6, last) for last in (0.75, 0.85, 0.95))
    table = rows({of: [record(of, seed, each) for seed, each in enumerate(looks)]})
    assert [point.round for point in rounds.curve(table[0])] == [2, 9]
    figure = rounds.compose(table)
    (axes,) = figure.axes
    assert axes.get_ylim() == (50, 100)
    assert not any("thick" in said for said in words(figure))
    assert any("thick" in said for said in words(rounds.compose(small())))


def test_a_dot_over_cohorts_is_a_round_at_its_own_share() -> None:
    (axes,) = (axes for axes in cohort.compose(in_cohorts()).axes if axes.get_visible())
    clean, attacked = marks(axes, ".")
    assert attacked == near([(10.24, 10), (50.24, -50), (10.24, 40), (50.24, -20)])
    assert clean == near([(9.76, 10), (49.76, 10), (9.76, 10), (9.76, 10)])


def test_a_curve_over_cohorts_goes_from_the_smallest_share_to_the_largest() -> None:
    line = cohort.CohortLine("fedavg + mean", "ipm", [(0.5, 0.1), (0.1, 0.3), (0.5, 0.3)])
    assert line.curve == near([(0.1, 0.3), (0.5, 0.2)])


def test_a_round_without_any_rows_is_no_mark_over_cohorts() -> None:
    of = cell("fedavg", "mean", "ipm")
    played = [sample_round(0, 0.5), sample_round(1, 0.6, clients=[], malicious=0)]
    looks = cohort.changes(sample_record(of.scenario, [*played, sample_round(2, 0.4)], {}))
    assert looks == near([(0.5, -0.2)])  # of the last round, half of whose rows are malicious
