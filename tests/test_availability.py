"""Clients that drop out: who sends, what is counted and priced, and what is refused."""

import hashlib
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import fedbench
from fedbench import Scenario
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.rng import Key
from fedbench.experiment import cohorts
from fedbench.experiment.availability import Dropout, Trace, parse, written
from fedbench.experiment.cells import Cell, Run
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import parse as parse_record
from fedbench.results import extract
from fedbench.results.aggregate import aggregate
from fedbench.results.store import Store
from fedbench.run import begin, play_round

SMALL: dict[str, Any] = {
    **{"model": "micro", "clients": 12, "per_round": 6, "rounds": 3, "epochs": 1},
    **{"malicious": 0.25, "attack": "sign-flip"},
}


def scenario(**fields: Any) -> Scenario:
    return Scenario(**SMALL | fields)


def play(**fields: Any) -> fedbench.Record:
    return fedbench.play(scenario(**fields), device="cpu", executor="loop")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Trace of four devices: 0 is there in rounds 0 and 2, 1 from 1 on, 2 never, 3 always."""
    path = tmp_path / "Trace.csv"
    path.write_text("device,first,last\n0,0,0\n1, 1,90 \n0,2,2\n3,0,99\n")
    return path


def test_each_client_drops_out_by_a_coin_of_its_own() -> None:
    ids = list(range(20))
    places = [Dropout(p=0.3).places(ids, step, Key(1).fold(step)) for step in range(1000)]
    times = torch.zeros(20)
    for kept in places:
        times[kept] += 1
    assert float((times - 700).abs().max()) < 5 * math.sqrt(210)
    counts = torch.tensor([float(len(kept)) for kept in places])
    assert float(counts.var()) == pytest.approx(20 * 0.21, rel=0.2), "independent of each other"


def test_a_client_whose_draw_is_the_probability_itself_sends() -> None:
    # Draws are multiples of 2**-24, so those below p are a share p of all.
    p = float(Key(0).uniform(1))
    assert Dropout(p=p).places([7], 0, Key(0)) == [0]
    assert Dropout(p=p + 2**-24).places([7], 0, Key(0)) == []


def test_a_device_of_a_trace_is_there_in_its_rounds_and_clients_share_devices(trace: Path) -> None:
    follows = Trace(file=str(trace))
    ids = [7, 6, 5, 4, 3, 0]  # devices 3, 2, 1, 0, 3, 0
    found = [follows.places(ids, step, Key(0)) for step in range(4)]
    assert found == [[0, 3, 4, 5], [0, 2, 4], [0, 2, 3, 4, 5], [0, 2, 4]]


def test_a_trace_may_name_the_last_round_that_there_is_and_have_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(f"device,first,last\n\n0,{2**31 - 1},{2**31 - 1}\n0,3,3\n\n")
    follows = Trace(file=str(path))
    there = [follows.places([0], step, Key(0)) for step in (2, 3, 4, 2**31 - 1)]
    assert there == [[], [0], [], [0]]


def test_clients_that_drop_out_do_so_with_probability_a_tenth_unless_said_otherwise() -> None:
    assert written("dropout") == "dropout:p=0.1"


def test_without_drop_outs_a_record_says_nothing_of_them() -> None:
    record = play()
    assert "availability" not in record.to_json()
    assert "dropped" not in record.to_json()
    assert record.scenario.availability == "none"
    assert all(r.dropped == 0 and len(r.clients) == 6 for r in record.rounds)


def test_nobody_knows_the_bits_of_a_message_if_none_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "gone.csv"
    path.write_text("device,first,last\n0,9,9\n")
    record = play(availability=f"trace:file={path}")
    assert record.result.uplink_bits_per_parameter is None
    assert aggregate([extract.entry(record), extract.entry(play())])["uplink_bits"] == 32.0


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fedavg", "feddrop"])
def test_clients_that_drop_out_are_sent_to_and_counted_and_nothing_else(protocol: str) -> None:
    # A broadcast of feddrop is a message of its own for each client.
    record = play(availability="dropout:p=0.4", protocol=protocol)
    whole = play(protocol=protocol)
    assert record.scenario.availability == "dropout:p=0.4"
    assert sum(r.dropped for r in record.rounds) > 0
    pairs = list(zip(record.rounds, whole.rounds, strict=True))
    for r, full in pairs:
        assert len(r.clients) + r.dropped == 6
        assert [i for i in full.clients if i in r.clients] == r.clients
        assert r.accepted == len(r.clients)
        assert r.downlink_bits == pairs[0][1].downlink_bits or protocol == "feddrop"
    assert pairs[0][0].downlink_bits == pairs[0][1].downlink_bits
    each = {r.uplink_bits / len(r.clients) for r in whole.rounds if r.uplink_bits}
    if protocol == "fedavg":
        assert {r.uplink_bits / len(r.clients) for r in record.rounds if r.uplink_bits} == each
        down = whole.result.downlink_bits_per_parameter
        assert record.result.downlink_bits_per_parameter == down
    assert [(r.clients, r.malicious, r.dropped) for r in record.rounds] == list(
        cohorts.rounds(record.scenario)
    )
    assert parse_record(record.to_json().encode(), "it").rounds == record.rounds


def test_a_client_that_drops_out_remembers_what_it_did_before() -> None:
    lossy = prepare(
        scenario(protocol="topk:error_feedback=true", clients=6, availability="dropout:p=0.5"),
        "cpu",
        "loop",
    )
    state = begin(lossy)
    kept: dict[int, torch.Tensor] = {}
    for step in range(3):
        r = play_round(lossy, state, step)
        assert set(state.memories) == set(kept) | set(r.clients)
        for i, residual in kept.items():
            same = torch.equal(state.memories[i]["residual"], residual)
            assert same == (i not in r.clients)
        kept = {i: memory["residual"].clone() for i, memory in state.memories.items()}
    assert len(kept) > 0


def test_a_round_in_which_nobody_comes_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "gone.csv"
    path.write_text("device,first,last\n0,1,1\n")
    record = play(availability=f"trace:file={path}")
    assert [r.skipped for r in record.rounds] == [True, False, True]
    assert [(len(r.clients), r.dropped) for r in record.rounds] == [(0, 6), (6, 0), (0, 6)]
    assert record.result.downlink_bits_per_parameter == 32  # of all that were sent the broadcast
    assert record.rounds[1].malicious < 3
    assert not any("half of the rows" in flag for flag in record.flags), "nobody has none of none"


@pytest.mark.slow
def test_a_secure_sum_is_that_of_who_came_and_who_came_is_charged() -> None:
    fields: dict[str, Any] = {
        **{"protocol": "fedpm", "mechanism": "mask-gaussian", "sees": "sum", "attack": "none"}
    }
    lossy = prepare(scenario(availability="dropout:p=0.5", **fields), "cpu", "loop")
    state = begin(lossy)
    rounds = [play_round(lossy, state, step) for step in range(3)]
    assert state.ledger.honest == min(len(r.clients) for r in rounds if r.clients)
    (charged,) = state.ledger.local.values()
    assert charged == {
        i: count for i in range(12) if (count := sum(i in r.clients for r in rounds))
    }
    whole = play(**fields)
    part = play(availability="dropout:p=0.5", **fields)
    assert whole.privacy is not None
    assert part.privacy is not None
    assert f"sum of {state.ledger.honest} honest" in part.privacy.sampler
    assert part.privacy.bounds["secure-sum"] is not None
    assert whole.privacy.bounds["secure-sum"] is not None


@pytest.mark.parametrize(
    "fields",
    [
        {"protocol": "fedpm", "mechanism": "mask-gaussian", "sees": "hidden-sum"},
        {"mechanism": "dp-fedavg"},
    ],
)
def test_where_no_theorem_covers_lost_messages_they_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(Incompatible, match="no theorem covers rounds that lose some"):
        prepare(scenario(availability="dropout:p=0.1", **fields), "cpu")


@pytest.mark.parametrize(
    ("text", "requirement"),
    [
        ("sometimes", "one of none, dropout, trace, got 'sometimes'; use dropout:p=0.1"),
        ("dropout:p=0", r"dropout:p must be in \(0, 1\), got 0"),
        ("dropout:p=1", r"dropout:p must be in \(0, 1\), got 1"),
        ("dropout:p=often", "dropout:p must be a number, got 'often'"),
        ("dropout:q=0.5", "no parameter 'q'"),
        ("trace", "the path of a file"),
        *(
            (f"trace:file=a.csv,sha256={digest}", "64 lower-case hex digits")
            for digest in ("12", 63 * "a", 65 * "a", 64 * "A")
        ),
        ("trace:file=a\n.csv", "one printable line"),
    ],
)
def test_what_is_no_availability_is_refused_without_a_file(text: str, requirement: str) -> None:
    with pytest.raises(ConfigError, match=requirement):
        Scenario.of(availability=text)


@pytest.mark.parametrize(
    ("content", "requirement"),
    [
        ("", "the columns device, first, last"),
        ("device,first\n0,1\n", "the columns device, first, last"),
        ("first,device,last\n0,0,1\n", "the columns device, first, last"),
        ("device,first,last,more\n0,0,1,1\n", "the columns device, first, last"),
        ("device,first,last\n", "a line for a device"),
        ("device,first,last\n0,1\n", "in line 2, got '0,1'"),
        ("device,first,last\n0,0,1,1\n", "in line 2, got '0,0,1,1'"),
        ("device,first,last\n0,0,5\n1,3,2\n", "in line 3, got '1,3,2'"),
        ("device,first,last\n\n0,0,5\n\n1,3,2\n", "in line 5, got '1,3,2'"),
        ("device,first,last\n0,-1,2\n", "in line 2"),
        ("device,first,last\n0,0,__import__('os')\n", "in line 2"),
        ("device,first,last\n0,0,99999999999\n", "in line 2"),
        ("device,first,last\n0,0,2147483648\n", "in line 2"),
        ("device,first,last\n2147483648,0,1\n", "in line 2"),
        (f"device,first,last\n0,0,{'9' * 5000}\n", "in line 2"),  # which int refuses
        ("device,first,last\n1000000,0,9\n", "number devices from 0"),
        (
            "device,first,last\n0,0,9\n1000000,0,9\n",
            "number devices from 0, got 1000000 as one of 2",
        ),
        ("device,first,last\n\udcff,0,9\n", "CSV in UTF-8"),
        ("device,first,last\n0,0,9\r1,0,9\n", "CSV in UTF-8, got new-line character"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(content: str, requirement: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(content, "utf-8", "surrogateescape")
    with pytest.raises(ConfigError, match=requirement):
        written(f"trace:file={path}")
    with pytest.raises(ConfigError, match="cannot be read"):
        written(f"trace:file={tmp_path / 'absent.csv'}")


def test_devices_that_are_never_there_may_be_three_for_each_that_is_and_a_thousand(
    tmp_path: Path,
) -> None:
    path = tmp_path / "gaps.csv"
    lines = "device,first,last\n0,0,0\n0,2,2\n{},0,9\n"  # two devices, and 4 * 2 + 1000 = 1008
    path.write_text(lines.format(1007))
    assert Trace(file=str(path)).places([1006, 1007, 1008], 0, Key(0)) == [1, 2]
    path.write_text(lines.format(1008))
    with pytest.raises(ConfigError, match="number devices from 0, got 1008 as one of 2; number"):
        written(f"trace:file={path}")


def test_a_record_names_the_digest_of_its_trace_and_another_file_is_refused(trace: Path) -> None:
    text = written(f"trace:file={trace}")
    assert text == written(text)
    digest = text.rpartition("=")[2]
    assert len(digest) == 64
    last = "1" if digest[-1] == "0" else "0"
    with pytest.raises(ConfigError, match="must have the SHA-256"):
        written(text[:-1] + last)
    with pytest.raises(ConfigError, match="must have the SHA-256"):
        parse(text[:-1] + last).places([0], 0, Key(0))
    trace.write_text(trace.read_text() + "5,0,9\n")
    other = hashlib.sha256(trace.read_bytes()).hexdigest()
    message = rf"the SHA-256 {digest[:12]}\.\.\. that --availability names, got {other[:12]}\.\.\.;"
    with pytest.raises(ConfigError, match=message):
        written(text)
    assert isinstance(parse(text), Trace), "a record is read without its trace"


def test_a_trace_that_was_changed_is_read_again_in_the_same_process(trace: Path) -> None:
    before = prepare(scenario(availability=f"trace:file={trace}"), "cpu", "loop")
    there = before.taking_part(0)
    trace.write_text("device,first,last\n0,5,9\n")
    after = prepare(scenario(availability=f"trace:file={trace}"), "cpu", "loop")
    assert after.scenario.availability != before.scenario.availability
    assert after.taking_part(0) == []
    assert before.taking_part(0) == there != []  # a run goes on with the file that it began with


def test_a_sweep_whose_trace_was_changed_meanwhile_names_the_file(
    trace: Path, tmp_path: Path
) -> None:
    run = Run(Cell(scenario(availability=f"trace:file={trace}", rounds=1)), 0)
    before = run.resolved.availability
    trace.write_text("device,first,last\n0,0,9\n")
    record = fedbench.play(run.scenario, device="cpu", executor="loop")
    assert record.scenario.availability != before
    line = f"{trace} was changed meanwhile; put the old file back and start the sweep again"
    with Store(tmp_path / "store") as store, pytest.raises(ConfigError, match=re.escape(line)):
        store.keep(run, record)
