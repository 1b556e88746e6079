"""Attacks in real space that do not search: numbers worked by hand, and what they achieve."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import AttackContext, attack_view
from fedbench.api import Attack, AttackView, Gradient, Knowledge, Local
from fedbench.core.rng import Key
from fedbench.experiment.scenario import Scenario
from fedbench.payload import BinaryMasks, FloatVectors, Payload
from fedbench.testing import example_context
from fedbench_attacks.alie import ALIE, largest_z
from fedbench_attacks.free_rider import FreeRider
from fedbench_attacks.ipm import IPM
from fedbench_attacks.mimic import Mimic
from fedbench_attacks.min_max import MinMax, MinSum
from fedbench_attacks.noise import NoiseAttack
from fedbench_attacks.pga import PGA
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.mean import Mean

M = 2
OWN = [[100.0], [-40.0]]  # of the colluders as if honest: nothing below may depend on them


def context(*benign: list[float], own: list[list[float]] | None = None) -> AttackContext:
    x = torch.tensor([*(own or OWN), *benign])
    return example_context(FloatVectors(x), Mean(), range(M))


def sent(attack: Attack, here: AttackContext, memory: Any = None) -> tuple[AttackView, Tensor]:
    view = attack_view(attack, here)
    message, _ = attack.craft(view, memory)
    assert isinstance(message, Payload)
    return view, message.values()


def honest(seed: int = 0, n: int = 9, d: int = 40) -> AttackContext:
    key = Key(seed)
    x = key.normal(n, d) * (key.fold("scale").uniform(n)[:, None] * 4 + 0.2)
    return example_context(FloatVectors(x + key.fold("mean").normal(d)), Mean(), range(M))


def test_ipm_sends_minus_eps_times_the_benign_mean_and_mirrors_masks() -> None:
    here = context([1.0], [2.0], [6.0])
    assert sent(IPM(), here)[1].tolist() == [[-1.5], [-1.5]]  # -0.5 * 3
    assert sent(IPM(eps=100), here)[1].tolist() == [[-300.0], [-300.0]]
    assert sent(IPM(knows="colluders"), here)[1].tolist() == [[-15.0], [-15.0]]  # -0.5 * 30
    # A mean of 3/4 becomes 1/2 - 1/2 * 1/4 = 3/8, which is no longer a one; 1/4 becomes 5/8.
    bits = torch.tensor([[1, 0]] * M + [[1, 0], [1, 0], [1, 1], [0, 0]]).bool()
    payload = BinaryMasks(bits, torch.zeros(6, 0))
    _, values = sent(IPM(via="wire"), example_context(payload, Mean(), range(M)))
    assert values.tolist() == [[0.0, 1.0]] * M


def test_ipm_turns_a_plain_mean_as_soon_as_eps_outnumbers_the_benign() -> None:
    here = honest()
    mean = here.honest.values()[M:].mean(dim=0)
    for eps, sign in ((3.4, 1), (3.6, -1)):  # (n - m) / m = 3.5
        _, rows = sent(IPM(eps=eps), here)
        aggregate = torch.cat([rows, here.honest.values()[M:]]).mean(dim=0)
        assert math.copysign(1, float(aggregate @ mean)) == sign


def test_sign_flip_of_the_mean_is_that_and_reads_what_it_needs() -> None:
    here = context([1.0], [2.0], [6.0])
    assert sent(SignFlip(of="mean", scale=2.0), here)[1].tolist() == [[-6.0], [-6.0]]
    assert sent(SignFlip(of="mean", knows="colluders"), here)[1].tolist() == [[-30.0]] * 2
    assert sent(SignFlip(scale=2.0), here)[1].tolist() == [[-200.0], [80.0]]
    assert SignFlip().needs() == Knowledge()
    assert SignFlip(of="mean").needs() == Knowledge("all")


def test_alie_sends_the_mean_minus_the_z_of_its_paper_with_ddof_1() -> None:
    # n = 5, m = 2: s = floor(3.5) - 2 = 1, so z = Phi^-1(2 / 3) = 0.430727.
    assert largest_z(5, 2) == pytest.approx(0.430727, abs=1e-6)
    assert largest_z(50, 24) == pytest.approx(1.426077, abs=1e-6)  # s = 26 - 24, Phi^-1(24 / 26)
    assert largest_z(10, 1) < 0  # s = 5 of 9: fewer than half of the benign are left
    assert largest_z(5, 3) == 4.0  # the adversary is a majority: s = 0
    assert largest_z(2, 1) == -4.0
    assert largest_z(4, 4) == 0.0
    # mean 3, std sqrt((4 + 1 + 9) / 2) = 2.645751; with ddof 0 it would be 2.160247.
    view, rows = sent(ALIE(), context([1.0], [2.0], [6.0]))
    assert rows[:, 0].tolist() == pytest.approx([3 - 0.430727 * 2.645751] * 2, abs=1e-5)
    assert view.notes["z"] == pytest.approx(0.430727, abs=1e-6)
    assert sent(ALIE(z=2.0), context([1.0], [2.0], [6.0]))[1][0].item() == pytest.approx(
        3 - 2 * 2.645751, abs=1e-5
    )


def test_min_max_goes_to_the_farther_end_of_the_longest_distance_or_stays() -> None:
    # mean 2, std sqrt(7); the longest distance is 5, and 5 below the row at 5 is 0.
    view, rows = sent(MinMax(), context([0.0], [1.0], [5.0]))
    assert rows[:, 0].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert view.notes["gamma"] == pytest.approx(2 / math.sqrt(7))
    for attack in (MinMax(), MinSum(), MinMax(direction="sign")):
        assert sent(attack, context([3.0], [3.0]))[1].tolist() == [[3.0], [3.0]]


@pytest.mark.parametrize(("bound", "expected"), [("max", -1.0), ("min", 1.0)])
def test_min_sum_in_one_dimension(bound: Any, expected: float) -> None:
    # Sums of squared distances: 26, 17, 41. Of v they are 3 (v - 2)^2 + 14: v = -1 or 1.
    _, rows = sent(MinSum(bound=bound), context([0.0], [1.0], [5.0]))
    assert rows[:, 0].tolist() == pytest.approx([expected] * 2, abs=1e-6)


@pytest.mark.parametrize("direction", ["std", "sign", "unit"])
@pytest.mark.parametrize("seed", range(4))
def test_min_max_and_min_sum_sit_exactly_on_their_bounds(direction: Any, seed: int) -> None:
    here = honest(seed)
    benign = here.honest.values()[M:].double()
    between = squared_distances(benign)
    for attack, reached, bound in (
        (MinMax(direction=direction), torch.amax, between.max()),
        (MinSum(direction=direction), torch.sum, between.sum(dim=1).max()),
        (MinSum(direction=direction, bound="min"), torch.sum, between.sum(dim=1).min()),
    ):
        view, rows = sent(attack, here)
        squared = (rows[0].double() - benign).square().sum(dim=1)
        assert float(reached(squared, dim=0)) == pytest.approx(float(bound), rel=1e-5)
        assert view.notes["bound"] == "met"
        mean = benign.mean(dim=0)
        assert isinstance(view.notes["gamma"], float)
        assert view.notes["gamma"] > 0
        assert float((rows[0].double() - mean) @ mean) < 0 or direction == "std"


def test_noise_is_as_long_as_what_was_learned_times_scale() -> None:
    d = 20_000
    x = torch.cat([torch.full((1, d), 2.0), torch.full((1, d), -7.0), torch.ones(1, d)])
    here = example_context(FloatVectors(x), Mean(), range(M))
    view, rows = sent(NoiseAttack(scale=3.0), here)
    assert rows.std(dim=1).tolist() == pytest.approx([6.0, 21.0], rel=0.03)
    assert rows.mean(dim=1).tolist() == pytest.approx([0.0, 0.0], abs=0.5)
    added = sent(NoiseAttack(scale=3.0, add=True), here)[1]
    torch.testing.assert_close(added, rows + x[:M])
    assert abs(float(torch.corrcoef(rows)[0, 1])) < 0.05
    assert NoiseAttack().needs() == Knowledge()
    assert view.notes == {}
    # Of an update 0.5 + 0.1, where 0.5 is what was received, 0.1 was learned.
    here = example_context(FloatVectors(torch.full((3, 20_000), 0.6)), Mean(), range(M))
    here = dataclasses.replace(here, idle=torch.full((3, 20_000), 0.5))
    rows = sent(NoiseAttack(), here)[1]
    assert rows.std(dim=1).tolist() == pytest.approx([0.1, 0.1], rel=0.03)
    assert rows.mean(dim=1).tolist() == pytest.approx([0.5, 0.5], abs=0.01)


def test_mimic_learns_by_oja_s_rule() -> None:
    # mu = ((0, 0) + (2, 1)) / 2; the rows are (1, 1.5) and (1, -0.5) from it, along z = (0, 1)
    # 1.5 and -0.5, so v = (1, 2.5), of length sqrt(7.25), and z is proportional to
    # (0, 1) + v / 2.692582 = (0.371391, 1.928477).
    here = context([2.0, 2.0], [2.0, 0.0], own=[[9.0, 9.0]] * 2)
    memory = (1, torch.zeros(2), torch.tensor([0.0, 1.0]))
    attack = Mimic(warmup=2)
    message, (t, mu, z) = attack.craft(attack_view(attack, here), memory)
    assert t == 2
    assert mu.tolist() == [1.0, 0.5]
    assert z.tolist() == pytest.approx([0.189110, 0.981956], abs=1e-5)
    assert memory[0] == 1
    assert memory[2].tolist() == [0.0, 1.0]
    assert message.values().tolist() == [[2.0, 2.0]] * 2
    _, after = attack.craft(attack_view(attack, here), (t, mu, z))
    assert after[0] == 2
    assert torch.equal(after[2], z)  # the warm-up is over


def test_mimic_finds_the_direction_in_which_clients_differ_and_stays_on_one_side() -> None:
    attack, memory, d = Mimic(warmup=20), None, 30
    signs = []
    for step in range(25):
        x = Key(step).normal(12, d)
        x[:, 0] += torch.tensor([6.0, -6.0]).repeat(6)
        view = attack_view(attack, example_context(FloatVectors(x), Mean(), range(M)))
        message, memory = attack.craft(view, memory)
        row = message.values()[0]
        assert any(torch.equal(row, benign) for benign in x[M:])
        signs.append(float(row[0].sign()))
    assert memory is not None
    assert abs(float(memory[2][0])) > 0.95
    assert len(set(signs[5:])) == 1


def learned(trained: Tensor, updates: Tensor, idle: Tensor) -> AttackContext:
    here = example_context(FloatVectors(updates), Mean(), range(M))
    return dataclasses.replace(here, trained=trained, idle=idle)


def test_pga_is_the_ascent_as_long_as_honest_updates_or_their_opposite() -> None:
    # Honest updates are (3, 4) and (0, 1) from (1, 1): tau = 3. The ascents (0, -2) and (6, 8).
    updates = torch.tensor([[4.0, 5.0], [1.0, 2.0], [1.0, 11.0]])
    here = learned(torch.tensor([[1.0, -1.0], [7.0, 9.0]]), updates, torch.ones(3, 2))
    view, rows = sent(PGA(), here)
    torch.testing.assert_close(rows, torch.tensor([[1.0, -2.0], [2.8, 3.4]]))
    assert view.notes["tau"] == pytest.approx(3.0)
    # The benign message is 10 from there, and none of its business.
    _, rows = sent(PGA(scale=0.5), here)
    torch.testing.assert_close(rows, torch.tensor([[1.0, -0.5], [1.9, 2.2]]))
    updates = torch.tensor([[3.0, 4.0], [0.0, 5.0], [1.0, 1.0]])
    here = learned(torch.tensor([[math.nan, 1.0], [2.0, 0.0]]), updates, torch.zeros(3, 2))
    view, rows = sent(PGA(), here)
    torch.testing.assert_close(rows, torch.tensor([[-3.0, -4.0], [5.0, 0.0]]))
    assert view.notes["diverged"] == 1


def test_pga_ascends_weights_and_leaves_statistics_alone() -> None:
    def grad(tree: Any, x: Tensor, y: Tensor, key: Key) -> Any:
        return {"fc.weight": torch.ones(1), "norm1.mean": torch.ones(1)}

    local = Local({}, None, 0, 1, 0, Key(0), classes=2)
    ascent = PGA().wrap_grad(Gradient(grad, grad, 1), local)
    gradient = ascent({}, torch.zeros(1), torch.zeros(1), Key(0))
    assert {name: x.item() for name, x in gradient.items()} == {"fc.weight": -1, "norm1.mean": 1}


def test_pga_in_a_run_points_away_from_what_honest_clients_learn() -> None:
    scenario = Scenario(clients=8, per_round=8, rounds=1, epochs=1, malicious=0.25, attack="pga")
    (r,) = fedbench.play(scenario, device="cpu").rounds
    assert r.malicious == 2
    assert r.gain_mean is not None
    assert 0.1 < r.gain_mean < 1.5  # two of eight rows, about as long as the others
    assert r.notes["diverged"] == 0


def test_a_free_rider_sends_nothing_learned_or_replays_the_last_global_update() -> None:
    here = learned(torch.zeros(2, 2), torch.ones(3, 2), torch.full((3, 2), 0.25))
    assert sent(FreeRider(), here)[1].tolist() == [[0.25, 0.25]] * 2
    attack, memory, rows = FreeRider(kind="replay"), None, []
    here = learned(torch.zeros(2, 2), torch.ones(3, 2), torch.zeros(3, 2))
    for weights in ([[5.0, 7.0]], [[6.0, 5.0]], [[6.0, 4.0]]):
        down = dataclasses.replace(here.view, broadcast=FloatVectors(torch.tensor(weights)))
        view = attack_view(attack, dataclasses.replace(here, view=down), [0])
        message, memory = attack.craft(view, memory)
        rows.append(message.values()[0].tolist())
    assert rows == [[0.0, 0.0], [1.0, -2.0], [0.0, -1.0]]
    attack, memory, rows = FreeRider(kind="replay"), None, []
    for score in (1.0, 4.0):
        idle = torch.tensor([[score, 1.0]]).expand(3, -1)
        view = attack_view(attack, learned(torch.zeros(2, 2), torch.ones(3, 2), idle), [0])
        message, memory = attack.craft(view, memory)
        rows.append(message.values()[0].tolist())
    assert rows == [[1.0, 1.0], [7.0, 1.0]]


@pytest.mark.parametrize(
    ("weak", "strong"),
    [
        (IPM(eps=0.1), IPM(eps=2.0)),
        (ALIE(z=0.3), ALIE(z=1.5)),
        (MinSum(bound="min"), MinSum(bound="max")),
        (SignFlip(of="mean"), SignFlip(of="mean", scale=3.0)),
        (PGA(), PGA(scale=4.0)),
        (NoiseAttack(), NoiseAttack(scale=4.0)),
    ],
)
def test_more_budget_moves_a_plain_mean_farther(weak: Attack, strong: Attack) -> None:
    here = honest()
    benign = here.honest.values()[M:]
    mean = benign.mean(dim=0)
    moved = [
        float((torch.cat([sent(attack, here)[1], benign]).mean(dim=0) - mean).norm())
        for attack in (weak, strong)
    ]
    assert 1e-3 < moved[0] < moved[1]
