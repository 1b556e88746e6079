"""Record of a run: what each round travelled, what the whole run comes to, reasons to doubt it."""

import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.adversary.metrics import NOT_FINITE
from fedbench.core import registry
from fedbench.core.blame import ask
from fedbench.core.canonical import in_force
from fedbench.core.devices import peak_memory, title
from fedbench.executors.cached_answers import processor
from fedbench.experiment.compatibility import counts_votes
from fedbench.experiment.evaluation import settled, validation_accuracy
from fedbench.experiment.guarantee import guarantee
from fedbench.experiment.measurements import (
    Result,
    Round,
    Spread,
    Timing,
    from_rounds,
    rejected_most,
    skipped,
)
from fedbench.experiment.record import Environment, Record, Source
from fedbench.experiment.scenario import code_version
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.models import adapters
from fedbench.payload import Payload
from fedbench.payload.packets import Packet


def evaluation_fields(setup: Setup, state: RunState) -> dict[str, Any]:
    """Return a round's fields that read test data, the deployed model's, and privacy until then."""
    last = state.ledger.rounds == setup.scenario.rounds
    privacy = guarantee(setup, state.ledger, slow=last)
    score = state.score
    assert score is not None
    return {
        "accuracy": score.accuracy,
        "loss": score.loss,
        "sparsity": score.sparsity,
        "success": score.success,
        "epsilon": None if privacy is None else privacy.epsilon,
    }


def traffic(
    setup: Setup,
    up: Sequence[int],
    down: list[Packet],
    asked: int,
    accepted: Tensor,
    malicious: Tensor,
) -> dict[str, Any]:
    """Return the fields of a round that count rows and bits of the packets that were sent.

    ``up`` are the bits of each client's packet; for ``down`` and ``asked`` see `downlink_bits`.
    """
    extra: int = ask(setup.plugins.mechanism, "message_bits", int)
    each = torch.tensor(up, dtype=torch.int64) + extra
    return {
        "malicious": int(malicious.sum()),
        "accepted": int(accepted.sum()),
        "rejected_honest": int((~accepted & ~malicious).sum()),
        "rejected_malicious": int((~accepted & malicious).sum()),
        "uplink_bits": int(each.sum()),
        "benign_uplink_bits": int(each[~malicious].sum()),
        "downlink_bits": downlink_bits(down, asked),
    }


def downlink_bits(down: Sequence[Packet], asked: int) -> int:
    """Return the bits that a server sends: ``down`` is a packet for all clients, or one for each.

    >>> downlink_bits([Packet.raw(b"abc")], asked=2)
    48
    """
    return sum(packet.bits for packet in down) * (asked // max(len(down), 1))


def entropy_bits(honest: Payload, benign: Tensor) -> float | None:
    """Return the empirical entropy of the benign messages together; None if it has no meaning."""
    if type(honest).entropy is Payload.entropy or not bool(benign.any()):
        return None
    read = honest if bool(benign.all()) else honest.take(benign.nonzero()[:, 0])
    entropy = read.entropy()
    return None if entropy is None else float(entropy.sum())


def peak_memory_mib() -> float:
    """Return the most memory that this process has had, in MiB; 0 on Windows, which keeps none."""
    try:
        import resource
    except ImportError:
        return 0.0
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def build_record(
    setup: Setup, state: RunState, rounds: list[Round], seconds: float, changed: str | None = None
) -> Record:
    """Return the record of a run that ended in this state after ``seconds``.

    ``changed`` says in a line which settings of the process a plug-in changed.
    """
    scenario = setup.scenario
    privacy = guarantee(setup, state.ledger)
    result = build_result(setup, state, rounds, None if privacy is None else privacy.epsilon)
    on_device = peak_memory(setup.shared.device)
    return Record(
        id=setup.id,
        scenario=scenario,
        data_digest=setup.population.data.digest,
        parameters=setup.shared.network.parameters,
        trained=setup.shared.layout.d if scenario.adapter != adapters.NONE else None,
        vote=counts_votes(scenario),
        mechanism=scenario.mechanism,
        environment=environment(setup),
        sources=[
            Source(**asdict(registry.origin(source.path)), sha256=source.sha256)
            for source in setup.sources
        ],
        privacy=privacy,
        rounds=rounds,
        result=result,
        flags=[*flags(setup, rounds, result), *([changed] if changed else [])],
        timing=Timing(
            seconds=seconds,
            peak_memory_mib=peak_memory_mib(),
            peak_device_memory_mib=None if on_device is None else on_device / (1 << 20),
            attack_seconds=state.attack_seconds,
        ),
    ).sealed()


def build_result(
    setup: Setup, state: RunState, rounds: list[Round], epsilon: float | None
) -> Result:
    """Return what the whole run comes to, read at its last round."""
    score = state.score
    assert score is not None  # the last round is always evaluated
    protocol = setup.plugins.protocol
    d = setup.shared.network.parameters
    asked = sum(r.asked for r in rounds)
    benign_messages = sum(len(r.clients) - r.malicious for r in rounds)
    entropies = [r.entropy_bits for r in rounds if r.entropy_bits is not None]
    uplink = [r.benign_uplink_bits for r in rounds if r.benign_uplink_bits is not None]
    counted = benign_messages > 0 and len(uplink) == len(rounds)
    server = settled(setup, state.server, setup.scenario.rounds - 1)
    return Result(
        accuracy=score.accuracy,
        loss=score.loss,
        per_client=None if setup.population.published is not None else spread(score.parts),
        uplink_bits_per_parameter=sum(uplink) / benign_messages / d if counted else None,
        entropy_bits_per_parameter=sum(entropies) / benign_messages / d if entropies else None,
        downlink_bits_per_parameter=sum(r.downlink_bits for r in rounds) / max(asked, 1) / d,
        model_bits=ask(protocol, "model_bits", int, setup.shared, server),
        sparsity=score.sparsity,
        local_accuracy=rounds[-1].local_accuracy,
        validation_accuracy=validation_accuracy(setup, server),
        success=score.success,
        epsilon=epsilon,
        **from_rounds(rounds),
    )


def spread(accuracies: Tensor) -> Spread:
    """Summarise the accuracies ``(n,)`` of the benign clients."""
    return Spread(
        mean=float(accuracies.mean()),
        std=float(accuracies.std(unbiased=False)),
        min=float(accuracies.min()),
        max=float(accuracies.max()),
    )


def environment(setup: Setup) -> Environment:
    """Return the machine and the versions."""
    return Environment(
        fedbench=code_version(),
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=np.__version__,
        platform=platform.platform(),
        processor=f"{platform.machine()} {processor()}",
        device=title(setup.shared.device),
        executor=setup.executor.title,
        threads=torch.get_num_threads(),
        chunk=setup.executor.at_once,
        canonical=setup.canonical and in_force(),
    )


def flags(setup: Setup, rounds: list[Round], result: Result) -> list[str]:
    """Return reasons to doubt this evaluation, worded so that runs share a line."""
    doubts = []
    if setup.scenario.attack.partition(":")[0] != "none":
        doubts += _of_attack(setup, rounds)
    else:
        chance = 1 / setup.population.data.classes
        if result.accuracy < 2 * chance:
            doubts.append(f"clean accuracy {result.accuracy:.3f} is near chance ({chance:.3f})")
    doubts += _of_server(setup, rounds, result)
    if setup.canonical and any(r.commitment is None for r in rounds):
        doubts.append("some rounds have no commitment: a plug-in's state has no bytes")
    return [*doubts, *skipped(rounds)]


def _of_attack(setup: Setup, rounds: list[Round]) -> list[str]:
    """Return doubts about an attack: it does nothing, ends on a bound, or is not seen."""
    doubts = []
    attacked = [r for r in rounds if r.malicious and not r.skipped]
    acted = [r for r in attacked if setup.acts(r.step)]
    gains = [r.gain_mean for r in acted if r.gain_mean is not None]
    if gains and statistics.median(gains) < 1e-6:
        doubts.append("the attack would not move the plain mean: is it one?")
    ended = [r.notes for r in attacked if r.notes.get("ended") == "bound"]
    if any(notes.get("search") != "unbounded" for notes in ended):
        doubts.append("the attack's search ended on its bound in some rounds")
    if any(r.notes.get("gamma", r.notes.get("lambda")) == 0 for r in attacked):
        doubts.append("the attack's search found no strength above 0 in some rounds")
    if not attacked:
        doubts.append("no malicious client was ever sampled, or every round was skipped")
    elif not acted and setup.scenario.attack_from < len(rounds):  # else it is meant to be so
        doubts.append("no malicious client was sampled in a round in which the attack acted")
    sent = sum(r.malicious for r in rounds if setup.acts(r.step))
    refused = sum(r.rejected_malicious for r in rounds if setup.acts(r.step))
    if refused > sent / 2:
        share = "all" if refused == sent else "most"
        doubts.append(f"{share} malicious messages were rejected")
    if any(0 < len(r.clients) <= 2 * r.malicious for r in rounds if setup.acts(r.step)):
        doubts.append("the adversary had at least half of the rows in some rounds")
    return doubts


def _of_server(setup: Setup, rounds: list[Round], result: Result) -> list[str]:
    """Return doubts about the defense, and about what the server deployed."""
    doubts = rejected_most(rounds)
    kinds = (Tensor, type(None))
    always = ask(setup.plugins.defense, "select", kinds, torch.zeros(3, 3)) is not None
    wronged = result.false_positive_rate or 0.0
    if wronged > 0.5 and not always:  # a rule that selects always leaves some out
        doubts.append(f"the rule left out {100 * wronged:.0f} % of the honest messages")
    if result.loss is None:
        doubts.append("the deployed model's scores are not finite: such images count as wrong")
    doubts += [f"the rule fell back in some rounds: {why}" for why in _notes(rounds, "fell_back")]
    if any(NOT_FINITE in r.findings for r in rounds):
        doubts.append("the rule answered NaN or infinity in some rounds")
    doubts += [f"the rule stopped early in some rounds: {why}" for why in _notes(rounds, "stopped")]
    return doubts


def _notes(rounds: list[Round], name: str) -> list[str]:
    return sorted({str(r.findings[name]) for r in rounds if name in r.findings})
