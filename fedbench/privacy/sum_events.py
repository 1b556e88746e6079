"""Events of secure aggregation, where each client's noise counts for all.

Each is one client's message. What a sum of several costs depends on how many honest shares of the
noise are in it, which is not the client's to say (`skellam`, `poisson_binomial`).
"""

from dataclasses import dataclass

from fedbench.api import DpEvent


@dataclass(frozen=True)
class SkellamShare(DpEvent):
    """A vector of whole numbers, plus one client's share of Skellam noise on each.

    Args:
        d: Coordinates.
        norm: L2 norm of the vector before noise, at most: of whole numbers, so after scaling.
        variance: Of this client's noise on a coordinate, in the same units.
    """

    d: int
    norm: float
    variance: float


@dataclass(frozen=True)
class BinomialCounts(DpEvent):
    """Number of heads, per coordinate ``y_i``, among ``coins`` coins of chance ``1/2 + y_i``.

    Args:
        d: Coordinates.
        coins: Tossed for each of them.
        reach: Of ``|y_i|``, at most: ``theta``, below 1/2.
        norm: Of the L2 norm of ``y``, at most.
    """

    d: int
    coins: int
    reach: float
    norm: float
