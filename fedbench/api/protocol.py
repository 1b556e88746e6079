"""The contract of a federated protocol, and the events that are priced."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor

from fedbench.core.rng import Key
from fedbench.core.trees import Layout, Tree
from fedbench.models.network import Shared
from fedbench.payload import Payload

State = TypeVar("State")
Memory = dict[str, Tensor]  # one client's, from round to round
Keys = Sequence[Key]  # one for each client, and so in the next two
Memories = Sequence[Memory]
Messages = tuple[Payload, Memories]
Grad = Callable[[Tree, Tensor, Tensor, Key], Tree]  # (trained tree, x, y, key) -> gradient of it
# The same and the slope of a loss in the features (B, p) -> gradient of that loss.
Pull = Callable[[Tree, Tensor, Tensor, Key, Tensor], Tree]
Alphabets = tuple[type[Payload], ...]
# Like `Grad`, of several trees whose leaves have a leading dimension: the batch's mean losses.
Losses = Callable[[Tree, Tensor, Tensor, Key], Tensor]
Accuracy = Callable[[Tree | list[Tree]], float]  # of a model, or of an ensemble
Variants = dict[str, dict[str, Any]]  # parameters that each value of ``as=`` stands for


@dataclass(frozen=True, eq=False)
class LocalStep:
    """One local step of a client in a round.

    ``number`` and ``of`` are tensors without dimensions where clients with other numbers of steps
    train in lock step, or where the step is recorded; so nothing may branch on them.

    Args:
        x: Samples ``(B, *shape)``.
        y: Their labels ``(B,)``; -1 is padding.
        key: Source of the draws of this step.
        number: How many steps come before it.
        of: Number of the client's steps in the round.
    """

    x: Tensor
    y: Tensor
    key: Key
    number: int | Tensor
    of: int | Tensor

    def done(self) -> float | Tensor:
        """Return the share of the client's steps that are done with this one; 1 in the last."""
        of = self.of.to(torch.float64) if isinstance(self.of, Tensor) else self.of
        return (self.number + 1) / of


Carried = TypeVar("Carried")  # trees, in tuples and dictionaries
OneStep = Callable[[Carried, LocalStep], Carried]


@dataclass(frozen=True, eq=False)
class Batches(Sequence[tuple[Tensor, Tensor]]):
    """Samples ``(x, y)`` of every local step of a client in a round, and which round that is.

    A protocol trains by `scan`, which also works for clients that train in lock step and end at
    different times. One that goes through batches by itself is trained with clients of equally many
    steps only.

    Args:
        steps: The batches, so many as are known at once.
        round: The round's number, from 0, int64 without dimensions; it must not be read in Python,
            because clients of several runs, in different rounds, are trained in lock step.
        epochs: Number of epochs, each of equally many of the steps.
        weights: Names of the network's weights (`Network.weights`), in their order.
        statistics: Names of its running statistics, which no gradient trains.
    """

    steps: Sequence[tuple[Tensor, Tensor]]
    round: Tensor = field(default_factory=lambda: torch.tensor(0))
    epochs: int = 1
    weights: tuple[str, ...] = ()
    statistics: tuple[str, ...] = ()

    def scan(
        self, step: OneStep[Carried], start: Carried, key: Key, most: int | None = None
    ) -> Carried:
        """Return what is left of ``start`` after all steps, each of which changes it.

        Args:
            step: A pure function of what the step before returned, and of the step. The first one
                may add names to dictionaries; every other one keeps names, shapes and types.
            start: What the first step gets: tensors, in tuples and dictionaries.
            key: The client's; step ``i`` draws from ``key.fold("step", i)``.
            most: How many steps are taken at most, at least 1; those left out count nowhere.
        """
        carried = start
        count = len(self) if most is None else min(most, len(self))
        keys = key.fold("step").branches(range(count))
        for number in range(count):
            x, y = self[number]
            carried = step(carried, LocalStep(x, y, keys[number], number, count))
        return carried

    def weights_of(self, tree: Tree) -> Layout:
        """Return the layout of the weights alone of a tree that has them all."""
        return Layout.of({name: tuple(tree[name].shape) for name in self.weights})

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, step: Any) -> Any:
        return self.steps[step]


class DpEvent:
    """Event of releasing something: a frozen dataclass, equal and hashed by value.

    A mechanism of your own may use the events of `fedbench.privacy.events`, or bring one with an
    accountant of its own (``fedbench.privacy.accountants.price.register``).
    """


@dataclass(frozen=True)
class Release:
    """One client's part in a round, as far as its privacy depends on it, all public."""

    d: int  # symbols of a message
    size: int  # training samples of the client
    batch_size: int  # samples of a local step
    steps: int  # local steps of the client in a round
    clients: int  # all of them, N
    per_round: int  # clients that a round samples, on average if it does so by coins


@dataclass(frozen=True)
class Gradient:
    """The harness's gradient of the mean loss over a batch, to be called or wrapped.

    Args:
        batch: Gradient of the mean over the batch.
        each: Gradients of every sample by itself: a leading dimension of samples, in one pass.
        batch_size: Number of samples of a step, on average where they are drawn by coins.
        features: What the network's last layer gets of a batch, ``(B, p)``.
        pull: Gradient of a loss whose slope in these features is given.
        losses: Mean losses ``(p,)`` over the batch at ``p`` trees at once, whose leaves have a
            leading dimension, without a graph: for protocols that take no gradient. A gradient that
            a mechanism or an attack has wrapped has none: see `ZerothOrder`.
    """

    batch: Grad
    each: Grad
    batch_size: int
    features: Callable[[Tree, Tensor, Tensor, Key], Tensor] | None = None
    pull: Pull | None = None
    losses: Losses | None = None

    def __call__(self, tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
        """Return the gradient of the mean over the batch."""
        return self.batch(tree, x, y, key)

    def of(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Grad:
        """Return the gradient of a loss of the features ``(B, p)`` and the labels ``(B,)``.

        It must not branch on values, and take no notice of samples with the label -1 (padding). The
        gradient is 0 where the features do not depend on a parameter: all of it, running statistics
        aside, in a network of which only the last layer is trained.
        """
        features = self.features
        pull = self.pull
        assert features is not None, "clients in training have features"
        assert pull is not None

        def gradient(tree: Tree, x: Tensor, y: Tensor, key: Key) -> Tree:
            slope = torch.func.grad(loss)(features(tree, x, y, key), y)
            return pull(tree, x, y, key, slope)

        return gradient


class Protocol(ABC, Generic[State]):
    """A federated protocol, as in FedAvg, FSL, FedPM."""

    sends: ClassVar[type[Payload]]
    default_defense: ClassVar[str] = "mean"  # the mean of votes, then `server_step`, is the vote
    statistics: ClassVar[bool] = True  # can its messages carry those of batch normalisation?
    adapters: ClassVar[bool] = True  # can the weights be factors that are added to frozen ones?
    space: ClassVar[Literal["weights", "probabilities", "scores", "scalars"]] = "weights"
    # How `message` is made of ``updates``; a subclass that overrides `message` declares it anew.
    message_is: ClassVar[Literal["sample", "sign", "other"]] = "other"
    # Name in a client's memory of the row of `values` that the server last had from it: both ends
    # know it, so the harness writes it, when the message has arrived, and `message` does not.
    agreed: ClassVar[str | None] = None
    extra_gradients: ClassVar[int] = 0  # of a client in a round, beside one in each of its steps
    # What ``as=`` stands for, where the paper's text and its released code are two systems.
    variants: ClassVar[Variants] = {}

    @property
    def weighted(self) -> bool:
        """True if the mean weights clients by their size, False if all count the same."""
        return True

    @property
    def adds(self) -> bool:
        """True if the rule's answer is added to weights, which broadcasts begin with."""
        return False

    @property
    def votes(self) -> bool:
        """True if the default rule's mean, with `server_step`, is a vote."""
        return False

    @property
    def validates(self) -> bool:
        """True if it chooses something on validation data before it deploys a model (`settle`)."""
        return False

    def redraws(self) -> int | None:
        """Return how many test images one draw of the deployed model answers; None: all of them."""
        return None

    @abstractmethod
    def init(self, shared: Shared) -> State:
        """Return the server's state before the first round."""

    def trained(self, shared: Shared) -> Layout:
        """Return the layout of `local_update`'s tree; its ``d`` is the width of ``updates``."""
        return shared.layout

    def frozen(self, shared: Shared) -> Tree:
        """Return what clients regenerate from the seed and never train."""
        return {}

    def memory(self, shared: Shared) -> Memory:
        """Return a client's memory before its first round; later rounds keep the same names."""
        return {}

    def symbols_sent(self, shared: Shared) -> int:
        """Return the number of symbols of a message, of which a mechanism protects each."""
        return self.trained(shared).d

    def steps_taken(self, batches: int) -> int:
        """Return the steps that a client with so many batches in a round takes, at most these."""
        return batches

    def idle(self, shared: Shared, broadcast: Payload) -> Tensor:
        """Return the updates ``(r, d)`` of untrained clients, for each row of the broadcast."""
        return broadcast.values().new_zeros(len(broadcast), self.trained(shared).d)

    def event(self, release: Release) -> DpEvent | None:
        """Return what a message gives away, if the protocol adds noise of its own; else None."""
        return None

    @abstractmethod
    def broadcast(self, shared: Shared, state: State, clients: Sequence[int], key: Key) -> Payload:
        """Return the server's message: one row for all clients, or one per client."""

    def heard(self, state: State, clients: Sequence[int]) -> State:
        """Return the state of a server whose last `broadcast` has reached these clients.

        For servers that send a client what it missed. Most remember nothing of it.
        """
        return state

    @abstractmethod
    def receive(self, shared: Shared, broadcast: Payload) -> Tree:
        """Return the tree that a client trains, from the one row that it was sent."""

    def weights(self, trained: Tree, frozen: Tree, key: Key) -> Tree:
        """Return the network's parameters in one step, differentiable in ``trained``.

        Written for one client: no branch on values, every draw from ``key``.
        """
        return trained

    @abstractmethod
    def local_update(
        self, tree: Tree, batches: Batches, grad: Grad, key: Key, memory: Memory
    ) -> tuple[Tree, Memory]:
        """Train ONE client; the returned tree, flattened, is a row of ``updates``.

        The harness maps it over clients, one after the other or under ``vmap``. ``grad`` belongs to
        the harness, so that mechanisms and attacks can wrap it; for a running statistic it says how
        far to go down, whatever the learning rate (`Batches.statistics`). A label of -1 is padding.
        Steps are taken by `Batches.scan`.
        """

    @abstractmethod
    def message(self, shared: Shared, updates: Tensor, keys: Keys, memory: Memories) -> Messages:
        """Return the ``n`` messages of ``updates (n, d)``, and what each client remembers then.

        ``keys`` are the ones that `local_update` drew from.
        """

    @abstractmethod
    def server_step(
        self, shared: Shared, state: State, aggregate: Tensor, n: int, key: Key
    ) -> State:
        """Turn the estimated mean ``(k,)`` of ``n`` clients' `values` into the next state.

        The harness takes no step after a round with too few rows for the rule. Where a mechanism's
        noise is the server's it takes one after every round, and ``n`` is the expected number.
        """

    def settle(self, shared: Shared, state: State, accuracy: Accuracy) -> State:
        """Return the state with what is chosen on validation data, for protocols with `validates`.

        ``accuracy`` is that of a model on the validation parts of the benign clients. The state of
        the next round is not the settled one.
        """
        return state

    @abstractmethod
    def model(self, shared: Shared, state: State, key: Key) -> Tree | list[Tree]:
        """Return the deployed model; a list is an ensemble whose probabilities are averaged.

        Where `redraws` is a number, other keys give other draws.
        """

    @abstractmethod
    def model_bits(self, shared: Shared, state: State) -> int:
        """Return the bits that store the deployed model."""

    def local_model(self, shared: Shared, broadcast: Payload, sent: Payload) -> Tree | None:
        """Return the client's own network from one message; None where it holds none."""
        return None
