"""Events that a client's data go through; `accountants` prices each of them."""

from dataclasses import dataclass

from fedbench.api import DpEvent


@dataclass(frozen=True)
class MaskSample(DpEvent):
    """One Bernoulli sample of noisy, clipped probabilities (`amplification`).

    Args:
        d: Bits.
        sigma: Standard deviation of the noise on a probability; 0: the sampling alone.
        c: Probabilities are clipped to ``[c, 1-c]`` before and after the noise.
        radius: L2 distance of a client's probabilities from public ones, at most; None: any.
    """

    d: int
    sigma: float
    c: float
    radius: float | None


@dataclass(frozen=True)
class FlippedBits(DpEvent):
    """Bits, whatever they say, each of which was flipped with probability ``p``.

    Args:
        d: Bits.
        p: In (0, 1/2].
    """

    d: int
    p: float


@dataclass(frozen=True)
class NoisySigns(DpEvent):
    """Signs of a clipped vector under Gaussian noise.

    Args:
        d: Signs.
        z: Standard deviation of the noise on a coordinate, in units of the vector's largest norm.
    """

    d: int
    z: float


@dataclass(frozen=True)
class GaussianSum(DpEvent):
    """A sum of clipped vectors under the server's Gaussian noise.

    Args:
        z: Standard deviation of the noise on a coordinate, in units of a vector's largest norm.
        bits: Is a noisy count of one bit of each client part of it?
    """

    z: float
    bits: bool = False


@dataclass(frozen=True)
class GaussianGradients(DpEvent):
    """Local steps on sums of clipped gradients of samples, each under Gaussian noise.

    Args:
        z: Standard deviation of the noise on a coordinate, in units of a gradient's largest norm.
        rate: A step's share of the client's samples, each of which is drawn by a coin.
        steps: In one round.
    """

    z: float
    rate: float
    steps: int
