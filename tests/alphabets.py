"""Protocols that stand for the others of their alphabet, where a test has no time for all."""

from fedbench.core import registry

CHIEF = ("fedavg", "fedpm", "fsl", "fedmrn", "signsgd")  # these, where others send the same


def one_of_each_alphabet() -> list[str]:
    """Return the names of protocols, one for each alphabet that is sent."""
    names = [*CHIEF, *registry.names("protocol")]
    return list(
        {registry.plugin("protocol", name).sends: name for name in reversed(names)}.values()
    )
