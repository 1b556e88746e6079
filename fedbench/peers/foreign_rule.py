"""Common part of the rules of other projects: rows go in about the middle of their alphabet."""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.rng import Key
from fedbench.payload import Payload, Spec
from fedbench.peers.packages import given, pinned_version, spelled

Arguments = dict[str, dict[str, str]]  # of every class: our parameter to its argument


@dataclass(frozen=True, kw_only=True)
class ForeignRule(Defense[Any]):
    """Rule of another project, which is asked for its answer and believed in nothing else.

    Args:
        name: Name of the rule's class in its project.
        version: Version of the project's package. By default the installed one; a record says it,
            and another one is refused.
    """

    package: ClassVar[str]
    arguments: ClassVar[Arguments]
    draws: ClassVar[tuple[str, ...]] = ()  # classes that draw random numbers
    remembers: ClassVar[dict[str, str]] = {}  # the attribute that goes from round to round

    name: str
    version: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        name = spelled("defense", self.package, self.name, tuple(self.arguments))
        object.__setattr__(self, "name", name)  # frozen: these two are normalised, not changed
        object.__setattr__(self, "version", pinned_version(self.package, self.version))
        self.constructor()

    def constructor(self) -> dict[str, Any]:
        """Return the arguments that were given; `ConfigError` for one that it does not take."""
        fields = {name: value for name, value in vars(self).items() if name not in _OURS}
        text = f"{self.package}:{self.name}"
        return given("defense", text, self.arguments[self.name], fields)

    @abstractmethod
    def made(self, n: int) -> Any:
        """Return the project's object for ``n`` rows."""

    @abstractmethod
    def answered(self, rule: Any, x: Tensor, view: ServerView) -> Tensor:
        """Return ``(k,)``, the object's answer to the rows ``x (n, k)`` float32."""

    def traits(self) -> Traits:
        return Traits(
            randomized=self.name in self.draws,
            history=self.name in self.remembers,
            shift=False,
            scale=False,
            sharp=False,
        )

    @property
    def lacks_f(self) -> bool:
        return "f" in self.arguments[self.name] and getattr(self, "f", None) is None

    def declared(self, f: int) -> Self:
        return self if getattr(self, "f", None) is not None else self.assuming(f)

    def assuming(self, f: int) -> Self:
        return replace(self, f=f) if "f" in self.arguments[self.name] else self  # type: ignore[call-arg]

    def tolerates(self, n: int) -> int:
        return 0  # nobody proved more to us

    def init(self, spec: Spec) -> Any:
        return None

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Tensor, Any]:
        origin = received.origin()
        x = received.values().to(torch.float32) - origin
        rule = self.made(len(x))
        memory = self.remembers.get(self.name)
        if memory is not None and state is not None:
            setattr(rule, memory, state.clone())
        with drawn_from(view.key):
            out = self.answered(rule, x, view)
        after = None if memory is None else getattr(rule, memory).clone()
        return out.detach().to(origin) + origin, after


_OURS = ("name", "version")


@contextmanager
def drawn_from(key: Key) -> Iterator[None]:
    """Have torch's global generator draw from ``key``, and as it did before afterwards."""
    seed = key.fold("foreign").seed
    assert isinstance(seed, int)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(torch.Generator().manual_seed(seed >> 1).get_state())
        yield
