"""Figures of results, and their sketches for a terminal."""

from __future__ import annotations

import io
import math
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from sample_records import LONG, Results, cell, rows, sample_record, sample_round

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.cells import Cell
from fedbench.experiment.record import Privacy, Record
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
from fedbench.figures.kinds import KINDS, Sketch, bar, draw, scale, spark
from fedbench.figures.labels import place_labels
from fedbench.results import summary
from fedbench.sweeps.ensemble import ensemble

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

NOISY = "dp-fedavg:clip=1.0,z="


def record(
    of: Cell,
    seed: int,
    accuracies: Sequence[float | None],
    bits: tuple[float, float] = (32.0, 32.0),
    epsilon: float | None = None,
    code: str = "0.1.0",
) -> Record:
    """A run that was evaluated in every round; None: it was not."""
    promise: dict[str, Any] = {"delta": 1e-5, "unit": "client", "sees": "messages"}
    promise |= {"adjacency": "replace-one", "sampler": "fixed", "winner": "rdp"}
    claim = Privacy(epsilon=epsilon, **promise)
    sent = {"uplink_bits_per_parameter": bits[0], "downlink_bits_per_parameter": bits[1]}
    return sample_record(
        of.scenario.model_copy(update={"seed": seed}),
        [sample_round(step, accuracy) for step, accuracy in enumerate(accuracies)],
        {"epsilon": epsilon, **sent},
        privacy=None if of.scenario.mechanism == "none" else claim,
        code=code,
    )


def ended(lasts: dict[Cell, float], seeds: int = 1, **fields: Any) -> list[summary.Row]:
    """Cells by their accuracy at the end, the same for every seed, after a first look at 0.1."""
    return rows(
        {of: [record(of, s, (0.1, x), **fields) for s in range(seeds)] for of, x in lasts.items()}
    )


def small() -> list[summary.Row]:
    """Two systems, three seeds, two looks; the second system has fewer bits."""
    accuracies = {
        cell("fedavg", "mean", "none"): (0.95, 0.96, 0.97),
        cell("fedavg", "mean", "dyn-opt"): (0.10, 0.20, 0.30),
        cell("fedavg", "mean", "sign-flip"): (0.90, 0.91, 0.92),
        cell("signsgd", "median", "none"): (0.80, 0.80, 0.80),
        cell("signsgd", "median", "sign-flip"): (0.70, 0.72, 0.74),
    }
    return rows(
        {
            of: [
                record(of, seed, (0.1, last), (1.0, 32.0) if of.protocol == "signsgd" else (32, 32))
                for seed, last in enumerate(lasts)
            ]
            for of, lasts in accuracies.items()
        }
    )


def noisy() -> list[summary.Row]:
    """One protocol with three noises, one of which has no finite price, and without any."""
    found: Results = {}
    for z, price, clean in (("1.0", 8.0, 0.5), ("0.1", 200.0, 0.7), ("0.01", None, 0.8)):
        for attack, lost in (("none", 0.0), ("sign-flip", 0.2)):
            of = cell("fedavg", "mean", attack, NOISY + z)
            found[of] = [record(of, s, (0.1, clean - lost), epsilon=price) for s in (0, 1)]
    bare = {cell("fedavg", "mean", "none"): 0.9, cell("fedavg", "mean", "sign-flip"): 0.6}
    return [*rows(found), *ended(bare, 2)]


def crowd(count: int, attacks: int = 3) -> list[summary.Row]:
    """Systems with long names, some with a mechanism; some lie on each other."""
    tried = ["sign-flip:scale=4.0,via=codec", "dyn-opt:search=published", "dyn-opt"]
    tried += ["rank-reversal"]
    tried += [f"index-concentration:share=0.{i}" for i in range(8)]
    protocols = [LONG, "signsgd", "eden:bits=2", "fedavg"]
    defenses = ["trimmed-mean", "multi-krum:f=3", "median", "mean"]
    found: Results = {}
    for i in range(count):
        protocol = protocols[i % 4]
        defense = defenses[i // 4 % 4]
        mechanism = f"{NOISY}0.{i}" if i % 3 == 1 or i >= 16 else "none"
        price = None if i % 5 == 4 or mechanism == "none" else 0.5 * 1.4**i
        for j, attack in enumerate(["none", *tried[:attacks]]):
            of = cell(protocol, defense, attack, mechanism)
            lasts = [max(1.0 - 0.025 * i - 0.07 * j * s, 0.0) for s in (1.0, 0.6)]
            sent = (1.0 + i % 4, 32.0)
            found[of] = [record(of, s, (0.1, x), sent, price) for s, x in enumerate(lasts)]
    return rows(found)


def drawn(figure: Figure) -> dict[Text, Any]:
    """Every text that is to be seen, with its box in pixels."""
    from matplotlib.text import Text

    figure.draw_without_rendering()
    hidden = {
        label
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks())
        for label in (tick.label1, tick.label2)
        if not min(axis.get_view_interval()) <= tick.get_loc() <= max(axis.get_view_interval())
    }
    found = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    seen = [t for t in found if t.get_visible() and t.get_text().strip() and t not in hidden]
    return {text: Text.get_window_extent(text) for text in seen}  # without the line to its point


def words(figure: Figure) -> list[str]:
    return [" ".join(text.get_text().split()) for text in drawn(figure)]


# every kind


@pytest.mark.edges("5-3-bits", "5-3-rounds", "5-3-share", "5-3-epsilon")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("count", "attacks"), [(5, 3), (2, 1), (30, 3)])
def test_no_text_is_cut_or_overlaps_another(kind: str, count: int, attacks: int) -> None:
    legible(KINDS[kind].compose(crowd(count, attacks)))


def legible(figure: Figure) -> None:
    """No text is cut, none overlaps another."""
    boxes = drawn(figure)
    assert len(boxes) > 10
    for text, box in boxes.items():
        assert min(box.x0, box.y0) >= 0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    straight = {text: box for text, box in boxes.items() if not text.get_rotation()}
    for (text, box), (other, its) in combinations(straight.items(), 2):
        assert not box.overlaps(its), (text, other)


@pytest.mark.slow
def test_the_first_round_stands_below_the_lowest_accuracy() -> None:
    systems = [cell("fedavg", f"multi-krum:f={i}", "dyn-opt") for i in range(5)]
    looks = (None,) * 999 + (0.0,) + (None,) * 999 + (0.5,)
    figure = rounds.compose(rows({of: [record(of, 0, looks)] for of in systems}))
    legible(figure)
    assert {"1000", "0"} <= set(words(figure))
    assert "none (clean)" not in words(figure)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_picture_says_what_was_run_and_what_its_signs_mean(kind: str) -> None:
    figure = KINDS[kind].compose(noisy())
    title, subtitle = (" ".join(text.get_text().split()) for text in figure.texts[:2])
    text = " ".join(words(figure))
    assert title.startswith(("Accuracy", "Attack impact"))
    assert subtitle == (
        "digits, lenet, dirichlet:beta=1.0, 50 clients, 20 % malicious, 40 rounds, 2 seeds"
    )
    over_rounds = kind in ("rounds", "cohort")
    assert ("enign clients' pooled test data, last round" in text) == (not over_rounds)
    assert "enign clients' pooled test data" in text
    assert kind in ("heatmap", "cohort") or "lowest to highest of 2 " in text
    if kind != "heatmap":
        assert any("accuracy" in axes.get_xlabel() + axes.get_ylabel() for axes in figure.axes)
    # and which attacks are missing
    played = {row.cell: list(row.records) for row in noisy()}
    system = next(iter(played)).scenario
    absent = Cell(system.model_copy(update={"attack": "alie"}))
    text = " ".join(words(KINDS[kind].compose(summary.rows([*played, absent], played))))
    assert "attacks of" in text
    assert "the lowest accuracy is no worst case yet" in text
    assert "worst case over" not in text


@pytest.mark.slow
@pytest.mark.edges("bits")
@pytest.mark.parametrize("kind", KINDS)
def test_equal_records_make_equal_files(kind: str, tmp_path: Path) -> None:
    from matplotlib import rc_context

    for name in ("one", "two"):
        # The user's own settings change nothing.
        pad = {"one": 4.0, "two": 20.0}[name]
        with rc_context({"font.size": 5 * pad, "svg.hashsalt": name, "axes.labelpad": pad}):
            figure = KINDS[kind].compose(noisy())
            figure.set_dpi(40)
            for format in style.USUAL:
                style.save(figure, tmp_path / name / f"picture.{format}")
    for format in style.USUAL:
        one, two = ((tmp_path / name / f"picture.{format}").read_bytes() for name in ("one", "two"))
        assert len(one) > 10_000
        assert one == two
    assert len(list((tmp_path / "one").iterdir())) == 2
    assert b"<dc:date>" not in (tmp_path / "one" / "picture.svg").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_is_no_formula_and_no_length_of_it_breaks_a_picture(kind: str) -> None:
    attacks = {"none": 0.9, "$x^$" + "y" * 3000: 0.5}
    lasts = {cell("fedavg", "mean", name, NOISY + "1.0"): x for name, x in attacks.items()}
    figure = KINDS[kind].compose(ended(lasts, 2, epsilon=1.0))
    assert kind in ("bits", "epsilon") or any("$x^$" in said for said in words(figure))
    assert max(figure.get_size_inches()) < 12


def test_a_kind_knows_that_there_is_nothing_to_show() -> None:
    clean, attacked = (cell("fedavg", "mean", attack) for attack in ("none", "dyn-opt"))
    priceless = cell("fedavg", "mean", "none", NOISY + "1")
    cells = {"rounds": clean, "heatmap": clean, "impact": attacked, "epsilon": priceless}
    for kind, of in cells.items():
        table = rows({of: [record(of, 0, (None if kind == "rounds" else 0.1, 0.5))]})
        assert not KINDS[kind].shows(table)
        assert KINDS[kind].shows(noisy())
        assert KINDS["bits"].shows(table)


def test_a_panel_of_accuracies_ends_at_a_hundred_percent() -> None:
    of = cell("fedavg", "mean", "none", NOISY + "1.0")
    table = rows({of: [record(of, 0, (1.0, 1.0), epsilon=3.0)]})
    for kind in ("rounds", "epsilon"):
        (axes,) = KINDS[kind].compose(table).axes
        assert axes.get_ylim() == (90.0, 100.0)
    assert not any("dyn-opt" in said or "worst" in said for said in words(rounds.compose(table)))
    assert "3" in words(epsilon.compose(table))  # a single price has a tick


@pytest.mark.slow
def test_one_seed_has_no_interval_and_the_caption_says_so() -> None:
    attacks = {"none": 0.9, "dyn-opt": 0.5}
    lasts = {cell("fedavg", "mean", name, NOISY + "1.0"): x for name, x in attacks.items()}
    for kind in KINDS:
        figure = KINDS[kind].compose(ended(lasts, epsilon=1.0))
        assert not any("interval of" in one for one in words(figure))
        told = any("One seed, so no interval." in one for one in words(figure))
        assert told == (kind not in ("heatmap", "cohort"))  # which have none with more seeds, too
        assert not any(len(axes.collections) for axes in figure.axes)
    # records of two versions of the code are a warning
    of = cell("fedavg", "mean", "none")
    for code, warned in (("0.1.0", False), ("0.2.0", True)):
        table = rows({of: [record(of, 0, (0.1, 0.5)), record(of, 1, (0.1, 0.5), code=code)]})
        assert ("Played by 2 versions of the code." in systems.sureness(table, "Bar")) == warned


def test_what_differs_is_a_range_or_a_number_of_things() -> None:
    one = Scenario(dataset="digits", rounds=1, malicious=0.1)
    two = Scenario(dataset="mnist", rounds=20, malicious=0.25)
    cells = [Cell(one), Cell(two)]
    table = [
        summary.Row(c, (record(c, 0, (0.5,)),) * n) for c, n in zip(cells, (1, 2), strict=True)
    ]
    assert systems.setting(table) == (
        "2 data sets, lenet, dirichlet:beta=1.0, 50 clients, 10 to 25 % malicious, 1 to 20 rounds, "
        "1 to 2 seeds"
    )
    assert systems.setting(table[:1]).endswith("10 % malicious, 1 round, 1 seed")


def test_the_setting_says_what_is_unusual_if_all_runs_have_it_and_what_share_was_malicious() -> (
    None
):
    def setting(*scenarios: Scenario) -> str:
        return systems.setting(
            [summary.Row(Cell(s), (record(Cell(s), 0, (0.5,)),)) for s in scenarios]
        )

    usual = Scenario(malicious=0.2, declared=0.3)
    unusual = usual.model_copy(update={"split": "published"})
    assert ", split published, 50 clients, 20 % malicious, " in setting(unusual)
    assert ", dirichlet:beta=1.0, 50 clients, 20 % malicious, " in setting(usual, unusual)


def test_the_caption_names_every_kind_of_test_data() -> None:
    cells = [Cell(Scenario(split=split)) for split in ("published", "per-client")]
    table = [summary.Row(c, (record(c, 0, (0.5,)),)) for c in cells]
    own = "benign clients' pooled test data"
    assert systems.tested(table[:1]) == "published test images"
    assert systems.tested(table[1:]) == own
    assert systems.tested(table) == f"{own} (split published: published test images)"


# accuracy over the rounds


def test_a_curve_is_the_mean_where_every_seed_was_looked_at() -> None:
    of = cell("fedavg", "mean", "none")
    looks = ((0.2, None, 0.5, 0.7), (0.4, 0.9, None, 0.8), (0.9, None, None, 0.9))
    points = rounds.curve(summary.Row(of, tuple(record(of, s, x) for s, x in enumerate(looks))))
    assert [point.round for point in points] == [1, 4]
    assert [point.mean for point in points] == pytest.approx([0.5, 0.8])
    # of three seeds Student's interval would reach from 0 to 100 %
    assert points[0].interval == (0.2, 0.9)
    assert points[1].interval == (0.7, 0.9)


def test_from_five_seeds_on_a_range_is_the_interval_of_the_mean() -> None:
    values = [0.5, 0.6, 0.7, 0.8, 0.9]
    # mean 0.7, s = sqrt(0.025), t of 4 degrees is 2.776445
    half = 2.776445 * 0.025**0.5 / 5**0.5
    assert systems.sure_range(values) == pytest.approx((0.7 - half, 0.7 + half))
    assert systems.sure_range(values[:4]) == (0.5, 0.8)
    assert systems.cut_interval([0.5, 0.5, 0.5, 1.0, 1.0]) == pytest.approx((0.36, 1.0), abs=5e-3)
    assert systems.cut_interval([0.5, 0.5, 0.5, 0.0, 0.0]) == pytest.approx((0.0, 0.64), abs=5e-3)
    alone = [
        *ended({cell("fedavg", "mean", "none"): 0.5}),
        *ended({cell("qsgd", "mean", "none"): 0.5}, 3),
    ]
    assert systems.sureness(alone, "Bar") == "Bar: lowest to highest of 1 to 3 seeds."
    for seeds, said in (
        (5, "Bar: 95 % interval of the mean over 5 seeds (Student's t)."),
        (4, "Bar: lowest to highest of 4 seeds."),
    ):
        table = ended({cell("fedavg", "mean", "none"): 0.5}, seeds)
        assert systems.sureness(table, "Bar") == said
    both = [*ended({cell("fedavg", "mean", "none"): 0.5}, 5), *table]
    mixed = "mean over 4 to 5 seeds (Student's t), of fewer than 5 the lowest to the highest."
    assert systems.sureness(both, "Bar").endswith(mixed)


def drawn_at(line: Any) -> tuple[list[float], list[float]]:
    """Where the points of a line are."""
    xs, ys = line.get_data()
    return [round(float(x), 3) for x in xs], [round(float(y)) for y in ys]


def lines_of(axes: Axes) -> dict[str, list[float]]:
    """Colour and marker of every line, and its heights."""
    return {f"{line.get_color()} {line.get_marker()}": drawn_at(line)[1] for line in axes.lines}


def test_an_attack_has_the_colour_of_its_name_in_every_panel_and_the_worst_is_thick() -> None:
    figure = rounds.compose(small())
    first, second = figure.axes  # the best worst case first: signsgd + median
    signs = style.attack_signs(["sign-flip", "dyn-opt"])
    flip, opt = (" ".join(signs[name]) for name in ("sign-flip", "dyn-opt"))
    assert lines_of(first) == {f"{style.INK} o": [10.0, 80.0], flip: [10.0, 72.0]}
    widths = {line.get_color(): line.get_linewidth() for line in second.lines}
    assert [widths[signs[name][0]] for name in ("dyn-opt", "sign-flip")] == [rounds.THICK_LINE, 1.6]
    assert lines_of(second) == {
        f"{style.INK} o": [10.0, 96.0],
        opt: [10.0, 20.0],
        flip: [10.0, 91.0],
    }
    assert {"worst 72.0 %: sign-flip", "worst 20.0 %: dyn-opt"} <= set(words(figure))
    assert first.get_ylim() == second.get_ylim()
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim()[0] < 1 < 2 < first.get_xlim()[1]  # its rounds
    # bands of the clean run and of the worst one only
    assert [len(axes.collections) for axes in figure.axes] == [2, 2]


# accuracy against bits


def test_a_point_is_the_worst_case_at_the_bits_of_both_directions() -> None:
    signs, floats = bits.points(small())
    assert [point.system.name for point in (signs, floats)] == ["signsgd + median", "fedavg + mean"]
    assert (signs.bits, signs.accuracy, signs.clean) == pytest.approx((33, 72, 80))
    assert (floats.bits, floats.accuracy, floats.clean) == pytest.approx((64, 20, 96))
    assert (signs.low, signs.high) == pytest.approx((70, 74))  # of three seeds


def test_all_points_lie_inside_the_panel_and_hollow_ones_are_named_if_there_are_any() -> None:
    figure = bits.compose(small())
    (axes,) = figure.axes
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    for point in bits.points(small()):
        assert left < point.bits < right
        assert low < min(point.low, point.clean or 0) < max(point.high, point.clean or 0) < high
    assert "no attack" in words(figure)
    attacked = [row for row in small() if not row.cell.clean]
    assert "no attack" not in words(bits.compose(attacked))


@pytest.mark.slow
def test_names_stand_beside_few_points_and_numbers_beside_many() -> None:
    few = words(bits.compose(small()))
    assert "signsgd + median" in few
    figure = bits.compose(crowd(14, 1))
    many = words(figure)
    assert {str(n) for n in range(1, 15)} <= {n for text in many for n in text.split(", ")}
    caption = figure.texts[2].get_text().splitlines()
    assert f"1 {LONG.replace(',', ', ')} + trimmed-mean, " in caption[2]
    assert [line.split()[0] for line in caption if line[0].isdigit()][-1] == "14"
    # points that lie on each other share their numbers
    table = ended({cell("fedavg", f"multi-krum:f={i}", "none"): 0.5 for i in range(14)})
    assert any(text.startswith("1, 2, 3, 4,") for text in words(bits.compose(table)))


def test_the_front_goes_up_in_steps_and_ends_at_the_right() -> None:
    corners = [(1.0, 50.0), (2.0, 90.0)]
    assert bits.front([(2.0, 90.0), (1.5, 40.0), (1.0, 50.0)]) == [2, 0]
    assert bits.steps(corners, 5.0)[:3] == [
        ((1.0, 50.0), (2.0, 50.0)),
        ((2.0, 50.0), (2.0, 90.0)),
        ((2.0, 90.0), (5.0, 90.0)),
    ]
    axes = panel()
    bits.draw_front(axes, corners)
    assert drawn_at(axes.lines[0]) == ([1.0, 2.0, 5.0], [50, 90, 90])
    assert axes.lines[0].get_drawstyle() == "steps-post"


def test_a_system_that_nobody_attacked_is_on_the_front_only_where_nobody_was_attacked() -> None:
    def front(table: Sequence[summary.Row]) -> list[float]:
        (axes,) = bits.compose(table).axes
        (steps,) = [line for line in axes.lines if line.get_drawstyle() == "steps-post"]
        return drawn_at(steps)[1]

    spared = ended({cell("fedavg", "median", "none"): 0.99})
    assert front(spared) == [99, 99]
    assert front([*small(), *spared]) == front(small()) == [72, 72]


# labels


def panel() -> Axes:
    """A panel five inches wide and three high, in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3), dpi=72)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 5), ylim=(0, 3))
    return axes


spots = st.lists(st.tuples(st.floats(0.2, 4.8), st.floats(0.2, 2.8)), min_size=1, max_size=9)


@given(spots)
@settings(max_examples=25, derandomize=True, deadline=None)
def test_no_label_overlaps_another_or_a_point_or_leaves_the_panel(
    found: list[tuple[float, float]],
) -> None:
    from matplotlib.text import Text

    axes = panel()
    labels = place_labels(axes, found, ["a label"] * len(found), [((2.0, 1.0), (2.0, 2.0))])
    for label in filter(None, labels):
        label.get_window_extent()  # moves its text beside the point
    boxes = [Text.get_window_extent(label) for label in labels if label]
    assert boxes
    wall = axes.transData.transform([(2.0, 1.0), (2.0, 2.0)])
    for box in boxes:
        assert 0 <= box.x0 < box.x1 <= 360
        assert 0 <= box.y0 < box.y1 <= 216
        assert not (box.x0 < wall[0, 0] < box.x1 and box.y0 < wall[1, 1] and wall[0, 1] < box.y1)
        for x, y in axes.transData.transform(found):
            assert not (box.x0 < x < box.x1 and box.y0 < y < box.y1)
    for one, other in combinations(boxes, 2):
        assert not one.overlaps(other)


def test_a_label_beside_its_point_has_no_line_and_one_without_room_is_left_out() -> None:
    axes = panel()
    (near,) = place_labels(axes, [(1.0, 0.5)], ["near"])
    assert near is not None
    assert near.arrow_patch is None
    assert near.get_window_extent().x0 > 72 + 6  # on the right of its point
    assert place_labels(axes, [(1.0, 0.5)], ["too long" * 20]) == [None]
    walls = [((0.0, y), (5.0, y)) for y in (0.35, 0.5, 0.65)]
    (far,) = place_labels(axes, [(1.0, 0.5)], ["far"], walls)
    assert far is not None
    assert far.arrow_patch is not None
    assert place_labels(axes, [(1.0, 0.5)], ["far"], walls, lines=False) == [None]
    # beside a point at the upper end of the panel there is room below it only
    sides = [((0.0, 2.9), (2.4, 2.9)), ((2.6, 2.9), (5.0, 2.9))]
    (below,) = place_labels(axes, [(2.5, 2.9)], ["below"], sides)
    assert below is not None
    assert below.get_window_extent().y1 < 2.9 * 72


# heat maps


def test_a_map_has_a_row_a_defense_and_says_what_was_not_run() -> None:
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    lasts = {"none": 0.9, "dyn-opt": 0.3, "sign-flip": 0.4}
    found = {cell("fedavg", "mean", attack): last for attack, last in lasts.items()}
    table = ended(found | {cell("fedavg", "median", "sign-flip"): 0.8})
    (one,) = heatmap.maps(table)
    assert one.name == "fedavg"
    assert {rule: list(inside) for rule, inside in one.defenses.items()} == {
        "median": ["sign-flip"],
        "mean": ["none", "dyn-opt", "sign-flip"],
    }
    figure = heatmap.compose(table)
    said = words(figure)
    assert said.count("n/a") == 2
    assert "worst case" in said
    assert (said.count("30.0"), said.count("80.0")) == (2, 2), "in its column, and in the last"
    assert {"90.0", "30.0", "40.0", "80.0"} <= set(said)
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert sum(bool(box.get_hatch()) for box in boxes) == 2
    framed = [box for box in boxes if to_hex(box.get_edgecolor()) == style.WORST]
    assert len(framed) == 2  # dyn-opt of mean, sign-flip of median
    dark = next(t for t in drawn(figure) if t.get_text() == "30.0")
    bright = next(t for t in drawn(figure) if t.get_text() == "90.0")
    assert (dark.get_color(), bright.get_color()) == ("white", "black")
    # maps are told apart by mechanism and varied fields
    scenario = Scenario(attack="dyn-opt", defense="mean")
    updates = ({"malicious": 0.1}, {"malicious": 0.2}, {"mechanism": NOISY + "1"})
    varied = [Cell(scenario.model_copy(update=fields), ("malicious",)) for fields in updates]
    assert [one.name for one in heatmap.maps(ended(dict.fromkeys(varied, 0.5)))] == [
        "fedavg; malicious 0.1",
        "fedavg; malicious 0.2",
        f"fedavg + {NOISY}1; malicious 0.2",
    ]


def test_every_number_can_be_read_on_its_colour() -> None:
    for percent in range(101):
        colour = heatmap.face(percent / 100)
        light = heatmap.luminance(colour)
        on = {"white": 1.0, "black": 0.0}[heatmap.on(colour)]
        contrast = (max(light, on) + 0.05) / (min(light, on) + 0.05)
        assert contrast >= 4.5, percent
    ladder = [heatmap.luminance(heatmap.face(share / 20)) for share in range(21)]
    assert ladder == sorted(ladder)


# attack impact


def test_the_impact_is_over_the_seeds_that_both_have() -> None:
    clean, attacked = cell("fedavg", "mean", "none"), cell("fedavg", "mean", "dyn-opt")
    found = {
        clean: [record(clean, seed, (x,)) for seed, x in enumerate((0.9, 0.8, 0.7))],
        attacked: [record(attacked, seed, (x,)) for seed, x in ((1, 0.5), (2, 0.6), (3, 0.0))],
    }
    (system,) = systems.systems(rows(found))
    (one,) = bars.impacts(system)
    assert one.value == pytest.approx(20.0)  # of 30 and 10
    assert one.ends == pytest.approx((10.0, 30.0))
    assert "of 2 paired seeds" in " ".join(words(bars.compose(rows(found))))


def test_bars_begin_at_zero_and_have_the_colours_of_their_attacks() -> None:
    figure = bars.compose(small())
    (axes,) = figure.axes
    from matplotlib.colors import to_hex
    from matplotlib.patches import Rectangle

    found = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    drawn = [(round(bar.get_width(), 6), to_hex(bar.get_facecolor())) for bar in found]
    # signsgd: 80 - 72; fedavg: 96 - 20 and 96 - 91
    shown = [(width, colour) for width, colour in drawn if colour != style.SHADE]
    flip, opt = (sign[0] for sign in style.attack_signs(["sign-flip", "dyn-opt"]).values())
    assert shown == [(8.0, flip), (76.0, opt), (5.0, flip)]
    bold = [text.get_text() for text in axes.texts if text.get_color() == style.WORST]
    assert bold == ["8.0", "76.0"]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["signsgd + median", "fedavg + mean", "8.0", "76.0", "5.0"]
    # an attack that helps has a bar to the left
    lasts = {cell("fedavg", "mean", "none"): 0.5, cell("fedavg", "mean", "sign-flip"): 0.6}
    (axes,) = bars.compose(ended(lasts)).axes
    assert axes.get_xlim()[0] < -10.0
    assert [text.get_text() for text in axes.texts] == ["fedavg + mean", "-10.0"]


# accuracy under every attack


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 12])
def test_no_text_of_the_chart_of_survival_is_cut_or_overlaps_another(count: int) -> None:
    figure = bars.survival(crowd(count), "A long title " * 12, "and what was run, " * 12)
    legible(figure)
    boxes = [(text.get_text(), box) for text, box in drawn(figure).items()]
    panel, sent = (axes.get_window_extent() for axes in figure.axes[:2])
    assert max(box.x1 for text, box in boxes if "worst" in text and box.y0 > panel.y0) < sent.x0
    assert panel.width > 3.5 * figure.dpi


def test_the_chart_of_survival_has_bars_of_bits_and_a_column_if_any_system_has_an_epsilon() -> None:
    plain = cell("fedavg", "mean", "none")
    private = cell("fedavg", "mean", "none", f"{NOISY}0.2")
    found = {
        plain: [record(plain, 0, (0.1, 0.9), (8.0, 32.0))],
        private: [record(private, 0, (0.1, 0.5), (2.0, 32.0), epsilon=2.5)],
    }
    figure = bars.survival(rows(found), "title", "what was run")
    accuracy, sent, spent = figure.axes
    widths = [bar.get_path().get_extents(bar.get_patch_transform()).width for bar in sent.patches]
    assert widths == [8.0, 2.0]
    assert [text.get_text() for text in sent.texts] == ["8.00", "2.00"]
    assert [text.get_text() for text in spent.texts] == ["n/a", "2.50"]
    assert list(accuracy.get_xticks()) == [0, 20, 40, 60, 80, 100]
    alone = rows({plain: found[plain]})
    assert len(bars.survival(alone, "title", "what was run").axes) == 2


def test_the_chart_of_survival_marks_the_worst_case_of_each_system() -> None:
    accuracies, sent = bars.survival(small(), "Title", "subtitle").axes
    numbers = [text.get_text() for text in accuracies.texts if text.get_text()[0].isdigit()]
    assert numbers == ["80.0", "72.0 ◀ worst", "96.0", "20.0 ◀ worst", "91.0"]
    assert [text.get_text() for text in sent.texts] == ["1.000", "32.00"]
    clean = bars.survival(ended({cell("fedavg", "mean", "none"): 0.5}), "Title", "")
    assert [text.get_text() for text in clean.axes[0].texts] == ["fedavg + mean", "50.0"]


# accuracy against epsilon


def test_a_line_is_a_mechanism_over_its_noise() -> None:
    (line,) = epsilon.lines(noisy())
    assert (line.panel, line.name) == ("fedavg", "dp-fedavg:clip=1.0 + mean")
    assert sorted(system.shown["epsilon"] or 0.0 for system in line.systems) == [0.0, 8.0, 200.0]
    assert line.bare is not None
    assert line.bare.shown.accuracy == pytest.approx(0.6)
    assert epsilon.quiet("mechanism", "not-here:z=1,clip=2") == "not-here:z=1,clip=2"
    assert epsilon.quiet("mechanism", "noisy-sign:z=2.0") == "noisy-sign"


def test_what_has_no_finite_epsilon_is_in_a_strip_of_its_own() -> None:
    figure = epsilon.compose(noisy())
    said = " ".join(words(figure))
    assert "ε at δ = 1e-05, per client, replace-one, before who sees the messages." in said
    (axes,) = figure.axes
    styles: dict[str, list[tuple[list[float], list[float]]]] = {}
    for line in axes.lines:
        if drawn_at(line)[0]:
            styles.setdefault(str(line.get_linestyle()), []).append(drawn_at(line))
    eight, many = round(math.log10(8), 3), round(math.log10(200), 3)
    assert styles["-"] == [([eight, many], [30, 50])]  # worst cases, by epsilon
    assert styles["--"] == [([eight, many], [50, 70])]
    assert sorted(y for _, (y,) in styles["None"]) == [60, 60, 80, 90]
    assert all(x > many + 0.05 for (x,), _ in styles["None"])
    assert [text.get_text() for text in axes.texts][-2:] == ["no finite ε", "no mechanism"]


# the page


def over_shares(**fields: Any) -> list[summary.Row]:
    """One system under one attack, at three shares of malicious clients; two seeds, two rounds."""
    found: Results = {}
    for owned, accuracy in ((0.0, 0.9), (0.1, 0.8), (0.3, 0.4)):
        for attack in ("none", "sign-flip") if owned else ("none",):
            scenario = Scenario(attack=attack, defense="median", malicious=owned, **fields)
            of = Cell(scenario, ("malicious", *(["declared"] if "declared" in fields else [])))
            last = accuracy if attack != "none" else 0.9
            # in a cohort of ten: as many as there should be, and one more in the last round
            counts = [round(10 * owned), round(10 * owned) + (owned > 0)]
            found[of] = [
                sample_record(
                    scenario.model_copy(update={"seed": seed}),
                    [
                        sample_round(step, last - 0.1 * seed, clients=list(range(10)), malicious=n)
                        for step, n in enumerate(counts)
                    ],
                    {},
                )
                for seed in (0, 1)
            ]
    return rows(found)


def test_a_line_of_an_attack_goes_over_the_realised_share_from_the_run_without_malice() -> None:
    table = over_shares()
    clean, attacked = share.lines(table)
    assert (clean.system, attacked.system) == ("fedavg + median", "fedavg + median")
    assert (clean.attack, attacked.attack) == ("none", "sign-flip")
    # the mean of 1 and 2, and of 3 and 4, of ten rows
    assert [x for x, _ in attacked.points] == pytest.approx([0, 0.15, 0.35])
    assert [row.accuracy for _, row in attacked.points] == pytest.approx([0.85, 0.75, 0.35])
    assert [row.cell.attack for _, row in attacked.points] == ["none", "sign-flip", "sign-flip"]
    assert [x for x, _ in clean.points] == pytest.approx([0, 0.15, 0.35])
    # a declared share that stays is no other system
    assert [line.system for line in share.lines(over_shares(declared=0.3))] == [clean.system] * 2
    assert share.shows(table)
    assert not share.shows(noisy())  # at one share only
    figure = share.compose(table)
    legible(figure)
    (axes,) = (axes for axes in figure.axes if axes.get_visible())
    assert "malicious rows, %" in words(figure)
    line = next(line for line in axes.lines if np.size(line.get_xdata()) == 3)
    assert list(line.get_ydata()) == pytest.approx([85, 85, 85])  # type: ignore[arg-type]
    assert len(axes.collections) == 5  # an interval for each cell, none twice
    spread = [np.asarray(each.get_paths()[0].vertices)[:, 1] for each in axes.collections]
    around = [sum(ends) / 2 for ends in spread]
    assert sorted(around) == pytest.approx([35, 75, 85, 85, 85])  # in percent, about their means
    shown = [" ".join(one.split()) for one in sketched("share", table, 80, "ascii")]
    line_of = re.compile(r"sign-flip \|? ?35.0 \|? ?#+\.+ \|? ?35.0")
    assert any(map(line_of.fullmatch, shown)), shown


def test_a_run_without_any_rows_has_no_malicious_ones() -> None:
    # Poisson sampling of few clients may draw nobody in any round.
    scenario = Scenario(attack="sign-flip", malicious=0.1, sampling="poisson")
    nobody = [sample_round(step, 0.5, clients=[], malicious=0) for step in (0, 1)]
    empty = sample_record(scenario, nobody, {})
    assert share.realised(empty) == 0.0
    table = rows({Cell(scenario): [empty]})
    assert not share.shows(table)
    assert [line.points[0][0] for line in share.lines(table)] == [0.0]


def in_cohorts() -> list[summary.Row]:
    """One system with and without an attack, two seeds of four rounds of ten rows each.

    Accuracies and malicious rows of each round are hand-made; the second seed has no look after
    its second round.
    """
    played: dict[str, list[list[tuple[float | None, int]]]] = {
        "none": [
            [(0.5, 2), (0.6, 1), (0.7, 5), (0.8, 1)],
            [(0.5, 1), (None, 5), (0.7, 1), (0.8, 1)],
        ],
        "sign-flip": [
            [(0.5, 5), (0.6, 1), (0.1, 5), (0.5, 1)],
            [(0.5, 1), (None, 5), (0.3, 5), (0.1, 5)],
        ],
    }
    found: Results = {}
    for attack, seeds in played.items():
        scenario = Scenario(attack=attack, defense="median", malicious=0.2)
        found[Cell(scenario)] = [
            sample_record(
                scenario.model_copy(update={"seed": seed}),
                [
                    sample_round(step, accuracy, clients=list(range(10)), malicious=n)
                    for step, (accuracy, n) in enumerate(looks)
                ],
                {},
            )
            for seed, looks in enumerate(seeds)
        ]
    return rows(found)


def test_a_curve_over_cohorts_is_the_mean_change_of_the_rounds_that_had_that_share() -> None:
    table = in_cohorts()
    clean, attacked = cohort.lines(table)
    assert (clean.attack, attacked.attack) == ("none", "sign-flip")
    # of the first seed three changes, of the second only the last: it has no look after its second
    assert [x for x, _ in attacked.rounds] == pytest.approx([0.1, 0.5, 0.1, 0.5])
    assert [y for _, y in attacked.rounds] == pytest.approx([0.1, -0.5, 0.4, -0.2])
    assert np.array(attacked.curve) == pytest.approx(np.array([[0.1, 0.25], [0.5, -0.35]]))
    assert np.array(clean.curve) == pytest.approx(np.array([[0.1, 0.1], [0.5, 0.1]]))
    assert (clean.count(0.1), clean.count(0.5), clean.count(0.2)) == (3, 1, 0)
    assert cohort.shows(table)
    assert not cohort.shows(noisy())  # all of its rounds have one share
    # runs with other shares of malicious clients, as stratified cohorts are varied, are one line
    both = cohort.lines(over_shares())
    assert [line.attack for line in both] == ["none", "sign-flip"]
    assert [x for x, _ in both[1].curve] == pytest.approx([0.2, 0.4])
    assert [x for x, _ in both[0].curve] == pytest.approx([0, 0.2, 0.4])


def test_a_picture_of_cohorts_has_a_mark_for_each_share_and_a_dot_for_each_round() -> None:
    figure = cohort.compose(in_cohorts())
    legible(figure)
    (axes,) = (axes for axes in figure.axes if axes.get_visible())
    assert {"malicious rows of the round, %", "change of accuracy, points"} <= set(words(figure))
    marks = [line.get_ydata() for line in axes.lines if line.get_linestyle() in ("-", "--")]
    assert [list(ys) for ys in marks[:-1]] == [  # type: ignore[arg-type]
        pytest.approx([10, 10]),
        pytest.approx([25, -35]),
    ]
    across = [np.asarray(line.get_xdata()) for line in axes.lines if line.get_linestyle() == "-"]
    # attacks stand beside each other: 1.2 % of the axis from 10 to 50 apart
    assert across[0] == pytest.approx(np.array([10.24, 50.24]))
    dots = [line for line in axes.lines if line.get_marker() == "."]
    assert [np.size(line.get_xdata()) for line in dots] == [4, 4]
    assert axes.get_ylim() == (-50, 40)
    shown = [" ".join(one.split()) for one in sketched("cohort", in_cohorts(), 80, "ascii")]
    assert any(re.fullmatch(r"sign-flip \|? ?50.0 \|? ?2 \|? ?-35.0", one) for one in shown), shown


def test_the_style_file_has_the_palette() -> None:
    from matplotlib import rcParams

    with style.look():
        assert rcParams["axes.prop_cycle"].by_key()["color"] == list(style.COLOURS)
        assert rcParams["text.color"] == style.INK
        assert rcParams["xtick.color"] == rcParams["ytick.color"] == style.FAINT
        assert rcParams["grid.color"] == style.RULE


def test_no_other_file_of_ours_names_a_colour_of_the_palette_or_saves_a_figure() -> None:
    root = Path(style.__file__).parents[1]
    palette = [*style.COLOURS, style.INK, style.FAINT, style.RULE, style.WORST]
    for path in (*root.rglob("*.py"), *(root.parent / "benchmarks").glob("*.py")):
        if path.name != "style.py":
            text = path.read_text().lower()
            assert not [colour for colour in palette if colour in text], path
            assert "savefig" not in text, path


def test_a_wrapped_text_fits_and_loses_nothing_or_says_that_it_is_cut() -> None:
    from matplotlib.figure import Figure

    text = f"{LONG} + index-concentration:share=0.123456789; partition dirichlet:beta=0.3 and more"
    for width, size in product((2.0, 9.5), (8.0, 9.5, 15.0)):
        with style.look():
            lines = layout.wrap(text, width, size, most=99)
            drawn_lines = Figure().text(0, 0, "\n".join(lines), fontsize=size)
            # letters of matplotlib before 3.11 lie on whole pixels, up to half a percent wider
            assert drawn_lines.get_window_extent().width <= 1.105 * width * 160
        assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    for text in ("a name, " * 50, "n" * 400):
        *_, last = lines = layout.wrap(text, 1.0, 9, most=3)
        assert (len(lines), last[-1]) == (3, "…")


def test_a_figure_that_is_too_tall_for_a_file_is_one_error() -> None:
    with pytest.raises(ConfigError, match=r"at most 400 inches tall, got 40[0-9]; plot fewer rec"):
        layout.page(layout.Words("title", "")).fit(400.0)


def test_a_legend_has_as_many_columns_as_fit() -> None:
    with style.look():
        keys = [style.Mark("x" * n, style.INK, "o") for n in (20, 20, 80, 5)]
        few = layout.page(layout.Words("title", ""), keys[:2]).figure.legends[0]
        many = layout.page(layout.Words("title", ""), keys).figure.legends[0]
        assert few.get_window_extent().height < many.get_window_extent().height
        assert max(many.get_window_extent().x1, few.get_window_extent().x1) <= 9.8 * 160


def test_a_legend_of_several_rows_reads_from_left_to_right() -> None:
    with style.look():
        keys = [style.Mark(f"{n:>30} %", style.INK, "o") for n in range(6)]
        figure = layout.page(layout.Words("title", ""), keys).figure
        figure.draw_without_rendering()
        boxes = {t.get_text(): t.get_window_extent() for t in figure.legends[0].get_texts()}
    read = sorted(boxes, key=lambda text: (-round(boxes[text].y0), boxes[text].x0))
    assert len({round(box.y0) for box in boxes.values()}) > 1
    assert read == [key.label for key in keys]


def test_a_png_has_the_dots_that_the_inches_say(tmp_path: Path) -> None:
    for figure in (heatmap.compose(small()), bars.survival(small(), "Title", "subtitle")):
        style.save(figure, tmp_path / "a.png")
        data = (tmp_path / "a.png").read_bytes()
        assert len(data) > 20_000
        dots = tuple(int(160 * inches) for inches in figure.get_size_inches())
        assert struct.unpack(">II", data[16:24]) == dots


# sketches


def sketched(
    kind: str,
    table: list[summary.Row],
    width: int,
    encoding: str = "utf-8",
    view: layout.View = layout.PLAIN,
) -> list[str]:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=out, width=width, force_terminal=False).print(Sketch(kind, table, view))
    out.flush()
    return raw.getvalue().decode(encoding).splitlines()


@pytest.mark.edges("rounds", "bits", "heatmap", "cohort")
@pytest.mark.parametrize("kind", KINDS)
def test_a_sketch_is_as_wide_as_the_terminal(kind: str) -> None:
    table = crowd(5, 5)
    # ASCII raises at the first sign that it has not
    for width, encoding in product((50, 80, 120), ("utf-8", "ascii")):
        lines = sketched(kind, table, width, encoding)
        assert max(map(len, lines)) <= width
        assert not any("…" in line or "?" in line for line in lines)
        assert len(lines) > 10


def test_a_sketched_map_goes_on_below_where_its_columns_do_not_fit_and_cuts_no_name() -> None:
    names = ["sign-flip", "mimic", "alie", "ipm", "min-max", "min-sum", "noise"]
    lines = sketched("heatmap", tried({"fedavg": {"none": 0.9} | dict.fromkeys(names, 0.5)}), 60)
    read = " ".join(lines).split()
    assert set(names) <= set(read)
    assert [line.split()[:2] for line in lines if line.startswith("mean ")] == [
        ["mean", "90.0"],
        ["mean", "50.0"],
    ]


def test_a_long_run_is_thinned_and_keeps_its_ends_and_a_bar_is_as_long_as_its_share() -> None:
    lines = [" ".join(one.split()) for one in sketched("rounds", small(), 80, "ascii")]
    assert "none (clean) | 18 |80.0" in lines  # digits, no arrows; in UTF-8: tests/frozen
    shares = [i / 100 for i in range(101)]
    assert spark(shares, 6, plain=True) == "024689"
    assert spark(shares[:5], 6, plain=True) == "00000"
    assert bar(1.2, 4, plain=False) == "████"
    for width in (8, 9, 27, 40):
        head = scale(width)
        assert len(head) == width
        assert abs(head.index("50") + 0.5 - (width - 1) / 2) <= 1


def test_a_sketch_of_epsilon_is_ordered_and_ends_without_a_mechanism() -> None:
    lines = [" ".join(one.split(" █")[0].split()) for one in sketched("epsilon", noisy(), 100)]
    first = lines.index("fedavg + dp-fedavg:clip=1.0 + mean")
    assert lines[first + 1 :] == [
        "8.00 50.0 30.0",
        "200.00 70.0 50.0",
        "no finite ε 80.0 60.0",
        "no mechanism 90.0 60.0",
    ]


def spaced(lines: Sequence[str]) -> list[str]:
    """The lines of a sketch without its bars, with single spaces."""
    return [" ".join(re.sub("[█░]", "", line).split()) for line in lines]


def test_a_sketch_of_shares_has_a_line_for_each_share_with_the_accuracy_there() -> None:
    lines = sketched("share", over_shares(), 80)
    shown = spaced(lines)
    first = shown.index("fedavg + median")
    assert shown[first - 3 : first - 1] == ["system rows last", "attack % 0 50 100 %"]
    assert shown[first + 1 :] == [
        *("none (clean) 0.0 85.0", "none (clean) 15.0 85.0", "none (clean) 35.0 85.0"),
        *("sign-flip 0.0 85.0", "sign-flip 15.0 75.0", "sign-flip 35.0 35.0"),
    ]
    bars = [line.count("█") / (line.count("█") + line.count("░")) for line in lines[first + 1 :]]
    assert bars == pytest.approx([0.85, 0.85, 0.85, 0.85, 0.75, 0.35], abs=0.02)


def test_a_sketch_of_impact_has_the_attacks_that_were_chosen() -> None:
    chosen = layout.View(attacks=("sign-flip",))
    shown = spaced(sketched("impact", small(), 80, view=chosen))
    assert [line for line in shown if line.startswith(("sign-flip", "dyn-opt"))] == [
        "sign-flip ◀ worst 8.0",
        "sign-flip 5.0",
    ]


def test_a_sketch_of_bits_has_those_that_were_chosen() -> None:
    up = layout.View(bits="uplink")
    shown = spaced(sketched("bits", small(), 80, view=up))
    assert "signsgd + median 1.000 80.0 72.0 *" in shown
    assert "fedavg + mean 32.00 96.0 20.0" in shown
    assert shown[-1] == "Bits up, per parameter. *: nobody is better in both."
    assert spaced(sketched("bits", small(), 80))[-1].startswith("Bits up and down, per parameter.")


def test_a_sketch_of_bits_stars_the_systems_that_are_on_the_front_of_the_picture() -> None:
    table = [*small(), *ended({cell("fedavg", "median", "none"): 0.99})]  # which nobody attacked
    starred = [line for line in spaced(sketched("bits", table, 80)) if line.endswith(" *")]
    assert starred == ["signsgd + median 33.00 80.0 72.0 *"]


def test_a_sketch_says_that_attacks_are_missing_and_marks_no_other_line_than_the_lowest() -> None:
    played = {row.cell: list(row.records) for row in small()}
    absent = cell("fedavg", "mean", "alie")
    text = " ".join(sketched("rounds", summary.rows([*played, absent], played), 80))
    assert "1 of 3 attacks of fedavg + mean are missing" in text
    assert "are missing" not in " ".join(sketched("rounds", small(), 80))
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system="standard")
    console.print(Sketch("rounds", small()))
    assert isinstance(console.file, io.StringIO)
    red = [line for line in console.file.getvalue().splitlines() if "\x1b[1;31m" in line]
    assert len(red) == 2
    assert all("◀ worst" in line for line in red)


def test_pictures_start_without_heavy_libraries() -> None:
    heavy = {"torch", "matplotlib", "scipy"}
    code = f"import sys, fedbench.figures.kinds; sys.exit(not {heavy}.isdisjoint(sys.modules))"
    subprocess.run([sys.executable, "-c", code], check=True)


# names that are longer than their place


@pytest.mark.parametrize("width", [None, 4.0])
def test_systems_that_differ_at_the_end_of_their_names_are_told_apart(width: float | None) -> None:
    z = [f"{NOISY}{i}.0" for i in range(3)]
    lasts = {
        cell("fedavg", rule, attack, mechanism): 0.5
        for rule, mechanism, attack in product(("mean", "median"), z, ("none", "ipm"))
    }
    figure = heatmap.compose(ended(lasts), layout.View(width=width))
    legible(figure)
    titles = {" ".join(axes.get_title(loc="left").split()) for axes in figure.axes}
    assert titles == {f"fedavg + {name.replace(',', ', ')}" for name in z}
    found = drawn(figure)
    heads = [box.y0 for text, box in found.items() if text.get_rotation()]
    highest = max(box.y1 for text, box in found.items() if "dp-fedavg" in text.get_text())
    assert highest <= min(heads)  # heads stand above all lines of the first title
    figure = bars.compose(ended(lasts), layout.View(width=width))
    legible(figure)
    (axes,) = figure.axes
    text = " ".join(text.get_text() for text in axes.texts)
    for rule, name in product(("mean", "median"), z):
        assert f"fedavg + {name.replace(',', ', ')} + {rule} " in text


def test_bars_lie_below_all_lines_of_the_name_of_their_system() -> None:
    lanes = {
        "a long name " * 6: [bars.Lane("ipm", 1.0, "1")] * 2,
        "short": [bars.Lane("x", 2.0, "2")],
    }
    first, second = bars.stacked(lanes, 2.0)
    assert len(first.name) == 3
    assert " ".join(first.name).split() == ("a long name " * 6).split()
    assert [y for y, _ in first.placed] == [3.5, 4.5]
    assert second.top == pytest.approx(5.5 + bars.GROUP_GAP)
    assert [y for y, _ in second.placed] == [second.top + 1]
    lowest = 4.5 + 0.5  # its lower end, in lanes
    assert bars.height([first]) == pytest.approx(bars.LANE * (lowest + bars.GROUP_GAP / 2))


# what a reader may choose


def test_one_attack_has_one_colour_and_its_variants_have_markers() -> None:
    alone = style.attack_signs(["alie:z=1.0"])
    beside = style.attack_signs(["dyn-opt", "alie:z=2.0", "alie:z=1.0", "unheard-of"])
    assert beside["alie:z=1.0"][0] == alone["alie:z=1.0"][0] == beside["alie:z=2.0"][0]
    assert beside["alie:z=1.0"][1] != beside["alie:z=2.0"][1]
    assert beside["unheard-of"] == style.attack_signs(["unheard-of"])["unheard-of"]


def test_every_attack_of_ours_has_a_colour_and_those_played_together_differ() -> None:
    import tomllib

    fixed = tomllib.loads(style.FIXED.read_text())["colours"]
    assert len(fixed) == len(style.ATTACKS)
    listed = [name for names in fixed for name in names]
    assert len(listed) == len(set(listed))
    assert max(map(len, fixed)) <= len(style.MARKERS)
    assert set(listed) == set(registry.names("attack")) - {"none"}
    for protocol in registry.names("protocol"):
        together = {name.partition(":")[0] for name in ensemble(protocol)} - {"none"}
        colours = [style.attack_signs([name])[name][0] for name in together]
        assert len(set(colours)) == len(together), protocol


@pytest.mark.edges("4.0-rounds", "4.0-bits", "4.0-heatmap")
@pytest.mark.parametrize(
    "kind", ["rounds", "bits", "heatmap", "impact", "share", "cohort", "epsilon"]
)
@pytest.mark.parametrize("width", [4.0, 7.0])
def test_a_picture_is_as_wide_as_was_asked_for_and_legible(kind: str, width: float) -> None:
    table = {"share": over_shares, "cohort": in_cohorts}.get(kind, noisy)()
    figure = KINDS[kind].compose(table, layout.View(width=width))
    assert figure.get_figwidth() == width
    legible(figure)


def tried(attacks: dict[str, dict[str, float]]) -> list[summary.Row]:
    """A protocol for each entry, and what each attack leaves of it with the mean."""
    return ended({cell(p, "mean", a): x for p, found in attacks.items() for a, x in found.items()})


def test_a_heat_map_has_the_columns_of_its_protocol_and_no_others() -> None:
    both = tried(
        {
            "fedavg": {"none": 0.9, "sign-flip": 0.5, "mimic": 0.4},
            "fsl": {"none": 0.9, "sign-flip": 0.5, "swap": 0.3},
        }
    )
    figure = heatmap.compose(both)
    said = words(figure)
    assert "n/a" not in said
    assert (said.count("mimic"), said.count("swap"), said.count("sign-flip")) == (1, 1, 2)
    same = tried({name: {"none": 0.9, "sign-flip": 0.5} for name in ("fedavg", "fsl")})
    assert words(heatmap.compose(same)).count("sign-flip") == 1  # above both maps


def test_a_narrow_heat_map_keeps_the_strongest_attacks_and_says_so() -> None:
    left = {"none": 0.9, "sign-flip": 0.8, "mimic": 0.2, "pga": 0.7, "auto": 0.3, "alie": 0.6}
    many = tried({"fedavg": left})
    whole = words(heatmap.compose(many))
    assert set(left) - {"none"} <= set(whole)
    narrow = words(heatmap.compose(many, layout.View(width=3.6)))
    assert {"mimic", "auto"} <= set(narrow)
    assert "sign-flip" not in narrow
    assert "that leave the least accuracy" in " ".join(narrow).replace("\n", " ")
    chosen = words(heatmap.compose(many, layout.View(attacks=("pga",))))
    assert {"pga", "none (clean)", "worst case"} <= set(chosen)
    assert not {"mimic", "alie"} & set(chosen)
    assert "20.0" in chosen  # the worst case is that of all attacks


def test_maps_with_heads_that_are_taller_than_a_narrow_page_have_room() -> None:
    # Each map has columns of its own, whose names are written above it in several lines.
    names = ("fedavg", "fsl", "signsgd", "fedpm")
    left = {
        protocol: {f"alie:z={z + 10 * j}.25,knows=all": 0.5 for j in range(3)}
        for z, protocol in enumerate(names)
    }
    many = tried({protocol: {"none": 0.9, **found} for protocol, found in left.items()})
    figure = heatmap.compose(many, layout.View(width=layout.NARROWEST))
    assert figure.get_figwidth() == layout.NARROWEST
    heights = [axes.get_position().height * figure.get_figheight() for axes in figure.axes]
    assert heights == pytest.approx([heatmap.LANE] * len(names), abs=0.02)


def test_impact_charts_show_chosen_attacks_or_the_strongest_of_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = tried({"fedavg": {"none": 0.9} | {f"attack-{i}": 0.9 - i / 20 for i in range(7)}})
    monkeypatch.setattr(bars, "MAX_BARS", 4)
    said = words(bars.compose(many))
    assert [name for name in said if name.startswith("attack-")] == [
        f"attack-{i}" for i in (3, 4, 5, 6)
    ]
    assert "The 4 strongest attacks of a system." in " ".join(" ".join(said).split())
    assert "attack-1" in words(bars.compose(many, layout.View(attacks=("attack-1",))))
    for absent in ("attack-900", "none"):
        with pytest.raises(ConfigError, match=rf"attacks must be one of .*got '{absent}'"):
            draw("impact", many, layout.View(attacks=(absent,)))


def test_a_chosen_attack_is_every_one_of_its_name_or_that_of_its_parameters() -> None:
    left = {"none": 0.9, "alie:z=1.0": 0.6, "alie:z=2.0": 0.5, "pga": 0.4}
    many = tried({"fedavg": left})
    chosen: dict[str, set[str]] = {
        "alie": {"alie:z=1.0", "alie:z=2.0"},
        "alie:z=1.0": {"alie:z=1.0"},
    }
    for name, shown in chosen.items():
        for kind in ("heatmap", "impact"):
            drawn_words = set(words(draw(kind, many, layout.View(attacks=(name,)))))
            assert drawn_words & set(left) - {"none"} == shown, (name, kind)


def test_a_kind_that_the_records_cannot_show_is_refused_with_what_they_lack() -> None:
    with pytest.raises(ConfigError, match="kind 'epsilon' needs a finite epsilon in the records"):
        draw("epsilon", small())
    with pytest.raises(ConfigError, match=r"kind must be one of rounds, .*got 'pie'"):
        draw("pie", small())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_system_has_a_panel_with_its_name_above(count: int) -> None:
    rules = [f"krum:f={i}" for i in range(count)]
    names = [f"fedavg + {rule}" for rule in rules]
    cells = product(enumerate(rules), ("none", "ipm"))
    lasts = {cell("fedavg", rule, attack): 0.9 - i / 20 for (i, rule), attack in cells}
    figure = rounds.compose(ended(lasts))
    visible = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in visible] == names
    assert [drawn_at(axes.lines[0])[1][-1] for axes in visible] == [
        90 - 5 * i for i in range(count)
    ]


def test_bits_are_up_and_down_or_up_only() -> None:
    of = cell("fedavg", "mean", "none")
    table = rows({of: [record(of, 0, (0.1, 0.5), (2.0, 32.0))]})
    assert [point.bits for point in bits.points(table)] == [34.0]
    up = layout.View(bits="uplink")
    assert [point.bits for point in bits.points(table, up)] == [2.0]
    said = " ".join(words(bits.compose(table, up)))
    assert "bits up, per parameter (logarithmic)" in said
    assert "what one client gets" not in said
    assert "Accuracy against uplink bits" in said
    with pytest.raises(ConfigError, match="bits must be total or uplink"):
        layout.View(bits="down")  # type: ignore[arg-type]


def test_the_shape_of_a_point_is_its_epsilon_and_the_legend_says_which() -> None:
    noisy = f"{NOISY}0.2"
    found: Results = {
        cell("fedavg", "mean", "none"): [record(cell("fedavg", "mean", "none"), 0, (0.1, 0.5))],
        cell("fedavg", "median", "none", noisy): [
            record(cell("fedavg", "median", "none", noisy), 0, (0.1, 0.4), epsilon=2.5)
        ],
        cell("fedavg", "krum", "none", noisy): [
            record(cell("fedavg", "krum", "none", noisy), 0, (0.1, 0.3), epsilon=39.0)
        ],
    }
    table = rows(found)
    assert [point.key.marker for point in bits.points(table)] == ["o", "D", "s"]
    said = words(bits.compose(table))
    assert {"no guarantee", "ε ≤ 10", "ε > 10"} <= set(said)
    alone = rows({c: r for c, r in found.items() if c.scenario.mechanism == "none"})
    assert "no guarantee" not in words(bits.compose(alone))
