"""Codecs under attack: dense vectors both ways through them, and what a client may choose."""

import dataclasses
import math
from typing import Any, get_args

import pytest
import torch
from crafting import crafted, round_of

import fedbench
from fedbench.adversary.metrics import forged_headers
from fedbench.adversary.threat_model import forge, own_codec
from fedbench.api import Attack, AttackView, Knowledge
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.state import RunState
from fedbench.models.network import Shared
from fedbench.payload import (
    Payload,
    Residues,
    ScaledSigns,
    SeededPatches,
    SparsePatches,
    SparseVectors,
    same,
)
from fedbench.payload.packets import Packet
from fedbench.protocols.compressed import CompressedUpdates
from fedbench.protocols.signsgd import EFSignSGD
from fedbench.run import play_round
from fedbench.testing import NETWORK, example_payloads
from fedbench_attacks.malformed import Kind, Malformed, encoded, meant
from fedbench_attacks.side_information import (
    IndexConcentration,
    ScaleField,
    SeedGrinding,
    SupportMargin,
    gained,
    held,
)
from fedbench_attacks.side_information import encoded as with_seeds
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median, TrimmedMean

# With seed 1 two of the six clients of the round are malicious.
SMALL = Scenario(clients=12, per_round=6, rounds=1, epochs=1, eval_every=1, malicious=0.34, seed=1)
SHARED = Shared(NETWORK, 3, torch.device("cpu"))
PLUGINS = {name: registry.plugin("protocol", name) for name in registry.names("protocol")}
CODECS = [name for name, plugin in PLUGINS.items() if issubclass(plugin, CompressedUpdates)]
OTHERS = ["cast", "signsgd", "stochastic-sign", "fedmrn", "fedmrns", "fedsparsify"]
VARIANTS = ["eden:bits=2.5", "qsgd:norm=l2,bucket=0,code=elias", "topk:error_feedback=true"]


def play(**changes: Any) -> Round:
    """The only round of a small run."""
    (r,) = fedbench.play(SMALL.model_copy(update=changes), device="cpu").rounds
    return r


@pytest.mark.edges(
    "eden-sign-flip:scale=3-wire",
    "qsgd-sign-flip:scale=3-codec",
    "signsgd-sign-flip:scale=3-codec",
    "topk:error_feedback=true-sign-flip:scale=3-wire",
)
@pytest.mark.parametrize("via", ["codec", "wire"])
@pytest.mark.parametrize(
    ("protocol", "attack"),
    [
        *((protocol, "sign-flip:scale=3") for protocol in (*CODECS, *OTHERS, *VARIANTS)),
        *(
            pytest.param(protocol, "dyn-opt:bound=100", marks=pytest.mark.slow)
            for protocol in {PLUGINS[name].sends: name for name in (*CODECS, *OTHERS)}.values()
        ),
    ],
)
def test_dense_attacks_go_through_codecs_both_ways(protocol: str, attack: str, via: str) -> None:
    r = play(protocol=protocol, attack=f"{attack},via={via}")
    assert r.malicious == 2
    assert r.accepted == 6
    least = 5e-4 if protocol == "fedsparsify" else 0.05  # masks have a norm too
    assert (r.gain_mean or 0) > least


@pytest.mark.slow
def test_a_strict_server_and_headers_that_bind_tell_the_two_ways_apart() -> None:
    # -3 u with the norm of u: no vector of that norm is so long in levels.
    for via, accepted in (("codec", 6), ("wire", 4)):
        attack = f"sign-flip:scale=3,via={via}"
        assert play(protocol="fedpaq", attack=attack, server_checks="range").accepted == accepted
    # Through the codec a row a thousand times as long has such a scale; on the wire its own.
    headers = {
        via: play(protocol="drive", attack=f"sign-flip:scale=1000,via={via}")
        for via in ("codec", "wire")
    }
    assert headers["codec"].headers["scales"] == pytest.approx(1000, rel=0.3)
    assert headers["wire"].headers["scales"] == 1.0
    assert headers["codec"].headers["seeds"] == headers["wire"].headers["seeds"] == 0.0
    assert (headers["codec"].gain or 0) > 100 * (headers["wire"].gain or math.inf)


@pytest.mark.edges("ef-signsgd")
@pytest.mark.parametrize("protocol", ["drive", "qsgd", "terngrad", "ef-signsgd", "eden:bits=3"])
def test_a_scale_a_million_times_too_large_is_legal_and_shows_in_the_record(protocol: str) -> None:
    for checks in ("finite", "range"):
        r = play(protocol=protocol, attack="scale-field", server_checks=checks)
        assert r.accepted == 6
        assert r.headers["scales"] == pytest.approx(1e6, rel=1e-5)
        assert (r.gain or 0) > 1e4


def test_the_scale_field_keeps_the_symbols_plausible_and_flips_them() -> None:
    x = Key(0).normal(3, SHARED.layout.d)
    own = EFSignSGD().compress(SHARED, x, x[:, :0], [Key(i) for i in range(3)])
    assert isinstance(own, ScaledSigns)
    sent, loud = (
        crafted(ScaleField(factor=factor), round_of(own, m=1))[1] for factor in (10.0, 1e300)
    )
    assert torch.equal(sent.positive, ~own.positive[:1])
    assert torch.equal(sent.scales, own.scales[:1] * 10)
    assert bool(loud.passes("finite").all())


@pytest.mark.parametrize("name", ["eden:bits=0.5", "randk:k=0.2"])
def test_grinding_finds_the_best_of_its_seeds(name: str) -> None:
    protocol = registry.load("protocol", name)
    x = Key(0).normal(1, 1000)
    own: Any = protocol.compress(SHARED, x, x[:, :0], [Key(2)])
    left = []
    for tries in (1, 4, 40):
        here = dataclasses.replace(round_of(own, m=1), updates=x)
        view, sent = crafted(SeedGrinding(tries=tries), here)
        assert bool(sent.passes("range").all())
        length = float(sent.values().norm() / own.values().norm())
        assert length == pytest.approx(1, abs=0.1)  # as loud as an honest one
        seeds = torch.cat([own.seeds[0], view.key.fold("seeds").bits(tries - 1)])
        own_with = [dataclasses.replace(own, seeds=seed.reshape(1, 1)) for seed in seeds]
        trials = [with_seeds(-x, message) for message in own_with]
        distances = [float((trial.values() + x).norm()) for trial in trials]
        assert float((sent.values() + x).norm()) == pytest.approx(min(distances))
        assert torch.equal(sent.seeds[0, 0], seeds[distances.index(min(distances))])
        left.append(min(distances))
    assert left[2] < left[0]


@pytest.mark.edges("randk")
@pytest.mark.parametrize("protocol", ["drive", "randk", "fedmrn:magnitude=0.001"])
def test_chosen_seeds_show_in_the_record(protocol: str) -> None:
    r = play(protocol=protocol, attack="seed-grinding:tries=8")
    assert r.accepted == 6
    assert (r.headers["seeds"] or 0) > 0
    assert play(protocol=protocol, attack="none").headers["seeds"] == 0.0


def test_indices_are_spent_where_benign_clients_that_hold_them_disagree() -> None:
    # Benign columns 5 5 5, -3 0 6 and 0 0 1. One colluder of norm 5 has e = 5 / sqrt 2. Trimmed by
    # one, the second answers (-3 + 0) / 2 instead of 0: 2.5 squared from its mean 1, less 1. All
    # hold the first, nobody is below 0 in the third. The mean gains most where it is largest.
    index = torch.tensor([[0, 1], [0, 1], [0, 2], [0, 1]])
    entries = torch.tensor([[3.0, 4.0], [5.0, -3.0], [5.0, 1.0], [5.0, 6.0]])
    here = round_of(SparseVectors(index, entries, torch.zeros(4, 0), 4), TrimmedMean(f=1), m=1)
    against = torch.tensor([-1.0, -1, -1, 0]) * 5 / 2**0.5
    honest = here.honest.values()[1:]
    line = (honest, honest.mean(dim=0))
    nothing = torch.zeros(1, 4)
    trimmed = gained(*line, torch.tensor([0.0, 0.5, 0.5, 0.0]), against, nothing)
    assert trimmed.tolist() == [0.0, 5.25, 0.0, 0.0]
    mean = gained(*line, torch.full((4,), 0.25), against, nothing)
    # Of the first column (15 - e) / 4 and 15 / 4, both less 5, squared.
    first = ((15 - 5 / 2**0.5) / 4 - 5) ** 2 - 1.25**2
    assert mean.argmax().item() == 0
    assert mean[0].item() == pytest.approx(first)
    view, sent = crafted(SupportMargin(), here)
    assert sent.indices.tolist() == [[0, 1]]
    assert sent.entries[0].tolist() == pytest.approx([-(12.5**0.5)] * 2)
    assert view.notes["gained"] == 1


def test_without_a_benign_client_the_rule_has_the_colluders_rows_alone() -> None:
    # Nobody holds the second coordinate, so nothing is known of its sign. Beside as many benign
    # rows as colluders the first column would be -5 -5 3 4, whose middle two are -5 and 3.
    index = torch.tensor([[0, 2], [0, 2]])
    entries = torch.tensor([[3.0, 4.0], [4.0, 3.0]])
    here = round_of(SparseVectors(index, entries, torch.zeros(2, 0), 3), Median(), m=2)
    honest = here.honest.values()
    sent = torch.tensor([-4.0, 0.0, -4.0])
    half = torch.full((2,), 0.5)
    alone = gained(honest[:0], honest.mean(dim=0), half, sent, torch.zeros(2, 3))
    assert alone.tolist() == [7.5**2 - 3.5**2, 0.0, 7.5**2 - 3.5**2]
    asked: list[int] = []

    class Noting(Median):
        def order_weights(self, n: int) -> torch.Tensor:
            asked.append(n)
            return super().order_weights(n)

    _, message = crafted(SupportMargin(), round_of(here.honest, Noting(), m=2))
    assert asked == [2]
    assert message.indices.tolist() == [[0, 2]] * 2


def test_a_margin_over_patches_is_one_over_what_is_remembered() -> None:
    # Benign rows 2 2 2 2. The first colluder's row is -9 at 0 already, so that to send -2 there
    # would give ground; at 1 it is 2 like the others.
    remembered = torch.tensor([[-9.0, 2.0, 0.0, 0.0], *[[2.0] * 4] * 3])
    index = torch.tensor([[2, 3], *[[0, 1]] * 3])
    entries = torch.full((4, 2), 2.0)
    payload = SparsePatches(index, entries, torch.zeros(4, 0), 4, remembered=remembered)
    _, sent = crafted(SupportMargin(), round_of(payload, Mean(), m=1))
    assert sent.indices.tolist() == [[1, 2]]  # at 2 and 3 it is 0: the lower one of equal gains
    assert sent.entries.tolist() == [[-2.0, -2.0]]
    weights = torch.full((4,), 0.25)
    benign = payload.values()[1:]
    gains = gained(benign, benign.mean(dim=0), weights, torch.full((4,), -2.0), held(payload)[:1])
    assert gains.tolist() == [1.0 - 2.75**2, 1.0, 0.75, 0.75]


def test_indices_of_patches_are_spent_where_the_opposite_is_not_remembered_yet() -> None:
    # The update is largest at 0, where both ends remember more than its opposite; at 2 they
    # remember the update itself. No benign message holds 0, 2 or 3.
    update = torch.tensor([5.0, 0.5, 2.0, -3.0])
    remembered = torch.tensor([[-6.0, 0.0, 2.0, 0.0], [0.0] * 4])
    index = torch.tensor([[0], [1]])
    entries = torch.tensor([[5.0], [9.0]])
    payload = SparsePatches(index, entries, torch.zeros(2, 0), 4, remembered=remembered)
    here = dataclasses.replace(round_of(payload, m=1), updates=torch.stack([update, update]))
    _, sent = crafted(IndexConcentration(), here)
    assert sent.indices.tolist() == [[2]]
    assert sent.entries.tolist() == [[-5.0]]


def test_a_seed_of_patches_is_chosen_by_what_is_not_the_opposite_yet() -> None:
    updates = torch.tensor([[1.0, 2.0, -3.0, 4.0, 5.0, -6.0]])
    remembered = -updates.clone()
    remembered[0, 2] = 0.0  # all but this coordinate is as the adversary wants it
    first = SeededPatches(
        torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 0), 6,
        remembered=remembered,
    )  # fmt: skip
    own = first.nearest(100 * updates)  # as long as this the patch would not be the opposite
    here = dataclasses.replace(round_of(own, m=1), updates=updates)
    view, sent = crafted(SeedGrinding(tries=64), here)
    assert sent.indices().tolist() == [[2]]
    assert torch.equal(sent.values(), -updates)
    assert view.notes["tries"] == 64


def test_indices_are_spent_where_nobody_contradicts_and_show_in_the_record() -> None:
    # Benign rows hold 0, 1 and 0, 2; the colluders' update is largest at 0, then 3, 5, 4.
    update = torch.tensor([5.0, 0.5, 0.5, -3.0, 0.1, 2.0])
    rows = torch.stack([update, *torch.tensor([[9.0, 8, 0, 0, 0, 0], [9.0, 0, 8, 0, 0, 0]])])
    index = torch.zeros(3, 2, dtype=torch.int64)
    payload = SparseVectors(index, torch.zeros(3, 2), torch.zeros(3, 0), 6).nearest(rows)
    round_ = dataclasses.replace(round_of(payload, m=1), updates=rows)
    view, sent = crafted(IndexConcentration(), round_)
    assert sent.indices.tolist() == [[3, 5]]
    length = (25 + 9) ** 0.5 / 13**0.5  # own message: 5 at 0 and -3 at 3
    assert sent.entries[0].tolist() == pytest.approx([3 * length, -2 * length])
    assert view.notes["unused"] == 2
    assert forged_headers(round_, payload.put([0], sent), torch.ones(3).bool()) == {"indices": 0.5}
    r = play(protocol="topk:k=0.05", attack="index-concentration")
    assert r.accepted == 6
    assert (r.headers["indices"] or 0) > 0.5


def test_headers_are_compared_row_by_row_among_the_accepted() -> None:
    payload = next(p for p in example_payloads(5) if isinstance(p, ScaledSigns))
    forged = dataclasses.replace(payload, scales=payload.scales.clone())
    forged.scales[:2] *= torch.tensor([[3.0], [50.0]])
    forged.scales[4] *= 1000  # benign: not looked at

    def largest(*accepted: int) -> Any:
        rows = torch.isin(torch.arange(5), torch.tensor(accepted))
        return forged_headers(round_of(payload), forged.take(list(accepted)), rows).get("scales")

    assert largest(0, 1, 2, 3, 4) == pytest.approx(50)
    assert largest(0, 2, 3, 4) == pytest.approx(3)
    assert largest(1, 2, 3, 4) == pytest.approx(50)
    assert forged_headers(round_of(payload), forged.take([2]), torch.arange(5) == 2) == {}
    forged.scales[0] = torch.inf  # the server's checks are for that one
    assert largest(0, 1, 2, 3, 4) == pytest.approx(50)
    forged.scales[1] = torch.nan
    everyone = torch.ones(5, dtype=torch.bool)
    assert forged_headers(round_of(payload), forged, everyone) == {"scales": None}
    scales = torch.tensor([[4.0, 0.001]] * 2)
    own = ScaledSigns(torch.ones(2, 2).bool(), scales, torch.zeros(2, 0), (1, 1))
    forged = dataclasses.replace(own, scales=torch.tensor([[4.0, 4.0], [9.0, 9.0]]))
    headers = forged_headers(round_of(own, m=1), forged, torch.ones(2).bool())
    assert headers == {"scales": pytest.approx(1000)}  # of a thousandth of the row's largest


@pytest.mark.parametrize("name", ["topk:k=0.03,error_feedback=true", "ef-signsgd"])
def test_error_feedback_does_not_soften_what_an_attack_compresses(name: str) -> None:
    # What is left of honest updates would be added to the flipped one, and after a few rounds win.
    protocol = registry.load("protocol", name)
    u = Key(0).normal(1, SHARED.layout.d)
    memory: Any = [protocol.memory(SHARED)]
    for step in range(10):
        _, memory = protocol.message(SHARED, u, [Key(step)], memory)
    codec = own_codec(protocol, SHARED, [Key(11)], memory)([0])
    afresh, _ = protocol.message(SHARED, -u, [Key(11)], [protocol.memory(SHARED)])
    assert same(codec(-u), afresh)
    assert float((codec(-u).values() * u).sum()) < 0


def test_an_attacker_without_benign_company_sees_no_rows() -> None:
    lonely: dict[str, Any] = {"clients": 10, "per_round": 1, "malicious": 0.9}
    for protocol in ("drive", "randk", "fedmrn"):
        assert play(protocol=protocol, attack="dyn-opt:bound=4", **lonely).malicious == 1


class Release(Attack):
    """Sends what its clients have not sent yet, negated: the residual of error feedback."""

    def needs(self) -> Knowledge:
        return Knowledge("colluders")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        residuals = torch.stack([memory_row["residual"] for memory_row in view.memories])
        view.notes["residual"] = float(residuals.norm())
        crafted = view.compress(-residuals)
        view.memories[0]["residual"].add_(1e6)  # a copy: the codec's own is as it was
        assert view.compress(-residuals).encode() == crafted.encode()
        return crafted, memory


@pytest.mark.slow
def test_error_feedback_is_part_of_what_an_attack_sees_and_cannot_be_written() -> None:
    setup = prepare(SMALL.model_copy(update={"protocol": "topk:k=0.05,error_feedback=true"}), "cpu")
    plugins = dataclasses.replace(setup.plugins, attack=Release())
    honest = RunState(setup.plugins.protocol.init(setup.shared))
    attacked = RunState(setup.plugins.protocol.init(setup.shared))
    play_round(setup, honest, 0)
    first = play_round(dataclasses.replace(setup, plugins=plugins), attacked, 0)
    assert first.notes["residual"] == 0.0
    for i, memory in honest.memories.items():
        assert torch.equal(memory["residual"], attacked.memories[i]["residual"])
    second = play_round(dataclasses.replace(setup, plugins=plugins), attacked, 1)
    malicious = setup.population.malicious.ids()
    assert set(first.clients) & set(second.clients) & set(malicious)
    assert float(second.notes["residual"]) > 0


@pytest.mark.slow
@pytest.mark.edges("range")
@pytest.mark.parametrize("checks", ["none", "finite", "range"])
def test_the_server_is_as_strict_as_it_is_told(checks: str) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Negative(Attack):
        scale: float

        def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
            own: Any = view.own
            return dataclasses.replace(own, scales=own.scales * self.scale), memory

    for scale, rejecting in ((-1.0, {"range"}), (float("nan"), {"finite", "range"}), (1e6, set())):
        strict = {"protocol": "drive", "server_checks": checks}
        setup = prepare(SMALL.model_copy(update=strict), "cpu")
        plugins = dataclasses.replace(setup.plugins, attack=Negative(scale=scale))
        state = RunState(setup.plugins.protocol.init(setup.shared))
        r = play_round(dataclasses.replace(setup, plugins=plugins), state, 0)
        assert r.rejected_malicious == (2 if checks in rejecting else 0)
        assert r.rejected_honest == 0


KINDS = get_args(Kind)
BY_NAME = {type(payload).__name__: payload for payload in example_payloads()}
EXAMPLES = [
    pytest.param(payload, id=f"{type(payload).__name__}{i}")
    for i, payload in enumerate(example_payloads())
]


def packets_of(payload: Payload, kind: Any) -> list[Packet]:
    return forge(Malformed(kind=kind), round_of(payload), {}).among(payload)


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


def test_what_is_sent_is_what_its_name_says_or_the_nearest_that_the_alphabet_has() -> None:
    floats = BY_NAME["FloatVectors"]
    data = encoded(floats.take([0]))
    sent = {kind: packets_of(floats, kind)[0].data for kind in KINDS}
    del sent["random"]
    assert sent == {
        **{"truncate": data[:-1], "trailing": data + b"\0", "empty": b"", "length": data[:-4]},
        **{"nan": b"\0\0\xc0\x7f" * 102, "infinity": b"\0\0\x80\x7f" * 102},
        **{"duplicate": data + data, "permutation": data + data},
    }
    assert bool(floats.receive(packets_of(floats, "nan"), "none")[1].all()), "nobody checks"
    assert meant("nan", BY_NAME["SignBits"]) == meant("infinity", BY_NAME["Rankings"]) == "length"
    assert meant("nan", BY_NAME["SparseVectors"]) == "nan"
    assert meant("permutation", BY_NAME["SparseVectors"]) == "duplicate"
    assert meant("permutation", BY_NAME["TopRankings"]) == "permutation"
    for payload in example_payloads():
        if isinstance(payload, Residues):  # packed bytes, or words of a range coder
            missing = len(encoded(payload.take([0]))) - len(packets_of(payload, "length")[0].data)
            assert missing == (1 if payload.modulus == 2**12 else 4)
        if isinstance(payload, SparseVectors) and not payload.coded:
            assert len(packets_of(payload, "duplicate")[0].data) == len(encoded(payload.take([0])))


@pytest.mark.slow
@pytest.mark.edges("fedavg-nan", "fedpm-empty", "qsgd-length")
@pytest.mark.parametrize(
    ("protocol", "kind"),
    [
        *[("fedavg", "nan"), ("fsl", "permutation"), ("topk", "duplicate")],
        *[("fedpm", "empty"), ("signsgd", "truncate"), ("qsgd", "length")],
    ],
)
def test_a_run_goes_on_and_counts_what_was_rejected(protocol: str, kind: str) -> None:
    attacked = {"protocol": protocol, "attack": f"malformed:kind={kind}"} | {"rounds": 2}
    record = fedbench.play(SMALL.model_copy(update=attacked), device="cpu")
    assert len(record.rounds) == 2
    assert sum(r.malicious for r in record.rounds) > 0
    for r in record.rounds:
        assert r.rejected_malicious == r.malicious
        assert r.rejected_honest == 0
        assert not r.skipped
        assert r.notes["kind"] == kind
