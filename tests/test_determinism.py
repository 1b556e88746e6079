"""Two runs on one device are equal bit for bit, and what makes them so costs no sorting."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedbench.core.scatter import scatter_distinct
from fedbench.core.settings import SettingsSnapshot
from fedbench.experiment.deployed import DeployedModel
from fedbench.experiment.scenario import Scenario
from fedbench.payload import Rankings
from fedbench.run import play

ACCELERATED = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
SCENARIO = Scenario(
    clients=8,
    per_round=6,
    rounds=2,
    epochs=1,
    eval_every=1,
    batch_size=16,
    model="micro",
    malicious=0.3,
)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ACCELERATED)])
@pytest.mark.parametrize(
    ("protocol", "attack"),
    [
        ("fedavg", "alie"),
        ("fsl", "rank-reversal"),
        pytest.param("fedpm", "none", marks=pytest.mark.slow),
    ],
)
def test_two_runs_are_equal_bit_for_bit(device: str, protocol: str, attack: str) -> None:
    scenario = SCENARIO.model_copy(update={"protocol": protocol, "attack": attack})
    runs = []
    for _ in range(2):
        models: list[DeployedModel] = []
        record = play(scenario, device=device, executor="stacked", deliver=models.append)
        runs.append((record.rounds, models[0].state_dict()))
    (rounds, weights), (again, others) = runs
    assert rounds == again
    assert all(torch.equal(x, others[name]) for name, x in weights.items())


class Modes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes whether torch is in its deterministic mode when it scatters."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scatter_" in str(func):
            self.seen.append(torch.are_deterministic_algorithms_enabled())
        return func(*args, **(kwargs or {}))


def test_distinct_places_are_not_sorted_and_the_mode_is_left_as_it_was() -> None:
    settings = SettingsSnapshot()
    try:
        torch.use_deterministic_algorithms(True, warn_only=True)
        with Modes() as modes:
            places = Rankings(torch.tensor([[2, 0, 1]], dtype=torch.int32), (3,)).values()
            with pytest.raises(RuntimeError):
                scatter_distinct(torch.zeros(2), 0, torch.tensor([5]), torch.ones(1))
        assert places.tolist() == [[1, 2, 0]]
        assert modes.seen == [False, False]
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        settings.restore()
