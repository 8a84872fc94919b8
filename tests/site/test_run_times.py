"""How long a job ran, whenever its end was heard."""

from __future__ import annotations

import pytest

from gridweave.site.job import JobRecord, JobRequest, Program
from gridweave.site.times import processes_ended_ms, run_time_ms

REQUEST = JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=60_000)


@pytest.mark.parametrize(
    ("ran_ms", "ended_ms"),
    [
        ((1_050, 61_000), 61_000),  # the head was away for ten minutes at its end
        (None, 632_000),  # an older agent, or a batch system, does not say
        ((0, 900), 632_000),  # a clock that is behind cannot have seen an end before the start,
        ((1_050, 700_000), 632_000),  # nor one that is ahead an end after it was heard
    ],
)
def test_an_end_that_is_heard_late_is_no_run_time(ran_ms: tuple[int, int] | None, ended_ms: int) -> None:
    """A job ended when its machines say so, if that can be."""
    record = JobRecord(job_id=1, request=REQUEST, submit_ms=0, start_ms=1_000, end_ms=632_000, ran_ms=ran_ms)
    assert processes_ended_ms(record) == ended_ms
    assert run_time_ms(record, 999_000) == run_time_ms(record) == ended_ms - 1_000


def test_a_job_that_runs_has_run_until_now() -> None:
    """Before its end the time goes on; before its start there is none."""
    record = JobRecord(job_id=1, request=REQUEST, submit_ms=0, start_ms=1_000)
    assert (run_time_ms(record, 5_000), run_time_ms(record)) == (4_000, None)
    record.start_ms = None
    assert (run_time_ms(record, 5_000), processes_ended_ms(record)) == (None, None)
