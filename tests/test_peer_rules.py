"""Rules and attacks of other projects as plug-ins."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import fedbench
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.payload import FloatVectors
from fedbench.peers import packages
from fedbench.testing import check_defense
from fedbench.testing.defenses import answer

ROWS = torch.tensor([[0.0], [0.1], [5.0], [6.0], [7.0]])
SCENARIO: dict[str, Any] = {"rounds": 1, "clients": 10, "per_round": 7, "epochs": 1}


def of_rows(text: str, x: torch.Tensor = ROWS) -> float:
    return answer(registry.load("defense", text), FloatVectors(x))[0].item()


def test_a_class_name_that_stands_first_is_the_name_and_no_other_word_is() -> None:
    assert registry.split("flwr:Krum,f=2") == ("flwr", {"name": "Krum", "f": "2"})
    assert registry.split("nnm:f=1+byzfl:SMEA")[1] == {"nnm.f": "1", "name": "SMEA"}
    for text in ("krum:2", "krum:f=1,Krum", "flwr:krum"):
        with pytest.raises(ConfigError, match="must read name:param=value"):
            registry.split(text)


def test_no_list_and_no_ensemble_has_parts_of_other_projects() -> None:
    assert not {"flwr", "byzfl", "byzpy"} & set(registry.names("defense"))
    assert "byzfl" not in registry.names("attack")
    assert registry.owner("defense", "flwr:Krum").startswith("defense flwr (package fedbench-")


@pytest.mark.slow
def test_to_know_the_names_imports_nothing_of_other_projects() -> None:
    code = (
        "import sys; from fedbench.peers import byzfl, byzpy, flower\n"
        "sys.exit(any(n.partition('.')[0] in ('flwr', 'byzfl', 'byzpy') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_absent_package_is_one_line_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    rules = {package: registry.plugin("defense", package) for package in packages.INSTALLED_BY}
    monkeypatch.setattr(sys, "path", [])  # nothing is installed
    for package, rule in rules.items():
        with pytest.raises(ConfigError, match=f"{package} must be installed, got none; run pip"):
            rule()


def test_the_extra_and_the_command_that_installs_flower_name_the_same_versions() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["flower"] == [packages.FLWR]
    assert packages.FLWR in packages.INSTALLED_BY["flwr"]


@pytest.mark.peers
def test_rules_of_other_projects_get_the_rows_and_their_parameters() -> None:
    # Sorted 0, 0.1, 5, 6, 7: without one on each side the mean of 0.1, 5, 6 is 3.7.
    for text in ("flwr:FedTrimmedAvg,f=1", "byzfl:TrMean,f=1", "byzpy:CoordinateWiseTrimmedMean"):
        text = text if "f=1" in text else f"{text},f=1"
        assert of_rows(text) == pytest.approx(3.7)
    assert of_rows("flwr:FedMedian") == 5.0
    assert of_rows("flwr:Krum,f=1") == 6.0  # two neighbours, see the golden test of our own
    # The second of three closest to 6 and 5 and 7: 6, 5 and 7 have 2, 5, 5.
    assert of_rows("flwr:MultiKrum,f=1,m=2") == pytest.approx(5.5)


@pytest.mark.peers
def test_a_share_that_one_row_is_cuts_one_row() -> None:
    # int(beta * 49) with beta = 1/49 would be 0: 1/49 * 49 rounds to less than 1.
    x = torch.zeros(49, 1)
    x[0] = 490.0
    assert of_rows("flwr:FedTrimmedAvg,f=1", x) == 0.0
    assert of_rows("flwr:FedTrimmedAvg,beta=0.0", x) == pytest.approx(10.0)


@pytest.mark.peers
def test_the_text_of_a_record_gives_the_same_rule_and_says_the_version() -> None:
    for text, package in (("flwr:Krum,f=2", "flwr"), ("byzfl:SMEA,f=1", "byzfl")):
        rule = registry.load("defense", text)
        written = registry.describe(package, rule)
        assert f"version={version(package)}" in written
        assert registry.load("defense", written) == rule
    attack = registry.load("attack", "byzfl:Optimal_ALittleIsEnough,agg=TrMean")
    assert registry.load("attack", registry.describe("byzfl", attack)) == attack


@pytest.mark.peers
@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("defense", "flwr:Krm", "--defense flwr has no 'Krm'; did you mean 'Krum'?"),
        ("defense", "flwr:FedMedian,f=2", "flwr:FedMedian has no parameter 'f'; parameters: none"),
        ("defense", "byzfl:Krum,tau=1", "byzfl:Krum has no parameter 'tau'; parameters: f"),
        ("defense", "byzpy:Krum,version=9", "byzpy:version must be the installed one"),
        ("attack", "byzfl:Mimic,tau=1", "byzfl:Mimic has no parameter 'tau'; parameters: epsilon"),
        ("attack", "byzfl:Gaussian", "--attack byzfl has no 'Gaussian'"),
    ],
)
def test_a_mistake_is_one_line(kind: str, text: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        registry.load(kind, text)
    assert line in str(error.value)


@pytest.mark.peers
def test_nothing_that_a_foreign_rule_could_say_of_itself_is_believed() -> None:
    for text in ("flwr:Krum,f=2", "byzfl:TrMean,f=2", "byzpy:Krum,f=2"):
        rule = registry.load("defense", text)
        assert rule.tolerates(9) == 0
        assert not rule.traits().shift
        assert not rule.traits().sharp
        assert rule.select(torch.zeros(9, 9)) is None
        assert rule.order_weights(9) is None


@pytest.mark.peers
@pytest.mark.parametrize(
    "text",
    [
        *("flwr:FedMedian", "flwr:FedTrimmedAvg,f=2", "byzfl:TrMean,f=2"),
        *("byzpy:MultiKrum,f=2", "byzpy:CoordinateWiseMedian"),
    ],
)
def test_foreign_rules_without_known_defects_keep_the_promises_of_a_rule(text: str) -> None:
    check_defense(registry.load("defense", text))


@pytest.mark.peers
def test_a_rule_that_draws_has_its_numbers_from_the_key_and_leaves_the_generator_alone() -> None:
    x = torch.linspace(-1, 1, 7 * 40).reshape(7, 40).sin()
    before = torch.get_rng_state()
    answers = [answer(registry.load("defense", "byzfl:CAF,f=2"), FloatVectors(x)) for _ in range(2)]
    assert torch.equal(*answers)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.peers
@pytest.mark.parametrize("protocol", ["fedavg", "fsl", "eden"])
def test_a_run_with_rule_and_attack_of_others_says_both(protocol: str) -> None:
    texts: dict[str, Any] = {"defense": "byzfl:TrMean", "attack": "byzfl:ALittleIsEnough,tau=1.5"}
    scenario = fedbench.Scenario(protocol=protocol, **texts, **SCENARIO)
    record = fedbench.play(scenario, executor="loop")
    here = version("byzfl")
    # 0.2 of 7 is 2, rounded up; what was left at its default is not written
    assert record.scenario.defense == f"byzfl:name=trmean,version={here},f=2"
    assert record.scenario.attack.endswith(f"tau=1.5,via=codec,version={here}")
    again = fedbench.play(record.scenario, executor="loop")
    assert again.id == record.id


@pytest.mark.peers
def test_an_attack_of_byzfl_sends_what_byzfl_computes() -> None:
    # Both send -2 times the benign mean from every malicious client.
    theirs, ours = (
        fedbench.play(
            fedbench.Scenario(attack=attack, defense="mean", malicious=0.3, **SCENARIO),
            executor="loop",
        ).result.loss
        for attack in ("byzfl:InnerProductManipulation,tau=2.0", "ipm:eps=2")
    )
    assert theirs == pytest.approx(ours, rel=1e-5)
