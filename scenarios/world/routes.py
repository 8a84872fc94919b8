"""How a message gets from one end of a connection to the other: when, how often, and whether at all."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gridweave.scenarios.world.network import Network

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
    network : Network
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
