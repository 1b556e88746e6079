"""Rounds in which nobody came, all are malicious or one client is alone, and runs that diverge."""

import pytest

from fedbench.core import registry
from fedbench.experiment.evaluation import evaluate
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.run import play, play_round

PROTOCOLS = registry.names("protocol")
SMALL = Scenario(
    model="micro", clients=30, per_round=1, rounds=100, epochs=1, batch_size=64, partition="iid"
)


def begun(protocol: str, **fields: object) -> tuple[Setup, RunState]:
    scenario = SMALL.model_copy(update={"protocol": protocol, "attack": "sign-flip", **fields})
    setup = prepare(scenario, "cpu", "loop")
    return setup, RunState(
        setup.plugins.protocol.init(setup.shared), mechanism=setup.plugins.mechanism.init()
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rounds_of_nobody_of_one_and_of_the_malicious_alone_are_played(protocol: str) -> None:
    setup, state = begun(protocol, sampling="poisson", malicious=0.5)
    cohorts = [setup.population.malicious[setup.sample(step)].tolist() for step in range(100)]
    for cohort in ([], [True], [True, True], [False]):
        played = play_round(setup, state, cohorts.index(cohort))
        assert (len(played.clients), played.malicious) == (len(cohort), sum(cohort))
        assert played.skipped == (not cohort)
        assert bool(played.uplink_bits) == bool(cohort)
    assert 0 <= evaluate(setup, state.server, 0).accuracy <= 1


DIVERGED = "the deployed model's scores are not finite: such images count as wrong"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_run_that_diverges_is_scored_and_says_so(protocol: str) -> None:
    few = {"clients": 30, "per_round": 6, "malicious": 0.5, "rounds": 2, "local_models": True}
    for checks in ("none", "finite"):  # what is finite in a message may not be so in the model
        fields = few | {"protocol": protocol, "attack": "sign-flip:scale=1e38", "defense": "mean"}
        scenario = SMALL.model_copy(update=fields | {"server_checks": checks})
        record = play(scenario, device="cpu", executor="loop")
        assert (DIVERGED in record.flags) == (record.result.loss is None)
        if protocol in ("fedavg", "fedmog") and checks == "none":
            assert (DIVERGED in record.flags, record.result.accuracy) == (True, 0)
