"""``fedbench probe``: what an adversary gets out of what the server sees."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Read what the server sees: who trained on what.")
PROTOCOLS = ("fedavg", "signsgd", "fedpm", "fsl")
_WHAT, _WHERE, _WHO, _HOW = "What is tried", "Data and model", "Clients and training", "Running"

Axis = Annotated[
    list[str] | None,
    typer.Option("--protocol", "-p", help="repeat to compare", rich_help_panel=_WHAT),
]
Mechanisms = Annotated[
    list[str] | None,
    typer.Option(
        "--mechanism", "-m", help="repeat to compare; 'none' is one", rich_help_panel=_WHAT
    ),
]
Dataset = Annotated[str, typer.Option(rich_help_panel=_WHERE)]
Model = Annotated[str, typer.Option(rich_help_panel=_WHERE)]
Seeds = Annotated[str, typer.Option(help="comma-separated, e.g. 0,1,2", rich_help_panel=_HOW)]
Threads = Annotated[int, typer.Option(help="of torch, on a CPU", rich_help_panel=_HOW)]
Out = Annotated[Path, typer.Option(help="folder for what is left behind", rich_help_panel=_HOW)]


@app.callback()
def probe() -> None:
    """Read what the server sees: who trained on what."""


@app.command()
def membership(
    protocol: Axis = None,
    mechanism: Mechanisms = None,
    dataset: Dataset = "digits",
    model: Model = "lenet",
    clients: Annotated[int, typer.Option(rich_help_panel=_WHO)] = 10,
    per_round: Annotated[
        int, typer.Option(help="clients sampled in each round", rich_help_panel=_WHO)
    ] = 3,
    rounds: Annotated[int, typer.Option(rich_help_panel=_WHO)] = 5,
    epochs: Annotated[int, typer.Option(rich_help_panel=_WHO)] = 5,
    batch_size: Annotated[int, typer.Option(rich_help_panel=_WHO)] = 16,
    delta: Annotated[float, typer.Option(help="of every epsilon", rich_help_panel=_WHO)] = 1e-5,
    shadows: Annotated[
        int, typer.Option(help="runs with and without each example; even", rich_help_panel=_HOW)
    ] = 8,
    seeds: Seeds = "0",
    threads: Threads = 1,
    out: Out = Path("results"),
) -> None:
    """Was this example in the client's training data? LiRA with few shadows, and cosines.

    Every training example of one client, the victim, is in half of the shadow runs and out of the
    others; the adversary has to tell in which. It knows all the rest: the other clients' data, the
    seed, every message of the victim.
    """
    from rich.console import Console

    from fedbench.cli.attack import parse_seeds
    from fedbench.cli.bench import progress
    from fedbench.cli.probe_table import show_membership, to_json
    from fedbench.core.files import writable, write_atomically
    from fedbench.experiment.scenario import Scenario

    numbers = parse_seeds(seeds)
    writable(out)
    scenario = Scenario.of(
        **{"dataset": dataset, "model": model, "clients": clients, "per_round": per_round},
        **{"rounds": rounds, "epochs": epochs, "batch_size": batch_size, "delta": delta},
        **{"malicious": 0.0, "partition": "iid", "eval_every": rounds},
    )
    from fedbench.probes.membership import probe as play

    systems = protocol or list(PROTOCOLS), mechanism or ["none"]
    with torch_threads(threads), progress() as say:
        report = play(scenario, *systems, numbers, shadows, say)
    path = out / "membership.json"
    write_atomically(path, to_json(report).encode())
    console = Console()
    show_membership(console, report, scenario.model_dump(), len(numbers))
    console.print(f"\nwrote {path}", highlight=False, soft_wrap=True)


@app.command()
def inversion(
    protocol: Axis = None,
    mechanism: Mechanisms = None,
    dataset: Dataset = "mnist-5k",
    model: Model = "lenet",
    images: Annotated[
        int, typer.Option(help="messages attacked, each of another client", rich_help_panel=_WHO)
    ] = 2,
    batch_size: Annotated[
        int, typer.Option(help="training images of one message", rich_help_panel=_WHO)
    ] = 1,
    rounds: Annotated[
        int, typer.Option(help="the round that is attacked; 1 is the first", rich_help_panel=_WHO)
    ] = 1,
    steps: Annotated[int, typer.Option(help="of Adam on the image", rich_help_panel=_HOW)] = 150,
    seeds: Seeds = "0",
    threads: Threads = 1,
    out: Out = Path("results"),
) -> None:
    """Which image did the client train on? Gradient inversion of one message of one local step.

    The adversary knows the labels and the client's draws (a worst case), simulates the update of an
    image, and moves the image until its update points where the message does.
    """
    from rich.console import Console

    from fedbench.cli.attack import parse_seeds
    from fedbench.cli.bench import progress
    from fedbench.cli.probe_table import counted, inversion_json, show_inversion
    from fedbench.core.errors import require
    from fedbench.core.files import writable, write_atomically
    from fedbench.experiment.scenario import Scenario
    from fedbench.figures.probe_picture import draw

    numbers = parse_seeds(seeds)
    require("--images", images, images >= 1, ">= 1")
    writable(out)
    scenario = Scenario.of(
        **{"dataset": dataset, "model": model, "clients": images, "per_round": images},
        **{"rounds": rounds, "epochs": 1, "batch_size": batch_size},
        **{"malicious": 0.0, "partition": "iid", "eval_every": rounds},
    )
    from fedbench.probes.inversion import probe as play

    systems = protocol or list(PROTOCOLS), mechanism or ["none"]
    with torch_threads(threads), progress() as say:
        report = play(scenario, *systems, numbers, steps, say)
    where = f"{dataset}, {model}, round {rounds}"
    caption = f"{where}; one local step on {counted(batch_size, 'image')}, {steps} steps of Adam"
    path = out / "inversion.png"
    draw(report, caption, path)
    numbers_path = out / "inversion.json"
    write_atomically(numbers_path, inversion_json(report).encode())
    console = Console()
    show_inversion(console, report, caption)
    console.print(f"\nwrote {path} and {numbers_path}", highlight=False, soft_wrap=True)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """So many in the block."""
    import torch

    from fedbench.core.errors import require
    from fedbench.executors.malloc import keep_memory

    require("--threads", threads, threads >= 1, ">= 1")
    require("--threads", threads, threads <= 1024, "<= 1024")
    keep_memory()  # as in a run, where the workers do
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
