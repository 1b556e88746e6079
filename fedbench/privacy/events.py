"""Events that a client's data go through; `accountants` prices each of them.

`SkellamShare` and `BinomialCounts` are single messages of a secure aggregation. The cost of their
sum depends on how many honest clients' noise is in it, which no client knows (`skellam`,
`poisson_binomial`).
"""

from dataclasses import dataclass

from fedbench.api import DpEvent


@dataclass(frozen=True)
class MaskSample(DpEvent):
    """One Bernoulli sample of noisy, clipped probabilities (`amplification`).

    Args:
        d: Number of bits.
        sigma: Standard deviation of the noise on a probability; 0 for sampling without noise.
        c: Probabilities are clipped to ``[c, 1-c]`` before and after the noise.
        radius: Largest L2 distance of a client's probabilities from public ones; None if unbounded.
    """

    d: int
    sigma: float
    c: float
    radius: float | None


@dataclass(frozen=True)
class FlippedBits(DpEvent):
    """Bits of any meaning, each of which was flipped with probability ``p``.

    Args:
        d: Number of bits.
        p: Probability of a flip, in (0, 1/2].
    """

    d: int
    p: float


@dataclass(frozen=True)
class NoisySigns(DpEvent):
    """Signs of a clipped vector under Gaussian noise.

    Args:
        d: Number of signs.
        z: Standard deviation of the noise on a coordinate, in units of the vector's largest norm.
    """

    d: int
    z: float


@dataclass(frozen=True)
class GaussianSum(DpEvent):
    """A sum of clipped vectors under the server's Gaussian noise.

    Args:
        z: Standard deviation of the noise on a coordinate, in units of a vector's largest norm.
        bits: True if a noisy sum of one bit of each client is released too.
    """

    z: float
    bits: bool = False


@dataclass(frozen=True)
class GaussianGradients(DpEvent):
    """Local steps on sums of clipped gradients of samples, each under Gaussian noise.

    Args:
        z: Standard deviation of the noise on a coordinate, in units of a gradient's largest norm.
        rate: Probability that a step draws a sample, each independently of the others.
        steps: Steps in one round.
    """

    z: float
    rate: float
    steps: int


@dataclass(frozen=True)
class SkellamShare(DpEvent):
    """Vector of integers plus one client's share of the Skellam noise on each.

    Args:
        d: Number of coordinates.
        norm: Largest L2 norm of the vector before noise, after scaling to integers.
        variance: Variance of this client's noise on a coordinate, in the same units.
    """

    d: int
    norm: float
    variance: float


@dataclass(frozen=True)
class BinomialCounts(DpEvent):
    """Number of heads among ``coins`` coins of chance ``1/2 + y_i``, for each coordinate ``y_i``.

    Args:
        d: Number of coordinates.
        coins: Coins tossed for each of them.
        reach: Largest ``|y_i|``: ``theta``, below 1/2.
        norm: Largest L2 norm of ``y``.
    """

    d: int
    coins: int
    reach: float
    norm: float
