"""FedMask: masks by a threshold instead of a sample."""

from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Shared
from fedbench.core.rng import Key
from fedbench.protocols.score_training import ScoreTraining, straight_through


@dataclass(frozen=True, kw_only=True)
class FedMask(ScoreTraining):
    """Clients keep the weights with ``sigmoid(s) > 1/2``, and send that mask.

    FedMask as FedPM compares itself with it: one global model, scores trained straight through,
    everything else as in FedPM with plain averaging. The comparison is strict: ``s = 0`` is 0. The
    personal masks and the one-shot pruning of the original are left out, and no official code says
    how its masks are aggregated (A8): theirs overlap by consensus, ours are averaged, and the next
    round starts from the logit of the mean, clipped at 0.3 because a threshold, unlike a sample,
    never tries the other side (E11).

    References:
        Li et al., "FedMask: Joint Computation and Communication-Efficient Personalized Federated
        Learning via Heterogeneous Masking", SenSys 2021, https://doi.org/10.1145/3485730.3485929;
        as in Isik et al., https://arxiv.org/abs/2209.15328, section 3.1.
    """

    clip: float = 0.3

    def mask(self, score: Tensor, key: Key) -> Tensor:
        """Threshold the score, straight through with the slope of the sigmoid."""
        theta = score.detach().sigmoid()
        return straight_through(score, theta > 0.5, theta * (1 - theta))

    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        return theta > 0.5
