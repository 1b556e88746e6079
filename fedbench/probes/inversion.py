"""Gradient inversion: reconstruction of training images from one message."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.api import Mechanism
from fedbench.core.errors import Incompatible, require
from fedbench.core.rng import Key
from fedbench.data.datasets import Data
from fedbench.executors.training import Client, Schedule
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.payload import BinaryMasks, NoiseMasks, SignBits
from fedbench.probes.images import best_order, psnr, ssim
from fedbench.probes.listener import Exchange, listening, signal
from fedbench.probes.reconstruct import cosine, normalised, reconstruct, simulator
from fedbench.probes.systems import Progress, play_each
from fedbench.run import begin, play_round

WARM_UP = 32  # batch size of the rounds before the one that is attacked
MESSAGE = "message"
RAW = "raw update"
RANDOM = "random image"
SAME_CLASS = "best other image of the class"
# Weight of total variation, larger for noisier messages.
PRIORS = {"floats": 0.01, "signs": 0.1, "adam": 0.3, "masks": 1.0}


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Reconstruction of one image.

    Args:
        image: ``(C, H, W)`` in [0, 1].
        psnr: PSNR to the true image, dB.
        ssim: SSIM to the true image.
        cosine: Cosine of its update with the one that was seen; None for a guess.
        ceiling: The same cosine of the true image; None for a guess.
    """

    image: Tensor
    psnr: float
    ssim: float
    cosine: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True, eq=False)
class InvertedSystem:
    """Reconstructions under one protocol and mechanism.

    Args:
        protocol: Protocol as typed.
        mechanism: Mechanism as typed.
        reconstructions: One of each image from `MESSAGE`, and one from `RAW`.
    """

    protocol: str
    mechanism: str
    reconstructions: dict[str, list[Reconstruction]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class InversionReport:
    """Report of gradient inversion.

    Args:
        truth: The true images, ``(C, H, W)`` in [0, 1].
        guesses: Guesses of each image without a message, by name.
        results: Reconstructions from each system.
        skipped: Reason for each combination that does not fit.
    """

    truth: list[Tensor]
    guesses: dict[str, list[Reconstruction]]
    results: list[InvertedSystem]
    skipped: list[str]


def probe(
    scenario: Scenario,
    protocols: Sequence[str],
    mechanisms: Sequence[str],
    seeds: Sequence[int],
    steps: int,
    say: Progress = lambda text: None,
) -> InversionReport:
    """Attack one message of each of the scenario's clients, under every system, for every seed.

    Raises:
        ConfigError: an option is wrong, or no combination fits.
    """
    require("--steps", steps, steps >= 1, ">= 1")
    images: dict[int, tuple[Data, Tensor]] = {}

    def play(protocol: str, mechanism: str) -> InvertedSystem:
        system = InvertedSystem(protocol, mechanism)
        for seed in seeds:
            say(f"{protocol} + {mechanism}: seed {seed}")
            names = {"protocol": protocol, "mechanism": mechanism, "seed": seed}
            setup = prepare(Scenario.of(**scenario.model_dump() | names))
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
    """Return rows ``(n, B)`` of each client's training data, of labels 0, 1, ... where it has them.

    The rows of one message have different labels, as far as the client has them.
    """
    batch = setup.scenario.batch_size
    classes = setup.population.data.classes
    chosen = []
    for i, rows in enumerate(setup.population.train):
        size = len(rows)
        rule = f"<= the {len(rows)} training samples of a client"
        require("--batch-size", batch, batch <= min(size, classes), f"{rule} and {classes} classes")
        left = rows[setup.secret.key("images", i).permutation(size).to(rows.device)].tolist()
        for j in range(batch):
            wanted = (i * batch + j) % classes
            match = next(
                (row for row in left if int(setup.population.data.y[row]) == wanted), left[0]
            )
            left.remove(match)
            chosen.append(match)
    return torch.tensor(chosen, device=setup.population.data.x.device).reshape(-1, batch)


def attack(setup: Setup, rows: Tensor, steps: int) -> dict[str, list[Reconstruction]]:
    """Reconstruct every client's images, ``rows (n, B)``, from its message and its raw update.

    In the last round each client takes one step on its images; the other rounds are usual ones.

    Raises:
        Incompatible: messages of this protocol cannot be read as updates.
    """
    protocol = setup.plugins.protocol
    shared = setup.shared
    setup = setup.with_population(test=[part[:1] for part in setup.population.test])
    state = begin(setup)
    usual = Schedule(1, WARM_UP, setup.executor.schedule.coins)
    warm = dataclasses.replace(setup, executor=dataclasses.replace(setup.executor, schedule=usual))
    last = setup.scenario.rounds - 1
    for step in range(last):
        play_round(warm, state, step)

    sizes = torch.full_like(setup.population.sizes, rows.shape[1])
    small = setup.with_population(train=list(rows), sizes=sizes)
    before = dataclasses.replace(state, memories=dict(state.memories))
    hearing, listener = listening(small, frozenset(range(len(rows))))
    play_round(hearing, state, last)
    bare = dataclasses.replace(
        small, plugins=dataclasses.replace(small.plugins, mechanism=Mechanism())
    )
    out: dict[str, list[Reconstruction]] = {MESSAGE: [], RAW: []}
    for i in range(len(rows)):
        heard = listener.heard.get(i, {}).get(last)
        if heard is None:
            raise Incompatible(
                "sends messages that the server rejects, so there is nothing to invert"
            )
        client = bare.client(
            i, protocol.receive(shared, heard.broadcast), before.memories.get(i), last
        )
        for name, reconstructed in invert(bare, client, heard, rows[i], steps, i).items():
            out[name].extend(reconstructed)
    return out


def invert(
    setup: Setup, client: Client, heard: Exchange, rows: Tensor, steps: int, number: int
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
        simulate = simulator(protocol, setup.executor, client, soft=signs)
        kind = "signs" if signs else "adam" if simulate.soft else "floats"
        if name == MESSAGE and issubclass(protocol.sends, BinaryMasks | NoiseMasks):
            kind = "masks"
        y = data.y[rows]
        truth = pixels(data, rows)
        images, reached = reconstruct(simulate, seen, y, data, PRIORS[kind], steps, key)
        ceiling = float(cosine(simulate(normalised(truth, data), y), seen).detach())
        out[name] = [
            Reconstruction(image, psnr(image, true), ssim(image, true), reached, ceiling)
            for image, true in zip(best_order(images, truth), truth, strict=True)
        ]
    return out


def guess(data: Data, rows: Tensor, key: Key) -> dict[str, list[Reconstruction]]:
    """Return guesses without a message: noise, and the nearest other image of the class."""
    noise, others = [], []
    for i, (row, truth) in enumerate(zip(rows.tolist(), pixels(data, rows), strict=True)):
        image = key.fold("guess", i).uniform(*data.image, device=truth.device)
        noise.append(Reconstruction(image, psnr(image, truth), ssim(image, truth)))
        same = (data.y == data.y[row]).nonzero()[:, 0]
        errors = (pixels(data, same) - truth).square().flatten(1).mean(dim=1)
        errors = torch.where(errors == 0, torch.inf, errors)  # the image itself and its copies
        image = pixels(data, same[errors.argmin()][None])[0]
        others.append(Reconstruction(image, psnr(image, truth), ssim(image, truth)))
    return {RANDOM: noise, SAME_CLASS: others}


def pixels(data: Data, rows: Tensor) -> Tensor:
    """Return images ``(..., C, H, W)`` in [0, 1]."""
    return data.x[rows].float() / data.scale
