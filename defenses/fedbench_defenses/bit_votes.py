"""Votes of bits that no client moves far, or with how many could overturn them; and filters."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Defense, Prefilter, ServerView, Traits
from fedbench.core.errors import require
from fedbench.core.tiling import column_sums, row_sums, tiles
from fedbench.payload import BinaryMasks, FoldedMessages, Payload, SignBits, bits_of
from fedbench.protocols.fsl import FailureBound

from .distances import middle
from .mean import exact_mean


def ones_of(received: Payload | FoldedMessages) -> Tensor:
    """Return how many of the rows say 1, ``(d,)`` float64."""
    if not isinstance(received, Payload):
        return received.ones()
    return column_sums(bits_of(received), torch.int32).to(torch.float64)


def as_values(theta: Tensor, received: Payload | FoldedMessages) -> Tensor:
    """Return ``(k,)`` values of the probabilities ``theta (d,)`` of a 1, and the mean of floats."""
    form = received if isinstance(received, Payload) else received.form
    if isinstance(form, SignBits):
        return 2 * theta - 1
    assert isinstance(form, BinaryMasks)
    rest = exact_mean(form.rest) if isinstance(received, Payload) else received.mean()[len(theta) :]
    return torch.cat([2 * theta - 1 if form.signed else theta, rest.to(theta)])


def pseudo_count(n: int, c: float) -> float:
    """Return the least ``a`` for which one of ``n`` bits moves ``logit((s + a) / (n + 2 a))`` by c.

    From ``s`` to ``s + 1`` it moves by ``g(s + a) + g(n - 1 - s + a)`` with ``g(u) = ln(1 + 1/u)``
    convex: most at the ends, by ``ln((a + 1) / a) + ln((n + a) / (n - 1 + a))``, which falls as
    ``a`` grows. That it is ``c`` is a quadratic equation in ``a`` with one positive root.

    >>> a = pseudo_count(10, 0.5)
    >>> round(math.log((a + 1) / a) + math.log((10 + a) / (9 + a)), 12)
    0.5
    """
    more = math.expm1(c)
    b = more * (n - 1) - 2
    root = math.sqrt(b * b + 4 * more * n)
    return 2 * n / (b + root) if b > 0 else (root - b) / (2 * more)  # neither subtracts


def votes_to_overturn(ones: Tensor, n: int) -> Tensor:
    """Return how many of ``n`` rows must change their bit to overturn the majority.

    A change moves ``|2 s - n|`` by 2 at most, and a tie overturns: ``ceil(|2 s - n| / 2)``.

    >>> votes_to_overturn(torch.tensor([5.0, 4.0, 3.0, 2.0]), 5).tolist()
    [3.0, 2.0, 1.0, 1.0]
    """
    return ((2 * ones - n).abs() / 2).ceil()


def failure_notes(ones: Tensor, n: int, f: int) -> dict[str, float | int | str | bool]:
    """Return `FailureBound` of ``n`` rows that agree as those with these ones ``(d,)`` do."""
    agree = float((torch.maximum(ones, n - ones).double() / n).mean())
    bound = FailureBound(n=n, p=agree, alpha=min(f / n, 1.0))
    return {"failure_bound": bound.cantelli, "failure_bound_valid": bound.valid}


@dataclass(frozen=True, kw_only=True)
class LogOddsCap(Defense[None]):
    """Compute ``theta = (s + a) / (n + 2 a)`` for ``s`` ones of ``n``: a bit moves ``logit`` by c.

    ``a`` is the smallest pseudo-count for which no bit moves the log-odds of a coordinate by more
    than ``c``; so ``m`` colluders move them by at most ``m c``, whatever they send. It is the mean
    of FedPM's Beta posterior with a prior of ``a`` ones and ``a`` zeros. Shares only shrink to 1/2:
    the majority stays. Floats beside the bits are averaged. Ignores the clients' sizes.

    Args:
        c: Largest distance by which one client may move the log-odds of a coordinate, in nats.

    References:
        None: proposed here. The posterior is that of Isik et al., "Sparse Random Networks for
        Communication-Efficient Federated Learning", ICLR 2023, https://arxiv.org/abs/2209.15328.
    """

    accepts = (BinaryMasks, SignBits)
    c: float = 0.5

    def __post_init__(self) -> None:
        # A majority of one bit moves a share by c / 8, which float32 must tell from 1/2.
        require("LogOddsCap.c", self.c, 1e-6 <= self.c <= 100, "in [1e-6, 100]")

    def traits(self) -> Traits:
        return Traits(reads_sum=True, shrinks=True, shift=False, scale=False)

    def tolerates(self, n: int) -> int:
        return 0  # bits are bounded by themselves, but floats beside them are averaged

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        return self.capped(received, view), None

    def aggregate_sums(
        self, received: FoldedMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        return self.capped(received, view), None

    def capped(self, received: Payload | FoldedMessages, view: ServerView) -> Tensor:
        """Return ``(k,)``: the probabilities as values, and the mean of floats."""
        n = len(received)
        a = pseudo_count(n, self.c)
        view.findings.notes["pseudo_count"] = a
        return as_values((ones_of(received) + a) / (n + 2 * a), received)


@dataclass(frozen=True, kw_only=True)
class VoteMargin(Defense[None]):
    """Compute the mean of the bits, and the share of coordinates that no ``f`` rows can overturn.

    `findings` certify a coordinate with ``s`` ones of ``n`` bits exactly if ``|2 s - n| > 2 f``:
    whichever ``f`` of the rows are malicious, and whatever they would have sent instead, the
    majority is strictly the same. A tie counts as overturned. ``margin`` is the median over
    coordinates of the votes that must change. Floats are averaged, and not certified. Ignores the
    clients' sizes.

    `FailureBound` is the probability before a round that votes fail, if the clients vote
    independently and the malicious ones against the rest (F4: void where ``failure_bound_valid`` is
    false). Its ``p`` is estimated by the share of rows that agree with the majority.

    Args:
        f: Malicious rows the server is prepared for.

    References:
        None: proposed here. The bound is from the FSL paper, https://arxiv.org/abs/2110.04350,
        appendix A.2.
    """

    accepts = (BinaryMasks, SignBits)
    f: int | None = None

    def traits(self) -> Traits:
        return Traits(reads_sum=True, mean_at_zero=True, reports=True)

    def rows_needed(self) -> int:
        return (self.f or 0) + 1

    def tolerates(self, n: int) -> int:
        return 0  # bits are bounded by themselves, but floats beside them are averaged

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        return self.counted(received, view), None

    def aggregate_sums(
        self, received: FoldedMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        return self.counted(received, view), None

    def counted(self, received: Payload | FoldedMessages, view: ServerView) -> Tensor:
        """Return the mean ``(k,)``, and write down what of it no ``f`` rows can overturn."""
        n = len(received)
        f = self.f or 0
        ones = ones_of(received)
        missing = votes_to_overturn(ones, n)
        certified = float((missing > f).double().mean())
        view.findings.notes |= {"certified": certified, "margin": float(middle(missing))}
        view.findings.notes |= failure_notes(ones, n, f)
        return as_values(ones / n, received)


def deviation(x: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    """Return the distances ``(n,)`` above the median, and their median size, at least ``floor``."""
    from_middle = x - middle(x)
    return from_middle, middle(from_middle.abs()).clamp_min(floor)


def surprises(received: Payload) -> Tensor:
    """Return each row's mean over coordinates of ``-log2 p(b_ij)``, in bits, by the *other* rows.

    Of ``n - 1`` others ``s_j - b_ij`` say 1, and with Laplace's rule ``p(1) = (s_j - b_ij + 1) /
    (n + 1)``. That is ``s_j / (n + 1)`` for a 1 and ``1 - p(1) = (n - s_j) / (n + 1)`` for a 0,
    for every sender: two vectors, one product with the bits.
    """
    bits = bits_of(received)
    ones = ones_of(received)
    n, d = bits.shape
    of_one = math.log2(n + 1) - ones.clamp_min(1).log2()
    of_zero = math.log2(n + 1) - (n - ones).clamp_min(1).log2()
    total = of_zero.sum().expand(n).clone()
    for tile, extra in tiles(bits, of_one - of_zero):
        total += tile.to(torch.float64) @ extra
    return total / d


@dataclass(frozen=True, kw_only=True)
class BitFilter(Prefilter):
    """Filter that leaves out rows of bits, fewer than half, and changes none.

    Args:
        width: Limit in median absolute deviations; 1.5 are a normal's standard deviation.
    """

    accepts = (BinaryMasks, SignBits)
    mixes = False
    real = False
    width: float = 4.0

    def __post_init__(self) -> None:
        require(f"{type(self).__name__}.width", self.width, self.width >= 1, ">= 1")

    def traits(self) -> Traits:
        return Traits(detects=True, shift=False, scale=False, sharp=False)

    def rows(self, n: int) -> int:
        return (n + 1) // 2  # so many are no farther from the median than the median distance

    def rows_needed(self, rule: Defense[Any]) -> int:
        return 2 * rule.rows_needed() - 1

    def tolerates(self, n: int, rule: Defense[Any]) -> int:
        return min(rule.tolerates(left) for left in range(self.rows(n), n + 1))


@dataclass(frozen=True, kw_only=True)
class DensityFilter(BitFilter):
    """Leave out rows whose share of ones is ``> width`` median deviations off the median share.

    The deviation is the median of ``|share_i - median|``, at least one bit of the message: where
    most are equally dense the others may differ by ``width`` bits. The complement of a mask that
    is half full is as dense as the mask, and passes.

    References:
        None: proposed here.
    """

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        ones = row_sums(bits_of(received), torch.int32).to(torch.float64)
        off, deviates = deviation(ones, floor=1.0)
        rows = (off.abs() <= self.width * deviates).nonzero()[:, 0]
        return received.take(rows), rows


@dataclass(frozen=True, kw_only=True)
class EntropyFilter(BitFilter):
    """Leave out rows whose surprise is ``> width`` median deviations above the median surprise.

    A row's surprise is the cross-entropy of its bits under the shares of the other rows, see
    `surprises`. The complement of a mask has its density and its own entropy, but not this. The
    deviation is the median of ``|surprise_i - median|``, at least ``log2(n + 1)`` bits over the
    whole message, what one bit against all others costs. A row that agrees with everyone is never
    left out.

    References:
        None: proposed here.
    """

    def transform(self, received: Payload, view: ServerView) -> tuple[Payload, Tensor]:
        n, d = bits_of(received).shape
        above, deviates = deviation(surprises(received), floor=math.log2(n + 1) / d)
        rows = (above <= self.width * deviates).nonzero()[:, 0]
        return received.take(rows), rows
