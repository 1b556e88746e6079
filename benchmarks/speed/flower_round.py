"""Rounds of Flower's simulation with clients that do nothing, timed; one line of JSON.

Clients make NumPy arrays of what they were sent and send these back; the strategy is its FedAvg,
without evaluation. ``--api message`` is the interface that its documentation recommends, ``numpy``
a `NumPyClient`, which much published code has. A client asks for one core of all that Ray finds
here, instead of the two that are the default, so as many work at once as there are cores. Telemetry
and Ray's usage report are off, and warnings are all that is logged. A round lasts from one call of
the strategy's first method to the next, so all that lies between is in it. The first one, in which
Ray starts its workers, is not timed.
"""

from __future__ import annotations

import logging
import os
from argparse import ArgumentParser
from dataclasses import dataclass, field
from typing import Any

import workload

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the behaviour that a warning announces
}


@dataclass
class Clock:
    """When rounds began, and how many clients answered in each."""

    starts: list[workload.Moment] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)


def by_messages(size: workload.Idling, rounds: int, clock: Clock) -> tuple[Any, Any]:
    """Server and client as functions of messages."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    class Timed(FedAvg):  # type: ignore[misc]
        def configure_train(self, *arguments: Any, **named: Any) -> Any:
            clock.starts.append(workload.Moment.now())
            return super().configure_train(*arguments, **named)

        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            replies = list(replies)
            clock.clients.append(sum(not reply.has_error() for reply in replies))
            return super().aggregate_train(server_round, replies)

    server, client = ServerApp(), ClientApp()

    @server.main()  # type: ignore[untyped-decorator]
    def serve(grid: Any, context: Any) -> None:
        strategy = Timed(
            fraction_train=size.cohort / size.clients,
            fraction_evaluate=0.0,
            min_available_nodes=size.clients,
        )
        start = ArrayRecord(list(size.network.weights().values()))
        strategy.start(grid=grid, initial_arrays=start, num_rounds=rounds)

    @client.train()  # type: ignore[untyped-decorator]
    def train(message: Any, context: Any) -> Any:
        arrays = message.content["arrays"].to_numpy_ndarrays()
        content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
        return Message(content=RecordDict(content), reply_to=message)

    return server, client


def by_arrays(size: workload.Idling, rounds: int, clock: Clock) -> tuple[Any, Any]:
    """Server and client as functions of NumPy arrays."""
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp
    from flwr.common import ndarrays_to_parameters
    from flwr.server import ServerAppComponents, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.serverapp import ServerApp

    class Timed(FedAvg):  # type: ignore[misc]
        def configure_fit(self, *arguments: Any, **named: Any) -> Any:
            clock.starts.append(workload.Moment.now())
            return super().configure_fit(*arguments, **named)

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            clock.clients.append(len(results))
            return super().aggregate_fit(server_round, results, failures)

    class Idle(NumPyClient):  # type: ignore[misc]
        def fit(self, parameters: Any, config: Any) -> Any:
            return parameters, 1, {}

    def serve(context: Any) -> Any:
        strategy = Timed(
            fraction_fit=size.cohort / size.clients,
            fraction_evaluate=0.0,
            min_available_clients=size.clients,
            initial_parameters=ndarrays_to_parameters(list(size.network.weights().values())),
        )
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    return ServerApp(server_fn=serve), ClientApp(client_fn=lambda context: Idle().to_client())


def main() -> None:
    parser = workload.options(ArgumentParser(description=__doc__))
    parser.add_argument("--api", choices=("message", "numpy"), default="message")
    given = parser.parse_args()
    os.environ |= QUIET  # before Flower and Ray are imported
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.WARNING)
    size = workload.Idling()
    clock = Clock()
    make = by_messages if given.api == "message" else by_arrays
    server, client = make(size, given.rounds + 2, clock)  # one to warm up, one whose start ends
    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=size.clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": cores, "logging_level": "warning"},
        },
    )
    workload.say(
        ("flwr", "ray", "numpy"),
        **{"precision": "fp32", "threads": 1, "processes": cores},
        clients=min(clock.clients),
        samples=0,
        parameters=sum(w.size for w in size.network.weights().values()),
        seconds=workload.between(clock.starts[1:])["seconds"],
        cpu=None,  # Ray's workers are not children of this process
        **{"loss": None, "accuracy": None},
    )


if __name__ == "__main__":
    main()
