"""What a run leaves behind: its record, and the doubts that it has about itself."""

from __future__ import annotations

import dataclasses
import platform
import resource
import statistics
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedbench.adversary.metrics import NOT_FINITE
from fedbench.api import hooks
from fedbench.core.trees import Tree
from fedbench.executors.vmap import Stacked
from fedbench.experiment.evaluation import Score, evaluate, share_taken_for
from fedbench.experiment.fingerprint import code_version, fingerprint
from fedbench.experiment.guarantee import guarantee
from fedbench.experiment.measurements import Environment, Result, Round, Spread, Timing
from fedbench.experiment.prepare import Setup
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario
from fedbench.payload import Payload, summed_bits
from fedbench.payload.packets import Packet

if TYPE_CHECKING:
    from fedbench.run import RunState

MAYBE = (Tensor, type(None))


def judge(setup: Setup, state: Any, step: int) -> Score:
    """What is deployed after this round, on the test parts of clients that are not malicious."""
    model = deployed(setup, state, step)
    benign = [part for i, part in enumerate(setup.test) if not setup.malicious[i]]
    score = evaluate(setup.shared.network, model, setup.data, benign)
    return dataclasses.replace(score, success=backdoor_success(setup, model, torch.cat(benign)))


def deployed(setup: Setup, state: Any, step: int) -> Tree | list[Tree]:
    """The model, or the ensemble, that the protocol makes of its state after this round."""
    shapes, key = setup.shared.network.shapes, setup.secret.key("model", step)
    model: Tree | list[Tree] = hooks.model(setup.plugins.protocol, shapes, setup.shared, state, key)
    return model


def backdoor_success(setup: Setup, model: Tree | list[Tree], rows: Tensor) -> float | None:
    """How often a backdoor works on these samples; None if the attack is none.

    Raises:
        PluginError: the attack's trigger is none, see `fedbench.api.hooks.trigger`.
    """
    x, y = setup.data.floats(rows), setup.data.y[rows]
    shown = hooks.trigger(setup.plugins.attack, x, y, setup.data.classes)
    return None if shown is None else share_taken_for(setup.shared.network, model, *shown)


def is_looked_at(scenario: Scenario, step: int) -> bool:
    """True for the rounds that judge on test data; the last one is always among them."""
    return (step + 1) % scenario.eval_every == 0 or step + 1 == scenario.rounds


def looked_at(setup: Setup, world: RunState) -> dict[str, Any]:
    """What a round that judged says of the deployed model, and of privacy until then."""
    last = world.ledger.rounds == setup.scenario.rounds
    score, privacy = world.score, guarantee(setup, world.ledger, slow=last)
    assert score is not None
    return {
        "accuracy": score.accuracy,
        "loss": score.loss,
        "sparsity": score.sparsity,
        "success": score.success,
        "epsilon": None if privacy is None else privacy.epsilon,
    }


def travelled(
    setup: Setup,
    honest: Payload,
    up: list[Packet],
    down: list[Packet],
    accepted: Tensor,
    malicious: Tensor,
) -> dict[str, Any]:
    """Rows and bits of a round; ``down`` is one packet for all clients, or one for each.

    Up it is what was sent, or where a secure aggregation shows the server a sum only, what that
    must carry of messages like the ``honest`` ones (`summed_bits`); None where nobody knows.
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


def judge_locals(
    setup: Setup, known: dict[int, float], ids: list[int], broadcast: Payload, honest: Payload
) -> dict[int, float]:
    """Per benign client, the accuracy of what it last sent on its own test part.

    The honest message alone, before compression's other end averages it, is the client's model; its
    test part never changes, so a client needs a new look only when it sends again.
    """
    if not setup.scenario.local_models:
        return known
    protocol, found = setup.plugins.protocol, dict(known)
    for row, i in enumerate(ids):
        if setup.malicious[i]:
            continue
        down = broadcast.take([row % len(broadcast)])
        kinds = (dict, type(None))
        model = hooks.ask(protocol, "local_model", kinds, setup.shared, down, honest.take([row]))
        if model is not None:
            test = [setup.test[i]]
            found[i] = evaluate(setup.shared.network, model, setup.data, test).accuracy
    return found


def entropy_bits(honest: Payload, benign: Tensor) -> float | None:
    """Of the benign messages together."""
    if type(honest).entropy is Payload.entropy or not bool(benign.any()):
        return None
    entropy = honest.take(benign.nonzero()[:, 0]).entropy()
    return None if entropy is None else float(entropy.sum())


def report(
    setup: Setup, world: RunState, rounds: list[Round], seconds: float, changed: str | None = None
) -> Record:
    """The record of a run that ended in this ``world``.

    Args:
        setup: What did not change.
        world: What did.
        rounds: All of them.
        seconds: Of the whole run.
        changed: Settings of the process that a plug-in changed, in a line.
    """
    score, privacy = world.score, guarantee(setup, world.ledger)
    assert score is not None  # the last round is always looked at
    scenario, protocol, shared = setup.scenario, setup.plugins.protocol, setup.shared
    benign_messages = sum(len(r.clients) - r.malicious for r in rounds)
    messages = sum(len(r.clients) for r in rounds)
    d = shared.layout.d
    entropies = [r.entropy_bits for r in rounds if r.entropy_bits is not None]
    result = Result(
        accuracy=score.accuracy,
        loss=score.loss,
        per_client=spread(score.parts),
        uplink_bits_per_parameter=uplink_bits_per_parameter(rounds, d),
        entropy_bits_per_parameter=sum(entropies) / benign_messages / d if entropies else None,
        downlink_bits_per_parameter=sum(r.downlink_bits for r in rounds) / max(messages, 1) / d,
        model_bits=hooks.ask(protocol, "model_bits", int, shared, world.state),
        sparsity=score.sparsity,
        local_accuracy=rounds[-1].local_accuracy,
        validation_accuracy=validation_accuracy(setup, world.state),
        success=score.success,
        true_positive_rate=_mean(r.true_positive_rate for r in rounds),
        false_positive_rate=_mean(r.false_positive_rate for r in rounds),
        skipped_rounds=sum(r.skipped for r in rounds),
        epsilon=None if privacy is None else privacy.epsilon,
    )
    return Record(
        id=fingerprint(
            scenario,
            setup.plugins.modules(),
            "" if setup.data.is_named(scenario.dataset) else setup.data.identity,
        ),
        scenario=scenario,
        data_digest=setup.data.digest,
        parameters=d,
        vote=scenario.is_vote(),
        mechanism=scenario.mechanism,
        environment=environment(setup),
        privacy=privacy,
        rounds=rounds,
        result=result,
        flags=[*flags(setup, rounds, result), *([changed] if changed else [])],
        timing=Timing(
            seconds=seconds,
            peak_memory_mib=peak_memory_mib(),
            attack_seconds=world.attack_seconds,
        ),
    ).sealed()


def uplink_bits_per_parameter(rounds: list[Round], d: int) -> float | None:
    """Bits of a benign message for each of ``d`` parameters; None if a round has not counted."""
    each = [r.benign_uplink_bits for r in rounds]
    messages = sum(len(r.clients) - r.malicious for r in rounds)
    if None in each:
        return None
    return sum(bits for bits in each if bits is not None) / max(messages, 1) / d


def validation_accuracy(setup: Setup, state: Any) -> float:
    """Of what is deployed in the end, on the validation parts of clients that are not malicious."""
    model = deployed(setup, state, setup.scenario.rounds - 1)
    benign = [part for i, part in enumerate(setup.validation) if not setup.malicious[i]]
    return evaluate(setup.shared.network, model, setup.data, benign).accuracy


def _mean(found: Iterable[float | None]) -> float | None:
    known = [x for x in found if x is not None]
    return statistics.fmean(known) if known else None


def spread(x: Tensor) -> Spread:
    """Mean, population standard deviation, extremes."""
    return Spread(
        mean=float(x.mean()),
        std=float(x.std(unbiased=False)),
        min=float(x.min()),
        max=float(x.max()),
    )


def environment(setup: Setup) -> Environment:
    """The machine and the versions."""
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


def flags(setup: Setup, rounds: list[Round], result: Result) -> list[str]:
    """Reasons to doubt this evaluation; how often is in the rounds, so that runs share a line."""
    doubts = []
    attacked = [r for r in rounds if r.malicious and not r.skipped]
    chance = 1 / setup.data.classes
    if setup.scenario.attack.partition(":")[0] == "none":
        if result.accuracy < 2 * chance:
            doubts.append(f"clean accuracy {result.accuracy:.3f} is near chance ({chance:.3f})")
    else:
        acted = [r for r in attacked if setup.acts(r.step)]
        gains = [r.gain_mean for r in acted if r.gain_mean is not None]
        if gains and statistics.median(gains) < 1e-6:
            doubts.append("the attack would not move the plain mean: is it one?")
        on_bound = [r for r in attacked if r.notes.get("ended") == "bound" and _searched(r.notes)]
        if on_bound:
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
    lost = any(2 * r.malicious >= len(r.clients) for r in rounds)
    if lost and setup.scenario.attack.partition(":")[0] != "none":
        doubts.append("the adversary had at least half of the rows in some rounds")
    honest = sum(len(r.clients) - r.malicious for r in rounds)
    rejected = sum(r.rejected_honest for r in rounds)
    if rejected > honest / 2:
        doubts.append(f"the server rejected {rejected} of {honest} honest messages")
    # A rule that keeps so many, always?
    least = hooks.ask(setup.plugins.defense, "select", MAYBE, torch.zeros(3, 3))
    wronged = result.false_positive_rate or 0.0
    if least is None and wronged > 0.5:
        share = f"{100 * wronged:.0f} %"
        doubts.append(f"the rule left out {share} of the honest messages")
    if result.loss is None:
        doubts.append("the deployed model's scores are not finite: such images count as wrong")
    fell_back = {str(r.findings["fell_back"]) for r in rounds if "fell_back" in r.findings}
    doubts += [f"the rule fell back in some rounds: {why}" for why in sorted(fell_back)]
    if any(NOT_FINITE in r.findings for r in rounds):
        doubts.append("the rule answered NaN or infinity in some rounds")
    stopped = {str(r.findings["stopped"]) for r in rounds if "stopped" in r.findings}
    doubts += [f"the rule stopped early in some rounds: {why}" for why in sorted(stopped)]
    if result.skipped_rounds:
        doubts.append(f"{result.skipped_rounds} of {len(rounds)} rounds were skipped")
    return doubts


def _searched(notes: dict[str, float | int | str | bool]) -> bool:
    return notes.get("search") != "unbounded"
