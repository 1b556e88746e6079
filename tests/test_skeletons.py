"""The contracts are wide enough: skeletons of protocols to come pass one round.

FedMRN has a noise seed per client, Top-k with error feedback remembers. They are tests of the house, not those protocols.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.api import Batches, Grad, Memory, Protocol, Shared
from fedbench.errors import IllegalPayloadError
from fedbench.layout import Tree
from fedbench.payload import Payload, SparseVectors, Spec
from fedbench.protocols.fedavg import DenseWeights
from fedbench.protocols.topk import TopK
from fedbench.rng import Key
from fedbench.run import World, play_round
from fedbench.scenario import Scenario
from fedbench.setup import Setup, prepare
from fedbench.testing import check_protocol
from fedbench.training import Schedule, executor
from fedbench.wire import Packet, join, split
from fedbench_attacks.dyn_opt import DynOpt
from fedbench_attacks.none import NoAttack
from fedbench_attacks.sign_flip import SignFlip
from fedbench_defenses.trimmed_mean import TrimmedMean

NOISE = 0.01


def noise(seed: Tensor, d: int) -> Tensor:
    """Uniform in [-NOISE, NOISE], the same numbers for client and server."""
    return (Key(int(seed) % 2**64).uniform(d) * 2 - 1) * NOISE


@dataclass(frozen=True, eq=False)
class NoiseMasks(Payload):
    """A mask ``(n, d)`` over the noise of a 64-bit seed."""

    mask: Tensor
    seeds: Tensor

    def check(self) -> None:
        if self.mask.dtype != torch.bool or self.seeds.shape != (len(self.mask), 1):
            raise IllegalPayloadError("NoiseMasks must be a mask and a seed a row")

    def _noise(self) -> Tensor:
        return torch.stack([noise(seed, self.mask.shape[1]) for seed in self.seeds])

    def values(self) -> Tensor:
        return self._noise() * self.mask

    def nearest(self, values: Tensor) -> Self:
        around = self._noise()
        return type(self)((values - around).abs() < values.abs(), self.seeds)

    def encode(self) -> list[Packet]:
        d = self.mask.shape[1]
        rows = zip(self.mask.numpy(), self.seeds.numpy(), strict=True)
        return [
            join([(seed.astype("<i8").view(np.uint8), 64), (np.packbits(mask), d)])
            for mask, seed in rows
        ]

    @classmethod
    def decode_row(cls, packet: Packet, spec: Spec) -> Self:
        (d,) = spec["mask"]
        seed, mask = split(packet, [64, d])
        bits = np.unpackbits(mask, count=d).astype(np.bool_)
        number = np.frombuffer(seed.tobytes(), "<i8").astype(np.int64)
        return cls(torch.from_numpy(bits)[None], torch.from_numpy(number)[None])


@dataclass(frozen=True, kw_only=True)
class MaskedNoise(DenseWeights):
    """FedMRN's shape: an update of masked noise, trained with draws from the client's key."""

    sends = NoiseMasks

    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        update, memory = super().local_update(tree, batches, grad, key, memory)
        shaken = {
            name: x * (1 + 0.1 * key.fold("progress", name).uniform(*x.shape))
            for name, x in update.items()
        }
        return shaken, memory

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        seeds = torch.stack([key.fold("noise").tensor() for key in keys])[:, None]
        blank = NoiseMasks(torch.zeros(updates.shape, dtype=torch.bool), seeds)
        return blank.nearest(updates), memory


@dataclass(frozen=True, kw_only=True)
class RememberingTopK(TopK):
    """Error feedback: what was not sent is added to the next update."""

    sends: ClassVar[type[Payload]] = SparseVectors
    k: float = 0.05

    def memory(self, shared: Shared) -> Memory:
        return {"residual": torch.zeros(shared.layout.d, device=shared.device)}

    def message(
        self, shared: Shared, updates: Tensor, keys: Sequence[Key], memory: Sequence[Memory]
    ) -> tuple[Payload, Sequence[Memory]]:
        wanted = updates + torch.stack([one["residual"] for one in memory])
        payload, _ = super().message(shared, wanted, keys, memory)
        left = wanted - payload.values()
        return payload, [{"residual": row} for row in left]


SKELETONS: list[Protocol[Any]] = [MaskedNoise(), RememberingTopK()]
IDS = ["per-client seeds", "error feedback"]


def game(protocol: Protocol[Any], **plugins: Any) -> Setup:
    """A small run of a protocol that is not installed."""
    scenario = Scenario(clients=12, per_round=7, epochs=1, malicious=0.3)
    setup = prepare(scenario, "cpu")
    parts = dataclasses.replace(setup.plugins, protocol=protocol, **plugins)
    engine = executor("loop", protocol, setup.shared, Schedule(1, 8))
    return dataclasses.replace(setup, plugins=parts, executor=engine)


@pytest.mark.parametrize("protocol", SKELETONS, ids=IDS)
def test_a_skeleton_keeps_the_promises_of_a_protocol(protocol: Protocol[Any]) -> None:
    check_protocol(protocol)


@pytest.mark.parametrize("attack", [NoAttack(), SignFlip(via="wire"), DynOpt(via="wire")])
@pytest.mark.parametrize("protocol", SKELETONS, ids=IDS)
def test_a_skeleton_passes_a_round_with_attack_and_defense(
    protocol: Protocol[Any], attack: Any
) -> None:
    setup = game(protocol, attack=attack, defense=TrimmedMean(f=2))
    world = World(protocol.init(setup.shared))
    start = world.state.clone()
    one = play_round(setup, world, 0)
    assert one.malicious > 0
    assert one.accepted == 7
    assert not one.skipped
    assert not torch.equal(world.state, start)


def test_each_client_has_its_own_noise_and_the_server_regenerates_it() -> None:
    setup = game(MaskedNoise())
    updates = torch.zeros(2, setup.shared.layout.d)
    payload, _ = MaskedNoise().message(setup.shared, updates, [Key(1), Key(2)], [{}, {}])
    decoded, _ = NoiseMasks.decode(payload.encode(), payload.spec)
    assert decoded is not None
    assert torch.equal(decoded.values(), payload.values())
    assert isinstance(payload, NoiseMasks)
    assert payload.seeds[0] != payload.seeds[1]


def test_memory_goes_from_round_to_round_of_the_same_client_only() -> None:
    setup = game(RememberingTopK())
    world = World(RememberingTopK().init(setup.shared))
    first = play_round(setup, world, 0)
    residual = {i: memory["residual"].clone() for i, memory in world.clients.items()}
    assert set(residual) == set(first.clients)
    assert all(float(r.abs().sum()) > 0 for r in residual.values())
    second = play_round(setup, world, 1)
    again, away = set(first.clients) & set(second.clients), set(first.clients) - set(second.clients)
    assert again
    assert away
    assert all(not torch.equal(world.clients[i]["residual"], residual[i]) for i in again)
    assert all(torch.equal(world.clients[i]["residual"], residual[i]) for i in away)


def test_what_is_not_sent_is_kept() -> None:
    shared = game(RememberingTopK()).shared
    updates = Key(0).normal(1, shared.layout.d)
    memory = [RememberingTopK().memory(shared)]
    payload, (kept,) = RememberingTopK().message(shared, updates, [Key(0)], memory)
    torch.testing.assert_close(payload.values()[0] + kept["residual"], updates[0])
