"""Functions are the plug-ins: what a function answers is what the plug-in answers in a run."""

import ast
import doctest
import inspect
import math
import subprocess
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedbench
from fedbench import functional
from fedbench.adversary import threat_model
from fedbench.api import Attack, AttackView, Defense, Prefilter, ServerView, Shared, hooks
from fedbench.api.prefilter import transform
from fedbench.core import registry
from fedbench.core.errors import ConfigError, NoTheorem
from fedbench.core.rng import Key, Secret
from fedbench.core.trees import Layout
from fedbench.data import archives
from fedbench.functional import catalogue
from fedbench.functional.__main__ import HERE, MARK, PAGE
from fedbench.functional.attacks import arguments_of, rule_of
from fedbench.functional.codecs import Codec, shared_of
from fedbench.functional.forms import message, read, symbols
from fedbench.models.network import ConvNet
from fedbench.payload import BinaryMasks, FloatVectors, Payload, Rankings, ranking
from fedbench.privacy.planning import PrivacyPlan
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing import NETWORK, example_context
from fedbench_defenses.median import TrimmedMean
from fedbench_defenses.mixing import NNM

N = 11
CPU = torch.device("cpu")
CLASSES = ConvNet((1, 1, 1), (), (), 12)  # one linear layer, a class for each column
LISTED = catalogue.functions()


def draw(seed: int, n: int = N, d: int = 12) -> Tensor:
    return Key(seed).fold("functional").normal(n, d)


def rows_for(cls: Any, n: int = N) -> Tensor:
    """Real rows if the plug-in takes any, else masks, else rankings."""
    x = draw(0, n)
    instance = cls()
    for rows, kind in ((x, FloatVectors), (x > 0, BinaryMasks)):
        accepted = issubclass(kind, cls.accepts)
        refused = getattr(instance, "refuses", lambda kind: None)(kind)
        if accepted and refused is None:
            return rows
    return ranking(x, (12,))


def text_of(name: str, f: int) -> str:
    """The rule as a run would have it typed, with its f."""
    fewer = {"deepsight": "deepsight:samples=16,seeds=1"}
    text = fewer.get(name, name)
    return f"{text}:f={f}" if "f" in inspect.signature(LISTED_BY_NAME[name]).parameters else text


LISTED_BY_NAME = {
    name: made for label, made in LISTED.items() for _, name in catalogue.claims()[label]
}
RULES = [name for name in registry.names("defense") if name in LISTED_BY_NAME]
PREFILTERS = [name for name in registry.names("prefilter") if name in LISTED_BY_NAME]
ATTACKS = [name for name in registry.names("attack") if name in LISTED_BY_NAME]
CODECS = [name for name in registry.names("protocol") if name in LISTED_BY_NAME]


def test_every_rule_has_a_function() -> None:
    assert registry.names("defense") == RULES
    assert set(registry.names("prefilter")) - set(PREFILTERS) == {"oracle"}
    assert len(ATTACKS) >= 30
    assert {"drive", "eden", "qsgd", "terngrad", "signsgd", "topk", "randk"} <= set(CODECS)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_s_function_answers_as_the_rule_in_a_run(name: str) -> None:
    function = LISTED_BY_NAME[name]
    x = rows_for(registry.plugin("defense", name))
    f = 1 if name == "bulyan" else 2
    rule = registry.load("defense", text_of(name, f))
    payload = message(x, (12,))
    root = payload.take([N - 1])
    model = FloatVectors(draw(3, 1))
    view = ServerView(
        weights=torch.arange(1.0, N + 1, dtype=torch.float64),
        broadcast=model,
        step=2,
        key=Key(5),
        layout=Layout.of(CLASSES.shapes),
        network=CLASSES,
        root=root,
        ids=torch.arange(N) + 7,
    )
    expected, state = hooks.aggregate(rule, payload.copied(), rule.init(payload.spec), view)
    known: dict[str, Any] = {
        "f": f,
        "weights": view.weights,
        "key": 5,
        "root": symbols(root)[0],
        "model": model.x[0],
        "step": 2,
        "network": CLASSES,
        "ids": list(range(7, 7 + N)),
        "samples": 16,
        "seeds": 1,
    }
    taken = inspect.signature(function).parameters
    given = {argument: value for argument, value in known.items() if argument in taken}
    answer = function(x, **given)
    if rule.traits().history:
        answer, after = answer
        assert type(after) is type(state)
        again, _ = function(x, **given, state=after)
        later, _ = hooks.aggregate(rule, payload.copied(), state, view.asked())
        assert torch.equal(again, later)
    assert torch.equal(answer, expected)


@pytest.mark.parametrize("name", PREFILTERS)
def test_a_prefilter_s_function_hands_on_what_the_prefilter_does(name: str) -> None:
    function = LISTED_BY_NAME[name]
    cls = registry.plugin("prefilter", name)
    x = rows_for(cls)
    payload = message(x, (12,))
    view = ServerView(torch.ones(N, dtype=torch.float64), payload.take([0]), 0, Key(5))
    expected, rows = transform(cls().declared(2), payload, view)
    taken = inspect.signature(function).parameters
    known = {"f": 2, "key": 5}
    findings = functional.Findings()
    given = {argument: value for argument, value in known.items() if argument in taken}
    assert torch.equal(function(x, **given, findings=findings), symbols(expected))
    if rows is not None:
        assert findings.kept is not None
        assert findings.kept.nonzero()[:, 0].tolist() == sorted(rows.tolist())


def test_a_prefilter_in_front_of_a_rule_is_their_chain() -> None:
    x = draw(1)
    chain = registry.load("defense", "nnm:f=2+multi-krum:f=2")
    view = ServerView(torch.ones(N, dtype=torch.float64), FloatVectors(x[:1]), 0, Key(0))
    expected, _ = chain.aggregate(FloatVectors(x), None, view)
    mixed = functional.nnm(x, f=2)
    assert torch.equal(functional.multi_krum(mixed, f=2), expected)
    assert not torch.equal(functional.multi_krum(x, f=2), expected)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_s_function_sends_what_the_attack_sends_in_a_run(name: str) -> None:
    cls = registry.plugin("attack", name)
    x = rows_for(cls, 8)
    own = rows_for(cls, 10)[8:]
    trained = draw(9, 2)
    model = draw(4, 1)
    payload = message(torch.cat([x, own]), (12,))
    rule = registry.load("defense", "median")
    context = example_context(payload, rule, (8, 9))
    secret = Secret.of(3, "adversary").derive(6)
    owned = threat_model.OwnedRows(torch.tensor([8, 9]), [8, 9], range(2), 2, secret)
    equal = torch.ones(10, dtype=torch.float64)
    view = ServerView(equal, FloatVectors(model), 6, Key(0), 10)
    trains = cls().trains
    context = replace(
        context,
        owned=owned,
        trained=trained if trains else None,
        poisoned=payload.take([8, 9]).nearest(trained) if trains else None,
        idle=context.idle[:1],
        view=view,
        rehearse=None,
        recruits=None,
    )
    packets = threat_model.forge(cls(), context, {}).among(payload)
    expected, accepted = type(payload).decode(packets, payload.spec)
    assert expected is not None
    assert bool(accepted.all())
    given: dict[str, Any] = {"own": own, "model": model[0], "step": 6, "key": 3}
    names = {argument.name for argument in arguments_of(cls)}
    given |= {"trained": trained} if "trained" in names else {}
    given |= {"defense": rule} if "defense" in names else {}
    sent = LISTED_BY_NAME[name](x, m=2, **given)
    assert sent.shape == (2, 12)
    assert torch.equal(sent, symbols(expected.take([8, 9])))


def test_an_attack_remembers_in_the_dict_that_it_is_given() -> None:
    memory: dict[int, Any] = {}
    notes: dict[str, Any] = {}
    x = draw(2, 6)
    free = functional.free_rider(x, m=1, kind="replay", model=x[0], memory=memory, notes=notes)
    assert not free.any()
    moved = functional.free_rider(x, m=1, kind="replay", model=x[1], memory=memory, notes=notes)
    torch.testing.assert_close(moved[0], x[1] - x[0])
    assert notes == {"replayed": True}


@pytest.mark.parametrize("name", CODECS)
def test_a_codec_s_bytes_are_those_of_the_protocol_in_a_run(name: str) -> None:
    codec = LISTED_BY_NAME[name]
    protocol = registry.load("protocol", name)
    shared = Shared(NETWORK, 3, CPU)
    tree = shared.layout.unflatten(draw(6, 1, shared.layout.d)[0])
    memory = protocol.memory(shared)
    rows = shared.layout.flatten(tree)[None]
    payload, after = hooks.message(protocol, shared, rows, [Key(8)], [memory])
    packet = payload.encode()[0]
    kept: dict[str, Tensor] = {}
    given = {"memory": kept} if memory else {}
    assert codec.bits(tree, key=8, **given) == packet.bits
    assert kept == {}
    assert codec.encode(tree, key=8, **given) == packet.data
    assert kept.keys() == after[0].keys()
    back = codec.decode(packet.data, like=tree)
    assert list(back) == list(tree)
    flat = torch.cat([leaf.flatten() for leaf in back.values()])
    assert torch.equal(flat, payload.values()[0])


def test_a_codec_draws_anew_for_every_message_unless_it_is_given_a_key() -> None:
    x = draw(7, 1, 256)[0]
    assert len({functional.drive.encode(x) for _ in range(3)}) == 3
    assert functional.drive.encode(x, key=1) == functional.drive.encode(x, key=1)


# Bounds of the relative squared error and of the bits of a coordinate, and the parameters.
MEASURED: dict[str, tuple[dict[str, Any], float, float]] = {
    "cast": ({}, 2**-22, 16.0),
    "drive": ({}, math.pi / 2 - 1, 1 + 96 / 4096),
    "ef-signsgd": ({"error_feedback": False}, 1 - 2 / math.pi, 1 + 32 / 4096),
    "eden": ({"bits": 2.0}, 0.1335, 2 + 96 / 4096),
    "fedavg": ({}, 0.0, 32.0),
    "fedpaq": ({}, min(4096 / 100, 64 / 10), math.log2(21) + 32 / 4096),
    "qsgd": ({}, 0.037, 3.35),
    "randk": ({}, 4096 / 122 - 1, (122 * 32 + 64) / 4096),
    "signsgd": ({}, math.inf, 1.0),
    "stochastic-sign": ({}, math.inf, 1.0),
    "terngrad": ({}, 2.5, math.log2(3) + 32 / 4096),
    "topk": ({}, 0.5, 1 + 16),
    "fedmrn": ({}, 1.0, 1 + 128 / 4096),
    "fedmrns": ({}, 1.0, 1 + 128 / 4096),
}


@pytest.mark.parametrize("name", CODECS)
def test_codecs_keep_what_their_docstrings_promise(name: str) -> None:
    codec = LISTED_BY_NAME[name]
    params, error, bits = MEASURED[name]
    x = draw(8, 1, 4096)[0].double()
    draws = 16
    errors = []
    for key in range(draws):
        data = codec.encode(x, key=key, **params)
        assert codec.bits(x, key=key, **params) <= bits * 4096 + 1e-6
        errors.append(codec.decode(data, like=x, **params) - x)
    square = float(torch.stack(errors).square().sum(dim=1).mean()) / float(x @ x)
    assert square <= 1.02 * error
    # Of independent errors without bias the mean has 1/draws of the square.
    mean = float(torch.stack(errors).mean(dim=0).square().sum()) / float(x @ x)
    unbiased = mean <= 1.2 * square / draws
    assert unbiased == codec.promise.unbiased or name == "cast"  # whose errors are tiny and fixed
    assert str(codec.promise) in " ".join((codec.encode.__doc__ or "").split())


def test_three_answers_that_are_worked_by_hand() -> None:
    x = torch.tensor([[1.0], [2.0], [4.0], [8.0], [100.0]])
    # without 1 and 100: (2 + 4 + 8) / 3
    torch.testing.assert_close(functional.trimmed_mean(x, f=1), torch.tensor([14 / 3]))
    # of 5 rows each is mixed with the 3 nearest, itself among them: 1, 2, 4 for the first two
    mixed = functional.nnm(x, f=2)
    expected = torch.tensor([7 / 3, 7 / 3, 7 / 3, 14 / 3, 112 / 3])
    torch.testing.assert_close(mixed[:, 0], expected)
    # the mean of 1, 2, 4, 8 is 15 / 4; minus half of it
    sent = functional.ipm(x[:4], m=2, eps=0.5)
    torch.testing.assert_close(sent, torch.full((2, 1), -15 / 8))
    # two of four coordinates: a bit for each, and two floats
    y = torch.tensor([3.0, -1.0, 0.5, 2.0])
    assert functional.topk.bits(y, k=0.5) == 4 + 2 * 32
    assert functional.topk.decode(functional.topk.encode(y, k=0.5), y, k=0.5).tolist() == [
        3,
        0,
        0,
        2,
    ]


def test_answers_come_in_the_form_that_came_in() -> None:
    x = draw(3, 7, 6)
    expected = functional.trimmed_mean(x, f=2)
    for dtype in (np.float64, np.float32, np.float16):
        array = functional.trimmed_mean(x.numpy().astype(dtype), f=2)
        assert isinstance(array, np.ndarray)
        assert array.dtype == dtype
        np.testing.assert_allclose(array, expected.numpy(), rtol=2e-3)
    assert functional.trimmed_mean(x.bfloat16(), f=2).dtype == torch.bfloat16
    vectors = [row.reshape(2, 3) for row in x]
    assert torch.equal(functional.trimmed_mean(vectors, f=2), expected.reshape(2, 3))
    arrays = functional.nnm([row.numpy() for row in x], f=2)
    assert isinstance(arrays, list)
    assert all(isinstance(row, np.ndarray) for row in arrays)
    backwards = functional.trimmed_mean(x.numpy()[:, ::-1], f=2)
    np.testing.assert_array_equal(backwards, expected.numpy()[::-1])
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(functional.trimmed_mean(frozen, f=2), expected.numpy())
    assert not functional.trimmed_mean(x.clone().requires_grad_(), f=2).requires_grad
    sent = functional.alie([row.numpy() for row in x], m=2)
    assert [type(row) for row in sent] == [np.ndarray] * 2


REAL = [
    name
    for kind, names in (("defense", RULES), ("prefilter", PREFILTERS))
    for name in names
    if rows_for(registry.plugin(kind, name)).is_floating_point()
    and name != "deepsight"  # whose network is one of float32
]


@pytest.mark.parametrize("name", REAL)
def test_float64_is_computed_in_float64(name: str) -> None:
    function = LISTED_BY_NAME[name]
    x = draw(0).double() + draw(1).double() * 2.0**-30  # digits that float32 does not have
    taken = inspect.signature(function).parameters
    known: dict[str, Any] = {"f": 1, "key": 5, "root": x[0], "model": x[1], "ids": range(N)}
    given = {argument: value for argument, value in known.items() if argument in taken}
    answer = function(x, **given)
    answer = answer[0] if isinstance(answer, tuple) else answer
    assert answer.dtype == torch.float64
    if name == "rlr":  # whose answer may be 0 less a mean
        answer = answer.abs()
    assert not torch.equal(answer, answer.float().double())


def test_state_dicts_keep_keys_order_dtypes_and_have_the_median_of_their_counters() -> None:
    def net(seed: int, batches: int) -> dict[str, Any]:
        layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        state = layers.state_dict()
        for i, (name, x) in enumerate(state.items()):
            if x.is_floating_point():
                state[name] = Key(seed).fold(i).normal(*x.shape)
        state["0.bias"] = state["0.bias"].half()
        state["1.num_batches_tracked"] = torch.tensor(batches)
        return state

    states = [net(seed, batches) for seed, batches in enumerate([5, 900, 7, 6, 8])]
    answer = functional.trimmed_mean(states, f=1)
    assert type(answer) is OrderedDict
    assert list(answer) == list(states[0])
    assert {name: x.dtype for name, x in answer.items()} == {
        name: x.dtype for name, x in states[0].items()
    }
    assert int(answer["1.num_batches_tracked"]) == 7
    for name in ("0.weight", "1.running_var"):
        leaves = torch.stack([state[name] for state in states]).flatten(1)
        assert torch.equal(answer[name].flatten(), functional.trimmed_mean(leaves, f=1))
    layers = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    layers.load_state_dict(answer)

    mixed = functional.nnm(states, f=2)
    assert [int(state["1.num_batches_tracked"]) for state in mixed] == [5, 900, 7, 6, 8]
    sent = functional.ipm(states, m=7)
    assert [int(state["1.num_batches_tracked"]) for state in sent] == [5, 900, 7, 6, 8, 5, 900]
    with pytest.raises(ConfigError, match=r"floats only, got integers in 1\.num_batches"):
        functional.drive.encode(states[0])


def test_entries_without_dimensions_and_without_numbers_are_parts_of_a_row() -> None:
    rows = [
        {"w": torch.tensor([i, 2.0 * i]), "none": torch.zeros(0), "scale": torch.tensor(3.0 * i)}
        for i in range(3)
    ]
    (answer, (sent,)) = (functional.median(rows), functional.alie(rows, m=1, z=0.0))
    for made in (answer, sent):
        assert {name: x.tolist() for name, x in made.items()} == {
            "w": [1.0, 2.0],
            "none": [],
            "scale": 3.0,
        }
    there = functional.topk.decode(functional.topk.encode(rows[2], k=1.0), rows[0], k=1.0)
    assert {name: x.tolist() for name, x in there.items()} == {
        "w": [2.0, 4.0],
        "none": [],
        "scale": 6.0,
    }


def test_own_rows_may_be_floats_of_another_precision() -> None:
    x = draw(3, 5, 4)
    crafted = [functional.min_max(x, m=1, own=own) for own in (x[:1], x[:1].double())]
    assert torch.equal(*crafted)


def test_an_attack_queries_no_rule_that_takes_fewer_rows() -> None:
    with pytest.raises(ConfigError, match=r"dyn_opt\(defense=\) must have n <= 36 rows, got 37"):
        rule_of("dyn_opt", "smea:f=4", FloatVectors(draw(3, 37, 2)))


def test_weights_may_be_a_sparse_tensor() -> None:
    x = draw(3, 3, 4)
    weights = torch.tensor([0.0, 1.0, 3.0])
    answer = functional.mean(x, weights=weights.to_sparse())
    assert torch.equal(answer, functional.mean(x, weights=weights))


def test_layers_of_state_dicts_are_layers_for_rules_and_codecs() -> None:
    x = draw(5, 9, 12)
    trees = [{"a": row[:4], "b": row[4:]} for row in x]
    lasa = functional.lasa(trees)
    whole = functional.lasa(x)
    assert not torch.equal(torch.cat([lasa["a"], lasa["b"]]), whole)
    signs = functional.ef_signsgd.encode(trees[0], error_feedback=False)
    assert len(signs) == 2 * 4 + 2  # two scales, twelve signs


def test_masks_and_rankings_are_rows_of_bools_and_integers() -> None:
    masks = torch.tensor([[True, False], [True, True], [False, False]])
    torch.testing.assert_close(functional.mean(masks), torch.tensor([2 / 3, 1 / 3]))
    assert functional.saturation(masks, m=1).dtype == torch.bool
    rankings = torch.tensor([[0, 2, 1], [0, 2, 1], [1, 2, 0]])  # the best edge last
    # positions of edge 0: 0, 0, 2; of edge 1: 2, 2, 0; of edge 2: 1, 1, 1
    torch.testing.assert_close(
        functional.mean(rankings), torch.tensor([2 / 3, 4 / 3, 1], dtype=torch.float64)
    )
    assert functional.rank_reversal(rankings, m=2).dtype == torch.int64


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("trimmed_mean", {}, "trimmed_mean must be given f=..., the malicious rows"),
    ("trimmed_mean", {"f": None}, "trimmed_mean must be given f=..., the malicious rows"),
    ("trimmed_mean", {"f": 4}, "must have n >= 9 rows for f = 4, or a lower f, got 8"),
    ("trimmed_mean", {"f": 2.5}, "trimmed_mean(f=) must be a whole number, got 2.5"),
    ("trimmed_mean", {"f": True}, "trimmed_mean(f=) must be a number, got True"),
    ("trimmed_mean", {"f": -1}, "trimmed_mean(f=) must be >= 0, got -1"),
    ("trimmed_mean", {"f": 1, "F": 1}, "has no argument 'F'; did you mean 'f'?"),
    ("trimmed_mean", {"f": 1, "up": 1}, "has no argument 'up'; arguments: f, findings"),
    ("trimmed_mean", {"f": 1, "weights": [1] * 8}, "has no argument 'weights'"),
    ("mean", {"weights": [1, 2]}, "mean(weights=) must be 8 numbers >= 0 with a sum > 0"),
    ("mean", {"weights": [math.inf] * 8}, "mean(weights=) must be 8 numbers >= 0 with a sum > 0"),
    ("median", {"even": "odd"}, "median(even=) must be 'mean' or 'lower', got 'odd'"),
    ("flame", {}, "flame must be given key=..., an integer for its random draws"),
    ("flame", {"key": -1}, "flame(key=) must be an integer from 0 to 2**64 - 1, got -1"),
    ("norm_bound", {"noise": 0.1}, "norm_bound must be given key=..."),
    ("fltrust", {}, "fltrust must be given root=..., the server's own vector"),
    ("fltrust", {"root": torch.zeros(3)}, "fltrust(root=).shape must be (12,) as fltrust(x)"),
    ("foolsgold", {}, "foolsgold must be given ids=..., the number of each row's client"),
    ("foolsgold", {"ids": [0] * 8}, "foolsgold(ids=) must be 8 different integers"),
    (
        "crfl",
        {"key": Key(torch.arange(2)), "model": torch.zeros(12)},
        "crfl(key=) must be a key of one stream",
    ),
    ("crfl", {"key": 1}, "crfl must be given model=..., the weights that the server sent"),
    ("fldetector", {"key": 1, "ids": range(8)}, "fldetector must be given model=..., the weights"),
    ("deepsight", {"key": 1, "model": torch.zeros(12)}, "must be given network=..."),
    (
        "deepsight",
        {"key": 1, "model": torch.zeros(12), "network": torch.nn.Linear(3, 4)},
        "network=) must be a Network, for instance ModuleModel(module=net)",
    ),
    ("log_odds_cap", {}, "log_odds_cap works on BinaryMasks, SignBits, got real numbers"),
    ("nnm", {"f": 4}, "nnm must have n >= 9 rows, got 8"),
    ("alie", {}, "alie must be given m=..."),
    ("alie", {"m": 0}, "alie(m=) must be an integer >= 1, got 0"),
    ("alie", {"m": 2, "own": torch.zeros(3, 12)}, "alie(own=) must be m = 2 rows, got 3"),
    ("label_flip", {"m": 2}, "label_flip must be given trained=..., the m rows after"),
    ("dyn_opt", {"m": 2}, "dyn_opt must be given defense=..., the server's rule"),
    ("dyn_opt", {"m": 2, "defense": "krum"}, "dyn_opt(defense=) must have its f, got 'krum'"),
    ("poisonedfl", {"m": 2}, "poisonedfl must be given model=..., the weights"),
    ("rank_reversal", {"m": 2}, "rank_reversal works on Rankings, TopRankings, got rows of"),
    ("mean", {"weights": ["a"] * 8}, "mean(weights=) must be 8 numbers >= 0 with a sum > 0"),
    ("mean", {"weights": {}}, "sum > 0, got a dict of 0"),
    ("mean", {"weights": [-1, *[2] * 7]}, "mean(weights=) must be 8 numbers >= 0 with a sum > 0"),
    ("mean", {"weights": torch.ones(8, 1)}, "sum > 0, got a tensor (8, 1) of torch.float32"),
    ("mean", {"weights": torch.ones(8).to(torch.complex64)}, "must be 8 numbers >= 0"),
    ("mean", {"weights": np.ma.masked_invalid(np.ones(8))}, "sum > 0, got a MaskedArray"),
    ("foolsgold", {"ids": "abcdefgh"}, "foolsgold(ids=) must be 8 different integers, got 'abc"),
    ("foolsgold", {"ids": [2**70, *range(7)]}, "foolsgold(ids=) must be 8 different integers"),
    ("foolsgold", {"ids": torch.arange(8.0)}, "foolsgold(ids=) must be 8 different integers"),
    ("foolsgold", {"ids": range(8), "step": True}, "foolsgold(step=) must be an integer >= 0"),
    ("foolsgold", {"ids": range(8), "step": "a"}, "foolsgold(step=) must be an integer >= 0"),
    ("trimmed_mean", {"f": torch.tensor([1, 2])}, "trimmed_mean(f=) must be a whole number"),
    ("median", {"findings": {}}, "median(findings=) must be a fedbench.functional.Findings"),
    ("alie", {"m": 1, "step": -1}, "alie(step=) must be an integer >= 0, got -1"),
    ("alie", {"m": 1, "memory": []}, "alie(memory=) must be a dict, got a list of 0"),
    ("alie", {"m": 1, "notes": []}, "alie(notes=) must be a dict, got a list of 0"),
    ("alie", {"m": 1, "own": torch.zeros(1, 12).int()}, "alie(own=).dtype must be torch.float32"),
    ("dyn_opt", {"m": 1, "defense": "krum:f=9"}, "dyn_opt(defense=) must have n >= 21 rows, got 9"),
]


@pytest.mark.parametrize(("name", "given", "line"), WRONG)
def test_what_is_missing_or_wrong_is_said_in_one_line(
    name: str, given: dict[str, Any], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        LISTED[name](draw(0, 8), **given)
    text = str(caught.value)
    assert line in text
    assert len(text.splitlines()) == 1


WRONG_ROWS: list[tuple[Any, str]] = [
    (torch.zeros(3), "median(x).shape must be (n, d) with a row for each client"),
    (torch.zeros(0, 3), "median(x).shape must be (n, d) with a row for each client"),
    ([], "or a list of vectors or of state dicts, one at least, got a list of 0"),
    ("abc", "or a list of vectors or of state dicts, one at least, got 'abc'"),
    ([[1.0], [2.0]], "median(x)[0] must be tensors or NumPy arrays of numbers"),
    ([torch.zeros(3), torch.zeros(2)], "median(x)[1].shape must be (3,) as median(x)[0], got (2,)"),
    ([torch.zeros(3), torch.zeros(3).int()], "median(x)[1].dtype must be torch.float32"),
    ([{"a": torch.zeros(1)}, {"b": torch.zeros(1)}], "must have the entries of median(x)[0]"),
    ([{"a": torch.zeros(1)}, {"a": torch.zeros(2)}], "median(x)[1]['a'].shape must be (1,)"),
    ([{"a": "text"}], "median(x)[0]['a'] must be tensors or NumPy arrays"),
    (torch.zeros(3, 2, dtype=torch.complex64), "must be real, got 'torch.complex64'"),
    (np.array([["a"]]), "must be tensors or NumPy arrays of numbers"),
    (torch.zeros(3, 4, dtype=torch.int64), "must be a permutation of 0..3"),
    (torch.zeros(3, 4).to_sparse(), "must be that of x.to_dense(), got 'torch.sparse_coo'"),
    (np.ma.masked_invalid(np.zeros((3, 4))), "must be tensors or NumPy arrays of numbers"),
]


def test_counters_are_the_lower_median_and_the_widest_float_is_computed_in() -> None:
    states = [
        {"w": torch.tensor([float(i)]), "v": torch.tensor([0.1], dtype=torch.float64), "seen": i}
        for i in (4, 1, 3, 2)
    ]
    rows: Any = [state | {"seen": torch.tensor(state["seen"])} for state in states]
    answer = functional.mean(rows)
    assert (int(answer["seen"]), float(answer["w"])) == (2, 2.5)
    assert float(answer["v"]) == pytest.approx(0.1, abs=1e-15)  # not 0.1 in float32


def test_layers_in_another_order_are_not_taken_for_each_other() -> None:
    first = {"a": torch.zeros(2), "b": torch.ones(2)}
    turned = {"b": torch.zeros(2), "a": torch.ones(2)}
    with pytest.raises(ConfigError, match="must have the entries of"):
        functional.mean([first, turned])
    with pytest.raises(ConfigError, match="must have the entries of"):
        functional.fltrust([first, first], root=turned)


def test_a_rule_that_looks_at_subsets_has_a_largest_number_of_rows() -> None:
    with pytest.raises(ConfigError, match=r"mda must have n <= \d+ rows, got 60"):
        functional.mda(draw(0, 60), f=25)


def test_the_first_honest_rows_stand_in_for_those_of_the_adversary() -> None:
    x = draw(0, 3)
    assert torch.equal(functional.sign_flip(x, m=2), -x[:2])
    assert torch.equal(functional.sign_flip(x, m=4), -x[[0, 1, 2, 0]])


@pytest.mark.parametrize(("rows", "line"), WRONG_ROWS)
def test_rows_that_are_none_are_refused_in_one_line(rows: Any, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        functional.median(rows)
    assert line in str(caught.value)


def test_codecs_refuse_what_is_no_message_and_a_memory_that_is_missing() -> None:
    x = draw(0, 1)[0]
    with pytest.raises(ConfigError, match=r"drive\.decode\(data\) must be a message of 12 floats"):
        functional.drive.decode(b"abc", like=x)
    with pytest.raises(ConfigError, match=r"must be given like=\.\.\., a vector of the shape"):
        functional.drive.decode(functional.drive.encode(x))  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"remembers what it has not sent: give memory=\{\}"):
        functional.ef_signsgd.encode(x)
    with pytest.raises(ConfigError, match="left out of a codec that does not remember"):
        functional.drive.encode(x, memory={})
    with pytest.raises(ConfigError, match="has no argument 'lr'"):
        functional.topk.encode(x, lr=0.1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"encode\(memory=\) must be a dict, got a list of 0"):
        functional.ef_signsgd.encode(x, memory=[])  # type: ignore[arg-type]
    for held in (3, torch.zeros(3)):
        with pytest.raises(ConfigError, match=r"encode\(memory=\) must be of this vector"):
            functional.ef_signsgd.encode(x, memory={"residual": held})  # type: ignore[dict-item]
    memory: dict[str, Tensor] = {}
    first = functional.ef_signsgd.decode(functional.ef_signsgd.encode(x, memory=memory), x)
    torch.testing.assert_close(memory["residual"], x - first)


def test_a_name_that_has_no_function_says_why() -> None:
    for name, why in (
        ("oracle", "tells a rule how many rows are malicious"),
        ("auto", "rehearses with the model and the data"),
        ("malformed", "sends bytes that are no message"),
        ("scale_field", "works on Levels, RotatedLevels, ScaledSigns"),
        ("fsl", "updates are scores"),
        ("trimmed_men", "did you mean 'trimmed_mean'?"),
    ):
        with pytest.raises(AttributeError, match=why.replace("?", r"\?")):
            getattr(functional, name)


def test_an_open_f_is_no_mean_outside_of_a_run() -> None:
    x = FloatVectors(draw(0, 5))
    view = ServerView(torch.ones(5, dtype=torch.float64), x.take([0]), 0, Key(0))
    with pytest.raises(ConfigError, match=r"TrimmedMean\.f must be given outside of a run"):
        TrimmedMean().aggregate(x, None, view)
    with pytest.raises(ConfigError, match=r"write NNM\(f=2\)"):
        NNM().transform(x, view)
    assert TrimmedMean(f=0).aggregate(x, None, view)[0].shape == (12,)


@dataclass(frozen=True, kw_only=True)
class Last(Defense[int]):
    """Return a row, the next one in every round.

    Args:
        first: Row of the first round.
    """

    first: int = 0

    def traits(self) -> Any:
        return replace(super().traits(), history=True)

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(
        self, received: Payload, state: int | None, view: ServerView
    ) -> tuple[Tensor, int]:
        row = self.first if state is None else state
        return received.values()[row], row + 1


@dataclass(frozen=True)
class Louder(Attack):
    """Send what is honest, times a factor."""

    factor: float = 3.0

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return view.own.nearest(self.factor * view.own.values()), memory


def test_a_class_that_is_not_installed_has_a_function_too() -> None:
    x = draw(0, 4)
    row, state = functional.rule(Last)(x, first=1)
    assert torch.equal(row, x[1])
    assert torch.equal(functional.rule(Last)(x, state=state)[0], x[2])
    told = inspect.getdoc(functional.rule(Last)) or ""
    assert told.startswith("Return a row, the next one in every round.")
    assert "first: Row of the first round." in told
    assert torch.equal(functional.attack(Louder)(x, m=1, factor=2.0), 2 * x[:1])
    assert isinstance(functional.codec(FedAvg), Codec)
    assert functional.prefilter("nnm") is functional.nnm
    for maker in (functional.rule, functional.prefilter, functional.attack, functional.codec):
        make: Any = maker
        with pytest.raises(ConfigError, match="must be an installed name, or a dataclass that in"):
            make(dict)


def test_epsilon_is_that_of_the_accountants() -> None:
    plan: dict[str, Any] = {"rounds": 50, "clients": 200, "per_round": 20}
    for text, sees in (("dp-fedavg:z=2,clip=1", "model"), ("randomized-response", "messages")):
        cost = PrivacyPlan(**plan).price(registry.load("mechanism", text), sees)  # type: ignore[arg-type]
        assert functional.epsilon(text, **plan) == cost.epsilon
        assert functional.privacy_cost(registry.load("mechanism", text), **plan) == cost
    quiet = functional.with_epsilon("dp-fedavg:z=1,clip=1", 3.0, **plan)
    assert functional.epsilon(quiet, **plan) <= 3
    with pytest.raises(ConfigError, match=r"^per_round must be <= clients = 3"):
        functional.epsilon("dp-fedavg:z=1,clip=1", rounds=1, clients=3, per_round=4)
    with pytest.raises(NoTheorem, match=r"^adjacency add-remove"):
        functional.epsilon("randomized-response", adjacency="add-remove", **plan)


def test_the_stub_and_the_page_are_those_of_the_plug_ins() -> None:
    stub = (HERE / "__init__.pyi").read_text()
    advice = "write both anew: python -m fedbench.functional"
    assert ast.dump(ast.parse(stub)) == ast.dump(ast.parse(catalogue.stub())), advice
    assert PAGE.read_text().partition(MARK)[2].strip() == catalogue.table().strip(), advice


def test_the_examples_of_the_page_run() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert failed == 0
    assert tried >= 20


def test_signatures_and_docstrings_are_seen() -> None:
    text = str(inspect.signature(functional.trimmed_mean))
    assert text == "(x: 'Rows', *, f: int, findings: 'Findings | None' = None) -> Any"
    told = inspect.getdoc(functional.trimmed_mean) or ""
    assert "f: Clients the server is prepared to lose" in told
    assert "https://arxiv.org/abs/1803.01498" in told
    assert {"trimmed_mean", "alie", "drive", "epsilon", "rule"} <= set(dir(functional))
    assert fedbench.functional is functional


def test_functions_of_a_name_wait_for_torch_until_they_are_used() -> None:
    code = "import sys, fedbench.functional; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_rows_are_read_without_a_copy_and_never_written_into() -> None:
    x = draw(0, 6)
    matrix, _ = read("x", x)
    assert matrix.data_ptr() == x.data_ptr()
    before = x.clone()

    @dataclass(frozen=True)
    class Vandal(Prefilter):
        """Zero what it is given."""

        def tolerates(self, n: int, rule: Defense[Any]) -> int:
            return 0

        def transform(self, received: Payload, view: ServerView) -> tuple[Payload, None]:
            received.values().zero_()
            return received, None

    @dataclass(frozen=True)
    class Eraser(Last):
        """Zero what it is given, too."""

        def aggregate(self, received: Payload, state: Any, view: ServerView) -> Any:
            received.values().zero_()
            return super().aggregate(received, state, view)

    functional.prefilter(Vandal)(x)
    functional.rule(Eraser)(x)
    assert torch.equal(x, before)


def test_layers_of_a_codec_are_the_entries_of_its_vector() -> None:
    assert shared_of((3, 4), CPU).layout.sizes == (3, 4)
    assert isinstance(message(torch.zeros(1, 3, dtype=torch.int32), (3,)), Rankings)


@pytest.mark.peers
def test_functions_are_drop_ins_for_byzfl_s_rules() -> None:
    archives.datasets()  # torchvision, which byzfl imports, is whole after this
    import byzfl

    x = draw(11, 9, 50).double().numpy()
    first = {"root": x[0], "f": 2}
    for theirs, ours in (
        (byzfl.Average(), functional.mean(x)),
        (byzfl.Median(), functional.median(x)),
        (byzfl.TrMean(f=1), functional.trimmed_mean(x, f=1)),
        (byzfl.Krum(f=2), functional.krum(x, f=2)),
        (byzfl.Meamed(f=2), functional.meamed(x, f=2)),
        (byzfl.MDA(f=2), functional.mda(x, f=2)),
        (byzfl.MoNNA(f=2, idx=0), functional.nna(x[1:], **first)),
        (byzfl.NNM(f=2), functional.nnm(x, f=2)),
        (byzfl.Clipping(c=2.0), functional.clip(x, c=2.0)),
        (byzfl.ARC(f=2), functional.arc(x, f=2)),
    ):
        answer = theirs(x.copy())  # its Clipping writes into what it is given
        assert type(ours) is type(answer), theirs
        np.testing.assert_allclose(ours, answer, atol=1e-12, err_msg=type(theirs).__name__)


def test_whole_numbers_that_no_ranking_has_are_refused_instead_of_wrapped() -> None:
    rows = torch.tensor([[0, 1, 2], [2, 1, 0], [1, 0, 2**32 + 2]])
    with pytest.raises(ConfigError, match=r"rows must be floats, or whole numbers in -2\*\*31"):
        functional.median(rows)


@pytest.mark.parametrize(
    ("mechanism", "change"),
    [
        ("dp-fedavg:z=2,clip=1", {"delta": 1e-3}),
        pytest.param(*("dp-fedavg:z=2,clip=1", {"sampling": "poisson"}), marks=pytest.mark.slow),
        ("randomized-response", {"participations": 2}),
        ("randomized-response", {"dim": 7}),
        ("mask-sampling:clip=1", {"malicious": 0.3, "sees": "sum"}),
        ("dp-sgd:z=1", {"samples": 90}),
        ("dp-sgd:z=1", {"batch_size": 9}),
        ("dp-sgd:z=1", {"epochs": 2}),
    ],
)
def test_epsilon_depends_on_each_of_its_arguments(mechanism: str, change: dict[str, Any]) -> None:
    plan: dict[str, Any] = {"rounds": 10, "clients": 20, "per_round": 10, "dim": 5}
    changed = functional.epsilon(mechanism, **plan | change)
    assert changed == functional.privacy_cost(mechanism, **plan | change).epsilon
    assert changed != functional.epsilon(mechanism, **plan | {"sees": change.get("sees")})
