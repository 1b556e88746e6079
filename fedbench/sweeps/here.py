"""Engine of this very process: one run after the other, for plug-ins that nobody installed."""

from typing import Self

from fedbench.experiment.cells import Run
from fedbench.experiment.measurements import Round
from fedbench.sweeps.engine import Engine, Job, News, crash, play_job
from fedbench.sweeps.local import Options


class HereEngine(Engine):
    """Engine that plays runs in this process, with plug-ins and data that only it has.

    Nothing ends a run that takes too long, and ``Options.workers`` has no effect.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self._news: list[News] = []
        self._waiting: list[tuple[Run, int]] = []

    def __enter__(self) -> Self:
        """Check that this machine has the device."""
        self.options.require_machine()
        return self

    def __exit__(self, *error: object) -> None:
        """Forget the run that waits."""
        self._waiting = []

    def free(self) -> int:
        """Return 1 unless a run waits."""
        return 0 if self._waiting else 1

    def submit(self, run: Run, chunk: int) -> None:
        """Keep the run until `news` plays it."""
        self._waiting.append((run, chunk))

    def news(self, wait_seconds: float) -> list[News]:
        """Play the run that waits to its end, and return all that happened."""
        happened: list[News] = []
        while self._waiting:
            run, chunk = self._waiting.pop(0)
            happened.append(News(run, None))
            try:
                options = self.options
                job = Job(
                    scenario=run.scenario,
                    device=options.device,
                    executor=options.executor,
                    chunk=chunk,
                    isolate=options.isolate,
                    models=options.models,
                    checkpoint=options.checkpoint_of(run),
                )
                rounds: list[Round] = []
                record = play_job(job, rounds.append)
                happened += [News(run, round) for round in rounds]
                happened.append(News(run, record))
            except Exception as error:
                happened.append(News(run, crash(error)))
        return happened
