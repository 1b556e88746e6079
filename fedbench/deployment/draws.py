"""Randomness of a deployment: from the operating system, or rehearsed from a seed for a test."""

import os
import secrets
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from fedbench.core.rng import Key, Secret

KEY_BITS = 64


def fresh_key() -> Key:
    """Return a key whose seed is 64 bits of the operating system."""
    return Key(secrets.randbits(KEY_BITS))


class SystemKey(Key):
    """Key whose every draw comes from the operating system; equal names give other draws.

    For noise that protects: it has no seed that could be guessed or found. Methods of `Key` draw
    from its `bits`, as they do on an accelerator; one that reads the seed instead raises.
    """

    stacked = False

    def __init__(self) -> None:
        """Make a key that holds nothing."""

    def __repr__(self) -> str:
        return "SystemKey()"

    @property
    def seed(self) -> int:
        """Raise: a number that all draws follow from does not exist."""
        raise TypeError("a key of the operating system has no seed; draw from it")

    def fold(self, *names: str | int) -> Key:
        """Return this key, whose draws are new in each call whatever the names."""
        return self

    def public(self, *names: str | int) -> Key:
        """Return a key whose seed may travel, and says nothing of other draws."""
        return fresh_key()

    def tensor(self, device: torch.device | str = "cpu") -> Tensor:
        """Draw a new seed, for draws that are mapped over samples: masks in training, no noise."""
        return self.bits(1, device)[0]

    def _of_numpy(self, device: torch.device | str) -> int | None:
        """Return None: there is no seed from which NumPy could draw a block."""
        return None

    def bits(self, count: int, device: torch.device | str = "cpu", skip: int = 0) -> Tensor:
        """Draw ``(count,)`` int64 of 64 bits of the operating system each; none is left out."""
        if not count:
            return torch.empty(0, dtype=torch.int64, device=device)
        return torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64).to(device)

    def numpy(self) -> np.random.Generator:
        """Make a generator of NumPy that starts from 128 bits of the operating system."""
        return np.random.Generator(np.random.Philox(secrets.randbits(128)))


class Draws(ABC):
    """Source of the keys of a deployment."""

    @abstractmethod
    def server(self, purpose: str, step: int) -> Key:
        """Return the server's key of a round for a purpose."""

    @abstractmethod
    def client(self, step: int, number: int, private: bool) -> Key:
        """Return a client's key; ``private`` if noise that protects is drawn from it."""

    @abstractmethod
    def noise(self, step: int, number: int) -> Key:
        """Return the key of a client's noise, which its mechanism draws from."""

    @abstractmethod
    def central_noise(self, step: int) -> Key:
        """Return the key of the server's noise."""


class FromSystem(Draws):
    """Keys of the operating system, new in every call: nobody else can have them."""

    def server(self, purpose: str, step: int) -> Key:
        """Return a key with 64 new bits."""
        return fresh_key()

    def client(self, step: int, number: int, private: bool) -> Key:
        """Return a key with 64 new bits; every draw new if it is ``private``."""
        return SystemKey() if private else fresh_key()

    def noise(self, step: int, number: int) -> Key:
        """Return a key whose every draw is new."""
        return SystemKey()

    def central_noise(self, step: int) -> Key:
        """Return a key whose every draw is new."""
        return SystemKey()


class SeededDraws(Draws):
    """Keys of `fedbench.play` with the same seed, for comparing the two; nothing is secret."""

    def __init__(self, seed: int) -> None:
        self.secret = Secret.of(seed, "run")

    def server(self, purpose: str, step: int) -> Key:
        """Return the harness's key."""
        return self.secret.key(purpose, step)

    def client(self, step: int, number: int, private: bool) -> Key:
        """Return the harness's key."""
        return self.secret.key("client", step, number)

    def noise(self, step: int, number: int) -> Key:
        """Return the harness's key."""
        return self.secret.key("privacy", step, number)

    def central_noise(self, step: int) -> Key:
        """Return the harness's key."""
        return self.secret.key("mechanism", step)
