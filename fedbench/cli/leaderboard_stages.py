"""The second stage of an entry: seasons that draw its seeds, its plan, its records."""

from __future__ import annotations

import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedbench.cli import options as opt
from fedbench.cli.terminal import warn
from fedbench.core.errors import ConfigError, one_line, require
from fedbench.core.files import require_there
from fedbench.tables.numbers import counted

if TYPE_CHECKING:
    from fedbench.leaderboard.submission import Submission

BOARD = Path("leaderboards")
BOARD_HELP = "Folder of a board, with its rules."
BoardOption = Annotated[Path, opt.option(BOARD_HELP, "--board", panel="Where it goes")]
BoardRead = Annotated[Path, opt.option(BOARD_HELP, "--board", panel="Options")]


def chosen_board(context: typer.Context, folder: Path | None, board: Path) -> Path:
    """Return the path that was typed by itself, else that of --board; both are a `ConfigError`."""
    source = context.get_parameter_source("board")
    if folder is not None and source is not None and source.name == "COMMANDLINE":
        raise ConfigError(f"--board must be left out beside {folder}, got {board}")
    return board if folder is None else folder


@opt.explained
def freeze(name: str, source: str, board: BoardOption = BOARD) -> None:
    """Begin a season: fix the systems of all entries, before their ranking seeds are known.

    Positional:
        name: Name of the season, e.g. 2026-12.

    Options:
        source: Public value that is to draw the seeds, named before it is known, e.g. "drand
            quicknet round 12345678".
    """
    from fedbench.leaderboard.beacon import published, round_of
    from fedbench.leaderboard.board import races
    from fedbench.leaderboard.seasons import freeze

    number = round_of(source)
    when = f"{source} is known"
    if number is not None:
        at = published(number)
        when = f"{at:%Y-%m-%d %H:%M} UTC"
        require("--source", source, at > datetime.now(UTC), f"still to come, not of {when}")
    digests = [entry.content_digest() for group in races(board).values() for entry in group]
    season = freeze(board, name, source, digests)
    where = "" if board == BOARD else f"--board {shlex.quote(str(board))} "
    print(
        f"season {name}: {counted(len(season.frozen), 'entry')} frozen; commit it before "
        f"{when}, then say fedbench leaderboard draw {name} {where}--value"
    )


@opt.explained
def draw(name: str, value: str, signature: str = "", board: BoardOption = BOARD) -> None:
    """Write the public value of a season, which draws the seeds of the ranking stage.

    Positional:
        name: Name of the season.

    Options:
        value: The value, 64 hexadecimal digits.
        signature: Signature of a drand round, in hexadecimal digits, which is verified.
    """
    from fedbench.leaderboard.seasons import draw

    season = draw(board, name, value, signature)
    print(
        f"season {name} is drawn; next for each of {counted(len(season.frozen), 'entry')}: "
        "fedbench leaderboard plan-ranking ENTRY"
    )


@opt.explained
def plan_ranking(entry: Path, estimate: bool = False) -> None:
    """Print the sweep of an entry's ranking stage: its worst attacks, on seeds that were drawn.

    Positional:
        entry: JSON file of an entry that is frozen in a season with a value.

    Options:
        estimate: Say first how long it may take here, by playing two rounds of some cells.
    """
    from fedbench.experiment.scenario import code_version
    from fedbench.leaderboard.board import read
    from fedbench.leaderboard.submission import ranking_plan

    plan = ranking_plan(entry)
    code = read(entry).code
    if code != code_version():
        warn(
            f"this plan must be swept by the code of the first stage, {code}, got {code_version()} "
            "here, whose runs `complete` refuses"
        )
    print_plan(plan, estimate)


@opt.explained
def complete(entry: Path, records: list[Path], dry_run: bool = False) -> int:
    """Add the ranking stage to an entry, or say every rule that its records break (exit code 2).

    Positional:
        entry: JSON file of an entry on a board.
        records: Files, folders or archives with the runs of plan-ranking.

    Options:
        dry_run: Say what would be written, and write nothing.
    """
    require_there([entry, *records])
    from fedbench.leaderboard.submission import complete
    from fedbench.results.gather import gather

    played = gather(records, lambda reason: warn(f"skipped {reason}"))
    return tell(complete(entry, played), dry_run)


def tell(done: Submission, dry_run: bool) -> int:
    """Print the outcome of a submission and what to do next, and return the exit code."""
    from fedbench.cli.leaderboard_table import findings, short, spread
    from fedbench.leaderboard.board import place
    from fedbench.leaderboard.entry_rules import errors

    entry = done.entry
    broken = errors(done.findings)
    if entry is None:
        names = {finding.rule for finding in broken}
        many = "a rule is" if len(names) == 1 else f"{len(names)} rules are"
        print(f"fedbench: {many} broken, nothing is written", file=sys.stderr)
        for finding in broken:
            print(f"  {one_line(f'{finding.rule}: {finding.text}', 1000)}", file=sys.stderr)
        return 2
    console = Console(soft_wrap=True)
    if done.findings:
        console.print(findings(done.findings, console.options))
    path = place(done.board, entry) if dry_run else done.write()
    print(f"{'would be' if dry_run else 'wrote'} {path}, its records beside it")
    print(f"worst case {spread(entry.score.worst)} %, under {short(entry, entry.score.attack)}")
    if not dry_run:
        board = shlex.quote(str(done.board))
        steps = " && ".join(f"fedbench leaderboard {verb} {board}" for verb in ("render", "check"))
        print(f"next: {steps}; then open a pull request with all that changed")
    return 0


def print_plan(text: str, estimate: bool) -> None:
    """Print a plan, after its malicious rows and, where that is asked for, an estimate of time."""
    import tomllib

    from fedbench.cli.cohorts import malicious_rows
    from fedbench.cli.sweep import expectation
    from fedbench.sweeps.local import Options
    from fedbench.sweeps.plan import Plan, runs

    sweep = Plan.of(tomllib.loads(text), "plan")
    cells, _ = sweep.cells()
    for line in malicious_rows(cells):
        print(f"# {line}")
    if estimate:
        missing = runs(cells, sweep.seeds)
        options = Options()
        print(f"# {expectation(missing, options, options.processes(len(missing)))}")
    print(text, end="")
