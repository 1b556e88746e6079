"""All combinations of protocols and mechanisms that fit."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from fedbench.core.errors import Incompatible

Progress = Callable[[str], None]
Result = TypeVar("Result")


def play_each(
    protocols: Sequence[str], mechanisms: Sequence[str], play: Callable[[str, str], Result]
) -> tuple[list[Result], list[str]]:
    """Play each protocol under each mechanism; return the results, and why some do not fit.

    Raises:
        Incompatible: no combination fits.
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
