"""Preparation of a run: from a scenario to the objects that its rounds are played with."""

import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import torch

from fedbench.api import Attack, Shared, Traits
from fedbench.core import registry
from fedbench.core.blame import ask
from fedbench.core.canonical import require_canonical
from fedbench.core.choices import SUMS
from fedbench.core.devices import accelerated, current, require_device_name
from fedbench.core.errors import ConfigError, Incompatible, Unavailable, require
from fedbench.core.permutations import MAX_LISTED
from fedbench.core.rng import Secret
from fedbench.data.augmentation import CropFlip
from fedbench.data.datasets import Data, data_folder
from fedbench.executors.factory import executor, typical_sizes
from fedbench.executors.training import Schedule
from fedbench.experiment import cohorts
from fedbench.experiment.compatibility import WHY, Load, Resolution, examine, resolve
from fedbench.experiment.guarantee import require_theorem
from fedbench.experiment.population import populate
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import MAX_REHEARSING_CLIENTS, Setup
from fedbench.isolation.stand_ins import IsolatedAttack
from fedbench.models import adapters
from fedbench.models.lora import adapted
from fedbench.models.modules import ModuleNet
from fedbench.models.network import OTHER_NORMS, Network, require_init, require_network


def prepare(
    scenario: Scenario,
    device: str = "auto",
    engine: str = "auto",
    chunk: int = 32,
    data: Data | None = None,
    load: Load = registry.load,
    canonical: bool = False,
) -> Setup:
    """Load the data, unless they are given, and build what the scenario names.

    The options are those of `fedbench.run.play`, with the name of the executor as ``engine``;
    ``load`` makes an attack or a defense of its text, possibly in another process. `ConfigError` if
    something cannot be had or does not fit, `NoTheorem` if a guarantee is asked for without one.
    """
    if canonical:
        device, engine = canonical_choices(device, engine)
    resolution = resolve(scenario, load)
    scenario = resolution.scenario
    plugins = resolution.plugins
    on = choose_device(device)
    engine = followed(engine, plugins.attack)
    data = (load_pool(scenario.dataset) if data is None else data).to(on)
    require_kind(resolution, data)
    require_public_scale(resolution, data)
    secret = Secret.of(scenario.seed, cohorts.PURPOSE)
    shared = build_shared(resolution, data, secret, on)
    population = populate(resolution, data, secret)
    examine(plugins.defense, scenario.per_round)
    require_fit(resolution, shared)
    coins = plugins.mechanism.batches == "poisson"
    schedule = Schedule(scenario.epochs, scenario.batch_size, coins)
    setup = Setup(
        scenario=scenario,
        plugins=plugins,
        id=resolution.id("" if data.is_named(scenario.dataset) else data.identity),
        population=population,
        shared=shared,
        executor=executor(
            engine,
            plugins.protocol,
            shared,
            schedule,
            chunk,
            scenario.precision,
            typical_sizes(population.typical_sizes, scenario.per_round),
            augment=None if scenario.augment == "none" else CropFlip(data.black),
        ),
        secret=secret,
        sources=resolution.sources,
        canonical=canonical,
        at_once=None,
    )
    require_few_recruits(setup)
    require_validation(setup)
    require_theorem(setup)
    return setup


def build_shared(
    resolution: Resolution, data: Data, secret: Secret, device: torch.device
) -> Shared:
    """Return what all clients and the server of a run know: the network, and a public seed."""
    scenario = resolution.scenario
    public = secret.key("public").seed
    assert isinstance(public, int)
    rate = scenario.per_round / scenario.clients
    shared = Shared(build_network(resolution, data), public & 0xFFFFFFFF, device, rate)
    adapter = adapters.parse(scenario.adapter)
    if adapter is None:
        return shared
    key = shared.key.fold("init")  # frozen are the weights that would be trained without it
    return replace(shared, network=adapted(shared.network, adapter, key, device))


def require_fit(resolution: Resolution, shared: Shared) -> None:
    """Raise `Incompatible` for a network that the mechanism or a secure sum cannot protect."""
    scenario = resolution.scenario
    plugins = resolution.plugins
    why = ask(plugins.mechanism, "misfit", WHY, plugins.protocol, plugins.defense, shared)
    if why is not None:
        raise Incompatible(f"mechanism {registry.split(scenario.mechanism)[0]} {why}")
    if scenario.sees in SUMS and shared.statistics.d:
        raise Incompatible(
            f"--sees {scenario.sees} must have a model without batch norm, whose statistics travel "
            f"as floats, got --model {scenario.model}; {OTHER_NORMS}"
        )


def require_few_recruits(setup: Setup) -> None:
    """Raise `Incompatible` if an attack trains too many of very many clients in every round."""
    scenario = setup.scenario
    recruits = setup.recruiting(setup.plugins.attack)
    if scenario.clients > MAX_LISTED and recruits > MAX_REHEARSING_CLIENTS:
        raise Incompatible(
            f"attack {scenario.attack} trains {recruits} clients of its own in every round, and "
            f"must train at most {MAX_REHEARSING_CLIENTS} with more than {MAX_LISTED} clients; "
            "recruit fewer, or lower --malicious"
        )


def require_validation(setup: Setup) -> None:
    """Raise `ConfigError` if a protocol chooses on validation data and root data left none."""
    if setup.plugins.protocol.validates and not any(map(len, setup.population.validating)):
        scenario = setup.scenario
        raise ConfigError(
            f"protocol {scenario.protocol} must choose on validation samples of benign clients, "
            f"got none beside the root data of defense {scenario.defense}; ask for fewer clients, "
            "or a rule without root data"
        )


def require_kind(resolution: Resolution, data: Data) -> None:
    """Raise `Incompatible` if something needs other samples than these, images for instance.

    `ConfigError` if an attack names a label that they do not have.
    """
    scenario = resolution.scenario
    shape = ", ".join(map(str, data.image))
    got = f"got {data.kind} ({shape})"
    attack = resolution.plugins.attack
    if data.kind not in attack.works_on:
        name = registry.split(scenario.attack)[0]
        kinds = " or ".join(attack.works_on)
        raise Incompatible(
            f"attack {name} must have samples of kind {kinds}, {got}; use label-flip or alie"
        )
    ask(attack, "require_samples", type(None), data.image, data.classes)
    if scenario.augment != "none" and data.kind != "image":
        raise Incompatible(f"--augment {scenario.augment} must have images, {got}; use none")
    traits = ask(resolution.plugins.defense, "traits", Traits)
    if traits.network and data.kind == "ids":
        raise Incompatible(
            f"defense {resolution.plugins.defense_name} tries the network on noise and must have "
            f"samples of numbers, {got}; use trimmed-mean"
        )


def require_public_scale(resolution: Resolution, data: Data) -> None:
    """Raise `Incompatible` if noise is to protect data that are divided by what others have."""
    plugins = resolution.plugins
    if data.measured and plugins.noises(resolution.scenario):
        raise Incompatible(
            "a run with an ε must have samples that public numbers normalise, got mean and std of "
            "the clients' samples, which no noise protects; give mean= and std=, or normalise=False"
        )


def build_network(resolution: Resolution, data: Data) -> Network:
    """Return the network; `Incompatible` if no message carries its statistics of batch norm."""
    scenario = resolution.scenario
    network: Network = ask(resolution.model, "build", Network, data.image, data.classes)
    require_network(network)
    if isinstance(network, ModuleNet) and (network.tokens or data.kind == "ids"):
        flat = data.x.reshape(len(data.x), -1)
        ends = [int(end) // flat.shape[1] for end in (flat.argmin(), flat.argmax())]
        network.require(data.floats(torch.tensor(ends)).cpu())
    if not type(network).__module__.startswith("fedbench."):
        require_init(network)
    if network.statistics and not resolution.plugins.protocol.statistics:
        raise Incompatible(
            f"--protocol {scenario.protocol.partition(':')[0]} must have a model without batch "
            f"norm, whose statistics its messages cannot carry, got --model {scenario.model}; "
            f"{OTHER_NORMS}"
        )
    return network


def canonical_choices(device: str, engine: str) -> tuple[str, str]:
    """Return the device and the executor of a canonical run, cpu and loop; `ConfigError` if others.

    No other executor will do: ``auto`` asks a clock, and lock step sums in another order.
    """
    require("--device", device, device in ("auto", "cpu"), "auto or cpu with --canonical")
    require("--executor", engine, engine in ("auto", "loop"), "auto or loop with --canonical")
    require_canonical()
    return "cpu", "loop"


def followed(engine: str, attack: Attack) -> str:
    """Return the executor: for gradients changed in another process the loop or `ConfigError`."""
    if not (attack.wraps and isinstance(attack, IsolatedAttack)):
        return engine
    if engine not in ("auto", "loop"):
        raise ConfigError(
            f"--executor must be auto or loop for {attack.described['class']} under --isolate, "
            f"which changes the gradient of every step in another process, got {engine}"
        )
    return "loop"


def choose_device(name: str) -> torch.device:
    """Return the device, deterministic and on CUDA fp32 exact; `Unavailable` if it is absent.

    ``auto`` is CUDA or the CPU; a backend that a package registers with torch goes by its name.
    """
    require_device_name(name)
    if name == "mps":
        raise Unavailable(
            "--device mps has no float64, in which losses, rules and bounds on ε are computed; "
            "use --device cpu"
        )
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise Unavailable("--device cuda needs a CUDA device, got none; use --device cpu")
    if name == "auto":
        name = "cuda" if available else "cpu"
    device = current(name)
    if not accelerated(device):
        return device
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return device


def load_pool(dataset: str) -> Data:
    """Load a data set, the last two from memory; `Unavailable` if it cannot be had."""
    return _load(dataset, str(data_folder() or ""))


@lru_cache(maxsize=2)
def _load(dataset: str, folder: str) -> Data:
    source = registry.load("dataset", dataset)
    try:
        loaded: Data = ask(source, "load", Data, Path(folder) if folder else None)
    except ConfigError as error:  # its files are not here, or not as they should be
        raise Unavailable(str(error)) from error
    return loaded.named(registry.describe(registry.split(dataset)[0], source))
