"""Population: the samples of the clients, and which clients the adversary owns.

A partition gives the parts of all clients as a list, or makes a client's part when it is read. In
the second case nothing here grows with the number of clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedbench.adversary.threat_model import MaliciousClients, malicious_clients
from fedbench.api import Traits, hooks
from fedbench.core.blame import ask
from fedbench.core.choices import Split
from fedbench.core.permutations import Permutation, distinct, permutation
from fedbench.core.rng import Key, Secret
from fedbench.data.datasets import Data
from fedbench.data.partitions import Parts
from fedbench.data.splits import OnDemand, cuts, dealt_samples, split_client, take_root
from fedbench.experiment.compatibility import Resolution
from fedbench.experiment.scenario import Scenario

Splits = tuple[Parts, Parts, Parts]  # that train, validate and test
MAX_SURVEYED_CLIENTS = 1000  # clients of a sample that stands for all of them


@dataclass(frozen=True, eq=False)
class HeldOutSamples:
    """Samples that validate and test clients who draw with replacement; no client trains on one."""

    validation: Tensor  # indices; none under a split without validation
    test: Tensor  # indices; none where the published test images test
    surveyed: list[int]  # benign clients, whose own test parts stand for those of all


@dataclass(frozen=True, eq=False)
class Population:
    """The ``N`` clients: their samples, and which of them the adversary owns."""

    data: Data  # pool of samples, on the device
    train: Parts
    validation: Parts  # empty ones under a split without validation
    test: Parts  # empty ones where the published test images test
    published: Tensor | None  # indices of the published test images if they test, else None
    root: Tensor  # indices of the server's root data; empty for defenses that need none
    malicious: MaliciousClients
    pseudonyms: Permutation  # numbers by which the defense knows the clients
    held_out: HeldOutSamples | None = None  # None where clients draw without replacement

    def sizes(self, ids: Sequence[int]) -> Tensor:
        """Return ``(n,)`` float64, number of training samples of these clients."""
        return torch.tensor([len(self.train[i]) for i in ids], dtype=torch.float64)

    @property
    def typical_sizes(self) -> list[int]:
        """Numbers of training samples of all clients, or of the `HeldOutSamples.surveyed`."""
        ids = self.held_out.surveyed if self.held_out else range(len(self.train))
        return [len(self.train[i]) for i in ids]

    def of_benign(self, parts: Parts) -> list[Tensor]:
        """Return the parts of the benign clients; ``parts`` has one for each client."""
        benign = ~self.malicious[torch.arange(len(parts))]
        return [parts[i] for i in benign.nonzero()[:, 0].tolist()]

    @property
    def validating(self) -> list[Tensor]:
        """Parts that validate: those of the benign clients, or what is held out for all."""
        return [self.held_out.validation] if self.held_out else self.of_benign(self.validation)

    @property
    def judged(self) -> list[Tensor]:
        """Parts on which models are judged: the test parts of the benign clients, one for each.

        Where the published test images test, they are the only part. Clients who draw with
        replacement are judged on all samples held out for their tests, each once.
        """
        if self.published is not None:
            return [self.published]
        return [self.held_out.test] if self.held_out else self.of_benign(self.test)

    @property
    def own_tests(self) -> list[Tensor] | None:
        """Test parts of benign clients, or of `HeldOutSamples.surveyed`; None if they have none.

        All of their samples are in `judged`.
        """
        if self.published is not None:
            return None
        if self.held_out is None:
            return self.judged
        return [self.test[i] for i in self.held_out.surveyed]


def populate(resolution: Resolution, data: Data, secret: Secret) -> Population:
    """Deal the samples to the clients, split each client's, and draw the malicious clients."""
    scenario = resolution.scenario
    assert scenario.data_seed is not None  # a resolved scenario has one
    dealt = Secret.of(scenario.data_seed, "data")
    count = dealt_samples(data, scenario.split, scenario.dataset)
    rooted = ask(resolution.plugins.defense, "traits", Traits).root
    malicious = malicious_clients(scenario.clients, scenario.malicious, secret.key("malicious"))
    device = data.y.device
    held_out = None
    if resolution.partition.with_replacement:
        pools, root = cut_pool(count, scenario.split, dealt, rooted)
        pools = (pools[0].to(device), pools[1].to(device), pools[2].to(device))
        parts = draw_parts(resolution, data, pools, dealt.key("partition"))
        held_out = HeldOutSamples(*pools[1:], survey(scenario, malicious, secret.key("survey")))
    else:
        parts, root = deal_parts(resolution, data, count, dealt, rooted)
    train, validation, test = parts
    published = None
    if scenario.split == "published":
        published = torch.arange(count, len(data), device=device)
    return Population(
        data=data,
        train=train,
        validation=validation,
        test=test,
        published=published,
        root=root.to(device),
        malicious=malicious,
        pseudonyms=permutation(secret.key("pseudonyms"), scenario.clients),
        held_out=held_out,
    )


def deal_parts(
    resolution: Resolution, data: Data, count: int, dealt: Secret, rooted: bool
) -> tuple[Splits, Tensor]:
    """Deal the first ``count`` samples, split each client's; return the parts, and root data."""
    scenario = resolution.scenario
    owner = None if data.owner is None else data.owner[:count]
    key = dealt.key("partition")
    labels = data.y[:count].cpu()
    parts = hooks.split(resolution.partition, labels, scenario.clients, data.classes, key, owner)
    device = data.y.device

    def split(i: int) -> tuple[Tensor, Tensor, Tensor]:
        return split_client(parts[i], dealt.key("split", i), scenario.split)

    def on_demand(kind: int) -> Parts:
        return OnDemand(len(parts), lambda i: split(i)[kind].to(device))

    train: Parts
    validation: Parts
    test: Parts
    if isinstance(parts, list):
        splits = [split(i) for i in range(len(parts))]
        train, validation, test = (
            [part.to(device) for part in kind] for kind in zip(*splits, strict=True)
        )
    else:
        train, validation, test = (on_demand(kind) for kind in range(3))
    root = torch.empty(0, dtype=torch.int64)
    if rooted and scenario.split == "per-client":
        root, validation = take_root(validation, dealt.key("root"))
    elif rooted:  # nobody has validation data: clients give training data away, but for one sample
        root, train = take_root(train, dealt.key("root"), left=1)
    return (train, validation, test), root


def cut_pool(
    count: int, split: Split, dealt: Secret, rooted: bool
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Cut ``count`` samples into those that train, validate and test, and draw the root data."""
    train, validation, test = split_client(torch.arange(count), dealt.key("pool"), split)
    root = torch.empty(0, dtype=torch.int64)
    if rooted and len(validation):
        root, (validation,) = take_root([validation], dealt.key("root"))
    elif rooted:
        root, (train,) = take_root([train], dealt.key("root"))
    return (train, validation, test), root


def draw_parts(
    resolution: Resolution, data: Data, pools: tuple[Tensor, Tensor, Tensor], key: Key
) -> Splits:
    """Return the parts of clients who draw with replacement, made when they are read.

    A client draws as many samples from each of the pools, by the same mix of classes. Of the draws
    from the first pool it takes those at the places that train, and so on: no random number
    decides on two samples.
    """
    scenario = resolution.scenario

    def parts(kind: int) -> Parts:
        pool = pools[kind]
        if not len(pool):
            return OnDemand(scenario.clients, lambda _: pool)
        labels = data.y[pool].cpu()
        drawn = hooks.split(resolution.partition, labels, scenario.clients, data.classes, key, None)

        def part(i: int) -> Tensor:
            rows = drawn[i]
            own = rows.tensor_split(cuts(len(rows), scenario.split))[kind]
            return pool[own.to(pool.device)]

        return OnDemand(scenario.clients, part)

    return parts(0), parts(1), parts(2)


def survey(scenario: Scenario, malicious: MaliciousClients, key: Key) -> list[int]:
    """Draw at most `MAX_SURVEYED_CLIENTS` benign clients, in the order of their ids."""
    benign = scenario.clients - malicious.count
    drawn = distinct(key, benign, min(MAX_SURVEYED_CLIENTS, benign))
    return malicious.ids(malicious.count + drawn)
