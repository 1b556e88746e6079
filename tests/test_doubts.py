"""What rows say together, and the strongest of some candidates."""

import math
from dataclasses import replace
from typing import Any

import pytest

import fedbench
from fedbench.experiment.cells import Cell
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.results.doubts import blind, divided, doubts, helped, masked, once, spent, weaker
from fedbench.results.summary import Row, rows, sent_the_same
from fedbench.tables.report import markdown

SMALL = Scenario(clients=12, per_round=4, rounds=1, epochs=1, model="micro", malicious=0.5)


@pytest.fixture(scope="module")
def record() -> Record:
    return fedbench.play(SMALL.model_copy(update={"attack": "sign-flip"}), device="cpu")


def made(record: Record, accuracies: list[float], **fields: Any) -> Row:
    """A row whose runs had these accuracies; what it measured beside them is that of the record."""
    cell = Cell(SMALL.model_copy(update=fields), varied=("malicious",))
    results = [replace(record.result, accuracy=accuracy) for accuracy in accuracies]
    runs = (
        {"result": result, "scenario": record.scenario.model_copy(update={"seed": seed})}
        for seed, result in enumerate(results)
    )
    return Row(cell, tuple(record.model_copy(update=run) for run in runs))


def noted(row: Row, *notes: dict[str, Any]) -> Row:
    """The same row, whose runs had a round for each of these notes of its attack."""
    (first, *_) = row.records[0].rounds
    rounds = [replace(first, notes=note) for note in notes]
    return replace(row, records=tuple(r.model_copy(update={"rounds": rounds}) for r in row.records))


def test_a_stronger_adversary_that_helps_is_doubted_beyond_the_spread(record: Record) -> None:
    weak = made(record, [0.5, 0.6], attack="ipm", malicious=0.1)
    strong = made(record, [0.9, 0.8], attack="ipm", malicious=0.2)
    (said,) = helped([strong, weak])
    assert said.startswith("a stronger adversary helps: fedavg + mean; malicious 0.2 / ipm is")
    assert list(helped([weak, made(record, [0.6, 0.7], attack="ipm", malicious=0.2)])) == []
    assert list(helped([weak, made(record, [0.9, 0.8], attack="alie", malicious=0.2)])) == []
    assert list(helped([strong, made(record, [0.9, 0.9], attack="ipm", malicious=0.1)])) == []
    assert said in doubts([strong, weak])
    clean = [made(record, [x], malicious=share) for x, share in ((0.5, 0.1), (0.9, 0.2))]
    assert list(helped(clean)) == []  # nobody attacks there
    even = made(record, [0.75], attack="ipm", malicious=0.1)
    assert list(helped([even, made(record, [0.75], attack="ipm", malicious=0.2)])) == []


def test_an_attack_that_sees_less_and_does_more_is_doubted(record: Record) -> None:
    own = made(record, [0.2, 0.2], attack="sign-flip")
    assert list(blind([own, made(record, [0.5, 0.5], attack="min-max")])) == [
        "an attack that sees less beats all that see more: sign-flip is below min-max against "
        "fedavg + mean; malicious 0.5"
    ]
    most = made(record, [0.5, 0.5], attack="min-max")
    assert list(blind([own, most, made(record, [0.2, 0.2], attack="dyn-opt")])) == []
    some = made(record, [0.1, 0.1], attack="auto:knows=colluders,asks=false")
    assert "see more: auto:knows=colluders" in next(blind([own, some, most]))  # the worst of both
    assert list(blind([made(record, [0.2, 0.2]), most])) == []  # clean runs are no attack
    for other in ({"attack": "noise"}, {"attack": "min-max", "defense": "median"}):
        assert list(blind([own, made(record, [0.5, 0.5], **other)])) == []


def test_an_attack_that_does_more_with_less_knowledge_is_doubted(record: Record) -> None:
    every = made(record, [0.5, 0.6], attack="auto")
    blind_ = made(record, [0.2, 0.3], attack="auto:knows=colluders,asks=false")
    assert list(weaker([every, blind_])) == [
        "a weaker tier beats a stronger one: auto:knows=colluders,asks=false is below auto against "
        "fedavg + mean; malicious 0.5"
    ]
    assert next(iter(weaker([blind_, every]))) in doubts([blind_, every])
    tied = made(record, [0.45, 0.55], attack="auto:asks=false")
    assert list(weaker([every, tied])) == []  # within both spreads
    assert list(weaker([made(record, [0.1, 0.1], attack="auto"), blind_])) == []
    # what a sign flip of its own message could read, it does not
    flips = made(record, [0.5, 0.6], attack="sign-flip")
    assert list(weaker([flips, made(record, [0.2], attack="sign-flip:knows=colluders")])) == []
    # not the same attack, or not the same system
    for other in (
        {"attack": "auto:knows=colluders,budget=2"},
        {"attack": "min-max:knows=colluders"},
        {"attack": "auto:knows=colluders", "defense": "median"},
    ):
        assert list(weaker([every, made(record, [0.2, 0.3], **other)])) == []
    # one reads more, the other asks the rule: neither covers the other
    apart = made(record, [0.2, 0.3], attack="auto:knows=colluders")
    assert list(weaker([made(record, [0.5, 0.6], attack="auto:asks=false"), apart])) == []


def test_an_attack_without_gradients_that_does_far_more_is_doubted(record: Record) -> None:
    climbs = noted(made(record, [0.7, 0.8], attack="auto"), {"played": "gradient sign x 2"})
    best = made(record, [0.5, 0.6], attack="opt-ipm")
    assert list(masked([climbs, best])) == [
        "gradients may be masked: opt-ipm, which follows none, is 20.0 points below auto, the best "
        "attack that does, against fedavg + mean; malicious 0.5"
    ]
    assert next(iter(masked([climbs, best]))) in doubts([climbs, best])
    assert list(masked([climbs, made(record, [0.6, 0.7], attack="opt-ipm")])) == []  # spreads
    near = noted(made(record, [0.54, 0.54], attack="auto"), {"played": "std x 1 climbed"})
    assert list(masked([near, made(record, [0.5, 0.5], attack="opt-ipm")])) == []  # not far
    assert list(masked([noted(near, {"played": "gradient x 1"}), climbs])) == []
    assert list(masked([climbs, made(record, [0.5, 0.6], attack="ipm", defense="median")])) == []
    # It played along a gradient in one of three rounds: it is no attack that follows one.
    other = noted(
        climbs, {"played": "opt-ipm"}, {"played": "minus std x 2"}, {"played": "crossing"}
    )
    assert list(masked([other, best])) == []
    half = noted(climbs, {"played": "opt-ipm"}, {"played": "crossing 0.3"})
    assert len(list(masked([half, best]))) == 1


def test_a_budget_that_was_spent_or_that_a_larger_one_beats_is_doubted(record: Record) -> None:
    spends = ({"ended": "budget"}, {"ended": "budget"}, {"ended": "converged"})
    small = noted(made(record, [0.5, 0.6], attack="auto"), *spends)
    assert list(spent([small])) == [
        "in most rounds the budget ended while the loss still grew: auto against fedavg + mean; "
        "malicious 0.5; a larger one may do more"
    ]
    assert next(iter(spent([small]))) in doubts([small])
    assert list(spent([noted(small, *spends[1:])])) == []  # in half of the rounds
    large = noted(made(record, [0.2, 0.3], attack="auto:budget=10"), *spends)
    assert list(spent([large, small])) == [
        "more budget does more: auto:budget=10 is below auto against fedavg + mean; malicious 0.5; "
        "a larger one may do more"
    ]
    enough = noted(made(record, [0.45, 0.55], attack="auto:budget=10"), *spends)
    assert list(spent([small, enough])) == []  # ten times the budget does no more
    middle = made(record, [0.2, 0.2], attack="auto:budget=3")
    assert list(spent([small, made(record, [0.2, 0.2], attack="auto:budget=10"), middle])) == []
    assert list(spent([noted(made(record, [0.5], attack="dyn-opt"), *spends)])) == []


@pytest.mark.parametrize("idle", [{"malicious": 0}, {"skipped": True}])
def test_rounds_in_which_no_malicious_message_counted_say_nothing_about_a_budget(
    record: Record, idle: dict[str, Any]
) -> None:
    row = noted(made(record, [0.5, 0.6], attack="auto"), {"ended": "budget"})
    (acting,) = row.records[0].rounds
    rounds = [acting, replace(acting, notes={}, **idle), replace(acting, notes={}, **idle)]
    runs = tuple(run.model_copy(update={"rounds": rounds}) for run in row.records)
    assert len(list(spent([replace(row, records=runs)]))) == 1


def test_seeds_that_differ_in_their_worst_attack_are_doubted_if_that_matters(
    record: Record,
) -> None:
    # Means are 40, 50 and 90; the lowest of each seed are 20, 30 and 40: 30 on average.
    flip = made(record, [0.2, 0.6, 0.4], attack="sign-flip")
    ipm = made(record, [0.7, 0.3, 0.5], attack="ipm")
    alie = made(record, [0.9, 0.9, 0.9], attack="alie")
    assert list(divided([ipm, flip, alie])) == [
        "the worst attack differs between seeds: sign-flip in 2, ipm in 1 of 3 against "
        "fedavg + mean; malicious 0.5; the lowest of each seed are 30.0 % on average, the lowest "
        "mean is 40.0 %"
    ]
    assert next(iter(divided([flip, ipm]))) in doubts([flip, ipm])
    assert list(divided([flip, alie])) == []  # one attack is the worst of all seeds
    assert list(divided([flip, made(record, [0.3, 0.59, 0.5], attack="ipm")])) == []  # a third of 1
    assert list(divided([made(record, [0.2], attack="ipm"), flip])) == []  # one seed in common


def test_an_attack_that_sends_what_another_sends_is_named_after_it() -> None:
    def played(attack: str) -> Cell:
        cell = Cell(SMALL.model_copy(update={"protocol": "signsgd", "attack": attack}))
        records[cell] = [fedbench.play(cell.scenario, device="cpu")]
        return cell

    records: dict[Cell, list[Record]] = {}
    texts = ("none", "ipm", "sign-flip", "ipm:eps=100", "sign-flip:of=mean")
    table = rows([played(attack) for attack in texts], records)
    # Signs have no length, and minus the mean is its inner-product manipulation.
    assert [row.same for row in table] == ["", "", "", "ipm", "ipm"]
    assert table[1].records[0].scenario != table[3].records[0].scenario
    assert "| ipm:eps=100 (same as ipm) |" in markdown(table)
    assert "same as: sent the messages of that attack" in markdown(table)
    assert "same as" not in markdown(table[:3])


def test_attacks_are_the_same_if_all_that_was_measured_is(record: Record) -> None:
    first = made(record, [0.5, 0.6], attack="ipm")
    assert sent_the_same(noted(first, {"gamma": 1.0}), noted(first, {"gamma": 2.0}))
    (only,) = record.rounds
    asked = [replace(only, queries=only.queries + 5, trace=[(1.0, 2.0)])]
    searching = tuple(r.model_copy(update={"rounds": asked}) for r in first.records)
    more_queries = replace(first, records=searching)
    assert sent_the_same(first, more_queries), "it only asked the rule more often"
    assert only.gain is not None
    farther = [replace(only, gain=math.nextafter(only.gain, math.inf))]
    for changed in (
        replace(first, records=first.records[:1]),  # a seed is missing
        made(record, [0.5, 0.7], attack="ipm"),  # the same with one of two seeds
        replace(
            first, records=tuple(r.model_copy(update={"rounds": farther}) for r in first.records)
        ),
    ):
        assert not sent_the_same(first, changed)


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
    assert "strongest of 3: ipm ◀" in markdown(table)
    # where a split has no validation data, no candidate is chosen by its test accuracy instead
    for cell, (run,) in records.items():
        result = replace(run.result, validation_accuracy=None)
        records[cell] = [run.model_copy(update={"result": result})]
    table = rows([clean, *tried], records)
    assert [row.cell.attack for row in table] == ["none", "noise"]
