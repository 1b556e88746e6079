"""FedProx: Gaussian priors pull clients to the server's weights."""

from dataclasses import dataclass

from torch import Tensor

from fedbench.api import Batches, Grad
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import is_statistic
from fedbench.protocols.fedavg import FedAvg


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg whose clients minimise ``loss + lam / 2 ||w_s - w||^2``.

    With ``lam = 0`` it is FedAvg, bit by bit. Running statistics are not pulled. The loss is the
    mean cross-entropy, so ``lam`` is mu of Li et al.

    Args:
        lam: Precision ``lambda`` of the prior.

    References:
        Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020,
        https://arxiv.org/abs/1812.06127, equation 2; Louizos et al. (see `FedSparse`),
        https://arxiv.org/abs/2111.10192, section 2.1, equation 3 with a non-trivial ``lambda``.
    """

    lam: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        require("FedProx.lam", self.lam, self.lam >= 0, ">= 0")

    def train(self, tree: Tree, batches: Batches, grad: Grad, key: Key) -> Tree:

        def pulled(trained: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            return {
                name: g if is_statistic(name) else g.add(trained[name] - tree[name], alpha=self.lam)
                for name, g in grad(trained, x, y, key).items()
            }

        return super().train(tree, batches, pulled, key)
