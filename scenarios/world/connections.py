"""The connections between the meta-scheduler and the sites: what is sent, what is under way, and what is cut.

What the messages between the sites and the grid go through, and what goes wrong: numbers, and draws from them.

How a message gets from one end of a connection to the other: when, how often, and whether at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.site.channel import Channel


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


SITE_END, GRID_END = 0, 1
"""The two ends of the connection between a site and the meta-scheduler; a message is sent by one of them."""


class Routes(Protocol):
    """What lies between the meta-scheduler and the sites."""

    @property
    def keeps_order(self) -> bool:
        """Whether every message arrives, once, and in order, for the whole of the run."""

    @property
    def is_instant(self) -> bool:
        """Whether they do so at the very instant at which they are sent."""

    @property
    def margin_ms(self) -> int:
        """How far ahead a start on several sites is agreed: hold, answer and commitment, and what is lost of them."""

    def resend_ms(self, site: int) -> int:
        """Return after how long without an acknowledgement a message to or from a site is sent again."""

    def joins(self, site: int, end: int) -> bool:
        """Return whether there is a way now for what one end of a site's connection sends."""

    def arrivals_ms(self, now_ms: int, site: int, end: int, messages: int) -> list[int]:
        """Return when each copy arrives of so many messages that one end sends now; none if they are lost."""


class EvenRoutes:
    """The same network between the meta-scheduler and every site.

    Parameters
    ----------
    rng : numpy.random.Generator
        For delays and losses.
    """

    def __init__(self, network: Network, rng: np.random.Generator) -> None:
        self._network = network
        self._rng = rng
        self.keeps_order = network.keeps_order
        self.is_instant = network.keeps_order and not network.latency_ms
        self.margin_ms = network.margin_ms

    def resend_ms(self, site: int) -> int:
        """Return after how long a message is sent again."""
        return self._network.resend_ms

    def joins(self, site: int, end: int) -> bool:
        """Return True: this network is never down."""
        return True

    def arrivals_ms(self, now_ms: int, site: int, end: int, messages: int) -> list[int]:
        """Return when each copy arrives."""
        if self.keeps_order:
            return [now_ms + self._network.latency_ms]
        return [now_ms + delay_ms for delay_ms in self._network.delays_ms(self._rng)]


GRID = -1
"""The place of the meta-scheduler, where others are the numbers of sites."""


class Connections:
    """One connection for each site, with a channel at either end where the network does not keep order.

    Parameters
    ----------
    down : sequence of bool
        Which sites have failed now; kept up to date by its owner.
    channels : bool
        Whether messages travel through channels.
    send : callable (when_ms, to, (site, packet))
        Has `arrive` called at that instant.
    wake : callable (when_ms, site, end)
        Has `resend` called at that instant.
    deliver : callable (to, site, message)
        Takes what arrives, for a site or for the meta-scheduler (`GRID`).

    Attributes
    ----------
    is_instant : bool
        Whether every message is there at once, so that there is nothing to keep: who has one hands it over, and counts
        it in ``messages``.
    unsent : dict from (int, int) to None
        The ends (site, end) that have put what only a `send` sends, as all do where there are channels.
    messages, lost : int
        That were sent, and those of them that did not arrive.
    """

    def __init__(
        self,
        routes: Routes,
        down: Sequence[bool],
        *,
        channels: bool,
        send: Callable[[int, int, tuple[int, Any]], None],
        wake: Callable[[int, int, int], None],
        deliver: Callable[[int, int, Any], None],
    ) -> None:
        self._routes = routes
        self._down = down
        self._send = send
        self._wake = wake
        self._deliver = deliver
        self._cut = [0] * len(down)
        self.is_instant = routes.is_instant and not channels
        self.unsent: dict[tuple[int, int], None] = {}
        self._channels: list[tuple[Channel, Channel]] | None = None
        if channels:
            delays_ms = [routes.resend_ms(site) for site in range(len(down))]
            self._channels = [(Channel(resend_ms), Channel(resend_ms)) for resend_ms in delays_ms]
        self._wake_ms: dict[int, int] = {}
        self._under_way = 0
        self.messages = 0
        self.lost = 0

    @property
    def any_cut(self) -> bool:
        """Whether any connection is cut."""
        return any(self._cut)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, and every message has arrived."""
        if self._channels is None:
            return not self._under_way
        return all(channel.is_idle for pair in self._channels for channel in pair)

    def cut(self, site: int) -> None:
        """Let nothing through any more."""
        self._cut[site] += 1

    def mend(self, site: int) -> None:
        """Take one cut back."""
        self._cut[site] -= 1

    def put(self, now_ms: int, site: int, end: int, message: Any) -> None:
        """Send a message from one end; through a channel it leaves with the next `send`."""
        to = GRID if end == SITE_END else site
        if self._channels is not None:
            self._channels[site][end].send(message)
            self.unsent[site, end] = None
            return
        self.messages += 1
        (when_ms,) = self._routes.arrivals_ms(now_ms, site, end, 1)
        if when_ms == now_ms:
            self._deliver(to, site, message)
        else:
            self._under_way += 1
            self._send(when_ms, to, (site, message))

    def send(self, now_ms: int) -> None:
        """Send what was put since the last time."""
        ends = list(self.unsent)
        self.unsent.clear()
        for site, end in ends:
            self._flush(now_ms, site, end)

    def _flush(self, now_ms: int, site: int, end: int) -> None:
        """Send what one end has to send, over a network that may lose or repeat it."""
        if self._channels is None:
            return
        packet = self._channels[site][end].packet(now_ms)
        if packet is not None:
            self.messages += 1
            to = GRID if end == SITE_END else site
            arrivals_ms = self._routes.arrivals_ms(now_ms, site, end, len(packet.messages))
            self.lost += not arrivals_ms
            for when_ms in arrivals_ms:
                if when_ms == now_ms:
                    self.arrive(now_ms, to, (site, packet))
                else:
                    self._send(when_ms, to, (site, packet))
        self._plan(now_ms, site, end)

    def arrive(self, now_ms: int, to: int, what: tuple[int, Any]) -> None:
        """Take in what has come to its end."""
        site, message = what
        if self._channels is None:
            self._under_way -= 1
            self._deliver(to, site, message)
            return
        sender = SITE_END if to == GRID else GRID_END
        if self._cut[site] or self._down[site] or not self._routes.joins(site, sender):
            self.lost += 1
            return
        end = GRID_END if to == GRID else SITE_END
        for new in self._channels[site][end].receive(now_ms, message):
            self._deliver(to, site, new)
        self._plan(now_ms, site, end)

    def resend(self, now_ms: int, site: int, end: int) -> None:
        """Repeat or acknowledge what is due; a wakeup that an earlier one has replaced is passed over."""
        if self._wake_ms.get(2 * site + end) == now_ms:
            del self._wake_ms[2 * site + end]
            if not self._down[site]:
                self._flush(now_ms, site, end)

    def resume(self, now_ms: int, site: int) -> None:
        """Have a site that is back go on with what it had to send."""
        self._plan(now_ms, site, SITE_END)
        self._plan(now_ms, site, GRID_END)

    def _plan(self, now_ms: int, site: int, end: int) -> None:
        """See to it that an end is asked again when it has something to repeat or to acknowledge."""
        if self._channels is None:
            return
        wake_ms = self._channels[site][end].next_wakeup_ms()
        if wake_ms is None:
            return
        key = 2 * site + end
        scheduled_ms = self._wake_ms.get(key)
        if scheduled_ms is None or wake_ms < scheduled_ms:
            wake_ms = max(wake_ms, now_ms + 1)
            self._wake_ms[key] = wake_ms
            self._wake(wake_ms, site, end)
