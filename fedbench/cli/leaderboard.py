"""``fedbench leaderboard``: entries that others can trust, and their ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedbench.cli.options import (
    Device,
    Executor,
    Format,
    RunTimeout,
    Threads,
    Workers,
    option,
    parse_seeds,
    scenario_command,
    typed,
)

if TYPE_CHECKING:
    from fedbench.leaderboard.rank import View
    from fedbench.leaderboard.rules import Division
    from fedbench.leaderboard.submission import Submission

app = typer.Typer(
    no_args_is_help=True,
    help="Make entries that others can trust: plan, sweep, submit, check, reproduce, rank, render.",
)
_SAID = "What you say"
_WHERE = "Where it goes"
BOARD = Path("leaderboards")
Board = Annotated[Path, typer.Argument(help="Folder with rules/1.toml.")]
BoardOption = Annotated[Path, option("Folder with rules/1.toml.", panel=_WHERE)]


@app.command(
    "plan",
    cls=scenario_command(
        *("protocol", "defense", "mechanism", "adjacency", "server_checks"), protocol=...
    ),
)
def plan(
    context: typer.Context,
    track: Annotated[str, typer.Option(help="Track of the closed division, e.g. digits.")],
    board: BoardOption = BOARD,
) -> None:
    """Print the sweep that a system must play: the track, the seeds, the mandatory attacks."""
    from fedbench.leaderboard.entry_plan import plan
    from fedbench.leaderboard.rules import newest

    print(plan(newest(board), track, typed(context)), end="")


@app.command("submit")
def submit(
    records: Annotated[
        list[Path], typer.Argument(help="Files, folders or archives, all of one system.")
    ],
    name: Annotated[str, option("Name of the entry.", panel=_SAID)],
    authors: Annotated[str, option("Names of those who submit it.", panel=_SAID)],
    tried: Annotated[
        int,
        option(
            "Number of configurations that you tried before you chose this one, with it.",
            panel=_SAID,
        ),
    ],
    link: Annotated[
        str,
        option("Link to a description, https://…; by default none.", panel=_SAID),
    ] = "",
    note: Annotated[str, option("Note for readers; by default none.", panel=_SAID)] = "",
    division: Annotated[str, option("Division: closed or open.", panel=_WHERE)] = "closed",
    track: Annotated[
        str | None,
        option("Track; by default that of the data.", panel=_WHERE),
    ] = None,
    board: BoardOption = BOARD,
    replace: Annotated[
        bool,
        option("Replace an entry of the same system.", "--replace", panel=_WHERE),
    ] = False,
    dry_run: Annotated[
        bool,
        option("Say what would be written, and write nothing.", "--dry-run", panel=_WHERE),
    ] = False,
) -> int:
    """Build an entry from records and write it, or say every rule that they break (exit code 2)."""
    from fedbench.core.errors import require
    from fedbench.leaderboard.submission import submit
    from fedbench.results.gather import gather

    require("--division", division, division in ("closed", "open"), "closed or open")
    statement = {"name": name, "authors": authors, "link": link, "note": note, "tried": tried}
    played = gather(records, skipped)
    where: Division = "closed" if division == "closed" else "open"
    return tell(submit(played, statement, board, where, track, replace), dry_run)


def skipped(reason: str) -> None:
    """Say on stderr which file of a folder is left out, and why."""
    from fedbench.core.errors import one_line

    print(one_line(f"fedbench: skipped {reason}"), file=sys.stderr)


def tell(done: Submission, dry_run: bool) -> int:
    """Print the outcome of a submission and what to do next, and return the exit code."""
    from rich.console import Console

    from fedbench.cli.leaderboard_findings import findings
    from fedbench.cli.leaderboard_table import short, spread
    from fedbench.core.errors import one_line
    from fedbench.leaderboard.board import place
    from fedbench.leaderboard.verdict import errors

    entry = done.entry
    broken = errors(done.findings)
    if entry is None:
        names = {finding.rule for finding in broken}
        many = "a rule is" if len(names) == 1 else f"{len(names)} rules are"
        print(f"fedbench: {many} broken, nothing is written", file=sys.stderr)
        for finding in broken:
            print(f"  {one_line(f'{finding.rule}: {finding.text}', 1000)}", file=sys.stderr)
        return 2
    console = Console(soft_wrap=True, highlight=False, markup=False)
    if done.findings:
        console.print(findings(done.findings, console.options))
    path = place(done.board, entry) if dry_run else done.write()
    console.print(f"{'would be' if dry_run else 'wrote'} {path}, its records beside it")
    attack = short(entry, entry.score.attack)
    console.print(f"worst case {spread(entry.score.worst)} %, under {attack}")
    if not dry_run:
        console.print(f"next: fedbench leaderboard check {path}; then open a pull request")
    return 0


@app.command("check")
def check(
    target: Annotated[Path, typer.Argument(help="A board, a folder of one, or an entry.")] = BOARD,
    format: Format = "table",
    own_rules: Annotated[
        bool,
        typer.Option(
            "--own-rules",
            help="Admit rules of the board's own, not only those that were published.",
        ),
    ] = False,
) -> int:
    """Check that files are what they say: exit code 1 if a rule is broken. Nothing is played."""
    from rich.console import Console

    from fedbench.cli.leaderboard_findings import CheckReport, checked_json, verdict
    from fedbench.core.errors import require
    from fedbench.leaderboard.check import check

    require("--format", format, format in ("table", "json"), "table or json")
    checked = check(target, own_rules)
    if format == "json":
        print(checked_json(checked))
    else:
        Console().print(CheckReport(checked))
    return int(any(verdict(file.findings) == "refused" for file in checked))


@app.command("reproduce")
def reproduce(
    entry: Annotated[Path, typer.Argument(help="JSON file of an entry on a board.")],
    cells: Annotated[
        int, typer.Option(help="Number of cells; the worst and the clean one first.")
    ] = 2,
    every: Annotated[bool, typer.Option("--all", help="Play all cells again.")] = False,
    seeds: Annotated[
        str | None, typer.Option(help="Some of the entry's seeds, e.g. 0,1; by default all.")
    ] = None,
    device: Device = "auto",
    executor: Executor = "auto",
    workers: Workers = 0,
    threads: Threads = 1,
    run_timeout: RunTimeout = 21600.0,
    out: Annotated[
        Path | None,
        option("Folder that keeps the records, and where it goes on; by default they are dropped."),
    ] = None,
) -> int:
    """Play cells of an entry again: it is reproduced (exit code 0) or contested (1)."""
    from rich.console import Console

    from fedbench.cli.leaderboard_findings import Repetition
    from fedbench.cli.terminal import watcher
    from fedbench.core.errors import require
    from fedbench.leaderboard.reproduce import again, claim, keep
    from fedbench.leaderboard.reproduction import cell, coverage, order
    from fedbench.sweep.local import Options

    require("--cells", cells, cells >= 1, ">= 1")
    options = Options(device, executor, workers=workers, threads=threads, run_timeout=run_timeout)
    claimed = claim(entry)
    chosen = claimed.entry.seeds if seeds is None else list(parse_seeds(seeds))
    listed = ", ".join(map(str, claimed.entry.seeds))
    require("--seeds", seeds, set(chosen) <= set(claimed.entry.seeds), f"some of {listed}")
    attacks = order(claimed.entry)[: None if every else cells]
    console = Console()
    played = [cell(claimed.entry, attack) for attack in attacks]
    with watcher(console, played, chosen, table=False) as watch:
        comparisons = again(claimed, attacks, chosen, options, watch, out)
    if any(len(each.again) < len(chosen) for each in comparisons):
        print("fedbench: stopped, the entry is as it was", file=sys.stderr)
        return 130
    apart = {each.attack: each.apart(claimed.rules.tolerance) for each in comparisons}
    console.print(Repetition(claimed.entry, comparisons, apart))
    now = keep(claimed, comparisons)
    outcome = f"{entry} is {now.status}: {coverage(now)} played again"
    console.print(outcome, soft_wrap=True, highlight=False, markup=False)
    return int(any(apart.values()))


@app.command("rank")
def rank(
    board: Board = BOARD,
    division: Annotated[
        str | None, typer.Option(help="Division: closed or open; by default both.")
    ] = None,
    track: Annotated[str | None, typer.Option(help="Track; by default all of them.")] = None,
    view: Annotated[
        str, typer.Option(help="How entries compare: equal-rounds or equal-bits.")
    ] = "equal-rounds",
    bits: Annotated[
        float | None,
        typer.Option(
            help="Budget of --view equal-bits, per parameter, up and down; by default what the "
            "cheapest entry needs.",
        ),
    ] = None,
    pareto: Annotated[bool, typer.Option("--pareto", help="Show only the Pareto front.")] = False,
    format: Annotated[
        str, typer.Option(help="Form of the output: table, json, csv or md.")
    ] = "table",
) -> None:
    """Rank entries by their worst case, with how sure the order is and what each entry costs."""
    from dataclasses import replace

    from rich.console import Console

    from fedbench.cli import leaderboard_table as shown
    from fedbench.core.errors import ConfigError, require
    from fedbench.leaderboard.board import races
    from fedbench.leaderboard.rank import ranking
    from fedbench.leaderboard.rules import DIVISIONS, numbered

    require("--division", division, division in (None, *DIVISIONS), "closed or open")
    require("--view", view, view in ("equal-rounds", "equal-bits"), "equal-rounds or equal-bits")
    require("--format", format, format in ("table", "json", "csv", "md"), "table, json, csv or md")
    require("--bits", bits, bits is None or bits > 0, "> 0")
    require("--bits", bits, bits is None or view == "equal-bits", "left out without equal-bits")
    chosen: View = "equal-bits" if view == "equal-bits" else "equal-rounds"
    newest = max(numbered(board))
    places = [
        shown.RankingTable(*race, ranking(entries, chosen, bits), newest)
        for race, entries in races(board).items()
        if division in (None, race[0]) and track in (None, race[1])
    ]
    if pareto:
        places = [replace(place, ranking=place.ranking.front()) for place in places]
    if not places:
        raise ConfigError(f"{board} must have entries of that track, got none; submit one first")
    texts = {"json": shown.as_json, "csv": shown.as_csv, "md": shown.as_markdown}
    if format in texts:
        print(texts[format](places).rstrip("\n"))
        return
    console = Console()
    for place in places:
        console.print(place)
        console.print()
    console.print(shown.legend(console.options))


@app.command("render")
def render(
    board: Board = BOARD,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the page; by default the board.")
    ] = None,
) -> None:
    """Write the page of a board: ranks, races and entries."""
    from fedbench.leaderboard.site.page import render

    for path in render(board, out or board):
        print(path)


@app.command("schema")
def schema(
    out: Annotated[Path, typer.Option(help="Folder for the schemas.")] = BOARD / "schema",
) -> None:
    """Write the JSON Schemas of entries, records and rules."""
    from fedbench.leaderboard.schema import write

    for path in write(out):
        print(path)
