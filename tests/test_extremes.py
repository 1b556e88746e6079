"""Parameters at the edge of what is legal: refused in one line, or played, and no traceback."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

import pytest
import torch
from rules import answer

from fedbench.adversary.threat_model import forge
from fedbench.api import Protocol, Release, Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.rng import Key
from fedbench.executors.training import Loop, Schedule
from fedbench.payload import BinaryMasks
from fedbench.protocols.secure_sums import PBM, Skellam
from fedbench.testing import NETWORK, example_context, example_payloads
from fedbench.testing.contracts import example_clients
from fedbench_defenses.bit_votes import LogOddsCap, pseudo_count
from fedbench_defenses.centered_clipping import CenteredClipping
from fedbench_defenses.dnc import DnC
from fedbench_defenses.mean import Mean

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
    assert DnC(f=25, c=2.2).rows_needed() == 56
    assert DnC(f=25, c=2.21).rows_needed() == 57
    assert DnC(f=10, c=0.3).rows_needed() == 4
    assert DnC(f=3, c=1e308).rows_needed() == 3 * 10**308 + 1
    with pytest.raises(ConfigError, match=r"DnC\.c must be finite"):
        DnC(c=float("inf"))


def test_a_small_cap_of_log_odds_keeps_the_majority() -> None:
    # c = ln((a + 1) / a (n + a) / (n - 1 + a)) is about 2 / a for a large a.
    assert pseudo_count(10, 1e-17) == pytest.approx(2e17, rel=1e-12)
    with pytest.raises(ConfigError, match=r"LogOddsCap.c must be in \[1e-6, 100\], got 1e-17"):
        LogOddsCap(c=1e-17)
    masks = BinaryMasks(torch.tensor([[1, 0, 1], [1, 0, 0]]).bool(), torch.zeros(2, 0))
    high, low, tied = answer(LogOddsCap(c=1e-6), masks).to(torch.float32).tolist()
    assert (high > 0.5 > low, tied) == (True, 0.5)


def test_rules_that_are_called_with_too_few_rows_say_so() -> None:
    for name in registry.names("defense"):
        rule = registry.load("defense", name).declared(2)
        payload = next(x for x in PAYLOADS if rule.refuses(type(x)) is None)
        n, view = rule.rows_needed() - 1, example_context(payload, Mean()).view
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
    ):
        assert registry.load(kind, f"{text}=10000")
        with pytest.raises(ConfigError, match=r"must be in \[1, 10000\]"):
            registry.load(kind, f"{text}=10001")


def test_noise_of_sums_stays_within_what_can_be_drawn() -> None:
    protocols: tuple[type[Any], ...] = (Skellam, PBM)
    for field, value in (("clip", 5e-324), ("clip", 1e308), ("sigmas", 1e-17), ("sigmas", 1e308)):
        for protocol in protocols:
            with pytest.raises(ConfigError, match="must be in"):
                protocol(**{field: value})
    with pytest.raises(ConfigError, match=r"Skellam.z must be in \[0, 1e38\]"):
        Skellam(z=1e308)
    assert CenteredClipping(tau=1e-38)
