"""``fedbench privacy`` and the privacy options of ``fedbench attack``, as they are typed."""

import json
import re
from pathlib import Path

import pytest
from conftest import Command

from fedbench.experiment.cells import Cell
from fedbench.experiment.record import read
from fedbench.results.summary import rows
from fedbench.tables.columns import guarantees
from fedbench.tables.numbers import nats


@pytest.mark.slow
def test_every_bound_of_every_view_is_printed_and_the_least_is_marked(
    command: Command, tmp_path: Path
) -> None:
    typed = ("-m", "mask-sampling:clip=0.15", "--rounds", "200", "--out", tmp_path)
    code, out, _ = command("privacy", *typed)
    assert code == 0
    lines = out.partition("Binomial tail")[0].splitlines()
    table = {line.split()[0]: line for line in lines if line.split()}
    assert "20.69 ◀" in table["rdp"]
    assert "7.79 ◀" in table["secure-sum"]
    assert "5.38 ◀" in table["sampled-sum"]
    assert table["paper"].count("1.69e+05") == 3
    assert "δ = 1e-05" in out
    assert "replace-one; visible, 20 of 200 rounds" in " ".join(out.split())
    assert "every ε above 10: odds may change" in " ".join(out.split())  # that of messages
    assert (tmp_path / "privacy.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_json_has_the_same_numbers_and_nothing_else(command: Command) -> None:
    code, out, _ = command(
        "privacy", "-m", "mask-sampling:clip=0.15", "--rounds", "200", "--format", "json"
    )
    assert code == 0
    found = json.loads(out)
    assert found["plan"]["clients"] == 100
    sums = found["prices"]["sum"]
    assert (sums["winner"], sums["epsilon"]) == ("secure-sum", pytest.approx(7.788, abs=1e-3))


@pytest.mark.parametrize("typed", [("--target-epsilon", 8), ("--rounds", 10), ("--samples", 600)])
def test_without_a_mechanism_options_have_nothing_to_price(
    typed: tuple[object, ...], command: Command
) -> None:
    code, out, err = command("privacy", *typed)
    assert (code, out) == (2, "")
    assert "--mechanism or --protocol must say what is priced, got neither" in err
    code, out, _ = command("privacy")
    assert code == 0
    assert "Usage: fedbench privacy" in out


@pytest.mark.parametrize("mechanism", ["noisy-sign:clip=3", "dp-fedavg"])  # local, and central
def test_a_budget_is_turned_into_noise(mechanism: str, command: Command) -> None:
    typed = ("-m", mechanism, "--rounds", 10, "--target-epsilon", 2, "--format", "json")
    code, out, _ = command("privacy", *typed)
    assert code == 0
    report = json.loads(out)
    assert re.match(mechanism.partition(":")[0] + ":.*z=", report["mechanism"])
    assert next(iter(report["prices"].values()))["epsilon"] == pytest.approx(2, rel=0.01)


def test_what_epsilon_protects_and_from_whom_is_said(command: Command, tmp_path: Path) -> None:
    typed = ("--rounds", 5, "--out", tmp_path)
    code, out, _ = command("privacy", "-m", "dp-sgd:clip=1,z=1", *typed)
    words = " ".join(out.split())
    assert code == 0
    assert "protects one example of the 600 of a client (batches of 32, 1 epoch a round)" in words
    assert "who sees the message of each client, or less; zero-out" in words
    assert "weak" not in words
    code, out, _ = command("privacy", "-m", "dp-fedavg:clip=1,z=0.3", *typed)
    words = " ".join(out.split())
    assert code == 0
    assert "protects all data of a client" in words
    assert "who sees the models that the server deploys; replace-one" in words
    assert "5 rounds; for ideal noise: these neighbours are further apart" in words
    assert "weak every ε above 10: odds may change by more than e^10, 22,026 times" in words
    code, out, _ = command("privacy", "-m", "dp-sgd:clip=1,z=1", *typed, "--format", "json")
    assert (code, json.loads(out)["unit"]) == (0, "example")


@pytest.mark.parametrize("form", ["table", "json"])
def test_an_epsilon_that_nobody_proved_is_refused_before_anything_is_printed(
    form: str, command: Command, tmp_path: Path
) -> None:
    typed = ("-m", "dp-fedavg:clip=1,z=1", "--rounds", 5, "--sees", "messages", "--format", form)
    code, out, err = command("privacy", *typed, "--out", tmp_path)
    assert (code, out) == (2, "")
    assert "--sees messages: the server's noise comes after what is seen there" in err


@pytest.mark.parametrize("form", ["table", "json"])
def test_what_has_no_price_before_anybody_is_refused_before_anything_is_printed(
    form: str, command: Command, tmp_path: Path
) -> None:
    typed = ("-m", "dp-sgd", "--adjacency", "add-remove", "--format", form, "--out", tmp_path)
    code, out, err = command("privacy", *typed)
    assert (code, out) == (2, "")
    assert "--adjacency add-remove of gradients of samples drawn by coins" in err


@pytest.mark.parametrize("protocol", ["skellam", "pbm"])
def test_a_protocol_with_noise_of_its_own_protects_clients(protocol: str, command: Command) -> None:
    typed = ("-p", protocol, "--rounds", 1, "--dim", 4, "--format", "json")
    code, out, _ = command("privacy", *typed)
    assert (code, json.loads(out)["unit"]) == (0, "client")


def test_stratified_cohorts_are_priced_without_amplification(command: Command) -> None:
    typed = ("-m", "dp-fedavg:z=8", "--clients", 50, "--rounds", 200, "--format", "json")

    def bounds(*more: str) -> dict[str, float]:
        code, out, _ = command("privacy", *typed, *more)
        assert code == 0
        found: dict[str, float] = json.loads(out)["prices"]["model"]["bounds"]
        return found

    random = bounds()
    assert bounds("--cohorts", "stratified") == {"gaussian": random["gaussian"]}
    assert random["rdp"] < random["gaussian"]
    code, _, err = command("privacy", *typed, "--cohorts", "stratified", "--sampling", "poisson")
    assert (code, "--cohorts must be random with poisson" in err) == (2, True)
    code, _, err = command("privacy", *typed, "--malicious", 10)
    assert (code, "got 10.0; 10 of 50 clients are 0.2, 10 % are 0.1\n" in err) == (2, True)


@pytest.mark.slow
def test_attack_shows_epsilon_what_it_covers_the_papers_own_and_what_does_not_fit(
    command: Command, tmp_path: Path
) -> None:
    code, out, _ = command(
        *("attack", "-p", "fedavg", "-p", "fedpm", "-m", "none", "-m", "mask-sampling:clip=1"),
        *("-a", "none", "--clients", 10, "--per-round", 4, "--rounds", 2, "--epochs", 1),
        *("--seeds", 0, "--delta", "1e-3", "--workers", 1, "--out", tmp_path),
    )
    assert code == 0
    records = sorted((read(path) for path in tmp_path.glob("*.json")), key=lambda r: r.mechanism)
    private, *plain = records
    assert [record.privacy for record in plain] == [None, None]
    said = private.privacy
    assert said is not None
    assert said.delta == 1e-3
    results = {Cell(one.scenario): [one] for one in records}
    table = rows(list(results), results)
    assert [row["epsilon"] for row in table] == [said.epsilon, None, None]
    (claim,) = guarantees(table)
    assert claim.startswith(f"{table[0].cell.system}: ε = {nats(said.epsilon or 0)} at δ = 0.001, ")
    covers = "per client, replace-one; before who sees the messages; visible, 2 of 2 rounds"
    assert covers in claim
    flat = " ".join(out.split())
    assert "skipped: fedavg + own / none: mechanism mask-sampling needs a protocol" in flat
    assert "ε at δ = 0.001, before who sees what each protects; fixed sampling" in flat
    assert covers in flat
    assert "paper's" in flat
    assert nats(said.paper or 0) in flat
    text = (tmp_path / "attack.md").read_text()
    assert "Privacy:" in text
    assert "per client, replace-one" in text
