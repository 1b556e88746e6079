"""What holds for every test."""

import os
import time

import hypothesis
import pytest
import torch

# A second thread gains nothing at this size and waits for ever where the core is taken.
torch.set_num_threads(1)

# The first example of a process imports libraries and builds tables; machines are shared.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

# Which executor is faster here is for no test to find out; those of it switch it on.
os.environ["FEDBENCH_PROBE"] = "off"


@pytest.fixture
def still_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing but ``time.sleep`` take time, so that what is timed is the same on every machine.

    It does not wait either.
    """
    slept = [0.0]
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "perf_counter", lambda: sum(slept))
