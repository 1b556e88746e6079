"""The example that tunes with Optuna."""

import importlib.util
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "tune.py"


@pytest.mark.peers
def test_the_study_ends_with_a_rate_that_learns_and_a_test_accuracy() -> None:
    spec = importlib.util.spec_from_file_location("tune", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    tune = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tune)
    study = tune.main(trials=4)
    states = [trial.state.name for trial in study.trials]
    assert len(states) == 4
    assert set(states) <= {"COMPLETE", "PRUNED"}
    assert study.best_value > 0.15  # ten classes; 0.3 and more measured
    assert 0 < study.best_trial.user_attrs["test accuracy"] <= 1
