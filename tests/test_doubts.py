"""What rows say together, and the strongest of some candidates."""

from dataclasses import replace
from typing import Any

import pytest

import fedbench
from fedbench.experiment.cells import Cell
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.results.summary import Row, blind, doubts, helped, once, rows

SMALL = Scenario(clients=12, per_round=4, rounds=1, epochs=1, model="micro", malicious=0.5)


@pytest.fixture(scope="module")
def record() -> Record:
    return fedbench.play(SMALL.model_copy(update={"attack": "sign-flip"}), device="cpu")


def made(record: Record, accuracies: list[float], **fields: Any) -> Row:
    """A row whose runs had these accuracies; what it measured beside them is that of the record."""
    cell = Cell(SMALL.model_copy(update=fields), varied=("malicious",))
    results = [replace(record.result, accuracy=accuracy) for accuracy in accuracies]
    return Row(cell, tuple(record.model_copy(update={"result": result}) for result in results))


def test_a_stronger_adversary_that_helps_is_doubted_beyond_the_spread(record: Record) -> None:
    weak = made(record, [0.5, 0.6], attack="ipm", malicious=0.1)
    strong = made(record, [0.9, 0.8], attack="ipm", malicious=0.2)
    (said,) = helped([strong, weak])
    assert said.startswith("a stronger adversary helps: fedavg + mean; malicious 0.2 / ipm is")
    assert list(helped([weak, made(record, [0.6, 0.7], attack="ipm", malicious=0.2)])) == []
    assert list(helped([weak, made(record, [0.9, 0.8], attack="alie", malicious=0.2)])) == []
    assert list(helped([strong, made(record, [0.9, 0.9], attack="ipm", malicious=0.1)])) == []
    assert said in doubts([strong, weak])


def test_an_attack_that_sees_less_and_does_more_is_doubted(record: Record) -> None:
    own = made(record, [0.2, 0.2], attack="sign-flip")
    assert list(blind([own, made(record, [0.5, 0.5], attack="min-max")])) == [
        "an attack that sees less beats all that see more: sign-flip is below min-max against "
        "fedavg + mean; malicious 0.5"
    ]
    most = made(record, [0.5, 0.5], attack="min-max")
    assert list(blind([own, most, made(record, [0.2, 0.2], attack="dyn-opt")])) == []
    for other in ({"attack": "noise"}, {"attack": "min-max", "defense": "median"}):
        assert list(blind([own, made(record, [0.5, 0.5], **other)])) == []


def test_a_randomized_rule_that_was_run_once_is_doubted(record: Record) -> None:
    for rule in ("median", "norm-bound"):
        assert list(once([made(record, [0.5], defense=rule)])) == []
    for rule in ("norm-bound:noise=0.1", "bucketing+median"):
        (said,) = once([made(record, [0.5], defense=rule)])
        assert said.startswith(f"a randomized defense was run once: {rule}")
        assert list(once([made(record, [0.5, 0.5], defense=rule)])) == []


def test_the_strongest_is_chosen_on_validation_data_and_shown_with_its_test_accuracy(
    record: Record,
) -> None:
    def played(cell: Cell, validation: float, test: float) -> list[Record]:
        result = replace(record.result, validation_accuracy=validation, accuracy=test)
        return [record.model_copy(update={"result": result})]

    scenarios = [SMALL.model_copy(update={"attack": a}) for a in ("none", "ipm", "alie", "noise")]
    clean, *tried = [Cell(s, (), 3 * (i > 0), i in (0, 3)) for i, s in enumerate(scenarios)]
    records = {
        clean: played(clean, 0.9, 0.9),
        tried[0]: played(tried[0], 0.5, 0.6),  # the worst on validation data
        tried[1]: played(tried[1], 0.7, 0.1),  # the worst on test data
        tried[2]: played(tried[2], 0.8, 0.8),  # asked for by name, too
    }
    table = rows([clean, *tried], records)
    assert [(row.cell.attack, row.tried, row.accuracy) for row in table] == [
        ("none", 0, 0.9),
        ("ipm", 3, 0.6),
        ("noise", 0, 0.8),
    ]
    assert [row.worst for row in table] == [False, True, False]
