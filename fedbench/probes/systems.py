"""Every protocol under every mechanism, as far as they fit."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fedbench.core.errors import Incompatible

Progress = Callable[[str], None]
Result = TypeVar("Result")


def play_each(
    protocols: Sequence[str], mechanisms: Sequence[str], play: Callable[[str, str], Result]
) -> tuple[list[Result], list[str]]:
    """Play each system; return the results, and why some systems cannot exist.

    Raises:
        Incompatible: there is only one system and it cannot exist, or none of them can.
    """
    results, skipped = [], []
    for protocol in protocols:
        for mechanism in mechanisms:
            try:
                results.append(play(protocol, mechanism))
            except Incompatible as error:
                if len(protocols) * len(mechanisms) == 1:
                    raise
                skipped.append(f"{protocol} + {mechanism}: {error}")
    if not results:
        raise Incompatible(f"nothing that was named fits together: {skipped[0]}")
    return results, skipped
