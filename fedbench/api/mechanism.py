"""The contract of a privacy mechanism, which protects the clients' data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedbench.api.defense import Defense, ServerView
from fedbench.api.protocol import DpEvent, Grad, Gradient, Protocol, Release
from fedbench.core.rng import Key
from fedbench.models.network import Shared
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """No privacy mechanism: nothing is clipped, nothing is added, nothing is claimed.

    Every hook is the identity; a mechanism overrides some of them. Its state goes in and comes out.
    A malicious client skips what runs on clients, unless the attack is ``none``: it cannot be made
    to add noise. An honest client's local noise protects it all the same.
    """

    unit: ClassVar[Literal["client", "example"]] = "client"  # whose data the guarantee covers
    central: ClassVar[bool] = False  # is the noise the server's, on the aggregate?
    knob: ClassVar[tuple[str, float, float] | None] = None  # a field, its weak and its strong end
    batches: ClassVar[Literal["shuffled", "poisson"]] = "shuffled"  # how clients draw samples

    @property
    def folds(self) -> bool:
        """True if it protects every client alone, whose messages may then be added up as they come.

        Then its state is the same after `on_updates`, and of ``received`` `on_aggregate` reads the
        number and the ``form``: these may be `FoldedMessages`.
        """
        mine = type(self)
        updates = mine.on_updates is Mechanism.on_updates
        return updates and mine.on_aggregate is Mechanism.on_aggregate

    def misfit(
        self, protocol: Protocol[Any], defense: Defense[Any], shared: Shared | None = None
    ) -> str | None:
        """Return why it was not proved for this combination, "needs ..."; None if it was.

        It is called twice: before the network is known, and with it.
        """
        return None

    def event(self, release: Release) -> DpEvent | None:
        """Return what a client gives away by taking part in a round; None without a claim.

        If `central`, what the round gives away of every client, whether it takes part or not.
        """
        return None

    def init(self) -> Any:
        """Return the state before the first round."""
        return None

    def message_bits(self) -> int:
        """Return the bits that a client sends for the mechanism's own sake."""
        return 0

    def wrap_grad(self, grad: Gradient) -> Grad:
        """Return the gradient with per-sample clipping and noise, for honest clients."""
        return grad

    def on_updates(
        self, updates: Tensor, reference: Tensor, keys: Sequence[Key], state: Any
    ) -> tuple[Tensor, Any]:
        """Return the clients' updates ``(n, d)`` before compression, protected.

        ``reference (n, d)`` holds the updates of clients that learned nothing (`Protocol.idle`).
        """
        return updates, state

    def on_payload(self, payload: Payload, keys: Sequence[Key]) -> Payload:
        """Return the clients' messages after compression, randomized."""
        return payload

    def on_aggregate(
        self, aggregate: Tensor, received: Payload, view: ServerView, key: Key, state: Any
    ) -> tuple[Tensor, Any]:
        """Return the aggregate ``(k,)`` with central noise, or without the mechanism's bias.

        ``received`` are the accepted messages that it was made of. If `central` it is called also
        when there were too few, with an aggregate of zeros.
        """
        return aggregate, state
