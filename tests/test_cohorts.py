"""Cohorts: how many malicious clients a round has, drawn, computed and said."""

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command

import fedbench
from fedbench.adversary.threat_model import MaliciousClients
from fedbench.cli.cohorts import malicious_rows
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Secret
from fedbench.experiment.cells import Cell
from fedbench.experiment.cohorts import (
    covering,
    declared,
    divergence,
    draw,
    exact_cohort,
    exceeds,
    in_a_run,
    share,
    sufficient_cohort,
)
from fedbench.experiment.cohorts import (
    rounds as rounds_of,
)
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario

# 7 of 20 are malicious and a round has 6: 2.1 of them on average.
STRATIFIED = Scenario(
    clients=20, per_round=6, malicious=0.35, cohorts="stratified", rounds=3, epochs=1, eval_every=3
)
ROUNDS = 4000


def drawn(scenario: Scenario, rounds: int = ROUNDS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which of the clients are malicious, and ``(rounds, n)`` clients of rounds."""
    malicious = torch.zeros(scenario.clients, dtype=torch.bool)
    malicious[: scenario.owned] = True
    secret = Secret.of(1, "run")
    owned = MaliciousClients.of(malicious)
    ids = [draw(scenario, owned, secret, step) for step in range(rounds)]
    return malicious, torch.tensor(ids)


@pytest.mark.slow
def test_a_stratified_round_has_the_share_of_malicious_clients_rounded_down_or_up() -> None:
    malicious, ids = drawn(STRATIFIED)
    assert share(STRATIFIED) == (2, 2)  # 2 and 2/20
    counts = malicious[ids].sum(1)
    assert set(counts.tolist()) == {2, 3}
    # a tenth of the rounds has 3: a standard error of .0047, of which five
    assert float(counts.double().mean()) == pytest.approx(2.1, abs=0.024)
    assert all(len(set(row)) == 6 for row in ids.tolist())
    # a share that is whole needs no coin
    even = STRATIFIED.model_copy(update={"malicious": 0.5})
    malicious, ids = drawn(even, 200)
    assert set(malicious[ids].sum(1).tolist()) == {3}


def test_a_declared_share_that_is_whole_is_not_rounded_up() -> None:
    hundred: dict[str, Any] = {"clients": 200, "per_round": 100}
    assert 0.07 * 100 > 7  # as floats are
    assert declared(Scenario(**hundred, malicious=0.07)) == 7
    assert declared(Scenario(**hundred, malicious=0.071)) == 8


def test_an_exact_cohort_is_one_of_random_rounds_whatever_those_of_the_run_are() -> None:
    fields: dict[str, Any] = {"clients": 200, "malicious": 0.1, "rounds": 30}
    expected = exact_cohort(Scenario(**fields))
    assert exact_cohort(Scenario(**fields, cohorts="stratified")) == expected
    assert exact_cohort(Scenario(**fields, sampling="poisson")) == expected


def test_who_sends_and_who_drops_out_are_all_that_were_asked() -> None:
    scenario = STRATIFIED.model_copy(update={"availability": "dropout:p=0.3", "rounds": 40})
    counts = [(len(ids), dropped) for ids, _, dropped in rounds_of(scenario)]
    assert {sent + dropped for sent, dropped in counts} == {6}
    assert 1.2 < sum(dropped for _, dropped in counts) / 40 < 2.4  # 1.8, deviation 0.18


def test_the_rounds_of_a_run_follow_from_its_scenario_alone() -> None:
    changes = {"availability": "dropout:p=0.5", "seed": 3, "rounds": 8, "model": "micro"}
    setup = prepare(STRATIFIED.model_copy(update=changes), "cpu")
    malicious = setup.population.malicious
    for step, (ids, hostile, dropped) in enumerate(rounds_of(setup.scenario)):
        asked = setup.sample(step)
        coins = setup.secret.key("availability", step).uniform(6)
        assert ids == [i for i, coin in zip(asked, coins.tolist(), strict=True) if coin >= 0.5]
        assert ids == setup.taking_part(step)
        assert hostile == sum(bool(malicious[i]) for i in ids)
        assert dropped == 6 - len(ids)


def test_a_stratified_round_has_a_key_for_its_clients_one_for_its_coin_and_one_for_its_rows() -> (
    None
):
    malicious, ids = drawn(STRATIFIED, 100)
    secret = Secret.of(1, "run")
    coins = Counter[int]()
    for step, row in enumerate(ids.tolist()):
        order = secret.key("sample", step).permutation(20).tolist()
        coin = int(secret.key("cohort", step).integers(20, 1))
        count = 3 if coin in (0, 1) else 2  # 2 and 2/20
        hostile = [i for i in order if malicious[i]][:count]
        benign = [i for i in order if not malicious[i]][: 6 - count]
        places = secret.key("rows", step).permutation(6).tolist()
        assert row == [(hostile + benign)[place] for place in places]
        coins[coin] += 1
    assert min(coins[coin] for coin in range(4)) > 0, "those beside the edge occur"


@pytest.mark.slow
def test_in_a_stratified_round_all_clients_of_a_kind_are_alike_and_all_pairs_of_them() -> None:
    malicious, ids = drawn(STRATIFIED)
    times = torch.bincount(ids.flatten(), minlength=20) / ROUNDS
    # Both kinds take part in .3 of the rounds, as under random cohorts; standard error .0072.
    assert float((times - 0.3).abs().max()) < 5 * 0.0073
    pairs = Counter(
        pair
        for row in ids.tolist()
        for pair in itertools.combinations(sorted(i for i in row if not malicious[i]), 2)
    )
    # 4 of 13 in .9 of the rounds, else 3: .9 * 12 / 156 + .1 * 6 / 156, standard error .0041
    expected = 0.9 * 12 / 156 + 0.1 * 6 / 156
    assert len(pairs) == 13 * 12 // 2
    assert max(abs(n / ROUNDS - expected) for n in pairs.values()) < 5 * 0.0042


@pytest.mark.slow
def test_the_order_of_a_stratified_round_does_not_tell_who_is_malicious() -> None:
    malicious, ids = drawn(STRATIFIED)
    hostile = malicious[ids].double().mean(0)
    assert float((hostile - 0.35).abs().max()) < 5 * 0.0076  # in each of the six places
    # A lone malicious client stands before all benign ones in a third of the rounds of three.
    lone = Scenario(clients=12, per_round=3, malicious=4 / 12, cohorts="stratified")
    malicious, ids = drawn(lone)
    first = malicious[ids[:, 0]].double().mean()
    assert float(first) == pytest.approx(1 / 3, abs=5 * 0.0075)


def test_random_cohorts_are_drawn_as_before_stratified_ones_were_there() -> None:
    scenario = Scenario(clients=20, per_round=6, malicious=0.35)
    _, ids = drawn(scenario, 3)
    for step, row in enumerate(ids.tolist()):
        order = Secret.of(1, "run").key("sample", step).permutation(20)
        assert row == order[:6].tolist()
    assert "cohorts" not in scenario.model_dump()
    assert STRATIFIED.model_dump()["cohorts"] == "stratified"
    assert STRATIFIED.remarks == ["cohorts stratified"]
    with pytest.raises(ConfigError, match="--cohorts stratified must have rounds of exactly"):
        Scenario.of(cohorts="stratified", sampling="poisson")


def test_a_record_says_that_cohorts_are_stratified_and_how_many_were_malicious() -> None:
    setup = prepare(STRATIFIED, "cpu")
    record = fedbench.play(STRATIFIED, device="cpu")
    assert record.scenario.cohorts == "stratified"
    malicious = setup.population.malicious
    for played in record.rounds:
        assert played.clients == setup.sample(played.step)
        assert played.malicious == int(malicious[played.clients].sum())
        assert played.malicious in (2, 3)


# what is computed


def laws(**fields: Any) -> Scenario:
    return Scenario.of(**{"clients": 6, "per_round": 3, "malicious": 1 / 3} | fields)


def test_the_chance_of_more_malicious_rows_than_f_is_counted_over_all_cohorts() -> None:
    # 2 of 6 are malicious: of 20 triples 4 have both, 16 at least one, so 4 have none.
    assert exceeds(laws(), 0) == pytest.approx(16 / 20)
    assert exceeds(laws(), 1) == pytest.approx(4 / 20)
    assert exceeds(laws(), 2) == 0
    assert exceeds(laws(malicious=0.0), 0) == 0
    # by coins of 1/2: one of four times both come
    assert exceeds(laws(sampling="poisson"), 1) == pytest.approx(1 / 4)
    # stratified: exactly one; of 4 clients a round one, and in a third of the rounds two
    assert [exceeds(laws(cohorts="stratified"), f) for f in (0, 1)] == [1, 0]
    uneven = laws(cohorts="stratified", per_round=4)
    assert [exceeds(uneven, f) for f in (0, 1, 2)] == [1, pytest.approx(1 / 3), 0]


def test_a_run_fails_with_one_of_its_rounds() -> None:
    assert in_a_run(0.2, 3) == pytest.approx(1 - 0.8**3)
    assert in_a_run(1e-20, 10) == pytest.approx(1e-19, abs=0)
    assert in_a_run(0.9, 2) == pytest.approx(0.99)
    assert (in_a_run(0.0, 9), in_a_run(1.0, 9)) == (0, 1)
    # 4 of 20 triples have two: f = 1 does where a quarter of the runs of one round may fail
    assert covering(laws(rounds=1)) == 2
    assert covering(laws(rounds=1), risk=0.25) == 1
    assert covering(laws(rounds=2), risk=0.25) == 2
    assert covering(laws(malicious=0.0)) == 0
    # a round of one client has at most one; one of about one client has both in 1 of 36
    assert covering(laws(per_round=1), risk=0.0) == 1
    assert covering(laws(per_round=1, rounds=1, sampling="poisson")) == 2


def test_the_declared_share_means_rows_of_a_round_rounded_up() -> None:
    assert declared(Scenario(per_round=10, malicious=0.2)) == 2
    assert declared(Scenario(per_round=10, malicious=0.21)) == 3
    assert declared(Scenario(per_round=10, malicious=0.2, declared=0.3)) == 3
    assert declared(Scenario(per_round=10, malicious=0.2, declared=0.0)) == 0


@pytest.mark.parametrize(("clients", "malicious"), [(20, 0.2), (21, 0.2), (15, 0.4), (9, 0.0)])
@pytest.mark.parametrize("rounds", [1, 30])
def test_the_exact_cohort_is_the_least_from_which_on_all_stay_below_half(
    clients: int, malicious: float, rounds: int
) -> None:
    def half(n: int) -> float:
        fields: dict[str, Any] = {"clients": clients, "malicious": malicious, "rounds": rounds}
        return in_a_run(exceeds(Scenario(per_round=n, **fields), math.ceil(n / 2) - 1), rounds)

    safe = [half(n) <= 0.01 for n in range(1, clients + 1)]
    least = next(n for n in range(1, clients + 1) if all(safe[n - 1 :]))
    given = Scenario(clients=clients, per_round=1, malicious=malicious, rounds=rounds)
    assert exact_cohort(given) == least
    # the bound suffices, and so it is no smaller
    enough = sufficient_cohort(given)
    assert enough is not None
    assert least <= enough <= clients


def test_the_bound_on_the_cohort_by_hand_and_nothing_helps_where_half_are_malicious() -> None:
    # D(1/2, 1/5) = ln(5/2)/2 + ln(5/8)/2 = ln(25/16)/2 = ln(5/4); ln(3000) / ln(5/4) = 35.9
    assert divergence(0.5, 0.2) == pytest.approx(math.log(5 / 4))
    assert sufficient_cohort(Scenario(clients=50, malicious=0.2, rounds=30)) == 36
    assert sufficient_cohort(Scenario(clients=30, malicious=0.2, rounds=30)) == 30
    assert sufficient_cohort(Scenario(clients=30, malicious=0.0, rounds=30)) == 1
    for malicious in (0.5, 0.6):
        scenario = Scenario(clients=50, malicious=malicious)
        assert sufficient_cohort(scenario) is exact_cohort(scenario) is None


def test_all_clients_make_a_cohort_if_no_smaller_one_keeps_malicious_rows_below_half() -> None:
    # one of three: a cohort of two has it, and so half of its rows malicious, in 2 of 3 rounds
    assert exact_cohort(Scenario(clients=3, per_round=1, malicious=1 / 3)) == 3


# what is said


def said(*rules: str, **fields: Any) -> list[str]:
    scenarios = [Scenario.of(rounds=30, defense=rule, **fields) for rule in rules or ("mean",)]
    return malicious_rows(map(Cell, scenarios))


def test_a_plan_says_how_often_rows_exceed_what_its_rules_assume_and_what_would_help() -> None:
    assert said("mean", "median", "trimmed-mean:f=3", "trimmed-mean") == [
        "malicious clients: 10 of 50, rounds of 10, runs of 30 rounds: more than f = 2 in 31 % of "
        "rounds and in > 99.9 % of runs; more than f = 3 in 9.7 % of rounds and in 95 % of runs",
        "in 99 % of runs no round has more than 6 of them (less than half of every round from "
        "--per-round 17 on, exactly; from 36 on by a bound with the relative entropy, as in "
        "Allouah et al., ICML 2024); --cohorts stratified has 2 in every round",
    ]
    assert said(cohorts="stratified", malicious=0.14, declared=0.1) == [
        "malicious clients: 7 of 50, stratified rounds of 10, runs of 30 rounds: 1 in 60 % of "
        "rounds, 2 in 40 %; more than f = 1 in 40 % of rounds and in > 99.9 % of runs"
    ]
    (line,) = said(clients=10, cohorts="stratified")
    assert line.endswith("2 in every round; never more than f = 2")
    (line,) = said(clients=10)
    assert line.endswith("runs of 30 rounds: never more than f = 2")
    none = " (with no --per-round is that less than half of every round)"
    assert said(malicious=0.6)[1].endswith(none)
    coins = said(sampling="poisson")
    assert "rounds of about 10" in coins[0]
    assert coins[1] == "in 99 % of runs no round has more than 7 of them"
    asked = said(availability="dropout:p=0.5")
    after = "; all before clients drop out, after which their share may be higher"
    assert asked[0] == said()[0] + after
    assert asked[1] == "in 99 % of runs no round has more than 6 of them"
    assert said(malicious=0.0) == []


def test_a_plan_of_the_leaderboard_begins_with_its_malicious_rows(command: Command) -> None:
    board = Path(__file__).parents[1] / "leaderboards"
    code, out, _ = command(
        "leaderboard", "plan", "--track", "digits", "-p", "fsl", "--board", board
    )
    assert code == 0
    first, second, *_ = out.splitlines()
    rounds = "stratified rounds of 10, runs of 30 rounds: 1 in every round; never more than f = 1"
    assert first == f"# malicious clients: 5 of 50, {rounds}"
    assert "attacks, the clean run included, x 5 seeds" in second


@pytest.mark.slow
def test_a_dry_run_of_attack_says_what_it_would_play_and_writes_nothing(
    command: Command, tmp_path: Path
) -> None:
    grid = ["-p", "fedavg", "-a", "sign-flip", "--clients", "12", "--per-round", "4"]
    grid += ["--seeds", "0,1", "--rounds", "2", "--model", "micro", "--malicious", "0.25"]
    code, out, err = command("attack", *grid, "--dry-run", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    assert "2 cells x seeds 0,1 = 4 runs" in text
    assert "malicious clients: 3 of 12, rounds of 4, runs of 2 rounds: more than f = 1 in" in text
    assert "0 of 4 runs have a record" in text
    assert "from two rounds of 2 of 2 cells" in text
    assert list(tmp_path.iterdir()) == []
