"""Words that a field of a scenario chooses from; importing them does not import torch."""

from typing import Literal

Split = Literal["per-client", "per-client-80-20", "published"]
Augment = Literal["none", "crop-flip"]
Sampling = Literal["fixed", "poisson"]
Cohorts = Literal["random", "stratified"]
Sees = Literal["messages", "sum", "hidden-sum", "model"]
SUMS = ("sum", "hidden-sum")  # observations behind a secure aggregation
Adjacency = Literal["replace-one", "zero-out", "add-remove"]
Precision = Literal["fp32", "tf32", "bf16"]
Checks = Literal["none", "finite", "range"]
ALL = "all"  # attacks of the newest rules of the leaderboard
INSTALLED = "installed"  # attacks that fit
STRONGEST = "strongest"  # settings of them, searched
DEVICES = ("auto", "cpu", "cuda", "mps")  # of a command, not of a scenario; mps is refused
