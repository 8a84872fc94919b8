"""Holds, dependencies and arrays of the jobs in a live world, and checks that the grid obeys them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from gridweave.scenarios.world.history import ViolationError
from gridweave.site.eligibility import has_come, past_of
from gridweave.site.job import After, ArrayPlace, JobRecord, JobRequest

CLOCKS_MS = 200
"""Tolerance between a start by a site's clock and an end by the grid's clock; each is off by less than half of it."""


def with_wishes(rng: np.random.Generator, request: JobRequest, others: Iterable[int], place: str) -> JobRequest:
    """Return a request that is perhaps held, waits for other jobs of the same place, or belongs to an array."""
    known = sorted(others)
    after = []
    if known and rng.random() < 0.3:
        for job_id in rng.choice(known, size=min(len(known), int(rng.integers(1, 3))), replace=False).tolist():
            has = str(rng.choice(["started", "ended", "finished", "finished", "failed"]))
            after.append(After(job_id=job_id, has=has))  # type: ignore[arg-type]
    array = None
    if rng.random() < 0.3:
        array = ArrayPlace(name=f"array of {place}", index=int(rng.integers(10)), at_once=int(rng.integers(0, 3)))
    hold = bool(rng.random() < 0.2)
    return msgspec.structs.replace(request, hold=hold, after=tuple(after), array=array)


def was_hopeless(record: JobRecord, records: Mapping[int, JobRecord]) -> bool:
    """Whether a job was cancelled because its condition on another job could never hold."""
    if record.outcome != "cancelled" or not record.reason.startswith("it waited until"):
        return False
    return any(has_come(after, past_of(records[after.job_id])) is False for after in record.request.after)


def check_waits(records: Mapping[int, JobRecord], notes: Iterable[Mapping[str, Any]]) -> None:
    """Raise ViolationError if a job ran before its conditions on other jobs held.

    The condition ``started`` keeps holding if the other job is requeued, so it is checked in the notes.
    """
    once = {note["job_id"] for note in notes if note["kind"] in ("starting", "runs")}
    for job_id, record in records.items():
        for after in record.request.after:
            other = records[after.job_id]
            if record.outcome == "cancelled" or record.start_ms is None:
                continue
            if not has_come(after, past_of(other)) and not (after.has == "started" and other.job_id in once):
                raise ViolationError(f"job {job_id} ran though job {after.job_id} never has {after.has}")
            since_ms = other.end_ms if after.has != "started" else None
            if since_ms is not None and record.start_ms < since_ms - CLOCKS_MS:
                raise ViolationError(f"job {job_id} ran before job {after.job_id} had {after.has}")


def check_notes(notes: Iterable[Mapping[str, Any]], records: Mapping[int, JobRecord]) -> None:
    """Raise ViolationError if a job ran while kept from the queue, or if an array exceeded its limit `at_once`."""
    kept: set[int] = set()
    inside: dict[str, set[int]] = {}
    for note in notes:
        job_id, kind = note["job_id"], note["kind"]
        record = records.get(job_id)
        if record is None:
            continue
        array = record.request.array
        if kind == "kept":
            kept.add(job_id)
        elif kind == "queued":
            kept.discard(job_id)
        elif kind in ("runs", "starting") and job_id in kept:
            raise ViolationError(f"job {job_id} runs, and is kept from the queue")
        if array is None:
            continue
        under_way = inside.setdefault(array.name, set())
        if kind in ("kept", "ended", "refused") and (kind != "refused" or record.state == "refused"):
            under_way.discard(job_id)
        elif kind == "queued":
            under_way.add(job_id)
            if 0 < array.at_once < len(under_way):
                raise ViolationError(f"{len(under_way)} jobs of {array.name} are under way, job {job_id} at last")
