"""Random streams by address, and noise that nobody can draw again.

A study's randomness (shuffling, sampling, initial weights) is addressed by (seed, round, party, purpose), never
by call order: adding a client or a defence, or running elsewhere, shifts nobody else's stream.

Noise that protects people is another matter: whoever knows its seed can subtract it. It comes from ChaCha20
under a key of the operating system, used once and forgotten (`SecretNoise`), unless a study asks for
``noise = "seeded"``, which every card then marks as not private (`SeededNoise`).
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Stream:
    """One address of randomness."""

    seed: int
    round: int
    party: str
    purpose: str

    def integer(self) -> int:
        """A 63-bit number that depends on the address alone."""
        address = repr((self.seed, self.round, self.party, self.purpose))
        return int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "little") >> 1

    def numpy(self) -> np.random.Generator:
        """A NumPy generator that starts here."""
        return np.random.default_rng(self.integer())

    def torch(self) -> torch.Generator:
        """A torch generator (CPU) that starts here."""
        return torch.Generator().manual_seed(self.integer())


class Noise(Protocol):
    """Where a defence's noise comes from."""

    private: bool

    def normal(self, size: int) -> Tensor:
        """``size`` standard normal values, float64."""
        ...

    def uniform(self, size: int) -> Tensor:
        """``size`` values uniform in [0, 1), float64."""
        ...


class SeededNoise:
    """Noise that can be drawn again, for studies and tests. Not private."""

    private = False

    def __init__(self, stream: Stream) -> None:
        self._generator = stream.torch()

    def normal(self, size: int) -> Tensor:
        """Standard normal values."""
        # float32 draws: 5x faster here, and a study's noise defends nobody against low-bit attacks.
        return torch.randn(size, generator=self._generator).double()

    def uniform(self, size: int) -> Tensor:
        """Uniform values in [0, 1)."""
        return torch.rand(size, generator=self._generator, dtype=torch.float64)


class SecretNoise:
    """Noise from ChaCha20 under a fresh key of the operating system; the key is never stored."""

    private = True

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

        self._cipher = Cipher(algorithms.ChaCha20(os.urandom(32), os.urandom(16)), mode=None).encryptor()

    def uniform(self, size: int) -> Tensor:
        """Uniform values in [0, 1) with 53 random bits."""
        raw = np.empty(8 * size, dtype=np.uint8)
        self._cipher.update_into(bytes(8 * size), raw.data)
        words = torch.from_numpy(raw.view(np.int64)).bitwise_right_shift_(11).bitwise_and_(2**53 - 1)
        # An integer tensor times a Python number would be float32: 24 bits, and now and then exactly 1.
        return words.double().mul_(2.0**-53)

    def normal(self, size: int) -> Tensor:
        """Standard normal values by Box and Muller (1958) in float64."""
        half = (size + 1) // 2
        radius, angle = self.uniform(2 * half).view(2, half)
        radius.neg_().add_(1.0).log_().mul_(-2.0).sqrt_()  # 1 - u is exact, and never 0
        angle.mul_(2.0 * math.pi)
        pairs = torch.empty(2, half, dtype=torch.float64)
        torch.cos(angle, out=pairs[0]).mul_(radius)
        torch.sin(angle, out=pairs[1]).mul_(radius)
        return pairs.view(-1)[:size]
