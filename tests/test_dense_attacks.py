"""Attacks in real space: numbers worked by hand, what they achieve, and traps of other code.

Numbers D are those of the errata; attacks that search have tests of their own.
"""

import dataclasses
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from crafting import M, crafted, round_of, rows, sent
from torch import Tensor

import fedbench
from fedbench.adversary.threat_model import AttackContext, attack_view
from fedbench.api import AttackView, Gradient, Knowledge, Local, ServerView
from fedbench.core import registry
from fedbench.core.rng import Key, Secret
from fedbench.experiment.scenario import Scenario
from fedbench.payload import BinaryMasks, FloatVectors, Payload, SignBits
from fedbench_attacks.alie import ALIE, largest_z
from fedbench_attacks.free_rider import FreeRider
from fedbench_attacks.ipm import IPM
from fedbench_attacks.mimic import Mimic
from fedbench_attacks.min_max import MinMax, MinSum
from fedbench_attacks.noise import NoiseAttack
from fedbench_attacks.pga import PGA
from fedbench_attacks.poisonedfl import PoisonedFL, pushed
from fedbench_attacks.search import Scale, best_of_grid, selecting
from fedbench_attacks.searched import DynOpt, OptIPM
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median, TrimmedMean

OWN = [[100.0], [-40.0]]  # of the colluders as if honest: nothing below may depend on them


def context(*benign: list[float]) -> AttackContext:
    return round_of(torch.tensor([*OWN, *benign]))


def test_ipm_sends_minus_eps_times_the_benign_mean_and_mirrors_masks() -> None:
    here = context([1.0], [2.0], [6.0])
    assert sent(IPM(), here)[1].tolist() == [[-1.5], [-1.5]]  # -0.5 * 3
    assert sent(IPM(eps=100), here)[1].tolist() == [[-300.0], [-300.0]]
    assert sent(IPM(knows="colluders"), here)[1].tolist() == [[-15.0], [-15.0]]  # -0.5 * 30
    # A mean of 3/4 becomes 1/2 - 1/2 * 1/4 = 3/8, which is no longer a one; 1/4 becomes 5/8.
    bits = torch.tensor([[1, 0]] * M + [[1, 0], [1, 0], [1, 1], [0, 0]]).bool()
    payload = BinaryMasks(bits, torch.zeros(6, 0))
    _, values = sent(IPM(via="wire"), round_of(payload))
    assert values.tolist() == [[0.0, 1.0]] * M


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
    view, attacked = sent(ALIE(z=None), context([1.0], [2.0], [6.0]))
    assert attacked[:, 0].tolist() == pytest.approx([3 - 0.430727 * 2.645751] * 2, abs=1e-5)
    assert view.notes["z"] == pytest.approx(0.430727, abs=1e-6)
    _, attacked = sent(ALIE(z=2.0), context([1.0], [2.0], [6.0]))
    assert attacked[0].item() == pytest.approx(3 - 2 * 2.645751, abs=1e-5)
    # By the formula 2 of 10 would send the mean, which helps: the default is the authors' 1.5.
    assert largest_z(10, 2) == pytest.approx(0, abs=1e-12)
    _, attacked = sent(ALIE(), context([1.0], [2.0], [6.0]))
    assert attacked[0].item() == pytest.approx(3 - 1.5 * 2.645751, abs=1e-5)


def test_min_max_and_min_sum_go_to_the_farther_end_in_one_dimension_or_stay() -> None:
    # mean 2, std sqrt(7); the longest distance is 5: 5 below the row at 5 is 0, 2 from the mean,
    # and 5 above the row at 0 is 5, 3 from it. Sums of squared distances: 26, 17, 41. Of v they
    # are 3 (v - 2)^2 + 14: v = -1 or 5, as far from the mean, and v = 1 or 3.
    for attack, expected in (
        (MinMax(), 5.0),
        (MinMax(side="minus"), 0.0),
        (MinSum(), -1.0),
        (MinSum(bound="min"), 1.0),
    ):
        view, attacked = sent(attack, context([0.0], [1.0], [5.0]))
        assert attacked[:, 0].tolist() == pytest.approx([expected] * 2, abs=1e-6)
        assert view.notes["gamma"] == pytest.approx((2 - expected) / math.sqrt(7))
    for attack in (MinMax(), MinSum(), MinMax(direction="sign")):
        assert sent(attack, context([3.0], [3.0]))[1].tolist() == [[3.0], [3.0]]


def two_far(n: int = 204) -> Tensor:
    """Rows of which only two differ much: deviations are small, the longest distance is not."""
    x = 0.001 * Key(1).normal(n, 40)
    x[-2:, 0] = torch.tensor([10.0, -10.0])
    return x


@pytest.mark.parametrize("direction", ["std", "sign", "unit"])
@pytest.mark.parametrize("x", [*map(rows, range(3)), two_far()], ids=[0, 1, 2, "far"])
def test_d12_min_max_and_min_sum_sit_exactly_on_their_bounds(direction: Any, x: Tensor) -> None:
    here = round_of(x)
    benign = here.honest.values()[M:].double()
    between = squared_distances(benign)
    for attack, reached, bound in (
        (MinMax(direction=direction), torch.amax, between.max()),
        (MinSum(direction=direction), torch.sum, between.sum(dim=1).max()),
        (MinSum(direction=direction, bound="min"), torch.sum, between.sum(dim=1).min()),
    ):
        view, attacked = sent(attack, here)
        squared = (attacked[0].double() - benign).square().sum(dim=1)
        assert float(reached(squared, dim=0)) == pytest.approx(float(bound), rel=1e-5)
        assert view.notes["bound"] == "met"
        mean = benign.mean(dim=0)
        far = len(x) > 9 and isinstance(attack, MinMax)  # the paper's search starts at 10
        gamma = abs(float(view.notes["gamma"]))
        assert gamma > (0 if not far else 2 if direction == "sign" else 5)
        assert float((attacked[0].double() - mean) @ mean) < 0 or direction == "std"


def test_min_max_stays_on_the_side_of_its_first_round() -> None:
    # Of 0, 1, 5 above is farther, of 0, 4, 5 below: mean 3, 5 above 0 is 5, 5 below 5 is 0.
    up = context([0.0], [1.0], [5.0])
    down = context([0.0], [4.0], [5.0])
    for first, second, rows_sent, side in (
        (up, down, [5.0, 5.0], "plus"),
        (down, up, [0.0, 0.0], "minus"),
    ):
        attack = MinMax()
        memory = None
        for here, expected in zip((first, second), rows_sent, strict=True):
            view = attack_view(attack, here)
            message, memory = attack.craft(view, memory)
            assert message.values()[0].item() == pytest.approx(expected, abs=1e-6)
            assert view.notes["side"] == side
    # Signs are not as far as gamma says: of means 1/2 and -1/2 neither side is preferred.
    for values in ([1.0, 1.0, 1.0, -1.0], [-1.0, -1.0, -1.0, 1.0]):
        signs = SignBits(torch.tensor([[1.0], [1.0], *([x] for x in values)]) > 0)
        assert sent(MinMax(), round_of(signs))[0].notes["side"] == "minus"
    # A single row has no deviation: minus the sign of the mean, whatever side was chosen.
    view, message = crafted(MinMax(direction="std"), context([3.0]), -1)
    assert "side" not in view.notes
    assert message.values()[0].item() == 3.0  # there is no distance to hide in


def test_alie_takes_the_side_against_what_its_clients_learned() -> None:
    # In d = 100 coordinates chance gives cosines of a tenth: above three of them it decides.
    d = 100
    benign = torch.stack([torch.zeros(d), torch.full((d,), 2.0)])  # mean 1, std sqrt(2)
    below = 1 - 2 * math.sqrt(2)
    above = 1 + 2 * math.sqrt(2)
    for cosine, expected, reversed_ in (
        (0.4, below, above),
        (-0.4, above, below),
        (0.2, below, below),
        (-0.2, below, below),
    ):
        learned = torch.ones(d)
        learned[: round(d * (1 - cosine) / 2)] = -1.0
        here = round_of(torch.cat([learned.expand(M, -1), benign]))
        view, attacked = sent(ALIE(z=2.0), here)
        assert attacked[0].tolist() == pytest.approx([expected] * d)
        assert view.notes["side"] == ("minus" if expected == below else "plus")
        assert sent(ALIE(z=2.0, side="minus"), here)[1][0, 0].item() == pytest.approx(below)
        # Of what clients send that received 2 learned, they have learned the opposite.
        received = dataclasses.replace(here, idle=2 * learned[None])
        assert sent(ALIE(z=2.0), received)[1][0, 0].item() == pytest.approx(reversed_)
        # It stays on its side.
        message = crafted(ALIE(z=2.0), here, -1)[1]
        assert message.values()[0, 0].item() == pytest.approx(above)


def test_noise_is_as_long_as_what_was_learned_times_scale() -> None:
    d = 20_000
    x = torch.cat([torch.full((1, d), 2.0), torch.full((1, d), -7.0), torch.ones(1, d)])
    here = round_of(x)
    view, attacked = sent(NoiseAttack(scale=3.0), here)
    assert attacked.std(dim=1).tolist() == pytest.approx([6.0, 21.0], rel=0.03)
    assert attacked.mean(dim=1).tolist() == pytest.approx([0.0, 0.0], abs=0.5)
    added = sent(NoiseAttack(scale=3.0, add=True), here)[1]
    torch.testing.assert_close(added, attacked + x[:M])
    assert abs(float(torch.corrcoef(attacked)[0, 1])) < 0.05
    assert NoiseAttack().needs() == Knowledge()
    assert view.notes == {}
    attacked = sent(NoiseAttack(), here)[1]  # as it comes one row of 100 is as long as the mean
    assert attacked.std(dim=1).tolist() == pytest.approx([200.0, 700.0], rel=0.03)
    # Of an update 0.5 + 0.1, where 0.5 is what was received, 0.1 was learned.
    here = round_of(torch.full((3, 20_000), 0.6))
    here = dataclasses.replace(here, idle=torch.full((3, 20_000), 0.5))
    attacked = sent(NoiseAttack(scale=1.0), here)[1]
    assert attacked.std(dim=1).tolist() == pytest.approx([0.1, 0.1], rel=0.03)
    assert attacked.mean(dim=1).tolist() == pytest.approx([0.5, 0.5], abs=0.01)


def test_mimic_learns_by_oja_s_rule() -> None:
    # mu = ((0, 0) + (2, 1)) / 2; the rows are (1, 1.5) and (1, -0.5) from it, along z = (0, 1)
    # 1.5 and -0.5, so v = (1, 2.5), of length sqrt(7.25), and z is proportional to
    # (0, 1) + v / 2.692582 = (0.371391, 1.928477).
    here = round_of(torch.tensor([[9.0, 9.0], [9.0, 9.0], [2.0, 2.0], [2.0, 0.0]]))
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
    attack = Mimic(warmup=20)
    memory = None
    d = 30
    signs = []
    for step in range(25):
        x = Key(step).normal(12, d)
        x[:, 0] += torch.tensor([6.0, -6.0]).repeat(6)
        view = attack_view(attack, round_of(x))
        message, memory = attack.craft(view, memory)
        row = message.values()[0]
        assert any(torch.equal(row, benign) for benign in x[M:])
        signs.append(float(row[0].sign()))
    assert memory is not None
    assert abs(float(memory[2][0])) > 0.95
    assert len(set(signs[5:])) == 1


def learned(trained: Tensor, updates: Tensor, idle: Tensor) -> AttackContext:
    here = round_of(updates)
    return dataclasses.replace(here, trained=trained, idle=idle)


def test_pga_is_the_ascent_as_long_as_honest_updates_or_their_opposite() -> None:
    # Honest updates are (3, 4) and (0, 1) from (1, 1): tau = 3. The ascents (0, -2) and (6, 8).
    updates = torch.tensor([[4.0, 5.0], [1.0, 2.0], [1.0, 11.0]])
    here = learned(torch.tensor([[1.0, -1.0], [7.0, 9.0]]), updates, torch.ones(3, 2))
    view, attacked = sent(PGA(), here)
    torch.testing.assert_close(attacked, torch.tensor([[1.0, -2.0], [2.8, 3.4]]))
    assert view.notes["tau"] == pytest.approx(3.0)
    # The benign message is 10 from there, and none of its business.
    _, attacked = sent(PGA(scale=0.5), here)
    torch.testing.assert_close(attacked, torch.tensor([[1.0, -0.5], [1.9, 2.2]]))
    updates = torch.tensor([[3.0, 4.0], [0.0, 5.0], [1.0, 1.0]])
    here = learned(torch.tensor([[math.nan, 1.0], [2.0, 0.0]]), updates, torch.zeros(3, 2))
    view, attacked = sent(PGA(), here)
    torch.testing.assert_close(attacked, torch.tensor([[-3.0, -4.0], [5.0, 0.0]]))
    assert view.notes["diverged"] == 1


def test_pga_ascends_weights_and_leaves_statistics_alone() -> None:
    def grad(tree: Any, x: Tensor, y: Tensor, key: Key) -> Any:
        return {"fc.weight": torch.ones(1), "norm1.mean": torch.ones(1)}

    local = Local({}, None, 0, 1, 0, Key(0), classes=2, statistics=("norm1.mean",))
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

    def replayed(*rounds: AttackContext) -> list[list[float]]:
        attack = FreeRider(kind="replay")
        memory = None
        attacked = []
        for here in rounds:
            message, memory = attack.craft(attack_view(attack, here, [0]), memory)
            attacked.append(message.values()[0].tolist())
        return attacked

    def heard(*weights: float) -> AttackContext:
        here = learned(torch.zeros(2, 2), torch.ones(3, 2), torch.zeros(3, 2))
        down = dataclasses.replace(here.view, broadcast=FloatVectors(torch.tensor([weights])))
        return dataclasses.replace(here, view=down)

    def scored(score: float) -> AttackContext:
        idle = torch.tensor([[score, 1.0]]).expand(3, -1)
        return learned(torch.zeros(2, 2), torch.ones(3, 2), idle)

    assert replayed(heard(5, 7), heard(6, 5), heard(6, 4)) == [[0, 0], [1, -2], [0, -1]]
    assert replayed(scored(1), scored(4)) == [[1, 1], [7, 1]]
    # A seed or a coin may follow the model; twice as wide is something else.
    assert replayed(heard(5, 7, 99), heard(6, 5, 1)) == [[0, 0], [1, -2]]
    assert replayed(heard(5, 7, 9, 9), heard(6, 5, 9, 9)) == [[0, 0]] * 2


def heard_by(attack: PoisonedFL, *models: list[float]) -> list[tuple[AttackView, Tensor, Any]]:
    """Views, messages and memories of an adversary whose clients get these models in turn."""
    memory = None
    out = []
    for step, model in enumerate(models):
        here = round_of(torch.zeros(3, len(model)))
        down = FloatVectors(torch.tensor([model]))
        view = dataclasses.replace(here.view, broadcast=down, step=step)
        here = dataclasses.replace(here, view=view, idle=torch.zeros(3, len(model)))
        seen = attack_view(attack, here)
        message, memory = attack.craft(seen, memory)
        assert isinstance(message, Payload)
        out.append((seen, message.values(), memory))
    return out


def test_poisonedfl_pushes_along_its_signs_where_the_last_push_did_not_get_it() -> None:
    # |g| = 5 and |a| = 10, so g - a / 2 = 3, 4, 5 of norm sqrt 50, and lambda is 2 * 5. With a of
    # its own length it would be 3, 4, 10, without the absolute value -4 turns round.
    g, a, s = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, -10.0], [1.0, 1.0, -1.0]])
    expected = 10 * torch.tensor([3.0, 4.0, -5.0]) / math.sqrt(50)
    torch.testing.assert_close(pushed(g, a, s, 2.0), expected)
    # Nothing sent: v is |g| / |g|. Nothing moved: nothing is sent.
    torch.testing.assert_close(pushed(g, 0 * a, s, 2.0), 2 * torch.tensor([3.0, 4.0, 0.0]))
    assert pushed(0 * g, a, s, 2.0).tolist() == [0.0] * 3
    assert bool(torch.isfinite(pushed(1e30 * g, a, s, 1e30)).all())


def test_poisonedfl_draws_its_signs_once_and_goes_by_what_it_received() -> None:
    first, second, third = heard_by(PoisonedFL(c=2.0), [1.0] * 40, [4.0] * 40, [4.5] * 40)
    assert first[1].tolist() == [[0.0] * 40] * M  # nobody knows yet how far the model moves
    signs = first[2].signs
    assert 5 < int((signs > 0).sum()) < 35
    for _, message, memory in (second, third):
        assert torch.equal(memory.signs, signs)
        assert torch.equal(message[0], message[1])
        assert bool((message[0] * signs >= 0).all())
        assert float(message[0].abs().max()) > 0
    assert float(second[1][0].norm()) == pytest.approx(2 * 3 * math.sqrt(40))
    assert float(third[1][0].norm()) == pytest.approx(2 * 0.5 * math.sqrt(40))


@pytest.mark.edges("byz-ef21")
@pytest.mark.parametrize("protocol", ["byz-dasha-page", "byz-ef21", "rosdhb"])
def test_poisonedfl_pushes_a_model_that_a_seed_or_a_coin_follows(protocol: str) -> None:
    shape: dict[str, Any] = {"clients": 4, "per_round": 4, "rounds": 2, "malicious": 0.25}
    scenario = Scenario(protocol=protocol, attack="poisonedfl", model="micro", epochs=1, **shape)
    first, second = fedbench.play(scenario, device="cpu").rounds
    assert (first.notes["move"], second.notes["c"]) == (0.0, 8.0)
    assert float(second.notes["move"]) > 0


@pytest.mark.parametrize(
    ("followed", "c", "left"),
    # Ten coins: 9 heads or more have the chance 11 / 1024 > 0.01, ten 1 / 1024.
    [(10, 8.0, 8.0), (9, 8.0, 5.6), (0, 8.0, 5.6), (9, 0.7, 0.7)],  # 0.49 would be below 0.5
)
def test_poisonedfl_is_softer_unless_the_model_follows(
    followed: int, c: float, left: float
) -> None:
    attack = PoisonedFL(c=c, window=2)
    signs = heard_by(attack, [0.0] * 10)[0][2].signs
    moved = torch.where(torch.arange(10) < followed, signs, -signs)
    # In the second round all moved the other way: the sum of both rounds counts, not the last.
    models = [[0.0] * 10, (3 * moved).tolist(), (2 * moved).tolist()]
    rounds = heard_by(attack, *models)
    assert [memory.c for _, _, memory in rounds] == pytest.approx([c, c, left])
    assert rounds[2][0].notes["aligned"] == followed
    # A coordinate that did not move counts with the sign of the model.
    still = [torch.where(signs > 0, 5.0, -5.0).tolist()] * 3
    assert heard_by(attack, *still)[2][0].notes["aligned"] == 10


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_poisonedfl_knows_nobody_and_ruins_the_mean_where_noise_does_not(seed: int) -> None:
    # Seeds 0 to 2 after 30 rounds: clean .84 .83 .78, noise as long as updates .75 .81 .59,
    # sign-flip .67 .47 .32, poisonedfl 0 (scores beyond float32) in all. Its pushes grow by
    # a factor of c m / n a round.
    size: dict[str, Any] = {"clients": 20, "per_round": 20, "rounds": 12, "eval_every": 12}
    scenario = Scenario(model="micro", partition="iid", malicious=0.2, seed=seed, **size)
    reached = {}
    for attack in ("noise:scale=1", "poisonedfl"):
        played = fedbench.play(scenario.model_copy(update={"attack": attack}), device="cpu")
        reached[attack] = played.result.accuracy
    assert reached["noise:scale=1"] > 0.4
    assert reached["poisonedfl"] < 0.2


DRAWING = ["noise", "stat-opt"]
OTHERS = ["alie", "dyn-opt", "ipm", "min-max", "min-sum", "opt-alie", "opt-ipm", "pga", "sign-flip"]


@pytest.mark.parametrize("name", OTHERS)
def test_d11_no_attack_prefers_the_first_coordinates(name: str) -> None:
    # Coordinates in another order are attacked in that order.
    attack = registry.load("attack", name)
    here = round_of(rows(), Median())
    order = Key(9).permutation(40)
    x = here.updates[:, order]
    turned = dataclasses.replace(here, honest=FloatVectors(x), updates=x, trained=x[:M])
    expected = sent(attack, here)[1][:, order]
    torch.testing.assert_close(sent(attack, turned)[1], expected, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("name", DRAWING)
def test_d11_an_attack_that_draws_does_so_in_every_part_of_the_vector(name: str) -> None:
    attack = registry.load("attack", name)
    here = round_of(rows(d=4000), Median())
    moved = (sent(attack, here)[1] - here.updates[M:].mean(dim=0)).abs()
    other = dataclasses.replace(here.owned, secret=Secret.of(7, "adversary"))
    drawn = sent(attack, dataclasses.replace(here, owned=other))[1] != sent(attack, here)[1]
    for part in (slice(0, 2000), slice(2000, 4000)):
        assert float(drawn[:, part].float().mean()) > 0.99
    halves = moved[:, :2000].mean(), moved[:, 2000:].mean()
    assert float(halves[0] / halves[1]) == pytest.approx(1.0, abs=0.1)


class Drifting(Mean):
    """A mean that is pulled to its last answers, and counts how often it was asked."""

    def init(self, spec: Any) -> Any:
        return {"last": torch.zeros(40), "asked": 0}

    def tolerates(self, n: int) -> int:
        return n - 1

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> Any:
        state["asked"] += 1
        state["last"].mul_(0.5).add_(0.5 * received.values().mean(dim=0).clamp(-1, 1))
        return state["last"].clone(), state


@pytest.mark.parametrize("name", ["dyn-opt", "opt-alie", "opt-ipm"])
def test_d16_the_oracle_of_a_rule_with_a_state_does_not_drift(name: str) -> None:
    rule = Drifting()
    attack = registry.load("attack", name)
    state = rule.init(None)
    here = dataclasses.replace(round_of(rows(), rule), defense_state=state)
    view = attack_view(attack, here)
    assert view.defense is not None
    before = view.defense(view.own)
    attack.craft(view, None)
    assert view.defense.queries >= 10
    for _ in range(20):
        assert torch.equal(view.defense(view.own), before)
    assert state["asked"] == 0
    assert float(state["last"].abs().max()) == 0.0


def test_d19_a_search_keeps_the_best_that_it_has_seen() -> None:
    # Damage with a peak between two valleys, which a search that compares with the trial before
    # leaves again.
    def damage(gamma: float) -> float:
        return 5.0 if 0.9 < gamma < 1.1 else min(gamma, 3.0)

    scale = Scale(near=1.0, far=16.0, bound=1e5)
    found = best_of_grid(damage, scale)
    assert damage(found.gamma) == 5.0
    assert max(value for _, value in found.trace) == 5.0
    # What is accepted need not be an interval: the upper one is found.
    island = selecting(lambda gamma: gamma < 0.5 or 6.0 < gamma < 9.0, scale)
    assert 8.99 < island.gamma < 9.0
    # Nor need it hold a doubling: this one lies between 4 and 8, and is a ninth as wide as 4.
    island = selecting(lambda gamma: gamma < 0.5 or 5.0 < gamma < 5.5, scale)
    assert 5.494 < island.gamma < 5.5


@pytest.mark.parametrize("attack", [DynOpt, OptIPM])
@pytest.mark.parametrize("rule", [Mean(), Median(), TrimmedMean(f=2), Drifting()], ids=repr)
def test_d19_a_larger_budget_never_does_less(attack: Any, rule: Any) -> None:
    reached = []
    for bound in (0.5, 2.0, 8.0, 100.0, 1e4):
        here = dataclasses.replace(round_of(rows(), rule), defense_state=rule.init(None))
        view, message = crafted(attack(bound=bound), here)
        assert view.defense is not None
        answer = view.defense(message)
        reached.append(float((answer - here.updates[M:].mean(dim=0)).norm()))
    for less, more in pairwise(reached):
        assert more >= (1 - 2e-3) * less
