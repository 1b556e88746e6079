"""Learning rates that fall from round to round and from epoch to epoch, as torch's do."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR

import fedbench
from fedbench import Scenario
from fedbench.api import Batches, LocalStep, Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.training import Client, Executor, Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.experiment.prepare import prepare
from fedbench.protocols.fedavg import FedAvg
from fedbench.protocols.fsl import FSL
from fedbench.protocols.priors import FedLaplace
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

SHARED = Shared(NETWORK, 3, torch.device("cpu"))
SCHEDULE = Schedule(3, 4)  # clients of 5 to 8 samples: two steps an epoch
FALLING = FedAvg(lr=0.4, momentum=0.5, weight_decay=0.01, decay=0.7, anneal="cosine")
SMALL = {"model": "micro", "clients": 4, "per_round": 2, "malicious": 0.0, "epochs": 1}


def clients_of(protocol: FedAvg, rounds: Sequence[int]) -> list[Client]:
    clients = doubled(example_clients(protocol, SHARED, len(rounds)))
    numbered = zip(clients, rounds, strict=True)
    return [dataclasses.replace(client, round=number) for client, number in numbered]


def of_torch(client: Client, protocol: FedAvg) -> Tensor:
    """The update with torch's SGD and both of its schedules, as FSL's public code has them."""
    w = {name: x.clone().requires_grad_() for name, x in client.tree.items()}
    unused = torch.optim.SGD(w.values(), lr=protocol.lr)
    rounds = ExponentialLR(unused, protocol.decay)
    for _ in range(client.round):
        unused.step()
        rounds.step()
    optimizer = torch.optim.SGD(
        w.values(),
        lr=rounds.get_last_lr()[0],
        momentum=protocol.momentum,
        weight_decay=protocol.weight_decay,
    )
    epochs = CosineAnnealingLR(optimizer, T_max=SCHEDULE.epochs)
    steps = SCHEDULE.rows(len(client.x), client.key)
    for step, rows in enumerate(steps, start=1):
        optimizer.zero_grad()
        logits = NETWORK.logits(w, client.x[rows])
        torch.nn.functional.cross_entropy(logits, client.y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if protocol.anneal == "cosine" and step % (len(steps) // SCHEDULE.epochs) == 0:
            epochs.step()
    return SHARED.layout.flatten({n: x.detach() - client.tree[n] for n, x in w.items()})


@pytest.mark.parametrize("kind", [Loop, Stacked])
@pytest.mark.parametrize("fields", [{}, {"anneal": "none"}, {"decay": 1.0}], ids=str)
def test_every_client_trains_as_torch_does_in_its_round(
    kind: type[Executor], fields: dict[str, object]
) -> None:
    protocol = in_float64(dataclasses.replace(FALLING, **fields))  # type: ignore[arg-type]
    clients = clients_of(protocol, [0, 1, 5, 2])
    updates, _ = kind(protocol, SHARED, SCHEDULE).train(clients)
    expected = torch.stack([of_torch(client, protocol) for client in clients])
    assert_rounded_alike(updates, expected)


def rates(protocol: FSL, batches: Batches) -> list[float]:
    """Rates of all steps, of a client that knows their number and of one in lock step."""
    x = torch.zeros(1)
    many = len(batches)
    alone, beside = (
        [float(protocol.rate(batches, LocalStep(x, x, Key(0), i, of))) for i in range(many)]
        for of in (many, torch.tensor(many))
    )
    assert beside == pytest.approx(alone, rel=1e-12)
    return alone


def test_the_rate_is_that_of_frl_step_by_step() -> None:
    # Rate 0.4 * 0.5**2 = 0.1 in the third round; epochs of two steps at 1, 3/4, 1/4 of it.
    steps = [(torch.zeros(1), torch.zeros(1))] * 6
    protocol = FSL(lr=0.4, decay=0.5, anneal="cosine")
    assert rates(protocol, Batches(steps, torch.tensor(2), 3)) == pytest.approx(
        [0.1, 0.1, 0.075, 0.075, 0.025, 0.025], rel=1e-12
    )
    assert rates(FSL(), Batches(steps, torch.tensor(2), 3)) == [0.4] * 6


def test_a_proximal_step_is_as_long_as_the_rate() -> None:
    # Rates 0.2 and 0.1. The first step goes 0.2 up and shrinks by 0.02, the second by 0.01 alone.
    start = {"fc1": torch.zeros(2, 1, dtype=torch.float64)}
    pushes = iter([-1.0, 0.0])

    def grad(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {"fc1": torch.full_like(tree["fc1"], next(pushes))}

    protocol = FedLaplace(lr=0.4, momentum=0, weight_decay=0, lam=0.1, decay=0.5, anneal="cosine")
    batches = Batches([(torch.zeros(1), torch.zeros(1))] * 2, torch.tensor(1), 2)
    update, _ = protocol.local_update(start, batches, grad, Key(0), {})
    assert update["fc1"].flatten().tolist() == pytest.approx([0.17] * 2, rel=1e-12)


@pytest.mark.parametrize("text", ["fedavg", "fedprox", "fedlaplace", "fedmrn", "fsl", "fedmog"])
def test_other_protocols_decay_too_and_alike_in_both_executors(text: str) -> None:
    protocol = in_float64(registry.load("protocol", f"{text}:decay=0.5,anneal=cosine"))
    clients = clients_of(protocol, [0, 1, 3])
    loop, _ = Loop(protocol, SHARED, SCHEDULE).train(clients)
    stacked, _ = Stacked(protocol, SHARED, SCHEDULE).train(clients)
    assert_rounded_alike(stacked, loop)
    steady, _ = Loop(dataclasses.replace(protocol, decay=1.0), SHARED, SCHEDULE).train(clients)
    assert torch.equal(loop[0], steady[0])
    assert not torch.allclose(loop[2], steady[2])


def test_a_run_counts_its_rounds_for_clients_and_for_the_root() -> None:
    falls = "fedavg:lr=0.1,decay=1e-30"  # from the second round on nothing moves
    scenario = Scenario.of(protocol=falls, rounds=3, eval_every=1, **SMALL)
    first, second, third = (r.loss for r in fedbench.play(scenario, device="cpu").rounds)
    assert second == third == first
    setup = prepare(Scenario.of(protocol=falls, defense="fltrust", rounds=3, **SMALL))
    protocol = setup.plugins.protocol
    sent = protocol.broadcast(setup.shared, protocol.init(setup.shared), [0], Key(0))
    moves = [float(setup.root_message(sent, step).values().abs().max()) for step in (0, 1)]
    assert moves[0] > 0 == moves[1]
