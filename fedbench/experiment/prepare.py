"""From a scenario to the things that a round is played with."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbench.adversary.threat_model import malicious_clients
from fedbench.api import Attack, Memory, Sees, ServerView, Shared, Traits, hooks
from fedbench.core import registry
from fedbench.core.blame import Hook, ask
from fedbench.core.errors import ConfigError, Incompatible, Unavailable, require
from fedbench.core.rng import Key, Secret
from fedbench.core.trees import Tree
from fedbench.data.dataset import Data
from fedbench.data.datasets import data_folder
from fedbench.data.splits import split_client
from fedbench.executors.autotune import crowd
from fedbench.executors.factory import executor
from fedbench.executors.training import Client, Executor, Schedule, untouched
from fedbench.experiment.compatibility import WHY, Plugins, examine
from fedbench.experiment.guarantee import claimable
from fedbench.experiment.scenario import Scenario
from fedbench.isolation.stand_ins import IsolatedAttack
from fedbench.models.network import Network, is_statistic
from fedbench.payload import Payload

ROOT = 100  # images of the root data, for rules that need some


@dataclass(frozen=True, eq=False)
class Setup:
    """Everything that does not change during a run.

    Args:
        scenario: Resolved.
        plugins: Protocol, attack, defense, mechanism.
        data: The pool of samples, on the device.
        train: Per client, indices of its training samples.
        validation: Per client, indices of its validation samples.
        test: Per client, indices of its test samples.
        root: Indices of the server's root data; empty for rules that need none.
        sizes: ``(N,)`` float64, training samples of each client.
        malicious: ``(N,)`` bool.
        shared: Network, public seed and device.
        executor: Trains clients.
        pseudonyms: ``(N,)`` int64, the numbers by which the server's rule knows the clients.
        secret: Root of all of the run's draws; no plug-in is handed it.
    """

    scenario: Scenario
    plugins: Plugins
    data: Data
    train: list[Tensor]
    validation: list[Tensor]
    test: list[Tensor]
    root: Tensor
    sizes: Tensor
    malicious: Tensor
    shared: Shared
    executor: Executor
    pseudonyms: Tensor
    secret: Secret

    @property
    def noncompliant(self) -> Tensor:
        """``(N,)`` bool: who never keeps to the mechanism; nobody where the attack is idle.

        The adversary's clients add no noise in rounds without attack either: nobody can make them.
        """
        return self.malicious & ~torch.tensor(self.plugins.attack.idle)

    def acts(self, step: int) -> bool:
        """A round of the attack's window."""
        scenario = self.scenario
        since = step - scenario.attack_from
        over = scenario.attack_until is not None and step >= scenario.attack_until
        return since >= 0 and not over and since % scenario.attack_every == 0

    def hostile(self, ids: list[int], step: int) -> Tensor:
        """``(n,)`` bool: whose messages are not honest ones in this round."""
        return self.malicious[ids] & torch.tensor(self.acts(step) and not self.plugins.attack.idle)

    def attack(self, step: int) -> Attack:
        """What the adversary does in a round; nothing outside the attack's window."""
        found: Attack = self.plugins.attack if self.acts(step) else Attack()
        return found

    def parts(self, ids: list[int]) -> tuple[list[int], int]:
        """Of these clients their numbers among those the adversary owns, and how many it owns."""
        return (self.malicious.cumsum(0) - 1)[ids].tolist(), int(self.malicious.sum())

    @property
    def sees(self) -> Sees:
        """What privacy's adversary sees; by default what the mechanism protects against most of."""
        asked: Sees | None = self.scenario.sees
        return asked or ("model" if self.plugins.mechanism.central else "messages")

    def sample(self, step: int) -> list[int]:
        """The clients of a round."""
        key, clients = self.secret.key("sample", step), self.scenario.clients
        if self.scenario.sampling == "poisson":
            drawn = key.uniform(clients) < self.scenario.per_round / clients
            return drawn.nonzero()[:, 0].tolist()
        return key.permutation(clients)[: self.scenario.per_round].tolist()

    def client(self, i: int, tree: Tree, memory: Memory | None, step: int) -> Client:
        """Client ``i`` of a round: what it received and remembers, and who touches its training."""
        honest = self.plugins.mechanism.wrap_grad
        return Client(
            tree=tree,
            x=self.data.floats(self.train[i]),
            y=self.data.y[self.train[i]],
            key=self.secret.key("client", step, i),
            memory=memory or ask(self.plugins.protocol, "memory", dict, self.shared),
            wrap_grad=untouched if self.noncompliant[i] else honest,
        )

    def noise(self, ids: list[int], step: int) -> list[Key]:
        """Keys of the mechanism on these clients, which no protocol is handed."""
        return [self.secret.key("privacy", step, i) for i in ids]

    def count(self, received: Payload) -> int:
        """How many clients a server step is told of: as central noise does not hide who came."""
        return self.scenario.per_round if self.plugins.mechanism.central else len(received)

    def view(self, ids: list[int], broadcast: Payload, step: int) -> ServerView:
        """What the server's rule is shown of the clients ``ids``, beside their messages.

        All count the same where the protocol says so, or a server's noise needs it.
        """
        alike = not self.plugins.protocol.weighted or self.plugins.mechanism.central
        weights = torch.ones(len(ids), dtype=torch.float64) if alike else self.sizes[ids]
        draw = self.scenario.defense_draw
        needs = ask(self.plugins.defense, "traits", Traits)
        return ServerView(
            weights,
            broadcast,
            step,
            key=self.secret.key("defense", step, *([draw] if draw else [])),
            expected=self.scenario.per_round,
            ids=self.pseudonyms[ids],
            root=self.root_message(broadcast, step) if needs.root else None,
            truth=self.hostile(ids, step) if needs.oracle else None,
        )

    def root_message(self, broadcast: Payload, step: int) -> Payload:
        """One row: what a client would send that holds the server's root data.

        It trains from the first row of the broadcast, remembers nothing, and needs no mechanism.
        """
        key = self.secret.key("root", step)
        protocol, shared = self.plugins.protocol, self.shared
        memory = ask(protocol, "memory", dict, shared)
        client = Client(
            tree=ask(protocol, "receive", dict, shared, broadcast.take([0])),
            x=self.data.floats(self.root),
            y=self.data.y[self.root],
            key=key,
            memory=memory,
        )
        with Hook(protocol, "local_update", step):
            updates, memories = self.executor.train([client])
        return hooks.message(protocol, shared, updates, [key], memories)[0]


def prepare(
    scenario: Scenario,
    device: str = "auto",
    engine: str = "auto",
    chunk: int = 32,
    data: Data | None = None,
    load: Callable[[str, str], Any] = registry.load,
) -> Setup:
    """Load the data, unless they are given, and build what the scenario names.

    Args:
        scenario: What to play.
        device: ``auto``, ``cpu`` or ``cuda``.
        engine: The executor's name.
        chunk: Clients that the stacked executor trains at once.
        data: The scenario's pool of samples, if it is at hand.
        load: Makes an attack or a rule of its text, in another process if it likes.

    Raises:
        ConfigError: anything that it names cannot be had or does not fit.
    """
    scenario, plugins = scenario.settled(load)
    where = choose_device(device)
    engine = followed(engine, plugins.attack)
    data = (load_pool(scenario.dataset) if data is None else data).to(where)
    architecture = registry.load("model", scenario.model)
    network = ask(architecture, "build", Network, data.image, data.classes)
    if not plugins.protocol.statistics and any(map(is_statistic, network.shapes)):
        raise Incompatible(
            f"--protocol {scenario.protocol.partition(':')[0]} must have a model without batch "
            f"norm, whose statistics its messages cannot carry, got --model {scenario.model}; "
            "use lenet5 or conv4"
        )

    assert scenario.data_seed is not None
    dealt = Secret.of(scenario.data_seed, "data")
    partition = registry.load("partition", scenario.partition)
    deal, y = dealt.key("partition"), data.y.cpu()
    parts = hooks.split(partition, y, scenario.clients, data.classes, deal, data.owner)
    splits = [split_client(part, dealt.key("split", i)) for i, part in enumerate(parts)]

    validation = [part.to(where) for _, part, _ in splits]
    root = torch.empty(0, dtype=torch.int64, device=where)
    if ask(plugins.defense, "traits", Traits).root:
        root, validation = taken(validation, dealt.key("root"))

    secret = Secret.of(scenario.seed, "run")
    public = secret.key("public").seed
    assert isinstance(public, int)
    shared = Shared(network, public & 0xFFFFFFFF, where)
    examine(plugins.defense, scenario.per_round)
    unproved = ask(plugins.mechanism, "misfit", WHY, plugins.protocol, plugins.defense, shared)
    if unproved is not None:
        raise Incompatible(f"mechanism {registry.split(scenario.mechanism)[0]} {unproved}")
    coins = plugins.mechanism.batches == "poisson"
    schedule = Schedule(scenario.epochs, scenario.batch_size, coins)
    alike = crowd([len(train) for train, _, _ in splits], scenario.per_round, schedule)
    trains = executor(engine, plugins.protocol, shared, schedule, chunk, scenario.precision, alike)
    setup = Setup(
        scenario=scenario,
        plugins=plugins,
        data=data,
        train=[train.to(where) for train, _, _ in splits],
        validation=validation,
        test=[test.to(where) for _, _, test in splits],
        root=root,
        sizes=torch.tensor([len(train) for train, _, _ in splits], dtype=torch.float64),
        malicious=malicious_clients(scenario.clients, scenario.malicious, secret.key("malicious")),
        shared=shared,
        executor=trains,
        pseudonyms=secret.key("pseudonyms").permutation(scenario.clients),
        secret=secret,
    )
    claimable(setup)
    return setup


def followed(engine: str, attack: Attack) -> str:
    """The executor for an attack: one that changes gradients in another process needs the loop.

    Raises:
        ConfigError: another one is asked for.
    """
    if not (attack.wraps and isinstance(attack, IsolatedAttack)):
        return engine
    if engine not in ("auto", "loop"):
        raise ConfigError(
            f"--executor must be auto or loop for {attack.told['class']} under --isolate, which "
            f"changes the gradient of every step in another process, got {engine}"
        )
    return "loop"


def taken(parts: list[Tensor], key: Key) -> tuple[Tensor, list[Tensor]]:
    """`ROOT` of the indices in these parts, or half of them if that is less; and what is left."""
    pool = torch.cat(parts)
    count = min(ROOT, len(pool) // 2)
    root = pool[key.permutation(len(pool))[:count].to(pool.device)]
    return root, [part[~torch.isin(part, root)] for part in parts]


def choose_device(name: str) -> torch.device:
    """The device of that name; on CUDA torch is told to be deterministic and to keep fp32 exact.

    Raises:
        Unavailable: CUDA is asked for and absent.
    """
    require("--device", name, name in ("auto", "cpu", "cuda"), "auto, cpu or cuda")
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise Unavailable("--device cuda needs a CUDA device, got none; use --device cpu")
    if name == "cpu" or not available:
        return torch.device("cpu")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    return torch.device("cuda")


def load_pool(dataset: str) -> Data:
    """The samples of a data set; those of the last two are kept.

    Raises:
        Unavailable: they cannot be had.
    """
    return _load(dataset, str(data_folder() or ""))


@lru_cache(maxsize=2)
def _load(dataset: str, folder: str) -> Data:
    source = registry.load("dataset", dataset)
    try:
        loaded: Data = ask(source, "load", Data, Path(folder) if folder else None)
    except ConfigError as error:  # its files are not here, or not as they should be
        raise Unavailable(str(error)) from error
    return loaded.named(canonical(dataset))


def canonical(dataset: str) -> str:
    """Return the data set as a resolved scenario writes it, with every parameter."""
    name = registry.split(dataset)[0]
    return registry.describe(name, registry.load("dataset", dataset))
