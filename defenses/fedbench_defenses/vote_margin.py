"""The vote, and the number of votes that would overturn it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.payload import BinaryMasks, Payload, SignBits
from fedbench.protocols.fsl import FailureBound

from .bits import as_values, ones_of
from .distances import middle


def votes_to_overturn(ones: Tensor, n: int) -> Tensor:
    """Return how many of ``n`` rows must change their bit to overturn the majority.

    A change moves ``|2 s - n|`` by 2 at most, and a tie overturns: ``ceil(|2 s - n| / 2)``.

    >>> votes_to_overturn(torch.tensor([5.0, 4.0, 3.0, 2.0]), 5).tolist()
    [3.0, 2.0, 1.0, 1.0]
    """
    return ((2 * ones - n).abs() / 2).ceil()


@dataclass(frozen=True, kw_only=True)
class VoteMargin(Defense[None]):
    """Compute the mean of the bits, and the share of coordinates that no ``f`` rows can overturn.

    `findings` certify a coordinate with ``s`` ones of ``n`` bits exactly if ``|2 s - n| > 2 f``:
    whichever ``f`` of the rows are malicious, and whatever they would have sent instead, the
    majority is strictly the same. (For the same majority of the other ``n - f`` rows alone
    ``> f`` would do.) A tie counts as overturned. ``margin`` is the median over coordinates of the
    votes that must change.

    `FailureBound` is the probability before a round that votes fail, if the clients vote
    independently and the malicious ones against the rest (F4: void where ``failure_bound_valid`` is
    false). Its ``p`` is estimated by the share of rows, malicious ones included, that agree with
    the majority. The certificate holds after the round, also against colluders.

    With a protocol that takes the majority of the answer it is the plain vote. Floats are averaged,
    and not certified. Ignores the clients' sizes.

    Args:
        f: Malicious rows the server is prepared for.

    References:
        None: proposed here. The bound is from the FSL paper, https://arxiv.org/abs/2110.04350,
        appendix A.2.
    """

    accepts = (BinaryMasks, SignBits)

    f: int | None = None

    def traits(self) -> Traits:
        """Declare that it reports: it is the mean, and says more."""
        return Traits(reads_sum=True, mean_at_zero=True, reports=True)

    def rows_needed(self) -> int:
        """Return one row more than ``f``."""
        return (self.f or 0) + 1

    def tolerates(self, n: int) -> int:
        """Return 0: bits are bounded by themselves, but floats beside them are averaged."""
        return 0

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        n = len(received)
        f = self.f or 0
        ones = ones_of(received)
        missing = votes_to_overturn(ones, n)
        agree = float((torch.maximum(ones, n - ones) / n).mean())
        bound = FailureBound(n=n, p=agree, alpha=min(f / n, 1.0))
        view.findings.notes |= {
            "certified": float((missing > f).double().mean()),
            "margin": float(middle(missing)),
            "failure_bound": bound.cantelli,
            "failure_bound_valid": bound.valid,
        }
        return as_values(ones / n, received), None
