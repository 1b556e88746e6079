"""The paper's text and its released code are two systems, and each is played as it is described.

Tests that say "slowly" restate in Python's own numbers what docs/errata.md says of a text or code.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from exchanges import flat, sent, shared_of
from torch import Tensor

from fedbench.api import Batches, Deployed, Shared
from fedbench.cli.docstrings import parameters
from fedbench.core import registry
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.own import from_arrays
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.evaluation import evaluate, final_model, settled, validation_accuracy
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.payload import Rankings, ranking
from fedbench.payload.packets import code_bits
from fedbench.protocols.fedpm import Belief, FedPM
from fedbench.protocols.fsl import FSL, initial_scores
from fedbench.results.fields import Fields
from fedbench.results.gather import shortened
from fedbench.results.query import Condition

NAMED = [
    (kind, name, variant)
    for kind in registry.KINDS
    for name in registry.names(kind)
    for variant in registry.variants(registry.plugin(kind, name))
]


def played(text: str) -> FedPM:
    protocol = registry.load("protocol", text)
    assert isinstance(protocol, FedPM)
    return protocol


def test_a_variant_is_its_parameters_and_what_is_typed_beside_it_wins() -> None:
    code = played("fedpm:as=code")
    assert (code.optimizer, code.keep_moments, code.ste) == ("adam", True, "theta")
    assert (code.ends, code.clip, code.final, code.resets) == ("squeeze", 0.01, "fresh", "every:1")
    assert code.weight_init == "signed-e"
    paper = played("fedpm:as=paper")
    assert (paper.optimizer, paper.lr, paper.ste) == ("sgd", 0.1, "theta")
    assert (paper.ends, paper.clip, paper.final, paper.resets) == ("clip", 1e-6, "sample", "paper")
    assert paper.weight_init == "signed-constant"
    for text in ("fedpm:as=paper,clip=0.1,ste=identity", "fedpm:ste=identity,clip=0.1,as=paper"):
        assert played(text) == dataclasses.replace(paper, clip=0.1, ste="identity")
    assert played("fedpm:as=own") == FedPM()
    assert played("fedpm:as=paper,reg=1.0").start == "paper"  # uniform there (R4)


def test_a_variant_that_does_not_exist_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^--protocol fedpm has no variant as=cod; did you mean"):
        registry.load("protocol", "fedpm:as=cod")
    with pytest.raises(ConfigError, match=r"known: own, paper, code$"):
        registry.load("protocol", "fedpm:as=x")
    for name in ("fedavg", "sfsl"):  # of Sparse-FSL no code is released
        with pytest.raises(ConfigError, match="has no parameter 'as'"):
            registry.load("protocol", f"{name}:as=code")


def test_none_is_a_value_or_a_word_as_the_parameter_has_it() -> None:
    assert registry.load("protocol", "fsl:anneal=none").anneal == "none"
    assert registry.load("mechanism", "mask-gaussian:clip=none").clip is None
    for text in ("fsl:k=none", "fsl:scores=none"):
        with pytest.raises(ConfigError, match="got 'none'"):
            registry.load("protocol", text)


@pytest.mark.parametrize(("kind", "name", "variant"), NAMED)
def test_every_variant_is_written_as_records_write_it_and_shown(
    kind: str, name: str, variant: str
) -> None:
    plugin = registry.plugin(kind, name)
    instance = registry.load(kind, f"{name}:as={variant}")
    written = registry.split(registry.describe(name, instance, every=True))[1]
    meant = registry.variants(plugin)[variant]
    assert {param: written[param] for param in meant} == meant
    (said,) = [text for term, text in parameters(plugin, plugin()) if term == "as=own"]
    assert all(f"{param}={value}" in said for param, value in meant.items())


def test_tables_say_as_where_that_is_shorter() -> None:
    def shown(text: str) -> str:
        protocol = registry.load("protocol", text)
        name = text.partition(":")[0]
        return str(shortened(Scenario(protocol=registry.describe(name, protocol))).protocol)

    for text in ("fedpm", "fedpm:as=code", "fedpm:as=paper", "fedpm:as=code,prior=2.0"):
        assert shown(text) == text
    assert shown("fedpm:as=code,clip=0.02") == "fedpm:as=code,clip=0.02"
    assert shown("fedpm:optimizer=sgd") == "fedpm:optimizer=sgd"
    assert shown("fsl:as=paper") == "fsl"  # its defaults
    attack = registry.load("attack", "rank-reversal:as=code")  # one parameter, said as it is
    text = shortened(Scenario(attack=registry.describe("rank-reversal", attack))).attack
    assert text == "rank-reversal:voters=25"
    assert shown("fsl:as=code,k=0.3") == "fsl:as=code,k=0.3"


def test_a_question_about_a_variant_finds_the_runs_that_have_its_parameters() -> None:
    protocol = registry.describe("fedpm", played("fedpm:as=code,lr=0.2"))
    kinds: Fields = {"protocol": "plug-in"}
    for condition, holds in (
        ("protocol=fedpm:as=code,lr=0.2", True),
        ("protocol=fedpm:as=code", False),  # its lr is 0.1
        ("protocol!=fedpm:as=paper", True),
        ("protocol=fedpm:as=own", True),  # says nothing
        ("protocol~fedpm:lr", True),  # a text, not a plug-in
    ):
        assert Condition.parse(condition, kinds).holds(protocol) is holds, condition


D = 4
G = [0.5, -1.0, 2.0, -0.25]  # slope of a linear loss in each weight: no mask changes it


def linear(protocol: FedPM, frozen: Tree) -> Any:
    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in tree.items()}
        loss = (x * protocol.weights(leaves, frozen, key)["fc1"]).sum()
        return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    return grad


def trained(
    protocol: FedPM, shared: Shared, state: Belief, memory: Any, steps: int
) -> tuple[list[float], Any]:
    """Probabilities of a client that descends the linear loss."""
    grad = linear(protocol, protocol.frozen(shared))
    tree = protocol.receive(shared, protocol.broadcast(shared, state, [0], Key(0)))
    batches = Batches([(torch.tensor([G]), torch.zeros(1))] * steps)
    update, memory = protocol.local_update(tree, batches, grad, Key(1), memory)
    return update["fc1"][0].tolist(), memory


def sigmoid(s: float) -> float:
    return 1 / (1 + math.exp(-s))


def logit(theta: float) -> float:
    return math.log(theta / (1 - theta))


def test_as_code_is_the_code_slowly() -> None:
    protocol = played("fedpm:as=code")
    shared = flat(D)
    weights = protocol.frozen(shared)["fc1"][0].tolist()
    state = protocol.init(shared)
    memory = protocol.memory(shared)
    theta = state.theta.tolist()
    m, v, t = [0.0] * D, [0.0] * D, 0
    masks = [
        torch.tensor(rows).bool()
        for rows in (
            [[1, 0, 1, 0], [1, 0, 0, 0], [1, 0, 1, 1]],
            [[0, 0, 1, 1], [1, 1, 1, 0], [0, 0, 1, 1]],
        )
    ]
    for bits in masks:
        after, memory = trained(protocol, shared, state, memory, steps=3)
        state = protocol.server_step(shared, state, bits.double().mean(dim=0), 3, Key(0))
        # Adam(0.1), whose moments live in the client; d loss / d s = g w theta theta (1 - theta).
        scores = [logit(p) for p in theta]
        for _ in range(3):
            t += 1
            for i in range(D):
                p = sigmoid(scores[i])
                slope = G[i] * weights[i] * p * p * (1 - p)
                m[i] = 0.9 * m[i] + 0.1 * slope
                v[i] = 0.999 * v[i] + 0.001 * slope**2
                step = m[i] / (1 - 0.9**t) / (math.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
                scores[i] -= 0.1 * step
        assert after == pytest.approx([sigmoid(s) for s in scores], abs=1e-5)
        # {0.01, 0.99} stand for the bits, and the prior is reset in every round: a plain mean.
        uploads = [[0.99 if bit else 0.01 for bit in row] for row in bits.tolist()]
        theta = [sum(column) / 3 for column in zip(*uploads, strict=True)]
        assert state.theta.tolist() == pytest.approx(theta, abs=1e-6)
    # By hand: of the last bits of weight 1 one of three is 1, of weight 0 too, all of weight 2 are.
    assert state.theta.tolist() == pytest.approx([1.01 / 3, 1.01 / 3, 0.99, 1.99 / 3], abs=1e-6)


@pytest.mark.parametrize(("share", "period"), [(1.0, 1), (0.5, 3), (0.75, 3), (0.1, 10)])
def test_as_paper_is_the_text_slowly(share: float, period: int) -> None:
    protocol = played("fedpm:as=paper")
    shared = dataclasses.replace(flat(D), participation=share)
    weights = protocol.frozen(shared)["fc1"][0].tolist()
    state = protocol.init(shared)
    theta = state.theta.tolist()
    alpha, beta = [1.0] * D, [1.0] * D
    for t in range(1, 13):
        # SGD(0.1), with the gradient "simply equal to the probability mask" (E1).
        after, _ = trained(protocol, shared, state, {}, steps=2)
        scores = [logit(min(max(p, 1e-6), 1 - 1e-6)) for p in theta]
        for _ in range(2):
            for i in range(D):
                p = sigmoid(scores[i])
                scores[i] -= 0.1 * G[i] * weights[i] * p * p * (1 - p)
        assert after == pytest.approx([sigmoid(s) for s in scores], abs=1e-5)
        ones = [int(3 * n) for n in Key(t).uniform(D).tolist()]  # of two clients
        ones[3] = 0  # a weight that nobody keeps
        state = protocol.server_step(shared, state, torch.tensor(ones) / 2, 2, Key(0))
        if (t - 1) % period == 0:  # ResPriors(t)
            alpha, beta = [1.0] * D, [1.0] * D
        alpha = [a + k for a, k in zip(alpha, ones, strict=True)]
        beta = [b + 2 - k for b, k in zip(beta, ones, strict=True)]
        theta = [(a - 1) / (a + b - 2) for a, b in zip(alpha, beta, strict=True)]
        assert state.theta.tolist() == pytest.approx(theta, abs=1e-6)
    assert theta[3] == state.theta[3].item() == 0.0


def test_a_share_of_the_clients_is_what_a_run_samples() -> None:
    scenario = Scenario(protocol="fedpm:as=paper", model="micro", clients=20, per_round=10)
    setup = prepare(scenario, "cpu")
    assert setup.shared.participation == 0.5
    assert setup.plugins.protocol.reset_period(setup.shared) == 3
    assert FedPM(resets="every:7").reset_period(setup.shared) == 7


def prepared(protocol: str) -> tuple[Setup, Any]:
    """A setup, and a state of its server in which no bit is certain."""
    setup = prepare(Scenario(protocol=protocol, model="micro", clients=10, malicious=0.2), "cpu")
    state = setup.plugins.protocol.init(setup.shared)
    return setup, dataclasses.replace(state, steps=4)


def answers(setup: Setup, model: Deployed, rows: Tensor) -> list[bool]:
    """Which of these samples a network gets right, one after the other."""
    assert isinstance(model, dict)
    data = setup.population.data
    with torch.no_grad():
        scores = setup.shared.network.logits(model, data.floats(rows))
    return (scores.argmax(dim=1) == data.y[rows]).tolist()


def test_a_fresh_mask_answers_every_128_test_images() -> None:
    setup, state = prepared("fedpm:final=fresh")
    protocol = setup.plugins.protocol
    shared = setup.shared
    population = setup.population
    benign = [rows for i, rows in enumerate(population.test) if not population.malicious[i]]
    pool = torch.cat(benign)
    assert 256 < len(pool) < 384  # three mini-batches, the last one short
    right: list[bool] = []
    masks = []
    for batch in range(3):
        key = setup.secret.key("model", 5, *([batch] if batch else []))
        model = protocol.model(shared, state, key)
        masks.append(torch.cat([model[name].flatten() != 0 for name in shared.weights.names]))
        right += answers(setup, model, pool[128 * batch : 128 * batch + 128])
    score = evaluate(setup, state, 5)
    assert score.accuracy == sum(right) / len(pool)
    assert score.sparsity == pytest.approx(1 - float(masks[0].double().mean()))
    (first,) = final_model(setup, state).members
    drawn = protocol.model(shared, state, setup.secret.key("model", setup.scenario.rounds - 1))
    assert all(torch.equal(leaf, drawn[name]) for name, leaf in first.items())
    differing = float((masks[0] != masks[1]).double().mean())
    theta = state.theta
    assert differing == pytest.approx(float((2 * theta * (1 - theta)).mean()), abs=0.05)
    # What has to be stored is theta. One mask is deployed by default, whatever the key.
    assert protocol.model_bits(shared, state) == 32 + 32 * len(theta)
    one, other = (FedPM().model(shared, state, Key(key)) for key in (1, 2))
    assert all(torch.equal(leaf, other[name]) for name, leaf in one.items())
    assert FedPM().redraws() is None


def test_a_final_model_is_validated_by_the_draws_of_the_last_round_on_what_clients_have_left() -> (
    None
):
    setup, state = prepared("fedpm:final=fresh")
    population = setup.population
    benign = [i for i in range(10) if not population.malicious[i]]
    lone = benign[3]
    nobody = [part[:0] for part in population.validation]
    only = [*nobody[:lone], torch.arange(128), *nobody[lone + 1 :]]  # which one draw answers
    seeds = []

    class Noting(FedPM):
        def model(self, shared: Shared, state: Belief, key: Key) -> Tree:
            seeds.append(key.seed)
            return super().model(shared, state, key)

    plugins = dataclasses.replace(setup.plugins, protocol=Noting(final="fresh"))
    noting = dataclasses.replace(setup, plugins=plugins)
    validated = validation_accuracy(noting.with_population(validation=only), state)
    last = setup.secret.key("model", setup.scenario.rounds - 1)
    assert seeds == [last.seed]
    model = setup.plugins.protocol.model(setup.shared, state, last)
    assert validated == sum(answers(setup, model, only[lone])) / 128
    assert validation_accuracy(setup.with_population(validation=nobody), state) is None


def test_a_scan_takes_the_threshold_that_is_best_on_validation_data() -> None:
    setup, state = prepared("fedpm:final=scan")
    protocol = setup.plugins.protocol
    shared = setup.shared
    population = setup.population
    validation = torch.cat(
        [rows for i, rows in enumerate(population.validation) if not population.malicious[i]]
    )
    frozen = protocol.frozen(shared)
    best = -1.0
    kept = torch.zeros(0)
    for threshold in (0.5, 0.45, 0.55, 0.4, 0.6):
        mask = shared.weights.unflatten((state.theta > threshold).float())
        model = frozen | {name: frozen[name] * bits for name, bits in mask.items()}
        right = answers(setup, model, validation)
        if sum(right) / len(right) > best:
            best = sum(right) / len(right)
            kept = state.theta > threshold
    chosen = settled(setup, state, 5)
    deployed = protocol.model(shared, chosen, Key(0))
    assert torch.equal(shared.weights.flatten(deployed) != 0, kept)
    assert validation_accuracy(setup, chosen) == best
    assert protocol.model_bits(shared, chosen) == 32 + code_bits(kept.numpy())[1]
    pool = torch.cat([population.test[i] for i in range(10) if not population.malicious[i]])
    right = answers(setup, deployed, pool)
    assert evaluate(setup, state, 5).accuracy == sum(right) / len(right)
    assert settled(*prepared("fedpm"), 5).threshold is None


def test_a_scan_never_looks_at_test_samples_and_the_final_model_has_its_threshold() -> None:
    setup, state = prepared("fedpm:final=scan")
    protocol = setup.plugins.protocol
    shared = setup.shared
    everything = torch.arange(len(setup.population.data))
    right = {}
    for threshold in (0.4, 0.6):
        model = protocol.model(shared, dataclasses.replace(state, threshold=threshold), Key(0))
        right[threshold] = torch.tensor(answers(setup, model, everything))
    # Samples that one of two thresholds alone gets right validate, those of the other one test.
    for best, worst in ((0.4, 0.6), (0.6, 0.4)):
        validation = (right[best] & ~right[worst]).nonzero()[:, 0]
        test = (right[worst] & ~right[best]).nonzero()[:, 0]
        assert min(len(validation), len(test)) > 0
        parts = {"validation": [validation] * 10, "test": [test] * 10}
        changed = setup.with_population(**parts)
        chosen = settled(changed, state, 5)
        assert chosen.threshold == best
        (deployed,) = final_model(changed, state).members
        expected = protocol.model(shared, chosen, Key(0))
        assert all(torch.equal(leaf, expected[name]) for name, leaf in deployed.items())


@pytest.mark.parametrize(
    ("fields", "requirement"),
    [
        ({"split": "published"}, "--split published does not leave; use --split per-client"),
        ({"split": "per-client-80-20"}, "does not leave"),
        ({"mechanism": "mask-gaussian"}, "no mechanism protects; use --mechanism none"),
    ],
)
def test_a_scan_needs_validation_data_that_nobody_promised_to_protect(
    fields: dict[str, Any], requirement: str
) -> None:
    with pytest.raises(Incompatible, match=requirement):
        load_plugins(Scenario.of(protocol="fedpm:final=scan", **fields))
    load_plugins(Scenario.of(protocol="fedpm", **fields))


def test_a_scan_needs_a_benign_client_whose_validation_sample_is_not_root_data() -> None:
    # Each of two clients validates on one sample, of which the server draws one as root data.
    data = from_arrays(torch.zeros(12, 1, 8, 8), torch.arange(12) % 2, normalise=False)
    fields: dict[str, Any] = {"dataset": data, "model": "micro", "partition": "iid"}
    fields |= {"clients": 2, "per_round": 2, "malicious": 0.5, "protocol": "fedpm:final=scan"}

    def validating(seed: int, **changes: Any) -> int:
        """Return with how many samples the benign client validates."""
        setup = prepare(Scenario(**fields | {"seed": seed} | changes), "cpu")
        (part,) = setup.population.validating
        return len(part)

    assert [validating(seed, protocol="fedpm", defense="fltrust") for seed in (2, 3)] == [0, 1]
    assert validating(3, defense="fltrust") == 1
    assert validating(2) == 1
    rule = "must choose on validation samples of benign clients, got none .* of defense fltrust;"
    with pytest.raises(ConfigError, match=rule):
        validating(2, defense="fltrust")


def test_equal_thresholds_of_a_scan_give_the_one_nearest_to_a_half() -> None:
    shared = flat(5)
    theta = torch.tensor([0.42, 0.47, 0.52, 0.57, 0.62])
    state = dataclasses.replace(FedPM().init(shared), theta=theta)

    def threshold(wanted: Sequence[int]) -> float | None:
        """Chosen where models with so many weights are the best."""

        def accuracy(model: Deployed) -> float:
            assert isinstance(model, dict)
            return float(int((model["fc1"] != 0).sum()) in wanted)

        return FedPM(final="scan").settle(shared, state, accuracy).threshold

    assert [threshold([count]) for count in (5, 4, 3, 2, 1)] == [0.4, 0.45, 0.5, 0.55, 0.6]
    assert threshold([0]) == 0.5
    assert threshold([4, 2]) == 0.45
    assert threshold([5, 1]) == 0.4
    assert threshold([1, 2]) == 0.55


def test_signed_scores_keep_both_ends_of_a_ranking() -> None:
    # Sorted scores -0.9, -0.1, 0.2, 0.3: of the ranking 2 0 3 1 edges 2 and 1 have the largest
    # magnitudes. The lowest rank of all is inside.
    protocol = FSL(scores="signed", k=0.5)
    scores = {"fc1": torch.tensor([[-0.1, 0.3, -0.9, 0.2]], requires_grad=True)}
    ones = {"fc1": torch.ones(1, 4)}
    masked = protocol.weights(scores, ones, Key(0))["fc1"]
    assert masked.tolist() == [[0.0, 1.0, 1.0, 0.0]]
    (gradient,) = torch.autograd.grad(
        (masked * torch.tensor([[1.0, 2, 3, 4]])).sum(), scores["fc1"]
    )
    assert gradient.tolist() == [[-1.0, 2.0, -3.0, 4.0]]  # the sign of the score
    sent_ranking = sent(protocol, flat(4), scores["fc1"].detach())
    assert sent_ranking.symbols.tolist() == [[2, 0, 3, 1]]


def test_fsl_as_code_is_the_code_slowly() -> None:
    protocol = registry.load("protocol", "fsl:as=code,k=0.8")
    assert (protocol.lr, protocol.momentum, protocol.weight_decay) == (0.4, 0.9, 1e-4)
    assert (protocol.decay, protocol.anneal) == (0.999, "cosine")
    shared = shared_of()
    start = initial_scores(shared, signed=True)
    for name, layer in shared.weights.unflatten(start).items():  # U(-b, b), b = fan_in ** -0.5
        bound = shared.network.fan_in(name) ** -0.5
        assert float(layer.abs().max()) <= bound
        assert float(layer.min()) < -bound / 3
        assert float(layer.max()) > bound / 3
    local = Key(1).normal(3, shared.weights.d)
    messages = sent(protocol, shared, local)
    state = protocol.server_step(
        shared, protocol.init(shared), messages.values().double().mean(dim=0), 3, Key(0)
    )
    model = protocol.model(shared, state, Key(0))
    own = protocol.local_model(shared, Rankings(state, shared.weights.sizes), messages.take([1]))
    received = protocol.receive(shared, Rankings(state, shared.weights.sizes))
    at = 0
    for name, size in zip(shared.weights.names, shared.weights.sizes, strict=True):
        rows = local[:, at : at + size].tolist()
        orders = [sorted(range(size), key=row.__getitem__) for row in rows]
        votes = [sum(order.index(edge) for order in orders) for edge in range(size)]
        agreed = sorted(range(size), key=votes.__getitem__)
        initial = sorted(start[at : at + size].tolist())
        kept = size - int((1 - 0.8) * size)
        for order, masked in ((agreed, model), (orders[1], own)):
            scores = [0.0] * size
            for place, edge in enumerate(order):
                scores[edge] = initial[place]
            largest = sorted(range(size), key=lambda edge: abs(scores[edge]))[-kept:]
            assert (masked[name].flatten() != 0).nonzero()[:, 0].tolist() == sorted(largest)
            if masked is model:
                assert received[name].flatten().tolist() == scores
        at += size


def test_an_edge_too_many_is_kept_where_the_code_rounds() -> None:
    # int((1 - 0.8) * 10) is 1 in floats and 2 in numbers.
    for cut, kept in (("exact", 8), ("floats", 9)):
        protocol = registry.load("protocol", f"fsl:k=0.8,cut={cut}")
        model = protocol.model(flat(10), ranking(Key(0).normal(1, 10), (10,)), Key(0))
        assert int((model["fc1"] != 0).sum()) == kept
        trained = protocol.weights(
            {"fc1": Key(0).normal(1, 10)}, {"fc1": torch.ones(1, 10)}, Key(0)
        )
        assert int(trained["fc1"].sum()) == kept
