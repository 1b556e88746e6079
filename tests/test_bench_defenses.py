"""``fedbench bench defenses`` measures every rule that takes floats."""

import pytest

from fedbench.bench.defenses import measure
from fedbench.core import registry
from fedbench.payload import FloatVectors

RULES = [
    name
    for name in registry.names("defense")
    if not registry.load("defense", name).refuses(FloatVectors)
]


@pytest.mark.parametrize("name", RULES)
def test_every_rule_that_takes_floats_can_be_measured(name: str) -> None:
    """130 columns: more than the small call has that loads what a rule imports."""
    rule = registry.load("defense", name).declared(2)
    cost = measure(registry.describe(name, rule), 11, 130, 1, "cpu", 1)
    assert (cost.n, cost.k, len(cost.seconds)) == (11, 130, 1)
    assert min(*cost.seconds, *cost.mean, *cost.sort) > 0
