"""Flower's strategies as rules: ``--defense flwr:Krum``."""

import gc
import importlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import ServerView
from fedbench.core.errors import ConfigError
from fedbench.core.registry import UNWRITTEN
from fedbench.peers.foreign_rule import Arguments, ForeignRule
from fedbench.peers.packages import INSTALLED_BY, installed_version

STRATEGIES = "flwr.serverapp.strategy"


@dataclass(frozen=True, kw_only=True)
class FlowerRule(ForeignRule):
    """Ask ``aggregate_train`` of a strategy of Flower, which gets the rows as one array each.

    The strategies that are server optimizers are not among them: here the protocol has that part.
    Sizes go along as ``num-examples``; what uses them is up to the strategy.

    Args:
        name: Name of the strategy's class: FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum or
            Bulyan.
        f: Malicious rows, its ``num_malicious_nodes``; `FedTrimmedAvg` cuts as many on each side.
        m: Rows that MultiKrum averages, its ``num_nodes_to_select``.
        beta: Share that FedTrimmedAvg cuts on each side, instead of ``f``.
        version: Version of flwr. By default the installed one; a record says it, and another one
            is refused.

    References:
        Beutel et al., "Flower: A Friendly Federated Learning Research Framework", 2020,
        https://arxiv.org/abs/2007.14390; its strategies, https://flower.ai/docs/framework.
    """

    package: ClassVar[str] = "flwr"
    arguments: ClassVar[Arguments] = {
        "FedAvg": {},
        "FedMedian": {},
        "FedTrimmedAvg": {"f": "f", "beta": "beta"},
        "Krum": {"f": "num_malicious_nodes"},
        "MultiKrum": {"f": "num_malicious_nodes", "m": "num_nodes_to_select"},
        "Bulyan": {"f": "num_malicious_nodes"},
    }

    name: str = "Krum"
    f: int | None = None
    m: int | None = field(default=None, metadata=UNWRITTEN)
    beta: float | None = field(default=None, metadata=UNWRITTEN)

    @property
    def lacks_f(self) -> bool:
        return self.beta is None and super().lacks_f

    def rows_needed(self) -> int:
        f = self.f or 0
        return {"Bulyan": 4 * f + 3, "FedTrimmedAvg": 2 * f + 1}.get(self.name, 1)

    def made(self, n: int) -> Any:
        arguments = self.constructor()
        trimmed = arguments.pop("f", None)
        if trimmed is not None and self.beta is None:
            # It cuts int(beta n): half a row more, so that rounding does not lose one.
            arguments["beta"] = min((trimmed + 0.5) / n, 0.4999)
        return strategy(self.name)(**arguments)

    def answered(self, rule: Any, x: Tensor, view: ServerView) -> Tensor:
        weights = view.weights.tolist()
        replies = [reply(row, weight) for row, weight in zip(x, weights, strict=True)]
        with quiet(), little_garbage():
            arrays, _ = rule.aggregate_train(view.step + 1, replies)
        if arrays is None:
            raise ConfigError(f"flwr:{self.name} returned no arrays for {len(x)} rows; lower f")
        return torch.from_numpy(arrays["x"].numpy().copy())


@contextmanager
def quiet() -> Iterator[None]:
    """Leave out what a strategy logs in every round: that replies came."""
    logger = logging.getLogger("flwr")
    before = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def little_garbage() -> Iterator[None]:
    """Have collections of garbage look only at what is made from here on.

    Bulyan collects once for each selected client; in a process with torch each takes most of a
    second otherwise.
    """
    mine = gc.get_freeze_count() == 0  # else another part of the program froze objects itself
    if mine:
        gc.freeze()
    try:
        yield
    finally:
        if mine:
            gc.unfreeze()


def strategy(name: str) -> Any:
    """Return the class of a strategy of Flower's Message API."""
    here = installed_version("flwr")
    try:
        return getattr(importlib.import_module(STRATEGIES), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"flwr {here} must have {STRATEGIES}.{name}; run {INSTALLED_BY['flwr']}"
        ) from error


@dataclass(frozen=True, eq=False)
class Reply:
    """Answer of a client as far as a strategy reads it; a message of Flower needs a running app."""

    content: Any  # of flwr.app.RecordDict

    def has_error(self) -> bool:
        """Return False: every row is an answer."""
        return False


def reply(row: Tensor, weight: float) -> Reply:
    """Return the answer of a client that sends ``row (k,)`` and has so many examples."""
    app = importlib.import_module("flwr.app")
    arrays = app.ArrayRecord({"x": app.Array(row.cpu().contiguous().numpy())})
    metrics = app.MetricRecord({"num-examples": float(weight)})
    return Reply(app.RecordDict({"arrays": arrays, "metrics": metrics}))
