"""A sweep as people write it: which runs a file means, and what is wrong with it."""

from pathlib import Path
from typing import Any

import pytest

from fedbench.core.errors import ConfigError
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.scenario import Scenario
from fedbench.sweep.plan import Plan, runs


def plan(text: str, tmp_path: Path) -> Plan:
    path = tmp_path / "s.toml"
    path.write_text(text)
    return Plan.read(path)


def names(text: str, tmp_path: Path) -> list[str]:
    return [str(cell) for cell in plan(text, tmp_path).cells()[0]]


def test_any_list_is_an_axis_and_the_plug_ins_vary_fastest(tmp_path: Path) -> None:
    text = """
        [scenario]
        rounds = [2, 4]
        [[grid]]
        malicious = [0.1, 0.2]
        protocol = ["fedavg", "signsgd"]
        attack = "sign-flip"
    """
    cells = names(text, tmp_path)
    assert len(cells) == 2 * 2 * 2 * 2  # with the clean runs, which nobody wrote down
    assert cells[:3] == [
        "fedavg + mean; rounds 2; malicious 0.1 / none",
        "fedavg + mean; rounds 2; malicious 0.1 / sign-flip",
        "signsgd + vote; rounds 2; malicious 0.1 / none",
    ]


def test_parameters_of_any_plug_in_can_be_axes_for_it_alone(tmp_path: Path) -> None:
    text = """
        [[grid]]
        attack = ["sign-flip", {name = "dyn-opt", direction = ["std", "sign"], bound = 9}]
    """
    assert names(text, tmp_path) == [
        "fedavg + mean / none",
        "fedavg + mean / sign-flip",
        "fedavg + mean / dyn-opt:direction=std,bound=9",
        "fedavg + mean / dyn-opt:direction=sign,bound=9",
    ]
    text = """
        [scenario]
        partition = {name = "dirichlet", beta = [0.1, 1.0]}
        [[grid]]
        protocol = {name = "qsgd", error_feedback = [true, false]}
    """
    cells = plan(text, tmp_path).cells()[0]
    assert {(cell.scenario.partition, cell.protocol) for cell in cells} == {
        (f"dirichlet:beta={beta}", f"qsgd:error_feedback={fed_back}")
        for beta in ("0.1", "1.0")
        for fed_back in ("true", "false")
    }


def test_eight_attacks_by_nobody_are_no_cells(tmp_path: Path) -> None:
    text = """
        [scenario]
        malicious = [0.0, 0.2]
        [[grid]]
        attack = ["sign-flip", "dyn-opt"]
    """
    cells, skipped = plan(text, tmp_path).cells()
    attacked = [(0.2, "none"), (0.2, "sign-flip"), (0.2, "dyn-opt")]
    assert [(cell.scenario.malicious, cell.attack) for cell in cells] == [(0.0, "none"), *attacked]
    assert {skip.attack for skip in skipped} == {"sign-flip", "dyn-opt"}
    assert {skip.reason for skip in skipped} == {"nobody is malicious"}


def test_what_a_rule_does_not_read_is_not_swept_over_it(tmp_path: Path) -> None:
    text = """
        [scenario]
        declared = [0.1, 0.2]
        [[grid]]
        defense = ["median", "trimmed-mean", "trimmed-mean:f=3"]
    """
    cells, skipped = plan(text, tmp_path).cells()
    assert [(cell.defense, cell.scenario.declared) for cell in cells] == [
        ("median", 0.1),
        ("trimmed-mean", 0.1),
        ("trimmed-mean:f=3", 0.1),
        ("trimmed-mean", 0.2),
    ]
    assert {skip.reason for skip in skipped} == {
        "to median another declared changes nothing",
        "to trimmed-mean another declared changes nothing",
    }


def test_a_delta_is_an_axis_only_where_something_is_priced(tmp_path: Path) -> None:
    text = """
        [scenario]
        delta = [1e-5, 1e-6]
        [[grid]]
        protocol = ["fedpm", "skellam"]
        mechanism = ["none", "mask-sampling"]
    """
    cells, _ = plan(text, tmp_path).cells()
    found = sorted((c.protocol, c.scenario.mechanism, c.scenario.delta) for c in cells)
    assert found == [
        ("fedpm", "mask-sampling", 1e-6),
        ("fedpm", "mask-sampling", 1e-5),
        ("fedpm", "none", 1e-5),
        ("skellam", "none", 1e-6),  # it has noise of its own
        ("skellam", "none", 1e-5),
    ]


def test_several_grids_share_a_scenario_and_their_common_cells_are_one(tmp_path: Path) -> None:
    text = """
        seeds = [3]
        [scenario]
        rounds = 7
        [[grid]]
        defense = ["own", "mean"]
        [[grid]]
        rounds = 9
        [[grid]]
        protocol = "fedavg:momentum=0.9"
    """
    cells, _ = plan(text, tmp_path).cells()
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
    ("[scenario]\nround = 3", "grid 1: 'round' is no axis; did you mean 'rounds'?"),
    ("[scenario]\nseed = 3", "grid 1: seed is no axis; write seeds = [0, 1, 2] above"),
    ("sedes = [1]", "s.toml: 'sedes' is no part of a sweep; did you mean 'seeds'?"),
    ("seeds = [0, 0]", "seeds must be distinct integers in 0 .. 2**63 - 1, got [0, 0]"),
    ("seeds = [true]", "seeds must be distinct integers in 0 .. 2**63 - 1, got [True]"),
    ("seeds = []", "seeds must be distinct integers in 0 .. 2**63 - 1, got []"),
    ("[[grid]]\nattack = []", "grid 1: attack must have a value, got []"),
    ("[[grid]]\nattack = [['none']]", "attack must be a name or a table or a list of them, got"),
    ("[[grid]]\nattack = 3", "attack must be a name or a table or a list of them, got 3"),
    ("[[grid]]\nattack = {gamma = 3}", "for a plug-in a table with its name and parameters"),
    ("[[grid]]\nrounds = {name = 'x'}", "rounds must be a value, or for a plug-in a table"),
    ("[[grid]]\nattack = {name = 'dyn-opt', gama = [1]}", "dyn-opt has no parameter 'gama'"),
    ("[[grid]]\nattack = 'dynopt'", "--attack 'dynopt' is not installed; did you mean 'dyn-opt'"),
    ("[[grid]]\nrounds = 'many'", "--rounds: input should be a valid integer"),
    ("grid = 3", "must have one [scenario] and [[grid]] tables"),
    ("scenario = 3", "must have one [scenario] and [[grid]] tables"),
    ("[[grid]", "s.toml must be TOML: "),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_with_a_file_is_said(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        plan(text, tmp_path).cells()
    assert message in str(error.value)


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.toml cannot be read: No such file"):
        Plan.read(tmp_path / "x.toml")
    (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"b\.toml must be TOML"):
        Plan.read(tmp_path / "b.toml")


def test_nothing_to_run_is_an_error_with_its_reason() -> None:
    table: dict[str, Any] = {"grid": [{"protocol": "fedavg", "defense": "mean", "sees": "sum"}]}
    table["grid"][0]["mechanism"] = "randomized-response"
    with pytest.raises(ConfigError, match="no combination can run: mechanism randomized-response"):
        Plan.of(table, "x").cells()
