"""Attacks that change the labels that a client trains on."""

from typing import Any

import pytest
import torch

import fedbench
from fedbench.api import Local
from fedbench.core import registry
from fedbench.core.errors import ConfigError, PluginError
from fedbench.core.rng import Key
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench_attacks.label_flip import LabelFlip

SMALL = Scenario(clients=20, per_round=6, rounds=2, epochs=1, eval_every=1, malicious=0.4)
LABELS = torch.tensor([0, 3, 3, 7, 9])
IMAGES = torch.arange(5 * 4.0).reshape(5, 1, 2, 2)


def local(classes: int = 10, part: int = 0) -> Local:
    return Local({}, None, part, 3, 0, Key(1), classes)


def play(**changes: Any) -> Record:
    return fedbench.play(SMALL.model_copy(update=changes), device="cpu")


@pytest.mark.parametrize(
    ("convention", "flipped"),
    [
        ("mirror", [9, 6, 6, 2, 0]),  # C - 1 - y; C - y would give 10
        ("next", [1, 4, 4, 8, 0]),  # (y + 1) mod C; (y - 1) mod C would give 9, 2, ...
        ("pair", [0, 7, 7, 7, 9]),  # 3 -> 7; swapped would turn the 7 into a 3
    ],
)
def test_every_convention_flips_labels_and_no_image(convention: Any, flipped: list[int]) -> None:
    before = LABELS.clone()
    xs, ys = LabelFlip(convention=convention).poison(IMAGES, LABELS, local())
    assert ys.tolist() == flipped
    assert torch.equal(xs, IMAGES)
    assert torch.equal(LABELS, before), "written into"


def test_labels_are_mirrored_in_the_task_and_not_in_what_a_client_has() -> None:
    _, ys = LabelFlip().poison(IMAGES[:2], torch.tensor([0, 1]), local(classes=4))
    assert ys.tolist() == [3, 2]  # within its own two labels it would be 1, 0


def test_a_label_that_the_task_does_not_have_is_refused() -> None:
    flip = LabelFlip(convention="pair", target=7)
    with pytest.raises(ConfigError, match=r"LabelFlip.target must be a label from 0 to 6, got 7"):
        flip.poison(IMAGES, LABELS, local(classes=7))
    with pytest.raises(ConfigError, match=r"LabelFlip.target must be .*not the source, got 3"):
        LabelFlip(source=3, target=3)
    with pytest.raises(ConfigError, match="has no parameter 'conventoin'"):
        registry.load("attack", "label-flip:conventoin=next")


def test_the_harness_says_how_many_classes_there_are() -> None:
    named = r"attack label-flip .*: poison in round 0 for client \d+ raised ConfigError: "
    with pytest.raises(PluginError, match=named + ".* a label from 0 to 9, got 12"):
        play(attack="label-flip:convention=pair,target=12")


@pytest.mark.edges("loop")
@pytest.mark.parametrize("executor", ["loop", "stacked"])
def test_flipped_labels_move_the_mean_and_more_of_them_move_it_more(executor: str) -> None:
    def gain(convention: str) -> float:
        scenario = SMALL.model_copy(update={"attack": f"label-flip:convention={convention}"})
        first = fedbench.play(scenario, device="cpu", executor=executor).rounds[0]
        assert first.gain_mean is not None
        return first.gain_mean

    paired, all_labels = gain("pair"), gain("next")
    assert all_labels > paired > 1e-3
