"""Play from Python: one scenario, or many of them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Literal, overload

from fedbench import run
from fedbench.analysis.results import Results
from fedbench.core import registry
from fedbench.core.blame import shown
from fedbench.core.errors import ConfigError, require
from fedbench.data.datasets import Data
from fedbench.experiment.callbacks import Follower
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.checkpoints import Checkpoint
from fedbench.experiment.deployed import DeployedModel
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import PLUGINS, Scenario
from fedbench.public.words import in_python
from fedbench.results.store import Store
from fedbench.sweeps.drive import Sweep
from fedbench.sweeps.engine import Engine
from fedbench.sweeps.follow import Following
from fedbench.sweeps.here import HereEngine
from fedbench.sweeps.local import LocalEngine, Options
from fedbench.sweeps.watch import Watcher


@overload
def play(
    scenario: Scenario,
    *,
    device: str = ...,
    executor: str = ...,
    chunk: int = ...,
    callbacks: Sequence[Follower] = ...,
    data: Data | None = ...,
    isolate: bool = ...,
    canonical: bool = ...,
    states: Path | None = ...,
    checkpoint: Checkpoint | None = ...,
    stream: bool | None = ...,
    return_model: Literal[False] = ...,
) -> Record: ...
@overload
def play(
    scenario: Scenario,
    *,
    device: str = ...,
    executor: str = ...,
    chunk: int = ...,
    callbacks: Sequence[Follower] = ...,
    data: Data | None = ...,
    isolate: bool = ...,
    canonical: bool = ...,
    states: Path | None = ...,
    checkpoint: Checkpoint | None = ...,
    stream: bool | None = ...,
    return_model: Literal[True],
) -> tuple[Record, DeployedModel]: ...
def play(
    scenario: Scenario,
    *,
    device: str = "auto",
    executor: str = "auto",
    chunk: int = 32,
    callbacks: Sequence[Follower] = (),
    data: Data | None = None,
    isolate: bool = False,
    canonical: bool = False,
    states: Path | None = None,
    checkpoint: Checkpoint | None = None,
    stream: bool | None = None,
    return_model: bool = False,
) -> Record | tuple[Record, DeployedModel]:
    """Play a scenario from the first round to the last; return its record.

    >>> import fedbench
    >>> record = fedbench.play(fedbench.Scenario(clients=4, per_round=2, rounds=1, epochs=1))
    >>> 0 <= record.result.accuracy <= 1
    True

    Args:
        scenario: Description of the run.
        device: ``auto``, ``cpu``, ``cuda``, or a backend that a package registers with torch.
        executor: Training of the clients of a round: ``loop``, one after the other, ``stacked``,
            those of equal length together, ``padded``, all together, or ``auto``, the faster one.
            ``ray`` or ``ray:padded``: by the processes of a Ray cluster, of ``RAY_ADDRESS`` or a
            new one on this machine.
        chunk: Clients that are trained at once, but by ``loop``; the most of a cluster's task.
        callbacks: Followers of the run: objects of `Callback`, or functions that are called with
            each `Round`. What one raises ends the run.
        data: Samples to play on instead of the scenario's data set. The id of the record covers
            them.
        isolate: Run attack and defense in processes of their own, which hold nothing but what they
            are shown.
        canonical: Have the same numbers on every processor; the process must have been started for
            it (`fedbench.core.canonical`).
        states: Folder that keeps the state before each round of a canonical run.
        checkpoint: File from which the run goes on if it was killed, and how often it is written:
            ``Checkpoint(Path("run.safetensors"), rounds=5)``. It is removed in the end.
        stream: Add messages up as they come, ``chunk`` clients at a time, so that memory does not
            grow with the cohort; their sums are rounded otherwise. None: where a round takes more
            than 4 GiB, if rule, attack and mechanism permit it.
        return_model: Return the deployed model beside the record.

    Raises:
        ConfigError: the scenario names something that cannot be had or does not fit.
        PluginError: a plug-in raised, or returned what it must not.
    """
    models: list[DeployedModel] = []
    with in_python():
        require_scenario("play", scenario)
        if isolate:
            require_installed(scenario, "isolate", ("attack", "defense"))
        if data is not None and not isinstance(data, Data):
            remedy = "write fedbench.data.own.from_arrays(x, y)"
            raise ConfigError(f"data must be samples, got {shown(data)}; {remedy}")
        if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
            remedy = "write fedbench.Checkpoint(Path(...))"
            raise ConfigError(f"checkpoint must be a Checkpoint, got {shown(checkpoint)}; {remedy}")
        record = run.play(
            scenario,
            device=device,
            executor=executor,
            chunk=chunk,
            callbacks=callbacks,
            data=data,
            isolate=isolate,
            canonical=canonical,
            states=states,
            checkpoint=checkpoint,
            stream=stream,
            deliver=models.append if return_model else None,
        )
    if checkpoint is not None:
        checkpoint.remove()
    return (record, models[0]) if return_model else record


def sweep(
    scenarios: Scenario | Iterable[Scenario],
    *,
    seeds: Sequence[int] | None = None,
    out: Path | str | None = None,
    device: str = "auto",
    executor: str = "auto",
    workers: int = 0,
    threads: int = 1,
    run_timeout: float = 21600.0,
    isolate: bool = False,
    callbacks: Sequence[Follower] = (),
) -> Results:
    """Play many scenarios, several at once; return their records in the same order.

    Runs that have a record in ``out`` are not played again, and those that take longer than ten
    minutes keep a checkpoint there, from which a later call goes on. One run that fails does not
    end the others: they are played, and then its error is raised, which names their folder.

    A scenario whose parts do not go together is refused before anything is played, by its place in
    the list. The command ``fedbench sweep`` skips it and says so, because it combines the values of
    a grid, and nobody has written down every combination.

    Plug-ins, models and data that were given as objects live in this process alone, so such runs
    are played here, one after the other, whatever ``workers`` says.

    >>> import fedbench
    >>> tiny = fedbench.Scenario(clients=4, per_round=2, rounds=1, epochs=1)
    >>> [record.scenario.seed for record in fedbench.sweep(tiny, seeds=[0, 1], workers=1)]
    [0, 1]

    Args:
        scenarios: Description of each run, or one description.
        seeds: Seeds of every scenario; by default the one that each has.
        out: Folder of the records; by default they are kept, in a temporary one, only if a run
            failed or Ctrl-C came after others had ended.
        device: As in `play`.
        executor: As in `play`.
        workers: Processes; 0 for up to four per GPU, or one per ``threads`` cores.
        threads: Threads of each process.
        run_timeout: Seconds after which a run in a worker is ended and counts as failed.
        isolate: As in `play`.
        callbacks: As in `play`, told of all runs, each with its scenario; what is played here is
            told when a run is over.

    Raises:
        ConfigError: a run failed, or a scenario cannot be played; `Incompatible` if its parts exist
            but not together.
    """
    given = [scenarios] if isinstance(scenarios, Scenario) else list(scenarios)
    with in_python():
        for scenario in given:
            require_scenario("sweep", scenario)
        listed = isinstance(seeds, Iterable) and not isinstance(seeds, str)
        require("seeds", seeds, seeds is None or listed, "a list of seeds like [0, 1, 2]")
        options = Options(
            device=device,
            executor=executor,
            workers=workers,
            threads=threads,
            run_timeout=run_timeout,
            isolate=isolate,
            checkpoints=None if out is None else Store(Path(out)).checkpoints,
        )
        runs = [
            Run(cell, s)
            for cell in require_combined(given)
            for s in ([cell.scenario.seed] if seeds is None else seeds)
        ]
        distinct = list({run.id: run for run in runs}.values())
        here = any(map(is_here, given))
        if here and isolate:
            for scenario in given:
                require_installed(scenario, "isolate", ("attack", "defense"))
        engine: Engine = HereEngine(options)
        if not here:
            engine = LocalEngine(options, options.processes(len(distinct)))
        folder = Path(mkdtemp(prefix="fedbench-sweep-") if out is None else out)
        wanted = out is not None
        try:
            with engine, Store(folder) as store:
                watching = Following(Watcher(), callbacks)
                tally = Sweep(engine, store, watching, retry_failed=True).play(distinct)
                wanted = wanted or bool(tally.played and (tally.failed or tally.left))
                others = f"the others are in {folder}, from which sweep(..., out=) goes on"
                for failed, failure in tally.failed.items():
                    raise ConfigError(
                        f"{failed}: {failure}; {others if wanted else 'no other ran'}"
                    )
                if tally.left:
                    raise KeyboardInterrupt(others if wanted else "no other ran")
                return Results(map(store.record, runs))
        finally:
            if not wanted:
                rmtree(folder)


def is_here(scenario: Scenario) -> bool:
    """Tell whether this process alone knows a part of the scenario."""
    return any(registry.is_here(kind, getattr(scenario, kind)) for kind in PLUGINS)


def require_scenario(function: str, given: object) -> None:
    """Raise `ConfigError` for what is no scenario."""
    if not isinstance(given, Scenario):
        raise ConfigError(
            f"{function} must be given a fedbench.Scenario, got {shown(given)}; write "
            "fedbench.Scenario(protocol=..., attack=...)"
        )


def require_combined(scenarios: Sequence[Scenario]) -> list[Cell]:
    """Return the cell of each scenario; the error of one whose parts do not fit names its place."""
    cells = [Cell(scenario) for scenario in scenarios]
    for place, cell in enumerate(cells):
        try:
            _ = cell.resolution
        except ConfigError as error:
            if len(cells) == 1:
                raise
            raise type(error)(f"scenarios[{place}]: {error}") from error
    return cells


def require_installed(scenario: Scenario, subject: str, kinds: Iterable[str]) -> None:
    """Raise `ConfigError` if this process alone knows one of these parts of a scenario."""
    for kind in kinds:
        text = getattr(scenario, kind)
        if registry.is_here(kind, text):
            raise ConfigError(
                f"{subject} must have an {kind} that a package has installed, got {text}, which "
                "this process alone knows; install it as docs/how-to says, or leave it out"
            )
