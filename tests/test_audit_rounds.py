"""Audits of whole rounds: neighbouring inputs as far apart as the rules allow, and what is seen."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from rules import answer
from scipy.special import ndtr
from torch import Tensor, nn

import fedbench
from fedbench.api import Grad, Gradient
from fedbench.audits.canaries import Planted, model
from fedbench.audits.watched import watched
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key, Secret
from fedbench.data.datasets import Data
from fedbench.data.own import from_arrays
from fedbench.experiment.guarantee import COPIED_NOTE, REPEATED_NOTE, event, guarantee, spend
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import Payload, bits_of
from fedbench.privacy.accountants import Ledger
from fedbench.privacy.amplification import marginal
from fedbench.privacy.events import BinomialCounts, FlippedBits, GaussianGradients, SkellamShare
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.privacy.mechanisms.mask_gaussian import MaskGaussian, MaskSampling
from fedbench.privacy.mechanisms.randomized_response import FlipBits
from fedbench.protocols.secure_sums import flattened
from fedbench.run import begin, play_round

PIXELS = 500  # the network has twice as many weights
LONG = 10.0  # of an update, in clips


class Line(nn.Module):
    """Two classes by one layer without biases, so that all parameters are weights."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(PIXELS, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x)
        return out


def samples(count: int = 100, **rest: Any) -> Data:
    x = Key(0).normal(count, PIXELS)
    return from_arrays(x, x[:, 0] > 0, **({"normalise": False} | rest))


def lined(protocol: str, mechanism: Any, clients: int = 4, **fields: Any) -> Setup:
    """Return a run of `Line` in which all clients take part in each round, by default honest."""
    chosen: dict[str, Any] = {
        "clients": clients,
        "per_round": clients,
        "rounds": 99,
        "eval_every": 99,
    }
    chosen |= {"malicious": 0.0, "attack": "none", "partition": "iid", "model": Line}
    chosen |= {"protocol": protocol, "mechanism": mechanism, "dataset": samples()}
    return prepare(Scenario(**(chosen | fields)), "cpu", "loop")


Update = Callable[[Tensor], Tensor]  # of what a client that learned nothing sends, (d,)


def played(
    setup: Setup, client: int, update: Update, seed: int = 0, rounds: int = 1
) -> tuple[list[Payload], RunState, Setup]:
    """Return the messages of each round in which one client sends ``update``, others nothing new.

    The rounds are whole ones, but for the training.
    """
    setup = dataclasses.replace(setup, secret=Secret.of(seed, "run"))
    seen: list[Payload] = []
    observed = watched(setup, lambda received, aggregate, view: seen.append(received))
    state = begin(setup)
    protocol = setup.plugins.protocol
    for step in range(rounds):
        ids = setup.sample(step)
        sent = protocol.broadcast(setup.shared, state.server, ids, Key(0))
        idle = protocol.idle(setup.shared, sent)[0]
        given = {row: update(idle) if i == client else idle for row, i in enumerate(ids)}
        inner = setup.executor
        executor = Planted(protocol, setup.shared, inner.schedule, inner, given)
        play_round(dataclasses.replace(observed, executor=executor), state, step)
    return seen, state, setup


def benign(setup: Setup) -> int:
    """Return the first client that is not malicious."""
    malicious = setup.population.malicious
    return next(i for i in range(setup.scenario.clients) if not bool(malicious[[i]]))


def apart(setup: Setup) -> float:
    """Return how far apart the models are that two opposite updates lead to, with equal noise."""

    def deployed(length: float) -> Tensor:
        d = setup.shared.layout.d
        _, state, same = played(setup, benign(setup), lambda idle: idle + length / math.sqrt(d))
        return model(same, state)

    return float(torch.linalg.vector_norm(deployed(LONG) - deployed(-LONG)))


@pytest.mark.parametrize("attack", ["none", "sign-flip", "free-rider"])
@pytest.mark.parametrize("defense", ["mean", "clip:c=0.5+mean", "norm-bound:c=0.5"])
def test_models_of_neighbours_are_two_clips_apart_as_accounted(defense: str, attack: str) -> None:
    setup = lined(
        "fedavg",
        "dp-fedavg:clip=0.5,z=2",
        clients=10,
        defense=defense,
        attack=attack,
        malicious=0.3,
    )
    assert apart(setup) == pytest.approx(2 * 0.5 / 10, rel=1e-3)
    # and the noise is what was accounted, too
    _, state, again = played(setup, benign(setup), lambda idle: idle, seed=1)
    if attack == "none":
        moved = model(again, state) - model(again, begin(again))
        assert float(moved.std()) == pytest.approx(2 * 0.5 / 10, rel=0.1)


@pytest.mark.parametrize(("defense", "moved"), [("mean", 8.0), ("clip:c=1+mean", 2.0)])
def test_rounding_beside_very_long_messages_tells_what_others_send(
    defense: str, moved: float
) -> None:
    """Float32 has steps of 1/8 beside 2**20; a half of one makes it round by a sign."""
    d = 4096
    unit = Key(1).flips(d) / 64  # a clip
    far = torch.full((d,), 2.0**20)  # 2**26 clips long
    rule = registry.load("defense", defense)
    sums = [
        4 * answer(rule, torch.stack([torch.full((d,), 1 / 16), sign * unit, far, -far]))
        for sign in (1, -1)
    ]
    assert float((sums[0] - sums[1]).norm()) == pytest.approx(moved, rel=1e-3)


def test_an_epsilon_says_that_it_is_not_for_models_of_an_attack_that_reads_messages() -> None:
    fields: dict[str, Any] = {"clients": 10, "malicious": 0.3}
    reading = lined("fedavg", "dp-fedavg:clip=0.5,z=2", attack="mimic:warmup=1", **fields)
    assert apart(reading) > 2 * (2 * 0.5 / 10)  # three clients copy the longest message
    notes = {}
    for attack in ("none", "sign-flip", "mimic:warmup=1", "ipm", "auto"):
        setup = lined("fedavg", "dp-fedavg:clip=0.5,z=2", attack=attack, **fields)
        notes[attack] = COPIED_NOTE in note_of(setup)
    assert notes == {
        "none": False,
        "sign-flip": False,
        "mimic:warmup=1": True,
        "ipm": True,
        "auto": True,
    }
    nobody = lined("fedavg", "dp-fedavg:clip=0.5,z=2", attack="ipm")
    assert COPIED_NOTE not in note_of(nobody)
    local = lined("signsgd", "noisy-sign", attack="ipm", **fields)
    assert COPIED_NOTE not in note_of(local)  # what is copied has its noise already


def note_of(setup: Setup) -> str:
    """Return the note that a record of this run has beside its ε."""
    ledger = Ledger()
    spend(setup, ledger, [0], torch.tensor([True]))
    spent = guarantee(setup, ledger)
    assert spent is not None
    return spent.note


def test_an_epsilon_says_that_it_is_for_one_copy_of_a_sample_where_clients_hold_several() -> None:
    drawn = lined("fedavg", "dp-sgd", partition="virtual:samples=40")
    rows = [drawn.population.train[i].tolist() for i in range(4)]
    assert any(len(set(own)) < len(own) for own in rows)
    assert note_of(drawn) == REPEATED_NOTE
    assert note_of(lined("fedavg", "dp-sgd")) == ""
    assert note_of(lined("fedavg", "dp-fedavg", partition="virtual:samples=40")) == ""


def trained_apart(normalised: dict[str, Any]) -> float:
    """Return how far the data of one client move the deployed model, with equal noise."""

    def deployed(factor: float) -> Tensor:
        x = Key(0).normal(40, PIXELS)
        y = x[:, 0] > 0
        whose = torch.arange(40) % 4
        x[whose == 0] *= factor
        scenario = Scenario(
            protocol="fedavg:lr=0.1",
            mechanism="dp-fedavg:clip=0.01,z=2",
            dataset=from_arrays(x, y, clients=whose, **normalised),
            partition="natural",
            model=Line,
            clients=4,
            per_round=4,
            malicious=0.0,
            rounds=1,
            attack="none",
        )
        _, deployed = fedbench.play(scenario, executor="loop", return_model=True)
        return torch.cat([w.flatten() for w in deployed.state_dict().values()])

    return float(torch.linalg.vector_norm(deployed(1.0) - deployed(-1000.0)))


def test_an_epsilon_needs_samples_that_public_numbers_normalise() -> None:
    two_clips = 2 * 0.01 / 4
    assert trained_apart({"normalise": False}) <= two_clips * 1.001
    public = {"mean": [0.0] * PIXELS, "std": [1.0] * PIXELS}
    assert trained_apart(public) <= two_clips * 1.001
    with pytest.raises(
        ConfigError, match=r"mean and std of the clients' samples, .*normalise=False"
    ):
        trained_apart({})


CALLS: list[int] = []  # seeds from which the noise of a step was drawn


class CountedDPSGD(DPSGD):
    """DP-SGD that notes from which key each step draws its noise."""

    def wrap_grad(self, grad: Gradient) -> Grad:
        private = super().wrap_grad(grad)

        def noted(tree: dict[str, Tensor], x: Tensor, y: Tensor, key: Key) -> dict[str, Tensor]:
            assert isinstance(key.seed, int)
            CALLS.append(key.seed)
            return private(tree, x, y, key)

        return noted


def accepting(mechanism: Any) -> list[str]:
    """Return the protocols with which a mechanism fits a network without batch norm."""
    loaded = registry.load("mechanism", mechanism) if isinstance(mechanism, str) else mechanism
    protocols = [(name, registry.load("protocol", name)) for name in registry.names("protocol")]
    return [
        name
        for name, protocol in protocols
        if loaded.misfit(protocol, registry.load("defense", protocol.default_defense)) is None
        and name not in ("skellam", "pbm")  # which have noise of their own
    ]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", accepting("dp-sgd"))
def test_a_client_takes_as_many_noisy_steps_as_accounted_and_draws_no_noise_twice(
    protocol: str,
) -> None:
    setup = lined(protocol, CountedDPSGD(), clients=2, batch_size=8, epochs=2)
    CALLS.clear()
    state = begin(setup)
    for step in range(2):
        play_round(setup, state, step)
    events = [event(setup, len(setup.population.train[i])) for i in range(2)]
    steps = [2 * taken.steps for taken in events if isinstance(taken, GaussianGradients)]
    assert len(CALLS) == sum(steps) > 0
    assert len(set(CALLS)) == len(CALLS)


@pytest.mark.parametrize("protocol", accepting("randomized-response"))
def test_as_many_bits_are_flipped_as_are_accounted(protocol: str) -> None:
    setup = lined(protocol, "randomized-response:p=0.25")
    ((sent, _), _, _) = played(setup, 0, lambda idle: idle, rounds=2)
    flipped = event(setup, 10)
    assert isinstance(flipped, FlippedBits)
    assert flipped.d == sent.values().shape[1]


@pytest.mark.parametrize("c", [1e-6, 1.218e-6, 1.55e-6, 2.43e-6, 0.01, 0.2])
def test_no_bit_is_surer_than_accounted(c: float) -> None:
    ends = torch.tensor([[0.0, 1.0]])
    masks = MaskSampling(c=c).on_updates(ends, torch.full((1, 2), 0.5), [], None)[0]
    noisy = MaskGaussian(c=c, sigma=0.1).on_updates(ends, ends, [Key(0)], None)[0]
    affine = FlipBits(p=c, c=1e-6, form="affine").on_updates(ends, ends, [], None)[0]
    for chances in (masks, noisy, affine):
        assert float(chances.double().min()) >= c
        assert float(1 - chances.double().max()) >= c


@pytest.mark.parametrize("p", [1e-6, 0.01, 0.1, 0.2, 0.3, 0.499999])
def test_no_bit_is_flipped_less_often_than_accounted(p: float) -> None:
    flipped = FlipBits(p=p)
    # a draw decides by the 32 leading bits of a chance, which are rounded up
    chance = math.ceil(float(flipped.odds(3, torch.device("cpu"))[0]) * 2**32) / 2**32
    assert p <= chance <= p + 2**-24


def bits_seen(setup: Setup, update: Update) -> Tensor:
    """Return the bits of client 0 in two rounds of eight runs, ``(8, 2, d)`` float64."""
    runs = [played(setup, 0, update, seed, rounds=2) for seed in range(8)]
    of_client = [
        [bits_of(sent)[same.sample(step).index(0)] for step, sent in enumerate(seen)]
        for seen, _, same in runs
    ]
    return torch.stack([torch.stack(rounds) for rounds in of_client]).double()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "mechanism", "update", "chance"),
    [
        ("fedpm", "mask-gaussian:sigma=0.2,c=0.2", 1.0, float(marginal(0.8, 0.2, 0.2))),
        ("fedpm", "mask-gaussian:sigma=0.5,c=0.01", 0.0, float(marginal(0.01, 0.5, 0.01))),
        ("fedpm", "mask-sampling:c=0.1", 1.0, 0.9),
        ("fedpm", "randomized-response:p=0.25,form=affine", 1.0, 0.75),
        ("fedmask", "randomized-response:p=0.25", 1.0, 0.75),
        ("stochastic-sign:beta=0.9", "randomized-response:p=0.25", -1.0, 0.25),
        ("hidenseek", "randomized-response:p=0.1", -1.0, 0.1),
        ("signsgd", "noisy-sign:clip=1,z=0.05", 9.0, float(ndtr(20 / math.sqrt(2 * PIXELS)))),
    ],
)
def test_bits_of_a_round_are_as_sure_as_accounted_and_new_in_each_round(
    protocol: str, mechanism: str, update: float, chance: float
) -> None:
    bits = bits_seen(lined(protocol, mechanism), lambda idle: torch.full_like(idle, update))
    error = math.sqrt(chance * (1 - chance) / bits.numel())
    assert float(bits.mean()) == pytest.approx(chance, abs=4 * error)
    first, second = (bits[:, step].flatten() - chance for step in range(2))
    together = float((first * second).mean()) / (chance * (1 - chance))
    assert abs(together) < 4 / math.sqrt(len(first))


def residues_seen(setup: Setup, update: Update, seeds: int) -> Tensor:
    """Return the whole numbers of client 0 in two rounds of some runs, ``(seeds, 2, d)``."""
    runs = [played(setup, 0, update, seed, rounds=2) for seed in range(seeds)]
    rows = [
        [sent.values()[same.sample(step).index(0)] / 2 for step, sent in enumerate(seen)]
        for seen, _, same in runs
    ]
    return torch.stack([torch.stack(rounds) for rounds in rows]).double()


def opposite(length: float) -> Update:
    return lambda idle: idle + length / math.sqrt(len(idle))


@pytest.mark.parametrize("protocol", ["skellam:z=1,clients=4", "skellam:z=0.3,clients=9,bits=16"])
def test_shares_of_skellam_noise_and_distances_are_those_accounted(protocol: str) -> None:
    setup = lined(protocol, "none", sees="sum")
    share = event(setup, 10)
    assert isinstance(share, SkellamShare)
    noise = residues_seen(setup, lambda idle: idle, 4)
    spread = math.sqrt(2 / noise.numel())
    assert float(noise.square().mean()) == pytest.approx(share.variance, rel=5 * spread)
    together = float((noise[:, 0] * noise[:, 1]).mean()) / share.variance
    assert abs(together) < 5 * spread
    near, far = (residues_seen(setup, opposite(sign * LONG), 1)[0, 0] for sign in (1, -1))
    distance = float(torch.linalg.vector_norm(near - far))
    assert 0.95 * 2 * share.norm < distance <= 2 * share.norm


def test_coins_of_pbm_are_as_far_from_fair_as_accounted() -> None:
    setup = lined("pbm:clients=4,m=6,theta=0.25", "none", sees="sum")
    heads = event(setup, 10)
    assert isinstance(heads, BinomialCounts)
    near, far = (residues_seen(setup, opposite(sign * LONG), 24) for sign in (1, -1))
    d = setup.shared.layout.d
    along = flattened(torch.full((1, d), 1 / math.sqrt(d)), setup.shared.key)[0].double()
    moved = float(((near - far) @ along).mean())
    error = math.sqrt(2 * heads.coins / 4 / 48)
    assert moved == pytest.approx(2 * heads.coins * heads.norm, abs=5 * error)


def test_an_adaptive_clip_and_the_models_together_are_as_far_apart_as_accounted() -> None:
    setup = lined("fedavg", "dp-fedavg:clip=0.5,z=1,adaptive=true,bit_noise=2", clients=10)
    mechanism = setup.plugins.mechanism
    ends = []
    for length in (0.999 * 0.5, -LONG):  # of which the first needs no clipping
        _, state, same = played(setup, 0, opposite(length))
        ends.append((model(same, state), math.log(state.mechanism.norm)))
    (near, low), (far, high) = ends
    weights = float(torch.linalg.vector_norm(near - far)) * 10 / (mechanism.update_z(10) * 0.5)
    bits = abs(low - high) * 10 / (mechanism.eta * mechanism.bit_z(10))
    assert bits == pytest.approx(1 / 2)
    assert math.hypot(weights, bits) == pytest.approx(2 / mechanism.z, rel=1e-3)
