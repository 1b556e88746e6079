"""Faults of public code on poisoned data and backdoors, each as a test that would see it here."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import OwnedRows, train
from fedbench.api import AttackView, Gradient, Local, Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key, Secret
from fedbench.core.trees import Tree
from fedbench.executors.training import Loop, Schedule
from fedbench.experiment.evaluation import backdoor_success
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import play_round
from fedbench.testing import NETWORK, example_clients
from fedbench_attacks.model_replacement import ModelReplacement
from fedbench_attacks.neurotoxin import Neurotoxin

SHARED = Shared(NETWORK, 3, torch.device("cpu"))
OWNED = OwnedRows(torch.tensor([0, 1]), [0, 1], [0, 1], 2, Secret.of(0, "test"))
SMALL = Scenario(clients=20, per_round=6, rounds=2, epochs=1, eval_every=1, malicious=0.4)
TRAINED = ("label-flip", "pixel", "dba", "model-replacement", "neurotoxin", "edge-case:tail=1")


def constant(gradient: Tree) -> Gradient:
    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return gradient

    return Gradient(grad, grad, 1)


def pulled(attack: Any, tree: Tree, start: Tree, gradient: Tree, before: Tree | None) -> Tree:
    local = Local(start, before, 0, 1, 1, Key(0), 3)
    nothing = torch.zeros(0)
    out: Tree = attack.wrap_grad(constant(gradient), local)(tree, nothing, nothing, Key(0))
    return out


@pytest.mark.parametrize("attack", TRAINED)
def test_d4_d13_poisoned_training_acts_on_updates_and_never_on_weights(attack: str) -> None:
    # Weights instead of their move would be as long as the model; the honest mean moves nothing.
    setup = setup_of(attack)
    weights = float(setup.plugins.protocol.init(setup.shared).norm())
    seen: list[AttackView] = []

    @dataclasses.dataclass(frozen=True)
    class Watched(type(setup.plugins.attack)):  # type: ignore[misc]
        def craft(self, view: AttackView, memory: Any) -> Any:
            seen.append(view)
            return super().craft(view, memory)

    plugins = dataclasses.replace(setup.plugins, attack=Watched(**vars(setup.plugins.attack)))
    state = RunState(setup.plugins.protocol.init(setup.shared))
    first = play_round(dataclasses.replace(setup, plugins=plugins), state, 0)
    assert first.gain_mean is not None
    assert first.gain_mean > 1e-3
    moved = torch.cat([view.trained - view.updates for view in seen])
    assert float(moved.norm(dim=1).max()) > 1e-3  # who has no source image trains honestly
    assert float(torch.cat([view.trained for view in seen]).norm(dim=1).max()) < 0.5 * weights


def test_d5_the_masked_coordinates_are_the_largest_in_absolute_value() -> None:
    # Moves -9, 1, -2, 8 and 0.5: of five the share 0.4 are -9 and 8; the signed ones 8 and 1.
    before = {"a": torch.zeros(2, 2), "b": torch.zeros(1)}
    tree = {"a": torch.tensor([[-9.0, 1.0], [-2.0, 8.0]]), "b": torch.tensor([0.5])}
    ones = {name: torch.ones_like(x) for name, x in tree.items()}
    masked = pulled(Neurotoxin(ratio=0.4), tree, tree, ones, before)
    assert masked["a"].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    assert masked["b"].tolist() == [1.0]
    assert pulled(Neurotoxin(ratio=0.4), tree, tree, ones, None) == ones, "the first round"
    still = pulled(Neurotoxin(ratio=0.4), tree, tree, ones, tree)
    assert all(bool((x == 1).all()) for x in still.values()), "who did not move is not masked"


def test_d5_a_masked_coordinate_stays_where_it_was() -> None:
    protocol = FedAvg(weight_decay=0.0)
    clients = example_clients(protocol, SHARED)
    executor = Loop(protocol, SHARED, Schedule(2, 4))
    honest, _ = executor.train(clients)
    start = clients[0].tree
    before = {name: x - 1.0 if name == "fc1" else x - 0.1 for name, x in start.items()}
    share = start["fc1"].numel() / SHARED.layout.d
    attack = Neurotoxin(ratio=share)
    moved = train(attack, executor, clients, honest, OWNED, before, 1)
    by_layer = SHARED.layout.unflatten(moved)
    assert float(by_layer["fc1"].abs().max()) == 0
    assert float(by_layer["conv1"].abs().max()) > 0


def test_d6_the_anomaly_term_has_a_gradient_and_holds_training_back() -> None:
    # alpha g + 2 (1 - alpha) (w - w0) = 0.25 * 4 + 2 * 0.75 * (3 - 1) = 4; inert it would be 1.
    start, tree = {"a": torch.tensor([1.0])}, {"a": torch.tensor([3.0])}
    got = pulled(ModelReplacement(alpha=0.25), tree, start, {"a": torch.tensor([4.0])}, None)
    assert got["a"].item() == 4.0
    # It is the gradient of the loss in the docstring.
    w = torch.tensor([3.0], requires_grad=True)
    loss = 0.25 * 4 * w + 0.75 * (w - 1.0).square()
    loss.sum().backward()  # type: ignore[no-untyped-call]
    assert w.grad is not None
    assert got["a"].item() == w.grad.item()
    with_statistics = {"n.mean": torch.tensor([4.0])}
    moved = {"n.mean": torch.tensor([3.0])}
    moved_statistic = pulled(
        ModelReplacement(alpha=0.25), moved, {"n.mean": w}, with_statistics, None
    )
    assert moved_statistic["n.mean"].item() == 4.0, "a running statistic has no gradient"
    protocol = FedAvg(lr=0.05)
    clients = example_clients(protocol, SHARED)
    executor = Loop(protocol, SHARED, Schedule(3, 4))
    honest, _ = executor.train(clients)
    norms = []
    for alpha in (1.0, 0.5, 0.05):
        attack = ModelReplacement(alpha=alpha)
        out = train(attack, executor, clients, honest, OWNED, None, 0)
        norms.append(float(out.norm()))
    assert norms[0] > norms[1] > norms[2]


@pytest.mark.parametrize("name", [name.partition(":")[0] for name in TRAINED])
def test_d6_an_unknown_parameter_is_refused_and_not_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match="has no parameter 'poisoning_ratio'"):
        registry.load("attack", f"{name}:poisoning_ratio=0.5")


def setup_of(attack: str) -> Setup:
    return prepare(SMALL.model_copy(update={"attack": attack}), "cpu")


@pytest.mark.parametrize("attack", ["pixel", "dba", "model-replacement:target=3", "neurotoxin"])
def test_d22_the_target_class_is_not_counted_and_every_image_is_stamped(attack: str) -> None:
    setup = setup_of(attack)
    rows = torch.cat(
        [part for i, part in enumerate(setup.population.test) if not setup.population.malicious[i]]
    )
    x, y = setup.population.data.floats(rows), setup.population.data.y[rows]
    plugin = setup.plugins.attack
    images, target = plugin.trigger(x.clone(), y.clone())
    assert len(images) == int((y != target).sum()) < len(y)
    size = plugin.size
    white = (1 - setup.population.data.mean[0]) / setup.population.data.std[0]
    corner = images[:, :, -size:, -size:]
    torch.testing.assert_close(corner, torch.full_like(corner, white))
    model = setup.plugins.protocol.model(setup.shared, always(setup, target), Key(0))
    assert backdoor_success(setup, model, rows) == 1.0
    other = setup.plugins.protocol.model(setup.shared, always(setup, (target + 1) % 10), Key(0))
    assert backdoor_success(setup, other, rows) == 0.0  # images of the target class would count


def always(setup: Setup, label: int) -> Tensor:
    """Weights that answer every image with a label: the last layer reads what is positive."""
    shared = setup.shared
    tree = {name: torch.zeros(shape) for name, shape in shared.network.shapes.items()}
    last = list(tree)[-1]
    for name, x in tree.items():
        if name != last:
            x.fill_(0.05)
    tree[last][label] = 1.0
    return shared.layout.flatten(tree)


def test_d22_test_images_are_of_no_client_s_training_data() -> None:
    setup = setup_of("pixel")
    trained = set(torch.cat(setup.population.train).tolist())
    held = torch.cat(setup.population.test).tolist()
    assert held
    assert not trained & set(held)
    assert not trained & set(torch.cat(setup.population.validation).tolist())


def test_d14_stamping_training_images_leaves_the_test_images_of_the_pool_alone() -> None:
    # There is one pool of bytes and no transform on it: normalised copies are made per use, and
    # an attack is given copies.
    setup = setup_of("pixel:rho=1")
    before, digest = setup.population.data.x.clone(), setup.population.data.digest
    fedbench.play(setup.scenario, device="cpu", data=setup.population.data)
    assert torch.equal(setup.population.data.x, before)
    assert dataclasses.replace(setup.population.data).digest == digest
    one, two = (setup.population.data.floats(setup.population.test[0]) for _ in range(2))
    one.zero_()
    assert float(two.abs().max()) > 0
