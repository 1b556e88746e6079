"""Tests of rounds whose messages are added up as they come: equal to rounds that keep them all."""

import dataclasses
import errno
import gc
import io
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Command, Mistake

from fedbench.adversary.threat_model import Streamed, forge
from fedbench.api import (
    Attack,
    AttackView,
    Defense,
    Knowledge,
    ServerView,
    Shared,
    Traits,
    hooks,
)
from fedbench.core import registry
from fedbench.core.errors import ConfigError, FedbenchError, Incompatible, PluginError
from fedbench.core.rng import Key
from fedbench.executors.training import Client, Loop, Made, Trained
from fedbench.experiment import streamable
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.stages import Honest
from fedbench.experiment.streamable import needs_sums, obstacle, streams
from fedbench.experiment.streamed import finite
from fedbench.payload import (
    BinaryMasks,
    FloatVectors,
    FoldedMessages,
    KeptMessages,
    Payload,
    SignBits,
)
from fedbench.payload.kept import PacketFile
from fedbench.payload.packets import Packet
from fedbench.protocols.fedavg import FedAvg
from fedbench.run import play
from fedbench.testing import check_attack
from fedbench.testing.contracts import example_context
from fedbench_attacks.alie import ALIE
from fedbench_attacks.bits import Margin, MaskIPM
from fedbench_attacks.crafted import Squares
from fedbench_attacks.min_max import MinMax, MinSum
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median, TrimmedMean
from fedbench_defenses.mixing import NNM
from fedbench_defenses.multi_krum import MultiKrum

CHUNK = 5  # of the ten clients of a round: parts of five and one, then two of two that attack
# Their gates and places hang on comparisons of floats, which a rounding of the mean turns.
TURNS = ("fedsparse",)


def scenario(**changes: Any) -> Scenario:
    """Return two short rounds of ten of twenty clients, six of the twenty malicious."""
    short: dict[str, Any] = {"dataset": "digits", "model": "micro", "clients": 20, "per_round": 10}
    short |= {"malicious": 0.3, "rounds": 2, "epochs": 1, "batch_size": 16}
    return Scenario(**(short | changes))


def both(**changes: Any) -> tuple[Record, Record]:
    """Return the records of a run that keeps all messages, and of one that adds them up."""
    asked = scenario(**changes)
    whole = play(asked, executor="loop", stream=False)
    return whole, play(asked, executor="loop", stream=True, chunk=CHUNK)


def require_equal(whole: Record, folded: Record, turns: bool = False) -> None:
    """Require the same rounds: bits, rows and notes exactly, floats as sums of float64 round.

    Once the mean is rounded otherwise, later rounds may differ by what ``turns`` on it.
    """
    assert whole.id == folded.id
    pairs = zip(whole.rounds, folded.rounds, strict=True)
    for number, (one, other) in enumerate(pairs):
        wrong = [field for field in fields(one) if not equal(one, other, field)]
        assert wrong == [] or (turns and number > 0), wrong
    assert whole.result.accuracy == pytest.approx(folded.result.accuracy, abs=0.02)


def fields(measured: Round) -> list[str]:
    """Return the names of all that a round measured."""
    return [field.name for field in dataclasses.fields(measured)]


def equal(one: Round, other: Round, name: str) -> bool:
    """Return whether a field is the same in both, floats to rounding of float32."""
    return close(getattr(one, name), getattr(other, name))


def close(one: Any, other: Any) -> bool:
    """Return whether two numbers are equal, floats to a thousandth, or all of two dictionaries."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[name], other[name]) for name in one)
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-3, abs=1e-6)
    return bool(one == other)


@pytest.mark.edges("fedavg", "fedpm", "feddrop")
@pytest.mark.parametrize("protocol", registry.names("protocol"))
def test_a_streamed_round_of_every_protocol_is_the_round(protocol: str) -> None:
    require_equal(*both(protocol=protocol, defense="mean", attack="free-rider"), protocol in TURNS)


FOLDING = [
    ("fedpm", "mask-ipm"),
    ("fedpm", "mask-ipm:how=threshold"),
    ("fedpm", "mask-ipm:density=free"),
    ("fedpm", "mask-alie:side=minus,z=1"),
    ("fedpm", "margin:rest=against"),
    ("signsgd", "margin:knows=colluders"),
    ("fedpm", "sign-flip:of=mean"),
    ("fedpm", "ipm:via=wire"),
    ("fedavg", "ipm:knows=colluders"),
    ("qsgd", "ipm"),
    ("fedavg", "alie:side=minus"),
    ("drive", "alie:side=minus,knows=colluders,z=1.5"),
    ("signsgd", "alie:side=minus,z=0.5"),
    ("fedavg", "alie:z=1.5"),  # its clients train twice, of whom it asks what they learned
    ("qsgd", "alie:knows=colluders,z=1.5"),
    ("fedpm", "alie"),
    ("fedpm", "mask-alie"),
    ("signsgd", "mask-alie:knows=colluders,z=1"),
    ("fedavg", "min-max"),
    ("qsgd", "min-max:direction=unit"),
    ("drive", "min-max:knows=colluders"),  # whose packets are those of clients that train twice
    ("fedpm", "min-max:direction=sign,via=wire"),
    ("fsl", "min-max"),
    ("fedavg", "min-sum:bound=min"),
    ("signsgd", "min-sum"),
    ("topk", "min-sum:knows=colluders"),
    ("fedavg", "mimic"),
    ("fedpm", "mimic:knows=colluders"),
    ("fsl", "vem"),
    ("fsl", "vem:knows=colluders"),
    ("ef-signsgd", "ipm:knows=colluders"),  # its clients train twice, and remember one of them
    ("fsl", "rank-reversal"),
    ("fedavg", "label-flip"),
    ("fedavg", "neurotoxin"),  # reads what was sent in the round before
    ("fedpm", "complement:of=own"),
    ("fedpm", "complement"),
    ("fedmrn", "complement"),  # whose bits are over noise of different seeds
    ("fedpm", "pinning:period=2"),
    ("fedavg", "model-replacement"),  # its clients train twice, and share a factor
    ("drive", "scale-field"),
    ("fedmrn", "seed-grinding"),
    ("fedavg", "noise"),
    ("fedavg", "malformed"),
    ("fedavg", "none"),
]


@pytest.mark.edges(
    "fedpm-mask-ipm",
    "ef-signsgd-ipm:knows=colluders",
    "fedavg-noise",
    "fedavg-neurotoxin",
    "fedavg-alie:z=1.5",
    "fedavg-min-max",
    "drive-min-max:knows=colluders",
)
@pytest.mark.parametrize(("protocol", "attack"), FOLDING)
def test_a_streamed_attack_is_the_attack(protocol: str, attack: str) -> None:
    whole, folded = both(protocol=protocol, attack=attack, server_checks="finite")
    require_equal(whole, folded)
    if attack != "none":
        assert any((each.gain or 0) > 0 or each.rejected_malicious for each in folded.rounds)


RULES = ("mean", "median", "median:even=lower", "trimmed-mean", "meamed", "vote-margin", "rlr")
RULED = [(protocol, rule) for protocol in ("fedpm", "signsgd") for rule in RULES]


@pytest.mark.edges("signsgd-median", "fedpm-trimmed-mean", "fedpm-log-odds-cap")
@pytest.mark.parametrize(("protocol", "rule"), [*RULED, ("fedpm", "log-odds-cap")])
def test_a_rule_of_sums_or_counts_answers_the_same(protocol: str, rule: str) -> None:
    require_equal(*both(protocol=protocol, defense=rule, attack="complement:of=own"))


def test_crfl_needs_no_more_than_sums() -> None:
    assert needs_sums(prepare(scenario(protocol="fedavg", defense="crfl"), "cpu"))
    whole, folded = both(protocol="fedavg", defense="crfl:c=1", attack="sign-flip")
    require_equal(whole, folded)


@pytest.mark.edges("fedavg-dp-fedavg:clip=1,z=1", "fedpm-randomized-response:p=0.1")
@pytest.mark.parametrize(
    ("protocol", "mechanism"),
    [
        ("fedavg", "dp-sgd:clip=1,z=1"),
        ("fedavg", "dp-fedavg:clip=1,z=1"),
        ("fedpm", "mask-gaussian:sigma=0.1"),
        ("fedpm", "randomized-response:p=0.1"),
        ("signsgd", "noisy-sign:clip=1,z=1"),
    ],
)
def test_a_streamed_mechanism_is_the_mechanism(protocol: str, mechanism: str) -> None:
    require_equal(*both(protocol=protocol, mechanism=mechanism, attack="sign-flip"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Personal(FedAvg):
    """Protocol that sends each client other weights, of which a share is what idle ones return."""

    def broadcast(self, shared: Shared, state: Any, clients: Sequence[int], key: Key) -> Payload:
        w = super().broadcast(shared, state, clients, key).values()
        own = torch.tensor(clients, dtype=w.dtype)[:, None]
        return FloatVectors(w * (1 + own / 100))

    def idle(self, shared: Shared, broadcast: Payload) -> torch.Tensor:
        return broadcast.values() / 10


def test_a_client_that_learned_nothing_returns_a_share_of_what_it_was_sent_itself() -> None:
    require_equal(*both(protocol=Personal(), attack="free-rider", rounds=1))


def test_clients_that_drop_out_and_a_round_without_any() -> None:
    require_equal(*both(protocol="fedavg", availability="dropout:p=0.5", attack="sign-flip"))
    require_equal(*both(protocol="fedpm", per_round=1, availability="dropout:p=0.9", rounds=4))


@pytest.mark.parametrize(
    ("protocol", "attack"),
    [("fedpm", "mask-ipm"), ("signsgd", "margin"), ("fedavg", "ipm"), ("qsgd", "min-max")],
)
def test_a_round_of_malicious_clients_alone(protocol: str, attack: str) -> None:
    short: dict[str, Any] = {"malicious": 0.95, "clients": 20, "per_round": 4, "rounds": 1}
    whole, folded = both(protocol=protocol, attack=attack, **short)
    require_equal(whole, folded)
    assert whole.rounds[0].malicious == 4
    assert folded.rounds[0].notes["benign"] == 0


def test_a_round_without_the_adversary_is_not_looked_at() -> None:
    few: dict[str, Any] = {"malicious": 0.05}
    whole, folded = both(protocol="fedavg", attack="min-max", **few)
    require_equal(whole, folded)
    assert {played.malicious for played in folded.rounds} == {0, 1}


@pytest.mark.parametrize("attack", ["ipm", "min-max"])
def test_an_attack_that_reads_nothing_finite_is_the_attack(attack: str) -> None:
    whole, folded = both(protocol="fedavg:lr=1e30", attack=attack)
    require_equal(whole, folded)
    assert folded.rounds[0].notes["ended"] == "nothing finite to start from"


def test_a_count_of_ones_says_nothing_of_floats_beside_bits() -> None:
    bits = prepare(scenario(protocol="fedpm", defense="median"), "cpu")
    assert needs_sums(bits)
    floats = prepare(scenario(protocol="fedpm", model="cnn4", defense="median"), "cpu")
    assert not needs_sums(floats)
    assert obstacle(floats) is None  # packets are kept
    mean = prepare(scenario(protocol="fedpm", model="cnn4", defense="vote-margin"), "cpu")
    assert needs_sums(mean)


KEPT = [
    ("fedavg", "median", "ipm"),
    ("qsgd", "trimmed-mean", "sign-flip"),
    ("drive", "meamed", "scale-field"),
    ("fsl", "median:even=lower", "rank-reversal"),  # whole numbers
    ("fedavg", "multi-krum", "sign-flip"),
    ("fedpm", "krum", "mask-ipm"),
    ("fsl", "multi-krum:variant=recursive", "rank-reversal"),
    ("signsgd", "multi-krum", "margin"),
    ("fedavg", "mda", "malformed"),  # of which some are rejected
    ("topk", "smea", "noise"),
    ("fedavg", "multi-krum", "min-max"),  # both read the same packets
    ("fedpm", "nnm+median", "min-sum"),
    ("fedavg", "nnm+trimmed-mean", "sign-flip"),
    ("fedpm", "nnm+multi-krum", "mask-ipm"),
    ("fsl", "nnm+median", "rank-reversal"),
    ("fedavg", "rlr", "sign-flip"),  # of bits counts are enough
    ("fedavg", "bulyan:f=1", "sign-flip"),
    ("fsl", "bulyan:f=1", "rank-reversal"),
    ("qsgd", "dnc:iterations=2,sketch=500", "sign-flip"),
    ("fedavg", "nnm+dnc", "sign-flip"),
    ("fedpm", "geometric-median", "mask-ipm"),
    ("fsl", "nnm+geometric-median:smooth=0.1", "rank-reversal"),
    ("drive", "caf", "scale-field"),
    ("fedavg", "nnm+caf", "malformed"),
    ("fedavg", "cge", "noise"),
    ("topk", "norm-bound:noise=0.01", "sign-flip"),
    ("fedavg", "nna", "sign-flip"),
    ("fedpm", "fltrust", "mask-ipm"),
    ("signsgd", "flame", "margin"),
    ("fedavg", "centered-clipping:steps=3", "ipm"),  # from the last answer
]


@pytest.mark.edges(
    "fedavg-median-ipm",
    "fedpm-krum-mask-ipm",
    "fedavg-mda-malformed",
    "fedavg-multi-krum-min-max",
)
@pytest.mark.parametrize(("protocol", "rule", "attack"), KEPT)
def test_a_rule_of_packets_answers_the_same(protocol: str, rule: str, attack: str) -> None:
    assert not needs_sums(prepare(scenario(protocol=protocol, defense=rule), "cpu"))
    whole, folded = both(protocol=protocol, defense=rule, attack=attack)
    ties = protocol == "fsl" and rule.startswith("nnm+")  # means of few rankings; see docs/scale.md
    require_equal(whole, folded, ties)
    assert whole.rounds[-1].true_positive_rate == folded.rounds[-1].true_positive_rate


def test_kept_messages_are_read_a_few_columns_at_a_time_by_hand() -> None:
    rows = FloatVectors(torch.tensor([[0.0, 1.0, 9.0], [2.0, 1.0, -3.0], [7.0, 4.0, 0.0]]))
    kept = KeptMessages(rows.take([]), rows.encode(), at_once=2, width=2)
    tiles = [tile.tolist() for tile in kept.columns()]
    assert len({tile.data_ptr() for tile in kept.columns()}) == 1  # two would be twice the memory
    assert tiles == [[[0, 1], [2, 1], [7, 4]], [[9], [-3], [0]]]
    assert [len(part) for part in kept.parts()] == [2, 1]
    assert kept.mean().tolist() == [3, 2, 2]
    assert kept.take(torch.tensor([2, 0])).mean().tolist() == [3.5, 2.5, 4.5]
    view = ServerView(torch.ones(3, dtype=torch.float64), rows.take([0]), 0, Key(0))
    assert Median().aggregate_kept(kept, None, view)[0].tolist() == [2, 1, 0]
    distances = [[0, 148, 139], [148, 0, 43], [139, 43, 0]]  # 4 + 0 + 144, 49 + 9 + 81, 25 + 9 + 9
    assert squared_distances(kept).tolist() == distances
    two = MultiKrum(f=0, m=2)
    assert two.aggregate_kept(kept, None, view)[0].tolist() == [4.5, 2.5, -1.5]
    assert view.findings.kept is not None
    assert view.findings.kept.tolist() == [False, True, True]


def test_rows_of_kept_messages_are_named_as_those_of_others_are() -> None:
    rows = FloatVectors(torch.tensor([[0.0], [2.0], [7.0]]))
    kept = KeptMessages(rows.take([]), rows.encode())
    mixed = kept.mixed(torch.eye(3, dtype=torch.float64).flip(0))  # the same rows from the end
    for chosen in (torch.tensor([False, False, True]), [2], [-1], torch.tensor([2])):
        assert next(kept.take(chosen).columns()).tolist() == rows.take(chosen).x.tolist() == [[7.0]]
        assert next(mixed.take(chosen).columns()).tolist() == [[0.0]]
    with pytest.raises(IndexError):
        kept.take(torch.tensor([True, False]))


def test_shards_of_columns_answer_what_all_columns_do(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = FloatVectors(Key(3).normal(7, 5 * 8192 + 4))  # seven values round in some order
    kept = KeptMessages(rows.take([]), rows.encode())
    view = ServerView(torch.ones(7, dtype=torch.float64), rows.take([0]), 0, Key(0))
    rule = TrimmedMean(f=1)
    whole = rule.aggregate(rows, None, view)[0]
    for count, spans in ((1, 1), (2, 2), (4, 3), (100, 6)):  # no tile of 8192 is cut
        shards = kept.shards(count)
        assert len(shards) == spans
        assert len({len(shard.span) for shard in shards[:-1]}) <= 1
        parts = [rule.aggregate_kept(shard, None, view)[0] for shard in shards]
        assert torch.equal(torch.cat(parts), whole)
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 4 * 7 * 20_000)
    assert [tile.shape[1] for tile in kept.columns()] == [16384, 16384, 8196]
    assert [len(shard.span) for shard in kept.shards(2)] == [16384, 16384, 8196]
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 4 * 7 * 33_000)  # four tiles
    assert [tile.shape[1] for tile in kept.columns()] == [32768, 8196]
    assert [len(shard.span) for shard in kept.shards(1)] == [24576, 16388]  # in two turns alike
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 4 * 7 * 3000)
    assert [len(shard.span) for shard in kept.shards(1)][-2:] == [3000, 1964]


class FullDisk(io.BytesIO):
    """File that a few bytes fill, a few at a time."""

    def write(self, data: Any) -> int:
        """Write at most two bytes, and none behind the sixth."""
        if self.tell() >= 6:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(bytes(data[:2]))

    def read(self, size: int | None = -1) -> bytes:
        """Read at most two bytes."""
        return super().read(min(2, size or 0))


def test_packets_in_a_file_that_becomes_full() -> None:
    file: Any = FullDisk()
    packets = PacketFile(file)
    places = [packets.put(Packet(b"abc", 20)), packets.put(Packet(b"de", 16))]
    assert [place.read() for place in reversed(places)] == [Packet(b"de", 16), Packet(b"abc", 20)]
    full = "round, 5 bytes so far, must find room in .*, got 'No space left on device'; set TMPDIR"
    with pytest.raises(ConfigError, match=full):
        packets.put(Packet(b"fgh", 24))


def test_there_is_a_file_only_where_packets_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("fedbench.core.scratch.TemporaryFile", none)
    play(scenario(protocol="fedavg", rounds=1), stream=True)
    for changes in ({"defense": "median"}, {"attack": "min-max"}):
        found = "got 'No usable temporary directory found'; set TMPDIR"
        with pytest.raises(ConfigError, match=found):
            play(scenario(protocol="fedavg", rounds=1, **changes), stream=True)


def test_mixed_messages_by_hand() -> None:
    rows = FloatVectors(torch.tensor([[0.0, 8.0], [4.0, 0.0], [torch.nan, 1.0]]))
    kept = KeptMessages(rows.take([]), rows.encode(), at_once=2, width=1)
    halves = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.75, 0.0]], dtype=torch.float64)
    mixed = kept.mixed(halves)
    assert [tile[:, 0].tolist() for tile in mixed.columns()] == [[2, 3], [4, 2]]
    assert (len(mixed), mixed.mean().tolist()) == (2, [2.5, 3])
    assert squared_distances(mixed).tolist() == [[0, 5], [5, 0]]
    first = mixed.take(torch.tensor([1]))
    assert first.mean().tolist() == [3, 2]
    both_ways = mixed.mixed(torch.tensor([[0.5, 0.5]], dtype=torch.float64))
    assert [tile[0, 0].item() for tile in both_ways.columns()] == [2.5, 3]
    assert kept.mixed(torch.tensor([[0, 0.5, 0.5]], dtype=torch.float64)).mean().isnan().all()
    spoilt = kept.mixed(torch.tensor([[1.0, 0, 0], [0, 0.5, 0.5]], dtype=torch.float64))
    assert [tile[:, 0].isnan().tolist() for tile in spoilt.columns()] == 2 * [[False, True]]
    assert squared_distances(spoilt).tolist() == [[0, torch.inf], [torch.inf, 0]]


def test_an_answer_may_be_a_view_of_columns() -> None:
    @dataclasses.dataclass(frozen=True)
    class First(Defense[None]):
        """Rule that answers the first row, itself."""

        def traits(self) -> Traits:
            return Traits(columns=True)

        def tolerates(self, n: int) -> int:
            return 0

        def aggregate(
            self, received: Payload, state: None, view: ServerView
        ) -> tuple[torch.Tensor, None]:
            return received.values()[0], None

    rows = FloatVectors(torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]))
    kept = KeptMessages(rows.take([]), rows.encode(), width=1)
    view = ServerView(torch.ones(2, dtype=torch.float64), rows.take([0]), 0, Key(0))
    assert First().aggregate_kept(kept, None, view)[0].tolist() == [1, 2, 3]


def test_a_kept_message_that_is_not_finite_is_far_from_all() -> None:
    rows = FloatVectors(torch.tensor([[torch.nan, 1.0], [2.0, 1.0], [7.0, 4.0]]))
    kept = KeptMessages(rows.take([]), rows.encode(), width=1)
    far = torch.inf
    assert squared_distances(kept).tolist() == [[0, far, far], [far, 0, 34], [far, 34, 0]]


def test_distances_of_kept_messages_are_taken_about_one_of_them() -> None:
    # About 0 their products are 1e18, which float64 knows to 128; float32 has steps of 64 there.
    rows = FloatVectors(torch.tensor([[0.0, 1e9], [1.0, 1e9 + 128], [3.0, 1e9 + 64]]))
    kept = KeptMessages(rows.take([]), rows.encode(), width=1)
    distances = [[0, 16385, 4105], [16385, 0, 4100], [4105, 4100, 0]]  # 1 + 128^2, 9 + 64^2, ...
    assert squared_distances(kept).tolist() == distances


def test_as_many_columns_are_decoded_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = BinaryMasks(torch.ones(3, 5, dtype=torch.bool), torch.zeros(3, 0))
    kept = KeptMessages(bits.take([]), bits.encode())
    assert [tile.shape for tile in kept.columns()] == [(3, 5)]
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 4 * 3 * 2)  # two columns, three rows
    assert [tile.shape for tile in kept.columns()] == [(3, 2), (3, 2), (3, 1)]
    monkeypatch.setattr("fedbench.payload.kept.DECODED_BYTES", 1)
    assert [tile.shape for tile in kept.columns()] == 5 * [(3, 1)]


def test_a_rule_that_replaces_its_aggregate_has_sums_of_another() -> None:
    class Doubled(Mean):
        """Rule that answers twice the mean, and says nothing of sums."""

        def aggregate(
            self, received: Payload, state: None, view: ServerView
        ) -> tuple[torch.Tensor, None]:
            return 2 * super().aggregate(received, state, view)[0], None

    class Turned(MultiKrum):
        """Rule that answers minus the mean of the picks, and says nothing of packets."""

        def aggregate(
            self, received: Payload, state: None, view: ServerView
        ) -> tuple[torch.Tensor, None]:
            return -super().aggregate(received, state, view)[0], None

    assert Mean().folds
    assert Median().folds
    assert Median().keeps
    assert not MultiKrum().folds
    assert MultiKrum().keeps

    class Clipped(Median):
        """Rule that looks at whole rows first, though it has the traits of one of columns."""

        def aggregate(
            self, received: Payload, state: None, view: ServerView
        ) -> tuple[torch.Tensor, None]:
            x = torch.nn.functional.normalize(received.values())
            return super().aggregate(FloatVectors(x), state, view)

    class Other(NNM):
        """Prefilter that changes rows, and has the shares of one that mixes them otherwise."""

        def transform(self, received: Payload, view: ServerView) -> tuple[Payload, None]:
            return received, None

    assert NNM(f=1).before(Median()).keeps
    assert not NNM(f=1).before(Clipped()).keeps
    for rule in (Doubled(), Turned(f=1), Clipped(), Other(f=1).before(Median())):
        assert not rule.folds
        assert not rule.keeps
        setup = prepare(scenario(protocol="fedavg", defense=rule), "cpu")
        assert "reads each of them" in str(obstacle(setup))


def test_bits_beside_floats_that_are_not_finite_stand_in_for_sums_of_none() -> None:
    bits = torch.tensor([[True, False], [True, True], [False, False]])
    masks = BinaryMasks(bits, torch.full((3, 1), torch.nan))
    none = FoldedMessages.none(masks)
    context = example_context(masks, Mean())
    part = dataclasses.replace(context, streamed=Streamed(3, 2, 0, none))
    for attack in (MaskIPM(how="threshold"), Margin()):
        sent = forge(attack, part, {})
        assert sorted(sent.replaced) == [0, 1]
        assert sent.fields["notes"]["benign"] == 1


@pytest.mark.slow
def test_isolated_rules_are_not_sent_sums() -> None:
    with pytest.raises(Incompatible, match="get whole rounds; leave --isolate out"):
        play(scenario(protocol="fedpm"), stream=True, isolate=True)


def test_a_system_that_does_not_say_its_memory_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert 1 << 28 < streamable.memory() < math.inf
    monkeypatch.delattr(os, "sysconf")
    assert streamable.memory() == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("attack", registry.names("attack"))
def test_whatever_can_be_streamed_is_equal(attack: str) -> None:
    for protocol in ("fedavg", "fedpm", "fsl", "signsgd", "topk", "fedkseed", "fedmrn"):
        try:
            setup = prepare(scenario(protocol=protocol, attack=attack, defense="mean"), "cpu")
        except FedbenchError:
            continue  # they do not fit together, streamed or not
        if obstacle(setup) is None:
            require_equal(*both(protocol=protocol, attack=attack, defense="mean"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"protocol": "byz-ef21", "defense": "median"},
            "a packet of a patch does not say all of its values; use --defense mean",
        ),
        (
            {"protocol": "byz-ef21", "attack": "min-max"},
            "a packet of a patch does not say all of its values; use --attack sign-flip",
        ),
        ({"defense": "signguard"}, "defense signguard reads each of them; use --defense median"),
        ({"defense": "clip:c=1+mean"}, "reads each of them; use --defense median"),
        ({"attack": "poisonedfl"}, "attack poisonedfl reads each of them; use --attack sign-flip"),
        ({"attack": "opt-ipm"}, "attack opt-ipm asks the rule, learns or recruits"),
        ({"mechanism": "dp-fedavg:z=0.4,adaptive=true"}, "counts clients; use one that does not"),
        ({"protocol": "fedpm", "sees": "sum"}, "--sees sum masks them together"),
    ],
)
def test_what_needs_all_messages_is_refused_in_a_line(changes: dict[str, Any], words: str) -> None:
    asked = scenario(protocol="fedavg") if "protocol" not in changes else scenario()
    with pytest.raises(Incompatible) as refused:
        play(asked.model_copy(update=changes), stream=True)
    message = str(refused.value)
    assert words in message
    assert "(about 0.0 GiB for a round of 10 clients)" in message
    assert message.endswith(", or lower --per-round")
    assert "\n" not in message


@dataclasses.dataclass(frozen=True)
class Recruiter(ALIE):
    """ALIE that asks for a client of its own."""

    @property
    def recruits(self) -> int | None:
        return 1


@dataclasses.dataclass(frozen=True)
class Learner(ALIE):
    """ALIE whose clients learn nothing, each round anew."""

    def learn(self, view: Any, learned: Any) -> Any:
        return learned


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unfolded(Mean):
    """The mean by an `aggregate` of its own, with which its sums do not belong together."""

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Any, Any]:
        return received.values().mean(dim=0), state


def holding(setup: Any, **plugins: Any) -> Any:
    """Return the setup with other plug-ins, which need no name."""
    return dataclasses.replace(setup, plugins=dataclasses.replace(setup.plugins, **plugins))


def test_an_attack_that_recruits_or_learns_and_a_rule_that_does_not_fold_get_whole_rounds() -> None:
    setup = prepare(scenario(protocol="fedavg", defense="mean", attack="alie"), "cpu")
    assert obstacle(holding(setup, attack=ALIE())) is None
    for attack in (Recruiter(), Learner()):
        why = obstacle(holding(setup, attack=attack))
        assert why == "attack alie asks the rule, learns or recruits; use --attack sign-flip"
    assert needs_sums(holding(setup, defense=Mean()))
    assert not needs_sums(holding(setup, defense=Unfolded()))
    assert "reads each of them" in str(obstacle(holding(setup, defense=Unfolded())))
    canonical = dataclasses.replace(setup, canonical=True)
    assert obstacle(canonical) == "a canonical run commits to them; leave --canonical out"


@pytest.mark.parametrize(
    ("protocol", "rule", "enough"),
    [
        ("fedavg", "mean", True),
        ("fedavg", "median", False),  # counts of ones say nothing of floats
        ("signsgd", "median", True),
        ("fedpm", "trimmed-mean", True),
        ("fedpm", "vote-margin", True),
        ("fsl", "median", False),
        ("signsgd", "krum", False),
    ],
)
def test_sums_are_enough_for_rules_that_read_sums_or_count_bits(
    protocol: str, rule: str, enough: bool
) -> None:
    setup = prepare(scenario(protocol=protocol, defense=rule), "cpu")
    assert needs_sums(setup) == enough
    assert obstacle(setup) is None  # otherwise packets are kept


@pytest.mark.parametrize("attack", ["none", "noise", "sign-flip", "ipm", "mimic"])
def test_an_attack_that_does_nothing_is_alone_folds_or_keeps_is_streamed(attack: str) -> None:
    assert obstacle(prepare(scenario(protocol="fedavg", attack=attack), "cpu")) is None


def test_only_rounds_of_gigabytes_are_streamed_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    large = prepare(scenario(protocol="fedpm"), "cpu")
    assert not streams(large, None)
    d = large.shared.layout.d
    monkeypatch.setattr(streamable, "MAX_WHOLE_ROUND_BYTES", 24 * 10 * d)
    assert not streams(large, None)
    monkeypatch.setattr(streamable, "MAX_WHOLE_ROUND_BYTES", 24 * 10 * d - 1)
    assert streams(large, None)
    assert not streams(large, False)
    whole = prepare(scenario(protocol="fedpm", defense="signguard"), "cpu")
    assert not streams(whole, None)  # it fits in this machine
    monkeypatch.setattr(streamable, "memory", lambda: 24 * 10 * d)
    assert not streams(whole, None)  # just so
    monkeypatch.setattr(streamable, "memory", lambda: 24 * 10 * d - 1)
    with pytest.raises(Incompatible, match="signguard reads each of them"):
        streams(whole, None)


def test_a_rule_of_distances_needs_room_for_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "memory", lambda: streamable.BYTES_PER_PAIR * 10**2)
    for rule in ("krum", "nnm+median"):
        assert obstacle(prepare(scenario(protocol="fedavg", defense=rule), "cpu")) is None
    monkeypatch.setattr(streamable, "memory", lambda: streamable.BYTES_PER_PAIR * 10**2 - 1)
    for rule in ("krum", "nnm+median"):
        why = obstacle(prepare(scenario(protocol="fedavg", defense=rule), "cpu"))
        assert why == f"defense {rule} compares all pairs of them; use --defense median"
    for rule in ("median", "cge", "norm-bound", "fltrust", "rlr"):  # of columns or of single rows
        assert obstacle(prepare(scenario(protocol="fedavg", defense=rule), "cpu")) is None
    why = obstacle(prepare(scenario(protocol="fedavg", attack="min-max"), "cpu"))
    assert why == "attack min-max may compare all pairs of them; use --attack sign-flip"
    monkeypatch.setattr(streamable, "MAX_WHOLE_ROUND_BYTES", 0)
    monkeypatch.setattr(streamable, "BYTES_PER_PARAMETER", 1e-6)  # a small model, whose rows fit
    with pytest.raises(Incompatible, match="krum compares all pairs"):
        streams(prepare(scenario(protocol="fedavg", defense="krum"), "cpu"), None)
    # A rule that keeps no packets gets the whole round, which fits.
    assert not streams(prepare(scenario(protocol="fedavg", defense="signguard"), "cpu"), None)


def test_the_command_refuses_a_round_that_fits_in_no_memory_before_it_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mistake: Mistake
) -> None:
    monkeypatch.setattr(streamable, "MAX_WHOLE_ROUND_BYTES", 1)
    monkeypatch.setattr(streamable, "memory", lambda: 1)
    out = tmp_path / "runs"
    words = "attack -p fedavg:lr=0.1 -d signguard -a none --dataset digits --model micro"
    words += f" --seeds 0 --clients 6 --per-round 6 --rounds 1 --epochs 1 --device cpu --out {out}"
    assert "defense signguard reads each of them" in mistake(*words.split())
    assert not out.exists()


def test_the_command_leaves_out_what_fits_in_no_memory_and_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command
) -> None:
    monkeypatch.setattr(streamable, "MAX_WHOLE_ROUND_BYTES", 1)
    monkeypatch.setattr(streamable, "memory", lambda: 1)
    words = "attack -p fedavg:lr=0.1 -a dyn-opt --dataset digits --model micro --clients 6"
    words += " --seeds 0 --per-round 6 --rounds 2 --epochs 1 --executor loop --dry-run"
    code, out, _ = command(*words.split(), "--out", tmp_path / "runs")
    assert code == 0
    assert "1 cell x seed 0 = 1 run" in out
    skipped = next(line for line in out.splitlines() if line.startswith("skipped: "))
    assert skipped.startswith("skipped: fedavg:lr=0.1 + mean / dyn-opt: messages must be added up")
    assert "no estimate" not in out


def test_an_attack_that_folds_and_remembers_is_blamed() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Remembers(MaskIPM):
        """Attack that says that it folds, and keeps something all the same."""

        def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
            return super().craft(view, memory)[0], view.step

    asked = scenario(protocol="fedpm", attack=Remembers())
    play(asked, stream=False)
    with pytest.raises(PluginError, match="None as the memory of an attack that folds"):
        play(asked, stream=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Counts(MaskIPM):
    """Attack that counts its looks, and sends ones from the second one on."""

    number: bool = False

    def look(self, view: AttackView, memory: Any) -> tuple[Any, Any]:
        """Return ones, from the second look on, or wrongly a ``number``."""
        looks = (memory or 0) + 1
        view.notes["looks"] = looks
        ones = torch.ones(view.own.values().shape[1]) if looks > 1 else None
        return looks if self.number else ones, looks

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send the answer of the look."""
        assert view.looked is not None
        return view.own.nearest(view.looked.expand(len(view.own), -1)), memory


def test_an_attack_looks_once_a_round_and_remembers() -> None:
    rounds = play(scenario(protocol="fedpm", attack=Counts()), stream=True, chunk=1).rounds
    assert [played.malicious > 1 for played in rounds] == [True, True]
    assert [played.notes["looks"] for played in rounds] == [1, 2]
    assert [played.gain == 0 for played in rounds] == [True, False]  # first they are honest
    with pytest.raises(
        PluginError, match=r"look in round 0 must return \(a tensor or None, memory\), got 1"
    ):
        play(scenario(protocol="fedpm", attack=Counts(number=True)), stream=True)


ANSWERS: list[torch.Tensor] = []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regrets(Counts):
    """Attack that answers ones with a graph, and that sets its answer to 9 after a client."""

    def look(self, view: AttackView, memory: Any) -> tuple[Any, Any]:
        """Return ones of which the attack keeps the tensor itself."""
        ANSWERS.append(torch.ones(view.own.values().shape[1], requires_grad=True))
        return ANSWERS[-1], None

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Send the answer of the look."""
        assert view.looked is not None
        assert not view.looked.requires_grad
        assert bool((view.looked == 1).all())
        ANSWERS[-1].data.fill_(9)
        return view.own.nearest(view.looked.expand(len(view.own), -1)), memory


def test_an_answer_of_a_look_is_what_it_was_when_it_was_given() -> None:
    ANSWERS.clear()
    (played,) = play(
        scenario(protocol="fedpm", attack=Regrets(), rounds=1), stream=True, chunk=1
    ).rounds
    assert played.malicious > 1  # one after the other
    assert bool((ANSWERS[0] == 9).all())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Notes(ALIE):
    """Attack that notes what its clients learned."""

    def sided(self, view: AttackView, *args: Any) -> tuple[torch.Tensor, int]:
        """Choose as ALIE does."""
        assert (view.updates.dtype, view.idle.dtype) == (torch.float32, torch.float32)
        learned = (view.updates - view.idle).mean(dim=0)
        view.notes["learned"] = float(torch.linalg.vector_norm(learned))
        return super().sided(view, *args)


@pytest.mark.parametrize("protocol", ["fedavg", "fedpm"])  # which differ in what is idle
def test_a_look_reads_the_mean_of_what_clients_learned(protocol: str) -> None:
    asked = scenario(protocol=protocol, attack=Notes(), rounds=1)
    whole = play(asked, executor="loop", stream=False)
    folded = play(asked, executor="loop", stream=True, chunk=1)
    require_equal(whole, folded)
    assert folded.rounds[0].malicious > 1  # so that the mean is of several that came one by one
    assert folded.rounds[0].notes["learned"] != 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Climbs(Attack):
    """Attack that looks where the loss of its own clients' samples rises."""

    @property
    def folds(self) -> bool:
        return True

    def needs(self) -> Knowledge:
        return Knowledge("all", data=True)

    def look(self, view: AttackView, memory: Any) -> tuple[Any, Any]:
        assert view.rehearsal is not None
        uphill = view.gradient(view.ahead(), view.rehearsal.x, view.rehearsal.y)
        values = view.own.values().new_ones(view.own.values().shape[1])  # and all gates open
        values[-len(uphill) :] = uphill
        return values, memory

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        rows = view.looked
        if rows is None:
            rows, memory = self.look(view, memory)
        return view.own.nearest(rows.expand(len(view.own), -1)), memory


@pytest.mark.parametrize("protocol", ["fedavg", "feddrop"])  # which sends each client its own
def test_an_attack_that_looks_has_the_samples_of_its_clients(protocol: str) -> None:
    whole, folded = both(protocol=protocol, attack=Climbs(), rounds=1)
    require_equal(whole, folded)
    assert folded.rounds[0].gain
    assert folded.rounds[0].notes["differentiated"]
    check_attack(Climbs(), Mean())


@dataclasses.dataclass(frozen=True)
class Spoilt(FedAvg):
    """Protocol of which a message of two is not finite."""

    def message(self, *args: Any) -> Any:
        """Return what the clients say, with infinity in the first number of some."""
        sent, memories = super().message(*args)
        rows = sent.values().clone()
        rows[rows[:, 1] > 0, 0] = torch.inf
        return FloatVectors(rows), memories


@pytest.mark.parametrize("knows", ["all", "colluders"])
def test_an_adversary_reads_the_packets_of_finite_messages_alone(knows: str) -> None:
    asked = {"attack": f"min-max:knows={knows}", "server_checks": "finite", "per_round": 20}
    whole, folded = both(protocol=Spoilt(), rounds=1, **asked)
    require_equal(whole, folded)
    assert 6 < folded.rounds[0].accepted < 20
    assert folded.rounds[0].notes["gamma"] != 0


def test_distances_of_packets_are_those_of_rows_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0, 9.0], [2.0, 1.0, -3.0], [7.0, 4.0, 0.0]])
    packets = KeptMessages(FloatVectors(x[:0]), FloatVectors(x).encode(), at_once=2, width=2)
    mean = torch.tensor([3.0, 2.0, 2.0])
    push = torch.tensor([1.0, 0.0, -1.0])
    ((last, line),) = dataclasses.replace(packets, only=range(2, 3)).tiles(push)
    assert (last.tolist(), line.tolist()) == ([[9], [-3], [0]], [-1])
    for honest in (x, packets):
        squares = Squares(honest, mean, push, 2)
        assert squares.among.tolist() == [[0, 148, 139], [148, 0, 43], [139, 43, 0]]
        assert squares.norms.tolist() == [59, 27, 24]  # 9 + 1 + 49, 1 + 1 + 25, 16 + 4 + 4
        assert squares.cross.tolist() == [-10, 4, 6]
        assert squares.length == 2
        farthest = (-10 + math.sqrt(100 + 2 * (148 - 59))) / 2  # along the push from the first row
        assert float(MinMax().largest(squares, 1)) == pytest.approx(farthest)
        assert float(MinSum().largest(squares, 1)) == pytest.approx(math.sqrt((287 - 110) / 6))


def test_no_more_clients_are_in_memory_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = []
    train = Loop.train

    def watched(self: Loop, clients: Sequence[Client]) -> Trained:
        at_once.append(len(clients))
        return train(self, clients)

    monkeypatch.setattr(Loop, "train", watched)
    for attack, own in (("mask-ipm", [1, 1, 1, 1]), ("none", [4])):
        played = scenario(protocol="fedpm", attack=attack, rounds=1)
        play(played, executor="loop", stream=True, chunk=4)
        assert at_once == [4, 2, *own]  # six benign clients, then the adversary's four
        at_once.clear()


def live_bytes() -> int:
    """Return the bytes of all tensors and packets that are alive; shared memory counts once."""
    gc.collect()
    memories: dict[int, int] = {}
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and not wrapped(thing):  # left by other tests
            storage = thing.untyped_storage()
            memories[storage.data_ptr()] = storage.nbytes()
        elif type(thing) is Packet:
            memories[id(thing)] = len(thing.data)
    return sum(memories.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "attack"),
    [
        ("mean", "sign-flip"),  # whose messages are added up
        ("median", "ipm"),  # which reads their packets again
        ("multi-krum", "min-max"),  # both read them
        ("mean", "ipm:knows=colluders"),  # whose clients train twice
    ],
)
def test_messages_of_earlier_clients_are_not_alive_while_the_next_ones_train(
    rule: str, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []  # bytes when each client begins: six benign ones, then the other four
    train = Loop.train

    def watched(self: Loop, clients: Sequence[Client]) -> Trained:
        alive.extend(live_bytes() for _ in clients)
        return train(self, clients)

    monkeypatch.setattr(Loop, "train", watched)
    asked = scenario(protocol="fedavg", defense=rule, attack=attack, rounds=1, partition="iid")
    record = play(asked, executor="loop", stream=True, chunk=1)
    row = 4 * record.parameters
    # The sums and the message of the client before are there from the third client on.
    assert alive[2] > alive[0] + 2 * row
    owned = [alive[start:][:4] for start in range(6, len(alive), 4)]
    for settled, *later in (alive[2:6], *(measured[1:] for measured in owned)):
        assert len(later) >= 2
        assert max(later) - settled < row / 2


def test_sums_of_messages_are_those_worked_by_hand() -> None:
    rows = FloatVectors(torch.tensor([[1.0, 2.0], [3.0, -4.0], [0.5, 0.25]]))
    weights = torch.tensor([1.0, 3.0, 4.0], dtype=torch.float64)
    first = FoldedMessages.of(rows.take([0, 1]), weights[:2])
    assert first.total.tolist() == [4.0, -2.0]
    both_parts = first + FoldedMessages.of(rows.take([2]), weights[2:])
    assert len(both_parts) == 3
    assert both_parts.mean().tolist() == pytest.approx([1.5, -1.75 / 3])
    assert both_parts.mean(weighted=True).tolist() == [1.5, (2 - 12 + 1) / 8]
    assert both_parts.mean().dtype == torch.float32
    assert both_parts.unweighted().mean(weighted=True).equal(both_parts.mean())
    large = FoldedMessages.of(FloatVectors(torch.tensor([[3e38], [1e38]])), weights[1:])
    assert large.mean(weighted=True).tolist() == [pytest.approx(13e38 / 7)]  # as shares of rows
    assert large.mean().isinf().all()  # as their mean
    squared = first.with_squares(rows.take([0, 1]))
    assert squared.squares is not None
    assert squared.squares.tolist() == [10, 20]
    assert squared.deviation().tolist() == pytest.approx(
        [2**0.5, 18**0.5]
    )  # 1, 3 about 2; 2, -4 about -1
    three = squared + FoldedMessages.of(rows.take([2]), weights[2:]).with_squares(rows.take([2]))
    assert three.deviation().tolist() == pytest.approx([1.75**0.5, 9.520833333333334**0.5])
    assert (squared + first).squares is None
    own = three.copied()
    assert own.mean(weighted=True).tolist() == [1.5, (2 - 12 + 1) / 8]
    assert own.deviation().equal(three.deviation())
    for x in (own.total, own.weighted, own.squares):
        assert x is not None
        x.zero_()
    assert three.mean(weighted=True).tolist() == [1.5, (2 - 12 + 1) / 8]
    assert three.deviation().tolist() == pytest.approx([1.75**0.5, 9.520833333333334**0.5])
    nothing = FoldedMessages.none(rows)
    assert (len(nothing), nothing.total.tolist()) == (0, [0.0, 0.0])


@pytest.mark.parametrize("signed", [False, True])
def test_counts_of_ones_are_those_worked_by_hand(signed: bool) -> None:
    bits = torch.tensor([[True, False, True], [True, False, False]])
    masks = BinaryMasks(bits, torch.zeros(2, 0), signed)
    alike = torch.ones(2, dtype=torch.float64)
    assert FoldedMessages.of(masks, alike).total.tolist() == ([2, -2, 0] if signed else [2, 0, 1])
    assert FoldedMessages.of(masks, alike).ones().tolist() == [2, 0, 1]
    numbers = FoldedMessages.of(masks, alike).bits_as_values(bits[1])
    assert numbers.tolist() == ([1, -1, -1] if signed else [1, 0, 0])
    floats = BinaryMasks(bits, torch.tensor([[0.5], [2.5]]), signed)
    assert FoldedMessages.of(floats, alike).ones().tolist() == [2, 0, 1]
    assert FoldedMessages.of(floats, alike).total[3:].tolist() == [3]
    assert FoldedMessages.of(SignBits(bits), alike).ones().tolist() == [2, 0, 1]


def test_an_adversary_reads_the_sums_of_finite_messages_alone() -> None:
    rows = FloatVectors(torch.tensor([[1.0, 2.0], [torch.inf, 0.0], [3.0, torch.nan], [5.0, 6.0]]))
    weights = torch.tensor([2.0, 1.0, 1.0, 4.0], dtype=torch.float64)
    part = Honest(
        rows=[0, 1, 2, 3],
        ids=[4, 5, 6, 7],
        clients=[],
        trained=(rows.values(), []),
        updates=rows.values(),
        messages=rows,
        idle=torch.zeros(1, 2),
        view=ServerView(weights, rows.take([0]), 0, Key(0)),
    )
    left = finite(FoldedMessages.of(rows, weights), part)
    assert (len(left), left.total.tolist()) == (2, [6.0, 8.0])
    assert (left.weight, left.weighted) == (2, None)  # it is not told the weights
    last = FoldedMessages.of(rows.take([3]), weights[3:])
    assert (finite(last, part).weight, finite(last, part).weighted) == (1, None)


def test_the_next_clients_begin_before_the_last_ones_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where clients train elsewhere, they do so while messages of others are decoded."""
    whole = play(scenario(attack="ipm", rounds=1), executor="loop", stream=False)
    seen: list[str] = []

    def begin(self: Loop, clients: Sequence[Client]) -> Callable[[], tuple[Trained, Made | None]]:
        number = sum(what.startswith("begun") for what in seen)
        seen.append(f"begun {number}")

        def wait() -> tuple[Trained, Made | None]:
            seen.append(f"waited for {number}")
            return self.exchange(clients)

        return wait

    monkeypatch.setattr(Loop, "begin", begin)
    folded = play(scenario(attack="ipm", rounds=1), executor="loop", stream=True, chunk=2)
    require_equal(whole, folded)
    assert whole.rounds[0].malicious == 4  # so six others in three parts, then four parts of these
    others = ["begun 0", "begun 1", "waited for 0", "begun 2", "waited for 1", "waited for 2"]
    # Those of the adversary begin when it has read the sums of all others, one at a time.
    owned = ["begun 3", "begun 4", "waited for 3", "begun 5", "waited for 4", "begun 6"]
    assert seen == [*others, *owned, "waited for 5", "waited for 6"]


@pytest.mark.parametrize(
    "changes",
    [
        {"protocol": "fedpm", "attack": "mask-ipm"},
        {"protocol": "signsgd", "mechanism": "randomized-response:p=0.2", "defense": "krum"},
        pytest.param({"protocol": "topk", "server_checks": "finite"}, marks=pytest.mark.slow),
    ],
)
def test_messages_that_came_as_packets_are_decoded_once(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that clients encoded elsewhere are those of their packets, unless noise is added."""
    train = Loop.train
    decode = vars(Payload)["_decoded"].__func__
    decoded = Counter[bytes]()

    def overflowing(self: Loop, clients: Sequence[Client]) -> Trained:
        updates, memories = train(self, clients)
        for update, client in zip(updates, clients, strict=True):
            assert isinstance(client.key.seed, int)
            if "server_checks" in changes and client.key.seed % 2:
                update[:] = torch.inf
        return updates, memories

    def exchange(self: Loop, clients: Sequence[Client]) -> tuple[Trained, Made | None]:
        trained = self.trained(clients)
        keys = [client.key for client in clients]
        messages, after = hooks.message(self.protocol, self.shared, trained[0], keys, trained[1])
        packets = messages.encode()
        back, accepted = messages.decode(packets, messages.spec)
        assert back is None or bool(accepted.all())
        return trained, None if back is None else Made(back, after, packets)

    def counted(cls: type[Payload], packet: Packet, spec: Any) -> Payload | None:
        decoded[packet.data] += 1
        row: Payload | None = decode(cls, packet, spec)
        return row

    monkeypatch.setattr(Loop, "train", overflowing)
    whole, here = both(**changes)
    require_equal(whole, here)
    monkeypatch.setattr(Loop, "exchange", exchange)
    monkeypatch.setattr(Payload, "_decoded", classmethod(counted))
    elsewhere = play(scenario(**changes), executor="loop", stream=True, chunk=CHUNK)
    assert elsewhere.rounds == here.rounds
    if changes["protocol"] == "fedpm":  # Krum reads again; an adversary that is idle sends again
        assert set(decoded.values()) == {1}
    rejected = [measured.rejected_honest for measured in here.rounds]
    assert all(0 < count < 6 for count in rejected) or "server_checks" not in changes
