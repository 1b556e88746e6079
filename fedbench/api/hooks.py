"""Calls of plug-ins, whose errors are named and whose answers are checked.

An exception in a hook becomes a `PluginError`, one line that names plug-in, package, hook, round
and clients. Three things pass unchanged: Ctrl-C; a `ConfigError` of a hook that is called before
the first round, in which a plug-in tells the user what to change; a `PluginError` of another one.

The form is checked: types, shapes, counts. A number that is not finite is refused in images only;
elsewhere an adversary or a diverging model may produce one, and the record's flags report it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedbench.api import undeclared
from fedbench.api.undeclared import advised
from fedbench.core.blame import Hook, ask, line, shown
from fedbench.core.errors import IllegalPayloadError, PluginError
from fedbench.core.tiling import finite_rows
from fedbench.payload import FoldedMessages, KeptMessages, Payload, joined, require_same_form
from fedbench.payload.packets import Packet

if TYPE_CHECKING:
    from fedbench.api.attack import Attack, AttackView, Local
    from fedbench.api.defense import Defense, ServerView
    from fedbench.api.mechanism import Mechanism
    from fedbench.api.protocol import Grad, Gradient
    from fedbench.core.trees import Tree

Note = float | int | str | bool
MAX_NOTES = 100  # per round
MAX_NOTE_LENGTH = 1000  # per note
MAX_TRIALS = 10_000  # per round


@contextmanager
def in_round(step: int) -> Iterator[None]:
    """Add the round to errors of plug-ins that do not know it."""
    try:
        yield
    except PluginError as error:
        error.step = step if error.step is None else error.step
        raise


def _alike(answer: object, tensor: Tensor) -> bool:
    return isinstance(answer, Tensor) and answer.shape == tensor.shape


def _shapes(tree: Tree) -> dict[str, tuple[int, ...]]:
    return {name: tuple(leaf.shape) for name, leaf in tree.items()}


def broadcast(
    protocol: object, shared: object, state: Any, clients: Sequence[int], key: Any
) -> Payload:
    """Call `Protocol.broadcast` and require one message, or one for each client."""
    hook = Hook(protocol, "broadcast")
    sent: Payload = hook.returned(Payload, shared, state, clients, key)
    hook.must(len(sent) in (1, len(clients)), f"1 message, or {len(clients)}", len(sent))
    return sent


def message(
    protocol: Any, shared: object, updates: Tensor, *rest: Any
) -> tuple[Payload, Sequence[Any]]:
    """Call `Protocol.message` and require a message of its alphabet and a memory for each row."""
    hook = Hook(protocol, "message")
    n = len(updates)
    sent, remembered = hook.pair(shared, updates, *rest, remedy="write: return messages, memory")
    named = protocol.sends.__name__
    other = type(sent).__name__
    remedy = f"write sends = {other} into the class" if isinstance(sent, Payload) else ""
    hook.must(isinstance(sent, protocol.sends), f"{n} {named} and memories", sent, remedy)
    with hook:
        rows = len(sent)
        hook.must(rows == n, f"{n} {named}, one for each client", rows)
        try:
            sent.check_form()
        except IllegalPayloadError:
            require_legal([(hook, sent)])
    good = isinstance(remembered, Sequence) and len(remembered) == n
    hook.must(good, f"{n} memories", remembered)
    return sent, remembered


def server_step(protocol: Any, shared: Any, state: Any, aggregate: Tensor, *rest: Any) -> Any:
    """Call `Protocol.server_step`; an error says how wide messages are, if not as updates."""
    try:
        return ask(protocol, "server_step", object, shared, state, aggregate, *rest)
    except PluginError as error:
        d = protocol.trained(shared).d
        if len(aggregate) != d:
            error.problem += f"; its messages have {len(aggregate)} values, its updates {d}"
        raise


def on_updates(mechanism: Mechanism, updates: Tensor, *rest: Any) -> tuple[Tensor, Any]:
    """Call `Mechanism.on_updates` and require rows of the same shape, and the next state."""
    hook = Hook(mechanism, "on_updates")
    answer, after = hook.pair(updates, *rest, remedy="write: return updates, state")
    hook.must(_alike(answer, updates), f"updates {tuple(updates.shape)} and its state", answer)
    return answer, after


def on_payload(mechanism: Mechanism, payload: Payload, keys: Sequence[Any]) -> Payload:
    """Call `Mechanism.on_payload` and require as many messages of the same form."""
    hook = Hook(mechanism, "on_payload")
    answer: Payload = hook.returned(type(payload), payload, keys)
    good = answer.spec == payload.spec and len(answer) == len(payload)
    hook.must(good, f"{len(payload)} messages of the same form", answer)
    return answer


def on_aggregate(
    mechanism: Mechanism,
    mean: Tensor,
    received: Payload | FoldedMessages,
    view: ServerView,
    key: Any,
    state: Any,
) -> tuple[Tensor, Any]:
    """Call `Mechanism.on_aggregate` and require as many numbers, and the next state."""
    hook = Hook(mechanism, "on_aggregate", view.step)
    answer, after = hook.pair(
        mean, received, view, key, state, remedy="write: return aggregate, state"
    )
    hook.must(_alike(answer, mean), f"{tuple(mean.shape)} numbers and its state", answer)
    return answer, after


def split(
    partition: object, y: Tensor, clients: int, classes: int, key: Any, owner: Tensor | None
) -> Sequence[Tensor]:
    """Call `Partition.split` and require for every client rows of the pool, int64.

    Rows of a list must have one client. The parts of another sequence are checked when they are
    read.
    """
    hook = Hook(partition, "split")
    parts: Sequence[Tensor] = hook.returned(Sequence, y, clients, classes, key, owner)
    hook.must(len(parts) == clients, f"{clients} parts", parts)
    if not isinstance(parts, list):
        return _Rows(hook, parts, len(y))
    for part in parts:
        _must_be_indices(hook, part)
    rows = torch.cat(parts).cpu()
    _must_be_rows(hook, rows, len(y))
    often = torch.bincount(rows)
    hook.must(int(often.max()) == 1, "each row once", f"one {int(often.max())} times")
    return parts


def _must_be_indices(hook: Hook, part: object) -> None:
    good = isinstance(part, Tensor) and part.ndim == 1 and part.dtype == torch.int64
    hook.must(good, "parts (N,) of int64", part)


def _must_be_rows(hook: Hook, rows: Tensor, samples: int) -> None:
    good = len(rows) > 0 and int(rows.min()) >= 0 and int(rows.max()) < samples
    hook.must(good, f"rows from 0 to {samples - 1}", "others")


@dataclass(frozen=True, eq=False)
class _Rows(Sequence[Tensor]):
    """Parts that a partition makes when they are read, each checked then."""

    hook: Hook
    parts: Sequence[Tensor]
    samples: int

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, i: Any) -> Any:
        if not 0 <= i < len(self.parts):
            raise IndexError(i)
        with self.hook:
            part = self.parts[i]
        _must_be_indices(self.hook, part)
        _must_be_rows(self.hook, part, self.samples)
        return part


def poison(
    attack: Attack, images: Tensor, labels: Tensor, local: Local, client: int
) -> tuple[Tensor, Tensor]:
    """Call `Attack.poison` and require finite images of the same form, and labels that exist."""
    hook = Hook(attack, "poison", local.step, (client,))
    x, y = hook.pair(images, labels, local, remedy="write: return images, labels")
    _must_be_images(hook, x, images)
    hook.must(len(x) > 0, "at least one image", x)
    good = isinstance(y, Tensor) and y.dtype == labels.dtype and y.shape == x.shape[:1]
    hook.must(good and y.device == labels.device, f"labels ({len(x)},) of {labels.dtype}", y)
    low, high = (int(label) for label in y.aminmax())
    good = low >= 0 and high < local.classes
    hook.must(good, f"labels from 0 to {local.classes - 1}", (low, high))
    return x.detach(), y


def _must_be_images(hook: Hook, x: object, like: Tensor) -> None:
    sizes = ", ".join(map(str, like.shape[1:]))
    good = isinstance(x, Tensor) and x.ndim == like.ndim and x.shape[1:] == like.shape[1:]
    good = good and isinstance(x, Tensor) and (x.dtype, x.device) == (like.dtype, like.device)
    hook.must(good, f"images (N, {sizes}) of {like.dtype}", x)
    assert isinstance(x, Tensor)
    finite = bool(finite_rows(x.detach().flatten(1)).all())
    hook.must(finite, "finite images", "NaN or infinity")


def wrap_grad(attack: Attack, gradient: Gradient, *, local: Local, client: int) -> Grad:
    """Call `Attack.wrap_grad` and require a function that returns gradients of its tree."""
    hook = Hook(attack, "wrap_grad", local.step, (client,))
    theirs = hook(gradient, local)
    hook.must(callable(theirs), "a function (tree, x, y, key) -> gradient", theirs)

    def grad(tree: Tree, x: Tensor, y: Tensor, key: Any) -> Tree:
        with hook:
            out = theirs(tree, x, y, key)
        hook.must(is_tree(out), "a function whose answer is a dict of tensors", out)
        _must_have_shapes(hook, out, _shapes(tree), "a gradient with the shapes of the tree")
        return dict(out)

    return grad


def wrapped(wrap: Any, gradient: Gradient) -> Grad:
    """Return the clients' gradient; ``wrap`` may be a `wrap_grad` of a mechanism or an attack."""
    owner = getattr(wrap, "__self__", None)
    hook = Hook(owner, "wrap_grad")
    grad: Grad = wrap(gradient) if owner is None else hook(gradient)
    hook.must(callable(grad), "a function (tree, x, y, key) -> gradient", grad)
    return grad


def is_tree(x: object) -> bool:
    """Return True for a dict from names to tensors."""
    return isinstance(x, dict) and all(
        isinstance(name, str) and isinstance(leaf, Tensor) for name, leaf in x.items()
    )


def model(protocol: object, shapes: Mapping[str, tuple[int, ...]], *args: Any) -> Any:
    """Call `Protocol.model` and require one tree of the network's shapes, or a list of some."""
    hook = Hook(protocol, "model")
    answer = hook(*args)
    ensemble = answer if isinstance(answer, list) else [answer]
    good = len(ensemble) > 0 and all(map(is_tree, ensemble))
    hook.must(good, "a dict of tensors, or a list of some", answer)
    for tree in ensemble:
        _must_have_shapes(hook, tree, shapes, "the network's parameters")
    return answer


def _must_have_shapes(
    hook: Hook, tree: Tree, wanted: Mapping[str, tuple[int, ...]], requirement: str
) -> None:
    got = _shapes(tree)
    for name in (*wanted, *got):
        shapes = (got.get(name), wanted.get(name))
        hook.must(shapes[0] == shapes[1], requirement, (name, *shapes))


def trigger(
    attack: Attack, images: Tensor, labels: Tensor, classes: int, learned: Tensor | None
) -> tuple[Tensor, int] | None:
    """Call `Attack.trigger` and require None, or finite images and a label that exists."""
    hook = Hook(attack, "trigger")
    answer = hook(images.clone(), labels.clone(), *([learned] if attack.learns else []))
    if answer is None:
        return None
    hook.must(type(answer) is tuple and len(answer) == 2, "None or (images, label)", answer)
    x, label = answer
    _must_be_images(hook, x, images)
    good = isinstance(label, int) and not isinstance(label, bool) and 0 <= label < classes
    hook.must(good, f"a label from 0 to {classes - 1}", label)
    others = int((labels != label).sum())
    requirement = f"at most the {others} images that are not of the target class {label}"
    hook.must(len(x) <= others, requirement, f"{len(x)} images")
    return x, label


def craft(
    hook: Hook, view: AttackView, memory: Any, honest: Payload
) -> tuple[Payload | list[Packet], Any]:
    """Call `Attack.craft`; return a message for each of the hook's clients, and its memory.

    It must return messages of the form of ``honest``, whose numbers may be anything, NaN included,
    and for which `require_legal` is still to be asked; or a list of exactly `bytes`, for messages
    that a server should reject.
    """
    with advised(hook, view, undeclared.ATTACK, memory):
        sent, memory = hook.pair(view, memory, remedy="write: return messages, memory")
    if isinstance(sent, Payload):
        with hook:
            try:
                require_same_form(honest, sent)
            except IllegalPayloadError as error:
                remedy = f"view.own.nearest takes rows {tuple(view.own.values().shape)}"
                problem = f"must return legal messages: {line(str(error))}"
                raise hook.wrong(f"{problem}; {remedy}") from error
        graph = any(x.requires_grad for x in sent.travelling().values())
        hook.must(not graph, "messages without a graph (detach them)", "requires_grad")
        messages: Payload | list[Packet] = sent
    else:
        good = type(sent) is list and all(type(data) is bytes for data in sent)
        remedy = "view.own.nearest(rows) makes messages of rows" if _is_rows(sent) else ""
        hook.must(good, "(messages or a list of bytes, memory)", sent, remedy)
        messages = [Packet.raw(data) for data in sent]
    hook.must(len(messages) == len(hook.clients), f"{len(hook.clients)} messages", len(messages))
    return messages, memory


def require_legal(crafted: Sequence[tuple[Hook, Payload]]) -> Payload:
    """Return the messages of all calls as one payload, which is checked once: a check waits.

    `PluginError` names the first call whose messages are not legal.
    """
    whole = joined([messages for _, messages in crafted])
    try:
        whole.check()
    except IllegalPayloadError:
        for hook, messages in crafted:
            try:
                messages.check()
            except IllegalPayloadError as error:
                raise hook.wrong(f"must return legal messages: {line(str(error))}") from error
        raise
    return whole


def look(
    attack: Attack, view: AttackView, memory: Any
) -> tuple[Tensor | None, Any, dict[str, Note]]:
    """Call `Attack.look`; return a tensor or None, the attack's memory, and its notes."""
    hook = Hook(attack, "look", view.step)
    with advised(hook, view, undeclared.ATTACK, memory):
        looked, memory = hook.pair(view, memory, remedy="write: return rows, memory")
    hook.must(looked is None or isinstance(looked, Tensor), "(a tensor or None, memory)", looked)
    return looked, memory, legible_notes(hook, view.notes)


def _is_rows(x: object) -> bool:
    """Return whether something is a tensor, or a list of some."""
    parts = x if type(x) is list else [x]
    return len(parts) > 0 and all(isinstance(part, Tensor) for part in parts)


def aggregate(
    rule: Defense[Any],
    received: Payload | FoldedMessages | KeptMessages,
    state: Any,
    view: ServerView,
) -> tuple[Tensor, Any]:
    """Call `Defense.aggregate` and require ``(k,)`` real numbers, findings and the next state.

    Of sums it is `Defense.aggregate_sums`, of packets `Defense.aggregate_kept`.
    """
    names = {FoldedMessages: "aggregate_sums", KeptMessages: "aggregate_kept"}
    hook = Hook(rule, names.get(type(received), "aggregate"), view.step)
    with advised(hook, view, undeclared.DEFENSE, state):
        answer, after = hook.pair(received, state, view, remedy="write: return answer, state")
    form = received.take([]) if isinstance(received, Payload) else received.form
    k = len(received.span) if isinstance(received, KeptMessages) else form.values().shape[1]
    good = isinstance(answer, Tensor) and answer.shape == (k,) and answer.is_floating_point()
    hook.must(good, f"({k},) real numbers and its state", answer)
    hook.must(not answer.requires_grad, "numbers without a graph (detach them)", "requires_grad")
    rows = view.findings.kept
    good = isinstance(rows, Tensor) and rows.dtype == torch.bool and rows.shape == (len(received),)
    if not (rows is None or good):
        raise hook.wrong(f"must find {len(received)} bools of rows, got {shown(rows)}")
    legible_notes(hook, view.findings.notes)
    return answer, after


def legible_notes(hook: Hook, notes: Mapping[str, Note]) -> dict[str, Note]:
    """Return the notes of a round for JSON, which has no NaN; integers have at most 64 bits."""
    texts = f"texts of at most {MAX_NOTE_LENGTH} characters"
    requirement = f"note at most {MAX_NOTES} numbers, bools and {texts}"
    if not isinstance(notes, dict) or len(notes) > MAX_NOTES:
        raise hook.wrong(f"must {requirement}, got {shown(notes)}")
    for name, note in notes.items():
        if not (isinstance(name, str) and len(name) <= MAX_NOTE_LENGTH and _is_note(note)):
            raise hook.wrong(f"must {requirement}, got {shown((name, note))}")
    return {name: legible(note) for name, note in notes.items()}


def _is_note(note: object) -> bool:
    if isinstance(note, str):
        return len(note) <= MAX_NOTE_LENGTH
    return isinstance(note, float) or (isinstance(note, int) and abs(note) < 2**63)


def legible(note: Note) -> Note:
    """Return the note itself, or its text where it is a float that is not finite."""
    return str(note) if isinstance(note, float) and not math.isfinite(note) else note


def legible_trace(
    hook: Hook, trace: list[tuple[float, float]]
) -> list[tuple[float | None, float | None]]:
    """Return the trials of a search: pairs of numbers, None for those that are not finite."""
    requirement = f"trace at most {MAX_TRIALS} pairs of numbers"
    if not isinstance(trace, list) or len(trace) > MAX_TRIALS:
        raise hook.wrong(f"must {requirement}, got {shown(trace)}")
    for pair in trace:
        good = type(pair) is tuple and len(pair) == 2
        if not (good and all(isinstance(x, float | int) for x in pair)):
            raise hook.wrong(f"must {requirement}, got {shown(pair)}")

    def finite(x: float) -> float | None:
        return float(x) if math.isfinite(x) else None

    return [(finite(strength), finite(sought)) for strength, sought in trace]


def copied(plugin: object, hook: str, state: Any) -> Any:
    """Return a deep copy of a hook's memory."""
    try:
        return copy.deepcopy(state)
    except Exception as error:
        requirement = "remember what copy.deepcopy copies, plain data and tensors without a graph"
        raise Hook(plugin, hook).wrong(f"must {requirement}, got {shown(state)}") from error
