"""What the gateway counts, for Prometheus (docs/gateway.md, "Metrics"); no label has values that clients choose.

One line of JSON for each request, without secrets.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gridweave.grid.api import JobEvent, Queue, SiteInfo

if TYPE_CHECKING:
    from gridweave.grid.gateway.link import LinkDoor
    from gridweave.site.service.link import Link


OUTCOMES = ("finished", "failed", "limit", "cancelled")

_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class GatewayMetrics:
    """The numbers of one gateway, in a registry of their own.

    Parameters
    ----------
    watchers, streams : callable
        Return how many there are.
    """

    def __init__(self, *, watchers: Callable[[], int], streams: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "gridweave_http_requests",
            "Requests that were answered.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "gridweave_http_request_seconds",
            "Time to the end of the answer, but for streams.",
            ("route",),
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        self._submitted = Counter(
            "gridweave_jobs_submitted", "Jobs that the grid took in, by events.", registry=self.registry
        )
        self._ended = Counter(
            "gridweave_jobs_ended", "Jobs that have ended, by events.", ("outcome",), registry=self.registry
        )
        self._jobs = Gauge("gridweave_jobs", "Jobs of the grid that are not over.", ("state",), registry=self.registry)
        self._nodes = Gauge("gridweave_site_nodes", "Nodes that the grid may have.", ("site",), registry=self.registry)
        self._free = Gauge(
            "gridweave_site_free_nodes", "Those of them that are free.", ("site",), registry=self.registry
        )
        self._uplink = Gauge(
            "gridweave_uplink_up",
            "Whether the site reaches the grid, by its own word.",
            ("site",),
            registry=self.registry,
        )
        self._uplink_at = Gauge(
            "gridweave_uplink_answered_timestamp_seconds",
            "When the grid last answered the site, by its own word.",
            ("site",),
            registry=self.registry,
        )
        self._answers = Gauge("gridweave_site_up", "Whether the site answers.", ("site",), registry=self.registry)
        self._up = Gauge("gridweave_up", "Whether the meta-scheduler answers.", registry=self.registry)
        self._backend_errors = Counter(
            "gridweave_backend_errors", "Questions that the grid did not answer.", registry=self.registry
        )
        Gauge("gridweave_watchers", "Streams of events.", registry=self.registry).set_function(watchers)
        Gauge("gridweave_streams", "Streams of events and output.", registry=self.registry).set_function(streams)
        for outcome in (*OUTCOMES, "other"):
            self._ended.labels(outcome)

    def watch_links(self, links: Mapping[str, Link], door: LinkDoor) -> None:
        """Count what goes over links.

        Parameters
        ----------
        links : mapping from str to Link
            By site; those whose other ends this gateway's own process calls.
        door : LinkDoor
            Where the other ends knock.
        """
        requests = Counter(
            "gridweave_link_requests",
            "Requests to the other ends of links.",
            ("site", "what", "result"),
            registry=self.registry,
        )
        seconds = Histogram(
            "gridweave_link_seconds",
            "Time to their answers.",
            ("site", "what"),
            buckets=_LATENCIES_S,
            registry=self.registry,
        )
        heard = Gauge(
            "gridweave_link_heard_timestamp_seconds",
            "When the other end was heard last; 0: not yet.",
            ("site",),
            registry=self.registry,
        )

        def observe(site: str, what: str, took_s: float | None) -> None:
            requests.labels(site, what, "failed" if took_s is None else "answered").inc()
            if took_s is not None:
                seconds.labels(site, what).observe(took_s)

        for site, link in links.items():
            link.observe = functools.partial(observe, site)
        for site in door.sites:
            heard.labels(site).set_function(functools.partial(_seconds_of, door, site))

    def answered(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """Count a request.

        Parameters
        ----------
        route : str
            Its name in the table of routes; empty: none.
        seconds : float, optional
            None for a stream.
        """
        self._requests.labels(route or "none", method if route else "none", str(status)).inc()
        if seconds is not None:
            self._seconds.labels(route or "none").observe(seconds)

    def heard(self, events: Sequence[JobEvent]) -> None:
        """Count what has happened to jobs."""
        for seen in events:
            if seen.kind == "submitted":
                self._submitted.inc()
            elif seen.kind == "ended":
                outcome = seen.detail.partition(":")[0]
                self._ended.labels(outcome if outcome in OUTCOMES else "other").inc()

    def backend_failed(self) -> None:
        """Count a question that the grid did not answer."""
        self._backend_errors.inc()

    def looked(self, queue: Queue | None, sites: Sequence[SiteInfo]) -> None:
        """Take in how the grid is.

        Parameters
        ----------
        queue : Queue or None
            None: it does not answer.
        """
        self._up.set(queue is not None)
        if queue is not None:
            for state in ("waiting", "held", "starting", "running"):
                self._jobs.labels(state).set(getattr(queue, state))
        for site in sites:
            self._nodes.labels(site.name).set(site.for_grid)
            self._free.labels(site.name).set(site.free)
            self._answers.labels(site.name).set(site.answers)
            if site.uplink is not None:
                self._uplink.labels(site.name).set(not site.uplink.problem)
                self._uplink_at.labels(site.name).set(site.uplink.answered_ms / 1000)

    def text(self) -> bytes:
        """Return all of it in the text format of Prometheus."""
        return generate_latest(self.registry)


def _seconds_of(door: LinkDoor, site: str) -> float:
    """Return when the other end of a link was heard last."""
    return door.heard_ms.get(site, 0) / 1000


logger = logging.getLogger("gridweave.gateway.requests")

_GOOD_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


class Line(msgspec.Struct, omit_defaults=True, kw_only=True):
    """What is known of a request in the end.

    Attributes
    ----------
    time : str
    id : str
        The id of the request, as in the story of the jobs that it handed in.
    user, token : str
        The token by its id.
    method, route, target : str
        The route by its name; the target is the job, site or token in its path.
    status : int
        499: the client went away before the answer.
    duration_ms : float
    bytes_in, bytes_out : int
    jobs : int
        How many it was about.
    problem : str
        The kind of refusal.
    """

    time: str
    id: str
    user: str = ""
    token: str = ""
    method: str
    route: str = ""
    target: str = ""
    status: int
    duration_ms: float
    bytes_in: int = 0
    bytes_out: int = 0
    jobs: int = 0
    problem: str = ""


def time_text(now_ms: int) -> str:
    """Return an instant as logs have it.

    Examples
    --------
    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def good_id(given: str) -> bool:
    """Return whether the id that a client gave its request can be used.

    Examples
    --------
    >>> good_id("batch-7.3"), good_id("two words"), good_id("")
    (True, False, False)
    """
    return _GOOD_ID.fullmatch(given) is not None


def write(line: Line) -> None:
    """Write a line."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", msgspec.json.encode(line).decode())
