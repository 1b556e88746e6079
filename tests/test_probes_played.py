"""The probes on real runs: what leaks, what does not, and what the commands print."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.core.errors import Incompatible
from fedbench.core.rng import Key
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.state import RunState
from fedbench.probes import inversion
from fedbench.probes.images import psnr
from fedbench.probes.inversion import (
    MESSAGE,
    RAW,
    Reconstruction,
    choose_images,
    cosine,
    guess,
    normalised,
    simulator,
)
from fedbench.probes.membership import Membership, probe

IMAGES = Scenario(
    clients=2, per_round=2, rounds=1, epochs=1, batch_size=1, malicious=0.0, partition="iid"
)
RUNS = Scenario(
    clients=30, per_round=1, rounds=1, epochs=20, batch_size=8, malicious=0.0, partition="iid"
)


def invert(steps: int = 80, **changes: Any) -> dict[str, list[Reconstruction]]:
    scenario = IMAGES.model_copy(update=changes)
    (system,) = inversion.probe(
        scenario, [scenario.protocol], [scenario.mechanism], [0], steps
    ).results
    return system.reconstructions


def members(protocol: str, mechanism: str = "none", **changes: Any) -> Membership:
    scenario = RUNS.model_copy(update=changes)
    (found,) = probe(scenario, [protocol], [mechanism], [0], 6).results
    return found


# inversion


def test_a_float_update_of_one_image_gives_the_image_back() -> None:
    found = invert()[MESSAGE]
    setup = prepare(IMAGES, "cpu")
    noise = guess(setup.population.data, choose_images(setup).flatten(), Key(0))
    for one, random in zip(found, noise["random image"], strict=True):
        assert one.psnr > random.psnr + 8
        assert one.cosine is not None
        assert one.cosine > 0.9
        assert one.ceiling == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("protocol", ["fedavg", "fsl", "fedpm", "fedpm:optimizer=sgd,lr=10"])
def test_the_simulated_update_of_the_truth_is_the_update(protocol: str) -> None:
    setup = prepare(IMAGES.model_copy(update={"protocol": protocol}), "cpu")
    rows = choose_images(setup)
    p, shared = setup.plugins.protocol, setup.shared
    state = RunState(p.init(shared))
    down = p.broadcast(shared, state.server, [0], Key(0))
    setup.population.train[0] = rows[0]
    client = setup.client(0, p.receive(shared, down), state.memories.get(0), 0)
    update = setup.executor.train([client])[0][0] - p.idle(shared, down)[0]
    simulate, soft = simulator(p, setup.executor, client, soft=False)
    x = normalised(inversion.pixels(setup.population.data, rows[0]), setup.population.data)
    like = float(cosine(simulate(x, client.y), update).detach())
    assert soft == (protocol == "fedpm")  # Adam
    assert like > (0.8 if soft else 0.999)
    wrong = float(cosine(simulate(-x, client.y), update).detach())
    assert wrong < like - 0.2


@pytest.mark.slow
def test_noise_in_the_training_hides_the_image_from_the_message_but_not_from_the_raw_update() -> (
    None
):
    found = invert(mechanism="dp-sgd:clip=1.0,z=5.0")
    assert max(one.psnr for one in found[MESSAGE]) < min(one.psnr for one in found[RAW]) - 5
    assert all(one.ceiling is not None and one.ceiling < 0.05 for one in found[MESSAGE])


def test_a_message_that_is_the_raw_update_is_inverted_once() -> None:
    found = invert(steps=2)
    assert found[MESSAGE] is not found[RAW]
    assert all(a is b for a, b in zip(found[MESSAGE], found[RAW], strict=True))
    signs = invert(steps=2, protocol="signsgd")
    assert all(a is not b for a, b in zip(signs[MESSAGE], signs[RAW], strict=True))


def test_several_images_of_one_message_have_different_labels_and_all_come_back() -> None:
    setup = prepare(IMAGES.model_copy(update={"batch_size": 3}), "cpu")
    rows = choose_images(setup)
    assert setup.population.data.y[rows].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert all(
        set(row.tolist()) <= set(part.tolist())
        for row, part in zip(rows, setup.population.train, strict=True)
    )
    assert len(invert(steps=2, batch_size=3)[MESSAGE]) == 6


def test_the_best_guess_of_a_class_is_of_that_class_and_not_the_image_itself() -> None:
    setup = prepare(IMAGES, "cpu")
    row = choose_images(setup).flatten()[:1]
    (best,) = guess(setup.population.data, row, Key(0))["best other image of the class"]
    everything = inversion.pixels(setup.population.data, torch.arange(len(setup.population.data)))
    alike = (everything == best.image).flatten(1).all(dim=1).nonzero()[:, 0]
    assert setup.population.data.y[alike].tolist() == setup.population.data.y[row].tolist()
    assert int(row) not in alike.tolist()
    same = (setup.population.data.y == setup.population.data.y[row]).nonzero()[:, 0].tolist()
    truth = everything[row][0]
    others = [psnr(everything[i], truth) for i in same if i != int(row)]
    assert best.psnr == pytest.approx(max(others))


def test_the_attack_draws_nothing_from_a_global_generator() -> None:
    before = torch.get_rng_state()
    first, second = (invert(steps=2, protocol="fedpm") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first[MESSAGE], second[MESSAGE], strict=True):
        assert torch.equal(a.image, b.image)


def test_what_cannot_be_read_as_an_update_is_a_misfit() -> None:
    with pytest.raises(Incompatible, match="inversion"):
        invert(steps=2, protocol="feddrop")


# membership


@pytest.mark.slow
def test_a_client_that_learned_its_data_by_heart_leaks_it_and_noise_hides_it() -> None:
    # Measured over seeds 0 to 4: LiRA 0.870 (deviation 0.037), cosine 0.808 (0.054), both 0.893
    # (0.020), five sigma; with noise everything lies within 0.47 and 0.56, and one client has but
    # 42 examples.
    leaky = {one.name: one.auc.value for one in members("fedavg").readings}
    assert leaky["messages: LiRA"] > 0.68
    assert leaky["messages: cosine"] > 0.53
    assert leaky["messages: cosine + LiRA"] > 0.79
    private = members("fedavg", "dp-sgd:clip=0.1,z=20.0")
    assert all(abs(one.auc.value - 0.5) < 0.15 for one in private.readings)
    assert private.epsilon is not None
    assert private.unit == "example"


def test_whoever_sends_no_model_and_no_vector_has_no_reading_of_one() -> None:
    found = members("sfsl", epochs=1)
    assert [one.name for one in found.readings] == ["deployed model: LiRA"]
    assert found.epsilon is None
    assert found.others == 3 * found.candidates


# commands


Command = Callable[..., tuple[int, str, str]]
SMALL = ["--clients", "60", "--per-round", "1", "--rounds", "1", "--epochs", "1", "--shadows", "6"]


@pytest.mark.slow
@pytest.mark.parametrize("width", ["80", "120"])
def test_the_table_of_members_fits_and_says_what_was_measured(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: str
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    out = ["-p", "fedavg", "-p", "fedpm", "-m", "mask-sampling", "--out", str(tmp_path)]
    code, shown, _ = command("probe", "membership", *SMALL, *out)
    assert code == 0
    assert max(map(len, shown.split("wrote ")[0].splitlines())) <= int(width)
    said = " ".join(shown.split())
    assert "1 victim, 20 candidates, heard in 1 of 1 rounds; 6 shadows: in and out 60 times" in said
    assert "skipped: fedavg + mask-sampling: mechanism mask-sampling needs a protocol" in said
    assert "FPR 1 % and 0.1 % not resolved by 60 times out: 1000 are needed" in said
    assert re.search(r"deployed model: LiRA +0\.\d{3} +0\.\d{3}-0\.\d{3} +\d\d\.\d *$", shown, re.M)
    report = json.loads((tmp_path / "membership.json").read_text())
    assert report["results"][0]["epsilon"] > 0


@pytest.mark.slow
def test_the_table_of_images_fits_and_a_picture_is_left(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    small = ["--dataset", "digits", "--steps", "2", "--out", str(tmp_path)]
    code, shown, _ = command("probe", "inversion", *small)
    assert code == 0
    assert max(map(len, shown.split("wrote ")[0].splitlines())) <= 80
    assert "digits, lenet, round 1; one local step on 1 image, 2 steps of Adam; 2 images" in shown
    assert "it proves no epsilon" in " ".join(shown.split())
    assert (tmp_path / "inversion.png").read_bytes().startswith(b"\x89PNG")
    report = json.loads((tmp_path / "inversion.json").read_text())
    assert [r["protocol"] for r in report["results"]] == ["fedavg", "signsgd", "fedpm", "fsl"]


def test_help_of_the_probes_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from fedbench.cli import probe\n"
        "sys.exit(bool({'torch', 'pydantic', 'matplotlib', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 0
