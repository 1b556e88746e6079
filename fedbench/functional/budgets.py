"""Epsilon of mechanisms, by the accountants that price a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from fedbench.api import Adjacency, Mechanism, Protocol, Sees
from fedbench.core import registry
from fedbench.core.errors import ConfigError, NoTheorem, require
from fedbench.functional.signatures import in_python
from fedbench.privacy.accountants import PrivacyCost
from fedbench.privacy.planning import PrivacyPlan, calibrated

Sampling = Literal["fixed", "poisson"]


def epsilon(
    mechanism: str | Mechanism | Protocol[Any],
    *,
    rounds: int,
    clients: int,
    per_round: int,
    delta: float = 1e-5,
    sees: Sees | None = None,
    participations: int | None = None,
    dim: int = 10_000,
    samples: int = 600,
    batch_size: int = 32,
    epochs: int = 1,
    malicious: float = 0.0,
    sampling: Sampling = "fixed",
    adjacency: Adjacency | None = None,
) -> float:
    """Return the epsilon, in nats, of a mechanism after some rounds: the least proved bound.

    >>> plan = {"rounds": 100, "clients": 1000, "per_round": 100}
    >>> round(epsilon("dp-fedavg:z=6.4,clip=1", **plan), 2)
    2.96

    Args:
        mechanism: A mechanism, or a protocol that adds noise itself: an instance, or its text.
        rounds: Rounds of the run.
        clients: All clients.
        per_round: Clients of a round, on average under Poisson sampling.
        delta: Probability with which the guarantee may fail.
        sees: Adversary's view: ``messages``, ``sum``, ``hidden-sum`` or ``model``. None: ``model``
            of a mechanism whose noise is the server's, ``messages`` of all others.
        participations: Rounds of the client that takes part most often; None: the mean.
        dim: Symbols of a message.
        samples: Training samples of a client.
        batch_size: Samples of a local step.
        epochs: Passes of a client over its samples in a round.
        malicious: Share of the clients that are malicious, and so add no noise.
        sampling: How a round's clients are drawn.
        adjacency: Relation of two data sets; None: the mechanism's own.

    Raises:
        ConfigError: a number is out of range, or the mechanism claims nothing.
        NoTheorem: nobody has proved a bound for this view or adjacency.
    """
    return privacy_cost(
        mechanism,
        sees=sees,
        rounds=rounds,
        clients=clients,
        per_round=per_round,
        delta=delta,
        participations=participations,
        dim=dim,
        samples=samples,
        batch_size=batch_size,
        epochs=epochs,
        malicious=malicious,
        sampling=sampling,
        adjacency=adjacency,
    ).epsilon


def privacy_cost(
    mechanism: str | Mechanism | Protocol[Any], *, sees: Sees | None = None, **plan: Any
) -> PrivacyCost:
    """Return epsilon with every bound that applies, the adjacency, and the sampler in words.

    Args:
        mechanism: A mechanism, or a protocol that adds noise itself: an instance, or its text.
        sees: Adversary's view, as in `epsilon`.
        plan: The other arguments of `epsilon`.

    Raises:
        ConfigError: a number is out of range, or the mechanism claims nothing.
        NoTheorem: nobody has proved a bound for this view or adjacency.
    """
    with _in_python():
        plugin = _loaded(mechanism)
        return PrivacyPlan(**plan).price(plugin, _view(plugin, sees))


def with_epsilon(
    mechanism: str | Mechanism | Protocol[Any],
    target: float,
    *,
    sees: Sees | None = None,
    **plan: Any,
) -> Any:
    """Return the mechanism with the least noise whose epsilon is at most ``target``, in nats.

    Args:
        mechanism: A mechanism, or a protocol that adds noise itself: an instance, or its text.
        target: Largest epsilon that is allowed.
        sees: Adversary's view, as in `epsilon`.
        plan: The other arguments of `epsilon`.

    Raises:
        ConfigError: no noise is enough, or the mechanism has no parameter for it.
        NoTheorem: nobody has proved a bound for this view or adjacency.
    """
    with _in_python():
        plugin = _loaded(mechanism)
        return calibrated(plugin, PrivacyPlan(**plan), _view(plugin, sees), target)


def _loaded(mechanism: Any) -> Any:
    if not isinstance(mechanism, str):
        good = isinstance(mechanism, Mechanism | Protocol)
        require("mechanism", mechanism, good, "a text, a mechanism, or a protocol with noise")
        return mechanism
    name = registry.split(mechanism)[0]
    protocols = name in registry.names("protocol") and name not in registry.names("mechanism")
    return registry.load("protocol" if protocols else "mechanism", mechanism)


def _view(plugin: Any, sees: Sees | None) -> Sees:
    return sees or ("model" if getattr(plugin, "central", False) else "messages")


@contextmanager
def _in_python() -> Iterator[None]:
    """Name arguments in errors as they are written in Python, not on the command line."""
    try:
        yield
    except NoTheorem as error:
        raise NoTheorem(in_python(str(error))) from error
    except ConfigError as error:
        raise type(error)(in_python(str(error))) from error
