"""Virtual clients: their samples follow from the key, and cost nothing where nobody reads them."""

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch

import fedbench
from fedbench import Scenario
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.permutations import MAX_LISTED
from fedbench.core.rng import Key, Secret
from fedbench.data.own import from_arrays
from fedbench.data.splits import OnDemand, replaced
from fedbench.data.virtual import Virtual, log_gammas
from fedbench.experiment import cohorts, population
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.population import populate
from fedbench.experiment.prepare import prepare
from fedbench.run import begin, play_round

MANY = 10**7
SMALL: dict[str, Any] = {
    **{"model": "micro", "partition": "virtual:beta=0.3", "rounds": 2, "epochs": 1},
    **{"per_round": 6, "eval_every": 1},
}


def balanced(each: int, classes: int = 10) -> torch.Tensor:
    return torch.arange(each * classes) % classes


def test_a_client_is_the_same_in_every_reading_and_depends_on_key_and_number_alone() -> None:
    y = balanced(50)
    parts = Virtual(beta=0.3).split(y, 100, 10, Key(3))
    later = Virtual(beta=0.3).split(y, MANY, 10, Key(3))
    assert all(torch.equal(parts[i], later[i]) for i in (99, 0, 57))
    assert not torch.equal(parts[1], parts[2])
    assert not torch.equal(parts[1], Virtual(beta=0.3).split(y, 100, 10, Key(4))[1])
    assert len(parts) == 100
    assert len(list(parts)) == 100
    with pytest.raises(IndexError):
        parts[100]


def test_sizes_are_equal_or_gamma() -> None:
    y = balanced(50)
    sizes = [len(part) for part in Virtual(samples=17).split(y, 30, 10, Key(0))]
    assert sizes == [17] * 30
    # The mean of ten Gamma(0.5) / 0.5 has mean 1 and variance 2 / 10: 400 +- 400 * .447 / 20.
    gamma = Virtual(beta=0.5, samples=400, sizes="gamma").split(y, 400, 10, Key(0))
    drawn = np.array([len(part) for part in gamma])
    assert abs(drawn.mean() - 400) < 5 * 8.95
    assert abs(drawn.std() - 400 * math.sqrt(0.2)) < 40
    least = Virtual(beta=0.01, sizes="gamma").split(y, 200, 10, Key(0))
    assert min(map(len, least)) == 10


@pytest.mark.parametrize("beta", [0.05, 0.3, 2.0])
def test_the_mix_of_a_client_is_dirichlet_on_balanced_classes(beta: float) -> None:
    # A share q of Dir(beta, ..., beta) over 10 classes: mean .1, variance .1 * .9 / (10 beta + 1).
    # The share among s samples varies by q (1 - q) / s more, (.09 - variance) / s on average.
    clients = 2000
    samples = 200
    y = balanced(30)
    parts = Virtual(beta=beta, samples=samples).split(y, clients, 10, Key(1))
    shares = torch.stack([y[part].bincount(minlength=10) for part in parts]).double() / samples
    variance = 0.09 / (10 * beta + 1)
    observed = variance + (0.09 - variance) / samples
    assert float(shares.mean(0).sub(0.1).abs().max()) < 5 * math.sqrt(observed / clients)
    assert float(shares.var()) == pytest.approx(observed, rel=0.06)


def test_classes_of_a_pool_count_by_their_size_and_empty_ones_are_never_drawn() -> None:
    # Large beta: all gammas alike, so samples are uniform over the pool: 1/4 of class 1, 3/4 of 3.
    y = torch.tensor([1, 3, 3, 3] * 25)
    parts = Virtual(beta=1e5, samples=4000).split(y, 2, 5, Key(0))
    counts = y[parts[0]].bincount(minlength=5)
    assert counts[[0, 2, 4]].tolist() == [0, 0, 0]
    assert abs(int(counts[1]) - 1000) < 5 * 27.4 + 20
    rows = parts[1].bincount(minlength=100).double()  # each row 40 times, standard deviation 6.3
    assert float(rows.sub(40).abs().max()) < 5 * 6.4
    rare = Virtual(beta=1e5, samples=100).split(torch.tensor([0, 1]), 1, 2, Key(0))
    assert 20 < int(rare[0].sum()) < 80, "a class with one sample counts as one"


def test_logarithms_of_gammas_have_their_law_and_are_finite_however_small() -> None:
    generator = np.random.Generator(np.random.Philox(5))
    for shape in (0.3, 4.0):  # mean and variance of a gamma are its shape
        gammas = np.exp(log_gammas(generator, shape, 20_000))
        assert gammas.mean() == pytest.approx(shape, abs=5 * math.sqrt(shape / 20_000))
        assert gammas.var() == pytest.approx(shape, rel=0.15)
    assert np.isfinite(log_gammas(generator, 1e-3, 1000)).all()
    lone = Virtual(beta=1e-3).split(balanced(20), 50, 10, Key(0))
    assert all(len(set(balanced(20)[part].tolist())) == 1 for part in lone)
    # of one class alone the gamma, exp(-690) on average, is often too small to be squared
    alone = Virtual(beta=1e-3).split(torch.zeros(20, dtype=torch.int64), 50, 1, Key(0))
    assert all(int(part.max()) < 20 for part in alone)


def test_virtual_clients_have_forty_samples_and_a_beta_of_one_unless_said_otherwise() -> None:
    assert Virtual() == Virtual(beta=1.0, samples=40, sizes="equal")
    assert len(Virtual(samples=3).split(balanced(3), 1, 10, Key(0))[0]) == 3, "the fewest"
    with pytest.raises(ConfigError, match="clients must be >= 1, got 0"):
        Virtual().split(balanced(3), 0, 10, Key(0))
    with pytest.raises(ConfigError, match="needs samples to draw from, got none"):
        Virtual().split(balanced(0), 1, 10, Key(0))


@pytest.mark.parametrize(
    ("params", "match"),
    [({"beta": 0.0}, "beta"), ({"samples": 2}, "samples"), ({"sizes": "other"}, "sizes")],
)
def test_what_means_nothing_is_refused(params: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=rf"Virtual\.{match} must be"):
        Virtual(**params)


# in a run


def people(**fields: Any) -> tuple[population.Population, Scenario]:
    scenario = Scenario(**SMALL | {"clients": 40, "defense": "mean"} | fields)
    data = from_arrays(torch.arange(400.0)[:, None].repeat(1, 3), balanced(40), trained=300)
    resolution = resolve(scenario)
    return populate(resolution, data, Secret.of(0, "run")), scenario


@pytest.mark.parametrize("split", ["per-client", "per-client-80-20"])
@pytest.mark.parametrize("defense", ["mean", "fltrust"])
def test_no_sample_that_trains_a_client_or_the_server_tests_or_validates(
    split: Any, defense: str
) -> None:
    found, _ = people(split=split, defense=defense, partition="virtual:beta=0.3,samples=10")
    assert found.held_out is not None
    tests, validates = (80, 40) if split == "per-client" else (80, 0)
    root = found.root.tolist()
    assert len(found.held_out.test) == tests
    rooted = len(root) if validates else 0
    assert len(found.held_out.validation) == validates - rooted
    train = set(torch.cat(list(found.train)).tolist())
    test = set(torch.cat(list(found.test)).tolist())
    assert test <= set(found.held_out.test.tolist())
    assert train.isdisjoint(found.held_out.test.tolist())
    assert train.isdisjoint(found.held_out.validation.tolist())
    own = set(torch.cat(list(found.validation)).tolist())
    assert own <= set(found.held_out.validation.tolist())
    assert (train | test).isdisjoint(root)
    assert len(root) == (0 if defense == "mean" else 20 if validates else 100)
    sizes = {tuple(map(len, parts)) for parts in zip(found.train, found.test, strict=True)}
    assert sizes == {(7, 2)} if validates else {(8, 2)}
    assert [part.tolist() for part in found.judged] == [found.held_out.test.tolist()]


def test_with_the_published_split_clients_draw_training_images_and_published_ones_test() -> None:
    found, _ = people(split="published")
    assert found.published is not None
    assert found.published.tolist() == list(range(300, 400))
    assert [part.tolist() for part in found.judged] == [found.published.tolist()]
    assert found.own_tests is None
    assert int(torch.cat(list(found.train)).max()) < 300
    assert {len(part) for part in found.train} == {40}
    assert sum(map(len, found.test)) == sum(map(len, found.validation)) == 0


def test_test_parts_have_the_client_s_mix_and_other_draws_than_its_training_part() -> None:
    found, _ = people(partition="virtual:beta=0.02,samples=200")
    y = found.data.y
    assert all(set(y[found.test[i]].tolist()) & set(y[found.train[i]].tolist()) for i in range(40))
    # With all classes alike the order of labels must differ: 10 classes agree on a tenth of 40.
    found, _ = people(partition="virtual:beta=1000,samples=200")
    agree = [float((y[found.test[i]] == y[found.train[i]][:40]).double().mean()) for i in range(40)]
    assert sum(agree) / 40 == pytest.approx(0.1, abs=5 * 0.0075)


def test_accuracies_of_clients_are_those_of_a_fixed_sample_of_benign_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(population, "MAX_SURVEYED_CLIENTS", 7)
    setup = prepare(Scenario(**SMALL | {"clients": 30, "malicious": 0.5}), "cpu", "loop")
    held = setup.population.held_out
    assert held is not None
    assert len(set(held.surveyed)) == 7
    assert not setup.population.malicious[held.surveyed].any()
    state = begin(setup)
    play_round(setup, state, 0)
    assert state.score is not None
    assert len(state.score.parts) == 7
    # Each of them against the model itself, on the client's own test part.
    fixed = setup.with_population(
        held_out=None, test=[setup.population.test[i] for i in held.surveyed], published=None
    )
    from fedbench.experiment.evaluation import models, score_models, settled

    answering = models(setup, settled(setup, state.server, 0), 0)
    network = setup.shared.network
    data = setup.population.data
    alone = [score_models(network, answering, data, [part]) for part in fixed.population.test]
    assert state.score.parts.tolist() == [score.accuracy for score in alone]
    whole = score_models(network, answering, data, [held.test])
    assert state.score.accuracy == whole.accuracy


# in number


def many(**fields: Any) -> Scenario:
    return Scenario(**SMALL | {"clients": MANY, "malicious": 0.1, "attack": "sign-flip"} | fields)


@pytest.mark.slow
def test_ten_million_clients_are_prepared_and_played_in_memory_that_holds_no_list_of_them() -> None:
    prepare(many(clients=40), "cpu", "loop")  # imports
    tracemalloc.start()
    setup = prepare(many(), "cpu", "loop")
    play_round(setup, begin(setup), 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MANY  # less than a byte a client, of what Python and NumPy hold
    assert setup.population.malicious.count == 10**6
    numbers = setup.population.malicious.numbers(setup.population.malicious.ids(torch.arange(50)))
    assert sorted(numbers) == list(range(50))


def test_the_share_of_malicious_clients_is_exact() -> None:
    clients = MAX_LISTED + 1
    malicious = prepare(many(clients=clients), "cpu", "loop").population.malicious
    assert int(malicious[torch.arange(clients)].sum()) == malicious.count == round(clients / 10)


@pytest.mark.edges("fixed", "poisson")
@pytest.mark.parametrize("sampling", ["fixed", "poisson", "stratified"])
def test_rounds_of_very_many_clients_have_the_law_of_those_of_few(sampling: str) -> None:
    kinds: dict[str, Any] = {"cohorts": "stratified"} if sampling == "stratified" else {}
    if sampling == "poisson":
        kinds = {"sampling": "poisson"}
    scenario = many(per_round=50, rounds=400, malicious=0.25, **kinds)
    played = list(cohorts.rounds(scenario))
    assert all(len(set(ids)) == len(ids) for ids, _, _ in played)
    sizes = torch.tensor([len(ids) for ids, _, _ in played], dtype=torch.float64)
    hostile = torch.tensor([count for _, count, _ in played], dtype=torch.float64)
    if sampling == "poisson":
        assert abs(float(sizes.mean()) - 50) < 5 * math.sqrt(50 / 400)
        assert float(sizes.var()) == pytest.approx(50, rel=0.35)
    else:
        assert set(sizes.tolist()) == {50}
    # Binomial: 12.5 with a variance of 9.375 (with a random size 12.5); stratified 12 or 13.
    assert abs(float(hostile.mean()) - 12.5) < 5 * math.sqrt(12.5 / 400)
    if sampling == "stratified":
        assert set(hostile.tolist()) == {12, 13}
        first = prepare(scenario, "cpu", "loop").population.malicious
        places = torch.stack([first[ids].double() for ids, _, _ in played]).mean(0)
        assert float(places.sub(0.25).abs().max()) < 5 * math.sqrt(0.1875 / 400)
    else:
        assert float(hostile.var()) > 6


def test_an_attack_that_trains_all_of_its_clients_is_refused_where_they_are_too_many() -> None:
    scenario = many(protocol="fsl", attack="rank-reversal:voters=all")
    with pytest.raises(Incompatible, match=r"trains 1000000 clients of its own in every round"):
        prepare(scenario, "cpu", "loop")


def test_an_attack_that_asks_for_more_clients_than_it_owns_trains_those_that_it_owns() -> None:
    fields: dict[str, Any] = {"protocol": "fsl", "attack": "rank-reversal:voters=5000"}
    with pytest.raises(Incompatible, match=r"trains 5000 clients of its own in every round"):
        prepare(many(**fields), "cpu", "loop")
    setup = prepare(many(malicious=900 / MANY, **fields), "cpu", "loop")
    assert setup.recruiting(setup.plugins.attack) == setup.population.malicious.count == 900


def test_an_adversary_of_very_many_rehearses_with_some_of_its_own_clients() -> None:
    setup = prepare(many(), "cpu", "loop")
    ids = setup.rehearsing
    assert len(set(ids)) == 1000
    assert bool(setup.population.malicious[ids].all())


@pytest.mark.slow
def test_records_of_virtual_clients_are_equal_whoever_reads_what_first() -> None:
    scenario = many(clients=10**6, defense="trimmed-mean")
    first = fedbench.play(scenario, device="cpu", executor="loop")
    setup = prepare(scenario, "cpu", "loop")
    for i in (5, 999_999, *first.rounds[1].clients):
        setup.population.train[i]
    state = begin(setup)
    assert [play_round(setup, state, step) for step in range(2)] == first.rounds
    assert first.scenario.partition == "virtual:beta=0.3,samples=40,sizes=equal"
    drawn = list(cohorts.rounds(first.scenario))
    assert [(r.clients, r.malicious, r.dropped) for r in first.rounds] == drawn


def test_parts_on_demand_are_made_once_and_one_can_be_replaced() -> None:
    made: list[int] = []

    def make(i: int) -> torch.Tensor:
        made.append(i)
        return torch.tensor([i])

    parts = OnDemand(3, make)
    assert [int(parts[1]), int(parts[1])] == [1, 1]
    assert made == [1]
    other = replaced(parts, 1, torch.tensor([9]))
    assert [int(part) for part in other] == [0, 9, 2]
    assert [int(part) for part in replaced(list(parts), 2, torch.tensor([9]))] == [0, 1, 9]


def test_models_are_chosen_on_other_samples_than_those_that_test_them() -> None:
    scenario = Scenario(partition="virtual", model="micro", clients=30, per_round=4)
    dealt = prepare(scenario, "cpu").population
    assert dealt.held_out is not None
    (chosen_on,) = dealt.validating
    (judged_on,) = dealt.judged
    assert torch.equal(chosen_on, dealt.held_out.validation)
    trained_on = torch.cat(list(dealt.train))
    assert not torch.isin(chosen_on, judged_on).any()
    assert not torch.isin(torch.cat([chosen_on, judged_on]), trained_on).any()
