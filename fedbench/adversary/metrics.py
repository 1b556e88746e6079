"""Metrics of an attack: how far it moved the aggregate, and whether it was detected."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.adversary.threat_model import AttackContext, fresh
from fedbench.api import Defense, Findings, ServerView, hooks
from fedbench.core.copies import sent
from fedbench.core.tiling import all_finite, tiles
from fedbench.payload import FoldedMessages, KeptMessages, Payload, identical

NO_EFFECT: dict[str, Any] = {"gain": 0.0, "gain_mean": 0.0}  # equal messages have equal means
NOT_FINITE = "not_finite"  # finding of a round: how many numbers of the rule's answer are none


def effect(
    context: AttackContext, received: Payload, accepted: Tensor, aggregate: Tensor
) -> dict[str, Any]:
    """Measure `gain`, `gain_mean` and `headers` of a round's record.

    Gains are L2 distances of the aggregate, and of the plain mean, to what honest messages would
    have given, relative to that; None where a number is not finite. Nothing without malicious rows.
    """
    if len(context.owned) == 0:
        return {}
    headers = {"headers": forged_headers(context, received, accepted)}
    same = as_honest(context, received) and identical(received, context.honest)
    if same and all_finite([aggregate]):
        return NO_EFFECT | headers
    clean = clean_answer(context.defense, context.honest, context.defense_state, context.view)
    honest_mean = _mean(context.honest, context.view.weights)
    sent_mean = _mean(received, context.view.weights[accepted])
    return gains(aggregate, clean, sent_mean, honest_mean) | headers


def clean_answer(
    defense: Defense[Any],
    honest: Payload | FoldedMessages | KeptMessages,
    state: Any,
    view: ServerView,
    answer: Callable[..., tuple[Tensor, Any]] = hooks.aggregate,
) -> Tensor | None:
    """Return the answer ``(k,)`` of a rule to honest messages; None if it is not ready for them."""
    rule = fresh(defense)  # the server's own would see which rows differ
    view = view.asked().copied()
    if not hooks.ask(rule, "ready", bool, view):
        return None
    return answer(rule, honest.copied(), state, view)[0]


def gains(
    aggregate: Tensor, clean: Tensor | None, sent_mean: Tensor, honest_mean: Tensor
) -> dict[str, Any]:
    """Return `gain` and `gain_mean` of answers and means ``(k,)``."""
    gain = None if clean is None else _relative(aggregate, clean)
    return {"gain": gain, "gain_mean": _relative(sent_mean, honest_mean)}


def as_honest(context: AttackContext, received: Payload) -> bool:
    """Return whether all rows arrived, the adversary's as if they were honest.

    These few rows differ in most rounds, and then the others need not be compared.
    """
    rows = context.owned.rows
    arrived = len(received) == len(context.honest)
    return arrived and identical(received.take(rows), context.honest.take(rows))


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
    return {name: _one([part[name] for part in parts if name in part]) for name in names}


def _one(parts: Sequence[ForgedHeader]) -> float | None:
    if parts[0].scales:
        return max((part.ratio for part in parts if part.ratio is not None), default=None)
    new = torch.tensor(float(sum(part.new for part in parts)))
    return float(new / max(sum(part.count for part in parts), 1))


def forged_headers(
    context: AttackContext, received: Payload, accepted: Tensor
) -> dict[str, float | None]:
    """How far the accepted malicious rows' `Payload.headers` are from those of the same clients.

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
    own = context.honest.take(rows).headers()
    return {name: _forged(forged[name], own[name]) for name in own}


def _forged(header: Tensor, own: Tensor) -> ForgedHeader:
    if header.is_floating_point():
        honest = own.double().abs()
        floor = 1e-3 * honest.amax(dim=1, keepdim=True).clamp_min(1e-30)
        ratios = (header.double().abs() / torch.maximum(honest, floor)).amax(dim=1)
        finite = ratios[torch.isfinite(ratios)]
        return ForgedHeader(True, float(finite.max()) if len(finite) else None)
    if torch.equal(header, own):
        count = int(own.sum()) if own.dtype == torch.bool else own.numel()
        return ForgedHeader(False, new=0, count=count)
    pairs = list(zip(header, own, strict=True))
    if header.dtype == torch.bool:
        pairs = [(a.nonzero(), b.nonzero()) for a, b in pairs]
    new = torch.cat([~torch.isin(a.flatten(), b) for a, b in pairs])
    return ForgedHeader(False, new=int(new.sum()), count=len(new))


def _mean(payload: Payload, weights: Tensor) -> Tensor:
    x = payload.values().to(torch.float32)
    return sent((weights / weights.sum()).to(x.dtype), x.device) @ x


def _relative(moved: Tensor, reference: Tensor) -> float | None:
    gap, size = torch.zeros(2, dtype=torch.float64, device=reference.device)
    for a, b in tiles(moved, reference):
        exact = b.double()
        gap += (a.double() - exact).square_().sum()
        size += exact.square().sum()
    distance = float(gap.sqrt() / size.sqrt().clamp_min(1e-12))
    return distance if math.isfinite(distance) else None
