"""The small drawings of an entry: bars of accuracy and curves over bits; no markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.leaderboard.entry import Entry, Interval, Point
from fedbench.leaderboard.score import is_clean
from fedbench.leaderboard.site.labels import Box
from fedbench.leaderboard.site.words import attack

FRAME = Box(30.0, 8.0, 248.0, 126.0)
WIDTH, HEIGHT = 256.0, 152.0


@dataclass(frozen=True)
class Bar:
    """An interval on an axis from 0 to 100.

    Args:
        mean: Where the bar ends.
        low: Where the whisker begins.
        high: Where the whisker ends.
    """

    mean: float
    low: float
    high: float


def bar(x: Interval) -> Bar:
    """In percent, cut where the axis ends."""
    return Bar(*(round(100 * min(max(part, 0.0), 1.0), 2) for part in (x.mean, x.low, x.high)))


@dataclass(frozen=True)
class Curve:
    """Accuracy over bits under one attack.

    Args:
        attack: Short.
        worst: Is this the attack that the score is about?
        line: Means, as points of an SVG polyline.
        band: Intervals, as points of an SVG polygon.
        clean: The line of the clean run, to compare; empty in its own drawing.
        dots: Where it was looked.
        end: The largest number of bits, which all drawings of an entry share.
    """

    attack: str
    worst: bool
    line: str
    band: str
    clean: str
    dots: list[tuple[float, float]]
    end: float


def curves(entry: Entry) -> list[Curve]:
    """One drawing a cell, all on the same axes."""
    cells, worst = entry.cells, entry.score.attack
    looks = {cell.attack: [point for point in cell.curve if point.bits > 0] for cell in cells}
    end = max((point.bits for points in looks.values() for point in points), default=0.0)
    clean = next((looks[cell.attack] for cell in cells if is_clean(cell.attack)), [])
    out = []
    for cell in cells:
        points = looks[cell.attack]
        if not points:
            continue
        dots = [_at(point, point.accuracy.mean, end) for point in points]
        high = [_at(point, point.accuracy.high, end) for point in points]
        low = [_at(point, point.accuracy.low, end) for point in reversed(points)]
        reference = [] if points is clean else [_at(p, p.accuracy.mean, end) for p in clean]
        out.append(
            Curve(
                attack=attack(cell.attack, entry),
                worst=cell.attack == worst,
                line=_path(dots),
                band=_path(high + low),
                clean=_path(reference),
                dots=dots,
                end=end,
            )
        )
    return out


def _at(point: Point, accuracy: float, end: float) -> tuple[float, float]:
    x = FRAME.left + point.bits / end * (FRAME.right - FRAME.left)
    y = FRAME.bottom - min(max(accuracy, 0.0), 1.0) * (FRAME.bottom - FRAME.top)
    return round(x, 1), round(y, 1)


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
