"""A board as static pages that load nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import inspect
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fedbench.core.files import write_atomically
from fedbench.leaderboard.board import STEM, archive, held_out, place, races, ranking, replay
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.held_out import HeldOutResult, gaps
from fedbench.leaderboard.leads import leads
from fedbench.leaderboard.rules import Rules, newest
from fedbench.leaderboard.site import words
from fedbench.leaderboard.site.drawings import blank, curves, scatter
from fedbench.leaderboard.site.files import data_files
from fedbench.leaderboard.site.views import ENTRIES, RaceSection, sections
from fedbench.tables import numbers

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR: Final = "fedbench leaderboard render"
TEMPLATES = Path(__file__).parent / "templates"

DRAWING = re.compile(r'<svg class="(?:scatter|curve).*?</svg>', re.DOTALL)
# What a drawing is made of. Whatever a name holds is text in it, or the value of an attribute.
MARK = re.compile(r'</?(?:svg|g|a|title|path|circle|text)((?:\s[A-Za-z-]+="[^"<>]*")*)\s*/?>')
ATTRIBUTE = re.compile(r'\s([A-Za-z-]+)="')
ATTRIBUTES = {
    *("class", "viewBox", "role", "aria-label", "aria-hidden", "href", "data-entry"),
    *("x", "y", "cx", "cy", "r", "d", "transform", "fill", "fill-opacity", "stroke"),
    *("stroke-width", "stroke-dasharray", "stroke-linejoin", "stroke-miterlimit", "stroke-opacity"),
    *("opacity", "font-size", "font-weight", "text-anchor"),
}
LINK = re.compile(r'href="[^"]*"')
SERVED = (".html", ".htm", ".xhtml", ".svg", ".js", ".mjs")  # what a browser shows or runs

# Columns of the table: key, head, unit, and the order of the first click.
COLUMNS = (
    ("rank", "Rank", "", "ascending"),
    ("best", "Best", "%", "descending"),
    ("name", "Name", "", "ascending"),
    ("system", "System", "", "ascending"),
    ("worst", "Worst case", "%", "descending"),
    ("gap", "Gap", "points", "ascending"),
    ("area", "Area", "%", "descending"),
    ("clean", "Clean", "%", "descending"),
    ("up", "Bits up", "", "ascending"),
    ("down", "Bits down", "", "ascending"),
    ("epsilon", "ε", "", "ascending"),
    ("pareto", "Pareto", "", "descending"),
    ("status", "Status", "", "ascending"),
    ("rules", "Rules", "", "descending"),
    ("doubts", "Doubts", "", "ascending"),
)


def render(board: Path, out: Path) -> list[Path]:
    """Write the pages of a board, and remove those of entries that it no longer has.

    `ConfigError` if an entry or the rules cannot be read, or the folder cannot be written.
    """
    out = out.resolve()
    texts = rendered(board, out)
    for name, text in texts.items():
        write_atomically(out / name, text.encode())
    for old in stale(out / ENTRIES, {Path(name).name for name in texts}):
        old.unlink()
    return [out / name for name in texts]


def rendered(board: Path, out: Path, drawn: bool = True) -> dict[str, str]:
    """Return the pages of a board, as they would lie in the folder ``out``, by their name.

    Drawings are empty unless they are to be ``drawn``, which takes most of the time. `ConfigError`
    if an entry or the rules cannot be read.
    """
    board, out = board.resolve(), out.resolve()
    rules = newest(board)
    by_race = races(board)
    shown = [part for race, group in by_race.items() for part in sections(race, group, rules)]
    met = gaps(board, [entry for entries in by_race.values() for entry in entries])
    with warnings.catch_warnings():
        # A browser has letters that the font of matplotlib lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        return pages(shown, rules, board, out, met, drawn)


def edited(board: Path) -> list[str]:
    """Return the pages of a board that are not those that `render` writes, byte for byte.

    But for the drawings, which differ between versions of matplotlib: they must be made of marks
    alone. A board without an index has no pages, and none has others. `ConfigError` if an entry or
    the rules cannot be read.
    """
    has_pages = (board / "index.html").exists()
    texts = rendered(board, board, drawn=False) if has_pages else {}
    other = [name for name, text in texts.items() if not _same(board / name, text)]
    served = [path for path in board.rglob("*") if path.suffix.lower() in SERVED]
    below = sorted(path.relative_to(board).as_posix() for path in served)
    return other + [name for name in below if name not in texts]


def _same(path: Path, text: str) -> bool:
    """Tell if a file is a page: of the same bytes outside of drawings that are made of marks."""
    if not path.is_file():
        return False
    stored = path.read_bytes().decode("utf-8", errors="replace")
    for drawing in DRAWING.findall(stored):
        names = {name for mark in MARK.findall(drawing) for name in ATTRIBUTE.findall(mark)}
        if "<" in MARK.sub("", drawing) or not names <= ATTRIBUTES:
            return False
        if not set(LINK.findall(drawing)) <= set(LINK.findall(text)):
            return False
    return DRAWING.sub("", stored) == DRAWING.sub("", text)


def pages(
    races: Sequence[RaceSection],
    newest: Rules,
    board: Path,
    out: Path,
    met: Mapping[str, Sequence[HeldOutResult]],
    drawn: bool = True,
) -> dict[str, str]:
    """Return every page by its name, those of the entries first, so that no link is ever dead.

    ``met`` is what held-out attacks did to entries, by their id.
    """
    templates = environment(drawn)
    page = templates.get_template("entry.html")
    index = templates.get_template("index.html")
    texts = {}
    for race in races:
        for row in race.views[0].rows:
            files = links(board, row.entry, out / ENTRIES)
            texts[row.href] = page.render(
                entry=row.entry,
                race=race,
                newest=newest.version,
                files=files,
                held_out=met.get(row.entry.id, []),
                leads=leads(row.entry, race.entries),
            )
    entries = [entry for race in races for entry in race.entries]
    choices = {
        "alphabet": sorted({entry.alphabet for entry in entries}),
        "defense": sorted({words.family(words.rule(entry)) for entry in entries}),
        "status": sorted({entry.status for entry in entries}),
    }
    contents = {
        "races": races,
        "newest": newest.version,
        "columns": [column for column in COLUMNS if met or column[0] != "gap"],
        "choices": choices,
        "held_out": met,
        "committed": words.committed(newest),
    }
    return data_files(races) | texts | {"index.html": index.render(contents)}


def links(board: Path, entry: Entry, folder: Path) -> list[tuple[str, str]]:
    """Return the files of an entry, by what they are, as a page in ``folder`` links to them."""
    path = place(board, entry)
    files = {
        "entry (json)": path,
        "records (jsonl.gz)": archive(path),
        "records of the ranking stage (jsonl.gz)": ranking(path),
        **{
            f"records of {replayed.by} (jsonl.gz)": replay(path, number)
            for number, replayed in enumerate(entry.replays, 1)
        },
        "records of held-out attacks (jsonl.gz)": held_out(path),
        f"rules {entry.rules} (toml)": board / "rules" / f"{entry.rules}.toml",
    }
    return [
        (title, quote(Path(os.path.relpath(path, folder)).as_posix()))
        for title, path in files.items()
        if path.is_file()
    ]


def stale(folder: Path, current: set[str]) -> list[Path]:
    """Return the pages that `render` wrote for entries that are gone; other files are not ours."""
    return [
        path
        for path in sorted(folder.glob("*.html"))
        if path.name not in current
        and STEM.fullmatch(path.stem)
        and GENERATOR in path.read_text("utf-8", errors="replace")[:1000]
    ]


def environment(drawn: bool = True) -> Environment:
    """Return templates that escape everything but the style, the script and the drawings."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=words.plain,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, script = (Markup((TEMPLATES / f"page.{x}").read_text("utf-8")) for x in ("css", "js"))
    allowed = policy(style, script)
    templates.globals.update(style=style, script=script, policy=allowed, generator=GENERATOR)
    for texts in (numbers, words):
        templates.filters.update(inspect.getmembers(texts, inspect.isfunction))
    templates.tests.update(web=words.is_web)
    templates.filters.update(scatter=scatter, curves=curves, brief=words.brief)
    if not drawn:
        templates.filters.update(scatter=blank, curves=partial(curves, drawn=False))
    return templates


def policy(style: str, script: str) -> str:
    """Return a policy under which nothing is loaded, and only this style and this script run."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
