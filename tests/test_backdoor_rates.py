"""The success of a backdoor beside that of its clean twin: cells, rows, columns, half-lives."""

import io
import math
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

import fedbench
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.results import aggregate, extract
from fedbench.results.gather import cells_of
from fedbench.results.summary import Row, half_life, rows
from fedbench.sweeps.plan import Plan, runs
from fedbench.tables import columns, report

CLIENTS: dict[str, Any] = {"clients": 10, "per_round": 4, "malicious": 0.4}
SMALL = Scenario(**CLIENTS, rounds=2, epochs=1, eval_every=1, attack="pixel")


@pytest.fixture(scope="module")
def template() -> Record:
    return fedbench.play(SMALL, device="cpu")


def record(
    template: Record,
    cell: Cell,
    seed: int = 0,
    success: Sequence[float | None] = (0.0,),
    accuracy: float = 0.9,
) -> Record:
    """With these successes, one a round."""
    rounds = [replace(template.rounds[0], step=step, success=x) for step, x in enumerate(success)]
    result = replace(template.result, success=success[-1], accuracy=accuracy)
    scenario = cell.scenario.model_copy(update={"seed": seed})
    return template.model_copy(update={"scenario": scenario, "rounds": rounds, "result": result})


def cells(grid: str) -> list[Cell]:
    return Plan.of(tomllib.loads(f"seeds = 0\n[[grid]]\n{grid}"), "s.toml").cells()[0]


def listed(*records: Record) -> list[Any]:
    """The cells that reading these records lists."""
    entries = [extract.run(one.sealed().to_json().encode(), "a.json") for one in records]
    assert all(isinstance(entry, dict) for entry in entries), entries
    return list(aggregate.cells(entries)[0])  # type: ignore[arg-type]


def test_a_grid_with_backdoors_has_their_clean_twins_last_and_no_others() -> None:
    attacks = 'attack = ["sign-flip", "pixel", "edge-case"]'
    cells_found = cells(f'{attacks}\nrounds = [3, 4]\ndefense = "median"')
    assert [(c.attack, c.scenario.attack_from, c.scenario.rounds) for c in cells_found] == [
        *((attack, 0, 3) for attack in ("none", "sign-flip", "pixel", "edge-case")),
        *((attack, 0, 4) for attack in ("none", "sign-flip", "pixel", "edge-case")),
        *(("pixel", 3, 3), ("edge-case", 3, 3), ("pixel", 4, 4), ("edge-case", 4, 4)),
    ]
    assert {c.varied for c in cells_found} == {("rounds",)}, "a twin varies nothing"
    assert [c.dormant for c in cells_found] == [False] * 8 + [True] * 4
    assert len(runs(cells_found, [0, 1])) == 24
    cells_found = cells('attack = "pixel"\nrounds = 5\nattack_until = [2, 3]\n')
    (twin,) = [c for c in cells_found if c.dormant]  # windows of one attack share it
    assert (twin.scenario.attack_from, twin.scenario.attack_until) == (5, None)
    Scenario.model_validate(twin.scenario.model_dump())
    assert [c.twin for c in cells_found if c.attack == "pixel"] == [twin] * 3


@pytest.mark.slow
def test_a_twin_is_the_clean_run_judged_by_the_trigger_of_the_attack(template: Record) -> None:
    twin = Run(Cell(SMALL).twin, 0).scenario
    looked = fedbench.play(twin, device="cpu")
    clean = fedbench.play(SMALL.model_copy(update={"attack": "none"}), device="cpu")
    assert [r.accuracy for r in looked.rounds] == [r.accuracy for r in clean.rounds]
    assert looked.result.loss == clean.result.loss
    assert not [flag for flag in looked.flags if "would not move" in flag], "nobody expects it to"
    assert [r.success is None for r in looked.rounds] == [False, False]
    assert [r.success is None for r in clean.rounds] == [True, True]
    assert template.result.loss != clean.result.loss


def found(template: Record) -> list[Row]:
    """Two seeds of none, a backdoor whose second seed has no twin, and another attack."""
    none, pixel, flip = (Cell(Scenario(attack=a)) for a in ("none", "pixel", "sign-flip"))
    records = {
        none: [record(template, none, s, [None], 0.95) for s in (0, 1)],
        pixel: [record(template, pixel, s, [x], 0.9) for s, x in enumerate((0.8, 0.6))],
        flip: [record(template, flip, s, [None], 0.91) for s in (0, 1)],
        pixel.twin: [record(template, pixel.twin, 0, [0.1], 0.2)],
    }
    return rows(list(records), records)


def test_a_twin_has_no_row_is_never_the_worst_and_is_paired_by_seed(template: Record) -> None:
    table = found(template)
    assert [row.cell.attack for row in table] == ["none", "pixel", "sign-flip"]
    assert [row.worst for row in table] == [False, True, False]  # the twin's 0.2 is lower
    assert table[1].clean is not None
    assert table[1].impact == pytest.approx(0.05)  # from the row of none, not from the twin
    assert table[1]["success"] == pytest.approx(0.7)
    assert table[1].over_clean == pytest.approx(0.7)  # seed 0 only: 0.8 - 0.1, not 0.7 - 0.1
    assert [row.over_clean for row in (table[0], table[2])] == [None, None]
    late = Cell(Scenario(attack="sign-flip", attack_from=40))  # without a trigger it has a row
    (row,) = rows([late], {late: [record(template, late, 0, [None])]})
    assert row.cell == late
    assert not row.worst, "what never acts is the worst of nothing"


def test_one_clean_run_is_of_every_window_and_cap(template: Record) -> None:
    none = Cell(Scenario(attack="none"), ("attack_until", "knowledge"))
    window: dict[str, Any] = {"attack": "sign-flip", "attack_until": 3, "knowledge": "own"}
    flip = Cell(Scenario(**window), ("attack_until", "knowledge"))
    records = {
        none: [record(template, none, 0, [None], 0.9)],
        flip: [record(template, flip, 0, [None], 0.5)],
    }
    (_, row) = rows([none, flip], records)
    assert row.impact == pytest.approx(0.4)
    entries = listed(*(records[cell][0] for cell in (none, flip)))
    assert entries[1]["impact"] == pytest.approx(0.4)


def test_records_of_a_store_find_their_twins_and_a_twin_is_the_worst_of_nothing(
    template: Record,
) -> None:
    scenario = template.scenario
    twin = scenario.model_copy(update={"attack_from": scenario.rounds})
    clean = scenario.model_copy(update={"attack": "none"})
    played = cells_of(template.model_copy(update={"scenario": s}) for s in (clean, scenario, twin))
    table = rows(list(played), played)
    assert [row.cell.attack for row in table] == ["none", "pixel"]
    assert {row.cell.system for row in table} == {"fedavg + mean"}
    assert table[1].over_clean == 0.0  # its own record is its twin's here
    never = scenario.model_copy(update={"attack_from": scenario.rounds})
    entries = listed(*(template.model_copy(update={"scenario": s}) for s in (scenario, never)))
    assert [(e["attack_from"], e["worst"]) for e in entries] == [(0, True), (2, False)]


def printed(table_: list[Row], width: int = 200) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=False)
    console.print(report.terminal(table_, console.options))
    return " ".join(out.getvalue().split())


def test_success_has_columns_only_if_there_is_a_backdoor(template: Record) -> None:
    rows_ = found(template)
    text = printed(rows_)
    assert "pixel ◀ worst 90.0 ± 0.0 5.0 70.0 70.0" in text
    assert "sign-flip 91.0 ± 0.0 4.0 n/a n/a" in text
    assert "in points above the same run whose attack never begins" in text
    assert "half-life" not in text
    bare = printed([row for row in rows_ if row.cell.attack != "pixel"])
    assert "backdoor" not in bare
    assert "over clean" not in bare
    assert "| 70.0 | 70.0 |" in report.markdown(rows_)


@pytest.mark.parametrize(
    ("success", "life", "window"),
    [
        # Clean falls for 0.1. It acts in rounds 0 and 1: 0.9 - 0.1 = 0.8 at the end, half is 0.4.
        ([0.3, 0.9, 0.8, 0.6, 0.5, 0.1], 3, (2, 1)),  # 0.5 - 0.1 in round 4, three after round 1
        ([0.3, 0.9, 0.8, 0.45, 0.9, 0.9], 2, (2, 1)),  # half of 0.9 itself, not over clean
        ([0.3, 0.9, 0.8, 0.8, 0.8, 0.8], math.inf, (2, 1)),
        ([0.9, 0.1, 0.1, 0.1, 0.1, 0.1], None, (2, 1)),  # nothing was left when it stopped
        ([None, None, 0.8, 0.4, 0.4, 0.4], None, (2, 1)),  # nobody looked while it acted
        ([0.9, None, None, 0.8, None, 0.2], 4, (2, 1)),  # looks are rare
        # Rounds 0 and 3. Round 3 leaves 0.6 over clean, less than half of that is left in round 5.
        ([0.9, 0.2, 0.2, 0.7, 0.5, 0.35], 2, (4, 3)),
        ([0.9, 0.9, 0.9, 0.4, 0.9, 0.9], 1, (4, 2)),  # rounds 0 and 2: 0.8, half gone in round 3
    ],
)
def test_a_half_life_is_from_the_last_attacked_round_until_half_of_the_excess_is_left(
    template: Record, success: list[float | None], life: float | None, window: tuple[int, int]
) -> None:
    until, every = window
    attacked = Cell(Scenario(attack="pixel", attack_until=until, attack_every=every, rounds=6))
    twin = record(template, attacked.twin, 0, [0.1] * 6)
    assert half_life(record(template, attacked, 0, success), twin) == life
    always = Cell(Scenario(attack="pixel", rounds=6))
    assert half_life(record(template, always, 0, success), twin) is None
    longer = Cell(Scenario(attack="pixel", attack_until=6, rounds=6))
    assert half_life(record(template, longer, 0, success), twin) is None


def test_the_half_life_is_a_column_if_the_attack_stops(template: Record) -> None:
    attacked = Cell(Scenario(attack="pixel", attack_until=2, rounds=4))
    series = ([0.9, 0.9, 0.9, 0.1], [0.9, 0.9, 0.1, 0.1], [0.9, 0.9, 0.9, 0.9])
    records = {
        attacked: [record(template, attacked, s, x) for s, x in enumerate(series)],
        attacked.twin: [record(template, attacked.twin, s, [0.0] * 4) for s in range(3)],
    }
    (row,) = rows(list(records), records)
    assert row.half_life == 2.0  # of 2, 1 and never
    assert row.over_clean == pytest.approx((0.1 + 0.1 + 0.9) / 3)
    assert "half-life" in printed([row])
    apart = {attacked: records[attacked][:1], attacked.twin: records[attacked.twin][1:]}
    (row,) = rows(list(apart), apart)
    assert row.half_life is None, "no seed of it has a twin"
    last = {cell: runs[2:] for cell, runs in records.items()}
    (row,) = rows(list(last), last)
    assert columns.half_life(row) == "never"
    first = {cell: runs[:1] for cell, runs in records.items()}
    assert [columns.half_life(row) for row in rows(list(first), first)] == ["2"]
