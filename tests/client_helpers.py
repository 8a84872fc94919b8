"""What tests of the client share: sleep that takes no time, and clients that sleep so."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np

from gridweave.grid.client.client import Client
from gridweave.grid.client.retries import Patience


class Naps:
    """Stands for sleeping: keeps how long, and lets others go on."""

    def __init__(self) -> None:
        self.lengths_s: list[float] = []

    async def __call__(self, length_s: float) -> None:
        """Pass over a pause."""
        self.lengths_s.append(length_s)
        await asyncio.sleep(0)


def patient(url: str, naps: Naps, seed: int = 1, **patience: Any) -> Client:
    """Return a client whose pauses take no time."""
    return Client(url, patience=Patience(**patience), rng=np.random.default_rng(seed), sleep=naps)
