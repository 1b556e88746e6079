"""What protects the clients' data: the privacy mechanism."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from fedbench.api.defense import Defense, ServerView
from fedbench.api.event import DpEvent, Release
from fedbench.api.protocol import Grad, Gradient, Protocol
from fedbench.core.rng import Key
from fedbench.models.network import Shared
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """No privacy mechanism: nothing is clipped, nothing is added, nothing is claimed.

    Every hook is the identity; a mechanism overrides some of them. Its state goes in and comes out.
    What runs on a client is skipped by a malicious one, unless the attack is ``none``: nobody can
    make it add noise. An honest client's local noise protects it all the same.
    """

    unit: ClassVar[Literal["client", "example"]] = "client"  # whose data the guarantee covers
    central: ClassVar[bool] = False  # is the noise the server's, on the aggregate?
    knob: ClassVar[tuple[str, float, float] | None] = None  # a field, its weak and its strong end
    batches: ClassVar[Literal["shuffled", "poisson"]] = "shuffled"  # how clients draw samples

    def misfit(
        self, protocol: Protocol[Any], defense: Defense[Any], shared: Shared | None = None
    ) -> str | None:
        """Why it was not proved for this combination, "needs ..."; None if it was.

        Asked twice: before the network is known, and with it.
        """
        return None

    def event(self, release: Release) -> DpEvent | None:
        """What a client that takes part in a round gives away; None without a claim.

        If `central`, what the round gives away of every client, whether it takes part or not.
        """
        return None

    def init(self) -> Any:
        """The state before the first round."""
        return None

    def message_bits(self) -> int:
        """What a client sends for the mechanism's own sake, in bits."""
        return 0

    def wrap_grad(self, grad: Gradient) -> Grad:
        """Example level: per-sample clipping and noise in an honest client's local training."""
        return grad

    def on_updates(
        self, updates: Tensor, reference: Tensor, keys: Sequence[Key], state: Any
    ) -> tuple[Tensor, Any]:
        """On the clients, before compression: ``(n, d)``.

        ``reference (n, d)`` is what clients that learned nothing would return (`Protocol.idle`).
        """
        return updates, state

    def on_payload(self, payload: Payload, keys: Sequence[Key]) -> Payload:
        """On the clients, after compression: randomized response."""
        return payload

    def on_aggregate(
        self, aggregate: Tensor, received: Payload, view: ServerView, key: Key, state: Any
    ) -> tuple[Tensor, Any]:
        """On the server: central noise ``(k,)``, or what takes the mechanism's bias away.

        ``received`` are the accepted messages that it was made of. If `central` also when there
        were too few, with an aggregate of zeros.
        """
        return aggregate, state
