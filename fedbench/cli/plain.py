"""Numbers for programs: JSON without what JSON does not have."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> Any:
    """Return the value with None for every float that is not finite, in dicts and lists too.

    >>> finite({"epsilon": float("inf"), "bounds": [1.5, float("nan")]})
    {'epsilon': None, 'bounds': [1.5, None]}
    """
    if isinstance(value, dict):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
