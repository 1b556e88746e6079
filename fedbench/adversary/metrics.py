"""Metrics of an attack: how far it moved the aggregate, and whether it was detected."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedbench.adversary.threat_model import AttackContext, new_instance
from fedbench.api import Defense, Findings, ServerView, hooks
from fedbench.core.blame import ask
from fedbench.core.copies import copied_to
from fedbench.core.tiling import all_finite, tiles
from fedbench.payload import FoldedMessages, KeptMessages, Payload, identical

NO_EFFECT: dict[str, Any] = {"gain": 0.0, "gain_mean": 0.0}  # equal messages have equal means
NOT_FINITE = "not_finite"  # finding of a round: how many numbers of the rule's answer are none


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Messages of a round that reached the server, beside those of an honest adversary.

    Args:
        accepted: ``(n,)`` bool, the clients whose message was accepted.
        received: Messages that were accepted, or their sums.
        honest: Messages of all clients, the adversary's as if they were honest, or their sums.
        for_rule: ``received`` as the rule is given them: packets where it needs more than sums.
        for_rule_if_honest: ``honest`` in the same form.
        changed: Whether the server received anything but the honest messages.
        headers: What `forged_headers` measures of them.
    """

    accepted: Tensor
    received: Payload | FoldedMessages
    honest: Payload | FoldedMessages
    for_rule: Payload | FoldedMessages | KeptMessages
    for_rule_if_honest: Payload | FoldedMessages | KeptMessages
    changed: bool
    headers: dict[str, float | None]

    @classmethod
    def of(cls, context: AttackContext, received: Payload, accepted: Tensor) -> Self:
        """Compare whole messages that reached the server with the round before the attack."""
        changed = bool(len(context.owned)) and not as_honest(context, received)
        headers = forged_headers(context, received, accepted)
        honest = context.honest
        return cls(accepted, received, honest, received, honest, changed, headers)


def effect(
    arrivals: Arrivals,
    defense: Defense[Any],
    state: Any,
    view: ServerView,
    aggregate: Tensor,
    answer: Callable[..., tuple[Tensor, Any]] = hooks.aggregate,
) -> dict[str, Any]:
    """Measure `gain`, `gain_mean` and `headers` of a round's record.

    Gains are L2 distances of the aggregate, and of the plain mean, to what honest messages would
    have given, relative to that; None where one is not finite, or the rule has no honest answer.

    Args:
        arrivals: Messages that reached the server.
        defense: The server's rule.
        state: Its state before its answer.
        view: What it would be shown of all ``n`` clients.
        aggregate: Its answer ``(k,)``.
        answer: Function that has a rule answer.
    """
    headers = {"headers": arrivals.headers}
    if not arrivals.changed and all_finite([aggregate]):
        return NO_EFFECT | headers
    rule = new_instance(defense)  # the server's own would see which rows differ
    shown = view.asked().copied()
    gain = None
    if ask(rule, "ready", bool, shown):
        clean, _ = answer(rule, arrivals.for_rule_if_honest.copied(), state, shown)
        gain = _relative(aggregate, clean)
    honest_mean = _mean(arrivals.honest, view.weights)
    mean = _mean(arrivals.received, view.weights[arrivals.accepted])
    return {"gain": gain, "gain_mean": _relative(mean, honest_mean)} | headers


def as_honest(context: AttackContext, received: Payload) -> bool:
    """Return whether all rows arrived, the adversary's as if they were honest.

    Its few rows differ in most rounds, and then the others need not be compared.
    """
    honest = context.honest
    rows = context.owned.rows
    arrived = len(received) == len(honest)
    own = arrived and identical(received.take(rows), honest.take(rows))
    return own and identical(received, honest)


def detection(findings: Findings, aggregate: Tensor, malicious: Tensor) -> dict[str, Any]:
    """Compare what the defense reported with the truth ``(n,)`` bool.

    Returns `findings`, with `NOT_FINITE` if the ``aggregate (k,)`` holds NaN or infinity, and if it
    names whom it left out `true_positive_rate`, the share of the malicious rows that it did, and
    `false_positive_rate`, that of the others (None without any).
    """
    notes = {name: hooks.legible(note) for name, note in findings.notes.items()}
    if not all_finite([aggregate]):
        notes[NOT_FINITE] = int((~torch.isfinite(aggregate)).sum())
    fields: dict[str, Any] = {"findings": notes}
    if findings.kept is not None:
        out = ~findings.kept
        for name, rows in (("true", out[malicious]), ("false", out[~malicious])):
            fields[f"{name}_positive_rate"] = float(rows.double().mean()) if len(rows) else None
    return fields


@dataclass(frozen=True)
class ForgedHeader:
    """Distance of a header of some rows from the honest ones.

    Args:
        scales: Whether it holds floats, like scales, and not integers or bools, like seeds.
        ratio: Of scales, the largest ratio to the honest one; None without a finite row.
        new: Of others, how many the client's own honest message does not have at all.
        count: Of others, how many they are.
    """

    scales: bool
    ratio: float | None = None
    new: int = 0
    count: int = 0


def merged(parts: Sequence[Mapping[str, ForgedHeader]]) -> dict[str, float | None]:
    """Return for each header of some rows the largest ratio, or the share that is new (float32).

    >>> merged([{"seed": ForgedHeader(False, new=n, count=2)} for n in (0, 1)])
    {'seed': 0.25}
    """
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _combined([part[name] for part in parts if name in part]) for name in names}


def _combined(headers: Sequence[ForgedHeader]) -> float | None:
    if headers[0].scales:
        return max((header.ratio for header in headers if header.ratio is not None), default=None)
    new = torch.tensor(float(sum(header.new for header in headers)))
    return float(new / max(sum(header.count for header in headers), 1))


def forged_headers(
    context: AttackContext, received: Payload, accepted: Tensor
) -> dict[str, float | None]:
    """Return how far accepted malicious `Payload.headers` are from the same clients' honest ones.

    Of floats, like scales, the largest ratio of any of them to the honest one, which counts as at
    least a thousandth of its row's largest (None without a finite row); of integers and bools, like
    seeds and indices, the share that its own message does not have at all.
    """
    return merged([compared_headers(context, received, accepted)])


def compared_headers(
    context: AttackContext, received: Payload, accepted: Tensor
) -> dict[str, ForgedHeader]:
    """Compare the headers of the accepted malicious rows, which may be a part of the round's."""
    rows = [row for row in context.owned.rows.tolist() if accepted[row]]
    if not rows or not context.honest.headers():
        return {}
    arrived = (accepted.cumsum(0) - 1)[rows]
    forged = received.take(arrived).headers()
    honest = context.honest.take(rows).headers()
    return {name: _compared(forged[name], honest[name]) for name in honest}


def _compared(forged: Tensor, honest: Tensor) -> ForgedHeader:
    if forged.is_floating_point():
        sizes = honest.double().abs()
        floor = 1e-3 * sizes.amax(dim=1, keepdim=True).clamp_min(1e-30)
        ratios = (forged.double().abs() / torch.maximum(sizes, floor)).amax(dim=1)
        finite = ratios[torch.isfinite(ratios)]
        return ForgedHeader(True, float(finite.max()) if len(finite) else None)
    if torch.equal(forged, honest):
        count = int(honest.sum()) if honest.dtype == torch.bool else honest.numel()
        return ForgedHeader(False, new=0, count=count)
    pairs = list(zip(forged, honest, strict=True))
    if forged.dtype == torch.bool:
        pairs = [(a.nonzero(), b.nonzero()) for a, b in pairs]
    new = torch.cat([~torch.isin(a.flatten(), b) for a, b in pairs])
    return ForgedHeader(False, new=int(new.sum()), count=len(new))


def _mean(messages: Payload | FoldedMessages, weights: Tensor) -> Tensor:
    if isinstance(messages, FoldedMessages):  # which were weighted as they were added up
        return messages.mean(weighted=True)
    x = messages.values().to(torch.float32)
    return copied_to((weights / weights.sum()).to(x.dtype), x.device) @ x


def _relative(moved: Tensor, reference: Tensor) -> float | None:
    gap, size = torch.zeros(2, dtype=torch.float64, device=reference.device)
    for a, b in tiles(moved, reference):
        exact = b.double()
        gap += (a.double() - exact).square_().sum()
        size += exact.square().sum()
    distance = float(gap.sqrt() / size.sqrt().clamp_min(1e-12))
    return distance if math.isfinite(distance) else None
