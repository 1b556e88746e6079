"""Tests of whatever can be streamed together, in combinations that hypothesis draws.

Each round is played both ways from the same state, and what it measures and the state after it are
compared. So a rounding of one round cannot hide, or excuse, a difference in the next one.
"""

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st
from test_streamed import close

from fedbench.api import hooks
from fedbench.core import registry
from fedbench.core.errors import FedbenchError
from fedbench.core.rng import Key
from fedbench.experiment.compatibility import resolve
from fedbench.experiment.measurements import Round
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record_builder import build_record
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.streamable import obstacle
from fedbench.models.models import BatchNormNet, Model
from fedbench.models.network import Image, Network
from fedbench.payload import BinaryMasks, KeptMessages, SignBits
from fedbench.payload.rankings import Rankings, TopRankings
from fedbench.payload.rotated_levels import RotatedLevels
from fedbench.run import begin, play_round
from fedbench_attacks.alie import ALIE
from fedbench_attacks.mimic import Mimic
from fedbench_attacks.min_max import MinMax, MinSum
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.mixing import NNM

PROTOCOLS = registry.names("protocol")
SHORT: dict[str, Any] = {"dataset": "digits", "model": "logistic", "defense": "mean"}
SHORT |= {"clients": 20, "rounds": 2, "epochs": 1, "batch_size": 64, "declared": 0.2}
NOT_COMPARED = ("rounds", "timing", "digest")  # of records; rounds are compared before

# Numbers that follow from what the server makes of an answer, from the answer, from a message.
SERVER = {"server", "accuracy", "loss", "sparsity", "success", "per_client", "validation_accuracy"}
SERVER |= {"model_bits", "flags"}
ANSWER = SERVER | {"gain", "defense", "findings", "true_positive_rate", "false_positive_rate"}
MESSAGE = ANSWER | {"gain_mean", "headers", "memories"}
WHOLE_NUMBERS = (BinaryMasks, SignBits, Rankings, TopRankings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normed(Model):
    """Network of one small convolution with batch norm, so that floats travel beside bits."""

    def build(self, image: Image, classes: int) -> Network:
        """Build the network."""
        return BatchNormNet(image, ((4,),), 1, classes)


def words(kind: str, name: str) -> list[str]:
    """Return each ``param=word`` of a plug-in that is not its default, of words and flags."""
    plugin = registry.plugin(kind, name)
    hints = get_type_hints(plugin)
    texts = []
    for field in dataclasses.fields(plugin):
        hint = hints[field.name]
        flags = (True, False) if hint is bool else ()
        values = get_args(hint) if get_origin(hint) is Literal else flags
        others = [value for value in values if field.init and value != field.default]
        texts += [f"{field.name}={str(v).lower() if v in flags else v}" for v in others]
    return texts


@cache
def prepared(protocol: str) -> Setup:
    """Return a run of this protocol, of which other rules and attacks take the place of its own."""
    return prepare(Scenario(**(SHORT | {"protocol": protocol})), "cpu", "loop")


def streams_with(protocol: str, changes: dict[str, Any]) -> bool:
    """Return whether these parts fit a protocol, and can be streamed with it."""
    try:
        resolution = resolve(Scenario(**(SHORT | {"protocol": protocol} | changes)))
    except FedbenchError:
        return False
    parts: dict[str, Any] = {"scenario": resolution.scenario, "plugins": resolution.plugins}
    return obstacle(dataclasses.replace(prepared(protocol), **parts)) is None


@cache
def fitting(kind: str, protocol: str, per_round: int = 12) -> list[str]:
    """Return the attacks, or the rules alone and behind NNM, that can be streamed so."""
    names = registry.names(kind)
    if kind == "defense":
        names = [*names, *(f"nnm+{name}" for name in names)]
    return [name for name in names if streams_with(protocol, {"per_round": per_round, kind: name})]


@cache
def prepares(kind: str, protocol: str) -> list[Any]:
    """Return the models, or the mechanisms, that this protocol takes."""
    names = registry.names(kind) if kind == "mechanism" else ["logistic", "micro", Normed()]
    fits = []
    for name in names:
        try:
            begin(prepare(Scenario(**(SHORT | {"protocol": protocol, kind: name})), "cpu", "loop"))
        except FedbenchError:
            continue
        fits.append(name)
    return fits


@st.composite
def runs(draw: st.DrawFn, protocols: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Draw fields of a scenario that is streamed, and how many of its clients at a time."""

    def plugin(kind: str, names: Sequence[str]) -> str:
        name = draw(st.sampled_from(names))
        others = words(kind, name.rpartition("+")[2])
        changes = draw(st.one_of(st.none(), st.sampled_from(others))) if others else None
        return name if changes is None else f"{name}:{changes}"

    protocol = draw(st.sampled_from(protocols))
    n = draw(st.integers(1, 12))
    noisy = draw(st.sampled_from([False, False, True]))  # which few rules take
    fields = {
        "per_round": n,
        "protocol": plugin("protocol", [protocol]),
        "defense": plugin("defense", fitting("defense", protocol, n)),
        "attack": plugin("attack", fitting("attack", protocol)),
        "mechanism": plugin("mechanism", prepares("mechanism", protocol)) if noisy else "none",
        "model": draw(st.sampled_from(prepares("model", protocol))),
        "malicious": draw(st.sampled_from([0.1, 0.3, 0.6])),
        "availability": draw(st.sampled_from(["none", "dropout:p=0.3"])),
        "server_checks": draw(st.sampled_from(["none", "finite", "range"])),
        "local_models": draw(st.booleans()),
        "seed": draw(st.integers(0, 99)),
    }
    law = draw(st.sampled_from([{}, {"cohorts": "stratified"}, {"sampling": "poisson"}]))
    return fields | law, draw(st.integers(1, n + 1))


def differences(whole: Any, folded: Any, name: str) -> Iterator[str]:
    """Yield the dotted names of numbers that are not equal, floats to the rounding of a mean."""
    if isinstance(whole, torch.Tensor):
        if whole.dtype != folded.dtype or whole.shape != folded.shape or not near(whole, folded):
            yield name
    elif isinstance(whole, Mapping):
        # An adversary that remembers nothing may do so under a number, or under none.
        parts = [{key: x for key, x in each.items() if x is not None} for each in (whole, folded)]
        if parts[0].keys() != parts[1].keys():
            yield f"{name}: {sorted(parts[0])} and {sorted(parts[1])}"
        for key in parts[0].keys() & parts[1].keys():
            yield from differences(parts[0][key], parts[1][key], f"{name}.{key}")
    elif isinstance(whole, list | tuple):
        if len(whole) != len(folded):
            yield f"{name}: {len(whole)} and {len(folded)} of them"
        for place, pair in enumerate(zip(whole, folded, strict=False)):
            yield from differences(*pair, f"{name}.{place}")
    elif dataclasses.is_dataclass(whole) and type(whole) is type(folded):
        for field in dataclasses.fields(whole):
            values = (getattr(whole, field.name), getattr(folded, field.name))
            yield from differences(*values, f"{name}.{field.name}")
    elif not close(whole, folded):
        yield f"{name}: {whole} and {folded}"


def near(whole: torch.Tensor, folded: torch.Tensor) -> bool:
    """Return whether tensors are equal, floats to a thousandth or to rounding of the largest."""
    if not whole.is_floating_point():
        return whole.equal(folded)
    sizes = whole[whole.isfinite()].abs()
    largest = float(sizes.max()) if len(sizes) else 0.0
    return torch.allclose(whole, folded, rtol=1e-3, atol=1e-5 * largest, equal_nan=True)


def turning(setup: Setup, rounds: Sequence[Round]) -> set[str]:
    """Return the numbers that may differ, since they hang on comparisons of floats that tie."""
    plugins = setup.plugins
    sends = plugins.protocol.sends
    mixes = plugins.defense_name.startswith("nnm")
    even = any(each.accepted % 2 == 0 and (mixes or each.accepted == 2) for each in rounds)
    may = {"attack_seconds", "score"}  # of states: a duration, and what the record holds
    # FedSparse's Adam divides a gradient that is nearly zero by its size: a rounding is a step.
    if registry.split(setup.scenario.protocol)[0] == "fedsparse":
        may |= SERVER
    # Mixtures of bits or ranks are fractions, of which many tie: values, distances, scores. Whole
    # rows of them are rounded to float32, which decides ties otherwise.
    if mixes and issubclass(sends, WHOLE_NUMBERS):
        may |= ANSWER
    # A deviation of float rows is rounded by their order: a crafted mask keeps another weight that
    # ties with it.
    pushes = isinstance(plugins.attack, ALIE | MinMax | MinSum)
    if pushes and registry.split(setup.scenario.protocol)[0] == "topk-mask":
        may |= MESSAGE
    # A geometric median of two places, with as many rows each, is any point between them.
    if even and plugins.defense_name.endswith("geometric-median"):
        may |= ANSWER
    # A message that is copied and rotated anew has numbers that are 0 but for a rounding, which
    # decides their sign, and with it the level that is sent.
    if isinstance(plugins.attack, Mimic) and issubclass(sends, RotatedLevels):
        may |= MESSAGE
    return may


def require_alike(fields: dict[str, Any], chunk: int) -> None:
    """Require that rounds of a scenario, and its record, are the same kept whole and in a stream.

    What does not fit together after all is another example.
    """
    scenario = Scenario(**(SHORT | fields))
    try:
        setup = prepare(scenario, "cpu", "loop")
    except FedbenchError:
        reject()
    assume(obstacle(setup) is None)
    streaming = dataclasses.replace(prepare(scenario, "cpu", "loop"), at_once=chunk)
    state = begin(setup)
    after = state
    rounds = []
    streamed = []
    differ: list[str] = []
    for step in range(scenario.rounds):
        after = copy.deepcopy(state)
        with hooks.in_round(step):
            try:
                rounds.append(play_round(setup, state, step))
            except FedbenchError:  # the first round asks for a layer that is not there, say
                reject()
            streamed.append(play_round(streaming, after, step))
        differ += differences(rounds[-1], streamed[-1], f"round {step}")
        differ += differences(state, after, f"state {step}")
    record = build_record(setup, state, rounds, 0.0)
    other = build_record(streaming, after, streamed, 0.0)
    for name in type(record).model_fields:
        if name not in NOT_COMPARED:
            differ += differences(getattr(record, name), getattr(other, name), f"record.{name}")
    may = turning(setup, rounds)
    assert [each for each in differ if not may & set(each.partition(":")[0].split("."))] == []


UNTIMED = [HealthCheck.too_slow]  # what fits a protocol is looked up while examples are drawn


@settings(max_examples=8, derandomize=True, suppress_health_check=UNTIMED)
@given(run=runs(PROTOCOLS))
def test_a_combination_in_a_stream_is_what_it_is_whole(run: tuple[dict[str, Any], int]) -> None:
    require_alike(*run)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_combinations_of_every_protocol_in_a_stream_are_what_they_are_whole(protocol: str) -> None:
    @settings(max_examples=8, derandomize=True, suppress_health_check=UNTIMED)
    @given(run=runs([protocol]))
    def play_both(run: tuple[dict[str, Any], int]) -> None:
        require_alike(*run)

    play_both()


def test_distances_of_mixed_messages_are_the_same_in_both_directions() -> None:
    """Scores that tie would not, and a rounding would choose among their rows."""
    masks = BinaryMasks(Key(0).bernoulli(torch.full((280,), 0.5)).view(7, 40), torch.zeros(7, 0))
    kept = KeptMessages(masks.take([]), masks.encode())
    mixed = kept.mixed(NNM(f=2).shares(squared_distances(kept)))
    assert squared_distances(mixed).equal(squared_distances(mixed).T)
