"""Random crops and flips are torchvision's, the same for every executor, in training only."""

import dataclasses
import importlib
from typing import Any

import pytest
import torch
from scipy.stats import chi2
from torch import Tensor

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.data import archives
from fedbench.data.augmentation import PLACES, AugmentedSteps, CropFlip, crop_flip
from fedbench.data.datasets import Data
from fedbench.executors.factory import executor, question_of
from fedbench.executors.training import Executor, Loop, Schedule
from fedbench.executors.vmap import Stacked
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.evaluation import evaluate
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.probes import inversion
from fedbench.probes.shadows import cosine
from fedbench.probes.systems import ProbeRound
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import begin
from fedbench.testing import NETWORK, assert_rounded_alike, doubled, example_clients, in_float64

SHARED = Shared(NETWORK, 3, torch.device("cpu"))
AUGMENT = CropFlip((-0.75,))
IMAGE = torch.tensor([[1.0, 2.0], [3.0, 4.0]])[None, None]


@pytest.mark.parametrize(
    ("top", "left", "flip", "expected"),
    [
        (4, 4, False, [[1, 2], [3, 4]]),
        (4, 4, True, [[2, 1], [4, 3]]),
        (5, 4, False, [[3, 4], [-1, -1]]),  # the crop is one row lower
        (3, 4, False, [[-1, -1], [1, 2]]),
        (4, 3, False, [[-1, 1], [-1, 3]]),
        (4, 3, True, [[1, -1], [3, -1]]),  # flipped after the crop, not before: [[-1, 2], [-1, 4]]
        (5, 5, False, [[4, -1], [-1, -1]]),
        (2, 4, False, [[-1, -1], [-1, -1]]),
        (0, 8, True, [[-1, -1], [-1, -1]]),
    ],
)
def test_a_crop_of_four_pixels_by_hand(
    top: int, left: int, flip: bool, expected: list[list[int]]
) -> None:
    corner = (torch.tensor([top]), torch.tensor([left]), torch.tensor([flip]))
    assert crop_flip(IMAGE, *corner, [-1.0])[0, 0].tolist() == expected
    colours = crop_flip(torch.cat([IMAGE, 10 * IMAGE], dim=1), *corner, [-1.0, -10.0])
    assert colours[0, 1].tolist() == [[10 * x for x in row] for row in expected]


def pool(*image: int) -> Data:
    x = (Key(1).uniform(12, *image) * 256).to(torch.uint8)
    channels = range(image[0])
    mean = (0.25, 0.5, 0.75)[: len(channels)]
    std = (0.2, 0.3, 0.4)[: len(channels)]
    return Data(x, torch.zeros(12, dtype=torch.int64), 1, 255.0, mean, std)


@pytest.fixture(scope="module")
def vision() -> Any:
    archives.datasets()  # so that the next import works beside any build of torch
    return importlib.import_module("torchvision.transforms.v2.functional")


@pytest.mark.parametrize("image", [(3, 32, 32), (1, 5, 9), (3, 1, 1), (2, 8, 3)])
def test_it_is_what_torchvision_makes_of_the_pixels_before_they_are_normalised(
    image: tuple[int, int, int], vision: Any
) -> None:
    data = pool(*image)
    key = Key(2)
    places = key.integers(2 * 9 * 9, len(data)).tolist()
    changed = []
    for x, place in zip(data.x, places, strict=True):
        flip = place % 2
        top = place // 2 % 9
        left = place // 18
        crop = vision.crop(vision.pad(x, [4, 4, 4, 4], fill=0), top, left, *image[1:])
        changed.append(vision.horizontal_flip(crop) if flip else crop)
    expected = dataclasses.replace(data, x=torch.stack(changed)).floats(torch.arange(12))
    ours = CropFlip(data.black)(data.floats(torch.arange(12)), key)
    assert torch.equal(ours, expected)
    assert len(set(places)) > 6
    assert not torch.equal(ours, data.floats(torch.arange(12)))


def test_black_is_what_a_pixel_of_nought_becomes() -> None:
    data = dataclasses.replace(pool(3, 4, 4), x=torch.zeros(12, 3, 4, 4, dtype=torch.uint8))
    assert data.floats(torch.tensor([0]))[0, :, 0, 0].tolist() == list(data.black)


def test_every_place_is_as_likely_as_every_other_one_and_half_of_the_images_are_flipped() -> None:
    counts = Key(3).integers(162, 162 * 200).bincount(minlength=162).double()
    assert len(counts) == 162
    assert float(((counts - 200) ** 2 / 200).sum()) < chi2(161).ppf(1 - 1e-6)
    x = torch.zeros(1, 1, 9, 9)  # whose middle is in every crop, at another place in each
    x[..., 4, 4] = 1.0
    spots: dict[tuple[int, int], int] = {}
    for image in CropFlip((0.0,))(x.expand(3000, 1, 9, 9), Key(4))[:, 0]:
        row, column = divmod(int(image.argmax()), 9)
        spots[row, column] = spots.get((row, column), 0) + 1
    assert len(spots) == PLACES**2 == 81
    pairs = CropFlip((0.0,))(torch.tensor([1.0, 2.0]).expand(40_000, 1, 1, 2), Key(5))[:, 0, 0]
    for pair in ([1.0, 2.0], [2.0, 1.0]):  # of a crop in place, as it is and flipped
        share = float((pairs == torch.tensor(pair)).all(dim=1).double().mean())
        assert share == pytest.approx(1 / 162, abs=5 * (1 / 162 / 40_000) ** 0.5)


def test_a_draw_depends_on_key_step_and_position_only() -> None:
    x = Key(0).normal(6, 1, 4, 4)
    assert torch.equal(AUGMENT(x, Key(1))[:4], AUGMENT(x[:4], Key(1)))  # padding changes nothing
    assert not torch.equal(AUGMENT(x, Key(1)), AUGMENT(x, Key(2)))
    assert AUGMENT(x[:0], Key(1)).shape == (0, 1, 4, 4)
    y = torch.arange(6)
    steps = AugmentedSteps([(x, y), (x, y), (x, y)], AUGMENT, Key(7))
    first, second, third = (step[0] for step in steps)
    assert torch.equal(first, AUGMENT(x, Key(7).fold("augment", 0)))
    assert not torch.equal(first, second)
    assert torch.equal(steps[-1][0], third)
    assert torch.equal(steps[1][0], second)
    assert len(steps) == 3
    keys = torch.stack([Key(i).tensor() for i in range(3)])
    mapped = torch.vmap(lambda x, seed: AUGMENT(x, Key(seed)))(x.expand(3, *x.shape), keys)
    assert torch.equal(mapped, torch.stack([AUGMENT(x, Key(i)) for i in range(3)]))


def trained(kind: type[Executor], protocol: FedAvg, schedule: Schedule, **options: Any) -> Tensor:
    clients = doubled(example_clients(protocol, SHARED))
    return kind(in_float64(protocol), SHARED, schedule, **options).train(clients)[0]


@pytest.mark.edges("fedavg-True", "fedmrn-False", "byz-dasha-page-True")
@pytest.mark.parametrize("coins", [False, True])
@pytest.mark.parametrize("name", ["fedavg", "fedmrn", "byz-dasha-page"])
def test_all_executors_change_images_alike(name: str, coins: bool) -> None:
    # Clients have 5 to 8 samples and batches of 3: short last batches, and other numbers of steps.
    # No masks here: where an image is black, a filter with zeros answers the same in two places of
    # a pool, and rounding decides which of them gets the gradient.
    protocol = registry.load("protocol", name)
    schedule = Schedule(2, 3, coins)
    loop = trained(Loop, protocol, schedule, augment=AUGMENT)
    assert_rounded_alike(trained(Stacked, protocol, schedule, augment=AUGMENT), loop)
    assert_rounded_alike(trained(Stacked, protocol, schedule, augment=AUGMENT, chunk=2), loop)
    assert not torch.allclose(loop, trained(Loop, protocol, schedule), atol=1e-3)
    assert not torch.allclose(
        loop, trained(Loop, protocol, schedule, augment=CropFlip((0.75,))), atol=1e-3
    )


def test_training_is_sgd_on_changed_images() -> None:
    protocol = in_float64(FedAvg(lr=0.1, momentum=0.5, weight_decay=0.01))
    (client,) = doubled(example_clients(protocol, SHARED, n=1))
    schedule = Schedule(2, 2)
    updates, _ = Loop(protocol, SHARED, schedule, augment=AUGMENT).train([client])

    w = {name: x.clone().requires_grad_() for name, x in client.tree.items()}
    optimizer = torch.optim.SGD(w.values(), lr=0.1, momentum=0.5, weight_decay=0.01)
    for step, rows in enumerate(schedule.rows(len(client.x), client.key)):
        x = AUGMENT(client.x[rows], client.key.fold("augment", step))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(NETWORK.logits(w, x), client.y[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    moved = {name: x.detach() - client.tree[name] for name, x in w.items()}
    assert_rounded_alike(updates[0], SHARED.layout.flatten(moved))


def test_runs_with_and_without_share_no_answer() -> None:
    plain = Stacked(FedAvg(), SHARED, Schedule(1, 4))
    changed = dataclasses.replace(plain, augment=AUGMENT)
    assert question_of(plain, 4) != question_of(changed, 4)
    for name in ("loop", "stacked", "padded"):
        made = executor(name, FedAvg(), SHARED, Schedule(1, 4), augment=AUGMENT)
        assert made.augment == AUGMENT


SMALL: dict[str, Any] = {"model": "micro", "clients": 8, "per_round": 4, "rounds": 1, "epochs": 1}
SMALL |= {"partition": "iid", "malicious": 0.25, "batch_size": 32}


def prepared(augment: str, **fields: Any) -> Setup:
    return prepare(Scenario.of(**SMALL | fields, augment=augment), "cpu", "loop")


def test_what_trains_is_changed_and_what_measures_is_not() -> None:
    plain, changed = (prepared(name, defense="fltrust") for name in ("none", "crop-flip"))
    assert changed.executor.augment == CropFlip(changed.population.data.black)
    assert plain.executor.augment is None
    server = begin(plain).server
    scores = [evaluate(setup, server, 0) for setup in (plain, changed)]
    assert scores[0].loss == scores[1].loss
    key = plain.secret.key("broadcast", 0)
    sent = plain.plugins.protocol.broadcast(plain.shared, server, [0], key)
    roots = [setup.root_message(sent, 0).values() for setup in (plain, changed)]
    assert not torch.equal(*roots)  # the server trains as a client does
    malicious = plain.population.malicious.ids()
    tree = plain.plugins.protocol.receive(plain.shared, sent)
    for i in (malicious[0], 0):
        client = plain.client(i, tree, None, 0)
        updates = [setup.executor.train([client])[0] for setup in (plain, changed)]
        assert not torch.equal(*updates)
    rehearsals = [s.rehearse(server, 0, malicious, False, sent, 4) for s in (plain, changed)]
    assert torch.equal(rehearsals[0].x, rehearsals[1].x)
    one, two = (r.gradients(tree, r.x[:9], r.y[:9], 0) for r in rehearsals)
    assert torch.equal(one, two)


def test_who_tries_out_examples_does_not_change_them() -> None:
    plain, changed = (prepared(name) for name in ("none", "crop-flip"))
    protocol = plain.plugins.protocol
    shared = plain.shared
    down = protocol.broadcast(shared, begin(plain).server, [0], Key(1))
    rows = plain.population.train[0][:6]
    x = plain.population.data.floats(rows)
    y = plain.population.data.y[rows]
    client = plain.client(0, protocol.receive(shared, down), None, 0)
    updates, memory = plain.executor.train([client])
    heard = ProbeRound(down, protocol.message(shared, updates, [client.key], memory)[0])
    cosines = [cosine(setup, heard, x, y, Key(2)) for setup in (plain, changed)]
    assert cosines[0] is not None
    assert cosines[1] is not None
    assert torch.equal(cosines[0], cosines[1])


def test_an_inversion_compares_with_images_as_they_are() -> None:
    scenario = Scenario.of(**SMALL, augment="crop-flip")
    with pytest.raises(ConfigError, match="--augment must be none for an inversion, got 'crop-f"):
        inversion.probe(scenario, ["fedavg"], ["none"], [0], 1)


def test_the_scenario_says_it_where_it_is_not_the_default() -> None:
    assert "augment" not in Scenario().model_dump()
    scenario = Scenario(augment="crop-flip", split="published")
    assert scenario.model_dump()["augment"] == "crop-flip"
    assert scenario.remarks == ["split published", "augment crop-flip"]
    assert resolve(Scenario()).id() != resolve(Scenario(augment="crop-flip")).id()
