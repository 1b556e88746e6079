"""``fedbench leaderboard``: entries that others can trust, and their ranks."""

from __future__ import annotations

import math
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedbench.cli import leaderboard_stages
from fedbench.cli import options as opt
from fedbench.cli.leaderboard_stages import (
    BOARD,
    BoardOption,
    BoardRead,
    chosen_board,
    print_plan,
    tell,
)
from fedbench.cli.terminal import warn, watcher
from fedbench.core.canonical import enter
from fedbench.core.errors import ConfigError, require
from fedbench.core.files import require_there
from fedbench.tables.numbers import counted
from fedbench.tables.terminal import listed

app = typer.Typer(
    no_args_is_help=True,
    help="Make entries that others can trust: plan, sweep, submit, check, freeze, draw, complete, "
    "reproduce, rank.",
)
Folder = Annotated[
    Path | None,
    typer.Argument(help="Folder of a board, by default that of --board.", metavar="board"),
]


@app.command(
    cls=opt.scenario_command(
        *("protocol", "defense", "mechanism", "adjacency", "server_checks"), protocol=...
    )
)
@opt.explained
def plan(
    context: typer.Context, track: str, board: BoardRead = BOARD, estimate: bool = False
) -> None:
    """Print the sweep that a system must play: the track, the seeds, the mandatory attacks.

    Options:
        track: Track of the closed division, e.g. digits.
        estimate: Say first how long it may take here, by playing two rounds of some cells.
    """
    opt.require_installed(opt.typed(context))
    from fedbench.leaderboard.rules import newest, readable
    from fedbench.leaderboard.submission import plan

    print_plan(plan(newest(readable(board)), track, opt.typed(context)), estimate)


@app.command()
@opt.explained
def submit(
    records: list[Path],
    name: str,
    authors: str,
    tried: int,
    link: str = "",
    note: str = "",
    division: str = "closed",
    track: str | None = None,
    board: BoardOption = BOARD,
    replace: bool = False,
    dry_run: bool = False,
) -> int:
    """Build an entry from records and write it, or say every rule that they break (exit code 2).

    Positional:
        records: Files, folders or archives, all of one system.

    What you say:
        name: Name of the entry.
        authors: Names of those who submit it.
        tried: Number of configurations that you tried before you chose this one, with it.
        link: Link to a description, https://…; by default none.
        note: Note for readers; by default none.

    Where it goes:
        division: Division: closed or open.
        track: Track; by default that of the data.
        replace: Replace an entry of the same system.
        dry_run: Say what would be written, and write nothing.
    """
    require_there(records)
    from fedbench.leaderboard.rules import DIVISIONS
    from fedbench.leaderboard.submission import submit
    from fedbench.results.gather import gather

    where = opt.chosen("--division", division, DIVISIONS)
    statement = {"name": name, "authors": authors, "link": link, "note": note, "tried": tried}
    statement["submitted"] = datetime.now(UTC).date().isoformat()
    played = gather(records, lambda reason: warn(f"skipped {reason}"))
    return tell(submit(played, statement, board, where, track, replace), dry_run)


@app.command()
@opt.explained
def check(
    context: typer.Context,
    target: Path | None = None,
    board: BoardRead = BOARD,
    format: opt.Format = "table",
    own_rules: bool = False,
) -> int:
    """Check that files are what they say: exit code 1 if a rule is broken. Nothing is played.

    Positional:
        target: A board, a folder of one, or an entry; by default the board of --board.

    Options:
        own_rules: Admit rules of the board's own, not only those that were published.
    """
    from fedbench.cli import leaderboard_table as shown
    from fedbench.leaderboard.check import check

    opt.chosen("--format", format, ("table", "json"))
    checked = check(chosen_board(context, target, board), own_rules)
    if format == "json":
        print(shown.checked_json(checked))
    else:
        console = Console()
        console.print(shown.checks(checked, console.options))
    return int(any(shown.verdict(file.findings) == "refused" for file in checked))


app.command()(leaderboard_stages.freeze)
app.command()(leaderboard_stages.draw)
app.command("plan-ranking")(leaderboard_stages.plan_ranking)
app.command()(leaderboard_stages.complete)


@app.command()
@opt.explained
def reproduce(
    entry: Path,
    by: str,
    every: Annotated[bool, typer.Option("--all", help="Play all cells again.")] = False,
    read: list[str] | None = None,
    device: opt.Device = "auto",
    executor: opt.Executor = "auto",
    workers: opt.Workers = 0,
    threads: opt.Threads = 1,
    run_timeout: opt.RunTimeout = 21600.0,
    canonical: opt.Canonical = False,
    out: Path | None = None,
) -> int:
    """Play cells of an entry again and keep their records: it is replayed (0) or contested (1).

    Those are the ranking stage and two attacks of the development stage that the season drew, with
    all seeds; of an entry without a ranking stage, such as an open one, all cells. If the entry was
    played by other code than is installed, nothing is played: --out must have its runs by that
    code, and until it has them all, the commands that play them are printed (exit code 2).

    Positional:
        entry: JSON file of an entry on a board.

    Options:
        by: Name of who plays it again.
        read: First digits, 12 or more, of the SHA-256 of a file of another package that you have
            read, by default of none; needed of each unless only attacks and rules are another
            package's.

    Running:
        out: Folder of the runs, where a stopped command goes on; by default it starts anew.
    """
    if canonical:
        enter()
    from fedbench.cli.leaderboard_table import repetition
    from fedbench.experiment.scenario import code_version
    from fedbench.leaderboard.check import claim
    from fedbench.leaderboard.replays import (
        cell,
        commands,
        disagreements,
        has_read,
        keep,
        parts,
        play_again,
        require_name,
        required,
        stored,
    )
    from fedbench.sweeps.local import Options

    options = Options(
        device=device,
        executor=executor,
        workers=workers,
        threads=threads,
        run_timeout=run_timeout,
        canonical=canonical,
    )
    require_name(by)
    claimed = claim(entry)
    seen = has_read(claimed.entry, read or [])
    chosen = parts(claimed.entry) if every else required(claimed.entry, claimed.season)
    console = Console()
    is_installed = code_version() == claimed.entry.code
    comparisons = [] if is_installed else stored(claimed, chosen, out)
    missing = [part for part in chosen if part not in {each.part for each in comparisons}]
    if not is_installed and missing:
        folder = out or Path("results") / f"again-{claimed.entry.id}"
        print("\n".join(commands(claimed, missing, folder)))
        raise ConfigError(
            f"{entry} must be played again by its own code, {claimed.entry.code}, got "
            f"{code_version()}; run the lines above with that version, then say --out "
            f"{shlex.quote(str(folder))}"
        )
    for stage in dict.fromkeys(part.stage for part in missing):
        cells = {part: cell(claimed.entry, part.attack) for part in missing if part.stage == stage}
        seeds = [record.scenario.seed for record in claimed.of(next(iter(cells)))]
        with watcher(console, list(cells.values()), seeds) as watch:
            comparisons += play_again(claimed, cells, seeds, options, watch, out)
    if len(comparisons) < len(chosen):
        print("fedbench: stopped, the entry is as it was", file=sys.stderr)
        return 130
    differing = disagreements(comparisons, claimed.rules)
    console.print(repetition(claimed, comparisons, differing, console.options))
    now = keep(claimed, comparisons, by, seen)
    print(f"{entry} is {now.status}: {now.coverage()}")
    return int(any(differing.values()))


@app.command("spot-check")
@opt.explained
def spot_check(entry: Path, states: Path, public_value: str, rounds: int = 5) -> int:
    """Play a few rounds of canonical records again, each from the state that it committed to.

    Exit code 0 if all agree, 1 if not. Nobody chooses the rounds: they are drawn by SHA-256 from a
    public value that was not known when the entry was made, and from the entry's id.

    Positional:
        entry: JSON file of an entry on a board, or a folder of records.

    Options:
        states: Folder that --keep-states wrote; files that are not needed may be absent.
        public_value: Value that nobody could know before, in hex digits, e.g. of a drand round.
        rounds: Number of rounds.
    """
    enter()
    from fedbench.cli.leaderboard_table import spot_checks
    from fedbench.leaderboard import spot_check as spots

    drawn = spots.draw(spots.evidence(entry), public_value, rounds)
    spots.require_states(drawn, states)
    with opt.torch_threads(1):
        outcomes = spots.spot_check(drawn, states)
    console = Console()
    console.print(spot_checks(outcomes, console.options))
    differ = sum(bool(outcome.wrong) for outcome in outcomes)
    total = counted(len(outcomes), "round")
    print(f"{differ} of {total} differ" if differ else f"{total} played again, all agree")
    return int(differ > 0)


@app.command()
@opt.explained
def commit(file: Path, out: Path | None = None) -> None:
    """Commit to a held-out attack: write its salted file, and print the digest for the rules.

    Positional:
        file: Python file with the attack, a class HeldOut.

    Options:
        out: The salted file, which is to be kept secret; by default FILE.salted.py.
    """
    from fedbench.leaderboard.held_out import commit

    salted = out or file.with_suffix(".salted.py")
    print(commit(file, salted))
    text = f"keep {salted} secret, and put the digest under [held_out] in the next version"
    print(f"fedbench: {text}", file=sys.stderr)


@app.command()
@opt.explained
def reveal(
    attacks: list[Path],
    board: BoardOption = BOARD,
    device: opt.Device = "auto",
    executor: opt.Executor = "auto",
    workers: opt.Workers = 0,
    threads: opt.Threads = 1,
    run_timeout: opt.RunTimeout = 21600.0,
    canonical: opt.Canonical = False,
    out: Path | None = None,
) -> int:
    """Play held-out attacks, each in a process of its own, on the entries that did not know them.

    The code in these files is run: exit code 1 if any run failed.

    Positional:
        attacks: Salted files, as a version of the rules commits to them.

    Running:
        out: Folder that keeps the records, and where it goes on; by default they are dropped.
    """
    if canonical:
        enter()
    from fedbench.leaderboard import reveal as revealing
    from fedbench.leaderboard.held_out import installed, opened
    from fedbench.leaderboard.rules import versions
    from fedbench.sweeps.drive import play_each
    from fedbench.sweeps.local import Options

    options = Options(
        device=device,
        executor=executor,
        workers=workers,
        threads=threads,
        run_timeout=run_timeout,
        isolate=True,
        canonical=canonical,
    )
    rules = versions(board)
    read = [opened(path, rules) for path in attacks]
    console = Console()
    failed = stopped = 0
    with installed(read):
        targets, left_out = revealing.targets(board, read)
        for reason in left_out:
            warn(f"skipped {reason}")
        for seeds in dict.fromkeys(tuple(target.entry.seeds) for target in targets):
            group = [target for target in targets if tuple(target.entry.seeds) == seeds]
            cells = list(dict.fromkeys(target.cell for target in group))
            with watcher(console, cells, seeds) as watch:
                records, failures = play_each(cells, seeds, options, watch, out)
            failed += len(failures)
            for target in group:
                played = records.get(target.cell, [])
                if len(played) == len(seeds):
                    revealing.keep(target, played)
                    print(f"wrote the records of {target.attack.name} beside {target.path}")
                else:
                    stopped += 1
    if failed or stopped:
        pairs = f"{stopped} of {len(targets)} pairs of entry and attack"
        why = f"{counted(failed, 'run')} failed" if failed else "stopped; repeat the line"
        warn(f"nothing is written for {pairs}: {why}")
    return 1 if failed else 130 if stopped else 0


@app.command()
@opt.explained
def rank(
    context: typer.Context,
    folder: Folder = None,
    board: BoardRead = BOARD,
    division: str | None = None,
    track: str | None = None,
    view: str = "equal-rounds",
    bits: float | None = None,
    pareto: bool = False,
    format: str = "table",
) -> None:
    """Rank entries by their worst case, with how sure the order is and what each entry costs.

    Options:
        division: Division: closed or open; by default both.
        track: Track; by default all of them.
        view: How entries compare: equal-rounds or equal-bits.
        bits: Budget of --view equal-bits, per parameter, up and down; by default what the cheapest
            entry needs.
        pareto: Show only the Pareto front.
        format: Form of the output: table, json, csv or md.
    """
    from dataclasses import replace

    from fedbench.cli import leaderboard_table as shown
    from fedbench.leaderboard.board import races
    from fedbench.leaderboard.held_out import gaps
    from fedbench.leaderboard.rank import VIEWS, comparable_groups, ranking
    from fedbench.leaderboard.rules import DIVISIONS, readable
    from fedbench.leaderboard.rules import newest as newest_rules

    board = chosen_board(context, folder, board)
    require("--division", division, division in (None, *DIVISIONS), "closed or open")
    chosen = opt.chosen("--view", view, VIEWS)
    opt.chosen("--format", format, ("table", "json", "csv", "md"))
    require("--bits", bits, bits is None or 0 < bits < math.inf, "a finite number > 0")
    require("--bits", bits, bits is None or view == "equal-bits", "left out without equal-bits")
    rules = newest_rules(readable(board))
    places = [
        shown.RankingTable(
            *race,
            ranking(group, chosen, bits, rules.limits(race[1])),
            rules.version,
            gaps(board, group),
        )
        for race, entries in races(board).items()
        if division in (None, race[0]) and track in (None, race[1])
        for group in comparable_groups(entries)
    ]
    if pareto:
        places = [replace(place, ranking=place.ranking.front()) for place in places]
    if not board.exists():
        raise ConfigError(
            f"{board} must be a board with entries, got none here; run it in a clone of the "
            "repository, or name its folder"
        )
    unfiltered = division is None and track is None
    if not places and unfiltered and format in ("table", "md"):
        print("There are no entries yet.")
        return
    if not places and not unfiltered:
        raise ConfigError(f"{board} must have entries of that track, got none; submit one first")
    texts = {"json": shown.as_json, "csv": shown.as_csv, "md": shown.as_markdown}
    if format in texts:
        print(texts[format](places).rstrip("\n"))
        return
    console = Console()
    for place in places:
        console.print(place)
        console.print()
    met = any(place.held_out for place in places)
    legend = [pair for pair in shown.LEGEND.items() if met or pair[0] != shown.GAP]
    console.print(listed(legend, console.options))


@app.command()
@opt.explained
def render(
    context: typer.Context,
    folder: Folder = None,
    board: BoardRead = BOARD,
    out: Path | None = None,
) -> None:
    """Write the page of a board: ranks, races and entries.

    Options:
        out: Folder for the page; by default the board.
    """
    from fedbench.leaderboard.site.page import render

    board = chosen_board(context, folder, board)
    for path in render(board, out or board):
        print(path)


@app.command()
@opt.explained
def schema(out: Path = BOARD / "schema") -> None:
    """Write the JSON Schemas of entries, records and rules.

    Options:
        out: Folder for the schemas.
    """
    from fedbench.leaderboard.board import write_schemas

    for path in write_schemas(out):
        print(path)
