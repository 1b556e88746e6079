"""Rules that look at the layers of a network, or at the model."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from rules import answer, draw, floats, kept, view_of

import fedbench
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.core.trees import Layout
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors, GatedVectors, Rankings, SignBits
from fedbench.testing import NETWORK
from fedbench_defenses.crfl import CRFL
from fedbench_defenses.crfl_certificate import (
    Poisoning,
    bounded_shares,
    certified_radius,
    votes,
)
from fedbench_defenses.lasa import LASA

TWO = Layout.of({"conv1": (2,), "fc1": (2,)})
SMALL: dict[str, Any] = {"dataset": "digits", "model": "micro", "clients": 20, "per_round": 20}
SMALL |= {"rounds": 10, "partition": "iid", "malicious": 0.2, "eval_every": 10}


def accuracy(**fields: Any) -> float:
    return fedbench.play(Scenario.of(**(SMALL | fields)), device="cpu").result.accuracy


@pytest.mark.parametrize("protocol", ["fedavg", "topk", "fedpm", "signsgd"])
def test_a_rule_is_told_the_layers_of_the_updates(protocol: str) -> None:
    setup = prepare(Scenario.of(**SMALL | {"protocol": protocol, "malicious": 0.0}), "cpu")
    plugin = setup.plugins.protocol
    sent = plugin.broadcast(setup.shared, plugin.init(setup.shared), [0, 1], setup.secret.key("b"))
    layout = setup.view([0, 1], sent, 0).layout
    assert layout == plugin.trained(setup.shared)
    assert layout is not None
    assert layout.d == setup.shared.layout.d


def test_lasa_drops_the_smallest_share_of_a_row_whatever_its_layer() -> None:
    # Of 10 coordinates 0.3 are 3, as 0.7 * 10 are 7. All three lie in the first layer.
    x = torch.tensor([[0.1, -0.2, 0.3, 4, -5, 6, 7, 8, 9, 10]]).expand(4, -1)
    view = replace(view_of(x), layout=Layout.of({"conv1": (4,), "fc1": (6,)}))
    assert answer(LASA(), x, view).tolist() == [0, 0, 0, 4, -5, 6, 7, 8, 9, 10]
    assert view.findings.notes == {"layers": 2, "left_out": 0}
    x = torch.arange(1.0, 31.0).expand(4, -1)  # in floats (1 - 0.9) * 30 < 3
    assert int((answer(LASA(sparsity=0.9), x) > 0).sum()) == 3


def test_lasa_keeps_coordinates_that_are_as_large_as_the_last_that_it_keeps() -> None:
    # Purities 3/4 four times and 0: median 3/4, deviation 0.3: the last row has MZ-score 2.5.
    bits = [[1, 1, 1, 0], [1, 1, 0, 1], [1, 0, 1, 1], [0, 1, 1, 1], [0, 0, 0, 0]]
    signs = SignBits(torch.tensor(bits).bool())
    view = view_of(signs)
    torch.testing.assert_close(answer(LASA(), signs, view), torch.full((4,), 0.5))
    assert kept(view) == [True] * 4 + [False]
    assert str(LASA().refuses(Rankings)).startswith("would be the mean")
    assert str(LASA().refuses(GatedVectors)).startswith("would sparsify columns")


def test_lasa_averages_all_where_nobody_passes_both_and_no_row_that_is_not_finite() -> None:
    # Norms 1, 1, 1, 9, 9 have the median 1 and, clipped, are all 1. Purities 1, 1, 0, 0, 1/2 have
    # the median 1/2 and the deviation 0.45: only the last is nearer than 0.5 deviations.
    half = 0.5**0.5
    rows = floats([1, 0], [1, 0], [-9, 0], [-9, 0], [half, -half], [torch.nan, 0])
    view = view_of(rows)
    out = answer(LASA(sparsity=0, sign=0.5), rows, view)
    torch.testing.assert_close(out, torch.tensor([half, -half]))
    assert kept(view) == [False] * 4 + [True, False]
    few = FloatVectors(rows.x[:4])  # purities 1, 1, 0, 0: all one deviation away
    view = view_of(few)  # the median norm is 5
    assert answer(LASA(sparsity=0), few, view).tolist() == [(1 + 1 - 5 - 5) / 4, 0]
    assert view.findings.notes["fell_back"] == "empty intersection"


def test_lasa_keeps_neither_of_two_rows_by_rounding() -> None:
    # The median of two norms is their mean, and each is one deviation from it: at the radius. So
    # it is of two purities that differ.
    for seed in range(20):
        x = draw(seed, 2, 6)
        low, high = (x > 0).sum(dim=1)
        for rule in (LASA(sparsity=0), LASA(sparsity=0, norm=9 if low != high else 1)):
            view = view_of(FloatVectors(x))
            answer(rule, FloatVectors(x), view)
            assert kept(view) == [True, True], seed
            assert view.findings.notes["fell_back"] == "empty intersection"


@pytest.mark.slow
def test_lasa_learns_where_a_flipped_sign_stops_the_mean() -> None:
    attack = "sign-flip:scale=5"  # seeds 0 to 2: .110 +- .018 and .693 +- .092
    assert accuracy(attack=attack) < 0.2
    assert accuracy(attack=attack, defense="lasa") > 0.23


def crfl(rule: CRFL, broadcast: list[float], *rows: list[float]) -> list[float]:
    received = floats(*rows)
    view = replace(view_of(received), broadcast=floats(broadcast))
    out = answer(rule, received, view)
    assert view.findings.notes["clipped"] == (float(view.findings.notes["norm"]) > rule.c)
    return out.tolist()


def test_crfl_clips_the_model_and_not_its_update() -> None:
    # (1, 0) + (5, 8) = (6, 8) has norm 10 and becomes (3, 4): the answer is (2, 4).
    # Clipped updates would be (5, 8) of norm 9.4 times 5 / 9.4; models within c stay.
    still = 1e-9
    moved = crfl(CRFL(c=5, noise=still), [1, 0], [4, 8], [6, 8])
    assert moved == pytest.approx([2, 4], abs=1e-6)
    assert crfl(CRFL(c=11, noise=still), [1, 0, 99], [5, 8]) == pytest.approx([5, 8], abs=1e-6)
    nothing = crfl(CRFL(c=11, noise=still), [6, 8], [torch.nan, 8])
    assert nothing == pytest.approx([0, 0], abs=1e-6)


def test_crfl_admits_more_from_round_to_round_and_noises_every_parameter() -> None:
    # rho = 2 + 0.5 t with t = 4 in the round of step 3: (0, 8) becomes (0, 4).
    received = floats([0, 8])
    view = replace(view_of(received), broadcast=floats([0, 0]), step=3)
    out = answer(CRFL(c=2, growth=0.5, noise=1e-9), received, view)
    assert out.tolist() == pytest.approx([0, 4], abs=1e-6)
    rows = FloatVectors(torch.zeros(3, 20_000))
    view = replace(view_of(rows), weights=torch.tensor([1.0, 2, 1]).double())
    drawn = answer(CRFL(noise=0.1), rows, view)
    # Of 20,000 draws the standard deviation is within 5 / sqrt(40000) = 2.5 % of the true one.
    assert float(drawn.std()) == pytest.approx(0.1, rel=0.025)
    assert not torch.equal(drawn, answer(CRFL(noise=0.1), rows, view_of(rows, key=1)))


CAREFUL = Poisoning(attackers=2, share=0.1, scale=5, steps=2, lr=0.1, poisoned=0.5)


def test_crfls_radius_is_that_of_the_authors_code() -> None:
    # sqrt .81 - sqrt .01 = .8 and -ln .36 = 1.0216512. c = .1 * 5 * 2 * .1 * .5 = .05, L^2 = 5 and
    # 2 Phi(1) - 1 = .6826895, for each of two rounds: 1.0216512 * .36 over 2 * 4 * 5 * .0025 *
    # .4660650. With the noise of the last round instead of the first, with R instead of R^2 or
    # with the first round in the product it is another number.
    radius = certified_radius(0.81, 0.01, CAREFUL, rho=(1.0, 0.6, 3.0), noise=(0.6, 0.6, 3.0))
    assert radius == pytest.approx(2.809179, abs=1e-5)
    # A11: the second class may have more votes; the authors' code squares the difference, -.8.
    assert certified_radius(0.01, 0.81, CAREFUL, (1.0,), (0.6,)) == 0.0
    assert certified_radius(1.0, 0.0, CAREFUL, (1.0,), (0.6,)) == math.inf
    # The product over 5,000 rounds of little room underflows: nothing of the trigger is left.
    rounds = 5001
    assert certified_radius(0.9, 0.1, CAREFUL, (1.0,) * rounds, (1.0,) * rounds) == math.inf
    with pytest.raises(ConfigError, match="of as many rounds as rho, 2"):
        certified_radius(0.9, 0.1, CAREFUL, (1.0, 1.0), (0.6,))
    with pytest.raises(ConfigError, match=r"rho must be > 0 in every round, got \(1.0, 0.0\)"):
        certified_radius(0.9, 0.1, CAREFUL, (1.0, 0.0), (0.6, 0.6))


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("attackers", 0), ("share", 0.0), ("share", 1.1), ("scale", 0.0), ("scale", math.inf)],
        *[("steps", 0), ("lr", 0.0), ("lr", math.nan), ("poisoned", -0.1), ("poisoned", 1.1)],
    ],
)
def test_a_poisoning_that_cannot_be_is_no_certificates(name: str, bad: float) -> None:
    with pytest.raises(ConfigError, match=rf"Poisoning\.{name} must be .*, got {bad}"):
        replace(CAREFUL, **{name: bad})  # type: ignore[arg-type]


def test_crfls_certificate_names_the_argument_that_cannot_be() -> None:
    x = torch.zeros(1, *NETWORK.image)
    tree = NETWORK.init(Key(0))
    for noise, draws, wrong in ((-0.1, 1, "noise"), (math.nan, 1, "noise"), (0.1, 0, "draws")):
        with pytest.raises(ConfigError, match=f"{wrong} must be >="):
            votes(NETWORK, tree, x, noise=noise, draws=draws, key=Key(0))
    for alpha in (0.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match=r"alpha must be in \(0, 1\]"):
            bounded_shares([3, 1], alpha)
    for counts in ([], [5], [0, 0]):
        with pytest.raises(ConfigError, match="counts must be of two classes or more"):
            bounded_shares(counts, 0.1)
    for p_a, p_b, wrong in ((1.1, 0.1, "p_a"), (math.nan, 0.1, "p_a"), (0.9, -0.1, "p_b")):
        with pytest.raises(ConfigError, match=rf"{wrong} must be in \[0, 1\]"):
            certified_radius(p_a, p_b, CAREFUL, (1.0,), (0.6,))
    nothing = replace(CAREFUL, poisoned=0.0)  # a batch without a trigger moves no vote
    assert certified_radius(0.9, 0.1, nothing, (1.0,), (0.6,)) == math.inf


def test_crfls_votes_are_those_of_the_model_without_noise_and_of_all_classes_with_much() -> None:
    tree = NETWORK.init(Key(3))
    x = Key(4).normal(2, *NETWORK.image)
    clear = votes(NETWORK, tree, x, noise=1e-9, draws=5, key=Key(0))
    taken = NETWORK.logits(tree, x).argmax(dim=1)
    assert clear.sum(dim=1).tolist() == [5, 5]
    assert clear.argmax(dim=1).tolist() == taken.tolist()
    assert clear.amax(dim=1).tolist() == [5, 5]
    loud = votes(NETWORK, tree, x, noise=100.0, draws=60, key=Key(0))
    assert int((loud > 0).sum(dim=1).min()) > 1
    p_a, p_b = bounded_shares(clear[0].tolist(), alpha=0.001)
    assert (p_a, p_b) == pytest.approx((1 - 0.8311, 0.8311), abs=1e-4)  # five votes say little


def test_crfl_is_for_servers_that_add_the_answer_to_the_weights() -> None:
    resolve(Scenario.of(**SMALL | {"protocol": "topk", "defense": "crfl"}))
    resolve(Scenario.of(**SMALL | {"protocol": "fedavg", "defense": "nnm+crfl", "declared": 0.1}))
    for protocol, why in (
        ("fedpm", "which is no update of them"),
        ("signsgd", "which is no update of them"),
        ("skellam", "which is no update of them"),
    ):
        with pytest.raises(Incompatible, match=why):
            resolve(Scenario.of(**SMALL | {"protocol": protocol, "defense": "crfl"}))
    mixed = Scenario.of(**SMALL | {"protocol": "signsgd", "defense": "nnm:f=1+crfl"})
    with pytest.raises(Incompatible, match="to which the server adds its answer, but signsgd"):
        resolve(mixed)
