"""HideNSeek: signs over a random network that the server has pruned."""

import math
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from fedbench.api import Keys, Memories, Messages, Shared
from fedbench.core.errors import ConfigError, require
from fedbench.core.registry import UNWRITTEN
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.payload import BinaryMasks, Payload
from fedbench.payload.bits import numbers_of
from fedbench.payload.packets import code_bits
from fedbench.protocols.fedpm import Belief, ScoreTraining, straight_through
from fedbench.protocols.fsl import (
    WeightInit,
    kept_edges,
    mask_rows,
    masked_network,
    random_network,
)


@lru_cache(maxsize=2)
def kept_weights(shared: Shared, keep: float, weight_init: WeightInit = "kaiming-normal") -> Tensor:
    """Return ``(d,)`` bool: the ``keep`` share of each layer with the largest synaptic saliency.

    ``|w * dR/dw|`` with ``R`` the sum of the logits of an image of ones through ``|w|``, in float64
    because it grows with depth: both ends compute it from the seed, without data. `ConfigError` for
    samples that are token ids, through which nothing flows, and for a network that divides by the
    size of its activations, so that no flow is conserved.

    References:
        Tanaka et al., "Pruning neural networks without any data by iteratively conserving synaptic
        flow", NeurIPS 2020, https://arxiv.org/abs/2006.05467, equation 2, here in one shot.
    """
    if not shared.network.examples(1, Key(0)).is_floating_point():
        raise ConfigError(
            "--protocol hidenseek must have samples of numbers, through which synaptic flow goes, "
            "got token ids; use fedpm"
        )
    if shared.network.rescales:
        raise ConfigError(
            "--protocol hidenseek must have a model without group norm, through which synaptic "
            "flow says nothing, got one with it; use conv4 or cnn4"
        )
    network = random_network(shared, weight_init)
    params = {name: x.double() for name, x in network.items()}
    weights = {name: params[name].abs().requires_grad_() for name in shared.network.weights}
    ones = torch.ones(1, *shared.network.image, dtype=torch.float64, device=shared.device)
    flow = shared.network.logits(params | weights, ones).sum()
    gradient = torch.autograd.grad(flow, list(weights.values()))
    masks = []
    for w, g in zip(weights.values(), gradient, strict=True):
        saliency = (w * g).detach().abs().reshape(1, -1)
        masks.append(mask_rows(saliency, kept_edges(w.numel(), keep))[0])
    return torch.cat(masks)


@dataclass(frozen=True, kw_only=True)
class HideNSeek(ScoreTraining):
    """The server prunes a random network once, clients train and send the signs of what is left.

    ``w = w_init * kept * m`` with ``m = 2 * 1[s > 0] - 1``. What is kept follows from the seed, so
    only the signs of kept weights travel. No official code exists (A8); where the paper is silent:
    weights are Kaiming normal, the rest stays as built; scores train by Adam; the saliency is taken
    in one shot, layer by layer; the server averages the signs, and the next round starts from the
    logit of ``(1 + mean) / 2``. ``theta`` is the probability of +1. For ``clip`` see `FedMask`.

    Args:
        keep: Share of each layer's weights that survives the pruning.
        weight_init: Distribution of the frozen weights, see `fsl.random_network`.

    References:
        Vallapuram et al., "HideNseek: Federated Lottery Ticket via Server-side Pruning and Sign
        Supermask", 2022, https://arxiv.org/abs/2206.04385.
    """

    adapters = False

    clip: float = 0.3
    weight_init: WeightInit = field(default="kaiming-normal", metadata=UNWRITTEN)
    keep: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("HideNSeek.keep", self.keep, 0 < self.keep <= 1, "in (0, 1]")

    def init(self, shared: Shared) -> Belief:
        """Draw the first ``theta``; `ConfigError` as in `kept_weights`."""
        self._kept(shared)
        return super().init(shared)

    def frozen(self, shared: Shared) -> Tree:
        return masked_network(shared, super().frozen(shared), self._kept(shared).float())

    def symbols_sent(self, shared: Shared) -> int:
        """Return the number of kept weights and of running statistics."""
        sizes = (math.prod(shared.network.shapes[name]) for name in shared.network.weights)
        return sum(kept_edges(size, self.keep) for size in sizes) + shared.statistics.d

    def _kept(self, shared: Shared) -> Tensor:
        return kept_weights(shared, self.keep, self.weight_init)

    def masked(self, weights: Tree, scores: Tree, key: Key) -> Tree:
        masked = {}
        for name, score in scores.items():
            m = self.symbols(score.detach() > 0).to(score.dtype)
            masked[name] = straight_through(weights[name], score, m, torch.ones_like(m))
        return masked

    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        return theta > 0.5

    def expected(self, score: Tensor) -> Tensor:
        """Return the expected sign of a score, in [-1, 1]."""
        return 2 * score.sigmoid() - 1

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Send the signs of the kept weights; 0 becomes -1."""
        d = shared.weights.d
        signs = updates[:, :d][:, self._kept(shared)] > 0
        return BinaryMasks(signs, updates[:, d:].float(), signed=True), memory

    def server_step(
        self, shared: Shared, state: Belief, aggregate: Tensor, n: int, key: Key
    ) -> Belief:
        """Set ``theta`` to ``(1 + mean sign) / 2`` where a weight has a sign."""
        alive = self._kept(shared)
        signs = aggregate[: int(alive.sum())].to(state.theta)
        theta = state.theta.masked_scatter(alive, (1 + signs) / 2)
        rest = aggregate[len(signs) :].to(theta)
        return super().server_step(shared, state, torch.cat([theta, rest]), n, key)

    def model_bits(self, shared: Shared, state: Belief) -> int:
        signs = (state.theta > 0.5)[self._kept(shared)]
        return 32 + code_bits(signs.cpu().numpy())[1] + 32 * len(state.statistics)

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        assert isinstance(sent, BinaryMasks)
        alive = self._kept(shared)
        bits = torch.zeros_like(alive).masked_scatter(alive, sent.mask[0])
        moved = broadcast.values()[0, shared.weights.d :] + sent.rest[0]
        return self._network(shared, bits, moved)

    def symbols(self, bits: Tensor) -> Tensor:
        """Map bits to the signs -1 and +1."""
        return numbers_of(bits, signed=True)
