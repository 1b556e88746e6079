"""``benchmarks/speed``: turns are paired, work is equal, and what is not is refused."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import fedbench_round
import pairing
import pfl_round
import pytest
import side_by_side
import torch
import workload
from pairing import Case, Compared, Turn

from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.rng import Key
from fedbench.data.datasets import Data
from fedbench.testing import assert_rounded_alike

TINY = workload.Training(clients=6, cohort=3, samples=20, image=(3, 12, 12), hidden=16)
SAID: dict[str, Any] = {"versions": {"torch": "2.13.0+cpu", "pfl": "0.6.0"}, "precision": "fp32"}
SAID |= {"threads": 1, "processes": 1, "parameters": 7, "clients": 4, "samples": 8}
SAID |= {"seconds": [1.0], "cpu": [1.0], "loss": 1.0, "accuracy": 0.5}
CASE = Case("pfl", "loop", "a process", [], [], {"pfl": "0.6.0", "torch": "2.13.0"})


def turn(**said: Any) -> Turn:
    return Turn.read("Ray says hello\n" + json.dumps(SAID | said) + "\n")


def test_ratios_are_of_medians_of_rounds_and_then_the_median_over_turns() -> None:
    # Medians of rounds: 2, 4, 1 and 6, 4, 5; their ratios 3, 1, 5. Means of rounds, the ratio of
    # medians over turns (5 / 2), or rounds paired across turns would all give something else.
    ours = ([1.0, 2.0, 9.0], [4.0, 4.0, 4.0], [1.0, 1.0, 1.0])
    theirs = ([6.0, 6.0, 0.1], [4.0, 3.0, 9.0], [5.0, 5.0, 5.0])
    pairs = zip(ours, theirs, strict=True)
    turns = [(turn(seconds=a, cpu=[1.0]), turn(seconds=b, cpu=[1.5])) for a, b in pairs]
    compared = Compared(dataclasses.replace(CASE, target=2.9), turns, others=0.25)
    assert compared.ratio.turns == [3, 1, 5]
    assert compared.ratio.faster == 3
    assert compared.ratio.met is True
    assert compared.ratio.milliseconds == 500  # of one of four clients
    assert compared.cpu == 1.5
    described = json.loads(json.dumps(compared.described()))
    assert (described["faster"], described["met"], described["others"]) == (3, True, 0.25)
    assert described["turns"][1]["theirs"]["seconds"] == [4.0, 3.0, 9.0]
    assert side_by_side.row(compared)[5:] == ("3.00 (1.00 to 5.00)", "1.50", "0.25")


def test_work_that_was_the_same_is_accepted_and_what_a_side_cannot_say_is_not_said() -> None:
    assert Compared(CASE, [(turn(), turn(cpu=None))], None).cpu is None
    pairing.agree(CASE, turn(loss=1.15), turn())
    pairing.agree(CASE, turn(threads=2), turn(processes=2))
    flower = dataclasses.replace(CASE, pins={"flwr": "1.41.0"})
    quiet = {"loss": None, "accuracy": None}
    pairing.agree(flower, turn(**quiet), turn(versions={"flwr": "1.41.0"}, processes=2, **quiet))


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        ({}, {"parameters": 8}, "parameters of 'loop' must be those of 'a process', 8, got 7"),
        ({"samples": 4}, {}, "samples of 'loop' must be those of 'a process', 8, got 4"),
        ({}, {"clients": 5}, "clients of 'loop'"),
        ({"precision": "bf16"}, {}, "precision of 'loop'"),
        ({"threads": 2}, {}, "cores of 'loop' must be those of theirs, 1, got 2"),
        ({"versions": {"torch": "2.12.0"}}, {}, "torch of fedbench must be that of --peer pfl"),
        ({}, {"versions": {"torch": "2.13.0", "pfl": "0.5.0"}}, "0.6.0; run python .* --setup"),
        ({"loss": 2.0}, {"loss": 2.0}, "loss after training must be <= 0.8 of chance"),
        ({"loss": 1.25}, {}, "loss of 'loop' must be within 0.2 of that of 'a process', 1.000"),
        ({"loss": 0.75}, {}, "loss of 'loop'"),
        ({"loss": float("nan")}, {}, "loss"),
    ],
)
def test_other_work_has_no_ratio(ours: dict[str, Any], theirs: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        pairing.agree(CASE, turn(**ours), turn(**theirs))


def test_both_sides_take_turns_each_in_a_process_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    script = tmp_path / "side.py"
    script.write_text(
        "import os, sys\n"
        f"with open({str(log)!r}, 'a') as log: print(sys.argv[1], os.getpid(), file=log)\n"
        f"print({json.dumps(SAID)!r})\n"
    )
    ours, theirs = ([sys.executable, str(script), name] for name in ("a", "b"))
    compared = pairing.compare(dataclasses.replace(CASE, ours=ours, theirs=theirs), 2)
    names, processes = zip(*(line.split() for line in log.read_text().splitlines()), strict=True)
    assert names == ("a", "b", "a", "b")
    assert len(set(processes)) == 4
    assert compared.turns == [(turn(), turn())] * 2


def test_turns_that_did_other_work_or_failed_end_the_comparison(tmp_path: Path) -> None:
    ours, theirs = (
        [sys.executable, "-c", f"print({json.dumps(SAID | {'samples': n})!r})"] for n in (8, 9)
    )
    with pytest.raises(ConfigError, match="samples of 'loop'"):
        pairing.compare(dataclasses.replace(CASE, ours=ours, theirs=theirs), 1)
    script = tmp_path / "side.py"
    script.write_text("raise SystemExit('first\\nno such port')")
    with pytest.raises(FedbenchError, match=r"a turn of side\.py failed: no such port"):
        pairing.play([sys.executable, str(script)])


@pytest.mark.parametrize("peer", side_by_side.PEERS)
def test_a_missing_environment_is_one_line_and_exit_code_2(
    peer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    words = ["side_by_side", "--peer", peer, "--environments", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as stopped:
        side_by_side.main()
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        f"side_by_side: --peer {peer} needs an environment with {peer}.txt installed, got none in "
        f"{str(tmp_path)!r}; run python benchmarks/speed/side_by_side.py --setup\n"
    )


@pytest.mark.parametrize("peer", side_by_side.PEERS)
def test_every_requirement_is_pinned_and_nothing_else_is_in_the_file(peer: str) -> None:
    lines = (side_by_side.HERE / f"{peer}.txt").read_text().splitlines()
    wanted = [line for line in lines if not line.startswith("#")]
    assert len(side_by_side.pins(peer)) == len(wanted) == 3
    assert all(line.count("==") == 1 and "/" not in line for line in wanted)


def test_more_cores_are_given_to_both_sides(tmp_path: Path) -> None:
    interpreter = tmp_path / ".venv-pfl" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.touch()
    planned = list(side_by_side.cases(tmp_path, "pfl", 2, 3))
    described = [(" ".join(case.ours[2:]), " ".join(case.theirs[2:])) for case in planned[:2]]
    assert described == [
        (f"--threads 2 --precision {precision} --rounds 3",) * 2 for precision in ("fp32", "bf16")
    ]
    assert {case.theirs[0] for case in planned} == {str(interpreter)}
    assert len(planned) == 2


def test_the_workloads_have_the_sizes_that_they_are_said_to_have() -> None:
    for size, d in ((workload.Training(), 1_626_442), (workload.Idling().network, 1_199_882)):
        assert sum(w.size for w in size.weights().values()) == d


def test_both_sides_start_from_the_same_network_on_the_same_floats() -> None:
    images, labels = TINY.images()
    x, y = torch.from_numpy(images), torch.from_numpy(labels)
    mean = (workload.MEAN,) * 3
    std = (workload.STD,) * 3
    ours = Data(x, y, 10, workload.WHITE, mean, std).floats(torch.arange(30))
    theirs = pfl_round.floats(images)[:30]
    assert torch.equal(ours, theirs)
    network = fedbench_round.TwoConvolutions(TINY.image, TINY.classes, TINY)
    weights = {name: w.double() for name, w in network.init(Key(5)).items()}
    logits = network.logits(weights, ours.double())
    assert_rounded_alike(logits, pfl_round.TwoConvolutions(TINY).double()(theirs.double()).detach())
    assert logits.std() > 1e-3


def test_our_turn_trains_every_sample_of_the_cohort_and_learns() -> None:
    compared = fedbench_round.train(TINY, 15, "loop", "fp32")
    assert (compared["clients"], compared["samples"], len(compared["seconds"])) == (3, 60, 15)
    assert compared["parameters"] == sum(w.size for w in TINY.weights().values())
    assert compared["loss"] < 0.9 * pairing.CHANCE
    assert len(compared["cpu"]) == 15
    again = fedbench_round.train(TINY, 15, "loop", "bf16")
    assert again["loss"] == pytest.approx(compared["loss"], abs=pairing.APART)
    assert again["loss"] != compared["loss"]


def test_idle_clients_move_nothing() -> None:
    setup = fedbench_round.idling(workload.Idling(clients=6, cohort=2, network=TINY))
    state, compared = fedbench_round.timed(setup, 2)
    assert (compared["clients"], len(compared["seconds"])) == (2, 2)
    assert compared["parameters"] == sum(w.size for w in TINY.weights().values())
    assert torch.equal(state.server, setup.plugins.protocol.init(setup.shared))
