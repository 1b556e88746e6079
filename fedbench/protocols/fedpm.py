"""Masks over a random network: FedPM, its regularised form, and masks by a threshold."""

import dataclasses
import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import (
    Batches,
    Grad,
    Keys,
    LocalStep,
    Memories,
    Memory,
    Messages,
    Protocol,
    Shared,
)
from fedbench.api.protocol import Accuracy, Variants
from fedbench.core import registry
from fedbench.core.errors import require
from fedbench.core.rng import Key, coins
from fedbench.core.trees import Layout, Tree
from fedbench.payload import BinaryMasks, FewValues, FloatVectors, Payload
from fedbench.payload.bits import numbers_of
from fedbench.payload.packets import code_bits
from fedbench.protocols.fsl import (
    WeightInit,
    kept_edges,
    masked_network,
    random_network,
    top_masked,
)
from fedbench.protocols.optimizers import SGD, Adam, Optimizer

SMALLEST = 1e-6  # clip that float32 still tells from 0 and 1
SCANNED = (0.5, 0.45, 0.55, 0.4, 0.6)  # thresholds of a scan; the first of equals is taken


class _StraightThrough(torch.autograd.Function):
    """Returns weights times a mask; the mask's gradient, which is 0, is replaced by a slope."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, score: Tensor, mask: Tensor, slope: Tensor) -> Tensor:
        return weight * mask

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[3])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[None, Tensor, None, None]:
        weight, slope = ctx.saved_tensors
        return None, grads[0] * weight * slope, None, None


def straight_through(weight: Tensor, score: Tensor, mask: Tensor, slope: Tensor) -> Tensor:
    """Return ``weight * mask``, as if the mask's derivative by ``score`` were ``slope``.

    All four have one shape. The mask holds floats or bools; the weight is never trained.

    References:
        Bengio, Leonard and Courville, "Estimating or Propagating Gradients Through Stochastic
        Neurons for Conditional Computation", 2013, https://arxiv.org/abs/1308.3432, section 4.
    """
    masked: Tensor = _StraightThrough.apply(weight, score, mask, slope)  # type: ignore[no-untyped-call]
    return masked


@dataclass(frozen=True, eq=False)
class Belief:
    """State of the server: its belief about every weight's bit."""

    theta: Tensor  # ``(d,)`` probability of a 1 (of a sign mask: of +1)
    statistics: Tensor  # running statistics, the only other parameters that change
    alpha: Tensor | None = None  # Beta prior of 1, where the protocol has one
    beta: Tensor | None = None  # Beta prior of 0
    steps: int = 0  # server steps so far
    threshold: float | None = None  # of the deployed mask, where it was chosen on validation data


@dataclass(frozen=True, kw_only=True)
class ScoreTraining(Protocol[Belief]):
    """Clients train a score per weight of a `random_network` and send one bit for each.

    The server sends ``theta``, a client starts from ``logit(clip(theta))``.

    Args:
        lr: Learning rate of a local step on the scores.
        optimizer: ``sgd``, as the papers write, or ``adam``, as public code runs.
        keep_moments: Whether Adam's moments live in the client from round to round, as in public
            code; else they start afresh.
        clip: Scores start from ``theta`` clipped to ``[clip, 1 - clip]``: a weight whose score is
            far out would never come back.
        start: Distribution of the first ``theta``: ``normal`` is ``sigmoid(N(0, 1))``, as in
            FedPM's code; ``uniform`` is ``U[0, 1]``; ``paper`` is ``uniform`` in regularised FedPM,
            ``normal`` elsewhere (R4).
        down: Form in which the server sends ``theta``, exact in both: 32-bit ``floats``, or the
            different ``values`` and which of them each weight has. The mean of the bits of K
            clients has K + 1; where values are many, as in the first round, these are floats, too.
        weight_init: Distribution of the frozen weights, see `random_network`: ``signed-constant``
            as in the text of FedPM, ``signed-e`` as in its code.
    """

    sends = BinaryMasks
    space = "probabilities"

    lr: float = 0.1
    optimizer: Literal["sgd", "adam"] = "adam"
    keep_moments: bool = False
    clip: float = 0.01
    start: Literal["paper", "normal", "uniform"] = "paper"
    down: Literal["floats", "values"] = field(default="floats", metadata=registry.UNWRITTEN)
    weight_init: WeightInit = field(default="signed-constant", metadata=registry.UNWRITTEN)

    def __post_init__(self) -> None:
        name = type(self).__name__
        require(f"{name}.lr", self.lr, self.lr > 0, "> 0")
        require(f"{name}.clip", self.clip, SMALLEST <= self.clip < 0.5, "in [1e-6, 0.5)")

    @abstractmethod
    def masked(self, weights: Tree, scores: Tree, key: Key) -> Tree:
        """Return weights times masks for one step, differentiable in ``scores`` straight through.

        The result has the names of the scores; a layer draws from its own key, ``fold(name)``.
        """

    @abstractmethod
    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        """Return ``(d,)`` bool that a client sends for its probabilities ``theta (d,)``."""

    def deployed(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        """Return ``(d,)`` bool of the final mask."""
        return self.bits(shared, theta, key)

    @property
    def weighted(self) -> bool:
        """False: all clients count the same, but in regularised FedPM."""
        return False

    def trained(self, shared: Shared) -> Layout:
        weights, statistics = shared.weights, shared.statistics
        return Layout(weights.names + statistics.names, weights.shapes + statistics.shapes)

    def frozen(self, shared: Shared) -> Tree:
        network = random_network(shared, self.weight_init)
        still = shared.network.statistics  # they are trained, with the scores
        return {name: x for name, x in network.items() if name not in still}

    def memory(self, shared: Shared) -> Memory:
        if self.optimizer == "sgd" or not self.keep_moments:
            return {}
        layout = self.trained(shared)
        blank = layout.unflatten(torch.zeros(layout.d, device=shared.device))
        return self._optimizer(shared.network.statistics).init(blank)

    def init(self, shared: Shared) -> Belief:
        key = shared.key.fold("theta")
        network = random_network(shared, self.weight_init)
        d = shared.weights.d
        if self.start == "uniform" or (self.start == "paper" and self.weighted):
            theta = key.uniform(d, device=shared.device)
        else:
            theta = key.normal(d, device=shared.device).sigmoid()
        return Belief(theta, shared.statistics.flatten(network).to(shared.device))

    def broadcast(self, shared: Shared, state: Belief, clients: Sequence[int], key: Key) -> Payload:
        sent = torch.cat([state.theta, state.statistics])[None]
        return FewValues(sent, len(state.theta)) if self.down == "values" else FloatVectors(sent)

    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        """Return ``s = logit(theta)``, with ``theta`` clipped away from 0 and 1."""
        tree = self.trained(shared).unflatten(broadcast.values()[0])
        still = shared.network.statistics
        return {
            name: x if name in still else x.clamp(self.clip, 1 - self.clip).logit()
            for name, x in tree.items()
        }

    def idle(self, shared: Shared, broadcast: Payload) -> Tensor:
        layout = self.trained(shared)
        trees = [self.receive(shared, broadcast.take([row])) for row in range(len(broadcast))]
        still = shared.network.statistics
        return torch.stack([layout.flatten(self._update(tree, tree, still)) for tree in trees])

    def weights(self, trained: Tree, frozen: Tree, key: Key) -> Tree:
        scores = {name: x for name, x in trained.items() if name in frozen}
        return frozen | trained | self.masked(frozen, scores, key)

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train the scores; return their expected bits, and how far the statistics moved."""
        still = batches.statistics
        optimizer = self._optimizer(still)

        def step(carried: tuple[Tree, Tree], now: LocalStep) -> tuple[Tree, Tree]:
            trained, moments = carried
            gradient = self.penalised(grad(trained, now.x, now.y, now.key), trained, still)
            return optimizer.step(trained, gradient, moments)

        trained, moments = batches.scan(step, (tree, memory or optimizer.init(tree)), key)
        remembered = optimizer.usable(moments, tree) if memory else memory
        return self._update(trained, tree, still), remembered

    def _update(self, trained: Tree, start: Tree, statistics: Sequence[str]) -> Tree:
        return {
            name: x - start[name] if name in statistics else self.expected(x)
            for name, x in trained.items()
        }

    def expected(self, score: Tensor) -> Tensor:
        """Return the expected bit of a score: a row of ``updates``, in the space of `values`."""
        return score.sigmoid()

    def penalised(self, gradient: Tree, scores: Tree, statistics: Sequence[str] = ()) -> Tree:
        """Return the gradient of the local objective, if that is more than the loss."""
        return gradient

    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        d = shared.weights.d
        rows = zip(updates[:, :d], keys, strict=True)
        bits = torch.stack([self.bits(shared, theta, key.fold("mask")) for theta, key in rows])
        return BinaryMasks(bits, updates[:, d:].float()), memory

    def server_step(
        self, shared: Shared, state: Belief, aggregate: Tensor, n: int, key: Key
    ) -> Belief:
        """Make ``theta`` the mean of the masks."""
        d = shared.weights.d
        theta = aggregate[:d].to(state.theta).clamp(0, 1)
        moved = state.statistics + aggregate[d:].to(state.statistics)
        return Belief(theta, moved, steps=state.steps + 1)

    def model(self, shared: Shared, state: Belief, key: Key) -> Tree:
        return self._network(shared, self._final(shared, state, key), state.statistics)

    def model_bits(self, shared: Shared, state: Belief) -> int:
        bits = self._final(shared, state, Key(0))
        return 32 + code_bits(bits.cpu().numpy())[1] + 32 * len(state.statistics)

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        assert isinstance(sent, BinaryMasks)
        moved = broadcast.values()[0, shared.weights.d :] + sent.rest[0]
        return self._network(shared, sent.mask[0], moved)

    def _final(self, shared: Shared, state: Belief, key: Key) -> Tensor:
        """Return the mask that is deployed after the state's steps, the same for every ``key``."""
        return self.deployed(shared, state.theta, shared.key.fold("final", state.steps))

    def symbols(self, bits: Tensor) -> Tensor:
        """Return ``(d,)`` floats that the bits stand for."""
        return numbers_of(bits, signed=False)

    def _network(self, shared: Shared, bits: Tensor, statistics: Tensor) -> Tree:
        masked = masked_network(shared, self.frozen(shared), self.symbols(bits))
        return masked | shared.statistics.unflatten(statistics)

    def _optimizer(self, statistics: Sequence[str]) -> Optimizer:
        kind = Adam if self.optimizer == "adam" else SGD
        return kind(lr=self.lr, statistics=tuple(statistics))


@dataclass(frozen=True, kw_only=True)
class FedMask(ScoreTraining):
    """Clients keep the weights with ``sigmoid(s) > 1/2``, and send that mask.

    FedMask as FedPM compares itself with it: one global model, everything else as in FedPM with
    plain averaging, without the personal masks and the one-shot pruning of the original. No
    official code says how its masks are aggregated (A8): here they are averaged, and the next round
    starts from the logit of the mean, clipped at 0.3 because a threshold, unlike a sample, never
    tries the other side (E11).

    References:
        Li et al., "FedMask: Joint Computation and Communication-Efficient Personalized Federated
        Learning via Heterogeneous Masking", SenSys 2021, https://doi.org/10.1145/3485730.3485929;
        as in Isik et al., https://arxiv.org/abs/2209.15328, section 3.1.
    """

    clip: float = 0.3

    def masked(self, weights: Tree, scores: Tree, key: Key) -> Tree:
        """Threshold the scores, straight through with the slope of the sigmoid."""
        thetas = {name: score.detach().sigmoid() for name, score in scores.items()}
        return {
            name: straight_through(weights[name], scores[name], theta > 0.5, theta * (1 - theta))
            for name, theta in thetas.items()
        }

    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        return theta > 0.5


@dataclass(frozen=True, kw_only=True)
class TopKMask(ScoreTraining):
    """Clients keep the ``k`` share of each layer with the highest scores, and send that mask.

    The baseline "Top-k" of the regularised FedPM: edge-popup in place of sampling, everything else
    as in FedPM with plain averaging (R4, R5). Among equal scores, also in the final mask, higher
    indices are kept, and k is per layer: the paper says neither. For ``clip`` see `FedMask`.

    Args:
        k: Share of each layer's weights that the subnetwork keeps.

    References:
        Mestoukirdi et al., "Communication-Efficient Federated Learning via Regularized Sparse
        Random Networks", https://arxiv.org/abs/2309.10834, section IV; Ramanujan et al., CVPR 2020,
        https://arxiv.org/abs/1911.13299, equation 4.
    """

    clip: float = 0.3
    k: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require("TopKMask.k", self.k, 0 < self.k <= 1, "in (0, 1]")

    def masked(self, weights: Tree, scores: Tree, key: Key) -> Tree:
        """Take the top masks, straight through with slope 1, without draws."""
        return {name: self._masked(weights[name], score) for name, score in scores.items()}

    def _masked(self, weight: Tensor, score: Tensor) -> Tensor:
        return top_masked(weight, score, kept_edges(math.prod(score.shape), self.k))

    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        """Return the top mask of each layer; scores whose sigmoids round to one number tie."""
        layers = shared.weights.layers(theta)
        return torch.cat([self._masked(torch.ones_like(layer), layer) for layer in layers]) > 0


@dataclass(frozen=True, kw_only=True)
class FedPM(ScoreTraining):
    """Clients train the probability that a random weight is kept, and send one sampled mask.

    ``theta = sigmoid(s)``, ``m ~ Bern(theta)``, ``w = m * w_init`` in every step; the server keeps
    a Beta posterior of every bit and sends its mode, with ``prior=1,resets=every:1`` the mean of
    the masks.

    ``reg=lambda`` is the regularised form: clients minimise the loss plus ``lambda / d`` times the
    sum of ``theta``, are weighted by size, and the first ``theta`` is uniform. Under SGD that
    penalty is nothing (R1); under Adam it shrinks the masks (docs/results.md). Where papers and
    code disagree or are silent, see docs/errata.md: E1 gradient of the sample, E5 clipping, E6
    first prior, A1 biases without masks.

    The paper's text and its released code are two systems, ``as=paper`` and ``as=code``. The
    defaults, ``as=own``, are neither: Adam and its clip as in the code, one final mask as in the
    text, and the gradient that is exact where theirs is not.

    Args:
        ste: Gradient of the Bernoulli sample by ``theta``: ``identity``, exact in expectation for a
            linear loss, or ``theta``, as the paper and its code have it (E1).
        prior: ``lambda_0``, both parameters of the Beta prior.
        resets: ``every:k``: the prior is forgotten before server steps 1, k + 1, 2 k + 1, ...;
            ``paper``: k is 1 if all clients take part in a round, 3 if at least half, else 10.
        ends: How ``theta`` is kept from 0 and 1. ``clip``: clients clip it where it becomes a
            score. ``squeeze``: also, as in public code, a bit counts as ``clip`` or ``1 - clip``.
        final: The deployed mask: a ``sample`` of ``theta``, or ``theta`` above the ``threshold``;
            ``scan`` takes the threshold from 0.4, 0.45, ..., 0.6 with the best accuracy on the
            benign clients' validation data, of equals the nearest to 0.5, then the lower one;
            ``fresh`` is no single mask: every 128 test images get a new sample.
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
    variants: ClassVar[Variants] = {
        "paper": {
            **{"optimizer": "sgd", "lr": 0.1, "ste": "theta", "start": "paper"},
            **{"ends": "clip", "clip": SMALLEST, "prior": 1.0, "resets": "paper"},
            **{"final": "sample", "weight_init": "signed-constant"},
        },
        "code": {
            **{"optimizer": "adam", "lr": 0.1, "keep_moments": True, "ste": "theta"},
            **{"start": "normal", "ends": "squeeze", "clip": 0.01, "prior": 1.0},
            **{"resets": "every:1", "final": "fresh", "weight_init": "signed-e"},
        },
    }

    ste: Literal["identity", "theta"] = "identity"
    prior: float = 1.0
    resets: str = "every:1"
    ends: Literal["clip", "squeeze"] = field(default="clip", metadata=registry.UNWRITTEN)
    final: Literal["sample", "threshold", "scan", "fresh"] = "sample"
    threshold: float = 0.5
    reg: float = 0.0
    penalty: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = 1 <= self.prior <= 1e6
        require("FedPM.prior", self.prior, fits, "in [1, 1e6]: below 1 the mode leaves [0, 1]")
        written = re.fullmatch(r"every:[1-9][0-9]*|paper", self.resets) is not None
        require("FedPM.resets", self.resets, written, "every:k with k >= 1, or paper")
        require("FedPM.threshold", self.threshold, 0 < self.threshold < 1, "in (0, 1)")
        require("FedPM.reg", self.reg, self.reg >= 0, ">= 0")

    @property
    def weighted(self) -> bool:
        """True in the regularised form (its equation 8), False in FedPM (R5)."""
        return self.reg > 0

    @property
    def validates(self) -> bool:
        return self.final == "scan"

    def redraws(self) -> int | None:
        return 128 if self.final == "fresh" else None

    def reset_period(self, shared: Shared) -> int:
        """Return the server steps from one reset of the prior to the next.

        The paper resets every 3 rounds where half of the clients take part, every 10 where a tenth
        does (section 3.2), and has no memory where all do; shares in between are ours.
        """
        if self.resets != "paper":
            return int(self.resets.removeprefix("every:"))
        return 1 if shared.participation >= 1 else 3 if shared.participation >= 0.5 else 10

    def masked(self, weights: Tree, scores: Tree, key: Key) -> Tree:
        """Draw ``m ~ Bern(sigmoid(s))`` anew in every step."""
        thetas = [score.detach().sigmoid() for score in scores.values()]
        drawn = coins(key.branches(list(scores)), thetas)
        masked = {}
        for (name, score), theta, m in zip(scores.items(), thetas, drawn, strict=True):
            slope = theta * (1 - theta)
            slope = slope * theta if self.ste == "theta" else slope
            masked[name] = straight_through(weights[name], score, m, slope)
        return masked

    def penalised(self, gradient: Tree, scores: Tree, statistics: Sequence[str] = ()) -> Tree:
        """Add ``lambda / d * theta (1 - theta)``, the gradient of ``lambda / d sum theta``."""
        if not self.reg:
            return gradient
        weights = {name: s.sigmoid() for name, s in scores.items() if name not in statistics}
        d = sum(theta.numel() for theta in weights.values())
        rate = self.reg / d if self.penalty == "mean" else self.reg
        return gradient | {
            name: gradient[name] + rate * theta * (1 - theta) for name, theta in weights.items()
        }

    def bits(self, shared: Shared, theta: Tensor, key: Key) -> Tensor:
        return key.bernoulli(theta)

    def settle(self, shared: Shared, state: Belief, accuracy: Accuracy) -> Belief:
        """Choose the threshold of the final mask."""
        scanned = [dataclasses.replace(state, threshold=threshold) for threshold in SCANNED]
        return max(scanned, key=lambda tried: accuracy(self.model(shared, tried, Key(0))))

    def model_bits(self, shared: Shared, state: Belief) -> int:
        """Return the bits of the mask; of ``theta`` in floats where masks are drawn anew."""
        if self.final == "fresh":
            return 32 + 32 * (len(state.theta) + len(state.statistics))
        return super().model_bits(shared, state)

    def _final(self, shared: Shared, state: Belief, key: Key) -> Tensor:
        if self.final == "fresh":
            return key.fold("fresh").bernoulli(state.theta)
        if self.final == "sample":
            return super()._final(shared, state, key)
        return state.theta > (self.threshold if state.threshold is None else state.threshold)

    def init(self, shared: Shared) -> Belief:
        """Draw the first ``theta``, which does not follow from the prior (E6)."""
        start = super().init(shared)
        prior = torch.full_like(start.theta, self.prior)
        return dataclasses.replace(start, alpha=prior, beta=prior)

    def server_step(
        self, shared: Shared, state: Belief, aggregate: Tensor, n: int, key: Key
    ) -> Belief:
        """BayesAgg: equations 3 and 4, with ``K * aggregate`` ones of ``K`` clients."""
        if n == 0:  # the mode of a uniform prior does not exist
            return state
        step = super().server_step(shared, state, aggregate, n, key)
        alpha, beta = state.alpha, state.beta
        assert alpha is not None
        assert beta is not None
        if state.steps % self.reset_period(shared) == 0:
            alpha = beta = torch.full_like(alpha, self.prior)
        squeezed = self.ends == "squeeze"
        ones = n * (self.clip + (1 - 2 * self.clip) * step.theta if squeezed else step.theta)
        alpha = alpha + ones
        beta = beta + (n - ones)
        mode = (alpha - 1) / (alpha + beta - 2)
        return dataclasses.replace(step, theta=mode, alpha=alpha, beta=beta)
