"""The environment of `make test-peers` holds the packages that its tests are about."""

from importlib.metadata import version

import pytest


@pytest.mark.peers
@pytest.mark.parametrize("package", ["flwr", "byzfl", "byzpy"])
def test_the_environment_has_the_packages_of_other_projects(package: str) -> None:
    assert version(package)
