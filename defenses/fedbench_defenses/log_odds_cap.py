"""A vote in which no client moves the log-odds far."""

import math
from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.payload import BinaryMasks, Payload, SignBits

from .bits import as_values, ones_of


def pseudo_count(n: int, c: float) -> float:
    """Return the least ``a`` for which one of ``n`` bits moves ``logit((s + a) / (n + 2 a))`` by c.

    From ``s`` to ``s + 1`` it moves by ``g(s + a) + g(n - 1 - s + a)`` with ``g(u) = ln(1 + 1/u)``.
    ``g`` is convex, so the sum is largest at the ends, ``s = 0`` and ``n - 1``: there it is ``ln((a
    + 1) / a) + ln((n + a) / (n - 1 + a))``, which falls as ``a`` grows. That it is ``c`` is a
    quadratic equation in ``a`` with one positive root.

    >>> a = pseudo_count(10, 0.5)
    >>> round(math.log((a + 1) / a) + math.log((10 + a) / (9 + a)), 12)
    0.5
    """
    more = math.expm1(c)
    b = more * (n - 1) - 2
    root = math.sqrt(b * b + 4 * more * n)
    return 2 * n / (b + root) if b > 0 else (root - b) / (2 * more)  # neither subtracts


@dataclass(frozen=True, kw_only=True)
class LogOddsCap(Defense[None]):
    """Compute ``theta = (s + a) / (n + 2 a)`` for ``s`` ones of ``n``: a bit moves ``logit`` by c.

    ``a`` is the smallest pseudo-count for which no bit moves the log-odds of a coordinate by more
    than ``c``, see `pseudo_count`; so ``m`` colluders move them by at most ``m c``, whatever they
    send, where the log-odds of a plain share are infinite if all agree. It is the mean of FedPM's
    Beta posterior with a prior of ``a`` ones and ``a`` zeros. Shares only shrink to 1/2, so a
    protocol that takes the majority of the answer gets the plain vote. Floats beside the bits are
    averaged. Ignores the clients' sizes.

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
        """Return 0: bits are bounded by themselves, but floats beside them are averaged."""
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        n = len(received)
        a = pseudo_count(n, self.c)
        view.findings.notes["pseudo_count"] = a
        theta = (ones_of(received) + a) / (n + 2 * a)
        return as_values(theta, received), None
