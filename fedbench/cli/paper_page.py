"""Page of a paper: the part that has every number of it beside ours, written from the outcomes."""

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fedbench.cli.comparison import comparison_table, explanations
from fedbench.cli.marks import renewed
from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically
from fedbench.reproduce.exhibits import SCALES, Exhibit, Paper, papers
from fedbench.reproduce.outcomes import Outcome, stored_outcomes
from fedbench.reproduce.verdicts import Comparison, Verdict, compared, counts
from fedbench.tables.export import bullets, markdown
from fedbench.tables.numbers import counted

Outcomes = Mapping[tuple[str, str], Outcome]
START = "<!-- ours beside the paper's: fedbench reproduce --into FOLDER -->"
END = "<!-- end of ours beside the paper's -->"


def write_pages(folder: Path) -> dict[Path, bool]:
    """Put the comparison of each paper into its page; return for each if that changed it.

    No page is written unless all of them have a place for it.
    """
    texts = {}
    for paper in papers():
        path = folder / f"{paper.name}.md"
        if not path.is_file():
            raise ConfigError(
                f"--into must be a folder with a page for each paper, got none at {path}; "
                f"make one with the lines {START!r} and {END!r}"
            )
        texts[path] = renewed(path, START, END, page(paper, stored_outcomes()))
    for path, (old, new) in texts.items():
        if new != old:
            write_atomically(path, new.encode())
    return {path: new != old for path, (old, new) in texts.items()}


def page(paper: Paper, outcomes: Outcomes) -> str:
    """Return counts, what a formula gives, what was not run, and a section for every other exhibit.

    An exhibit all of whose numbers a formula gives has one line if they agree.
    """
    exhibits = [(exhibit, compared(exhibit, outcomes)) for exhibit in paper.exhibit]
    lines = []
    waiting = []
    drawn = []
    sections = []
    for exhibit, cells in exhibits:
        scales = {cell.scale for cell in cells}
        if not cells:
            drawn.append(exhibit.label)
        elif scales == {""}:
            waiting.append(f"`{exhibit.name}` ({counted(len(cells), 'cell')})")
        elif scales == {"formula"} and all(cell.verdict is Verdict.AGREES for cell in cells):
            agree = f"{len(cells)} of {len(cells)} agree, by formula: `fedbench reproduce"
            lines.append(f"{exhibit.label}. {exhibit.shows} {agree} {exhibit.name}`")
        else:
            sections.append(section(exhibit, cells, outcomes))
    lines += [f"Not run: {', '.join(waiting)}."] if waiting else []
    lines += [f"Without numbers to compare: {'; '.join(drawn)}."] if drawn else []
    parts = [f"{tally(cell for _, cells in exhibits for cell in cells)}\n"]
    parts += [bullets(wrapped(line, "  ") for line in lines)] if lines else []
    return "\n".join(parts + sections).rstrip("\n") + "\n"


def tally(cells: Iterable[Comparison]) -> str:
    """Return a sentence that counts the numbers of each verdict."""
    n = counts(cells)
    return (
        f"Of {sum(n.values())} numbers {n[Verdict.AGREES]} agree, {n[Verdict.KNOWN]} differ for a "
        f"known reason, {n[Verdict.UNEXPLAINED]} differ unexplained, and {n[Verdict.NOT_RUN]} were "
        "not run."
    )


def section(exhibit: Exhibit, cells: Sequence[Comparison], outcomes: Outcomes) -> str:
    """Return a table for each scale of which a number stands beside the paper's."""
    parts = [f"### {exhibit.label}: `{exhibit.name}`\n", f"{wrapped(exhibit.shows)}\n"]
    for scale in ("formula", *SCALES):
        group = [cell for cell in cells if cell.scale == scale]
        if group:
            outcome = outcomes.get((exhibit.name, scale))
            parts.append(f"{wrapped(origin(exhibit, scale, group, outcome))}\n")
            parts.append(markdown(comparison_table(exhibit, group)))
            parts += [f"{wrapped(text)}\n" for text in explanations(group)]
    missing = [cell for cell in cells if not cell.scale]
    if missing:
        why = " ".join(dict.fromkeys(cell.why for cell in missing if cell.why))
        count = f"Not run: {len(missing)} of {counted(len(cells), 'cell')}."
        parts.append(f"{wrapped(f'{count} {why}')}\n")
    return "\n".join(parts)


def origin(
    exhibit: Exhibit, scale: str, cells: Iterable[Comparison], outcome: Outcome | None
) -> str:
    """Return the command that gave the numbers, their seeds and day, and what differs."""
    command = f"fedbench reproduce {exhibit.name}"
    played = exhibit.at(scale)
    if outcome is None or played is None:
        return f"By formula: `{command}`."
    seeds = sorted({seed for cell in cells if cell.ours for seed in cell.ours.values})
    named = f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
    differs = f"Differs from the paper: {played.differs}." if played.differs else ""
    return f"`{command} --scale {scale}`, {named}, played {outcome.played}. {differs}"


def wrapped(text: str, indent: str = "") -> str:
    r"""Fold a paragraph into lines of at most 120 characters, none of which begins a list.

    >>> print(wrapped("x" * 119 + " + 20.1"))  # doctest: +ELLIPSIS
    xxx...xxx
    \+ 20.1
    """
    width = 120 - len(indent)
    lines = textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
    escaped = [re.sub(r"^([-+*#>]+ )", r"\\\1", line) for line in lines]
    return f"\n{indent}".join(escaped)
