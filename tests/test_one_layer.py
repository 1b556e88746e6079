"""Networks of which only the last layer is trained: gradients of features, and every attack."""

import dataclasses
import math
from functools import partial

import pytest
import torch
from torch import nn

import fedbench
from fedbench import Scenario
from fedbench.api import Local, Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.executors.training import Loop, Schedule
from fedbench.executors.vmap import Padded, Stacked
from fedbench.models.models import Logistic
from fedbench.models.modules import ModuleModel
from fedbench.payload import FloatVectors
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import assert_rounded_alike, doubled, example_clients
from fedbench_attacks.chameleon import Chameleon, contrast

IMAGE = (1, 4, 4)
NORMALISED = nn.Sequential(nn.BatchNorm2d(1, affine=False), nn.Flatten(), nn.Linear(16, 3))
NETWORKS = {
    "logistic": Logistic().build(IMAGE, 3),
    "normalised": ModuleModel(module=NORMALISED).build(IMAGE, 3),
}
STATISTICS = {"logistic": set(), "normalised": {"0.running_mean", "0.running_var"}}
# In the second round an attack uses what it has learned and remembered in the first.
SMALL = Scenario(
    model="logistic", partition="iid", clients=10, per_round=5, rounds=2, epochs=1, malicious=0.4
)


def shared_with(name: str) -> Shared:
    return Shared(NETWORKS[name], 3, torch.device("cpu"))


@pytest.mark.parametrize("name", NETWORKS)
def test_features_of_no_trained_layer_move_running_statistics_alone(name: str) -> None:
    protocol = FedAvg()
    client = doubled(example_clients(protocol, shared_with(name)))[0]
    loop = Loop(protocol, shared_with(name), Schedule(1, len(client.x)))
    gradient = loop.gradient(loop._grad, loop._grad, {})
    given = client.tree, client.x, client.y, Key(5)
    bent = partial(contrast, temperature=0.5, target=1, weight=2.0)
    got = gradient.of(bent)(*given)
    plain = gradient(*given)
    assert list(got) == list(client.tree)
    assert {leaf for leaf, x in got.items() if x.any()} == STATISTICS[name]
    for leaf in STATISTICS[name]:
        assert torch.equal(got[leaf], plain[leaf])


@pytest.mark.parametrize("name", NETWORKS)
def test_chameleon_trains_the_only_layer_alike_in_all_executors(name: str) -> None:
    # Without momentum and decay the half of the steps that adapts features moves no weight.
    protocol = FedAvg(lr=0.05, momentum=0.0, weight_decay=0.0)
    shared = shared_with(name)
    clients = doubled(example_clients(protocol, shared))
    head = shared.network.head_names
    local = Local({}, None, 0, 1, 0, Key(0), 3, steps=4, head=head)
    local = dataclasses.replace(local, statistics=shared.network.statistics)
    wrap = partial(Chameleon(share=0.5).wrap_grad, local=local)
    ours = [dataclasses.replace(client, wrap_grad=wrap) for client in clients]
    schedule = Schedule(2, 4)
    updates = Loop(protocol, shared, schedule).train(ours)[0]
    honest = Loop(protocol, shared, schedule).train(clients)[0]
    assert float(updates.norm()) > 0.1 * float(honest.norm()), "the last layer is trained"
    assert float((updates - honest).norm()) > 0.1 * float(honest.norm())
    for executor in (Stacked, Padded):
        assert_rounded_alike(updates, executor(protocol, shared, schedule).train(ours)[0])


SHORTER = {"a3fl": "a3fl:steps=3,renew=2", "iba": "iba:epochs=2"}  # what trains triggers
ATTACKS = [
    name
    for name in registry.names("attack")
    if issubclass(FloatVectors, registry.plugin("attack", name).accepts)
]


@pytest.mark.parametrize("executor", ["loop", pytest.param("stacked", marks=pytest.mark.slow)])
@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_on_fedavg_plays_on_logistic_regression(attack: str, executor: str) -> None:
    fields = {"attack": SHORTER.get(attack, attack), "cohorts": "stratified"}
    scenario = SMALL.model_copy(update=fields)
    record = fedbench.play(scenario, device="cpu", executor=executor)
    for played in record.rounds:
        assert played.malicious == 2
        assert played.rejected_honest == 0
        assert played.rejected_malicious == (2 if attack == "malformed" else 0)
        assert not played.skipped
    assert math.isfinite(record.result.accuracy)
