"""Parameters without a meaning are refused in one line; those at the edge of it crash nothing."""

import dataclasses
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

import pytest
import torch
from alphabets import one_of_each_alphabet
from figure5 import gdp_mu, rdp_to_dp_mironov
from rules import answer

from fedbench.adversary.threat_model import forge
from fedbench.api import Protocol, Release, Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.rng import Key
from fedbench.executors.training import Loop, Schedule
from fedbench.payload import BinaryMasks
from fedbench.privacy import amplification
from fedbench.privacy.conversion import gdp_delta, gdp_epsilon, gdp_rounds, rdp_to_dp
from fedbench.privacy.randomized_response import RandomizedResponse
from fedbench.privacy.sampling import fixed_size, fixed_size_rdp, poisson_epsilons, poisson_rdp
from fedbench.privacy.sums import sum_rdp
from fedbench.testing import NETWORK, example_context, example_payloads
from fedbench.testing.contracts import example_clients
from fedbench_defenses.bit_votes import LogOddsCap, pseudo_count
from fedbench_defenses.dnc import DnC
from fedbench_defenses.mean import Mean

NAN = math.nan
INF = math.inf
NO_SCALE = (0.0, -0.01, 1e-8, NAN, INF, 1e39)

REFUSED: list[tuple[str, str, str, tuple[Any, ...], str]] = [
    # kind and name of a plug-in, its field, values that are refused, how the requirement begins
    ("defense", "dnc", "c", (INF,), "finite"),
    ("defense", "log-odds-cap", "c", (1e-17,), "in [1e-6, 100], got 1e-17"),
    ("mechanism", "dp-fedavg", "clip", (-1,), ""),
    ("mechanism", "dp-fedavg", "quantile", (1,), ""),
    ("mechanism", "dp-fedavg", "z", (0,), ""),
    ("mechanism", "dp-sgd", "clip", (0, 9e-11), ">= 1e-10"),
    ("protocol", "drive", "block", (0,), "a power of two"),
    ("protocol", "eden", "bits", (0, 9), "in"),
    ("protocol", "eden", "block", (100,), "a power of two"),
    ("protocol", "feddrop", "conv", (1.0, -0.1), ""),
    ("protocol", "feddrop", "dense", (1.0,), ""),
    ("protocol", "fedavg", "decay", (0.0, 1.1), "in (0, 1]"),
    ("protocol", "fedavg", "server_lr", (0.0, -1.0), "> 0"),
    ("protocol", "fedavg", "server_tau", (0.0,), "> 0"),
    ("protocol", "fedavg", "server_tau", (0.1,), "left out unless server is adam or yogi"),
    ("protocol", "fedlaplace", "lam", (-1.0,), ""),
    ("protocol", "fedmrn", "magnitude", NO_SCALE, "in (1e-8, 1e30)"),
    ("protocol", "fedmrns", "magnitude", NO_SCALE, "in (1e-8, 1e30)"),
    ("protocol", "fedmask", "lr", (0.0,), "> 0"),
    ("protocol", "fedmog", "k", (0,), ""),
    ("protocol", "fedmog", "lam", (0.0,), ""),
    ("protocol", "fedpaq", "levels", (0,), ""),
    ("protocol", "decomfl", "eps", (0.0,), ""),
    ("protocol", "decomfl", "p", (0, 1025), ""),
    ("protocol", "decomfl", "steps", (0, 2**16 + 1), ""),
    ("protocol", "fedkseed", "k", (0, 2**16 + 1), ""),
    ("protocol", "fedkseed", "lr", (0.0, NAN), ""),
    ("protocol", "fedpm", "clip", (1e-9,), "in [1e-6, 0.5)"),
    ("protocol", "fedpm", "prior", (0.5, INF), "in [1, 1e6]"),
    ("protocol", "fedpm", "reg", (-1.0, NAN), ">= 0"),
    ("protocol", "fedpm", "resets", ("every:0", "3"), "every:k"),
    ("protocol", "fedpm", "threshold", (0.0, 1.0), "in (0, 1)"),
    ("protocol", "fedprox", "lam", (-1.0,), ""),
    ("protocol", "fedsparse", "drift", (-1.0,), ""),
    ("protocol", "fedsparse", "epsilon", (0.0, 1.0), ""),
    ("protocol", "fedsparse", "lambda0", (-1e-9,), ""),
    ("protocol", "fedsparse", "lr", (0.0,), ""),
    ("protocol", "fedsparse", "server_threshold_lr", (0.0,), ""),
    ("protocol", "fedsparse", "temperature", (0.0,), ""),
    ("protocol", "fedsparsify", "final", (1.0, -0.1, NAN), ""),
    ("protocol", "fedsparsify", "frequency", (0,), ""),
    ("protocol", "fedsparsify", "initial", (0.91, -0.1), ""),
    ("protocol", "fedsparsify", "lr", (0.0,), ""),
    ("protocol", "fedsparsify", "start", (0,), ""),
    ("protocol", "fedsparsify", "until", (1, 2**24 + 1), ""),
    ("mechanism", "randomized-response", "p", (0.5,), ""),
    ("protocol", "hidenseek", "keep", (1.5,), "in (0, 1]"),
    ("model", "lenet5", "conv_dropout", (1.0, -0.1), "in [0, 1)"),
    ("mechanism", "mask-gaussian", "c", (0.5,), ""),
    ("mechanism", "mask-gaussian", "sigma", (-1,), ""),
    ("mechanism", "mask-sampling", "c", (0,), ""),
    ("mechanism", "mask-sampling", "clip", (0,), ""),
    ("mechanism", "noisy-sign", "clip", (0,), ""),
    ("mechanism", "noisy-sign", "z", (0,), ""),
    ("protocol", "pbm", "clients", (0,), ">= 1, got 0"),
    ("protocol", "pbm", "lr", (0,), ""),
    ("protocol", "pbm", "m", (0,), ">= 1"),
    ("protocol", "pbm", "m", (2**22,), "< 1677721"),
    ("protocol", "pbm", "clip", (5e-324, 1e308), "in"),
    ("protocol", "pbm", "sigmas", (0.0, 1e-17, 1e308), "in [0.01, 1e6]"),
    ("protocol", "pbm", "theta", (0.5,), "in [0.001, 1/2), got 0.5"),
    ("protocol", "qsgd", "bucket", (-1,), ">= 0, got -1"),
    ("protocol", "qsgd", "levels", (0, 32768), "in [1, 32767], got "),
    ("protocol", "qsgd", "lr", (0,), ""),
    ("protocol", "randk", "k", (0,), "in"),
    ("model", "resnet20", "groups", (0, 3), "a divisor"),
    ("protocol", "skellam", "beta", (1.0,), "in [0, 1)"),
    ("protocol", "skellam", "bits", (25,), "in [2, 24], got 25"),
    ("protocol", "skellam", "bits", (3,), "> 3.66"),  # log2(4 sqrt 10)
    ("protocol", "skellam", "clip", (0.0, 5e-324, 1e308), "in [1e-38, 1e38]"),
    ("protocol", "skellam", "sigmas", (1e-17, 1e308), "in"),
    ("protocol", "skellam", "z", (-1.0, 1e308), "in [0, 1e38]"),
    ("protocol", "stochastic-sign", "beta", (1,), "in"),
    ("protocol", "stochastic-sign", "server_lr", (0,), "> 0"),
    ("protocol", "terngrad", "clip", (-1.0,), ">= 0, got -1.0"),
    ("protocol", "topk-mask", "k", (0.0,), "in (0, 1]"),
]


@pytest.mark.parametrize(
    ("kind", "name", "field", "values", "requirement"),
    REFUSED,
    ids=lambda x: x if type(x) is str else "",
)
def test_a_parameter_without_a_meaning_is_named_with_its_rule(
    kind: str, name: str, field: str, values: tuple[Any, ...], requirement: str
) -> None:
    plugin = registry.plugin(kind, name)
    start = re.escape(f"{plugin.__name__}.{field} must be {requirement}")
    for value in values:
        with pytest.raises(ConfigError, match=rf"^{start}[^\n]*$"):
            plugin(**{field: value})


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("mechanism", "randomized-response:form=affine,p=0.1,c=0.2", "must be"),
        ("protocol", "cast:form=fp8", "--protocol cast:form must be .*, got 'fp8'"),
        ("protocol", "drive:scale=best", "must be 'unbiased' or 'min-mse', got 'best'"),
        ("protocol", "eden:bits=0.5,block=32", "EDEN.block must be >= 64 for a fraction of a bit"),
        ("protocol", "fedpm:lr=inf", "fedpm:lr must be a finite number"),
        ("protocol", "fedpm:reg=nan", "FedPM|finite number"),
        ("protocol", "fedsparsify:start=40", "FedSparsify.until must be"),
    ],
)
def test_text_without_a_meaning_is_refused(kind: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.load(kind, text)


def gaussian(a: Any) -> Any:
    return a / 2


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        (lambda: amplification.envelope([2.0], -1.0, 1.0, 0.2), "squared must"),
        (lambda: fixed_size(0.0, gaussian), "rate must"),
        (lambda: fixed_size(0.5, gaussian, -1.0), "pure must"),
        (lambda: fixed_size(0.5, gaussian, largest=1), "largest must"),
        (lambda: fixed_size_rdp(-1.0, 0.1), "z must"),
        (lambda: fixed_size_rdp(1.0, 2.0), "rate must"),
        (lambda: gdp_delta(1.0, -1.0), "epsilon must"),
        (lambda: gdp_epsilon(-1.0, 0.1), "mu must"),
        (lambda: gdp_mu(1.0, 1.0), "delta must"),
        (lambda: gdp_rounds(1.0, 0), "rounds must"),
        (lambda: amplification.inverse_marginal(0.3, -1.0, 0.2), "sigma must"),
        (lambda: amplification.inverse_marginal(0.3, 1.0, 0.5), "c must"),
        (lambda: amplification.marginal(0.3, -1.0, 0.2), "sigma must"),
        (lambda: amplification.marginal(0.3, 1.0, 0.0), "c must"),
        (lambda: amplification.marginal(0.3, NAN, 0.2), "sigma must"),
        (lambda: amplification.marginal_slope(0.3, INF, 0.2), "sigma must"),
        (lambda: amplification.mask_rdp([1.0], 5, 1.0, 0.2), "orders must"),
        (lambda: amplification.mask_rdp([2.0], 0, 1.0, 0.2), "d must"),
        (lambda: amplification.mask_rdp([2.0], 5, 1.0, 0.2, 0.0), "sensitivity must"),
        (lambda: fixed_size(0.5, lambda a: -a), "rdp_at must"),
        (lambda: fixed_size(0.5, lambda a: a[1:]), "rdp_at must"),
        (lambda: fixed_size(NAN, gaussian), "rate must"),
        (lambda: poisson_epsilons(1.0, 0.1, 1, 0.0), "delta must"),
        (lambda: poisson_rdp(0.0, 0.1), "z must"),
        (lambda: poisson_rdp(1.0, 0.0), "rate must"),
        (lambda: poisson_rdp(1.0, 0.1, 0), "rounds must"),
        (lambda: poisson_rdp(INF, 0.1), "z must"),
        (lambda: RandomizedResponse(0.2, 0), "n must"),
        (lambda: RandomizedResponse(0.2, 5).delta(-1.0), "epsilon must"),
        (lambda: RandomizedResponse(0.2, 5).epsilon([0.1, 1.0]), "delta must"),
        (lambda: RandomizedResponse(0.6, 5), "p must"),
        (lambda: rdp_to_dp([2.0], [1.0], 0.0), "delta must"),
        (lambda: rdp_to_dp_mironov([0.5], [1.0], 0.1), "orders must"),
        (lambda: amplification.sign_rdp([1.0], 5, 1.0), "orders must"),
        (lambda: amplification.sign_rdp([2.0], 0, 1.0), "d must"),
        (lambda: amplification.sign_rdp([2.0], 5, 0.0), "z must"),
        (lambda: amplification.sign_rdp([2.0], 5, 1.0, "add-remove"), "adjacency must"),
        (lambda: amplification.sign_rdp([2.0], 5, INF), "z must"),
        (lambda: sum_rdp([1.0], 5, 3, 1.0, 0.2), "orders must"),
        (lambda: sum_rdp([2.0], 0, 3, 1.0, 0.2), "d must"),
        (lambda: sum_rdp([2.0], 5, 0, 1.0, 0.2), "n must"),
        (lambda: sum_rdp([2.0], 5, 3, -1.0, 0.2), "sigma must"),
        (lambda: sum_rdp([2.0], 5, 3, 1.0, 0.2, 0.0), "sensitivity must"),
    ],
)
def test_wrong_numbers_are_refused_by_name(wrong: Callable[[], object], subject: str) -> None:
    with pytest.raises(ConfigError, match=subject):
        wrong()


FLOATS = ("1e38", "-1e38", "1e-38", "1e-17")
WHOLE = ("-1", "9223372036854775807", "1000000000000000000000000")
PAYLOADS = example_payloads()


@contextmanager
def one_line() -> Iterator[None]:
    """Refusals for people pass, if they are one line; all else is raised."""
    try:
        yield
    except FedbenchError as error:
        if "\n" in str(error):
            raise


def extremes(kind: str, name: str) -> Iterator[Any]:
    """The plug-ins of that name with a parameter at an edge, as far as they are not refused."""
    cls = registry.plugin(kind, name)
    hints = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = str(hints[field.name])
        values = FLOATS if "float" in hint else WHOLE if "int" in hint else ()
        for value in values:
            made = []
            with one_line():
                made.append(registry.load(kind, f"{name}:{field.name}={value}"))
            yield from made


def play(protocol: Protocol[Any]) -> None:
    """A round without forward passes: what a client sends that moved by noise, and the step."""
    shared = Shared(NETWORK, 3, torch.device("cpu"))
    clients = example_clients(protocol, shared, 2)
    updates, memories = Loop(protocol, shared, Schedule(1, 8)).train(clients)
    protocol.event(Release(updates.shape[1], 100, 8, 10, 10, 5))
    sent, _ = protocol.message(shared, updates, [client.key for client in clients], memories)
    sent.check()
    state = protocol.init(shared)
    state = protocol.server_step(shared, state, sent.values().double().mean(dim=0), 2, Key(1))
    assert protocol.model_bits(shared, state) > 0


@pytest.mark.edges(*one_of_each_alphabet())
@pytest.mark.parametrize("name", registry.names("protocol"))
def test_no_number_makes_a_protocol_crash(name: str) -> None:
    for protocol in extremes("protocol", name):
        with one_line():
            play(protocol)


@pytest.mark.parametrize("kind", ["defense", "prefilter"])
def test_no_number_makes_a_rule_crash(kind: str) -> None:
    for name in registry.names(kind):
        for rule in extremes(kind, name):
            rule = (rule if kind == "defense" else rule.before(Mean())).declared(2)
            payload = next(x for x in PAYLOADS if rule.refuses(type(x)) is None)
            view = example_context(payload, Mean()).view
            assert rule.tolerates(len(payload)) >= 0
            if rule.ready(view):
                rule.aggregate(payload, rule.init(payload.spec), view)


def test_no_number_makes_an_attack_crash() -> None:
    for name in registry.names("attack"):
        for attack in extremes("attack", name):
            payload = next(x for x in PAYLOADS if isinstance(x, attack.accepts))
            with one_line():
                forge(attack, example_context(payload, Mean()), {})


def test_a_number_that_float32_cannot_hold_is_refused_wherever_it_is_given() -> None:
    for text in ("1e308", "-1e39", "1e-39", "5e-324", "inf", "nan"):
        with pytest.raises(ConfigError, match=r"lr must be a finite number, .* got '"):
            registry.load("protocol", f"fedavg:lr={text}")
    assert registry.load("protocol", "fedavg:weight_decay=0").weight_decay == 0


def test_the_rows_that_dnc_leaves_out_are_counted_exactly() -> None:
    # 2.2 * 25 is 55.000000000000007 in floats; the paper's c m are 55 rows.
    rows = {(25, 2.2): 56, (25, 2.21): 57, (10, 0.3): 4, (3, 1e308): 3 * 10**308 + 1}
    assert all(DnC(f=f, c=c).rows_needed() == n for (f, c), n in rows.items())


def test_a_small_cap_of_log_odds_keeps_the_majority() -> None:
    # c = ln((a + 1) / a (n + a) / (n - 1 + a)) is about 2 / a for a large a.
    assert pseudo_count(10, 1e-17) == pytest.approx(2e17, rel=1e-12)
    masks = BinaryMasks(torch.tensor([[1, 0, 1], [1, 0, 0]]).bool(), torch.zeros(2, 0))
    high, low, tied = answer(LogOddsCap(c=1e-6), masks).to(torch.float32).tolist()
    assert (high > 0.5 > low, tied) == (True, 0.5)


def test_rules_that_are_called_with_too_few_rows_say_so() -> None:
    for name in registry.names("defense"):
        rule = registry.load("defense", name).declared(2)
        payload = next(x for x in PAYLOADS if rule.refuses(type(x)) is None)
        n = rule.rows_needed() - 1
        view = example_context(payload, Mean()).view
        match = rf"{type(rule).__name__} must have n >= {n + 1} rows, got {n}"
        with pytest.raises(ConfigError, match=match):
            rule.aggregate(payload.take([0] * n), None, view.take(torch.zeros(n).long()))


def test_what_loops_as_often_as_it_is_told_is_not_told_too_often() -> None:
    for kind, text in (
        ("defense", "dnc:iterations"),
        ("defense", "centered-clipping:steps"),
        ("defense", "geometric-median:iterations"),
        ("attack", "noise-mask:tries"),
        ("attack", "seed-grinding:tries"),
        ("attack", "iba:epochs"),
    ):
        assert registry.load(kind, f"{text}=10000")
        with pytest.raises(ConfigError, match=r"must be in \[1, 10000\]"):
            registry.load(kind, f"{text}=10001")
