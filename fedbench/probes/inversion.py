"""Gradient inversion: reconstruction of training images from one message, by gradient descent."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from fedbench.api import Batches, Mechanism, Protocol
from fedbench.core.errors import Incompatible, require
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.data.datasets import Data
from fedbench.executors.training import Client, Executor, Schedule
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.payload import BinaryMasks, NoiseMasks, SignBits
from fedbench.probes.systems import ProbeRound, Progress, listening, play_each, prepared, signal
from fedbench.run import begin, play_round

WARM_UP = 32  # batch size of the rounds before the one that is attacked
MESSAGE = "message"
RAW = "raw update"
RANDOM = "random image"
SAME_CLASS = "best other image of the class"
# Weight of total variation, larger for noisier messages.
PRIORS = {"floats": 0.01, "signs": 0.1, "adam": 0.3, "masks": 1.0}
RATE = 0.1  # first learning rate, for pixels in [0, 1]
DECAY = 0.3
DECAYS = (3 / 8, 5 / 8, 7 / 8)
WINDOW = 11  # pixels of the window in which images are compared
SIGMA = 1.5  # of its Gaussian weights, in pixels
C1, C2 = 0.01**2, 0.03**2
_PERFECT = 100.0  # dB, in place of the infinite PSNR of equal images, which has no mean
_FLOOR = 1e-3  # smallest cosine that the objective is relative to

Simulate = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Reconstruction of one image, ``(C, H, W)`` in [0, 1]."""

    image: Tensor
    psnr: float  # to the true image, dB
    ssim: float
    cosine: float | None = None  # of its update with the one that was seen; None for a guess
    ceiling: float | None = None  # the same cosine of the true image

    @classmethod
    def of(cls, image: Tensor, truth: Tensor, *cosines: float) -> Self:
        """Compare an image with the true one."""
        return cls(image, psnr(image, truth), ssim(image, truth), *cosines)


@dataclass(frozen=True, eq=False)
class InvertedSystem:
    """Reconstructions under one protocol and mechanism."""

    protocol: str  # as typed
    mechanism: str
    # one of each image from `MESSAGE`, and one from `RAW`
    reconstructions: dict[str, list[Reconstruction]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class InversionReport:
    """Report of gradient inversion."""

    truth: list[Tensor]  # the true images, ``(C, H, W)`` in [0, 1]
    guesses: dict[str, list[Reconstruction]]  # of each image without a message, by name
    results: list[InvertedSystem]
    skipped: list[str]  # combinations that do not fit, and why


def probe(
    scenario: Scenario,
    protocols: Sequence[str],
    mechanisms: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    say: Progress = lambda text: None,
) -> InversionReport:
    """Attack one message of each of the scenario's clients, under every system, for every seed.

    `ConfigError` for a scenario that changes images: a guess is compared with the image as it is.
    """
    require("--steps", steps, steps >= 1, ">= 1")
    require("--augment", scenario.augment, scenario.augment == "none", "none for an inversion")
    images: dict[int, tuple[Data, Tensor]] = {}

    def play(protocol: str, mechanism: str) -> InvertedSystem:
        system = InvertedSystem(protocol, mechanism)
        for seed in seeds:
            say(f"{protocol} + {mechanism}: seed {seed}")
            setup = prepared(scenario, protocol, mechanism, seed)
            rows = choose_images(setup)
            images[seed] = setup.population.data, rows
            for name, reconstructed in attack(setup, rows, steps).items():
                system.reconstructions.setdefault(name, []).extend(reconstructed)
        return system

    results, skipped = play_each(protocols, mechanisms, play)
    truth = [image for data, rows in images.values() for image in pixels(data, rows.flatten())]
    guesses: dict[str, list[Reconstruction]] = {RANDOM: [], SAME_CLASS: []}
    for seed, (data, rows) in images.items():
        for name, guessed in guess(data, rows.flatten(), Key(seed)).items():
            guesses[name].extend(guessed)
    return InversionReport(truth, guesses, results, skipped)


def choose_images(setup: Setup) -> Tensor:
    """Return rows ``(n, B)`` of each client's training data, of labels 0, 1, ... if it can."""
    batch = setup.scenario.batch_size
    data = setup.population.data
    shown = data.kind == "image" and bool(data.mean)
    require("--dataset", data.kind, shown, "images with mean and std, which inversion rebuilds")
    classes = data.classes
    chosen = []
    for i, rows in enumerate(setup.population.train):
        size = len(rows)
        requirement = f"<= the {size} training samples of a client and {classes} classes"
        require("--batch-size", batch, batch <= min(size, classes), requirement)
        left = rows[setup.secret.key("images", i).permutation(size).to(rows.device)].tolist()
        for j in range(batch):
            wanted = (i * batch + j) % classes
            matches = (row for row in left if int(setup.population.data.y[row]) == wanted)
            match = next(matches, left[0])
            left.remove(match)
            chosen.append(match)
    return torch.tensor(chosen, device=setup.population.data.x.device).reshape(-1, batch)


def attack(setup: Setup, rows: Tensor, steps: int) -> dict[str, list[Reconstruction]]:
    """Reconstruct every client's images, ``rows (n, B)``, from its message and its raw update.

    In the last round each client takes one step on its images; the other rounds are usual ones.
    """
    protocol = setup.plugins.protocol
    shared = setup.shared
    people = setup.population
    published = None if people.published is None else people.published[:1]
    setup = setup.with_population(test=[part[:1] for part in people.test], published=published)
    state = begin(setup)
    usual = Schedule(1, WARM_UP, setup.executor.schedule.coins)
    warm = dataclasses.replace(setup, executor=dataclasses.replace(setup.executor, schedule=usual))
    last = setup.scenario.rounds - 1
    for step in range(last):
        play_round(warm, state, step)

    small = setup.with_population(train=list(rows))
    before = dataclasses.replace(state, memories=dict(state.memories))
    hearing, heard_of = listening(small, range(len(rows)))
    play_round(hearing, state, last)
    plugins = dataclasses.replace(small.plugins, mechanism=Mechanism())
    bare = dataclasses.replace(small, plugins=plugins)
    out: dict[str, list[Reconstruction]] = {MESSAGE: [], RAW: []}
    for i in range(len(rows)):
        heard = heard_of[i].get(last)
        if heard is None:
            raise Incompatible(
                "sends messages that the server rejects, so there is nothing to invert"
            )
        tree = protocol.receive(shared, heard.broadcast)
        client = bare.client(i, tree, before.memories.get(i), last)
        for name, reconstructed in invert(bare, client, heard, rows[i], steps, i).items():
            out[name].extend(reconstructed)
    return out


def invert(
    setup: Setup, client: Client, heard: ProbeRound, rows: Tensor, steps: int, number: int
) -> dict[str, list[Reconstruction]]:
    """Reconstruct a client's images from its message, and from its update before any codec.

    ``setup`` has no mechanism; ``rows (B,)`` are the images of client ``number``.
    """
    protocol = setup.plugins.protocol
    shared = setup.shared
    data = setup.population.data
    sent = signal(protocol, shared, heard)
    if sent is None:
        raise Incompatible(
            f"inversion reads a message as an update, which {type(protocol).__name__}'s is not; "
            "use fedavg, signsgd, fsl or fedpm"
        )
    update = setup.executor.train([client])[0][0] - protocol.idle(shared, heard.broadcast)[0]
    key = setup.secret.key("inversion", number)
    out: dict[str, list[Reconstruction]] = {}
    for name, seen in ((RAW, update), (MESSAGE, sent)):
        if name == MESSAGE and torch.equal(update, sent):
            out[MESSAGE] = out[RAW]
            continue
        signs = name == MESSAGE and issubclass(protocol.sends, SignBits)
        simulate, soft = simulator(protocol, setup.executor, client, soft=signs)
        kind = "signs" if signs else "adam" if soft else "floats"
        if name == MESSAGE and issubclass(protocol.sends, BinaryMasks | NoiseMasks):
            kind = "masks"
        y = data.y[rows]
        truth = pixels(data, rows)
        images, reached = reconstruct(simulate, seen, y, data, PRIORS[kind], steps, key)
        ceiling = float(cosine(simulate(normalised(truth, data), y), seen).detach())
        out[name] = [
            Reconstruction.of(image, true, reached, ceiling)
            for image, true in zip(best_order(images, truth), truth, strict=True)
        ]
    return out


def guess(data: Data, rows: Tensor, key: Key) -> dict[str, list[Reconstruction]]:
    """Return guesses without a message: noise, and the nearest other image of the class."""
    noise = []
    others = []
    for i, (row, truth) in enumerate(zip(rows.tolist(), pixels(data, rows), strict=True)):
        image = key.fold("guess", i).uniform(*data.image, device=truth.device)
        noise.append(Reconstruction.of(image, truth))
        same = (data.y == data.y[row]).nonzero()[:, 0]
        errors = (pixels(data, same) - truth).square().flatten(1).mean(dim=1)
        errors = torch.where(errors == 0, torch.inf, errors)  # the image itself and its copies
        others.append(Reconstruction.of(pixels(data, same[errors.argmin()][None])[0], truth))
    return {RANDOM: noise, SAME_CLASS: others}


def pixels(data: Data, rows: Tensor) -> Tensor:
    """Return images ``(..., C, H, W)`` in [0, 1]."""
    return data.x[rows].float() / data.scale


def simulator(
    protocol: Protocol[Any], executor: Executor, client: Client, soft: bool
) -> tuple[Simulate, bool]:
    """Return a function from images and labels to the update ``(d,)`` that they cause.

    It is differentiable in the images and right up to a positive factor: the first local step of
    the client with the client's own draws (of a mask, say), which the adversary is given as the
    worst case. The first step of Adam, or the sign of an update, is ``g / |g|``, which has no
    useful derivative; if ``soft`` or under Adam, as the second result says, ``tanh(g / mean |g|)``
    of each layer replaces it. `Incompatible` if the protocol trains something else than it sends.
    """
    steps: list[tuple[Tree, Key]] = []

    def record(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        steps.append((tree, key))
        return {name: torch.zeros_like(leaf) for name, leaf in tree.items()}

    network = executor.shared.network
    batches = Batches(
        [(client.x, client.y)], weights=network.weights, statistics=network.statistics
    )
    protocol.local_update(client.tree, batches, record, client.key, client.memory)
    start, key = steps[0]
    layout = protocol.trained(executor.shared)
    frozen = protocol.frozen(executor.shared)
    if not set(layout.names) <= set(start) or set(network.statistics) & set(layout.names):
        raise Incompatible(
            "inversion simulates one gradient of what is sent, which is not what "
            f"{type(protocol).__name__} trains; use fedavg, signsgd, fsl or fedpm"
        )
    soft = soft or getattr(protocol, "optimizer", None) == "adam"
    slope = _slopes(protocol, start)

    def simulate(x: Tensor, y: Tensor) -> Tensor:
        leaves = {name: start[name].detach().requires_grad_() for name in layout.names}
        loss, _ = executor.loss(start | leaves, frozen, x, y, key)
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True)
        moves = {}
        for name, g in zip(leaves, gradients, strict=True):
            step = torch.tanh(g / g.detach().abs().mean().clamp_min(1e-30)) if soft else g
            moves[name] = -step * slope[name]
        return layout.flatten(moves)

    return simulate, soft


def _slopes(protocol: Protocol[Any], tree: Tree) -> Tree:
    """``d theta / d s`` by name if scores are trained and probabilities are sent, else 1."""
    if protocol.space != "probabilities":
        return {name: torch.ones_like(x) for name, x in tree.items()}
    expected: Any = getattr(protocol, "expected", None)
    if expected is None:
        raise Incompatible(
            f"inversion does not know how {type(protocol).__name__} turns scores to bits"
        )
    slopes: Tree = {}
    for name, x in tree.items():
        score = x.detach().requires_grad_()
        (slopes[name],) = torch.autograd.grad(expected(score).sum(), score)
    return slopes


def normalised(pixels: Tensor, data: Data) -> Tensor:
    """Normalise pixels in [0, 1] as the network expects them."""
    mean, std = (torch.tensor(m, device=pixels.device) for m in (data.mean, data.std))
    return (pixels - mean[:, None, None]) / std[:, None, None]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Return the cosine of two vectors ``(d,)``; 0 if one of them is 0."""
    norms = torch.linalg.vector_norm(a) * torch.linalg.vector_norm(b)
    similarity: Tensor = torch.dot(a, b) / norms.clamp_min(1e-30)
    return similarity


def reconstruct(
    simulate: Simulate, seen: Tensor, y: Tensor, data: Data, prior: float, steps: int, key: Key
) -> tuple[Tensor, float]:
    """Return images ``(B, C, H, W)`` in [0, 1] whose update is parallel to ``seen (d,)``.

    Minimises ``1 - cos + prior TV`` by signed Adam from uniform noise, with known labels ``y (B,)``
    and pixels clamped to [0, 1]. The gradient of the cosine is divided by the cosine, since no
    image has a large cosine with one noisy bit per coordinate, and the prior would dominate. The
    second result is the cosine that the images reach.

    References:
        Geiping, Bauermeister, Droege and Moeller, "Inverting Gradients - How easy is it to break
        privacy in federated learning?", NeurIPS 2020, https://arxiv.org/abs/2003.14053, its cosine
        objective with total variation and signed gradients; Zhu, Liu and Han, "Deep Leakage from
        Gradients", NeurIPS 2019, https://arxiv.org/abs/1906.08935, which takes squared distances.
    """
    z = key.fold("start").uniform(len(y), *data.image, device=seen.device).requires_grad_()
    adam = torch.optim.Adam([z], lr=RATE)
    milestones = [int(steps * share) for share in DECAYS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, milestones, DECAY)
    for _ in range(steps):
        similarity = cosine(simulate(normalised(z, data), y), seen)
        relative = similarity / similarity.detach().abs().clamp_min(_FLOOR)
        (gradient,) = torch.autograd.grad(prior * total_variation(z) - relative, z)
        z.grad = torch.nan_to_num(gradient).sign()
        adam.step()
        schedule.step()
        with torch.no_grad():
            z.clamp_(0, 1)
    z = z.detach()
    return z, float(cosine(simulate(normalised(z, data), y), seen).detach())


def psnr(image: Tensor, truth: Tensor) -> float:
    """``10 log10(1 / MSE)`` in dB; 100 for equal images.

    >>> round(psnr(torch.full((1, 4, 4), 0.6), torch.full((1, 4, 4), 0.5)), 3)
    20.0
    """
    mse = float((image.double() - truth.double()).square().mean())
    return min(_PERFECT, -10 * math.log10(mse)) if mse > 0 else _PERFECT


def ssim(image: Tensor, truth: Tensor) -> float:
    """Structural similarity of ``(C, H, W)``: 1 for equal images, about 0 for unrelated ones.

    The mean over channels and all positions of the Gaussian window, of side 11 or what fits.

    References:
        Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to
        Structural Similarity", IEEE Transactions on Image Processing 2004,
        https://doi.org/10.1109/TIP.2003.819861, equation 13.
    """
    weights = window(min(image.shape[1:]))[None, None].to(image.device)

    def mean(x: Tensor) -> Tensor:
        return F.conv2d(x[:, None], weights)

    x, y = image.double(), truth.double()
    mx, my = mean(x), mean(y)
    vx = mean(x * x) - mx * mx
    vy = mean(y * y) - my * my
    cov = mean(x * y) - mx * my
    luminance = (2 * mx * my + C1) / (mx * mx + my * my + C1)
    return float((luminance * (2 * cov + C2) / (vx + vy + C2)).mean())


def window(side: int) -> Tensor:
    """Return Gaussian weights ``(k, k)`` float64 of sum 1 for images of that side."""
    k = min(WINDOW, side - 1 + side % 2)
    x = torch.arange(k, dtype=torch.float64) - (k - 1) / 2
    bell = torch.exp(-x.square() / (2 * SIGMA**2))
    weights = torch.outer(bell, bell)
    return weights / weights.sum()


def total_variation(image: Tensor) -> Tensor:
    """Mean absolute difference of vertical and of horizontal neighbours in ``(B, C, H, W)``.

    >>> total_variation(torch.tensor([[[[0.0, 1.0], [0.0, 1.0]]]])).item()
    1.0
    """
    down = (image[..., 1:, :] - image[..., :-1, :]).abs().mean()
    return down + (image[..., :, 1:] - image[..., :, :-1]).abs().mean()


def best_order(images: Tensor, truth: Tensor) -> Tensor:
    """Return ``images (B, C, H, W)`` in the order of the least total squared error to ``truth``."""
    from scipy.optimize import linear_sum_assignment

    errors = torch.cdist(images.flatten(1).double(), truth.flatten(1).double()).square()
    rows, columns = linear_sum_assignment(errors.cpu().numpy())
    order = torch.empty(len(rows), dtype=torch.long)
    order[torch.from_numpy(columns)] = torch.from_numpy(rows)
    return images[order]
