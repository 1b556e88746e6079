"""Cells over their seeds: what the table, the chart and the story are made of."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedbench.experiment.cells import Cell
from fedbench.experiment.measurements import Privacy
from fedbench.experiment.record import Record


@dataclass(frozen=True)
class Row:
    """One cell over its finished seeds.

    Args:
        cell: Which.
        records: One a seed, at least one.
        clean: The row of the same protocol and defense without attack, if it has finished.
        worst: Is this the attack with the lowest mean accuracy of its protocol and defense?
        twins: Of a backdoor, the records of its clean twin, see `Cell.twin`.
        tried: Of how many candidates it was chosen on validation data; 0 if it was asked for.
        attacks: Attacks that are planned for its system.
        missing: Those of them that have not finished every seed: until they have, the lowest
            accuracy is no worst case.
    """

    cell: Cell
    records: tuple[Record, ...]
    clean: Row | None = None
    worst: bool = False
    twins: tuple[Record, ...] = ()
    tried: int = 0
    attacks: int = 0
    missing: int = 0

    @property
    def accuracy(self) -> float:
        """Mean over seeds, in [0, 1]."""
        return statistics.fmean(self._accuracies())

    @property
    def accuracy_std(self) -> float:
        """Sample standard deviation over seeds; 0 for one seed."""
        values = self._accuracies()
        return statistics.stdev(values) if len(values) > 1 else 0.0

    @property
    def impact(self) -> float | None:
        """Clean minus attacked accuracy, over the seeds that both have."""
        if self.clean is None or self.cell.clean:
            return None
        clean = {r.scenario.seed: r.result.accuracy for r in self.clean.records}
        pairs = [
            clean[r.scenario.seed] - r.result.accuracy
            for r in self.records
            if r.scenario.seed in clean
        ]
        return statistics.fmean(pairs) if pairs else None

    @property
    def success(self) -> float | None:
        """Of the backdoor, in [0, 1], as measured: what a clean model falls for included."""
        return _mean([r.result.success for r in self.records])

    @property
    def true_positive_rate(self) -> float | None:
        """Of a rule that detects: of the malicious rows the share that it left out."""
        return _mean([r.result.true_positive_rate for r in self.records])

    @property
    def false_positive_rate(self) -> float | None:
        """Of a rule that detects: of the benign rows the share that it left out."""
        return _mean([r.result.false_positive_rate for r in self.records])

    @property
    def over_clean(self) -> float | None:
        """Success minus that of the clean twin, over the seeds that both have."""
        return _mean(
            [
                _difference(r.result.success, twin.result.success)
                for r, twin in self._with_twins()
                if twin is not None
            ]
        )

    @property
    def half_life(self) -> float | None:
        """Median over seeds of `half_life`, in rounds."""
        lives = [half_life(r, twin) for r, twin in self._with_twins() if twin is not None]
        known = [x for x in lives if x is not None]
        return statistics.median(known) if known else None

    def _with_twins(self) -> list[tuple[Record, Record | None]]:
        twins = {r.scenario.seed: r for r in self.twins}
        return [(r, twins.get(r.scenario.seed)) for r in self.records]

    def client(self, what: str) -> float:
        """Mean over seeds of ``mean``, ``std``, ``min`` or ``max`` of the per-client accuracy."""
        return statistics.fmean(getattr(r.result.per_client, what) for r in self.records)

    @property
    def uplink(self) -> float | None:
        """Bits per parameter and benign message; None where a secure sum hides them."""
        return _mean([r.result.uplink_bits_per_parameter for r in self.records])

    @property
    def downlink(self) -> float:
        """Bits per parameter, client and round."""
        return statistics.fmean(r.result.downlink_bits_per_parameter for r in self.records)

    @property
    def entropy(self) -> float | None:
        """Bits per parameter and benign message, an estimate; None where no alphabet has one."""
        return _mean([r.result.entropy_bits_per_parameter for r in self.records])

    @property
    def model_bits(self) -> float:
        """Bits per parameter to store what is deployed."""
        return statistics.fmean(r.result.model_bits / r.parameters for r in self.records)

    @property
    def sparsity(self) -> float | None:
        """Share of the deployed weights that are exactly 0; None where nobody looked."""
        return _mean([r.result.sparsity for r in self.records])

    @property
    def local_accuracy(self) -> float | None:
        """Of the benign clients' own last models, in [0, 1]; None where nobody looked."""
        return _mean([r.result.local_accuracy for r in self.records])

    @property
    def epsilon(self) -> float | None:
        """The largest over seeds; None where no mechanism ran, or a price is not finite."""
        values = [r.result.epsilon for r in self.records]
        known = [x for x in values if x is not None]
        return max(known) if len(known) == len(values) else None

    @property
    def privacy(self) -> Privacy | None:
        """The guarantee of the seed that gave away most; None without one."""
        found = [r.privacy for r in self.records if r.privacy is not None]
        return max(found, key=lambda one: _or_infinite(one.epsilon), default=None)

    @property
    def rejected(self) -> int:
        """Malicious messages that the server rejected, all seeds together."""
        return sum(round.rejected_malicious for r in self.records for round in r.rounds)

    @property
    def flags(self) -> list[str]:
        """Doubts that any seed raised, each once."""
        return list(dict.fromkeys(flag for r in self.records for flag in r.flags))

    def _accuracies(self) -> list[float]:
        return [r.result.accuracy for r in self.records]


def half_life(record: Record, twin: Record) -> float | None:
    """Rounds without attack until a backdoor's success over clean has halved.

    From the last round in which it acted to the first look at test data at which at most half is
    left of what there was at the last look until then; infinite if no look of the run is such.

    Args:
        record: Of a run with ``attack_until``.
        twin: Of its clean twin, with the same seed.

    Returns:
        None if it never stops, or had no success over clean when it stopped.
    """
    until, clean = record.scenario.attack_until, {r.step: r.success for r in twin.rounds}
    if until is None or until >= record.scenario.rounds:
        return None
    *_, last = range(record.scenario.attack_from, until, record.scenario.attack_every)
    looks = [(r.step, _difference(r.success, clean.get(r.step))) for r in record.rounds]
    excess = {step: x for step, x in looks if x is not None}
    acted = [step for step in excess if step <= last]
    if not acted or excess[acted[-1]] <= 0:
        return None
    half = excess[acted[-1]] / 2
    over = (step - last for step, x in excess.items() if step > last and x <= half)
    return next(over, math.inf)


def _difference(x: float | None, y: float | None) -> float | None:
    return None if x is None or y is None else x - y


def _or_infinite(epsilon: float | None) -> float:
    """JSON has no infinity: a price that is not finite was written as None."""
    return math.inf if epsilon is None else epsilon


def _mean(values: Sequence[float | None]) -> float | None:
    """Over the seeds that measured it."""
    measured = [x for x in values if x is not None]
    return statistics.fmean(measured) if measured else None


def pooled(rows: Sequence[Row]) -> Row:
    """Return the rows of one system as one row, whose price is the system's.

    Bits are the mean over all cells, the clean one included, and epsilon is the largest of any run,
    as in a leaderboard: what the run under the worst attack cost is not what the system costs.
    """
    return Row(rows[0].cell, tuple(record for row in rows for record in row.records))


def rows(
    cells: Sequence[Cell], records: dict[Cell, list[Record]], seeds: int | None = None
) -> list[Row]:
    """A row for each cell with a finished seed, in the cells' order, the worst attacks marked.

    Clean twins of backdoors have none: their numbers are in the rows that they belong to. Of the
    candidates of ``strongest`` that were not asked for by name, each system has one: the one with
    the lowest mean accuracy on *validation* data, so that its test accuracy was not chosen.

    Args:
        cells: All that are planned.
        records: What has been played of them.
        seeds: Runs that each cell shall have; by default as many as the cell with most has.
    """
    twins = {cell for cell in cells if cell.dormant and any(_succeeded(records.get(cell)))}
    played = [cell for cell in cells if records.get(cell) and cell not in twins]
    found = strongest(played, records)
    done = [cell for cell in played if cell.listed or cell in found]
    clean = {cell.defended: Row(cell, tuple(records[cell])) for cell in done if cell.clean}
    plain = {cell: Row(cell, tuple(records[cell]), clean.get(cell.defended)) for cell in done}
    worst: dict[str, Cell] = {}
    for cell in done:
        current = worst.get(cell.system)
        lower = current is None or plain[cell].accuracy < plain[current].accuracy
        acts = not cell.clean and not cell.dormant
        if acts and lower and any(r.malicious for x in records[cell] for r in x.rounds):
            worst[cell.system] = cell
    planned: dict[str, list[Cell]] = {}
    for cell in cells:
        if not cell.clean and not cell.dormant:
            planned.setdefault(cell.system, []).append(cell)
    whole = max(map(len, records.values()), default=0) if seeds is None else seeds
    missing = {
        system: sum(len(records.get(cell, ())) < whole for cell in attacks)
        for system, attacks in planned.items()
    }
    return [
        Row(
            cell,
            row.records,
            row.clean,
            worst.get(cell.system) == cell,
            tuple(records[cell.twin]) if cell.twin in twins else (),
            found.get(cell, 0),
            len(planned.get(cell.system, ())),
            missing.get(cell.system, 0),
        )
        for cell, row in plain.items()
    ]


def strongest(cells: Sequence[Cell], records: dict[Cell, list[Record]]) -> dict[Cell, int]:
    """Of each system's candidates the worst on validation data, and how many were tried."""
    tried: dict[str, list[tuple[float, Cell]]] = {}
    for cell in cells:
        seen = _mean([r.result.validation_accuracy for r in records[cell]])
        if cell.sought and seen is not None:
            tried.setdefault(cell.system, []).append((seen, cell))
    return {min(of, key=lambda pair: pair[0])[1]: len(of) for of in tried.values()}


def _succeeded(records: Sequence[Record] | None) -> list[bool]:
    return [r.result.success is not None for r in records or ()]
