"""Every installed plug-in keeps its promises: ours and anyone's."""

import dataclasses
from typing import Any

import pytest
import torch

from fedbench import registry
from fedbench.api import Shared
from fedbench.errors import Misfit
from fedbench.scenario import Scenario
from fedbench.testing import (
    NETWORK,
    check_attack,
    check_defense,
    check_mechanism,
    check_payload,
    check_protocol,
    example_payloads,
    example_situation,
)
from fedbench.threat import forge
from fedbench_defenses.mean import Mean


@pytest.mark.parametrize("payload", example_payloads(), ids=lambda p: type(p).__name__)
def test_every_alphabet_keeps_the_laws_of_payloads(payload):  # type: ignore[no-untyped-def]
    check_payload(payload)


@pytest.mark.parametrize("name", registry.names("defense"))
def test_every_defense_keeps_its_promises_on_every_alphabet(name: str) -> None:
    check_defense(defense(name))


def defense(name: str) -> Any:
    """The rule, prepared for two malicious rows where it asks."""
    rule = registry.load("defense", name)
    return dataclasses.replace(rule, f=2) if hasattr(rule, "f") else rule


@pytest.mark.parametrize("protocol", ["fedavg", "signsgd", "fedpm", "fedmrns", "fsl", "qsgd"])
@pytest.mark.parametrize("name", registry.names("mechanism"))
def test_every_mechanism_keeps_its_promises_where_it_fits(name: str, protocol: str) -> None:
    mechanism, plugin = registry.load("mechanism", name), registry.load("protocol", protocol)
    shared = Shared(NETWORK, 3, torch.device("cpu"))
    if mechanism.misfit(plugin, Mean(), shared) is not None:
        assert name not in ("none", "dp-sgd"), "these fit everything here"
        return
    check_mechanism(mechanism, plugin)


def test_every_mechanism_fits_something() -> None:
    shared = Shared(NETWORK, 3, torch.device("cpu"))
    protocols = [registry.load("protocol", name) for name in registry.names("protocol")]
    for name in registry.names("mechanism"):
        mechanism = registry.load("mechanism", name)
        assert any(mechanism.misfit(one, Mean(), shared) is None for one in protocols), name


@pytest.mark.parametrize("rule", registry.names("defense"))
@pytest.mark.parametrize("name", registry.names("attack"))
def test_every_attack_keeps_its_promises_on_every_alphabet_against_every_rule(
    name: str, rule: str
) -> None:
    check_attack(registry.load("attack", name), defense(rule))


@pytest.mark.parametrize("rule", registry.names("defense"))
@pytest.mark.parametrize("name", registry.names("attack"))
def test_every_accepted_payload_attack_and_defense_ends_in_a_finite_aggregate(
    name: str, rule: str
) -> None:
    attack, server = registry.load("attack", name), defense(rule)
    played = 0
    for payload in example_payloads():
        if not isinstance(payload, attack.accepts) or not isinstance(payload, server.accepts):
            continue
        situation = example_situation(payload, server)
        packets = forge(attack, situation, {}).packets
        received, accepted = type(payload).decode(packets, payload.spec)
        assert received is not None
        assert bool(accepted[len(situation.rows) :].all())
        assert bool(accepted.all()) != (name == "malformed")
        out, _ = server.aggregate(received, server.init(payload.spec), situation.view)
        assert bool(torch.isfinite(out).all())
        played += 1
    assert played >= 1


@pytest.mark.parametrize("name", registry.names("protocol"))
def test_every_protocol_keeps_its_promises(name: str) -> None:
    check_protocol(registry.load("protocol", name))


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_plugin_is_a_frozen_dataclass_that_its_description_rebuilds(kind: str) -> None:
    assert registry.names(kind)
    for name in registry.names(kind):
        plugin = registry.load(kind, name)
        assert type(plugin).__dataclass_params__.frozen
        assert registry.load(kind, registry.describe(name, plugin)) == plugin


def test_a_defense_that_writes_into_its_input_is_caught() -> None:
    class Vandal(Mean):
        def aggregate(self, received, state, view):  # type: ignore[no-untyped-def]
            out = super().aggregate(received, state, view)
            received.values().zero_()
            return out

    with pytest.raises(AssertionError, match="written into"):
        check_defense(Vandal())


def test_a_defense_that_prefers_the_first_client_is_caught() -> None:
    class Nepotist(Mean):
        def aggregate(self, received, state, view):  # type: ignore[no-untyped-def]
            return received.values()[0].float(), state

    with pytest.raises(AssertionError, match="order of the clients"):
        check_defense(Nepotist())


def test_a_combination_exists_exactly_if_both_rules_accept_what_the_protocol_sends() -> None:
    refused = set()
    for protocol in registry.names("protocol"):
        sends = registry.plugin("protocol", protocol).sends
        for defense in registry.names("defense"):
            for attack in registry.names("attack"):
                scenario = Scenario(
                    protocol=protocol, defense=defense, attack=attack, declared=0.1
                )  # of ten clients, enough for every rule
                fits = issubclass(sends, registry.plugin("attack", attack).accepts)
                if fits and registry.load("defense", defense).refuses(sends) is None:
                    scenario.resolved()
                    continue
                with pytest.raises(Misfit, match=f"(works on|would be) .* sends {sends.__name__}"):
                    scenario.resolved()
                if not fits:
                    refused.add((protocol, attack))
    assert {(p, "rank-reversal") for p in ("fedavg", "signsgd", "topk")} <= refused
    assert not {("fsl", "rank-reversal"), ("sfsl", "rank-reversal")} & refused
