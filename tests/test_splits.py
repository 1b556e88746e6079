"""Splits: clients train on what they shall train on, and nothing that tests is ever trained on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedbench
from fedbench.core.choices import Split
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key, Secret
from fedbench.data import splits
from fedbench.data.datasets import Data
from fedbench.data.splits import split_client, take_root
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.evaluation import deployed, evaluate
from fedbench.experiment.population import Population, populate
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import parse
from fedbench.experiment.scenario import Scenario
from fedbench.results.query import Query
from fedbench.results.summary import rows
from fedbench.run import begin, play_round
from fedbench.sweeps.plan import Plan
from fedbench.tables import report

TRAINED = 300
TESTED = 60


def numbered(trained: int | None = TRAINED, samples: int = TRAINED + TESTED) -> Data:
    """Images of 8x8 pixels, the first four of which say in base 8 which row they are."""
    row = torch.arange(samples)
    pixels = torch.stack([row % 8, row // 8 % 8, row // 64 % 8, row // 512 % 8], dim=1)
    x = torch.nn.functional.pad(pixels, (0, 60)).reshape(-1, 1, 8, 8).to(torch.uint8)
    y = Key(5).permutation(samples) % 10
    return Data(x, y, classes=10, scale=8.0, mean=(0.5,), std=(0.25,), trained=trained)


def rows_of(x: Tensor) -> set[int]:
    """The rows whose images these normalised ones are."""
    pixels = ((x.flatten(1)[:, :4] * 0.25 + 0.5) * 8).round().long()
    return set((pixels * torch.tensor([1, 8, 64, 512])).sum(dim=1).tolist())


FIELDS: dict[str, Any] = {"clients": 8, "per_round": 4, "rounds": 2, "eval_every": 1}
FIELDS |= {"model": "micro", "malicious": 0.25, "epochs": 1}


def peopled(data: Data, **fields: Any) -> Population:
    resolution = resolve(Scenario(**FIELDS | fields))
    return populate(resolution, data, Secret.of(resolution.scenario.seed, "run"))


def joined(parts: Sequence[Tensor]) -> list[int]:
    return sorted(torch.cat(list(parts)).tolist())


@pytest.mark.parametrize(
    ("split", "cases"),
    [
        # (train, validation, test): a tenth and a fifth, rounded half up, at least one each
        (
            "per-client",
            [(1, 1, 1), (2, 1, 1), (7, 1, 2), (10, 2, 3), (12, 2, 3), (12, 2, 4), (49, 7, 14)],
        ),
        # of 2, 3, 4, 7, 8, 12, 13 and 70 samples: a fifth is 0.4, 0.6, 0.8, 1.4, 1.6, 2.4, 2.6, 14
        (
            "per-client-80-20",
            [
                *[(1, 0, 1), (2, 0, 1), (3, 0, 1), (6, 0, 1), (6, 0, 2), (10, 0, 2), (10, 0, 3)],
                (56, 0, 14),
            ],
        ),
        ("published", [(1, 0, 0), (2, 0, 0), (17, 0, 0)]),
    ],
)
def test_a_client_is_cut_as_the_split_says_shuffled_by_its_key(
    split: Split, cases: list[tuple[int, int, int]]
) -> None:
    for sizes in cases:
        rows = torch.arange(100, 100 + sum(sizes))
        parts = split_client(rows, Key(3), split)
        assert tuple(len(part) for part in parts) == sizes
        assert torch.equal(torch.cat(parts).sort().values, rows)
    first, again, other = (torch.cat(split_client(rows, Key(s), split)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, rows)
    least = sum(cases[0])
    with pytest.raises(
        ConfigError, match=rf"at least {least} sample.* to .*train.*, got {least - 1}"
    ):
        split_client(torch.arange(least - 1), Key(0), split)


@pytest.mark.parametrize(
    "partition", ["iid", "shards", "dirichlet:beta=0.1", "labels", "max-classes:classes=3"]
)
@pytest.mark.parametrize("defense", ["mean", "fltrust"])
def test_published_test_images_are_in_nobody_s_training_or_root_data(
    partition: str, defense: str
) -> None:
    data = numbered()
    for seed in range(4):
        fields: dict[str, Any] = {"partition": partition, "defense": defense, "seed": seed}
        people = peopled(data, split="published", **fields)
        assert people.published is not None
        assert people.published.tolist() == list(range(TRAINED, TRAINED + TESTED))
        assert [part.tolist() for part in people.judged] == [people.published.tolist()]
        # All training images, and no others, are a client's or the server's, each once.
        assert joined([*people.train, people.root]) == list(range(TRAINED))
        assert len(people.root) == (100 if defense == "fltrust" else 0)
        assert joined(people.validation) == joined(people.test) == []
        assert min(map(len, people.train)) >= 1


def test_without_the_published_split_every_sample_is_dealt_and_benign_clients_are_judged() -> None:
    for split in ("per-client", "per-client-80-20"):
        people = peopled(numbered(), split=split, defense="fltrust", partition="iid")
        assert people.published is None
        everything = [*people.train, *people.validation, *people.test, people.root]
        assert joined(everything) == list(range(TRAINED + TESTED))
        benign = [part for i, part in enumerate(people.test) if not people.malicious[i]]
        assert len(benign) == 6
        assert all(map(torch.equal, people.judged, benign))
        # 45 samples each: 4.5 and 9; root data are half of all validation, or 100 of training data
        tested = 9
        assert {len(part) for part in people.test} == {tested}
        if split == "per-client":
            assert len(people.root) == 8 * 5 // 2
            assert {len(part) for part in people.train} == {31}
        else:
            assert joined(people.validation) == []
            assert len(people.root) == 100
            assert sum(map(len, people.train)) == 8 * 36 - 100


@pytest.mark.parametrize("split", ["per-client", "per-client-80-20", "published"])
def test_a_rule_without_root_data_takes_no_sample_from_a_client(split: Split) -> None:
    people = peopled(numbered(), split=split, defense="mean", partition="iid")
    assert len(people.root) == 0
    clients = [*people.train, *people.validation, *people.test]
    count = TRAINED if split == "published" else TRAINED + TESTED
    assert joined(clients) == list(range(count))


def test_a_split_that_is_not_published_is_that_of_the_pool_whatever_was_published() -> None:
    known, unknown = (peopled(numbered(trained), defense="fltrust") for trained in (TRAINED, None))
    for name in ("train", "validation", "test"):
        pairs = zip(getattr(known, name), getattr(unknown, name), strict=True)
        assert all(torch.equal(*pair) for pair in pairs)
    assert torch.equal(known.root, unknown.root)


def test_root_data_leave_a_sample_to_every_client_that_trains() -> None:
    people = peopled(numbered(), split="published", defense="fltrust", partition="iid", clients=200)
    assert len(people.root) == 50  # half of what those with two samples can spare
    assert min(map(len, people.train)) == 1
    parts = [torch.tensor([1]), torch.tensor([2]), torch.arange(10, 20)]
    root, rest = take_root(parts, Key(0), left=1)
    assert len(root) == 4  # half of the nine that can be spared
    assert [part[0].item() for part in rest] == [1, 2, 10]
    assert joined([root, *rest]) == [1, 2, *range(10, 20)]
    with pytest.raises(ConfigError, match=r"2 or more samples that clients can spare, got 0"):
        take_root(parts[:2], Key(0), left=1)


def test_a_run_is_judged_on_exactly_the_published_test_images() -> None:
    data = numbered()
    scenario = Scenario(**FIELDS, split="published", partition="iid")
    setup = prepare(scenario, "cpu", "loop", data=data)
    state = begin(setup)
    play_round(setup, state, 0)
    tested = torch.arange(TRAINED, TRAINED + TESTED)
    model = deployed(setup, state.server, 0)
    assert isinstance(model, dict)
    right = setup.shared.network.logits(model, data.floats(tested)).argmax(dim=1) == data.y[tested]
    score = evaluate(setup, state.server, 0)
    assert score.accuracy == pytest.approx(float(right.double().mean()))
    assert score.parts.tolist() == [score.accuracy]


def test_nothing_that_trains_in_a_round_sees_a_published_test_image() -> None:
    seen: list[set[int]] = []
    fields: dict[str, Any] = {"defense": "fltrust", "attack": "auto:budget=1", "partition": "iid"}
    setup = prepare(Scenario(**FIELDS | fields, split="published"), "cpu", "loop", data=numbered())
    train = type(setup.executor).train
    rehearse = type(setup).rehearse

    class Watched(type(setup.executor)):  # type: ignore[misc]
        def train(self, clients: Any) -> Any:
            seen.extend(rows_of(client.x) for client in clients)
            return train(self, clients)

    class Rehearsed(type(setup)):  # type: ignore[misc]
        def rehearse(self, *args: Any) -> Any:
            rehearsal = rehearse(self, *args)
            seen.append(rows_of(rehearsal.x))
            rehearsals.append(rehearsal)
            return rehearsal

    rehearsals: list[Any] = []
    engine = Watched(setup.executor.protocol, setup.shared, setup.executor.schedule)
    parts = {name: getattr(setup, name) for name in setup.__dataclass_fields__}
    watched = Rehearsed(**parts | {"executor": engine})
    state = begin(watched)
    for step in range(2):
        play_round(watched, state, step)
    assert rehearsals
    assert len(seen) > 2 * 4  # the clients and the server's root data of each round, too
    assert set().union(*seen) <= set(range(TRAINED))
    assert any(root == set(setup.population.root.tolist()) for root in seen)


def played(split: Split, **fields: Any) -> fedbench.Record:
    scenario = Scenario(**FIELDS | fields, split=split, partition="iid")
    return fedbench.play(scenario, device="cpu", executor="loop", data=numbered())


def test_a_record_leaves_out_what_a_split_has_no_data_for(tmp_path: Path) -> None:
    own = played("per-client")
    eighty = played("per-client-80-20")
    published = played("published")
    assert own.result.validation_accuracy is not None
    assert eighty.result.validation_accuracy is None
    assert published.result.validation_accuracy is None
    assert eighty.result.per_client is not None
    assert published.result.per_client is None
    assert "split" not in own.scenario.model_dump()
    assert published.scenario.model_dump()["split"] == "published"
    assert published.result.accuracy * TESTED == pytest.approx(
        round(published.result.accuracy * TESTED)
    )
    for record in (own, eighty, published):
        assert parse(record.to_json().encode(), "it").result == record.result
        record.write(tmp_path)
    found = {entry["split"]: entry for entry in Query.parse("run").answer(tmp_path).entries}
    assert set(found) == {"per-client", "per-client-80-20", "published"}
    assert found["published"]["worst_client"] is found["published"]["validation_accuracy"] is None
    assert found["per-client"]["worst_client"] == own.result.per_client.min  # type: ignore[union-attr]
    assert len({record.id for record in (own, eighty, published)}) == 3


def test_a_table_names_the_splits_and_has_no_number_for_clients_without_test_data() -> None:
    plan = Plan.of(
        {"scenario": {"split": ["per-client", "published"]}, "grid": [{"attack": "none"}]}, "it"
    )
    cells, _ = plan.cells()
    records = {cell: [played(cell.scenario.split)] for cell in cells}
    text = report.markdown(rows(cells, records))
    assert "fedavg + mean; split per-client" in text
    lines = [
        line for line in text.splitlines() if line.startswith("|   none") or "none (cl" in line
    ]
    assert [line.count("n/a") for line in lines[:2]] == [1, 5]  # ε; and four of single clients
    assert (
        "percent of the benign clients' pooled test data (split published: published test images)"
        in text
    )
    only = [cell for cell in cells if cell.scenario.split == "published"]
    text = report.markdown(rows(only, {cell: records[cell] for cell in only}))
    assert "accuracy: percent of the published test images, at the last round" in text
    assert "client" not in text


@pytest.mark.parametrize("dataset", ["digits", "mnist-5k"])
def test_data_without_a_published_split_refuse_it_in_one_line(dataset: str) -> None:
    message = (
        f"--split published must have a data set with published test images, got {dataset}; use "
        "--dataset mnist, or --split per-client"
    )
    with pytest.raises(ConfigError) as error:
        prepare(Scenario(dataset=dataset, split="published"), "cpu", "loop")
    assert str(error.value) == message
    with pytest.raises(ConfigError, match=r"got samples of one's own without Data.trained; use"):
        prepare(Scenario(split="published"), "cpu", "loop", data=numbered(None))


def test_what_needs_other_parts_than_the_split_has_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"local_models must be off with Scenario.split published"
    ):
        Scenario(split="published", local_models=True)
    for split in ("published", "per-client-80-20"):
        plan = Plan.of({"scenario": {"split": split}, "grid": [{"attack": "strongest"}]}, "it")
        with pytest.raises(ConfigError, match=rf"validation data .* got --split {split}"):
            plan.cells()
    assert "strongest of 12" not in str(Plan.of({"grid": [{"attack": "strongest"}]}, "it").cells())


def test_every_split_has_its_shares() -> None:
    for split, (validation, test) in splits.TENTHS.items():
        sizes = tuple(map(len, split_client(torch.arange(100), Key(0), split)))
        assert sizes == (100 - 10 * validation - 10 * test, 10 * validation, 10 * test)


def test_a_pool_knows_its_published_part_wherever_it_goes() -> None:
    data = numbered().named("it")
    assert (data.to("cpu").trained, data.is_named("it")) == (TRAINED, True)
    moved = replace(data, trained=TRAINED - 1)
    assert not moved.is_named("it")
    assert moved.identity != data.identity != numbered(None).identity
    assert moved.digest == data.digest


def test_data_are_dealt_by_the_data_seed_and_the_adversary_is_drawn_by_the_seed() -> None:
    small: dict[str, Any] = {"model": "micro", "clients": 20, "per_round": 4, "malicious": 0.5}
    first, second, other = (
        prepare(Scenario(seed=seed, data_seed=data_seed, **small), "cpu").population
        for seed, data_seed in ((1, 7), (2, 7), (1, 8))
    )
    for parts, again, others in (
        (first.train, second.train, other.train),
        (first.test, second.test, other.test),
    ):
        assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
        assert not all(torch.equal(a, b) for a, b in zip(parts, others, strict=True))
    everyone = torch.arange(20)
    assert torch.equal(first.malicious[everyone], other.malicious[everyone])
    assert not torch.equal(first.malicious[everyone], second.malicious[everyone])


@pytest.mark.parametrize("split", ["per-client", "per-client-80-20"])
def test_each_client_s_samples_are_shuffled_by_a_draw_of_its_own(split: Split) -> None:
    resolution = resolve(Scenario(**FIELDS | {"split": split, "data_seed": 7}))
    data = numbered()
    people = populate(resolution, data, Secret.of(0, "run"))
    dealt = Secret.of(7, "data")
    parts = resolution.partition.split(data.y, 8, data.classes, dealt.key("partition"), None)
    for i, part in enumerate(parts):
        train, _, test = split_client(part, dealt.key("split", i), split)
        assert people.train[i].tolist() == train.tolist()
        assert people.test[i].tolist() == test.tolist()
