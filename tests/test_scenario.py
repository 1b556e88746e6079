"""A scenario is its text; a record survives its JSON; what is wrong is said in one line."""

import hashlib
import json
import runpy
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import fedbench
from fedbench.core import registry
from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.core.presets import preset_names
from fedbench.experiment import record as record_module
from fedbench.experiment.cells import Cell
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Record, parse, read
from fedbench.experiment.scenario import Scenario, code_version
from fedbench.results.summary import rows
from fedbench.sweeps.grid import Grid
from fedbench.sweeps.plan import Plan


def test_json_comes_back_and_precision_is_said_where_it_is_not_float32() -> None:
    scenario = Scenario(protocol="fsl:k=0.3", declared=0.1, data_seed=7)
    assert Scenario.model_validate_json(scenario.model_dump_json()) == scenario
    assert "precision" not in scenario.model_dump()
    assert Scenario(precision="bf16").model_dump()["precision"] == "bf16"


def test_parameters_are_read_by_their_types_and_resolving_writes_out_every_default() -> None:
    assert registry.load("defense", "trimmed-mean:f=none").f is None
    assert registry.load("defense", "multi-krum:f=2,m=3").m == 3
    assert registry.load("attack", "sign-flip: scale = 2").scale == 2.0
    with pytest.raises(UnknownPluginError, match="kind must be one of"):
        registry.names("colour")
    resolved = resolve(Scenario(protocol="fsl", defense="own", per_round=7)).scenario
    assert resolved.protocol == "fsl:lr=0.4,momentum=0.9,weight_decay=0.0001,k=0.5"
    assert resolved.defense == "mean"
    assert resolved.data_seed == 0
    assert resolve(resolved).scenario == resolved


def test_a_parameter_that_came_later_is_written_out_where_it_says_something() -> None:
    @dataclass(frozen=True)
    class Grown:
        f: int = 2
        m: int | None = field(default=None, metadata=registry.UNWRITTEN)

    @dataclass(frozen=True)
    class Linked:
        first: Grown
        rule: Grown

    assert registry.describe("grown", Grown()) == "grown:f=2"
    assert registry.describe("grown", Grown(m=3)) == "grown:f=2,m=3"
    assert registry.describe("grown", Grown(), every=True) == "grown:f=2,m=none"
    chain = Linked(Grown(m=0), Grown(f=1))
    assert registry.describe("grown+grown", chain) == "grown:f=2,m=0+grown:f=1"
    whole = registry.describe("grown+grown", chain, every=True)
    assert whole == "grown:f=2,m=0+grown:f=1,m=none"


def test_the_id_depends_on_what_is_run_and_not_on_how_it_is_written() -> None:
    def id(**fields: Any) -> str:
        return resolve(Scenario(**fields)).id()

    assert id() == id(protocol="fedavg:momentum=0.9", defense="mean")
    assert id(malicious=0.0, declared=0.0) == id(malicious=-0.0, declared=-0.0)
    assert len({id(), id(protocol="fedavg:momentum=0.8"), id(seed=1), id(data_seed=1)}) == 4
    assert code_version().startswith("0.1.0+")


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"malicious": 10, "clients": 40},
        r"--malicious must be in \[0, 1\), got 10.0; 10 of 40 clients are 0.25, 10 % are 0.1$",
    ),
    ({"malicious": 1.0}, "got 1.0; 1 of 50 clients are 0.02, 1 % are 0.01$"),
    ({"declared": 12.5}, r"--declared must be in \[0, 1\), got 12.5; 12.5 % are 0.125$"),
    ({"malicious": 100}, r"--malicious must be in \[0, 1\), got 100.0$"),
    ({"malicious": -0.1}, r"--malicious must be in \[0, 1\), got -0.1"),
    ({"malicious": float("nan")}, r"--malicious must be in \[0, 1\), got nan"),
    ({"malicious": 0.995}, "--malicious must be a share that leaves a benign client, got 0.995"),
    ({"batch_size": 10**20}, r"--batch-size must be <= 2\*\*30, got 1"),
    ({"per_round": 51}, "--per-round must be <= --clients = 50, got 51; give a smaller --per-"),
    ({"rounds": 0}, "--rounds must be >= 1, got 0"),
    ({"batch_size": 0}, "--batch-size must be >= 1, got 0"),
    ({"seed": -1}, r"--seed must be in 0 .. 2\*\*63 - 1, got -1"),
    ({"server_checks": "strict"}, "--server-checks must be .*'finite'.* got 'strict'"),
    ({"color": "red"}, "--color: extra inputs are not permitted"),
    ({"protocol": "fedagv"}, "--protocol 'fedagv' is not installed; did you mean 'fedavg'"),
    ({"attack": "xyzzy"}, "--attack 'xyzzy' is not installed; known: .*dyn-opt"),
    (
        {"defense": "nnm"},
        "--defense 'nnm' must be a rule, got a prefilter; write nnm\\+",
    ),
    (
        {"defense": "krum+nnm"},
        "--defense .* must have one rule, at its end, got 'krum' before",
    ),
    ({"defense": "vote"}, "--defense 'vote' is not installed; tables write vote for own$"),
    ({"protocol": "fsl:kk=1"}, "--protocol fsl has no parameter 'kk'; did you mean 'k'"),
    ({"protocol": "fsl:k=abc"}, "--protocol fsl:k must be a number, got 'abc'"),
    ({"protocol": "fsl:k=1.5"}, r"FSL.k must be in \(0, 1\], got 1.5"),
    ({"protocol": "fsl:k"}, "--protocol 'fsl:k' must read name:param=value"),
    ({"defense": "trimmed-mean:f=5"}, "--defense trimmed-mean with f = 5 needs at least 11 cl"),
    ({"defense": "multi-krum:f=4"}, "with f = 4 needs at least 11 clients a round, got --per"),
    ({"defense": "krum", "per_round": 3}, "f = 1, from --malicious 0.2, needs at least 5 clients"),
    ({"defense": "krum", "per_round": 3}, "; sample more clients or lower --declared"),
    ({"defense": "krum:f=0", "per_round": 2}, "; sample more clients$"),  # f is as low as it goes
    ({"defense": "flame", "per_round": 1}, "; sample more clients$"),  # it has no f
    ({"defense": "krum", "per_round": 3, "declared": 0.3}, "with f = 1, from --declared 0.3, need"),
    ({"defense": "multi-krum:m=11"}, "needs at least 11 clients"),
    ({"attack": "rank-reversal"}, "rank-reversal works on Rankings, TopRankings, but fedavg se"),
    ({"attack": "dyn-opt:direction=up"}, "--attack dyn-opt:direction must be 'std"),
    ({"protocol": "fedavg:lr=0"}, "FedAvg.lr must be > 0, got 0.0"),
    ({"precision": "fp16"}, r"--precision must be 'fp32', 'tf32' or 'bf16'"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG, ids=[str(f) for f, _ in WRONG])
def test_what_is_wrong_is_named_with_its_rule(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(Scenario.of(**fields))


@pytest.mark.parametrize(("value", "got"), [(True, "True"), ("1", "the text '1'")])
def test_a_boolean_or_a_text_is_no_number(value: bool | str, got: str) -> None:
    for name, info in Scenario.model_fields.items():
        if {int, float} & {info.annotation, *get_args(info.annotation)}:
            wrong: dict[str, Any] = {name: value}
            with pytest.raises(ConfigError, match=rf"^Scenario.{name} must be a number, got {got}"):
                Scenario(**wrong)
    assert Scenario(local_models=True).local_models


@pytest.mark.parametrize("value", ["off", "yes", 0, 1])
def test_a_text_or_a_number_is_neither_true_nor_false(value: Any) -> None:
    with pytest.raises(ConfigError, match=f"local_models must be true or false, got {value!r}"):
        Scenario(local_models=value)
    numpys: dict[str, Any] = {"local_models": np.True_}
    assert Scenario(**numpys).local_models is True


@pytest.fixture(scope="module")
def record() -> Record:
    scenario = Scenario(clients=12, per_round=4, rounds=2, epochs=1, eval_every=2, attack="dyn-opt")
    return fedbench.play(scenario, device="cpu")


def test_a_record_comes_back_from_its_file_and_is_enough_to_play_it_again(
    record: Record, tmp_path: Path
) -> None:
    path = record.write(tmp_path)
    assert read(path) == record
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.name == f"fedavg-mean-dyn-opt-seed0-{record.id}.json"
    assert json.loads(path.read_text())["rounds"][0]["accuracy"] is None
    before, _, after = path.read_text().partition(' "digest": ')  # checked without fedbench
    assert hashlib.sha256(before.encode()).hexdigest() == record.digest
    assert [line.split('"')[1] for line in after.split("\n") if line[:2] == ' "'] == ["timing"]
    blocked = tmp_path / "file"
    blocked.write_text("x")
    with pytest.raises(ConfigError, match="--out must be a folder that can be written"):
        record.write(blocked)


def test_a_record_that_is_broken_changed_or_of_another_schema_is_refused(
    record: Record, tmp_path: Path
) -> None:
    for spoil in ("{", "{}", '{"schema_version": 4}', "[" * 100_000, '{"schema_version": 1e999}'):
        with pytest.raises(ConfigError, match=r"^r\.json is no record of schema 4"):
            parse(spoil.encode(), "r.json")
    with pytest.raises(ConfigError, match=r"absent\.json cannot be read: No such file"):
        read(tmp_path / "absent.json")
    path = record.write(tmp_path)
    text = path.read_text()
    accuracy = f'"accuracy": {record.result.accuracy}'
    assert accuracy in text
    path.write_text(text.replace(accuracy, '"accuracy": 0.9999'))
    with pytest.raises(ConfigError, match="got other content than its digest says"):
        read(path)
    seconds = f'"seconds": {record.timing.seconds}'
    path.write_text(text.replace(seconds, '"seconds": 1.5'))  # times may be forgotten
    assert read(path).timing.seconds == 1.5
    path.write_text(text.replace('"schema_version": 4', '"schema_version": 3'))
    refusal = r"no record of schema 4: schema_version: input should be 4; run the scenario again"
    with pytest.raises(ConfigError, match=refusal):
        read(path)
    path.write_text(text.replace('"clients": 12', '"clients": 0'))
    with pytest.raises(
        ConfigError, match=r"seed0-.*\.json is no record of schema 4: Scenario.clients"
    ):
        read(path)


def test_a_rule_of_too_many_rows_for_the_declared_share_is_left_out_of_a_grid() -> None:
    axes = {"defense": ("mean", "bulyan"), "attack": ("alie",), "per_round": (8,)}
    cells, skipped = Grid(axes | {"malicious": (0.2,)}).cells()
    assert {cell.scenario.defense for cell in cells} == {"mean"}
    (reason,) = {skip.reason for skip in skipped}
    assert "--defense bulyan with f = 2, from --malicious 0.2, needs at least 11 cl" in reason


def test_a_grid_always_has_the_clean_run_first_and_lists_what_cannot_be() -> None:
    attacks = ("rank-reversal", "sign-flip")
    axes = {"protocol": ("fedavg", "fsl"), "defense": ("own", "median"), "attack": attacks}
    cells, skipped = Grid(axes).cells()
    assert [str(cell) for cell in cells] == [
        f"{system} / {attack}"
        for system in ("fedavg + mean", "fedavg + median", "fsl + vote", "fsl + median")
        for attack in ("none", *attacks)
        if not (system.startswith("fedavg") and attack == "rank-reversal")
    ]
    assert [(s.protocol, s.attack) for s in skipped] == [("fedavg", "rank-reversal")] * 2

    for protocol, defense in (("fedagv", "own"), ("fedavg", "trimmed-mean:f=9")):
        with pytest.raises(ConfigError):  # a mistake is not skipped, also an f that was typed
            Grid({"protocol": (protocol,), "defense": (defense,)}).cells()


def test_every_preset_can_be_played_and_a_rule_under_two_names_is_one_cell() -> None:
    for name in preset_names():
        cells, skipped = Plan.preset(name, {}).cells()
        assert (bool(cells), skipped) == (True, []), name
    cells, _ = Plan.preset("demo", {}).cells()
    for scenario in (cell.scenario for cell in cells):
        assert scenario.per_round == scenario.clients == 10  # nobody is drawn
        assert (scenario.sampling, scenario.malicious) == ("fixed", 0.2)
    preset = Plan.preset("fsl-mini", {"protocol": ["fedavg"], "defense": ["own", "mean"]})
    cells, _ = preset.cells()
    assert len({str(cell) for cell in cells}) == len(cells)


def test_a_preset_takes_other_values_axes_and_learning_rates() -> None:
    preset = Plan.preset("fsl-mini", {"rounds": 3, "protocol": ["topk:lr=0.5", "fedavg"]})
    cells, _ = preset.with_lr(0.2).cells()
    assert {cell.scenario.rounds for cell in cells} == {3}
    assert {cell.protocol for cell in cells} == {"topk:lr=0.5", "fedavg:lr=0.2"}
    with pytest.raises(
        ConfigError, match=r"--preset must be one of .*, fsl-mini, .*, got 'table3'"
    ):
        Plan.preset("table3", {})


def test_a_row_compares_seeds_with_themselves_and_the_lowest_is_the_worst(record: Record) -> None:
    def made(attack: str, accuracies: dict[int, float]) -> tuple[Cell, list[Record]]:
        records = []
        for seed, accuracy in accuracies.items():
            seeded = record.scenario.model_copy(update={"seed": seed})
            result = replace(record.result, accuracy=accuracy)
            records.append(record.model_copy(update={"scenario": seeded, "result": result}))
        return Cell(Scenario(attack=attack)), records

    clean, a = made("none", {0: 0.9, 1: 0.8})
    weak, b = made("sign-flip", {0: 0.7, 1: 0.6})
    strong, c = made("dyn-opt", {1: 0.5})
    table = rows([clean, weak, strong], {clean: a, weak: b, strong: c})
    assert [row.worst for row in table] == [False, False, True]
    assert table[0].impact is None
    assert [row.impact for row in table[1:]] == pytest.approx([0.2, 0.3])  # seed 1 only: .8 - .5
    assert [row.accuracy_std for row in table[1:]] == pytest.approx([0.0707, 0.0], abs=1e-4)


@pytest.mark.parametrize("protocol", ["fsl", "sfsl", "signsgd"])
def test_a_protocol_whose_messages_carry_no_statistics_refuses_batch_norm(protocol: str) -> None:
    with pytest.raises(ConfigError, match=f"--protocol {protocol} must have a model without batch"):
        prepare(Scenario(protocol=protocol, model="cnn4"), "cpu")
    prepare(Scenario(protocol=protocol, model="lenet5"), "cpu")


def test_a_digest_is_of_the_numbers_as_they_stand_in_the_file(record: Record) -> None:
    # As a library writes it that knows 1e-05 as 0.000010, with the digest of that.
    text = record.to_json()
    assert text.count('"delta": 0.00001,') == 1
    lines, seal, after = text.replace("0.00001,", "0.000010,").partition(' "digest": "')
    data = (lines + seal + hashlib.sha256(lines.encode()).hexdigest() + after[64:]).encode()
    foreign = parse(data, "r.json")
    assert foreign.digest != record.digest
    assert foreign.measured() == record.measured() | {"digest": foreign.digest}
    assert foreign.to_json().encode() == data
    line = foreign.to_json(None)
    assert line.count("\n") == 1
    assert '"delta":0.000010,' in line
    assert parse(line.encode(), "archive").to_json().encode() == data
    spaces = b"\r\n\t" + line.replace('"rounds":', '"rounds"\n : ').encode()
    assert parse(spaces, "spaces").to_json().encode() == data
    # Once it is another record, or sealed here, it is written as records are written here.
    assert foreign.sealed().to_json() == record.to_json()
    assert foreign.model_copy(update={"flags": ["x"]}).to_json().count("0.00001,") == 1


def test_no_field_of_a_record_makes_pydantic_warn() -> None:
    # Up to 2.9 it warned of `model_bits`; `make test-lowest` runs this with 2.7.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert runpy.run_path(record_module.__file__)["Record"].model_fields["result"]


def test_numbers_written_again_are_other_content_and_only_times_stand_behind_a_digest(
    record: Record,
) -> None:
    text = record.to_json()
    with pytest.raises(ConfigError, match=r"^r\.json must hold what its run wrote"):
        parse(text.replace('"delta": 0.00001,', '"delta": 1e-05,').encode(), "r.json")
    result = json.dumps(json.loads(text)["result"] | {"accuracy": 1.0})
    for forged in (
        text.replace("\n}\n", f',\n "result": {result}\n}}\n'),
        text.replace(' "timing": {', f' "result": {result},\n "timing": {{'),
    ):
        assert json.loads(forged)["result"]["accuracy"] == 1.0
        with pytest.raises(ConfigError, match="got other content than its digest says"):
            parse(forged.encode(), "r.json")


# Of the faults of public code, D1 to D20, these two; each of the others is named by its test.
SMALL = Scenario(clients=20, per_round=6, rounds=3, epochs=1, eval_every=1, malicious=0.4)


@pytest.mark.slow
def test_d7_every_cell_of_a_preset_has_the_same_training_and_unknown_keys_are_refused() -> None:
    for name in preset_names():
        cells, _ = Plan.preset(name, {}).cells()
        taught: dict[tuple[str, str], set[str]] = {}  # of a protocol and a rule, how it is trained
        for cell in cells:
            key = registry.split(cell.protocol)[0], cell.defense
            taught.setdefault(key, set()).add(cell.resolved.protocol)
        for (protocol, rule), texts in taught.items():
            others = [t for (p, r), t in taught.items() if p == protocol and r != rule]
            assert all(texts == other for other in others), f"{name}: an lr for each defense"
    with pytest.raises(ConfigError, match=r'\'malicious"\' is no axis'):
        Plan.of({"scenario": {'malicious"': 0.2}}, "stray quote")


def test_d15_the_score_is_the_last_look_and_ids_cover_every_field() -> None:
    record = fedbench.play(SMALL.model_copy(update={"attack": "sign-flip"}), device="cpu")
    looks = [r.accuracy for r in record.rounds]
    assert record.result.accuracy == looks[-1]
    changed: dict[str, Any] = {"protocol": "fedavg:lr=0.02", "attack": "sign-flip:scale=2"}
    changed |= {"defense": "trimmed-mean:f=1", "mechanism": "dp-fedavg", "dataset": "mnist-5k"}
    changed |= {"model": "micro", "partition": "iid", "local_models": True, "sampling": "poisson"}
    changed |= {"sees": "messages", "adjacency": "zero-out", "server_checks": "none"}
    changed |= {"knowledge": "all", "data_seed": 7, "precision": "bf16", "split": "published"}
    changed |= {"augment": "crop-flip", "cohorts": "stratified"}
    changed |= {"availability": "dropout:p=0.1", "adapter": "lora"}
    ids = {resolve(SMALL).id()}
    for name in Scenario.model_fields:
        value = getattr(SMALL, name)
        halved = value / 2 if isinstance(value, float) else 0.2 if name == "declared" else None
        other = changed[name] if name in changed else halved or (value or 0) + 2
        ids.add(resolve(SMALL.model_copy(update={name: other})).id())
    assert len(ids) == 1 + len(Scenario.model_fields)
