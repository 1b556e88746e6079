"""Connection to a Ray cluster, and the data sets in its object store."""

import dataclasses
import logging
import os
import platform
import socket
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fedbench.core.errors import ConfigError
from fedbench.core.threads import available_cores
from fedbench.data.datasets import Data

TASK_RETRIES = 3  # of Ray itself, for a task whose process or node was lost
MAX_ANSWER_SECONDS = 10.0  # seconds for a cluster's machine to answer


def imported(option: str) -> Any:
    """Return Ray, or raise `ConfigError` that this ``option`` needs it."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # no dozens of lines about a lost node
    os.environ.setdefault("RAY_task_oom_retries", "0")  # a run tries with fewer clients at once
    # answers that were read are deleted at once; by default a second later, in which 100 MiB come
    os.environ.setdefault("RAY_free_objects_period_milliseconds", "50")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"{option} needs Ray, got {error}; run pip install '.[ray]' in a clone"
        ) from error
    return ray


def address_of(given: str | None = None) -> str:
    """Return the address of the cluster: this one, that of ``RAY_ADDRESS``, or ``local``."""
    return given or os.environ.get("RAY_ADDRESS") or "local"


def connect(ray: Any, address: str, option: str) -> None:
    """Join the cluster, or start one here; `ConfigError` about the ``option`` if that fails."""
    new = {"num_cpus": available_cores(), "include_dashboard": False} if address == "local" else {}
    require_reachable(address, option)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **new)
    except (OSError, ValueError, RuntimeError, ray.exceptions.RayError) as error:
        raise _absent(address, option, error) from error


def require_reachable(address: str, option: str) -> None:
    """Raise `ConfigError` unless something answers there: Ray itself would wait for minutes."""
    try:
        host, _, port = address.removeprefix("ray://").rpartition(":")
        if host and port.isdigit():
            socket.create_connection((host, int(port)), MAX_ANSWER_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise _absent(address, option, error) from error


def _absent(address: str, option: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{option} must be of a Ray cluster that runs and has this machine, got {address!r} "
        f"({first_line(error.__cause__ or error)}); start it: ray start --head"
    )


def places(resources: Mapping[str, float], cpus: int, gpus: float) -> int:
    """Return how many tasks a node holds, each with so much; a share is of one GPU, never of two.

    >>> places({"CPU": 8.0, "GPU": 2.0}, 1, 0.4)
    4
    """
    cores = int(resources.get("CPU", 0.0) // cpus)
    shares = int(resources.get("GPU", 0.0)) * int(1 / gpus + 1e-9) if gpus else cores
    return min(cores, shares)


def places_of(ray: Any, cpus: int, gpus: float) -> int:
    """Return the number of such tasks that all nodes of the cluster hold together."""
    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return sum(places(resources, cpus, gpus) for resources in alive)


def arrays_of(data: Data) -> dict[str, Any]:
    """Return data as NumPy arrays, which a node stores once and its workers map without a copy."""
    values = {field.name: getattr(data, field.name) for field in dataclasses.fields(data)}
    return {
        name: x.cpu().numpy() if isinstance(x, torch.Tensor) else x for name, x in values.items()
    }


def data_of(arrays: Mapping[str, Any]) -> Data:
    """Return data on the memory that the node's workers share; nothing may write into it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        mapped = {k: torch.from_numpy(x) for k, x in arrays.items() if isinstance(x, np.ndarray)}
    return Data(**{**arrays, **mapped})


def other_code(code: str, got: str, again: str) -> ConfigError:
    """Return the error that this node has another ``code`` than where the work was started."""
    return ConfigError(
        f"node {platform.node()} must run fedbench {code} and the same plug-ins, got {got}; "
        f"install them there and {again}"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its type if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
