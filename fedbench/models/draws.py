"""Draws of foreign code, which knows only the global generators, made a function of a key."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fedbench.core.devices import accelerated
from fedbench.core.rng import Key


@contextmanager
def own_draws(key: Key, device: torch.device | str = "cpu") -> Iterator[None]:
    """Let the global generators of torch, NumPy and Python start from a key, then restore them."""
    seed = int(key.tensor()) & 0x7FFFFFFF
    before = _state()
    on = torch.device(device)
    generators = [torch.default_generator]
    if accelerated(on):
        module = torch.get_device_module(on)
        number = module.current_device() if on.index is None else on.index
        generators.append(module.default_generators[number])
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed)
        random.setstate(random.Random(seed).getstate())
        np.random.set_state(np.random.RandomState(seed).get_state())  # noqa: NPY002
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(before[1])
        np.random.set_state(before[2])  # noqa: NPY002


def draws_globally(work: Callable[[], object]) -> bool:
    """Call ``work``, and return whether it drew from a global generator, which is restored."""
    with own_draws(Key(0)):
        before = _state()
        work()
        after = _state()
    return _flat(before) != _flat(after)


def _state() -> tuple[Any, Any, Any]:
    numbers = np.random.get_state(legacy=True)  # noqa: NPY002
    return torch.get_rng_state(), random.getstate(), numbers


def _flat(state: tuple[Any, Any, Any]) -> tuple[bytes, Any, bytes, tuple[Any, ...]]:
    of_torch, of_python, (_, words, *rest) = state
    return of_torch.numpy().tobytes(), of_python, np.asarray(words).tobytes(), tuple(rest)
