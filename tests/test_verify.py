"""Checks of rules of other projects: what holds passes, and a defect is found."""

import pytest
import torch

from fedbench.core.errors import ConfigError
from fedbench.verify import checks


def test_a_rule_of_ours_passes_every_check() -> None:
    rule = checks.asked("median")
    assert checks.order(rule) is None
    assert checks.shift(rule) is None
    assert checks.breakdown(rule, 5) is None
    assert checks.precision(rule) is None
    assert checks.agreement(rule, rule) is None


def test_a_defect_is_found_with_an_example() -> None:
    mean = checks.asked("mean")
    assert checks.order(lambda x: x[0]) is not None
    assert checks.shift(lambda x: 2 * x.mean(dim=0)) is not None
    assert "2 of 11 rows at 1e+06" in str(checks.breakdown(mean, 2))
    assert "by the paper" in str(checks.agreement(mean, checks.asked("median")))


def test_distances_of_whole_models_by_products_in_float32_are_found() -> None:
    def krum(x: torch.Tensor) -> torch.Tensor:
        squares = x.square().sum(dim=1)
        distances = squares[:, None] + squares - 2 * x @ x.T
        return x[distances.sort(dim=1).values[:, 1:8].sum(dim=1).argmin()]

    assert "10 of 10 trials whole models" in str(checks.precision(krum))
    assert checks.precision(checks.asked("krum:f=2")) is None


def test_a_rule_that_raises_has_that_as_its_finding() -> None:
    subject = checks.Subject("krum:f=9", "krum:f=2", "nowhere")
    assert all("raises" in found.detail for found in checks.verify(subject))


@pytest.mark.peers
def test_trimmed_means_of_three_projects_keep_every_property() -> None:
    texts = ("byzfl:TrMean,f=2", "byzpy:CoordinateWiseTrimmedMean,f=2")
    subjects = [s for package in checks.SUBJECTS.values() for s in package if s.text in texts]
    assert len(subjects) == 2
    for subject in subjects:
        assert all(found.holds for found in checks.verify(subject)), subject


@pytest.mark.peers
def test_a_krum_of_n_minus_f_minus_1_neighbours_is_found() -> None:
    (krum,) = (s for s in checks.SUBJECTS["byzfl"] if s.text.startswith("byzfl:Krum"))
    found = {finding.check: finding for finding in checks.verify(krum)}
    assert not found["agrees"].holds
    assert found["far rows"].holds


def test_an_unknown_package_is_one_line() -> None:
    from fedbench.cli.verify import verify

    with pytest.raises(ConfigError, match="packages must be flwr, byzfl, byzpy, got 'pysyft'"):
        verify(None, ["pysyft"])  # type: ignore[arg-type]
