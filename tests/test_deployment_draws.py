"""Draws of a deployment: noise that protects has no seed, and is distributed as a run's is."""

import os
import secrets
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.core.rng import Key, coins
from fedbench.deployment import example
from fedbench.deployment.client import Client
from fedbench.deployment.draws import FromSystem, SystemKey
from fedbench.deployment.server import Server
from fedbench.deployment.settings import Settings
from fedbench.models.network import ConvNet

COUNT = 100_000
CHANCES = torch.linspace(0, 1, COUNT)
NAMING = {"fold", "branches", "public", "tensor"}  # methods of a key that draw nothing
DRAWN: dict[str, tuple[Callable[[Key], Tensor], float, float]] = {  # with mean and deviation
    "bits": (lambda key: key.bits(COUNT) / 2.0**64, 0, 12**-0.5),
    "uniform": (lambda key: key.uniform(COUNT), 0.5, 12**-0.5),
    "sampled": (lambda key: key.sampled(COUNT, 0.3), 0.3, 0.21**0.5),
    "integers": (lambda key: key.integers(3, COUNT), 1, (2 / 3) ** 0.5),
    "shorts": (lambda key: key.shorts(COUNT) / 2.0**16, 0.5, 12**-0.5),
    "coins": (lambda key: key.coins(CHANCES), 0.5, 0.5),
    "bernoulli": (lambda key: key.bernoulli(CHANCES), 0.5, 0.5),
    "signs": (lambda key: key.signs(COUNT), 0, 1),
    "flips": (lambda key: key.flips(COUNT), 0, 1),
    "normal": (lambda key: key.normal(COUNT), 0, 1),
    "gaussian": (lambda key: key.gaussian(COUNT), 0, 1),
    "permutation": (lambda key: key.permutation(COUNT)[: COUNT // 2] / COUNT, 0.5, 12**-0.5),
    "numpy": (lambda key: torch.from_numpy(key.numpy().random(COUNT)), 0.5, 12**-0.5),
}


def test_each_method_of_a_key_either_names_another_key_or_is_tested_as_a_draw() -> None:
    public = {name for name, member in vars(Key).items() if callable(member) and name[0] != "_"}
    assert public == NAMING | DRAWN.keys()


@pytest.mark.parametrize("name", DRAWN)
def test_draws_of_the_operating_system_are_new_each_time_and_have_their_mean(name: str) -> None:
    draw, mean, deviation = DRAWN[name]
    key = FromSystem().noise(0, 0)
    drawn = draw(key).double()
    assert not torch.equal(drawn, draw(key).double())
    assert abs(drawn.mean().item() - mean) < 5 * deviation / len(drawn) ** 0.5


@pytest.mark.parametrize("name", sorted(DRAWN.keys() - {"numpy"}))
def test_draws_are_those_of_a_seeded_key_if_the_operating_system_gives_its_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeded = Key(7)
    streams = iter([seeded, seeded.fold("lower")])  # `bernoulli` takes two

    def urandom(size: int) -> bytes:
        return next(streams).bits(size // 8).numpy().tobytes()

    key = FromSystem().noise(0, 0)
    monkeypatch.setattr(os, "urandom", urandom)
    draw = DRAWN[name][0]
    assert torch.equal(draw(key), draw(seeded))


def test_a_generator_of_numpy_starts_from_128_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 2**bits - 1)
    expected = np.random.Generator(np.random.Philox(2**128 - 1)).integers(2**60)
    assert FromSystem().noise(0, 0).numpy().integers(2**60) == expected


def test_draws_of_a_deployment_have_no_seed_that_two_calls_share() -> None:
    draws = FromSystem()
    for key in (draws.noise(0, 0), draws.central_noise(0), draws.client(0, 0, private=True)):
        derived = (key, key.fold("a", 1), *key.fold("a").branches(["b", "c"]))
        assert all(isinstance(each, SystemKey) and not each.stacked for each in derived)
        assert len({int(each.tensor()) for each in (*derived, *derived)}) == 8
        assert key.public("a").seed != key.public("a").seed
        with pytest.raises(TypeError, match="has no seed"):
            str(key.seed)
        assert repr(key) == "SystemKey()"
        first, second = coins(key.branches(["a", "b"]), [CHANCES, CHANCES])
        assert not torch.equal(first, second)
        assert len(key.bits(0)) == 0
    plain = draws.client(0, 0, private=False)
    assert torch.equal(plain.uniform(4), plain.uniform(4))  # a message repeats what training drew
    assert plain.seed != draws.client(0, 0, private=False).seed


@pytest.mark.parametrize(
    ("protocol", "mechanism", "same"),
    [
        ("fedavg", "none", True),
        ("fedavg", "dp-sgd:z=0.5", False),
        ("fedpm", "none", True),
        ("fedpm", "mask-sampling", False),
        ("fedpm", "mask-gaussian:sigma=0", False),  # the sample of the mask is its only noise
        ("fedpm", "randomized-response:form=affine", False),
        ("signsgd", "none", True),
        ("signsgd", "randomized-response", False),
        ("signsgd", "noisy-sign", False),
        ("skellam:z=0,beta=0", "none", True),
        ("skellam:beta=0", "none", False),  # where a rounding is never repeated
    ],
)
def test_who_knows_every_seed_of_a_client_does_not_know_its_noise(
    protocol: str, mechanism: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "randbits", lambda bits: 5)
    settings = Settings(protocol=protocol, mechanism=mechanism, clients=6, per_round=4, epochs=1)
    network = ConvNet((1, 8, 8), (), (32,), 10)
    server = Server(settings, network)
    server.enrol(0, 10)
    (request,) = server.open([0], 0)
    samples = example.digits(0, 6, 3)
    first, second = (Client(settings, network).train(request, samples, b"")[0] for _ in range(2))
    assert (first.data == second.data) == same
