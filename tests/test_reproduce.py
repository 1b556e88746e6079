"""Papers as data, and what is played beside their numbers."""

import itertools
import json
from pathlib import Path

import pytest
from conftest import Command
from pydantic import ValidationError
from rich.console import Console
from sample_records import sample_record, sample_round

import fedbench
from fedbench.cli.reproduce import play as play_exhibit
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.scenario import Scenario
from fedbench.reproduce import sizes
from fedbench.reproduce.exhibits import (
    SCALES,
    Exhibit,
    PaperNumber,
    Reason,
    Scale,
    exhibits,
    papers,
)
from fedbench.reproduce.outcomes import (
    READ,
    Number,
    Outcome,
    gigabytes,
    measured,
    parsed,
    stored_outcomes,
    until,
)
from fedbench.reproduce.verdicts import Verdict, compare, compared, counts
from fedbench.sweeps.local import Options

EXHIBITS = exhibits()


def tiny(**changes: object) -> Exhibit:
    """An exhibit with two cells that take a second to play."""
    fields: dict[str, object] = {
        "name": "tiny-table",
        "label": "Table 0",
        "shows": "Two systems.",
        "measure": "accuracy",
        "unit": "%",
        "setting": {
            **{"model": "micro", "clients": 8, "per_round": 4, "rounds": 40, "malicious": 0.25},
            **{"epochs": 1},
        },
        "cell": [
            {"at": {"system": "FedAvg"}, "says": 10.0, "play": {"protocol": "fedavg"}},
            {"at": {"system": "SignSGD"}, "says": 90.0, "play": {"protocol": "signsgd"}},
        ],
        "scale": {"mini": {"seeds": [0, 1], "scenario": {"rounds": 1}}},
    }
    return Exhibit.model_validate(fields | changes)


def outcome(values: dict[int, float], exhibit: Exhibit, scale: str = "mini") -> Outcome:
    cells = (Number(at=exhibit.cell[0].at, values=values),)
    about = {"played": "2026-01-01", "code": "1", "platform": "x"}
    return Outcome(exhibit=exhibit.name, scale=scale, cell=cells, **about)


def test_there_are_five_papers_and_their_exhibits_have_names_of_their_own() -> None:
    assert {p.name for p in papers()} == {
        *("fsl", "fedpm", "regularized-fedpm", "fedmrn", "fedsparse")
    }
    assert sum(len(paper.exhibit) for paper in papers()) == len(EXHIBITS)
    for paper in papers():
        assert all(exhibit.name.startswith(f"{paper.name}-") for exhibit in paper.exhibit)


@pytest.mark.parametrize("name", EXHIBITS)
def test_what_is_played_at_any_scale_fits_together(name: str) -> None:
    exhibit = EXHIBITS[name]
    scenarios = {
        exhibit.scenario(claim, scale) for scale in SCALES for claim in exhibit.trained(scale)
    }
    for scenario in scenarios:
        protocol = resolve(scenario).plugins.protocol
        assert sizes.size(scenario) is not None
        _, _, image, classes = sizes.POOLS[registry.split(scenario.dataset)[0]]
        network = registry.load("model", scenario.model).build(image, classes)
        assert protocol.statistics or not network.statistics
    for scale, played in exhibit.scale.items():
        assert exhibit.trained(scale), f"{scale} plays no cell"
        assert scale == "full" or played.differs


@pytest.mark.parametrize("name", EXHIBITS)
def test_every_reason_explains_a_cell_and_names_its_control(name: str) -> None:
    exhibit = EXHIBITS[name]
    for reason in exhibit.reason:
        assert any(claim.within(reason.only) for claim in exhibit.cell)
        assert reason.control
        assert reason.shows


def test_a_run_that_is_too_short_explains_only_numbers_below_the_papers() -> None:
    above = [
        (exhibit.name, cell.claim.name)
        for exhibit in EXHIBITS.values()
        for cell in compared(exhibit, stored_outcomes())
        if cell.reason is not None
        and "accuracy is still rising" in cell.reason.text
        and cell.ours is not None
        and cell.ours.mean > cell.claim.says
    ]
    assert above == []


def test_what_follows_from_a_formula_agrees_or_is_explained() -> None:
    cells = [
        cell
        for exhibit in EXHIBITS.values()
        for cell in compared(exhibit, {})
        if cell.verdict is not Verdict.NOT_RUN
    ]
    assert len(cells) > 100
    assert not [cell.claim for cell in cells if cell.verdict is Verdict.UNEXPLAINED]
    assert sum(cell.verdict is Verdict.KNOWN for cell in cells) == 4


def test_what_was_kept_is_of_an_exhibit_and_played_as_it_says() -> None:
    outcomes = stored_outcomes()
    assert {scale for _, scale in outcomes} == {"mini", "paper-data"}
    for (name, scale), played in outcomes.items():
        exhibit = EXHIBITS[name]
        claims = {tuple(claim.at.items()): claim for claim in exhibit.trained(scale)}
        for cell in played.cell:
            scenario = exhibit.scenario(claims[tuple(cell.at.items())], scale)
            now = scenario.model_dump(mode="json", exclude_defaults=True, exclude={"seed"})
            assert now == cell.scenario, f"{name} at {scale} is described otherwise now"


def test_the_chance_that_half_of_a_round_is_malicious_by_hand() -> None:
    # 2 of 4 clients are malicious and a round has 2: one of 6 pairs has no malicious client.
    scenario = Scenario(clients=4, per_round=2, malicious=0.5)
    assert sizes.half_malicious(scenario) == pytest.approx(5 / 6)
    # a round of 3 needs two: both with one of the 2 others, 2 of 4 triples
    assert sizes.half_malicious(Scenario(clients=4, per_round=3, malicious=0.5)) == pytest.approx(
        sum(
            sum(client < 2 for client in chosen) * 2 >= 3
            for chosen in itertools.combinations(range(4), 3)
        )
        / 4
    )
    assert sizes.half_malicious(Scenario(malicious=0.0)) == 0


def test_the_size_of_a_run_by_hand() -> None:
    # 5,000 samples, 50 clients: 100 each, 70 for training; 9 steps of 8 and two epochs: 18
    fields = {"dataset": "mnist-5k", "clients": 50, "per_round": 10, "rounds": 3, "epochs": 2}
    scenario = Scenario.of(**fields, batch_size=8, malicious=0.0, model="micro")
    size = sizes.size(scenario)
    assert size is not None
    assert size.samples == pytest.approx(70)
    assert size.steps == 18
    assert size.total_steps == 54
    forward = sizes.forward_operations("micro", (1, 28, 28), 10)
    assert size.operations == pytest.approx(3 * forward * 3 * 10 * 2 * 70)
    assert sizes.size(scenario.model_copy(update={"dataset": "nothing"})) is None
    # 60,000 and 10,000: published, all of the first train, else seven tenths of both
    mnist = scenario.model_copy(update={"dataset": "mnist", "clients": 100})
    for split, samples in (("published", 600), ("per-client", 490), ("per-client-80-20", 560)):
        size = sizes.size(mnist.model_copy(update={"split": split}))
        assert size is not None
        assert size.samples == pytest.approx(samples)


def test_operations_of_a_forward_pass_by_hand() -> None:
    # lenet5 on one channel of 28 x 28, padding 0 or 2 as its shapes say: products of its layers
    network = registry.load("model", "lenet").build((1, 8, 8), 10)
    shapes = network.shapes
    sides = {"conv1": 8 * 8, "conv2": 8 * 8}
    expected = 0
    for name, shape in shapes.items():
        product = 1
        for extent in shape:
            product *= extent
        expected += 2 * product * sides.get(name, 1)
    assert sizes.forward_operations("lenet", (1, 8, 8), 10) == expected


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ({0: 11.9}, Verdict.AGREES),  # within the margin of 2 points
        ({0: 12.1}, Verdict.UNEXPLAINED),
        # t = 4.303, std 2, n = 3: 13 ± 4.97 holds 10, and is at most 10 points to each side
        ({0: 11.0, 1: 13.0, 2: 15.0}, Verdict.AGREES),
        ({0: 3.0, 1: 13.0, 2: 23.0}, Verdict.UNEXPLAINED),  # 13 ± 24.8 says nothing
    ],
)
def test_numbers_agree_within_a_margin_or_a_narrow_interval(
    values: dict[int, float], verdict: Verdict
) -> None:
    exhibit = tiny()
    found = compare(exhibit, exhibit.cell[0], outcome(values, exhibit), "mini")
    assert found.verdict is verdict


def test_a_difference_is_known_only_where_its_reason_says_so() -> None:
    reason = Reason(only={"system": ["FedAvg"]}, scales=("mini",), text="a", control="b", shows="c")
    exhibit = tiny(reason=[reason.model_dump()])
    far = outcome({0: 50.0}, exhibit)
    assert compare(exhibit, exhibit.cell[0], far, "mini").verdict is Verdict.KNOWN
    assert compare(exhibit, exhibit.cell[0], far, "full").verdict is Verdict.UNEXPLAINED
    other = Number(at=exhibit.cell[1].at, values={0: 50.0})
    elsewhere = far.model_copy(update={"cell": (other,)})
    assert compare(exhibit, exhibit.cell[1], elsewhere, "mini").verdict is Verdict.UNEXPLAINED


def test_the_largest_scale_that_was_played_decides() -> None:
    exhibit = tiny()
    outcomes = {
        (exhibit.name, "mini"): outcome({0: 50.0}, exhibit),
        (exhibit.name, "full"): outcome({0: 10.0}, exhibit, "full"),
    }
    cells = compared(exhibit, outcomes)
    assert [cell.verdict for cell in cells] == [Verdict.AGREES, Verdict.NOT_RUN]
    assert cells[0].scale == "full"
    assert counts(cells)[Verdict.NOT_RUN] == 1


@pytest.mark.slow
def test_an_exhibit_is_played_compared_and_kept(tmp_path: Path) -> None:
    exhibit = tiny()
    console = Console(width=100)
    options = Options("cpu", workers=1)
    found, failed = play_exhibit(console, exhibit, "mini", [0], options, tmp_path / "store")
    assert found is not None
    assert failed == {}
    assert [set(cell.values) for cell in found.cell] == [{0}, {0}]
    assert found.cell[0].scenario["rounds"] == 1
    records = list((tmp_path / "store").glob("*.json"))
    accuracies = [json.loads(path.read_text())["result"]["accuracy"] for path in records]
    assert sorted(cell.values[0] / 100 for cell in found.cell) == pytest.approx(sorted(accuracies))


def played(exhibit: Exhibit) -> Outcome:
    """Play the cells of an exhibit with seed 0, in this process."""
    scenarios = {s for claim in exhibit.trained("mini") for s in exhibit.scenarios(claim, "mini")}
    records = {scenario: [fedbench.play(scenario, device="cpu")] for scenario in scenarios}
    return measured(exhibit, "mini", records, "2026-01-01")


def test_two_runs_of_a_seed_make_one_number() -> None:
    fedavg = {"protocol": "fedavg"}
    signsgd = {"protocol": "signsgd"}
    cell = {"at": {"system": "SignSGD"}, "says": 31.0, "play": signsgd, "against": fedavg}
    exhibit = tiny(measure="bits", compares="difference", cell=[cell])
    assert played(exhibit).cell[0].values[0] == pytest.approx(32 - 1, abs=0.02)  # and headers
    saved = exhibit.model_copy(update={"compares": "saved", "measure": "gigabytes"})
    # up and down 32 bits each, or 1 up and 32 down
    assert played(saved).cell[0].values[0] == pytest.approx(1 - 33 / 64, abs=1e-3)


def test_a_run_is_read_where_it_first_reached_an_accuracy() -> None:
    looks = (None, 0.5, 0.625, 0.75)
    record = sample_record(Scenario(), [sample_round(i, x) for i, x in enumerate(looks)], {})
    cut = until(record, 62.5)
    assert cut is not None
    assert [r.accuracy for r in cut.rounds] == [None, 0.5, 0.625]
    assert until(record, 75.1) is None
    assert until(record, None) is record
    assert gigabytes(cut.rounds) == 3 * (64 + 64) / 8 / 2**30
    assert gigabytes([sample_round(0, uplink_bits=None)]) == 64 / 8 / 2**30


def test_each_measure_is_read_in_the_unit_of_the_papers() -> None:
    own = {"local_accuracy": 0.75, "sparsity": 0.25, "entropy_bits_per_parameter": 0.5}
    bits = {"uplink_bits_per_parameter": 2.0, "downlink_bits_per_parameter": 4.0}
    result = own | bits | {"epsilon": 3.0, "model_bits": 3200}
    record = sample_record(Scenario(), [sample_round(0, 0.5)], result)
    assert {name: read(record) for name, read in READ.items()} == pytest.approx(
        {
            **{"accuracy": 50, "local-accuracy": 75, "sparsity": 25, "epsilon": 3},
            **{"client-mean": 51, "lowest-client": 21, "highest-client": 91},  # of a hundred
            **{"bits": 2, "downlink": 4, "entropy": 0.5, "model-bits": 32},  # of 100 parameters
            **{"megabytes": 200 / 8 / 2**20, "gigabytes": 128 / 8 / 2**30},
        }
    )
    bare = sample_record(Scenario(), [sample_round(0, 0.5)], {"per_client": None})
    for name in ("client-mean", "local-accuracy", "sparsity", "entropy", "epsilon"):
        assert READ[name](bare) is None


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = outcome({0: 11.5, 1: 12.25}, tiny())
    path = written.write(tmp_path)
    assert path == tmp_path / "tiny-table.mini.json"
    assert parsed(path.read_text(), path.name) == written


def test_a_scale_replaces_parts_of_plug_ins_and_fields() -> None:
    scale = Scale(scenario={"rounds": 3}, replace={"voters=all": "voters=25"})
    fields = {"attack": "rank-reversal:voters=all", "rounds": 9, "malicious": 0.1}
    changed = scale.changed(fields)
    assert changed == {"attack": "rank-reversal:voters=25", "rounds": 3, "malicious": 0.1}


def test_an_outcome_that_is_none_names_its_file() -> None:
    with pytest.raises(ConfigError, match=r"x\.json must hold an outcome, scale: Field required"):
        parsed('{"exhibit": "fsl-table2"}', "x.json")


def test_a_cell_whose_runs_measured_nothing_of_the_kind_has_no_number() -> None:
    cells = [
        {"at": {"system": name}, "says": 1.0, "play": {"protocol": name}}
        for name in ("fedavg", "fedpm")
    ]
    found = played(tiny(measure="entropy", cell=cells))
    assert [cell.at for cell in found.cell] == [{"system": "fedpm"}]  # floats have no entropy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"setting": {"round": 1}}, "'round' is no field of a scenario"),
        ({"cell": [{"at": {"a": 1}, "says": 1}]}, "must have play, formula or needs"),
        ({"cell": [{"at": {"a": 1}, "says": 1, "formula": "f"}] * 2}, "every cell once"),
    ],
)
def test_data_that_say_too_little_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        tiny(**changes)


def test_a_claim_is_told_by_its_labels() -> None:
    claim = PaperNumber(at={"data": "MNIST", "malicious": 20}, says=1.0, play={})
    assert claim.within({"malicious": [10, 20]})
    assert not claim.within({"malicious": [10]})
    assert not claim.within({"attack": ["none"]})


def test_without_a_scale_it_is_the_smallest_that_takes_no_weeks(command: Command) -> None:
    code, out, _ = command("reproduce", "fsl-table2", "--dry-run")
    assert (code, "at paper-data" in out) == (0, True)
    code, out, _ = command("reproduce", "fedpm-figure3-bits", "--dry-run")
    assert (code, "at mini" in out) == (0, True)
    code, out, err = command("reproduce", "fsl-figure5", "--dry-run")
    assert (code, out) == (2, "")
    assert "--scale of fsl-figure5 must be full, got none" in err
