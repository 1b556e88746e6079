"""``fedbench probe``: what an adversary learns about the data from what the server sees."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fedbench.cli import options as opt
from fedbench.cli.terminal import status
from fedbench.core.errors import require
from fedbench.core.files import writable, write_atomically
from fedbench.tables.numbers import NA, counted, nats, or_none, percent
from fedbench.tables.table import Line, Table
from fedbench.tables.terminal import cell, grid, listed

if TYPE_CHECKING:
    from fedbench.probes.inversion import InversionReport
    from fedbench.probes.membership import Membership

app = typer.Typer(no_args_is_help=True, help="Measure what messages reveal about training data.")
COMPARED = {"protocol": "Repeat to compare.", "mechanism": "Repeat to compare."}
SYSTEMS = {"protocol": ["fedavg", "signsgd", "fedpm", "fsl"], "mechanism": ["none"]}
Seeds = Annotated[str, opt.option("Seeds, comma-separated, e.g. 0,1,2.")]
Out = Annotated[Path, opt.option("Folder for the numbers, and for the picture of an inversion.")]
HEURISTIC = (
    "a heuristic attack: what it finds is lost, what it does not find may still be there; it "
    "proves no epsilon, and one that is proved bounds better attacks too"
)


@app.command(
    cls=opt.scenario_command(
        *("protocol", "mechanism", "dataset", "model", "clients", "per_round", "rounds", "epochs"),
        *("batch_size", "delta"),
        more=COMPARED,
        **SYSTEMS,
        clients=10,
        per_round=3,
        rounds=5,
        epochs=5,
        batch_size=16,
    )
)
@opt.explained
def membership(
    context: typer.Context,
    shadows: int = 8,
    seeds: Seeds = "0",
    threads: opt.Threads = 1,
    out: Out = Path("results"),
) -> None:
    """Tell whether an example was in a client's training data: LiRA with few shadows, and cosines.

    Every training example of one client, the victim, is in half of the shadow runs and out of the
    others; the adversary has to tell in which. It knows all the rest: the other clients' data, the
    seed, every message of the victim.

    Running:
        shadows: Runs with and without each example, together; an even number.
    """
    opt.require_installed(opt.typed(context))
    from fedbench.experiment.scenario import Scenario
    from fedbench.probes.membership import probe

    numbers = opt.parse_seeds(seeds)
    writable(out)
    protocols = context.obj.pop("protocol")
    mechanisms = context.obj.pop("mechanism")
    rounds = context.obj["rounds"]
    scenario = Scenario.of(**context.obj, malicious=0.0, partition="iid", eval_every=rounds)
    with opt.torch_threads(threads), status() as say:
        report = probe(scenario, protocols, mechanisms, numbers, shadows, say)
    path = out / "membership.json"
    write_atomically(path, (json.dumps(dataclasses.asdict(report), indent=1) + "\n").encode())
    first = report.results[0]
    setting = [
        f"{scenario.dataset}, {scenario.model}, iid; {scenario.clients} clients, "
        f"{scenario.per_round} a round; {counted(rounds, 'round')}, "
        f"{counted(scenario.epochs, 'epoch')}, batch {scenario.batch_size}",
        f"{counted(len(numbers), 'victim')}, {first.candidates} candidates, heard in "
        f"{first.rounds:.2g} of {counted(rounds, 'round')}; {first.shadows} shadows"
        f"{' each' if len(numbers) > 1 else ''}: in and out {first.others} times",
    ]
    terms = member_captions(report.results, scenario.delta)
    show("Membership", setting, member_table(report.results), terms, report.skipped)
    print(f"\nwrote {path}")


@app.command(
    cls=opt.scenario_command(
        *("protocol", "mechanism", "dataset", "model", "batch_size", "rounds"),
        more=COMPARED | {"rounds": "The last one is attacked.", "batch_size": "There is one step."},
        **SYSTEMS,
        dataset="mnist-5k",
        batch_size=1,
        rounds=1,
    )
)
@opt.explained
def inversion(
    context: typer.Context,
    images: int = 2,
    steps: int = 150,
    seeds: Seeds = "0",
    threads: opt.Threads = 1,
    out: Out = Path("results"),
) -> None:
    """Reconstruct the image that a client trained on: inversion of one message of one local step.

    The adversary knows the labels and the client's draws (a worst case), simulates the update of an
    image, and moves the image until its update points where the message does.

    Clients and training:
        images: Messages that are attacked, each of another client.

    Running:
        steps: Steps of Adam on the image.
    """
    opt.require_installed(opt.typed(context))
    from fedbench.experiment.scenario import Scenario
    from fedbench.figures.probe_picture import compose, strips
    from fedbench.figures.style import save
    from fedbench.probes.inversion import probe

    numbers = opt.parse_seeds(seeds)
    require("--images", images, images >= 1, ">= 1")
    writable(out)
    protocols = context.obj.pop("protocol")
    mechanisms = context.obj.pop("mechanism")
    scenario = Scenario.of(
        **context.obj,
        **{"clients": images, "per_round": images, "epochs": 1, "malicious": 0.0},
        **{"partition": "iid", "eval_every": context.obj["rounds"]},
    )
    with opt.torch_threads(threads), status() as say:
        report = probe(scenario, protocols, mechanisms, numbers, steps, say)
    caption = (
        f"{scenario.dataset}, {scenario.model}, round {scenario.rounds}; one local step on "
        f"{counted(scenario.batch_size, 'image')}, {steps} steps of Adam"
    )
    picture = out / "inversion.png"
    save(compose(strips(report), caption), picture)
    text = out / "inversion.json"
    write_atomically(text, inversion_json(report).encode())
    setting = [f"{caption}; {counted(len(report.truth), 'image')}"]
    show("Inversion", setting, inversion_table(report), INVERSION_CAPTIONS, report.skipped)
    print(f"\nwrote {picture} and {text}")


def show(
    title: str,
    setting: Sequence[str],
    table: Table,
    terms: Iterable[tuple[str, str]],
    skipped: Iterable[str],
) -> None:
    """Print the setting, the table, the meaning of its columns, and what was skipped."""
    console = Console(highlight=False)
    options = console.options
    console.print(f"[bold]{title}[/bold]")
    for line in setting:
        console.print(line, markup=False)
    for part in (grid(table, options), listed(terms, options), cell(HEURISTIC, options)):
        console.print()
        console.print(part)
    for reason in skipped:
        console.print(f"skipped: {reason}", markup=False)


def member_table(results: Sequence[Membership]) -> Table:
    """Make the table: every system's name, accuracy and epsilon, then its readings.

    A rate that was resolved for nobody has no column.
    """
    from fedbench.probes.membership import RATES

    readings = [reading for result in results for reading in result.readings]
    rates = [rate for rate in RATES if any(r.tprs[rate] is not None for r in readings)]
    tprs = [f"TPR at\nFPR {100 * rate:g} %" for rate in rates]
    headings = ["system\n  what is read", "\nAUC", "95 %\ninterval", *tprs]
    headings += ["bal.\nacc. %", "model\nacc. %", "\nε"]
    lines = []
    for result in results:
        name = f"{result.protocol} + {result.mechanism}"
        numbers = [percent(result.accuracy), or_none(result.epsilon, nats)]
        lines.append(Line([name, *[""] * (len(headings) - 3), *numbers], title=True))
        for reading in result.readings:
            area = reading.auc
            interval = f"{area.low:.3f}-{area.high:.3f}"
            estimates = [reading.tprs[rate] for rate in rates]
            shares = [NA if x is None else percent(x.value) for x in estimates]
            texts = [reading.name, f"{area.value:.3f}", interval, *shares]
            lines.append(Line([*texts, percent(reading.balanced), "", ""]))
    return Table.of(headings, lines)


def member_captions(results: Sequence[Membership], delta: float) -> list[tuple[str, str]]:
    """Explain the columns and the readings."""
    from fedbench.probes.membership import RATES

    terms = [
        ("deployed model", "confidence of the final model in the true class"),
        ("messages", "what the victim sent, mean over rounds: the same, of its message as a model"),
        ("cosine", "of the message with the update of one step on the example alone"),
        ("LiRA", "that number's Gaussian likelihood ratio between shadows with and without it"),
        ("AUC", "0.5 is a guess; interval over examples, not over victims or seeds"),
        ("TPR, acc.", "in percent; balanced accuracy at ratio 1, or above a run's median"),
    ]
    coarse = [rate for rate in RATES if results[0].others * rate < 1]
    if coarse:
        rates = " and ".join(f"{100 * rate:g} %" for rate in coarse)
        needed = f"not resolved by {results[0].others} times out: {round(1 / min(coarse))}"
        terms.append((f"FPR {rates}", f"{needed} are needed; add shadows or seeds"))
    if any(result.epsilon is not None for result in results):
        units = sorted({f"{r.unit} level" for r in results if r.epsilon is not None})
        terms.append(("ε", f"proved, at delta {delta:g}, {' or '.join(units)}, of the same runs"))
    return terms


INVERSION_CAPTIONS = (
    ("PSNR, SSIM", "to the truth, mean ± std over images; pixels in [0, 1]"),
    ("message", "signs, masks minus theta_g, scores of a ranking minus those sent down, or floats"),
    ("raw update", "the same attack without mechanism and codec, which nobody sends"),
    (
        "cosine",
        "of the image's simulated update with what is inverted; if the truth's is not above "
        "the found one's, no search would do better without a better prior",
    ),
    (
        "best other",
        "nearest to the truth, chosen with the truth in hand: what knowing the class may give",
    ),
    ("draws", "of masks in training: the client's own, as if the adversary knew them"),
)


def inversion_table(report: InversionReport) -> Table:
    """Make the table: every system's name, its reconstructions, and what a guess is worth."""
    from fedbench.probes.inversion import MESSAGE, RAW

    lines = []
    for system in report.results:
        lines.append(Line([f"{system.protocol} + {system.mechanism}"], title=True))
        lines += [Line([name, *summary(system.reconstructions[name])]) for name in (MESSAGE, RAW)]
    lines.append(Line(["no message"], title=True))
    lines += [Line([name, *summary(images)]) for name, images in report.guesses.items()]
    headings = ("system\n  what is inverted", "PSNR\ndB", "\nSSIM", "cosine\nfound", "\nof truth")
    return Table.of(headings, lines)


def summary(images: Sequence[Any]) -> list[str]:
    """Format PSNR, SSIM and the two cosines over images."""
    texts = [spread([image.psnr for image in images], 1), spread([x.ssim for x in images], 2)]
    for name in ("cosine", "ceiling"):
        cosines = [getattr(image, name) for image in images]
        texts.append("" if cosines[0] is None else f"{sum(cosines) / len(cosines):.3f}")
    return texts


def spread(x: Sequence[float], digits: int) -> str:
    """Format mean and sample standard deviation.

    >>> spread([1.0, 2.0, 3.0], 1), spread([1.0], 1)
    ('2.0 ± 1.0', '1.0')
    """
    mean = f"{statistics.fmean(x):.{digits}f}"
    return f"{mean} ± {statistics.stdev(x):.{digits}f}" if len(x) > 1 else mean


def inversion_json(report: InversionReport) -> str:
    """Write the numbers of every image, in full precision."""
    names = ("psnr", "ssim", "cosine", "ceiling")

    def numbers(images: dict[str, Any]) -> dict[str, Any]:
        return {
            what: [{name: getattr(image, name) for name in names} for image in each]
            for what, each in images.items()
        }

    systems = [
        {"protocol": s.protocol, "mechanism": s.mechanism, **numbers(s.reconstructions)}
        for s in report.results
    ]
    whole = {"results": systems, "guesses": numbers(report.guesses), "skipped": report.skipped}
    return json.dumps(whole, indent=1) + "\n"
