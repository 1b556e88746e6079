"""Push that takes back what a round has learned, as far as the server's rule lets it."""

from collections.abc import Callable

from torch import Tensor

FIRST = 2.0  # gamma of a first search: twice the honest step, backwards from its end
SMALLEST = 0.2  # gamma below which no search goes
LARGEST = 1e5  # gamma above which no search goes
STEPS = 3  # of the refinement, each by the root of the last factor


def halting(left: Callable[[float], float], first: float) -> float:
    """Return the gamma at which ``left(gamma)`` is least, of those that were tried.

    From ``first`` it doubles while that falls, else halves while that falls; then it tries factors
    of 1.41, 1.19 and 1.09 on both sides. A rule that picks rows lets a row through up to some
    distance, so that ``left`` falls, and jumps up again beyond it.

    Args:
        left: Function of a gamma: which share of the honest step is in the rule's answer if
            colluders send ``1 - gamma`` of it.
        first: Gamma to begin with.

    >>> halting(lambda gamma: 1 - gamma / 4 if gamma < 3.2 else 1.0, first=2.0)
    3.084421650815882
    """
    best = first
    least = left(best)
    factors = [2.0, 0.5]
    for factor in factors:
        while SMALLEST < best * factor < LARGEST and (now := left(best * factor)) < least:
            least = now
            best *= factor
        if best != first:
            break
    factor = 2.0
    for _ in range(STEPS):
        factor **= 0.5
        for way in (factor, 1 / factor):
            now = left(best * way)
            if now < least:
                least = now
                best *= way
                break
    return best


def share_left(answer: Tensor, idle: Tensor, step: Tensor) -> float:
    """Return the share of an honest ``step (k,)`` from ``idle`` that is in the rule's answer.

    >>> import torch
    >>> share_left(torch.tensor([3.0, 9.0]), torch.tensor([1.0, 0.0]), torch.tensor([4.0, 0.0]))
    0.5
    """
    square = float(step.double().square().sum()) or 1.0
    return float((answer - idle).double() @ step.double()) / square
