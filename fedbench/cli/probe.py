"""``fedbench probe``: what an adversary learns about the data from what the server sees."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedbench.cli import options as opt
from fedbench.cli.terminal import status
from fedbench.tables.numbers import counted

app = typer.Typer(no_args_is_help=True, help="Read what the server sees: who trained on what.")
COMPARED = {"protocol": "Repeat to compare.", "mechanism": "Repeat to compare."}
SYSTEMS = {"protocol": ["fedavg", "signsgd", "fedpm", "fsl"], "mechanism": ["none"]}
Seeds = Annotated[str, opt.option("Seeds, comma-separated, e.g. 0,1,2.")]
Out = Annotated[Path, opt.option("Folder for what is left behind.")]


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
def membership(
    context: typer.Context,
    shadows: Annotated[
        int, opt.option("Runs with and without each example, together; an even number.")
    ] = 8,
    seeds: Seeds = "0",
    threads: opt.Threads = 1,
    out: Out = Path("results"),
) -> None:
    """Tell whether an example was in a client's training data: LiRA with few shadows, and cosines.

    Every training example of one client, the victim, is in half of the shadow runs and out of the
    others; the adversary has to tell in which. It knows all the rest: the other clients' data, the
    seed, every message of the victim.
    """
    from fedbench.cli.probe_table import show_membership, to_json
    from fedbench.core.files import writable, write_atomically
    from fedbench.experiment.scenario import Scenario
    from fedbench.probes.membership import probe

    numbers = opt.parse_seeds(seeds)
    writable(out)
    systems = context.obj.pop("protocol"), context.obj.pop("mechanism")
    scenario = Scenario.of(
        **context.obj, malicious=0.0, partition="iid", eval_every=context.obj["rounds"]
    )
    with opt.torch_threads(threads), status() as say:
        report = probe(scenario, *systems, numbers, shadows, say)
    path = out / "membership.json"
    write_atomically(path, to_json(report).encode())
    console = Console()
    show_membership(console, report, scenario.model_dump(), len(numbers))
    console.print(f"\nwrote {path}", highlight=False, soft_wrap=True)


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
def inversion(
    context: typer.Context,
    images: Annotated[
        int,
        opt.option("Messages that are attacked, each of another client.", panel=opt.CLIENTS),
    ] = 2,
    steps: Annotated[int, opt.option("Steps of Adam on the image.")] = 150,
    seeds: Seeds = "0",
    threads: opt.Threads = 1,
    out: Out = Path("results"),
) -> None:
    """Reconstruct the image that a client trained on: inversion of one message of one local step.

    The adversary knows the labels and the client's draws (a worst case), simulates the update of an
    image, and moves the image until its update points where the message does.
    """
    from fedbench.cli.probe_table import inversion_json, show_inversion
    from fedbench.core.errors import require
    from fedbench.core.files import writable, write_atomically
    from fedbench.experiment.scenario import Scenario
    from fedbench.figures.probe_picture import draw
    from fedbench.probes.inversion import probe

    numbers = opt.parse_seeds(seeds)
    require("--images", images, images >= 1, ">= 1")
    writable(out)
    systems = context.obj.pop("protocol"), context.obj.pop("mechanism")
    scenario = Scenario.of(
        **context.obj,
        **{"clients": images, "per_round": images, "epochs": 1, "malicious": 0.0},
        **{"partition": "iid", "eval_every": context.obj["rounds"]},
    )
    with opt.torch_threads(threads), status() as say:
        report = probe(scenario, *systems, numbers, steps, say)
    caption = (
        f"{scenario.dataset}, {scenario.model}, round {scenario.rounds}; one local step on "
        f"{counted(scenario.batch_size, 'image')}, {steps} steps of Adam"
    )
    picture = out / "inversion.png"
    draw(report, caption, picture)
    text = out / "inversion.json"
    write_atomically(text, inversion_json(report).encode())
    console = Console()
    show_inversion(console, report, caption)
    console.print(f"\nwrote {picture} and {text}", highlight=False, soft_wrap=True)
