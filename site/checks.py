"""What no job and no request may be, wherever it comes from: numbers that no machine has and no calendar reaches."""

from __future__ import annotations

from math import inf, isfinite

from gridweave.errors import InputError
from gridweave.site.messages import MAX_TIME_MS, MAX_WIDTH, Job, ReservationRequested, Resources

MAX_ID = 2**63 - 1

SUM_TOLERANCE = 1e-6
"""How far the fractions of CPU, network and disk of a job may be from summing to 1 (docs/lomarc.md)."""


def why_impossible(job: Job) -> str | None:
    """Return why a job can be none, or None if it can."""
    reason = why_impossible_numbers(job.job_id, job.width, job.estimate_ms)
    if reason is not None:
        return reason
    if not (0 < job.weight < inf and isfinite(job.priority)):
        return f"weight {job.weight} is not above 0, or priority {job.priority} no number"
    return why_impossible_needs(job.resources) if job.resources is not None else None


def why_impossible_numbers(job_id: int, width: int, estimate_ms: int) -> str | None:
    """Return why no job can have these, or None if one can."""
    if not 0 <= job_id <= MAX_ID:
        return f"job_id is not within 0 to {MAX_ID}"
    if not 1 <= width <= MAX_WIDTH:
        return f"width {width} is not within 1 to {MAX_WIDTH}"
    if not 1 <= estimate_ms <= MAX_TIME_MS:
        return f"estimate_ms {estimate_ms} is not within 1 to {MAX_TIME_MS}"
    return None


def why_impossible_needs(needs: Resources) -> str | None:
    """Return why no job can need that beside its nodes, or None if one can (docs/lomarc.md)."""
    fractions = needs.cpu, needs.network, needs.disk
    if not all(0 <= fraction <= 1 for fraction in fractions) or not abs(sum(fractions) - 1) <= SUM_TOLERANCE:
        return f"fractions {fractions} of CPU, network and disk are not parts of its run time that sum to 1"
    if not 0 < needs.memory <= 1:
        return f"memory {needs.memory} is not above 0 and up to 1, a node's"
    if not (1 <= needs.cores <= MAX_WIDTH and 0 <= needs.cpu_kind <= MAX_WIDTH and needs.cache_bytes >= 0):
        return f"cores {needs.cores}, CPU kind {needs.cpu_kind} or cache of {needs.cache_bytes} bytes is not possible"
    if needs.message_bytes is not None and needs.message_bytes < 0:
        return f"messages of {needs.message_bytes} bytes are not possible"
    return None


def check_job(job: Job) -> None:
    """Raise InputError if a job can be none."""
    problem = why_impossible(job)
    if problem is not None:
        raise InputError(f"job {job.job_id}: {problem}")


def check_reservation(request: ReservationRequested) -> None:
    """Raise InputError if a reservation can be none."""
    if not (
        0 <= request.reservation_id <= MAX_ID
        and 1 <= request.width <= MAX_WIDTH
        and 1 <= request.length_ms <= MAX_TIME_MS
        and abs(request.start_ms) <= MAX_TIME_MS
    ):
        raise InputError(
            f"reservation {request.reservation_id}: id from 0, width from 1 to {MAX_WIDTH}, "
            f"length_ms from 1 and start_ms up to {MAX_TIME_MS}"
        )
