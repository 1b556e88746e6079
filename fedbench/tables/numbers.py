"""Numbers as text for people: shares in percent, bits, epsilons, counts."""

from collections.abc import Callable

NA = "n/a"


def percent(share: float) -> str:
    """Format a share in percent with one decimal and without the sign.

    >>> percent(0.1016), percent(-0.0001)
    ('10.2', '0.0')
    """
    return f"{round(100 * share, 1) + 0.0:.1f}"


def points(share: float) -> str:
    """Format a difference of two shares in percentage points, with its sign.

    >>> points(0.012), points(-0.3)
    ('+1.2', '-30.0')
    """
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def bits(x: float) -> str:
    """Format bits: two decimals; three below 2, where masks differ; two digits below 0.1.

    >>> bits(32.0003), bits(2), bits(0.9982), bits(0.00123)
    ('32.00', '2.00', '0.998', '0.0012')
    """
    if x >= 2:
        return f"{x:.2f}"
    return f"{x:.3f}" if x >= 0.1 or x == 0 else f"{x:.2g}"


def nats(x: float) -> str:
    """Format an epsilon: two decimals; two digits where these say 0.00, three where it is large.

    >>> nats(2.5), nats(836501.0), nats(0.0036), nats(0)
    ('2.50', '8.37e+05', '0.0036', '0.00')
    """
    if 0 < x < 0.005:  # 0.00 would be perfect privacy
        return f"{x:.2g}"
    return f"{x:.2f}" if x < 1000 else f"{x:.3g}"


def counted(n: int, thing: str) -> str:
    """Format a number of things, with the plural where it is due.

    >>> counted(1, "run"), counted(3, "run"), counted(9, "entry")
    ('1 run', '3 runs', '9 entries')
    """
    if n == 1:
        return f"{n} {thing}"
    return f"{n} {thing[:-1]}ies" if thing.endswith("y") else f"{n} {thing}s"


def or_none(x: float | None, text: Callable[[float], str]) -> str:
    """Format a number with ``text``, or return ``n/a`` if it was not measured."""
    return NA if x is None else text(x)
