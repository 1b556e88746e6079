"""CRFL's certificate: votes of noised copies of a model, and the radius that they certify."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import Network


@dataclass(frozen=True, kw_only=True)
class Poisoning:
    """One round in which ``attackers`` train on a backdoor, and all rounds after it are clean.

    Args:
        attackers: The paper's R.
        share: Weight of each in the mean, 1 / N where all clients count the same.
        scale: Factor of what each of them sends, the paper's gamma.
        steps: Local steps of each, the paper's tau.
        lr: Learning rate of a local step, the paper's eta.
        poisoned: Share of a batch that carries the trigger.
    """

    attackers: int = 1
    share: float
    scale: float = 1.0
    steps: int = 1
    lr: float
    poisoned: float

    def __post_init__(self) -> None:
        require("Poisoning.attackers", self.attackers, self.attackers >= 1, ">= 1")
        require("Poisoning.share", self.share, 0 < self.share <= 1, "in (0, 1]")
        require("Poisoning.scale", self.scale, 0 < self.scale < math.inf, "> 0 and finite")
        require("Poisoning.steps", self.steps, self.steps >= 1, ">= 1")
        require("Poisoning.lr", self.lr, 0 < self.lr < math.inf, "> 0 and finite")
        require("Poisoning.poisoned", self.poisoned, 0 <= self.poisoned <= 1, "in [0, 1]")


def votes(network: Network, tree: Tree, x: Tensor, noise: float, draws: int, key: Key) -> Tensor:
    """Return how many of ``draws`` noised copies take each image for each class, ``(B, classes)``.

    To every parameter goes Gaussian noise of standard deviation ``noise``.
    """
    require("noise", noise, noise >= 0, ">= 0")
    require("draws", draws, draws >= 1, ">= 1")
    counts = torch.zeros(len(x), network.classes, dtype=torch.int64, device=x.device)
    for draw in range(draws):
        copy = {}
        for name, leaf in tree.items():
            drawn = key.fold(name, draw).gaussian(leaf.numel(), device=leaf.device)
            copy[name] = leaf + noise * drawn.reshape(leaf.shape).to(leaf)
        taken = network.logits(copy, x).argmax(dim=1)
        counts[torch.arange(len(x), device=x.device), taken] += 1
    return counts


def bounded_shares(counts: Sequence[int], alpha: float) -> tuple[float, float]:
    """Return a lower bound of the first class's share of all copies, an upper of the second's.

    By Hoeffding's inequality, each with probability ``1 - alpha``.

    >>> [round(share, 4) for share in bounded_shares([10, 90, 0], alpha=0.01)]
    [0.7483, 0.2517]
    """
    require("alpha", alpha, 0 < alpha <= 1, "in (0, 1]")
    most = sorted(counts, reverse=True)
    draws = sum(most)
    require("counts", counts, len(most) >= 2 and draws >= 1, "of two classes or more, some not 0")
    slack = math.sqrt(math.log(1 / alpha) / (2 * draws))
    return max(most[0] / draws - slack, 0.0), min(most[1] / draws + slack, 1.0)


def certified_radius(
    p_a: float, p_b: float, poisoning: Poisoning, rho: Sequence[float], noise: Sequence[float]
) -> float:
    """Return the length of a trigger up to which the vote of the copies stays as it is.

    ``sqrt(-ln(1 - (sqrt(p_a) - sqrt(p_b))^2) s^2 / (2 R L^2 sum_i c_i^2 prod_t (2 Phi(rho_t / s_t)
    - 1)))`` with ``s`` the noise of the poisoned round, ``c_i`` the product of an attacker's share,
    scale, steps, lr and poisoned share, the sum over the R attackers and the product over the
    rounds after the poisoned one. It is 0 unless ``p_a > p_b``: nothing is certified. It is
    infinite if ``p_a`` is 1 and ``p_b`` 0, or if the divisor is 0.

    It holds for multi-class logistic regression, whose loss is convex, with samples of at most
    length 1 and a learning rate of at most 1 over the smoothness: there the gradient is Lipschitz
    in the sample with ``L^2 = 2 + 2 rho + rho^2``. The model ``logistic`` has that loss, but
    normalised images are longer, and no run deploys a vote: none reports a radius. The authors'
    code squares a negative difference away, and so certifies what is not (A11).

    Args:
        p_a: Lower bound of the share of the class with the most votes.
        p_b: Upper bound of the share of the next one.
        poisoning: What the attackers do in their round.
        rho: Largest norm of the model, in the poisoned round and each later one.
        noise: Standard deviation of a parameter's noise in these rounds.

    References:
        Xie, Chen, Chen and Li, "CRFL: Certifiably Robust Federated Learning against Backdoor
        Attacks", ICML 2021, https://arxiv.org/abs/2106.08283. The paper's text was not at hand:
        the radius is that of ``cal_prob_bound`` in certify_mnist.py of the authors' code,
        https://github.com/AI-secure/CRFL.
    """
    require("p_a", p_a, 0 <= p_a <= 1, "in [0, 1]")
    require("p_b", p_b, 0 <= p_b <= 1, "in [0, 1]")
    require("noise", noise, len(rho) == len(noise) >= 1, f"of as many rounds as rho, {len(rho)}")
    require("noise", noise, min(noise) > 0, "> 0 in every round")
    require("rho", rho, min(rho) > 0, "> 0 in every round")
    if p_a <= p_b:
        return 0.0
    apart = (math.sqrt(p_a) - math.sqrt(p_b)) ** 2
    each = poisoning.share * poisoning.scale * poisoning.steps * poisoning.lr * poisoning.poisoned
    lipschitz = 2 + 2 * rho[0] + rho[0] ** 2
    left = math.prod(
        math.erf(bound / spread / math.sqrt(2))  # 2 Phi(z) - 1
        for bound, spread in zip(rho[1:], noise[1:], strict=True)
    )
    pushes = 2 * poisoning.attackers**2 * lipschitz * each**2 * left
    if apart >= 1 or pushes == 0:
        return math.inf
    return math.sqrt(-math.log(1 - apart) * noise[0] ** 2 / pushes)
