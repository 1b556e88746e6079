"""FedPM: probabilities of masks over a random network."""

import dataclasses
import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Shared
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.network import is_weight
from fedbench.protocols.score_training import Belief, ScoreTraining, straight_through


@dataclass(frozen=True, kw_only=True)
class FedPM(ScoreTraining):
    """Clients train the probability that a random weight is kept, and send one sampled mask.

    ``theta = sigmoid(s)``, ``m ~ Bern(theta)``, ``w = m * w_init`` in every step; the server keeps
    a Beta posterior of every bit and sends its mode, with ``prior=1,resets=every:1`` the mean of
    the masks.

    ``reg=lambda`` is the regularised form: clients minimise the loss plus ``lambda / d`` times the
    sum of ``theta``, are weighted by size, and the first ``theta`` is uniform. Under SGD that
    penalty moves a score by at most ``lr lambda / 4 d`` a step, which is nothing (R1); under Adam
    it shrinks the masks (docs/results.md).

    Where papers and code disagree or are silent, see docs/errata.md: E1 gradient of the sample, E5
    clipping, E6 first prior, E7 and A1 biases without masks. The papers' SGD needs far larger
    rates.

    Args:
        ste: Gradient of the Bernoulli sample by ``theta``: ``identity``, exact in expectation for a
            linear loss, or ``theta``, as the paper and its code have it (E1).
        prior: ``lambda_0``, both parameters of the Beta prior.
        resets: ``every:k``: the prior is forgotten before server steps 1, k + 1, 2 k + 1, ...
        final: The deployed mask: a ``sample`` of ``theta``, or ``theta`` above the ``threshold``.
        threshold: Threshold of the final mask; strictly above it is 1.
        reg: ``lambda`` of the regularised form; 0 is FedPM.
        penalty: ``mean``: equation 12, ``lambda / d`` for every weight; ``sum``: ``lambda``.

    References:
        Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning", ICLR
        2023, https://arxiv.org/abs/2209.15328, Algorithms 1 and 2, equations 3 and 4; Mestoukirdi
        et al., "Communication-Efficient Federated Learning via Regularized Sparse Random Networks",
        https://arxiv.org/abs/2309.10834, equations 3 to 8 and 12.
    """

    message_is = "sample"

    ste: Literal["identity", "theta"] = "identity"
    prior: float = 1.0
    resets: str = "every:1"
    final: Literal["sample", "threshold"] = "sample"
    threshold: float = 0.5
    reg: float = 0.0
    penalty: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 1 <= self.prior <= 1e6
        require("FedPM.prior", self.prior, fits, "in [1, 1e6]: below 1 the mode leaves [0, 1]")
        written = re.fullmatch(r"every:[1-9][0-9]*", self.resets) is not None
        require("FedPM.resets", self.resets, written, "every:k with k >= 1")
        require("FedPM.threshold", self.threshold, 0 < self.threshold < 1, "in (0, 1)")
        require("FedPM.reg", self.reg, self.reg >= 0, ">= 0")

    @property
    def weighted(self) -> bool:
        """True in the regularised form (its equation 8), False in FedPM (R5)."""
        return self.reg > 0

    def mask(self, score: Tensor, key: Key) -> Tensor:
        """Draw ``m ~ Bern(sigmoid(s))`` anew in every step."""
        theta = score.detach().sigmoid()
        m = key.coins(theta)
        slope = theta * (1 - theta)
        return straight_through(score, m, slope * theta if self.ste == "theta" else slope)

    def penalised(self, gradient: Tree, scores: Tree) -> Tree:
        """Add ``lambda / d * theta (1 - theta)``, the gradient of ``lambda / d sum theta``."""
        if not self.reg:
            return gradient
        weights = {name: s.sigmoid() for name, s in scores.items() if is_weight(name)}
        d = sum(theta.numel() for theta in weights.values())
        rate = self.reg / d if self.penalty == "mean" else self.reg
        return gradient | {
            name: gradient[name] + rate * theta * (1 - theta) for name, theta in weights.items()
        }

    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        return key.bernoulli(theta)

    def deployed(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        return theta > self.threshold if self.final == "threshold" else key.bernoulli(theta)

    def init(self, shared: Shared) -> Belief:
        """Draw the first ``theta``, which does not follow from the prior (E6)."""
        start = super().init(shared)
        prior = torch.full_like(start.theta, self.prior)
        return dataclasses.replace(start, alpha=prior, beta=prior)

    def server_step(self, shared: Shared, state: Belief, mean: Tensor, n: int, key: Key) -> Belief:
        """BayesAgg: equations 3 and 4, with ``K * mean`` ones of ``K`` clients."""
        if n == 0:  # the mode of a uniform prior does not exist
            return state
        step = super().server_step(shared, state, mean, n, key)
        alpha, beta = state.alpha, state.beta
        assert alpha is not None
        assert beta is not None
        if state.steps % int(self.resets.removeprefix("every:")) == 0:
            alpha = beta = torch.full_like(alpha, self.prior)
        ones = n * step.theta
        alpha = alpha + ones
        beta = beta + (n - ones)
        mode = (alpha - 1) / (alpha + beta - 2)
        return dataclasses.replace(step, theta=mode, alpha=alpha, beta=beta)
