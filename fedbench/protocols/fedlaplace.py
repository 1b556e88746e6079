"""FedLaplace: clients under Laplace priors, and a server that takes the median."""

from dataclasses import dataclass

from torch import Tensor

from fedbench.core.errors import require
from fedbench.core.trees import Tree
from fedbench.models.network import is_statistic
from fedbench.payload import FloatVectors
from fedbench.protocols.fedavg import DenseWeights


def soft_threshold(x: Tensor, by: float) -> Tensor:
    """Shrink values towards 0: ``sign(x) max(|x| - by, 0)``.

    >>> import torch
    >>> soft_threshold(torch.tensor([-3.0, -1.0, 0.5, 1.5]), 1.0).tolist()
    [-2.0, 0.0, 0.0, 0.5]
    """
    return x - x.clamp(-by, by)


@dataclass(frozen=True, kw_only=True)
class FedLaplace(DenseWeights):
    """Clients minimise ``loss + lam sum_j |w_sj - w_j|``; the server moves to their median.

    Each SGD step is followed by the proximal step of the prior, a soft threshold of ``w_s - w``:
    parameters whose gradient stays within ``lam`` end exactly at the server's, as in the paper,
    where a subgradient step would jump across ``w`` for ever. The threshold is
    ``lr lam / (1 - momentum)``, so that this holds with momentum. The loss is the mean over
    samples, where equation 33 has the sum.

    The median of updates, plus ``w``, is the median of weights; it is the rule of
    ``--defense own``, and every client counts the same. Running statistics have no prior.

    Args:
        lam: Inverse scale ``lambda`` of the prior.

    References:
        Louizos et al. (see `FedSparse`), https://arxiv.org/abs/2111.10192, appendix G.1, equations
        33, 35 and 36.
    """

    sends = FloatVectors
    default_defense = "median"
    weighted = False

    lam: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        require("FedLaplace.lam", self.lam, self.lam >= 0, ">= 0")

    def landed(self, trained: Tree, start: Tree) -> Tree:
        by = self.lr * self.lam / (1 - self.momentum)
        return {
            name: x if is_statistic(name) else start[name] + soft_threshold(x - start[name], by)
            for name, x in trained.items()
        }
