"""A board as static pages that load nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from fedbench.core.files import write_atomically
from fedbench.leaderboard.board import STEM, archive, place, races
from fedbench.leaderboard.entry import Entry
from fedbench.leaderboard.outdated import outdated
from fedbench.leaderboard.reproduction import coverage
from fedbench.leaderboard.rules import newest
from fedbench.leaderboard.site import bars
from fedbench.leaderboard.site import words as words
from fedbench.leaderboard.site.races import ENTRIES, Race, race

if TYPE_CHECKING:
    from jinja2 import Environment

GENERATOR: Final = "fedbench leaderboard render"
TEMPLATES = Path(__file__).parent / "templates"

# Key, head, unit, and the order of the first click.
COLUMNS = (
    ("rank", "Rank", "", "ascending"),
    ("name", "Name", "", "ascending"),
    ("system", "System", "", "ascending"),
    ("worst", "Worst case", "%", "descending"),
    ("clean", "Clean", "%", "descending"),
    ("up", "Bits up", "", "ascending"),
    ("down", "Bits down", "", "ascending"),
    ("epsilon", "ε", "", "ascending"),
    ("pareto", "Pareto", "", "descending"),
    ("status", "Status", "", "ascending"),
    ("rules", "Rules", "", "descending"),
    ("doubts", "Doubts", "", "ascending"),
)

# What templates may say of an entry and of its parts.
WORDS = (
    words.attack,
    words.bits,
    coverage,
    words.budget,
    words.covers,
    words.doubts,
    words.epsilon,
    words.family,
    words.interval,
    words.knows,
    words.mechanism,
    words.named,
    words.percent,
    words.points,
    words.protocol,
    words.resolved,
    words.rule,
    words.spread,
    words.system,
    words.threat,
)


def render(board: Path, out: Path) -> list[Path]:
    """Write the pages of a board; those of entries that it no longer has are removed.

    Raises:
        ConfigError: an entry or the rules cannot be read, or the folder cannot be written.
    """
    board, out = board.resolve(), out.resolve()
    rules = newest(board)
    found = [race(key, entries, rules) for key, entries in races(board).items()]
    made = pages(found, rules.version, board, out)
    for name, text in made.items():
        write_atomically(out / name, text.encode())
    for old in stale(out / ENTRIES, {Path(name).name for name in made}):
        old.unlink()
    return [out / name for name in made]


def pages(found: Sequence[Race], newest: int, board: Path, out: Path) -> dict[str, str]:
    """Every page by its name; those of the entries first, so that no link is ever dead."""
    templates = environment()
    page, index = templates.get_template("entry.html"), templates.get_template("index.html")
    made = {}
    for one in found:
        for line in one.views[0].lines:
            files = links(board, line.entry, out / ENTRIES)
            made[line.href] = page.render(
                entry=line.entry, race=one, newest=newest, files=files, size=bars
            )
    entries = [entry for one in found for entry in one.entries]
    choices = {
        "alphabet": sorted({entry.alphabet for entry in entries}),
        "defense": sorted({words.family(words.rule(entry)) for entry in entries}),
        "status": sorted({entry.status for entry in entries}),
    }
    made["index.html"] = index.render(races=found, newest=newest, columns=COLUMNS, choices=choices)
    return made


def links(board: Path, entry: Entry, folder: Path) -> list[tuple[str, str]]:
    """The files of an entry, as a page in ``folder`` names them."""
    path = place(board, entry)
    files = {
        "entry (json)": path,
        "records (jsonl.gz)": archive(path),
        f"rules {entry.rules} (toml)": board / "rules" / f"{entry.rules}.toml",
    }
    return [
        (what, quote(Path(os.path.relpath(path, folder)).as_posix()))
        for what, path in files.items()
        if path.is_file()
    ]


def stale(folder: Path, kept: set[str]) -> list[Path]:
    """Pages of ours that no entry belongs to; what else lies there is not ours to remove."""
    return [
        path
        for path in sorted(folder.glob("*.html"))
        if path.name not in kept
        and STEM.fullmatch(path.stem)
        and GENERATOR in path.read_text("utf-8", errors="replace")[:1000]
    ]


def environment() -> Environment:
    """Templates in which everything is escaped, but the style and the script of this package."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=words.plain,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    style, script = ((TEMPLATES / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    made.globals.update(
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
        generator=GENERATOR,
    )
    made.filters.update({word.__name__: word for word in WORDS})
    made.filters["outdated"] = outdated
    made.filters.update(bar=bars.bar, curves=bars.curves, px="{:.1f}".format)
    return made


def policy(style: str, script: str) -> str:
    """Nothing is loaded from anywhere, and nothing runs but this style and this script."""
    return (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
