"""CRFL's training: a global model of bounded norm, with noise."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import require
from fedbench.payload import FoldedMessages, Payload, SignBits

from .distances import real_dtype
from .fldetector import NO_UPDATES, sent_model
from .mean import Mean

_WHY = "clips the broadcast weights plus the mean, which is no update of them"


@dataclass(frozen=True, kw_only=True)
class CRFL(Defense[None]):
    """Answer what makes the model ``w / max(1, |w| / rho_t) + N(0, noise^2 I)``.

    ``w`` is the broadcast model plus the mean of the rows, weighted by the clients' sizes, and
    ``rho_t = c + growth t`` from ``t = 1``. A mean that is not finite moves nothing. For protocols
    whose server adds the answer to the weights that it sent.

    This is the training alone. The paper deploys a vote of many noised copies of the last, clipped
    model, and certifies a radius from their votes, for a convex loss and samples of at most length
    1: ``crfl_certificate.py`` has both, but no run reports a radius, since none deploys a vote and
    normalised images are longer. What is deployed is one noised copy: a rule does not know which
    round is the last, after which the paper adds no noise to the model itself. The paper's text was
    not at hand, but the authors' code was.

    Args:
        c: Norm of the model that is admitted from the start. The default is the largest one of the
            authors' code for MNIST, whose schedule is ``c=2,growth=0.1`` up to that.
        growth: What is added to it in each round.
        noise: Standard deviation of a parameter's noise.

    References:
        Xie, Chen, Chen and Li, "CRFL: Certifiably Robust Federated Learning against Backdoor
        Attacks", ICML 2021, https://arxiv.org/abs/2106.08283; code:
        https://github.com/AI-secure/CRFL.
    """

    without: ClassVar[dict[type[Payload], str]] = dict.fromkeys((*NO_UPDATES, SignBits), _WHY)
    c: float = 15.0
    growth: float = 0.0
    noise: float = 0.01

    def __post_init__(self) -> None:
        require("CRFL.c", self.c, self.c > 0, "> 0")
        require("CRFL.growth", self.growth, self.growth >= 0, ">= 0")
        require("CRFL.noise", self.noise, self.noise > 0, "> 0")

    def traits(self) -> Traits:
        symmetries = {"shift": False, "scale": False, "sharp": False}
        return Traits(reads_sum=True, model=True, randomized=True, **symmetries)

    def tolerates(self, n: int) -> int:
        return n - 1  # whatever the mean is, the model's norm is bounded

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        mean = Mean().aggregate(received, None, view)[0]
        return self._noised(mean, view).to(real_dtype(received.values())), None

    def aggregate_sums(
        self, received: FoldedMessages, state: None, view: ServerView
    ) -> tuple[Tensor, None]:
        mean = Mean().aggregate_sums(received, None, view)[0]
        return self._noised(mean, view).to(real_dtype(received.form.values())), None

    def _noised(self, mean: Tensor, view: ServerView) -> Tensor:
        """Return ``(k,)`` float64: from the broadcast model to the clipped one with noise."""
        mean = mean.to(torch.float64)
        sent = sent_model("crfl", view, len(mean)).to(torch.float64)
        model = sent + mean if bool(torch.isfinite(mean).all()) else sent
        norm = float(torch.linalg.vector_norm(model))
        rho = self.c + self.growth * (view.step + 1)
        drawn = view.key.fold("crfl").gaussian(len(model), device=model.device)
        noised = model / max(1.0, norm / rho) + self.noise * drawn.to(model)
        view.findings.notes |= {"norm": norm, "clipped": norm > rho}
        return noised - sent
