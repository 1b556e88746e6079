"""Contract tests of protocols."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Batches, Memory, Shared, hooks
from fedbench.api.protocol import DpEvent, Protocol
from fedbench.core.blame import Hook, ask, title
from fedbench.core.errors import IllegalPayloadError
from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.executors.vmap import Padded
from fedbench.payload import Payload, bits_of
from fedbench.payload.packed_rows import PackedBits
from fedbench.payload.packets import Packet
from fedbench.privacy.clients import compress
from fedbench.testing.classes import must_be, must_send_one_alphabet
from fedbench.testing.contracts import (
    EXAMPLE_RELEASE,
    NETWORK,
    assert_rounded_alike,
    check_payload,
    doubled,
    example_clients,
    in_float64,
)


def check_protocol(protocol: Protocol[Any]) -> None:
    """Play a protocol through one round of `NETWORK`.

    In float64 the loop and the stacked executor agree but for rounding, in updates, in memories and
    in the messages made of them; a client's message depends on no other client's; messages keep the
    laws of payloads; the server's state goes in and comes out; hooks write into nothing that they
    were handed, and answer the same when they are asked again; the model computes.
    """
    must_be("protocol", protocol, "check_protocol")
    must_send_one_alphabet(protocol)
    shared = Shared(NETWORK, 3, torch.device("cpu"))
    _check_start(protocol, shared)
    clients = example_clients(protocol, shared)
    _check_local_update(protocol, shared, clients[0])
    schedule = Schedule(epochs=2, batch_size=4)
    keys = [client.key for client in clients]
    precise = in_float64(protocol)
    ways = []
    for engine in (Loop, Padded):
        with Hook(protocol, "local_update"):
            rows, memory = engine(precise, shared, schedule).train(doubled(clients))
        message, _ = Hook(protocol, "message").pair(shared, rows, keys, memory)
        ways.append((rows, memory, message.values().double()))
    assert_rounded_alike(ways[1], ways[0], "loop and stacked")

    updates, memory = Loop(protocol, shared, schedule).train(clients)
    payload, _ = hooks.message(protocol, shared, updates, keys, memory)
    _must_be_legal(protocol, "message", payload)
    check_payload(payload)
    _check_priced(protocol, shared, clients[0], payload)
    _check_messages(protocol, shared, updates, keys, memory)

    if protocol.agreed is not None:
        blank = protocol.memory(shared)
        assert protocol.agreed in blank, (
            f"{title(protocol)}: agreed must name a tensor of memory, got {protocol.agreed!r}"
        )
        agreed = blank[protocol.agreed]
        assert agreed.shape == payload.values().shape[1:], "what is agreed on is a row of values"

    state = protocol.init(shared)
    broadcast = hooks.broadcast(protocol, shared, state, range(len(clients)), Key(9))
    check_payload(broadcast)
    absent, forgotten = compress(protocol, shared, updates[:0], [], [], broadcast)
    assert (len(absent), len(forgotten)) == (0, 0), "a round without clients must have a form"
    assert isinstance(absent, protocol.sends)
    aggregate = payload.values().double().mean(dim=0)
    sizes = (aggregate, len(clients), Key(10))
    step = Hook(protocol, "server_step")
    after = step(shared, state, *sizes)
    step.must(after is not None, "the next state", after)
    _check_steps(protocol, shared, state, after, *sizes)
    state = after
    model = hooks.model(protocol, NETWORK.shapes, shared, state, Key(11))
    for tree in [model] if isinstance(model, dict) else model:
        assert bool(torch.isfinite(NETWORK.logits(tree, clients[0].x)).all())
    assert ask(protocol, "model_bits", int, shared, state) > 0


def _check_start(protocol: Protocol[Any], shared: Shared) -> None:
    """Require the forms of what both ends have before a client trains."""
    start = Hook(protocol, "init")
    state = start(shared)
    start.must(state is not None, "the server's state", state)
    ask(protocol, "trained", Layout, shared)
    for name in ("memory", "frozen"):
        hook = Hook(protocol, name)
        answer = hook(shared)
        hook.must(hooks.is_tree(answer), "a dict of tensors", answer, "write: return {}")
    sent = hooks.broadcast(protocol, shared, state, range(4), Key(7))
    _must_be_legal(protocol, "broadcast", sent)
    hook = Hook(protocol, "receive")
    tree = hook(shared, sent.take([0]))
    hook.must(hooks.is_tree(tree), "a dict of tensors, which a client trains", tree)
    wide = protocol.trained(shared).d
    idle = ask(protocol, "idle", Tensor, shared, sent)
    good = idle.shape == (len(sent), wide)
    Hook(protocol, "idle").must(good, f"updates ({len(sent)}, {wide})", idle)
    ask(protocol, "event", (DpEvent, type(None)), EXAMPLE_RELEASE)


def _check_local_update(protocol: Protocol[Any], shared: Shared, client: Client) -> None:
    """Require a tree of what is trained and a memory, of a client whose gradient is 0."""
    network = shared.network
    batches = Batches(
        [(client.x[:4], client.y[:4])],
        weights=network.weights,
        statistics=network.statistics,
    )

    def still(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: torch.zeros_like(leaf) for name, leaf in tree.items()}

    hook = Hook(protocol, "local_update")
    before = _copied([client.tree, client.memory])
    tree, memory = hook.pair(
        dict(client.tree),
        batches,
        still,
        client.key,
        dict(client.memory),
        remedy="write: return tree, memory",
    )
    left = _alike(before, [client.tree, client.memory])
    assert left, f"{title(protocol)}: local_update wrote into its tree or its memory"
    hook.must(hooks.is_tree(tree), "(a dict of tensors, memory)", tree)
    layout = protocol.trained(shared)
    wanted = dict(zip(layout.names, layout.shapes, strict=True))
    got = {name: tuple(leaf.shape) for name, leaf in tree.items()}
    for name, form in wanted.items():
        hook.must(got.get(name) == form, f"{name} of shape {form}", got.get(name))
    names = set(protocol.memory(shared))
    good = hooks.is_tree(memory) and names <= set(memory)
    requirement = "a memory of tensors, and the names that it began with among them"
    hook.must(good, requirement, memory, "write: return tree, memory")


def _check_priced(protocol: Protocol[Any], shared: Shared, client: Client, sent: Payload) -> None:
    """Require no more bits in a message, and no more gradients of a client, than are accounted."""
    symbols = ask(protocol, "symbols_sent", int, shared)
    bits = bits_of(sent).shape[1] if isinstance(sent, PackedBits) else 0
    requirement = f">= {bits}, the bits of a message, each of which costs privacy"
    Hook(protocol, "symbols_sent").must(symbols >= bits, requirement, symbols)

    steps = ask(protocol, "steps_taken", int, 5)
    hook = Hook(protocol, "steps_taken")
    hook.must(1 <= steps <= 5, "1 to 5 of 5 batches", steps)
    gradients = 0

    def counted(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        nonlocal gradients
        gradients += 1
        return {name: torch.zeros_like(leaf) for name, leaf in tree.items()}

    network = shared.network
    batches = Batches(
        [(client.x[:1], client.y[:1])] * 5,
        weights=network.weights,
        statistics=network.statistics,
    )
    protocol.local_update(dict(client.tree), batches, counted, client.key, dict(client.memory))
    least = gradients - protocol.extra_gradients
    requirement = f">= {least}, the gradients that 5 batches give, each of which costs privacy"
    hook.must(steps >= least, requirement, steps)


def _check_messages(
    protocol: Protocol[Any],
    shared: Shared,
    updates: Tensor,
    keys: Sequence[Key],
    memory: Sequence[Memory],
) -> None:
    """Require of each client alone the message that it sends among others, but for rounding."""
    given = [{"": updates}, *memory]
    before = _copied(given)
    together, _ = hooks.message(protocol, shared, updates, keys, memory)
    left = _alike(before, given)
    assert left, f"{title(protocol)}: message wrote into its updates or its memories"
    for row in range(len(updates)):
        only = slice(row, row + 1)
        alone, _ = hooks.message(protocol, shared, updates[only], keys[only], memory[only])
        mine = alone.values()[0].double()
        among = together.values()[row].double()
        rounded = torch.isclose(mine, among, rtol=1e-3, atol=1e-4).double().mean()
        assert float(rounded) > 0.99, f"{title(protocol)}: a client's message depends on others"


def _check_steps(
    protocol: Protocol[Any], shared: Shared, state: Any, after: Any, *given: Any
) -> None:
    """Require that a step leaves the state as it was, and that it can be taken again.

    States are compared by what the server sends.
    """

    def sent(state: Any) -> list[Packet]:
        return hooks.broadcast(protocol, shared, state, range(4), Key(9)).encode()

    name = title(protocol)
    before = given[0].clone()
    moved = sent(after)
    assert sent(after) == moved, f"{name}: broadcast is not a function of its key"
    first = sent(protocol.init(shared))
    assert sent(protocol.init(shared)) == first, (
        f"{name}: init is not a function of what it is handed"
    )
    assert sent(state) == first, f"{name}: server_step wrote into the state that it was handed"
    repeated = sent(protocol.server_step(shared, state, *given))
    assert torch.equal(given[0], before), f"{name}: server_step wrote into the aggregate"
    assert repeated == moved, f"{name}: server_step is not a function of what it is handed"


def _copied(given: Sequence[Mapping[str, Tensor]]) -> list[Tensor]:
    return [x.clone() for named in given for x in named.values()]


def _alike(before: Sequence[Tensor], given: Sequence[Mapping[str, Tensor]]) -> bool:
    """Return whether tensors that a hook was handed are still those that were ``before``."""
    return all(map(torch.equal, before, _copied(given)))


def _must_be_legal(protocol: Protocol[Any], name: str, sent: Payload) -> None:
    """Raise `PluginError` for messages that their alphabet does not allow."""
    try:
        sent.check()
    except IllegalPayloadError as error:
        raise Hook(protocol, name).wrong(f"must return legal messages: {error}") from error
