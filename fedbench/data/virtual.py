"""Virtual clients: the samples of client ``i`` are a function of the key and of ``i`` alone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.data.partitions import Owner, Partition, Parts, Rows, by_label

Floats = npt.NDArray[np.float64]
MIN_SAMPLES = 3  # samples of a client, to train, validate and test


@dataclass(frozen=True, kw_only=True)
class Virtual(Partition):
    """Any number of clients, each of whom draws samples with replacement from a mix of classes.

    A client draws ``g_c ~ Gamma(beta)`` for every class ``c``. Each of its samples then is of class
    ``c`` with probability ``g_c n_c / sum_k g_k n_k``, where ``n_c`` counts the class in the pool,
    and any one of that class. On balanced classes the mix is ``Dir(beta, ..., beta)``. It is the
    limit of ``dirichlet:beta`` (``by="class"``) for ever more clients and samples, where the shares
    of a client are such draws, too; there samples are dealt without replacement, and a client's
    size is in proportion to ``sum_c g_c n_c``.

    Nothing is stored for a client, so time and memory do not depend on their number. A sample may
    be held by many clients, so the pool is first cut into samples that train, validate and test;
    no sample that some client trains on tests another one.

    Args:
        beta: Concentration; the smaller, the more skewed.
        samples: Samples of a client, on average; the split of the run takes its parts from them.
        sizes: Sizes of clients: ``equal``, or ``gamma``, in proportion to ``sum_c g_c``, as in the
            limit above on balanced classes, but at least 10, which raises the average a little.

    References:
        Hsu, Qi and Brown, 2019, https://arxiv.org/abs/1909.06335, section 3, which draws the mix of
        each client from ``Dir(alpha p)`` and samples from it. Here each gamma has the shape
        ``beta``, as public code of federated learning means it (see `Dirichlet`).
    """

    with_replacement: ClassVar[bool] = True

    beta: float = 1.0
    samples: int = 40
    sizes: Literal["equal", "gamma"] = "equal"

    def __post_init__(self) -> None:
        finite = math.isfinite(self.beta) and 1e-3 <= self.beta <= 1e6
        require("Virtual.beta", self.beta, finite, "in [0.001, 1e6]")
        enough = MIN_SAMPLES <= self.samples <= 1 << 20
        require("Virtual.samples", self.samples, enough, f"in {MIN_SAMPLES} .. 2**20")
        legal = self.sizes in ("equal", "gamma")
        require("Virtual.sizes", self.sizes, legal, "'equal' or 'gamma'")

    def split(self, y: Tensor, clients: int, classes: int, key: Key, owner: Owner = None) -> Parts:
        """Return the parts, drawn when they are read; they overlap."""
        require("clients", clients, clients >= 1, ">= 1")
        if not len(y):
            raise ConfigError("virtual needs samples to draw from, got none")
        stock = by_label(y, classes, key.fold("stock"))
        return VirtualParts(self, clients, stock, key)


@dataclass(frozen=True, eq=False)
class VirtualParts(Sequence[Tensor]):
    """Rows of every client, drawn when they are read: the same in every reading."""

    law: Virtual
    clients: int
    stock: list[Rows]  # rows of the pool of each class
    key: Key

    def __len__(self) -> int:
        return self.clients

    def __getitem__(self, i: Any) -> Any:
        """Return the rows of client ``i``, in random order."""
        if not 0 <= i < self.clients:
            raise IndexError(i)
        generator = self.key.fold("client", i).numpy()
        logs = log_gammas(generator, self.law.beta, len(self.stock))
        size = self._size(logs)
        ends = self._ends(logs)
        label = np.searchsorted(ends, generator.random(size) * ends[-1], side="right")
        place = self._first[label] + (generator.random(size) * self._counts[label]).astype(np.int64)
        return torch.from_numpy(self._rows[place])

    def _size(self, logs: Floats) -> int:
        if self.law.sizes == "equal":
            return self.law.samples
        mean = float(np.exp(logs).mean()) / self.law.beta
        return max(10, round(self.law.samples * mean))

    def _ends(self, logs: Floats) -> Floats:
        """Cumulative weights ``(classes,)`` of the mix, of which the largest weight is 1."""
        present = self._counts > 0
        weights = np.full(len(logs), -np.inf)
        weights[present] = logs[present] + np.log(self._counts[present])
        return np.cumsum(np.exp(weights - weights.max()))

    @cached_property
    def _counts(self) -> Rows:
        return np.array([len(rows) for rows in self.stock])

    @cached_property
    def _first(self) -> Rows:
        first: Rows = self._counts.cumsum() - self._counts
        return first

    @cached_property
    def _rows(self) -> Rows:
        return np.concatenate(self.stock)


def log_gammas(generator: np.random.Generator, shape: float, count: int) -> Floats:
    """Draw the logarithms of ``count`` gamma variables, which themselves may be too small to hold.

    ``Gamma(a)`` has the law of ``Gamma(a + 1) U^(1/a)`` with a uniform ``U``.

    References:
        Marsaglia and Tsang, "A Simple Method for Generating Gamma Variables", ACM TOMS 2000,
        https://doi.org/10.1145/358407.358414, section 6.
    """
    gammas = generator.standard_gamma(shape + 1, count)
    logs: Floats = np.log(gammas) + np.log(1 - generator.random(count)) / shape
    return logs
