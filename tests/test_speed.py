"""``fedbench bench``: both sides of each comparison do the same work, and ratios are ratios."""

import dataclasses
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fedbench.bench import by_hand, masks, paired, servers, speed
from fedbench.bench.clients import PLAIN, Bench, bench
from fedbench.bench.paired import Pair, Ratio, busy, compare
from fedbench.cli import main
from fedbench.core import registry
from fedbench.core.hadamard import hadamard
from fedbench.core.rng import Key
from fedbench.core.tiling import column_sums, finite_rows, row_sums
from fedbench.models.network import ConvNet
from fedbench.payload import FloatVectors
from fedbench.payload.packets import pack
from fedbench.testing import assert_rounded_alike, doubled, in_float64
from fedbench.testing.defenses import view_of

CPU = torch.device("cpu")
SMALL = dataclasses.replace(
    speed.QUICK,
    models=("micro",),
    batches=(4,),
    clients=2,
    samples=24,
    rows=5,
    width=3000,
    repeats=2,
    largest=1,
)


def ratio(mine: tuple[float, ...], theirs: tuple[float, ...], **other: Any) -> Ratio:
    said = {"group": "g", "what": "w", "against": "a", "target": None, "flops": 0.0, "units": 1}
    return Ratio(mine=mine, theirs=theirs, others=None, **(said | other))


def test_a_ratio_is_the_median_over_turns_not_that_of_the_medians() -> None:
    # Turns 6, 0.5 and 2; medians of the seconds would give 4 / 2.
    found = ratio((1.0, 8.0, 2.0), (6.0, 4.0, 4.0))
    assert found.turns == [6, 0.5, 2]
    assert found.faster == 2
    assert found.met is None
    assert ratio((1.0, 8.0, 2.0), (6.0, 4.0, 5.0)).faster == 2.5
    assert ratio((1.0,), (0.9,), target=0.95).met is False
    assert ratio((1.0,), (0.95,), target=0.95).met is True
    assert ratio((1.0, 3.0, 2.0), (1.0,) * 3, units=4, flops=10.0).milliseconds == 500
    assert ratio((1.0, 3.0, 2.0), (1.0,) * 3, flops=10.0).rate == 5


def test_both_ways_take_turns_after_one_call_each_to_warm_up(still_clock: None) -> None:
    calls: list[str] = []

    def call(name: str) -> None:
        time.sleep(2 * paired.TURN)
        calls.append(name)

    found = compare(Pair("g", "w", "a", lambda: call("a"), lambda: call("b"), units=3), 3, CPU)
    assert "".join(calls) == "ab" + "ab" * 3
    assert len(found.mine) == len(found.theirs) == 3
    assert found.units == 3
    assert found.others is None or found.others >= 0


def test_others_are_who_used_the_machine_beside_this_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # user 1, nice 2, system 3, idle 50, waiting 60, irq 4, softirq 5, stolen 6: 21 are somebody's.
    said = tmp_path / "stat"
    ticks = [100 * n for n in (1, 2, 3, 50, 60, 4, 5, 6, 7, 8)]
    said.write_text("cpu  " + " ".join(map(str, ticks)) + "\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    monkeypatch.setattr(paired, "STAT", said)
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_CLK_TCK": 100}[name])
    monkeypatch.setattr(os, "times", lambda: os.times_result((0.5, 0.25, 2.0, 1.0, 99.0)))
    assert busy() == pytest.approx(21 - 3.75)
    monkeypatch.setattr(paired, "STAT", tmp_path / "absent")
    assert busy() is None


def test_what_is_short_is_called_until_a_clock_can_tell(still_clock: None) -> None:
    calls: list[str] = []
    found = compare(
        Pair("g", "w", "a", lambda: calls.append("a"), lambda: time.sleep(0.03)), 2, CPU
    )
    assert calls.count("a") > 100
    assert found.mine[0] == 0
    assert found.others is None  # it took too short to say


def precise(ours: Bench) -> Bench:
    """The same in float64, where both sides round alike on every processor."""
    engine = dataclasses.replace(ours.executor, protocol=in_float64(ours.protocol))
    return dataclasses.replace(ours, executor=engine, clients=doubled(ours.clients))


def test_the_loop_by_hand_trains_as_ours_does() -> None:
    ours = precise(bench(f"fedavg:lr=0.1,{PLAIN}", "micro", 4, SMALL, CPU, "loop"))
    updates, _ = ours.executor.train(ours.clients)
    assert updates.shape == (2, ours.shared.layout.d)
    theirs = by_hand.train(
        by_hand.model_of(ours.network, CPU).double(),
        ours.shared.layout.flatten(ours.clients[0].tree),
        ours.clients,
        ours.executor.schedule,
        0.1,
    )
    assert_rounded_alike(updates, theirs)
    assert ours.samples == 24


def test_masks_by_hand_are_trained_as_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # Our coins are written down and fed to the other side: then both must end at the same scores.
    ours = precise(bench(masks.BERNOULLI, "micro", 4, SMALL, CPU, "loop"))
    drawn: list[torch.Tensor] = []

    def written(key: Key, p: torch.Tensor) -> torch.Tensor:
        drawn.append(key.bernoulli(p))
        return drawn[-1]

    monkeypatch.setattr(Key, "coins", written)
    updates, _ = ours.executor.train(ours.clients)
    layers, steps = len(ours.shared.weights.names), 2 * 3
    assert len(drawn) == layers * steps
    fed = iter(drawn)
    frozen = ours.executor.frozen
    start = list(ours.clients[0].tree.values())
    theirs = by_hand.mask_train(
        [frozen[name] for name in ours.shared.weights.names],
        start,
        ours.clients,
        ours.executor.schedule,
        ours.network,
        ours.protocol.lr,
        lambda p: next(fed).to(p.dtype),
    )
    assert next(fed, None) is None
    assert_rounded_alike(theirs, updates)
    before = torch.cat([s.flatten() for s in start]).sigmoid()
    assert float((updates[0] - before).abs().max()) > 1e-3


def test_masks_by_hand_draw_as_often_as_ours() -> None:
    pair = masks.bernoulli("micro", bench(masks.BERNOULLI, "micro", 4, SMALL, CPU, "loop"))
    found: Any = pair.mine()
    mine, theirs = found[0], pair.theirs()
    assert isinstance(theirs, torch.Tensor)
    assert mine.shape == theirs.shape
    # Other draws, the same distribution: clients' means over all weights differ by little.
    gap = (mine.mean(dim=1) - theirs.mean(dim=1)).abs()
    assert float(gap.max()) < 0.01
    assert not torch.equal(mine, theirs)


def test_masks_are_measured_beside_weights_where_there_is_a_target() -> None:
    size = dataclasses.replace(SMALL, models=("micro", "lenet"), batches=(4, 8), samples=16)
    found = [(pair.what, pair.target) for pair in masks.pairs(size, CPU, "loop")]
    assert ("lenet, drawn masks, batch 8", 0.45) in found
    assert ("lenet, the best half, batch 8", 0.45) in found
    assert len(found) == 4 + 2


def test_the_round_of_fsl_by_hand_ranks_as_ours_does() -> None:
    ours = precise(bench(f"fsl:lr=0.4,{PLAIN}", "micro", 4, SMALL, CPU, "loop"))
    pair = masks.ranked(ours)
    mine, theirs = pair.mine(), pair.theirs()
    assert isinstance(mine, torch.Tensor)
    assert isinstance(theirs, list)
    # Two of the initial scores are equal, and a sort may order them either way: with two clients
    # they move by two votes at most, past some of the 9,936 edges.
    same = mine[0] == torch.cat(theirs)
    assert float(same.float().mean()) > 0.99
    before = ours.protocol.init(ours.shared)[0]
    assert float((before == mine[0]).float().mean()) < 0.5


def test_rules_by_hand_are_the_rules() -> None:
    x = Key(0).normal(9, 50).double()
    payload = FloatVectors(x)
    for name, theirs in (
        ("trimmed-mean", by_hand.trimmed_mean),
        ("multi-krum", by_hand.multi_krum),
    ):
        rule = registry.load("defense", name).declared(2)
        out, _ = rule.aggregate(payload, None, view_of(payload))
        assert_rounded_alike(out, theirs(x, 2))


def test_transforms_by_hand_are_the_transforms() -> None:
    x = Key(1).normal(256).double()
    assert_rounded_alike(servers.butterflies(x), hadamard(x))
    flags = Key(2).uniform(80) < 0.5
    assert servers.shifted(flags).tolist() == pack(flags.numpy(), 1)[0].tolist()


def test_macs_of_a_small_network() -> None:
    # 2 filters of 1 x 3 x 3 at 16 places, then 8 to 3 and 3 to 5.
    assert by_hand.macs(ConvNet((1, 4, 4), ((2,),), (3,), 5)) == 288 + 24 + 15


def test_a_row_that_is_not_finite_is_found_and_a_large_one_is() -> None:
    assert finite_rows(torch.tensor([[1, 2]])).tolist() == [True]
    x = torch.zeros(6, 4)
    x[0, 1], x[1, 2], x[2, 3], x[3, 0], x[4] = torch.nan, torch.inf, -torch.inf, 3e38, 3e38
    assert finite_rows(x).tolist() == [False, False, False, True, True, True]
    assert finite_rows(x.view(6, 2, 2)).tolist() == [False, False, False, True, True, True]
    assert finite_rows(x[:0]).tolist() == []


def test_sums_over_tiles_are_sums() -> None:
    x = Key(3).uniform(3, 70_000) < 0.5
    assert torch.equal(column_sums(x, torch.int64), x.sum(dim=0))
    assert torch.equal(row_sums(x, torch.int64), x.sum(dim=1))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["table", "json", "md"])
def test_the_suite_is_played(
    format: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(speed, "QUICK", SMALL)
    picture = tmp_path / "speed.png"
    chart = ["--chart", str(picture)] if format == "json" else []
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--quick", "--device", "cpu", "--format", format, *chart])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    if format == "json":
        found = json.loads(said)
        assert found["machine"]["threads"] == 2
        assert {
            "micro, bf16, batch 4",
            "micro, bf16, forked, batch 4",
            "micro, drawn masks, batch 4",
        } <= {one["what"] for one in found["ratios"]}
        groups = {one["group"] for one in found["ratios"]}
        assert groups == {
            *("local training", "a round of FSL", "lock step"),
            *("server", "messages", "framework"),
        }
        speed.require_known([one[part] for one in found["ratios"] for part in ("group", "what")])
        assert all(one["faster"] > 0 and len(one["mine"]) == 2 for one in found["ratios"])
        assert picture.read_bytes().startswith(b"\x89PNG")
    else:
        assert "trimmed mean / torch.sort" in said, said
        assert "micro, batch 4 / a loop by hand" in said
        assert max(map(len, said.splitlines())) <= 100 or format == "md"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16\n", True),
        ("flags\t\t: fpu amx_bf16 avx512f\n", True),
        ("Features\t: fp asimd bf16\n", True),
        ("flags\t\t: fpu avx512f avx512_bf16_less\n", False),
        ("Features\t: fp asimd\n", False),
        ("processor\t: 0\n", True),  # does not say
    ],
)
def test_who_multiplies_in_bfloat16(said: str, expected: bool, tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    assert speed.multiplies_bf16(torch.device("cpu"), info)  # nobody says
    info.write_text(said)
    assert speed.multiplies_bf16(torch.device("cpu"), info) == expected
    assert speed.multiplies_bf16(torch.device("cuda"), info)


@pytest.mark.slow
def test_a_part_of_the_suite_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(speed, "QUICK", SMALL)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--quick", "--only", "lock step", "--only", "a mask", "--format", "md"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert [line for line in said.splitlines() if line.startswith("| **")] == [
        "| **lock step** |" + " |" * 6,
        "| **messages** |" + " |" * 6,
    ]
    assert "packing a mask" in said
    assert "summed" not in said
    assert "n^" not in said


def test_options_of_the_suite_stand_before_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--threads", "8", "defenses"])
    assert ended.value.code == 2
    assert "--threads is of the whole suite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("--format", "csv", "table, json or md"),
        ("--threads", "0", ">= 1"),
        ("--chart", "a.gif", ".png"),
        ("--only", "chess", "part of a group or a name"),
    ],
)
def test_what_the_suite_does_not_know_is_said(
    option: str,
    value: str,
    rule: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(speed, "QUICK", SMALL)
    with pytest.raises(SystemExit) as ended:
        main(["bench", "--quick", option, value])
    assert ended.value.code == 2
    assert rule in capsys.readouterr().err
