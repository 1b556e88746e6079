"""Gradient inversion: the images that one message gives back."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedbench.api import Mechanism
from fedbench.core.errors import Incompatible, require
from fedbench.core.rng import Key
from fedbench.data.dataset import Data
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
# Weight of total variation: the noisier what is seen, the more of it there has to be.
PRIORS = {"floats": 0.01, "signs": 0.1, "adam": 0.3, "masks": 1.0}


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """One reconstruction of one image.

    Args:
        image: ``(C, H, W)`` in [0, 1].
        psnr: To the truth, dB.
        ssim: To the truth.
        cosine: Of its update with what was seen; None of a guess.
        ceiling: The same cosine of the true image; None of a guess.
    """

    image: Tensor
    psnr: float
    ssim: float
    cosine: float | None = None
    ceiling: float | None = None


@dataclass(frozen=True, eq=False)
class InvertedSystem:
    """One protocol under one mechanism.

    Args:
        protocol: As typed.
        mechanism: As typed.
        found: By what was attacked, `MESSAGE` and `RAW`: a reconstruction of each image.
    """

    protocol: str
    mechanism: str
    found: dict[str, list[Reconstruction]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class InversionReport:
    """Measurements of an inversion.

    Args:
        truth: ``(C, H, W)`` in [0, 1], each of them.
        guesses: What scores who sees nothing, by name: each image.
        results: A system each.
        skipped: Systems that cannot exist, and why.
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
        ConfigError: an option is wrong, or no two of them fit.
    """
    require("--steps", steps, steps >= 1, ">= 1")
    pictures: dict[int, tuple[Data, Tensor]] = {}

    def play(protocol: str, mechanism: str) -> InvertedSystem:
        system = InvertedSystem(protocol, mechanism)
        for seed in seeds:
            say(f"{protocol} + {mechanism}: seed {seed}")
            names = {"protocol": protocol, "mechanism": mechanism, "seed": seed}
            setup = prepare(Scenario.of(**scenario.model_dump() | names))
            rows = choose_images(setup)
            pictures[seed] = setup.population.data, rows
            for name, found in attack(setup, rows, steps).items():
                system.found.setdefault(name, []).extend(found)
        return system

    results, skipped = play_each(protocols, mechanisms, play)
    truth = [image for data, rows in pictures.values() for image in pixels(data, rows.flatten())]
    guesses: dict[str, list[Reconstruction]] = {RANDOM: [], SAME_CLASS: []}
    for seed, (data, rows) in pictures.items():
        for name, found in guess(data, rows.flatten(), Key(seed)).items():
            guesses[name].extend(found)
    return InversionReport(truth, guesses, results, skipped)


def choose_images(setup: Setup) -> Tensor:
    """``(n, B)`` rows of the pool: of each client's training data, labels 0, 1, ... if it can be.

    Those of one message have different labels.
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

    All rounds but the last are usual ones; in the last each client takes one step on its images.

    Raises:
        Incompatible: messages of this protocol are not read as updates.
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
        for name, found in invert(bare, client, heard, rows[i], steps, i).items():
            out[name].extend(found)
    return out


def invert(
    setup: Setup, client: Client, heard: Exchange, rows: Tensor, steps: int, number: int
) -> dict[str, list[Reconstruction]]:
    """One client's images from its message, and from its update without mechanism and codec."""
    protocol = setup.plugins.protocol
    shared = setup.shared
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
        y = setup.population.data.y[rows]
        true = pixels(setup.population.data, rows)
        images, like = reconstruct(
            simulate, seen, y, setup.population.data, PRIORS[kind], steps, key
        )
        ceiling = float(cosine(simulate(normalised(true, setup.population.data), y), seen).detach())
        pairs = zip(best_order(images, true), true, strict=True)
        out[name] = [
            Reconstruction(image, psnr(image, one), ssim(image, one), like, ceiling)
            for image, one in pairs
        ]
    return out


def guess(data: Data, rows: Tensor, key: Key) -> dict[str, list[Reconstruction]]:
    """Score guesses without a message: noise, and the nearest other image of the class."""
    noise, others = [], []
    for i, (row, truth) in enumerate(zip(rows.tolist(), pixels(data, rows), strict=True)):
        image = key.fold("guess", i).uniform(*data.image, device=truth.device)
        noise.append(Reconstruction(image, psnr(image, truth), ssim(image, truth)))
        same = (data.y == data.y[row]).nonzero()[:, 0]
        errors = (pixels(data, same) - truth).square().flatten(1).mean(dim=1)
        errors = torch.where(errors == 0, torch.inf, errors)  # itself, and its copies
        image = pixels(data, same[errors.argmin()][None])[0]
        others.append(Reconstruction(image, psnr(image, truth), ssim(image, truth)))
    return {RANDOM: noise, SAME_CLASS: others}


def pixels(data: Data, rows: Tensor) -> Tensor:
    """``(..., C, H, W)`` in [0, 1]."""
    return data.x[rows].float() / data.scale
