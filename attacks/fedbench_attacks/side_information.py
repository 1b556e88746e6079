"""Scales, indices and seeds: what a codec sends beside its symbols is the client's to choose."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.linalg import vector_norm

from fedbench.api import Attack, AttackView, Choices, Knowledge
from fedbench.core.errors import require
from fedbench.core.order_statistics import sorted_rows
from fedbench.payload import (
    Levels,
    NoiseMasks,
    Patch,
    Payload,
    RotatedLevels,
    ScaledSigns,
    SeededPatches,
)
from fedbench.payload.sparse import SeededSparse, SparseVectors
from fedbench.protocols.eden import rotated

from .crafted import Reader, honest_rows


@dataclass(frozen=True, kw_only=True)
class ScaleField(Attack):
    """Flip the symbols, keep them plausible, and send ``factor`` times the honest scales.

    The symbols are those of the opposite update; no alphabet limits the size of a scale. A factor
    that overflows sends the largest float32, which a server that checks may reject.

    Args:
        factor: Factor of every scale of the message.

    References:
        None: proposed here. The idea is that a codec's side information is the client's to choose.
    """

    accepts = (Levels, RotatedLevels, ScaledSigns)
    choices: ClassVar[Choices] = {"factor": (10.0, 1e3)}

    factor: float = 1e6

    def __post_init__(self) -> None:
        require("ScaleField.factor", self.factor, self.factor > 0, "> 0")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own: Any = view.own
        flipped = own.nearest(own.opposite(own.values()))
        scales = (flipped.scales.double() * self.factor).clamp(max=3.4e38)
        return replace(flipped, scales=scales.to(flipped.scales)), memory


@dataclass(frozen=True, kw_only=True)
class IndexConcentration(Attack):
    """Spend all indices where the fewest benign clients spend theirs, so that nobody contradicts.

    All colluders send the same: of the coordinates that the fewest benign messages hold, those
    where the opposite of their own mean update goes farthest beyond what is `held` there (zeros,
    but for patches), and there this opposite, as long as their mean message.

    References:
        None: proposed here. The idea is that a sparse message's indices are the client's to choose.
    """

    accepts = (SparseVectors,)

    def needs(self) -> Knowledge:
        return Knowledge("all")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own: Any = view.own
        seen: Any = view.seen
        rows, width = own.indices.shape
        used = torch.bincount(seen.indices.flatten(), minlength=own.d)
        mean = view.updates[:, : own.d].mean(dim=0)
        beyond = mean.abs() + mean.sign() * held(own).mean(dim=0)
        by_size = beyond.argsort(descending=True, stable=True)
        order = by_size[used[by_size].argsort(stable=True)]
        indices = order[:width].sort().values
        entries = -mean[indices]
        length = torch.linalg.vector_norm(own.entries, dim=1).mean()
        entries = entries * (length / torch.linalg.vector_norm(entries).clamp_min(1e-30))
        view.notes["unused"] = int((used[indices] == 0).sum())
        columns = entries.to(torch.float32).expand(rows, -1).clone()
        return replace(own, indices=indices.expand(rows, -1).clone(), entries=columns), memory


@dataclass(frozen=True, kw_only=True)
class SupportMargin(Attack):
    """Spend all indices where they move the server's rule farthest from the benign mean.

    All colluders send the same: ``-e`` times the sign of the benign mean at the coordinates where
    that raises the squared distance of the answer to this mean most, over sending nothing there:
    then the server has what is `held` there, zeros but for patches. ``e`` makes it as long as their
    mean message. A rule that says how it combines the sorted rows of a coordinate is computed; any
    other is taken for the mean. If no client of the round is benign the rule has the colluders'
    rows alone, and the benign mean is that of what they would have sent.

    References:
        None: proposed here. The idea is that a sparse message's indices are the client's to choose,
        and that a coordinate falls where benign clients that hold it disagree.
    """

    accepts = (SparseVectors,)

    def needs(self) -> Knowledge:
        return Knowledge("all", defense=True)

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        assert view.defense is not None
        own: Any = view.own
        honest = honest_rows(view)
        if honest is None:
            return own, memory
        rows, width = own.indices.shape
        benign = honest if len(view.seen) else honest[:0]
        n = len(benign) + rows
        weights = view.defense.rule.order_weights(n)
        weights = torch.full((n,), 1 / n) if weights is None else weights
        length = torch.linalg.vector_norm(own.entries, dim=1).mean()
        mean = honest.mean(dim=0)[: own.d]
        against = -mean.sign() * length / width**0.5
        gains = gained(benign[:, : own.d], mean, weights, against, held(own))
        indices = gains.argsort(descending=True, stable=True)[:width].sort().values
        view.notes["gained"] = int((gains[indices] > 0).sum())
        columns = against[indices].to(torch.float32).expand(rows, -1).clone()
        return replace(own, indices=indices.expand(rows, -1).clone(), entries=columns), memory


def held(own: Any) -> Tensor:
    """Return what the server has of each client, ``(m, d)``, where a message holds no coordinate.

    Zeros, but for patches: there what both ends remember.
    """
    return own.remembered if isinstance(own, Patch) else own.entries.new_zeros(len(own), own.d)


def gained(benign: Tensor, mean: Tensor, weights: Tensor, sent: Tensor, still: Tensor) -> Tensor:
    """Return how much more ``(answer - mean)**2`` is if all send ``sent (k,)``, not ``still``.

    ``answer (k,)`` combines, by ``weights (b + m,)``, the sorted rows of ``benign (b, k)`` and the
    colluders': ``m`` times ``sent``, or ``still (m, k)``.
    """

    def away(rows: Tensor) -> Tensor:
        ordered = sorted_rows(torch.cat([benign, rows]))
        return (weights.to(ordered) @ ordered - mean).square()

    return away(sent.expand_as(still)) - away(still)


@dataclass(frozen=True, kw_only=True)
class SeedGrinding(Attack):
    """Try ``tries`` seeds, and send the message that is closest to the opposite of the own update.

    With a seed, a rotated update is encoded as by an honest client (with the unbiased scale and no
    error feedback, of which a message does not tell), coordinates are as long as the honest
    message, patches bring what both ends remember to the opposite, and masked noise is
    the closest mask. The own seed is the first try.

    Args:
        tries: Number of seeds that are tried.

    References:
        None: proposed here. The idea is that a codec's side information is the client's to choose.
    """

    accepts = (NoiseMasks, RotatedLevels, SeededSparse)
    choices: ClassVar[Choices] = {"tries": (4, 64)}

    tries: int = 16

    def __post_init__(self) -> None:
        require("SeedGrinding.tries", self.tries, 1 <= self.tries <= 10**4, "in [1, 10000]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return best_seeds(view, -view.updates.to(torch.float32), self.tries, encoded)[0], memory


@dataclass(frozen=True, kw_only=True)
class NoiseMask(Reader):
    """Send the one of ``tries`` seeds whose best mask is closest to ``-scale`` times the mean.

    The mean is that of the messages read. The best mask over a seed's noise is the closest in L2,
    bit by bit; its distance over weights and floats decides between the seeds, for each colluder by
    itself. The own seed is the first try. Floats are those of the target.

    Args:
        scale: Factor of the negative mean.
        seed: ``choose``, or the ``own`` one: then only the mask is chosen.
        tries: Number of seeds that are tried.

    References:
        None: proposed here. The idea is that FedMRN leaves both, seed and mask, to the client.
    """

    accepts = (NoiseMasks,)
    choices: ClassVar[Choices] = {"scale": (0.3, 3.0, 10.0), "tries": (1, 32)}

    scale: float = 1.0
    seed: Literal["own", "choose"] = "choose"
    tries: int = 8
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("NoiseMask.scale", self.scale, self.scale > 0, "> 0")
        require("NoiseMask.tries", self.tries, 1 <= self.tries <= 10**4, "in [1, 10000]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        honest = honest_rows(view)
        if honest is None:
            return view.own, memory
        target = (-self.scale * honest.mean(dim=0)).expand(len(view.own), -1)
        tries = self.tries if self.seed == "choose" else 1
        best, distances = best_seeds(view, target, tries, lambda x, own: own.nearest(x))
        view.trace.extend((float(number), distance) for number, distance in enumerate(distances))
        return best, memory


def best_seeds(
    view: AttackView, target: Tensor, tries: int, message: Callable[[Tensor, Any], Any]
) -> tuple[Any, list[float]]:
    """Return the messages closest to ``target (m, k)``, and their mean distance after each try.

    A try is ``message(target, own)`` with another seed in each of the ``own`` messages.
    """
    best: Any = view.own
    m = len(best)
    drawn = view.key.fold("seeds").bits((tries - 1) * m).to(best.seeds.device)
    least = torch.full((m,), torch.inf, dtype=torch.float64)
    distances = []
    for seeds in [best.seeds, *drawn.reshape(tries - 1, m, 1)]:
        trial = message(target, replace(view.own, seeds=seeds))  # type: ignore[call-arg]
        distance = (trial.values().double() - target).square().sum(dim=1).sqrt().cpu()
        better = (distance < least).nonzero()[:, 0]
        best = best.put(better, trial.take(better))
        least = torch.minimum(distance, least)
        distances.append(float(least.mean()))
    view.notes["tries"] = tries
    return best, distances


def encoded(target: Tensor, own: Any) -> Any:
    """Return the message for ``target (m, d + p)`` with the seeds of ``own``."""
    if isinstance(own, RotatedLevels):
        d = own.levels.shape[1]
        return rotated(target[:, :d], target[:, d:], own.seeds, own.bits, own.block, "unbiased")
    trial = own.nearest(target)
    if isinstance(trial, SeededPatches) or not isinstance(trial, SeededSparse):
        return trial  # a patch that is made longer would be remembered, and grow with every round
    lengths = vector_norm(own.entries, dim=1) / vector_norm(trial.entries, dim=1).clamp_min(1e-30)
    return replace(trial, entries=trial.entries * lengths[:, None])
