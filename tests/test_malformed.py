"""A server rejects broken messages, keeps the others, counts both, and goes on."""

from typing import Any, get_args

import pytest
import torch

import fedbench
from fedbench.adversary.threat_model import forge
from fedbench.experiment.scenario import Scenario
from fedbench.payload import Payload, SparseVectors
from fedbench.payload.packets import Packet
from fedbench.testing import example_context, example_payloads
from fedbench_attacks.malformed import Kind, Malformed, encoded, meant
from fedbench_defenses.mean import Mean

KINDS = get_args(Kind)
EXAMPLES = [
    pytest.param(payload, id=f"{type(payload).__name__}{i}")
    for i, payload in enumerate(example_payloads())
]


def packets_of(payload: Payload, kind: Any) -> list[Packet]:
    context = example_context(payload, Mean())
    return forge(Malformed(kind=kind), context, {}).among(context.honest)


@pytest.mark.parametrize("payload", EXAMPLES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "random"])
def test_the_server_rejects_what_is_broken_and_nothing_else(kind: Any, payload: Payload) -> None:
    received, accepted = payload.receive(packets_of(payload, kind), "finite")
    assert accepted.tolist() == [False, False] + [True] * 7
    assert received.encode() == payload.take(range(2, 9)).encode()


@pytest.mark.parametrize("payload", EXAMPLES)
def test_random_bytes_are_rejected_or_legal(payload: Payload) -> None:
    packets = packets_of(payload, "random")
    honest = payload.encode()
    for mine, sent in zip(honest[:2], packets[:2], strict=True):
        assert len(mine.data) == len(sent.data)
        assert mine.data != sent.data
    received, accepted = payload.receive(packets, "finite")
    assert bool(accepted[2:].all())
    received.check()
    assert bool(torch.isfinite(received.values()).all())


def test_what_is_sent_is_what_its_name_says() -> None:
    by_name = {type(payload).__name__: payload for payload in example_payloads()}
    data = encoded(by_name["FloatVectors"].take([0]))
    sent = {kind: packets_of(by_name["FloatVectors"], kind)[0].data for kind in KINDS}
    assert sent["truncate"] == data[:-1]
    assert sent["trailing"] == data + b"\0"
    assert sent["empty"] == b""
    assert sent["length"] == data[:-4]
    assert sent["nan"] == b"\0\0\xc0\x7f" * 102
    assert sent["infinity"] == b"\0\0\x80\x7f" * 102
    assert sent["duplicate"] == sent["permutation"] == data + data


def test_a_kind_that_an_alphabet_does_not_have_becomes_the_nearest() -> None:
    by_name = {type(payload).__name__: payload for payload in example_payloads()}
    assert meant("nan", by_name["SignBits"]) == meant("infinity", by_name["Rankings"]) == "length"
    assert meant("nan", by_name["SparseVectors"]) == "nan"
    assert meant("permutation", by_name["SparseVectors"]) == "duplicate"
    assert meant("permutation", by_name["TopRankings"]) == "permutation"


def test_a_repeated_index_has_the_length_of_an_honest_message() -> None:
    for payload in example_payloads():
        if isinstance(payload, SparseVectors) and not payload.coded:
            honest = encoded(payload.take([0]))
            assert len(packets_of(payload, "duplicate")[0].data) == len(honest)


def test_a_server_without_checks_takes_nan() -> None:
    floats = example_payloads()[0]
    assert bool(floats.receive(packets_of(floats, "nan"), "none")[1].all())
    assert floats.receive(packets_of(floats, "nan"), "finite")[1].sum() == 7


SMALL = Scenario(clients=20, per_round=6, rounds=2, epochs=1, eval_every=1, malicious=0.5)


@pytest.mark.edges("fedavg-nan", "fedpm-empty", "qsgd-length")
@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        ("fedavg", "nan"),
        ("fsl", "permutation"),
        ("topk", "duplicate"),
        ("fedpm", "empty"),
        ("signsgd", "truncate"),
        ("qsgd", "length"),
    ],
)
def test_a_run_goes_on_and_counts_what_was_rejected(protocol: str, kind: str) -> None:
    attacked = {"protocol": protocol, "attack": f"malformed:kind={kind}"}
    record = fedbench.play(SMALL.model_copy(update=attacked), device="cpu")
    assert len(record.rounds) == 2
    assert sum(r.malicious for r in record.rounds) > 0
    for r in record.rounds:
        assert r.rejected_malicious == r.malicious
        assert r.rejected_honest == 0
        assert not r.skipped
        assert r.notes["kind"] == kind
