"""The connections between the meta-scheduler and the sites: what is sent, what is under way, and what is cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gridweave.scenarios.world.routes import GRID_END, SITE_END, Routes
from gridweave.site.channel import Channel

GRID = -1
"""The place of the meta-scheduler, where others are the numbers of sites."""


class Connections:
    """One connection for each site, with a channel at either end where the network does not keep order.

    Parameters
    ----------
    routes : Routes
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
