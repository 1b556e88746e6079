"""``fedbench export``: a protocol, its rule and its mechanism as an app of another framework."""

from __future__ import annotations

from pathlib import Path

import typer

from fedbench.cli import options as opt
from fedbench.core.errors import require

Command = opt.scenario_command(
    *("protocol", "defense", "mechanism"),
    *("clients", "per_round", "rounds", "epochs", "batch_size", "declared", "server_checks"),
    more={"declared": "The default of an app is 0."},
    protocol=...,
    clients=10,
    per_round=5,
    rounds=10,
)


@opt.explained
def export(
    context: typer.Context,
    framework: str,
    out: Path = Path("app"),
    evaluate_every: int = 5,
    rehearse: int = -1,
) -> int:
    """Write an app whose server and clients run a protocol of fedbench on your model and data.

    The app is a folder with one file to edit, task.py. Packets travel as the bytes that fedbench
    counts. Only what honest ends do is exported: attacks and measurements need the harness.

    Positional:
        framework: Framework of the app: flower.

    Running:
        out: Folder to write, new or empty.
        evaluate_every: Rounds between two evaluations on the clients' test data; 0: never.
        rehearse: Seed of a rehearsal, whose draws are those of `fedbench.play`; below 0: draws come
            from the operating system.
    """
    opt.require_installed(opt.typed(context))
    from fedbench.deployment.flower_app import export as write
    from fedbench.deployment.settings import Settings

    require("framework", framework, framework == "flower", "flower")
    fields = context.obj
    fields["declared"] = fields["declared"] or 0.0
    settings = Settings(**fields, evaluate_every=evaluate_every, rehearse=rehearse)
    for path in write(settings, out):
        print(path)
    return 0
