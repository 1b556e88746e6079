"""Contract tests that every plug-in must pass, ours and yours.

    from fedbench.testing import check_attack
    from fedbench_defenses.mean import Mean

    def test_my_attack_keeps_its_promises() -> None:
        check_attack(MyAttack(), Mean())

They raise AssertionError, or the `PluginError` that a run would end with, and need no test
framework.
"""

from fedbench.testing.contracts import NETWORK as NETWORK
from fedbench.testing.contracts import SIZES as SIZES
from fedbench.testing.contracts import assert_rounded_alike as assert_rounded_alike
from fedbench.testing.contracts import check_attack as check_attack
from fedbench.testing.contracts import check_payload as check_payload
from fedbench.testing.contracts import doubled as doubled
from fedbench.testing.contracts import example_clients as example_clients
from fedbench.testing.contracts import example_context as example_context
from fedbench.testing.contracts import example_payloads as example_payloads
from fedbench.testing.contracts import in_float64 as in_float64
from fedbench.testing.defenses import check_defense as check_defense
from fedbench.testing.defenses import check_prefilter as check_prefilter
from fedbench.testing.mechanisms import check_mechanism as check_mechanism
from fedbench.testing.own import check_dataset as check_dataset
from fedbench.testing.own import check_model as check_model
from fedbench.testing.own import check_partition as check_partition
from fedbench.testing.own import example_data as example_data
from fedbench.testing.protocols import check_protocol as check_protocol
