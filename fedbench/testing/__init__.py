"""Contract tests that every plug-in must pass, ours and yours.

    from fedbench.testing import check_attack
    from fedbench_defenses.mean import Mean

    def test_my_attack_keeps_its_promises() -> None:
        check_attack(MyAttack(), Mean())

They raise AssertionError, or the `PluginError` that a run would end with, and need no test
framework.
"""

from fedbench.testing.contracts import (
    NETWORK,
    SIZES,
    assert_rounded_alike,
    check_attack,
    check_payload,
    check_protocol,
    doubled,
    example_clients,
    example_context,
    example_payloads,
    in_float64,
)
from fedbench.testing.defenses import check_defense, check_prefilter
from fedbench.testing.mechanisms import check_mechanism

__all__ = [
    "NETWORK",
    "SIZES",
    "assert_rounded_alike",
    "check_attack",
    "check_defense",
    "check_mechanism",
    "check_payload",
    "check_prefilter",
    "check_protocol",
    "doubled",
    "example_clients",
    "example_context",
    "example_payloads",
    "in_float64",
]
