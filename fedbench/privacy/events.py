"""Events that a client's data go through; `accountants` prices each, or a secure sum of them."""

from dataclasses import dataclass

from fedbench.api import DpEvent


@dataclass(frozen=True)
class MaskSample(DpEvent):
    """One Bernoulli sample of noisy, clipped probabilities (`amplification`)."""

    d: int  # bits
    sigma: float  # standard deviation of the noise on a probability; 0 for sampling without noise
    c: float  # probabilities are clipped to ``[c, 1-c]`` before and after the noise
    radius: float | None  # largest L2 distance of probabilities from public ones; None: any


@dataclass(frozen=True)
class FlippedBits(DpEvent):
    """Bits of any meaning, each of which was flipped with probability ``p``."""

    d: int
    p: float  # in (0, 1/2)


@dataclass(frozen=True)
class NoisySigns(DpEvent):
    """Signs of a clipped vector under Gaussian noise."""

    d: int
    z: float  # standard deviation of the noise on a coordinate, over the vector's largest norm


@dataclass(frozen=True)
class GaussianSum(DpEvent):
    """A sum of clipped vectors under the server's Gaussian noise."""

    z: float  # standard deviation of the noise on a coordinate, over a vector's largest norm
    bits: bool = False  # a noisy sum of one bit of each client is released too


@dataclass(frozen=True)
class GaussianGradients(DpEvent):
    """Local steps on sums of clipped gradients of samples, each under Gaussian noise."""

    z: float  # standard deviation of the noise on a coordinate, over a gradient's largest norm
    rate: float  # probability that a step draws a sample, each independently of the others
    steps: int  # in one round


@dataclass(frozen=True)
class SkellamShare(DpEvent):
    """Vector of ``d`` integers plus one client's share of the Skellam noise on each."""

    d: int
    norm: float  # largest L2 norm of the vector before noise, after scaling to integers
    variance: float  # of this client's noise on a coordinate, in the same units


@dataclass(frozen=True)
class BinomialCounts(DpEvent):
    """Number of heads among ``coins`` coins of chance ``1/2 + y_i``, for each coordinate."""

    d: int
    coins: int  # of each coordinate
    reach: float  # largest ``|y_i|``: ``theta``, below 1/2
    norm: float  # largest L2 norm of ``y``
