"""DeepSight, clusters of models by their output layers and their answers to noise."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.copies import copied_to
from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.models.network import Image, Network, laid_out
from fedbench.payload import Payload, SignBits

from .distances import clipped_mean, comparable, cosines, gram, hdbscan, middle, norms
from .fldetector import NO_UPDATES, sent_model

_WHY = "looks at the broadcast weights plus a row, which is no update of them"
BATCH = 512  # noise images in one pass through the network


def output_layer(x: Tensor, layout: Layout, network: Network) -> tuple[Tensor, Tensor | None]:
    """Return the updates of the last weights ``(n, P, h)`` in ``x (n, k)``, and of their bias.

    Columns beyond the layout's are no weights. `ConfigError` if the last layer has no row for each
    class.
    """
    tree = layout.unflatten(x[:, : layout.d])
    name = network.head
    rows = tree[name].shape[1]
    fits = rows == network.classes
    require(f"DeepSight's output layer {name}", rows, fits, "as long as there are classes")
    bias = network.head_bias
    return tree[name], None if bias is None else tree.get(bias)


def update_energies(weights: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the NEUPs ``(n, P)`` float64 of updates of the output layer, one for each label.

    The energy of a neuron is ``E_ik = |b_ik| + sum_h |w_ikh|``, with ``weights (n, P, h)`` and
    ``bias (n, P)``; its NEUP is ``E_ik^2 / sum_j E_ij^2``. All are 0 of a layer that did not move.

    >>> update_energies(torch.tensor([[[0.0, -2.0], [1.0, 0.0]]]), torch.tensor([[1.0, 0.0]]))
    tensor([[0.9000, 0.1000]], dtype=torch.float64)
    """
    energies = weights.to(torch.float64).abs().flatten(2).sum(dim=2)
    if bias is not None:
        energies += bias.to(torch.float64).abs()
    squares = energies.square()
    total = squares.sum(dim=1, keepdim=True)
    return squares / torch.where(total > 0, total, 1.0)


def threshold_exceedings(neups: Tensor) -> Tensor:
    """Count in each row the NEUPs above ``max(0.01, 1/P)`` of the row's largest, ``(n,)`` float64.

    A model that was trained on few labels moves few output neurons, and has few of them.

    >>> threshold_exceedings(torch.tensor([[0.5, 0.125, 0.25, 0.125], [0.97, 0.01, 0.01, 0.01]]))
    tensor([2., 1.], dtype=torch.float64)
    """
    factor = max(0.01, 1 / neups.shape[1])
    largest = neups.max(dim=1, keepdim=True).values
    return (neups > factor * largest).sum(dim=1).to(torch.float64)


def noise_images(key: Key, count: int, image: Image, device: torch.device) -> Iterator[Tensor]:
    """Yield batches ``(B, C, H, W)`` of so many standard normal images, always the same."""
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        yield laid_out(key.fold(start).normal(size, *image, device=device))


def division_differences(network: Network, models: Tree, noise: Iterable[Tensor]) -> Tensor:
    """Return the DDifs ``(n, P)`` float64 of ``models``, a tree of ``(n + 1, ...)``, to the first.

    ``DDif_ik`` is the mean over all samples ``s`` in the batches of ``noise`` of the ratio of
    probabilities ``p_i(s)_k / p_0(s)_k``, with the global model 0.
    """
    trees = [
        dict(zip(models, leaves, strict=True)) for leaves in zip(*models.values(), strict=True)
    ]
    shape = (len(trees) - 1, network.classes)
    total = torch.zeros(shape, dtype=torch.float64, device=next(iter(models.values())).device)
    samples = 0
    for x in noise:
        logits = torch.stack([network.logits(tree, x) for tree in trees])
        logs = logits.to(torch.float64).log_softmax(dim=2)
        total += (logs[1:] - logs[0]).exp().sum(dim=1)
        samples += len(x)
    return total / samples


def euclidean(x: Tensor) -> Tensor:
    """Return the distances ``(n, n)`` of rows; one that is not finite is farther than all."""
    distances = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist")
    return comparable(distances.nan_to_num(nan=torch.inf, posinf=torch.inf).fill_diagonal_(0))


def in_order(x: Tensor, key: Key) -> list[int]:
    """Return the numbers of rows ``x (n, k)`` in the order of their hashes under a key.

    It depends on the rows alone, not on which client comes first, and no client can choose it.
    """
    secret = repr(key.seed).encode()
    hashes = [blake2b(row.tobytes(), key=secret).digest() for row in x.cpu().numpy()]
    return sorted(range(len(x)), key=hashes.__getitem__)


def clusters(distances: Tensor, smallest: int) -> Tensor:
    """Return a number ``(n,)`` of each row's cluster by HDBSCAN; a row of none is one by itself."""
    labels = hdbscan(distances, smallest)
    alone = labels.max() + 1 + torch.arange(len(labels))
    return torch.where(labels < 0, alone, labels)


def tolerable(labels: Tensor, suspicious: Tensor, tau: float) -> Tensor:
    """Return the rows ``(n,)`` bool of clusters with a share of suspicious rows below ``tau``.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 7])
    >>> suspicious = torch.tensor([True, False, False, False, True, False, False, True])
    >>> tolerable(labels, suspicious, 1 / 3).tolist()
    [True, True, True, True, False, False, False, False]
    """
    together = (labels[:, None] == labels).to(torch.float64)
    return together @ suspicious.to(torch.float64) / together.sum(dim=1) < tau


@dataclass(frozen=True, kw_only=True)
class DeepSight(Defense[None]):
    """Average the clusters in which few models learned few labels, clipped to the median norm.

    A model is suspicious if its threshold exceedings (TEs) are at most half of their median:
    backdoors are trained on data of few labels. Models are clustered by their NEUPs, by their DDifs
    on each of ``seeds`` sets of noise, and by the angle between updates of the output layer's bias.
    The mean of the three says how far apart two models are, DDifs counting once; HDBSCAN on these
    distances gives the clusters, and those with a share of suspicious models below ``tau`` are
    averaged. Norms are those of whole updates, their median that of *all* rows.

    The output layer is the network's last layer of weights. Most networks here have no bias in it:
    NEUPs then sum over weights alone, and the angle is that between updates of its weights, which
    the paper does not have. Noise is standard normal, as the images are normalised. The smallest
    cluster is a parameter, since the paper was not at hand for it: its definitions were, in public
    code. A row of no cluster is a cluster by itself, not one with all others of none. If no cluster
    is accepted the model stays, and `findings` say so. Rows that are not finite are left out
    before. Ignores the clients' sizes.

    A round costs ``samples * seeds * (n + 1)`` passes through the network, and so does every query
    of an attack that asks the rule. With the paper's 20,000 samples a round takes minutes on a CPU:
    the default is a twentieth of them. All models are given the same noise.

    Args:
        samples: Noise images in each set; the paper has 20,000.
        seeds: Sets of noise images.
        tau: Share of suspicious models from which on a cluster is left out.
        smallest: Rows of the smallest cluster that HDBSCAN may find.

    References:
        Rieger, Nguyen, Miettinen and Sadeghi, "DeepSight: Mitigating Backdoor Attacks in Federated
        Learning Through Deep Model Inspection", NDSS 2022, https://arxiv.org/abs/2201.00763,
        Algorithm 1.
    """

    without: ClassVar[dict[type[Payload], str]] = dict.fromkeys((*NO_UPDATES, SignBits), _WHY)
    samples: int = 1000
    seeds: int = 3
    tau: float = 1 / 3
    smallest: int = 2

    def __post_init__(self) -> None:
        require("DeepSight.samples", self.samples, 1 <= self.samples <= 100_000, "in [1, 100000]")
        require("DeepSight.seeds", self.seeds, 1 <= self.seeds <= 100, "in [1, 100]")
        require("DeepSight.tau", self.tau, 0 < self.tau <= 1, "in (0, 1]")
        require("DeepSight.smallest", self.smallest, self.smallest >= 2, ">= 2")

    def traits(self) -> Traits:
        symmetries = {"shift": False, "scale": False}
        return Traits(model=True, network=True, randomized=True, detects=True, **symmetries)

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2  # then the median norm, which nothing exceeds, is a benign one

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        origin = received.origin()
        lengths = norms(x, origin).cpu()
        averaged = torch.isfinite(lengths)
        if bool(averaged.any()):
            rows = copied_to(averaged.nonzero()[:, 0], x.device)
            averaged[averaged.clone()] = self._accept(x[rows], view)
        if not bool(averaged.any()):
            view.findings.notes["fell_back"] = "no cluster accepted"
        view.findings.kept = averaged
        return clipped_mean(x, origin, lengths, averaged, middle(lengths)), None

    def _accept(self, x: Tensor, view: ServerView) -> Tensor:
        """Return which of the finite rows ``x (n, k)`` are averaged, ``(n,)`` bool."""
        assert view.network is not None
        assert view.layout is not None
        # HDBSCAN settles ties, of which the last distances have many, by the order of rows.
        order = in_order(x, view.key.fold("ties"))
        x = x[copied_to(torch.tensor(order), x.device)]
        weights, bias = output_layer(x, view.layout, view.network)
        neups = update_energies(weights, bias)
        turning = (weights if bias is None else bias).flatten(1)
        angles = 1 - cosines(gram(turning, torch.zeros_like(turning[0]))[0])
        distances = torch.stack([euclidean(neups), angles, *self._distances_on_noise(x, view)])
        by_neups, by_angles, *by_noise = map(self._apart, distances.cpu())
        parts = [by_neups, by_angles, torch.stack(by_noise).mean(dim=0)]
        labels = clusters(torch.stack(parts).mean(dim=0), self.smallest)
        exceedings = threshold_exceedings(neups).cpu()
        suspicious = exceedings <= middle(exceedings) / 2
        counts = {"clusters": len(set(labels.tolist())), "suspicious": int(suspicious.sum())}
        view.findings.notes |= counts
        accepted = torch.empty(len(x), dtype=torch.bool)
        accepted[order] = tolerable(labels, suspicious, self.tau)
        return accepted

    def _apart(self, distances: Tensor) -> Tensor:
        """Return distances ``(n, n)`` float64: 0 in one cluster, 1 between two."""
        labels = clusters(distances, self.smallest)
        return (labels[:, None] != labels).to(torch.float64)

    def _distances_on_noise(self, x: Tensor, view: ServerView) -> Iterator[Tensor]:
        """Yield the distances ``(n, n)`` float64 of DDifs on each set of noise."""
        assert view.network is not None
        assert view.layout is not None
        d = view.layout.d
        moves = torch.cat([torch.zeros_like(x[:1]), x])[:, :d]
        models = view.layout.unflatten(sent_model("deepsight", view, d) + moves)
        for seed in range(self.seeds):
            key = view.key.fold("deepsight", seed)
            noise = noise_images(key, self.samples, view.network.image, x.device)
            yield euclidean(division_differences(view.network, models, noise))
