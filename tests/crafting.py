"""Helpers that let an attack craft in a round written by hand, whose first rows collude."""

from typing import Any

from torch import Tensor

from fedbench.adversary.threat_model import AttackContext, attack_view, forge
from fedbench.api import Attack, AttackView
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors, Payload
from fedbench.testing import example_context
from fedbench_defenses.mean import Mean

M = 2


def rows(seed: int = 0, n: int = 9, d: int = 40) -> Tensor:
    """Rows of very different lengths about a mean."""
    key = Key(seed)
    x = key.normal(n, d) * (key.fold("scale").uniform(n)[:, None] * 4 + 0.2)
    return x + key.fold("mean").normal(d)


def round_of(x: Tensor | Payload, rule: Any = None, m: int = M) -> AttackContext:
    payload = FloatVectors(x) if isinstance(x, Tensor) else x
    return example_context(payload, rule or Mean(), range(m))


def crafted(attack: Attack, here: AttackContext, memory: Any = None) -> tuple[AttackView, Any]:
    """Return the view of the attack, and its message."""
    view = attack_view(attack, here)
    return view, attack.craft(view, memory)[0]


def sent(attack: Attack, here: AttackContext) -> tuple[AttackView, Tensor]:
    """Return the view of the attack, and the values of its message."""
    view, message = crafted(attack, here)
    return view, message.values()


def delivered(attack: Attack, here: AttackContext) -> Any:
    """All messages of the round, as the server decodes them."""
    received, _ = type(here.honest).decode(
        forge(attack, here, {}).among(here.honest), here.honest.spec
    )
    assert received is not None
    return received
