"""Signs of updates: decided by majority, averaged, or scaled with error feedback."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedbench.api import Keys, Memories, Memory, Messages, Shared
from fedbench.core.blocks import block_sums, spread
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import Payload, ScaledSigns, SignBits
from fedbench.protocols.compressed import CompressedUpdates, compressed_layers
from fedbench.protocols.fedavg import DenseWeights

Zero = Literal["plus", "random"]


def is_positive(x: Tensor, zero: Zero, keys: Keys) -> Tensor:
    """Return ``(n, d)`` bool signs of ``x (n, d)``; a 0 is plus, or a coin of the row's key."""
    positive = x >= 0
    if zero == "random":
        coins = torch.stack([k.fold("zero").flips(x.shape[1], device=x.device) for k in keys]) > 0
        positive = torch.where(x == 0, coins, positive)
    return positive


@dataclass(frozen=True, kw_only=True)
class SignVotes(DenseWeights):
    """Clients send a sign for each coordinate, the server moves by the majority or the mean.

    Args:
        server_lr: How far the server moves a coordinate, at most.
        vote: ``majority``: by the sign of the sum of signs; ``mean``: by their mean.
        tie: A coordinate with as many +1 as -1 stays (``zero``), moves up (``plus``, as in public
            code) or by a coin (``random``); for the majority alone.
    """

    sends = SignBits
    adds = False  # the server adds a multiple of the answer, or of its sign
    weighted = False
    statistics = False

    server_lr: float = 0.001
    vote: Literal["majority", "mean"] = "majority"
    tie: Literal["zero", "plus", "random"] = "zero"

    def __post_init__(self) -> None:
        super().__post_init__()
        name = f"{type(self).__name__}.server_lr"
        require(name, self.server_lr, self.server_lr > 0, "> 0")

    @property
    def votes(self) -> bool:
        return self.vote == "majority"

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        """Return the model that the server would deploy if this client were the only one."""
        return shared.layout.unflatten((broadcast.values() + self.server_lr * sent.values())[0])

    def move(self, shared: Shared, w: Tensor, aggregate: Tensor, n: int, key: Key) -> Tensor:
        """Return the mean or majority of the signs, which the server's learning rate multiplies."""
        if self.vote == "mean":
            return aggregate.to(w)
        sign = torch.sign(aggregate).to(w)
        if self.tie == "plus":
            sign = torch.where(sign == 0, 1.0, sign)
        elif self.tie == "random":
            sign = torch.where(sign == 0, key.flips(len(sign), device=sign.device), sign)
        return sign


@dataclass(frozen=True, kw_only=True)
class SignSGD(SignVotes):
    """Clients send the sign of their update, the server moves by the sign of the sum of signs.

    ``w <- w + server_lr * sign(sum_i sign(w_i - w))``. As in section 6 of the FSL paper the sign is
    taken of the update after local epochs, not of one gradient. NaN is sent as -1.

    Args:
        server_lr: How far the server moves each coordinate. The FSL paper does not give its value;
            the default had the best clean accuracy of a grid on ``digits`` (docs/results.md).
        zero: A zero is sent as +1 (``plus``, as in public code), which moves weights without a
            gradient up in every round, or by a coin (``random``).

    References:
        Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault
        Tolerant", ICLR 2019, https://arxiv.org/abs/1810.05291, Algorithm 1.
    """

    message_is = "sign"

    zero: Zero = "plus"

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        return SignBits(is_positive(updates, self.zero, keys)), memory


@dataclass(frozen=True, kw_only=True)
class StochasticSign(SignVotes):
    """Signs that are right on average: ``+1`` with probability ``1/2 + x_i / (2 ||x||)``.

    So ``E[sign] = x / ||x||``: with the mean of the signs the server takes an unbiased step along
    the clients' directions. With ``beta`` clients send the sign of an average over their rounds,
    ``m <- beta m + (1 - beta) x``. A vector that is zero, or not finite, is sent as coins.

    The paper's norm is ``l2`` of the whole vector: nearly a coin for every sign of a network. With
    ``max``, ours, the largest coordinate has a sure sign. The paper takes signs of gradients, here
    they are of updates after local epochs.

    Args:
        server_lr: How far the server moves where all signs agree.
        vote: ``mean``, as in the paper, whose server adds up the signs, or ``majority``.
        norm: Norm of the update, ``l2`` or ``max``.
        beta: Weight of the past in a client's average over rounds.

    References:
        Safaryan and Richtarik, "Stochastic Sign Descent Methods: New Algorithms and Better Theory",
        ICML 2021, https://arxiv.org/abs/1905.12938: its stochastic sign operator, and SSDM.
    """

    vote: Literal["majority", "mean"] = "mean"
    server_lr: float = 0.01
    norm: Literal["l2", "max"] = "max"
    beta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require("StochasticSign.beta", self.beta, 0 <= self.beta < 1, "in [0, 1)")

    def memory(self, shared: Shared) -> Memory:
        blank = torch.zeros(shared.layout.d, device=shared.device)
        return {"average": blank} if self.beta else {}

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Send ``sign(x + ||x|| u)`` with ``u`` uniform in [-1, 1)."""
        x = updates
        if self.beta:
            before = torch.stack([client["average"] for client in memory])
            x = before.to(x).lerp(x, 1 - self.beta)
            usable = torch.isfinite(x).all(dim=1, keepdim=True)
            memory = [{"average": row} for row in torch.where(usable, x, 0.0).to(torch.float32)]
        order = 2 if self.norm == "l2" else torch.inf
        norms = torch.linalg.vector_norm(x, ord=order, dim=1, keepdim=True)
        draws = [key.fold("sign").uniform(x.shape[1], device=x.device) for key in keys]
        u = torch.stack(draws) * 2 - 1
        usable = (norms > 0) & torch.isfinite(norms)
        positive = torch.where(usable, x / norms, torch.zeros_like(x)) + u >= 0
        return SignBits(positive), memory


@dataclass(frozen=True, kw_only=True)
class EFSignSGD(CompressedUpdates):
    """Clients send ``(|x|_1 / d) sign(x)`` of ``x = u + e``, their update plus the residual.

    The paper has one worker, whose vector is the gradient times the rate; here it is the update
    after local epochs, and the server adds the mean of the messages.

    Args:
        error_feedback: On by default; without it this is scaled SignSGD.
        zero: The sign of 0: +1 (``plus``) or a coin (``random``).
        per: One scale for each ``layer``, as in the paper's experiments, or for the ``vector``.

    References:
        Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes",
        ICML 2019, https://arxiv.org/abs/1901.09847, Algorithm 1.
    """

    sends = ScaledSigns

    error_feedback: bool = True
    zero: Zero = "plus"
    per: Literal["layer", "vector"] = "layer"

    def compress(self, shared: Shared, x: Tensor, rest: Tensor, keys: Keys) -> Payload:
        """Encode signs and the mean magnitude of each part, NaN for a part with a NaN."""
        d = x.shape[1]
        sizes = compressed_layers(shared) if self.per == "layer" else (d,)
        counts = copied_to(torch.tensor(sizes), x.device)
        scales = (block_sums(x.abs(), sizes) / counts).to(torch.float32)
        positive = is_positive(x, self.zero, keys) | (spread(scales, sizes) == 0)
        return ScaledSigns(positive, scales, rest, sizes)
