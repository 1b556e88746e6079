"""Contract tests of privacy mechanisms."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Mechanism, ServerView, Shared, hooks
from fedbench.api.protocol import DpEvent, Protocol
from fedbench.core import registry
from fedbench.core.blame import Hook, ask, title
from fedbench.core.rng import Key
from fedbench.executors.training import Loop, Schedule
from fedbench.payload import Payload, same
from fedbench.testing.classes import must_be, must_be_worded
from fedbench.testing.contracts import EXAMPLE_RELEASE, NETWORK, example_clients, plain_gradient


def check_mechanism(mechanism: Mechanism, protocol: Protocol[Any]) -> None:
    """Play a mechanism through one round of a protocol that it fits.

    A client's protection depends on its update and key alone, not on the others nor their order;
    the same keys give the same numbers; it writes into nothing that it was handed; an update that
    is not finite becomes a message that is; messages stay legal and of the same form; its event is
    data, equal for equal rounds.
    """
    must_be("mechanism", mechanism, "check_mechanism")
    must_be("protocol", protocol, "check_mechanism")
    must_be_worded(mechanism)
    shared = Shared(NETWORK, 3, torch.device("cpu"))
    event = ask(mechanism, "event", (DpEvent, type(None)), EXAMPLE_RELEASE)
    again = mechanism.event(EXAMPLE_RELEASE)
    by_value = type(event).__hash__ is not None and hash(event) == hash(again) and event == again
    advice = "write @dataclass(frozen=True) above its class, and tuples for lists"
    assert by_value, f"{title(mechanism)}: event must be hashed and compared by value; {advice}"
    average = registry.load("defense", protocol.default_defense)
    why = ask(mechanism, "misfit", (str, type(None)), protocol, average, shared)
    assert why is None, (
        f"check_mechanism must be given a protocol that fits: {title(mechanism)} {why}"
    )
    ask(mechanism, "message_bits", int)
    ask(mechanism, "init", object)
    _check_wrap_grad(mechanism)
    clients = example_clients(protocol, shared)
    schedule = Schedule(epochs=1, batch_size=4, coins=mechanism.batches == "poisson")
    wrapped = [replace(client, wrap_grad=mechanism.wrap_grad) for client in clients]
    with Hook(protocol, "local_update"):
        updates, memory = Loop(protocol, shared, schedule).train(wrapped)
    assert bool(torch.isfinite(updates).all())

    broadcast = protocol.broadcast(shared, protocol.init(shared), range(len(clients)), Key(7))
    reference = protocol.idle(shared, broadcast).expand(len(updates), -1)
    keys = [client.key.fold("privacy") for client in clients]
    protected = _updates(mechanism, updates, reference, keys)
    broken = updates.clone()
    broken[0, 0] = torch.nan
    if type(mechanism).on_updates is not Mechanism.on_updates:
        heard, _ = protocol.message(
            shared, _updates(mechanism, broken, reference, keys), [c.key for c in clients], memory
        )
        assert bool(heard.passes("finite").all()), "an update that is not finite comes through"

    payload, _ = protocol.message(shared, protected, [c.key for c in clients], memory)
    sent = hooks.on_payload(mechanism, payload, keys)
    sent.check()
    assert same(sent, mechanism.on_payload(payload, keys)), "not a function of its keys"
    _aggregate(mechanism, sent)


def _check_wrap_grad(mechanism: Mechanism) -> None:
    """Require of the wrapped gradient the shapes of the tree, where it only needs a batch."""
    tree = NETWORK.init(Key(3))
    hook = Hook(mechanism, "wrap_grad")
    grad = hooks.wrapped(mechanism.wrap_grad, plain_gradient(4))
    with hook:
        out = grad(tree, Key(5).normal(4, *NETWORK.image), torch.arange(4) % 3, Key(6))
    hook.must(hooks.is_tree(out), "a function whose answer is a dict of tensors", out)
    shapes = {name: tuple(leaf.shape) for name, leaf in out.items()}
    for name, form in NETWORK.shapes.items():
        hook.must(shapes.get(name) == form, f"a gradient of {name} {form}", shapes.get(name))


def _updates(
    mechanism: Mechanism, updates: Tensor, reference: Tensor, keys: Sequence[Key]
) -> Tensor:
    """Return `on_updates`, called three ways that must agree."""
    before = updates.clone()
    out, _ = hooks.on_updates(mechanism, updates, reference, keys, mechanism.init())
    assert torch.equal(updates.nan_to_num(), before.nan_to_num()), "input was written into"
    again, _ = mechanism.on_updates(updates, reference, keys, mechanism.init())
    torch.testing.assert_close(again, out, equal_nan=True, msg="not a function of its keys")
    order = [2, 0, 3, 1]
    turned, _ = mechanism.on_updates(
        updates[order], reference[order], [keys[i] for i in order], mechanism.init()
    )
    torch.testing.assert_close(
        turned, out[order], equal_nan=True, msg="a client's noise depends on other clients"
    )
    for row in range(len(updates)):
        alone, _ = mechanism.on_updates(
            updates[row : row + 1], reference[row : row + 1], [keys[row]], mechanism.init()
        )
        torch.testing.assert_close(
            alone, out[row : row + 1], equal_nan=True, msg="a client's protection depends on others"
        )
    return out


def _aggregate(mechanism: Mechanism, received: Payload) -> None:
    n = len(received)
    view = ServerView(torch.ones(n, dtype=torch.float64), received.take([0]), 0, Key(1), n)
    mean = received.values().double().mean(dim=0)
    before = mean.clone()
    state = mechanism.init()
    out, _ = hooks.on_aggregate(mechanism, mean, received, view, Key(2), copy.deepcopy(state))
    assert bool(torch.isfinite(out).all())
    assert torch.equal(mean, before), "the aggregate was written into"
    again, _ = mechanism.on_aggregate(mean, received, view, Key(2), copy.deepcopy(state))
    assert torch.equal(again, out), "not a function of its key"
    if mechanism.central:
        other, _ = mechanism.on_aggregate(mean, received, view, Key(3), copy.deepcopy(state))
        assert not torch.equal(other, out), "central noise must be fresh in every round"
