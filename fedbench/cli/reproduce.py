"""``fedbench reproduce``: tables and figures of the five papers, ours beside theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedbench.cli import options as opt
from fedbench.cli.comparison import comparison_table, explanations
from fedbench.cli.terminal import watcher
from fedbench.core.canonical import enter
from fedbench.core.errors import ConfigError, require
from fedbench.tables.numbers import counted
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import grid

if TYPE_CHECKING:
    from fedbench.experiment.cells import Run
    from fedbench.reproduce.exhibits import Exhibit, Paper, PaperNumber
    from fedbench.reproduce.outcomes import Outcome
    from fedbench.results.store import Failure
    from fedbench.sweeps.engine import Engine
    from fedbench.sweeps.local import Options


@opt.explained
def reproduce(
    exhibit: str | None = None,
    scale: str | None = None,
    summary: bool = False,
    into: Path | None = None,
    out: Path | None = None,
    keep: Path | None = None,
    seeds: str | None = None,
    dry_run: bool = False,
    engine: str = "local",
    device: opt.Device = "auto",
    executor: opt.Executor = "auto",
    chunk: opt.Chunk = 32,
    workers: opt.Workers = 0,
    threads: opt.Threads = 1,
    run_timeout: opt.RunTimeout = 21600.0,
    canonical: opt.Canonical = False,
    address: str | None = None,
    gpus_per_run: float = 0.0,
) -> None:
    """Play a table or figure of a paper and print ours beside the paper's number for every cell.

    Without EXHIBIT, list all of them: what is played, how long it takes, how many numbers agree. A
    run that was played is not played again, so a stopped command continues.

    Positional:
        exhibit: Name from the list, for example fsl-table2. By default, all are listed.

    Options:
        scale: Size of the experiment: mini, few clients and rounds; paper-data, the paper's data,
            model, clients and hyperparameters with fewer rounds; full, the paper's. By default mini
            where the list has a time for it, else paper-data.
        summary: Count for every exhibit how many cells agree, differ, or were not run.
        into: Folder with a page of Markdown for each paper, into which all numbers of it that were
            played or follow from a formula are written anew beside ours. By default, none are.
        out: Folder of the records; by default results/reproduce.
        keep: Folder for the outcome, a small file that the list and the summary read. By default,
            none is written.
        seeds: Seeds, comma-separated; by default those of the scale.
        dry_run: Say what would be played, and its size beside the paper's.

    Running:
        engine: What plays the runs: local or ray.

    Ray:
        address: Address of the cluster: auto, HOST:PORT or ray://…; by default that of RAY_ADDRESS,
            else of one that starts here.
        gpus_per_run: GPUs of a run; a fraction lets runs share one.
    """
    if canonical:
        enter()
    from fedbench.reproduce.exhibits import SCALES
    from fedbench.reproduce.exhibits import exhibit as named

    if scale is not None:
        opt.chosen("--scale", scale, SCALES)
    opt.chosen("--engine", engine, ("local", "ray"))
    require("--gpus-per-run", gpus_per_run, gpus_per_run >= 0, ">= 0")
    console = Console(highlight=False)
    if into is not None and (summary or exhibit is not None):
        raise ConfigError("--into is of all exhibits, got EXHIBIT or --summary; leave one out")
    if exhibit is None:
        print_overview(console, summary, into)
        return
    asked = named(exhibit)
    if summary:
        raise ConfigError("--summary is of all exhibits, got EXHIBIT as well; leave one out")
    if asked.needs:
        raise ConfigError(f"EXHIBIT {asked.name} cannot be played: {asked.needs}")
    if asked.computed() and not asked.trained("full"):
        print_comparison(console, asked, None, "full")  # formulas are the same at every scale
        return
    scale = playable_scale(asked, scale)
    chosen = None if seeds is None else opt.parse_seeds(seeds)
    announce(console, asked, scale, chosen)
    if dry_run:
        return
    from fedbench.cli.sweep import make_engine
    from fedbench.results.store import Store
    from fedbench.sweeps.local import Options

    folder = out or Path("results") / "reproduce"
    options = Options(
        device=device,
        executor=executor,
        chunk=chunk,
        workers=workers,
        threads=threads,
        run_timeout=run_timeout,
        canonical=canonical,
        checkpoints=Store(folder).checkpoints,
    )

    def players(runs: int) -> Engine:
        return make_engine(engine, options, runs, address, gpus_per_run)

    outcome, failed = play(console, asked, scale, chosen, options, folder, players)
    print_comparison(console, asked, outcome, scale)
    if failed:
        run, failure = next(iter(failed.items()))
        raise ConfigError(f"{counted(len(failed), 'run')} failed, the first is {run}: {failure}")
    if keep is not None and outcome is not None:
        print(f"wrote {outcome.write(keep)}")


def playable_scale(exhibit: Exhibit, scale: str | None) -> str:
    """Return the scale, by default the smallest; `ConfigError` if the exhibit does not have it."""
    from fedbench.reproduce.exhibits import SCALES

    others = [name for name in SCALES if exhibit.at(name) is not None]
    if scale is None:
        scale = next((name for name in others if name != "full"), None)  # that takes weeks
    if scale not in others:
        raise ConfigError(
            f"--scale of {exhibit.name} must be {' or '.join(others)}, got {scale or 'none'}"
        )
    return scale


def play(
    console: Console,
    exhibit: Exhibit,
    scale: str,
    seeds: Sequence[int] | None,
    options: Options,
    folder: Path,
    players: Callable[[int], Engine] | None = None,
) -> tuple[Outcome | None, dict[Run, Failure]]:
    """Play the runs that the folder lacks; return what was measured, and the runs that failed.

    ``players`` makes the engine for so many runs; by default they are played on this machine.
    """
    import datetime

    from fedbench.experiment.cells import Cell
    from fedbench.reproduce.outcomes import measured
    from fedbench.sweeps.drive import play_each

    played = exhibit.at(scale)
    assert played is not None
    chosen = played.seeds if seeds is None else seeds
    claims = exhibit.trained(scale)
    cells = {s: Cell(s) for claim in claims for s in exhibit.scenarios(claim, scale)}
    unique = {cell.resolved: cell for cell in cells.values()}
    engine = players(len(unique) * len(chosen)) if players else None
    with watcher(console, list(unique.values()), chosen) as watch:
        records, failed = play_each(
            list(unique.values()), chosen, options, watch, folder, engine=engine
        )
    by_scenario = {
        scenario: records.get(unique[cell.resolved], []) for scenario, cell in cells.items()
    }
    if not any(by_scenario.values()):
        return None, failed
    return measured(exhibit, scale, by_scenario, datetime.date.today().isoformat()), failed


def announce(console: Console, exhibit: Exhibit, scale: str, seeds: Sequence[int] | None) -> None:
    """Print what is played, what differs from the paper, and its size beside the paper's."""
    played = exhibit.at(scale)
    assert played is not None
    claims = exhibit.trained(scale)
    chosen = played.seeds if seeds is None else seeds
    console.print(f"{exhibit.label}: {exhibit.shows}", style="bold", markup=False)
    names = ",".join(map(str, chosen))
    scenarios = {s for claim in claims for s in exhibit.scenarios(claim, scale)}
    runs = len(scenarios) * len(chosen)
    played_cells = f"{len(claims)} of {counted(len(exhibit.cell), 'cell')}"
    print(f"{played_cells} x seeds {names} = {counted(runs, 'run')} at {scale}")
    if played.differs:
        print(f"differs from the paper: {played.differs}")
    table = sizes(exhibit, claims, scale)
    if table is not None:
        console.print(grid(table, console.options))


def sizes(exhibit: Exhibit, claims: Sequence[PaperNumber], scale: str) -> Table | None:
    """Return the dimensionless numbers of the cell with most malicious clients, and the paper's.

    None if no cell is played.
    """
    from fedbench.reproduce.sizes import size

    if not claims:
        return None
    claim = max(claims, key=lambda claim: exhibit.scenario(claim, "full").malicious)
    scenarios = [exhibit.scenario(claim, scale), exhibit.scenario(claim, "full")]
    here, paper = (size(scenario) for scenario in scenarios)
    rows = (
        ("samples", ".0f", "training samples of a client"),
        ("steps", "d", "local steps of a client in a round"),
        ("total_steps", "d", "local steps over all rounds"),
        ("half_malicious", ".2g", "P(malicious are half of a round)"),
        ("half_malicious_run", ".2g", "P(such a round in a run)"),
        ("operations", ".2g", "operations of training"),
    )

    def printed(numbers: object, name: str, form: str) -> str:
        return "n/a" if numbers is None else format(getattr(numbers, name), form)

    lines = [
        Line([words, printed(here, name, form), printed(paper, name, form)])
        for name, form, words in rows
    ]
    columns = [Column(f"of {claim.name}", "left", wraps=True), Column(scale), Column("paper")]
    return Table(columns, lines)


def print_comparison(
    console: Console, exhibit: Exhibit, outcome: Outcome | None, scale: str
) -> None:
    """Print every cell of an exhibit, the known reasons, and the counts."""
    from fedbench.reproduce.verdicts import compare, counts

    cells = [compare(exhibit, claim, outcome, scale) for claim in exhibit.cell]
    show(console, comparison_table(exhibit, cells))
    for text in explanations(cells):
        print(text)
    verdicts = [f"{n} {verdict.value}" for verdict, n in counts(cells).items()]
    print(f"{counted(len(cells), 'cell')}: {', '.join(verdicts)}")


def print_overview(console: Console, summary: bool, into: Path | None) -> None:
    """Print the list of all exhibits or their summary, or write the papers' pages."""
    if into is not None:
        print_pages(into)
    elif summary:
        show(console, summary_table())
    else:
        print_listing(console)


def print_pages(folder: Path) -> None:
    """Write every number that there is into the papers' pages, and say which pages that changed."""
    from fedbench.cli.paper_page import write_pages

    for path, changed in write_pages(folder).items():
        print(f"{path} {'has been written' if changed else 'is as it should be'}")


def print_listing(console: Console) -> None:
    """Print the exhibits of all papers, and how to play one."""
    from fedbench.reproduce.exhibits import papers

    for paper in papers():
        console.print(paper.title, style="bold", markup=False)
        show(console, listing(paper))
        print()
    print("agree: numbers of the latest result that agree with the paper, of those there are")
    print("mini, paper-data, full: estimated time on two cores; H200: predicted, of full")
    print("see fedbench reproduce EXHIBIT --dry-run")


def listing(paper: Paper) -> Table:
    """Return the exhibits of a paper: what agrees, and what each costs at every scale."""
    from fedbench.reproduce.exhibits import SCALES
    from fedbench.reproduce.outcomes import stored_outcomes
    from fedbench.reproduce.verdicts import Verdict, compared, counts

    lines = []
    for exhibit in paper.exhibit:
        count = counts(compared(exhibit, stored_outcomes()))
        played = len(exhibit.cell) - count[Verdict.NOT_RUN]
        result = f"{count[Verdict.AGREES]} of {played}" if played else ""
        costs = [cost(exhibit, scale) for scale in SCALES]
        lines.append(Line([exhibit.name, result, *costs, cost(exhibit, "full", gpu=True)]))
    headings = ["agree", *SCALES, "H200"]
    columns = [Column("exhibit", "left", wraps=True), *map(Column, headings)]
    return Table(columns, lines)


def cost(exhibit: Exhibit, scale: str, gpu: bool = False) -> str:
    """Return the estimated time of an exhibit at a scale, as text; empty if it is not played."""
    from fedbench.reproduce.sizes import size

    played = exhibit.at(scale)
    claims = exhibit.trained(scale)
    if played is None or not claims or exhibit.needs:
        return ""
    described = {s for claim in claims for s in exhibit.scenarios(claim, scale)}
    scenarios = sorted(described, key=repr)
    sizes = [s for s in map(size, scenarios) if s is not None]
    if len(sizes) < len(scenarios):
        return "n/a"
    seconds = sum(each.on_gpu() if gpu else each.here for each in sizes) * len(played.seeds)
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:,.0f} h"


def summary_table() -> Table:
    """Return how many cells of every exhibit agree, differ, or were not run."""
    from fedbench.reproduce.exhibits import papers
    from fedbench.reproduce.outcomes import stored_outcomes
    from fedbench.reproduce.verdicts import Verdict, compared, counts

    lines = []
    totals = dict.fromkeys(Verdict, 0)
    for paper in papers():
        lines.append(Line([paper.title], title=True))
        for exhibit in paper.exhibit:
            by_verdict = counts(compared(exhibit, stored_outcomes()))
            lines.append(Line([exhibit.name, *(str(n) for n in by_verdict.values())]))
            totals = {verdict: totals[verdict] + n for verdict, n in by_verdict.items()}
    lines.append(Line(["all papers"], title=True))
    lines.append(Line(["cells", *(str(n) for n in totals.values())]))
    headings = ["agrees", "reason\nknown", "no\nreason", "not\nrun"]  # in the order of `Verdict`
    columns = [Column("exhibit", "left", wraps=True), *map(Column, headings)]
    return Table(columns, lines, "Numbers that agree with the paper, and numbers that differ")


def show(console: Console, table: Table) -> None:
    """Print a table on the console."""
    console.print(grid(table, console.options))
