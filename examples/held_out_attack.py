# salt: 79fa28e636a963874dc08c766ec27c3241bbec4f4dbe25ee67a8159ae765b506
"""Example of a held-out attack: a file with a class ``HeldOut``, which is committed to.

It is here to show the way of such a file (leaderboards/README.md), and nobody tuned it.
"""

from dataclasses import dataclass
from typing import Any

from fedbench.api import Attack, AttackView
from fedbench.payload import Payload


@dataclass(frozen=True, kw_only=True)
class HeldOut(Attack):
    """Send the honest message, turned round and three times as long.

    References:
        None: an example.
    """

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Return the turned messages."""
        return view.own.nearest(-3 * view.own.values()), memory
