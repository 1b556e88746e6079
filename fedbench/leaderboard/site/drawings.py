"""Drawings of the pages: figures of matplotlib as SVG elements that follow the page's colours."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from fedbench.figures.bits import draw_front, front, log_bits, steps
from fedbench.figures.labels import place_labels
from fedbench.figures.style import BAR, COLOURS, FAINT, INK, RULE, WORST, Mark, rendered, styled
from fedbench.leaderboard.build import is_clean
from fedbench.leaderboard.site import words
from fedbench.results.aggregate import grouped
from fedbench.tables import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedbench.leaderboard.entry import Entry, Point
    from fedbench.leaderboard.site.views import BoardRow, RankedView

# Width and height of the view box, points of a text, and letters after which a name is cut.
SIZES = {"at-desk": (900, 420, 13, 24), "at-hand": (340, 360, 13, 14)}
CURVE = (256, 152, 11)
BITS = {"total": "up + down", "up": "up"}  # what bits may count
VARIABLES = {
    INK: "ink",
    FAINT: "soft",
    RULE: "rule",
    COLOURS[0]: "best",
    BAR: "edge",
    WORST: "worst",
    "#ffffff": "paper",
}
EMPTY = Markup('<svg class="curve"></svg>')
ALL_POINTS = "Worst-case accuracy over bits; every point is a link to its entry"


@styled
def scatter(view: RankedView, size: str, counted: str) -> Markup:
    """Draw accuracy in the worst case over bits; every point is a link to its entry.

    Bits are ``counted`` as in `BITS`. The step line joins the best of those on the Pareto front,
    which counts bits up and down; of bits up alone it joins the best of those with a rank.
    """
    width, height, points, letters = SIZES[size]
    drawn = [row for row in view.rows if row.score and 1e-6 < row.bits(counted) < 1e6]
    drawn.sort(key=lambda r: (not r.standing.pareto, -r.worst.mean, r.bits(counted), r.key))
    figure, axes = _panel(width, height, points, (40, 14, 44, 14))
    sent = [row.bits(counted) for row in drawn]
    ends = sent or [1.0, 64.0]
    axes.set(ylim=(0, 100), yticks=range(0, 101, 20), xlim=(min(ends) / 2, max(ends) * 2))
    axes.set_xlabel(f"bits per parameter, {BITS[counted]} (log scale)")
    log_bits(axes)
    axes.grid(False, axis="x")
    obstacles = []
    joined = [r for r in drawn if (r.standing.pareto if counted == "total" else r.standing.rank)]
    spots = [(row.bits(counted), 100 * row.worst.mean) for row in joined]
    if spots:
        corners = [spots[i] for i in front(spots)]
        draw_front(axes, corners, linestyle="-", linewidth=1.5)
        obstacles += steps(corners, axes.get_xlim()[1])
    for i, row in enumerate(drawn):
        low, high = (100 * min(max(x, 0.0), 1.0) for x in (row.worst.low, row.worst.high))
        obstacles.append(((sent[i], low), (sent[i], high)))
        _draw(axes, i, row, sent[i], low, high)
    names = cut_apart([row.name for row in drawn], letters)
    _name(axes, drawn, sent, names, obstacles, points)
    parts = _parts(figure)
    svg = _svg(width, height, f"scatter {size}", {"role": "group", "aria-label": ALL_POINTS})
    backdrop = ElementTree.SubElement(svg, "g", {"aria-hidden": "true"})
    backdrop.extend(leaf for owner, leaf in parts if not owner)
    for i, row in reversed(list(enumerate(drawn))):  # the best lie on top
        kind = "point best" if row.standing.pareto else "point"
        link = ElementTree.SubElement(svg, "a", {"class": kind, "href": row.href})
        link.set("data-entry", row.key)
        ElementTree.SubElement(link, "title").text = words.plain(_title(row, counted))
        for owner, leaf in parts:
            number, _, part = owner.partition(" ")
            if number == str(i):
                leaf.set("class", part)
                link.append(leaf)
    return _markup(svg)


def _title(row: BoardRow, counted: str) -> str:
    """Say everything that a point shows, in one line."""
    front = "; on the Pareto front" if row.standing.pareto else ""
    sent = f"{numbers.bits(row.bits(counted))} bits {BITS[counted]}"
    return (
        f"{row.name}: {words.spread(row.worst)} in the worst case, {sent}, "
        f"ε {words.epsilon(row.entry)}{front}"
    )


def _draw(axes: Axes, i: int, row: BoardRow, x: float, low: float, high: float) -> None:
    """Draw the interval and the marker of a row, named so that they can be found again."""
    best = row.standing.pareto
    colour = COLOURS[0] if best else BAR
    key = Mark("", colour, "D" if row.private else "o", hollow=not best)
    y = 100 * row.worst.mean
    interval: dict[str, Any] = {"color": colour, "linewidth": 1.25, "marker": "_"}
    axes.plot([x] * 2, [low, high], **interval, gid=f"{i} whisker", clip_on=False)
    axes.plot(x, y, marker="o", markersize=22, linestyle="", gid=f"{i} halo", clip_on=False)
    marker = key.look() | {"markersize": 10, "markeredgewidth": 1.75}
    axes.plot(x, y, **marker, gid=f"{i} sign", clip_on=False)


def _name(
    axes: Axes,
    drawn: Sequence[BoardRow],
    sent: Sequence[float],
    names: Sequence[str],
    obstacles: Sequence[Any],
    size: int,
) -> None:
    """Write the names of the points; those without room as labels that are hidden at first."""
    spots = [(x, 100 * row.worst.mean) for x, row in zip(sent, drawn, strict=True)]
    best: dict[str, Any] = {"fontweight": "bold", "color": INK, "fontsize": size}
    others: dict[str, Any] = {"color": FAINT, "fontsize": size}
    looks = [best if row.standing.pareto else others for row in drawn]
    placed = place_labels(axes, spots, names, obstacles, looks, lines=False, near=11)
    middle = math.sqrt(math.prod(axes.get_xlim()))
    for i, (label, spot) in enumerate(zip(placed, spots, strict=True)):
        if label is not None:
            label.set_gid(f"{i} label")
            continue
        right = spot[0] > middle
        place: dict[str, Any] = {"xytext": (-11 if right else 11, 9), "textcoords": "offset points"}
        place |= {"ha": "right" if right else "left", "gid": f"{i} label crowded"}
        axes.annotate(names[i], spot, **place, **looks[i])


def cut(name: str, letters: int) -> str:
    """Return a name in one line of at most so many letters.

    >>> cut("a long name", 8)
    'a long…'
    """
    flat = " ".join(name.split())
    return flat if len(flat) <= letters else flat[: letters - 1].rstrip() + "…"


def cut_apart(names: Sequence[str], letters: int) -> list[str]:
    """Cut names to at most so many letters, a dozen or more, so that different ones stay different.

    >>> cut_apart(["FedAvg with noise, plain mean", "FedAvg with noise, the median"], 16)
    ['FedAv…plain mean', 'FedAv…the median']
    >>> ends = ("and then it ends", "and then it stops")
    >>> cut_apart([f"FedAvg {rule}, {end}" for rule in ("clips", "votes") for end in ends], 14)
    ['FedA…ends 1', 'FedA…stops 1', 'FedA…ends 2', 'FedA…stops 2']
    """
    flat = [" ".join(name.split()) for name in names]
    short = _apart(sorted(set(flat)), letters)
    for group in grouped(short, short.__getitem__).values():
        for number, name in enumerate(group if len(group) > 1 else (), start=1):
            end = f" {number}"
            short[name] = cut(short[name], letters - len(end)) + end
    return [short[name] for name in flat]


def _apart(names: Sequence[str], letters: int, start: int = 0) -> dict[str, str]:
    """Map names to what is left of them: after their beginning, what follows from a letter on."""
    short = {}
    for name in names:
        head = f"{name[: letters // 3].rstrip()}…" if start else ""
        short[name] = head + cut(name[start:], letters - len(head))
    for group in grouped(names, short.__getitem__).values():
        if len(group) > 1:
            columns = enumerate(zip_longest(*group))
            differ = next(i for i, column in columns if len(set(column)) > 1)
            word = group[0].rfind(" ", 0, differ) + 1
            short |= _apart(group, letters, max(word, differ - letters // 4))
    return short


def blank(view: RankedView, size: str, counted: str) -> Markup:
    """Return a `scatter` in which nothing is drawn."""
    return Markup(f'<svg class="scatter {size}"></svg>')


@styled
def curves(entry: Entry, drawn: bool = True) -> list[tuple[str, bool, Markup]]:
    """Draw accuracy over bits on the same axes: each attack, whether it is worst, its drawing.

    Unless they are to be ``drawn``, drawings are empty.
    """
    looks = {cell.attack: [p for p in cell.curve if p.bits > 0] for cell in entry.cells}
    end = max((point.bits for points in looks.values() for point in points), default=0.0)
    clean = next((points for attack, points in looks.items() if is_clean(attack)), [])
    worst = entry.score.attack
    return [
        (
            words.attack(attack, entry),
            attack == worst,
            _curve(points, clean, end, attack == worst) if drawn else EMPTY,
        )
        for attack, points in looks.items()
        if points
    ]


def _curve(points: Sequence[Point], clean: Sequence[Point], end: float, worst: bool) -> Markup:
    width, height, size = CURVE
    figure, axes = _panel(width, height, size, (30, 8, 26, 8))
    axes.set(xlim=(0, end), ylim=(0, 100), yticks=(0, 50, 100))
    total = f"{end:,.0f}" if end >= 100 else f"{end:.3g}"
    axes.set_xticks([0, end], ["0", f"{total} bits"])
    first, last = axes.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    axes.grid(False, axis="x")
    bits = [point.bits for point in points]
    low, high, mean = (
        [100 * min(max(getattr(p.accuracy, end), 0.0), 1.0) for p in points]
        for end in ("low", "high", "mean")
    )
    line, band = (WORST, WORST) if worst else (INK, BAR)
    axes.fill_between(bits, low, high, color=band, alpha=0.25)
    if points is not clean:
        means = [100 * point.accuracy.mean for point in clean]
        axes.plot([point.bits for point in clean], means, color=BAR, linewidth=1.5, linestyle="--")
    axes.plot(bits, mean, color=line, linewidth=1.75, marker="o", markersize=4, clip_on=False)
    svg = _svg(width, height, "curve", {"aria-hidden": "true"})
    svg.extend(leaf for _, leaf in _parts(figure))
    return _markup(svg)


def _panel(
    width: int, height: int, size: int, margins: tuple[int, int, int, int]
) -> tuple[Figure, Axes]:
    """Return a figure and its panel, with margins left, right, below and above it, in points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    left, right, below, above = margins
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasAgg(figure)  # measures texts
    figure.patch.set_visible(False)
    inner = (width - left - right, height - below - above)
    box = (left / width, below / height, inner[0] / width, inner[1] / height)
    axes = figure.add_axes(box)
    axes.patch.set_visible(False)
    axes.tick_params(labelsize=size)
    axes.tick_params(axis="x", pad=8)
    axes.xaxis.label.set_fontsize(size)
    return figure, axes


def _parts(figure: Figure) -> list[tuple[str, ElementTree.Element]]:
    """Return the paths and texts of a figure, each with the name of the artist it is part of."""
    text = rendered(figure, "svg", "none").decode()
    text = re.sub(r"<metadata>.*?</metadata>|xmlns(:\w+)?=\"[^\"]*\"", "", text, flags=re.DOTALL)
    root = ElementTree.fromstring(text.replace("xlink:href", "href"))
    symbols = {f"#{path.get('id')}": path for path in root.iter("path") if path.get("id")}
    return list(_leaves(root, "", symbols))


def _leaves(
    element: ElementTree.Element, owner: str, symbols: dict[str, ElementTree.Element]
) -> Iterator[tuple[str, ElementTree.Element]]:
    for child in element:
        name = child.get("id", "")
        if child.tag in ("path", "text", "use"):
            yield owner, _plain(child, symbols)
        elif child.tag == "g":
            yield from _leaves(child, name if name[:1].isdigit() else owner, symbols)


def _plain(
    element: ElementTree.Element, symbols: dict[str, ElementTree.Element]
) -> ElementTree.Element:
    """Return a path or a text with short numbers, and with variables of the page for colours."""
    leaf = ElementTree.Element("text" if element.tag == "text" else "path")
    leaf.text = element.text
    style = element.get("style", "")
    for name in ("x", "y", "d"):
        if element.get(name):
            leaf.set(name, _short(element.get(name, "")))
    if element.tag == "use":
        symbol = symbols[element.get("href", "")]
        x, y = (leaf.attrib.pop(name) for name in ("x", "y"))
        leaf.set("transform", f"translate({x} {y})")
        leaf.set("d", _short(symbol.get("d", "")))
        if leaf.get("d", "").count("C") == 8:
            leaf = ElementTree.Element(
                "circle", {"cx": x, "cy": y, "r": leaf.get("d", "").split()[2]}
            )
        style = f"{symbol.get('style')}; {style}"
    # a page's policy forbids style attributes: each style becomes an attribute of its own
    style = re.sub(r"font: (?:(\w+) )?([\d.]+px) [^;]*", r"font-weight: \1; font-size: \2", style)
    for name, _, value in (declaration.strip().partition(": ") for declaration in style.split(";")):
        if value and name not in ("font-family", "stroke-dashoffset", "stroke-linecap"):
            variable = VARIABLES.get(value)
            leaf.set(name, f"var(--{variable})" if variable else value)
    return leaf


def _short(numbers: str) -> str:
    """Round the coordinates in a text to tenths."""
    text = re.sub(r"-?\d+\.\d+", lambda match: f"{float(match[0]):.1f}", numbers)
    return " ".join(text.split())


def _svg(width: int, height: int, kind: str, more: dict[str, str]) -> ElementTree.Element:
    box = f"0 0 {width} {height}"
    return ElementTree.Element("svg", {"class": kind, "viewBox": box} | more)


def _markup(svg: ElementTree.Element) -> Markup:
    return Markup(ElementTree.tostring(svg, encoding="unicode"))
