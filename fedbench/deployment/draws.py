"""Randomness of a deployment: from the operating system, or rehearsed from a seed for a test."""

import os
import secrets
from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor

from fedbench.core.rng import Key, Secret

BITS = 64


def fresh_key() -> Key:
    """Return a key whose seed is 64 bits of the operating system."""
    return Key(secrets.randbits(BITS))


class SystemKey(Key):
    """Key whose every draw comes from the operating system; equal names give other draws.

    For noise that protects: its draws have no seed that could be guessed or found.
    """

    @classmethod
    def new(cls) -> Key:
        """Return a key; its seed counts only where a draw is mapped over samples."""
        return cls(secrets.randbits(BITS))

    def fold(self, *names: str | int) -> Key:
        """Return another one, whatever the names."""
        return self.new()

    def public(self, *names: str | int) -> Key:
        """Return a key whose seed may travel, and says nothing of other draws."""
        return fresh_key()

    def bits(self, count: int, device: torch.device | str = "cpu", skip: int = 0) -> Tensor:
        """Draw ``(count,)`` int64 of 64 bits of the operating system each; none is left out."""
        if not count:
            return torch.empty(0, dtype=torch.int64, device=device)
        return torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64).to(device)

    def numpy(self) -> np.random.Generator:
        """Make a generator of NumPy with 128 bits of the operating system."""
        return np.random.Generator(np.random.Philox(secrets.randbits(128)))


class Draws(ABC):
    """Source of the keys of a deployment."""

    @abstractmethod
    def server(self, purpose: str, step: int) -> Key:
        """Return the server's key of a round for a purpose."""

    @abstractmethod
    def client(self, step: int, number: int, private: bool) -> Key:
        """Return a client's key; ``private`` if the protocol draws its noise from it."""

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
        return SystemKey.new() if private else fresh_key()

    def noise(self, step: int, number: int) -> Key:
        """Return a key whose every draw is new."""
        return SystemKey.new()

    def central_noise(self, step: int) -> Key:
        """Return a key whose every draw is new."""
        return SystemKey.new()


class Rehearsed(Draws):
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
