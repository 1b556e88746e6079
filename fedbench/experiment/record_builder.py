"""Record of a run: what each round travelled and measured, and what the whole run comes to."""

import platform
import resource
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbench.api import hooks
from fedbench.executors.vmap import Stacked
from fedbench.experiment.compatibility import counts_votes
from fedbench.experiment.evaluation import validation_accuracy
from fedbench.experiment.fingerprint import code_version
from fedbench.experiment.flags import flags
from fedbench.experiment.guarantee import guarantee
from fedbench.experiment.measurements import Result, Round, Spread, Timing, from_rounds
from fedbench.experiment.record import Environment, Record
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.payload import Payload, summed_bits
from fedbench.payload.packets import Packet


def evaluated(setup: Setup, state: RunState) -> dict[str, Any]:
    """Fields of a round that read test data: the deployed model's, and privacy until then."""
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
    honest: Payload,
    up: list[Packet],
    down: list[Packet],
    accepted: Tensor,
    malicious: Tensor,
) -> dict[str, Any]:
    """Fields of a round that count rows and bits.

    Uplink bits are those of the packets that were sent; where a secure aggregation shows the server
    a sum only, those that it must carry for messages like the ``honest`` ones (`summed_bits`), None
    where nobody knows. ``down`` is one packet for all clients, or one for each.
    """
    extra: int = hooks.ask(setup.plugins.mechanism, "message_bits", int)
    each = torch.tensor([packet.bits + extra for packet in up], dtype=torch.int64)
    counted = True
    if setup.sees in ("sum", "hidden-sum"):
        masked = None if setup.plugins.protocol.weighted else summed_bits(honest)
        counted = masked is not None
        each.fill_((masked or 0) + extra)
    return {
        "malicious": int(malicious.sum()),
        "accepted": int(accepted.sum()),
        "rejected_honest": int((~accepted & ~malicious).sum()),
        "rejected_malicious": int((~accepted & malicious).sum()),
        "uplink_bits": int(each.sum()) if counted else None,
        "benign_uplink_bits": int(each[~malicious].sum()) if counted else None,
        "downlink_bits": sum(p.bits for p in down) * (len(up) // max(len(down), 1)),
    }


def entropy_bits(honest: Payload, benign: Tensor) -> float | None:
    """Empirical entropy of the benign messages together; None where the alphabet has none."""
    if type(honest).entropy is Payload.entropy or not bool(benign.any()):
        return None
    entropy = honest.take(benign.nonzero()[:, 0]).entropy()
    return None if entropy is None else float(entropy.sum())


def build_record(
    setup: Setup, state: RunState, rounds: list[Round], seconds: float, changed: str | None = None
) -> Record:
    """Return the record of a run that ended in this state.

    Args:
        setup: Everything that did not change.
        state: State after the last round.
        rounds: All rounds.
        seconds: Time of the whole run.
        changed: Settings of the process that a plug-in changed, in a line.
    """
    scenario = setup.scenario
    privacy = guarantee(setup, state.ledger)
    result = build_result(setup, state, rounds, None if privacy is None else privacy.epsilon)
    return Record(
        id=setup.id,
        scenario=scenario,
        data_digest=setup.population.data.digest,
        parameters=setup.shared.layout.d,
        vote=counts_votes(scenario),
        mechanism=scenario.mechanism,
        environment=environment(setup),
        privacy=privacy,
        rounds=rounds,
        result=result,
        flags=[*flags(setup, rounds, result), *([changed] if changed else [])],
        timing=Timing(
            seconds=seconds,
            peak_memory_mib=peak_memory_mib(),
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
    d = setup.shared.layout.d
    messages = sum(len(r.clients) for r in rounds)
    benign_messages = sum(len(r.clients) - r.malicious for r in rounds)
    entropies = [r.entropy_bits for r in rounds if r.entropy_bits is not None]
    return Result(
        accuracy=score.accuracy,
        loss=score.loss,
        per_client=spread(score.parts),
        uplink_bits_per_parameter=uplink_bits_per_parameter(rounds, d),
        entropy_bits_per_parameter=sum(entropies) / benign_messages / d if entropies else None,
        downlink_bits_per_parameter=sum(r.downlink_bits for r in rounds) / max(messages, 1) / d,
        model_bits=hooks.ask(protocol, "model_bits", int, setup.shared, state.server),
        sparsity=score.sparsity,
        local_accuracy=rounds[-1].local_accuracy,
        validation_accuracy=validation_accuracy(setup, state.server),
        success=score.success,
        epsilon=epsilon,
        **from_rounds(rounds),
    )


def uplink_bits_per_parameter(rounds: list[Round], d: int) -> float | None:
    """Bits of a benign message for each of ``d`` parameters; None if a round has not counted."""
    each = [r.benign_uplink_bits for r in rounds]
    messages = sum(len(r.clients) - r.malicious for r in rounds)
    if None in each:
        return None
    return sum(bits for bits in each if bits is not None) / max(messages, 1) / d


def spread(x: Tensor) -> Spread:
    """Return mean, population standard deviation and extremes."""
    return Spread(
        mean=float(x.mean()),
        std=float(x.std(unbiased=False)),
        min=float(x.min()),
        max=float(x.max()),
    )


def environment(setup: Setup) -> Environment:
    """Return the machine and the versions."""
    device = setup.shared.device
    return Environment(
        fedbench=code_version(),
        python=platform.python_version(),
        torch=torch.__version__,
        numpy=np.__version__,
        platform=platform.platform(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        executor=type(setup.executor).__name__.lower(),
        threads=torch.get_num_threads(),
        chunk=setup.executor.chunk if isinstance(setup.executor, Stacked) else None,
    )


def peak_memory_mib() -> float:
    """Largest resident set of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
