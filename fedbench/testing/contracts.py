"""Contract tests of payloads and attacks, and the examples that all contract tests use."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils._pytree import tree_leaves

from fedbench import payload as alphabets
from fedbench.adversary import threat_model
from fedbench.adversary.looks import look
from fedbench.adversary.rehearsal import rehearsal
from fedbench.api import (
    Attack,
    Defense,
    Deployed,
    Local,
    Rehearsal,
    ServerView,
    Shared,
    hooks,
)
from fedbench.api.protocol import Gradient, Protocol, Release
from fedbench.core.rng import Key, Secret
from fedbench.core.trees import Layout, Tree
from fedbench.executors.training import Client, Loop, Schedule
from fedbench.models.network import ConvNet
from fedbench.payload import (
    FoldedMessages,
    KeptMessages,
    Patch,
    Payload,
    identical,
    ranking,
    same,
)
from fedbench.payload.levels import bucket_lengths, scales_of
from fedbench.payload.packets import Packet
from fedbench.payload.sparse import Alive
from fedbench.protocols.fedavg import FedAvg
from fedbench.testing.classes import (
    must_be,
    must_be_alphabets,
    must_name_fields,
    why_nothing_is_tried,
)

P = TypeVar("P", bound=Protocol[Any])

NETWORK = ConvNet((1, 4, 4), ((3,),), (5,), 3)  # 27, 60 and 15 weights
SIZES = (27, 60, 15)
EXAMPLE_RELEASE = Release(d=102, size=40, batch_size=8, steps=10, clients=500, per_round=200)


def example_payloads(n: int = 9) -> list[Payload]:
    """Return ``n`` messages of every alphabet, alike in each call, for the layers of `NETWORK`."""
    x = Key(0).fold("example").normal(n, sum(SIZES))
    best = tuple(size // 3 for size in SIZES)
    blank_top = alphabets.TopRankings(torch.zeros(n, sum(best), dtype=torch.int32), SIZES, best)
    index = torch.zeros(n, 20, dtype=torch.int64)
    layers = tuple((shape, ((1, 0, 1),)) for shape in ((9, 3), (20, 3), (5, 3)))
    blank_gated = alphabets.GatedVectors(x[:, :3] > 0, torch.zeros_like(x), x[:, :2], layers)
    blank_pruned = alphabets.PrunedVectors(x > 0, x, x[:, :2], 20, Alive.of(x[0] > 0))
    blank_sparse = alphabets.SparseVectors(index, torch.zeros(n, 20), x[:, :2], sum(SIZES))
    seeds = Key(0).fold("seeds").bits(n)[:, None]
    wide = torch.cat([x, x[:, :2]], dim=1)
    scales = x[:, :6].abs() + 0.1  # for blocks of at most 64 or 32, and for layers
    levels = torch.zeros(x.shape, dtype=torch.uint8)
    rotated = alphabets.RotatedLevels(levels, scales[:, :4], seeds, x[:, :0], 1.0, 4096)
    sharp = alphabets.RotatedLevels(levels, scales[:, :5], seeds, x[:, :2], 2.5, 32)
    whole = torch.zeros(x.shape, dtype=torch.int16)
    largest = scales_of(x, SIZES, "max")
    norms = scales_of(x, bucket_lengths(SIZES, 16), "l2")
    ternary = alphabets.Levels(whole, largest, x[:, :0], 1, SIZES, 0, "max", "entropy")
    buckets = alphabets.Levels(whole, norms, x[:, :2], 10, SIZES, 16, "l2", "elias")
    signed = alphabets.ScaledSigns(x > 0, scales[:, :3], x[:, :2], SIZES)
    picked = alphabets.SeededSparse(torch.zeros(n, 20), seeds, x[:, :2], sum(SIZES))
    remembered = x.flip(0)
    residues = alphabets.Residues(torch.zeros(x.shape, dtype=torch.int32), 2**12, 0)
    return [
        alphabets.FloatVectors(x),
        alphabets.SignBits(x >= 0),
        blank_sparse.nearest(wide),
        replace(blank_sparse, coded=True).nearest(wide),
        picked.nearest(wide),
        alphabets.SparsePatches(**vars(blank_sparse), remembered=remembered).nearest(wide),
        alphabets.SeededPatches(**vars(picked), remembered=remembered).nearest(wide),
        alphabets.CoordinatedPatches(x[:, :20], x[:, :2], sum(SIZES), 5, remembered=remembered),
        rotated.nearest(x),
        sharp.nearest(wide),
        ternary.nearest(x),
        buckets.nearest(wide),
        signed,
        alphabets.HalfVectors(x.to(torch.float16), "fp16"),
        alphabets.HalfVectors(x.to(torch.bfloat16), "bf16"),
        alphabets.Rankings(ranking(x, SIZES), SIZES),
        blank_top.nearest(x),
        alphabets.BinaryMasks(x > 0.5, x[:, :0]),
        alphabets.BinaryMasks(x > 0.5, x[:, :3], signed=True),
        blank_gated.nearest(torch.cat([x[:, 3:6] + 0.5, x, x[:, :2]], dim=1)),
        alphabets.MixtureVectors(x[:, :2].softmax(dim=1), x),
        blank_pruned.nearest(torch.cat([x, x, x[:, :2]], dim=1)),
        alphabets.NoiseMasks(x > 0.5, seeds, x[:, :0], "uniform", 0.1),
        alphabets.NoiseMasks(x > 0.5, seeds, x[:, :3], "gaussian", 0.1, signed=True),
        alphabets.Scalars(x, x.shape[1]),
        alphabets.Scalars(torch.zeros_like(x), 20).nearest(x),
        residues.nearest(1000 * x),
        replace(residues, modulus=9 * 5 + 1, coins=5).nearest(2 * x),
    ]


def check_payload(payload: Payload) -> None:
    """Check the laws of a payload: decode inverts encode, nearest inverts values."""
    payload.check()
    packets = payload.encode()
    assert len(packets) == len(payload)
    for packet in packets:
        assert 0 <= 8 * len(packet.data) - packet.bits < 8, "bits must fill the bytes"
    decoded, accepted = type(payload).decode(packets, payload.spec)
    assert bool(accepted.all()), "own bytes must decode"
    assert decoded is not None
    assert same(decoded, payload), "decode must invert encode"
    assert same(payload.nearest(payload.values()), payload), "nearest must invert values"
    _check_nobody(payload)
    rows = list(range(len(payload)))
    assert same(payload.put(rows, payload.take(rows)), payload), "put must invert take"
    for packet in packets[:2]:
        for wrong in {packet.data + b"\0", packet.data[:-1]} - {packet.data}:
            _, taken = payload.receive([type(packet).raw(wrong)], "none")
            assert not bool(taken[0]), "a message of another length must be rejected"


def _check_nobody(payload: Payload) -> None:
    """Check the laws of a payload without rows: a round can have no clients."""
    nobody = payload.take([])
    nobody.check()
    assert nobody.spec == payload.spec, "no rows must have the form of some"
    width = payload.values().shape[1]
    assert nobody.values().shape == (0, width), "no rows must have values of that width"
    assert nobody.opposite(nobody.values()).shape == (0, width)
    assert torch.equal(nobody.origin(), payload.origin()), "the origin belongs to the alphabet"
    assert identical(nobody.nearest(nobody.values()), nobody)
    assert identical(nobody.put([], nobody), nobody)
    assert nobody.encode() == []
    received, accepted = nobody.receive([], "range")
    assert identical(received, nobody)
    assert accepted.shape == nobody.in_range().shape == (0,)
    for name, header in payload.headers().items():
        assert nobody.headers()[name].shape == (0, *header.shape[1:])
    entropy = nobody.entropy()
    assert entropy is None or entropy.shape == (0,)


def view_of(payload: Payload, weights: Tensor | None = None, key: Key | None = None) -> ServerView:
    """Return a rule's view of a payload of `NETWORK`: nobody is malicious; row 0 is the root's."""
    n = len(payload)
    first = payload.take([0])
    weights = torch.ones(n, dtype=torch.float64) if weights is None else weights
    truth = torch.zeros(n, dtype=torch.bool)
    layout = Layout.of(NETWORK.shapes)
    view = ServerView(weights, first, 0, key or Key(2), layout=layout, root=first, truth=truth)
    return dataclasses.replace(view, network=NETWORK)


def example_context(
    payload: Payload, defense: Defense[Any], rows: Sequence[int] = (0, 1)
) -> threat_model.AttackContext:
    """Return a round in which the adversary owns these rows of ``payload``."""
    n = len(payload)
    owned = torch.tensor(list(rows), dtype=torch.long)
    view = view_of(payload, key=Key(4)).asked(truth=torch.isin(torch.arange(n), owned))

    def codec(rows: Sequence[int]) -> Callable[[Tensor], Payload]:
        return lambda x: payload.take([0] * len(x)).nearest(x)

    updates = payload.values().to(torch.float32)
    secret = Secret.of(6, "adversary")
    m = len(rows)
    return threat_model.AttackContext(
        honest=payload,
        updates=updates,
        idle=torch.zeros_like(updates),
        owned=threat_model.OwnedRows(owned, list(rows), range(m), m, secret),
        codec=codec,
        memories=[{} for _ in range(n)],
        server=None,
        defense=defense,
        defense_state=None,
        view=view,
        rehearse=lambda ids, alone, received, n: example_rehearsal(payload),
        recruits=payload.take(list(rows)),
    )


def example_rehearsal(payload: Payload) -> Rehearsal:
    """Return a rehearsal of a server that adds each answer to a linear model, in two classes."""
    width = payload.values().shape[1]
    sizes = list(getattr(payload, "sizes", [width]))
    sizes = sizes if sum(sizes) == width else [width]
    x = Key(7).normal(8, 1, 1, width)
    y = torch.arange(8) % 2

    def losses(model: Deployed, x: Tensor, y: Tensor) -> Tensor:
        tree = model if isinstance(model, dict) else model[0]
        score = x.flatten(1) @ torch.cat(list(tree.values()))
        return softplus(torch.where(y == 1, -score, score))

    def gradients(tree: Tree, x: Tensor, y: Tensor, draw: int) -> Tensor:
        leaves = {name: leaf.detach().requires_grad_() for name, leaf in tree.items()}
        with torch.enable_grad():
            loss = losses(leaves, x, y).mean()
        return torch.cat(torch.autograd.grad(loss, list(leaves.values())))

    def pixels(tree: Tree, x: Tensor, y: Tensor, draw: int) -> Tensor:
        images = x.detach().clone().requires_grad_()
        with torch.enable_grad():
            loss = losses(tree, images, y).mean()
        return torch.autograd.grad(loss, images)[0]

    def steps(deployed: bool, answers: Sequence[Tensor]) -> Tree:
        total = torch.stack([torch.zeros(width), *(a.to(torch.float32) for a in answers)]).sum(0)
        return {f"layer{i}": part for i, part in enumerate(torch.split(total, sizes))}

    names = tuple(f"layer{i}" for i in range(len(sizes)))
    return Rehearsal(x, y, 2, names, losses, gradients, pixels, steps)


def check_attack(attack: Attack, defense: Defense[Any], payloads: Sequence[Payload] = ()) -> None:
    """Check an attack on every alphabet that it and ``defense`` accept, one at least.

    It sends as many messages as it has clients, legal ones unless they are bytes; it rewrites its
    own rows and no others; it is shown copies; the same key gives the same messages; if it folds or
    keeps, it may be asked for them one at a time; and an adversary without clients changes nothing.
    If it trains, its images, labels and gradients have the form of those that it was given; what it
    learns is a finite tensor that keeps its form.

    Args:
        attack: The attack with its parameters.
        defense: The rule that it may query.
        payloads: Messages of other alphabets than ours, five rows or more of each.
    """
    must_be("attack", attack, "check_attack")
    must_be("defense", defense, "check_attack")
    must_be_alphabets(attack, "accepts", attack.accepts)
    must_name_fields(attack, "choices", attack.choices)
    for name, params in attack.variants.items():
        must_name_fields(attack, f"variants[{name!r}]", params)
    _check_training(attack)
    _check_learning(attack, defense)
    _check_trigger(attack)
    tried = [
        payload
        for payload in [*example_payloads(), *payloads]
        if isinstance(payload, attack.accepts) and not defense.refuses(type(payload))
    ]
    assert tried, why_nothing_is_tried("check_attack", "attack and rule both work on", payloads)
    for payload in tried:
        name = type(payload).__name__
        shown = payload.copied()
        context = example_context(payload, defense)
        forged = threat_model.forge(attack, context, {})
        assert forged.replaced.keys() <= {0, 1}, f"{name}: rewrote rows of others"
        assert identical(payload, shown), f"{name}: wrote into what it was shown"
        again = threat_model.forge(attack, context, {})
        assert again.replaced == forged.replaced, (
            f"{name}: not a function of its view; draw from view.key, remember in memory"
        )
        _check_folding(attack, context, forged.among(payload)[:2])
        nobody = example_context(payload, defense, rows=())
        unchanged = not threat_model.forge(attack, nobody, {}).replaced
        assert unchanged, f"{name}: an attack by nobody changed something"


def _check_folding(
    attack: Attack, context: threat_model.AttackContext, together: Sequence[Packet]
) -> None:
    """Ask an attack that folds or keeps for its two messages one at a time, once it has looked.

    They are the messages that it makes of rows, but for numbers that a sum rounds otherwise.
    """
    tier = threat_model.needs(attack).tier
    payload = context.honest
    asked = attack.folds or (attack.keeps and not isinstance(payload, Patch))
    if not asked or tier == "own" or threat_model.recruits(attack) != 0:
        return
    assert attack.looks or not attack.keeps, "an attack that keeps must override look"
    read = payload.take(context.benign if tier == "all" else context.owned.rows)
    sums = FoldedMessages.of(read, torch.ones(len(read), dtype=torch.float64)).with_squares(read)
    stored = KeptMessages(read.take([]), read.encode(), at_once=2) if attack.keeps else None
    learned = (context.updates - context.idle)[:2].mean(dim=0) if attack.reads_updates else None
    heard = (0, context.view.broadcast.take([0]))
    streamed = threat_model.Streamed(len(payload), 2, 0, sums, stored, learned, heard=heard)

    def part(rows: list[int]) -> threat_model.AttackContext:
        return replace(
            context,
            honest=payload.take(rows),
            updates=context.updates[rows],
            idle=context.idle[[row % len(context.idle) for row in rows]],
            owned=context.owned.part(rows),
            memories=[context.memories[row] for row in rows],
            view=context.view.take(torch.tensor(rows, dtype=torch.long)),
            streamed=replace(streamed, first=rows[0] if rows else 0),
        )

    if attack.looks:
        looked, _ = look(attack, part([]), {})
        streamed = replace(streamed, looked=looked)
    apart = []
    for row in range(2):
        one_row = part([row])
        apart += threat_model.forge(attack, one_row, {}).among(one_row.honest)
    singly, jointly = (type(payload).decode(made, payload.spec)[0] for made in (apart, together))
    assert singly is not None
    assert jointly is not None
    same = torch.isclose(singly.values().double(), jointly.values().double(), rtol=1e-3, atol=1e-4)
    name = type(payload).__name__
    assert float(same.double().mean()) > 0.99, (
        f"{name}: an attack that folds or keeps must make each message of sums or of its look, and "
        "of its own client's; draw the rows behind view.first, or leave folds and keeps out"
    )


def _check_learning(attack: Attack, defense: Defense[Any]) -> None:
    """Have it learn twice, train on what it learned, and stamp what it learned."""
    if not attack.learns:
        return
    shared = Shared(NETWORK, 3, torch.device("cpu"))
    protocol = FedAvg()
    client = example_clients(protocol, shared)[0]
    state = protocol.init(shared)
    sent = protocol.broadcast(shared, state, [0], Key(7))
    executor = Loop(protocol, shared, Schedule(epochs=1, batch_size=4))
    y = torch.arange(len(client.x)) % NETWORK.classes
    secret = Secret.of(8, "learning")
    lab = rehearsal(executor, state, sent, 0, 9, client.x, y, secret)
    payload = alphabets.FloatVectors(Key(0).normal(9, shared.layout.d))
    context = example_context(payload, defense, range(2))
    context = replace(context, rehearse=lambda ids, alone, received, n: replace(lab))
    first = threat_model.learn(attack, context, None)
    assert first is not None, "an attack that learns returns a tensor"
    before = first.clone()
    second = threat_model.learn(attack, context, first)
    assert second is not None
    assert torch.equal(first, before), "wrote into what it had learned"
    assert second.shape == first.shape, "what it learns keeps its form"
    again = threat_model.learn(attack, context, None)
    assert again is not None
    assert torch.equal(again, first), "not a function of its view"
    nobody = replace(context, owned=example_context(payload, defense, ()).owned)
    assert threat_model.learn(attack, nobody, first) is first, "nobody has learned something"
    local = Local(
        NETWORK.init(Key(3)), None, part=0, parts=1, step=0, key=Key(13), classes=NETWORK.classes
    )
    hooks.poison(attack, client.x, y, replace(local, learned=first), client=0)
    for learned in (None, first):
        hooks.trigger(attack, client.x, y, NETWORK.classes, learned)


def _check_trigger(attack: Attack) -> None:
    """Have it stamp test images, before it has learned anything."""
    if type(attack).trigger is Attack.trigger:
        return
    images = Key(14).normal(20, 1, 8, 8)
    hooks.trigger(attack, images, torch.arange(20) % 10, 10, None)


def _check_training(attack: Attack) -> None:
    """Poison a client's data and train two steps on them, as a run would."""
    if not attack.trains:
        return
    key = Key(13)
    tree = NETWORK.init(Key(3))
    public: dict[str, Any] = {"classes": 10, "steps": 2, "head": NETWORK.head_names}
    local = Local(tree, tree, part=0, parts=1, step=0, key=key, **public)
    images = key.fold("x").normal(10, *NETWORK.image)
    x, y = hooks.poison(attack, images, torch.arange(10), local, client=0)

    given = plain_gradient(len(x))
    grad = hooks.wrap_grad(attack, given, local=local, client=0)
    for _ in range(local.steps):
        grad(tree, x, y, key)


def plain_gradient(batch_size: int) -> Gradient:
    """Return a gradient of trees of `NETWORK` that is the tree plus 1, whatever the batch."""

    def batch(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: leaf + 1 for name, leaf in tree.items()}

    def each(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        return {name: (leaf + 1).expand(len(x), *leaf.shape) for name, leaf in tree.items()}

    def features(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tensor:
        return NETWORK.features(tree, x)

    def pull(tree: Tree, x: Tensor, y: Tensor, key: Key, slope: Tensor) -> Tree:
        assert slope.shape == features(tree, x, y, key).shape
        return batch(tree, x, y, key)

    return Gradient(batch, each, batch_size, features, pull)


def example_clients(protocol: Protocol[Any], shared: Shared, n: int = 4) -> list[Client]:
    """Return clients with 5 to 8 random images each, at the start of the first round."""
    broadcast = protocol.broadcast(shared, protocol.init(shared), range(n), Key(7))
    tree: Tree = protocol.receive(shared, broadcast.take([0]))
    clients = []
    for i in range(n):
        key = Key(8).fold(i)
        x = key.fold("x").normal(5 + i, 1, 4, 4, device=shared.device)
        y = (key.fold("y").uniform(5 + i, device=shared.device) * 3).long()
        clients.append(Client(tree=tree, x=x, y=y, key=key, memory=protocol.memory(shared)))
    return clients


def in_float64(protocol: P) -> P:
    """Return the protocol in double precision: its frozen network and what clients receive.

    Two ways of computing are compared so, with clients that are `doubled`: in float32 processors
    round a gradient differently, and a coin or a rank that it decides falls otherwise.
    """
    fields = {f.name: getattr(protocol, f.name) for f in dataclasses.fields(protocol)}  # type: ignore[arg-type]
    precise: P = _double(type(protocol))(**fields)
    return precise


@cache
def _double(kind: Any) -> Any:
    """Return one class for each class: clients of equal protocols train together."""

    def frozen(self: Any, shared: Shared) -> Tree:
        return _wide(kind.frozen(self, shared))

    def receive(self: Any, shared: Shared, broadcast: Payload) -> Tree:
        return _wide(kind.receive(self, shared, broadcast))

    made = type(f"{kind.__name__}64", (kind,), {"frozen": frozen, "receive": receive})
    return dataclasses.dataclass(frozen=True, kw_only=True)(made)


def doubled(clients: Sequence[Client]) -> list[Client]:
    """Return the clients with models, images and memories in double precision."""
    return [
        replace(c, tree=_wide(c.tree), memory=_wide(c.memory), x=_wide({"x": c.x})["x"])
        for c in clients
    ]


def _wide(tree: Tree) -> Tree:
    return {name: x.double() if x.is_floating_point() else x for name, x in tree.items()}


def assert_rounded_alike(ours: Any, theirs: Any, what: str = "two ways of computing") -> None:
    """Raise `AssertionError` unless tensors in float64 agree but for rounding, in every entry.

    A sum of ``k`` terms in another order differs by at most ``k 2**-53`` of the sum of their
    magnitudes. Networks of tests sum fewer than 2**14 terms in a layer and pass through fewer than
    2**9 layers and steps: that is 2**-30, about 1e-9, of the largest entry. A step that is missing,
    a sample twice or a bit that fell otherwise differ by far more.
    """
    pairs = zip(tree_leaves(ours), tree_leaves(theirs), strict=True)
    for mine, other in pairs:
        assert mine.shape == other.shape, f"{what} have other shapes"
        if not mine.is_floating_point():
            assert torch.equal(mine, other), f"{what} differ"
            continue
        assert mine.dtype == other.dtype == torch.float64, f"{what} are compared in float64"
        largest = float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(mine, other, rtol=0, atol=2.0**-30 * largest, msg=what)
