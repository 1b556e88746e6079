"""``make gpu-check`` and ``make gpu-accept`` on a CPU: what they compare, count and keep."""

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
import time
import types
from collections.abc import Sequence
from pathlib import Path

import accepted_stages
import gpu_accept
import gpu_check
import gpu_predict
import gpu_report
import gpu_stages
import pytest
import torch
from alphabets import one_of_each_alphabet
from gpu_accept import Stage, end_group, followed, last_second, play, started
from gpu_check import CPU, TOLERANCE, Comparison, apart, compare, unequal
from gpu_predict import predicted
from gpu_report import TARGETS, TIMES, Outcome, Target, content, with_roofline
from gpu_roofline import Counter, Peaks, Step, counted, least_bytes
from gpu_stages import Job, cuda_tests

import fedbench
from fedbench.api import Batches, Grad, Memory, Shared
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.executors.factory import executor
from fedbench.executors.training import Client, Loop, Schedule, Trained
from fedbench.models.network import saved_bytes
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import NETWORK, example_clients

SCRIPT = Path(gpu_accept.__file__)
SHARED = Shared(NETWORK, 3, CPU)


@pytest.mark.edges(*one_of_each_alphabet())
@pytest.mark.parametrize("name", registry.names("protocol"))
def test_lock_step_sends_what_the_loop_sends(name: str) -> None:
    (found,) = compare(name, CPU, ["loop", "padded"])  # of a CPU the loop is the other side
    assert (found.executor, found.messages, found.decoded) == ("padded", 0.0, True)
    assert found.updates <= TOLERANCE
    assert found.agrees


def test_an_error_that_float32_hides_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    @fedbench.register("protocol", "slip")
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Slip(FedAvg):
        """A hundred-millionth too far in lock step."""

        def local_update(
            self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
        ) -> tuple[Tree, Memory]:
            update, memory = super().local_update(tree, batches, grad, key, memory)
            lock_step = any(torch._C._functorch.is_batchedtensor(x) for x in update.values())
            return {name: x * (1 + 1e-8 * lock_step) for name, x in update.items()}, memory

    (found,) = compare("slip", CPU, ["padded"])
    assert not found.agrees
    assert found.updates == pytest.approx(1e-8, rel=0.01)
    (right,) = compare("fedavg", CPU, ["padded"])
    assert found.single_updates <= 10 * right.single_updates  # nothing to be seen there
    assert gpu_check.main(["--device", "cpu", "-p", "slip", "-p", "fsl"]) == 1
    assert "DISAGREE in float64: slip (padded)" in capsys.readouterr().out


def test_rows_that_differ_in_any_respect_do_not_agree() -> None:
    good = Comparison("p", "e", messages=0.0, decoded=True, values=2**-20, updates=1e-9)
    assert good.agrees
    wrong: list[Comparison] = [
        dataclasses.replace(good, messages=0.25),
        dataclasses.replace(good, decoded=False),
        dataclasses.replace(good, values=2**-19),
        dataclasses.replace(good, values=float("nan")),
        dataclasses.replace(good, updates=1.1e-9),
        dataclasses.replace(good, updates=float("nan")),
        dataclasses.replace(good, error="no such kernel"),
    ]
    assert not any(comparison.agrees for comparison in wrong)


def test_a_distance_is_the_largest_difference_as_a_share_of_the_largest_entry() -> None:
    x = torch.tensor([1.0, 4.0, 0.0], dtype=torch.float64)
    assert apart(x, x) == 0
    assert apart(torch.tensor([1.0, 4.0]), torch.tensor([2.0, -4.0])) == 2  # 8 of 4
    assert apart(x, x.float()) == apart(x, x[:2]) == float("inf")
    for other in ([0.0, 4.0, float("nan")], [0.0, 4.0, float("inf")]):
        assert apart(torch.tensor(other, dtype=torch.float64), x) == float("inf")
    assert apart(torch.tensor([1e-30]), torch.tensor([0.0])) == float("inf")
    assert unequal([b"a", b"b", b"c", b"d"], [b"a", b"x", b"c", b"d"]) == 0.25


def test_memories_are_compared_as_updates_are() -> None:
    update = torch.ones(2, 3, dtype=torch.float64)
    memories = [{"seen": torch.tensor([1.0, 2.0], dtype=torch.float64)}, {}]
    other = [{"seen": torch.tensor([1.0, 1.0], dtype=torch.float64)}, {}]
    mine = gpu_check.Sent(update, memories, [], {}, update)
    assert gpu_check.distance(mine, dataclasses.replace(mine, memories=other)) == 1
    assert gpu_check.distance(mine, dataclasses.replace(mine, memories=memories)) == 0


def test_a_check_says_what_is_missing_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main(["--device", "tpu"]) == 2
    assert capsys.readouterr().err.startswith("gpu-check: --device must be auto, cpu, cuda or mps")
    for words, error in (
        (["--device", "tpu"], "--device must be auto, cpu, cuda or mps, got 'tpu'"),
        (["--device", "cpu", "--only", "steps,dance"], "--only must be some of device,equality"),
        (["--device", "cpu", "--minutes", "11"], "--minutes must be > 0 and <= 10, got 11.0"),
    ):
        assert gpu_accept.main(words) == 2
        assert capsys.readouterr().err.startswith(f"gpu-accept: {error}")


def test_a_roofline_is_operations_then_bytes_and_a_step_as_written_waits_for_launches() -> None:
    peaks = Peaks(bytes=4e12, flops=3e13, launch=1e-5, replay=2e-6)
    step = Step(flops=6e9, least=2e9, bytes=8e9, kernels=1000)
    assert step.roofline(peaks) == pytest.approx(0.2e-3 + 0.5e-3)
    assert step.as_written(peaks, recorded=False) == pytest.approx(10e-3)  # of its launches
    assert step.as_written(peaks, recorded=True) == pytest.approx(2e-3 + 0.2e-3)  # of its bytes
    bare = dataclasses.replace(peaks, replay=None)
    assert step.as_written(bare, recorded=True) == pytest.approx(10e-3)


def test_bytes_that_a_step_must_move_are_those_of_parameters_and_activations() -> None:
    assert least_bytes(NETWORK, 4) == 5 * 4 * (27 + 60 + 15) + 2 * 4 * saved_bytes(NETWORK)


def test_kernels_and_bytes_are_those_of_the_device_without_views() -> None:
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    with Counter(CPU) as counter:
        product = (a @ b).T.reshape(8)  # a copy: its rows are not in order
        product.view(2, 4).unbind(0)
    assert counter.kernels == 2
    assert counter.bytes == 4 * (6 + 12 + 8) + 4 * (8 + 8)
    with Counter(CPU) as counter:
        product.mul_(torch.ones(1).expand(8))  # the factor is read once, the product there and back
    assert (counter.kernels, counter.bytes) == (2, 4 * 1 + 4 * (8 + 1 + 8))
    there = torch.ones(5, device="meta")
    with Counter(torch.device("meta")) as counter:
        torch.ones(7).add_(1)
        there + 1
    assert (counter.kernels, counter.bytes) == (1, 4 * (5 + 5))


def test_a_counted_step_is_what_a_further_step_costs() -> None:
    schedule = Schedule(1, 4)
    clients = [
        dataclasses.replace(client, x=client.x[:4], y=client.y[:4])
        for client in example_clients(FedAvg(), SHARED)
    ]
    loop = Loop(FedAvg(), SHARED, schedule)
    one = counted(loop, clients[:1], 1)
    four = counted(loop, clients, 1)
    assert four.kernels == 4 * one.kernels > 0  # the loop launches for each client
    stacked = counted(executor("stacked", FedAvg(), SHARED, schedule), clients, 1)
    assert 0 < stacked.kernels < four.kernels
    # Multiply-adds of a 4 x 4 image: 27 at 16 places, 60 and 15 once.
    assert stacked.flops == 4 * 4 * 6 * (27 * 16 + 60 + 15)


@pytest.mark.slow
def test_a_step_of_many_clients_is_predicted_from_steps_of_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDBENCH_PROBE", "off")
    training = gpu_stages.Training("micro", "fsl", 4, 5)
    monkeypatch.setattr(gpu_predict, "FEW", (5, 6))
    five = predicted(training)  # as it is
    monkeypatch.setattr(gpu_predict, "FEW", (2, 3))
    assert predicted(training) == five
    assert predicted(dataclasses.replace(training, clients=6)).bytes > five.bytes > 0


def test_ratios_are_of_turns_and_the_fastest_is_named(still_clock: None) -> None:
    class Sleepy(Loop):
        """Takes as long as the next of its times; the first ones warm it up."""

        def train(self, clients: Sequence[Client]) -> Trained:
            time.sleep(times[id(self)].pop(0))
            return super().train(clients)

    def sleepy() -> Sleepy:
        return Sleepy(FedAvg(), SHARED, Schedule(1, 8))

    ways = {"loop": sleepy(), "stacked": sleepy(), "recorded": sleepy()}
    times = {
        id(ways["loop"]): [9.0, 4.0, 8.0, 2.0],
        id(ways["stacked"]): [9.0, 9.0, 9.0, 2.0, 2.0, 2.0],  # 2, 4 and 1 times as fast
        id(ways["recorded"]): [9.0, 9.0, 9.0, 8.0, 2.0, 0.5],  # 0.5, 4 and 4
    }
    found = gpu_stages.timed(ways, example_clients(FedAvg(), SHARED), 2)
    assert (found["fastest"], found[TIMES]) == ("recorded", pytest.approx(4))
    assert found["seconds a step"] == pytest.approx({"loop": 2, "stacked": 1, "recorded": 1})


def test_of_equal_clients_the_loop_may_train_a_few_whose_time_counts_for_all(
    still_clock: None,
) -> None:
    class Sleepy(Loop):
        """Takes a second a client."""

        def train(self, clients: Sequence[Client]) -> Trained:
            time.sleep(float(len(clients)))
            return super().train(clients)

    way = Sleepy(FedAvg(), SHARED, Schedule(1, 8))
    clients = example_clients(FedAvg(), SHARED)
    found = gpu_stages.timed({"loop": way, "padded": way}, clients, 2, few=2)
    assert found["seconds a step"] == pytest.approx(
        {"loop": len(clients) / 2} | {"padded": len(clients) / 2}
    )
    assert found[TIMES] == pytest.approx(1)


def test_targets_are_met_at_their_bounds_and_unknown_where_nothing_was_measured() -> None:
    outcomes = {"s": Outcome("done", 1.0, 2.0, measured={"e": {"x": 10.0}, "wrong": True})}
    assert Target("s", "e", "x", 10.0).met(outcomes)
    assert Target("s", "e", "x", 10.0, at_least=True).met(outcomes)
    assert Target("s", "e", "x", 9.9).met(outcomes) is False
    assert Target("s", "e", "x", 10.1, at_least=True).met(outcomes) is False
    unknown = [Target("t", "e", "x", 1), Target("s", "f", "x", 1), Target("s", "e", "y", 1)]
    assert [target.met(outcomes) for target in (*unknown, Target("s", "wrong", "x", 1))] == [
        None
    ] * 4


def test_every_target_is_something_that_a_stage_writes_down() -> None:
    names = {stage.name for stage in gpu_accept.STAGES}
    steps = {training.name for training in gpu_stages.TRAININGS}
    uneven = {training.name for training in gpu_stages.UNEVEN}
    written = {"steps": steps, "dirichlet": uneven, "rounds": {"lenet fsl"}, "pfl": {"fastest"}}
    for target in TARGETS:
        assert target.stage in names
        assert target.entry in written[target.stage]
    assert sum(stage.share for stage in gpu_accept.STAGES) <= 600


def test_predictions_stand_beside_each_step_and_infinities_are_no_json() -> None:
    work = {"flops": 1e9, "least": 2e9, "bytes": 4e9, "kernels": 10}
    step = {"seconds a step": {"loop": 1.0, "stacked": 0.02}, "fastest": "stacked", TIMES: 50.0}
    peaks = {"bytes": 1e12, "flops": 1e12, "launch": 1e-5, "replay": None}
    outcomes = {
        "device": Outcome("done", 1.0, 2.0, measured={"peaks": peaks}),
        "steps": Outcome(
            "failed",
            1.0,
            2.0,
            "out of memory",
            {
                "lenet fedavg batch 8": step | {"work": work},
                "conv8 fedavg batch 32": {"error": "x"},
            },
        ),
        "equality": Outcome("done", 1.0, 2.0, measured={"fsl loop": {"updates": float("inf")}}),
    }
    with_roofline(outcomes)
    entry = outcomes["steps"].measured["lenet fedavg batch 8"]
    assert entry["roofline, seconds"] == pytest.approx(3e-3)
    assert entry["as written, seconds"] == pytest.approx({"stacked": 5e-3})
    whole = json.loads(json.dumps(content({"device": "cpu"}, outcomes), allow_nan=False))
    assert whole["stages"]["equality"]["measured"]["fsl loop"]["updates"] is None
    met = {(t["entry"], t["number"]): (t["measured"], t["met"]) for t in whole["targets"]}
    assert met["lenet fedavg batch 8", TIMES] == (50.0, True)
    assert met["lenet fedavg batch 8", gpu_report.FLOOR] == (pytest.approx(20 / 3), False)
    assert met["conv4 fedavg batch 8", TIMES] == (None, None)


def test_bits_of_a_model_tell_zero_from_minus_zero() -> None:
    zero, minus = ({"w": torch.tensor([x])} for x in (0.0, -0.0))
    assert gpu_stages.bits(zero) == gpu_stages.bits({"w": torch.zeros(1)})
    assert gpu_stages.bits(zero) != gpu_stages.bits(minus)


def test_tests_that_need_cuda_are_found_by_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text('pytest.mark.skipif(True, reason="needs CUDA")')
    (tmp_path / "test_b.py").write_text("nothing")
    assert [path.name for path in cuda_tests(tmp_path)] == ["test_a.py"]
    assert Path(__file__).parent / "test_recorded.py" in cuda_tests(Path(__file__).parent)


def test_a_stage_keeps_what_it_wrote_down_when_its_time_is_up() -> None:
    ours, theirs = multiprocessing.Pipe(duplex=False)
    theirs.send(("entry", "a", 1))
    late = followed(ours, 5.0, time.monotonic() - 1)
    assert (late.status, late.measured, late.share) == ("out of time", {"a": 1}, 5.0)
    theirs.send(("entry", "b", 2))
    theirs.send(("done", "", None))
    theirs.send(("entry", "of the next stage", 3))
    done = followed(ours, 5.0, time.monotonic() + 60)
    assert (done.status, done.measured) == ("done", {"b": 2})
    assert followed(ours, 5.0, time.monotonic() - 1).measured == {"of the next stage": 3}
    theirs.close()
    ended = followed(ours, 5.0, time.monotonic() + 60)
    assert (ended.status, ended.error) == ("failed", "its process ended")


@pytest.mark.slow
def test_stages_go_on_after_one_that_raises_and_one_that_dies() -> None:
    kinds = (accepted_stages.raises, accepted_stages.dies, accepted_stages.finds)
    saved: list[list[str]] = []
    outcomes = play(
        [Stage(kind, 1) for kind in kinds], Job("cpu"), 540, lambda o: saved.append([*o])
    )
    assert saved == [["raises"], ["raises", "dies"], ["raises", "dies", "finds"]]
    assert [outcome.status for outcome in outcomes.values()] == ["failed", "failed", "done"]
    assert outcomes["raises"].error == "RuntimeError: the device is lost"
    assert outcomes["dies"].error == "its process ended"
    measured = [outcome.measured for outcome in outcomes.values()]
    assert measured == [{"before": 1}, {"before": 2}, {"device": "cpu"}]


@pytest.mark.slow
def test_a_stage_that_is_ended_takes_along_what_it_started() -> None:
    process, ours = started([Stage(accepted_stages.starts_another, 1)], Job("cpu"))
    kind, entry, child = ours.recv()
    assert (kind, entry) == ("entry", "child")
    assert process.is_alive()
    os.kill(child, 0)  # it is there
    end_group(process)
    assert not process.is_alive()
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().rpartition(") ")[2].startswith("Z"):
            return
        time.sleep(0.1)
    pytest.fail("the child of the stage goes on")


@pytest.mark.slow
def test_all_stages_come_to_their_end_on_a_cpu(tmp_path: Path) -> None:
    before = set(gpu_accept.RESULTS.glob("*"))
    file = tmp_path / "accept.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    whole = json.loads(file.read_text())
    ends = {name: (stage["status"], stage["error"]) for name, stage in whole["stages"].items()}
    assert ends == {stage.name: ("done", "") for stage in gpu_accept.STAGES}
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(stage["measured"] for stage in whole["stages"].values())
    assert "skipped" in whole["stages"]["tests"]["measured"]["summary"]
    assert set(whole["stages"]["determinism"]["measured"].values()) == {True}
    assert all(found["agrees"] for found in whole["stages"]["equality"]["measured"].values())
    for entry in whole["stages"]["steps"]["measured"].values():
        assert 0 < entry["roofline, seconds"] < entry["seconds a step"]["loop"]
    assert len(set(whole["stages"]["dirichlet"]["measured"]["micro fedavg batch 4"]["steps"])) == 2
    assert {target["measured"] for target in whole["targets"]} == {None}  # of small sizes none is
    assert set(gpu_accept.RESULTS.glob("*")) == before  # of a CPU nothing is kept unasked


def test_the_file_of_a_run_on_an_accelerator_is_named_by_it_and_the_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = types.SimpleNamespace(get_device_name=lambda device: "NVIDIA H200 (NVL)")
    monkeypatch.setattr(torch, "get_device_module", lambda device: driver)
    file = gpu_accept.named(torch.device("cuda"), "2026-11-25T17:07:44+00:00")
    assert file == gpu_accept.RESULTS / "accept-nvidia-h200-nvl-2026-11-25.json"


def test_a_slow_stage_has_twice_its_share_and_no_stage_more_than_the_whole() -> None:
    assert last_second(40, share=30, end=90, whole=500) == 100  # begun in time: what is left, too
    assert last_second(20, share=30, end=90, whole=500) == 90
    assert last_second(80, share=30, end=90, whole=500) == 140  # begun late
    assert last_second(490, share=30, end=90, whole=500) == 500
