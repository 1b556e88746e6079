"""Rules, attacks, codecs and epsilon as plain functions on tensors.

>>> import torch
>>> from fedbench.functional import alie, drive, trimmed_mean
>>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0], [100.0]])
>>> trimmed_mean(x, f=1)
tensor([2.])
>>> alie(x, m=2).shape
torch.Size([2, 1])
>>> drive.decode(drive.encode(x), x).shape
torch.Size([5, 1])

Every installed plug-in that needs no run is here under its name with ``_`` for ``-``, other
packages' too. It is the plug-in's own code that computes, with the arguments that a run would give
it: there is no second implementation. `rule`, `prefilter`, `attack` and `codec` make the function
of a class of yours. Signatures and docstrings are made of the plug-ins; for editors they are in
``__init__.pyi``.
"""

from typing import Any

_HOMES = {
    "rule": "rules",
    "prefilter": "rules",
    "attack": "attacks",
    "codec": "codecs",
    "Codec": "codecs",
    "epsilon": "budgets",
    "privacy_cost": "budgets",
    "with_epsilon": "budgets",
    "Rows": "forms",
    "Vector": "forms",
    "Findings": "rules",
}
_PARTS = {*_HOMES.values(), "absent", "catalogue", "promises", "signatures"}


def __getattr__(name: str) -> Any:
    """Make the function of a plug-in on first use; torch is not imported before."""
    if name.startswith("__") or name in _PARTS:  # what is being imported is not here yet
        raise AttributeError(f"module 'fedbench.functional' has no attribute {name!r}")
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(f"fedbench.functional.{_HOMES[name]}"), name)
    return import_module("fedbench.functional.catalogue").function_of(name)


def __dir__() -> list[str]:
    """List the functions of all installed plug-ins, and the makers of others."""
    from fedbench.functional.catalogue import functions

    return sorted([*_HOMES, *functions()])
