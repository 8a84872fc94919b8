"""Prometheus metrics of the gateway (docs/gateway.md, "Metrics"), and the request log.

No label has values that clients choose, and no log line contains a secret.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gridweave.grid.api import JobEvent, Queue, SiteInfo
from gridweave.site.job import OUTCOMES
from gridweave.site.lifecycle import OPEN
from gridweave.site.service.link import Link

_LATENCIES_S = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class GatewayMetrics:
    """The metrics of one gateway, in their own registry."""

    def __init__(self, *, watchers: Callable[[], int], streams: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._counter = counter = functools.partial(Counter, registry=self.registry)
        self._gauge = gauge = functools.partial(Gauge, registry=self.registry)
        self._histogram = functools.partial(Histogram, registry=self.registry, buckets=_LATENCIES_S)
        self._requests = counter("gridweave_http_requests", "Answered requests.", ("route", "method", "status"))
        self._seconds = self._histogram(
            "gridweave_http_request_seconds", "Time to answer, but for streams.", ("route",)
        )
        self._submitted = counter("gridweave_jobs_submitted", "Jobs that the grid has accepted, counted by events.")
        self._ended = counter("gridweave_jobs_ended", "Jobs that have ended, counted by events.", ("outcome",))
        for outcome in (*OUTCOMES, "other"):
            self._ended.labels(outcome)
        self._jobs = gauge("gridweave_jobs", "Open jobs of the grid.", ("state",))
        self._up = gauge("gridweave_up", "Whether the meta-scheduler answers.")
        self._backend_errors = counter("gridweave_backend_errors", "Requests that the grid did not answer.")
        by_site = {
            "gridweave_site_nodes": "Nodes that the grid may use.",
            "gridweave_site_free_nodes": "Free nodes that the grid may use.",
            "gridweave_site_up": "Whether the site answers.",
            "gridweave_uplink_up": "Whether the site reaches the grid, as the site reports.",
            "gridweave_uplink_answered_timestamp_seconds": "When the grid last answered, as the site reports.",
        }
        self._of_site = {name: gauge(name, text, ("site",)) for name, text in by_site.items()}
        of_resource = ("site", "resource")
        self._total = gauge("gridweave_site_resource_total", "Resources of the site's nodes.", of_resource)
        self._used = gauge("gridweave_site_resource_used", "Resources that running jobs hold.", of_resource)
        gauge("gridweave_watchers", "Open streams of events.").set_function(watchers)
        gauge("gridweave_streams", "Open streams of events and output.").set_function(streams)

    def watch_links(self, links: Mapping[str, Link], sites: Sequence[str], heard_s: Callable[[str], float]) -> None:
        """Add metrics of this process's links: their requests, and when each site last sent one."""
        requests = self._counter(
            "gridweave_link_requests", "Requests to the other ends of links.", ("site", "what", "result")
        )
        seconds = self._histogram("gridweave_link_seconds", "Time until the other end answered.", ("site", "what"))
        heard = self._gauge(
            "gridweave_link_heard_timestamp_seconds",
            "When the other end last sent a request, or 0.",
            ("site",),
        )

        def observe(site: str, what: str, took_s: float | None) -> None:
            requests.labels(site, what, "failed" if took_s is None else "answered").inc()
            if took_s is not None:
                seconds.labels(site, what).observe(took_s)

        for site, link in links.items():
            link.observe = functools.partial(observe, site)
        for site in sites:
            heard.labels(site).set_function(functools.partial(heard_s, site))

    def answered(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """Count a request by route (empty: none matched), with its duration in seconds (None: a stream)."""
        self._requests.labels(route or "none", method if route else "none", str(status)).inc()
        if seconds is not None:
            self._seconds.labels(route or "none").observe(seconds)

    def heard(self, events: Sequence[JobEvent]) -> None:
        """Count job events."""
        for seen in events:
            if seen.kind == "submitted":
                self._submitted.inc()
            elif seen.kind == "ended":
                outcome = seen.detail.partition(":")[0]
                self._ended.labels(outcome if outcome in OUTCOMES else "other").inc()

    def backend_failed(self) -> None:
        """Count a request that the grid did not answer."""
        self._backend_errors.inc()

    def looked(self, queue: Queue | None, sites: Sequence[SiteInfo]) -> None:
        """Update the gauges of the grid and its sites; without a queue, the grid is shown as down."""
        self._up.set(queue is not None)
        if queue is not None:
            for state in OPEN:
                self._jobs.labels(state).set(getattr(queue, state))
        for site in sites:
            values = {
                "gridweave_site_nodes": float(site.for_grid),
                "gridweave_site_free_nodes": float(site.free),
                "gridweave_site_up": float(site.answers),
            }
            if site.uplink is not None:
                values["gridweave_uplink_up"] = float(not site.uplink.problem)
                values["gridweave_uplink_answered_timestamp_seconds"] = site.uplink.answered_ms / 1000
            for name, value in values.items():
                self._of_site[name].labels(site.name).set(value)
            for amount in site.amounts:
                self._total.labels(site.name, amount.name).set(amount.total)
                self._used.labels(site.name, amount.name).set(amount.used)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)


logger = logging.getLogger("gridweave.gateway.requests")

_VALID_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}", re.ASCII)


class LoggedRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One line of the request log."""

    time: str
    id: str  # request id, as in the history of the jobs it submitted
    # Id of the token.
    user: str = ""
    token: str = ""
    # Name of the route, and the job, site or token in its path.
    method: str
    route: str = ""
    target: str = ""
    status: int  # 499: the client disconnected before the answer
    duration_ms: float
    bytes_in: int = 0
    bytes_out: int = 0
    jobs: int = 0  # number of jobs that the request acted on
    problem: str = ""  # kind of the refusal


def time_text(now_ms: int) -> str:
    """Format a time for logs.

    Examples
    --------
    >>> time_text(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'
    """
    return datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_valid_id(request_id: str) -> bool:
    """Whether a client's request id is valid.

    Examples
    --------
    >>> is_valid_id("batch-7.3"), is_valid_id("two words"), is_valid_id("")
    (True, False, False)
    """
    return _VALID_ID.fullmatch(request_id) is not None


def log_request(line: LoggedRequest) -> None:
    """Write a line to the request log."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("%s", msgspec.json.encode(line).decode())
