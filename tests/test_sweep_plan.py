"""A sweep as people write it: which runs a file means, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from fedbench.core.errors import ConfigError
from fedbench.core.files import read_toml
from fedbench.experiment.cells import Cell, Run, Skipped
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.scenario import Scenario
from fedbench.sweeps.plan import Plan, runs


def read(path: Path) -> Plan:
    return Plan.of(read_toml(path), str(path))


def plan(grid: dict[str, Any], **scenario: Any) -> tuple[list[Cell], list[Skipped]]:
    """The cells of a sweep with one grid, and what was left out."""
    return Plan.of({"scenario": scenario, "grid": [grid]}, "x").cells()


def names(grid: dict[str, Any], **scenario: Any) -> list[str]:
    return [str(cell) for cell in plan(grid, **scenario)[0]]


def test_any_list_is_an_axis_and_the_plug_ins_vary_fastest() -> None:
    protocols = ["fedavg", "signsgd"]
    grid = {"malicious": [0.1, 0.2], "protocol": protocols, "attack": "sign-flip"}
    cells = names(grid, rounds=[2, 4])
    assert len(cells) == 2 * 2 * 2 * 2  # with the clean runs, which nobody wrote down
    assert cells[:3] == [
        "fedavg + mean; rounds 2; malicious 0.1 / none",
        "fedavg + mean; rounds 2; malicious 0.1 / sign-flip",
        "signsgd + vote; rounds 2; malicious 0.1 / none",
    ]


def test_a_sweep_has_the_title_of_its_file_or_that_it_says() -> None:
    assert Plan.of({"scenario": {}}, "s.toml").title == "s.toml"
    assert Plan.of({"title": "Bits", "scenario": {}}, "s.toml").title == "Bits"


def test_parameters_of_any_plug_in_can_be_axes_for_it_alone() -> None:
    searched = {"name": "dyn-opt", "direction": ["std", "sign"], "bound": 9}
    assert names({"attack": ["sign-flip", searched]}) == [
        "fedavg + mean / none",
        "fedavg + mean / sign-flip",
        "fedavg + mean / dyn-opt:direction=std,bound=9",
        "fedavg + mean / dyn-opt:direction=sign,bound=9",
    ]
    protocol = {"name": "qsgd", "error_feedback": [True, False]}
    cells, _ = plan({"protocol": protocol}, partition={"name": "dirichlet", "beta": [0.1, 1.0]})
    assert {(cell.scenario.partition, cell.protocol) for cell in cells} == {
        (f"dirichlet:beta={beta}", f"qsgd:error_feedback={fed_back}")
        for beta in ("0.1", "1.0")
        for fed_back in ("true", "false")
    }


def test_attacks_by_nobody_and_axes_that_a_rule_does_not_read_are_no_cells() -> None:
    cells, skipped = plan({"attack": ["sign-flip", "dyn-opt"]}, malicious=[0.0, 0.2])
    attacked = [(0.2, "none"), (0.2, "sign-flip"), (0.2, "dyn-opt")]
    assert [(cell.scenario.malicious, cell.attack) for cell in cells] == [(0.0, "none"), *attacked]
    assert {(skip.attack, skip.reason) for skip in skipped} == {
        (attack, "nobody is malicious") for attack in ("sign-flip", "dyn-opt")
    }
    rules = ["median", "trimmed-mean", "trimmed-mean:f=3"]
    cells, skipped = plan({"defense": rules}, declared=[0.1, 0.2])
    expected = [*((rule, 0.1) for rule in rules), ("trimmed-mean", 0.2)]
    assert [(cell.defense, cell.scenario.declared) for cell in cells] == expected
    assert {skip.reason for skip in skipped} == {
        f"to {rule} another declared changes nothing" for rule in rules[:2]
    }


def test_a_rule_behind_a_prefilter_that_it_cannot_have_is_left_out() -> None:
    cells, skipped = plan({"defense": ["nnm+foolsgold", "foolsgold"], "attack": "sign-flip"})
    assert {cell.defense for cell in cells} == {"foolsgold"}
    assert {skip.defense for skip in skipped} == {"nnm+foolsgold"}
    assert all("rows of one client each" in skip.reason for skip in skipped)


def test_a_delta_is_an_axis_only_where_something_is_priced() -> None:
    grid = {"protocol": ["fedpm", "skellam"], "mechanism": ["none", "mask-sampling"]}
    cells, _ = plan(grid, delta=[1e-5, 1e-6])
    found = sorted((c.protocol, c.scenario.mechanism, c.scenario.delta) for c in cells)
    assert found == [
        ("fedpm", "mask-sampling", 1e-6),
        ("fedpm", "mask-sampling", 1e-5),
        ("fedpm", "none", 1e-5),
        ("skellam", "none", 1e-6),  # it has noise of its own
        ("skellam", "none", 1e-5),
    ]


def test_several_grids_share_a_scenario_and_their_common_cells_are_one() -> None:
    grids = [{"defense": ["own", "mean"]}, {"rounds": 9}, {"protocol": "fedavg:momentum=0.9"}]
    cells, _ = Plan.of({"seeds": [3], "scenario": {"rounds": 7}, "grid": grids}, "x").cells()
    assert [str(cell) for cell in cells] == [
        "fedavg + mean; rounds 7 / none",
        "fedavg + mean; rounds 9 / none",
    ]
    played = [(run.scenario.rounds, run.seed) for run in runs(cells, (4, 2))]
    assert played == [(7, 4), (7, 2), (9, 4), (9, 2)]  # seeds are paired over the cells


@pytest.mark.parametrize("data_seed", [None, 5])
def test_a_run_has_the_id_and_the_file_of_its_scenario(data_seed: int | None) -> None:
    scenario = Scenario(protocol="fsl", attack="rank-reversal", data_seed=data_seed)
    run = Run(Cell(scenario), 8)
    played = scenario.model_copy(update={"seed": 8})
    assert run.resolved == resolve(played).scenario
    assert run.id == resolve(played).id()
    assert run.file_name == f"fsl-mean-rank-reversal-seed8-{resolve(played).id()}.json"


WRONG: list[tuple[str, str]] = [
    ("[[grid]]\nprotocl = 'fedavg'", "grid 1: 'protocl' is no axis; did you mean 'protocol'?"),
    ("[scenario]\nround = 3", "s.toml: [scenario]: 'round' is no axis; did you mean 'rounds'?"),
    ("[scenario]\nper-round = 3", "[scenario]: 'per-round' is no axis; did you mean 'per_round'?"),
    (
        "[scenario]\nseed = 3",
        "[scenario]: seed is no axis; write seeds = [0, 1, 2] above [scenario",
    ),
    ("[[grid]]\nseeds = [3]", "grid 1: seeds is no axis; write seeds = [0, 1, 2] above [scenario]"),
    ("", "s.toml: must have a table [scenario] or [[grid]], got an empty file"),
    ("[grid]\nrounds = 3", "must have one [scenario] and [[grid]] tables, got a table [grid]"),
    ("sedes = [1]", "s.toml: 'sedes' is no part of a sweep; did you mean 'seeds'?"),
    ("seeds = [0, 0]", "seeds must be distinct integers in 0 .. 2**63 - 1, got [0, 0]"),
    ("seeds = [true]", "seeds must be distinct integers in 0 .. 2**63 - 1, got [True]"),
    ("seeds = []", "seeds must be distinct integers in 0 .. 2**63 - 1, got []"),
    ("[[grid]]\nattack = []", "grid 1: attack must have a value, got []"),
    ("[scenario]\nrounds = [1, true]", "rounds must have values of one kind, got [1, True]"),
    ("[[grid]]\nattack = [['none']]", "attack must be a name or a table or a list of them, got"),
    ("[scenario]\nrounds = [[1]]", "rounds must be a value or a list of them, got [1]"),
    ("[[grid]]\nattack = 3", "attack must be a name or a table or a list of them, got 3"),
    ("[[grid]]\nattack = {gamma = 3}", "for a plug-in a table with its name and parameters"),
    ("[[grid]]\nrounds = {name = 'x'}", "rounds must be a value, or for a plug-in a table"),
    (
        "[[grid]]\nattack = {name = 'dyn-opt', gama = [1]}",
        "grid 1: --attack dyn-opt has no parameter 'gama'",
    ),
    ("[[grid]]\nattack = 'dynopt'", "--attack 'dynopt' is not installed; did you mean 'dyn-opt'"),
    ("[scenario]\nrounds = true", "--rounds must be a number, got True"),
    ("[[grid]]\nrounds = 'many'", "--rounds must be a number, got the text 'many'"),
    ("[[grid]]\nrounds = [2, '2']", "--rounds must be a number, got the text '2'"),
    ("[scenario]\nmalicious = '0.2'", "--malicious must be a number, got the text '0.2'"),
    ("grid = 3", "must have one [scenario] and [[grid]] tables, got grid = 3"),
    ("grid = [{rounds = 3}, 3]", "tables, got grid = [{'rounds': 3}, 3]"),
    ("grid = []", "must have one [scenario] and [[grid]] tables, got grid = []"),
    ("scenario = 3", "must have one [scenario] and [[grid]] tables, got scenario = 3"),
    ("[[grid]", "s.toml must be TOML: "),
    (
        f"[scenario]\nrounds = {[*range(1, 318)]}\nclients = {[*range(10, 326)]}",  # 317 x 316
        "a grid must mean at most 100000 combinations, got 100172",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_with_a_file_is_said(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read(path).cells()
    assert message in str(error.value)


def test_a_single_seed_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text("seeds = 3\n[scenario]\nrounds = 2\n")
    assert read(path).seeds == (3,)


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.toml cannot be read: No such file"):
        read(tmp_path / "x.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"b\.toml must be TOML"):
        read(tmp_path / "b.toml")


def test_nothing_to_run_is_an_error_with_its_reason() -> None:
    with pytest.raises(ConfigError, match="no combination can run: mechanism randomized-response"):
        plan({"sees": "sum", "mechanism": "randomized-response"}, defense="mean")
