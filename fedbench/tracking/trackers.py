"""Callbacks that write runs to MLflow, TensorBoard or Weights & Biases.

A run of theirs is a run of ours: the scenario's fields are its parameters, the numbers of each
round its metrics, and at the end ``result.*`` what `fedbench.results` calls the run's numbers. The
record, which has all of it and whose digest can be checked, is its artifact.
"""

from __future__ import annotations

import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Literal

from fedbench.core.errors import ConfigError, require
from fedbench.core.registry import split
from fedbench.experiment.callbacks import Callback
from fedbench.experiment.measurements import MEASURED, Round
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario

Outcome = Literal["finished", "failed", "stopped"]


def numbers(round: Round) -> dict[str, float]:
    """Return the numbers of a round that were measured, by name; what holds or not is 1 or 0."""
    values = {field.name: getattr(round, field.name) for field in fields(round)}
    measured = {name: float(x) for name, x in values.items() if isinstance(x, int | float)}
    return measured | {"sampled": float(len(round.clients))}


def outcomes(record: Record) -> dict[str, float]:
    """Return the numbers that a run comes to, as ``result.accuracy``."""
    values = {f"result.{measurement.name}": measurement.read(record) for measurement in MEASURED}
    return {name: float(x) for name, x in values.items() if isinstance(x, int | float)}


def name_of(scenario: Scenario) -> str:
    """Name a run for people: protocol, defense, attack and seed.

    >>> name_of(Scenario(attack="alie:z=1.0", seed=3))
    'fedavg-own-alie-seed3'
    """
    parts = (scenario.protocol, scenario.defense, scenario.attack)
    return f"{'-'.join(split(part)[0] for part in parts)}-seed{scenario.seed}"


class Tracker(Callback, ABC):
    """Callback that keeps a run of a tracker open for each run that is being played.

    `ConfigError` if the tracker's package is not installed.

    Args:
        experiment: Name under which the tracker groups these runs.
        folder: Folder for what the tracker writes, if it writes to one.
    """

    package = ""  # that is imported

    def __init__(self, experiment: str = "fedbench", folder: Path = Path("results")) -> None:
        try:
            self._module = import_module(self.package)
        except ImportError as error:
            name = self.package.partition(".")[0]
            raise ConfigError(
                f"tracking needs {name}, which is not installed; pip install {name}"
            ) from error
        self.experiment = experiment
        self.folder = folder
        self._open: dict[Scenario, Any] = {}

    def started(self, scenario: Scenario) -> None:
        """Open a run; one that lost its worker is closed as failed, and another one opened."""
        if scenario in self._open:
            self._end(self._open.pop(scenario), "failed")
        self._open[scenario] = self._begin(scenario)

    def round(self, scenario: Scenario, round: Round) -> None:
        """Log the numbers of a round."""
        self._log(self._open[scenario], numbers(round), round.step)

    def finished(self, record: Record) -> None:
        """Log what the run comes to, keep its record, and close it."""
        run = self._open.pop(record.scenario)
        self._conclude(run, outcomes(record), record)
        self._end(run, "finished")

    def failed(self, scenario: Scenario, reason: str) -> None:
        """Close the run as failed."""
        self._end(self._open.pop(scenario), "failed")

    def close(self) -> None:
        """Close the runs that are still open as stopped."""
        while self._open:
            self._end(self._open.popitem()[1], "stopped")

    @abstractmethod
    def _begin(self, scenario: Scenario) -> Any:
        """Open a run with the scenario as its parameters, and return it."""

    @abstractmethod
    def _log(self, run: Any, metrics: dict[str, float], step: int) -> None:
        """Log the metrics of a step."""

    @abstractmethod
    def _conclude(self, run: Any, metrics: dict[str, float], record: Record) -> None:
        """Log the metrics of the whole run, and keep its record."""

    @abstractmethod
    def _end(self, run: Any, outcome: Outcome) -> None:
        """Close the run with this outcome."""


class MLflow(Tracker):
    """Tracker of MLflow, at ``MLFLOW_TRACKING_URI`` or where MLflow keeps runs by default."""

    package = "mlflow"

    def _begin(self, scenario: Scenario) -> str:
        client = self._client()
        experiment = client.get_experiment_by_name(self.experiment)
        if experiment is None:
            number = client.create_experiment(self.experiment)
        else:
            number = experiment.experiment_id
        run: str = client.create_run(number, run_name=name_of(scenario)).info.run_id
        entities = self._module.entities
        values = scenario.model_dump(exclude_none=True).items()
        client.log_batch(run, params=[entities.Param(name, str(value)) for name, value in values])
        return run

    def _log(self, run: str, metrics: dict[str, float], step: int) -> None:
        now = int(1000 * time.time())
        make = self._module.entities.Metric
        logged = [make(name, value, now, step) for name, value in metrics.items()]
        self._client().log_batch(run, metrics=logged)

    def _conclude(self, run: str, metrics: dict[str, float], record: Record) -> None:
        self._log(run, metrics, len(record.rounds) - 1)
        self._client().log_text(run, record.to_json(), record.file_name)

    def _end(self, run: str, outcome: Outcome) -> None:
        states = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
        self._client().set_terminated(run, states[outcome])

    def _client(self) -> Any:
        return self._module.MlflowClient()


class TensorBoard(Tracker):
    """Tracker that writes event files for TensorBoard, below ``folder/tensorboard``."""

    package = "tensorboard.compat.proto.event_pb2"

    def _begin(self, scenario: Scenario) -> Any:
        from torch.utils.tensorboard import SummaryWriter

        digest = hashlib.sha256(scenario.model_dump_json().encode()).hexdigest()[:8]
        home = self.folder / "tensorboard" / f"{name_of(scenario)}-{digest}"
        again = (home.with_name(f"{home.name}-{number}") for number in count(2))
        while home.exists():  # it was played before
            home = next(again)
        writer = SummaryWriter(str(home))
        values = scenario.model_dump(exclude_none=True).items()
        lines = ["| field | value |", "| --- | --- |"]
        lines += [f"| {name} | {value} |" for name, value in values]
        writer.add_text("scenario", "\n".join(lines))
        return writer

    def _log(self, run: Any, metrics: dict[str, float], step: int) -> None:
        for name, value in metrics.items():
            run.add_scalar(name, value, step)

    def _conclude(self, run: Any, metrics: dict[str, float], record: Record) -> None:
        values = record.scenario.model_dump(exclude_none=True)
        run.add_hparams(values, metrics, run_name=".")
        record.write(Path(run.log_dir))

    def _end(self, run: Any, outcome: Outcome) -> None:
        run.close()


class WandB(Tracker):
    """Tracker of Weights & Biases; ``WANDB_MODE=offline`` keeps its runs in ``folder/wandb``."""

    package = "wandb"

    def _begin(self, scenario: Scenario) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self._module.init(
            project=self.experiment,
            name=name_of(scenario),
            config=scenario.model_dump(),
            dir=str(self.folder),
            reinit="create_new",
        )

    def _log(self, run: Any, metrics: dict[str, float], step: int) -> None:
        run.log(metrics, step=step)

    def _conclude(self, run: Any, metrics: dict[str, float], record: Record) -> None:
        run.summary.update(metrics)
        artifact = self._module.Artifact(f"record-{record.id}", type="record")
        with artifact.new_file(record.file_name) as file:
            file.write(record.to_json())
        run.log_artifact(artifact)

    def _end(self, run: Any, outcome: Outcome) -> None:
        run.finish(exit_code=int(outcome != "finished"))


TRACKERS: dict[str, type[Tracker]] = {
    "mlflow": MLflow,
    "tensorboard": TensorBoard,
    "wandb": WandB,
}


def require_trackers(names: Sequence[str]) -> None:
    """Raise `ConfigError` for a name that is none of `TRACKERS`."""
    for name in names:
        require("--track", name, name in TRACKERS, f"one of {', '.join(TRACKERS)}")


@contextmanager
def tracking(names: Sequence[str], experiment: str, folder: Path) -> Iterator[list[Tracker]]:
    """Return the trackers of these names, and close at the end what is still open.

    `ConfigError` for a name that is none of `TRACKERS`, or whose package is not installed.
    """
    require_trackers(names)
    trackers = [TRACKERS[name](experiment, folder) for name in dict.fromkeys(names)]
    try:
        yield trackers
    finally:
        for tracker in trackers:
            tracker.close()
