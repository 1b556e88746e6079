"""Every installed plug-in keeps its promises: ours and anyone's."""

import dataclasses
import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch
from rules import answer, draw, view_of

from fedbench.adversary.threat_model import forge
from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.errors import Incompatible
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.scenario import Scenario
from fedbench.payload import FloatVectors, Payload
from fedbench.testing import (
    NETWORK,
    check_attack,
    check_defense,
    check_mechanism,
    check_payload,
    check_prefilter,
    check_protocol,
    example_context,
    example_payloads,
)
from fedbench_defenses.mean import Mean
from fedbench_defenses.ranking_votes import ReputationClipping


@pytest.mark.parametrize("payload", example_payloads(), ids=lambda p: type(p).__name__)
def test_every_alphabet_keeps_the_laws_of_payloads(payload):  # type: ignore[no-untyped-def]
    check_payload(payload)


@pytest.mark.parametrize("payload", example_payloads(), ids=lambda p: type(p).__name__)
def test_what_a_message_says_does_not_depend_on_those_beside_it(payload: Payload) -> None:
    n = len(payload)
    for count in (1, 2, 4):
        parts = [payload.take(range(i, min(i + count, n))) for i in range(0, n, count)]
        assert torch.equal(torch.cat([part.values() for part in parts]), payload.values())


def slowly(names: Iterable[str], slow: Collection[str]) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) if name in slow else name for name in names]


SLOW = ("signguard", "flame", "deepsight", "dnc", "smea", "mda", "fldetector")


@pytest.mark.parametrize("name", slowly(registry.names("defense"), SLOW))
def test_every_defense_keeps_its_promises_on_every_alphabet(name: str) -> None:
    check_defense(defense(name))


RULES = [
    *("arc:f=2+trimmed-mean:f=2", "arc:f=4+mean", "bucketing:s=1+mean", "bulyan:f=2"),
    *("centered-clipping:steps=5", "clip+mean", "clip:c=5e+4+median", "density-filter+median"),
    *("caf:f=3", "cge:f=3", "nna:f=3", "smea:f=3"),
    *("density-filter:width=1+median", "dnc:f=2,iterations=3,sketch=8", "entropy-filter+median"),
    *("entropy-filter+density-filter+vote-margin:f=1", "geometric-median:iterations=1"),
    *("geometric-median:smooth=4", "krum:f=2,variant=public", "log-odds-cap:c=0.05", "mda:f=3"),
    *("meamed:f=3", "multi-krum:f=2,m=1", "multi-krum:f=2,variant=public"),
    *("multi-krum:f=2,variant=recursive", "norm-bound", "rank-margin:f=1,k=0.2"),
    *("reputation-clipping:width=0.01", "safesparse:support=0,sign=0", "trimmed-mean:f=3"),
]
FEWER = {"deepsight": "deepsight:samples=32,seeds=1"}  # passes through the network
CLUSTERING = ["flame:noise=0", "signguard:similarity=cosine", "signguard:similarity=distance"]
CLUSTERING += ["deepsight:samples=16,smallest=3,tau=0.9"]
LONG = [*CLUSTERING, "dnc:f=2,iterations=3,sketch=8", "smea:f=3", "mda:f=3"]
LONG += ["krum:f=2,variant=public", "multi-krum:f=2,variant=recursive", "geometric-median:smooth=4"]


@pytest.mark.slow
@pytest.mark.parametrize("text", slowly([*RULES, *CLUSTERING], LONG))
def test_every_defense_keeps_its_promises_with_other_parameters(text: str) -> None:
    check_defense(registry.load("defense", text), n=9 if "krum" in text else 12)


def telling_rows(name: str) -> Any:
    """Rows of one direction; for DeepSight four of eleven that move few labels.

    On most rows a factor changes none of its clusters.
    """
    if name == "deepsight":
        x = draw(8, 11, 40) / 5
        x[:4, 1:] /= 10
        return x
    return draw(1, 11, 40) / 5 + draw(2, 1, 40)


@pytest.mark.parametrize("name", registry.names("defense"))
def test_a_symmetry_that_a_rule_does_not_declare_it_does_not_have(name: str) -> None:
    rule = defense(name)
    if rule.refuses(FloatVectors) is None:
        x = telling_rows(name)
        view = view_of(x)
        # In its first round centred clipping is about the middle, and keeps a factor.
        last = answer(rule, x, view) if name == "centered-clipping" else None
        out = answer(rule, x, view, last)
        moved = torch.allclose(answer(rule, x + 5, view, last), out + 5, atol=1e-3)
        scaled = torch.allclose(answer(rule, 3 * x, view, last), 3 * out, atol=1e-3)
        assert (moved, scaled) == (rule.traits().shift, rule.traits().scale)


def test_a_rule_that_says_so_ignores_the_clients_sizes() -> None:
    for name in registry.names("defense"):
        rule = defense(name)
        if "gnores the clients' sizes" in " ".join((rule.__doc__ or "").split()):
            payload = next(p for p in example_payloads(11) if rule.refuses(type(p)) is None)
            view = view_of(payload)
            other = dataclasses.replace(view, weights=torch.arange(1.0, 12).double())
            assert torch.equal(answer(rule, payload, view), answer(rule, payload, other)), name


@pytest.mark.parametrize("rule", slowly(["mean", "median", "trimmed-mean"], ("mean", "median")))
@pytest.mark.parametrize("name", registry.names("prefilter"))
def test_every_prefilter_keeps_its_promises_in_front_of_a_rule(name: str, rule: str) -> None:
    check_prefilter(registry.load("prefilter", name).declared(2), defense(rule))


def defense(name: str) -> Any:
    """The rule, prepared for two malicious rows of nine if it can be, otherwise for one."""
    rule = registry.load("defense", FEWER.get(name, name))
    two = rule.declared(2)
    return two if two.rows_needed() <= 9 else rule.declared(1)


@pytest.mark.parametrize(
    "protocol", ["fedavg", "signsgd", "fedpm", "fedmrns", "fsl", "qsgd", "decomfl"]
)
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
        assert any(mechanism.misfit(protocol, Mean(), shared) is None for protocol in protocols), (
            name
        )


KINDS_OF_RULE = ("mean", "median", "trimmed-mean", "multi-krum")  # attacks tell these apart
DRAWS = "dnc"  # asked twice by one key it must say the same twice
SEARCHES = ("dyn-opt", "stat-opt")
KINDS_OF_ATTACK = (*SEARCHES, "mimic", "malformed", "rank-reversal", "margin")


ALPHABETS = {type(payload) for payload in example_payloads(2)}


def meet(attack: str, rule: str) -> bool:
    accepts = registry.plugin("attack", attack).accepts
    server = registry.load("defense", rule)
    return any(issubclass(a, accepts) and server.refuses(a) is None for a in ALPHABETS)


def edge(name: str, rule: str) -> bool:
    """Whether `make test` plays it: attacks of each kind against every kind of rule.

    Searches, which ask a rule many times, meet one that is no mean.
    """
    kinds = ("trimmed-mean",) if name in SEARCHES else KINDS_OF_RULE
    return rule in kinds and name in KINDS_OF_ATTACK


PAIRS = [
    pytest.param(name, rule, marks=() if edge(name, rule) else pytest.mark.slow)
    for name in registry.names("attack")
    for rule in registry.names("defense")
    if (rule in KINDS_OF_RULE or name in KINDS_OF_ATTACK) and meet(name, rule)
]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param(name, rule, marks=() if rule == "mean" else pytest.mark.slow)
        for name, rule in (pair.values for pair in PAIRS)
        if rule in (*KINDS_OF_RULE, DRAWS)
    ],
)
def test_every_attack_keeps_its_promises_everywhere(name: str, rule: str) -> None:
    check_attack(registry.load("attack", name), defense(rule))


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_whatever_is_accepted_has_a_finite_aggregate(name: str, rule: str) -> None:
    attack = registry.load("attack", name)
    server = defense(rule)
    played = 0
    for payload in example_payloads():
        if not isinstance(payload, attack.accepts) or server.refuses(type(payload)):
            continue
        context = example_context(payload, server)
        packets = forge(attack, context, {}).among(context.honest)
        received, accepted = type(payload).decode(packets, payload.spec)
        assert received is not None
        assert bool(accepted[len(context.owned.rows) :].all())
        assert bool(accepted.all()) != (name == "malformed")
        view = context.view.take(accepted)
        assert server.ready(view)
        out, _ = server.aggregate(received, server.init(payload.spec), view)
        assert bool(torch.isfinite(out).all())
        played += 1
        if name in SEARCHES and rule not in KINDS_OF_RULE:
            break  # a search asks the rule many times: of most rules on their first alphabet
    assert played >= 1


VARIANTS = [
    *("cast:form=bf16", "drive:error_feedback=true", "drive:scale=min-mse"),
    *("eden:bits=0.5", "eden:bits=2.5", "ef-signsgd:per=vector"),
    *("feddrop:conv=0.4,dense=0.5", "feddrop:conv=0.9,dense=0.9", "fedmog:k=1,lam=0.1"),
    *("fedmog:k=3,lam=5", "fedmrn:sm=false", "fedmrn:pm=false", "fedmrn:sm=false,pm=false"),
    *("fedmrn:when=after", "fedmrn:when=after,sm=false", "fedmrns:sm=false", "fedmrns:pm=false"),
    *("fedavg:server=yogi", "feddrop:server=adam", "skellam:server=momentum", "drive:server_lr=2"),
    *("fedmask:down=values", "fedpm:down=values"),
    *("fedmrns:sm=false,pm=false", "fedmrns:when=after", "fedmrns:when=after,sm=false"),
    *(
        "fedsparse:gate_output=false",
        "fedsparsify:initial=0.5",
        "fedsparsify:initial=0.5,per=layer",
    ),
    *("fedsparsify:initial=0.5,merge=half", "fedsparsify:initial=0.5,merge=average"),
    *("fedsparsify:initial=0.5,where=server", "fedsparsify:initial=0.5,where=server,per=layer"),
    *("fedsparsify:initial=0.9,final=0.99", "pbm:m=1,clients=1", "pbm:m=40,theta=0.25"),
    *("qsgd:norm=l2,bucket=0,code=elias", "qsgd:bucket=16,error_feedback=true"),
    *("randk:k=0.2,error_feedback=true", "signsgd:zero=random,tie=random", "skellam:z=0"),
    *("skellam:beta=0,bits=8", "stochastic-sign:beta=0.9,norm=l2", "terngrad:clip=2.5"),
    *("terngrad:error_feedback=true", "topk:k=0.05,error_feedback=true"),
    "topk:k=0.1,error_feedback=true,index=entropy",
]
COMMON = {  # the others are slow tests
    *("drive:error_feedback=true", "eden:bits=2.5", "fedavg:server=yogi", "fedmask:down=values"),
    *("fedmrn:when=after,sm=false", "fedsparsify:initial=0.5,where=server", "pbm:m=1,clients=1"),
    *("qsgd:norm=l2,bucket=0,code=elias", "signsgd:zero=random,tie=random"),
}


@pytest.mark.parametrize(
    "text", [*registry.names("protocol"), *slowly(VARIANTS, {*VARIANTS} - COMMON)]
)
def test_every_protocol_keeps_its_promises(text: str) -> None:
    check_protocol(registry.load("protocol", text))


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

    with pytest.raises(AssertionError, match=r"written into; .*values\(\).clone"):
        check_defense(Vandal())


def test_a_defense_that_prefers_the_first_client_is_caught() -> None:
    class Nepotist(Mean):
        def aggregate(self, received, state, view):  # type: ignore[no-untyped-def]
            return received.values()[0].float(), state

    with pytest.raises(AssertionError, match="order of the clients"):
        check_defense(Nepotist())


@pytest.mark.slow
def test_a_combination_exists_exactly_if_both_rules_accept_what_the_protocol_sends() -> None:
    refused = set()
    pairs = {("mean", attack) for attack in registry.names("attack")}
    pairs |= {(rule, a) for rule in registry.names("defense") for a in ("none", "rank-reversal")}
    for protocol, (rule, attack) in itertools.product(registry.names("protocol"), sorted(pairs)):
        sends = registry.plugin("protocol", protocol).sends
        scenario = Scenario(protocol=protocol, defense=rule, attack=attack, declared=0.1)
        server = registry.load("defense", rule)
        why = server.refuses(sends)
        if server.traits().shrinks and registry.load("protocol", protocol).votes:
            why = ".* would be the plain vote"
        if why is None and issubclass(sends, registry.plugin("attack", attack).accepts):
            if server.traits().model and not registry.load("protocol", protocol).adds:
                with pytest.raises(Incompatible, match="must know the weights"):
                    resolve(scenario)
            elif server.traits().broadcast and protocol == "decomfl":
                with pytest.raises(Incompatible, match="sends each client what it has missed"):
                    resolve(scenario)
            elif server.traits().root and protocol in ("pbm", "skellam"):
                with pytest.raises(Incompatible, match=f"the noise of {protocol} does not protect"):
                    resolve(scenario)
            else:
                resolve(scenario)
            continue
        reason = f"(works on .*|{why}).* {protocol}( sends {sends.__name__}|, which takes)"
        with pytest.raises(Incompatible, match=reason):
            resolve(scenario)
        if why is None:
            refused.add((protocol, attack))
    assert {(p, "rank-reversal") for p in ("fedavg", "signsgd", "topk")} <= refused
    assert not {("fsl", "rank-reversal"), ("sfsl", "rank-reversal")} & refused


def test_a_rule_for_rankings_that_is_the_vote_is_caught() -> None:
    with pytest.raises(AssertionError, match="is it a defense"):
        check_defense(ReputationClipping(width=1.0))
