"""Connections between the meta-scheduler and the sites: messages, their routes, and faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.routing import Paths, find_paths
from gridweave.netmodel.topology import FloatArray, Topology
from gridweave.scenarios.batch.grid_network import GridNet
from gridweave.site.channel import Channel


class Network(msgspec.Struct, frozen=True, kw_only=True):
    """How messages travel between the meta-scheduler and each site.

    Attributes
    ----------
    latency_ms : int
        Latency in one direction.
    jitter_ms : int
        Maximum extra latency, drawn uniformly from 0 up for each message, so messages may overtake each other.
    loss : float
        Probability that a message is lost, within [0, 0.9].
    duplicate : float
        Probability that a message arrives twice, within [0, 1].
    look_ms : int
        Interval at which sites send their messages to the grid, as if polling a batch system; 0: immediately.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    latency_ms: int = 0
    jitter_ms: int = 0
    loss: float = 0.0
    duplicate: float = 0.0
    look_ms: int = 0

    def __post_init__(self) -> None:
        for name in ("latency_ms", "jitter_ms", "look_ms"):
            if not 0 <= getattr(self, name) <= 3_600_000:
                raise OptionError(name, f"is {getattr(self, name)}; expected milliseconds from 0 to 3600000 (an hour)")
        if not 0 <= self.loss <= 0.9:
            raise OptionError("loss", f"is {self.loss}; expected a probability from 0 to 0.9")
        if not 0 <= self.duplicate <= 1:
            raise OptionError("duplicate", f"is {self.duplicate}; expected a probability from 0 to 1")

    @property
    def keeps_order(self) -> bool:
        """Whether every message arrives exactly once and in order."""
        return self.jitter_ms == 0 and self.loss == 0 and self.duplicate == 0


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True):
    """A fault at a fixed time.

    Attributes
    ----------
    action : str
        ``crash``: the site crashes. ``cut``: the site's connection to the grid is interrupted.
    site : int
        Index of the site.
    """

    at_ms: int
    action: str
    site: int
    lasts_ms: int


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """Planned faults, and random faults with exponentially distributed intervals and lengths.

    Attributes
    ----------
    planned : tuple of PlannedFault
        Faults at fixed times. If faults of the same kind overlap at a site, all of them last until the last one ends.
    crash_every_ms : float
        Mean time between two crashes of a site; 0 for no crashes. A crash loses running jobs but not waiting jobs.
    crash_lasts_ms : float
        Mean time that a site is down after a crash.
    cut_every_ms : float
        Mean time between two cuts of a site's connection; 0 for no cuts. The site keeps working during a cut.
    cut_lasts_ms : float
        Mean length of a cut.

    Raises
    ------
    OptionError
        If a number is negative.
    """

    crash_every_ms: float = 0.0
    crash_lasts_ms: float = 600_000.0
    cut_every_ms: float = 0.0
    cut_lasts_ms: float = 600_000.0
    planned: tuple[PlannedFault, ...] = ()

    def __post_init__(self) -> None:
        for name in ("crash_every_ms", "crash_lasts_ms", "cut_every_ms", "cut_lasts_ms"):
            if not 0 <= getattr(self, name) < 1e15:
                raise OptionError(name, f"is {getattr(self, name)}; expected milliseconds, at least 0")

    @property
    def any(self) -> bool:
        """Whether any fault can occur."""
        return self.crash_every_ms > 0 or self.cut_every_ms > 0 or bool(self.planned)

    def drawn(self, sites: int, until_ms: int, rng: np.random.Generator) -> tuple[PlannedFault, ...]:
        """Return the planned faults and random faults that begin before ``until_ms``, sorted by time."""
        faults = list(self.planned)
        means = (("crash", self.crash_every_ms, self.crash_lasts_ms), ("cut", self.cut_every_ms, self.cut_lasts_ms))
        for site in range(sites):
            for action, every_ms, lasts_ms in means:
                at_ms = 1 + int(rng.exponential(every_ms)) if every_ms > 0 else until_ms
                while at_ms < until_ms:
                    length_ms = 1 + int(rng.exponential(lasts_ms))
                    faults.append(PlannedFault(at_ms=at_ms, action=action, site=site, lasts_ms=length_ms))
                    at_ms += length_ms + 1 + int(rng.exponential(every_ms))
        return tuple(sorted(faults, key=lambda fault: (fault.at_ms, fault.site, fault.action)))


class LiveTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The times that a live grid adds to a job's run time: starting and ending processes, and agreeing on a start.

    A job holds its nodes for ``start_ms`` and ``end_ms`` in addition to its work, but never past its time limit.

    Attributes
    ----------
    start_ms : int
        Time from a job's placement, or its agreed start, until its processes are running.
    end_ms : int
        Time from the end of a job's processes until the grid is notified and can use the nodes again.
    margin_ms : int
        Minimum lead time with which a multi-site start is agreed; increased if messages take longer.

    Raises
    ------
    OptionError
        If a number is out of range.
    """

    start_ms: int = 0
    end_ms: int = 0
    margin_ms: int = 0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 <= getattr(self, name) <= 86_400_000:
                raise OptionError(name, f"is {getattr(self, name)}; expected milliseconds from 0 to 86400000 (a day)")

    @property
    def around_ms(self) -> int:
        """The time for which a job holds its nodes before and after its work, in total."""
        return self.start_ms + self.end_ms

    def at_speed(self, speed: float) -> Self:
        """Scale these times to a scenario clock that advances ``speed`` milliseconds per real millisecond."""
        return type(self)(**{name: round(getattr(self, name) * speed) for name in self.__struct_fields__})


SITE_END, GRID_END = 0, 1
"""The two ends of a site's connection to the meta-scheduler; each can send messages."""


MESSAGE_BYTES = 500
"""Assumed size of a message between a site and the grid, including protocol headers."""


class _Way(NamedTuple):
    """The path from the meta-scheduler to a site, or from a site to the meta-scheduler."""

    exists: bool
    latency_ms: float
    jitter_ms: FloatArray
    loss: float
    ms_per_bit: float


_NO_LINKS = _Way(exists=True, latency_ms=0.0, jitter_ms=np.zeros(0), loss=0.0, ms_per_bit=0.0)
"""The path of messages that do not cross links; only the `Network` delays or loses these messages."""


class Routes:
    """Message routes between the meta-scheduler and the sites: through a `Network`, and over links if there are any.

    Delays and losses of network and links add up. Messages cross links if the meta-scheduler has a ``node`` in the
    topology. ``keeps_order`` says whether every message of the run arrives exactly once and in order. ``margin_ms``,
    the lead time of a multi-site start, covers request, answer and commitment even if two of these messages are lost.
    """

    def __init__(
        self, network: Network, rng: np.random.Generator, net: GridNet | None = None, node: int | None = None
    ) -> None:
        self._network = network
        self._rng = rng
        self._node = node
        # Periods with the same link states share a `Paths` object.
        self._stars: dict[int, tuple[Paths, list[tuple[_Way, _Way]]]] = {}
        states: list[list[tuple[_Way, _Way]]] = []
        if net is not None and node is not None:
            check_reach(net, node)
            states = [self._star_of(model) for _, model in net.periods()]
        self._now = states[0] if states else None
        ways = [way for state in states for pair in state for way in pair] or [_NO_LINKS]
        self._draws = bool(network.jitter_ms or any(len(way.jitter_ms) for way in ways))
        loses = bool(network.loss) or any(way.loss > 0 for way in ways)
        changes = any(state is not states[0] for state in states)
        self.keeps_order = network.keeps_order and not (self._draws or loses or changes)
        self._one_way_ms = [
            max(self._longest_ms(way) for state in states for way in state[site])
            for site in range(len(states[0]) if states else 0)
        ]
        self._most_ms = max(map(self._longest_ms, ways))
        self.margin_ms = 4 * self._most_ms + (2 * (2 * self._most_ms + 1000) if loses else 0)
        self._last_ms: dict[tuple[int, int], int] = {}

    def _star_of(self, model: NetworkModel) -> list[tuple[_Way, _Way]]:
        assert self._node is not None, "the meta-scheduler has no node"
        key = id(model.paths)
        if key not in self._stars:
            self._stars[key] = model.paths, _star(model, self._node)
        return self._stars[key][1]

    def _longest_ms(self, way: _Way) -> int:
        if not way.exists:
            return 0
        on_links_ms = way.latency_ms + float(way.jitter_ms.sum()) + 8 * MESSAGE_BYTES * way.ms_per_bit
        # A message sent just after a poll has to wait for the next one.
        waits_ms = max(0, self._network.look_ms - 1)
        return _whole_ms(on_links_ms) + self._network.latency_ms + self._network.jitter_ms + waits_ms

    def change(self, model: NetworkModel) -> int:
        """Update the routes after the links have changed; return the number of sites that this change cut off."""
        if self._now is None:
            return 0
        before, self._now = self._now, self._star_of(model)
        return sum(
            all(way.exists for way in old) and not all(way.exists for way in new)
            for old, new in zip(before, self._now, strict=True)
        )

    def resend_ms(self, site: int) -> int:
        """Return the time after which an unacknowledged message to or from a site is sent again."""
        return 2 * (self._most_ms if self._now is None else self._one_way_ms[site]) + 1000

    def _way_from(self, site: int, end: int) -> _Way:
        return _NO_LINKS if self._now is None else self._now[site][end]

    def joins(self, site: int, end: int) -> bool:
        """Whether a message sent now from this end can reach the other end of the site's connection."""
        return self._way_from(site, end).exists

    def arrivals_ms(self, now_ms: int, site: int, end: int, messages: int) -> list[int]:
        """Return the arrival time of each copy of a packet sent now; an empty list if the packet is lost.

        Packets can overtake each other only if there is jitter.
        """
        way = self._way_from(site, end)
        if not way.exists:
            return []
        network, rng = self._network, self._rng
        copies = 1
        loss = 1 - (1 - way.loss) * (1 - network.loss)
        if loss > 0:
            copies -= int(rng.random() < loss)
        if network.duplicate > 0:
            copies += int(rng.random() < network.duplicate)
        return [self._arrival_ms(now_ms, (site, end), way, messages) for _ in range(copies)]

    def _arrival_ms(self, now_ms: int, key: tuple[int, int], way: _Way, messages: int) -> int:
        on_links_ms = way.latency_ms + 8 * MESSAGE_BYTES * messages * way.ms_per_bit
        if len(way.jitter_ms):
            on_links_ms += float(way.jitter_ms @ self._rng.random(len(way.jitter_ms)))
        if self._network.look_ms and key[1] == SITE_END:
            now_ms += -now_ms % self._network.look_ms
        when_ms = now_ms + _whole_ms(on_links_ms) + self._network.latency_ms
        if self._network.jitter_ms:
            when_ms += int(self._rng.integers(self._network.jitter_ms + 1))
        if not self._draws:
            when_ms = self._last_ms[key] = max(when_ms, self._last_ms.get(key, 0))
        return when_ms


def _star(model: NetworkModel, node: int) -> list[tuple[_Way, _Way]]:
    """Return each site's paths to and from the meta-scheduler's node, indexed by the sending end."""
    topology, paths = model.topology, model.paths
    sites = len(topology.sites)
    here = np.flatnonzero(topology.node_of_site == node)
    grid = int(here[0]) if len(here) else sites
    if not len(here):
        nodes = np.append(topology.node_of_site, node)
        topology = replace(topology, sites=(*topology.sites, "the grid"), node_of_site=nodes)
        paths = find_paths(topology, paths.routes, k=paths.k, segment_bytes=paths.segment_bytes)
    return [(_way(topology, paths, site, grid), _way(topology, paths, grid, site)) for site in range(sites)]


def _way(topology: Topology, paths: Paths, origin: int, target: int) -> _Way:
    links = paths.between(origin, target)
    jitter_ms = topology.jitter_ms[links]
    return _Way(
        exists=bool(np.isfinite(paths.latency_ms[origin, target])),
        latency_ms=float(topology.latency_ms[links].sum()),
        jitter_ms=jitter_ms[jitter_ms > 0],
        loss=float(paths.loss[origin, target]),
        ms_per_bit=1000.0 / float(topology.bandwidth_bps[links].min()) if links else 0.0,
    )


def _whole_ms(time_ms: float) -> int:
    """Round up to whole milliseconds, ignoring rounding errors in a sum of floats."""
    return math.ceil(time_ms - 1e-9)


def node_of_grid(net: GridNet, name: str | None) -> int:
    """Return the meta-scheduler's node: the node called ``name``, or the node of the site called ``name``.

    Without a name, return the node of the site with the lowest sum of latencies to and from all other sites; ties go to
    the first site.
    """
    topology = net.model.topology
    if name is None:
        latency_ms = net.model.paths.latency_ms
        return int(topology.node_of_site[int(np.argmin((latency_ms + latency_ms.T).sum(axis=1)))])
    if name in topology.nodes or name not in topology.sites:
        return topology.node_number(name)
    return int(topology.node_of_site[topology.site_number(name)])


def check_reach(net: GridNet, node: int) -> None:
    """Raise InputError if, after the last link change, a site stays cut off from the meta-scheduler forever."""
    if net.timetable is None or not len(net.timetable.instants_ms):
        return
    model = list(net.periods())[-1][1]
    for site, ways in enumerate(_star(model, node)):
        if not all(way.exists for way in ways):
            name, at = model.topology.sites[site], model.topology.nodes[node]
            raise InputError(
                f"site {name} has no path to or from the grid, at node {at}, from "
                f"{net.timetable.instants_ms[-1]} ms on; expected its links to come back"
            )


GRID = -1
"""Index that stands for the meta-scheduler; sites have the indices from 0 up."""

PACKET, RESEND = 5, 6
"""Kinds of connection events: a packet arrives, or an end resends. They come after all other events of an instant."""


class Connections:
    """One connection for each site; with ``channels``, both of its ends have a channel.

    ``down`` says whether each site is down; the caller keeps it up to date. ``plan`` schedules a later call to `arrive`
    (kind `PACKET`) or `resend` (kind `RESEND`). ``deliver`` is called with each message that arrives at a site or at
    the grid (`GRID`). ``unsent`` holds the ends that have messages for the next `send`; it is empty without channels.
    """

    def __init__(
        self,
        routes: Routes,
        down: Sequence[bool],
        *,
        channels: bool,
        plan: Callable[[int, int, int, Any], None],
        deliver: Callable[[int, int, Any], None],
    ) -> None:
        self._routes = routes
        self._down = down
        self._plan = plan
        self._deliver = deliver
        self._cut = [0] * len(down)
        self.unsent: dict[tuple[int, int], None] = {}
        # The channels at the two ends of each site's connection; empty without channels.
        delays_ms = [routes.resend_ms(site) for site in range(len(down))] if channels else []
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
        """Whether every message has arrived."""
        if not self._channels:
            return not self._under_way
        return all(channel.is_idle for pair in self._channels for channel in pair)

    def cut(self, site: int) -> None:
        """Cut a site's connection; no packet arrives until all cuts of the connection have ended."""
        self._cut[site] += 1

    def end_cut(self, site: int) -> None:
        """End one of the cuts of a site's connection."""
        self._cut[site] -= 1

    def put(self, now_ms: int, site: int, end: int, message: Any) -> None:
        """Send a message from one end of a connection; with channels, the next `send` sends it."""
        to = GRID if end == SITE_END else site
        if self._channels:
            self._channels[site][end].send(message)
            self.unsent[site, end] = None
            return
        self.messages += 1
        (when_ms,) = self._routes.arrivals_ms(now_ms, site, end, 1)
        if when_ms == now_ms:
            self._deliver(to, site, message)
        else:
            self._under_way += 1
            self._plan(when_ms, PACKET, to, (site, message))

    def send(self, now_ms: int) -> None:
        """Send all messages that were passed to `put` since the last call."""
        ends = list(self.unsent)
        self.unsent.clear()
        for site, end in ends:
            self._flush(now_ms, site, end)

    def _flush(self, now_ms: int, site: int, end: int) -> None:
        """Send the packet of one end's channel, which may get lost or duplicated, and schedule the next resend."""
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
                    self._plan(when_ms, PACKET, to, (site, packet))
        self._plan_wakeup(now_ms, site, end)

    def arrive(self, now_ms: int, to: int, what: tuple[int, Any]) -> None:
        """Receive a packet at ``to``, a site or the grid; drop it if the connection is cut or the site is down."""
        site, message = what
        if not self._channels:
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
        self._plan_wakeup(now_ms, site, end)

    def resend(self, now_ms: int, site: int, end: int) -> None:
        """Resend or acknowledge the messages that are due; do nothing if an earlier wakeup has replaced this wakeup."""
        if self._wake_ms.get(2 * site + end) == now_ms:
            del self._wake_ms[2 * site + end]
            if not self._down[site]:
                self._flush(now_ms, site, end)

    def resume(self, now_ms: int, site: int) -> None:
        """Schedule the resends of both ends of a site's connection after the site has come back up."""
        self._plan_wakeup(now_ms, site, SITE_END)
        self._plan_wakeup(now_ms, site, GRID_END)

    def _plan_wakeup(self, now_ms: int, site: int, end: int) -> None:
        """Schedule the next resend of one end, unless an earlier resend of this end is already scheduled."""
        wake_ms = self._channels[site][end].next_wakeup_ms()
        if wake_ms is None:
            return
        key = 2 * site + end
        scheduled_ms = self._wake_ms.get(key)
        if scheduled_ms is None or wake_ms < scheduled_ms:
            wake_ms = max(wake_ms, now_ms + 1)
            self._wake_ms[key] = wake_ms
            self._plan(wake_ms, RESEND, site, end)
