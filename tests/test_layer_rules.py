"""Rules that look at the layers of a network."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from rules import answer, floats, kept, view_of

import fedbench
from fedbench.core.trees import Layout
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors, GatedVectors, Rankings, SignBits
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


@pytest.mark.slow
def test_lasa_learns_where_a_flipped_sign_stops_the_mean() -> None:
    attack = "sign-flip:scale=5"  # seeds 0 to 2: .110 +- .018 and .693 +- .092
    assert accuracy(attack=attack) < 0.2
    assert accuracy(attack=attack, defense="lasa") > 0.23
