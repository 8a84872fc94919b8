"""What the messages between the sites and the grid go through, and what goes wrong: numbers, and draws from them."""

from __future__ import annotations

import msgspec
import numpy as np

from gridweave.errors import OptionError


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """How messages travel between the meta-scheduler and each site.

    Attributes
    ----------
    latency_ms : int
        One way.
    jitter_ms : int
        Up to so much more, evenly distributed; messages may overtake each other.
    loss : float
        Probability that a message is lost, within [0, 0.9].
    duplicate : float
        Probability that a message comes twice, within [0, 1].

    Raises
    ------
    OptionError
        If a number makes no sense.
    """

    latency_ms: int = 0
    jitter_ms: int = 0
    loss: float = 0.0
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        for name in ("latency_ms", "jitter_ms"):
            if not 0 <= getattr(self, name) <= 3_600_000:
                raise OptionError(name, f"is {getattr(self, name)}; milliseconds from 0 to an hour")
        if not 0 <= self.loss <= 0.9:
            raise OptionError("loss", f"is {self.loss}; a probability from 0 to 0.9, or nothing would ever arrive")
        if not 0 <= self.duplicate <= 1:
            raise OptionError("duplicate", f"is {self.duplicate}; a probability from 0 to 1")

    @property
    def keeps_order(self) -> bool:
        """Whether every message arrives, once, and in order."""
        return self.jitter_ms == 0 and self.loss == 0 and self.duplicate == 0

    @property
    def resend_ms(self) -> int:
        """After how long a sender sends again: a round trip and some more."""
        return 2 * (self.latency_ms + self.jitter_ms) + 1000

    @property
    def margin_ms(self) -> int:
        """How far ahead the start on several sites is agreed: hold, answer and commitment, and two losses on the way.

        0 if messages take no time and none is lost.
        """
        one_way_ms = self.latency_ms + self.jitter_ms
        return 4 * one_way_ms + (2 * self.resend_ms if self.loss else 0)

    def delays_ms(self, rng: np.random.Generator) -> list[int]:
        """Return the delay of each copy of a message that arrives; none if it is lost."""
        if self.keeps_order:
            return [self.latency_ms]
        copies = 0 if rng.random() < self.loss else 1
        copies += rng.random() < self.duplicate
        return [
            self.latency_ms + (int(rng.integers(self.jitter_ms + 1)) if self.jitter_ms else 0) for _ in range(copies)
        ]


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """What fails, at random instants with exponentially distributed time between them.

    Attributes
    ----------
    crash_every_ms : float
        Mean time between two failures of a site; 0 for none. What runs on it is lost, what waits still waits.
    crash_lasts_ms : float
        Mean time until it is back.
    cut_every_ms : float
        Mean time between two cuts of the connection of a site; 0 for none. It goes on by itself meanwhile.
    cut_lasts_ms : float
        Mean time until it is connected again.

    Raises
    ------
    OptionError
        If a number is negative.
    """

    crash_every_ms: float = 0.0
    crash_lasts_ms: float = 600_000.0
    cut_every_ms: float = 0.0
    cut_lasts_ms: float = 600_000.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) < 1e15:
                raise OptionError(name, f"is {getattr(self, name)}; milliseconds, from 0 up")

    @property
    def any(self) -> bool:
        """Whether anything ever fails."""
        return self.crash_every_ms > 0 or self.cut_every_ms > 0
