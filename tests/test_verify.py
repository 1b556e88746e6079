"""Checks of rules of other projects: what holds passes, and a defect is found."""

import gc
import signal
import time

import pytest
import torch

from fedbench.core.errors import ConfigError, PluginError
from fedbench.verify import checks
from fedbench.verify.subjects import SUBJECTS, UNTRIED, Subject
from fedbench.verify.time_limit import time_limit


def test_a_rule_of_ours_passes_every_check() -> None:
    rule = checks.as_function("median")
    assert checks.order(rule) is None
    assert checks.shift(rule) is None
    assert checks.breakdown(rule, 5) is None
    assert checks.precision(rule) is None
    assert checks.agreement(rule, rule) is None


def test_a_defect_is_found_with_an_example() -> None:
    mean = checks.as_function("mean")
    assert checks.order(lambda x: x[0]) is not None
    assert checks.shift(lambda x: 2 * x.mean(dim=0)) is not None
    assert "2 of 11 rows at 1e+06" in str(checks.breakdown(mean, 2))
    assert "by the paper" in str(checks.agreement(mean, checks.as_function("median")))


def test_distances_of_whole_models_by_products_in_float32_are_found() -> None:
    def krum(x: torch.Tensor) -> torch.Tensor:
        squares = x.square().sum(dim=1)
        distances = squares[:, None] + squares - 2 * x @ x.T
        return x[distances.sort(dim=1).values[:, 1:8].sum(dim=1).argmin()]

    assert "10 of 10 trials whole models" in str(checks.precision(krum))
    assert checks.precision(checks.as_function("krum:f=2")) is None


def test_a_rule_that_raises_has_that_as_its_finding() -> None:
    subject = Subject("krum:f=9", "krum:f=2", "nowhere")
    assert all("raises" in found.detail for found in checks.verify(subject))


@pytest.mark.peers
def test_trimmed_means_of_three_projects_keep_every_property() -> None:
    texts = ("byzfl:TrMean,f=2", "byzpy:CoordinateWiseTrimmedMean,f=2")
    subjects = [s for package in SUBJECTS.values() for s in package if s.text in texts]
    assert len(subjects) == 2
    for subject in subjects:
        assert all(found.holds for found in checks.verify(subject)), subject


@pytest.mark.peers
def test_a_krum_of_n_minus_f_minus_1_neighbours_is_found() -> None:
    (krum,) = (s for s in SUBJECTS["byzfl"] if s.text.startswith("byzfl:Krum"))
    found = {finding.check: finding for finding in checks.verify(krum)}
    assert not found["agrees"].holds
    assert found["far rows"].holds


def test_a_rule_that_does_not_end_has_that_as_its_finding() -> None:
    with pytest.raises(TimeoutError, match=r"not ended in 0\.05 seconds"), time_limit(0.05):
        time.sleep(5)
    with time_limit(600):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)  # the alarm is off


def test_rows_on_which_ties_decide_say_nothing_of_a_definition() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return x[0]

    assert checks.agreement(checks.as_function("mean"), first) is None  # its order decides


def test_answers_that_a_seed_decides_are_found() -> None:
    median, other = (checks.as_function("median", seed=seed) for seed in (2, 3))
    assert checks.repeats(median, other) is None
    assert "under another seed" in str(checks.repeats(lambda x: x[0], lambda x: x[1]))


def test_every_rule_of_a_package_is_tried_or_says_why_not() -> None:
    from fedbench.peers.byzfl import ByzFLRule
    from fedbench.peers.byzpy import ByzPyRule
    from fedbench.peers.flower import FlowerRule

    for rule in (ByzFLRule, ByzPyRule, FlowerRule):
        tried = {s.text.partition(":")[2].partition(",")[0] for s in SUBJECTS[rule.package]}
        untried = set(UNTRIED[rule.package])
        assert tried | untried == set(rule.arguments)
        assert not tried & untried


@pytest.mark.peers
def test_a_rule_without_an_f_is_asked_outside_of_a_run() -> None:
    x = torch.tensor([[1.0], [2.0], [6.0]])
    for text in ("flwr:FedMedian", "byzfl:Median", "byzpy:CoordinateWiseMedian"):
        assert checks.as_function(text)(x).tolist() == [2.0]
    assert checks.as_function("flwr:FedTrimmedAvg,beta=0.4")(x).tolist() == [2.0]
    with pytest.raises(PluginError, match="f must be given outside of a run"):
        checks.as_function("byzfl:TrMean")(x)


@pytest.mark.peers
def test_bulyan_of_flower_leaves_the_garbage_of_this_process_alone() -> None:
    frozen = gc.get_freeze_count()
    ages = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            ages.append(gc.get_freeze_count())

    rule = checks.as_function("flwr:Bulyan,f=2")
    gc.callbacks.append(note)
    try:
        rule(checks.rows(0))
    finally:
        gc.callbacks.remove(note)
    assert len(ages) >= 7  # one for each selected row
    assert min(ages) > 10_000
    assert gc.get_freeze_count() == frozen


@pytest.mark.peers
@pytest.mark.parametrize("text", ["byzfl:CAF,f=2", "byzpy:CAF,f=2"])
def test_a_filter_that_far_rows_stop_is_found(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "MAX_SECONDS", 1)
    (subject,) = (s for package in SUBJECTS.values() for s in package if s.text == text)
    found = {finding.check: finding for finding in checks.verify(subject)}
    assert found["far rows"].detail == "does not end in 1 seconds"
    assert found["repeats"].holds == text.startswith("byzpy")  # it draws by one seed, always


def test_an_unknown_package_is_one_line() -> None:
    from fedbench.cli.verify import verify

    with pytest.raises(ConfigError, match="packages must be flwr, byzfl, byzpy, got 'pysyft'"):
        verify(None, ["pysyft"])  # type: ignore[arg-type]
