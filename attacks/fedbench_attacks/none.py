"""The clean run, without an attack."""

from dataclasses import dataclass

from fedbench.api import Attack


@dataclass(frozen=True, kw_only=True)
class NoAttack(Attack):
    """Malicious clients behave like the others: the run that every attack is compared with."""
